"""The databases that the barrier is tested on, and a bank for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.barrier_databases import Database, MariaDB, PostgreSQL, RepeatableRead, SQLite, SQLiteWal
from tests.integration.pledge_bank import bank, checkback, client, coordinator, service

__all__ = [
    "bank",
    "checkback",
    "client",
    "coordinator",
    "service",
]


@pytest.fixture
def database(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Iterator[Database]:
    """With the barrier's table in it. `kind`: one of KINDS, from the test's parameters."""
    made: Database
    if kind in (SQLite.name, SQLiteWal.name):
        made = {SQLite.name: SQLite, SQLiteWal.name: SQLiteWal}[kind](tmp_path)
    elif kind == MariaDB.name:
        made = MariaDB(request.getfixturevalue("mariadb_server"))
    else:
        server = request.getfixturevalue("postgres_server")
        made = PostgreSQL(server) if kind == PostgreSQL.name else RepeatableRead(server)
    yield made.prepare()
    made.close()
