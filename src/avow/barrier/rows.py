"""The rules of the barrier on SQL, for whatever session there is. Everything else is adaptation.

    the pledge's transaction                     its checkback, any number of them at a time
    ────────────────────────                     ─────────────────────────────────────────────
    begin                                        1  a row is there: its reason is the verdict
    insert the key, reason `msg`                 2  insert the key, reason `rollback`
       is it there: refused, roll back              waits for an open transaction: ONGOING, nothing is decided
    work                                            is it there now: from 1 again
    commit                                          inserted: committed at once, FAILURE for good

The unique key makes one of the two win. Whoever comes second sees the other's row, or waits for its fate; so a verdict
never changes, and a transaction that a checkback declared dead cannot commit.

An inserted tombstone is only kept if the row cannot have been cleaned up (cleaning.py): otherwise nobody knows, and
that is what is said.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from avow.barrier.cleaning import is_maybe_cleaned
from avow.barrier.dialects import MYSQL, SQLITE
from avow.barrier.key import COMMITTED, OWN_BRANCH, OWN_OP, ROLLED_BACK, Call, Key, Verdict, verdict_of
from avow.barrier.session import CONTENDED, DUPLICATE, LOCKED, Session, lock_timeout_ms, text
from avow.errors import AlreadyDecided, AlreadyExists, Malformed, Trimmed

_PAUSE_S: Final = 0.02


class SqlCall(Call):
    """`table`: where it is not the usual one."""

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
    """In the caller's transaction. Refused: it must roll back."""
    if _insert(session, key, COMMITTED):
        return
    reason = read_reason(session, key, joined=True)
    if reason == ROLLED_BACK:
        raise AlreadyDecided(
            f"a checkback has declared {key.gid} rolled back before its transaction began; nothing was written. Roll "
            "back, and prepare a new pledge"
        )
    raise AlreadyExists(
        f"a transaction of {key.gid} has committed before; nothing was written by this one. Roll back: the pledge is "
        "delivered for the other"
    )


def must_still_be(session: Session, key: Key) -> None:
    """Before the commit of a transaction that others worked in: an error that they swallowed may have ended it."""
    if read_reason(session, key, joined=True) != COMMITTED:
        raise AlreadyDecided(
            f"the transaction of {key.gid} was rolled back inside, with its barrier row; nothing of this pledge is "
            "committed. Let errors of the database out of the block"
        )


def insert_once(session: Session, key: Key, *, prepared_ms: int | None) -> bool:
    """In the caller's transaction. False: a delivery before this one has done the work."""
    if not _insert(session, key, key.op):
        read_reason(session, key, joined=True)
        return False
    if prepared_ms is not None and is_maybe_cleaned(session, prepared_ms, joined=True):
        raise Trimmed(
            f"branch {key.branch_id} of {key.gid} was prepared before the time up to which barrier rows were cleaned "
            "up, and may have been done; nothing is kept if you roll back. Decide by hand"
        )
    return True


def _insert(session: Session, key: Key, reason: str) -> bool:
    outcome = session.execute(session.statements.insert, key.columns(reason), expected=DUPLICATE)
    return not outcome.trouble and outcome.count == 1


def read_reason(session: Session, key: Key, *, joined: bool = False) -> str:
    """Empty: no row, or one that cannot be read now. Another id that the database takes for this one is an error."""
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
    """One question, asked as often as the time allows. The session is idle before, between and after."""

    def __init__(self, session: Session, call: Call, *, lock_timeout_s: float) -> None:
        self._session, self._key, self._prepared_ms = session, call.own_key(), call.prepared_ms
        self._lock_timeout_s = lock_timeout_s
        self._until = time.monotonic() + lock_timeout_s

    def ask(self) -> Verdict | None:
        """None: ask again after a pause."""
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
        """Insert the tombstone. None: somebody else is at the row."""
        session, remaining_s = self._session, self._until - time.monotonic()
        if session.begin(wait_s=remaining_s, write=True):
            return None
        try:
            outcome = session.execute(session.statements.insert, self._key.columns(ROLLED_BACK), expected=CONTENDED)
            if outcome.trouble or outcome.count != 1:
                return None
            if is_maybe_cleaned(session, self._prepared_ms):
                raise Trimmed(
                    f"no row of {self._key.gid} is left, and it may have been cleaned up: whether it committed is "
                    "unknown here; nothing was changed. Decide by hand, from the data"
                )
            return None if session.commit() else Verdict.FAILURE
        finally:
            session.rollback()


def check_back(checkback: Checkback) -> Verdict:
    verdict = checkback.ask()
    while verdict is None:  # until its time is over
        time.sleep(checkback.pause_s())
        verdict = checkback.ask()
    return verdict


@contextmanager
def short_waits(session: Session, lock_timeout_s: float) -> Iterator[None]:
    """Where a database sets the wait for a lock by connection: for this block only."""
    restore = shorten_waits(session, lock_timeout_s)
    try:
        yield
    finally:
        restore_waits(session, restore)


def shorten_waits(session: Session, lock_timeout_s: float) -> str:
    """The statement that takes it back; empty: none."""
    dialect = session.statements.dialect
    if dialect is SQLITE:
        before = int(session.execute("pragma busy_timeout").rows[0][0])
        session.execute(f"pragma busy_timeout = {lock_timeout_ms(lock_timeout_s)}")
        session.rollback()
        return f"pragma busy_timeout = {before}"
    if dialect is MYSQL:
        version, before = session.execute("select version(), @@session.innodb_lock_wait_timeout").rows[0]
        least = 0 if "mariadb" in text(version).lower() else 1  # only MariaDB can not wait at all
        session.execute(f"set session innodb_lock_wait_timeout = {least}")
        session.rollback()
        return f"set session innodb_lock_wait_timeout = {int(before)}"
    return ""


def restore_waits(session: Session, restore: str) -> None:
    if restore:
        session.execute(restore)
        session.rollback()
