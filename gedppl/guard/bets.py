"""Bets against a model's predictions: what each bet pays, and how the wealth of many bets is kept.

If a model's predictive distribution F_t was fixed before the outcome y_t, then u_t = F_t(y_t) is
uniform on [0, 1] whatever happened before. A bet on a function g with mean 0 under the uniform law
multiplies a gambler's wealth by 1 + eps g(u_t) s_t, where s_t in [-1, 1] depends only on what was
known before y_t: context, action, earlier rounds. Its mean is 1, so each wealth, and any mixture of
them, is a nonnegative martingale: under a right model it ever exceeds 1/delta with probability at
most delta (Ville). A wrong model loses money to some bet, exponentially fast.

All functions broadcast over leading axes, so that R parallel runs are one call. Axis letters: R
runs (any leading axes), C context columns, A action groups, G shapes, O bets on outliers, E bets.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtr, ndtri

from gedppl.errors import (
    ActionRangeError,
    ContextWidthError,
    DataError,
    NotFiniteError,
)
from gedppl.numerics.arrays import evolved

if TYPE_CHECKING:
    from gedppl.guard import PitMonitor

SHAPES = 7  # see `shapes`
MOST_STAKED = 0.9
AMOUNTS = np.array([0.15, 0.4, MOST_STAKED, -0.15, -0.4, -MOST_STAKED])
MAX_COLUMNS = 16
MAX_ACTION_GROUPS = 16
MAX_INTERACTIONS = 128
MIN_CONTEXTS = 10
WINDOWS = np.array([100.0, 400.0])
KEPT = (1.0 - 1.0 / WINDOWS)[:, None]  # of the past, each round
STAKES = np.array([0.5, 1.0])
FASTEST = 3.0 * STAKES
RIDGE = 10.0
FEW = 8
# Normal scores of outcomes of which a share comes from elsewhere: shares, their shifts and scales;
# the mean stays 0, as a model that has learned predicts it right
SHARE, SHIFT, SCALE = np.array(
    [(0.2, 0, 2), (1 - 1e-9, 0, 1.25), (0.1, 2, 1), (0.1, -2, 1), (0.1, 4, 1), (0.1, -4, 1)]
).T
MOST_PAID = 100.0  # for one outcome: a single wild one is not yet evidence
FARTHEST = 7.9  # standard deviations: beyond, 1 - u has no digits


def shapes(u: np.ndarray) -> np.ndarray:
    """What is bet on: functions of u with mean 0 under the uniform law and values in [-1, 1]. (...)
    -> (..., G).

    Legendre polynomials of degree 1 to 4 in 2u - 1, then how often u falls into the lower 5%, the
    upper 5% and the outermost 0.5%: the coverage of the usual predictive intervals.
    """
    v = 2.0 * np.asarray(u, float) - 1.0
    if v.size > FEW:
        return np.stack(_shapes(v), -1)
    # of a few numbers Python is done before NumPy has begun
    return np.array([_shapes(one) for one in v.ravel().tolist()]).reshape(*v.shape, -1)


def _shapes(v: Any) -> tuple[Any, ...]:
    """At v = 2u - 1, a number or an array."""
    squared = v * v
    return (
        v,
        1.5 * squared - 0.5,
        v * (2.5 * squared - 1.5),
        (35.0 * squared * squared - 30.0 * squared + 3.0) / 8.0,
        ((v < -0.9) - 0.05) / 0.95,
        ((v > 0.9) - 0.05) / 0.95,
        ((abs(v) > 0.995) - 0.005) / 0.995,
    )


# coefficients of 1, z, z^2 in the logs of the two parts of each such density over the Normal's
_STAYS, _MOVES = -SHARE * SHIFT, (1.0 - SHARE) * SHIFT
_STAYING = (np.log1p(-SHARE) - 0.5 * _STAYS**2, _STAYS, 0.0 * SHARE)
_MOVED = (np.log(SHARE / SCALE) - 0.5 * (_MOVES / SCALE) ** 2, _MOVES / SCALE**2)
RATIOS = np.stack([_STAYING, (*_MOVED, 0.5 - 0.5 / SCALE**2)], 1)  # (3, 2, O)


def outliers(u: np.ndarray) -> np.ndarray:
    r"""What bets on outliers pay, (...) -> (..., O):

    w_k(u) = min(q_k(z) / \phi(z), 100),   z = \Phi^{-1}(u),   q_k a mixture of two Normals.

    Under the uniform law z is standard Normal and q_k a density, so that the mean is at most 1. A
    bet on a tail pays the same for all that lies there; these pay for how far out it is.
    """
    z = np.minimum(np.maximum(ndtri(u), -FARTHEST), FARTHEST)[..., None, None]
    parts = z * RATIOS[2]
    parts += RATIOS[1]
    parts *= z
    parts += RATIOS[0]
    np.exp(parts, out=parts)
    return np.asarray(np.minimum(parts[..., 0, :] + parts[..., 1, :], MOST_PAID))


def _cells_of_outliers() -> tuple[list[float], list[float]]:
    """Nodes of u in order, and the most that `outliers` pay below the first, between each two and
    above the last. In z they are convex up to their cap: between two nodes they pay less than at
    one of these.
    """
    nodes = ndtr(np.arange(-8.0, 8.25, 0.25))
    paid = outliers(np.concatenate([[0.0], nodes, [1.0]])).max(axis=-1)
    return nodes.tolist(), np.maximum(paid[1:], paid[:-1]).tolist()


NODES, PAID_AT_MOST = _cells_of_outliers()


def most_won(u: float) -> float:
    """log of the most that any bet wins on an outcome's u, a number in [0, 1]: on a shape g or on
    a trend at most `MOST_STAKED` of the wealth is staked, which becomes 1 + 0.9 |g(u)| of it.
    """
    if not 0.0 <= u <= 1.0:  # NaN fails too
        check_pits(np.asarray(u))
    most = 1.0 + MOST_STAKED * max(map(abs, _shapes(2.0 * u - 1.0)))
    return math.log(max(most, PAID_AT_MOST[bisect(NODES, u)]))


@lru_cache(maxsize=32)
def _directions(dx: int) -> np.ndarray:
    """(dx, MAX_COLUMNS), the same in every run."""
    directions: np.ndarray = np.random.default_rng(0).normal(size=(dx, MAX_COLUMNS)) / np.sqrt(dx)
    directions.setflags(write=False)
    return directions


@dataclass(frozen=True)
class Bets:
    """The set of bets for contexts of `dx` columns and `n_actions` actions.

    Wide contexts are projected on `MAX_COLUMNS` fixed random directions and many actions are
    grouped by their number modulo `MAX_ACTION_GROUPS`: fewer bets, so weaker against a flaw
    confined to one column or one action.
    """

    dx: int
    n_actions: int

    @property
    def columns(self) -> int:
        return min(self.dx, MAX_COLUMNS)

    @property
    def groups(self) -> int:
        return min(self.n_actions, MAX_ACTION_GROUPS)

    @property
    def interactions(self) -> int:
        pairs = 2 * self.columns * self.groups
        return pairs if self.groups > 1 and pairs <= MAX_INTERACTIONS else 0

    def projected(self, x: np.ndarray) -> np.ndarray:
        """(..., dx) -> (..., C)."""
        if self.dx <= MAX_COLUMNS:
            return np.asarray(x, float)
        found: np.ndarray = np.asarray(x, float) @ _directions(self.dx)
        return found

    def sizes(self) -> list[int]:
        """Bets on u alone, with a column, with an action, with a column within one action, along
        a learned direction, on outliers.
        """
        both = 2 * len(AMOUNTS)
        on_action = both * self.groups if self.groups > 1 else 0
        single = [
            SHAPES * len(AMOUNTS),
            both * 2 * self.columns,
            on_action,
            len(AMOUNTS) * self.interactions,
        ]
        return [*single, len(WINDOWS) * len(STAKES), len(SHARE)]

    def log_weights(self) -> np.ndarray:
        """(E,): each kind of bet gets the same share of the initial wealth 1."""
        sizes = self.sizes()
        kinds = sum(size > 0 for size in sizes)
        return np.concatenate([np.full(size, -np.log(kinds * size)) for size in sizes if size])

    def features(self, z: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Columns and their squares (..., 2C), and the action's group (..., A), all in [-1, 1];
        z (..., C) standardised.
        """
        C = z.shape[-1]
        column = np.empty((*z.shape[:-1], 2 * C))
        column[..., :C] = z
        squares = np.multiply(z, z, out=column[..., C:])
        squares -= 1.0
        column *= 0.5
        finite = np.isfinite(column)
        np.minimum(np.maximum(column, -1.0, out=column), 1.0, out=column)
        return np.where(finite, column, 0.0), _groups(self.groups)[action % self.groups]

    def growth(
        self, u: np.ndarray, column: np.ndarray, f: np.ndarray, expected: np.ndarray
    ) -> np.ndarray:
        """1 + eps g(u) s or `outliers` for every bet, and 1 of what is kept, (..., E + 1). u (...),
        `features` of the round, `Trend.within_action` of them, `Trend.expected` before it (..., W).
        """
        g = shapes(u)
        lead, (feature, shape) = g.shape[:-1], _cells(self)
        every = np.empty((*f.shape[:-1], 1 + column.shape[-1] + f.shape[-1]))
        every[..., 0] = 1.0
        every[..., 1 : 1 + column.shape[-1]] = column
        every[..., 1 + column.shape[-1] :] = f
        cells = every.take(feature, axis=-1) * g.take(shape, axis=-1)
        # 2u - 1 has variance 1/3, so three times its expected value is the stake that grows fastest
        stakes = expected[..., None] * FASTEST
        np.minimum(np.maximum(stakes, -MOST_STAKED, out=stakes), MOST_STAKED, out=stakes)
        fixed = len(feature) * len(AMOUNTS)
        learned = fixed + len(WINDOWS) * len(STAKES)
        out = np.empty((*lead, learned + len(SHARE) + 1))
        by_amount = out[..., :fixed].reshape(*lead, -1, len(AMOUNTS))  # a view
        np.multiply(cells[..., None], AMOUNTS, out=by_amount)
        np.multiply(stakes.reshape(*lead, -1), g[..., :1], out=out[..., fixed:learned])
        out[..., :learned] += 1.0
        out[..., learned:-1] = outliers(u)
        out[..., -1] = 1.0
        return out

    def describe(self, index: int) -> str:
        """Bet number `index` in words: what about the outcomes differed from the predictions,
        and where.
        """
        sizes = self.sizes()
        kind = int(np.searchsorted(np.cumsum(sizes), index, side="right"))
        cell, amount = divmod(index - sum(sizes[:kind]), len(AMOUNTS))
        if kind == 5:
            return _OUTLIERS[np.sign(SHIFT[amount])]
        if kind == 4:
            return "outcomes are larger or smaller than predicted, depending on context and action"
        up = AMOUNTS[amount] > 0
        if kind == 0:
            return _MARGINAL[cell][0 if up else 1]
        if kind == 3:
            group, cell = divmod(cell, 2 * self.columns)
            return f"{_LOCATION[0 if up else 1]} {self._where(cell)}{self._on_action(group)}"
        cell, shape = divmod(cell, 2)
        what = (_LOCATION if shape == 0 else _SPREAD)[0 if up else 1]
        return f"{what} {self._where(cell)}" if kind == 1 else f"{what}{self._on_action(cell)}"

    def _where(self, cell: int) -> str:
        name = (
            "a projection of the context" if self.dx > MAX_COLUMNS else f"x[{cell % self.columns}]"
        )
        return f"where {name} is " + ("large" if cell < self.columns else "far from its mean")

    def _on_action(self, group: int) -> str:
        return (
            f" on action {group}"
            if self.n_actions <= MAX_ACTION_GROUPS
            else f" on actions {group} mod {self.groups}"
        )


@lru_cache(maxsize=32)
def _groups(n: int) -> np.ndarray:
    """(n, n): row g says that an action is of group g."""
    one = np.eye(n)
    one.setflags(write=False)
    return one


@lru_cache(maxsize=64)
def _cells(bets: Bets) -> tuple[np.ndarray, np.ndarray]:
    """Which feature and which shape each amount is bet on, in the order of `Bets.sizes`. Features:
    1, the columns, and `Trend.within_action`.
    """
    columns, groups = np.arange(2 * bets.columns), np.arange(bets.groups)
    # where each group's own features begin, itself before its columns
    first = 1 + len(columns) + groups * (1 + len(columns))
    alone = np.zeros(SHAPES, np.intp), np.arange(SHAPES)
    with_column = np.repeat(1 + columns, 2), np.tile([0, 1], len(columns))
    parts = [alone, with_column]
    if bets.groups > 1:
        parts.append((np.repeat(first, 2), np.tile([0, 1], len(groups))))
    if bets.interactions:
        within = (first[:, None] + 1 + columns).ravel()
        parts.append((within, np.zeros(len(within), np.intp)))
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


_LOCATION = ("outcomes are larger than predicted", "outcomes are smaller than predicted")
_SPREAD = ("outcomes vary more than predicted", "outcomes vary less than predicted")
_MARGINAL = (
    _LOCATION,
    _SPREAD,
    *(
        (said.format(first), said.format(second))
        for said, first, second in (
            ("outcomes are more skewed to the {} than predicted", "right", "left"),
            ("outcomes lie more in the {} than predicted", "middle and the tails", "shoulders"),
            ("{} outcomes than predicted lie in the lower tail", "more", "fewer"),
            ("{} outcomes than predicted lie in the upper tail", "more", "fewer"),
            ("{} extreme outcomes than predicted", "more", "fewer"),
        )
    ),
)
_OUTLIERS = {
    0.0: "outcomes vary more than predicted, or some lie far out",
    1.0: "some outcomes lie far above what was predicted",
    -1.0: "some outcomes lie far below what was predicted",
}


@dataclass(frozen=True)
class Moments:
    """Running mean and squared deviations of context columns (Welford). n contexts seen; mean,
    m2 (..., C).
    """

    n: int
    mean: np.ndarray
    m2: np.ndarray

    @classmethod
    def empty(cls, columns: int) -> Moments:
        return cls(0, np.zeros(columns), np.zeros(columns))

    def include(self, x: np.ndarray) -> Moments:
        gap = x - self.mean
        mean = self.mean + gap / (self.n + 1)
        return Moments(self.n + 1, mean, self.m2 + gap * (x - mean))

    def walked(self, x: np.ndarray) -> tuple[Moments, np.ndarray]:
        """With contexts (T, ..., C) one after the other: the moments at the end, and each context
        standardised by those that hold it last.
        """
        each = [self]
        for row in x:
            each.append(each[-1].include(row))
        z = np.full(x.shape, np.nan)
        known = max(MIN_CONTEXTS - self.n - 1, 0)  # before, `standardised` knows nothing
        if known < len(x):
            then = each[known + 1 :]
            count = np.array([m.n for m in then]).reshape(-1, *(1,) * (x.ndim - 1))
            sd = np.sqrt(np.array([m.m2 for m in then]) / (count - 1))
            np.divide(x[known:] - [m.mean for m in then], sd, out=z[known:], where=sd > 0)
        return each[-1], z

    def standardised(self, x: np.ndarray) -> np.ndarray:
        """(x - mean) / sd; NaN (no bet) while too few contexts were seen, and in a column that
        never varied.
        """
        if self.n < MIN_CONTEXTS:
            return np.full(np.shape(x), np.nan)
        sd = np.sqrt(self.m2 / (self.n - 1))
        found: np.ndarray = np.divide(
            x - self.mean, sd, out=np.full(np.shape(x), np.nan), where=sd > 0
        )
        return found


@dataclass(frozen=True)
class Trend:
    """In which direction 2u - 1 has lately been off zero: one regression a feature, over windows of
    W lengths.

    Features are 1, the columns and their squares, each within an action group: F = A (1 + 2C). A
    flaw spread thinly over many of them is invisible to each single bet but adds up here.
    """

    sums: np.ndarray  # (..., 2, W, F) discounted, of (2u - 1) f and of f^2

    @classmethod
    def empty(cls, bets: Bets) -> Trend:
        return cls(np.zeros((2, len(WINDOWS), bets.groups * (1 + 2 * bets.columns))))

    @staticmethod
    def within_action(column: np.ndarray, group: np.ndarray) -> np.ndarray:
        """(..., 2C), (..., A) -> (..., F)."""
        out = np.empty((*group.shape, 1 + column.shape[-1]))
        out[..., 0] = group
        np.multiply(group[..., :, None], column[..., None, :], out=out[..., 1:])
        return out.reshape(*column.shape[:-1], -1)

    def expected(self, f: np.ndarray) -> np.ndarray:
        """The mean of 2u - 1 that the past suggests for features f (..., F) -> (..., W)."""
        slopes = self.sums[..., 0, :, :] / (self.sums[..., 1, :, :] + RIDGE)
        found: np.ndarray = (slopes @ f[..., None])[..., 0]
        return found

    def include(self, u: np.ndarray, f: np.ndarray) -> Trend:
        v = (2.0 * np.asarray(u, float) - 1.0)[..., None]
        news = np.empty((*np.broadcast_shapes(v.shape[:-1], f.shape[:-1]), 2, 1, f.shape[-1]))
        np.multiply(v, f, out=news[..., 0, 0, :])
        np.multiply(f, f, out=news[..., 1, 0, :])
        sums = KEPT * self.sums
        sums += news
        return Trend(sums)

    def walked(self, u: np.ndarray, f: np.ndarray) -> tuple[Trend, np.ndarray]:
        """With rounds (T) of u (N, T, ...) and f (T, ..., F) one after the other: the trend at the
        end, and what it expected before each round, (N, T, ..., W).
        """
        now, expected = self, np.empty((*u.shape, len(WINDOWS)))
        for t, row in enumerate(f):
            expected[:, t] = now.expected(row)
            now = now.include(u[:, t], row)
        return now, expected


def log_total(log_wealth: np.ndarray) -> np.ndarray:
    """log of the summed wealth, (..., E) -> (...)."""
    return np.asarray(np.logaddexp.reduce(log_wealth, axis=-1))


def shared(wealth: np.ndarray, weights: np.ndarray, rate: float | np.ndarray) -> np.ndarray:
    """Every bet gives up a fraction `rate` of its wealth, and the pot is dealt out anew. wealth
    (..., E) and weights sum to 1.

    The total stays the same, so it is still a martingale; but a bet that begins to pay only after a
    change starts from the wealth of today and not from what it lost before. This is the mixture
    over all times at which a bet may begin (fixed share; Herbster and Warmuth, "Tracking the best
    expert", 1998).
    """
    return (1.0 - rate) * wealth + rate * weights


# what all monitors check --------------------------------------------------------------------------


@lru_cache(maxsize=256)
def of_stream(key: str) -> str:
    """``"refuted:cost"`` -> ``"cost"``."""
    return key.split(":", 1)[1]


def crossed(log_peak: np.ndarray, delta: float) -> Any:
    """Whether evidence has reached 1/delta, for one run or for each of several."""
    alarmed = log_peak >= -math.log(delta)
    return alarmed if alarmed.ndim else bool(alarmed)


def span(values: np.ndarray) -> tuple[float, float]:
    """The smallest and the largest; NaN if any is."""
    if values.ndim == 0:
        return float(values), float(values)
    return float(values.min()), float(values.max())


def stacked(arrays: Sequence[np.ndarray], runs: tuple[int, ...], axes: int) -> np.ndarray:
    """Arrays (..., *own) with so many axes of their own as one (N, *runs, *own)."""
    if not runs:
        return np.array(arrays)
    return np.array([np.broadcast_to(a, (*runs, *a.shape[a.ndim - axes :])) for a in arrays])


def check_row(x: np.ndarray, action: Any, dx: int, n_actions: int) -> None:
    if x.ndim == 0 or x.shape[-1] != dx:
        raise ContextWidthError(f"a context has {dx} columns here, got an array of shape {x.shape}")
    # a sum overflows where no number does: then each is looked at
    if not math.isfinite(np.add.reduce(x, axis=None)) and not np.isfinite(x).all():
        raise NotFiniteError(f"a context must be finite, got {x}")
    a = np.asarray(action)
    least, most = span(a) if a.dtype.kind in "iu" else (-1.0, 0.0)
    if least < 0 or most >= n_actions:
        raise ActionRangeError(f"an action must be one of 0, ..., {n_actions - 1}, got {action}")


# several monitors, several rounds -----------------------------------------------------------------


@lru_cache(maxsize=64)
def first_wealth(bets: Bets, drifting: bool) -> np.ndarray:
    """(E + 1,) shares of the wealth 1 before the first bet."""
    kept = 0.5 if drifting else 1e-6
    weights = np.append((1.0 - kept) * np.exp(bets.log_weights()), kept)
    weights.setflags(write=False)
    return weights


@lru_cache(maxsize=64)
def _first_wealths(bets: Bets, drifting: tuple[bool, ...]) -> np.ndarray:
    """The same of several monitors, (P, E + 1)."""
    weights = np.array([first_wealth(bets, one) for one in drifting])
    weights.setflags(write=False)
    return weights


def check_pits(pits: np.ndarray) -> np.ndarray:
    if not (pits.min() >= 0 and pits.max() <= 1):  # NaN fails both
        raise DataError(f"a probability integral transform lies in [0, 1], got {pits.tolist()}")
    return pits


def bet_together(
    monitors: Sequence[PitMonitor], pits: np.ndarray, x: np.ndarray, action: np.ndarray
) -> list[PitMonitor]:
    """The monitors (P) after T rounds with these pits (P, T, ...), contexts (T, ..., dx) and
    actions (T, ...), one after the other; all have the same moments.

    What no round before it decides is computed for all rounds at once, and what two monitors of one
    model share once. Round by round the same numbers come out bit by bit.
    """
    one, rounds, runs = monitors[0], pits.shape[1], pits.shape[2:]
    bets, early = one.bets, min(max(one.burn_in - one.n, 0), rounds)
    moments, z = one.moments.walked(np.array([bets.projected(row) for row in x]))
    if early == rounds:
        return [evolved(m, n=m.n + rounds, moments=moments) for m in monitors]
    z, action, told = z[early:], action[early:], pits[:, early:]
    # models that have not bet yet may share a trend and differ in their outcomes
    first_of: dict[tuple[int, bytes], int] = {}
    keys = [(id(m.trend), u.tobytes()) for m, u in zip(monitors, told)]
    for i, key in enumerate(keys):
        first_of.setdefault(key, i)
    row = {key: n for n, key in enumerate(first_of)}
    model, own = [row[key] for key in keys], list(first_of.values())
    column, group = bets.features(z, action)
    f = Trend.within_action(column, group)
    trend = Trend(stacked([monitors[i].trend.sums for i in own], runs, 3))
    trend, expected = trend.walked(told[own], f)
    growth = bets.growth(told[own], column, f, expected)
    wealth = stacked([m.wealth for m in monitors], runs, 1)
    first = _first_wealths(bets, tuple(m.drifting for m in monitors))
    first = first.reshape(len(first), *(1,) * len(runs), -1)
    gains, paid = np.empty((rounds - early, *wealth.shape[:-1])), growth.take(model, axis=0)
    rates = np.array([[m.rate(m.n + t) for m in monitors] for t in range(early, rounds)])
    for t, (gain, rate) in enumerate(zip(gains, rates)):
        wealth *= paid[:, t]
        np.add.reduce(wealth, axis=-1, out=gain)
        wealth /= gain[..., None]
        wealth = shared(wealth, first, rate.reshape(-1, *(1,) * wealth[0].ndim))
    total = stacked([m.log_total for m in monitors], runs, 0)
    totals = np.add.accumulate(np.concatenate([total[None], np.log(gains)]))
    peak = np.maximum(stacked([m.log_peak for m in monitors], runs, 0), totals[1:].max(axis=0))
    return [
        evolved(
            m,
            n=m.n + rounds,
            moments=moments,
            trend=trend_of[model[i]],
            wealth=wealth[i],
            log_total=totals[-1][i],
            log_peak=peak[i],
        )
        for trend_of in ([*map(Trend, trend.sums)],)
        for i, m in enumerate(monitors)
    ]
