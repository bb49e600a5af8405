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
# # Your first safe decision
#
# A charging station has four charging rates. A faster rate adds more charge in ten minutes, and
# heats the battery more; how much it heats depends on how warm the battery is already. We do not
# know these relations beforehand, and no battery may be expected to warm up by more than 10
# degrees, *not even while we are still learning*. The slowest rate is known to stay under 3.5
# degrees.
#
# What follows is everything there is to do: two models, one declaration, then `ask` and `tell`.

# %%
import os
import tempfile

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist

import gedppl as ged

ROUNDS = 60 if os.environ.get("GEDPPL_SMALL") else 300
RATE = np.array([0.25, 0.5, 0.75, 1.0])

# %% [markdown]
# ## Two models
#
# A model is a NumPyro (or Pyro) program `model(x, a, y=None)` for a batch of rows: contexts `x` of
# shape (n, columns), actions `a` of shape (n,), and one observed site. Here the context is one
# number, how warm the battery is, from 0 to 1. The parameters that nobody knows are `param` sites
# (or `sample` sites, if you have a prior).


# %%
def charge(x, a, y=None):  # percent of a full charge in ten minutes
    w = numpyro.param("w", jnp.zeros(2))
    rate = jnp.asarray(RATE)[a]
    numpyro.sample("y", dist.Normal(rate * (w[0] + w[1] * x[:, 0]), 1.0), obs=y)


def heat(x, a, y=None):  # degrees
    v = numpyro.param("v", jnp.zeros(2))
    rate = jnp.asarray(RATE)[a]
    numpyro.sample("z", dist.Normal(rate * (v[0] + v[1] * x[:, 0]), 0.5), obs=y)


# %% [markdown]
# ## One declaration
#
# Of the charge and of the heat we care about the mean, so we say so and give a range that the mean
# is known to lie in. Ranges and limits are in your own units. `bounds` says how large the
# parameters can be at most (here: the length of the vector); it is knowledge, and the more of it
# you have, the sooner the agent may leave the safe action.

# %%
problem = ged.Problem(
    n_actions=4,
    utility=ged.Utility(ged.density_class(charge, bounds={"w": 30.0}), ged.mean(0, 20)),
    constraints=[
        ged.Constraint(
            ged.density_class(heat, bounds={"v": 30.0}),
            ged.mean(0, 30),
            at_most=10.0,
            safe_value=3.5,
            name="heat",
        ),
    ],
    safe_action=0,
)
agent = ged.GEDUCB(problem, delta=0.05, seed=0)

# %% [markdown]
# ## A look before the first battery
#
# `check_problem` reads the declaration before any data, at contexts like those to come: which
# bounds will be exact, what rows can show of the parameters, how far the first decision may leave
# the safe action, and warnings that say what to change. It speaks of the agent that you will use;
# options other than the default's go into `agent=`. `runs` simulates how long the start lasts.

# %%
before = ged.check_problem(problem, np.linspace(0, 1, 50)[:, None], runs=0)
print(before)
assert before.limits[0].kind == "guarantee"
assert before.limits[0].first_mix[0] == 1  # the second rate is known to be cool enough: see below

# %% [markdown]
# ## Ask
#
# The first battery is fairly warm. Nothing has been observed yet.

# %%
first = agent.ask([0.6])
print("policy:", first.policy.round(3))
print("action drawn:", first.action)
print(first.certificate)
assert first.certificate.guaranteed
assert first.policy[0] < 1
assert np.allclose(agent.cost_bounds([0.6])[1][0], [3.5, 7, 10.5, 14])

# %% [markdown]
# The answer is a *policy*: probabilities of the four rates, and one rate drawn from them. Nothing
# was observed, but something was declared: in this model heat is proportional to the rate, so if
# the slowest heats by 3.5 at most, the others heat by 7, 10.5 and 14 at most (the column `heat ≤`
# below is the worst case of each). The second is under the limit by itself; a faster one is played
# with just the probability that keeps the average at 10 in the worst case. The agent explores from
# the first round on, and it keeps the limit from the first round on.
#
# The terms behind it, action by action, and straight answers to "why not faster?" (of a single
# action, ask `why.why_not(3)`):

# %%
why = agent.explain(first)
print(why)
assert why.why_not(3) in str(why)

# %% [markdown]
# ## Tell
#
# Tell what happened, in any order and with any delay. The decision's id is all you need to keep.

# %%
agent.tell(first.id, y=4.1, z=2.6)

# %% [markdown]
# ## Again and again
#
# To watch it learn we need a world. In yours the outcomes come from outside; here we make one up,
# whose truth we know. That is an object with four methods, the last two of which are for judging
# only: the agent never sees them.


# %%
class Station:
    def context(self, rng):
        return rng.random(1)

    def utilities(self, x):
        return RATE * (16 - 2 * x[0])

    def costs(self, x):
        return RATE[None] * (8 + 6 * x[0])

    def outcome(self, x, action, rng):
        y, z = self.utilities(x)[action], self.costs(x)[0, action]
        return y + rng.standard_normal(), z + 0.5 * rng.standard_normal()


# %%
agent = ged.GEDUCB(problem, delta=0.05, seed=0)
run, battery = None, np.array([0.6])
print(f"{'rounds':>6}  {'policy at x = 0.6':<28}  worst-case heat of each rate")
for rounds in (1, 4, 15, ROUNDS - 20):
    run = ged.simulate(problem, Station(), agent, rounds, seed=1, run=run)
    upper = agent.cost_bounds(battery)[1][0]
    print(f"{len(run):>6}  {agent.policy(battery).round(2)!s:<28}  {upper.round(1)}")
print(f"{'truth':>6}  {'':<28}  {Station().costs(battery)[0]}")

# %% [markdown]
# The worst case of each rate comes down to its true heat as outcomes arrive, and the policy moves
# to the fastest rates that the limit allows. Where the best rate alone would exceed the limit, two
# rates are mixed so that the average stays under it.
#
# ## Was the limit kept?
#
# In this world we can check, and every single round counts.

# %%
summary = run.summary()
print("rounds:", summary["rounds"])
print("rounds whose policy truly exceeds the limit:", summary["infeasible_rounds"])
print(
    f"charge a round: {summary['mean_utility']:.2f}, in the last quarter "
    f"{summary['last_quarter_utility']:.2f}"
)
print(f"  the best that keeps the limit, knowing the truth: {summary['oracle_utility']:.2f}")
print(f"  the safe rate always: {run.utilities[:, 0].mean():.2f}")
assert summary["infeasible_rounds"] == 0
assert run.utilities[:, 0].mean() < summary["mean_utility"] < summary["oracle_utility"]

# %%
fig, axes = plt.subplots(1, 2, figsize=(10, 3.5), layout="constrained")
ged.plot_cost_bounds(run, "heat", ax=axes[0])
ged.plot_policy_map(run, ax=axes[1])

# %% [markdown]
# ## Keeping it
#
# Give the agent a journal, and every decision and outcome is on disk before the call returns.
# Another process goes on from there.

# %%
with tempfile.TemporaryDirectory() as folder:
    path = f"{folder}/station.db"
    with ged.GEDUCB(problem, seed=0, journal=path) as kept:
        decision = kept.ask([0.3])
        kept.tell(decision.id, y=5.0, z=2.0)
    with ged.resume(path, problem) as again:
        print("decisions in the journal:", again.rounds)
        assert again.rounds == 1

# %% [markdown]
# ## Next
#
# * `gedppl run my_script.py` does all of this, with a report, for a script that has `problem()` and
#   `environment()`: see `models/`.
# * `tutorials/your_own_model.py`: priors, other outcomes than numbers with Gaussian noise, other
#   functionals than the mean.
# * `tutorials/certificates.py`: what "guarantee, if the model class holds the truth" does and does
#   not say.
