"""A finite class of conditional densities: M settings of one program, or of several.

Axis letters: M members, n rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.density import Density
from gedppl.errors import ModelError, OutOfSupportError, ParameterError, ShapeError, SiteClashError
from gedppl.families.one_predictor import FAMILIES
from gedppl.programs.contract import DrawnParams, MemberList, Params
from gedppl.programs.measures import check_comparable
from gedppl.programs.program import ProgramClass
from gedppl.rows import Kept, outcomes_of
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
        self._parts: Kept[list[Part]] = Kept()
        self._logs: Kept[tuple[np.ndarray, np.ndarray]] = Kept()
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
            check_comparable(
                [
                    program.density_at(theta[0], np.asarray(x)[:1], np.asarray(a)[:1])
                    for program, theta in zip(self._programs, thetas)
                ],
                [f"member {m}" for m in self.examples],
            )
            self._thetas = thetas
            self.reads_by_context = any(program.reads_by_context for program in self._programs)
        elif self._parts.small(rows := (np.asarray(x, float), np.asarray(a))):
            self._known(*rows)
        else:
            self._look(x, a)
        return self

    def reads_from_the_end(self, x: ArrayLike, a: ArrayLike) -> bool:
        return any(program.reads_from_the_end(x, a) for program in self._programs)

    def _look(self, x: ArrayLike, a: ArrayLike) -> None:
        for program in self._programs:
            program.trace(x, a)

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

    @property
    def examples(self) -> Sequence[int]:
        return [int(self._of(p)[0]) for p in range(len(self._programs))]

    def _of(self, p: int) -> np.ndarray:
        return np.flatnonzero(self._owner == p)

    def log_likelihood(
        self, theta: np.ndarray, x: ArrayLike, a: ArrayLike, y: ArrayLike
    ) -> np.ndarray:
        """Per-row log-likelihood of members theta (M,), (M, n); minus infinity where a member's
        model excludes the outcome.
        """
        return np.asarray(self._checked(x, a, y)[3][theta])

    def check_outcomes(
        self, x: ArrayLike, a: ArrayLike, y: ArrayLike
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows that may join a history, as arrays; a named error otherwise."""
        return self._checked(x, a, y)[:3]

    def _checked(
        self, x: ArrayLike, a: ArrayLike, y: ArrayLike
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The same, and the log-likelihoods of all members, (M, n)."""
        self._known(x, a)  # looks at the rows
        x, a = np.asarray(x, float), np.asarray(a).astype(np.int64)
        y = outcomes_of(y, len(a), self._programs[0].event_shape)
        logs, ok = self._logs.get("logs", (x, a, y), lambda: self._log_likelihoods(x, a, y))
        if not ok.all():
            row = int(np.argmin(ok))
            families = sorted({program.program.family for program in self._programs})
            raise OutOfSupportError(
                f"outcome {y[row]} in row {row} is outside the support of "
                f"{' and of '.join(families)}: no member gives it a "
                "positive density"
            )
        return x, a, y, logs

    def _log_likelihoods(
        self, x: np.ndarray, a: np.ndarray, y: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of every member (M, n), and which rows (n,) some program supports."""
        out, possible = np.full((self.size, len(a)), -np.inf), np.zeros(len(a), bool)
        for part, program, thetas in zip(self._known(x, a), self._programs, self._thetas):
            if part.log_prob is not None and part.density is not None:
                ok = np.isfinite(part.density.log_prob(y)).any(axis=0)
                if not ok.all():
                    ok |= program.supports(x, a, y)
                out[part.members] = np.where(ok, part.log_prob(y), -np.inf)
            else:
                ok = program.supports(x, a, y)
                logs = program.program.log_likelihood(thetas, x[ok], a[ok], y[ok])
                out[np.ix_(part.members, np.flatnonzero(ok))] = logs
            possible |= ok
        return out, possible

    def values(
        self, functional: Functional, theta: np.ndarray, x: ArrayLike, a: ArrayLike
    ) -> np.ndarray:
        """The functional of members theta (M,) at every row, (M, n)."""
        out = np.empty((self.size, len(np.atleast_1d(a))))
        for part, program, thetas in zip(self._known(x, a), self._programs, self._thetas):
            density = None if part.log_prob is None else part.density
            if density is not None and functional.is_formula(density):
                found: Any = functional(density, np.asarray(x, float), np.asarray(a))
            else:
                found = program.values(functional, thetas, x, a)
            out[part.members] = found
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
        return [
            (
                part.members,
                program.density_at(theta, x, a) if part.density is None else part.density,
            )
            for part, program, theta in zip(self._known(x, a), self._programs, self._thetas)
        ]

    def _known(self, x: ArrayLike, a: ArrayLike) -> list[Part]:
        """By program, at rows that have been looked at once."""
        asked = np.asarray(x, float), np.asarray(a)
        return self._parts.get("parts", asked, lambda: self._found(x, a))

    def _found(self, x: ArrayLike, a: ArrayLike) -> list[Part]:
        self._look(x, a) if self._thetas else self.trace(x, a)
        return [
            part_of(program, self._of(p), self._thetas[p], x, a)
            for p, program in enumerate(self._programs)
        ]


@dataclass(frozen=True)
class Part:
    """Members (m,) of one program at rows: their densities, batch (m, n)."""

    members: np.ndarray
    density: Density | None  # None: only its PPL knows it, one setting at a time
    # outcomes (n,) -> (m, n), where that is a formula for NumPy; None: the program has to be asked
    log_prob: Callable[[np.ndarray], np.ndarray] | None


def part_of(
    cls: ProgramClass, members: np.ndarray, theta: np.ndarray, x: ArrayLike, a: ArrayLike
) -> Part:
    """At theta (m, D)."""
    predictor, program = cls.predictor, cls.program
    if predictor is None:
        alone = len(theta) == 1
        density = cls.density_at(theta, x, a) if program.known_family or alone else None
        # chances near one, made of logits, are rounded to one
        rounded = program.outcome_kind().endswith("Logits")
        known = program.known_family and program.packaged and not program.has_cutpoints
        quick = known and not program.moving_support and not rounded
        return Part(members, density, None if density is None or not quick else density.log_prob)
    x, a = cls.check_rows(x, a)
    family, fixed = FAMILIES[predictor.family, predictor.link], predictor.fixed(x, a)
    eta = theta @ predictor.features(x, a).T + predictor.offset(x, a)

    def log_prob(y: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            value = family.terms(eta, y, fixed)[0]
        return np.where(family.inside_domain(eta), value, -np.inf)

    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        arguments = family.arguments(eta, fixed)
    density = Density(predictor.family, arguments)
    return Part(members, density, log_prob)


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
