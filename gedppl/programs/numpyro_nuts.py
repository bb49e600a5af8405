"""Posterior draws of a NumPyro program's flat parameters by NUTS, compiled once a bucket of rows.

The chains run in coordinates z with theta = centre + root @ z, in which the posterior is roughly
standard: they then need little warm-up. All chains are one compiled function of the padded rows, so
that growing data compile again in a new bucket only.

This and `pyro_nuts` are two on purpose: here all chains are one compiled function, there Pyro's own
loop drives a recorded graph, and what they share, the summary, is in `chains`.

Axis letters: C chains, S draws of a chain, D flat parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer.hmc import hmc

from gedppl.programs.chains import Chains, summarised
from gedppl.rows import Rows

if TYPE_CHECKING:
    from gedppl.learning.fits import WorkingPrior


def run_chains(
    cls: Any,
    rows: Rows,
    weak: WorkingPrior,
    centre: np.ndarray,
    root: np.ndarray,
    starts: np.ndarray,
    size: int,
    warmup: int,
    seed: int,
) -> Chains:
    """C chains of `size` draws each of theta given rows, from starts (C, D) in the coordinates z.

    Parameters without a prior get the weak working prior: without one their posterior might not
    exist.
    """
    program = cls.program

    def chains(
        z: jax.Array,
        words: jax.Array,
        centre: jax.Array,
        root: jax.Array,
        mean: jax.Array,
        precision: jax.Array,
        x1: jax.Array,
        a1: jax.Array,
        *history: tuple[jax.Array, ...],
    ) -> Any:
        def potential(z: jax.Array) -> Any:
            theta = centre + root @ z
            prior = program.run(theta, x1, a1).log_prior - 0.5 * jnp.sum(
                precision * (theta - mean) ** 2
            )
            return -(program.weighted_sum(theta, *history) + prior)

        def one(z: jax.Array, words: jax.Array) -> Any:
            start, step = hmc(potential, algo="NUTS")
            state = start(z, warmup, rng_key=jax.random.wrap_key_data(words))

            def go_on(state: jax.Array, _: None) -> Any:
                state = step(state)
                return state, (state.z, state.diverging)

            return jax.lax.scan(go_on, state, length=warmup + size)[1]

        z, diverging = jax.vmap(one)(z, words)
        return centre + z[:, warmup:] @ root.T, diverging[:, warmup:]

    words = np.random.default_rng([seed, 3]).integers(0, 2**32, (len(starts), 2), dtype=np.uint32)
    fixed = (centre, root, weak.mean, weak.precision, program.x, program.a)
    theta, diverging = program.call(
        "nuts", chains, starts, words, *fixed, *program.remember(rows), static=(size, warmup)
    )
    theta = np.array(theta, float)
    return summarised(
        theta, int(np.sum(diverging)), effective_sample_size(theta), split_gelman_rubin(theta)
    )
