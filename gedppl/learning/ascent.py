"""The largest and smallest value of a functional over a confidence set.

A `Region` is a set {theta : slack(theta) >= 0} around a centre where the slack is kappa, with a
metric in which it looks roughly like the ball of squared radius 2 kappa. `extremes` is exact for a
linear objective over a concave slack (one convex problem a direction); `ascend` climbs any smooth
objective to the true boundary and is exact only where the problem has one local maximum.

Axis letters: M problems solved together, D flat parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gedppl.errors import FamilyError
from gedppl.functionals import mean
from gedppl.learning.program_sets import HAIR, Plausible, Region, walk

if TYPE_CHECKING:
    from gedppl.functionals import Functional
    from gedppl.learning.programs import ProgramLearner


# any smooth objective -----------------------------------------------------------------------------

# points (M, D) of problems (M,) -> values (M,), gradients (M, D); to maximise
Objective = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
CALM = 2  # steps in a row that hardly rise: a climb has arrived
CLIMB_TOL = 5e-4  # of the objective's half-width: hardly


@dataclass(frozen=True)
class Ascent:
    """The best point found in the set for every problem, and what finding it cost."""

    theta: np.ndarray  # (M, D), each inside the set
    value: np.ndarray  # (M,)
    gradients: int  # single-gradient evaluations of the log-likelihood
    values: int  # evaluations of the log-likelihood alone


def project(
    region: Region, z: np.ndarray, *, grow: float = 1.0, rounds: int = 6, near: float = 1e-3
) -> tuple[np.ndarray, int]:
    """Scale every z (M, D) towards the centre (or up to `grow` times away from it) until it lies in
    the set, near the boundary.

    `near` says how near: a slack of this share of kappa is good enough.

    Along a ray the drop kappa - slack is close to a multiple of s^2, so s <- s sqrt(kappa / drop),
    kept inside a bracket. Returns points whose slack is nonnegative (the centre itself if nothing
    else is), and the evaluations spent.
    """
    M = len(z)
    low, high = np.zeros(M), np.full(M, np.inf)
    s, calls = np.ones(M), 0
    for _ in range(rounds):
        slack = region.slack(region.theta(s[:, None] * z))
        calls += M
        drop = region.kappa - slack
        inside = slack >= 0
        low = np.where(inside, np.maximum(low, s), low)
        high = np.where(inside, high, np.minimum(high, s))
        if np.all(inside & ((slack <= near * region.kappa) | (s >= grow))):
            break
        with np.errstate(divide="ignore", invalid="ignore"):
            # aim a little inside, so that the last evaluation is a member
            aim = s * np.sqrt(region.kappa * (1 - 3e-4) / np.maximum(drop, 1e-12))
        aim = np.where(np.isfinite(aim) & np.isfinite(drop), aim, 0.3 * s)
        middle = 0.5 * (low + np.where(np.isfinite(high), high, grow))
        s = np.where((aim > low) & (aim < high), aim, middle)
        s = np.minimum(s, grow)
    return low[:, None] * z, calls


# far out values overflow: such steps are not kept
@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def ascend(
    region: Region,
    objective: Objective,
    start: np.ndarray,
    *,
    steps: int = 12,
    tol: float = CLIMB_TOL,
) -> Ascent:
    r"""Climb `objective` inside the region from every start (M, D), all problems in step.

    Sequential quadratic programming in the region's own metric. At a point with slack f, slack
    gradient g and objective gradient h the step is the maximiser of the linearised objective over
    the quadratic model of the slack, ``d = B^-1 g + t B^-1 h``, ``t^2 = (2f + g'B^-1 g) / h'B^-1
    h``, with B^-1 a damped BFGS estimate of the inverse of the Lagrangian's negative Hessian over
    the multiplier. A step is kept if it raises objective - rho * violation; otherwise it is
    shortened. A problem that no longer rises is left out of the steps that others still take. At
    the end every point is moved radially to the true boundary. The result is a member of the set,
    so its value never exceeds the supremum; that it reaches it is not guaranteed unless the problem
    is concave.
    """
    M, D = start.shape
    begin, calls = project(region, region.z(start), grow=8.0, rounds=4, near=0.1)
    here = _look(region, objective, begin, np.arange(M))
    gradients = M
    inverse = np.broadcast_to(np.eye(D), (M, D, D)).copy()  # of B
    shrink, calm = np.ones(M), np.zeros(M, int)
    best_z, best = begin.copy(), np.where(np.isfinite(here.value), here.value, -np.inf)
    reach = np.sqrt(2 * region.kappa)
    climbing = np.arange(M)
    for _ in range(steps):
        now, B, mine = here.at(climbing), inverse[climbing], shrink[climbing]
        u, v = (B @ now.g[:, :, None])[:, :, 0], (B @ now.h[:, :, None])[:, :, 0]
        # a constant objective: any step will do, but no overflow
        hv = np.maximum(np.sum(now.h * v, axis=1), 1e-200)
        t = np.sqrt(np.maximum(2 * now.f + np.sum(now.g * u, axis=1), 0) / hv)
        mu = 1 / np.maximum(t, 1e-12 / np.sqrt(hv))
        d = u + t[:, None] * v
        longest = np.maximum(np.linalg.norm(now.z, axis=1), reach)
        share = mine * np.minimum(1.0, longest / np.maximum(np.linalg.norm(d, axis=1), 1e-300))
        d *= share[:, None]
        there = _look(region, objective, now.z + d, climbing)
        gradients += len(climbing)
        rho = 1.5 * mu
        merit = now.value + rho * np.minimum(now.f, 0)
        merit1 = there.value + rho * np.minimum(there.f, 0)
        ok = there.finite
        better = ok & (there.f > -region.kappa) & (merit1 > merit - 1e-12 * np.abs(merit))
        change = np.where(better, merit1 - merit, 0.0)
        bent = share[:, None] * (now.g + t[:, None] * now.h)  # B d, known without B
        updated = _inverse_bfgs(B, d, bent, -(there.h - now.h) / mu[:, None] - (there.g - now.g))
        inverse[climbing] = np.where(ok[:, None, None], updated, B)
        record = better & (there.f >= HAIR * region.kappa) & (there.value > best[climbing])
        best[climbing[record]], best_z[climbing[record]] = there.value[record], there.z[record]
        here.put(climbing[better], there.at(better))
        shrink[climbing] = np.where(better, np.minimum(1.0, 2 * mine), 0.4 * mine)
        spread = np.maximum(t * hv, 1e-300)  # about the objective's half-width over the set
        small = better & (np.abs(change) < tol * spread) & (shrink[climbing] >= 1)
        calm[climbing] = np.where(small, calm[climbing] + 1, 0)
        climbing = climbing[(calm[climbing] < CALM) & (shrink[climbing] >= 1e-2)]
        if not len(climbing):
            break
    last, more = project(region, here.z)
    final, _ = objective(region.theta(last), np.arange(M))
    win = np.isfinite(final) & (final > best)
    z = np.where(win[:, None], last, best_z)
    return Ascent(region.theta(z), np.where(win, final, best), gradients, calls + more)


@dataclass(frozen=True)
class _Point:
    """What a climb knows of M points; gradients are in the region's metric."""

    z: np.ndarray  # (M, D)
    f: np.ndarray  # (M,) slack
    g: np.ndarray  # (M, D)
    value: np.ndarray  # (M,) objective
    h: np.ndarray  # (M, D)

    @property
    def finite(self) -> np.ndarray:
        numbers = np.isfinite(self.f) & np.isfinite(self.value)
        found: np.ndarray = (
            numbers & np.isfinite(self.g).all(axis=1) & np.isfinite(self.h).all(axis=1)
        )
        return found

    def at(self, which: np.ndarray) -> _Point:
        return _Point(self.z[which], self.f[which], self.g[which], self.value[which], self.h[which])

    def put(self, which: np.ndarray, other: _Point) -> None:
        """Points `other` in the places `which`."""
        self.z[which], self.f[which], self.g[which] = other.z, other.f, other.g
        self.value[which], self.h[which] = other.value, other.h


def _look(region: Region, objective: Objective, z: np.ndarray, which: np.ndarray) -> _Point:
    """Points z (M, D) of the problems `which` (M,)."""
    theta = region.theta(z)
    slack, slack_grad = region.slack_grad(theta)
    value, value_grad = objective(theta, which)
    return _Point(z, slack, region.whiten(slack_grad), value, region.whiten(value_grad))


def _inverse_bfgs(inverse: np.ndarray, s: np.ndarray, Bs: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Powell's damped update of every inverse (M, D, D): stays positive definite whatever the
    curvature.
    """
    sBs, sy = np.sum(s * Bs, axis=1), np.sum(s * y, axis=1)
    usable = np.isfinite(sy) & (sBs > 1e-20)
    mix = np.where(
        sy >= 0.1 * sBs, 1.0, 0.9 * sBs / np.where(usable, np.maximum(sBs - sy, 1e-300), 1.0)
    )
    r = mix[:, None] * y + (1 - mix)[:, None] * Bs
    with np.errstate(all="ignore"):
        rho = 1 / np.sum(r * s, axis=1)
        Hr = (inverse @ r[:, :, None])[:, :, 0]
        along = rho * (0.5 + 0.5 * rho * np.sum(r * Hr, axis=1))
        half = (along[:, None] * s - rho[:, None] * Hr)[:, :, None] * s[:, None, :]
        new = inverse + half + half.transpose(0, 2, 1)  # (I - rho s r') H (I - rho r s') + rho s s'
    healthy = np.isfinite(new).all(axis=(1, 2)) & (np.abs(new).max(axis=(1, 2)) < 1e10)
    return np.where((usable & healthy)[:, None, None], new, inverse)


# ==================================================================================================
# A functional of any program over its plausible sets, by local ascent: for each row over the set
# that promises most.
#
# Axis letters: m rows, D flat parameters, S sets.
# ==================================================================================================

NOT_A_CERTIFICATE = "approximation: local ascent, not a certificate"
STEPS = 24  # of a climb; as many again for climbs that end apart
# starts of each kind: known members and outposts by value, and random directions
BEST, ANYWHERE = 2, 2
# of the functional's range: climbs that end farther apart than this have not found the top
AGREE = 0.01
# over the square of the number of parameters, of the way climbed: so far apart, climbs ended on
# different tops, or are still on their way, however wide the range (chosen on seeds 500 to 510 of
# benchmarks/ascent.py: nets of 20 parameters creep together far below spikes that few climbs find)
STRAY = 4.8
# climbs from anywhere that look for something higher: this many over the square of the number of
# rows, as few rows leave room for other tops; at most so many a problem, and so many in all
SCOUTS, MOST_SCOUTS, ALL_SCOUTS = 20_000, 48, 2_000
# climbs that seem to have arrived go on with this tolerance, for so many steps: along a ridge one
# hardly rises and is still far from the top
RIDGE_TOL, RIDGE_STEPS = 1e-6, 60
FLAT = 1e-9  # share of the functional's range


@dataclass(frozen=True)
class Found:
    """The ends of a functional over everything plausible, before its declared range cuts them,
    at m rows.
    """

    lower: np.ndarray  # (m,) -inf where nothing is known
    upper: np.ndarray  # (m,)
    witness: np.ndarray | None  # (m, D) parameters at the upper end
    note: str
    apart: bool = False  # no parameter is in every set and inside the declared bounds
    outer: bool = False  # certified, and a little wide
    searched: bool = False  # by looking at points, between which anything may be: not a certificate
    integrated: bool = False  # a user's function, numerically: not a certificate either
    profiled: bool = False  # over one unknown number beside the predictor
    held: Callable[[int, np.ndarray], np.ndarray] | None = None  # as `Bounds.find_held`


@dataclass(frozen=True)
class Promise:
    """What the delta method says of a functional over one set, at m rows."""

    value: np.ndarray  # (m,) at the set's centre
    half: np.ndarray  # (m,) half-width
    grad: np.ndarray  # (m, D)

    def at(self, rows: np.ndarray) -> Promise:
        return Promise(self.value[rows], self.half[rows], self.grad[rows])


def by_ascent(
    learner: ProgramLearner, functional: Functional, x: np.ndarray, a: np.ndarray
) -> Found:
    """The ends that climbs reach, for each row over the set whose delta bound is narrowest
    there.

    A group's set is asked about the group's own actions only: of others its rows say nothing that
    those of all rows do not.
    """
    m = len(a)
    sets = [(s, np.ones(m, bool)) for s in learner.sets]
    sets += [(s, part.group.rows(a)) for part in learner.own for s in part.sets]
    promises = [_promise(learner, s, functional, x, a) for s, _ in sets]
    half = np.array([np.where(mine, p.half, np.inf) for p, (_, mine) in zip(promises, sets)])
    chosen = np.argmin(half, axis=0)
    lower, upper, witness = np.empty(m), np.empty(m), np.empty((m, learner.cls.dim))
    spent = np.zeros(2, np.int64)
    for i in np.unique(chosen):
        rows = np.flatnonzero(chosen == i)
        found = _over(learner, functional, sets[i][0], promises[i].at(rows), x[rows], a[rows])
        lower[rows], upper[rows], witness[rows] = found[:3]
        spent += found[3]
    note = f"{NOT_A_CERTIFICATE} ({spent[0]} gradient and {spent[1]} value evaluations)"
    return Found(lower, upper, witness, note)


def _promise(
    learner: ProgramLearner, s: Plausible, functional: Functional, x: np.ndarray, a: np.ndarray
) -> Promise:
    value, grad = learner.cls.values_grad(
        functional, np.broadcast_to(s.region.centre, (len(a), learner.cls.dim)), x, a
    )
    grad = np.where(np.isfinite(grad), grad, 0.0)
    half = s.region.half_width(grad)
    # no row depends on these parameters: no end, in any unit
    open_ended = np.any(grad[:, s.unseen.untouched] != 0, axis=1)
    return Promise(np.asarray(value, float), np.where(open_ended, np.inf, half), grad)


@dataclass(frozen=True)
class Search:
    """2 m problems over one set: a functional at m rows upwards, then downwards.

    A point in `region` and the value of a problem there, times its sign, are all that is asked; NaN
    is no value.
    """

    learner: ProgramLearner
    functional: Functional
    region: Region
    x: np.ndarray  # (m, dx)
    a: np.ndarray  # (m,)
    centre: np.ndarray  # (m,) the functional at the region's centre

    @property
    def sign(self) -> np.ndarray:
        return np.repeat([1.0, -1.0], len(self.a))

    @property
    def one_percent(self) -> float:
        """Of the declared range."""
        return AGREE * (self.functional.high - self.functional.low)

    def ends(self, climbed: Ascent) -> np.ndarray:
        """Signed values (S, 2m) where climbs ended, cut to the range."""
        return self.clip(climbed.value.reshape(-1, 2 * len(self.a)))

    def way(self, climbed: Ascent) -> np.ndarray:
        """The longest way climbed from the centre, (2m,)."""
        found: np.ndarray = np.abs(
            self.ends(climbed).max(axis=0) - self.sign * np.tile(self.centre, 2)
        )
        return found

    def stray(self, climbed: Ascent) -> np.ndarray:
        """How far apart climbs may end, (2m,)."""
        share = STRAY / len(self.region.centre) ** 2
        return np.minimum(self.one_percent, share * self.way(climbed))

    def clip(self, promised: np.ndarray) -> np.ndarray:
        """Signed values (..., 2m) cut to the declared range: beyond it nothing is to be told
        apart.
        """
        found: np.ndarray = self.sign * np.clip(
            self.sign * promised, self.functional.low, self.functional.high
        )
        return found

    def paired(self, theta: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Signed values (M,) and gradients (M, D) of points (M, D); S points of each problem are
        numbered problem by problem within each of S.
        """
        problem = which % (2 * len(self.a))
        row, sign = problem % len(self.a), self.sign[problem]
        value, grad = self.learner.cls.values_grad(self.functional, theta, self.x[row], self.a[row])
        return sign * np.asarray(value, float), sign[:, None] * np.asarray(grad, float)

    def each(self, theta: np.ndarray) -> np.ndarray:
        """Signed values (S, 2m) of S points (S 2m, D) for each problem."""
        return self.paired(theta, np.arange(len(theta)))[0].reshape(-1, 2 * len(self.a))

    def everywhere(self, theta: np.ndarray) -> np.ndarray:
        """Signed values (C, 2m) of points (C, D) that all problems share."""
        if not len(theta):
            return np.zeros((0, 2 * len(self.a)))
        value = np.asarray(self.learner.cls.values(self.functional, theta, self.x, self.a), float)
        return np.hstack([value, -value])

    def moves(self, far: np.ndarray, half: np.ndarray) -> np.ndarray:
        """Whether signed values still rise from half the distance to the far end of an open ray;
        no number counts as rising.
        """
        far, half = self.clip(far), self.clip(half)
        unit = (
            self.one_percent
            if np.isfinite(self.one_percent)
            else AGREE * np.abs(far - self.sign * np.tile(self.centre, 2))
        )
        with np.errstate(invalid="ignore"):
            found: np.ndarray = ~(far - half <= unit)
            return found


def _over(
    learner: ProgramLearner,
    functional: Functional,
    chosen: Plausible,
    promise: Promise,
    x: np.ndarray,
    a: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int]]:
    """Lower and upper (m,) over one set, where the upper is, (m, D), and what was spent: gradients
    and values.

    Climbs from the delta method's point, the best known members, the best outposts and anywhere,
    the best of them once more (see `_ridden`), and with few rows many more from anywhere (see
    `_scouted`). Their ends and what lies farther along the rays through them are members, so the
    largest value met is reached; how far climbs that agree end apart is added to it. The delta
    method's own value is not: over half of a range it may end far outside of it. The declared
    range's end (infinite here) is the answer where the climbs end apart, or where an open ray
    still moves the functional.
    """
    m, region = len(a), chosen.region
    search = Search(learner, functional, region, x, a, promise.value)
    white = region.whiten(promise.grad)
    unit = white / np.maximum(np.linalg.norm(white, axis=1), 1e-300)[:, None]
    delta = np.sqrt(2 * region.kappa) * search.sign[:, None] * np.vstack([unit, unit])
    posts = region.outposts
    post_theta = region.theta(posts.z)
    # there is no distance along what no row depends on: it has no unit
    members = np.where(chosen.unseen.untouched, region.centre, learner.candidates)
    seen = [search.everywhere(group) for group in (members, post_theta)]
    starts = [region.theta(delta), _anywhere(region, ANYWHERE, 2 * m)]
    for group, value in zip((members, post_theta), seen):
        order = np.argsort(-np.where(np.isnan(value), -np.inf, value), axis=0)
        starts += [group[best] for best in order[:BEST]]
    climbed, apart = _climb(search, np.concatenate(starts))
    ways = [delta, *region.z(climbed.theta).reshape(-1, 2 * m, learner.cls.dim)]
    climbed, apart = _ridden(search, climbed, _all_if_most(apart))
    climbed, apart = _scouted(search, chosen.data.n, climbed, apart)
    rays = walk(region, np.zeros((len(ways) * 2 * m, learner.cls.dim)), np.concatenate(ways))
    value = search.each(region.theta(rays.z))
    blind = apart | np.any(
        rays.open.reshape(-1, 2 * m) & search.moves(value, search.each(region.theta(rays.half))),
        axis=0,
    )
    if posts.open.any():
        blind |= np.any(
            search.moves(
                seen[1][posts.open], search.everywhere(region.theta(posts.half[posts.open]))
            ),
            axis=0,
        )
    # of points that are each problem's own
    reached = np.vstack([climbed.value.reshape(-1, 2 * m), value])
    points = np.concatenate([climbed.theta, region.theta(rays.z)]).reshape(
        -1, 2 * m, learner.cls.dim
    )
    reached = np.where(np.isnan(reached), -np.inf, reached)
    winner = np.argmax(reached[:, :m], axis=0)
    known = np.vstack([reached, *seen])
    ends = np.where(np.isnan(known), -np.inf, known).max(axis=0)
    # climbs that agree do so to within this: what is left of the way up is taken to be as much
    ends = ends + _resolution(search, climbed)
    upper, lower = ends[:m], -ends[m:]
    span = functional.high - functional.low
    flat = _flat_and_unseen(
        learner, chosen, promise.half <= FLAT * (span if np.isfinite(span) else 1.0), x, a
    )
    # no value at the centre, or a parameter that no row depends on
    unknown = flat | ~np.isfinite(promise.value + promise.half)
    upper = np.where(unknown | blind[:m], np.inf, upper)
    lower = np.where(unknown | blind[m:], -np.inf, lower)
    return (
        lower,
        upper,
        points[winner, np.arange(m)],
        (climbed.gradients, climbed.values + rays.values),
    )


def _anywhere(region: Region, count: int, problems: int, seed: int = 0) -> np.ndarray:
    """Starts (count problems, D) in directions of no meaning, the same at every call: what has one
    top is climbed from anywhere.
    """
    ways = np.random.default_rng(seed).standard_normal((count * problems, len(region.centre)))
    ways *= np.sqrt(2 * region.kappa) / np.linalg.norm(ways, axis=1)[:, None]
    return region.theta(ways)


def _resolution(search: Search, climbed: Ascent) -> np.ndarray:
    """How far apart those climbs end, (2m,), that agree with the highest."""
    ends = search.ends(climbed)
    top = ends.max(axis=0)
    with np.errstate(invalid="ignore"):  # an infinite end has nothing above it
        near = np.where(ends >= top - search.stray(climbed), ends, np.inf).min(axis=0)
        return np.where(np.isfinite(top - near), top - near, 0.0)


def _more(
    search: Search, found: Ascent, todo: np.ndarray, start: np.ndarray, steps: int, tol: float
) -> Ascent:
    """`found` and climbs of the problems `todo` (P,) from starts (C P, D) each; -inf for others."""
    m, region, D = len(search.a), search.region, start.shape[1]
    climbed = ascend(
        region,
        lambda theta, which: search.paired(theta, todo[which % len(todo)]),
        start,
        steps=steps,
        tol=tol,
    )
    count = len(start) // len(todo)
    value, theta = np.full((count, 2 * m), -np.inf), np.tile(region.centre, (count, 2 * m, 1))
    value[:, todo] = climbed.value.reshape(count, -1)
    theta[:, todo] = climbed.theta.reshape(count, len(todo), D)
    return Ascent(
        np.concatenate([found.theta, theta.reshape(-1, D)]),
        np.concatenate([found.value, value.ravel()]),
        found.gradients + climbed.gradients,
        found.values + climbed.values,
    )


def _ridden(search: Search, found: Ascent, lost: np.ndarray) -> tuple[Ascent, np.ndarray]:
    """What was found and lost after the best two climbs of each problem went on: where they rise,
    climbs had agreed on a place along a ridge.
    """
    todo = np.flatnonzero(~lost)
    if not len(todo):
        return found, lost
    best = np.argsort(-search.ends(found), axis=0)[:BEST, todo]
    start = found.theta.reshape(-1, len(lost), found.theta.shape[1])[best, todo]
    start = start.reshape(-1, found.theta.shape[1])
    both = _more(search, found, todo, start, RIDGE_STEPS, RIDGE_TOL)
    return both, lost | _higher(search, found, both)


def _all_if_most(lost: np.ndarray) -> np.ndarray:
    """Where most problems over a set are lost, so are all: climbs that agree may agree on a low
    top.
    """
    return np.asarray(lost | (2 * lost.sum() > len(lost)))


def _higher(search: Search, found: Ascent, both: Ascent) -> np.ndarray:
    """Whether more climbs rose above what was found, (2m,)."""
    rise = search.ends(both).max(axis=0) - search.ends(found).max(axis=0)
    return np.asarray(rise > search.stray(both))


def _scouted(
    search: Search, rows: int, found: Ascent, lost: np.ndarray
) -> tuple[Ascent, np.ndarray]:
    """What was found and lost after more climbs have looked for something higher. Those that end
    lower say nothing: they may be slow.
    """
    todo = np.flatnonzero(~lost)
    count = min(SCOUTS // max(rows, 1) ** 2, MOST_SCOUTS, ALL_SCOUTS // (2 * len(search.a)))
    if not count or not len(todo):
        return found, lost
    start = _anywhere(search.region, count, len(todo), seed=1)
    both = _more(search, found, todo, start, STEPS, CLIMB_TOL)
    return both, lost | _higher(search, found, both)


def _climb(search: Search, start: np.ndarray) -> tuple[Ascent, np.ndarray]:
    """All starts (S 2m, D) of all problems in step, and whether a problem's climbs end apart (2m,).

    Climbs that end apart may only have been slow: they get a second go before that counts. Then it
    shows that the highest top may not be among those found: more than 1% of the range apart, or a
    share of the way up that is the smaller, the more parameters there are to get lost in.
    """
    first = ascend(search.region, search.paired, start, steps=STEPS)
    slow = _apart(search, first, np.minimum(search.one_percent, AGREE * search.way(first)))
    again = np.flatnonzero(np.tile(slow, len(start) // len(slow)))
    if not len(again):
        return first, slow
    second = ascend(
        search.region,
        lambda theta, which: search.paired(theta, again[which]),
        first.theta[again],
        steps=STEPS,
    )
    better = second.value > first.value[again]
    theta, value = first.theta.copy(), first.value.copy()
    theta[again[better]], value[again[better]] = second.theta[better], second.value[better]
    both = Ascent(theta, value, first.gradients + second.gradients, first.values + second.values)
    return both, _apart(search, both, search.stray(both))


def _apart(search: Search, climbed: Ascent, allowed: np.ndarray | float) -> np.ndarray:
    ends = search.ends(climbed)
    best, worst = ends.max(axis=0), ends.min(axis=0)
    with np.errstate(invalid="ignore"):  # two infinite ends agree
        found: np.ndarray = ~((best - worst <= allowed) | (best == worst))
        return found


def _flat_and_unseen(
    learner: ProgramLearner, chosen: Plausible, flat: np.ndarray, x: np.ndarray, a: np.ndarray
) -> np.ndarray:
    """Where the functional is flat at the fit, (m,), although the outcome depends on directions
    that no row has seen.

    The chance of a band far from the fit has no slope there to climb by, yet an action that was
    never played may hit it.
    """
    if not (chosen.unseen.any and flat.any()):
        return np.zeros(len(a), bool)
    centre = np.broadcast_to(chosen.region.centre, (len(a), learner.cls.dim))
    try:
        grad = np.asarray(learner.cls.values_grad(mean(-1e300, 1e300), centre, x, a)[1], float)
    except FamilyError:
        return flat
    # a family without a mean, or whose mean nobody knows, counts as moved
    found: np.ndarray = flat & (chosen.unseen.meets(grad) | np.isnan(grad).any(axis=1))
    return found
