"""Numbers from a caller: real, finite, of a sane size, and copied. Anything else is a named error."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gedppl.errors import DataError, InputError, NotFiniteError, SettingError, ShapeError

MOST = 10**8  # numbers in one argument
_NO_NUMBERS = (str, bytes, np.datetime64, np.timedelta64)  # though each can be converted to one
LARGEST = 1e60  # beyond this squares of squares overflow, and no solver could learn from it


def is_whole(value: Any) -> bool:
    """Whether this is a whole number: a Python or NumPy integer, but no truth value and no duration."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64)


def check_whole(least: int, **named: Any) -> None:
    """Each named value is a whole number of at least so much, or a `SettingError` says which is not.

    >>> check_whole(1, runs=3, rounds=10)
    """
    for name, value in named.items():
        if not is_whole(value) or value < least:
            raise SettingError(f"{name} must be a whole number of at least {least}, got {value!r}")


def scalar(value: Any) -> Any:
    """A scalar of NumPy, JAX, torch or Arrow as Python's own; anything else as it is."""
    try:
        if hasattr(value, "as_py"):
            return value.as_py()
        return value.item() if hasattr(value, "item") and value.shape == () and not np.ma.is_masked(value) else value
    except Exception:  # whoever wants a number or a text will say that this is none
        return value


def whole(value: Any) -> int | None:
    """The whole number that a scalar of any kind is, 2 and 2.0 alike; None for anything else, truth values too."""
    value = value if is_whole(value) else scalar(value)
    if is_whole(value):
        return int(value)
    return int(value) if isinstance(value, float) and value.is_integer() else None


def shape_of(value: Any, what: str) -> tuple[int, ...]:
    """The shape, before anything is copied; what is absurdly large is refused here."""
    claimed = _claimed_shape(value)
    if math.prod(claimed) > MOST:
        raise ShapeError(f"{what} of shape {claimed} is too large; at most {MOST:,} numbers at once")
    try:
        return tuple(np.shape(value))
    except Exception as error:
        raise ShapeError(f"{what} must be a rectangular array of numbers, got a {type(value).__name__}: {error}") from None


def _claimed_shape(value: Any) -> tuple[int, ...]:
    """What the value says of itself: an array its shape, a list its length and what its first item says."""
    if isinstance(value, list | tuple):
        return (len(value), *(_claimed_shape(value[0]) if value else ()))
    shape = getattr(value, "shape", ())
    return shape if isinstance(shape, tuple) and all(isinstance(n, int) for n in shape) else ()


def read_numbers(value: Any, what: str, fix: str, error: type[InputError] = DataError, *, missing: bool = False) -> np.ndarray:
    """The value as a float array of its own; `missing` lets NaN pass. Truth values count as 0 and 1; text is refused."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise NotFiniteError(f"{what} is masked; {fix}")
    if hasattr(value, "detach"):  # a torch tensor that a gradient may be asked for
        value = value.detach()
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O" and not any(isinstance(v, _NO_NUMBERS) for v in array.flat):
            array = array.astype(float)
    except Exception as cause:
        raise error(f"{_wanted(value, what)}, got {_shown(value)}: {cause}") from None
    if array.dtype.kind not in "biuf":
        raise error(f"{_wanted(value, what)}, got {_shown(value)}")
    array = np.array(array, float)
    bad = ~(np.abs(array) <= LARGEST) & ~(np.isnan(array) & missing)
    if bad.any():
        found = array[bad][0]
        said = "is NaN" if np.isnan(found) else "is infinite" if np.isinf(found) else f"exceeds {LARGEST:g}"
        raise NotFiniteError(f"{what} must be finite, got {found}: it {said}; {fix}")
    return array


def _wanted(value: Any, what: str) -> str:
    return f"{what} must hold numbers" if isinstance(value, list | tuple | np.ndarray) else f"{what} must be a number"


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"a {type(value).__name__}"


def check_delta(delta: float) -> None:
    """A probability of error: strictly between 0 and 1."""
    if isinstance(delta, bool) or not isinstance(delta, int | float | np.integer | np.floating) or not 0 < delta < 1:
        raise SettingError(f"delta must lie strictly between 0 and 1, got {delta!r}; 0.05 is customary")
