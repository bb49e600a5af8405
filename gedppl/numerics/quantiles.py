"""Quantiles of a density by its inverse distribution function or by bisection, and draws of an
unknown distribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.errors import FamilyError, FunctionalError

if TYPE_CHECKING:
    from gedppl.density import Density
    from gedppl.programs.contract import Distribution

Array = Any

_HALVINGS = {"discrete": 48, "linear": 60, "other": 120}  # 120: from 1e15 wide to 1e-21
_SLACK = 1e-12  # rounding in a distribution function that steps


def quantile(density: Density, p: Array) -> Array:
    """The smallest y with P(Y <= y) >= p. Its derivative is -dF/f, and 0 where the outcome is an
    integer or an atom.
    """
    xp = density.xp
    p = xp.asfloat(p)
    if density.kind in ("vector", "external"):
        raise FunctionalError(
            f"{density.family} has no quantile here: its distribution function is not known; use "
            "expected(fn, low, high)"
        )
    if density.spec.icdf is not None:
        return density.spec.icdf(density.arrays, p, xp)
    low, high = (xp.stop_gradient(end + 0.0 * p) for end in density.bulk(1e-15))
    whole = density.kind == "discrete"
    frozen = density.map_args(xp.stop_gradient)
    slack = _SLACK if density.kind != "continuous" else 0.0

    def step(i: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = 0.5 * (low + high)
        middle = xp.floor(middle) if whole else middle
        short = frozen.cdf(middle) < p - slack
        return xp.where(short, middle, low), xp.where(short, high, middle)

    # the lower end must lie below every outcome, or an atom there could never be the answer
    scale = "discrete" if whole else "linear" if density.spec.chart == "linear" else "other"
    _, q = xp.repeat(_HALVINGS[scale], step, (low - 1.0, high))
    if whole or xp.name == "numpy":
        return q
    F, f = density.cdf(q), xp.stop_gradient(xp.exp(density.log_prob(q)))
    smooth = (xp.abs(xp.stop_gradient(F) - p) < 1e-9) & (f > 0) & xp.isfinite(f)
    change = (F - xp.stop_gradient(F)) / xp.where(smooth, f, 1.0)
    return q - xp.where(smooth, change, 0.0)


def check_own(distribution: Distribution, *attributes: str) -> None:
    """Raise if a class brings a log_prob of its own but has all of these attributes from a base
    class, for another density.
    """
    mro = type(distribution).__mro__
    own = next((i for i, base in enumerate(mro) if "log_prob" in vars(base)), 0)
    if mro[own].__module__.partition(".")[0] in ("numpyro", "pyro", "torch"):
        return
    if not any(name in vars(base) for base in mro[: own + 1] for name in attributes):
        kind, name = type(distribution).__name__, attributes[0]
        raise FamilyError(
            f"the distribution {kind} has a log_prob of its own and the {name} of a base class, "
            "which belongs to another "
            f"density: define {kind}.{name}"
        )


def external_draws(density: Density, size: int, seed: int) -> Array:
    """Draws of an unknown distribution through its own sampler, under a fixed seed."""
    check_own(density.args["distribution"], "sample", "rsample")
    distribution, name = density.args["distribution"], density.xp.name
    if name == "jax":
        import jax

        with jax.enable_x64(True):  # what the program's own arrays have
            return distribution.sample(jax.random.PRNGKey(seed), (size,))
    if name == "torch":
        import torch

        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            return distribution.sample((size,))
    return np.asarray(distribution.sample(np.random.default_rng(seed), (size,)))
