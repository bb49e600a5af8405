"""All that is asked of a program once, before anything else, in one compiled function.

Where fits start, whether the log-density is a number there, whether rows stand apart, and the shape
of a Gaussian prior: each is one small question, but each would be a compilation of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gedppl.programs.contract import away_from
from gedppl.programs.tracing import TRIALS

if TYPE_CHECKING:
    from gedppl.programs.jax_kernels import JaxKernels

STARTING_DRAWS = 99  # odd, so that the median is one of them
SMALL = 64  # parameters up to which the prior's Hessian is looked at here


class FirstLook(NamedTuple):
    """initial (D,); log-likelihoods (2, 3) of three rows among many and each alone, at two
    settings; the log-prior ().

    For a linear-Gaussian program also the log-prior's gradients (2, D) and Hessians (2, D, D) at
    `initial` and away from it.
    """

    initial: np.ndarray
    together: np.ndarray
    alone: np.ndarray
    log_prior: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray


def first_look(
    program: JaxKernels, x: np.ndarray, a: np.ndarray, initial: np.ndarray | None = None
) -> FirstLook:
    """Look at rows x (3, dx), a (3,). Without `initial`: `param` sites at their own start, the
    others at a prior median.
    """
    small = (
        program.dim <= SMALL
        and program.predictor is not None
        and program.predictor.family == "Normal"
    )

    def start(words: jax.Array, x: jax.Array, a: jax.Array) -> Any:
        free = program.run(None, x, a, given="start").free
        theta = jnp.concatenate(
            [
                jnp.zeros(s.stop - s.start) if s.prior else jnp.ravel(free[s.name])
                for s in program.sites
            ]
            or [jnp.zeros(0)]
        )
        if not any(site.prior for site in program.sites):
            return theta

        def draw(words: jax.Array) -> Any:
            free = program.run(theta, x, a, given="draw", key=jax.random.wrap_key_data(words)).free
            return jnp.concatenate([jnp.ravel(free[site.name]) for site in program.sites])

        drawn = jax.vmap(draw)(words)
        # `jnp.median` of an odd number, without its interpolation, which is slow to compile
        middle = jnp.sort(drawn, axis=0)[STARTING_DRAWS // 2]
        middle = jnp.where(jnp.isnan(drawn).any(axis=0), jnp.nan, middle)
        return jnp.concatenate(
            [(middle if s.prior else theta)[s.start : s.stop] for s in program.sites]
        )

    def function(
        words: jax.Array, given: jax.Array, use: jax.Array, x: jax.Array, a: jax.Array
    ) -> Any:
        initial = jnp.where(use, given, start(words, x[:1], a[:1]))
        there = program.run(initial, x, a)
        y = jnp.zeros((3, *program.event_shape))
        y = jnp.asarray(there.observed.support.feasible_like(y), float)
        theta = jnp.stack([initial, initial + 0.3 * jnp.cos(1 + jnp.arange(program.dim))])

        def logs(*rows: jax.Array) -> Any:
            return jax.vmap(lambda one: program.row_log_likelihood(one, *rows))(theta)

        # `map` goes through the program once for all three
        alone = jax.lax.map(lambda row: logs(*row)[:, 0], (x[:, None], a[:, None], y[:, None])).T
        many = [jnp.tile(rows, (TRIALS // 3,) + (1,) * (rows.ndim - 1)) for rows in (x, a, y)]
        together = logs(*many)[:, :3]
        if not small:
            d = program.dim
            nothing = jnp.zeros((0, d)), jnp.zeros((0, d, d))
            return FirstLook(initial, together, alone, there.log_prior, *nothing)

        def slope(one: jax.Array) -> Any:
            found = jax.grad(lambda one: program.run(one, x[:1], a[:1]).log_prior)(one)
            return found, found

        def bend(one: jax.Array) -> Any:
            return jax.jacfwd(slope, has_aux=True)(one)

        bends, slopes = jax.vmap(bend)(jnp.stack([initial, away_from(initial)]))
        return FirstLook(initial, together, alone, there.log_prior, slopes, bends)

    words = np.random.default_rng([0, 2]).integers(0, 2**32, (STARTING_DRAWS, 2), dtype=np.uint32)
    given = np.zeros(program.dim) if initial is None else initial
    out = program.call("first_look", function, words, given, np.array(initial is not None), x, a)
    return FirstLook(*(np.array(part) for part in out))
