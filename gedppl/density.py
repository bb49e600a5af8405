"""A density: the name of a family and its argument arrays.

This is the narrow waist. Backends turn a probabilistic program into these objects; nothing after
them knows which probabilistic programming language the model was written in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gedppl.errors import FamilyError
from gedppl.families import Family
from gedppl.families import bounded as families_bounded  # noqa: F401 (register)
from gedppl.families import composite as families_composite  # noqa: F401 (register)
from gedppl.families import discrete as families_discrete  # noqa: F401 (register)
from gedppl.families import positive as families_positive  # noqa: F401 (register)
from gedppl.families.family import FAMILIES
from gedppl.numerics.arrays import Namespace, library, namespace
from gedppl.numerics.integrate import lattice
from gedppl.numerics.quantiles import external_draws, quantile

Array = Any


@dataclass(frozen=True, eq=False, repr=False)
class Density:
    """A batch of densities of one family.

    Parameters
    ----------
    family
        A name registered in `gedppl.families`, e.g. ``"Normal"``.
    args
        Argument arrays (NumPy, JAX or torch) that broadcast to the batch shape, ``(n,)`` or ``(M,
        n)``, or nested densities (``"Mixture"``, ``"ZeroInflated"``, ``"Independent"``).

    Notes
    -----
    Every method is written against the namespace of the arguments, so it traces and differentiates
    where they do.

    >>> p = Density("Normal", {"loc": np.zeros(3), "scale": 2.0})
    >>> p
    Normal(loc (3,), scale ()) with batch shape (3,)
    >>> p.log_prob(1.0).round(4)
    array([-1.7371, -1.7371, -1.7371])
    """

    family: str
    args: Mapping[str, Any]

    def __post_init__(self) -> None:
        expected = set(FAMILIES[self.family].args)
        if set(self.args) != expected:
            raise FamilyError(
                f"{self.family} takes the arguments {', '.join(FAMILIES[self.family].args)}; got "
                f"{', '.join(self.args) or 'none'}"
            )

    # the parts ------------------------------------------------------------------------------------

    @property
    def spec(self) -> Family:
        """The registered `Family`."""
        return FAMILIES[self.family]

    @cached_property
    def xp(self) -> Namespace:
        """The array namespace that the arguments share."""
        if self.family == "External":
            return _namespace_of_distribution(self.args["distribution"])
        return namespace(*self.leaves())

    @cached_property
    def arrays(self) -> dict[str, Any]:
        """The arguments as float arrays of one library; nested densities and static arguments as
        they are.
        """
        xp = self.xp
        return {
            name: xp.asfloat(value) if self._is_array(name) else value
            for name, value in self.args.items()
        }

    def _is_array(self, name: str) -> bool:
        return name not in self.spec.static and not nested_in(self.args[name])

    @property
    def kind(self) -> str:
        """``"continuous"``, ``"discrete"``, ``"mixed"``, ``"vector"`` or ``"external"``."""
        return self.spec.kind_of(self.args)

    @property
    def is_scalar(self) -> bool:
        """Whether an outcome is one number."""
        return self.kind in ("continuous", "discrete", "mixed") and not self.event_shape

    @property
    def batch_shape(self) -> tuple[int, ...]:
        if self.family == "External":
            return tuple(self.args["distribution"].batch_shape)
        if self.family == "Independent":
            full: tuple[int, ...] = self.args["base"].batch_shape
            return full[: len(full) - self.args["event_ndim"]]
        shapes: list[tuple[int, ...]] = []
        for name, value in self.args.items():
            inner = nested_in(value)
            if inner:
                # stacked components have an axis of their own
                stacked = name == "components" and inner[0] is value
                shapes += [part.batch_shape[:-1] if stacked else part.batch_shape for part in inner]
            else:
                shape = tuple(np.shape(value))
                shapes.append(shape[: len(shape) - self.spec.arg_ndim.get(name, 0)])
        return tuple(np.broadcast_shapes(*shapes))

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of one outcome: () for numbers."""
        if self.family == "External":
            return tuple(self.args["distribution"].event_shape)
        if self.family == "Independent":
            base: Density = self.args["base"]
            return (
                base.batch_shape[len(base.batch_shape) - self.args["event_ndim"] :]
                + base.event_shape
            )
        if self.family == "Mixture":
            return nested_in(self.args["components"])[0].event_shape
        first = self.args[self.spec.args[0]]
        return tuple(np.shape(first))[np.ndim(first) - 1 :] if self.spec.event_ndim else ()

    # what it says of an outcome -------------------------------------------------------------------

    def _known(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] | None = getattr(self.spec, name)
        if function is None:
            raise FamilyError(
                f"the family {self.family} has no {name}; give it one: "
                "register_family(dataclasses.replace("
                f"get_family({self.family!r}), {name}=lambda args, ..., xp: ...))"
            )
        return function

    def log_prob(self, y: Array) -> Array:
        """Log-density (or log-mass) at y, which broadcasts against the batch shape; minus
        infinity off the support.
        """
        xp = self.xp
        y = xp.asarray(y) if self.family == "External" else xp.asfloat(y)
        return self.spec.log_prob(self.arrays, y, xp)

    def cdf(self, y: Array) -> Array:
        """P(Y <= y)."""
        if self.spec.cdf is None and self.kind == "discrete":
            return self._summed_up_to(self.xp.asfloat(y))
        return self._known("cdf")(self.arrays, self.xp.asfloat(y), self.xp)

    def sf(self, y: Array) -> Array:
        """P(Y > y)."""
        if self.spec.sf is None:
            return 1 - self.cdf(y)
        return self.spec.sf(self.arrays, self.xp.asfloat(y), self.xp)

    def _summed_up_to(self, y: Array) -> Array:
        k, mass = lattice(self)
        # the integers' axis goes in front of any axes that y has beyond the batch
        extra = (1,) * max(y.ndim - len(self.batch_shape), 0)
        k, mass = (
            self.xp.reshape(part, (part.shape[0], *extra, *part.shape[1:])) for part in (k, mass)
        )
        return self.xp.sum(self.xp.where(k <= y, mass, 0.0), axis=0)

    def icdf(self, p: Array) -> Array:
        """The smallest y with P(Y <= y) >= p; p broadcasts against the batch shape."""
        return quantile(self, p)

    @property
    def mean(self) -> Array:
        """E Y, of the batch shape and the event shape; NaN or infinite where there is none."""
        return self._moment("mean")

    @property
    def variance(self) -> Array:
        """Var Y, elementwise for vectors."""
        return self._moment("variance")

    def _moment(self, name: str) -> Array:
        value = self._known(name)(self.arrays, self.xp)
        return self.xp.broadcast_to(value, self.batch_shape + self.event_shape)

    # where its mass lies --------------------------------------------------------------------------

    @property
    def support(self) -> tuple[Array, Array]:
        """The ends (low, high) of the support, of the batch shape."""
        return self._interval(self._known("support")(self.arrays, self.xp))

    def bulk(self, tail: float) -> tuple[Array, Array]:
        """An interval that holds all but at most ``tail`` of the mass, of the batch shape."""
        return self._interval(self._known("bulk")(self.arrays, tail, self.xp))

    def _interval(self, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = (self.xp.broadcast_to(end, self.batch_shape) for end in ends)
        return low, high

    @property
    def breakpoints(self) -> tuple[Array, ...]:
        """Kinks and jumps of the density inside its support."""
        points = self.spec.breakpoints(self.arrays, self.xp)
        return tuple(self.xp.broadcast_to(point, self.batch_shape) for point in points)

    # draws ----------------------------------------------------------------------------------------

    def sample(self, seed: int, size: int) -> np.ndarray:
        """NumPy draws, (size, batch..., event...); the same seed and arguments give the same
        draws.
        """
        if self.family == "External":
            found: np.ndarray = self.xp.to_numpy(external_draws(self, size, seed))
            return found
        numeric = self.map_args(namespace(*self.leaves()).to_numpy)
        return numeric.draw_samples(np.random.default_rng(seed), (size, *self.batch_shape))

    def draw_samples(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """NumPy draws of this shape (whose last axes are the batch) from a generator; the
        arguments must be NumPy's, or those of a distribution that only its PPL knows.
        """
        if self.family == "External":
            size = shape[: len(shape) - len(self.batch_shape)]
            drawn = self.sample(int(rng.integers(1 << 31)), int(np.prod(size)))
            return drawn.reshape(*shape, *self.event_shape)
        if self.family == "Independent":
            base = self.args["base"]
            found: np.ndarray = base.draw_samples(
                rng, shape + base.batch_shape[len(self.batch_shape) :]
            )
            return found
        if self.spec.sample is not None:
            return np.asarray(self.spec.sample(self.arrays, rng, shape), dtype=float)
        return np.asarray(self.icdf(rng.uniform(size=shape)), dtype=float)

    # taking it apart ------------------------------------------------------------------------------

    def leaves(self) -> list[Any]:
        """Every argument array, nested densities included, in a fixed order."""
        found: list[Any] = []
        for name in self.spec.args:
            inner = nested_in(self.args[name])
            if inner:
                found += [leaf for part in inner for leaf in part.leaves()]
            elif name not in self.spec.static:
                found.append(self.args[name])
        return found

    def rebuild(self, leaves: Sequence[Any]) -> Density:
        """The same structure around other arrays, in the order of `leaves`."""
        queue = iter(leaves)
        return self.map_args(lambda _: next(queue))

    def map_args(self, fn: Callable[[Any], Any]) -> Density:
        """The same structure with fn applied to every argument array."""
        return self.remade(lambda _, value: fn(value), lambda _, part: part.map_args(fn))

    def remade(
        self, array: Callable[[str, Any], Any], inner: Callable[[str, Density], Density]
    ) -> Density:
        """The same structure with array(name, value) in place of every argument array, and
        inner(name, density) of every nested density; the name is "" for one of several components.
        """
        changed: dict[str, Any] = {}
        for name in self.spec.args:
            value = self.args[name]
            parts = nested_in(value)
            if parts and parts[0] is value:
                changed[name] = inner(name, parts[0])
            elif parts:
                changed[name] = tuple(inner("", part) for part in parts)
            else:
                changed[name] = value if name in self.spec.static else array(name, value)
        return Density(self.family, changed)

    def __getitem__(self, index: Any) -> Density:
        """Some of the batch: the index applies to the batch axes."""
        if self.family == "External":
            raise FamilyError(
                f"{type(self.args['distribution']).__name__} is known only as an object and cannot "
                "be indexed; "
                "register its family to take rows of it"
            )
        index = _full_index(index, len(self.batch_shape))
        return self._indexed(index, self.batch_shape)

    def _indexed(self, index: tuple[Any, ...], batch: tuple[int, ...]) -> Density:
        xp = self.xp

        def array(name: str, value: Any) -> Any:
            value = xp.asarray(value)
            own = tuple(value.shape)[value.ndim - self.spec.arg_ndim.get(name, 0) :]
            return xp.broadcast_to(value, batch + own)[index]

        return self.remade(
            array, lambda name, part: part._indexed(index, batch + self.own_axes(name, part))
        )

    def own_axes(self, name: str, part: Density) -> tuple[int, ...]:
        """The last batch axes of a nested density, which belong to one outer density."""
        own = {"components": 1, "base": self.args.get("event_ndim", 0), "": 0}[name]
        return part.batch_shape[len(part.batch_shape) - own :]

    def row(self, i: int) -> Density:
        """Row i: the last batch axis at i."""
        return self[..., i]

    def __repr__(self) -> str:
        return f"{self._describe()} with batch shape {self.batch_shape}"

    def _describe(self) -> str:
        parts = []
        for name, value in self.args.items():
            inner = nested_in(value)
            if inner and inner[0] is value:
                parts.append(f"{name} {inner[0]._describe()}")
            elif inner:
                parts.append(f"{name} ({', '.join(part._describe() for part in inner)})")
            elif name in self.spec.static:
                shown = value if isinstance(value, int) else type(value).__name__
                parts.append(f"{name}={shown}")
            else:
                parts.append(f"{name} {tuple(np.shape(value))}")
        return f"{self.family}({', '.join(parts)})"


def nested_in(value: Any) -> tuple[Density, ...]:
    """The densities that an argument consists of: one, the several components of a mixture, or
    none.
    """
    if isinstance(value, Density):
        return (value,)
    return value if isinstance(value, tuple) and value and nested_in(value[0]) else ()


def _full_index(index: Any, ndim: int) -> tuple[Any, ...]:
    """The index as a tuple over the batch axes, with the ellipsis written out."""
    index = index if isinstance(index, tuple) else (index,)
    where = [i for i, part in enumerate(index) if part is Ellipsis]
    if where:
        i = where[0]
        index = (*index[:i], *([slice(None)] * (ndim - len(index) + 1)), *index[i + 1 :])
    if len(index) > ndim:
        raise FamilyError(f"the density has {ndim} batch axes and cannot take {len(index)} indices")
    return tuple(index)


def _namespace_of_distribution(distribution: Any) -> Namespace:
    for base in type(distribution).__mro__:
        root = base.__module__.partition(".")[0]
        if root in ("numpyro", "jax"):
            import jax.numpy as jnp

            return namespace(jnp.zeros(()))
        if root in ("torch", "pyro"):
            import torch

            return namespace(torch.zeros(()))
    some = getattr(distribution, "mean", 0.0)
    return namespace(some if library(some) else 0.0)
