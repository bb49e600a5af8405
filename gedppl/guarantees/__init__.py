"""What the theorem promises before a single round: `guarantee`, and how a finished run compares: `check_guarantee`.

With probability 1 - delta/2 every policy keeps every limit. The regret of T rounds is at most

    2 beta_T (K + K log(T/K))                                   exploration bonus, by the potential lemma
    + 2 K sum_t beta_t / t                                      slack of the estimate
    + sum_j alpha_j L_j (2 S_j + 1.255 log(1/delta_j)),         width of each constraint's set,
      S_j = 1/T + min(dim_j, T) + 4 sqrt(dim_j r_j T),

with beta_t = 1/2 sqrt(Q_t t / K), alpha_j = (u - r_0) / (tau_j - c_0j), dim_j the generalized eluder dimension at scale 1/T^2
and r_j the squared radius of the set. (Hu, Simchi-Levi and Azizan, "Constrained Contextual Online Decision Making: A Unified
Framework", main theorem, with its constants corrected: r_j and L_j are missing in print, and the step from realised widths to
expected ones costs the factor 2 and the 1.255 log term.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gedppl.eluder.lemmas import expected_width_sum, potential_bound, width_sum_bound
from gedppl.errors import SettingError, ShapeError, UnknownTruthError
from gedppl.ged_ucb import delta_shares
from gedppl.guarantees.class_constants import ClassConstants, class_constants
from gedppl.problem import UTILITY, Constraint, Problem
from gedppl.settings import settings

SUMMED = 1_000_000  # rounds up to which sum beta_t / t is added up; beyond it is bounded
HORIZONS = 60  # doublings of T tried when looking for the first bound below the trivial one
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Term:
    """One summand of the regret bound."""

    name: str
    value: float
    formula: str
    numbers: str


@dataclass(frozen=True)
class Guarantee:
    """A regret bound term by term, and the feasibility statement. ``print`` it."""

    rounds: int
    delta: float
    terms: tuple[Term, ...]
    trivial: float  # T times the utility's range: no policy can do worse
    feasibility: str
    feasibility_probability: float
    regret_probability: float
    informative_from: int | None  # the first horizon, up to a factor of 2, whose bound is below the trivial one
    assumptions: tuple[str, ...]
    proved: bool  # whether the constants are proved for the sets the agent uses

    @property
    def regret(self) -> float:
        """The bound: the sum of the terms."""
        return sum(term.value for term in self.terms)

    @property
    def vacuous(self) -> bool:
        """Whether the bound says no more than that a round loses at most the utility's range."""
        return not self.regret < self.trivial

    @property
    def dominant(self) -> Term:
        """The largest term."""
        return max(self.terms, key=lambda term: term.value)

    def __str__(self) -> str:
        lines = [f"guarantee for {self.rounds} rounds at delta = {self.delta:g}", f"feasibility: {self.feasibility}"]
        lines.append(f"regret: at most {self.regret:.4g} with probability at least {self.regret_probability:g}, of which")
        width = max(len(term.name) for term in self.terms)
        for term in self.terms:
            share = term.value / self.regret if math.isfinite(self.regret) and self.regret else math.nan
            lines.append(f"  {term.name:<{width}}  {term.value:>10.4g}  {share:>4.0%}  {term.formula}; {term.numbers}")
        lines.append(f"  dominated by: {self.dominant.name}")
        if self.vacuous:
            when = (
                "no horizon was found at which it says more"
                if self.informative_from is None
                else f"it says more from about {self.informative_from:.2g} rounds on"
            )
            lines.append(
                f"VACUOUS: {self.rounds} rounds cannot lose more than {self.trivial:.4g} whatever is played; {when}. Feasibility "
                "does not depend on it."
            )
        else:
            lines.append(f"  against {self.trivial:.4g} that {self.rounds} rounds can lose at most")
        if not self.proved:
            lines.append("not every constant is proved for the sets that the agent uses: see below")
        lines += [f"assumes {note}" for note in self.assumptions]
        return "\n".join(lines)


def guarantee(
    problem: Problem,
    rounds: int,
    delta: float = 0.05,
    contexts: Any = None,
    *,
    constants: Mapping[str, ClassConstants] | None = None,
) -> Guarantee:
    """The corrected theorem's regret bound and feasibility statement for T rounds, from the declaration alone.

    Parameters
    ----------
    rounds
        T.
    delta
        As passed to the agent.
    contexts
        (n, dx): the contexts there are, or a sample whose features are as large as any. Needed where the safe action's
        values are functions of the context.
    constants
        By outcome (``"utility"`` or a constraint's name), for classes whose constants the library does not know or knows
        less well than you.

    Notes
    -----
    The regret bound is for ``GEDUCB(mode="theory", growth=1, exact_rounds=T)``: a fit in every round, every past round
    replayed and the theorem's exploration weights. Other modes explore less or refit less often, which usually lowers the
    regret and has no such proof. Feasibility holds in every mode but ``"paper"``.
    """
    if not (isinstance(rounds, (int, np.integer)) and rounds >= 1):
        raise SettingError(f"rounds must be a positive whole number, got {rounds!r}")
    shares = delta_shares(problem, settings("theory", delta=delta))
    x = _contexts(contexts)
    learned = {c.name: c for c in problem.constraints if isinstance(c, Constraint)}
    known = dict(constants or {})
    unknown = set(known) - {UTILITY, *learned}
    if unknown:
        raise SettingError(f"constants= names {sorted(unknown)}; choose from {[UTILITY, *learned]}")
    if UTILITY not in known:
        utility = problem.utility
        known[UTILITY] = class_constants(utility.model, utility.functional, problem.n_actions, x, what="utility")
    for name, c in learned.items():
        if name not in known:
            known[name] = class_constants(c.model, c.functional, problem.n_actions, x, pinned=problem.safe_action, what=name)
    weights = _width_weights(problem, list(learned.values()), x)

    def terms(T: int) -> tuple[Term, ...]:
        parts = _utility_terms(problem, known[UTILITY], T, shares[UTILITY])
        widths = [_width_term(c, known[name], weights[name], T, shares[c.stream]) for name, c in learned.items()]
        return (*parts, *widths)

    spread = problem.utility.functional.high - problem.utility.functional.low
    of_sets = sum(shares[s] for s in {c.stream for c in learned.values()})
    return Guarantee(
        rounds=int(rounds),
        delta=float(delta),
        terms=terms(int(rounds)),
        trivial=rounds * spread,
        feasibility=_feasibility(list(learned.values()), delta, of_sets),
        feasibility_probability=1 - of_sets,
        # The utility's error, either way the agent bounds it (deviation of the fit; coverage and the step to expectations);
        # for the constraints coverage, the members' deviation and the step to expected widths.
        regret_probability=max(0.0, 1 - 3 * shares[UTILITY] - 3 * of_sets),
        informative_from=_first_informative(lambda T: sum(t.value for t in terms(T)), spread),
        assumptions=(
            "contexts are independent draws from one distribution, and every model holds the truth",
            'the agent runs with mode="theory", growth=1 and exact_rounds of at least T; others have the feasibility only',
            *(note for name in known for note in known[name].notes),
        ),
        proved=all(c.proved for c in known.values()),
    )


def _contexts(contexts: Any) -> np.ndarray | None:
    if contexts is None:
        return None
    x = np.asarray(contexts, float)
    if x.ndim != 2 or not len(x):
        raise ShapeError(f"contexts must be (n, dx) with at least one row, got shape {x.shape}")
    return x


def _utility_terms(problem: Problem, known: ClassConstants, T: int, delta: float) -> tuple[Term, Term]:
    K = problem.n_actions
    q = known.exploration(T, delta)
    beta = 0.5 * math.sqrt(q * T / K)
    potential = potential_bound(T, K)
    if T <= SUMMED and known.exploration(1, delta) != q:
        t = np.arange(1, T + 1)
        each = np.array([known.exploration(float(i), delta) for i in t]) if T <= 5000 else np.full(T, q)
        summed = float((0.5 * np.sqrt(each / (K * t))).sum())
    else:
        summed = 0.5 * math.sqrt(q / K) * (2 * math.sqrt(T) - 1)  # sum of 1/sqrt(t) <= 2 sqrt(T) - 1
    return (
        Term(
            "exploration bonus",
            2 * beta * potential,
            "2 beta_T (K + K log(T/K))",
            f"beta_T = {beta:.4g}, Q_T = {q:.4g}, K = {K}, potential {potential:.4g}",
        ),
        Term("estimation slack", 2 * K * summed, "2 K sum beta_t / t", f"sum = {summed:.4g}"),
    )


def _width_weights(problem: Problem, learned: list[Constraint], x: np.ndarray | None) -> dict[str, float]:
    """alpha_j = (u - r_0) / (tau_j - c_0j), the largest over contexts; infinite where the limit leaves no room."""
    if not learned:
        return {}
    rows = x
    if rows is None:
        if callable(problem.safe_utility) or any(callable(c.safe_value) for c in learned):
            raise SettingError(
                "safe_value or safe_utility is a function of the context, so the weights depend on it: pass contexts= (n, dx)"
            )
        rows = np.zeros((1, 1))
        learned_values = np.array([[float(c.safe_value) for c in learned]])  # type: ignore[arg-type]
    else:
        column = [problem.constraint_names.index(c.name) for c in learned]
        learned_values = problem.safe_values(rows)[:, column]
    gain = problem.utility.functional.high - problem.safe_utilities(rows)
    room = np.array([c.at_most for c in learned]) - learned_values
    ratio = np.where(room > TOLERANCE, gain[:, None] / np.maximum(room, TOLERANCE), np.inf)
    return {c.name: float(ratio[:, j].max()) for j, c in enumerate(learned)}


def _width_term(c: Constraint, known: ClassConstants, weight: float, T: int, delta: float) -> Term:
    dim, radius = float(known.dimension(1 / T**2)), known.radius(T, delta)
    formula = "alpha L (2 (1/T + min(dim, T) + 4 sqrt(dim r T)) + 1.255 log(1/delta))"
    numbers = f"alpha = {weight:.4g}, L = {known.lipschitz:.4g}, dim = {dim:g}, r = {radius:.4g}"
    if dim == 0 or known.lipschitz == 0:
        return Term(f"width of {c.name!r}", 0.0, formula, numbers + ": the members agree")
    total = expected_width_sum(width_sum_bound(radius, dim, T), delta)
    return Term(f"width of {c.name!r}", weight * known.lipschitz * total, formula, numbers)


def _feasibility(learned: list[Constraint], delta: float, of_sets: float) -> str:
    if not learned:
        return "no constraint is learned; known costs are kept exactly in every round"
    names = ", ".join(repr(c.name) for c in learned)
    return (
        f"with probability at least {1 - of_sets:g} (delta/2 of delta = {delta:g}) every policy of every round keeps the limit "
        f"on {names}, for any exploration weights and any horizon, if the model holds the truth and its bounds are exact (each "
        "certificate says so)"
    )


def _first_informative(regret: Any, spread: float) -> int | None:
    T = 1
    for _ in range(HORIZONS):
        if regret(T) < T * spread:
            return T
        T *= 2
    return None


# a finished run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GuaranteeCheck:
    """A finished run beside the guarantee. ``print`` it."""

    guarantee: Guarantee
    rounds: int
    regret: float
    regret_bound: float  # for the contexts that came, not their expectation: adds range sqrt(T log(2/delta) / 2)
    infeasible_rounds: int
    largest_excess: float  # of a policy's true cost over its limit; at most 0 when feasible

    @property
    def regret_within(self) -> bool:
        return self.regret <= self.regret_bound

    @property
    def feasible(self) -> bool:
        return self.infeasible_rounds == 0

    @property
    def holds(self) -> bool:
        """Whether the run kept both promises. Each may fail with the small probability it was given with."""
        return self.feasible and self.regret_within

    def __str__(self) -> str:
        g = self.guarantee
        kept = "kept" if self.feasible else f"BROKEN in {self.infeasible_rounds} rounds, by up to {self.largest_excess:.3g}"
        within = "within" if self.regret_within else "ABOVE"
        vacuous = " (vacuous: no run could exceed it)" if g.vacuous else ""
        return "\n".join(
            [
                f"{self.rounds} rounds, promised with probability {g.feasibility_probability:g} and {g.regret_probability:g}",
                f"limits: {kept}",
                f"regret: {self.regret:.4g}, {within} the bound {self.regret_bound:.4g}{vacuous}",
            ]
        )


def check_guarantee(
    run: Any,
    delta: float = 0.05,
    contexts: Any = None,
    *,
    constants: Mapping[str, ClassConstants] | None = None,
) -> GuaranteeCheck:
    """Compare a finished `Run` with the guarantee for its length.

    `contexts` default to those of the run. The run's regret is at the contexts that came; the theorem's is an expectation
    over them, so the bound grows by range * sqrt(T log(2/delta) / 2) (Azuma and Hoeffding).
    """
    if not len(run):
        raise SettingError("the run has no rounds; simulate some first")
    if not run.truth_known:
        raise UnknownTruthError("the true utilities or costs of this run are not known, so its regret cannot be compared")
    x = np.unique(np.stack(run.x), axis=0) if contexts is None else contexts
    promised = guarantee(run.problem, len(run), delta, x, constants=constants)
    excess = np.array(run.cost) - np.array(run.limit)
    spread = promised.trivial / len(run)
    return GuaranteeCheck(
        guarantee=promised,
        rounds=len(run),
        regret=float(run.regret[-1]),
        regret_bound=promised.regret + spread * math.sqrt(0.5 * len(run) * math.log(2 / delta)),
        infeasible_rounds=int(run.infeasible.sum()),
        largest_excess=float(excess.max()) if excess.size else -math.inf,
    )
