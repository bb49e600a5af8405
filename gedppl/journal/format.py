"""What a journal's bytes mean: records, the hash chain over them, the head file's slots, the frozen protocol.

Pure functions only; nothing here touches a file. A record is one row of the database:

    sequence  0, 1, 2, ... without gaps; record 0 is the frozen protocol
    batch     the sequence number of the first record of the same transaction
    time_ns   wall clock, nanoseconds since 1970 (for readers; the order is the sequence, so a clock may jump)
    kind      one of `KINDS`
    payload   JSON; an array is {"$array": [dtype, shape, offset]} and its bytes lie at that offset of `arrays`
    arrays    raw little-endian bytes, so that float64 values come back bit for bit
    hash      SHA-256(hash of the record before, all of the above), 32 bytes

Decoding reads JSON and copies bytes; it runs nothing that the file contains.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from gedppl.errors import JournalCorruptError, RecordError
from gedppl.reading import json_bytes, too_deep

FORMAT = 1
APPLICATION_ID = 0x67656470  # "gedp", stored in the database's header
KINDS = ("decision", "outcome", "amend", "observe", "change", "alarm", "snapshot")
MAX_RECORD_BYTES = 16 * 2**20
MAX_DECODED_BYTES = 128 * 2**20  # an upper bound on what a payload needs in memory
MAX_DEPTH = 32
GENESIS = hashlib.sha256(b"gedppl journal").digest()

_ARRAY = "$array"
_NAMES = ("<f8", "<f4", "<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1", "|b1")
_DTYPES = {name: np.dtype(name) for name in _NAMES}
_MAX_INT_BITS = 4096  # a generator's state is a 128-bit integer; thousands of digits are an attack


class Record(NamedTuple):
    """One decoded record."""

    sequence: int
    time_ns: int
    kind: str
    payload: dict[str, Any]

    @property
    def time(self) -> str:
        """The wall-clock time in ISO form, UTC."""
        return datetime.fromtimestamp(self.time_ns / 1e9, UTC).isoformat(timespec="microseconds")


class RawRecord(NamedTuple):
    """One row as it lies in the database."""

    sequence: int
    batch: int
    time_ns: int
    kind: bytes
    payload: bytes
    arrays: bytes
    hash: bytes


# payloads -------------------------------------------------------------------------------------------------------------


def encode(payload: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """A payload as (JSON, array bytes), lossless for finite floats, NaN, infinities and integer and boolean arrays.

    >>> encode({"x": np.array([0.5, 2.0])})[0]
    b'{"x":{"$array":["<f8",[2],0]}}'

    Tuples come back as lists and NumPy scalars as Python numbers; anything else that JSON lacks is refused.
    """
    chunks: list[bytes] = []
    offset = 0

    def array(value: np.ndarray, where: str) -> dict[str, Any]:
        nonlocal offset
        little = value.dtype.newbyteorder("<")
        if little.str not in _DTYPES:
            raise RecordError(f"{where} is an array of {value.dtype}: store float, integer or boolean arrays")
        data = np.ascontiguousarray(value, little).tobytes()
        data += bytes(-len(data) % 8)  # so that every array starts aligned
        start, offset = offset, offset + len(data)
        chunks.append(data)
        return {_ARRAY: [little.str, list(value.shape), start]}

    def plain(value: Any, where: str, depth: int) -> Any:
        if value is None or isinstance(value, str | bool | float):
            return float(value) if isinstance(value, np.floating) else value
        if isinstance(value, np.generic) and not isinstance(value, np.longdouble):
            return plain(value.item(), where, depth)
        if isinstance(value, int):
            if value.bit_length() > _MAX_INT_BITS:
                raise RecordError(f"{where} is an integer of {value.bit_length()} bits: the limit is {_MAX_INT_BITS}")
            return value
        if depth >= MAX_DEPTH:
            raise RecordError(f"{where} is nested deeper than {MAX_DEPTH} levels: flatten the payload")
        if isinstance(value, np.ndarray):
            return array(value, where)
        if isinstance(value, list | tuple):
            return [plain(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
        if isinstance(value, Mapping):
            out = {}
            for key, v in value.items():
                if not isinstance(key, str) or key == _ARRAY:
                    raise RecordError(f"{where} has the key {key!r}: keys must be strings other than {_ARRAY!r}")
                out[key] = plain(v, f"{where}.{key}", depth + 1)
            return out
        raise RecordError(
            f"{where} is a {type(value).__name__}, which cannot be stored: use numbers, strings, lists, dicts and NumPy arrays"
        )

    if not isinstance(payload, Mapping):
        raise RecordError(f"a payload must be a dict, got {type(payload).__name__}")
    text = json.dumps(plain(payload, "payload", 0), separators=(",", ":")).encode("ascii")
    blob = b"".join(chunks)
    if json_bytes(text) > MAX_DECODED_BYTES:
        raise RecordError(f"the record would need {json_bytes(text):,} bytes when read: store long lists of numbers as arrays")
    if len(text) + len(blob) > MAX_RECORD_BYTES:
        raise RecordError(
            f"the record has {len(text) + len(blob):,} bytes, the limit is {MAX_RECORD_BYTES:,}: "
            "split it, or keep large arrays in a snapshot"
        )
    return text, blob


def decode(text: bytes, blob: bytes) -> dict[str, Any]:
    """The payload that `encode` was given; arrays are read-only views of `blob`."""

    def revive(node: dict[str, Any]) -> Any:
        if _ARRAY not in node:
            return node
        name, shape, start = node[_ARRAY]
        dtype = _DTYPES.get(name)
        if len(node) != 1 or dtype is None or type(shape) is not list or type(start) is not int or len(shape) > MAX_DEPTH:
            raise ValueError(f"bad array {node[_ARRAY]!r}")
        count = 1
        for n in shape:
            if type(n) is not int or not 0 <= n < 2**31:
                raise ValueError(f"bad array shape {shape!r}")
            count *= n
        if start < 0 or start % 8 or start + count * dtype.itemsize > len(blob):
            raise ValueError(f"array {node[_ARRAY]!r} lies outside its {len(blob)} bytes")
        flat = np.frombuffer(blob, dtype, count, start) if count else np.empty(0, dtype)
        return flat if shape == [count] else flat.reshape(shape)

    if json_bytes(text) > MAX_DECODED_BYTES or too_deep(text, MAX_DEPTH + 2):  # an array is two levels
        raise JournalCorruptError(f"a payload of {len(text):,} bytes is nested too deeply or holds too many values")
    try:
        payload = json.loads(text, object_hook=revive)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise JournalCorruptError(f"a payload cannot be decoded: {error}") from None
    if not isinstance(payload, dict):
        raise JournalCorruptError(f"a payload is a {type(payload).__name__}, not an object")
    return payload


def chain(previous: bytes, sequence: int, batch: int, time_ns: int, kind: bytes, text: bytes, blob: bytes) -> bytes:
    """SHA-256 over the hash before and this record; lengths are hashed too, so no byte can move between fields."""
    lengths = struct.pack("<QQqQQQ", sequence, batch, time_ns, len(kind), len(text), len(blob))
    return hashlib.sha256(b"".join((previous, lengths, kind, text, blob))).digest()


def checked(row: tuple[Any, ...], sequence: int, previous: bytes) -> RawRecord:
    """The row as a `RawRecord`, if it is the record that belongs at `sequence` after `previous`."""
    types = (int, int, int, bytes, bytes, bytes, bytes)
    if len(row) != len(types) or any(type(v) is not t for v, t in zip(row, types)):
        raise JournalCorruptError(f"record {sequence} has columns of the wrong types")
    raw = RawRecord(*row)
    if raw.sequence != sequence:
        raise JournalCorruptError(f"record {sequence} is missing: the next one found is {raw.sequence}")
    if not 0 <= raw.batch <= raw.sequence:
        raise JournalCorruptError(f"record {sequence} says its transaction began at {raw.batch}")
    if chain(previous, *raw[:6]) != raw.hash:
        raise JournalCorruptError(f"record {sequence} does not match its hash: it, or its order, was altered")
    return raw


# the head file --------------------------------------------------------------------------------------------------------
#
# Two slots, each in a disk block of its own, written in turn: generation g goes to slot g % 2, so that a write torn by
# a power failure leaves the slot before it whole.

SLOT_BYTES = 4096
HEAD_BYTES = 2 * SLOT_BYTES
_MAGIC = b"gedhead1"
_SLOT = struct.Struct("<8sQQ32s")


@dataclass(frozen=True)
class Head:
    """How many records were acknowledged and the hash of the last, as synced apart from the database."""

    generation: int
    count: int
    hash: bytes

    def slot(self) -> tuple[int, bytes]:
        """Where in the head file it goes, and the bytes."""
        body = _SLOT.pack(_MAGIC, self.generation, self.count, self.hash)
        return (self.generation % 2) * SLOT_BYTES, body + hashlib.sha256(body).digest()


def _read_slot(data: bytes, index: int) -> Head | None:
    piece = data[index * SLOT_BYTES : index * SLOT_BYTES + _SLOT.size + 32]
    if len(piece) < _SLOT.size + 32 or hashlib.sha256(piece[:-32]).digest() != piece[-32:]:
        return None
    magic, generation, count, last = _SLOT.unpack(piece[:-32])
    return Head(generation, count, last) if magic == _MAGIC and generation % 2 == index else None


def read_head(data: bytes) -> tuple[Head, bool]:
    """The newest head in the file's bytes, and whether its other slot is damaged.

    A slot is damaged by a write torn by a power failure, or later. The two can be told apart with the database: a slot
    is only ever written after its records were committed, so after a torn write the database is ahead of the head.
    """
    slots = [_read_slot(data, 0), _read_slot(data, 1)]
    valid = [s for s in slots if s is not None]
    if not valid:
        raise JournalCorruptError(f"the head file ({len(data)} bytes) has no readable slot")
    head = max(valid, key=lambda s: s.generation)
    if len(valid) == 2 and abs(valid[0].generation - valid[1].generation) != 1:
        raise JournalCorruptError(f"the head file's slots are {valid[0].generation} and {valid[1].generation}, not neighbours")
    never_written = head.generation == 1 and data[:SLOT_BYTES] == bytes(SLOT_BYTES)
    return head, len(valid) == 1 and not never_written


# the frozen protocol --------------------------------------------------------------------------------------------------


def fingerprint(value: Mapping[str, Any]) -> str:
    """SHA-256 of a payload, the same whatever the order of its keys.

    >>> fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    True
    """
    leaves = json.dumps(sorted(_leaves(decode(*encode(value)), "").items()))
    return hashlib.sha256(leaves.encode("ascii")).hexdigest()


def protocol_differences(recorded: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Where two protocols differ: dotted path -> (recorded, given), each as JSON or "absent".

    >>> protocol_differences({"delta": 0.05, "problem": "a"}, {"delta": 0.1, "problem": "a"})
    {'delta': ('0.05', '0.1')}
    """
    old, new = _leaves(decode(*encode(recorded)), ""), _leaves(decode(*encode(given)), "")
    paths = sorted(old.keys() | new.keys())
    pairs = {path: (old.get(path, "absent"), new.get(path, "absent")) for path in paths}
    return {path: pair for path, pair in pairs.items() if pair[0] != pair[1]}


def _leaves(value: Any, path: str) -> dict[str, str]:
    """Every leaf of a decoded payload as JSON, by dotted path; an empty dict is a leaf."""
    if isinstance(value, dict) and value:
        out: dict[str, str] = {}
        for key, inner in value.items():
            out |= _leaves(inner, f"{path}.{key}" if path else key)
        return out
    return {path: json.dumps(value, default=lambda a: [str(a.dtype), list(a.shape), a.tolist()])}


_STACK = ("gedppl", "numpy", "scipy", "jax", "jaxlib", "numpyro", "pyro-ppl", "torch")


def running_versions() -> dict[str, str]:
    """Versions of Python, the processor kind and the numerical packages installed (none is imported)."""
    versions = {"python": platform.python_version(), "machine": platform.machine()}
    for name in _STACK:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
