"""Special functions that JAX and torch lack, or lack the derivatives of.

* `betainc` for JAX, whose own has no derivative in the shapes: a continued fraction with a fixed number of terms.
* `torch_functions` for torch, which has no `betainc`, no inverses and no derivative of `gammainc` in the shape: values
  from scipy, first derivatives from scipy values too, wrapped so that ``torch.func`` can batch and differentiate them.

NumPy never comes here: scipy's own functions serve it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import scipy.special as sp

TERMS = 300  # enough for rounding error up to shapes of about 3,000; the error at 30,000 is about 1e-4
_TINY = 1e-300


def betainc(a: Any, b: Any, x: Any, xp: Any) -> Any:
    """Regularised incomplete beta I_x(a, b), by its continued fraction on the side where that converges fast."""
    a, b, x = xp.broadcast_arrays(xp.asfloat(a), xp.asfloat(b), xp.asfloat(x))
    inside = (x > 0) & (x < 1)
    z = xp.where(inside, x, 0.5)
    flip = z >= (a + 1) / (a + b + 2)
    p, q = xp.where(flip, b, a), xp.where(flip, a, b)
    u = xp.where(flip, 1 - z, z)
    front = xp.exp(p * xp.log(u) + q * xp.log1p(-u) - xp.betaln(p, q)) / p
    tail = front * _beta_fraction(p, q, u, xp)
    value = xp.where(flip, 1 - tail, tail)
    return xp.where(inside, value, xp.where(x >= 1, 1.0, 0.0))


def _beta_fraction(a: Any, b: Any, x: Any, xp: Any) -> Any:
    """The continued fraction of I_x(a, b) by Lentz's method, two terms a step."""

    def step(i: Any, state: Any) -> Any:
        c, d, h = state
        m = i + 1.0
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / _off_zero(1 + even * d, xp)
        c = _off_zero(1 + even / c, xp)
        h = h * d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / _off_zero(1 + odd * d, xp)
        c = _off_zero(1 + odd / c, xp)
        return c, d, h * d * c

    d = 1 / _off_zero(1 - (a + b) * x / (a + 1), xp)
    return xp.repeat(TERMS, step, (xp.ones_like(x), d, d))[2]


def _off_zero(value: Any, xp: Any) -> Any:
    return xp.where(xp.abs(value) < _TINY, _TINY, value)


# torch: values and first derivatives by scipy -------------------------------------------------------------------------

# Seven-point central differences; the step is small beside the scale on which the function bends, so that the error is
# about 1e-11 of that scale
_WEIGHTS = np.array([-1, 9, -45, 0, 45, -9, 1]) / 60.0


def _shape_slope(function: Callable[..., Any], args: tuple[np.ndarray, ...], which: int) -> np.ndarray:
    """d function / d args[which] for a positive shape argument on whose sqrt the function bends."""
    shape = args[which]
    h = 0.01 * shape / np.sqrt(1 + shape)
    total = np.zeros(np.broadcast_shapes(*(x.shape for x in args)))
    for weight, k in zip(_WEIGHTS, range(-3, 4), strict=True):
        if weight:
            total += weight * function(*args[:which], shape + k * h, *args[which + 1 :])
    return total / h


def _gamma_pdf(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    z = np.where((x > 0) & np.isfinite(x), x, 1.0)
    return np.where((x > 0) & np.isfinite(x), np.exp((a - 1) * np.log(z) - z - sp.gammaln(a)), 0.0)


def _beta_pdf(a: np.ndarray, b: np.ndarray, x: np.ndarray) -> np.ndarray:
    z = np.where((x > 0) & (x < 1), x, 0.5)
    return np.where((x > 0) & (x < 1), np.exp((a - 1) * np.log(z) + (b - 1) * np.log1p(-z) - sp.betaln(a, b)), 0.0)


def _gammainc(a: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, ...]:
    x = np.maximum(x, 0.0)
    return sp.gammainc(a, x), _shape_slope(sp.gammainc, (a, x), 0), _gamma_pdf(a, x)


def _gammaincc(a: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, ...]:
    x = np.maximum(x, 0.0)
    return sp.gammaincc(a, x), _shape_slope(sp.gammaincc, (a, x), 0), -_gamma_pdf(a, x)


def _betainc(a: np.ndarray, b: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, ...]:
    x = np.clip(x, 0.0, 1.0)
    slopes = (_shape_slope(sp.betainc, (a, b, x), which) for which in (0, 1))
    return sp.betainc(a, b, x), *slopes, _beta_pdf(a, b, x)


@cache
def torch_functions() -> dict[str, Any]:
    """`gammainc`, `gammaincc` and `betainc` on float64 CPU tensors; first derivatives only."""
    import torch

    class FromScipy(torch.autograd.Function):
        """Elementwise; the arguments have one shape. Returns the value and the partial derivatives."""

        @staticmethod
        def forward(kernel: Any, *args: Any) -> Any:
            return tuple(torch.from_numpy(np.asarray(out)) for out in kernel(*(x.detach().numpy() for x in args)))

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.mark_non_differentiable(*output[1:])
            ctx.save_for_backward(*output[1:])

        @staticmethod
        def backward(ctx: Any, grad: Any, *unused: Any) -> Any:
            return None, *(grad * slope for slope in ctx.saved_tensors)

        @staticmethod
        def vmap(info: Any, in_dims: Any, kernel: Any, *args: Any) -> Any:
            size = info.batch_size
            front = [
                x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
                for x, dim in zip(args, in_dims[1:], strict=True)
            ]
            return FromScipy.apply(kernel, *front), (0,) * (len(args) + 1)

    def lifted(kernel: Any) -> Any:
        def call(*args: Any) -> Any:
            tensors = [x if isinstance(x, torch.Tensor) else torch.as_tensor(x) for x in args]
            return FromScipy.apply(kernel, *torch.broadcast_tensors(*(x.to(torch.float64) for x in tensors)))[0]

        return call

    return {"gammainc": lifted(_gammainc), "gammaincc": lifted(_gammaincc), "betainc": lifted(_betainc)}
