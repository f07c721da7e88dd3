"""The barrier on a DB-API connection: sqlite3, psycopg, PyMySQL.

    barrier = Barrier(gid)                                for the pledge's own transaction
    with barrier.transaction(connection) as cursor:       in a new transaction: barrier row, your work, one commit
        cursor.execute(...)
    barrier.insert(connection)                            or in a transaction that you have begun

    check_back(connection, gid)                           in the handler of the checkback: SUCCESS, FAILURE, ONGOING

    barrier = Barrier.from_query(request.args)            in the handler of a branch
    if barrier.once(connection): ...                      in your transaction; False: done before

Errors of the driver are raised unchanged. After an error in `transaction` nothing is committed, with one exception: if
the connection is lost during the commit itself, only check_back knows the outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from avow.barrier import schema, sql_rules
from avow.barrier.cleanup import ROWS_MAX, clean_up_rows
from avow.barrier.db_connection import DbApiSession, connection_of
from avow.barrier.key import LOCK_TIMEOUT_S, Question, Verdict


class Barrier(sql_rules.SqlCall):
    def insert(self, connection: Any) -> None:
        """Insert the row in the open transaction of this connection or cursor. Raises AlreadyDecided or AlreadyExists
        if a checkback, or another transaction of this pledge, was first; roll back then."""
        sql_rules.insert_own(self._joining(connection), self.key_to_commit())

    @contextmanager
    def transaction(self, connection: Any) -> Iterator[Any]:
        """A new transaction, with a cursor for your work. It commits at the end and rolls back on an error."""
        key, connection = self.key_to_commit(), connection_of(connection)
        session = DbApiSession(connection, table=self.table)
        session.must_be_idle()
        session.begin_work()
        try:
            sql_rules.insert_own(session, key)
            with closing(connection.cursor()) as cursor:
                yield cursor
            sql_rules.must_still_be(session, key)
            session.commit_work()
        finally:
            session.rollback()

    def once(self, connection: Any) -> bool:
        """Call it in the open transaction. True: do this work, it is done when you commit. False: done before."""
        return sql_rules.insert_once(self._joining(connection), self.next_key(), prepared_ms=self.prepared_ms)

    def check_back(self, connection: Any, *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> Verdict:
        """The connection must be idle, and is idle afterwards. Answers within about `lock_timeout_s`."""
        session = DbApiSession(connection, table=self.table)
        session.must_be_idle()
        with sql_rules.short_waits(session, lock_timeout_s):
            return sql_rules.check_back(sql_rules.Checkback(session, self, lock_timeout_s=lock_timeout_s))

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
    """The outcome of the pledge's transaction. `prepared_ms`: as the coordinator sent it, if it did."""
    return Barrier(gid, prepared_ms=prepared_ms, table=table).check_back(connection, lock_timeout_s=lock_timeout_s)


def checkback(
    connect: Callable[[], Any], *, lock_timeout_s: float = LOCK_TIMEOUT_S, table: str = ""
) -> Callable[[Question], Verdict]:
    """For the routes in avow.barrier.web. `connect` returns a connection for each request, which is closed after it."""

    def answer(question: Question) -> Verdict:
        with closing(connect()) as connection:
            asked = Barrier(question.gid, prepared_ms=question.prepared_ms, table=table)
            return asked.check_back(connection, lock_timeout_s=lock_timeout_s)

    return answer


def create_table(connection: Any, *, table: str = "") -> None:
    """Create the barrier's table if it does not exist."""
    session = DbApiSession(connection, table=table)
    session.must_be_idle()
    schema.create(session)


def clean_up(connection: Any, older_than_s: float, *, rows_max: int = ROWS_MAX, table: str = "") -> int:
    """Remove rows older than this, at least seven days. Returns their number; if it is `rows_max`, call again."""
    session = DbApiSession(connection, table=table)
    session.must_be_idle()
    return clean_up_rows(session, older_than_s=older_than_s, rows_max=rows_max)
