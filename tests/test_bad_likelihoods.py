"""Likelihoods that are none, links outside their domain, cutpoints that cross: each a named error
with value and fix.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
import pytest
from numpyro.distributions import constraints as nc
from numpyro.distributions import transforms as nt

import gedppl as ged
from gedppl import errors
from gedppl.learning import learner_for
from gedppl.programs import identity
from tests.optional_pyro import PPLS, pc, pd, pyro, torch

X, A = np.array([[0.4, 0.7]]), np.zeros(1, int)


class Bump(nd.Distribution):
    """exp(-(y - m)^2 / 2 s^2), with or without its normaliser."""

    support = nc.real
    normalised = False

    def __init__(self, m, s):
        self.m, self.s = m, s
        super().__init__(batch_shape=jnp.shape(m))

    def log_prob(self, value):
        log_norm = jnp.log(self.s) + 0.5 * jnp.log(2 * jnp.pi) if self.normalised else 0.0
        return -0.5 * ((value - self.m) / self.s) ** 2 - log_norm


class Normalised(Bump):
    normalised = True


class Counts(nd.Distribution):
    """A rate to the power of y over y factorial: a Poisson without exp(-rate)."""

    support = nc.nonnegative_integer

    def __init__(self, rate):
        self.rate = rate
        super().__init__(batch_shape=jnp.shape(rate))

    def log_prob(self, value):
        return nd.Poisson(self.rate).log_prob(value) + self.rate


def bump(kind, scale=0.01, shift=300.0):
    def model(x, a, y=None):
        w = numpyro.sample("w", nd.Normal(0.0, 1.0))
        numpyro.sample("y", kind(shift + w + 0.0 * x[:, 0], scale), obs=y)

    return model


def counts(x, a, y=None):
    w = numpyro.sample("w", nd.Normal(0.0, 1.0))
    numpyro.sample("y", Counts(jnp.exp(w + 0.5 + 0.0 * x[:, 0])), obs=y)


@pytest.mark.parametrize("model", [bump(Bump), bump(Bump, 9.0, 0.0), counts])
def test_a_likelihood_that_is_no_density_is_refused_with_its_mass(model) -> None:
    with pytest.raises(errors.NotADensityError, match=r"of [\d.e-]+ instead of 1.*subtract log"):
        ged.density_class(model, example=(X, A))


def test_a_tempered_likelihood_is_refused() -> None:
    class Tempered(nd.Normal):
        def log_prob(self, value):
            return 0.5 * super().log_prob(value)

    with pytest.raises(errors.NotADensityError, match="Tempered"):
        ged.density_class(bump(Tempered, 1.0, 0.0), example=(X, A))


def test_the_mass_is_the_one_that_is_said() -> None:
    with pytest.raises(errors.NotADensityError, match=r"of 22.56 instead"):
        ged.density_class(bump(Bump, 9.0, 0.0), example=(X, A))


@pytest.mark.parametrize(("scale", "shift"), [(0.01, 300.0), (9.0, 0.0), (1e-4, -2e5), (1e5, 3.0)])
def test_a_density_of_the_users_own_is_taken_wherever_it_lies(scale, shift) -> None:
    ged.density_class(bump(Normalised, scale, shift), example=(X, A))


class TwoPeaks(Normalised):
    def log_prob(self, value):
        far = Normalised(self.m + 1e5, self.s).log_prob(value)
        return jnp.logaddexp(super().log_prob(value), far) - jnp.log(2.0)


def test_a_second_peak_that_is_too_narrow_to_see_is_no_missing_mass() -> None:
    ged.density_class(bump(TwoPeaks, 0.01, 0.0), example=(X, A))


def test_without_the_question_for_a_second_peak_it_would_be_refused(monkeypatch) -> None:
    monkeypatch.setattr(identity, "_one_peak", lambda logs: True)
    with pytest.raises(errors.NotADensityError, match=r"of 0\.5 instead"):
        ged.density_class(bump(TwoPeaks, 0.01, 0.0), example=(X, A))


def test_without_the_look_at_its_mass_it_would_be_taken(monkeypatch) -> None:
    monkeypatch.setattr(identity, "_refuse_no_density", lambda *args: None)
    ged.density_class(bump(Bump), example=(X, A))


def test_in_pyro_too() -> None:
    class Flat(pd.TorchDistribution):
        support, arg_constraints = pc.real, {}

        def __init__(self, m):
            self.m = m
            super().__init__(m.shape, validate_args=False)

        def log_prob(self, value):
            return -((value - self.m) ** 2)

        def expand(self, batch_shape, _instance=None):
            return Flat(self.m.expand(batch_shape))

    def model(x, a, y=None):
        w = pyro.sample("w", pd.Normal(0.0, 1.0))
        pyro.sample("y", Flat(w + 0.0 * x[:, 0]), obs=y)

    with pytest.raises(errors.NotADensityError, match=r"of 1.772 instead"):
        ged.density_class(model, example=(X, A))


# cutpoints ----------------------------------------------------------------------------------------


def free_cutpoints(ppl):
    def in_numpyro(x, a, y=None):
        cut = numpyro.sample("cut", nd.Normal(0.0, 1.0).expand([3]).to_event(1))
        numpyro.sample("y", nd.OrderedLogistic(x[:, 0], cut), obs=y)

    def in_pyro(x, a, y=None):
        cut = pyro.sample("cut", pd.Normal(torch.zeros(3), 1.0).to_event(1))
        pyro.sample("y", pd.OrderedLogistic(x[:, 0], cut), obs=y)

    return in_numpyro if ppl == "numpyro" else in_pyro


@pytest.mark.parametrize("ppl", PPLS)
def test_cutpoints_that_nothing_keeps_in_order_are_refused_with_the_fix(ppl) -> None:
    with pytest.raises(errors.CutpointsError, match=r"cross in \d+ of 32 draws.*OrderedTransform"):
        ged.density_class(free_cutpoints(ppl), example=(X, A))


def test_ordered_cutpoints_are_taken() -> None:
    def model(x, a, y=None):
        base = nd.Normal(0.0, 1.0).expand([3])
        cut = numpyro.sample("cut", nd.TransformedDistribution(base, nt.OrderedTransform()))
        numpyro.sample("y", nd.OrderedLogistic(x[:, 0], cut), obs=y)

    ged.density_class(model, example=(X, A))


# domains ------------------------------------------------------------------------------------------


def shares(x, a, y=None):
    p = numpyro.sample("p", nd.Uniform(0.0, 3.0))
    q = numpyro.sample("q", nd.Uniform(0.0, 3.0))
    numpyro.sample("y", nd.Bernoulli(probs=p * x[:, 0] + q * x[:, 1]), obs=y)


def test_bounds_that_leave_no_parameter_inside_a_links_domain_are_named() -> None:
    cls = ged.density_class(shares, example=(X, A), bounds={"p": (2.0, 3.0)})
    learner = learner_for(cls, delta=0.1)
    learner = learner.absorb(np.array([[0.3, 0.2]]), A, np.ones(1))
    with pytest.raises(errors.LinkDomainError, match=r"row 1 .* from 1.8 to 5.1 .* from 0 to 1"):
        learner.absorb(np.array([[0.3, 0.2], [0.9, 0.8]]), np.zeros(2, int), np.ones(2))
    assert learner.n == 1
    wider = cls.with_bounds({"p": (0.0, 3.0)})
    learner_for(wider, delta=0.1).absorb(np.array([[0.9, 0.8]]), A, np.ones(1))


def chances(low: float, high: float, declared: bool):
    def model(x, a, y=None):
        if declared:
            p = numpyro.param("p", jnp.full(2, 0.5 * (low + high)))
        else:
            p = numpyro.sample("p", nd.Uniform(low, high).expand([2]).to_event(1))
        numpyro.sample("y", nd.Bernoulli(probs=p[a]), obs=y)

    bounds = {"p": (low, high)} if declared else None
    return ged.density_class(model, example=(X, A), bounds=bounds)


@pytest.mark.parametrize("declared", [False, True])
def test_chances_that_are_declared_beyond_one_are_named(declared: bool) -> None:
    """NumPyro cuts them off, and a certificate would be of other chances than were declared. The
    control: inside the domain nothing is said.
    """
    with pytest.raises(errors.LinkDomainError, match=r"no number at .*'p'.* outside \[0, 1\]"):
        learner_for(chances(1.2, 1.9, declared), delta=0.1)
    assert learner_for(chances(0.2, 0.9, declared), delta=0.1).n == 0
