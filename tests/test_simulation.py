"""Runs: what is recorded, paired contexts, interrupts, saving, continuing, replay of
full-information data.
"""

from __future__ import annotations

import gzip
import json
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest

import gedppl as ged
from gedppl.errors import (
    DataError,
    NotFiniteError,
    ReplayExhaustedError,
    RunFileError,
    RunNotFoundError,
    SettingError,
    ShapeError,
    UnknownTruthError,
)
from gedppl.study.simulation import FixedPolicy, catch_up, simulate
from gedppl.study.simulation.realised import realised_values
from gedppl.study.simulation.replay import Replay
from gedppl.study.simulation.runs import Run
from tests.hostile_runs import signed
from tests.problems import TableWorld
from tests.table_runs import WORLD, K, agents_run


@pytest.fixture(scope="module")
def world():
    return WORLD


@pytest.fixture(scope="module")
def run():
    """60 rounds of the agent, with segments and members."""
    run = agents_run()
    run.add_segments(lambda x: {"ward": "north" if x[0] else "south"})
    return run


def play(world, policy, rounds=30, seed=2, **more):
    return simulate(world.problem(), world, FixedPolicy(policy, seed=1), rounds, seed=seed, **more)


def one(k):
    return lambda x: np.eye(K)[k]


def test_what_is_recorded_is_what_the_definitions_say(world, run):
    for r, u, c, cum in zip(run.rounds, run.utility, run.cost, run.regret):
        truth = world.utilities(r.x)
        assert u == pytest.approx(r.policy @ truth)
        np.testing.assert_allclose(c, world.costs(r.x) @ r.policy)
        assert r.best >= max(truth[world.costs(r.x)[0] <= world.at_most]) - 1e-12
        assert np.isfinite(cum)
    assert run.regret[-1] == pytest.approx(sum(r.best for r in run.rounds) - run.utility.sum())
    assert (run.worst_case <= run.limit + 1e-9).all()
    assert (run.cost_upper >= run.cost_lower).all()
    np.testing.assert_allclose(run.propensity, run.policy[np.arange(60), run.action])
    np.testing.assert_array_equal(run.realised[:, 0], run.outcomes()["cost"])
    assert run.certificates[3]["constraints"][0]["worst_case"] == run.worst_case[3, 0]


def test_the_oracle_has_no_regret_and_the_greedy_policy_is_found_out(world):
    from gedppl.study.simulation import constrained_best

    best = play(
        world, lambda x: constrained_best(world.problem(), world.utilities(x), world.costs(x))[0]
    )
    np.testing.assert_allclose(best.regret, 0, atol=1e-9)
    assert not best.infeasible.any()
    worst = int(np.argmax(world.G[0].max(axis=0)))
    bad = play(world, one(worst))
    over = np.array([world.costs(x)[0, worst] > world.at_most for x in bad.x])
    assert over.any()
    np.testing.assert_array_equal(bad.infeasible, over)


def test_agents_meet_the_same_contexts_whatever_they_play(world):
    class Greedy(TableWorld):
        def outcome(self, x, action, rng):
            rng.random(action)  # as many draws as the action's number
            return super().outcome(x, action, rng)

    other = Greedy(2, K, 12, 1)
    a, b = (simulate(other.problem(), other, FixedPolicy(one(k)), 30, seed=3) for k in (0, 2))
    np.testing.assert_array_equal(a.x, b.x)
    assert not np.array_equal(
        a.x, simulate(other.problem(), other, FixedPolicy(one(0)), 30, seed=4).x
    )


def test_realised_violations_are_counted_from_outcomes_not_from_the_truth(world):
    run = play(world, one(1), rounds=60)
    np.testing.assert_array_equal(run.violated, np.array(run.z) > world.at_most)
    assert 0 < run.summary()["realised_violations"] < 60
    assert run.summary()["realised_cost"] == {"cost": pytest.approx(np.mean(run.z))}


@pytest.mark.parametrize(
    ("functional", "outcome", "expected"),
    [
        (ged.mean(0, 9), 3.0, 3.0),
        (ged.second_moment(9), 3.0, 9.0),
        (ged.probability(above=2.0), 3.0, 1.0),
        (ged.probability(above=3.0), 3.0, 0.0),
        (ged.probability(below=(1.0, 4.0, 2.0)), 3.0, 1.0),
        (ged.probability(above=lambda x, a: x[:, 0] + a), 3.0, 0.0),
        (ged.expected(lambda y, x, a: y * a + x[:, 0], 0, 9), 3.0, 5.0),
        (ged.variance(9), 3.0, np.nan),
        (ged.cvar(0.9, 0, 9), 3.0, np.nan),
        (ged.quantile(0.9, 0, 9), 3.0, np.nan),
        (ged.mean(0, 9), None, np.nan),
        (ged.mean(0, 9), np.nan, np.nan),
    ],
)
def test_what_one_outcome_says_of_a_constraint(world, functional, outcome, expected):
    first = world.problem().constraints[0]
    problem = replace(
        world.problem(), constraints=[ged.Constraint(first.model, functional, 0.5, safe_value=0.0)]
    )
    found = realised_values(problem, np.array([2.0]), 1, 0.0, outcome)
    np.testing.assert_allclose(found, [expected])


def test_known_costs_and_shared_outcomes_are_realised_too(world):
    shared = ged.Constraint(
        world.problem().utility.model,
        ged.mean(0, 1),
        0.5,
        safe_value=0.0,
        name="same",
        outcome="utility",
    )
    known = ged.known_cost(lambda x: [0.0, 0.3, 1.0], at_most=0.4, name="fee")
    problem = replace(world.problem(), constraints=[shared, known])
    np.testing.assert_allclose(realised_values(problem, np.zeros(1), 1, 1.0, None), [1.0, 0.3])


def test_segments_add_up(run):
    table = run.by_segment()["ward"]
    assert sum(s["rounds"] for s in table.values()) == 60
    assert sum(s["regret"] for s in table.values()) == pytest.approx(run.regret[-1])
    assert table["north"]["rounds"] == int(run.x.sum())


def test_segments_must_be_labelled_throughout(run):
    copy = Run(run.problem, 0, run.rounds)
    with pytest.raises(ShapeError, match="the same names for every context"):
        copy.add_segments(lambda x: {"a": 1} if x[0] else {"b": 1})
    with pytest.raises(ShapeError, match="as a dictionary"):
        copy.add_segments(lambda x: "north")
    copy.segments = {"a": ["x"]}
    with pytest.raises(ShapeError, match="1 labels for 60 rounds"):
        copy.by_segment()


# interrupting and continuing ----------------------------------------------------------------------


class Interrupted:
    """A world that sends Ctrl-C to the process while its sixth round is under way, `times`
    times.
    """

    def __init__(self, world, times=1):
        self.world, self.times, self.calls = world, times, 0
        self.problem, self.context, self.utilities, self.costs = (
            world.problem,
            world.context,
            world.utilities,
            world.costs,
        )

    def outcome(self, x, action, rng):
        self.calls += 1
        if self.calls == 6:
            for _ in range(self.times):
                signal.raise_signal(signal.SIGINT)
        return self.world.outcome(x, action, rng)


def test_ctrl_c_ends_after_the_round_at_hand_and_the_run_goes_on_as_if_nothing_had_been(world):
    stopped = Interrupted(world)
    agent = ged.GEDUCB(stopped.problem(), seed=0)
    before = signal.getsignal(signal.SIGINT)
    run = simulate(stopped.problem(), stopped, agent, 15, seed=5)
    assert (len(run), run.interrupted) == (6, True)
    assert signal.getsignal(signal.SIGINT) is before
    simulate(stopped.problem(), stopped, agent, 9, seed=5, run=run)
    straight = simulate(world.problem(), world, ged.GEDUCB(world.problem(), seed=0), 15, seed=5)
    assert not run.interrupted
    np.testing.assert_array_equal(run.x, straight.x)
    np.testing.assert_array_equal(run.policy, straight.policy)
    assert run.y == straight.y


def test_a_second_ctrl_c_stops_at_once_and_leaves_whole_rounds(world):
    stopped = Interrupted(world, times=2)
    run = Run(stopped.problem(), 0)
    with pytest.raises(KeyboardInterrupt):
        simulate(stopped.problem(), stopped, FixedPolicy(one(0)), 15, run=run)
    assert len(run) == len(run.x) == len(run.y) == 5


def test_threads_other_than_the_main_one_leave_signals_alone(world):
    found = []
    thread = threading.Thread(target=lambda: found.append(play(world, one(0), rounds=3)))
    thread.start()
    thread.join()
    assert len(found[0]) == 3


@pytest.mark.parametrize("rounds", [-1, 2.5, True, "3"])
def test_rounds_must_be_a_whole_number(world, rounds):
    with pytest.raises(SettingError, match="rounds must be a whole number"):
        play(world, one(0), rounds=rounds)


def test_the_progress_bar_shows_utility_worst_case_and_safe_share(world, capsys):
    simulate(world.problem(), world, ged.GEDUCB(world.problem()), 5, progress=True)
    shown = capsys.readouterr().err
    assert "5/5" in shown
    assert "utility=" in shown
    assert "safe=" in shown
    assert "≤0.5" in shown


def test_an_environment_of_the_wrong_shape_is_named(world):
    class Wrong(TableWorld):
        def utilities(self, x):
            return np.zeros(K + 1)

    with pytest.raises(
        ShapeError,
        match=r"environment.utilities must return shape \(3,\), got "
        r"\(4,\)",
    ):
        play(Wrong(2, K, 12, 1), one(0))
    with pytest.raises(ShapeError, match="must return one context"):
        simulate(world.problem(), Flat(), FixedPolicy(one(0)), 1)


class Flat:
    def context(self, rng):
        return np.zeros((1, 1))


# without a known truth ----------------------------------------------------------------------------


class Blind:
    """A world whose truth nobody knows."""

    def __init__(self, world):
        self.problem, self.context, self.outcome = world.problem, world.context, world.outcome


def test_unknown_truth_is_said_and_never_called_feasible(world):
    run = play(Blind(world), one(1))
    assert not run.truth_known
    with pytest.raises(UnknownTruthError, match="true costs of 30 of 30 rounds are not known"):
        _ = run.infeasible
    s = run.summary()
    assert s["regret"] is None
    assert s["infeasible_rounds"] is None
    assert s["mean_utility"] is None
    assert s["mean_outcome"] == pytest.approx(np.mean(run.y))


def test_utilities_of_actions_never_played_need_not_be_known(world):
    class Half(TableWorld):
        def utilities(self, x):
            return np.where(np.arange(K) == 2, np.nan, super().utilities(x))

    run = play(Half(2, K, 12, 1), one(1))
    assert np.isfinite(run.utility).all()
    assert not run.truth_known  # the oracle's value is not known
    np.testing.assert_array_equal(
        run.infeasible, [world.costs(x)[0, 1] > world.at_most for x in run.x]
    )


# saving -------------------------------------------------------------------------------------------


def test_a_run_survives_saving(run, tmp_path):
    back = Run.load(run.save(tmp_path / "deep" / "run"))
    for name in (
        "x",
        "action",
        "policy",
        "utilities",
        "costs",
        "limit",
        "worst_case",
        "cost_upper",
        "realised",
        "regret",
    ):
        np.testing.assert_array_equal(getattr(back, name), getattr(run, name))
    assert back.summary() == run.summary()
    assert back.by_segment() == run.by_segment()
    assert back.y == run.y
    assert back.z == [{"cost": z} for z in run.z]
    assert back.certificates == json.loads(json.dumps(run.certificates))
    np.testing.assert_array_equal(back.members["cost"]["member"], run.members["cost"]["member"])
    assert {p.name for p in (tmp_path / "deep" / "run").iterdir()} == {
        "run.npz",
        "run.json",
        "certificates.jsonl.gz",
    }
    again = Run.load(back.save(tmp_path / "again"))
    assert again.summary() == run.summary()


def test_revealed_and_missing_outcomes_survive_saving(run, tmp_path):
    told = [np.array([0.0, np.nan, 1.0]), 1.0, None]
    rounds = [replace(r, y=y, z=None) for r, y in zip(run.rounds, told)]
    back = Run.load(Run(run.problem, 0, rounds).save(tmp_path))
    np.testing.assert_array_equal(back.y[0], told[0])
    assert back.y[1][rounds[1].action] == 1.0
    assert np.isnan(back.y[1]).sum() == K - 1
    assert back.y[2] is None
    assert back.z == [None] * 3


def test_a_saved_run_goes_on_as_if_it_had_never_stopped(world, tmp_path):
    """The environment has a state of its own, so that restoring the random numbers alone would
    not do.
    """

    class Counting(TableWorld):
        def context(self, rng):
            self.met = getattr(self, "met", 0) + 1
            return np.array([float(self.met % 2)])

    straight = simulate(world.problem(), Counting(2, K, 12, 1), FixedPolicy(one(1)), 11, seed=5)
    first = simulate(world.problem(), Counting(2, K, 12, 1), FixedPolicy(one(1)), 7, seed=5)
    back = Run.load(first.save(tmp_path), world.problem())
    fresh = Counting(2, K, 12, 1)
    catch_up(fresh, back)
    simulate(world.problem(), fresh, FixedPolicy(one(1)), 4, run=back)
    np.testing.assert_array_equal(back.x, straight.x)
    assert [float(y) for y in back.y] == straight.y
    with pytest.raises(RunFileError, match="another environment or seed"):
        catch_up(world, back)


def test_files_that_are_no_run_are_named(run, world, tmp_path):
    with pytest.raises(RunNotFoundError, match="there is no run in"):
        Run.load(tmp_path / "nowhere")
    folder = run.save(tmp_path / "run")
    meta = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(meta | {"format": 99}))
    with pytest.raises(RunFileError, match="has format 99"):
        Run.load(folder)
    (folder / "run.json").write_text(json.dumps(meta | {"rounds": 59}))
    with pytest.raises(RunFileError, match="files of two runs are mixed"):
        Run.load(folder)
    run.save(folder)
    (folder / "certificates.jsonl.gz").write_bytes(gzip.compress(b"null"))
    with pytest.raises(RunFileError, match="files of two runs are mixed"):
        Run.load(folder)
    (folder / "certificates.jsonl.gz").write_bytes(b"nonsense")
    with pytest.raises(RunFileError, match="cannot be read"):
        Run.load(folder)
    run.save(folder)
    with pytest.raises(RunFileError, match="made with another problem"):
        Run.load(folder, TableWorld(2, K + 1, 3, 0).problem())
    with pytest.raises(RunFileError, match="no models to compute a guarantee from"):
        Run.load(folder).check_guarantee()


def test_a_pickle_in_the_arrays_is_refused(run, tmp_path):
    """The positive control: the very file does load, and so would run code, once pickles are
    allowed.
    """
    folder = run.save(tmp_path)
    with np.load(folder / "run.npz") as file:
        arrays = dict(file)
    arrays["x"] = np.array([{"a": 1}] * 60, dtype=object)
    np.savez(folder / "run.npz", **arrays)
    signed(folder)
    with np.load(folder / "run.npz", allow_pickle=True) as file:
        assert file["x"][0] == {"a": 1}
    with pytest.raises(RunFileError, match=r"member 'x.npy', holds object, not plain numbers"):
        Run.load(folder)


def test_a_failed_write_leaves_the_older_run(run, tmp_path, monkeypatch):
    folder = run.save(tmp_path / "run")
    before = {p.name: p.read_bytes() for p in folder.iterdir()}

    def fails(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fails)
    with pytest.raises(OSError, match="disk full"):
        Run(run.problem, 9, run.rounds).save(folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


# replay -------------------------------------------------------------------------------------------


def table(n=20, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(2, size=(n, 1)).astype(float), rng.random((n, K)), rng.random((n, K))


def test_replay_goes_through_every_row_once_and_tells_the_action_played():
    x, y, z = table()
    world, rng, met = Replay(x, y, {"cost": z}), np.random.default_rng(3), []
    for i in range(20):
        context = world.context(rng)
        met.append(world.row)
        np.testing.assert_array_equal(context, x[world.row])
        told = world.outcome(context, i % K, rng)
        assert told == (y[world.row, i % K], {"cost": z[world.row, i % K]})
    assert sorted(met) == list(range(20)) != met
    assert world.rows_left == 0
    with pytest.raises(ReplayExhaustedError, match="all 20 rows of the replay were used"):
        world.context(rng)


def test_replay_in_an_agents_hands(world):
    x, y, z = table()
    truth = np.stack([world.utilities(row) for row in x]), np.stack([world.costs(row) for row in x])
    data = Replay(x, np.round(y), np.round(z), utilities=truth[0], costs=truth[1])
    run = simulate(world.problem(), data, ged.GEDUCB(world.problem()), 20)
    np.testing.assert_allclose(run.utilities, [world.utilities(row) for row in run.x])
    assert run.truth_known
    blind = simulate(world.problem(), Replay(x, np.round(y), np.round(z)), FixedPolicy(one(1)), 5)
    assert not blind.truth_known


def test_replay_reveals_what_it_may_and_one_outcome_for_all_is_told_as_it_is():
    x, y, _ = table()
    reveals = np.eye(K, dtype=bool)
    reveals[1] = True
    rng = np.random.default_rng(0)
    world = Replay(x, y, reveals=reveals, shuffle=False)
    context = world.context(rng)
    np.testing.assert_array_equal(world.outcome(context, 1, rng)[0], y[0])
    np.testing.assert_array_equal(world.outcome(context, 2, rng)[0], [np.nan, np.nan, y[0, 2]])
    shared = Replay(x, y[:, 0], shuffle=False)
    assert shared.outcome(shared.context(rng), 2, rng) == (y[0, 0], None)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"x": np.zeros(3)}, ShapeError, r"x must be \(n, dx\)"),
        ({"x": np.full((20, 1), np.nan)}, NotFiniteError, "x must be finite"),
        ({"y": np.zeros((19, K))}, ShapeError, "outcomes of 'utility' must be"),
        ({"y": np.full((20, K), np.nan)}, NotFiniteError, "a replay needs full information"),
        ({"z": np.zeros((20, K + 1))}, ShapeError, r"same number of actions K, got \[3, 4\]"),
        ({"utilities": np.zeros((3, K))}, ShapeError, r"utilities must be \(n, K\)"),
        ({"costs": np.zeros((3, 1, K))}, ShapeError, r"costs must be \(n, K\) or \(n, J, K\)"),
    ],
)
def test_bad_replays_are_named(change, error, match):
    x, y, z = table()
    with pytest.raises(error, match=match):
        Replay(**({"x": x, "y": y, "z": z} | change))


def test_a_replay_knows_its_own_contexts_only():
    x, y, _ = table()
    world = Replay(x, y, utilities=y)
    with pytest.raises(DataError, match="a replay knows its own contexts only"):
        world.utilities(np.array([7.0]))
    with pytest.raises(DataError, match="no row was met yet"):
        _ = world.row
