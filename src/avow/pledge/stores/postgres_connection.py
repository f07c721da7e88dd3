"""One connection to PostgreSQL: what its errors mean, and when to connect again."""

from __future__ import annotations

import select
from typing import Any, Final

from avow import limits
from avow.errors import AvowError, Busy, DiskFull, NotInstalled, Offline, Refused

try:
    import psycopg
    from psycopg import errors as pg
except ImportError as cause:
    raise NotInstalled("the PostgreSQL store", extra="postgres") from cause
from avow.pledge.stores.postgres_arrays import packed, register

__all__ = ["Connecting", "Link", "packed", "pg", "psycopg", "refusal", "shown", "text"]

_SESSION: Final = (
    f"SET lock_timeout = '{limits.STORE_LOCK_TIMEOUT_S}s'; "
    f"SET statement_timeout = '{limits.STORE_ANSWER_TIMEOUT_S}s'; "
    f"SET idle_in_transaction_session_timeout = '{limits.STORE_ANSWER_TIMEOUT_S}s'; "
    "SET default_transaction_isolation = 'read committed'; SET jit = off"
)


class Link(psycopg.Connection[tuple[Any, ...]]):
    """A connection that does not wait for a silent server for ever."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return super().wait(gen, interval, timeout or limits.STORE_ANSWER_TIMEOUT_S + 1)


class Connecting:
    """Connects when there is something to do, and again after a loss."""

    def __init__(self, dsn: str, *, settings: str) -> None:
        self._dsn, self._settings = dsn, settings
        self._link: Link | None = None
        self.connects = 0

    def link(self) -> Link:
        """Raises Offline. A server that went away while nothing was asked is noticed here."""
        if self._link is not None and (self._link.closed or _hung_up(self._link)):
            self.drop()
        if self._link is None:
            try:
                self._link = self._connect()
            except psycopg.Error as error:
                raise Offline(f"PostgreSQL cannot be reached ({text(error)}); nothing was changed") from error
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
            self.drop()  # the server rolls back what it hears no more of

    def drop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


def _hung_up(link: Link) -> bool:
    """Nothing is expected on an idle connection: what can be read is its end, or a reason not to rely on it."""
    readable, _, _ = select.select([link.fileno()], [], [], 0)
    return bool(readable)


def shown(link: Link, name: str) -> str:
    row = link.execute(f"SHOW {name}".encode()).fetchone()
    return "" if row is None else str(row[0])


def text(error: BaseException) -> str:
    return " ".join(str(error).split())[: limits.PLEDGE_ERROR_CHARS_MAX]


def refusal(error: psycopg.Error) -> AvowError:
    """The server answered and rolled back."""
    state = error.sqlstate or ""
    said = f"PostgreSQL refused it ({state} {text(error)}); nothing was changed"
    if state == "53100":
        return DiskFull(f"{said}. Free space on its disk, then try again")
    if state[:2] in ("40", "53", "55") or state == "57014":
        return Busy(f"{said}. Try again")
    if state in ("25006", "57P01", "57P02", "57P03"):  # a standby, or on its way down or up
        return Offline(f"{said}. Try again")
    return Refused(said)
