"""What the data see of the parameters: a program read operation by operation, as affine forms of
values made of theta alone.

One row of the program is listed by a backend as plain steps. Reading it, every value is one of

    Known     free of theta
    Form
        offset + sum_k J_k . k, affine; a *still* form depends on theta and the action alone, not on
        the context
    Exp       the exponential of a form
    Tail      elementwise operations on one form and constants: an inverse link, if a table knows it
    Combination
        offset + sum_k J_k . k of tails, with numbers for coefficients: steps between cutpoints
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

from gedppl.programs.values import (
    SIMPLEX,
    Arithmetic,
    Array,
    Atom,
    Combination,
    Exp,
    Form,
    Known,
    Listing,
    Operands,
    Step,
    Tail,
    Terms,
    Unknown,
    Value,
    Whole,
)

NONNEGATIVE = ("exp", "logistic", "sigmoid", "sqrt", "square", "abs", "softplus")
SIGN_KEEPING = ("log1p", "expm1", "tanh")
ELEMENTARY = ("log", "exp")
ADDING = ("add", "add_any", "reduce_sum", "cumsum", "concatenate", "sum", "cat", "stack")


@dataclass
class Reading:
    """One reading of a listing; atoms and cuts come in the same order in every reading of it."""

    arithmetic: Arithmetic
    atoms: list[Atom] = field(default_factory=list)
    cuts: list[Form] = field(default_factory=list)
    tails: list[Tail] = field(default_factory=list)  # those that combinations are of
    _cut_of: dict[int, int] = field(default_factory=dict)
    _tail_of: dict[int, int] = field(default_factory=dict)

    def site(
        self,
        name: str,
        shape: tuple[int, ...],
        low: float = -np.inf,
        high: float = np.inf,
        together: str = "",
    ) -> Form:
        """Of entries that add up to one the last is 1 minus the others, which are the atom."""
        number = len(self.atoms)
        if together != SIMPLEX:
            self.atoms.append(Atom(name, shape, low, high, False, together=together))
            return self._form_of(number)
        *lead, k = shape
        self.atoms.append(Atom(name, (*lead, k - 1), low, high, False, together=together))
        others, unit = self._form_of(number), self.arithmetic.identity((k,))
        rest = np.hstack([np.eye(k - 1), -np.ones((k - 1, 1))])
        return replace(
            others,
            terms={number: self.arithmetic.contracted(others.terms[number], rest)},
            offset=self.arithmetic.broadcast(unit[-1], shape),
            centred=False,
        )

    def _form_of(self, number: int) -> Form:
        atom = self.atoms[number]
        jacobian = self.arithmetic.identity(atom.shape)
        terms = {number: jacobian}
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

    def step(self, step: Step, values: list[Value]) -> list[Value]:
        operands = Operands.of(values)
        if operands.lost:
            return [operands.lost[0]] * len(step.outputs)
        if len(operands.known) == len(operands):
            return self._known(step, list(operands.known.values()))
        if not any(one.by_row for one in values):
            return self._still(step, operands)
        if operands.wholes:
            return self._lost(
                step, "a whole number or truth value made of parameters meets the data"
            )
        return self._moving(step, operands)

    def _known(self, step: Step, operands: list[Known]) -> list[Value]:
        by_row = any(one.by_row for one in operands)
        by_action = any(one.by_action for one in operands)
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

    def _still(self, step: Step, operands: Operands) -> list[Value]:
        if self._is_linear(step, operands) and all(step.real):
            low, high = _range(step, operands)
            return [
                replace(form, low=low, high=high)
                for form in self.linear(step, operands, still=True)
            ]
        found: list[Value] = []
        for number, real in zip(self._new_atoms(step, operands), step.real):
            atom = self.atoms[number]
            found.append(self._form_of(number) if real else Whole(number, atom.by_action))
        return found

    def _new_atoms(self, step: Step, operands: Operands) -> list[int]:
        """An atom for each output: their numbers."""
        used = tuple(operands.settled)
        by_action = any(one.by_action for one in used)
        low, high = _range(step, self._where_numbers_are(step, operands))
        name = step.name.partition("[")[0] + (f" at {step.line}" if step.line else "")
        # shapes come from running the step on offsets: numbers do not matter
        sample = step.run(*[one.stand_in(self.atoms) for one in used])
        first = len(self.atoms)
        elementary = step.rule if step.rule in ELEMENTARY and len(used) == 1 else ""
        self.atoms += [
            Atom(name, tuple(value.shape), low, high, by_action, step.run, used, i, elementary)
            for i, value in enumerate(sample[: len(step.real)])
        ]
        return list(range(first, len(self.atoms)))

    def _where_numbers_are(self, step: Step, operands: Operands) -> Operands:
        """Without the case that `where(v != v, ...)` keeps for what is no number; `logaddexp`, and
        so `softplus`, has one.
        """
        test = operands.wholes.get(0)
        if step.name != "select_n" or test is None or len(operands) != 3:
            return operands
        asked = self.atoms[test.atom]
        if asked.name.partition(" ")[0] != "ne" or asked.operands[0] is not asked.operands[-1]:
            return operands
        usual = operands.every[1]
        return Operands.of([operands.every[0], usual, usual])

    def apply(self, run: Callable[..., Array], name: str, *operands: Form, line: str = "") -> Form:
        """A still form computed from still forms by an operation that is not the program's own."""
        rule = name if name in ELEMENTARY else ""
        step = Step(name, lambda *values: (run(*values),), (), (-1,), (True,), rule, line=line)
        (number,) = self._new_atoms(step, Operands.of(operands))
        return self._form_of(number)

    def evaluate(self, sites: Sequence[Array]) -> list[Array]:
        """Every atom's value at the sites' values; actions are those of the reading."""
        values = [atom.kept(value) for atom, value in zip(self.atoms, sites)]
        for atom in self.atoms[len(sites) :]:
            assert atom.run is not None
            parts = [one.at(values, self.arithmetic) for one in atom.operands]
            values.append(atom.run(*parts)[atom.output])
        return values

    # affine steps ---------------------------------------------------------------------------------

    @staticmethod
    def _is_linear(step: Step, operands: Operands) -> bool:
        forms = list(operands.forms)
        if len(operands.known) + len(forms) != len(operands):
            return False
        if step.rule in ("move", "linear"):
            return not set(forms) & set(step.needs)
        if step.rule in ("multiply", "contract"):
            return len(forms) == 1
        return step.rule == "divide" and forms == [0]

    def linear(self, step: Step, operands: Operands, still: bool) -> list[Form]:
        """An affine step on forms of one kind: the offset goes through it, each Jacobian through
        its linear part.

        A step f(u, c) with c known is f(0, c) + L(u), so that the result is f(o, c) + sum_k L(J_k)
        k. L is the step itself with 0 in the place of every known operand that it adds (`keep` are
        those that it multiplies by or looks at: of u / c it is u -> u / c, of u + c u -> u), run
        over the leading axis of J_k.
        """
        known, forms = operands.known, operands.forms
        keep = (
            range(len(operands)) if step.rule in ("multiply", "contract", "divide") else step.needs
        )
        plain = [
            forms[i].offset if i in forms else known[i].value
            for i in range(len(operands))
            if i in forms or i in known
        ]
        offsets = step.run(*plain)
        terms: list[Terms] = [{} for _ in offsets]
        for k in dict.fromkeys(k for one in forms.values() for k in one.terms):
            mapped = [i for i, one in forms.items() if k in one.terms]

            def part(*columns: Array, mapped: list[int] = mapped) -> Sequence[Array]:
                values = [
                    v if i in keep and i in known else self.arithmetic.zeros(v)
                    for i, v in enumerate(plain)
                ]
                for i, column in zip(mapped, columns):
                    values[i] = column
                return step.run(*values)

            stacked = [forms[i].terms[k] for i in mapped]
            for out, jacobian in zip(terms, self.arithmetic.over(part, *stacked)):
                out[k] = jacobian
        adds = any(i not in keep for i in known)
        centred = not adds and all(one.centred for one in forms.values())
        by_action = any(one.by_action for one in operands.settled)
        line = step.line or next((one.line for one in forms.values()), "")
        picked = step.rule == "move" and not adds and all(one.picked for one in forms.values())
        return [
            Form(t, offset, still, still and by_action, centred=centred, line=line, picked=picked)
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
            line=form.line,
            picked=True,
        )

    def picked(self, value: Value) -> Form | None:
        """A value that is one entry of still forms, as the data pick it; None for any other."""
        found = Operands.of([value])
        form, exp = found.forms.get(0), found.exps.get(0)
        if exp is None or not exp.log.picked:
            return form if form is not None and form.picked else None
        terms: Terms = {}
        for k, jacobian in exp.log.terms.items():
            size = self.apply(self.arithmetic.exp, "exp", self.cuts[k], line=exp.line)
            (new,) = self.cut(size).terms
            terms[new] = jacobian
        return replace(exp.log, terms=terms)

    def _moving(self, step: Step, operands: Operands) -> list[Value]:
        forms = list(operands.forms.values())
        if step.rule == "divide" and (0 in operands.known or 0 in operands.forms):
            below = operands.forms.get(1)
            if below is not None and below.still:
                inverse = self.apply(lambda v: 1.0 / v, "reciprocal", below, line=step.line)
                inverse = replace(inverse, low=0.0 if below.low >= 0 else -np.inf)
                product = replace(step, name="multiply", rule="multiply", run=lambda u, v: (u * v,))
                return self._moving(product, Operands.of([operands.every[0], inverse]))
        if self._is_linear(step, operands) and all(step.real):
            found = self.linear(step, operands.cut(self), still=False)
            return [*_with_parent(step, operands, self._with_factor(step, operands, found))]
        if step.rule == "multiply" and len(forms) == 2 and len(operands) == 2:
            product_form = self._product(step, *forms)
            if product_form is not None:
                return [product_form]
        if len(step.outputs) != 1:
            return self._lost(step, "a value that mixes data and parameters is split")
        return [self._link(step, operands)]

    @staticmethod
    def _with_factor(step: Step, operands: Operands, found: list[Form]) -> list[Form]:
        """Remember known * still, so that another still factor can join the still one: (x w) t is x
        (w t), whatever the size of t.
        """
        if step.rule != "multiply" or len(operands) != 2:
            return found
        (known,), (form,) = operands.known.values(), operands.forms.values()
        if form.still:
            return [replace(found[0], factor=(known, form))]
        if form.factor is not None:
            both = Known(known.value * form.factor[0].value, True)
            return [replace(found[0], factor=(both, form.factor[1]))]
        return found

    def _product(self, step: Step, left: Form, right: Form) -> Form | None:
        """Affine times still: (J c + o) t = J (c t) + o t, with t one number and (c t), and t where
        o is not 0, as new still values, and known * still times still as known * (still still).
        None for any other product.
        """
        moving, still = (left, right) if right.still else (right, left)
        if not still.still or moving.still:
            return None
        if moving.factor is not None:
            known, inner = moving.factor
            together = self.apply(lambda u, v: u * v, "multiply", inner, still, line=step.line)
            together = replace(together, low=0.0 if min(inner.low, still.low) >= 0 else -np.inf)
            product = replace(step, run=lambda u, v: (u * v,))
            found = Operands.of(self._moving(product, Operands.of([known, together]))).forms.get(0)
            fits = found is not None and found.shape == _shape(left.shape, right.shape)
            return found if fits else None
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

    def _link(self, step: Step, operands: Operands) -> Value:
        """What leaves the affine values, on the way to a link: exp and log of forms; products,
        quotients and powers of exponentials, as sums of their logs; then elementwise steps, which
        are kept as an expression, and affine steps on several of those.
        """
        form, exp, tail = (
            operands.forms.get(0),
            operands.exps.get(0),
            operands.tails.get(0),
        )
        if step.rule == "exp" and form is not None:
            return Exp(form)
        if step.rule == "log" and exp is not None:
            return exp.log
        alone = len(operands) == 1 + len(step.needs) == 1 + len(operands.known)
        if step.rule == "move" and alone:
            if exp is not None:
                return Exp(self._moved(step, exp.log, operands))
            if tail is not None:
                combined = self._combined(step, operands)
                made_of = None if combined is None else combined.form
                return replace(tail, root=self._moved(step, tail.root, operands), made_of=made_of)
        if step.rule in ("multiply", "divide") and operands.exps:
            found = [one.log_in(self) for one in operands.every]
            logs = [log for log in found if log is not None]
            if len(logs) == len(found):
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
                return Exp(self.linear(adding, Operands.of(logs).cut(self), still=False)[0])
        if step.rule == "power" and exp is not None:
            scaling = Step(
                "scale", lambda u: (u * step.power,), (), (-1,), (True,), "linear", line=step.line
            )
            return Exp(self.linear(scaling, Operands.of([exp.log]), still=False)[0])
        return self._tail_or_combination(step, operands)

    def _moved(self, step: Step, root: Form, operands: Operands) -> Form:
        (found,) = self.linear(step, Operands.of([root, *operands.every[1:]]), still=False)
        return found

    def _tail_or_combination(self, step: Step, operands: Operands) -> Value:
        found, combined = self._tail(step, operands), self._combined(step, operands)
        tail = Operands.of([found]).tails.get(0)
        if combined is None:
            return found
        if tail is None:
            return combined if combined.moves else Known(combined.form.offset)
        (one, *more) = operands.tails.values()
        if more or not combined.is_complement_of(self._as_combination(one)):
            return tail
        return replace(tail, made_of=combined.form)

    def _combined(self, step: Step, operands: Operands) -> Combination | None:
        """An affine step on tails and numbers, as coefficients of tails; None if it is no such
        step.
        """
        parts = {i: self._as_combination(tail) for i, tail in operands.tails.items()}
        parts.update((i, one.form) for i, one in operands.combinations.items())
        numbers = [one for one in operands.known.values() if not (one.by_row or one.by_action)]
        if not parts or len(parts) + len(numbers) < len(operands) or not all(step.real):
            return None
        plain = Operands.of([parts.get(i, one) for i, one in enumerate(operands.every)])
        if not self._is_linear(step, plain):
            return None
        found = self.arithmetic.constant(lambda: self.linear(step, plain, still=False))
        return Combination(found[0])

    def _as_combination(self, tail: Tail) -> Form:
        if tail.made_of is not None:
            return tail.made_of
        index = self._tail_of.get(id(tail))
        if index is None:
            index = self._tail_of[id(tail)] = len(self.tails)
            self.tails.append(tail)
        jacobian = self.arithmetic.identity(tail.root.shape)
        (zero,) = self.arithmetic.constant(lambda: (self.arithmetic.zeros(jacobian[0]),))
        return Form({index: jacobian}, zero, False, centred=True, line=tail.line)

    def _tail(self, step: Step, operands: Operands) -> Value:
        lost = Unknown(
            f"{step.name.partition('[')[0]} of a value that mixes data and parameters", step.line
        )
        if not step.elementwise:
            return lost
        found = [one.in_tail() for one in operands.every]
        parts = [part for part in found if part is not None]
        roots = [root for _, root in parts if root is not None]
        if len(parts) < len(found):
            return lost
        root = next((one for one in roots[0].ancestors if _all_from(roots, one)), None)
        if root is None or root.still:
            return lost
        expression = [part if form is None else _of(root, form, part) for part, form in parts]
        if step.name in ("add", "mul", "max", "min"):
            expression.sort(key=str)
        return Tail((step.name, *expression), root)


def _with_parent(step: Step, operands: Operands, found: list[Form]) -> list[Form]:
    """Remember what an entry was made of, so that a link may use its predictor twice."""
    parts = [one.in_tail() for one in operands.every]
    expressions = [part[0] for part in parts if part is not None]
    alone = len(operands.forms) == 1 and len(expressions) == len(operands)
    form = next(iter(operands.forms.values()))
    if not (step.elementwise and alone) or form.still:
        return found
    return [replace(out, parent=(form, (step.name, *expressions))) for out in found]


def _all_from(forms: Sequence[Form], root: Form) -> bool:
    return all(any(one is root for one in form.ancestors) for form in forms)


def _of(root: Form, form: Form, expression: tuple[Any, ...]) -> tuple[Any, ...]:
    """An expression of a form as one of an ancestor of it."""
    while form is not root:
        assert form.parent is not None
        form, below = form.parent
        expression = _put(expression, below)
    return expression


def _put(expression: tuple[Any, ...], below: tuple[Any, ...]) -> tuple[Any, ...]:
    """The expression with another one in place of its root."""
    if expression == ("root",):
        return below
    return tuple(_put(part, below) if isinstance(part, tuple) else part for part in expression)


def _shape(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(np.broadcast_shapes(left, right))


def _range(step: Step, operands: Operands) -> tuple[float, float]:
    """Bounds on a still result's entries that are known without numbers: what makes a scale
    positive, and a log of it allowed. (-inf, inf) claims nothing.
    """
    name = step.name.partition("[")[0]
    if name in ("logistic", "sigmoid"):
        return 0.0, 1.0
    if name in NONNEGATIVE:
        return 0.0, np.inf
    forms = list(operands.forms.values())
    if name in SIGN_KEEPING and len(forms) == 1 and forms[0].low >= 0:
        return 0.0, np.inf
    known = [
        np.asarray(one.value)
        for i, one in operands.known.items()
        if i not in step.needs and not (one.by_row or one.by_action)
    ]
    if len(forms) + len(known) + len(step.needs) != len(operands) or not forms:
        return -np.inf, np.inf
    low = min(one.low for one in forms)
    positive = low >= 0 and all(np.all(value >= 0) for value in known)
    if name in ("max", "maximum"):
        least = max(one.low for one in forms)
        return max([least, *(float(np.min(value)) for value in known)]), np.inf
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
