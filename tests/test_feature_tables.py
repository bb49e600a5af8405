"""Tables of predictors that are affine in the context, against the programs they stand for."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import gedppl as ged
from gedppl import rows as feature_tables
from gedppl.learning.linear_parts import at_contexts
from gedppl.rows import FeatureTable, Tabulated, grid, unit_slopes
from tests.optional_pyro import needs_pyro

K, D = 3, 2
X = np.random.default_rng(0).normal(size=(7, K * D)) * 10.0
A = np.array([0, 1, 2, 2, 1, 0, 2])


def by_features(x: Any, a: Any, y: Any = None) -> None:
    theta = numpyro.sample("theta", dist.Normal(0, 1).expand([D]).to_event(1))
    phi = x.reshape(-1, K, D)[jnp.arange(x.shape[0]), a]
    numpyro.sample("y", dist.Normal(phi @ theta + 0.5 * x[:, 0] - a, 0.1 + 0.1 * a), obs=y)


def by_arms(x: Any, a: Any, y: Any = None) -> None:
    w = numpyro.param("w", jnp.zeros((K, K * D)))
    numpyro.sample("y", dist.Bernoulli(logits=(w[a] * x).sum(-1)), obs=y)


def counts(x: Any, a: Any, y: Any = None) -> None:
    b = numpyro.param("b", jnp.zeros(2))
    numpyro.sample(
        "y", dist.Poisson(jnp.exp(b[0] + jnp.array([0.0, 1.0, 2.0])[a] * b[1] * x[:, 1])), obs=y
    )


def curved(x: Any, a: Any, y: Any = None) -> None:
    b = numpyro.param("b", jnp.zeros(2))
    numpyro.sample("y", dist.Normal(b[0] * x[:, 0] ** 2 + b[1] * a, 1.0), obs=y)


def stepped(x: Any, a: Any, y: Any = None) -> None:
    b = numpyro.param("b", jnp.zeros(2))
    numpyro.sample("y", dist.Normal(jnp.where(x[:, 0] > 0, b[0], b[1]), 1.0), obs=y)


def uneven(x: Any, a: Any, y: Any = None) -> None:
    b = numpyro.param("b", jnp.zeros(2))
    numpyro.sample("y", dist.Normal(b[0] + b[1] * x[:, 0], jnp.exp(x[:, 1])), obs=y)


def parts_of(predictor: Any, x: np.ndarray, a: np.ndarray) -> list[np.ndarray]:
    return [predictor.features(x, a), predictor.offset(x, a), *predictor.fixed(x, a).values()]


def traced(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, Any, list[FeatureTable | None]]:
    """The predictor with tables, the one without, and the tables that the first has read."""
    read: list[FeatureTable | None] = []
    find = feature_tables._read

    def noted(*args: Any) -> FeatureTable | None:
        read.append(find(*args))
        return read[-1]

    monkeypatch.setattr(feature_tables, "_read", noted)
    fast = ged.density_class(model, example=(X, A)).predictor
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gedppl.programs.affine.Tabulated", lambda parts, slopes, dim: None)
        slow = ged.density_class(model, example=(X, A)).predictor
    return fast, slow, read


@pytest.mark.parametrize("model", [by_features, by_arms, counts])
def test_a_table_says_what_the_program_says(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, slow, read = traced(model, monkeypatch)
    for quick, program in zip(parts_of(fast, X, A), parts_of(slow, X, A), strict=True):
        assert quick.shape == program.shape
        np.testing.assert_allclose(quick, program, rtol=1e-12, atol=0)
    assert len(read) == 1
    assert read[0] is not None


@pytest.mark.parametrize("model", [by_features, by_arms, counts, curved])
def test_all_actions_at_a_context_are_what_rows_of_them_are(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = ged.density_class(model, example=(X, A)).predictor
    for n_actions in (K - 1, K):
        x, a = grid(X, n_actions)
        slow = parts_of(predictor, x, a)
        monkeypatch.setattr(feature_tables, "COLUMNS_AT_ONCE", 1)  # context by context
        features, offset, others = at_contexts(predictor, X, n_actions)
        for quick, rows in zip((features, offset, *others.values()), slow, strict=True):
            np.testing.assert_array_equal(quick, rows)


@pytest.mark.parametrize("model", [curved, stepped, uneven])
def test_what_is_not_affine_in_the_context_stays_with_the_program(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, slow, read = traced(model, monkeypatch)
    for quick, program in zip(parts_of(fast, X, A), parts_of(slow, X, A), strict=True):
        np.testing.assert_array_equal(quick, program)
    assert not read


def test_wide_contexts_are_read_by_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gedppl.programs.jax_operations.FEW_ROWS", 0)
    fast, slow, read = traced(by_features, monkeypatch)
    np.testing.assert_allclose(fast.features(X, A), slow.features(X, A), rtol=1e-12)
    assert read[0] is not None


def bent(x: np.ndarray, a: np.ndarray) -> list[np.ndarray]:
    """Like a line at 0 and at the unit vectors, and nowhere else."""
    return [(x * (1.0 + a[:, None])) ** 3, np.zeros(len(a))]


def straight(x: np.ndarray, a: np.ndarray) -> list[np.ndarray]:
    return [x * (1.0 + a[:, None]), np.ones(len(a))]


def test_a_table_that_does_not_agree_with_the_program_is_not_used() -> None:
    x, a = np.array([[0.5, 2.0]]), np.array([1])
    np.testing.assert_array_equal(Tabulated(bent, unit_slopes(bent), 2)(x, a)[0], bent(x, a)[0])


def test_the_table_grows_with_the_actions_asked_about_and_the_program_answers_the_rest() -> None:
    asked = []

    def program(x: np.ndarray, a: np.ndarray) -> list[np.ndarray]:
        asked.append(a.max(initial=-1))
        return straight(x, a)

    fast = Tabulated(program, unit_slopes(program), 2)
    x = np.array([[0.5, 2.0]])
    for action in (0, 3, 1):
        features, offset = fast(x, np.array([action]))
        np.testing.assert_array_equal(features, straight(x, np.array([action]))[0])
        assert offset.tolist() == [1.0]
    assert max(asked) == 3
    before = len(asked)
    fast(x, np.array([2]))
    assert len(asked) == before  # from the table
    assert fast(x[:0], np.zeros(0, np.int64))[0].shape == (0, 2)
    assert len(asked) == before + 1


def test_a_table_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_tables, "MOST_CELLS", 5)
    assert unit_slopes(straight)(2, 2) is None
    x, a = np.array([[0.5, 2.0]]), np.array([1])
    np.testing.assert_array_equal(
        Tabulated(straight, unit_slopes(straight), 2)(x, a)[0], straight(x, a)[0]
    )


def test_many_rows_are_looked_up_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    table = FeatureTable.of(*unit_slopes(straight)(3, 4))  # type: ignore[misc]
    x, a = np.random.default_rng(1).normal(size=(50, 4)), np.arange(50) % 3
    whole = table(x, a)
    monkeypatch.setattr(feature_tables, "COLUMNS_AT_ONCE", 1)
    np.testing.assert_array_equal(table(x, a), whole)


def test_an_action_past_the_end_is_still_an_error() -> None:
    cls = ged.density_class(by_arms, example=(X, A))
    cls.predictor.features(X, A)
    with pytest.raises(ged.errors.ActionRangeError, match="action 3 is out of range"):
        cls.density_at(np.zeros(cls.dim), X[:1], np.array([3]))


@needs_pyro
def test_a_table_says_what_a_pyro_program_says(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyro
    import pyro.distributions as pyro_dist
    import torch

    def model(x: Any, a: Any, y: Any = None) -> None:
        w = pyro.param("w", torch.zeros(K, K * D))
        pyro.sample("y", pyro_dist.Normal((w[a] * x).sum(-1) + x[:, 1], 0.5), obs=y)

    read: list[FeatureTable | None] = []
    find = feature_tables._read
    monkeypatch.setattr(
        feature_tables, "_read", lambda *args: (read.append(find(*args)), read[-1])[1]
    )
    fast = ged.density_class(model, example=(X, A)).predictor
    monkeypatch.setattr("gedppl.programs.affine.Tabulated", lambda parts, slopes, dim: None)
    slow = ged.density_class(model, example=(X, A)).predictor
    for quick, program in zip(parts_of(fast, X, A), parts_of(slow, X, A), strict=True):
        np.testing.assert_allclose(quick, program, rtol=1e-12, atol=0)
    assert read
    assert read[0] is not None
