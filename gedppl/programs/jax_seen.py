"""What data see of a NumPyro program: its rows read by `gedppl.programs.forms`, compiled once
for each question.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from gedppl.programs.affine import Level
from gedppl.programs.forms import Reading
from gedppl.programs.jax_affine import levels
from gedppl.programs.jax_reader import JaxArithmetic, listing
from gedppl.programs.links import OUTCOMES, Outcome, Table, link_table
from gedppl.programs.lowering import package_class, strip
from gedppl.programs.row_reading import ReaderOfRows
from gedppl.programs.seen import (
    Refusal,
    Seen,
    Tables,
    n_actions_of,
    narrowest,
    refused,
)
from gedppl.programs.values import Form, Known, Value, Whole
from gedppl.rows import pad, settings_size

if TYPE_CHECKING:
    from gedppl.programs.jax_kernels import JaxKernels

REFERENCES: dict[str, Sequence[Callable[[Any], Any]]] = {
    "logit": (
        jax.nn.sigmoid,
        lambda e: 1 / (1 + jnp.exp(-e)),
        lambda e: jnp.exp(e) / (1 + jnp.exp(e)),
        lambda e: 0.5 * (1 + jnp.tanh(0.5 * e)),
        lambda e: 0.5 * (jnp.tanh(0.5 * e) + 1),
        lambda e: 1 - jax.nn.sigmoid(-e),
        lambda e: jnp.reciprocal(1 + jnp.exp(-e)),
        lambda e: 1 - 1 / (1 + jnp.exp(e)),
    ),
    "probit": (
        jax.scipy.special.ndtr,
        jax.scipy.stats.norm.cdf,
        lambda e: 0.5 * (1 + jax.lax.erf(e / jnp.sqrt(2.0))),
        lambda e: 0.5 * (1 + jax.lax.erf(e * jnp.sqrt(0.5))),
        lambda e: 0.5 * jax.lax.erfc(-e * jnp.sqrt(0.5)),
        lambda e: 0.5 * jax.lax.erfc(-e / jnp.sqrt(2.0)),
    ),
    "softplus": (
        jax.nn.softplus,
        lambda e: jnp.logaddexp(e, 0.0),
        lambda e: jnp.logaddexp(0.0, e),
        lambda e: jnp.log1p(jnp.exp(e)),
        lambda e: jnp.log(1 + jnp.exp(e)),
    ),
    "cloglog": (lambda e: 1 - jnp.exp(-jnp.exp(e)), lambda e: -jnp.expm1(-jnp.exp(e))),
    "loglog": (lambda e: jnp.exp(-jnp.exp(-e)),),
}


@cache
def links() -> Table:
    """The inverse links that are recognised."""

    def read(function: Callable[[Any], Any]) -> Value:
        reading = Reading(JaxArithmetic())
        eta = reading.cut(reading.site("eta", (1,)))
        return reading.read(listing(lambda e: [function(e)], np.zeros(1)), [eta])[0]

    with jax.enable_x64(True):
        return link_table(read, REFERENCES, lambda every: jax.jit(every)())


class JaxRowReader(ReaderOfRows):
    """A NumPyro program's."""

    program: JaxKernels
    arithmetic = JaxArithmetic()

    def __init__(self, program: JaxKernels, outcome: Outcome, n_actions: int | None) -> None:
        self.program, self.outcome, self.n_actions = program, outcome, n_actions
        start = [np.zeros(site.shape) for site in program.sites]
        self.listing = listing(self._arguments, *start, program.x, program.a)
        self.links = links()
        jax.eval_shape(self.note, program.x, program.a)

    def _arguments(self, *values: jax.Array) -> list[Any]:
        *sites, x, a = values
        given = dict(zip((site.name for site in self.program.sites), sites))
        found = self.outcome.arguments(self.program.bare(given, x, a))
        wide = self.outcome.family == "Ordered"
        return [
            jnp.broadcast_to(jnp.asarray(v, float), (1, v.shape[-1]) if wide else (1,))
            for v in found
        ]

    # what is asked --------------------------------------------------------------------------------

    def tables(self) -> Tables:
        x = self.program.x

        def at(a: jax.Array) -> Any:
            reading, found = self.concluded(x, a[None])
            atoms = [[_arrays(one) for one in atom.operands] for atom in reading.atoms]
            cuts = [_arrays(reading.cuts[k]) for k in self.used]
            return atoms, cuts, None if found.unknown is None else _arrays(found.unknown)

        actions = np.arange(self.n_actions or 1)
        atoms, cuts, scale = jax.tree.map(
            np.asarray,
            self.program.call("seen_tables", jax.vmap(at), actions, static=self.n_actions),
        )
        return self.tabled(atoms, cuts, scale)

    def _row(self, x: jax.Array, a: jax.Array) -> list[Any]:
        found = self.concluded(x[None], a[None])[1]
        form = found.predictor
        slots = [form.terms[k].reshape(form.terms[k].shape[0], -1) for k in self.used]
        wide = self.outcome.family == "Ordered"
        together, offset = jnp.concatenate(slots), form.offset.reshape(-1)
        others = [jnp.reshape(one.value, ()) for one in found.others.values()]
        return [together if wide else together[:, 0], offset if wide else offset[0], *others]

    def rows(self, x: np.ndarray, a: np.ndarray) -> list[np.ndarray]:
        return self.program.by_row("seen_rows", jax.vmap(self._row), (x, a), static=self.n_actions)

    def atoms(self, theta: np.ndarray) -> list[np.ndarray]:
        values = self.program.constrain(theta)
        x = self.program.x

        def at(sites: Sequence[jax.Array], a: jax.Array) -> Any:
            return [
                jnp.ravel(value).astype(float) for value in self.read(x, a[None])[0].evaluate(sites)
            ]

        def function(*sites: jax.Array) -> Any:
            actions = jnp.arange(self.n_actions or 1)
            return jax.vmap(lambda *one: jax.vmap(lambda a: at(one, a))(actions))(*sites)

        sites = [pad(values[site.name], settings_size(len(theta))) for site in self.program.sites]
        found = self.program.call("seen_atoms", function, *sites, static=self.n_actions)
        return [np.asarray(part)[: len(theta)] for part in found]

    def is_affine_by_context(self) -> bool:
        if self.outcome.family == "Ordered":
            return False
        found = levels(lambda x, a: self._row(x[0], a[0]), self.program.x, self.program.a)
        return max(found) <= Level.AFFINE


def seen_by_data(program: JaxKernels) -> Seen | Refusal:
    """Coordinates and predictor of a NumPyro program, or why it has none."""
    kind = program.abstractly(lambda *args: package_class(strip(program.run(*args).observed)))
    obstacle = refused(program, kind)
    return (
        narrowest(lambda n: JaxRowReader(program, OUTCOMES[kind], n), n_actions_of(program))
        if obstacle is None
        else obstacle
    )


def _arrays(one: Known | Form | Whole) -> Any:
    return jax.tree.map(jnp.asarray, one.arrays(None))
