"""Runs and plans show themselves in a few lines."""

from __future__ import annotations

import doctest
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest

import gedppl as ged
from gedppl import showing
from gedppl.study.planning.tables import Plan, Trial
from gedppl.study.simulation import Outline
from tests.table_runs import agents_run


def a_plan(settings: int) -> Plan:
    zeros = np.zeros(3)
    trials = tuple(Trial(s, "<flat>", 0, zeros, zeros + 0.5, zeros > 0, s % 2, "") for s in range(settings))
    return Plan(trials, tuple({"delta": 0.1 * s} for s in range(settings)), ("<flat>",), 3, 1, 0.05, None, 3, None)


@pytest.fixture(scope="module")
def run() -> ged.Run:
    return agents_run()


def test_a_run_says_what_happened(run) -> None:
    shown = repr(run)
    assert len(shown.splitlines()) <= 12
    assert len(shown) < 1200
    for said in ("Run of 60 rounds", "limits: cost at most", "regret: ", "infeasible rounds: 0", "certificates: 60 of 60"):
        assert said in shown
    assert "interrupted" in repr(replace(run, interrupted=True))
    blind = [replace(r, utilities=r.utilities * np.nan, best=np.nan) for r in run.rounds]
    assert "regret: unknown" in repr(replace(run, rounds=blind))
    assert "Run of 0 rounds" in repr(replace(run, rounds=[]))


def test_a_plan_says_how_its_trials_ended() -> None:
    assert "<flat>, delta 0.1: mean regret 1.5; 1 of 1 trials with an infeasible round" in repr(a_plan(2))
    assert len(repr(a_plan(40)).splitlines()) == 12
    assert repr(a_plan(40)).endswith("... and 30 more")


@pytest.mark.parametrize("what", ["run", "plan"])
def test_a_notebook_gets_a_table_in_which_nothing_is_markup(what, run) -> None:
    thing = a_plan(2) if what == "plan" else replace(run, problem=replace_names(run))
    page = ElementTree.fromstring(thing._repr_html_())
    assert page.find("table") is not None
    assert "<" in "".join(page.itertext())  # the names' own, as text


def replace_names(run: ged.Run) -> Outline:
    return replace(Outline.of(run.problem), constraint_names=["<script>"])


def test_long_and_broken_lines_are_made_short() -> None:
    assert max(len(line) for line in showing.as_text("a\nb", {"c": "x" * 500}).splitlines()) == showing.WIDTH
    assert showing.as_text("a\nb", {}) == "a b"
    assert doctest.testmod(showing).failed == 0
