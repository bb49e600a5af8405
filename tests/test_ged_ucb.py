"""The algorithm: against Algorithm 1 written out literally, its invariances, optimism,
feasibility and regret.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

import gedppl as ged
from gedppl import counterfactual, ged_ucb
from gedppl.ged_ucb import costs
from gedppl.selection import policy_cost
from gedppl.study.simulation import constrained_best, simulate
from tests.literal import algorithm_1
from tests.plain_worlds import asked_of, state_of
from tests.problems import LinearWorld, TableWorld

pytestmark = pytest.mark.filterwarnings("ignore::gedppl.agent.SafeActionWarning")


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
def test_paper_mode_is_algorithm_1_policy_by_policy(seed: int) -> None:
    world = TableWorld(n_contexts=2, n_actions=3, members=6, seed=seed)
    agent = ged.GEDUCB(world.problem(), mode="paper", delta=0.1, seed=seed)
    rng = np.random.default_rng(seed)
    xs, actions, ys, zs = [], [], [], []
    for _ in range(22):
        x = world.context(rng)
        decision = agent.ask(x)
        literal = algorithm_1(
            world.F,
            world.G,
            xs,
            actions,
            ys,
            zs,
            int(x[0]),
            safe_action=0,
            safe_value=0.1,
            safe_utility=0.0,
            limit=0.5,
            delta=0.1,
        )
        np.testing.assert_allclose(decision.policy, literal, atol=1e-9)
        y, z = world.outcome(x, decision.action, rng)
        agent.tell(decision.id, y, z)
        xs.append(int(x[0])), actions.append(decision.action), ys.append(y), zs.append(z)
    assert len(set(actions)) > 1


def recorded_policies(world, rounds: int, **options):
    problem = world.problem()
    agent = ged.GEDUCB(
        problem, seed=1, exploration="counterfactual", exact_rounds=np.inf, **options
    )
    run = simulate(problem, world, agent, rounds, seed=2)
    return agent, run


@pytest.mark.parametrize("world", [TableWorld(3, 4, 12, seed=3), LinearWorld(4, 3, 0.1, seed=3)])
def test_the_past_is_replayed_exactly(world, monkeypatch) -> None:
    """The counterfactual policy of round j at the context of round j is the policy that was
    played, bit for bit.
    """
    agent, run = recorded_policies(world, 30)
    state = state_of(agent, None)
    paths = []
    exact = counterfactual.exact_pass

    def with_path(*args, **kwargs):
        result = exact(*args, **kwargs, keep_path=True)
        paths.append(result.path)
        return result

    monkeypatch.setattr(counterfactual, "exact_pass", with_path)
    for j in range(30):
        ged_ucb.select(state, run.x[j][None])
        np.testing.assert_array_equal(paths[-1][0, j], run.policy[j])


def test_permuting_actions_permutes_policies() -> None:
    world = TableWorld(3, 4, 12, seed=5)
    _, run = recorded_policies(world, 25)
    order = np.array([0, 3, 1, 2])  # new action k is old action order[k]
    permuted = TableWorld(3, 4, 12, seed=5)
    permuted.F, permuted.G = world.F[:, :, order], world.G[:, :, order]
    agent = ged.GEDUCB(
        permuted.problem(), seed=1, exploration="counterfactual", exact_rounds=np.inf
    )
    for i in range(25):
        np.testing.assert_allclose(agent.policy(run.x[i]), run.policy[i][order], atol=1e-9)
        decision = agent.ask(run.x[i])
        new_action = int(np.flatnonzero(order == run.action[i])[0])
        asked_of(agent)[decision.id] = (run.x[i], new_action)
        agent.tell(decision.id, run.y[i], run.z[i])


def test_affine_rescaling_of_the_utility_changes_nothing() -> None:
    plain, scaled = (
        LinearWorld(4, 3, 0.1, seed=7),
        LinearWorld(4, 3, 0.1, seed=7, gain=20.0, shift=-3.0),
    )
    runs = [recorded_policies(w, 40)[1] for w in (plain, scaled)]
    np.testing.assert_allclose(np.array(runs[0].policy), np.array(runs[1].policy), atol=1e-7)


OPTIMISM = TableWorld(3, 3, 16, seed=0)


def optimism_gap(seed: int, rounds: int, bonus_scale: float | None = None) -> float:
    """min over t of E_x[score of the policy] + K beta / t - E_x[utility of the constrained
    oracle].
    """
    # one class, each member the truth in turn
    world = OPTIMISM if seed < 16 else TableWorld(3, 3, 16, seed=seed)
    world.truth = seed % 16
    problem = world.problem()
    agent = ged.GEDUCB(
        problem, mode="theory", seed=seed, growth=1.0, bonus_scale=bonus_scale, delta=0.05
    )
    rng = np.random.default_rng(seed)
    every_x = np.arange(3.0)[:, None]
    best = np.mean(
        [constrained_best(problem, world.utilities(x), world.costs(x))[1] for x in every_x]
    )
    gap = np.inf
    for t in range(rounds):
        x = world.context(rng)
        state = state_of(agent, every_x)
        policy, info = ged_ucb.select(state, every_x)
        score = np.mean(np.sum(policy * (info.utility + info.bonus + info.width), axis=1))
        beta = ged_ucb.bonus_weights(
            state, np.array([t]), np.array([state.blocks[-1].exploration])
        )[0]
        gap = min(gap, score + 3 * beta / (t + 1) - best)
        decision = agent.ask(x)
        agent.tell(decision.id, *world.outcome(x, decision.action, rng))
    return gap


def test_optimism() -> None:
    assert min(optimism_gap(seed, 25) for seed in range(4)) >= 0


@pytest.mark.slow
def test_optimism_full() -> None:
    assert min(optimism_gap(seed, 60) for seed in range(100)) >= 0


def feasible_runs(n_runs: int, rounds: int, make) -> int:
    """The number of runs with an infeasible round."""
    bad = 0
    for seed in range(n_runs):
        world = make(seed)
        problem = world.problem()
        run = simulate(
            problem, world, ged.GEDUCB(problem, seed=seed, guard=None), rounds, seed=seed
        )
        bad += bool(run.infeasible.any())
    return bad


def test_every_round_is_feasible_for_a_finite_class() -> None:
    world = TableWorld(3, 4, 32, seed=100)

    def with_truth(member: int) -> TableWorld:
        world.truth = member
        return world

    assert feasible_runs(8, 40, with_truth) <= binom.ppf(0.9999, 8, 0.05)


def test_every_round_is_feasible_for_a_linear_class() -> None:
    assert feasible_runs(2, 150, lambda seed: LinearWorld(5, 5, 0.1, seed=seed)) == 0


@pytest.mark.slow
def test_every_round_is_feasible_in_full() -> None:
    finite = feasible_runs(100, 200, lambda seed: TableWorld(3, 4, 32, seed=100 + seed))
    assert finite <= binom.ppf(0.9999, 100, 0.05)
    assert feasible_runs(20, 500, lambda seed: LinearWorld(5, 5, 0.1, seed=seed)) == 0


@pytest.mark.slow
def test_regret_grows_like_a_root() -> None:
    final, half, safe = [], [], []
    for seed in range(8):
        world = LinearWorld(5, 5, 0.1, seed=seed)
        problem = world.problem()
        run = simulate(problem, world, ged.GEDUCB(problem, seed=seed), 2000, seed=seed)
        final.append(run.regret[-1]), half.append(run.regret[999])
        always = [b - world.utilities(x)[0] for b, x in zip(run.best, run.x)]
        safe.append(np.sum(always))
        assert not run.infeasible.any()
    assert np.sum(final) / np.sum(half) <= 1.75
    assert np.sum(final) < 0.6 * np.sum(safe)


def test_exploration_weights_never_touch_feasibility() -> None:
    world = LinearWorld(4, 3, 0.1, seed=11)
    problem = world.problem()
    for bonus, width in [(0.0, 0.0), (10.0, 10.0)]:
        agent = ged.GEDUCB(problem, bonus_scale=bonus, width_scale=width)
        assert not simulate(problem, world, agent, 40, seed=3).infeasible.any()


def test_blocks_agree_with_the_exact_pass() -> None:
    world = LinearWorld(5, 5, 0.1, seed=4)
    problem = world.problem()
    agent = ged.GEDUCB(problem, seed=0, exploration="counterfactual", exact_rounds=0)
    simulate(problem, world, agent, 200, seed=1)
    state = state_of(agent, None)
    slow = replace(state, settings=replace(state.settings, exact_rounds=np.inf))
    rng = np.random.default_rng(9)
    x = np.stack([world.context(rng) for _ in range(40)])
    (fast_policy, info), (slow_policy, _) = ged_ucb.select(state, x), ged_ucb.select(slow, x)
    fast, exact = (np.sum(p * info.utility, axis=1).mean() for p in (fast_policy, slow_policy))
    assert fast >= 0.99 * exact


def test_limit_at_the_safe_value_with_nothing_known_is_refused() -> None:
    world = TableWorld(2, 3, 5, seed=0, at_most=0.1)
    with pytest.raises(
        ged.errors.ProblemError,
        match=r"safe_value of constraint 'cost' equals its limit "
        r"at_most=0.1.*raise at_most",
    ):
        world.problem()
    with pytest.raises(ged.errors.InfeasibleError, match="equals its value at the safe action"):
        ged.GEDUCB(at_the_safe_value(TableWorld(2, 3, 5, seed=0))).ask([0.0])


def test_a_context_whose_safe_value_is_the_limit_does_not_stop_those_beside_it() -> None:
    """With the safe value known by context, one patient in a batch had nobody decided upon."""
    problem = TableWorld(2, 3, 5, seed=0).problem()
    limit = problem.constraints[0].at_most
    safe = problem.safe_values(np.zeros((1, 1)))[0, 0]
    (cost,) = problem.constraints
    known = replace(cost, safe_value=lambda x: np.where(x[:, 0] > 0, limit, safe))
    agent = ged.GEDUCB(replace(problem, constraints=[known]), seed=0)
    decisions = agent.ask([[0.0], [1.0]])
    assert decisions[1].policy[problem.safe_action] == 1.0
    assert decisions[0].policy[problem.safe_action] < 1.0


def at_the_safe_value(world: TableWorld) -> ged.Problem:
    """The limit at a safe value that is a function of the context, which only a context can
    tell.
    """
    problem = world.problem()
    (cost,) = problem.constraints
    return replace(
        problem, constraints=[replace(cost, at_most=0.1, safe_value=lambda x: np.full(len(x), 0.1))]
    )


def test_limit_at_the_safe_value_after_logged_data_plays_what_is_certified() -> None:
    world = TableWorld(2, 3, 5, seed=0)
    world.G[:, :, 1] = np.linspace(0.01, 0.9, 5)[:, None]
    world.F[:, :, 1] = 0.94
    world.F[:, :, [0, 2]] *= 0.5
    agent = ged.GEDUCB(at_the_safe_value(world))
    rng = np.random.default_rng(0)
    rows = [(world.context(rng), 1) for _ in range(300)]
    outcomes = [world.outcome(x, a, rng) for x, a in rows]
    agent.observe(np.stack([r[0] for r in rows]), np.ones(300, int), *np.array(outcomes).T)
    decision = agent.ask([0.0])
    assert decision.certificate.constraints[0].worst_case <= 0.1
    assert any("no mixing is possible" in note for note in decision.certificate.notes)
    assert decision.policy[1] > 0


def test_no_constraint() -> None:
    world = TableWorld(2, 3, 8, seed=1)
    problem = ged.Problem(n_actions=3, utility=world.problem().utility)
    agent = ged.GEDUCB(problem, seed=0)
    rng = np.random.default_rng(0)
    for _ in range(60):
        x = world.context(rng)
        decision = agent.ask(x)
        agent.tell(decision.id, world.outcome(x, decision.action, rng)[0])
    assert agent.policy([0.0])[np.argmax(world.F[0, 0])] == 1.0


def test_known_costs_and_two_constraints() -> None:
    world = TableWorld(2, 3, 8, seed=2)
    base = world.problem()
    fees = np.array([0.0, 0.2, 1.0])
    problem = replace(
        base,
        constraints=[*base.constraints, ged.known_cost(lambda x: fees, at_most=0.3, name="fee")],
    )
    agent = ged.GEDUCB(problem, seed=0)
    rng = np.random.default_rng(0)
    for _ in range(60):
        x = world.context(rng)
        decision = agent.ask(x)
        agent.tell(decision.id, *world.outcome(x, decision.action, rng))
        assert decision.policy @ fees <= 0.3 + 1e-9
        assert np.all([c.slack >= -1e-9 for c in decision.certificate.constraints])
    assert decision.certificate.constraints[1].method == "known"


def test_feasibility_rests_on_the_bounds_and_not_on_what_steers_the_past() -> None:
    """A logistic class has exact bounds today and a quadratic approximation under past
    snapshots. The approximation is too low somewhere: a policy that rested on it would be
    certified below its worst case.
    """
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    def harm(x, a, y=None):
        v = numpyro.sample("v", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
        numpyro.sample(
            "y", dist.Bernoulli(logits=jnp.where(a == 0, -3.0, v[0] + v[1] * x[:, 0])), obs=y
        )

    cls = ged.density_class(harm, example=(np.zeros((1, 1)), np.zeros(1, int)))
    limit = ged.Constraint(
        cls, ged.mean(0, 1), at_most=0.3, safe_value=0.05, name="harm", outcome="utility"
    )
    problem = ged.Problem(2, ged.Utility(cls, ged.mean(0, 1)), [limit], safe_action=0)
    agent = ged.GEDUCB(problem, seed=0)
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (80, 1))
    a = np.ones(80, int)
    agent.observe(x, a, (rng.random(80) < 1 / (1 + np.exp(3 - 2 * x[:, 0]))).astype(float))
    at = np.linspace(-1, 1, 21)[:, None]
    state = state_of(agent, None)
    _, info = ged_ucb.select(state, at)
    learner, functional = state.learners["utility"], limit.functional
    exact, past = learner.bounds(functional, at, 2), learner.trail(functional, at, 2)
    assert exact.method == "exact"
    np.testing.assert_array_equal(info.cost_upper[:, 0, 1], exact.upper[:, 1])
    np.testing.assert_array_equal(ged_ucb.cost_bounds(state, at)[1][:, 0, 1], exact.upper[:, 1])
    assert past.approximate
    assert (past.upper[:, -1, 1] < exact.upper[:, 1] - 1e-3).any()  # what would have been certified


def test_a_past_round_is_never_taken_to_have_known_more_than_today() -> None:
    """Too narrow an approximation would count an action as played that past rounds could not
    afford.
    """
    from gedppl.learning.learner import Bounds, Trail

    estimate = np.full((1, 3, 2), 0.2)
    # snapshot 0 knows nothing; the last is today's
    upper = np.array([[[1.0, 1.0], [0.25, 0.9], [0.22, 0.6]]])
    lower = np.array([[[0.0, 0.0], [0.15, 0.0], [0.18, 0.1]]])
    today = Bounds(
        np.full((1, 2), 0.2), np.array([[0.1, 0.15]]), np.array([[0.5, 0.4]]), "exact", True, ""
    )
    past = costs._calibrated(Trail(estimate, lower, upper, approximate=True), today)
    np.testing.assert_allclose(past.upper[0, 0], 1.0)  # still unknown
    # 0.05 x 15, 0.7 / 2: as far off as today
    np.testing.assert_allclose(past.upper[0, 1], [0.95, 0.55])
    np.testing.assert_allclose(past.upper[0, 2], today.upper[0])
    np.testing.assert_allclose(past.lower[0, 2], today.lower[0])
    assert (past.upper[:, 1:] >= today.upper[:, None] - 1e-12).all()
    assert (past.lower[:, 1:] <= today.lower[:, None] + 1e-12).all()


def test_limits_in_the_hundreds_of_millions_are_kept_but_for_rounding() -> None:
    """A sum of such costs is known to some 1e-7 only; a policy on its limit is no error, one
    above it still is.
    """
    rng = np.random.default_rng(0)
    largest = 0.0
    for _ in range(300):
        limit = 10.0 ** rng.uniform(7, 10)
        upper = limit * (1 + 0.5 * rng.standard_normal((1, 1, 1, 5)))
        upper[..., 0] = 0.9 * limit
        score = rng.standard_normal((1, 1, 5))
        policy = counterfactual.exact_pass(
            score, upper, [[limit]], [1.0], [0], 0, safe_action=0
        ).policy
        worst = policy_cost(policy, upper[:, 0], np.array([False]))
        largest = max(largest, worst[0, 0] - limit)
        costs.check_feasible(worst, np.array([limit]))
    assert largest > costs.TOLERANCE  # it does happen
    with pytest.raises(FloatingPointError, match="exceeds the limit"):
        costs.check_feasible(np.array([[1e8 + 0.01]]), np.array([1e8]))
