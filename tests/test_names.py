"""Names in place of numbers: actions, columns and levels, wherever a caller gives one."""

from __future__ import annotations

import doctest
from collections import namedtuple
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import gedppl as ged
from gedppl import errors
from gedppl.agent import recorder
from gedppl.numerics.arrays import whole
from gedppl.problem import names
from gedppl.problem.names import Names
from gedppl.study.cli.tables import journal_table, journal_text
from gedppl.study.offpolicy import Log, ips

ARMS = ("placebo", "A", "B")
LEVELS = {"sex": ("f", "m"), "age": float}


def response(x, a, y=None):
    w = numpyro.param("w", jnp.zeros((4, 2)))
    numpyro.sample("y", dist.Normal((w[a] * x).sum(-1), 0.3), obs=y)


UTILITY, HARM = (ged.density_class(response, bounds={"w": 2.0}) for _ in range(2))


def problem(**changes) -> ged.Problem:
    harm = ged.Constraint(HARM, ged.mean(-3, 3), at_most=0.5, safe_value=0.1, name="harm")
    options = {"actions": ARMS, "columns": ("age", "dose"), "safe_action": "placebo"} | changes
    return ged.Problem(utility=ged.Utility(UTILITY, ged.mean(-3, 3)), constraints=[harm], **options)


def numbered() -> ged.Problem:
    return problem(actions=None, columns=None, n_actions=3, safe_action=0)


NAMED = problem()
ROWS = np.array([[0.2, 0.5], [0.9, -0.4], [0.1, 0.3]])


def played(agent: ged.GEDUCB, rounds: int = 4) -> ged.GEDUCB:
    for i in range(rounds):
        decision = agent.ask(ROWS[i % 3])
        agent.tell(decision, 0.1 * i, 0.2)
    return agent


# declaring ----------------------------------------------------------------------------------------


def test_names_say_how_many_actions_there_are() -> None:
    assert (NAMED.n_actions, NAMED.actions, NAMED.safe_action, NAMED.columns) == (
        3,
        ARMS,
        0,
        ("age", "dose"),
    )
    assert {problem(safe_action=safe).safe_action for safe in ("B", 2, np.int8(2), 2.0)} == {2}
    assert replace(NAMED, outcome_age=2).names == NAMED.names
    assert NAMED.with_limit("harm", 0.4).names == NAMED.names
    assert problem(columns=LEVELS).columns == LEVELS


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"safe_action": "Plcebo"},
            r"safe_action='Plcebo'.*the actions are 'placebo', 'A', 'B'; "
            r"did you mean 'placebo'\?",
        ),
        ({"safe_action": 3}, "one of 0, ..., 2 .*got 3"),
        ({"safe_action": True}, "got True"),
        ({"actions": ("A", "A", "B")}, "distinct texts"),
        ({"actions": "ABC"}, "distinct texts"),
        ({"actions": (1, 2, 3)}, "distinct texts"),
        ({"actions": ("A", " ", "B")}, "distinct texts"),
        ({"n_actions": 4}, "n_actions=4 and 3 names"),
        ({"actions": None}, "needs its actions"),
        ({"columns": "age"}, "distinct texts"),
        ({"columns": ("age", "age")}, "distinct texts"),
        ({"columns": {"sex": ("f", "f")}}, "distinct levels"),
        ({"columns": {"sex": "fm"}}, "distinct levels"),
        ({"columns": {"sex": str}}, "distinct levels"),
    ],
)
def test_a_wrong_name_in_a_declaration_is_refused(changes, said) -> None:
    with pytest.raises(errors.ProblemError, match=said):
        problem(**changes)


def test_a_problem_without_utility_says_so() -> None:
    with pytest.raises(errors.ProblemError, match="needs utility="):
        ged.Problem(n_actions=2)


def test_old_journals_resume_since_a_problem_without_names_has_the_fingerprint_it_had() -> None:
    plain = numbered()
    assert (
        plain.fingerprint() != NAMED.fingerprint() != problem(columns=("dose", "age")).fingerprint()
    )
    assert recorder.named_things(plain) == {}
    renamed = problem(actions=("placebo", "B", "A"))
    assert renamed.fingerprint() != NAMED.fingerprint()
    assert (
        problem(columns=LEVELS).fingerprint()
        != problem(columns={"sex": ("m", "f"), "age": float}).fingerprint()
    )
    parts = "K=3\nsafe=0\nlearn_safe=True\nreveals=None\nsafe_utility=None\nutility="
    assert parts in fingerprinted(plain)


def fingerprinted(declared: ged.Problem) -> str:
    """The text behind a fingerprint."""
    import hashlib

    seen: list[bytes] = []
    real = hashlib.sha256
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashlib, "sha256", lambda data: (seen.append(data), real(data))[1])
        declared.fingerprint()
    return seen[0].decode()


# actions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        1,
        1.0,
        np.int8(1),
        np.float32(1),
        np.array(1),
        np.array(1.0),
        jnp.array(1),
        "A",
        np.str_("A"),
    ],
)
def test_an_action_is_taken_however_it_is_written(value) -> None:
    assert NAMED.names.action(value) == 1


@pytest.mark.parametrize(
    "value",
    [1.5, True, np.bool_(True), np.nan, "1", "a ", b"A", None, [1], np.array([1]), 3, -1, 1j],
)
def test_what_is_no_action_is_none(value) -> None:
    with pytest.raises(errors.ActionRangeError):
        NAMED.names.action(value)
    assert whole(value) in (None, 3, -1)


def test_a_decision_says_the_name_and_is_told_itself() -> None:
    agent = ged.GEDUCB(NAMED, seed=3)
    decision = agent.ask({"dose": 0.5, "age": 0.2})
    assert decision.action_name == ARMS[decision.action]
    agent.tell(decision, 0.1, 0.2)
    agent.amend(decision, y=0.3)
    assert agent.open_decisions == []
    assert ged.GEDUCB(numbered(), seed=3).ask([0.2, 0.5]).action_name == str(decision.action)
    assert agent.explain(decision).why_not("B") == agent.explain(decision.id).why_not(2)
    assert "action B" in agent.explain(decision).why_not("B")
    assert "placebo" in str(agent.explain(decision))
    with pytest.raises(errors.ActionRangeError, match="no action 'C'"):
        agent.explain(decision).why_not("C")


def test_names_change_no_decision() -> None:
    by_name, by_number = played(ged.GEDUCB(NAMED, seed=3)), played(ged.GEDUCB(numbered(), seed=3))
    np.testing.assert_array_equal(by_name.policy(ROWS), by_number.policy(ROWS))


def test_actions_are_allowed_by_name() -> None:
    agent = ged.GEDUCB(NAMED)
    by_mask = agent.policy(
        ROWS, allowed=[[True, True, False], [True, False, True], [True, False, False]]
    )
    by_list = agent.policy(ROWS, allowed=[["placebo", "A"], ("B", "placebo"), {"placebo"}])
    np.testing.assert_array_equal(by_mask, by_list)
    np.testing.assert_array_equal(agent.policy(ROWS, allowed=["placebo"])[:, 0], 1.0)
    np.testing.assert_array_equal(
        agent.policy(ROWS, allowed=np.array(["placebo"])), agent.policy(ROWS, allowed=["placebo"])
    )
    with pytest.raises(errors.ActionRangeError, match="did you mean 'placebo'"):
        agent.ask(ROWS[0], allowed=["placeb"])
    with pytest.raises(errors.ShapeError, match="or a list of action names"):
        agent.ask(ROWS[0], allowed=[])
    with pytest.raises(errors.ShapeError, match="boolean"):
        ged.GEDUCB(numbered()).ask(ROWS[0], allowed=["placebo"])


def test_actions_come_and_go_by_name() -> None:
    agent = played(ged.GEDUCB(NAMED))
    agent.retire_action("B")
    assert agent.policy(ROWS[0])[2] == 0
    agent.restore_action("B")
    with pytest.raises(errors.ActionRangeError, match="action placebo is the safe action"):
        agent.retire_action("placebo")
    with pytest.raises(errors.ProblemError, match="either all actions have names or none"):
        agent.add_action()
    assert agent.add_action("C") == 3
    assert agent.problem.actions == (*ARMS, "C")
    with pytest.raises(errors.ProblemError, match="distinct"):
        agent.add_action("A")
    with pytest.raises(errors.ProblemError, match="no names here"):
        played(ged.GEDUCB(numbered())).add_action("C")


# contexts -----------------------------------------------------------------------------------------

Patient = namedtuple("Patient", ["dose", "age"])


@dataclass
class Visit:
    dose: float
    age: float


ONE = [  # each is the context (0.2, 0.5)
    {"dose": 0.5, "age": 0.2},
    Patient(0.5, 0.2),
    Visit(0.5, 0.2),
    {"age": np.float32(0.2), "dose": np.array(0.5)},
    np.array([(0.5, 0.2)], dtype=[("dose", float), ("age", float)])[0],
]
MANY = [  # each is ROWS
    {"dose": ROWS[:, 1], "age": list(ROWS[:, 0])},
    [{"dose": d, "age": a} for a, d in ROWS],
    [Patient(d, a) for a, d in ROWS],
    np.array([(d, a) for a, d in ROWS], dtype=[("dose", float), ("age", float)]),
    tuple(Visit(d, a) for a, d in ROWS),
]


@pytest.mark.parametrize("x", ONE, ids=lambda x: type(x).__name__)
def test_one_record_is_read_by_name(x) -> None:
    array, single = NAMED.names.contexts(x)
    np.testing.assert_allclose(array, ROWS[:1], rtol=1e-6)
    assert single


@pytest.mark.parametrize("x", MANY, ids=lambda x: type(x).__name__)
def test_a_table_is_read_by_name(x) -> None:
    array, single = NAMED.names.contexts(x)
    np.testing.assert_array_equal(array, ROWS)
    assert not single
    assert len(ged.GEDUCB(NAMED).ask(x)) == 3


def test_data_frames_are_read_by_name_in_any_order() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS, columns=["age", "dose"])
    agent = ged.GEDUCB(NAMED)
    for turned in (frame, frame[["dose", "age"]]):
        np.testing.assert_array_equal(agent.policy(turned), agent.policy(ROWS))
        np.testing.assert_array_equal(agent.policy(turned.iloc[1]), agent.policy(ROWS[1]))
        np.testing.assert_array_equal(agent.cost_bounds(turned), agent.cost_bounds(ROWS))
    renamed = frame.rename(columns={"dose": "doze"})
    for wrong, said in ((renamed, "lacks 'dose' and has 'doze'"), (frame[["age"]], "lacks 'dose'")):
        with pytest.raises(errors.ColumnError, match=said):
            agent.ask(wrong)
    with pytest.raises(errors.ColumnError, match="has 'weight', not declared"):
        agent.ask(frame.assign(weight=1.0))
    with pytest.raises(errors.ColumnError, match="the problem declares none"):
        ged.GEDUCB(numbered()).ask(frame)
    plain = pandas.DataFrame(ROWS)  # its columns have numbers: an array in all but name
    np.testing.assert_array_equal(agent.policy(plain), agent.policy(ROWS))


def test_arrow_tables_are_read_by_name() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"age": ROWS[:, 0], "sex": ["m", "f", "f"]})
    array, _ = problem(columns=LEVELS).names.contexts(table)
    np.testing.assert_array_equal(array, np.c_[[1.0, 0.0, 0.0], ROWS[:, 0]])


@pytest.mark.parametrize(
    ("x", "error", "said"),
    [
        ({"age": 1.0}, errors.ColumnError, "lacks 'dose'"),
        ({"age": 1.0, "Dose": 2.0}, errors.ColumnError, "did you mean 'Dose'"),
        ({"age": 1.0, "dose": 2.0, "id": 3}, errors.ColumnError, "'id', not declared"),
        ({"age": [1.0], "dose": [2.0, 3.0]}, errors.ShapeError, "one length"),
        ({"age": 1.0, "dose": [2.0, 3.0]}, errors.ShapeError, "one value for each row"),
        ({"age": "old", "dose": 1.0}, errors.ShapeError, "column 'age' of x must be a number"),
        ({"age": np.nan, "dose": 1.0}, errors.NotFiniteError, "column 'age' of x"),
        ([{"age": 1.0, "dose": 2.0}, {"age": 1.0}], errors.ColumnError, "row 1 of x has 'age'"),
        ([{"age": 1.0, "dose": 2.0}, [1.0, 2.0]], errors.ColumnError, "row 1 of x is no record"),
        ([1.0], errors.ContextWidthError, "2 columns"),
        ({}, errors.ColumnError, "lacks 'age', 'dose'"),
    ],
)
def test_a_wrong_context_is_refused_by_name_and_changes_nothing(x, error, said) -> None:
    agent = ged.GEDUCB(NAMED)
    with pytest.raises(error, match=said):
        agent.ask(x)
    assert agent.rounds == 0


def test_levels_become_codes() -> None:
    declared = problem(columns=LEVELS).names
    np.testing.assert_array_equal(declared.contexts({"age": 0.3, "sex": "m"})[0], [[1.0, 0.3]])
    np.testing.assert_array_equal(
        declared.contexts({"age": [0.3, 0.1], "sex": ["f", np.str_("m")]})[0], [[0, 0.3], [1, 0.1]]
    )
    np.testing.assert_array_equal(declared.contexts([1.0, 0.3])[0], [[1.0, 0.3]])
    numbers = Names(2, None, names.declared_columns({"site": (3, 7)}))
    np.testing.assert_array_equal(
        numbers.contexts({"site": [7, 3.0, np.int64(7)]})[0], [[1], [0], [1]]
    )
    for strange in ("Male", None, 1, np.nan, ["m"]):
        with pytest.raises(errors.DataError):
            declared.contexts({"age": 0.3, "sex": strange})
    with pytest.raises(
        errors.ColumnError,
        match=r"no level 'F'; its levels are 'f', 'm'; did you "
        r"mean 'f'\?",
    ):
        declared.contexts({"age": 0.3, "sex": "F"})
    with pytest.raises(errors.ColumnError, match="codes 0 to 1; got 2"):
        declared.contexts([2.0, 0.3])


# logs, journals, studies --------------------------------------------------------------------------

LOG = {
    "age": ROWS[:, 0],
    "dose": ROWS[:, 1],
    "arm": ["A", "placebo", "B"],
    "gain": [0.1, 0.2, 0.3],
    "harm": [0.0, 0.1, 0.2],
    "visit": ["x", "y", "z"],
    "p": [0.5, 0.25, 0.25],
}


def test_a_log_is_observed_by_its_columns() -> None:
    by_number, by_name = ged.GEDUCB(numbered()), ged.GEDUCB(NAMED)
    by_number.observe(ROWS, [1, 0, 2], [0.1, 0.2, 0.3], [0.0, 0.1, 0.2])
    by_name.observe(LOG, "arm", "gain", {"harm": "harm"})
    np.testing.assert_array_equal(by_name.policy(ROWS), by_number.policy(ROWS))
    again = ged.GEDUCB(NAMED)
    again.observe(
        {"age": ROWS[:, 0], "dose": ROWS[:, 1]}, LOG["arm"], LOG["gain"], np.array(LOG["harm"])
    )
    np.testing.assert_array_equal(again.policy(ROWS), by_number.policy(ROWS))
    again.observe({"age": 0.2, "dose": 0.1}, "A", 0.3, 0.1)
    for call, said in (
        (("Arm", "gain", "harm"), "did you mean 'arm'"),
        (("arm", "win", "harm"), "y='win' is no column"),
        (("arm", "gain", {"harm": "damage"}), r"z\['harm'\]='damage' is no column"),
        ((["A", "B", "A"], LOG["gain"], None), "not declared"),
    ):
        with pytest.raises(errors.ColumnError, match=said):
            by_name.observe(LOG, *call)


def test_a_data_frame_is_a_log() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(LOG).sample(frac=1, random_state=0)
    agent, other = ged.GEDUCB(NAMED), ged.GEDUCB(NAMED)
    agent.observe(frame, "arm", "gain", "harm")
    other.observe({name: list(frame[name]) for name in LOG}, "arm", "gain", "harm")
    np.testing.assert_array_equal(agent.policy(ROWS), other.policy(ROWS))


def test_a_journal_keeps_the_names_and_a_blinded_export_does_not(tmp_path) -> None:
    path = tmp_path / "journal"
    with played(ged.GEDUCB(NAMED, journal=path)) as agent:
        agent.add_action("C")
        agent.ask(ROWS[0])
        wanted, state = agent.policy(ROWS), agent.state_hash()
    with ged.resume(path, NAMED) as agent:
        assert agent.problem.actions == (*ARMS, "C")
        np.testing.assert_array_equal(agent.policy(ROWS), wanted)
        assert agent.state_hash() == state
    assert "action placebo with probability" in journal_text(path)
    journal_table(path, tmp_path / "all.csv")
    assert "action_name" in (tmp_path / "all.csv").read_text()
    journal_table(path, tmp_path / "blind.csv", blinded=True)
    assert "placebo" not in (tmp_path / "blind.csv").read_text()
    for other in (numbered(), problem(actions=("A", "placebo", "B"), safe_action=0)):
        with pytest.raises(errors.JournalMismatchError):
            ged.resume(path, other)


def test_a_posterior_predicts_by_name() -> None:
    agent = played(ged.GEDUCB(NAMED))
    found = agent.posterior("utility", draws=20)
    by_name = found.predictive({"dose": ROWS[:, 1], "age": ROWS[:, 0]}, ["A", "B", "placebo"])
    np.testing.assert_array_equal(by_name, found.predictive(ROWS, [1, 2, 0]))
    np.testing.assert_array_equal(found.predictive(ROWS, "A"), found.predictive(ROWS, [1, 1, 1]))
    with pytest.raises(errors.ShapeError, match="one action for each of 3 rows"):
        found.predictive(ROWS, ["A", "B"])


def test_runs_and_arviz_have_the_names(tmp_path) -> None:
    class World:
        def context(self, rng):
            return ROWS[rng.integers(3)]

        def outcome(self, x, action, rng):
            return float(rng.normal(0.1 * action, 0.3)), float(rng.normal(0.1, 0.3))

    run = ged.simulate(NAMED, World(), ged.GEDUCB(NAMED), 5)
    assert (run.action_names, run.context_names) == (list(ARMS), ["age", "dose"])
    assert "safe action placebo" in repr(run)
    run.save(tmp_path)
    loaded = ged.Run.load(tmp_path)
    assert (loaded.action_names, loaded.context_names) == (list(ARMS), ["age", "dose"])
    loaded.adopt(NAMED)
    with pytest.raises(errors.RunFileError, match="another problem"):
        ged.Run.load(tmp_path, problem(actions=("placebo", "B", "A")))
    data = run.to_arviz()
    assert list(data["policies"].coords["action"].values) == list(ARMS)


def test_levels_survive_on_disk(tmp_path) -> None:
    declared = problem(columns=LEVELS)
    ged.Run(declared, 0).save(tmp_path)
    assert ged.Run.load(tmp_path).problem.names == declared.names


def test_off_policy_logs_are_read_by_name() -> None:
    log = Log.read(NAMED, LOG, action="arm", propensity="p", outcome="gain")
    np.testing.assert_array_equal(log.action, [1, 0, 2])
    np.testing.assert_array_equal(log.x, ROWS)
    assert ips(log, np.tile([0.0, 1.0, 0.0], (3, 1))).value == pytest.approx(0.2 / 3)
    with pytest.raises(errors.ColumnError, match="no column 'prop'"):
        Log.read(NAMED, LOG, action="arm", propensity="prop", outcome="gain")
    with pytest.raises(errors.ColumnError, match="named columns"):
        Log.read(NAMED, ROWS, action="arm", propensity="p", outcome="gain")


def test_a_plan_takes_contexts_by_name() -> None:
    from gedppl.study.planning import first_actions
    from gedppl.study.planning.worlds import read_rows

    np.testing.assert_array_equal(read_rows(NAMED, {"dose": ROWS[:, 1], "age": ROWS[:, 0]}), ROWS)
    with pytest.raises(errors.ShapeError, match="at least one row"):
        read_rows(NAMED, ROWS[0])
    assert first_actions(NAMED, 2).actions == ("placebo", "A")
    by_name, by_position = (
        ged.price(NAMED, x, rounds=50, runs=1).mixes
        for x in ({"dose": ROWS[:, 1], "age": ROWS[:, 0]}, ROWS)
    )
    assert by_name == by_position


def test_doctests() -> None:
    assert doctest.testmod(names).failed == 0
