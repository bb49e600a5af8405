# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Bring your own model
#
# The library asks one thing of a model: at these parameters, this context and this action, *which
# distribution* has the outcome? Any NumPyro or Pyro program that answers it will do. This tutorial
# shows what to write, what to give (priors, bounds), what to ask of the density (functionals), and
# which programs get exact bounds. The Pyro cells need `pip install '.[pyro]'`.

# %%
import os

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pyro
import torch

import gedppl as ged

N = 60 if os.environ.get("GEDPPL_SMALL") else 400
rng = np.random.default_rng(0)

# %% [markdown]
# ## The contract
#
# `model(x, a, y=None)` gets rows: `x` (n, columns) floats, `a` (n,) whole numbers, and `y` (n,)
# outcomes or None. It has exactly one observed site. A shop, for instance: visitors `x` see one of
# three offers `a` and order so many pieces.


# %%
def orders(x, a, y=None):
    w = numpyro.param("w", jnp.zeros(3))
    numpyro.sample("y", dist.Poisson(jnp.exp(w[0] + w[1] * a + w[2] * x[:, 0])), obs=y)


numpyro_class = ged.density_class(orders)

# %% [markdown]
# The same in Pyro: `param` sites are the unknowns there too. (Let the model convert its own
# constants to the type of `x`, which is float64.)


# %%
def orders_in_pyro(x, a, y=None):
    w = pyro.param("w", lambda: torch.zeros(3))
    pyro.sample("y", pyro.distributions.Poisson(torch.exp(w[0] + w[1] * a + w[2] * x[:, 0])), obs=y)


pyro_class = ged.density_class(orders_in_pyro)

# %% [markdown]
# From here on nothing knows which language it was. A class gives densities, and both give the same:

# %%
x, a = np.array([[0.5], [2.0], [2.0]]), np.array([0, 1, 2])
params = {"w": np.array([0.2, 0.3, 0.4])}
p, same = numpyro_class.density(params, x, a), pyro_class.density(params, x, a)
print(p)
print("largest Hellinger distance between the two languages:", ged.hellinger2(p, same).value.max())
assert ged.hellinger2(p, same).value.max() < 1e-12

# %% [markdown]
# ## What is a density worth?
#
# Utility and limits are *functionals* of a density. Each is a function you can call, in the
# outcome's own units. `low` and `high` say in which range the functional is known to lie.

# %%
functionals = {
    "mean": ged.mean(0, 50),
    "P(more than 4)": ged.probability(above=4),
    "variance": ged.variance(50),
    "mean of the largest tenth (CVaR)": ged.cvar(0.9, 0, 50),
    "profit, 3 a piece, 5 for any": ged.expected(lambda y, x, a: 3 * y - 5 * (y > 0), -5, 150),
}
for name, functional in functionals.items():
    print(f"{name:<32}", np.round(functional(p), 3))
# a Poisson law's mean is its variance
assert np.allclose(functionals["mean"](p), functionals["variance"](p))

# %% [markdown]
# `ged.quantile` exists too, as a utility. As a limit prefer a probability or CVaR: an arbitrarily
# small change of the density can move a quantile by a lot, so bounds on it are wide.
#
# ## What the data leave plausible
#
# `confidence_set` is the object inside the agent. Rows in, in the order in which they were
# collected; extremes of a functional out. Let us make some, from parameters we remember.

# %%
truth = {"w": np.array([0.2, 0.3, 0.4])}
X, A = rng.random((N, 1)), rng.integers(0, 3, N)
Y = rng.poisson(ged.mean(0, 50)(numpyro_class.density(truth, X, A)))

found = ged.confidence_set(numpyro_class, X, A, Y, delta=0.05)
at = found.bounds(ged.mean(0, 50), np.array([[0.5]]), n_actions=3)
print("method:", at.method, "| guarantee if the class holds the truth:", at.guaranteed)
for k in range(3):
    print(
        f"offer {k}: mean orders between {at.lower[0, k]:.2f} and {at.upper[0, k]:.2f}, estimate "
        f"{at.estimate[0, k]:.2f}"
    )
print("the truth is in the set:", found.contains(truth))
exact = ged.mean(0, 50)(numpyro_class.density(truth, np.full((3, 1), 0.5), np.arange(3)))
assert found.contains(truth)
assert ((at.lower[0] <= exact) & (exact <= at.upper[0])).all()

# %% [markdown]
# ## What makes a bound exact
#
# The upper bound is the largest value of the functional over *all* parameters in the set. These
# kinds of class have it exactly:
#
# * **linear-Gaussian**: `Normal`, its mean linear in the parameters, its scale known;
# * **unknown scale**: `Normal` or `LogNormal`, its location linear in the parameters, and a scale
#   that is one more of them, or one for each action or group;
# * **one linear predictor**: the outcome's density depends on the parameters through one number
#   that is linear in them, and is log-concave in it (logistic, Poisson and other generalised linear
#   models; ordered outcomes between linear edges). The Poisson model above is one;
# * **finite classes**.
#
# "Linear" is meant of what the data see: in a hierarchy, `mu + tau * u[group]` is one value for
# each group, however it is written. The page of idioms (`docs/idioms.md`) goes through what people
# write. One more unknown number beside a predictor (a dispersion, a shape) is *profiled*:
# for most families guaranteed, a little wide. `print(cls.exactness)` says which it is, or what
# stands in the way.
#
# Everything else is searched by gradient ascent from many starts. That is usually right and never
# proved, so it is called an approximation. Nothing has to be declared: the program is examined.
# Here is one whose scatter grows from offer to offer, which is no scale of one group:


# %%
def noisy_orders(x, a, y=None):
    w = numpyro.param("w", jnp.zeros(3))
    s = numpyro.param("s", 0.0)  # how much the scatter grows from offer to offer
    numpyro.sample("y", dist.Normal(w[0] + w[1] * a + w[2] * x[:, 0], jnp.exp(s * a)), obs=y)


searched = ged.confidence_set(ged.density_class(noisy_orders), X, A, Y, delta=0.05)
by_ascent = searched.bounds(ged.mean(0, 50), np.array([[0.5]]), n_actions=3)
print("method:", by_ascent.method, "| guarantee:", by_ascent.guaranteed)
print(by_ascent.rule)
print(searched.cls.exactness)
assert at.method == "exact"
assert at.guaranteed
assert by_ascent.method == "ascent"
assert not by_ascent.guaranteed

# %% [markdown]
# ## Priors
#
# Write `sample` instead of `param` and the parameter has a prior. It is used to predict each
# outcome before it is seen, and the set stays valid *whatever the prior says*: a good prior makes
# it smaller, a bad one larger, and neither makes it wrong.


# %%
def orders_with_prior(centre, spread):
    def model(x, a, y=None):
        w = numpyro.sample("w", dist.Normal(centre, spread).expand([3]).to_event(1))
        numpyro.sample("y", dist.Poisson(jnp.exp(w[0] + w[1] * a + w[2] * x[:, 0])), obs=y)

    return model


few = slice(0, 30)
for told, centre in (("a good prior", 0.3), ("a wrong prior", 3.0)):
    cls = ged.density_class(orders_with_prior(centre, 0.3))
    with_prior = ged.confidence_set(cls, X[few], A[few], Y[few])
    bound = with_prior.bounds(ged.mean(0, 50), np.array([[0.5]]), n_actions=3)
    width = (bound.upper - bound.lower).mean()
    print(
        f"{told}: mean width {width:.2f} after 30 rows, truth inside: {with_prior.contains(truth)}"
    )
    assert with_prior.contains(truth)

# %% [markdown]
# ## Bounds on parameters
#
# A prior never excludes anything; `bounds` do. `bounds={"w": 2.0}` says that the vector is no
# longer than 2, `{"w": (low, high)}` that it lies in a box. If that is true, and only then, the set
# may be cut there. It matters most at the beginning:

# %%
start = slice(0, 3)
for bounds in (None, {"w": (0.0, 0.6)}):
    cls = numpyro_class if bounds is None else ged.density_class(orders, bounds=bounds)
    early = ged.confidence_set(cls, X[start], A[start], Y[start])
    bound = early.bounds(ged.mean(0, 50), np.array([[0.5]]), n_actions=3)
    print(f"bounds {bounds!s:<20} upper after 3 rows: {bound.upper[0].round(1)}")

# %% [markdown]
# ## A few settings of one model
#
# When the truth is one of finitely many scenarios, say so: the set is then a list of those that are
# still plausible.

# %%
scenarios = ged.finite_class(
    orders, [{"w": np.array([0.2, b, 0.4])} for b in (0.0, 0.15, 0.3, 0.45)]
)
left = ged.confidence_set(scenarios, X, A, Y)
print("scenarios still plausible:", left.members(4))
assert 2 in left.members(4)  # the true one

# %% [markdown]
# ## When a model does not fit the contract
#
# The error says what was found and what to write instead.


# %%
def two_outcomes(x, a, y=None):
    w = numpyro.param("w", 0.0)
    numpyro.sample("y", dist.Normal(w * a, 1.0), obs=y)
    numpyro.sample("z", dist.Normal(w * a, 1.0), obs=y)


try:
    ged.density_class(two_outcomes, example=(x, a))
except ged.errors.GedError as error:
    print(f"{type(error).__name__}: {error}")
else:
    raise AssertionError("this model should have been refused")

# %% [markdown]
# Two outcomes are two models: the utility's and the constraint's. If both are functionals of *one*
# outcome (a risk limit on the profit itself), give the same class twice and say `outcome="utility"`
# in the `Constraint`; `models/risk_aware.py` does.
