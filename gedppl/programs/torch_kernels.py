"""A traced Pyro program's functions over many settings and rows: `torch.func`, or a loop where the
program forbids it.

Some distributions write in place or branch on values, which `torch.func.vmap` refuses. Whether a
question can be vectorised is found out the first time it is asked, by comparing both ways on two
entries; `vectorised` holds the answers. Axis letters: M parameter settings, n rows, D parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.func import grad, grad_and_value, jacrev, vmap
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

from gedppl.density import Density
from gedppl.errors import ContextRangeError
from gedppl.programs import LOCK
from gedppl.programs.contract import LinearPredictor, OrderedPredictor
from gedppl.programs.lowering import crossing, external_density, is_external
from gedppl.programs.seen import Refusal, Seen
from gedppl.programs.torch_affine import linear_predictor, ordered_predictor
from gedppl.programs.torch_seen import seen_by_data
from gedppl.programs.tracing import MANY, TRIALS, negative_index, trial_rows
from gedppl.rows import Histories, Rows

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torch.distributions.constraints import Constraint

    from gedppl.functionals import Functional

MAX_CELLS = 1 << 20  # settings times rows evaluated at once


class IndexLog(TorchFunctionMode):
    """Keeps the whole numbers by which entries of arrays are read."""

    READING = ("__getitem__", "index_select", "gather", "take", "take_along_dim", "embedding")

    def __init__(self) -> None:
        super().__init__()
        self.read: list[torch.Tensor] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in self.READING:
            parts, _ = tree_flatten((args[name != "embedding" :], kwargs))
            whole = (torch.int8, torch.int16, torch.int32, torch.int64)
            self.read += [p for p in parts if isinstance(p, torch.Tensor) and p.dtype in whole]
        return func(*args, **(kwargs or {}))


def _same(some: list[torch.Tensor] | None, others: list[torch.Tensor] | None) -> bool:
    if some is None or others is None:
        return some is others
    return len(some) == len(others) and all(map(torch.equal, some, others))


def as_tensor(array: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(np.array(array))  # a copy: torch warns about read-only views


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    return (
        tensor.detach()
        .numpy()
        .astype(float if tensor.dtype.is_floating_point else tensor.detach().numpy().dtype)
    )


class TorchKernels:
    """Functions over `run`, `row_log_likelihood` and `row_density`, which the traced program
    provides.
    """

    run: Callable[..., Any]
    row_log_likelihood: Callable[..., Any]
    row_density: Callable[..., Density]
    feasible: Callable[..., np.ndarray]
    sites: tuple[Any, ...]
    assignments: list[dict[str, Any]]
    dim: int
    x: np.ndarray
    a: np.ndarray
    event_shape: tuple[int, ...]
    packaged: bool  # nothing in the outcome is of a class that the packages do not bring
    known_family: bool  # its family is one of ours
    bare: Callable[..., Any]  # the outcome's distribution, without the wrappers of plates
    ranges: dict[str, tuple[float, float]]  # of the sites
    predictor_holds: Callable[[LinearPredictor], bool]
    action_problem: Callable[[np.ndarray, np.ndarray, np.ndarray], str | None]

    @property
    def reads_by_context(self) -> bool:
        """Whether contexts say which entry of an array is read. Torch refuses an index past the
        end by itself; a negative one counts from the end.
        """
        if "reads_by_context" not in self._facts:
            zero, theta = 0.0 * self.x, np.zeros(self.dim)
            read = [self._indices(theta, zero + step, self.a) for step in (0.0, 1.0, 1e3)]
            self._facts["reads_by_context"] = any(not _same(one, read[0]) for one in read)
        return bool(self._facts["reads_by_context"])

    def check_contexts(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> None:
        """Refuse contexts by which an entry is read from the end: one level's certificate would be
        that of another. What is negative at a context of zeros too is the program's own way.
        """
        if not self.reads_by_context:
            return
        for i in range(len(a)):
            row, action = x[i : i + 1], a[i : i + 1]
            at_zero = self._indices(theta, 0.0 * row, action) or []
            for here, there in zip(self._indices(theta, row, action) or [], at_zero):
                if here.numel() and int(here.min()) < 0 and not torch.equal(here, there):
                    raise ContextRangeError(
                        f"context {x[i]} is out of range for this model: "
                        f"{negative_index(int(here.min()))} Give the model an entry for it, or "
                        "clamp the index"
                    )

    def _indices(
        self, theta: np.ndarray, x: np.ndarray, a: np.ndarray
    ) -> list[torch.Tensor] | None:
        """The indices by which entries are read at rows; None where one lies past the end."""
        log = IndexLog()
        try:
            with LOCK, torch.no_grad(), log:
                self.run(as_tensor(theta), as_tensor(x), as_tensor(a))
        except (ContextRangeError, RuntimeError):
            return None
        return log.read

    def __init__(self) -> None:
        self.vectorised: dict[Any, bool] = {}
        self.histories = Histories()
        self._facts: dict[str, Any] = {}

    def _map(
        self, kind: Hashable, function: Callable[..., Any], *batched: torch.Tensor, cells: int = 1
    ) -> tuple[torch.Tensor, ...]:
        """function (returning a tuple of tensors) over the leading axis of every argument."""
        with LOCK:  # every evaluation runs the user's program
            if kind not in self.vectorised:
                self.vectorised[kind] = vectorises(
                    function, [two_settings(array) for array in batched]
                )
            if self.vectorised[kind]:
                return vmap(function, chunk_size=max(1, MAX_CELLS // cells))(*batched)
            return one_by_one(function, batched)

    def _fact(self, name: str, find: Callable[[], Any]) -> Any:
        """Something about the program that is found out once."""
        if name not in self._facts:
            with LOCK:
                self._facts[name] = find()
        return self._facts[name]

    # what kind of program it is -------------------------------------------------------------------

    @property
    def moving_support(self) -> bool:
        """Whether the support depends on the parameters; its edges are then part of the
        log-likelihood.
        """

        def find() -> bool:
            theta = torch.zeros(self.dim, dtype=torch.float64, requires_grad=True)
            return _depends(self.run(theta, as_tensor(self.x), as_tensor(self.a)).observed.support)

        return self._fact("moving_support", find)

    @property
    def outline_density(self) -> Density:
        """The density at one row, for its structure."""
        zero = torch.zeros(self.dim, dtype=torch.float64)
        return self._fact(
            "outline", lambda: self.row_density(zero, as_tensor(self.x), as_tensor(self.a))
        )

    @property
    def family(self) -> str:
        return self.outline_density.family

    @property
    def predictor(self) -> LinearPredictor | None:
        return self._fact("predictor", lambda: linear_predictor(self))

    @property
    def ordered(self) -> OrderedPredictor | None:
        return self._fact("ordered", lambda: ordered_predictor(self))

    @property
    def seen(self) -> Seen | Refusal:
        """What data see of the parameters, where the predictor is not affine in theta itself."""
        return self._fact("seen", lambda: seen_by_data(self))

    def functional_at(
        self, functional: Functional, density: Density, x: np.ndarray, a: np.ndarray
    ) -> np.ndarray:
        """A functional of the user's at a density with NumPy arguments, in arrays of this
        backend.
        """
        return _numpy(functional(density.map_args(as_tensor), x=as_tensor(x), a=as_tensor(a)))

    # parameters -----------------------------------------------------------------------------------

    def constrain(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Named constrained values, each with the leading axis M."""
        x, a = as_tensor(self.x), as_tensor(self.a)

        def function(one: torch.Tensor) -> tuple[Any, ...]:
            values = self.run(one, x, a).values
            return tuple(values[site.name] for site in self.sites)

        if not self.sites:
            return {}
        values = self._map("constrain", function, as_tensor(theta))
        return {
            site.name: _numpy(value).reshape(-1, *site.shape)
            for site, value in zip(self.sites, values)
        }

    def _flat(self, values: Mapping[str, Any]) -> Any:
        return torch.cat([values[site.name].reshape(-1) for site in self.sites])

    def unconstrain(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """The flat vectors (M, D) of named constrained values; not finite where a value is
        outside its constraint.
        """
        if not values:
            return np.zeros((1, 0))
        x, a = as_tensor(self.x), as_tensor(self.a)

        def function(*arrays: torch.Tensor) -> tuple[Any, ...]:
            given = dict(zip((site.name for site in self.sites), arrays))
            free = self.run(None, x, a, given=given).free
            back = self.run(self._flat(free), x, a).values
            # a transform's inverse may return a number even for a value outside: then it does not
            # come back
            kept = {}
            for site in self.sites:
                value = given[site.name]
                same = ((back[site.name] - value).abs() <= 1e-8 * (1 + value.abs())).all()
                kept[site.name] = torch.where(same, free[site.name], torch.nan)
            return (self._flat(kept),)

        return _numpy(
            self._map(
                "unconstrain", function, *(as_tensor(values[site.name]) for site in self.sites)
            )[0]
        )

    def _prior(self, theta: torch.Tensor) -> Any:
        return self.run(theta, as_tensor(self.x), as_tensor(self.a)).log_prior

    def log_prior(self, theta: np.ndarray) -> np.ndarray:
        return _numpy(self._map("log_prior", lambda one: (self._prior(one),), as_tensor(theta))[0])

    def log_jacobian(self, theta: np.ndarray) -> np.ndarray:
        """(M,) log volume of the transforms from free to constrained values, over `sample`
        sites.
        """
        x, a = as_tensor(self.x), as_tensor(self.a)

        def function(one: torch.Tensor) -> tuple[Any]:
            return (
                torch.as_tensor(self.run(one, x, a).log_jacobian, dtype=torch.float64)
                + 0.0 * one.sum(),
            )

        return _numpy(self._map("log_jacobian", function, as_tensor(theta))[0])

    def log_prior_grad_hessian(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not any(site.prior for site in self.sites):
            return np.zeros(self.dim), np.zeros((self.dim, self.dim))
        return _numpy(grad(self._prior)(as_tensor(theta))), self._hessian(
            "prior", self._prior, theta
        )

    def draw_prior(self, n: int, seed: int, initial: np.ndarray, jitter: float = 1.0) -> np.ndarray:
        """n draws (n, D): sample sites from their priors, `param` coordinates standard normal
        around `initial`.
        """
        noise = jitter * np.random.default_rng([seed, 1]).standard_normal((n, self.dim))
        out = initial + noise
        if any(site.prior for site in self.sites):
            x, a = as_tensor(self.x), as_tensor(self.a)
            with LOCK, torch.no_grad(), torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                for i in range(n):
                    out[i] = self._flat(
                        self.run(as_tensor(out[i]), x, a, given="draw").free
                    ).numpy()
        return out

    def tried(self, initial: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Log-likelihoods (2, 3) of three rows among many and each alone, at two settings, and the
        log-prior at `initial`.
        """
        x, a = trial_rows(self.x, self.a)
        y = self.feasible(initial, x, a)
        theta = np.stack([initial, initial + 0.3 * np.cos(1 + np.arange(self.dim))])
        alone = [
            self.log_likelihood(theta, x[i : i + 1], a[i : i + 1], y[i : i + 1]) for i in range(3)
        ]
        many = [np.tile(rows, (TRIALS // 3,) + (1,) * (rows.ndim - 1)) for rows in (x, a, y)]
        return (
            self.log_likelihood(theta, *many)[:, :3],
            np.concatenate(alone, axis=1),
            float(self.log_prior(initial[None])[0]),
        )

    def among_many(
        self, theta: np.ndarray, x: np.ndarray, a: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """What is said of rows x (n, dx), a (n,) among many, and among few, with the log-prior."""
        y = self.feasible(theta, x, a)

        def said(n: int) -> np.ndarray:
            rows = [as_tensor(np.resize(part, (n, *part.shape[1:]))) for part in (x, a, y)]
            with LOCK, torch.no_grad():
                logs = self.row_log_likelihood(as_tensor(theta), *rows)[: len(a)]
                prior = self.run(as_tensor(theta), *rows[:2]).log_prior
            return np.append(logs.numpy(), prior.numpy())

        few = said(len(y))
        for n in MANY:
            yield said(n), few

    def beside_and_alone(
        self, theta: np.ndarray, x: np.ndarray, a: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """What is said of a few rows x (n, dx), a (n,) together, and of each alone."""
        y = self.feasible(theta, x, a)
        one = theta[None] + 0.3 * np.cos(1 + np.arange(self.dim))
        alone = [
            self.log_likelihood(one, x[i : i + 1], a[i : i + 1], y[i : i + 1])
            for i in range(len(a))
        ]
        return self.log_likelihood(one, x, a, y)[0], np.concatenate(alone, axis=1)[0]

    # questions about a batch of rows --------------------------------------------------------------

    def log_likelihood(
        self, theta: np.ndarray, x: np.ndarray, a: np.ndarray, y: np.ndarray
    ) -> np.ndarray:
        if len(a) == 0:
            return np.zeros((len(theta), 0))
        rows = as_tensor(x), as_tensor(a), as_tensor(y)
        return _numpy(
            self._map(
                "log_likelihood",
                lambda one: (self.row_log_likelihood(one, *rows),),
                as_tensor(theta),
                cells=len(a),
            )[0]
        )

    def score(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> np.ndarray:
        if len(a) == 0:
            return np.zeros((0, self.dim))
        one = as_tensor(theta)

        def function(x: torch.Tensor, a: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
            return (
                grad(lambda one: self.row_log_likelihood(one, x[None], a[None], y[None])[0])(one),
            )

        return _numpy(
            self._map("score", function, as_tensor(x), as_tensor(a), as_tensor(y), cells=self.dim)[
                0
            ]
        )

    def in_support(
        self, theta: np.ndarray, x: np.ndarray, a: np.ndarray, y: np.ndarray
    ) -> np.ndarray:
        """(n,) bool: inside a support that no parameter moves, and of finite log-density at one of
        three settings.

        The second part catches the edges of closed supports (a Beta outcome of exactly 0).
        """
        if self.moving_support:
            return np.ones(len(a), bool)
        with LOCK, torch.no_grad():
            observed = self.run(as_tensor(theta), as_tensor(x), as_tensor(a)).observed
            inside = np.broadcast_to(observed.support.check(as_tensor(y)).numpy(), (len(a),))
        if crossing(observed) is not None:
            # no edges to fall off, and at these settings the cutpoints may be out of order
            return inside
        near = theta + np.array([[0.0], [0.1], [-0.1]]) * np.cos(np.arange(self.dim))
        with np.errstate(invalid="ignore"):
            valid = np.where(inside.reshape(-1, *([1] * (y.ndim - 1))), y, y[np.argmax(inside)])
            logs = self.log_likelihood(near, x, a, valid)
        return inside & (np.isfinite(logs) | np.isnan(logs)).any(axis=0)

    def values(
        self, functional: Functional, theta: np.ndarray, x: np.ndarray, a: np.ndarray
    ) -> np.ndarray:
        if len(a) == 0:
            return np.zeros((len(theta), 0))
        tx, ta = as_tensor(x), as_tensor(a)

        def function(one: torch.Tensor) -> tuple[Any, ...]:
            found: Any = functional(self.row_density(one, tx, ta), x=tx, a=ta)
            return (found.expand(len(a)),)

        return _numpy(
            self._map(("values", functional), function, as_tensor(theta), cells=len(a))[0]
        )

    def values_grad(
        self, functional: Functional, theta: np.ndarray, x: np.ndarray, a: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        if len(a) == 0:
            return np.zeros(0), np.zeros((0, self.dim))

        def function(one: torch.Tensor, x: torch.Tensor, a: torch.Tensor) -> tuple[Any, ...]:
            def value(one: torch.Tensor) -> Any:
                found: Any = functional(
                    self.row_density(one, x[None], a[None]), x=x[None], a=a[None]
                )
                return found.reshape(())

            gradient, result = grad_and_value(value)(one)
            return result, gradient

        value, gradient = self._map(
            ("values_grad", functional), function, as_tensor(theta), as_tensor(x), as_tensor(a)
        )
        return _numpy(value), _numpy(gradient)

    def density(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray, single: bool) -> Density:
        """The density with NumPy arguments, batch (M, n), or (n,) for a single setting."""
        tx, ta = as_tensor(x), as_tensor(a)
        if is_external(self.outline_density):
            return external_density(
                lambda one: self.row_density(as_tensor(one), tx, ta), theta, single
            )
        arrays = self._map(
            "density",
            lambda one: tuple(self.row_density(one, tx, ta).leaves()),
            as_tensor(theta),
            cells=len(a),
        )
        return self.outline_density.rebuild(
            [_numpy(array)[0] if single else _numpy(array) for array in arrays]
        )

    # sums over a history --------------------------------------------------------------------------

    def knows(self, rows: Rows) -> bool:
        return rows in self.histories

    def known_part(self, rows: Rows) -> int:
        return self.histories.known_part(rows)

    def remember(self, rows: Rows) -> tuple[torch.Tensor, ...]:
        """The history as tensors x, a, y. Nothing is compiled here, so nothing is padded."""
        return self.histories.get(
            rows, lambda: (as_tensor(rows.x), as_tensor(rows.a), as_tensor(rows.y))
        )

    def _sum(self, rows: Rows, weights: np.ndarray | None) -> Callable[[Any], Any]:
        x, a, y = self.remember(rows)
        w = (
            torch.ones(rows.n, dtype=torch.float64)
            if weights is None
            else as_tensor(np.asarray(weights, float))
        )

        def total(theta: torch.Tensor) -> Any:
            logs = self.row_log_likelihood(theta, x, a, y)
            return torch.where(w == 0.0, 0.0, w * logs).sum()

        return total

    def total(self, theta: np.ndarray, rows: Rows, weights: np.ndarray | None) -> np.ndarray:
        total = self._sum(rows, weights)
        return _numpy(
            self._map("total", lambda one: (total(one),), as_tensor(theta), cells=rows.n)[0]
        )

    def total_grad(
        self, theta: np.ndarray, rows: Rows, weights: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        total = self._sum(rows, weights)
        gradient, value = self._map(
            "total_grad", lambda one: grad_and_value(total)(one), as_tensor(theta), cells=rows.n
        )
        return _numpy(value), _numpy(gradient)

    def total_hessian(
        self, theta: np.ndarray, rows: Rows, weights: np.ndarray | None
    ) -> np.ndarray:
        return self._hessian("total", self._sum(rows, weights), theta)

    def _hessian(self, kind: str, function: Callable[[Any], Any], theta: np.ndarray) -> np.ndarray:
        """Backward twice: all rows of the Hessian at once where the program allows it, one by
        one otherwise.
        """
        one = as_tensor(theta)
        with LOCK:
            if ("hessian", kind) not in self.vectorised:
                self.vectorised["hessian", kind] = _runs(lambda: jacrev(grad(function))(one))
            if self.vectorised["hessian", kind]:
                out = jacrev(grad(function))(one)
            else:
                out = torch.autograd.functional.hessian(function, one)
        hessian = _numpy(out)
        return (hessian + hessian.T) / 2


def two_settings(array: torch.Tensor) -> torch.Tensor:
    return array[torch.arange(2) % len(array)]


def one_by_one(
    function: Callable[..., Any], batched: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    results = [function(*entry) for entry in zip(*batched)]
    return tuple(torch.stack(column) for column in zip(*results))


def _runs(attempt: Callable[[], Any]) -> bool:
    try:
        attempt()
    except (RuntimeError, NotImplementedError):
        return False
    return True


def vectorises(function: Callable[..., Any], two: list[torch.Tensor]) -> bool:
    """Whether vmap runs and says what a loop says; an error of the program itself comes out of
    the loop.
    """
    slow = one_by_one(function, two)
    try:
        fast = vmap(function)(*two)
    except (RuntimeError, NotImplementedError, ValueError):
        return False
    return all(
        torch.allclose(f, s, rtol=1e-9, atol=1e-12, equal_nan=True) for f, s in zip(fast, slow)
    )


def _depends(constraint: Constraint) -> bool:
    """Whether any number inside a constraint carries a gradient."""
    if isinstance(constraint, torch.Tensor):
        return constraint.requires_grad
    return (
        any(_depends(part) for part in vars(constraint).values())
        if hasattr(constraint, "__dict__")
        else False
    )
