"""The values v = h(theta) through which data see a program's parameters, as coordinates with
features, names and ranges.

A backend reads one row of the program (`gedppl.programs.forms`) at every action. Equal cuts of
different actions are one coordinate: coefficients are compared bit by bit, and atoms count as equal
only if one operation has equal operands.

    predictor(x, a) = features(x, a) @ v + offset(x, a),   v = h(theta)

v ranges over its box (the supports of sites, where a coordinate is one): a set of v is an outer set
for theta.

Axis letters: M parameter settings, n rows, A actions, S slots (entries of cuts), R distinct rows, p
coordinates of v, q of atoms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gedppl.errors import ContextRangeError
from gedppl.programs.affine import obstacle, ordered_from, predictor_from, stranger
from gedppl.programs.contract import (
    Halves,
    LinearPredictor,
    LocationScale,
    OrderedPredictor,
    Profiled,
)
from gedppl.programs.links import OUTCOMES, SCALED
from gedppl.programs.values import RISING, SIMPLEX
from gedppl.rows import Tabulated, over_box, unit_slopes

if TYPE_CHECKING:
    from gedppl.programs.kernels import Kernels

MOST_ACTIONS = 256  # read one by one; beyond, the action is data like the context
APART = 1e-6  # smallest singular value of unit rows that count as independent
MOST_ROWS = 600  # of which independence is tried


@dataclass(frozen=True)
class StillForm:
    """A still form at A actions: coefficients by atom (A, size of the atom, size) and offset (A,
    size).
    """

    terms: dict[int, np.ndarray]
    offset: np.ndarray
    line: str = ""


@dataclass(frozen=True)
class AtomTable:
    """An atom's operands at A actions: arrays, or still forms."""

    name: str
    shape: tuple[int, ...]
    low: float
    high: float
    by_action: bool
    operands: tuple[np.ndarray | StillForm | int, ...]  # an int: another atom, of whole numbers
    elementary: str = ""
    together: str = ""


@dataclass(frozen=True)
class Tables:
    """All that a reading says without a context."""

    atoms: tuple[AtomTable, ...]
    cuts: tuple[StillForm, ...]  # those that the predictor depends on
    # an argument beside the predictor that theta sets: () if there is none, one still form, or
    # those whose entries the data pick
    unknown: tuple[StillForm, ...]


@dataclass(frozen=True)
class Verdict:
    """What a reading found: a family with link, or why it has none and at which line."""

    family: str
    link: str
    others: tuple[str, ...]
    why: str = ""
    line: str = ""
    unknown: str = ""  # the argument beside the predictor that theta sets


class RowReader(Protocol):
    """One backend's reading of one program."""

    verdict: Verdict
    n_actions: int | None  # None: the action is data like the context

    def tables(self) -> Tables: ...
    def rows(self, x: np.ndarray, a: np.ndarray) -> list[np.ndarray]:
        """[(n, S) or (n, S, C) coefficients of the slots, (n,) or (n, C) offset, *others (n,)]."""
        ...

    def picks(self, x: np.ndarray, a: np.ndarray) -> np.ndarray | None:
        """(n, entries of the unknown): 1 at the one that is each row's; None if there is one."""
        ...

    def atoms(self, theta: np.ndarray) -> list[np.ndarray]:
        """Every atom at settings (M, D) and all actions: (M, A, size)."""
        ...

    def is_affine_by_context(self) -> bool:
        """Whether every array of `rows` is proved affine in x."""
        ...


@dataclass(frozen=True)
class Seen:
    """What the data see: coordinates v and the predictor in them. One of predictor, ordered,
    location_scale and profiled is there.
    """

    names: tuple[str, ...]  # (p,)
    low: np.ndarray  # (p,)
    high: np.ndarray
    from_theta: Callable[[np.ndarray], np.ndarray]  # (M, D) -> (M, p)
    predictor: LinearPredictor | None = None
    ordered: OrderedPredictor | None = None
    location_scale: LocationScale | None = None
    profiled: Profiled | None = None
    by_action: bool = False  # some values were made for one action at a time

    @property
    def dim(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Refusal:
    """Why nothing is proved of a program, and at which line of it."""

    why: str
    line: str = ""
    instead: str = ""  # what to write, where the usual advice is none


# outcomes that no spelling makes exact, and what comes near them
INSTEAD = {
    "BetaBinomial": "for counts that vary more than a Binomial's write a Binomial with an effect "
    "for each group of rows",
    "StudentT": "for noise with heavy tails write a Laplace of known scale",
    "TransformedDistribution": "where the outcome is the exponential of one of these (a "
    "log-logistic), model its logarithm: Logistic(predictor, scale), and tell log(y)",
}


@dataclass
class _Coordinates:
    """Atoms of all actions, equal ones once."""

    reader: RowReader
    tables: Tables
    # (atom, an action at which it is this one)
    blocks: list[tuple[int, int]] = field(default_factory=list)
    block_of: list[np.ndarray] = field(default_factory=list)  # by atom: (A,)
    start: list[int] = field(default_factory=list)
    q: int = 0

    def __post_init__(self) -> None:
        A = self.reader.n_actions or 1
        elementary: dict[Any, int] = {}  # the same logarithm written twice is one coordinate
        for j, atom in enumerate(self.tables.atoms):
            found: dict[Any, int] = elementary if atom.elementary else {}
            mine = np.zeros(A, np.int64)
            for action in range(A if atom.by_action else 1):
                used = atom.operands if atom.by_action or atom.elementary else ()
                key = (atom.elementary, *(self._key(one, action) for one in used))
                if key not in found:
                    found[key] = len(self.blocks)
                    self.blocks.append((j, action))
                    self.start.append(self.q)
                    self.q += int(np.prod(atom.shape))
                mine[action:] = found[key]
            self.block_of.append(mine)

    def _key(self, one: np.ndarray | StillForm | int, action: int) -> Any:
        if isinstance(one, int):
            return int(self.block_of[one][action])
        if isinstance(one, StillForm):
            terms = [
                (int(self.block_of[k][action]), part[action].tobytes())
                for k, part in one.terms.items()
                if part[action].any()
            ]
            return tuple(terms), one.offset[action].tobytes()
        return one[action].tobytes()

    def rows(self, form: StillForm, action: int) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        """Each entry of a still form as (columns, coefficients) of the atoms' coordinates."""
        columns, values = [], []
        for k, part in form.terms.items():
            first = self.start[self.block_of[k][action]]
            columns.append(first + np.arange(part.shape[1]))
            values.append(part[action])
        size = form.offset.shape[1]
        index = np.concatenate(columns) if columns else np.zeros(0, np.int64)
        table = np.concatenate(values) if values else np.zeros((0, size))
        order = np.argsort(index)
        index, table = index[order], table[order]
        return [
            (tuple(index[at].tolist()), tuple(table[at, i].tolist()))
            for i in range(size)
            for at in [np.flatnonzero(table[:, i])]
        ]

    def only(self, atom: int, action: int) -> tuple[Any, float] | None:
        """The one number that an atom is made of, as a row and a constant; None if there are
        more.
        """
        operands = self.tables.atoms[atom].operands
        one = operands[0] if len(operands) == 1 else None
        if not isinstance(one, StillForm) or one.offset.shape[1] != 1:
            return None
        return self.rows(one, action)[0], float(one.offset[action, 0])

    def values(self, theta: np.ndarray) -> np.ndarray:
        """(M, q) at settings (M, D)."""
        atoms = self.reader.atoms(theta)
        parts = [atoms[j][:, action].reshape(len(theta), -1) for j, action in self.blocks]
        return np.concatenate(parts, axis=1) if parts else np.zeros((len(theta), 0))

    def ranges(self) -> tuple[np.ndarray, np.ndarray]:
        sizes = [int(np.prod(self.tables.atoms[j].shape)) for j, _ in self.blocks]
        low, high = (
            [getattr(self.tables.atoms[j], side) for j, _ in self.blocks]
            for side in ("low", "high")
        )
        return np.repeat(low, sizes).astype(float), np.repeat(high, sizes).astype(float)

    def walls(self) -> tuple[np.ndarray, np.ndarray]:
        """What supports say, as A u <= b: (w, q) and (w,)."""
        eye, (low, high) = np.eye(self.q), self.ranges()
        normals = [-eye[np.isfinite(low)], eye[np.isfinite(high)]]
        limits = [-low[np.isfinite(low)], high[np.isfinite(high)]]
        for (j, _), start in zip(self.blocks, self.start):
            atom = self.tables.atoms[j]
            if atom.together:
                index = start + np.arange(int(np.prod(atom.shape))).reshape(-1, atom.shape[-1])
                if atom.together == RISING:
                    normals.append(eye[index[:, :-1].ravel()] - eye[index[:, 1:].ravel()])
                else:
                    normals.append(eye[index].sum(axis=1))
                limits.append(np.full(len(normals[-1]), float(atom.together == SIMPLEX)))
        return np.concatenate(normals), np.concatenate(limits)

    def names(self) -> list[str]:
        found = []
        for j, action in self.blocks:
            atom = self.tables.atoms[j]
            where = f" (action {action})" if atom.by_action else ""
            entries = np.ndindex(*atom.shape) if atom.shape else [()]
            found += [f"{atom.name}{list(entry) if entry else ''}{where}" for entry in entries]
        return found


@dataclass(frozen=True)
class _Rows:
    """Distinct combinations of atoms: row r is matrix[r] @ atoms."""

    matrix: np.ndarray  # (R, q)
    index: np.ndarray  # (A, S) the row of every slot at every action, -1 where it is constant
    constant: np.ndarray  # (A, S)
    names: list[str]

    @classmethod
    def of(cls, space: _Coordinates, forms: Sequence[StillForm]) -> _Rows:
        A = space.reader.n_actions or 1
        found: dict[Any, int] = {}
        names: list[str] = []
        atoms = space.names()
        index, constant = [], []
        for action in range(A):
            places, offsets = [], []
            for form in forms:
                for i, row in enumerate(space.rows(form, action)):
                    offsets.append(form.offset[action, i])
                    if row[0] and row not in found:
                        found[row] = len(found)
                        alone = len(row[0]) == 1 and row[1][0] == 1.0
                        names.append(
                            atoms[row[0][0]]
                            if alone
                            else f"{form.line or 'value'}[{i}] (action {action})"
                        )
                    places.append(found[row] if row[0] else -1)
            index.append(places)
            constant.append(offsets)
        matrix = np.zeros((len(found), space.q))
        for (columns, values), r in found.items():
            matrix[r, list(columns)] = values
        return cls(
            matrix,
            np.array(index, np.int64).reshape(A, -1),
            np.array(constant).reshape(A, -1),
            names,
        )

    @property
    def independent(self) -> bool:
        """Whether no row is a combination of others: each has an atom of its own, or the
        singular values say so.
        """
        users = np.count_nonzero(self.matrix, axis=0)
        if np.all((self.matrix[:, users == 1] != 0).any(axis=1)):
            return True
        if not 0 < len(self.matrix) <= MOST_ROWS:
            return False
        unit = self.matrix / np.linalg.norm(self.matrix, axis=1, keepdims=True)
        return (
            bool(np.linalg.svd(unit, compute_uv=False)[-1] > APART)
            if unit.shape[0] <= unit.shape[1]
            else False
        )


def what_data_see(reader: RowReader) -> Seen | Refusal:
    """Coordinates and predictor of a reading that found a family."""
    verdict, tables = reader.verdict, reader.tables()
    space = _Coordinates(reader, tables)
    rows = _Rows.of(space, tables.cuts)
    low, high = space.ranges()
    # what meets the data is itself the coordinate: fewer of them than atoms, and arms stand apart
    if rows.independent:
        back = None
        names, (box_low, box_high) = tuple(rows.names), over_box(rows.matrix, low, high)
        matrix = rows.matrix
    else:
        used = np.flatnonzero(rows.matrix.any(axis=0))
        back = rows.matrix[:, used]
        atoms = space.names()
        names, box_low, box_high = tuple(atoms[j] for j in used), low[used], high[used]
        matrix = np.eye(space.q)[used]

    walls = _walls_of(matrix, *space.walls())

    def from_theta(theta: np.ndarray) -> np.ndarray:
        return np.asarray(space.values(theta) @ matrix.T)

    def parts(x: np.ndarray, a: np.ndarray) -> list[np.ndarray]:
        slots, offset, *others = reader.rows(x, a)
        action = np.asarray(a, np.int64) if reader.n_actions else np.zeros(len(a), np.int64)
        features, shift = _gathered(
            slots, rows.index[action], rows.constant[action], len(rows.matrix)
        )
        features = (
            features
            if back is None
            else np.moveaxis(np.tensordot(features, back, axes=(1, 0)), -1, 1)
        )
        return [features, offset + shift, *others]

    seen = Seen(
        names, box_low, box_high, from_theta, by_action=any(atom.by_action for atom in tables.atoms)
    )
    if verdict.family == "Ordered":
        edges = ordered_from(
            lambda x, a: [
                np.swapaxes(part, 1, 2) if part.ndim == 3 else part for part in parts(x, a)[:2]
            ],
            verdict.link,
        )
        return replace(seen, ordered=replace(edges, walls=walls))
    by_context = reader.is_affine_by_context()
    table = Tabulated(parts, unit_slopes(parts), len(names)) if by_context else None
    predictor = predictor_from(verdict.family, verdict.link, verdict.others, parts, table)
    predictor = replace(predictor, walls=walls)
    if not tables.unknown:
        return replace(seen, predictor=predictor)
    if verdict.family in SCALED:
        return replace(
            seen,
            location_scale=_with_scale(space, tables.unknown, verdict.family, predictor, seen),
        )
    (unknown,) = tables.unknown
    return _with_nuisance(space, unknown, verdict, seen, predictor, matrix)


def _gathered(
    slots: np.ndarray, index: np.ndarray, constant: np.ndarray, n_rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of slots (n, S, ...) as coefficients of rows (n, R, ...), and what their
    constants add (n, ...).
    """
    n = len(slots)
    out = np.zeros((n, n_rows + 1, *slots.shape[2:]))
    # the last column takes what no parameter moves
    np.add.at(out, (np.arange(n)[:, None], index), slots)
    wide = constant.reshape(*constant.shape, *(1,) * (slots.ndim - 2))
    return out[:, :n_rows], (slots * wide).sum(axis=1)


def _walls_of(matrix: np.ndarray, normals: np.ndarray, limits: np.ndarray) -> Halves:
    """What A u <= b says of v = matrix u: those of its rows that v alone determines, exactly; a
    coordinate's own ends are left to its box. Rows that are left out only cost width.
    """
    if not (len(normals) and 0 < len(matrix) <= MOST_ROWS):
        return (), ()
    found = np.round(normals @ np.linalg.pinv(matrix), 9)
    kept = np.all(found @ matrix == normals, axis=1) & (np.count_nonzero(found, axis=1) > 1)
    return ((found[kept],), (limits[kept],)) if kept.any() else ((), ())


def _with_scale(
    space: _Coordinates,
    forms: Sequence[StillForm],
    family: str,
    predictor: LinearPredictor,
    seen: Seen,
) -> LocationScale:
    """Location and scale: rows with the same scale form a group."""
    reader, A = space.reader, space.reader.n_actions or 1
    keys = [
        (row, float(form.offset[action, i]))
        for action in range(A)
        for form in forms
        for i, row in enumerate(space.rows(form, action))
    ]
    groups = list(dict.fromkeys(keys))
    number = np.array([groups.index(key) for key in keys]).reshape(A, -1)

    def both(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        atoms = space.values(theta)
        scale = np.stack(
            [
                constant + atoms[:, list(columns)] @ np.array(values)
                for (columns, values), constant in groups
            ],
            axis=1,
        )
        return seen.from_theta(theta), scale

    def group(x: np.ndarray, a: np.ndarray) -> np.ndarray:
        action = np.asarray(a, np.int64) if reader.n_actions else np.zeros(len(a), np.int64)
        picks = reader.picks(np.asarray(x, float), np.asarray(a, np.int64))
        if picks is None:
            return np.asarray(number[action, 0])
        # proved when the program was read; what reads past an array's end is no entry of it
        if not np.all(((picks == 0) | (picks == 1)) & (picks.sum(axis=1, keepdims=True) == 1)):
            raise ContextRangeError(
                "a context picks none of the model's scales: its column reads past the end of "
                "their array. Give the model an entry for it, or clamp the index"
            )
        return np.asarray(number[action, picks.argmax(axis=1)])

    atoms, (low, high) = space.names(), space.ranges()
    names, ends = list(seen.names), list(zip(seen.low.tolist(), seen.high.tolist()))
    for (columns, values), constant in groups:
        alone = values == (1.0,) and constant == 0.0  # otherwise no site's bounds are its own
        names.append(atoms[columns[0]] if alone else "")
        ends.append((low[columns[0]], high[columns[0]]) if alone else (0.0, np.inf))
    return LocationScale(
        family,
        predictor.features,
        predictor.offset,
        group,
        len(groups),
        both,
        names=tuple(names),
        ends=tuple((float(lo), float(hi)) for lo, hi in ends),
    )


def _with_nuisance(
    space: _Coordinates,
    form: StillForm,
    verdict: Verdict,
    seen: Seen,
    predictor: LinearPredictor,
    matrix: np.ndarray,
) -> Seen | Refusal:
    """One number beside the predictor, the same in all rows; coordinates that are its logarithm
    are tied to it.
    """
    A = space.reader.n_actions or 1
    keys = {(space.rows(form, action)[0], float(form.offset[action, 0])) for action in range(A)}
    if len(keys) > 1:
        return Refusal(
            f"the {verdict.family}'s {verdict.unknown} differs by action; one for all can be "
            "profiled",
            form.line,
        )
    (((columns, values), constant),) = keys
    logs = [
        space.start[b]
        for b, (j, action) in enumerate(space.blocks)
        if space.tables.atoms[j].elementary == "log"
        and space.only(j, action) == ((columns, values), constant)
    ]
    if values == (1.0,) and constant == 0.0:
        at = next(b for b, first in enumerate(space.start) if first == columns[0])
        j, action = space.blocks[at]
        made_of = space.only(j, action) if space.tables.atoms[j].elementary == "exp" else None
        if made_of is not None and made_of[0][1] == (1.0,) and made_of[1] == 0.0:
            logs.append(made_of[0][0][0])
    tied = np.array([bool(np.any(row[logs] == 1.0)) and row.sum() == 1.0 for row in matrix], bool)
    tied &= np.count_nonzero(matrix, axis=1) == 1
    low, high = space.ranges()
    row = np.zeros(space.q)
    row[list(columns)] = values
    ends = over_box(row[None], low, high)

    def from_theta(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return seen.from_theta(theta)[:, ~tied], constant + space.values(theta) @ row

    return replace(
        seen,
        profiled=Profiled(
            verdict.family,
            verdict.link,
            verdict.unknown,
            features=lambda x, a: predictor.features(x, a)[:, ~tied],
            slope=lambda x, a: predictor.features(x, a)[:, tied].sum(axis=1),
            offset=predictor.offset,
            low=(seen.low[~tied], max(float(ends[0][0]) + constant, 0.0)),
            high=(seen.high[~tied], float(ends[1][0]) + constant),
            from_theta=from_theta,
        ),
    )


def narrowest(reader: Callable[[int | None], RowReader], n_actions: int | None) -> Seen | Refusal:
    """What data see, read at every action and, where actions then have values of their own, with
    the action as data too.

    The second way keeps coefficients together that actions share (t (table[a] @ w) is one w for
    all), the first takes apart what they do not; either is a proof, and the fewer coordinates, the
    narrower the set.
    """
    found = _seen_or_refused(reader(n_actions))
    if n_actions is not None and (isinstance(found, Refusal) or found.by_action):
        other = _seen_or_refused(reader(None))
        if isinstance(other, Seen) and (
            isinstance(found, Refusal) or (other.dim < found.dim and _same_kind(found, other))
        ):
            return other
    return found


def _seen_or_refused(reader: RowReader) -> Seen | Refusal:
    said = reader.verdict
    return what_data_see(reader) if said.family else Refusal(said.why, said.line)


def _same_kind(one: Seen, other: Seen) -> bool:
    return (one.location_scale is None) == (other.location_scale is None) and (
        one.profiled is None
    ) == (other.profiled is None)


def n_actions_of(program: Kernels) -> int | None:
    """How many actions a program's arrays have places for; None if they set no limit, or a very
    high one.
    """

    def fits(action: int) -> bool:
        theta = np.zeros(program.dim)
        return program.action_problem(theta, np.asarray(program.x), np.array([action])) is None

    if fits(MOST_ACTIONS) or not fits(0):
        return None
    low, high = 0, MOST_ACTIONS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return high


def _instead(kind: str) -> str:
    return f"No spelling of {kind} is exact: {INSTEAD[kind]}" if kind in INSTEAD else ""


def refused(program: Kernels, kind: str) -> Refusal | None:
    """What rules out a proof in coordinates of its own; see `gedppl.programs.affine.obstacle`."""
    why = obstacle(program, kind) or ("" if program.packaged else stranger(kind))
    if why:
        return Refusal(why)
    if kind not in OUTCOMES:
        known = ", ".join(sorted({outcome.family for outcome in OUTCOMES.values()}))
        why = (
            f"{kind or 'the outcome'} is no family whose likelihood sets are known to be convex "
            f"(known are {known} outcomes)"
        )
        ordered = (
            "; ordered categories are exact as OrderedLogistic(predictor, cutpoints), or with "
            "probs= the differences of F(cutpoints - predictor) between a 0 and a 1"
        )
        return Refusal(why + ordered * kind.startswith("Categorical"), instead=_instead(kind))
    return None
