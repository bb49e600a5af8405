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
# # Confidence sets: which parameters remain, and what is the worst of them?
#
# A decision is as safe as the set of parameters behind it. This tutorial looks at that set on its
# own, without an agent: what it promises, how to ask it for a worst case, why draws from a
# posterior are no worst case, what makes it shrink, and what happens when a fit fails.

# %%
import os

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import gedppl as ged

SMALL = bool(os.environ.get("GEDPPL_SMALL"))
ROWS = 200 if SMALL else 1000


# %% [markdown]
# ## A set from a log
#
# Three actions, one logistic regression for each. The rows were collected by somebody who mostly
# played what looked best: the design depends on the outcomes, so that textbook intervals do not
# hold. Below they are taken in one after another, because each outcome is predicted from the rows
# before it; the sum of the log predictions is what the likelihood of a plausible parameter is
# measured against.


# %%
def model(x, a, y=None):
    w = numpyro.param("w", jnp.zeros((3, 2)))
    numpyro.sample("y", dist.Bernoulli(logits=w[a, 0] + w[a, 1] * x[:, 0]), obs=y)


TRUTH = {"w": np.array([[-1.0, 0.5], [0.0, -0.5], [0.3, 1.0]])}


def chance(x, a):
    w = TRUTH["w"][a]
    return 1 / (1 + np.exp(-w[..., 0] - w[..., 1] * x))


def greedy_log(n, seed=0):
    """x (n, 1), a (n,), y (n,): mostly the action with the best average so far."""
    rng = np.random.default_rng(seed)
    x, a, y = rng.normal(size=(n, 1)), np.zeros(n, int), np.zeros(n)
    wins, plays = np.ones(3), np.full(3, 2.0)
    for i in range(n):
        a[i] = rng.integers(3) if rng.random() < 0.3 else int(np.argmax(wins / plays))
        y[i] = rng.random() < chance(x[i, 0], a[i])
        wins[a[i]] += y[i]
        plays[a[i]] += 1
    return x, a, y


x, a, y = greedy_log(ROWS)
cls = ged.density_class(model, example=(x[:1], a[:1]))
found = ged.confidence_set(cls, x, a, y, delta=0.05)
print(found.rule)
print("status:", found.status)
print(f"radius: a plausible parameter may lie {found.radius:.1f} nats below the best one")
print("the truth is in it:", found.contains(TRUTH))
assert found.contains(TRUTH)

# %% [markdown]
# Every functional has a smallest and a largest value over the set, for all actions at a context,
# and a witness: the parameters at which the largest is reached. For a generalised linear model the
# two ends are exact.

# %%
here = np.array([[0.5]])
bounds = found.bounds(ged.mean(0, 1), here, n_actions=3)
for k in range(3):
    print(
        f"action {k}: {bounds.lower[0, k]:.3f} <= {chance(0.5, k):.3f} (truth) <= "
        f"{bounds.upper[0, k]:.3f}"
    )
    assert bounds.lower[0, k] <= chance(0.5, k) <= bounds.upper[0, k]
print("method:", bounds.method, "| guaranteed:", bounds.guaranteed)
print("where action 2 is largest:", bounds.witness[0][2]["w"][2].round(2))
assert bounds.guaranteed

# %% [markdown]
# ## Draws are not a bound
#
# The largest value over draws from the posterior looks like a worst case and is not: it falls short
# by a factor that grows with the number of parameters. Such a bound is always labelled.

# %%
drawn = found.sampled_bounds(ged.mean(0, 1), here, 3, n=64, source="laplace")
share = (drawn.upper - drawn.estimate) / (bounds.upper - bounds.estimate)
print(drawn.note)
print("share of the true distance that 64 draws reach:", share[0].round(2))
assert share.max() < 0.95
assert not drawn.guaranteed

# %% [markdown]
# ## Radius rules
#
# A rule decides how far below the best fit a parameter may lie. Each says what it promises. The
# likelihood-ratio rule is the default and holds at all times, for data collected like ours. Wilks'
# chi-square is narrower and promises nothing here; made to hold at all times by a union bound over
# rounds it is wider than the default, and still assumes a fixed design.

# %%
rules = {
    "default": None,
    "intersected": ged.likelihood_ratio(intersect=True),
    "chi-square": ged.radius.chi_square(),
    "chi-square, union": ged.radius.chi_square(union=True),
}
width = {}
for name, rule in rules.items():
    one = found if rule is None else ged.confidence_set(cls, x, a, y, confidence=rule)
    there = one.bounds(ged.mean(0, 1), here, 3)
    width[name] = float(np.mean(there.upper - there.lower))
    print(f"{name:20s} width {width[name]:.3f}  {there.rule[:96]}")
assert width["intersected"] <= width["default"] < width["chi-square, union"]

# %% [markdown]
# ## If you trust a prior
#
# A posterior may be asked instead. `credible_set` reads an upper value off draws from it: narrower,
# for one decision at a time, and right only if model and prior are. It is called credible and never
# a guarantee; its model's parameters need priors.


# %%
def believed(x, a, y=None):
    w = numpyro.sample("w", dist.Normal(0, 2).expand([3, 2]).to_event(2))
    numpyro.sample("y", dist.Bernoulli(logits=w[a, 0] + w[a, 1] * x[:, 0]), obs=y)


posterior = ged.confidence_set(
    ged.density_class(believed), x, a, y, confidence=ged.credible_set(level=0.95, draws=1000)
)
there = posterior.bounds(ged.mean(0, 1), here, 3)
print(f"credible width {np.mean(there.upper - there.lower):.3f}, guaranteed: {there.guaranteed}")
assert np.mean(there.upper - there.lower) < width["default"]

# %% [markdown]
# ## Beyond one linear predictor
#
# An unknown noise scale for every action is no obstacle: the likelihood is concave in (mean /
# scale, 1 / scale), and bounds are exact. Where the logarithm of the scale follows a context it is
# not. The bound then comes from an ascent to the edge of the set. It usually reaches it, which
# nobody has proved, and the answer says so.


# %%
def noisy(x, a, y=None):
    w = numpyro.param("w", jnp.zeros((2, 2)))
    s = numpyro.param("s", jnp.zeros(2))
    numpyro.sample(
        "y", dist.Normal(w[a, 0] + w[a, 1] * x[:, 0], jnp.exp(s[0] + s[1] * x[:, 0])), obs=y
    )


rng = np.random.default_rng(1)
nx, na = rng.normal(size=(200, 1)), rng.integers(0, 2, 200)
ny = 0.5 * nx[:, 0] + np.exp(-1 + 0.4 * nx[:, 0]) * rng.normal(size=200)
spread = ged.confidence_set(ged.density_class(noisy), nx, na, ny, growth=1.4)
risk = spread.bounds(ged.variance(5), here, 2)
for k, true in enumerate(np.exp(2 * (-1 + 0.4 * here[0, 0])) * np.ones(2)):
    print(f"variance of action {k}: {risk.lower[0, k]:.3f} <= {true:.3f} <= {risk.upper[0, k]:.3f}")
    assert risk.lower[0, k] <= true <= risk.upper[0, k]
print("method:", risk.method, "| guaranteed:", risk.guaranteed, "|", risk.note)
assert not risk.guaranteed

# %% [markdown]
# ## What limits it
#
# The width is $2\sqrt{2\kappa / \text{curvature}}$. An ideal set keeps $\kappa$ and gains curvature
# like $n$. The table names, between two sizes, which of the two fell behind: the radius grew, or
# the rows said little about what was asked.

# %%
table = ged.shrinkage(cls, ged.mean(0, 1), x, a, y, at=here, n_actions=3)
print(table)
axes = ged.plot_shrinkage(table)
assert table.rows[-1].width < table.rows[0].width

# %% [markdown]
# ## When a fit fails
#
# Four successes and no failure: maximum likelihood would send the coefficient to infinity. A weak
# working prior keeps the fit finite. It never enters the set, whose upper end stays open, as it
# must. Nor does the set depend on who fits: with variational inference as the oracle it may be
# wider, never wrong.

# %%
short = ged.confidence_set(cls, np.zeros((4, 1)), np.full(4, 2), np.ones(4))
ends = short.bounds(ged.mean(0, 1), np.zeros((1, 1)), 3)
print(
    "after four successes of action 2:",
    ends.lower[0].round(3),
    ends.upper[0].round(3),
    "|",
    ends.note,
)
assert ends.upper[0, 2] == 1.0

by_svi = ged.confidence_set(
    cls, x[:100], a[:100], y[:100], oracle=ged.svi("delta", steps=500), growth=2.0
)
print("oracle:", by_svi.status)
print("the truth is in it:", by_svi.contains(TRUTH))
assert by_svi.contains(TRUTH)
