"""Classes whose likelihoods cannot be compared, values that are no values of the density, and
expectations that nobody can compute for certain: refused by name, or not guaranteed.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
import pytest
from scipy.stats import norm

import gedppl as ged
from gedppl.errors import ModelError, NotADensityError
from gedppl.learning import finite, learner_for, program_bounds
from gedppl.programs import finite_class, identity, lowering
from tests.optional_pyro import needs_pyro, pd, pyro, torch

ROW = np.zeros((1, 1)), np.zeros(1, np.int64)
BACKENDS = [0, pytest.param(1, marks=needs_pyro)]


# chances and densities ----------------------------------------------------------------------------


def coin(x, a, y=None):
    p = numpyro.param("p", 0.5)
    numpyro.sample("y", nd.Bernoulli(p + 0.0 * x[:, 0]), obs=y)


def spike(x, a, y=None):
    p = numpyro.param("p", 0.5)
    numpyro.sample("y", nd.Normal(p + 0.0 * x[:, 0], 0.002), obs=y)


def coin_p(x, a, y=None):
    p = pyro.param("p", torch.tensor(0.5))
    pyro.sample("y", pd.Bernoulli(p + 0.0 * x[:, 0]), obs=y)


def spike_p(x, a, y=None):
    p = pyro.param("p", torch.tensor(0.5))
    pyro.sample("y", pd.Normal(p + 0.0 * x[:, 0], 0.002), obs=y)


def a_coin_and_a_spike(backend: int = 0):
    first, second = ((coin, spike), (coin_p, spike_p))[backend]
    return ged.finite_class([(first, {"p": 0.5}), (second, {"p": 1.0})])


@pytest.mark.parametrize("backend", BACKENDS, ids=["numpyro", "pyro"])
def test_members_that_count_and_members_with_a_density_are_refused(backend) -> None:
    with pytest.raises(ModelError, match="member 0 gives outcomes chances and member 1 densities"):
        a_coin_and_a_spike(backend).trace(*ROW)


def test_without_that_check_one_head_excludes_a_fair_coin(monkeypatch) -> None:
    """The density is 199 at one, the chance a half: half of all runs miss the truth."""
    monkeypatch.setattr(finite_class, "check_comparable", lambda first, names: None)
    found = ged.confidence_set(a_coin_and_a_spike(), *ROW, np.ones(1))
    assert found.bounds(ged.mean(0, 1), ROW[0], 1).guaranteed
    assert not found.contains(0)


def test_members_of_one_measure_are_let() -> None:
    def count(x, a, y=None):
        p = numpyro.param("p", 0.5)
        numpyro.sample("y", nd.Poisson(p + 0.0 * x[:, 0]), obs=y)

    def inflated(x, a, y=None):
        p = numpyro.param("p", 0.5)
        numpyro.sample("y", nd.ZeroInflatedPoisson(0.3, p + 0.0 * x[:, 0]), obs=y)

    ged.finite_class([(m, {"p": 0.5}) for m in (coin, count, inflated)]).trace(*ROW)


def at_zero_or(part):
    """Zero in half of the cases, else a draw of a density with one number."""

    def model(x, a, y=None):
        positive = pd.constraints.positive
        r = pyro.param("r", torch.tensor(1.0), constraint=positive) + 0.0 * x[:, 0]
        pyro.sample("y", pd.ZeroInflatedDistribution(part(r), gate=torch.tensor(0.5)), obs=y)

    return model


@needs_pyro
def test_an_atom_where_the_rest_is_dense_is_refused() -> None:
    """Its log_prob at zero is log(.5 + .5 rate): no chance, and without end in the rate."""
    with pytest.raises(NotADensityError, match=r"outcome 0 has the chance 0.5, and .* says 1"):
        ged.density_class(at_zero_or(lambda r: pd.Exponential(r)), example=ROW)
    for part in (lambda r: pd.LogNormal(r, 1.0), lambda r: pd.Gamma(2.0, r)):
        ged.density_class(at_zero_or(part), example=ROW)


@needs_pyro
def test_without_that_check_the_truth_is_excluded_by_a_narrow_density(monkeypatch) -> None:
    monkeypatch.setattr(identity, "refuse_atoms", lambda density, log_prob: None)
    members = [{"r": torch.tensor(1.0)}, {"r": torch.tensor(1000.0)}]
    cls = ged.finite_class(at_zero_or(lambda r: pd.Exponential(r)), members)
    found = ged.confidence_set(cls, *ROW, np.zeros(1))  # a zero is as likely under both
    assert not found.contains(0)


def test_a_sure_outcome_with_a_log_density_is_refused() -> None:
    def model(x, a, y=None):
        v = numpyro.param("v", 0.5)
        numpyro.sample("y", nd.Delta(v + 0.0 * x[:, 0], log_density=3.0), obs=y)

    with pytest.raises(NotADensityError, match=r"has the chance 1, and the log_prob says 20\.09"):
        ged.density_class(model, example=ROW)


# a class of the user's own ------------------------------------------------------------------------


def wrappers(base, package):
    """Named as the packages' wrappers are, and another density than what it wraps."""

    def init(self, inner):
        self.base_dist = inner
        base.__init__(self, inner.loc, inner.scale)

    def log_prob(self, value):
        return self.base_dist.log_prob(value - 1.0)

    mean = property(lambda self: self.base_dist.loc + 1.0)
    return [
        type(name, (base,), {"__init__": init, "log_prob": log_prob, "mean": mean})
        for name in ("ExpandedDistribution", "MaskedDistribution")
    ]


@pytest.mark.parametrize("which", [0, 1], ids=["expanded", "masked"])
def test_a_class_named_like_a_wrapper_is_not_what_it_wraps(which, monkeypatch) -> None:
    kind = wrappers(nd.Normal, "numpyro")[which]

    def model(x, a, y=None):
        w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("y", kind(nd.Normal(w[a], 0.3)), obs=y)

    assert ged.density_class(model, example=ROW).exactness.startswith("not exact")
    monkeypatch.setattr(lowering, "from_package", lambda kind: True)  # the control
    assert ged.density_class(model, example=ROW).exactness.startswith("exact")


def moved(name):
    """A Normal moved by three that gives one of its moments as it was."""
    own = {"mean": property(lambda d: d.loc + 3.0), "variance": property(lambda d: d.scale**2)}
    wrong = {"mean": property(lambda d: d.loc), "variance": property(lambda d: 2 * d.scale**2)}

    def log_prob(self, value):
        return nd.Normal.log_prob(self, value - 3.0)

    kind = type("Moved", (nd.Normal,), {**own, name: (wrong if name else own).get(name)})
    kind.log_prob = log_prob

    def model(x, a, y=None):
        w = numpyro.param("w", 0.0)
        numpyro.sample("y", kind(w + 0.0 * x[:, 0], 0.3), obs=y)

    return model


@pytest.mark.parametrize(
    ("name", "said"), [("mean", "0, .* mean 3"), ("variance", "0.18, .* 0.09")]
)
def test_a_moment_that_is_not_the_log_densitys_is_refused(name, said, monkeypatch) -> None:
    with pytest.raises(NotADensityError, match=rf"Moved\.{name} says {said}"):
        ged.density_class(moved(name), example=ROW)
    monkeypatch.setattr(identity, "_own", lambda distribution, name: np.nan)  # the control
    found = ged.confidence_set(
        ged.finite_class(moved("mean"), [{"w": 0.0}, {"w": 1.0}]), *ROW, 3 * np.ones(1)
    )
    assert found.bounds(ged.mean(-9, 9), ROW[0], 1).upper[0, 0] == pytest.approx(0.0)  # it is 3


def test_moments_that_are_right_or_have_no_end_are_let() -> None:
    class Cauchy(nd.Cauchy):
        def log_prob(self, value):
            return super().log_prob(value) + 0.0

    class Heavy(nd.StudentT):
        def log_prob(self, value):
            return super().log_prob(value) + 0.0

        mean = property(lambda self: self.loc)

    for outcome in (lambda m: Cauchy(m, 1.0), lambda m: Heavy(1.5, m, 1.0)):

        def model(x, a, y=None, outcome=outcome):
            numpyro.sample("y", outcome(numpyro.param("m", 0.5) + 0.0 * x[:, 0]), obs=y)

        ged.density_class(model, example=ROW)


# functions of outcomes that cannot be counted -----------------------------------------------------


def level(x, a, y=None):
    mu = numpyro.param("mu", 0.0)
    numpyro.sample("y", nd.Normal(mu + 0.0 * x[:, 0], 1.0), obs=y)


def waiting(x, a, y=None):
    w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("y", nd.Exponential(jnp.exp(-w[a])), obs=y)


NEEDLE = ged.expected(lambda y, x, a: 1e3 * (abs(y - 0.513) < 5e-4), 0, 1e3)


def test_a_function_of_an_outcome_that_cannot_be_counted_is_no_guarantee(monkeypatch) -> None:
    """A narrow peak lies between the nodes: 0 was certified where it is .4."""
    levels = ged.finite_class(level, [{"mu": m} for m in (0.0, 0.5, 1.0)])
    found = ged.confidence_set(levels, *ROW, np.zeros(1))
    bounds = found.bounds(NEEDLE, ROW[0], 1)
    assert not bounds.guaranteed
    assert "integrated numerically" in bounds.note
    assert bounds.upper[0, 0] < 0.01 < norm.pdf(0.013)
    for plain in (ged.mean(-9, 9), ged.probability(above=1.0), ged.cvar(0.9, -9, 9)):
        assert found.bounds(plain, ROW[0], 1).guaranteed
    monkeypatch.setattr(finite, "is_integrated", lambda *asked: False)  # the control
    vars(levels).pop("integrates")
    assert found.bounds(NEEDLE, ROW[0], 1).guaranteed


def test_nor_is_a_monotone_one_of_a_waiting_time(monkeypatch) -> None:
    """Its ends are those at the predictor's, and a jump errs by up to .03 there."""
    rng = np.random.default_rng(0)
    learner = learner_for(ged.density_class(waiting, example=ROW), delta=0.1)
    learner = learner.absorb(np.zeros((30, 1)), np.arange(30) % 2, rng.exponential(size=30))
    late = ged.expected(lambda y, x, a: 1.0 * (y > 1.2345), 0, 1)
    bounds = learner.refit().bounds(late, ROW[0], 2)
    assert not bounds.guaranteed
    assert "integrated numerically" in bounds.note
    monkeypatch.setattr(program_bounds, "is_integrated", lambda *asked: False)  # the control
    assert learner.refit().bounds(late, ROW[0], 2).guaranteed


def test_what_is_read_off_draws_of_an_unknown_distribution_is_no_guarantee() -> None:
    class Mine(nd.Normal):
        mean = property(lambda d: d.loc + 3.0)

        def log_prob(self, value):
            return super().log_prob(value - 3.0)

        def sample(self, key, sample_shape=()):
            return super().sample(key, sample_shape) + 3.0

    def model(x, a, y=None):
        numpyro.sample("y", Mine(numpyro.param("mu", 0.0) + 0.0 * x[:, 0], 1.0), obs=y)

    cls = ged.finite_class(model, [{"mu": m} for m in (0.0, 1.0)])
    found = ged.confidence_set(cls, *ROW, 3 * np.ones(1))
    assert found.bounds(ged.mean(-9, 9), ROW[0], 1).guaranteed
    rare = found.bounds(ged.probability(above=6.0), ROW[0], 1)
    assert not rare.guaranteed
    assert rare.upper[0, 0] != pytest.approx(norm.sf(2.0), rel=1e-6)
