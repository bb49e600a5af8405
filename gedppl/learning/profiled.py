r"""Bounds for one-predictor families with one more unknown number psi: dispersion, shape or scale.

At a value p of psi the log-likelihood is concave in v, so that the largest x = form'v over the set
there is exact, and its multiplier gives a line that holds for every v:

    l(v, p) <= threshold - (x - reach_p) / price_p

Between two such values p < q, `nuisances` says what is proved of the family. Where its rows bend by
at most K = sum_i k_i(p), members with psi = (1 - t) p + t q have

    x <= [(1 - t) reach_p / price_p + t reach_q / price_q + t (1 - t) kappa]
         / [(1 - t) / price_p + t / price_q],        kappa = (q - p)^2 K / 2

which is at most the chord of the two reaches plus a bump of the order of (q - p)^2. Where location
and scale are joint, (psi x, psi) lies in a convex region, whose tangents at p and q meet in a
corner above the arc between them. Either way a functional is bounded in a cell by its values at two
or three points, moved outwards by what it may do between them; cells whose bound exceeds the best
value seen at a node are split, all rows asked about in one pass, until nothing is gained.

Axis letters: n rows of a set, m rows asked about, M forms solved together, D coordinates of v, T
tracks (one end of one row's functional), N nodes, C cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gedppl.learning.fits import decrement
from gedppl.learning.likelihoods import PredictorLikelihood, ProgramLikelihood
from gedppl.learning.nuisances import Nuisance
from gedppl.learning.program_sets import MARGIN, Plausible, Unseen, metric, plausible
from gedppl.learning.walls import Box, Walls, farthest_inside, member_inside
from gedppl.programs.contract import LinearPredictor, Profiled
from gedppl.rows import Rows

HAIR = 1e-3  # nats: what a climb may leave below a top
COARSE = 0.5  # nats by which rows may bend within a first cell
WIDEST = 1.6  # ratio of the ends of a first cell
MOST_CELLS = 400
NO_END = 1e12  # times the fit's psi: where members are still found, they go on for ever
LEAST_ROOM = 0.25  # nats below a top at which a line is taken where the set has less, or no, room
STEPS, TOLERANCE, FARTHEST = 60, 1e-8, 1e6


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

    @property
    def psi_ends(self) -> tuple[float, float]:
        low, high = self.form.low[1], self.form.high[1]
        if self.known.inverse:
            return 1.0 / high if high else np.inf, 1.0 / low if low > 0 else np.inf
        return low, high

    def shift(self, psi: np.ndarray) -> np.ndarray:
        """Of the predictor, at psi."""
        return self.known.slope * np.log(psi) if self.known.slope else np.zeros(np.shape(psi))

    def columns(self, features: np.ndarray, offset: np.ndarray, psi: np.ndarray) -> np.ndarray:
        """As `PredictorLikelihood` keeps them: features, offset, argument; psi (n,), all finite or
        (a Poisson's) all infinite.
        """
        if np.isinf(psi).any():
            return np.column_stack([features, offset])
        return np.column_stack([features, offset + self.shift(psi), self.known.argument(psi)])

    def family(self, finite: bool) -> PredictorLikelihood:
        """The family itself, or (psi is infinite) the Poisson, without rows."""
        return self.data(finite, Rows.empty(self.dim + 1 + finite))

    def data(self, finite: bool, table: Rows) -> PredictorLikelihood:
        family = self.form.family if finite else "Poisson"
        predictor = LinearPredictor(family, self.known.link, None, None, None)
        return PredictorLikelihood(predictor, self.dim, table, (self.form.name,) if finite else ())


@dataclass(frozen=True)
class AtNuisance:
    """The rows of a set at one psi: what their log-likelihood exceeds nowhere, what it attains at
    the centre, and a metric there.
    """

    psi: float
    top: float
    attained: float
    level: float  # at which lines are taken here
    centre: np.ndarray  # (D,)
    chol: np.ndarray  # (D, D)
    inverse: np.ndarray  # (D, D)
    unseen: Unseen


@dataclass(frozen=True)
class Lines:
    """l(v, psi) <= threshold - (x - reach) / price for every v; and where it is attained."""

    reach: np.ndarray  # (M,) inf where there is no end
    price: np.ndarray  # (M,)
    slope: np.ndarray  # (M,) of psi x along the tangent, where location and scale are joint
    theta: np.ndarray  # (M, D)


class Profile:
    """The rows of one set along the nuisance, with what was computed of them."""

    def __init__(
        self, rewritten: Rewritten, rows: Rows, threshold: float, start: np.ndarray, psi: float
    ) -> None:
        self.rewritten, self.known = rewritten, rewritten.known
        self.rows, self.threshold, self.start, self.psi = rows, threshold, start, psi
        self.y = np.asarray(rows.y, float)
        self.told = self.y if self.known.told is None else self.known.told(self.y)
        self.features, self.offset = rewritten.parts(rows.x, rows.a)
        n, D = self.features.shape
        self._pairs = (self.features[:, :, None] * self.features[:, None, :]).reshape(n, D * D)
        # counts repeat, and what depends on psi and an outcome alone is dear
        self._outcomes, self._times = np.unique(self.y, return_counts=True)
        self._at: dict[float, AtNuisance] = {}
        self._constants: dict[float, float] = {}
        self._bends: dict[float, float] = {}

    # the likelihood -------------------------------------------------------------------------------

    def data(self, psi: float) -> PredictorLikelihood:
        columns = self.rewritten.columns(self.features, self.offset, np.full(len(self.y), psi))
        return self.rewritten.data(np.isfinite(psi), Rows.of(columns, self.rows.a, self.y))

    def look(
        self, theta: np.ndarray, psi: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Log-likelihood (M,) at theta (M, D) and psi (M,), its gradient (M, D), minus its Hessian
        (M, D, D), and its slope in psi (M,), for location and scale.
        """
        wide = psi[:, None]
        eta = theta @ self.features.T + self.offset + self.rewritten.shift(wide)
        value, score, bend = self.known.rows(eta, self.y, self.known.argument(wide))
        total = value.sum(axis=1) + np.array([self._constant(float(one)) for one in psi])
        along = np.zeros(len(psi))
        if self.known.joint:
            along = np.sum(1.0 - (self.told - eta) * score, axis=1) / psi
        D = theta.shape[1]
        return total, score @ self.features, (bend @ self._pairs).reshape(-1, D, D), along

    def _constant(self, psi: float) -> float:
        if psi not in self._constants:
            self._constants[psi] = float(self.known.constant(psi, self._outcomes) @ self._times)
        return self._constants[psi]

    def bend(self, psi: float) -> float:
        """K, for every larger psi."""
        if psi not in self._bends:
            assert self.known.curvature is not None
            self._bends[psi] = float(self.known.curvature(psi, self._outcomes) @ self._times)
        return self._bends[psi]

    def at(self, psi: float) -> AtNuisance:
        if psi not in self._at:
            near = min(self._at.values(), key=lambda one: abs(np.log(one.psi / psi)), default=None)
            data = self.data(psi)
            centre = data.climb(self.start if near is None else near.centre, steps=100, enough=1e-9)
            value, grad = data.at(centre)
            information = data.information(centre)
            if not (np.isfinite(value) and np.isfinite(information).all()):
                raise FloatingPointError(f"the likelihood is no number at {psi}")
            left = 2 * decrement(grad, information)
            top = float(value) + left + HAIR if left < 1e-3 else np.inf
            chol, unseen = metric(information)
            inverse = np.linalg.inv(chol)
            level = min(self.threshold, float(value) - LEAST_ROOM)
            self._at[psi] = AtNuisance(psi, top, float(value), level, centre, chol, inverse, unseen)
        return self._at[psi]

    def members(self, psi: float, level: float) -> Plausible:
        return plausible(self.data(psi), 0, self.at(psi).centre, level)

    # cells ----------------------------------------------------------------------------------------

    def kappa(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        return np.asarray((high - low) ** 2 / 2 * np.array([self.bend(float(one)) for one in low]))

    def fallen(self, psi: float) -> bool:
        """Whether no member of a joint family lies at psi, nor farther from the fit's psi.

        The maximum over v of what is concave in (psi v, psi) is concave in psi. It is below the
        threshold at psi and no smaller at the fit's: so it is smaller still beyond psi.
        """
        return self.at(psi).top < min(self.threshold, self.at(self.psi).attained)

    def seen_dead(self, low: float, high: float) -> bool:
        """Whether what was computed already shows that no member has its psi between the two."""
        looked = [psi in self._at for psi in (low, high)]
        if self.known.joint:
            inner, near = (low, looked[0]) if low >= self.psi else (high, looked[1])
            return near and self.fallen(inner)
        return all(looked) and not self.alive(low, high)

    def alive(self, low: float, high: float) -> bool:
        """Whether a member may have its psi between the two."""
        if self.known.joint:  # on one side of the fit's psi, from which the first cells start
            return not self.fallen(low if low >= self.psi else high)
        tops = self.at(low).top, -np.inf if np.isinf(high) else self.at(high).top
        if np.isinf(high):
            return tops[0] + self.known.beyond(low, self.y) >= self.threshold
        kappa, rise = float(self.kappa(np.array([low]), np.array([high]))[0]), tops[1] - tops[0]
        if not np.isfinite(rise):
            return True
        share = np.clip((kappa + rise) / (2 * kappa), 0.0, 1.0) if kappa > 0 else float(rise > 0)
        return bool(tops[0] + share * rise + share * (1 - share) * kappa >= self.threshold)

    @cached_property
    def cells(self) -> list[tuple[float, float]] | None:
        """The first cells, those that may have members; None if no end was found."""
        try:
            with np.errstate(all="ignore"):
                return self._first_cells()
        except (FloatingPointError, np.linalg.LinAlgError):  # so far out that numbers end first
            return None

    def _first_cells(self) -> list[tuple[float, float]] | None:
        low, high = self.rewritten.psi_ends
        found: list[tuple[float, float]] = []
        for down in (True, False):
            edge = self.psi
            for _ in range(MOST_CELLS):
                if self._ends(edge, down, low, high):
                    break
                cell = self._next(edge, down)
                found += [cell] if self.alive(*cell) else []
                edge = cell[0] if down else cell[1]
                if np.isinf(edge):
                    break
                if edge > NO_END * self.psi:
                    return None
            else:
                return None
        return found

    def _ends(self, psi: float, down: bool, low: float, high: float) -> bool:
        if (down and psi <= low) or (not down and psi >= high):
            return True
        if down and self.known.saturated(psi, self.y) < self.threshold:
            return True
        if self.known.joint:
            return self.fallen(psi)
        assert self.known.ended is not None
        return not down and self.known.ended(psi, self.at(psi).top, self.threshold, self.y)

    def _next(self, psi: float, down: bool) -> tuple[float, float]:
        lacking = self.threshold - self.at(psi).top
        allowed = max(COARSE, 0.5 * lacking)
        if not down and self.known.beyond(psi, self.y) <= allowed:
            return psi, np.inf
        if self.known.joint:
            return (psi / WIDEST, psi) if down else (psi, psi * WIDEST)
        ratio = 16.0 if allowed > COARSE else WIDEST
        while True:
            ends = (psi / ratio, psi) if down else (psi, psi * ratio)
            if float(self.kappa(np.array([ends[0]]), np.array([ends[1]]))[0]) / 4 <= allowed:
                return ends
            ratio = np.sqrt(ratio)

    # lines ----------------------------------------------------------------------------------------

    # far out products overflow: such steps end nowhere, and what has not arrived stays open
    @np.errstate(over="ignore", invalid="ignore")
    def lines(
        self, forms: np.ndarray, psi: np.ndarray, near: list[AtNuisance], start: np.ndarray | None
    ) -> Lines:
        """For forms (M, D), each at its psi (M,), in the metric of a psi nearby, from start (M, D).

        The same steps as those of `extremes`: to where the form is largest over the quadratic model
        of the slack.
        """
        M, D = forms.shape
        centre, chol, inverse = (
            np.array([getattr(one, part) for one in near]) for part in ("centre", "chol", "inverse")
        )
        level = np.array([one.level for one in near])
        kappa = np.array([max(one.top - HAIR, one.level + LEAST_ROOM) for one in near]) - level
        kappa = np.where(np.isfinite(kappa), kappa, 1.0)
        white = np.einsum("mij,mj->mi", inverse, forms)
        size = np.linalg.norm(white, axis=1)
        radius = np.sqrt(2 * kappa)
        if start is None:
            z = (radius / np.maximum(size, 1e-300))[:, None] * white
        else:
            z = np.einsum("mi,mij->mj", start - centre, chol)
        still = size < 1e-300
        found = Lines(
            np.where(still, 0.0, np.inf), np.where(still, 0.0, 1.0), np.zeros(M), centre.copy()
        )
        todo = np.flatnonzero(~still)
        for _ in range(STEPS):
            if not len(todo):
                break
            here = centre[todo] + np.einsum("mi,mij->mj", z[todo], inverse[todo])
            value, grad, information, along = self.look(here, psi[todo])
            slack = value - level[todo]
            bad = ~(np.isfinite(slack) & np.isfinite(grad).all(axis=1))
            bad |= ~np.isfinite(information).all(axis=(1, 2)) | (slack < -20 * kappa[todo])
            z[todo[bad]] *= 0.5  # far outside: come back towards the centre
            ok, at = ~bad, todo[~bad]
            if not len(at):
                continue
            slack, h, inner = slack[ok], white[at], inverse[at]
            g = np.einsum("mij,mj->mi", inner, grad[ok])
            metric_here = inner @ information[ok] @ np.swapaxes(inner, 1, 2)
            lift = 1e-12 * np.trace(metric_here, axis1=1, axis2=2)
            flat = ~(lift > 1e-30)  # no curvature left out here: the slack no longer falls
            lift = np.where(flat, 1.0, lift)
            both = np.linalg.solve(
                metric_here + lift[:, None, None] * np.eye(D), np.stack([g, h], axis=2)
            )
            u, w = both[:, :, 0], both[:, :, 1]
            inside = np.maximum(2 * slack + np.sum(g * u, axis=1), 0.0)
            far = np.sqrt(inside / np.maximum(np.sum(h * w, axis=1), 1e-300))
            price = -np.sum(h * g, axis=1) / np.maximum(np.sum(g * g, axis=1), 1e-300)
            rest = np.linalg.norm(h + price[:, None] * g, axis=1)
            off = np.maximum(rest / size[at], np.abs(slack) / kappa[at])
            done = (off < TOLERANCE) & (price > 0)
            ended = at[done]
            x = np.sum(forms[ended] * here[ok][done], axis=1)
            margin = np.maximum(price * slack, 0)[done] + MARGIN * radius[ended] * rest[done]
            found.price[ended] = price[done]
            found.reach[ended] = x + margin + price[done] * (level[ended] - self.threshold)
            found.slope[ended] = x + psi[ended] * price[done] * along[ok][done]
            found.theta[ended] = here[ok][done]
            move = u + far[:, None] * w
            length = np.linalg.norm(move, axis=1)
            longest = np.maximum(np.linalg.norm(z[at], axis=1), radius[at])
            move *= np.minimum(1.0, longest / np.maximum(length, 1e-300))[:, None]
            z[at] += np.where(done[:, None], 0.0, move)
            lost = np.linalg.norm(z[todo], axis=1) > FARTHEST * radius[todo]
            lost[ok] |= done | flat
            todo = todo[~lost]
        return self._inside_box(forms, psi, level, found)

    def _inside_box(
        self, forms: np.ndarray, psi: np.ndarray, level: np.ndarray, found: Lines
    ) -> Lines:
        """Those that were found beyond a declared box, or not at all, solved again inside it."""
        low, high = self.rewritten.box
        if not (np.isfinite(low).any() or np.isfinite(high).any()):
            return found
        walls = Walls.of(low, high, self.data(self.psi))
        again = ~np.isfinite(found.reach) | walls.broken(found.theta)
        for j in np.flatnonzero(again):
            chosen = self.members(float(psi[j]), float(level[j]))
            start = member_inside(chosen, walls)
            if start is None:
                continue
            reach, theta, price = (
                part[0] for part in farthest_inside(chosen, walls, forms[j : j + 1], start)
            )
            if np.isfinite(reach):
                along = self.look(theta[None], psi[j : j + 1])[3][0]
                found.price[j], found.theta[j] = price, theta
                found.reach[j] = reach + price * (level[j] - self.threshold)
                found.slope[j] = forms[j] @ theta + psi[j] * price * along
        return found


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
        psi = float(rewritten.known.argument(np.asarray(nuisance, float)))
        return Profile(rewritten, data.rows, threshold, start, psi)

    return data.kept(make)
