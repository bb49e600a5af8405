"""A limit on the realised cost: in at least 90% of the rounds the cost itself, not its mean, stays
under the budget.

A cost is an outcome with noise. A limit on its mean says little about single rounds: with the mean
at the budget every second round exceeds it. The chance constraint P(cost > budget) <= 0.1 is one
functional away:

    cost ~ Normal(phi(x, a)'v, 0.25),   ged.probability(above=BUDGET)   instead of   ged.mean(0, 1)

`problem(rule="mean")` is the usual limit on the mean, to compare: `gedppl compare` counts realised
violations of both. Simulated, truth known; linear-Gaussian, so bounds are exact.

Needs nothing but gedppl.
Run:  gedppl run models/chance.py --rounds 1000
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.stats import norm

import gedppl as ged

RULE = "chance"  # or "mean"
NOISE = 0.25
BUDGET = 0.6
AT_MOST = 0.1
LEVELS = np.array([0.0, 0.25, 0.5, 0.75, 1.0])  # how much to spend; the first is the safe action
GAIN, COST = np.array([0.6, 0.3]), np.array([0.3, 0.7])
ACTIONS = [f"spend {level:.0%}" for level in LEVELS]
COLUMNS = ("demand", "price")


def linear(x, a, y=None):
    v = numpyro.param("v", jnp.zeros(2))
    numpyro.sample("y", dist.Normal(jnp.asarray(LEVELS)[a] * (x @ v), NOISE), obs=y)


def problem(rule=RULE):
    example = (np.ones((1, 2)), np.zeros(1, int))
    gain, cost = (ged.density_class(linear, bounds={"v": 1.0}, example=example) for _ in range(2))
    if rule == "chance":
        limit = ged.Constraint(
            cost,
            ged.probability(above=BUDGET),
            at_most=AT_MOST,
            safe_value=float(norm.sf(BUDGET / NOISE)),
            name="over budget",
        )
    else:
        limit = ged.Constraint(
            cost, ged.mean(0, 1), at_most=BUDGET, safe_value=0.0, name="mean cost"
        )
    return ged.Problem(
        n_actions=len(LEVELS),
        utility=ged.Utility(gain, ged.mean(0, 1)),
        constraints=[limit],
        safe_action=0,
        safe_utility=0.0,
    )


class World:
    def __init__(self, rule=RULE):
        self.rule = rule

    def context(self, rng):
        return rng.random(2)

    def outcome(self, x, action, rng):
        noise = NOISE * rng.standard_normal(2)
        return LEVELS[action] * (GAIN @ x) + noise[0], LEVELS[action] * (COST @ x) + noise[1]

    def utilities(self, x):
        return LEVELS * (GAIN @ x)

    def costs(self, x):
        mean = LEVELS * (COST @ x)
        return (norm.sf((BUDGET - mean) / NOISE) if self.rule == "chance" else mean)[None]


def environment(rule=RULE):
    return World(rule)
