"""Every public object shows itself in a few lines, and as a table in a notebook."""

from __future__ import annotations

import doctest
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import gedppl as ged
from gedppl import showing
from gedppl.agent import memory
from gedppl.study.planning.tables import Plan, Trial
from gedppl.study.simulation import RunOutline
from tests.plain_worlds import memory_of
from tests.table_runs import agents_run


def a_plan(settings: int) -> Plan:
    zeros = np.zeros(3)
    trials = tuple(
        Trial(s, "<flat>", 0, zeros, zeros + 0.5, zeros > 0, s % 2, "") for s in range(settings)
    )
    return Plan(
        trials,
        tuple({"delta": 0.1 * s} for s in range(settings)),
        ("<flat>",),
        3,
        1,
        0.05,
        None,
        3,
        None,
    )


@pytest.fixture(scope="module")
def run() -> ged.Run:
    return agents_run()


def test_a_run_says_what_happened(run) -> None:
    shown = repr(run)
    assert len(shown.splitlines()) <= 12
    assert len(shown) < 1200
    for said in (
        "Run of 60 rounds",
        "limits: cost at most",
        "regret: ",
        "infeasible rounds: 0",
        "certificates: 60 of 60",
    ):
        assert said in shown
    assert "interrupted" in repr(replace(run, interrupted=True))
    blind = [replace(r, utilities=r.utilities * np.nan, best=np.nan) for r in run.rounds]
    assert "regret: unknown" in repr(replace(run, rounds=blind))
    assert "Run of 0 rounds" in repr(replace(run, rounds=[]))


def test_a_plan_says_how_its_trials_ended() -> None:
    assert "<flat>, delta 0.1: mean regret 1.5; 1 of 1 trials with an infeasible round" in repr(
        a_plan(2)
    )
    assert len(repr(a_plan(40)).splitlines()) == 12
    assert repr(a_plan(40)).endswith("... and 30 more")


@pytest.mark.parametrize("what", ["run", "plan"])
def test_a_notebook_gets_a_table_in_which_nothing_is_markup(what, run) -> None:
    thing = a_plan(2) if what == "plan" else replace(run, problem=replace_names(run))
    page = ElementTree.fromstring(thing._repr_html_())
    assert page.find("table") is not None
    assert "<" in "".join(page.itertext())  # the names' own, as text


def replace_names(run: ged.Run) -> RunOutline:
    return replace(RunOutline.of(run.problem), constraint_names=["<script>"])


HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def shown(run) -> dict[str, object]:
    """One of every public class that holds results or a state, by its name."""
    problem = replace(run.problem, actions=("none", HOSTILE, "full"), columns=("ward",))
    agent = ged.GEDUCB(problem, seed=0)
    for i in range(30):
        decision = agent.ask([float(i % 2)])
        agent.tell(decision, 1.0, 0.0)
    decision = agent.ask([0.0])
    x, a, y = run.x, run.action, run.outcomes()["cost"]
    return {
        "Problem": problem,
        "GEDUCB": agent,
        "Decision": decision,
        "Certificate": decision.certificate,
        "Explanation": agent.explain(decision),
        "Recommendation": agent.recommend([0.0]),
        "ConfidenceSet": ged.confidence_set(problem.streams["cost"], x, a, y, 0.05),
        "density_class": ged.density_class(coin, example=(np.zeros((1, 1)), [0])),
        "a class not run yet": ged.density_class(coin),
        "finite_class": problem.streams["cost"],
        "Run": run,
        "Plan": a_plan(40),
        "Price": ged.price(problem, np.array([[0.0], [1.0]]), rounds=50, runs=1),
        "ProblemReport": ged.check_problem(problem, np.array([[0.0], [1.0]]), rounds=50, runs=1),
        "Log": ged.offpolicy.Log.of(run),
        "OffPolicyEstimate": ged.offpolicy.ips(ged.offpolicy.Log.of(run), run.policy),
        "Density": problem.streams["cost"].density(0, x, a),
        "Functional": ged.mean(0, 1),
        "Constraint": problem.constraints[0],
        "Utility": problem.utility,
    }


def coin(x, a, y=None):
    p = numpyro.param("p", 0.5 * jnp.ones(3))
    numpyro.sample("y", dist.Bernoulli(p[a]), obs=y)


def test_every_public_object_is_short(shown) -> None:
    for name, thing in shown.items():
        text = repr(thing)
        assert 1 <= len(text.splitlines()) <= showing.LINES, name
        assert len(text) <= showing.LINES * (showing.WIDTH + 1), name
        assert " object at 0x" not in text, name


def test_in_a_notebook_nothing_is_markup(shown) -> None:
    silent = {"Density", "Functional", "Constraint", "Utility"}  # one line says it all
    for name, thing in shown.items():
        if name not in silent:
            page = ElementTree.fromstring(f"<body>{thing._repr_html_()}</body>")
            assert not list(page.iter("script")), name
    assert HOSTILE in "".join(
        ElementTree.fromstring(f"<body>{shown['Problem']._repr_html_()}</body>").itertext()
    )


def test_they_say_what_matters(shown) -> None:
    for name, words in {
        "Problem": (
            "3 actions, safe action none",
            "limit 'cost': mean",
            "at most 0.5, safe value 0.1",
            "context: ward",
            "finite_class",
        ),
        "GEDUCB": (
            "after 31 decisions, 1 without",
            "limit 'cost': at most 0.5",
            "played: none ",
            "bounds of 'cost': exact",
            "alarms",
        ),
        "Certificate": (
            "round 30, every limit guaranteed (delta 0.05",
            "limit 'cost': worst case",
            "fit of 'cost'",
        ),
        "ConfidenceSet": ("from 60 rows", "rule: ", "bounds: exact"),
        "Decision": ("Decision(id=30, action=", "policy=["),
        "Log": ("Log of 60 decisions", "smallest propensity"),
    }.items():
        for said in words:
            assert said in repr(shown[name]), (name, said, repr(shown[name]))


def test_an_alarm_is_seen(shown) -> None:
    agent = ged.GEDUCB(shown["Problem"], seed=0)
    assert "after 0 decisions" in repr(agent)
    agent.ask([0.0])
    assert "alarms: none" in repr(agent)
    alarm = ged.guard.Alarm("limit:cost", 40.0, 0.05, 1, "the cost is above its limit")
    agent._keeper.commit([], memory.with_alarms(memory_of(agent), [alarm]))
    assert "ALARM 'limit:cost': the cost is above its limit" in repr(agent)


def test_long_and_broken_lines_are_made_short() -> None:
    assert (
        max(len(line) for line in showing.as_text("a\nb", {"c": "x" * 500}).splitlines())
        == showing.WIDTH
    )
    assert showing.as_text("a\nb", {}) == "a b"
    assert doctest.testmod(showing).failed == 0
