r"""Bounds for one-predictor families with one more unknown number: dispersion, shape or scale.

At every value of the nuisance psi the log-likelihood is concave in v, so that its set there is
convex and its reach exact. Over a cell [p, q] of psi

    l(v, psi) <= max(l(v, p), l(v, q)) + c,      c = (q - p)^2 / 8  sum_i k_i(p),

where k_i(p) bounds -d2 l_i / d psi2 for every v and every psi >= p. So the members with psi in the
cell lie in the union of the two sets at its ends with thresholds lowered by c: an outer set, whose
cells are split where the bound is largest. With h(t) = trigamma(t) - 1/t, which falls in t:

    NegativeBinomial, log mean    psi = dispersion    k_i = h(p) - h(y_i + p)
    Gamma, log mean               psi = shape         k_i = h(p)
    Logistic                      psi = 1 / scale     k_i = 1.88 / p^2

For the first let w = 1 / (psi + mean): the part of l_i'' that depends on v is -2w + (y + psi) w^2,
at least -1 / (y + psi). A predictor in which log psi appears otherwise than these forms have it
gets one free coefficient more, which makes a set larger.

Ends of psi. The largest log-density of a row over all predictors grows with psi: below some psi the
sum of these is under the threshold. Above, a Gamma's profile is concave with known slope, a
Logistic's is at most n log psi - psi D with D bounded from its top, and what a NegativeBinomial's
row gains beyond p is at most the integral of the largest slope, G(y + p) - G(p) with G(t) = t log t
- t - lgamma(t): its last cell reaches to infinity, where it is a Poisson.

Functionals at a fixed predictor. Means do not depend on psi; variance, second moment and CVaR fall
with it (convex order; so do quantiles and tails of a Logistic, or they rise). For chances |d2 P(A)
/ d psi2| = |E[1_A (s^2 + s')]| <= E max(-s', 0) <= sup k, s the score, so that between the ends of
a cell a chance exceeds the larger of theirs by at most (q - p)^2 / 8 sup k, and a quantile is one
of a level shifted by as much. From a Poisson of the same mean a NegativeBinomial is at most mean /
psi away in total variation (Barbour, Holst and Janson, theorem 1.C).

Other families of the table have no bound on the error between points of the grid: `proved` is
false, no threshold is lowered, and nothing is guaranteed.

Axis letters: n rows of a set, m rows asked about, p coordinates of v.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import digamma, gammaln, polygamma, xlogy

from gedppl.learning.ascent import Found
from gedppl.learning.likelihoods import PredictorLikelihood, ProgramLikelihood
from gedppl.learning.program_sets import Plausible, plausible
from gedppl.learning.reach import Box, reached
from gedppl.learning.value_ranges import is_plain, remarks
from gedppl.programs.contract import LinearPredictor, Profiled
from gedppl.rows import Rows

if TYPE_CHECKING:
    from gedppl.functionals import Functional
    from gedppl.learning.programs import ProgramLearner

Over = Callable[
    [PredictorLikelihood, "Functional", np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]
]
"""(data at a psi, functional, columns (m, ...), ends of the predictor (m, 2)) -> lowest and highest
value (m,)."""

WIDEN = 0.1  # nats by which thresholds of the first cells are lowered at most
HAIR = 1e-3  # nats: what a climb may leave below a top
MOST_CELLS, ROUNDS = 200, 12
WIDEST = 1.3  # ratio of a cell's ends
UNPROVED = 1.1  # ratio of the ends of a cell without a proof
FINE, NARROW = 0.02, 0.005  # a cell is not split again: ratio of its ends less one, nats
NOT_PROVED = (
    "the {name} was profiled on a grid, and nothing bounds what may lie between its points: not a "
    "certificate"
)


def _h(t: float | np.ndarray) -> np.ndarray:
    found: np.ndarray = polygamma(1, t) - 1.0 / np.asarray(t)
    return found


def _gain(t: float | np.ndarray) -> np.ndarray:
    found: np.ndarray = xlogy(t, t) - t - gammaln(t)
    return found


@dataclass(frozen=True)
class Nuisance:
    """What is known of a family along its nuisance; see the module's head."""

    link: str
    slope: float  # of log(nuisance) in the predictor, in the form that the proof is about
    curvature: Callable[[float, np.ndarray], np.ndarray]  # (psi, y) -> (n,)
    most_curved: Callable[[float], float]  # psi -> the largest of these for any outcome
    saturated: Callable[[float, np.ndarray], float]  # (psi, y) -> what no predictor exceeds
    # (psi, top there, threshold, y) -> whether no larger psi has a member
    ended: Callable[[float, float, float, np.ndarray], bool]
    # (psi, y) -> what larger psi can add at most
    beyond: Callable[[float, np.ndarray], float] = lambda psi, y: np.inf
    to_poisson: bool = False  # a large psi makes it one
    inverse: bool = False  # psi is one over the family's argument
    ordered: bool = False  # chances of a tail and quantiles are monotone in psi
    proved: bool = True

    def argument(self, psi: float) -> float:
        return 1.0 / psi if self.inverse else psi


def _gamma_ended(psi: float, top: float, threshold: float, y: np.ndarray) -> bool:
    """The profile n (k log k - lgamma(k)) + k A - sum log y is concave in k."""
    n = len(y)
    best = (top + np.log(y).sum() - n * (xlogy(psi, psi) - gammaln(psi))) / psi
    return top < threshold and bool(n * (np.log(psi) + 1 - digamma(psi)) + best <= 0)


def _logistic_ended(psi: float, top: float, threshold: float, y: np.ndarray) -> bool:
    n = len(y)
    least = (n * np.log(psi / 4) - top) / psi  # of the summed absolute errors
    return bool(least > 0 and psi * least >= n and n * np.log(psi) - psi * least < threshold)


def _negative_binomial_saturated(psi: float, y: np.ndarray) -> float:
    both = y + psi
    ways = gammaln(both) - gammaln(psi) - gammaln(y + 1)
    return float(np.sum(ways + xlogy(y, y) + xlogy(psi, psi) - xlogy(both, both)))


NUISANCES = {
    "NegativeBinomial": Nuisance(
        "log",
        0.0,
        lambda psi, y: _h(psi) - _h(y + psi),
        lambda psi: float(_h(psi)),
        _negative_binomial_saturated,
        lambda psi, top, threshold, y: False,
        beyond=lambda psi, y: float(np.sum(_gain(y + psi) - _gain(psi))),
        to_poisson=True,
    ),
    "Gamma": Nuisance(
        "log",
        1.0,
        lambda psi, y: np.full(len(y), _h(psi)),
        lambda psi: float(_h(psi)),
        lambda psi, y: float(np.sum(_gain(psi) - np.log(y))),
        _gamma_ended,
    ),
    "Logistic": Nuisance(
        "identity",
        0.0,
        lambda psi, y: np.full(len(y), 1.88 / psi**2),
        lambda psi: 1.88 / psi**2,
        lambda psi, y: len(y) * float(np.log(psi / 4)),
        _logistic_ended,
        inverse=True,
        ordered=True,
    ),
    "Weibull": Nuisance(
        "log",
        0.0,
        lambda psi, y: np.zeros(len(y)),
        lambda psi: 0.0,
        lambda psi, y: np.inf,
        lambda psi, top, threshold, y: top < threshold,
        proved=False,
    ),
}


@dataclass(frozen=True)
class Rewritten:
    """A program's predictor in the form of its `Nuisance`: features, with one free column more
    where the program's own form differs, and offset.
    """

    form: Profiled
    known: Nuisance

    def parts(self, x: np.ndarray, a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        form = self.form
        features = np.asarray(form.features(x, a), float)
        offset = np.broadcast_to(np.asarray(form.offset(x, a), float), len(a))
        return np.column_stack([features, self.differs(x, a)]), offset

    def differs(self, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        """(n,) by how much the slope of log psi is not the one of the proof; a logit of a
        NegativeBinomial is its log mean less log psi.
        """
        shift = 1.0 if (self.form.family, self.form.link) == ("NegativeBinomial", "logit") else 0.0
        return np.asarray(self.form.slope(x, a), float) + shift - self.known.slope

    @property
    def dim(self) -> int:
        return len(self.form.low[0]) + 1

    @property
    def box(self) -> Box:
        return np.append(self.form.low[0], -np.inf), np.append(self.form.high[0], np.inf)

    def columns(
        self, parts: tuple[np.ndarray, np.ndarray], psi: float
    ) -> tuple[LinearPredictor, np.ndarray, tuple[str, ...]]:
        """A predictor at psi, its columns as `PredictorLikelihood` keeps them, and their names; at
        an infinite psi a Poisson's.
        """
        features, offset = parts
        family = self.form.family if np.isfinite(psi) else "Poisson"
        predictor = LinearPredictor(family, self.known.link, None, None, None)
        if not np.isfinite(psi):
            return predictor, np.column_stack([features, offset]), ()
        shifted = offset + (self.known.slope * np.log(psi) if self.known.slope else 0.0)
        argument = np.full(len(offset), self.known.argument(psi))
        return predictor, np.column_stack([features, shifted, argument]), (self.form.name,)


@dataclass(frozen=True)
class NuisanceRange:
    low: float
    high: float  # inf: the last
    widen: float  # c


class Profile:
    """The rows of one set along the nuisance, with what was computed of them."""

    def __init__(
        self, rewritten: Rewritten, rows: Rows, threshold: float, start: np.ndarray, psi: float
    ) -> None:
        self.rewritten, self.known = rewritten, rewritten.known
        self.rows, self.threshold, self.start, self.psi = rows, threshold, start, psi
        self.y = np.asarray(rows.y, float)
        self._parts = rewritten.parts(rows.x, rows.a)
        self._data: dict[float, PredictorLikelihood] = {}
        self._tops: dict[float, float] = {}
        self._sets: dict[tuple[float, float], Plausible] = {}

    def data(self, psi: float) -> PredictorLikelihood:
        if psi not in self._data:
            predictor, columns, names = self.rewritten.columns(self._parts, psi)
            table = Rows.of(columns, self.rows.a, self.y)
            self._data[psi] = PredictorLikelihood(predictor, self.rewritten.dim, table, names)
        return self._data[psi]

    def top(self, psi: float) -> float:
        """At least the largest log-likelihood at psi."""
        if psi not in self._tops:
            self._tops[psi] = self.data(psi).top(self.start) + HAIR
        return self._tops[psi]

    def members(self, psi: float, widen: float) -> Plausible:
        if (psi, widen) not in self._sets:
            level = self.threshold - widen - HAIR
            self._sets[psi, widen] = plausible(self.data(psi), 0, self.start, level)
        return self._sets[psi, widen]

    def widening(self, low: float, high: float) -> float:
        if np.isinf(high):
            return self.known.beyond(low, self.y)
        return float((high - low) ** 2 / 8 * self.known.curvature(low, self.y).sum())

    def alive(self, cell: NuisanceRange) -> bool:
        """Whether a member may have its psi in the cell."""
        ends = [end for end in (cell.low, cell.high) if np.isfinite(end)]
        return max(map(self.top, ends)) >= self.threshold - cell.widen

    @cached_property
    def cells(self) -> list[NuisanceRange] | None:
        """Those that may have members; None if no end was found."""
        low, high = self.rewritten.form.low[1], self.rewritten.form.high[1]
        if self.known.inverse:
            low, high = 1.0 / high if high else np.inf, 1.0 / low if low > 0 else np.inf
        found: list[NuisanceRange] = []
        for down in (True, False):
            edge = self.psi
            for _ in range(MOST_CELLS):
                if self._ends(edge, down, low, high):
                    break
                cell = self._next(edge, down)
                found += [cell] if self.alive(cell) else []
                edge = cell.low if down else cell.high
                if np.isinf(edge):
                    break
            else:
                return None
        return found

    def _ends(self, psi: float, down: bool, low: float, high: float) -> bool:
        if down:
            return (
                psi <= low
                or self.known.saturated(psi, self.y) < self.threshold
                or (not self.known.proved and self.top(psi) < self.threshold)
            )
        return psi >= high or self.known.ended(psi, self.top(psi), self.threshold, self.y)

    def _next(self, psi: float, down: bool) -> NuisanceRange:
        allowed = max(WIDEN, 0.5 * (self.threshold - self.top(psi)))
        if not down:
            rest = self.widening(psi, np.inf)
            if rest <= allowed:
                return NuisanceRange(psi, np.inf, rest)
        ratio = (16.0 if allowed > WIDEN else WIDEST) if self.known.proved else UNPROVED
        while True:
            ends = (psi / ratio, psi) if down else (psi, psi * ratio)
            widen = self.widening(*ends)
            if widen <= allowed:
                # one of few numbers, so that neighbours share their sets
                return NuisanceRange(*ends, WIDEN if 0 < widen <= WIDEN else widen)
            ratio = np.sqrt(ratio)

    def split(self, cell: NuisanceRange) -> tuple[NuisanceRange, NuisanceRange]:
        middle = 4 * cell.low if np.isinf(cell.high) else float(np.sqrt(cell.low * cell.high))
        halves = ((cell.low, middle), (middle, cell.high))
        exact = [self.widening(*ends) for ends in halves]
        shared = max(exact)
        return NuisanceRange(*halves[0], shared), NuisanceRange(*halves[1], shared)


def profiled_bounds(
    learner: ProgramLearner,
    functional: Functional,
    x: np.ndarray,
    a: np.ndarray,
    over: Over,
) -> Found | None:
    """The ends over every set; None where nothing is known of the functional's shape or of the
    ends of the nuisance.
    """
    form = learner.cls.profiled
    sets = learner.every_set
    if form is None or not sets or not is_plain(functional) or functional.fn is not None:
        return None
    known = NUISANCES.get(form.family)
    if known is None or any(s.threshold is None for s in sets):
        return None
    rewritten = Rewritten(form, known)
    lower, upper = np.full(len(a), -np.inf), np.full(len(a), np.inf)
    open_end = np.ones((len(a), 2), bool)
    for chosen in sets:
        profile = profile_of(chosen, rewritten)
        if profile.cells is None:
            continue
        low, high, ends = _over_set(profile, functional, x, a, over)
        lower, upper = np.maximum(lower, low), np.minimum(upper, high)
        open_end &= ends
    gap = lower - upper
    apart = bool(np.any(gap > 1e-6 * np.maximum(np.abs(lower), np.abs(upper))))
    if apart:
        lower[:], upper[:] = -np.inf, np.inf
    notes = remarks(open_end, a, apart)
    notes += [] if known.proved else [NOT_PROVED.format(name=form.name)]
    return Found(lower, upper, None, "; ".join(notes), apart, profiled=True, proved=known.proved)


def profile_of(chosen: Plausible, rewritten: Rewritten) -> Profile:
    """Made once for a set, and kept with it."""
    data = chosen.data
    threshold = chosen.threshold
    assert isinstance(data, ProgramLikelihood)
    assert threshold is not None

    def make() -> Profile:
        v, nuisance = (part[0] for part in rewritten.form.from_theta(chosen.region.centre[None]))
        if not (np.isfinite(v).all() and np.isfinite(nuisance) and nuisance > 0):
            v, nuisance = np.zeros(len(v)), 1.0
        start = np.append(v, np.log(nuisance))  # of the free column: see `Rewritten.differs`
        psi = rewritten.known.argument(float(nuisance))
        return Profile(rewritten, data.rows, threshold, start, psi)

    return data.kept(make)


def _over_set(
    profile: Profile,
    functional: Functional,
    x: np.ndarray,
    a: np.ndarray,
    over: Over,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lowest and highest value (m,) over one set, and which predictors (m, 2) have an open end."""
    rewritten, cells = profile.rewritten, profile.cells
    assert cells is not None
    parts = rewritten.parts(x, a)
    both = np.vstack([parts[0], -parts[0]])
    m = len(a)
    reaches: dict[tuple[float, float], np.ndarray | None] = {}

    def reach(psi: float, widen: float) -> np.ndarray | None:
        """Ends (m, 2) of features @ v at psi; None if there is no member."""
        if (psi, widen) not in reaches:
            empty = profile.top(psi) < profile.threshold - widen - HAIR
            chosen = None if empty else profile.members(psi, widen)
            value = None if chosen is None else reached(chosen, both, rewritten.box)
            reaches[psi, widen] = (
                None if value is None else np.stack([-value[m:], value[:m]], axis=1)
            )
        return reaches[psi, widen]

    def bound(cell: NuisanceRange) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        ends = [
            one
            for psi in (cell.low, cell.high)
            if np.isfinite(psi) and (one := reach(psi, cell.widen)) is not None
        ]
        if not ends:
            return np.full(m, np.inf), np.full(m, -np.inf), np.zeros((m, 2), bool)
        hull = np.stack(
            [np.min([e[:, 0] for e in ends], axis=0), np.max([e[:, 1] for e in ends], axis=0)], 1
        )
        found = [
            _at_end(profile, functional, cell, psi, parts, hull, over)
            for psi in (cell.low, cell.high)
        ]
        low = np.minimum(found[0][0], found[1][0])
        return low, np.maximum(found[0][1], found[1][1]), ~np.isfinite(hull)

    def all_of(cells: list[NuisanceRange]) -> list[np.ndarray]:
        return [np.array(part) for part in zip(*map(bound, cells))]

    if not cells:  # no member is left anywhere
        return np.full(m, np.inf), np.full(m, -np.inf), np.zeros((m, 2), bool)
    low, high, open_end = all_of(cells)
    for _ in range(ROUNDS):
        worst = set(np.argmax(high, axis=0)) | set(np.argmin(low, axis=0))
        wide = sorted(
            i for i in worst if cells[i].widen > NARROW or cells[i].high > (1 + FINE) * cells[i].low
        )
        if not wide:
            break
        halves = [half for i in wide for half in profile.split(cells[i])]
        halves = [half for half in halves if profile.alive(half)]
        keep = [i for i in range(len(cells)) if i not in wide]
        cells = [*(cells[i] for i in keep), *halves]
        new = all_of(halves) if halves else [part[:0] for part in (low, high, open_end)]
        low, high, open_end = (
            np.concatenate([old[keep], more]) for old, more in zip((low, high, open_end), new)
        )
        if not cells:
            return np.full(m, np.inf), np.full(m, -np.inf), np.zeros((m, 2), bool)
    return low.min(axis=0), high.max(axis=0), np.asarray(open_end.any(axis=0))


def _slip(known: Nuisance, cell: NuisanceRange, most: np.ndarray) -> np.ndarray:
    """By how much a chance inside a cell may exceed those at its ends, (m,); `most`: the largest
    predictor of every row.
    """
    bent = (cell.high - cell.low) ** 2 / 8 * known.most_curved(cell.low)
    slip = np.full(len(most), bent if np.isfinite(cell.high) else np.inf)
    if not known.to_poisson:
        return slip
    with np.errstate(over="ignore"):  # at most so far from a Poisson of the same mean, both
        far = np.exp(most) / cell.low
    found: np.ndarray = np.minimum(slip, far if np.isinf(cell.high) else 2 * far)
    return found


def _at_end(
    profile: Profile,
    functional: Functional,
    cell: NuisanceRange,
    psi: float,
    parts: tuple[np.ndarray, np.ndarray],
    hull: np.ndarray,
    over: Over,
) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest value (m,) at one end of a cell, moved outwards by what the functional may
    do inside it; hull: ends of features @ v.
    """
    data = profile.data(psi)
    _, columns, _ = profile.rewritten.columns(parts, psi)
    ends = columns[:, [data.dim]] + hull
    slip = np.zeros(len(columns))
    one_sided = functional.above is None or functional.below is None
    tail = functional.name == "quantile" or (functional.name == "probability" and one_sided)
    if functional.name in ("probability", "quantile") and not (profile.known.ordered and tail):
        slip = _slip(profile.known, cell, parts[1] + hull[:, 1])
    if functional.name != "quantile":
        low, high = over(data, functional, columns, ends)
        return low - slip, high + slip
    levels = functional.level - float(slip.max()), functional.level + float(slip.max())
    low, high = (
        over(data, at, columns, ends)[side]
        if 0 < at.level < 1
        else np.full(len(columns), (-np.inf, np.inf)[side])
        for side, at in enumerate(replace(functional, level=level) for level in levels)
    )
    return low, high
