"""Radius rules: how much worse than the best fit a parameter may explain the data and still count
as plausible.

Two kinds of set come out of a rule. A likelihood set keeps every theta with ``loglik(theta) >= c``;
a divergence ball keeps every theta with ``sum_i D^2(theta_hat, theta)_i <= r``. Each rule is a
small frozen object: ``guaranteed`` says whether the set covers the truth at all times, on
adaptively collected data, with probability 1 - delta, and ``describe(delta)`` says it in a
sentence.

References: Hu, Simchi-Levi, Azizan, "Constrained Contextual Online Decision Making: A Unified
Framework" (Est); Wasserman, Ramdas, Balakrishnan, "Universal inference" (likelihood-ratio sets);
Abbasi-Yadkori, Pal, Szepesvari, "Improved algorithms for linear stochastic bandits"
(self-normalised bound).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from scipy.stats import chi2

from gedppl.errors import SettingError
from gedppl.learning.draws import can_draw

if TYPE_CHECKING:
    from gedppl.learning.oracles import Oracle
    from gedppl.programs.contract import DensityClass, MemberList

DIVERGENCES = ("neg_log_affinity", "hellinger2", "total_variation2", "l2")
PREDICTIVES = ("laplace", "svi", "nuts", "smc", "prior")
# the literal least-squares Est covers from about here up (8 sigma^2 >= 1)
SMALLEST_COVERING_SCALE = 0.354


NEEDS_FINITE = (
    "est='finite' is log(|F|/delta) and needs a finite class; use bracketing(...) or the default "
    "likelihood_ratio() for a "
    "parametric one"
)
NEEDS_SCALE = (
    "est={kind!r} needs a linear-Gaussian class with known noise scale; use bracketing(...) or the "
    "default likelihood_ratio() "
    "for this class"
)
NEEDS_PREDICTOR = (
    "parametric_bootstrap() needs a class with a linear predictor, from which outcomes can be "
    "simulated; use "
    "likelihood_ratio() for this class"
)


class CoverageWarning(UserWarning):
    """The chosen radius is known not to cover here."""


@dataclass(frozen=True)
class View:
    """What a rule may look at. `summed_divergence` and `refits` are called only by the rules
    that need them.
    """

    n: int
    delta: float
    dim: int = 0
    size: int | None = None  # |F| of a finite class
    information: np.ndarray | None = None  # (D, D) observed information at the fit
    scale: float | None = None  # known noise scale of a linear-Gaussian class
    # (name, theta (M, D)) -> (M,)
    summed_divergence: Callable[[str, np.ndarray], np.ndarray] | None = None
    # S -> fits (S, D) to outcomes simulated from the fit, None where that cannot be done
    refits: Callable[[int], np.ndarray | None] | None = None


@dataclass(frozen=True)
class LikelihoodRatio:
    """Likelihood-ratio e-process: C_t = {theta : l_{s:t}(theta) >= (R_t - R_s) - log(1/delta_s)}
    for every start s.

    R_t sums the log of predictive densities, each fixed before its outcome is seen, so exp(R_t -
    l_t(truth)) is a nonnegative martingale and Ville's inequality covers all t at once. With
    restarts the k-th start has delta_s = delta (6/pi^2) / (k+1)^2; they sum to delta.

    With ``intersect`` the sets of earlier refits go on counting (the running intersection: the
    truth is in all of them on the same event). Bounds are a few percent narrower and slower, but
    where the unlucky delta happens a passing miss becomes a lasting one, so it is off by default.
    Finite classes always do it; sets that are bounded by ascent never do.

    ``predictive`` says where those densities come from: draws given the rows before, by
    ``"laplace"``, ``"svi"``, ``"nuts"``, ``"smc"`` or ``"prior"``. Draws that are far off cost
    width, never coverage.
    """

    restarts: bool = True
    guaranteed: bool = True
    intersect: bool = False
    predictive: str = "laplace"
    source = None  # of draws that the set is read off; none are

    @property
    def process(self) -> LikelihoodRatio:
        """The e-process behind the set: this one."""
        return self

    def check(self, cls: DensityClass | MemberList, oracle: Oracle | None = None) -> None:
        """Any class will do for which its predictive can be drawn."""
        can_draw(cls, self.predictive, oracle)

    def level(self, k: int, delta: float) -> float:
        """delta_s of the k-th start, k = 0, 1, ...

        >>> rule = LikelihoodRatio()
        >>> sum(rule.level(k, 0.05) for k in range(100_000)) < 0.05
        True
        """
        return delta * (6.0 / math.pi**2) / (k + 1) ** 2 if self.restarts else delta

    def describe(self, delta: float) -> str:
        how = (
            "restarted at growing times, delta split as 6/(pi k)^2"
            if self.restarts
            else "from the first row"
        )
        how += ", intersected over refits" if self.intersect else ""
        how += f", predicted from {self.predictive} draws" if self.predictive != "laplace" else ""
        return (
            f"likelihood-ratio e-process ({how}): covers the truth at all times and for adaptive "
            "data with probability "
            f"at least {1 - delta:g} if the model holds"
        )


class WithoutProcess:
    """A rule whose sets come from a radius around the fit, and from no e-process.

    A rule of one's own derives from this and adds ``guaranteed``, ``divergence``, ``check(cls,
    oracle)``, ``radius(view)`` and ``describe(delta)``.
    """

    process = None
    source: str | None = None  # of draws that the set is read off; none are
    predictive = "laplace"  # where the densities that monitors ask for come from

    def centre(self, view: View, top: np.ndarray) -> np.ndarray:
        """What the set is around, given the maximum-likelihood estimate `top` (D,)."""
        return top


@dataclass(frozen=True)
class ChiSquare(WithoutProcess):
    """Wilks: keep theta with l(theta_hat) - l(theta) <= chi2_{D, 1-delta'} / 2; delta' = delta, or
    delta / (2 t^3) with union.

    A fixed-design, fixed-time, large-sample statement. It does not cover adaptive data and is here
    for comparison.
    """

    union: bool = False
    guaranteed: bool = False
    divergence: str = "log_likelihood"

    def check(self, cls: DensityClass | MemberList, oracle: Oracle | None = None) -> None:
        _check_parametric(cls, "chi_square")

    def radius(self, view: View) -> float:
        level = view.delta / (2 * (view.n + 1) ** 3) if self.union else view.delta
        return float(chi2.isf(level, max(view.dim, 1))) / 2

    def describe(self, delta: float) -> str:
        which = f"{delta:g}/(2t^3)" if self.union else f"{delta:g}"
        return (
            f"chi-square likelihood drop at level {which}: asymptotic, for a fixed design "
            "only; NOT valid for adaptive data"
        )


@dataclass(frozen=True)
class Est:
    """An offline estimation bound: sum_i H^2(theta_hat, truth)_i <= Est with probability 1 - delta,
    H^2 = 1 - affinity.

    theta_hat is the maximum-likelihood estimate, except for the self-normalised kinds: they bound
    the distance to the ridge estimate, and say nothing about least squares (see `centre`).
    """

    kind: str
    diameter: float | None = None
    log_lipschitz: float | None = None
    prior_precision: float | None = None
    norm_bound: float | None = None

    @property
    def ridge(self) -> bool:
        """Whether the bound is about the ridge estimate."""
        return self.kind in ("self_normalised", "prior_posterior")

    def centre(self, view: View, top: np.ndarray) -> np.ndarray:
        """theta_hat (D,), given the maximum-likelihood estimate `top`.

        The ridge estimate (I + lambda/sigma^2)^-1 I top for the self-normalised kinds, I the
        information: with features so small that lambda outweighs them, least squares is off by the
        noise alone, chi-square with D degrees of freedom, while the bound tends to log(1/delta)/4.
        """
        if not self.ridge:
            return top
        assert view.information is not None
        assert view.scale is not None
        assert self.prior_precision is not None
        ridge = self.prior_precision / view.scale**2 * np.eye(view.dim)
        return np.linalg.solve(view.information + ridge, view.information @ top)

    def check(self, cls: DensityClass | MemberList, oracle: Oracle | None = None) -> None:
        """Raise where the class lacks what this bound is made of."""
        finite = cls.visit(lambda members: True, lambda cls: False)
        if self.kind == "finite" and not finite:
            raise SettingError(NEEDS_FINITE)
        if self.kind in ("bracketing", "chi_square") and finite:
            raise SettingError(
                f"est={self.kind!r} counts parameters, and a finite class has none; "
                "use mle_finite() for it"
            )
        if self.ridge and (finite or cls.predictor is None or cls.predictor.family != "Normal"):
            raise SettingError(NEEDS_SCALE.format(kind=self.kind))

    def value(self, view: View) -> float:
        """Est at this many rows. With L = log(1/delta), n rows and D parameters:

            finite           log |F| + L
            bracketing       D log(1 + diameter B n) + L + 1
            chi_square       chi2_{D, 1 - delta} / 8                (fixed designs only)
            prior_posterior  (2 L + logdet(I + Phi'Phi / lambda) + lambda S^2 / sigma^2) / 8
            self_normalised  (sqrt(2 L + logdet(...)) + sqrt(lambda) S / sigma)^2 / 8

        The eighth is that of a Normal, whose H^2 between means at a distance d is 1 - exp(-d^2 / 8
        sigma^2) <= d^2 / 8 sigma^2.
        """
        log_inverse = math.log(1 / view.delta)
        if self.kind == "finite":
            if view.size is None:
                raise SettingError(NEEDS_FINITE)
            return math.log(view.size) + log_inverse
        if self.kind == "bracketing":
            assert self.diameter is not None
            assert self.log_lipschitz is not None
            return (
                view.dim * math.log1p(self.diameter * self.log_lipschitz * view.n) + log_inverse + 1
            )
        if self.kind == "chi_square":
            return float(chi2.isf(view.delta, max(view.dim, 1))) / 8
        if view.information is None or view.scale is None:
            raise SettingError(NEEDS_SCALE.format(kind=self.kind))
        assert self.prior_precision is not None
        assert self.norm_bound is not None
        # information = Phi'Phi / sigma^2, so Phi'Phi / lambda = information sigma^2 / lambda
        logdet = float(
            np.linalg.slogdet(
                np.eye(view.dim) + view.information * (view.scale**2 / self.prior_precision)
            )[1]
        )
        bias = self.prior_precision * self.norm_bound**2 / view.scale**2
        if self.kind == "self_normalised":
            return (math.sqrt(2 * log_inverse + logdet) + math.sqrt(bias)) ** 2 / 8
        return (2 * log_inverse + logdet + bias) / 8


def mle_finite() -> Est:
    """log(|F|/delta) for the maximum-likelihood member of a finite class; holds at all times,
    for adaptive data.

    >>> round(mle_finite().value(View(n=100, delta=0.05, size=20)), 3)
    5.991
    """
    return Est("finite")


def bracketing(diameter: float, log_lipschitz: float) -> Est:
    """D log(1 + diameter * B * n) + log(1/delta) + 1, where |d log p / d theta| <= B on a
    parameter set of that diameter. It covers if both constants are true, which nothing here checks.

    >>> round(bracketing(diameter=2.0, log_lipschitz=1.0).value(View(n=100, delta=0.05, dim=3)), 2)
    19.91
    """
    _positive(diameter=diameter, log_lipschitz=log_lipschitz)
    return Est("bracketing", diameter=float(diameter), log_lipschitz=float(log_lipschitz))


def self_normalised(prior_precision: float, norm_bound: float, sharper: bool = True) -> Est:
    """Linear-Gaussian, known sigma, |theta| <= S: (2L + logdet(I + Phi'Phi/lambda) + lambda
    S^2/sigma^2) / 8, L = log(1/delta).

    ``sharper=False`` gives (sqrt(2L + logdet(...)) + sqrt(lambda) S / sigma)^2 / 8, the older form.
    Both hold at all times, for the ridge estimate with that lambda, which is then the centre of the
    ball.
    """
    _positive(prior_precision=prior_precision, norm_bound=norm_bound)
    kind = "prior_posterior" if sharper else "self_normalised"
    return Est(kind, prior_precision=float(prior_precision), norm_bound=float(norm_bound))


@dataclass(frozen=True)
class Ball(WithoutProcess):
    """{theta : sum_i D^2(theta_hat, theta)_i <= factor * Est}; ``factor`` carries Est from H^2
    to another divergence.
    """

    divergence: str
    est: Est
    factor: float = 1.0

    @property
    def guaranteed(self) -> bool:
        return self.est.kind != "chi_square"

    def check(self, cls: DensityClass | MemberList, oracle: Oracle | None = None) -> None:
        self.est.check(cls)

    def centre(self, view: View, top: np.ndarray) -> np.ndarray:
        """What the ball is around, given the maximum-likelihood estimate `top` (D,)."""
        return self.est.centre(view, top)

    def radius(self, view: View) -> float:
        return self.factor * self.est.value(view)

    def describe(self, delta: float) -> str:
        held = (
            f"covers at all times with probability at least {1 - delta:g} if the model and the "
            "stated constants hold"
            if self.guaranteed
            else "for a fixed design only; NOT valid for adaptive data"
        )
        centre = "ridge estimate" if self.est.ridge else "maximum-likelihood fit"
        return f"{self.divergence} ball around the {centre}, Est by {self.est.kind}: {held}"


@dataclass(frozen=True)
class Paper(WithoutProcess):
    """The paper's literal Est at delta/(2 t^3): finite class log(|F|/delta), least squares sigma^2
    (d + 2 sqrt(dL) + 2L).

    The least-squares form carries a spurious sigma^2: the right one is (d + 2 sqrt(dL) + 2L)/8
    without it, so below sigma = 0.354 the literal set is too small (it covers about 9% at sigma =
    0.1), and above it is too large. For other parametric classes the paper prints no Est; log|F| is
    then replaced by the log covering number d log(2 + t) of its corollary, with unit constants.
    """

    divergence: str = "hellinger2"
    guaranteed: bool = False

    def check(self, cls: DensityClass | MemberList, oracle: Oracle | None = None) -> None:
        """Any class will do."""

    def radius(self, view: View) -> float:
        if view.size is None and view.scale is not None and view.scale < SMALLEST_COVERING_SCALE:
            warnings.warn(
                f"the paper's least-squares radius does not cover at noise scale {view.scale:g} < "
                f"{SMALLEST_COVERING_SCALE}; use likelihood_ratio() for a set that does",
                CoverageWarning,
                stacklevel=2,
            )
        return float(self.at(view, view.delta / (2 * (view.n + 1) ** 3)))

    def at(self, view: View, level: Any) -> Any:
        """Est at this level of delta, or at each of several, taken as it is."""
        log_inverse = np.log(1 / level)
        if view.size is not None:
            return math.log(view.size) + log_inverse
        d = view.dim
        if view.scale is None:
            return d * math.log(2 + view.n) + log_inverse
        return view.scale**2 * (d + 2 * np.sqrt(d * log_inverse) + 2 * log_inverse)

    def describe(self, delta: float) -> str:
        return (
            f"the paper's literal Est at {delta:g}/(2t^3): covers for finite classes; for least "
            "squares it is stated for a "
            "fixed design and is too small when the noise scale is below 0.354"
        )


@dataclass(frozen=True)
class ParametricBootstrap(WithoutProcess):
    """r = the ceil((S+1)(1-delta))-th smallest of sum_i D^2(theta_hat, theta_s)_i, theta_s
    fitted to outcomes simulated from theta_hat at the same contexts and actions.
    """

    replicates: int = 199
    divergence: str = "neg_log_affinity"
    guaranteed: bool = False

    def check(self, cls: DensityClass | MemberList, oracle: Oracle | None = None) -> None:
        _check_parametric(cls, "parametric_bootstrap")
        if cls.predictor is None:
            raise SettingError(NEEDS_PREDICTOR)

    def radius(self, view: View) -> float:
        fits = None if view.refits is None else view.refits(self.replicates)
        if fits is None or view.summed_divergence is None:
            raise SettingError(NEEDS_PREDICTOR)
        return _order_statistic(view.summed_divergence(self.divergence, fits), view.delta)

    def describe(self, delta: float) -> str:
        return (
            f"parametric bootstrap quantile at {1 - delta:g} from {self.replicates} replicates: "
            "approximate, ignores that "
            "the data were collected adaptively"
        )


Rule = LikelihoodRatio | ChiSquare | Ball | Paper | ParametricBootstrap


def likelihood_ratio(
    restarts: bool = True, intersect: bool = False, predictive: str = "laplace"
) -> LikelihoodRatio:
    """The default rule, a likelihood-ratio e-process: anytime, adaptive, for any model.

    C_t = {theta : l_{s:t}(theta) >= R_t - R_s - log(1 / delta_s) for every start s}, R_t the log of
    predictive densities that were fixed before their outcomes were seen. See `LikelihoodRatio`.

    Parameters
    ----------
    restarts
        Begin anew at growing times, with a share of delta each: a poor start is forgotten.
    intersect
        With the sets of earlier refits: a few percent narrower, and a passing miss becomes a
        lasting one.
    predictive
        Where the draws come from that predict each outcome before it is seen: ``"laplace"``,
        ``"svi"`` (the oracle's guide), ``"nuts"``, ``"smc"`` or ``"prior"``. The set covers
        whatever they are.

    Notes
    -----
    It covers at all times at once with probability 1 - delta if the model class holds the truth,
    however the data were collected. Not guaranteed: anything where the class does not.

    References
    ----------
    Wasserman, Ramdas and Balakrishnan, "Universal inference" (2020); Ville's inequality.

    Examples
    --------
    >>> likelihood_ratio().guaranteed, likelihood_ratio(intersect=True).intersect
    (True, True)
    """
    if predictive not in PREDICTIVES:
        raise SettingError(f"predictive must be one of {PREDICTIVES}, got {predictive!r}")
    return LikelihoodRatio(bool(restarts), intersect=bool(intersect), predictive=predictive)


def chi_square(union: bool = False) -> ChiSquare:
    """The Wilks radius, for comparison only: l(theta_hat) - l(theta) <= chi2_{D, 1 - delta} / 2;
    with `union`, delta / (2 t^3) for delta.

    Not guaranteed: coverage, of adaptive data least of all. It is right for many rows of a fixed
    design at one time.

    References
    ----------
    Wilks, "The large-sample distribution of the likelihood ratio for testing composite hypotheses"
    (1938).

    Examples
    --------
    >>> round(chi_square().radius(View(n=100, delta=0.05, dim=1)), 3)
    1.921
    """
    return ChiSquare(bool(union))


def hellinger_ball(est: Est | None = None) -> Ball:
    """A ball around the fit: sum_i H^2(fit, theta)_i <= Est, H^2 = 1 - affinity.

    Parameters
    ----------
    est
        A bound on the left side at the truth, `mle_finite()` by default; `bracketing` and
        `self_normalised` are for parametric classes.

    Notes
    -----
    H^2 saturates at 1, so this ball is unbounded in any direction seen fewer than Est times. Not
    guaranteed: coverage, where the constants of its Est, which are declared, do not hold.

    References
    ----------
    Hu, Simchi-Levi and Azizan, "Constrained Contextual Online Decision Making: A Unified
    Framework".

    Examples
    --------
    >>> hellinger_ball().divergence, hellinger_ball().est.kind
    ('hellinger2', 'finite')
    """
    return Ball("hellinger2", est or mle_finite())


def neg_log_affinity_ball(est: Est | None = None) -> Ball:
    """sum -log(affinity) <= Est: for finite-class maximum likelihood the same Est holds for this
    larger quantity.
    """
    return Ball("neg_log_affinity", est or mle_finite())


def total_variation_ball(est: Est | None = None) -> Ball:
    """sum TV^2 <= 2 Est, because TV^2 <= 2 H^2."""
    return Ball("total_variation2", est or mle_finite(), 2.0)


def l2_ball(density_bound: float, est: Est | None = None) -> Ball:
    """sum |p - q|^2_{L2} <= 8 B Est for densities bounded by B."""
    _positive(density_bound=density_bound)
    return Ball("l2", est or mle_finite(), 8.0 * density_bound)


def paper_radius() -> Paper:
    """The paper's literal Est at delta / (2 t^3), to compare with: see `Paper`.

    Notes
    -----
    It covers finite classes. Not guaranteed: others. Its least-squares form has a factor sigma^2
    too many, so that it is too small below sigma = 0.354; a `CoverageWarning` says so.

    References
    ----------
    Hu, Simchi-Levi and Azizan, "Constrained Contextual Online Decision Making: A Unified
    Framework", its offline estimation bounds.

    Examples
    --------
    >>> paper_radius().describe(0.05)[:29]
    "the paper's literal Est at 0."
    """
    return Paper()


def posterior_quantile(*_: object, **__: object) -> NoReturn:
    """Given up: a quantile of divergences bounded no action's cost."""
    raise SettingError(
        "posterior_quantile() is given up: use ged.credible_set(level=0.95, "
        "source='laplace', draws=1000)"
    )


def parametric_bootstrap(replicates: int = 199) -> ParametricBootstrap:
    """A quantile of divergences to refits on simulated outcomes: approximate, and not valid for
    data that were collected adaptively. See `ParametricBootstrap`.

    Parameters
    ----------
    replicates
        Refits on simulated outcomes; 199 give the 95% quantile as the 190th of them.

    Notes
    -----
    The ceil((S + 1)(1 - delta))-th smallest of sum_i -log affinity(theta_hat, theta_s)_i, with
    theta_s fitted to outcomes simulated from theta_hat at the same contexts and actions. Not
    guaranteed: coverage at any number of rows, or of data collected adaptively, since an outcome
    simulated anew changes no later action.

    References
    ----------
    Efron and Tibshirani, "An Introduction to the Bootstrap" (1993).

    Examples
    --------
    >>> parametric_bootstrap().guaranteed
    False
    """
    if replicates < 20:
        raise SettingError(
            f"replicates must be at least 20, got {replicates}; a .95 quantile needs that many"
        )
    return ParametricBootstrap(int(replicates))


def _check_parametric(cls: DensityClass | MemberList, what: str) -> None:
    if cls.visit(lambda members: True, lambda cls: False):
        raise SettingError(
            f"{what}() is for parametric classes; use likelihood_ratio() or a ball for a finite one"
        )


def _order_statistic(sums: np.ndarray, delta: float) -> float:
    """The ceil((S+1)(1-delta))-th smallest; the largest when S is too small for the level."""
    ordered = np.sort(np.where(np.isnan(sums), np.inf, sums))
    return float(ordered[min(math.ceil((len(ordered) + 1) * (1 - delta)), len(ordered)) - 1])


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise SettingError(f"{name} must be positive and finite, got {value}")
