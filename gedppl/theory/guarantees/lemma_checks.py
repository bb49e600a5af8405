"""The lemmas of `gedppl.theory.eluder.lemmas`, looked up on a finished run: `check_lemmas`.

The sets are rebuilt from the run's own rounds, one after the other, together with their amplitude
at the point played. Axis letters: T rounds, M members, U distinct points, d parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gedppl.errors import SettingError
from gedppl.problem import UTILITY, Problem
from gedppl.programs.contract import DensityClass, MemberList
from gedppl.showing import Spoken
from gedppl.theory import eluder
from gedppl.theory.eluder.lemmas import (
    gaussian_amplitude,
    potential,
    potential_bound,
    printed_rounds_above_bound,
    rounds_above_bound,
    width_sum_bound,
)
from gedppl.theory.guarantees.class_constants import norm_of

SETS = ("ball", "likelihood_ratio")
SCALES = (0.05, 0.1, 0.2, 0.4, 0.8)
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Count:
    """Rounds with amplitude above a scale, the bound, and the bound as printed (which is false)."""

    eps: float
    rounds: int
    dimension: float
    bound: float
    printed: float


@dataclass(frozen=True, repr=False)
class LemmaCheck(Spoken):
    """What a run did, beside what the lemmas allow. ``print`` it."""

    stream: str
    amplitudes: np.ndarray  # (T,)
    radius: float  # r_T
    counts: tuple[Count, ...]
    width_sum_bound: float
    potential: float
    potential_bound: float

    @property
    def width_sum(self) -> float:
        return float(self.amplitudes.sum())

    @property
    def violations(self) -> tuple[str, ...]:
        """A sentence for every lemma that the run contradicts; empty if all hold."""
        found = [
            f"{c.rounds} rounds with amplitude above {c.eps:g}, bound {c.bound:g}"
            for c in self.counts
            if c.rounds > c.bound
        ]
        if self.width_sum > self.width_sum_bound + TOLERANCE:
            found.append(f"amplitudes sum to {self.width_sum:g}, bound {self.width_sum_bound:g}")
        if self.potential > self.potential_bound + TOLERANCE:
            found.append(
                f"inverse counts sum to {self.potential:g}, bound {self.potential_bound:g}"
            )
        return tuple(found)

    @property
    def holds(self) -> bool:
        return not self.violations

    def __str__(self) -> str:
        lines = [
            f"lemmas on {len(self.amplitudes)} rounds of {self.stream!r}, r_T = {self.radius:.4g}"
        ]
        lines += [
            f"  rounds with amplitude > {c.eps:<5g} {c.rounds:>6}  <= {c.bound:<10.4g} (dim "
            f"{c.dimension:g}; printed "
            f"{c.printed:.4g})"
            for c in self.counts
        ]
        lines.append(
            f"  sum of amplitudes       {self.width_sum:>12.4g}  <= {self.width_sum_bound:.4g}"
        )
        lines.append(
            f"  sum of inverse counts   {self.potential:>12.4g}  <= {self.potential_bound:.4g}"
        )
        return "\n".join([*lines, *(f"VIOLATED: {v}" for v in self.violations)])


# of every round, radius, dimensions, the one at the end
Amplitudes = tuple[np.ndarray, float, list[float], float]


def check_lemmas(
    run: Any,
    stream: str | None = None,
    *,
    delta: float = 0.05,
    sets: str = "ball",
    eps: Sequence[float] = SCALES,
) -> LemmaCheck:
    """Rebuild the sets of a finished `Run` and compare their amplitudes with the lemmas.

    Parameters
    ----------
    run
        From `simulate`, in an environment that knows the truth.
    stream
        Which outcome's class: ``"utility"`` or a constraint's; the first learned constraint by
        default.
    sets
        ``"ball"``: {g : sum H^2(g, g_hat) <= Est}, the lemmas' own form, for which they hold on
        every sequence of rounds. ``"likelihood_ratio"``: the set the agent uses for a finite class,
        with r = 1.5 log(M/delta) around the truth; then they hold with probability 1 - 2 delta.
    delta
        Of the sets.
    eps
        Amplitudes whose rounds are counted.

    Notes
    -----
    With w_t the amplitude of the set of round t at the point played, r its squared radius:

        rounds with w_t > eps  <=  (4 r / eps^2 + 1) dim(eps)
        sum_t w_t              <=  1/T + min(dim, T) + 4 sqrt(dim r T),    dim at scale 1/T^2
        sum_t 1 / (N_t + 1)    <=  K + K log(T/K)

    For finite classes (exact dimension up to 12 distinct points, else the smaller number of points
    and pairs) and for linear-Gaussian ones (the theorem's dimension, an ellipsoid with the radius
    of the prior-posterior ratio). Rounds whose outcome the model did not learn from are left out.
    Under Hellinger distance. Not guaranteed: that a run which stays below shows anything of the
    others.

    References
    ----------
    Hu, Simchi-Levi and Azizan, "Constrained Contextual Online Decision Making: A Unified
    Framework", lemmas on the generalized eluder dimension and potential lemma; the first of them is
    false as printed, with 4 sqrt(r) / eps.

    Examples
    --------
    >>> run = ged.simulate(problem, world, ged.GEDUCB(problem), 20, seed=1)
    >>> found = ged.check_lemmas(run)
    >>> found.holds, found.stream
    (True, 'utility')
    """
    if sets not in SETS:
        raise SettingError(f"sets must be one of {', '.join(SETS)}, got {sets!r}")
    problem: Problem = run.problem
    if problem.reveals is not None:
        raise SettingError(
            "check_lemmas is for bandit feedback: this problem reveals outcomes of "
            "actions not played"
        )
    names = list(problem.streams)
    name = stream if stream is not None else (names[1] if len(names) > 1 else names[0])
    if name not in names:
        raise SettingError(f"stream must be one of {names}, got {name!r}")
    cls = problem.streams[name]
    x, a, y = _rows(run, name)

    def parametric(cls: DensityClass) -> Amplitudes:
        if cls.predictor is None or cls.predictor.family != "Normal" or sets != "ball":
            raise SettingError(
                "check_lemmas knows finite classes, and balls of linear-Gaussian "
                f"ones; {cls!r} is neither"
            )
        return _linear_gaussian(cls, x, a, delta, eps)

    amplitudes, radius, dims, at_end = cls.visit(
        lambda members: _finite(members, x, a, y, delta, sets, eps), parametric
    )
    counts = tuple(
        Count(
            eps=float(e),
            rounds=int((amplitudes > e).sum()),
            dimension=dim,
            bound=rounds_above_bound(radius, e, dim),
            printed=printed_rounds_above_bound(radius, e, dim),
        )
        for e, dim in zip(eps, dims)
    )
    return LemmaCheck(
        stream=name,
        amplitudes=amplitudes,
        radius=radius,
        counts=counts,
        width_sum_bound=width_sum_bound(radius, at_end, len(amplitudes)),
        potential=potential(run.action),
        potential_bound=potential_bound(len(run), problem.n_actions),
    )


def _rows(run: Any, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows that the model of this outcome learned from, in order."""
    problem, rows = run.problem, []
    for x, action, y, z in zip(run.x, run.action, run.y, run.z):
        value = y if name == UTILITY else z.get(name) if isinstance(z, Mapping) else z
        if value is not None and (problem.learn_safe or action != problem.safe_action):
            rows.append((x, action, float(value)))
    if not rows:
        raise SettingError(f"the run has no outcome of {name!r} to rebuild its sets from")
    xs, actions, values = zip(*rows)
    return np.stack(xs), np.array(actions, np.int64), np.array(values)


def _finite(
    cls: MemberList,
    x: np.ndarray,
    a: np.ndarray,
    y: np.ndarray,
    delta: float,
    sets: str,
    eps: Sequence[float],
) -> Amplitudes:
    M, T = int(cls.size), len(a)
    points, where = np.unique(np.column_stack([x, a]), axis=0, return_inverse=True)
    where = where.reshape(-1)
    pairs = eluder.class_divergences(cls, points[:, :-1], points[:, -1].astype(np.int64))  # (P, U)
    table = np.zeros((M, M, len(points)))
    table[np.triu_indices(M, 1)] = pairs
    table += table.transpose(1, 0, 2)
    likelihood = np.cumsum(np.asarray(cls.log_likelihood(cls.every, x, a, y), float), axis=1)
    likelihood = np.concatenate([np.zeros((M, 1)), likelihood[:, :-1]], axis=1)  # before each round
    log_size = math.log(M / delta)
    counts = np.zeros(len(points))
    amplitudes = np.empty(T)
    for t in range(T):
        if sets == "ball":
            plausible = table[int(np.argmax(likelihood[:, t]))] @ counts <= log_size
        else:
            evidence = np.logaddexp.reduce(likelihood[:, t]) - math.log(M)
            plausible = likelihood[:, t] >= evidence - math.log(1 / delta)
        inside = np.flatnonzero(plausible)
        amplitudes[t] = math.sqrt(table[np.ix_(inside, inside, where[t : t + 1])].max(initial=0.0))
        counts[where[t]] += 1
    exact = len(points) <= eluder.EXACT_POINTS

    def dimension(e: float) -> float:
        return eluder.dimension(pairs, e, "exact") if exact else eluder.upper_bound(pairs, e)

    radius = log_size if sets == "ball" else 1.5 * log_size
    return amplitudes, radius, [dimension(e) for e in eps], dimension(1 / T**2)


def _linear_gaussian(
    cls: Any, x: np.ndarray, a: np.ndarray, delta: float, eps: Sequence[float]
) -> Amplitudes:
    """{|theta - centre|_V^2 <= rho^2}, V = lambda I + sum phi phi' in units of the noise: sum
    H^2 <= rho^2 / 8 inside it.
    """
    scale = np.broadcast_to(np.asarray(cls.predictor.fixed(x, a)["scale"], float), (len(a),))
    phi = np.asarray(cls.predictor.features(x, a), float) / scale[:, None]
    d, norm = cls.dim, norm_of(cls, "the class")
    size = float(np.linalg.norm(phi, axis=1).max())
    V = np.eye(d) * d / norm**2
    log_det = np.linalg.slogdet(V)[1]
    amplitudes = np.empty(len(a))
    for t, row in enumerate(phi):
        rho2 = 2 * math.log(1 / delta) + np.linalg.slogdet(V)[1] - log_det + d
        half = min(
            math.sqrt(rho2 * float(row @ np.linalg.solve(V, row))),
            norm * float(np.linalg.norm(row)),
        )
        amplitudes[t] = gaussian_amplitude(2 * half, 1.0)
        V = V + np.outer(row, row)

    def dimension(e: float) -> float:
        return eluder.bounds.gaussian_linear(d, norm, size, 1.0, e).dimension

    return amplitudes, rho2 / 8, [dimension(e) for e in eps], dimension(1 / len(a) ** 2)
