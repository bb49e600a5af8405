"""selection="joint": the worst case of a whole policy over the confidence set, through the agent."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

import gedppl as ged
from gedppl import ged_ucb
from gedppl.agent import FallbackWarning
from gedppl.counterfactual.joint import JointCosts, joint_pass
from gedppl.functionals import Functional
from tests.problems import TableWorld
from tests.test_exact_safe_value import MU, SAFE, SIGMA, TAU, THETA, D, K, contexts, infeasible_rounds, logged, problem

pytestmark = pytest.mark.filterwarnings("ignore::gedppl.agent.SafeActionWarning")


def test_every_round_is_feasible_and_the_joint_worst_case_is_what_counts() -> None:
    rng = np.random.default_rng(3)
    agent, apart = ged.GEDUCB(problem(), selection="joint", guard=None), 0
    for x in contexts(rng, 120):
        decision = agent.ask(x)
        phi = x.reshape(K, D)
        assert decision.policy @ (phi @ MU) <= TAU + 1e-9
        (part,) = decision.certificate.constraints
        assert part.worst_case <= TAU + 1e-9
        terms = agent.explain(decision)
        action_wise = decision.policy @ np.where(decision.policy > 0, terms.cost_upper[0], 0.0)
        assert part.worst_case <= action_wise + 1e-9
        apart += action_wise > TAU + 1e-6
        f = phi[decision.action]
        agent.tell(decision.id, f @ THETA + SIGMA * rng.normal(), f @ MU + SIGMA * rng.normal())
    assert apart > 10  # policies that action-wise bounds would have refused


def test_the_worst_case_is_that_of_the_set() -> None:
    agent = logged(ged.GEDUCB(problem(), selection="joint", guard=None), 40)
    x = contexts(np.random.default_rng(5), 30)
    state = agent._current(x)
    policy, info = ged_ucb.select(state, x)
    worst = ged_ucb.worst_case(policy, info.cost_upper, info.joint)[:, 0]
    s, rng = state.learners["cost"].snapshots, np.random.default_rng(6)
    unit = rng.normal(size=(40_000, D))
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    members = s.middle[-1, 0] + unit @ s.factor[-1, 0]
    for c in range(len(x)):
        phi = x[c].reshape(K, D)
        cost = np.minimum(members @ phi.T, 1.0)  # the functional's range
        cost[:, 0] = phi[0] @ MU  # the safe action's is known
        seen = (cost @ policy[c]).max()
        assert seen <= worst[c] + 1e-9
        assert seen >= worst[c] - 0.01 * (1 + worst[c]) or (info.cost_upper[c, 0] == 1.0).any()


def history(t: int, seed: int, n_actions: int = 4) -> dict:
    """Snapshots whose ellipsoids shrink like 1/sqrt(rounds)."""
    rng = np.random.default_rng(seed)
    start = np.unique(np.append(np.arange(min(8, t + 1)), np.floor(8 * 1.2 ** np.arange(40)).astype(int)))
    start = start[start <= t]
    shrink = 1 / np.sqrt(1 + start)[:, None]
    utility, cost = rng.random(n_actions), rng.random(n_actions)
    utility[0], cost[0] = 0.1, 0.05
    base = utility + 0.2 * shrink * rng.normal(size=(len(start), n_actions))
    mean = cost + 0.1 * shrink * rng.normal(size=(len(start), n_actions))
    factor = shrink[:, :, None] * rng.normal(size=(n_actions, 3))
    mean[:, 0], factor[:, 0] = 0.05, 0.0
    weight = 0.05 * np.sqrt(np.arange(t + 1) + 1.0)
    costs = JointCosts(mean[None, :, None], factor[None, :, None])
    return {"base_score": base[None], "costs": costs, "at_most": np.full((len(start), 1), 0.4), "bonus_weight": weight,
            "block_start": start, "t": t, "safe_action": 0}  # fmt: skip


def until(given: dict, t: int) -> dict:
    n = int(np.searchsorted(given["block_start"], t, side="right"))
    return given | {
        "base_score": given["base_score"][:, :n], "costs": given["costs"].under(slice(n)), "at_most": given["at_most"][:n],
        "bonus_weight": given["bonus_weight"][: t + 1], "block_start": given["block_start"][:n], "t": t,
    }  # fmt: skip


def test_the_past_is_replayed_exactly() -> None:
    """What round t adds to the counts, seen from any later round, is the policy that round t played."""
    given = history(40, 1)
    for t in (5, 11, 23, 39):
        now, later = (joint_pass(**until(given, s), exact=True) for s in (t, t + 1))
        assert (now.expected_count + now.policy == later.expected_count).all()


@pytest.mark.parametrize("seed", range(4))
def test_blocks_stay_close_to_the_walk(seed: int) -> None:
    given = history(150, seed)
    walked, filled = joint_pass(**given, exact=True), joint_pass(**given)
    assert np.abs(walked.expected_count - filled.expected_count).sum() / 2 / 150 < 0.05
    for found in (walked, filled):
        assert given["costs"].today(found.policy).max() <= 0.4 + 1e-9
    assert filled.policy[0] @ walked.score[0] == pytest.approx(walked.policy[0] @ walked.score[0], abs=0.02)


def test_more_is_won_than_action_by_action() -> None:
    agent = {s: logged(ged.GEDUCB(problem(), selection=s, guard=None), 40) for s in ("joint", "per_action")}
    x = contexts(np.random.default_rng(7), 60)
    won = {s: np.sum(a.policy(x) * (x.reshape(-1, K, D) @ THETA)) for s, a in agent.items()}
    assert won["joint"] > won["per_action"]


def test_a_policy_above_the_joint_limit_never_leaves(monkeypatch) -> None:
    agent = logged(ged.GEDUCB(problem(), selection="joint", guard=None), 40)

    def dear(base_score, costs, *args, **kwargs):
        found = joint_pass(base_score, costs, *args, **kwargs)
        upper = costs.mean[:, -1, 0] + np.linalg.norm(costs.factor[:, -1, 0], axis=-1)
        return found._replace(policy=np.eye(K)[upper.argmax(axis=1)])

    monkeypatch.setattr(ged_ucb, "joint_pass", dear)
    with pytest.warns(FallbackWarning, match="exceeds the limit"):
        assert agent.ask(contexts(np.random.default_rng(7), 1)[0]).action == 0


def test_a_resumed_agent_goes_on_alike(tmp_path) -> None:
    rng = np.random.default_rng(2)
    x, path = contexts(rng, 13), tmp_path / "run.db"
    with ged.GEDUCB(problem(), selection="joint", journal=path) as agent:
        for row in x[:12]:
            agent.tell(agent.ask(row).id, rng.normal(0.4, 0.1), rng.normal(0.3, 0.1))
        before = agent.policy(x[12])
    with ged.resume(path, problem()) as agent:
        assert agent.settings.selection == "joint"
        assert (agent.policy(x[12]) == before).all()


class Doubled(Functional):
    def __call__(self, density, x=None, a=None):
        return 2 * super().__call__(density, x, a)


def test_what_only_bears_the_name_of_a_mean_is_not_taken_for_one() -> None:
    limit = replace(problem().constraints[0], functional=Doubled("mean", 0.0, 2.0), safe_value=float(2 * SAFE @ MU), at_most=0.9)
    declared = replace(problem(), constraints=(limit,))
    x = contexts(np.random.default_rng(0), 1)[0]
    with pytest.raises(ged.errors.SettingError, match="bounds means of linear-Gaussian classes"):
        ged.GEDUCB(declared, selection="joint").ask(x)
    exact = replace(declared, constraints=(replace(limit, safe_value_exact=True),))
    assert not ged_ucb.known.known_directions(exact, x[None])


def test_where_it_does_not_apply_is_named() -> None:
    world = TableWorld(2, 3, 6, seed=0)
    with pytest.raises(ged.errors.SettingError, match=r"selection='joint' bounds means of linear-Gaussian classes .*'cost'"):
        ged.GEDUCB(world.problem(), selection="joint").ask(world.context(np.random.default_rng(0)))
    with pytest.raises(ged.errors.SettingError, match="selection must be one of"):
        ged.GEDUCB(problem(), selection="both")
    with pytest.raises(ged.errors.SettingError, match="per-action form"):
        ged.GEDUCB(problem(), selection="joint", mode="paper")


@pytest.mark.slow
def test_every_round_is_feasible_in_full() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert sum(infeasible_rounds(problem(), seed, 400, selection="joint") for seed in range(20)) == 0
