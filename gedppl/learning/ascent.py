"""The largest and smallest value of a functional over a confidence set.

A `Region` is a set {theta : slack(theta) >= 0} around a centre where the slack is kappa, with a metric in which it looks
roughly like the ball of squared radius 2 kappa. `extremes` is exact for a linear objective over a concave slack (one
convex problem a direction); `ascend` climbs any smooth objective to the true boundary and is exact only where the problem
has one local maximum.

Axis letters: M problems solved together, D flat parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import solve_triangular

MARGIN = 6.0  # of a residual, in units of the set's radius: see `extremes`
HAIR = 1e-9  # of kappa: a point on the edge itself is in or out by how its rows are added up
DOUBLINGS = 10  # of the distance at which `walk` looks, from half the radius that the metric gives a set


@dataclass(frozen=True)
class Region:
    """{theta : slack(theta) >= 0}; slack(centre) = kappa; precision = chol chol' is minus the slack's Hessian there."""

    centre: np.ndarray  # (D,)
    chol: np.ndarray  # (D, D) lower triangular
    kappa: float
    slack: Callable[[np.ndarray], np.ndarray]  # (M, D) -> (M,)
    slack_grad: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # (M, D) -> (M,), (M, D)

    def whiten(self, grad: np.ndarray) -> np.ndarray:
        """Gradients (M, D) with respect to z, theta = centre + chol^-T z."""
        return np.einsum("md,kd->mk", grad, self._inverse)

    def theta(self, z: np.ndarray) -> np.ndarray:
        # not by matrix product, whose last digit depends on how many rows there are: a point found must stay inside
        return self.centre + np.einsum("md,dk->mk", z, self._inverse)

    def whitened(self, information: np.ndarray) -> np.ndarray:
        """Informations (M, D, D) with respect to z."""
        return self._inverse @ information @ self._inverse.T

    @cached_property
    def _inverse(self) -> np.ndarray:
        """chol^-1. Thousands of small triangular solves would each wake the threads of a BLAS library."""
        return solve_triangular(self.chol, np.eye(len(self.centre)), lower=True, check_finite=False)

    def z(self, theta: np.ndarray) -> np.ndarray:
        return (theta - self.centre) @ self.chol

    @cached_property
    def outposts(self) -> Walk:
        """How far the set goes from its centre, both ways along every coordinate and every axis of the metric (4 D walks).

        The axes are those of the precision in the coordinates' own units: a combination that rows say little about is one.
        """
        precision = self.chol @ self.chol.T
        unit = np.sqrt(np.diag(precision))
        _, vectors = np.linalg.eigh(precision / np.outer(unit, unit))
        ways = np.vstack([self.chol, (vectors / unit[:, None]).T @ self.chol])  # in z
        ways = np.vstack([ways, -ways])
        return walk(self, np.zeros(ways.shape), ways)

    def half_width(self, grad: np.ndarray) -> np.ndarray:
        """sqrt(2 kappa h' precision^-1 h) for gradients h (M, D): the delta method's half-width (M,)."""
        return np.sqrt(2 * max(self.kappa, 0.0)) * np.linalg.norm(self.whiten(grad), axis=1)


# far along rays ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Walk:
    """The farthest member met on each of M rays, and the ray's point at half its distance."""

    z: np.ndarray  # (M, D), the ray's origin where nothing farther is a member
    half: np.ndarray  # (M, D)
    open: np.ndarray  # (M,) bool: still in the set at the last distance
    values: int  # evaluations spent


@np.errstate(over="ignore", invalid="ignore")  # far out a likelihood overflows: such points are outside
def walk(region: Region, origin: np.ndarray, ways: np.ndarray) -> Walk:
    """Look for members at doubling distances from origins z (M, D) along ways (M, D), in units of the set's own radius.

    Where the slack falls as fast as near the centre, it is gone within a step or two. A ray that is still inside at the last
    distance (2^9 times the radius that the metric promises) lies in a direction in which the likelihood does not fall: the
    set is open there, for all that can be seen. A member need not be joined to the origin by members.
    """
    M, D = ways.shape
    length = np.linalg.norm(ways, axis=1)
    unit = ways / np.maximum(length, 1e-300)[:, None]
    distance = np.sqrt(2 * max(region.kappa, 0.0)) * 2.0 ** np.arange(-1, DOUBLINGS)  # (R,)
    points = origin[:, None, :] + distance[None, :, None] * unit[:, None, :]
    inside = region.slack(region.theta(points.reshape(-1, D))).reshape(M, -1) >= 0
    inside &= (length > 0)[:, None]
    last = np.where(inside.any(axis=1), inside.shape[1] - 1 - np.argmax(inside[:, ::-1], axis=1), -1)
    gone = np.where(last >= 0, distance[last], 0.0)[:, None]
    return Walk(origin + gone * unit, origin + 0.5 * gone * unit, last == len(distance) - 1, inside.size)


# linear objective, concave slack ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Extremes:
    """Where each linear objective is largest, an upper bound on its value, and whether the search settled."""

    theta: np.ndarray  # (M, D)
    value: np.ndarray  # (M,) upper bound on phi'theta over the set; inf where not settled
    settled: np.ndarray  # (M,) bool; False: unbounded direction (unseen, or separable data)
    calls: int  # single-gradient evaluations


@np.errstate(over="ignore", invalid="ignore")  # a step that overflows is cut to nothing, and its direction stays unsettled
def extremes(
    region: Region,
    phi: np.ndarray,
    informations: Callable[[np.ndarray], np.ndarray],
    *,
    cheap_information: bool = True,
    tol: float = 1e-7,
    steps: int = 60,
) -> Extremes:
    r"""max phi_m' theta subject to slack(theta) >= 0 for every row of phi (M, D); slack concave.

    Each step maximises phi'theta over the quadratic model of the slack at the current point: with g its gradient and B
    its negative Hessian, ``d = B^-1 g + t B^-1 phi``, ``t^2 = (2 slack + g'B^-1 g) / phi'B^-1 phi``; exact in one step if the
    slack is quadratic. B is the Hessian at the centre while that converges fast, the point's own otherwise;
    `informations` gives those of points (M, D) as (M, D, D).

    By concavity every member theta' has ``-g'(theta' - theta) <= slack(theta)``, so with ``phi = -mu g + r`` the returned
    value ``phi'theta + mu slack + MARGIN sqrt(2 kappa) |r|`` is an upper bound once the set's radius in the metric is below
    MARGIN/2 times its quadratic value; r is of the order of ``tol``.
    """
    M, D = phi.shape
    white = region.whiten(phi)  # (M, D), whitened objectives
    size = np.linalg.norm(white, axis=1)
    reach = np.sqrt(2 * region.kappa)
    safe = np.maximum(size, 1e-300)
    z = reach * white / safe[:, None]
    own = np.full(M, cheap_information)  # whose own Hessian is used
    settled = size < 1e-300  # a zero objective: any point will do
    z[settled] = 0.0
    bound = np.where(settled, phi @ region.centre, np.inf)
    running = ~settled
    residual_before = np.full(M, np.inf)
    calls = 0
    for step in range(steps):
        todo = np.flatnonzero(running)
        if not len(todo):
            break
        here = region.theta(z[todo])
        slack, grad = region.slack_grad(here)
        calls += len(todo)
        g, h = region.whiten(grad), white[todo]
        bad = ~(np.isfinite(slack) & np.isfinite(g).all(axis=1)) | (slack < -20 * region.kappa)
        z[todo[bad]] *= 0.5  # far outside: come back towards the centre
        if bad.all():
            continue
        todo, here, slack, g, h = todo[~bad], here[~bad], slack[~bad], g[~bad], h[~bad]
        u, v = g.copy(), h.copy()
        mine = np.flatnonzero(own[todo])
        if len(mine):
            metric = region.whitened(informations(here[mine]))
            lift = 1e-12 * np.trace(metric, axis1=1, axis2=2)
            flat = ~(lift > 1e-30)  # no curvature left out here: the slack no longer falls
            running[todo[mine[flat]]] = False
            metric, lift, mine = metric[~flat], lift[~flat], mine[~flat]
            both = np.linalg.solve(metric + lift[:, None, None] * np.eye(D), np.stack([g[mine], h[mine]], axis=2))
            u[mine], v[mine] = both[:, :, 0], both[:, :, 1]
        inside = 2 * slack + np.sum(g * u, axis=1)
        t = np.sqrt(np.maximum(inside, 0) / np.maximum(np.sum(h * v, axis=1), 1e-300))
        mu = -np.sum(h * g, axis=1) / np.maximum(np.sum(g * g, axis=1), 1e-300)
        r = np.linalg.norm(h + mu[:, None] * g, axis=1)
        relative = np.maximum(r / safe[todo], np.abs(slack) / region.kappa)
        done = (relative < tol) & (mu > 0)
        value = np.sum(phi[todo] * here, axis=1) + np.maximum(mu * slack, 0) + MARGIN * reach * r
        bound[todo[done]], settled[todo[done]] = value[done], True
        running[todo[done]] = False
        slow = relative > 0.3 * residual_before[todo]
        own[todo[slow & (step >= 1)]] = True
        residual_before[todo] = relative
        move = u + t[:, None] * v
        length = np.linalg.norm(move, axis=1)
        longest = np.maximum(np.linalg.norm(z[todo], axis=1), reach)  # at most double the distance in one step
        move *= np.minimum(1.0, longest / np.maximum(length, 1e-300))[:, None]
        z[todo[~done]] += move[~done]
        far = np.linalg.norm(z, axis=1) > 1e6 * reach
        running &= ~far
    return Extremes(region.theta(z), bound, settled, calls)


# any smooth objective ---------------------------------------------------------------------------------------------------

Objective = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # (M, D) -> values (M,), gradients (M, D); to maximise


@dataclass(frozen=True)
class Ascent:
    """The best point found in the set for every problem, and what finding it cost."""

    theta: np.ndarray  # (M, D), each inside the set
    value: np.ndarray  # (M,)
    gradients: int  # single-gradient evaluations of the log-likelihood
    values: int  # evaluations of the log-likelihood alone


def project(region: Region, z: np.ndarray, *, grow: float = 1.0, rounds: int = 6, near: float = 1e-3) -> tuple[np.ndarray, int]:
    """Scale every z (M, D) towards the centre (or up to `grow` times away from it) until it lies in the set, near the boundary.

    `near` says how near: a slack of this share of kappa is good enough.

    Along a ray the drop kappa - slack is close to a multiple of s^2, so s <- s sqrt(kappa / drop), kept inside a bracket.
    Returns points whose slack is nonnegative (the centre itself if nothing else is), and the evaluations spent.
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


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # far out values overflow: such steps are not kept
def ascend(region: Region, objective: Objective, start: np.ndarray, *, steps: int = 12, tol: float = 5e-4) -> Ascent:
    r"""Climb `objective` inside the region from every start (M, D), all problems in step.

    Sequential quadratic programming in the region's own metric. At a point with slack f, slack gradient g and objective
    gradient h the step is the maximiser of the linearised objective over the quadratic model of the slack,
    ``d = B^-1 g + t B^-1 h``, ``t^2 = (2f + g'B^-1 g) / h'B^-1 h``, with B^-1 a damped BFGS estimate of the inverse of the
    Lagrangian's negative Hessian over the multiplier. A step is kept if it raises objective - rho * violation; otherwise it is
    shortened. At the end every point is moved radially to the true boundary. The result is a member of the set, so its
    value never exceeds the supremum; that it reaches it is not guaranteed unless the problem is concave.
    """
    M, D = start.shape
    z, calls = project(region, region.z(start), grow=8.0, rounds=4, near=0.1)
    gradients = 0

    def look(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        nonlocal gradients
        theta = region.theta(z)
        slack, slack_grad = region.slack_grad(theta)
        value, value_grad = objective(theta)
        gradients += len(z)
        return slack, region.whiten(slack_grad), value, region.whiten(value_grad)

    f, g, value, h = look(z)
    inverse = np.broadcast_to(np.eye(D), (M, D, D)).copy()  # of B
    shrink = np.ones(M)
    best_z, best = z.copy(), np.where(np.isfinite(value), value, -np.inf)
    reach = np.sqrt(2 * region.kappa)
    for _ in range(steps):
        u, v = (inverse @ g[:, :, None])[:, :, 0], (inverse @ h[:, :, None])[:, :, 0]
        hv = np.maximum(np.sum(h * v, axis=1), 1e-200)  # a constant objective: any step will do, but no overflow
        t = np.sqrt(np.maximum(2 * f + np.sum(g * u, axis=1), 0) / hv)
        mu = 1 / np.maximum(t, 1e-12 / np.sqrt(hv))
        d = u + t[:, None] * v
        longest = np.maximum(np.linalg.norm(z, axis=1), reach)
        share = shrink * np.minimum(1.0, longest / np.maximum(np.linalg.norm(d, axis=1), 1e-300))
        d *= share[:, None]
        f1, g1, value1, h1 = look(z + d)
        ok = np.isfinite(f1) & np.isfinite(value1) & np.isfinite(g1).all(axis=1) & np.isfinite(h1).all(axis=1)
        rho = 1.5 * mu
        merit, merit1 = value + rho * np.minimum(f, 0), value1 + rho * np.minimum(f1, 0)
        better = ok & (f1 > -region.kappa) & (merit1 > merit - 1e-12 * np.abs(merit))
        change = np.where(better, merit1 - merit, 0.0)
        bent = share[:, None] * (g + t[:, None] * h)  # B d, known without B
        updated = _inverse_bfgs(inverse, d, bent, -(h1 - h) / mu[:, None] - (g1 - g))
        inverse = np.where(ok[:, None, None], updated, inverse)
        record = better & (f1 >= HAIR * region.kappa) & (value1 > best)
        best, best_z = np.where(record, value1, best), np.where(record[:, None], z + d, best_z)
        keep = better[:, None]
        z, g, h = np.where(keep, z + d, z), np.where(keep, g1, g), np.where(keep, h1, h)
        f, value = np.where(better, f1, f), np.where(better, value1, value)
        shrink = np.where(better, np.minimum(1.0, 2 * shrink), 0.4 * shrink)
        spread = np.maximum(t * hv, 1e-300)  # about the objective's half-width over the set
        if np.all((better & (np.abs(change) < tol * spread) & (shrink >= 1)) | (shrink < 1e-2)):
            break
    last, more = project(region, z)
    final, _ = objective(region.theta(last))
    win = np.isfinite(final) & (final > best)
    z = np.where(win[:, None], last, best_z)
    return Ascent(region.theta(z), np.where(win, final, best), gradients, calls + more)


def _inverse_bfgs(inverse: np.ndarray, s: np.ndarray, Bs: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Powell's damped update of every inverse (M, D, D): stays positive definite whatever the curvature."""
    sBs, sy = np.sum(s * Bs, axis=1), np.sum(s * y, axis=1)
    usable = np.isfinite(sy) & (sBs > 1e-20)
    mix = np.where(sy >= 0.1 * sBs, 1.0, 0.9 * sBs / np.where(usable, np.maximum(sBs - sy, 1e-300), 1.0))
    r = mix[:, None] * y + (1 - mix)[:, None] * Bs
    with np.errstate(all="ignore"):
        rho = 1 / np.sum(r * s, axis=1)
        Hr = (inverse @ r[:, :, None])[:, :, 0]
        along = rho * (0.5 + 0.5 * rho * np.sum(r * Hr, axis=1))
        half = (along[:, None] * s - rho[:, None] * Hr)[:, :, None] * s[:, None, :]
        new = inverse + half + half.transpose(0, 2, 1)  # (I - rho s r') H (I - rho r s') + rho s s'
    healthy = np.isfinite(new).all(axis=(1, 2)) & (np.abs(new).max(axis=(1, 2)) < 1e10)
    return np.where((usable & healthy)[:, None, None], new, inverse)
