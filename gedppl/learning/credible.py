"""Limits from sampled parameters: credible ones, which trust model and prior, and sampled sets,
which only look.

Credible. Of draws theta_1..theta_M from a posterior each action gets

    U_a = the r-th smallest of T(x, a; theta_m),
        r = binom.ppf(1 - delta_MC / K, M, 1 - eps) + 1,

so that P(T(x, a; theta) <= U_a | data) >= 1 - eps but for Monte Carlo error of probability
delta_MC; if r exceeds M, the end of the range. Weighted or autocorrelated draws count by their
effective size. A policy that mixes actions is judged by the same quantile of its own cost sum_a
pi_a T(x, a; theta_m): quantiles of single actions do not bound that of a mixture. This holds for
one decision, if model and prior are right. It is no guarantee.

Sampled. The draws that lie in the likelihood-ratio set, l(theta_m) >= R - log(1/delta), and the
largest value among them: an inner approximation, to show and to explore with.

Axis letters: S draws, n contexts, K actions, D flat parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import binom

from gedppl.errors import SettingError
from gedppl.learning.draws import can_draw
from gedppl.learning.learner import Bounds, DrawnValues
from gedppl.numerics.arrays import is_number
from gedppl.numerics.weighted import quantile_index

if TYPE_CHECKING:
    from gedppl.functionals import Functional
    from gedppl.learning.drawn import DrawnLearner
    from gedppl.programs.contract import DensityClass, MemberList

SOURCES = ("laplace", "svi", "nuts", "smc", "prior")
MONTE_CARLO = 0.05  # delta_MC: the chance, over the draws, that a quantile read off them is too low
INNER = "inner approximation: the true worst case may be larger"
MOST_DRAWS = 100_000


@dataclass(frozen=True)
class CredibleSet:
    """Limits that hold with a posterior probability; made by `credible_set`."""

    level: float = 0.95
    source: str = "laplace"
    draws: int = 1000
    guaranteed: bool = False
    margin: bool = True  # whether Monte Carlo error is allowed for

    def describe(self, delta: float) -> str:
        error = f"{MONTE_CARLO:g} allowed for" if self.margin else "not allowed for"
        return (
            f"posterior quantile at level {self.level:g} from {self.draws} draws (source "
            f"{self.source}), Monte Carlo error "
            f"{error}: for this decision, not for all rounds at once"
        )

    def check(self, cls: Any, oracle: Any = None) -> None:
        """Raise where the class has no posterior to draw from."""
        check_source(cls, self.source, "credible_set", oracle)

    def check_size(self, cls: DensityClass | MemberList, n_actions: int) -> None:
        """Raise where so many draws could not bound K actions at this level, however good."""
        least = self.needed(n_actions)
        sampled = cls.visit(lambda members: False, lambda cls: True)  # members have exact weights
        if sampled and self.draws < least:
            raise SettingError(
                f"draws={self.draws} cannot support level={self.level:g} of {n_actions} "
                f"action{'s' * (n_actions > 1)}: even the largest draw lies below that quantile "
                f"with more than the {MONTE_CARLO:.0%} allowed for Monte Carlo error. The least "
                f"that works is draws={least}, if all are independent; ask for several times as "
                "many, for a lower level, or for no allowance (margin=False)"
            )

    def needed(self, n_actions: int) -> int:
        """Independent draws without which nothing is claimed of K actions."""
        return least_draws(self.level, n_actions) if self.margin else 1

    def bounds(
        self, learner: DrawnLearner, functional: Functional, x: np.ndarray, n_actions: int
    ) -> Bounds:
        """Quantiles of the functional at x (n, dx) for actions 0..K-1."""
        found, n = learner.draws, len(x)
        values = learner.values(functional, x, n_actions).reshape(found.size, -1)
        level = (
            quantile_level(
                found.ess, 1 - self.level, n_actions, exact=found.enumerated or not self.margin
            )
            if found.usable
            else math.inf
        )
        drawn = DrawnValues(values.reshape(-1, n, n_actions), found.weights, level)
        estimate, witness, used = found.weights @ values, None, learner.used
        if level > 1:
            upper, lower = (
                np.full(values.shape[1], functional.high),
                np.full(values.shape[1], functional.low),
            )
            used = replace(used, shortage=self._shortage(learner, n_actions))
        else:
            at = quantile_index(values, found.weights, level)
            upper, lower = np.take_along_axis(values, at[None], axis=0)[0], -drawn.quantile(-values)
            witness = found.theta[at].reshape(n, n_actions, *found.theta.shape[1:])
        shape = (n, n_actions)
        return Bounds(
            estimate=functional.clip(estimate).reshape(shape),
            lower=lower.reshape(shape),
            upper=upper.reshape(shape),
            method="sampled",
            guaranteed=False,
            rule=self.describe(learner.delta),
            note="; ".join(filter(None, (learner.remark, used.shortage))),
            find_witness=lambda: witness,
            credible=self.level,
            drawn=drawn,
            used=used,
        )

    def _shortage(self, learner: DrawnLearner, n_actions: int) -> str:
        """Why no quantile is read off these draws."""
        found = learner.draws
        if found.usable:
            short = (
                f"they are worth {found.ess:.0f} independent ones, and level {self.level:g} over "
                f"{n_actions} actions takes {self.needed(n_actions)}"
            )
        elif found.ok:
            short = f"their weights rest on too few (worth {found.ess:.0f}, k-hat {found.khat:.2f})"
        else:
            chains = "" if math.isnan(found.rhat) else f" (R-hat {found.rhat:.2f})"
            short = f"they do not stand for the posterior{chains}"
        return _stands_in(short, self)


@dataclass(frozen=True)
class SampledSet:
    """The largest value over draws that lie in the likelihood-ratio set; made by `sampled_set`."""

    source: str = "laplace"
    draws: int = 1000
    guaranteed: bool = False

    def describe(self, delta: float) -> str:
        return (
            f"draws (source {self.source}) inside the likelihood-ratio set at {1 - delta:g}, "
            "the largest value among them"
        )

    def check(self, cls: Any, oracle: Any = None) -> None:
        """Raise where there is nothing to draw from."""
        check_source(cls, self.source, "sampled_set", oracle)

    def check_size(self, cls: DensityClass | MemberList, n_actions: int) -> None:
        """Any number will do: nothing is claimed."""

    def needed(self, n_actions: int) -> int:
        return 1

    def bounds(
        self, learner: DrawnLearner, functional: Functional, x: np.ndarray, n_actions: int
    ) -> Bounds:
        """Largest and smallest value at x (n, dx) over the draws in the set; the range where
        there are none.
        """
        found, shape = learner.draws, (len(x), n_actions)
        values = learner.values(functional, x, n_actions).reshape(found.size, -1)
        kept = learner.plausible
        note = f"{INNER} ({int(kept.sum())} of {found.size} draws lie in the set); {learner.remark}"
        lower, upper, witness = (
            np.full(shape, functional.low),
            np.full(shape, functional.high),
            None,
        )
        used = learner.used
        if not kept.any():
            short = _stands_in("none of them lies in the set", self)
            note, used = f"{note}; {short}", replace(used, shortage=short)
        else:
            inside = values[kept]
            lower, upper = inside.min(axis=0).reshape(shape), inside.max(axis=0).reshape(shape)
            witness = found.theta[kept][inside.argmax(axis=0)].reshape(
                *shape, *found.theta.shape[1:]
            )
        return Bounds(
            estimate=functional.clip(found.weights @ values).reshape(shape),
            lower=lower,
            upper=upper,
            method="sampled",
            guaranteed=False,
            rule=self.describe(learner.delta),
            note=note,
            find_witness=lambda: witness,
            used=used,
        )


def _stands_in(why: str, rule: CredibleSet | SampledSet) -> str:
    """One sentence for a bound that draws could not give."""
    fix = (
        "source='smc' moves draws to where the posterior is"
        if rule.source == "prior"
        else f"ask for more than draws={rule.draws}, or for another source than {rule.source!r}"
    )
    return f"for want of draws the range's end stands in: {why}; {fix}"


def credible_set(
    level: float = 0.95, source: str = "laplace", draws: int = 1000, *, margin: bool = True
) -> CredibleSet:
    """Limits that hold with posterior probability `level` at each decision, if model and prior are
    right.

    U_a = the r-th smallest of T(x, a; theta_m), r = binom.ppf(1 - 0.05 / K, M, level) + 1,

    for K actions and M draws that count.

    Parameters
    ----------
    level
        1 - eps. The policy that is played meets the quantile of its cost at this level over the
        draws.
    source
        ``"laplace"`` (around the fit, by our own Hessian), ``"svi"`` (the guide of an SVI oracle),
        ``"nuts"``, ``"smc"`` (the prior's draws, weighted row by row, and moved by Metropolis steps
        before the weights wear out: no fit, any shape, cheap where rows come one by one), or
        ``"prior"`` (the prior's draws, weighted and never moved). Before data each is the prior.
        Draws of Laplace and SVI are weighted to the posterior; where the weights show that they do
        not stand for it, moved draws or chains take their place, and the certificate's ``draws``
        says which, with k-hat and effective size.
    draws
        Effective ones count, after weighting. Where they are worth fewer than the level takes (86
        at .95 with four actions), they are drawn again, up to four times as many as asked for;
        where that does not do either, the end of the range stands in, and the certificate says
        so. A number that could never do is refused.
    margin
        True: the order statistic read off the draws is above the quantile but for a chance of 5%
        over the draws. False: the plain quantile, as designs for trials are usually computed; too
        low as often as too high.

    Notes
    -----
    It borrows strength: an untried action is bounded by its prior and by pooling, so it learns
    faster than a guarantee, and is wrong where the prior is. Parameters need priors:
    `numpyro.sample` or `pyro.sample` sites. Not guaranteed: any limit. The level is that of
    each decision by itself, on average over truths as the prior has them.

    References
    ----------
    Babb, Rogatko and Zacks, "Cancer phase I clinical trials: efficient dose escalation with
    overdose control" (1998), for a limit at a posterior quantile; Vehtari, Simpson, Gelman, Yao and
    Gabry, "Pareto smoothed importance sampling" (2024), for k-hat.

    Examples
    --------
    >>> credible_set(0.9).describe(0.05)[:33]
    'posterior quantile at level 0.9 f'
    """
    if not (is_number(level) and 0.5 <= level < 1):
        raise SettingError(f"level must lie in [0.5, 1), got {level!r}; 0.95 is customary")
    check_draws(source, draws)
    if margin is not True and margin is not False:
        raise SettingError(f"margin must be True or False, got {margin!r}")
    return CredibleSet(float(level), source, int(draws), margin=margin)


def sampled_set(source: str = "laplace", draws: int = 1000) -> SampledSet:
    """Draws that lie in the likelihood-ratio set, and the largest value among them: an inner
    approximation, never certified.

    Parameters
    ----------
    source, draws
        Where draws come from, and how many: see `credible_set`.

    Notes
    -----
    max {T(x, a; theta_m) : l(theta_m) >= R - log(1 / delta)}. Not guaranteed: any limit. The
    largest draw lies below the largest value over the set, and the more parameters there are the
    farther below.

    References
    ----------
    Hu, Simchi-Levi and Azizan, "Constrained Contextual Online Decision Making: A Unified
    Framework", which computes with sets of sampled parameters.

    Examples
    --------
    >>> sampled_set(draws=200).guaranteed
    False
    """
    check_draws(source, draws)
    return SampledSet(source, int(draws))


# quantiles over draws -----------------------------------------------------------------------------


def quantile_level(size: float, eps: float, n_actions: int, *, exact: bool = False) -> float:
    """r / M of the order statistic that is above the (1 - eps) quantile of all K actions but for
    `MONTE_CARLO`; inf above M.

    `exact`: the weights are the posterior itself, and there is no Monte Carlo error.

    >>> quantile_level(1000, 0.05, 5)
    0.966
    >>> quantile_level(30, 0.05, 5), quantile_level(30, 0.05, 5, exact=True)
    (inf, 0.95)
    """
    if exact:
        return 1 - eps
    M = math.floor(size)
    rank = int(binom.ppf(1 - MONTE_CARLO / n_actions, M, 1 - eps)) + 1 if M >= 1 else 1
    return rank / M if rank <= M else math.inf


def least_draws(level: float, n_actions: int) -> int:
    """The fewest independent draws of which the largest is above the quantile at `level` of all K
    actions but for `MONTE_CARLO`: level^M <= delta_MC / K.

    >>> least_draws(0.95, 5), quantile_level(89, 0.05, 5), quantile_level(90, 0.05, 5)
    (90, inf, 1.0)
    """
    return math.ceil(math.log(MONTE_CARLO / n_actions) / math.log(level))


# checks -------------------------------------------------------------------------------------------


def check_draws(source: object, draws: object) -> None:
    if source not in SOURCES:
        raise SettingError(f"source must be one of {SOURCES}, got {source!r}")
    if not is_number(draws) or int(draws) != draws or not 20 <= draws <= MOST_DRAWS:  # type: ignore[call-overload,operator]
        raise SettingError(
            f"draws must be a whole number from 20 to {MOST_DRAWS}, got {draws!r}; "
            "1000 is customary"
        )


def check_source(cls: Any, source: str, what: str, oracle: Any = None) -> None:
    """Raise where a class has no proper prior, or no way to draw from this source."""
    if cls.visit(lambda members: True, lambda cls: False):
        return  # its posterior over members is exact, whatever the source
    free = [site.name for site in cls.sites if not site.prior]
    if free:
        raise SettingError(
            f"{what}() draws from a posterior, but the parameters {free} have no prior: write them "
            "as sample sites "
            "(numpyro.sample or pyro.sample) with a proper prior, or give this outcome another "
            "rule, confidence={'...': "
            "likelihood_ratio()}"
        )
    can_draw(cls, source, oracle)
