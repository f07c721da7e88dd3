"""The databases of the service under test, behind one interface, each with its barrier.

    works     one row for each pledge's own transaction that committed
    effects   one row for each time a branch took effect: only the barrier prevents a second one

A branch also reads whether the work of its pledge is there. An effect without committed work is stored under a name
with the prefix `early-`, and the check finds it.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from avow.barrier import sql
from avow.barrier.key import Question, Verdict
from avow.barrier.sql import Barrier
from avow.client.blocking_pledge import BlockingPledge
from avow.client.pledge_outcomes import Outcome
from avow.errors import InvalidRequest

LOCK_WAIT_S: Final = 20.0
EARLY: Final = "early-"
_WORK: Final = "insert into works values ('{gid}')"
_EFFECT: Final = "insert into effects values ('{gid}', '{branch}')"
_WORKED: Final = "select count(*) from works where gid = '{gid}'"

Passing: TypeAlias = Callable[[str], None]


class RolledBackOnPurpose(Exception):
    """Raised by the work of a pledge that is meant to roll back."""


class Database(ABC):
    """`passing(point)` is called at every point where a process may be killed."""

    @abstractmethod
    def prepare(self) -> None:
        """Create the tables."""

    @abstractmethod
    def pledge(self, pledge: BlockingPledge, *, checkback: str, commit: bool, passing: Passing) -> Outcome:
        """Do the work of a pledge, or begin it and roll back."""

    @abstractmethod
    def branch(self, query: Mapping[str, str], passing: Passing) -> None: ...

    @abstractmethod
    def check_back(self, question: Question) -> Verdict: ...

    @abstractmethod
    def works(self) -> Counter[str]: ...

    @abstractmethod
    def effects(self) -> Counter[tuple[str, str]]: ...


class SqlDatabase(Database):
    @abstractmethod
    def connect(self) -> Any: ...

    def prepare(self) -> None:
        with closing(self.connect()) as connection:
            sql.create_table(connection)
            cursor = connection.cursor()
            cursor.execute("create table if not exists works (gid varchar(200))")
            cursor.execute("create table if not exists effects (gid varchar(200), branch varchar(200))")
            connection.commit()

    def pledge(self, pledge: BlockingPledge, *, checkback: str, commit: bool, passing: Passing) -> Outcome:
        def work(cursor: Any) -> None:
            cursor.execute(_WORK.format(gid=pledge.gid))
            passing("in-work")
            passing("slow-work")
            if not commit:
                raise RolledBackOnPurpose
            passing("before-commit")

        with closing(self.connect()) as connection:
            return pledge.do_and_submit_db(connection, work, checkback=checkback, ask=self.check_back)

    def branch(self, query: Mapping[str, str], passing: Passing) -> None:
        with closing(self.connect()) as connection:
            cursor = connection.cursor()
            if isinstance(connection, sqlite3.Connection):
                cursor.execute("begin immediate")
            if Barrier.from_query(query).once(connection):
                cursor.execute(_WORKED.format(gid=query["gid"]))
                branch = query["branch_id"] if cursor.fetchone()[0] else EARLY + query["branch_id"]
                cursor.execute(_EFFECT.format(gid=query["gid"], branch=branch))
            passing("in-branch")
            connection.commit()

    def check_back(self, question: Question) -> Verdict:
        return sql.checkback(self.connect)(question)

    def works(self) -> Counter[str]:
        return Counter(gid for (gid,) in self._rows("select gid from works"))

    def effects(self) -> Counter[tuple[str, str]]:
        return Counter((gid, branch) for gid, branch in self._rows("select gid, branch from effects"))

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(query)
            return list(cursor.fetchall())


class SQLiteDatabase(SqlDatabase):
    def __init__(self, path: str) -> None:
        self._path = path

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=LOCK_WAIT_S)


class PostgresDatabase(SqlDatabase):
    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def connect(self) -> Any:
        import psycopg

        return psycopg.connect(self._dsn)


class MariaDBDatabase(SqlDatabase):
    def __init__(self, dsn: str) -> None:
        parts = urlsplit(dsn)
        self._given = {
            "host": parts.hostname,
            "port": parts.port,
            "user": parts.username,
            "password": parts.password or "",
            "database": parts.path.strip("/"),
        }

    def connect(self) -> Any:
        import pymysql

        return pymysql.connect(**self._given)


class RedisDatabase(Database):
    def __init__(self, dsn: str) -> None:
        import redis

        self._client = redis.Redis.from_url(dsn)

    def prepare(self) -> None:
        self._client.ping()

    def pledge(self, pledge: BlockingPledge, *, checkback: str, commit: bool, passing: Passing) -> Outcome:
        def work(barrier: Any) -> None:
            passing("in-work")
            passing("slow-work")
            if not commit:
                raise RolledBackOnPurpose
            passing("before-commit")
            barrier.insert(self._client, ("RPUSH", "works", pledge.gid))

        return pledge.do_and_submit(self._client, work, checkback=checkback, ask=self.check_back)

    def branch(self, query: Mapping[str, str], passing: Passing) -> None:
        from avow.barrier.redis import Barrier as RedisBarrier

        gid = query["gid"]
        worked = self._client.lpos("works", gid) is not None
        branch = query["branch_id"] if worked else EARLY + query["branch_id"]
        passing("in-branch")
        RedisBarrier.from_query(query).once(self._client, ("RPUSH", "effects", f"{gid} {branch}"))

    def check_back(self, question: Question) -> Verdict:
        from avow.barrier.redis import checkback

        return checkback(self._client)(question)

    def works(self) -> Counter[str]:
        return Counter(item.decode() for item in self._items("works"))

    def effects(self) -> Counter[tuple[str, str]]:
        pairs = (item.decode().partition(" ") for item in self._items("effects"))
        return Counter((gid, branch) for gid, _, branch in pairs)

    def _items(self, name: str) -> list[bytes]:
        found: Any = self._client.lrange(name, 0, -1)
        return list(found)


_DATABASES: Final[dict[str, Callable[[str], Database]]] = {
    "postgresql": PostgresDatabase,
    "mysql": MariaDBDatabase,
    "redis": RedisDatabase,
}


def open_database(dsn: str) -> Database:
    """`dsn` is `sqlite:PATH` or a URL."""
    scheme, _, rest = dsn.partition(":")
    if scheme == "sqlite":
        return SQLiteDatabase(rest)
    if scheme not in _DATABASES:
        raise InvalidRequest(
            f"{dsn!r} is not a database of this campaign; it takes sqlite:PATH or a URL of {', '.join(_DATABASES)}"
        )
    return _DATABASES[scheme](dsn)
