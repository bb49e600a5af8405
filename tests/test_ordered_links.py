"""Ordered outcomes through any link: steps of a distribution function between cutpoints, read from
the chances that practitioners write out, in NumPyro and Pyro.
"""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
import pytest
from numpyro.distributions import transforms as nt
from scipy.integrate import quad

import gedppl as ged
from gedppl.errors import CutpointsError
from gedppl.learning import learner_for, reach
from gedppl.learning.ordered import CUMULATIVE, terms_between
from gedppl.learning.seen_class import served
from tests.optional_pyro import needs_pyro, pd, pyro, torch

X, A, Y = np.array([[0.1], [0.9], [0.4], [0.3]]), np.array([0, 1, 0, 1]), np.arange(4.0)
EXAMPLE = (X[:1], A[:1])


# log(F(h) - F(l)) -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CUMULATIVE)
@pytest.mark.parametrize(
    "edges",
    [(-1.0, 0.5), (-np.inf, -2.0), (1.0, np.inf), (2.0, 2.4), (-3.0, -2.6), (0.0, 0.02)],
    ids=str,
)
def test_the_log_chance_between_edges_and_its_derivatives(name: str, edges) -> None:
    """Against quadrature of the density, and against differences of what was checked so."""
    link, (low, high) = CUMULATIVE[name], edges

    def value(lower, upper):
        return float(terms_between(link, np.array(lower), np.array(upper)).value)

    area = quad(lambda u: np.exp(link.log_density(np.array(u))), max(low, -40.0), min(high, 40.0))[
        0
    ]
    found = terms_between(link, np.array(low), np.array(high))
    assert float(found.value) == pytest.approx(np.log(area), abs=1e-7)
    on_lower, on_upper, on_gap = found.curvature()
    step = 1e-4 * min(1.0, high - low)
    moves = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, -1.0]])
    for down, up in moves[[np.isfinite(low), np.isfinite(high), True, True]]:
        rise = [value(low + sign * step * down, high + sign * step * up) for sign in (1, 0, -1)]
        slope = down * found.by_lower + up * found.by_upper
        bend = on_lower * down**2 + on_upper * up**2 + on_gap * (up - down) ** 2
        size = 1 + 1 / min(1.0, high - low)
        assert (rise[0] - rise[2]) / (2 * step) == pytest.approx(float(slope), abs=1e-5 * size)
        assert -(rise[0] - 2 * rise[1] + rise[2]) / step**2 == pytest.approx(
            float(bend), abs=1e-4 * size**2
        )
        assert bend >= -1e-9  # concave


def test_edges_in_the_wrong_order_have_no_chance() -> None:
    for link in CUMULATIVE.values():
        found = terms_between(link, np.array([0.5, 0.3]), np.array([0.2, 0.3]))
        np.testing.assert_array_equal(found.value, -np.inf)
        assert np.isnan(found.by_lower).all()


# spellings --------------------------------------------------------------------------------------


def normal_cdf(u):
    return nd.Normal(0.0, 1.0).cdf(u)


def cloglog(u):
    return 1 - jnp.exp(-jnp.exp(u))


def by_diff(F, u):
    ends = jnp.zeros((len(u), 1)), jnp.ones((len(u), 1))
    return jnp.diff(jnp.concatenate([ends[0], F(u), ends[1]], axis=-1), axis=-1)


def by_prepending(F, u):
    return jnp.diff(F(u), prepend=0.0, append=1.0)


def by_padding(F, u):
    padded = jnp.pad(F(u), ((0, 0), (1, 1)), constant_values=(0, 1))
    return padded[..., 1:] - padded[..., :-1]


def by_parts(F, u):
    p = F(u)
    return jnp.concatenate([p[:, :1], p[:, 1:] - p[:, :-1], 1 - p[:, -1:]], axis=1)


def by_survival(F, u):
    s = 1 - F(u)
    return jnp.concatenate([1 - s[:, :1], s[:, :-1] - s[:, 1:], s[:, -1:]], axis=1)


def mirrored(F, u):
    above = F(-u)
    return jnp.concatenate([1 - above[:, :1], above[:, :-1] - above[:, 1:], above[:, -1:]], axis=1)


def stacked(F, u):
    p = [F(u[:, k]) for k in range(3)]
    return jnp.stack([p[0], p[1] - p[0], p[2] - p[1], 1 - p[2]], axis=-1)


def normalised(F, u):
    p = by_diff(F, u)
    return p / p.sum(-1, keepdims=True)


def in_numpyro(chances, F):
    def model(x, a, y=None):
        cut = numpyro.sample(
            "cut",
            nd.TransformedDistribution(nd.Normal(0.0, 0.5).expand([3]), nt.OrderedTransform()),
        )
        w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([2]).to_event(1))
        eta = w[a] * x[:, 0]
        numpyro.sample("y", nd.Categorical(probs=chances(F, cut - eta[:, None])), obs=y)

    return model


SPELLINGS = [
    (by_diff, jax.scipy.special.ndtr, "probit"),
    (by_prepending, normal_cdf, "probit"),
    (by_padding, jax.scipy.stats.norm.cdf, "probit"),
    (by_parts, normal_cdf, "probit"),
    (by_survival, jax.scipy.special.ndtr, "probit"),
    (stacked, jax.scipy.special.ndtr, "probit"),
    (mirrored, jax.nn.sigmoid, "logit"),
    (normalised, jax.nn.sigmoid, "logit"),
    (by_parts, cloglog, "cloglog"),
    (mirrored, cloglog, "loglog"),
]


def check(model, link: str) -> None:
    cls = ged.density_class(model, example=EXAMPLE)
    view = served(cls)
    assert view is not cls
    assert view.ordered.link == link
    theta = np.asarray(cls.draw_prior(4, 0), float)
    ours = view.log_likelihood(view.seen_of(theta), X, A, Y)
    theirs = cls.log_likelihood(theta, X, A, Y)
    known = theirs > -12  # further out the differences of chances cancel in float64
    assert known.sum() > 8
    np.testing.assert_allclose(ours[known], theirs[known], rtol=1e-9)


QUICK = ((by_parts, "probit"),)  # each compiles a class; the others are slow


@pytest.mark.parametrize(
    ("chances", "F", "link"),
    [
        pytest.param(
            *one,
            id=f"{one[0].__name__}, {one[2]}",
            marks=[] if (one[0], one[2]) in QUICK else [pytest.mark.slow],
        )
        for one in SPELLINGS
    ],
)
def test_steps_between_cutpoints_are_read_however_they_are_written(chances, F, link: str) -> None:
    check(in_numpyro(chances, F), link)


def torch_chances(how: str, F, u):
    low, high = torch.zeros(len(u), 1), torch.ones(len(u), 1)
    p = F(u)
    if how == "diff":
        return torch.diff(torch.cat([low, p, high], -1), dim=-1)
    if how == "prepend":
        return torch.diff(p, dim=-1, prepend=low, append=high)
    if how == "like":
        ends = torch.zeros_like(p[:, :1]), torch.ones_like(p[:, :1])
        padded = torch.cat([ends[0], p, ends[1]], -1)
        return padded[..., 1:] - padded[..., :-1]
    return torch.cat([p[:, :1], p[:, 1:] - p[:, :-1], 1 - p[:, -1:]], -1)


@needs_pyro
@pytest.mark.parametrize(
    "how",
    ["diff", *(pytest.param(h, marks=pytest.mark.slow) for h in ("prepend", "like", "parts"))],
)
@pytest.mark.parametrize(
    "link",
    [
        "probit",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("cdf", "logit", "cloglog")),
    ],
)
def test_steps_between_cutpoints_are_read_in_pyro(how: str, link: str) -> None:
    functions = {
        "probit": torch.special.ndtr,
        "cdf": lambda u: pd.Normal(0.0, 1.0).cdf(u),
        "logit": torch.sigmoid,
        "cloglog": lambda u: 1 - torch.exp(-torch.exp(u)),
    }

    def model(x, a, y=None):
        base = pd.Normal(torch.zeros(3, dtype=torch.float64), 0.5)
        cut = pyro.sample("cut", pd.TransformedDistribution(base, pd.transforms.OrderedTransform()))
        w = pyro.sample("w", pd.Normal(torch.zeros(2, dtype=torch.float64), 1.0).to_event(1))
        u = cut - (w[a] * x[:, 0])[:, None]
        pyro.sample("y", pd.Categorical(probs=torch_chances(how, functions[link], u)), obs=y)

    check(model, "probit" if link == "cdf" else link)


# what is not such steps -------------------------------------------------------------------------


def swapped(F, u):
    return by_diff(F, u)[:, jnp.array([0, 2, 1, 3])]


def two_functions(F, u):
    p = jnp.concatenate([jax.nn.sigmoid(u[:, :1]), jax.scipy.special.ndtr(u[:, 1:])], axis=1)
    return jnp.diff(p, prepend=0.0, append=1.0)


def lapsing(F, u):
    return 0.9 * by_diff(F, u) + 0.025


def clipped(F, u):
    p = jnp.clip(by_diff(F, u), 1e-4, 1.0)
    return p / p.sum(-1, keepdims=True)


def softmax(F, u):
    return jax.nn.softmax(jnp.concatenate([jnp.zeros((len(u), 1)), u], axis=1), axis=1)


LATER = [pytest.param(chances, marks=pytest.mark.slow) for chances in (swapped, softmax, clipped)]


@pytest.mark.parametrize("chances", [two_functions, lapsing, *LATER])
def test_other_chances_are_refused_with_the_line_and_what_to_write(chances) -> None:
    """Each is a density whose likelihood sets are not those of ordered outcomes: taking one for
    steps would be a wrong guarantee.
    """
    cls = ged.density_class(in_numpyro(chances, jax.scipy.special.ndtr), example=EXAMPLE)
    assert cls.seen is None
    assert "take differences" in cls.exactness
    assert "test_ordered_links.py" in cls.exactness


def free_cutpoints(x, a, y=None):
    cut = numpyro.sample("cut", nd.Normal(0.0, 1.0).expand([3]).to_event(1))
    w = numpyro.sample("w", nd.Normal(0.0, 1.0))
    u = cut - (w * x[:, 0])[:, None]
    numpyro.sample("y", nd.Categorical(probs=by_diff(jax.scipy.special.ndtr, u)), obs=y)


def test_cutpoints_that_nothing_keeps_in_order_are_refused() -> None:
    with pytest.raises(CutpointsError, match="OrderedTransform"):
        ged.density_class(free_cutpoints, example=EXAMPLE)


# what bounds are worth --------------------------------------------------------------------------


@cache
def learned():
    cls = ged.density_class(in_numpyro(by_diff, jax.scipy.special.ndtr), example=EXAMPLE)
    rng = np.random.default_rng(1)
    x, a = rng.random((120, 1)), rng.integers(0, 2, 120)
    theta = np.asarray(cls.draw_prior(3, 2), float)[1]
    y = cls.density_at(theta, x, a).sample(5, 1)[0]
    learner = learner_for(cls, delta=0.1)
    for part in np.array_split(np.arange(120), 4):
        learner = learner.absorb(x[part], a[part], y[part]).refit()
    return learner


@pytest.mark.parametrize(
    ("functional", "method"),
    [
        (ged.probability(above=1.5), "exact"),
        (ged.probability(below=0.5), "exact"),
        (ged.probability(above=0.5, below=1.5), "outer"),
        (ged.mean(0, 3), "outer"),
    ],
    ids=["above", "below", "one category", "mean"],
)
def test_members_of_a_probit_set_stay_inside_its_bounds(functional, method: str) -> None:
    learner, at = learned(), np.array([[0.2], [0.8]])
    found = learner.bounds(functional, at, 2)
    assert (found.method, found.guaranteed) == (method, True)
    rng = np.random.default_rng(0)
    draws = learner.theta + 0.3 * rng.standard_normal((20_000, learner.cls.dim))
    draws = draws[learner.contains(draws)]
    assert len(draws) > 100
    values = learner.cls.values(
        functional, draws, np.repeat(at, 2, axis=0), np.tile([0, 1], 2)
    ).reshape(-1, 2, 2)
    assert (found.upper >= values.max(axis=0) - 1e-9).all()
    assert (found.lower <= values.min(axis=0) + 1e-9).all()
    assert (found.upper - found.lower < functional.high - functional.low).all()


def increments(x, a, y=None):
    first = numpyro.sample("first", nd.Normal(-1.0, 1.0))
    step = numpyro.sample("step", nd.HalfNormal(1.0))
    effect = numpyro.sample("effect", nd.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("y", nd.OrderedLogistic(effect[a], jnp.stack([first, first + step])), obs=y)


def test_a_category_never_seen_is_bounded_by_the_order_of_the_cutpoints(monkeypatch) -> None:
    """No row says how wide the middle is, only that its width is positive: without that the
    upper cutpoint could lie anywhere below.
    """
    cls = ged.density_class(increments, example=EXAMPLE)
    y = 2.0 * (np.arange(80) % 3 == 0)
    learner = learner_for(cls, delta=0.1)
    for part in np.array_split(np.arange(80), 4):
        learner = learner.absorb(np.zeros((20, 1)), part // 2 % 2, y[part]).refit()
    above = ged.probability(above=1.5)
    found = learner.bounds(above, X[:1], 2)
    assert found.guaranteed
    assert (found.upper < 0.95).all()
    either = learner.bounds(ged.probability(above=0.5), X[:1], 2)
    np.testing.assert_allclose(found.upper, either.upper, rtol=1e-6)
    unbounded = np.full(4, -np.inf), np.full(4, np.inf)
    monkeypatch.setattr(reach, "declared_box", lambda cls, dim: unbounded)
    assert (learner.bounds(above, X[:1], 2).upper == 1.0).all()
