"""Declarations that are wrong: after how many rounds they are refused, and how many rounds stood
above the limit under a guarantee until then.

`python declarations.py [safe_value | range | bounds] [--rounds 400] [--families ...] [--of ...]`

Three actions with a parameter each. ``safe_value``: the safe action's value is declared 35% too
low, and the limit lies half way between, so that even the safe action exceeds it. ``range``: the
functional's upper end is declared half way between the values of two actions, and the limit just
below it, so that an action above the limit looks allowed. ``bounds``: parameters are declared to
end half way between the best action's and the worst's. Nothing of this can be seen before the
data show it: a run that goes on is one in which the set still holds a parameter that agrees with
what was declared.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import stats

import gedppl as ged
from gedppl.errors import DeclarationError

K, COHORT, LEVEL = 3, 20, 0.8
TRUTH = np.array([0.5, 1.0, -0.5])  # of each action's parameter; the safe action is the first
LOW_BY = 0.35


@dataclass(frozen=True)
class Family:
    outcome: Callable[[Any], Any]  # NumPyro's distribution of an action's parameter
    truth: Callable[[float], Any]  # SciPy's
    low: float
    high: float
    unknown_scale: bool = False

    def model(self, x: Any, a: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([K]).to_event(1))
        if self.unknown_scale:
            scale = numpyro.sample("s", dist.HalfNormal(1.0))
            numpyro.sample("y", dist.Normal(w[a], scale), obs=y)
        else:
            numpyro.sample("y", self.outcome(w[a]), obs=y)


FAMILIES = {
    "normal": Family(lambda w: dist.Normal(w, 0.5), lambda w: stats.norm(w, 0.5), -6.0, 6.0),
    "unknown scale": Family(lambda w: w, lambda w: stats.norm(w, 0.5), -6.0, 6.0, True),
    "laplace": Family(lambda w: dist.Laplace(w, 0.5), lambda w: stats.laplace(w, 0.5), -6.0, 6.0),
    "bernoulli": Family(
        lambda w: dist.Bernoulli(logits=w), lambda w: stats.bernoulli(1 / (1 + np.exp(-w))), 0, 1
    ),
    "poisson": Family(
        lambda w: dist.Poisson(jnp.exp(w)), lambda w: stats.poisson(np.exp(w)), 0.0, 40.0
    ),
    "gamma": Family(
        lambda w: dist.Gamma(2.0, 2.0 * jnp.exp(-w)),
        lambda w: stats.gamma(2.0, scale=np.exp(w) / 2),
        0.0,
        40.0,
    ),
    "exponential": Family(
        lambda w: dist.Exponential(jnp.exp(-w)), lambda w: stats.expon(scale=np.exp(w)), 0.0, 40.0
    ),
    "log-normal": Family(
        lambda w: dist.LogNormal(w, 0.5), lambda w: stats.lognorm(0.5, scale=np.exp(w)), 0.0, 40.0
    ),
}
ABOVE = {"bernoulli": 0.5}  # of the chance that is limited; elsewhere 1


def tail_mean(d: Any) -> float:
    u = (np.arange(20_000) + 0.5) / 20_000
    return float(d.ppf(u[u > LEVEL]).mean())


# functional of (low, high, above), and its value under a distribution of SciPy's
KINDS: dict[str, tuple[Callable[..., Any], Callable[..., float]]] = {
    "mean": (lambda low, high, c: ged.mean(low, high), lambda d, c: d.mean()),
    "probability": (lambda low, high, c: ged.probability(above=c), lambda d, c: d.sf(c)),
    "quantile": (lambda low, high, c: ged.quantile(LEVEL, low, high), lambda d, c: d.ppf(LEVEL)),
    "cvar": (lambda low, high, c: ged.cvar(LEVEL, low, high), lambda d, c: tail_mean(d)),
    "second moment": (
        lambda low, high, c: ged.second_moment(high),
        lambda d, c: d.var() + d.mean() ** 2,
    ),
    "variance": (lambda low, high, c: ged.variance(high), lambda d, c: d.var()),
}
SQUARED = ("second moment", "variance")


def declared(name: str, kind: str, wrong: str) -> tuple[ged.Problem, np.ndarray] | None:
    """The problem and the true values (K,); None where nothing wrong can be said of it so."""
    family, (make, value) = FAMILIES[name], KINDS[kind]
    c = ABOVE.get(name, 1.0)
    values = np.array([value(family.truth(w), c) for w in TRUTH])
    high = max(abs(family.low), family.high) ** 2 if kind in SQUARED else family.high
    safe, box = values[0], {}
    if wrong == "safe_value":
        safe = values[0] - LOW_BY * abs(values[0])
        limit = 0.5 * (safe + values[0])
    elif wrong == "range":
        high = 0.5 * (values[0] + values[1])
        limit = 0.5 * (values[0] + high)
        if kind == "probability" or values[1] < 1.05 * values[0]:
            return None
    else:
        box = {"w": (-3.0, 0.5 * (TRUTH[0] + TRUTH[1]))}
        limit = 0.5 * (values[0] + values[1])
        if values[1] < 1.05 * values[0]:
            return None
    if name == "bernoulli" and kind in ("quantile", "cvar", "variance"):
        return None
    cls = ged.density_class(family.model, bounds=box or None)
    cost = ged.Constraint(
        cls,
        make(family.low, high, c),
        at_most=limit,
        safe_value=safe + 1e-9 * abs(safe),
        outcome="utility",
        name="cost",
    )
    mean = ged.mean(family.low, family.high)
    return ged.Problem(K, ged.Utility(cls, mean), [cost], safe_action=0), values


def run(problem: ged.Problem, values: np.ndarray, name: str, rounds: int) -> tuple[int, int, str]:
    """Rounds played, those above the limit under a guarantee, and what ended the run."""
    agent, rng = ged.GEDUCB(problem, seed=0), np.random.default_rng(5)
    truths, limit = [FAMILIES[name].truth(w) for w in TRUTH], float(problem.limits[0])
    above, t = 0, 0
    try:
        while t < rounds:
            made = agent.ask(np.zeros((COHORT, 1)))
            above += sum(
                d.certificate.guaranteed and d.policy @ values > limit * (1 + 1e-7) for d in made
            )
            told = [float(truths[d.action].rvs(random_state=rng)) for d in made]
            agent.tell_many([(d.id, y, None) for d, y in zip(made, told)])
            t += COHORT
    except DeclarationError as error:
        return t, above, "refused: " + str(error).split(": ", 1)[1][:60]
    stopped = [alarm.name for alarm in agent.alarms]
    return t, above, f"goes on{', alarms ' + ', '.join(stopped) if stopped else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = ["safe_value", "range", "bounds"]
    parser.add_argument("wrong", nargs="?", choices=kinds, default="safe_value")
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--of", nargs="*", default=list(KINDS))
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"wrong {asked.wrong}: rounds, above the limit under a guarantee, what happened")
    refused = of = 0
    for name in asked.families:
        for kind in asked.of:
            made = declared(name, kind, asked.wrong)
            if made is None:
                continue
            t, above, end = run(*made, name, asked.rounds)
            refused, of = refused + end.startswith("refused"), of + 1
            print(f"{name:>14} {kind:>14} {t:>6} {above:>6}  {end}", flush=True)
    print(f"{refused} of {of} refused within {asked.rounds} rounds")


if __name__ == "__main__":
    main()
