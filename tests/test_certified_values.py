"""Outcomes against certified values: a right value is seldom refuted, a low one often, and a
change stops the run.
"""

from __future__ import annotations

import warnings

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import binom

import gedppl as ged
from gedppl.agent import monitoring
from gedppl.agent.deciding import stops
from gedppl.guard import CertifiedMonitor
from gedppl.guard.monitors import ClassMonitor
from gedppl.guard.outcomes import MEASURED_FROM, Proved, certified_cost
from tests.plain_worlds import ArmsWorld, play
from tests.program_doubles import Glm, OnePredictorDouble, arm_features
from tests.test_declared import Families, exponential, normal

DELTA = 0.05
X = np.zeros(1)

# functional -> the family of its outcomes, the functional, and a value that is too low
KINDS = {
    "mean": (exponential, ged.mean(0, 9), 0.4),
    "probability": (normal, ged.probability(above=1.0), 0.1),
    "second moment": (normal, ged.second_moment(9.0), 0.5),
    "quantile": (normal, ged.quantile(0.8, -9, 9), 0.7),
    "cvar": (exponential, ged.cvar(0.5, 0, 9), 0.8),
    "variance": (normal, ged.variance(9.0), 0.1),
}


def refuted(name: str, *, low: bool, runs: int, rounds: int) -> int:
    """Runs that ever alarm while the certified value is the truth itself, or too low."""
    make, functional, too_low = KINDS[name]
    truth = make(np.array([0.7]))
    exact = float(np.asarray(functional(truth, X[None], np.zeros(1, int)))[0])
    base = MEASURED_FROM.get(functional.name, lambda level: functional)(functional.level)
    around = float(np.asarray(base(truth, X[None], np.zeros(1, int)))[0])
    c = ged.Constraint(
        Families(np.array([[0.7]]), make), functional, at_most=functional.high, safe_value=exact
    )
    proved = Proved(too_low if low else exact, (around - 0.05, around + 0.05))
    costs = [
        certified_cost(c, float(z), X, 0, proved, 2)
        for z in truth.icdf(np.random.default_rng(5).random(runs * rounds))
    ]
    first = costs[0]
    monitor = CertifiedMonitor.create(
        limit=first.limit, low=first.floor.low, high=1e300, delta=DELTA
    )
    for values in np.array([cost.value for cost in costs]).reshape(rounds, runs):
        monitor = monitor.update(values, first.limit, first.floor)
    return int(monitor.alarmed.sum())


@pytest.mark.parametrize("name", KINDS)
def test_a_right_certified_value_is_seldom_refuted_and_a_low_one_often(name: str) -> None:
    assert refuted(name, low=False, runs=40, rounds=100) <= binom.ppf(0.9999, 40, DELTA)
    assert refuted(name, low=True, runs=10, rounds=400) >= 8


def test_without_the_range_of_its_quantile_a_low_cvar_goes_unseen(monkeypatch) -> None:
    """What holds for any outcome with a lower end is so far from equality that it shows nothing."""
    assert refuted("cvar", low=True, runs=10, rounds=400) == 10
    proved = Proved
    monkeypatch.setattr("tests.test_certified_values.Proved", lambda upper, base: proved(upper))
    assert refuted("cvar", low=True, runs=10, rounds=400) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_false_stops_of_each_kind_in_many_runs(name: str) -> None:
    found = refuted(name, low=False, runs=1000, rounds=200)
    print(f"{name}: {found} of 1000 runs stopped at a right value, delta {DELTA:g}")
    assert found <= binom.ppf(0.9999, 1000, DELTA)


@pytest.mark.parametrize(
    "functional",
    [ged.mean(-9, 9), ged.quantile(0.8, -9, 9), ged.cvar(0.8, -9, 9)],
    ids=lambda f: f.name,
)
def test_with_normal_noise_of_known_scale_the_transform_has_mean_one_half(functional) -> None:
    model = Glm("Normal", 2, extra={"scale": 0.3})
    c = ged.Constraint(model, functional, at_most=5.0, safe_value=0.0)
    z = np.random.default_rng(0).normal(0.4, 0.3, 4000)
    value = float(
        np.asarray(
            functional(
                ged.Density("Normal", {"loc": np.array([0.4]), "scale": np.array([0.3])}),
                X[None],
                [0],
            )
        )[0]
    )
    costs = np.array(
        [certified_cost(c, float(one), np.zeros(2), 1, Proved(value), 2).value for one in z]
    )
    assert np.mean(costs) == pytest.approx(0.5, abs=4 * np.sqrt(1 / 12 / len(z)))
    low = np.array(
        [certified_cost(c, float(one), np.zeros(2), 1, Proved(value - 0.3), 2).value for one in z]
    )
    assert np.mean(low) > 0.7


class Breaking(ArmsWorld):
    """Linear-Gaussian costs that all rise after 75 rounds, but for those of the safe action."""

    rounds = 0

    def outcome(self, x, action, rng):
        self.rounds += 1
        y, z = super().outcome(x, action, rng)
        return y, z + (0.3 if self.rounds > 75 and action else 0.0)


def stopped(rounds: int) -> list[str]:
    world = Breaking("Normal")
    agent = ged.GEDUCB(world.problem, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ged.agent.AlarmWarning)
        play(agent, world, rounds)
    decision = agent.ask([1.0, 0.5])
    names = [alarm.name for alarm in agent.alarms]
    assert (decision.certificate.fallback is not None) is any(
        stops(name, world.problem) for name in names
    )
    return names


def test_a_break_stops_the_run_and_without_the_certified_values_it_goes_on(monkeypatch) -> None:
    assert "certified:cost" not in stopped(75)
    assert "refuted:cost" in stopped(130)
    # by itself, where the class as a whole is not tested: that test sees it first
    monkeypatch.setattr(ClassMonitor, "weigh", lambda self, tops: self)
    assert "certified:cost" in stopped(130)
    monkeypatch.setattr(monitoring, "_certified", lambda *_: None)
    assert not {"certified:cost", "limit:cost"} & set(stopped(130))


def unknown_scale(x, a, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(w[a], sigma), obs=y)


UNKNOWN_SCALE = {
    "mean": (ged.mean(-2, 2), 1.0, 0.5),
    "quantile": (ged.quantile(0.8, -3, 3), 1.5, 0.9),
    "cvar": (ged.cvar(0.5, -3, 3), 1.5, 0.9),
    "variance": (ged.variance(4.0), 1.0, 0.3),
}


def unknown_scale_problem(name: str) -> ged.Problem:
    functional, at_most, safe = UNKNOWN_SCALE[name]
    coins = ArmsWorld("Bernoulli", actions=2).problem.utility
    limit = ged.Constraint(
        ged.density_class(unknown_scale), functional, at_most=at_most, safe_value=safe, name="cost"
    )
    return ged.Problem(2, coins, [limit], safe_action=0)


@pytest.mark.parametrize("name", UNKNOWN_SCALE)
def test_limits_on_outcomes_of_unknown_scale_are_watched(name: str) -> None:
    """Outcomes without a lower end: a mean by its sign, a CVaR from its quantile."""
    assumed = ", assuming noise that is symmetric about its mean" if name == "mean" else ""
    problem = unknown_scale_problem(name)
    assert watched(problem) == f"outcomes against each action's certified value{assumed}"


def watched(problem: ged.Problem, guard: str | None = "fallback") -> str:
    (part,) = ged.GEDUCB(problem, guard=guard).ask([1.0, 0.5]).certificate.constraints
    return part.watched


def test_the_certificate_says_what_watches_a_limit() -> None:
    normal_arms, coins = ArmsWorld("Normal").problem, ArmsWorld("Bernoulli").problem
    both = "realised costs against the limit; outcomes against each action's certified value"
    assert watched(coins) == both
    assert watched(normal_arms) == f"{both}, assuming Normal noise of the known scale"
    assert watched(normal_arms, guard=None) == "not watched"
    quantile = ged.Constraint(
        ArmsWorld("Normal").models[1], ged.quantile(0.9, -1, 2), at_most=0.9, safe_value=0.2
    )
    only = ged.Problem(3, normal_arms.utility, [quantile], safe_action=0)
    assert watched(only).startswith("outcomes against each action's certified value")
    searched = ArmsWorld("Bernoulli", exact=False, actions=2)
    skewed = ged.Constraint(searched.models[1], ged.variance(0.25), at_most=0.2, safe_value=0.1)
    assert (
        watched(ged.Problem(2, searched.problem.utility, [skewed], safe_action=0)) == "not watched"
    )


LOGISTIC = OnePredictorDouble(
    "Logistic", "identity", 4, features=arm_features(2), extra={"scale": 0.1}
)


@pytest.mark.parametrize(
    ("model", "functional", "assumed"),
    [
        (LOGISTIC, ged.mean(-1, 2), ", assuming noise that varies no more than the model says"),
        (LOGISTIC, ged.quantile(0.9, -1, 2), ""),
        (ArmsWorld("Normal", actions=2).models[1], ged.probability(above=1.0), ""),
    ],
    ids=["cut below", "counts of a level exceeded", "an event"],
)
def test_only_what_outcomes_without_a_lower_end_need_is_assumed(model, functional, assumed) -> None:
    limit = ged.Constraint(model, functional, at_most=0.9, safe_value=0.4)
    utility = ArmsWorld("Bernoulli", actions=2).problem.utility
    said = watched(ged.Problem(2, utility, [limit], safe_action=0))
    assert said.endswith("certified value" + assumed)


def test_a_printed_certificate_says_what_watches_each_limit() -> None:
    problem = ArmsWorld("Bernoulli").problem
    for guard, said in (
        ("fallback", "constraint: watched, realised costs against the limit; outcomes against"),
        (None, "constraint: not watched, no monitor holds its outcomes against the limit"),
    ):
        certificate = ged.GEDUCB(problem, guard=guard).ask([1.0, 0.5]).certificate
        name = certificate.constraints[0].name
        sentence = said.replace("constraint", name, 1)
        assert sentence in str(certificate)
        assert f"watch over '{name}'" in repr(certificate)
        assert sentence.split(": ", 1)[1] in certificate._repr_html_()
