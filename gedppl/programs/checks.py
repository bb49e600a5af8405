"""What a program's sites must look like, said once for both backends."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from gedppl.errors import (
    CutpointsError,
    FactorError,
    ModelError,
    NoObservedSiteError,
    OutcomeUsedError,
    RowLatentError,
    SeveralObservedSitesError,
    SiteClashError,
    SubsampledPlateError,
)
from gedppl.programs.tracing import Site

if TYPE_CHECKING:
    from gedppl.programs.contract import Distribution

Shape = tuple[int, ...]

# free cutpoints cross in half of the draws, or more
CUTPOINT_DRAWS, MOST_CROSSED = 32, 0.375


@dataclass
class SiteRecord:
    """One site of one run."""

    name: str
    kind: str  # "param", "sample", "plate", "factor" or "control_flow"
    value: Any = None
    fn: Any = None  # a sample site's distribution
    observed: bool = False
    scaled: bool = False
    masked: bool = False
    discrete: bool = False
    # the values a discrete latent can take, if they are finitely many
    outcomes: np.ndarray | None = None
    subsampled: bool = False
    shapes: tuple[Shape, ...] = ()  # of the value, or of each array in a module's value
    free_shapes: tuple[Shape, ...] = ()  # the same unconstrained
    constraint: Any = None
    # of the value's entries, by the constraint, and what it says of them together
    range: tuple[float, float, str] = (-math.inf, math.inf, "")
    unconstrained: bool = False  # any real number is allowed: the value is its own free form
    sees_y: bool = False  # whether the value is the very y that the program was called with


@dataclass(frozen=True)
class Outline:
    """A program that can serve as a density class."""

    observed: str
    observed_fn: Any
    event_shape: Shape
    parameters: list[SiteRecord]
    enumerated: list[SiteRecord]  # discrete latents drawn once a row, summed out exactly


def is_discrete(fn: Distribution) -> bool:
    return bool(getattr(fn.support, "is_discrete", False))


def assignments(enumerated: list[SiteRecord]) -> list[dict[str, Any]]:
    """Every combination of values of the discrete row latents; one empty combination if there
    are none.
    """
    values = [() if site.outcomes is None else site.outcomes for site in enumerated]
    return [
        dict(zip((site.name for site in enumerated), combination))
        for combination in product(*values)
    ]


def analyse(
    run: Callable[..., tuple[list[SiteRecord], Exception | None]],
    x: np.ndarray,
    a: np.ndarray,
    *,
    params_may_repeat: bool = False,
) -> Outline:
    """Run the program on two and on three rows, and sort its sites: what follows n belongs to a
    row, the rest is shared.

    `params_may_repeat`: Pyro reads a parameter from its store as often as a module asks; NumPyro's
    names are unique.
    """
    two, three = _sites_of(run, x, a, 2), _sites_of(run, x, a, 3)
    _refuse_structure(two)
    observed = _the_observed(two)
    wider = _the_observed(three)
    if observed.name != wider.name:
        raise ModelError(
            f"the observed site's name depends on the rows: {observed.name!r} and "
            f"{wider.name!r}; give it one name"
        )
    event_shape = _event_shape(observed, wider)
    others = _unique(
        [s for s in two if s.kind in ("param", "sample") and not s.observed], params_may_repeat
    )
    shapes3 = {site.name: site.shapes for site in three}
    parameters, enumerated = [], []
    for site in others:
        if site.name not in shapes3:
            raise ModelError(
                f"site {site.name!r} appears with two rows and not with three: sites "
                "must not depend on the rows"
            )
        if site.name == observed.name:
            raise SiteClashError(
                f"{site.name!r} names the observed site and another one: rename one of them"
            )
        if site.shapes != shapes3[site.name]:
            _refuse_row_site(site, shapes3[site.name])
            enumerated.append(site)
        elif site.discrete:
            raise ModelError(
                f"{site.name!r} is a discrete latent shared by all rows, so theta would not be a "
                "real vector: make it a "
                "finite_class of one setting a value, or draw it once a row"
            )
        else:
            parameters.append(site)
    return Outline(observed.name, observed.fn, event_shape, parameters, enumerated)


def _sites_of(run: Callable[..., Any], x: np.ndarray, a: np.ndarray, n: int) -> list[SiteRecord]:
    take = np.arange(n) % len(a)
    records: list[SiteRecord]
    records, failure = run(x[take], a[take])
    if failure is not None:
        raise ModelError(
            f"the model raised {type(failure).__name__} when it was run with {n} rows: {failure}"
        ) from failure
    return records


def _refuse_structure(sites: list[SiteRecord]) -> None:
    for site in sites:
        if site.kind == "factor":
            raise FactorError(
                f"factor {site.name!r} adds to the log-density without being a density: write the "
                "outcome's distribution "
                "in the observed site instead (or register a distribution with its own log_prob)"
            )
        if site.kind == "control_flow":
            raise ModelError(
                f"site {site.name!r} is a control-flow primitive: rows are independent here, so "
                "write the model without scan"
            )
        if site.subsampled:
            raise SubsampledPlateError(
                f"plate {site.name!r} subsamples its rows, which would rescale the likelihood: "
                "drop subsample_size"
            )
        if site.scaled:
            raise ModelError(
                f"site {site.name!r} is scaled by a handler, so its log-density is "
                "not one: drop the scale handler"
            )
        if site.masked:
            raise ModelError(
                f"site {site.name!r} is masked, so some of its log-density would count for "
                "nothing: drop the mask, and drop "
                "rows that should not count"
            )


def _the_observed(sites: list[SiteRecord]) -> SiteRecord:
    observed = [site for site in sites if site.kind == "sample" and site.observed]
    names = [site.name for site in observed]
    if not observed:
        raise NoObservedSiteError(
            "the model has no observed site: pass obs=y to the sample statement of the outcome"
        )
    if len(observed) > 1:
        raise SeveralObservedSitesError(
            f"the model observes {names}, but a density class has one outcome: keep the site with "
            "obs=y, and give each "
            "further outcome a class of its own (Constraint takes its own class)"
        )
    if not observed[0].sees_y:
        raise ModelError(
            f"the observed site {names[0]!r} observes a transform of y, which leaves out its "
            "Jacobian: pass obs=y itself "
            "and transform the distribution (for example LogNormal instead of Normal on log y)"
        )
    return observed[0]


def _event_shape(two: SiteRecord, three: SiteRecord) -> Shape:
    event, event3 = tuple(two.fn.event_shape), tuple(three.fn.event_shape)
    batch, batch3 = tuple(two.fn.batch_shape), tuple(three.fn.batch_shape)
    if event != event3:
        raise ModelError(
            f"the observed site {two.name!r} has event shape {event} with two rows and {event3} "
            "with three, so the rows are "
            "one joint event: drop to_event over the rows"
        )
    if len(event) > 1:
        raise ModelError(
            f"outcomes are numbers or vectors, but the observed site {two.name!r} has "
            f"event shape {event}"
        )
    if batch not in ((), (1,), (2,)) or batch3 not in ((), (1,), (3,)):
        raise ModelError(
            f"the observed site {two.name!r} has batch shape {batch} with two rows and {batch3} "
            "with three, where (n,) is "
            "needed: its arguments must be (n,), one value a row (x is (n, dx): has a column been "
            "kept as (n, 1)?)"
        )
    return event


def _unique(sites: list[SiteRecord], params_may_repeat: bool) -> list[SiteRecord]:
    """Each site once; a name with two meanings is an error."""
    first: dict[str, SiteRecord] = {}
    for site in sites:
        before = first.setdefault(site.name, site)
        again = (
            params_may_repeat
            and before.kind == site.kind == "param"
            and before.shapes == site.shapes
        )
        if before is not site and not again:
            raise SiteClashError(
                f"the name {site.name!r} stands for two sites, a {before.kind} of shape "
                f"{before.shapes} and a {site.kind} of "
                f"shape {site.shapes}: give each its own name (handlers.scope prefixes those of a "
                "submodel)"
            )
    return list(first.values())


def _refuse_row_site(site: SiteRecord, wider: tuple[Shape, ...]) -> None:
    if site.kind == "param":
        raise ModelError(
            f"parameter {site.name!r} has one value a row (shapes {site.shapes} and {wider} with "
            "two and three rows), so it "
            "would grow with the history: index it by action instead"
        )
    if not site.discrete:
        raise RowLatentError(
            f"{site.name!r} is a continuous latent drawn once a row, so the outcome's density has "
            "no closed form: integrate "
            "it out by hand (Gamma-Poisson is NegativeBinomial, Normal-Normal is a wider Normal), "
            "or draw it once for all "
            "rows, outside the plate"
        )
    if site.outcomes is None:
        raise ModelError(
            f"{site.name!r} is a discrete latent with infinite support, or with values that differ "
            "from row to row, drawn once "
            "a row, so it cannot be summed out"
        )
    if site.shapes != ((2,),):
        raise ModelError(
            f"discrete latent {site.name!r} has shape {site.shapes[0]} for two rows; only one "
            "value a row, shape (n,), can be "
            "summed out: use one site for each"
        )


def refuse_crossing(program: Any, prior_free: bool) -> None:
    """Raise if the prior lets cutpoints cross as if nothing kept them in order. Where they seldom
    do, or have no prior, such parameters count as having no density.
    """
    if prior_free or not program.has_cutpoints:
        return
    draws = np.asarray(program.draw_prior(CUTPOINT_DRAWS, 0, np.zeros(program.dim)), float)
    crossed = sum(program.crosses(theta) for theta in draws)
    if crossed >= MOST_CROSSED * CUTPOINT_DRAWS:
        raise CutpointsError(
            f"the cutpoints cross in {crossed} of {CUTPOINT_DRAWS} draws from the prior, which "
            "makes a chance negative and leaves no density: draw them through "
            "TransformedDistribution(..., OrderedTransform()), or as a first one plus a cumsum of "
            "positive steps"
        )


def refuse_unsteady(differs: bool) -> None:
    """Raise if the densities are others when the same program is run on the same rows again."""
    if differs:
        raise ModelError(
            "the model gives another density each time that it is run on the same rows: it draws "
            "random numbers, counts its calls or changes what it reads. Draw or compute such "
            "numbers once, outside the model"
        )


def refuse_outcome_use(depends: bool, differs: bool, name: str) -> None:
    """Raise if the densities depend on y, or on whether y is given."""
    if depends:
        raise OutcomeUsedError(
            f"the distribution of {name!r}, or a prior, is computed from y itself, so it says "
            "nothing of y before y is known: "
            "use y in obs=y only (an earlier outcome that predicts this one belongs in the context "
            "x)"
        )
    if differs:
        raise OutcomeUsedError(
            f"the distribution of {name!r}, or a prior, is another one when y is given than when y "
            "is None: the model must say "
            "the same of an outcome before and after it is seen; drop the branch on y"
        )


def name_sites(
    arrays: list[tuple[str, str, bool, Shape, Shape]],
) -> tuple[tuple[Site, ...], dict[str, list[Site]]]:
    """Sites in the flat vector, in order, from (owner, suffix, has a prior, shape, unconstrained
    shape).
    """
    sites: list[Site] = []
    groups: dict[str, list[Site]] = {}
    start = 0
    for owner, suffix, prior, shape, free_shape in arrays:
        stop = start + math.prod(free_shape)
        name = f"{owner}/{suffix}" if suffix else owner
        if any(site.name == name for site in sites):
            raise SiteClashError(
                f"two parameters are called {name!r}: rename the module or the site"
            )
        site = Site(name, prior, tuple(shape), tuple(free_shape), start, stop)
        sites.append(site)
        groups.setdefault(owner, []).append(site)
        start = stop
    return tuple(sites), groups
