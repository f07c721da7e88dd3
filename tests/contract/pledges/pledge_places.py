"""Where the stores under test keep their pledges, and the pledges they are given.

A `Place` is one empty database, schema, key prefix or file. `open` gives another store on it, as another coordinator
would have: what they share is what is stored. `url` is the same place for a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pymysql
from tests.services import Server

from avow.pledge.record import NEVER_MS, Branch, BranchProgress, Content, Pledge, Progress, Status
from avow.pledge.store import PledgeStore
from avow.pledge.stores.memory import MemoryStore
from avow.pledge.stores.mysql import MySQLStore
from avow.pledge.stores.mysql_connection import arguments
from avow.pledge.stores.postgres import PostgresStore
from avow.pledge.stores.redis import RedisStore
from avow.pledge.stores.sqlite import SQLiteStore

NOW_MS = 1_700_000_000_000
LEASE_MS = 30_000
TIMEOUT_S = 300.0

_numbers = itertools.count(1)


class Place:
    """`server` is None if there is no server process to kill. `loses_claims`: with the coordinator of a lane, which may
    change whenever the machine stalls."""

    loses_claims = False

    def __init__(self, url: str, server: Server | None = None) -> None:
        self.url, self.server = url, server
        self._memory = MemoryStore() if url == "memory:" else None

    def open(self) -> PledgeStore:
        return self._memory or store_of(self.url)

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[PledgeStore]:
        store = self.open()
        await store.start()
        try:
            yield store
        finally:
            await store.close()


def store_of(url: str) -> PledgeStore:
    kind, _, rest = url.partition(":")
    if kind == "sqlite":
        return SQLiteStore(rest)
    if kind == "redis":
        address, _, prefix = url.partition("#")
        return RedisStore(address, prefix=prefix)
    return PostgresStore(url) if kind == "postgresql" else MySQLStore(url)


@contextlib.contextmanager
def _memory(server: Server | None, folder: Path) -> Iterator[Place]:
    yield Place("memory:")


@contextlib.contextmanager
def _sqlite(server: Server | None, folder: Path) -> Iterator[Place]:
    yield Place(f"sqlite:{folder / 'pledges.db'}")


@contextlib.contextmanager
def postgres_place(server: Server | None, folder: Path) -> Iterator[Place]:
    assert server is not None
    schema = f"t{next(_numbers)}"
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
    yield Place(f"{server.dsn}?options=-csearch_path%3D{schema}", server)
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())  # fewer files to sync after a crash


@contextlib.contextmanager
def mariadb_place(server: Server | None, folder: Path) -> Iterator[Place]:
    assert server is not None
    database = f"t{next(_numbers)}"
    with contextlib.closing(pymysql.connect(**arguments(server.dsn))) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {database}")
    yield Place(f"{server.dsn.rpartition('/')[0]}/{database}", server)
    with contextlib.closing(pymysql.connect(**arguments(server.dsn))) as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE {database}")


@contextlib.contextmanager
def redis_place(server: Server | None, folder: Path) -> Iterator[Place]:
    assert server is not None
    yield Place(f"{server.dsn}#t{next(_numbers)}", server)


@dataclass(frozen=True)
class Kind:
    """`server` names a fixture, empty where none is needed."""

    make: Callable[[Server | None, Path], AbstractContextManager[Place]]
    server: str = ""


PLACES = {
    "memory": Kind(_memory),
    "sqlite": Kind(_sqlite),
    "postgres": Kind(postgres_place, "postgres_server"),
    "mariadb": Kind(mariadb_place, "mariadb_server"),
    "redis": Kind(redis_place, "redis_server"),
}


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await main

    asyncio.run(bounded())


async def wait_until(true: Callable[[], Awaitable[bool]], *, timeout_s: float = 60.0) -> None:
    for _ in range(int(timeout_s / 0.02)):
        if await true():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come true in time")


def pledge(
    gid: str,
    *,
    status: Status = "submitted",
    at_ms: int = NOW_MS,
    created_ms: int = NOW_MS,
    finished_ms: int = 0,
    payload: bytes = b'{"amount": 30}',
) -> Pledge:
    content = Content(gid, (Branch("01", "http://bank-b/in", payload),), checkback="http://bank-a/checkback")
    return Pledge(content, progress(status, at_ms=at_ms, created_ms=created_ms, finished_ms=finished_ms))


def progress(
    status: Status = "submitted", *, at_ms: int = NOW_MS, created_ms: int = NOW_MS, finished_ms: int = 0, text: str = ""
) -> Progress:
    due_ms = at_ms if status in ("prepared", "submitted") else NEVER_MS
    done = BranchProgress("succeeded" if status == "succeeded" else "prepared")
    return Progress(status, created_ms, NOW_MS, due_ms, (done,), finished_ms=finished_ms, last_error=text)


def gids(pledges: Sequence[Pledge]) -> list[str]:
    return [found.gid for found in pledges]
