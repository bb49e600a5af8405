"""A hostile or clumsy caller: a value is taken as the number it is, or refused by name with
nothing changed.
"""

from __future__ import annotations

import datetime
import tracemalloc
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

import gedppl as ged
from gedppl import errors
from gedppl.numerics import arrays as numbers
from tests.plain_worlds import ArmsWorld, PlainWorld, play

WORLD = PlainWorld()


class Breaks:
    """Raises wherever it is looked into."""

    def __array__(self, *_, **__):
        raise RuntimeError("broken")

    def __len__(self):
        raise RuntimeError("broken")

    def __iter__(self):
        raise RuntimeError("broken")


class Tensor:
    """Like a torch tensor that a gradient is asked for: NumPy may not read it before `detach`."""

    def __init__(self, value: float) -> None:
        self.value = value

    def detach(self):
        return np.asarray(self.value)

    def __array__(self, *_, **__):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad")

    @property
    def shape(self):
        return ()


ONE = [  # each is the number 1
    1,
    1.0,
    True,
    np.bool_(True),
    np.float32(1),
    np.float16(1),
    np.int8(1),
    np.longdouble(1),
    np.array(1.0),
    np.array(1),
    Decimal(1),
    Fraction(1),
    np.ma.array(1.0),
    np.array(1, dtype=">f8"),
    np.array(1.0, dtype=object),
]
NONE = [  # none of these is a number that can be learned from
    np.nan,
    np.inf,
    -np.inf,
    1e61,
    -1e308,
    10**400,
    1j,
    1 + 0j,
    np.complex128(1),
    "1",
    "0.5",
    b"1",
    np.str_("1"),
    object(),
    [1.0],
    (1.0,),
    [[1.0]],
    {},
    {1.0},
    datetime.date(2020, 1, 1),
    np.datetime64("2020-01-01"),
    np.timedelta64(1, "s"),
    np.ma.masked,
    np.ma.array(1.0, mask=True),
    len,
    ...,
    NotImplemented,
    np.void(b"abc"),
    Breaks(),
    [1.0, [2.0]],
    np.array("1"),
    np.array(None),
    np.array([], float),
]


def agent_after() -> ged.GEDUCB:
    agent = ged.GEDUCB(WORLD.problem, seed=1)
    play(agent, WORLD, 3)
    agent.ask([0.0])
    return agent


@pytest.fixture(scope="module")
def steady() -> ged.GEDUCB:
    return agent_after()


PLACES = {
    "x": lambda g, v: g.ask(v),
    "x[0]": lambda g, v: g.ask([v]),
    "policy": lambda g, v: g.policy([v]),
    "cost_bounds": lambda g, v: g.cost_bounds([v]),
    "allowed": lambda g, v: g.ask([0.0], allowed=v),
    "allowed[0]": lambda g, v: g.ask([0.0], allowed=[v, v, v]),
    "id": lambda g, v: g.tell(v, 1.0, 0.0),
    "y": lambda g, v: g.tell(3, v, 0.0),
    "z": lambda g, v: g.tell(3, 1.0, v),
    "z[cost]": lambda g, v: g.tell(3, 1.0, {"cost": v}),
    "tell_many": lambda g, v: g.tell_many(v),
    "tell_many[0]": lambda g, v: g.tell_many([v]),
    "amended y": lambda g, v: g.amend(0, y=v),
    "amended id": lambda g, v: g.amend(v, y=1.0),
    "explained": lambda g, v: g.explain(v),
    "logged x": lambda g, v: g.observe([[v]], [1], [1.0], [0.0]),
    "logged a": lambda g, v: g.observe([[0.0]], [v], [1.0], [0.0]),
    "logged y": lambda g, v: g.observe([[0.0]], [1], [v], [0.0]),
    "logged z": lambda g, v: g.observe([[0.0]], [1], [1.0], {"cost": [v]}),
    "logged z column": lambda g, v: g.observe([[0.0]], [1], [1.0], {"cost": v}),
    "limit": lambda g, v: g.set_limit("cost", v),
    "limit's name": lambda g, v: g.set_limit(v, 0.4),
    "retired": lambda g, v: g.retire_action(v),
    "acknowledged": lambda g, v: g.acknowledge(v),
}
COLUMN = ([1.0], (1.0,))  # of one context, or one logged row
MEANT = {
    "x": (*COLUMN, [[1.0]]),
    "x[0]": COLUMN,
    "policy": COLUMN,
    "cost_bounds": COLUMN,
    "logged z column": COLUMN,
    "z": ({},),
}


@pytest.mark.filterwarnings("ignore:.*masked element to nan:UserWarning")
@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_number_is_refused_by_name_and_changes_nothing(steady, place) -> None:
    before = steady.state_hash()
    for value in NONE:
        if any(type(value) is type(meant) and value == meant for meant in MEANT.get(place, ())):
            continue
        if place == "tell_many" and (
            isinstance(value, dict | np.void) or (isinstance(value, np.ndarray) and value.size == 0)
        ):
            continue  # iterates over no outcomes at all
        with pytest.raises(errors.GedError) as caught:
            PLACES[place](steady, value)
        assert str(caught.value), value
        assert steady.state_hash() == before, value


@pytest.mark.parametrize(
    "place", ["x[0]", "y", "z", "z[cost]", "amended y", "logged x", "logged y", "logged z"]
)
def test_a_number_is_a_number_however_it_is_written(place) -> None:
    plain = agent_after()
    PLACES[place](plain, 1.0)
    for value in ONE:
        agent = agent_after()
        PLACES[place](agent, value)
        assert agent.state_hash() == plain.state_hash(), repr(value)


@pytest.mark.parametrize("place", PLACES)
def test_what_is_absurdly_large_is_refused_before_it_is_copied(steady, place) -> None:
    """A view that claims eight gigabytes and holds eight bytes."""
    huge = np.broadcast_to(0.0, (10**9,))
    tracemalloc.start()
    try:
        with pytest.raises(errors.GedError):
            PLACES[place](steady, huge)
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()


def test_a_tensor_with_a_gradient_is_its_value() -> None:
    plain, agent = agent_after(), agent_after()
    plain.tell(3, 1.0, 0.0)
    agent.tell(3, Tensor(1.0), Tensor(0.0))
    assert agent.state_hash() == plain.state_hash()


SETTINGS = (
    "delta",
    "mode",
    "warmup",
    "bonus_scale",
    "width_scale",
    "confidence",
    "seed",
    "guard",
    "growth",
    "exact_rounds",
    "exploration",
)


@pytest.mark.parametrize("option", [*SETTINGS, "journal"])
def test_options_that_are_none_are_refused_by_name(option, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for value in [*NONE, -1, True]:
        if option == "journal" and isinstance(value, str | bytes):
            continue
        # up to infinity
        if option == "exact_rounds" and type(value) in (int, float) and value >= 0:
            continue
        with pytest.raises(errors.GedError) as caught:
            ged.GEDUCB(WORLD.problem, **{option: value})
        assert str(caught.value), value
    assert list(tmp_path.iterdir()) == []


# what a caller keeps in hand ----------------------------------------------------------------------


def test_arrays_changed_afterwards_change_nothing(tmp_path) -> None:
    world = ArmsWorld("Normal")
    agent = ged.GEDUCB(world.problem, journal=tmp_path / "j.db")
    x, y, z = np.array([1.0, 0.5]), np.array(0.3), np.array(0.1)
    decision = agent.ask(x)
    agent.tell(decision.id, y, z)
    logged = (
        np.array([[1.0, 0.2], [1.0, 0.7]]),
        np.array([0, 1]),
        np.array([0.1, 0.2]),
        np.array([0.0, 0.1]),
    )
    agent.observe(*logged)
    before = agent.state_hash()
    for array in (x, y, z, *logged):
        array[...] = 1
    for mine in (
        agent.policy(x),
        *agent.cost_bounds(x),
        agent.explain(decision).cost_upper,
        agent.problem.limits,
    ):
        if mine.flags.writeable:  # a problem's limits are not
            mine[...] = 7.0
    assert agent.state_hash() == before
    agent.ask([1.0, 0.4])
    expected = agent.state_hash()
    agent.close()
    assert ged.resume(tmp_path / "j.db", world.problem).state_hash() == expected


def test_a_decision_cannot_be_rewritten() -> None:
    decision = agent_after().ask([0.0])
    for array in (decision.x, decision.policy):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0


def test_the_largest_numbers_are_learned_from_or_named() -> None:
    """Not refused at the door, so they must not break anything: an error that changes nothing, or
    the safe action with the reason until the outcome is amended.
    """
    agent = ged.GEDUCB(ArmsWorld("Normal").problem, guard=None)
    decision = agent.ask([1.0, numbers.LARGEST])
    agent.tell(decision.id, 0.1, 0.1)
    before = agent.state_hash()
    with pytest.raises(
        errors.DataError, match=r"the outcome 1e\+60 .* beside a noise scale of 0.1"
    ):
        agent.observe([[1.0, 0.5]], [1], [numbers.LARGEST], [0.1])
    assert agent.state_hash() == before
    agent.ask([1.0, 0.5])
    agent.tell(1, numbers.LARGEST, 0.1)
    with pytest.warns(ged.agent.FallbackWarning, match="beside a noise scale"):
        again = agent.ask([1.0, 0.5])
    assert "beside a noise scale" in str(again.certificate.fallback)
    agent.amend(1, y=0.1)
    assert agent.ask([1.0, 0.5]).certificate.fallback is None
