"""The barrier on a DB-API connection: sqlite3, psycopg, PyMySQL.

    barrier = Barrier(gid)                                the pledge's own transaction
    with barrier.transaction(connection) as cursor:       one of its own: row, your work, one commit
        cursor.execute(...)
    barrier.insert(connection)                            or inside one that you have begun

    check_back(connection, gid)                           in the checkback's handler: SUCCESS, FAILURE or ONGOING

    barrier = Barrier.from_query(request.args)            in a branch's handler
    if barrier.once(connection): ...                      inside your transaction; False: done before

Errors of the driver come through as they are. After one of them in `transaction` nothing is committed, with one
exception: when the commit itself fails by losing the connection, only check_back knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from avow.barrier import rows, schema
from avow.barrier.cleaning import ROWS_MAX, clean_up_rows
from avow.barrier.key import LOCK_TIMEOUT_S, Question, Verdict
from avow.barrier.session import DbApiSession, connection_of


class Barrier(rows.SqlCall):
    def insert(self, connection: Any) -> None:
        """In the transaction that is open on this connection, or cursor. Refused (AlreadyDecided, AlreadyExists): a
        checkback, or another transaction of this pledge, was there first; roll back."""
        rows.insert_own(self._joining(connection), self.key_to_commit())

    @contextmanager
    def transaction(self, connection: Any) -> Iterator[Any]:
        """A transaction of its own, with a cursor for your work. Commits at the end, rolls back on an error."""
        key, connection = self.key_to_commit(), connection_of(connection)
        session = DbApiSession(connection, table=self.table)
        session.must_be_idle()
        session.begin_work()
        try:
            rows.insert_own(session, key)
            with closing(connection.cursor()) as cursor:
                yield cursor
            rows.must_still_be(session, key)
            session.commit_work()
        finally:
            session.rollback()

    def once(self, connection: Any) -> bool:
        """In the transaction that is open: whether this piece of work is to be done. It is then done if you commit."""
        return rows.insert_once(self._joining(connection), self.next_key(), prepared_ms=self.prepared_ms)

    def check_back(self, connection: Any, *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> Verdict:
        """On a connection that is idle, and is idle again afterwards. Answers within about `lock_timeout_s`."""
        session = DbApiSession(connection, table=self.table)
        session.must_be_idle()
        with rows.short_waits(session, lock_timeout_s):
            return rows.check_back(rows.Checkback(session, self, lock_timeout_s=lock_timeout_s))

    def _joining(self, connection: Any) -> DbApiSession:
        session = DbApiSession(connection, table=self.table)
        session.must_join()
        return session


def check_back(
    connection: Any,
    gid: str,
    *,
    prepared_ms: int | None = None,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
    table: str = "",
) -> Verdict:
    """What became of this pledge's transaction. `prepared_ms`: as the coordinator says, if it does."""
    return Barrier(gid, prepared_ms=prepared_ms, table=table).check_back(connection, lock_timeout_s=lock_timeout_s)


def checkback(
    connect: Callable[[], Any], *, lock_timeout_s: float = LOCK_TIMEOUT_S, table: str = ""
) -> Callable[[Question], Verdict]:
    """For the routes in avow.barrier.web. `connect` gives a connection for each question; it is closed after it."""

    def answer(question: Question) -> Verdict:
        with closing(connect()) as connection:
            asked = Barrier(question.gid, prepared_ms=question.prepared_ms, table=table)
            return asked.check_back(connection, lock_timeout_s=lock_timeout_s)

    return answer


def create_table(connection: Any, *, table: str = "") -> None:
    """Make the barrier's table unless it is there."""
    session = DbApiSession(connection, table=table)
    session.must_be_idle()
    schema.create(session)


def clean_up(connection: Any, older_than_s: float, *, rows_max: int = ROWS_MAX, table: str = "") -> int:
    """Remove rows older than this, seven days at least; how many were removed. As many as `rows_max`: call again."""
    session = DbApiSession(connection, table=table)
    session.must_be_idle()
    return clean_up_rows(session, older_than_s=older_than_s, rows_max=rows_max)
