"""Durable decisions and outcomes: an append-only, hash-chained journal in SQLite.

A journal is two files, which belong together: the database `path` (with SQLite's own `path-wal`
while in use) and the head `path.head`. What `append` returned for is safe: the record was committed
and synced to the database, then its number and hash were synced to the head. On opening, the two
must agree:

    database shorter than the head, or other hashes
        an acknowledged record was lost or altered: refused
    database one transaction ahead of the head
        the process died between the two syncs: those records were never
                                                      acknowledged; they are whole and chained, so
                                                      they are kept
    database further ahead                            the head is older than the database: refused

The chain and the head are needed: SQLite alone drops a committed row without a word when the last
frame of its write-ahead log is damaged. They find accidents. They do not stop somebody who may
write both files and recomputes the hashes; note `state_hash` elsewhere (e.g. in print) against
that. A refused journal is left byte for byte as it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gedppl.errors import (
    JournalCorruptError,
    JournalError,
    JournalExistsError,
    JournalFullError,
    JournalMismatchError,
    JournalNotFoundError,
    RecordError,
)
from gedppl.journal import export as journal_export
from gedppl.journal import files
from gedppl.journal.export import Blinding
from gedppl.journal.format import (
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
from gedppl.journal.snapshot import MAX_SNAPSHOT_BYTES, pack, unpack
from gedppl.numerics.arrays import is_whole

_KEPT_SNAPSHOTS = 2


@dataclass(frozen=True)
class Snapshot:
    """A stored state: what was true after record `sequence` had been taken in."""

    sequence: int
    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]


class Journal:
    """An open journal. Make one with `Journal.create` or `Journal.open`, not by hand. Safe to share
    between threads.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "trial.db"
    >>> with Journal.create(path, {"problem": "demo", "delta": 0.05, "seed": 0}) as journal:
    ...     journal.append(
    ...         "decision", {"id": 0, "action": 2, "policy": np.array([0.0, 0.25, 0.75])}
    ...     )
    1
    >>> with Journal.open(path) as journal:
    ...     [
    ...         (r.sequence, r.kind, r.payload["policy"].tolist())
    ...         for r in journal.records("decision")
    ...     ]
    [(1, 'decision', [0.0, 0.25, 0.75])]
    """

    # called with a label between the steps of an append; a crash test replaces it to die at a
    # chosen step
    _reached: Callable[[str], None] = staticmethod(lambda label: None)

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        head_file: files.HeadFile | None,
        head: Head,
        first: RawRecord,
    ) -> None:
        self.path = path
        self._connection = connection
        self._head_file = head_file  # None: opened for reading
        self._head = head
        self._first = first
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._files = files.identity(path), files.identity(files.head_path(path))
        self._unusable = ""
        self._writing: Head | None = None  # an append is under way: the head that it will end with
        self._clock: Callable[[], int] = time.time_ns

    # opening and closing --------------------------------------------------------------------------

    @classmethod
    def create(cls, path: str | os.PathLike[str], protocol: Mapping[str, Any]) -> Journal:
        """A new journal whose record 0 is the frozen protocol: problem fingerprint, delta, seed,
        versions, ...
        """
        path = files.resolved(path)
        payload = {
            "format": FORMAT,
            "protocol": protocol,
            "fingerprint": fingerprint(protocol),
            # lets a blinded export use the same codes every time
            "blinding_key": secrets.token_hex(32),
        }
        text, blob = encode(payload)
        if os.path.isdir(path):
            raise JournalExistsError(f"{path} is a folder: name a file in it")
        if os.path.exists(path):
            raise JournalExistsError(
                f"{path} exists already: open it with Journal.open, or choose another path"
            )
        try:
            head_file = files.locked(files.head_path(path), path, create=True)
        except OSError as error:
            raise JournalFullError(
                f"{files.head_path(path)} could not be created: {error}"
            ) from error
        try:
            with contextlib.suppress(JournalCorruptError):
                found, _ = read_head(files.head_path(path).read_bytes()[:HEAD_BYTES])
                if found.count > 1:
                    raise JournalExistsError(
                        f"{path} is gone but its head file says it held {found.count} records: "
                        "restore it from a backup, or remove the head file to begin anew"
                    )
            now = time.time_ns()
            row = RawRecord(
                0,
                0,
                now,
                b"protocol",
                text,
                blob,
                chain(GENESIS, 0, 0, now, b"protocol", text, blob),
            )
            # The database appears under its own name last and complete: a creation that was
            # interrupted can be repeated.
            building = path.with_name(path.name + ".new")
            for leftover in (
                building,
                *(Path(f"{building}{end}") for end in ("-wal", "-shm", "-journal")),
            ):
                leftover.unlink(missing_ok=True)
            files.build(building, row)
            head = Head(1, 1, row.hash)
            head_file.truncate(0)
            head_file.truncate(HEAD_BYTES)
            files.write_head(head_file, head)
            os.replace(building, path)
            files.sync_folder(path.parent)
            return cls(path, files.connect(path, writable=True), head_file, head, row)
        except (sqlite3.Error, OSError) as error:
            head_file.close()
            if isinstance(error, JournalError):
                raise
            raise JournalFullError(f"{path} could not be created: {error}") from error
        except BaseException:
            head_file.close()
            raise

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        protocol: Mapping[str, Any] | None = None,
        read_only: bool = False,
    ) -> Journal:
        """An existing journal, after every record was checked against the hash chain and the head.

        One process (and one `Journal` in it) may write; `read_only=True` reads beside a writer.
        With `protocol` the journal's own must be the same, `versions` apart (see
        `require_protocol`).
        """
        path = files.resolved(path)
        head_path = files.head_path(path)
        if not os.path.exists(path):
            if not files.counts_records(head_path):
                raise JournalNotFoundError(
                    f"there is no journal at {path}: begin one with Journal.create"
                )
            raise JournalCorruptError(
                f"{path} is missing although its head file is there: restore it from a backup"
            )
        if not os.path.isfile(path) or not os.path.isfile(head_path):
            raise JournalCorruptError(
                f"{path} is not a journal, or its head file {head_path.name} was lost"
            )
        head_file = None if read_only else files.locked(head_path, path, create=False)
        journal = None
        try:
            head, first, ahead = files.verify(path, writer=not read_only)
            journal = cls(path, files.connect(path, writable=not read_only), head_file, head, first)
            if head_file is not None and ahead:
                files.write_head(head_file, head)
            if protocol is not None:
                journal.require_protocol(protocol)
            return journal
        except BaseException as error:
            if journal is not None:
                journal.close()
            elif head_file is not None:
                head_file.close()
            if isinstance(error, sqlite3.Error):
                raise files.named(error, f"{path} could not be opened") from error
            raise

    def close(self) -> None:
        """Release the files and the writer's lock. Nothing is lost without it."""
        with self._lock:
            with contextlib.suppress(JournalError):
                self.settle()
            self._unusable = "the journal was closed"
            self._connection.close()
            if self._head_file is not None:
                self._head_file.close()
                self._head_file = None

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # the protocol ---------------------------------------------------------------------------------

    @property
    def protocol(self) -> dict[str, Any]:
        """What was frozen when the journal began."""
        found: dict[str, Any] = decode(self._first.payload, self._first.arrays)["protocol"]
        return found

    def require_protocol(
        self, protocol: Mapping[str, Any], may_differ: Sequence[str] = ("versions",)
    ) -> dict[str, tuple[str, str]]:
        """Refuse another protocol, naming what differs; return the differences under the paths in
        `may_differ`.

        Other versions of the numerical packages do not make it another trial, but then policies
        agree to rounding only, not bit for bit: whoever resumes should say so when the returned
        dict is not empty.
        """
        differences = protocol_differences(self.protocol, protocol)
        allowed = {
            p: d
            for p, d in differences.items()
            if any(p == m or p.startswith(m + ".") for m in may_differ)
        }
        wrong = [
            f"{p} was {old}, is now {new}"
            for p, (old, new) in differences.items()
            if p not in allowed
        ]
        if wrong:
            raise JournalMismatchError(
                f"{self.path} belongs to another protocol: {'; '.join(w[:300] for w in wrong[:8])}"
                f"{f'; and {len(wrong) - 8} more' if len(wrong) > 8 else ''}. Use the problem and "
                "settings it began with, "
                "or begin a new journal; a change on purpose is a 'change' record"
            )
        return allowed

    # reading --------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of records, the protocol included."""
        return self._head.count

    @property
    def state_hash(self) -> str:
        """The last record's hash, which fixes every record before it."""
        return self._head.hash.hex()

    def records(self, kind: str | None = None, start: int = 0) -> Iterator[Record]:
        """The records from sequence number `start` on, in order, each checked against the chain
        before it is decoded.
        """
        wanted = None if kind is None else kind.encode()
        stop = len(self)
        previous = GENESIS if start <= 0 else self._raw(start - 1).hash if start <= stop else b""
        for raw in files.scan(self._connection, max(start, 0), stop, previous, self._lock):
            if wanted is None or raw.kind == wanted:
                yield files.decoded(raw)

    def _raw(self, sequence: int) -> RawRecord:
        rows = files.fetch(self._connection, sequence, sequence + 1, self._lock)
        if not rows:
            raise JournalCorruptError(f"record {sequence} is missing")
        return RawRecord(*rows[0])

    # writing --------------------------------------------------------------------------------------

    def append(self, kind: str, payload: Mapping[str, Any]) -> int:
        """Store one record; it is durable when this returns its sequence number."""
        return self.append_many([(kind, payload)])[0]

    def append_many(self, entries: Iterable[tuple[str, Mapping[str, Any]]]) -> list[int]:
        """Store several records together: all or none. Durable when this returns their sequence
        numbers.
        """
        encoded = []
        for kind, payload in entries:
            if kind not in KINDS or kind == "snapshot":
                raise RecordError(
                    f"the kind must be one of {KINDS[:-1]}, got {kind!r} (snapshots: save_snapshot)"
                )
            encoded.append((kind.encode(), *encode(payload)))
        return self._store(encoded) if encoded else []

    def save_snapshot(
        self, sequence: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]
    ) -> int:
        """Store the state reached after record `sequence`, so that resuming replays only what
        follows it.

        The newest two snapshots are kept. Their hashes stay in the chain for good.
        """
        if not is_whole(sequence) or not 0 <= sequence < len(self):
            raise RecordError(
                "a snapshot's sequence must be that of a record, 0 to "
                f"{len(self) - 1}, got {sequence!r}"
            )
        data = pack(arrays)
        payload = {
            "sequence": sequence,
            "sha256": hashlib.sha256(data).hexdigest(),
            "bytes": len(data),
            "meta": meta,
        }
        return self._store([(b"snapshot", *encode(payload))], data)[0]

    def latest_snapshot(self) -> Snapshot | None:
        """The newest snapshot that is whole, or None: then replay from the start. Damaged ones
        are skipped, with a warning.
        """
        try:
            with self._lock:
                stored = [
                    int(row[0])
                    for row in self._connection.execute("SELECT sequence FROM snapshots").fetchall()
                ]
        except (sqlite3.Error, TypeError, ValueError) as error:
            warnings.warn(
                f"the snapshots of {self.path} cannot be read ({error}); replay",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        for sequence in sorted((s for s in stored if 0 < s < len(self)), reverse=True):
            try:
                return self._snapshot(sequence)
            except (JournalCorruptError, sqlite3.Error) as error:
                message = f"snapshot {sequence} of {self.path} is damaged and was skipped: {error}"
                warnings.warn(message, RuntimeWarning, stacklevel=2)
        return None

    def _snapshot(self, sequence: int) -> Snapshot:
        record = files.decoded(checked(self._raw(sequence), sequence, self._raw(sequence - 1).hash))
        with self._lock, files.length_limit(self._connection, 2 * MAX_SNAPSHOT_BYTES):
            query = "SELECT data FROM snapshots WHERE sequence = ?"
            row = self._connection.execute(query, (sequence,)).fetchone()
        data = row[0] if row and isinstance(row[0], bytes) else b""
        payload = record.payload
        if record.kind != "snapshot" or hashlib.sha256(data).hexdigest() != payload.get("sha256"):
            raise JournalCorruptError(
                f"its {len(data)} bytes do not match the hash in record {sequence}"
            )
        if type(payload.get("sequence")) is not int or not 0 <= payload["sequence"] < sequence:
            raise JournalCorruptError(f"it says it follows record {payload.get('sequence')!r}")
        if not isinstance(payload.get("meta"), dict):
            raise JournalCorruptError(f"record {sequence} does not say what its arrays are")
        return Snapshot(payload["sequence"], unpack(data), payload["meta"])

    def settle(self) -> None:
        """After an interrupt: an append that the head knows counts; any other never was
        acknowledged, and is undone.
        """
        with self._lock:
            head, file, db = self._writing, self._head_file, self._connection
            if head is None or file is None or self._unusable or os.getpid() != self._process:
                return
            try:
                if files.written_head(file) == head:
                    files.write_head(file, head)  # once more: it is not known to be synced
                    self._head = head
                else:
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                    db.execute("BEGIN IMMEDIATE")
                    for table in ("records", "snapshots"):
                        db.execute(f"DELETE FROM {table} WHERE sequence >= ?", (len(self),))
                    db.execute("COMMIT")
            except sqlite3.Error as error:
                raise files.named(
                    error, f"{self.path}: an interrupted append could not be undone"
                ) from error
            except OSError as error:
                raise JournalFullError(
                    f"{self.path}: the head file could not be read or written ({error})"
                ) from error
            self._writing = None

    def _store(
        self, encoded: list[tuple[bytes, bytes, bytes]], snapshot: bytes | None = None
    ) -> list[int]:
        with self._lock:
            self.settle()
            if self._head_file is None or self._unusable or os.getpid() != self._process:
                why = self._unusable or (
                    "it was opened read-only" if self._head_file is None else "this is a fork"
                )
                raise JournalError(
                    f"cannot write to {self.path}: {why}; open it again with Journal.open"
                )
            if (
                files.identity(self.path),
                files.identity(files.head_path(self.path)),
            ) != self._files:
                # what is written to a file without a name is gone when the process ends
                raise JournalError(
                    f"{self.path} or its head file was removed or replaced while in "
                    "use; put it back"
                )
            now, batch, previous = self._clock(), self._head.count, self._head.hash
            rows = []
            for sequence, (kind, text, blob) in enumerate(encoded, batch):
                previous = chain(previous, sequence, batch, now, kind, text, blob)
                rows.append((sequence, batch, now, kind.decode(), text.decode(), blob, previous))
            head = self._writing = Head(self._head.generation + 1, batch + len(rows), previous)
            self._commit(rows, snapshot)
            try:
                files.write_head(self._head_file, head)
            except OSError as error:
                self._unusable = "the head file could not be written"
                raise JournalFullError(
                    f"{self.path}: {self._unusable} ({error}); nothing was acknowledged"
                ) from error
            self._reached("synced")
            self._head = head
            self._writing = None
            return [row[0] for row in rows]

    def _commit(self, rows: list[tuple[Any, ...]], snapshot: bytes | None) -> None:
        db = self._connection
        try:
            with files.length_limit(
                db, 2 * MAX_SNAPSHOT_BYTES if snapshot is not None else MAX_RECORD_BYTES
            ):
                db.execute("BEGIN IMMEDIATE")
                self._reached("begun")
                db.executemany(files.INSERT, rows)
                if snapshot is not None:
                    db.execute("INSERT INTO snapshots VALUES (?, ?)", (rows[0][0], snapshot))
                    keep = "(SELECT sequence FROM snapshots ORDER BY sequence DESC LIMIT ?)"
                    db.execute(
                        f"DELETE FROM snapshots WHERE sequence NOT IN {keep}", (_KEPT_SNAPSHOTS,)
                    )
                self._reached("inserted")
                db.execute("COMMIT")
                self._reached("committed")
        except sqlite3.Error as error:
            named = files.named(error, f"{self.path}: the record could not be stored")
            self._unusable = "an append failed"
            with contextlib.suppress(sqlite3.Error):
                if db.in_transaction:
                    db.execute("ROLLBACK")
                # usable again only if it is certain that the database is where the head says
                fsync_failed = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_FSYNC
                if not fsync_failed and db.execute(
                    "SELECT max(sequence) FROM records"
                ).fetchone() == (len(self) - 1,):
                    self._unusable, self._writing = "", None
            raise named from error

    # for people -----------------------------------------------------------------------------------

    def export_csv(self, path: str | os.PathLike[str], blinding: Blinding | None = None) -> int:
        """Write every record as one row of a CSV file; the number of rows. See
        `gedppl.journal.export`.
        """
        return journal_export.to_csv(self._table(blinding), self._target(path))

    def export_parquet(self, path: str | os.PathLike[str], blinding: Blinding | None = None) -> int:
        """The same as a Parquet file, if pyarrow is installed."""
        return journal_export.to_parquet(self._table(blinding), self._target(path))

    def to_open_bandit(self) -> dict[str, Any]:
        """The decisions that were told their utility, as the Open Bandit Pipeline's bandit
        feedback (see `export`).
        """
        return journal_export.to_open_bandit(self.records())

    def _table(self, blinding: Blinding | None) -> journal_export.Table:
        key = bytes.fromhex(decode(self._first.payload, self._first.arrays)["blinding_key"])
        return journal_export.Table(self.records, blinding, key)

    def _target(self, path: str | os.PathLike[str]) -> Path:
        target = Path(path).resolve()
        if target.name.startswith(self.path.name) and target.parent == self.path.parent:
            raise RecordError(
                f"{target} could overwrite the journal itself: export to another name"
            )
        return target
