"""Finding out which PPL a program is written in, and whether it can be used: what happens once,
before anything else.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.errors import (
    BackendNotFoundError,
    ModelError,
    NoObservedSiteError,
    NotANumberError,
    ParameterError,
)
from gedppl.programs.values import RISING, SIMPLEX

if TYPE_CHECKING:
    from gedppl.programs.contract import Constraint, Program, Traced

BACKENDS = ("numpyro", "pyro")


@dataclass(frozen=True)
class Site:
    """One array of parameters and its place in the flat vector: theta[start:stop], reshaped to
    `free_shape`.
    """

    name: str
    # a sample site, which brings a prior; False: a `param` site or a module's parameter
    prior: bool
    shape: tuple[int, ...]  # of the constrained value
    free_shape: tuple[int, ...]  # of the unconstrained value
    start: int
    stop: int


# what JAX raises when NumPy is given a traced value; by name, since JAX may not be there
TRACED = ("TracerArrayConversionError", "TracerIntegerConversionError")


# words of an exception (of JAX, of torch) -> what was probably meant
CAUSES = {
    ("string indexing", "invalid data type 'str'", "too many indices for tensor of dimension 2"): (
        "x is an array, with columns in their declared order: write x[:, 0] for the first"
    ),
    ("Indexer must have integer", "tensors used as indices must be long"): (
        "x holds floats, and a category the number of its level: index with x[:, 0].astype(int), "
        "in Pyro x[:, 0].long()"
    ),
}


def _likely_cause(failure: BaseException) -> str:
    found = [
        cause for words, cause in CAUSES.items() if any(word in str(failure) for word in words)
    ]
    return "".join(f"; {cause}" for cause in found)


def find_program(model: Program, x: np.ndarray, a: np.ndarray) -> Any:
    """Run the model under each PPL that is loaded; the one that records the observed site is its
    backend.
    """
    if not callable(model):
        raise ModelError(f"a model is a function (x, a, y=None), got {type(model).__name__}")
    loaded = [name for name in BACKENDS if name in sys.modules]
    if not loaded:
        raise BackendNotFoundError(
            "neither numpyro nor pyro is imported, so the model cannot be a program of either: "
            "import the one it is written in before calling density_class"
        )
    backends = {name: import_module(f"gedppl.programs.{name}") for name in loaded}
    attempts = []
    for name, backend in backends.items():
        # run under the wrong PPL, a program may warn, draw or store parameters in the other
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            for other in backends.values():
                stack.enter_context(other.untouched())
            records, failure = backend.record(model, x, a)
        if failure is None and any(record.observed for record in records):
            return backend.traced(model, x, a)
        attempts.append((len(records), failure, name))
    seen, failure, name = max(attempts, key=lambda attempt: attempt[0])
    if isinstance(failure, ModelError):
        raise failure
    if type(failure).__name__ in TRACED:
        raise ModelError(
            "the model hands x, a or a parameter to NumPy, which cannot follow a traced value: "
            "inside a model write "
            "jnp.asarray(table)[a] in place of numpy_table[a], and jnp.exp in place of np.exp "
            f"({type(failure).__name__})"
        ) from failure
    if failure is not None:
        raise ModelError(
            f"the model raised {type(failure).__name__} when it was run with x of shape {x.shape}, "
            f"a of shape {a.shape} "
            f"and y of shape {a.shape}: {str(failure).rstrip('.')}. A model is called as model(x, "
            f"a, y){_likely_cause(failure)}"
        ) from failure
    if seen:
        raise NoObservedSiteError(
            f"the {name} model has no observed site: pass obs=y to the sample statement of the "
            "outcome, and give the "
            "model the signature (x, a, y=None)"
        )
    raise BackendNotFoundError(
        f"the model recorded no site under {' or '.join(loaded)}: it needs "
        "a sample statement with obs=y"
    )


def parse_bounds(declared: Mapping[str, Any], sites: tuple[Site, ...]) -> dict[str, Any]:
    shapes = {site.name: site.shape for site in sites}
    parsed: dict[str, Any] = {}
    for name, bound in declared.items():
        if name not in shapes:
            raise ParameterError(
                f"bounds name {name!r}, but the model's parameters are {sorted(shapes)}"
            )
        try:
            if isinstance(bound, tuple):
                low, high = (
                    np.broadcast_to(np.asarray(side, float), shapes[name]) for side in bound
                )
                valid = bool((low < high).all())
                parsed[name] = (low, high)
            else:
                parsed[name] = float(bound)
                valid = parsed[name] > 0
        except (TypeError, ValueError):
            valid = False
        if not valid:
            raise ParameterError(
                f"bounds[{name!r}] must be a positive number (largest Euclidean norm) or (low, "
                "high) with low < high, "
                f"that broadcast to the site's shape {shapes[name]}; got {bound!r}"
            )
    return parsed


def support_range(constraint: Constraint) -> tuple[float, float]:
    """The interval that a constraint keeps every entry in, as far as it says so in numbers."""
    base = getattr(constraint, "base_constraint", constraint)
    if "simplex" in type(base).__name__.lower():
        return 0.0, 1.0
    ends = []
    for side, open_end in (("lower_bound", -np.inf), ("upper_bound", np.inf)):
        try:
            ends.append(float(np.asarray(getattr(base, side, open_end))))
        except (TypeError, ValueError, RuntimeError):
            # an array, or not yet a number: a bound that another site sets
            ends.append(open_end)
    return ends[0], ends[1]


def support_of(constraint: Constraint) -> tuple[float, float, str]:
    """The same interval, and what it says of the entries along the last axis together: that they
    rise, that they add up to one, or nothing.
    """
    base = getattr(constraint, "base_constraint", constraint)
    kind = type(base).__name__.lower()
    together = RISING if "ordered" in kind else SIMPLEX if "simplex" in kind else ""
    return *support_range(constraint), together


TRIALS = 129  # rows tried together
# a program that looks at the number of its rows would do something else at one of these
MANY = (257, 4099, 65_537)


def trial_rows(x: np.ndarray, a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Three rows (3, dx) and (3,) near the example's first, away from zeros."""
    return x[:1] * [[1.0], [1.1], [0.9]] + [[0.0], [0.1], [-0.1]], np.repeat(a[:1], 3)


_SUPPORT_SAID = (
    "it was tried at an outcome that the TransformedDistribution says is possible. An "
    "AffineTransform takes any real number for possible unless it is told what comes before it: "
    "for a shifted LogNormal write AffineTransform(loc, scale, domain=constraints.positive) after "
    "the ExpTransform. Otherwise "
)


def check_initial(program: Traced, initial: np.ndarray) -> None:
    """Raise if the log-density is NaN at the initial parameters, or if a row's density depends on
    the rows beside it.

    In the second case padding and histories would change it. Tried on `trial_rows`, among `TRIALS`
    and `MANY` rows and alone; `check_beside` is asked when more than one action is known.
    """
    together, alone, log_prior = program.tried(initial)
    if np.isnan(together[0, 0]) or np.isnan(log_prior):
        values = {name: value[0] for name, value in program.constrain(initial[None]).items()}
        transformed = "Transformed" in program.outcome_kind() and not np.isnan(log_prior)
        raise NotANumberError(
            f"the log-density is NaN at the initial parameters {values}: "
            + transformed * _SUPPORT_SAID
            + "pass init={site: value} where it is finite, or "
            "mend the model (a negative scale, a log of a negative number, 0/0)"
        )
    check_apart(together, alone)
    _check_among_many(program, initial, *trial_rows(program.x, program.a))


def check_beside(program: Traced, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> None:
    """Raise if a program says something else of rows x (n, dx), a (n,) beside each other than of
    each alone, or where there are many.
    """
    check_apart(*program.beside_and_alone(theta, x, a))
    _check_among_many(program, theta, x, a)


def _check_among_many(program: Traced, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> None:
    for many, few in program.among_many(theta, x, a):
        check_apart(many, few)


def check_apart(together: np.ndarray, alone: np.ndarray) -> None:
    """Raise if what a program says of rows beside each other is not what it says of each alone."""
    if not np.allclose(together, alone, rtol=1e-9, atol=1e-12, equal_nan=True):
        raise ModelError(
            "a row's density depends on the other rows (their number or order, batch statistics, a "
            "sum or mean over rows): compute such numbers "
            "once, outside the model, and use them as constants"
        )


def negative_index(lowest: int) -> str:
    """What is wrong with a context by which an entry is read from the end."""
    return (
        f"index {lowest} counts from the end of an array, and the certificate would be that of "
        "another level (pandas gives -1 to a value that is missing)."
    )


def named_leaves(program: Traced, params: Mapping[str, Any]) -> dict[str, Any]:
    named = program.named_leaves(params)
    known = [site.name for site in program.sites]
    unknown = sorted(set(named) - set(known))
    if unknown:
        raise ParameterError(
            f"the model has no parameter {unknown[0]!r}; its parameters are {known}"
        )
    return named


def flattened(program: Traced, values: Mapping[str, Any]) -> np.ndarray:
    arrays, leading = {}, set()
    for site in program.sites:
        if site.name not in values:
            raise ParameterError(
                f"parameter {site.name!r} is missing; the model needs "
                f"{[s.name for s in program.sites]}"
            )
        array = np.asarray(values[site.name], float)
        extra = array.ndim - len(site.shape)
        if extra not in (0, 1) or array.shape[extra:] != site.shape:
            raise ParameterError(
                f"parameter {site.name!r} has shape {array.shape}, but the model gives it "
                f"shape {site.shape} "
                f"(or (M, *{site.shape}) for M settings at once)"
            )
        if not np.isfinite(array).all():
            raise ParameterError(f"parameter {site.name!r} must be finite, got {array}")
        leading.add(array.shape[:extra])
        arrays[site.name] = array if extra else array[None]
    if len(leading) > 1:
        raise ParameterError(
            "either every parameter has a leading axis M or none has, with "
            f"one M; got {sorted(leading)}"
        )
    theta = program.unconstrain(arrays)
    for site in program.sites:
        if not np.isfinite(theta[:, site.start : site.stop]).all():
            raise ParameterError(
                f"parameter {site.name!r} = {np.asarray(values[site.name])} lies outside its "
                "constraint "
                f"{program.constraint_of(site.name)}, or on its edge: move it inside"
            )
    return theta if any(leading) else theta[0]
