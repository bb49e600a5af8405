"""Look at a problem before round 1: what the prior says, what can be learned, which bounds will be
exact, what limits cost.

Nothing here has seen data. Priors are taken at their word, and what they contradict (a range, a
safe value) is said.

Axis letters: M prior draws, n contexts, K actions, D flat parameters.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gedppl.agent import GEDUCB
from gedppl.errors import FitWarning, FunctionalError, SettingError
from gedppl.functionals import Functional
from gedppl.learning import Where
from gedppl.learning.seen_class import served
from gedppl.numerics.arrays import check_whole
from gedppl.problem import Constraint, Problem, Utility
from gedppl.programs.contract import DensityClass, MemberList
from gedppl.rows import grid
from gedppl.showing import Facts, Shown
from gedppl.study.planning import price as pricing
from gedppl.study.planning.paths import event_free_path
from gedppl.study.planning.worlds import Scenario, make_world, read_rows
from gedppl.theory.eluder.classes import draw_members, member_densities

QUANTILES = (0.05, 0.5, 0.95)
# shares of draws: fewer than FEW is no finding, more than MANY is most of them
FEW, MANY = 0.01, 0.5
SMALL_MIX = 0.05
REHEARSED = 40  # rows from a world of the prior, after which certificates are read
SEEN = 1e-9  # share of the largest scaled information under which a direction is not seen


@dataclass(frozen=True)
class OutcomeCheck:
    """One outcome and its model."""

    name: str
    exactness: str
    quantiles: np.ndarray  # (K, 3) 5%, 50% and 95% of the prior predictive
    dim: int  # D, 0 for a finite class
    ranks: np.ndarray  # (K,) directions of the parameters that rows of one action show
    rank: int  # that rows of all actions show
    unseen: tuple[str, ...]  # sites that no action shows in full
    # (K,) share of ones in the prior predictive, where outcomes are 0 or 1
    ones: np.ndarray | None = None
    # rows that have a confidence set by themselves: all, and those of actions with own parameters
    sets: tuple[str, ...] = ()


@dataclass(frozen=True)
class LimitCheck:
    """One learned constraint under the prior."""

    name: str
    at_most: float
    quantiles: np.ndarray  # (K, 3) of the functional over draws and contexts
    over: np.ndarray  # (K,) share of draws and contexts in which the action is above the limit
    only_safe: float  # share of draws and contexts in which every other action is
    outside: float  # share of values that leave the functional's declared range
    # share of draws and contexts in which the model puts the safe action above its declared value
    safe_above: float
    first_mix: tuple[float, float]  # least and largest over contexts
    method: str  # how a bound was found after a rehearsal of a few rows
    guaranteed: bool


@dataclass(frozen=True, repr=False)
class ProblemReport(Shown):
    """What is known of a problem before round 1. ``print`` it; `warnings` say what to change;
    `plot` shows the prior.
    """

    actions: tuple[str, ...]
    outcomes: tuple[OutcomeCheck, ...]
    limits: tuple[LimitCheck, ...]
    # actions given if no bad outcome ever comes, for limits on every draw; empty where it is not
    # known
    path: tuple[int, ...]
    # share of the utility's values under the prior that leave its declared range
    utility_outside: float
    # rounds until half of the decisions leave the safe action, one a simulated run
    waits: tuple[int | None, ...]
    rounds: int  # how long a run waited at most
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        lines = ["Before round 1"]
        for o in self.outcomes:
            lines += [
                f"outcome {o.name!r}",
                f"  bounds: {o.exactness}",
                *([f"  sets: for {'; '.join(o.sets)}"] if len(o.sets) > 1 else []),
                *self._predictive(o),
                *_identified(o),
            ]
        for c in self.limits:
            lines += [f"limit {c.name!r} at {c.at_most:g}", *self._prior_of(c)]
        lines += [f"if no bad outcome ever comes: {self._path_words}"] if self.path else []
        lines += (
            [f"until half of the decisions leave the safe action: {self._wait}"]
            if self.waits
            else []
        )
        lines += [f"WARNING: {text}" for text in self.warnings] or ["no warnings"]
        return "\n".join(lines)

    def _shown(self) -> Facts:
        facts = {f"bounds of {o.name!r}": o.exactness.partition(":")[0] for o in self.outcomes}
        for c in self.limits:
            word = "guarantee" if c.guaranteed else "no guarantee"
            facts[f"limit {c.name!r}"] = (
                f"at {c.at_most:g}; first mix {_span(*c.first_mix)}; {c.method}, {word}"
            )
        if self.path:
            facts["if no bad outcome comes"] = self._path_words
        if self.waits:
            facts["until half leave the safe action"] = self._wait
        facts |= {f"warning {i}": text for i, text in enumerate(self.warnings, 1)} or {
            "warnings": "none"
        }
        return "Before round 1", facts

    @property
    def _path_words(self) -> str:
        first = {k: self.path.index(k) + 1 for k in dict.fromkeys(self.path)}
        return (
            ", ".join(f"{self.actions[k]} from round {t}" for k, t in first.items())
            + f" (of {len(self.path)})"
        )

    @property
    def _wait(self) -> str:
        runs = len(self.waits)
        return (
            f"{pricing.wait_words(self.waits, self.rounds)} in {runs} simulated "
            f"run{'s' * (runs > 1)}"
        )

    def _predictive(self, o: OutcomeCheck) -> list[str]:
        if o.ones is not None:  # quantiles of zeros and ones would say nothing
            return [
                f"  prior predictive of {a}: 1 in {share:.0%}"
                for a, share in zip(self.actions, o.ones)
            ]
        return [
            f"  prior predictive of {a}: {_interval(q)}" for a, q in zip(self.actions, o.quantiles)
        ]

    def _prior_of(self, c: LimitCheck) -> list[str]:
        word = "guarantee" if c.guaranteed else "no guarantee"
        lines = [
            f"  {a}: {_interval(q)} under the prior, above the limit in {share:.0%}"
            for a, q, share in zip(self.actions, c.quantiles, c.over)
        ]
        return [
            *lines,
            f"  only the safe action keeps it in {c.only_safe:.0%} of draws and contexts",
            f"  in the first round at most {_span(*c.first_mix)} of the decisions can leave the "
            "safe action",
            f"  after {REHEARSED} rehearsed rows its bound is {c.method}: {word}",
        ]

    def plot(self, axes: Any = None) -> Any:
        """One panel a limit: the prior's 5%, 50% and 95% of every action beside the limit.
        Returns the matplotlib axes.
        """
        import matplotlib.pyplot as plt

        if not self.limits:
            raise SettingError("this problem has no learned limit to plot")
        if axes is None:
            axes = plt.subplots(
                1, len(self.limits), figsize=(5 * len(self.limits), 3.2), squeeze=False
            )[1][0]
        axes = np.atleast_1d(axes)
        for ax, c in zip(axes, self.limits):
            low, middle, high = c.quantiles.T
            ax.errorbar(
                np.arange(len(middle)), middle, [middle - low, high - middle], fmt="o", capsize=4
            )
            ax.axhline(c.at_most, color="tab:red", linestyle="--", label="limit")
            ax.set_xticks(np.arange(len(middle)), self.actions)
            ax.set_ylabel(f"{c.name}, prior 5% to 95%")
            ax.legend()
        return axes


def check_problem(
    problem: Problem,
    contexts: Any,
    *,
    draws: int = 200,
    rounds: int = 150,
    runs: int = 2,
    seed: int = 0,
    agent: Mapping[str, Any] = pricing.NO_OPTIONS,
) -> ProblemReport:
    """Look at a problem before round 1, and say what to change.

    Parameters
    ----------
    contexts
        (n, dx), or a data frame where the problem declares columns: contexts like those that will
        come; at most 100 are used.
    draws
        M, parameters from the prior. Those without a prior are standard normal around their initial
        value.
    rounds, runs
        Simulated runs, and how long each waits at most until half of the decisions leave the safe
        action; ``runs=0`` skips them.
    agent
        Options for `GEDUCB`, as they will be used: the certificates and waits are those of such an
        agent.

    Returns
    -------
    A `ProblemReport`: for every outcome the prior predictive by action, which bounds will be exact
    and what stands in the way, and how many directions of the parameters each action shows (the
    rank of its information); for every limit its value under the prior, the share of contexts in
    which only the safe action keeps it, what the prior contradicts of the declared range and safe
    value, and the largest first mix (limit - safe) / (high - safe); where limits are on every draw,
    the path taken if no bad outcome ever comes, and actions that it never reaches; the expected
    wait; and warnings.

    Notes
    -----
    The first mix is exact. All else is a statement about the prior and about `draws` draws of it,
    and no guarantee.

    >>> import numpy as np, jax.numpy as jnp, numpyro, numpyro.distributions as dist, gedppl as ged
    >>> def coin(x, a, y=None):
    ...     w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    ...     numpyro.sample("y", dist.Bernoulli(logits=w[a]), obs=y)
    >>> harm = ged.Constraint(
    ...     ged.density_class(coin), ged.mean(0, 1), at_most=0.4, safe_value=0.1, name="harm"
    ... )
    >>> problem = ged.Problem(
    ...     2, ged.Utility(ged.density_class(coin), ged.mean(0, 1)), [harm], safe_action=0
    ... )
    >>> report = check_problem(problem, np.zeros((5, 1)), runs=0)
    >>> round(report.limits[0].first_mix[0], 9), report.limits[0].guaranteed
    (0.333333333, True)
    """
    check_whole(10, draws=draws)
    check_whole(0, runs=runs, seed=seed)
    check_rounds(rounds, runs)
    x = pricing.some_contexts(read_rows(problem, contexts), seed)
    problem.trace(x)
    outcomes = tuple(
        _outcome(name, cls, x, problem.n_actions, draws, seed)
        for name, cls in problem.streams.items()
    )
    words = {} if not _learned(problem) else _rehearsed(problem, x, seed, agent)
    limits = tuple(_limit(problem, c, x, draws, seed, words) for c in _learned(problem))
    outside = _outside(
        problem.utility.functional,
        _prior_values(problem.utility, x, problem.n_actions, draws, seed),
    ).mean()
    waits, trouble = _waits(problem, x, rounds, runs, seed, agent)
    path = _path(problem, x, seed, agent)
    said = [
        *trouble,
        *_of_utility(problem, outside),
        *_given_twice(problem),
        *_never_reached(problem, path),
        *(w for o in outcomes for w in _of_outcome(o)),
        *(w for c in limits for w in _of_limit(problem, c)),
    ]
    named = problem.names.actions or [f"action {k}" for k in range(problem.n_actions)]
    return ProblemReport(
        tuple(named), outcomes, limits, tuple(path), float(outside), waits, int(rounds), tuple(said)
    )


def check_rounds(rounds: int, runs: int) -> None:
    """A wait ends with a share of the last `pricing.WINDOW` decisions, so that fewer rounds
    could never show one.
    """
    check_whole(1, rounds=rounds)
    if runs and rounds < pricing.WINDOW:
        raise SettingError(
            f"rounds must be a whole number of at least {pricing.WINDOW}, got {rounds}: the wait "
            "ends when half of the last "
            f"{pricing.WINDOW} decisions leave the safe action; runs=0 simulates no run"
        )


def _learned(problem: Problem) -> list[Constraint]:
    return [c for _, c in problem.learned]


# outcomes -----------------------------------------------------------------------------------------


def _outcome(
    name: str, cls: Any, x: np.ndarray, n_actions: int, draws: int, seed: int
) -> OutcomeCheck:
    xs, a = grid(x, n_actions)
    densities = member_densities(cls, xs, a, n_members=draws, seed=seed)
    parts = densities if isinstance(densities, list) else [densities]
    drawn = [d.sample(seed, 1).reshape(-1, len(x), n_actions, *d.event_shape) for d in parts]
    # of a vector outcome, all components alike
    by_action = np.moveaxis(np.concatenate(drawn), 2, 0).reshape(n_actions, -1)
    quantiles = np.quantile(by_action, QUANTILES, axis=1).T
    ones = by_action.mean(axis=1) if np.isin(by_action, (0, 1)).all() else None
    return cls.visit(
        lambda members: OutcomeCheck(
            name, cls.exactness, quantiles, 0, np.zeros(n_actions, int), 0, (), ones
        ),
        lambda cls: replace(_shown_by(name, cls, x, n_actions, quantiles, seed), ones=ones),
    )


def _shown_by(
    name: str, cls: DensityClass, x: np.ndarray, n_actions: int, quantiles: np.ndarray, seed: int
) -> OutcomeCheck:
    shown = [_information(cls, x, np.full(len(x), k), seed) for k in range(n_actions)]
    unseen = _unseen_sites(cls, np.sum(shown, axis=0))
    ranks = np.array([_rank(one) for one in shown])
    return OutcomeCheck(
        name,
        cls.exactness,
        quantiles,
        int(cls.dim),
        ranks,
        _rank(np.sum(shown, axis=0)),
        unseen,
        sets=tuple(map(str, Where(x[:1], n_actions, tuple(range(n_actions))).groups(served(cls)))),
    )


def _information(cls: Any, x: np.ndarray, a: np.ndarray, seed: int) -> np.ndarray:
    """Scores squared and summed (D, D), at a draw of the prior and outcomes that it gives;
    contexts repeated beyond D rows.
    """
    times = -(-4 * cls.dim // len(x)) if len(x) < 4 * cls.dim else 1
    x, a = np.tile(x, (times, 1)), np.tile(a, times)
    theta = draw_members(cls, 1, seed)[0]
    y = cls.density_at(theta, x, a).sample(seed, 1)[0]
    scores = np.asarray(cls.score(theta, x, a, y), float)
    return scores.T @ scores


def _scaled(information: np.ndarray) -> np.ndarray:
    """To a unit diagonal, so that no unit decides what counts as seen; what is not seen at all
    stays 0.
    """
    sd = np.sqrt(np.diag(information))
    return information / np.where(sd > 0, sd, 1.0)[:, None] / np.where(sd > 0, sd, 1.0)


def _rank(information: np.ndarray) -> int:
    values = np.linalg.eigvalsh(_scaled(information))
    return int((values > SEEN * max(values.max(), 1.0)).sum())


def _unseen_sites(cls: Any, information: np.ndarray) -> tuple[str, ...]:
    values, vectors = np.linalg.eigh(_scaled(information))
    blind = vectors[:, values <= SEEN * max(values.max(), 1.0)]  # (D, directions)
    if not blind.shape[1]:
        return ()
    moved = (np.abs(blind) > 1e-3).any(axis=1)
    return tuple(site.name for site in cls.sites if moved[site.start : site.stop].any())


def _identified(o: OutcomeCheck) -> list[str]:
    if not o.dim:
        return []
    by_action = ", ".join(str(r) for r in o.ranks)
    return [
        f"  directions of its {o.dim} parameters that rows show, by action: {by_action}; all "
        f"actions together: {o.rank}"
    ]


def _of_outcome(o: OutcomeCheck) -> list[str]:
    if o.rank >= o.dim:
        return []
    return [
        f"outcome {o.name!r}: these contexts and actions show {o.rank} of {o.dim} directions of "
        "the parameters; what they never "
        f"show involves {', '.join(o.unseen)}: only the prior will ever speak about it"
    ]


# limits -------------------------------------------------------------------------------------------


def _prior_values(
    c: Constraint | Utility, x: np.ndarray, n_actions: int, draws: int, seed: int
) -> np.ndarray:
    """The functional at draws of the prior: (M, n, K)."""
    xs, a = grid(x, n_actions)
    cls = c.model
    theta = cls.visit(lambda members: members.every, lambda cls: draw_members(cls, draws, seed))
    values = cls.values(c.functional, theta, xs, a)
    return np.asarray(values, float).reshape(-1, len(x), n_actions)


def _slack(f: Functional) -> float:
    return SEEN * (f.high - f.low) if np.isfinite(f.high - f.low) else 0.0


def _outside(f: Functional, values: np.ndarray) -> np.ndarray:
    """Which values leave the declared range: (M, n, K) bool."""
    return np.isnan(values) | (values > f.high + _slack(f)) | (values < f.low - _slack(f))


def _limit(
    problem: Problem,
    c: Constraint,
    x: np.ndarray,
    draws: int,
    seed: int,
    words: Mapping[str, tuple[str, bool]],
) -> LimitCheck:
    j, f, a0 = problem.constraint_names.index(c.name), c.functional, int(problem.safe_action or 0)
    values = _prior_values(c, x, problem.n_actions, draws, seed)
    safe = problem.safe_values(x)[:, j]
    pinned = values.copy()
    # what was declared of the safe action counts, not what the model says of it
    pinned[..., a0] = safe
    others = np.delete(pinned, a0, axis=2)
    mix = pricing.first_mix(problem, x)[:, [k.name for k in _learned(problem)].index(c.name)]
    method, guaranteed = words[c.name]
    return LimitCheck(
        name=c.name,
        at_most=float(c.at_most),
        quantiles=np.quantile(pinned, QUANTILES, axis=(0, 1)).T,
        over=(pinned > c.at_most).mean(axis=(0, 1)),
        only_safe=float((others > c.at_most).all(axis=2).mean()) if others.shape[2] else 1.0,
        outside=float(_outside(f, values).mean()),
        safe_above=float((values[..., a0] > safe + _slack(f)).mean())
        if problem.learn_safe
        else 0.0,
        first_mix=(float(mix.min()), float(mix.max())),
        method=method,
        guaranteed=guaranteed,
    )


def _rehearsed(
    problem: Problem, x: np.ndarray, seed: int, options: Mapping[str, Any]
) -> dict[str, tuple[str, bool]]:
    """Constraint -> (method, guaranteed) of a certificate after a few rows from a world of the
    prior, actions in turn.

    What a program's text promises is not asked: the bound is computed, and its certificate read.
    """
    agent = GEDUCB(problem, **({"seed": seed, "guard": None} | dict(options)))
    try:
        world = make_world(problem, Scenario(), x, seed)
    except FunctionalError:  # the prior contradicts the ranges, which is reported by itself
        return _certified(agent, x)
    rng = np.random.default_rng(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        rows = np.stack([world.context(rng) for _ in range(REHEARSED)])
        actions = np.arange(REHEARSED) % problem.n_actions
        told = [world.outcome(row, int(action), rng) for row, action in zip(rows, actions)]
        z = {name: np.array([one[name] for _, one in told]) for name in told[0][1] or {}}
        agent.observe(rows, actions, np.array([y for y, _ in told]), z or None)
        return _certified(agent, x)


def _certified(agent: GEDUCB, x: np.ndarray) -> dict[str, tuple[str, bool]]:
    decision = agent.ask(x[0])
    assert not isinstance(decision, list)
    return {c.name: (c.method, c.guaranteed) for c in decision.certificate.constraints}


def _waits(
    problem: Problem, x: np.ndarray, rounds: int, runs: int, seed: int, agent: Mapping[str, Any]
) -> tuple[tuple[int | None, ...], list[str]]:
    if not runs or not _learned(problem) or problem.n_actions < 2:
        return (), []
    try:
        return pricing.simulated_waits(
            problem, x, rounds=rounds, runs=runs, seed=seed, agent=agent
        ), []
    except FunctionalError as error:
        return (), [f"no run could be simulated: {error}"]


def _path(problem: Problem, x: np.ndarray, seed: int, agent: Mapping[str, Any]) -> list[int]:
    if not problem.every_draw.any() or problem.safe_action is None:
        return []
    return event_free_path(problem, x, REHEARSED, agent, seed) or []


def _never_reached(problem: Problem, path: list[int]) -> list[str]:
    hidden = [
        str(problem.names.label(k))
        for k in range(problem.n_actions)
        if path and k not in {*path, problem.safe_action}
    ]
    if not hidden:
        return []
    return [
        f"even if no bad outcome ever comes, {len(path)} rounds do not reach {', '.join(hidden)}: "
        "where a limit holds on every "
        "draw, an untried action is reached through prior and model alone, and a prior can hide "
        "one for good; centre the prior "
        "lower, ask for a lower level, or let a protocol name a starting action"
    ]


def _believed(model: DensityClass | MemberList) -> bool:
    """Whether it has a prior: what stands in for one contradicts no declaration."""
    return model.visit(lambda members: True, lambda cls: all(site.prior for site in cls.sites))


def _of_utility(problem: Problem, outside: float) -> list[str]:
    f = problem.utility.functional
    if outside <= FEW or not _believed(problem.utility.model):
        return []
    return [
        f"utility: {outside:.0%} of the prior's values lie outside its declared range, {f.low:g} "
        f"to {f.high:g}; widen low= and "
        "high=, narrow the prior, or bring the columns of x to a size that its coefficients expect "
        "(large numbers, such as an "
        "age in years, make a wide prior of a narrow one)"
    ]


def _given_twice(problem: Problem) -> list[str]:
    """Streams that learn one model object from outcomes of their own: mostly a forgotten
    `outcome=`.
    """
    said: list[str] = []
    first: dict[int, str] = {}
    for name, model in problem.streams.items():
        other = first.setdefault(id(model), name)
        if other != name:
            said.append(
                f"outcome {name!r} has the very model of {other!r}, and each is learned from what "
                "is told of it: if they are one "
                f"outcome, say outcome={other!r} in the Constraint, otherwise tell both"
            )
    return said


def _of_limit(problem: Problem, c: LimitCheck) -> list[str]:
    said = []
    believed = all(_believed(one.model) for _, one in problem.learned if one.name == c.name)
    if believed and c.outside > FEW:
        said.append(
            f"limit {c.name!r}: {c.outside:.0%} of the prior's values lie outside the declared "
            "range; widen low= and high=, or "
            "narrow the prior: a range that is wrong is found out only later"
        )
    if believed and c.safe_above > MANY:
        said.append(
            f"limit {c.name!r}: in {c.safe_above:.0%} of the prior's draws the model puts the safe "
            "action above its declared "
            "safe_value; centre the prior where the safe action is known to be, or set "
            "learn_safe=False if the model does not "
            "describe it"
        )
    if c.first_mix[1] < SMALL_MIX:
        said.append(
            f"limit {c.name!r}: in the first round at most {_span(*c.first_mix)} of the decisions "
            "can leave the safe action, so "
            "learning starts slowly; ged.price tries what else might truthfully be declared"
        )
    if c.only_safe > MANY:
        said.append(
            f"limit {c.name!r}: under the prior only the safe action keeps it in {c.only_safe:.0%} "
            "of draws and contexts; if the "
            "prior is right, the limit leaves little to gain"
        )
    if not c.guaranteed:
        said.append(
            f"limit {c.name!r}: after {REHEARSED} rehearsed rows its bound is {c.method} and no "
            "guarantee; print the class's "
            ".exactness for what stands in the way"
        )
    return said


# words --------------------------------------------------------------------------------------------


def _interval(q: np.ndarray) -> str:
    return f"{q[1]:.3g} ({q[0]:.3g} to {q[2]:.3g})"


def _span(low: float, high: float) -> str:
    return f"{high:.2g}" if high - low <= SEEN else f"{low:.2g} to {high:.2g} (by context)"
