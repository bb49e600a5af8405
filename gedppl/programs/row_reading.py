"""One row of a program, read by `gedppl.programs.forms` and concluded: what a `RowReader` says.

Axis letters: M parameter settings, n rows, A actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.numerics.arrays import Namespace
from gedppl.programs.affine import Level
from gedppl.programs.forms import Reading
from gedppl.programs.links import (
    OUTCOMES,
    Conclusion,
    Outcome,
    Table,
    conclude,
    link_table,
    references,
)
from gedppl.programs.seen import (
    AtomTable,
    Refusal,
    Seen,
    StillForm,
    Tables,
    Verdict,
    n_actions_of,
    narrowest,
    refused,
)
from gedppl.programs.values import Arithmetic, Array, Atom, Known, Listing, Unknown, Value

if TYPE_CHECKING:
    from gedppl.programs.kernels import Kernels


class ReaderOfRows:
    """See `gedppl.programs.seen.RowReader`."""

    verdict: Verdict
    used: list[int]  # cuts of the predictor
    known_atoms: list[Atom]
    lines: list[str]  # of the cuts
    # an argument beside the predictor that theta sets: itself, or the cuts that it is picked from
    has_unknown: bool
    picked: list[int]

    def __init__(
        self, program: Kernels, outcome: Outcome, listing: Listing, n_actions: int | None
    ) -> None:
        self.program, self.outcome, self.listing = program, outcome, listing
        self.n_actions, self.links = n_actions, program.links()
        program.abstractly(lambda _, x, a: self.note(x, a))

    @property
    def wide(self) -> bool:
        """Whether a row has several edges in place of one predictor."""
        return is_wide(self.outcome)

    def read(self, x: Array, a: Array) -> tuple[Reading, Conclusion | Unknown]:
        """One row x (1, dx), a (1,)."""
        reading = Reading(self.program.arithmetic)
        inputs: list[Value] = [
            reading.site(s.name, s.shape, *self.program.ranges[s.name]) for s in self.program.sites
        ]
        inputs += [Known(x, by_row=True), Known(a, by_row=self.n_actions is None, by_action=True)]
        values = reading.read(self.listing, inputs)
        return reading, conclude(reading, self.outcome, values, self.links)

    def note(self, x: Array, a: Array) -> None:
        """Keep what a first reading finds out."""
        reading, found = self.read(x, a)
        self.verdict, self.used = Verdict(*found.verdict), found.used
        self.known_atoms, self.lines = reading.atoms, [form.line for form in reading.cuts]
        unknown = found.unknown
        self.has_unknown = unknown is not None
        self.picked = [] if unknown is None or unknown.still else sorted(unknown.terms)

    def concluded(self, x: Array, a: Array) -> tuple[Reading, Conclusion]:
        """A row of a program whose verdict is a family."""
        reading, found = self.read(x, a)
        assert isinstance(found, Conclusion)
        return reading, found

    # what is asked --------------------------------------------------------------------------------

    def tables(self) -> Tables:
        def at(x: Array, a: Array) -> Any:
            reading, found = self.concluded(x, a[None])
            atoms = [[one.arrays(a) for one in atom.operands] for atom in reading.atoms]
            cuts = [reading.cuts[k].arrays(a) for k in self.used]
            unknown = [reading.cuts[k] for k in self.picked]
            if found.unknown is not None and found.unknown.still:
                unknown = [found.unknown]
            return atoms, cuts, [one.arrays(a) for one in unknown]

        atoms, cuts, unknown = self.program.each_action("seen_tables", at, self.n_actions)
        return Tables(
            tuple(
                AtomTable(
                    one.name,
                    one.shape,
                    one.low,
                    one.high,
                    one.by_action,
                    tuple(part.table(own, StillForm) for part, own in zip(one.operands, arrays)),
                    one.elementary,
                    one.together,
                )
                for one, arrays in zip(self.known_atoms, atoms)
            ),
            tuple(StillForm(part[0], part[1], self.lines[k]) for k, part in zip(self.used, cuts)),
            tuple(StillForm(*part) for part in unknown),
        )

    def _row(self, x: Array, a: Array) -> list[Any]:
        program, found = self.program, self.concluded(x[None], a[None])[1]
        form = found.predictor
        slots = [form.terms[k].reshape(form.terms[k].shape[0], -1) for k in self.used]
        together, offset = program.xp.concatenate(slots), form.offset.reshape(-1)
        others = [program.as_float(one.value).reshape(()) for one in found.others.values()]
        if self.wide:
            return [together, offset, *others]
        return [together[:, 0], offset[0], *others]

    def rows(self, x: np.ndarray, a: np.ndarray) -> list[np.ndarray]:
        return self.program.by_row("seen_rows", self._row, (x, a), static=self.n_actions)

    def picks(self, x: np.ndarray, a: np.ndarray) -> np.ndarray | None:
        if not self.picked:
            return None

        def pick(x: Array, a: Array) -> list[Any]:
            unknown = self.concluded(x[None], a[None])[1].unknown
            assert unknown is not None
            slots = [unknown.terms[k].reshape(-1) for k in self.picked]
            return [self.program.xp.concatenate(slots)]

        (found,) = self.program.by_row("seen_picks", pick, (x, a), static=self.n_actions)
        return np.asarray(found)

    def atoms(self, theta: np.ndarray) -> list[np.ndarray]:
        program, values = self.program, self.program.constrain(theta)

        def one(*args: Array) -> Sequence[Any]:
            *sites, x, _ = args

            def at(a: Array) -> list[Any]:
                found = self.read(x, a[None])[0].evaluate(sites)
                return [program.as_float(value).reshape(-1) for value in found]

            return program.vmap(at)(program.xp.arange(self.n_actions or 1))

        sites = [values[site.name] for site in program.sites]
        return program.each_setting("seen_atoms", one, sites, static=self.n_actions)

    def is_affine_by_context(self) -> bool:
        if self.wide or self.picked:  # at contexts made up for it an array may have no entry
            return False
        found = self.program.levels(
            lambda x, a: self._row(x[0], a[0]), self.program.x, self.program.a
        )
        return max(found) <= Level.AFFINE


def is_wide(outcome: Outcome) -> bool:
    return outcome.family == "Ordered"


def arguments_of(program: Kernels, outcome: Outcome) -> Listing:
    """The steps from sites, x (1, dx) and a (1,) to the arguments of a row's outcome."""

    def arguments(*values: Array) -> list[Any]:
        *sites, x, a = values
        given = dict(zip((site.name for site in program.sites), sites))
        found = outcome.arguments(program.bare(given, x, a))
        wide = is_wide(outcome)
        return [
            program.xp.broadcast_to(program.as_float(v), (1, v.shape[-1]) if wide else (1,))
            for v in found
        ]

    return program.listing(arguments, *program.example_values(), program.x, program.a)


def seen_by_data(program: Kernels) -> Seen | Refusal:
    """Coordinates and predictor of a program, or why it has none."""
    kind = program.outcome_kind()
    obstacle = refused(program, kind)
    if obstacle is not None:
        return obstacle
    outcome = OUTCOMES[kind]
    try:
        listing = arguments_of(program, outcome)
        return narrowest(
            lambda n: ReaderOfRows(program, outcome, listing, n), n_actions_of(program)
        )
    except program.no_graph as error:
        return Refusal(f"it looks at values while it runs ({str(error).splitlines()[0]})")


def recognised(
    arithmetic: Arithmetic,
    xp: Namespace,
    packaged: Mapping[str, list[Callable[[Any], Any]]],
    listing: Callable[..., Listing],
    run: Callable[[Callable[[], Any]], Any],
) -> Table:
    """The inverse links that are known when they are read: those written out, and the backend's
    own. `listing` lists a function's steps, `run` runs a function of no arguments.
    """

    def read(function: Callable[[Any], Any]) -> Value:
        reading = Reading(arithmetic)
        eta = reading.cut(reading.site("eta", (1,)))
        steps = listing(lambda e: [function(e)], arithmetic.identity((1,))[0])
        return reading.read(steps, [eta])[0]

    known = {name: [*packaged.get(name, ()), *more] for name, more in references(xp).items()}
    return link_table(read, known, run)
