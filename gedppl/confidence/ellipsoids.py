"""Linear-Gaussian confidence sets in closed form: e-processes that are quadratics, and ellipsoids around their mixture.

Rows are scaled to unit noise, r = phi'theta + N(0, 1), and collected in A = sum phi phi', b = sum phi r. With
score(theta) = b - A theta, mixing the likelihood ratio p(data | theta + u) / p(data | theta) over u ~ N(0, Lambda^-1) gives

    M(theta) = det(I + A Lambda^-1)^(-1/2) exp(1/2 score' (A + Lambda)^-1 score),

which under the truth theta is a nonnegative martingale that starts at 1, on adaptively collected data too. It may start
anew at any time s with a Lambda known by then, on the rows after s. So may the prior-posterior ratio, evidence / likelihood.
A weighted average of them (weights summing to 1) is one again, hence by Ville's inequality

    {theta : sum_k w_k M_k(theta) <= 1 / delta}

holds the truth at all times with probability at least 1 - delta. Every log M_k is a convex quadratic, so for any lambda on
the simplex (Jensen)  sum_k lambda_k (log M_k(theta) + log(w_k / lambda_k)) <= log(1 / delta)  is an ellipsoid around that set.
Lambda is chosen for a point on the set's edge, where the loss is small.

Axis letters: k e-processes, E ellipsoids, q free parameters.

References
----------
de la Pena, Lai, Shao, "Self-normalized processes" (2009); Abbasi-Yadkori, Pal, Szepesvari, "Improved algorithms for linear
stochastic bandits" (2011); Waudby-Smith and Ramdas, "Confidence sequences ... without replacement" (2020, the
prior-posterior ratio).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

EVIDENCE_SHARE = 0.05  # weight of the prior-posterior ratio: pays if the prior is informative and right, costs 0.05 if not
UNSEEN = 1e-12  # share of a direction's precision that comes from data, below which the data say nothing about it
MOST_TURNS = 30
BEYOND = 1e9  # half-width of an unseen direction, in working-prior standard deviations: wider than any functional's range


@dataclass(frozen=True)
class Quadratics:
    """k functions of u = theta - centre:  1/2 u'curvature u - slope'u + level."""

    curvature: np.ndarray  # (k, q, q)
    slope: np.ndarray  # (k, q)
    level: np.ndarray  # (k,)

    def __call__(self, u: np.ndarray) -> np.ndarray:
        """Values (M, k) at u (M, q)."""
        curved = np.einsum("mi,kij,mj->mk", u, self.curvature, u)
        return 0.5 * curved - u @ self.slope.T + self.level


@dataclass(frozen=True)
class Region:
    """Ellipsoids that each hold the set: theta = centre + middle_e + factor_e' v, |v| <= 1; E of them, all valid at once.

    ``factor`` has q rows for each ellipsoid; the half-width along phi is |factor_e phi|.
    """

    middle: np.ndarray  # (E, q), relative to the centre
    factor: np.ndarray  # (E, q, q)
    seen: np.ndarray  # (E, q) which rows of `factor` are bounded by data
    empty: bool  # no parameter is left: the model is misspecified (or the unlucky delta happened)


def weights(n_starts: int) -> np.ndarray:
    """Shares of 1: the prior-posterior ratio first, then 6 / (pi (k+1))^2 of the rest for start k. Sums to less than 1.

    >>> bool(weights(10_000).sum() < 1)
    True
    """
    k = np.arange(1, n_starts + 1)
    return np.append(EVIDENCE_SHARE, (1 - EVIDENCE_SHARE) * 6 / (math.pi * k) ** 2)


def log_processes(
    prior: np.ndarray,
    information: np.ndarray,
    moment: np.ndarray,
    mean: np.ndarray,
    information_at: np.ndarray,
    moment_at: np.ndarray,
    mixing: np.ndarray,
    log_det_mixing: np.ndarray,
    log_det_prior: float,
    log_det_posterior: float,
) -> Quadratics:
    """log M_k as quadratics around the posterior mean: the prior-posterior ratio, then one for each start.

    Parameters
    ----------
    prior, information, moment, mean
        Prior precision P (q, q) (prior mean 0), A (q, q), b (q,) and (P + A)^-1 b (q,) of all rows.
    information_at, moment_at
        (k, q, q) and (k, q): A and b of the rows before each start.
    mixing, log_det_mixing
        (k, q, q) and (k,): Lambda of each start and its log-determinant.
    """
    pull = prior @ mean  # = b - A mean, without the cancellation
    ratio = -0.5 * (log_det_posterior - log_det_prior) - 0.5 * mean @ pull
    after = information - information_at
    score = pull - moment_at + information_at @ mean
    total = after + mixing
    gain = np.linalg.inv(total)
    lifted = after @ gain
    level = 0.5 * np.einsum("ki,kij,kj->k", score, gain, score)
    level -= 0.5 * (np.linalg.slogdet(total)[1] - log_det_mixing)
    return Quadratics(
        np.concatenate([information[None], lifted @ after]),
        np.concatenate([pull[None], np.einsum("kij,kj->ki", lifted, score)]),
        np.append(ratio, level),
    )


def jensen_weights(base: np.ndarray, growth: np.ndarray, limit: float) -> np.ndarray:
    """Lambda on the simplex: each process's share of the mixture where it reaches the limit.

    Along an average direction log(w_k M_k) = base_k + growth_k Q / 2. Newton's method from above solves
    log sum_k exp(...) = limit for Q; the function is convex and increasing, so every iterate stays above the root.
    """
    reach = np.where(growth > UNSEEN, (limit - base) / np.maximum(growth, UNSEEN), np.inf).min() * 2
    if not 0 < reach < np.inf:
        reach = 0.0
    for _ in range(4):
        exponent = base + 0.5 * growth * reach
        top = exponent.max()
        share = np.exp(exponent - top)
        total = share.sum()
        share /= total
        step = (top + math.log(total) - limit) / max(0.5 * float(share @ growth), UNSEEN)
        if reach == 0.0 or abs(step) < 1e-3 * reach:
            break
        reach = max(reach - step, 0.0)
    return share


def enclose(
    processes: Quadratics, share: np.ndarray, delta: float, whitener: np.ndarray, ball: Quadratics | None = None
) -> Region:
    """Ellipsoids around {sum_k share_k M_k <= 1 / delta}, and around its intersection with a ball if one is declared.

    `whitener` (q, q), with whitener' whitener = (P + A)^-1: directions are judged in posterior units, so that the scale of
    a feature does not matter. The ball {ball(u) <= 0} is added with three multipliers; each sum is an outer ellipsoid.
    """
    limit = math.log(1 / delta)
    base = np.log(share) + processes.level
    curvature = whitener @ processes.curvature @ whitener.T
    slope = processes.slope @ whitener.T
    growth = np.einsum("kii->k", curvature) / len(whitener)
    lam = jensen_weights(base, growth, limit)
    for _ in range(MOST_TURNS):
        B, h, room = np.tensordot(lam, curvature, 1), lam @ slope, 2 * (limit - _average(lam, base))
        middle, factor, seen, square = _ellipsoid(B[None], h[None], np.array([room]))
        u = middle[0]
        logs = base - slope @ u + 0.5 * np.einsum("i,kij,j->k", u, curvature, u)
        top = logs.max()
        if square[0] <= 0 or top + math.log(np.exp(logs - top).sum()) <= limit:
            break
        # The middle itself is excluded: the processes disagree. Turn towards those that exclude it; if no parameter is
        # left at all, some lambda shows it.
        lam = 0.5 * lam + 0.5 * np.exp(logs - top) / np.exp(logs - top).sum()
    if ball is not None:
        multiplier = max(room, 1.0) * np.array([0.0, 0.05, 0.5, 5.0])
        middle, factor, seen, square = _ellipsoid(
            B + multiplier[:, None, None] * (whitener @ ball.curvature[0] @ whitener.T),
            h + multiplier[:, None] * (whitener @ ball.slope[0]),
            room - 2 * multiplier * ball.level[0],
        )
    return Region(middle @ whitener, factor @ whitener, seen, bool((square <= 0).any()))


def _average(lam: np.ndarray, base: np.ndarray) -> float:
    """sum_k lambda_k (base_k - log lambda_k), with 0 log 0 = 0."""
    used = lam > 0
    return float(lam[used] @ (base[used] - np.log(lam[used])))


def _ellipsoid(B: np.ndarray, h: np.ndarray, room: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """{u : u'Bu - 2h'u <= room} for E of them: middle (E, q), factor (E, q, q), seen (E, q) and squared radius (E,)."""
    value, axes = np.linalg.eigh(B)
    seen = value > UNSEEN
    inverse = np.where(seen, 1 / np.where(seen, value, 1.0), 0.0)
    along = np.einsum("eij,ei->ej", axes, h)
    square = room + (along**2 * inverse).sum(1)
    half = np.where(seen, np.sqrt(np.maximum(square, 0)[:, None] * inverse), BEYOND)
    return np.einsum("eij,ej->ei", axes, along * inverse), half[:, :, None] * np.swapaxes(axes, 1, 2), seen, square
