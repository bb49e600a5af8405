"""A journal's files: opening, locking, syncing, and checking that the database and its head agree.

Everything is checked on a read-only connection before anything is opened for writing, so that a
journal that is refused stays byte for byte as it was found.
"""

from __future__ import annotations

import contextlib
import io
import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gedppl.errors import (
    JournalCorruptError,
    JournalError,
    JournalFullError,
    JournalLockedError,
    JournalVersionError,
)
from gedppl.journal.format import (
    APPLICATION_ID,
    FORMAT,
    GENESIS,
    HEAD_BYTES,
    MAX_RECORD_BYTES,
    Head,
    RawRecord,
    Record,
    checked,
    decode,
    fingerprint,
    read_head,
)

_SCHEMA = {
    b"records": b"CREATE TABLE records (sequence INTEGER PRIMARY KEY, batch INTEGER, time_ns "
    b"INTEGER, kind TEXT, "
    b"payload TEXT, arrays BLOB, hash BLOB)",
    b"snapshots": b"CREATE TABLE snapshots (sequence INTEGER PRIMARY KEY, data BLOB)",
}
INSERT = "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?)"
_SELECT = (
    "SELECT sequence, batch, time_ns, kind, payload, arrays, hash FROM records "
    "WHERE sequence >= ? AND sequence < ? ORDER BY sequence LIMIT ?"
)
_ROW_OVERHEAD = 65536
# rows fetched at once: this many, or the first that together have so many bytes
_CHUNK, _CHUNK_BYTES = 256, 16 * 2**20
_FOREVER = 2**62


# files --------------------------------------------------------------------------------------------


def resolved(path: Any) -> Path:
    """An absolute path, links followed: it stays the same if the process changes its folder
    later.
    """
    try:
        found = Path(os.fsdecode(path)).resolve()
        if os.path.islink(found):  # Python 3.13 hands a loop of links back as it is
            raise OSError("its links lead in a circle")
        return found
    except (TypeError, ValueError, OSError, RuntimeError) as error:
        raise JournalError(
            f"a journal's path must be a text or a path, got {path!r}: {error}"
        ) from None


class HeadFile(io.FileIO):
    """The head file, open. Whoever drops it releases its lock: no interrupt leaves a lock that
    nobody holds.
    """

    def __init__(self, path: Path, *, create: bool) -> None:
        flags = os.O_RDWR | (os.O_CREAT if create else 0) | getattr(os, "O_BINARY", 0)
        super().__init__(path, "r+b", opener=lambda name, _: os.open(name, flags, 0o644))

    def __del__(self) -> None:
        self.close()


class Connection(sqlite3.Connection):
    """Closed when dropped, without a word."""

    def __del__(self) -> None:
        self.close()


def identity(path: Path) -> tuple[int, int] | None:
    """Which file this name stands for; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def head_path(path: Path) -> Path:
    return path.with_name(path.name + ".head")


def counts_records(path: Path) -> bool:
    """Whether a head file says that its journal held anything beyond the protocol.

    A creation is interrupted with a head file that is short, empty or counts the protocol alone,
    and with no database yet: it can be repeated, because nothing was ever recorded.
    """
    if not os.path.exists(path):
        return False
    data = path.read_bytes()[:HEAD_BYTES]
    if len(data) < HEAD_BYTES or not any(data):
        return False
    with contextlib.suppress(JournalCorruptError):
        return read_head(data)[0].count > 1
    return True  # it held something once


def connect(path: Path, *, writable: bool, create: bool = False) -> sqlite3.Connection:
    mode = "rwc" if create else "rw" if writable else "ro"
    wal = Path(f"{path}-wal")
    if (
        not writable
        and not os.access(path.parent, os.W_OK)
        and not (wal.exists() and wal.stat().st_size)
    ):
        # an archive that nobody writes to: SQLite need not, and cannot, leave its own files there
        mode = "ro&immutable=1"
    db = sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=5.0,
        factory=Connection,
    )
    try:
        db.text_factory = bytes
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_RECORD_BYTES + _ROW_OVERHEAD)
        if sys.version_info >= (3, 12):
            db.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
        pragmas = ["trusted_schema=OFF", "cell_size_check=ON"]
        if writable:
            pragmas += [
                "journal_mode=WAL",
                "synchronous=FULL",
                "fullfsync=ON",
                "journal_size_limit=67108864",
            ]
        for pragma in pragmas:
            db.execute(f"PRAGMA {pragma}").fetchall()
    except BaseException:
        db.close()
        raise
    return db


@contextlib.contextmanager
def length_limit(db: sqlite3.Connection, size: int) -> Iterator[None]:
    before = db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, size + _ROW_OVERHEAD)
    try:
        yield
    finally:
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, before)


def build(path: Path, first: RawRecord) -> None:
    with contextlib.closing(connect(path, writable=True, create=True)) as db:
        db.execute(f"PRAGMA application_id={APPLICATION_ID}")
        db.execute(f"PRAGMA user_version={FORMAT}")
        for statement in _SCHEMA.values():
            db.execute(statement.decode())
        db.execute(INSERT, (*first[:3], first.kind.decode(), first.payload.decode(), *first[5:]))
    with open(path, "rb+") as file:
        sync(file.fileno())


def locked(head_path: Path, path: Path, *, create: bool) -> HeadFile:
    """The head file, open and locked for this process; the system drops the lock when the
    process ends, however it ends.
    """
    try:
        file = HeadFile(head_path, create=create)
    except OSError as error:
        if create:
            raise
        fix = "open with read_only=True, or change its rights"
        raise JournalError(f"{path} cannot be opened for writing: {error}; {fix}") from error
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(HEAD_BYTES)  # a byte beyond the slots: there a lock also stops readers
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise JournalLockedError(
            f"{path} is being written by another process or another agent: close that one, or open "
            "with read_only=True"
        ) from None
    return file


def sync(file: int) -> None:
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(file, fcntl.F_FULLFSYNC)  # there fsync leaves the data in the drive's cache
    else:
        os.fsync(file)


def sync_folder(folder: Path) -> None:
    if sys.platform != "win32":  # a folder cannot be opened there
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def write_head(file: HeadFile, head: Head) -> None:
    offset, data = head.slot()
    file.seek(offset)
    if file.write(data) != len(data):
        raise OSError("short write")
    sync(file.fileno())


def written_head(file: HeadFile) -> Head:
    """The head that the file holds now."""
    file.seek(0)
    return read_head(file.read(HEAD_BYTES) or b"")[0]


def named(error: sqlite3.Error, doing: str, *, reading: bool = False) -> JournalError:
    """SQLite's error as one of ours. Only what cannot be blamed on the disk or on another
    program is called corruption.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR) and not reading:
        return JournalFullError(
            f"{doing}: {error}. Nothing was acknowledged; make room on the disk"
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return JournalLockedError(f"{doing}: another program holds the database ({error})")
    if code in (
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_AUTH,
    ):
        return JournalError(f"{doing}: {error}. Check the permissions of the file and its folder")
    return JournalCorruptError(f"{doing}: {error}")


# checking -----------------------------------------------------------------------------------------


def verify(path: Path, *, writer: bool) -> tuple[Head, RawRecord, bool]:
    """Check everything on a read-only connection, which leaves a damaged log as it is.

    Returns the head to go on from, record 0, and whether that head is ahead of the one on disk.
    """
    stray = Path(f"{path}-journal")
    if stray.exists():
        raise JournalCorruptError(
            f"{stray.name} lies beside {path}: SQLite would play it back, and no journal writes one"
        )
    try:
        data = head_path(path).read_bytes()[:HEAD_BYTES]
    except OSError as error:
        raise JournalError(
            f"{path} could not be read: {error}; check the permissions of its files"
        ) from error
    head, damaged_slot = read_head(data)
    try:
        with contextlib.closing(connect(path, writable=False)) as db:
            _check_schema(db, path)
            first, last, at_head = None, None, None
            for raw in scan(db, 0, _FOREVER, GENESIS, contextlib.nullcontext()):
                first = first or raw
                last = raw
                if raw.sequence == head.count - 1:
                    at_head = raw
    except sqlite3.Error as error:
        raise named(error, f"{path} could not be read", reading=True) from error
    except UnicodeError as error:
        # sqlite3 quotes a damaged schema in its message, and fails to decode that
        raise JournalCorruptError(f"{path} could not be read: {error}") from error
    count = 0 if last is None else last.sequence + 1
    if first is None or last is None or first.kind != b"protocol":
        raise JournalCorruptError(f"{path} does not begin with a protocol")
    _check_first(path, decode(first.payload, first.arrays))
    if at_head is None:
        raise JournalCorruptError(
            f"{path} lost records: {head.count} were acknowledged, {count} are left. Restore both "
            "files from a backup"
        )
    if at_head.hash != head.hash:
        raise JournalCorruptError(
            f"record {head.count - 1} of {path} is not the one whose hash the head file holds"
        )
    ahead = count - head.count
    if damaged_slot and not ahead:
        raise JournalCorruptError(
            f"a slot of {path.name}.head is damaged although no write was under way, so the last "
            "records may be lost"
        )
    if writer and ahead and last.batch != head.count:
        raise JournalCorruptError(
            f"{path} has {ahead} records that its head file does not know, in more than one "
            "transaction: "
            "the head file is older than the database"
        )
    return (Head(head.generation + 1, count, last.hash) if ahead else head), first, ahead > 0


def _check_schema(db: sqlite3.Connection, path: Path) -> None:
    """Before any table is read: it must be our tables, word for word, and nothing else (no
    views, no triggers).
    """
    application = db.execute("PRAGMA application_id").fetchone()[0]
    if application != APPLICATION_ID:
        raise JournalCorruptError(
            f"{path} is a database but not a gedppl journal (application id {application:#x})"
        )
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version != FORMAT:
        raise JournalVersionError(
            f"{path} has format {version}, this version of gedppl knows {FORMAT}: upgrade gedppl"
        )
    found = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    expected = {(b"table", name, name, sql) for name, sql in _SCHEMA.items()}
    for row in set(found) ^ expected:
        state = "lacks" if row in expected else "has an unexpected"
        raise JournalCorruptError(f"{path} {state} {row[0]!r} {row[1]!r} in its schema")


def _check_first(path: Path, payload: dict[str, Any]) -> None:
    protocol, key = payload.get("protocol"), payload.get("blinding_key")
    if payload.get("format") != FORMAT:
        raise JournalVersionError(
            f"{path} says format {payload.get('format')!r}, this version of gedppl knows {FORMAT}"
        )
    if not isinstance(protocol, dict) or fingerprint(protocol) != payload.get("fingerprint"):
        raise JournalCorruptError(f"the protocol of {path} does not match its fingerprint")
    if not isinstance(key, str) or len(key) != 64 or not set(key) <= set("0123456789abcdef"):
        raise JournalCorruptError(f"the protocol of {path} has no blinding key")


def fetch(db: sqlite3.Connection, start: int, stop: int, lock: Any) -> list[tuple[Any, ...]]:
    """Some of the rows from `start` on, not many bytes at once; none if there are none."""
    try:
        with lock:  # by chunks: no cursor stays open while somebody writes
            rows: list[tuple[Any, ...]] = []
            with contextlib.closing(db.execute(_SELECT, (start, stop, _CHUNK))) as found:
                size = 0
                while size < _CHUNK_BYTES and (row := found.fetchone()) is not None:
                    rows.append(row)
                    size += sum(len(value) for value in row if isinstance(value, bytes))
            return rows
    except sqlite3.ProgrammingError:
        raise JournalError("the journal was closed; open it again with Journal.open") from None
    except sqlite3.Error as error:
        raise named(
            error, f"the records from {start} on could not be read", reading=True
        ) from error


def scan(
    db: sqlite3.Connection, start: int, stop: int, previous: bytes, lock: Any
) -> Iterator[RawRecord]:
    """Rows start, start + 1, ... below stop, each checked to follow the one before."""
    while start < stop and (rows := fetch(db, start, stop, lock)):
        for row in rows:
            raw = checked(row, start, previous)
            yield raw
            start, previous = start + 1, raw.hash
    if stop != _FOREVER and start < stop:
        raise JournalCorruptError(f"record {start} is missing")


def decoded(raw: RawRecord) -> Record:
    return Record(
        raw.sequence,
        raw.time_ns,
        raw.kind.decode("ascii", "replace"),
        decode(raw.payload, raw.arrays),
    )
