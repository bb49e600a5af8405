"""Constrained contextual bandit: four treatments, an unknown gain and an unknown cost of each, and
a limit on the cost.

The smallest complete example, with a simulated world whose truth is known. Gain and cost are linear
in the context with known noise, so confidence sets are exact ellipsoids and every certificate is a
guarantee:

    y ~ Normal(x'w_a, 0.1),
        z ~ Normal(x'v_a, 0.1),   maximise E y,   sum_a pi_a E z_a <= 0.4 at every context

Needs nothing but gedppl.
Run:  gedppl run models/bandit.py --rounds 1000
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import gedppl as ged

NOISE = 0.1
AT_MOST = 0.4
ACTIONS = ("usual care", "A", "B", "C")
COLUMNS = ("one", "severity", "age")
# w, a row for every treatment
GAIN = np.array([[0.2, 0.0, 0.0], [0.3, 0.4, 0.0], [0.5, 0.0, 0.4], [0.9, 0.0, -0.2]])
COST = np.array([[0.1, 0.0, 0.0], [0.2, 0.0, 0.2], [0.3, 0.4, 0.0], [0.6, 0.2, 0.1]])  # v


def linear(x, a, y=None):
    w = numpyro.param("w", jnp.zeros(GAIN.shape))
    numpyro.sample("y", dist.Normal((w[a] * x).sum(-1), NOISE), obs=y)


def problem(at_most=AT_MOST):
    example = (np.ones((1, 3)), np.zeros(1, int))
    gain, cost = (ged.density_class(linear, bounds={"w": 2.0}, example=example) for _ in range(2))
    return ged.Problem(
        actions=ACTIONS,
        columns=COLUMNS,
        utility=ged.Utility(gain, ged.mean(0, 1)),
        constraints=[
            ged.Constraint(cost, ged.mean(0, 1), at_most=at_most, safe_value=0.1, name="cost")
        ],
        safe_action="usual care",
        safe_utility=0.2,
    )


class World:
    def context(self, rng):
        return np.append(1.0, rng.random(2))

    def outcome(self, x, action, rng):
        y, z = GAIN[action] @ x, COST[action] @ x
        return y + NOISE * rng.standard_normal(), z + NOISE * rng.standard_normal()

    def utilities(self, x):
        return GAIN @ x

    def costs(self, x):
        return (COST @ x)[None]


def environment():
    return World()


def segments(x):
    return {"severity": "high" if x[1] > 0.5 else "low", "age": "old" if x[2] > 0.5 else "young"}
