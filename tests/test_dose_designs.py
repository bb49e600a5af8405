"""Dose-finding designs: decisions by hand, posteriors against quadrature, and published tables."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit, logit
from scipy.stats import norm

from benchmarks.arena import make
from benchmarks.reproduce import trials
from gedppl.errors import OutOfSupportError, SettingError
from gedppl.study.baselines.boin import BOIN, isotonic
from gedppl.study.baselines.by_name import make_baseline
from gedppl.study.baselines.crm import CRM
from gedppl.study.baselines.doses_by_name import skeleton
from gedppl.study.baselines.ewoc import EWOC
from gedppl.study.baselines.three_plus_three import ThreePlusThree

SKELETON = (0.05, 0.12, 0.25, 0.40)


def treat(design, *outcomes):
    """Tell these toxicities one by one; the doses they were given at."""
    doses = []
    for toxic in outcomes:
        decision = design.ask([])
        doses.append(decision.action)
        design.tell(decision.id, 0.0, toxic)
    return doses


def test_three_plus_three_goes_up_expands_and_comes_down():
    trial = ThreePlusThree(4)
    assert treat(trial, 0, 0, 0) == [0, 0, 0]
    assert treat(trial, 0, 1, 0) == [1, 1, 1]  # one of three: three more
    assert treat(trial, 0, 0, 0) == [1, 1, 1]  # one of six: up
    assert treat(trial, 1, 1, 0) == [2, 2, 2]  # two of three: too toxic, and dose 1 has its six
    assert (trial.dose, trial.recommended) == (None, 1)
    assert trial.ask([]).action == 1  # whoever comes after the trial gets the dose that it named


def test_three_plus_three_wants_six_patients_below_a_dose_that_is_too_toxic():
    trial = ThreePlusThree(4)
    treat(trial, 0, 0, 0, 1, 1, 0)
    assert trial.dose == 0
    treat(trial, 0, 1, 0)
    assert (trial.dose, trial.recommended) == (None, 0)
    other = ThreePlusThree(4)
    treat(other, 0, 0, 0, 1, 1, 0, 1, 1, 0)
    assert (other.dose, other.recommended) == (None, None)


def test_three_plus_three_ends_at_the_highest_dose_and_stops_below_the_lowest():
    trial = ThreePlusThree(1)
    treat(trial, 0, 0, 0, 0, 0, 1)
    assert (trial.dose, trial.recommended) == (None, 0)
    toxic = ThreePlusThree(3)
    treat(toxic, 1, 1, 0)
    assert (toxic.dose, toxic.recommended) == (None, None)
    assert toxic.ask([]).action == 0


def test_three_plus_three_names_no_dose_as_often_as_its_probabilities_say():
    """P(none) at toxicities .25, .35: too toxic at once, or cleared, exceeded above, and too
    toxic on the second look.
    """

    def too_toxic(p):
        return 1 - (1 - p) ** 3 - 3 * p * (1 - p) ** 2 * (1 - p) ** 3

    second = 1 - 0.75**3 - 3 * 0.25 * 0.75**2
    expected = too_toxic(0.25) + 0.75**3 * too_toxic(0.35) * second
    assert expected == pytest.approx(0.44, abs=0.005)  # the published table
    made = trials.named(
        lambda: ThreePlusThree(5), trials.TABLE_3[0][0], 800, np.random.default_rng(0)
    )
    assert abs(np.mean([t.recommended is None for t in made]) - expected) < 4 * np.sqrt(
        expected * (1 - expected) / 800
    )


def test_boin_boundaries_are_the_papers_and_the_trial_follows_them():
    trial = BOIN(4, target=0.3)
    assert (trial.escalate, trial.de_escalate) == pytest.approx((0.236, 0.3585), abs=5e-4)
    assert treat(trial, 0, 0, 0) == [0, 0, 0]
    assert treat(trial, 1, 0, 0) == [1, 1, 1]  # 1 of 3 lies between: stay
    assert treat(trial, 1, 1, 0) == [1, 1, 1]  # 3 of 6: down
    assert trial.dose == 0
    toxic = BOIN(4, target=0.3)
    treat(toxic, 1, 1, 1)  # P(p > .3) = 1 - .3^4 > .95
    assert (toxic.dose, toxic.recommended) == (None, None)
    treat(eliminated := BOIN(4, target=0.3), 0, 0, 0, 1, 1, 1)
    assert (eliminated.eliminated, eliminated.dose) == (1, 0)


def test_pooling_neighbours_is_the_least_squares_fit_that_never_falls():
    rng = np.random.default_rng(0)
    grid = np.linspace(0, 1, 21)
    for _ in range(20):
        values, weights = rng.random(3), rng.uniform(0.5, 2, 3)
        fit = isotonic(values, weights)
        assert (np.diff(fit) >= -1e-12).all()
        a, b, c = np.meshgrid(grid, grid, grid, indexing="ij")
        loss = (
            weights[0] * (a - values[0]) ** 2
            + weights[1] * (b - values[1]) ** 2
            + weights[2] * (c - values[2]) ** 2
        )
        best = np.where((a <= b) & (b <= c), loss, np.inf).min()
        assert (weights * (fit - values) ** 2).sum() <= best + 1e-9


def test_the_posterior_of_the_power_model_agrees_with_quadrature():
    trial = CRM(SKELETON, target=0.25, patients=20)
    trial.patients[:], trial.toxicities[:] = (3, 4, 5, 0), (0, 1, 3, 0)

    def density(b):
        p = np.array(SKELETON) ** np.exp(b)
        return norm.pdf(b, scale=1.34**0.5) * np.prod(
            p**trial.toxicities * (1 - p) ** (trial.patients - trial.toxicities)
        )

    total = quad(density, -6, 6)[0]
    mean = quad(lambda b: b * density(b), -6, 6)[0] / total
    np.testing.assert_allclose(trial.estimates, np.array(SKELETON) ** np.exp(mean), rtol=1e-6)
    over = EWOC(SKELETON, target=0.25, patients=20)
    over.patients[:], over.toxicities[:] = trial.patients, trial.toxicities
    for j, guess in enumerate(SKELETON):
        edge = np.log(np.log(0.25) / np.log(guess))  # p_j > .25 below it
        assert over.overdose[j] == pytest.approx(quad(density, -6, edge)[0] / total, abs=1e-3)


def test_crm_skips_no_dose_and_ends_with_its_patients():
    trial = CRM(SKELETON, target=0.4, patients=6)
    doses = treat(trial, 0, 0, 0, 0, 0, 0)
    assert doses[0] == 0
    assert max(np.diff(doses)) == 1
    assert trial.dose is None
    assert trial.recommended == 3
    free = CRM(SKELETON, target=0.4, patients=6)
    # the control: without the rule the first patient after one would be there
    assert free.best() == 3


def test_ewoc_stays_where_crm_goes_up_and_stops_when_the_lowest_dose_is_too_likely_an_overdose():
    data = (0, 0, 0, 0, 0, 1)
    crm, careful = (design(SKELETON, target=0.25, patients=30) for design in (CRM, EWOC))
    treat(crm, *data)
    treat(careful, *data)
    assert careful.dose < crm.dose
    assert careful.overdose[careful.dose] <= 0.25
    toxic = EWOC(SKELETON, target=0.1, patients=30)
    treat(toxic, 1, 1, 1)
    assert (toxic.dose, toxic.recommended) == (None, None)


@pytest.mark.slow
def test_the_published_tables_are_reproduced():
    """Within three points of the published tables, and the Monte Carlo error of 2,000 trials."""
    for cell in [*trials.crm_cells(None, 2000, 0), *trials.boin_cells(None, 2000, 0)]:
        point = 0.01 if cell.ours < 1 and "names" in cell.algorithm else 1.0
        assert abs(cell.ours - cell.published) <= 3 * point + 2 * cell.standard_error, cell


def test_the_logistic_model_and_the_exponential_prior_agree_with_quadrature():
    """p_j = expit(3 + a (logit s_j - 3)) with log a ~ N(0, 1.34), and s_j^a with a ~ Exp(1)."""
    seen = {"patients": (3, 4, 5, 0), "toxicities": (0, 1, 3, 0)}
    guesses = np.array(SKELETON)

    def logistic(a):
        return expit(3 + a * (logit(guesses) - 3))

    def likelihood(p):
        y, n = np.array(seen["toxicities"]), np.array(seen["patients"])
        return np.prod(p**y * (1 - p) ** (n - y))

    def mean(density, low, high):
        total = quad(density, low, high, limit=200)[0]
        return quad(lambda v: v * density(v), low, high, limit=200)[0] / total

    b = mean(lambda b: norm.pdf(b, scale=1.34**0.5) * likelihood(logistic(np.exp(b))), -6, 6)
    a = mean(lambda a: np.exp(-a) * likelihood(guesses**a), 0, 60)
    for options, expected in (
        ({"model": "logistic"}, logistic(np.exp(b))),
        ({"prior": "exponential"}, guesses**a),
    ):
        design = CRM(SKELETON, target=0.25, patients=20, **options)
        for name, counts in seen.items():
            getattr(design, name)[:] = counts
        np.testing.assert_allclose(design.estimates, expected, rtol=1e-4)


def test_a_coherent_crm_never_goes_up_right_after_a_toxicity():
    """After ten patients without a toxicity at the lowest dose, one toxicity does not stop the
    model from going up; the rule does, and for one patient only.
    """
    slow = {"target": 0.25, "patients": 40, "initial": (0,) * 30}
    free, coherent = (CRM(SKELETON, **slow, coherent=rule) for rule in (False, True))
    for trial in (free, coherent):
        treat(trial, *[0] * 10, 1)
    assert free.dose == 1
    assert coherent.dose == 0
    treat(coherent, 0)
    assert coherent.dose == 1


def test_a_crm_stops_when_its_first_patients_all_have_a_toxicity():
    stopped, going, free = (
        CRM(SKELETON, target=0.25, patients=20, stop_after=n) for n in (2, 2, 0)
    )
    treat(stopped, 1, 1)
    treat(going, 1, 0, 1)
    treat(free, 1, 1)
    assert (stopped.dose, stopped.recommended) == (None, None)
    assert going.recommended is not None
    assert free.dose == 0


def test_overdose_control_reads_the_logistic_model_too():
    trial = EWOC(SKELETON, target=0.25, patients=20, model="logistic")
    trial.patients[:], trial.toxicities[:] = (3, 4, 5, 0), (0, 1, 3, 0)
    b = np.linspace(-6, 6, 60_001)
    p = expit(3 + np.exp(b)[:, None] * (logit(np.array(SKELETON)) - 3))
    p = np.clip(p, 1e-300, 1 - 1e-16)
    log = np.log(p) @ trial.toxicities + np.log1p(-p) @ (trial.patients - trial.toxicities)
    weights = np.exp(log - log.max() - b**2 / (2 * 1.34))
    np.testing.assert_allclose(trial.overdose, weights @ (p > 0.25) / weights.sum(), atol=1e-3)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: CRM((0.2, 0.1), target=0.2, patients=5), "increasing probabilities"),
        (lambda: CRM((0.1, 0.2), target=1.2, patients=5), r"target must lie in \(0, 1\), got 1.2"),
        (lambda: EWOC((0.1, 0.2), target=0.2, patients=5, feasibility=0), "feasibility must lie"),
        (lambda: BOIN(3, target=0.9), r"target must lie in \(0, 0.714\), got 0.9"),
        (lambda: ThreePlusThree(0), "at least one dose, got 0"),
    ],
)
def test_bad_designs_are_named(make, match):
    with pytest.raises(SettingError, match=match):
        make()


@pytest.mark.parametrize("z", [0.5, None])
def test_a_toxicity_is_zero_or_one(z):
    trial = ThreePlusThree(3)
    made = trial.ask([])
    with pytest.raises(OutOfSupportError, match="a toxicity is 0 or 1"):
        trial.tell(made.id, 0.0, z)
    assert trial.patients.sum() == 0


def test_designs_play_by_name_where_the_limit_is_a_toxicity():
    """By hand: target .3 (the limit), six doses; BOIN for 100 rounds has 34 cohorts; the
    skeleton's third dose is the target.
    """
    world = make("toxicity")
    problem, x = world.problem(), np.eye(3)[0]
    made = {
        name: make_baseline(name, problem, x, rounds=100) for name in ("3+3", "boin", "crm", "ewoc")
    }
    assert (made["boin"].target, made["boin"].cohorts) == (0.3, 34)
    assert made["crm"].skeleton[2] == pytest.approx(0.3)
    # every trial begins at the lowest dose
    assert all(made[name].ask(x).action == 0 for name in made)


def test_neighbours_of_the_skeleton_are_apart_by_the_indifference_interval():
    """Where dose j + 1 has toxicity target + w, dose j has target - w: s_j^e = .2 and s_{j+1}^e
    = .3 for the same e; in the logistic model, for the same a.
    """
    s = skeleton(5, 0.25)
    for low, high in itertools.pairwise(s):
        e = np.log(0.3) / np.log(high)
        assert low**e == pytest.approx(0.2)
    s = skeleton(5, 0.25, at=3, model="logistic")
    assert s[3] == pytest.approx(0.25)
    for low, high in itertools.pairwise(s):
        a = (logit(0.3) - 3) / (logit(high) - 3)
        assert expit(3 + a * (logit(low) - 3)) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("environment", "match"),
    [("shared", "yes or no; the model of 'cost' is Normal"), ("counts", "is Poisson")],
)
def test_a_design_refuses_outcomes_that_are_no_toxicity(environment, match):
    world = make(environment)
    with pytest.raises(SettingError, match=match):
        make_baseline("boin", world.problem(), world.context(np.random.default_rng(0)), rounds=10)


def test_designs_play_a_problem_whose_first_action_is_no_dose() -> None:
    """models/escalation.py: the toxicity is the only outcome, and action 0 treats nobody."""
    from tests.test_models import load

    script = load("escalation")
    problem = script.problem()
    for name in ("3+3", "boin", "crm", "ewoc"):
        design = make_baseline(name, problem, np.zeros(1), rounds=12)
        assert design.n_doses == 5
        decision = design.ask(np.zeros(1))
        assert decision.action == 1  # the lowest dose
        design.tell(decision.id, 0.0)
        assert design.patients.tolist() == [1, 0, 0, 0, 0]
        with pytest.raises(OutOfSupportError, match="told as y"):
            design.tell(design.ask(np.zeros(1)).id, 0.5)
    stopped = ThreePlusThree(5)
    stopped.below, stopped.shares_outcome = 1, True
    for toxic in (1.0, 1.0, 1.0):
        stopped.tell(stopped.ask(np.zeros(1)).id, toxic)
    assert stopped.recommended is None
    assert stopped.ask(np.zeros(1)).action == 0  # none is named, none is given
    stopped.tell(3, 0.0)
    assert stopped.patients.sum() == 3


def test_crm_at_the_mode_maximises_the_posterior_and_starts_where_it_is_told() -> None:
    design = CRM([0.1, 0.2, 0.35], target=0.2, patients=9, at="mode", first=1)
    assert design.dose == 1
    for toxic in (0.0, 0.0, 1.0):
        design.learn(np.zeros(0), 1, 0.0, toxic)
    b = np.linspace(-3, 3, 60_001)
    log = np.log(0.2) * np.exp(b) + 2 * np.log1p(-(0.2 ** np.exp(b))) - b**2 / (2 * 1.34)
    expected = np.array([0.1, 0.2, 0.35]) ** np.exp(b[log.argmax()])
    assert np.allclose(design.estimates, expected, atol=0.01)  # the grid of b has steps of .025
    assert design.dose == np.abs(expected - 0.2).argmin()
    for name, value in (("at", "median"), ("model", "probit"), ("prior", "gamma")):
        with pytest.raises(SettingError, match=f"{name} must be one of"):
            CRM([0.1, 0.2], target=0.2, patients=9, **{name: value})


def test_a_two_stage_crm_climbs_until_the_first_toxicity_and_may_name_none() -> None:
    make = {"target": 0.2, "patients": 12, "initial": (0, 0, 1, 2), "too_toxic": 0.9}
    design = CRM([0.1, 0.2, 0.35], **make)
    given = []
    for toxic in (0.0, 0.0, 0.0, 1.0):
        given.append(design.dose)
        design.learn(np.zeros(0), design.dose, 0.0, toxic)
    assert given == [0, 0, 1, 2]
    assert design.dose == design.best()  # the model decides from now on
    early = CRM([0.1, 0.2, 0.35], **make)
    early.learn(np.zeros(0), 0, 0.0, 1.0)
    assert early.dose == 0  # not the second of the initial doses: there was a toxicity
    for _ in range(6):
        early.learn(np.zeros(0), 0, 0.0, 1.0)
    assert early.recommended is None
    assert CRM([0.1, 0.2, 0.35], target=0.2, patients=9).recommended is not None
