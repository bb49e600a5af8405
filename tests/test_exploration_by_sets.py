"""Exploration by sets in the default mode: ties, invariances, every kind of problem it must
take, and what it refuses.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import gedppl as ged
from gedppl import errors, ged_ucb
from gedppl.density import Density
from gedppl.ged_ucb.settings import settings
from tests.eluder_worlds import CoinTables, CoinWorld
from tests.plain_worlds import state_of

pytestmark = pytest.mark.filterwarnings("ignore::gedppl.agent.SafeActionWarning")


def logged(
    world: CoinWorld, n: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, a = (
        rng.integers(world.n_contexts, size=(n, 1)).astype(float),
        rng.integers(world.n_actions, size=n),
    )
    y, z = np.array([world.outcome(row, action, rng) for row, action in zip(x, a)]).T
    return x, a, y, z


def test_ties_go_to_the_least_played() -> None:
    world = CoinWorld(0)
    world.F[:, :, 1:] = world.F[:, :, :1]  # nothing is ever better than anything
    agent = ged.GEDUCB(ged.Problem(n_actions=4, utility=world.problem.utility), guard=None)
    rng, counts = np.random.default_rng(0), np.zeros(4, int)
    for _ in range(22):
        x = world.context(rng)
        decision = agent.ask(x)
        counts[decision.action] += 1
        agent.tell(decision.id, float(rng.random() < world.utilities(x)[decision.action]))
        assert np.ptp(counts) <= 1


def test_ties_go_first_to_what_reveals_most() -> None:
    world = CoinWorld(0)
    world.F[:, :, 1:] = world.F[:, :, :1]
    reveals = np.eye(4, dtype=bool)
    reveals[2, 1:] = True
    problem = ged.Problem(n_actions=4, utility=world.problem.utility, reveals=reveals)
    agent, rng = ged.GEDUCB(problem, guard=None), np.random.default_rng(0)
    for _ in range(6):
        decision = agent.ask(world.context(rng))
        np.testing.assert_array_equal(decision.policy, [0, 0, 1, 0])
        agent.tell(decision.id, [np.nan, 1.0, 0.0, 1.0])


def test_a_masked_action_is_not_played_and_the_others_are() -> None:
    world = CoinWorld(1)
    agent = ged.GEDUCB(world.problem, guard=None)
    agent.observe(*logged(world, 60))
    for x in world.contexts:
        free = agent.policy(x)
        played = int(np.argmax(free[1:])) + 1
        assert free[played] > 0
        mask = np.arange(4) != played
        policy = agent.ask(x, allowed=mask).policy
        assert policy[played] == 0
        assert policy.sum() == pytest.approx(1.0)
        _, upper = agent.cost_bounds(x)
        assert policy @ np.ravel(upper) <= world.at_most + 1e-9


def test_contexts_decided_together_get_the_policies_they_get_alone() -> None:
    world = CoinWorld(2, n_contexts=5)
    agent = ged.GEDUCB(world.problem, guard=None)
    agent.observe(*logged(world, 40))
    together = agent.policy(world.contexts)
    np.testing.assert_array_equal(together, np.stack([agent.policy(x) for x in world.contexts]))
    assert len(np.unique(together, axis=0)) > 1
    np.testing.assert_array_equal(together, [d.policy for d in agent.ask(world.contexts)])


def test_the_order_in_which_outcomes_are_told_changes_no_policy() -> None:
    world, found = CoinWorld(3), []
    for order in (range(30), reversed(range(30))):
        agent, rng = (
            ged.GEDUCB(world.problem, guard=None, growth=1.0, seed=1),
            np.random.default_rng(0),
        )
        asked = [agent.ask(world.context(rng)) for _ in range(30)]
        told = [world.outcome(d.x, d.action, np.random.default_rng(i)) for i, d in enumerate(asked)]
        for i in order:
            agent.tell(asked[i].id, *told[i])
        found.append(agent.policy(world.contexts))
    np.testing.assert_allclose(found[0], found[1], atol=1e-9)
    assert found[0][:, 1:].max() > 0


def test_outcomes_that_must_age_are_learned_when_they_have() -> None:
    world = CoinWorld(3)
    agent, rng = (
        ged.GEDUCB(replace(world.problem, outcome_age=5), guard=None, growth=1.0),
        np.random.default_rng(0),
    )
    for decided in range(1, 31):
        x = world.context(rng)
        decision = agent.ask(x)
        state = state_of(agent, None)
        assert state.told == max(0, decided - 4)
        assert state.played.sum() == state.told
        agent.tell(decision.id, *world.outcome(x, decision.action, rng))
    early = ged.GEDUCB(world.problem, guard=None).policy(world.contexts)
    assert not np.allclose(agent.policy(world.contexts), early)


def test_permuting_actions_permutes_policies() -> None:
    order = np.array([0, 3, 1, 2])  # new action k is old action order[k]
    world, other = CoinWorld(5), CoinWorld(5)
    other.F, other.G = world.F[:, :, order], world.G[:, :, order]
    x, a, y, z = logged(world, 200)
    for n in (0, 5, 30, 200):
        agents = [ged.GEDUCB(w.problem, guard=None) for w in (world, other)]
        if n:
            agents[0].observe(x[:n], a[:n], y[:n], z[:n])
            agents[1].observe(x[:n], np.argsort(order)[a[:n]], y[:n], z[:n])
        first, second = (agent.policy(world.contexts) for agent in agents)
        np.testing.assert_allclose(second, first[:, order], atol=1e-9)


class ScaledTables(CoinTables):
    """Normal outcomes around the tables' numbers, in other units."""

    def __init__(self, tables: np.ndarray, gain: float, shift: float) -> None:
        super().__init__(tables)
        self.gain, self.shift = gain, shift

    def density(self, m: int, x: np.ndarray, a: np.ndarray) -> Density:
        return Density(
            "Normal",
            {"loc": self.shift + self.gain * self.probs(x, a)[m], "scale": 0.3 * self.gain},
        )

    def log_likelihood(
        self, theta: np.ndarray, x: np.ndarray, a: np.ndarray, y: np.ndarray
    ) -> np.ndarray:
        return -0.5 * (
            ((np.asarray(y) - self.shift) / self.gain - self.probs(x, a)[theta]) / 0.3
        ) ** 2 - np.log(self.gain)

    def values(
        self,
        functional: ged.functionals.Functional,
        theta: np.ndarray,
        x: np.ndarray,
        a: np.ndarray,
    ) -> np.ndarray:
        return self.shift + self.gain * self.probs(x, a)[theta]


@pytest.mark.parametrize(
    ("utility", "cost"),
    [((1e4 / 7, -3.0), (1.0, 0.0)), ((1.0, 0.0), (0.003, 11.0)), ((0.01, 5.0), (300.0, -70.0))],
)
@pytest.mark.parametrize("mode", ["default", "theory"])
def test_units_of_utility_and_cost_change_no_policy(
    mode: str, utility: tuple[float, float], cost: tuple[float, float]
) -> None:
    world, rng = CoinWorld(4), np.random.default_rng(0)
    x, a, _, _ = logged(world, 60)
    cells = (0, x[:, 0].astype(int), a)
    y, z = (table[cells] + 0.3 * rng.normal(size=60) for table in (world.F, world.G))

    def policies(u: tuple[float, float], c: tuple[float, float], n: int) -> np.ndarray:
        F, G = ScaledTables(world.F, *u), ScaledTables(world.G, *c)
        limit, safe = c[1] + c[0] * world.at_most, c[1] + c[0] * 0.1
        problem = ged.Problem(
            4,
            ged.Utility(F, ged.mean(u[1], u[1] + u[0])),
            [ged.Constraint(G, ged.mean(c[1], c[1] + c[0]), at_most=limit, safe_value=safe)],
            safe_action=0,
        )
        agent = ged.GEDUCB(problem, mode=mode, exploration="sets", guard=None)
        agent.observe(x[:n], a[:n], u[1] + u[0] * y[:n], c[1] + c[0] * z[:n])
        return agent.policy(world.contexts)

    for n in (1, 10, 60):
        np.testing.assert_allclose(
            policies(utility, cost, n), policies((1.0, 0.0), (1.0, 0.0), n), atol=1e-9
        )


def test_without_a_limit_the_best_is_found() -> None:
    world = CoinWorld(6)
    agent = ged.GEDUCB(ged.Problem(n_actions=4, utility=world.problem.utility), guard=None)
    x, a, y, _ = logged(world, 400)
    agent.observe(x, a, y)
    np.testing.assert_array_equal(
        agent.policy(world.contexts).argmax(axis=1), world.F[0].argmax(axis=1)
    )
    assert np.all(agent.explain(agent.ask(world.contexts[0])).width == 0)


def test_a_known_cost_has_no_width_and_is_kept_exactly() -> None:
    world = CoinWorld(7)
    fees = np.array([0.0, 0.1, 0.5, 1.0])
    base = world.problem
    problem = replace(
        base,
        constraints=[*base.constraints, ged.known_cost(lambda x: fees, at_most=0.3, name="fee")],
    )
    agent, rng, spent = ged.GEDUCB(problem, guard=None), np.random.default_rng(0), []
    for _ in range(60):
        x = world.context(rng)
        decision = agent.ask(x)
        spent.append(decision.policy @ fees)
        agent.tell(decision.id, *world.outcome(x, decision.action, rng))
    assert max(spent) <= 0.3 + 1e-12
    assert max(spent) > 0
    free = replace(base, constraints=[ged.known_cost(lambda x: fees, at_most=0.3, name="fee")])
    assert np.all(
        ged_ucb.select(state_of(ged.GEDUCB(free), world.contexts), world.contexts)[1].width == 0
    )


@pytest.mark.parametrize(("ends", "declared"), [((0.05, 0.95), None), ((0.95, 0.05), 0.05)])
def test_a_safe_action_that_is_never_learned_is_not_clung_to(
    ends: tuple[float, float], declared: float | None
) -> None:
    """Members differ in the safe action's utility alone, which stays unknown: taken at its best,
    every policy would end there. What is declared of it goes before the fit.
    """
    world = CoinWorld(8)
    world.F[:, :, 0], world.F[:, :, 1:] = np.linspace(*ends, world.members)[:, None], 0.6
    world.G[:, :, 1:] = 0.2
    agent = ged.GEDUCB(
        replace(world.problem, learn_safe=False, safe_utility=declared), bonus_scale=1.0, guard=None
    )
    rng = np.random.default_rng(0)
    for _ in range(15):
        x = world.context(rng)
        decision = agent.ask(x)
        assert decision.policy[0] == 0
        agent.tell(decision.id, *world.outcome(x, decision.action, rng))
    assert np.all(agent.confidence_set("utility").learner.plausible)  # nothing was learned of it


# what may be asked for ----------------------------------------------------------------------------


def test_weights_of_the_theorem_and_of_the_default() -> None:
    theory, default = settings("theory", exploration="sets"), settings()
    assert (theory.bonus_scale, theory.width_scale, theory.exploration) == (1.0, 1.0, "sets")
    assert default.exploration == "sets"
    assert 0 < default.bonus_scale <= 1
    assert 0 < default.width_scale <= 1
    assert settings("theory").exploration == settings("paper").exploration == "counterfactual"


@pytest.mark.parametrize("word", ["foo", "Sets", "", 3, True, ["sets"]])
def test_an_unknown_exploration_is_refused_by_name(word: object) -> None:
    with pytest.raises(
        errors.SettingError,
        match=r"exploration must be one of \('sets', "
        r"'counterfactual', 'thompson'\), got",
    ):
        ged.GEDUCB(CoinWorld(0).problem, exploration=word)  # type: ignore[arg-type]


def test_the_papers_algorithm_does_not_explore_by_sets() -> None:
    with pytest.raises(errors.SettingError, match='use mode="theory" with "sets"'):
        ged.GEDUCB(CoinWorld(0).problem, mode="paper", exploration="sets")


def test_the_word_selection_is_gone() -> None:
    with pytest.raises(TypeError, match="selection"):
        ged.GEDUCB(CoinWorld(0).problem, selection="joint")  # type: ignore[call-arg]
