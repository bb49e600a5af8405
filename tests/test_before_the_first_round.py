"""What can be known to fail before the first round is an error then, and changes nothing."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import gedppl as ged
from gedppl import errors
from tests.optional_pyro import needs_pyro

TABLE = np.array([1.0, 2.0])


def linear(x, a, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(w[0] * a + w[1] * x[:, 0], 0.3), obs=y)


def logistic(x, a, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=w[0] * a + w[1] * x[:, 0]), obs=y)


def of_torch(y, x, a):
    return y.clamp(0)


def of_no_library(y, x, a):
    return y.clamped(0)


def numpy_only(y, x, a):
    return np.maximum(y, 0.0)


def of_jax(y, x, a):
    return jnp.maximum(y, 0.0)


def looks_up_a_numpy_table(y, x, a):
    return y * TABLE[a]


def branches(y, x, a):
    return y if y > 0 else 0.0


def of_the_outcome_alone(y):
    return y


def agent_of(model, fn) -> ged.GEDUCB:
    utility = ged.Utility(ged.density_class(model), ged.expected(fn, -9, 9))
    return ged.GEDUCB(ged.Problem(n_actions=2, utility=utility, constraints=[], safe_action=0))


@pytest.mark.parametrize(
    ("model", "fn", "where"),
    [
        (linear, of_no_library, "NumPy"),
        (linear, branches, "NumPy"),
        (linear, of_the_outcome_alone, "NumPy"),
        (logistic, of_torch, "NumPy"),
        (logistic, numpy_only, "traced"),
        (logistic, looks_up_a_numpy_table, "traced"),
    ],
)
def test_a_function_that_will_fail_is_named_with_its_line(model, fn, where) -> None:
    agent = agent_of(model, fn)
    with pytest.raises(
        errors.FunctionalError, match=f"{fn.__name__}.*{where}.*comparisons"
    ) as told:
        agent.ask(np.zeros(1))
    line = fn.__code__.co_firstlineno + 1
    place = "" if fn is of_the_outcome_alone else f"(test_before_the_first_round.py, line {line})"
    assert place in str(told.value)
    assert not agent.open_decisions


@pytest.mark.parametrize(
    ("model", "fn"),
    [
        (linear, numpy_only),  # no array of JAX comes to it there
        (linear, lambda y, x, a: y * (y > 0)),
        (logistic, lambda y, x, a: jnp.maximum(y, 0.0) + jnp.asarray(TABLE)[a]),
        (linear, lambda y, x, a: np.where(y == 1.0, 0.0, 0.0 / (y - 1.0))),  # 0 / 0 where tried
    ],
)
def test_a_function_that_works_is_let_pass(model, fn) -> None:
    assert agent_of(model, fn).ask(np.zeros(1)).policy.sum() == pytest.approx(1.0)


@needs_pyro
def test_a_pyro_models_function_is_called_with_tensors_too() -> None:
    import pyro
    import torch

    def model(x, a, y=None):
        w = pyro.sample("w", pyro.distributions.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("y", pyro.distributions.Bernoulli(logits=w[0] * a + w[1] * x[:, 0]), obs=y)

    with pytest.raises(errors.FunctionalError, match=r"of_jax.*traced"):
        agent_of(model, of_jax).ask(np.zeros(1))
    assert agent_of(model, lambda y, x, a: y * (y > 0)).ask(np.zeros(1)).action in (0, 1)


@needs_pyro
def test_a_pyro_model_that_passes_through_float32_is_read_like_one_that_does_not() -> None:
    """To within a tenth of a standard deviation: its prior is one of draws, no formula."""
    import pyro
    import torch

    def model(rounded):
        def logits(x, a, y=None):
            w = pyro.sample("w", pyro.distributions.Normal(torch.zeros(2), 1.0).to_event(1))
            w = w.float().double() if rounded else w
            pyro.sample("y", pyro.distributions.Normal(w[a] + 0 * x[:, 0], 0.3), obs=y)

        return ged.density_class(logits)

    x, a, y = np.zeros((6, 1)), np.arange(6) % 2, np.arange(6.0)
    found, wanted = (
        ged.confidence_set(model(rounded), x, a, y).bounds(ged.mean(-9, 9), x[:1], n_actions=2)
        for rounded in (True, False)
    )
    np.testing.assert_allclose(found.estimate, wanted.estimate, atol=0.02)
    assert (found.method, found.guaranteed) == (wanted.method, wanted.guaranteed)


# levels -------------------------------------------------------------------------------------------


def by_ward(entries):
    def model(x, a, y=None):
        u = numpyro.sample("u", dist.Normal(0, 1).expand([entries]).to_event(1))
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(w[a] + u[x[:, 1].astype(int)], 0.3), obs=y)

    return model


def ward_problem(entries, columns) -> ged.Problem:
    utility = ged.Utility(ged.density_class(by_ward(entries)), ged.mean(-9, 9))
    return ged.Problem(n_actions=2, utility=utility, constraints=[], safe_action=0, columns=columns)


WARDS = {"age": float, "ward": ("north", "south", "west")}


@pytest.mark.parametrize("first", ["north", "west"])  # the first row may itself be out of range
def test_a_model_with_fewer_entries_than_levels_is_refused(first) -> None:
    row = {"age": 0.2, "ward": first}
    said = r"'ward' has 3 levels.*index 2" if first == "north" else "or context.*index 2"
    with pytest.raises(errors.GedError, match=said):
        ged.GEDUCB(ward_problem(2, WARDS)).ask(row)
    assert ged.GEDUCB(ward_problem(3, WARDS)).ask(row).action in (0, 1)


def test_a_code_that_was_not_declared_is_refused() -> None:
    agent = ged.GEDUCB(ward_problem(3, WARDS))
    with pytest.raises(errors.ColumnError, match="the codes 0 to 2; got 3"):
        agent.ask([0.2, 3])
    with pytest.raises(errors.ActionRangeError, match=r"or context.*index 3"):
        ged.GEDUCB(ward_problem(3, ("age", "ward"))).ask([0.2, 3])  # a number, for all we know


def test_a_problem_shows_its_levels_and_is_traced_by_name() -> None:
    problem = ward_problem(3, WARDS)
    assert "context: age, ward ('north', 'south', 'west')" in repr(problem)
    problem.trace({"age": 0.2, "ward": "south"})
    assert problem.utility.model.traced
    with pytest.raises(errors.ColumnError, match="lacks 'ward'"):
        problem.trace({"age": 0.2})
