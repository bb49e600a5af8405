"""Exploration by sets is optimistic: as arithmetic, and in every round of runs. Controls show
what breaks it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

import gedppl as ged
from gedppl import ged_ucb
from gedppl.ged_ucb.costs import weighted_width
from gedppl.selection import select_policies
from gedppl.study.simulation import constrained_best
from tests.eluder_worlds import CoinTables, CoinWorld
from tests.plain_worlds import state_of

pytestmark = pytest.mark.filterwarnings("ignore::gedppl.agent.SafeActionWarning")

LIMIT = 0.5

# optimism as arithmetic ---------------------------------------------------------------------------


@dataclass
class Drawn:
    """C contexts with a truth inside its bounds. Action 0 is safe; axis letters as in
    `optimism`.
    """

    utility: np.ndarray  # (C, K)
    u_lower: np.ndarray
    u_upper: np.ndarray
    cost: np.ndarray  # (C, J, K)
    lower: np.ndarray
    upper: np.ndarray
    safe_value: np.ndarray  # (C, J) what the safe action is declared to cost
    safe_utility: np.ndarray  # (C,) a lower bound on what it is worth

    @property
    def limits(self) -> np.ndarray:
        return np.full(self.cost.shape[1], LIMIT)

    def best(self) -> np.ndarray:
        """What the constrained oracle gets, (C,)."""
        return np.sum(self.utility * _policies(self.utility, self.cost, self.limits), axis=1)

    def width(self) -> np.ndarray:
        gain = self.u_upper.max(axis=1) - np.maximum(self.safe_utility, self.u_lower[:, 0])
        return weighted_width(self.lower, self.upper, self.limits - self.safe_value, gain)[0]

    def shortfall(
        self, optimistic: np.ndarray | None = None, width: np.ndarray | None = None
    ) -> np.ndarray:
        """How far the best score lies below what the constrained oracle gets, (C,): above 0
        optimism fails.
        """
        score = (self.u_upper if optimistic is None else optimistic) + (
            self.width() if width is None else width
        )
        return self.best() - np.sum(score * _policies(score, self.upper, self.limits), axis=1)


def _policies(score: np.ndarray, cost: np.ndarray, limits: np.ndarray) -> np.ndarray:
    return select_policies(
        score, cost, limits, np.ones(score.shape, bool), np.zeros(score.shape[1]), 0
    )


def draw(n_limits: int, *, exact: bool = True, n: int = 500) -> list[Drawn]:
    """Three times n contexts, with 2, 4 and 6 actions. Most bounds touch the truth: there optimism
    has nothing to spare.

    `exact`: the safe action's cost is known. Otherwise its declared value is above it, and its
    lower bound is learned.
    """
    rng, found = np.random.default_rng(n_limits), []
    for K in (2, 4, 6):

        def reach(*shape: int) -> np.ndarray:
            touching = rng.random((n,) + (1,) * (len(shape) - 1)) < 0.7  # all of a context's
            return rng.uniform(0, 0.6, shape) * (rng.random(shape) < 0.4) * ~touching

        utility, cost = rng.random((n, K)), rng.random((n, n_limits, K))
        cost[..., 0] *= 0.8 * LIMIT
        lower, upper = (
            cost - reach(*cost.shape),
            cost + rng.uniform(0, 0.6, cost.shape) * (rng.random(cost.shape) < 0.4),
        )
        declared = cost[..., 0].copy()
        if not exact:
            declared += rng.random(declared.shape) * (0.95 * LIMIT - declared)
            upper[..., 0] = declared
        else:
            lower[..., 0] = upper[..., 0] = declared
        u_lower, u_upper = (
            np.maximum(utility - reach(n, K), 0.0),
            np.minimum(utility + reach(n, K), 1.0),
        )
        safe_utility = utility[:, 0] * rng.random(n)
        found.append(Drawn(utility, u_lower, u_upper, cost, lower, upper, declared, safe_utility))
    return found


def failures(shortfalls: list[np.ndarray]) -> int:
    return int(np.sum(np.concatenate(shortfalls) > 1e-9))


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("n_limits", [1, 3])
def test_the_best_score_is_worth_at_least_the_constrained_oracle(
    n_limits: int, exact: bool
) -> None:
    drawn = draw(n_limits, exact=exact)
    assert sum(len(d.utility) for d in drawn) == 1500
    assert failures([d.shortfall() for d in drawn]) == 0


@pytest.mark.parametrize("n_limits", [1, 3])
def test_without_the_width_it_is_not(n_limits: int) -> None:
    drawn = draw(n_limits)
    assert failures([d.shortfall(width=np.zeros_like(d.utility)) for d in drawn]) > 20


def test_a_mean_over_limits_in_place_of_the_largest_is_not_optimistic() -> None:
    def mean_width(d: Drawn) -> np.ndarray:
        each = [
            replace(
                d,
                lower=d.lower[:, [j]],
                upper=d.upper[:, [j]],
                cost=d.cost[:, [j]],
                safe_value=d.safe_value[:, [j]],
            )
            for j in range(3)
        ]
        return np.mean([one.width() for one in each], axis=0)

    assert failures([d.shortfall(width=mean_width(d)) for d in draw(3)]) > 20


@pytest.mark.parametrize("n_limits", [1, 3])
def test_a_safe_cost_pinned_at_an_upper_bound_of_it_is_not_optimistic(n_limits: int) -> None:
    def pinned(d: Drawn) -> np.ndarray:
        lower = d.lower.copy()
        lower[..., 0] = d.safe_value
        return replace(d, lower=lower).shortfall()

    assert failures([pinned(d) for d in draw(n_limits, exact=False)]) > 20


@pytest.mark.parametrize("n_limits", [1, 3])
def test_a_lower_bound_of_the_safe_utility_does_not_stand_for_its_upper_one(n_limits: int) -> None:
    def low(d: Drawn) -> np.ndarray:
        optimistic = d.u_upper.copy()
        optimistic[:, 0] = d.safe_utility
        return d.shortfall(optimistic=optimistic)

    assert failures([low(d) for d in draw(n_limits)]) > 20


# optimism in runs ---------------------------------------------------------------------------------


@dataclass
class LimitsWorld(CoinWorld):
    """`CoinWorld` with two limits; `declared` above 0.1 is only an upper bound of what the safe
    action costs.
    """

    declared: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        rng = np.random.default_rng(1000 + self.seed)
        self.harm = rng.uniform(0.05, 0.95, self.G.shape)
        self.harm[:, :, 0] = 0.1
        if self.declared > 0.1:
            for table in (self.G, self.harm):
                table[:, :, 0] = rng.uniform(0.02, self.declared - 0.02, table[:, :, 0].shape)

    @property
    def problem(self) -> ged.Problem:  # type: ignore[override]
        limits = {"cost": self.G, "harm": self.harm}
        return ged.Problem(
            n_actions=self.n_actions,
            utility=ged.Utility(CoinTables(self.F), ged.mean(0, 1)),
            constraints=[
                ged.Constraint(
                    CoinTables(t),
                    ged.mean(0, 1),
                    at_most=self.at_most,
                    safe_value=self.declared,
                    name=name,
                )
                for name, t in limits.items()
            ],
            safe_action=0,
        )

    def costs(self, x: np.ndarray) -> np.ndarray:
        return np.stack([self.G[0, int(x[0])], self.harm[0, int(x[0])]])

    def outcome(
        self, x: np.ndarray, action: int, rng: np.random.Generator
    ) -> tuple[float, dict[str, float]]:  # type: ignore[override]
        y, *z = (rng.random(3) < [self.utilities(x)[action], *self.costs(x)[:, action]]).astype(
            float
        )
        return y, {"cost": z[0], "harm": z[1]}


def watched_run(world: CoinWorld, rounds: int, **options: float) -> tuple[float, float, int]:
    """Over rounds whose sets hold the truth: the least score - oracle, the least limit - true
    cost; and how many did not.
    """
    problem, rng = world.problem, np.random.default_rng(world.seed)
    agent = ged.GEDUCB(
        problem,
        mode="theory",
        exploration="sets",
        growth=1.0,
        seed=world.seed,
        guard=None,
        **options,
    )
    best = np.array(
        [constrained_best(problem, world.utilities(x), world.costs(x))[1] for x in world.contexts]
    )
    costs = np.stack([world.costs(x) for x in world.contexts])
    optimism, slack, missed = np.inf, np.inf, 0
    for _ in range(rounds):
        state = state_of(agent, world.contexts)
        if all(learner.kept[-1][0] for learner in state.learners.values()):
            policy, info = ged_ucb.select(state, world.contexts)
            score = info.utility + info.bonus + info.width
            optimism = min(optimism, np.min(np.sum(policy * score, axis=1) - best))
            slack = min(
                slack,
                np.min(problem.limits - np.einsum("ck,cjk->cj", policy, costs), initial=np.inf),
            )
        else:
            missed += 1
        x = world.context(rng)
        decision = agent.ask(x)
        agent.tell(decision.id, *world.outcome(x, decision.action, rng))
    return optimism, slack, missed


def worlds(seeds: range) -> list[CoinWorld]:
    kinds = [CoinWorld, LimitsWorld, lambda seed: LimitsWorld(seed, declared=0.35)]
    return [make(seed) for seed in seeds for make in kinds]


def check_watched(seeds: range, rounds: int) -> None:
    found = [watched_run(world, rounds) for world in worlds(seeds)]
    assert min(optimism for optimism, _, _ in found) >= -1e-9
    assert min(slack for _, slack, _ in found) >= -1e-9
    # almost all rounds were looked at
    assert sum(missed for _, _, missed in found) <= 0.1 * rounds * len(found)


def test_every_round_of_a_run_is_optimistic_and_feasible() -> None:
    check_watched(range(4), rounds=50)


@pytest.mark.slow
def test_every_round_of_many_runs_is_optimistic_and_feasible() -> None:
    check_watched(range(100, 112), rounds=100)


def test_without_the_width_runs_are_feasible_and_not_optimistic() -> None:
    found = [watched_run(world, 30, width_scale=0.0) for world in worlds(range(3))]
    assert min(optimism for optimism, _, _ in found) < -0.01
    assert min(slack for _, slack, _ in found) >= -1e-9


@dataclass
class FreeWorld(CoinWorld):
    """`CoinWorld` without its limit."""

    @property
    def problem(self) -> ged.Problem:  # type: ignore[override]
        return ged.Problem(
            n_actions=self.n_actions, utility=ged.Utility(CoinTables(self.F), ged.mean(0, 1))
        )

    def costs(self, x: np.ndarray) -> np.ndarray:
        return np.zeros((0, self.n_actions))

    def outcome(self, x: np.ndarray, action: int, rng: np.random.Generator) -> tuple[float]:  # type: ignore[override]
        return (float(rng.random() < self.utilities(x)[action]),)


def test_without_the_bonus_runs_are_not_optimistic() -> None:
    for scale, least in ((1.0, -1e-9), (0.0, -1.0)):
        gaps = [watched_run(FreeWorld(seed), 30, bonus_scale=scale)[0] for seed in range(3)]
        assert least <= min(gaps)
    assert min(gaps) < -0.01


def test_the_theorem_lets_the_set_speak_of_a_safe_cost_that_is_only_bounded() -> None:
    """Pinned at the declared 0.35 its width would never fall below 0.35 - truth, and with it the
    regret would be linear.
    """
    world = LimitsWorld(3, declared=0.35)
    rng = np.random.default_rng(0)
    x, a = np.repeat(world.contexts, 200, axis=0), np.zeros(400, np.int64)
    rows = [world.outcome(row, 0, rng) for row in x]
    told = (
        np.array([y for y, _ in rows]),
        {name: np.array([z[name] for _, z in rows]) for name in ("cost", "harm")},
    )
    theory, default = (
        ged.GEDUCB(world.problem, mode=mode, exploration="sets", growth=1.5)
        for mode in ("theory", "default")
    )
    for agent in (theory, default):
        agent.observe(x, a, *told)
    (_, info), (_, pinned) = (
        ged_ucb.select(state_of(agent, None), world.contexts) for agent in (theory, default)
    )
    for j, (found, table) in enumerate(zip(info.bounds, (world.G, world.harm))):
        assert found is not None
        truth = table[0, :, 0]
        np.testing.assert_array_equal(info.cost_upper[:, j, 0], np.minimum(found.upper[:, 0], 0.35))
        np.testing.assert_array_equal(info.cost_lower[:, j, 0], found.lower[:, 0])
        assert np.all(info.cost_lower[:, j, 0] <= truth)
        assert np.all(truth <= info.cost_upper[:, j, 0])
        np.testing.assert_array_equal(pinned.cost_upper[:, j, 0], 0.35)
        np.testing.assert_array_equal(pinned.cost_lower[:, j, 0], 0.35)
    assert (info.cost_upper - info.cost_lower)[..., 0].max() < 0.1
    assert (0.35 - info.cost_lower)[..., 0].max() > 0.1
    # what users are shown is what is used
    np.testing.assert_array_equal(theory.cost_bounds(world.contexts)[1], info.cost_upper)
