"""A database connection as the barrier uses it: a few statements, and transactions of its own that wait only briefly.

`Session` is what the rules in rows.py are written against. `DbApiSession` is one over a DB-API connection (sqlite3,
psycopg, PyMySQL; also the one inside Django's wrapper); sqlalchemy.py has the other.

A session either *joins* a transaction of the caller, then it only executes, or *owns* one, then the connection must be
idle when it begins and is idle again when it ends. Drivers differ in who begins a transaction:

    sqlite3   nobody, or the driver before a change     in a transaction: connection.in_transaction
    psycopg   the driver before anything                          connection.info.transaction_status
    PyMySQL   the server, when autocommit is off                  a bit of the server's last answer

Other drivers are refused: one that counts transactions itself (psycopg2) would go on without one after a COMMIT that it
did not send, and nobody would notice. They can be used through SQLAlchemy.
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
        """An expected trouble is in the outcome; every other error is raised as the driver has it."""

    def begin(self, *, wait_s: float, write: bool) -> Trouble:
        """Begin a transaction of one's own, waiting no longer than this for locks. `locked`: it did not begin."""

    def commit(self) -> Trouble:
        """`locked`: it did not commit, and can still be rolled back."""

    def rollback(self) -> None:
        """Of one's own transaction, if there is one."""


class DbApiSession:
    def __init__(self, connection: Any, *, table: str = "", dialect: Dialect | None = None) -> None:
        self._connection = connection_of(connection)
        self._dialect = dialect or _dialect_of(self._connection)
        self.statements = self._dialect.on(table)
        self._open = False

    def must_be_idle(self) -> None:
        if self._in_transaction():
            raise InvalidRequest(
                "the connection is in a transaction, and this begins its own; nothing was done. Commit or roll back "
                "first, or use another connection"
            )

    def must_join(self) -> None:
        """A row that commits by itself would say that work was done which may never be."""
        if self._autocommits() and not self._in_transaction():
            raise InvalidRequest(
                "the connection commits every statement by itself, so the barrier row would not share its fate with "
                "your work; nothing was written. Begin a transaction first"
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
        """A snapshot for each statement: whoever asks again must see what has been committed meanwhile."""
        self._open = True
        if self._connection.autocommit:
            self.execute("begin")
        self.execute("set transaction isolation level read committed")
        self.execute(f"set local lock_timeout = {lock_timeout_ms(wait_s)}")
        return ""

    def begin_work(self) -> None:
        """A transaction for the caller's work: as the connection is set, and waiting for locks as it does."""
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
        with suppress(self._connection.Error):  # of a lost connection: the server has rolled back, or will
            if self._dialect is MYSQL or self._in_transaction():
                self.execute("rollback")

    def _cursor(self) -> Any:
        """One that gives plain rows, whatever the connection is set to give."""
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
    """The DB-API connection: given itself, by one of its cursors, or inside Django's wrapper."""
    if hasattr(given, "ensure_connection"):
        given.ensure_connection()
        return given.connection
    if hasattr(given, "commit"):
        return given
    if hasattr(given, "execute") and hasattr(given, "connection"):
        return connection_of(given.connection)
    raise InvalidRequest(f"{type(given).__name__} is neither a DB-API connection nor a cursor; nothing was done")


def _dialect_of(connection: Any) -> Dialect:
    for kind in type(connection).__mro__:
        dialect = _DRIVERS.get(kind.__module__.partition(".")[0])
        if dialect is not None:
            return dialect
    known = ", ".join(_DRIVERS)
    raise InvalidRequest(f"a connection of {type(connection).__module__} is not one of {known}; nothing was done")


@lru_cache(maxsize=256)
def _pyformat(sql: str) -> str:
    return re.sub(r":([a-z_]+)", r"%(\1)s", sql)


def _plain(row: Any) -> tuple[Any, ...]:
    return tuple(row.values()) if isinstance(row, Mapping) else tuple(row)


def lock_timeout_ms(wait_s: float) -> int:
    """PostgreSQL and SQLite take 0 for something else: for ever, and not at all."""
    return max(1, int(wait_s * 1000))


def text(value: object) -> str:
    """Of a column: a driver may give bytes for what another gives as text."""
    return value.decode() if isinstance(value, bytes) else cast(str, value)
