"""Bounds declared on parameters: wrong ones are refuted at the pace that the rows allow, right ones
are not.

A fit that bounds hold back predicts from inside them. If nothing else predicted, no row would be
evidence against the bounds, however far outside the truth lies.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import binom

import gedppl as ged
from gedppl.learning import Where, learner, learner_for, reach
from gedppl.learning.oracles import auto
from gedppl.learning.programs import ProgramLearner

AT = np.zeros((1, 1))
DELTA = 0.05


def chances(x, a, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.5).expand([2]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=w[a]), obs=y)


def counts(x, a, y=None):
    w = numpyro.param("w", jnp.zeros(2))
    numpyro.sample("y", dist.Poisson(jnp.exp(w[a])), obs=y)


def grades(x, a, y=None):
    w = numpyro.param("w", jnp.zeros(2))
    cuts = jnp.array([-1.0, 1.0])
    numpyro.sample("y", dist.OrderedLogistic(w[a], cuts), obs=y)


def two_sided(x, a, y=None):
    w = numpyro.param("w", jnp.zeros(2))
    numpyro.sample("y", dist.Laplace(w[a], 0.7), obs=y)


def odds(w, size, rng):
    return 1.0 * (rng.random(size) < 1 / (1 + np.exp(-w)))


def graded(w, size, rng):
    u = rng.logistic(size=size) + w
    return (u > -1.0) * 1.0 + (u > 1.0)


# the model, how outcomes are drawn at the parameter, wrong bounds of the parameter that is 2
CASES = {
    "chances": (chances, odds, (-3.0, 0.75), ged.mean(0, 1)),
    "counts": (counts, lambda w, n, rng: rng.poisson(np.exp(w), n) * 1.0, 1.85, ged.mean(0, 40)),
    "grades": (grades, graded, (-3.0, 1.2), ged.mean(0, 2)),
    "two-sided": (
        two_sided,
        lambda w, n, rng: rng.laplace(w, 0.7, n),
        (-3.0, 1.6),
        ged.mean(-9, 9),
    ),
}


@cache
def declared(case: str, bounds):
    return ged.density_class(CASES[case][0], bounds={"w": bounds}, example=(AT, [0]))


def refuted_after(case: str, truth: float, bounds, rows: int, seed: int, oracle=None) -> int | None:
    """Rows until no parameter inside the bounds is left; None if that does not happen."""
    _, draw, _, functional = CASES[case]
    where = Where(AT, 2, (0, 1))
    found = learner_for(declared(case, bounds), delta=DELTA, where=where, oracle=oracle)
    rng = np.random.default_rng(seed)
    done = 0
    while done < rows:
        step = max(10, done // 4)
        a = rng.integers(0, 2, step)
        y = np.where(a == 1, draw(truth, step, rng), draw(0.0, step, rng))
        found = found.absorb(np.zeros((step, 1)), a, y).refit()
        done += step
        if found.bounds(functional, AT, 2).empty:
            return done
    return None


QUICK = ["chances"]
EVERY = [c if c in QUICK else pytest.param(c, marks=pytest.mark.slow) for c in CASES]


@pytest.mark.parametrize("case", EVERY)
def test_wrong_bounds_are_refuted(case) -> None:
    assert refuted_after(case, 2.0, CASES[case][2], 300, 2) is not None


@pytest.mark.parametrize("case", EVERY)
def test_without_predictions_from_beyond_them_they_are_not(case, monkeypatch) -> None:
    """The control: a fit held at the bounds predicts alone."""
    monkeypatch.setattr(learner, "beyond", lambda held, free, seed: held)
    assert refuted_after(case, 2.0, CASES[case][2], 300, 2) is None


def held_inside(cls, rows, **options):
    """An oracle of somebody's own, or a guide: it knows of nothing outside the bounds."""
    return replace(auto()(cls, rows, **options), free=None)


def test_wrong_bounds_are_refuted_whatever_the_oracle(monkeypatch) -> None:
    assert refuted_after("chances", 2.0, (-3.0, 0.75), 300, 2, held_inside) is not None
    monkeypatch.setattr(ProgramLearner, "_free", lambda self, fit: fit.free)  # the control
    assert refuted_after("chances", 2.0, (-3.0, 0.75), 300, 2, held_inside) is None


@pytest.mark.slow
def test_wrong_bounds_are_refuted_under_a_guide() -> None:
    assert refuted_after("chances", 2.0, (-3.0, 0.75), 300, 2, ged.svi()) is not None


def test_a_set_of_absolute_errors_that_misses_its_box_is_empty() -> None:
    assert refuted_after("two-sided", 2.0, (-3.0, 1.6), 80, 0) is not None


def test_without_what_the_set_alone_allows_it_would_pass_for_the_box(monkeypatch) -> None:
    """The control: no linear program has a solution, and nothing else is known."""

    def unknown(chosen, both):
        return np.full(len(both), np.inf), both, np.zeros(len(both), bool)

    monkeypatch.setattr(reach, "farthest_within_errors", unknown)
    assert refuted_after("two-sided", 2.0, (-3.0, 1.6), 80, 0) is None


def test_right_bounds_are_not_refuted_quick() -> None:
    """The truth is at the bounds, where the fit is held back in half of the runs."""
    found = [refuted_after("chances", 0.75, (-3.0, 0.75), 60, seed) for seed in range(6)]
    assert sum(one is not None for one in found) <= binom.ppf(0.9999, 6, DELTA)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["chances", "counts"])
def test_right_bounds_are_not_refuted(case) -> None:
    bounds = {"chances": (-3.0, 0.75), "counts": 0.75}[case]
    found = [refuted_after(case, 0.75, bounds, 200, 1000 + seed) for seed in range(1000)]
    wrong = sum(one is not None for one in found)
    print(f"{case}: {wrong} of 1000 runs refute right bounds at delta {DELTA:g}")
    assert wrong <= binom.ppf(0.9999, 1000, DELTA)


def test_monitors_hold_the_model_to_what_it_predicts_inside_its_bounds() -> None:
    cls = declared("chances", (-3.0, 0.75))
    held = learner.laplace(cls, np.array([0.0, 0.75]), 40.0 * np.eye(2), 0)
    both = learner.beyond(held, (np.array([0.0, 2.0]), 40.0 * np.eye(2)), 0)
    inside = both.inside
    assert np.exp(both.log_weights).sum() == pytest.approx(1.0)
    assert np.exp(inside.log_weights).sum() == pytest.approx(1.0)
    assert np.exp(inside.log_weights[-learner.FROM_PRIOR :]).sum() == pytest.approx(
        learner.PRIOR_SHARE
    )
    near = learner.PARTICLES - learner.FROM_PRIOR
    np.testing.assert_array_equal(inside.theta[: near // 2], held.theta[:near:2])
    assert both.theta[1:near:2, 1].mean() == pytest.approx(2.0, abs=0.1)
