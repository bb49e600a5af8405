"""One cell of a published table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Cell:
    """What was measured here beside what was published; `published` is None where there is no
    number for this horizon.
    """

    setting: str
    algorithm: str
    tau: float | None
    ours: float
    published: float | None = None
    standard_error: float | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """For one JSON line."""
        ratio = None if not self.published else self.ours / self.published
        return asdict(self) | {"ratio": ratio}
