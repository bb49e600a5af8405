"""Arrays to npz bytes and back, checked before anything is allocated and without ever unpickling.

An npz file is a zip archive of .npy files. What could go wrong with one that somebody else prepared: objects that are
pickled code, members that inflate to terabytes, headers that claim terabytes, names that climb out of a folder. Members
here are stored, not deflated, so no member can be larger than the file that was already read; a header must claim
exactly the bytes that follow it; dtypes are plain numbers; names are keys and are never used as paths.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
from collections.abc import Mapping

import numpy as np

from gedppl.errors import JournalCorruptError, RecordError

MAX_SNAPSHOT_BYTES = 512 * 2**20
MAX_MEMBERS = 10_000
_NAME = re.compile(r"[A-Za-z0-9_]+(?:[.\-/:][A-Za-z0-9_]+)*")
_KINDS = "biuf"


def pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The arrays as npz bytes.

    >>> unpack(pack({"theta": np.array([1.0, 2.0])}))["theta"]
    array([1., 2.])
    """
    if len(arrays) > MAX_MEMBERS:
        raise RecordError(f"a snapshot holds at most {MAX_MEMBERS:,} arrays, got {len(arrays):,}")
    size = 0
    for name, array in arrays.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > 200:
            raise RecordError(f"the snapshot array name {name!r} must be words of letters, digits and _ joined by . - / :")
        if not isinstance(array, np.ndarray) or array.dtype.kind not in _KINDS or array.dtype.itemsize > 8:
            what = f"an array of {array.dtype}" if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
            raise RecordError(f"the snapshot entry {name!r} is {what}: store float, integer or boolean NumPy arrays")
        size += array.nbytes
    if size > MAX_SNAPSHOT_BYTES:
        raise RecordError(f"the snapshot has {size:,} bytes, the limit is {MAX_SNAPSHOT_BYTES:,}")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
            # A fixed date: the same arrays give the same bytes and so the same hash. Written in one call: an interrupt between
            # opening and closing a member would surface as the archive's own error.
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), member.getbuffer())
    return buffer.getvalue()


def unpack(data: bytes) -> dict[str, np.ndarray]:
    """The arrays in npz bytes written by `pack`, or `JournalCorruptError` saying what was found instead."""
    if len(data) > 2 * MAX_SNAPSHOT_BYTES:
        raise JournalCorruptError(f"a snapshot has {len(data):,} bytes, the limit is {2 * MAX_SNAPSHOT_BYTES:,}")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if len(members) > MAX_MEMBERS:
                raise JournalCorruptError(f"a snapshot has {len(members):,} members, the limit is {MAX_MEMBERS:,}")
            return dict(_member(archive, member, len(data)) for member in members)
    except JournalCorruptError:
        raise
    except Exception as error:  # zipfile raises some ten kinds of exception on malformed bytes
        raise JournalCorruptError(f"a snapshot is not npz bytes: {error}") from None


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, limit: int) -> tuple[str, np.ndarray]:
    shown = repr(info.filename[:80])
    name = info.filename.removesuffix(".npy")
    if name == info.filename or not _NAME.fullmatch(name):
        raise JournalCorruptError(f"a snapshot has the member name {shown}")
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size or info.file_size > limit:
        raise JournalCorruptError(f"the snapshot member {shown} is compressed or claims {info.file_size:,} bytes")
    with archive.open(info) as stream:
        content = io.BytesIO(stream.read(info.file_size))
    version = np.lib.format.read_magic(content)
    if version not in ((1, 0), (2, 0)):
        raise JournalCorruptError(f"the snapshot member {shown} has npy version {version}")
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read_header(content)  # a literal, parsed without evaluation
    if dtype.hasobject or dtype.kind not in _KINDS or dtype.names is not None:
        raise JournalCorruptError(f"the snapshot member {shown} holds {dtype}, not plain numbers")
    body = content.getbuffer()[content.tell() :]
    if any(n < 0 for n in shape) or math.prod(shape) * dtype.itemsize != len(body):
        raise JournalCorruptError(f"the snapshot member {shown} claims shape {shape} of {dtype} in {len(body):,} bytes")
    array = np.frombuffer(body, dtype).reshape(shape, order="F" if fortran else "C").copy(order="K")
    return name, array
