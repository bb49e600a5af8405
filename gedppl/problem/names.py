"""Names of actions and of the columns of a context: read where a caller's value comes in, and
nowhere else.

Inside, an action is its number and a context a row of floats. Whatever has names of its own (a data
frame or one of its rows, a mapping, a record, a list of these) is read by them, in any order; a
plain array is read by position.

Axis letters: n contexts, K actions.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gedppl.errors import ActionRangeError, ColumnError, ContextWidthError, ProblemError, ShapeError
from gedppl.numerics.arrays import read_numbers, scalar, shape_of, whole

MAX_CONTEXTS, MAX_WIDTH = 100_000, 100_000
SHOWN = 12  # names in one sentence

Levels = tuple[Any, ...]
Columns = Mapping[str, Levels | None]  # name -> its levels, or None where it holds numbers
Table = dict[str, Any]  # column -> a value for every row
Contexts = ArrayLike | Table | Sequence[Table]  # what a caller may give


# declaring ----------------------------------------------------------------------------------------


def declared_actions(
    actions: Iterable[str] | None, n_actions: int | None
) -> tuple[tuple[str, ...] | None, int]:
    """The names of the actions, if they have any, and K."""
    if actions is None:
        if n_actions is None:
            raise ProblemError(
                'a problem needs its actions: n_actions=3, or names, actions=("placebo", "A", "B")'
            )
        return None, n_actions
    names = _distinct(actions, "actions")
    if n_actions is not None and n_actions != len(names):
        raise ProblemError(
            f"n_actions={n_actions!r} and {len(names)} names of actions: leave "
            "n_actions out, the names count"
        )
    return names, len(names)


def declared_columns(columns: Iterable[str] | Mapping[str, Any] | None) -> Columns | None:
    """The columns of a context, in their order: name -> levels, or None for a number.

    >>> declared_columns(("age", "dose"))
    {'age': None, 'dose': None}
    >>> declared_columns({"sex": ("f", "m"), "age": float})
    {'sex': ('f', 'm'), 'age': None}
    """
    if columns is None:
        return None
    names = _distinct(columns, "columns")
    if not isinstance(columns, Mapping):
        return dict.fromkeys(names)
    return {name: _declared_levels(name, columns[name]) for name in names}


def _declared_levels(name: str, kind: Any) -> Levels | None:
    if kind in (float, int):
        return None
    levels = tuple(kind) if isinstance(kind, Sequence) and not isinstance(kind, str) else ()
    if (
        not levels
        or len(set(levels)) != len(levels)
        or not all(isinstance(v, str | int | float) for v in levels)
    ):
        raise ProblemError(
            f"column {name!r} holds numbers (float) or has distinct levels, texts or numbers, such "
            f"as ('f', 'm'); got {kind!r}"
        )
    return levels


def are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _distinct(names: Any, what: str) -> tuple[str, ...]:
    found = () if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
    if (
        not found
        or not are_texts(found)
        or not all(name.strip() for name in found)
        or len(set(found)) != len(found)
    ):
        raise ProblemError(
            f'{what} are named by distinct texts, such as {what}=("A", "B"); got {names!r}'
        )
    return tuple(str(name) for name in found)


# reading ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Names:
    """What the actions and columns of a problem are called, if they are called anything."""

    n_actions: int
    actions: tuple[str, ...] | None = None
    columns: Columns | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """What each action is called: its name, else its number as text. (K,)"""
        return self.actions or tuple(str(k) for k in range(self.n_actions))

    @property
    def context(self) -> str:
        """What the columns are called, with their levels.

        >>> Names(2, None, {"age": None, "sex": ("f", "m")}).context
        "age, sex ('f', 'm')"
        """
        return ", ".join(
            name if levels is None else f"{name} ({listed(levels)})"
            for name, levels in (self.columns or {}).items()
        )

    def label(self, action: int) -> str:
        """What one action is called."""
        return str(action) if self.actions is None else self.actions[action]

    def action(self, value: Any) -> int:
        """One action, by its name or its number; a float or an array scalar that is a whole number
        is one.

        >>> Names(3, ("placebo", "A", "B")).action("A"), Names(3).action(np.float64(2.0))
        (1, 2)
        """
        value = scalar(value)
        if self.actions is not None and isinstance(value, str):
            if value not in self.actions:
                raise ActionRangeError(
                    f"there is no action {value!r}; the actions are "
                    f"{listed(self.actions)}{hint(value, self.actions)}"
                )
            return self.actions.index(value)
        number = whole(value)
        if number is None or not 0 <= number < self.n_actions:
            named = f" ({listed(self.actions)})" if self.actions else ""
            raise ActionRangeError(
                f"action must be one of 0, ..., {self.n_actions - 1}{named}, got {value!r}"
            )
        return number

    def mask(self, allowed: Any, n: int) -> np.ndarray:
        """Actions allowed at n contexts, (n, K): booleans (K,) or (n, K), or names: one list, or
        one list for each context.
        """
        if self.actions is not None and (lists := _name_lists(allowed, n)) is not None:
            mask = np.zeros((n, self.n_actions), bool)
            for i, names in enumerate(lists):
                mask[i, [self.action(name) for name in names]] = True
            return mask
        K, shape = self.n_actions, shape_of(allowed, "allowed")
        wanted = f"allowed must be boolean ({K},) or ({n}, {K})" + (
            ", or a list of action names" if self.actions else ""
        )
        if shape not in ((K,), (n, K)):
            raise ShapeError(f"{wanted}, got shape {shape}")
        mask = np.array(allowed)
        if mask.dtype != bool or isinstance(allowed, np.ma.MaskedArray):
            raise ShapeError(f"{wanted}, got {mask.dtype} {mask.shape}")
        return np.broadcast_to(mask, (n, K))

    def contexts(self, x: Any, width: int | None = None) -> tuple[np.ndarray, bool]:
        """Contexts as (n, dx) floats, read-only, and whether there was only one. `width`: dx,
        where it is known.
        """
        table = as_table(x)
        if table is not None:
            return self.by_name(*table)
        columns = self.columns
        array, single = read_contexts(x, width if columns is None else len(columns))
        for i, (name, levels) in enumerate((columns or {}).items()):
            strange = (
                array[:0, i]
                if levels is None
                else array[~np.isin(array[:, i], np.arange(len(levels))), i]
            )
            if len(strange):
                codes = (
                    f"{listed(levels or ())}, in an array the codes 0 to {len(levels or ()) - 1}"
                )
                raise ColumnError(f"column {name!r} has the levels {codes}; got {strange[0]:g}")
        return array, single

    def rows(self, x: Any, a: Any) -> tuple[np.ndarray, np.ndarray]:
        """Contexts (n, dx) and an action for each, (n,), by name or number."""
        contexts, _ = self.contexts(x)
        shape = shape_of(a, "a")
        if shape not in ((), (len(contexts),)):
            raise ShapeError(
                f"a must have one action for each of {len(contexts)} rows, got shape {shape}"
            )
        played = [a] * len(contexts) if not shape else list(a)
        return contexts, np.array([self.action(one) for one in played], np.int64)

    def by_name(self, table: Table, single: bool, *, more: bool = False) -> tuple[np.ndarray, bool]:
        """The declared columns of a table, in their declared order. `more`: others may be there
        and are passed over.
        """
        if self.columns is None:
            raise ColumnError(
                f"x has named columns, {listed(table)}, and the problem declares none: declare "
                "Problem(columns=...) to have them "
                "read by name, or pass an array of numbers to have them read by position"
            )
        missing = [name for name in self.columns if name not in table]
        extra = [name for name in table if name not in self.columns and not more]
        if missing or extra:
            said = [f"lacks {listed(missing)}"] * bool(missing) + [
                f"has {listed(extra)}, not declared"
            ] * bool(extra)
            meant = hint(missing[0], list(table)) if missing else ""
            raise ColumnError(
                f"x {' and '.join(said)}; the columns are {listed(self.columns)}{meant}"
            )
        wanted = () if single else (_rows(table, self.columns),)
        array = np.stack(
            [_numbers(name, levels, table[name], wanted) for name, levels in self.columns.items()],
            axis=-1,
        )
        return read_contexts(array, len(self.columns))


def read_contexts(x: Any, width: int | None) -> tuple[np.ndarray, bool]:
    """Contexts by position: (n, dx) floats, read-only, and whether there was only one, given as
    (dx,).
    """
    shape = shape_of(x, "x")
    if len(shape) not in (1, 2) or 0 in shape:
        raise ShapeError(f"x must be one context (dx,) or a batch (n, dx), got shape {shape}")
    if shape[-1] > MAX_WIDTH or (len(shape) == 2 and shape[0] > MAX_CONTEXTS):
        raise ShapeError(
            f"x of shape {shape} is too large; at most {MAX_CONTEXTS} contexts of "
            f"{MAX_WIDTH} numbers"
        )
    if width is not None and shape[-1] != width:
        raise ContextWidthError(f"contexts have {width} columns in this run, got {shape[-1]}")
    array = read_numbers(x, "x", "impute missing values first", ShapeError)
    array.setflags(write=False)
    return np.atleast_2d(array), array.ndim == 1


def as_table(x: Any) -> tuple[Table, bool] | None:
    """Columns by name and whether x is a single row; None where x has no names and is read by
    position.

    The one place that knows what a data frame is: anything with text `columns` (pandas, Polars) or
    `column_names` (Arrow) that gives a column for its name. None of these packages is imported.

    >>> as_table({"age": [50, 61]}), as_table([{"age": 50}, {"age": 61}]), as_table([50, 61])
    (({'age': [50, 61]}, False), ({'age': [50, 61]}, False), None)
    """
    if type(x) is np.ndarray and x.dtype.names is None:  # by far the most common
        return None
    if isinstance(x, list | tuple) and not hasattr(x, "_fields"):
        return _rows_as_table(x)
    row = _as_row(x)
    if row is not None:
        return row, all(
            shape_of(value, f"column {name!r} of x") == () for name, value in row.items()
        )
    structured = getattr(getattr(x, "dtype", None), "names", None)
    if structured:
        return {name: x[name] for name in structured}, np.ndim(x) == 0
    names = getattr(x, "column_names", getattr(x, "columns", None))
    if names is None or callable(names) or not hasattr(x, "__getitem__"):
        return None
    named = list(names)
    if not any(isinstance(name, str) for name in named):
        return None  # numbered columns: an array in all but name
    if len(set(named)) != len(named):
        raise ColumnError(f"x has two columns of one name: {listed(named)}")
    return {str(name): x[name] for name in named}, False


def _as_row(x: Any) -> Table | None:
    """A mapping, a named tuple, a data class or a row of a data frame, as a mapping."""
    if isinstance(x, Mapping):
        return {str(name): value for name, value in x.items()}
    if isinstance(x, tuple):
        fields = getattr(x, "_fields", None)
        return None if fields is None else dict(zip(fields, x))
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return {field.name: getattr(x, field.name) for field in dataclasses.fields(x)}
    index = getattr(x, "index", None)
    if (
        index is None
        or callable(index)
        or not callable(getattr(x, "items", None))
        or hasattr(x, "columns")
    ):
        return None
    named = list(index)
    return dict(x.items()) if named and are_texts(named) else None


def _rows_as_table(rows: Sequence[Any]) -> tuple[Table, bool] | None:
    first = _as_row(rows[0]) if rows else None
    if first is None:
        return None
    table: dict[str, list[Any]] = {name: [] for name in first}
    for i, one in enumerate(rows):
        row = _as_row(one)
        if row is None or set(row) != set(first):
            got = "is no record" if row is None else f"has {listed(row)}"
            raise ColumnError(f"row {i} of x {got}; the first row has the columns {listed(first)}")
        for name, value in row.items():
            table[name].append(value)
    return dict(table), False


def _rows(table: Table, columns: Iterable[str]) -> int:
    """How many rows the first of these columns has."""
    name = next(iter(columns))
    shape = shape_of(table[name], f"column {name!r} of x")
    if len(shape) != 1:
        raise ShapeError(
            f"column {name!r} of x must have one value for each row, got shape {shape}"
        )
    return shape[0]


def _numbers(name: str, levels: Levels | None, values: Any, wanted: tuple[int, ...]) -> np.ndarray:
    """One column as floats; levels become codes."""
    what = f"column {name!r} of x"
    shape = shape_of(values, what)
    if shape != wanted:
        raise ShapeError(
            f"{what} has shape {shape} where the first has {wanted}; all columns are of one length"
        )
    if levels is None:
        return read_numbers(values, what, "impute missing values first", ShapeError)
    found = [values] if not shape else list(values)
    codes = {level: float(code) for code, level in enumerate(levels)}
    try:
        return np.array([codes[scalar(value)] for value in found]).reshape(shape)
    except (KeyError, TypeError):
        wrong = next(value for value in found if scalar(value) not in levels)
        raise ColumnError(
            f"{what} has no level {wrong!r}; its levels are {listed(levels)}{hint(wrong, levels)}"
        ) from None


def listed(names: Iterable[Any]) -> str:
    """Names for a sentence; of many, the first."""
    found = [repr(name) for name in names]
    return ", ".join(
        found if len(found) <= SHOWN else [*found[:SHOWN], f"... ({len(found)} in all)"]
    )


def hint(value: Any, names: Iterable[Any]) -> str:
    """``; did you mean 'placebo'?``, where a name is near.

    >>> hint("Plcebo", ["placebo", "A"])
    "; did you mean 'placebo'?"
    """
    known = {str(name).lower(): name for name in names}
    near = difflib.get_close_matches(str(value)[:100].lower(), list(known), n=1)
    return f"; did you mean {known[near[0]]!r}?" if near else ""


def _name_lists(allowed: Any, n: int) -> list[list[str]] | None:
    """Action names by context, (n,) lists; None if `allowed` holds no names."""
    if isinstance(allowed, np.ndarray) and allowed.dtype.kind in "UO":
        allowed = allowed.tolist()
    items = list(allowed) if isinstance(allowed, list | tuple | set | frozenset) else []
    if items and are_texts(items):
        return [items] * n
    lists = len(items) == n and all(
        isinstance(item, list | tuple | set | frozenset) and item for item in items
    )
    return (
        [list(item) for item in items]
        if lists and are_texts(name for item in items for name in item)
        else None
    )
