"""Practitioners' idioms: what data see of each is proved, equals the program's own values, and
decides under a guarantee.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.stats import binom

import gedppl as ged
from gedppl.agent.keeper import what_holds_back
from gedppl.errors import FitWarning
from gedppl.learning.seen_class import served
from tests.idiom_runs import DELTA, brute_force_error, class_of, is_missed, rows_of, truth_of
from tests.idioms import IDIOMS, Idiom, K, contexts
from tests.optional_pyro import needs_pyro
from tests.plain_worlds import state_of

# In NumPyro, where every class is compiled; the others are quick in Pyro, and both in the slow run
QUICK = (
    "Beta-Bernoulli arms",
    "non-centred arms",
    "probit",
    "30 actions with shared features",
    "Normal, a scale for each action",
    "negative binomial demand",
    "log-linear scale",
)


def case(idiom: Idiom, ppl: str):
    quick = (idiom.name in QUICK) == (ppl == "numpyro") or idiom.model("numpyro") is None
    marks = [needs_pyro] if ppl == "pyro" else []
    marks += [] if quick else [pytest.mark.slow]
    return pytest.param(idiom, ppl, id=f"{idiom.name}, {ppl}", marks=marks)


CASES = [
    case(idiom, ppl)
    for idiom in IDIOMS
    for ppl in ("numpyro", "pyro")
    if idiom.model(ppl) is not None
]
GUARANTEED = [case for case in CASES if case.values[0].guaranteed]


@pytest.mark.parametrize(("idiom", "ppl"), CASES)
def test_what_data_see_is_proved_or_refused_as_the_table_says(idiom: Idiom, ppl: str) -> None:
    cls = class_of(idiom, ppl)
    assert (cls.location_scale is not None) == (idiom.word == "scale")
    assert (cls.profiled is not None) == idiom.word.startswith("profiled")
    assert cls.exactness.startswith("exact" if idiom.word == "scale" else idiom.word.split(",")[0])
    if idiom.word == "not exact":
        assert cls.seen is None
        assert cls.refusal.why in cls.exactness
    if idiom.dim is not None and cls.seen is not None:
        assert cls.seen.dim == idiom.dim


@pytest.mark.parametrize(
    ("idiom", "ppl"), [case for case in CASES if case.values[0].word != "not exact"]
)
def test_the_log_density_by_what_is_seen_is_the_programs(idiom: Idiom, ppl: str) -> None:
    """At parameters drawn from the prior and at rows of every action: the proof's features
    against the program itself.
    """
    cls = class_of(idiom, ppl)
    x, a = rows_of(idiom, 24, 1)
    theta = np.asarray(cls.draw_prior(4, 7), float)
    if idiom.word == "scale":
        ours = cls.location_scale
        v, scale = ours.from_theta(theta)
        loc, density = v @ ours.features(x, a).T + ours.offset(x, a), cls.density_at(theta, x, a)
        np.testing.assert_allclose(loc, density.args["loc"], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(scale[:, ours.group(x, a)], density.args["scale"], rtol=1e-12)
        return
    if cls.profiled is not None:
        form = cls.profiled
        v, nuisance = form.from_theta(theta)
        offset = form.offset(x, a) + np.log(nuisance)[:, None] * form.slope(x, a)
        eta, args = v @ form.features(x, a).T + offset, cls.density_at(theta, x, a).args
        np.testing.assert_allclose(nuisance[:, None] + 0 * eta, args[form.name], rtol=1e-12)
        theirs = {
            "NegativeBinomial": lambda: (
                np.log(args["probs"] / (1 - args["probs"]))
                + (np.log(args["total_count"]) if form.link == "log" else 0.0)
            ),
            "Gamma": lambda: np.log(args["rate"]),
            "Weibull": lambda: np.log(args["scale"]),
        }
        np.testing.assert_allclose(eta, theirs[form.family](), rtol=1e-9, atol=1e-9)
        return
    view = served(cls)
    if view is cls:
        return
    y = cls.density_at(theta[0], x, a).sample(0, 1)[0]
    ours, theirs = (
        view.log_likelihood(view.seen_of(theta), x, a, y),
        cls.log_likelihood(theta, x, a, y),
    )
    known = theirs > -30  # further out float64 cancels in the packages' own formulas
    assert known.sum() > 10
    # the packages' log binomial coefficients err by 1e-6
    np.testing.assert_allclose(ours[known], theirs[known], atol=1e-5)
    both = known & known[0]
    np.testing.assert_allclose(
        (ours - ours[0])[both], (theirs - theirs[0])[both], rtol=1e-9, atol=1e-9
    )


def decided(idiom: Idiom, ppl: str, rounds: int):
    """An agent that was told so many rounds, and its decision."""
    cls = class_of(idiom, ppl)
    theta, rng = truth_of(cls), np.random.default_rng(2)
    x = contexts(rng, 200)
    costs = np.asarray(cls.values(idiom.functional, theta, x, np.zeros(200, int)), float)
    low, high = idiom.functional.low, idiom.functional.high
    safe = float(min(costs.max() + 0.02 * (high - low), high - 0.1 * (high - low)))
    constraint = ged.Constraint(
        cls,
        idiom.functional,
        at_most=safe + 0.5 * (high - safe),
        safe_value=safe,
        name="cost",
        outcome="utility",
    )
    problem = ged.Problem(
        n_actions=idiom.n_actions,
        utility=ged.Utility(cls, idiom.functional),
        constraints=[constraint],
        safe_action=0,
        safe_utility=low,
    )
    agent = ged.GEDUCB(problem, seed=1)
    a = rng.integers(0, idiom.n_actions, rounds)
    agent.observe(x[:rounds], a, cls.density_at(theta, x[:rounds], a).sample(4, 1)[0])
    return agent, agent.ask(x[rounds])


@pytest.mark.parametrize(("idiom", "ppl"), GUARANTEED)
@pytest.mark.slow
def test_decisions_are_guaranteed_after_twenty_rounds(idiom: Idiom, ppl: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        agent, decision = decided(idiom, ppl, 20)
    assert decision.certificate.guaranteed
    assert not agent.alarms


def test_a_decision_is_guaranteed_after_twenty_rounds() -> None:
    """One idiom of the test above, in the quick run."""
    agent, decision = decided(
        next(one for one in IDIOMS if one.name == "non-centred arms"), "numpyro", 20
    )
    assert decision.certificate.guaranteed
    assert not agent.alarms


def test_at_least_twenty_of_the_idioms_are_exact() -> None:
    assert sum(idiom.guaranteed for idiom in IDIOMS) >= 20
    assert len(IDIOMS) >= 24


# statistics ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("idiom", "ppl"),
    [case for case in CASES if case.values[0].guaranteed and case.values[1] == "numpyro"],
)
def test_bounds_cover_the_truth_in_adaptive_runs(idiom: Idiom, ppl: str) -> None:
    """200 runs; a miss at any refit counts; delta = .1."""
    runs = 200
    misses = sum(is_missed(idiom, ppl, run) for run in range(runs))
    assert misses <= binom.ppf(0.999, runs, DELTA), f"{misses} of {runs} runs missed"


@pytest.mark.parametrize(
    "idiom",
    [
        pytest.param(
            idiom,
            id=idiom.name,
            marks=[]
            if idiom.name in ("Beta-Bernoulli arms", "non-centred arms", "probit")
            else [pytest.mark.slow],
        )
        for idiom in IDIOMS
        if idiom.guaranteed and not idiom.closed
    ],
)
def test_a_bound_is_the_profile_likelihoods(idiom: Idiom) -> None:
    """Against a general solver. A bound is never smaller; where it is outer it may be larger."""
    error = brute_force_error(idiom)
    assert error >= -1e-6
    assert error <= (np.inf if idiom.outer else 1e-6)


def test_what_holds_actions_back_is_said_in_what_the_data_see() -> None:
    """The model has more parameters than are learned: it could not be computed."""
    idiom = next(i for i in IDIOMS if i.name == "non-centred arms")
    cls, functional = class_of(idiom), idiom.functional
    safe = functional.low + 0.4 * (functional.high - functional.low)
    limit = ged.Constraint(cls, functional, at_most=safe + 0.01, safe_value=safe, name="cost")
    problem = ged.Problem(K, ged.Utility(cls, functional), [limit], safe_action=0)
    agent = ged.GEDUCB(problem, guard=None, seed=0)
    at = contexts(np.random.default_rng(0), 20)
    agent.observe(at, np.arange(20) % K, np.arange(20) % 2.0, np.arange(20) % 2.0)
    explained = agent.explain(agent.ask(at[0]))
    said = what_holds_back(state_of(agent, at[:1]), at[0], explained, 0)
    assert "The confidence set is what is wide" in said
    assert "% of it in '" in said
