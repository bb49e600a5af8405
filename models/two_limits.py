"""Two limits at once: answer requests well, rarely harmfully, and fast enough.

Four engines answer requests. Each answer has a quality, may be reported as harmful, and takes time.
Both limits hold for every request, in expectation over the policy's draw; the policy then mixes up
to three engines (an exact linear programme).

    quality ~ Normal(x'w_a, 0.2)                      maximise its mean
    harmful ~ Bernoulli(logit = v_a + u difficulty)   P(harmful) <= 0.20
    seconds ~ Normal(x's_a, 0.3)                      E seconds  <= 1.2

Every model has a linear predictor: bounds are exact. Simulated, truth known.

Needs nothing but gedppl.
Run:  gedppl run models/two_limits.py --rounds 1000
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import expit

import gedppl as ged

ACTIONS = ("small engine", "A", "B", "C")
COLUMNS = ("one", "difficulty")
QUALITY = np.array([[0.30, 0.0], [0.55, 0.1], [0.75, -0.1], [0.70, 0.25]])
HARMFUL, HARDER = np.array([-4.5, -3.0, -2.0, -2.5]), 1.0  # logits
SECONDS = np.array([[0.2, 0.0], [0.6, 0.2], [0.8, 0.2], [1.4, 1.0]])
QUALITY_NOISE, SECONDS_NOISE = 0.2, 0.3


def real_valued(scale):
    def model(x, a, y=None):
        w = numpyro.param("w", jnp.zeros(QUALITY.shape))
        numpyro.sample("y", dist.Normal((w[a] * x).sum(-1), scale), obs=y)

    return model


def yes_or_no(x, a, y=None):
    v = numpyro.sample("v", dist.Normal(-2.0, 1.0).expand([4]).to_event(1))
    u = numpyro.sample("u", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Bernoulli(logits=v[a] + u * x[:, 1]), obs=y)


def problem():
    example = (np.ones((1, 2)), np.zeros(1, int))

    def cls(model, **options):
        return ged.density_class(model, example=example, **options)

    return ged.Problem(
        n_actions=4,
        utility=ged.Utility(cls(real_valued(QUALITY_NOISE), bounds={"w": 2.0}), ged.mean(0, 1)),
        constraints=[
            ged.Constraint(
                cls(yes_or_no), ged.mean(0, 1), at_most=0.20, safe_value=0.03, name="harmful"
            ),
            ged.Constraint(
                cls(real_valued(SECONDS_NOISE), bounds={"w": 4.0}),
                ged.mean(0, 3),
                at_most=1.2,
                safe_value=0.2,
                name="seconds",
            ),
        ],
        safe_action=0,
        safe_utility=0.3,
    )


class World:
    def context(self, rng):
        return np.array([1.0, rng.random()])

    def outcome(self, x, action, rng):
        quality = QUALITY[action] @ x + QUALITY_NOISE * rng.standard_normal()
        seconds = SECONDS[action] @ x + SECONDS_NOISE * rng.standard_normal()
        return quality, {
            "harmful": float(rng.random() < expit(HARMFUL[action] + HARDER * x[1])),
            "seconds": seconds,
        }

    def utilities(self, x):
        return QUALITY @ x

    def costs(self, x):
        return np.stack([expit(HARMFUL + HARDER * x[1]), SECONDS @ x])


def environment():
    return World()


def segments(x):
    return {"difficulty": "hard" if x[1] > 0.5 else "easy"}
