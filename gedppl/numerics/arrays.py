"""One namespace for NumPy, JAX and torch arrays.

Formulas in `families`, `functionals` and `divergences` are written once, against the namespace of
their inputs:

>>> import numpy as np
>>> xp = namespace(np.ones(2))
>>> round(float(xp.gammaln(np.float64(5.0))), 9)
3.17805383

NumPy is the default and the only one imported here; JAX and torch are touched only once an array of
theirs arrives. Every namespace offers the same names (see `NAMES`), with NumPy's argument
conventions (``axis=``, not ``dim=``), and some that NumPy lacks: ``asfloat`` (to float64),
``stop_gradient``, ``to_numpy`` and ``repeat(n, step, state)``, a loop of fixed length that JAX
compiles once.

JAX works in float64 only inside ``jax.enable_x64(True)``; the callers that own a JAX computation
open that context.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from numbers import Real
from types import SimpleNamespace
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import scipy.special
from scipy.linalg.lapack import dpotrf, dtrtri

from gedppl.errors import DataError, InputError, NotFiniteError, SettingError, ShapeError
from gedppl.numerics import special

_ELEMENTWISE = (
    "exp log log1p expm1 sqrt abs floor ceil round sign sin cos tan arctan arctan2 arcsinh sinh "
    "cosh tanh power "
    "maximum minimum logaddexp isfinite isnan"
)
_SPECIAL = (
    "gammaln digamma betaln erf erfc erfinv ndtr ndtri log_ndtr i0e i1e xlogy xlog1py expit logit "
    "gammainc gammaincc "
    "betainc gammaincinv gammainccinv betaincinv stdtrit"
)
_SHAPE = (
    "where clip sum prod mean max min argmax any all cumsum sort argsort logsumexp stack "
    "concatenate take_along_axis "
    "broadcast_to broadcast_arrays reshape expand_dims squeeze swapaxes moveaxis asarray zeros "
    "ones full zeros_like "
    "ones_like full_like arange linspace eye matmul einsum diagonal cholesky solve "
    "solve_triangular det slogdet inv"
)
NAMES: tuple[str, ...] = (
    *_ELEMENTWISE.split(),
    *_SPECIAL.split(),
    *_SHAPE.split(),
    "asfloat",
    "stop_gradient",
    "to_numpy",
    "repeat",
    "inf",
    "nan",
    "pi",
)


class ArrayOf(Protocol):
    """What a formula may ask of an array, be it NumPy's, JAX's or torch's; what comes out is of
    the same library.
    """

    @property
    def shape(self) -> Any: ...
    @property
    def ndim(self) -> int: ...
    @property
    def dtype(self) -> Any: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Any: ...
    def __getitem__(self, index: Any, /) -> Any: ...
    def __add__(self, other: Any, /) -> Any: ...
    def __radd__(self, other: Any, /) -> Any: ...
    def __sub__(self, other: Any, /) -> Any: ...
    def __rsub__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...
    def __rmul__(self, other: Any, /) -> Any: ...
    def __truediv__(self, other: Any, /) -> Any: ...
    def __rtruediv__(self, other: Any, /) -> Any: ...
    def __pow__(self, other: Any, /) -> Any: ...
    def __neg__(self) -> Any: ...
    def __lt__(self, other: Any, /) -> Any: ...
    def __le__(self, other: Any, /) -> Any: ...
    def __gt__(self, other: Any, /) -> Any: ...
    def __ge__(self, other: Any, /) -> Any: ...


Array: TypeAlias = ArrayOf | float  # a number broadcasts like an array


class Namespace:
    """The functions in `NAMES` for one array library; ``xp.name`` is ``"numpy"``, ``"jax"`` or
    ``"torch"``.
    """

    def __init__(self, name: str, functions: dict[str, Any]) -> None:
        missing = [key for key in NAMES if key not in functions]
        if missing:
            raise AttributeError(f"the {name} namespace lacks {missing}")
        self.name = name
        self.__dict__.update(functions)

    def __getattr__(self, key: str) -> Any:  # only reached by a miss
        raise AttributeError(
            f"no {key!r} in the array namespaces; add it for all three libraries "
            "in gedppl/numerics/arrays.py"
        )

    def __repr__(self) -> str:
        return f"Namespace({self.name})"


def library(array: Any) -> str | None:
    """``"jax"``, ``"torch"`` or ``"numpy"`` by the module that defines the array's type; None for
    plain Python values.

    Tracers of JAX and the wrapped tensors of ``torch.func`` are of their library's types and so are
    recognised.
    """
    for base in type(array).__mro__:
        root = base.__module__.partition(".")[0]
        if root in ("jax", "jaxlib"):
            return "jax"
        if root in ("torch", "numpy"):
            return root
    return None


def namespace(*arrays: Any) -> Namespace:
    """The namespace that these arrays share; NumPy arrays and Python numbers go along with either
    of the others.

    >>> namespace(1.0, [2.0]).name
    'numpy'
    """
    found = {library(array) for array in arrays} - {None, "numpy"}
    if len(found) > 1:
        raise InputError(
            f"arrays of {' and '.join(sorted(map(str, found)))} were mixed; convert "
            "them to one library"
        )
    return namespace_of(str(found.pop())) if found else _numpy()


def namespace_of(name: str) -> Namespace:
    """The namespace of ``"numpy"``, ``"jax"`` or ``"torch"``.

    >>> namespace_of("numpy")
    Namespace(numpy)
    """
    return {"numpy": _numpy, "jax": _jax, "torch": _torch}[name]()


def to_numpy(array: Any) -> np.ndarray:
    """The array as NumPy's, detached from any gradient."""
    found: np.ndarray = namespace(array).to_numpy(array)
    return found


def concrete(array: Any) -> np.ndarray | None:
    """The array's numbers, or None while JAX or ``torch.func`` is tracing it and it has none
    yet.
    """
    kind = library(array)
    if kind == "jax":
        import jax

        return None if isinstance(array, jax.core.Tracer) else np.asarray(array)
    if kind == "torch":
        import torch

        return (
            None
            if torch._C._functorch.is_functorch_wrapped_tensor(array)
            else array.detach().numpy()
        )
    return np.asarray(array)


# NumPy and JAX share names; what follows lists the few that live elsewhere ------------------------


def _collect(*modules: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in NAMES:
        for module in modules:
            if hasattr(module, key):
                found[key] = getattr(module, key)
                break
    return found


@cache
def _numpy() -> Namespace:
    def repeat(n: int, step: Callable[[Any, Any], Any], state: Any) -> Any:
        for i in range(n):
            state = step(i, state)
        return state

    functions = _collect(np, scipy.special, np.linalg)
    functions |= {
        "asfloat": lambda x: np.asarray(x, dtype=np.float64),
        "stop_gradient": lambda x: x,
        "to_numpy": np.asarray,
        "repeat": repeat,
        "solve_triangular": np.linalg.solve,
        # NumPy's diagonal works on the first two axes by default; formulas here keep matrices in
        # the last two
        "diagonal": lambda x: np.diagonal(x, axis1=-2, axis2=-1),
    }
    return Namespace("numpy", functions)


@cache
def _jax() -> Namespace:
    import jax
    import jax.numpy as jnp
    import jax.scipy as jsp

    def asfloat(x: Any) -> Any:
        x = jnp.asarray(x)
        return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))

    def betaln(a: Any, b: Any) -> Any:
        return jsp.special.gammaln(a) + jsp.special.gammaln(b) - jsp.special.gammaln(a + b)

    def solve_triangular(lower: Any, b: Any) -> Any:
        batch = jnp.broadcast_shapes(lower.shape[:-2], b.shape[:-2])
        lower = jnp.broadcast_to(lower, (*batch, *lower.shape[-2:]))
        return jsp.linalg.solve_triangular(
            lower, jnp.broadcast_to(b, (*batch, *b.shape[-2:])), lower=True
        )

    functions = _collect(jnp, jsp.special, jnp.linalg)
    functions |= {
        "asfloat": asfloat,
        "stop_gradient": jax.lax.stop_gradient,
        "to_numpy": np.asarray,
        "repeat": lambda n, step, state: jax.lax.fori_loop(
            0, n, lambda i, s: step(i.astype(float), s), state
        ),
        "solve_triangular": solve_triangular,
        "diagonal": lambda x: jnp.diagonal(x, axis1=-2, axis2=-1),
        # jax's betaln errs by 1e-6, and its betainc has no derivative in the shapes
        "betaln": betaln,
        "betainc": special.jax_betainc(jax, betaln),
        # |x| with derivative 0 at 0, as torch has it (jax.numpy gives 1 there)
        "abs": lambda x: jnp.where(jnp.asarray(x) == 0, 0.0 * jnp.asarray(x), jnp.abs(x)),
    }
    functions |= special.jax_inverses(SimpleNamespace(**functions), jsp.special)
    return Namespace("jax", functions)


@cache
def _torch() -> Namespace:
    import torch

    def lift(x: Any) -> Any:
        """A float64 tensor; booleans and integers become numbers."""
        if isinstance(x, torch.Tensor):
            return x if x.dtype == torch.float64 else x.to(torch.float64)
        return torch.as_tensor(np.asarray(x, dtype=np.float64))

    def keep(x: Any) -> Any:
        """A tensor of its own kind (integers stay integers)."""
        return x if isinstance(x, torch.Tensor) else torch.as_tensor(np.asarray(x))

    def lifted(function: Any) -> Any:
        return lambda *args: function(*(lift(x) for x in args))

    def reduction(function: Any) -> Any:
        def reduce(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
            x = keep(x)
            if axis is None:
                return function(x)
            return function(x, dim=axis, keepdim=keepdims)

        return reduce

    def along(function: Any) -> Any:
        return lambda x, axis=-1: function(keep(x), dim=axis)

    def prod(x: Any, axis: int = -1) -> Any:
        return torch.prod(lift(x), dim=axis)

    def where(condition: Any, yes: Any, no: Any) -> Any:
        return torch.where(keep(condition), _as_branch(yes), _as_branch(no))

    def _as_branch(x: Any) -> Any:
        return x if isinstance(x, torch.Tensor) else lift(x)

    def clip(x: Any, low: Any = None, high: Any = None) -> Any:
        x = lift(x)
        x = x if low is None else torch.maximum(x, lift(low))
        return x if high is None else torch.minimum(x, lift(high))

    def log_ndtr(x: Any) -> Any:
        # torch's own has no batching rule; erfcx keeps the far left tail
        x = lift(x)
        left = torch.where(x < -1, x, -1.0)
        right = torch.where(x < -1, -1.0, x)
        far = torch.log(torch.special.erfcx(-left / np.sqrt(2)) / 2) - left**2 / 2
        return torch.where(x < -1, far, torch.log1p(-torch.erfc(right / np.sqrt(2)) / 2))

    def repeat(n: int, step: Callable[[Any, Any], Any], state: Any) -> Any:
        for i in range(n):
            state = step(float(i), state)
        return state

    def solve_triangular(lower: Any, b: Any) -> Any:
        return torch.linalg.solve_triangular(lift(lower), lift(b), upper=False)

    def logsumexp(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        x = lift(x)
        return torch.logsumexp(
            x, dim=tuple(range(x.ndim)) if axis is None else axis, keepdim=keepdims
        )

    def like(function: Any) -> Any:
        return lambda x, *value: function(keep(x), *value, dtype=torch.float64)

    made = {"dtype": torch.float64}
    functions: dict[str, Any] = {}
    for key in (*_ELEMENTWISE.split(), *_SPECIAL.split()):
        for module in (torch, torch.special):
            if hasattr(module, key):
                functions[key] = lifted(getattr(module, key))
                break
    functions |= {
        "power": lifted(torch.pow),
        "betaln": lifted(lambda a, b: torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)),
        "log_ndtr": log_ndtr,
        **special.torch_functions(),
        "where": where,
        "clip": clip,
        "sum": reduction(torch.sum),
        "mean": reduction(torch.mean),
        "prod": prod,
        "max": reduction(torch.amax),
        "min": reduction(torch.amin),
        "argmax": reduction(torch.argmax),
        "any": reduction(torch.any),
        "all": reduction(torch.all),
        "cumsum": along(torch.cumsum),
        "sort": lambda x, axis=-1: torch.sort(keep(x), dim=axis).values,
        "argsort": along(torch.argsort),
        "logsumexp": logsumexp,
        "stack": lambda xs, axis=0: torch.stack([lift(x) for x in xs], dim=axis),
        "concatenate": lambda xs, axis=0: torch.cat([lift(x) for x in xs], dim=axis),
        "take_along_axis": lambda x, index, axis=-1: torch.take_along_dim(x, keep(index), dim=axis),
        "broadcast_to": lambda x, shape: torch.broadcast_to(keep(x), tuple(shape)),
        "broadcast_arrays": lambda *xs: torch.broadcast_tensors(*(keep(x) for x in xs)),
        "reshape": lambda x, shape: torch.reshape(
            keep(x), shape if isinstance(shape, tuple) else (shape,)
        ),
        "expand_dims": lambda x, axis: torch.unsqueeze(keep(x), axis),
        "squeeze": lambda x, axis: torch.squeeze(keep(x), axis),
        "swapaxes": lambda x, i, j: torch.swapaxes(keep(x), i, j),
        "moveaxis": lambda x, i, j: torch.moveaxis(keep(x), i, j),
        "asarray": keep,
        "zeros": lambda shape: torch.zeros(shape, **made),
        "ones": lambda shape: torch.ones(shape, **made),
        "full": lambda shape, value: torch.full(shape, value, **made),
        "zeros_like": like(torch.zeros_like),
        "ones_like": like(torch.ones_like),
        "full_like": like(torch.full_like),
        "arange": lambda *args: torch.arange(*args),
        "linspace": lambda a, b, n: torch.linspace(a, b, n, **made),
        "eye": lambda n: torch.eye(n, **made),
        "matmul": lifted(torch.matmul),
        "einsum": lambda spec, *xs: torch.einsum(spec, *(lift(x) for x in xs)),
        "diagonal": lambda x: torch.diagonal(keep(x), dim1=-2, dim2=-1),
        "cholesky": lifted(torch.linalg.cholesky),
        "solve": lifted(torch.linalg.solve),
        "det": lifted(torch.linalg.det),
        "slogdet": lifted(torch.linalg.slogdet),
        "inv": lifted(torch.linalg.inv),
        "solve_triangular": solve_triangular,
        "asfloat": lift,
        "stop_gradient": lambda x: keep(x).detach(),
        "to_numpy": lambda x: keep(x).detach().cpu().numpy(),
        "repeat": repeat,
        "inf": np.inf,
        "nan": np.nan,
        "pi": np.pi,
    }
    return Namespace("torch", functions)


# ==================================================================================================
# Numbers from a caller: real, finite, of a sane size, and copied. Anything else is a named error.
# ==================================================================================================

MOST = 10**8  # numbers in one argument
_NO_NUMBERS = (str, bytes, np.datetime64, np.timedelta64)  # though each can be converted to one
# of a matrix of unit diagonal: the trace of its inverse, beyond which rounding may show in it
MOST_DEPENDENT = 1e6
LARGEST = 1e60  # beyond this squares of squares overflow, and no solver could learn from it
LARGER_UNIT = "measure it in a larger unit"


def is_whole(value: Any) -> bool:
    """Whether this is a whole number: a Python or NumPy integer, but no truth value and no
    duration.
    """
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64)


def is_number(value: Any) -> bool:
    """Whether this is a real number, of Python or NumPy, but no truth value and no duration."""
    return isinstance(value, Real) and not isinstance(value, bool | np.timedelta64)


def is_one_of(value: Any, words: Sequence[str | None]) -> bool:
    """Whether this is one of several words, or None if that is among them."""
    return any(value is word for word in words) or (isinstance(value, str) and value in words)


def check_whole(least: int, **named: Any) -> None:
    """Each named value is a whole number of at least so much, or a `SettingError` says which is
    not.

    >>> check_whole(1, runs=3, rounds=10)
    """
    for name, value in named.items():
        if not is_whole(value) or value < least:
            raise SettingError(f"{name} must be a whole number of at least {least}, got {value!r}")


def scalar(value: Any) -> Any:
    """A scalar of NumPy, JAX, torch or Arrow as Python's own; anything else as it is."""
    try:
        if hasattr(value, "as_py"):
            return value.as_py()
        return (
            value.item()
            if hasattr(value, "item") and value.shape == () and not np.ma.is_masked(value)
            else value
        )
    except Exception:  # whoever wants a number or a text will say that this is none
        return value


def whole(value: Any) -> int | None:
    """The whole number that a scalar of any kind is, 2 and 2.0 alike; None for anything else,
    truth values too.
    """
    value = value if is_whole(value) else scalar(value)
    if is_whole(value):
        return int(value)
    return int(value) if isinstance(value, float) and value.is_integer() else None


def shape_of(value: Any, what: str) -> tuple[int, ...]:
    """The shape, before anything is copied; what is absurdly large is refused here."""
    claimed = _claimed_shape(value)
    if math.prod(claimed) > MOST:
        raise ShapeError(
            f"{what} of shape {claimed} is too large; at most {MOST:,} numbers at once"
        )
    try:
        return tuple(np.shape(value))
    except Exception as error:
        raise ShapeError(
            f"{what} must be a rectangular array of numbers, got a {type(value).__name__}: {error}"
        ) from None


def _claimed_shape(value: Any) -> tuple[int, ...]:
    """What the value says of itself: an array its shape, a list its length and what its first
    item says.
    """
    if isinstance(value, list | tuple):
        return (len(value), *(_claimed_shape(value[0]) if value else ()))
    shape = getattr(value, "shape", ())
    return shape if isinstance(shape, tuple) and all(isinstance(n, int) for n in shape) else ()


def read_numbers(
    value: Any, what: str, fix: str, error: type[InputError] = DataError, *, missing: bool = False
) -> np.ndarray:
    """The value as a float array of its own; `missing` lets NaN pass. Truth values count as 0
    and 1; text is refused.
    """
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise NotFiniteError(f"{what} is masked; {fix}")
    value = detached(value)
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O" and not any(isinstance(v, _NO_NUMBERS) for v in array.flat):
            array = array.astype(float)
    except Exception as cause:
        raise error(f"{_wanted(value, what)}, got {_shown(value)}: {cause}") from None
    if array.dtype.kind not in "biuf":
        raise error(f"{_wanted(value, what)}, got {_shown(value)}")
    array = np.array(array, float)
    fine = countable(array) | np.isnan(array) if missing else countable(array)
    if np.count_nonzero(fine) < array.size:
        found = array[~fine][0]
        said = (
            "is NaN"
            if np.isnan(found)
            else "is infinite"
            if np.isinf(found)
            else f"exceeds {LARGEST:g}"
        )
        if np.isfinite(found):
            fix = f"{LARGER_UNIT}: no solver can learn from such numbers"
        raise NotFiniteError(f"{what} must be finite, got {found}: it {said}; {fix}")
    return array


def countable(array: np.ndarray) -> np.ndarray:
    """Where numbers are finite and not so large that their squares of squares overflow."""
    return np.asarray(np.abs(array) <= LARGEST)


def detached(value: Any) -> Any:
    """A torch tensor without the gradient that may be asked for; anything else as it is."""
    return value.detach() if hasattr(value, "detach") else value


def _wanted(value: Any, what: str) -> str:
    return (
        f"{what} must hold numbers"
        if isinstance(value, list | tuple | np.ndarray)
        else f"{what} must be a number"
    )


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"a {type(value).__name__}"


def check_delta(delta: float) -> None:
    """A probability of error: strictly between 0 and 1."""
    if not is_number(delta) or not 0 < delta < 1:
        raise SettingError(
            f"delta must lie strictly between 0 and 1, got {delta!r}; 0.05 is customary"
        )


# ==================================================================================================
# The next state of an immutable record.
# ==================================================================================================

Record = TypeVar("Record")


def evolved(record: Record, **changes: Any) -> Record:
    """`dataclasses.replace` for a frozen dataclass that checks nothing when it is made, at a
    fraction of the cost.

    A decision evolves some twenty records. Cached properties are left behind: they belong to the
    old values.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Count:
    ...     name: str
    ...     n: int
    >>> evolved(Count("rounds", 1), n=2)
    Count(name='rounds', n=2)
    """
    fields: dict[str, Any] = type(record).__dataclass_fields__  # type: ignore[attr-defined]
    values = record.__dict__ | changes
    if len(values) > len(fields):
        strange = changes.keys() - fields.keys()
        if strange:
            raise TypeError(f"{type(record).__name__} has no field {', '.join(sorted(strange))}")
        values = {name: values[name] for name in fields}
    after = object.__new__(type(record))
    after.__dict__.update(values)
    return after


def whitener(correlations: np.ndarray) -> np.ndarray | None:
    """W (r, r), lower triangular, with W'W the inverse of a matrix of unit diagonal; None where
    columns depend on each other so much that only eigenvalues can tell what may be rounding.

    1 / |W|^2 is at most the smallest eigenvalue and r at least the largest: that is the proof.
    """
    root, failed = dpotrf(correlations, lower=1, clean=1) if len(correlations) else (None, 1)
    inverse = None if failed else dtrtri(root, lower=1)[0]
    return inverse if inverse is not None and (inverse * inverse).sum() < MOST_DEPENDENT else None
