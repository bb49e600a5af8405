"""A density: the name of a family and its argument arrays.

This is the narrow waist. Backends turn a probabilistic program into these objects; nothing after them knows which
probabilistic programming language the model was written in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

@dataclass(frozen=True)
class Density:
    """A batch of densities of one family.

    Parameters
    ----------
    family
        A name registered in `gedppl.families`, e.g. ``"Normal"``.
    args
        Argument arrays (NumPy, JAX or torch) that broadcast to the batch shape, ``(n,)`` or ``(M, n)``, or nested densities
        (``"Mixture"``, ``"ZeroInflated"``, ``"Independent"``).
    """

    family: str
    args: Mapping[str, Any]
