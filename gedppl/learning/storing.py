"""What a learner keeps, as arrays and JSON, and back: for snapshots, and for the hash that two
equal memories share.

A learner says itself what it keeps (`Learner.stored`) and builds itself from that
(`Learner.restored`). Only data are stored: models, predictors, rules and oracles are live objects,
taken from a learner begun afresh. Reading builds arrays, numbers and dataclasses marked `storable`,
by name; nothing in a file is executed, and anything unexpected is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
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
        if value is None or isinstance(value, str | bool | int | float):
            return float(value) if isinstance(value, np.floating) else value
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, np.ndarray):
            return self.array(value)
        if isinstance(value, tuple | list):
            return {"tuple": [self.node(v) for v in value]}
        if isinstance(value, Mapping):
            return {"map": [[self.node(k), self.node(v)] for k, v in value.items()]}
        if isinstance(value, Rows):
            return {"rows": [self.array(part) for part in (value.x, value.a, value.y)]}
        if STORABLE.get(type(value).__name__) is type(value):
            return {
                "of": type(value).__name__,
                "fields": self.fields(
                    value, [f.name for f in fields(STORABLE[type(value).__name__])]
                ),
            }
        return self.left_out(f"a {type(value).__name__}")

    def fields(self, value: object, names: Iterable[str]) -> Tree:
        """These fields of an object, by name."""
        return {name: self.node(vars(value)[name]) for name in names}

    def left_out(self, what: str) -> Node:
        """Something that cannot be stored: an error, or, if only a hash is wanted, its name."""
        if self.strict:
            raise NotStorableError(f"{what} cannot be part of a snapshot")
        return {"left out": what}


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
