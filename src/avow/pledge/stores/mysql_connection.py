"""One connection to MariaDB or MySQL: the meaning of its errors, and reconnection.

PyMySQL raises the same class for a deadlock and for a lost connection; only the number differs. Here every error
becomes an Offline (no connection), Busy, DiskFull or Refused, or an exception for which the transaction is repeated.
"""

from __future__ import annotations

import re
import select
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from avow import limits
from avow.errors import AvowError, Busy, DiskFull, InvalidRequest, NotInstalled, Offline, Refused

try:
    import pymysql
    from pymysql.constants import ER
except ImportError as cause:
    raise NotInstalled("the MySQL store", extra="mysql") from cause

_CHECKREAD: Final = 1020  # MariaDB 11: the row was changed since it was read
_DISK_FULL: Final = 1021
_READ_ONLY: Final = (1290, 1792, 1836)
_GOING_DOWN: Final = (1053, 1317, 1927, 3169)  # shutdown, interrupted, killed
_SESSION: Final = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
    f"SET SESSION innodb_lock_wait_timeout = {limits.STORE_LOCK_TIMEOUT_S}",
)


class Ended(Exception):
    """The server aborted the transaction because of a concurrent one. It changed nothing."""


class Duplicate(Exception):
    """A row with that key exists. The statement changed nothing; the transaction continues."""


def arguments(dsn: str) -> dict[str, Any]:
    """Arguments for PyMySQL, from mysql://user:password@host:port/database?unix_socket=...&ssl_ca=..."""
    url = urlsplit(dsn)
    database = unquote(url.path.lstrip("/"))
    if url.scheme.partition("+")[0] not in ("mysql", "mariadb") or not database:
        raise InvalidRequest(
            f"the URL of a MySQL store must be mysql://user:password@host:port/database, not {url.scheme}://..."
        )
    more = dict(parse_qsl(url.query))
    unknown = sorted(set(more) - {"unix_socket", "ssl_ca", "ssl_cert", "ssl_key"})
    if unknown:
        raise InvalidRequest(
            f"unknown parameter {unknown[0]!r} of a MySQL store; known are unix_socket, ssl_ca, ssl_cert and ssl_key"
        )
    return {
        "host": url.hostname or "127.0.0.1",
        "port": url.port or 3306,
        "user": unquote(url.username or ""),
        "password": unquote(url.password or ""),
        "database": database,
        **more,
    }


class Link:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def query(self, statement: bytes | str) -> tuple[tuple[Any, ...], ...]:
        with self._connection.cursor() as cursor:
            self._call(cursor.execute, statement)
            return tuple(cursor.fetchall())

    def change(self, statement: bytes | str) -> int:
        """Returns the number of changed rows."""
        with self._connection.cursor() as cursor:
            return int(self._call(cursor.execute, statement))

    def commit(self) -> None:
        self._call(self._connection.commit)

    def roll_back(self) -> None:
        self._call(self._connection.rollback)

    def _call(self, action: Any, *values: Any) -> Any:
        try:
            return action(*values)
        except (pymysql.err.MySQLError, OSError) as error:
            raise _meaning(error) from error

    @property
    def hung_up(self) -> bool:
        """An idle connection gets no data, so if it is readable the server has closed it."""
        sock = self._connection._sock
        return sock is None or bool(select.select([sock], [], [], 0)[0])

    def close(self) -> None:
        self._connection._force_close()  # a graceful close would wait for an unreachable server


def _meaning(error: Exception) -> Exception:
    number, text = _parts(error)
    if number in (ER.LOCK_DEADLOCK, _CHECKREAD):
        return Ended(text)
    if number == ER.DUP_ENTRY:
        return Duplicate(text)
    if number < 1000 or 2000 <= number < 3000 or number in _GOING_DOWN:
        return Offline(f"the connection to the database was lost ({text}); nothing was changed")
    refused = f"the database refused the operation ({number}: {text}); nothing was changed"
    if number == ER.LOCK_WAIT_TIMEOUT:
        return Busy(f"{refused}. Try again")
    if number in (_DISK_FULL, ER.RECORD_FILE_FULL):
        return DiskFull(f"{refused}. Free space on its disk, then try again")
    if number in _READ_ONLY:
        return Offline(f"{refused}. Try again")
    return Refused(refused)


def _parts(error: Exception) -> tuple[int, str]:
    first, *others = error.args or ("",)
    number = first if isinstance(first, int) else 0
    text = str(others[0] if others and number else error) or type(error).__name__
    return number, " ".join(text.split())[: limits.PLEDGE_ERROR_CHARS_MAX]


class Connecting:
    """Connects when needed, and reconnects after a loss."""

    def __init__(self, dsn: str) -> None:
        self._arguments = arguments(dsn)
        self._link: Link | None = None
        self.connects = 0

    def link(self) -> Link:
        """Raises Offline, or Refused if the server is too old."""
        if self._link is not None and self._link.hung_up:
            self.drop()
        if self._link is None:
            self._link = self._connect()
            self.connects += 1
        return self._link

    def _connect(self) -> Link:
        try:
            connection = pymysql.connect(
                **self._arguments,
                charset="utf8mb4",
                autocommit=False,
                connect_timeout=limits.STORE_CONNECT_TIMEOUT_S,
                read_timeout=limits.STORE_ANSWER_TIMEOUT_S,
                write_timeout=limits.STORE_ANSWER_TIMEOUT_S,
            )
        except (pymysql.err.MySQLError, OSError) as error:
            number, text = _parts(error)
            raise Offline(f"cannot connect to the database ({number}: {text}); nothing was changed") from error
        link = Link(connection)
        try:
            check_server(str(connection.get_server_info()))
            for statement in _SESSION:
                link.query(statement)
        except AvowError:
            link.close()
            raise
        return link

    def roll_back(self) -> None:
        if self._link is None:
            return
        try:
            self._link.roll_back()
        except (AvowError, Ended, Duplicate):
            self.drop()  # the server rolls back when the connection is closed

    def drop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


def check_server(version: str) -> None:
    """`claim` needs SKIP LOCKED."""
    numbers = re.search(r"(\d+)\.(\d+)\.\d+-MariaDB", version) or re.match(r"(\d+)\.(\d+)", version)
    found = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    needed = (10, 6) if "MariaDB" in version else (8, 0)
    if found < needed:
        raise Refused(
            f"the server is {version}, but pledges need at least MariaDB 10.6 or MySQL 8.0; nothing was changed"
        )
