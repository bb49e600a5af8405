"""Dose finding, written in Pyro: the same `Problem`, `ask` and `tell`, another probabilistic
programming language.

Four doses of a drug. Response and toxicity grow with the dose and depend on the patient; the dose
given must keep the probability of toxicity under 0.25. Both models are Pyro programs with a linear
logit, so bounds are exact here too:

    response ~ Bernoulli(logit = b + x'w + g dose),
        toxicity ~ Bernoulli(logit = b' + x'w' + g' dose)

Simulated, truth known.

Needs Pyro:  pip install '.[pyro]'
Run:  gedppl run models/pyro_dosing.py --rounds 500
"""

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from scipy.special import expit

import gedppl as ged

AT_MOST = 0.25
DOSES = np.array([0.0, 0.4, 0.7, 1.0])
ACTIONS = [f"dose {dose:g}" for dose in DOSES]
COLUMNS = ("weight", "kidney function")
# intercept, slopes, gain
RESPONSE, TOXICITY = np.array([-1.0, -0.5, 0.2, 3.0]), np.array([-4.0, -0.5, -0.8, 4.0])
PLACEBO_TOXICITY = 0.12  # an upper bound, from experience with the placebo


def binary(x, a, y=None):
    w = pyro.sample("w", dist.Normal(torch.tensor([-2.0, 0.0, 0.0, 1.0]), 2.0).to_event(1))
    dose = torch.as_tensor(DOSES, dtype=x.dtype)[a]
    logits = w[0] + x @ w[1:3] + w[3] * dose
    pyro.sample("y", dist.Bernoulli(logits=logits).to_event(0), obs=y)


def problem(at_most=AT_MOST):
    example = (np.zeros((1, 2)), np.zeros(1, int))
    response, toxicity = (ged.density_class(binary, example=example) for _ in range(2))
    return ged.Problem(
        n_actions=len(DOSES),
        utility=ged.Utility(response, ged.mean(0, 1)),
        constraints=[
            ged.Constraint(
                toxicity,
                ged.mean(0, 1),
                at_most=at_most,
                safe_value=PLACEBO_TOXICITY,
                name="toxicity",
            )
        ],
        safe_action=0,
    )


class World:
    def context(self, rng):
        return np.clip(rng.standard_normal(2), -1.5, 1.5)

    def probabilities(self, x, truth):
        return expit(truth[0] + truth[1:3] @ x + truth[3] * DOSES)

    def outcome(self, x, action, rng):
        u = rng.random(2)
        return float(u[0] < self.utilities(x)[action]), float(u[1] < self.costs(x)[0, action])

    def utilities(self, x):
        return self.probabilities(x, RESPONSE)

    def costs(self, x):
        return self.probabilities(x, TOXICITY)[None]


def environment():
    return World()


def segments(x):
    return {"kidney function": "weak" if x[1] < 0 else "strong"}
