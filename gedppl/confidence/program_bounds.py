"""A program's functional over its plausible set: bounds today, delta bounds under past snapshots.

Axis letters: n contexts, K actions, B snapshots, D flat parameters, G grid points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit, logit

from gedppl.confidence.ascent import ascend
from gedppl.confidence.learner import Bounds, Guess, Trail
from gedppl.confidence.likelihoods import OrderedData, PredictorData
from gedppl.confidence.loc_ranges import is_plain, limits_at
from gedppl.confidence.program_sets import Plausible
from gedppl.confidence.reach import farthest
from gedppl.density import Density
from gedppl.functionals import mean
from gedppl.oracles.fits import positive_definite

if TYPE_CHECKING:
    from gedppl.confidence.programs import ProgramLearner
    from gedppl.functionals import Functional

MISSPECIFIED = "no parameter of the class explains the data as well as the predictions did: the model is misspecified"
APART = "no parameter is in every set and inside the declared bounds: the model, or a bound, does not hold"
NOT_A_CERTIFICATE = "approximation: local ascent, not a certificate"
SEARCHED = "a function of the outcome may be anything between the points of the grid it was searched on: not a certificate"
FAR = {"identity": 1e8, "logit": 60.0, "log": 60.0}  # stands for an infinite linear predictor
ARGUMENT = {  # the family's argument that the linear predictor sets, and how
    "Normal": ("loc", np.asarray),
    "Bernoulli": ("probs", expit),
    "Binomial": ("probs", expit),
    "Poisson": ("rate", np.exp),
    "Exponential": ("rate", np.exp),
    "Gamma": ("rate", np.exp),
}
GRADIENT_BUDGET = 200  # single-gradient evaluations for all K actions of a context together
GRID, ZOOMS = 33, 4
GUESS_SDS = 2.0  # half-width of `guess`, in posterior standard deviations


def bounds(learner: ProgramLearner, functional: Functional, x: np.ndarray, n_actions: int) -> Bounds:
    """See `ProgramLearner.bounds`."""
    n, K, low, high = len(x), n_actions, functional.low, functional.high
    xs, actions = np.repeat(x, K, axis=0), np.tile(np.arange(K), n)
    estimate = _values(learner, functional, np.broadcast_to(learner.theta, (n * K, learner.cls.dim)), xs, actions)
    rule = learner.rule.describe(learner.delta)
    shape = (n, K)
    empty = any(s.region.kappa <= 0 for s in learner.sets)
    exact = None if empty else _find_exactly(learner, functional, xs, actions)
    if exact is not None:
        lower, upper, witness, note = exact
        guaranteed = learner.rule.guaranteed and not _unknown_shape(functional) and not note.startswith(APART)
    elif empty or not learner.sets:
        lower, upper, witness = np.full(n * K, low), np.full(n * K, high), None
        note, guaranteed = (MISSPECIFIED, False) if empty else ("", learner.rule.guaranteed)
    else:
        lower, upper, witness, note = by_ascent(learner, functional, xs, actions)
        guaranteed = False
    return Bounds(
        estimate=np.clip(np.where(np.isnan(estimate), high, estimate), low, high).reshape(shape),
        lower=np.clip(lower, low, high).reshape(shape),
        upper=np.clip(upper, low, high).reshape(shape),
        method="ascent" if learner.sets and not empty and (exact is None or _unknown_shape(functional)) else "exact",
        guaranteed=guaranteed,
        rule=rule,
        note=note,
        witness=None if witness is None else witness.reshape(*shape, -1),
    )


def _unknown_shape(functional: Functional) -> bool:
    """A user's function of the outcome, or a functional of the user's own: between two points it may do anything."""
    return functional.fn is not None or not is_plain(functional)


def _values(learner: ProgramLearner, functional: Functional, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> np.ndarray:
    """The functional at rows, row i at its own theta[i]."""
    return np.asarray(learner.cls.values_grad(functional, theta, x, a)[0], float)


def _at_predictor(
    learner: ProgramLearner, functional: Functional, eta: np.ndarray, columns: np.ndarray, x: np.ndarray, a: np.ndarray
) -> np.ndarray:
    """The functional at linear predictors eta (G, m), offset included; columns (m, ...) as `PredictorData.columns` gives them."""
    data = learner.data
    assert isinstance(data, PredictorData)
    D, (G, m) = data.dim, eta.shape
    with np.errstate(over="ignore", invalid="ignore"):
        if functional.fn is not None:  # a user's function may be written for the program's own arrays: ask the program
            phi, offset = columns[:, :D], columns[:, D]
            steps = (eta - offset) / np.maximum(np.sum(phi**2, axis=1), 1e-300)
            theta = steps[:, :, None] * phi  # any theta with this predictor gives the same density
            return _values(learner, functional, theta.reshape(G * m, D), np.tile(x, (G, 1)), np.tile(a, G)).reshape(G, m)
        fixed = {name: columns[:, D + 1 + j] for j, name in enumerate(data.fixed_names(x, a))}
        args = {name: np.broadcast_to(value, (G, m)) for name, value in fixed.items()}
        name, link = ARGUMENT[data.predictor.family]
        return np.asarray(functional(Density(data.predictor.family, {**args, name: link(eta)}), x=x, a=a), float)


def _find_exactly(
    learner: ProgramLearner, functional: Functional, x: np.ndarray, a: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, str] | None:
    """Lower, upper, witness and note where the functional is that of one affine form of theta and the set convex; else None."""
    if not all(s.convex for s in learner.sets):
        return None
    if isinstance(learner.data, PredictorData):
        return _exact(learner, functional, x, a)
    return _exact_edge(learner, functional, x, a) if isinstance(learner.data, OrderedData) else None


# exact: one linear predictor ---------------------------------------------------------------------------------------------


def _exact(
    learner: ProgramLearner, functional: Functional, x: np.ndarray, a: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    data = learner.data
    assert isinstance(data, PredictorData)
    columns, _ = data.columns(x, a)
    phi, offset = columns[:, : data.dim], columns[:, data.dim]
    m = len(phi)
    value, theta, apart = farthest(learner, phi)
    far = FAR[data.predictor.link]
    open_end = np.stack([~np.isfinite(value[m:]), ~np.isfinite(value[:m])], axis=1)  # (m, 2): below, above
    eta_high = np.minimum(value[:m], far) + offset
    eta_low = np.maximum(-value[m:], -far) + offset
    lower, upper, at_low = _over_interval(learner, functional, columns, eta_low, eta_high, open_end, x, a)
    notes = _remarks(open_end, a, apart)
    notes += [SEARCHED] if _unknown_shape(functional) else []
    return lower, upper, np.where(at_low[:, None], theta[m:], theta[:m]), "; ".join(notes)


def _remarks(open_end: np.ndarray, a: np.ndarray, apart: bool) -> list[str]:
    if apart:
        return [APART]
    K = int(a.max()) + 1
    most = int(open_end.any(axis=1).reshape(-1, K).sum(axis=1).max())  # of contexts asked together, the least known
    return [f"{most} of {K} actions are not yet bounded by the data"] if most else []


def _over_interval(
    learner: ProgramLearner, functional: Functional, columns: np.ndarray, eta_low: np.ndarray, eta_high: np.ndarray,
    open_end: np.ndarray, x: np.ndarray, a: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Smallest and largest value over eta in [eta_low, eta_high] (m,), and whether the largest is nearer to eta_low.

    A grid with both ends and with points where the functional is known to turn, then the cells around the best point again and
    again: this finds the extremes of a functional that is monotone in eta or has one hump, as all but `expected` are in these
    families. Where an end is open, (m, 2) bool, and the functional moves towards it (or is a user's own), what lies beyond is
    unknown: the functional's own range.
    """
    m = len(columns)

    def at(eta: np.ndarray) -> np.ndarray:  # (m, G)
        return _at_predictor(learner, functional, eta.T, columns, x, a).T

    steps = np.linspace(0.0, 1.0, GRID)
    eta = eta_low[:, None] + (eta_high - eta_low)[:, None] * steps
    eta[:, -1] = eta_high
    turns = _turns(learner, functional, columns, steps, x, a)
    eta = np.sort(np.hstack([eta, np.clip(turns, eta_low[:, None], eta_high[:, None])]), axis=1)
    values = at(eta)
    slope = np.diff(values, axis=1)
    monotone = np.all(slope >= 0, axis=1) | np.all(slope <= 0, axis=1)
    out = []
    at_low = np.zeros(m, bool)
    for sign in (-1.0, 1.0):
        grid, found = eta, sign * values
        best = np.where(np.isnan(found), np.inf, found).max(axis=1)
        where = np.argmax(np.where(np.isnan(found), np.inf, found), axis=1)
        if not monotone.all():
            for _ in range(ZOOMS):
                left = np.take_along_axis(grid, np.maximum(where - 1, 0)[:, None], 1)
                right = np.take_along_axis(grid, np.minimum(where + 1, grid.shape[1] - 1)[:, None], 1)
                grid = left + (right - left) * steps[::4]
                found = sign * at(grid)
                where = np.argmax(np.where(np.isnan(found), -np.inf, found), axis=1)
                best = np.maximum(best, np.nanmax(np.where(np.isnan(found), -np.inf, found), axis=1))
        first = np.where(np.isnan(values), np.inf, sign * values)
        peak = first.max(axis=1, keepdims=True)
        flat = np.all(first == first[:, :1], axis=1)
        beyond = np.any(open_end & (first[:, [0, -1]] == peak), axis=1) & ~flat
        beyond |= open_end.any(axis=1) & _unknown_shape(functional)
        out.append(np.where(beyond | np.isinf(best), functional.high if sign > 0 else functional.low, sign * best))
        at_low = np.take_along_axis(eta, np.argmax(first, axis=1)[:, None], 1)[:, 0] < 0.5 * (eta_low + eta_high)
    return out[0], out[1], at_low


def _turns(
    learner: ProgramLearner, functional: Functional, columns: np.ndarray, steps: np.ndarray, x: np.ndarray, a: np.ndarray
) -> np.ndarray:
    """Linear predictors (m, G) among which a functional that is not monotone in eta turns; G = 0 if a plain grid will do.

    E Y^2 of a Normal is smallest at 0. The derivative of P(Y in A) by a natural parameter is P(A) (E[Y | A] - E[Y]), so that
    P(above < Y < below) is largest where E[Y] lies between the limits: a peak which a grid over a wide interval may miss.
    """
    data = learner.data
    assert isinstance(data, PredictorData)
    family, m = data.predictor.family, len(columns)
    if functional.name == "second_moment" and family == "Normal":
        return np.zeros((m, 1))
    if functional.name != "probability" or functional.above is None or functional.below is None:
        return np.zeros((m, 0))
    fixed = {name: columns[:, data.dim + 1 + j] for j, name in enumerate(data.fixed_names(x, a))}
    ends = [np.broadcast_to(_predictor_at(family, limit, fixed), m) for limit in limits_at(functional, x, a)]
    return ends[0][:, None] + (ends[1] - ends[0])[:, None] * steps


def _predictor_at(family: str, wanted: np.ndarray, fixed: dict[str, np.ndarray]) -> np.ndarray:
    """The linear predictor at which the family has this mean, or one far out if it never has."""
    if family == "Normal":
        return wanted
    if family in ("Bernoulli", "Binomial"):
        return logit(np.clip(wanted / fixed.get("total_count", np.ones(1)), 1e-300, 1 - 1e-16))
    log_mean = np.log(np.maximum(wanted, 1e-300))
    if family == "Poisson":
        return log_mean
    return np.log(fixed.get("concentration", np.ones(1))) - log_mean  # Gamma and Exponential: of the log rate


# ordered outcomes: one edge ---------------------------------------------------------------------------------------------------


def _edge_weights(functional: Functional, n_edges: int, x: np.ndarray, a: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """A functional linear in the probabilities of y = 0..C, as constant (m,) + sum_k weight (m, C) P(y <= k); else None."""
    if not is_plain(functional):
        return None
    if functional.name == "mean":
        at = np.repeat(np.arange(n_edges + 1.0)[:, None], len(a), axis=1)
    elif functional.name == "probability":
        sure = np.repeat(np.eye(n_edges + 1)[:, None], len(a), axis=1)  # (C + 1, m, C + 1)
        at = np.asarray(functional(Density("Categorical", {"probs": sure}), x=x, a=a), float)
    else:
        return None
    return at[-1], -np.diff(at, axis=0).T


def _exact_edge(
    learner: ProgramLearner, functional: Functional, x: np.ndarray, a: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, str] | None:
    """P(y <= k) grows with one edge, which is affine in theta. None if the functional weighs several edges."""
    data = learner.data
    assert isinstance(data, OrderedData)
    features, offset = data.ordered.features(x, a), data.ordered.offset(x, a)
    parts = _edge_weights(functional, offset.shape[1], x, a)
    if parts is None or np.any(np.count_nonzero(parts[1], axis=1) > 1):
        return None
    constant, weight = parts
    m = len(a)
    here = np.arange(m), np.argmax(np.abs(weight), axis=1)
    value, theta, apart = farthest(learner, features[here])
    ends = constant + weight[here] * expit(offset[here] + np.stack([-value[m:], value[:m]]))  # at the lowest edge, at the highest
    rising = weight[here] > 0
    open_end = np.stack([~np.isfinite(value[m:]), ~np.isfinite(value[:m])], axis=1)
    witness = np.where(rising[:, None], theta[:m], theta[m:])
    return ends.min(axis=0), ends.max(axis=0), witness, "; ".join(_remarks(open_end, a, apart))


# any program: ascent -------------------------------------------------------------------------------------------------------


def by_ascent(
    learner: ProgramLearner, functional: Functional, x: np.ndarray, a: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    """U = max(delta, ascent), L = min(delta, ascent), over the set whose delta bounds are narrower in sum."""
    cls, m = learner.cls, len(a)
    delta = []
    for s in learner.sets:
        value, grad = cls.values_grad(functional, np.broadcast_to(s.region.centre, (m, cls.dim)), x, a)
        grad = np.where(np.isfinite(grad), grad, 0.0)
        delta.append((np.asarray(value, float), s.region.half_width(grad), grad))
    span = functional.high - functional.low
    best = int(np.argmin([np.sum(np.minimum(half, span if np.isfinite(span) else np.inf)) for _, half, _ in delta]))
    region = learner.sets[best].region
    value, half, grad = delta[best]
    white = region.whiten(grad)
    size = np.linalg.norm(white, axis=1)
    unit = white / np.maximum(size, 1e-300)[:, None]
    sign = np.concatenate([np.ones(m), -np.ones(m)])
    rows_x, rows_a = np.vstack([x, x]), np.concatenate([a, a])
    start = region.theta(np.sqrt(2 * region.kappa) * sign[:, None] * np.vstack([unit, unit]))

    def objective(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        out, out_grad = cls.values_grad(functional, theta, rows_x, rows_a)
        return sign * np.asarray(out, float), sign[:, None] * np.asarray(out_grad, float)

    budget = GRADIENT_BUDGET * m // int(a.max() + 1)
    found = [ascend(region, objective, start, steps=max(6, budget // (2 * m) - 1))]
    known = np.full((2, m), -np.inf)  # what members of the set are known to reach, up and down
    if len(learner.candidates):  # what is left goes to a second start: the known member with the best value
        seen = np.asarray(cls.values(functional, learner.candidates, x, a), float)
        seen = np.where(np.isnan(seen), -np.inf, np.stack([seen, -seen]))
        known = seen.max(axis=1)
        left = (budget - found[0].gradients) // (2 * m) - 1
        if left >= 4 or np.any(known > found[0].value.reshape(2, m)):  # a climb that ends below a member was lost
            second = learner.candidates[np.argmax(seen, axis=1)].reshape(2 * m, -1)
            found.append(ascend(region, objective, second, steps=max(8, left)))
    reached = np.array([f.value for f in found]).reshape(-1, 2, m)  # starts x {up, down} x problems
    winner = np.argmax(reached, axis=0)  # (2, m)
    ends = np.maximum(np.take_along_axis(reached, winner[None], 0)[0], known)
    upper = np.maximum(value + half, ends[0])
    lower = np.minimum(value - half, -ends[1])
    witness = np.array([f.theta for f in found]).reshape(-1, 2, m, cls.dim)[winner[0], 0, np.arange(m)]
    blind = _flat_and_unseen(learner, learner.sets[best], half <= 1e-9 * (span if np.isfinite(span) else 1.0), x, a)
    upper = np.where(np.isfinite(upper) & ~blind, upper, functional.high)
    lower = np.where(np.isfinite(lower) & ~blind, lower, functional.low)
    spent = sum(f.gradients for f in found), sum(f.values for f in found)
    note = f"{NOT_A_CERTIFICATE} ({spent[0]} gradient and {spent[1]} value evaluations)"
    return lower, upper, witness, note


def _flat_and_unseen(learner: ProgramLearner, chosen: Plausible, flat: np.ndarray, x: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Where the functional is flat at the fit, (m,), although the outcome depends on directions that no row has seen.

    The chance of a band far from the fit has no slope there to climb by, yet an action that was never played may hit it.
    """
    if not (chosen.unseen.size and flat.any()):
        return np.zeros(len(a), bool)
    centre = np.broadcast_to(chosen.region.centre, (len(a), learner.cls.dim))
    grad = np.asarray(learner.cls.values_grad(mean(-1e300, 1e300), centre, x, a)[1], float)
    moved = np.linalg.norm(grad @ chosen.unseen, axis=1)
    return flat & ~(moved <= 1e-7 * np.linalg.norm(grad, axis=1))  # a family without a mean counts as moved


# to steer by ---------------------------------------------------------------------------------------------------------------


def guess(learner: ProgramLearner, functional: Functional, x: np.ndarray, n_actions: int) -> Guess:
    """See `ProgramLearner.guess`."""
    n, K = len(x), n_actions
    xs, actions = np.repeat(x, K, axis=0), np.tile(np.arange(K), n)
    if learner.fit is None:
        drawn = np.asarray(functional(learner.cls.density_at(learner.particles.theta, xs, actions), x=xs, a=actions), float)
        drawn = np.clip(np.where(np.isnan(drawn), functional.high, drawn), functional.low, functional.high)
        value, sd = drawn.mean(axis=0), drawn.std(axis=0)
    else:
        value, grad = learner.cls.values_grad(functional, np.broadcast_to(learner.theta, (n * K, learner.cls.dim)), xs, actions)
        value, grad = np.asarray(value, float), np.where(np.isfinite(grad), grad, 0.0)
        step = np.linalg.solve(positive_definite(learner.fit.precision), grad.T)
        sd = np.sqrt(np.maximum(np.einsum("md,dm->m", grad, step), 0.0))
    value = np.where(np.isnan(value), functional.high, value)
    return Guess(*(functional.clip(value + side * GUESS_SDS * sd).reshape(n, K) for side in (0.0, -1.0, 1.0)))


# past snapshots --------------------------------------------------------------------------------------------------------------


def trail(learner: ProgramLearner, functional: Functional, x: np.ndarray, n_actions: int) -> Trail:
    """See `ProgramLearner.trail`."""
    shots, n, K = learner.snapshots, len(x), n_actions
    B, D = shots.theta.shape
    take = np.minimum(np.arange(_padded(B)), B - 1)  # padded, so that a growing run compiles a handful of shapes
    P = len(take)
    xs, actions = np.repeat(x, K, axis=0), np.tile(np.arange(K), n)
    theta, whitener, kappa = shots.theta[take], shots.whitener[take], shots.kappa[take]
    reach = np.sqrt(2 * kappa)
    low, high = functional.low, functional.high
    if isinstance(learner.data, PredictorData):
        columns, _ = learner.data.columns(xs, actions)
        phi, offset = columns[:, :D], columns[:, D]
        centre = theta @ phi.T  # (P, nK)
        size = np.linalg.norm(np.einsum("pij,mj->pmi", whitener, phi), axis=2)
        far = FAR[learner.data.predictor.link]
        half = np.minimum(np.where(np.isfinite(reach), reach, far)[:, None] * size, far)  # unknown: replaced below
        eta = offset + np.stack([centre, centre - half, centre + half])  # (3, P, nK)
        values = _at_predictor(learner, functional, eta.reshape(3 * P, n * K), columns, xs, actions).reshape(eta.shape)
        estimate = values[0]
        lower = np.where(np.isnan(values), low, values).min(axis=0)
        upper = np.where(np.isnan(values), high, values).max(axis=0)
    elif isinstance(learner.data, OrderedData) and (known := _ordered_trail(learner, functional, xs, actions, take)) is not None:
        estimate, lower, upper = known
    else:
        points = np.repeat(theta, n * K, axis=0)
        value, grad = learner.cls.values_grad(functional, points, np.tile(xs, (P, 1)), np.tile(actions, P))
        estimate = np.asarray(value, float).reshape(P, n * K)
        grad = np.asarray(grad, float).reshape(P, n * K, D)
        size = np.linalg.norm(np.einsum("pij,pmj->pmi", whitener, grad), axis=2)
        half = np.where(np.isfinite(reach)[:, None], np.where(np.isfinite(reach), reach, 0.0)[:, None] * size, np.inf)
        lower, upper = estimate - half, estimate + half
        lower, upper = np.where(np.isnan(lower), low, lower), np.where(np.isnan(upper), high, upper)
    unknown = ~np.isfinite(kappa)[:, None]
    lower, upper = np.where(unknown, low, lower), np.where(unknown, high, upper)

    def shaped(values: np.ndarray) -> np.ndarray:
        return np.clip(values, low, high)[:B].reshape(B, n, K).transpose(1, 0, 2)

    return Trail(shaped(np.where(np.isnan(estimate), high, estimate)), shaped(lower), shaped(upper), approximate=True)


def _ordered_trail(
    learner: ProgramLearner, functional: Functional, x: np.ndarray, a: np.ndarray, take: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Estimate, lower and upper under the snapshots `take`, each (P, m), edge by edge; None if the functional is not linear."""
    assert isinstance(learner.data, OrderedData)
    shots, ordered = learner.snapshots, learner.data.ordered
    features, offset = ordered.features(x, a), ordered.offset(x, a)
    parts = _edge_weights(functional, offset.shape[1], x, a)
    if parts is None:
        return None
    constant, weight = parts
    edge = np.einsum("pj,mcj->pmc", shots.theta[take], features) + offset
    size = np.linalg.norm(np.einsum("pij,mcj->pmci", shots.whitener[take], features), axis=3)
    reach = np.sqrt(2 * shots.kappa[take])
    half = np.where(np.isfinite(reach), reach, 0.0)[:, None, None] * size  # unknown: replaced by the caller
    ends = weight * expit(np.stack([edge - half, edge, edge + half]))
    return constant + ends[1].sum(axis=2), constant + ends.min(axis=0).sum(axis=2), constant + ends.max(axis=0).sum(axis=2)


def _padded(count: int) -> int:
    size = 16
    while size < count:
        size *= 2
    return size


def squared_deviation(learner: ProgramLearner, functional: Functional, n_rows: int | None) -> float:
    """See `ProgramLearner.squared_deviation`."""
    span = functional.high - functional.low
    most = learner.n * span**2 if np.isfinite(span) else np.inf
    kappa = learner.kappa
    if learner.rows is None or not np.isfinite(kappa):
        return float(most) if learner.n else 0.0
    used = min(learner.n, 512 if n_rows is None else n_rows)
    take = np.linspace(0, learner.n - 1, 512 if used == 512 else used).astype(np.int64)
    theta = np.broadcast_to(learner.theta, (len(take), learner.cls.dim))
    grad = np.asarray(learner.cls.values_grad(functional, theta, learner.rows.x[take], learner.rows.a[take])[1], float)
    white = np.where(np.isfinite(grad), grad, 0.0) @ learner.snapshots.whitener[-1].T
    largest = float(np.linalg.eigvalsh(white.T @ white)[-1]) * learner.n / max(len(take), 1)
    return float(min(2 * kappa * largest, most))
