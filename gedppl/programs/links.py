"""Which family and link a program's outcome has, from how its arguments were read.

Inverse links are recognised by their operations, never by a function's name: functions that are
known (`references`, and the packages' own) are read like the program, and an expression of one form
counts as a link only if it is one of theirs, step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np

from gedppl.families.one_predictor import TERMS
from gedppl.numerics.arrays import Namespace
from gedppl.programs.forms import Reading
from gedppl.programs.values import (
    Combination,
    Exp,
    Form,
    Known,
    Operands,
    Tail,
    Unknown,
    Value,
)

CANONICAL = {
    "probs": "logit",
    "rate": "log",
    "mean": "log",
    "size": "log",
    "loc": "identity",
    "logits": "logit",
}
LINKS = {  # what the carrying argument may be of the predictor
    "probs": ("logit", "probit", "cloglog", "log", "identity"),
    "rate": ("log", "softplus"),
    "mean": ("log", "identity", "softplus"),
    "size": ("log",),
    "loc": ("identity",),
    "logits": ("logit",),
}
ORDERED = "OrderedLogistic"
# distribution functions F of ordered outcomes, and what 1 - F(-u) is
MIRRORED = {"logit": "logit", "probit": "probit", "cloglog": "loglog", "loglog": "cloglog"}
CLIPS = ("clamp", "max", "min", "clip", "clamp_min", "clamp_max", "maximum", "minimum")


@dataclass(frozen=True)
class Outcome:
    """A packages' class: the family, which kind of argument carries the predictor, how to get
    it, and what else there is.
    """

    family: str
    kind: str
    # distribution -> the carrying argument, then the others
    arguments: Callable[[Any], Sequence[Any]]
    others: tuple[str, ...] = ()


def _of(family: str, kind: str, name: str, *others: str) -> Outcome:
    return Outcome(family, kind, lambda d: [getattr(d, part) for part in (name, *others)], others)


_NEGATIVE_BINOMIAL = "NegativeBinomial"
_BY_MEAN = Outcome(
    _NEGATIVE_BINOMIAL,
    "mean",
    lambda d: [d.concentration / d.rate, d.concentration],
    ("total_count",),
)
OUTCOMES = {
    "Normal": _of("Normal", "loc", "loc", "scale"),
    "LogNormal": _of("LogNormal", "loc", "loc", "scale"),
    "Laplace": _of("Laplace", "loc", "loc", "scale"),
    "Logistic": _of("Logistic", "loc", "loc", "scale"),
    "BernoulliLogits": _of("Bernoulli", "logits", "logits"),
    "BernoulliProbs": _of("Bernoulli", "probs", "probs"),
    "BinomialLogits": _of("Binomial", "logits", "logits", "total_count"),
    "BinomialProbs": _of("Binomial", "probs", "probs", "total_count"),
    "Poisson": _of("Poisson", "mean", "rate"),
    "Exponential": _of("Exponential", "rate", "rate"),
    "Gamma": _of("Gamma", "rate", "rate", "concentration"),
    "Weibull": _of("Weibull", "size", "scale", "concentration"),
    "NegativeBinomialLogits": _of(_NEGATIVE_BINOMIAL, "logits", "logits", "total_count"),
    "NegativeBinomialProbs": _of(_NEGATIVE_BINOMIAL, "probs", "probs", "total_count"),
    # failures before the first success: one success to wait for
    "GeometricLogits": Outcome(
        _NEGATIVE_BINOMIAL, "logits", lambda d: [-d.logits, 1.0], ("total_count",)
    ),
    "GeometricProbs": Outcome(
        _NEGATIVE_BINOMIAL, "probs", lambda d: [1.0 - d.probs, 1.0], ("total_count",)
    ),
    "GammaPoisson": _BY_MEAN,
    "NegativeBinomial2": _BY_MEAN,
    ORDERED: Outcome("Ordered", "logits", lambda d: [d.cutpoints - d.predictor[..., None]]),
    "CategoricalProbs": _of("Ordered", "chances", "probs"),
}
SCALED = ("Normal", "LogNormal")  # families whose scale may be unknown, in closed form
# one number beside the predictor that may be unknown: bounds are profiled over it
NUISANCES = {
    "NegativeBinomial": "total_count",
    "Gamma": "concentration",
    "Weibull": "concentration",
    "Logistic": "scale",
}


@dataclass(frozen=True)
class Affine:
    """An argument's predictor."""

    link: str
    form: Form  # of cuts


def references(xp: Namespace) -> dict[str, list[Callable[[Any], Any]]]:
    """Inverse links by name, in the ways in which they are written out in either backend."""
    root = 2.0**0.5
    return {
        "logit": [
            lambda e: 1 / (1 + xp.exp(-e)),
            lambda e: xp.exp(e) / (1 + xp.exp(e)),
            lambda e: 0.5 * (1 + xp.tanh(0.5 * e)),
            lambda e: 1 - 1 / (1 + xp.exp(e)),
        ],
        "probit": [
            lambda e: 0.5 * (1 + xp.erf(e / root)),
            lambda e: 0.5 * (1 + xp.erf(e * 0.5**0.5)),
            lambda e: 0.5 * xp.erfc(-e * 0.5**0.5),
            lambda e: 0.5 * xp.erfc(-e / root),
        ],
        "softplus": [lambda e: xp.log1p(xp.exp(e)), lambda e: xp.log(1 + xp.exp(e))],
        "cloglog": [lambda e: 1 - xp.exp(-xp.exp(e)), lambda e: -xp.expm1(-xp.exp(e))],
        "loglog": [lambda e: xp.exp(-xp.exp(-e))],
    }


Table = Mapping[tuple[Any, ...], tuple[str, float, float]]
"""Expression -> (link, alpha, beta): its root is alpha * predictor + beta."""


def link_table(
    read: Callable[[Any], Value],
    functions: Mapping[str, Sequence[Any]],
    numbers: Callable[[Callable[[], Any]], Any],
) -> Table:
    """From reference functions by link. `read` reads one of them at one predictor that is a cut
    of its own; `numbers` runs a function that returns arrays.
    """
    found: list[tuple[tuple[Any, ...], str]] = []

    def every() -> list[Any]:
        found.clear()
        roots = []
        for link, references in functions.items():
            for value in map(read, references):
                tail = Operands.of([value]).tails.get(0)
                if tail is not None:
                    found.append((tail.expression, link))
                    roots.append(
                        [
                            next(iter(tail.root.terms.values())).reshape(-1)[0],
                            tail.root.offset.reshape(-1)[0],
                        ]
                    )
        return roots

    return {
        expression: (link, float(alpha), float(beta))
        for (alpha, beta), (expression, link) in zip(numbers(every), found)
    }


@singledispatch
def carried(value: Value, reading: Reading, kind: str, table: Table) -> Affine | Unknown:
    """How an argument of this kind depends on a predictor that is affine in cuts."""
    found = linked(value, reading, kind, table)
    if found is None or found.link not in LINKS[kind]:
        return Unknown(
            f"the predictor comes through none of its links ({', '.join(LINKS[kind])})",
            value.line,
        )
    return found


_by_link = carried.dispatch(object)


@carried.register(Unknown)
def _(value: Unknown, reading: Reading, kind: str, table: Table) -> Unknown:
    return value


@carried.register(Known)
def _(value: Known, reading: Reading, kind: str, table: Table) -> Unknown:
    return Unknown("no parameter moves the outcome's distribution", "")


@carried.register(Form)
def _(value: Form, reading: Reading, kind: str, table: Table) -> Affine | Unknown:
    if value.still:
        return Affine(CANONICAL[kind], reading.cut(_canonical(reading, kind, value)))
    return _by_link(value, reading, kind, table)


@carried.register(Tail)
def _(value: Tail, reading: Reading, kind: str, table: Table) -> Affine | Unknown:
    if value.expression[0].partition("[")[0] in CLIPS:
        return Unknown(
            "a clipped argument is another model: beyond the clip its likelihood no longer falls, "
            "so that its sets are not convex. Drop the clip, and pass logits= instead of probs= "
            "where it was there for rounding",
            value.line,
        )
    return _by_link(value, reading, kind, table)


def _canonical(reading: Reading, kind: str, value: Form) -> Form:
    """A still argument's predictor by its canonical link: the log of a rate, the log-odds of a
    chance. It has one value for each action, so that this is one more value made of theta alone.
    """
    if CANONICAL[kind] == "log":
        return reading.apply(reading.arithmetic.log, "log", value, line=value.line)
    if kind == "probs":
        return reading.apply(reading.arithmetic.logit, "logit", value, line=value.line)
    return value


@singledispatch
def linked(value: Value, reading: Reading, kind: str, table: Table) -> Affine | None:
    """The link that a moving argument comes through, and its predictor; None if none is known."""
    return None


@linked.register(Exp)
def _(value: Exp, reading: Reading, kind: str, table: Table) -> Affine:
    return Affine("log", value.log)


@linked.register(Form)
def _(value: Form, reading: Reading, kind: str, table: Table) -> Affine:
    log = value.log_in(reading) if kind in ("rate", "mean", "size") else None
    if log is not None:
        return Affine("log", log)
    return Affine("logit" if kind == "logits" else "identity", value)


@linked.register(Tail)
def _(value: Tail, reading: Reading, kind: str, table: Table) -> Affine | None:
    if value.expression not in table:
        return None
    link, alpha, beta = table[value.expression]
    root = value.root
    terms = {k: jacobian / alpha for k, jacobian in root.terms.items()}
    return Affine(link, Form(terms, (root.offset - beta) / alpha, False, line=root.line))


# ordered outcomes from the chances of their categories --------------------------------------------

NO_ORDER = (
    "the chances are not the steps of one distribution function F(cutpoints - predictor) between "
    "0 and 1. Ordered categories are exact as OrderedLogistic(predictor, cutpoints), or as "
    "differences of F: compute F(cutpoints - predictor) once, put a 0 before it and a 1 after it "
    "(concatenate), and take differences; F is a sigmoid, a Normal's cdf or 1 - exp(-exp(.)), "
    "without a clip"
)


@singledispatch
def between_edges(value: Value, reading: Reading, table: Table) -> Affine | Unknown:
    """The edges u_k (1, C) with P(y <= k) = F(u_k), from the chances of y = 0, ..., C."""
    return Unknown(NO_ORDER, value.line)


@between_edges.register(Unknown)
def _(value: Unknown, reading: Reading, table: Table) -> Unknown:
    return Unknown(f"{value.why}: {NO_ORDER}", value.line)


@between_edges.register(Combination)
def _(value: Combination, reading: Reading, table: Table) -> Affine | Unknown:
    """Sums of the first k + 1 chances must be a tail's entry, or one less such an entry, and the
    sum of all must be one: that is read off the coefficients, which are numbers.
    """
    lost, terms = Unknown(NO_ORDER, value.line), value.form.terms
    parts = {k: np.cumsum(_by_entry(jacobian), axis=1) for k, jacobian in terms.items()}
    below = np.concatenate(list(parts.values()))  # (entries of tails, C + 1)
    constant = np.cumsum(np.asarray(value.form.offset, float).ravel())
    sign, inner = below.sum(axis=0), below[:, :-1]
    steps = np.all(np.count_nonzero(inner, axis=0) == 1) and np.all(np.abs(sign[:-1]) == 1.0)
    complete = constant[-1] == 1.0 and not below[:, -1].any()
    if not (steps and complete and np.array_equal(constant[:-1], sign[:-1] < 0)):
        return lost
    links, edges = set(), Form({}, 0.0, False, line=value.line)
    for k, part in parts.items():
        found = linked(reading.tails[k], reading, "probs", table)
        if found is None or found.link not in MIRRORED:
            return lost
        rising = part[:, :-1].sum(axis=0)
        links |= {found.link} if np.any(rising > 0) else set()
        links |= {MIRRORED[found.link]} if np.any(rising < 0) else set()
        edges = _plus(edges, found.form, part[:, :-1], reading)
    return Affine(links.pop(), edges) if len(links) == 1 else lost


def _by_entry(jacobian: Any) -> np.ndarray:
    """(size of the tail, size of the value)."""
    return np.asarray(jacobian, float).reshape(len(jacobian), -1)


def _plus(edges: Form, tail: Form, matrix: np.ndarray, reading: Reading) -> Form:
    """edges + tail @ matrix, as a form of cuts: tail (E entries), matrix (E, C)."""
    contracted = reading.arithmetic.contracted
    terms = dict(edges.terms)
    for cut, jacobian in tail.terms.items():
        part = contracted(jacobian.reshape(jacobian.shape[0], 1, -1), matrix)
        terms[cut] = terms[cut] + part if cut in terms else part
    offset = edges.offset + contracted(tail.offset.reshape(1, -1), matrix)
    return Form(terms, offset, False, line=edges.line)


def _mixed(outcome: Outcome, name: str) -> str:
    said = f"the {outcome.family}'s {name} depends on data and parameters together"
    if outcome.family in SCALED:
        return (
            f"{said}. One of its own for each action or group is exact, as an array of parameters "
            "that is transformed first and then indexed by the action or a column of the context"
        )
    return f"{said}; only a known one leaves a convex set"


@dataclass(frozen=True)
class Conclusion:
    """What an outcome's arguments were found to be, at one row."""

    family: str
    link: str
    predictor: Form  # of cuts
    others: dict[str, Known]
    # the scale or nuisance, made of theta alone: still, or entries of cuts that the data pick
    unknown: Form | None
    name: str = ""  # of the unknown argument

    @property
    def verdict(self) -> tuple[str, str, tuple[str, ...], str, str, str]:
        """Family, link and other arguments; nothing to explain; the unknown argument."""
        return self.family, self.link, tuple(self.others), "", "", self.name

    @property
    def used(self) -> list[int]:
        """The cuts of its predictor."""
        return sorted(self.predictor.terms)


def conclude(
    reading: Reading, outcome: Outcome, values: Sequence[Value], table: Table
) -> Conclusion | Unknown:
    """The family, its link and its predictor; or why there is none."""
    found = (
        between_edges(values[0], reading, table)
        if outcome.kind == "chances"
        else carried(values[0], reading, outcome.kind, table)
    )
    if isinstance(found, Unknown):
        return found
    rest, others, unknown, which = Operands.of(values[1:]), {}, None, ""
    for i, name in enumerate(outcome.others):
        form = rest.forms.get(i)
        if i in rest.known:
            others[name] = rest.known[i]
        elif (
            (name == NUISANCES.get(outcome.family) or outcome.family in SCALED)
            and form is not None
            and form.still
        ):
            unknown, which = form, name
        elif outcome.family in SCALED and (picked := reading.picked(rest.every[i])) is not None:
            unknown, which = picked, name
        else:
            return Unknown(_mixed(outcome, name), rest.every[i].line)
    served = outcome.family in SCALED or outcome.family == "Ordered"
    if not served and (outcome.family, found.link) not in TERMS:
        return Unknown(
            f"a {outcome.family} with {found.link} link is not known to leave a convex set",
            found.form.line,
        )
    return Conclusion(outcome.family, found.link, found.form, others, unknown, which)
