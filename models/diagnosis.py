"""Online diagnosis: discharge or refer each patient, and rarely discharge one who is ill.

569 breast masses. An action is to discharge or to refer; the laboratory later says which were
malignant, whatever was done (full information). One classifier serves utility and constraint, and
referring everybody is safe:

    malignant ~ Bernoulli(logit = b + w score(x)),    utility P(right decision | x)

The score is the plain average of three measurements: 569 patients are few, and every further
coefficient widens the set more than it sharpens the prediction.

"Rarely" can mean three things, and the paper prints a fourth. pi is the probability of discharge at
x:

    form="joint"
        pi P(malignant | x) <= 0.05     of all decisions at x, the share that are missed illnesses
    form="conditional"  pi <= 0.05
        of the ill at x, the share discharged; needs no model, and
                                                        discharges nearly nobody
    form="marginal"     pi P(malignant | x) <= 0.05 P(malignant)
                                                        enough for: of all the ill, at most 5% are
                                                        discharged
    form="literal"
        pi' P(benign | x) <= 0.05, pi' the probability of referral: the paper's g*, which limits
        false
                        alarms in place of misses. Discharging everybody then is free, and the best:
                        every illness is missed

The logit is linear, so bounds are exact and certificates are guarantees, if the classifier's form
is right.

Needs scikit-learn for the table.
Run:  gedppl run models/diagnosis.py --rounds 569
"""

import numpy as np
import numpyro
import numpyro.distributions as dist
from sklearn.datasets import load_breast_cancer

import gedppl as ged
from gedppl.study.simulation.cross_fitting import cross_fit, folds_of

FORM = "joint"
AT_MOST = 0.05
PREVALENCE = 0.3  # P(malignant) is at least this, from the clinic's books; used by form="marginal"
DISCHARGE, REFER = 0, 1
ACTIONS = ("discharge", "refer")
COLUMNS = ("worst radius", "worst texture", "worst concave points")
CENTRES, SCALES = np.array([16.0, 25.0, 0.11]), np.array([5.0, 6.0, 0.065])  # constants, not fitted


# the problem --------------------------------------------------------------------------------------


def malignant(x, a, y=None):
    b = numpyro.sample("b", dist.Normal(-1.0, 2.0))
    w = numpyro.sample("w", dist.Normal(4.0, 3.0))  # more of each is worse
    numpyro.sample("malignant", dist.Bernoulli(logits=b + w * x.mean(axis=1)), obs=y)


def problem(form=FORM, at_most=AT_MOST):
    label = ged.density_class(malignant, example=(np.zeros((1, len(COLUMNS))), np.zeros(1, int)))

    def event(discharge, refer):
        """P(the label lies in the action's interval)."""
        return ged.probability(above=(discharge[0], refer[0]), below=(discharge[1], refer[1]))

    benign, ill, never = (-0.5, 0.5), (0.5, 1.5), (1.5, 2.5)
    safe = REFER
    if form == "literal":
        limit = ged.Constraint(
            label,
            event(never, benign),
            at_most=at_most,
            safe_value=0.0,
            name="false alarm",
            outcome="utility",
        )
        utility, safe = event(benign, never), DISCHARGE
    else:
        utility = event(benign, ill)
        missed = {
            "at_most": at_most * (PREVALENCE if form == "marginal" else 1.0),
            "name": "missed",
        }
        limit = (
            ged.known_cost(lambda x: [1.0, 0.0], **missed)
            if form == "conditional"
            else ged.Constraint(
                label, event(ill, never), safe_value=0.0, outcome="utility", **missed
            )
        )
    return ged.Problem(
        n_actions=2,
        utility=ged.Utility(label, utility),
        constraints=[limit],
        safe_action=safe,
        reveals=np.ones((2, 2), bool),
    )


# the patients -------------------------------------------------------------------------------------


def environment(form=FORM):
    """One pass in random order. Utilities and costs are those of a cross-fitted regression on
    the three measurements, their squares and products: what can be known of a patient from x,
    without the agent's assumption of a score.
    """
    x, ill = masses()
    products = [x[:, i] * x[:, j] for i in range(3) for j in range(i, 3)]
    p = cross_fit(folds_of(x), np.column_stack([np.ones(len(x)), x, *products]), ill, "logistic")
    nothing = np.zeros(len(x))
    costs = {
        "joint": (p, nothing),
        "marginal": (p, nothing),
        "conditional": (nothing + 1, nothing),
        "literal": (nothing, 1 - p),
    }[form]
    utilities = (1 - p, nothing) if form == "literal" else (1 - p, p)
    return ged.Replay(
        x, ill.astype(float), utilities=np.column_stack(utilities), costs=np.column_stack(costs)
    )


def segments(x):
    return {"size": "large" if x[0] > 0 else "small"}


def masses():
    """x (569, 3), and whether each is malignant (569,) bool."""
    data = load_breast_cancer()
    names = list(data.feature_names)
    x = (data.data[:, [names.index(name) for name in COLUMNS]] - CENTRES) / SCALES
    return x, data.target == 0


def power_and_miss_rate(run, ill):
    """Of the healthy, the share discharged; of the ill, the share discharged. ill (T,): the
    truth of the run's rounds.
    """
    discharged, ill = run.policy[:, DISCHARGE], np.asarray(ill, bool)
    return float(discharged[~ill].mean()), float(discharged[ill].mean())
