"""From a PPL's distribution object to a `Density`: a family name and argument arrays.

NumPyro, Pyro and torch name their classes and attributes almost alike, so one table by class name
serves all three. A subclass that brings its own `log_prob` is not the family it derives from; it,
and whatever else the table does not know, becomes family ``"External"``, whose log-density still
works through the PPL.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from gedppl.density import Density, nested_in
from gedppl.errors import ModelError, OneSettingError
from gedppl.numerics.arrays import ArrayOf, namespace

if TYPE_CHECKING:
    import numpy as np

    from gedppl.programs.contract import Distribution

Shape = tuple[int, ...]

# class name -> (family, {argument: event dimensions of the argument}); the attribute has the
# argument's name
_SAME_ATTRIBUTES: dict[str, tuple[str, dict[str, int]]] = {
    "Normal": ("Normal", {"loc": 0, "scale": 0}),
    "LogNormal": ("LogNormal", {"loc": 0, "scale": 0}),
    "MultivariateNormal": ("MultivariateNormal", {"loc": 1, "scale_tril": 2}),
    "Bernoulli": ("Bernoulli", {"probs": 0}),
    "BernoulliProbs": ("Bernoulli", {"probs": 0}),
    "BernoulliLogits": ("Bernoulli", {"probs": 0}),
    "Binomial": ("Binomial", {"total_count": 0, "probs": 0}),
    "BinomialProbs": ("Binomial", {"total_count": 0, "probs": 0}),
    "BinomialLogits": ("Binomial", {"total_count": 0, "probs": 0}),
    "Categorical": ("Categorical", {"probs": 1}),
    "CategoricalProbs": ("Categorical", {"probs": 1}),
    "CategoricalLogits": ("Categorical", {"probs": 1}),
    "OrderedLogistic": ("Categorical", {"probs": 1}),
    "Poisson": ("Poisson", {"rate": 0}),
    "Geometric": ("Geometric", {"probs": 0}),
    "GeometricProbs": ("Geometric", {"probs": 0}),
    "GeometricLogits": ("Geometric", {"probs": 0}),
    "Exponential": ("Exponential", {"rate": 0}),
    "Gamma": ("Gamma", {"concentration": 0, "rate": 0}),
    "InverseGamma": ("InverseGamma", {"concentration": 0, "rate": 0}),
    "Beta": ("Beta", {"concentration1": 0, "concentration0": 0}),
    "Dirichlet": ("Dirichlet", {"concentration": 1}),
    "Laplace": ("Laplace", {"loc": 0, "scale": 0}),
    "Weibull": ("Weibull", {"scale": 0, "concentration": 0}),
    "VonMises": ("VonMises", {"loc": 0, "concentration": 0}),
    "Uniform": ("Uniform", {"low": 0, "high": 0}),
    "StudentT": ("StudentT", {"df": 0, "loc": 0, "scale": 0}),
    "Cauchy": ("Cauchy", {"loc": 0, "scale": 0}),
    "Logistic": ("Logistic", {"loc": 0, "scale": 0}),
    "HalfNormal": ("HalfNormal", {"scale": 0}),
    "HalfCauchy": ("HalfCauchy", {"scale": 0}),
    "Gumbel": ("Gumbel", {"loc": 0, "scale": 0}),
    "Pareto": ("Pareto", {"scale": 0, "alpha": 0}),
    "BetaBinomial": ("BetaBinomial", {"concentration1": 0, "concentration0": 0, "total_count": 0}),
}
_TRIALS = ("Binomial", "BetaBinomial")
_PACKAGES = ("numpyro", "pyro", "torch")
_LOCATION_SCALE = ("Normal", "Laplace", "StudentT", "Cauchy", "Logistic")


def may_cross(distribution: Distribution) -> bool:
    """Whether an outcome has cutpoints, or chances that may be such cutpoints' differences."""
    base = strip(distribution)
    kind = package_class(base)
    # torch keeps what it was given: chances made from logits are never negative
    chances = kind in ("CategoricalProbs", "Categorical") and "probs" in vars(base)
    return kind == "OrderedLogistic" or chances


def crossing(distribution: Distribution) -> Any:
    """Where the cutpoints of an ordered outcome are out of order, or one of the chances written
    out for it is negative, (n,) or (); None for any other distribution.

    No density is there: the packages' "probabilities" of the single outcomes then exceed one in
    sum.
    """
    if not may_cross(distribution):
        return None
    base = strip(distribution)
    if package_class(base) == "OrderedLogistic":
        cut = base.cutpoints
        return (cut[..., 1:] < cut[..., :-1]).any(-1)
    return (base.probs < 0).any(-1)


def from_package(kind: type) -> bool:
    """Whether a class is one that NumPyro, Pyro or torch brings."""
    return kind.__module__.partition(".")[0] in _PACKAGES


def package_class(distribution: Distribution) -> str:
    """The name of the packages' class that a distribution is, or derives from; "" if there is
    none.
    """
    return next((base.__name__ for base in type(distribution).__mro__ if from_package(base)), "")


@dataclass(frozen=True)
class LocationAndScale:
    """What shifting, scaling or exponentiating a family has made of it: one with loc and scale."""

    family: str
    loc: Any
    scale: Any


def as_given(distribution: Distribution) -> Any:
    """The distribution without its wrappers, which has the arguments that it was given; a
    transformed one as what it is.
    """
    base = strip(distribution)
    if package_class(base) != "TransformedDistribution":
        return base
    density = lower(base, tuple(base.batch_shape))
    if density.family not in ("LogNormal", *_LOCATION_SCALE):
        return base
    return LocationAndScale(density.family, density.args["loc"], density.args["scale"])


@singledispatch
def given_class(distribution: Distribution | LocationAndScale) -> str:
    """The packages' class with the argument it was given, as NumPyro's classes say it themselves:
    torch keeps what it was given in the instance, and derives the other lazily.
    """
    name = package_class(distribution)
    if name in ("Bernoulli", "Binomial", "Geometric", "NegativeBinomial", "Categorical"):
        name += "Logits" if "logits" in vars(distribution) else "Probs"
    return name


@given_class.register
def _(distribution: LocationAndScale) -> str:
    return distribution.family


def _wraps(distribution: Distribution) -> bool:
    """Whether it is the packages' wrapper of a plate or a mask, not a class that bears its name."""
    kind = type(distribution)
    return from_package(kind) and kind.__name__ in ("ExpandedDistribution", "MaskedDistribution")


def strip(distribution: Distribution) -> Any:
    """The distribution without the wrappers of plates and trivial masks."""
    while _wraps(distribution):
        if is_masked(distribution):
            raise ModelError(
                "a masked distribution is not a density: drop the mask, and drop rows "
                "that should not count"
            )
        distribution = distribution.base_dist
    return distribution


def is_masked(distribution: Distribution) -> bool:
    """Whether some wrapper switches parts of the log-density off."""
    while _wraps(distribution):
        mask = getattr(distribution, "_mask", None)
        if mask is not None and mask is not True:
            return True
        distribution = distribution.base_dist
    return False


def lower(distribution: Distribution, shape: Shape) -> Density:
    """The distribution as a Density whose arguments are broadcast to the batch `shape`."""
    # its lazy attributes are then not stored in the caller's object
    distribution = copy.copy(strip(distribution))
    for base in type(distribution).__mro__:
        if type(distribution).log_prob is not getattr(base, "log_prob", None):
            break
        if not from_package(base):
            continue
        if base.__name__ in _SAME_ATTRIBUTES:
            family, arguments = _SAME_ATTRIBUTES[base.__name__]
            values = {
                key: _spread(getattr(distribution, key), shape, dims)
                for key, dims in arguments.items()
            }
            return Density(family, values)
        if base.__name__ in _SPECIAL:
            density = _SPECIAL[base.__name__](distribution, shape)
            if density is not None:
                return density
            break
    return external(distribution, shape)


def external(distribution: Distribution, shape: Shape) -> Density:
    """The distribution as one that only its PPL knows, without the wrappers; its batch shape is
    its own.
    """
    return Density("External", {"distribution": copy.copy(strip(distribution))})


def _spread(value: ArrayOf, shape: Shape, event_dims: int = 0) -> Any:
    xp = namespace(value)
    value = xp.asfloat(value)
    return xp.broadcast_to(value, (*shape, *value.shape[value.ndim - event_dims :]))


def _negative_binomial(d: Distribution, shape: Shape) -> Density:
    probs = d.probs if hasattr(d, "probs") else namespace(d.logits).expit(d.logits)
    return Density(
        "NegativeBinomial",
        {"total_count": _spread(d.total_count, shape), "probs": _spread(probs, shape)},
    )


def _gamma_poisson(d: Distribution, shape: Shape) -> Density:
    """A Poisson with Gamma(concentration, rate) rate: mean concentration / rate."""
    xp = namespace(d.rate, d.concentration)
    probs = 1.0 / (1.0 + xp.asfloat(d.rate))
    return Density(
        "NegativeBinomial",
        {"total_count": _spread(d.concentration, shape), "probs": _spread(probs, shape)},
    )


def _independent(d: Distribution, shape: Shape) -> Density:
    n = d.reinterpreted_batch_ndims
    inner = strip(d.base_dist)
    if n == 0:
        return lower(inner, shape)
    event = tuple(d.event_shape)[:n]
    return Density("Independent", {"base": lower(inner, (*shape, *event)), "event_ndim": n})


def _mixture_same_family(d: Distribution, shape: Shape) -> Density:
    mixing = getattr(d, "mixing_distribution", None)
    component = getattr(d, "component_distribution", None)
    # torch keeps them private-ish under the same public names; older releases differ
    if mixing is None:
        mixing, component = d._mixture_distribution, d._component_distribution
    probs = _spread(copy.copy(strip(mixing)).probs, shape, 1)
    return Density(
        "Mixture", {"probs": probs, "components": lower(component, (*shape, probs.shape[-1]))}
    )


def _mixture_general(d: Distribution, shape: Shape) -> Density:
    probs = _spread(copy.copy(strip(d.mixing_distribution)).probs, shape, 1)
    return Density(
        "Mixture",
        {
            "probs": probs,
            "components": tuple(lower(part, shape) for part in d.component_distributions),
        },
    )


def _zero_inflated(d: Distribution, shape: Shape) -> Density:
    return Density(
        "ZeroInflated", {"gate": _spread(d.gate, shape), "base": lower(d.base_dist, shape)}
    )


def _delta(d: Distribution, shape: Shape) -> Density | None:
    return Density("Delta", {"v": _spread(d.v, shape)}) if d.event_dim == 0 else None


def _low_rank(d: Distribution, shape: Shape) -> Density:
    return Density(
        "MultivariateNormal",
        {"loc": _spread(d.loc, shape, 1), "scale_tril": _spread(d.scale_tril, shape, 2)},
    )


def _truncated(d: Distribution, shape: Shape) -> Density | None:
    base = strip(d.base_dist)
    if type(base).__name__ != "Normal":
        return None
    xp = namespace(base.loc, base.scale)
    edge = xp.asfloat(xp.full(shape, xp.inf))
    return Density(
        "TruncatedNormal",
        {
            "loc": _spread(base.loc, shape),
            "scale": _spread(base.scale, shape),
            "low": _spread(d.low, shape) if hasattr(d, "low") else -edge,
            "high": _spread(d.high, shape) if hasattr(d, "high") else edge,
        },
    )


def _transformed(d: Distribution, shape: Shape) -> Density | None:
    """exp of a Normal, and shifted and scaled location-scale families; anything else is
    External.
    """
    density = lower(d.base_dist, shape)
    for transform in d.transforms:
        kind = type(transform).__name__ if from_package(type(transform)) else ""
        if kind == "ExpTransform" and density.family == "Normal":
            density = Density("LogNormal", density.args)
        elif kind == "AffineTransform" and density.family in _LOCATION_SCALE:
            loc, scale = density.args["loc"], density.args["scale"]
            xp = namespace(transform.loc, transform.scale, loc)
            shift, factor, loc, scale = (
                _spread(xp.asfloat(part), shape)
                for part in (transform.loc, transform.scale, loc, scale)
            )
            moved = {"loc": shift + factor * loc, "scale": xp.abs(factor) * scale}
            density = Density(density.family, {**density.args, **moved})
        else:
            return None
    return density


_SPECIAL: dict[str, Callable[[Any, Shape], Density | None]] = {
    "NegativeBinomial": _negative_binomial,
    "NegativeBinomialProbs": _negative_binomial,
    "NegativeBinomialLogits": _negative_binomial,
    "GammaPoisson": _gamma_poisson,
    "Independent": _independent,
    "MixtureSameFamily": _mixture_same_family,
    "MixtureGeneral": _mixture_general,
    "ZeroInflatedProbs": _zero_inflated,
    "ZeroInflatedLogits": _zero_inflated,
    "ZeroInflatedDistribution": _zero_inflated,
    "Delta": _delta,
    "LowRankMultivariateNormal": _low_rank,
    "LeftTruncatedDistribution": _truncated,
    "RightTruncatedDistribution": _truncated,
    "TwoSidedTruncatedDistribution": _truncated,
    "TransformedDistribution": _transformed,
}


def nested(density: Density) -> Iterator[Density]:
    """The density and every one that it is made of."""
    yield density
    for value in density.args.values():
        for part in nested_in(value):
            yield from nested(part)


def is_external(density: Density) -> bool:
    """Whether any part of it is a distribution that only the PPL knows."""
    return any(part.family == "External" for part in nested(density))


def counts_trials(density: Density) -> bool:
    """Whether some part of it has a number of trials."""
    return any(part.family in _TRIALS for part in nested(density))


def trials_of(density: Density) -> list[Any]:
    """The numbers of trials in every part of it, each with the rows in front."""
    return [part.args["total_count"] for part in nested(density) if part.family in _TRIALS]


def external_density(
    row_density: Callable[[Any], Density], theta: np.ndarray, single: bool
) -> Density:
    """The density of a program whose outcome's distribution only the PPL knows: the object
    itself, one setting at a time.
    """
    if not single:
        raise OneSettingError(
            f"the outcome's distribution is known only to the PPL, so {len(theta)} settings cannot "
            "be one Density: ask for "
            "one setting at a time, or use log_likelihood and values, which take many"
        )
    return row_density(theta[0])


def lower_as_given(distribution: Distribution) -> Density:
    """The distribution as a Density with the batch shape it has: NumPy float64, or its own
    arrays while they are traced.
    """
    shape = tuple(distribution.batch_shape)
    if any(base.__module__.partition(".")[0] == "numpyro" for base in type(distribution).__mro__):
        import jax

        # what is derived from float32 arguments is at least derived in float64
        with jax.enable_x64(True):
            density = lower(distribution, shape)
            traced = any(isinstance(leaf, jax.core.Tracer) for leaf in density.leaves())
            return (
                density
                if traced or is_external(density)
                else density.map_args(namespace(*density.leaves()).to_numpy)
            )
    density = lower(distribution, shape)
    traced = any(getattr(leaf, "requires_grad", False) for leaf in density.leaves())
    return (
        density
        if traced or is_external(density)
        else density.map_args(namespace(*density.leaves()).to_numpy)
    )
