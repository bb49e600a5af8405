"""Arrays to npz bytes and back, checked before anything is allocated and without ever unpickling.

`gedppl.journal.format` says what could go wrong with bytes that somebody else prepared. Members
here are stored, not deflated, so all arrays together can be no larger than the file that was
already read.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

import numpy as np

from gedppl.errors import JournalCorruptError, RecordError, UnsafeFileError
from gedppl.journal.format import MAX_MEMBERS, NAME, Npz

MAX_SNAPSHOT_BYTES = 512 * 2**20
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
        if not isinstance(name, str) or not NAME.fullmatch(name) or len(name) > 200:
            raise RecordError(
                f"the snapshot array name {name!r} must be words of letters, digits "
                "and _ joined by . - / :"
            )
        if (
            not isinstance(array, np.ndarray)
            or array.dtype.kind not in _KINDS
            or array.dtype.itemsize > 8
        ):
            what = (
                f"an array of {array.dtype}"
                if isinstance(array, np.ndarray)
                else f"a {type(array).__name__}"
            )
            raise RecordError(
                f"the snapshot entry {name!r} is {what}: store float, integer or "
                "boolean NumPy arrays"
            )
        size += array.nbytes
    if size > MAX_SNAPSHOT_BYTES:
        raise RecordError(f"the snapshot has {size:,} bytes, the limit is {MAX_SNAPSHOT_BYTES:,}")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
            # A fixed date: the same arrays give the same bytes and so the same hash. Written in one
            # call: an interrupt between opening and closing a member would surface as the archive's
            # own error.
            archive.writestr(
                zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), member.getbuffer()
            )
    return buffer.getvalue()


def unpack(data: bytes) -> dict[str, np.ndarray]:
    """The arrays in npz bytes written by `pack`, or `JournalCorruptError` saying what was found
    instead.
    """
    if len(data) > 2 * MAX_SNAPSHOT_BYTES:
        raise JournalCorruptError(
            f"a snapshot has {len(data):,} bytes, the limit is {2 * MAX_SNAPSHOT_BYTES:,}"
        )
    try:
        with Npz(io.BytesIO(data), "a snapshot", _KINDS, (zipfile.ZIP_STORED,)) as archive:
            if archive.nbytes > len(data):  # members that share their bytes
                raise JournalCorruptError(
                    f"a snapshot of {len(data):,} bytes claims {archive.nbytes:,} bytes of arrays"
                )
            return {name: archive.read(name) for name in archive.members}
    except UnsafeFileError as error:
        raise JournalCorruptError(str(error)) from None
