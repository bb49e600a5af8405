"""A hash of a model as it was declared: its source, the numbers it closes over, and the members of
a finite class.

Two programs may read alike and differ in a number that their functions enclose (a noise scale, a
table). The hash follows plain numbers, texts, arrays and functions through closures and default
arguments; other objects count by their type alone, so what a model reads from them, or from
globals, is not covered.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

MAX_DEPTH = 8


def digest(model: Any) -> str:
    """64 letters, the same for the same declaration in another process.

    >>> def scaled(by):
    ...     return lambda x: by * x
    >>> digest(scaled(2.0)) == digest(scaled(2.0)), digest(scaled(2.0)) == digest(scaled(3.0))
    (True, False)
    """
    h = hashlib.sha256()
    _feed(h, model, 0)
    return h.hexdigest()


def _feed(h: Any, value: Any, depth: int) -> None:
    def say(*words: Any) -> None:
        for word in words:
            data = word if isinstance(word, bytes) else str(word).encode()
            h.update(len(data).to_bytes(8, "little") + data)

    if depth > MAX_DEPTH:
        say("deeper")
    elif value is None or isinstance(value, str | bytes | bool | int | float | complex):
        say(type(value).__name__, repr(value))
    elif isinstance(value, Mapping):
        say("map", len(value))
        for key in sorted(value, key=str):
            say(key)
            _feed(h, value[key], depth + 1)
    elif isinstance(value, list | tuple):
        say("list", len(value))
        for item in value:
            _feed(h, item, depth + 1)
    elif inspect.isfunction(value):
        say("function", _source(value))
        _feed(h, value.__defaults__, depth + 1)
        _feed(h, value.__kwdefaults__, depth + 1)
        for cell in value.__closure__ or ():
            try:
                _feed(h, cell.cell_contents, depth + 1)
            except ValueError:  # not filled yet
                say("empty")
    elif callable(getattr(value, "describe", None)) and not isinstance(value, type):
        say("described", value.describe())
    elif hasattr(value, "members"):  # a finite class
        say("members")
        _feed(h, value.members, depth + 1)
    elif hasattr(value, "model") and hasattr(value, "density_at"):
        # a class of densities from a program
        say("class")
        for part in (
            value.model,
            getattr(value, "_declared_bounds", None),
            getattr(value, "_init", None),
        ):
            _feed(h, part, depth + 1)
    elif hasattr(value, "__array__") and not isinstance(value, type):
        array = np.asarray(value.detach() if hasattr(value, "detach") else value)
        say("array", array.dtype.str, array.shape)
        if not array.dtype.hasobject:
            say(np.ascontiguousarray(array).tobytes())
    else:
        say("object", type(value).__module__, type(value).__qualname__)


def _source(function: Any) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        code = function.__code__
        constants = [c for c in code.co_consts if not inspect.iscode(c)]
        return f"{code.co_code.hex()}:{code.co_names}:{constants!r}"
