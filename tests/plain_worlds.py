"""Problems without a PPL: models in NumPy, so that an agent starts at once and a process that
runs one may be forked.
"""

from __future__ import annotations

import hashlib

import numpy as np

import gedppl as ged
from gedppl.density import Density
from gedppl.errors import OutOfSupportError
from gedppl.learning.finite import FiniteLearner
from gedppl.learning.linear_gaussian import LinearGaussianLearner
from gedppl.learning.programs import ProgramLearner
from gedppl.programs.contract import MemberList
from tests.program_doubles import Glm, arm_features


class PlainTables(MemberList):
    """A finite class of Bernoulli tables (M, X, K); the context is the row's number."""

    event_shape = ()

    def __init__(self, tables: np.ndarray) -> None:
        self.tables, self.size = tables, len(tables)

    def parts(self, x, a):
        """All members at once, as a class from `finite_class` gives them."""
        return [(np.arange(self.size), Density("Bernoulli", {"probs": self.probs(x, a)}))]

    def describe(self) -> str:
        return hashlib.sha256(self.tables.tobytes()).hexdigest()

    def probs(self, x, a):
        return self.tables[:, np.asarray(x, float)[:, 0].astype(int), np.asarray(a)]

    def log_likelihood(self, theta, x, a, y):
        p = self.probs(x, a)[theta]
        return np.where(np.asarray(y) == 1, np.log(p), np.log1p(-p))

    def check_outcomes(self, x, a, y):
        if not np.isin(y, (0.0, 1.0)).all():
            raise OutOfSupportError(f"outcome {y} is neither 0 nor 1")
        return x, a, y

    def values(self, functional, theta, x, a):
        return self.probs(x, a)[theta]

    def density(self, m, x, a):
        return Density("Bernoulli", {"probs": self.probs(x, a)[m]})


class PlainWorld:
    """Member 0 of each class is the truth (or, for `truth`, another pair of tables (X, K))."""

    def __init__(
        self, contexts=2, actions=3, members=8, seed=4, at_most=0.5, truth=None, dearest=0.95
    ) -> None:
        rng = np.random.default_rng(seed)
        F, G = rng.uniform(0.05, 0.95, (2, members, contexts, actions))
        G = G * dearest / 0.95
        G[:, :, 0] = 0.1
        self.contexts = contexts
        self.truth = (F[0], G[0]) if truth is None else truth
        self.problem = ged.Problem(
            n_actions=actions,
            utility=ged.Utility(PlainTables(F), ged.mean(0, 1)),
            constraints=[
                ged.Constraint(PlainTables(G), ged.mean(0, 1), at_most=at_most, safe_value=0.1)
            ],
            safe_action=0,
        )

    def context(self, rng: np.random.Generator) -> np.ndarray:
        return np.array([float(rng.integers(self.contexts))])

    def outcome(self, x, action, rng) -> tuple[float, float]:
        u = rng.random(2)
        return tuple(float(u[i] < self.truth[i][int(x[0]), action]) for i in range(2))


class ArmsWorld:
    """One block of coefficients an action, y = phi'theta: family "Normal" (closed form),
    "Bernoulli" (score equations), or with ``exact=False`` the same through ascent.
    """

    def __init__(
        self, family="Normal", actions=3, seed=0, scale=0.1, exact=True, truth_scale=1.0
    ) -> None:
        rng = np.random.default_rng(seed)
        self.family, self.scale, dim = family, scale, 2 * actions
        extra = {"scale": scale} if family == "Normal" else {}
        self.models = [
            Glm(family, dim, arm_features(actions), extra, exact=exact, bound=np.inf)
            for _ in range(2)
        ]
        self.theta = truth_scale * rng.uniform(0.1, 0.6, (2, dim))
        self.theta[1, :2] = 0.0
        high = 1.0 if family == "Bernoulli" else 1.5
        self.problem = ged.Problem(
            n_actions=actions,
            utility=ged.Utility(
                self.models[0], ged.mean(0 if family == "Bernoulli" else -0.5, high)
            ),
            constraints=[
                ged.Constraint(
                    self.models[1],
                    ged.mean(0 if family == "Bernoulli" else -0.5, high),
                    at_most=0.7,
                    safe_value=0.5 if family == "Bernoulli" else 0.0,
                )
            ],
            safe_action=0,
        )

    def context(self, rng: np.random.Generator) -> np.ndarray:
        return np.array([1.0, rng.random()])

    def outcome(self, x, action, rng) -> tuple[float, float]:
        return tuple(
            float(model.simulate(theta, x[None], np.array([action]), rng)[0])
            for model, theta in zip(self.models, self.theta)
        )


def play(agent, world, rounds: int, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        x = world.context(rng)
        decision = agent.ask(x)
        agent.tell(decision.id, *world.outcome(x, decision.action, rng))


def take_out_the_betting_monitors(monkeypatch) -> None:
    """No model has a predictive, so nothing bets against one."""
    for learner in (FiniteLearner, LinearGaussianLearner, ProgramLearner):
        monkeypatch.setattr(learner, "has_predictive", lambda *_: False)


def state_of(agent: ged.GEDUCB, contexts: np.ndarray | None):
    """What the algorithm has learned of everything told: the one place where tests reach for it."""
    return agent._current(contexts)


def memory_of(agent: ged.GEDUCB):
    """What an agent keeps beside what its algorithm has learned: its inbox, its watch."""
    return agent._keeper.memory


def monitors_of(agent: ged.GEDUCB):
    """Its monitors by name."""
    return memory_of(agent).watch.guard.monitors


def asked_of(agent: ged.GEDUCB):
    """Context and action by decision."""
    return agent._keeper.ledger.asked


def told_of(agent: ged.GEDUCB):
    """Outcomes by decision."""
    return agent._keeper.ledger.told
