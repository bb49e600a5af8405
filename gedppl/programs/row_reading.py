"""What the readers of both backends have in common: one row of a program, read and concluded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gedppl.programs.forms import Reading
from gedppl.programs.links import Conclusion, Outcome, Table, conclude
from gedppl.programs.seen import AtomTable, StillForm, Tables, Verdict
from gedppl.programs.values import Arithmetic, Array, Atom, Known, Listing, Unknown, Value

if TYPE_CHECKING:
    from gedppl.programs.contract import Kernels


class ReaderOfRows:
    """See `gedppl.programs.seen.RowReader`; a backend adds its arithmetic and how it runs."""

    program: Kernels
    outcome: Outcome
    n_actions: int | None
    arithmetic: Arithmetic
    listing: Listing
    links: Table
    verdict: Verdict
    used: list[int]  # cuts of the predictor
    known_atoms: list[Atom]
    lines: list[str]  # of the cuts

    def read(self, x: Array, a: Array) -> tuple[Reading, Conclusion | Unknown]:
        """One row x (1, dx), a (1,)."""
        reading = Reading(self.arithmetic)
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

    def concluded(self, x: Array, a: Array) -> tuple[Reading, Conclusion]:
        """A row of a program whose verdict is a family."""
        reading, found = self.read(x, a)
        assert isinstance(found, Conclusion)
        return reading, found

    def tabled(self, atoms: Any, cuts: Any, scale: Any) -> Tables:
        """From the arrays of all atoms, of the cuts in use and of an unknown scale, at every
        action.
        """
        return Tables(
            tuple(
                AtomTable(
                    one.name,
                    one.shape,
                    one.low,
                    one.high,
                    one.by_action,
                    tuple(part.table(own, StillForm) for part, own in zip(one.operands, arrays)),
                )
                for one, arrays in zip(self.known_atoms, atoms)
            ),
            tuple(StillForm(part[0], part[1], self.lines[k]) for k, part in zip(self.used, cuts)),
            None if scale is None else StillForm(scale[0], scale[1]),
        )
