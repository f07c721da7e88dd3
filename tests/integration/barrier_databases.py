"""The databases that the barrier is tested on, each behind one interface: connect, query, open sessions."""

from __future__ import annotations

import itertools
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pymysql
from tests.services import Server

from avow.barrier.sql import create_table

_gids = itertools.count(1)


def new_gid(name: str = "gid") -> str:
    return f"{name}-{next(_gids)}-{time.time_ns()}"


def wait_until(true: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.005)


class Database(ABC):
    """`connections` are closed at the end, with whatever they were at."""

    name: ClassVar[str]
    dialect: ClassVar[str]

    def __init__(self) -> None:
        self._connections: list[Any] = []

    def prepare(self) -> Database:
        connection = self.connect()
        create_table(connection)
        self.do(connection, "create table if not exists works (gid varchar(200))")
        return self

    def connect(self, *, wait_s: float = 5.0) -> Any:
        """`wait_s`: for locks, where nobody else says."""
        connection = self._connect(wait_s)
        self._connections.append(connection)
        return connection

    @abstractmethod
    def _connect(self, wait_s: float) -> Any: ...

    @abstractmethod
    def url(self, driver: str = "") -> str: ...

    @abstractmethod
    def others_at_work(self) -> int:
        """Connections that are in a transaction or at a statement, all but the one that asks."""

    def wait_for_rest(self) -> None:
        """A server works on for a moment after a client closed its connection; sessions with a transaction stay."""
        wait_until(lambda: self.others_at_work() == 0)

    def do(self, connection: Any, sql: str) -> None:
        connection.cursor().execute(sql)
        connection.commit()

    def work(self, connection: Any, gid: str) -> None:
        """The business of a pledge, in the transaction that is open."""
        connection.cursor().execute(f"insert into works values ('{gid}')")

    def worked(self, gid: str) -> int:
        return int(self.rows(f"select count(*) from works where gid = '{gid}'")[0][0])

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        connection = self._connect(5.0)
        try:
            cursor = connection.cursor()
            cursor.execute(sql)
            return list(cursor.fetchall())
        finally:
            connection.close()

    def reasons(self, gid: str) -> list[tuple[str, str, str, str]]:
        table = "barrier" if self.dialect == "sqlite" else "dtm_barrier.barrier"
        return self.rows(f"select branch_id, op, barrier_id, reason from {table} where gid = '{gid}' order by id")

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


class SQLite(Database):
    name = dialect = "sqlite"
    journal: ClassVar[str] = "delete"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._path = folder / "barrier.db"

    def _connect(self, wait_s: float) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=wait_s, check_same_thread=False)
        connection.execute(f"pragma journal_mode = {self.journal}")
        return connection

    def url(self, driver: str = "") -> str:
        return f"sqlite{driver and '+' + driver}:///{self._path}"

    def others_at_work(self) -> int:
        return sum(connection.in_transaction for connection in self._connections)


class SQLiteWal(SQLite):
    name = "sqlite-wal"
    journal = "wal"


class OnServer(Database):
    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server

    def url(self, driver: str = "") -> str:
        scheme, _, rest = self._server.dsn.partition("://")
        return f"{scheme}+{driver}://{rest}" if driver else self._server.dsn


class PostgreSQL(OnServer):
    name = dialect = "postgresql"

    def _connect(self, wait_s: float) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self._server.dsn, options=f"-c lock_timeout={max(1, int(wait_s * 1000))}")

    def others_at_work(self) -> int:
        busy = "pid <> pg_backend_pid() and backend_type = 'client backend' and state <> 'idle'"
        return int(self.rows(f"select count(*) from pg_stat_activity where {busy}")[0][0])

    def waiting(self) -> int:
        return int(self.rows("select count(*) from pg_stat_activity where wait_event_type = 'Lock'")[0][0])


class RepeatableRead(PostgreSQL):
    """As a service may set it for all its connections."""

    name = "postgresql-repeatable-read"

    def _connect(self, wait_s: float) -> psycopg.Connection[tuple[Any, ...]]:
        connection = super()._connect(wait_s)
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        return connection


class MariaDB(OnServer):
    name = "mariadb"
    dialect = "mysql"

    def _connect(self, wait_s: float) -> pymysql.connections.Connection[Any]:
        connection = pymysql.connect(host="127.0.0.1", port=self._server.port, user="root", database="avow")
        with connection.cursor() as cursor:
            cursor.execute(f"set session innodb_lock_wait_timeout = {int(wait_s)}")
        return connection

    def others_at_work(self) -> int:
        time.sleep(0.11)  # InnoDB renews this view only when nobody has read it for 0.1 s
        return int(self.rows("select count(*) from information_schema.innodb_trx")[0][0])

    def waiting(self) -> int:
        return int(self.rows("show global status like 'Innodb_row_lock_current_waits'")[0][1])

    def deadlocks(self) -> int:
        return int(self.rows("show global status like 'Innodb_deadlocks'")[0][1])


KINDS = tuple(made.name for made in (SQLite, SQLiteWal, PostgreSQL, RepeatableRead, MariaDB))
