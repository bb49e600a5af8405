"""From evidence to sets: which starts of the e-process to use, and the region of parameters each leaves plausible.

Axis letters: M parameter settings, n rows, D flat parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gedppl.density import Density
from gedppl.divergences import hellinger2, l2_squared, log_affinity, total_variation
from gedppl.errors import NoClosedFormError
from gedppl.learning.ascent import Region
from gedppl.learning.likelihoods import TOP, Data, PredictorData, climb
from gedppl.learning.radius import LikelihoodRatio, Rule, View
from gedppl.learning.storing import Node, Reader, Tree, Writer, storable
from gedppl.oracles.fits import RANK_TOLERANCE, decrement, symmetric, units
from gedppl.rows import Rows

if TYPE_CHECKING:
    from gedppl.classes import DensityClass

FIRST_RESTART, SPACING = 16, 4


@storable
@dataclass(frozen=True)
class Start:
    """A time at which the likelihood ratio starts anew: its number k, the rows before it, and R then."""

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
        return leaves | np.any(phi[:, self.untouched] != 0, axis=1)


@dataclass(frozen=True)
class Plausible:
    """One region of plausible parameters, from the rows after a start."""

    start: int
    data: Data
    region: Region
    unseen: Unseen
    convex: bool  # a concave slack: linear objectives can be bounded exactly
    refuted: bool = False  # proved to have no member: the top of a concave log-likelihood lies below the threshold
    threshold: float | None = None  # of the log-likelihood; None where the set is cut out by something else

    def stored(self, out: Writer) -> Node:
        if self.threshold is None:
            return out.left_out("a divergence ball around a program")
        region = [out.node(part) for part in (self.region.centre, self.region.chol, float(self.region.kappa))]
        unseen = [out.array(part) for part in (self.unseen.basis, self.unseen.unit, self.unseen.untouched)]
        kept = {"start": self.start, "n": self.data.n, "threshold": float(self.threshold), "refuted": self.refuted}
        return kept | {"region": region, "unseen": unseen}

    @classmethod
    def restored(cls, data: Data, read: Reader, tree: Tree) -> Plausible:
        centre, chol, kappa = (read.node(n) for n in tree["region"])
        start = tree["start"]
        made = plausible(data.between(start, start + tree["n"]), start, centre, tree["threshold"])
        region = replace(made.region, centre=centre, chol=chol, kappa=kappa)
        unseen = Unseen(*(read.array(part) for part in tree["unseen"]))
        return replace(made, region=region, unseen=unseen, refuted=bool(tree["refuted"]))


def next_starts(starts: tuple[Start, ...], n: int, evidence: float, rule: Rule) -> tuple[Start, ...]:
    """The starts after n rows: a new one once n has reached 16, 64, 256, ... A time fixed by the rows seen, so valid.

    If a batch was impossible under the predictive (R = -inf) every earlier start is void: its set is everything.
    """
    number = starts[-1].k + 1 if starts else 0
    if evidence == -math.inf:
        return (Start(number, n, 0.0),) if isinstance(rule, LikelihoodRatio) and rule.restarts else ()
    if not (isinstance(rule, LikelihoodRatio) and rule.restarts) or not starts:
        return starts
    due = FIRST_RESTART
    while due <= starts[-1].n:
        due *= SPACING
    return (*starts, Start(number, n, evidence)) if n >= due else starts


def thresholds(starts: Sequence[Start], evidence: float, rule: LikelihoodRatio, delta: float) -> np.ndarray:
    """c_s = (R_t - R_s) - log(1/delta_s) for every start."""
    return np.array([evidence - s.evidence + math.log(rule.level(s.k, delta)) for s in starts])


def within(
    data: Data, starts: Sequence[Start], evidence: float, rule: LikelihoodRatio, delta: float, theta: np.ndarray
) -> np.ndarray:
    """Whether each theta (M, D) lies in the likelihood-ratio set of every start, by the definition."""
    inside = np.ones(len(theta), bool)
    limits = thresholds(starts, evidence, rule, delta)
    edges = [*(s.n for s in starts), data.n]
    tail = np.zeros(len(theta))
    for i in range(len(starts) - 1, -1, -1):
        tail = tail + data.between(edges[i], edges[i + 1]).value(theta)
        inside &= tail >= limits[i]
    return inside


def likelihood_sets(
    data: Data, starts: Sequence[Start], evidence: float, rule: LikelihoodRatio, delta: float, near: np.ndarray
) -> tuple[Plausible, ...]:
    """The set of the first start, and the one of the later start that looks narrowest, if it is narrower.

    Later starts are compared by a Newton step from the top of the whole likelihood: the width is proportional to
    kappa_s tr(I_s^-1 I_0). Leaving starts out is always valid; it keeps the cost of a bound at two sets at most.
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
    if best is None or (first.region.kappa > 0 and not first.unseen.any and scores[best] >= first.region.kappa * D):
        return (first,)
    later = plausible(data.between(starts[best].n, data.n), starts[best].n, centre, float(limits[best]))
    return (first, later)


def plausible(data: Data, start: int, near: np.ndarray, threshold: float, drop: float | None = None) -> Plausible:
    """{theta : log-likelihood of data >= threshold}, centred at its top; with `drop`, threshold = top - drop."""
    spare = float(data.value(near[None])[0]) - threshold
    if drop is None and spare > 0 and not data.concave:
        # On separable data a likelihood has no top, and far out every functional is flat: an ascent from there sees nothing.
        centre = climb(data, near, enough=max(TOP, 0.02 * spare), far=1.0)
    else:
        centre = climb(data, near)
    top = float(data.value(centre[None])[0])
    if drop is not None:
        threshold = top - drop

    def slack(theta: np.ndarray) -> np.ndarray:
        return _outside_if_nan(data.value(theta) - threshold)

    def slack_grad(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, grad = data.value_grad(theta)
        return _outside_if_nan(value - threshold), grad

    information = data.information(centre)
    chol, unseen = metric(information)
    region = Region(centre, chol, top - threshold, slack, slack_grad)
    # A local climb proves nothing of the top. A concave one is within about twice its decrement once that is small.
    lacking = decrement(data.value_grad(centre[None])[1][0], information)
    refuted = data.concave and data.smooth and lacking < 0.1 and region.kappa < -2 * lacking - TOP
    return Plausible(start, data, region, unseen, data.concave, refuted, threshold)


def ball(data: Data, centre: np.ndarray, radius: float, divergence: Callable[[np.ndarray], np.ndarray]) -> Plausible:
    """{theta : divergence(theta) <= radius}; divergence sums D^2(centre, theta) over rows.

    Near the centre sum H^2 = 1/8 d'Id, so that in the units of a log-likelihood drop the radius is 4 r. The gradient is that
    of the quadratic; membership is decided by the divergence itself.
    """
    scale = 4.0
    round_it = ellipsoid(data, centre, scale * radius)

    def slack(theta: np.ndarray) -> np.ndarray:
        return _outside_if_nan(scale * (radius - divergence(theta)))

    def slack_grad(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return slack(theta), round_it.region.slack_grad(theta)[1]

    return replace(round_it, region=replace(round_it.region, slack=slack, slack_grad=slack_grad), convex=False, threshold=None)


def ellipsoid(data: Data, centre: np.ndarray, drop: float) -> Plausible:
    """{theta : 1/2 (theta - centre)' I (theta - centre) <= drop}, I the information at the centre."""
    information = data.information(centre)
    chol, unseen = metric(information)

    def slack_grad(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        pull = (theta - centre) @ information
        return _outside_if_nan(drop - 0.5 * np.sum(pull * (theta - centre), axis=1)), -pull

    return Plausible(0, data, Region(centre, chol, drop, lambda theta: slack_grad(theta)[0], slack_grad), unseen, convex=True)


def metric(information: np.ndarray) -> tuple[np.ndarray, Unseen]:
    """A Cholesky factor of the information made positive definite, and the directions it does not see.

    Both are found in the coordinates' own units (see `units`), so that a column in large numbers hides none in small ones.
    """
    unit = units(information)
    values, vectors = np.linalg.eigh(symmetric(information) / np.outer(unit, unit))
    top = float(np.abs(values).max(initial=0.0)) or 1.0  # nothing seen at all: any metric will do
    unseen = np.abs(values) <= RANK_TOLERANCE * top
    lifted = np.where(unseen, RANK_TOLERANCE * top, np.maximum(np.abs(values), RANK_TOLERANCE * top))
    chol = unit[:, None] * np.linalg.cholesky((vectors * lifted) @ vectors.T)
    return chol, Unseen(vectors[:, unseen], unit, np.diag(information) == 0)


def _outside_if_nan(slack: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(slack), -np.inf, slack)


# what a rule may look at ------------------------------------------------------------------------------------------------


def summed_divergence(cls: DensityClass, rows: Rows, centre: np.ndarray, name: str) -> Callable[[np.ndarray], np.ndarray]:
    """theta (M, D) -> sum_i D^2(centre, theta)_i (M,)."""

    def total(theta: np.ndarray) -> np.ndarray:
        p = cls.density_at(centre, rows.x, rows.a)
        most = max(1, 200_000 // max(rows.n, 1))
        parts = [cls.density_at(theta[i : i + most], rows.x, rows.a) for i in range(0, len(theta), most)]
        return np.concatenate([row_divergence(name, p, q).sum(axis=-1) for q in parts])

    return total


def row_divergence(name: str, p: Density, q: Density) -> np.ndarray:
    """D^2 by row."""
    if name == "total_variation2":
        return total_variation(p, q).value ** 2
    if name == "l2":
        return l2_squared(p, q).value
    squared = hellinger2(p, q).value
    if name == "hellinger2":
        return squared
    try:  # H^2 rounds to 1 where the affinity is tiny
        return -np.asarray(log_affinity(p, q))
    except NoClosedFormError:
        return -np.log1p(-np.minimum(squared, 1 - 1e-15))


def view_of(cls: DensityClass, data: Data, rows: Rows, centre: np.ndarray, delta: float, seed: int) -> View:
    """What a radius rule may look at, for a parametric class."""
    scale = None
    if isinstance(data, PredictorData) and cls.predictor is not None and cls.predictor.family == "Normal":
        scale = float(np.max(data.fixed()["scale"]))
    return View(
        n=rows.n,
        delta=delta,
        dim=cls.dim,
        information=data.information(centre),
        scale=scale,
        summed_divergence=lambda name, theta: summed_divergence(cls, rows, centre, name)(theta),
        refits=(lambda n: bootstrap(data, centre, n, seed + 11)) if isinstance(data, PredictorData) else None,
    )


def bootstrap(data: PredictorData, centre: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Fits (n, D) to outcomes simulated from centre at the same rows."""
    rng, table = np.random.default_rng(seed), data.table
    assert table is not None
    density = data.density(data.features @ centre + table.x[:, data.dim], data.fixed())
    out = []
    for y in density.sample(int(rng.integers(2**31)), n):
        simulated = PredictorData(data.predictor, data.dim, type(table).of(table.x, table.a, y), data.names)
        out.append(climb(simulated, centre))
    return np.array(out)


def concave_top(data: PredictorData, near: np.ndarray) -> float:
    """The top of a concave log-likelihood, and what a last Newton step would still promise; inf if the climb did not settle."""
    if data.table is None or not data.n:
        return 0.0
    unit = np.sqrt(np.mean(data.features**2, axis=0))  # a climb leaves directions of little curvature alone
    unit = np.where(unit > 0, unit, 1.0)
    table = data.table.x.copy()
    table[:, : data.dim] /= unit
    scaled = PredictorData(data.predictor, data.dim, Rows.of(table, data.table.a, data.table.y), data.names)
    theta = climb(scaled, near * unit, steps=100, enough=1e-9)
    value, grad = (part[0] for part in scaled.value_grad(theta[None]))
    values, vectors = np.linalg.eigh(scaled.information(theta))
    left = np.sum((vectors.T @ grad) ** 2 / np.maximum(values, max(1e-9 * float(values.max()), 1e-300)))
    return float(value + left) if left < 1e-3 else np.inf
