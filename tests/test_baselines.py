"""The baselines: formulas by hand, the two-action search against a grid, and the same ask / tell
rules as the agent.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from gedppl.errors import (
    ActionRangeError,
    ConflictingOutcomeError,
    DataError,
    NotFiniteError,
    SettingError,
    ShapeError,
    UnknownDecisionError,
)
from gedppl.study.baselines.always_safe import AlwaysSafe
from gedppl.study.baselines.constrained_oracle import ConstrainedOracle
from gedppl.study.baselines.oplb import OPLB, best_mixture_of_two

K, D, TAU = 4, 3, 0.45
THETA, MU = np.array([0.6, 0.5, 0.2]), np.array([0.1, 0.6, 0.5])


def features(x, a):
    """Safe action 0 along the first axis; the others turn with x."""
    angle = x[:, 0] + a
    phi = np.column_stack([0.3 + 0 * angle, 0.5 + 0.4 * np.sin(angle), 0.5 + 0.4 * np.cos(angle)])
    phi[a == 0] = [0.5, 0, 0]
    return phi


def oplb(**more):
    settings = {
        "n_actions": K,
        "dim": D,
        "tau": TAU,
        "safe_value": 0.05,
        "safe_utility": 0.3,
        "sigma": 0.1,
        "safe_features": [0.5, 0, 0],
    }
    return OPLB(features, **(settings | more))


def run(agent, rounds, seed=0):
    rng = np.random.default_rng(seed)
    lost = worst = 0.0
    oracle = ConstrainedOracle(utilities, costs, TAU)
    for _ in range(rounds):
        x = rng.random(1) * 6
        decision = agent.ask(x)
        u, c, a = utilities(x), costs(x), decision.action
        lost += (oracle.policy(x) - decision.policy) @ u
        worst = max(worst, float(decision.policy @ c))
        agent.tell(decision.id, u[a] + 0.1 * rng.normal(), c[a] + 0.1 * rng.normal())
    return lost, worst


def rows(x):
    return features(np.tile(x, (K, 1)), np.arange(K))


def utilities(x):
    return rows(np.asarray(x, float)) @ THETA


def costs(x):
    return rows(np.asarray(x, float)) @ MU


def test_radius_and_weight_are_the_papers():
    agent = oplb(delta=0.05)
    assert agent.width_weight == pytest.approx(1 + 2 * 0.7 / 0.4)
    run(agent, 25)
    assert agent.radius(D) == pytest.approx(0.1 * math.sqrt(3 * math.log(26 / 0.05)) + 1)


@pytest.mark.parametrize("projected", [True, False])
def test_per_action_policy_equals_the_formulas_written_out(projected):
    """Ridge with the safe direction taken out, d - 1 in the cost's radius, one linear programme."""
    agent = oplb(form="per_action", safe_features=[0.5, 0, 0] if projected else None)
    rng, V, b, G, g = np.random.default_rng(1), np.eye(D), np.zeros(D), np.eye(D), np.zeros(D)
    keep = np.diag([0.0, 1, 1]) if projected else np.eye(D)
    for _ in range(30):
        x = rng.random(1) * 6
        decision = agent.ask(x)
        phi, y, z = rows(x)[decision.action], rng.normal(), rng.normal()
        agent.tell(decision.id, y, z)
        V, b = V + np.outer(phi, phi), b + phi * y
        part = keep @ phi
        G, g = G + np.outer(part, part), g + part * (z - (phi[0] * 0.05 / 0.5 if projected else 0))
    x = np.array([2.0])
    phi, log_term = rows(x), math.log(31 / 0.05)
    score = phi @ np.linalg.solve(V, b)
    score += (
        agent.width_weight
        * (0.1 * math.sqrt(D * log_term) + 1)
        * np.sqrt(np.einsum("ki,ij,kj->k", phi, np.linalg.inv(V), phi))
    )
    part = phi @ keep
    upper = part @ np.linalg.solve(G, g) + (phi[:, 0] * 0.05 / 0.5 if projected else 0)
    upper += (0.1 * math.sqrt((D - projected) * log_term) + 1) * np.sqrt(
        np.einsum("ki,ij,kj->k", part, np.linalg.inv(G), part)
    )
    upper[0] = 0.05
    policy = agent.policy(x)
    assert policy @ upper <= TAU + 1e-9
    mixes = [
        np.eye(K)[i] * (1 - p) + np.eye(K)[j] * p
        for i in range(K)
        for j in range(K)
        for p in np.linspace(0, 1, 2001)
    ]
    best = max(m @ score for m in mixes if m @ upper <= TAU)
    assert policy @ score >= best - 1e-9
    assert policy @ score <= best + 2e-3


def test_best_mixture_of_two_beats_a_fine_grid_and_keeps_the_limit():
    rng = np.random.default_rng(0)
    p = np.linspace(0, 1, 401)[:, None]
    for _ in range(60):
        reward, cost = rng.random(K), rng.random(K)
        optimism, pessimism = 0.4 * rng.normal(size=(K, D)), 0.3 * rng.normal(size=(K, D))
        cost[0], pessimism[0] = 0.1, 0
        policy = best_mixture_of_two(reward, optimism, cost, pessimism, 0.5)

        def value(q, m, R):
            return q @ m + np.linalg.norm(q @ R, axis=-1)

        assert policy.sum() == pytest.approx(1)
        assert policy.min() >= 0
        assert value(policy, cost, pessimism) <= 0.5 + 1e-9
        for i in range(K):
            for j in range(K):
                mixed = (1 - p) * np.eye(K)[i] + p * np.eye(K)[j]
                ok = value(mixed, cost, pessimism) <= 0.5
                if ok.any():
                    assert (
                        value(policy, reward, optimism)
                        >= value(mixed, reward, optimism)[ok].max() - 1e-9
                    )


@pytest.mark.parametrize("form", ["joint", "per_action"])
def test_oplb_learns_and_keeps_the_limit(form):
    lost, worst = run(oplb(form=form), 400)
    always, _ = run(AlwaysSafe(K, 0), 400)
    assert worst <= TAU + 1e-9
    assert lost < 0.75 * always


def test_a_radius_scaled_to_almost_nothing_breaks_the_limit():
    """The control: the limit is kept by the radius, not by luck."""
    _, worst = run(oplb(radius_scale=0.01), 200)
    assert worst > TAU + 1e-3


def test_the_oracle_has_no_regret_and_is_the_best_mixture():
    lost, worst = run(ConstrainedOracle(utilities, costs, TAU, safe_action=0), 50)
    assert lost == pytest.approx(0, abs=1e-12)
    assert worst <= TAU + 1e-9
    np.testing.assert_allclose(
        ConstrainedOracle(lambda x: [0, 1, 0.6], lambda x: [0, 1, 0.3], 0.4).policy([0.0]),
        [0, 1 / 7, 6 / 7],
    )


def test_always_safe():
    agent = AlwaysSafe(3, 2)
    decision = agent.ask([0.1])
    assert (decision.action, decision.propensity, decision.certificate) == (2, 1.0, None)
    with pytest.raises(ActionRangeError, match=r"one of 0\.\.2, got 3"):
        AlwaysSafe(3, 3)


def test_the_same_seed_draws_the_same_actions_in_the_policys_proportions():
    draws = []
    for seed in (4, 4, 5):
        agent = ConstrainedOracle(lambda x: [0.0, 1.0], lambda x: [0.0, 0.8], 0.4, seed=seed)
        draws.append([agent.ask([0.0]).action for _ in range(300)])
    assert draws[0] == draws[1] != draws[2]
    assert abs(np.mean(draws[0]) - 0.5) < 4 * 0.5 / math.sqrt(300)


def test_feedback_rules():
    agent = oplb()
    first, second = agent.ask([0.3]), agent.ask([0.4])
    agent.tell(second.id, 0.5, {"cost": 0.2})  # any order
    agent.tell(first.id, 0.4, 0.1)
    before = agent.policy([1.0])
    agent.tell(first.id, 0.4, 0.1)  # the same again
    np.testing.assert_array_equal(agent.policy([1.0]), before)
    with pytest.raises(ConflictingOutcomeError, match="was told"):
        agent.tell(first.id, 0.9, 0.1)
    with pytest.raises(UnknownDecisionError, match="decision 9 was never made"):
        agent.tell(9, 0.1, 0.1)
    third = agent.ask([0.2])
    with pytest.raises(NotFiniteError, match="outcomes must be finite"):
        agent.tell(third.id, float("nan"), 0.1)
    with pytest.raises(DataError, match="learn one constraint"):
        agent.tell(third.id, 0.1, {"a": 1, "b": 2})
    with pytest.raises(ShapeError, match="pass z to tell"):
        agent.tell(third.id, 0.1)
    np.testing.assert_array_equal(agent.policy([1.0]), before)
    agent.tell(third.id, 0.1, 0.2)  # the refused ones left it open
    assert not np.array_equal(agent.policy([1.0]), before)
    with pytest.raises(ShapeError, match="one finite context"):
        agent.ask([[0.1], [0.2]])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"safe_value": 0.5}, "safe_value < tau"),
        ({"delta": 1.5}, "strictly between 0 and 1"),
        ({"form": "x"}, "form must be one of"),
    ],
)
def test_bad_settings_are_named(change, match):
    with pytest.raises(SettingError, match=match):
        oplb(**change)


def test_features_of_the_wrong_width_are_named():
    with pytest.raises(ShapeError, match=r"features must be \(4, 5\)"):
        oplb(dim=5, safe_features=None).ask([0.1])
