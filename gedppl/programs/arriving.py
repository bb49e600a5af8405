"""Classes that come from another process: many tasks bring the same, and it is compiled once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gedppl.programs import LOCK

if TYPE_CHECKING:
    from gedppl.programs.contract import Params, Program
    from gedppl.programs.program import ProgramClass

# by token
ARRIVED: OrderedDict[str, ProgramClass] = OrderedDict()
MOST_ARRIVED = 16


def arrived(
    token: str,
    model: Program,
    init: Params,
    bounds: Mapping[str, Any],
    rows: tuple[Any, Any] | None,
) -> ProgramClass:
    """A class that came from another process, or its copy that came before."""
    from gedppl.programs.program import ProgramClass

    with LOCK:
        known = ARRIVED.pop(token, None)
        if known is None:
            known = ProgramClass(model, init=init, bounds=bounds)
            known._token = token
        if rows is not None:
            known.trace(*rows)
        ARRIVED[token] = known
        while len(ARRIVED) > MOST_ARRIVED:
            ARRIVED.popitem(last=False)
    return known
