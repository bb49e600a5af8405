"""Risk-aware bandit: the best average return among choices whose spread, or whose worst tenth,
stays under a limit.

The outcome is a loss, and one density of it serves both sides. Its scale depends on the action and
is learned; with one fixed scale for all actions there would be no risk to choose by.

    loss ~ Normal(m_a, exp(s_a + r volatility)),
        maximise -E loss,   Var(loss) <= 0.04,   or CVaR_0.9(loss) <= 0

What is limited is the policy's average of each action's risk, sum_a pi_a Var_a. That is NOT the
variance of the outcome when the action is drawn from pi, which also counts the difference between
the actions' means: two sure actions that return 0 and 1 have sum_a pi_a Var_a = 0 and, drawn with
probability 1/2 each, a variance of 1/4. The same holds for CVaR. To limit the variance of the
mixture needs the square of a mean, which is not linear in pi and outside of this framework.

The scale depends on parameters, so bounds are found by ascent and certificates say "approximation".
Simulated, truth known.

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
AT_MOST = {"variance": 0.04, "cvar": 0.0}
LEVEL = 0.9  # CVaR is the mean of the largest tenth of losses
ACTIONS = ("cash", "A", "B", "C")
COLUMNS = ("volatility",)
MEAN = np.array([-0.2, -0.3, -0.5, -0.45])  # of the loss: negative is a gain
LOG_SCALE, VOLATILITY = np.array([-3.2, -2.6, -2.0, -1.4]), 0.5
MOST_VARIANCE = 0.17  # nobody offers anything wilder


def loss_model(x, a, y=None):
    # what was not tried looks good, so it is tried
    m = numpyro.sample("m", dist.Normal(-0.5, 0.5).expand([4]).to_event(1))
    s = numpyro.sample("s", dist.Normal(-2.0, 1.0).expand([4]).to_event(1))
    r = numpyro.sample("r", dist.Normal(0.0, 0.5))
    numpyro.sample("loss", dist.Normal(m[a], jnp.exp(s[a] + r * x[:, 0])), obs=y)


def gain(loss, x, a):
    return -loss


def problem(risk=RISK, at_most=None):
    at_most = AT_MOST[risk] if at_most is None else at_most
    loss = ged.density_class(loss_model, example=(np.ones((1, 1)), np.zeros(1, int)))
    functional = (
        ged.variance(high=MOST_VARIANCE)
        if risk == "variance"
        else ged.cvar(LEVEL, low=-1.0, high=0.4)
    )

    def known(x):  # the first choice is an old acquaintance
        scale = np.exp(LOG_SCALE[0] + VOLATILITY * x[:, 0])
        return scale**2 if risk == "variance" else cvar(MEAN[0], scale)

    limit = ged.Constraint(
        loss, functional, at_most=at_most, safe_value=known, name=risk, outcome="utility"
    )
    return ged.Problem(
        n_actions=4,
        utility=ged.Utility(loss, ged.expected(gain, low=-1.0, high=1.0)),
        constraints=[limit],
        safe_action=0,
        safe_utility=-MEAN[0],
    )


def cvar(mean, scale):
    return mean + scale * norm.pdf(norm.ppf(LEVEL)) / (1 - LEVEL)


class World:
    def __init__(self, risk=RISK):
        self.risk = risk

    def context(self, rng):
        return rng.random(1)

    def outcome(self, x, action, rng):
        return MEAN[action] + np.exp(
            LOG_SCALE[action] + VOLATILITY * x[0]
        ) * rng.standard_normal(), None

    def utilities(self, x):
        return -MEAN

    def costs(self, x):
        scale = np.exp(LOG_SCALE + VOLATILITY * x[0])
        return (scale**2 if self.risk == "variance" else cvar(MEAN, scale))[None]


def environment(risk=RISK):
    return World(risk)


def segments(x):
    return {"volatility": "high" if x[0] > 0.5 else "low"}
