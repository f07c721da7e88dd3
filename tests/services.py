"""Real PostgreSQL, MariaDB and Redis for tests: each an instance of its own, on a free port, in a temporary folder.

async with postgres() as dsn: ...        a server for one test; `mariadb()` and `redis()` alike
from services import postgres_server     a pytest fixture: one server for the whole run, with `.dsn`
with PostgresServer() as server: ...     a server to be killed (`kill`, with -9) and started again (`start`)
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from avow.testing.services import MariaDBServer, PostgresServer, RedisServer, Server, free_port, program

__all__ = [
    "MariaDBServer",
    "PostgresServer",
    "RedisServer",
    "Server",
    "free_port",
    "mariadb",
    "mariadb_server",
    "postgres",
    "postgres_server",
    "program",
    "redis",
    "redis_server",
]


@contextlib.asynccontextmanager
async def postgres() -> AsyncIterator[str]:
    with PostgresServer() as server:
        yield server.dsn


@contextlib.asynccontextmanager
async def mariadb() -> AsyncIterator[str]:
    with MariaDBServer() as server:
        yield server.dsn


@contextlib.asynccontextmanager
async def redis(*, appendfsync: str = "always") -> AsyncIterator[str]:
    with RedisServer(appendfsync=appendfsync) as server:
        yield server.dsn


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[Server]:
    with MariaDBServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    with RedisServer() as server:
        yield server
