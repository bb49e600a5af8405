"""The unit of each parameter that has no prior: how far it must move for one outcome to notice.

Working priors and particles need a width. In the parameters' own numbers it would depend on the
units of contexts and outcomes: a coefficient of nanoseconds is a billion times one of seconds. So
it is counted in standard errors of one outcome,

    unit_j = 1 / sqrt(I_j),
        I_j = max_a mean_x (information of one outcome at x, a about theta_j at the initial
        parameters),

or, for a linear predictor, in what moves it by one. Contexts alone enter, which are known before
their outcomes: coverage never rests on it.

Axis letters: n contexts, K actions, D flat parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gedppl.learning.likelihoods import Likelihood

PROBES = 16  # contexts looked at: always as many, so that a backend compiles one shape
ENOUGH = 64  # rows after which units stay as they are


def parameter_units(
    empty: Likelihood, initial: np.ndarray, x: np.ndarray, n_actions: int
) -> np.ndarray:
    """(D,) from contexts x (n, dx); 1 for a coordinate that no outcome there depends on."""
    some = x[np.linspace(0, len(x) - 1, PROBES).astype(np.int64)]
    told = [
        empty.expected_information(initial, some, np.full(PROBES, action, np.int64))
        for action in range(n_actions)
    ]
    most = np.max(np.where(np.isfinite(told), told, 0.0), axis=0)
    return np.where(most > 0, 1 / np.sqrt(np.where(most > 0, most, 1.0)), 1.0)
