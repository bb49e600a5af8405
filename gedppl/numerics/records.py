"""The next state of an immutable record."""

from __future__ import annotations

from typing import Any, TypeVar

Record = TypeVar("Record")


def evolved(record: Record, **changes: Any) -> Record:
    """`dataclasses.replace` for a frozen dataclass that checks nothing when it is made, at a fraction of the cost.

    A decision evolves some twenty records. Cached properties are left behind: they belong to the old values.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Count:
    ...     name: str
    ...     n: int
    >>> evolved(Count("rounds", 1), n=2)
    Count(name='rounds', n=2)
    """
    fields: dict[str, Any] = type(record).__dataclass_fields__  # type: ignore[attr-defined]
    before = record.__dict__
    values = {name: before[name] for name in fields}
    values.update(changes)
    if len(values) > len(fields):
        raise TypeError(f"{type(record).__name__} has no field {', '.join(sorted(set(values) - set(fields)))}")
    after = object.__new__(type(record))
    after.__dict__.update(values)
    return after
