"""What a decision rests on, for the record and for a reader.

Axis letters: K actions, J constraints, D flat parameters.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial, singledispatch
from typing import Any

import numpy as np

from gedppl import ged_ucb
from gedppl.learning.learner import Bounds, UsedDraws
from gedppl.numerics.arrays import evolved
from gedppl.problem import Constraint
from gedppl.problem.names import Names
from gedppl.showing import Facts, Shown, as_lines


class Witnesses(Mapping[int, Any]):
    """Action -> the parameters under which its cost is largest, found when first read: most
    certificates are never read.
    """

    def __init__(self, find: Callable[[], dict[int, Any]]) -> None:
        self._find: Callable[[], dict[int, Any]] | None = find
        self._found: dict[int, Any] = {}

    def _all(self) -> dict[int, Any]:
        if self._find is not None:
            self._found, self._find = self._find(), None
        return self._found

    def __getitem__(self, action: int) -> Any:
        return self._all()[action]

    def __iter__(self) -> Iterator[int]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return repr(self._all())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self._all(),)


# ranges, bounds on parameters, and the safe value, on which other actions' bounds rest too
IF_TRUE = "if the model class holds the truth and what was declared is true"
NOT_WATCHED = "not watched"
REASONS = 3  # actions that an explanation says "why not" of, unasked


@dataclass(frozen=True)
class ConstraintCertificate:
    """Why the policy keeps one limit: worst_case <= at_most, and what stands behind it.

    Examples
    --------
    >>> (one,) = ged.GEDUCB(problem).ask([0.5]).certificate.constraints
    >>> one.kind, one.method, round(one.worst_case, 6), round(one.slack, 6)
    ('guarantee', 'exact', 0.5, 0.0)
    """

    name: str
    # sum_a pi_a U_a, or with every_draw the largest U_a in play; where credible, the quantile of
    # the cost
    worst_case: float
    at_most: float
    method: str  # "exact", "outer", "profiled", "ascent", "sampled" or "known"
    guaranteed: bool
    rule: str
    note: str
    witness: Mapping[int, Any]  # action -> the parameters under which its cost is largest
    every_draw: bool = False  # the limit is on every action that may be drawn, not on the average
    # the posterior probability with which the limit is kept, if that is the claim
    credible: float | None = None
    # where the draws behind the claim are really from, if it rests on draws
    draws: UsedDraws | None = None
    # what realised outcomes are held against, and under which assumption
    watched: str = NOT_WATCHED
    # policies keep every limit; a recommendation may name an action that its bounds do not clear
    kept: bool = True

    @property
    def kind(self) -> str:
        """What kind of claim this is: "guarantee", "credible", "approximation" or "not kept"."""
        if not self.kept:
            return "not kept"
        if self.guaranteed:
            return "guarantee"
        return "approximation" if self.credible is None else "credible"

    @property
    def slack(self) -> float:
        return self.at_most - self.worst_case

    @property
    def claim(self) -> str:
        """One sentence, never stronger than what is proved."""
        what = "worst case" if self.credible is None else f"{self.credible:g} posterior quantile"
        whose = f"{what} of any action that may be drawn" if self.every_draw else what
        numbers = (
            f"{self.name}: {whose} {self.worst_case:.4g} against a limit of {self.at_most:.4g}"
        )
        if self.method == "known" and self.guaranteed:
            return f"{numbers}; the cost is known"
        if not self.kept:
            kind = "the limit is not shown to be kept"
        elif self.guaranteed:
            kind = f"guarantee, {IF_TRUE}"
        elif self.credible is not None:
            kind = (
                f"credible: the limit is kept with posterior probability >= {self.credible:g} at "
                "this context, if model and "
                "prior are right"
            )
        elif self.method == "sampled":
            kind = "inner approximation: the true worst case may be larger"
        else:
            kind = "approximation"
        tail = f" ({self.note})" if self.note else ""
        return f"{numbers}; {kind}; {self.method} bound, {self.rule}{tail}"

    @property
    def watch(self) -> str:
        """One sentence on what would notice that the limit is broken; none for a known cost."""
        if self.method == "known":
            return ""
        if self.watched == NOT_WATCHED:
            return f"{self.name}: not watched, no monitor holds its outcomes against the limit"
        return f"{self.name}: watched, {self.watched}"


@dataclass(frozen=True, repr=False)
class Certificate(Shown):
    """What a decision rests on: per constraint the worst case and why it holds, the state of the
    fits, and anything unusual.

    ``print(certificate)`` says it in sentences; `guaranteed`, `verdict` and `to_dict` are for
    programs.

    Notes
    -----
    A *guarantee* is for all rounds at once, with probability at least 1 - delta, if the class holds
    the truth; *credible* is for this decision, if model and prior are right; anything else is an
    *approximation*. Not guaranteed: anything of a truth outside the class. The guard watches for
    that, and an alarm takes the word back.

    Examples
    --------
    >>> certificate = ged.GEDUCB(problem).ask([0.5]).certificate
    >>> certificate.guaranteed, certificate.verdict[:35]
    (True, 'every limit guaranteed (delta 0.05,')
    """

    round: int
    mode: str
    delta: float
    constraints: tuple[ConstraintCertificate, ...]
    oracle: dict[str, str]  # outcome -> the status of its fit, a sentence
    engine: str
    notes: tuple[str, ...] = ()
    fallback: str | None = None  # why the safe action was taken instead of a computed policy
    feedback: str = ""  # how outcomes were learned, and what that takes for granted

    @property
    def guaranteed(self) -> bool:
        """Whether every limit is kept with probability at least 1 - delta by proof, given a
        well-specified model.
        """
        return all(c.guaranteed for c in self.constraints)

    def __str__(self) -> str:
        lines = [f"round {self.round}, mode {self.mode}, delta {self.delta:g}"]
        if self.fallback:
            lines.append(f"safe action taken: {self.fallback}")
        lines += [line for c in self.constraints for line in (c.claim, c.watch) if line]
        lines += [f"fit of {name}: {status}" for name, status in self.oracle.items()]
        lines += [self.feedback] if self.feedback else []
        lines += list(self.notes)
        return "\n".join(lines)

    def _shown(self) -> Facts:
        facts = {"safe action taken": self.fallback} if self.fallback else {}
        facts |= {
            f"limit {c.name!r}": c.claim.removeprefix(f"{c.name}: ") for c in self.constraints
        }
        facts |= {
            f"watch over {c.name!r}": c.watch.removeprefix(f"{c.name}: ")
            for c in self.constraints
            if c.watch
        }
        facts |= {f"fit of {name!r}": status for name, status in self.oracle.items()}
        facts |= {"feedback": self.feedback} if self.feedback else {}
        facts |= {f"note {i}": n for i, n in enumerate(self.notes, 1)}
        return f"Certificate of round {self.round}, {self.verdict}", facts

    @property
    def verdict(self) -> str:
        """A few words for what the claims of all constraints come to."""
        if not self.constraints:
            return "nothing is limited"
        if self.guaranteed:
            return (
                f"every limit guaranteed (delta {self.delta:g}, if the model classes hold the "
                "truth and what was declared is true)"
            )
        kept = sum(c.guaranteed for c in self.constraints)
        return f"{kept} of {len(self.constraints)} limits guaranteed (delta {self.delta:g})"

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists, for storage."""
        return {
            "round": self.round,
            "mode": self.mode,
            "delta": self.delta,
            "engine": self.engine,
            "fallback": self.fallback,
            "feedback": self.feedback,
            "notes": list(self.notes),
            "oracle": dict(self.oracle),
            "constraints": [
                {
                    "name": c.name,
                    "worst_case": c.worst_case,
                    "at_most": c.at_most,
                    "method": c.method,
                    "guaranteed": c.guaranteed,
                    "rule": c.rule,
                    "note": c.note,
                    "witness": {str(a): plain(w) for a, w in c.witness.items()},
                    "every_draw": c.every_draw,
                    "credible": c.credible,
                    "draws": None if c.draws is None else asdict(c.draws),
                    "watched": c.watched,
                    "kind": c.kind,
                }
                for c in self.constraints
            ],
        }


@singledispatch
def plain(value: Any) -> Any:
    """Arrays as lists, NumPy numbers as Python's, all through dictionaries."""
    return value


@plain.register(dict)
def _(value: dict[Any, Any]) -> dict[str, Any]:
    return {str(k): plain(v) for k, v in value.items()}


@plain.register(list)
@plain.register(tuple)
def _(value: Sequence[Any]) -> list[Any]:
    return [plain(v) for v in value]


@plain.register(np.ndarray)
@plain.register(np.generic)
def _(value: np.ndarray | np.generic) -> Any:
    return value.tolist()


@dataclass(frozen=True, repr=False)
class Explanation:
    """The terms behind a policy, action by action, and why one action and not another.

    The policy maximises sum_a pi_a (utility_a + bonus_a + width_a) among those whose worst case
    keeps every limit. ``print`` it for a table, or ask ``why_not(action)``.

    Examples
    --------
    >>> agent = ged.GEDUCB(problem)
    >>> why = agent.explain(agent.ask([0.5]))
    >>> int(why.score.argmax()), (why.cost_upper > why.limits[:, None]).tolist()
    (1, [[False, True]])
    >>> why.why_not(1)[:45]
    'action 1 is played with probability 0.75, and'
    """

    action: int
    policy: np.ndarray  # (K,)
    utility: np.ndarray  # (K,)
    bonus: np.ndarray  # (K,)
    width: np.ndarray  # (K,)
    cost_lower: np.ndarray  # (J, K)
    cost_upper: np.ndarray  # (J, K)
    limits: np.ndarray  # (J,)
    names: tuple[str, ...]  # of the constraints
    certificate: Certificate
    actions: Names  # what the actions are called
    every_draw: np.ndarray  # (J,) bool
    hint: str = ""  # what would leave the safe action earlier, where only a proof is missing

    @property
    def score(self) -> np.ndarray:
        """What the policy maximises: utility + bonus + width, (K,)."""
        found: np.ndarray = self.utility + self.bonus + self.width
        return found

    def why_not(self, action: int | str) -> str:
        """Why this action was not played with more probability."""
        other = self.actions.action(action)
        label = self.actions.label(other)
        if self.certificate.fallback:
            return f"no policy was computed: {self.certificate.fallback}"
        p = self.policy[other]
        over = [j for j in range(len(self.limits)) if self.cost_upper[j, other] > self.limits[j]]
        if p > 0 and over:
            j = over[0]
            return (
                f"action {label} is played with probability {p:.3g}, and no more: its worst case "
                f"on {self.names[j]!r} is "
                f"{self.cost_upper[j, other]:.4g}, above the limit {self.limits[j]:.4g}, so it is "
                f"mixed with a cheaper action{self._for_want_of_draws(j)}"
            )
        if p > 0:
            return f"action {label} is played with probability {p:.3g}"
        if over:
            j = over[0]
            low = self.cost_lower[j, other]
            reason = (
                "and even at best it is" if low > self.limits[j] else "though at best it may be"
            )
            barred = [j for j in over if self.every_draw[j]]
            if barred:
                j = barred[0]
                return (
                    f"action {label} may cost up to {self.cost_upper[j, other]:.4g} on "
                    f"{self.names[j]!r}, and the limit of "
                    f"{self.limits[j]:.4g} holds for every draw: it is not mixed in at all"
                    f"{self._for_want_of_draws(j)}"
                )
            return (
                f"action {label} may cost up to {self.cost_upper[j, other]:.4g} on "
                f"{self.names[j]!r} against a limit of "
                f"{self.limits[j]:.4g}, {reason} {low:.4g}; mixing it in would win less than the "
                f"actions played{self._for_want_of_draws(j)}"
            )
        best = int(np.argmax(self.policy))
        return (
            f"action {label} keeps every limit but scores {self.score[other]:.4g} "
            f"(utility {self.utility[other]:.4g} + exploration "
            f"{self.bonus[other] + self.width[other]:.4g}), "
            f"action {self.actions.label(best)} scores {self.score[best]:.4g}"
        )

    def _for_want_of_draws(self, j: int) -> str:
        """Why limit j rests on the end of a range, if that is for want of draws."""
        used = self.certificate.constraints[j].draws
        return f"; {used.shortage}" if used is not None and used.shortage else ""

    def __str__(self) -> str:
        labels = self.actions.labels
        wide = min(max(6, *map(len, labels)), 24)
        head = (
            f"{'action':>{wide}} {'policy':>8} {'utility':>9} {'bonus':>9} {'width':>9} "
            f"{'score':>9}"
        )
        head += "".join(f" {name[:18] + ' ≤':>20}" for name in self.names)
        rows = [head]
        for k in range(len(self.policy)):
            row = f"{labels[k][:wide]:>{wide}} {self.policy[k]:>8.3f}"
            row += f" {self.utility[k]:>9.4g} {self.bonus[k]:>9.4g} {self.width[k]:>9.4g}"
            row += f" {self.score[k]:>9.4g}" + "".join(
                f" {u:>20.4g}" for u in self.cost_upper[:, k]
            )
            rows.append(row + ("  <- played" if k == self.action else ""))
        return "\n".join([*rows, *self._reasons])

    @property
    def _reasons(self) -> list[str]:
        """Why the best of the others are not played more; the limits are the certificate's."""
        if self.certificate.fallback:
            return [f"safe action taken: {self.certificate.fallback}"]
        ranked = np.argsort(-self.score, kind="stable")
        others = [int(k) for k in ranked if k != np.argmax(self.policy)][:REASONS]
        said = [*map(self.why_not, others), f"{self.certificate.verdict}: see the certificate"]
        return [*said, self.hint] if self.hint else said

    def __repr__(self) -> str:
        return as_lines(str(self).splitlines())

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        heads = [
            "action",
            "policy",
            "utility",
            "bonus",
            "width",
            "score",
            *(f"{name} ≤" for name in self.names),
        ]
        columns = np.vstack(
            [self.policy, self.utility, self.bonus, self.width, self.score, self.cost_upper]
        )
        rows = [f"<tr>{''.join(f'<th>{html.escape(head)}</th>' for head in heads)}</tr>"]
        for k, column in enumerate(columns.T):
            cells = "".join(f"<td>{value:.4g}</td>" for value in column)
            style = ' style="font-weight: bold"' if k == self.action else ""
            rows.append(f"<tr{style}><td>{html.escape(self.actions.label(k))}</td>{cells}</tr>")
        said = "<br/>".join(map(html.escape, self._reasons))
        return f"<table>{''.join(rows)}</table><p>{said}</p>"


@dataclass(frozen=True)
class Grounds:
    """What the certificates of one selection have in common. No `info`: the safe action alone, for
    reason `fallback`.

    `doubts`, constraint -> sentence, take the guarantee away, from the safe action's declared value
    too: what it rests on was refuted. `watched`, constraint -> what its outcomes are held against;
    those left out are not watched.
    """

    state: ged_ucb.State
    info: ged_ucb.Info | None
    fallback: str | None = None
    doubts: Mapping[str, str] = field(default_factory=dict)
    watched: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def certificate(self) -> Certificate:
        """Without round, worst cases, and what is remarked of a context."""
        state, info = self.state, self.info
        return Certificate(
            round=state.t,
            mode=state.settings.mode,
            delta=state.settings.delta,
            constraints=tuple(map(self._of_constraint, range(len(state.problem.constraints)))),
            oracle={name: learner.status for name, learner in state.learners.items()},
            engine="safe action" if info is None else info.engine,
            notes=() if info is None else info.notes,
            fallback=self.fallback,
            feedback=state.problem.feedback,
        )

    def _of_constraint(self, j: int) -> ConstraintCertificate:
        """Without worst case and witness."""
        c, info = self.state.problem.constraints[j], self.info
        shown = self.watched.get(c.name, ConstraintCertificate.watched)
        bounds = None if info is None else info.bounds[j]
        claimed: tuple[Any, ...]
        if bounds is None:
            why = "the safe action alone" if info is None else "the cost is known"
            claimed = "known", True, why, "", {}, c.every_draw, None, None
        else:
            how = bounds.method, bounds.guaranteed, bounds.rule, bounds.note
            claimed = *how, {}, c.every_draw, bounds.credible, bounds.used
        part = ConstraintCertificate(c.name, math.nan, c.at_most, *claimed, shown)
        if info is not None and info.unlimited:
            note = "warm-up round: played whatever the limits are"
            part = replace(part, guaranteed=False, credible=None, note=note)
        if c.name in self.doubts:
            part = replace(part, guaranteed=False, credible=None, note=self.doubts[c.name])
        return part

    @cached_property
    def witnesses(self) -> tuple[Callable[..., dict[int, Any]] | None, ...]:
        """(J,) policy, i -> the parameters behind worst cases; None where the cost is known."""
        problem, learned = self.state.problem, dict(self.state.problem.learned)
        found = [None] * len(problem.constraints) if self.info is None else self.info.bounds
        return tuple(
            None if b is None else partial(_witness, problem.safe_action, learned[j], b.to_keep)
            for j, b in enumerate(found)
        )


def certify(
    grounds: Grounds,
    i: int,
    x: np.ndarray,
    policy: np.ndarray,
    action: int,
    remarks: tuple[str, ...] = (),
) -> tuple[Certificate, Explanation]:
    """The certificate and the terms of context i of a selection, x (dx,). `remarks` (alarms, a
    context far outside of what was seen) are added to the notes.
    """
    state, info, shared = grounds.state, grounds.info, grounds.certificate
    worst = state.problem.safe_values(x[None])[0] if info is None else info.worst[i]
    parts = tuple(
        evolved(
            part,
            worst_case=value,
            witness={} if find is None else Witnesses(partial(find, policy, i)),
        )
        for part, value, find in zip(shared.constraints, worst.tolist(), grounds.witnesses)
    )
    certificate = evolved(
        shared,
        round=state.t + i,
        constraints=parts,
        oracle=dict(shared.oracle),
        notes=(*shared.notes, *remarks),
    )
    problem = state.problem
    if info is None:
        nothing, costs = (
            np.full(shape, np.nan) for shape in (len(policy), (len(worst), len(policy)))
        )
        terms = nothing, nothing, nothing, costs, costs
    else:
        every = info.utility, info.bonus, info.width, info.cost_lower, info.cost_upper
        terms = tuple(term[i] for term in every)
    return certificate, Explanation(
        action,
        policy,
        *terms,
        limits=problem.limits,
        names=tuple(problem.constraint_names),
        certificate=certificate,
        actions=problem.names,
        every_draw=problem.every_draw,
        hint="" if info is None else _hint(state, parts, policy, info, i),
    )


def _hint(
    state: ged_ucb.State,
    parts: Sequence[ConstraintCertificate],
    policy: np.ndarray,
    info: ged_ucb.Info,
    i: int,
) -> str:
    """One sentence where the safe action alone is played, though estimates keep a limit that is
    guaranteed: a posterior asks for less than a proof.
    """
    safe = state.problem.safe_action
    if safe is None or policy[safe] < 1:
        return ""
    for part, bounds, upper in zip(parts, info.bounds, info.cost_upper[i]):
        if bounds is None or not part.guaranteed:
            continue
        likely = (bounds.estimate[i] <= part.at_most) & (upper > part.at_most)
        if np.delete(likely, safe).any():
            return (
                f"hint: an estimate keeps the limit on {part.name!r} and the proof is missing; if "
                f"you trust model and prior, confidence={{{part.name!r}: ged.credible_set()}} "
                "leaves the safe action earlier: credible, no guarantee"
            )
    return ""


def _witness(
    safe_action: int | None, c: Constraint, bounds: Bounds, policy: np.ndarray, i: int
) -> dict[int, Any]:
    """The worst-case parameters of the actions in play, but for the safe action, whose value is
    known.
    """
    if bounds.witness is None:
        return {}
    actions = [int(a) for a in np.flatnonzero(policy > 0) if a != safe_action]
    return {a: c.model.named(bounds.witness[i, a], bounds.used is not None) for a in actions}
