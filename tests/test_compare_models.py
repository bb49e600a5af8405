"""Models compared by what each predicted before an outcome came."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import binom, multivariate_normal

import gedppl as ged
from gedppl import errors

N = 80
RNG = np.random.default_rng(3)
X = RNG.normal(size=(N, 1))
A = RNG.integers(2, size=N)
Y = 0.5 + 0.8 * X[:, 0] * A + 0.5 * RNG.normal(size=N)


def sloped(x: Any, a: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(w[0] + w[1] * x[:, 0] * a, 0.5), obs=y)


def flat(x: Any, a: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(w + 0 * x[:, 0], 0.5), obs=y)


def too_sure(x: Any, a: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(w[0] + w[1] * x[:, 0] * a, 0.2), obs=y)


@pytest.fixture(scope="module")
def found() -> Any:
    models = {
        "flat": ged.density_class(flat),
        "sloped": ged.density_class(sloped),
        "too sure": ged.density_class(too_sure),
    }
    return ged.compare_models(models, X, A, Y)


def evidence(scale: float) -> float:
    features = np.stack([np.ones(N), X[:, 0] * A], axis=1)
    return float(
        multivariate_normal(np.zeros(N), features @ features.T + scale**2 * np.eye(N)).logpdf(Y)
    )


def test_the_score_is_the_evidence_of_a_conjugate_model(found: Any) -> None:
    assert found["sloped"].score == pytest.approx(evidence(0.5), abs=0.5)


def test_the_model_that_made_the_data_wins_clearly(found: Any) -> None:
    assert found.scores[0].name == "sloped"
    assert found.clear
    assert found.e_value("sloped", "flat") > 20
    assert found.e_value("sloped", "flat") * found.e_value("flat", "sloped") == pytest.approx(1)


def test_calibration_tells_a_model_that_is_too_sure(found: Any) -> None:
    assert found["sloped"].calibration > 0.01
    assert found["too sure"].calibration < 0.01
    assert found["too sure"].covered(0.9) < 0.7
    assert abs(found["sloped"].covered(0.9) - 0.9) < 0.12


def test_leave_one_out_agrees_on_the_order(found: Any) -> None:
    assert found["sloped"].loo > found["flat"].loo
    assert found["sloped"].loo == pytest.approx(found["sloped"].score, abs=8)


def test_a_model_is_favoured_over_itself_by_nothing() -> None:
    both = ged.compare_models(
        {"one": ged.density_class(sloped), "two": ged.density_class(sloped)}, X, A, Y
    )
    assert both.e_value("one", "two") == pytest.approx(1)
    assert not both.clear
    assert "too little to tell them apart" in both.verdict


def coin(x: Any, a: Any, y: Any = None) -> None:
    p = numpyro.param("p", 0.5 * jnp.ones(2))
    numpyro.sample("y", dist.Bernoulli(p[a]), obs=y)


def test_a_finite_class_is_scored_by_its_exact_mixture() -> None:
    members = [{"p": [0.2, 0.6]}, {"p": [0.5, 0.5]}]
    y = (RNG.random(N) < np.where(A == 1, 0.6, 0.2)).astype(float)
    cls = ged.finite_class(coin, members)
    one = ged.compare_models({"coins": cls}, X, A, y)
    likelihoods = [
        np.sum(np.log(np.where(y == 1, np.asarray(m["p"])[A], 1 - np.asarray(m["p"])[A])))
        for m in members
    ]
    assert one["coins"].score == pytest.approx(
        np.logaddexp.reduce(likelihoods) - math.log(2), abs=1e-9
    )


def test_a_model_that_excludes_an_outcome_is_last_and_says_why() -> None:
    def counts(x: Any, a: Any, y: Any = None) -> None:
        r = numpyro.sample("r", dist.Gamma(2.0, 1.0))
        numpyro.sample("y", dist.Poisson(r + 0 * x[:, 0]), obs=y)

    both = ged.compare_models(
        {"counts": ged.density_class(counts), "flat": ged.density_class(flat)},
        X[:10],
        A[:10],
        Y[:10],
    )
    assert both.best == "flat"
    assert both["counts"].score == -math.inf
    assert "outside the support" in both["counts"].status
    assert both.e_value("flat", "counts") == math.inf


def test_bad_input_is_named() -> None:
    cls = ged.density_class(flat)
    with pytest.raises(errors.ModelError, match="mapping of names to classes"):
        ged.compare_models({}, X, A, Y)
    with pytest.raises(
        errors.SettingError, match="draws must be a whole number of at least 20, got 2"
    ):
        ged.compare_models({"flat": cls}, X, A, Y, draws=2)
    with pytest.raises(errors.SettingError, match="growth must be larger than 1"):
        ged.compare_models({"flat": cls}, X, A, Y, growth=1.0)
    with pytest.raises(errors.DataError, match="no rows"):
        ged.compare_models({"flat": cls}, np.zeros((0, 1)), np.zeros(0, int), np.zeros(0))


def test_it_shows_itself(found: Any) -> None:
    import matplotlib.pyplot as plt

    assert "the data favour 'sloped' over" in str(found)
    assert len(repr(found).splitlines()) <= 12
    assert "<table>" in found._repr_html_()
    assert len(found.plot().lines) == 3
    plt.close("all")
    with pytest.raises(errors.SettingError, match="there is no model 'x'"):
        found["x"]


@pytest.mark.slow
def test_an_e_value_against_the_model_that_made_the_data_is_seldom_large() -> None:
    """With truth from the prior of `flat`, exp(score of a rival - its own) exceeds 1/delta with
    probability at most delta.
    """
    large, runs, delta = 0, 200, 0.1
    models = {"flat": ged.density_class(flat), "sloped": ged.density_class(sloped)}
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        y = rng.normal() + 0.5 * rng.normal(size=40)
        compared = ged.compare_models(models, X[:40], A[:40], y, draws=300)
        path = np.cumsum(compared["sloped"].logs - compared["flat"].logs)
        large += bool(path.max() > math.log(1 / delta))
    print(f"rival above {1 / delta:g} in {large} of {runs} runs")
    assert large <= binom.ppf(0.9999, runs, delta)


def test_rows_may_use_the_names_that_a_problem_declares() -> None:
    pd = pytest.importorskip("pandas")
    cls = ged.density_class(sloped)
    named = ged.Problem(
        actions=["stay", "go"], columns=["age"], utility=ged.Utility(cls, ged.mean(-9, 9))
    )
    frame, labels = pd.DataFrame({"age": X[:12, 0]}), np.array(["stay", "go"])[A[:12]]
    by_name = ged.compare_models({"one": cls}, frame, labels, Y[:12], problem=named, draws=50)
    by_number = ged.compare_models({"one": cls}, X[:12], A[:12], Y[:12], draws=50)
    np.testing.assert_array_equal(by_name["one"].logs, by_number["one"].logs)
    with pytest.raises(errors.InputError):
        ged.compare_models({"one": cls}, frame, ["leave"] * 12, Y[:12], problem=named, draws=50)
