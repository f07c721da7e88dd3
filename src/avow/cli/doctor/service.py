"""Checks of a service that makes pledges: the barrier's table in its database, and the route of its checkback.

If either is missing, everything works until the first crash; then pledges wait forever, because the service cannot tell
the transaction's outcome. The checks change nothing: the checkback is called without a gid, which no barrier answers
with a verdict. A call with an unknown gid would leave a tombstone.
"""

from __future__ import annotations

import http.client
import ssl
from contextlib import closing
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from avow.barrier.dialects import MYSQL, POSTGRESQL, SQLITE, Dialect, dialect_of
from avow.cli.doctor.finding import Finding
from avow.errors import InvalidRequest, NotInstalled

CONNECT_S: Final = 5
_ALIASES: Final = {"postgres": "postgresql", "mariadb": "mysql"}


def check_database(url: str) -> Finding:
    """Does the barrier's table exist, and may it be read? `url`: postgresql://, mysql:// or sqlite:///PATH."""
    parts = urlsplit(url)
    where = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"  # without the password
    try:
        dialect = dialect_of(_scheme(parts))
        connection = _connected(parts, dialect)
    except InvalidRequest:
        advice = "use postgresql://..., mysql://... or sqlite:///PATH; Redis and MongoDB need no table"
        return Finding(
            "barrier", "fail", f"{parts.scheme or url!r} is not a database that has a barrier's table", advice
        )
    except NotInstalled as error:
        return Finding("barrier", "fail", str(error).partition(";")[0], f"pip install 'avow[{error.extra}]'")
    except Exception as error:  # each driver has its own exception classes; any of them means that it did not connect
        return Finding(
            "barrier", "fail", f"cannot connect to {where}: {_line(error)}", "check the address, user name and password"
        )
    with closing(connection):
        return _table(connection, dialect, where)


def _table(connection: Any, dialect: Dialect, where: str) -> Finding:
    try:
        cursor = connection.cursor()
        cursor.execute(f"select gid, branch_id, op, barrier_id, reason from {dialect.table} where 1 = 0")
        cursor.close()
    except Exception as error:  # of any class, as above: the table is missing or may not be read
        advice = f"create it with avow pledge migration --dialect {dialect.name} or create_table of avow.barrier.sql"
        return Finding("barrier", "fail", f"{where}: cannot read the table {dialect.table}: {_line(error)}", advice)
    return Finding("barrier", "ok", f"{where} has the table {dialect.table}")


def _scheme(parts: SplitResult) -> str:
    """Without the driver that SQLAlchemy adds: postgresql+psycopg is postgresql."""
    name = parts.scheme.partition("+")[0]
    return _ALIASES.get(name, name)


def _connected(parts: SplitResult, dialect: Dialect) -> Any:
    if dialect is SQLITE:
        import sqlite3

        return sqlite3.connect(f"file:{unquote(parts.path.removeprefix('/'))}?mode=ro", uri=True)
    return _postgres(parts) if dialect is POSTGRESQL else _mysql(parts)


def _postgres(parts: SplitResult) -> Any:
    try:
        import psycopg
    except ImportError as cause:
        raise NotInstalled("the barrier in PostgreSQL", extra=POSTGRESQL.name.removesuffix("ql")) from cause
    return psycopg.connect(parts._replace(scheme="postgresql").geturl(), connect_timeout=CONNECT_S)


def _mysql(parts: SplitResult) -> Any:
    try:
        import pymysql
    except ImportError as cause:
        raise NotInstalled("the barrier in MySQL", extra=MYSQL.name) from cause
    return pymysql.connect(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or 3306,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=parts.path.strip("/") or None,
        connect_timeout=CONNECT_S,
    )


def check_checkback(url: str, *, ca: str = "") -> Finding:
    """Does the route answer from this machine? Peers must reach it from theirs."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return Finding("checkback", "fail", f"{url!r} is not an http:// or https:// URL", "give the whole URL")
    try:
        status, body = _asked(parts, ca)
    except ssl.SSLError as error:
        text = f"{url}: TLS failed: {getattr(error, 'verify_message', '') or error.reason or error}"
        advice = "the certificate must be trusted by the systems that run peers; --ca only affects this check"
        return Finding("checkback", "fail", text, advice)
    except (OSError, http.client.HTTPException) as error:
        text = f"{url} cannot be reached: {_line(error)}"
        return Finding("checkback", "fail", text, "start the service, and use the address at which peers reach it")
    return _judged(url, status, body)


def _asked(parts: SplitResult, ca: str) -> tuple[int, bytes]:
    host = parts.hostname or ""
    if parts.scheme == "https":
        trust = ssl.create_default_context(cafile=ca or None)
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, parts.port, timeout=CONNECT_S, context=trust
        )
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=CONNECT_S)
    with closing(connection):
        connection.request("GET", parts.path or "/")
        response = connection.getresponse()
        return response.status, response.read(1000)


def _judged(url: str, status: int, body: bytes) -> Finding:
    if b"no verdict" in body:
        return Finding("checkback", "ok", f"{url} answers, with no verdict for a request without a gid")
    if status in (404, 405):
        advice = "mount the route: avow.barrier.web has one for Starlette, FastAPI, Flask and Django"
        return Finding("checkback", "fail", f"{url} is not a checkback route (status {status})", advice)
    if status in (401, 403):
        advice = "allow requests without a login: peers send no credentials with a checkback"
        return Finding("checkback", "fail", f"{url} requires a login (status {status})", advice)
    advice = "if this is a handler of your own, it must answer a request without a gid with status 500 and no verdict"
    return Finding("checkback", "warn", f"{url} answers with status {status}, unlike avow.barrier.web", advice)


def _line(error: BaseException) -> str:
    """The first line of an error's text. PyMySQL's errors are (number, text)."""
    numbered = len(error.args) > 1 and not isinstance(error, OSError)
    return (str(error.args[-1] if numbered else error).strip().splitlines() or [type(error).__name__])[0]
