"""How often sound runs are stopped: by each monitor of means alone, and by agents; and what a
floor of another row would do.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.stats import binom, laplace, norm
from scipy.stats import t as student

import gedppl as ged
from gedppl.agent.deciding import stops
from gedppl.density import Density
from gedppl.errors import DeclarationError
from gedppl.ged_ucb.costs import refuted
from gedppl.guard import CertifiedMonitor, Floor, LimitMonitor, PitMonitor, SafeValueMonitor
from gedppl.guard.monitors import ClassMonitor, DelayMonitor
from gedppl.guard.outcomes import limit_floor, safe_cost
from gedppl.learning.linear_gaussian import LinearGaussianLearner
from gedppl.programs.contract import LinearPredictor
from tests.plain_worlds import ArmsWorld
from tests.program_doubles import Glm, arm_features
from tests.test_declared import Families, exponential, normal

DELTA, RUNS = 0.05, 1000
MOST = binom.ppf(0.9999, RUNS, DELTA)


def stopped(draw, floors, limit: float = 0.4, rounds: int = 300, kind=LimitMonitor) -> int:
    """Of 1,000 runs those in which a monitor ever alarmed. draw(rng, i) -> (R,) costs of round
    i, of mean `limit`.
    """
    rng = np.random.default_rng(11)
    low = floors(0).low
    monitor = kind.create(limit=limit, low=low, high=1e300, delta=DELTA)
    for i in range(rounds):
        monitor = monitor.update(np.asarray(draw(rng, i), float), None, floors(i))
    return int(monitor.alarmed.sum())


def scales(i: int) -> float:
    """Noise that is small at the first context and large later."""
    return 0.05 if i % 7 == 0 else (0.3, 1.0, 3.0)[i % 3]


SOUND = {
    "coins": (lambda rng, i: rng.random(RUNS) < 0.4, lambda i: Floor(0.0)),
    "exponential": (lambda rng, i: 0.4 * rng.exponential(size=RUNS), lambda i: Floor(0.0)),
    "normal, heteroscedastic": (
        lambda rng, i: rng.normal(0.4, scales(i), RUNS),
        lambda i: Floor.under(0.0, scales(i), normal=True),
    ),
    "laplace, heteroscedastic": (
        lambda rng, i: rng.laplace(0.4, scales(i) / np.sqrt(2), RUNS),
        lambda i: Floor.under(0.0, scales(i), normal=False),
    ),
    "a policy that mixes dear and cheap": (
        lambda rng, i: np.where(
            rng.random(RUNS) < 0.4, rng.normal(1.0, 0.1, RUNS), rng.normal(0.0, scales(i), RUNS)
        ),
        lambda i: Floor.under(0.0, max(0.1, scales(i)), normal=True),
    ),
}


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("kind", [LimitMonitor, SafeValueMonitor])
def test_a_mean_at_its_limit_seldom_stops(name: str, kind) -> None:
    assert stopped(*SOUND[name], kind=kind) <= MOST


@pytest.mark.parametrize("name", [name for name in SOUND if "heteroscedastic" in name])
def test_the_floor_of_the_first_context_would_stop_sound_runs(name: str) -> None:
    """The positive control: costs cut where the first context's noise ends."""
    draw, floors = SOUND[name]
    assert (
        stopped(lambda rng, i: np.maximum(draw(rng, i), floors(0).low), lambda i: floors(0))
        > 0.3 * RUNS
    )


@pytest.mark.parametrize("name", SOUND)
def test_a_mean_above_its_limit_stops(name: str) -> None:
    draw, floors = SOUND[name]
    assert stopped(lambda rng, i: draw(rng, i) + 0.4, floors, rounds=1000) > 0.9 * RUNS


def test_what_a_cut_adds_is_counted() -> None:
    """E(low - Z)+ for a Normal exactly, and for any other law of this variance at most."""
    floor = Floor.under(0.3, 2.0, normal=True)
    assert floor.low == pytest.approx(0.3 - 12.0)
    grid = np.linspace(floor.low - 40, floor.low, 400_001)
    for law in (norm(0.3, 2.0),):
        integral = np.trapezoid(law.cdf(grid), grid)
        assert floor.excess == pytest.approx(integral, rel=1e-3)
    wide = Floor.under(0.3, 2.0, normal=False)
    for law in (laplace(0.3, 2.0 / np.sqrt(2)), student(3, 0.3, 2.0 / np.sqrt(3))):
        assert law.std() == pytest.approx(2.0)
        assert np.trapezoid(law.cdf(grid), grid) <= wide.excess
    # two points, one of them far below, reach the bound but for the far end
    p = 0.5 * (1 - 6 / np.sqrt(37))
    far = 0.3 - 2.0 * np.sqrt((1 - p) / p)
    assert p * (wide.low - far) == pytest.approx(wide.excess)


def test_the_floor_is_that_of_the_row() -> None:
    model = Glm("Normal", 2, extra={"scale": 0.2})
    model.predictor = LinearPredictor(
        "Normal",
        "identity",
        model.features,
        model.predictor.offset,
        lambda x, a: {"scale": 0.1 + x[:, 1] * (1 + a)},
    )
    c = ged.Constraint(model, ged.mean(0, 1), at_most=0.5, safe_value=0.1)
    # the largest of all actions: a bet may not know which was drawn
    assert [limit_floor(c, np.array([1.0, s]), 2).low for s in (0.0, 1.0, 3.0)] == pytest.approx(
        [-0.6, -12.6, -36.6]
    )


SAFE = {
    "mean": (exponential, ged.mean(0, 9), 0.7),
    "probability": (normal, ged.probability(above=1.0), 0.7),
    "second moment": (normal, ged.second_moment(9.0), 0.7),
    "quantile": (normal, ged.quantile(0.8, -9, 9), 0.7),
    "cvar": (exponential, ged.cvar(0.5, 0, 9), 0.7),
    "mean of a normal": (normal, ged.mean(-9, 9), 0.7),
}


@pytest.mark.parametrize("name", SAFE)
def test_a_right_safe_value_is_seldom_refuted_by_outcomes_and_a_low_one_often(name: str) -> None:
    make, functional, value = SAFE[name]
    truth = make(np.array([value]))
    exact = float(np.asarray(functional(truth, np.zeros((1, 1)), np.zeros(1, int)))[0])
    c = ged.Constraint(
        Families(np.array([[value]]), make), functional, at_most=functional.high, safe_value=exact
    )
    rng = np.random.default_rng(5)

    def refuted(declared: float, runs: int, rounds: int) -> int:
        count = 0
        for _ in range(runs):
            stakes = [
                safe_cost(c, float(z), np.zeros(1), 0, declared)
                for z in truth.icdf(rng.random(rounds))
            ]
            first = stakes[0]
            monitor = SafeValueMonitor.create(
                limit=first.limit, low=first.floor.low, high=1e300, delta=DELTA
            )
            for stake in stakes:
                monitor = monitor.update(*stake)
            count += monitor.alarmed
        return count

    assert refuted(exact, 40, 100) <= binom.ppf(0.9999, 40, DELTA)
    low = exact - 0.6 * (exact - max(functional.low, 0.0)) if name != "cvar" else 0.2 * exact
    assert refuted(low, 10, 400) >= 8


# every monitor alone, a thousand times ------------------------------------------------------------


def refuted_safe_values(name: str) -> int:
    """Runs in which outcomes of the safe action ever refuted its exact value."""
    make, functional, value = SAFE[name]
    truth = make(np.array([value]))
    exact = float(np.asarray(functional(truth, np.zeros((1, 1)), np.zeros(1, int)))[0])
    c = ged.Constraint(
        Families(np.array([[value]]), make), functional, at_most=functional.high, safe_value=exact
    )
    rng = np.random.default_rng(6)
    first = safe_cost(c, float(truth.icdf(np.array([0.5]))[0]), np.zeros(1), 0, exact)
    monitor = SafeValueMonitor.create(
        limit=first.limit, low=first.floor.low, high=1e300, delta=DELTA
    )
    for _ in range(200):
        told = truth.icdf(rng.random(RUNS))
        values = [safe_cost(c, float(z), np.zeros(1), 0, exact).value for z in told]
        monitor = monitor.update(np.array(values), first.limit, first.floor)
    return int(monitor.alarmed.sum())


def late(delays) -> int:
    rng, monitor = np.random.default_rng(7), DelayMonitor.create(delta=DELTA)
    for i in range(400):
        monitor = monitor.update(rng.random(RUNS), delays(rng, i))
    return int(monitor.alarmed.sum())


def pits(drifting: bool) -> int:
    """Normal outcomes whose known noise goes with the context."""
    rng = np.random.default_rng(8)
    make = PitMonitor.drift if drifting else PitMonitor.calibration
    monitor = make(dx=1, n_actions=3, delta=DELTA, burn_in=0)
    for i in range(300):
        u = norm.cdf(rng.normal(0.4, scales(i), RUNS), 0.4, scales(i))
        x = np.full((RUNS, 1), scales(i))
        monitor = monitor.update(u, x, rng.integers(3, size=RUNS))
    return int(monitor.alarmed.sum())


def refuted_classes() -> int:
    """All Normals of scale 1: the mean is learned, the bets are on the predictive's transforms."""
    rng, count = np.random.default_rng(9), 0
    for _ in range(RUNS):
        y = rng.normal(0.3, 1.0, 150)
        n = np.arange(len(y))
        middle = np.concatenate([[0.0], np.cumsum(y)[:-1]]) / (n + 1)  # prior N(0, 1)
        spread = np.sqrt(1 + 1 / (n + 1))
        told = norm.logpdf(y, middle, spread)
        bets = np.log1p(0.4 * (2 * (np.abs(2 * norm.cdf((y - middle) / spread) - 1) > 0.5) - 1))
        monitor = ClassMonitor.create(delta=DELTA, first=10)
        for i in range(len(y)):
            monitor = monitor.update(float(bets[i])).pay(float(told[i]))
            if monitor.n >= monitor.due:
                monitor = monitor.begin(np.array([float(i + 1)]))
            if monitor.contested:
                since = [y[int(mark) : i + 1] for mark in monitor.marks[:, 0]]
                tops = [
                    norm.logpdf(part, part.mean(), 1.0).sum() if len(part) else 0.0
                    for part in since
                ]
                monitor = monitor.weigh(np.array(tops))
        count += monitor.alarmed
    return count


def refuted_declarations(uneven: bool) -> int:
    """Runs in which the sets ever refute a range and a safe value that end at the truth itself,
    bounds on parameters that do, or the class.
    """
    truth, rng, count = np.array([0.4, 0.9]), np.random.default_rng(10), 0
    model = Glm("Normal", 2, lambda x, a: np.eye(2)[a], {"scale": 1.0}, bound=0.9 * 2**0.5)
    model.predictor = LinearPredictor(
        "Normal",
        "identity",
        model.features,
        model.predictor.offset,
        lambda x, a: {"scale": x[:, 0]},
    )
    c = ged.Constraint(model, ged.mean(0.0, 0.9), at_most=0.6, safe_value=0.4)
    given = ged.Problem(2, ged.Utility(model, ged.mean(0, 1)), [c], safe_action=0)
    for _ in range(RUNS):
        learner = LinearGaussianLearner.start(
            model.predictor, dim=2, delta=DELTA, norm_bound=float(np.linalg.norm(truth))
        )
        hit = False
        for i in range(12):
            x = np.array([[scales(7 * i + j) if uneven else 0.3] for j in range(10)])
            a = rng.integers(0, 2, 10)
            learner = learner.absorb(x, a, rng.normal(truth[a], x[:, 0]))
            found = learner.bounds(c.functional, x[:1], 2)
            hit |= bool(refuted(given, x[:1], [found]))
        count += hit
    return count


ALONE = {
    **{
        f"{kind.__name__}, {name}": lambda kind=kind, name=name: stopped(*SOUND[name], kind=kind)
        for kind in (LimitMonitor, SafeValueMonitor, CertifiedMonitor)
        for name in SOUND
    },
    **{f"safe value of a {name}": lambda name=name: refuted_safe_values(name) for name in SAFE},
    "delay, any": lambda: late(lambda rng, i: rng.integers(0, 20, RUNS)),
    "delay, heavy": lambda: late(lambda rng, i: rng.pareto(0.7, RUNS)),
    "calibration, heteroscedastic": lambda: pits(drifting=False),
    "drift, heteroscedastic": lambda: pits(drifting=True),
    "refuted class": refuted_classes,
    "range, safe value and class by the sets": lambda: refuted_declarations(uneven=False),
    "the same, heteroscedastic": lambda: refuted_declarations(uneven=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
def test_a_monitor_alone_stops_at_most_delta_of_a_thousand_sound_runs(name: str) -> None:
    count = ALONE[name]()
    print(f"{name}: {count} of {RUNS} sound runs, delta {DELTA}")
    assert count <= DELTA * RUNS


# agents -------------------------------------------------------------------------------------------


class Uneven(ArmsWorld):
    """Linear-Gaussian costs whose known noise goes with the context; every policy is sound, the
    class holds the truth.
    """

    def __init__(self, seed: int) -> None:
        super().__init__("Normal", seed=seed)
        self.first = True
        for i, model in enumerate(self.models):
            uneven = Glm(
                "Normal", 6, lambda x, a: arm_features(3)(x[:, :2], a), {"scale": 0.1}, bound=np.inf
            )
            offset = model.predictor.offset
            uneven.predictor = LinearPredictor(
                "Normal", "identity", uneven.features, offset, lambda x, a: {"scale": x[:, 2]}
            )
            uneven.density_at = lambda theta, x, a, m=uneven: Density(
                "Normal",
                {"loc": np.asarray(theta) @ m.features(x, a).T, "scale": np.asarray(x)[:, 2]},
            )
            self.models[i] = uneven
        utility = ged.Utility(self.models[0], ged.mean(-0.5, 1.5))
        cost = ged.Constraint(self.models[1], ged.mean(-0.5, 1.5), at_most=0.7, safe_value=0.0)
        self.problem = ged.Problem(3, utility, [cost], safe_action=0)

    def context(self, rng):
        scale, self.first = 0.01 if self.first else float(rng.choice([0.1, 1.0, 4.0])), False
        return np.array([1.0, rng.random(), scale])

    def outcome(self, x, action, rng):
        phi = arm_features(3)(x[None, :2], np.array([action]))[0]
        return tuple(float(phi @ theta + x[2] * rng.standard_normal()) for theta in self.theta)


def stopped_agents(runs: int, cohorts: int, size: int) -> int:
    count = 0
    for seed in range(runs):
        world = Uneven(seed)
        agent, rng = ged.GEDUCB(world.problem, seed=seed), np.random.default_rng([9, seed])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                for _ in range(cohorts):
                    made = agent.ask(np.stack([world.context(rng) for _ in range(size)]))
                    agent.tell_many([(d.id, *world.outcome(d.x, d.action, rng)) for d in made])
                count += any(stops(alarm.name, world.problem) for alarm in agent.alarms)
            except DeclarationError:
                count += 1
    return count


def test_sound_agents_under_uneven_noise_are_seldom_stopped() -> None:
    assert stopped_agents(4, 6, 20) <= binom.ppf(0.9999, 4, DELTA)


@pytest.mark.slow
def test_sound_agents_under_uneven_noise_are_seldom_stopped_in_many_runs() -> None:
    count = stopped_agents(50, 20, 20)
    print(f"agents under uneven noise: {count} of 50 runs of 400 rounds stopped, at delta {DELTA}")
    assert count <= binom.ppf(0.9999, 50, DELTA)


def test_a_floor_of_the_first_context_would_stop_agents(monkeypatch) -> None:
    """The positive control of the test above: the noise floor is taken from the first context
    for all rows.
    """
    from gedppl.guard import outcomes

    kept: dict[int, Floor] = {}
    own = outcomes.outcome_floor
    monkeypatch.setattr(
        outcomes, "outcome_floor", lambda c, x, a: kept.setdefault(id(c), own(c, x, a))
    )
    assert stopped_agents(4, 6, 20) >= 1
