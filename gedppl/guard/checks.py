"""What all monitors check and ask."""

from __future__ import annotations

from typing import Any

import numpy as np

from gedppl.errors import SettingError


def check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise SettingError(f"delta must lie strictly between 0 and 1, got {delta}")


def crossed(log_peak: np.ndarray, delta: float) -> Any:
    """Whether evidence has reached 1/delta, for one run or for each of several."""
    alarmed = np.asarray(log_peak) >= -np.log(delta)
    return bool(alarmed) if alarmed.ndim == 0 else alarmed
