"""What a journal's bytes mean: records, the hash chain over them, the head file's slots, the frozen
protocol.

Pure functions only; nothing here touches a file. A record is one row of the database:

    sequence  0, 1, 2, ... without gaps; record 0 is the frozen protocol
    batch     the sequence number of the first record of the same transaction
    time_ns
        wall clock, nanoseconds since 1970 (for readers; the order is the sequence, so a clock may
        jump)
    kind      one of `KINDS`
    payload
        JSON; an array is {"$array": [dtype, shape, offset]} and its bytes lie at that offset of
        `arrays`
    arrays    raw little-endian bytes, so that float64 values come back bit for bit
    hash      SHA-256(hash of the record before, all of the above), 32 bytes

Decoding reads JSON and copies bytes; it runs nothing that the file contains.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from gedppl.errors import JournalCorruptError, RecordError, UnsafeFileError

MAX_JSON_DEPTH = 64  # of JSON; ours has less than ten levels
MAX_MEMBERS = 10_000
# what a value of JSON costs in memory beside its text: an empty list or dict, or a short string
OBJECT_BYTES = 64
_CHUNK = 2**16
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
NAME = re.compile(r"[A-Za-z0-9_]+(?:[.\-/:][A-Za-z0-9_]+)*")


# bytes --------------------------------------------------------------------------------------------


def contents(path: Path, limit: int) -> bytes:
    """A file's bytes, if it is a plain file of at most `limit` bytes."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise UnsafeFileError(f"{path.name} has {size:,} bytes, the limit is {limit:,}")
            data = file.read(limit + 1)
    except OSError as error:
        raise UnsafeFileError(f"{path.name}: {error}") from error
    if len(data) > limit:  # a pipe, or a file that grows
        raise UnsafeFileError(f"{path.name} has more than {limit:,} bytes")
    return data


def sha256(path: Path) -> str:
    """The file's hash, read by chunks."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UnsafeFileError(f"{path.name}: {error}") from error


def lines(path: Path, limit: int, max_line: int) -> Iterator[bytes]:
    """The lines of a gzipped file, inflated piece by piece; at most `limit` bytes in all, and
    `max_line` in one.
    """
    inflater, rest, total = zlib.decompressobj(wbits=31), b"", 0
    try:
        with open(path, "rb") as file:
            pending = file.read(_CHUNK)
            while pending or not inflater.eof:
                if not pending:
                    raise UnsafeFileError(f"{path.name} ends in the middle of its compressed data")
                piece = inflater.decompress(pending, _CHUNK)
                total += len(piece)
                if total > limit:
                    raise UnsafeFileError(f"{path.name} inflates to more than {limit:,} bytes")
                *whole, rest = (rest + piece).split(b"\n")
                if len(rest) > max_line:
                    raise UnsafeFileError(f"{path.name} has a line of more than {max_line:,} bytes")
                yield from whole
                if inflater.eof and (inflater.unused_data or file.read(1)):
                    raise UnsafeFileError(f"{path.name} goes on behind its compressed data")
                pending = b"" if inflater.eof else inflater.unconsumed_tail or file.read(_CHUNK)
    except (OSError, zlib.error) as error:
        raise UnsafeFileError(f"{path.name}: {error}") from error
    if total:
        yield rest


# JSON ---------------------------------------------------------------------------------------------


def json_bytes(text: bytes) -> int:
    """An upper bound on the memory that this JSON needs once it is parsed: every value but the
    first follows one of ``[{,:``.
    """
    return len(text) + OBJECT_BYTES * (
        1 + sum(text.count(mark) for mark in (b"[", b"{", b",", b":"))
    )


def json_depth(text: bytes) -> int:
    """How many brackets are open at once, at most; those inside strings do not count.

    >>> json_depth(b'{"a[[[": [1, {}]}')
    3
    """
    bare = np.frombuffer(_STRING.sub(b"", text), np.uint8)
    opened, closed = (np.isin(bare, np.frombuffer(marks, np.uint8)) for marks in (b"[{", b"]}"))
    steps = opened.astype(np.int8) - closed.astype(np.int8)
    return int(np.cumsum(steps, dtype=np.int64).max(initial=0))


def too_deep(text: bytes, limit: int) -> bool:
    """Whether the JSON is nested deeper than `limit`; most is told by counting its brackets."""
    return text.count(b"[") + text.count(b"{") > limit and json_depth(text) > limit


def parsed(text: bytes, what: str, limit: int) -> Any:
    """JSON as plain values, if it is not nested too deeply and they need at most `limit` bytes."""
    needed = json_bytes(text)
    if needed > limit:
        raise UnsafeFileError(f"{what} would need {needed:,} bytes, the limit is {limit:,}")
    if too_deep(text, MAX_JSON_DEPTH):
        raise UnsafeFileError(
            f"{what} is nested {json_depth(text):,} levels deep, the limit is {MAX_JSON_DEPTH}"
        )
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnsafeFileError(f"{what} is no JSON: {error}") from error


# npz ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Member:
    """One array of an npz file, as its headers describe it."""

    name: str
    info: zipfile.ZipInfo
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    start: int  # where in the member the values begin
    nbytes: int  # of the values


class Npz:
    """An npz file whose members were looked at and not read; `kinds` are the dtype kinds that it
    may hold.

    An npz file is a zip archive of .npy files. The header of each must claim exactly the bytes that
    the archive says it has; names are keys and are never used as paths; nothing is unpickled.
    """

    def __init__(
        self, file: Path | IO[bytes], what: str, kinds: str, methods: tuple[int, ...]
    ) -> None:
        self.what = what
        try:
            self._archive = zipfile.ZipFile(file)
        except Exception as error:  # zipfile raises some ten kinds of exception on malformed bytes
            raise UnsafeFileError(f"{what} is not npz bytes: {error}") from error
        try:
            infos = self._archive.infolist()
            if len(infos) > MAX_MEMBERS:
                raise UnsafeFileError(
                    f"{what} has {len(infos):,} members, the limit is {MAX_MEMBERS:,}"
                )
            found = [self._header(info, kinds, methods) for info in infos]
        except BaseException:
            self._archive.close()
            raise
        self.members = {member.name: member for member in found}
        if len(self.members) != len(found):
            self._archive.close()
            raise UnsafeFileError(f"{what} has two members of one name")

    def __enter__(self) -> Npz:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    @property
    def nbytes(self) -> int:
        """What all arrays together need."""
        return sum(member.nbytes for member in self.members.values())

    def read(self, name: str) -> np.ndarray:
        """One array."""
        member = self.members.get(name)
        if member is None:
            raise UnsafeFileError(f"{self.what} lacks the array {name!r}")
        values, filled = memoryview(bytearray(member.nbytes)), 0
        try:
            with self._archive.open(member.info) as stream:
                stream.read(member.start)
                # to the end: only behind the last byte is the checksum looked at
                while piece := stream.read(_CHUNK):
                    values[filled : filled + len(piece)] = piece
                    filled += len(piece)
        except Exception as error:
            raise UnsafeFileError(
                f"{self._shown(member.info)} cannot be read: {type(error).__name__}: {error}"
            ) from error
        if filled != member.nbytes:
            raise UnsafeFileError(
                f"{self._shown(member.info)} has {filled:,} bytes and claims {member.nbytes:,}"
            )
        return np.frombuffer(values, member.dtype).reshape(
            member.shape, order="F" if member.fortran else "C"
        )

    def _header(self, info: zipfile.ZipInfo, kinds: str, methods: tuple[int, ...]) -> Member:
        shown, name = self._shown(info), info.filename.removesuffix(".npy")
        if name == info.filename or not NAME.fullmatch(name):
            raise UnsafeFileError(f"{self.what} has the member name {info.filename[:80]!r}")
        stored = info.compress_type == zipfile.ZIP_STORED
        if info.compress_type not in methods or (stored and info.file_size != info.compress_size):
            raise UnsafeFileError(
                f"{shown} is compressed or claims {info.file_size:,} bytes where "
                f"{info.compress_size:,} are"
            )
        try:
            with self._archive.open(info) as stream:
                version = np.lib.format.read_magic(stream)
                if version != (1, 0):  # then a header has at most 64 kB, whatever it claims
                    raise UnsafeFileError(f"{shown} has npy version {version}")
                # a literal, parsed without evaluation
                shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
                start = stream.tell()
        except UnsafeFileError:
            raise
        except Exception as error:  # of zipfile, zlib, NumPy and Python's tokenizer
            raise UnsafeFileError(
                f"{shown} is no array: {type(error).__name__}: {error}"
            ) from error
        if dtype.hasobject or dtype.kind not in kinds or dtype.names is not None:
            raise UnsafeFileError(f"{shown} holds {dtype}, not plain numbers")
        nbytes = math.prod(shape) * dtype.itemsize
        if any(n < 0 for n in shape) or len(shape) > 32 or start + nbytes != info.file_size:
            raise UnsafeFileError(
                f"{shown} claims shape {shape} of {dtype} in {info.file_size - start:,} bytes"
            )
        return Member(name, info, shape, dtype, fortran, start, nbytes)

    def _shown(self, info: zipfile.ZipInfo) -> str:
        return f"{self.what}, member {info.filename[:80]!r},"


FORMAT = 1
APPLICATION_ID = 0x67656470  # "gedp", stored in the database's header
KINDS = ("decision", "outcome", "amend", "observe", "change", "alarm", "snapshot")
MAX_RECORD_BYTES = 16 * 2**20
MAX_DECODED_BYTES = 128 * 2**20  # an upper bound on what a payload needs in memory
# ==================================================================================================
# Reading files that somebody else may have prepared: how much they hold is known before anything is
# read or inflated.
#
# A compressed file of a megabyte may claim a terabyte; three characters of JSON may become an
# object of 64 bytes, nested a million deep; an npz may hold pickled code. Here every claim is read
# from a header and counted against a limit first. All functions raise `UnsafeFileError`, and only
# that, on whatever bytes they are given.
# ==================================================================================================

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


# payloads -----------------------------------------------------------------------------------------


def encode(payload: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """A payload as (JSON, array bytes), lossless for finite floats, NaN, infinities and integer and
    boolean arrays.

    >>> encode({"x": np.array([0.5, 2.0])})[0]
    b'{"x":{"$array":["<f8",[2],0]}}'

    Tuples come back as lists and NumPy scalars as Python numbers; anything else that JSON lacks is
    refused.
    """
    chunks: list[bytes] = []
    offset = 0

    def array(value: np.ndarray, where: str) -> dict[str, Any]:
        nonlocal offset
        little = value.dtype.newbyteorder("<")
        if little.str not in _DTYPES:
            raise RecordError(
                f"{where} is an array of {value.dtype}: store float, integer or boolean arrays"
            )
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
                raise RecordError(
                    f"{where} is an integer of {value.bit_length()} bits: the limit "
                    f"is {_MAX_INT_BITS}"
                )
            return value
        if depth >= MAX_DEPTH:
            raise RecordError(
                f"{where} is nested deeper than {MAX_DEPTH} levels: flatten the payload"
            )
        if isinstance(value, np.ndarray):
            return array(value, where)
        if isinstance(value, list | tuple):
            return [plain(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
        if isinstance(value, Mapping):
            out = {}
            for key, v in value.items():
                if not isinstance(key, str) or key == _ARRAY:
                    raise RecordError(
                        f"{where} has the key {key!r}: keys must be strings other than {_ARRAY!r}"
                    )
                out[key] = plain(v, f"{where}.{key}", depth + 1)
            return out
        raise RecordError(
            f"{where} is a {type(value).__name__}, which cannot be stored: use numbers, strings, "
            "lists, dicts and NumPy arrays"
        )

    if not isinstance(payload, Mapping):
        raise RecordError(f"a payload must be a dict, got {type(payload).__name__}")
    text = json.dumps(plain(payload, "payload", 0), separators=(",", ":")).encode("ascii")
    blob = b"".join(chunks)
    if json_bytes(text) > MAX_DECODED_BYTES:
        raise RecordError(
            f"the record would need {json_bytes(text):,} bytes when read: store long "
            "lists of numbers as arrays"
        )
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
        if (
            len(node) != 1
            or dtype is None
            or type(shape) is not list
            or type(start) is not int
            or len(shape) > MAX_DEPTH
        ):
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

    # an array is two levels
    if json_bytes(text) > MAX_DECODED_BYTES or too_deep(text, MAX_DEPTH + 2):
        raise JournalCorruptError(
            f"a payload of {len(text):,} bytes is nested too deeply or holds too many values"
        )
    try:
        payload = json.loads(text, object_hook=revive)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise JournalCorruptError(f"a payload cannot be decoded: {error}") from None
    if not isinstance(payload, dict):
        raise JournalCorruptError(f"a payload is a {type(payload).__name__}, not an object")
    return payload


def chain(
    previous: bytes, sequence: int, batch: int, time_ns: int, kind: bytes, text: bytes, blob: bytes
) -> bytes:
    """SHA-256 over the hash before and this record; lengths are hashed too, so no byte can move
    between fields.
    """
    lengths = struct.pack("<QQqQQQ", sequence, batch, time_ns, len(kind), len(text), len(blob))
    return hashlib.sha256(b"".join((previous, lengths, kind, text, blob))).digest()


def checked(row: tuple[Any, ...], sequence: int, previous: bytes) -> RawRecord:
    """The row as a `RawRecord`, if it is the record that belongs at `sequence` after `previous`."""
    types = (int, int, int, bytes, bytes, bytes, bytes)
    if len(row) != len(types) or any(type(v) is not t for v, t in zip(row, types)):
        raise JournalCorruptError(f"record {sequence} has columns of the wrong types")
    raw = RawRecord(*row)
    if raw.sequence != sequence:
        raise JournalCorruptError(
            f"record {sequence} is missing: the next one found is {raw.sequence}"
        )
    if not 0 <= raw.batch <= raw.sequence:
        raise JournalCorruptError(f"record {sequence} says its transaction began at {raw.batch}")
    if chain(previous, *raw[:6]) != raw.hash:
        raise JournalCorruptError(
            f"record {sequence} does not match its hash: it, or its order, was altered"
        )
    return raw


# the head file ------------------------------------------------------------------------------------
#
# Two slots, each in a disk block of its own, written in turn: generation g goes to slot g % 2, so
# that a write torn by a power failure leaves the slot before it whole.

SLOT_BYTES = 4096
HEAD_BYTES = 2 * SLOT_BYTES
_MAGIC = b"gedhead1"
_SLOT = struct.Struct("<8sQQ32s")


@dataclass(frozen=True)
class Head:
    """How many records were acknowledged and the hash of the last, as synced apart from the
    database.
    """

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

    A slot is damaged by a write torn by a power failure, or later. The two can be told apart with
    the database: a slot is only ever written after its records were committed, so after a torn
    write the database is ahead of the head.
    """
    slots = [_read_slot(data, 0), _read_slot(data, 1)]
    valid = [s for s in slots if s is not None]
    if not valid:
        raise JournalCorruptError(f"the head file ({len(data)} bytes) has no readable slot")
    head = max(valid, key=lambda s: s.generation)
    if len(valid) == 2 and abs(valid[0].generation - valid[1].generation) != 1:
        raise JournalCorruptError(
            f"the head file's slots are {valid[0].generation} and "
            f"{valid[1].generation}, not neighbours"
        )
    never_written = head.generation == 1 and data[:SLOT_BYTES] == bytes(SLOT_BYTES)
    return head, len(valid) == 1 and not never_written


# the frozen protocol ------------------------------------------------------------------------------


def fingerprint(value: Mapping[str, Any]) -> str:
    """SHA-256 of a payload, the same whatever the order of its keys.

    >>> fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    True
    """
    leaves = json.dumps(sorted(_leaves(decode(*encode(value)), "").items()))
    return hashlib.sha256(leaves.encode("ascii")).hexdigest()


def protocol_differences(
    recorded: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, tuple[str, str]]:
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
    """Versions of Python, the processor kind and the numerical packages installed (none is
    imported).
    """
    versions = {"python": platform.python_version(), "machine": platform.machine()}
    for name in _STACK:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
