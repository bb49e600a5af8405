"""A finite class of conditional densities: M settings of one program, or of several.

Axis letters: M members, n rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.density import Density
from gedppl.errors import ModelError, OutOfSupportError, ParameterError, ShapeError, SiteClashError
from gedppl.programs.contract import DrawnParams, MemberList, Params
from gedppl.programs.program import ProgramClass
from gedppl.showing import as_html

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from gedppl.functionals import Functional


class FiniteClass(MemberList):
    """M densities. See `gedppl.finite_class`."""

    def __init__(
        self,
        model: Any,
        settings: Sequence[Params] | None = None,
        *,
        example: tuple[Any, Any] | None = None,
        sampled: bool | None = None,
    ) -> None:
        pairs = _pairs(model, settings)
        drawn = any(DrawnParams.include(params) for _, params in pairs)
        if drawn and sampled is False:
            raise ModelError(
                "sampled=False, but these settings were drawn by draw_prior: the truth is none of "
                "them; leave sampled= out, or "
                "list settings that were chosen"
            )
        self.sampled = drawn or bool(sampled)
        self.members: tuple[tuple[Any, Params], ...] = tuple(pairs)
        self.size = len(pairs)
        self._programs: list[ProgramClass] = []  # one for each distinct model
        self._owner = np.empty(len(pairs), np.int64)  # (M,) which program a member belongs to
        known: dict[int, int] = {}
        for m, (program, _) in enumerate(pairs):
            if id(program) not in known:
                known[id(program)] = len(self._programs)
                self._programs.append(
                    program if isinstance(program, ProgramClass) else ProgramClass(program)
                )
            self._owner[m] = known[id(program)]
        self._thetas: list[np.ndarray] = []  # per program, (its members, D)
        if example is not None:
            self.trace(*example)

    def __repr__(self) -> str:
        kind = "draws" if self.sampled else "members"
        return (
            f"finite_class({self.size} {kind} of {len(self._programs)} "
            f"model{'s' if len(self._programs) > 1 else ''})"
        )

    def _repr_html_(self) -> str:
        return as_html(repr(self), {"bounds": self.exactness})

    def trace(self, x: ArrayLike, a: ArrayLike) -> FiniteClass:
        """Run the models on these rows to learn their parameters and check every member; a
        second call looks only at what is new.
        """
        if not self._thetas:
            thetas = []
            for p, program in enumerate(self._programs):
                program.trace(x, a)
                thetas.append(np.stack([self._flatten(program, m) for m in self._of(p)]))
            shapes = {program.event_shape for program in self._programs}
            if len(shapes) > 1:
                raise ShapeError(
                    "the models of one class share an outcome, but theirs have "
                    f"shapes {sorted(shapes)}"
                )
            self._thetas = thetas
            self.reads_by_context = any(program.reads_by_context for program in self._programs)
        else:
            for program in self._programs:
                program.trace(x, a)
        return self

    def _flatten(self, program: ProgramClass, m: int) -> np.ndarray:
        try:
            theta = program.flatten(self.members[m][1])
        except ParameterError as error:
            raise ParameterError(f"member {m}: {error}") from error
        if theta.ndim != 1:
            raise ParameterError(
                f"member {m} holds {len(theta)} settings at once: list them one by one"
            )
        return theta

    def _of(self, p: int) -> np.ndarray:
        return np.flatnonzero(self._owner == p)

    def log_likelihood(
        self, theta: np.ndarray, x: ArrayLike, a: ArrayLike, y: ArrayLike
    ) -> np.ndarray:
        """Per-row log-likelihood of members theta (M,), (M, n); minus infinity where a member's
        model excludes the outcome.
        """
        x, a, y, supported = self._checked(x, a, y)
        out = np.full((self.size, len(a)), -np.inf)
        for p, (program, ok) in enumerate(zip(self._programs, supported)):
            if ok.any():
                logs = program.program.log_likelihood(self._thetas[p], x[ok], a[ok], y[ok])
                out[np.ix_(self._of(p), np.flatnonzero(ok))] = logs
        return np.asarray(out[theta])

    def check_outcomes(
        self, x: ArrayLike, a: ArrayLike, y: ArrayLike
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows that may join a history, as arrays; a named error otherwise."""
        return self._checked(x, a, y)[:3]

    def _checked(
        self, x: ArrayLike, a: ArrayLike, y: ArrayLike
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[np.ndarray]]:
        """The same, and which rows (n,) each program supports."""
        self.trace(x, a)
        rows = self._programs[0].check_shapes(x, a, y)
        for program in self._programs[1:]:
            rows = program.check_shapes(*rows)
        supported = [program.supports(*rows) for program in self._programs]
        ok = np.any(supported, axis=0)
        if not ok.all():
            row = int(np.argmin(ok))
            families = sorted({program.program.family for program in self._programs})
            raise OutOfSupportError(
                f"outcome {rows[2][row]} in row {row} is outside the support of "
                f"{' and of '.join(families)}: no member gives it a "
                "positive density"
            )
        return *rows, supported

    def values(
        self, functional: Functional, theta: np.ndarray, x: ArrayLike, a: ArrayLike
    ) -> np.ndarray:
        """The functional of members theta (M,) at every row, (M, n)."""
        self.trace(x, a)
        out = np.empty((self.size, len(np.atleast_1d(a))))
        for p, program in enumerate(self._programs):
            out[self._of(p)] = program.values(functional, self._thetas[p], x, a)
        return np.asarray(out[theta])

    def density(self, params: int, x: ArrayLike, a: ArrayLike) -> Density:
        """The density of member number `params`, batch (n,)."""
        m = int(params)
        if not 0 <= m < self.size:
            raise ParameterError(f"the class has members 0, ..., {self.size - 1}, got {params}")
        self.trace(x, a)
        p = int(self._owner[m])
        return self._programs[p].density_at(
            self._thetas[p][int(np.searchsorted(self._of(p), m))], x, a
        )

    def way_of(self, functional: Functional, positive: bool) -> int:
        return self._programs[0].way_of(functional, positive)

    def parts(self, x: ArrayLike, a: ArrayLike) -> list[tuple[np.ndarray, Density]]:
        """Members (m,) and their densities, batch (m, n): one pair for each program that the
        class is made of.
        """
        self.trace(x, a)
        return [
            (self._of(p), program.density_at(self._thetas[p], x, a))
            for p, program in enumerate(self._programs)
        ]


def _pairs(model: Any, settings: Sequence[Params] | None) -> list[tuple[Any, Params]]:
    if settings is not None:
        if isinstance(model, list | tuple):
            raise ModelError(
                "pass one model with its settings, or a list of (model, params) and nothing else"
            )
        pairs = [(model, params) for params in settings]
    elif isinstance(model, list | tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 for pair in model
    ):
        pairs = list(model)
    else:
        raise ModelError(
            "a finite class is finite_class(model, [params, ...]) or finite_class([(model, "
            "params), ...]), got "
            f"{type(model).__name__} and no settings"
        )
    if not pairs:
        raise ModelError("a finite class needs at least one member, got none")
    for m, (program, params) in enumerate(pairs):
        if not callable(program) and not isinstance(program, ProgramClass):
            raise ModelError(
                f"member {m}: a model is a function (x, a, y=None), got {type(program).__name__}"
            )
        if not isinstance(params, dict) and not hasattr(params, "keys"):
            raise ParameterError(
                f"member {m}: params must be a dict by site name, got {type(params).__name__}"
            )
    return pairs


def check_site_names(classes: Sequence[ProgramClass]) -> None:
    """Raise `SiteClashError` if different models give one site name different shapes.

    Classes keep their parameters apart, so models may reuse names freely; this is for whoever puts
    the parameters of several models under one roof, by name.
    """
    first: dict[str, tuple[Any, tuple[int, ...]]] = {}
    for cls in classes:
        for site in cls.sites:
            model, shape = first.setdefault(site.name, (cls.model, site.shape))
            if model is not cls.model and shape != site.shape:
                raise SiteClashError(
                    f"site {site.name!r} has shape {shape} in one model and {site.shape} in "
                    "another: rename it in one of them"
                )
