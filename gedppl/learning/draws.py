"""Sampled parameter sets: draws of a class's parameters given rows, from whichever source.

    "prior"     the model's own prior
    "laplace"   N(theta_map, H^-1), H our own Hessian of the log posterior there; exact for a
                linear-Gaussian class with a Gaussian prior
    "svi"       the guide that an SVI oracle fitted
    "nuts"      a Markov chain
    "smc"       the prior's draws, brought to the posterior step by step: weighted, resampled and
                moved (`moves`)

Before data every source is the prior. A finite class has its exact posterior over members (each of
them alike before data), whatever the source. Parameters without a prior have the weak working prior
N(initial, 5^2) of fits, and the status says so.

Between refits draws are weighted by the likelihood of the rows that came since
(`ParameterDraws.reweighted`); Pareto's k-hat and the effective size say when that no longer will
do.

Axis letters: S draws, D flat parameters, M members, n rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import solve_triangular

from gedppl.errors import SettingError
from gedppl.learning.fits import WORKING_SCALE, Fit, WorkingPrior, positive_definite
from gedppl.learning.moves import HALF, Moved, moved, systematic, tempered
from gedppl.learning.oracles import auto
from gedppl.learning.seen_class import SeenClass
from gedppl.learning.storing import storable
from gedppl.learning.variational import NO_SPREAD, SVI, svi
from gedppl.numerics import pareto
from gedppl.programs.contract import DensityClass, MemberList
from gedppl.rows import Rows

if TYPE_CHECKING:
    from gedppl.functionals import Functional
    from gedppl.learning.oracles import Oracle

SOURCES = ("prior", "laplace", "svi", "nuts", "smc")
OF_THE_PROGRAM = ("svi", "nuts", "smc")  # run on its own parameters, whatever the data see of them
LARGEST_KHAT = 0.7  # beyond, importance weights converge too slowly to be of use
SMALLEST_SHARE = 0.1  # of the draws, that the weights must be worth
PROBES = 16  # draws at which a posterior must be the Gaussian that it is taken for
SAME = 1e-8  # share of the log posterior, by which it may differ there
CHAINS = {"numpyro": 4, "pyro": 2}  # side by side in NumPyro, one after another in Pyro
WARMUP = 300
WORN = 0.5  # share of their effective size, under which weighted draws are moved
LARGEST_RHAT, MOST_DIVERGENT = 1.1, 0.01  # beyond, chains are said not to have settled
PRIOR_SIZE = 200  # prior draws that set the scale of chains where there is no fit
MIDDLE_HALF = 1.349  # standard deviations between the quartiles of a Gaussian
ROUNDS_INSIDE = 20  # batches drawn in search of draws inside declared bounds


@storable
@dataclass(frozen=True)
class ParameterDraws:
    """Draws of a class's parameters with their weights, and how far they can be believed.

    >>> draws = ParameterDraws(
    ...     np.zeros((4, 2)), None, ess=4.0, khat=-np.inf, source="prior", status="4 draws"
    ... )
    >>> draws.weights, round(draws.reweighted(np.log([1.0, 1.0, 1e-9, 1e-9])).ess, 3)
    (array([0.25, 0.25, 0.25, 0.25]), 2.0)
    """

    theta: np.ndarray  # (S, D) flat parameters; of a finite class (M,) member numbers
    log_weights: np.ndarray | None  # (S,), normalised; None: all alike
    ess: float  # how many independent draws these are worth
    khat: float  # Pareto's shape of the weights; -inf without weights, and where weights are exact
    source: str
    status: str  # one sentence: how they were found, and what speaks against them
    ok: bool = True  # False: nothing better was to be had, and `status` says why
    exact: bool = False  # draws (or weights) of the posterior itself, not of an approximation
    rhat: float = np.nan  # the largest over parameters, for chains
    chains: int = 1  # theta is so many chains, one after another
    # (S,) log density they were drawn with, up to a constant; None: not known
    log_proposal: np.ndarray | None = None

    @property
    def size(self) -> int:
        """S, or M for a finite class."""
        return len(self.theta)

    @property
    def enumerated(self) -> bool:
        """Whether these are members of a finite class, by number."""
        return self.theta.ndim == 1

    @property
    def weights(self) -> np.ndarray:
        """(S,), which sum to one."""
        return (
            np.full(self.size, 1 / self.size)
            if self.log_weights is None
            else np.exp(self.log_weights)
        )

    @property
    def degenerate(self) -> bool:
        """Whether the weights rest on too few draws: time to draw again."""
        if self.enumerated:
            return False  # its weights are the posterior, however few they single out
        return self.khat > LARGEST_KHAT or self.ess < SMALLEST_SHARE * self.size

    @property
    def usable(self) -> bool:
        """Whether they stand for the posterior of the rows that they were drawn and weighted by."""
        return self.ok and not self.degenerate

    def reweighted(self, log_likelihood: np.ndarray) -> ParameterDraws:
        """The draws weighted by the likelihood (S,) of further rows, the tail of the weights
        smoothed.

        If no draw gives these rows a positive density, the weights stay and `ok` is False.
        """
        before = np.zeros(self.size) if self.log_weights is None else self.log_weights
        logs = before + np.where(np.isnan(log_likelihood), -np.inf, log_likelihood)
        if not np.isfinite(logs).any():
            return replace(
                self,
                ok=False,
                ess=1.0,
                status=f"{self.status}; no draw gives the new rows a positive density",
            )
        if self.enumerated:
            return replace(
                self, log_weights=logs - np.logaddexp.reduce(logs), ess=pareto.effective_size(logs)
            )
        weights, khat = pareto.smoothed(logs)
        share = pareto.effective_size(weights) / pareto.effective_size(before)
        return replace(
            self, log_weights=weights, khat=khat, ess=max(share * self.ess, 1.0), exact=False
        )

    def resampled(self, n: int, seed: int) -> ParameterDraws:
        """n draws without weights, by systematic resampling: each is taken in proportion to its
        weight, give or take one.
        """
        chosen = systematic(self.weights, n, np.random.default_rng(seed).random())
        return replace(
            self,
            theta=self.theta[chosen],
            log_weights=None,
            khat=-np.inf,
            ess=min(self.ess, float(n)),
            exact=False,
            log_proposal=None,
            chains=1,
        )


def sample(
    cls: Any,
    rows: Rows | None,
    source: str,
    draws: int,
    seed: int,
    fit: Fit | None = None,
    oracle: Oracle | None = None,
) -> ParameterDraws:
    """Draws of the parameters given rows.

    Parameters
    ----------
    cls
        From `density_class` (traced) or `finite_class`.
    rows
        None, or none of them: the prior.
    source
        ``"prior"``, ``"laplace"``, ``"svi"``, ``"nuts"`` or ``"smc"``.
    draws, seed
        S, and where randomness comes from: the same again gives the same draws.
    fit
        A fit of these rows, which is then not made again; one of fewer rows is where fitting starts
        from.
    oracle
        How to fit; for ``"svi"`` one from `ged.svi(...)`.

    Notes
    -----
    Nothing here is guaranteed: draws trust the model and its prior, and all but ``"nuts"`` are
    approximations (exact where ``.exact``). A fit that fails leaves the prior, with ``ok`` False.
    """
    if source not in SOURCES:
        raise SettingError(f"source must be one of {SOURCES}, got {source!r}")
    if int(draws) != draws or draws < 1:
        raise SettingError(f"draws must be a whole number of at least 1, got {draws!r}")
    empty = rows is None or rows.n == 0

    def parametric(cls: DensityClass) -> ParameterDraws:
        if rows is None or empty or source == "prior":
            return _prior(cls, int(draws), int(seed))
        if isinstance(cls, SeenClass) and source in OF_THE_PROGRAM:
            found = sample(cls.whole, rows, source, draws, seed, oracle=oracle)
            return replace(found, theta=cls.seen_of(found.theta))
        # one of what the data see has other coordinates
        mine = fit if fit is not None and len(fit.theta) == cls.dim else None
        return FROM[source](cls, rows, int(draws), int(seed), mine, oracle)

    out: ParameterDraws = cls.visit(
        lambda members: _members(members, None if source == "prior" else rows, source), parametric
    )
    return out


def corrected(cls: Any, rows: Rows | None, draws: ParameterDraws) -> ParameterDraws:
    """The draws, found on these rows, weighted to stand for the posterior itself instead of for its
    approximation.

    w_s = p(theta_s | rows) / q(theta_s), smoothed. Draws whose density q is not known, and exact
    ones, come back as they are.
    """
    if (
        draws.log_proposal is None
        or draws.exact
        or draws.log_weights is not None
        or rows is None
        or rows.n == 0
    ):
        return draws
    fixed = draws.reweighted(log_posterior(cls, rows, draws.theta) - draws.log_proposal)
    return replace(
        fixed,
        status=f"{draws.status}; weighted to the posterior, k-hat {fixed.khat:.2f}",
        log_proposal=None,
    )


def values(
    cls: Any, draws: ParameterDraws, functional: Functional, x: np.ndarray, a: np.ndarray
) -> np.ndarray:
    """The functional at every draw and row x (n, dx), a (n,): (S, n)."""
    return np.asarray(cls.values(functional, draws.theta, x, a), float)


def log_likelihood(
    cls: Any, draws: ParameterDraws, x: np.ndarray, a: np.ndarray, y: np.ndarray
) -> np.ndarray:
    """Each row's log-likelihood at every draw: (S, n)."""
    return np.asarray(cls.log_likelihood(draws.theta, x, a, y), float)


def cdf(cls: Any, draws: ParameterDraws, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> np.ndarray:
    """P(Y <= y) at every draw and row: (S, n)."""
    if draws.enumerated:
        each = [np.asarray(cls.density(int(m), x, a).cdf(y), float) for m in draws.theta]
        return np.stack([np.broadcast_to(one, len(y)) for one in each])
    found = np.asarray(cls.density_at(draws.theta, x, a).cdf(y[None]), float)
    return np.broadcast_to(found, (draws.size, len(y)))


# the sources --------------------------------------------------------------------------------------


def _members(cls: MemberList, rows: Rows | None, source: str) -> ParameterDraws:
    M, n = int(cls.size), 0 if rows is None else rows.n
    logs = (
        np.zeros(M)
        if rows is None or n == 0
        else np.asarray(cls.log_likelihood(cls.every, rows.x, rows.a, rows.y), float).sum(axis=1)
    )
    logs = np.where(np.isnan(logs), -np.inf, logs)
    ok = bool(np.isfinite(logs).any())
    logs = logs if ok else np.zeros(M)
    logs = logs - np.logaddexp.reduce(logs)
    status = f"exact weights of {M} members, each alike before data, given {n} rows"
    status += "" if ok else "; no member gives them a positive density, so that all count alike"
    return ParameterDraws(
        np.arange(M), logs, pareto.effective_size(logs), -np.inf, source, status, ok=ok, exact=True
    )


def _prior(cls: Any, S: int, seed: int, status: str = "", ok: bool = True) -> ParameterDraws:
    def batch(k: int) -> np.ndarray:
        raw = np.array(cls.draw_prior(S, seed + k), float)
        return np.where(cls.prior_free, cls.initial + WORKING_SCALE * (raw - cls.initial), raw)

    theta, said = _inside(cls, batch, S, np.asarray(cls.initial, float))
    status = "; ".join(
        [*([status] if status else []), f"{S} draws from the prior", *said, *_without_prior(cls)]
    )
    return ParameterDraws(theta, None, float(S), -np.inf, "prior", status, ok, exact=ok)


def _nothing_learned(cls: Any, rows: Rows, S: int, seed: int, why: str) -> ParameterDraws:
    return _prior(
        cls, S, seed, f"no fit of {rows.n} rows ({why}), so that nothing was learned", ok=False
    )


def _fitted(cls: Any, rows: Rows, fit: Fit | None, oracle: Oracle) -> Fit:
    """The fit given, if it is of these rows; else a new one that starts from it."""
    return (
        fit
        if fit is not None and fit.n == rows.n and not fit.kept
        else oracle(cls, rows, start=fit)
    )


def _usable(fit: Fit) -> bool:
    return bool(np.isfinite(fit.theta).all() and np.isfinite(fit.precision).all())


def _laplace(
    cls: Any, rows: Rows, S: int, seed: int, fit: Fit | None, oracle: Oracle | None
) -> ParameterDraws:
    found = _fitted(cls, rows, fit, oracle or auto())
    if not _usable(found):
        return _nothing_learned(cls, rows, S, seed, found.status)
    chol = np.linalg.cholesky(positive_definite(found.precision))

    def batch(k: int) -> np.ndarray:
        base = np.random.default_rng([seed, k]).standard_normal((S, cls.dim))
        out: np.ndarray = found.theta + solve_triangular(chol, base.T, lower=True, trans=1).T
        return out

    theta, said = _inside(cls, batch, S, found.theta)
    status = "; ".join([f"{S} Laplace draws: {found.status}", *said, *_without_prior(cls)])
    proposal = -0.5 * np.sum(((theta - found.theta) @ chol) ** 2, axis=1)
    exact = found.ok and not said and _is_parabola(cls, rows, theta[:PROBES], proposal[:PROBES])
    return ParameterDraws(
        theta, None, float(S), -np.inf, "laplace", status, found.ok, exact, log_proposal=proposal
    )


def guide_of(oracle: Oracle | None) -> Oracle:
    """The SVI oracle whose guide is drawn from: the one given, or independent Normals."""
    return oracle if oracle is not None and isinstance(oracle.solve, SVI) else svi()


def can_draw(cls: DensityClass | MemberList, source: str, oracle: Oracle | None = None) -> None:
    """Raise where a class cannot be drawn from by this source."""

    def parametric(cls: DensityClass) -> None:
        if source == "nuts" and cls.backend not in CHAINS:
            raise SettingError(
                "source='nuts' runs chains of a NumPyro or Pyro program, and this class is neither "
                f"({cls.backend!r}); use source='laplace'"
            )
        if source == "svi":
            if np.all(cls.prior_free):
                raise SettingError(NO_SPREAD)
            chosen = guide_of(oracle)
            chosen.check(cls)
            assert isinstance(chosen.solve, SVI)
            chosen.solve.check_spread(cls)

    # the posterior over members is exact, whatever the source
    cls.visit(lambda members: None, parametric)


def _svi(
    cls: Any, rows: Rows, S: int, seed: int, fit: Fit | None, oracle: Oracle | None
) -> ParameterDraws:
    chosen = guide_of(oracle)
    assert isinstance(chosen.solve, SVI)
    if np.all(cls.prior_free) or chosen.solve.runner(cls).point:
        raise SettingError(NO_SPREAD)
    found = _fitted(cls, rows, fit if fit is not None and fit.guide is not None else None, chosen)
    if found.guide is None:
        return _nothing_learned(cls, rows, S, seed, found.status)
    state, runner, kept = found.guide, chosen.solve.runner(cls), dict[int, np.ndarray | None]()

    def batch(k: int) -> np.ndarray:
        drawn = runner.draw(state, S, seed + k)
        theta: np.ndarray = cls.flatten(drawn.values)
        kept[k] = None if drawn.log_density is None else drawn.log_density + cls.log_jacobian(theta)
        return theta

    theta, said = _inside(cls, batch, S, found.theta)
    status = "; ".join([f"{S} draws from the guide: {found.status}", *said, *_without_prior(cls)])
    return ParameterDraws(
        theta,
        None,
        float(S),
        -np.inf,
        "svi",
        status,
        found.ok,
        # a point has no density, whatever it says of itself
        log_proposal=None if said or np.any(np.ptp(theta, axis=0) == 0) else kept[0],
    )


def _nuts(
    cls: Any, rows: Rows, S: int, seed: int, fit: Fit | None, oracle: Oracle | None
) -> ParameterDraws:
    can_draw(cls, "nuts")
    found = _fitted(cls, rows, fit, auto())
    centre, root = _frame(cls, found, seed)
    C = CHAINS[cls.backend]
    starts = np.random.default_rng([seed, 4]).standard_normal((C, cls.dim))
    # towards the centre, until the log posterior is finite everywhere
    for _ in range(ROUNDS_INSIDE):
        if np.isfinite(log_posterior(cls, rows, centre + starts @ root.T)).all():
            break
        starts = starts / 2
    backend = import_module(f"gedppl.programs.{cls.backend}_nuts")
    chains = backend.run_chains(
        cls, rows, WorkingPrior.weak(cls), centre, root, starts, -(-S // C), WARMUP, seed
    )
    drawn = chains.theta.reshape(-1, cls.dim)[:S]
    theta, said = _inside(cls, lambda k: drawn if k == 0 else drawn[:0], S, centre)
    good = chains.rhat <= LARGEST_RHAT and chains.divergent <= MOST_DIVERGENT * len(drawn)
    how = (
        f"{S} NUTS draws in {C} chains, R-hat {chains.rhat:.3f}, worth {chains.ess:.0f}, "
        f"{chains.divergent} divergences"
    )
    how += "" if good else ": the chains have not settled"
    status = "; ".join([how, *said, *_without_prior(cls)])
    chained = C if not said and S % C == 0 else 1
    return ParameterDraws(
        theta,
        None,
        min(chains.ess, float(S)),
        -np.inf,
        "nuts",
        status,
        good,
        good,
        chains.rhat,
        chains=chained,
    )


def _frame(cls: Any, fit: Fit, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Centre (D,) and root (D, D) of coordinates in which the posterior is roughly standard; the
    prior's, without a good fit.
    """
    if _usable(fit) and fit.ok:
        chol = np.linalg.cholesky(positive_definite(fit.precision))
        return fit.theta, solve_triangular(chol, np.eye(cls.dim), lower=True, trans=1)
    prior = _prior(cls, PRIOR_SIZE, seed).theta
    low, middle, high = np.quantile(prior, [0.25, 0.5, 0.75], axis=0)
    spread = np.where(high > low, high - low, 1.0) / MIDDLE_HALF
    return middle, np.diag(spread)


def renewed(cls: Any, rows: Rows, draws: ParameterDraws, seed: int) -> ParameterDraws:
    """Weighted draws of the posterior of these rows, resampled and moved until they are equal
    and different again.
    """
    rng = np.random.default_rng([seed, 6, rows.n])
    start = draws.resampled(draws.size, int(rng.integers(2**31))).theta
    found = moved(
        start,
        lambda theta: np.where(cls.inside(theta), log_posterior(cls, rows, theta), -np.inf),
        rng,
    )
    return _after(cls, rows, found, draws.ess)


def _after(cls: Any, rows: Rows, found: Moved, ancestors: float) -> ParameterDraws:
    """Moved draws that descend from so many."""
    said = f"{found.accepted:.0%} taken" + (
        "" if found.settled else ": they have not gone far enough"
    )
    status = (
        f"{len(found.theta)} draws moved to the posterior of {rows.n} rows in {found.steps} "
        f"Metropolis steps ({said})"
    )
    status = "; ".join([status, *_without_prior(cls)])
    return ParameterDraws(
        found.theta, None, found.worth(ancestors), -np.inf, "smc", status, found.settled
    )


def worn(draws: ParameterDraws, fresh: float) -> bool:
    """Whether the weights have used up half of the effective size `fresh` that there was, or
    cannot be believed.
    """
    return draws.degenerate or draws.ess < WORN * fresh


def _smc(
    cls: Any, rows: Rows, S: int, seed: int, fit: Fit | None, oracle: Oracle | None
) -> ParameterDraws:
    def prior(theta: np.ndarray) -> np.ndarray:
        return np.where(cls.inside(theta), log_prior(cls, theta), -np.inf)

    def likelihood(theta: np.ndarray) -> np.ndarray:
        return np.asarray(cls.total(theta, rows), float)

    found = tempered(
        _prior(cls, S, seed).theta, prior, likelihood, np.random.default_rng([seed, 7, rows.n])
    )
    return _after(cls, rows, found, S * HALF)


FROM: dict[str, Callable[..., ParameterDraws]] = {
    "laplace": _laplace,
    "svi": _svi,
    "nuts": _nuts,
    "smc": _smc,
}


def log_prior(cls: Any, theta: np.ndarray) -> np.ndarray:
    """(S,) up to a constant: the class's own prior, and the working prior of parameters without
    one.
    """
    apart = np.where(cls.prior_free, (theta - cls.initial) / WORKING_SCALE, 0.0)
    own = 0.0 if np.all(cls.prior_free) else np.asarray(cls.log_prior(theta), float)
    found: np.ndarray = own - 0.5 * np.sum(apart**2, axis=1)
    return found


def log_posterior(cls: Any, rows: Rows, theta: np.ndarray) -> np.ndarray:
    """(S,) up to a constant."""
    found: np.ndarray = np.asarray(cls.total(theta, rows), float) + log_prior(cls, theta)
    return found


def _is_parabola(cls: Any, rows: Rows, theta: np.ndarray, proposal: np.ndarray) -> bool:
    """Whether the posterior at these draws is the Gaussian that stands for it."""
    target = log_posterior(cls, rows, theta)
    gap = target - proposal
    return bool(np.isfinite(gap).all() and np.ptp(gap) <= SAME * (1 + np.abs(target).max()))


def _inside(
    cls: Any, batch: Callable[[int], np.ndarray], S: int, otherwise: np.ndarray
) -> tuple[np.ndarray, list[str]]:
    """S draws that meet the declared bounds, and what there is to say about them."""
    kept: list[np.ndarray] = []
    tried = 0
    for k in range(ROUNDS_INSIDE):
        drawn = batch(k)
        tried += len(drawn)
        kept.append(drawn[np.broadcast_to(cls.inside(drawn), len(drawn))])
        if sum(map(len, kept)) >= S:
            break
    found = np.concatenate(kept)
    said = (
        []
        if len(found) == S == tried
        else [f"{len(found)} of {tried} lay inside the declared bounds"]
    )
    if not len(found):
        found = otherwise[None]
    return np.resize(found, (S, found.shape[1])) if len(found) < S else found[:S], said


def _without_prior(cls: Any) -> list[str]:
    free = int(np.sum(cls.prior_free))
    if not free:
        return []
    return [
        f"{free} of {cls.dim} parameters have no prior, and the working prior N(initial, "
        f"{WORKING_SCALE:g}^2) stands in"
    ]
