"""Programs, parameters and rows that cannot be used: each a named error that says what, the
value and the fix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
import pytest
from numpyro.contrib.control_flow import scan
from numpyro.distributions import constraints as nc

from gedppl import errors
from gedppl.programs.contract import as_density, density_class, finite_class
from gedppl.programs.finite_class import check_site_names
from gedppl.rows import Rows
from tests.optional_pyro import HAS_PYRO, needs_pyro, pc, pd, pyro, torch
from tests.programs import linear_n, linear_p, logistic_n, logistic_p, poisson_n

X, A = np.array([[0.1, 0.2], [0.3, -0.4], [0.5, 0.6]]), np.array([0, 1, 2])
Y = np.array([0.1, 0.2, 0.3])

# models that are refused: (error, what the message says, NumPyro program, Pyro program) -----------


def n_w() -> Any:
    return numpyro.param("w", jnp.zeros(2))


def p_w() -> Any:
    return pyro.param("w", torch.zeros(2))


def unobserved_n(x, a, y=None):
    numpyro.sample("y", nd.Normal(x @ n_w(), 1.0).to_event(1))


def unobserved_p(x, a, y=None):
    pyro.sample("y", pd.Normal(x @ p_w(), 1.0).to_event(1))


def two_outcomes_n(x, a, y=None):
    numpyro.sample("y", nd.Normal(x @ n_w(), 1.0), obs=y)
    numpyro.sample("z", nd.Normal(0.0, 1.0), obs=y)


def two_outcomes_p(x, a, y=None):
    pyro.sample("y", pd.Normal(x @ p_w(), 1.0), obs=y)
    pyro.sample("z", pd.Normal(0.0, 1.0), obs=y)


def row_latent_n(x, a, y=None):
    with numpyro.plate("rows", x.shape[0]):
        rate = numpyro.sample("rate", nd.Gamma(2.0, 1.0))
        numpyro.sample("y", nd.Poisson(rate), obs=y)


def row_latent_p(x, a, y=None):
    with pyro.plate("rows", x.shape[0]):
        rate = pyro.sample("rate", pd.Gamma(2.0, 1.0))
        pyro.sample("y", pd.Poisson(rate), obs=y)


def endless_latent_n(x, a, y=None):
    with numpyro.plate("rows", x.shape[0]):
        count = numpyro.sample("count", nd.Poisson(2.0))
        numpyro.sample("y", nd.Normal(count, 1.0), obs=y)


def endless_latent_p(x, a, y=None):
    with pyro.plate("rows", x.shape[0]):
        count = pyro.sample("count", pd.Poisson(2.0))
        pyro.sample("y", pd.Normal(count, 1.0), obs=y)


def wide_latent_n(x, a, y=None):
    with numpyro.plate("pair", 2, dim=-2), numpyro.plate("rows", x.shape[0], dim=-1):
        bits = numpyro.sample("bits", nd.Bernoulli(0.5))
    numpyro.sample("y", nd.Normal(bits.sum(0) + 0.0, 1.0), obs=y)


def wide_latent_p(x, a, y=None):
    with pyro.plate("pair", 2, dim=-2), pyro.plate("rows", x.shape[0], dim=-1):
        bits = pyro.sample("bits", pd.Bernoulli(0.5))
    pyro.sample("y", pd.Normal(bits.sum(0), 1.0), obs=y)


def shared_discrete_n(x, a, y=None):
    k = numpyro.sample("k", nd.Bernoulli(0.5))
    numpyro.sample("y", nd.Normal(x @ n_w() + k, 1.0), obs=y)


def shared_discrete_p(x, a, y=None):
    k = pyro.sample("k", pd.Bernoulli(0.5))
    pyro.sample("y", pd.Normal(x @ p_w() + k, 1.0), obs=y)


def subsampled_n(x, a, y=None):
    with numpyro.plate("rows", x.shape[0], subsample_size=1) as i:
        numpyro.sample("y", nd.Normal((x @ n_w())[i], 1.0), obs=y)


def subsampled_p(x, a, y=None):
    with pyro.plate("rows", x.shape[0], subsample_size=1) as i:
        pyro.sample("y", pd.Normal((x @ p_w())[i], 1.0), obs=y)


def factor_n(x, a, y=None):
    numpyro.factor("penalty", -(n_w().sum() ** 2))
    numpyro.sample("y", nd.Normal(0.0, 1.0), obs=y)


def factor_p(x, a, y=None):
    pyro.factor("penalty", -(p_w().sum() ** 2))
    pyro.sample("y", pd.Normal(0.0, 1.0), obs=y)


def masked_n(x, a, y=None):
    with numpyro.handlers.mask(mask=x[:, 0] > 0):
        numpyro.sample("y", nd.Normal(x @ n_w(), 1.0), obs=y)


def masked_p(x, a, y=None):
    with pyro.poutine.mask(mask=x[:, 0] > 0):
        pyro.sample("y", pd.Normal(x @ p_w(), 1.0), obs=y)


def scaled_n(x, a, y=None):
    with numpyro.handlers.scale(scale=2.0):
        numpyro.sample("y", nd.Normal(x @ n_w(), 1.0), obs=y)


def scaled_p(x, a, y=None):
    with pyro.poutine.scale(scale=2.0):
        pyro.sample("y", pd.Normal(x @ p_w(), 1.0), obs=y)


def transformed_y_n(x, a, y=None):
    numpyro.sample("y", nd.Normal(x @ n_w(), 1.0), obs=None if y is None else jnp.log(y))


def transformed_y_p(x, a, y=None):
    pyro.sample("y", pd.Normal(x @ p_w(), 1.0), obs=None if y is None else torch.log(y))


def column_n(x, a, y=None):
    numpyro.sample("y", nd.Normal(x[:, :1] * n_w()[0], 1.0), obs=y)


def column_p(x, a, y=None):
    pyro.sample("y", pd.Normal(x[:, :1] * p_w()[0], 1.0).expand([len(x), len(x)]), obs=y)


def joint_rows_n(x, a, y=None):
    numpyro.sample("y", nd.Normal(x @ n_w(), 1.0).to_event(1), obs=y)


def joint_rows_p(x, a, y=None):
    pyro.sample("y", pd.Normal(x @ p_w(), 1.0).to_event(1), obs=y)


def batch_mean_n(x, a, y=None):
    numpyro.sample("y", nd.Normal((x - x.mean(0)) @ n_w(), 1.0), obs=y)


def batch_mean_p(x, a, y=None):
    pyro.sample("y", pd.Normal((x - x.mean(0)) @ p_w(), 1.0), obs=y)


def row_param_n(x, a, y=None):
    numpyro.sample("y", nd.Normal(numpyro.param("b", jnp.zeros(x.shape[0])), 1.0), obs=y)


def row_param_p(x, a, y=None):
    pyro.sample("y", pd.Normal(pyro.param("b", lambda: torch.zeros(len(x))), 1.0), obs=y)


def not_a_number_n(x, a, y=None):
    numpyro.sample("y", nd.Normal(x @ n_w(), numpyro.param("scale", -1.0)), obs=y)


def not_a_number_p(x, a, y=None):
    pyro.sample("y", pd.Normal(x @ p_w(), pyro.param("scale", torch.tensor(-1.0))), obs=y)


def two_models_n(x, a, y=None):
    first = numpyro.param("w", jnp.zeros(2))
    second = numpyro.sample("w", nd.Normal(0.0, 1.0))
    numpyro.sample("y", nd.Normal(x @ first + second, 1.0), obs=y)


def two_models_p(x, a, y=None):
    first = pyro.param("w", torch.zeros(2))
    second = pyro.sample("w", pd.Normal(0.0, 1.0))
    pyro.sample("y", pd.Normal(x @ first + second, 1.0), obs=y)


def broken_n(x, a, y=None):
    numpyro.sample("y", nd.Normal(x @ jnp.zeros(5), 1.0), obs=y)


def broken_p(x, a, y=None):
    pyro.sample("y", pd.Normal(x @ torch.zeros(5, dtype=x.dtype), 1.0), obs=y)


REFUSED: list[tuple[type[Exception], str, Callable[..., Any], Callable[..., Any]]] = [
    (errors.NoObservedSiteError, "no observed site: pass obs=y", unobserved_n, unobserved_p),
    (
        errors.SeveralObservedSitesError,
        r"observes \['y', 'z'\], but a density class has one",
        two_outcomes_n,
        two_outcomes_p,
    ),
    (
        errors.RowLatentError,
        "'rate' is a continuous latent drawn once a row.*NegativeBinomial",
        row_latent_n,
        row_latent_p,
    ),
    (
        errors.ModelError,
        "'count' is a discrete latent with infinite support",
        endless_latent_n,
        endless_latent_p,
    ),
    (errors.ModelError, r"'bits' has shape \(2, 2\) for two rows", wide_latent_n, wide_latent_p),
    (
        errors.ModelError,
        "'k' is a discrete latent shared by all rows.*finite_class",
        shared_discrete_n,
        shared_discrete_p,
    ),
    (
        errors.SubsampledPlateError,
        "plate 'rows' subsamples its rows.*drop subsample_size",
        subsampled_n,
        subsampled_p,
    ),
    (errors.FactorError, "factor 'penalty' adds to the log-density", factor_n, factor_p),
    (errors.ModelError, "'y' is masked.*drop the mask", masked_n, masked_p),
    (errors.ModelError, "'y' is scaled by a handler", scaled_n, scaled_p),
    (errors.ModelError, "observes a transform of y.*LogNormal", transformed_y_n, transformed_y_p),
    (
        errors.ModelError,
        r"batch shape \(2, (1|2)\) with two rows and \(3, (1|3)\)",
        column_n,
        column_p,
    ),
    (
        errors.ModelError,
        r"event shape \(2,\) with two rows and \(3,\) with three.*to_event",
        joint_rows_n,
        joint_rows_p,
    ),
    (errors.ModelError, "depends on the other rows", batch_mean_n, batch_mean_p),
    (errors.ModelError, "'b' has one value a row.*index it by action", row_param_n, row_param_p),
    (
        errors.NotANumberError,
        "NaN at the initial parameters.*scale.*pass init",
        not_a_number_n,
        not_a_number_p,
    ),
    (
        errors.SiteClashError,
        "'w' stands for two sites, a param.*a sample",
        two_models_n,
        two_models_p,
    ),
    (errors.ModelError, r"raised \w+Error when it was run", broken_n, broken_p),
]


def stored() -> dict[str, Any]:
    """Pyro's parameters, which belong to the whole process."""
    return dict(pyro.get_param_store().items()) if HAS_PYRO else {}


@pytest.mark.parametrize("backend", [0, 1], ids=["numpyro", "pyro"])
@pytest.mark.parametrize(
    ("error", "message", "numpyro_model", "pyro_model"),
    REFUSED,
    ids=[row[2].__name__[:-2] for row in REFUSED],
)
def test_a_model_is_refused(error, message, numpyro_model, pyro_model, backend) -> None:
    model = (numpyro_model, pyro_model)[backend]
    before = stored()
    cls = density_class(model)
    with pytest.raises(error, match=message):
        cls.trace(X, A)
    assert not cls.traced
    assert stored() == before
    with pytest.raises(errors.ModelError, match=r"not been run yet.*example"):
        cls.dim  # noqa: B018


def test_two_submodels_that_share_a_name_are_refused() -> None:
    def model(x, a, y=None):
        loc = x @ numpyro.param("w", jnp.zeros(2))  # one submodel
        shift = numpyro.param("w", jnp.zeros(2))[0]  # and another that meant a parameter of its own
        numpyro.sample("y", nd.Normal(loc + shift, 1.0), obs=y)

    with pytest.raises(errors.SiteClashError, match="'w' stands for two sites"):
        density_class(model, example=(X, A))


def test_control_flow_is_refused() -> None:
    def model(x, a, y=None):
        def step(carry, row):
            return carry, numpyro.sample("y", nd.Normal(row[0], 1.0))

        scan(step, 0.0, x)
        numpyro.sample("z", nd.Normal(x[:, 0], 1.0), obs=y)

    with pytest.raises(errors.ModelError, match="control-flow primitive"):
        density_class(model, example=(X, A))


def test_things_that_are_no_programs() -> None:
    with pytest.raises(errors.ModelError, match="a model is a function"):
        density_class(3, example=(X, A))
    with pytest.raises(errors.BackendNotFoundError, match="recorded no site"):
        density_class(lambda x, a, y=None: None, example=(X, A))


def test_branching_on_a_traced_value_says_what_jax_said() -> None:
    def model(x, a, y=None):
        loc = 1.0 if a[0] == 0 else 2.0
        numpyro.sample("y", nd.Normal(loc, 1.0).expand([len(a)]), obs=y)

    with pytest.raises(errors.ModelError, match="raised TracerBoolConversionError"):
        density_class(model, example=(X, A))


# parameters ---------------------------------------------------------------------------------------


def constrained_n(x, a, y=None):
    scale = numpyro.param("scale", 1.0, constraint=nc.positive)
    share = numpyro.param("share", jnp.array([0.2, 0.8]), constraint=nc.simplex)
    numpyro.sample("y", nd.Normal(x @ share, scale), obs=y)


def constrained_p(x, a, y=None):
    scale = pyro.param("scale", torch.tensor(1.0), constraint=pc.positive)
    share = pyro.param("share", torch.tensor([0.2, 0.8]), constraint=pc.simplex)
    pyro.sample("y", pd.Normal(x @ share, scale), obs=y)


@pytest.fixture(scope="module", params=[constrained_n, constrained_p], ids=["numpyro", "pyro"])
def constrained(request):
    return density_class(request.param, example=(X, A))


GOOD = {"scale": 1.0, "share": [0.5, 0.5]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": -1.0}, "'scale' = -1.0 lies outside its constraint"),
        ({"scale": 0.0}, "'scale' = 0.0 lies outside its constraint"),
        ({"share": [0.9, 0.9]}, r"'share' = \[0.9 0.9\] lies outside its constraint"),
        (
            {"share": [0.1, 0.2, 0.7]},
            r"'share' has shape \(3,\), but the model gives it shape "
            r"\(2,\)",
        ),
        ({"scale": [[1.0]]}, r"'scale' has shape \(1, 1\)"),
        ({"scale": np.nan}, "'scale' must be finite, got nan"),
        ({"slope": 1.0}, "no parameter 'slope'; its parameters are"),
        ({"scale": [1.0, 2.0]}, "either every parameter has a leading axis M or none"),
    ],
)
def test_bad_parameters(constrained, change, message) -> None:
    with pytest.raises(errors.ParameterError, match=message):
        constrained.density({**GOOD, **change}, X, A)
    assert constrained.density(GOOD, X, A).batch_shape == (3,)


def test_missing_parameter_and_wrong_flat_shape(constrained) -> None:
    with pytest.raises(errors.ParameterError, match="'share' is missing"):
        constrained.flatten({"scale": 1.0})
    with pytest.raises(errors.ParameterError, match=r"shape \(5,\), but this class has D = 2"):
        constrained.log_likelihood(np.zeros(5), X, A, Y)
    with pytest.raises(errors.ParameterError, match="one flat vector"):
        constrained.score(np.zeros((2, 2)), X, A, Y)
    with pytest.raises(errors.ParameterError, match="one setting a row"):
        constrained.values_grad(None, np.zeros((2, 2)), X, A)


def test_bad_init_and_bounds() -> None:
    with pytest.raises(errors.ParameterError, match="no parameter 'v'"):
        density_class(linear_n, init={"v": 1.0}, example=(X, A))
    with pytest.raises(errors.ParameterError, match=r"'b' has shape \(2,\)"):
        density_class(linear_n, init={"b": [1.0, 2.0]}, example=(X, A))
    with pytest.raises(errors.ParameterError, match="bounds name 'v'"):
        density_class(linear_n, bounds={"v": 1.0}, example=(X, A))
    for bad in (-1.0, (1.0, 0.0), "wide", (0.0, [1.0, 2.0])):
        with pytest.raises(errors.ParameterError, match=r"bounds\['b'\] must be a positive number"):
            density_class(linear_n, bounds={"b": bad}, example=(X, A))


# rows ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[linear_n, linear_p], ids=["numpyro", "pyro"])
def linear(request):
    return density_class(request.param, example=(X, A))


def with_entry(array: np.ndarray, value: float) -> np.ndarray:
    out = np.array(array, float)
    out[(1,) + (0,) * (out.ndim - 1)] = value
    return out


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (
            (X, A, Y[:, None]),
            errors.ShapeError,
            r"y must have shape \(3,\).*got \(3, 1\); pass "
            r"y\[:, 0\]",
        ),
        ((X, A, Y[:2]), errors.ShapeError, r"y must have shape \(3,\)"),
        ((X[:, 0], A, Y), errors.ShapeError, r"x must be \(n, dx\) and a \(n,\)"),
        ((X, A[:2], Y), errors.ShapeError, "with one n"),
        (
            (with_entry(X, np.nan), A, Y),
            errors.NotFiniteError,
            r"x must be finite, got \[ nan "
            r"-0.4\] in row 1",
        ),
        ((with_entry(X, np.inf), A, Y), errors.NotFiniteError, "x must be finite"),
        (
            (X, A, with_entry(Y, np.nan)),
            errors.NotFiniteError,
            "y must be finite, got nan in row 1",
        ),
        (
            (X, A, with_entry(Y, -np.inf)),
            errors.NotFiniteError,
            "y must be finite, got -inf in row 1",
        ),
        ((X[:, :1], A, Y), errors.ContextWidthError, "contexts have 2 columns here.*got 1"),
        (
            (X, np.array([0, 1, 3]), Y),
            errors.ActionRangeError,
            "action 3 is out of range for this model.*size 3",
        ),
        ((X, np.array([0, 1, -1]), Y), errors.ActionRangeError, "whole numbers 0, 1"),
        ((X, np.array([0, 1, 0.5]), Y), errors.ActionRangeError, "whole numbers 0, 1"),
        ((X, np.array([0, 1, np.nan]), Y), errors.ActionRangeError, "whole numbers 0, 1"),
    ],
)
def test_bad_rows(linear, rows, error, message) -> None:
    theta = np.full(linear.dim, 0.1)
    before = linear.log_likelihood(theta, X, A, Y)
    with pytest.raises(error, match=message):
        linear.log_likelihood(theta, *rows)
    np.testing.assert_array_equal(linear.log_likelihood(theta, X, A, Y), before)


def test_bad_rows_in_a_history(linear) -> None:
    with pytest.raises(errors.ActionRangeError, match="action 7"):
        linear.total(np.zeros(linear.dim), Rows.of(X, np.array([0, 1, 7]), Y))


@pytest.mark.parametrize("model", [logistic_n, logistic_p], ids=["numpyro", "pyro"])
@pytest.mark.parametrize("bad", [2.0, -1.0, 0.5])
def test_outcome_out_of_support(model, bad) -> None:
    cls = density_class(model, example=(X, A))
    with pytest.raises(
        errors.OutOfSupportError,
        match=rf"outcome {bad} in row 1 is outside the "
        r"support of Bernoulli",
    ):
        cls.log_likelihood(np.zeros(cls.dim), X, A, [0.0, bad, 1.0])
    # what the check is for: without it the PPL returns a number for an impossible outcome
    assert np.isfinite(
        cls.program.log_likelihood(np.zeros((1, cls.dim)), X, A, np.array([0.0, 0.5, 1.0]))
    ).all()


@pytest.mark.parametrize("edge", [0.0, 1.0])
def test_the_edge_of_a_closed_support(edge) -> None:
    def beta(x, a, y=None):
        c = numpyro.param("c", 2.0 * jnp.ones(2), constraint=nc.positive)
        numpyro.sample("y", nd.Beta(c[0], c[1]).expand([len(a)]), obs=y)

    with pytest.raises(errors.OutOfSupportError, match=f"outcome {edge} in row 0"):
        density_class(beta).log_likelihood(np.zeros(2), X, A, [edge, 0.5, 0.5])


def test_an_index_past_the_end_would_go_unnoticed_in_jax() -> None:
    with jax.enable_x64(True):
        # clamped: this is what the action check is for
        assert np.isfinite(jnp.arange(3.0)[jnp.array([7])]).all()


# finite classes and distributions -----------------------------------------------------------------


def test_bad_finite_classes() -> None:
    good = {"w": np.zeros((3, 2)), "b": np.zeros(3)}
    with pytest.raises(errors.ModelError, match="at least one member, got none"):
        finite_class(linear_n, [])
    with pytest.raises(errors.ModelError, match="and no settings"):
        finite_class(linear_n)
    with pytest.raises(errors.ModelError, match="one model with its settings, or a list"):
        finite_class([(linear_n, good)], [good])
    with pytest.raises(errors.ModelError, match="member 1: a model is a function"):
        finite_class([(linear_n, good), (3, good)])
    with pytest.raises(errors.ParameterError, match="member 0: params must be a dict"):
        finite_class(linear_n, [[1.0]])
    with pytest.raises(errors.ParameterError, match=r"member 1: parameter 'b' has shape \(2,\)"):
        finite_class(linear_n, [good, {**good, "b": np.zeros(2)}], example=(X, A))
    with pytest.raises(errors.ParameterError, match="member 0 holds 4 settings at once"):
        finite_class(linear_n, [{"w": np.zeros((4, 3, 2)), "b": np.zeros((4, 3))}], example=(X, A))
    with pytest.raises(errors.ModelError, match="member 0 gives outcomes densities and member 1"):
        finite_class([(linear_n, good), (poisson_n, good)], example=(X, A))
    mixed = finite_class([(linear_n, good), (linear_n, good)], example=(X, A))
    with pytest.raises(errors.ParameterError, match=r"members 0, ..., 1, got 2"):
        mixed.density(2, X, A)
    with pytest.raises(errors.NotFiniteError, match="y must be finite"):
        mixed.log_likelihood(mixed.every, X, A, [0.0, np.nan, 1.0])
    counts = finite_class(poisson_n, [good], example=(X, A))
    with pytest.raises(errors.OutOfSupportError, match=r"outcome 0.5 in row 2 .* no member"):
        counts.log_likelihood(counts.every, X, A, [0.0, 1.0, 0.5])


def test_site_names_under_one_roof() -> None:
    def other(x, a, y=None):
        numpyro.sample("y", nd.Normal(x @ numpyro.param("w", jnp.zeros(2)), 1.0), obs=y)

    first, second = density_class(linear_n, example=(X, A)), density_class(other, example=(X, A))
    check_site_names([first, density_class(linear_n, example=(X, A))])
    with pytest.raises(
        errors.SiteClashError,
        match=r"'w' has shape \(3, 2\) in one model and "
        r"\(2,\) in another",
    ):
        check_site_names([first, second])


def test_not_a_distribution() -> None:
    with pytest.raises(
        errors.FamilyError, match="Density or a NumPyro, Pyro or torch distribution, got float"
    ):
        as_density(1.0)


def test_a_numpy_table_indexed_by_a_says_to_use_jnp() -> None:
    table = np.array([0.1, 0.2, 0.3])

    def model(x, a, y=None):
        w = numpyro.param("w", jnp.zeros(()))
        numpyro.sample("y", nd.Normal(table[a] + w, 1.0), obs=y)

    with pytest.raises(
        errors.ModelError,
        match=r"jnp.asarray\(table\)\[a\] in place of "
        r"numpy_table\[a\]",
    ):
        density_class(model).density({"w": 0.0}, np.zeros((2, 1)), np.array([0, 1]))


def by_column_name_n(x, a, y=None):
    numpyro.sample("y", nd.Normal(x["load"] * numpyro.param("w", 0.0), 1.0), obs=y)


def by_column_name_p(x, a, y=None):
    pyro.sample("y", pd.Normal(x["load"] * pyro.param("w", torch.tensor(0.0)), 1.0), obs=y)


def by_category_n(x, a, y=None):
    numpyro.sample("y", nd.Normal(numpyro.param("w", jnp.zeros(3))[x[:, 0]], 1.0), obs=y)


def by_category_p(x, a, y=None):
    pyro.sample("y", pd.Normal(pyro.param("w", torch.zeros(3))[x[:, 0]], 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "fix"),
    [
        (by_column_name_n, r"x is an array, .* write x\[:, 0\]"),
        pytest.param(by_column_name_p, r"x is an array, .* write x\[:, 0\]", marks=needs_pyro),
        (by_category_n, r"index with x\[:, 0\].astype\(int\)"),
        pytest.param(by_category_p, r"in Pyro x\[:, 0\].long\(\)", marks=needs_pyro),
    ],
)
def test_a_context_read_in_the_wrong_way_gets_the_right_one(model, fix) -> None:
    with pytest.raises(errors.ModelError, match=fix):
        density_class(model, example=(np.zeros((2, 2)), np.zeros(2, int)))


def test_an_error_of_another_kind_gets_no_such_advice() -> None:
    def model(x, a, y=None):
        raise RuntimeError("out of paper")

    with pytest.raises(
        errors.ModelError,
        match=r"out of paper. A model is called as model\(x, a, "
        r"y\)$",
    ):
        density_class(model, example=(np.zeros((2, 2)), np.zeros(2, int)))
