"""A hash of a model as it was declared: its source, the numbers it closes over, and the members of
a finite class.

Two programs may read alike and differ in a number that their functions enclose (a noise scale, a
table). The hash follows plain numbers, texts, arrays and functions through closures and default
arguments, and the numbers, texts and arrays that a function reads from its module; other objects
count by their type alone, so what a model reads from them is not covered.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from functools import singledispatch
from types import FunctionType
from typing import Any

import numpy as np

from gedppl.numerics.arrays import detached

MAX_DEPTH = 8


def digest(model: Any) -> str:
    """64 letters, the same for the same declaration in another process.

    >>> def scaled(by):
    ...     return lambda x: by * x
    >>> digest(scaled(2.0)) == digest(scaled(2.0)), digest(scaled(2.0)) == digest(scaled(3.0))
    (True, False)
    """
    h = _Hash()
    h.feed(model, 0)
    return h.sha.hexdigest()


class _Hash:
    """What was said of a declaration so far."""

    def __init__(self) -> None:
        self.sha = hashlib.sha256()

    def say(self, *words: object) -> None:
        for word in words:
            self.say_bytes(str(word).encode())

    def say_bytes(self, data: bytes) -> None:
        self.sha.update(len(data).to_bytes(8, "little") + data)

    def feed(self, value: Any, depth: int) -> None:
        if depth > MAX_DEPTH:
            self.say("deeper")
        else:
            _feed(value, self, depth)


@singledispatch
def _feed(value: Any, h: _Hash, depth: int) -> None:
    """An object that says itself what it was declared as, or an array; any other counts by its
    type.
    """
    is_class = inspect.isclass(value)
    if callable(getattr(value, "describe", None)) and not is_class:
        h.say("described", value.describe())
    elif hasattr(value, "members"):  # a finite class
        h.say("members")
        h.feed(value.members, depth + 1)
    elif hasattr(value, "model") and hasattr(value, "density_at"):
        # a class of densities from a program
        h.say("class")
        for part in (
            value.model,
            getattr(value, "_declared_bounds", None),
            getattr(value, "_init", None),
        ):
            h.feed(part, depth + 1)
    elif hasattr(value, "__array__") and not is_class:
        array = np.asarray(detached(value))
        h.say("array", array.dtype.str, array.shape)
        if not array.dtype.hasobject:
            h.say_bytes(np.ascontiguousarray(array).tobytes())
    else:
        h.say("object", type(value).__module__, type(value).__qualname__)


@_feed.register(type(None))
@_feed.register(str)
@_feed.register(bytes)
@_feed.register(int)
@_feed.register(float)
@_feed.register(complex)
def _(value: str | bytes | complex | None, h: _Hash, depth: int) -> None:
    h.say(type(value).__name__, repr(value))


@_feed.register(Mapping)
def _(value: Mapping[Any, Any], h: _Hash, depth: int) -> None:
    h.say("map", len(value))
    for key in sorted(value, key=str):
        h.say(key)
        h.feed(value[key], depth + 1)


@_feed.register(list)
@_feed.register(tuple)
def _(value: Sequence[Any], h: _Hash, depth: int) -> None:
    h.say("list", len(value))
    for item in value:
        h.feed(item, depth + 1)


@_feed.register(FunctionType)
def _(value: FunctionType, h: _Hash, depth: int) -> None:
    h.say("function", _source(value))
    h.feed(value.__defaults__, depth + 1)
    h.feed(value.__kwdefaults__, depth + 1)
    for cell in value.__closure__ or ():
        try:
            h.feed(cell.cell_contents, depth + 1)
        except ValueError:  # not filled yet
            h.say("empty")
    for name in sorted(set(value.__code__.co_names) & set(value.__globals__)):
        read = value.__globals__[name]
        if np.isscalar(read) or (hasattr(read, "__array__") and not inspect.isclass(read)):
            h.say("global", name)
            h.feed(read, depth + 1)


def _source(function: Any) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        code = function.__code__
        constants = [c for c in code.co_consts if not inspect.iscode(c)]
        return f"{code.co_code.hex()}:{code.co_names}:{constants!r}"
