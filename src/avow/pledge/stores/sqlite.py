"""Pledges in one SQLite file: nothing to install, a few thousand per second with every commit synced.

WAL with synchronous=FULL: a commit returns when the log is synced. One thread writes, and all waiting operations are
one transaction, so they share a sync. Statements are small and executed one by one, which within a process costs
microseconds.

Another process may use the same file; a transaction takes the write lock when it begins, with a bounded wait.

If a commit fails with SQLITE_FULL that is definite, because the log has no commit record. After an I/O error it is not
known how much of the log is on the disk, so the outcome is unknown.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

from avow import limits
from avow.errors import AvowError, Busy, DiskFull, Offline, Refused, Unknown
from avow.pledge.record import NEVER_MS, Pledge
from avow.pledge.stores import operations as ops
from avow.pledge.stores.grouped import GroupedStore
from avow.pledge.stores.sql import (
    READ,
    SCHEMA_VERSION,
    STOPPED,
    TOPIC_COLUMNS,
    UNDER_WAY,
    Marks,
    check_version,
    finding,
    listed,
)

SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS avow_meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS avow_pledges (
  gid BLOB NOT NULL PRIMARY KEY, content BLOB NOT NULL, progress BLOB NOT NULL, status TEXT NOT NULL,
  revision INTEGER NOT NULL, fence INTEGER NOT NULL, owner BLOB NOT NULL, lease_until_ms INTEGER NOT NULL,
  next_at_ms INTEGER NOT NULL, due_ms INTEGER NOT NULL, created_ms INTEGER NOT NULL, finished_ms INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS avow_pledges_due ON avow_pledges (due_ms) WHERE due_ms < {NEVER_MS};
CREATE INDEX IF NOT EXISTS avow_pledges_created ON avow_pledges (created_ms, gid);
CREATE INDEX IF NOT EXISTS avow_pledges_stopped ON avow_pledges (status, created_ms, gid) WHERE {STOPPED};
CREATE TABLE IF NOT EXISTS avow_topics (
  name BLOB NOT NULL PRIMARY KEY, subscribers BLOB NOT NULL, version INTEGER NOT NULL,
  created_ms INTEGER NOT NULL, updated_ms INTEGER NOT NULL);
INSERT INTO avow_meta VALUES ('version', {SCHEMA_VERSION}) ON CONFLICT DO NOTHING;
"""
_INSERT: Final = (
    f"INSERT INTO avow_pledges ({listed(ops.COLUMNS)}) VALUES ({listed('?' * len(ops.COLUMNS))}) ON CONFLICT DO NOTHING"
)
_LOAD: Final = f"SELECT {READ} FROM avow_pledges WHERE gid = ?"
_SWAP: Final = (
    "UPDATE avow_pledges SET progress = ?, status = ?, revision = ?, owner = ?, lease_until_ms = ?, next_at_ms = ?, "
    "due_ms = ?, finished_ms = ? WHERE gid = ? AND revision = ? AND fence = ? AND created_ms = ?"
)
_LEASE: Final = (
    "UPDATE avow_pledges SET fence = fence + 1, owner = ?1, lease_until_ms = ?2, due_ms = max(next_at_ms, ?2) "
    "WHERE gid = ?3"
)
_CLAIM_ONE: Final = f"{_LEASE} AND {UNDER_WAY} AND (lease_until_ms <= ?4 OR owner = ?1) RETURNING {READ}"
_DUE: Final = f"SELECT gid FROM avow_pledges WHERE due_ms <= ? AND due_ms < {NEVER_MS} ORDER BY due_ms, gid LIMIT ?"
_NEXT_DUE: Final = f"SELECT min(due_ms) FROM avow_pledges WHERE due_ms < {NEVER_MS}"
_FORGET: Final = (
    "DELETE FROM avow_pledges WHERE gid IN (SELECT gid FROM avow_pledges WHERE created_ms < ?1 AND finished_ms < ?1 "
    f"AND status IN ({listed([repr(status) for status in ops.FORGETTABLE])}) ORDER BY created_ms LIMIT ?2)"
)
_LOAD_TOPIC: Final = f"SELECT {TOPIC_COLUMNS} FROM avow_topics WHERE name = ?"
_LIST_TOPICS: Final = f"SELECT {TOPIC_COLUMNS} FROM avow_topics WHERE name > ? ORDER BY name LIMIT ?"


_PAUSE_S: Final = 0.02


class SQLiteStore(GroupedStore):
    def __init__(self, path: Path | str) -> None:
        super().__init__(_Writing(str(path)), _Reading(str(path)), _Reading(str(path)), name="sqlite")


def _connect(path: str) -> sqlite3.Connection:
    try:
        return sqlite3.connect(path, timeout=limits.STORE_LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise Offline(
            f"cannot open {path}: {error}; nothing was changed. Check the folder and its permissions"
        ) from error


def _name(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", "") or type(error).__name__


class _Writing:
    def __init__(self, path: str) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None
        self._perform_one: dict[type, Callable[[sqlite3.Connection, Any], Any]] = {
            ops.Insert: _insert,
            ops.Swap: _swap,
            ops.Claim: _claim,
            ops.ClaimOne: _claim_one,
            ops.Forget: _forget,
            ops.SwapTopic: _swap_topic,
        }

    def prepare(self) -> None:
        db = _connect(self._path)
        try:
            self._use_log(db)
            db.execute("PRAGMA synchronous = FULL")
            self._make_tables(db)
        except sqlite3.Error as error:
            db.close()
            raise self._refusal(error) from error
        except AvowError:
            db.close()
            raise
        self._db = db

    def _use_log(self, db: sqlite3.Connection) -> None:
        """Retries, because SQLite's busy timeout does not apply to this statement."""
        deadline = monotonic() + limits.STORE_LOCK_TIMEOUT_S
        while True:
            try:
                mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
                break
            except sqlite3.OperationalError as error:
                if not _name(error).startswith("SQLITE_BUSY") or monotonic() > deadline:
                    raise
                sleep(_PAUSE_S)
        if mode != "wal":
            raise Refused(
                f"{self._path} cannot use a write-ahead log (journal mode {mode}); nothing was changed. "
                "Use a folder on a local disk"
            )

    def _make_tables(self, db: sqlite3.Connection) -> None:
        if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'avow_meta'").fetchone() is None:
            db.executescript(f"BEGIN IMMEDIATE; {SCHEMA} COMMIT;")
        version = db.execute("SELECT value FROM avow_meta WHERE name = 'version'").fetchone()[0]
        check_version(version, where=self._path)

    def perform(self, operations: Sequence[ops.Writing]) -> Sequence[Any]:
        db = self._db
        if db is None:
            raise Offline(f"{self._path} is closed; nothing was changed")
        try:
            db.execute("BEGIN IMMEDIATE")
            outcomes = [self._perform_one[type(operation)](db, operation) for operation in operations]
        except sqlite3.Error as error:
            self._roll_back(db)
            raise self._refusal(error) from error
        try:
            db.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back(db)
            if _name(error).startswith("SQLITE_IOERR"):
                raise Unknown(
                    f"an I/O error while {self._path} was synced ({_name(error)}: {error}); the change may or may not "
                    "be stored. Check the disk, then load the pledge to find out"
                ) from error
            raise self._refusal(error) from error
        return outcomes

    def _roll_back(self, db: sqlite3.Connection) -> None:
        if db.in_transaction:  # after some errors SQLite has rolled back
            db.execute("ROLLBACK")

    def _refusal(self, error: sqlite3.Error) -> AvowError:
        name, path = _name(error), self._path
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return Busy(f"another process holds the lock of {path}; nothing was changed. Try again")
        if name == "SQLITE_FULL":
            return DiskFull(f"the disk of {path} is full; nothing was changed. Free space, then try again")
        if name.startswith("SQLITE_IOERR"):
            return Offline(f"I/O error on {path} ({name}: {error}); nothing was changed. Check the disk")
        return Refused(f"SQLite refused the operation ({name}: {error}); nothing was changed")

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def statistics(self) -> dict[str, int]:
        return {"server_syncs": 1}


def _insert(db: sqlite3.Connection, operation: ops.Insert) -> Pledge | None:
    if db.execute(_INSERT, operation.row).rowcount:
        return None
    return ops.pledge_of(db.execute(_LOAD, (operation.row.gid,)).fetchone())


def _swap(db: sqlite3.Connection, operation: ops.Swap) -> Pledge | None:
    row = operation.row
    values = (row.progress, row.status, row.revision, row.owner, row.lease_until_ms, row.next_at_ms, row.due_ms)
    expected = (row.gid, row.revision - 1, row.fence, row.created_ms)
    swapped = db.execute(_SWAP, (*values, row.finished_ms, *expected)).rowcount
    return operation.after if swapped else None


def _claim(db: sqlite3.Connection, operation: ops.Claim) -> list[Pledge]:
    due = db.execute(_DUE, (operation.now_ms, operation.limit)).fetchall()
    leased = f"{_LEASE} RETURNING {READ}"
    rows = (db.execute(leased, (operation.owner, operation.lease_until_ms, gid)).fetchall() for (gid,) in due)
    return [ops.pledge_of(row) for (row,) in rows]


def _claim_one(db: sqlite3.Connection, operation: ops.ClaimOne) -> Pledge | None:
    values = (operation.owner, operation.lease_until_ms, operation.gid, operation.now_ms)
    rows = db.execute(_CLAIM_ONE, values).fetchall()
    return ops.pledge_of(rows[0]) if rows else None


def _forget(db: sqlite3.Connection, operation: ops.Forget) -> int:
    return db.execute(_FORGET, (operation.finished_before_ms, operation.limit)).rowcount


def _swap_topic(db: sqlite3.Connection, operation: ops.SwapTopic) -> bool:
    name, version_before, before, version, subscribers, now_ms = operation
    if not version_before:
        made = f"INSERT INTO avow_topics ({TOPIC_COLUMNS}) VALUES (?, ?, 1, ?, ?) ON CONFLICT DO NOTHING"
        return db.execute(made, (name, subscribers, now_ms, now_ms)).rowcount == 1
    same = "WHERE name = ? AND version = ? AND subscribers = ?"
    if not version:
        return db.execute(f"DELETE FROM avow_topics {same}", (name, version_before, before)).rowcount == 1
    changed = f"UPDATE avow_topics SET subscribers = ?, version = ?, updated_ms = ? {same}"
    return db.execute(changed, (subscribers, version, now_ms, name, version_before, before)).rowcount == 1


class _Reading:
    """Another connection, which reads committed data without waiting for the writing one."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None

    def prepare(self) -> None:
        self._db = _connect(self._path)
        self._db.execute("PRAGMA query_only = 1")

    def perform(self, operations: Sequence[ops.Reading]) -> Sequence[Any]:
        if self._db is None:
            raise Offline(f"{self._path} is closed; nothing was changed")
        try:
            return [self._read(self._db, operation) for operation in operations]
        except sqlite3.Error as error:
            raise Offline(f"cannot read {self._path} ({_name(error)}: {error}); nothing was changed") from error

    def _read(self, db: sqlite3.Connection, operation: ops.Reading) -> Any:
        match operation:
            case ops.Load(gid):
                row = db.execute(_LOAD, (gid,)).fetchone()
                return None if row is None else ops.pledge_of(row)
            case ops.NextDue():
                (due_ms,) = db.execute(_NEXT_DUE).fetchone()
                return NEVER_MS if due_ms is None else due_ms
            case ops.Find():
                marks = Marks("?")
                query = finding(operation, marks)
                return ops.page_of(db.execute(query, marks.values).fetchall(), limit=operation.limit)
            case ops.LoadTopic(name):
                row = db.execute(_LOAD_TOPIC, (name,)).fetchone()
                return None if row is None else ops.topic_of(row)
            case ops.ListTopics(after, limit):
                return ops.topics_of(db.execute(_LIST_TOPICS, (after, limit + 1)).fetchall(), limit=limit)

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def statistics(self) -> dict[str, int]:
        return {}
