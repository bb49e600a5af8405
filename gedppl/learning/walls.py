"""The largest linear form over a convex likelihood set cut by walls: signs, boxes, and the domain
of a link at the rows seen.

    max phi'v    subject to    slack(v) >= 0,    A v <= b

by a primal-dual interior-point method (Boyd and Vandenberghe, Convex Optimization, 11.7), for all
forms at once. At any v inside, with any multipliers mu, lambda >= 0, concavity gives for every
member v'

    phi'v' <= phi'v + mu slack(v) + lambda'(b - A v) + r'(v' - v),
        r = phi + mu grad slack - A'lambda,

so that what is returned is an upper bound up to the residual r, which Newton's method brings to
rounding.

Axis letters: M forms, D parameters, w walls.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import linprog

from gedppl.learning.likelihoods import Likelihood
from gedppl.learning.program_sets import MARGIN, Extremes, Plausible, ways_of
from gedppl.programs.contract import Halves
from gedppl.rows import over_box

SHARPER, SHARPEST = 4.0, 100.0  # how much smaller a gap a step aims at, also after a full step
GAP = 1e-9  # share of the way gone, and of the form's size for the residual: near enough
STEPS = 80
FIRST_GROWTH = 20.0  # of the slack's weight against the walls', in search of a first member
NEARNESS = 1e-3  # what a step costs, in room to the walls, in search of a point inside
HALVINGS = 30  # of a step, until it helps
LOOKS = 100  # at points, for a form; one that is bounded far out, where all is flat, may need many
FARTHEST = 1e8  # standard errors: a form that goes on like this has no end
FACE_STEPS, FACE_CHANGES = 12, 8  # towards a point on its walls, and of these before each
NEAR = 1e-7  # as near as `extremes` goes
HELD = 1e-10  # of what rows depend on most: the least that is not rounding

Box = tuple[np.ndarray, np.ndarray]  # low and high (D,), infinite where open


@dataclass(frozen=True)
class Walls:
    """A v <= b."""

    normals: np.ndarray  # (w, D)
    limits: np.ndarray  # (w,)

    @classmethod
    def of(cls, low: np.ndarray, high: np.ndarray, data: Likelihood) -> Walls:
        """A box (D,), with open sides, what supports say, and the domain of the link at the rows
        seen, as far as it is not sure to hold inside the others.
        """
        supports, domain = (
            cls._joined(data.supports, len(low)),
            cls._joined(data.domain(), len(low)),
        )
        doubtful = supports.ends(domain.normals, (low, high)) > domain.limits
        eye = np.eye(len(low))
        box = eye[np.isfinite(high)], -eye[np.isfinite(low)]
        ends = high[np.isfinite(high)], -low[np.isfinite(low)]
        a = np.vstack([*box, supports.normals, domain.normals[doubtful]])
        b = np.concatenate([*ends, supports.limits, domain.limits[doubtful]])
        used = np.any(a != 0, axis=1)
        return cls(a[used], b[used])

    @classmethod
    def _joined(cls, halves: Halves, dim: int) -> Walls:
        return cls(np.vstack([*halves[0], np.zeros((0, dim))]), np.concatenate([*halves[1], []]))

    def ends(self, forms: np.ndarray, box: Box) -> np.ndarray:
        """Upper bounds (M,) of forms phi (M, D) inside these walls and a box: for any l >= 0

            phi'v <= l b + the largest (phi - l A)'v of the box,

        tried wall by wall at the least l that leaves no coordinate of A on its side.
        """
        rest, found = forms, over_box(forms, *box)[1]
        spent = np.zeros(len(forms))
        for normal, limit in zip(self.normals, self.limits):
            mine = normal != 0
            share = np.max(rest[:, mine] / normal[mine], axis=1, initial=0.0)
            less, cost = rest - share[:, None] * normal, spent + share * limit
            end = cost + over_box(less, *box)[1]
            better = end < found
            rest, spent = np.where(better[:, None], less, rest), np.where(better, cost, spent)
            found = np.where(better, end, found)
        return found

    def broken(self, v: np.ndarray) -> np.ndarray:
        """Whether each v (M, D) lies beyond a wall, by more than rounding of what is added up for
        it: coordinates may have very different units.
        """
        room = 1e-9 * np.maximum(np.abs(self.limits), np.abs(v) @ np.abs(self.normals).T)
        found: np.ndarray = np.any(v @ self.normals.T > self.limits + room, axis=1)
        return found

    def near(self, forms: np.ndarray) -> Walls:
        """Those that have to do with what forms (k, D) depend on, directly or by other walls."""
        used, normals = np.any(forms != 0, axis=0), self.normals != 0
        while True:
            mine = np.any(normals[:, used], axis=1)
            more = used | np.any(normals[mine], axis=0)
            if np.array_equal(more, used):
                return Walls(self.normals[mine], self.limits[mine])
            used = more

    def inner_point(self, near: np.ndarray, unit: np.ndarray) -> np.ndarray | None:
        """A point well inside all walls, as near as may be in steps of `unit` (D,); None if
        there is none.
        """
        D = len(near)
        size = np.linalg.norm(self.normals * unit, axis=1)
        # each wall in steps of its own: the solver's tolerances are absolute
        walls = self.normals * unit / size[:, None]
        found = linprog(
            np.append(np.full(2 * D, NEARNESS), -1.0),  # steps up and down, and the room gained
            A_ub=np.hstack([walls, -walls, np.ones((len(size), 1))]),
            b_ub=(self.limits - self.normals @ near) / size,
            bounds=[(0.0, 1e3)] * (2 * D) + [(0.0, 1.0)],
        )
        if found.status != 0 or found.x[-1] <= 1e-9:
            return None
        out: np.ndarray = near + unit * (found.x[:D] - found.x[D : 2 * D])
        return out


@dataclass(frozen=True)
class _Look:
    """The slack (M,), its gradient (M, D) and minus its Hessian (M, D, D)."""

    slack: np.ndarray
    grad: np.ndarray
    information: np.ndarray

    def only(self, which: np.ndarray) -> _Look:
        return _Look(self.slack[which], self.grad[which], self.information[which])

    def put(self, where: np.ndarray, other: _Look) -> None:
        self.slack[where], self.grad[where] = other.slack, other.grad
        self.information[where] = other.information


@dataclass(frozen=True)
class _Inside:
    """The set behind its walls, in coordinates u: v = v0 + turn u."""

    chosen: Plausible
    walls: Walls
    turn: np.ndarray  # (D, r)

    @classmethod
    def of(cls, chosen: Plausible, walls: Walls) -> _Inside:
        """In standard errors, or in the distance between walls where that is shorter: what no row
        has seen has no standard error, and the number that stands for it may be anything.
        """
        known = np.sum(chosen.region.chol**2, axis=1)
        span = np.abs(walls.limits) + np.abs(walls.normals) @ np.abs(chosen.region.centre)
        lean = np.divide(
            walls.normals,
            span[:, None],
            out=np.zeros_like(walls.normals),
            where=span[:, None] > 0,
        )
        unit = 1.0 / np.sqrt(np.maximum(known + np.sum(lean**2, axis=0), 1e-300))
        return cls(chosen, walls, np.diag(unit))

    def narrowed(self, phi: np.ndarray) -> _Inside:
        """Only walls that have to do with forms phi (M, D) or with rows, and no moves that none of
        these depends on: nothing holds them, so that steps along them would be rounding, as large
        as you like.
        """
        near = self.walls.near(np.vstack([phi, self.chosen.touched]))
        rows = np.vstack([directions(self.chosen), near.normals, phi])
        column = np.abs(rows).max(axis=0)
        used = column > 0
        rows = rows[:, used] / column[used]
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
        _, sizes, held = np.linalg.svd(rows, full_matrices=False)
        held = held[sizes > HELD * sizes.max(initial=0.0)]  # nothing may be left that could move
        turn = self.turn[:, used]
        if len(held) < len(held.T):
            unit = np.diag(self.turn)[used]
            turn = turn @ np.linalg.qr((held / (column[used] * unit)).T)[0]
        return _Inside(self.chosen, near, turn)

    @cached_property
    def lean(self) -> np.ndarray:
        """The walls' normals in these coordinates, (w, r)."""
        found: np.ndarray = self.walls.normals @ self.turn
        return found

    @cached_property
    def pairs(self) -> np.ndarray:
        """(w, r r)"""
        lean, D = self.lean, self.lean.shape[1]
        found: np.ndarray = (lean[:, :, None] * lean[:, None, :]).reshape(len(lean), D * D)
        return found

    def room(self, v: np.ndarray) -> np.ndarray:
        """To every wall at v (M, D): (M, w)."""
        found: np.ndarray = self.walls.limits - v @ self.walls.normals.T
        return found

    def look(self, v: np.ndarray) -> tuple[_Look, np.ndarray]:
        """At v (M, D), in these coordinates; and where that is inside the walls and a number."""
        with np.errstate(all="ignore"):
            slack, grad, information = self.chosen.region.parabola(v)
            seen = _Look(slack, grad @ self.turn, self.turn.T @ information @ self.turn)
            known = np.isfinite(slack + grad.sum(axis=1) + information.sum(axis=(1, 2)))
        return seen, known & (self.room(v).min(axis=1, initial=np.inf) > 0)

    def raised(self, v: np.ndarray, weight: float) -> tuple[np.ndarray, bool]:
        """Newton steps up weight * slack + sum log room; the point reached, and whether its
        slack is positive.
        """
        seen, ok = self.look(v[None])
        for _ in range(STEPS):
            if not ok[0] or seen.slack[0] > 0:
                break
            room = self.room(v[None])[0]
            lean = self.lean / room[:, None]
            slope = weight * seen.grad[0] - lean.sum(axis=0)
            step = _solved((weight * seen.information[0] + lean.T @ lean)[None], slope[None])[0]
            gain = float(slope @ step)
            if not np.isfinite(gain) or gain < 1e-10:
                break
            for share in 0.5 ** np.arange(40.0):
                move = share * self.turn @ step
                there, inside = self.look((v + move)[None])
                if not inside[0]:
                    continue
                rise = weight * (there.slack[0] - seen.slack[0]) + float(
                    np.sum(np.log1p(-(self.walls.normals @ move) / room))
                )
                if rise >= 0.1 * share * gain:
                    v, seen = v + move, there
                    break
            else:
                break
        return v, bool(ok[0] and seen.slack[0] > 0)


def directions(chosen: Plausible) -> np.ndarray:
    """Forms (k, D) such that the likelihood depends on nothing else; found once for each set."""

    def find() -> np.ndarray:
        ways = ways_of(chosen.data)
        rows = np.eye(len(chosen.region.centre)) if ways is None else np.vstack(ways)
        if len(rows) <= rows.shape[1]:
            return rows
        found: np.ndarray = np.linalg.qr(rows)[1]
        return found

    kept: np.ndarray = chosen.behind_walls.get("directions", (), find)
    return kept


def _solved(curve: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """(M, D, D), (M, D) -> (M, D)."""
    lift = 1e-13 * np.trace(curve, axis1=1, axis2=2)
    system = curve + lift[:, None, None] * np.eye(curve.shape[1])
    found: np.ndarray = np.linalg.solve(system, slope[..., None])[..., 0]
    return found


def member_inside(chosen: Plausible, walls: Walls) -> np.ndarray | None:
    """A member of the set strictly inside the walls; None if none was found."""
    inside, v = _Inside.of(chosen, walls), chosen.region.centre
    if inside.room(v[None]).min() <= 0:
        inner = walls.inner_point(v, np.diag(inside.turn))
        if inner is None:
            return None
        v = inner
    for power in range(12):
        v, found = inside.raised(v, FIRST_GROWTH**power)
        if found:
            return v
    return None


def left_by_supports(data: Likelihood, theta: np.ndarray) -> np.ndarray:
    """Whether each theta (M, D) keeps what supports say of parameters together, (M,)."""
    inside = np.ones(len(theta), bool)
    for normals, limits in zip(*data.supports):
        inside &= ~Walls(normals, limits).broken(theta)
    return inside


def behind(chosen: Plausible, box: Box) -> tuple[Walls, np.ndarray | None]:
    """A set's walls, and a member strictly inside them; found once for each set."""

    def find() -> tuple[Walls, np.ndarray | None]:
        walls = Walls.of(*box, chosen.data)
        return walls, member_inside(chosen, walls) if len(walls.limits) else None

    found: tuple[Walls, np.ndarray | None] = chosen.behind_walls.get("walls", box, find)
    return found


def farthest_inside(
    chosen: Plausible, walls: Walls, phi: np.ndarray, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Upper bounds of phi'v over the set inside the walls for phi (M, D), members that almost
    attain them (M, D), and the slack's multiplier there; inf where there is no end.

    start (D,): from `member_inside`.
    """
    inside = _Inside.of(chosen, walls).narrowed(phi)
    turn, lean, pairs = inside.turn, inside.lean, inside.pairs
    goal, M = phi @ turn, len(phi)
    size = np.linalg.norm(goal, axis=1)
    v, u = np.tile(start, (M, 1)), np.zeros(goal.shape)
    seen, ok = inside.look(v)
    bound = np.where(size == 0, phi @ start, np.inf)
    price, full, looks = np.zeros(M), np.zeros(M, bool), np.zeros(M, np.int64)
    going = np.flatnonzero((size > 0) & ok & (seen.slack > 0))
    free = np.column_stack([seen.slack, inside.room(v)])  # of the constraints, the set's own first
    with np.errstate(all="ignore"):
        duals = size[:, None] / free
    for _ in range(STEPS):
        if not len(going):
            break
        at, there, lam, left = u[going], seen.only(going), duals[going], free[going]
        residual = goal[going] + lam[:, :1] * there.grad - lam[:, 1:] @ lean
        gap = np.sum(lam * left, axis=1)
        gone = np.abs(np.sum(goal[going] * at, axis=1))
        far = np.linalg.norm(at, axis=1) > FARTHEST
        unsolved = np.linalg.norm(residual, axis=1)
        done = (gap <= GAP * np.maximum(gone, GAP * size[going])) & (unsolved <= GAP * size[going])
        met = going[done & ~far]
        bound[met] = np.sum(phi[met] * v[met], axis=1) + gap[done & ~far]
        price[met] = duals[met, 0]
        ended = done | far | (looks[going] > LOOKS)
        if ended.any():
            going = going[~ended]
            continue
        aim = gap / (np.where(full[going], SHARPEST, SHARPER) * left.shape[1])
        ratio = lam / left
        curve = lam[:, :1, None] * there.information
        curve += ratio[:, :1, None] * there.grad[:, :, None] * there.grad[:, None, :]
        curve += (ratio[:, 1:] @ pairs).reshape(curve.shape)
        slope = goal[going] + aim[:, None] * (there.grad / left[:, :1] - (1 / left[:, 1:]) @ lean)
        step = _solved(curve, slope)
        along = np.column_stack([np.sum(there.grad * step, axis=1), -step @ lean.T])
        change = -lam + (aim[:, None] - lam * along) / left
        with np.errstate(divide="ignore", invalid="ignore"):
            most = np.minimum(
                np.where(change < 0, -lam / change, np.inf).min(axis=1),
                np.where(along < 0, -left / along, np.inf)[:, 1:].min(axis=1, initial=np.inf),
            )
        before = _off(residual, lam, left, aim)
        share = np.minimum(1.0, 0.99 * most)
        moved = np.zeros(len(going), bool)
        for _ in range(HALVINGS):
            some = np.flatnonzero(~moved)
            if not len(some):
                break
            part = going[some]
            trial = at[some] + share[some, None] * step[some]
            where = start + trial @ turn.T
            trial_duals = lam[some] + share[some, None] * change[some]
            found, ok = inside.look(where)
            looks[part] += 1
            trial_free = np.column_stack([found.slack, inside.room(where)])
            rest = goal[part] + trial_duals[:, :1] * found.grad - trial_duals[:, 1:] @ lean
            off = _off(rest, trial_duals, trial_free, aim[some])
            good = ok & (found.slack > 0) & (off <= (1 - 0.01 * share[some]) * before[some])
            to = part[good]
            u[to], v[to], duals[to], free[to] = (
                new[good] for new in (trial, where, trial_duals, trial_free)
            )
            seen.put(to, found.only(good))
            moved[some[good]], full[to] = True, share[some[good]] > 0.9
            share[some[~good]] *= 0.5
        if not moved.all():  # no step helps any more: rounding
            near = ~moved & (gap <= 1e-6 * gone) & (unsolved <= 1e-6 * size[going])
            end = going[near]
            bound[end] = np.sum(phi[end] * v[end], axis=1) + gap[near]
            price[going[~moved]] = lam[~moved, 0]
            going = going[moved]
    return bound, v, price


def _off(residual: np.ndarray, duals: np.ndarray, free: np.ndarray, aim: np.ndarray) -> np.ndarray:
    """How far each form's conditions are from being met, (M,)."""
    found: np.ndarray = np.sqrt(
        np.sum(residual**2, axis=1) + np.sum((duals * free - aim[:, None]) ** 2, axis=1)
    )
    return found


# from wall to wall --------------------------------------------------------------------------------


class _Model:
    """Quadratic models of the slack around points z, one for each form h,

        s + g'd - d'B d / 2 >= 0    behind walls    N d <= r.

    On the walls that hold it a form is farthest at d = d0 + t d1, where N d1 = 0 on these.
    """

    def __init__(
        self, form: np.ndarray, seen: _Look, normals: np.ndarray, room: np.ndarray
    ) -> None:
        """form (M, D), normals (w, D), room (M, w)."""
        M, D = form.shape
        sides = np.empty((M, D, 2 + len(normals)))
        sides[:, :, 0], sides[:, :, 1], sides[:, :, 2:] = seen.grad, form, normals.T
        lift = 1e-12 * np.einsum("mdd->m", seen.information)
        lift[~(lift > 1e-30)] = np.nan  # the slack no longer falls: no point is farthest
        found = np.linalg.solve(seen.information + lift[:, None, None] * np.eye(D), sides)
        self.form, self.seen, self.normals, self.room = form, seen, normals, room
        self.ways = found  # B^-1 of g, h and every normal

    def farthest(self, held: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """With the walls that hold each form, (M, w): d (M, D), the price (M,) of the slack, 0
        where the walls alone hold the form, and what every wall pulls (M, w).
        """
        ways, duals = self.ways[:, :, :2], np.zeros((*held.shape, 2))
        use = np.flatnonzero(held.any(axis=0))
        room = self.room * held
        if len(use):
            own = held[:, use]
            back = self.ways[:, :, 2 + use]
            aim = self.normals[use] @ ways * own[:, :, None]
            aim[:, :, 0] -= room[:, use]
            matrix = self.normals[use] @ back * (own[:, :, None] * own[:, None])
            size = np.einsum("mww->m", matrix)[:, None]
            matrix[:, np.arange(len(use)), np.arange(len(use))] += np.where(
                own, 1e-13 * size, size + 1e-300
            )
            duals[:, use] = pull = np.linalg.solve(matrix, aim)
            ways = ways - back @ pull
        seen, first, along = self.seen, ways[:, :, 0], ways[:, :, 1]
        free = np.einsum("md,md->m", self.form, along)
        left = 2 * seen.slack + np.einsum("md,md->m", seen.grad, first)
        left += np.einsum("mw,mw->m", room, duals[:, :, 0])
        corner = free <= 1e-12 * np.einsum("md,md->m", self.form, self.ways[:, :, 1])
        far = np.sqrt(np.maximum(left, 0.0) / np.maximum(free, 1e-300))
        price = 1.0 / np.maximum(far, 1e-300)
        price[corner & (left >= 0)] = 0.0
        move = first + np.where(corner, 0.0, far)[:, None] * along
        return move, price, duals[:, :, 1] + price[:, None] * duals[:, :, 0]


@np.errstate(all="ignore")
def on_faces(chosen: Plausible, walls: Walls, phi: np.ndarray) -> Extremes:
    """max phi'v over the set inside the walls for phi (M, D), as `extremes` finds it without: each
    step goes to the farthest point of the slack's quadratic model, with the walls that hold it
    there; those are found by adding walls that it breaks and dropping walls that pull.

    The bound is that of `farthest_inside`, from the point reached and its multipliers; forms whose
    walls do not settle are left to that search.
    """
    region, near = chosen.region, walls.near(np.vstack([phi, chosen.touched]))
    form, lean = region.whiten(phi), region.whiten(near.normals)
    size, unit = np.linalg.norm(form, axis=1), np.linalg.norm(lean, axis=1)
    form, lean = form / size[:, None], lean / unit[:, None]
    reach, (M, D) = np.sqrt(2 * region.kappa), phi.shape
    z, bound, settled = np.zeros((M, D)), np.full(M, np.inf), np.zeros(M, bool)
    held, going, calls = np.zeros((M, len(unit)), bool), np.arange(M), 0

    def look(z: np.ndarray) -> tuple[_Look, np.ndarray, np.ndarray]:
        theta = region.theta(z)
        slack, grad, information = region.parabola(theta)
        seen = _Look(slack, region.whiten(grad), region.whitened(information))
        known = np.isfinite(slack + grad.sum(axis=1) + information.sum(axis=(1, 2)))
        return seen, (near.limits - theta @ near.normals.T) / unit, known

    # the set's own metric is the first model
    seen = _Look(np.full(M, region.kappa), np.zeros((M, D)), np.tile(np.eye(D), (M, 1, 1)))
    room = np.tile((near.limits - near.normals @ region.centre) / unit, (M, 1))
    for _ in range(FACE_STEPS):
        model, active = _Model(form[going], seen, lean, room), held[going]
        for _ in range(FACE_CHANGES):
            move, price, pull = model.farthest(active)
            change = np.where(active, pull < 0, room - move @ lean.T < -GAP * reach)
            if not change.any():
                break
            active = active ^ change
        held[going], duals = active, np.where(active, np.maximum(pull, 0.0), 0.0)
        rest = np.linalg.norm(form[going] + price[:, None] * seen.grad - duals @ lean, axis=1)
        gap = np.abs(price * seen.slack) + np.sum(duals * np.abs(room), axis=1)
        gap += MARGIN * reach * rest
        done = gap < NEAR * np.linalg.norm(z[going], axis=1)
        done &= seen.slack > -NEAR * region.kappa
        if done.any():
            at = going[done]
            bound[at] = np.sum(phi[at] * region.theta(z[at]), axis=1) + size[at] * gap[done]
            settled[at] = True
        left = ~done & np.isfinite(move).all(axis=1)
        going, move = going[left], move[left]
        if not len(going):
            break
        for _ in range(HALVINGS):
            seen, room, ok = look(z[going] + move)
            calls += len(going)
            if ok.all():
                break
            move[~ok] *= 0.5
        z[going] += move
    return Extremes(region.theta(z), bound, settled, calls)
