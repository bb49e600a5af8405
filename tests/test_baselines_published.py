"""Baselines of other papers: each formula by hand on separate arms, where ridge regression is
counting.

With one-hot features, ridge 1 and S = 1: estimate_a = sum of outcomes / (1 + n_a), |phi_a|_{V^-1} =
1 / sqrt(1 + n_a), and the radius is sigma sqrt(K log((1 + n) / delta)) + 1.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

import gedppl as ged
from benchmarks.arena import make
from gedppl.errors import ConflictingOutcomeError, SettingError, ShapeError, UnknownDecisionError
from gedppl.study.baselines.epsilon_greedy import EpsilonGreedy
from gedppl.study.baselines.finite_lp import FiniteLP
from gedppl.study.baselines.genop import GenOP
from gedppl.study.baselines.hp_ucb import HPUCB
from gedppl.study.baselines.lints import LinTS
from gedppl.study.baselines.linucb import LinUCB
from gedppl.study.baselines.opb import OPB
from gedppl.study.baselines.plugin_greedy import PluginGreedy
from gedppl.study.baselines.plugin_mask import PluginMask
from gedppl.study.baselines.ridge import largest_share
from gedppl.study.baselines.roful import ROFUL
from gedppl.study.baselines.safe_lts import SafeLTS
from gedppl.study.baselines.safe_lucb import SafeLUCB
from gedppl.study.baselines.uccb import UCCB
from tests.problems import TableWorld

K, TAU, C0, SIGMA, DELTA = 3, 0.5, 0.1, 0.1, 0.05
X = np.zeros(1)
PULLS, GAINS, HARMS = np.array([4, 40, 9]), np.array([0.2, 0.6, 0.9]), np.array([0.1, 0.2, 0.7])
LINEAR = [SafeLTS, SafeLUCB, ROFUL, GenOP, HPUCB, LinUCB, LinTS, EpsilonGreedy, PluginMask]


def arms(x, a):
    return np.eye(K)[a]


def settings(**more):
    known = {"n_actions": K, "dim": K, "tau": TAU, "safe_value": C0, "sigma": SIGMA, "delta": DELTA}
    return known | more


def told(cls, **more):
    """An agent that has seen each arm PULLS times, always with the same outcome."""
    agent = cls(arms, **settings(**more))
    for a, n in enumerate(PULLS):
        for _ in range(n):
            agent.learn(X, a, GAINS[a], HARMS[a])
    return agent


SHRINK = PULLS / (1 + PULLS)
NORM = 1 / np.sqrt(1 + PULLS)
RADIUS = SIGMA * math.sqrt(K * math.log((1 + PULLS.sum()) / DELTA)) + 1
OPTIMISTIC = GAINS * SHRINK + RADIUS * NORM
UPPER = np.array([C0, *(HARMS * SHRINK + RADIUS * NORM)[1:]])
LOWER = np.array([C0, *(HARMS * SHRINK - RADIUS * NORM)[1:]])


def mixture(a, share):
    return np.eye(K)[0] * (1 - share) + np.eye(K)[a] * share


@pytest.mark.parametrize("cls", LINEAR)
def test_estimates_and_widths_are_those_of_counting(cls):
    agent = told(cls)
    view = agent.view(X)
    np.testing.assert_allclose(view.reward, GAINS * SHRINK)
    np.testing.assert_allclose(view.reward_norm, NORM)
    np.testing.assert_allclose(agent.rewards.radius, RADIUS)
    np.testing.assert_allclose(view.cost_upper, UPPER)
    np.testing.assert_allclose(view.cost_lower, LOWER)


def test_largest_share_keeps_the_limit_and_wastes_nothing():
    np.testing.assert_allclose(
        largest_share(C0, np.array([0.1, 0.5, 0.9, -0.2]), TAU), [1, 1, 0.5, 1]
    )


def test_roful_follows_optimism_about_both_and_holds_back_by_pessimism():
    assert (LOWER <= TAU).all()  # so every share up to 1 may be hoped for
    best = int(np.argmax([0, *OPTIMISTIC[1:]]))
    assert best == 2  # the dear arm, whose cost is least known
    share = max((TAU - C0) / (1 - C0), (TAU - C0) / (UPPER[best] - C0))
    np.testing.assert_allclose(told(ROFUL).policy(X), mixture(best, share))
    # the known share
    np.testing.assert_allclose(
        told(ROFUL, cost_high=0.8).policy(X), mixture(best, (TAU - C0) / 0.7)
    )


def test_genop_weighs_the_reward_by_kappa_at_the_pessimistic_share():
    share = largest_share(C0, UPPER, TAU)
    value = share * (GAINS * SHRINK + (1 + 2 / (TAU - C0)) * RADIUS * NORM)
    best = 1 + int(value[1:].argmax())
    np.testing.assert_allclose(told(GenOP).policy(X), mixture(best, share[best]))
    # kappa = 1.5: another weight, another value of the safe action
    smaller = told(GenOP, safe_utility=0.9)
    value = share * (GAINS * SHRINK + 1.5 * RADIUS * NORM) + (1 - share) * 0.9
    best = 1 + int(value[1:].argmax())
    np.testing.assert_allclose(smaller.policy(X), mixture(best, share[best]))


def test_safe_lucb_explores_at_the_known_share_and_then_trusts_its_bounds():
    first = SafeLUCB(arms, **settings(explore=3)).policy(X)
    assert sorted(first[1:]) == pytest.approx([0, (TAU - C0) / (1 - C0)])
    agent = told(SafeLUCB, explore=0)
    values = {a: min(1, (TAU - C0) / (UPPER[a] - C0)) for a in (1, 2)}
    scores = {a: s * OPTIMISTIC[a] + (1 - s) * OPTIMISTIC[0] for a, s in values.items()}
    best = max(scores, key=scores.get)
    policy = agent.policy(X)
    assert policy @ OPTIMISTIC >= scores[best] - 1e-9
    assert policy @ UPPER <= TAU + 1e-9


def test_safe_lts_draws_with_the_published_spread_and_keeps_the_limit():
    agent = told(SafeLTS)
    spread = math.sqrt(K) * ((RADIUS - 1) / (TAU - C0) + 1)
    assert agent.spread(C0) == pytest.approx(spread)
    rng = np.random.default_rng(0)
    draws = np.array([agent.rewards.draw(spread, rng) for _ in range(20_000)])
    np.testing.assert_allclose(
        draws.mean(axis=0), GAINS * SHRINK, atol=5 * (spread * NORM).max() / math.sqrt(20_000)
    )
    np.testing.assert_allclose(draws.std(axis=0), spread * NORM, rtol=0.03)
    assert agent.policy(X) @ UPPER <= TAU + 1e-9
    np.testing.assert_array_equal(agent.policy(X), agent.policy(X))  # looking draws nothing anew
    assert len({tuple(agent.ask(X).policy.round(6)) for _ in range(30)}) > 1  # asking does


def test_hp_ucb_leaves_room_for_the_noise_of_one_outcome():
    level = 0.1
    margin = SIGMA * ndtri(1 - level)
    limit = UPPER[1] + margin
    assert told(HPUCB, level=level, tau=limit + 1e-9).policy(X) @ [0, 1, 0] == 1
    # the expected cost alone would have allowed it
    assert told(HPUCB, level=level, tau=limit - 1e-9).policy(X)[0] == 1
    assert told(HPUCB, level=level, tau=limit - 1e-9).view(X).cost_upper[1] < limit - 1e-9


def test_linucb_ignores_penalises_or_filters():
    alpha = 0.3
    plain = GAINS * SHRINK + alpha * NORM
    assert told(LinUCB, alpha=alpha, limits="ignore").policy(X).argmax() == plain.argmax() == 2
    excess = np.maximum(np.array([C0, *(HARMS * SHRINK)[1:]]) - TAU, 0)
    assert excess[2] > 0
    assert (
        told(LinUCB, alpha=alpha, limits="penalise").policy(X).argmax()
        == (plain - 10 * excess).argmax()
        == 1
    )
    assert told(LinUCB, alpha=alpha, limits="penalise", penalty=0.1).policy(X).argmax() == 2
    assert UPPER[1] <= TAU < UPPER[2]
    assert told(LinUCB, alpha=alpha, limits="filter").policy(X).argmax() == 1
    # nothing is certified yet
    assert LinUCB(arms, **settings(limits="filter")).policy(X).argmax() == 0


def test_lints_draws_around_the_estimate():
    agent = told(LinTS, alpha=0.0, limits="ignore")
    assert agent.policy(X).argmax() == (GAINS * SHRINK).argmax()
    wide = told(LinTS, alpha=5.0, limits="ignore")
    assert {int(wide.ask(X).policy.argmax()) for _ in range(40)} == {0, 1, 2}
    filtered = told(LinTS, alpha=5.0, limits="filter")
    assert {int(filtered.ask(X).policy.argmax()) for _ in range(40)} == {0, 1}


def test_epsilon_greedy_spreads_epsilon_over_what_looks_feasible():
    np.testing.assert_allclose(told(EpsilonGreedy, epsilon=0.2).policy(X), [0.1, 0.9, 0])
    np.testing.assert_allclose(
        told(EpsilonGreedy, epsilon=0.3, limits="ignore").policy(X), [0.1, 0.1, 0.8]
    )


def test_the_plug_in_mask_believes_its_estimate():
    agent = told(PluginMask)
    np.testing.assert_allclose(agent.feasibility(agent.view(X)), [1, 1, 0])
    assert agent.policy(X).argmax() == 1
    soft = told(PluginMask, softness=0.2)
    np.testing.assert_allclose(
        soft.feasibility(soft.view(X)), ndtr((TAU - np.array([C0, *(HARMS * SHRINK)[1:]])) / 0.2)
    )
    picks = np.array([soft.ask(X).policy.argmax() for _ in range(400)])
    p = ndtr((TAU - HARMS[2] * SHRINK[2]) / 0.2)
    assert abs((picks == 2).mean() - p) < 4 * math.sqrt(p * (1 - p) / 400)
    control = PluginMask(arms, **settings())
    # one lucky outcome, and the dear arm is played: no width protects it
    control.learn(X, 2, 0.9, 0.4)
    assert control.policy(X).argmax() == 2


def test_opb_is_the_papers_programme():
    horizon, pulls = 1000, np.array([3, 50, 200])
    agent = OPB(n_actions=3, tau=TAU, safe_value=0.0, horizon=horizon)
    modest = OPB(n_actions=3, tau=TAU, safe_value=0.0, horizon=horizon, reward_weight=0.1)
    for a, n in enumerate(pulls):
        for _ in range(n):
            agent.learn(X, a, GAINS[a], HARMS[a])
            modest.learn(X, a, GAINS[a], HARMS[a])
    width = np.sqrt(2 * math.log(horizon**2) / pulls)
    upper = np.array([0, *np.minimum(1, HARMS + width)[1:]])
    score = np.minimum(1, GAINS + (1 + 1 / TAU) * width)
    # all are cut at 1, so the arms pulled least are played
    np.testing.assert_allclose(score, [1, 1, 1])
    policy = agent.policy(X)
    np.testing.assert_allclose(policy, [1, 0, 0])
    assert policy @ upper <= TAU
    np.testing.assert_allclose(modest.policy(X), [1 - TAU / upper[2], 0, TAU / upper[2]])


def test_finite_lp_keeps_what_the_likelihood_allows():
    tables = np.array([[0.1, 0.9], [0.1, 0.2]])  # cost of two actions under two members

    def likelihood(x, a, y):
        return np.log(np.where(y == 1, tables[:, a], 1 - tables[:, a]))

    agent = FiniteLP(
        likelihood,
        likelihood,
        lambda x: np.array([[0.2, 0.5], [0.2, 0.6]]),
        lambda x: tables,
        n_actions=2,
        tau=0.5,
        safe_value=0.1,
        delta=0.1,
    )
    assert agent.width_weight == pytest.approx(1 / 0.4)
    # the worst member says 0.9: (0.5 - 0.1) / 0.8
    np.testing.assert_allclose(agent.policy(X), [0.5, 0.5])
    for _ in range(2):
        agent.learn(X, 1, 0.0, 0.0)
    logs = np.array([2 * math.log(0.1), 2 * math.log(0.8)])
    ratio = logs[0] - (math.log((math.exp(logs[0]) + math.exp(logs[1])) / 2) - math.log(10))
    assert agent.plausible(1, 2).tolist() == [ratio >= 0, True] == [False, True]
    np.testing.assert_allclose(agent.policy(X), [0, 1])


def test_uccb_is_the_agent_without_its_limits():
    world = TableWorld(2, 3, 8, seed=1, at_most=0.2)
    agent, rng = UCCB(world.problem(), seed=0), np.random.default_rng(0)
    dear, told = 0, []
    for _ in range(30):
        x = world.context(rng)
        decision = agent.ask(x)
        assert decision.certificate is None
        dear += world.costs(x)[0] @ decision.policy > 0.2 + 1e-9
        told.append(world.outcome(x, decision.action, rng))
        agent.tell(decision.id, *told[-1])
    assert dear > 5
    with pytest.raises(ConflictingOutcomeError):
        agent.tell(0, 1 - told[0][0], 0.0)


def test_plugin_greedy_takes_the_likeliest_member_for_the_truth():
    """By hand on 64 tables: the member of highest likelihood says what is best and what looks
    feasible; 5% explore there.
    """
    world, rng = make("finite", 3), np.random.default_rng(0)
    agent, gains, harms = PluginGreedy(world.problem()), np.zeros(64), np.zeros(64)
    for _ in range(12):
        x = world.context(rng)
        at, made = int(x[0]), agent.ask(x)
        y, z = world.outcome(x, made.action, rng)
        agent.tell(made.id, y, z)
        gains += np.log(np.where(y, world.F[:, at, made.action], 1 - world.F[:, at, made.action]))
        harms += np.log(np.where(z, world.G[:, at, made.action], 1 - world.G[:, at, made.action]))
    u, c = world.F[gains.argmax(), at], world.G[harms.argmax(), at]
    keeps = c <= world.tau
    expected = 0.95 * np.eye(5)[np.where(keeps, u, -1).argmax()] + 0.05 * keeps / keeps.sum()
    np.testing.assert_allclose(agent.policy(x), expected)
    agent.tell(made.id, y, z)  # the same again is no news
    with pytest.raises(ConflictingOutcomeError):
        agent.tell(made.id, 1 - y, z)
    with pytest.raises(UnknownDecisionError):
        agent.tell(99, 0.0, 0.0)
    with pytest.raises(SettingError, match="epsilon"):
        PluginGreedy(world.problem(), epsilon=2.0)


@pytest.mark.parametrize("cls", [SafeLTS, SafeLUCB, ROFUL, GenOP, LinUCB, HPUCB])
def test_algorithms_with_a_guarantee_keep_the_limit(cls):
    """Three arms, costs 0.1, 0.3, 0.8 with noise 0.1, the limit 0.5."""
    costs, rng = np.array([0.1, 0.3, 0.8]), np.random.default_rng(5)
    agent = cls(arms, **settings(feature_bound=None))
    for _ in range(300):
        decision = agent.ask(X)
        assert decision.policy @ costs <= TAU + 1e-9
        # the dear is good
        agent.tell(decision.id, *(costs[decision.action] + 0.1 * rng.normal(size=2)))


@pytest.mark.parametrize(("cls", "more"), [(PluginMask, {}), (EpsilonGreedy, {"limits": "ignore"})])
def test_those_without_a_guarantee_break_it(cls, more):
    """The control: the environment can be broken."""
    costs, rng, worst = np.array([0.1, 0.3, 0.8]), np.random.default_rng(5), 0.0
    agent = cls(arms, **settings(**more))
    for _ in range(300):
        decision = agent.ask(X)
        worst = max(worst, decision.policy @ costs)
        # the dear is good
        agent.tell(decision.id, *(costs[decision.action] + 0.1 * rng.normal(size=2)))
    assert worst > TAU


@pytest.mark.parametrize(
    ("cls", "change", "match"),
    [
        (GenOP, {"safe_value": 0.6}, "GenOP needs safe_value < tau, got 0.6 and 0.5"),
        (ROFUL, {"delta": 0.0}, "strictly between 0 and 1"),
        (SafeLUCB, {"explore": -1}, "explore must be a number of rounds, got -1"),
        (HPUCB, {"level": 1.0}, r"level must lie in \(0, 1\), got 1.0"),
        (LinUCB, {"limits": "hope"}, "limits must be one of .*got 'hope'"),
        (EpsilonGreedy, {"epsilon": 2}, r"epsilon must lie in \[0, 1\], got 2"),
        (EpsilonGreedy, {"limits": "hope"}, "got 'hope'"),
        (PluginMask, {"softness": -1}, "softness must be at least 0, got -1"),
    ],
)
def test_bad_settings_are_named(cls, change, match):
    with pytest.raises(SettingError, match=match):
        cls(arms, **settings(**change))


def test_bad_settings_of_the_others_are_named():
    with pytest.raises(SettingError, match="safe_value < tau"):
        OPB(n_actions=3, tau=0.5, safe_value=0.5, horizon=10)
    with pytest.raises(SettingError, match="at least 2 rounds, got 1"):
        OPB(n_actions=3, tau=0.5, safe_value=0.1, horizon=1)
    with pytest.raises(SettingError, match=r"delta must lie strictly between 0 and 1, got 0"):
        FiniteLP(max, max, max, max, n_actions=2, tau=0.5, safe_value=0.1, delta=0)
    agent = GenOP(arms, **settings())
    made = agent.ask(X)
    with pytest.raises(ShapeError, match="GenOP learns a cost: pass z"):
        agent.tell(made.id, 0.1)
    with pytest.raises(ShapeError, match=r"features must be \(3, 2\)"):
        GenOP(arms, **settings(dim=2)).ask(X)


def test_the_largest_feature_seen_bounds_the_radius():
    agent = GenOP(
        lambda x, a: x[:, :1] * np.eye(2)[a],
        n_actions=2,
        dim=2,
        tau=0.5,
        safe_value=0.1,
        sigma=0.1,
        feature_bound=None,
    )
    agent.learn(np.array([3.0]), 1, 0.1, 0.1)
    agent.learn(np.array([2.0]), 1, 0.1, 0.1)
    assert agent.rewards.radius == pytest.approx(
        0.1 * math.sqrt(2 * math.log((1 + 2 * 9) / 0.05)) + 1
    )


def test_a_problem_that_a_baseline_cannot_play_is_refused_by_a_sentence():
    from gedppl.study.baselines.by_name import make_baseline

    problem = TableWorld(2, 3, 8, seed=1).problem()
    with pytest.raises(SettingError, match="there is no baseline 'best'; choose from oplb"):
        make_baseline("best", problem, X, rounds=10)
    with pytest.raises(SettingError, match="ROFUL needs a linear-Gaussian utility"):
        make_baseline("roful", problem, X, rounds=10)
    free = ged.Problem(n_actions=3, utility=problem.utility)
    with pytest.raises(SettingError, match="one learned limit; this problem has 0"):
        make_baseline("opb", free, X, rounds=10)
