"""Exactness is proved by the object itself: what a program does decides, never what it is
called.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
import pytest
import scipy.stats

import gedppl as ged
from gedppl import errors
from gedppl.programs import identity
from gedppl.programs.affine import Level, levels
from gedppl.programs.contract import density_class
from tests.optional_pyro import pd, pyro, torch

RNG = np.random.default_rng(3)
X, A = RNG.normal(size=(6, 3)), np.array([0, 1, 0, 1, 0, 1])


# writes through views (Pyro) ----------------------------------------------------------------------


def written_coefficient(x, a, y=None):
    t = pyro.param("t", torch.zeros(3))
    w = t.clone()
    w[0] = t[1] * t[2]
    pyro.sample("y", pd.Normal(x @ w, 1.0), obs=y)


def written_scale(x, a, y=None):
    t = pyro.param("t", torch.zeros(3))
    s = torch.ones(2)
    s[1] = torch.exp(t[0])
    pyro.sample("y", pd.Normal(x @ t, s[a]), obs=y)


def written_through_a_view_of_a_view(x, a, y=None):
    t = pyro.param("t", torch.zeros(3))
    w = t.clone()
    w.view(3, 1)[1:].mul_(t[0])
    pyro.sample("y", pd.Poisson(torch.exp(x @ w)), obs=y)


@pytest.mark.parametrize(
    "model", [written_coefficient, written_scale, written_through_a_view_of_a_view]
)
def test_a_write_through_a_view_is_part_of_what_the_program_does(model) -> None:
    """By names of values alone these look affine in t with a fixed scale: eta = 0 where the
    first program gives 6.
    """
    cls = density_class(model, example=(X, A))
    assert cls.predictor is None
    theta = np.array([1.0, 2.0, 3.0])
    if model is written_coefficient:
        expected = scipy.stats.norm.logpdf(np.ones(6), X @ [6.0, 2.0, 3.0], 1.0)
        np.testing.assert_allclose(
            cls.log_likelihood(theta, X, A, np.ones(6)), expected, rtol=1e-12
        )


def test_a_write_that_stays_affine_is_proved_and_right() -> None:
    def model(x, a, y=None):
        t = pyro.param("t", torch.zeros(3))
        w = torch.zeros(3)
        w[1:] = 2.0 * t[1:]
        pyro.sample("y", pd.Normal(x @ w, 1.0), obs=y)

    cls = density_class(model, example=(X, A))
    assert cls.predictor is not None
    np.testing.assert_allclose(cls.predictor.features(X, A), X * [0.0, 2.0, 2.0], atol=1e-15)


def _rounded(t: torch.Tensor) -> torch.Tensor:
    whole = torch.zeros(3, dtype=torch.int64)
    whole[1:] = t[1:]
    return whole.double()


def _narrowed(t: torch.Tensor) -> torch.Tensor:
    short = torch.zeros(3, dtype=torch.float32)
    short[1:] = t[1:]
    return short.double()


WRITES = {
    "into whole numbers": (_rounded, Level.OTHER),
    "into a shorter type": (_narrowed, Level.OTHER),
    "a sum of whole numbers": (lambda t: 1.5 * t.sum(dtype=torch.int64), Level.OTHER),
    "of a constant over theta": (lambda t: t.clone().fill_(2.0), Level.FREE),
    "of zeros in theta's shape": (lambda t: torch.zeros_like(t), Level.FREE),
    "at places": (
        lambda t: torch.zeros(3, dtype=t.dtype).index_put((torch.tensor([0, 2]),), t[:2]),
        Level.AFFINE,
    ),
}


@pytest.mark.parametrize(("function", "level"), WRITES.values(), ids=WRITES)
def test_levels_of_what_is_written(function, level) -> None:
    # skips where there is no torch, before what needs it is imported
    theta = torch.zeros(3, dtype=torch.float64)
    from gedppl.programs.torch_reader import listing

    assert levels(listing(lambda t: [function(t)], theta)) == [level]


def test_a_program_that_writes_into_its_parameter_does_not_write_into_theta() -> None:
    def model(x, a, y=None):
        w = pyro.sample("w", pd.Normal(torch.zeros(3), 1.0).to_event(1))
        w[0] = 5.0
        pyro.sample("y", pd.Normal(x @ w, 1.0), obs=y)

    cls = density_class(model, example=(X, A))
    theta = np.array([1.0, 2.0, 3.0])
    expected = scipy.stats.norm.logpdf(np.ones(6), X @ [5.0, 2.0, 3.0], 1.0)
    for _ in range(2):
        np.testing.assert_allclose(
            cls.log_likelihood(theta, X, A, np.ones(6)), expected, rtol=1e-12
        )
    np.testing.assert_array_equal(cls.unflatten(theta)["w"], theta)
    assert cls.log_prior(theta) == pytest.approx(scipy.stats.norm.logpdf(theta).sum())


def test_a_write_into_narrow_numbers_arrives() -> None:
    def model(x, a, y=None):
        w = torch.zeros(3, dtype=torch.float32)
        w[0] = pyro.param("t", torch.zeros(1))[0]
        w += 1.0
        pyro.sample("y", pd.Normal(x @ w, 1.0), obs=y)

    cls = density_class(model, example=(X, A))
    expected = scipy.stats.norm.logpdf(np.ones(6), X @ [3.0, 1.0, 1.0], 1.0)
    np.testing.assert_allclose(
        cls.log_likelihood(np.array([2.0]), X, A, np.ones(6)), expected, rtol=1e-6
    )
    assert cls.predictor is None


# a name is no proof -------------------------------------------------------------------------------


def _truncated(base: Any, xp: Any) -> type:
    """A user's Poisson of counts from one: the name, the arguments and the support of another
    density.
    """

    class Poisson(base):
        def log_prob(self, value: Any) -> Any:
            log_p = super().log_prob(value) - xp.log1p(-xp.exp(-self.rate))
            return xp.where(value == 0, -xp.inf, log_p)

        @property
        def mean(self) -> Any:
            return self.rate / (1 - xp.exp(-self.rate))

    return Poisson


def _scaled(base: Any, xp: Any) -> type:
    class Normal(base):
        def log_prob(self, value: Any) -> Any:
            return super().log_prob(0.5 * value) - 0.6931471805599453

    return Normal


def _lapsing(base: Any, xp: Any) -> type:
    class Bernoulli(base):
        def log_prob(self, value: Any) -> Any:
            p = 0.05 + 0.9 / (1 + xp.exp(-self.logits))
            return value * xp.log(p) + (1 - value) * xp.log1p(-p)

    return Bernoulli


def _moved(base: Any, xp: Any) -> type:
    class Normal(base):
        @property
        def mean(self) -> Any:
            return self.loc

        def log_prob(self, value: Any) -> Any:
            return super().log_prob(value + 1e-2)

    return Normal


STRANGERS = {
    "zero-truncated Poisson": (_truncated, "Poisson", lambda eta, xp: {"rate": xp.exp(eta)}),
    "scaled Normal": (_scaled, "Normal", lambda eta, xp: {"loc": eta, "scale": 1.0}),
    "lapsing Bernoulli": (_lapsing, "Bernoulli", lambda eta, xp: {"logits": eta}),
    "moved Normal": (_moved, "Normal", lambda eta, xp: {"loc": eta, "scale": 1.0}),
}


def _model(kind: str, backend: str, change: Any = None) -> Any:
    """A program with one affine predictor whose outcome is of a user's class."""
    make, name, arguments = STRANGERS[kind]
    if backend == "numpyro":
        base = getattr(nd, name if name != "Bernoulli" else "BernoulliLogits")
        cls = (change or make)(base, jnp)

        def model(x, a, y=None):
            eta = x @ numpyro.param("w", jnp.zeros(3))
            numpyro.sample("y", cls(**arguments(eta, jnp)), obs=y)

    else:
        cls = (change or make)(getattr(pd, name), torch)

        def model(x, a, y=None):
            eta = x @ pyro.param("w", torch.zeros(3))
            pyro.sample("y", cls(**arguments(eta, torch)), obs=y)

    return model


def _unchanged(base: Any, xp: Any) -> type:
    return type(base.__name__, (base,), {})


@pytest.mark.parametrize("backend", ["numpyro", "pyro"])
@pytest.mark.parametrize("kind", STRANGERS)
def test_a_class_is_no_family_by_its_name(kind, backend) -> None:
    cls = density_class(_model(kind, backend), example=(X, A))
    assert cls.predictor is None
    assert cls.program.family == "External"


@pytest.mark.parametrize("backend", ["numpyro", "pyro"])
@pytest.mark.parametrize("kind", STRANGERS)
def test_a_subclass_with_the_familys_log_density_is_the_family(kind, backend) -> None:
    cls = density_class(_model(kind, backend, _unchanged), example=(X, A))
    assert cls.predictor is not None
    assert cls.program.family == STRANGERS[kind][1]


def _shows_another(base: Any, xp: Any) -> type:
    """The log_prob is the base's, by `logits`; but what the object shows as `probs` is another
    number.
    """
    return type(
        "Bernoulli",
        (base,),
        {"probs": property(lambda self: 0.1 + 0.8 / (1 + xp.exp(-self.logits)))},
    )


@pytest.mark.parametrize("backend", ["numpyro", "pyro"])
def test_an_argument_that_is_not_what_the_log_density_uses_is_refused(backend) -> None:
    """Its mean is that argument, and not the mean of its log-density."""
    with pytest.raises(errors.NotADensityError, match=r"Bernoulli.mean says 0.25.*mean 0.19"):
        density_class(_model("lapsing Bernoulli", backend, _shows_another), example=(X, A))


@pytest.mark.parametrize("backend", ["numpyro", "pyro"])
def test_without_the_comparison_the_family_would_be_taken_at_its_word(backend, monkeypatch) -> None:
    monkeypatch.setattr(identity, "looks_alike", lambda ours, theirs: True)
    cls = density_class(_model("lapsing Bernoulli", backend, _shows_another), example=(X, A))
    assert cls.program.family == "Bernoulli"


@pytest.mark.parametrize("backend", ["numpyro", "pyro"])
def test_the_hidden_state_of_one_object_does_not_vouch_for_the_next(backend) -> None:
    """A class may lapse in one program and not in another: what was found of the first says
    nothing of the second.
    """
    models = []
    for lapse in (0.0, 0.2):

        def make(base: Any, xp: Any, lapse: float = lapse) -> type:
            def log_prob(self: Any, value: Any) -> Any:
                p = self.lapse + (1 - 2 * self.lapse) / (1 + xp.exp(-self.logits))
                return value * xp.log(p) + (1 - value) * xp.log1p(-p)

            return type("Bernoulli", (base,), {"lapse": lapse, "log_prob": log_prob})

        models.append(density_class(_model("lapsing Bernoulli", backend, make), example=(X, A)))
    assert models[1].predictor is None


def test_a_log_density_put_on_the_object_itself_is_seen() -> None:
    def model(x, a, y=None):
        outcome = pd.Normal(x @ pyro.param("w", torch.zeros(3)), 1.0)
        outcome.log_prob = lambda value: pd.Laplace(outcome.loc, 1.0).log_prob(value)
        pyro.sample("y", outcome, obs=y)

    with pytest.raises(errors.NotADensityError, match=r"Normal.variance says 1, .* variance 2"):
        density_class(model, example=(X, A))


@pytest.mark.parametrize("backend", ["numpyro", "pyro"])
def test_a_component_of_the_users_own_is_looked_at_too(backend) -> None:
    def model_n(x, a, y=None):
        loc = x @ numpyro.param("w", jnp.zeros(3))
        parts = _scaled(nd.Normal, jnp)(jnp.stack([loc, -loc], -1), 1.0)
        numpyro.sample(
            "y", nd.MixtureSameFamily(nd.Categorical(probs=jnp.array([0.5, 0.5])), parts), obs=y
        )

    def model_p(x, a, y=None):
        loc = x @ pyro.param("w", torch.zeros(3))
        parts = _scaled(pd.Normal, torch)(torch.stack([loc, -loc], -1), torch.ones(2))
        pyro.sample(
            "y", pd.MixtureSameFamily(pd.Categorical(probs=torch.tensor([0.5, 0.5])), parts), obs=y
        )

    with pytest.raises(errors.NotADensityError, match=r"variance says 1, .* variance 4"):
        density_class(model_n if backend == "numpyro" else model_p, example=(X, A))


@pytest.mark.parametrize("backend", ["numpyro", "pyro"])
def test_what_a_strange_class_only_inherits_is_not_asked_of_it(backend) -> None:
    """A mean inherited from the base class is that of another density: 1 instead of 1.58 at rate
    one.
    """
    cls = density_class(_model("zero-truncated Poisson", backend), example=(X, A))
    found = cls.values(ged.mean(0, 100), np.zeros(3), X, A)
    np.testing.assert_allclose(found, 1 / (1 - np.exp(-1)), rtol=1e-12)
    with pytest.raises(
        errors.FamilyError,
        match=r"Poisson has a log_prob of its own .* define "
        r"Poisson.variance",
    ):
        cls.values(ged.variance(100), np.zeros(3), X, A)
    with pytest.raises(errors.FamilyError, match=r"define Poisson.sample"):
        cls.values(ged.expected(lambda y, x, a: y, 0, 100), np.zeros(3), X, A)


# trials that the rows bring -----------------------------------------------------------------------


def trials_n(x, a, y=None):
    w = numpyro.param("w", jnp.zeros(2))
    numpyro.sample("y", nd.Binomial(total_count=x[:, 1], logits=w[a]), obs=y)


def trials_p(x, a, y=None):
    w = pyro.param("w", torch.zeros(2))
    pyro.sample("y", pd.Binomial(total_count=x[:, 1], logits=w[a]), obs=y)


def beta_trials_n(x, a, y=None):
    w = numpyro.param("w", jnp.zeros(2))
    numpyro.sample("y", nd.BetaBinomial(2 * jnp.exp(w[a]), 2.0, total_count=x[:, 1]), obs=y)


def beta_trials_p(x, a, y=None):
    w = pyro.param("w", torch.zeros(2))
    pyro.sample(
        "y", pd.BetaBinomial(2 * torch.exp(w[a]), torch.tensor(2.0), total_count=x[:, 1]), obs=y
    )


TRIALS = np.column_stack([np.ones(40), np.arange(40) % 7 + 2.0])
TRIED = np.arange(40) % 2
HITS = np.random.default_rng(5).binomial(TRIALS[:, 1].astype(int), 0.3).astype(float)


@pytest.mark.parametrize("model", [trials_n, trials_p])
def test_trials_may_differ_from_row_to_row(model) -> None:
    cls = density_class(model, example=(TRIALS, TRIED))
    assert cls.predictor is not None
    expected = scipy.stats.binom.logpmf(
        HITS, TRIALS[:, 1], 1 / (1 + np.exp(-np.array([0.2, -0.4])[TRIED]))
    )
    np.testing.assert_allclose(
        cls.log_likelihood(np.array([0.2, -0.4]), TRIALS, TRIED, HITS), expected, rtol=1e-10
    )
    found = ged.confidence_set(cls, TRIALS, TRIED, HITS).bounds(
        ged.mean(0, 10), np.array([[1.0, 4.0], [1.0, 8.0]]), 2
    )
    assert found.guaranteed
    assert found.method == "exact"
    # twice the trials, twice the mean
    np.testing.assert_allclose(2 * found.upper[0], found.upper[1], rtol=1e-9)
    assert np.all((found.lower[0] < 1.2) & (found.upper[0] > 1.2))


@pytest.mark.parametrize("model", [beta_trials_n, beta_trials_p])
def test_trials_of_a_beta_binomial_may_differ_too(model) -> None:
    cls = density_class(model, example=(TRIALS, TRIED))
    theta = np.array([0.2, -0.4])
    expected = scipy.stats.betabinom.logpmf(HITS, TRIALS[:, 1], 2 * np.exp(theta[TRIED]), 2.0)
    # the packages round
    np.testing.assert_allclose(cls.log_likelihood(theta, TRIALS, TRIED, HITS), expected, rtol=2e-6)


@pytest.mark.parametrize("model", [trials_n, trials_p, beta_trials_n, beta_trials_p])
def test_a_part_of_a_trial_is_refused(model) -> None:
    cls = density_class(model, example=(TRIALS, TRIED))
    for trials in (2.5, -1.0):
        x = TRIALS.copy()
        x[3, 1] = trials
        said = rf"row 3 has {trials} trials, .* whole number"
        with pytest.raises(errors.TrialsError, match=said):
            cls.log_likelihood(np.zeros(2), x, TRIED, np.zeros(40))
        with pytest.raises(errors.TrialsError, match="row 0 has"):
            cls.values(ged.mean(0, 10), np.zeros((1, 2)), x[3:4], TRIED[3:4])


# the outcome is observed, and nothing else --------------------------------------------------------


def _pair(mean: Any, prior: Any = None) -> list[Any]:
    """One model in both PPLs whose mean is mean(x @ w, y, xp), and the prior's centre prior(y,
    xp) if there is one.
    """

    def in_numpyro(x, a, y=None):
        centre = 0.0 if prior is None else prior(y, jnp)
        w = numpyro.sample("w", nd.Normal(centre * jnp.ones(3), 1.0).to_event(1))
        numpyro.sample("y", nd.Normal(mean(x @ w, y, jnp), 1.0), obs=y)

    def in_pyro(x, a, y=None):
        centre = 0.0 if prior is None else prior(y, torch)
        w = pyro.sample("w", pd.Normal(centre * torch.ones(3), 1.0).to_event(1))
        pyro.sample("y", pd.Normal(mean(x @ w, y, torch), 1.0), obs=y)

    return [in_numpyro, in_pyro]


PEEKING = {
    "in its own mean": (
        _pair(lambda eta, y, xp: eta if y is None else eta + 0.3 * y),
        "computed from y itself",
    ),
    "always": (_pair(lambda eta, y, xp: 0.5 * (eta + y)), "computed from y itself"),
    "far out only": (
        _pair(lambda eta, y, xp: xp.where(y > 1e9, eta, 2.0 * eta)),
        "computed from y itself",
    ),
    "by its presence": (
        _pair(lambda eta, y, xp: eta if y is None else eta + 1.0),
        "another one when y is given",
    ),
    "in a prior": (
        _pair(lambda eta, y, xp: eta, lambda y, xp: 0.0 if y is None else y.mean()),
        "computed from y itself",
    ),
}


@pytest.mark.parametrize("backend", [0, 1], ids=["numpyro", "pyro"])
@pytest.mark.parametrize(("models", "message"), PEEKING.values(), ids=PEEKING)
def test_a_model_that_uses_its_outcome_is_refused(models, message, backend) -> None:
    with pytest.raises(errors.OutcomeUsedError, match=message):
        density_class(models[backend], example=(X, A))


HONEST = {
    "its shape": _pair(lambda eta, y, xp: eta + (0.0 if y is None else 0.0 * y.shape[0])),
    "a branch that says the same": _pair(lambda eta, y, xp: eta + 1.0 if y is None else 1.0 + eta),
    "an outcome that must be there": _pair(lambda eta, y, xp: eta + 0.0 * len(y)),
}


@pytest.mark.parametrize("backend", [0, 1], ids=["numpyro", "pyro"])
@pytest.mark.parametrize("models", HONEST.values(), ids=HONEST)
def test_a_model_may_look_at_what_is_not_the_outcomes_value(models, backend) -> None:
    assert density_class(models[backend], example=(X, A)).predictor is not None


def test_a_pyro_program_without_a_fixed_graph_is_tried_with_other_outcomes() -> None:
    def model(x, a, y=None):
        w = pyro.param("w", torch.zeros(3))
        eta = x @ w + (1.0 if float(w.sum()) > 100 else 0.0)
        pyro.sample("y", pd.Normal(eta + (0.0 if y is None else 0.3 * y), 1.0), obs=y)

    with pytest.raises(errors.OutcomeUsedError, match="computed from y itself"):
        density_class(model, example=(X, A))
