"""Problems as people of different fields write them: a model, a limit, and a world to try it in.

Each file has `problem()`, what its author would declare, and `World(seed)`, with a truth that the
seed draws from a sensible region inside that declaration, and the exact utilities and costs. They
are here to be measured on, not to choose anything by: no weight of the agent was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Field:
    """A problem by the name of its file; `inside`: whether the model holds the truth."""

    file: str
    options: tuple[tuple[str, Any], ...] = ()
    inside: bool = True

    @property
    def module(self) -> ModuleType:
        return import_module(f"{__name__}.{self.file}")

    @property
    def world(self) -> Callable[[int], Any]:
        return partial(self.module.World, **dict(self.options))


FIELDS = {name: Field(name) for name in ("sedation", "inventory", "dental", "energy", "triage")}
FIELDS |= {name: Field(name) for name in ("quality", "discount", "irrigation", "queue", "credit")}
FIELDS["queue, overdispersed"] = Field("queue", (("dispersion", 3.0),), inside=False)
