"""Programs of unknown scale from end to end: proved, learned in (beta / sigma, 1 / sigma),
decided on with a guarantee.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import gedppl as ged
from gedppl.learning import learner_for
from gedppl.learning.location_scale import LocationScaleLearner

K = 2


def spend(x, a, y=None):
    w = numpyro.sample("w", dist.Normal(jnp.zeros((K, 2)), 1.0).to_event(2))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.LogNormal((w[a] * x).sum(-1), sigma), obs=y)


def outcome(x, a, y=None):
    w = numpyro.sample("w", dist.Normal(jnp.zeros((K, 2)), 1.0).to_event(2))
    sigma = numpyro.sample("sigma", dist.HalfNormal(jnp.ones(K)).to_event(1))
    numpyro.sample("y", dist.Normal((w[a] * x).sum(-1), sigma[a]), obs=y)


def test_decisions_rest_on_guaranteed_bounds() -> None:
    """LogNormal spend as utility, a CVaR limit on a Normal outcome with a scale for each action."""
    problem = ged.Problem(
        n_actions=K,
        utility=ged.Utility(ged.density_class(spend), ged.mean(0, 9)),
        constraints=[
            ged.Constraint(
                ged.density_class(outcome),
                ged.cvar(0.8, -4, 8),
                at_most=2.5,
                safe_value=0.8,
                name="cost",
            ),
        ],
        safe_action=0,
    )
    cls = problem.constraints[0].model
    cls.trace(np.ones((1, 2)), np.zeros(1, int))
    assert isinstance(learner_for(cls, delta=0.05), LocationScaleLearner)
    agent = ged.GEDUCB(problem, seed=0)
    rng = np.random.default_rng(0)
    for _ in range(12):
        decision = agent.ask(np.array([1.0, rng.standard_normal()]))
        agent.tell(
            decision.id,
            float(np.exp(0.2 + 0.3 * rng.standard_normal())),
            z=float(0.3 + 0.3 * rng.standard_normal()),
        )
    decision = agent.ask(np.array([1.0, 0.2]))
    assert decision.certificate.guaranteed
    assert "exact" in str(decision.certificate)
    lower, upper = agent.cost_bounds(np.array([1.0, 0.2]))
    assert np.all(lower <= upper)
