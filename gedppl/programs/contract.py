"""What a class of conditional densities offers, and how a program becomes one.

Axis letters: M parameter settings, n rows, K actions, D flat parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike as Array  # jax and torch arrays among them

from gedppl.density import Density
from gedppl.errors import FamilyError, ParameterError
from gedppl.numerics.arrays import is_whole

if TYPE_CHECKING:
    import numpyro.distributions as numpyro_distributions
    import torch.distributions as torch_distributions

    from gedppl.functionals import Functional
    from gedppl.learning.learner import Learner
    from gedppl.programs.finite_class import FiniteClass
    from gedppl.programs.guides import GuideRunner, GuideSettings
    from gedppl.programs.numpyro import NumpyroProgram
    from gedppl.programs.program import ProgramClass
    from gedppl.programs.pyro import PyroProgram
    from gedppl.programs.tracing import Site
    from gedppl.rows import PredictorParts, Rows

    # either library's
    Distribution: TypeAlias = numpyro_distributions.Distribution | torch_distributions.Distribution
    Constraint: TypeAlias = (
        numpyro_distributions.constraints.Constraint | torch_distributions.constraints.Constraint
    )
    Traced: TypeAlias = NumpyroProgram | PyroProgram

Program = Callable[..., Any]  # a model as the user writes it: model(x, a, y=None)
Params = Mapping[str, Any]
Halves: TypeAlias = tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]  # A and b, in parts
T = TypeVar("T")


class Drawn(np.ndarray):
    """Flat parameters drawn at random; `unflatten` hands the mark on to `finite_class`."""


class DrawnParams(dict[str, Any]):
    """Parameters by site that were drawn at random; their values bear the mark too."""

    @classmethod
    def of(cls, params: Params) -> DrawnParams:
        return cls({name: np.asarray(value).view(Drawn) for name, value in params.items()})

    @staticmethod
    def include(params: Params) -> bool:
        """Whether these are draws, or were put together from some."""
        return isinstance(params, DrawnParams) or any(
            isinstance(value, Drawn) for value in params.values()
        )


@dataclass(frozen=True)
class LinearPredictor:
    """The class is a one-predictor family: eta(theta) = features(x, a) @ theta + offset(x, a),
    proved affine in theta.

    ``link`` says what eta is: ``"identity"`` (the loc of a Normal, LogNormal, Logistic or Laplace;
    a Bernoulli's chance; a Poisson's rate), ``"logit"``, ``"probit"``, ``"cloglog"`` or ``"log"``
    of a chance (Bernoulli or Binomial), ``"log"`` (of the rate of a Poisson, an Exponential, a
    Gamma; of the scale of a Weibull; of the mean of a NegativeBinomial, whose ``"logit"`` is that
    of its `probs`). The names known are those of `gedppl.families.one_predictor.FAMILIES`.
    ``fixed(x, a)`` returns the family's other arguments as `Density` names them, free of theta,
    e.g. ``{"scale": (n,)}``.
    """

    family: str
    link: str
    features: Any  # (x (n, dx), a (n,)) -> (n, D) float64
    offset: Any  # (x, a) -> (n,)
    fixed: Any  # (x, a) -> dict of (n,) arrays
    # all three at contexts x (n, dx) with actions 0..K-1, contexts slowest; None: row by row
    at_contexts: Callable[[np.ndarray, int], PredictorParts] | None = None
    walls: Halves = field(default=((), ()), compare=False)


@dataclass(frozen=True)
class OrderedPredictor:
    """Ordered y in 0..C, P(y <= k) = F(features[:, k] @ theta + offset[:, k]); proved affine."""

    features: Any  # (x (n, dx), a (n,)) -> (n, C, D) float64
    offset: Any  # (x, a) -> (n, C)
    link: str = "logit"
    walls: Halves = field(default=((), ()), compare=False)


@dataclass(frozen=True)
class LocationScale:
    """Outcomes (or their logs) with a location affine in coefficients v and an unknown scale that
    theta alone sets.

    location = features(x, a) @ v + offset(x, a), scale = scale_g with g = group(x, a); proved. The
    class's parameters give both: ``from_theta`` maps theta (M, D) to v (M, p) and the scales (M,
    G), ``to_theta`` back where that can be done, else None.
    """

    family: str  # "Normal" or "LogNormal"
    # (x (n, dx), a (n,)) -> (n, p) float64
    features: Callable[[np.ndarray, np.ndarray], np.ndarray]
    offset: Callable[[np.ndarray, np.ndarray], np.ndarray]  # (x, a) -> (n,)
    group: Callable[[np.ndarray, np.ndarray], np.ndarray]  # (x, a) -> (n,) whole numbers 0..G-1
    n_groups: int  # G: one scale for all, or one for each action or group
    from_theta: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # (M, D) -> (M, p), (M, G)
    # (M, p), (M, G) -> (M, D)
    to_theta: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    # of every coefficient, then of every scale, and the ends of their supports: () where unknown
    names: tuple[str, ...] = ()
    ends: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Profiled:
    """A one-predictor family with one more unknown number, the nuisance: at every value of it the
    predictor features @ v + slope log(nuisance) + offset is affine in v, proved.

    The nuisance is the family's argument `name`, the same number in all rows. ``from_theta`` maps
    theta (M, D) to v (M, p) and the nuisance (M,).
    """

    family: str
    link: str
    name: str  # "total_count", "concentration" or "scale"
    features: Callable[[np.ndarray, np.ndarray], np.ndarray]  # (x, a) -> (n, p)
    slope: Callable[[np.ndarray, np.ndarray], np.ndarray]  # (x, a) -> (n,)
    offset: Callable[[np.ndarray, np.ndarray], np.ndarray]  # (x, a) -> (n,)
    low: tuple[np.ndarray, float]  # of v (p,) and of the nuisance
    high: tuple[np.ndarray, float]
    from_theta: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def away_from(theta: Any) -> Any:
    """Another point (D,), different in every coordinate: what is constant at both is taken to be
    constant.
    """
    return theta + 1.0 + np.arange(theta.shape[0]) / max(theta.shape[0], 1)


class Model:
    """What every class answers; one of one's own derives from this, or from the two below.

    theta is flat parameters (D,) or (M, D), or, for a finite class, the number of a member or of
    several (M,).
    """

    event_shape: tuple[int, ...] = ()
    predictor: LinearPredictor | None = None
    ordered: OrderedPredictor | None = None
    location_scale: LocationScale | None = None
    profiled: Profiled | None = None

    def way_of(self, functional: Functional, positive: bool) -> int:
        """1 or -1 if a functional's fn is proved never to fall or never to rise with the outcome,
        which may be known not to be negative; else 0.
        """
        return 0

    moving_support: bool = False  # whether which outcomes are possible depends on the parameters
    traced: bool = True  # whether `dim` and the like are known
    reads_by_context: bool = False  # whether contexts say which entry of an array is read
    first_rows: np.ndarray = np.zeros((0, 0))  # contexts (n, dx) that it was first run on
    bounds: Mapping[str, Any] = MappingProxyType({})
    sites: tuple[Site, ...] = ()

    def named(self: Any, theta: np.ndarray, drawn: bool) -> Any:
        """What a learner says of its parameters, by name: a program has those that were drawn in
        other coordinates than the rest.
        """
        return self.unflatten(theta)

    def trace(self, x: Array, a: Array) -> object:
        """See rows (x, a) before any outcome, so that shapes are known."""
        return self

    def reads_from_the_end(self, x: Array, a: Array) -> bool:
        """Whether some row (x, a) reads an entry of an array by a negative index."""
        return False

    def check_outcomes(
        self, x: Array, a: Array, y: Array
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows that may join a history, as arrays; a named error otherwise."""
        return np.asarray(x, float), np.asarray(a, np.int64), np.asarray(y, float)

    def visit(
        self: Any, finite: Callable[[MemberList], T], parametric: Callable[[DensityClass], T]
    ) -> T:
        return parametric(self)

    def densities(self, x: Array, a: Array) -> list[Density]:
        return []  # described by something else

    def own_learner(self, delta: float) -> Learner | None:
        """A learner that the class brings, if it does: see docs/howto/learner.md."""
        return None


class MemberList(Model):
    """A finite class: M densities, whose parameters are their numbers 0, ..., M-1.

    `gedppl.finite_class` makes one from programs. A class of one's own derives from this and
    defines `size`, `density`, `log_likelihood` and `values`.
    """

    size: int  # M
    sampled: bool = False  # the members are draws, and the truth is none of them

    @property
    def every(self) -> np.ndarray:
        """All parameters, (M,)."""
        return np.arange(self.size)

    @property
    def exactness(self) -> str:
        """Which bounds will be exact and why."""
        if self.sampled:
            return f"exact over {self.size} draws, and no certificate: the truth is none of them."
        return (
            "exact: every bound is the largest or smallest value over those of the "
            f"{self.size} members that remain plausible."
        )

    def visit(
        self, finite: Callable[[MemberList], T], parametric: Callable[[DensityClass], T]
    ) -> T:
        return finite(self)

    def density(self, params: int, x: Array, a: Array) -> Density:
        """The density of member number `params`, batch (n,)."""
        raise NotImplementedError

    def density_at(self, theta: int, x: Array, a: Array) -> Density:
        return self.density(theta, x, a)

    def log_likelihood(self, theta: np.ndarray, x: Array, a: Array, y: Array) -> np.ndarray:
        """Of members theta (M,) by row, (M, n); -infinity where one excludes the outcome."""
        raise NotImplementedError

    def values(self, functional: Functional, theta: np.ndarray, x: Array, a: Array) -> np.ndarray:
        """The functional of members theta (M,) at every row, (M, n)."""
        raise NotImplementedError

    def parts(self, x: Array, a: Array) -> list[tuple[np.ndarray, Density]]:
        """Members (m,) and their densities, batch (m, n), as few pairs as there are families."""
        return [(np.array([m]), self.density(m, x, a)) for m in range(self.size)]

    @property
    def examples(self) -> Sequence[int]:
        """Members that stand for all: one of each program."""
        return range(self.size)

    def densities(self, x: Array, a: Array) -> list[Density]:
        return [density for _, density in self.parts(x, a)]

    def draw_prior(self, n: int, seed: int) -> np.ndarray:
        """n members, (n,), each as likely as another."""
        return np.random.default_rng(seed).integers(self.size, size=n)

    def inside(self, theta: np.ndarray) -> np.ndarray:
        return (np.asarray(theta) >= 0) & (np.asarray(theta) < self.size)

    def flatten(self, params: int) -> int:
        """A member's number, checked."""
        if not is_whole(params) or not 0 <= params < self.size:
            raise ParameterError(
                f"a finite class's members are numbers 0, ..., {self.size - 1}, got {params!r}"
            )
        return int(params)

    def unflatten(self, theta: np.ndarray) -> int:
        return int(theta)


class Parametric(Model):
    """A parametric class of one's own derives from this and defines the rest of `DensityClass`."""

    def densities(self: Any, x: Array, a: Array) -> list[Density]:
        """Where fits start."""
        return [self.density_at(np.asarray(self.initial, float), x, a)]


class DensityClass(Protocol):
    """A parametric class of conditional densities, NumPy float64 in and out.

    theta is the flat unconstrained parameter vector, (D,) or, with a leading axis, (M, D).
    """

    @property
    def backend(self) -> str:
        """``"numpyro"`` or ``"pyro"``."""

    @property
    def dim(self) -> int:
        """D, the number of flat parameters."""

    @property
    def initial(self) -> np.ndarray:
        """(D,) where fits start."""

    @property
    def predictor(self) -> LinearPredictor | None:
        """The one linear predictor, if outcomes have one."""

    @property
    def ordered(self) -> OrderedPredictor | None:
        """The affine edges of ordered outcomes, if they have some."""

    @property
    def location_scale(self) -> LocationScale | None:
        """A linear location with a scale to be learned, if that is the form."""

    def way_of(self, functional: Functional, positive: bool) -> int:
        """See `Model.way_of`."""

    @property
    def profiled(self) -> Profiled | None:
        """One linear predictor beside one unknown number, if that is the form."""

    @property
    def prior_free(self) -> np.ndarray:
        """(D,) bool: True where a coordinate comes from a `param` site, without prior."""

    @property
    def guide_loops(self) -> dict[GuideSettings, GuideRunner]:
        """The fitting loops of SVI, by settings."""

    @property
    def exactness(self) -> str:
        """A sentence: which bounds will be exact and why, or what in the program stands in the
        way.
        """

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Of one outcome: () for numbers."""

    @property
    def moving_support(self) -> bool:
        """Whether which outcomes are possible depends on the parameters."""

    @property
    def traced(self) -> bool:
        """Whether `dim` and the like are known: they may need a first look at rows."""

    @property
    def reads_by_context(self) -> bool:
        """Whether contexts say which entry of an array is read: `trace` then looks at each."""

    def reads_from_the_end(self, x: Array, a: Array) -> bool: ...

    @property
    def first_rows(self) -> np.ndarray:
        """Contexts (n, dx) of the rows that the class was first run on."""

    @property
    def bounds(self) -> Mapping[str, Any]:
        """Declared bounds by site: a norm, or a box (low, high)."""

    @property
    def sites(self) -> tuple[Site, ...]:
        """Which coordinates of theta belong to which site; empty if there are no sites."""

    def visit(
        self, finite: Callable[[MemberList], T], parametric: Callable[[DensityClass], T]
    ) -> T:
        """`finite(self)` or `parametric(self)`: for the few who must tell the two apart."""

    def trace(self, x: Array, a: Array) -> object:
        """See rows (x, a) before any outcome, so that shapes are known; a second call looks only
        at actions that are new.
        """

    def check_outcomes(
        self, x: Array, a: Array, y: Array
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows that may join a history, as arrays; a named error otherwise."""

    def densities(self, x: Array, a: Array) -> list[Density]:
        """Where fits start; of a finite class, of all members."""

    def own_learner(self, delta: float) -> Learner | None: ...

    def flatten(self, params: Params) -> np.ndarray: ...
    def unflatten(self, theta: np.ndarray) -> dict[str, np.ndarray]: ...
    def named(self, theta: np.ndarray, drawn: bool) -> dict[str, np.ndarray]: ...
    def density(self, params: Params, x: Array, a: Array) -> Density: ...
    def density_at(self, theta: np.ndarray, x: Array, a: Array) -> Density: ...

    def log_likelihood(self, theta: np.ndarray, x: Array, a: Array, y: Array) -> np.ndarray:
        """Per-row log-likelihood, (n,) or (M, n)."""

    def score(self, theta: np.ndarray, x: Array, a: Array, y: Array) -> np.ndarray:
        """Its gradient in theta (D,): (n, D)."""

    def information(self, theta: np.ndarray, x: Array, a: Array, y: Array) -> np.ndarray:
        """Observed information at theta (D,), minus the Hessian of the summed log-likelihood:
        (D, D).
        """

    def log_prior(self, theta: np.ndarray) -> np.ndarray:
        """Log prior density in the unconstrained space (Jacobian included); `param` sites add 0.
        () or (M,).
        """

    def log_prior_grad_hessian(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradient (D,) and Hessian (D, D) of `log_prior` at theta (D,)."""

    def draw_prior(self, n: int, seed: int) -> np.ndarray:
        """n draws (n, D) from the prior; `param` coordinates are 0 + standard normal around
        `initial`.
        """

    def inside(self, theta: np.ndarray) -> np.ndarray:
        """Whether theta meets the declared `bounds`: () or (M,) bool."""

    # the compiled kernels: rows are padded to buckets and weighted, so a growing history compiles a
    # handful of times ----

    def total(self, theta: np.ndarray, rows: Rows, weights: np.ndarray | None = None) -> np.ndarray:
        """Weighted sum of the log-likelihood over rows: theta (M, D) -> (M,). weights (n,), 1 by
        default.
        """

    def total_grad(
        self, theta: np.ndarray, rows: Rows, weights: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same with its gradient: (M,), (M, D)."""

    def total_hessian(
        self, theta: np.ndarray, rows: Rows, weights: np.ndarray | None = None
    ) -> np.ndarray:
        """Hessian of the weighted sum at theta (D,): (D, D)."""

    def values(self, functional: Functional, theta: np.ndarray, x: Array, a: Array) -> np.ndarray:
        """The functional at theta (M, D) and rows: (M, n)."""

    def values_grad(
        self, functional: Functional, theta: np.ndarray, x: Array, a: Array
    ) -> tuple[np.ndarray, np.ndarray]:
        """Row i at its own theta[i] (n, D): the functional (n,) and its gradient (n, D)."""


def density_class(
    model: Any,
    *,
    init: Params | None = None,
    bounds: Mapping[str, Any] | None = None,
    example: tuple[Array, Array] | None = None,
) -> ProgramClass:
    """The class of conditional densities {p(y | x, a, theta)} that a NumPyro or Pyro program
    describes.

    Parameters
    ----------
    model
        A program ``model(x, a, y=None)`` with x (n, dx) floats, a (n,) action numbers, y (n,)
        outcomes (or (n, e)), rows independent given the parameters, and exactly one observed site,
        ``obs=y``. Its `param` sites, its `sample` sites that all rows share (they bring a prior)
        and its modules are the parameters. A discrete latent drawn once a row is summed out; a
        continuous one is refused. Which PPL it is written in is found out by running it.
    init
        Where fits start, by site, in the model's own units. Default: a `param` site's initial
        value, the prior's median.
    bounds
        By site: a number S for Euclidean norm <= S, or ``(low, high)`` for a box; in the model's
        own units.
    example
        Rows ``(x, a)`` to run the model on, one is enough. Without it the first rows that come by
        are used, and what depends on the parameters (``dim``, ``initial``, ``flatten``) is not
        known before.

    Notes
    -----
    All is float64. A Pyro program runs in a scope of the parameter store; its modules are not
    written to. Rows are assumed independent given the parameters: a model that mixes rows (batch
    statistics) is not a density class. Not guaranteed: anything, if no theta of the class is the
    truth.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np, numpyro, numpyro.distributions as dist
    >>> def linear(x, a, y=None):
    ...     w = numpyro.param("w", jnp.zeros((3, 2)))
    ...     numpyro.sample("y", dist.Normal((w[a] * x).sum(-1), 0.5), obs=y)
    >>> cls = density_class(linear, bounds={"w": 2.0})
    >>> x, a = np.ones((4, 2)), np.array([0, 1, 2, 0])
    >>> cls.density({"w": np.ones((3, 2))}, x, a)
    Normal(loc (4,), scale (4,)) with batch shape (4,)
    >>> cls
    density_class(linear, numpyro, Normal; w[3, 2])
    >>> cls.log_likelihood(np.zeros((5, 6)), x, a, np.zeros(4)).shape
    (5, 4)
    """
    from gedppl.programs.program import ProgramClass

    return ProgramClass(model, init=init, bounds=bounds, example=example)


def finite_class(
    model: Any,
    settings: Sequence[Params] | None = None,
    *,
    example: tuple[Array, Array] | None = None,
    sampled: bool | None = None,
) -> FiniteClass:
    """A class of M densities: M settings of one model, ``finite_class(model, [params, ...])``, or
    members of several models, ``finite_class([(model, params), ...])``.

    Parameters
    ----------
    model
        A program as for `density_class`, or pairs (program, parameters).
    settings
        M mappings from site to value, in the model's own units; left out where `model` has pairs.
    example
        As for `density_class`.
    sampled
        True says that the settings are draws: then the truth is none of them, and nothing is
        guaranteed on the class. Settings that come from ``draw_prior`` say so by themselves.

    Notes
    -----
    Different models may use one site name for different things; each keeps its own parameters. A
    set over it is the list of members that remain plausible, so every bound is exact. Not
    guaranteed: anything, if the truth is none of the M.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np, numpyro, numpyro.distributions as dist
    >>> def coin(x, a, y=None):
    ...     p = numpyro.param("p", 0.5 * jnp.ones(2))
    ...     numpyro.sample("y", dist.Bernoulli(p[a]), obs=y)
    >>> cls = finite_class(coin, [{"p": [0.2, 0.6]}, {"p": [0.5, 0.5]}, {"p": [0.9, 0.1]}])
    >>> cls.size, cls.log_likelihood(cls.every, np.zeros((4, 1)), [0, 1, 0, 1], [0, 1, 1, 0]).shape
    (3, (3, 4))
    """
    from gedppl.programs.finite_class import FiniteClass

    return FiniteClass(model, settings, example=example, sampled=sampled)


def as_density(distribution: Distribution) -> Density:
    """A Density, or a NumPyro, Pyro or torch distribution lowered to one.

    >>> import numpyro.distributions as dist
    >>> as_density(dist.Gamma(2.0, 3.0))
    Gamma(concentration (), rate ()) with batch shape ()

    A distribution that is none of the families known here becomes family ``"External"``, which goes
    through the PPL.
    """
    if isinstance(distribution, Density):
        return distribution
    roots = {base.__module__.partition(".")[0] for base in type(distribution).__mro__}
    if not roots & {"numpyro", "pyro", "torch"} or not hasattr(distribution, "log_prob"):
        raise FamilyError(
            "a density is a gedppl Density or a NumPyro, Pyro or torch distribution, got "
            f"{type(distribution).__name__}"
        )
    from gedppl.programs.lowering import lower_as_given

    return lower_as_given(distribution)
