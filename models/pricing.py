"""Insurance pricing: how much of a doctor's bill should a patient pay, so that few stay away
altogether?

The RAND Health Insurance Experiment gave families, by lot, plans in which they pay 0, 25, 50 or 95%
of each bill. An action is such a plan; the insurer wants to pay little, and no group of patients
may have more than a 35% chance of a year without a single visit. Two densities are learned from
each year:

    visits
        ~ NegativeBinomial(mean exp(plan + x'w), concentration c),   utility -(1 - share) E visits
    no visit ~ Bernoulli(logit = plan + x'v),
        constraint P(no visit) <= 0.35

One density could serve both, but then an error in the shape of the counts would be an error in the
limit. Of the first only the mean matters, and an error there costs utility, never feasibility. The
second has a linear predictor: its bounds are exact and certificates are guarantees, if the logit is
right. Free care is what everybody has today: its no-visit rate is known from the records, and it is
the safe action.

Needs nothing but gedppl; the table is models/data/randhie.csv.gz (public domain, see the README
there). Run:  gedppl run models/pricing.py --rounds 2000
"""

import gzip
from functools import cache
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.spatial import cKDTree
from scipy.special import expit

import gedppl as ged
from gedppl.functionals import Functional
from gedppl.study.simulation.cross_fitting import cross_fit, folds_of, regression

SHARES = np.array([0.0, 0.25, 0.50, 0.95])  # what the patient pays
AT_MOST = 0.35
FREE_CARE = 0
MOST_VISITS = 15.0  # nobody is expected to go more often
ACTIONS = [f"pay {share:.0%}" for share in SHARES]
COLUMNS = ("chronic diseases", "physical limitation", "good health", "fair health", "poor health")

# groups with a higher no-visit rate under free care already are not asked to pay: there is no room
# left
ELIGIBLE = 0.32


# the problem --------------------------------------------------------------------------------------


class Payment(Functional):
    """-(1 - share) E visits: a functional of one's own is a mean, probability, ... and what to
    do with it.
    """

    def __call__(self, density, x=None, a=None):
        return -density.xp.asarray(1 - SHARES)[a] * super().__call__(density, x, a)


def visits_model(x, a, y=None):
    plan = numpyro.sample("plan", dist.Normal(1.0, 0.5).expand([len(SHARES)]).to_event(1))
    w = numpyro.sample("w", dist.Normal(0.0, 0.5).expand([len(COLUMNS)]).to_event(1))
    c = numpyro.sample("c", dist.LogNormal(0.0, 0.5))
    numpyro.sample("visits", dist.NegativeBinomial2(jnp.exp(plan[a] + x @ w), c), obs=y)


def no_visit_model(x, a, y=None):
    plan = numpyro.sample("plan", dist.Normal(-1.0, 1.0).expand([len(SHARES)]).to_event(1))
    v = numpyro.sample("v", dist.Normal(0.0, 0.5).expand([len(COLUMNS)]).to_event(1))
    numpyro.sample("no_visit", dist.Bernoulli(logits=plan[a] + x @ v), obs=y)


@cache
def records():
    """Logistic regression of "no visit" on x among the years with free care: coefficients and
    their covariance.
    """
    x, plan, visits = person_years()
    z = np.column_stack([np.ones(len(x)), x])[plan == FREE_CARE]
    w = regression(z, visits[plan == FREE_CARE] == 0, "logistic")
    p = expit(z @ w)
    return w, np.linalg.inv((z * (p * (1 - p))[:, None]).T @ z)


def no_visit_rate_of_free_care(x):
    """What the records say of the status quo at contexts x (n, 5), two standard errors on the
    safe side: (n,).
    """
    w, covariance = records()
    z = np.column_stack([np.ones(len(x)), x])
    return np.minimum(
        expit(z @ w + 2 * np.sqrt(np.einsum("ni,ij,nj->n", z, covariance, z))), AT_MOST
    )


def problem(at_most=AT_MOST):
    example = (np.zeros((1, len(COLUMNS))), np.zeros(1, int))
    return ged.Problem(
        n_actions=len(SHARES),
        utility=ged.Utility(
            ged.density_class(visits_model, example=example), Payment("mean", -MOST_VISITS, 0.0)
        ),
        constraints=[
            ged.Constraint(
                ged.density_class(no_visit_model, example=example),
                ged.mean(0, 1),
                at_most=at_most,
                safe_value=no_visit_rate_of_free_care,
                name="no visit",
            )
        ],
        safe_action=FREE_CARE,
        safe_utility=-10.0,
    )


# the people ---------------------------------------------------------------------------------------


def environment():
    """One pass over the eligible person-years in random order.

    The year under a plan that a person did not have is that of the most similar person who had it:
    plans were drawn by lot, so similar people differ by chance only. Utilities and costs are those
    of cross-fitted regressions with every plan's own slopes. Years of one person are treated as
    independent, which the experiment's panel is not.
    """
    x, plan, visits = person_years()
    eligible = no_visit_rate_of_free_care(x) <= ELIGIBLE
    matched = np.empty((len(x), len(SHARES)))
    # equal people are matched at random
    jitter = 1e-3 * np.random.default_rng(0).standard_normal(x.shape)
    for a in range(len(SHARES)):
        had = np.flatnonzero(plan == a)
        nearest = cKDTree(x[had] + jitter[had]).query(x + jitter)[1]
        matched[:, a] = visits[had[nearest]]
    fold = folds_of(x)
    at = [interactions(x, np.full(len(x), a)) for a in range(len(SHARES))]
    mean_visits = cross_fit(fold, interactions(x, plan), visits, "poisson", at)
    no_visit = cross_fit(fold, interactions(x, plan), visits == 0, "logistic", at)
    no_visit[:, FREE_CARE] = np.minimum(no_visit[:, FREE_CARE], no_visit_rate_of_free_care(x))
    return ged.Replay(
        x[eligible],
        matched[eligible],
        {"no visit": matched[eligible] == 0},
        utilities=-(1 - SHARES) * mean_visits[eligible],
        costs=no_visit[eligible],
    )


def segments(x):
    health = "good" if x[2] else "fair" if x[3] else "poor" if x[4] else "excellent"
    return {
        "health": health,
        "chronic diseases": "many" if x[0] > 0 else "few",
        "limitation": "yes" if x[1] > 0.5 else "no",
    }


def interactions(x, plan):
    """Features of the reference: an intercept and slopes for every plan."""
    own = np.column_stack([np.ones(len(x)), x])
    return np.concatenate([own * (plan == a)[:, None] for a in range(len(SHARES))], axis=1)


def person_years():
    """x (n, 5), plan (n,) as action numbers, visits (n,)."""
    with gzip.open(Path(__file__).parent / "data" / "randhie.csv.gz", "rt") as file:
        table = np.genfromtxt(file, delimiter=",", names=True)
    diseases = (table["diseases"] - 10) / 7  # centred and scaled by constants
    x = np.column_stack(
        [diseases, table["limitation"], *(table["health"] == level for level in (1, 2, 3))]
    ).astype(float)
    return x, np.searchsorted(SHARES, table["coinsurance"] / 100), table["visits"]
