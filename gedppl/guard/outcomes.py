"""What a realised outcome says to the monitors of limits and of safe values, with no word from the
model but its lower end; and, at the end, which contexts are far outside of what was seen.

A limit on sum_a pi_a T(g_a) is watched where T is an expectation: then one outcome, whichever
action was drawn, is an unbiased word on it. Quantiles, variances and CVaRs are none: the value of a
mixture is not the mixture of the values. For the safe action alone, which is no mixture, more can
be said: T <= c0 implies

    quantile at level q     P(Y > c0) <= 1 - q
    CVaR at level q
        E(Y - c0)+ <= (1 - q)(c0 - l),  where Y >= l   (E(Y - v)+ with v the quantile is (1 -
        q)(CVaR - v))
    mean of a symmetric outcome without a lower end or a known scale     P(Y > c0) <= 1/2

Axis letters: n contexts, K actions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.special import fdtri, ndtr, ndtri

from gedppl.density import Density
from gedppl.errors import FamilyError, SettingError
from gedppl.families.one_predictor import FAMILIES
from gedppl.functionals import Functional, mean, quantile, realised
from gedppl.guard.bets import check_row
from gedppl.guard.monitors import Cost, Floor
from gedppl.learning.linear_parts import at_contexts
from gedppl.learning.reach import is_plain
from gedppl.numerics.arrays import evolved, whitener
from gedppl.problem import Constraint
from gedppl.programs.contract import LinearPredictor

EXPECTATIONS = ("mean", "second_moment", "probability")
IN_SCALES: dict[str, Callable[[float], float]] = {
    "mean": lambda level: 0.0,
    "quantile": lambda level: float(ndtri(level)),
    "cvar": lambda level: (
        math.exp(-0.5 * float(ndtri(level)) ** 2) / math.sqrt(2.0 * math.pi) / (1.0 - level)
    ),
}  # how many scales of its noise a functional of a Normal lies over loc
ANYTHING = 1e100
# functional -> what it is measured from, as a functional of its level
MEASURED_FROM: dict[str, Callable[[float], Functional]] = {
    "variance": lambda level: mean(-ANYTHING, ANYTHING),
    "cvar": lambda level: quantile(level, -ANYTHING, ANYTHING),
}
# families that are symmetric about their mean, whatever their parameters
SYMMETRIC = ("Normal", "Laplace", "Logistic")
# share of the range: an upper bound of 0 is tested as this, which is as true and leaves room to bet
LEAST = 1e-6
ALIKE = 1e-5  # of a deviation off what always held: rounding; what varies by less than a tenth held


class Proved(NamedTuple):
    """What the sets prove of one context and action: the upper value of a functional and, where it
    is measured from another one, that one's range: the mean under a variance, the quantile under a
    CVaR.
    """

    upper: float
    base: tuple[float, float] | None = None

    def within(self, c: Constraint) -> Proved:
        """As it may be once there are data: before them nothing has an end."""
        return Proved(self.upper, self.base and (c.functional.low, c.functional.high))


def room(cost: Cost | None) -> tuple[float, float] | None:
    """The limit of a cost and its lower end; None where there is no room between them for a bet."""
    if cost is None or cost.limit is None or cost.floor is None:
        return None
    return (cost.limit, cost.floor.low) if cost.floor.low < cost.limit else None


def limit_floor(c: Constraint, x: np.ndarray, n_actions: int) -> Floor | None:
    """The lower end of what an outcome at context x (dx,) says of a limit, whichever action is
    drawn; None: not watched.
    """
    # one outcome must be an unbiased word on the functional
    if not (is_plain(c.functional) and c.functional.name in EXPECTATIONS):
        return None
    return outcome_floor(c, x, np.arange(n_actions)) if c.functional.name == "mean" else Floor(0.0)


def limit_cost(
    c: Constraint, z: float, x: np.ndarray, action: int, limit: float, n_actions: int
) -> Cost | None:
    """What outcome z of one decision says of its limit; None where there is no room for a bet."""
    floor = limit_floor(c, x, n_actions)
    if floor is None or not floor.low < limit:
        return None
    return Cost(realised(c.functional, np.asarray(z), x, action), limit, floor)


def safe_cost(
    c: Constraint, z: float, x: np.ndarray, safe_action: int, safe_value: float
) -> Cost | None:
    """What outcome z of the safe action says of its declared value; None: not watched."""
    f, only = c.functional, np.array([safe_action])
    if not is_plain(f):
        return None
    if f.name == "quantile":
        return Cost(float(z > safe_value), 1.0 - f.level, Floor(0.0))
    if f.name == "cvar":
        floor = outcome_floor(c, x, only)
        if floor is None or floor.excess or not floor.low < safe_value:
            return None
        return Cost(
            max(z - safe_value, 0.0), (1.0 - f.level) * (safe_value - floor.low), Floor(0.0)
        )
    if f.name not in EXPECTATIONS:
        return None
    floor = outcome_floor(c, x, only) if f.name == "mean" else Floor(0.0)
    if floor is None:
        return Cost(float(z > safe_value), 0.5, Floor(0.0)) if symmetric(c, x, only) else None
    limit = max(safe_value, floor.low + LEAST * (f.high - f.low))
    return Cost(realised(f, np.asarray(z), x, safe_action), limit, floor)


def certified_cost(
    c: Constraint, z: float, x: np.ndarray, action: int, proved: Proved, n_actions: int
) -> Cost | None:
    """What outcome z of one action of so many says of its certified value; None: not watched.

    With Normal noise of known scale s a mean, quantile or CVaR is loc + k s, so that loc <= u - k s
    and Phi((Z - u) / s + k) has a mean of at most 1/2. A variance is at least the mean squared
    distance to an interval that holds the mean. If the quantile v lies in [l, h] and the CVaR is at
    most u, then E(Z - h)+ <= E(Z - v)+ = (1 - q)(CVaR - v) <= (1 - q)(u - l), which is nearer to
    equality than what holds for any outcome with a lower end. All others as for the safe action.
    """
    f = c.functional
    scale = known_scale(c, x, action, n_actions)
    if scale is not None and is_plain(f) and f.name in IN_SCALES:
        return Cost(
            float(ndtr((z - proved.upper) / scale + IN_SCALES[f.name](f.level))), 0.5, Floor(0.0)
        )
    if f.name == "variance" and is_plain(f):
        if proved.base is None:
            return None
        low, high = proved.base
        return Cost(max(low - z, z - high, 0.0) ** 2, max(proved.upper, LEAST * f.high), Floor(0.0))
    if f.name == "cvar" and is_plain(f) and proved.base is not None:
        low, high = proved.base[0], min(proved.base[1], proved.upper)
        if -ANYTHING < low < proved.upper:
            excess = (1.0 - f.level) * (proved.upper - low)
            return Cost(max(z - high, 0.0), excess, Floor(0.0))
    cost = safe_cost(c, z, x, action, proved.upper)
    return cost if room(cost) else None


def symmetric(c: Constraint, x: np.ndarray, actions: np.ndarray) -> bool:
    """Whether outcomes at x (dx,) are symmetric about their mean, whichever parameter is right: a
    mean of at most u is then exceeded by at most half of them.
    """
    rows = np.repeat(x[None], len(actions), axis=0)
    return all(d.family in SYMMETRIC for d in c.model.densities(rows, actions))


def known_scale(c: Constraint, x: np.ndarray, action: int, n_actions: int) -> float | None:
    """The known scale of Normal noise at x (dx,); None for any other noise. All actions are asked
    about, as the decision itself did: the predictor remembers.
    """
    predictor = c.model.predictor
    if predictor is None or (predictor.family, predictor.link) != ("Normal", "identity"):
        return None
    scales = np.asarray(at_contexts(predictor, x[None], n_actions)[2]["scale"]).reshape(-1)
    return float(scales[action if len(scales) > 1 else 0])


def outcome_floor(c: Constraint, x: np.ndarray, actions: np.ndarray) -> Floor | None:
    """The lower end of a constraint's outcome at x (dx,) under any of these actions; None if there
    is none.

    That of its support, or, for outcomes without one but with a known noise scale, six standard
    deviations under the functional's low. The scale is the one at x: it may be another at every
    context.
    """
    model = c.model
    if model.predictor is not None:
        return _predictor_floor(c, model.predictor, x, actions)
    found = model.densities(np.repeat(x[None], len(actions), axis=0), actions)
    if not all(d.is_scalar for d in found):
        return None
    try:
        low = min((float(np.min(np.asarray(d.support[0], float))) for d in found), default=-np.inf)
        if np.isfinite(low):
            return None if model.moving_support else Floor(low)
        # the members' variances are all that are possible; those at a parametric class's start are
        # not
        every = model.visit(lambda members: found, lambda cls: [])
        variance = max(
            (float(np.max(np.asarray(d.variance, float))) for d in every), default=np.inf
        )
    except FamilyError:  # a family of the user's own that says nothing about it
        return None
    floor = Floor.under(
        c.functional.low, float(np.sqrt(variance)), normal=all(d.family == "Normal" for d in found)
    )
    return floor if np.isfinite(floor.low) else None


def _predictor_floor(
    c: Constraint, predictor: LinearPredictor, x: np.ndarray, a: np.ndarray
) -> Floor | None:
    """`outcome_floor` of a one-predictor class at x (dx,) for actions a (n,). The density itself
    need not be looked at: none of these families has a support that moves, and those on the real
    line have a known scale.
    """
    if not FAMILIES[predictor.family, predictor.link].real:
        return Floor(0.0)
    others = at_contexts(predictor, x[None], int(a.max()) + 1)[2]
    # numbers are the same for all actions
    fixed = {name: v[a] if np.ndim(v) else np.asarray(v, float) for name, v in others.items()}
    if predictor.family == "Normal":
        floor = Floor.under(c.functional.low, float(fixed["scale"].max()), normal=True)
        return floor if math.isfinite(floor.low) else None
    spread = Density(
        predictor.family,
        FAMILIES[predictor.family, predictor.link].arguments(np.zeros(len(a)), fixed),
    ).variance
    floor = Floor.under(c.functional.low, float(np.sqrt(np.max(spread))), normal=False)
    return floor if np.isfinite(floor.low) else None


# ==================================================================================================
# Contexts far outside of what was seen.
# ==================================================================================================


@dataclass(frozen=True)
class OutlierCheck:
    """Is a context far outside of what was seen? Hotelling's T-squared for one new observation.

    n / (n + 1) (x - m)' S^{-1} (x - m)  against  p (n - 1) / (n - p) F_{p, n-p; 1-level},

    with p the rank of S; a component along which no context ever varied counts as far outside. For
    Gaussian contexts `level` is the share flagged; skewed or heavy-tailed contexts are flagged more
    often. A flagged context is taken in pulled back to the threshold, so that one wild value does
    not hide the next, and a lasting shift is still learned. m and S are those of the first n
    contexts, n of all but the last twentieth: the test is exact for any n, and a look is costly.
    Not guaranteed: a bound on false alarms over a run; that share for contexts of another law.

    References
    ----------
    Hotelling, "The generalization of Student's ratio" (1931).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> check = OutlierCheck.create(dx=2)
    >>> for _ in range(100):
    ...     check = check.include(rng.normal(size=2))
    >>> check.flag([0.5, 1.0]), check.flag([9.0, 0.0])[:44]
    ('', 'the context is far outside of what was seen:')
    """

    dx: int
    level: float
    n: int
    mean: np.ndarray  # (dx,)
    scatter: np.ndarray  # (dx, dx)
    before: OutlierCheck | None = None  # what contexts are held against, if not this

    @classmethod
    def create(cls, *, dx: int, level: float = 1e-4) -> OutlierCheck:
        if dx < 0 or not 0 < level < 1:
            raise SettingError(
                f"an outlier check needs dx >= 0 and 0 < level < 1, got dx={dx}, level={level}"
            )
        return cls(dx, level, 0, np.zeros(dx), np.zeros((dx, dx)))

    def include(self, x: Any) -> OutlierCheck:
        """Take in one context (dx,)."""
        context = np.asarray(x, float)
        check_row(context, 0, self.dx, 1)
        judge, n = self._judge, self.n + 1
        ratio = float(judge._ratios(context[None])[0])
        gap = context - self.mean
        if 1.0 < ratio < math.inf:
            gap = gap / math.sqrt(ratio)
        mean = self.mean + gap / n
        scatter = self.scatter + gap[:, None] * (gap * (self.n / n))
        before = None if n >= math.floor(1.05 * judge.n) else judge
        return evolved(self, n=n, mean=mean, scatter=scatter, before=before)

    @property
    def parts(self) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """n, mean and scatter, and those of what contexts are held against: for a snapshot."""
        return [(one.n, one.mean, one.scatter) for one in (self, self.before) if one is not None]

    def with_parts(self, parts: Sequence[tuple[int, np.ndarray, np.ndarray]]) -> OutlierCheck:
        """The same in the state that `parts` gave."""
        before = None
        for n, centre, scatter in reversed(parts):
            before = evolved(self, n=n, mean=centre, scatter=scatter, before=before)
        return before or self

    @property
    def _judge(self) -> OutlierCheck:
        return self.before or self

    def flag(self, x: Any) -> str:
        """A sentence for the certificate; "" if (dx,) is ordinary or too few were seen to tell."""
        return self.flags(np.asarray(x, float)[None])[0]

    def flags(self, x: np.ndarray) -> list[str]:
        """The same for contexts (n, dx)."""
        check_row(x, 0, self.dx, 1)
        judge = self._judge
        ratios = judge._ratios(x).tolist()
        return [judge._said(one, ratio) if ratio > 1 else "" for one, ratio in zip(x, ratios)]

    def _said(self, context: np.ndarray, ratio: float) -> str:
        column = self._most_off(context)
        if math.isinf(ratio):
            return (
                f"the context is far outside of what was seen: x[{column}] = {context[column]:g} "
                "departs from what held in "
                f"all of the {self.n} contexts before. Bounds here are extrapolation"
            )
        return (
            f"the context is far outside of what was seen: its squared distance is {ratio:.1f} "
            "times the largest that is "
            f"ordinary after {self.n} contexts, most in x[{column}] = {context[column]:g}. Bounds "
            "here are extrapolation"
        )

    def _ratios(self, contexts: np.ndarray) -> np.ndarray:
        """Squared distances of contexts (n, dx) over their threshold, (n,); 0: cannot tell; inf:
        off the span of all seen.
        """
        if self.dx == 0 or self.n < 2 * self.dx + 10:
            return np.zeros(len(contexts))
        # a context is flagged when it is asked about and then taken in
        asked, found = self._latest[0]
        if contexts.tobytes() != asked:
            found = self._computed_ratios(contexts)
            self._latest[0] = (contexts.tobytes(), found)
        return found

    @cached_property
    def _latest(self) -> list[tuple[bytes, np.ndarray]]:
        """Replaced in one assignment, so threads may share it."""
        return [(b"", np.zeros(0))]

    def _computed_ratios(self, contexts: np.ndarray) -> np.ndarray:
        gap = (contexts - self.mean) / self._unit
        white, moved = self._whitener, self._moved
        if white is None:
            return np.array([self._ratio_along_axes(one)[0] for one in gap])
        every = len(white) == self.dx
        along = (gap if every else gap[:, moved]) @ white.T
        ratios: np.ndarray = (along * along).sum(axis=1) / self._ordinary
        if not every:
            still = np.where(moved, 0.0, np.abs(gap))  # columns that never varied
            ratios[still.max(axis=1) > self._tolerance(gap)] = np.inf
        return ratios

    def _most_off(self, context: np.ndarray) -> int:
        """The column of a context (dx,) that departs most."""
        gap = (context - self.mean) / self._unit
        if self._whitener is None:
            return self._ratio_along_axes(gap)[1]
        still = np.where(self._moved, 0.0, np.abs(gap))
        never = still.max() > self._tolerance(gap)
        return int((still if never else np.abs(gap)).argmax())

    def _tolerance(self, gap: np.ndarray) -> Any:
        """How far along a direction in which nothing varied is rounding, for gaps (..., dx)."""
        return ALIKE * (1.0 + self._far + np.abs(gap).max(axis=-1))

    @cached_property
    def _far(self) -> float:
        """How many deviations the mean lies from 0."""
        return float((np.abs(self.mean) / self._unit).max())

    @cached_property
    def _unit(self) -> np.ndarray:
        """(dx,) standard deviations, 1 where nothing varied."""
        scale = np.sqrt(self.scatter.diagonal() / (self.n - 1))
        return np.where(scale > 0, scale, 1.0)

    @cached_property
    def _moved(self) -> np.ndarray:
        """(dx,) which columns varied."""
        return self.scatter.diagonal() > 0

    @cached_property
    def _whitener(self) -> np.ndarray | None:
        """Of the correlations of the columns that varied; None where they depend on each other, so
        that `_ratio_along_axes` has to look.
        """
        correlations = self.scatter / (self._unit * self._unit[:, None] * (self.n - 1))
        moved = self._moved
        return whitener(correlations if moved.all() else correlations[moved][:, moved])

    @cached_property
    def _ordinary(self) -> float:
        """The threshold where all columns that varied do so by themselves."""
        return self._threshold(int(np.count_nonzero(self._moved)))

    def _ratio_along_axes(self, gap: np.ndarray) -> tuple[float, int]:
        """The ratio and the column most off, from the standardised gap (dx,), direction by
        direction.
        """
        unit, column = self._unit, int(np.abs(gap).argmax())
        values, vectors = np.linalg.eigh(self.scatter / np.outer(unit, unit) / (self.n - 1))
        along = vectors.T @ gap
        varied = values > (0.1 * ALIKE) ** 2 * max(values.max(), 1e-300)
        if np.any(abs(along[~varied]) > self._tolerance(gap)):
            return np.inf, int(np.argmax(abs(vectors[:, ~varied] @ along[~varied])))
        rank = int(varied.sum())
        if rank == 0:
            return 0.0, column
        return float(np.sum(along[varied] ** 2 / values[varied])) / self._threshold(rank), column

    def _threshold(self, rank: int) -> float:
        """The largest squared distance that is ordinary."""
        quantile = float(fdtri(rank, self.n - rank, 1.0 - self.level))
        return rank * (self.n - 1) / (self.n - rank) * quantile * (self.n + 1) / self.n
