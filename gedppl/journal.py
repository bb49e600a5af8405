"""Durable decisions and outcomes: an append-only, hash-chained journal in SQLite.

A journal is two files, which belong together: the database `path` (with SQLite's own `path-wal` while in use) and the
head `path.head`. What `append` returned for is safe: the record was committed and synced to the database, then its
number and hash were synced to the head. On opening, the two must agree:

    database shorter than the head, or other hashes   an acknowledged record was lost or altered: refused
    database one transaction ahead of the head        the process died between the two syncs: those records were never
                                                      acknowledged; they are whole and chained, so they are kept
    database further ahead                            the head is older than the database: refused

The chain and the head are needed: SQLite alone drops a committed row without a word when the last frame of its
write-ahead log is damaged. They find accidents. They do not stop somebody who may write both files and recomputes the
hashes; note `state_hash` elsewhere (e.g. in print) against that. A refused journal is left byte for byte as it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import sqlite3
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from gedppl import journal_export
from gedppl.errors import (
    JournalCorruptError,
    JournalError,
    JournalExistsError,
    JournalFullError,
    JournalLockedError,
    JournalMismatchError,
    JournalNotFoundError,
    JournalVersionError,
    RecordError,
)
from gedppl.journal_export import Blinding
from gedppl.journal_format import (
    APPLICATION_ID,
    FORMAT,
    GENESIS,
    HEAD_BYTES,
    KINDS,
    MAX_RECORD_BYTES,
    Head,
    RawRecord,
    Record,
    chain,
    checked,
    decode,
    encode,
    fingerprint,
    protocol_differences,
    read_head,
)
from gedppl.journal_snapshot import MAX_SNAPSHOT_BYTES, pack, unpack

_SCHEMA = {
    b"records": b"CREATE TABLE records (sequence INTEGER PRIMARY KEY, batch INTEGER, time_ns INTEGER, kind TEXT, "
    b"payload TEXT, arrays BLOB, hash BLOB)",
    b"snapshots": b"CREATE TABLE snapshots (sequence INTEGER PRIMARY KEY, data BLOB)",
}
_INSERT = "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?)"
_SELECT = (
    "SELECT sequence, batch, time_ns, kind, payload, arrays, hash FROM records "
    "WHERE sequence >= ? AND sequence < ? ORDER BY sequence LIMIT ?"
)
_ROW_OVERHEAD = 65536
_CHUNK = 256
_KEPT_SNAPSHOTS = 2
_FOREVER = 2**62


@dataclass(frozen=True)
class Snapshot:
    """A stored state: what was true after record `sequence` had been taken in."""

    sequence: int
    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]


class Journal:
    """An open journal. Make one with `Journal.create` or `Journal.open`, not by hand. Safe to share between threads.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "trial.db"
    >>> with Journal.create(path, {"problem": "demo", "delta": 0.05, "seed": 0}) as journal:
    ...     journal.append("decision", {"id": 0, "action": 2, "policy": np.array([0.0, 0.25, 0.75])})
    1
    >>> with Journal.open(path) as journal:
    ...     [(r.sequence, r.kind, r.payload["policy"].tolist()) for r in journal.records("decision")]
    [(1, 'decision', [0.0, 0.25, 0.75])]
    """

    # called with a label between the steps of an append; a crash test replaces it to die at a chosen step
    _reached: Callable[[str], None] = staticmethod(lambda label: None)

    def __init__(
        self, path: Path, connection: sqlite3.Connection, head_file: int | None, head: Head, first: RawRecord
    ) -> None:
        self.path = path
        self._connection = connection
        self._head_file = head_file  # None: opened for reading
        self._head = head
        self._first = first
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._unusable = ""
        self._clock: Callable[[], int] = time.time_ns

    # opening and closing ----------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: str | os.PathLike[str], protocol: Mapping[str, Any]) -> Journal:
        """A new journal whose record 0 is the frozen protocol: problem fingerprint, delta, seed, versions, ..."""
        path = Path(path).resolve()
        payload = {
            "format": FORMAT,
            "protocol": protocol,
            "fingerprint": fingerprint(protocol),
            "blinding_key": secrets.token_hex(32),  # lets a blinded export use the same codes every time
        }
        text, blob = encode(payload)
        if path.exists():
            raise JournalExistsError(f"{path} exists already: open it with Journal.open, or choose another path")
        try:
            head_file = _locked(_head_path(path), path, create=True)
        except OSError as error:
            raise JournalFullError(f"{_head_path(path)} could not be created: {error}") from error
        try:
            with contextlib.suppress(JournalCorruptError):
                found, _ = read_head(_head_path(path).read_bytes()[:HEAD_BYTES])
                if found.count > 1:
                    raise JournalExistsError(
                        f"{path} is gone but its head file says it held {found.count} records: "
                        "restore it from a backup, or remove the head file to begin anew"
                    )
            now = time.time_ns()
            row = RawRecord(0, 0, now, b"protocol", text, blob, chain(GENESIS, 0, 0, now, b"protocol", text, blob))
            # The database appears under its own name last and complete: a creation that was interrupted can be repeated.
            building = path.with_name(path.name + ".new")
            for leftover in (building, *(Path(f"{building}{end}") for end in ("-wal", "-shm", "-journal"))):
                leftover.unlink(missing_ok=True)
            _build(building, row)
            head = Head(1, 1, row.hash)
            os.ftruncate(head_file, 0)
            os.ftruncate(head_file, HEAD_BYTES)
            _write_head(head_file, head)
            os.replace(building, path)
            _sync_folder(path.parent)
            return cls(path, _connect(path, writable=True), head_file, head, row)
        except (sqlite3.Error, OSError) as error:
            os.close(head_file)
            if isinstance(error, JournalError):
                raise
            raise JournalFullError(f"{path} could not be created: {error}") from error
        except BaseException:
            os.close(head_file)
            raise

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, protocol: Mapping[str, Any] | None = None, read_only: bool = False
    ) -> Journal:
        """An existing journal, after every record was checked against the hash chain and the head.

        One process (and one `Journal` in it) may write; `read_only=True` reads beside a writer. With `protocol` the
        journal's own must be the same, `versions` apart (see `require_protocol`).
        """
        path = Path(path).resolve()
        head_path = _head_path(path)
        if not path.exists():
            if not head_path.exists() or head_path.stat().st_size < HEAD_BYTES:
                raise JournalNotFoundError(f"there is no journal at {path}: begin one with Journal.create")
            raise JournalCorruptError(f"{path} is missing although its head file is there: restore it from a backup")
        if not path.is_file() or not head_path.is_file():
            raise JournalCorruptError(f"{path} is not a journal, or its head file {head_path.name} was lost")
        head_file = None if read_only else _locked(head_path, path, create=False)
        try:
            head, first = _verify(path, head_file is not None)
            connection = _connect(path, writable=not read_only)
            journal = cls(path, connection, head_file, head, first)
            if head_file is not None and head.generation > journal._synced_generation():
                _write_head(head_file, head)
            if protocol is not None:
                journal.require_protocol(protocol)
            return journal
        except BaseException as error:
            if head_file is not None:
                os.close(head_file)
            if isinstance(error, sqlite3.Error):
                raise _named(error, f"{path} could not be opened") from error
            raise

    def _synced_generation(self) -> int:
        return read_head(_head_path(self.path).read_bytes()[:HEAD_BYTES])[0].generation

    def close(self) -> None:
        """Release the files and the writer's lock. Nothing is lost without it."""
        with self._lock:
            self._connection.close()
            if self._head_file is not None:
                os.close(self._head_file)
                self._head_file = None
            self._unusable = "the journal was closed"

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # the protocol -----------------------------------------------------------------------------------------------------

    @property
    def protocol(self) -> dict[str, Any]:
        """What was frozen when the journal began."""
        return decode(self._first.payload, self._first.arrays)["protocol"]

    def require_protocol(
        self, protocol: Mapping[str, Any], may_differ: Sequence[str] = ("versions",)
    ) -> dict[str, tuple[str, str]]:
        """Refuse another protocol, naming what differs; return the differences under the paths in `may_differ`.

        Other versions of the numerical packages do not make it another trial, but then policies agree to rounding
        only, not bit for bit: whoever resumes should say so when the returned dict is not empty.
        """
        differences = protocol_differences(self.protocol, protocol)
        allowed = {p: d for p, d in differences.items() if any(p == m or p.startswith(m + ".") for m in may_differ)}
        wrong = [f"{p} was {old}, is now {new}" for p, (old, new) in differences.items() if p not in allowed]
        if wrong:
            raise JournalMismatchError(
                f"{self.path} belongs to another protocol: {'; '.join(w[:300] for w in wrong[:8])}"
                f"{f'; and {len(wrong) - 8} more' if len(wrong) > 8 else ''}. Use the problem and settings it began with, "
                "or begin a new journal; a change on purpose is a 'change' record"
            )
        return allowed

    # reading ----------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of records, the protocol included."""
        return self._head.count

    @property
    def state_hash(self) -> str:
        """The last record's hash, which fixes every record before it."""
        return self._head.hash.hex()

    def records(self, kind: str | None = None, start: int = 0) -> Iterator[Record]:
        """The records from sequence number `start` on, in order, each checked against the chain before it is decoded."""
        wanted = None if kind is None else kind.encode()
        stop = len(self)
        previous = GENESIS if start <= 0 else self._raw(start - 1).hash if start <= stop else b""
        for raw in _scan(self._connection, max(start, 0), stop, previous, self._lock):
            if wanted is None or raw.kind == wanted:
                yield _decoded(raw)

    def _raw(self, sequence: int) -> RawRecord:
        rows = _fetch(self._connection, sequence, sequence + 1, self._lock)
        if not rows:
            raise JournalCorruptError(f"record {sequence} is missing")
        return RawRecord(*rows[0])

    # writing ----------------------------------------------------------------------------------------------------------

    def append(self, kind: str, payload: Mapping[str, Any]) -> int:
        """Store one record; it is durable when this returns its sequence number."""
        return self.append_many([(kind, payload)])[0]

    def append_many(self, entries: Iterable[tuple[str, Mapping[str, Any]]]) -> list[int]:
        """Store several records together: all or none. Durable when this returns their sequence numbers."""
        encoded = []
        for kind, payload in entries:
            if kind not in KINDS or kind == "snapshot":
                raise RecordError(f"the kind must be one of {KINDS[:-1]}, got {kind!r} (snapshots: save_snapshot)")
            encoded.append((kind.encode(), *encode(payload)))
        return self._store(encoded) if encoded else []

    def save_snapshot(self, sequence: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> int:
        """Store the state reached after record `sequence`, so that resuming replays only what follows it.

        The newest two snapshots are kept. Their hashes stay in the chain for good.
        """
        if isinstance(sequence, bool) or not isinstance(sequence, int) or not 0 <= sequence < len(self):
            raise RecordError(f"a snapshot's sequence must be that of a record, 0 to {len(self) - 1}, got {sequence!r}")
        data = pack(arrays)
        payload = {"sequence": sequence, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "meta": meta}
        return self._store([(b"snapshot", *encode(payload))], data)[0]

    def latest_snapshot(self) -> Snapshot | None:
        """The newest snapshot that is whole, or None: then replay from the start. Damaged ones are skipped, with a warning."""
        try:
            with self._lock:
                stored = [int(row[0]) for row in self._connection.execute("SELECT sequence FROM snapshots").fetchall()]
        except (sqlite3.Error, TypeError, ValueError) as error:
            warnings.warn(f"the snapshots of {self.path} cannot be read ({error}); replay", RuntimeWarning, stacklevel=2)
            return None
        for sequence in sorted((s for s in stored if 0 < s < len(self)), reverse=True):
            try:
                return self._snapshot(sequence)
            except (JournalCorruptError, sqlite3.Error) as error:
                message = f"snapshot {sequence} of {self.path} is damaged and was skipped: {error}"
                warnings.warn(message, RuntimeWarning, stacklevel=2)
        return None

    def _snapshot(self, sequence: int) -> Snapshot:
        record = _decoded(checked(self._raw(sequence), sequence, self._raw(sequence - 1).hash))
        with self._lock, _length_limit(self._connection, 2 * MAX_SNAPSHOT_BYTES):
            query = "SELECT data FROM snapshots WHERE sequence = ?"
            row = self._connection.execute(query, (sequence,)).fetchone()
        data = row[0] if row and isinstance(row[0], bytes) else b""
        payload = record.payload
        if record.kind != "snapshot" or hashlib.sha256(data).hexdigest() != payload.get("sha256"):
            raise JournalCorruptError(f"its {len(data)} bytes do not match the hash in record {sequence}")
        if type(payload.get("sequence")) is not int or not 0 <= payload["sequence"] < sequence:
            raise JournalCorruptError(f"it says it follows record {payload.get('sequence')!r}")
        return Snapshot(payload["sequence"], unpack(data), payload["meta"])

    def _store(self, encoded: list[tuple[bytes, bytes, bytes]], snapshot: bytes | None = None) -> list[int]:
        with self._lock:
            if self._head_file is None or self._unusable or os.getpid() != self._process:
                why = self._unusable or ("it was opened read-only" if self._head_file is None else "this is a fork")
                raise JournalError(f"cannot write to {self.path}: {why}; open it again with Journal.open")
            now, batch, previous = self._clock(), self._head.count, self._head.hash
            rows = []
            for sequence, (kind, text, blob) in enumerate(encoded, batch):
                previous = chain(previous, sequence, batch, now, kind, text, blob)
                rows.append((sequence, batch, now, kind.decode(), text.decode(), blob, previous))
            self._unusable = "an append was interrupted"  # until it is known how this one ended
            self._commit(rows, snapshot)
            head = Head(self._head.generation + 1, batch + len(rows), previous)
            try:
                _write_head(self._head_file, head)
            except OSError as error:
                self._unusable = "the head file could not be written"
                raise JournalFullError(f"{self.path}: {self._unusable} ({error}); nothing was acknowledged") from error
            self._reached("synced")
            self._head, self._unusable = head, ""
            return [row[0] for row in rows]

    def _commit(self, rows: list[tuple[Any, ...]], snapshot: bytes | None) -> None:
        db = self._connection
        try:
            with _length_limit(db, 2 * MAX_SNAPSHOT_BYTES if snapshot is not None else MAX_RECORD_BYTES):
                db.execute("BEGIN IMMEDIATE")
                self._reached("begun")
                db.executemany(_INSERT, rows)
                if snapshot is not None:
                    db.execute("INSERT INTO snapshots VALUES (?, ?)", (rows[0][0], snapshot))
                    keep = "(SELECT sequence FROM snapshots ORDER BY sequence DESC LIMIT ?)"
                    db.execute(f"DELETE FROM snapshots WHERE sequence NOT IN {keep}", (_KEPT_SNAPSHOTS,))
                self._reached("inserted")
                db.execute("COMMIT")
                self._reached("committed")
        except sqlite3.Error as error:
            named = _named(error, f"{self.path}: the record could not be stored")
            with contextlib.suppress(sqlite3.Error):
                if db.in_transaction:
                    db.execute("ROLLBACK")
                # usable again only if it is certain that the database is where the head says
                fsync_failed = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_FSYNC
                if not fsync_failed and db.execute("SELECT max(sequence) FROM records").fetchone() == (len(self) - 1,):
                    self._unusable = ""
            raise named from error

    # for people -------------------------------------------------------------------------------------------------------

    def export_csv(self, path: str | os.PathLike[str], blinding: Blinding | None = None) -> int:
        """Write every record as one row of a CSV file; the number of rows. See `gedppl.journal_export`."""
        return journal_export.to_csv(self._table(blinding), self._target(path))

    def export_parquet(self, path: str | os.PathLike[str], blinding: Blinding | None = None) -> int:
        """The same as a Parquet file, if pyarrow is installed."""
        return journal_export.to_parquet(self._table(blinding), self._target(path))

    def _table(self, blinding: Blinding | None) -> journal_export.Table:
        key = bytes.fromhex(decode(self._first.payload, self._first.arrays)["blinding_key"])
        return journal_export.Table(self.records, blinding, key)

    def _target(self, path: str | os.PathLike[str]) -> Path:
        target = Path(path).resolve()
        if target.name.startswith(self.path.name) and target.parent == self.path.parent:
            raise RecordError(f"{target} could overwrite the journal itself: export to another name")
        return target


# files ----------------------------------------------------------------------------------------------------------------


def _head_path(path: Path) -> Path:
    return path.with_name(path.name + ".head")


def _connect(path: Path, *, writable: bool, create: bool = False) -> sqlite3.Connection:
    mode = "rwc" if create else "rw" if writable else "ro"
    db = sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False, timeout=5.0
    )
    try:
        db.text_factory = bytes
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_RECORD_BYTES + _ROW_OVERHEAD)
        if hasattr(db, "setconfig"):  # Python 3.12
            db.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
        pragmas = ["trusted_schema=OFF", "cell_size_check=ON"]
        if writable:
            pragmas += ["journal_mode=WAL", "synchronous=FULL", "fullfsync=ON", "journal_size_limit=67108864"]
        for pragma in pragmas:
            db.execute(f"PRAGMA {pragma}").fetchall()
    except BaseException:
        db.close()
        raise
    return db


@contextlib.contextmanager
def _length_limit(db: sqlite3.Connection, size: int) -> Iterator[None]:
    before = db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, size + _ROW_OVERHEAD)
    try:
        yield
    finally:
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, before)


def _build(path: Path, first: RawRecord) -> None:
    with contextlib.closing(_connect(path, writable=True, create=True)) as db:
        db.execute(f"PRAGMA application_id={APPLICATION_ID}")
        db.execute(f"PRAGMA user_version={FORMAT}")
        for statement in _SCHEMA.values():
            db.execute(statement.decode())
        db.execute(_INSERT, (*first[:3], first.kind.decode(), first.payload.decode(), *first[5:]))
    with open(path, "rb+") as file:
        _sync(file.fileno())


def _locked(head_path: Path, path: Path, *, create: bool) -> int:
    """The head file, open and locked for this process; the system drops the lock when the process ends, however it ends."""
    file = os.open(head_path, os.O_RDWR | (os.O_CREAT if create else 0) | getattr(os, "O_BINARY", 0), 0o644)
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(file, HEAD_BYTES, os.SEEK_SET)  # a byte beyond the slots: there a lock also stops readers
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise JournalLockedError(
            f"{path} is being written by another process or another agent: close that one, or open with read_only=True"
        ) from None
    return file


def _sync(file: int) -> None:
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(file, fcntl.F_FULLFSYNC)  # there fsync leaves the data in the drive's cache
    else:
        os.fsync(file)


def _sync_folder(folder: Path) -> None:
    if sys.platform != "win32":  # a folder cannot be opened there
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def _write_head(file: int, head: Head) -> None:
    offset, data = head.slot()
    os.lseek(file, offset, os.SEEK_SET)
    if os.write(file, data) != len(data):
        raise OSError("short write")
    _sync(file)


def _named(error: sqlite3.Error, doing: str) -> JournalError:
    """SQLite's error as one of ours. Only what cannot be blamed on the disk or on another program is called corruption."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return JournalFullError(f"{doing}: {error}. Nothing was acknowledged; make room on the disk")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return JournalLockedError(f"{doing}: another program holds the database ({error})")
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_AUTH):
        return JournalError(f"{doing}: {error}. Check the permissions of the file and its folder")
    return JournalCorruptError(f"{doing}: {error}")


# checking -------------------------------------------------------------------------------------------------------------


def _verify(path: Path, writer: bool) -> tuple[Head, RawRecord]:
    """Check everything on a read-only connection, which leaves a damaged log as it is; the head to go on from."""
    stray = Path(f"{path}-journal")
    if stray.exists():
        raise JournalCorruptError(f"{stray.name} lies beside {path}: SQLite would play it back, and no journal writes one")
    head, damaged_slot = read_head(_head_path(path).read_bytes()[:HEAD_BYTES])
    try:
        with contextlib.closing(_connect(path, writable=False)) as db:
            _check_schema(db, path)
            first, last, at_head = None, None, None
            for raw in _scan(db, 0, _FOREVER, GENESIS, contextlib.nullcontext()):
                first = first or raw
                last = raw
                if raw.sequence == head.count - 1:
                    at_head = raw
    except sqlite3.Error as error:
        raise _named(error, f"{path} could not be read") from error
    count = 0 if last is None else last.sequence + 1
    if first is None or last is None or first.kind != b"protocol":
        raise JournalCorruptError(f"{path} does not begin with a protocol")
    _check_first(path, decode(first.payload, first.arrays))
    if at_head is None:
        raise JournalCorruptError(
            f"{path} lost records: {head.count} were acknowledged, {count} are left. Restore both files from a backup"
        )
    if at_head.hash != head.hash:
        raise JournalCorruptError(f"record {head.count - 1} of {path} is not the one whose hash the head file holds")
    ahead = count - head.count
    if damaged_slot and not ahead:
        raise JournalCorruptError(
            f"a slot of {path.name}.head is damaged although no write was under way, so the last records may be lost"
        )
    if writer and ahead and last.batch != head.count:
        raise JournalCorruptError(
            f"{path} has {ahead} records that its head file does not know, in more than one transaction: "
            "the head file is older than the database"
        )
    return (Head(head.generation + 1, count, last.hash) if ahead else head), first


def _check_schema(db: sqlite3.Connection, path: Path) -> None:
    """Before any table is read: it must be our tables, word for word, and nothing else (no views, no triggers)."""
    application = db.execute("PRAGMA application_id").fetchone()[0]
    if application != APPLICATION_ID:
        raise JournalCorruptError(f"{path} is a database but not a gedppl journal (application id {application:#x})")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version != FORMAT:
        raise JournalVersionError(f"{path} has format {version}, this version of gedppl knows {FORMAT}: upgrade gedppl")
    found = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    expected = {(b"table", name, name, sql) for name, sql in _SCHEMA.items()}
    for row in set(found) ^ expected:
        state = "lacks" if row in expected else "has an unexpected"
        raise JournalCorruptError(f"{path} {state} {row[0]!r} {row[1]!r} in its schema")


def _check_first(path: Path, payload: dict[str, Any]) -> None:
    protocol, key = payload.get("protocol"), payload.get("blinding_key")
    if payload.get("format") != FORMAT:
        raise JournalVersionError(f"{path} says format {payload.get('format')!r}, this version of gedppl knows {FORMAT}")
    if not isinstance(protocol, dict) or fingerprint(protocol) != payload.get("fingerprint"):
        raise JournalCorruptError(f"the protocol of {path} does not match its fingerprint")
    if not isinstance(key, str) or len(key) != 64 or not set(key) <= set("0123456789abcdef"):
        raise JournalCorruptError(f"the protocol of {path} has no blinding key")


def _fetch(db: sqlite3.Connection, start: int, stop: int, lock: Any) -> list[tuple[Any, ...]]:
    try:
        with lock:  # by chunks: no cursor stays open while somebody writes
            return db.execute(_SELECT, (start, stop, _CHUNK)).fetchall()
    except sqlite3.ProgrammingError:
        raise JournalError("the journal was closed; open it again with Journal.open") from None
    except (sqlite3.Error, OverflowError) as error:
        if isinstance(error, sqlite3.Error):
            raise _named(error, f"the records from {start} on could not be read") from error
        raise JournalCorruptError(f"the records from {start} on could not be read: {error}") from error


def _scan(db: sqlite3.Connection, start: int, stop: int, previous: bytes, lock: Any) -> Iterator[RawRecord]:
    """Rows start, start + 1, ... below stop, each checked to follow the one before."""
    while start < stop:
        rows = _fetch(db, start, stop, lock)
        for row in rows:
            raw = checked(row, start, previous)
            yield raw
            start, previous = start + 1, raw.hash
        if len(rows) < _CHUNK:
            if stop != _FOREVER and start < stop:
                raise JournalCorruptError(f"record {start} is missing")
            return


def _decoded(raw: RawRecord) -> Record:
    return Record(raw.sequence, raw.time_ns, raw.kind.decode("ascii", "replace"), decode(raw.payload, raw.arrays))
