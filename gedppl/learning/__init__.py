"""Which learner serves a class, and the confidence set as an object to ask questions of.

Axis letters: n contexts or rows, K actions, M members, D flat parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import singledispatch
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.errors import NotFiniteError, SettingError, ShapeError, renamed
from gedppl.learning.credible import CredibleSet, SampledSet
from gedppl.learning.drawn import DrawnLearner
from gedppl.learning.finite import FiniteLearner
from gedppl.learning.fits import WorkingPrior
from gedppl.learning.groups import action_groups, dependence, program_dependence
from gedppl.learning.learner import Group, Learner
from gedppl.learning.location_scale import LocationScaleLearner
from gedppl.learning.oracles import CLOSED_FORM, called
from gedppl.learning.programs import ProgramLearner
from gedppl.learning.radius import LikelihoodRatio, Rule
from gedppl.learning.reach import beyond_range
from gedppl.learning.sampled_sets import INNER, Members, members, sampled_bounds
from gedppl.learning.seen_class import fitting, served
from gedppl.numerics.arrays import check_delta, is_whole
from gedppl.programs.contract import DensityClass, MemberList
from gedppl.rows import grid
from gedppl.showing import Facts, Shown

if TYPE_CHECKING:
    from gedppl.functionals import Functional
    from gedppl.learning.learner import Bounds
    from gedppl.programs.contract import DensityClass

GROWTH = 1.1  # refit once the rows have grown by this factor
PRIOR_PROBES = 16  # draws at which a prior must be what its curvature says
PRIOR_DRAWS = 2000  # from which a prior that is not Gaussian is summarised
MIDDLE_HALF = 1.349  # standard deviations between the quartiles of a Gaussian


@dataclass(frozen=True)
class Where:
    """What is known of contexts and actions before any data."""

    x: np.ndarray  # (1, dx)
    n_actions: int
    wanted: tuple[int, ...]  # actions whose bounds will be asked for

    def groups(self, cls: DensityClass) -> tuple[Group, ...]:
        """Groups of actions with parameters of their own, as the program shows them."""
        return action_groups(self._depends(cls), self.wanted)

    def _depends(self, cls: DensityClass) -> np.ndarray:
        """(K, D) bool."""
        if cls.predictor is not None:
            return dependence(cls.predictor.features, self.n_actions, self.x)
        form = cls.location_scale
        if form is not None:
            scales = np.eye(form.n_groups)
            return dependence(
                lambda x, a: np.hstack([form.features(x, a), scales[form.group(x, a)]]),
                self.n_actions,
                self.x,
            )
        edges = cls.ordered
        if edges is not None:
            return dependence(
                lambda x, a: np.any(edges.features(x, a) != 0, axis=1), self.n_actions, self.x
            )
        return program_dependence(cls, self.n_actions, self.x)


def learner_for(
    cls: Any,
    *,
    delta: float,
    confidence: Rule | CredibleSet | SampledSet | None = None,
    oracle: Any = None,
    prior: WorkingPrior | None = None,
    seed: int = 0,
    known_direction: tuple[Any, Any] | None = None,
    where: Where | None = None,
    first: tuple[np.ndarray, int] | None = None,
    keep_past: bool = True,
) -> Any:
    """The learner that serves a class: a member list, the linear-Gaussian closed form, or ascent on
    the program.

    Parameters
    ----------
    cls
        From `density_class` (traced) or `finite_class`.
    confidence
        A rule from `gedppl.learning.radius` or `credible`; the default is the likelihood-ratio
        e-process in its exact form for the class.
    oracle, prior, seed
        For programs: how fits are found, the working prior of parameters without one, and the seed
        of the particles.
    known_direction
        For the linear-Gaussian closed form, see `LinearGaussianLearner.start`; other learners do
        not use it.
    where
        Contexts and actions to read off which action depends on which parameters: groups of actions
        then get sets of their own.
    first
        Without `where`: a context (1, dx) and the number of actions, from which parameters without
        a prior have their units.
    keep_past
        Whether `trail` will be asked for; otherwise only the newest snapshot is kept, where that
        saves memory.
    """
    check_delta(delta)
    if confidence is not None:
        confidence.check(cls, oracle)
    if isinstance(confidence, CredibleSet | SampledSet):
        base = learner_for(
            cls,
            delta=delta,
            oracle=oracle,
            prior=prior,
            seed=seed,
            known_direction=known_direction,
            where=where,
            first=first,
            keep_past=keep_past,
        )
        return DrawnLearner.start(
            base,
            cls,
            delta=delta,
            rule=confidence,
            oracle=oracle,
            seed=seed,
            n_actions=1 if where is None else where.n_actions,
        )
    own = cls.own_learner(delta)
    if own is not None:
        return own

    def finite(members: MemberList) -> Learner:
        return FiniteLearner.start(members, delta=delta, confidence=confidence)

    def parametric(cls: DensityClass) -> Learner:
        known = served(cls)
        fitted = fitting(known, oracle)
        return _parametric(
            known, delta, confidence, fitted, prior, seed, known_direction, where, first, keep_past
        )

    return cls.visit(finite, parametric)


def _parametric(
    cls: DensityClass,
    delta: float,
    confidence: Rule | None,
    oracle: Any,
    prior: WorkingPrior | None,
    seed: int,
    known_direction: tuple[Any, Any] | None,
    where: Where | None,
    first: tuple[np.ndarray, int] | None,
    keep_past: bool,
) -> Learner:
    rule = LikelihoodRatio() if confidence is None else confidence
    ratio = rule.process
    # else its draws are asked for
    closed = called(oracle) in CLOSED_FORM and rule.predictive == "laplace" and prior is None
    gaussian_outcome = cls.predictor is not None and cls.predictor.family == "Normal"
    if closed and gaussian_outcome and cls.predictor is not None and ratio is not None:
        from gedppl.learning.linear_gaussian import LinearGaussianLearner

        mean, precision = gaussian_prior(cls, seed)
        return LinearGaussianLearner.start(
            cls.predictor,
            cls.dim,
            delta=delta,
            prior_mean=mean,
            prior_precision=precision,
            norm_bound=norm_bounds(cls),
            restarts=ratio.restarts,
            intersect=ratio.intersect,
            known_direction=known_direction,
            groups=None if where is None else where.groups(cls),
            keep_past=keep_past,
        )
    groups = None if where is None or ratio is None else where.groups(cls)
    if closed and cls.location_scale is not None and ratio is not None:
        return LocationScaleLearner.start(
            cls, delta=delta, confidence=ratio, seed=seed, groups=groups, keep_past=keep_past
        )
    return ProgramLearner.start(
        cls,
        delta=delta,
        confidence=confidence,
        oracle=oracle,
        prior=prior,
        seed=seed,
        groups=groups,
        first=first if where is None else (where.x, where.n_actions),
    )


def gaussian_prior(cls: Any, seed: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Mean (D,) and precision (D, D) of the class's own prior, or of a Gaussian in its place; no
    precision if it has none.

    A prior that is not Gaussian is replaced by one with its median and the spread of its middle
    half. If a parameter has no prior there is none to bet on. Coverage does not depend on it: it
    sets the fit before data, and what is bet on.
    """
    origin = np.asarray(cls.initial, float)
    if np.all(cls.prior_free):
        return origin, None
    exact = None if np.any(cls.prior_free) else _parabola(cls, origin)
    if exact is not None:
        return exact
    draws = np.asarray(cls.draw_prior(PRIOR_DRAWS, seed), float)
    low, middle, high = np.quantile(draws, [0.25, 0.5, 0.75], axis=0)
    spread = (high - low) / MIDDLE_HALF
    known = ~cls.prior_free & np.isfinite(spread) & (spread > 0)
    return np.where(known, middle, origin), np.diag(spread**-2.0) if known.all() else None


def _parabola(cls: Any, origin: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Mean and precision of a prior whose logarithm, at draws from it, is the parabola that its
    slope and curvature say.
    """
    grad, hessian = cls.log_prior_grad_hessian(origin)
    scale = np.sqrt(np.abs(np.diag(hessian)))  # of each coordinate, in its own units
    if not (np.isfinite(hessian).all() and np.all(scale > 0)):
        return None
    if np.linalg.eigvalsh(-hessian / np.outer(scale, scale)).min() <= np.sqrt(np.finfo(float).eps):
        return None
    places = np.asarray(cls.draw_prior(PRIOR_PROBES, 0), float) - origin
    quadratic = places @ grad + 0.5 * np.einsum("md,de,me->m", places, hessian, places)
    change = np.asarray(cls.log_prior(origin + places), float) - float(cls.log_prior(origin))
    if not np.allclose(change, quadratic, rtol=1e-7, atol=1e-7):  # nats
        return None
    return origin + np.linalg.solve(-hessian, grad), -hessian


def norm_bounds(cls: DensityClass) -> list[tuple[np.ndarray, float]] | None:
    """[(indices, S), ...] with |theta[indices]| <= S, from the declared bounds; a box coordinate by
    coordinate, since each may have a unit of its own.
    """
    found: list[tuple[np.ndarray, float]] = []
    for site in cls.sites:
        if site.name not in cls.bounds:
            continue
        limit, places = cls.bounds[site.name], np.arange(site.start, site.stop)
        if isinstance(limit, tuple):
            ends = np.maximum(*(np.abs(np.broadcast_to(side, site.shape)) for side in limit))
            found += [(places[i : i + 1], float(end)) for i, end in enumerate(ends.ravel())]
        else:
            found.append((places, float(limit)))
    return [(places, size) for places, size in found if np.isfinite(size)] or None


# a set from data ----------------------------------------------------------------------------------


@renamed(radius="confidence")
def confidence_set(
    cls: Any,
    x: np.ndarray,
    a: np.ndarray,
    y: np.ndarray,
    delta: float = 0.05,
    *,
    confidence: Rule | CredibleSet | SampledSet | None = None,
    oracle: Any = None,
    prior: WorkingPrior | None = None,
    seed: int = 0,
    growth: float = GROWTH,
    n_actions: int | None = None,
) -> ConfidenceSet:
    """The parameters that rows x (n, dx), a (n,), y (n,) leave plausible, in the order in which
    they were collected.

    Parameters
    ----------
    cls
        The class, from `density_class` or `finite_class`.
    x, a, y
        They are taken in one after another, with a refit whenever they have grown by `growth`,
        because each outcome has to be predicted from the rows before it. Data collected adaptively
        are welcome.
    delta, confidence, oracle, seed, growth
        As for `GEDUCB`.
    prior
        Of parameters without one, for fits alone; weak if not given.
    n_actions
        Known before any outcome was seen, it lets groups of actions with parameters of their own
        have sets of their own, as an agent's have. How often actions occur in the rows cannot
        stand in for it, since that may depend on outcomes.

    Notes
    -----
    By default ``{theta : sum_i log p_theta(y_i) >= sum_i log q_i(y_i) - log(1 / delta)}``, q_i the
    predictive density of y_i from the rows before it (`likelihood_ratio`). The truth lies in the
    sets of all n at once with probability at least 1 - delta. Not guaranteed: anything, if the
    truth is not in the class, or if the rows are in another order than they came in.

    References
    ----------
    Wasserman, Ramdas and Balakrishnan, "Universal inference", PNAS 2020.

    Examples
    --------
    >>> coins, x, a = problem.utility.model, np.zeros((40, 1)), np.ones(40, int)
    >>> found = confidence_set(coins, x, a, np.arange(40) % 5 > 1)  # heads in 60%
    >>> found.contains(0), found.contains(1), found.bounds(ged.mean(0, 1), x[:1], 2).upper
    (True, False, array([[0.2, 0.6]]))
    """
    x, a, y = as_rows(x, a, y)
    learner = started(
        cls,
        x,
        a,
        n_actions,
        delta=delta,
        confidence=confidence,
        oracle=oracle,
        prior=prior,
        seed=seed,
    )
    return ConfidenceSet(cls, feed(learner, x, a, y, growth=growth))


def as_rows(x: Any, a: Any, y: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, a, y = np.asarray(x, float), np.asarray(a), np.asarray(y, float)
    if x.ndim != 2 or a.shape != (len(x),) or y.shape[:1] != (len(x),):
        raise ShapeError(
            f"x must be (n, dx), a (n,) and y (n,) with one n, got {x.shape}, "
            f"{a.shape} and {y.shape}"
        )
    if not len(x):
        raise ShapeError("a confidence set needs at least one row, got none")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise NotFiniteError("x and y must be finite: drop or impute rows that are not")
    return x, a, y


def started(cls: Any, x: Any, a: Any, n_actions: int | None, **options: Any) -> Any:
    rows, actions = np.asarray(x, float), np.asarray(a)
    cls.trace(rows[:1], actions[:1])
    if n_actions is None:
        return learner_for(cls, first=(rows[:1], int(actions[:1].max(initial=0)) + 1), **options)
    if not is_whole(n_actions) or n_actions <= actions.max(initial=0):
        raise SettingError(
            f"n_actions must be a whole number above every action in the rows, got {n_actions!r} "
            "with action "
            f"{actions.max(initial=0)}; count the actions that could have been played"
        )
    return learner_for(
        cls, **options, where=Where(rows[:1], int(n_actions), tuple(range(int(n_actions))))
    )


def feed(
    learner: Any, x: np.ndarray, a: np.ndarray, y: np.ndarray, *, growth: float = GROWTH
) -> Any:
    """A learner that has taken in these rows in order, refitted whenever they had grown by
    `growth`, and at the end.
    """
    if not growth > 1:
        raise SettingError(
            f"growth must be above 1, got {growth}; 1.1 refits after every tenth part more"
        )
    done, base = 0, learner.n
    while done < len(a):
        total = base + done
        step = max(int(total * growth), total + 1) - total
        part = slice(done, done + step)
        learner = learner.absorb(x[part], a[part], y[part]).refit()
        done += step
    return learner


@dataclass(frozen=True)
class SetBounds:
    """A functional's smallest and largest value over a confidence set, with the parameters where
    it is largest.
    """

    estimate: np.ndarray  # (n, K)
    lower: np.ndarray  # (n, K)
    upper: np.ndarray  # (n, K)
    method: str
    guaranteed: bool
    rule: str
    note: str
    # [n][K] named parameters; members of a finite class by number; None where there is none
    witness: list[list[Any]]


@dataclass(frozen=True, repr=False)
class ConfidenceSet(Shown):
    """The parameters that the data leave plausible. Made by `confidence_set`.

    ``contains`` decides membership by the definition of the set; ``bounds`` gives the extremes of a
    functional; ``members`` draws parameters to look at (an inner approximation). With a rule over
    draws (`credible_set`, `sampled_set`) only the bounds are theirs; membership is that of the
    likelihood-ratio set.

    >>> coins, x = problem.utility.model, np.zeros((40, 1))
    >>> confidence_set(coins, x, np.ones(40, int), np.arange(40) % 5 > 1).estimate  # the member
    0
    """

    cls: Any
    learner: Any
    _given: Any = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_given", self.cls)
        # parameters come and go as what the learner has of them
        object.__setattr__(self, "cls", served(self.cls))

    def _shown(self) -> Facts:
        facts = {
            "class": repr(self.cls),
            "rows": f"{self.learner.n:g}",
            "radius": f"{self.radius:.4g} nats",
        }
        facts |= {"rule": self.rule, "fit": self.status, "bounds": self.cls.exactness}
        return f"ConfidenceSet from {self.learner.n:g} rows", facts

    @property
    def _set(self) -> Any:
        """The learner whose set holds parameters: draws stand around one."""
        return _holding(self.learner)

    @property
    def rule(self) -> str:
        """The radius rule in one sentence."""
        return _sentence(self.learner)

    @property
    def radius(self) -> float:
        """How far below its largest value the log-likelihood of a plausible parameter may lie,
        in nats.
        """
        return float(self._set.kappa)

    @property
    def status(self) -> str:
        """The oracle's last word."""
        found: str = self.learner.status
        return found

    @property
    def estimate(self) -> Any:
        """The fit: named parameters, or the number of a finite class's member."""
        return self.cls.unflatten(self._set.theta)

    def contains(self, params: Mapping[str, Any] | int) -> bool:
        """Whether these named parameters (or this member of a finite class) are plausible."""
        theta = np.asarray(self.cls.flatten(params))
        return bool(self._set.contains(theta[None])[0])

    def members(self, n: int, seed: int = 0, source: str = "set") -> list[Any]:
        """At most n members: named parameters (or member numbers). An inner approximation of the
        set; see `sampled_sets`.
        """
        found = _drawn_from(self._set, n, seed, source)
        return [self.cls.unflatten(theta) for theta in found.theta]

    def bounds(self, functional: Functional, x: np.ndarray, n_actions: int) -> SetBounds:
        """Smallest and largest value at contexts x (n, dx) for actions 0..K-1, over the whole
        set.
        """
        contexts = np.atleast_2d(np.asarray(x, float))
        if self.cls.reads_by_context:
            self.cls.trace(*grid(contexts, n_actions))
        found = self.learner.bounds(functional, contexts, n_actions)
        if max(np.max(gap) for gap in beyond_range(found, functional)) > -np.inf:
            refuted = (
                f"the range [{functional.low:g}, {functional.high:g}] declared for the "
                f"{functional.name} is refuted: all that the data leave some action lies outside"
            )
            found = replace(
                found, guaranteed=False, note="; ".join(filter(None, [refuted, found.note]))
            )
        return self._named(found)

    def sampled_bounds(
        self,
        functional: Functional,
        x: np.ndarray,
        n_actions: int,
        *,
        n: int = 256,
        seed: int = 0,
        source: str = "laplace",
    ) -> SetBounds:
        """The same over drawn members only, for display: an inner approximation, smaller than
        the truth.
        """
        found = _over_draws(
            self._set, functional, np.atleast_2d(np.asarray(x, float)), n_actions, n, seed, source
        )
        return self._named(found)

    def _named(self, found: Bounds) -> SetBounds:
        n, K = found.upper.shape

        def name(i: int, k: int) -> Any:
            if found.witness is None:
                return None
            return self._given.named(found.witness[i, k], found.used is not None)

        witness = [[name(i, k) for k in range(K)] for i in range(n)]
        return SetBounds(
            found.estimate,
            found.lower,
            found.upper,
            found.method,
            found.guaranteed,
            found.rule,
            found.note,
            witness,
        )


# what the learners answer in their own ways -------------------------------------------------------


@singledispatch
def _holding(learner: Learner) -> Any:
    """The learner whose set holds parameters."""
    return learner


@_holding.register(DrawnLearner)
def _(learner: DrawnLearner) -> Learner:
    return learner.base  # draws stand around one


@singledispatch
def _sentence(learner: Any) -> str:
    """The rule of a learner in words."""
    return str(learner.rule)


@_sentence.register(ProgramLearner)
@_sentence.register(LocationScaleLearner)
def _(learner: ProgramLearner | LocationScaleLearner) -> str:
    return learner.sentence


@_sentence.register(FiniteLearner)
@_sentence.register(DrawnLearner)
def _(learner: FiniteLearner | DrawnLearner) -> str:
    return learner.rule.describe(learner.delta)


@singledispatch
def _drawn_from(learner: Any, n: int, seed: int, source: str) -> Members:
    """Members of a set that is known exactly."""
    if source != "set":
        raise SettingError(
            f"this set is known exactly and draws from source='set' only, got {source!r}"
        )
    return Members(np.asarray(learner.draw_members(n, seed)), "the set", n)


@_drawn_from.register(FiniteLearner)
def _(learner: FiniteLearner, n: int, seed: int, source: str) -> Members:
    return Members(np.flatnonzero(learner.plausible)[:n], "the set", n)


_drawn_from.register(ProgramLearner, members)


@singledispatch
def _over_draws(learner: Learner, *asked: object) -> Bounds:
    raise SettingError(
        f"this set has exact bounds: use bounds(...); a sample would only be an {INNER}"
    )


@_over_draws.register(ProgramLearner)
def _(
    learner: ProgramLearner,
    functional: Functional,
    x: np.ndarray,
    n_actions: int,
    n: int,
    seed: int,
    source: str,
) -> Bounds:
    found = members(learner, n, seed, source)
    return sampled_bounds(learner, functional, x, n_actions, found)
