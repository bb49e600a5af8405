"""The price of a limit before round 1: first mixes by hand, waits by simulation, advice that
helps and never another limit.
"""

from __future__ import annotations

import warnings
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from scipy.stats import norm

import gedppl as ged
from gedppl.agent import SafeActionWarning
from gedppl.errors import FunctionalError, ProblemError, SettingError, ShapeError
from gedppl.study.planning.declarations import HalfwayPrior, declarations, with_model
from gedppl.study.planning.price import FirstMix, Helped, Price, first_mix, first_mix_words
from gedppl.study.planning.truths import declared_world, safe_value_can_be_exact
from tests.plain_worlds import PlainTables
from tests.problems import LinearWorld
from tests.program_doubles import Glm

ORIGIN = np.zeros((1, 1))
GAIN = ged.Utility(PlainTables(np.array([[[0.1, 0.9]]])), ged.mean(0, 1))


class WithPlaces(Glm):
    """Any functional, from the density itself."""

    def values(self, functional, theta, x, a):
        return functional(self.density_at(theta, x, a), x, a)


def two_arms(
    unit: float = 1.0,
    high: float = 10.0,
    at_most: float = 1.0,
    safe_value: float = 0.5,
    scale: float = 0.5,
) -> ged.Problem:
    """z ~ Normal(unit theta[a], unit scale); nothing is known of theta but the range of its
    mean.
    """
    model = WithPlaces("Normal", 2, lambda x, a: unit * np.eye(2)[a], {"scale": unit * scale})
    cost = ged.Constraint(
        model, ged.mean(0, unit * high), at_most=unit * at_most, safe_value=unit * safe_value
    )
    return ged.Problem(2, GAIN, [cost], safe_action=0)


def coins(members: np.ndarray, **options) -> ged.Problem:
    """Tables (M, 1, K) of the probability of a cost."""
    given = {"at_most": 0.4, "safe_value": 0.1} | options
    return ged.Problem(
        2, GAIN, [ged.Constraint(PlainTables(members), ged.mean(0, 1), **given)], safe_action=0
    )


# the first mix ------------------------------------------------------------------------------------


def test_the_first_mix_is_limit_less_safe_over_high_less_safe() -> None:
    assert first_mix(two_arms(), ORIGIN) == pytest.approx(
        np.array([[(1 - 0.5) / (10 - 0.5)]]), rel=1e-12
    )


def test_the_worst_case_of_the_class_counts_if_it_is_below_the_range() -> None:
    """Two members: the other action costs 0.3 or 0.7, never 1."""
    problem = coins(np.array([[[0.1, 0.3]], [[0.1, 0.7]]]))
    assert first_mix(problem, ORIGIN) == pytest.approx(np.array([[0.3 / 0.6]]))
    # nothing to learn first
    assert first_mix(coins(np.array([[[0.1, 0.3]], [[0.1, 0.35]]])), ORIGIN) == 1.0


def test_the_first_policy_leaves_the_safe_action_exactly_that_often() -> None:
    problem = two_arms()
    policy = ged.GEDUCB(problem).ask(ORIGIN[0]).policy
    assert policy[1] == pytest.approx(first_mix(problem, ORIGIN)[0, 0], rel=1e-9)


def test_it_follows_the_safe_value_over_contexts() -> None:
    cost = two_arms().constraints[0]
    problem = replace(two_arms(), constraints=[replace(cost, safe_value=lambda x: 0.5 * x[:, 0])])
    found = first_mix(problem, np.array([[0.0], [1.0], [2.0]]))
    assert found[:, 0] == pytest.approx([1 / 10, 0.5 / 9.5, 0.0])
    assert "0 to 0.1 (by context)" in first_mix_words(problem, np.array([[0.0], [1.0], [2.0]]))


def test_it_grows_with_the_limit_and_not_with_the_unit() -> None:
    mixes = [
        float(first_mix(two_arms(at_most=limit), ORIGIN)[0, 0])
        for limit in (0.6, 0.7, 1.0, 5.0, 10.0)
    ]
    assert mixes == sorted(mixes)
    assert 0 < mixes[0] < mixes[1] < mixes[-1] == 1.0
    for unit in (1e-12, 1e12):
        assert first_mix(two_arms(unit=unit, at_most=0.6), ORIGIN)[0, 0] == pytest.approx(
            mixes[0], rel=1e-9
        )


def test_known_costs_have_no_price_and_change_none() -> None:
    known = ged.known_cost(lambda x: [0.0, 1.0], at_most=0.1, name="budget")
    both = replace(two_arms(), constraints=[known, *two_arms().constraints])
    assert first_mix(both, ORIGIN) == pytest.approx(first_mix(two_arms(), ORIGIN))
    for free in (replace(both, constraints=[known]), replace(both, constraints=[])):
        with pytest.raises(ProblemError, match="no constraint of this problem is learned"):
            ged.price(free, ORIGIN)


def test_bad_input_is_named() -> None:
    problem = two_arms()
    with pytest.raises(
        ShapeError,
        match=r"contexts must be \(n, dx\) with at least one row, got "
        r"shape \(3,\)",
    ):
        ged.price(problem, np.zeros(3))
    for options, message in (
        ({"rounds": 49}, "rounds must be a whole number of at least 50, got 49"),
        ({"runs": 0}, "runs must be a whole number of at least 1, got 0"),
        ({"runs": True}, "runs must be a whole number of at least 1, got True"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
    ):
        with pytest.raises(SettingError, match=message):
            ged.price(problem, ORIGIN, **options)
    alone = ged.Problem(1, GAIN, problem.constraints, safe_action=0)
    with pytest.raises(ProblemError, match="no action but the safe one"):
        ged.price(alone, ORIGIN)


# worlds that keep what was declared ---------------------------------------------------------------


def test_truths_keep_ranges_and_safe_values() -> None:
    """Of standard normal draws hardly any has both means in [0, 0.3] and the safe one at most
    0.05.
    """
    problem = two_arms(high=0.3, at_most=0.3, safe_value=0.05)
    drawn = np.array([declared_world(problem, ORIGIN, seed).truth["cost"] for seed in range(8)])
    assert (drawn >= -1e-9).all()
    assert (drawn <= 0.3 + 1e-9).all()
    # held to the safe value, so that it may be called exact
    assert drawn[:, 0] == pytest.approx(np.full(8, 0.05))
    assert np.ptp(drawn[:, 1]) > 0.1


def test_draws_inside_a_range_follow_the_prior_there() -> None:
    """The other mean is standard normal between 0 and 1.5: mean and spread against the truncated
    normal's.
    """
    problem = two_arms(high=1.5, at_most=1.5, safe_value=1.0)
    drawn = np.array(
        [declared_world(problem, ORIGIN, seed).truth["cost"][1] for seed in range(300)]
    )
    mass = norm.cdf(1.5) - 0.5
    mean = (norm.pdf(0) - norm.pdf(1.5)) / mass
    sd = np.sqrt(1 - 1.5 * norm.pdf(1.5) / mass - mean**2)
    assert drawn.mean() == pytest.approx(mean, abs=4 * sd / np.sqrt(300))
    assert drawn.std() == pytest.approx(sd, rel=0.2)


def test_a_declaration_that_nothing_keeps_is_named() -> None:
    with pytest.raises(
        FunctionalError, match="none of the 1 members of the model of 'cost' that keep"
    ):
        ged.price(coins(np.array([[[0.3, 0.3]]])), ORIGIN)  # its safe action costs .3, not .1


# waits and advice ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found() -> Price:
    return ged.price(two_arms(), ORIGIN, rounds=100, runs=2, seed=1)


def test_the_same_seed_gives_the_same_report_and_another_seed_other_truths() -> None:
    once, again = (ged.price(two_arms(), ORIGIN, rounds=50, runs=1, seed=2) for _ in range(2))
    assert once == again
    first, other = (declared_world(two_arms(), ORIGIN, seed).truth["cost"] for seed in (2, 3))
    assert (first != other).any()


def test_the_report_is_short_and_frozen(found) -> None:
    assert len(str(found).splitlines()) <= 12
    assert str(found) == repr(found)
    assert "0.053 of the decisions at most" in str(found)
    assert "<table>" in found._repr_html_()
    with pytest.raises(FrozenInstanceError):
        found.rounds = 1


def test_waits_end_when_half_of_the_last_fifty_decisions_left(found) -> None:
    """By hand: members that fit the limit from the start leave at once; a limit at which nothing
    fits never lets half go.
    """
    free = coins(np.array([[[0.1, 0.3]], [[0.1, 0.35]]]))
    assert ged.price(free, ORIGIN, rounds=60, runs=2).waits == (50, 50)
    # one member: a mix of 1/8 is all there will ever be
    dear = coins(np.array([[[0.1, 0.9]]]), at_most=0.2)
    never = ged.price(dear, ORIGIN, rounds=60, runs=2)
    assert never.waits == (None, None)
    assert never.wait is None
    assert "not within 60 rounds in 2 simulated runs" in str(never)


def test_the_median_counts_runs_that_did_not_end_as_endless() -> None:
    mix = (FirstMix("cost", 0.1, 0.1, 0.1),)
    assert Price(mix, (60, 80, None), 100, ()).wait == 80
    assert Price(mix, (60, None, None), 100, ()).wait is None
    assert "80 rounds (60 to >100) in 3 simulated runs" in str(Price(mix, (60, 80, None), 100, ()))


def test_the_advice_is_the_shortest_wait_and_then_the_largest_mix() -> None:
    small, large = (FirstMix("cost", 0.1, 0.1, 0.1),), (FirstMix("cost", 0.2, 0.2, 0.2),)
    range_, prior = (
        Helped("range", "a range", large, (90, 90)),
        Helped("prior", "a prior", small, (70, 80)),
    )
    assert Price(small, (90, 90), 100, (range_, prior)).best is prior
    assert Price(small, (90, 90), 100, (range_,)).best is range_
    assert Price(large, (90, 90), 100, (range_,)).best is None  # no better than what is declared
    # a longer wait is no help, whatever the mix
    assert Price(small, (80, 80), 100, (range_,)).best is None
    assert "sooner in 2 of 2 runs" in Price(small, (90, 90), 100, (range_, prior)).advice
    assert "agent.observe" in Price(large, (90, 90), 100, (range_,)).advice


def share_left(problem: ged.Problem, world, rounds: int, seed: int) -> float:
    agent, rng = ged.GEDUCB(problem, seed=seed, guard=None), np.random.default_rng(seed)
    left = []
    for _ in range(rounds):
        x = world.context(rng)
        decision = agent.ask(x)
        left.append(decision.action != 0)
        agent.tell(decision.id, *world.outcome(x, decision.action, rng))
    return float(np.mean(left))


def test_what_is_advised_really_shortens_the_wait(found) -> None:
    """In worlds that `price` has not seen, the problem with the advised declaration leaves the
    safe action more often.
    """
    problem = two_arms()
    assert {one.kind for one in found.tried} == {"range", "prior", "safe value"}
    worlds = [declared_world(problem, ORIGIN, 1_000 + seed) for seed in range(6)]
    advised = next(one for one in declarations(problem, worlds) if one.kind == found.best.kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SafeActionWarning)
        before, after = (
            np.array(
                [share_left(make(world), world, 70, seed) for seed, world in enumerate(worlds)]
            )
            for make in (lambda _: problem, advised.problem)
        )
    assert after.mean() > before.mean() + 0.05
    assert (after >= before).sum() >= 5


def test_every_declaration_tried_is_true_and_keeps_the_limit() -> None:
    problem = two_arms()
    worlds = [declared_world(problem, ORIGIN, seed) for seed in range(3)]
    for one in declarations(problem, worlds):
        for world in worlds:
            c = one.problem(world).constraints[0]
            assert c.at_most == problem.constraints[0].at_most
            assert world.costs(ORIGIN[0]).max() <= c.functional.high
            assert not c.safe_value_exact or world.truth["cost"][0] == pytest.approx(0.5)
            assert c.model.inside(world.truth["cost"])


def test_a_range_that_is_not_the_users_is_not_advised() -> None:
    problem = two_arms()
    cost = replace(
        problem.constraints[0], functional=ged.probability(above=2.0), at_most=0.3, safe_value=0.1
    )
    chance = replace(problem, constraints=[cost])
    worlds = [declared_world(chance, ORIGIN, 0)]
    assert {one.kind for one in declarations(chance, worlds)} == {"prior"}


def test_a_range_never_ends_below_the_limit() -> None:
    problem = two_arms(at_most=9.0)  # true costs are far below it
    worlds = [declared_world(problem, ORIGIN, 0)]
    (one,) = [one for one in declarations(problem, worlds) if one.kind == "range"]
    assert one.problem(worlds[0]).constraints[0].functional.high == 9.0


def test_an_exact_safe_value_is_offered_only_where_it_is_true() -> None:
    problem = two_arms()
    world = declared_world(problem, ORIGIN, 0)
    assert safe_value_can_be_exact(problem, problem.constraints[0], world)
    other = replace(problem.constraints[0], safe_value=0.4)
    assert not safe_value_can_be_exact(replace(problem, constraints=[other]), other, world)
    unlearned = replace(problem, learn_safe=False)
    assert not safe_value_can_be_exact(unlearned, problem.constraints[0], world)


def test_bounds_come_halfway_to_the_truth() -> None:
    made = LinearWorld(3, 2, 0.1, seed=0)
    problem, rng = made.problem(), np.random.default_rng(0)
    contexts = np.stack([made.context(rng) for _ in range(3)])
    worlds = [declared_world(problem, contexts, seed) for seed in range(2)]
    one = next(one for one in declarations(problem, worlds) if one.kind == "bounds")
    norms = [np.linalg.norm(world.truth["cost"]) for world in worlds]
    tighter = one.problem(worlds[0]).constraints[0].model.bounds["theta"]
    assert tighter == pytest.approx(0.5 * (1 + max(norms)))
    assert f"|theta| <= {tighter:.3g}" in one.words


def test_a_halfway_prior_is_the_law_of_what_it_draws() -> None:
    """Against the density of (theta + theta0) / 2 by hand, where a standard normal stands in for
    no prior.
    """
    base = two_arms().constraints[0].model
    truth = np.array([0.5, 2.0])
    prior = HalfwayPrior(base, truth)
    place = np.array([0.1, -0.3])
    # without the constant, as `param` sites are
    expected = norm.logpdf(place, truth / 2, 0.5).sum() - norm.logpdf(0) * 2
    assert prior.log_prior(place) == pytest.approx(expected)
    grad, hessian = prior.log_prior_grad_hessian(place)
    assert grad == pytest.approx(-(place - truth / 2) / 0.25)
    assert hessian == pytest.approx(-4 * np.eye(2))
    drawn = prior.draw_prior(4000, 0)
    assert drawn.mean(axis=0) == pytest.approx(truth / 2, abs=4 * 0.5 / np.sqrt(4000))
    assert drawn.std(axis=0) == pytest.approx([0.5, 0.5], rel=0.06)


def test_a_model_shared_with_the_utility_is_replaced_in_both() -> None:
    model = two_arms().constraints[0].model
    shared = ged.Constraint(model, ged.mean(0, 10), at_most=1.0, safe_value=0.5, outcome="utility")
    problem = ged.Problem(2, ged.Utility(model, ged.mean(0, 10)), [shared], safe_action=0)
    other = HalfwayPrior(model, np.zeros(2))
    assert with_model(problem, "utility", other).streams == {"utility": other}


# the warning --------------------------------------------------------------------------------------


def warned(problem: ged.Problem, contexts: np.ndarray) -> str:
    with pytest.warns(SafeActionWarning) as caught:
        ged.GEDUCB(problem, guard=None).ask(contexts)
    return str(caught[0].message)


def test_the_warning_advises_what_can_be_declared_and_no_other_limit() -> None:
    said = warned(two_arms(at_most=0.6), np.zeros((220, 1)))
    assert "a range that ends below 10" in said
    assert "that the safe value is exact" in said
    assert "ged.price(problem, contexts)" in said
    assert "at_most" not in said
    exact = two_arms(at_most=0.6)
    exact = replace(exact, constraints=[replace(exact.constraints[0], safe_value_exact=True)])
    assert "is exact" not in warned(exact, np.zeros((220, 1)))


def test_the_warning_says_so_if_an_action_is_above_the_limit_for_certain() -> None:
    said = warned(coins(np.array([[[0.1, 0.9]]]), at_most=0.15), np.zeros((220, 1)))
    assert "Even its lowest value is above the limit" in said
    assert "at_most" not in said
    assert "higher" not in said
