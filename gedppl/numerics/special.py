"""Special functions that JAX and torch lack, or lack the derivatives of.

* For JAX the derivatives of `betainc` in its shapes, and the inverses of both incomplete functions,
  by bisection (values only).
* `torch_functions` for torch, which has no `betainc`, no inverses and no derivative of `gammainc`
  in the shape: values from scipy, first derivatives from scipy values too, wrapped so that
  ``torch.func`` can batch and differentiate them.

NumPy never comes here: scipy's own functions serve it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import scipy.special as sp

if TYPE_CHECKING:
    from types import ModuleType, SimpleNamespace

    from gedppl.numerics.arrays import Array, ArrayOf, Namespace

    # the functions of an array library, or as many of them as are needed here
    Calls: TypeAlias = Namespace | ModuleType | SimpleNamespace

# Seven-point central differences, with a step small beside the scale on which an incomplete
# function bends in its shape (its sqrt). For gammainc at shapes about 10 they agree with JAX's own
# derivative to 3e-14.
_OFFSETS = (-3, -2, -1, 1, 2, 3)
_WEIGHTS = (-1 / 60, 9 / 60, -45 / 60, 45 / 60, -9 / 60, 1 / 60)


def _shape_slope(function: Callable[..., Any], args: tuple[Any, ...], which: int, xp: Calls) -> Any:
    """d function / d args[which] for a positive shape argument; the arguments have one shape."""
    shape = args[which]
    step = 0.01 * shape / xp.sqrt(1 + shape)
    moved = xp.stack([shape + k * step for k in _OFFSETS])
    weights = xp.asarray(_WEIGHTS).reshape((-1,) + (1,) * len(shape.shape))
    others = [xp.stack([x] * len(_OFFSETS)) for x in args]
    return (weights * function(*others[:which], moved, *others[which + 1 :])).sum(0) / step


def _beta_pdf(a: ArrayOf, b: ArrayOf, x: ArrayOf, xp: Calls, betaln: Callable[..., Any]) -> Any:
    inside = (x > 0) & (x < 1)
    z = xp.where(inside, x, 0.5)
    return xp.where(
        inside, xp.exp((a - 1) * xp.log(z) + (b - 1) * xp.log1p(-z) - betaln(a, b)), 0.0
    )


def jax_betainc(jax: ModuleType, betaln: Callable[..., Any]) -> Callable[[Any, Any, Any], Any]:
    """JAX's own incomplete beta, with derivatives in all three arguments (first derivatives
    only).
    """
    jnp, native = jax.numpy, jax.scipy.special.betainc

    @jax.custom_jvp  # type: ignore[untyped-decorator]
    def betainc(a: ArrayOf, b: ArrayOf, x: ArrayOf) -> Any:
        return native(a, b, x)

    @betainc.defjvp  # type: ignore[untyped-decorator]
    def tangent(primals: tuple[ArrayOf, ...], tangents: tuple[ArrayOf, ...]) -> Any:
        a, b, x = primals
        slopes = (
            _shape_slope(native, primals, 0, jnp),
            _shape_slope(native, primals, 1, jnp),
            _beta_pdf(a, b, x, jnp, betaln),
        )
        return native(a, b, x), sum(
            slope * move for slope, move in zip(slopes, tangents, strict=True)
        )

    def call(a: ArrayOf, b: ArrayOf, x: ArrayOf) -> Any:
        a, b, x = jnp.broadcast_arrays(
            *(jnp.asarray(arg, jnp.result_type(float)) for arg in (a, b, x))
        )
        return betainc(a, b, jnp.clip(x, 0.0, 1.0))

    return call


# inverses for JAX, values only: callers attach the derivative -------------------------------------

_HALVINGS = 64  # of an interval of length 1,400 on the log or logit scale: 1e-16 relative


def jax_inverses(xp: Calls, native: ModuleType) -> dict[str, Any]:
    """`gammaincinv`, `gammainccinv`, `betaincinv` and `stdtrit`; ``native`` is
    jax.scipy.special.
    """

    def bisect(is_below: Callable[[Any], Any], low: ArrayOf, high: ArrayOf) -> Any:
        def step(i: ArrayOf, ends: tuple[ArrayOf, ArrayOf]) -> Any:
            low, high = ends
            mid = 0.5 * (low + high)
            below = is_below(mid)
            return xp.where(below, mid, low), xp.where(below, high, mid)

        low, high = xp.repeat(_HALVINGS, step, (low, high))
        return 0.5 * (low + high)

    def ends(*args: Array) -> tuple[Any, ...]:
        args = xp.broadcast_arrays(*(xp.stop_gradient(xp.asfloat(x)) for x in args))
        return *args, xp.full_like(args[0], -700.0), xp.full_like(args[0], 700.0)

    def gammaincinv(a: ArrayOf, p: ArrayOf) -> Any:
        a, p, low, high = ends(a, p)
        return xp.exp(bisect(lambda t: native.gammainc(a, xp.exp(t)) < p, low, high))

    def gammainccinv(a: ArrayOf, p: ArrayOf) -> Any:
        a, p, low, high = ends(a, p)
        return xp.exp(bisect(lambda t: native.gammaincc(a, xp.exp(t)) > p, low, high))

    def betaincinv(a: Array, b: Array, p: ArrayOf) -> Any:
        a, b, p, low, high = ends(a, b, p)
        return xp.expit(bisect(lambda t: native.betainc(a, b, xp.expit(t)) < p, low, high))

    def stdtrit(df: ArrayOf, p: ArrayOf) -> Any:
        df, p, _, _ = ends(df, p)
        near = xp.abs(p - 0.5) < 0.25
        tail = 2 * xp.minimum(p, 1 - p)
        # t^2 = df (1 - x) / x with x the beta's quantile; near the centre 1 - x is found instead,
        # to keep its digits
        x = betaincinv(0.5 * df, 0.5, xp.where(near, 0.5, tail))
        y = betaincinv(0.5, 0.5 * df, xp.where(near, 1 - tail, 0.5))
        size = xp.where(near, xp.sqrt(df * y / (1 - y)), xp.sqrt(df * (1 - x) / x))
        return xp.sign(p - 0.5) * size

    return {
        "gammaincinv": gammaincinv,
        "gammainccinv": gammainccinv,
        "betaincinv": betaincinv,
        "stdtrit": stdtrit,
    }


# torch: values and first derivatives by scipy -----------------------------------------------------


def _gamma_pdf(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    z = np.where((x > 0) & np.isfinite(x), x, 1.0)
    return np.where((x > 0) & np.isfinite(x), np.exp((a - 1) * np.log(z) - z - sp.gammaln(a)), 0.0)


def _gammainc(a: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, ...]:
    x = np.maximum(x, 0.0)
    return sp.gammainc(a, x), _shape_slope(sp.gammainc, (a, x), 0, np), _gamma_pdf(a, x)


def _gammaincc(a: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, ...]:
    x = np.maximum(x, 0.0)
    return sp.gammaincc(a, x), _shape_slope(sp.gammaincc, (a, x), 0, np), -_gamma_pdf(a, x)


def _betainc(a: np.ndarray, b: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, ...]:
    x = np.clip(x, 0.0, 1.0)
    slopes = (_shape_slope(sp.betainc, (a, b, x), which, np) for which in (0, 1))
    return sp.betainc(a, b, x), *slopes, _beta_pdf(a, b, x, np, sp.betaln)


def _value_only(function: Callable[..., np.ndarray]) -> Callable[..., tuple[np.ndarray, ...]]:
    return lambda *args: (function(*args), *(np.zeros(args[0].shape) for _ in args))


@cache
def torch_functions() -> dict[str, Any]:
    """Incomplete functions with first derivatives, and their inverses without, on float64 CPU
    tensors.
    """
    import torch

    class FromScipy(torch.autograd.Function):
        """Elementwise; the arguments have one shape. Returns the value and the partial
        derivatives.
        """

        @staticmethod
        def forward(kernel: Callable[..., Any], *args: torch.Tensor) -> Any:
            return tuple(
                torch.from_numpy(np.asarray(out))
                for out in kernel(*(x.detach().numpy() for x in args))
            )

        @staticmethod
        def setup_context(
            ctx: torch.autograd.function.FunctionCtx,
            inputs: tuple[Any, ...],
            output: tuple[torch.Tensor, ...],
        ) -> None:
            ctx.mark_non_differentiable(*output[1:])
            ctx.save_for_backward(*output[1:])

        @staticmethod
        def backward(
            ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor, *unused: torch.Tensor
        ) -> Any:
            return None, *(grad * slope for slope in ctx.saved_tensors)

        @staticmethod
        def vmap(
            info: Any,
            in_dims: tuple[int | None, ...],
            kernel: Callable[..., Any],
            *args: torch.Tensor,
        ) -> Any:
            size = info.batch_size
            front = [
                x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
                for x, dim in zip(args, in_dims[1:], strict=True)
            ]
            return FromScipy.apply(kernel, *front), (0,) * (len(args) + 1)

    def lifted(kernel: Callable[..., Any]) -> Any:
        def call(*args: torch.Tensor) -> Any:
            tensors = [x if isinstance(x, torch.Tensor) else torch.as_tensor(x) for x in args]
            return FromScipy.apply(
                kernel, *torch.broadcast_tensors(*(x.to(torch.float64) for x in tensors))
            )[0]

        return call

    inverses = ("gammaincinv", "gammainccinv", "betaincinv", "stdtrit")
    return {
        "gammainc": lifted(_gammainc),
        "gammaincc": lifted(_gammaincc),
        "betainc": lifted(_betainc),
        **{name: lifted(_value_only(getattr(sp, name))) for name in inverses},
    }
