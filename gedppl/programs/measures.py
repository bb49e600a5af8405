"""By what outcomes are measured. A likelihood ratio compares chances with chances and densities
with densities: beside a density of 80 at one, a coin's chance of a half there is no evidence
against the coin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gedppl.density import Density, nested_in
from gedppl.errors import ModelError, NotADensityError
from gedppl.functionals.expectation import parts
from gedppl.numerics.arrays import namespace

COUNTED, DENSE = "chances", "densities"
CLOSE = 1e-4  # of a chance


def measure(density: Density) -> frozenset[str]:
    """What its log-densities are logarithms of: chances of single outcomes, densities, or both."""
    if density.family == "External":
        discrete = getattr(density.args["distribution"].support, "is_discrete", False)
        return frozenset((COUNTED if discrete else DENSE,))
    inner = [measure(part) for value in density.args.values() for part in nested_in(value)]
    own = frozenset((COUNTED,)) if density.family in ("Delta", "ZeroInflated") else frozenset()
    if not inner and not own:
        own = frozenset((COUNTED if density.kind == "discrete" else DENSE,))
    return own.union(*inner)


def check_comparable(first: Sequence[Density], names: Sequence[str]) -> None:
    """Raise if one density of a class counts outcomes where another has a density."""
    found = [measure(density) for density in first]
    other = next((i for i, one in enumerate(found) if one != found[0]), None)
    if other is not None:
        raise ModelError(
            f"{names[0]} gives outcomes {_said(found[0])} and {names[other]} "
            f"{_said(found[other])}: no likelihood can say which of them explains an outcome "
            "better. Use models of one kind: round the outcome and count it, or give all of them "
            "a density"
        )


def _said(one: frozenset[str]) -> str:
    return " and ".join(sorted(one))


def refuse_atoms(density: Density, log_prob: Callable[[np.ndarray], np.ndarray]) -> None:
    """Raise if an outcome's log_prob at one of its atoms is not the logarithm of the chance there:
    the packages add to it the density that another part has at that place, which is no chance, and
    grows without end as that part gets narrower.
    """
    density = density.map_args(namespace(*density.leaves()).to_numpy)
    pieces = parts(density) or [(np.ones(density.batch_shape), density)]
    atoms = [np.asarray(part.args["v"], float) for _, part in pieces if part.family == "Delta"]
    for at in atoms:
        chance = sum(np.exp(part.log_prob(at)) * w for w, part in pieces if _is_counted(part))
        with np.errstate(all="ignore"):
            said = np.exp(np.asarray(log_prob(at), float))
        wrong = np.abs(said - chance) > CLOSE * (1 + chance)
        if np.any(wrong):
            i = int(np.argmax(np.ravel(wrong)))
            where, one, other = (
                np.ravel(np.broadcast_to(v, wrong.shape))[i] for v in (at, said, chance)
            )
            raise NotADensityError(
                f"the outcome {where:g} has the chance {other:.4g}, and the log_prob says "
                f"{one:.4g}: the density that another part of the outcome has at that place is "
                "added to it, or a log_density. Use a part without density there (a LogNormal, a "
                "Gamma with concentration above 1), or two outcomes: whether it is there, and its "
                "size"
            )


def _is_counted(part: Density) -> bool:
    return measure(part) == frozenset((COUNTED,))
