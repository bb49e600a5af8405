"""What the questions of `gedppl.programs.kernels` ask of a backend.

`JaxKernels` and `TorchKernels` say how a function of one setting or one row is run over many of
them; what runs the program itself, and so knows its PPL, is a level further down (`NumpyroProgram`,
`PyroProgram`).

Axis letters: M parameter settings, n rows, D parameters, A actions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.numerics.arrays import ArrayOf, Namespace
from gedppl.rows import Answers, Histories, Parts, Rows, Slopes

if TYPE_CHECKING:
    from gedppl.programs.contract import Distribution
    from gedppl.programs.links import Table
    from gedppl.programs.tracing import Site
    from gedppl.programs.values import Arithmetic, Listing

Many = Callable[..., Sequence[Any]]  # from the backend's arrays to a few of them
One = Callable[..., Any]


@dataclass(frozen=True)
class Pass:
    """What one run of the program at fixed parameters gives."""

    observed: Any
    # () -> what follows; most questions are about the outcome alone, and to trace a prior's
    # log-density for each of them would take as long as to trace the program
    prior: Callable[[], tuple[Any, Any]]
    log_weight: Any
    values: dict[str, Any]
    free: dict[str, Any]

    @property
    def log_prior(self) -> Any:
        """Of the unconstrained values: the Jacobian included."""
        return self.prior()[0]

    @property
    def log_jacobian(self) -> Any:
        return self.prior()[1]


class Backend(ABC):
    """What differs between JAX and torch, and what the traced program provides."""

    backend: str
    xp: Namespace
    arithmetic: Arithmetic
    values_may_leave: bool  # a program's numbers can leave the graph of its operations
    no_graph: tuple[type[Exception], ...]  # what a program raises that looks at values as it runs
    # what the traced program provides
    run: Callable[..., Pass]
    model: Callable[..., Any]
    sites: tuple[Site, ...]
    dim: int
    x: np.ndarray  # (1, dx) the first row it was run on
    a: np.ndarray
    event_shape: tuple[int, ...]
    unconstrained: bool  # every parameter is its own free value: nothing is transformed
    packaged: bool  # nothing in the outcome is of a class that the packages do not bring
    known_family: bool  # its family is one of ours
    has_cutpoints: bool  # which may be out of order
    discrete: bool
    # of the sites, and what supports say of their entries together
    ranges: dict[str, tuple[float, float, str]]
    assignments: list[dict[str, Any]]  # of the discrete latents that are summed out

    def __init__(self) -> None:
        self.histories = Histories()
        self._answers = Answers()
        self._draws = Answers()  # from the prior
        self._facts: dict[str, Any] = {}

    # the backend's side ---------------------------------------------------------------------------

    @abstractmethod
    def precisely(self) -> AbstractContextManager[Any]:
        """A context in which the backend computes in float64."""

    @abstractmethod
    def quietly(self) -> AbstractContextManager[Any]:
        """The same around a distribution of the program, one thread at a time and unvalidated."""

    @abstractmethod
    def array(self, value: np.ndarray) -> Any:
        """The backend's array with these numbers."""

    @abstractmethod
    def as_float(self, value: ArrayOf) -> Any:
        """The backend's array as float64."""

    @abstractmethod
    def to_numpy(self, value: ArrayOf) -> np.ndarray: ...

    @abstractmethod
    def outcome(self, y: ArrayOf) -> Any:
        """Outcomes of the kind that the program's distribution takes."""

    @abstractmethod
    def supports(self, observed: Distribution, y: ArrayOf) -> Any:
        """Whether outcomes are in a distribution's support."""

    @abstractmethod
    def grad(self, function: One) -> One:
        """Its gradient in the first argument."""

    @abstractmethod
    def value_and_grad(self, function: One) -> One: ...

    @abstractmethod
    def jacobian(self, function: One) -> One:
        """Its Jacobian in the first argument."""

    @abstractmethod
    def listing(self, function: Many, *args: np.ndarray) -> Listing:
        """The operations of a function."""

    @abstractmethod
    def abstractly(self, function: Callable[[Any, Any, Any], Any]) -> Any:
        """What function(theta, x, a) returns at the first row, whatever theta is; its arrays may
        have shapes only.
        """

    @abstractmethod
    def example_values(self) -> list[np.ndarray]:
        """Of every site, some to list a function's operations at."""

    @abstractmethod
    def links(self) -> Table:
        """The inverse links that are recognised."""

    @abstractmethod
    def parts_by_row(self, name: str, everything: Many) -> Parts:
        """everything(x, a), with the rows first in each array, as a function from NumPy to
        NumPy.
        """

    @abstractmethod
    def slopes(self, parts: Parts, everything: Many) -> Slopes:
        """How parts that are affine in the context depend on it."""

    @abstractmethod
    def vmap(self, function: Many) -> Many: ...

    @abstractmethod
    def each_setting(
        self, name: str, one: Many, settings: Sequence[np.ndarray], static: Hashable = None
    ) -> list[np.ndarray]:
        """one(*setting, x, a), with the first row, at every entry of arrays (M, ...)."""

    @abstractmethod
    def each_action(self, name: str, one: One, n_actions: int | None) -> Any:
        """one(x, a), with the first row's context, at every action 0..A-1: a tree of arrays (A,
        ...).
        """

    @abstractmethod
    def over_settings_and_rows(
        self, name: str, one: Many, theta: np.ndarray, rows: Sequence[np.ndarray], static: Hashable
    ) -> list[np.ndarray]:
        """one(theta_m, *rows), with the rows first in each array: arrays (M, n, ...)."""

    @abstractmethod
    def over_rows(
        self,
        name: str,
        row: Many,
        rows: Sequence[np.ndarray],
        fixed: Sequence[np.ndarray],
        static: Hashable,
    ) -> list[np.ndarray]:
        """row(*fixed, *row_i) at every row: arrays (n, ...)."""

    @abstractmethod
    def over_history(
        self, name: str, one: Many, theta: np.ndarray, rows: Rows, weights: np.ndarray | None
    ) -> list[np.ndarray]:
        """one(theta_m, x, a, y, weights) at every setting: arrays (M, ...)."""

    @abstractmethod
    def hessian_over_history(
        self, theta: np.ndarray, rows: Rows, weights: np.ndarray | None
    ) -> np.ndarray:
        """Of `weighted_sum`, (D, D)."""

    @abstractmethod
    def prior_derivatives(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradient and Hessian of the log-prior."""

    @abstractmethod
    def drawn(self, around: np.ndarray, seed: int) -> np.ndarray:
        """around (n, D) with the coordinates of `sample` sites drawn from their priors."""

    @abstractmethod
    def inside(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray, y: np.ndarray) -> np.ndarray:
        """(n,) bool: inside the outcome's support at theta."""

    @abstractmethod
    def action_problem(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> str | None:
        """What an index past the end of an array says at one row, or None."""

    @abstractmethod
    def reads_from_the_end(self, theta: np.ndarray, x: np.ndarray, a: np.ndarray) -> bool:
        """Whether some row reads an entry of an array by a negative index."""

    @abstractmethod
    def remember(self, rows: Rows) -> tuple[Any, ...]:
        """The history in the backend's arrays."""

    @property
    @abstractmethod
    def moving_support(self) -> bool:
        """Whether the support depends on the parameters; its edges are then part of the
        log-likelihood.
        """
