"""`oracle` and `confidence`: one for all outcomes, or one for each; and the words that were
given up.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoDelta, AutoLaplaceApproximation, AutoNormal

import gedppl as ged
from gedppl import errors
from gedppl.ged_ucb.settings import settings
from gedppl.learning.draws import sample
from gedppl.learning.posterior import posterior
from gedppl.learning.variational import SVI
from gedppl.rows import Rows
from tests.optional_pyro import PPLS, module, needs_pyro, pd, pyro, torch
from tests.plain_worlds import ArmsWorld
from tests.program_doubles import Glm
from tests.test_cells import problem as cells
from tests.test_credible import LOGISTIC

WORLD = ArmsWorld("Bernoulli", actions=2)
X = WORLD.context(np.random.default_rng(0))
BALL = ged.radius.hellinger_ball(ged.radius.bracketing(2.0, 2.0))


def test_every_outcome_has_its_own_rule_and_oracle() -> None:
    chosen = settings(confidence={"cost": BALL}, oracle={"utility": ged.mle()})
    assert chosen.confidence_of("cost") is BALL
    assert chosen.confidence_of("utility") is None
    assert chosen.oracle_of("utility").name == ged.mle().name
    assert chosen.oracle_of("cost") is None
    assert settings(confidence=BALL).confidence_of("utility") is BALL


def test_in_paper_mode_what_is_not_chosen_is_the_papers() -> None:
    chosen = settings("paper", confidence={"cost": BALL})
    assert chosen.confidence_of("cost") is BALL
    assert chosen.confidence_of("utility") == ged.paper_radius()
    assert settings("paper").confidence_of("cost") == ged.paper_radius()


def test_only_the_outcome_that_was_named_has_the_other_set() -> None:
    agent = ged.GEDUCB(WORLD.problem, confidence={"cost": ged.radius.chi_square()}, guard=None)
    said = agent.ask(X).certificate.constraints[0]
    assert said.rule.startswith("chi-square")
    assert not said.guaranteed
    plain = ged.GEDUCB(WORLD.problem, confidence={"utility": ged.radius.chi_square()}, guard=None)
    assert plain.ask(X).certificate.guaranteed


def test_a_mapping_changed_afterwards_changes_nothing() -> None:
    mine = {"cost": BALL}
    chosen = settings(confidence=mine)
    mine["cost"] = None
    assert chosen.confidence_of("cost") is BALL


@pytest.mark.parametrize("option", ["oracle", "confidence"])
def test_an_outcome_that_does_not_exist_is_refused_with_the_list(option, tmp_path) -> None:
    value = {"harm": ged.mle() if option == "oracle" else BALL}
    with pytest.raises(
        errors.SettingError,
        match=rf"{option} names 'harm'.*choose from "
        r"\['utility', 'cost'\]",
    ):
        ged.GEDUCB(WORLD.problem, **{option: value}, journal=tmp_path / "j.db")
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_rule_inside_a_mapping_is_refused() -> None:
    with pytest.raises(
        errors.SettingError,
        match=r"confidence must be a rule.*or a mapping.*got "
        r"3",
    ):
        ged.GEDUCB(WORLD.problem, confidence={"cost": 3})


def test_a_journal_keeps_the_choice_of_every_outcome(tmp_path) -> None:
    chosen = {"cost": ged.radius.chi_square()}
    agent = ged.GEDUCB(WORLD.problem, confidence=chosen, journal=tmp_path / "j.db", guard=None)
    agent.ask(X)
    agent.close()
    with pytest.raises(errors.JournalMismatchError, match="confidence"):
        ged.resume(
            tmp_path / "j.db", WORLD.problem, confidence={"utility": ged.radius.chi_square()}
        )
    with pytest.raises(errors.SettingError, match="choose from"):
        ged.resume(tmp_path / "j.db", WORLD.problem, confidence={"harm": ged.radius.chi_square()})
    assert ged.resume(tmp_path / "j.db", WORLD.problem, confidence=chosen).rounds == 1


def test_the_old_word_says_the_new_one(tmp_path) -> None:
    row = (np.zeros((1, 1)), np.zeros(1, int), np.zeros(1))
    calls = [
        lambda: ged.GEDUCB(WORLD.problem, radius=BALL),
        lambda: ged.resume(tmp_path / "j.db", WORLD.problem, radius=BALL),
        lambda: ged.confidence_set(WORLD.problem.utility.model, *row, radius=BALL),
        lambda: ged.shrinkage(
            WORLD.problem.utility.model, ged.mean(0, 1), *row, at=row[0], radius=BALL
        ),
    ]
    for call in calls:
        with pytest.raises(errors.SettingError, match="radius= is called confidence= now"):
            call()


def test_a_journal_with_the_old_word_is_refused_by_a_sentence(tmp_path) -> None:
    from gedppl.agent import recorder
    from gedppl.journal import Journal

    frozen = recorder.protocol(WORLD.problem, settings(), None)
    frozen["radius"] = frozen.pop("confidence")
    Journal.create(tmp_path / "j.db", frozen).close()
    with pytest.raises(errors.JournalMismatchError, match="begun by an earlier version"):
        ged.resume(tmp_path / "j.db", WORLD.problem)


# what cannot serve a class ------------------------------------------------------------------------


def wrong_guide(x, a, y=None):
    numpyro.sample("v", dist.Normal(jnp.zeros(2), 1.0).to_event(1))


def wrong_shape(x, a, y=None):
    numpyro.sample("b", dist.Normal(jnp.zeros(3), 1.0).to_event(1))


def own_guide(x, a, y=None):
    at = numpyro.param("at", jnp.zeros(2))
    numpyro.sample("b", dist.Normal(at, 1.0).to_event(1))


@pytest.mark.parametrize("guide", [wrong_guide, wrong_shape])
@pytest.mark.parametrize("by_source", [False, True], ids=["oracle", "source"])
def test_a_guide_that_does_not_fit_its_model_is_refused_at_construction(
    guide, by_source, tmp_path
) -> None:
    options = {"confidence": {"cost": ged.credible_set(source="svi")}} if by_source else {}
    with pytest.raises(
        errors.SettingError,
        match=r"of 'cost': the guide does not fit the "
        r"model.*the model \{'b': \(2,\)\}",
    ):
        ged.GEDUCB(LOGISTIC, oracle={"cost": ged.svi(guide)}, journal=tmp_path / "j.db", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_guide_that_fits_is_taken() -> None:
    agent = ged.GEDUCB(
        LOGISTIC,
        oracle={"cost": ged.svi(own_guide)},
        confidence={"cost": ged.credible_set(source="svi")},
    )
    assert agent.ask([0.0]).certificate.constraints[0].kind == "credible"


def point_guide(x, a, y=None):
    numpyro.sample("b", dist.Delta(numpyro.param("at", jnp.zeros(2))).to_event(1))


@pytest.mark.parametrize("guide", ["delta", AutoDelta, AutoLaplaceApproximation, point_guide])
def test_a_guide_without_spread_has_no_draws(guide) -> None:
    """Draws that are all alike have equal weights: nothing later would notice."""
    with pytest.raises(
        errors.SettingError, match="confidence of 'cost': source='svi' needs a guide with spread"
    ):
        ged.GEDUCB(
            LOGISTIC,
            oracle={"cost": ged.svi(guide)},
            confidence={"cost": ged.credible_set(source="svi")},
        )
    with pytest.raises(
        errors.SettingError, match="confidence of 'cost': source='svi' needs a guide with spread"
    ):
        ged.GEDUCB(
            LOGISTIC,
            oracle={"cost": ged.svi(guide)},
            confidence={"cost": ged.likelihood_ratio(predictive="svi")},
        )
    ged.GEDUCB(LOGISTIC, oracle={"cost": ged.svi(guide)})  # as an oracle a point will do


def test_draws_of_a_point_never_stand_for_a_posterior(monkeypatch) -> None:
    """Also where nobody looked at the guide before: they are replaced, and it is said."""
    model = LOGISTIC.constraints[0].model
    x, a, y = np.zeros((12, 1)), np.arange(12) % 3, (np.arange(12) % 4 == 0).astype(float)
    monkeypatch.setattr(SVI, "check_spread", lambda self, cls: None)
    found = posterior(model, Rows.of(x, a, y), source="svi", oracle=ged.svi(point_guide, steps=20))
    assert found.found.source == "smc"
    assert np.ptp(found.draws["b"], axis=0).min() > 0.5


def half_guide(x, a, y=None):
    at = numpyro.param("at", jnp.zeros(2))
    numpyro.sample("b", dist.LogNormal(at, 1.0).to_event(1))


def narrow_guide(x, a, y=None):
    at = numpyro.param("at", jnp.zeros(2))
    numpyro.sample("b", dist.Uniform(at - 0.1, at + 0.1).to_event(1))


def whole_numbers(x, a, y=None):
    numpyro.sample("b", dist.Poisson(jnp.ones(2)).to_event(1))


def pyro_half(x, a, y=None):
    at = pyro.param("at", torch.zeros(2))
    pyro.sample("b", pd.LogNormal(at, 1.0).to_event(1))


def in_both(*cases):
    return [
        pytest.param(
            ppl, guide, id=f"{ppl}-{guide.__name__}", marks=[needs_pyro] if ppl == "pyro" else []
        )
        for ppl, guide in cases
    ]


@pytest.mark.parametrize(
    ("ppl", "guide"),
    in_both(
        ("numpyro", half_guide),
        ("numpyro", narrow_guide),
        ("numpyro", whole_numbers),
        ("pyro", pyro_half),
    ),
)
def test_a_guide_must_reach_wherever_the_prior_does(ppl, guide) -> None:
    """Weights bring nothing back that is never drawn, and their k-hat does not see it."""
    with pytest.raises(errors.SettingError, match=r"at \['b'\] it cannot draw every value"):
        ged.GEDUCB(cells(ppl), oracle={"cost": ged.svi(guide)})


def broken_guide(x, a, y=None):
    raise RuntimeError("no such table")


def one_argument(x):
    numpyro.sample("b", dist.Normal(jnp.zeros(2), 1.0).to_event(1))


@pytest.mark.parametrize(
    ("ppl", "guide"),
    in_both(
        ("numpyro", broken_guide),
        ("numpyro", one_argument),
        ("pyro", broken_guide),
        ("pyro", own_guide),
    ),
)
def test_a_guide_that_cannot_be_run_is_named(ppl, guide) -> None:
    with pytest.raises(
        errors.SettingError,
        match=r"oracle of 'cost': the guide broke off .*called as guide\(x, a, y=None\)",
    ):
        ged.GEDUCB(cells(ppl), oracle={"cost": ged.svi(guide)})


@pytest.mark.parametrize("ppl", PPLS)
def test_a_class_that_is_no_guide_of_the_models_ppl_is_refused(ppl) -> None:
    with pytest.raises(errors.SettingError, match=r"class of one of .*'s autoguides.*int"):
        ged.GEDUCB(cells(ppl), oracle={"cost": ged.svi(int)})
    foreign = AutoNormal if ppl == "pyro" else module("pyro.infer.autoguide").AutoNormal
    with pytest.raises(errors.SettingError, match=r"class of one of .*'s autoguides.*AutoNormal"):
        ged.GEDUCB(cells(ppl), oracle={"cost": ged.svi(foreign)})


def with_auxiliary(x, a, y=None):
    at = numpyro.param("at", jnp.zeros(2))
    shift = numpyro.sample("shift", dist.Normal(0.0, 1.0), infer={"is_auxiliary": True})
    numpyro.sample("b", dist.Normal(at + shift, 0.5).to_event(1))


def test_the_density_of_draws_that_depend_on_others_is_not_known() -> None:
    """What the guide sums up is a joint density: weighting by it would be wrong."""
    model = LOGISTIC.constraints[0].model
    x, a, y = np.zeros((12, 1)), np.arange(12) % 3, (np.arange(12) % 4 == 0).astype(float)
    drawn = {
        guide: sample(model, Rows.of(x, a, y), "svi", 100, 0, oracle=ged.svi(guide, steps=20))
        for guide in (with_auxiliary, own_guide)
    }
    assert drawn[with_auxiliary].log_proposal is None
    assert drawn[own_guide].log_proposal is not None


def test_chains_need_a_program() -> None:
    class Hand(Glm):
        prior_free = np.zeros(2, bool)

    hand = Hand("Bernoulli", 2, bound=np.inf)
    with pytest.raises(errors.SettingError, match="runs chains of a NumPyro or Pyro program"):
        ged.credible_set(source="nuts").check(hand)
