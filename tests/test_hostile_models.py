"""Programs that would make a certificate say more than it may: a density that goes with the other
rows, with the outcome itself, with chance, or that is not the one its name says.

Each is refused by name, or loses its exactness, in both languages; each guard is taken out once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as nd
import pytest
from numpyro.distributions import transforms as nt

import gedppl as ged
from gedppl.errors import (
    ActionRangeError,
    ColumnError,
    ContextRangeError,
    ModelError,
    OutcomeUsedError,
)
from gedppl.problem import checks
from gedppl.programs import jax_operations, jax_reader, tracing
from gedppl.programs import numpyro as numpyro_side
from gedppl.programs.jax_kernels import JaxKernels
from gedppl.programs.jax_operations import same_operations, written
from tests.optional_pyro import module, needs_pyro, pd, pyro, torch

torch_kernels = module("gedppl.programs.torch_kernels")

X, A = np.array([[0.1, 0.2], [0.3, -0.4], [0.5, 0.6]]), np.array([0, 1, 2])


def arms_n(loc: Callable[..., Any], scale: Any = 0.3) -> Callable[..., Any]:
    """y ~ Normal(loc(w, x, a, y), scale), w one number an action."""

    def model(x, a, y=None):
        w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([3]).to_event(1))
        at = scale(y) if callable(scale) else scale
        numpyro.sample("y", nd.Normal(loc(w, x, a, y), at), obs=y)

    return model


def arms_p(loc: Callable[..., Any], scale: Any = 0.3) -> Callable[..., Any]:
    def model(x, a, y=None):
        w = pyro.sample("w", pd.Normal(0.0, 1.0).expand([3]).to_event(1))
        at = scale(y) if callable(scale) else scale
        pyro.sample("y", pd.Normal(loc(w, x, a, y), at), obs=y)

    return model


def counted() -> Callable[[], int]:
    calls = [0]

    def count() -> int:
        calls[0] += 1
        return calls[0]

    return count


OTHER_ROWS, USES_Y, UNSTEADY = (
    "a row's density depends on the other rows",
    "computed from y itself|another one when y is given",
    "another density each time that it is run",
)
REFUSED: dict[str, tuple[str, Callable[[], Any], Callable[[], Any]]] = {
    "sum of the actions before": (
        OTHER_ROWS,
        lambda: arms_n(lambda w, x, a, y: w[a] + 0.5 * jnp.cumsum(a)),
        lambda: arms_p(lambda w, x, a, y: w[a] + 0.5 * torch.cumsum(a, 0)),
    ),
    "share of an action": (
        OTHER_ROWS,
        lambda: arms_n(lambda w, x, a, y: w[a] + jnp.mean(a == 1)),
        lambda: arms_p(lambda w, x, a, y: w[a] + (a == 1).double().mean()),
    ),
    "actions in reverse": (
        OTHER_ROWS,
        lambda: arms_n(lambda w, x, a, y: w[a[::-1]]),
        lambda: arms_p(lambda w, x, a, y: w[a.flip(0)]),
    ),
    "another model of many rows": (
        OTHER_ROWS,
        lambda: arms_n(lambda w, x, a, y: w[a] * (2.0 if len(a) > 40 else 1.0)),
        lambda: arms_p(lambda w, x, a, y: w[a] * (2.0 if len(a) > 40 else 1.0)),
    ),
    "another model of more than two hundred rows": (
        OTHER_ROWS,
        lambda: arms_n(lambda w, x, a, y: w[a] * (2.0 if x.shape[0] > 200 else 1.0)),
        lambda: arms_p(lambda w, x, a, y: w[a] * (2.0 if x.shape[0] > 200 else 1.0)),
    ),
    "another table of more than ten thousand rows": (
        OTHER_ROWS,
        lambda: arms_n(lambda w, x, a, y: w[a] + jnp.array([0.1, 0.2, 0.3 + (len(a) > 10_000)])[a]),
        lambda: arms_p(
            lambda w, x, a, y: w[a] + torch.tensor([0.1, 0.2, 0.3 + (len(a) > 10_000)])[a]
        ),
    ),
    "scale by whether y is given": (
        USES_Y,
        lambda: arms_n(lambda w, x, a, y: w[a], lambda y: 0.3 if y is None else 1.0),
        lambda: arms_p(lambda w, x, a, y: w[a], lambda y: 0.3 if y is None else 1.0),
    ),
    "y without its gradient": (
        USES_Y,
        lambda: arms_n(
            lambda w, x, a, y: w[a] + (0.0 if y is None else 0.5 * jax.lax.stop_gradient(y))
        ),
        lambda: arms_p(
            lambda w, x, a, y: w[a] + (0.0 if y is None else torch.as_tensor(0.5 * y.numpy()))
        ),
    ),
    "the outcome of the row before": (
        USES_Y,
        lambda: arms_n(lambda w, x, a, y: w[a] + (0.0 if y is None else jnp.roll(y, 1))),
        lambda: arms_p(lambda w, x, a, y: w[a] * (2.0 if y is not None and y.max() > 5 else 1.0)),
    ),
    "a count of its calls": (
        UNSTEADY,
        lambda: (lambda n: arms_n(lambda w, x, a, y: w[a] + 0.01 * n()))(counted()),
        lambda: (lambda n: arms_p(lambda w, x, a, y: w[a] + 0.01 * n()))(counted()),
    ),
    "random numbers": (
        UNSTEADY,
        lambda: arms_n(lambda w, x, a, y: w[a] + jax.random.normal(numpyro.prng_key())),
        lambda: (lambda rng: arms_p(lambda w, x, a, y: w[a] * rng.normal()))(
            np.random.default_rng(0)
        ),
    ),
}
BACKENDS = [0, pytest.param(1, marks=needs_pyro)]


@pytest.mark.parametrize("backend", BACKENDS, ids=["numpyro", "pyro"])
@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_name(name, backend) -> None:
    match, *models = REFUSED[name]
    cls = ged.density_class(models[backend]())
    with pytest.raises(ModelError, match=match):
        cls.trace(X, A)
    assert not cls.traced


@pytest.mark.parametrize("backend", BACKENDS, ids=["numpyro", "pyro"])
@pytest.mark.parametrize("name", [n for n in REFUSED if REFUSED[n][0] == OTHER_ROWS])
def test_without_the_look_at_other_rows_it_would_be_called_exact(
    name, backend, monkeypatch
) -> None:
    monkeypatch.setattr(tracing, "check_apart", lambda together, alone: None)
    _, *models = REFUSED[name]
    assert ged.density_class(models[backend](), example=(X, A)).exactness.startswith("exact")


@pytest.mark.parametrize("backend", BACKENDS, ids=["numpyro", "pyro"])
def test_without_the_look_at_many_rows_a_branch_on_them_would_be_called_exact(
    backend, monkeypatch
) -> None:
    for side in (numpyro_side, *([torch_kernels] if backend else [])):
        monkeypatch.setattr(side, "MANY", ())
    _, *models = REFUSED["another model of more than two hundred rows"]
    assert ged.density_class(models[backend](), example=(X, A)).exactness.startswith("exact")


def test_a_prior_that_goes_with_the_number_of_rows_is_refused() -> None:
    def model(x, a, y=None):
        w = numpyro.sample("w", nd.Normal(0.0, 1.0 + (len(a) > 1000)).expand([3]).to_event(1))
        numpyro.sample("y", nd.Normal(w[a], 0.3), obs=y)

    with pytest.raises(ModelError, match=OTHER_ROWS):
        ged.density_class(model, example=(X, A))


def test_numbers_that_only_scale_with_the_rows_are_no_other_model() -> None:
    """Widths beside the rows' number, arrays made as long as the rows, and a hidden layer as wide
    as some number of rows that is tried.
    """

    def model(x, a, y=None):
        n = x.shape[0]
        rows = jnp.concatenate([jnp.ones((n, 1)), x, jnp.zeros((n, 254))], axis=1)  # (n, 257)
        w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("rows", n):
            numpyro.sample("y", nd.Normal(w[a] + rows @ jnp.ones(257) + jnp.zeros(n), 0.3), obs=y)

    cls = ged.density_class(model, example=(X, A))
    assert cls.exactness.startswith("exact")
    assert not list(cls.program.among_many(np.zeros(3), X, A))  # nothing had to be computed


def test_operations_are_the_same_up_to_the_number_of_rows_and_in_nothing_else() -> None:
    """The control of the look at many rows: what is told apart without computing anything."""

    def alike(few, many, n=5, rows=9) -> bool:
        first, second = (
            written(function, np.zeros((k, 2))) for function, k in ((few, n), (many, rows))
        )
        return same_operations(first, second, n, rows)

    table = np.arange(9.0)
    inner = jax.jit(lambda v: v[::-1] * 2.0)
    same = (
        lambda x: jnp.sin(x[:, 0]) - x[:, 1],
        lambda x: inner(x[:, 0]),
        lambda x: x[:, 0] + jnp.asarray(table[: len(x)]),
        lambda x: jax.lax.map(lambda row: row.sum(), x),
    )
    others = (
        lambda x: x[:, 1] - jnp.sin(x[:, 0]),  # what goes where
        lambda x: jax.jit(lambda v: v[::-1] * 3.0)(x[:, 0]),  # a number inside a call
        lambda x: x[:, 0] + jnp.asarray(table[: len(x)] + 1.0),  # a constant
        lambda x: jax.lax.map(lambda row: row.prod(), x),  # an operation inside a loop
    )
    for one, other in zip(same, others):
        assert alike(one, one)
        assert not alike(one, other)
    assert not alike(same[0], lambda x: jnp.sin(x[:, 0]) - x[:, 1] + 0.0 * x[0, 0])


@pytest.mark.parametrize("name", ["scale by whether y is given", "random numbers"])
def test_without_the_look_at_outcomes_it_would_be_called_exact(name, monkeypatch) -> None:
    monkeypatch.setattr(numpyro_side, "refuse_outcome_use", lambda depends, differs, name: None)
    monkeypatch.setattr(numpyro_side, "refuse_unsteady", lambda differs: None)
    assert ged.density_class(REFUSED[name][1](), example=(X, A)).exactness.startswith("exact")


def test_a_branch_on_y_that_only_constants_show_needs_the_constants(monkeypatch) -> None:
    """The operations are the same; compared without their constants the two passed for one."""
    plain = numpyro_side.what_matters

    def without_constants(*args):
        used, text = plain(*args)
        return used, text.rpartition("[")[0]

    monkeypatch.setattr(numpyro_side, "what_matters", without_constants)
    ged.density_class(REFUSED["scale by whether y is given"][1](), example=(X, A))
    monkeypatch.undo()
    with pytest.raises(OutcomeUsedError, match="another one when y is given"):
        ged.density_class(REFUSED["scale by whether y is given"][1](), example=(X, A))


def problem(model: Any, n_actions: int, **options: Any) -> ged.Problem:
    cls = ged.density_class(model)
    limit = ged.Constraint(cls, ged.mean(-9, 9), at_most=1.0, safe_value=0.0, outcome="utility")
    return ged.Problem(
        n_actions, ged.Utility(cls, ged.mean(-9, 9)), [limit], safe_action=0, **options
    )


@pytest.mark.parametrize("backend", BACKENDS, ids=["numpyro", "pyro"])
def test_an_action_that_the_model_does_not_know_is_named_before_it_is_played(backend) -> None:
    """JAX reads w[4] as the last entry: the first decision certified an action as another one."""
    model = (arms_n, arms_p)[backend](lambda w, x, a, y: w[a])
    agent = ged.GEDUCB(problem(model, 5), guard=None)
    with pytest.raises(ActionRangeError, match="action 3 is out of range"):
        agent.ask([0.1, 0.2])
    assert agent.rounds == 0
    assert ged.GEDUCB(problem(model, 3), guard=None).ask([0.1, 0.2]).certificate.guaranteed


def by_code_n(x, a):
    return x[:, 0].astype(int)


def coded_n(x, a, y=None):
    """One mean a level of the context, as a table that is read by its code."""
    u = numpyro.sample("u", nd.Normal(0.0, 1.0).expand([3]).to_event(1))
    numpyro.sample("y", nd.Normal(u[by_code_n(x, a)] * a, 0.3), obs=y)


def coded_p(x, a, y=None):
    u = pyro.sample("u", pd.Normal(0.0, 1.0).expand([3]).to_event(1))
    pyro.sample("y", pd.Normal(u[x[:, 0].long()] * a, 0.3), obs=y)


def coded_coin(x, a, y=None):
    """Another family, and a table of numbers instead of parameters."""
    w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([2]).to_event(1))
    size = jnp.array([0.5, 1.0, 2.0])[by_code_n(x, a)]
    numpyro.sample("y", nd.Bernoulli(logits=w[0] + size * a * w[1]), obs=y)


def coded_tails(x, a, y=None):
    """A program without a proved predictor."""
    u = numpyro.sample("u", nd.Normal(0.0, 1.0).expand([3]).to_event(1))
    numpyro.sample("y", nd.StudentT(5.0, u[by_code_n(x, a)] * a, 0.3), obs=y)


CODED = [coded_n, pytest.param(coded_p, marks=needs_pyro), coded_coin, coded_tails]


def finite_coded() -> ged.finite_class:
    return ged.finite_class(coded_n, [{"u": np.eye(3)[i]} for i in range(3)])


def coded_problem(cls: Any, high: float) -> ged.Problem:
    mean = ged.mean(-high if high > 1 else 0.0, high)
    limit = ged.Constraint(cls, mean, at_most=0.9, safe_value=0.5, outcome="utility")
    return ged.Problem(2, ged.Utility(cls, mean), [limit], safe_action=0)


@pytest.mark.parametrize("model", [*CODED, "finite"])
def test_a_context_past_the_end_of_a_table_is_refused_and_changes_nothing(model) -> None:
    """JAX reads the last entry: the certificate of a level that the model does not know was that
    of another.
    """
    cls = finite_coded() if model == "finite" else ged.density_class(model)
    agent = ged.GEDUCB(coded_problem(cls, 1.0 if model is coded_coin else 5.0), guard=None)
    agent.tell(agent.ask([1.0]).id, 0.0)
    before = agent.state_hash()
    for refused in (
        lambda: agent.ask([7.0]),
        lambda: agent.ask([[0.0], [7.0]]),
        lambda: agent.policy([7.0]),
        lambda: agent.cost_bounds([7.0]),
        lambda: agent.recommend([7.0]),
        lambda: agent.observe([[2.0], [7.0]], [1, 1], [0.0, 0.0]),
    ):
        with pytest.raises(ContextRangeError, match="index 7 is out of bounds"):
            refused()
    assert agent.state_hash() == before
    assert agent.ask([2.0]).policy.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("model", [*CODED, "finite"])
def test_a_context_that_reads_from_the_end_of_a_table_is_refused_and_changes_nothing(model) -> None:
    """-1 is what pandas gives to a missing level; it read the last one."""
    cls = finite_coded() if model == "finite" else ged.density_class(model)
    agent = ged.GEDUCB(coded_problem(cls, 1.0 if model is coded_coin else 5.0), guard=None)
    agent.tell(agent.ask([1.0]).id, 0.0)
    before = agent.state_hash()
    for refused in (
        lambda: agent.ask([-1.0]),
        lambda: agent.ask([[0.0], [-1.0]]),
        lambda: agent.cost_bounds([-1.0]),
        lambda: agent.observe([[2.0], [-1.0]], [1, 1], [0.0, 0.0]),
    ):
        with pytest.raises(ContextRangeError, match="index -1 counts from the end"):
            refused()
    assert agent.state_hash() == before
    assert agent.ask([2.0]).policy.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("backend", BACKENDS, ids=["numpyro", "pyro"])
def test_a_program_that_counts_from_the_end_by_itself_is_let(backend) -> None:
    """A reference level: the effect of level 0, and of action 0, is the last entry."""

    def in_jax(x, a, y=None):
        u = numpyro.sample("u", nd.Normal(0.0, 1.0).expand([2]).to_event(1))
        by_level = jnp.append(u, 0.0)[x[:, 0].astype(int) - 1]
        numpyro.sample("y", nd.Normal(by_level + jnp.array([0.4, 0.1])[a - 1], 0.3), obs=y)

    def in_torch(x, a, y=None):
        u = pyro.sample("u", pd.Normal(0.0, 1.0).expand([2]).to_event(1))
        by_level = torch.cat([u, torch.zeros(1)])[x[:, 0].long() - 1]
        pyro.sample("y", pd.Normal(by_level + torch.tensor([0.4, 0.1])[a - 1], 0.3), obs=y)

    cls = ged.density_class(in_torch if backend else in_jax)
    cls.trace(np.array([[1.0], [0.0], [2.0]]), np.array([0, 1, 1]))


LEVELS = ("north", "south", "west")


def one_based_n(entries: int, reference: bool = False) -> Any:
    def model(x, a, y=None):
        u = numpyro.sample("u", nd.Normal(0.0, 1.0).expand([entries]).to_event(1))
        table = jnp.append(u, 0.0) if reference else u
        numpyro.sample("y", nd.Normal(table[by_code_n(x, a) - 1] * a, 0.3), obs=y)

    return model


def one_based_p(entries: int, reference: bool = False) -> Any:
    def model(x, a, y=None):
        u = pyro.sample("u", pd.Normal(0.0, 1.0).expand([entries]).to_event(1))
        table = torch.cat([u, torch.zeros(1)]) if reference else u
        pyro.sample("y", pd.Normal(table[x[:, 0].long() - 1] * a, 0.3), obs=y)

    return model


@pytest.mark.parametrize("made", [one_based_n, pytest.param(one_based_p, marks=needs_pyro)])
def test_a_level_that_wraps_to_where_another_is_is_refused(made, monkeypatch) -> None:
    """`u[code - 1]` of two entries reads the last one for the first and for the third level. With
    an entry of its own a level may stand at the end.
    """

    def asked(model: Any) -> Any:
        base = coded_problem(ged.density_class(model), 5.0)
        problem = replace(base, columns={"ward": LEVELS})
        return ged.GEDUCB(problem, guard=None).ask({"ward": "south"})

    with pytest.raises(ColumnError, match=r"'north' of column 'ward'.*where level 'west' is"):
        asked(made(2))
    for own in (made(3), made(2, reference=True)):
        assert asked(own).policy.sum() == pytest.approx(1.0)
    monkeypatch.setattr(checks, "_check_apart", lambda *_: None)  # the control
    asked(made(2))


@needs_pyro
def test_a_pyro_program_is_run_once_for_all_actions_of_a_context_and_not_again(monkeypatch) -> None:
    """It was run twice for every action, at every step of a round."""
    from gedppl.programs.torch_kernels import TorchKernels

    look, looked = TorchKernels._indices, []

    def counted(self, theta, x, a):
        looked.append(x[:, 0].tolist())
        return look(self, theta, x, a)

    cls = ged.density_class(coded_p)
    agent = ged.GEDUCB(coded_problem(cls, 5.0), guard=None)
    agent.ask([0.0])
    monkeypatch.setattr(TorchKernels, "_indices", counted)
    cls.trace(np.array([[1.0], [2.0], [1.0]]), np.array([0, 0, 1]))
    assert looked == [[1.0, 1.0], [2.0]]
    cls.trace(np.array([[1.0], [1.0]]), np.array([0, 1]))
    assert len(looked) == 2
    for _ in range(2):  # what was refused is refused again
        with pytest.raises(ContextRangeError, match="index -1 counts from the end"):
            cls.trace(np.array([[1.0], [-1.0], [-1.0]]), np.array([0, 0, 1]))


def test_without_the_look_at_negative_indices_a_missing_level_would_be_the_last(
    monkeypatch,
) -> None:
    monkeypatch.setattr(JaxKernels, "_lowest", lambda *args: np.zeros(0))
    agent = ged.GEDUCB(coded_problem(ged.density_class(coded_n), 5.0), guard=None)
    agent.observe(np.full((50, 1), 2.0), np.ones(50, int), np.full(50, 0.4))
    known, unknown = agent.ask([2.0]), agent.ask([-1.0])
    assert unknown.certificate.guaranteed
    np.testing.assert_array_equal(unknown.policy, known.policy)


def row_by_row(u, x, a):
    return jax.lax.map(lambda row: u[row[0].astype(int)] * row[1], jnp.column_stack([x[:, 0], a]))


def carried_along(u, x, a):
    return jax.lax.scan(lambda state, level: (state, u[level.astype(int)]), 0.0, x[:, 0])[1] * a


def in_a_branch(u, x, a):
    return jax.lax.cond(u[0] > -9.0, lambda: u[by_code_n(x, a)], lambda: 0.0 * x[:, 0]) * a


def until_done(u, x, a):
    """JAX does not differentiate such a loop backwards: it may compute what is no parameter."""
    table, codes = jnp.arange(3), by_code_n(x, a)

    def step(state):
        return state[0] + 1, state[1].at[state[0]].set(table[codes[state[0]]])

    start = (0, jnp.zeros(len(a), int))
    return u[jax.lax.while_loop(lambda state: state[0] < len(a), step, start)[1]] * a


@jax.custom_jvp
def looked_up(u, code):
    return u[code]


looked_up.defjvp(lambda at, by: (looked_up(*at), by[0][at[1]]))


def with_a_derivative(u, x, a):
    return looked_up(u, by_code_n(x, a)) * a


INSIDE = [
    row_by_row,
    carried_along,
    in_a_branch,
    until_done,
    with_a_derivative,
]


def coded_inside(read: Any) -> Any:
    def model(x, a, y=None):
        u = numpyro.sample("u", nd.Normal(0.0, 1.0).expand([3]).to_event(1))
        numpyro.sample("y", nd.Normal(read(u, x, a), 0.3), obs=y)

    return model


@pytest.mark.parametrize("read", INSIDE)
def test_a_missing_level_inside_a_loop_or_a_branch_is_refused(read, monkeypatch) -> None:
    """A model that maps over its rows reads its table in the loop's body."""
    agent = ged.GEDUCB(coded_problem(ged.density_class(coded_inside(read)), 5.0), guard=None)
    agent.tell(agent.ask([1.0]).id, 0.0)
    with pytest.raises(ContextRangeError, match="index -1 counts from the end"):
        agent.ask([[2.0], [-1.0]])
    monkeypatch.setattr(jax_operations, "_INSIDE", {})  # the control
    monkeypatch.setattr(jax_operations, "CALLS", ("pjit", "jit"))
    blind = ged.density_class(coded_inside(read))
    blind.trace(np.array([[2.0], [-1.0]]), np.array([1, 1]))


def test_a_confidence_set_refuses_such_contexts_too() -> None:
    rows = np.array([[0.0], [1.0], [2.0]]), np.ones(3, int), np.zeros(3)
    found = ged.confidence_set(ged.density_class(coded_n), *rows)
    assert found.bounds(ged.mean(-5, 5), np.array([[2.0]]), 2).guaranteed
    with pytest.raises(ContextRangeError, match=r"context \[7\.\] is out of range"):
        found.bounds(ged.mean(-5, 5), np.array([[7.0]]), 2)


def test_without_the_look_at_indices_one_level_would_be_certified_as_another(monkeypatch) -> None:
    monkeypatch.setattr(JaxKernels, "reads_by_context", False)
    agent = ged.GEDUCB(coded_problem(ged.density_class(coded_n), 5.0), guard=None)
    agent.observe(np.full((50, 1), 2.0), np.ones(50, int), np.full(50, 0.4))
    known, unknown = agent.ask([2.0]), agent.ask([7.0])
    assert unknown.certificate.guaranteed
    np.testing.assert_array_equal(unknown.policy, known.policy)


def test_an_index_that_cannot_leave_its_table_is_not_looked_at() -> None:
    def by_column(x, a, y=None):
        w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("y", nd.Normal(w[a] * x[:, 0], 0.3), obs=y)

    def clipped(x, a, y=None):
        u = numpyro.sample("u", nd.Normal(0.0, 1.0).expand([3]).to_event(1))
        numpyro.sample("y", nd.Normal(u[jnp.clip(by_code_n(x, a), 0, 2)], 0.3), obs=y)

    rows = np.ones((2, 1)), np.array([0, 1])
    assert not ged.density_class(by_column, example=rows).reads_by_context
    assert ged.density_class(coded_n, example=rows).reads_by_context
    cls = ged.density_class(clipped, example=rows)
    cls.trace(np.array([[7.0]]), np.array([1]))


def test_a_model_need_not_know_a_safe_action_that_it_does_not_learn() -> None:
    model = arms_n(lambda w, x, a, y: w[a - 1])  # w[-1] for the safe action, which nobody asks
    asked = problem(model, 4, learn_safe=False)
    assert ged.GEDUCB(asked, guard=None).ask([0.1, 0.2]).certificate.guaranteed


def test_a_site_whose_value_a_handler_sets_is_named() -> None:
    def model(x, a, y=None):
        with numpyro.handlers.substitute(data={"w": jnp.zeros(3)}):
            w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([3]).to_event(1))
        numpyro.sample("y", nd.Normal(w[a], 0.3), obs=y)

    cls = ged.density_class(model)
    with pytest.raises(ModelError, match=r"cannot be run at given parameters.*without a handler"):
        cls.trace(X, A)
    assert not cls.traced


# transforms are what they do ----------------------------------------------------------------------


class AffineTransform(nt.AffineTransform):
    """Of the packages' name, and another map."""

    def __call__(self, x):
        return self.loc + self.scale * x + 3.0

    def _inverse(self, y):
        return (y - 3.0 - self.loc) / self.scale


def moved_n(transform: Any) -> Callable[..., Any]:
    def model(x, a, y=None):
        w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([3]).to_event(1))
        base = nd.Normal(jnp.zeros(len(a)), 0.3)
        numpyro.sample("y", nd.TransformedDistribution(base, [transform(w[a], 1.0)]), obs=y)

    return model


def moved_p(transform: Any) -> Callable[..., Any]:
    def model(x, a, y=None):
        w = pyro.sample("w", pd.Normal(0.0, 1.0).expand([3]).to_event(1))
        base = pd.Normal(torch.zeros(len(a), dtype=torch.float64), 0.3)
        pyro.sample("y", pd.TransformedDistribution(base, [transform(w[a], 1.0)]), obs=y)

    return model


def their_transforms() -> tuple[Any, Any]:
    base = torch.distributions.transforms.AffineTransform

    def _call(self, x):
        return self.loc + self.scale * x + 3.0

    def _inverse(self, y):
        return (y - 3.0 - self.loc) / self.scale

    return base, type("AffineTransform", (base,), {"_call": _call, "_inverse": _inverse})


@pytest.mark.parametrize("backend", BACKENDS, ids=["numpyro", "pyro"])
def test_a_transform_of_the_users_own_is_not_read_by_its_name(backend, monkeypatch) -> None:
    own, foreign = their_transforms() if backend else (nt.AffineTransform, AffineTransform)
    moved = (moved_n, moved_p)[backend]
    members = [{"w": [0.1, 0.5, 0.9]}]

    def mean(transform: Any) -> np.ndarray:
        cls = ged.finite_class(moved(transform), members)
        return cls.values(ged.mean(-9, 9), np.zeros(1, int), X, A)[0]

    # the packages' own first: what is known of it must not be taken for the other
    np.testing.assert_allclose(mean(own), members[0]["w"])
    with pytest.raises(ged.errors.GedError):
        mean(foreign)  # no mean is known of it
    from gedppl.programs import lowering

    monkeypatch.setattr(lowering, "from_package", lambda kind: True)  # the control
    np.testing.assert_allclose(mean(foreign), members[0]["w"])


# what derivatives do not see ----------------------------------------------------------------------


def without_gradient(w: Any) -> Any:
    with torch.no_grad():
        return 1.0 * w


OFF_THE_GRAPH: dict[str, Callable[[Any], Any]] = {
    "data": lambda w: w.data,
    "no_grad": without_gradient,
    "detach": lambda w: w.detach(),
    "half of it": lambda w: w + w.data,
}


def predicted(cls: Any, theta: np.ndarray) -> np.ndarray:
    """The mean that the served predictor says at rows (X, A)."""
    from gedppl.learning.seen_class import served

    seen = served(cls)
    v = theta if seen is cls else seen.seen.from_theta(theta[None])[0]
    return seen.predictor.features(X, A) @ v + seen.predictor.offset(X, A)


@needs_pyro
@pytest.mark.parametrize("name", OFF_THE_GRAPH)
def test_parameters_that_leave_the_graph_still_move_the_predictor(name) -> None:
    """Their derivative is 0: the affine proof held, and all features were 0."""
    cls = ged.density_class(arms_p(lambda w, x, a, y: OFF_THE_GRAPH[name](w)[a]), example=(X, A))
    theta = np.array([0.7, -1.3, 2.1])
    if cls.exactness.startswith("exact"):
        expected = np.asarray(cls.density_at(theta, X, A).args["loc"])
        np.testing.assert_allclose(predicted(cls, theta), expected)


@needs_pyro
def test_without_that_look_the_features_would_be_zero(monkeypatch) -> None:
    from gedppl.programs import affine

    monkeypatch.setattr(affine, "_slopes_hold", lambda *_: True)
    cls = ged.density_class(arms_p(lambda w, x, a, y: w.data[a]), example=(X, A))
    np.testing.assert_array_equal(cls.predictor.features(X, A), 0.0)


@jax.custom_jvp
def doubled_slope(value):
    return value


doubled_slope.defjvps(lambda tangent, answer, value: 2 * tangent)


def steeper(x, a, y=None):
    """A function of the user's says twice the slope that it has."""
    w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([3]).to_event(1))
    numpyro.sample("y", nd.Normal(doubled_slope(w)[a] * x[:, 0], 0.3), obs=y)


def test_a_slope_that_a_function_states_itself_is_not_believed(monkeypatch) -> None:
    """Features were twice what the program computes, and certificates rested on them."""
    theta = np.array([0.7, -1.3, 2.1])
    cls = ged.density_class(steeper, example=(X, A))
    assert cls.exactness.startswith("exact")
    expected = np.asarray(cls.density_at(theta, X, A).args["loc"])
    np.testing.assert_allclose(predicted(cls, theta), expected)
    monkeypatch.setattr(jax_reader, "STATED", ())  # the control
    believed = ged.density_class(steeper, example=(X, A))
    np.testing.assert_allclose(predicted(believed, theta), 2 * expected)


# numbers that float64 cannot hold apart -----------------------------------------------------------


def rows(n: int = 30) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x, a = rng.normal(size=(n, 2)), np.arange(n) % 3
    return x, a, 0.3 * rng.normal(size=n)


def wide(prior: Any) -> Callable[..., Any]:
    def model(x, a, y=None):
        w = numpyro.sample("w", prior.expand([3]).to_event(1))
        numpyro.sample("y", nd.Normal(w[a], 0.3), obs=y)

    return model


@pytest.mark.parametrize("unit", [1e3, 1e9])
def test_a_vague_prior_is_a_vague_prior(unit) -> None:
    x, a, y = rows()
    for prior in (nd.Normal(0.0, unit), nd.StudentT(4.0, 0.0, unit)):
        found = ged.confidence_set(ged.density_class(wide(prior)), x, a, y)
        bounds = found.bounds(ged.mean(-9, 9), x[:1], 3)
        assert bounds.guaranteed
        assert np.all((bounds.lower < 0) & (bounds.upper > 0) & (bounds.upper < 3))


@pytest.mark.parametrize("prior", [nd.StudentT(4.0, 0.0, 1e18), nd.Normal(0.0, 1e100)])
def test_a_prior_beyond_all_digits_is_named(prior) -> None:
    x, a, y = rows()
    with pytest.raises(ged.errors.GedError, match=r"narrower prior|standard deviations from"):
        ged.confidence_set(ged.density_class(wide(prior)), x, a, y)


def test_without_that_check_a_set_would_miss_the_truth_and_be_called_a_guarantee(
    monkeypatch,
) -> None:
    """Fits are counted from the prior's centre: beside 1e17 an outcome of .3 is nothing."""
    from gedppl.learning import linear_gaussian
    from tests.program_doubles import Glm

    line = Glm("Normal", 1, lambda x, a: np.ones((len(a), 1)), {"scale": 0.1})
    x, a = np.zeros((400, 1)), np.zeros(400, np.int64)
    y = 0.3 + 0.1 * np.random.default_rng(0).normal(size=400)

    def bounds(centre: float) -> Any:
        learner = linear_gaussian.LinearGaussianLearner.start(
            line.predictor, 1, delta=0.05, prior_mean=[centre], prior_precision=1e-36
        )
        return learner.absorb(x, a, y).refit().bounds(ged.mean(-99, 99), x[:1], 1)

    found = bounds(0.0)
    assert found.lower[0, 0] < 0.3 < found.upper[0, 0]
    with pytest.raises(ged.errors.DataError, match="the prior is so wide"):
        bounds(1e17)
    monkeypatch.setattr(linear_gaussian, "check_resolved", lambda *_: None)
    wrong = bounds(1e17)
    assert not wrong.lower[0, 0] < 0.3 < wrong.upper[0, 0] or not wrong.guaranteed


@pytest.mark.parametrize(
    ("scale", "x_unit", "y_unit", "match"),
    [
        (1e-300, 1.0, 1.0, "noise scales must be positive and finite, from 1e-60 to 1e"),
        (1e300, 1.0, 1.0, "noise scales must be positive and finite, from 1e-60 to 1e"),
        (0.3, 1e300, 1.0, r"x must be finite.*measure it in a larger unit"),
        (0.3, 1.0, 1e155, r"the outcome .* is too large beside a noise scale of 0.3"),
        (0.3, 1.0, 1e20, r"the outcome .* is too large beside a noise scale of 0.3"),
    ],
)
def test_numbers_of_any_size_are_learned_or_named(scale, x_unit, y_unit, match) -> None:
    def model(x, a, y=None):
        w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
        numpyro.sample("y", nd.Normal((w[a] * x).sum(-1), scale), obs=y)

    x, a, y = rows()
    with pytest.raises(ged.errors.GedError, match=match):
        ged.confidence_set(ged.density_class(model), x * [1.0, x_unit], a, y * y_unit)


def test_contexts_of_a_counting_model_are_learned_or_named() -> None:
    def model(x, a, y=None):
        w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
        numpyro.sample("y", nd.Poisson(jnp.exp((w[a] * x**3).sum(-1))), obs=y)

    x, a, y = rows()
    with pytest.raises(ged.errors.GedError, match=r"beyond 1e.60"):
        ged.confidence_set(ged.density_class(model), x * [1.0, 1e40], a, np.abs(np.round(y)))


# a declared range that the data refute, outside of an agent ---------------------------------------


def test_a_set_does_not_guarantee_a_range_that_it_refutes() -> None:
    x, a, y = rows()
    found = ged.confidence_set(ged.density_class(wide(nd.Normal(0.0, 5.0))), x, a, y + 4.0)
    assert found.bounds(ged.mean(0, 9), x[:1], 3).guaranteed
    for functional in (ged.mean(0, 2), ged.quantile(0.9, -3, 2), ged.cvar(0.8, 0, 1)):
        bounds = found.bounds(functional, x[:1], 3)
        assert not bounds.guaranteed
        assert "declared for the" in bounds.note
        assert "is refuted" in bounds.note


def test_a_value_that_is_split_in_two_is_not_read() -> None:
    """The largest of two predictors, and which it is: neither is a link of one predictor."""

    def largest(x, a, y=None):
        w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
        _, which = jax.lax.top_k(w[a] * x, 2)
        numpyro.sample("y", nd.Normal(w[a][:, 0] * (1.0 * which[:, 0]), 0.3), obs=y)

    said = ged.density_class(largest, example=(X, A)).exactness
    assert said.startswith("not exact")
    assert "a value that mixes data and parameters is split" in said


def forgetful(x, a, y=None):
    """JAX cannot look at indices inside `jax.checkpoint`."""
    w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([3]).to_event(1))
    chosen = jax.checkpoint(lambda w, code: w[code])(w, a)
    numpyro.sample("y", nd.Bernoulli(logits=chosen * x[:, 0]), obs=y)


def until_small(x, a, y=None):
    """JAX cannot differentiate backwards through a loop of unknown length."""
    w = numpyro.sample("w", nd.Normal(0.0, 1.0).expand([3]).to_event(1))
    steps = jax.lax.while_loop(
        lambda state: state[0] < 3, lambda state: (state[0] + 1, jnp.tanh(state[1] + w)), (0, w)
    )
    numpyro.sample("y", nd.StudentT(4.0, steps[1][a] * x[:, 0], 0.5), obs=y)


@pytest.mark.parametrize("model", [forgetful, until_small])
def test_what_jax_cannot_do_with_a_program_is_said_by_name(model) -> None:
    """Bare errors of JAX's insides: at the first look, or where slopes are first asked for."""

    def asked() -> None:
        ged.density_class(model, example=(X, A)).score(np.zeros(3), X, A, np.ones(len(A)))

    with pytest.raises(ModelError, match=r"ends that are known .* can be left out"):
        asked()
