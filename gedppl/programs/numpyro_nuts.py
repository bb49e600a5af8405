"""Posterior draws of a NumPyro program's flat parameters by NUTS."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC, NUTS

from gedppl.oracles.fits import WorkingPrior
from gedppl.programs import LOCK
from gedppl.rows import Rows


def draw_posterior(cls: Any, rows: Rows, start: np.ndarray, n: int, seed: int, warmup: int = 300) -> np.ndarray:
    """n draws (n, D) of theta given rows, from one chain that starts at ``start`` (D,).

    Parameters without a prior get the weak working prior: without one their posterior might not exist.
    """
    program, weak = cls.program, WorkingPrior.weak(cls)
    with LOCK, jax.enable_x64(True):  # the potential runs the user's program when it is compiled
        history = tuple(jnp.asarray(array) for array in rows.padded())
        mean, precision = jnp.asarray(weak.mean), jnp.asarray(weak.precision)
        x, a = jnp.asarray(program.x), jnp.asarray(program.a)

        def potential(theta: Any) -> Any:
            prior = program.run(theta, x, a).log_prior - 0.5 * jnp.sum(precision * (theta - mean) ** 2)
            return -(program._sum(theta, *history) + prior)

        chain = MCMC(NUTS(potential_fn=potential), num_warmup=warmup, num_samples=n, progress_bar=False)
        chain.run(jax.random.PRNGKey(seed), init_params=jnp.asarray(start, jnp.float64))
        return np.array(chain.get_samples(), float)
