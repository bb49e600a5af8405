"""From evidence to sets: which starts of the e-process to use, and the region of parameters each
leaves plausible.

Axis letters: M parameter settings, n rows, D flat parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, singledispatch
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import solve_triangular

from gedppl.learning.fits import RANK_TOLERANCE, decrement, symmetric, units
from gedppl.learning.likelihoods import TOP, Likelihood, PredictorLikelihood
from gedppl.learning.ordered import OrderedLikelihood
from gedppl.learning.radius import LikelihoodRatio, Rule
from gedppl.learning.storing import Node, Reader, Tree, Writer, storable
from gedppl.rows import Kept

if TYPE_CHECKING:
    from gedppl.learning.radius import LikelihoodRatio


MARGIN = 6.0  # of a residual, in units of the set's radius: see `extremes`
HAIR = 1e-9  # of kappa: a point on the edge itself is in or out by how its rows are added up
# of the distance at which `walk` looks, from half the radius that the metric gives a set
DOUBLINGS = 10


@dataclass(frozen=True)
class Region:
    """{theta : slack(theta) >= 0}; slack(centre) = kappa; precision = chol chol' is minus the
    slack's Hessian there.
    """

    centre: np.ndarray  # (D,)
    chol: np.ndarray  # (D, D) lower triangular
    kappa: float
    slack: Callable[[np.ndarray], np.ndarray]  # (M, D) -> (M,)
    slack_grad: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # (M, D) -> (M,), (M, D)
    # (M, D) -> slack (M,), gradient (M, D) and minus Hessian (M, D, D)
    parabola: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]

    def whiten(self, grad: np.ndarray) -> np.ndarray:
        """Gradients (M, D) with respect to z, theta = centre + chol^-T z."""
        found: np.ndarray = np.einsum("md,kd->mk", grad, self._inverse)
        return found

    def theta(self, z: np.ndarray) -> np.ndarray:
        # not by matrix product, whose last digit depends on how many rows there are: a point found
        # must stay inside
        found: np.ndarray = self.centre + np.einsum("md,dk->mk", z, self._inverse)
        return found

    def whitened(self, information: np.ndarray) -> np.ndarray:
        """Informations (M, D, D) with respect to z."""
        found: np.ndarray = self._inverse @ information @ self._inverse.T
        return found

    @cached_property
    def _inverse(self) -> np.ndarray:
        """chol^-1. Thousands of small triangular solves would each wake the threads of a BLAS
        library.
        """
        found: np.ndarray = solve_triangular(
            self.chol, np.eye(len(self.centre)), lower=True, check_finite=False
        )
        return found

    def ends(self, phi: np.ndarray) -> np.ndarray:
        """Where forms phi (M, D) are largest in the ellipsoid of the metric: (M, D)."""
        white = self.whiten(phi)
        size = np.maximum(np.linalg.norm(white, axis=1, keepdims=True), 1e-300)
        return self.theta(np.sqrt(2 * self.kappa) * white / size)

    def z(self, theta: np.ndarray) -> np.ndarray:
        found: np.ndarray = (theta - self.centre) @ self.chol
        return found

    @cached_property
    def outposts(self) -> Walk:
        """How far the set goes from its centre, both ways along every coordinate and every axis of
        the metric (4 D walks).

        The axes are those of the precision in the coordinates' own units: a combination that rows
        say little about is one.
        """
        precision = self.chol @ self.chol.T
        unit = np.sqrt(np.diag(precision))
        _, vectors = np.linalg.eigh(precision / np.outer(unit, unit))
        ways = np.vstack([self.chol, (vectors / unit[:, None]).T @ self.chol])  # in z
        ways = np.vstack([ways, -ways])
        return walk(self, np.zeros(ways.shape), ways)

    def half_width(self, grad: np.ndarray) -> np.ndarray:
        """sqrt(2 kappa h' precision^-1 h) for gradients h (M, D): the delta method's half-width
        (M,).
        """
        found: np.ndarray = np.sqrt(2 * max(self.kappa, 0.0)) * np.linalg.norm(
            self.whiten(grad), axis=1
        )
        return found


# far along rays -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Walk:
    """The farthest member met on each of M rays, and the ray's point at half its distance."""

    z: np.ndarray  # (M, D), the ray's origin where nothing farther is a member
    half: np.ndarray  # (M, D)
    open: np.ndarray  # (M,) bool: still in the set at the last distance
    values: int  # evaluations spent


# far out a likelihood overflows: such points are outside
@np.errstate(over="ignore", invalid="ignore")
def walk(region: Region, origin: np.ndarray, ways: np.ndarray) -> Walk:
    """Look for members at doubling distances from origins z (M, D) along ways (M, D), in units of
    the set's own radius.

    Where the slack falls as fast as near the centre, it is gone within a step or two. A ray that is
    still inside at the last distance (2^9 times the radius that the metric promises) lies in a
    direction in which the likelihood does not fall: the set is open there, for all that can be
    seen. A member need not be joined to the origin by members.
    """
    M, D = ways.shape
    length = np.linalg.norm(ways, axis=1)
    unit = ways / np.maximum(length, 1e-300)[:, None]
    distance = np.sqrt(2 * max(region.kappa, 0.0)) * 2.0 ** np.arange(-1, DOUBLINGS)  # (R,)
    points = origin[:, None, :] + distance[None, :, None] * unit[:, None, :]
    inside = region.slack(region.theta(points.reshape(-1, D))).reshape(M, -1) >= 0
    inside &= (length > 0)[:, None]
    last = np.where(
        inside.any(axis=1), inside.shape[1] - 1 - np.argmax(inside[:, ::-1], axis=1), -1
    )
    gone = np.where(last >= 0, distance[last], 0.0)[:, None]
    return Walk(
        origin + gone * unit, origin + 0.5 * gone * unit, last == len(distance) - 1, inside.size
    )


# linear objective, concave slack ------------------------------------------------------------------


@dataclass(frozen=True)
class Extremes:
    """Where each linear objective is largest, an upper bound on its value, and whether the
    search settled.
    """

    theta: np.ndarray  # (M, D)
    value: np.ndarray  # (M,) upper bound on phi'theta over the set; inf where not settled
    settled: np.ndarray  # (M,) bool; False: unbounded direction (unseen, or separable data)
    calls: int  # single-gradient evaluations


# a step that overflows is cut to nothing, and its direction stays unsettled
@np.errstate(all="ignore")
def extremes(
    region: Region,
    phi: np.ndarray,
    *,
    own_metric: bool = True,
    tol: float = 1e-7,
    steps: int = 60,
) -> Extremes:
    r"""max phi_m' theta subject to slack(theta) >= 0 for every row of phi (M, D); slack concave.

    Each step maximises phi'theta over the quadratic model of the slack at the current point: with g
    its gradient and B its negative Hessian, ``d = B^-1 g + t B^-1 phi``, ``t^2 = (2 slack + g'B^-1
    g) / phi'B^-1 phi``; exact in one step if the slack is quadratic. B is the point's own Hessian,
    or, without `own_metric`, that at the centre while it converges fast.

    By concavity every member theta' has ``-g'(theta' - theta) <= slack(theta)``, so with ``phi =
    -mu g + r`` the returned value ``phi'theta + mu slack + MARGIN sqrt(2 kappa) |r|`` is an upper
    bound once the set's radius in the metric is below MARGIN/2 times its quadratic value; r is of
    the order of ``tol``.
    """
    white = region.whiten(phi)  # (M, D), whitened objectives
    size, reach, eye = _lengths(white), math.sqrt(2 * region.kappa), np.eye(phi.shape[1])
    settled = size < 1e-300  # a zero objective: any point will do
    bound = np.where(settled, phi @ region.centre, np.inf)
    found = np.where(settled[:, None], 0.0, reach * white / np.maximum(size, 1e-300)[:, None])
    todo = np.flatnonzero(~settled)
    z, h, size = found[todo], white[todo], size[todo]
    own, before = np.full(len(todo), own_metric), np.full(len(todo), np.inf)
    calls = 0
    for step in range(steps):
        if not len(todo):
            break
        here = region.theta(z)
        slack, grad, *curved = (region.parabola if own.any() else region.slack_grad)(here)
        calls += len(todo)
        g = region.whiten(grad)
        steep = _dots(g, g)
        ok = (slack >= -20 * region.kappa) & (steep < np.inf)  # not far outside, and a number
        both, lost = np.stack([g, h], axis=2), np.zeros(len(todo), bool)
        products = both.transpose(0, 2, 1)
        if curved:
            metric, use = region.whitened(curved[0]), own & ok
            if not use.all():
                metric = np.where(use[:, None, None], metric, eye)
            lift = 1e-12 * np.einsum("mdd->m", metric)
            if not lift.min() > 1e-30:
                lost = ~(lift > 1e-30)  # no curvature left out here: the slack no longer falls
                metric[lost] = eye
            both = np.linalg.solve(metric + lift[:, None, None] * eye, both)
        products = products @ both  # (M, 2, 2), of the gradient and the objective
        inside = 2 * slack + products[:, 0, 0]
        t = np.sqrt(np.maximum(inside, 0) / np.maximum(products[:, 1, 1], 1e-300))
        mu = -_dots(h, g) / np.maximum(steep, 1e-300)
        r = _lengths(h + mu[:, None] * g)
        relative = np.maximum(r / size, np.abs(slack) / region.kappa)
        done = (relative < tol) & (mu > 0) & ok & ~lost
        move = both[:, :, 0] + t[:, None] * both[:, :, 1]
        # at most double the distance in one step; from far outside half-way back to the centre
        share = np.maximum(_lengths(z), reach) / np.maximum(_lengths(move), 1e-300)
        ahead = z + np.minimum(1.0, share)[:, None] * move
        if done.any():
            value = _dots(phi[todo], here) + np.maximum(mu * slack, 0) + MARGIN * reach * r
            bound[todo[done]], settled[todo[done]] = value[done], True
            ahead[done] = z[done]
        if not ok.all():
            ahead[~ok] = 0.5 * z[~ok]
            relative[~ok] = before[~ok]
        found[todo] = z = ahead
        if step:
            own = own | (ok & (relative > 0.3 * before))
        before = relative
        ended = done | lost | (_lengths(z) > 1e6 * reach)
        if ended.any():
            todo, z, h, size, own, before = (
                part[~ended] for part in (todo, z, h, size, own, before)
            )
    return Extremes(region.theta(found), bound, settled, calls)


def _dots(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.einsum("md,md->m", a, b)
    return found


def _lengths(a: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.sqrt(np.einsum("md,md->m", a, a))
    return found


FIRST_RESTART, SPACING = 16, 4


@storable
@dataclass(frozen=True)
class Start:
    """A time at which the likelihood ratio starts anew: its number k, the rows before it, and R
    then.
    """

    k: int
    n: int
    evidence: float


@dataclass(frozen=True)
class Unseen:
    """The directions that rows say nothing about."""

    basis: np.ndarray  # (D, r) orthonormal, of coordinates multiplied by `unit`
    unit: np.ndarray  # (D,)
    untouched: np.ndarray  # (D,) bool: coordinates that no row depends on, whatever their unit

    @property
    def any(self) -> bool:
        return self.basis.size > 0

    def meets(self, phi: np.ndarray) -> np.ndarray:
        """Whether each linear form (m, D) depends on them, beyond rounding: (m,)."""
        if not self.any:
            return np.zeros(len(phi), bool)
        scaled = np.where(self.untouched, 0.0, phi / self.unit)
        leaves = np.linalg.norm(scaled @ self.basis, axis=1) > 1e-7 * np.linalg.norm(scaled, axis=1)
        found: np.ndarray = leaves | np.any(phi[:, self.untouched] != 0, axis=1)
        return found


@dataclass(frozen=True)
class Plausible:
    """One region of plausible parameters, from the rows after a start."""

    start: int
    data: Likelihood
    region: Region
    unseen: Unseen
    convex: bool  # a concave slack: linear objectives can be bounded exactly
    # proved to have no member: the top of a concave log-likelihood lies below the threshold
    refuted: bool = False
    # of the log-likelihood; None where the set is cut out by something else
    threshold: float | None = None

    @property
    def touched(self) -> np.ndarray:
        """(1, D): 1 for coordinates that some row depends on."""
        return np.where(self.unseen.untouched, 0.0, 1.0)[None]

    def is_walled(self, box: tuple[np.ndarray, np.ndarray]) -> bool:
        """Whether there is a wall, and a solver that keeps behind it."""
        walled = self.data.walled or bool(np.isfinite(box).any())
        return self.data.smooth and self.convex and walled

    @cached_property
    def behind_walls(self) -> Kept[Any]:
        """What is found out of the set inside declared bounds: see `walls.behind`."""
        return Kept()

    def stored(self, out: Writer) -> Node:
        if self.threshold is None:
            return out.left_out("a divergence ball around a program")
        region = [
            out.node(part)
            for part in (self.region.centre, self.region.chol, float(self.region.kappa))
        ]
        unseen = [
            out.array(part) for part in (self.unseen.basis, self.unseen.unit, self.unseen.untouched)
        ]
        kept = {
            "start": self.start,
            "n": self.data.n,
            "threshold": float(self.threshold),
            "refuted": self.refuted,
        }
        return kept | {"region": region, "unseen": unseen}

    @classmethod
    def restored(cls, data: Likelihood, read: Reader, tree: Tree) -> Plausible:
        centre, chol, kappa = (read.node(n) for n in tree["region"])
        start = tree["start"]
        made = plausible(data.between(start, start + tree["n"]), start, centre, tree["threshold"])
        region = replace(made.region, centre=centre, chol=chol, kappa=kappa)
        unseen = Unseen(*(read.array(part) for part in tree["unseen"]))
        return replace(made, region=region, unseen=unseen, refuted=bool(tree["refuted"]))


def next_starts(
    starts: tuple[Start, ...], n: int, evidence: float, rule: Rule
) -> tuple[Start, ...]:
    """The starts after n rows: a new one once n has reached 16, 64, 256, ... A time fixed by the
    rows seen, so valid.

    If a batch was impossible under the predictive (R = -inf) every earlier start is void: its set
    is everything.
    """
    number = starts[-1].k + 1 if starts else 0
    again = rule.process is not None and rule.process.restarts
    if evidence == -math.inf:
        return (Start(number, n, 0.0),) if again else ()
    if not again or not starts:
        return starts
    due = FIRST_RESTART
    while due <= starts[-1].n:
        due *= SPACING
    return (*starts, Start(number, n, evidence)) if n >= due else starts


def thresholds(
    starts: Sequence[Start], evidence: float, rule: LikelihoodRatio, delta: float
) -> np.ndarray:
    """c_s = (R_t - R_s) - log(1/delta_s) for every start."""
    return np.array([evidence - s.evidence + math.log(rule.level(s.k, delta)) for s in starts])


def within(
    data: Likelihood,
    starts: Sequence[Start],
    evidence: float,
    rule: LikelihoodRatio,
    delta: float,
    theta: np.ndarray,
) -> np.ndarray:
    """Whether each theta (M, D) lies in the likelihood-ratio set of every start, by the
    definition.
    """
    inside = np.ones(len(theta), bool)
    limits = thresholds(starts, evidence, rule, delta)
    edges = [*(s.n for s in starts), data.n]
    tail = np.zeros(len(theta))
    for i in range(len(starts) - 1, -1, -1):
        tail = tail + data.between(edges[i], edges[i + 1]).value(theta)
        inside &= tail >= limits[i]
    return inside


def likelihood_sets(
    data: Likelihood,
    starts: Sequence[Start],
    evidence: float,
    rule: LikelihoodRatio,
    delta: float,
    near: np.ndarray,
) -> tuple[Plausible, ...]:
    """The set of the first start, and the one of the later start that looks narrowest, if it is
    narrower.

    Later starts are compared by a Newton step from the top of the whole likelihood: the width is
    proportional to kappa_s tr(I_s^-1 I_0). Leaving starts out is always valid; it keeps the cost of
    a bound at two sets at most.
    """
    if not starts or data.n == 0:
        return ()
    limits = thresholds(starts, evidence, rule, delta)
    first = plausible(data.between(starts[0].n, data.n), starts[0].n, near, float(limits[0]))
    centre, D = first.region.centre, len(near)
    edges = [*(s.n for s in starts), data.n]
    value, grad, info = 0.0, np.zeros(D), np.zeros((D, D))
    scores: dict[int, float] = {}
    whole = first.region.chol @ first.region.chol.T
    for i in range(len(starts) - 1, 0, -1):  # tails, block by block from the end
        block = data.between(edges[i], edges[i + 1])
        if block.n:
            block_value, block_grad = block.value_grad(centre[None])
            value, grad = value + float(block_value[0]), grad + block_grad[0]
            info = info + block.information(centre)
        unit = units(info)
        values, vectors = np.linalg.eigh(symmetric(info) / np.outer(unit, unit))
        if values.min() <= 1e-8 * max(values.max(), 1e-300):
            continue
        inverse = (vectors / values) @ vectors.T / np.outer(unit, unit)
        kappa = value + 0.5 * float(grad @ inverse @ grad) - limits[i]
        if kappa > 0:
            scores[i] = kappa * float(np.trace(inverse @ whole))
    best = min(scores, key=lambda i: scores[i], default=None)
    if best is None or (
        first.region.kappa > 0 and not first.unseen.any and scores[best] >= first.region.kappa * D
    ):
        return (first,)
    later = plausible(
        data.between(starts[best].n, data.n), starts[best].n, centre, float(limits[best])
    )
    return (first, later)


def plausible(
    data: Likelihood, start: int, near: np.ndarray, threshold: float, drop: float | None = None
) -> Plausible:
    """{theta : log-likelihood of data >= threshold}, centred at its top; with `drop`, threshold
    = top - drop.
    """
    spare = float(data.value(near[None])[0]) - threshold
    if drop is None and spare > 0 and not data.concave:
        # On separable data a likelihood has no top, and far out every functional is flat: an ascent
        # from there sees nothing.
        centre = data.climb(near, enough=max(TOP, 0.02 * spare), far=1.0)
    else:
        centre = data.climb(near)
    top = float(data.value(centre[None])[0])
    if drop is not None:
        threshold = top - drop

    def slack(theta: np.ndarray) -> np.ndarray:
        return _outside_if_nan(data.value(theta) - threshold)

    def slack_grad(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, grad = data.value_grad(theta)
        return _outside_if_nan(value - threshold), grad

    def parabola(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        value, grad, information = data.parabolas(theta)
        return _outside_if_nan(value - threshold), grad, information

    information = data.information(centre)
    chol, unseen = metric(information)
    region = Region(centre, chol, top - threshold, slack, slack_grad, parabola)
    # A local climb proves nothing of the top. A concave one is within about twice its decrement
    # once that is small.
    lacking = decrement(data.value_grad(centre[None])[1][0], information)
    refuted = data.concave and data.smooth and lacking < 0.1 and region.kappa < -2 * lacking - TOP
    return Plausible(start, data, region, unseen, data.concave, refuted, threshold)


def ball(
    data: Likelihood,
    centre: np.ndarray,
    radius: float,
    divergence: Callable[[np.ndarray], np.ndarray],
) -> Plausible:
    """{theta : divergence(theta) <= radius}; divergence sums D^2(centre, theta) over rows.

    Near the centre sum H^2 = 1/8 d'Id, so that in the units of a log-likelihood drop the radius is
    4 r. The gradient is that of the quadratic; membership is decided by the divergence itself.
    """
    scale = 4.0
    round_it = ellipsoid(data, centre, scale * radius)

    def slack(theta: np.ndarray) -> np.ndarray:
        return _outside_if_nan(scale * (radius - divergence(theta)))

    def slack_grad(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return slack(theta), round_it.region.slack_grad(theta)[1]

    return replace(
        round_it,
        region=replace(round_it.region, slack=slack, slack_grad=slack_grad),
        convex=False,
        threshold=None,
    )


def ellipsoid(data: Likelihood, centre: np.ndarray, drop: float) -> Plausible:
    """{theta : 1/2 (theta - centre)' I (theta - centre) <= drop}, I the information at the
    centre.
    """
    information = data.information(centre)
    chol, unseen = metric(information)

    def slack_grad(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        pull = (theta - centre) @ information
        return _outside_if_nan(drop - 0.5 * np.sum(pull * (theta - centre), axis=1)), -pull

    def parabola(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return *slack_grad(theta), np.broadcast_to(information, (len(theta), *information.shape))

    return Plausible(
        0,
        data,
        Region(centre, chol, drop, lambda theta: slack_grad(theta)[0], slack_grad, parabola),
        unseen,
        convex=True,
    )


def metric(information: np.ndarray) -> tuple[np.ndarray, Unseen]:
    """A Cholesky factor of the information made positive definite, and the directions it does not
    see.

    Both are found in the coordinates' own units (see `units`), so that a column in large numbers
    hides none in small ones.
    """
    unit = units(information)
    values, vectors = np.linalg.eigh(symmetric(information) / np.outer(unit, unit))
    top = float(np.abs(values).max(initial=0.0)) or 1.0  # nothing seen at all: any metric will do
    unseen = np.abs(values) <= RANK_TOLERANCE * top
    lifted = np.where(
        unseen, RANK_TOLERANCE * top, np.maximum(np.abs(values), RANK_TOLERANCE * top)
    )
    chol = unit[:, None] * np.linalg.cholesky((vectors * lifted) @ vectors.T)
    return chol, Unseen(vectors[:, unseen], unit, np.diag(information) == 0)


def _outside_if_nan(slack: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(slack), -np.inf, slack)


# what a rule may look at --------------------------------------------------------------------------


# moves of the parameters that a likelihood does not stop ------------------------------------------

Ways = tuple[np.ndarray, np.ndarray]


@singledispatch
def ways_of(data: Likelihood) -> Ways | None:
    """The moves d along which the likelihood does not fall without end are those with kept @ d = 0,
    (k, D), and halves @ d <= 0, (g, D); it depends on nothing but these. None where that is not
    known.
    """
    return None


@ways_of.register
def _(data: PredictorLikelihood) -> Ways:
    if data.table is None:
        return np.zeros((0, data.dim)), np.zeros((0, data.dim))
    down, up = data.family.flat_ends(data.table.y, data.fixed())
    kept = data.features[~up & ~down]
    return kept, np.vstack([data.features[down & ~up], -data.features[up & ~down]])


@ways_of.register
def _(data: OrderedLikelihood) -> Ways:
    """The edge above an outcome may go up, and the one below it down."""
    lower, upper = (side[:, : data.dim] for side in (data.intervals.lower, data.intervals.upper))
    return np.zeros((0, data.dim)), np.vstack([lower, -upper])
