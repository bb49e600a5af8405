"""Public names say what they are: one line, parameters, and an example or why there is none."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import gedppl as ged

# no example, and why
WITHOUT = {
    "AlarmWarning": "a warning",
    "FallbackWarning": "a warning",
    "SafeActionWarning": "a warning",
    "shared_draws": "it is for programs with priors, whose compilation takes seconds",
    "posterior_quantile": "an old name, which says the new one",
}
# what these have is described beside each field: they are made by the library and read by the user
MADE = {
    "Certificate",
    "ConfidenceSet",
    "Coverage",
    "Decision",
    "DecisionTable",
    "Explanation",
    "ModelComparison",
    "Posterior",
    "Price",
    "ProblemReport",
    "Run",
}


def public() -> dict[str, Any]:
    found = {name: getattr(ged, name) for name in ged.__all__}
    return {name: thing for name, thing in found.items() if callable(thing)}


def sections(text: str) -> set[str]:
    return set(re.findall(r"^(\w[\w ]*)\n-{3,}$", text, re.M))


def parameters(thing: Any) -> list[str]:
    return [name for name in inspect.signature(thing).parameters if name not in ("self", "cls")]


@pytest.mark.parametrize("name", sorted(public()))
def test_a_public_name_says_what_it_is(name: str) -> None:
    thing = public()[name]
    text = inspect.getdoc(thing) or ""
    first = text.split("\n\n")[0]
    assert first.strip().endswith((".", ":")), f"{name}: one sentence first"
    if name in WITHOUT:
        return
    assert ">>>" in text, f"{name}: an example, or a line in WITHOUT that says why not"
    if name not in MADE and parameters(thing):
        assert "Parameters" in sections(text), f"{name}: its parameters"


@pytest.mark.parametrize("name", sorted(public()))
def test_every_parameter_is_described(name: str) -> None:
    thing = public()[name]
    text = inspect.getdoc(thing) or ""
    if name in WITHOUT or name in MADE or not parameters(thing):
        return
    part = text.split("Parameters\n----------\n")[1]
    part = re.split(r"\n(?=\w[\w ]*\n-{3,})", part)[0]
    named = {
        word.strip("* ")
        for line in re.findall(r"^(\S.*)$", part, re.M)
        for word in line.split(" : ")[0].split(",")
    }
    missing = [one for one in parameters(thing) if one not in named]
    assert not missing, f"{name} does not describe {missing}"


def test_the_lists_of_exceptions_are_not_longer_than_they_need_be() -> None:
    assert set(WITHOUT) | MADE <= set(public())
    for name in WITHOUT:
        assert ">>>" not in (inspect.getdoc(public()[name]) or "")
