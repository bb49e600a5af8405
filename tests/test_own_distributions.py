"""An outcome whose distribution only its PPL knows: decided with, without a guarantee."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
from numpyro.distributions.transforms import ExpTransform

import gedppl as ged

BID = jnp.array([1.0, 4.0])


def log_logistic_delay(x, a, y=None):
    b = numpyro.sample("b", nd.Normal(jnp.array([2.0, -0.5]), 0.3).to_event(1))
    loc = b[0] + b[1] * jnp.log(BID[a])
    numpyro.sample(
        "delay", nd.TransformedDistribution(nd.Logistic(loc, 0.3), ExpTransform()), obs=y
    )


def clicks(x, a, y=None):
    p = numpyro.sample("p", nd.Beta(1.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("y", nd.Bernoulli(p[a]), obs=y)


def test_an_agent_decides_and_the_check_before_reads_the_prior() -> None:
    """A Normal's exponential is a LogNormal, a Logistic's no family here: neither its mean nor a
    batch of it can be asked for.
    """
    late = ged.Constraint(
        ged.density_class(log_logistic_delay),
        ged.probability(above=20.0),
        at_most=0.3,
        safe_value=0.05,
        name="late",
    )
    gain = ged.Utility(ged.density_class(clicks), ged.mean(0, 1))
    problem = ged.Problem(n_actions=2, utility=gain, constraints=[late], safe_action=1)
    report = ged.check_problem(problem, np.zeros((2, 1)), draws=10, runs=0)
    outcome = next(o for o in report.outcomes if o.name == "late")
    assert 2 < outcome.quantiles[0, 1] < 20
    assert report.limits[0].kind != "guarantee"
    agent, rng = ged.GEDUCB(problem, seed=0), np.random.default_rng(0)
    for _ in range(3):
        decision = agent.ask(np.zeros(1))
        agent.tell(decision.id, y=1.0, z=float(rng.lognormal(1.5, 0.3)))
    assert not decision.certificate.constraints[0].guaranteed
