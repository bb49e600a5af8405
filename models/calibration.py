"""Sequential quantile calibration: predict, for every x, the value that y stays under with
probability q.

An action is a prediction p on a grid. After the round y is known whatever was predicted (full
information). One density of y given x says what every p is worth. Three forms:

    form="distance"
        1 - |q - P(y <= p)|              a functional of the density's distribution function at p
    form="pinball"
        1 - E rho_q(y - p) / scale       linear in the density, smallest loss at the quantile
    form="literal"
        E|q - 1(y <= p)|                 the paper's, with its sign: what goes wrong is shown, not
        used

The literal form puts the absolute value inside the expectation: E|q - 1(y <= p)| = q + (1 - 2q) P(y
<= p) is monotone in P(y <= p), so its best p is the smallest or the largest of the grid, never the
quantile; and as a utility, to be maximised, it also has the wrong sign. The absolute value belongs
outside of the average, as in the error that `l1_error` reports:

    sum_p n_p / T  |q - mean of 1(y <= p) over the rounds that predicted p|

There is no limit in this problem, so there are no certificates. Simulated, truth known. Needs
nothing but gedppl. Run:  gedppl run models/calibration.py --rounds 500
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.stats import norm

import gedppl as ged
from gedppl.functionals import Functional

FORM = "distance"
Q = 0.9
GRID = np.linspace(0.0, 1.0, 11)
ACTIONS = [f"{p:.1f}" for p in GRID]
COLUMNS = ("one", "x")
CENTRE, SPREAD = np.array([0.3, 0.3]), 0.12


class Closeness(Functional):
    """1 - |q - P(y < p)|: a functional of one's own is a probability, mean, ... and what to do
    with it.
    """

    def __call__(self, density, x=None, a=None):
        return 1 - abs(self.level - super().__call__(density, x, a))


def y_model(x, a, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    s = numpyro.sample("s", dist.LogNormal(-2.0, 1.0))
    numpyro.sample("y", dist.Normal(x @ w, s), obs=y)


def pinball(y, x, a):
    error = y - jnp.asarray(GRID)[a]
    return 1 - jnp.where(error > 0, Q * error, (Q - 1) * error) / Q


def literal(y, x, a):
    return jnp.abs(Q - jnp.where(y <= jnp.asarray(GRID)[a], 1.0, 0.0))


def functional(form):
    return {
        "distance": Closeness("probability", 0.0, 1.0, level=Q, below=tuple(GRID)),
        "pinball": ged.expected(pinball, low=-1.0, high=1.0),
        "literal": ged.expected(literal, low=0.0, high=1.0),
    }[form]


def problem(form=FORM):
    y = ged.density_class(y_model, example=(np.ones((1, 2)), np.zeros(1, int)))
    return ged.Problem(
        n_actions=len(GRID),
        utility=ged.Utility(y, functional(form)),
        reveals=np.ones((len(GRID), len(GRID)), bool),
    )


class World:
    def __init__(self, form=FORM):
        self.form = form

    def context(self, rng):
        return np.array([1.0, rng.random()])

    def outcome(self, x, action, rng):
        return CENTRE @ x + SPREAD * rng.standard_normal(), None

    def utilities(self, x):
        under = norm.cdf((GRID - CENTRE @ x) / SPREAD)
        if self.form == "distance":
            return 1 - np.abs(Q - under)
        if self.form == "literal":
            return Q + (1 - 2 * Q) * under
        gap = (GRID - CENTRE @ x) / SPREAD
        excess = SPREAD * (norm.pdf(gap) - gap * norm.sf(gap))  # E (y - p)+
        return 1 - (Q * excess + (1 - Q) * (excess + GRID - CENTRE @ x)) / Q

    def costs(self, x):
        return np.zeros((0, len(GRID)))


def environment(form=FORM):
    return World(form)


def l1_error(run, q=Q):
    """The calibration error of a run, from what was predicted and what came."""
    predicted, y = np.asarray(run.action), np.array([float(value) for value in run.y])
    total = 0.0
    for p in np.unique(predicted):
        here = predicted == p
        total += here.mean() * abs(q - np.mean(y[here] <= GRID[p]))
    return total
