"""What a class of conditional densities offers, and how a program becomes one.

Axis letters: M parameter settings, n rows, K actions, D flat parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gedppl.density import Density

if TYPE_CHECKING:
    from gedppl.functionals import Functional
    from gedppl.rows import Rows

Array = Any  # numpy, jax or torch
Params = Mapping[str, Any]


@dataclass(frozen=True)
class LinearPredictor:
    """The class is a one-predictor family: eta(theta) = features(x, a) @ theta + offset(x, a), proved affine in theta.

    ``link`` says what eta is: ``"identity"`` (the Normal's loc), ``"logit"`` (Bernoulli or Binomial), ``"log"`` (Poisson's
    rate, an Exponential's rate or a Gamma's with fixed concentration: then eta is the log of the RATE argument).
    ``fixed(x, a)`` returns the family's other arguments, free of theta, e.g. ``{"scale": (n,)}``.
    """

    family: str
    link: str
    features: Any  # (x (n, dx), a (n,)) -> (n, D) float64
    offset: Any  # (x, a) -> (n,)
    fixed: Any  # (x, a) -> dict of (n,) arrays


class DensityClass(Protocol):
    """A parametric class of conditional densities. NumPy float64 in and out; everything is deterministic.

    theta is the flat unconstrained parameter vector, (D,) or, with a leading axis, (M, D).
    """

    backend: str  # "numpyro" or "pyro"
    dim: int  # D
    initial: np.ndarray  # (D,) where fits start
    predictor: LinearPredictor | None
    prior_free: np.ndarray  # (D,) bool: True where a coordinate comes from a `param` site, without prior

    def flatten(self, params: Params) -> np.ndarray: ...
    def unflatten(self, theta: np.ndarray) -> dict[str, np.ndarray]: ...
    def density(self, params: Params, x: Array, a: Array) -> Density: ...
    def density_at(self, theta: np.ndarray, x: Array, a: Array) -> Density: ...

    def log_likelihood(self, theta: np.ndarray, x: Array, a: Array, y: Array) -> np.ndarray:
        """Per-row log-likelihood, (n,) or (M, n)."""
        ...

    def score(self, theta: np.ndarray, x: Array, a: Array, y: Array) -> np.ndarray:
        """Its gradient in theta (D,): (n, D)."""
        ...

    def information(self, theta: np.ndarray, x: Array, a: Array, y: Array) -> np.ndarray:
        """Observed information at theta (D,), minus the Hessian of the summed log-likelihood: (D, D)."""
        ...

    def log_prior(self, theta: np.ndarray) -> np.ndarray:
        """Log prior density in the unconstrained space (Jacobian included); `param` sites add 0. () or (M,)."""
        ...

    def log_prior_grad_hessian(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradient (D,) and Hessian (D, D) of `log_prior` at theta (D,)."""
        ...

    def draw_prior(self, n: int, seed: int) -> np.ndarray:
        """n draws (n, D) from the prior; `param` coordinates are 0 + standard normal around `initial`."""
        ...

    def inside(self, theta: np.ndarray) -> np.ndarray:
        """Whether theta meets the declared `bounds`: () or (M,) bool."""
        ...

    # the compiled kernels: rows are padded to buckets and weighted, so a growing history compiles a handful of times ----

    def total(self, theta: np.ndarray, rows: Rows, weights: np.ndarray | None = None) -> np.ndarray:
        """Weighted sum of the log-likelihood over rows: theta (M, D) -> (M,). weights (n,), 1 by default."""
        ...

    def total_grad(
        self, theta: np.ndarray, rows: Rows, weights: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same with its gradient: (M,), (M, D)."""
        ...

    def total_hessian(self, theta: np.ndarray, rows: Rows, weights: np.ndarray | None = None) -> np.ndarray:
        """Hessian of the weighted sum at theta (D,): (D, D)."""
        ...

    def values(self, functional: Functional, theta: np.ndarray, x: Array, a: Array) -> np.ndarray:
        """The functional at theta (M, D) and rows: (M, n)."""
        ...

    def values_grad(
        self, functional: Functional, theta: np.ndarray, x: Array, a: Array
    ) -> tuple[np.ndarray, np.ndarray]:
        """Row i at its own theta[i] (n, D): the functional (n,) and its gradient (n, D)."""
        ...


def density_class(model: Any, *, init: Params | None = None, bounds: Mapping[str, Any] | None = None,
                  example: tuple[Array, Array] | None = None) -> DensityClass:
    """Placeholder until the backends land."""
    raise NotImplementedError


def finite_class(model: Any, settings: Sequence[Params] | None = None) -> Any:
    """Placeholder until the backends land."""
    raise NotImplementedError


def as_density(distribution: Any) -> Density:
    """A Density, or a NumPyro / Pyro / torch distribution lowered to one. Placeholder until the backends land."""
    raise NotImplementedError
