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
# # The Bayesian's path: from a prior to limits, credible or guaranteed
#
# Eight sites give the same treatment, and some of them have seen few patients. What is the chance
# of harm at each? A Bayesian writes a hierarchy, looks at its prior, fits it, checks its
# predictions, compares it with a model that does not pool, and then states an upper value that
# holds with probability .95. This tutorial walks that path, and puts beside it what a *guarantee*
# at the same level gives: it trusts the likelihood and no prior, and is dearer for it. Neither is a
# substitute for the other.

# %%
import os
import warnings

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # ArviZ 0.23 announces its successor
    import arviz as az

import gedppl as ged

SMALL = bool(os.environ.get("GEDPPL_SMALL"))
DRAWS = 1000 if SMALL else 4000

# %% [markdown]
# ## The data
#
# Sites are the actions here: playing site $s$ means to treat a patient there. The context is a
# constant. The last two sites have seen four and three patients.

# %%
SITES = ("north", "south", "east", "west", "harbour", "hill", "lake", "island")
SIZES = np.array([60, 45, 30, 20, 12, 8, 4, 3])
rng = np.random.default_rng(7)
truth = 1 / (1 + np.exp(-(-1.6 + 0.35 * rng.normal(size=8))))
a = np.repeat(np.arange(8), SIZES)
x, y = np.ones((len(a), 1)), (rng.random(len(a)) < truth[a]).astype(float)
for name, size, k in zip(SITES, SIZES, np.bincount(a, y).astype(int)):
    print(f"{name:8s} {k:2d} events in {size:2d}")

# %% [markdown]
# ## Two models
#
# `pooled` lets sites learn from each other through $\mu$ and $\tau$; it is written non-centred, so
# that no funnel stands in the way of a fit. `alone` gives every site a logit of its own.


# %%
def pooled(x, a, y=None):
    mu = numpyro.sample("mu", dist.Normal(-1.5, 1.0))
    tau = numpyro.sample("tau", dist.HalfNormal(0.5))
    z = numpyro.sample("z", dist.Normal(jnp.zeros(8), 1.0).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=(mu + tau * z)[a]), obs=y)


def alone(x, a, y=None):
    w = numpyro.sample("w", dist.Normal(-1.5 * jnp.ones(8), 1.5).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=w[a]), obs=y)


def chances(name, draws):
    """(S, 8) chance of an event at each site."""
    logits = (
        draws["w"] if name == "alone" else draws["mu"][:, None] + draws["tau"][:, None] * draws["z"]
    )
    return 1 / (1 + np.exp(-logits))


MODELS = {"pooled": ged.density_class(pooled), "alone": ged.density_class(alone)}


def agent_of(model):
    """An agent whose utility is the chance of an event; it is only asked for its posterior here."""
    utility = ged.Utility(model, ged.mean(0, 1))
    return ged.GEDUCB(ged.Problem(actions=SITES, utility=utility), guard=None)


# %% [markdown]
# ## Before data: the prior
#
# `agent.posterior()` before the first outcome *is* the prior. What does it say about the chance of
# an event at a site, and about how much sites differ? If this picture were absurd, now would be the
# time to change the model.

# %%
agents = {name: agent_of(model) for name, model in MODELS.items()}
for agent in agents.values():
    agent.policy([1.0])  # shows the model its first context
prior = {name: chances(name, agent.posterior(draws=DRAWS).draws) for name, agent in agents.items()}
fig, axes = plt.subplots(1, 2, figsize=(8, 2.6), sharey=True)
for axis, (name, p) in zip(axes, prior.items()):
    axis.hist(p[:, 0], bins=np.linspace(0, 1, 41), density=True, color="tab:gray", label="one site")
    axis.hist(
        np.abs(p[:, 0] - p[:, 1]),
        bins=np.linspace(0, 1, 41),
        density=True,
        histtype="step",
        label="two sites apart",
    )
    axis.set(title=f"{name}: prior", xlabel="chance of an event")
axes[0].legend()
fig.tight_layout()

# %% [markdown]
# ## The posterior
#
# The rows go in by `observe`. Laplace's approximation is the quick source, weighted to the
# posterior where its weights can be believed; NUTS is the slow and better one, and the one for a
# hierarchy; `svi` and the prior are the other two. The status says what speaks for the draws: for
# chains R-hat, what they are worth and divergences, for weighted draws Pareto's k-hat.

# %%
for agent in agents.values():
    agent.observe(x, a, y)
quick = agents["pooled"].posterior(draws=DRAWS)
print(quick.status)
found = {name: agent.posterior(source="nuts", draws=DRAWS) for name, agent in agents.items()}
for name, posterior in found.items():
    print(f"{name}: {posterior.status}")

# %%
data = {name: posterior.to_arviz() for name, posterior in found.items()}
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    print(az.summary(data["pooled"], var_names=["mu", "tau"]))

# %% [markdown]
# ## Does the model predict what was seen?
#
# `posterior_predictive` holds an outcome for each row and draw; ArviZ's own check is `az.plot_ppc`
# (0.23) or `az.plot_ppc_dist` (1.x). For counts by site a picture of our own says more: events at
# each site, predicted and seen.

# %%
predicted = found["pooled"].predictive(x, a)
counts = np.stack([predicted[:, a == s].sum(axis=1) for s in range(8)], axis=1)
low, high = np.quantile(counts, [0.05, 0.95], axis=0)
seen = np.bincount(a, y)
fig, axis = plt.subplots(figsize=(7, 2.8))
axis.vlines(np.arange(8), low, high, color="tab:blue", lw=6, alpha=0.4, label="90% of predictions")
axis.plot(np.arange(8), seen, "k.", label="seen")
axis.set(xticks=np.arange(8), xticklabels=SITES, ylabel="events")
axis.legend()
fig.tight_layout()
print("sites outside their interval:", int(np.sum((seen < low) | (seen > high))), "of 8")

# %% [markdown]
# ## Which model?
#
# Leave-one-out predictive scores, the better model first. Single patients are hard to predict, so
# that models are seldom far apart by this score; what pooling changes most is how sure one may be
# about the *small* sites.

# %%
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    print(az.compare(data).iloc[:, :3])

# %% [markdown]
# ## Credible, pooled and not, against the guarantee
#
# The credible upper value of a site is the .95 quantile of its chance over the draws: right with
# posterior probability .95, if model *and* prior are right, for this one look. The guaranteed one
# is the largest chance that the e-process leaves plausible at delta = .05: it holds for all sites,
# at all looks, whoever chose the sites and why, and no prior can spoil it, nor help it much.

# %%
upper = {
    name: np.quantile(chances(name, posterior.draws), 0.95, axis=0)
    for name, posterior in found.items()
}
bounds = ged.confidence_set(MODELS["alone"], x, a, y, 0.05).bounds(
    ged.mean(0, 1), np.ones((1, 1)), 8
)
upper["guaranteed"] = bounds.upper[0]
print(bounds.method, "and guaranteed" if bounds.guaranteed else "and not guaranteed")
print(f"{'site':8s} {'size':>4s} {'truth':>6s} " + " ".join(f"{name:>10s}" for name in upper))
for s, name in enumerate(SITES):
    print(
        f"{name:8s} {SIZES[s]:4d} {truth[s]:6.2f} "
        + " ".join(f"{value[s]:10.2f}" for value in upper.values())
    )

# %%
fig, axis = plt.subplots(figsize=(8, 3.2))
for shift, (name, value) in zip((-0.2, 0.0, 0.2), upper.items()):
    axis.vlines(
        np.arange(8) + shift,
        0,
        value,
        lw=5,
        alpha=0.6,
        label=name,
        color=f"C{int(5 * (shift + 0.2))}",
    )
axis.plot(np.arange(8), truth, "k_", ms=16, label="truth")
labels = [f"{name}\n{size}" for name, size in zip(SITES, SIZES)]
axis.set(xticks=np.arange(8), xticklabels=labels, ylabel="chance of an event, upper value")
axis.legend(ncols=4, loc="upper left")
fig.tight_layout()

# %% [markdown]
# On the large sites it hardly matters to a credible value whether sites are pooled. On the small
# ones pooling pays: a site with three patients is bounded by what the other seven showed. Without
# pooling its credible value is that of the prior and three patients, and the guarantee has little
# to say there: it covers all sites and all looks at once, and three patients are three patients.
# Which one a decision should rest on is not a question of statistics alone: a credible limit is a
# statement about your model and prior, a guarantee one about the data's likelihood.

# %%
small, large = SIZES <= 4, SIZES >= 30
assert np.all(upper["pooled"][small] < upper["alone"][small])
assert np.all(upper["alone"][small] <= upper["guaranteed"][small])
assert np.max(np.abs(upper["pooled"] - upper["alone"])[large]) < np.min(
    np.abs(upper["pooled"] - upper["alone"])[small]
)

# %% [markdown]
# ## An agent that decides by either
#
# The same choice is one argument of an agent. Where should the next patient go, if the chance of
# harm must stay below .35 and `north` is known to keep it? The guarantee rests on the model that is
# exact for it, the credible limit on the one that pools; `confidence=` may differ by outcome, and
# the certificate says what its limit is. The draws come from NUTS: a hierarchy is far from a
# Gaussian. Asked for Laplace's approximation, an agent would notice by its weights and put other
# draws in its place (`python benchmarks/posterior.py sbc` prints how far off it is by itself).


# %%
def deciding(model, **options):
    harm = ged.Constraint(MODELS[model], ged.mean(0, 1), at_most=0.35, safe_value=0.25, name="harm")
    utility = ged.Utility(MODELS["alone"], ged.mean(0, 1))
    problem = ged.Problem(
        actions=SITES, utility=utility, constraints=[harm], safe_action="north", safe_utility=0.0
    )
    agent = ged.GEDUCB(problem, guard=None, **options)
    agent.observe(x, a, 1 - y, y)
    return agent


credible = ged.credible_set(level=0.95, source="nuts", draws=DRAWS)
for name, agent in {
    "guaranteed": deciding("alone"),
    "credible": deciding("pooled", confidence={"harm": credible}),
}.items():
    decision = agent.ask([1.0])
    upper_values = ", ".join(
        f"{site} {value:.2f}" for site, value in zip(SITES, agent.cost_bounds([1.0])[1][0])
    )
    print(
        f"{name}: {upper_values}\n  plays {decision.action_name}; "
        f"{decision.certificate.constraints[0].rule}"
    )
    assert decision.certificate.guaranteed == (name == "guaranteed")
