"""Expected inverse counts against dynamic programming; the exact pass, twice; the block pass
against it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gedppl import counterfactual
from gedppl.counterfactual import block_pass, blocks, exact_pass, expected_inverse_count
from gedppl.counterfactual.blocks import fill_blocks
from gedppl.errors import (
    ActionRangeError,
    DataError,
    InfeasibleError,
    NotFiniteError,
    SettingError,
    ShapeError,
)
from gedppl.selection import select_policy
from tests.clear_pass import clear_pass

# expected inverse counts --------------------------------------------------------------------------


def by_dynamic_programming(p: np.ndarray, pulls: int = 1) -> np.ndarray:
    """E[1/(N + pulls)] from the law of N itself; p (n, K)."""
    n, n_actions = p.shape
    law = np.zeros((n_actions, n + 1))
    law[:, 0] = 1.0
    for j in range(n):
        q = p[j][:, None]
        law[:, 1 : j + 2] = law[:, 1 : j + 2] * (1 - q) + law[:, : j + 1] * q
        law[:, 0] *= 1 - q[:, 0]
    return (law / (np.arange(n + 1) + pulls)).sum(axis=1)


@pytest.mark.parametrize("n", [1, 2, 7, 100, 2000])
def test_expected_inverse_count_is_that_of_the_law(n: int) -> None:
    rng = np.random.default_rng(n)
    p = rng.random((n, 5)) * [1.0, 0.1, 0.003, 0.0, 1.0]
    p[:, 4] = rng.random(n) < 0.5  # a sure count
    assert expected_inverse_count(p) == pytest.approx(
        by_dynamic_programming(p), abs=1e-8, rel=1e-10
    )
    assert expected_inverse_count(p, pulls=3) == pytest.approx(
        by_dynamic_programming(p, 3), abs=1e-8, rel=1e-10
    )


@pytest.mark.parametrize("q", [1.0, 0.2, 1e-3, 1e-5, 1e-9])
def test_expected_inverse_count_of_a_long_history(q: float) -> None:
    n = 100_000
    exact = -np.expm1((n + 1) * np.log1p(-q)) / ((n + 1) * q) if q < 1 else 1 / (n + 1)
    assert expected_inverse_count(np.full(n, q)) == pytest.approx(exact, rel=1e-10)


def test_expected_inverse_count_at_the_edges() -> None:
    assert expected_inverse_count(np.zeros((0, 3))).tolist() == pytest.approx([1, 1, 1], abs=1e-14)
    assert expected_inverse_count([]) == pytest.approx(1.0, abs=1e-14)
    assert expected_inverse_count([0.5]) == pytest.approx(0.75, abs=1e-14)


def test_plain_gauss_legendre_is_wrong_on_long_histories() -> None:
    x, w = np.polynomial.legendre.leggauss(32)
    node, weight = (x + 1) / 2, w / 2
    n, q = 10_000, 0.2
    plain = ((1 - q * node) ** n) @ weight
    exact = 1 / ((n + 1) * q)
    assert abs(plain / exact - 1) > 0.1
    assert expected_inverse_count(np.full(n, q)) == pytest.approx(exact, rel=1e-10)


@pytest.mark.parametrize(
    ("p", "pulls", "error", "message"),
    [
        ([0.5, 1.5], 1, DataError, r"probabilities in \[0, 1\], got 1.5"),
        ([0.5, np.nan], 1, DataError, "got nan"),
        (0.5, 1, ShapeError, r"shape \(n, K\) or \(n,\)"),
        ([0.5], 0, SettingError, "at least 1, got 0"),
    ],
)
def test_expected_inverse_count_names_bad_input(
    p: Any, pulls: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        expected_inverse_count(p, pulls=pulls)


# instances ----------------------------------------------------------------------------------------


def history(
    seed: int,
    n_actions: int = 5,
    n_limits: int = 1,
    t: int = 200,
    growth: float = 1.2,
    weight: float | None = None,
    n_contexts: int = 1,
) -> dict[str, Any]:
    """Snapshots that close in on a truth; action 0 is safe."""
    rng = np.random.default_rng(seed)
    starts = [0]
    while (after := max(starts[-1] + 1, int(np.ceil(starts[-1] * growth)))) <= t:
        starts.append(after)
    shrink = 1 / np.sqrt(1 + np.array(starts))[:, None]
    utility = rng.random((n_contexts, 1, n_actions))
    utility[..., 0] = 0.1
    cost = rng.random((n_contexts, 1, n_limits, n_actions))
    shape = (n_contexts, len(starts))
    base = utility + shrink * (0.3 + 0.3 * rng.normal(size=(*shape, n_actions)))
    upper = np.clip(
        cost + shrink[:, None] * (1 + 0.1 * rng.normal(size=(*shape, n_limits, n_actions))), 0, 1
    )
    upper[..., 0] = 0.05
    scale = 10 ** rng.uniform(-2, 0.3) if weight is None else weight
    return {
        "base_score": base,
        "cost_upper": upper,
        "at_most": np.tile(rng.uniform(0.2, 0.6, n_limits), (len(starts), 1)),
        "bonus_weight": scale * 0.5 * np.sqrt((np.arange(t + 1) + 1) / n_actions),
        "block_start": np.array(starts),
        "t": t,
    }


def with_ties(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same with coarse scores and bounds: many exact ties."""
    return {
        **arguments,
        "base_score": arguments["base_score"].round(1),
        "cost_upper": (arguments["cost_upper"] * 4).round(0) / 4,
        "at_most": np.maximum(arguments["at_most"].round(1), 0.25),
    }


def label_queries(n: int) -> np.ndarray:
    """Actions 2a (predict a) and 2a + 1 (predict a and query, which shows both)."""
    shows = np.zeros((2 * n, 2 * n), bool)
    for a in range(n):
        shows[2 * a + 1, 2 * a : 2 * a + 2] = True
    return shows


def literal_path(arguments: dict[str, Any]) -> np.ndarray:
    """(t+1, K): the recursion by definition, each expectation from the full law of the counts."""
    path: list[np.ndarray] = []
    base, cost = arguments["base_score"][0], arguments["cost_upper"][0]
    for i in range(arguments["t"] + 1):
        b = np.nonzero(arguments["block_start"] <= i)[0][-1]
        past = np.array(path).reshape(i, base.shape[1])
        score = base[b] + arguments["bonus_weight"][i] * by_dynamic_programming(past)
        path.append(select_policy(score, cost[b], arguments["at_most"][b], played=past.sum(axis=0)))
    return np.array(path)


# the exact pass -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n_limits", [0, 1, 2])
@pytest.mark.parametrize("ties", [False, True])
def test_exact_pass_is_the_recursion(n_limits: int, ties: bool) -> None:
    arguments = history(10 + n_limits, n_limits=n_limits, t=120)
    arguments = with_ties(arguments) if ties else arguments
    for walk in (clear_pass, exact_pass):
        path = walk(**arguments, keep_path=True).path
        assert np.abs(path[0] - literal_path(arguments)).max() <= 1e-10  # type: ignore[index]


@pytest.mark.parametrize(
    "case",
    ["plain", "ties", "mask", "queries", "refit every round", "three limits", "many actions"],
)
def test_the_pass_is_the_one_with_nothing_precomputed(case: str) -> None:
    arguments = history(3, n_actions=6, t=150, n_contexts=2)
    if case == "ties":
        arguments = with_ties(arguments)
    elif case == "mask":
        rng = np.random.default_rng(0)
        arguments["available"] = rng.random(arguments["base_score"].shape) < 0.7
        arguments["available"][..., 0] = True
        arguments["warmup_pulls"] = 2
    elif case == "queries":
        arguments["reveals"] = label_queries(3)
    elif case == "refit every round":
        arguments = history(4, t=100, growth=1.0)
    elif case == "three limits":
        arguments = with_ties(history(5, n_limits=3, n_actions=5, t=80))
    elif case == "many actions":  # beyond the vertex list: the hull
        arguments = with_ties(history(6, n_actions=60, t=60))
    clear, fast = (walk(**arguments, keep_path=True) for walk in (clear_pass, exact_pass))
    for one, other in zip(clear, fast):
        assert np.abs(one - other).max() <= 1e-10  # type: ignore[operator]


def test_past_rounds_are_replayed_bit_for_bit() -> None:
    """The policy of round j found today is the one found at round j: nothing later reaches back."""
    arguments = history(7, t=180)
    today = exact_pass(**arguments, keep_path=True).path
    for j in (0, 1, 17, 64, 65, 129, 179):
        n = int((arguments["block_start"] <= j).sum())
        then = exact_pass(
            arguments["base_score"][:, :n],
            arguments["cost_upper"][:, :n],
            arguments["at_most"][:n],
            arguments["bonus_weight"][: j + 1],
            arguments["block_start"][:n],
            j,
        )
        assert np.array_equal(then.policy, today[:, j])  # type: ignore[index]


def test_contexts_of_a_batch_do_not_mix() -> None:
    arguments = history(8, n_actions=6, t=90, n_contexts=9)
    alone = {**arguments, **{k: arguments[k][4:5] for k in ("base_score", "cost_upper")}}
    assert np.array_equal(exact_pass(**arguments).policy[4:5], exact_pass(**alone).policy)
    others = history(30, n_actions=6, t=90, n_contexts=9)
    for name in ("base_score", "cost_upper"):
        others[name][4] = arguments[name][4]
    others = {**arguments, **{k: others[k] for k in ("base_score", "cost_upper")}}
    first, second = block_pass(**arguments).policy, block_pass(**others).policy
    assert first[4] == pytest.approx(second[4], abs=1e-12)
    assert np.abs(first - second).max() > 0.1


@pytest.mark.parametrize("run", [exact_pass, block_pass])
@pytest.mark.parametrize("n_limits", [1, 2])
def test_permuting_actions_permutes_policies(run: Any, n_limits: int) -> None:
    arguments = history(9, n_limits=n_limits, n_actions=5, t=300)
    order = np.random.default_rng(0).permutation(5)
    moved = {
        **arguments,
        "base_score": arguments["base_score"][..., order],
        "cost_upper": arguments["cost_upper"][..., order],
    }
    assert run(**moved).policy == pytest.approx(run(**arguments).policy[:, order], abs=1e-7)


@pytest.mark.parametrize("run", [exact_pass, block_pass])
@pytest.mark.parametrize("n_limits", [1, 2])
def test_units_do_not_matter(run: Any, n_limits: int) -> None:
    arguments = history(11, n_limits=n_limits, n_actions=5, t=300)
    other = {
        **arguments,
        "base_score": 30 * arguments["base_score"] - 7,
        "bonus_weight": 30 * arguments["bonus_weight"],
        "cost_upper": 0.2 * arguments["cost_upper"] + 3,
        "at_most": 0.2 * arguments["at_most"] + 3,
    }
    assert run(**other).policy == pytest.approx(run(**arguments).policy, abs=1e-7)


def test_sampling_the_counterfactual_actions_is_another_algorithm() -> None:
    """Counting sampled actions instead of their probabilities changes today's policy, from one
    seed to the next.
    """
    arguments = history(12, weight=1.0, t=150)
    exact = exact_pass(**arguments, keep_path=True).path[0]  # type: ignore[index]
    far = []
    for seed in range(5):
        rng, count, path = np.random.default_rng(seed), np.zeros(5), []
        for i in range(arguments["t"] + 1):
            b = np.nonzero(arguments["block_start"] <= i)[0][-1]
            score = arguments["base_score"][0, b] + arguments["bonus_weight"][i] / (1 + count)
            policy = select_policy(
                score, arguments["cost_upper"][0, b], arguments["at_most"][b], played=count
            )
            path.append(policy)
            count[rng.choice(5, p=policy)] += 1
        far.append(np.abs(np.array(path) - exact).sum(axis=1) > 0.1)
    assert np.mean(far) > 0.05


def test_first_round_and_full_information() -> None:
    first = {
        "base_score": [[[0.1, 0.5, 0.9]]],
        "cost_upper": [[[[0.0, 1.0, 1.0]]]],
        "at_most": [[0.4]],
        "bonus_weight": [1.0],
        "block_start": [0],
        "t": 0,
    }
    assert exact_pass(**first).policy[0] == pytest.approx([0.6, 0.0, 0.4], abs=1e-12)
    arguments = history(13, t=70)
    shown = np.ones((5, 5), bool)
    exact, quick = (run(**arguments, reveals=shown) for run in (exact_pass, block_pass))
    assert exact.inverse_count == pytest.approx(np.full((1, 5), 1 / 71), rel=1e-10)
    assert np.abs(exact.policy - quick.policy).max() <= 1e-12
    assert exact.expected_count.tolist() == quick.expected_count.tolist() == [[70] * 5]


def test_label_queries_count_only_what_was_shown_and_use_the_budget() -> None:
    arguments = history(14, n_actions=6, t=120)
    arguments["base_score"] = np.repeat(arguments["base_score"][..., ::2], 2, axis=2)
    arguments["cost_upper"] = np.broadcast_to([0.0, 1.0] * 3, arguments["cost_upper"].shape)
    arguments["at_most"] = np.full_like(arguments["at_most"], 0.2)
    result = exact_pass(**arguments, reveals=label_queries(3), keep_path=True)
    asked = result.path[0, :-1, 1::2]  # type: ignore[index]
    assert np.abs(asked.sum(axis=1) - 0.2).max() <= 1e-12
    assert result.expected_count[0, ::2] == pytest.approx(asked.sum(axis=0), abs=1e-9)
    assert result.expected_count[0, 1::2] == pytest.approx(asked.sum(axis=0), abs=1e-9)


# the block pass -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n_limits", [0, 1, 2, 3])
def test_a_filling_is_the_maximum(n_limits: int) -> None:
    """First-order condition: no feasible policy has a higher score at the marginal bonuses the
    filling leaves.
    """
    rng = np.random.default_rng(n_limits)
    n_contexts, n_actions = 60, 6
    score = rng.random((n_contexts, 1, n_actions))
    excess = rng.uniform(-1, 1, (n_contexts, 1, n_limits, n_actions))
    excess[..., 0] = -0.3
    usable = rng.random((n_contexts, 1, n_actions)) < 0.8
    usable[..., 0] = True
    counts = 10 ** rng.uniform(-0.3, 4, n_actions)
    for n, beta in ((1.0, 0.1), (50.0, 3.0), (5000.0, 20.0), (3.0, 0.0)):
        filled = fill_blocks(score, excess, usable, np.array([beta]), np.array([n]), counts)
        share = filled.gain / n
        assert np.abs(share.sum(axis=1) - 1).max() <= 1e-12
        assert filled.surplus.max() <= 1e-9 or n_limits == 0
        assert (share[~usable[:, 0]] == 0).all()
        for c in range(n_contexts):
            marginal = score[c, 0] + beta / (counts + filled.gain[c])
            best = select_policy(marginal, excess[c, 0], np.zeros(n_limits), allowed=usable[c, 0])
            assert marginal @ share[c] >= marginal @ best - 1e-8


def test_a_filling_by_hand() -> None:
    """β = 2, counts 1: prices λ - score with λ = 1.5 give counts 4 and 2."""
    filled = fill_blocks(
        np.array([[[1.0, 0.5, -5.0]]]),
        np.zeros((1, 1, 0, 3)),
        np.ones((1, 1, 3), bool),
        np.array([2.0]),
        np.array([4.0]),
        np.ones(3),
    )
    assert filled.gain[0] == pytest.approx([3.0, 1.0, 0.0], abs=1e-7)


@pytest.mark.parametrize(("n_actions", "n_limits"), [(5, 0), (5, 1), (20, 1), (5, 2)])
def test_blocks_stay_close_to_the_exact_pass(n_actions: int, n_limits: int) -> None:
    """Cumulative utility within 1% where holding each block's first policy loses more."""
    held_loss = []
    for seed in range(6):
        arguments = history(
            100 + seed, n_actions, n_limits, t=1000, weight=10 ** np.linspace(-2, 0.3, 6)[seed]
        )
        exact, quick = exact_pass(**arguments), block_pass(**arguments)
        utility = arguments["base_score"][0, -1]
        utility = utility - utility.min() + 0.1
        total = exact.expected_count[0] @ utility
        assert abs(quick.expected_count[0] @ utility / total - 1) < 0.005
        assert np.abs(quick.expected_count - exact.expected_count).sum() / 2000 < 0.02
        held, edges = np.zeros(n_actions), np.append(arguments["block_start"], arguments["t"])
        for b, n in enumerate(np.diff(edges)):
            score = arguments["base_score"][0, b] + arguments["bonus_weight"][edges[b]] / (1 + held)
            held += n * select_policy(
                score, arguments["cost_upper"][0, b], arguments["at_most"][b], played=held
            )
        held_loss.append(held @ utility / total - 1)
    assert min(held_loss) < -0.01


def test_early_blocks_are_merged_and_little_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A history's blocks do not grow in number with t; merging far more of them is another
    algorithm.
    """

    def filled_blocks(t: int, share: float) -> tuple[list[int], counterfactual.PassResult]:
        sizes, fill = [], counterfactual.fill_blocks

        def counting(score: np.ndarray, *rest: Any) -> Any:
            sizes.append(score.shape[1])
            return fill(score, *rest)

        with monkeypatch.context() as patched:
            patched.setattr(counterfactual, "fill_blocks", counting)
            patched.setattr(counterfactual, "MERGED_SHARE", share)
            return sizes, block_pass(**merged_history(t))

    def merged_history(t: int) -> dict[str, Any]:
        rng, start = np.random.default_rng(4), [0]
        while (after := max(start[-1] + 1, int(1.05 * start[-1]))) <= t:
            start.append(after)
        shrink = 1 / np.sqrt(1 + np.array(start))[:, None]
        cost = np.clip(np.array([0.05, 0.3, 0.5, 0.7]) + shrink, 0, 1)
        cost[:, 0] = 0.05
        base = np.array([0.1, 0.5, 0.6, 0.9]) + 0.5 * shrink * rng.normal(size=(len(start), 4))
        weight = 0.3 * np.sqrt(np.arange(t + 1) + 1.0)
        return {
            "base_score": base[None],
            "cost_upper": cost[None, :, None],
            "at_most": np.full((len(start), 1), 0.4),
            "bonus_weight": weight,
            "block_start": np.array(start),
            "t": t,
            "safe_action": 0,
        }

    t = 3000
    (all_,), every = filled_blocks(t, 0.0)
    (some,), merged = filled_blocks(t, counterfactual.MERGED_SHARE)
    (few,), coarse = filled_blocks(t, 0.5)
    assert all_ > 110
    assert some < 90
    assert few < 10
    moved = [
        np.abs(one.expected_count - every.expected_count).sum() / 2 / t for one in (merged, coarse)
    ]
    assert moved[0] < 0.01 < moved[1]
    assert filled_blocks(30_000, counterfactual.MERGED_SHARE)[0][0] <= some + 5


def test_a_changed_limit_keeps_its_own_block() -> None:
    given = {
        "base_score": np.tile([0.0, 1.0], (1, 40, 1)),
        "cost_upper": np.tile([0.0, 1.0], (1, 40, 1, 1)),
        "at_most": np.r_[np.full(20, 0.2), np.full(20, 0.6)][:, None],
        "bonus_weight": np.full(4001, 1e-3),
        "block_start": np.r_[np.arange(20), 20 + np.arange(20)],
        "t": 4000,
        "safe_action": 0,
    }
    played = block_pass(**given).expected_count[0, 1]
    assert played == pytest.approx(20 * 0.2 + 3980 * 0.6, rel=1e-4)


def test_what_is_played_is_the_rate_not_an_argmax() -> None:
    """Asked at many rounds, the block pass plays what the exact one plays on average. A filling
    leaves its actions tied, and an argmax among tied actions explores for ever.
    """
    arguments = history(15, t=2000, weight=1.0)
    exact = exact_pass(**arguments, keep_path=True).path[0, 1700:].mean(axis=0)  # type: ignore[index]
    played, argmax = [], []
    for t in range(1700, 2001, 4):
        n = int((arguments["block_start"] <= t).sum())
        base, cost, limit = (arguments[k] for k in ("base_score", "cost_upper", "at_most"))
        weight = arguments["bonus_weight"][: t + 1]
        then = block_pass(
            base[:, :n], cost[:, :n], limit[:n], weight, arguments["block_start"][:n], t
        )
        played.append(then.policy[0])
        count = then.expected_count[0]
        level = base[0, n - 1] + weight[t] / (count + 1 - counterfactual.HALF_STEP)
        argmax.append(select_policy(level, cost[0, n - 1], limit[n - 1], played=count))
    assert np.abs(np.mean(played, axis=0) - exact).sum() / 2 < 0.01
    assert np.abs(np.mean(argmax, axis=0) - exact).sum() / 2 > 0.1


def test_today_keeps_its_limits() -> None:
    for seed, n_limits in ((20, 1), (21, 2), (22, 3)):
        arguments = history(seed, n_actions=6, n_limits=n_limits, t=400, n_contexts=40)
        policy = block_pass(**arguments).policy
        cost = np.einsum("cjk,ck->cj", arguments["cost_upper"][:, -1], policy)
        assert (cost <= arguments["at_most"][-1] + 1e-12).all()
        assert np.abs(policy.sum(axis=1) - 1).max() <= 1e-12
        assert policy.min() >= 0


def test_limits_without_room() -> None:
    """τ = c0 leaves the safe action alone; two limits that meet in one point leave that point."""
    arguments = history(23, t=60)
    arguments["at_most"] = np.full_like(arguments["at_most"], 0.05)
    arguments["cost_upper"][..., 1:] = np.maximum(arguments["cost_upper"][..., 1:], 0.06)
    assert (
        block_pass(**arguments).policy[0].tolist()
        == exact_pass(**arguments).policy[0].tolist()
        == [1, 0, 0, 0, 0]
    )
    arguments = history(24, n_limits=2, t=60)
    arguments["cost_upper"][:] = [[0.0, 1.0, 2.0, 2.0, 2.0], [1.0, 0.0, 2.0, 2.0, 2.0]]
    arguments["at_most"] = np.full_like(arguments["at_most"], 0.5)
    for run in (exact_pass, block_pass):
        assert run(**arguments).policy[0] == pytest.approx([0.5, 0.5, 0.0, 0.0, 0.0], abs=1e-9)


def test_no_bonus_at_all() -> None:
    arguments = history(25, t=500, weight=0.0)
    assert block_pass(**arguments).policy == pytest.approx(exact_pass(**arguments).policy, abs=1e-6)


@pytest.mark.parametrize("run", [exact_pass, block_pass])
def test_actions_come_and_go(run: Any) -> None:
    arguments = history(26, t=300)
    can = np.ones(arguments["base_score"].shape, bool)
    can[:, -6:, 1] = False
    can[:, :10, 2] = False
    result = run(**arguments, available=can)
    assert result.policy[0, 1] == 0
    first = int(arguments["block_start"][10])
    assert result.expected_count[0, 2] <= 300 - first + 1e-9
    assert result.expected_count.sum() == pytest.approx(300)


@pytest.mark.parametrize("run", [exact_pass, block_pass])
def test_past_rounds_without_a_feasible_policy(run: Any) -> None:
    arguments = history(27, t=40)
    arguments["at_most"][2] = 0.01  # below the safe action's cost
    with pytest.raises(InfeasibleError, match=r"limit 0\.01"):
        run(**arguments)
    assert run(**arguments, safe_action=0).expected_count.sum() == pytest.approx(40)
    arguments["at_most"][-1] = 0.01  # today that is an error
    with pytest.raises(InfeasibleError, match=r"lowest cost bound 0\.05 > limit 0\.01"):
        run(**arguments, safe_action=0)


def test_substeps_follow_any_pattern_of_reveals() -> None:
    arguments = history(28, n_actions=6, t=800)
    arguments["cost_upper"] = np.broadcast_to([0.0, 1.0] * 3, arguments["cost_upper"].shape).copy()
    exact, quick = (run(**arguments, reveals=label_queries(3)) for run in (exact_pass, block_pass))
    assert (
        np.abs(exact.expected_count - quick.expected_count).sum() / 2
        < 0.02 * exact.expected_count.sum()
    )


def test_a_growing_history_compiles_once() -> None:
    before = blocks._compiled()._cache_size()
    for t in (150, 400, 1000, 3000):
        block_pass(**history(29, n_actions=7, t=t))
    assert blocks._compiled()._cache_size() == before + 1


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"base_score": np.zeros((4, 3))}, ShapeError, r"`base_score` must have shape \(C, B, K\)"),
        ({"cost_upper": np.zeros((1, 2, 1, 3))}, ShapeError, "`cost_upper` must have shape"),
        ({"at_most": [0.5, 0.5]}, ShapeError, r"`at_most` must have shape \(B, J\)"),
        ({"bonus_weight": np.ones(3)}, ShapeError, r"`bonus_weight` must have length t \+ 1 = 11"),
        ({"bonus_weight": -np.ones(11)}, NotFiniteError, "not negative"),
        ({"base_score": np.full((1, 2, 4), np.nan)}, NotFiniteError, "`base_score` must be finite"),
        ({"cost_upper": np.full((1, 2, 1, 4), np.nan)}, NotFiniteError, r"finite or \+inf"),
        ({"block_start": [0, 11]}, ShapeError, "from 0 to at most t = 10"),
        ({"block_start": [1, 2]}, ShapeError, "`block_start` must be 2 increasing"),
        ({"available": np.ones((1, 2, 4))}, ShapeError, "`available` must be booleans"),
        ({"reveals": np.ones((2, 2), bool)}, ShapeError, "`reveals` must be booleans"),
        ({"warmup_pulls": 0}, SettingError, "at least 1"),
        ({"safe_action": 9}, ActionRangeError, "got 9"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments: dict[str, Any] = {
        "base_score": np.zeros((1, 2, 4)),
        "cost_upper": np.zeros((1, 2, 1, 4)),
        "at_most": [[0.5], [0.5]],
        "bonus_weight": np.ones(11),
        "block_start": [0, 5],
        "t": 10,
    }
    for run in (exact_pass, block_pass):
        with pytest.raises(error, match=message):
            run(**{**arguments, **change})


def test_importing_loads_no_jax() -> None:
    import subprocess
    import sys

    code = "import sys, gedppl.counterfactual, gedppl.selection; assert 'jax' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
