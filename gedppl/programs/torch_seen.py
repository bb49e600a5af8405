"""What data see of a Pyro program: its rows read by `gedppl.programs.forms`, evaluated by torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.func import vmap

from gedppl.programs.affine import Level
from gedppl.programs.forms import Reading
from gedppl.programs.links import OUTCOMES, Outcome, Table, link_table
from gedppl.programs.lowering import package_class
from gedppl.programs.row_reading import ReaderOfRows
from gedppl.programs.seen import (
    Refusal,
    Seen,
    Tables,
    n_actions_of,
    narrowest,
    refused,
)
from gedppl.programs.torch_affine import levels
from gedppl.programs.torch_reader import TorchArithmetic, listing
from gedppl.programs.values import Value

if TYPE_CHECKING:
    from gedppl.programs.torch_kernels import TorchKernels

_ROOT = 2.0**0.5
REFERENCES: dict[str, Sequence[Callable[[Any], Any]]] = {
    "logit": (
        torch.sigmoid,
        lambda e: 1 / (1 + torch.exp(-e)),
        lambda e: torch.exp(e) / (1 + torch.exp(e)),
        lambda e: 0.5 * (1 + torch.tanh(0.5 * e)),
        lambda e: 1 - torch.sigmoid(-e),
    ),
    "probit": (
        lambda e: torch.distributions.Normal(
            torch.tensor(0.0), torch.tensor(1.0), validate_args=False
        ).cdf(e),
        lambda e: torch.special.ndtr(e),
        lambda e: 0.5 * (1 + torch.erf(e / _ROOT)),
        lambda e: 0.5 * (1 + torch.erf(e * 0.5**0.5)),
        lambda e: 0.5 * torch.erfc(-e / _ROOT),
    ),
    "softplus": (
        torch.nn.functional.softplus,
        lambda e: torch.log1p(torch.exp(e)),
        lambda e: torch.log(1 + torch.exp(e)),
    ),
    "cloglog": (lambda e: 1 - torch.exp(-torch.exp(e)), lambda e: -torch.expm1(-torch.exp(e))),
    "loglog": (lambda e: torch.exp(-torch.exp(-e)),),
}


@cache
def links() -> Table:
    """The inverse links that are recognised."""

    def read(function: Callable[[Any], Any]) -> Value:
        reading = Reading(TorchArithmetic())
        eta = reading.cut(reading.site("eta", (1,)))
        return reading.read(
            listing(lambda e: [function(e)], torch.zeros(1, dtype=torch.float64)), [eta]
        )[0]

    return link_table(read, REFERENCES, lambda every: every())


class TorchRowReader(ReaderOfRows):
    """A Pyro program's."""

    program: TorchKernels
    arithmetic = TorchArithmetic()

    def __init__(self, program: TorchKernels, outcome: Outcome, n_actions: int | None) -> None:
        self.program, self.outcome, self.n_actions = program, outcome, n_actions
        self._x, a = torch.as_tensor(np.array(program.x)), torch.as_tensor(np.array(program.a))
        middle = program.constrain(np.zeros((1, program.dim)))
        self.listing = listing(
            self._arguments,
            *(torch.as_tensor(middle[s.name][0]) for s in program.sites),
            self._x,
            a,
        )
        self.links = links()
        self.note(self._x, a)

    def _arguments(self, *values: torch.Tensor) -> list[Any]:
        *sites, x, a = values
        given = dict(zip((site.name for site in self.program.sites), sites))
        found = self.outcome.arguments(self.program.bare(given, x, a))
        tensors = [torch.as_tensor(v).to(torch.float64) for v in found]
        wide = self.outcome.family == "Ordered"
        return [v.expand((1, v.shape[-1]) if wide else (1,)) for v in tensors]

    # what is asked --------------------------------------------------------------------------------

    def _actions(self) -> torch.Tensor:
        return torch.arange(self.n_actions or 1)

    def tables(self) -> Tables:
        scales: list[bool] = []

        def at(a: torch.Tensor) -> Any:
            reading, found = self.concluded(self._x, a[None])
            scales.append(found.unknown is not None)
            atoms = [[one.arrays(a) for one in atom.operands] for atom in reading.atoms]
            return (
                atoms,
                [reading.cuts[k].arrays(a) for k in self.used],
                [] if found.unknown is None else found.unknown.arrays(a),
            )

        atoms, cuts, scale = _as_numpy(vmap(at)(self._actions()))
        return self.tabled(atoms, cuts, scale if scales[0] else None)

    def _row(self, x: torch.Tensor, a: torch.Tensor) -> list[Any]:
        found = self.concluded(x[None], a[None])[1]
        form = found.predictor
        together = torch.cat([form.terms[k].reshape(form.terms[k].shape[0], -1) for k in self.used])
        wide, offset = self.outcome.family == "Ordered", form.offset.reshape(-1)
        others = [one.value.reshape(()).to(torch.float64) for one in found.others.values()]
        return [together if wide else together[:, 0], offset if wide else offset[0], *others]

    def rows(self, x: np.ndarray, a: np.ndarray) -> list[np.ndarray]:
        found = vmap(self._row)(
            torch.as_tensor(np.array(x, float)), torch.as_tensor(np.array(a, np.int64))
        )
        return [part.detach().numpy() for part in found]

    def atoms(self, theta: np.ndarray) -> list[np.ndarray]:
        values = self.program.constrain(theta)

        def at(sites: Sequence[torch.Tensor], a: torch.Tensor) -> Any:
            return [
                value.reshape(-1).to(torch.float64)
                for value in self.read(self._x, a[None])[0].evaluate(sites)
            ]

        sites = [torch.as_tensor(values[site.name]) for site in self.program.sites]
        found = vmap(lambda *one: vmap(lambda a: at(one, a))(self._actions()))(*sites)
        return [part.detach().numpy() for part in found]

    def is_affine_by_context(self) -> bool:
        if self.outcome.family == "Ordered":
            return False
        try:
            found = levels(
                lambda x, a: self._row(x[0], a[0]),
                self._x,
                torch.as_tensor(np.array(self.program.a)),
            )
        except RuntimeError:
            return False
        return max(found) <= Level.AFFINE


def seen_by_data(program: TorchKernels) -> Seen | Refusal:
    """Coordinates and predictor of a Pyro program, or why it has none."""
    x, a = (torch.as_tensor(np.array(part)) for part in (program.x, program.a))
    observed = program.bare(None, x, a)
    kind = package_class(observed)
    # torch keeps what it was given and derives the other lazily
    if kind in ("Bernoulli", "Binomial", "NegativeBinomial", "Categorical"):
        kind += "Logits" if "logits" in vars(observed) else "Probs"
    obstacle = refused(program, kind)
    if obstacle is not None:
        return obstacle
    try:
        return narrowest(
            lambda n: TorchRowReader(program, OUTCOMES[kind], n), n_actions_of(program)
        )
    except RuntimeError as error:
        # the program looks at values while it runs, so it has no fixed graph
        return Refusal(f"it looks at values while it runs ({str(error).splitlines()[0]})")


def _as_numpy(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree.detach().numpy()
    if isinstance(tree, dict):
        return {key: _as_numpy(part) for key, part in tree.items()}
    return type(tree)(_as_numpy(part) for part in tree)
