"""`select_policy` against an LP solver, its ties, its rounding and its errors"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from gedppl import selection
from gedppl.errors import ActionRangeError, InfeasibleError, NotFiniteError, ShapeError
from gedppl.selection import Polytope, select_policy


def random_program(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, costs and limits; some rounded (many ties and degenerate vertices), some without a
    safe action.
    """
    n_limits, n_actions = int(rng.integers(1, 4)), int(rng.integers(2, 13))
    score, cost, limit = (
        rng.random(n_actions),
        rng.random((n_limits, n_actions)),
        rng.uniform(0.05, 0.6, n_limits),
    )
    if rng.random() < 0.7:
        cost[:, 0] = 0.0
    if rng.random() < 0.3:
        score, cost, limit = score.round(1), cost.round(1), limit.round(1)
    return score, cost, limit


def highs(score: np.ndarray, cost: np.ndarray, limit: np.ndarray) -> float | None:
    solved = linprog(-score, A_ub=cost, b_ub=limit, A_eq=np.ones((1, len(score))), b_eq=[1.0])
    return -solved.fun if solved.status == 0 else None


def agrees_with_highs(rng: np.random.Generator) -> None:
    score, cost, limit = random_program(rng)
    expected = highs(score, cost, limit)
    if expected is None:
        with pytest.raises(InfeasibleError, match="no policy"):
            select_policy(score, cost, limit)
        return
    policy = select_policy(score, cost, limit)
    assert abs(policy @ score - expected) <= 1e-9
    assert (cost @ policy <= limit + 1e-12).all()
    assert policy.min() >= 0
    assert abs(policy.sum() - 1) <= 1e-14
    assert (policy > 0).sum() <= len(limit) + 1


@pytest.mark.parametrize("instances", [600, pytest.param(3000, marks=pytest.mark.slow)])
def test_equals_an_lp_solver(instances: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(instances):
        agrees_with_highs(rng)


def test_long_lists_take_the_hull_or_highs_and_agree_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "MOST_BASES", 0)
    monkeypatch.setattr(selection, "MOST_PAIRS", 0)
    rng = np.random.default_rng(1)
    for _ in range(400):
        agrees_with_highs(rng)


def test_the_three_methods_break_ties_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    cases = []
    while len(cases) < 200:
        score, cost, limit = random_program(rng)
        score, cost = score.round(1), cost.round(1)
        if highs(score, cost, limit) is not None:
            cases.append((score, cost, limit, rng.random(len(score)) * 100))
    listed = [select_policy(s, c, m, played=p) for s, c, m, p in cases]
    monkeypatch.setattr(selection, "MOST_BASES", 0)
    monkeypatch.setattr(selection, "MOST_PAIRS", 0)
    for (score, cost, limit, played), policy in zip(cases, listed):
        other = select_policy(score, cost, limit, played=played)
        assert abs(score @ policy - score @ other) <= 1e-9
        assert abs(played @ policy - played @ other) <= 1e-6


def test_ten_thousand_actions() -> None:
    rng = np.random.default_rng(3)
    score, cost = rng.random(10_000), rng.random(10_000)
    policy = select_policy(score, cost, 0.3)
    assert abs(policy @ score - highs(score, cost[None], np.array([0.3]))) <= 1e-9  # type: ignore[operator]
    assert (policy > 0).sum() <= 2
    assert policy @ cost <= 0.3 + 1e-12


def test_by_hand() -> None:
    # hull points (0, .2), (.3, .6), (1, 1); at .4 a seventh of the way from the second to the third
    assert select_policy([0.2, 1.0, 0.6], [0.0, 1.0, 0.3], 0.4) == pytest.approx(
        [0, 1 / 7, 6 / 7], abs=1e-15
    )
    # no constraint
    assert select_policy([0.2, 1.0, 0.6], np.zeros((0, 3)), []).tolist() == [0, 1, 0]
    assert select_policy([0.2, 1.0, 0.6], [0.0, 1.0, 0.3], np.inf).tolist() == [0, 1, 0]  # lifted
    # unknown cost
    assert select_policy([0.2, 1.0, 0.6], [0.0, np.inf, 0.3], 0.4).tolist() == [0, 0, 1]
    assert select_policy(
        [0.2, 1.0, 0.6], [0.0, 1.0, 0.3], 0.4, allowed=[True, True, False]
    ) == pytest.approx([0.6, 0.4, 0])
    # τ = c0: no mixing is possible
    assert select_policy([0.2, 1.0], [0.4, 1.0], 0.4).tolist() == [1, 0]
    # ... whatever the last bit
    assert select_policy([0.2, 1.0], [0.1 + 0.3, 1.0], 0.4).tolist() == [1, 0]


def test_ties_go_to_the_least_played_then_to_the_first() -> None:
    score, cost = [0.5, 1.0, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0]
    for played, chosen in (([9, 3, 1, 2], 2), ([9, 3, 4, 2], 3), ([9, 3, 3, 3], 1), (None, 1)):
        policy = select_policy(score, cost, 0.25, played=played)
        assert policy.tolist() == [0.75, *(0.25 if a == chosen else 0.0 for a in (1, 2, 3))]
    noisy = np.add(score, [0, 1e-13, 0, -1e-13])  # rounding must not decide
    assert select_policy(noisy, cost, 0.25, played=[9, 3, 1, 2])[2] == 0.25


def test_permuting_actions_permutes_the_policy() -> None:
    rng = np.random.default_rng(4)
    for n_limits in (1, 2, 3):
        for _ in range(30):
            score, cost, order = rng.random(7), rng.random((n_limits, 7)), rng.permutation(7)
            cost[:, 2] = 0.0
            policy = select_policy(score, cost, np.full(n_limits, 0.3))
            assert select_policy(
                score[order], cost[:, order], np.full(n_limits, 0.3)
            ) == pytest.approx(policy[order], abs=1e-12)


def test_units_do_not_matter() -> None:
    rng = np.random.default_rng(5)
    for n_limits in (1, 2, 3):
        for _ in range(30):
            score, cost, limit = (
                rng.random(6).round(1),
                rng.random((n_limits, 6)).round(1),
                rng.random(n_limits).round(1),
            )
            cost[:, 0] = np.minimum(cost[:, 0], limit)
            played = rng.random(6)
            policy = select_policy(score, cost, limit, played=played)
            other = select_policy(
                300 * score - 70, 0.02 * cost + 5, 0.02 * limit + 5, played=played
            )
            assert other == pytest.approx(policy, abs=1e-9)


def test_a_limit_exceeded_by_rounding_is_repaired() -> None:
    excess, usable = np.array([[-1.0, 1.0]]), np.ones(2, bool)
    over = np.array([[0.5 - 1e-11, 0.5 + 1e-11]])
    fixed = selection.pulled_back(over, excess, usable, 0)
    assert over @ excess[0] > 1e-12  # what the repair is for
    assert (fixed @ excess[0] <= 1e-15).all()
    assert fixed == pytest.approx(over, abs=1e-10)


def test_listed_vertices_are_all_there_is() -> None:
    """Two limits, three actions, by hand: the simplex with two corners cut off."""
    cost = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    vertices = Polytope.of(cost, np.array([0.5, 0.25]), np.ones(3, bool)).vertices
    expected = [[1, 0, 0], [0.5, 0.5, 0], [0.75, 0, 0.25], [0.25, 0.5, 0.25]]
    assert sorted(map(tuple, vertices.round(12).tolist())) == sorted(map(tuple, expected))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"score": [[1.0, 2.0]]}, ShapeError, r"`score` must have shape \(K,\)"),
        ({"score": [np.nan, 1.0]}, NotFiniteError, "`score` must be finite"),
        ({"score": [np.inf, 1.0]}, NotFiniteError, "`score` must be finite"),
        ({"cost_upper": [0.1, 0.2, 0.3]}, ShapeError, "with K = 2"),
        ({"cost_upper": [np.nan, 0.2]}, NotFiniteError, "`cost_upper` must be finite"),
        ({"cost_upper": [-np.inf, 0.2]}, NotFiniteError, "`cost_upper` must be finite"),
        ({"at_most": [0.1, 0.2]}, ShapeError, "one number per constraint, 1 here"),
        ({"at_most": np.nan}, NotFiniteError, "`at_most` must be finite"),
        ({"allowed": [1, 0]}, ShapeError, "`allowed` must be 2 booleans"),
        ({"allowed": [False, False]}, InfeasibleError, "no action is allowed"),
        ({"played": [1.0]}, ShapeError, "`played` must be 2 finite counts"),
        ({"safe_action": 2}, ActionRangeError, r"one of 0..1, got 2"),
        ({"at_most": 0.05}, InfeasibleError, r"lowest cost bound 0.1 > limit 0.05"),
        ({"cost_upper": [np.inf, np.inf]}, InfeasibleError, r"lowest cost bound inf > limit 0.5"),
        (
            {"cost_upper": [[0.1, 0.9], [0.9, 0.1]], "at_most": [0.2, 0.2]},
            InfeasibleError,
            "2 limits together",
        ),
    ],
)
def test_bad_input_is_named(change: dict, error: type[Exception], message: str) -> None:
    arguments = {"score": [0.0, 1.0], "cost_upper": [0.1, 0.9], "at_most": 0.5, **change}
    with pytest.raises(error, match=message):
        select_policy(**arguments)


# ties in a bandit ---------------------------------------------------------------------------------


def regret_of_optimistic_pessimistic_play(tie_to_least_played: bool, rounds: int = 2000) -> float:
    """Optimistic-pessimistic bandit of Pacchiano et al. (2021): four arms, τ = .2, bounds
    clipped to [0, 1].
    """
    rng = np.random.default_rng(0)
    reward, cost, limit = np.array([0.1, 0.2, 0.4, 0.7]), np.array([0.0, 0.4, 0.5, 0.2]), 0.2
    best = reward @ select_policy(reward, cost, limit)
    pulls, seen_reward, seen_cost = np.zeros(4), np.zeros(4), np.zeros(4)
    regret = 0.0
    for _ in range(rounds):
        n = np.maximum(pulls, 1)
        radius = np.where(pulls > 0, np.sqrt(2 * np.log(rounds**2) / n), np.inf)
        score = np.minimum(seen_reward / n + (1 + 1 / limit) * radius, 1.0)
        upper = np.minimum(seen_cost / n + radius, 1.0)
        upper[0] = 0.0
        policy = select_policy(score, upper, limit, played=pulls if tie_to_least_played else None)
        regret += best - policy @ reward
        a = rng.choice(4, p=policy)
        pulls[a] += 1
        seen_reward[a] += np.clip(rng.normal(reward[a], 0.1), 0, 1)
        seen_cost[a] += np.clip(rng.normal(cost[a], 0.1), 0, 1)
    return regret


def test_first_index_ties_multiply_regret() -> None:
    fair, first = (regret_of_optimistic_pessimistic_play(rule) for rule in (True, False))
    assert first > 1.25 * fair
