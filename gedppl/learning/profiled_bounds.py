r"""A functional over what rows leave plausible of a predictor and one more unknown number psi:
cells of psi, split until nothing is gained. See `profiled` for the lines, `nuisances` for the
proofs.

Axis letters: m rows asked about, T tracks (the upper or the lower end of one row's functional), N
nodes, C cells, P points, D coordinates of v.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import polygamma

from gedppl.density import Density
from gedppl.learning.ascent import Found
from gedppl.learning.likelihoods import PredictorLikelihood
from gedppl.learning.nuisances import NUISANCES
from gedppl.learning.profiled import Profile, Rewritten, profile_of
from gedppl.learning.reach import is_plain, remarks

if TYPE_CHECKING:
    from gedppl.functionals import Functional
    from gedppl.learning.programs import ProgramLearner

Over = Callable[
    [PredictorLikelihood, "Functional", np.ndarray, np.ndarray, np.ndarray],
    tuple[np.ndarray, np.ndarray],
]
"""(data of the family, functional, columns (P, ...), ends of the predictor (P, 2), which of the
rows asked about each is (P,)) -> lowest and highest value (P,)."""

ROUNDS = 16
TIGHT = 2e-6  # share of the functional's spread over the set: a cell is not split for less
LOOSE = 1e-3  # the same where ends of the predictor and of psi are bounded one by one
MOST = 32  # cells of a track to be split at a time
NEAR = 0.08  # of a cell's width, around where the functional seems to peak
FINEST = 1e-5  # ratio of a cell's ends, less one, at which it is not split again
SHIFTS = 2.0 ** -np.arange(60.0)  # of a level, to which a shift is rounded up


@dataclass(frozen=True)
class Nodes:
    """What is known at values of psi, track by track; `d` directions of the form: one, or both
    where the functional is not monotone in the predictor.
    """

    track: np.ndarray  # (N,)
    psi: np.ndarray  # (N,)
    near: np.ndarray  # (N,) number of the `AtNuisance` whose metric is used
    reach: np.ndarray  # (N, d)
    price: np.ndarray  # (N, d)
    slope: np.ndarray  # (N, d)
    theta: np.ndarray  # (N, d, D)
    value: np.ndarray  # (N,) the functional there, times the track's sign; -inf without a member

    def joined(self, more: Nodes) -> Nodes:
        names = [part.name for part in fields(self)]
        return Nodes(*(np.concatenate([getattr(self, at), getattr(more, at)]) for at in names))


@dataclass(frozen=True)
class Enclosure:
    """What form'v reaches in cells, (C, d): no more than a line through `low` and `high` at their
    ends, of joint families than two that meet in a corner; and in all at most `most`.
    """

    low: np.ndarray
    high: np.ndarray
    most: np.ndarray
    corner: np.ndarray
    corner_psi: np.ndarray


@np.errstate(divide="ignore", invalid="ignore", over="ignore")
def enclosed(profile: Profile, nodes: Nodes, left: np.ndarray, right: np.ndarray) -> Enclosure:
    """In cells between nodes left and right (C,); right -1: those that go on for ever."""
    p, q = nodes.psi[left, None], nodes.psi[right, None]
    a, b = nodes.reach[left], nodes.reach[right]
    first, other = nodes.price[left], nodes.price[right]
    if profile.known.joint:
        rise, fall = nodes.slope[left], nodes.slope[right]
        at = (q * b - p * a + rise * p - fall * q) / (rise - fall)
        at = np.clip(np.where(np.isfinite(at), at, p), p, q)
        corner = np.minimum(p * a + rise * (at - p), q * b + fall * (at - q)) / at
        corner = np.where(np.isfinite(corner), corner, np.maximum(a, b))
        return Enclosure(a, b, np.maximum(np.maximum(a, b), corner), corner, at)
    kappa = profile.kappa(p[:, 0], q[:, 0])[:, None]
    # the peak of the ratio in the head of `profiled`: its slope is a quadratic in t
    weight, change = 1.0 / first, 1.0 / other - 1.0 / first
    target = (b / other - a * weight + kappa) * weight - a * weight * change
    root = np.sqrt(np.maximum((kappa * weight) ** 2 + kappa * change * target, 0.0))
    t = np.clip(np.nan_to_num(target / (kappa * weight + root)), 0.0, 1.0)
    inner = ((1 - t) * a * weight + t * b / other + t * (1 - t) * kappa) / (weight + t * change)
    most = np.fmax(np.maximum(a, b), inner)
    bump = 0.25 * np.maximum(kappa + change * (b - a), 0.0) * np.maximum(first, other)
    for i in np.flatnonzero(right < 0):
        most[i] = a[i] + first[i] * profile.known.beyond(float(p[i, 0]), profile.y)
        bump[i] = np.inf
    return Enclosure(a + bump, b + bump, most, most, p + 0.0 * most)


class ProfileSearch:
    """One functional at rows x (m, dx), a (m,) over one set. Tracks: the upper end of every row,
    then the lower ends; a value counts times its track's sign.
    """

    def __init__(
        self, profile: Profile, functional: Functional, x: np.ndarray, a: np.ndarray, over: Over
    ) -> None:
        self.profile, self.known, self.functional = profile, profile.known, functional
        self.x, self.a, self.over, m = x, a, over, len(a)
        self.features, self.offset = profile.rewritten.parts(x, a)
        self.row, self.sign = np.tile(np.arange(m), 2), np.repeat([1.0, -1.0], m)
        self.data = {finite: profile.rewritten.family(finite) for finite in (True, False)}
        two_sided = functional.above is not None and functional.below is not None
        real = self.data[True].family.real
        self.monotone = not two_sided and not (functional.name == "second_moment" and real)
        self.chance = functional.name in ("probability", "quantile")
        by_lines = self.monotone and (
            profile.known.joint or functional.name in ("mean", "probability", "quantile")
        )
        self.tight = TIGHT if by_lines and functional.name != "variance" else LOOSE
        first = sorted({end for cell in profile.cells or () for end in cell if np.isfinite(end)})
        self.metrics = [profile.at(psi) for psi in first]
        self.ways = (self._way() * self.sign)[:, None] if self.monotone else np.array([[1.0, -1.0]])

    def _way(self) -> float:
        """1 or -1: whether the functional grows or falls with the predictor."""
        middle = self.profile.at(self.profile.psi)
        eta = self.features[:1] @ middle.centre + self.offset[:1]
        ends = [
            self._value(np.zeros(1, int), np.array([middle.psi]), eta + step, self.functional)[0]
            for step in (-1.0, 1.0)
        ]
        return 1.0 if ends[1] >= ends[0] else -1.0

    # values ---------------------------------------------------------------------------------------

    def _value(
        self,
        rows: np.ndarray,
        psi: np.ndarray,
        eta: np.ndarray,
        asked: Functional,
    ) -> np.ndarray:
        """At predictors eta (P,) of rows (P,)."""
        found = np.empty(len(rows))
        for finite in (True, False):
            mine = np.flatnonzero(np.isfinite(psi) == finite)
            if not len(mine):
                continue
            family = self.data[finite]
            name = {self.profile.rewritten.form.name: self.known.argument(psi[mine])}
            with np.errstate(all="ignore"):
                at = family.family.arguments(eta[mine], name if finite else {})
                density = Density(family.predictor.family, at)
                at_rows = asked(density, x=self.x[rows[mine]], a=self.a[rows[mine]])
                found[mine] = np.asarray(at_rows, float)
        return found

    def highest(
        self,
        track: np.ndarray,
        psi: np.ndarray,
        reach: np.ndarray,
        functional: Functional | None = None,
    ) -> np.ndarray:
        """The largest of sign * functional (P,) where form'v goes to reach (P, d)."""
        asked = self.functional if functional is None else functional
        rows, sign, finite = self.row[track], self.sign[track], np.isfinite(psi)
        shift = self.profile.rewritten.shift(np.where(finite, psi, 1.0))
        offset = self.offset[rows] + np.where(finite, shift, 0.0)
        if self.monotone:
            end = reach[:, 0]
            found = sign * self._value(rows, psi, offset + self.ways[track, 0] * end, asked)
            found = np.where(np.isposinf(end) | np.isnan(found), np.inf, found)
            return np.where(np.isneginf(end), -np.inf, found)
        ends = offset[:, None] + np.sort(np.stack([-reach[:, 1], reach[:, 0]], axis=1), axis=1)
        found = np.empty(len(track))
        for kind in (True, False):
            mine = np.flatnonzero(finite == kind)
            if len(mine):
                at = rows[mine]
                columns = self.profile.rewritten.columns(
                    self.features[at], self.offset[at], psi[mine]
                )
                low, high = self.over(self.data[kind], asked, columns, ends[mine], at)
                found[mine] = np.where(sign[mine] > 0, high, -low)
        return np.where(reach.sum(axis=1) < 0, -np.inf, found)  # ends that cross: no member

    def _quantiles(
        self, track: np.ndarray, psi: np.ndarray, reach: np.ndarray, shift: np.ndarray
    ) -> np.ndarray:
        """`highest` at levels moved outwards by shift (P,), rounded up to one of few numbers."""
        found = np.full(len(track), np.inf)
        coarse = np.array([SHIFTS[one <= SHIFTS].min(initial=1.0) for one in shift])
        for size in np.unique(coarse):
            for sign in (1.0, -1.0):
                mine = np.flatnonzero((coarse == size) & (self.sign[track] == sign))
                level = self.functional.level + sign * size
                if len(mine) and 0 < level < 1:
                    asked = replace(self.functional, level=float(level))
                    found[mine] = self.highest(track[mine], psi[mine], reach[mine], asked)
        return found

    # cells ----------------------------------------------------------------------------------------

    def nodes(
        self, track: np.ndarray, psi: np.ndarray, near: np.ndarray, start: np.ndarray | None
    ) -> Nodes:
        """Lines at psi (N,) for tracks (N,), from start (N, d, D)."""
        ways = np.broadcast_to(
            self.ways[track] if self.monotone else self.ways, (len(track), self.d)
        )
        forms = ways[:, :, None] * self.features[self.row[track]][:, None]
        D = forms.shape[2]
        metrics = [self.metrics[i] for i in np.repeat(near, self.d)]
        found = self.profile.lines(
            forms.reshape(-1, D),
            np.repeat(psi, self.d),
            metrics,
            None if start is None else start.reshape(-1, D),
        )
        reach, price, slope = (
            part.reshape(-1, self.d) for part in (found.reach, found.price, found.slope)
        )
        value = self.highest(track, psi, reach)
        spare = np.flatnonzero([self.metrics[i].level < self.profile.threshold for i in near])
        if len(spare):
            value[spare] = self._at_centres(track[spare], near[spare])
        theta = found.theta.reshape(-1, self.d, D)
        return Nodes(track, psi, near, reach, price, slope, theta, value)

    def _at_centres(self, track: np.ndarray, near: np.ndarray) -> np.ndarray:
        """sign * functional where a set that has little room has its centre; -inf where that is no
        member.
        """
        found = [self.metrics[i] for i in near]
        psi, rows = np.array([one.psi for one in found]), self.row[track]
        eta = np.sum(self.features[rows] * np.array([one.centre for one in found]), axis=1)
        eta = eta + self.offset[rows] + self.profile.rewritten.shift(psi)
        value = self.sign[track] * self._value(rows, psi, eta, self.functional)
        member = np.array([one.attained >= self.profile.threshold for one in found])
        return np.where(member & np.isfinite(value), value, -np.inf)

    @property
    def d(self) -> int:
        return int(self.ways.shape[1])

    def bounds(self, nodes: Nodes, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """At most sign * functional in every cell, (C,)."""
        found, name = enclosed(self.profile, nodes, left, right), self.functional.name
        track, p = nodes.track[left], nodes.psi[left]
        q = np.where(right < 0, np.inf, nodes.psi[right])
        if self.known.joint and self.monotone and name != "variance":
            return self._joint(found, track, p, q)
        if name == "mean":  # which does not depend on psi
            return self.highest(track, p, found.most)
        offset, way = self.offset[self.row[track]], self.ways[track if self.monotone else 0, 0]
        slip = np.zeros(len(p))
        if self.chance:
            slip = self._bent(offset + way * found.most[:, 0], p, q, slip)
        whole = self._at_both(track, p, q, found.most, found.most, slip)
        if self.known.joint or not (self.chance and self.monotone):
            return whole
        ends = way * found.low[:, 0], way * found.high[:, 0]
        with np.errstate(invalid="ignore"):
            slip = self._bent(offset + np.maximum(*ends), p, q, np.abs(ends[1] - ends[0]))
        return np.asarray(np.fmin(whole, self._at_both(track, p, q, found.low, found.high, slip)))

    def _at_both(
        self,
        track: np.ndarray,
        p: np.ndarray,
        q: np.ndarray,
        low: np.ndarray,
        high: np.ndarray,
        slip: np.ndarray,
    ) -> np.ndarray:
        """The larger of the values at the two ends of cells, moved outwards by the slip."""
        both = np.tile(track, 2), np.concatenate([p, q]), np.vstack([low, high])
        if self.functional.name == "quantile":
            return np.asarray(self._quantiles(*both, np.tile(slip, 2)).reshape(2, -1).max(axis=0))
        return np.asarray(self.highest(*both).reshape(2, -1).max(axis=0) + slip)

    def _joint(
        self, found: Enclosure, track: np.ndarray, p: np.ndarray, q: np.ndarray
    ) -> np.ndarray:
        """The vertices; where the functional's logarithm is convex in the scale, its smallest value
        lies below them by at most what it bends.
        """
        most = self.highest(
            np.tile(track, 3),
            np.concatenate([p, found.corner_psi[:, 0], q]),
            np.vstack([found.low, found.corner, found.high]),
        ).reshape(3, -1)
        power = {"mean": 1.0, "cvar": 1.0, "second_moment": 2.0}.get(self.functional.name, 0.0)
        if self.data[True].family.real or not power:
            return np.asarray(most.max(axis=0))
        bent = power**2 * polygamma(1, 1.0 + power / q) * (1 / p - 1 / q) ** 2 / 8
        shrink = np.where(self.sign[track] < 0, np.exp(-bent), 1.0)
        return np.asarray(most.max(axis=0) * shrink)

    def _bent(self, eta: np.ndarray, p: np.ndarray, q: np.ndarray, along: np.ndarray) -> np.ndarray:
        """By how much a chance in a cell may exceed the larger of those at its ends, (C,), where
        the predictor goes up to eta, and by `along` from one end to the other.
        """
        known, wide = self.known, np.where(np.isfinite(q), q - p, np.inf)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = np.exp(eta)
            bent = wide**2 * known.most_curved(p, mean)
            bent = bent + np.where(along > 0, 2 * along * wide * known.cross(p, mean), 0.0)
            bent = bent + np.where(along > 0, along**2 * known.along(q, mean), 0.0)
            if known.to_poisson:  # of the same mean, at most so far away
                far = np.where(along > 0, np.inf, np.where(np.isinf(q), 1.0, 2.0) * mean / p)
                bent = np.fmin(bent, 8 * far)
        return np.where(np.isnan(bent), np.inf, bent) / 8

    def largest(self) -> np.ndarray:
        """At most sign * functional over the set, (T,)."""
        T, cells = len(self.sign), self.profile.cells
        assert cells is not None
        if not cells:  # no member is left anywhere
            return np.full(T, -np.inf)
        first, N = np.array([one.psi for one in self.metrics]), len(self.metrics)
        track, near = np.repeat(np.arange(T), N), np.tile(np.arange(N), T)
        nodes = self.nodes(track, first[near], near, None)
        number = {float(psi): i for i, psi in enumerate(first)}
        ends = np.array([(number[low], number.get(high, -1)) for low, high in cells])
        left = (ends[:, 0] + N * np.arange(T)[:, None]).ravel()
        right = np.where(ends[:, 1] < 0, -1, ends[:, 1] + N * np.arange(T)[:, None]).ravel()
        bound = self.bounds(nodes, left, right)
        for _ in range(ROUNDS):
            wide = self._worth_splitting(nodes, left, right, bound)
            if not 0 < np.sum(wide) <= MOST * T:
                break
            nodes, lefts, rights = self._split(nodes, left[wide], right[wide])
            live = ~self._dead(nodes, lefts, rights)
            lefts, rights = lefts[live], rights[live]
            left = np.concatenate([left[~wide], lefts])
            right = np.concatenate([right[~wide], rights])
            bound = np.concatenate([bound[~wide], self.bounds(nodes, lefts, rights)])
        out = np.full(T, -np.inf)
        np.maximum.at(out, nodes.track[left], bound)
        return out

    def _worth_splitting(
        self, nodes: Nodes, left: np.ndarray, right: np.ndarray, bound: np.ndarray
    ) -> np.ndarray:
        T = len(self.sign)
        best = np.full(T, -np.inf)
        np.maximum.at(best, nodes.track, nodes.value)
        with np.errstate(invalid="ignore"):
            spread = np.tile(np.abs(best[: T // 2] + best[T // 2 :]), 2)
            mine = nodes.track[left]
            wide = bound > best[mine] + self.tight * spread[mine]
        wide &= (right < 0) | (nodes.psi[right] > (1 + FINEST) * nodes.psi[left])
        return np.asarray(wide & np.isfinite(nodes.reach[left]).all(axis=1))

    def _split(
        self, nodes: Nodes, left: np.ndarray, right: np.ndarray
    ) -> tuple[Nodes, np.ndarray, np.ndarray]:
        """With nodes inside cells (C,), and the cells that these leave; a cell in which a line was
        not found stays as it is.
        """
        peaks, made = self._peaks(nodes), []
        for i, j in zip(left, right):
            best, peak = peaks[nodes.track[i]]
            if np.isneginf(nodes.value[[i, j]]).any():  # where members end: halve
                best = np.nan
            for inner in _inside(nodes.psi[i], np.inf if j < 0 else nodes.psi[j], best, peak):
                made.append((i, j, inner))
        from_, to, psi = (np.array(part) for part in zip(*made))
        ends = nodes.psi[from_], np.where(to < 0, np.inf, nodes.psi[to])
        share = (np.log(psi / ends[0]) / np.log(ends[1] / ends[0]))[:, None, None]
        start = (1 - share) * nodes.theta[from_] + share * nodes.theta[to]
        near = np.array([self._near(nodes, *one) for one in made])
        more = self.nodes(nodes.track[from_], psi, near, start)
        both, N = nodes.joined(more), len(nodes.psi)
        lefts, rights = [], []
        for i, j in zip(left, right):
            mine = (from_ == i) & (to == j) & np.isfinite(more.reach).all(axis=1)
            chain = [i, *(N + np.flatnonzero(mine)), j]
            lefts += chain[:-1]
            rights += chain[1:]
        return both, np.array(lefts), np.array(rights)

    def _dead(self, nodes: Nodes, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Which cells (C,) have no member; a bound at their nodes alone would not see it."""
        ends = nodes.psi[left], np.where(right < 0, np.inf, nodes.psi[right])
        return np.array([self.profile.seen_dead(float(p), float(q)) for p, q in zip(*ends)], bool)

    def _near(self, nodes: Nodes, left: int, right: int, psi: float) -> int:
        """Whose metric and level to use at psi: the left node's, or its own at an end of what is
        plausible of psi, where sets shrink to a point.
        """
        beside = [int(nodes.near[i]) for i in (left, right) if i >= 0]
        if all(self.metrics[i].level == self.profile.threshold for i in beside):
            return beside[0]
        self.metrics.append(self.profile.at(float(psi)))
        return len(self.metrics) - 1

    def _peaks(self, nodes: Nodes) -> list[tuple[float, float]]:
        """Of every track, the psi of its best node and where a parabola through it and its
        neighbours has its top.
        """
        found = []
        for track in range(len(self.sign)):
            mine = np.flatnonzero((nodes.track == track) & np.isfinite(nodes.value))
            mine = mine[np.argsort(nodes.psi[mine])]
            if not len(mine):
                found.append((np.nan, np.nan))
                continue
            at = int(np.argmax(nodes.value[mine]))
            psi, peak = float(nodes.psi[mine[at]]), np.nan
            if 0 < at < len(mine) - 1:
                (x0, x1, x2), (y0, y1, y2) = (
                    part[mine[at - 1 : at + 2]] for part in (np.log(nodes.psi), nodes.value)
                )
                up, down = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
                if up > down:
                    peak = 0.5 * (x0 + x1 + up * (x2 - x0) / (up - down))
            found.append((psi, float(np.exp(peak))))
        return found


def _inside(low: float, high: float, best: float, peak: float) -> list[float]:
    """Where to split a cell of a track: around the peak, beside the best node, or in the middle."""
    if np.isinf(high):
        return [4 * low]
    first, width = np.log(low), np.log(high / low)
    if best in (low, high):
        if low < peak < high:
            around = (np.log(peak / low) / width + NEAR * np.array([-1.0, 0.0, 1.0])).tolist()
            shares = [share for share in around if 0.02 < share < 0.98]
            if shares:
                return [float(np.exp(first + share * width)) for share in shares]
        return [float(np.exp(first + (0.1 if best == low else 0.9) * width))]
    return [float(np.exp(first + 0.5 * width))]


# the ends over every set --------------------------------------------------------------------------


def profiled_bounds(
    learner: ProgramLearner, functional: Functional, x: np.ndarray, a: np.ndarray, over: Over
) -> Found | None:
    """None where nothing is known of the functional's shape.

    Of every row one set is asked, of all rows or of a group: the one whose delta half-width is
    smallest. A set without an end in the nuisance (too few rows, which some predictor fits
    perfectly) bounds nothing.
    """
    form, sets = learner.cls.profiled, learner.every_set
    if form is None or not sets or not is_plain(functional) or functional.fn is not None:
        return None
    if any(s.threshold is None for s in sets):
        return None
    rewritten = Rewritten(form, NUISANCES[form.family])
    profiles = [profile_of(chosen, rewritten) for chosen in sets]
    features, _ = rewritten.parts(x, a)
    widths = np.array([_half_width(profile, features) for profile in profiles])
    use, m = np.argmin(widths, axis=0), len(a)
    use[~np.isfinite(widths.min(axis=0))] = -1
    lower, upper = np.full(m, -np.inf), np.full(m, np.inf)
    for i in np.unique(use[use >= 0]):
        rows = np.flatnonzero(use == i)

        def asked(
            data: PredictorLikelihood,
            functional: Functional,
            columns: np.ndarray,
            ends: np.ndarray,
            at: np.ndarray,
            rows: np.ndarray = rows,
        ) -> tuple[np.ndarray, np.ndarray]:
            return over(data, functional, columns, ends, rows[at])

        found = ProfileSearch(profiles[i], functional, x[rows], a[rows], asked).largest()
        upper[rows], lower[rows] = found[: len(rows)], -found[len(rows) :]
    if functional.name == "probability":  # whose range is a fact, not a declaration
        lower, upper = np.maximum(lower, 0.0), np.minimum(upper, 1.0)
    gap = lower - upper
    apart = bool(np.any(gap > 1e-6 * np.maximum(np.abs(lower), np.abs(upper))))
    open_end = ~np.isfinite(widths.min(axis=0))[:, None] | np.isinf(np.stack([lower, upper], 1))
    if apart:
        lower[:], upper[:] = -np.inf, np.inf
    notes = "; ".join(remarks(open_end, a, apart))
    return Found(lower, upper, None, notes, apart, profiled=True)


def _half_width(profile: Profile, features: np.ndarray) -> np.ndarray:
    """By the delta method at the fit's psi, (m,); infinite where features leave the span of the
    rows, or psi has no end.
    """
    if profile.cells is None:
        return np.full(len(features), np.inf)
    middle = profile.at(profile.psi)
    kappa = max(middle.top - profile.threshold, 0.0)
    size = np.sqrt(2 * kappa) * np.linalg.norm(features @ middle.inverse.T, axis=1)
    return np.where(middle.unseen.meets(features) | np.isnan(size), np.inf, size)
