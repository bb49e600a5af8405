"""Units are the user's, all the way through an agent: every learner with every functional decides
and claims the same.

Outcomes, noise, ranges, limits and safe values times 10^k; contexts times 10^k with the
coefficients that go with them (which have no prior here: nothing but the contexts tells their
size); outcomes moved by a constant with everything declared of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import gedppl as ged
from gedppl.density import Density
from gedppl.programs.contract import LinearPredictor, OrderedPredictor
from tests.program_doubles import ARGUMENT, Glm, Heteroscedastic, arm_features
from tests.test_declared import Families

QUICK, ALL = (-9, 12), tuple(range(-9, 13))
K, COHORTS, SIZE = 3, 6, 5


@dataclass(frozen=True)
class Case:
    """A problem, how its contexts are written, and its outcomes from uniform numbers."""

    problem: ged.Problem
    columns: np.ndarray  # factors of the context (1, covariate)
    # plain context, action, two uniforms
    outcomes: Callable[[np.ndarray, int, np.ndarray], tuple[float, float]]


def problem(model: Any, utility: Any, cost: Any, at_most: float, safe: float) -> ged.Problem:
    return ged.Problem(
        K,
        ged.Utility(model, utility),
        [ged.Constraint(model, cost, at_most=at_most, safe_value=safe)],
        safe_action=0,
    )


def played(case: Case) -> tuple[np.ndarray, list[Any]]:
    """Policies (rounds, K) under random numbers that are the same in every unit, and what is
    claimed of each.
    """
    rng, agent = np.random.default_rng(3), ged.GEDUCB(case.problem, seed=1, guard=None)
    policies, claims = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for _ in range(COHORTS):
            plain = np.column_stack([np.ones(SIZE), rng.uniform(0.2, 1.0, SIZE)])
            draws = rng.random((SIZE, 2))
            made = agent.ask(plain * case.columns)
            policies += [d.policy for d in made]
            claims += [
                (
                    c.guaranteed,
                    c.fallback is None,
                    [(part.method, part.guaranteed) for part in c.constraints],
                )
                for c in (d.certificate for d in made)
            ]
            agent.tell_many(
                [(d.id, *case.outcomes(x, d.action, u)) for d, x, u in zip(made, plain, draws)]
            )
    return np.array(policies), claims


def check(case: Callable[..., Case], units: list[dict[str, float]], *args: Any) -> None:
    policies, claims = played(case(*args))
    assert np.ptp(policies[:, 1:]) > 1e-3  # something was decided
    for unit in units:
        other, said = played(case(*args, **unit))
        np.testing.assert_allclose(other, policies, atol=1e-6, err_msg=str(unit))
        assert said == claims


# outcomes: linear-Gaussian and finite classes -----------------------------------------------------

LOC = np.array([[0.1, 0.0], [0.5, 0.4], [0.3, -0.2]])  # intercept and slope by action
NOISE = 0.3


def functionals(u: float, c: float) -> dict[str, tuple[Any, float, float]]:
    """Functional, limit and safe value of outcomes u y + c, where what is told of y is 0.6 and
    0.1, about.
    """
    return {
        "mean": (ged.mean(-3 * u + c, 3 * u + c), 0.6 * u + c, 0.1 * u + c),
        "cvar": (ged.cvar(0.8, -3 * u + c, 4 * u + c), 1.2 * u + c, 0.55 * u + c),
        "quantile": (ged.quantile(0.9, -3 * u + c, 4 * u + c), 1.1 * u + c, 0.5 * u + c),
        "probability": (ged.probability(above=0.8 * u + c), 0.4, 0.02),
        "band": (ged.probability(above=0.8 * u + c, below=2 * u + c), 0.4, 0.02),
        "expected": (
            ged.expected(lambda y, x, a: (y - c) / u > 0.8, 0, 1, kinks=[0.8 * u + c]),
            0.4,
            0.02,
        ),
        # of these a shift is no unit
        "second_moment": (ged.second_moment(9 * u**2), 0.8 * u**2, 0.15 * u**2),
        "variance": (ged.variance(9 * u**2), 0.2 * u**2, 0.1 * u**2),
    }


class Outcome(Glm):
    """A Glm whose functionals are those of its family; `log_unit` is an offset of its predictor."""

    def __init__(self, family, dim, features, extra=None, log_unit=0.0, **options):
        super().__init__(family, dim, features, extra, **options)
        self.log_unit, predictor = log_unit, self.predictor
        self.predictor = LinearPredictor(
            family,
            predictor.link,
            features,
            lambda x, a: np.full(len(a), log_unit),
            predictor.fixed,
        )

    def _density(self, eta):
        name, link = ARGUMENT[self.family]
        fixed = {key: np.full(eta.shape, value) for key, value in self.extra.items()}
        return Density(self.family, {**fixed, name: link(eta + self.log_unit)})

    def density_at(self, theta, x, a):
        return self._density(np.asarray(theta) @ self.features(x, a).T)

    def values_grad(self, functional, theta, x, a):
        phi = self.features(x, a)
        eta = np.sum(phi * theta, axis=1)
        slope = (
            self.mean_slope(eta + self.log_unit)[1]
            if functional.name == "mean"
            else np.zeros(len(a))
        )
        return functional(self._density(eta), x, a), slope[:, None] * phi


def normal_outcomes(u: float, c: float) -> Callable[..., tuple[float, float]]:
    from scipy.special import ndtri

    def outcomes(x, a, draws):
        y = u * (LOC[a] @ x + NOISE * ndtri(draws[0])) + c
        return y, y

    return outcomes


def linear_gaussian(name: str, u: float = 1.0, c: float = 0.0) -> Case:
    start = np.tile([c, 0.0], K)  # an untried action is taken to be there
    model = Outcome(
        "Normal", 2 * K, arm_features(K), {"scale": NOISE * u}, bound=np.inf, initial=start
    )
    cost, at_most, safe = functionals(u, c)[name]
    return Case(
        problem(model, ged.mean(-3 * u + c, 3 * u + c), cost, at_most, safe),
        np.ones(2),
        normal_outcomes(u, c),
    )


def finite(name: str, u: float = 1.0, c: float = 0.0) -> Case:
    tables = u * np.random.default_rng(0).uniform(0.0, 1.0, (12, K)) + c
    tables[:, 0], tables[0] = 0.1 * u + c, u * np.array([0.1, 0.8, 0.3]) + c

    def make(values):
        return Density("Normal", {"loc": values, "scale": np.full(np.shape(values), NOISE * u)})

    cost, at_most, safe = functionals(u, c)[name]
    return Case(
        problem(Families(tables, make), ged.mean(-3 * u + c, 3 * u + c), cost, at_most, safe),
        np.ones(2),
        normal_outcomes(u, c),
    )


SCALED = ("mean", "cvar", "quantile", "probability", "band", "expected", "second_moment")
SHIFTED = ("mean", "cvar", "quantile", "probability", "band")


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("case", [linear_gaussian, finite])
def test_outcomes_in_any_unit(case, name) -> None:
    check(case, [{"u": 10.0**k} for k in QUICK], name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("case", [linear_gaussian, finite])
def test_outcomes_in_twenty_two_units(case, name) -> None:
    check(case, [{"u": 10.0**k} for k in ALL], name)


@pytest.mark.parametrize("name", SHIFTED)
@pytest.mark.parametrize("case", [linear_gaussian, finite])
def test_outcomes_moved_by_a_constant(case, name) -> None:
    check(case, [{"c": c} for c in (-40.0, 1000.0)], name)


# contexts: one predictor, ordered outcomes, any program -------------------------------------------

COUNTS = {
    "Bernoulli": (
        ged.mean(0, 1),
        {
            "mean": (ged.mean(0, 1), 0.75, 0.53),
            "probability": (ged.probability(above=0.5), 0.75, 0.53),
            "variance": (ged.variance(0.25), 0.2499, 0.2),
        },
    ),
    "Poisson": (
        ged.mean(0, 20),
        {
            "mean": (ged.mean(0, 20), 3.0, 1.2),
            "cvar": (ged.cvar(0.7, 0, 20), 5.0, 3.0),
            "quantile": (ged.quantile(0.8, 0, 20), 4.0, 2.0),
            "probability": (ged.probability(above=3.5), 0.3, 0.05),
        },
    ),
}


def one_predictor(family: str, name: str, u: float = 1.0) -> Case:
    from scipy.stats import poisson

    model = Outcome(family, 2 * K, arm_features(K), bound=np.inf)

    def outcomes(x, a, draws):
        eta = LOC[a] @ x
        y = (
            float(draws[0] < 1 / (1 + np.exp(-eta)))
            if family == "Bernoulli"
            else float(poisson.ppf(draws[0], np.exp(eta)))
        )
        return y, y

    utility, costs = COUNTS[family]
    return Case(problem(model, utility, *costs[name]), np.array([1.0, u]), outcomes)


def offsets(u: float = 1.0) -> Case:
    """Counts a unit of exposure: the exposure's unit is an offset of the log rate, and the
    intercepts start at its inverse.
    """
    case = one_predictor("Poisson", "mean")
    start = np.tile([-np.log(u), 0.0], K)
    model = Outcome(
        "Poisson", 2 * K, arm_features(K), log_unit=np.log(u), bound=np.inf, initial=start
    )
    return Case(
        problem(model, COUNTS["Poisson"][0], *COUNTS["Poisson"][1]["mean"]),
        np.ones(2),
        case.outcomes,
    )


class Ordered(Heteroscedastic):
    """Grades 0, 1, 2: P(y <= k) = expit(cut_k - phi'beta); theta = (beta, cuts)."""

    def __init__(self):
        super().__init__(2 * K, arm_features(K), initial=np.append(np.zeros(2 * K), [-1.0, 1.0]))
        self.dim = 2 * K + 2
        self.prior_free = np.ones(self.dim, bool)

        def features(x, a):
            phi = arm_features(K)(x, a)
            return np.stack(
                [np.hstack([-phi, np.tile(np.eye(2)[k], (len(a), 1))]) for k in range(2)], axis=1
            )

        self.ordered = OrderedPredictor(features, lambda x, a: np.zeros((len(a), 2)))

    def density_at(self, theta, x, a):
        theta = np.asarray(theta)
        eta = theta[..., : 2 * K] @ arm_features(K)(x, a).T
        edge = 1 / (1 + np.exp(eta[..., None] - theta[..., None, 2 * K :]))
        probs = np.diff(
            np.concatenate([np.zeros((*eta.shape, 1)), edge, np.ones((*eta.shape, 1))], axis=-1),
            axis=-1,
        )
        return Density("Categorical", {"probs": probs})

    def values_grad(self, functional, theta, x, a):
        """Functionals that are linear in P(y <= 0) and P(y <= 1): the mean, and the chance of
        the highest grade.
        """
        features = self.ordered.features(x, a)  # (n, 2, D)
        edges = 1 / (1 + np.exp(-np.einsum("ncd,nd->nc", features, theta)))
        used = np.array([1.0, 1.0] if functional.name == "mean" else [0.0, 1.0])
        return used.sum() - edges @ used, -np.einsum(
            "nc,ncd->nd", used * edges * (1 - edges), features
        )


def ordered(name: str, u: float = 1.0) -> Case:
    cost = {
        "mean": (ged.mean(0, 2), 1.9, 1.0),
        "probability": (ged.probability(above=1.5), 0.9, 0.3),
    }[name]

    def outcomes(x, a, draws):
        y = float(np.digitize(LOC[a] @ x + np.log(draws[0] / (1 - draws[0])), [-1.0, 1.0]))
        return y, y

    return Case(problem(Ordered(), ged.mean(0, 2), *cost), np.array([1.0, u]), outcomes)


class Noisy(Heteroscedastic):
    """Unknown noise, by ascent, with second derivatives that are exact in any unit."""

    def __init__(self):
        super().__init__(
            2 * K, arm_features(K), shared=True, initial=np.append(np.zeros(2 * K), -0.5)
        )

    def total_hessian(self, theta, rows, weights=None):
        w, precision = np.ones(rows.n) if weights is None else weights, np.exp(-2 * theta[-1])
        phi = self.features(rows.x, rows.a)
        left = rows.y - phi @ theta[:-1]
        out = np.zeros((self.dim, self.dim))
        out[:-1, :-1] = -precision * (phi * w[:, None]).T @ phi
        out[:-1, -1] = out[-1, :-1] = -2 * precision * phi.T @ (w * left)
        out[-1, -1] = -2 * precision * np.sum(w * left**2)
        return out


def unknown_noise(name: str, u: float = 1.0) -> Case:
    model = Noisy()
    cost = {"mean": (ged.mean(-3, 3), 1.8, 0.1), "variance": (ged.variance(9.0), 6.0, 0.1)}[name]
    return Case(
        problem(model, ged.mean(-3, 3), *cost), np.array([1.0, u]), normal_outcomes(1.0, 0.0)
    )


CONTEXTS = [
    (one_predictor, "Bernoulli", "mean"),
    (one_predictor, "Bernoulli", "probability"),
    (one_predictor, "Bernoulli", "variance"),
    (one_predictor, "Poisson", "mean"),
    (one_predictor, "Poisson", "cvar"),
    (one_predictor, "Poisson", "quantile"),
    (one_predictor, "Poisson", "probability"),
    (offsets,),
    (ordered, "probability"),
    (ordered, "mean"),
    (unknown_noise, "mean"),
    (unknown_noise, "variance"),
]


def factors(case: Callable[..., Case], powers: tuple[int, ...]) -> list[dict[str, float]]:
    """Of contexts. For an ascent the nearest powers of two, which round nothing: two rows fit
    three parameters perfectly, their likelihood has no top, and how far a climb gets on it is a
    matter of rounding in any unit.
    """
    return [
        {"u": 2.0 ** round(k * np.log2(10)) if case is unknown_noise else 10.0**k} for k in powers
    ]


NAMES = [" ".join([case.__name__, *rest]) for case, *rest in CONTEXTS]


@pytest.mark.parametrize("parts", CONTEXTS[::2], ids=NAMES[::2])  # the others are slow
def test_contexts_in_any_unit(parts) -> None:
    check(parts[0], factors(parts[0], QUICK), *parts[1:])


@pytest.mark.slow
@pytest.mark.parametrize("parts", CONTEXTS, ids=NAMES)
def test_contexts_in_twenty_two_units(parts) -> None:
    check(parts[0], factors(parts[0], ALL), *parts[1:])


@pytest.mark.parametrize(
    "parts",
    [(one_predictor, "Bernoulli", "mean"), (unknown_noise, "mean")],
    ids=["exact", "ascent"],
)
def test_widths_in_the_parameters_own_numbers_would_depend_on_the_unit(parts, monkeypatch) -> None:
    """The positive control: a working prior and particles that take every parameter's unit to be
    one.
    """
    from gedppl.learning import programs

    monkeypatch.setattr(
        programs, "parameter_units", lambda empty, initial, x, n_actions: np.ones(len(initial))
    )
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check(parts[0], factors(parts[0], QUICK), *parts[1:])


@pytest.mark.parametrize("u", [1e-9, 1e12])
def test_an_ascent_knows_nothing_of_parameters_that_no_row_depends_on(u) -> None:
    """One slope an action and no intercept, many actions: with small contexts a short climb gave
    untried ones narrow bounds.
    """
    from gedppl.learning.programs import ProgramLearner

    rng = np.random.default_rng(0)
    x, a = u * rng.uniform(0.5, 1.0, (30, 1)), np.zeros(30, np.int64)
    model = Heteroscedastic(40, arm_features(40), shared=True)
    learner = (
        ProgramLearner.start(model, delta=0.05)
        .absorb(x, a, 0.3 * x[:, 0] / u + 0.1 * rng.standard_normal(30))
        .refit()
    )
    found = learner.bounds(ged.mean(-5, 5), x[:1], 40)
    assert np.all(found.lower[0, 1:] == -5.0)
    assert np.all(found.upper[0, 1:] == 5.0)
    assert found.method == "ascent"
