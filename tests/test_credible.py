"""Credible limits and sampled sets: quantiles over draws against closed forms, the policy
played, and what is claimed.
"""

from __future__ import annotations

import gc
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import binom, norm

import gedppl as ged
from gedppl import errors
from gedppl.ged_ucb import Today, kept_on_draws, limit_costs
from gedppl.learning import feed, learner_for
from gedppl.learning.credible import MONTE_CARLO, quantile_level
from gedppl.learning.drawn import DrawnLearner
from gedppl.learning.draws import ParameterDraws
from gedppl.learning.learner import Bounds, DrawnValues
from gedppl.learning.variational import SVI
from gedppl.numerics.weighted import quantile_index
from tests.plain_worlds import PlainWorld, state_of
from tests.plain_worlds import play as play_world

K, SCALE, PRIOR = 3, 0.3, 0.5
X = np.zeros((1, 1))


def arms(x, a, y=None):
    """A mean for each action: everything about the posterior is known."""
    w = numpyro.sample("w", dist.Normal(0, PRIOR).expand([K]).to_event(1))
    numpyro.sample("y", dist.Normal(w[a], SCALE), obs=y)


def slopes(x, a, y=None):
    b = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.sample("z", dist.Bernoulli(logits=-2 + a * (b[0] + b[1] * x[:, 0])), obs=y)


def free(x, a, y=None):
    w = numpyro.param("w", jnp.zeros(K))
    numpyro.sample("y", dist.Normal(w[a], SCALE), obs=y)


EXAMPLE = (X, np.zeros(1, np.int64))
ARMS = ged.density_class(arms, example=EXAMPLE)
SLOPES = ged.density_class(slopes, example=EXAMPLE)
GAIN = ged.Utility(ged.density_class(arms, example=EXAMPLE), ged.mean(-3, 3))


def problem(model=ARMS, low=-3.0, high=3.0, **options) -> ged.Problem:
    given = {"at_most": 0.4, "safe_value": 0.0} | options
    return ged.Problem(
        K, GAIN, [ged.Constraint(model, ged.mean(low, high), name="cost", **given)], safe_action=0
    )


PROBLEM = problem()
FINITE = PlainWorld()
LOGISTIC = problem(SLOPES, 0.0, 1.0, at_most=0.3, safe_value=0.15)


def play(agent, rounds: int, seed: int = 0, truth=(0.0, 0.1, 0.8)) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        decision = agent.ask(rng.normal(size=1))
        agent.tell(
            decision.id, rng.normal(truth[decision.action], SCALE), float(rng.random() < 0.2)
        )


# quantiles over draws -----------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "eps"), [(1000, 0.05), (400, 0.1), (120, 0.05), (60, 0.2)])
def test_the_rank_is_the_smallest_that_is_above_the_quantile_but_for_monte_carlo_error(
    size, eps
) -> None:
    """P(r-th smallest of M < the 1 - eps quantile) = P(Binomial(M, 1 - eps) >= r)."""
    rank = round(quantile_level(size, eps, 5) * size)
    assert binom.sf(rank - 1, size, 1 - eps) <= MONTE_CARLO / 5
    assert binom.sf(rank - 2, size, 1 - eps) > MONTE_CARLO / 5


def test_too_few_draws_claim_no_quantile() -> None:
    assert quantile_level(50, 0.05, 3) == np.inf
    assert quantile_level(0.3, 0.05, 3) == np.inf
    assert quantile_level(50, 0.05, 3, exact=True) == 0.95


def test_weighted_quantiles_are_those_of_the_definition() -> None:
    rng = np.random.default_rng(0)
    values, weights = rng.integers(0, 5, (40, 6)).astype(float), rng.dirichlet(np.ones(40))
    for level in (0.5, 0.9, 0.99):
        at = quantile_index(values, weights, level)
        for k in range(6):
            fits = [
                v
                for v in np.unique(values[:, k])
                if weights[values[:, k] <= v].sum() >= level - 1e-12
            ]
            assert values[at[k], k] == fits[0]


def test_bounds_are_the_posteriors_own_quantiles() -> None:
    rng = np.random.default_rng(1)
    a = np.repeat(np.arange(K), [0, 5, 20])
    y = rng.normal(0.3, SCALE, len(a))
    rule = ged.credible_set(draws=20_000)
    found = feed(
        learner_for(ARMS, delta=0.05, confidence=rule), np.zeros((len(a), 1)), a, y
    ).bounds(ged.mean(-3, 3), X, K)
    precision = np.array([PRIOR**-2 + (a == k).sum() / SCALE**2 for k in range(K)])
    mean = np.array([y[a == k].sum() for k in range(K)]) / SCALE**2 / precision
    sd = precision**-0.5
    level = quantile_level(20_000, 0.05, K)
    # four standard errors of a quantile
    error = 4 * sd * np.sqrt(level * (1 - level) / 20_000) / norm.pdf(norm.ppf(level))
    assert (np.abs(found.upper[0] - (mean + norm.ppf(level) * sd)) <= error).all()
    assert (np.abs(found.lower[0] - (mean - norm.ppf(level) * sd)) <= error).all()
    assert found.witness.shape == (1, K, K)
    # the draw at which each action costs that
    np.testing.assert_allclose(np.diagonal(found.witness[0]), found.upper[0])


def test_weights_between_refits_are_as_good_as_new_draws() -> None:
    rng = np.random.default_rng(2)
    a, y = np.arange(30) % K, rng.normal(0.2, SCALE, 30)
    rows = np.zeros((30, 1)), a, y
    rule = ged.credible_set(draws=20_000)
    fitted = feed(learner_for(ARMS, delta=0.05, confidence=rule), *rows)
    weighted = fitted.absorb(np.zeros((3, 1)), np.arange(K), np.full(3, 0.6))
    assert weighted.draws.log_weights is not None
    new = weighted.refit()
    assert new.draws.log_weights is None
    was, now, then = (one.bounds(ged.mean(-3, 3), X, K) for one in (fitted, weighted, new))
    np.testing.assert_allclose(now.upper, then.upper, atol=0.01)
    assert np.abs(was.upper - then.upper).max() > 0.015  # without the weights it would be noticed


def test_draws_that_the_rows_leave_behind_are_drawn_again_at_once() -> None:
    learner = learner_for(ARMS, delta=0.05, confidence=ged.credible_set())
    moved = learner.absorb(np.zeros((60, 1)), np.arange(60) % K, np.full(60, 1.4))
    assert moved.draws.usable
    assert moved.draws.source == "laplace"
    weighted = learner_for(ARMS, delta=0.05, confidence=ged.credible_set(source="prior"))
    lost = weighted.absorb(np.zeros((60, 1)), np.arange(60) % K, np.full(60, 1.4))
    found = lost.bounds(ged.mean(-3, 3), X, K)
    # too few of the prior's draws are left: the range's end, and it says so
    assert (found.upper == 3).all()
    assert "range's end" in found.note


def test_a_finite_class_has_the_exact_posterior() -> None:
    cls = FINITE.problem.constraints[0].model
    rng = np.random.default_rng(0)
    x, a = rng.integers(0, 2, (12, 1)).astype(float), rng.integers(0, 3, 12)
    y = (rng.random(12) < 0.4).astype(float)
    learner = feed(learner_for(cls, delta=0.05, confidence=ged.credible_set(0.8)), x, a, y)
    logs = cls.log_likelihood(cls.every, x, a, y).sum(axis=1)
    weights = np.exp(logs - np.logaddexp.reduce(logs))
    found = learner.bounds(ged.mean(0, 1), X, 3)
    for k in range(3):
        costs = cls.tables[:, 0, k]
        assert weights[costs <= found.upper[0, k]].sum() >= 0.8
        assert weights[costs < found.upper[0, k]].sum() < 0.8


# the policy as a whole ----------------------------------------------------------------------------


def seen_with(values: np.ndarray, eps: float, usable=None) -> Today:
    """Costs (S, K) at one context under equal weights; action 0 is safe and costs 0."""
    S, n_actions = values.shape
    drawn = DrawnValues(values[:, None], np.full(S, 1 / S), 1 - eps)
    upper = drawn.quantile(values)
    upper[0] = 0.0
    flat = np.zeros((1, n_actions))
    one = Bounds(flat, flat, upper[None], "sampled", False, "", drawn=drawn)
    can = np.ones((1, n_actions), bool) if usable is None else np.array([usable])
    return Today(flat, flat, flat, np.zeros((1, 1, n_actions)), upper[None, None], can, (one,), ())


def test_quantiles_of_single_actions_do_not_bound_a_mixture_so_it_is_mixed_back() -> None:
    """Two actions that are dear with probability .04 each, never together: each quantile is 0, a
    mixture's is not.
    """
    values = np.zeros((100, 3))
    values[:4, 1] = values[4:8, 2] = 2.0
    seen = seen_with(values, 0.05)
    policy = np.array([[0.0, 0.5, 0.5]])
    assert (seen.upper == 0).all()
    # the control: more often than .05 above the limit
    assert (values @ policy[0] > 0.4).mean() == 0.08
    played = kept_on_draws(PROBLEM, seen, policy)
    assert (values @ played[0] > 0.4 + 1e-9).mean() <= 0.05
    assert 0.5 < played[0, 0] < 0.61  # and no more of the safe action than it takes: 2 * .2 = .4
    np.testing.assert_allclose(limit_costs(PROBLEM, seen, played), 0.4, rtol=1e-6)


def test_without_the_safe_action_it_is_mixed_towards_the_cheapest_that_is_allowed() -> None:
    values = np.zeros((100, 3))
    values[:4, 1] = values[4:8, 2] = 2.0
    values[:, 2] += 0.1
    seen = seen_with(values, 0.05, usable=[False, True, True])
    played = kept_on_draws(PROBLEM, seen, np.array([[0.0, 0.5, 0.5]]))
    assert played[0, 0] == 0
    assert (values @ played[0] > 0.4 + 1e-9).mean() <= 0.05
    hopeless = seen_with(values + 3.0, 0.05, usable=[False, True, True])
    with pytest.raises(
        errors.InfeasibleError,
        match=r"posterior probability asked for: allow the "
        r"safe action 0",
    ):
        kept_on_draws(PROBLEM, hopeless, np.array([[0.0, 0.5, 0.5]]))


def test_under_a_limit_on_every_draw_single_quantiles_are_right() -> None:
    values = np.zeros((100, 3))
    values[:4, 1] = values[4:8, 2] = 2.0
    each = problem(every_draw=True)
    policy = np.array([[0.0, 0.5, 0.5]])
    assert kept_on_draws(each, seen_with(values, 0.05), policy).tolist() == policy.tolist()


# an agent -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", [PROBLEM, LOGISTIC, problem(every_draw=True)], ids=["linear", "logistic", "every draw"]
)
def test_the_certificate_claims_posterior_probability_and_never_a_guarantee(given) -> None:
    agent = ged.GEDUCB(given, confidence=ged.credible_set(0.9), seed=0)
    play(agent, 12)
    x = np.array([0.3])
    lower, upper = agent.cost_bounds(x)
    decision = agent.ask(x)
    part = decision.certificate.constraints[0]
    assert (part.kind, part.credible, part.method, part.guaranteed) == (
        "credible",
        0.9,
        "sampled",
        False,
    )
    assert (
        "credible: the limit is kept with posterior probability >= 0.9 at this context, if model "
        "and prior are right" in part.claim
    )
    assert not decision.certificate.guaranteed
    assert decision.certificate.to_dict()["constraints"][0]["kind"] == "credible"
    terms = agent.explain(decision)
    np.testing.assert_array_equal(terms.cost_upper, upper)  # what cost_bounds said is what ask used
    np.testing.assert_array_equal(terms.cost_lower, lower)
    assert part.worst_case <= given.limits[0] + 1e-9


@pytest.mark.parametrize("given", [PROBLEM, LOGISTIC], ids=["linear", "logistic"])
def test_the_policy_played_meets_the_draws_quantile_of_its_own_cost(given) -> None:
    agent = ged.GEDUCB(given, confidence=ged.credible_set(0.9), seed=1)
    rng = np.random.default_rng(1)
    mixed = 0
    for _ in range(15):
        x = rng.normal(size=1)
        state = state_of(agent, x[None])
        learner, c = state.learners["cost"], given.constraints[0]
        decision = agent.ask(x)
        values = learner.values(c.functional, x[None], K)[:, 0]
        values[:, 0] = c.safe_value
        above = learner.draws.weights[values @ decision.policy > c.at_most + 1e-9].sum()
        assert above <= 0.1
        mixed += (decision.policy > 0).sum() > 1
        agent.tell(decision.id, rng.normal(0.2, SCALE), float(rng.random() < 0.2))
    assert mixed > 2


@pytest.mark.parametrize(
    "rule",
    [ged.credible_set(), pytest.param(ged.sampled_set(), marks=pytest.mark.slow)],
    ids=["credible", "sampled"],
)
def test_a_record_of_a_decision_does_not_keep_the_draws_alive(rule) -> None:
    """Thousands of draws for each of thousands of decisions would fill any memory."""
    agent = ged.GEDUCB(LOGISTIC, confidence={"cost": rule}, seed=0, guard=None)
    play(agent, 12)
    gc.collect()
    kinds = (DrawnValues, ParameterDraws, DrawnLearner)
    alive = {k: sum(type(thing) is k for thing in gc.get_objects()) for k in kinds}
    play(agent, 12)
    gc.collect()
    for kind, before in alive.items():
        now = sum(type(thing) is kind for thing in gc.get_objects())
        assert now <= before + 2, kind
    assert agent.explain(agent.rounds - 1).certificate.constraints[0].witness is not None


def test_a_guide_of_its_own_is_fitted_from_where_it_was(monkeypatch, tmp_path) -> None:
    """The oracle is another, so that only the draws need the guide; also after a snapshot."""
    steps, rule = [], ged.credible_set(source="svi", draws=100)
    fit = SVI._fit
    monkeypatch.setattr(SVI, "_fit", lambda self, *a: steps.append(a[-1]) or fit(self, *a))
    agent = ged.GEDUCB(LOGISTIC, confidence={"cost": rule}, journal=tmp_path / "j.db", guard=None)
    rng = np.random.default_rng(0)
    x, a = rng.normal(size=(40, 1)), np.arange(40) % K
    z = (rng.random(40) < 0.2).astype(float)
    agent.observe(x[:30], a[:30], np.zeros(30), z[:30])
    agent.policy([0.0])
    assert steps[0] == 2000
    assert agent.save()
    agent.close()
    steps.clear()
    back = ged.resume(tmp_path / "j.db", LOGISTIC, confidence={"cost": rule})
    back.observe(x[30:], a[30:], np.zeros(10), z[30:])
    back.policy([0.0])
    back.close()
    assert set(steps) == {40}


def test_an_informative_prior_is_believed_and_a_guarantee_does_not_believe_it() -> None:
    credible = ged.GEDUCB(PROBLEM, confidence={"cost": ged.credible_set()}).cost_bounds(X[0])[1][0]
    proved = ged.GEDUCB(PROBLEM).cost_bounds(X[0])[1][0]
    assert (credible[1:] < 2.5 * PRIOR).all()
    assert (proved[1:] == 3).all()


@pytest.mark.parametrize("source", ["laplace", "svi", "nuts", "smc", "prior"])
def test_before_data_every_source_is_the_prior(source) -> None:
    found = learner_for(ARMS, delta=0.05, confidence=ged.credible_set(source=source)).bounds(
        ged.mean(-3, 3), X, K
    )
    np.testing.assert_allclose(
        found.upper, PRIOR * norm.ppf(quantile_level(1000, 0.05, K)), rtol=0.15
    )
    prior = learner_for(ARMS, delta=0.05, confidence=ged.credible_set(source="prior")).bounds(
        ged.mean(-3, 3), X, K
    )
    np.testing.assert_array_equal(found.upper, prior.upper)


def test_one_outcome_may_be_credible_and_another_guaranteed() -> None:
    other = ged.Constraint(SLOPES, ged.mean(0, 1), at_most=0.3, safe_value=0.15, name="harm")
    both = replace(PROBLEM, constraints=[*PROBLEM.constraints, other])
    agent = ged.GEDUCB(both, confidence={"cost": ged.credible_set()}, seed=0)
    rng = np.random.default_rng(0)
    for _ in range(4):
        decision = agent.ask(rng.normal(size=1))
        agent.tell(decision.id, rng.normal(0, SCALE), {"cost": rng.normal(0, SCALE), "harm": 0.0})
    assert [c.kind for c in agent.ask([0.1]).certificate.constraints] == ["credible", "guarantee"]


def test_a_cohort_is_decided_as_its_members_would_be() -> None:
    together, apart = (
        ged.GEDUCB(LOGISTIC, confidence=ged.credible_set(), seed=0) for _ in range(2)
    )
    for agent in (together, apart):
        play(agent, 6)
    x = np.array([[0.1], [-1.0], [2.0]])
    np.testing.assert_allclose(together.policy(x), [apart.policy(one) for one in x], atol=1e-9)
    masked = apart.policy(x[0], allowed=[True, False, True])
    assert masked[1] == 0


@pytest.mark.filterwarnings("ignore::gedppl.learning.radius.CoverageWarning")
def test_the_paper_and_the_replay_of_past_rounds_take_credible_limits_too() -> None:
    for options in ({"exploration": "counterfactual"}, {"mode": "theory"}):
        agent = ged.GEDUCB(PROBLEM, confidence=ged.credible_set(), **options)
        play(agent, 8)
        assert agent.ask([0.0]).certificate.constraints[0].kind == "credible"
    agent = ged.GEDUCB(PROBLEM, mode="paper", confidence={"cost": ged.credible_set()})
    play(agent, 6)
    assert agent.ask([0.0]).certificate.constraints[0].kind == "credible"


@pytest.mark.parametrize(
    "rule", [ged.credible_set(), ged.sampled_set()], ids=["credible", "sampled"]
)
@pytest.mark.parametrize("given", [PROBLEM, LOGISTIC], ids=["linear", "logistic"])
def test_a_resumed_agent_plays_the_same(tmp_path, given, rule) -> None:
    agent = ged.GEDUCB(given, confidence=rule, seed=3, journal=tmp_path / "j.db")
    play(agent, 9)
    x = np.array([0.4])
    expected, state = agent.policy(x), agent.state_hash()
    agent.journal.close()
    replayed = ged.resume(tmp_path / "j.db", given, confidence=rule)
    assert replayed.resumed.snapshot is None
    np.testing.assert_array_equal(replayed.policy(x), expected)
    assert replayed.save()
    replayed.close()
    restored = ged.resume(tmp_path / "j.db", given, confidence=rule)
    assert restored.resumed.snapshot is not None
    np.testing.assert_array_equal(restored.policy(x), expected)
    assert restored.state_hash() == state
    play(restored, 3)
    restored.close()
    with pytest.raises(errors.JournalMismatchError, match="confidence"):
        ged.resume(tmp_path / "j.db", given)


def test_a_finite_class_comes_back_too(tmp_path) -> None:
    agent = ged.GEDUCB(FINITE.problem, confidence=ged.credible_set(), journal=tmp_path / "j.db")
    play_world(agent, FINITE, 6)
    expected = agent.policy([0.0])
    agent.close()
    np.testing.assert_array_equal(
        ged.resume(tmp_path / "j.db", FINITE.problem, confidence=ged.credible_set()).policy([0.0]),
        expected,
    )


def test_declarations_are_held_against_the_set_and_not_against_draws() -> None:
    """Outcomes around 2.5 refute a range that ends at 1; draws, which guarantee nothing, would
    refute nothing.
    """
    given = problem(high=1.0, low=-1.0)
    agent = ged.GEDUCB(given, confidence={"cost": ged.credible_set()}, seed=0)
    agent.observe(
        np.zeros((12, 1)),
        np.arange(12) % K,
        np.zeros(12),
        np.where(np.arange(12) % K == 0, 0.0, 2.5),
    )
    with pytest.raises(errors.DeclarationError, match=r"range \[-1, 1\]"):
        agent.ask([0.0])
    found = agent.confidence_set("cost").learner.bounds(given.constraints[0].functional, X, K)
    assert not found.guaranteed
    assert found.watched.guaranteed


# sampled sets -------------------------------------------------------------------------------------


def test_a_sampled_set_is_an_inner_approximation_of_the_set_itself() -> None:
    rng = np.random.default_rng(0)
    rows = np.zeros((30, 1)), np.arange(30) % K, rng.normal(0.2, SCALE, 30)
    sampled = feed(learner_for(ARMS, delta=0.05, confidence=ged.sampled_set(draws=500)), *rows)
    found, whole = sampled.bounds(ged.mean(-3, 3), X, K), sampled.base.bounds(ged.mean(-3, 3), X, K)
    assert (found.upper <= whole.upper).all()
    assert (found.upper > whole.estimate).all()
    assert not found.guaranteed
    assert found.note.startswith("inner approximation")
    kept = sampled.base.contains(sampled.draws.theta)
    np.testing.assert_array_equal(found.upper[0], sampled.draws.theta[kept].max(axis=0))
    agent = ged.GEDUCB(PROBLEM, confidence=ged.sampled_set())
    play(agent, 4)
    part = agent.ask([0.0]).certificate.constraints[0]
    assert (part.kind, part.guaranteed) == ("approximation", False)
    assert "inner approximation" in part.claim


def test_draws_outside_the_set_are_left_out() -> None:
    """From the prior, far from the data: most are not in the set, and where none is the range
    stands in.
    """
    rows = np.zeros((30, 1)), np.arange(30) % K, np.full(30, 0.4)
    sampled = feed(
        learner_for(ARMS, delta=0.05, confidence=ged.sampled_set(source="prior", draws=2000)), *rows
    )
    kept = sampled.base.contains(sampled.draws.theta)
    assert 0 < kept.sum() < 500
    assert sampled.bounds(ged.mean(-3, 3), X, K).upper.max() < sampled.draws.theta.max()
    away = feed(sampled, np.zeros((60, 1)), np.arange(60) % K, np.full(60, 2.9))
    assert (away.bounds(ged.mean(-3, 3), X, K).upper == 3).all()


# confidence sets as objects -----------------------------------------------------------------------


def test_a_set_from_data_takes_the_rules_over_draws() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 1)), np.arange(40) % K, (rng.random(40) < 0.2).astype(float)
    found = ged.confidence_set(SLOPES, *rows, confidence=ged.credible_set())
    bounds = found.bounds(ged.mean(0, 1), X, K)
    assert not bounds.guaranteed
    assert set(bounds.witness[0][1]) == {"b"}
    assert "posterior quantile" in found.rule
    assert found.contains(found.estimate)
    finite = ged.confidence_set(
        FINITE.problem.utility.model,
        np.zeros((5, 1)),
        np.arange(5) % 3,
        np.ones(5),
        confidence=ged.credible_set(),
    )
    assert isinstance(finite.bounds(ged.mean(0, 1), X, 3).witness[0][0], int)


# errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [ged.credible_set, ged.sampled_set])
def test_parameters_without_a_prior_are_refused_at_construction_if_the_class_was_run(
    make, tmp_path
) -> None:
    given = problem(ged.density_class(free, example=EXAMPLE))
    with pytest.raises(
        errors.SettingError,
        match=r"confidence of 'cost': .*parameters \['w'\] "
        r"have no prior.*sample sites",
    ):
        ged.GEDUCB(given, confidence=make(), journal=tmp_path / "j.db")
    assert list(tmp_path.iterdir()) == []


def test_otherwise_at_the_first_ask_and_nothing_is_recorded(tmp_path) -> None:
    agent = ged.GEDUCB(
        problem(ged.density_class(free)),
        confidence={"cost": ged.credible_set()},
        journal=tmp_path / "j.db",
    )
    before = len(agent.journal)
    with pytest.raises(errors.SettingError, match="have no prior"):
        agent.ask([0.0])
    assert (agent.rounds, len(agent.journal)) == (0, before)


@pytest.mark.parametrize(
    ("rule", "match"),
    [
        (ged.hellinger_ball(), "needs a finite class"),
        (ged.hellinger_ball(ged.radius.self_normalised(1.0, 1.0)), "known noise scale"),
        (ged.parametric_bootstrap(), None),
    ],
)
def test_a_rule_that_lacks_what_it_needs_is_refused_before_it_is_asked(rule, match) -> None:
    if match is None:
        ged.GEDUCB(LOGISTIC, confidence={"cost": rule})
        with pytest.raises(
            errors.SettingError,
            match=r"confidence of 'utility': .*for parametric "
            r"classes",
        ):
            ged.GEDUCB(FINITE.problem, confidence={"utility": rule})
        return
    with pytest.raises(errors.SettingError, match=f"confidence of 'cost': .*{match}"):
        ged.GEDUCB(LOGISTIC, confidence={"cost": rule})


def test_the_papers_bonus_has_no_draws() -> None:
    with pytest.raises(errors.SettingError, match="constraints only"):
        ged.GEDUCB(PROBLEM, mode="paper", confidence=ged.credible_set())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"level": 1.0}, r"level must lie in \[0.5, 1\), got 1.0"),
        ({"level": "0.9"}, "level must lie"),
        ({"level": float("nan")}, "level must lie"),
        ({"source": "guide"}, "source must be one of"),
        ({"draws": 5}, "draws must be a whole number from 20"),
        ({"draws": 99.5}, "draws must be a whole number"),
        ({"draws": True}, "draws must be a whole number"),
    ],
)
def test_options_that_are_none(options, match) -> None:
    with pytest.raises(errors.SettingError, match=match):
        ged.credible_set(**options)


# statistics ---------------------------------------------------------------------------------------


def misses(given: ged.Problem, rounds: int, runs: int, **options) -> tuple[int, int]:
    """Decisions whose policy truly exceeds the limit, with truths from the prior; and decisions
    that left the safe action.
    """
    over = left = 0
    for seed in range(runs):
        rng = np.random.default_rng([seed, 77])
        cost, gain = rng.normal(0, PRIOR, (2, K))
        cost[0] = 0.0
        agent = ged.GEDUCB(given, seed=seed, guard=None, **options)
        for _ in range(rounds):
            decision = agent.ask([0.0])
            over += decision.policy @ cost > given.limits[0] + 1e-9
            left += decision.policy[0] < 1
            a = decision.action
            agent.tell(decision.id, rng.normal(gain[a], SCALE), rng.normal(cost[a], SCALE))
    return int(over), int(left)


def test_limits_are_kept_with_the_probability_claimed_if_the_truth_comes_from_the_prior() -> None:
    """Each first decision by itself is a draw of its own: of 60 runs at most the binomial
    threshold at .2 may be above.
    """
    over, left = misses(PROBLEM, 1, 60, confidence=ged.credible_set(0.8, draws=200))
    assert left > 30
    assert over <= binom.ppf(0.999, 60, 0.2)


@pytest.mark.slow
@pytest.mark.parametrize("every_draw", [False, True])
def test_limits_are_kept_with_that_probability_in_every_round_of_repeated_use(every_draw) -> None:
    """Rounds of one run are not independent: the mean over 100 runs, against .1 and three
    standard errors of runs.
    """
    given, shares = problem(every_draw=every_draw), []
    for first in range(0, 100):
        rng = np.random.default_rng([first, 78])
        cost, gain = rng.normal(0, PRIOR, (2, K))
        cost[0] = 0.0
        agent = ged.GEDUCB(given, seed=first, guard=None, confidence=ged.credible_set(0.9))
        over = 0
        for _ in range(40):
            decision = agent.ask([0.0])
            worst = cost[decision.policy > 0].max() if every_draw else decision.policy @ cost
            over += worst > given.limits[0] + 1e-9
            a = decision.action
            agent.tell(decision.id, rng.normal(gain[a], SCALE), rng.normal(cost[a], SCALE))
        shares.append(over / 40)
    assert np.mean(shares) <= 0.1 + 3 * np.std(shares) / 10
