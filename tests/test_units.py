"""Tolerances are shares of what they stand beside: a limit of 2e-10 is a limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import gedppl as ged
from gedppl.certificate import Grounds, certify
from gedppl.errors import FunctionalError, InfeasibleError, ProblemError
from gedppl.ged_ucb import select
from gedppl.ged_ucb.costs import check_feasible, room_for_mixing
from gedppl.guard import LimitMonitor
from gedppl.selection import policy_cost
from gedppl.study.simulation import FixedPolicy, simulate
from tests.plain_worlds import PlainWorld, state_of
from tests.test_declared import Families, exponential

UTILITIES = PlainWorld(contexts=1, actions=3).problem.utility


def scaled(
    unit: float,
    at_most: float = 0.2,
    safe_value: float = 0.0,
    high: float = 1.0,
    shift: float = 0.0,
) -> ged.Problem:
    """Exponential costs in any unit; the limit is 0.2 of it."""
    tables = unit * np.array([[1e-9, 0.5, 0.1], [1e-9, 0.3, 0.4]])
    cost = ged.Constraint(
        Families(tables, exponential),
        ged.mean(0, high * unit),
        at_most=at_most * unit,
        safe_value=max(safe_value, 1e-9) * unit,
    )
    return ged.Problem(3, UTILITIES, [cost], safe_action=0)


class World:
    def __init__(self, unit: float) -> None:
        self.unit = unit

    def context(self, rng):
        return np.zeros(1)

    def outcome(self, x, action, rng):
        return float(rng.random() < 0.5), self.unit * (1e-9, 0.5, 0.1)[action] * rng.exponential()


def policies(unit: float) -> np.ndarray:
    agent, rng, world = (
        ged.GEDUCB(scaled(unit), seed=3, guard=None),
        np.random.default_rng(0),
        World(unit),
    )
    made = []
    for _ in range(25):
        d = agent.ask([0.0])
        made.append(d.policy)
        agent.tell(d.id, *world.outcome(d.x, d.action, rng))
    return np.array(made)


@pytest.mark.parametrize("unit", [1e-9, 1e-6, 1e6, 1e12])
def test_the_same_policies_in_any_unit(unit: float) -> None:
    plain = policies(1.0)
    assert (plain[:, 1:] > 0).any()
    np.testing.assert_allclose(policies(unit), plain, atol=1e-6)


def test_a_limit_of_a_fraction_of_a_billionth_is_not_zero() -> None:
    tables = np.array([[0.0, 0.5, 1e-10], [0.0, 0.3, 1.5e-10]]) + 1e-20
    cost = ged.Constraint(
        Families(tables, exponential), ged.mean(0, 1), at_most=2e-10, safe_value=1e-20
    )
    problem = ged.Problem(3, UTILITIES, [cost], safe_action=0)
    agent = ged.GEDUCB(problem, seed=1)
    decision = agent.ask([0.0])
    part = decision.certificate.constraints[0]
    assert decision.certificate.fallback is None
    assert part.worst_case <= 2e-10 * (1 + 1e-9)
    assert decision.policy[0] < 1
    # and the limit at the safe value itself is still refused, with the value and the fix
    with pytest.raises(ProblemError, match=r"equals its limit at_most=0.3.*raise at_most"):
        replace(problem, constraints=[replace(cost, at_most=0.1 + 0.2, safe_value=0.3)])
    # where it depends on the context, at the context where it does
    known = replace(
        cost,
        at_most=0.1 + 0.2,
        safe_value=lambda x: np.full(len(x), 0.3),
        model=Families(tables + 0.3, exponential),
    )
    with pytest.raises(
        InfeasibleError,
        match=r"equals its value at the safe action \(0.3\).*raise "
        r"at_most",
    ):
        ged.GEDUCB(replace(problem, constraints=[known])).ask([0.0])


def test_rounding_is_a_share_of_the_limit() -> None:
    limits, safe = np.array([2e-10, 0.3, 1e12, 0.0]), np.array([0.0, 0.1 + 0.2, 1e12 - 1, 0.0])
    assert (room_for_mixing(limits, safe) > 0).tolist() == [True, False, False, False]
    assert room_for_mixing(limits * 1e9, safe * 1e9)[0] == pytest.approx(0.2)
    check_feasible(np.array([[0.3 + 1e-12]]), np.array([0.3]))
    check_feasible(np.array([[1e-12]]), np.array([0.0]), np.array([[1.0]]))  # of sums that cancel
    for worst, limit, size in (
        (1e-9, 2e-10, 1e-9),
        (0.3001, 0.3, 1.0),
        (np.inf, 0.3, np.inf),
        (1e-12, 0.0, 1e-12),
    ):
        with pytest.raises(FloatingPointError, match="exceeds the limit"):
            check_feasible(np.array([[worst]]), np.array([limit]), np.array([[size]]))


def test_small_ranges_are_checked_as_strictly_as_large_ones() -> None:
    for unit in (1e-12, 1.0, 1e12):
        functional = ged.mean(0, unit)
        functional.check(np.array([unit * (1 + 1e-12)]))
        with pytest.raises(FunctionalError, match="outside its declared range"):
            functional.check(np.array([1.1 * unit]))


def test_a_monitor_of_small_costs_refuses_what_lies_outside_their_range() -> None:
    for unit in (1e-12, 1.0, 1e12):
        monitor = LimitMonitor.create(limit=0.4 * unit, low=0.1 * unit, high=unit, delta=0.05)
        monitor.update(0.1 * unit * (1 - 1e-12))
        for cost in (0.09 * unit, 1.1 * unit):
            with pytest.raises(ged.errors.DataError, match="lies outside its range"):
                monitor.update(cost)


def test_a_run_counts_infeasible_rounds_in_small_units() -> None:
    class Truth(World):
        def utilities(self, x):
            return np.full(3, 0.5)

        def costs(self, x):
            return self.unit * np.array([[1e-9, 0.5, 0.1]])

    for unit in (1e-10, 1.0):
        run = simulate(scaled(unit), Truth(unit), FixedPolicy(lambda x: [0.0, 1.0, 0.0]), 3)
        assert run.infeasible.all()


# flags decide, words do not -----------------------------------------------------------------------


def certified(change) -> tuple[bool, str]:
    """The claim of a certificate whose `Info` was changed."""
    problem = scaled(1.0)
    agent = ged.GEDUCB(problem, guard=None)
    agent.ask([0.0])
    state = state_of(agent, None)
    policy, info = select(state, np.zeros((1, 1)))
    certificate, _ = certify(Grounds(state, change(info)), 0, np.zeros(1), policy[0], 0)
    assert np.isfinite(policy_cost(policy, info.cost_upper, np.array([False]))).all()
    return certificate.guaranteed, certificate.constraints[0].claim


def test_only_flags_change_a_claim() -> None:
    def bounds(info, **changes):
        return replace(info, bounds=(replace(info.bounds[0], **changes),))

    assert certified(lambda info: info)[0]
    guaranteed, claim = certified(lambda info: bounds(info, guaranteed=False))
    assert not guaranteed
    assert "approximation" in claim
    assert not certified(lambda info: replace(info, unlimited=True))[0]
    # words: none of them decides
    for words in (
        "warm-up (paper)",
        "every member of the class is excluded",
        "the bound is an approximation",
        "",
    ):
        assert certified(lambda info, words=words: replace(info, engine=words, notes=(words,)))[0]
        assert certified(lambda info, words=words: bounds(info, note=words, rule=words))[0]
        assert not certified(
            lambda info, words=words: bounds(info, note=words, rule=words, guaranteed=False)
        )[0]


def test_an_empty_set_is_a_flag_of_its_own() -> None:
    """What an agent does about it hangs on the field, whatever the note says."""
    from gedppl.ged_ucb import costs as declared

    agent = ged.GEDUCB(scaled(1.0), guard=None)
    agent.ask([0.0])
    _, info = select(state_of(agent, None), np.zeros((1, 1)))
    found = info.bounds[0]
    for words in (
        "",
        "every member of the class is excluded: the class does not hold the truth (misspecified)",
    ):
        silent = declared.refuted(agent.problem, np.zeros((1, 1)), (replace(found, note=words),))
        assert silent == ()
        (said,) = declared.refuted(
            agent.problem, np.zeros((1, 1)), (replace(found, note=words, empty=True),)
        )
        assert said.name == "empty:cost"
