"""Linear-Gaussian confidence sets in closed form: e-processes that are quadratics, and ellipsoids
around their mixture.

Rows are scaled to unit noise, r = phi'theta + N(0, 1), and collected in A = sum phi phi', b = sum
phi r. With score(theta) = b - A theta, mixing the likelihood ratio p(data | theta + u) / p(data |
theta) over u ~ N(0, C) gives

    M(theta) = det(I + A C)^(-1/2) exp(1/2 score' (A + C^-1)^-1 score),

which under the truth theta is a nonnegative martingale that starts at 1, on adaptively collected
data too. It may start at any time s with a C known by then, on the rows after s, and it may leave
out rows by any rule that does not look at their outcomes (those of other actions, say). So may the
prior-posterior ratio, evidence / likelihood: a bet on the prior. A weighted average of them
(weights summing to 1) is one again, hence by Ville's inequality

    {theta : sum_k w_k M_k(theta) <= 1 / delta}

holds the truth at all times with probability at least 1 - delta. Every log M_k is a convex
quadratic, so for any lambda on
the simplex (Jensen)  sum_k lambda_k (log M_k(theta) + log(w_k / lambda_k)) <= log(1 / delta)  is an
ellipsoid around that set.
Lambda is chosen for a point on the set's edge, where the loss is small.

Nothing here has a unit. The directions that the rows see are found on the information scaled to a
unit diagonal; along them coordinates z are used in which the information is the identity. Along all
others the set is open, and says so.

Axis letters: k e-processes, q parameters, c columns that some row has touched, r directions seen.

References
----------
de la Pena, Lai, Shao, "Self-normalized processes" (2009); Abbasi-Yadkori, Pal, Szepesvari,
"Improved algorithms for linear stochastic bandits" (2011); Waudby-Smith and Ramdas, "Confidence
sequences ... without replacement" (2020, the prior-posterior ratio).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gedppl.learning.storing import storable
from gedppl.numerics.arrays import whitener

# share of the largest eigenvalue of a unit-diagonal matrix, below which it may be rounding
RANK = 1e-11
STRAY = 1e-10  # share of a feature vector that may be rounding
# share of the information that late starts must have seen along every direction, or an early one is
# asked too
THIN = 1e-3
MOST_TURNS = 30
BALL_WEIGHTS = (0.05, 0.5, 5.0)  # multipliers of a declared ball, in units of the set's room

ROUNDING = 1e-9  # share of the numbers compared


@dataclass(frozen=True)
class SeenDirections:
    """The directions u = lift z that rows have information about, scaled so that the information
    is z'z.
    """

    columns: np.ndarray  # (c,) indices of parameters that some row has touched
    unit: np.ndarray  # (c,) root of their information
    lift: np.ndarray  # (c, r)
    down: np.ndarray  # (r, c) z = down u
    unseen: np.ndarray  # (c - r, c) unit vectors, in coordinates unit * u, without information


def unit_diagonal(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The columns with a positive diagonal, their roots, and that part of the matrix scaled to a
    unit diagonal.
    """
    size = np.sqrt(np.maximum(matrix.diagonal(), 0.0))
    columns = np.flatnonzero(size > 0)
    if len(columns) < len(size):
        size, matrix = size[columns], matrix[np.ix_(columns, columns)]
    return columns, size, matrix / (size[:, None] * size)


def seen_directions(information: np.ndarray) -> SeenDirections:
    """Of A (q, q). Two outcomes of one decision tell of the same directions: the last few answers
    are kept, and replaced in one assignment, so that threads may share them.
    """
    key = information.tobytes()
    for known, seen in _LATEST[0]:
        if known == key:
            return seen
    seen = _directions(information)
    _LATEST[0] = ((key, seen), *_LATEST[0][:3])
    return seen


_LATEST: list[tuple[tuple[bytes, SeenDirections], ...]] = [()]


def _directions(information: np.ndarray) -> SeenDirections:
    """A = unit S unit with a unit diagonal in S, and S = V diag(value) V'. With all values above
    rounding lift = unit^-1 V value^-1/2, so that lift' A lift = I; otherwise only the axes above it
    are seen, and the rest are `unseen`. Scaling first makes the answer the same in every unit of
    the columns.
    """
    columns, unit, scaled = unit_diagonal(information)
    white = whitener(scaled)
    if white is not None:
        nothing = np.zeros((0, len(unit)))
        return SeenDirections(
            columns, unit, white.T / unit[:, None], (white @ scaled) * unit, nothing
        )
    value, axes = np.linalg.eigh(scaled)
    known = value > RANK * value.max(initial=0.0)
    root, along = np.sqrt(value[known]), axes[:, known]
    return SeenDirections(
        columns, unit, along / root / unit[:, None], (along * root).T * unit, axes[:, ~known].T
    )


def part_of(seen: SeenDirections, rows: np.ndarray) -> np.ndarray:
    """The columns (m, c) that some row has touched of rows (m, q)."""
    return rows if len(seen.columns) == rows.shape[1] else rows[:, seen.columns]


@dataclass(frozen=True)
class Quadratics:
    """k functions of z:  1/2 z'curvature z - slope'z + level."""

    curvature: np.ndarray  # (k, r, r)
    slope: np.ndarray  # (k, r)
    level: np.ndarray  # (k,)

    def __call__(self, z: np.ndarray) -> np.ndarray:
        """Values (M, k) at z (M, r)."""
        curved = np.einsum("mi,kij,mj->mk", z, self.curvature, z)
        found: np.ndarray = 0.5 * curved - z @ self.slope.T + self.level
        return found


def log_processes(
    seen: SeenDirections,
    moment: np.ndarray,
    information_at: np.ndarray,
    moment_at: np.ndarray,
    covariance: np.ndarray,
) -> Quadratics:
    """log M_k around the least squares estimate, one for each start.

    With A_k = A - A(s_k) and b_k = b - b(s_k) of the rows since the start, and z the distance from
    the least squares estimate (where the score of all rows is 0),

        log M_k(z) = 1/2 (g_k - A_k z)' (A_k + C_k^-1)^-1 (g_k - A_k z) - 1/2 log det(I + A_k C_k),

    g_k the score of those rows at the estimate. (A + C^-1)^-1 is taken as R (I + R A R)^-1 R, R the
    root of C, which needs no inverse: where C is 0 in some direction, nothing is bet on it.

    Parameters
    ----------
    seen, moment
        Directions of A, and b (q,), of all rows of the group.
    information_at, moment_at
        (k, q, q) and (k, q): A and b of the rows before each start.
    covariance
        (k, q, q): C of each start.
    """
    at, lift = np.ix_(seen.columns, seen.columns), seen.lift
    estimate = lift.T @ moment[seen.columns]
    before = lift.T @ information_at[:, at[0], at[1]] @ lift
    value, axes = np.linalg.eigh(np.eye(len(estimate)) - before)
    # what was seen since the start
    after = (axes * np.maximum(value, 0.0)[:, None]) @ np.swapaxes(axes, 1, 2)
    score = np.einsum("kij,j->ki", before, estimate) - moment_at[:, seen.columns] @ lift
    spread, turn = np.linalg.eigh(seen.down @ covariance[:, at[0], at[1]] @ seen.down.T)
    root = turn * np.sqrt(np.maximum(spread, 0.0))[:, None]
    inner = np.eye(len(estimate)) + np.swapaxes(root, 1, 2) @ after @ root
    gain = root @ np.linalg.solve(inner, np.swapaxes(root, 1, 2))
    lifted = after @ gain
    level = 0.5 * np.einsum("ki,kij,kj->k", score, gain, score) - 0.5 * np.linalg.slogdet(inner)[1]
    return Quadratics(lifted @ after, np.einsum("kij,kj->ki", lifted, score), level)


def log_bet(seen: SeenDirections, moment: np.ndarray, covariance: np.ndarray) -> Quadratics:
    """log evidence / likelihood under the prior N(0, covariance), around the least squares
    estimate t: of all rows, with z'z for the distance from it,

        1/2 z'z - 1/2 t'(I + P)^-1 t - 1/2 log det(I + P),    P the covariance in coordinates z.

    The truth's evidence over its likelihood is a martingale under any prior: a prior far off costs
    width, never coverage.
    """
    estimate = seen.lift.T @ moment[seen.columns]
    total = (
        np.eye(len(estimate))
        + seen.down @ covariance[np.ix_(seen.columns, seen.columns)] @ seen.down.T
    )
    level = -0.5 * np.linalg.slogdet(total)[1] - 0.5 * estimate @ np.linalg.solve(total, estimate)
    return Quadratics(np.eye(len(estimate))[None], np.zeros((1, len(estimate))), np.array([level]))


def together(first: Quadratics, second: Quadratics) -> Quadratics:
    """The functions of both, in order."""
    return Quadratics(
        np.concatenate([first.curvature, second.curvature]),
        np.concatenate([first.slope, second.slope]),
        np.concatenate([first.level, second.level]),
    )


# ellipsoids ---------------------------------------------------------------------------------------


@storable
@dataclass(frozen=True)
class Ellipsoid:
    """{middle + factor'v, |v| <= 1} in the given columns, open along `unseen` and in every other
    column.
    """

    columns: np.ndarray  # (c,)
    middle: np.ndarray  # (c,)
    factor: np.ndarray  # (r, c)
    unseen: np.ndarray  # (o, c) unit vectors in coordinates unit * theta
    unit: np.ndarray  # (c,)

    def attained(self, phi: np.ndarray, near: np.ndarray, side: float) -> np.ndarray:
        """(m, q) where phi'theta, phi (m, q), is largest (side 1) or smallest (-1); other
        columns as in `near` (q,).
        """
        along = phi[:, self.columns] @ self.factor.T
        size = np.maximum(np.linalg.norm(along, axis=1, keepdims=True), np.finfo(float).tiny)
        theta = np.tile(near, (len(phi), 1))
        theta[:, self.columns] = self.middle + side * (along / size) @ self.factor
        return theta


def along(seen: SeenDirections, phi: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """phi (m, q) along the directions seen, (m, r), and phi' A^-1 phi (m,), A as in
    `seen_directions`; infinite where phi leaves what A speaks about.
    """
    part = part_of(seen, phi)
    found = part @ seen.lift
    out: np.ndarray = (found * found).sum(axis=1)
    if len(seen.unseen):
        scaled = part / seen.unit
        size = STRAY * np.sqrt(np.square(scaled).sum(axis=1))
        out[(np.abs(scaled @ seen.unseen.T) > size[:, None]).any(axis=1)] = np.inf
    if len(seen.columns) < phi.shape[1]:
        blind = np.ones(phi.shape[1], bool)
        blind[seen.columns] = False
        out[(phi[:, blind] != 0).any(axis=1)] = np.inf
    return found, out


class EllipsoidRegion:
    """Ellipsoids of several sets, in order, stacked so that all of them are asked at once. S
    sets, E ellipsoids, R half axes.
    """

    def __init__(self, sets: Sequence[Sequence[Ellipsoid]], q: int) -> None:
        every = [e for own in sets for e in own]
        # (S + 1,) where each set's ellipsoids begin
        self.first = np.cumsum([0, *(len(own) for own in sets)])
        self._middle = np.zeros((len(every), q))
        # at least one row each, for reduceat
        self._factor = np.zeros((sum(max(len(e.factor), 1) for e in every), q))
        self._row = np.cumsum([0, *(max(len(e.factor), 1) for e in every)])[:-1]
        self._blind = np.ones((len(every), q))
        self._ruler = np.zeros((len(every), q))
        loose, owner = [], []
        for i, e in enumerate(every):
            self._middle[i, e.columns] = e.middle
            self._blind[i, e.columns] = 0.0
            self._ruler[i, e.columns] = 1 / e.unit
            self._factor[self._row[i] : self._row[i] + len(e.factor), e.columns] = e.factor
            for direction in e.unseen:
                row = np.zeros(q)
                row[e.columns] = direction / e.unit
                loose.append(row)
                owner.append(i)
        self._loose, self._owner = np.array(loose).reshape(-1, q), np.array(owner, np.intp)
        self._partly = bool(self._blind.any())

    @property
    def size(self) -> int:
        """E."""
        return len(self._row)

    def axes(self, e: int) -> int:
        """Half axes of one ellipsoid."""
        return len(self._own_factor(e))

    def around(self, e: int, phi: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of one ellipsoid that closes phi (..., q): phi'theta is middle + half'v with |v| <= 1;
        middle (...), half (..., r).
        """
        return phi @ self._middle[e], phi @ self._own_factor(e).T

    def _own_factor(self, e: int) -> np.ndarray:
        return self._factor[self._row[e] : self._row[e + 1] if e + 1 < self.size else None]

    def reach(self, phi: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Middle and half-width (m, E) of phi'theta for phi (m, q); infinite where phi leaves
        what an ellipsoid has seen.
        """
        along = phi @ self._factor.T
        extent = (
            np.sqrt(np.add.reduceat(along * along, self._row, axis=1)) if len(self._row) else along
        )
        if self._partly:
            extent = np.where((phi != 0) @ self._blind.T > 0, np.inf, extent)
        if len(self._owner):
            size = np.sqrt(phi**2 @ (self._ruler**2).T)[:, self._owner]
            row, which = np.nonzero(np.abs(phi @ self._loose.T) > STRAY * size)
            extent[row, self._owner[which]] = np.inf
        return phi @ self._middle.T, extent


@dataclass(frozen=True)
class NormBall:
    """A declared fact: 1/2 u'curvature u - slope'u + level <= 0, u = theta - least squares
    estimate.
    """

    curvature: np.ndarray  # (q, q)
    slope: np.ndarray  # (q,)
    level: float


def enclose(
    seen: SeenDirections,
    moment: np.ndarray,
    processes: Quadratics,
    share: np.ndarray,
    delta: float,
    ball: NormBall | None = None,
    *,
    own_columns: bool = False,
) -> tuple[tuple[Ellipsoid, ...], bool]:
    """Ellipsoids that each hold {sum_k share_k M_k <= 1 / delta} (and the ball, if one is
    declared), and whether it is empty.

    By Jensen, for any lambda on the simplex, the set lies in

        {z : sum_k lambda_k (log M_k(z) + log(share_k / lambda_k)) <= log(1 / delta)},

    and for any weight mu >= 0 also in that quadratic plus mu times the ball's. Each is outer, so
    that their intersection is; which lambda and mu are tried decides width alone. A squared radius
    below 0 proves the set empty: no parameter explains the rows, and the class is refuted.

    `own_columns`: columns that no row has touched are somebody else's, and need not be closed by
    the ball.
    """
    limit, base = math.log(1 / delta), np.log(share) + processes.level
    lam = _turned(processes, base, limit)
    estimate = seen.lift.T @ moment[seen.columns]
    options = [lam]
    if len(estimate) and np.linalg.eigvalsh(np.tensordot(lam, processes.curvature, 1))[0] < THIN:
        fullest = np.einsum("kii->k", processes.curvature)
        options.append(
            np.eye(len(lam))[np.argmax(np.where(fullest >= 0.5 * fullest.max(), base, -np.inf))]
        )
    found, empty = [], False
    for weights in options:
        room = 2 * (limit - _average(weights, base))
        B, h = np.tensordot(weights, processes.curvature, 1), weights @ processes.slope
        made, square = _ellipsoid(seen, B, h, room, estimate)
        found.append(made)
        empty |= square < 0
    if ball is not None and not _inside(found[-1], moment, seen, ball, own_columns):
        multiples = [weight * max(room, 1.0) for weight in BALL_WEIGHTS]
        for cut, square in _cut_ellipsoids(seen, B, h, room, estimate, ball, multiples):
            found.append(cut)
            empty |= square < 0
    return tuple(found), empty


def _inside(
    e: Ellipsoid, moment: np.ndarray, seen: SeenDirections, ball: NormBall, own_columns: bool
) -> bool:
    """Whether the ellipsoid lies in the ball, so that the ball cuts nothing off."""
    if (len(e.columns) < len(moment) and not own_columns) or len(e.unseen):
        return False
    part = ball.curvature[np.ix_(e.columns, e.columns)]
    u = e.middle - seen.lift @ (seen.lift.T @ moment[seen.columns])
    level = 0.5 * u @ part @ u - ball.slope[e.columns] @ u + ball.level
    gradient = e.factor @ (part @ u - ball.slope[e.columns])
    steepest = float(np.linalg.norm(gradient) + 0.5 * np.trace(e.factor @ part @ e.factor.T))
    return bool(level + steepest <= 0)


def of_ball(ball: NormBall) -> Ellipsoid:
    """The declared ball alone, around theta = 0."""
    none = np.zeros(0)
    nothing = SeenDirections(
        none.astype(np.int64), none, np.zeros((0, 0)), np.zeros((0, 0)), np.zeros((0, 0))
    )
    return _cut_ellipsoids(nothing, np.zeros((0, 0)), none, 0.0, none, ball, [1.0])[0][0]


def _turned(processes: Quadratics, base: np.ndarray, limit: float) -> np.ndarray:
    """Lambda on the simplex. Where the middle of its ellipsoid is itself excluded the processes
    disagree: it is turned towards those that exclude it; if no parameter is left at all, some
    lambda shows it.
    """
    growth = np.einsum("kii->k", processes.curvature) / max(processes.curvature.shape[1], 1)
    lam = jensen_weights(base, growth, limit)
    for _ in range(MOST_TURNS):
        B, h = np.tensordot(lam, processes.curvature, 1), lam @ processes.slope
        middle, _, _, square = _solve(B, h, 2 * (limit - _average(lam, base)))
        logs = base + processes(middle[None])[0] - processes.level
        top = logs.max()
        weight = np.exp(logs - top)
        if square <= 0 or top + math.log(weight.sum()) <= limit:
            break
        lam = 0.5 * lam + 0.5 * weight / weight.sum()
    return lam


def jensen_weights(base: np.ndarray, growth: np.ndarray, limit: float) -> np.ndarray:
    """Lambda on the simplex (k,): each process's share of the mixture where it reaches the limit.

    >>> jensen_weights(np.log([0.5, 0.5]), np.array([1.0, 1.0]), np.log(20)).round(3)
    array([0.5, 0.5])
    >>> jensen_weights(np.log([0.5, 0.5]), np.array([1.0, 0.5]), np.log(20)).round(3)
    array([0.854, 0.146])

    Along an average direction log(w_k M_k) = base_k + growth_k Q / 2. Newton's method from above
    solves log sum_k exp(...) = limit for Q; the function is convex and increasing, so every iterate
    stays above the root.
    """
    moving = growth > RANK
    reach = np.min(2 * (limit - base[moving]) / growth[moving], initial=np.inf)
    if not 0 < reach < np.inf:
        reach = 0.0
    for _ in range(4):
        exponent = base + 0.5 * growth * reach
        top = exponent.max()
        share: np.ndarray = np.exp(exponent - top)
        total = share.sum()
        share /= total
        step = (top + math.log(total) - limit) / max(0.5 * float(share @ growth), RANK)
        if reach == 0.0 or abs(step) < 1e-3 * reach:
            break
        reach = max(reach - step, 0.0)
    return share


def _average(lam: np.ndarray, base: np.ndarray) -> float:
    """sum_k lambda_k (base_k - log lambda_k), with 0 log 0 = 0."""
    used = lam > 0
    return float(lam[used] @ (base[used] - np.log(lam[used])))


def _solve(
    B: np.ndarray, h: np.ndarray, room: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """{z : z'Bz - 2h'z <= room}: middle (r,), half axes (r', r) and open axes (r - r', r) as rows,
    squared radius.

    Completing the square, (z - B^-1 h)'B(z - B^-1 h) <= room + h'B^-1 h.

    >>> middle, half, loose, square = _solve(np.diag([4.0, 0.0]), np.array([4.0, 0.0]), 0.0)
    >>> middle, half, loose, square
    (array([1., 0.]), array([[1., 0.]]), array([[0., 1.]]), 4.0)

    A direction without curvature keeps its share h^2 / curvature of the radius: leaving it out
    would narrow the others.
    """
    value, axes = np.linalg.eigh(B)
    floor = RANK * value.max(initial=0.0)
    closed = value > floor
    along = axes.T @ h
    least = np.maximum(value, max(floor, np.finfo(float).tiny))
    square = room + float((along**2 / least).sum())
    middle = axes[:, closed] @ (along[closed] / value[closed])
    half = np.sqrt(max(square, 0.0) / value[closed])
    return middle, half[:, None] * axes[:, closed].T, axes[:, ~closed].T, square


def _ellipsoid(
    seen: SeenDirections, B: np.ndarray, h: np.ndarray, room: float, estimate: np.ndarray
) -> tuple[Ellipsoid, float]:
    middle, half, loose, square = _solve(B, h, room)
    unseen = np.vstack([seen.unseen, _unit_rows((loose @ seen.lift.T) * seen.unit)])
    made = Ellipsoid(
        seen.columns, seen.lift @ (estimate + middle), half @ seen.lift.T, unseen, seen.unit
    )
    return made, square


def _cut_ellipsoids(
    seen: SeenDirections,
    B: np.ndarray,
    h: np.ndarray,
    room: float,
    estimate: np.ndarray,
    ball: NormBall,
    weights: Sequence[float],
) -> list[tuple[Ellipsoid, float]]:
    """The set's quadratic plus a multiple of the ball's, for each multiple: outer ellipsoids that
    close directions no row has seen.
    """
    unit = np.sqrt(np.maximum(np.diag(ball.curvature), 0.0))
    unit[seen.columns] = seen.unit
    columns, is_seen = np.flatnonzero(unit > 0), np.zeros(len(unit), bool)
    is_seen[seen.columns] = True
    where, blind = np.flatnonzero(is_seen[columns]), np.flatnonzero(~is_seen[columns])
    own = unit[columns]
    c, r = len(columns), seen.lift.shape[1]
    lift = np.zeros((c, c))
    lift[where, :r] = seen.lift
    lift[where, r : r + len(seen.unseen)] = seen.unseen.T / seen.unit[:, None]
    lift[blind, r + len(seen.unseen) + np.arange(len(blind))] = 1 / own[blind]
    inside = ball.curvature if c == len(unit) else ball.curvature[np.ix_(columns, columns)]
    curved, steep = lift.T @ inside @ lift, lift.T @ ball.slope[columns]
    found = []
    for weight in weights:
        curvature, slope = weight * curved, weight * steep
        curvature[:r, :r] += B
        slope[:r] += h
        middle, half, loose, square = _solve(curvature, slope, room - 2 * weight * ball.level)
        middle[:r] += estimate
        unseen = _unit_rows((loose @ lift.T) * own) if len(loose) else np.zeros((0, c))
        found.append((Ellipsoid(columns, lift @ middle, half @ lift.T, unseen, own), square))
    return found


def _unit_rows(rows: np.ndarray) -> np.ndarray:
    found: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return found


def embedded(seen: SeenDirections, moment: np.ndarray) -> np.ndarray:
    """The least squares estimate (q,), 0 where nothing was seen."""
    out = np.zeros_like(moment)
    out[seen.columns] = seen.lift @ (seen.lift.T @ moment[seen.columns])
    return out


def ends(
    middle: np.ndarray, extent: np.ndarray, side: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ends (m,) of what lies in every ellipsoid, (m, E), and which one sets the upper (side 1)
    or lower end, -1 if none does.
    """
    if not middle.shape[1]:
        nothing = np.full(len(middle), np.inf)
        return -nothing, nothing, np.full(len(middle), -1)
    lows, highs = middle - extent, middle + extent
    if middle.shape[1] == 1:  # one ellipsoid sets all ends
        low, high = lows[:, 0], highs[:, 0]
        return low, high, np.where(np.isfinite(high if side > 0 else low), 0, -1)
    low, high = lows.max(axis=1), highs.min(axis=1)
    tightest = highs.argmin(axis=1) if side > 0 else lows.argmax(axis=1)
    tightest[~np.isfinite(high if side > 0 else low)] = -1
    return low, high, tightest


def disjoint(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Where ends (m,) cross by more than rounding, so that the sets do not meet.

    >>> disjoint(np.array([1.0, 1.0]), np.array([0.9, 1.0 - 1e-12]))
    array([ True, False])
    """
    gap = low - high
    found: np.ndarray = gap > 0
    if np.count_nonzero(found):
        found &= gap > ROUNDING * (np.abs(low) + np.abs(high))
    return found


def apart(low: np.ndarray, high: np.ndarray) -> bool:
    """Whether the sets do not meet somewhere: then no parameter is left."""
    return bool(np.count_nonzero(disjoint(low, high)))
