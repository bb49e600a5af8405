"""The lemmas on recorded runs, the regret bound term by term, and runs beside it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

import gedppl as ged
from gedppl import errors
from gedppl.density import Density
from gedppl.study.simulation import FixedPolicy
from gedppl.theory import eluder
from gedppl.theory.eluder import lemmas
from gedppl.theory.guarantees import check_guarantee, guarantee
from gedppl.theory.guarantees.class_constants import ClassConstants, class_constants
from gedppl.theory.guarantees.lemma_checks import check_lemmas
from tests.eluder_worlds import CoinTables, CoinWorld
from tests.problems import LinearWorld

# the lemmas as functions --------------------------------------------------------------------------


def test_printed_first_lemma_fails_on_one_point() -> None:
    """One point, coins p under total variation, centre 1/2, r = 1, scale 0.1: the set after n
    rounds is |p - 1/2| <= n^-1/2, its amplitude 2 n^-1/2, above 0.1 for n < 400. So 400 rounds;
    corrected bound 401, printed 41.
    """
    n = np.arange(1, 600)
    half = np.minimum(0.5, 1 / np.sqrt(n)) * (1 - 1e-12)
    p = np.unique(np.concatenate([0.5 - half, [0.5], 0.5 + half]))
    # before round 1, 2, ...
    amplitudes = [np.ptp(p[rounds * (p - 0.5) ** 2 <= 1.0]) for rounds in range(600)]
    count = int((np.array(amplitudes) > 0.1).sum())
    dim = eluder.dimension(((p[:, None] - p) ** 2).reshape(-1, 1), 0.1, "exact")
    assert dim == 1
    assert count == 400
    assert count <= lemmas.rounds_above_bound(1.0, 0.1, dim) == 401
    assert count > lemmas.printed_rounds_above_bound(1.0, 0.1, dim) == 41


@given(st.lists(st.integers(0, 4), min_size=1, max_size=200))
def test_potential_lemma(actions: list[int]) -> None:
    brute = sum(1 / (actions[:t].count(a) + 1) for t, a in enumerate(actions))
    assert lemmas.potential(actions) == pytest.approx(brute)
    assert brute <= lemmas.potential_bound(len(actions), 5) + 1e-9


def test_potential_bound_is_nearly_attained() -> None:
    actions = np.tile(np.arange(5), 400)
    assert lemmas.potential(actions) > 0.9 * lemmas.potential_bound(2000, 5)


def test_width_sum_bound_by_hand() -> None:
    assert lemmas.width_sum_bound(2.0, 3, 100, largest=2.0) == pytest.approx(
        0.01 + 6 + 4 * math.sqrt(600)
    )
    assert lemmas.width_sum_bound(2.0, 300, 100) == pytest.approx(
        0.01 + 100 + 4 * math.sqrt(60_000)
    )


def test_expected_widths_from_realised_ones() -> None:
    """Predictable means driven by the past, all horizons at once, delta = 0.1: missed in no more
    runs than chance allows.
    """
    rng, delta, runs, rounds = np.random.default_rng(0), 0.1, 400, 300
    realised, expected, missed = np.zeros(runs), np.zeros(runs), np.zeros(runs, bool)
    for t in range(rounds):
        mean = np.where(realised <= expected, 0.02, 0.3) if t else np.full(runs, 0.02)
        realised += rng.random(runs) < mean
        expected += mean
        missed |= expected > 2 * realised + lemmas.FROM_REALISED * math.log(1 / delta)
    assert lemmas.expected_width_sum(7.0, delta) == pytest.approx(14 + 1.255 * math.log(10))
    assert missed.sum() <= binom.ppf(0.9999, runs, delta)
    assert missed.any()  # the statement is nearly sharp: it is not met by slack alone


def test_the_constant_of_the_passage() -> None:
    rate = 1.59362426004
    assert rate / -math.expm1(-rate) == pytest.approx(2.0, abs=1e-5)
    assert 1 / -math.expm1(-rate) == pytest.approx(lemmas.FROM_REALISED, abs=1e-4)
    assert 1 / -math.expm1(-rate) <= lemmas.FROM_REALISED


def test_amplitude_of_a_set() -> None:
    cls = CoinTables(np.array([[[0.2, 0.5]], [[0.4, 0.5]], [[0.9, 0.5]]]))
    x, a = np.zeros((2, 1)), np.array([0, 1])
    assert lemmas.amplitude(cls, x, a, divergence="tv") == pytest.approx([0.7, 0.0])
    assert lemmas.amplitude(cls, x, a, members=[0, 1], divergence="tv") == pytest.approx([0.2, 0.0])
    assert lemmas.amplitude(cls, x, a, members=[1]) == pytest.approx([0.0, 0.0])
    p, q = (Density("Normal", {"loc": loc, "scale": 0.7}) for loc in (0.0, 1.1))
    assert lemmas.gaussian_amplitude(1.1, 0.7) ** 2 == pytest.approx(
        float(ged.hellinger2(p, q).value)
    )


# the lemmas on runs -------------------------------------------------------------------------------


def lemma_violations(seeds: range, rounds: int) -> list[str]:
    found: list[str] = []
    for seed in seeds:
        run = CoinWorld(seed, at_most=0.3 + 0.4 * (seed % 2)).run(rounds, guard=None)
        for stream in ("utility", "cost"):
            found += check_lemmas(run, stream).violations
            found += check_lemmas(run, stream, sets="likelihood_ratio").violations
    return found


def test_lemmas_hold_on_25_runs() -> None:
    assert lemma_violations(range(25), rounds=25) == []


@pytest.mark.slow
def test_lemmas_hold_on_200_runs() -> None:
    assert lemma_violations(range(200), rounds=60) == []


class OneCoin:
    """A fair coin, one context, one action, nothing limited."""

    def context(self, rng: np.random.Generator) -> np.ndarray:
        return np.zeros(1)

    def outcome(self, x: np.ndarray, action: int, rng: np.random.Generator) -> tuple[float, None]:
        return float(rng.random() < 0.5), None


def test_printed_first_lemma_fails_on_a_run() -> None:
    """One context, one action: 41 coins stay indistinguishable at scale 0.1 for longer than the
    printed bound allows.
    """
    tables = np.linspace(0.3, 0.7, 41)[:, None, None]
    coins = CoinTables(tables)
    problem = ged.Problem(n_actions=1, utility=ged.Utility(coins, ged.mean(0, 1)))
    rounds = 300
    run = ged.simulate(problem, OneCoin(), FixedPolicy(lambda x: [1.0]), rounds, 0)
    checked = check_lemmas(run, eps=(0.1,))
    count = checked.counts[0]
    assert checked.holds
    assert count.dimension == 1
    assert count.rounds > 1.5 * count.printed


def test_lemma_check_reports_violations() -> None:
    checked = check_lemmas(CoinWorld(0).run(10))
    assert checked.holds
    broken = replace(checked, amplitudes=np.full(2000, 1.0), potential=1e9)
    assert not broken.holds
    assert "amplitudes sum to 2000" in str(broken)
    assert "inverse counts" in str(broken)


def test_lemmas_on_a_linear_gaussian_run() -> None:
    world = LinearWorld(3, 2, 0.3, seed=1)
    problem = world.problem()
    run = ged.simulate(problem, world, ged.GEDUCB(problem, seed=1), 25, 1)
    checked = check_lemmas(run)
    assert checked.holds
    assert np.all((checked.amplitudes >= 0) & (checked.amplitudes < 1))
    assert 0 < checked.width_sum < checked.width_sum_bound


def test_check_lemmas_bad_input() -> None:
    run = CoinWorld(0).run(3)
    with pytest.raises(errors.SettingError, match="sets must be one of"):
        check_lemmas(run, sets="cube")
    with pytest.raises(errors.SettingError, match="stream must be one of"):
        check_lemmas(run, "harm")


def test_radius_of_the_likelihood_ratio_set() -> None:
    """Members of the set lie within 1.5 log(M/delta) of the truth in summed H^2, all rounds,
    runs missed at rate <= 2 delta.
    """
    delta, runs, rounds, M = 0.1, 60, 80, 16
    missed = 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        tables = rng.uniform(0.05, 0.95, (M, 3))
        loglik, summed, bad = np.zeros(M), np.zeros(M), False
        affinity = np.sqrt(tables * tables[0]) + np.sqrt((1 - tables) * (1 - tables[0]))
        for _ in range(rounds):
            best = int(np.argmax(loglik))
            # adaptive
            arm = int(np.argmax(tables[best])) if rng.random() < 0.8 else int(rng.integers(3))
            y = rng.random() < tables[0, arm]
            loglik += np.log(tables[:, arm] if y else 1 - tables[:, arm])
            summed += 1 - affinity[:, arm]
            inside = loglik >= np.logaddexp.reduce(loglik) - math.log(M) - math.log(1 / delta)
            bad |= bool(np.any(summed[inside] > 1.5 * math.log(M / delta)))
        missed += bad
    assert missed <= binom.ppf(0.9999, runs, 2 * delta)


# the guarantee ------------------------------------------------------------------------------------


def fixed_constants(**changes: float) -> ClassConstants:
    given = {"lipschitz": 1.5, "radius": 2.0, "dimension": 4.0, "exploration": 4.0} | changes
    return ClassConstants(
        lipschitz=given["lipschitz"],
        radius=lambda t, delta: given["radius"],
        dimension=lambda eps: given["dimension"],
        exploration=lambda t, delta: given["exploration"],
    )


def test_terms_by_hand() -> None:
    """T = 100, K = 4, Q = 4: beta_T = 5; potential 4 + 4 log 25; alpha = 1 / (0.5 - 0.1) = 2.5;
    delta = 0.05 in halves.
    """
    both = {"utility": fixed_constants(), "cost": fixed_constants()}
    promised = guarantee(CoinWorld(0).problem, 100, 0.05, constants=both)
    bonus, slack, width = (term.value for term in promised.terms)
    assert bonus == pytest.approx(2 * 5 * (4 + 4 * math.log(25)))
    assert slack == pytest.approx(2 * 4 * 0.5 * 1.0 * 19)
    realised = 0.01 + 4 + 4 * math.sqrt(800)
    assert width == pytest.approx(2.5 * 1.5 * (2 * realised + 1.255 * math.log(1 / 0.025)))
    assert promised.regret == pytest.approx(bonus + slack + width)
    assert promised.dominant.name == "width of 'cost'"
    assert promised.feasibility_probability == pytest.approx(0.975)
    assert promised.regret_probability == pytest.approx(0.85)


def test_slack_is_the_sum_it_bounds() -> None:
    """A Q that grows is summed round by round; the closed form 2 sqrt(T) - 1 is above the sum of
    1/sqrt(t).
    """
    growing = ClassConstants(1.0, lambda t, d: 1.0, lambda e: 1.0, lambda t, d: 1.0 + math.log(t))
    promised = guarantee(
        CoinWorld(0).problem, 50, constants={"utility": growing, "cost": fixed_constants()}
    )
    t = np.arange(1, 51)
    betas = 0.5 * np.sqrt((1 + np.log(t)) * t / 4)
    assert promised.terms[1].value == pytest.approx(2 * 4 * (betas / t).sum())
    assert (1 / np.sqrt(t)).sum() <= 2 * math.sqrt(50) - 1


def test_finite_class_constants() -> None:
    world = CoinWorld(3)
    cost = world.problem.constraints[0]
    known = class_constants(cost.model, cost.functional, 4, world.contexts, pinned=0)
    assert known.lipschitz == pytest.approx(math.sqrt(2))
    assert known.radius(10, 0.05) == pytest.approx(1.5 * math.log(8 / 0.05))
    x, a = np.repeat(world.contexts, 3, axis=0), np.tile([1, 2, 3], 2)
    for eps in (1e-6, 0.01, 0.3):
        assert (
            eluder.class_dimension(cost.model, x, a, eps, method="exact")
            <= known.dimension(eps)
            <= 6
        )
    without = class_constants(cost.model, cost.functional, 4)
    assert without.dimension(0.1) == 28
    assert "pass contexts=" in without.notes[-1]


def test_lipschitz_constant_where_the_functional_has_none() -> None:
    """Normals with an unbounded outcome: the largest ratio over members, which no pair exceeds."""

    class Normals(CoinTables):
        def density(self, m: int, x: np.ndarray, a: np.ndarray) -> Density:
            return Density("Normal", {"loc": self.probs(x, a)[m], "scale": 0.5})

        def values(
            self,
            functional: ged.functionals.Functional,
            theta: np.ndarray,
            x: np.ndarray,
            a: np.ndarray,
        ) -> np.ndarray:
            return self.probs(x, a)[theta]

    cls = Normals(np.array([[[0.1]], [[0.4]], [[0.9]]]))
    known = class_constants(cls, ged.mean(0, 1), 1, np.zeros((1, 1)))
    assert known.lipschitz == pytest.approx(0.8 / math.sqrt(1 - math.exp(-(0.8**2) / 2)))


@pytest.mark.parametrize(("scale", "expected"), [(0.1, 1.000), (1.0, 2.917), (3.0, 8.515)])
def test_lipschitz_constant_of_a_clipped_gaussian_mean(scale: float, expected: float) -> None:
    world = LinearWorld(2, 2, scale, seed=0)
    x = np.stack([world.context(np.random.default_rng(i)) for i in range(5)])
    known = class_constants(world.problem().utility.model, ged.mean(0, 1), 2, x)
    assert known.lipschitz == pytest.approx(expected, abs=5e-4)
    low, high = np.random.default_rng(0).uniform(-1, 2, (2, 2000))
    apart = np.sqrt(-np.expm1(-((low - high) ** 2) / (8 * scale**2)))
    assert np.all(
        np.abs(np.clip(low, 0, 1) - np.clip(high, 0, 1)) <= known.lipschitz * apart + 1e-12
    )


def test_linear_gaussian_guarantee() -> None:
    world = LinearWorld(3, 2, 0.3, seed=1)
    problem = world.problem()
    with pytest.raises(errors.SettingError, match="pass contexts="):
        guarantee(problem, 100)
    x = np.stack([world.context(np.random.default_rng(i)) for i in range(20)])
    promised = guarantee(problem, 1000, 0.05, x)
    assert promised.vacuous
    assert "VACUOUS" in str(promised)
    assert not promised.proved
    later = guarantee(problem, promised.informative_from, 0.05, x)
    assert not later.vacuous
    assert guarantee(problem, promised.informative_from // 2, 0.05, x).vacuous
    # sublinear: a hundred times the horizon costs far less than a hundred times the regret
    assert (
        guarantee(problem, 10**8, 0.05, x).regret < 20 * guarantee(problem, 10**6, 0.05, x).regret
    )


def test_radius_of_the_linear_gaussian_set_covers() -> None:
    """Regularised least squares stays within the radius used by the bound, adaptive design, all
    rounds, delta = 0.1.
    """
    delta, d, norm, runs, missed = 0.1, 2, 1.0, 60, 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        theta = rng.normal(size=d)
        theta /= np.linalg.norm(theta)
        V, b = np.eye(d) * d / norm**2, np.zeros(d)
        log_det, bad = np.linalg.slogdet(V)[1], False
        for _ in range(100):
            options = rng.normal(size=(4, d))
            phi = options[np.argmax(options @ np.linalg.solve(V, b))]
            V, b = V + np.outer(phi, phi), b + phi * (phi @ theta + rng.normal())
            gap = theta - np.linalg.solve(V, b)
            bad |= gap @ V @ gap > 2 * math.log(1 / delta) + np.linalg.slogdet(V)[1] - log_det + d
        missed += bool(bad)
    assert missed <= binom.ppf(0.9999, runs, delta)


def test_logistic_guarantee() -> None:
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    def logistic(x, a, y=None):  # type: ignore[no-untyped-def]
        w = numpyro.param("w", jnp.zeros(2))
        numpyro.sample("y", dist.Bernoulli(logits=x @ w * a), obs=y)

    x = np.array([[0.6, 0.8], [1.0, 0.0]])
    cls = ged.density_class(logistic, bounds={"w": 1.5}, example=(x, np.array([0, 1])))
    known = class_constants(cls, ged.mean(0, 1), 2, x)
    assert known.lipschitz == pytest.approx(math.sqrt(2))
    assert known.radius(100, 0.05) == pytest.approx(
        2 * math.log1p(2 * 1.5 * 100) + math.log(20) + 1
    )
    flat = math.exp(-1.5) / (1 + math.exp(-1.5)) ** 2
    assert (
        known.dimension(0.01)
        == eluder.bounds.exponential_family(2, 1.5, (flat, 0.25), 0.01).dimension
    )
    loose = ged.density_class(logistic, example=(x, np.array([0, 1])))
    with pytest.raises(errors.SettingError, match="bound on all its parameters"):
        class_constants(loose, ged.mean(0, 1), 2, x)


def test_without_a_learned_constraint() -> None:
    world = CoinWorld(0)
    free = ged.Problem(n_actions=4, utility=world.problem.utility)
    promised = guarantee(free, 100)
    assert [term.name for term in promised.terms] == ["exploration bonus", "estimation slack"]
    assert promised.feasibility_probability == 1.0


def test_a_limit_at_the_safe_value_promises_nothing() -> None:
    told = CoinWorld(0).problem
    limit = replace(told.constraints[0], at_most=0.1, safe_value=lambda x: np.full(len(x), 0.1))
    problem = replace(told, constraints=[limit])
    found = guarantee(problem, 100, contexts=CoinWorld(0).contexts)
    assert found.regret == math.inf
    assert "VACUOUS" in str(found)
    assert found.informative_from is None


def test_a_run_beside_its_guarantee() -> None:
    run = CoinWorld(2).run(25, mode="theory", growth=1.0)
    checked = check_guarantee(run)
    assert checked.holds
    assert checked.guarantee.rounds == checked.rounds == 25
    assert checked.regret == pytest.approx(run.regret[-1])
    assert "limits: kept" in str(checked)
    run.rounds[3] = replace(run.rounds[3], costs=np.full((1, 4), 0.75))
    broken = check_guarantee(run)
    assert not broken.feasible
    assert broken.infeasible_rounds == 1
    assert "BROKEN in 1 rounds, by up to 0.25" in str(broken)
    run.rounds[4] = replace(run.rounds[4], best=1e5)
    assert not check_guarantee(run).regret_within
    run.rounds[4] = replace(run.rounds[4], best=math.nan)
    with pytest.raises(errors.UnknownTruthError, match="cannot be compared"):
        check_guarantee(run)


def test_guarantee_bad_input() -> None:
    problem = CoinWorld(0).problem
    with pytest.raises(errors.SettingError, match="rounds must be a positive whole number"):
        guarantee(problem, 0)
    with pytest.raises(errors.SettingError, match="delta must lie"):
        guarantee(problem, 10, 1.5)
    with pytest.raises(errors.ShapeError, match=r"contexts must be \(n, dx\)"):
        guarantee(problem, 10, 0.05, np.zeros(3))
    with pytest.raises(errors.SettingError, match="constants= names"):
        guarantee(problem, 10, constants={"harm": fixed_constants()})
    with pytest.raises(errors.SettingError, match="no rounds"):
        check_guarantee(ged.Run(problem, 0))
