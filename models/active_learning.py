"""Active learning: label a stream, and ask for the true label in at most one round out of ten.

An action is a prediction and whether to ask, so there are four: say 0, say 1, say 0 and ask, say 1
and ask. Asking has a known cost, so that limit is not learned. The truth comes only when asked for,
and then it tells what every prediction would have been worth: `reveals` says so, and both the fit
and the exploration bonus count asked rounds only. Rounds without a label teach nothing, and a bonus
that shrank with them (the paper's own count) would stop exploring for no reason.

    label ~ Bernoulli(logit = x'w),   utility P(label = prediction),   E[asked] <= 0.1

Predictions are worth the same whether one asks or not. ASKING adds a trifle to the utility of
asking, so that the budget is used: the largest feasible probability of asking, as the theory has
it.

Simulated, truth known. Needs nothing but gedppl.
Run:  gedppl run models/active_learning.py --rounds 1000
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import expit

import gedppl as ged

BUDGET = 0.1
ASKING = 1e-3
ACTIONS = ("say 0", "say 1", "say 0, ask", "say 1, ask")
COLUMNS = ("one", "first", "second", "third")
WEIGHTS = np.array([0.5, 3.0, -2.0, 1.0])
SAYS, ASKS = np.array([0, 1, 0, 1]), np.array([False, False, True, True])


def label_model(x, a, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([4]).to_event(1))
    numpyro.sample("label", dist.Bernoulli(logits=x @ w), obs=y)


def worth(label, x, a):
    right = jnp.where(jnp.asarray(SAYS)[a] == 1, label, 1 - label)
    return right + ASKING * jnp.asarray(ASKS)[a]


def problem(budget=BUDGET):
    label = ged.density_class(label_model, example=(np.ones((1, 4)), np.zeros(1, int)))
    return ged.Problem(
        n_actions=4,
        utility=ged.Utility(label, ged.expected(worth, low=0.0, high=1.0 + ASKING)),
        constraints=[ged.known_cost(lambda x: ASKS.astype(float), at_most=budget, name="asked")],
        # who asks sees what every prediction was worth; others see nothing
        reveals=np.repeat(ASKS[:, None], 4, axis=1),
    )


class World:
    def context(self, rng):
        return np.append(1.0, rng.standard_normal(3))

    def outcome(self, x, action, rng):
        label = float(rng.random() < expit(WEIGHTS @ x))
        return (label if ASKS[action] else None), None

    def utilities(self, x):
        p = expit(WEIGHTS @ x)
        return np.where(SAYS == 1, p, 1 - p) + ASKING * ASKS

    def costs(self, x):
        return ASKS.astype(float)[None]


def environment():
    return World()


def segments(x):
    p = expit(WEIGHTS @ x)
    return {"case": "clear" if abs(p - 0.5) > 0.4 else "unclear"}
