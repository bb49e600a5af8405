"""What a learner keeps, as arrays and JSON, and back: for snapshots, and for the hash that two
equal memories share.

A learner says itself what it keeps (`Learner.stored`) and builds itself from that
(`Learner.restored`). Only data are stored: models, predictors, rules and oracles are live objects,
taken from a learner begun afresh. Reading builds arrays, numbers and dataclasses marked `storable`,
by name; nothing in a file is executed, and anything unexpected is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import singledispatch
from typing import Any, TypeVar

import numpy as np

from gedppl.errors import JournalError
from gedppl.learning.fits import Fit, WorkingPrior
from gedppl.rows import Rows

Node = Any  # what `json` makes of a part: numbers, texts, lists and mappings of them
Tree = dict[str, Node]
T = TypeVar("T", bound=type)

STORABLE: dict[str, Any] = {}


class NotStorableError(JournalError):
    """The memory holds something that no snapshot can: resuming replays the journal from its
    start.
    """


def storable(cls: T) -> T:
    """Mark a dataclass whose fields are numbers, texts, arrays, rows, or storable themselves."""
    if STORABLE.setdefault(cls.__name__, cls) is not cls:
        raise TypeError(f"two storable classes are called {cls.__name__}")
    return cls


storable(Fit)
storable(WorkingPrior)


class Writer:
    """Collects arrays; `strict` refuses what cannot be loaded again, otherwise such parts are
    left out.
    """

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.arrays: dict[str, np.ndarray] = {}

    def array(self, value: np.ndarray) -> dict[str, str]:
        if value.dtype.kind not in "biuf":
            raise NotStorableError(f"an array of {value.dtype} cannot be part of a snapshot")
        name = f"a{len(self.arrays)}"
        self.arrays[name] = value
        return {"array": name}

    def node(self, value: Any) -> Node:
        return _node(value, self)

    def fields(self, value: object, names: Iterable[str]) -> Tree:
        """These fields of an object, by name."""
        return {name: self.node(vars(value)[name]) for name in names}

    def left_out(self, what: str) -> Node:
        """Something that cannot be stored: an error, or, if only a hash is wanted, its name."""
        if self.strict:
            raise NotStorableError(f"{what} cannot be part of a snapshot")
        return {"left out": what}


@singledispatch
def _node(value: Any, out: Writer) -> Node:
    """A value as JSON and arrays: by default an object of a class that says it is storable."""
    name = type(value).__name__
    if STORABLE.get(name) is not type(value):
        return out.left_out(f"a {name}")
    names = [f.name for f in fields(STORABLE[name])]
    return {"of": name, "fields": out.fields(value, names)}


@_node.register(type(None))
@_node.register(str)
@_node.register(int)
@_node.register(float)
def _(value: str | float | None, out: Writer) -> Node:
    return value


@_node.register(np.generic)
def _(value: np.generic, out: Writer) -> Node:
    return value.item()


@_node.register(np.ndarray)
def _(value: np.ndarray, out: Writer) -> Node:
    return out.array(value)


@_node.register(tuple)
@_node.register(list)
def _(value: Sequence[Any], out: Writer) -> Node:
    return {"tuple": [out.node(v) for v in value]}


@_node.register(Mapping)
def _(value: Mapping[Any, Any], out: Writer) -> Node:
    return {"map": [[out.node(k), out.node(v)] for k, v in value.items()]}


@_node.register(Rows)
def _(value: Rows, out: Writer) -> Node:
    return {"rows": [out.array(part) for part in (value.x, value.a, value.y)]}


class Reader:
    """The other way round."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = arrays

    def array(self, node: Mapping[str, str]) -> np.ndarray:
        return self.arrays[node["array"]]

    def node(self, node: Node) -> Any:
        if isinstance(node, list):
            raise ValueError("a bare list")
        if not isinstance(node, dict):
            return node
        if "array" in node:
            return self.array(node)
        if "tuple" in node:
            return tuple(self.node(n) for n in node["tuple"])
        if "map" in node:
            return {self.node(k): self.node(v) for k, v in node["map"]}
        if "rows" in node:
            return Rows.of(*(self.array(n) for n in node["rows"]))
        cls = STORABLE[node["of"]]
        return cls(**self.fields(node["fields"], [f.name for f in fields(cls)]))

    def fields(self, tree: Mapping[str, Node], names: Iterable[str]) -> dict[str, Any]:
        """These fields and no others."""
        if set(tree) != set(names):
            raise ValueError(f"the fields {sorted(set(tree) ^ set(names))} are too many or too few")
        return {name: self.node(node) for name, node in tree.items()}


def stored_fields(learner: Any, live: Iterable[str]) -> list[str]:
    """The fields of a learner that are data; `live` come from the problem and settings, or are
    memos.
    """
    return [f.name for f in fields(learner) if f.name not in live]
