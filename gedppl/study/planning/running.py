"""What every simulation here needs: an agent made anew for each run, and a bar over runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from gedppl.agent import GEDUCB
from gedppl.errors import SettingError
from gedppl.problem import Problem

One = TypeVar("One")


def make_agent(given: Any, problem: Problem, delta: float, seed: int) -> Any:
    """Options of `GEDUCB` become one; a function (problem, delta, seed) makes its own."""
    if given is None or isinstance(given, Mapping):
        return GEDUCB(problem, **({"delta": delta, "seed": seed} | dict(given or {})))
    if not callable(given):
        raise SettingError(
            "agent must be options of GEDUCB, such as {'mode': 'theory'}, or a function "
            f"(problem, delta, seed) -> agent; got {given!r}"
        )
    return given(problem, delta, seed)


def shown(items: Iterable[One], total: int, progress: bool, unit: str) -> Iterable[One]:
    """The items, with a bar if one is wanted."""
    if not progress:
        return items
    from tqdm import tqdm

    found: Iterable[One] = tqdm(items, total=total, unit=unit, dynamic_ncols=True)
    return found
