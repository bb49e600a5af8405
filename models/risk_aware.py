"""Risk-aware bandit: the best average return among choices whose spread, or whose worst tenth, stays under a limit.

The outcome is a loss, and one density of it serves both sides. Its scale depends on the action and is learned; with one fixed
scale for all actions there would be no risk to choose by.

    loss ~ Normal(x'm_a, exp(x's_a)),   maximise -E loss,   Var(loss) <= 0.04,   or CVaR_0.9(loss) <= 0.35

What is limited is the policy's average of each action's risk, sum_a pi_a Var_a. That is NOT the variance of the outcome when the
action is drawn from pi, which also counts the difference between the actions' means: two sure actions that return 0 and 1 have
sum_a pi_a Var_a = 0 and, drawn with probability 1/2 each, a variance of 1/4. The same holds for CVaR. To limit the variance
of the mixture needs the square of a mean, which is not linear in pi and outside of this framework.

The scale depends on parameters, so bounds are found by ascent and certificates say "approximation". Simulated, truth known.

Needs nothing but gedppl.
Run:  gedppl run models/risk_aware.py --rounds 500
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.stats import norm

import gedppl as ged

RISK = "variance"  # or "cvar"
AT_MOST = {"variance": 0.04, "cvar": 0.35}
LEVEL = 0.9  # CVaR is the mean of the largest tenth of losses
ACTIONS = ("cash", "A", "B", "C")
COLUMNS = ("one", "volatility")
MEAN = np.array([[0.0, 0.0], [-0.1, 0.0], [-0.3, 0.1], [-0.5, 0.2]])  # of the loss: negative is a gain
LOG_SCALE = np.array([[-3.0, 0.0], [-2.3, 0.3], [-1.9, 0.5], [-1.5, 0.8]])


def loss_model(x, a, y=None):
    m = numpyro.sample("m", dist.Normal(0.0, 0.5).expand([4, 2]).to_event(2))
    s = numpyro.sample("s", dist.Normal(jnp.array([-2.0, 0.0]) * jnp.ones((4, 1)), 1.0).to_event(2))
    numpyro.sample("loss", dist.Normal((m[a] * x).sum(-1), jnp.exp((s[a] * x).sum(-1))), obs=y)


def gain(loss, x, a):
    return -loss


def problem(risk=RISK, at_most=None):
    at_most = AT_MOST[risk] if at_most is None else at_most
    loss = ged.density_class(loss_model, example=(np.ones((1, 2)), np.zeros(1, int)))
    functional = ged.variance(high=0.5) if risk == "variance" else ged.cvar(LEVEL, low=-1.0, high=1.5)
    known = np.exp(2 * LOG_SCALE[0, 0]) if risk == "variance" else cvar(0.0, np.exp(LOG_SCALE[0, 0]))
    limit = ged.Constraint(loss, functional, at_most=at_most, safe_value=float(known), name=risk, outcome="utility")
    return ged.Problem(
        n_actions=4,
        utility=ged.Utility(loss, ged.expected(gain, low=-1.0, high=1.0)),
        constraints=[limit],
        safe_action=0,
        safe_utility=0.0,
    )


def cvar(mean, scale):
    return mean + scale * norm.pdf(norm.ppf(LEVEL)) / (1 - LEVEL)


class World:
    def __init__(self, risk=RISK):
        self.risk = risk

    def context(self, rng):
        return np.array([1.0, rng.random()])

    def outcome(self, x, action, rng):
        return MEAN[action] @ x + np.exp(LOG_SCALE[action] @ x) * rng.standard_normal(), None

    def utilities(self, x):
        return -(MEAN @ x)

    def costs(self, x):
        scale = np.exp(LOG_SCALE @ x)
        return (scale**2 if self.risk == "variance" else cvar(MEAN @ x, scale))[None]


def environment(risk=RISK):
    return World(risk)


def segments(x):
    return {"volatility": "high" if x[1] > 0.5 else "low"}
