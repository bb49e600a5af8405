"""The regret theorem for exploration by sets: its terms, its conditions, and runs beside it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

import gedppl as ged
from gedppl import errors
from gedppl.theory.eluder import lemmas
from gedppl.theory.guarantees import check_guarantee, guarantee
from gedppl.theory.guarantees.class_constants import class_constants
from tests.eluder_worlds import CoinWorld
from tests.test_guarantee import fixed_constants

pytestmark = pytest.mark.filterwarnings("ignore::gedppl.agent.SafeActionWarning")


def test_terms_of_the_theorem_for_sets_by_hand() -> None:
    """T = 100, J = 1, alpha = 2.5, delta = 0.05 in halves, the step's half shared by the two
    classes.
    """
    both = {"utility": fixed_constants(lipschitz=2.0, radius=3.0), "cost": fixed_constants()}
    promised = guarantee(CoinWorld(0).problem, 100, 0.05, constants=both, exploration="sets")
    step = 1.255 * math.log(2 / 0.025)
    assert [term.name for term in promised.terms] == ["width of the utility", "width of 'cost'"]
    assert promised.terms[0].value == pytest.approx(
        2.0 * (2 * (0.01 + 4 + 4 * math.sqrt(4 * 3 * 100)) + step)
    )
    assert promised.terms[1].value == pytest.approx(
        2.5 * 1.5 * (2 * (0.01 + 4 + 4 * math.sqrt(4 * 2 * 100)) + step)
    )
    assert promised.feasibility_probability == pytest.approx(0.975)
    # coverage, deviation; the step
    assert promised.regret_probability == pytest.approx(1 - 2 * 0.05 - 0.025)
    assert 'exploration="sets"' in str(promised)
    assert "contexts may be any" in str(promised)


def test_the_theorem_for_sets_uses_the_finite_class_radius_and_the_exact_dimension() -> None:
    world, T = CoinWorld(3), 50
    promised = guarantee(world.problem, T, 0.05, world.contexts, exploration="sets")
    utility = class_constants(world.problem.utility.model, ged.mean(0, 1), 4, world.contexts)
    dim, radius = utility.dimension(1 / T**2), 1.5 * math.log(8 / 0.025)
    total = 2 * lemmas.width_sum_bound(radius, dim, T) + 1.255 * math.log(2 / 0.025)
    assert promised.terms[0].value == pytest.approx(math.sqrt(2) * total)
    assert promised.proved


def test_a_dimension_of_zero_at_a_coarse_scale_promises_no_regret_of_zero() -> None:
    """One round has scale 1, which no Hellinger distance exceeds: the members may differ all the
    same, by up to 1/T^2.
    """
    coarse = replace(fixed_constants(), dimension=lambda eps: 0.0 if eps >= 0.5 else 4.0)
    promised = guarantee(
        CoinWorld(0).problem, 1, constants={"utility": coarse, "cost": coarse}, exploration="sets"
    )
    assert promised.regret == pytest.approx(1.5 + 2.5 * 1.5)
    assert promised.informative_from is not None
    assert promised.informative_from > 1000


def test_an_inexact_safe_value_pays_for_the_safe_action_s_width() -> None:
    """Its set speaks of it, so its points count in the dimension; where the value is exact they
    do not.
    """
    world = CoinWorld(0, n_contexts=1, n_actions=2)
    world.G[:, :, 0] = np.linspace(0.02, 0.1, 8)[:, None]
    world.G[:, :, 1] = np.linspace(0.1, 0.9, 8)[:, None]
    dims = []
    for exact in (False, True):
        constraint = replace(world.problem.constraints[0], safe_value_exact=exact)
        problem = replace(world.problem, constraints=[constraint])
        promised = guarantee(problem, 50, contexts=world.contexts, exploration="sets")
        dims.append(promised.terms[1].numbers.split("dim = ")[1].split(",")[0])
    assert dims == ["2", "1"]


def by_sets(seed: int, rounds: int, growth: float = 1.0) -> ged.Run:
    return CoinWorld(seed).run(rounds, mode="theory", exploration="sets", growth=growth, guard=None)


def test_runs_by_sets_beside_their_guarantee() -> None:
    for seed in range(6):
        checked = by_sets(seed, 40).check_guarantee(exploration="sets")
        assert checked.holds
        # at the contexts that came: nothing is added
        assert checked.regret_bound == checked.guarantee.regret


@pytest.mark.slow
def test_many_runs_by_sets_are_within_their_bound_and_it_says_something_in_time() -> None:
    checked = [by_sets(seed, 200).check_guarantee(exploration="sets") for seed in range(20)]
    assert sum(not c.holds for c in checked) <= binom.ppf(
        0.9999, 20, 1 - checked[0].guarantee.regret_probability
    )
    world, first = CoinWorld(0), checked[0].guarantee.informative_from
    assert first is not None
    assert not guarantee(world.problem, first, 0.05, world.contexts, exploration="sets").vacuous


@pytest.mark.parametrize(("beyond", "within"), [(0.01, False), (-0.01, True)])
def test_the_check_by_sets_sees_a_run_above_its_bound(beyond: float, within: bool) -> None:
    run = by_sets(0, 5)
    bound = check_guarantee(run, exploration="sets").regret_bound
    run.rounds[4] = replace(
        run.rounds[4], best=run.rounds[4].best + bound - run.regret[-1] + beyond
    )
    assert check_guarantee(run, exploration="sets").regret_within == within


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"learn_safe": False}, "learn_safe=False leaves the safe action's out"),
        ({"outcome_age": 3}, "outcome_age=3 holds them back"),
        (
            {"reveals": np.array([[1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 1]], bool)},
            r"playing \[2\] does not reveal",
        ),
    ],
)
def test_the_theorem_for_sets_is_refused_where_outcomes_are_not_learned_in_time(
    change: dict[str, object], why: str
) -> None:
    problem = replace(CoinWorld(0).problem, **change)
    with pytest.raises(errors.SettingError, match=why):
        guarantee(problem, 10, exploration="sets")
    assert guarantee(problem, 10).rounds == 10  # the other theorem has its own conditions


def test_an_unknown_exploration_has_no_theorem() -> None:
    with pytest.raises(errors.SettingError, match="exploration must be one of"):
        guarantee(CoinWorld(0).problem, 10, exploration="bonus")
