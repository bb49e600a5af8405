"""Planning: worlds made of the problem's models, stopping rules, tables, sweeps, interrupts,
pictures.
"""

from __future__ import annotations

import csv
import math
import signal
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import gedppl as ged
from gedppl import errors
from gedppl.density import Density
from gedppl.study.planning import ModelWorld, Plan, Scenario, StoppingRules, Trial, plan
from gedppl.study.planning.plots import plot_plan, plot_regret_over_rounds
from gedppl.study.planning.rules import best_possible
from gedppl.study.planning.worlds import make_world
from gedppl.study.simulation import FixedPolicy, constrained_best
from tests.eluder_worlds import CoinTables, CoinWorld
from tests.problems import LinearWorld

mpl.use("Agg")

WORLD = CoinWorld(0)
TRUTH = {"utility": 0, "cost": 0}


@pytest.fixture(scope="module")
def sweep() -> Plan:
    scenarios = {"first": TRUTH, "prior": "prior"}
    return plan(
        WORLD.problem,
        WORLD.contexts,
        12,
        scenarios=scenarios,
        vary={"at_most": [0.2, 0.6]},
        replicates=3,
        goal=0.5,
    )


# worlds -------------------------------------------------------------------------------------------


def test_world_is_the_model_at_the_guess() -> None:
    world = make_world(WORLD.problem, Scenario(TRUTH), WORLD.contexts, seed=0)
    for x in WORLD.contexts:
        np.testing.assert_allclose(world.utilities(x), WORLD.F[0, int(x[0])])
        np.testing.assert_allclose(world.costs(x), WORLD.G[0, int(x[0])][None])
    rng = np.random.default_rng(0)
    drawn = np.array(
        [(y, z["cost"]) for y, z in (world.outcome(WORLD.contexts[1], 2, rng) for _ in range(2000))]
    )
    expected = np.array([WORLD.F[0, 1, 2], WORLD.G[0, 1, 2]])
    assert np.all(
        np.abs(drawn.mean(axis=0) - expected) < 4 * np.sqrt(expected * (1 - expected) / 2000)
    )


def test_prior_draws_differ_and_repeat_with_their_seed() -> None:
    def values(seed: int) -> tuple[float, ...]:
        return tuple(
            make_world(WORLD.problem, Scenario(), WORLD.contexts, seed).utilities(WORLD.contexts[0])
        )

    assert values(3) == values(3)
    assert len({values(seed) for seed in range(12)}) > 3


def test_a_truth_from_the_prior_is_as_safe_as_declared_where_one_can_be() -> None:
    """Half of the draws put the safe action above .1, and are drawn again; with a safe value that
    no draw agrees with, the first draw stands.
    """

    def harm(x, a, y=None):
        base = numpyro.sample("base", dist.Uniform(0, 0.2))
        numpyro.sample("z", dist.Bernoulli(base + 0.1 * a + 0 * x[:, 0]), obs=y)

    cls, x = ged.density_class(harm), np.zeros((1, 1))

    def bases(safe_value: float) -> np.ndarray:
        limit = ged.Constraint(cls, ged.mean(0, 1), 0.5, safe_value=safe_value, name="harm")
        problem = ged.Problem(2, ged.Utility(cls, ged.mean(0, 1)), [limit], safe_action=0)
        worlds = [make_world(problem, Scenario(), x, seed) for seed in range(12)]
        return np.array([float(cls.unflatten(w.truth["harm"])["base"]) for w in worlds])

    agreeing, none = bases(0.1), bases(1e-9)
    assert agreeing.max() <= 0.1
    assert none.max() > 0.1  # nothing else keeps truths low


def test_safe_action_costs_what_was_declared() -> None:
    """A guess whose model disagrees with the declared safe value does not change it."""
    tables = WORLD.G.copy()
    tables[:, :, 0] = 0.4
    cost = replace(WORLD.problem.constraints[0], model=CoinTables(tables))
    world = make_world(
        replace(WORLD.problem, constraints=[cost]), Scenario(TRUTH), WORLD.contexts, 0
    )
    assert world.costs(WORLD.contexts[0])[0, 0] == 0.1


def test_noise_spreads_outcomes_about_their_mean() -> None:
    class Normals(CoinTables):
        def density(self, m: int, x: np.ndarray, a: np.ndarray) -> Density:
            return Density("Normal", {"loc": self.probs(x, a)[m], "scale": 0.2})

    problem = ged.Problem(n_actions=4, utility=ged.Utility(Normals(WORLD.F), ged.mean(0, 1)))
    rng = np.random.default_rng(0)
    world = ModelWorld(problem, {"utility": 0}, WORLD.contexts, noise=3.0)
    y = np.array([world.outcome(WORLD.contexts[0], 1, rng)[0] for _ in range(2000)])
    assert y.mean() == pytest.approx(WORLD.F[0, 0, 1], abs=4 * 0.6 / math.sqrt(2000))
    assert y.std() == pytest.approx(0.6, rel=0.07)
    with pytest.raises(errors.SettingError, match="noise other than 1 is for continuous"):
        ModelWorld(WORLD.problem, TRUTH, WORLD.contexts, noise=2.0)


def test_revealed_outcomes_come_together() -> None:
    problem = replace(WORLD.problem, reveals=np.ones((4, 4), bool))
    world = ModelWorld(problem, TRUTH, WORLD.contexts)
    y, z = world.outcome(WORLD.contexts[0], 1, np.random.default_rng(0))
    assert y.shape == z["cost"].shape == (4,)
    assert np.isfinite(y).all()


def test_a_guess_outside_the_functional_range_is_an_error() -> None:
    narrow = replace(WORLD.problem, utility=ged.Utility(CoinTables(WORLD.F), ged.mean(0, 0.06)))
    with pytest.raises(errors.FunctionalError, match="outside its declared range"):
        make_world(narrow, Scenario(TRUTH), WORLD.contexts, 0)
    with pytest.raises(
        errors.FunctionalError,
        match=r"200 draws from the prior of \['utility'\] "
        r"all left",
    ):
        make_world(narrow, Scenario({"cost": 0}), WORLD.contexts, 0)


# rules --------------------------------------------------------------------------------------------


def test_success_ends_a_trial() -> None:
    rules = StoppingRules(target=0.05, window=4, first_look=5, every=2)
    result = plan(
        WORLD.problem, WORLD.contexts, 20, scenarios={"first": TRUTH}, replicates=2, rules=rules
    )
    assert {t.stopped for t in result.trials} == {"target"}
    assert {t.rounds for t in result.trials} == {5}
    assert result.rows[0]["stopped: target"] == 1.0


def test_looks_are_taken_when_due() -> None:
    """A target out of reach is looked at 5, 8, 11, ... rounds in, and never stops the trial by
    itself.
    """
    seen: list[int] = []

    class Noted(StoppingRules):
        def verdict(self, run: ged.Run, agent: object, contexts: np.ndarray) -> str:
            seen.append(len(run))
            return super().verdict(run, agent, contexts)

    rules = Noted(target=2.0, window=4, first_look=5, every=3)
    result = plan(
        WORLD.problem, WORLD.contexts, 13, scenarios={"first": TRUTH}, replicates=1, rules=rules
    )
    assert seen == [5, 8, 11]
    assert result.trials[0].rounds == 13
    assert result.trials[0].stopped == ""


def test_futility_by_safe_share() -> None:
    tight = WORLD.problem.with_limit("cost", 0.11)
    rules = StoppingRules(safe_share=0.8, window=8, first_look=8, every=2)
    result = plan(tight, WORLD.contexts, 30, scenarios={"first": TRUTH}, replicates=2, rules=rules)
    assert {t.stopped for t in result.trials} == {"safe share"}
    assert result.rows[0]["stopped: futile"] == 1.0
    assert result.rows[0]["rounds"] < 30


def test_futility_when_the_target_is_beyond_reach() -> None:
    """No utility can exceed the largest plausible one: a target above the class is given up, one
    below the truth is not.
    """
    agent = ged.GEDUCB(WORLD.problem, seed=0)
    world = make_world(WORLD.problem, Scenario(TRUTH), WORLD.contexts, 0)
    run = ged.simulate(WORLD.problem, world, agent, 10, 0)
    possible = best_possible(agent, WORLD.contexts)
    oracle = np.mean(
        [constrained_best(WORLD.problem, WORLD.F[0, i], WORLD.G[0, i][None])[1] for i in range(2)]
    )
    assert oracle <= possible <= WORLD.F.max()
    assert (
        StoppingRules(target=possible + 0.01, beyond_reach=True).verdict(run, agent, WORLD.contexts)
        == "beyond reach"
    )
    assert StoppingRules(target=1.0).verdict(run, agent, WORLD.contexts) == ""


def test_rules_in_words() -> None:
    text = StoppingRules(target=0.7, safe_share=0.9, beyond_reach=True).describe()
    assert "after 50 rounds and every 10 rounds" in text
    assert "at least 0.7" in text
    assert "90% of the last 50 rounds" in text
    assert StoppingRules().describe() == "No early stopping."


# tables -------------------------------------------------------------------------------------------


def test_rows_are_the_means_of_their_trials(sweep: Plan) -> None:
    assert len(sweep.trials) == 12
    assert [(r["scenario"], r["at_most"]) for r in sweep.rows] == [
        ("first", 0.2),
        ("prior", 0.2),
        ("first", 0.6),
        ("prior", 0.6),
    ]
    row = sweep.rows[2]
    trials = sweep.cell(1, "first")
    regrets = [float((t.best - t.utility).sum()) for t in trials]
    assert row["regret"] == pytest.approx(np.mean(regrets))
    assert row["regret se"] == pytest.approx(np.std(regrets, ddof=1) / math.sqrt(3))
    assert row["safe share"] == pytest.approx(np.mean([t.safe.mean() for t in trials]))
    assert row["trials"] == 3
    assert row["infeasible trials"] == 0.0


def test_settings_are_compared_on_the_same_worlds(sweep: Plan) -> None:
    """The oracle of a looser limit is at least as good on the very same contexts and truths."""
    for name in sweep.scenarios:
        for tight, loose in zip(sweep.cell(0, name), sweep.cell(1, name)):
            assert tight.replicate == loose.replicate
            assert np.all(loose.best >= tight.best - 1e-12)


def test_a_tighter_limit_means_more_safe_rounds(sweep: Plan) -> None:
    shares = {(r["scenario"], r["at_most"]): r["safe share"] for r in sweep.rows}
    assert shares["first", 0.2] > shares["first", 0.6]
    assert shares["prior", 0.2] > shares["prior", 0.6]


def test_rounds_until_by_hand() -> None:
    utility = np.array([0.0, 1.0, 1.0, 0.0, 1.0])
    trial = Trial(0, "s", 0, utility, np.ones(5), np.zeros(5, bool), 0, "")
    assert trial.rounds_until(1.0, window=2) == 3
    assert trial.rounds_until(0.5, window=2) == 2
    assert trial.rounds_until(0.6, window=50) == 5
    assert trial.rounds_until(0.7, window=50) == math.inf
    assert trial.regret.tolist() == [1, 1, 1, 2, 2]


def test_tables_for_a_protocol(sweep: Plan, tmp_path: Path) -> None:
    text = sweep.to_csv(tmp_path / "plan.csv")
    assert (tmp_path / "plan.csv").read_text() == text
    read = list(csv.DictReader(text.splitlines()))
    assert [float(r["regret"]) for r in read] == pytest.approx([r["regret"] for r in sweep.rows])
    markdown = sweep.to_markdown(tmp_path / "plan.md").splitlines()
    assert len(markdown) == 2 + 4
    assert len({line.count("|") for line in markdown}) == 1
    protocol = sweep.protocol()
    assert (
        "Trials of 12 rounds, 3 simulated for each scenario and each combination of at_most; delta "
        "= 0.05." in protocol
    )
    assert "No early stopping." in protocol
    assert "averaged over 50 rounds, is at least 0.5" in protocol
    assert str(sweep).count("\n") == 4


# sweeps -------------------------------------------------------------------------------------------


def test_delta_and_actions_vary() -> None:
    result = plan(
        WORLD.problem,
        WORLD.contexts,
        5,
        scenarios={"first": TRUTH},
        vary={"delta": [0.01, 0.2], "n_actions": [2, 4]},
        replicates=1,
    )
    assert [(r["delta"], r["n_actions"]) for r in result.rows] == [
        (0.01, 2),
        (0.01, 4),
        (0.2, 2),
        (0.2, 4),
    ]
    oracle = {r["n_actions"]: r["oracle utility"] for r in result.rows}
    assert oracle[4] >= oracle[2]


def test_a_function_of_the_problem_varies_anything() -> None:
    built: list[float] = []

    def make(noise: float = 0.1, members: int = 8) -> ged.Problem:
        built.append(noise)
        return CoinWorld(0, members=members).problem

    result = plan(
        make,
        WORLD.contexts,
        3,
        scenarios={"first": TRUTH},
        vary={"noise": [0.1, 0.2], "members": [4]},
        replicates=1,
    )
    assert {0.1, 0.2} <= set(built)
    assert [r["members"] for r in result.rows] == [4, 4]


def test_agent_options_and_agents_of_ones_own() -> None:
    made: list[tuple[float, int]] = []

    def always_safe(problem: ged.Problem, delta: float, seed: int) -> FixedPolicy:
        made.append((delta, seed))
        return FixedPolicy(lambda x: np.eye(4)[0], seed)

    result = plan(
        WORLD.problem,
        WORLD.contexts,
        4,
        scenarios={"first": TRUTH},
        replicates=2,
        agent=always_safe,
        delta=0.2,
    )
    assert result.rows[0]["safe share"] == 1.0
    assert [delta for delta, _ in made] == [0.2, 0.2]
    assert len({seed for _, seed in made}) == 2
    assert result.rows[0]["alarmed trials"] == 0.0
    result = plan(
        WORLD.problem, WORLD.contexts, 3, replicates=1, agent={"mode": "theory", "warmup": "safe-3"}
    )
    assert result.rows[0]["safe share"] == 1.0


def test_alarms_are_counted_and_not_shouted() -> None:
    class Alarmed(FixedPolicy):
        alarms = ("the cost is above its limit",)

        def ask(self, x: np.ndarray) -> object:
            warnings.warn("the cost is above its limit", ged.AlarmWarning, stacklevel=1)
            return super().ask(x)

    result = plan(
        WORLD.problem,
        WORLD.contexts,
        2,
        replicates=1,
        agent=lambda *_: Alarmed(lambda x: np.eye(4)[0]),
    )
    assert result.rows[0]["alarmed trials"] == 1.0


def test_any_map_will_do() -> None:
    options = {"scenarios": {"first": TRUTH, "prior": "prior"}, "replicates": 2}
    serial = plan(WORLD.problem, WORLD.contexts, 5, **options)
    with ThreadPoolExecutor(1) as pool:
        mapped = plan(WORLD.problem, WORLD.contexts, 5, map=pool.map, **options)
    assert serial.rows == mapped.rows


def test_an_interrupt_returns_what_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    started: list[int] = []

    def impatient(problem: ged.Problem, delta: float, seed: int) -> ged.GEDUCB:
        started.append(seed)
        if len(started) == 4:
            signal.raise_signal(signal.SIGINT)
        return ged.GEDUCB(problem, delta=delta, seed=seed)

    scenarios = {"a": TRUTH, "b": TRUTH}
    result = plan(
        WORLD.problem,
        WORLD.contexts,
        3,
        scenarios=scenarios,
        replicates=5,
        agent=impatient,
        progress=True,
    )
    assert result.interrupted
    assert len(result.trials) == 3
    assert {t.scenario for t in result.trials} == {"a", "b"}
    assert "INTERRUPTED: 3 of 10 trials" in str(result)
    assert "trial" in capsys.readouterr().err


def test_an_interrupt_within_a_trial_leaves_it_out() -> None:
    class Impatient(ged.GEDUCB):
        def ask(self, x: np.ndarray, allowed: object = None) -> object:
            if self.rounds == 2 and self.settings.seed in seeds:
                signal.raise_signal(signal.SIGINT)
            return super().ask(x, allowed)

    seeds: list[int] = []

    def make(problem: ged.Problem, delta: float, seed: int) -> ged.GEDUCB:
        if made:
            seeds.append(seed)
        made.append(seed)
        return Impatient(problem, delta=delta, seed=seed)

    made: list[int] = []
    result = plan(
        WORLD.problem, WORLD.contexts, 6, scenarios={"a": TRUTH}, replicates=4, agent=make
    )
    assert result.interrupted
    assert len(result.trials) == 1
    assert result.trials[0].rounds == 6


def test_a_linear_gaussian_program_is_planned() -> None:
    """Truth by site, and from the prior of the declared ball; the world's values are the
    program's.
    """
    linear = LinearWorld(2, 2, 0.3, seed=1)
    contexts = np.stack([linear.context(np.random.default_rng(i)) for i in range(4)])
    problem = linear.problem()
    world = make_world(
        problem,
        Scenario({"utility": {"theta": linear.theta}, "cost": {"theta": linear.mu}}),
        contexts,
        0,
    )
    for x in contexts:
        np.testing.assert_allclose(world.utilities(x), linear.utilities(x))
        np.testing.assert_allclose(world.costs(x), linear.costs(x))
    wide = replace(problem, utility=ged.Utility(problem.utility.model, ged.mean(-2, 2)))
    cost = replace(problem.constraints[0], functional=ged.mean(-2, 2))
    drawn = make_world(replace(wide, constraints=[cost]), Scenario(), contexts, 5)
    assert np.abs(drawn.utilities(contexts[0])).max() <= 1.0
    result = plan(
        problem,
        contexts,
        4,
        scenarios={"guess": {"utility": {"theta": linear.theta}, "cost": {"theta": linear.mu}}},
        replicates=1,
        vary={"noise": [1.0, 2.0]},
    )
    assert len(result.rows) == 2


# pictures and input -------------------------------------------------------------------------------


def test_rooms_load_nothing_heavy() -> None:
    code = (
        "import sys, gedppl.theory.guarantees.lemma_checks, gedppl.study.planning.plots, "
        "gedppl.theory.eluder.plots; "
    )
    check = (
        "print(*[m for m in ('jax', 'torch', 'numpyro', 'pyro', 'arviz', 'matplotlib') if m "
        "in sys.modules])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code + check], capture_output=True, text=True, check=True
    ).stdout
    assert loaded.split() == []


def test_pictures(sweep: Plan) -> None:
    for what in ("regret", "rounds until goal", "safe share"):
        ax = plot_plan(sweep, what)
        assert ax.get_xlabel() == "at_most"
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["first", "prior"]
    ax = plot_regret_over_rounds(sweep)
    line = ax.get_lines()[0]
    assert line.get_ydata()[-1] == pytest.approx(sweep.rows[0]["regret"])
    mpl.pyplot.close("all")
    with pytest.raises(errors.SettingError, match="what must be one of"):
        plot_plan(sweep, "colour")
    with pytest.raises(errors.SettingError, match="by must be one of"):
        plot_plan(sweep, by="delta")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds must be a positive whole number"),
        ({"replicates": 0}, "replicates must be a positive whole number"),
        ({"vary": {"noise": []}}, "must be a list of values"),
        ({"vary": {"colour": [1]}}, "cannot be varied for a fixed problem"),
        ({"vary": {"n_actions": [9]}}, "n_actions must keep the safe action"),
        ({"scenarios": {"x": 3}}, "scenario 'x' must be"),
    ],
)
def test_bad_settings(options: dict, message: str) -> None:
    with pytest.raises(errors.SettingError, match=message):
        plan(WORLD.problem, WORLD.contexts, **({"rounds": 3, "replicates": 1} | options))


def test_more_bad_input() -> None:
    with pytest.raises(errors.ShapeError, match=r"contexts must be \(n, dx\)"):
        plan(WORLD.problem, np.zeros(3), 3)
    with pytest.raises(errors.ProblemError, match=r"describes \['harm'\]"):
        plan(WORLD.problem, WORLD.contexts, 3, scenarios={"x": {"harm": 0}})
    with pytest.raises(errors.ProblemError, match="at_most"):
        plan(WORLD.problem, WORLD.contexts, 3, vary={"at_most": [7.0]})
    with pytest.raises(errors.SettingError, match="give target= too"):
        StoppingRules(beyond_reach=True)
    with pytest.raises(errors.SettingError, match="safe_share must lie in"):
        StoppingRules(safe_share=1.5)
    with pytest.raises(errors.SettingError, match="every must be at least 1"):
        StoppingRules(every=0)
    known = ged.known_cost(lambda x: [0.0] * 4, at_most=1.0, name="k")
    two = replace(WORLD.problem, constraints=[*WORLD.problem.constraints, known])
    with pytest.raises(errors.SettingError, match='vary "at_most:name"'):
        plan(two, WORLD.contexts, 3, vary={"at_most": [0.5]})
    named = plan(two, WORLD.contexts, 2, vary={"at_most:cost": [0.5]}, replicates=1)
    assert named.rows[0]["at_most:cost"] == 0.5
