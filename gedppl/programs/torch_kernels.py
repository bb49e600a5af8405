"""How questions about a traced Pyro program are run: by `torch.func`, or in a loop where the
program forbids it.

Some distributions write in place or branch on values, which `torch.func.vmap` refuses. Whether a
question can be vectorised is found out the first time it is asked, by comparing both ways on two
entries; `vectorised` holds the answers. Nothing is compiled, so nothing is padded. Axis letters: M
parameter settings, n rows, D parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.func import grad, grad_and_value, jacrev, vmap
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

from gedppl.errors import ContextRangeError
from gedppl.numerics.arrays import namespace_of
from gedppl.programs import LOCK
from gedppl.programs.backend import Many, One
from gedppl.programs.kernels import Kernels
from gedppl.programs.links import Table
from gedppl.programs.torch_reader import TorchArithmetic, links, listing
from gedppl.programs.tracing import MANY, TRIALS, negative_index, trial_rows
from gedppl.programs.values import Listing
from gedppl.rows import Parts, Rows, Slopes, unit_slopes

if TYPE_CHECKING:
    from torch.distributions.constraints import Constraint

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


def _from_the_end(read: torch.Tensor) -> bool:
    return bool(read.numel()) and int(read.min()) < 0


@contextmanager
def inside_arrays() -> Iterator[None]:
    """An index past the end of an array is a context out of range."""
    try:
        yield
    except IndexError as error:
        raise ContextRangeError(
            f"a context is out of range for this model: {error}. Give the model an entry "
            "for it, or clamp the index if the last one is meant"
        ) from error


def as_tensor(array: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(np.array(array))  # a copy: torch warns about read-only views


class TorchKernels(Kernels):
    """Functions over the program's `run`."""

    xp = namespace_of("torch")
    arithmetic = TorchArithmetic()
    values_may_leave = True
    no_graph = (RuntimeError,)
    feasible: Callable[..., np.ndarray]

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
        for context in np.unique(x, axis=0):
            rows = np.flatnonzero(np.all(x == context, axis=1))
            self._answers.get(
                "contexts",
                (theta, x[rows], a[rows]),
                partial(self._check_context, theta, x[rows], a[rows]),
            )

    def _check_context(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> list[np.ndarray]:
        """The same for rows of one context. They are run together first: what reads nothing from
        the end there does not do so row by row.
        """
        if not self.reads_from_the_end(theta, x, a):
            return []
        for i in range(len(a)):
            row, action = x[i : i + 1], a[i : i + 1]
            at_zero = self._indices(theta, 0.0 * row, action) or []
            for here, there in zip(self._indices(theta, row, action) or [], at_zero):
                if _from_the_end(here) and not torch.equal(here, there):
                    raise ContextRangeError(
                        f"context {x[i]} is out of range for this model: "
                        f"{negative_index(int(here.min()))} Give the model an entry for it, or "
                        "clamp the index"
                    )
        return []

    def reads_from_the_end(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> bool:
        together = self._indices(theta, x, a)  # None: one of them lies past the end
        return together is None or any(map(_from_the_end, together))

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
        super().__init__()
        self.vectorised: dict[Hashable, bool] = {}

    def precisely(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def array(self, value: np.ndarray) -> torch.Tensor:
        return as_tensor(value)

    def as_float(self, value: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(value).to(torch.float64)

    def to_numpy(self, value: torch.Tensor) -> np.ndarray:
        found: np.ndarray = value.detach().numpy()
        return found.astype(float) if value.dtype.is_floating_point else found

    def grad(self, function: One) -> One:
        found: One = grad(function)
        return found

    def value_and_grad(self, function: One) -> One:
        both: One = grad_and_value(function)
        return lambda *args: both(*args)[::-1]

    def jacobian(self, function: One) -> One:
        found: One = jacrev(function)
        return found

    def vmap(self, function: Many) -> Many:
        found: Many = vmap(function)
        return found

    def listing(self, function: Many, *args: np.ndarray) -> Listing:
        return listing(function, *map(as_tensor, args))

    def links(self) -> Table:
        return links()

    def example_values(self) -> list[np.ndarray]:
        middle = self.constrain(np.zeros((1, self.dim)))
        return [middle[site.name][0] for site in self.sites]

    def abstractly(self, function: Callable[[Any, Any, Any], Any]) -> Any:
        return function(*map(as_tensor, (np.zeros(self.dim), self.x, self.a)))

    @property
    def moving_support(self) -> bool:
        def find() -> bool:
            theta = torch.zeros(self.dim, dtype=torch.float64, requires_grad=True)
            return _depends(self.run(theta, as_tensor(self.x), as_tensor(self.a)).observed.support)

        return self.fact("moving_support", find)

    # functions over settings and rows -------------------------------------------------------------

    def _map(
        self, kind: Hashable, function: Many, batched: Sequence[np.ndarray], cells: int = 1
    ) -> list[np.ndarray]:
        """function (returning a few tensors) over the leading axis of every argument."""
        tensors = [as_tensor(array) for array in batched]
        with LOCK, inside_arrays():  # every evaluation runs the user's program
            if kind not in self.vectorised:
                self.vectorised[kind] = vectorises(
                    function, [two_settings(tensor) for tensor in tensors]
                )
            if self.vectorised[kind]:
                found = vmap(function, chunk_size=max(1, MAX_CELLS // max(cells, 1)))(*tensors)
            else:
                found = one_by_one(function, tensors)
        return [self.to_numpy(part) for part in found]

    def each_setting(
        self, name: str, one: Many, settings: Sequence[np.ndarray], static: Hashable = None
    ) -> list[np.ndarray]:
        rows = as_tensor(self.x), as_tensor(self.a)
        return self._map(_kind(name, static), lambda *setting: one(*setting, *rows), settings)

    def each_action(self, name: str, one: One, n_actions: int | None) -> Any:
        x = as_tensor(self.x)
        return _as_numpy(vmap(lambda a: one(x, a))(torch.arange(n_actions or 1)))

    def over_settings_and_rows(
        self, name: str, one: Many, theta: np.ndarray, rows: Sequence[np.ndarray], static: Hashable
    ) -> list[np.ndarray]:
        every = [as_tensor(array) for array in rows]
        return self._map(
            _kind(name, static), lambda theta: one(theta, *every), [theta], cells=len(rows[0])
        )

    def over_rows(
        self,
        name: str,
        row: Many,
        rows: Sequence[np.ndarray],
        fixed: Sequence[np.ndarray],
        static: Hashable,
    ) -> list[np.ndarray]:
        same = [as_tensor(array) for array in fixed]
        return self._map(_kind(name, static), lambda *r: row(*same, *r), rows, cells=self.dim)

    def parts_by_row(self, name: str, everything: Many) -> Parts:
        def parts(x: np.ndarray, a: np.ndarray) -> list[np.ndarray]:
            found = everything(as_tensor(x), as_tensor(a))
            return [self.to_numpy(value) for value in found]

        return parts

    def slopes(self, parts: Parts, everything: Many) -> Slopes:
        return unit_slopes(parts)

    # parameters -----------------------------------------------------------------------------------

    def prior_derivatives(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x, a = as_tensor(self.x), as_tensor(self.a)

        def prior(theta: torch.Tensor) -> Any:
            return self.run(theta, x, a).log_prior

        return self.to_numpy(grad(prior)(as_tensor(theta))), self._hessian("prior", prior, theta)

    def drawn(self, around: np.ndarray, seed: int) -> np.ndarray:
        x, a = as_tensor(self.x), as_tensor(self.a)
        with LOCK, torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            every = [self.run(as_tensor(one), x, a, given="draw").free for one in around]
        return np.array([self.to_numpy(self.flat(free)) for free in every]).reshape(around.shape)

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

    def inside(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> np.ndarray:
        with LOCK, torch.no_grad():
            observed = self.run(as_tensor(theta), as_tensor(x), as_tensor(a)).observed
            return np.broadcast_to(observed.support.check(as_tensor(y)).numpy(), (len(a),))

    # sums over a history --------------------------------------------------------------------------

    def remember(self, rows: Rows) -> tuple[torch.Tensor, ...]:
        """The history as tensors x, a, y."""
        return self.histories.get(
            rows, lambda: (as_tensor(rows.x), as_tensor(rows.a), as_tensor(rows.y))
        )

    def history(self, rows: Rows, weights: np.ndarray | None) -> tuple[torch.Tensor, ...]:
        """The same with weights."""
        w = np.ones(rows.n) if weights is None else np.asarray(weights, float)
        return (*self.remember(rows), as_tensor(w))

    def over_history(
        self, name: str, one: Many, theta: np.ndarray, rows: Rows, weights: np.ndarray | None
    ) -> list[np.ndarray]:
        history = self.history(rows, weights)
        return self._map(name, lambda theta: one(theta, *history), [theta], cells=rows.n)

    def hessian_over_history(
        self, theta: np.ndarray, rows: Rows, weights: np.ndarray | None
    ) -> np.ndarray:
        history = self.history(rows, weights)
        return self._hessian("total", lambda theta: self.weighted_sum(theta, *history), theta)

    def _hessian(self, kind: str, function: One, theta: np.ndarray) -> np.ndarray:
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
        hessian = self.to_numpy(out)
        return np.asarray((hessian + hessian.T) / 2)


def _kind(name: str, static: Hashable) -> Hashable:
    return name if static is None else (name, static)


def _as_numpy(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree.detach().numpy()
    if isinstance(tree, dict):
        return {key: _as_numpy(part) for key, part in tree.items()}
    return type(tree)(_as_numpy(part) for part in tree)


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
        return bool(constraint.requires_grad)
    return (
        any(_depends(part) for part in vars(constraint).values())
        if hasattr(constraint, "__dict__")
        else False
    )
