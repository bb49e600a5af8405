"""A problem looked at before round 1: what the prior says, what can be seen, and what to change."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.special import expit
from scipy.stats import norm

import gedppl as ged
from gedppl import errors, ged_ucb
from gedppl.study.planning import worlds
from gedppl.study.planning.worlds import read_rows

CONTEXTS = np.linspace(-1, 1, 12)[:, None]


def gain(x: Any, a: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0, 0.2).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(w[a], 0.5), obs=y)


def harm(x: Any, a: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(-1, 1).expand([3]).to_event(1))
    numpyro.sample("z", dist.Bernoulli(logits=w[a]), obs=y)


def overlapping(x: Any, a: Any, y: Any = None) -> None:
    b = numpyro.sample("b", dist.Normal(0, 1))
    c = numpyro.sample("c", dist.Normal(0, 1))
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    numpyro.sample("z", dist.Normal(b + c + w[a] * x[:, 0], 1.0), obs=y)


class_of = cache(ged.density_class)  # compiled once


def problem(model: Any = harm, functional: Any = None, **options: Any) -> ged.Problem:
    told = {"at_most": 0.3, "safe_value": 0.2, "name": "harm"} | options
    limit = ged.Constraint(class_of(model), functional or ged.mean(0, 1), **told)
    return ged.Problem(3, ged.Utility(class_of(gain), ged.mean(-3, 3)), [limit], safe_action=0)


@pytest.fixture(scope="module")
def report() -> Any:
    return ged.check_problem(problem(), CONTEXTS, draws=2000, runs=1, rounds=60)


def test_the_first_mix_is_the_formula(report: Any) -> None:
    assert report.limits[0].first_mix == pytest.approx(((0.3 - 0.2) / (1 - 0.2),) * 2)


def test_the_prior_of_a_limit_is_that_of_its_functional(report: Any) -> None:
    limit = report.limits[0]
    assert limit.quantiles[1] == pytest.approx(expit(norm(-1, 1).ppf([0.05, 0.5, 0.95])), abs=0.03)
    above = norm(-1, 1).sf(np.log(0.3 / 0.7))
    assert limit.over[1:] == pytest.approx([above, above], abs=0.05)
    assert limit.only_safe == pytest.approx(above**2, abs=0.05)
    assert limit.safe_above == pytest.approx(norm(-1, 1).sf(np.log(0.2 / 0.8)), abs=0.05)


def test_a_range_that_holds_is_not_warned_of(report: Any) -> None:
    assert not any("outside" in text for text in report.warnings)


def test_the_safe_action_counts_as_declared(report: Any) -> None:
    assert report.limits[0].quantiles[0] == pytest.approx([0.2] * 3)
    assert report.limits[0].over[0] == 0


def test_outcomes_are_predicted_with_their_noise(report: Any) -> None:
    sd = np.hypot(0.2, 0.5)
    assert report.outcomes[0].quantiles == pytest.approx(
        np.tile(norm(0, sd).ppf([0.05, 0.5, 0.95]), (3, 1)), abs=0.05
    )


def test_each_action_shows_its_own_parameters_and_all_show_everything(report: Any) -> None:
    assert [o.ranks.tolist() for o in report.outcomes] == [[1, 1, 1], [1, 1, 1]]
    assert [o.rank for o in report.outcomes] == [3, 3]


def test_actions_with_parameters_of_their_own_are_known_before_any_data(report: Any) -> None:
    own = [f"action {a} (1 parameters)" for a in range(3)]
    assert all(o.sets == ("all rows (3 parameters)", *own) for o in report.outcomes)
    assert f"  sets: for all rows (3 parameters); {'; '.join(own)}" in str(report)


def test_a_certificate_is_read_and_not_promised(report: Any) -> None:
    assert (report.limits[0].method, report.limits[0].guaranteed) == ("exact", True)


def test_a_bound_without_a_guarantee_is_warned_of() -> None:
    def lapsing(x: Any, a: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(-1, 1).expand([3]).to_event(1))
        lapse = numpyro.sample("lapse", dist.Beta(1, 20))
        numpyro.sample(
            "z",
            dist.Bernoulli(probs=lapse / 2 + (1 - lapse) / (1 + jnp.exp(-w[a] * x[:, 0]))),
            obs=y,
        )

    found = ged.check_problem(problem(lapsing), CONTEXTS[::4], runs=0, draws=20)
    assert not found.limits[0].guaranteed
    assert any("no guarantee" in text for text in found.warnings)


def scaled_effects(x: Any, a: Any, y: Any = None) -> None:
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    apart = numpyro.sample("apart", dist.Normal(0, 1).expand([3]).to_event(1))
    numpyro.sample("z", dist.Normal(spread * apart[a], 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "dim", "unseen"),
    [(overlapping, 5, ("b", "c")), (scaled_effects, 4, ("spread", "apart"))],
)
def test_a_redundancy_that_changes_no_value_is_shown_and_not_warned_of(
    model: Any, dim: int, unseen: tuple[str, ...]
) -> None:
    found = ged.check_problem(
        problem(model, ged.mean(-9, 9), safe_value=0.1), CONTEXTS, runs=0, draws=50
    )
    outcome = found.outcomes[1]
    assert (outcome.dim, outcome.rank, outcome.unseen) == (dim, dim - 1, unseen)
    assert outcome.blind == ()
    assert f"never show, in {', '.join(unseen)}, changes no decision" in str(found)
    assert not any("no row shows" in text for text in found.warnings)


@pytest.mark.parametrize("unit", [1.0, 1e9])
def test_what_a_decision_depends_on_and_no_row_shows_is_warned_of(unit: float) -> None:
    """Nothing is learned of the safe action, and its utility has a parameter of its own; the limit
    does not depend on that, since the safe action's cost is declared. Where it is learned nothing
    is warned of.
    """

    def worth(x: Any, a: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0, 0.2 * unit).expand([3]).to_event(1))
        numpyro.sample("y", dist.Normal(w[a], 0.5 * unit), obs=y)

    cls = ged.density_class(worth)
    for learned, warned in ((False, ("utility",)), (True, ())):
        limit = ged.Constraint(
            cls,
            ged.mean(-3 * unit, 3 * unit),
            at_most=unit,
            safe_value=0.5 * unit,
            name="harm",
            outcome="utility",
        )
        utility = ged.Utility(cls, ged.mean(-3 * unit, 3 * unit))
        found = ged.check_problem(
            ged.Problem(3, utility, [limit], safe_action=0, learn_safe=learned),
            CONTEXTS,
            runs=0,
            draws=50,
        )
        assert found.outcomes[0].blind == warned
        assert any("utility depends on what no row shows, in w" in t for t in found.warnings) == (
            not learned
        )


def test_ranks_do_not_depend_on_units() -> None:
    def in_other_units(x: Any, a: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0, 1e-9).expand([3]).to_event(1))
        b = numpyro.sample("b", dist.Normal(0, 1e6))
        numpyro.sample("z", dist.Normal(b + 1e15 * w[a] * x[:, 0], 1e6), obs=y)

    found = ged.check_problem(
        problem(in_other_units, ged.mean(-9e6, 9e6), safe_value=0.0), CONTEXTS, runs=0, draws=20
    )
    assert found.outcomes[1].ranks.tolist() == [2, 2, 2]
    assert found.outcomes[1].rank == 4


def test_a_range_that_the_prior_contradicts_is_said() -> None:
    found = ged.check_problem(problem(overlapping, ged.mean(-1, 1)), CONTEXTS, runs=0, draws=200)
    assert found.limits[0].outside > 0.2
    assert any("outside the declared range" in text for text in found.warnings)


def test_a_safe_action_that_the_prior_doubts_is_said() -> None:
    found = ged.check_problem(problem(safe_value=0.01), CONTEXTS, runs=0, draws=200)
    assert found.limits[0].safe_above > 0.9
    assert any("above its declared safe_value" in text for text in found.warnings)


def test_a_small_first_mix_is_warned_of() -> None:
    found = ged.check_problem(problem(at_most=0.21), CONTEXTS, runs=0, draws=50)
    assert any("learning starts slowly" in text for text in found.warnings)


def test_the_wait_is_simulated(report: Any) -> None:
    assert len(report.waits) == 1
    assert report.waits[0] is None or 1 <= report.waits[0] <= 60


def test_a_finite_class_is_looked_at_member_by_member() -> None:
    def coin(x: Any, a: Any, y: Any = None) -> None:
        p = numpyro.param("p", 0.5 * jnp.ones(3))
        numpyro.sample("z", dist.Bernoulli(p[a]), obs=y)

    cls = ged.finite_class(coin, [{"p": [0.1, 0.2, 0.9]}, {"p": [0.1, 0.6, 0.1]}])
    limit = ged.Constraint(cls, ged.mean(0, 1), at_most=0.3, safe_value=0.2, name="harm")
    found = ged.check_problem(
        ged.Problem(3, ged.Utility(cls, ged.mean(0, 1)), [limit], safe_action=0), CONTEXTS, runs=0
    )
    assert found.limits[0].over.tolist() == [0, 0.5, 0.5]
    assert found.limits[0].only_safe == 0


def test_without_limits_outcomes_are_looked_at_all_the_same() -> None:
    found = ged.check_problem(
        ged.Problem(3, ged.Utility(ged.density_class(gain), ged.mean(-3, 3))), CONTEXTS
    )
    assert found.limits == ()
    assert found.waits == ()
    with pytest.raises(errors.SettingError, match="no learned limit to plot"):
        found.plot()


@pytest.mark.parametrize(
    ("option", "value"), [("draws", 3), ("rounds", 10), ("runs", -1), ("seed", 0.5)]
)
def test_bad_options_are_named(option: str, value: Any) -> None:
    with pytest.raises(errors.SettingError, match=f"{option} must be a whole number of at least"):
        ged.check_problem(problem(), CONTEXTS, **{option: value})


def test_it_shows_itself(report: Any) -> None:
    import matplotlib.pyplot as plt

    assert "first decision: leaves the safe action in at most 0.12 of the cases" in str(report)
    assert len(repr(report).splitlines()) <= 12
    assert "<table>" in report._repr_html_()
    axes = report.plot()
    assert [line.get_ydata()[0] for line in axes[0].lines if line.get_label() == "limit"] == [0.3]
    plt.close("all")


def test_a_utility_whose_range_the_prior_leaves_is_said() -> None:
    """An age in years makes a prior of the right size thirty times too wide; nothing else would
    say so before round 1.
    """

    def by_age(x: Any, a: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0, 0.2))
        numpyro.sample("y", dist.Normal(w * x[:, 0], 0.5), obs=y)

    utility = ged.Utility(ged.density_class(by_age), ged.mean(-3, 3))
    wide, fine = (
        ged.check_problem(ged.Problem(3, utility), scale * np.ones((4, 1)), runs=0)
        for scale in (50.0, 1.0)
    )
    assert wide.utility_outside > 0.5
    assert any(
        text.startswith("utility: ") and "such as an age in years" in " ".join(text.split())
        for text in wide.warnings
    )
    assert fine.utility_outside == 0
    assert fine.warnings == ()


def test_one_model_object_with_two_outcomes_is_asked_about() -> None:
    cls = ged.density_class(harm)
    for outcome, said in ((None, 1), ("utility", 0)):
        limit = ged.Constraint(
            cls, ged.mean(0, 1), at_most=0.3, safe_value=0.2, name="harm", outcome=outcome
        )
        found = ged.check_problem(
            ged.Problem(3, ged.Utility(cls, ged.mean(0, 1)), [limit], safe_action=0),
            CONTEXTS,
            runs=0,
        )
        assert sum("say outcome='utility'" in text for text in found.warnings) == said


def test_yes_or_no_is_a_share_and_not_a_quantile(report: Any) -> None:
    assert report.outcomes[0].ones is None
    assert report.outcomes[1].ones == pytest.approx(
        [expit(norm(-1, 1).rvs(20_000, random_state=0)).mean()] * 3, abs=0.03
    )
    assert "prior predictive of action 1: 1 in 3" in str(report)


def test_a_wait_too_short_to_be_seen_says_why() -> None:
    with pytest.raises(
        errors.SettingError, match="at least 50, got 40: the wait ends when half of the last 50"
    ):
        ged.check_problem(problem(), CONTEXTS, rounds=40)
    assert ged.check_problem(problem(), CONTEXTS, rounds=40, runs=0, draws=20).waits == ()


def test_what_stands_in_for_a_missing_prior_contradicts_nothing() -> None:
    """The same wide model with a prior is warned of; its control is the first of the two."""

    def free(x: Any, a: Any, y: Any = None) -> None:
        w = numpyro.param("w", jnp.zeros(3))
        numpyro.sample("y", dist.Normal(w[a], 0.1), obs=y)

    def with_prior(x: Any, a: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        numpyro.sample("y", dist.Normal(w[a], 0.1), obs=y)

    for model, warned in ((with_prior, True), (free, False)):
        cls = ged.density_class(model)
        limit = ged.Constraint(
            ged.density_class(model), ged.mean(0, 1), at_most=0.5, safe_value=0.1, name="cost"
        )
        declared = ged.Problem(3, ged.Utility(cls, ged.mean(0, 1)), [limit], safe_action=0)
        found = ged.check_problem(declared, CONTEXTS, runs=0, draws=50)
        assert any("declared range" in text for text in found.warnings) == warned


# the agent that will decide -----------------------------------------------------------------------

CREDIBLE = {"confidence": ged.credible_set(0.9, source="prior", draws=20_000, margin=False)}


def test_limits_are_spoken_of_in_the_words_of_the_agent(report: Any) -> None:
    """The quantile of expit(N(-1, 1)) at .9 stands where a guarantee has the range's end."""
    found = ged.check_problem(problem(), CONTEXTS, runs=0, draws=50, agent=CREDIBLE)
    (limit,) = found.limits
    assert (limit.kind, limit.credible, limit.guaranteed) == ("credible", 0.9, False)
    quantile = expit(norm(-1, 1).ppf(0.9))
    assert limit.first_mix == pytest.approx(((0.3 - 0.2) / (quantile - 0.2),) * 2, rel=0.05)
    text = str(found)
    assert "by the 0.9 posterior quantile" in text
    assert text.count("bounds: posterior quantile at level 0.9") == 2
    assert "exact" not in text
    assert "credible at level 0.9, for one decision at a time" in text
    for foreign in ("guarantee", "worst case", "at most 0.", ".exactness"):
        assert foreign not in text.partition("limit 'harm'")[2]
    assert report.limits[0].kind == "guarantee"
    assert "posterior" not in str(report)


def test_a_rule_that_only_looks_is_named_where_nothing_stands_in_the_way() -> None:
    looking = {"confidence": ged.sampled_set(draws=200)}
    found = ged.check_problem(problem(), CONTEXTS, runs=0, draws=20, agent=looking)
    (said,) = [text for text in found.warnings if "no guarantee" in text]
    assert "draws (source laplace) inside the likelihood-ratio set" in said
    assert ".exactness" not in said


def test_a_limit_that_the_prior_keeps_lets_every_decision_leave_the_safe_action() -> None:
    found = ged.check_problem(problem(at_most=0.7), CONTEXTS, runs=0, draws=50, agent=CREDIBLE)
    assert found.limits[0].first_mix == (1.0, 1.0)
    assert "may leave the safe action always: another's 0.9 posterior quantile" in str(found)


def test_where_only_the_safe_action_can_be_played_it_is_said_plainly() -> None:
    found = ged.check_problem(problem(every_draw=True), CONTEXTS, runs=0, draws=50)
    assert set(found.path) == {0}
    text = str(found)
    assert "if no bad outcome ever comes: action 0 from round 1 (of 40)" in text
    assert "first decision: only the safe action: no other's worst case is under the limit" in text
    (said,) = [text for text in found.warnings if "only the safe action is played" in text]
    assert "even if no bad outcome ever comes, 40 rounds do not reach action 1, action 2:" in said
    assert "a guarantee trusts no prior" in said
    assert not any("learning starts slowly" in text for text in found.warnings)


def test_on_every_draw_a_prior_may_open_other_actions() -> None:
    found = ged.check_problem(
        problem(every_draw=True, at_most=0.7),
        CONTEXTS,
        runs=0,
        draws=50,
        agent={"confidence": ged.credible_set(0.9, draws=500, margin=False)},
    )
    assert set(found.path) == {1, 2}
    assert found.hidden == ()
    assert "first decision: other actions too: their 0.9 posterior quantile" in str(found)
    assert not any("only the safe action is played" in text for text in found.warnings)


def test_a_path_that_is_not_known_is_said_to_be_unknown() -> None:
    declared = problem(harm, ged.probability(above=0.5), every_draw=True)
    found = ged.check_problem(declared, CONTEXTS, runs=0, draws=20)
    assert found.path == ()
    assert "if no bad outcome ever comes: not known" in str(found)


def test_a_log_is_learned_before_the_first_decision(report: Any) -> None:
    rng = np.random.default_rng(0)
    a = np.resize([0, 1, 2], 240)
    z = rng.binomial(1, np.array([0.1, 0.05, 0.6])[a]).astype(float)
    log = (rng.normal(size=(240, 1)), a, 0.5 * (a > 0) + 0.5 * rng.normal(size=240), z)
    found = ged.check_problem(problem(), CONTEXTS, draws=50, runs=1, rounds=50, log=log)
    assert found.logged == 240
    assert str(found).startswith("Before round 1, after 240 logged rows")
    assert "after 240 logged rows its bound is exact: guarantee" in str(found)
    # action 1 is known to be harmless by now
    assert found.limits[0].first_mix == (1.0, 1.0)
    assert report.limits[0].first_mix[1] < 0.2
    assert found.waits == (50,)  # no window is shorter
    # the agent that is looked at is the one that observes the log
    told = ged.GEDUCB(problem(), guard=None)
    told.observe(*log)
    assert told.cost_bounds(CONTEXTS)[1][:, 0, 1].max() <= 0.3


def test_a_log_is_what_observe_takes_and_an_agent_is_its_options() -> None:
    table = {"arm": [0, 1], "age": [0.5, -0.5], "response": [1.0, 2.0]}
    with pytest.raises(errors.SettingError, match=r"log must be what agent.observe takes"):
        ged.check_problem(problem(), CONTEXTS, log=table)
    with pytest.raises(errors.SettingError, match="got 2 parts"):
        ged.check_problem(problem(), CONTEXTS, log=(CONTEXTS, [0] * 12))
    with pytest.raises(errors.SettingError, match="agent must be options of GEDUCB"):
        ged.check_problem(problem(), CONTEXTS, agent=ged.credible_set(0.9))


def test_decisions_that_fell_back_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = ged_ucb.select, []

    def sometimes(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) % 10 == 0:
            raise FloatingPointError("a cost bound is NaN")
        return real(*args, **kwargs)

    monkeypatch.setattr(ged_ucb, "select", sometimes)
    found = ged.check_problem(problem(), CONTEXTS, draws=50, runs=1, rounds=60)
    assert found.fallbacks == 6
    assert any(
        "in 6 of 60 simulated decisions no policy could be computed" in text
        and "a cost bound is NaN" in text
        for text in found.warnings
    )


def test_a_first_look_that_falls_back_claims_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise FloatingPointError("a cost bound is NaN")

    monkeypatch.setattr(ged_ucb, "select", broken)
    found = ged.check_problem(problem(), CONTEXTS, draws=50, runs=0)
    assert not found.limits[0].guaranteed
    assert any("first look" in text and "NaN" in text for text in found.warnings)


def test_a_table_of_contexts_may_have_more_columns_and_a_decision_may_not() -> None:
    declared = replace(problem(), columns=("age",))
    table = {"arm": [0, 1], "age": [0.5, -0.5], "response": [1.0, 2.0]}
    assert ged.check_problem(declared, table, runs=0, draws=10).limits[0].first_mix[0] > 0
    assert read_rows(declared, table).tolist() == [[0.5], [-0.5]]
    with pytest.raises(errors.ColumnError, match="has 'arm', 'response', not declared"):
        ged.GEDUCB(declared).ask(table)
    with pytest.raises(errors.ColumnError, match="lacks 'age'"):
        ged.check_problem(declared, {"arm": [0, 1]}, runs=0, draws=20)


def test_values_that_are_no_numbers_are_not_called_outside_the_range() -> None:
    """A utility that lies between 0 and 20 whatever comes, under counts too spread to be summed
    while they are traced: the warning was to widen the range.
    """

    def demand(x: Any, a: Any, y: Any = None) -> None:
        log_mean = numpyro.sample("log_mean", dist.Normal(3.0, 0.1))
        spread = numpyro.sample("spread", dist.Exponential(0.5))
        numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(log_mean) + 0.0 * a, spread), obs=y)

    sold = ged.expected(lambda y, x, a: jnp.minimum(y, 20.0), 0, 20)
    limit = ged.Constraint(class_of(harm), ged.mean(0, 1), at_most=0.3, safe_value=0.2, name="harm")
    told = ged.Problem(3, ged.Utility(class_of(demand), sold), [limit], safe_action=0)
    report = ged.check_problem(told, CONTEXTS[:2], draws=40, runs=0)
    assert report.utility_outside == 0
    said = [warning for warning in report.warnings if warning.startswith("utility")]
    assert len(said) == 1
    assert "are no numbers" in said[0]
    assert "widen" not in said[0]


# what it takes ------------------------------------------------------------------------------------


def test_decisions_of_a_run_are_made_in_cohorts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of them never leave the safe action under this limit, so that all rounds are run."""
    real, cohorts = ged.GEDUCB.ask, []

    def counting(agent: ged.GEDUCB, x: Any, allowed: Any = None) -> Any:
        if np.ndim(x) == 2:
            cohorts.append(len(x))
        return real(agent, x, allowed)

    monkeypatch.setattr(ged.GEDUCB, "ask", counting)
    found = ged.check_problem(problem(at_most=0.21), CONTEXTS, draws=20, runs=1, rounds=61)
    assert found.waits == (None,)
    assert cohorts == [2] * 30 + [1]


def test_what_is_said_of_contexts_counts_them_and_computes_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cls = class_of(overlapping)
    real, rows = type(cls).values, []

    def counting(model: Any, functional: Any, theta: Any, x: Any, a: Any) -> Any:
        rows.append(len(a))
        return real(model, functional, theta, x, a)

    monkeypatch.setattr(type(cls), "values", counting)
    declared = problem(overlapping, ged.mean(-9, 9), safe_value=0.1)
    twice, thrice = (
        ged.check_problem(declared, np.repeat([[-1.0], [0.0], [1.0]], n, axis=0), draws=50, runs=1)
        for n in ([1, 1, 2], [1, 2, 1])
    )
    assert max(rows) == 9  # three contexts, three actions
    # the spread of w times x is seen where x is not 0
    assert (
        np.ptp(twice.limits[0].quantiles, axis=1)[1] > np.ptp(thrice.limits[0].quantiles, axis=1)[1]
    )


def test_many_contexts_are_dealt_out_and_none_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    cls = class_of(overlapping)
    real, cells = type(cls).values, []

    def counting(model: Any, functional: Any, theta: Any, x: Any, a: Any) -> Any:
        cells.append(len(theta) * len(a) * (model is cls))
        return real(model, functional, theta, x, a)

    monkeypatch.setattr(type(cls), "values", counting)
    x = np.linspace(0, 3, 60)
    declared = problem(overlapping, ged.mean(-50, 50), safe_value=0.1)
    found = ged.check_problem(declared, x[:, None], draws=3000, runs=0)
    # b + c + w x, with all three standard normal
    drawn = np.random.default_rng(0).normal(size=(4000, 60)) * np.sqrt(2 + x**2)
    expected = np.quantile(drawn, [0.05, 0.5, 0.95])
    assert found.limits[0].quantiles[1] == pytest.approx(expected, abs=0.3)
    assert sum(cells) < 3000 * 60 * 3 / 2


def test_a_rehearsal_asks_of_no_world_that_it_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardly a draw of this prior keeps the declared safe value."""
    real, built = worlds.ModelWorld.__init__, []

    def counting(*args: Any, **kwargs: Any) -> None:
        built.append(1)
        real(*args, **kwargs)

    monkeypatch.setattr(worlds.ModelWorld, "__init__", counting)
    ged.check_problem(problem(safe_value=0.001), CONTEXTS, draws=20, runs=0)
    assert len(built) == 1
