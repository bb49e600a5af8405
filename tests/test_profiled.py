"""One unknown number beside the predictor: the bounds behind `gedppl.learning.profiled`, one by one
and together.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
import pytest
from scipy.special import gammaln
from scipy.stats import nbinom, poisson

import gedppl as ged
from gedppl.families.one_predictor import FAMILIES
from gedppl.learning import learner_for, profiled
from gedppl.learning.nuisances import NUISANCES
from gedppl.learning.profiled import Rewritten

BENT = [name for name, known in NUISANCES.items() if not known.joint]
JOINT = [name for name, known in NUISANCES.items() if known.joint]
ETA = np.linspace(-8.0, 8.0, 33)
OUTCOMES = {
    "NegativeBinomial": np.array([0.0, 1.0, 4.0, 60.0]),
    "Gamma": np.array([0.01, 0.7, 3.0, 50.0]),
    "Weibull": np.array([0.01, 0.7, 3.0, 50.0]),
    "Logistic": np.array([-9.0, -0.3, 0.0, 4.0]),
}
NAMES = {
    "NegativeBinomial": "total_count",
    "Gamma": "concentration",
    "Weibull": "concentration",
    "Logistic": "scale",
}


def log_density(name: str, psi: np.ndarray, eta: np.ndarray, y: np.ndarray) -> np.ndarray:
    known = NUISANCES[name]
    argument = 1 / psi if known.inverse else psi
    predictor = known.slope * np.log(psi) + (eta if name != "Gamma" else -eta)
    return FAMILIES[name, known.link].terms(predictor, y, {NAMES[name]: argument})[0]


@pytest.mark.parametrize("name", BENT)
@pytest.mark.parametrize("psi", [0.05, 0.7, 5.0, 80.0])
def test_no_row_bends_more_than_its_bound(name: str, psi: float) -> None:
    """By second differences at the cell's lower end and beyond, at predictors near and far."""
    for y in OUTCOMES[name]:
        most = NUISANCES[name].curvature(psi, np.array([y]))[0]
        for at in psi * np.array([1.002, 1.3, 3.0]):
            step = 1e-3 * at
            around = [log_density(name, at + k * step, ETA, y) for k in (-1, 0, 1)]
            bend = -(around[0] - 2 * around[1] + around[2]) / step**2
            assert np.all(bend <= most * (1 + 1e-4) + 1e-6 / at**2)


@pytest.mark.parametrize("name", JOINT)
def test_location_and_scale_are_concave_together(name: str) -> None:
    """Along random lines in (psi eta, psi), by second differences."""
    rng = np.random.default_rng(0)
    psi, way = rng.uniform(0.2, 5.0, 400), rng.normal(size=400)
    e, step = rng.normal(0, 3, 400), 1e-3 * rng.normal(size=400)
    for y in OUTCOMES[name]:
        around = [
            log_density(name, psi + k * step, (e + k * step * way) / (psi + k * step), y)
            for k in (-1, 0, 1)
        ]
        size = np.maximum.reduce([np.abs(part) for part in around])
        assert np.all(around[0] - 2 * around[1] + around[2] <= 1e-12 * size + 1e-12)


@pytest.mark.parametrize("name", list(NUISANCES))
def test_a_stack_of_rows_is_what_the_table_of_families_says(name: str) -> None:
    known, y = NUISANCES[name], OUTCOMES[name]
    psi, eta = np.array([[0.4], [6.0]]), np.random.default_rng(1).normal(size=(2, len(y)))
    argument = known.argument(psi)
    ours = known.rows(eta, y, argument)
    table = FAMILIES[name, known.link].terms(eta, y, {NAMES[name]: argument})
    constant = np.array([known.constant(float(one), y) for one in psi[:, 0]])
    assert np.allclose(ours[0] + constant, table[0], rtol=1e-12, atol=1e-12)
    assert np.allclose(ours[1:], table[1:], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", list(NUISANCES))
def test_a_chance_bends_along_a_line_no_more_than_its_bound(name: str) -> None:
    """Second differences of the distribution function along lines in (eta, psi)."""
    known, rng = NUISANCES[name], np.random.default_rng(2)
    link = FAMILIES[name, known.link]
    y = np.linspace(-6, 6, 40) if name == "Logistic" else np.linspace(0.01, 12, 40)
    for _ in range(60):
        psi, eta = float(np.exp(rng.uniform(-1, 3))), rng.normal()
        wide, far = 0.02 * psi, 0.0 if known.joint else rng.normal(0, 0.05)
        flip = -1.0 if name == "Gamma" else 1.0  # whose predictor is the log rate

        def cdf(t: float, psi=psi, eta=eta, wide=wide, far=far, flip=flip) -> np.ndarray:
            at = psi + t * wide
            predictor = known.slope * np.log(at) + flip * (eta + t * far)
            given = {NAMES[name]: np.asarray(known.argument(at))}
            density = ged.Density(name, link.arguments(np.asarray(predictor), given))
            return np.asarray(density.cdf(y))

        mean = np.exp(np.array(max(eta, eta + far)))
        bent = wide**2 * known.most_curved(psi, mean) + far**2 * known.along(psi + wide, mean)
        bent = bent + 2 * abs(far) * wide * known.cross(np.array(psi), mean)
        found = np.abs(cdf(0.0) - 2 * cdf(0.5) + cdf(1.0)) * 4
        assert found.max() <= bent * (1 + 1e-6) + 1e-12


@pytest.mark.parametrize("name", list(NUISANCES))
def test_a_row_at_its_best_gains_with_the_nuisance(name: str) -> None:
    y = OUTCOMES[name][1:]
    best = [NUISANCES[name].saturated(psi, y) for psi in np.geomspace(1e-3, 1e3, 50)]
    assert np.all(np.diff(best) > 0)
    wide = np.linspace(-30, 30, 6001)
    for psi in (0.3, 4.0):
        found = sum(log_density(name, psi, wide, one).max() for one in y)
        assert found <= NUISANCES[name].saturated(psi, y) + 1e-9
        assert found >= NUISANCES[name].saturated(psi, y) - 1e-2


def test_beyond_a_dispersion_no_row_gains_more_than_its_bound() -> None:
    for y in OUTCOMES["NegativeBinomial"]:
        for psi in (0.5, 6.0, 200.0):
            more = NUISANCES["NegativeBinomial"].beyond(psi, np.array([y]))
            for later in psi * np.array([1.1, 2.0, 30.0, 1e5]):
                gain = log_density("NegativeBinomial", later, ETA, y) - log_density(
                    "NegativeBinomial", psi, ETA, y
                )
                assert np.all(gain <= more + 1e-6)  # sums of large numbers round


@pytest.mark.parametrize("mean", [0.2, 3.0, 40.0])
def test_a_chance_bends_no_more_than_its_bound_and_is_near_a_poisson(mean: float) -> None:
    k = np.arange(200)

    def cdf(psi: float) -> np.ndarray:
        return nbinom.cdf(k, psi, psi / (psi + mean))

    for psi in (0.3, 2.0, 15.0):
        step = 1e-3 * psi
        bend = np.abs(cdf(psi - step) - 2 * cdf(psi) + cdf(psi + step)) / step**2
        assert bend.max() <= NUISANCES["NegativeBinomial"].most_curved(psi, mean) * (1 + 1e-3)
        assert np.abs(cdf(psi) - poisson.cdf(k, mean)).max() <= mean / psi


def demand(x, a, y=None):
    base = numpyro.sample("base", nd.Normal(1.0, 0.5).expand([2]).to_event(1))
    r = numpyro.sample("r", nd.Gamma(2.0, 0.5))
    numpyro.sample("y", nd.NegativeBinomial2(jnp.exp(base[a]), r), obs=y)


def durations(x, a, y=None):
    base = numpyro.sample("base", nd.Normal(0.0, 1.0).expand([2]).to_event(1))
    k = numpyro.sample("k", nd.LogNormal(0.7, 0.5))
    numpyro.sample("y", nd.Gamma(k, k / jnp.exp(base[a])), obs=y)


def lifetimes(x, a, y=None):
    base = numpyro.sample("base", nd.Normal(0.0, 1.0).expand([2]).to_event(1))
    k = numpyro.sample("k", nd.LogNormal(0.4, 0.3))
    numpyro.sample("y", nd.Weibull(jnp.exp(base[a]), k), obs=y)


def measurements(x, a, y=None):
    base = numpyro.sample("base", nd.Normal(0.0, 3.0).expand([2]).to_event(1))
    scale = numpyro.sample("k", nd.LogNormal(0.7, 0.5))
    numpyro.sample("y", nd.Logistic(base[a], scale), obs=y)


@cache
def taught(model, seed: int, n: int = 40):
    rng = np.random.default_rng(seed)
    x, a = np.zeros((n, 1)), rng.integers(0, 2, n)
    cls = ged.density_class(model, example=(x[:1], a[:1]))
    y = cls.density(
        {"base": np.array([0.8, 0.2]), ("r" if model is demand else "k"): 2.5}, x, a
    ).sample(seed, 1)[0]
    learner = learner_for(cls, delta=0.1)
    for part in np.array_split(np.arange(n), 4):
        learner = learner.absorb(x[part], a[part], y[part]).refit()
    return replace(learner, sets=learner.sets[:1])


FUNCTIONALS = (
    ged.mean(0, 1e9),
    ged.probability(above=3.0),
    ged.probability(above=0.5, below=3.5),
    ged.quantile(0.8, 0, 1e9),
    ged.cvar(0.8, 0, 1e9),
    ged.variance(1e9),
    ged.second_moment(1e9),
)


GRIDS: list[tuple] = []  # learners and their grids, which all functionals share


def grid_of(learner) -> list:
    """On a fine grid of (base, nuisance) in the set, the other action's base at its best: the
    nuisance, its data, and the ends of the first action's predictor.
    """
    (chosen,), form = learner.sets, learner.cls.profiled
    profile = profiled.profile_of(chosen, Rewritten(form, NUISANCES[form.family]))
    features = profile.rewritten.parts(np.zeros((1, 1)), np.zeros(1, int))[0][0]
    moved = int(np.argmax(features != 0))
    found = []
    ends, far = {"NegativeBinomial": ((0.3, 3e4), 2.5), "Logistic": ((0.1, 2.0), 6.0)}.get(
        form.family, ((0.3, 12.0), 2.5)
    )
    for psi in np.geomspace(*ends, 400):
        data = profile.data(psi)
        top = profile.at(psi).centre
        grid = np.repeat(top[None], 1201, axis=0)
        grid[:, moved] += np.linspace(-far, far, 1201)
        inside = grid[data.value(grid) >= chosen.threshold]
        if len(inside):
            ends = data.table.x[0, data.dim] + inside[[0, -1]] @ features
            found.append((profile.known.argument(psi), data, np.sort(ends)))
    return found


def by_brute_force(learner, functional) -> tuple[float, float]:
    """Extremes of the first action over that grid."""
    if not any(known is learner for known, _ in GRIDS):
        GRIDS.append((learner, grid_of(learner)))
    values = []
    for argument, data, ends in next(grid for known, grid in GRIDS if known is learner):
        turns = functional.below is not None or functional.name == "second_moment"
        eta = np.linspace(*ends, 40) if turns else ends
        density = data.density(eta, {name: np.full(len(eta), argument) for name in data.names})
        values += list(functional(density, x=np.zeros((len(eta), 1)), a=np.zeros(len(eta), int)))
    return min(values), max(values)


# the others take seconds
QUICK = {demand: (0, 1, 3, 4), lifetimes: (1,), measurements: (2,)}
CASES = [
    pytest.param(
        model,
        functional,
        id=f"{model.__name__}-{functional.name}-{i}",
        marks=[] if i in QUICK.get(model, ()) else pytest.mark.slow,
    )
    for model in (demand, durations, lifetimes, measurements)
    for i, functional in enumerate(FUNCTIONALS)
]


@pytest.mark.parametrize(("model", "functional"), CASES)
def test_profiled_bounds_enclose_the_profile_likelihoods_closely(model, functional) -> None:
    learner = taught(model, 3)
    found = learner.bounds(functional, np.zeros((1, 1)), 2)
    assert (found.method, found.guaranteed) == ("profiled", True)
    low, high = by_brute_force(learner, functional)
    ours = found.free_lower[0, 0], found.free_upper[0, 0]
    assert ours[0] <= low + 1e-9
    assert ours[1] >= high - 1e-9
    # the grid's own coarseness, and of moments that are bounded end by end
    room = 1.001 if functional.name == "quantile" else 0.01 * (high - low)
    assert ours[0] >= low - room
    assert ours[1] <= high + room


@pytest.mark.slow
@pytest.mark.parametrize("model", [demand, durations, lifetimes, measurements])
@pytest.mark.parametrize("n", [8, 25])
def test_profiled_bounds_enclose_small_sets(model, n) -> None:
    """Few rows: wide and skew sets, from which no member may be missing."""
    for seed in (11, 12):
        learner = taught(model, seed, n)
        for functional in FUNCTIONALS:
            found = learner.bounds(functional, np.zeros((1, 1)), 2)
            low, high = by_brute_force(learner, functional)
            slip = 1e-9 * (1 + abs(low) + abs(high))
            assert found.method == "profiled"
            assert found.free_lower[0, 0] <= low + slip
            assert found.free_upper[0, 0] >= high - slip


@pytest.mark.parametrize("model", [demand, pytest.param(durations, marks=pytest.mark.slow)])
def test_without_what_rows_bend_a_wide_cell_misses_members(model) -> None:
    """The control of the bound between points: one cell over the whole range, as if rows did not
    bend between its ends, excludes members that it must not.
    """
    learner = taught(model, 3)
    (chosen,), form = learner.sets, learner.cls.profiled
    profile = profiled.profile_of(chosen, Rewritten(form, NUISANCES[form.family]))
    inside = chosen.region.centre  # a member, at the fit's own nuisance
    v, psi = form.from_theta(inside[None])
    low, high = float(psi[0]) / 6, float(psi[0]) * 6
    point = np.append(v[0], np.log(psi))[None]
    here = float(profile.data(float(psi[0])).value(point)[0])
    ends = max(float(profile.data(end).value(point)[0]) for end in (low, high))
    assert here > ends  # so that the ends alone do not bound it
    assert here <= ends + profile.kappa(np.array([low]), np.array([high]))[0] / 4


def test_beyond_the_end_of_a_joint_family_nothing_is_a_member() -> None:
    """And the control: bounds that keep such cells are far too wide."""
    learner = taught(measurements, 3)
    (chosen,), form = learner.sets, learner.cls.profiled
    kept = profiled.profile_of(chosen, Rewritten(form, NUISANCES[form.family]))
    found = learner.bounds(ged.variance(1e9), np.zeros((1, 1)), 2).free_upper[0, 0]
    first, last = min(low for low, _ in kept.cells), max(high for _, high in kept.cells)
    for psi in (first / 3, first / 1.01, first, last, 1.01 * last, 3 * last):
        assert kept.at(psi).top < chosen.threshold
    assert not kept.seen_dead(kept.psi, last)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profiled.Profile, "seen_dead", lambda self, low, high: False)
        loose = learner.bounds(ged.variance(1e9), np.zeros((1, 1)), 2).free_upper[0, 0]
    assert loose > 1.2 * found


def test_an_unknown_shape_of_a_weibull_is_guaranteed() -> None:
    learner = taught(lifetimes, 3)
    found = learner.bounds(ged.probability(above=2.0), np.zeros((1, 1)), 2)
    assert (found.method, found.guaranteed) == ("profiled", True)
    assert "guaranteed" in learner.cls.exactness
    assert "not guaranteed" not in learner.cls.exactness


def test_rows_that_leave_the_shape_without_an_end_bound_nothing() -> None:
    """One row of each action is fitted perfectly, the better the larger the shape."""
    cls = taught(lifetimes, 3).cls
    learner = learner_for(cls, delta=0.1)
    learner = learner.absorb(np.zeros((2, 1)), np.arange(2), np.array([0.7, 1.1])).refit()
    found = learner.bounds(ged.probability(above=2.0), np.zeros((1, 1)), 2)
    assert (found.method, found.guaranteed) == ("profiled", True)
    assert np.all(found.lower == 0.0)
    assert np.all(found.upper == 1.0)


def test_a_box_cuts_a_profiled_set() -> None:
    """A coefficient that is declared positive narrows bounds, and no value inside is left out: by a
    grid of the likelihood in closed form.
    """

    def signed(x, a, y=None):
        base = numpyro.sample("base", nd.Normal(0.0, 1.0))
        more = numpyro.sample("more", nd.HalfNormal(1.0))
        k = numpyro.sample("k", nd.LogNormal(0.7, 0.5))
        numpyro.sample("y", nd.Gamma(k, k / jnp.exp(base + more * a)), obs=y)

    rng = np.random.default_rng(3)
    x, a = np.zeros((40, 1)), rng.integers(0, 2, 40)
    y = rng.gamma(2.5, 1.0 / 2.5, 40)  # no effect: zero is the edge of the box
    cls = ged.density_class(signed, example=(x[:1], a[:1]))
    learner = learner_for(cls, delta=0.1).absorb(x, a, y).refit()
    learner = replace(learner, sets=learner.sets[:1])
    threshold = learner.sets[0].threshold
    found = learner.bounds(ged.mean(0, 1e9), x[:1], 2)
    assert (found.method, found.guaranteed) == ("profiled", True)

    def total(base: np.ndarray, more: np.ndarray, k: float) -> np.ndarray:
        own = len(y) * (k * np.log(k) - gammaln(k)) + (k - 1) * np.log(y).sum()
        eta = (base, base + more)
        return own - k * sum(
            np.sum(a == i) * eta[i] + y[a == i].sum() * np.exp(-eta[i]) for i in (0, 1)
        )

    at = {"base": 0.1, "more": 0.3, "k": 2.0}
    same = cls.total(cls.flatten({n: np.array(v) for n, v in at.items()})[None], learner.rows)
    assert np.isclose(float(np.squeeze(same)), total(0.1, 0.3, 2.0), rtol=1e-6)
    base, more = np.meshgrid(np.linspace(-1.2, 1.2, 481), np.linspace(-2.0, 2.0, 801))
    ends = {True: (np.inf, -np.inf), False: (np.inf, -np.inf)}  # inside the box, everywhere
    for k in np.geomspace(0.6, 8.0, 80):
        member = total(base, more, k) >= threshold
        for boxed, known in ends.items():
            eta = (base + more)[member & ((more >= 0) | (not boxed))]
            ends[boxed] = eta.min(initial=known[0]), eta.max(initial=known[1])
    low, high = np.exp(ends[True])
    ours = found.free_lower[0, 1], found.free_upper[0, 1]
    assert ours[0] <= low + 1e-9
    assert ours[1] >= high - 1e-9
    assert ours[0] >= low - 0.02 * (high - low)  # the grid's coarseness
    assert ours[1] <= high + 0.02 * (high - low)
    # the box does cut here, by more than that coarseness
    assert low > np.exp(ends[False][0]) + 0.04 * (high - low)


def test_a_dispersion_by_action_is_refused_with_the_reason() -> None:
    def model(x, a, y=None):
        base = numpyro.sample("base", nd.Normal(1.0, 0.5).expand([2]).to_event(1))
        r = numpyro.sample("r", nd.Gamma(2.0, 0.5).expand([2]).to_event(1))
        numpyro.sample("y", nd.NegativeBinomial2(jnp.exp(base[a]), r[a]), obs=y)

    cls = ged.density_class(model, example=(np.zeros((1, 1)), np.zeros(1, int)))
    assert cls.profiled is None
    assert "differs by action" in cls.exactness


def test_a_certificate_says_profiled() -> None:
    learner = taught(demand, 3)
    problem = ged.Problem(
        n_actions=2,
        utility=ged.Utility(learner.cls, ged.mean(0, 50)),
        constraints=[
            ged.Constraint(
                learner.cls,
                ged.probability(above=9.0),
                at_most=0.5,
                safe_value=0.1,
                name="short",
                outcome="utility",
            )
        ],
        safe_action=0,
        safe_utility=1.0,
    )
    agent = ged.GEDUCB(problem, seed=0)
    agent.observe(learner.rows.x, learner.rows.a, learner.rows.y)
    decision = agent.ask(np.zeros(1))
    (limit,) = decision.certificate.constraints
    assert limit.method == "profiled"
    assert decision.certificate.guaranteed
