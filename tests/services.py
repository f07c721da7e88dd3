"""Real PostgreSQL, MariaDB and Redis for tests: each a new instance on a free port, in a temporary folder.

async with postgres() as dsn: ...        a server for one test; `mariadb()` and `redis()` alike
def test_it(postgres_server): ...        a fixture of tests/conftest.py: one server for a worker's whole run
with PostgresServer() as server: ...     a server to be killed (`kill`, with -9) and started again (`start`)
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from avow.testing.services import MariaDBServer, PostgresServer, RedisServer, Server, free_port, program

__all__ = [
    "MariaDBServer",
    "PostgresServer",
    "RedisServer",
    "Server",
    "free_port",
    "mariadb",
    "postgres",
    "program",
    "redis",
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
