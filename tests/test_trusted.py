"""Draws that credible limits rest on: approximations corrected until they stand for the
posterior, and what is said of them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import gedppl as ged
from benchmarks.posterior import GROUPS, calibrate, in_pyro
from benchmarks.posterior import MODELS as PROGRAMS
from gedppl.learning import draws as sampling
from gedppl.learning import trusted as correcting
from gedppl.learning.draws import sample
from gedppl.learning.trusted import trusted
from gedppl.rows import Rows
from tests.optional_pyro import PPLS

RNG = np.random.default_rng(3)
X, A = RNG.normal(size=(24, 2)), RNG.integers(0, GROUPS, 24)
Y = np.array([0.1, -0.2, 0.0, 0.2])[A] + 0.5 * RNG.normal(size=24)
ROWS = Rows.of(X, A, Y)


@cache
def program(ppl: str, name: str) -> Any:
    model = PROGRAMS[name] if ppl == "numpyro" else in_pyro()[name]
    return ged.density_class(model, example=(X[:1], A[:1]))


def by_quadrature() -> tuple[float, float]:
    """Mean and standard deviation of log tau in the hierarchy: groups' means are Normal given
    (mu, tau), the rest is a grid.
    """
    mu, log_tau = (
        g.ravel()
        for g in np.meshgrid(np.linspace(-4, 4, 201), np.linspace(-9, 3, 801), indexing="ij")
    )
    tau = np.exp(log_tau)
    logs = -0.5 * mu**2 - 0.5 * tau**2 + log_tau
    for g in range(GROUPS):
        y = Y[g == A]
        spread = 0.25 / len(y) + tau**2
        logs = logs - 0.5 * np.log(spread) - 0.5 * (y.mean() - mu) ** 2 / spread
    w = np.exp(logs - logs.max())
    w /= w.sum()
    centre = w @ log_tau
    return centre, np.sqrt(w @ (log_tau - centre) ** 2)


@pytest.mark.parametrize("ppl", PPLS)
def test_where_laplace_is_wrong_other_draws_take_its_place(ppl) -> None:
    cls = program(ppl, "hierarchical")
    raw = sample(cls, ROWS, "laplace", 1000, 1)
    found = trusted(cls, ROWS, raw, 1)
    at = next(site for site in cls.sites if site.name == "tau").start
    centre, spread = by_quadrature()
    assert abs(raw.theta[:, at].mean() - centre) > 0.4 * spread  # the control
    assert found.source == "smc"
    assert found.ok
    assert abs(found.theta[:, at].mean() - centre) < 0.2 * spread
    assert abs(np.log(found.theta[:, at].std() / spread)) < 0.2
    assert "laplace draws are worth" in found.status


def test_exact_draws_are_left_alone_and_good_ones_are_only_weighted() -> None:
    cls = program("numpyro", "conjugate")
    raw = sample(cls, ROWS, "laplace", 500, 1)
    assert trusted(cls, ROWS, raw, 1) is raw
    bits = Rows.of(np.tile(X, (20, 1)), np.tile(A, 20), (np.arange(480) % 2).astype(float))
    cls = program("numpyro", "logistic")
    found = trusted(cls, bits, sample(cls, bits, "laplace", 500, 1), 1)
    assert found.source == "laplace"
    assert found.log_weights is not None
    assert found.khat <= 0.7


def test_steps_that_lead_nowhere_are_replaced_by_chains(monkeypatch) -> None:
    cls = program("numpyro", "hierarchical")
    stuck = sampling.ParameterDraws(
        np.zeros((100, cls.dim)), None, 1.0, -np.inf, "smc", "stuck", ok=False
    )
    chains = sampling.ParameterDraws(np.ones((100, cls.dim)), None, 80.0, -np.inf, "nuts", "chains")
    drawn = {"smc": stuck, "nuts": chains}
    monkeypatch.setattr(correcting, "sample", lambda cls, rows, source, S, seed: drawn[source])
    raw = sample(cls, ROWS, "laplace", 100, 1)
    assert trusted(cls, ROWS, raw, 1).source == "nuts"
    drawn["nuts"] = sampling.ParameterDraws(
        np.ones((100, cls.dim)), None, 2.0, -np.inf, "nuts", "apart", ok=False
    )
    found = trusted(cls, ROWS, raw, 1)
    assert not found.ok
    assert "stuck" in found.status
    assert "apart" in found.status


def test_the_certificate_says_which_draws_were_used() -> None:
    cost = program("numpyro", "hierarchical")
    limit = ged.Constraint(cost, ged.mean(-6, 6), at_most=1.0, safe_value=0.9, name="cost")
    gain = ged.Utility(program("numpyro", "conjugate"), ged.mean(-6, 6))
    problem = ged.Problem(GROUPS, gain, [limit], safe_action=0)
    agent = ged.GEDUCB(
        problem, confidence={"cost": ged.credible_set(draws=400)}, guard=None, seed=0
    )
    agent.observe(X, A, Y, {"cost": Y})
    part = agent.ask(X[0]).certificate.constraints[0]
    assert part.draws.asked == "laplace"
    assert part.draws.source in ("smc", "nuts")
    assert part.draws.size == 400
    assert 100 < part.draws.ess <= 400
    stored = agent.ask(X[0]).certificate.to_dict()["constraints"][0]["draws"]
    assert stored["source"] == part.draws.source
    assert agent.posterior("cost", draws=200).found.source in ("smc", "nuts")


@pytest.mark.slow
@pytest.mark.parametrize("source", ["laplace", "svi"])
@pytest.mark.parametrize("model", ["conjugate", "logistic", "hierarchical", "centred"])
def test_trusted_draws_are_calibrated(model, source) -> None:
    found = calibrate(model, source, 150, corrected=True)
    assert abs(found.bias) < 4
    assert abs(found.spread) < 4
