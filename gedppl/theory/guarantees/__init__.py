"""What the theorems promise before a single round: `guarantee`, and how a finished run compares:
`check_guarantee`.

With probability 1 - delta/2 every policy keeps every limit. There is one regret theorem for each
way to explore.

``exploration="counterfactual"``, the paper's: the regret of T rounds is at most

    2 beta_T (K + K log(T/K))
        exploration bonus, by the potential lemma
    + 2 K sum_t beta_t / t                                      slack of the estimate
    + sum_j alpha_j L_j (2 S_j + 1.255 log(1/delta_j)),         width of each constraint's set,
      S_j = 1/T + min(dim_j, T) + 4 sqrt(dim_j r_j T),

with beta_t = 1/2 sqrt(Q_t t / K), alpha_j = (u - r_0) / (tau_j - c_0j), dim_j the generalized
eluder dimension at scale 1/T^2 and r_j the squared radius of the set. (Hu, Simchi-Levi and Azizan,
"Constrained Contextual Online Decision Making: A Unified Framework", main theorem, with its
constants corrected: r_j and L_j are missing in print, and the step from realised widths to expected
ones costs the factor 2 and the 1.255 log term.)

``exploration="sets"``: the regret at the contexts that come, whatever their law, is at most

    L_F (2 S_F + 1.255 log((J+1)/delta')) + sum_j alpha_j L_j (2 S_j + 1.255 log((J+1)/delta')),

S_F being that of the utility's class. The score of each policy is at least what the best policy
within the limits is worth, and exceeds its own worth by no more than the utility's width and alpha
times the costs' (`gedppl.ged_ucb`); these are summed as above. It needs every drawn outcome to be
learned before the next decision, and a safe action whose cost is known exactly or is itself
learned. For finite classes r = 1.5 log(M/delta) holds beside coverage on an event with a delta of
its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gedppl.errors import SettingError, ShapeError, UnknownTruthError
from gedppl.ged_ucb import delta_shares
from gedppl.ged_ucb.settings import settings
from gedppl.numerics.arrays import is_whole
from gedppl.problem import UTILITY, Constraint, Problem
from gedppl.showing import Spoken
from gedppl.theory.eluder.lemmas import expected_width_sum, potential_bound, width_sum_bound
from gedppl.theory.guarantees.class_constants import ClassConstants, class_constants

SUMMED = 1_000_000  # rounds up to which sum beta_t / t is added up; beyond it is bounded
HORIZONS = 60  # doublings of T tried when looking for the first bound below the trivial one
TOLERANCE = 1e-9
COUNTERFACTUALS_ASSUME = (
    "contexts are independent draws from one distribution, and every model holds the truth",
    'the agent runs with mode="theory", growth=1 and exact_rounds of at least T; others have the '
    "feasibility only",
)
SETS_ASSUME = (
    "every model holds the truth, and safe_utility, if given, is no more than the safe action is "
    "worth; contexts may be any",
    'the agent runs with mode="theory", exploration="sets" and growth=1, and every outcome is told '
    "before the next decision; "
    "others have the feasibility only",
)


@dataclass(frozen=True)
class Term:
    """One summand of the regret bound."""

    name: str
    value: float
    formula: str
    numbers: str


@dataclass(frozen=True, repr=False)
class Guarantee(Spoken):
    """A regret bound term by term, and the feasibility statement. ``print`` it."""

    rounds: int
    delta: float
    terms: tuple[Term, ...]
    trivial: float  # T times the utility's range: no policy can do worse
    feasibility: str
    feasibility_probability: float
    regret_probability: float
    # the first horizon, up to a factor of 2, whose bound is below the trivial one
    informative_from: int | None
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
        lines = [
            f"guarantee for {self.rounds} rounds at delta = {self.delta:g}",
            f"feasibility: {self.feasibility}",
        ]
        lines.append(
            f"regret: at most {self.regret:.4g} with probability at least "
            f"{self.regret_probability:g}, of which"
        )
        width = max(len(term.name) for term in self.terms)
        for term in self.terms:
            share = (
                term.value / self.regret if math.isfinite(self.regret) and self.regret else math.nan
            )
            lines.append(
                f"  {term.name:<{width}}  {term.value:>10.4g}  {share:>4.0%}  "
                f"{term.formula}; {term.numbers}"
            )
        lines.append(f"  dominated by: {self.dominant.name}")
        if self.vacuous:
            when = (
                "no horizon was found at which it says more"
                if self.informative_from is None
                else f"it says more from about {self.informative_from:.2g} rounds on"
            )
            lines.append(
                f"VACUOUS: {self.rounds} rounds cannot lose more than {self.trivial:.4g} whatever "
                f"is played; {when}. Feasibility "
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
    exploration: str = "counterfactual",
) -> Guarantee:
    """The theorem's regret bound and feasibility statement for T rounds, from the declaration
    alone.

    Parameters
    ----------
    problem
        The declaration.
    rounds
        T.
    delta
        As passed to the agent.
    contexts
        (n, dx): the contexts there are, or a sample whose features are as large as any. Needed
        where the safe action's values are functions of the context.
    constants
        By outcome (``"utility"`` or a constraint's name), for classes whose constants the library
        does not know or knows less well than you.
    exploration
        ``"counterfactual"`` or ``"sets"``, as passed to the agent: each has a theorem of its own.

    Notes
    -----
    The regret bound is for ``GEDUCB(mode="theory", growth=1, exact_rounds=T)``: a fit in every
    round, every past round replayed and the theorem's exploration weights; or for
    ``GEDUCB(mode="theory", exploration="sets", growth=1)`` with every outcome told before the next
    decision. The formulas are at the top of `gedppl.theory.guarantees`. Not guaranteed: the regret
    of other modes, which explore less or refit less often, which usually lowers it and has no such
    proof. Feasibility holds in every mode but ``"paper"``. Bounds are vacuous for short horizons,
    which `vacuous` says: no run could exceed them.

    References
    ----------
    Hu, Simchi-Levi and Azizan, "Constrained Contextual Online Decision Making: A Unified
    Framework", main theorem, with its constants corrected, for ``exploration="counterfactual"``.

    Examples
    --------
    >>> found = ged.guarantee(problem, 100)
    >>> found.feasibility_probability, found.vacuous, round(found.regret)
    (0.975, True, 1100)
    """
    if not (is_whole(rounds) and rounds >= 1):
        raise SettingError(f"rounds must be a positive whole number, got {rounds!r}")
    if problem.every_draw.any():
        names = [c.name for c in problem.constraints if c.every_draw]
        raise SettingError(
            f"there is no regret bound under a limit on every draw ({names}): what is not "
            "certified is never tried. The limits "
            "hold all the same, with the probability that every certificate says"
        )
    shares = delta_shares(problem, settings("theory", delta=delta, exploration=exploration))
    by_sets = exploration == "sets"
    if by_sets:
        _check_all_is_learned(problem)
    x = _contexts(contexts)
    learned = {c.name: c for _, c in problem.learned}
    known = dict(constants or {})
    unknown = set(known) - {UTILITY, *learned}
    if unknown:
        raise SettingError(f"constants= names {sorted(unknown)}; choose from {[UTILITY, *learned]}")
    if UTILITY not in known:
        utility = problem.utility
        known[UTILITY] = class_constants(
            utility.model, utility.functional, problem.n_actions, x, what="utility"
        )
    for name, c in learned.items():
        if name not in known:
            # where the safe value is an upper bound only, the set says what the safe action costs:
            # its points count
            pinned = problem.safe_action if c.safe_value_exact or not by_sets else None
            known[name] = class_constants(
                c.model, c.functional, problem.n_actions, x, pinned=pinned, what=name
            )
    weights = _width_weights(problem, list(learned.values()), x)

    def terms(T: int) -> tuple[Term, ...]:
        # of delta, for each class's step to expected widths
        step = shares[UTILITY] / (len(learned) + 1)
        parts: tuple[Term, ...]
        if by_sets:
            parts = (
                _width_term("width of the utility", known[UTILITY], 1.0, T, shares[UTILITY], step),
            )
        else:
            parts = _utility_terms(problem, known[UTILITY], T, shares[UTILITY])
        widths = [
            _width_term(
                f"width of {name!r}",
                known[name],
                weights[name],
                T,
                share,
                step if by_sets else share,
            )
            for name, share in ((name, shares[c.stream]) for name, c in learned.items())
        ]
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
        regret_probability=max(
            0.0, 1 - (_missed_by_sets if by_sets else _missed_by_counterfactuals)(shares, of_sets)
        ),
        informative_from=_first_informative(lambda T: sum(t.value for t in terms(T)), spread),
        assumptions=(
            *(SETS_ASSUME if by_sets else COUNTERFACTUALS_ASSUME),
            *(note for name in known for note in known[name].notes),
        ),
        proved=all(c.proved for c in known.values()),
    )


def _missed_by_counterfactuals(shares: Mapping[str, float], of_sets: float) -> float:
    """The utility's error, either way the agent bounds it (deviation of the fit; coverage and
    the step to expectations); for the constraints coverage, the members' deviation and the step
    to expected widths.
    """
    return 3 * shares[UTILITY] + 3 * of_sets


def _missed_by_sets(shares: Mapping[str, float], of_sets: float) -> float:
    """Coverage and the members' deviation for every outcome's set, and once the step to expected
    widths.
    """
    return 2 * sum(shares.values()) + shares[UTILITY]


def _check_all_is_learned(problem: Problem) -> None:
    """Raise where the declaration itself keeps an outcome that is drawn from being learned
    before the next decision.
    """
    reason = None
    if not problem.learn_safe and problem.safe_action is not None:
        reason = "learn_safe=False leaves the safe action's out; let it be learned"
    elif problem.outcome_age > 1:
        reason = f"outcome_age={problem.outcome_age} holds them back; use outcome_age=1"
    elif any(problem.learned_of(a) != a for a in range(problem.n_actions)):
        hidden = [a for a in range(problem.n_actions) if problem.learned_of(a) != a]
        reason = f"playing {hidden} does not reveal their own; let reveals be True on its diagonal"
    if reason is not None:
        raise SettingError(
            'the theorem for exploration="sets" needs every outcome learned before the next '
            f"decision, but {reason}. Limits are "
            "kept all the same"
        )


def _contexts(contexts: Any) -> np.ndarray | None:
    if contexts is None:
        return None
    x = np.asarray(contexts, float)
    if x.ndim != 2 or not len(x):
        raise ShapeError(f"contexts must be (n, dx) with at least one row, got shape {x.shape}")
    return x


def _utility_terms(
    problem: Problem, known: ClassConstants, T: int, delta: float
) -> tuple[Term, Term]:
    K = problem.n_actions
    q = known.exploration(T, delta)
    beta = 0.5 * math.sqrt(q * T / K)
    potential = potential_bound(T, K)
    if T <= SUMMED and known.exploration(1, delta) != q:
        t = np.arange(1, T + 1)
        each = (
            np.array([known.exploration(float(i), delta) for i in t])
            if T <= 5000
            else np.full(T, q)
        )
        summed = float((0.5 * np.sqrt(each / (K * t))).sum())
    else:
        # sum of 1/sqrt(t) <= 2 sqrt(T) - 1
        summed = 0.5 * math.sqrt(q / K) * (2 * math.sqrt(T) - 1)
    return (
        Term(
            "exploration bonus",
            2 * beta * potential,
            "2 beta_T (K + K log(T/K))",
            f"beta_T = {beta:.4g}, Q_T = {q:.4g}, K = {K}, potential {potential:.4g}",
        ),
        Term("estimation slack", 2 * K * summed, "2 K sum beta_t / t", f"sum = {summed:.4g}"),
    )


def _width_weights(
    problem: Problem, learned: list[Constraint], x: np.ndarray | None
) -> dict[str, float]:
    """alpha_j = (u - r_0) / (tau_j - c_0j), the largest over contexts; infinite where the limit
    leaves no room.
    """
    if not learned:
        return {}
    rows = x
    if rows is None:
        if callable(problem.safe_utility) or any(callable(c.safe_value) for c in learned):
            raise SettingError(
                "safe_value or safe_utility is a function of the context, so the weights depend on "
                "it: pass contexts= (n, dx)"
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


def _width_term(
    name: str, known: ClassConstants, weight: float, T: int, delta: float, step: float
) -> Term:
    """What the width of a set with `delta` costs in T rounds; `step` of delta is for the step to
    expected widths.
    """
    dim, radius = float(known.dimension(1 / T**2)), known.radius(T, delta)
    formula = "alpha L (2 (1/T + min(dim, T) + 4 sqrt(dim r T)) + 1.255 log(1/delta'))"
    numbers = (
        f"alpha = {weight:.4g}, L = {known.lipschitz:.4g}, dim = {dim:g}, r = {radius:.4g}, "
        f"delta' = {step:.4g}"
    )
    if known.lipschitz == 0:
        return Term(name, 0.0, formula, numbers + ": the members agree")
    if dim == 0:  # no width exceeds 1/T^2 anywhere, so neither does an expected one
        return Term(
            name,
            weight * known.lipschitz / T,
            "alpha L / T",
            numbers + ": the members agree up to 1/T^2",
        )
    total = expected_width_sum(width_sum_bound(radius, dim, T), step)
    return Term(name, weight * known.lipschitz * total, formula, numbers)


def _feasibility(learned: list[Constraint], delta: float, of_sets: float) -> str:
    if not learned:
        return "no constraint is learned; known costs are kept exactly in every round"
    names = ", ".join(repr(c.name) for c in learned)
    return (
        f"with probability at least {1 - of_sets:g} (delta/2 of delta = {delta:g}) every policy of "
        "every round keeps the limit "
        f"on {names}, for any exploration weights and any horizon, if the model holds the truth "
        "and its bounds are exact (each "
        "certificate says so)"
    )


def _first_informative(regret: Any, spread: float) -> int | None:
    T = 1
    for _ in range(HORIZONS):
        if regret(T) < T * spread:
            return T
        T *= 2
    return None


# a finished run -----------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class GuaranteeCheck(Spoken):
    """A finished run beside the guarantee. ``print`` it."""

    guarantee: Guarantee
    rounds: int
    regret: float
    regret_bound: float  # of the regret at the contexts that came; see `check_guarantee`
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
        """Whether the run kept both promises. Each may fail with the small probability it was
        given with.
        """
        return self.feasible and self.regret_within

    def __str__(self) -> str:
        g = self.guarantee
        kept = (
            "kept"
            if self.feasible
            else f"BROKEN in {self.infeasible_rounds} rounds, by up to {self.largest_excess:.3g}"
        )
        within = "within" if self.regret_within else "ABOVE"
        vacuous = " (vacuous: no run could exceed it)" if g.vacuous else ""
        return "\n".join(
            [
                f"{self.rounds} rounds, promised with probability {g.feasibility_probability:g} "
                f"and {g.regret_probability:g}",
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
    exploration: str = "counterfactual",
) -> GuaranteeCheck:
    """Compare a finished `Run` with the guarantee for its length, and for the `exploration` of its
    agent.

    Parameters
    ----------
    run
        From `simulate`, in an environment that knows the truth.
    delta, constants, exploration
        As for `guarantee`.
    contexts
        As for `guarantee`; those of the run if not given.

    Notes
    -----
    The run's regret is at the contexts that came. The theorem for counterfactuals speaks of an
    expectation over them, so its bound grows by range * sqrt(T log(2/delta) / 2) (Azuma and
    Hoeffding); the one for sets speaks of the contexts that came. Not guaranteed: anything by one
    run, which proves nothing of a probability: `check_coverage` counts over many.

    References
    ----------
    Hu, Simchi-Levi and Azizan, "Constrained Contextual Online Decision Making: A Unified
    Framework", main theorem; Hoeffding, "Probability inequalities for sums of bounded random
    variables" (1963); Azuma, "Weighted sums of certain dependent random variables" (1967).

    Examples
    --------
    >>> run = ged.simulate(problem, world, ged.GEDUCB(problem), 20, seed=1)
    >>> found = ged.check_guarantee(run)
    >>> found.feasible, found.regret_within
    (True, True)
    """
    if not len(run):
        raise SettingError("the run has no rounds; simulate some first")
    if not run.truth_known:
        raise UnknownTruthError(
            "the true utilities or costs of this run are not known, so its "
            "regret cannot be compared"
        )
    x = np.unique(np.stack(run.x), axis=0) if contexts is None else contexts
    promised = guarantee(
        run.problem, len(run), delta, x, constants=constants, exploration=exploration
    )
    excess = np.array(run.cost) - np.array(run.limit)
    spread = promised.trivial / len(run)
    over_contexts = (
        0.0 if exploration == "sets" else spread * math.sqrt(0.5 * len(run) * math.log(2 / delta))
    )
    return GuaranteeCheck(
        guarantee=promised,
        rounds=len(run),
        regret=float(run.regret[-1]),
        regret_bound=promised.regret + over_contexts,
        infeasible_rounds=int(run.infeasible.sum()),
        largest_excess=float(excess.max()) if excess.size else -math.inf,
    )
