"""What the algorithm may be told (three presets: default, theory, paper), what it knows at a
round, and its weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gedppl.errors import SettingError
from gedppl.learning.credible import credible_set
from gedppl.learning.learner import Bounds, BoundsMemo, Learner
from gedppl.learning.oracles import Oracle
from gedppl.learning.radius import paper_radius
from gedppl.numerics.arrays import check_delta, is_number, is_one_of, is_whole
from gedppl.problem import UTILITY, Problem
from gedppl.programs.contract import DensityClass, MemberList

# Exploration weights of the default mode, bonus and width, chosen once on a spread of problems by
# `benchmarks/weights.py`: smaller bonuses lock in on an arm that the first fits favour, larger ones
# explore for nothing.
DEFAULT_SCALES = {"sets": (0.7, 0.1), "counterfactual": (0.2, 0.1), "thompson": (1.0, 0.0)}
EXPLORATIONS = ("sets", "counterfactual", "thompson")
MODES = ("default", "paper", "theory")
LARGEST_SCALE = 1e9


@dataclass(frozen=True)
class Settings:
    """Everything the algorithm may be told, resolved from a mode."""

    mode: str
    delta: float
    bonus_scale: float
    width_scale: float
    warmup: str  # "none", "paper" or "safe-m"
    growth: float  # refit once the told rounds have grown by this factor; 1 refits at every round
    # up to this round every past round is replayed one by one, beyond it block by block
    exact_rounds: float
    exploration: str = "sets"  # "counterfactual" or "thompson"
    confidence: Any = None  # one for all, or a mapping by stream; None: the mode's own
    oracle: Any = None  # likewise; None: chosen by the model
    seed: int = 0

    def confidence_of(self, stream: str) -> Any:
        """The rule of one outcome's set."""
        chosen = _of_stream(self.confidence, stream)
        if (
            self.exploration == "thompson"
            and stream == UTILITY
            and (chosen is None or chosen.source is None)
        ):
            return credible_set()  # what it is drawn from
        return paper_radius() if chosen is None and self.mode == "paper" else chosen

    def oracle_of(self, stream: str) -> Any:
        """How one outcome's model is fitted."""
        return _of_stream(self.oracle, stream)

    def check(self, streams: Mapping[str, Any], n_actions: int) -> None:
        """Refuse what cannot serve these outcomes (name -> class): a name that does not exist, a
        rule that lacks what it needs, fewer draws than K actions take.

        A class that was not run yet is looked at when it was, before the first decision.
        """
        self._check_names(streams)
        if self.mode == "paper" and self.confidence_of(UTILITY).source is not None:
            raise SettingError(
                'mode="paper" takes the size of its bonus from the paper\'s radius: give a rule '
                "over draws to constraints only, "
                "confidence={'...': credible_set()}"
            )
        for name, model in streams.items():
            rule, oracle = self.confidence_of(name), self.oracle_of(name)
            if rule is not None and rule.source is not None:
                _named(f"confidence of {name!r}", rule.check_size, model, n_actions)
            if model.traced and rule is not None:
                _named(f"confidence of {name!r}", rule.check, model, oracle)
            if model.traced and isinstance(oracle, Oracle):
                _named(f"oracle of {name!r}", oracle.check, model)

    def _check_names(self, streams: Collection[str]) -> None:
        for name, value in (("oracle", self.oracle), ("confidence", self.confidence)):
            unknown = [s for s in by_stream(value) if s != EVERY and s not in streams]
            if unknown:
                raise SettingError(
                    f"{name} names {unknown[0]!r}, which is no outcome that is learned; choose "
                    f"from {list(streams)}"
                )


def _named(what: str, check: Callable[..., None], *args: Any) -> None:
    try:
        check(*args)
    except SettingError as error:
        raise SettingError(f"{what}: {error}") from error


EVERY = object()  # stands for all outcomes in what `by_stream` returns


def by_stream(value: Any) -> Mapping[Any, Any]:
    """A choice by outcome, as it was given, or the one for every outcome."""
    return value if isinstance(value, Mapping) else {EVERY: value}


def _of_stream(value: Any, stream: str) -> Any:
    chosen = by_stream(value)
    return chosen.get(stream, chosen.get(EVERY))


def settings(
    mode: str = "default",
    *,
    delta: float = 0.05,
    warmup: str | None = None,
    bonus_scale: float | None = None,
    width_scale: float | None = None,
    growth: float | None = None,
    exact_rounds: float | None = None,
    exploration: str | None = None,
    oracle: Any = None,
    confidence: Any = None,
    seed: int = 0,
) -> Settings:
    """Resolve a mode and the caller's own choices.

    `oracle` and `confidence` are one for all outcomes, or a mapping by stream: ``"utility"`` or a
    constraint's name.

    ``"default"``: corrected sets, practical exploration weights. ``"theory"``: the weights the
    corrected regret theorem needs. ``"paper"``: every formula as printed, in the per-action form.
    `bonus_scale` and `width_scale` multiply the theorem's weights and never touch feasibility.

    `exploration`: ``"sets"`` is optimistic through the utility's own set; `bonus_scale` is then its
    weight rho and `width_scale` the weight w of the cost bounds' width. ``"counterfactual"`` is the
    paper's: past rounds are replayed at today's context, and the scales multiply beta_t and
    alpha_r. ``"thompson"``: the utility under one draw of its parameters; `bonus_scale` multiplies
    its distance from the estimate. The default mode explores by sets, the other two by
    counterfactuals.
    """
    if exploration is not None and not is_one_of(exploration, EXPLORATIONS):
        raise SettingError(f"exploration must be one of {EXPLORATIONS}, got {exploration!r}")
    if not is_one_of(mode, MODES):
        raise SettingError(f"mode must be one of {MODES}, got {mode!r}")
    if mode == "paper" and exploration == "sets":
        raise SettingError(
            'mode="paper" is the paper\'s algorithm, which explores by counterfactuals; use '
            'mode="theory" with "sets"'
        )
    if mode != "default" and exploration == "thompson":
        raise SettingError(
            f'mode={mode!r} has a theorem of its own, which is not about draws; use mode="default" '
            'with "thompson"'
        )
    explored = exploration or ("sets" if mode == "default" else "counterfactual")
    bonus, width = DEFAULT_SCALES[explored]
    presets: dict[str, dict[str, Any]] = {
        "default": {
            "bonus_scale": bonus,
            "width_scale": width,
            "warmup": "none",
            "growth": 1.05,
            "exact_rounds": 300,
        },
        "theory": {
            "bonus_scale": 1.0,
            "width_scale": 1.0,
            "warmup": "none",
            "growth": 1.02,
            "exact_rounds": 2000,
        },
        "paper": {
            "bonus_scale": 1.0,
            "width_scale": 1.0,
            "warmup": "paper",
            "growth": 1.0,
            "exact_rounds": math.inf,
        },
    }
    check_delta(delta)
    if not is_whole(seed) or not 0 <= int(seed) < 2**64:
        raise SettingError(f"seed must be a whole number from 0 to 2^64 - 1, got {seed!r}")
    oracle = _checked("oracle", oracle, callable, "one of the oracles or a callable like them")
    confidence = _checked(
        "confidence", confidence, _is_rule, "a rule such as likelihood_ratio() or credible_set()"
    )
    given: dict[str, Any] = {
        "warmup": warmup,
        "bonus_scale": bonus_scale,
        "width_scale": width_scale,
    }
    given |= {"growth": growth, "exact_rounds": exact_rounds}
    chosen = presets[mode] | {name: value for name, value in given.items() if value is not None}
    for name in ("bonus_scale", "width_scale", "growth", "exact_rounds"):
        if is_number(chosen[name]):
            chosen[name] = _plain(chosen[name])
    for name in ("bonus_scale", "width_scale"):
        if not (is_number(chosen[name]) and 0 <= chosen[name] <= LARGEST_SCALE):
            raise SettingError(
                f"{name} must be a finite number of at least 0, up to "
                f"{LARGEST_SCALE:g}, got {chosen[name]!r}"
            )
    if not (is_number(chosen["growth"]) and 1 <= chosen["growth"] <= LARGEST_SCALE):
        raise SettingError(
            f"growth must be at least 1 and finite, got {chosen['growth']!r}; 1 "
            "refits after every round"
        )
    if not (is_number(chosen["exact_rounds"]) and chosen["exact_rounds"] >= 0):
        raise SettingError(
            f"exact_rounds must be a number of at least 0, got {chosen['exact_rounds']!r}"
        )
    warmup_rounds(chosen["warmup"], 1)
    return Settings(
        mode=mode,
        delta=float(delta),
        confidence=confidence,
        oracle=oracle,
        seed=int(seed),
        exploration=explored,
        **chosen,
    )


def _checked(name: str, value: Any, fits: Callable[[Any], bool], what: str) -> Any:
    """A choice for all outcomes, or one for each in a dictionary of our own."""
    chosen = by_stream(value)
    if not chosen:
        raise SettingError(
            f"{name} is a mapping by outcome that names none; leave it out to have "
            "the model's own choice"
        )
    for one in chosen.values():
        if one is not None and not fits(one):
            raise SettingError(
                f"{name} must be {what}, or a mapping of them by outcome, got {one!r}"
            )
    return chosen[EVERY] if EVERY in chosen else dict(chosen)


def _is_rule(value: Any) -> bool:
    methods = all(callable(getattr(value, part, None)) for part in ("describe", "check"))
    return methods and not isinstance(value, type) and hasattr(value, "source")


def _plain(value: Any) -> int | float:
    """The number as Python's own, so that a journal stores and compares it alike."""
    return int(value) if is_whole(value) else float(value)


def warmup_rounds(warmup: str, n_actions: int) -> int:
    """Rounds before the first policy is computed: 0, K, or m for ``"safe-m"``."""
    if not isinstance(warmup, str):
        raise SettingError(f'warmup must be "none", "paper" or "safe-m", got {warmup!r}')
    if warmup == "none":
        return 0
    if warmup == "paper":
        return n_actions
    head, _, count = warmup.partition("-")
    if head == "safe" and count.isdigit():
        return int(count)
    raise SettingError(
        'warmup must be "none", "paper" or "safe-m" with a number m, e.g. '
        f'"safe-10"; got {warmup!r}'
    )


# ==================================================================================================
# What the algorithm keeps between rounds, and what it says about a selection.
#
# Axis letters: C contexts asked together, K actions, J constraints.
# ==================================================================================================


@dataclass(frozen=True)
class Block:
    """A stretch of rounds that share a snapshot, the limits and the actions on offer."""

    start: int  # the first round it is in force for
    snapshot: int
    # Q of the bonus weight: squared utility error the data still allow, summed over rounds
    exploration: float
    limits: np.ndarray  # (J,)
    available: np.ndarray  # (K,) bool


@dataclass(frozen=True)
class State:
    """What the next round needs."""

    problem: Problem
    settings: Settings
    learners: Mapping[str, Learner]
    t: int  # rounds decided
    told: int  # rounds whose outcome is known
    refit_at: int  # refit once `told` reaches this
    blocks: tuple[Block, ...]
    # of the utility in Hellinger distance, for a finite class and where there is such a constant
    lipschitz: float | None
    # (K,) rounds told, by action: ties go to the least played; (S, K) of S runs decided together
    played: np.ndarray
    warmup: int  # rounds before the first policy is computed
    bounds_of: BoundsMemo = field(default_factory=BoundsMemo)


@dataclass(frozen=True)
class Info:
    """What a reader wants to know about a selection."""

    utility: np.ndarray  # (C, K) estimated
    bonus: np.ndarray  # (C, K) rho (u+ - estimate), or beta_t E[1/(N+1)]
    width: np.ndarray  # (C, K) alpha_r times the width of the cost bounds
    cost_lower: np.ndarray  # (C, J, K)
    cost_upper: np.ndarray  # (C, J, K)
    limits: np.ndarray  # (J,)
    bounds: tuple[Bounds | None, ...]  # J; None where the cost is known
    worst: np.ndarray  # (C, J) of the policy, as each limit counts it
    engine: str
    notes: tuple[str, ...]
    unlimited: bool = False  # the paper's warm-up: played whatever the limits are


# ==================================================================================================
# How much of delta each set gets, and the weight of the bonus: beta_t = 1/2 sqrt(Q_t t / K).
# ==================================================================================================


def delta_shares(problem: Problem, chosen: Settings) -> dict[str, float]:
    """How much of delta each outcome's set may miss with.

    Theory: half for feasibility, shared by the outcomes that constraints learn from, half for the
    utility's error, which the regret theorem needs. The default claims the limits only, so all of
    delta is theirs, and the utility's set, which then sets no more than the size of the bonus,
    takes as much again. The paper's formulas split delta inside (delta / (2 t^3)).
    """
    if chosen.mode == "paper":
        return dict.fromkeys(problem.streams, chosen.delta)
    constrained = {c.stream for _, c in problem.learned}
    whole = chosen.delta / 2 if chosen.mode == "theory" else chosen.delta
    return {UTILITY: whole} | {stream: whole / len(constrained) for stream in constrained}


def exploration(state: State) -> float:
    """Q_t of beta_t = 1/2 sqrt(Q_t t / K), in squared utility units.

    The theorem's Q, for the regret bound:
        finite class, T Lipschitz in Hellinger distance:  L^2 log(|F|/delta) + B^2, otherwise:  2
        sup_C sum_i (T_theta - T_theta_hat)^2 + 1.255 B^2 (complexity + log(1/delta)) + B^2,
    with complexity log |F|, or D log(1+t) for D parameters (the supremum is linearised there). The
    default mode leaves out the middle term, which pays for a union bound and does not shrink with
    the noise.
    """
    functional = state.problem.utility.functional
    learner, model = state.learners[UTILITY], state.problem.utility.model
    spread = functional.high - functional.low
    q: float = 2 * learner.squared_deviation(functional) + spread**2
    if state.settings.mode == "default":
        return q
    log_delta = math.log(1 / delta_shares(state.problem, state.settings)[UTILITY])
    complexity = model.visit(
        lambda members: math.log(members.size), lambda cls: cls.dim * math.log1p(state.told)
    )
    q += 1.255 * spread**2 * (complexity + log_delta)
    if state.lipschitz is not None:  # of finite classes only
        q = min(q, state.lipschitz**2 * (complexity + log_delta) + spread**2)
    return q


def bonus_weights(state: State, rounds: np.ndarray, q: np.ndarray) -> np.ndarray:
    """beta at the given rounds (counted from 0), for blocks with the given Q."""
    i, n_actions = rounds + 1.0, state.problem.n_actions
    if state.settings.mode == "paper":
        weight = _paper_bonus_weight(state, i)
    else:
        weight = 0.5 * np.sqrt(q * i / n_actions)
    scaled: np.ndarray = state.settings.bonus_scale * weight
    return scaled


def _paper_bonus_weight(state: State, i: np.ndarray) -> np.ndarray:
    """The printed beta_t, with L_1 the functional's Lipschitz constant in total variation.

    Finite:  sqrt((34 log(2|F|t^3/delta) + 2 L_1^2 Est(F, t, delta/(2t^3))) t / K), Est = log(|F|
    2t^3/delta). Parametric (corollary):  sqrt((72 (d log(2+t) + log(2t^3/delta)) + L_D^2 + 2 L_1^2
    Est) t / K).
    """
    problem, delta = state.problem, state.settings.delta
    functional, model = problem.utility.functional, problem.utility.model
    lipschitz = functional.high - functional.low
    log_t = np.log(2 * i**3 / delta)

    def finite(members: MemberList) -> np.ndarray:
        log_class = math.log(members.size) + log_t
        return 34 * log_class + 2 * lipschitz**2 * log_class

    def parametric(cls: DensityClass) -> np.ndarray:
        est: np.ndarray = state.learners[UTILITY].paper_estimate(delta / (2 * i**3))  # type: ignore[attr-defined]
        term: np.ndarray = (
            72 * (cls.dim * np.log(2 + i) + log_t) + 2 * lipschitz**2 + 2 * lipschitz**2 * est
        )
        return term

    weight: np.ndarray = np.sqrt(model.visit(finite, parametric) * i / problem.n_actions)
    return weight
