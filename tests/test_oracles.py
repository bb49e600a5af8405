"""Oracles against references written here, and every check against a fit that it must catch."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from gedppl.errors import ParameterError, SettingError
from gedppl.learning import boundary, fits
from gedppl.learning.boundary import lbfgs
from gedppl.learning.fits import (
    Fit,
    Objective,
    WorkingPrior,
    assess,
    decrement,
    keep_good,
    newton,
    positive_definite,
)
from gedppl.learning.likelihoods import ProgramLikelihood
from gedppl.learning.oracles import (
    Oracle,
    auto,
    believe,
    fit_least_squares,
    fit_score_equations,
    form_of,
    least_squares,
    maximum_likelihood,
    mle,
    score_equations,
)
from gedppl.learning.variational import SVI
from gedppl.programs.contract import LinearPredictor, Parametric
from gedppl.programs.guides import GuideFit, GuideSettings
from gedppl.rows import Rows

# a class written by hand: log p of a row as a function of eta = x @ theta -------------------------


class HandMade(Parametric):
    """A one-predictor class in NumPy: link "identity" (Normal, scale 0.5), "logit" or "log"
    (Poisson).
    """

    backend = "none"

    def __init__(
        self, dim: int, link: str, radius: float = np.inf, prior_sd: float | None = None
    ) -> None:
        self.dim, self.link, self.radius, self.prior_sd = dim, link, radius, prior_sd
        self.initial = np.zeros(dim)
        self.prior_free = np.full(dim, prior_sd is None)
        family = {"identity": "Normal", "logit": "Bernoulli", "log": "Poisson"}[link]
        self.predictor: LinearPredictor | None = LinearPredictor(
            family,
            link,
            lambda x, a: x,
            lambda x, a: np.zeros(len(x)),
            lambda x, a: {"scale": np.full(len(x), 0.5)},
        )

    def terms(self, eta: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if self.link == "identity":
            return (
                -2 * (y - eta) ** 2 - np.log(0.5) - 0.5 * np.log(2 * np.pi),
                4 * (y - eta),
                np.full(len(y), 4.0),
            )
        if self.link == "logit":
            p = expit(eta)
            return -np.logaddexp(0, np.where(y > 0, -eta, eta)), y - p, p * (1 - p)
        from scipy.stats import poisson

        return poisson.logpmf(y, np.exp(eta)), y - np.exp(eta), np.exp(eta)

    def total_grad(self, theta: Any, rows: Any, weights: Any = None) -> Any:
        w = np.ones(rows.n) if weights is None else weights
        value, score, _ = self.terms(rows.x @ theta[0], rows.y)
        return np.array([w @ value]), ((w * score) @ rows.x)[None]

    def total_hessian(self, theta: Any, rows: Any, weights: Any = None) -> Any:
        w = np.ones(rows.n) if weights is None else weights
        return -(rows.x * (w * self.terms(rows.x @ theta, rows.y)[2])[:, None]).T @ rows.x

    def log_prior(self, theta: Any) -> Any:
        return 0.0 if self.prior_sd is None else -0.5 * np.sum((theta / self.prior_sd) ** 2)

    def log_prior_grad_hessian(self, theta: Any) -> Any:
        weight = 0.0 if self.prior_sd is None else self.prior_sd**-2.0
        return -weight * theta, -weight * np.eye(self.dim)

    def draw_prior(self, n: int, seed: int) -> Any:
        return np.random.default_rng(seed).normal(size=(n, self.dim))

    def inside(self, theta: Any) -> Any:
        return np.linalg.norm(theta, axis=-1) <= self.radius


class Opaque(HandMade):
    """The same without a known predictor, so that only the general route is open."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.predictor = None


class LostConstant(HandMade):
    """Gradient and curvature are right, but a normalising constant has become NaN."""

    def total_grad(self, theta: Any, rows: Any, weights: Any = None) -> Any:
        value, grad = super().total_grad(theta, rows, weights)
        return value * np.nan, grad


class TwoHills(Opaque):
    """Not concave: log p = log of a mixture of N(theta, 0.3) (weight 0.3) and N(-theta, 0.3), in
    one dimension.
    """

    def __init__(self) -> None:
        super().__init__(1, "identity")
        self.initial = np.array([-0.7])

    def total_grad(self, theta: Any, rows: Any, weights: Any = None) -> Any:
        t = float(theta[0, 0])

        def value(t: float) -> float:
            parts = [np.log(w) - 0.5 * ((rows.y - m) / 0.3) ** 2 for w, m in ((0.3, t), (0.7, -t))]
            return float(np.logaddexp(*parts).sum())

        return np.array([value(t)]), np.array([[(value(t + 1e-6) - value(t - 1e-6)) / 2e-6]])

    def total_hessian(self, theta: Any, rows: Any, weights: Any = None) -> Any:
        slope = [
            self.total_grad(np.array([[theta[0] + step]]), rows)[1][0, 0] for step in (1e-4, -1e-4)
        ]
        return np.array([[(slope[0] - slope[1]) / 2e-4]])


def draw_rows(link: str, n: int, dim: int, seed: int = 0) -> tuple[Rows, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, theta = rng.normal(size=(n, dim)), rng.normal(size=dim) * 0.6
    eta = x @ theta
    y = {
        "identity": lambda: eta + 0.5 * rng.normal(size=n),
        "logit": lambda: (rng.random(n) < expit(eta)).astype(float),
        "log": lambda: rng.poisson(np.exp(eta)).astype(float),
    }[link]()
    return Rows.of(x, np.zeros(n, int), y), theta


def reference(
    cls: HandMade, rows: Rows, weights: np.ndarray | None = None, ridge: float = 0.0
) -> np.ndarray:
    """An independent optimiser (scipy BFGS, tight tolerance) on the hand-written log-likelihood."""

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        value, grad = cls.total_grad(theta[None], rows, weights)
        return -value[0] + 0.5 * ridge * theta @ theta, -grad[0] + ridge * theta

    return minimize(loss, np.zeros(cls.dim), jac=True, method="BFGS", options={"gtol": 1e-7}).x


SEPARABLE = Rows.of(
    np.array([[1.0, -2.0], [1.0, -1.0], [1.0, 1.0], [1.0, 2.0]]),
    np.zeros(4, int),
    np.array([0.0, 0, 1, 1]),
)

# accuracy -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("link", ["identity", "logit", "log"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ridge", [0.0, 0.7])
def test_every_route_finds_the_reference_optimum(link: str, weighted: bool, ridge: float) -> None:
    rows, _ = draw_rows(link, 150, 3)
    weights = (np.arange(150) >= 40).astype(float) if weighted else None
    prior = WorkingPrior(np.zeros(3), np.full(3, ridge)) if ridge else None
    cls = HandMade(3, link)
    expected = reference(cls, rows, weights, ridge)
    routes = [maximum_likelihood, fit_score_equations] + (
        [fit_least_squares] if link == "identity" else []
    )
    for route in routes:
        fit = route(cls, rows, weights=weights, prior=prior)
        assert fit.ok, fit.status
        np.testing.assert_allclose(fit.theta, expected, atol=2e-6)
        value, _ = cls.total_grad(fit.theta[None], rows, weights)
        assert fit.log_likelihood == pytest.approx(value[0], rel=1e-12)
        np.testing.assert_allclose(
            fit.information, -cls.total_hessian(fit.theta, rows, weights), rtol=1e-9
        )
        np.testing.assert_allclose(fit.precision, fit.information + ridge * np.eye(3), rtol=1e-9)
        assert fit.n == (110 if weighted else 150)
        assert fit.rank == 3


def test_closed_form_least_squares_is_the_normal_equations() -> None:
    rows, _ = draw_rows("identity", 60, 4)
    fit = fit_least_squares(HandMade(4, "identity"), rows)
    np.testing.assert_allclose(
        fit.theta, np.linalg.lstsq(rows.x, rows.y, rcond=None)[0], atol=1e-12
    )
    assert fit.eps_opt_proved
    assert fit.eps_opt < 1e-20


def test_lbfgs_takes_over_beyond_sixty_parameters() -> None:
    rows, _ = draw_rows("logit", 800, 70)
    cls = Opaque(70, "logit")
    prior = WorkingPrior.weak(cls)
    fit = maximum_likelihood(cls, rows, prior=prior)
    assert fit.ok
    assert "L-BFGS" in fit.status
    newton_fit = fit_score_equations(HandMade(70, "logit"), rows, prior=prior)
    np.testing.assert_allclose(fit.theta, newton_fit.theta, atol=1e-6)


def climbed_in(unit: np.ndarray) -> np.ndarray:
    """Where L-BFGS ends with each column of the contexts in its unit (D,), back in plain ones."""
    rows, _ = draw_rows("logit", 400, 70)
    cls = Opaque(70, "logit")
    prior = WorkingPrior.weak(cls, unit=1 / unit)
    end, _ = lbfgs(
        Objective(cls, form_of(cls), Rows.of(rows.x * unit, rows.a, rows.y), prior=prior),
        np.zeros(70),
    )
    return end * unit


UNEVEN = np.where(np.arange(70) % 2, 1e-9, 1e12)


def test_lbfgs_ends_at_the_same_place_in_any_unit() -> None:
    np.testing.assert_allclose(climbed_in(UNEVEN), climbed_in(np.ones(70)), atol=1e-6)


def test_lbfgs_in_the_parameters_own_numbers_would_end_elsewhere(monkeypatch) -> None:
    monkeypatch.setattr(boundary, "units", lambda matrix: np.ones(len(matrix)))
    assert np.abs(climbed_in(UNEVEN) - climbed_in(np.ones(70))).max() > 0.1


def test_the_class_own_prior_joins_only_beside_a_working_prior() -> None:
    rows, _ = draw_rows("logit", 50, 2)
    cls = HandMade(2, "logit", prior_sd=0.5)
    working = WorkingPrior.weak(cls)
    assert not working.precision.any()  # both coordinates bring a prior
    for route in (maximum_likelihood, fit_score_equations):
        np.testing.assert_allclose(
            route(cls, rows, prior=working).theta, reference(cls, rows, ridge=4.0), atol=2e-6
        )
        np.testing.assert_allclose(route(cls, rows).theta, reference(cls, rows), atol=2e-6)
    np.testing.assert_allclose(
        fit_least_squares(HandMade(2, "identity", prior_sd=0.5), rows, prior=working).theta,
        np.linalg.solve(4 * rows.x.T @ rows.x + 4 * np.eye(2), 4 * rows.x.T @ rows.y),
        atol=1e-10,
    )


def test_the_slopes_of_a_prior_are_not_asked_for_again_at_the_same_place() -> None:
    """In Pyro each answer costs more than the rows do. A check returns to the prior's centre at
    the end.
    """
    rows, _ = draw_rows("logit", 50, 2)
    cls, asked = HandMade(2, "logit", prior_sd=0.5), list[bytes]()
    slopes = cls.log_prior_grad_hessian
    cls.log_prior_grad_hessian = lambda theta: asked.append(theta.tobytes()) or slopes(theta)
    fit = fit_score_equations(cls, rows, prior=WorkingPrior.weak(cls))
    assert fit.ok
    assert len(asked) > 2
    assert all(one != other for one, other in pairwise(asked))


def test_a_warm_start_takes_fewer_steps() -> None:
    rows, _ = draw_rows("logit", 400, 5)
    cls = HandMade(5, "logit")
    cold = fit_score_equations(cls, Rows.of(rows.x[:390], rows.a[:390], rows.y[:390]))
    steps = [
        int(fit_score_equations(cls, rows, start=start).status.split()[2]) for start in (None, cold)
    ]
    assert steps[1] < steps[0]


def test_several_starts_find_the_higher_hill() -> None:
    rng = np.random.default_rng(3)
    y = np.where(rng.random(200) < 0.3, 1.0, -1.0) + 0.3 * rng.normal(size=200)
    rows = Rows.of(np.zeros((200, 1)), np.zeros(200, int), y)
    stuck = maximum_likelihood(TwoHills(), rows)
    best = maximum_likelihood(TwoHills(), rows, starts=6)
    assert stuck.theta[0] < 0 < best.theta[0]
    assert best.log_likelihood > stuck.log_likelihood + 10


# the deficit bound --------------------------------------------------------------------------------


@pytest.mark.parametrize("link", ["identity", "logit", "log"])
def test_eps_opt_bounds_the_true_deficit(link: str) -> None:
    rows, _ = draw_rows(link, 80, 3, seed=1)
    cls = HandMade(3, link)
    objective = form_of(cls).append(rows.x, rows.a, rows.y)
    best = fit_score_equations(cls, rows)
    rng = np.random.default_rng(0)
    ratios = []
    for size in np.geomspace(0.001, 0.5, 40):
        theta = best.theta + size * rng.normal(size=3)
        _, grad = objective.at(theta)
        bound, proved = objective.deficit(theta, grad, objective.information(theta))
        deficit = best.log_likelihood - objective.at(theta)[0]
        if proved:
            assert bound >= deficit - 1e-9
            ratios.append(bound / deficit)
        else:
            assert bound == np.inf
    assert len(ratios) > 15
    assert min(ratios) < 1.05  # and it is sharp for small deficits


def test_half_the_decrement_alone_would_not_be_a_bound() -> None:
    """The negative control of the last test: 1/2 lam^2 falls short of the true deficit at some
    of the same points.
    """
    rows, _ = draw_rows("log", 80, 3, seed=1)
    cls = HandMade(3, "log")
    best = fit_score_equations(cls, rows)
    short = 0
    for size in np.linspace(-0.5, 0.5, 21):
        theta = best.theta + size
        value, grad = cls.total_grad(theta[None], rows)
        short += (
            decrement(grad[0], -cls.total_hessian(theta, rows))
            < best.log_likelihood - value[0] - 1e-9
        )
    assert short > 0


def test_a_map_estimate_reports_what_the_prior_cost() -> None:
    rows, _ = draw_rows("logit", 60, 2)
    cls = HandMade(2, "logit")
    top = fit_score_equations(cls, rows)
    shrunk = fit_score_equations(cls, rows, prior=WorkingPrior(np.zeros(2), np.full(2, 2.0)))
    deficit = top.log_likelihood - shrunk.log_likelihood
    assert shrunk.eps_opt_proved
    assert deficit <= shrunk.eps_opt <= 1.5 * deficit


# degenerate data ----------------------------------------------------------------------------------


@pytest.mark.parametrize("route", [maximum_likelihood, fit_score_equations])
def test_separable_data_are_reported_without_a_prior_and_sane_with_one(route: Any) -> None:
    cls = HandMade(2, "logit")
    fit = route(cls, SEPARABLE)
    assert not fit.ok
    assert "separable" in fit.status
    sane = route(cls, SEPARABLE, prior=WorkingPrior.weak(cls))
    assert sane.ok, sane.status
    assert 1 < np.linalg.norm(sane.theta) < 10
    np.testing.assert_allclose(sane.theta, reference(cls, SEPARABLE, ridge=1 / 25), atol=1e-5)


def test_one_action_untried_still_gives_a_map_estimate() -> None:
    """Before every action was tried: the unseen coordinate stays at the prior, the seen one is
    all ones.
    """
    rows = Rows.of(np.array([[1.0, 0.0]] * 5), np.zeros(5, int), np.ones(5))
    cls = HandMade(2, "logit")
    fit = auto()(cls, rows)
    assert fit.ok
    assert fit.rank == 1
    assert "determine 1 of 2 directions" in fit.status
    assert fit.theta[1] == pytest.approx(0.0, abs=1e-12)
    assert 1 < fit.theta[0] < 10


@pytest.mark.parametrize("link", ["identity", "logit", "log"])
def test_collinear_features_are_no_failure(link: str) -> None:
    rows, _ = draw_rows(link, 80, 2)
    doubled = Rows.of(np.concatenate([rows.x, rows.x[:, :1]], axis=1), rows.a, rows.y)
    routes = [maximum_likelihood, fit_score_equations] + (
        [fit_least_squares] if link == "identity" else []
    )
    single = fit_score_equations(HandMade(2, link), rows)
    for route in routes:
        fit = route(HandMade(3, link), doubled)
        assert fit.ok, fit.status
        assert fit.rank == 2
        assert "determine 2 of 3 directions" in fit.status
        assert fit.log_likelihood == pytest.approx(single.log_likelihood, abs=1e-8)
        # the shortest solution
        np.testing.assert_allclose(fit.theta[[0, 2]], single.theta[0] / 2, atol=1e-6)
        assert np.linalg.eigvalsh(fit.precision).min() > 0


def test_no_rows_gives_the_prior() -> None:
    cls, none = HandMade(2, "logit"), Rows.empty(2)
    for route in (maximum_likelihood, fit_score_equations):
        fit = route(cls, none, prior=WorkingPrior(np.array([1.0, 2.0]), np.array([1.0, 4.0])))
        assert fit.ok
        np.testing.assert_allclose(fit.theta, [1.0, 2.0])
        np.testing.assert_allclose(fit.precision, np.diag([1.0, 4.0]))
        assert (fit.n, fit.rank, fit.log_likelihood) == (0, 0, 0.0)
        assert route(cls, none).ok
    rows, _ = draw_rows("logit", 10, 2)
    assert maximum_likelihood(cls, rows, weights=np.zeros(10)).n == 0


def test_nan_outcomes_are_survived() -> None:
    rows, _ = draw_rows("logit", 30, 2)
    bad = rows.append(np.ones((1, 2)), [0], [np.nan])
    cls = HandMade(2, "logit")
    old = fit_score_equations(cls, rows)
    for oracle in (mle(), score_equations(), auto()):
        new = oracle(cls, bad, start=old)
        assert not new.ok
        assert "not finite" in new.status
        kept = keep_good(new, old)
        assert kept.kept
        assert kept.ok
        assert kept.theta is old.theta
        assert "kept the last good fit, of 30 rows" in kept.status
        assert keep_good(new, kept).status == kept.status  # does not pile up


def test_keep_good_prefers_a_good_new_fit_and_has_no_choice_without_an_old_one() -> None:
    rows, _ = draw_rows("logit", 30, 2)
    good = fit_score_equations(HandMade(2, "logit"), rows)
    bad = replace(good, ok=False, status="bad")
    assert keep_good(good, bad) is good
    assert keep_good(bad, None) is bad
    assert keep_good(bad, bad) is bad


# bounds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", [maximum_likelihood, fit_score_equations])
def test_a_maximum_outside_the_bounds_moves_to_their_best_boundary_point(route: Any) -> None:
    rows, _ = draw_rows("logit", 200, 3, seed=5)
    free = fit_score_equations(HandMade(3, "logit"), rows)
    radius = 0.5 * float(np.linalg.norm(free.theta))
    cls = HandMade(3, "logit", radius=radius)
    fit = route(cls, rows)
    assert fit.ok, fit.status
    assert fit.at_bounds
    assert "outside the declared bounds" in fit.status
    assert np.linalg.norm(fit.theta) == pytest.approx(radius, rel=1e-9)
    best = minimize(
        lambda t: -cls.total_grad(t[None], rows)[0][0],
        0.9 * radius * free.theta / np.linalg.norm(free.theta),
        jac=lambda t: -cls.total_grad(t[None], rows)[1][0],
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda t: radius**2 - t @ t, "jac": lambda t: -2 * t},
        options={"ftol": 1e-13},
    )
    assert fit.log_likelihood == pytest.approx(-best.fun, abs=1e-6)


# every check catches what it is for, and without it the bad fit gets through ----------------------


def bad_fits() -> dict[str, tuple[Any, Rows, np.ndarray]]:
    rows, _ = draw_rows("logit", 60, 2)
    good = fit_score_equations(HandMade(2, "logit"), rows).theta
    hills = Rows.of(np.zeros((50, 1)), np.zeros(50, int), np.where(np.arange(50) < 25, 1.0, -1.0))
    even = TwoHills()
    return {
        "finite": (LostConstant(2, "logit"), rows, good),
        "bounds": (HandMade(2, "logit", radius=0.1), rows, good),
        "runaway": (HandMade(2, "logit"), SEPARABLE, np.array([0.0, 24.0])),
        "curvature": (even, hills, np.array([stationary_between_the_hills(even, hills)])),
        "gradient": (HandMade(2, "logit"), rows, good + 0.1),
    }


def stationary_between_the_hills(cls: TwoHills, rows: Rows) -> float:
    from scipy.optimize import brentq

    return float(brentq(lambda t: cls.total_grad(np.array([[t]]), rows)[1][0, 0], -0.5, 0.5))


@pytest.mark.parametrize("name", list(fits.CHECKS))
def test_each_check_catches_its_bad_fit_and_nothing_else_does(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls, rows, theta = bad_fits()[name]
    nothing = np.zeros((cls.dim, cls.dim))
    claim = Fit(theta, 0.0, nothing, nothing, ok=True, status="success!", n=rows.n)
    caught = believe(cls, claim, rows)
    assert not caught.ok
    assert caught.status != "success!"
    monkeypatch.setattr(
        fits, "CHECKS", {key: check for key, check in fits.CHECKS.items() if key != name}
    )
    assert believe(cls, claim, rows).ok


def test_believe_recomputes_what_a_fit_claims() -> None:
    rows, _ = draw_rows("logit", 60, 2)
    cls = HandMade(2, "logit")
    good = fit_score_equations(cls, rows)
    lie = replace(
        good, information=100 * good.information, precision=100 * good.precision, log_likelihood=0.0
    )
    honest = believe(cls, lie, rows)
    assert honest.ok
    np.testing.assert_allclose(honest.information, good.information, rtol=1e-9)
    assert honest.log_likelihood == pytest.approx(good.log_likelihood)


@pytest.mark.parametrize("size", [15.0, 24.0, 40.0, 597.0, 1e4])
def test_a_separable_fit_is_recognised_wherever_a_solver_stopped(size: float) -> None:
    cls = HandMade(2, "logit")
    objective = Objective(cls, ProgramLikelihood(cls, SEPARABLE), SEPARABLE)
    assert "separable" in assess(objective, np.array([0.0, size]), "x").status


def test_large_units_are_not_taken_for_separation() -> None:
    rows, _ = draw_rows("identity", 50, 2)
    for unit in (1e-4, 1.0, 1e4):
        scaled = Rows.of(rows.x * unit, rows.a, rows.y)
        assert maximum_likelihood(HandMade(2, "identity"), scaled).ok
        rescaled = Rows.of(rows.x, rows.a, rows.y * unit)
        assert maximum_likelihood(HandMade(2, "identity"), rescaled).ok


# SVI's own part, with a backend that returns what it is told --------------------------------------


class ToldRunner:
    def __init__(self, answers: list[Any]) -> None:
        self.answers, self.calls = answers, []

    def fit(self, rows: Any, weights: Any, prior: Any, state: Any, steps: int) -> GuideFit:
        self.calls.append((state, steps))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Named(HandMade):
    """With a flatten: one site, theta, which must not be huge."""

    def flatten(self, params: Any) -> Any:
        if np.abs(params["theta"]).max() > 100:
            raise ParameterError("parameter 'theta' lies outside its constraint")
        return np.asarray(params["theta"], float)


def told(*answers: Any) -> tuple[Any, Any, Rows, ToldRunner]:
    rows, _ = draw_rows("logit", 80, 2)
    cls, runner, settings = (
        Named(2, "logit"),
        ToldRunner(list(answers)),
        GuideSettings("normal", 0.05, 1, 4, 0),
    )
    cls.guide_loops = {settings: runner}
    return Oracle("SVI", SVI(settings, 100, 20), {}), cls, rows, runner


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (GuideFit({"theta": np.zeros(2)}, None, {}, np.nan), "the ELBO is nan after 100 steps"),
        (
            GuideFit({"theta": np.full(2, 1e9)}, None, {}, 1.0),
            "the guide left the parameters' constraints",
        ),
        (GuideFit({"theta": np.full(2, 3.0)}, None, {}, 1.0), "not converged"),
        (ValueError("invalid scale"), "the model broke off: invalid scale"),
    ],
)
def test_svi_that_goes_wrong_is_a_fit_that_says_so(answer: Any, message: str) -> None:
    oracle, cls, rows, _ = told(answer)
    fit = oracle(cls, rows)
    assert not fit.ok
    assert message in fit.status
    good = mle()(cls, rows)
    assert keep_good(fit, good).theta is good.theta


def test_svi_starts_warm_and_afresh_when_that_fails() -> None:
    rows, _ = draw_rows("logit", 80, 2)
    best = mle()(HandMade(2, "logit"), rows).theta
    right = GuideFit({"theta": best}, {"theta": np.tile(best, (4, 1))}, {"loc": best}, 1.0)
    wrong = GuideFit({"theta": best + 3}, {"theta": np.tile(best, (4, 1))}, {"loc": best}, 1.0)
    oracle, cls, rows, runner = told(right, wrong, right)
    first = oracle(cls, rows)
    second = oracle(cls, rows, start=first)
    assert first.ok
    assert second.ok
    assert [(state is None, steps) for state, steps in runner.calls] == [
        (True, 100),
        (False, 20),
        (True, 100),
    ]
    assert first.draws is not None
    assert first.draws.shape == (4, 2)
    assert oracle(cls, Rows.empty(2)).n == 0  # nothing to run on
    mean = GuideFit(None, {"theta": best + np.array([[0.1, 0], [-0.1, 0]])}, {}, 1.0)
    oracle, cls, rows, _ = told(mean)
    # a guide without a median: the mean of its draws
    np.testing.assert_allclose(oracle(cls, rows).theta, best)


# settings -----------------------------------------------------------------------------------------


def test_oracles_by_name() -> None:
    rows, _ = draw_rows("identity", 40, 2)
    assert "least squares" in auto()(HandMade(2, "identity"), rows).status
    assert "least squares" in least_squares()(HandMade(2, "identity"), rows, prior=None).status
    assert "Newton" in auto()(Opaque(2, "identity"), rows).status
    np.testing.assert_allclose(
        auto()(HandMade(2, "identity"), rows).theta,
        mle()(HandMade(2, "identity"), rows).theta,
        atol=1e-9,
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c, r: fit_least_squares(c, r), "least squares needs a class with Normal outcomes"),
        (lambda c, r: fit_score_equations(Opaque(2, "logit"), r), "no linear predictor"),
        (
            lambda c, r: maximum_likelihood(c, r, weights=np.ones(3)),
            "one number for each of the 10 rows",
        ),
        (
            lambda c, r: maximum_likelihood(c, r, weights=np.full(10, -1.0)),
            "weights must be finite and >= 0",
        ),
        (
            lambda c, r: maximum_likelihood(c, r, starts=0),
            "starts and max_steps must be at least 1",
        ),
        (
            lambda c, r: maximum_likelihood(c, r, prior=WorkingPrior(np.zeros(3), np.ones(3))),
            "has 3 coordinates",
        ),
        (lambda c, r: mle()(c, r, prior="strong"), "prior must be a WorkingPrior, None or 'weak'"),
        (lambda c, r: WorkingPrior(np.zeros(2), np.ones(3)), "of one shape"),
        (lambda c, r: WorkingPrior(np.zeros(2), -np.ones(2)), "precisions >= 0"),
        (lambda c, r: WorkingPrior.weak(c, scale=0.0), "scale must be a positive number"),
    ],
)
def test_bad_settings_have_named_errors(call: Any, message: str) -> None:
    rows, _ = draw_rows("logit", 10, 2)
    with pytest.raises(SettingError, match=message):
        call(HandMade(2, "logit"), rows)


def test_positive_definite_leaves_a_good_matrix_alone() -> None:
    good = np.array([[2.0, 0.3], [0.3, 1.0]])
    assert positive_definite(good) is good
    assert np.linalg.eigvalsh(positive_definite(np.array([[1.0, 0.0], [0.0, -1.0]]))).min() > 0


def test_a_point_where_numbers_run_out_is_left_again() -> None:
    """The slope leads there; the curvature is no number, so that nothing can be said of it."""
    found, how = newton(
        lambda t: (-0.5 * float((t[0] - 4.0) ** 2), 4.0 - t),
        lambda t: np.eye(1) if abs(t[0]) < 1.0 else np.full((1, 1), np.nan),
        np.zeros(1),
    )
    assert found.tolist() == [0.0]
    assert how == "stopped after 1 Newton steps at a value that is not finite"
