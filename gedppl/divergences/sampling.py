"""Divergences by Monte Carlo: draws from both densities, so that the weights stay bounded.

With m = (p + q)/2 and r = log q − log p,

    H² = E_m[1 − sech(r/2)],    TV = E_m|tanh(r/2)|,    L2² = E_m[4 m tanh²(r/2)].

Half of the draws come from p and half from q (two strata of m), which never costs precision and
often adds some.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gedppl.density import Density
from gedppl.divergences.leaves import Leaf, Shape, leaves, log_sum

_BLOCK = 1 << 18  # numbers drawn at once


def weight(kind: str, log_p: np.ndarray, log_q: np.ndarray) -> np.ndarray:
    """The random variable whose mean under m is the divergence."""
    gap = np.abs(log_p - log_q)
    if kind == "hellinger2":
        answer: np.ndarray = np.expm1(-gap / 2) ** 2 / (1 + np.exp(-gap))
        return answer
    tanh: np.ndarray = -np.expm1(-gap) / (1 + np.exp(-gap))
    if kind == "total_variation":
        return tanh
    found: np.ndarray = 2 * np.exp(np.logaddexp(log_p, log_q)) * tanh**2
    return found


def monte_carlo(
    kind: str, p: Density, q: Density, n_draws: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The divergence and its standard error, both of the common batch shape.

    Draws are independent between the entries of a batch.
    """
    shape = np.broadcast_shapes(p.batch_shape, q.batch_shape)
    parts = (leaves(p), leaves(q))
    rng = np.random.default_rng(seed)
    per_stratum = max(n_draws // 2, 2)
    step = max(1, _BLOCK // max(math.prod(shape) * math.prod(p.event_shape), 1))
    value, variance = np.zeros(shape), np.zeros(shape)
    with np.errstate(all="ignore"):
        for source in parts:
            count, mean, spread = 0, np.zeros(shape), np.zeros(shape)
            for start in range(0, per_stratum, step):
                n = min(step, per_stratum - start)
                y = _draw(source, rng, n, shape)
                w = weight(kind, _log_density(parts[0], parts, y), _log_density(parts[1], parts, y))
                # Chan's update: mean and sum of squared deviations, block by block
                block_mean = w.mean(axis=0)
                shift = block_mean - mean
                spread = (
                    spread
                    + ((w - block_mean) ** 2).sum(axis=0)
                    + shift**2 * count * n / (count + n)
                )
                mean = mean + shift * n / (count + n)
                count += n
            value = value + mean / 2
            variance = variance + spread / (per_stratum - 1) / per_stratum / 4
    return value, np.sqrt(variance)


def _log_density(
    own: Sequence[Leaf], both: tuple[list[Leaf], list[Leaf]], y: np.ndarray
) -> np.ndarray:
    """log of the density with respect to Lebesgue's measure plus a unit mass on every atom of
    either.
    """
    atoms = [leaf for leaf in (*both[0], *both[1]) if leaf.atomic]
    if not atoms:
        return log_sum(own, y)
    on_atom = log_sum(atoms, y) > -np.inf
    atomic = log_sum([leaf for leaf in own if leaf.atomic], y)
    return np.where(on_atom, atomic, log_sum([leaf for leaf in own if not leaf.atomic], y))


def _draw(parts: Sequence[Leaf], rng: np.random.Generator, n: int, shape: Shape) -> np.ndarray:
    """n draws from the sum of the leaves, (n, *shape, *event)."""
    if len(parts) == 1:
        return parts[0].draw(rng, (n, *shape))
    weights = np.stack([np.broadcast_to(np.exp(leaf.log_weight), shape) for leaf in parts])
    upto = np.cumsum(weights, axis=0)
    which = (rng.uniform(size=(n, 1, *shape)) * upto[-1] > upto[:-1]).sum(axis=1)  # (n, *shape)
    y: np.ndarray | None = None
    for index, leaf in enumerate(parts):
        drawn = leaf.draw(rng, (n, *shape))
        chosen = (which == index).reshape(which.shape + (1,) * (drawn.ndim - which.ndim))
        y = drawn if y is None else np.where(chosen, drawn, y)
    assert y is not None
    return y
