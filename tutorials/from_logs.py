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
# # From a log to a first policy
#
# A shop gives discounts. Until today a simple rule drew them by lot, mostly none, sometimes 10 or
# 20%, never 30%, and wrote everything down: who came, what was given, with which probability,
# what it earned, and whether the order lost money in the end. From tomorrow on discounts shall be
# chosen by customer, to earn more, and no customer's chance of a loss may exceed 15%, from the
# first day on.
#
# The log does three things here: it says which model to trust, it makes the first policy a good
# one, and it estimates beforehand what that policy will earn.

# %%
import os

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import expit

import gedppl as ged

SMALL = bool(os.environ.get("GEDPPL_SMALL"))
ROWS, ROUNDS = (600, 60) if SMALL else (2000, 300)
DISCOUNT = np.array([0.0, 0.1, 0.2, 0.3])
NAMES = ("none", "10%", "20%", "30%")

# %% [markdown]
# ## The log
#
# The truth is ours to make up, so that we can judge at the end. A discount brings orders, more so
# from new customers, and it raises the chance of a loss, more so for large baskets.


# %%
class Shop:
    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)

    def context(self, rng):
        return np.array([rng.normal(), float(rng.random() < 0.5)])  # basket size, returning

    def utilities(self, x):
        return 0.5 + 0.2 * x[0] + DISCOUNT * (4.0 - 3.0 * x[1])

    def costs(self, x):
        return expit(-3.5 + DISCOUNT * (6.0 + 2.0 * x[0]))[None]

    def outcome(self, x, action, rng):
        profit = self.utilities(x)[action] + 0.3 * rng.standard_normal()
        return profit, float(rng.random() < self.costs(x)[0, action])


shop, rng = Shop(), np.random.default_rng(1)
old_rule = np.array([0.6, 0.3, 0.1, 0.0])
people = np.array([shop.context(rng) for _ in range(ROWS)])
given = rng.choice(4, size=ROWS, p=old_rule)
profit, loss = np.array([shop.outcome(x, a, rng) for x, a in zip(people, given, strict=True)]).T
log = {
    "returning": np.where(people[:, 1] > 0, "yes", "no"),
    "basket": people[:, 0],
    "discount": np.array(NAMES)[given],
    "probability": old_rule[given],
    "profit": profit,
    "loss": loss,
}
for name, column in log.items():
    print(f"{name:12}", column[:5])

# %% [markdown]
# ## Which model should decide?
#
# Two candidates for the chance of a loss: one in which a discount hurts everybody alike, one in
# which it hurts more in large baskets. Each row is predicted from the rows before it; the ratio of
# the scores is an e-value: under the one model it is above 20 with probability at most 1/20.


# %%
def loss_alike(x, a, y=None):
    v = numpyro.sample("v", dist.Normal(0, 5).expand([2]).to_event(1))
    d = jnp.asarray(DISCOUNT)[a]
    numpyro.sample("loss", dist.Bernoulli(logits=v[0] + v[1] * d), obs=y)


def loss_by_basket(x, a, y=None):
    v = numpyro.sample("v", dist.Normal(0, 5).expand([3]).to_event(1))
    d = jnp.asarray(DISCOUNT)[a]
    numpyro.sample("loss", dist.Bernoulli(logits=v[0] + d * (v[1] + v[2] * x[:, 0])), obs=y)


def profit_model(x, a, y=None):
    w = numpyro.sample("w", dist.Normal(0, 5).expand([4]).to_event(1))
    d = jnp.asarray(DISCOUNT)[a]
    numpyro.sample(
        "profit", dist.Normal(w[0] + w[1] * x[:, 0] + d * (w[2] + w[3] * x[:, 1]), 0.3), obs=y
    )


candidates = {
    "alike": ged.density_class(loss_alike),
    "by basket": ged.density_class(loss_by_basket),
}
print(ged.compare_models(candidates, people, given, loss, draws=200))

# %% [markdown]
# A log in which few orders lost money says little about the difference. When in doubt take the
# larger model: a guarantee holds if the class holds the truth, and the larger class holds it more
# often.
#
# ## The first policy
#
# `columns` and `actions` give names to what the log calls by name, so the table goes in as it is,
# in any order of columns.

# %%
problem = ged.Problem(
    actions=NAMES,
    columns={"basket": float, "returning": ("no", "yes")},
    utility=ged.Utility(ged.density_class(profit_model), ged.mean(-3, 5)),
    constraints=[
        ged.Constraint(
            candidates["by basket"], ged.mean(0, 1), at_most=0.15, safe_value=0.05, name="loss"
        )
    ],
    safe_action="none",
)
customer = {"basket": 0.5, "returning": "no"}
half = ROWS // 2
first = {name: column[:half] for name, column in log.items()}
second = {name: column[half:] for name, column in log.items()}

cold = ged.GEDUCB(problem, seed=0)
warm = ged.GEDUCB(problem, seed=0)
warm.observe(first, "discount", "profit", "loss")
for name, agent in {"without the log": cold, "with half of it": warm}.items():
    upper = agent.cost_bounds(customer)[1][0]
    print(
        f"{name}: policy {agent.policy(customer).round(2)}, chance of a loss at most",
        upper.round(2),
    )
assert warm.policy(customer)[0] < cold.policy(customer)[0]

# %% [markdown]
# Nobody was ever given 30%, and yet its worst case is known: the model says how a loss depends on
# the discount, and the set holds every such dependence that the log still allows.
#
# ## What will it earn?
#
# Ask the other half of the log, which the policy has not seen. Each row counts by how much more
# often the new policy would have played what was played then (`snips`). What the old rule never
# did cannot be judged in this way, so the policy is judged without 30%.

# %%
held_out = ged.offpolicy.Log.read(
    problem, second, action="discount", propensity="probability", outcome="profit"
)
policy = np.array(
    [warm.policy(x, allowed=["none", "10%", "20%"]) for x in held_out.x[: 100 if SMALL else 400]]
)
judged = ged.offpolicy.Log(
    *(
        v[: len(policy)]
        for v in (held_out.x, held_out.action, held_out.propensity, held_out.outcome)
    )
)
new = ged.offpolicy.snips(judged, policy)
old = ged.offpolicy.snips(judged, np.tile(old_rule, (len(policy), 1)))
print("old rule  ", old)
print("new policy", new)
truth = np.mean([p @ shop.utilities(x) for p, x in zip(policy, judged.x, strict=True)])
print(f"its true mean profit {truth:.3f}")

# %% [markdown]
# ## And on from there
#
# The log was a start. From now on every decision is asked for and told, and the agent that read
# the log is compared with one that did not: the same customers, the same luck.

# %%
warm.observe(second, "discount", "profit", "loss")
runs = {
    name: ged.simulate(problem, shop, agent, ROUNDS, seed=2)
    for name, agent in {"without the log": cold, "with the log": warm}.items()
}
for name, run in runs.items():
    summary = run.summary()
    print(
        f"{name:16} profit {summary['mean_utility']:.3f} (best possible "
        f"{summary['oracle_utility']:.3f}), rounds above the limit {summary['infeasible_rounds']}"
    )
    assert summary["infeasible_rounds"] == 0
assert runs["with the log"].regret[-1] < runs["without the log"].regret[-1]

# %%
fig, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
for name, run in runs.items():
    ax.plot(run.regret, label=name)
ax.set(xlabel="decisions", ylabel="regret", title="What the log was worth")
ax.legend()

# %% [markdown]
# ## What a log cannot do
#
# * A row is valid for the set if its outcome follows the model given context and action. How the
#   action was chosen need not be known for that, but it must not depend on anything beyond the
#   columns that also moves the outcome: a clerk who saw that a customer was angry, say.
# * Rows that are missing for a reason (only complaints were written down) break every set and every
#   estimate, and nothing in the rows that are there shows it.
# * Off-policy estimates need the probabilities with which actions were really drawn.
