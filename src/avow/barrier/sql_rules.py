"""The rules of the barrier on SQL, for any kind of session.

    the pledge's transaction                     its checkback, any number of them concurrently
    ────────────────────────                     ───────────────────────────────────────────────
    begin                                        1  if there is a row, its reason is the verdict
    insert the key, reason `msg`                 2  insert the key, reason `rollback`
       if it exists: refused, roll back             an open transaction has the key: ONGOING, nothing is decided
    work                                            a row exists now: continue at 1
    commit                                          inserted: commit at once, the verdict is FAILURE

Because of the unique key only one of the two succeeds. The second one sees the row of the first, or waits until it is
decided. So a verdict never changes, and a transaction that a checkback declared rolled back cannot commit.

A tombstone is only committed if the pledge's row cannot have been cleaned up (cleanup.py); otherwise the outcome is
unknown, and there is no verdict.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from avow.barrier.cleanup import is_maybe_cleaned
from avow.barrier.db_connection import CONTENDED, DUPLICATE, LOCKED, Session, lock_timeout_ms, text
from avow.barrier.dialects import MYSQL, SQLITE
from avow.barrier.key import COMMITTED, OWN_BRANCH, OWN_OP, ROLLED_BACK, Call, Key, Verdict, verdict_of
from avow.errors import AlreadyDecided, AlreadyExists, Malformed, Trimmed

_PAUSE_S: Final = 0.02


class SqlCall(Call):
    """`table`: if it is not the default."""

    def __init__(
        self,
        gid: str,
        branch_id: str = OWN_BRANCH,
        op: str = OWN_OP,
        *,
        trans_type: str = "msg",
        prepared_ms: int | None = None,
        table: str = "",
    ) -> None:
        super().__init__(gid, branch_id, op, trans_type=trans_type, prepared_ms=prepared_ms)
        self.table = table


def insert_own(session: Session, key: Key) -> None:
    """Insert the pledge's row in the caller's transaction, which must be rolled back if this raises."""
    if _insert(session, key, COMMITTED):
        return
    reason = read_reason(session, key, joined=True)
    if reason == ROLLED_BACK:
        raise AlreadyDecided(
            f"a checkback declared pledge {key.gid} rolled back before this transaction; nothing was written. Roll "
            "back, and prepare a new pledge"
        )
    raise AlreadyExists(
        f"another transaction of pledge {key.gid} has already committed, and the pledge is delivered for it; this one "
        "wrote nothing. Roll it back"
    )


def must_still_be(session: Session, key: Key) -> None:
    """Check before the commit: a database error that the caller's code caught may have ended the transaction."""
    if read_reason(session, key, joined=True) != COMMITTED:
        raise AlreadyDecided(
            f"the transaction of pledge {key.gid} was rolled back within the block, with its barrier row; nothing of "
            "this pledge is committed. Do not catch database errors within the block"
        )


def insert_once(session: Session, key: Key, *, prepared_ms: int | None) -> bool:
    """Insert a branch's row in the caller's transaction. False: an earlier delivery has done the work."""
    if not _insert(session, key, key.op):
        read_reason(session, key, joined=True)
        return False
    if prepared_ms is not None and is_maybe_cleaned(session, prepared_ms, joined=True):
        raise Trimmed(
            f"pledge {key.gid} was prepared before the time up to which barrier rows were removed, so its branch "
            f"{key.branch_id} may have been done before. Roll back, then nothing is written, and decide by hand"
        )
    return True


def _insert(session: Session, key: Key, reason: str) -> bool:
    outcome = session.execute(session.statements.insert, key.columns(reason), expected=DUPLICATE)
    return not outcome.trouble and outcome.count == 1


def read_reason(session: Session, key: Key, *, joined: bool = False) -> str:
    """The row's reason. Empty: there is no row, or it is locked. Raises Malformed if the database found another id."""
    sql = session.statements.read_joined if joined else session.statements.read
    outcome = session.execute(sql, key.columns(""), expected=() if joined else LOCKED)
    for *found, reason in outcome.rows:
        if tuple(map(text, found)) != key.exact():
            raise Malformed(
                f"table {session.statements.table} does not compare ids byte for byte (see create_table); the key",
                expected=key.exact(),
                found=tuple(map(text, found)),
            )
        return text(reason)
    return ""


class Checkback:
    """One request, retried within the timeout. The session is idle before, between and after the attempts."""

    def __init__(self, session: Session, call: Call, *, lock_timeout_s: float) -> None:
        self._session, self._key, self._prepared_ms = session, call.own_key(), call.prepared_ms
        self._lock_timeout_s = lock_timeout_s
        self._until = time.monotonic() + lock_timeout_s

    def ask(self) -> Verdict | None:
        """None: call again after a pause."""
        verdict = self._ask()
        if verdict is None and time.monotonic() >= self._until:
            return Verdict.ONGOING
        return verdict

    def pause_s(self) -> float:
        return _PAUSE_S * random.uniform(0.5, 1.5)

    def _ask(self) -> Verdict | None:
        reason = self._read()
        if reason:
            return verdict_of(reason)
        if self._session.statements.probe and self._is_locked():
            return None
        return self._bury()

    def _read(self) -> str:
        if self._session.begin(wait_s=self._lock_timeout_s, write=False):
            return ""
        try:
            return read_reason(self._session, self._key)
        finally:
            self._session.rollback()

    def _is_locked(self) -> bool:
        self._session.begin(wait_s=self._lock_timeout_s, write=False)
        try:
            probe = self._session.statements.probe
            return bool(self._session.execute(probe, self._key.columns(""), expected=CONTENDED).trouble)
        finally:
            self._session.rollback()

    def _bury(self) -> Verdict | None:
        """Insert the tombstone. None: another transaction has the row."""
        session, remaining_s = self._session, self._until - time.monotonic()
        if session.begin(wait_s=remaining_s, write=True):
            return None
        try:
            outcome = session.execute(session.statements.insert, self._key.columns(ROLLED_BACK), expected=CONTENDED)
            if outcome.trouble or outcome.count != 1:
                return None
            if is_maybe_cleaned(session, self._prepared_ms):
                raise Trimmed(
                    f"pledge {self._key.gid} has no row, but the row may have been cleaned up, so it is unknown "
                    "whether the transaction committed; nothing was changed. Decide by hand, from the data"
                )
            return None if session.commit() else Verdict.FAILURE
        finally:
            session.rollback()


def check_back(checkback: Checkback) -> Verdict:
    verdict = checkback.ask()
    while verdict is None:  # `ask` ends it after the timeout
        time.sleep(checkback.pause_s())
        verdict = checkback.ask()
    return verdict


@contextmanager
def short_waits(session: Session, lock_timeout_s: float) -> Iterator[None]:
    """Shortens the lock timeout within this block, for databases where it is a setting of the connection."""
    restore = shorten_waits(session, lock_timeout_s)
    try:
        yield
    finally:
        restore_waits(session, restore)


def shorten_waits(session: Session, lock_timeout_s: float) -> str:
    """Returns the statement that restores the setting; empty: none."""
    dialect = session.statements.dialect
    if dialect is SQLITE:
        before = int(session.execute("pragma busy_timeout").rows[0][0])
        session.execute(f"pragma busy_timeout = {lock_timeout_ms(lock_timeout_s)}")
        session.rollback()
        return f"pragma busy_timeout = {before}"
    if dialect is MYSQL:
        version, before = session.execute("select version(), @@session.innodb_lock_wait_timeout").rows[0]
        least = 0 if "mariadb" in text(version).lower() else 1  # only MariaDB allows 0
        session.execute(f"set session innodb_lock_wait_timeout = {least}")
        session.rollback()
        return f"set session innodb_lock_wait_timeout = {int(before)}"
    return ""


def restore_waits(session: Session, restore: str) -> None:
    if restore:
        session.execute(restore)
        session.rollback()
