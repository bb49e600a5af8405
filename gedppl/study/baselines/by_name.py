"""Baselines by name, for a declared problem: their settings are read off its models.

Linear baselines take their features from the classes' linear predictors, R from the known noise, S
from the declared bounds, and L from the features seen so far. OPLB is not told in which direction
of the features the safe action lies. A problem that does not have these is refused by a sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gedppl.errors import SettingError
from gedppl.functionals import Functional
from gedppl.problem import Constraint, Problem
from gedppl.programs.contract import DensityClass, LinearPredictor, MemberList
from gedppl.study.baselines.doses_by_name import make_design
from gedppl.study.baselines.epsilon_greedy import EpsilonGreedy
from gedppl.study.baselines.finite_lp import FiniteLP
from gedppl.study.baselines.genop import GenOP
from gedppl.study.baselines.hp_ucb import HPUCB
from gedppl.study.baselines.lints import LinTS
from gedppl.study.baselines.linucb import LinUCB
from gedppl.study.baselines.opb import OPB
from gedppl.study.baselines.oplb import OPLB
from gedppl.study.baselines.plugin_greedy import PluginGreedy
from gedppl.study.baselines.plugin_mask import PluginMask
from gedppl.study.baselines.ridge import Features, LinearBaseline
from gedppl.study.baselines.roful import ROFUL
from gedppl.study.baselines.safe_lts import SafeLTS
from gedppl.study.baselines.safe_lucb import SafeLUCB
from gedppl.study.baselines.uccb import UCCB

# problem, one context (dx,), rounds, delta, seed
Maker = Callable[[Problem, np.ndarray, int, float, int], Any]


def make_baseline(
    name: str, problem: Problem, x: np.ndarray, *, rounds: int, delta: float = 0.05, seed: int = 0
) -> Any:
    """A baseline by name for a problem; x (dx,) is any context, to see the models' features at."""
    if name not in BASELINES:
        raise SettingError(f"there is no baseline {name!r}; choose from {', '.join(BASELINES)}")
    return BASELINES[name](problem, np.asarray(x, float), rounds, delta, seed)


# what linear baselines are told -------------------------------------------------------------------


def _limit(problem: Problem, name: str) -> Constraint:
    if len(problem.constraints) != 1 or problem.known:
        raise SettingError(
            f"{name} keeps one learned limit; this problem has "
            f"{len(problem.constraints)} ({problem.constraints})"
        )
    limit = problem.learned[0][1]
    if limit.outcome is not None or (limit.functional.name, problem.utility.functional.name) != (
        "mean",
        "mean",
    ):
        raise SettingError(
            f"{name} needs a utility and a cost that are means of outcomes of their own"
        )
    return limit


def _predictor(cls: Any, what: str, name: str, x: np.ndarray, K: int) -> LinearPredictor:
    cls.trace(x[None], np.zeros(1, np.int64))
    found: LinearPredictor | None = cls.predictor
    if found is None or (found.family, found.link) != ("Normal", "identity"):
        raise SettingError(f"{name} needs a linear-Gaussian {what}; this class is {cls!r}")
    if np.any(np.asarray(found.offset(np.repeat(x[None], K, axis=0), np.arange(K))) != 0):
        raise SettingError(
            f"{name} needs a {what} that is linear in its parameters; this one has an offset"
        )
    return found


def _bound(cls: Any, what: str, name: str) -> float:
    """S: |theta| <= S from the declared bounds of all sites."""
    squares = []
    for site in cls.sites:
        bound = cls.bounds.get(site.name)
        if bound is None:
            raise SettingError(
                f"{name} needs a bound on {what}'s parameter {site.name!r}: density_class(..., "
                f"bounds={{{site.name!r}: S}})"
            )
        squares.append(
            float(bound) ** 2
            if np.ndim(bound) == 0
            else float((np.abs(np.asarray(bound)).max(axis=0) ** 2).sum())
        )
    return float(np.sqrt(sum(squares)))


def _noise(predictor: LinearPredictor, what: str, name: str, x: np.ndarray, K: int) -> float:
    scale = np.asarray(predictor.fixed(np.repeat(x[None], K, axis=0), np.arange(K))["scale"], float)
    if np.ptp(scale) > 1e-12 * scale.max():
        raise SettingError(
            f"{name} knows one noise level; the {what}'s differs between actions "
            f"({scale.min()} to {scale.max()})"
        )
    return float(scale.max())


def _shared_features(first: LinearPredictor, second: LinearPredictor, name: str) -> Features:
    def features(x: np.ndarray, a: np.ndarray) -> np.ndarray:
        phi, other = (np.asarray(p.features(x, a), float) for p in (first, second))
        if phi.shape != other.shape or not np.array_equal(phi, other):
            raise SettingError(
                f"{name} needs one set of features for utility and cost; these classes differ"
            )
        return phi

    return features


def _linear_settings(
    name: str, problem: Problem, x: np.ndarray, delta: float, seed: int
) -> tuple[Any, dict[str, Any]]:
    limit, K, safe = _limit(problem, name), problem.n_actions, int(problem.safe_action or 0)
    gain, cost = problem.utility.model, limit.model
    reward, harm = (
        _predictor(cls, what, name, x, K) for cls, what in ((gain, "utility"), (cost, "cost"))
    )
    settings = {
        "n_actions": K,
        "dim": reward.features(x[None], np.zeros(1, np.int64)).shape[1],
        "tau": limit.at_most,
        "safe_action": safe,
        "safe_utility": float(problem.safe_utilities(x[None])[0]),
        "delta": delta,
        "seed": seed,
        "sigma": _noise(reward, "utility", name, x, K),
        "norm_bound": _bound(gain, "the utility", name),
    }
    more = {
        "cost_sigma": _noise(harm, "cost", name, x, K),
        "cost_norm_bound": _bound(cost, "the cost", name),
        "utility_high": problem.utility.functional.high,
        "cost_high": limit.functional.high,
        "feature_bound": None,
        "safe_value": lambda context: float(problem.safe_values(context[None])[0, 0]),
    }
    return _shared_features(reward, harm, name), settings | more


def _linear(cls: type[LinearBaseline], **chosen: Any) -> Maker:
    def make(
        problem: Problem, x: np.ndarray, rounds: int, delta: float, seed: int
    ) -> LinearBaseline:
        features, settings = _linear_settings(cls.__name__, problem, x, delta, seed)
        return cls(features, **(settings | chosen))

    return make


def _safe_lucb(problem: Problem, x: np.ndarray, rounds: int, delta: float, seed: int) -> SafeLUCB:
    features, settings = _linear_settings("SafeLUCB", problem, x, delta, seed)
    return SafeLUCB(features, explore=int(np.ceil(rounds ** (2 / 3))), **settings)


def _oplb(form: str) -> Maker:
    def make(problem: Problem, x: np.ndarray, rounds: int, delta: float, seed: int) -> OPLB:
        features, known = _linear_settings("OPLB", problem, x, delta, seed)
        first = known["safe_value"](x)

        def checked(contexts: np.ndarray, a: np.ndarray) -> np.ndarray:
            here = known["safe_value"](contexts[0])
            if here != first:
                raise SettingError(
                    f"OPLB knows one cost of the safe action; it was {first} at "
                    f"first and is {here} now"
                )
            found: np.ndarray = features(contexts, a)
            return found

        return OPLB(
            checked,
            n_actions=known["n_actions"],
            dim=known["dim"],
            tau=known["tau"],
            safe_value=first,
            safe_action=known["safe_action"],
            safe_utility=known["safe_utility"],
            sigma=max(known["sigma"], known["cost_sigma"]),
            delta=delta,
            norm_bound=max(known["norm_bound"], known["cost_norm_bound"]),
            feature_bound=None,
            form=form,
            seed=seed,
        )

    return make


def _design(name: str) -> Maker:
    return lambda problem, x, rounds, delta, seed: make_design(name, problem, x, rounds, seed)


# the others ---------------------------------------------------------------------------------------


def _opb(problem: Problem, x: np.ndarray, rounds: int, delta: float, seed: int) -> OPB:
    limit = _limit(problem, "OPB")
    ranges = [(f.low, f.high) for f in (problem.utility.functional, limit.functional)]
    if ranges != [(0.0, 1.0), (0.0, 1.0)]:
        raise SettingError(f"OPB needs utility and cost in [0, 1], declared are {ranges}")
    return OPB(
        n_actions=problem.n_actions,
        tau=limit.at_most,
        safe_value=float(problem.safe_values(x[None])[0, 0]),
        safe_action=int(problem.safe_action or 0),
        safe_utility=float(problem.safe_utilities(x[None])[0]),
        horizon=max(rounds, 2),
        seed=seed,
    )


def _finite_lp(problem: Problem, x: np.ndarray, rounds: int, delta: float, seed: int) -> FiniteLP:
    limit, K = _limit(problem, "FiniteLP"), problem.n_actions

    def parametric(cls: DensityClass) -> MemberList:
        raise SettingError(f"FiniteLP needs finite classes, from ged.finite_class; got {cls!r}")

    gain, cost = (
        model.visit(lambda members: members, parametric)
        for model in (problem.utility.model, limit.model)
    )

    def likelihood(cls: MemberList) -> Callable[[np.ndarray, int, float], np.ndarray]:
        return lambda x, a, y: cls.log_likelihood(cls.every, x[None], np.array([a]), np.array([y]))[
            :, 0
        ]

    def values(cls: MemberList, functional: Functional) -> Callable[[np.ndarray], np.ndarray]:
        return lambda x: cls.values(
            functional, cls.every, np.repeat(x[None], K, axis=0), np.arange(K)
        )

    return FiniteLP(
        likelihood(gain),
        likelihood(cost),
        values(gain, problem.utility.functional),
        values(cost, limit.functional),
        n_actions=K,
        tau=limit.at_most,
        safe_value=float(problem.safe_values(x[None])[0, 0]),
        safe_action=int(problem.safe_action or 0),
        safe_utility=float(problem.safe_utilities(x[None])[0]),
        utility_high=problem.utility.functional.high,
        delta=delta,
        seed=seed,
    )


BASELINES: dict[str, Maker] = {
    "oplb": _oplb("per_action"),
    "oplb-joint": _oplb("joint"),
    "opb": _opb,
    "safe-lts": _linear(SafeLTS),
    "safe-lucb": _safe_lucb,
    "roful": _linear(ROFUL),
    "genop": _linear(GenOP),
    "hp-ucb": _linear(HPUCB),
    "finite-lp": _finite_lp,
    "plugin-mask": _linear(PluginMask),
    "plugin-greedy": lambda problem, x, rounds, delta, seed: PluginGreedy(problem, seed=seed),
    "linucb": _linear(LinUCB, limits="ignore"),
    "linucb-penalised": _linear(LinUCB, limits="penalise"),
    "linucb-filtered": _linear(LinUCB, limits="filter"),
    "lints-penalised": _linear(LinTS, limits="penalise"),
    "lints-filtered": _linear(LinTS, limits="filter"),
    "epsilon-greedy": _linear(EpsilonGreedy),
    "uccb": lambda problem, x, rounds, delta, seed: UCCB(problem, delta=delta, seed=seed),
    "3+3": _design("3+3"),
    "boin": _design("boin"),
    "crm": _design("crm"),
    "ewoc": _design("ewoc"),
}
# whose limits are kept in all rounds with probability 1 - delta, if the model is right
GUARANTEED = (
    "oplb",
    "oplb-joint",
    "safe-lts",
    "safe-lucb",
    "roful",
    "genop",
    "hp-ucb",
    "linucb-filtered",
    "lints-filtered",
    "finite-lp",
)
