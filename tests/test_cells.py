"""Every oracle with every rule on both backends: it runs, or is refused with a sentence, and
never falls back in each round.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import gedppl as ged
from gedppl import errors
from gedppl.certificate import ConstraintCertificate
from gedppl.learning.credible import quantile_level
from tests.optional_pyro import PPLS, pyro, torch
from tests.plain_worlds import state_of

EXAMPLE = (np.zeros((1, 1)), np.zeros(1, np.int64))


def numpyro_cost(x, a, y=None):
    b = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.sample("z", dist.Bernoulli(logits=-2 + a * (b[0] + b[1] * x[:, 0])), obs=y)


def numpyro_gain(x, a, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(a * (w[0] + w[1] * x[:, 0]), 0.5), obs=y)


def pyro_cost(x, a, y=None):
    b = pyro.sample(
        "b", pyro.distributions.Normal(torch.zeros(2, dtype=torch.float64), 1.0).to_event(1)
    )
    pyro.sample("z", pyro.distributions.Bernoulli(logits=-2 + a * (b[0] + b[1] * x[:, 0])), obs=y)


def pyro_gain(x, a, y=None):
    w = pyro.sample(
        "w", pyro.distributions.Normal(torch.zeros(2, dtype=torch.float64), 1.0).to_event(1)
    )
    pyro.sample("y", pyro.distributions.Normal(a * (w[0] + w[1] * x[:, 0]), 0.5), obs=y)


def numpyro_line(x, a, y=None):
    b = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.sample("z", dist.Normal(0.1 + 0.1 * a * (b[0] + b[1] * x[:, 0]), 0.3), obs=y)


def pyro_line(x, a, y=None):
    b = pyro.sample(
        "b", pyro.distributions.Normal(torch.zeros(2, dtype=torch.float64), 1.0).to_event(1)
    )
    mean = 0.1 + 0.1 * a * (b[0] + b[1] * x[:, 0])
    pyro.sample("z", pyro.distributions.Normal(mean, 0.3), obs=y)


def numpyro_bent(x, a, y=None):
    b = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.sample("z", dist.Bernoulli(logits=-2 + a * jnp.tanh(b[0] + b[1] * x[:, 0])), obs=y)


def pyro_bent(x, a, y=None):
    b = pyro.sample(
        "b", pyro.distributions.Normal(torch.zeros(2, dtype=torch.float64), 1.0).to_event(1)
    )
    logits = -2 + a * torch.tanh(b[0] + b[1] * x[:, 0])
    pyro.sample("z", pyro.distributions.Bernoulli(logits=logits), obs=y)


MODELS = {"numpyro": (numpyro_gain, numpyro_cost), "pyro": (pyro_gain, pyro_cost)}
# of the cost: exact by an ellipsoid, on a grid of members, by search
KINDS = {
    "numpyro": {"linear": numpyro_line, "finite": numpyro_cost, "program": numpyro_bent},
    "pyro": {"linear": pyro_line, "finite": pyro_cost, "program": pyro_bent},
}
MEMBERS = [{"b": [u, v]} for u in (-1.0, 0.0, 0.5, 1.0) for v in (-0.5, 0.0, 0.5)]
SOURCES = ("laplace", "svi", "nuts", "smc", "prior")
BY_DRAWS = {
    "credible": lambda s: ged.credible_set(source=s, draws=200),
    "sampled": lambda s: ged.sampled_set(s, draws=200),
    "predictive": lambda s: ged.likelihood_ratio(predictive=s),
}
ORACLES = {
    "auto": lambda: None,
    "mle": ged.mle,
    "score equations": ged.score_equations,
    "least squares": ged.least_squares,
    "svi": lambda: ged.svi(steps=200),
}
RULES = {
    "likelihood ratio": ged.likelihood_ratio,
    "chi-square": ged.radius.chi_square,
    "ball": ged.hellinger_ball,
    "bracketing": lambda: ged.hellinger_ball(ged.radius.bracketing(4.0, 4.0)),
    "self-normalised": lambda: ged.hellinger_ball(ged.radius.self_normalised(1.0, 2.0)),
    "paper": ged.paper_radius,
    "bootstrap": lambda: ged.parametric_bootstrap(20),
    "sampled": lambda: ged.sampled_set(draws=200),
    **{f"credible {s}": (lambda s=s: ged.credible_set(source=s, draws=200)) for s in SOURCES},
}
REFUSED = {("ball", o): "needs a finite class" for o in ORACLES}
REFUSED |= {("self-normalised", o): "known noise scale" for o in ORACLES}
REFUSED |= {
    (rule, "least squares"): "least squares needs"
    for rule in RULES
    if (rule, "least squares") not in REFUSED
}


@functools.cache
def problem(ppl: str) -> ged.Problem:
    gain, cost = (ged.density_class(model, example=EXAMPLE) for model in MODELS[ppl])
    limit = ged.Constraint(cost, ged.mean(0, 1), at_most=0.3, safe_value=0.13, name="cost")
    return ged.Problem(3, ged.Utility(gain, ged.mean(-4, 4)), [limit], safe_action=0)


@functools.cache
def other_problem(ppl: str, kind: str) -> ged.Problem:
    """The same with another kind of class behind the limit."""
    model = KINDS[ppl][kind]
    cost = (
        ged.finite_class(model, MEMBERS)
        if kind == "finite"
        else ged.density_class(model, example=EXAMPLE)
    )
    limit = ged.Constraint(cost, ged.mean(0, 1), at_most=0.3, safe_value=0.13, name="cost")
    return replace(problem(ppl), constraints=[limit])


def run(declared: ged.Problem, oracle: str, rule: str, rounds: int) -> None:
    """The rule and the oracle are the constraint's: that is where a wrong one would matter."""

    def begun() -> ged.GEDUCB:
        return ged.GEDUCB(
            declared,
            oracle={"cost": ORACLES[oracle]()},
            confidence={"cost": RULES[rule]()},
            seed=0,
            guard=None,
        )

    if (rule, oracle) in REFUSED:
        with pytest.raises(errors.SettingError, match=f"of 'cost': .*{REFUSED[rule, oracle]}"):
            begun()
        return
    part = last_certificate(begun(), rounds)
    assert part.guaranteed is (rule == "likelihood ratio") or rule == "bracketing"
    assert part.kind == ("credible" if rule.startswith("credible") else part.kind)


def last_certificate(agent: ged.GEDUCB, rounds: int) -> ConstraintCertificate:
    """Of the limit, after so many rounds of which none fell back."""
    rng = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", ged.FallbackWarning)
        for _ in range(rounds):
            x = rng.normal(size=1)
            decision = agent.ask(x)
            assert decision.certificate.fallback is None
            a = decision.action
            agent.tell(
                decision.id,
                rng.normal(0.5 * a, 0.5),
                float(rng.random() < 1 / (1 + np.exp(2 - 0.5 * a))),
            )
    return decision.certificate.constraints[0]


QUICK = [
    ("numpyro", "mle", "credible prior"),
    ("numpyro", "auto", "chi-square"),
    ("pyro", "auto", "credible laplace"),
]


@pytest.mark.parametrize(("ppl", "oracle", "rule"), QUICK)
def test_a_few_cells_run(ppl, oracle, rule) -> None:
    if ppl == "pyro":
        pytest.importorskip("pyro")
    run(problem(ppl), oracle, rule, 10)


@pytest.mark.parametrize(
    ("rule", "oracle"),
    [("ball", "auto"), ("self-normalised", "auto"), ("sampled", "least squares")],
)
def test_what_cannot_run_is_refused_with_a_sentence(rule, oracle) -> None:
    run(problem("numpyro"), oracle, rule, 10)


@pytest.mark.slow
@pytest.mark.parametrize("ppl", PPLS)
def test_every_cell_runs_a_hundred_rounds_or_is_refused(ppl) -> None:
    declared = problem(ppl)
    for oracle, rule in itertools.product(ORACLES, RULES):
        run(declared, oracle, rule, 100)


def serves(ppl: str, kind: str, way: str, source: str, rounds: int) -> None:
    agent = ged.GEDUCB(
        other_problem(ppl, kind),
        oracle={"cost": ged.svi(steps=200)} if source == "svi" and kind != "finite" else None,
        confidence={"cost": BY_DRAWS[way](source)},
        seed=0,
        guard=None,
    )
    part = last_certificate(agent, rounds)
    exact = kind != "program" and way == "predictive"
    kinds = {"credible": "credible", "sampled": "approximation"}
    assert part.kind == kinds.get(way, "guarantee" if exact else "approximation")
    assert part.guaranteed is exact


@pytest.mark.parametrize(("kind", "source"), [("linear", "smc"), ("finite", "nuts")])
def test_draws_serve_other_kinds_of_classes_too(kind, source) -> None:
    serves("numpyro", kind, "credible", source, 8)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["linear", "finite", "program"])
@pytest.mark.parametrize("ppl", PPLS)
def test_every_source_serves_every_kind_of_class(ppl, kind) -> None:
    for way, source in itertools.product(BY_DRAWS, SOURCES):
        serves(ppl, kind, way, source, 100)


# what a decision rests on, and that it comes back -------------------------------------------------


def comes_back(ppl: str, source: str, made: type[ged.GEDUCB], path: Path) -> None:
    """Bounds are those that the next decision uses, the policy meets the draws' rank, and a
    resumed agent is the same one, from the journal and from a snapshot.
    """
    declared, rule = problem(ppl), ged.credible_set(source=source, draws=200)
    options = {"confidence": {"cost": rule}}
    if made is ged.ThompsonSampling:
        options["confidence"]["utility"] = rule
    agent, limit = made(declared, seed=3, journal=path, **options), declared.limits[0]
    rng = np.random.default_rng(1)
    for _ in range(9):
        x = rng.normal(size=1)
        bounds = agent.cost_bounds(x)
        learner = state_of(agent, x[None]).learners["cost"]
        decision = agent.ask(x)
        terms = agent.explain(decision)
        np.testing.assert_array_equal((terms.cost_lower, terms.cost_upper), bounds)
        level = quantile_level(learner.draws.ess, 0.05, 3)
        costs = learner.values(declared.constraints[0].functional, x[None], 3)[:, 0]
        costs[:, 0] = 0.13
        kept = learner.draws.weights[costs @ decision.policy <= limit + 1e-9].sum()
        assert level > 1 or kept >= level - 1e-9
        agent.tell(decision.id, rng.normal(0.3, 0.5), float(rng.random() < 0.2))
    at, hashed, expected = np.array([0.4]), agent.state_hash(), agent.policy([0.4])
    agent.close()
    for saved in (False, True):
        back = ged.resume(path, declared, **options)
        assert back.resumed.snapshot is not None or not saved
        assert back.state_hash() == hashed
        np.testing.assert_array_equal(back.policy(at), expected)
        assert back.save()
        back.close()


@pytest.mark.parametrize("made", [ged.GEDUCB, ged.ThompsonSampling])
def test_moved_draws_come_back(made, tmp_path) -> None:
    comes_back("numpyro", "smc", made, tmp_path / "j.db")


@pytest.mark.slow
@pytest.mark.parametrize("made", [ged.GEDUCB, ged.ThompsonSampling])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("ppl", PPLS)
def test_draws_of_every_source_come_back(ppl, source, made, tmp_path) -> None:
    comes_back(ppl, source, made, tmp_path / "j.db")
