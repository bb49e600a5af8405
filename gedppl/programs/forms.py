"""What the data see of the parameters: a program read operation by operation, as affine forms of
values made of theta alone.

One row of the program is listed by a backend as plain steps. Reading it, every value is one of

    Known     free of theta
    Form
        offset + sum_k J_k . k, affine; a *still* form depends on theta and the action alone, not on
        the context
    Exp       the exponential of a form
    Tail      elementwise operations on one form and constants: an inverse link, if a table knows it
    Whole     whole numbers or truth values made of theta alone
    Unknown   anything else, with the place where it came up

Still values that are not affine in earlier ones become *atoms*. Where a still form first meets the
context it is *cut*: what comes after is affine in cuts, so that a predictor is features(x, a) .
cuts(theta, a) + offset(x, a). No derivative is taken and nothing is tried out: where the reading
succeeds it is the proof. An operation without a rule gives Unknown.

Products that stay affine, with t, f, g still and t one number: (sum_k J_k k + o) t = sum_k J_k (t
k) + o t; (c f) g = c (f g).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gedppl.programs.form_values import (
    Arithmetic,
    Array,
    Atom,
    Exp,
    Form,
    Known,
    Listing,
    Step,
    Tail,
    Terms,
    Unknown,
    Value,
    Whole,
)

NONNEGATIVE = ("exp", "logistic", "sigmoid", "sqrt", "square", "abs", "softplus")
ELEMENTARY = ("log", "exp")
ADDING = ("add", "add_any", "reduce_sum", "cumsum", "concatenate", "sum", "cat", "stack")


@dataclass
class Reading:
    """One reading of a listing; atoms and cuts come in the same order in every reading of it."""

    arithmetic: Arithmetic
    atoms: list[Atom] = field(default_factory=list)
    cuts: list[Form] = field(default_factory=list)
    _cut_of: dict[int, int] = field(default_factory=dict)

    def site(
        self, name: str, shape: tuple[int, ...], low: float = -np.inf, high: float = np.inf
    ) -> Form:
        self.atoms.append(Atom(name, shape, low, high, False))
        return self._atom_form()

    def _atom_form(self) -> Form:
        atom = self.atoms[-1]
        jacobian = self.arithmetic.identity(atom.shape)
        terms = {len(self.atoms) - 1: jacobian}
        return Form(
            terms,
            self.arithmetic.zeros(jacobian[0]),
            True,
            atom.by_action,
            atom.low,
            atom.high,
            True,
            line=atom.name,
        )

    def read(self, listing: Listing, inputs: Sequence[Value]) -> list[Value]:
        values: dict[int, Value] = {key: Known(value) for key, value in listing.constants.items()}
        values.update(zip(listing.inputs, inputs))
        for step in listing.steps:
            found = self.step(step, [values[key] for key in step.inputs])
            values.update(zip(step.outputs, found))
        return [values[key] for key in listing.outputs]

    def step(self, step: Step, operands: list[Value]) -> list[Value]:
        if any(isinstance(one, Unknown) for one in operands):
            lost = next(one for one in operands if isinstance(one, Unknown))
            return [lost] * len(step.outputs)
        known = [one for one in operands if isinstance(one, Known)]
        if len(known) == len(operands):
            return self._known(step, known)
        by_row = any(
            isinstance(one, Exp | Tail) or (isinstance(one, Known) and one.by_row)
            for one in operands
        )
        by_row |= any(isinstance(one, Form) and not one.still for one in operands)
        if not by_row:
            return self._still(step, operands)
        if any(isinstance(one, Whole) for one in operands):
            return self._lost(
                step, "a whole number or truth value made of parameters meets the data"
            )
        return self._moving(step, operands)

    def _known(self, step: Step, operands: list[Known]) -> list[Value]:
        by_row, by_action = (
            any(getattr(one, name) for one in operands) for name in ("by_row", "by_action")
        )
        values = [one.value for one in operands]
        found = (
            step.run(*values)
            if by_row or by_action
            else self.arithmetic.constant(step.run, *values)
        )
        return [Known(value, by_row, by_action) for value in found]

    @staticmethod
    def _lost(step: Step, why: str) -> list[Value]:
        return [Unknown(why, step.line)] * len(step.outputs)

    # theta alone ----------------------------------------------------------------------------------

    def _still(self, step: Step, operands: Sequence[Value]) -> list[Value]:
        if self._is_linear(step, operands) and all(step.real):
            low, high = _range(step, operands)
            return [
                replace(form, low=low, high=high)
                for form in self._linear(step, operands, still=True)
            ]
        return self._opaque(step, operands)

    def _opaque(self, step: Step, operands: Sequence[Value]) -> list[Value]:
        """A new atom for each output."""
        by_action = any(one.by_action for one in operands if isinstance(one, Known | Form | Whole))
        low, high = _range(step, operands)
        used = tuple(one for one in operands if isinstance(one, Known | Form | Whole))
        # shapes come from running the step on offsets: numbers do not matter
        found: list[Value] = []
        sample = step.run(*[self._stand_in(one) for one in used])
        for i, (value, real) in enumerate(zip(sample, step.real)):
            name = (
                f"{step.name.partition('[')[0]} at {step.line}"
                if step.line
                else step.name.partition("[")[0]
            )
            elementary = step.rule if step.rule in ELEMENTARY and len(used) == 1 else ""
            self.atoms.append(
                Atom(name, tuple(value.shape), low, high, by_action, step.run, used, i, elementary)
            )
            found.append(self._atom_form() if real else Whole(len(self.atoms) - 1, by_action))
        return found

    def _stand_in(self, one: Known | Form | Whole) -> Array:
        if isinstance(one, Known):
            return one.value
        if isinstance(one, Form):
            return one.offset
        atom = self.atoms[one.atom]
        assert atom.run is not None
        return atom.run(*[self._stand_in(part) for part in atom.operands])[atom.output]

    def apply(self, run: Callable[..., Array], name: str, *operands: Form, line: str = "") -> Form:
        """A still form computed from still forms by an operation that is not the program's own."""
        rule = name if name in ELEMENTARY else ""
        step = Step(name, lambda *values: (run(*values),), (), (-1,), (True,), rule, line=line)
        (found,) = self._opaque(step, operands)
        assert isinstance(found, Form)
        return found

    def evaluate(self, sites: Sequence[Array]) -> list[Array]:
        """Every atom's value at the sites' values; actions are those of the reading."""
        values: list[Array] = list(sites)
        for atom in self.atoms[len(sites) :]:
            assert atom.run is not None
            values.append(atom.run(*[self._at(one, values) for one in atom.operands])[atom.output])
        return values

    def _at(self, one: Known | Form | Whole, values: list[Array]) -> Array:
        if isinstance(one, Known):
            return one.value
        if isinstance(one, Whole):
            return values[one.atom]
        out = one.offset
        for k, jacobian in one.terms.items():
            out = out + self.arithmetic.total(jacobian, values[k])
        return out

    # affine steps ---------------------------------------------------------------------------------

    @staticmethod
    def _is_linear(step: Step, operands: Sequence[Value]) -> bool:
        forms = [i for i, one in enumerate(operands) if isinstance(one, Form)]
        if not all(isinstance(one, Known | Form) for one in operands):
            return False
        if step.rule in ("move", "linear"):
            return not set(forms) & set(step.needs)
        if step.rule in ("multiply", "contract"):
            return len(forms) == 1
        return step.rule == "divide" and forms == [0]

    def _linear(self, step: Step, operands: Sequence[Value], still: bool) -> list[Form]:
        """An affine step on forms of one kind: the offset goes through it, each Jacobian through
        its linear part.
        """
        keep = (
            range(len(operands)) if step.rule in ("multiply", "contract", "divide") else step.needs
        )
        plain = [
            one.offset if isinstance(one, Form) else one.value
            for one in operands
            if isinstance(one, Form | Known)
        ]
        offsets = step.run(*plain)
        terms: list[Terms] = [{} for _ in offsets]
        for k in dict.fromkeys(k for one in operands if isinstance(one, Form) for k in one.terms):
            mapped = [
                i for i, one in enumerate(operands) if isinstance(one, Form) and k in one.terms
            ]

            def part(*columns: Array, mapped: list[int] = mapped) -> Sequence[Array]:
                values = [
                    v if i in keep and isinstance(operands[i], Known) else self.arithmetic.zeros(v)
                    for i, v in enumerate(plain)
                ]
                for i, column in zip(mapped, columns):
                    values[i] = column
                return step.run(*values)

            stacked = [one.terms[k] for one in operands if isinstance(one, Form) and k in one.terms]
            for out, jacobian in zip(terms, self.arithmetic.over(part, *stacked)):
                out[k] = jacobian
        adds = any(isinstance(one, Known) and i not in keep for i, one in enumerate(operands))
        centred = not adds and all(one.centred for one in operands if isinstance(one, Form))
        by_action = any(one.by_action for one in operands if isinstance(one, Known | Form))
        return [
            Form(t, offset, still, still and by_action, centred=centred, line=step.line)
            for t, offset in zip(terms, offsets)
        ]

    # where theta meets the data -------------------------------------------------------------------

    def cut(self, form: Form) -> Form:
        """The still form as a variable of its own."""
        if not form.still:
            return form
        index = self._cut_of.get(id(form))
        if index is None:
            index = self._cut_of[id(form)] = len(self.cuts)
            self.cuts.append(form)
        return Form(
            {index: self.arithmetic.identity(form.shape)},
            self.arithmetic.zeros(form.offset),
            False,
            centred=True,
        )

    def _moving(self, step: Step, operands: list[Value]) -> list[Value]:
        forms = [one for one in operands if isinstance(one, Form)]
        if step.rule == "divide" and isinstance(operands[0], Known | Form):
            below = operands[1]
            if isinstance(below, Form) and below.still:
                inverse = self.apply(lambda v: 1.0 / v, "reciprocal", below, line=step.line)
                inverse = replace(inverse, low=0.0 if below.low >= 0 else -np.inf)
                product = replace(step, name="multiply", rule="multiply", run=lambda u, v: (u * v,))
                return self._moving(product, [operands[0], inverse])
        if self._is_linear(step, operands) and all(step.real):
            found: list[Value] = list(
                self._linear(step, [self._cut_any(one) for one in operands], still=False)
            )
            return self._with_parent(step, operands, self._with_factor(step, operands, found))
        if step.rule == "multiply" and len(forms) == 2 and len(operands) == 2:
            product_form = self._product(step, *forms)
            if product_form is not None:
                return [product_form]
        return [self._link(step, operands)]

    def _cut_any(self, one: Value) -> Value:
        return self.cut(one) if isinstance(one, Form) else one

    def _with_factor(self, step: Step, operands: list[Value], found: list[Value]) -> list[Value]:
        """Remember known * still, so that another still factor can join the still one."""
        if step.rule != "multiply" or len(operands) != 2:
            return found
        known = next(one for one in operands if isinstance(one, Known))
        form = next(one for one in operands if isinstance(one, Form))
        out = found[0]
        assert isinstance(out, Form)
        if form.still:
            return [replace(out, factor=(known, form))]
        if form.factor is not None:
            both = Known(known.value * form.factor[0].value, True)
            return [replace(out, factor=(both, form.factor[1]))]
        return found

    @staticmethod
    def _with_parent(step: Step, operands: list[Value], found: list[Value]) -> list[Value]:
        """Remember what an entry was made of, so that a link may use its predictor twice."""
        forms = [one for one in operands if isinstance(one, Form)]
        parts = [_part(one) for one in operands]
        if not step.elementwise or len(forms) != 1 or None in parts or forms[0].still:
            return found
        return [
            replace(out, parent=(forms[0], (step.name, *parts))) if isinstance(out, Form) else out
            for out in found
        ]

    def _product(self, step: Step, left: Form, right: Form) -> Form | None:
        """Affine times still."""
        moving, still = (left, right) if right.still else (right, left)
        if not still.still or moving.still:
            return None
        if moving.factor is not None:
            known, inner = moving.factor
            together = self.apply(lambda u, v: u * v, "multiply", inner, still, line=step.line)
            together = replace(together, low=0.0 if min(inner.low, still.low) >= 0 else -np.inf)
            product = replace(step, run=lambda u, v: (u * v,))
            (found,) = self._moving(product, [known, together])
            return (
                found
                if isinstance(found, Form) and found.shape == _shape(left.shape, right.shape)
                else None
            )
        if still.size != 1:
            return None
        shape = _shape(left.shape, right.shape)
        lead = len(shape) - len(moving.shape)
        terms: Terms = {}
        for k, jacobian in moving.terms.items():
            scaled = self.apply(
                lambda t, f: t.reshape(()) * f, "multiply", still, self.cuts[k], line=step.line
            )
            (new,) = self.cut(scaled).terms
            wide = jacobian.reshape((jacobian.shape[0], *(1,) * lead, *moving.shape))
            terms[new] = self.arithmetic.broadcast(wide, (jacobian.shape[0], *shape))
        offset = self.arithmetic.broadcast(moving.offset, shape)
        if not moving.centred:
            (alone,) = self.cut(still).terms
            terms[alone] = offset.reshape((1, *shape))
        return Form(terms, self.arithmetic.zeros(offset), False, centred=True, line=step.line)

    # links ----------------------------------------------------------------------------------------

    def _link(self, step: Step, operands: list[Value]) -> Value:
        first = operands[0]
        if step.rule == "exp" and isinstance(first, Form):
            return Exp(first)
        if step.rule == "log" and isinstance(first, Exp):
            return first.log
        if (
            step.rule == "move"
            and len(operands) == 1 + len(step.needs)
            and isinstance(first, Exp | Tail)
        ):
            root = first.log if isinstance(first, Exp) else first.root
            if all(isinstance(one, Known) for one in operands[1:]):
                (moved,) = self._linear(step, [root, *operands[1:]], still=False)
                return Exp(moved) if isinstance(first, Exp) else replace(first, root=moved)
        if step.rule in ("multiply", "divide") and any(isinstance(one, Exp) for one in operands):
            logs = [self.log_of(one) for one in operands]
            if None not in logs:
                sign = 1.0 if step.rule == "multiply" else -1.0
                adding = Step(
                    "add",
                    lambda u, v: (u + sign * v,),
                    (),
                    (-1,),
                    (True,),
                    "linear",
                    line=step.line,
                )
                return Exp(
                    self._linear(
                        adding, [self._cut_any(one) for one in logs if one is not None], still=False
                    )[0]
                )
        if step.rule == "power" and isinstance(first, Exp):
            scaling = Step(
                "scale", lambda u: (u * step.power,), (), (-1,), (True,), "linear", line=step.line
            )
            return Exp(self._linear(scaling, [first.log], still=False)[0])
        return self._tail(step, operands)

    def log_of(self, one: Value) -> Value | None:
        """The log of a value that is positive by construction, as something affine; None if that
        is not known.
        """
        if isinstance(one, Exp):
            return one.log
        if isinstance(one, Known):
            if not (one.by_row or one.by_action) and not np.all(np.asarray(one.value) > 0):
                return None
            return replace(one, value=self.arithmetic.log(one.value))
        if isinstance(one, Form) and one.still and one.low >= 0:
            return self.apply(self.arithmetic.log, "log", one, line=one.line)
        if isinstance(one, Form) and one.factor is not None and one.factor[1].low >= 0:
            known, still = one.factor
            log = self.cut(self.apply(self.arithmetic.log, "log", still, line=one.line))
            adding = Step("add", lambda u, v: (u + v,), (), (-1,), (True,), "linear", line=one.line)
            (found,) = self._linear(
                adding, [replace(known, value=self.arithmetic.log(known.value)), log], still=False
            )
            return found if found.shape == one.shape else None
        return None

    def _tail(self, step: Step, operands: list[Value]) -> Value:
        lost = Unknown(
            f"{step.name.partition('[')[0]} of a value that mixes data and parameters", step.line
        )
        if not step.elementwise:
            return lost
        roots = [
            one.root if isinstance(one, Tail) else one.log if isinstance(one, Exp) else one
            for one in operands
            if isinstance(one, Tail | Exp | Form)
        ]
        root = next((one for one in _line_of(roots[0]) if _all_from(roots, one)), None)
        if root is None or root.still:
            return lost
        parts = [_part(one, root) for one in operands]
        if None in parts:
            return lost
        if step.name in ("add", "mul", "max", "min"):
            parts.sort(key=str)
        return Tail((step.name, *parts), root)


def _line_of(form: Form) -> list[Form]:
    found = [form]
    while found[-1].parent is not None:
        found.append(found[-1].parent[0])
    return found


def _all_from(forms: Sequence[Form], root: Form) -> bool:
    return all(any(one is root for one in _line_of(form)) for form in forms)


def _part(one: Value, root: Form | None = None) -> tuple[Any, ...] | None:
    """An operand as an expression of the root; None if it is none. Without one, of itself."""
    if isinstance(one, Known):
        number = None if one.by_row or one.by_action else _one_number(one.value)
        return None if number is None else ("constant", number)
    if isinstance(one, Tail):
        form, expression = one.root, one.expression
    elif isinstance(one, Exp):
        form, expression = one.log, ("exp", ("root",))
    elif isinstance(one, Form):
        form, expression = one, ("root",)
    else:
        return None
    while root is not None and form is not root:
        assert form.parent is not None
        form, below = form.parent
        expression = _put(expression, below)
    return expression


def _put(expression: tuple[Any, ...], below: tuple[Any, ...]) -> tuple[Any, ...]:
    """The expression with another one in place of its root."""
    if expression == ("root",):
        return below
    return tuple(_put(part, below) if isinstance(part, tuple) else part for part in expression)


def _one_number(value: Array) -> float | None:
    numbers = np.unique(np.asarray(value, float))
    return round(float(numbers[0]), 12) if len(numbers) == 1 else None


def _shape(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(np.broadcast_shapes(left, right))


def _range(step: Step, operands: Sequence[Value]) -> tuple[float, float]:
    """Bounds on a still result's entries that are known without numbers."""
    name = step.name.partition("[")[0]
    if name in ("logistic", "sigmoid"):
        return 0.0, 1.0
    if name in NONNEGATIVE:
        return 0.0, np.inf
    forms = [one for one in operands if isinstance(one, Form)]
    known = [
        np.asarray(one.value)
        for i, one in enumerate(operands)
        if isinstance(one, Known) and i not in step.needs and not (one.by_row or one.by_action)
    ]
    if len(forms) + len(known) + len(step.needs) != len(operands) or not forms:
        return -np.inf, np.inf
    low = min(one.low for one in forms)
    positive = low >= 0 and all(np.all(value >= 0) for value in known)
    if step.rule == "move":
        inside = all(
            np.all((value >= low) & (value <= max(one.high for one in forms))) for value in known
        )
        return (
            (low, max(one.high for one in forms))
            if inside
            else (0.0 if positive else -np.inf, np.inf)
        )
    if positive and (name in ADDING or step.rule in ("multiply", "contract", "divide", "power")):
        return 0.0, np.inf
    return -np.inf, np.inf
