"""A density taken apart into weighted leaves of one simple family each (NumPy, float64).

Mixtures and zero-inflated densities are sums of leaves, so whatever the numerical divergences need
(log-density, atoms, where the mass lies) is asked of the leaves alone. Densities with atoms and
densities on the line are compared with respect to one common measure: Lebesgue's plus a unit mass
on every atom.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from gedppl.density import Density, nested_in
from gedppl.errors import ParameterError
from gedppl.numerics.arrays import namespace, to_numpy

Shape = tuple[int, ...]
NUMPY = namespace()

_POSITIVE = ("scale", "concentration", "concentration1", "concentration0", "df", "alpha")
_NOT_NEGATIVE = ("rate", "total_count")
_UNIT = ("probs", "gate")


@dataclass(frozen=True)
class Leaf:
    """weight · density, the density of a simple family."""

    log_weight: np.ndarray
    density: Density

    @property
    def atomic(self) -> bool:
        return self.density.family == "Delta" or self.density.kind == "discrete"

    def log_prob(self, y: np.ndarray) -> np.ndarray:
        if self.density.family != "External":
            found: np.ndarray = self.log_weight + self.density.log_prob(y)
            return found
        with _float64(self.density):
            return self.log_weight + np.asarray(to_numpy(self.density.log_prob(y)), np.float64)

    def draw(self, rng: np.random.Generator, shape: Shape) -> np.ndarray:
        """Independent draws; `shape` ends in the batch shape, and event axes follow it."""
        if self.density.family == "External":
            with _float64(self.density):
                return np.asarray(
                    self.density.sample(int(rng.integers(2**31)), shape[0]), np.float64
                )
        return self.density.draw_samples(rng, shape)


def _float64(density: Density) -> AbstractContextManager[Any]:
    """JAX computes in float64 only inside this context."""
    if density.xp.name != "jax":
        return nullcontext()
    import jax

    found: AbstractContextManager[Any] = jax.enable_x64(True)
    return found


def in_numpy(density: Density) -> Density:
    """The density with float64 NumPy arguments, checked: no NaN, scales positive, probabilities
    in [0, 1].
    """
    return density.remade(
        lambda name, value: _checked(density.family, name, np.asarray(to_numpy(value), np.float64)),
        lambda _, part: in_numpy(part),
    )


def _checked(family: str, name: str, value: np.ndarray) -> np.ndarray:
    bad, rule = np.isnan(value), "a number"
    zero_allowed = (family, name) == ("VonMises", "concentration")
    if name in _POSITIVE and not zero_allowed:
        bad, rule = ~(value > 0), "positive"
    elif name in _NOT_NEGATIVE or zero_allowed:
        bad, rule = ~(value >= 0), "at least 0"
    elif name in _UNIT:
        bad, rule = ~((value >= 0) & (value <= 1 + 1e-12)), "in [0, 1]"
    if np.any(bad):
        raise ParameterError(
            f"{family}'s {name} must be {rule}, got {value[bad].flat[0]}; correct that argument"
        )
    return value


def spread(density: Density, shape: Shape, index: Any, trailing: Shape = ()) -> Density:
    """The densities at flat positions `index` of the batch `shape`: a batch of one axis (and the
    trailing ones).
    """

    def array(name: str, value: np.ndarray) -> np.ndarray:
        event = value.shape[value.ndim - density.spec.arg_ndim.get(name, 0) :]
        full = np.broadcast_to(value, (*shape, *trailing, *event))
        found: np.ndarray = full.reshape(-1, *trailing, *event)[index]
        return found

    return density.remade(
        array,
        lambda name, part: spread(part, shape, index, (*trailing, *density.own_axes(name, part))),
    )


def components(mixture: Density) -> list[Density]:
    """The components of a Mixture, each with the mixture's batch shape."""
    parts = nested_in(mixture.args["components"])
    if parts[0] is not mixture.args["components"]:
        return list(parts)
    return [parts[0][..., c] for c in range(mixture.args["probs"].shape[-1])]


def leaves(density: Density, log_weight: Any = 0.0) -> list[Leaf]:
    """The density as a sum of weighted leaves."""
    log_weight = np.asarray(log_weight, np.float64)
    with np.errstate(divide="ignore"):
        if density.family == "Mixture":
            weights = np.log(density.args["probs"])
            parts = enumerate(components(density))
            return [
                leaf for c, part in parts for leaf in leaves(part, log_weight + weights[..., c])
            ]
        if density.family == "ZeroInflated":
            gate = density.args["gate"]
            at_zero = Leaf(log_weight + np.log(gate), Density("Delta", {"v": np.zeros(())}))
            return [at_zero, *leaves(density.args["base"], log_weight + np.log1p(-gate))]
    return [Leaf(log_weight, density)]


def log_sum(parts: Sequence[Leaf], y: np.ndarray) -> np.ndarray:
    """log of the sum of the leaves at y; minus infinity for no leaves."""
    if not parts:
        return np.asarray(-np.inf)
    values = [leaf.log_prob(y) for leaf in parts]
    if len(values) == 1:
        return values[0]
    return np.asarray(np.logaddexp.reduce(np.stack(np.broadcast_arrays(*values)), axis=0))
