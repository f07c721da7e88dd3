"""The database servers of a campaign: one of each kind that is asked for, with a database for every testbed."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from avow.errors import NotInstalled
from avow.testing.services import MariaDBServer, PostgresServer, RedisServer, Server

IMPORTED: Final = {
    "sqlite": ("avow.pledge.stores.sqlite",),
    "postgres": ("avow.pledge.stores.postgres",),
    "mariadb": ("avow.pledge.stores.mysql",),
    "redis": ("avow.pledge.stores.redis", "avow.barrier.redis"),
}
"""Modules that peers and services import when they know their store and database; the fork server imports them once."""
_KINDS: Final[tuple[tuple[str, type[Server], str, str], ...]] = (
    ("postgres", PostgresServer, "psycopg", "postgres"),
    ("mariadb", MariaDBServer, "pymysql", "mysql"),
    ("redis", RedisServer, "redis", "redis"),
)


class DatabaseServers:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._running: dict[type[Server], Server] = {}
        self._redis_count = 0

    def close(self) -> None:
        self._stack.close()

    def start(self, kinds: set[str]) -> None:
        self._folder.chmod(0o755)  # a server may run as another user
        for kind, server, library, extra in _KINDS:
            if kind in kinds:
                _library(library, extra=extra)
                self._server(server)

    def store(self, kind: str, name: str) -> str:
        """As the setting `pledge_store` takes it."""
        return "lane" if kind == "lane" else self.database(kind, name)

    def database(self, kind: str, name: str) -> str:
        """Make a database. Returns its address, as `open_database` and the stores take it."""
        name = name.replace("-", "_")
        if kind == "postgres":
            return self._postgres(name)
        if kind == "mariadb":
            return self._mariadb(name)
        if kind == "redis":
            _library("redis", extra="redis")
            self._redis_count += 1
            return self._server(RedisServer).dsn.rpartition("/")[0] + f"/{self._redis_count % 16}"
        return f"sqlite:{self._folder / name}.db"

    def _postgres(self, name: str) -> str:
        psycopg: Any = _library("psycopg", extra="postgres")
        server = self._server(PostgresServer)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(f"create database {name}")
        return server.dsn.rpartition("/")[0] + f"/{name}"

    def _mariadb(self, name: str) -> str:
        pymysql: Any = _library("pymysql", extra="mysql")
        server = self._server(MariaDBServer)
        with pymysql.connect(host="127.0.0.1", port=server.port, user="root") as connection:
            connection.cursor().execute(f"create database {name}")
        return server.dsn.rpartition("/")[0] + f"/{name}"

    def _server(self, kind: type[Server]) -> Server:
        if kind not in self._running:
            self._running[kind] = self._stack.enter_context(kind())
        return self._running[kind]


def _library(name: str, *, extra: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as cause:
        raise NotInstalled(f"a campaign with {name}", extra=extra) from cause
