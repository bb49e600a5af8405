"""A problem looked at before round 1: what the prior says, what can be seen, and what to change."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.special import expit
from scipy.stats import norm

import gedppl as ged
from gedppl import errors

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


def problem(model: Any = harm, functional: Any = None, **options: Any) -> ged.Problem:
    told = {"at_most": 0.3, "safe_value": 0.2, "name": "harm"} | options
    limit = ged.Constraint(ged.density_class(model), functional or ged.mean(0, 1), **told)
    return ged.Problem(
        3, ged.Utility(ged.density_class(gain), ged.mean(-3, 3)), [limit], safe_action=0
    )


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

    found = ged.check_problem(problem(lapsing), CONTEXTS, runs=0, draws=20)
    assert not found.limits[0].guaranteed
    assert any("no guarantee" in text for text in found.warnings)


def test_parameters_that_no_action_shows_are_named() -> None:
    found = ged.check_problem(
        problem(overlapping, ged.mean(-9, 9), safe_value=0.1), CONTEXTS, runs=0, draws=50
    )
    outcome = found.outcomes[1]
    assert (outcome.dim, outcome.rank, outcome.unseen) == (5, 4, ("b", "c"))
    assert any("show 4 of 5 directions" in text and "b, c" in text for text in found.warnings)


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

    assert "first round at most 0.12" in str(report)
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
