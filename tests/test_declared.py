"""Declared facts are hypotheses: ranges, safe values and bounds on parameters, each refuted when
the data show it.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import binom, norm

import gedppl as ged
from gedppl import problem as declarations
from gedppl.agent import AlarmWarning, SafeActionWarning, monitoring
from gedppl.density import Density
from gedppl.errors import DeclarationError, ProblemError
from gedppl.ged_ucb import costs as declared
from gedppl.learning.learner import Bounds
from gedppl.programs.contract import MemberList
from gedppl.study.planning import plan
from gedppl.study.simulation import simulate
from tests.coins import problem
from tests.plain_worlds import (
    PlainTables,
    PlainWorld,
    monitors_of,
    play,
    take_out_the_betting_monitors,
)
from tests.program_doubles import Glm


class Families(MemberList):
    """A finite class of scalar densities that differ by one number an action: `make(values (M,
    n))` is the density.
    """

    event_shape = ()

    def __init__(self, tables: np.ndarray, make) -> None:
        self.tables, self.make, self.size = tables, make, len(tables)  # (M, K)

    def describe(self) -> str:
        return repr(self.tables.tolist())

    def density(self, m, x, a):
        return self.make(self.tables[m, np.asarray(a)])

    def log_likelihood(self, theta, x, a, y):
        return np.asarray(
            self.make(self.tables[theta][:, np.asarray(a)]).log_prob(np.asarray(y, float))
        )

    def check_outcomes(self, x, a, y):
        return x, a, y

    def values(self, functional, theta, x, a):
        return np.asarray(functional(self.make(self.tables[theta][:, np.asarray(a)]), x, a))


def normal(values) -> Density:
    return Density("Normal", {"loc": values, "scale": np.full(np.shape(values), 0.5)})


def exponential(values) -> Density:
    return Density("Exponential", {"rate": 1.0 / np.asarray(values)})


class ScalarWorld:
    """Two actions; member 0 is the truth; the utility is a coin. The cost's density is
    `make(value)`.
    """

    def __init__(self, tables, make, functional, at_most, safe_value, **options) -> None:
        self.make, self.truth = make, np.asarray(tables, float)[0]
        self.functional = functional
        coins = PlainTables(np.array([[[0.3, 0.8]], [[0.5, 0.5]]]))
        constraint = ged.Constraint(
            Families(np.asarray(tables, float), make), functional, at_most, safe_value, **options
        )
        self.problem = ged.Problem(
            2, ged.Utility(coins, ged.mean(0, 1)), [constraint], safe_action=0
        )

    def context(self, rng):
        return np.zeros(1)

    def outcome(self, x, action, rng):
        density = self.make(np.array([self.truth[action]]))
        return float(rng.random() < (0.3, 0.8)[action]), float(density.icdf(rng.random())[0])

    def utilities(self, x):
        return np.array([0.3, 0.8])

    def costs(self, x):
        return np.asarray(Functionals.value(self.functional, self.make(self.truth)))[None]


class Functionals:
    @staticmethod
    def value(functional, density) -> np.ndarray:
        """The functional without its declared range."""
        return np.asarray(
            replace(functional, low=-np.inf, high=np.inf)(density, np.zeros((2, 1)), np.arange(2))
        )


def run(agent, world, rounds: int, seed: int = 0, allowed=None) -> list:
    """Decisions until the agent refuses; a refusal ends the list."""
    rng, made = np.random.default_rng(seed), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AlarmWarning)
        warnings.simplefilter("ignore", SafeActionWarning)
        for _ in range(rounds):
            x = world.context(rng)
            try:
                made.append(agent.ask(x, allowed))
            except DeclarationError as error:
                made.append(error)
                break
            agent.tell(made[-1].id, *world.outcome(x, made[-1].action, rng))
    return made


# CVaR at .9 of N(m, .5) is m + .5 * 1.755; of an exponential of mean m it is 3.303 m
SHIFT = 0.5 * norm.pdf(norm.ppf(0.9)) / 0.1
RANGES = {
    "cvar of a normal": lambda: ScalarWorld(
        [[0.3, 3.9 - SHIFT], [0.3, 3.5 - SHIFT], [0.3, 1.5 - SHIFT]],
        normal,
        ged.cvar(0.9, 0, 2),
        2.0,
        1.2,
    ),
    "mean of an exponential, in thousandths": lambda: ScalarWorld(
        [[2e-3, 9e-3], [2e-3, 8e-3], [2e-3, 4e-3]], exponential, ged.mean(0, 6e-3), 6e-3, 2e-3
    ),
    "quantile below its range, in millions": lambda: ScalarWorld(
        [[5e6, 1e6], [5e6, 2e6], [5e6, 6e6]], exponential, ged.quantile(0.5, 3e6, 9e6), 5e6, 3.6e6
    ),
    "second moment": lambda: ScalarWorld(
        [[0.2, 2.0], [0.2, 1.8], [0.2, 0.6]], normal, ged.second_moment(1.0), 1.0, 0.5
    ),
}


@pytest.mark.parametrize("name", RANGES)
def test_a_range_that_is_too_small_is_refuted_and_stops(name: str) -> None:
    world = RANGES[name]()
    made = run(ged.GEDUCB(world.problem, seed=1), world, 200)
    assert isinstance(made[-1], DeclarationError), made[-1]
    f = world.functional
    assert (
        f"the range [{f.low:g}, {f.high:g}] declared for the {f.name} of 'cost' is refuted"
        in str(made[-1])
    )
    assert "leave action 1 no value but" in str(made[-1])
    assert "acknowledge('range:cost')" in str(made[-1])


@pytest.mark.parametrize("name", RANGES)
def test_without_the_watch_the_same_runs_claim_a_guarantee_above_the_limit(
    name: str, monkeypatch
) -> None:
    """The control: what the check prevents."""
    monkeypatch.setattr(declared, "_range", lambda *_: None)
    world = RANGES[name]()
    made = run(ged.GEDUCB(world.problem, seed=1, guard=None), world, 200)
    assert not isinstance(made[-1], DeclarationError)
    costs = world.costs(np.zeros(1))[0]
    over = [
        d for d in made if d.policy @ costs > world.problem.limits[0] and d.certificate.guaranteed
    ]
    below = costs[1] < world.functional.low  # a value under the range breaks no limit
    assert below or len(over) > 100


SAFE_VALUES = {
    "probability": lambda **k: ScalarWorld(
        [[0.7, 0.2], [0.6, 0.3]], normal, ged.probability(above=1.0), 0.2, 0.05, **k
    ),
    "quantile": lambda **k: ScalarWorld(
        [[2.7, 1.0], [2.5, 0.9]], normal, ged.quantile(0.8, 0, 9), 2.5, 0.5, **k
    ),
    "cvar of an exponential": lambda **k: ScalarWorld(
        [[0.9, 0.3], [0.8, 0.2]], exponential, ged.cvar(0.5, 0, 9), 1.0, 0.4, **k
    ),
    "mean in nanoseconds": lambda **k: ScalarWorld(
        [[3e9, 1e9], [2e9, 1.5e9]], exponential, ged.mean(0, 1e11), 2e9, 5e8, **k
    ),
}


@pytest.mark.parametrize("name", SAFE_VALUES)
def test_a_safe_value_that_is_too_low_is_refuted_and_stops(name: str, tmp_path) -> None:
    world = SAFE_VALUES[name]()
    path = tmp_path / "j.db"
    agent = ged.GEDUCB(world.problem, seed=1, journal=path)
    with pytest.raises(DeclarationError, match=r"safe_value.* of 'cost' is refuted"):
        agent.ask([0.0])  # no member allows it, so that this needs no data
    assert agent.rounds == 0


@pytest.mark.parametrize("name", SAFE_VALUES)
def test_realised_outcomes_refute_a_safe_value_that_the_model_does_not_learn(name: str) -> None:
    world = SAFE_VALUES[name]()
    world.problem = replace(world.problem, learn_safe=False)
    made = run(ged.GEDUCB(world.problem, seed=1), world, 400, allowed=[True, False])
    assert isinstance(made[-1], DeclarationError)
    assert "is refuted by what the safe action brought" in str(made[-1])
    # the control: without a guard nothing is said
    made = run(ged.GEDUCB(world.problem, seed=1, guard=None), world, 60, allowed=[True, False])
    assert not isinstance(made[-1], DeclarationError)


def test_an_upper_bound_is_refuted_from_above_only_and_an_exact_value_from_both_sides() -> None:
    def ask(safe_value: float, exact: bool):
        tables = [[0.27, 0.2], [0.28, 0.3]]
        world = ScalarWorld(
            tables, exponential, ged.mean(0, 1), 0.5, safe_value, safe_value_exact=exact
        )
        return ged.GEDUCB(world.problem).ask([0.0])

    assert ask(0.4, exact=False).certificate.guaranteed
    assert ask(0.275, exact=False).certificate.guaranteed
    assert ask(0.275, exact=True).certificate.guaranteed
    with pytest.raises(
        DeclarationError,
        match=r"no mean but above 0\.27\. Declare a value that is "
        r"not exceeded",
    ):
        ask(0.26, exact=False)
    with pytest.raises(
        DeclarationError,
        match=r"no mean but below 0\.28\. Declare the value "
        r"itself, or drop safe_value_exact",
    ):
        ask(0.4, exact=True)


def later(**options) -> ScalarWorld:
    """The safe value is refuted only by data: one member allows it, and that is not the truth.

    The other action is above the limit, so that the safe action is played, and seen, whatever
    the exploration weights are.
    """
    tables = [[0.27, 0.7], [0.05, 0.7]]
    return ScalarWorld(tables, exponential, ged.mean(0, 1), 0.5, 0.05, **options)


@pytest.fixture
def no_bets(monkeypatch) -> None:
    """The sets alone: the guard's own monitors are taken out."""
    take_out_the_betting_monitors(monkeypatch)
    monkeypatch.setattr(monitoring, "_costs", lambda *_: {})


def test_tell_records_and_ask_refuses_until_acknowledged_also_after_resume(
    tmp_path, no_bets
) -> None:
    world, path = later(), tmp_path / "j.db"
    agent = ged.GEDUCB(world.problem, seed=1, journal=path)
    made = run(agent, world, 200)
    assert isinstance(made[-1], DeclarationError)
    assert 1 < len(made) < 60
    rounds, state = agent.rounds, agent.state_hash()
    assert rounds == len(made) - 1
    assert [r.payload["name"] for r in agent.journal.records("alarm")] == ["safe_value:cost"]
    for call in (agent.ask, agent.policy):
        with pytest.raises(DeclarationError, match=r"safe_value=0.05 of 'cost' is refuted"):
            call([0.0])
    assert (agent.rounds, agent.state_hash()) == (rounds, state)  # refusing changes nothing
    assert len(list(agent.journal.records("alarm"))) == 1
    agent.journal.close()
    with ged.resume(path, world.problem) as back:
        assert back.state_hash() == state
        with pytest.raises(DeclarationError):
            back.ask([0.0])
        back.acknowledge("safe_value:cost")
        decision = back.ask([0.0])
        part = decision.certificate.constraints[0]
        assert not decision.certificate.guaranteed
        assert "is refuted" in part.note
        assert "guarantee" not in part.claim.replace("no guarantee", "")
        expected = back.state_hash()
    with ged.resume(path, world.problem) as again:
        assert again.state_hash() == expected
        assert not again.ask([0.0]).certificate.guaranteed  # and it is not raised again


def test_a_warning_guard_says_it_and_no_guard_still_certifies_nothing(no_bets) -> None:
    world = later()
    agent = ged.GEDUCB(world.problem, seed=1, guard="warn")
    with pytest.warns(
        AlarmWarning,
        match=r"safe_value=0.05 of 'cost' is refuted.* The run goes "
        r"on",
    ):
        play(agent, world, 60)
    assert [a.name for a in agent.alarms] == ["safe_value:cost"]
    assert not agent.ask([0.0]).certificate.guaranteed
    silent = run(ged.GEDUCB(world.problem, seed=1, guard=None), world, 60)
    assert silent[0].certificate.guaranteed
    assert not silent[-1].certificate.guaranteed


def test_a_warning_at_the_very_first_decision_survives_the_journal(tmp_path) -> None:
    world = SAFE_VALUES["probability"]()
    agent = ged.GEDUCB(world.problem, guard="warn", journal=tmp_path / "j.db")
    with pytest.warns(AlarmWarning, match="The run goes on"):
        agent.ask([0.0])
    expected = agent.state_hash()
    agent.journal.close()  # no snapshot: the records are replayed
    with ged.resume(tmp_path / "j.db", world.problem) as back:
        assert back.state_hash() == expected
        assert [a.name for a in back.alarms] == ["safe_value:cost"]


def test_a_simulation_notes_it_and_goes_on() -> None:
    world = later()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = simulate(world.problem, world, ged.GEDUCB(world.problem, seed=1), 80)
    assert len(done) == 80
    assert sum("safe_value" in sentence for sentence in done.meta["refuted"]) >= 1
    assert not done.rounds[-1].certificate["constraints"][0]["guaranteed"]
    # declared wrongly for every parameter: nothing to go on with
    wrong = SAFE_VALUES["probability"]()
    with pytest.raises(DeclarationError):
        simulate(wrong.problem, wrong, ged.GEDUCB(wrong.problem), 5)


@pytest.mark.filterwarnings("ignore")
def test_a_plan_counts_it() -> None:
    world = later()
    truth = {"utility": 0, "cost": 0}
    found = plan(
        world.problem,
        np.zeros((1, 1)),
        60,
        scenarios={"wrong": truth},
        replicates=1,
        agent={"guard": "fallback"},
    )
    assert [t.alarmed for t in found.trials] == [True]


def test_right_declarations_are_not_refuted() -> None:
    """Runs in which anything declared was refuted: on the event that the set holds the truth
    there are none.
    """
    refused = 0
    for seed in range(30):
        world = PlainWorld(seed=seed)
        made = run(ged.GEDUCB(world.problem, seed=seed), world, 60, seed)
        refused += isinstance(made[-1], DeclarationError)
    assert refused <= binom.ppf(0.9999, 30, 0.05)


def test_a_refusal_by_outcomes_is_on_the_record_and_ends_with_an_acknowledgement(tmp_path) -> None:
    world, path = SAFE_VALUES["quantile"](), tmp_path / "j.db"
    world.problem = replace(world.problem, learn_safe=False)
    agent = ged.GEDUCB(world.problem, seed=1, journal=path)
    assert isinstance(run(agent, world, 400, allowed=[True, False])[-1], DeclarationError)
    expected, names = agent.state_hash(), [alarm.name for alarm in agent.alarms]
    assert "safe_value:cost" in [r.payload["name"] for r in agent.journal.records("alarm")]
    agent.journal.close()
    with ged.resume(path, world.problem) as back:
        assert (back.state_hash(), [alarm.name for alarm in back.alarms]) == (expected, names)
        with pytest.raises(DeclarationError):
            back.ask([0.0])
        for name in names:
            back.acknowledge(name)
        assert not back.ask([0.0], allowed=[True, False]).certificate.guaranteed
        assert monitors_of(back)["safe_value:cost"].n == 0
        expected = back.state_hash()
    with ged.resume(path, world.problem) as again:
        assert again.state_hash() == expected


@pytest.mark.parametrize("name", ["probability", "quantile", "mean in nanoseconds"])
def test_without_the_watch_a_wrong_safe_value_is_certified(name: str, monkeypatch) -> None:
    """The control of the safe value: nothing but this check sees it at the first decision."""
    monkeypatch.setattr(declared, "_safe_value", lambda *_: None)
    decision = ged.GEDUCB(SAFE_VALUES[name]().problem, seed=1).ask([0.0])
    assert decision.certificate.guaranteed


# a learner with a continuum of parameters ---------------------------------------------------------


def linear(functional, at_most: float, safe_value: float, truth=(0.7, 3.0)) -> ScalarWorld:
    """y ~ Normal(theta[a], 0.5); the cost of the safe action and of the other are functionals of
    that.
    """
    world = ScalarWorld([truth], normal, functional, at_most, safe_value)
    model = Glm("Normal", 2, lambda x, a: np.eye(2)[a], {"scale": 0.5})
    cost = replace(world.problem.constraints[0], model=model)
    world.problem = replace(world.problem, constraints=[cost])
    return world


LINEAR = {
    "cvar": (
        lambda: linear(ged.cvar(0.9, 0, 2), 2.0, 1.9, (0.7, 3.9 - SHIFT)),
        "the range [0, 2] declared for the cvar",
    ),
    "mean": (lambda: linear(ged.mean(0, 2), 2.0, 1.0), "the range [0, 2] declared for the mean"),
    "probability": (
        lambda: linear(ged.probability(above=1.0), 0.2, 0.05),
        "safe_value=0.05 of 'cost' is refuted",
    ),
    "quantile": (
        lambda: linear(ged.quantile(0.8, 0, 9), 1.0, 0.3),
        "safe_value=0.3 of 'cost' is refuted",
    ),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_gaussian_declarations_are_refuted_by_the_set(name: str, no_bets) -> None:
    make, sentence = LINEAR[name]
    world = make()
    made = run(ged.GEDUCB(world.problem, seed=1, bonus_scale=1.0), world, 150)
    assert isinstance(made[-1], DeclarationError), made[-1].certificate
    assert sentence in str(made[-1])
    assert len(made) > 1  # it needed data


# the check itself, by hand ------------------------------------------------------------------------


def bounds(lower, upper, **options) -> Bounds:
    lower, upper = np.atleast_2d(np.asarray(lower, float)), np.atleast_2d(np.asarray(upper, float))
    given = {"free_lower": lower, "free_upper": upper, "guaranteed": True} | options
    return Bounds(
        lower,
        np.clip(lower, 0, 1),
        np.clip(upper, 0, 1),
        "exact",
        given.pop("guaranteed"),
        "",
        **given,
    )


def hand_problem(**options) -> ged.Problem:
    coins = PlainTables(np.full((1, 1, 2), 0.3))
    c = ged.Constraint(coins, ged.mean(0, 1), at_most=0.5, safe_value=0.1, **options)
    return ged.Problem(2, ged.Utility(coins, ged.mean(0, 1)), [c], safe_action=0)


@pytest.mark.parametrize(
    ("lower", "upper", "options", "names"),
    [
        ([0.0, 0.2], [0.3, 0.4], {}, []),
        ([0.0, 1.0 + 1e-12], [0.3, 2.0], {}, []),  # rounding
        ([0.0, 1.1], [0.3, 2.0], {}, ["range:cost"]),
        ([-0.3, -0.3], [0.05, -0.1], {}, ["range:cost"]),
        ([0.11, 0.2], [0.3, 0.4], {}, ["safe_value:cost"]),
        ([0.11, 1.2], [0.3, 1.4], {}, ["range:cost", "safe_value:cost"]),
        # a search from inside refutes nothing
        ([0.11, 1.2], [0.3, 1.4], {"guaranteed": False}, []),
        ([0.11, 1.2], [0.3, 1.4], {"free_lower": None, "free_upper": None}, []),  # not watched
        ([-np.inf, np.inf], [np.inf, np.inf], {}, []),  # open ends
        # the class comes first
        ([0.11, 1.2], [0.3, 1.4], {"empty": True, "guaranteed": False}, ["empty:cost"]),
    ],
)
def test_what_is_refuted(lower, upper, options, names) -> None:
    found = declared.refuted(hand_problem(), np.zeros((1, 1)), [bounds(lower, upper, **options)])
    assert [r.name for r in found] == names
    silent = replace(hand_problem(), learn_safe=False)
    found = declared.refuted(silent, np.zeros((1, 1)), [bounds(lower, upper, **options)])
    # the model knows nothing of the safe action
    assert [r.name for r in found] == [n for n in names if n != "safe_value:cost"]


def test_the_blame_for_an_empty_set() -> None:
    """The class if nothing cut its set; its bounds; and what was declared together."""
    nothing_left = bounds([0, 0], [1, 1], empty=True, guaranteed=False)

    def blamed(model_bounds, exact) -> list[str]:
        problem = hand_problem()
        model = problem.constraints[0].model
        model.bounds = model_bounds
        if exact:
            model.predictor = type("Linear", (), {"family": "Normal", "link": "identity"})
            problem = replace(
                problem, constraints=[replace(problem.constraints[0], safe_value_exact=True)]
            )
        return [r.name for r in declared.refuted(problem, np.zeros((1, 1)), [nothing_left])]

    assert blamed({}, exact=False) == ["empty:cost"]
    assert blamed({"w": 1.0}, exact=False) == ["bounds:cost"]
    assert blamed({}, exact=True) == blamed({"w": 1.0}, exact=True) == ["declared:cost"]


def test_scaling_changes_nothing() -> None:
    """Outcomes, ranges and declared values times 10^k."""
    for k in (-9, -3, 6, 12):
        u = 10.0**k
        problem = hand_problem()
        c = replace(
            problem.constraints[0], functional=ged.mean(0, u), at_most=0.5 * u, safe_value=0.1 * u
        )
        problem = replace(problem, constraints=[c])
        for lower, names in (
            ([0.0, 1.1], ["range:cost"]),
            ([0.11, 0.2], ["safe_value:cost"]),
            ([0.1, 1.0], []),
        ):
            found = declared.refuted(
                problem, np.zeros((1, 1)), [bounds(np.array(lower) * u, np.array([9.0, 9.0]) * u)]
            )
            assert [r.name for r in found] == names


def _chance_agent(far: float, safe_value: float) -> ged.GEDUCB:
    """Means of .3 and .5, noise .1, and a limit on the chance of an outcome above `far`."""

    def arms(x: Any, a: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(w[a], 0.1), obs=y)

    cls = ged.density_class(arms)
    limit = ged.Constraint(
        cls,
        ged.probability(above=far),
        at_most=0.2,
        safe_value=safe_value,
        name="over",
        outcome="utility",
    )
    agent = ged.GEDUCB(
        ged.Problem(2, ged.Utility(cls, ged.mean(-5, 5)), [limit], safe_action=0), seed=0
    )
    a = np.resize([0, 1], 40)
    agent.observe(
        np.zeros((40, 1)),
        a,
        np.array([0.3, 0.5])[a] + 0.1 * np.random.default_rng(0).normal(size=40),
    )
    return agent


def test_a_chance_that_is_nearly_nothing_does_not_refute_one_of_nothing() -> None:
    assert _chance_agent(far=3.0, safe_value=0.0).ask(np.zeros(1)).certificate.guaranteed


def test_a_chance_that_counts_still_does() -> None:
    with pytest.raises(DeclarationError, match="safe_value=0 of 'over' is refuted"):
        _chance_agent(far=0.3, safe_value=0.0).ask(np.zeros(1))


# functions of contexts ----------------------------------------------------------------------------

MIXING = {
    "first row": lambda x: 0.1 * x[0],
    "mean": lambda x: 0.1 * x.mean(),
    "largest": lambda x: 0.1 * x.max(),
    "number": lambda x: 0.1 * len(x),
}


@pytest.mark.parametrize("name", MIXING)
def test_a_safe_value_that_mixes_contexts_is_refused(name, monkeypatch) -> None:
    """Alone every context has its own; in a batch it had the first one's, or what all make."""
    coins = problem()
    (heads,) = coins.constraints
    mixed = replace(coins, constraints=[replace(heads, safe_value=MIXING[name])])
    contexts = np.array([[1.0], [4.0]])
    assert mixed.safe_values(contexts[:1])[0, 0] == 0.1
    with pytest.raises(ProblemError, match=r"x\[:, 0\], not x\[0\]"):
        mixed.safe_values(contexts)
    for right in (lambda x: 0.1 * x, lambda x: 0.1 * x[:, 0], lambda x: 0.2):
        fine = replace(coins, constraints=[replace(heads, safe_value=right)])
        assert fine.safe_values(contexts).shape == (2, 1)
    monkeypatch.setattr(declarations, "_check_alone", lambda *asked: None)  # the control
    assert not np.allclose(mixed.safe_values(contexts)[:, 0], [0.1, 0.4])
