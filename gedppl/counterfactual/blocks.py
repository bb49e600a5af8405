"""A whole block of counterfactual rounds at once.

Between two refits scores and cost bounds are frozen, and the rounds of such a block are a greedy
ascent of

    Σ_a score_a x_a + β Σ_a log(count_a + x_a),
        x ≥ 0,  Σ_a x_a = n,  Σ_a excess_{j,a} x_a ≤ 0 for each limit j,

where x_a is what action a's count gains in n rounds. The potential is separable and concave, so
what a greedy walk reaches is its maximum: vessels filled to one level, count_a + x_a = max(count_a,
β / (λ + Σ_j μ_j excess_{j,a} - score_a)). A filling only rises, so where it ends depends on the
last β alone.

The maximum is found by a primal-dual interior point method with J + 1 equations in the multipliers,
the same for any J. It is compiled once for a number of actions and limits and runs through all
blocks without coming back to Python: a step costs about a microsecond, which an array library
called step by step cannot do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

# sizes the compiled loop is made for; a larger cohort goes in pieces of the last
CONTEXTS = (1, 8, 64, 512)
MOST_STEPS = 60
GAP = 1e-17  # complementarity at which today's filling stops, in units of the score range times n
# the same for past blocks, whose shares need not be told apart as finely: they are not played
PAST_GAP = 1e-13


@dataclass(frozen=True)
class Filled:
    """count (C, K) before the last block, gain (C, K) in it, surplus (C,) the worst excess of any
    block, a share of n.

    share (C, B, K): how each block's rounds were divided.
    """

    count: np.ndarray
    gain: np.ndarray
    surplus: np.ndarray
    share: np.ndarray


def fill_blocks(
    score: np.ndarray,
    excess: np.ndarray,
    usable: np.ndarray,
    beta: np.ndarray,
    rounds: np.ndarray,
    pulls: np.ndarray,
) -> Filled:
    """Fill block after block, for C contexts.

    Parameters
    ----------
    score
        (C, B, K), finite.
    excess
        (C, B, J, K) cost bound minus limit, rows at most about 1 in size. In every block some
        mixture of usable actions must lie strictly below 0 in all rows, else `surplus` comes back
        positive.
    usable
        (C, B, K) booleans, at least one True in each block.
    beta
        (B,) weight of the bonus at the end of each block.
    rounds
        (B,) the blocks' lengths, positive.
    pulls
        (K,) positive: counts before the first block, the "+1" of E[1/(N+1)] included.

    Notes
    -----
    Where β is 0, a trace of it (1e-8 of the score range) remains: it sends ties to the least played
    action.
    """
    import jax

    n_contexts, n_blocks = score.shape[:2]
    size = next((size for size in CONTEXTS if n_contexts <= size), CONTEXTS[-1])
    length = 128  # more than `counterfactual` merges a history into at the usual pace of refits
    while length < n_blocks:
        length *= 4
    # scores enter only up to a constant, and precisely only once that is taken away
    score = score - np.where(usable, score, -np.inf).max(axis=2, keepdims=True)
    score = np.where(usable, score, 0.0)
    pieces = []
    with jax.enable_x64(True):
        run = _compiled()
        for first in range(0, n_contexts, size):
            some = slice(first, first + size)
            arrays = [_padded(array[some], size, length) for array in (score, excess, usable)]
            steps = [_padded(array[None], 1, length)[0] for array in (beta, rounds.astype(float))]
            done = run(*arrays, *steps, pulls, n_blocks)
            pieces.append([np.asarray(part)[: min(size, n_contexts - first)] for part in done])
    count, gain, surplus, share = (np.concatenate(parts) for parts in zip(*pieces))
    return Filled(count, gain, surplus, share[:, :n_blocks])


def _padded(array: np.ndarray, size: int, length: int) -> np.ndarray:
    """The first axis grown to `size` by repeating its first row, the second to `length` with
    zeros (never read).
    """
    out = np.zeros((size, length, *array.shape[2:]), array.dtype)
    out[:, : array.shape[1]] = array[:1]
    out[: len(array), : array.shape[1]] = array
    return out


@lru_cache(maxsize=1)
def _compiled() -> Any:
    """The compiled loop over blocks, for all contexts side by side; made on first use, as it
    needs JAX.
    """
    import jax
    import jax.numpy as jnp
    from jax import lax

    def filling(
        count: jax.Array,
        score: jax.Array,
        excess: jax.Array,
        usable: jax.Array,
        beta: jax.Array,
        n: jax.Array,
        enough: jax.Array,
    ) -> Any:
        """One block: shares y (K,) of its n rounds.

        Newton steps on  gradient + λ + excess' μ = z,  Σy = 1,  excess y + s = 0,  y z = target,  s
        μ = target.
        """
        k, n_limits = usable.sum(), len(excess)
        spread = -jnp.min(score)
        beta = jnp.maximum(beta, 1e-8 * spread + 1e-12)
        scale = spread + jnp.max(jnp.where(usable, beta / count, 0.0))

        def room(value: jax.Array, change: jax.Array) -> Any:
            """The longest step that keeps `value` positive."""
            return jnp.min(
                jnp.where(change < 0, -value / jnp.minimum(change, -1e-300), jnp.inf),
                initial=jnp.inf,
            )

        def gap(y: jax.Array, z: jax.Array, s: jax.Array, mu: jax.Array) -> Any:
            return (jnp.sum(jnp.where(usable, y * z, 0.0)) + jnp.sum(s * mu)) / (k + n_limits)

        def unsettled(state: tuple[jax.Array, ...]) -> Any:
            y, z, s, mu, _, speed, i = state
            return (i < MOST_STEPS) & ((gap(y, z, s, mu) > enough) | (speed < 0.9))

        def step(state: tuple[jax.Array, ...]) -> Any:
            y, z, s, mu, lam, speed, i = state
            target = gap(y, z, s, mu) * jnp.where(speed > 0.9, 0.02, 0.2)
            level = count + n * y
            pull = lam + mu @ excess - (score + beta / level) / scale
            flow = jnp.where(usable, 1.0 / (beta * n / level**2 / scale + z / y), 0.0)
            push = flow * (target / y - pull)
            rows = jnp.concatenate([jnp.ones_like(score)[None], excess])
            matrix = (rows * flow) @ rows.T + jnp.diag(jnp.concatenate([jnp.zeros(1), s / mu]))
            wanted = rows @ push + rows @ jnp.where(usable, y, 0.0)
            wanted = wanted + jnp.concatenate([-jnp.ones(1), target / mu])
            change = _solve(matrix, wanted)
            dy = push - flow * (change @ rows)
            dz = (target - z * dy) / y - z
            dmu = change[1:]
            ds = target / mu - s - s / mu * dmu
            primal = jnp.minimum(1.0, 0.995 * jnp.minimum(room(y, dy), room(s, ds)))
            dual = jnp.minimum(
                1.0, 0.995 * jnp.minimum(room(z, jnp.where(usable, dz, 0.0)), room(mu, dmu))
            )
            return (
                y + primal * dy,
                jnp.where(usable, z + dual * dz, 1.0),
                s + primal * ds,
                mu + dual * dmu,
                lam + dual * change[0],
                jnp.minimum(primal, dual),
                i + 1,
            )

        def _solve(matrix: jax.Array, right: jax.Array) -> Any:
            """Cholesky by hand: these systems have 1 to 4 rows, far below what a library call
            costs.
            """
            size = len(right)
            lower: dict[tuple[int, int], Any] = {}
            for r in range(size):
                for c in range(r + 1):
                    rest = matrix[r, c] - sum(
                        (lower[r, m] * lower[c, m] for m in range(c)), start=jnp.zeros(())
                    )
                    # limits that say nearly the same leave a pivot of rounding alone
                    lower[r, c] = (
                        jnp.sqrt(jnp.maximum(rest, 1e-15 * matrix[r, r]))
                        if r == c
                        else rest / lower[c, c]
                    )
            half: list[Any] = []
            for r in range(size):
                half.append(
                    (right[r] - sum((lower[r, m] * half[m] for m in range(r)), start=jnp.zeros(())))
                    / lower[r, r]
                )
            full: list[Any] = [None] * size
            for r in reversed(range(size)):
                later = sum(
                    (lower[m, r] * full[m] for m in range(r + 1, size)), start=jnp.zeros(())
                )
                full[r] = (half[r] - later) / lower[r, r]
            return jnp.stack(full)

        start = (
            jnp.where(usable, 1.0 / k, 1.0),
            jnp.ones_like(score),
            jnp.ones(n_limits),
            jnp.ones(n_limits),
            jnp.zeros(()),
            jnp.zeros(()),
            jnp.zeros((), int),
        )
        y = jnp.where(usable, lax.while_loop(unsettled, step, start)[0], 0.0)
        return y / jnp.sum(y)

    def context(
        score: jax.Array,
        excess: jax.Array,
        usable: jax.Array,
        beta: jax.Array,
        rounds: jax.Array,
        pulls: jax.Array,
        n_blocks: jax.Array,
    ) -> Any:
        def block(b: jax.Array, state: tuple[jax.Array, ...]) -> Any:
            count, gain, surplus, shares = state
            count = count + gain
            enough = jnp.where(b == n_blocks - 1, GAP, PAST_GAP)
            share = filling(count, score[b], excess[b], usable[b], beta[b], rounds[b], enough)
            surplus = jnp.maximum(surplus, jnp.max(excess[b] @ share, initial=-1.0))
            return count, rounds[b] * share, surplus, shares.at[b].set(share)

        empty = jnp.zeros_like(pulls)
        begin = (pulls, empty, jnp.full((), -1.0), jnp.zeros_like(score))
        count, gain, surplus, shares = lax.fori_loop(0, n_blocks, block, begin)
        return count - pulls, gain, surplus, shares

    return jax.jit(jax.vmap(context, in_axes=(0, 0, 0, None, None, None, None)))
