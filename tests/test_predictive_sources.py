"""The e-process covers whatever its predictive is drawn from; draws also are starts of the
ascent.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
import pytest
from scipy.stats import binom

import gedppl as ged
from gedppl.errors import SettingError
from gedppl.learning import draws, feed, learner_for, programs
from gedppl.learning.draws import ParameterDraws
from gedppl.learning.fits import Fit, WorkingPrior, likeliest
from gedppl.learning.learner import PARTICLES
from gedppl.learning.programs import ProgramLearner
from gedppl.learning.variational import svi
from tests.optional_pyro import PPLS, pd, pyro, torch

DELTA, TRUTH = 0.1, np.array([0.8, -0.6, 0.5])
# of the sources that take long; 200 of the others
RUNS = {"numpyro": {"nuts": 100}, "pyro": {"nuts": 30, "svi": 60}}


def bits(x, a, y=None):
    w = numpyro.sample("w", nd.Normal(jnp.zeros(3), 1.5).to_event(1))
    numpyro.sample("y", nd.Bernoulli(logits=x @ w), obs=y)


def bent(x, a, y=None):
    w = numpyro.sample("w", nd.Normal(jnp.zeros(2), 1.0).to_event(1))
    numpyro.sample("y", nd.Normal(jnp.tanh(x @ w), 0.3), obs=y)


def line(x, a, y=None):
    w = numpyro.sample("w", nd.Normal(jnp.zeros(2), 1.0).to_event(1))
    numpyro.sample("y", nd.Normal(x @ w, 0.3), obs=y)


def bits_in_pyro(x, a, y=None):
    w = pyro.sample("w", pd.Normal(torch.zeros(3, dtype=torch.float64), 1.5).to_event(1))
    pyro.sample("y", pd.Bernoulli(logits=x @ w), obs=y)


@cache
def logistic(ppl: str = "numpyro") -> Any:
    model = bits if ppl == "numpyro" else bits_in_pyro
    return ged.density_class(model, example=(np.ones((1, 3)), np.zeros(1, int)))


def far_off(cls: Any, rows: Any, S: int, seed: int, fit: Any, oracle: Any) -> ParameterDraws:
    theta = 4.0 + np.random.default_rng(seed).standard_normal((S, cls.dim))
    return ParameterDraws(theta, None, float(S), -np.inf, "svi", "far off")


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    return x, np.zeros(n, int), (rng.random(n) < 1 / (1 + np.exp(-x @ TRUTH))).astype(float)


def misses(source: str, runs: int, n: int, oracle: Any = None, ppl: str = "numpyro") -> int:
    """Runs in which the truth was outside the set at one of the refits."""
    missed = 0
    for seed in range(runs):
        x, a, y = rows(n, seed)
        rule = ged.likelihood_ratio(predictive=source)
        learner = learner_for(logistic(ppl), delta=DELTA, confidence=rule, oracle=oracle, seed=seed)
        inside = True
        for part in np.array_split(np.arange(n), 5):
            learner = feed(learner, x[part], a[part], y[part], growth=2.0)
            inside &= bool(learner.contains(TRUTH[None])[0])
        missed += not inside
    return missed


@pytest.mark.filterwarnings("ignore::gedppl.errors.FitWarning")
def test_a_source_far_off_costs_width_and_never_coverage(monkeypatch: pytest.MonkeyPatch) -> None:
    x, a, y = rows(60, 0)
    good = feed(
        learner_for(logistic(), delta=DELTA, confidence=ged.likelihood_ratio(predictive="laplace")),
        x,
        a,
        y,
    )
    monkeypatch.setitem(draws.FROM, "svi", far_off)
    bad = feed(
        learner_for(logistic(), delta=DELTA, confidence=ged.likelihood_ratio(predictive="svi")),
        x,
        a,
        y,
    )
    assert np.all(bad.particles.theta[1:100].mean(axis=0) > 3.0)
    assert bad.evidence < good.evidence
    assert misses("svi", 20, 40) <= binom.ppf(0.999, 20, DELTA)


@pytest.mark.filterwarnings("ignore::gedppl.errors.FitWarning")
def test_the_prior_as_a_source_is_the_priors_own_mixture() -> None:
    x, a, y = rows(30, 1)
    learner = feed(
        learner_for(logistic(), delta=DELTA, confidence=ged.likelihood_ratio(predictive="prior")),
        x,
        a,
        y,
    )
    start = learner_for(
        logistic(), delta=DELTA, confidence=ged.likelihood_ratio(predictive="prior")
    )
    assert np.array_equal(learner.particles.theta, start.particles.theta)
    mixture = np.logaddexp.reduce(
        logistic().log_likelihood(start.particles.theta, x, a, y).sum(axis=1)
    ) - np.log(PARTICLES)
    assert learner.evidence == pytest.approx(mixture)


def test_draws_are_starts_of_the_ascent_and_a_linear_model_asks_for_them_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    x, a = rng.normal(size=(60, 2)), np.zeros(60, int)
    cls = ged.density_class(bent, example=(x[:1], a[:1]))
    seen: list[int] = []
    laplace = draws.FROM["laplace"]

    def counted(cls: Any, rows: Any, S: int, *rest: Any) -> ParameterDraws:
        seen.append(S)
        return laplace(cls, rows, S, *rest)

    monkeypatch.setitem(draws.FROM, "nuts", counted)
    rule = ged.likelihood_ratio(predictive="nuts")
    y = np.tanh(x @ [0.5, -0.5]) + 0.3 * rng.normal(size=60)
    learner = feed(learner_for(cls, delta=DELTA, confidence=rule), x, a, y, growth=2.0)
    assert seen
    assert len(learner.candidates)
    assert all(
        any(np.array_equal(theta, other) for other in learner.particles.theta)
        for theta in learner.candidates
    )
    assert "predicted from nuts draws" in learner.sentence
    straight = learner_for(
        ged.density_class(line, example=(x[:1], a[:1])), delta=DELTA, confidence=rule
    )
    assert isinstance(straight, ProgramLearner)


def test_a_source_that_does_not_exist_is_named() -> None:
    with pytest.raises(SettingError, match="predictive must be one of"):
        ged.likelihood_ratio(predictive="dreams")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::gedppl.errors.FitWarning")
@pytest.mark.parametrize("source", ["prior", "laplace", "svi", "nuts", "smc", "far off"])
@pytest.mark.parametrize("ppl", PPLS)
def test_every_source_covers(ppl: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, oracle = RUNS[ppl].get(source, 200), None
    if source == "svi":
        oracle = svi("normal", steps=400)
    if source == "far off":
        monkeypatch.setitem(draws.FROM, "svi", far_off)
    found = misses("svi" if source == "far off" else source, runs, 60, oracle, ppl)
    print(f"{ppl}, {source}: the truth missed in {found} of {runs} runs at delta = {DELTA}")
    assert found <= binom.ppf(0.999, runs, DELTA)


@pytest.mark.slow
def test_a_predictive_that_has_seen_the_outcome_does_not_cover() -> None:
    """The control: evidence at the best fit of all rows, which knows them, leaves the truth out
    too often.
    """
    missed = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        x, w = rng.normal(size=(60, 8)), np.zeros(8)
        y = x @ w + rng.normal(size=60)
        best = np.linalg.lstsq(x, y, rcond=None)[0]
        gain = 0.5 * (np.sum(y**2) - np.sum((y - x @ best) ** 2))
        missed += gain > np.log(1 / DELTA)
    assert missed > binom.ppf(0.999, 200, DELTA)


# the working prior's width ------------------------------------------------------------------------


@pytest.mark.parametrize("leaned_on", [0.04, 1.0])
@pytest.mark.parametrize("truth", [0.2, 1.0, 2.0, 8.0])
def test_the_likeliest_width_is_that_of_largest_evidence(truth: float, leaned_on: float) -> None:
    """Normal rows, where Laplace's approximation and the evidence of rows around a mean of 1 are
    exact, whatever width the fit itself leaned on.
    """
    n, wide, dims = 7, np.array([5.0, 2.0, 0.5]), 2
    mean = np.ones(dims)
    y = mean + truth * np.array([1.0, -1.0]) + np.random.default_rng(0).normal(size=(n, dims))
    prior = WorkingPrior(mean, np.full(dims, leaned_on))
    theta = (y.sum(axis=0) + leaned_on * mean) / (n + leaned_on)
    fit = Fit(theta, 0.0, n * np.eye(dims), (n + leaned_on) * np.eye(dims), True, "", n)
    variance = wide[:, None] ** 2 + 1 / n  # of the rows' average under each width
    evidence = np.sum(-0.5 * np.log(variance) - (y.mean(axis=0) - mean) ** 2 / variance / 2, axis=1)
    others = [WorkingPrior(mean, np.full(dims, w**-2)) for w in wide]
    assert likeliest(fit, prior, others) == int(np.argmax(evidence))


def free_bits(x, a, y=None):
    w = numpyro.param("w", jnp.zeros(3))
    numpyro.sample("y", nd.Bernoulli(logits=x @ w), obs=y)


def evidence_of(spreads: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> float:
    """Mean log evidence of 60 rows over 10 data sets, for a model without a prior."""
    monkeypatch.setattr(programs, "SPREADS", spreads)
    cls = ged.density_class(free_bits, example=(np.ones((1, 3)), np.zeros(1, int)))
    found = []
    for seed in range(10):
        x, a, y = rows(60, seed)
        found.append(feed(learner_for(cls, delta=DELTA), x, a, y, growth=1.1).evidence)
    return float(np.mean(found))


@pytest.mark.filterwarnings("ignore::gedppl.errors.FitWarning")
def test_a_width_that_rows_choose_predicts_better(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = evidence_of((1.0,), monkeypatch)
    monkeypatch.undo()
    assert evidence_of(programs.SPREADS, monkeypatch) > fixed + 0.5
