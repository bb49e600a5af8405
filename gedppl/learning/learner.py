"""What the algorithm asks of a learned model: take in rows, keep snapshots, bound a functional at
today's contexts.

Three learners answer this protocol: `linear_gaussian` (exact, closed form), `finite` (exact, member
list) and `programs` (any differentiable program, by ascent); a fourth, `drawn`, stands around one
of them and reads its bounds off draws. All are immutable: `absorb` and `refit` return a new learner
and leave the old one valid, so that the algorithm around them stays pure.

Axis letters: n contexts, K actions, B snapshots, D flat parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
from scipy.linalg import solve_triangular

from gedppl.errors import FamilyError, NoClosedFormError
from gedppl.learning.fits import positive_definite
from gedppl.learning.storing import storable
from gedppl.numerics.arrays import evolved
from gedppl.numerics.weighted import quantile_index
from gedppl.selection.solvers import Together

if TYPE_CHECKING:
    from gedppl.density import Density
    from gedppl.functionals import Functional
    from gedppl.learning.fits import Fit
    from gedppl.learning.storing import Reader, Tree, Writer
    from gedppl.programs.contract import DensityClass


@dataclass(frozen=True)
class DrawnValues:
    """A functional at weighted draws of the parameters: what a claim about a whole policy is
    read off.
    """

    values: np.ndarray  # (S, n, K)
    weights: np.ndarray  # (S,), which sum to one
    # of the quantile that is claimed, Monte Carlo error allowed for; above 1 there are too few
    # draws to claim one
    level: float

    def quantile(self, values: np.ndarray) -> np.ndarray:
        """Of values (S, m) at these draws: (m,)."""
        found: np.ndarray = np.take_along_axis(
            values, quantile_index(values, self.weights, self.level)[None], axis=0
        )[0]
        return found


@dataclass(frozen=True)
class UsedDraws:
    """Where the draws behind a claim are really from, and what they are worth."""

    asked: str  # the source that was asked for
    # the one that was used: another where draws of that one cannot stand for the posterior
    source: str
    size: int
    ess: float
    khat: float | None  # Pareto's shape of their weights; None without weights
    # why the range's end stands in for what would be read off them, and what to do; "" if it
    # does not
    shortage: str = ""


@dataclass(frozen=True)
class Bounds:
    """A functional's plausible range at n contexts for all K actions, over everything the data
    still allow.
    """

    estimate: np.ndarray  # (n, K) at the current fit, clipped to the functional's range
    lower: np.ndarray  # (n, K)
    upper: np.ndarray  # (n, K)
    method: str  # "exact", "outer" (certified, a little wide), "profiled", "ascent" or "sampled"
    # whether the radius rule AND the way the bound was computed are proved to cover
    guaranteed: bool
    rule: str  # the radius rule in one sentence, with its delta
    note: str = ""  # anything a reader of the certificate should know, "" if nothing
    # see `witness`; asked when that is first read
    find_witness: Callable[[], np.ndarray | None] = lambda: None
    empty: bool = False  # no parameter is left: the class, or what was declared of it, is refuted
    # (n, K) before the functional's declared range cuts it; -inf where open
    free_lower: np.ndarray | None = None
    free_upper: np.ndarray | None = None  # (n, K) inf where open
    # the posterior probability with which each upper value holds, if that is the claim
    credible: float | None = None
    # what a policy's own cost is read off, if the claim is about the policy as a whole
    drawn: DrawnValues | None = None
    used: UsedDraws | None = None  # what those draws are
    # how far one parameter attains upper values together, where that is in closed form; each holds
    together: tuple[Together, ...] = ()
    # upper values (n, K) given that of an action at most so much, (n,); see `held`
    find_held: Callable[[int, np.ndarray], np.ndarray] | None = None
    # those that declarations are held against, if not these; see `watched`
    find_watched: Callable[[], Bounds] | None = None

    def only(self, i: int) -> Bounds:
        """Range and draws at one of the contexts; what else there is stays as it is."""
        one = slice(i, i + 1)
        drawn = (
            None if self.drawn is None else replace(self.drawn, values=self.drawn.values[:, one])
        )
        return replace(
            self,
            estimate=self.estimate[one],
            lower=self.lower[one],
            upper=self.upper[one],
            drawn=drawn,
            together=tuple(form.only(one) for form in self.together),
            find_held=None,
        )

    def held(self, action: int, most: np.ndarray) -> Bounds:
        """Over the parameters alone under which this action's value is at most so much, most (n,).

        A declared bound that is true holds at the true parameter, so that it lies in what is left
        of the set. Only upper values are lowered: a bound from above says nothing of how small a
        value may be. Where nothing is left the declaration is refuted, and the set stands as it is.
        """
        forms = tuple(held_together(form, action, most) for form in self.together)
        if not forms and self.find_held is None:
            return self
        upper = self.upper if self.find_held is None else self.find_held(action, most)
        for form in forms:
            upper = np.minimum(upper, form.each)
        upper = np.minimum(self.upper, upper)
        upper = np.where(upper < self.lower, self.upper, upper)
        return evolved(self, upper=upper, together=forms, find_held=None)

    @property
    def to_keep(self) -> Bounds:
        """The same for a record, which may outlive the decision by years: without the draws, and
        without the learner that declarations are held against.
        """
        if self.drawn is None and self.find_watched is None:
            return self
        return replace(self, drawn=None, find_watched=None)

    @cached_property
    def witness(self) -> np.ndarray | None:
        """(n, K, D) flat parameters at the upper value (finite class: (n, K) member indices);
        None where there are none.
        """
        return self.find_witness()

    @cached_property
    def watched(self) -> Bounds:
        """Those that declarations are held against."""
        return self if self.find_watched is None else self.find_watched()


DEEPEST = 1 - 1e-6  # radii from the centre at which a declared value still cuts a ball


def held_together(form: Together, action: int, most: np.ndarray) -> Together:
    """Costs where that of one action, c_0, is at most so much, most (C,).

    There every cost is at most c_a - l (c_0 - most), for any l >= 0, which is again linear in the
    one parameter that all share; l is chosen for each action so that its own largest is smallest.
    """
    wall, room = form.half[:, action], most - form.middle[:, action]
    price = price_of_wall(form.half, wall[:, None], room[:, None])
    price[:, action] = 0.0
    half = form.half - price[:, :, None] * wall[:, None]
    return Together(form.middle + price * room[:, None], half)


@np.errstate(all="ignore")  # no wall at all: no number, and no price
def price_of_wall(half: np.ndarray, wall: np.ndarray, room: np.ndarray) -> np.ndarray:
    """The l >= 0 that makes |half - l wall| + l room smallest, the largest half'v over |v| <= 1
    with wall'v <= room; 0 where the wall leaves everything, or nothing. half, wall (..., r), room
    (...).
    """
    size = np.sqrt((wall * wall).sum(axis=-1))
    depth = room / size  # of the cut, in radii: -1 leaves nothing, 1 everything
    along = (half * wall).sum(axis=-1) / size
    across = np.sqrt(np.maximum((half * half).sum(axis=-1) - along * along, 0.0))
    price = (along - across * (depth / np.sqrt(1 - depth * depth))) / size
    found: np.ndarray = np.where((np.abs(depth) < DEEPEST) & (price > 0), price, 0.0)
    return found


@dataclass(frozen=True)
class Trail:
    """The same functional under every snapshot in turn: what each past round would have seen at
    today's contexts.
    """

    estimate: np.ndarray  # (n, B, K)
    # (n, B, K), already the running intersection over snapshots 0..b where the set is exact
    lower: np.ndarray
    upper: np.ndarray  # (n, B, K)
    # the bounds only steer exploration: those of today must come from `Learner.bounds`
    approximate: bool = False


@dataclass(frozen=True)
class Guess:
    """A functional's estimate and likely range: it steers exploration, and no limit rests on it."""

    estimate: np.ndarray  # (n, K)
    lower: np.ndarray  # (n, K)
    upper: np.ndarray  # (n, K)


class Learner(Protocol):
    """One model's data, fit, radius and snapshots. Immutable."""

    @property
    def n(self) -> int:
        """Rows absorbed."""
        ...

    @property
    def snapshot_sizes(self) -> np.ndarray:
        """(B,) rows that each snapshot was fitted on. Snapshot 0 exists before any row (size 0)."""
        ...

    @property
    def status(self) -> str:
        """The oracle's last word, one sentence."""
        ...

    @property
    def fit(self) -> Fit | None:
        """What the oracle last found, if there is one and it was asked."""
        ...

    def contains(self, theta: np.ndarray) -> np.ndarray:
        """Whether each theta (M, D), or member of a finite class (M,), is in the set: (M,) bool."""
        ...

    def absorb(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> Learner:
        """Take in m rows told together. Predictives are fixed before the batch: R += sum log
        q(y_i), then the rows join.

        Rows come in the order of decision ids, whatever the order in which they were told: a
        learner may use it.
        """
        ...

    def refit(self) -> Learner:
        """Fit to all rows absorbed and append a snapshot. A failed fit keeps the last good one
        and says so in `status`.
        """
        ...

    def bounds(self, functional: Functional, x: np.ndarray, n_actions: int) -> Bounds:
        """Today's bounds at contexts x (n, dx) for actions 0..K-1, under the newest snapshot
        (intersected with older).
        """
        ...

    def guess(self, functional: Functional, x: np.ndarray, n_actions: int) -> Guess:
        """Estimate and range at x, from the set where that is cheap, else a few posterior
        standard deviations.
        """
        ...

    def trail(self, functional: Functional, x: np.ndarray, n_actions: int) -> Trail:
        """Every snapshot's estimate and bounds at x; cheap enough to be called at every
        decision.
        """
        ...

    def squared_deviation(self, functional: Functional, n_rows: int | None = None) -> float:
        """sup over the confidence set of sum_i (T(theta)_i - T(theta_hat)_i)^2 over the rows
        absorbed (for the bonus weight).
        """
        ...

    # what monitors ask: no decision rests on it ---------------------------------------------------

    def has_predictive(self, x: np.ndarray) -> bool:
        """Whether outcomes at contexts x (n, dx) are single numbers whose predictive has a
        distribution function.
        """
        ...

    def predictive_cdf(
        self, x: np.ndarray, a: np.ndarray, y: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """P(Y < y) and P(Y <= y) before y is learned: x (n, dx), a (n,), y (n,) -> (n,), (n,)."""
        ...

    def log_predictive(self, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> float:
        """log of the densities of those distributions, summed over the n rows. Asked only if
        `refutable`.
        """
        ...

    @property
    def refutable(self) -> bool:
        """Whether the largest log-likelihood over the class is known: in closed form, by
        enumeration, or as it is concave.
        """
        ...

    def mark(self) -> np.ndarray:
        """Where the log-likelihood of every parameter stands, as one flat array: `top` counts
        from there.
        """
        ...

    def top(self, since: np.ndarray) -> float:
        """The largest log-likelihood of any parameter for the rows after a mark; inf where it is
        not known for certain.
        """
        ...

    # storing --------------------------------------------------------------------------------------

    def stored(self, out: Writer) -> Tree:
        """Everything that the data made of the learner, for a snapshot; see
        `gedppl.learning.storing`.
        """
        ...

    def restored(self, read: Reader, tree: Tree) -> Learner:
        """Of a learner begun afresh: the one that was `stored`."""
        ...


class BoundsMemo:
    """The bounds last found under each name: an outcome is held against those that its decision
    rested on. Replaced in one assignment, so threads may share it.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[str, tuple[Learner, tuple[Functional, int, bytes], Bounds]] = {}

    def of(
        self, name: str, learner: Learner, functional: Functional, x: np.ndarray, n_actions: int
    ) -> Bounds:
        """`learner.bounds` of a functional at x (n, dx)."""
        known, asked = self._last.get(name), (functional, n_actions, x.tobytes())
        if known is not None and known[0] is learner and known[1] == asked:
            return known[2]
        found = learner.bounds(functional, x, n_actions)
        self._last[name] = (learner, asked, found)
        return found


# ==================================================================================================
# The predictive density that a likelihood-ratio set is measured against, as a weighted set of
# parameters.
#
# Particles theta_m with weights w_m, fixed before a batch of outcomes arrives, predict it jointly
# with
#
#     q(y_1, ..., y_k) = sum_m w_m prod_i p(y_i | x_i, a_i, theta_m),
#
# then w_m is multiplied by the batch's likelihood. q is symmetric in the rows of a batch and
# integrates to one, so the product over batches divided by the truth's likelihood is a nonnegative
# martingale whatever the particles are: a poor set costs width, never coverage. (The rows of a
# batch may also have been collected one after another, each on what the earlier ones showed: every
# term of the sum is a martingale of its own.)
#
# Axis letters: M particles, n rows, D flat parameters.
# ==================================================================================================

PARTICLES = 128
FROM_PRIOR = 16
# Weight of the prior's draws beside those of a fit, at most, and times the rows behind it. Up to
# -log(1 - share) is lost at every refit, and refits come as often as rows grow by a twentieth: a
# share that stayed would be paid for ever, one that falls like 1 / n adds up to a number.
PRIOR_SHARE, PRIOR_ROWS = 0.02, 0.3
# weight at first of draws around a maximum that the declared bounds exclude
BEYOND_SHARE = 0.25
MOST_SURE = 0.99  # of the weight of either half, at a refit
PRIOR_SCALES = (0.3, 1.0, 3.0)  # of coordinates without a prior, one after another, in their units


@storable
@dataclass(frozen=True)
class Particles:
    """theta (M, D) and log weights (M,) that sum to one on the natural scale."""

    theta: np.ndarray
    log_weights: np.ndarray
    # what the rows have made of the weight of a maximum beyond the bounds, until the last refit
    beyond: float = BEYOND_SHARE
    split: bool = False  # half of the draws near the fit are around that maximum

    @property
    def inside(self) -> Particles:
        """Without the draws from beyond declared bounds: what the model as declared predicts,
        which is what monitors hold it to.
        """
        if not self.split:
            return self
        near = PARTICLES - FROM_PRIOR
        kept = np.ones(len(self.theta), bool)
        kept[1:near:2] = False
        weights = self.log_weights.copy()
        weights[:near] -= np.log1p(-self.beyond)
        weights = weights[kept]
        return Particles(self.theta[kept], weights - np.logaddexp.reduce(weights), self.beyond)

    def predict(self, rows: np.ndarray) -> tuple[float, Particles]:
        """log q of a batch, given each particle's log-likelihood of its rows (M, n), and the
        particles reweighted by it.

        A particle whose log-likelihood is not a finite number counts as density zero. That makes q
        integrate to less than one, which keeps the set valid; renormalising after the outcome was
        seen would not. If no particle is left, log q is -inf and the weights stay.
        """
        sums = rows.sum(axis=1)
        joint = self.log_weights + np.where(np.isfinite(sums), sums, -np.inf)
        if not np.isfinite(joint).any():
            return -np.inf, self
        log_q = float(np.logaddexp.reduce(joint))
        return log_q, replace(self, log_weights=joint - log_q)


def prior_draws(cls: DensityClass, n: int, seed: int, unit: np.ndarray | float = 1.0) -> np.ndarray:
    """(n, D) from the class's prior; coordinates without one are spread over several scales
    around `initial`, in units (D,).
    """
    draws = np.array(cls.draw_prior(n, seed), float)
    spread = np.resize(PRIOR_SCALES, n)[:, None] * unit
    return np.where(cls.prior_free, cls.initial + spread * (draws - cls.initial), draws)


def at_start(cls: DensityClass, seed: int, unit: np.ndarray | float = 1.0) -> Particles:
    """Before any row: draws from the prior, and the initial parameters."""
    theta = np.vstack([cls.initial, prior_draws(cls, PARTICLES - 1, seed, unit)])
    return Particles(theta, np.full(PARTICLES, -np.log(PARTICLES)))


def laplace(
    cls: DensityClass,
    theta: np.ndarray,
    precision: np.ndarray,
    seed: int,
    unit: np.ndarray | float = 1.0,
    n: int = 0,
) -> Particles:
    """After a fit to n rows: theta, draws from N(theta, precision^-1) in opposite pairs, and a few
    from the prior.
    """
    pairs = (PARTICLES - FROM_PRIOR - 1) // 2 + 1
    base = np.random.default_rng(seed).standard_normal((pairs, cls.dim))  # the same at every refit
    chol = np.linalg.cholesky(positive_definite(precision))
    steps = solve_triangular(chol, base.T, lower=True, trans=1).T
    near = np.vstack([theta[None], theta + steps, theta - steps])[: PARTICLES - FROM_PRIOR]
    draws = np.vstack([near, prior_draws(cls, FROM_PRIOR, seed + 1, unit)])
    return Particles(draws, _mostly_near(n))


def _mostly_near(n: int) -> np.ndarray:
    """(M,) log weights of draws around a fit to n rows, followed by the prior's."""
    near, share = PARTICLES - FROM_PRIOR, min(PRIOR_SHARE, PRIOR_ROWS / max(n, 1))
    found: np.ndarray = np.log(
        np.repeat([(1 - share) / near, share / FROM_PRIOR], [near, FROM_PRIOR])
    )
    return found


def drawn(
    cls: DensityClass,
    theta: np.ndarray,
    sampled: np.ndarray,
    seed: int,
    unit: np.ndarray | float = 1.0,
    n: int = 0,
) -> Particles:
    """After a fit to n rows: theta, draws (M', D) from any source, and a few from the prior."""
    room = PARTICLES - FROM_PRIOR - 1
    every = np.vstack(
        [
            theta[None],
            np.resize(sampled, (room, cls.dim)),
            prior_draws(cls, FROM_PRIOR, seed + 1, unit),
        ]
    )
    return Particles(every, _mostly_near(n))


def beyond(held: Particles, free: tuple[np.ndarray, np.ndarray], seed: int) -> Particles:
    """Draws near a fit that declared bounds hold back; every other one is taken from around the
    maximum beyond them instead.

    Predicted from inside the bounds alone, no row would count as evidence against these: the set
    would hold some parameter inside them whatever the rows say. The weight of either half goes on
    from refit to refit, so that right bounds cost -log(1 - BEYOND_SHARE) nats in all.
    """
    near = PARTICLES - FROM_PRIOR
    outside = np.arange(near) % 2 == 1
    theta, log_weights = held.theta.copy(), held.log_weights.copy()
    theta[:near][outside] = draws(*free, int(outside.sum()), seed)
    share = np.where(outside, held.beyond / outside.sum(), (1 - held.beyond) / (~outside).sum())
    log_weights[:near] = np.log(np.exp(log_weights[:near]).sum() * share)
    return replace(held, theta=theta, log_weights=log_weights, split=True)


def learned_share(before: Particles) -> float:
    """The weight that the maximum beyond the bounds has by now, beside the fit inside them."""
    if not before.split:
        return before.beyond
    weights = np.exp(before.log_weights[: PARTICLES - FROM_PRIOR])
    total = float(weights.sum())
    share = float(weights[1::2].sum()) / total if total > 0 else before.beyond
    return float(np.clip(share, 1 - MOST_SURE, MOST_SURE))


def draws(theta: np.ndarray, precision: np.ndarray, n: int, seed: int) -> np.ndarray:
    """n draws (n, D) from N(theta, precision^-1)."""
    chol = np.linalg.cholesky(positive_definite(precision))
    base = np.random.default_rng(seed).standard_normal((n, len(theta)))
    found: np.ndarray = theta + solve_triangular(chol, base.T, lower=True, trans=1).T
    return found


# mixtures -----------------------------------------------------------------------------------------


def mixed_cdf(
    parts: Sequence[tuple[np.ndarray, Density]], y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """P(Y < y) and P(Y <= y) of a mixture: weights (M,) and densities of batch (M, n), part by
    part; y (n,).
    """
    return _mixed(parts, np.nextafter(y, -np.inf)), _mixed(parts, y)


def _mixed(parts: Sequence[tuple[np.ndarray, Density]], y: np.ndarray) -> np.ndarray:
    total = np.zeros(len(y))
    for weights, density in parts:
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            cdf = np.broadcast_to(np.asarray(density.cdf(y[None]), float), (len(weights), len(y)))
        total += np.sum(np.where(weights[:, None] > 0, weights[:, None] * cdf, 0.0), axis=0)
    return total


def mixed_log_density(log_weights: np.ndarray, rows: np.ndarray) -> float:
    """sum_i log sum_m w_m p_m(y_i), from log weights (M,) and log densities (M, n); no number
    counts as density zero.
    """
    with np.errstate(divide="ignore"):
        return float(
            np.sum(
                np.logaddexp.reduce(
                    log_weights[:, None] + np.where(np.isnan(rows), -np.inf, rows), axis=0
                )
            )
        )


def have_cdfs(densities: Sequence[Density]) -> bool:
    """Whether these are densities of one number each, with a distribution function."""
    if not all(d.is_scalar for d in densities):
        return False
    try:
        return all(np.isfinite(np.asarray(d.cdf(0.0), float)).all() for d in densities)
    except (FamilyError, NoClosedFormError):
        return False


# rows that speak about an action; which there are is read in `groups`


@storable
@dataclass(frozen=True)
class Group:
    """Rows that form an e-process of their own: those of some actions, or all."""

    actions: tuple[int, ...] | None  # None: all rows
    share: float  # of delta
    size: int  # parameters that these actions depend on

    def rows(self, a: np.ndarray) -> np.ndarray:
        """Which of the rows with actions a (n,) belong to it, (n,) bool."""
        if self.actions is None:
            return np.ones(len(a), bool)
        return np.array([action in self.actions for action in a.tolist()], bool)

    def __str__(self) -> str:
        if self.actions is None:
            return f"all rows ({self.size} parameters)"
        noun = "action" if len(self.actions) == 1 else "actions"
        return f"{noun} {', '.join(map(str, self.actions))} ({self.size} parameters)"
