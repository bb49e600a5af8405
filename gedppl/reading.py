"""Reading files that somebody else may have prepared: how much they hold is known before anything is read or inflated.

A compressed file of a megabyte may claim a terabyte; three characters of JSON may become an object of 64 bytes, nested a
million deep; an npz may hold pickled code. Here every claim is read from a header and counted against a limit first. All
functions raise `UnsafeFileError`, and only that, on whatever bytes they are given.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from gedppl.errors import UnsafeFileError

MAX_DEPTH = 64  # of JSON; ours has less than ten levels
MAX_MEMBERS = 10_000
OBJECT_BYTES = 64  # what a value of JSON costs in memory beside its text: an empty list or dict, or a short string
_CHUNK = 2**16
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
NAME = re.compile(r"[A-Za-z0-9_]+(?:[.\-/:][A-Za-z0-9_]+)*")


# bytes ----------------------------------------------------------------------------------------------------------------


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
    """The lines of a gzipped file, inflated piece by piece; at most `limit` bytes in all, and `max_line` in one."""
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


# JSON -----------------------------------------------------------------------------------------------------------------


def json_bytes(text: bytes) -> int:
    """An upper bound on the memory that this JSON needs once it is parsed: every value but the first follows one of ``[{,:``."""
    return len(text) + OBJECT_BYTES * (1 + sum(text.count(mark) for mark in (b"[", b"{", b",", b":")))


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
    if too_deep(text, MAX_DEPTH):
        raise UnsafeFileError(f"{what} is nested {json_depth(text):,} levels deep, the limit is {MAX_DEPTH}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnsafeFileError(f"{what} is no JSON: {error}") from error


# npz ------------------------------------------------------------------------------------------------------------------


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
    """An npz file whose members were looked at and not read; `kinds` are the dtype kinds that it may hold.

    An npz file is a zip archive of .npy files. The header of each must claim exactly the bytes that the archive says it has;
    names are keys and are never used as paths; nothing is unpickled.
    """

    def __init__(self, file: Path | IO[bytes], what: str, kinds: str, methods: tuple[int, ...]) -> None:
        self.what = what
        try:
            self._archive = zipfile.ZipFile(file)
        except Exception as error:  # zipfile raises some ten kinds of exception on malformed bytes
            raise UnsafeFileError(f"{what} is not npz bytes: {error}") from error
        try:
            infos = self._archive.infolist()
            if len(infos) > MAX_MEMBERS:
                raise UnsafeFileError(f"{what} has {len(infos):,} members, the limit is {MAX_MEMBERS:,}")
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
                while piece := stream.read(_CHUNK):  # to the end: only behind the last byte is the checksum looked at
                    values[filled : filled + len(piece)] = piece
                    filled += len(piece)
        except Exception as error:
            raise UnsafeFileError(f"{self._shown(member.info)} cannot be read: {type(error).__name__}: {error}") from error
        if filled != member.nbytes:
            raise UnsafeFileError(f"{self._shown(member.info)} has {filled:,} bytes and claims {member.nbytes:,}")
        return np.frombuffer(values, member.dtype).reshape(member.shape, order="F" if member.fortran else "C")

    def _header(self, info: zipfile.ZipInfo, kinds: str, methods: tuple[int, ...]) -> Member:
        shown, name = self._shown(info), info.filename.removesuffix(".npy")
        if name == info.filename or not NAME.fullmatch(name):
            raise UnsafeFileError(f"{self.what} has the member name {info.filename[:80]!r}")
        stored = info.compress_type == zipfile.ZIP_STORED
        if info.compress_type not in methods or (stored and info.file_size != info.compress_size):
            raise UnsafeFileError(f"{shown} is compressed or claims {info.file_size:,} bytes where {info.compress_size:,} are")
        try:
            with self._archive.open(info) as stream:
                version = np.lib.format.read_magic(stream)
                if version != (1, 0):  # then a header has at most 64 kB, whatever it claims
                    raise UnsafeFileError(f"{shown} has npy version {version}")
                shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)  # a literal, parsed without evaluation
                start = stream.tell()
        except UnsafeFileError:
            raise
        except Exception as error:  # of zipfile, zlib, NumPy and Python's tokenizer
            raise UnsafeFileError(f"{shown} is no array: {type(error).__name__}: {error}") from error
        if dtype.hasobject or dtype.kind not in kinds or dtype.names is not None:
            raise UnsafeFileError(f"{shown} holds {dtype}, not plain numbers")
        nbytes = math.prod(shape) * dtype.itemsize
        if any(n < 0 for n in shape) or len(shape) > 32 or start + nbytes != info.file_size:
            raise UnsafeFileError(f"{shown} claims shape {shape} of {dtype} in {info.file_size - start:,} bytes")
        return Member(name, info, shape, dtype, fortran, start, nbytes)

    def _shown(self, info: zipfile.ZipInfo) -> str:
        return f"{self.what}, member {info.filename[:80]!r},"
