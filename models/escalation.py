"""A first trial of a drug: climb through five doses, with a limit on the probability of a toxicity
for every single patient.

A patient gets one dose and has a dose-limiting toxicity (DLT) or not. The best dose is the highest
whose DLT probability is at most 0.33. Escalation with overdose control (Babb, Rogatko, Zacks 1998)
gives the highest dose whose probability of lying above the limit is at most 0.25. Here that is a
limit on every draw, with a credible bound at level 0.75:

    logit P(DLT at dose d) = log alpha + beta log(d / top dose),
        log alpha ~ N(0, 2^2),  log beta ~ N(0, 1),

    ged.Constraint(..., at_most=0.33, every_draw=True),
        confidence=ged.credible_set(0.75, "smc", 4000, margin=False).

Action 0 gives no dose. It is safe, and where nothing else is left the trial stops. This prior puts
the lowest dose above the limit with a probability slightly above 0.25, so that the agent alone
would never treat anybody: `check_problem` says so. Protocols therefore name a starting dose.
`Escalation` gives the lowest dose where the agent gives none, until its probability of lying above
the limit exceeds 0.9; of these patients nothing is certified. And no dose is given before the one
below it was.

The limit is credible and no guarantee: it trusts the model and its prior, for one decision at a
time. `problem(groups=True)` has three groups of patients with intercepts of their own around a
common one. Simulated, truth known.

Needs nothing but gedppl.
Run:  python benchmarks/dose_trials.py      (many trials, beside 3+3, BOIN and CRM)
"""

from dataclasses import replace
from functools import cache

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import gedppl as ged

DOSES = np.array([1.0, 2.0, 3.3, 5.0, 7.0])
LIMIT, LEVEL, PATIENTS, TOO_TOXIC = 0.33, 0.75, 36, 0.9
TOXICITY = np.array([0.05, 0.10, 0.18, 0.30, 0.45])
GROUPS = ("robust", "usual", "frail")
BY_GROUP = np.array([[0.02, 0.05, 0.10, 0.18, 0.30], TOXICITY, [0.10, 0.18, 0.30, 0.45, 0.58]])
ACTIONS = ("no dose", *(f"dose {d:g}" for d in DOSES))
_LOG_DOSE = np.append(0.0, np.log(DOSES / DOSES[-1]))
# no dose, no toxicity
_GIVEN, _NEVER = np.append(0.0, np.ones(len(DOSES))), -30.0 * np.append(1.0, np.zeros(len(DOSES)))


def _logits(log_alpha, log_beta, a):
    return (
        jnp.asarray(_GIVEN)[a] * (log_alpha + jnp.exp(log_beta) * jnp.asarray(_LOG_DOSE)[a])
        + jnp.asarray(_NEVER)[a]
    )


def toxicity(x, a, y=None):
    """x (n, 1): all patients are alike."""
    log_alpha = numpyro.sample("log_alpha", dist.Normal(0.0, 2.0))
    log_beta = numpyro.sample("log_beta", dist.Normal(0.0, 1.0))
    numpyro.sample("dlt", dist.Bernoulli(logits=_logits(log_alpha, log_beta, a)), obs=y)


def toxicity_by_group(x, a, y=None):
    """x (n, 1): the group's number. Intercepts are pooled around a common one, the slope is shared.

    A group's own intercept has variance 3 + E[spread^2] = 4 before data, that of the model without
    groups.
    """
    centre = numpyro.sample("centre", dist.Normal(0.0, np.sqrt(3.0)))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    apart = numpyro.sample("apart", dist.Normal(0.0, 1.0).expand([len(GROUPS)]).to_event(1))
    log_beta = numpyro.sample("log_beta", dist.Normal(0.0, 1.0))
    log_alpha = centre + spread * apart[x[:, 0].astype(int)]
    numpyro.sample("dlt", dist.Bernoulli(logits=_logits(log_alpha, log_beta, a)), obs=y)


def problem(groups=False, every_draw=True):
    """The outcome is the DLT, 0 or 1; the utility is the dose itself, which needs no learning."""
    cls = ged.density_class(
        toxicity_by_group if groups else toxicity, example=(np.zeros((1, 1)), np.zeros(1, int))
    )
    dose = ged.expected(lambda y, x, a: jnp.append(0.0, DOSES)[a] + 0.0 * y, 0.0, DOSES[-1])
    overdose = ged.Constraint(
        cls,
        ged.mean(0, 1),
        at_most=LIMIT,
        safe_value=0.0,
        name="toxicity",
        outcome="utility",
        every_draw=every_draw,
    )
    return ged.Problem(
        actions=ACTIONS,
        utility=ged.Utility(cls, dose),
        constraints=[overdose],
        safe_action=0,
        safe_utility=0.0,
        learn_safe=False,
    )


class Escalation:
    """The trial's protocol around the agent: where it starts, how it climbs, when it stops, and
    what it names at the end.
    """

    def __init__(
        self,
        problem,
        delta=0.05,
        seed=0,
        level=LEVEL,
        source="smc",
        draws=4000,
        margin=False,
        agent=None,
    ):
        confidence = ged.credible_set(level, source=source, draws=draws, margin=margin)
        self.agent = agent or ged.GEDUCB(
            problem, delta=delta, seed=seed, confidence=confidence, guard=None
        )
        # of each group, and decision -> its group
        self.problem, self.highest, self.by_protocol = problem, {}, {}

    def ask(self, x):
        allowed = np.arange(len(ACTIONS)) <= self.highest.get(float(x[0]), 0) + 1
        decision = self.agent.ask(x, allowed)
        if decision.action == 0 and self.starting_dose_will_do(x):
            self.by_protocol[decision.id] = x
            decision = replace(
                decision,
                action=1,
                action_name=ACTIONS[1],
                policy=np.eye(len(ACTIONS))[1],
                certificate=None,
            )
        self.highest[float(x[0])] = max(self.highest.get(float(x[0]), 0), decision.action)
        return decision

    def tell(self, decision_id, y, z=None):
        if decision_id not in self.by_protocol:
            return self.agent.tell(decision_id, y)
        self.agent.tell(decision_id, 0.0)  # the agent gave no dose
        return self.agent.observe(self.by_protocol.pop(decision_id)[None], [1], [y])

    def observe(self, x, a, y):
        """Patients treated before, or elsewhere."""
        for group, dose in zip(np.asarray(x)[:, 0], a):
            self.highest[float(group)] = max(self.highest.get(float(group), 0), int(dose))
        self.agent.observe(x, a, y)

    def policy(self, x):
        """What `ask` would play. Nothing is recorded."""
        allowed = np.arange(len(ACTIONS)) <= self.highest.get(float(x[0]), 0) + 1
        policy = self.agent.policy(x, allowed)
        return (
            np.eye(len(ACTIONS))[1] if policy[0] == 1 and self.starting_dose_will_do(x) else policy
        )

    def starting_dose_will_do(self, x):
        return self.agent.recommend(x).over[0, 1] <= TOO_TOXIC

    def recommended(self, x, rule="nearest"):
        """The dose named at the end: posterior mean nearest to the limit, or ``"interval"``,
        P(0.16 < DLT <= 0.33) largest; among doses tried. 0, no dose, if P(DLT at the lowest >
        0.33) > 0.9.
        """
        options = {"within": (0.16, LIMIT)} if rule == "interval" else {}
        found = self.agent.recommend(x, rule, tried=True, **options)
        return found.action if found.over[0, 1] <= TOO_TOXIC else 0


class World:
    """Patients come one by one, of every group alike."""

    def __init__(self, toxicity=TOXICITY):
        self.toxicity = np.atleast_2d(toxicity)  # (groups, doses)

    def context(self, rng):
        return np.array([float(rng.integers(len(self.toxicity)))])

    def outcome(self, x, action, rng):
        return float(rng.random() < self.costs(x)[0, action]), None

    def utilities(self, x):
        return np.append(0.0, DOSES)

    def costs(self, x):
        return np.append(0.0, self.toxicity[int(x[0])])[None]


def environment(groups=False):
    return World(BY_GROUP if groups else TOXICITY)


# what `ged.plan` asks for: functions of this module, so that trials may run in other processes ----


def designed(problem, delta, seed):
    return Escalation(problem, delta, seed)


AGENTS = {"escalation": designed}  # for gedppl compare


@cache
def draws(groups=False, level=LEVEL, size=50_000):
    """The prior's draws that all simulated trials of a process share."""
    return ged.shared_draws(
        problem(groups), np.arange(3.0)[:, None] if groups else np.zeros((1, 1)), level, size
    )


def quickly(problem, delta, seed):
    """The same design for a thousand trials, decided from shared draws."""
    return Escalation(problem, delta, seed, agent=draws().agent(seed))


def named(design, x):
    return design.recommended(x)


def usual(seed):
    return World(TOXICITY)


def toxic(seed):
    return World([0.50, 0.60, 0.70, 0.80, 0.85])
