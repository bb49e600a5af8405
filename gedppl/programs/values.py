"""The kinds of value that a reading meets, and the steps it reads: see `gedppl.programs.forms`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from gedppl.programs.forms import Reading


Array = Any  # of the backend
Terms = dict[int, Array]  # atom, cut or tail -> (its size, *shape of the value)
RISING, SIMPLEX = "rising", "simplex"  # what a support may say of the entries along the last axis


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
    def exp(self, value: Array) -> Array: ...
    def logit(self, value: Array) -> Array: ...
    def total(self, terms: Array, weights: Array) -> Array:
        """sum_i weights[i] terms[i], for terms (size, *shape) and weights of any shape with that
        size.
        """
        ...

    def contracted(self, terms: Array, matrix: np.ndarray) -> Array:
        """terms (..., E) @ matrix (E, C)."""
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
    # values of functions that state their own derivative (`jax.custom_jvp`), which may be any
    stated: frozenset[int] = frozenset()


class Lister:
    """Writes a listing: values are numbered in the order in which they come up."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.constants: dict[int, Array] = {}
        self.count = 0

    def new(self) -> int:
        self.count += 1
        return self.count - 1

    def constant(self, value: Array) -> int:
        key = self.new()
        self.constants[key] = value
        return key

    def add(
        self,
        name: str,
        run: Callable[..., Sequence[Array]],
        inputs: Sequence[int],
        real: Sequence[bool],
        *,
        rule: str = "",
        needs: tuple[int, ...] = (),
        elementwise: bool = False,
        power: float = 1.0,
        line: str = "",
    ) -> list[int]:
        """One step more (see `Step`), with a value for each of `real`: their numbers."""
        made = tuple(self.new() for _ in real)
        given, kinds = tuple(inputs), tuple(real)
        self.steps.append(
            Step(name, run, given, made, kinds, rule, needs, elementwise, power, line)
        )
        return list(made)


class Kind:
    """What the seven kinds of value below have in common."""

    def join(self, i: int, operands: Operands) -> None:
        """Take place i among operands, with those of its kind."""
        raise NotImplementedError

    def log_in(self, reading: Reading) -> Value | None:
        """The log, as something affine, of a value that is positive by construction; None if that
        is not known.
        """
        return None

    def in_tail(self) -> tuple[Any, Form | None] | None:
        """As part of an expression, and the form that this is one of; None if it cannot be."""
        return None


@dataclass(frozen=True)
class Known(Kind):
    """Free of theta: a constant, or what the data alone make, such as x[:, 0] * a."""

    value: Array
    by_row: bool = False  # whether it depends on a row's data
    by_action: bool = False
    line = ""  # of the user's program, where known

    def join(self, i: int, operands: Operands) -> None:
        operands.known[i] = self
        operands.settled.append(self)

    def stand_in(self, atoms: list[Atom]) -> Array:
        """An array of its shape; numbers do not matter."""
        return self.value

    def at(self, values: list[Array], arithmetic: Arithmetic) -> Array:
        """The value at the atoms' values."""
        return self.value

    def arrays(self, whole: Array | None) -> Any:
        """The arrays it consists of; `whole` stands for a number made of parameters."""
        return self.value

    def table(self, arrays: Any, form: Callable[..., Any]) -> Any:
        """What these arrays are: themselves, what `form` makes of them, or an atom's number."""
        return arrays

    def log_in(self, reading: Reading) -> Known | None:
        if not (self.by_row or self.by_action) and not np.all(np.asarray(self.value) > 0):
            return None
        return replace(self, value=reading.arithmetic.log(self.value))

    def in_tail(self) -> tuple[Any, Form | None] | None:
        number = None if self.by_row or self.by_action else _one_number(self.value)
        return None if number is None else (("constant", number), None)


@dataclass(frozen=True, eq=False)
class Form(Kind):
    """offset + sum_k J_k . v_k, affine in variables v_k: `terms[k]` is J_k, of shape (size of v_k,
    *shape of the value).

    Of a *still* form (theta and the action alone) the variables are atoms, otherwise they are cuts:
    of w[a] @ x the still form w[a] is cut, and J is x. Coefficients are arrays of the backend, and
    while a row is traced they depend on its data.
    """

    terms: Terms  # by atom if still, by cut otherwise
    offset: Array
    still: bool
    by_action: bool = False
    low: float = -np.inf  # of a still form's entries
    high: float = np.inf
    centred: bool = False  # the offset is zero by construction
    factor: tuple[Known, Form] | None = None  # value = known * still, entry by entry
    line: str = ""
    picked: bool = False  # entries of cuts, one for each of its own: which ones, the data say
    # the form that it is a number times, plus a number, and as which expression of it
    parent: tuple[Form, tuple[Any, ...]] | None = None

    @property
    def ancestors(self) -> list[Form]:
        """The form itself, its parent, and so on."""
        found = [self]
        while found[-1].parent is not None:
            found.append(found[-1].parent[0])
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.offset.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def by_row(self) -> bool:
        return not self.still

    def join(self, i: int, operands: Operands) -> None:
        operands.forms[i] = self
        operands.settled.append(self)

    def stand_in(self, atoms: list[Atom]) -> Array:
        return self.offset

    def at(self, values: list[Array], arithmetic: Arithmetic) -> Array:
        out = self.offset
        for k, jacobian in self.terms.items():
            out = out + arithmetic.total(jacobian, values[k])
        return out

    def arrays(self, whole: Array | None) -> Any:
        terms = {k: part.reshape(part.shape[0], -1) for k, part in self.terms.items()}
        return terms, self.offset.reshape(-1)

    def table(self, arrays: Any, form: Callable[..., Any]) -> Any:
        return form(*arrays)

    def log_in(self, reading: Reading) -> Form | None:
        log = reading.arithmetic.log
        if self.still and self.low >= 0:
            return reading.apply(log, "log", self, line=self.line)
        if self.factor is None or self.factor[1].low < 0:
            return None
        known, still = self.factor
        other = reading.cut(reading.apply(log, "log", still, line=self.line))
        adding = Step("add", lambda u, v: (u + v,), (), (-1,), (True,), "linear", line=self.line)
        both = Operands.of([replace(known, value=log(known.value)), other])
        (found,) = reading.linear(adding, both, still=False)
        return found if found.shape == self.shape else None

    def in_tail(self) -> tuple[Any, Form | None] | None:
        return ("root",), self


@dataclass(frozen=True, eq=False)
class Exp(Kind):
    """exp(form): a rate, or an odds. Products and powers of such values are again of this kind."""

    log: Form
    by_row = True

    @property
    def line(self) -> str:
        return self.log.line

    def join(self, i: int, operands: Operands) -> None:
        operands.exps[i] = self

    def log_in(self, reading: Reading) -> Form:
        return self.log

    def in_tail(self) -> tuple[Any, Form | None] | None:
        return ("exp", ("root",)), self.log


@dataclass(frozen=True, eq=False)
class Tail(Kind):
    """g(root) entry by entry, for one form and an expression g of it and numbers: ("div", 1.0,
    ("add", 1.0, ("exp", ("root",)))) is 1 / (1 + exp(root)). Whether g is an inverse link is asked
    of a table (`gedppl.programs.links`), at the end.
    """

    expression: tuple[Any, ...]
    root: Form
    # the same as a combination of other tails: a part of one, or 1 - one
    made_of: Form | None = None
    by_row = True

    @property
    def line(self) -> str:
        return self.root.line

    def join(self, i: int, operands: Operands) -> None:
        operands.tails[i] = self

    def in_tail(self) -> tuple[Any, Form | None] | None:
        return self.expression, self.root


@dataclass(frozen=True, eq=False)
class Combination(Kind):
    """offset + sum_k J_k . tail_k, with numbers for coefficients: chances of ordered categories,
    F(u_1), F(u_2) - F(u_1), ..., 1 - F(u_C).
    """

    form: Form  # by tail: its coefficients are numbers
    by_row = True

    @property
    def line(self) -> str:
        return self.form.line

    def join(self, i: int, operands: Operands) -> None:
        operands.combinations[i] = self

    @property
    def moves(self) -> bool:
        """Whether any tail is left in it: chances that add up to one leave none."""
        return any(np.any(np.asarray(part)) for part in self.form.terms.values())

    def is_complement_of(self, other: Form) -> bool:
        """Whether it is 1 - other, another combination, entry by entry."""
        mine, others = self.form.terms, other.terms
        return (
            mine.keys() == others.keys()
            and all(np.array_equal(np.asarray(mine[k]), -np.asarray(others[k])) for k in mine)
            and np.array_equal(np.asarray(self.form.offset), 1.0 - np.asarray(other.offset))
        )


@dataclass(frozen=True)
class Whole(Kind):
    """Whole numbers or truth values made of theta alone (argsort, theta > 0). They may choose among
    still values; where they meet the data, nothing is known.
    """

    atom: int
    by_action: bool
    by_row = False
    line = ""

    def join(self, i: int, operands: Operands) -> None:
        operands.wholes[i] = self
        operands.settled.append(self)

    def stand_in(self, atoms: list[Atom]) -> Array:
        atom = atoms[self.atom]
        assert atom.run is not None
        return atom.run(*[part.stand_in(atoms) for part in atom.operands])[atom.output]

    def at(self, values: list[Array], arithmetic: Arithmetic) -> Array:
        return values[self.atom]

    def arrays(self, whole: Array | None) -> Any:
        return whole

    def table(self, arrays: Any, form: Callable[..., Any]) -> Any:
        return self.atom


@dataclass(frozen=True)
class Unknown(Kind):
    """Nothing is known of it: why, and the line of the user's program at which it came up. Whatever
    is computed from it is unknown for the same reason, so that the first one is the one told.
    """

    why: str
    line: str
    by_row = True

    def join(self, i: int, operands: Operands) -> None:
        operands.lost.append(self)

    @property
    def verdict(self) -> tuple[str, str, tuple[str, ...], str, str, str]:
        """No family, no link, no arguments; why, and where."""
        return "", "", (), self.why, self.line, ""

    @property
    def used(self) -> list[int]:
        """The cuts of its predictor: it has none."""
        return []

    @property
    def unknown(self) -> None:
        """No argument was found."""


Value = Known | Form | Exp | Tail | Combination | Whole | Unknown


@dataclass
class Operands:
    """The inputs of a step, also by kind, each with its place."""

    every: list[Value]
    known: dict[int, Known] = field(default_factory=dict)
    forms: dict[int, Form] = field(default_factory=dict)
    exps: dict[int, Exp] = field(default_factory=dict)
    tails: dict[int, Tail] = field(default_factory=dict)
    combinations: dict[int, Combination] = field(default_factory=dict)
    wholes: dict[int, Whole] = field(default_factory=dict)
    lost: list[Unknown] = field(default_factory=list)
    settled: list[Known | Form | Whole] = field(default_factory=list)  # what an atom is made of

    @classmethod
    def of(cls, values: Sequence[Value]) -> Operands:
        operands = cls(list(values))
        for i, one in enumerate(values):
            one.join(i, operands)
        return operands

    def __len__(self) -> int:
        return len(self.every)

    def cut(self, reading: Reading) -> Operands:
        """The same with still forms as variables of their own."""
        cuts = {i: reading.cut(form) for i, form in self.forms.items()}
        return Operands.of([cuts.get(i, one) for i, one in enumerate(self.every)])


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
    together: str = ""  # what its support says of entries along its last axis

    def kept(self, value: Array) -> Array:
        """What is an atom of a site's value."""
        return value[..., :-1] if self.together == SIMPLEX else value


def _one_number(value: Array) -> float | None:
    numbers = np.unique(np.asarray(value, float))
    return round(float(numbers[0]), 12) if len(numbers) == 1 else None
