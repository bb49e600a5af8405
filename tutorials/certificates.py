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
# # What the certificate means, and when not to trust it
#
# Every decision comes with a certificate. It is a mathematical statement with assumptions, and this
# tutorial is about the assumptions: what is promised, about what, with which probability, and four
# ways in which the promise can be empty.

# %%
import os
import warnings

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import gedppl as ged

SMALL = bool(os.environ.get("GEDPPL_SMALL"))
LIMIT = 0.5


# %%
def straight_lines(scale):
    """An outcome that is linear in the context, with a line for every action and known noise."""

    def model(x, a, y=None):
        w = numpyro.param("w", jnp.zeros((3, 2)))
        numpyro.sample("y", dist.Normal(w[a, 0] + w[a, 1] * x[:, 0], scale), obs=y)

    return model


def problem(scale=0.1):
    gain, cost = (ged.density_class(straight_lines(scale), bounds={"w": 3.0}) for _ in range(2))
    return ged.Problem(
        n_actions=3,
        utility=ged.Utility(gain, ged.mean(0, 1)),
        constraints=[
            ged.Constraint(cost, ged.mean(0, 1), at_most=LIMIT, safe_value=0.1, name="cost")
        ],
        safe_action=0,
        safe_utility=0.1,
    )


class World:
    """The truth, as functions of a context between 0 and 1. Gains and noise are as the model
    says; costs are given.
    """

    def __init__(self, costs, noise=0.1):
        self._costs, self._noise = costs, noise

    def context(self, rng):
        return rng.random(1)

    def utilities(self, x):
        return np.array([0.1, 0.4, 0.8])

    def costs(self, x):
        return np.array([self._costs(x[0])])

    def outcome(self, x, action, rng):
        noise = self._noise * rng.standard_normal(2)
        return self.utilities(x)[action] + noise[0], self.costs(x)[0, action] + noise[1]


def played(world, rounds, problem, seed=0):
    """A run, and the agent's alarms. Warnings are collected, so that they can be printed where
    we want them.
    """
    agent = ged.GEDUCB(problem, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", (ged.AlarmWarning, ged.SafeActionWarning))
        run = ged.simulate(problem, world, agent, rounds, seed=seed)
    return run, agent.alarms


# %% [markdown]
# ## What it says
#
# First a world in which the model is right: costs are straight lines.

# %%
honest = World(lambda x: [0.1, 0.2 + 0.2 * x, 0.5 + 0.3 * x])
run, alarms = played(honest, 100 if SMALL else 400, problem())
last = run.certificates[-1]["constraints"][0]
print(f"worst case {last['worst_case']:.3f} against a limit of {last['at_most']}")
print(f"guaranteed: {last['guaranteed']}, bound: {last['method']}")
print(last["rule"])
print(
    "rounds whose policy truly exceeds the limit:",
    int(run.infeasible.sum()),
    "| alarms:",
    len(alarms),
)
assert run.infeasible.sum() == 0
assert all(c["constraints"][0]["guaranteed"] for c in run.certificates)

# %% [markdown]
# Read it like this. *With probability at least 1 - delta, over everything that chance does in the
# whole run, in all rounds together, the average cost of the policy is at most the worst case
# shown*, **if** the true cost density is one of those that the model can express. (`mode="theory"`
# keeps half of delta for the utility, which its regret theorem needs.)
#
# ### It speaks of the policy, not of the draw
#
# A policy may mix an action that exceeds the limit with one that stays below it. Then that action
# is sometimes drawn.

# %%
drawn = run.costs[np.arange(len(run)), 0, run.action]
print(
    "rounds in which the action drawn has a true mean cost above the limit: "
    f"{(drawn > LIMIT).mean():.0%}"
)
print(f"largest true cost of a policy: {run.cost.max():.3f}, limit {LIMIT}")
assert (drawn > LIMIT).any()
assert run.cost.max() <= LIMIT

# %% [markdown]
# If no *single* action may exceed the limit, choose `at_most` for that, or limit a probability
# (`models/chance.py`). And the limit is on the mean: a single outcome can exceed it by noise alone.
# Neither is a breach of what was promised.
#
# ## When not to trust it, 1: the bound is not exact
#
# `exact` bounds are maxima over the whole confidence set. `ascent` looks for the maximum by local
# search, which is nearly always right and never proved. `sampled` looks only at parameters that
# were drawn, and misses the worst ones. How far? Take an ellipsoid and a linear functional, for
# which the true maximum is known:

# %%
rng = np.random.default_rng(0)
found = {}
for dim in (2, 5, 20):
    draws = rng.standard_normal((200, 1024, dim))
    # uniform in the ball
    draws *= rng.random((200, 1024, 1)) ** (1 / dim) / np.linalg.norm(draws, axis=2, keepdims=True)
    found[dim] = draws[..., 0].max(axis=1).mean()  # the true maximum is 1
    print(
        f"{dim:>3} parameters: the largest of 1024 draws reaches {found[dim]:.0%} of the true "
        "worst case"
    )
assert found[20] < 0.7 < found[2]

# %% [markdown]
# That is why drawn parameters are for looking at, and a certificate that rests on them calls itself
# an *inner approximation*.
#
# ## When not to trust it, 2: the model cannot express the truth
#
# Let costs jump where the model has straight lines, so that two actions are dear at high contexts
# only.

# %%
jump = World(lambda x: [0.1, 0.2, 0.0] if x < 0.5 else [0.1, 0.8, 1.0])
run, alarms = played(jump, 120 if SMALL else 400, problem(), seed=1)
print(
    "certificates that say guarantee:",
    sum(c["constraints"][0]["guaranteed"] for c in run.certificates),
    "of",
    len(run),
)
print("rounds whose policy truly exceeds the limit:", int(run.infeasible.sum()))
for alarm in alarms:
    print(alarm.sentence)
assert run.infeasible.any()
assert alarms

# %% [markdown]
# The certificates are wrong here, and cannot know it: within the class of straight lines they are
# correct. What notices is the *guard*, which watches beside them. It bets against the limits (needs
# no model at all) and against the models' predictions, and raises an alarm when it has won too much
# to be luck. From then on the safe action alone is played:

# %%
after = next(i for i, c in enumerate(run.certificates) if c["fallback"])
print(
    f"first fallback in round {after}; safe action in all later rounds: "
    f"{bool((run.action[after:] == 0).all())}"
)
print(
    "rounds above the limit before it:",
    int(run.infeasible[:after].sum()),
    "| after it:",
    int(run.infeasible[after:].sum()),
)
assert (run.action[after:] == 0).all()
assert run.infeasible[after:].sum() == 0

# %% [markdown]
# ## When not to trust it, 3: the model is wrong where nobody looks
#
# Now the jump concerns one context in fifty only. Everything the guard can see fits.

# %%
rare = World(lambda x: [0.1, 0.2, 0.3 if x < 0.98 else 0.6])
run, alarms = played(rare, 150 if SMALL else 400, problem(), seed=1)
print(
    "rounds above the limit:", int(run.infeasible.sum()), "of", len(run), "| alarms:", len(alarms)
)
assert run.infeasible.any()
assert not alarms

# %% [markdown]
# **No alarm is no proof.** A wrong link function, a rare subgroup, an interaction that was left
# out: a guard needs evidence, and a rare error gives little. What helps is a richer model (its set
# is wider, and honest), results by segment (`segments(x)` in a script), and a limit with a margin.
#
# ## When not to trust it, 4: the noise is understated
#
# A linear-Gaussian model takes its noise as known. Stated too large is safe; stated too small makes
# sets too small. We count how often the set of 40 rows holds the truth, for a stated noise of 0.2.

# %%
REPEATS = 20 if SMALL else 100
truth = {"w": np.array([[0.1, 0.0], [0.2, 0.2], [0.5, 0.3]])}
cls = ged.density_class(straight_lines(0.2), bounds={"w": 3.0})
covered = {}
for noise in (0.1, 0.2, 0.6):
    inside = 0
    for seed in range(REPEATS):
        rng = np.random.default_rng(seed)
        x, a = rng.random((40, 1)), rng.integers(0, 3, 40)
        y = truth["w"][a, 0] + truth["w"][a, 1] * x[:, 0] + noise * rng.standard_normal(40)
        inside += ged.confidence_set(cls, x, a, y, delta=0.05).contains(truth)
    covered[noise] = inside / REPEATS
    print(
        f"true noise {noise}: the set holds the truth in {covered[noise]:.0%} of {REPEATS} "
        "repetitions"
    )
assert covered[0.1] == 1
assert covered[0.2] >= 0.9
assert covered[0.6] < 0.5

# %% [markdown]
# If you do not know the noise, make its scale a parameter. The bounds are then found by ascent.
#
# ## A checklist
#
# A certificate that says *guarantee* is one if
#
# 1. the outcome, given its context and action, follows some member of the class, whatever happened
#    before;
# 2. the safe action's value (`safe_value`), parameter `bounds` and functional ranges that you gave
#    are true;
# 3. whether and when an outcome is told does not depend on the outcome itself (patients who fare
#    badly must not drop out of the record);
# 4. you care about the policy's mean at this context, in this round;
# 5. no alarm has been raised, and you would still sleep well knowing that an alarm needs evidence
#    first.
#
# Exploration weights, the seed and the schedule of refits do not appear on the list: they change
# what is earned, never what is safe.
