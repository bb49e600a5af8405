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
# # Plan a study: from a model to a protocol
#
# A first trial of a drug has five doses. A patient has a dose-limiting toxicity (DLT) or not, and
# the dose to find is the highest whose DLT probability is at most 0.33. Before the first patient a
# committee wants to know how such a trial would go. This tutorial takes the model of
# `models/escalation.py` through every question that it will ask.

# %%
import os
import sys
from pathlib import Path

import numpy as np

import gedppl as ged

sys.path.append(
    str(next(folder for folder in (Path("models"), Path("../models")) if folder.is_dir()))
)
import escalation  # the script, found by the line above

SMALL = bool(os.environ.get("GEDPPL_SMALL"))
REPLICATES, PATIENTS, DRAWS = (8, 24, 1000) if SMALL else (60, 36, 4000)
problem, everybody = escalation.problem(), np.zeros((1, 1))
print(problem)

# %% [markdown]
# The limit is `every_draw=True`: it holds for each patient and not for the average of a mixture.
# The bound is credible at level 0.75, which is escalation with overdose control: a dose is given if
# its probability of lying above the limit is at most 0.25. It trusts the model and its prior, for
# one decision at a time. It is no guarantee.
#
# ## Look before the first patient
#
# `check_problem` follows the path on which no bad outcome ever comes.

# %%
credible = {"confidence": ged.credible_set(0.75, source="smc", draws=4000)}
report = ged.check_problem(problem, everybody, runs=0, draws=100, agent=credible)
for text in report.warnings:
    print("-", text, "\n")
assert set(report.path) == {0}  # nobody would ever be treated

# %% [markdown]
# The first warning ends the trial before it begins: this prior puts the lowest dose above the limit
# with a probability slightly above 0.25. Nothing is wrong with the agent; nobody told it where to
# start. Protocols name a starting dose, and so does `escalation.Escalation`: the lowest dose is
# given where the agent gives none, until it lies above the limit with probability 0.9. Of these
# patients nothing is certified. It also never gives a dose before the one below it was given.
#
# ## A page for the protocol
#
# What do the next three patients get, after each outcome of the three before?

# %%
table = ged.decision_table(
    problem, np.zeros(1), 6 if SMALL else 15, cohort=3, agent=escalation.designed
)
print(table)
assert table.given[0] == "dose 1"

# %% [markdown]
# ## Operating characteristics
#
# `plan` simulates whole trials in worlds that you guess. Here the guesses are curves of DLT
# probabilities by hand: the usual one, where dose 5 is right, and a drug that is too toxic at any
# dose. The trial ends when only "no dose" is left.

# %%
stop = ged.StoppingRules(safe_share=1.0, window=1, first_look=1, every=1)
scenarios = {
    "usual": ged.Scenario(world=escalation.usual),
    "toxic": ged.Scenario(world=escalation.toxic),
}


def design(problem, delta, seed):
    return escalation.Escalation(problem, delta, seed, draws=DRAWS)


trials = ged.plan(
    problem,
    everybody,
    PATIENTS,
    scenarios=scenarios,
    replicates=REPLICATES,
    rules=stop,
    agent=design,
    recommend=escalation.named,
)
for row in trials.rows:
    print(row["scenario"])
    for name in (
        "trials",
        "correct selection share",
        "share treated above a limit",
        "mean outcome: toxicity",
        "stopped: futile",
    ):
        print(f"  {name}: {row[name]:.3g}")
    print("  patients by dose:", [round(row[f"rounds of {a}"], 1) for a in escalation.ACTIONS[1:]])
assert trials.rows[1]["stopped: futile"] > trials.rows[0]["stopped: futile"] or SMALL

# %% [markdown]
# `print(trials)` is the whole table, `trials.to_csv()` and `trials.protocol()` write it down;
# `python benchmarks/dose_trials.py` prints the same numbers over more trials, beside BOIN, CRM and
# 3+3.
#
# ## On average, or for every patient?
#
# The usual limit of a `Constraint` is on the policy's average. A mixture of "no dose" and the top
# dose keeps it, and some patients get the top dose. The same model and protocol, with the same
# credible bound:

# %%
mixed = ged.plan(
    escalation.problem(every_draw=False),
    everybody,
    PATIENTS,
    scenarios={"usual": scenarios["usual"]},
    replicates=REPLICATES,
    agent=design,
    recommend=escalation.named,
)
each, mean = (found.rows[0]["share treated above a limit"] for found in (trials, mixed))
print(
    f"of those treated, above the limit: {each:.1%} with a limit on every draw, {mean:.1%} with "
    "one on the average"
)
assert mean > each

# %% [markdown]
# No limit was broken in the second trial: its average was kept. It is another question, and a
# clinician asks the first.
#
# ## Does a credible bound keep its word?
#
# `check_coverage` draws truths from the prior and compares every bound with the truth. A bound at
# level 0.7 for one decision (at which the agent starts by itself) misses in more runs than a
# guarantee would, and is not called one.

# %%
cover = ged.check_coverage(
    problem,
    everybody,
    runs=2 if SMALL else 20,
    rounds=PATIENTS,
    agent={"confidence": ged.credible_set(0.7, source="smc")},
)
print(cover)
assert cover.kind("toxicity") == "credible"

# %% [markdown]
# ## The end of the trial
#
# Run one, and ask what to take from now on. Two rules of dose finders, side by side: the posterior
# mean nearest to 0.33, and the largest posterior probability of lying between 0.16 and 0.33.

# %%
one = design(problem, 0.05, 1)
run = ged.simulate(problem, escalation.environment(), one, PATIENTS, seed=1)
print("doses given:", [escalation.ACTIONS[a] for a in run.action])
for rule in ("nearest", "interval"):
    print(f"{rule}: {escalation.ACTIONS[one.recommended(np.zeros(1), rule)]}")
print(one.agent.recommend(np.zeros(1), "nearest", tried=True))

# %% [markdown]
# ## What to remember
#
# - A prior can hide an action for good where a limit holds on every draw. `check_problem` walks the
#   path before you do.
# - A credible limit trusts model and prior. It is cheap, it borrows strength, and its certificate
#   never says "guarantee".
# - What a recommendation claims is in its certificate; what a design does over many trials is in
#   its plan.
