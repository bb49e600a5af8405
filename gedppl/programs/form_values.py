"""What a program's values can be, operation by operation: see `gedppl.programs.forms`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Array = Any  # of the backend
Terms = dict[int, Array]  # atom or cut -> (its size, *shape of the value)


class Arithmetic(Protocol):
    """What the reading asks of a backend's arrays."""

    def over(self, run: Callable[..., Sequence[Array]], *stacked: Array) -> Sequence[Array]:
        """`run` over the leading axis of each argument."""
        ...

    def constant(self, run: Callable[..., Sequence[Array]], *values: Array) -> Sequence[Array]:
        """`run` at constants, whatever is being traced around it."""
        ...

    def zeros(self, like: Array) -> Array: ...
    def identity(self, shape: tuple[int, ...]) -> Array:
        """(size, *shape): the Jacobian of a value by itself."""
        ...

    def broadcast(self, value: Array, shape: tuple[int, ...]) -> Array: ...
    def log(self, value: Array) -> Array: ...
    def logit(self, value: Array) -> Array: ...
    def total(self, terms: Array, weights: Array) -> Array:
        """sum_i weights[i] terms[i], for terms (size, *shape) and weights of any shape with that
        size.
        """
        ...


@dataclass(frozen=True)
class Step:
    """One operation."""

    name: str  # with the settings that change what it computes
    run: Callable[..., Sequence[Array]]  # arrays -> arrays
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    real: tuple[bool, ...]  # whether each output is floating point
    # "move" (rearranges), "linear", "multiply", "contract", "divide", "exp", "log", "power" or none
    rule: str = ""
    # inputs of a move or linear step that say where, not what: they must be free of theta
    needs: tuple[int, ...] = ()
    elementwise: bool = False
    power: float = 1.0
    line: str = ""  # of the user's program, where known


@dataclass(frozen=True)
class Listing:
    """One row of a program: inputs are the sites, then x (1, dx), then a (1,)."""

    steps: tuple[Step, ...]
    constants: dict[int, Array]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Known:
    value: Array
    by_row: bool = False
    by_action: bool = False


@dataclass(frozen=True, eq=False)
class Form:
    terms: Terms  # by atom if still, by cut otherwise
    offset: Array
    still: bool
    by_action: bool = False
    low: float = -np.inf  # of a still form's entries
    high: float = np.inf
    centred: bool = False  # the offset is zero by construction
    factor: tuple[Known, Form] | None = None  # value = known * still, entry by entry
    # the form that it is a number times, plus a number, and as which expression of it
    parent: tuple[Form, tuple[Any, ...]] | None = None
    line: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.offset.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


@dataclass(frozen=True, eq=False)
class Exp:
    log: Form


@dataclass(frozen=True, eq=False)
class Tail:
    expression: tuple[Any, ...]
    root: Form


@dataclass(frozen=True)
class Whole:
    atom: int
    by_action: bool


@dataclass(frozen=True)
class Unknown:
    why: str
    line: str


Value = Known | Form | Exp | Tail | Whole | Unknown


@dataclass(frozen=True)
class Atom:
    """A site, or one output of an operation on still values that is not affine in earlier atoms."""

    name: str
    shape: tuple[int, ...]
    low: float
    high: float
    by_action: bool
    run: Callable[..., Sequence[Array]] | None = None  # None: a site
    operands: tuple[Known | Form | Whole, ...] = ()
    output: int = 0
    # "log" or "exp": one number at a time, so that equal operands make equal atoms
    elementary: str = ""
