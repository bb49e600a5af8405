"""Public names say what they are: one line, parameters, an example or why there is none, where it
was published, and what is not guaranteed.
"""

from __future__ import annotations

import inspect
import re
from operator import attrgetter
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
# Nothing was published that they follow, and why
UNPUBLISHED = {
    "made by the library; what makes them has it": {
        *MADE,
        "Density",
    },
    "said to the user": {
        "AlarmWarning",
        "FallbackWarning",
        "SafeActionWarning",
        "posterior_quantile",
    },
    "a definition that every textbook has": {
        "expected",
        "least_squares",
        "mean",
        "probability",
        "quantile",
        "second_moment",
        "variance",
    },
    "a part of a declaration, or the making of one; `Problem` has it": {
        "Constraint",
        "Utility",
        "density_class",
        "finite_class",
        "known_cost",
        "register_divergence",
        "register_family",
    },
    "what goes with `eluder.dimension`, which has it": {
        "eluder.class_dimension",
        "eluder.class_divergences",
        "eluder.longest_chain",
        "eluder.profile",
        "eluder.upper_bound",
    },
    "this library's own": {
        "Replay",
        "Scenario",
        "StoppingRules",
        "check_problem",
        "decision_table",
        "plan",
        "price",
        "resume",
        "shared_draws",
        "shrinkage",
        "simulate",
        "simulate_many",
    },
    "a picture": {
        "plot_action_bounds",
        "plot_cost_bounds",
        "plot_policy_map",
        "plot_regret",
        "plot_shrinkage",
        "plot_tradeoff",
        "plot_width",
    },
}
# These claim nothing that could fail to hold, and why
CLAIMS_NOTHING = {
    "made by the library; what makes them says it": MADE - {"Certificate", "Posterior"},
    "said to the user": UNPUBLISHED["said to the user"],
    "a picture of what happened": UNPUBLISHED["a picture"],
    "arithmetic, or a guess and called one": {"Density", "Scenario", "probability"},
}
# "Not guaranteed: ...", or of what is declared that it is believed
CAVEAT = re.compile(r"\bNot\s+guaranteed\b|\bbelieved\b")
# beyond the front door
IN_ROOMS = (
    "eluder.class_dimension",
    "eluder.class_divergences",
    "eluder.dimension",
    "eluder.longest_chain",
    "eluder.profile",
    "eluder.upper_bound",
    "guard.OutlierCheck",
    "guard.PitMonitor",
    "offpolicy.cross_fitted",
    "offpolicy.doubly_robust",
    "offpolicy.ips",
    "offpolicy.snips",
    "radius.chi_square",
)


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


def excepted(lists: dict[str, set[str]]) -> set[str]:
    return set().union(*lists.values())


def documented() -> dict[str, str]:
    things = public() | {path: attrgetter(path)(ged) for path in IN_ROOMS}
    return {name: inspect.getdoc(thing) or "" for name, thing in things.items()}


@pytest.mark.parametrize("name", sorted(documented()))
def test_a_public_name_says_where_it_was_published(name: str) -> None:
    has = "References" in sections(documented()[name])
    assert has != (name in excepted(UNPUBLISHED)), (
        f"{name}: a References section, or a place in UNPUBLISHED; never both"
    )


@pytest.mark.parametrize("name", sorted(documented()))
def test_a_public_name_says_what_is_not_guaranteed(name: str) -> None:
    has = bool(CAVEAT.search(documented()[name]))
    assert has != (name in excepted(CLAIMS_NOTHING)), (
        f'{name}: "Not guaranteed: ...", or a place in CLAIMS_NOTHING; never both'
    )


def test_a_reference_says_who_and_what() -> None:
    for name, text in documented().items():
        if "References" not in sections(text):
            continue
        part = text.split("References\n----------\n")[1].split("\n\n")[0]
        assert re.match(r"[A-Z][a-z]+", part), f"{name}: authors first"
        assert '"' in part, f"{name}: a title"


def test_the_lists_of_exceptions_are_not_longer_than_they_need_be() -> None:
    assert set(WITHOUT) | MADE <= set(public())
    for lists in (UNPUBLISHED, CLAIMS_NOTHING):
        assert excepted(lists) <= set(documented())
        assert len(excepted(lists)) == sum(map(len, lists.values())), "one reason is enough"
    for name in WITHOUT:
        assert ">>>" not in (inspect.getdoc(public()[name]) or "")
