"""What `avow doctor` looks at on behalf of a service that makes pledges: its barrier's table and its checkback's route.

Both are missed in the same way: everything works until the first crash, and then pledges hang, because nobody can say
what became of a transaction. Neither check changes anything. The checkback is asked without a gid, which no barrier
answers with a verdict: asking about one that does not exist would leave a tombstone.
"""

from __future__ import annotations

import http.client
import ssl
from contextlib import closing
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from avow.barrier.dialects import MYSQL, POSTGRESQL, SQLITE, Dialect, dialect_of
from avow.cli.doctor_finding import Finding
from avow.errors import InvalidRequest, NotInstalled

CONNECT_S: Final = 5
_ALIASES: Final = {"postgres": "postgresql", "mariadb": "mysql"}


def check_database(url: str) -> Finding:
    """Is the barrier's table there, and may it be read? `url`: postgresql://, mysql:// or sqlite:///PATH."""
    parts = urlsplit(url)
    where = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"  # without the password
    try:
        dialect = dialect_of(_scheme(parts))
        connection = _connected(parts, dialect)
    except InvalidRequest:
        advice = "give postgresql://..., mysql://... or sqlite:///PATH; Redis and MongoDB need no table"
        return Finding("barrier", "fail", f"{parts.scheme or url!r} is no database with a barrier's table", advice)
    except NotInstalled as error:
        return Finding("barrier", "fail", str(error).partition(";")[0], f"pip install 'avow[{error.extra}]'")
    except Exception as error:  # drivers have trees of their own; any of them means: not reached
        return Finding(
            "barrier", "fail", f"{where} cannot be opened: {_line(error)}", "check address, name and password"
        )
    with closing(connection):
        return _table(connection, dialect, where)


def _table(connection: Any, dialect: Dialect, where: str) -> Finding:
    try:
        cursor = connection.cursor()
        cursor.execute(f"select gid, branch_id, op, barrier_id, reason from {dialect.table} where 1 = 0")
        cursor.close()
    except Exception as error:  # as above: not there, or not ours to read
        advice = f"make it: create_table of avow.barrier.sql, or avow pledge migration --dialect {dialect.name}"
        return Finding("barrier", "fail", f"{where} has no table {dialect.table} to read: {_line(error)}", advice)
    return Finding("barrier", "ok", f"{where} has the table {dialect.table}")


def _scheme(parts: SplitResult) -> str:
    """postgresql+psycopg is how SQLAlchemy writes postgresql."""
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
    """Does the route answer, from here? Peers must reach it from where they are."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return Finding("checkback", "fail", f"{url!r} is no http:// or https:// address", "give the whole URL")
    try:
        status, body = _asked(parts, ca)
    except ssl.SSLError as error:
        said = f"{url}: no TLS with it: {getattr(error, 'verify_message', '') or error.reason or error}"
        return Finding("checkback", "fail", said, "peers trust what their system trusts; --ca is for this check alone")
    except (OSError, http.client.HTTPException) as error:
        said = f"{url} is not reached: {_line(error)}"
        return Finding("checkback", "fail", said, "is the service up, and is that its address as peers see it?")
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
        return Finding("checkback", "ok", f"{url} answers, and gives no verdict to a question about nothing")
    if status in (404, 405):
        advice = "mount the route: avow.barrier.web has one for Starlette, FastAPI, Flask and Django"
        return Finding("checkback", "fail", f"{url} has no checkback (status {status})", advice)
    if status in (401, 403):
        advice = "let peers in: a checkback is asked without a login"
        return Finding("checkback", "fail", f"{url} wants a login (status {status})", advice)
    advice = "if it is a handler of your own: it must answer a question without gid with no verdict, and 500"
    return Finding("checkback", "warn", f"{url} answers with status {status}, not as avow.barrier.web does", advice)


def _line(error: BaseException) -> str:
    """PyMySQL's errors are (number, text), the system's print themselves."""
    numbered = len(error.args) > 1 and not isinstance(error, OSError)
    return (str(error.args[-1] if numbered else error).strip().splitlines() or [type(error).__name__])[0]
