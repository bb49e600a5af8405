"""`agent.posterior`: named draws, predictions, and everything ArviZ asks for, in both PPLs."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as nd
import pytest

import gedppl as ged
from gedppl.errors import DataError, SettingError
from gedppl.learning.arviz_shim import arviz, group_names, major, quiet
from gedppl.numerics.pareto import leave_one_out
from tests.optional_pyro import PPLS, pd, pyro, torch

pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
)

COLUMNS, ACTIONS = ("age", "dose"), ("placebo", "A", "B")
TRUTH = np.array([[0.1, 0.2], [0.5, -0.2], [0.3, 0.4]])


def gain_n(x, a, y=None):
    w = numpyro.sample("w", nd.Normal(jnp.zeros((3, 2)), 1.0).to_event(2))
    numpyro.sample("gain", nd.Normal((w[a] * x).sum(-1), 0.3), obs=y)


def gain_p(x, a, y=None):
    w = pyro.sample("w", pd.Normal(torch.zeros(3, 2), 1.0).to_event(2))
    pyro.sample("gain", pd.Normal((w[a] * x).sum(-1), 0.3), obs=y)


def harm_n(x, a, y=None):
    w = numpyro.sample("w", nd.Normal(jnp.zeros(3), 1.0).to_event(1))
    numpyro.sample("harm", nd.Bernoulli(logits=w[a]), obs=y)


def harm_p(x, a, y=None):
    w = pyro.sample("w", pd.Normal(torch.zeros(3), 1.0).to_event(1))
    pyro.sample("harm", pd.Bernoulli(logits=w[a]), obs=y)


MODELS: dict[str, Any] = {"numpyro": (gain_n, harm_n), "pyro": (gain_p, harm_p)}


def log(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, a = rng.random((n, 2)), rng.integers(0, 3, n)
    return (
        x,
        a,
        (TRUTH[a] * x).sum(1) + 0.3 * rng.normal(size=n),
        (rng.random(n) < 0.2).astype(float),
    )


@cache
def agent(ppl: str) -> ged.GEDUCB:
    gain, harm = (ged.density_class(model) for model in MODELS[ppl])
    limit = ged.Constraint(harm, ged.mean(0, 1), at_most=0.4, safe_value=0.1, name="harm")
    problem = ged.Problem(
        actions=ACTIONS,
        columns=COLUMNS,
        utility=ged.Utility(gain, ged.mean(-2, 2)),
        constraints=[limit],
        safe_action="placebo",
        safe_utility=0.0,
    )
    made = ged.GEDUCB(problem, guard=None)
    made.observe(*log(40))
    for i in range(3):
        made.tell(made.ask([0.5, 0.5]), 0.1 * i, 0.0)
    return made


@pytest.mark.parametrize("ppl", PPLS)
def test_draws_are_named_and_given_every_row_told_or_observed(ppl: str) -> None:
    found = agent(ppl).posterior("utility", draws=2000)
    assert found.rows is not None
    assert found.rows.n == 43
    assert found.draws["w"].shape == (2000, 3, 2)
    a, x, y = found.rows.a, found.rows.x, found.rows.y
    for k in range(3):  # each action's coefficients have their own conjugate posterior
        precision = x[a == k].T @ x[a == k] / 0.09 + np.eye(2)
        centre, spread = (
            np.linalg.solve(precision, x[a == k].T @ y[a == k] / 0.09),
            np.sqrt(np.diag(np.linalg.inv(precision))),
        )
        assert np.all(
            np.abs(found.draws["w"][:, k].mean(axis=0) - centre) < 4.5 * spread / np.sqrt(2000)
        )
    assert "43 rows" in repr(found)
    outcomes = found.predictive(np.array([[0.5, 0.5]]), np.array([1]))
    expected = found.draws["w"][:, 1] @ [0.5, 0.5]
    assert outcomes.shape == (2000, 1)
    assert abs(outcomes.mean() - expected.mean()) < 4.5 * outcomes.std() / np.sqrt(2000)
    assert outcomes.std() == pytest.approx(np.sqrt(expected.var() + 0.09), rel=0.08)


# some rows carry much weight
@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto:UserWarning")
@pytest.mark.parametrize("ppl", PPLS)
def test_everything_arviz_asks_for_is_there_and_named(ppl: str) -> None:
    az, found = arviz(), agent(ppl).posterior("utility", draws=200)
    data = found.to_arviz()
    wanted = {
        "posterior",
        "prior",
        "posterior_predictive",
        "log_likelihood",
        "observed_data",
        "constant_data",
    }
    assert wanted <= set(group_names(data))
    assert data["posterior"]["w"].dims == ("chain", "draw", "action", "column")
    assert data["posterior"]["action"].values.tolist() == list(ACTIONS)
    assert data["posterior"]["column"].values.tolist() == list(COLUMNS)
    assert data["log_likelihood"]["gain"].shape == (1, 200, 43)
    np.testing.assert_allclose(data["log_likelihood"]["gain"].values[0], found.log_likelihood)
    assert set(data["constant_data"]["action"].values.tolist()) <= set(ACTIONS)
    with quiet(), np.errstate(all="ignore"):
        assert len(az.summary(data)) == 6
        harm = agent(ppl).posterior("harm", draws=200).to_arviz()
        assert harm["posterior"]["w"].dims == ("chain", "draw", "action")
        loo = az.loo(data, reff=1.0, pointwise=True)
        value, error, khat = leave_one_out(found.log_likelihood)  # the same, without ArviZ
        assert value == pytest.approx(float(loo.elpd_loo if major(az) < 1 else loo.elpd))
        assert error == pytest.approx(float(loo.se), rel=0.02)  # 1.x divides by n - 1
        assert khat == pytest.approx(float(np.max(loo.pareto_k)), abs=1e-6)
        wide = agent(ppl).posterior("utility", source="prior", draws=200).to_arviz()
        assert az.compare({"posterior": data, "again": data}).shape[0] == 2
    assert (
        wide["posterior"]["w"].values.std()
        > 2 * data["posterior"]["w"].values.std(axis=(0, 1)).mean()
    )


@pytest.mark.filterwarnings("ignore")  # of plotting packages
@pytest.mark.parametrize("ppl", PPLS)
def test_arvizs_plots_take_it(ppl: str) -> None:
    az, data = arviz(), agent(ppl).posterior("utility", draws=100).to_arviz()
    with quiet():
        az.plot_trace(data)
        az.plot_ppc(data) if major(az) < 1 else az.plot_ppc_dist(data)
    plt.close("all")


def test_before_data_it_is_the_prior_and_has_no_likelihood() -> None:
    gain = ged.density_class(gain_n, example=(np.ones((1, 2)), np.zeros(1, int)))
    fresh = ged.GEDUCB(ged.Problem(n_actions=3, utility=ged.Utility(gain, ged.mean(-2, 2))))
    found = fresh.posterior()
    assert found.found.source == "prior"
    assert group_names(found.to_arviz()) == ["posterior", "prior"]
    with pytest.raises(DataError, match="no outcome has been learned yet"):
        _ = found.log_likelihood


def test_a_stream_that_does_not_exist_is_named() -> None:
    with pytest.raises(
        SettingError,
        match=r"no outcome 'toxicity'; the outcomes are \['utility', "
        r"'harm'\]",
    ):
        agent("numpyro").posterior("toxicity")


def test_a_finite_class_has_its_members() -> None:
    def coin(x, a, y=None):
        numpyro.sample("y", nd.Bernoulli(numpyro.param("p", 0.5 * jnp.ones(2))[a]), obs=y)

    cls = ged.finite_class(coin, [{"p": [0.2, 0.6]}, {"p": [0.5, 0.5]}, {"p": [0.9, 0.1]}])
    made = ged.GEDUCB(
        ged.Problem(n_actions=2, utility=ged.Utility(cls, ged.mean(0, 1))), guard=None
    )
    rng = np.random.default_rng(0)
    a = rng.integers(0, 2, 60)
    made.observe(np.zeros((60, 1)), a, (rng.random(60) < np.array([0.2, 0.6])[a]).astype(float))
    found = made.posterior(draws=500)
    assert np.mean(found.draws["member"] == 0) > 0.9
    data = found.to_arviz()
    assert data["posterior_predictive"]["y"].shape == (1, 500, 60)
    assert np.bincount(data["prior"]["member"].values.ravel(), minlength=3).min() > 100
