"""Actions that share the parameter which is their worst case: a policy's own worst case, and the
policies that it lets in.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.optimize import minimize

import gedppl as ged
from gedppl.ged_ucb import limit_costs, today
from gedppl.learning import linear_set
from gedppl.learning.ellipsoids import Ellipsoid, EllipsoidRegion
from gedppl.learning.learner import Group
from gedppl.learning.linear_gaussian import LinearGaussianLearner
from gedppl.programs.contract import LinearPredictor
from gedppl.selection import select_policies, solvers
from gedppl.selection.solvers import MOST_TOGETHER, Together, gained_together
from tests.plain_worlds import state_of

LIMIT = 0.3


def drawn(C: int, K: int, seed: int, r: int = 4) -> tuple[np.ndarray, Together]:
    """Scores, and costs of which the first action's is known and low."""
    rng = np.random.default_rng(seed)
    middle, half = 0.6 * rng.random((C, K)), 0.15 * rng.normal(size=(C, K, r))
    middle[:, 0], half[:, 0] = 0.1, 0.0
    return rng.random((C, K)), Together(middle, half)


def by_action(score: np.ndarray, together: Together) -> tuple[np.ndarray, np.ndarray]:
    """The actions' own worst cases, and the best policies under their average."""
    upper = together.middle + np.linalg.norm(together.half, axis=2)
    C, K = score.shape
    every = np.ones((C, K), bool)
    limits = np.array([LIMIT])
    return upper, select_policies(score, upper[:, None], limits, every, np.zeros(K), 0)


def gained(score: np.ndarray, together: Together, usable: np.ndarray | None = None) -> np.ndarray:
    _, policy = by_action(score, together)
    every = np.ones(score.shape, bool) if usable is None else usable
    return gained_together(policy, score, together, LIMIT, every, np.zeros(score.shape[1]))


def test_worst_case_of_a_policy_is_the_largest_over_one_parameter() -> None:
    score, together = drawn(20, 5, 0)
    policy = np.random.default_rng(1).dirichlet(np.ones(5), 20)
    v = np.random.default_rng(2).normal(size=(20_000, 4))
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    costs = together.middle[:, None] + np.einsum("ckr,mr->cmk", together.half, v)
    searched = np.einsum("cmk,ck->cm", costs, policy).max(axis=1)
    worst = together.worst(policy)
    upper, _ = by_action(score, together)
    assert (searched <= worst).all()
    assert worst == pytest.approx(searched, rel=2e-2)
    assert (worst <= np.sum(policy * upper, axis=1) + 1e-12).all()


@pytest.mark.parametrize("K", [2, 3, 5, 20])
def test_policies_keep_the_limit_and_gain(K: int) -> None:
    score, together = drawn(200, K, K)
    upper, before = by_action(score, together)
    after = gained(score, together)
    assert (after >= 0).all()
    assert after.sum(axis=1) == pytest.approx(1.0)
    assert (together.worst(after) <= LIMIT + 1e-12).all()
    gain = np.sum((after - before) * score, axis=1)
    assert (gain >= -1e-12).all()
    assert (np.count_nonzero(after, axis=1) <= 3).all()
    if K > 2:  # action by action the same policies would be refused
        assert gain.max() > 1e-3
        assert (np.sum(after * upper, axis=1) > LIMIT + 1e-6).any()


@pytest.mark.parametrize("seed", range(20))
def test_three_actions_are_solved_to_the_optimum(seed: int) -> None:
    score, together = drawn(1, 3, seed)
    found = float(gained(score, together)[0] @ score[0])
    best = -np.inf
    for start in np.vstack([np.eye(3), np.full(3, 1 / 3)]):
        solved = minimize(
            lambda p: -score[0] @ p,
            0.9 * start + 0.1 * np.eye(3)[0],
            bounds=[(0, 1)] * 3,
            constraints=[
                {"type": "eq", "fun": lambda p: p.sum() - 1},
                {"type": "ineq", "fun": lambda p: LIMIT - together.worst(p[None])[0]},
            ],
        )
        if solved.success:
            best = max(best, float(score[0] @ solved.x))
    assert found == pytest.approx(best, abs=1e-5)


def line_of(half: np.ndarray) -> None:
    half[:, :, 1:] = 0.0


def one_for_all(half: np.ndarray) -> None:
    half[:, 2:] = half[:, 1:2]


def opposite(half: np.ndarray) -> None:
    half[:, 2] = -half[:, 1]


def tiny(half: np.ndarray) -> None:
    half *= 1e-9


def huge(half: np.ndarray) -> None:
    half *= 1e6


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e12])
@pytest.mark.parametrize("shape", [line_of, one_for_all, opposite, tiny, huge])
def test_no_member_exceeds_the_limit_whatever_the_rank_the_width_or_the_unit(shape, unit) -> None:
    """Against the members themselves: directions drawn at random, and the worst one."""
    rng = np.random.default_rng(6)
    score, plain = drawn(50, 6, 5)
    half = plain.half.copy()
    shape(half)
    half[:, 0] = 0.0
    shared, limit = Together(unit * plain.middle, unit * half), unit * LIMIT
    upper = shared.middle + np.linalg.norm(shared.half, axis=2)
    every = np.ones(score.shape, bool)
    before = select_policies(score, upper[:, None], np.array([limit]), every, np.zeros(6), 0)
    after = gained_together(before, score, shared, limit, every, np.zeros(6))
    assert np.sum((after - before) * score, axis=1).min() >= -1e-12
    turned = (after[:, None] @ shared.half)[:, 0]
    v = rng.normal(size=(2000, 4))
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    size = np.linalg.norm(turned, axis=1, keepdims=True)
    worst = np.sum(turned * np.divide(turned, size, out=turned * 0, where=size > 0), axis=1)
    spread = np.maximum((turned @ v.T).max(axis=1), worst)
    assert (np.sum(after * shared.middle, axis=1) + spread).max() <= limit * (1 + 1e-11)


def test_contexts_together_and_alone_give_the_same_policies() -> None:
    score, together = drawn(40, MOST_TOGETHER + 5, 3)
    every = gained(score, together)
    for c in range(40):
        assert np.allclose(gained(score[c : c + 1], together.only(slice(c, c + 1)))[0], every[c])


def test_an_action_that_is_not_on_offer_is_not_mixed_in() -> None:
    score, together = drawn(100, 5, 4)
    usable = np.ones((100, 5), bool)
    usable[:, 2] = False
    assert (gained(score, together)[:, 2] > 0).any()
    upper = together.middle + np.linalg.norm(together.half, axis=2)
    limits = np.array([LIMIT])
    before = select_policies(score, upper[:, None], limits, usable, np.zeros(5), 0)
    after = gained_together(before, score, together, LIMIT, usable, np.zeros(5))
    assert (after[:, 2] == 0).all()
    assert np.sum((after - before) * score) > 0.1


def test_the_best_mix_is_not_lost_where_its_root_is_off_by_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside an action whose cost is known, and of narrow sets, two roots nearly meet."""
    score, wide = drawn(20_000, 5, 3)
    together = Together(wide.middle, 0.1 * wide.half)
    found = np.sum(score * gained(score, together), axis=1)
    assert (together.worst(gained(score, together)) <= LIMIT + 1e-12).all()
    monkeypatch.setattr(solvers, "ROOTS", 1.0)
    without = np.sum(score * gained(score, together), axis=1)
    assert (found >= without - 1e-12).all()
    assert (found > without + 1e-3).sum() > 3


def test_ties_go_to_the_least_played() -> None:
    score, together = drawn(1, 4, 9)
    twin = [0, 1, 2, 3, 1, 2]  # two actions appear twice
    score, together = score[:, twin], Together(together.middle[:, twin], together.half[:, twin])
    _, policy = by_action(score, together)
    every = np.ones((1, 6), bool)
    one, other = (
        gained_together(policy, score, together, LIMIT, every, np.array(played, float))[0]
        for played in ([0, 9, 9, 0, 0, 0], [0, 0, 0, 0, 9, 9])
    )
    assert one @ score[0] == pytest.approx(other @ score[0])
    assert one[[1, 2]].sum() == 0 < one[[4, 5]].sum()
    assert other[[4, 5]].sum() == 0 < other[[1, 2]].sum()


# what a learner and an agent make of it -----------------------------------------------------------


def line(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), 4, 3)[np.arange(len(x)), a]


def learned(n: int, groups: tuple[Group, ...] | None = None) -> LinearGaussianLearner:
    predictor = LinearPredictor(
        "Normal",
        "identity",
        features=line,
        offset=lambda x, a: np.full(len(x), 0.05),
        fixed=lambda x, a: {"scale": np.full(len(x), 0.1)},
    )
    rng = np.random.default_rng(0)
    x, a = rng.random((n, 12)), rng.integers(0, 4, n)
    y = line(x, a) @ [0.2, 0.3, 0.1] + 0.05 + 0.1 * rng.normal(size=n)
    start = LinearGaussianLearner.start(
        predictor, 3, delta=0.05, prior_precision=1.0, groups=groups
    )
    return start.absorb(x, a, y).refit()


def test_a_learner_gives_the_shared_form_of_its_own_upper_values() -> None:
    learner, x = learned(80), np.random.default_rng(5).random((6, 12))
    bounds = learner.bounds(ged.mean(0, 1), x, 4)
    (form,) = bounds.together
    alone = form.middle + np.linalg.norm(form.half, axis=2)
    assert alone == pytest.approx(bounds.upper)
    # no member of the set costs a policy more
    policy = np.random.default_rng(6).dirichlet(np.ones(4), 6)
    members = learner.draw_members(500, 0)
    assert len(members) == 500
    rows, a = np.repeat(x, 4, axis=0), np.tile(np.arange(4), 6)
    costs = (line(rows, a) @ members.T + 0.05).reshape(6, 4, -1)
    worst = np.einsum("ck,ckm->cm", policy, costs).max(axis=1)
    assert (worst <= form.worst(policy)).all()


def test_a_declared_range_stands_for_an_action_that_it_cuts() -> None:
    x = np.random.default_rng(5).random((6, 12))
    bounds = learned(12).bounds(ged.mean(0, 0.45), x, 4)
    cut = bounds.upper == 0.45
    assert cut.any()
    assert not cut.all()
    first, second = bounds.together
    assert (first.half[cut] == 0).all()
    assert (first.middle[cut] == 0.45).all()
    alone = second.middle + np.linalg.norm(second.half, axis=2)
    assert alone == pytest.approx(bounds.free_upper)


def test_other_functionals_and_a_set_without_rows_have_no_shared_form() -> None:
    x = np.random.default_rng(5).random((2, 12))
    assert learned(80).bounds(ged.probability(above=0.5), x, 4).together == ()
    assert learned(0).bounds(ged.mean(0, 1), x, 4).together == ()


def cost_model(x, a, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    phi = x.reshape(-1, 4, 3)[jnp.arange(x.shape[0]), a]
    numpyro.sample("y", dist.Normal(phi @ w, 0.1), obs=y)


COST = ged.density_class(cost_model, example=(np.zeros((1, 12)), np.zeros(1, int)))
TRUTH = np.array([0.2, 0.3, 0.1])


def run(rounds: int, seed: int, **limit) -> tuple[list, ged.GEDUCB]:
    """Decisions on contexts whose first action costs nothing."""
    problem = ged.Problem(
        n_actions=4,
        utility=ged.Utility(COST, ged.mean(0, 1)),
        constraints=[ged.Constraint(COST, ged.mean(0, 1), at_most=0.15, safe_value=0.0, **limit)],
        safe_action=0,
    )
    agent = ged.GEDUCB(problem, seed=seed, guard=None)
    rng = np.random.default_rng(seed)
    decisions = []
    for _ in range(rounds):
        phi = rng.random((4, 3))
        phi[0] = 0.0
        decision = agent.ask(phi.ravel())
        a = decision.action
        decisions.append((phi, decision))
        agent.tell(
            decision.id,
            phi[a] @ [0.5, 0.1, 0.3] + 0.1 * rng.normal(),
            phi[a] @ TRUTH + 0.1 * rng.normal(),
        )
    return decisions, agent


def test_an_agent_plays_mixtures_that_single_worst_cases_would_refuse() -> None:
    decisions, agent = run(60, 0)
    refused = 0
    for phi, decision in decisions:
        part = decision.certificate.constraints[0]
        assert part.guaranteed
        assert part.worst_case <= 0.15 * (1 + 1e-9)
        assert decision.policy @ phi @ TRUTH <= 0.15 + 1e-9
        upper = agent.explain(decision).cost_upper[0]
        refused += decision.policy @ upper > 0.15 + 1e-6
        assert part.worst_case <= decision.policy @ upper + 1e-12
    assert refused > 5


def test_a_limit_on_every_draw_is_about_single_actions() -> None:
    decisions, agent = run(30, 0, every_draw=True)
    for _, decision in decisions:
        upper = agent.explain(decision).cost_upper[0]
        assert (upper[decision.policy > 0] <= 0.15 * (1 + 1e-9)).all()
    x = decisions[-1][0].ravel()[None]
    seen = today(state_of(agent, x), x, np.ones((1, 4), bool))
    assert seen.together == ((),)


def test_the_safe_action_counts_by_its_declared_value() -> None:
    _, agent = run(30, 1)
    x = np.random.default_rng(0).random((2, 12))
    state = state_of(agent, x)
    seen = today(state, x, np.ones((2, 4), bool))
    (forms,) = seen.together
    assert forms
    assert all((form.middle[:, 0] == 0.0).all() for form in forms)
    assert all((form.half[:, 0] == 0.0).all() for form in forms)
    assert limit_costs(state.problem, seen, np.eye(4)[[0, 0]]) == pytest.approx(0.0)


def test_who_else_is_asked_about_changes_nobodys_worst_case() -> None:
    """The first ellipsoid leads at two contexts, the second at the one between them."""
    rng = np.random.default_rng(5)
    columns, none, unit = np.arange(3), np.zeros((0, 3)), np.ones(3)
    ellipsoids = [
        Ellipsoid(columns, rng.normal(size=3), rng.normal(size=(size, 3)), none, unit)
        for size in (3, 2)
    ]
    region = EllipsoidRegion([ellipsoids], 3)
    phi, offset, upper = rng.normal(size=(6, 3)), rng.normal(size=6), rng.normal(size=6) + 9
    tightest, cut, policy = np.array([0, 0, 1, 1, 0, 0]), np.zeros(6, bool), np.full((1, 2), 0.5)

    def worst(rows: slice, contexts: int) -> np.ndarray:
        by_context = (part[rows].reshape(contexts, 2) for part in (tightest, upper, cut))
        (form,) = linear_set.together(region, phi[rows], offset[rows], *by_context)
        return form.worst(np.repeat(policy, contexts, axis=0))

    alone = [worst(slice(2 * c, 2 * c + 2), 1)[0] for c in range(3)]
    assert worst(slice(0, 6), 3) == pytest.approx(alone)
    assert alone[1] < 8  # of the second ellipsoid, not of the upper ends
