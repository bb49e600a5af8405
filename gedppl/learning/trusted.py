"""Draws that a credible limit may rest on: an approximation's, corrected until they stand for the
posterior itself.

Draws of a Laplace approximation or a guide are weighted by posterior / proposal. What the weights
show decides:

    k-hat <= .7 and worth >= 80% of the draws    the weighted draws
    k-hat <= .7 and worth >= 50%                 resampled, and moved by Metropolis steps (`moves`)
    else
        sequential Monte Carlo: from draws of the posterior that there are already, or
                                                 from the prior; where its steps do not go far
                                                 enough, Markov chains

k-hat alone will not do: on a hierarchy of four groups and 24 rows Laplace draws of a scale have
k-hat .5 to .6 and are half a standard deviation off after weighting, being worth less than a fifth
of their number (`benchmarks/posterior.py sbc`). That a posterior has modes which no draw has seen
is beyond all of this.

Axis letters: S draws.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gedppl.learning.draws import (
    LARGEST_KHAT,
    WORN,
    ParameterDraws,
    corrected,
    renewed,
    sample,
    worn,
)
from gedppl.rows import Rows

NEARLY_ALL = 0.8  # share of the draws that weights are worth, from which nothing need be moved


def trusted(
    cls: Any,
    rows: Rows | None,
    draws: ParameterDraws,
    seed: int,
    current: ParameterDraws | None = None,
    fresh: float = 0.0,
) -> ParameterDraws:
    """The draws, found on these rows, or better ones in their place; ``source``, ``khat`` and
    ``ess`` say what they are.

    Parameters
    ----------
    current, fresh
        Draws that are weighted to the posterior of the same rows already, if there are any, and
        what they were worth when new.
    """
    if (
        rows is None
        or rows.n == 0
        or draws.enumerated
        or draws.exact
        or (draws.source == "nuts" or _is_the_prior(draws))
    ):
        return draws
    if draws.source == "smc":
        return draws if draws.ok else _chains(cls, rows, draws, seed)
    weighted = corrected(cls, rows, draws)
    share = (
        weighted.ess / draws.size
        if weighted.log_weights is not None and weighted.khat <= LARGEST_KHAT
        else 0.0
    )
    if share >= NEARLY_ALL:
        return replace(weighted, ok=True)
    found = replace(draws, ok=False)
    if share >= WORN:
        found = renewed(cls, rows, weighted, seed)
    elif current is not None:
        found = renewed(cls, rows, current, seed) if worn(current, fresh) else current
    if found.ok:
        return found
    if current is None or current.source != "nuts":  # steps have failed before
        found = sample(cls, rows, "smc", draws.size, seed)
    why = (
        f"{draws.source} draws are worth {weighted.ess:.0f} of {draws.size} (k-hat "
        f"{weighted.khat:.2f}), so that others stand in"
    )
    found = found if found.ok else _chains(cls, rows, found, seed)
    return replace(found, status=f"{why}: {found.status}")


def _is_the_prior(draws: ParameterDraws) -> bool:
    return draws.source == "prior" and draws.ok


def _chains(cls: Any, rows: Rows, otherwise: ParameterDraws, seed: int) -> ParameterDraws:
    """Markov chains; where they do not settle either, the draws given, which are not `ok`."""
    found = sample(cls, rows, "nuts", otherwise.size, seed)
    return found if found.ok else replace(otherwise, status=f"{otherwise.status}; {found.status}")
