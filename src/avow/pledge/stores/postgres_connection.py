"""One connection to PostgreSQL: the meaning of its errors, reconnection, and arrays in its binary format."""

from __future__ import annotations

import select
from collections.abc import Sequence
from struct import Struct, pack
from typing import Any, Final

from avow import limits
from avow.errors import AvowError, Busy, DiskFull, NotInstalled, Offline, Refused

try:
    import psycopg
    from psycopg import errors as pg
    from psycopg.abc import AdaptContext
    from psycopg.adapt import Dumper
    from psycopg.pq import Format
except ImportError as cause:
    raise NotInstalled("the PostgreSQL store", extra="postgres") from cause
__all__ = ["Connecting", "Link", "packed", "pg", "psycopg", "refusal", "shown", "text"]

_SESSION: Final = (
    f"SET lock_timeout = '{limits.STORE_LOCK_TIMEOUT_S}s'; "
    f"SET statement_timeout = '{limits.STORE_ANSWER_TIMEOUT_S}s'; "
    f"SET idle_in_transaction_session_timeout = '{limits.STORE_ANSWER_TIMEOUT_S}s'; "
    "SET default_transaction_isolation = 'read committed'; SET jit = off"
)


class Link(psycopg.Connection[tuple[Any, ...]]):
    """A connection with a bounded wait for the server."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return super().wait(gen, interval, timeout or limits.STORE_ANSWER_TIMEOUT_S + 1)


class Connecting:
    """Connects when needed, and reconnects after a loss."""

    def __init__(self, dsn: str, *, settings: str) -> None:
        self._dsn, self._settings = dsn, settings
        self._link: Link | None = None
        self.connects = 0

    def link(self) -> Link:
        """Raises Offline. A connection that the server closed while idle is replaced here."""
        if self._link is not None and (self._link.closed or _hung_up(self._link)):
            self.drop()
        if self._link is None:
            try:
                self._link = self._connect()
            except psycopg.Error as error:
                raise Offline(f"cannot connect to PostgreSQL ({text(error)}); nothing was changed") from error
            self.connects += 1
        return self._link

    def _connect(self) -> Link:
        link = Link.connect(
            self._dsn,
            autocommit=True,
            prepare_threshold=1,
            connect_timeout=limits.STORE_CONNECT_TIMEOUT_S,
            application_name="avow pledges",
        )
        try:
            register(link)
            link.execute(_SESSION)
            link.execute(self._settings)
            if shown(link, "synchronous_commit") == "off":
                link.execute("SET synchronous_commit = on")
        except BaseException:
            link.close()
            raise
        return link

    def roll_back(self) -> None:
        try:
            if self._link is not None:
                self._link.rollback()
        except psycopg.Error:
            self.drop()  # the server rolls back when the connection is closed

    def drop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


def _hung_up(link: Link) -> bool:
    """An idle connection gets no data, so if it is readable the server has closed it or is about to."""
    readable, _, _ = select.select([link.fileno()], [], [], 0)
    return bool(readable)


def shown(link: Link, name: str) -> str:
    row = link.execute(f"SHOW {name}".encode()).fetchone()
    return "" if row is None else str(row[0])


def text(error: BaseException) -> str:
    return " ".join(str(error).split())[: limits.PLEDGE_ERROR_CHARS_MAX]


def refusal(error: psycopg.Error) -> AvowError:
    """For an error that the server answered; it has rolled back."""
    state = error.sqlstate or ""
    refused = f"PostgreSQL refused the operation ({state} {text(error)}); nothing was changed"
    if state == "53100":
        return DiskFull(f"{refused}. Free space on its disk, then try again")
    if state[:2] in ("40", "53", "55") or state == "57014":
        return Busy(f"{refused}. Try again")
    if state in ("25006", "57P01", "57P02", "57P03"):  # a standby, or stopping or starting
        return Offline(f"{refused}. Try again")
    return Refused(refused)


# ---------------------------------------------------------------------- arrays
#
# Encodes one-dimensional arrays in PostgreSQL's binary format.
#
# psycopg examines every element to find the type of a list. Here the types are known, integers, bytes or short texts,
# and a group has a thousand elements, so they are encoded at once.
#
#     int32  number of dimensions: 1          int32  number of elements
#     int32  whether any is NULL: 0           int32  index of the first: 1
#     int32  type of the elements             then each element: int32 length, its bytes

_HEADER: Final = Struct(">iiiii")
_BYTEA: Final = 17
_INT8: Final = 20
_TEXT: Final = 25


class Packed:
    """An encoded array."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class Numbers(Packed):
    __slots__ = ()

    def __init__(self, values: Sequence[int]) -> None:
        pairs = [8] * (2 * len(values))
        pairs[1::2] = values
        super().__init__(_header(_INT8, values) + pack(">" + "iq" * len(values), *pairs))


class Blobs(Packed):
    __slots__ = ()

    def __init__(self, values: Sequence[bytes]) -> None:
        super().__init__(_header(_BYTEA, values) + _joined(values))


class Texts(Packed):
    __slots__ = ()

    def __init__(self, values: Sequence[str]) -> None:
        super().__init__(_header(_TEXT, values) + _joined([value.encode() for value in values]))


def packed(values: Sequence[Any]) -> Packed:
    """The type is that of the first element; there must be one."""
    if isinstance(values[0], int):
        return Numbers(values)
    return Texts(values) if isinstance(values[0], str) else Blobs(values)


def _header(of: int, values: Sequence[Any]) -> bytes:
    return _HEADER.pack(1, 0, of, len(values), 1)


def _joined(values: Sequence[bytes]) -> bytes:
    parts = [b""] * (2 * len(values))
    parts[::2] = [len(value).to_bytes(4, "big") for value in values]
    parts[1::2] = values
    return b"".join(parts)


class _PackedDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Packed) -> bytes:
        return obj.data


class _NumbersDumper(_PackedDumper):
    oid = 1016


class _BlobsDumper(_PackedDumper):
    oid = 1001


class _TextsDumper(_PackedDumper):
    oid = 1009


def register(connection: AdaptContext) -> None:
    for array, dumper in ((Numbers, _NumbersDumper), (Blobs, _BlobsDumper), (Texts, _TextsDumper)):
        connection.adapters.register_dumper(array, dumper)
