"""How much of delta each set gets, and the weight of the bonus: beta_t = 1/2 sqrt(Q_t t / K)."""

from __future__ import annotations

import math

import numpy as np

from gedppl.classes import DensityClass, MemberList
from gedppl.ged_ucb.state import State
from gedppl.problem import UTILITY, Problem
from gedppl.settings import Settings


def delta_shares(problem: Problem, chosen: Settings) -> dict[str, float]:
    """How much of delta each outcome's set may miss with.

    Theory: half for feasibility, shared by the outcomes that constraints learn from, half for the utility's error, which the
    regret theorem needs. The default claims the limits only, so all of delta is theirs, and the utility's set, which then
    sets no more than the size of the bonus, takes as much again. The paper's formulas split delta inside (delta / (2 t^3)).
    """
    if chosen.mode == "paper":
        return dict.fromkeys(problem.streams, chosen.delta)
    constrained = {c.stream for _, c in problem.learned}
    whole = chosen.delta / 2 if chosen.mode == "theory" else chosen.delta
    return {UTILITY: whole} | {stream: whole / len(constrained) for stream in constrained}


def exploration(state: State) -> float:
    """Q_t of beta_t = 1/2 sqrt(Q_t t / K), in squared utility units.

    The theorem's Q, for the regret bound:
        finite class, T Lipschitz in Hellinger distance:  L^2 log(|F|/delta) + B^2,
        otherwise:  2 sup_C sum_i (T_theta - T_theta_hat)^2 + 1.255 B^2 (complexity + log(1/delta)) + B^2,
    with complexity log |F|, or D log(1+t) for D parameters (the supremum is linearised there). The default mode leaves out the
    middle term, which pays for a union bound and does not shrink with the noise.
    """
    functional = state.problem.utility.functional
    learner, model = state.learners[UTILITY], state.problem.utility.model
    spread = functional.high - functional.low
    q = 2 * learner.squared_deviation(functional) + spread**2
    if state.settings.mode == "default":
        return q
    log_delta = math.log(1 / delta_shares(state.problem, state.settings)[UTILITY])
    complexity = model.visit(lambda members: math.log(members.size), lambda cls: cls.dim * math.log1p(state.told))
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
    return state.settings.bonus_scale * weight


def _paper_bonus_weight(state: State, i: np.ndarray) -> np.ndarray:
    """The printed beta_t, with L_1 the functional's Lipschitz constant in total variation.

    Finite:  sqrt((34 log(2|F|t^3/delta) + 2 L_1^2 Est(F, t, delta/(2t^3))) t / K), Est = log(|F| 2t^3/delta).
    Parametric (corollary):  sqrt((72 (d log(2+t) + log(2t^3/delta)) + L_D^2 + 2 L_1^2 Est) t / K).
    """
    problem, delta = state.problem, state.settings.delta
    functional, model = problem.utility.functional, problem.utility.model
    lipschitz = functional.high - functional.low
    log_t = np.log(2 * i**3 / delta)

    def finite(members: MemberList) -> np.ndarray:
        log_class = math.log(members.size) + log_t
        return 34 * log_class + 2 * lipschitz**2 * log_class

    def parametric(cls: DensityClass) -> np.ndarray:
        est = state.learners[UTILITY].paper_estimate(delta / (2 * i**3))  # type: ignore[attr-defined]
        return 72 * (cls.dim * np.log(2 + i) + log_t) + 2 * lipschitz**2 + 2 * lipschitz**2 * est

    return np.sqrt(model.visit(finite, parametric) * i / problem.n_actions)
