"""What the algorithm may be told, and the three presets: default, theory, paper."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gedppl.errors import SettingError

# Exploration weights of the default mode, chosen once on a spread of problems by `benchmarks/regret.py`: smaller bonuses lock
# in on an arm that the first fits favour, larger ones explore for nothing; widths of .1 to .3 do equally well, 0 locks in.
DEFAULT_BONUS_SCALE = 0.2
DEFAULT_WIDTH_SCALE = 0.1
SELECTIONS = ("per_action", "joint")


@dataclass(frozen=True)
class Settings:
    """Everything the algorithm may be told, resolved from a mode."""

    mode: str
    delta: float
    bonus_scale: float
    width_scale: float
    warmup: str  # "none", "paper" or "safe-m"
    growth: float  # refit once the told rounds have grown by this factor; 1 refits at every round
    exact_rounds: float  # up to this round every past round is replayed one by one, beyond it block by block
    selection: str = "per_action"  # or "joint": how the worst case of a policy is taken
    radius: Any = None
    oracle: Any = None
    seed: int = 0


def settings(
    mode: str = "default",
    *,
    delta: float = 0.05,
    warmup: str | None = None,
    bonus_scale: float | None = None,
    width_scale: float | None = None,
    growth: float | None = None,
    exact_rounds: float | None = None,
    selection: str = "per_action",
    oracle: Any = None,
    radius: Any = None,
    seed: int = 0,
) -> Settings:
    """Resolve a mode and the caller's own choices.

    ``"default"``: corrected sets, practical exploration weights. ``"theory"``: the weights the corrected regret theorem
    needs. ``"paper"``: every formula as printed, in the per-action form. `bonus_scale` and `width_scale` multiply the
    theorem's weights and never touch feasibility.

    `selection`: ``"per_action"`` bounds a policy's cost by the average of its actions' worst cases. ``"joint"`` takes the worst
    case of the whole policy over the confidence set, which is less where errors do not line up; for limits on means of
    linear-Gaussian classes (and known costs). It is dearer, so it replays the past in blocks from the start by default.
    """
    presets: dict[str, dict[str, Any]] = {
        "default": {
            "bonus_scale": DEFAULT_BONUS_SCALE,
            "width_scale": DEFAULT_WIDTH_SCALE,
            "warmup": "none",
            "growth": 1.05,
            "exact_rounds": 300,
        },
        "theory": {"bonus_scale": 1.0, "width_scale": 1.0, "warmup": "none", "growth": 1.02, "exact_rounds": 2000},
        "paper": {"bonus_scale": 1.0, "width_scale": 1.0, "warmup": "paper", "growth": 1.0, "exact_rounds": math.inf},
    }
    if selection not in SELECTIONS:
        raise SettingError(f"selection must be one of {SELECTIONS}, got {selection!r}")
    if selection == "joint":
        if mode == "paper":
            raise SettingError('mode="paper" is the per-action form of the algorithm: use selection="per_action" with it')
        presets["default"]["exact_rounds"] = 0
    if mode not in presets:
        raise SettingError(f"mode must be one of {sorted(presets)}, got {mode!r}")
    if not (isinstance(delta, (int, float)) and 0 < delta < 1):
        raise SettingError(f"delta must lie strictly between 0 and 1, got {delta!r}; 0.05 is customary")
    given: dict[str, Any] = {"warmup": warmup, "bonus_scale": bonus_scale, "width_scale": width_scale}
    given |= {"growth": growth, "exact_rounds": exact_rounds}
    chosen = presets[mode] | {name: value for name, value in given.items() if value is not None}
    for name in ("bonus_scale", "width_scale"):
        if not (math.isfinite(chosen[name]) and chosen[name] >= 0):
            raise SettingError(f"{name} must be a finite number of at least 0, got {chosen[name]!r}")
    if not chosen["growth"] >= 1:
        raise SettingError(f"growth must be at least 1, got {chosen['growth']!r}; 1 refits after every round")
    warmup_rounds(chosen["warmup"], 1)
    if mode == "paper" and radius is None:
        from gedppl.radius import paper_radius

        radius = paper_radius()
    return Settings(mode=mode, delta=float(delta), radius=radius, oracle=oracle, seed=int(seed), selection=selection, **chosen)


def warmup_rounds(warmup: str, n_actions: int) -> int:
    """Rounds before the first policy is computed: 0, K, or m for ``"safe-m"``."""
    if warmup == "none":
        return 0
    if warmup == "paper":
        return n_actions
    head, _, count = str(warmup).partition("-")
    if head == "safe" and count.isdigit():
        return int(count)
    raise SettingError(f'warmup must be "none", "paper" or "safe-m" with a number m, e.g. "safe-10"; got {warmup!r}')
