"""An exact safe value: one direction fewer to learn, believed because it was declared, and what
happens if it is wrong.
"""

from __future__ import annotations

from functools import lru_cache

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import gedppl as ged
from tests.problems import linear_program

K, D, SIGMA, TAU = 4, 3, 0.1, 0.45
SAFE = np.array([0.6, 0.0, 0.0])  # the safe action's features, the same at every context
MU, THETA = np.array([0.3, 0.7, 0.5]), np.array([0.2, 0.6, 0.7])


@lru_cache
def linear_class():
    return ged.density_class(
        linear_program(K, D, SIGMA), example=(np.zeros((1, K * D)), np.zeros(1, np.int64))
    )


def problem(safe_value=float(SAFE @ MU), **options) -> ged.Problem:
    cls = linear_class()
    limit = ged.Constraint(cls, ged.mean(0, 1), at_most=TAU, safe_value=safe_value, **options)
    return ged.Problem(
        n_actions=K, utility=ged.Utility(cls, ged.mean(0, 1)), constraints=[limit], safe_action=0
    )


def contexts(rng: np.random.Generator, n: int) -> np.ndarray:
    phi = np.abs(rng.normal(size=(n, K, D)))
    phi /= np.linalg.norm(phi, axis=2, keepdims=True)
    phi[:, 0] = SAFE
    return phi.reshape(n, -1)


def infeasible_rounds(declared: ged.Problem, seed: int, rounds: int, **options) -> int:
    rng = np.random.default_rng(seed)
    agent, bad = ged.GEDUCB(declared, seed=seed, guard=None, **options), 0
    for x in contexts(rng, rounds):
        decision = agent.ask(x)
        phi = x.reshape(K, D)
        bad += bool(decision.policy @ (phi @ MU) > TAU + 1e-9)
        f = phi[decision.action]
        agent.tell(decision.id, f @ THETA + SIGMA * rng.normal(), f @ MU + SIGMA * rng.normal())
    return bad


def logged(agent: ged.GEDUCB, n: int, seed: int = 0) -> ged.GEDUCB:
    rng = np.random.default_rng(seed)
    x, a = contexts(rng, n), rng.integers(0, K, n)
    phi = x.reshape(n, K, D)[np.arange(n), a]
    agent.observe(
        x, a, phi @ THETA + SIGMA * rng.normal(size=n), phi @ MU + SIGMA * rng.normal(size=n)
    )
    return agent


def test_bounds_are_narrower_and_hold_the_truth() -> None:
    x = contexts(np.random.default_rng(9), 50)
    cost = x.reshape(50, K, D) @ MU
    widths = []
    for exact in (False, True):
        lower, upper = logged(ged.GEDUCB(problem(safe_value_exact=exact)), 60).cost_bounds(x)
        assert (lower[:, 0] <= cost + 1e-9).all()
        assert (upper[:, 0] >= cost - 1e-9).all()
        widths.append((upper - lower)[:, 0, 1:])
    assert widths[1].mean() < 0.9 * widths[0].mean()
    # before any data, too: an action along the known direction is known
    first = x[:1].copy().reshape(K, D)
    first[1] = 0.5 * SAFE
    lower, upper = ged.GEDUCB(problem(safe_value_exact=True)).cost_bounds(first.ravel())
    assert upper[0, 1] == pytest.approx(0.5 * SAFE @ MU)
    assert lower[0, 1] == pytest.approx(0.5 * SAFE @ MU)
    lower, upper = ged.GEDUCB(problem()).cost_bounds(first.ravel())
    assert (lower[0, 1], upper[0, 1]) == (0.0, 1.0)


def test_every_round_is_feasible_if_the_value_is_right() -> None:
    assert [infeasible_rounds(problem(safe_value_exact=True), seed, 150) for seed in range(4)] == [
        0
    ] * 4


def test_a_wrong_value_breaks_the_limit() -> None:
    wrong = problem(safe_value=0.02, safe_value_exact=True)  # the truth is 0.18
    assert sum(infeasible_rounds(wrong, seed, 150) for seed in range(4)) > 0
    # only declared exact does it reach the parameters: the other actions' bounds then miss the
    # truth
    x = contexts(np.random.default_rng(9), 50)
    cost = (x.reshape(50, K, D) @ MU)[:, 1:]
    missed = []
    for exact in (False, True):
        lower, upper = logged(
            ged.GEDUCB(problem(safe_value=0.02, safe_value_exact=exact)), 60
        ).cost_bounds(x)
        missed.append(bool(((upper[:, 0, 1:] < cost) | (lower[:, 0, 1:] > cost)).any()))
    assert missed == [False, True]


def test_the_certificate_names_the_belief() -> None:
    x = contexts(np.random.default_rng(1), 1)[0]
    believing, plain = (
        ged.GEDUCB(problem(safe_value_exact=exact)).ask(x).certificate for exact in (True, False)
    )
    assert "what was declared known is exact" in believing.constraints[0].rule
    assert any("believed exact" in note for note in believing.notes)
    assert "known" not in plain.constraints[0].rule
    assert not any("exact" in note for note in plain.notes)


def test_a_journal_knows_the_declaration(tmp_path) -> None:
    x = contexts(np.random.default_rng(1), 2)
    path = tmp_path / "run.db"
    with ged.GEDUCB(problem(safe_value_exact=True), journal=path) as agent:
        agent.tell(agent.ask(x[0]).id, 0.3, 0.2)
        before = agent.policy(x[1])
    with pytest.raises(ged.errors.JournalMismatchError):
        ged.resume(path, problem())
    with ged.resume(path, problem(safe_value_exact=True)) as agent:
        assert (agent.policy(x[1]) == before).all()


def test_where_it_cannot_be_used_the_certificate_says_so() -> None:
    def clicks(x, a, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([K]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=w[a]), obs=y)

    cls = ged.density_class(clicks)
    limit = ged.Constraint(cls, ged.mean(0, 1), at_most=0.5, safe_value=0.1, safe_value_exact=True)
    declared = ged.Problem(
        n_actions=K,
        utility=ged.Utility(linear_class(), ged.mean(0, 1)),
        constraints=[limit],
        safe_action=0,
    )
    notes = (
        ged.GEDUCB(declared, guard=None)
        .ask(contexts(np.random.default_rng(1), 1)[0])
        .certificate.notes
    )
    assert any("safe_value_exact of 'cost' was not used" in note for note in notes)


def test_contradictions_are_named() -> None:
    with pytest.raises(
        ged.errors.ProblemError, match="learn_safe=False leaves the safe action out"
    ):
        ged.Problem(
            n_actions=K,
            utility=problem().utility,
            constraints=problem(safe_value_exact=True).constraints,
            safe_action=0,
            learn_safe=False,
        )
    nothing = contexts(np.random.default_rng(1), 1)[0]
    nothing[:D] = 0.0  # whatever its parameters, the model says 0 here
    with pytest.raises(
        ged.errors.ProblemError, match="declared exact, but whatever its parameters"
    ):
        ged.GEDUCB(problem(safe_value_exact=True)).ask(nothing)
    assert jnp.allclose(
        ged.GEDUCB(problem(0.0, safe_value_exact=True)).ask(nothing).policy.sum(), 1.0
    )


def test_a_linear_gaussian_run_compiles_two_functions_of_its_program() -> None:
    fresh = ged.density_class(linear_program(K, D, SIGMA))
    limit = ged.Constraint(fresh, ged.mean(0, 1), at_most=TAU, safe_value=float(SAFE @ MU))
    declared = ged.Problem(
        n_actions=K, utility=ged.Utility(fresh, ged.mean(0, 1)), constraints=[limit], safe_action=0
    )
    infeasible_rounds(declared, 0, 25)
    assert fresh.program.compilations == {"first_look": 1, "predictor": 1}
