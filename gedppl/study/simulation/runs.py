"""What happened, round by round: regret, infeasible rounds, realised violations, results by
segment.

Axis letters: T rounds, K actions, J constraints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.errors import RunFileError, ShapeError, UnknownTruthError
from gedppl.problem import UTILITY, Problem
from gedppl.problem.names import Names
from gedppl.selection import policy_cost
from gedppl.showing import Facts, Shown

if TYPE_CHECKING:
    import arviz
    import xarray

TOLERANCE = 1e-9  # share of the numbers compared


@dataclass(frozen=True)
class RunOutline:
    """What a reader of a run needs to know of its problem; stands in for the `Problem` when a
    run is read from disk.
    """

    n_actions: int
    safe_action: int | None
    constraint_names: list[str]
    limits: np.ndarray  # (J,)
    names: Names  # of actions and columns
    every_draw: np.ndarray  # (J,) bool

    @classmethod
    def of(cls, problem: Problem | RunOutline) -> RunOutline:
        limits, each = np.asarray(problem.limits, float), problem.every_draw
        return cls(
            problem.n_actions,
            problem.safe_action,
            list(problem.constraint_names),
            limits,
            problem.names,
            each,
        )


@dataclass(frozen=True)
class Round:
    """One round. Values that are not known are NaN."""

    x: np.ndarray  # (dx,)
    action: int
    policy: np.ndarray  # (K,)
    y: Any  # as told
    z: Any
    utilities: np.ndarray  # (K,) true
    costs: np.ndarray  # (J, K) true
    # (K,) the best policy that keeps every limit, by someone who knows the truth
    oracle: np.ndarray
    best: float  # its utility
    limit: np.ndarray  # (J,)
    worst_case: np.ndarray  # (J,) certified; NaN for agents without certificates
    realised: np.ndarray  # (J,) what the outcome said of each constraint
    estimate: np.ndarray  # (K,) the agent's estimate of the utility
    bonus: np.ndarray  # (K,)
    width: np.ndarray  # (K,) exploration weight times width of the cost bounds
    cost_lower: np.ndarray  # (J, K)
    cost_upper: np.ndarray  # (J, K)
    certificate: dict[str, Any] | None = None


@dataclass(repr=False)
class Run(Shown):
    """A run, complete round by complete round. It grows while it runs; an interrupted run can be
    continued. Made by `simulate`.

    Arrays have the rounds T first: ``x`` (T, dx), ``policy`` (T, K), ``action`` (T,), ``regret``
    (T,), ``cost_lower`` and ``cost_upper`` (T, J, K), ``worst_case`` (T, J).

    Examples
    --------
    >>> run = ged.simulate(problem, world, ged.GEDUCB(problem), 20, seed=1)
    >>> run.policy.shape, bool(run.infeasible.any()), len(run.certificates)
    ((20, 2), False, 20)
    """

    problem: Problem | RunOutline
    seed: int
    rounds: list[Round] = field(default_factory=list)
    environment_state: dict[str, Any] | None = None
    interrupted: bool = False
    segments: dict[str, list[str]] = field(default_factory=dict)  # name -> label of every round
    # outcome -> site -> (M, ...), of the last set
    members: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rounds)

    def _shown(self) -> Facts:
        """A title, and a few facts: what happened, and whether the limits were kept."""
        names = self.problem.constraint_names
        limits = [
            f"{name} at most {at_most:.4g}" for name, at_most in zip(names, self.problem.limits)
        ]
        safe = self.problem.safe_action
        facts = {
            "actions": f"{self.problem.n_actions}, safe action "
            f"{None if safe is None else self.problem.names.label(safe)}"
        }
        facts |= {"limits": "; ".join(limits) or "none"}
        if self.rounds:
            s = self.summary()
            known = s["regret"] is not None
            facts |= {
                "regret": f"{s['regret']:.4g}"
                if known
                else "unknown: the environment knows no truth"
            }
            facts |= {"infeasible rounds": str(s["infeasible_rounds"])} if known else {}
            facts |= {"safe action": f"{s['safe_share']:.0%} of rounds"}
            facts |= {
                "certificates": f"{sum(c is not None for c in self.certificates)} of {len(self)}"
            }
        more = ", interrupted" if self.interrupted else ""
        return f"Run of {len(self):,} rounds, seed {self.seed}{more}", facts

    # what happened --------------------------------------------------------------------------------

    @property
    def x(self) -> np.ndarray:
        """Contexts, (T, dx)."""
        return self.column("x")

    @property
    def action(self) -> np.ndarray:
        """Actions played, (T,)."""
        return np.array([r.action for r in self.rounds], np.int64)

    @property
    def policy(self) -> np.ndarray:
        """Policies the actions were drawn from, (T, K); 0 for actions added later."""
        found: np.ndarray = np.nan_to_num(self.column("policy"), nan=0.0)
        return found

    @property
    def propensity(self) -> np.ndarray:
        """The probability of the action that was played, (T,)."""
        return np.array([r.policy[r.action] for r in self.rounds], float)

    @property
    def y(self) -> list[Any]:
        """The utility's outcomes, as told."""
        return [r.y for r in self.rounds]

    @property
    def z(self) -> list[Any]:
        """The constraints' outcomes, as told."""
        return [r.z for r in self.rounds]

    @property
    def limit(self) -> np.ndarray:
        """The limits in force, (T, J)."""
        return self.column("limit")

    # what is true ---------------------------------------------------------------------------------

    @property
    def utilities(self) -> np.ndarray:
        """True utility of every action, (T, K)."""
        return self.column("utilities")

    @property
    def costs(self) -> np.ndarray:
        """True value of every constraint and action, (T, J, K)."""
        return self.column("costs")

    @property
    def utility(self) -> np.ndarray:
        """True utility of the policies, sum_a pi_a u_a, (T,)."""
        return np.array([_average(r.policy, r.utilities) for r in self.rounds], float)

    @property
    def best(self) -> np.ndarray:
        """True utility of the constrained oracle, (T,)."""
        return np.array([r.best for r in self.rounds], float)

    @property
    def cost(self) -> np.ndarray:
        """True cost of the policies, (T, J): sum_a pi_a c_ja, or under a limit on every draw the
        largest c_ja in play.
        """
        each = self.problem.every_draw
        return np.array([policy_cost(r.policy, r.costs, each) for r in self.rounds], float).reshape(
            len(self), self._J
        )

    @property
    def truth_known(self) -> bool:
        """Whether the environment knew every true utility and cost that the policies met."""
        return bool(
            np.isfinite(self.utility).all()
            and np.isfinite(self.best).all()
            and np.isfinite(self.cost).all()
        )

    @property
    def regret(self) -> np.ndarray:
        """Cumulative regret against the constrained oracle, (T,): the best policy that keeps
        every limit each round.
        """
        return np.cumsum(self.best - self.utility)

    @property
    def infeasible(self) -> np.ndarray:
        """Rounds whose policy truly exceeds a limit, (T,) bool. This is what certificates speak
        of.
        """
        cost = self.cost
        if np.isnan(cost).any():
            raise UnknownTruthError(
                f"the true costs of {int(np.isnan(cost).any(axis=1).sum())} of {len(self)} rounds "
                "are not known, so neither is "
                "their feasibility; give the environment `costs(x)` from a reference model, or "
                "look at `realised`"
            )
        size = np.maximum(np.abs(self.limit), np.where(np.isfinite(cost), np.abs(cost), 0.0))
        return np.asarray((cost > self.limit + TOLERANCE * size).any(axis=1))

    @property
    def realised(self) -> np.ndarray:
        """What each outcome said of each constraint, (T, J): the outcome itself under a limit on
        its mean, 1 or 0 under a limit on a probability. NaN if the outcome was not observed, and
        under limits on a variance, a quantile or a CVaR, of which a single outcome says nothing.
        """
        return self.column("realised")

    @property
    def violated(self) -> np.ndarray:
        """Rounds with a realised value above its limit, (T,) bool. The limits are on
        expectations: such rounds are no breach.
        """
        with np.errstate(invalid="ignore"):
            return np.asarray(
                (self.realised > self.limit + TOLERANCE * np.abs(self.limit)).any(axis=1)
            )

    # what the agent said --------------------------------------------------------------------------

    @property
    def worst_case(self) -> np.ndarray:
        """Certified worst-case cost of the policies, (T, J)."""
        return self.column("worst_case")

    @property
    def estimate(self) -> np.ndarray:
        """The agent's estimates of the utility, (T, K)."""
        return self.column("estimate")

    @property
    def cost_lower(self) -> np.ndarray:
        """Lower cost bounds, (T, J, K)."""
        return self.column("cost_lower")

    @property
    def cost_upper(self) -> np.ndarray:
        """Upper cost bounds, (T, J, K)."""
        return self.column("cost_upper")

    @property
    def certificates(self) -> list[dict[str, Any] | None]:
        """The certificate of every decision, as plain values; None for agents without."""
        return [r.certificate for r in self.rounds]

    @property
    def safe_share(self) -> float:
        """The share of rounds in which the safe action was played."""
        safe = self.problem.safe_action
        return float(np.mean(self.action == safe)) if self.rounds and safe is not None else 0.0

    @property
    def action_names(self) -> list[str]:
        """As the problem names them, or ``meta["action_names"]``; else "action 0", ..."""
        K = max([self.problem.n_actions, *(len(r.policy) for r in self.rounds[-1:])])
        given = [
            str(name) for name in self.problem.names.actions or self.meta.get("action_names") or ()
        ]
        return given if len(given) == K else [f"action {k}" for k in range(K)]

    @property
    def context_names(self) -> list[str]:
        """As the problem names them, or ``meta["context_names"]``; else "x[0]", ..."""
        width = len(self.rounds[0].x) if self.rounds else 0
        given = [
            str(name) for name in self.problem.names.columns or self.meta.get("context_names") or ()
        ]
        return given if len(given) == width else [f"x[{i}]" for i in range(width)]

    # summaries ------------------------------------------------------------------------------------

    def outcomes(self) -> dict[str, np.ndarray]:
        """Outcomes by name, each (T, ...), NaN where nothing was observed; (T, K) where several
        actions were revealed.
        """
        named: dict[str, list[Any]] = {UTILITY: self.y}
        own = list(self.problem.constraint_names)
        if isinstance(self.problem, Problem):
            own = [name for name in self.problem.streams if name != UTILITY]
        for i, z in enumerate(self.z):
            pairs = (
                z.items()
                if isinstance(z, Mapping)
                else [(own[0], z)]
                if z is not None and own
                else []
            )
            for name, value in pairs:
                named.setdefault(name, [None] * len(self))[i] = value
        return {
            name: _rectangle(values, self.action, self.problem.n_actions)
            for name, values in named.items()
        }

    def summary(self) -> dict[str, Any]:
        """A few numbers to print. None where the truth, or the outcome, is not known."""
        if not self.rounds:
            return {"rounds": 0}
        known = self.truth_known
        last = slice(-max(1, len(self) // 4), None)
        played = self.outcomes()[UTILITY]
        if played.ndim > 1:
            played = played[np.arange(len(self)), self.action]
        realised = {
            name: _mean(self.realised[:, j]) for j, name in enumerate(self.problem.constraint_names)
        }
        return {
            "rounds": len(self),
            "regret": float(self.regret[-1]) if known else None,
            "mean_utility": _mean(self.utility),
            "last_quarter_utility": _mean(self.utility[last]),
            "oracle_utility": _mean(self.best),
            "mean_outcome": _mean(played),
            "infeasible_rounds": int(self.infeasible.sum()) if known else None,
            "realised_violations": int(self.violated.sum()),
            "realised_cost": realised,
            "safe_share": self.safe_share,
        }

    def by_segment(self) -> dict[str, dict[str, dict[str, Any]]]:
        """The summary of every label of every segment: name -> label -> numbers."""
        table: dict[str, dict[str, dict[str, Any]]] = {}
        for name, labels in self.segments.items():
            if len(labels) != len(self):
                raise ShapeError(
                    f"segment {name!r} has {len(labels)} labels for {len(self)} "
                    "rounds; one each is needed"
                )
            table[name] = {}
            for label in sorted(set(labels)):
                rounds = [r for r, here in zip(self.rounds, labels) if here == label]
                table[name][label] = Run(self.problem, self.seed, rounds).summary()
        return table

    def add_segments(self, segments: Callable[[np.ndarray], Mapping[str, Any]]) -> None:
        """Label every round: ``segments(x)`` gives ``{"sex": "female", "site": 3}`` for one
        context x (dx,).
        """
        found: dict[str, list[str]] = {}
        for i, r in enumerate(self.rounds):
            labels = segments(r.x)
            if not isinstance(labels, Mapping) or (i and set(labels) != set(found)):
                raise ShapeError(
                    "segments(x) must give the same names for every context as a dictionary, got "
                    f"{labels!r}" + (f" after {sorted(found)}" if i else "")
                )
            for name, label in labels.items():
                found.setdefault(str(name), []).append(str(label))
        self.segments = found

    def check_guarantee(self, delta: float = 0.05, **options: Any) -> Any:
        """Compare the run with what the theorem promises; see
        `gedppl.theory.guarantees.check_guarantee` for the options.
        """
        if not isinstance(self.problem, Problem):
            raise RunFileError(
                "a run read from disk has no models to compute a guarantee from: "
                "Run.load(folder, problem)"
            )
        from gedppl.theory.guarantees import check_guarantee

        return check_guarantee(self, delta, **options)

    def to_arviz(self) -> arviz.InferenceData | xarray.DataTree:
        """The run for ArviZ, with policies, bounds, outcomes and members in groups of their own."""
        from gedppl.study.report import to_arviz

        return to_arviz(self)

    def save(self, folder: str | Path) -> Path:
        """Write ``run.npz``, ``run.json`` and ``certificates.jsonl.gz`` into a folder."""
        from gedppl.study.simulation.run_files import save

        return save(self, folder)

    @staticmethod
    def load(
        folder: str | Path, problem: Problem | None = None, *, max_bytes: int | None = None
    ) -> Run:
        """Read a run. Nothing in the files is executed, and memory is only taken in proportion to
        what they have on disk.

        Parameters
        ----------
        problem
            Needed only to continue the run.
        max_bytes
            The memory that the run may need, for files that you trust although they claim more.
        """
        from gedppl.study.simulation.run_files import load

        run = load(folder, max_bytes)
        if problem is not None:
            run.adopt(problem)
        return run

    def adopt(self, problem: Problem) -> None:
        """Go on with this problem, if it is the one that the run was made with."""
        mine, theirs = RunOutline.of(self.problem), RunOutline.of(problem)
        same = (mine.names, mine.safe_action, mine.constraint_names) == (
            theirs.names,
            theirs.safe_action,
            theirs.constraint_names,
        )
        if not same:
            raise RunFileError(
                f"the run was made with another problem: {mine} there, {theirs} here"
            )
        self.problem = problem

    @property
    def _J(self) -> int:
        return len(self.problem.constraint_names)

    def column(self, name: str) -> np.ndarray:
        """One field of every `Round`, (T, ...); NaN where actions were added later."""
        rows = [np.asarray(getattr(r, name), float) for r in self.rounds]
        if not rows:
            return np.zeros((0, self._J if name in ("limit", "worst_case", "realised") else 0))
        wide = max((row.shape[-1] for row in rows), default=0)
        if any(row.shape[-1] != wide for row in rows):  # actions were added on the way
            pad = [(0, 0)] * (rows[0].ndim - 1)
            rows = [
                np.pad(row, [*pad, (0, wide - row.shape[-1])], constant_values=np.nan)
                for row in rows
            ]
        return np.stack(rows)


def _average(policy: np.ndarray, values: np.ndarray) -> np.ndarray:
    """values (..., K) averaged over a policy; an action that is not played need not be known."""
    used = policy > 0
    found: np.ndarray = values[..., used] @ policy[used]
    return found


def _mean(values: np.ndarray) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def _rectangle(values: list[Any], action: np.ndarray, n_actions: int) -> np.ndarray:
    """One outcome's values as an array, (T, ...). Beside (K,) rows, a single number is put at
    the action played.
    """
    rows = [None if v is None else np.asarray(v, float) for v in values]
    shapes = {row.shape for row in rows if row is not None}
    if len(shapes) <= 1:
        shape = next(iter(shapes), ())
        return (
            np.stack([np.full(shape, np.nan) if row is None else row for row in rows])
            if rows
            else np.zeros(0)
        )
    wide = max(n_actions, *(int(np.prod(s)) for s in shapes))
    out = np.full((len(rows), wide), np.nan)
    for i, row in enumerate(rows):
        if row is not None and row.ndim == 0:
            out[i, action[i]] = row
        elif row is not None:
            out[i, : row.size] = row.ravel()
    return out
