"""Database sessions for the barrier: a few statements, and short transactions with a bounded wait for locks.

The rules in sql_rules.py use the protocol `Session`. `DbApiSession` implements it for a DB-API connection (sqlite3,
psycopg, PyMySQL, also inside Django's wrapper); sqlalchemy.py has the other implementation.

A session either *joins* a transaction of the caller and only executes statements, or it *owns* a transaction; then the
connection must be idle before and is idle after. Drivers differ in how a transaction begins:

              begun by                                      state is in
    sqlite3   the caller, or the driver before a change     connection.in_transaction
    psycopg   the driver, before any statement              connection.info.transaction_status
    PyMySQL   the server, if autocommit is off              a bit of the server's last answer

Other drivers are refused: one that tracks transactions itself (psycopg2) would continue without a transaction after a
COMMIT that it did not send. Use them through SQLAlchemy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Protocol, cast

from avow.barrier.dialects import MYSQL, POSTGRESQL, SQLITE, Dialect, Statements, Trouble, trouble_of
from avow.errors import InvalidRequest

LOCKED: Final = frozenset[Trouble]({"locked"})
CONTENDED: Final = frozenset[Trouble]({"locked", "deadlock", "duplicate"})
DUPLICATE: Final = frozenset[Trouble]({"duplicate"})

_DRIVERS: Final[Mapping[str, Dialect]] = {
    "sqlite3": SQLITE,
    "psycopg": POSTGRESQL,
    "pymysql": MYSQL,
}
_MYSQL_IN_TRANSACTION: Final = 1  # bits of the server's status
_PG_IDLE: Final = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    rows: tuple[tuple[Any, ...], ...] = ()
    count: int = 0
    trouble: Trouble = ""


class Session(Protocol):
    statements: Statements

    def execute(
        self, sql: str, parameters: Mapping[str, Any] | None = None, *, expected: Iterable[Trouble] = ()
    ) -> Outcome:
        """An expected trouble is returned in the outcome; every other error of the driver is raised."""

    def begin(self, *, wait_s: float, write: bool) -> Trouble:
        """Begin an own transaction that waits at most `wait_s` for locks. `locked`: it did not begin."""

    def commit(self) -> Trouble:
        """`locked`: it did not commit, and can still be rolled back."""

    def rollback(self) -> None:
        """Roll back the own transaction, if there is one."""


class DbApiSession:
    def __init__(self, connection: Any, *, table: str = "", dialect: Dialect | None = None) -> None:
        self._connection = connection_of(connection)
        self._dialect = dialect or _dialect_of(self._connection)
        self.statements = self._dialect.on(table)
        self._open = False

    def must_be_idle(self) -> None:
        if self._in_transaction():
            raise InvalidRequest(
                "the connection is in a transaction, but this call needs its own; nothing was done. Commit or roll "
                "back first, or use another connection"
            )

    def must_join(self) -> None:
        """Without a transaction the row would be committed alone, and say that work was done that may still fail."""
        if self._autocommits() and not self._in_transaction():
            raise InvalidRequest(
                "the connection is in autocommit mode, so the barrier row would not be committed together with your "
                "work; nothing was written. Begin a transaction first"
            )

    def execute(
        self, sql: str, parameters: Mapping[str, Any] | None = None, *, expected: Iterable[Trouble] = ()
    ) -> Outcome:
        cursor = self._cursor()
        try:
            if parameters is None:
                cursor.execute(sql)
            else:
                cursor.execute(sql if self._dialect is SQLITE else _pyformat(sql), dict(parameters))
            rows = tuple(_plain(row) for row in cursor.fetchall()) if cursor.description else ()
            return Outcome(rows, cursor.rowcount)
        except self._connection.Error as error:
            trouble = trouble_of(error, self._dialect)
            if not trouble or trouble not in expected:
                raise
            return Outcome(trouble=trouble)
        finally:
            cursor.close()

    def begin(self, *, wait_s: float, write: bool) -> Trouble:
        if self._dialect is POSTGRESQL:
            return self._begin_postgresql(wait_s)
        first = "start transaction"
        if self._dialect is SQLITE:
            first = "begin immediate" if write else "begin"
        trouble = self.execute(first, expected=LOCKED).trouble
        self._open = not trouble
        return trouble

    def _begin_postgresql(self, wait_s: float) -> Trouble:
        """One snapshot per statement, so that a repeated read sees rows committed meanwhile."""
        self._open = True
        if self._connection.autocommit:
            self.execute("begin")
        self.execute("set transaction isolation level read committed")
        self.execute(f"set local lock_timeout = {lock_timeout_ms(wait_s)}")
        return ""

    def begin_work(self) -> None:
        """A transaction for the caller's work, with the connection's own isolation level and lock timeouts."""
        if self._dialect is POSTGRESQL:
            if self._connection.autocommit:
                self.execute("begin")
        else:
            self.execute("begin immediate" if self._dialect is SQLITE else "start transaction")
        self._open = True

    def commit_work(self) -> None:
        self.execute("commit")
        self._open = False

    def commit(self) -> Trouble:
        trouble = self.execute("commit", expected=LOCKED).trouble
        self._open = bool(trouble)
        return trouble

    def rollback(self) -> None:
        if not self._open:
            return
        self._open = False
        with suppress(self._connection.Error):  # the connection was lost: the server rolls back
            if self._dialect is MYSQL or self._in_transaction():
                self.execute("rollback")

    def _cursor(self) -> Any:
        """A cursor that returns plain tuples, whatever row factory the connection has."""
        if type(self._connection).__module__.partition(".")[0] == "psycopg":
            from psycopg.rows import tuple_row

            return self._connection.cursor(row_factory=tuple_row)
        cursor = self._connection.cursor()
        if self._dialect is SQLITE:
            cursor.row_factory = None
        return cursor

    def _in_transaction(self) -> bool:
        if self._dialect is SQLITE:
            return bool(self._connection.in_transaction)
        if self._dialect is POSTGRESQL:
            return int(self._connection.info.transaction_status) != _PG_IDLE
        return bool(self._connection.server_status & _MYSQL_IN_TRANSACTION)

    def _autocommits(self) -> bool:
        if self._dialect is SQLITE:
            return (
                self._connection.isolation_level is None and getattr(self._connection, "autocommit", True) is not False
            )
        if self._dialect is POSTGRESQL:
            return bool(self._connection.autocommit)
        return bool(self._connection.get_autocommit())


def connection_of(given: Any) -> Any:
    """The DB-API connection, from itself, from one of its cursors, or from Django's wrapper."""
    if hasattr(given, "ensure_connection"):
        given.ensure_connection()
        return given.connection
    if hasattr(given, "commit"):
        return given
    if hasattr(given, "execute") and hasattr(given, "connection"):
        return connection_of(given.connection)
    raise InvalidRequest(f"{type(given).__name__} is not a DB-API connection or cursor; nothing was done")


def _dialect_of(connection: Any) -> Dialect:
    for kind in type(connection).__mro__:
        dialect = _DRIVERS.get(kind.__module__.partition(".")[0])
        if dialect is not None:
            return dialect
    known = ", ".join(_DRIVERS)
    raise InvalidRequest(
        f"connections of {type(connection).__module__} are not supported, only those of {known}; nothing was done. "
        "Use SQLAlchemy for other drivers"
    )


@lru_cache(maxsize=256)
def _pyformat(sql: str) -> str:
    return re.sub(r":([a-z_]+)", r"%(\1)s", sql)


def _plain(row: Any) -> tuple[Any, ...]:
    return tuple(row.values()) if isinstance(row, Mapping) else tuple(row)


def lock_timeout_ms(wait_s: float) -> int:
    """At least 1, because 0 means no limit in PostgreSQL and no wait in SQLite."""
    return max(1, int(wait_s * 1000))


def text(value: object) -> str:
    """The text of a column, for which some drivers return bytes."""
    return value.decode() if isinstance(value, bytes) else cast(str, value)
