"""Connections to other people's services: HTTP/1.1, kept alive, one request at a time on each.

A general HTTP client costs more than all the rest of a delivery, so this one does little: a request is bytes, an answer
is a status, the verdict headers and a body. The parser is httptools (llhttp), because services answer as they like:
chunked, until the connection closes, with interim answers first.

*Bounds*: a head of HEAD_SIZE_BYTES_MAX, a body of PLEDGE_ANSWER_SIZE_BYTES_MAX; of a longer body nothing is kept, and
its connection is closed. Time limits are kept by one sweep for all connections, not by a timer for each call.
*Repetition*: a service may close an idle connection at the moment a request is sent on it. If it was used before, and
no byte of an answer has come, the request goes once more on a new connection. Whoever receives branches must expect
repetitions anyway; here they are rare.
*Redirects* are not followed: they are answers other than 2xx.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, cast

import httptools
from msgspec import Struct

from avow.limits import KIB, PLEDGE_ANSWER_SIZE_BYTES_MAX
from avow.pledge.verdicts import VERDICT_HEADERS

HEAD_SIZE_BYTES_MAX: Final = 64 * KIB
IDLE_S: Final = 30.0
IDLE_PER_ADDRESS_MAX: Final = 64
SWEEP_S: Final = 0.05
_CLOSE_TURNS: Final = 100
_BODILY: Final = frozenset({b"content-length", b"transfer-encoding"})


class Address(Struct, frozen=True):
    host: str
    port: int
    tls: bool = False


class Answer(Struct, frozen=True, gc=False):
    """`verdicts` are the values of the verdict headers that came."""

    status: int
    verdicts: tuple[bytes, ...]
    body: bytes


class Lost(Struct, frozen=True, gc=False):
    """No answer will come. `untouched`: not a byte of one has come."""

    reason: str
    untouched: bool = False


class Connection(asyncio.Protocol):
    def __init__(
        self, address: Address, loop: asyncio.AbstractEventLoop, on_closed: Callable[[Connection], None]
    ) -> None:
        self.address, self._loop = address, loop
        self.deadline_s = 0.0
        self.usable = False
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answered: asyncio.Future[Answer | Lost] | None = None
        self._closing = ""
        self._begin()

    def _begin(self) -> None:
        self._head_size = 0
        self._in_body = self._sized = False
        self._verdicts: tuple[bytes, ...] = ()
        self._body: list[bytes] = []
        self._body_size = 0
        self._touched = False

    def ask(self, request: bytes, *, deadline_s: float) -> asyncio.Future[Answer | Lost]:
        """The future has a result in any case, at the latest when a sweep finds the deadline passed."""
        answered: asyncio.Future[Answer | Lost] = self._loop.create_future()
        if self._transport is None or self._closing:
            answered.set_result(Lost(self._closing or "not connected", untouched=True))
            return answered
        self._answered = answered
        self.deadline_s = deadline_s
        self._begin()
        self._transport.write(request)
        return answered

    def abort(self, reason: str) -> None:
        if self._transport is not None and not self._closing:
            self._closing = reason
            self.usable = False
            self._transport.abort()
            self._settle(Lost(reason, untouched=not self._touched))

    def _settle(self, outcome: Answer | Lost) -> None:
        answered, self._answered = self._answered, None
        if answered is not None and not answered.done():
            answered.set_result(outcome)

    # ---------------------------------------------------------------------------- the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.usable = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        if self._in_body and not self._sized and exc is None:
            self._complete()  # a body of unknown length ends with its connection
        self._settle(Lost(f"connection lost: {exc or 'closed by the service'}", untouched=not self._touched))
        self._transport = None
        self._on_closed(self)

    def data_received(self, data: bytes) -> None:
        if self._answered is None:
            self.abort("an answer to no request")
            return
        self._touched = True
        if not self._in_body:
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.abort("the service changed the protocol")
        except httptools.HttpParserError as cause:
            self.abort(f"not HTTP: {cause}")
        if not self._in_body and self._answered is not None and self._head_size > HEAD_SIZE_BYTES_MAX:
            self.abort("the head of the answer is too long")

    # --------------------------------------------------------------------------------- the parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in VERDICT_HEADERS:
            self._verdicts = (*self._verdicts, value.strip())
        elif name in _BODILY:
            self._sized = True

    def on_headers_complete(self) -> None:
        self._in_body = True

    def on_body(self, body: bytes) -> None:
        self._body_size += len(body)
        if self._body_size <= PLEDGE_ANSWER_SIZE_BYTES_MAX:
            self._body.append(body)
        elif self._answered is not None:
            self._settle(Answer(self._parser.get_status_code(), self._verdicts, b""))
            self.abort("the answer is too long")

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:  # the answer is still to come
            self._begin()
            self._touched = True
            return
        if not self._parser.should_keep_alive():
            self.usable = False
        self._complete()

    def _complete(self) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._settle(Answer(self._parser.get_status_code(), self._verdicts, body))


class Connections:
    """One keep-alive pool for each address. Constructed anywhere, used on one event loop."""

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._loop: asyncio.AbstractEventLoop | None = None  # from the first request on
        self._idle: dict[Address, list[Connection]] = {}
        self._open: set[Connection] = set()
        self._asking: set[Connection] = set()
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False
        self.calls_count = self.opened_count = self.repeated_count = 0

    async def request(self, address: Address, request: bytes, *, timeout_s: float) -> Answer | Lost:
        """A caller that is cancelled closes the connection it used."""
        loop = self._loop = self._loop or asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        self.calls_count += 1
        connection = self._take(address)
        used = connection is not None
        while True:
            if connection is None:
                opened = await self._connect(loop, address, deadline_s - loop.time())
                if isinstance(opened, Lost):
                    return opened
                connection = opened
            self._asking.add(connection)
            if self._sweeping is None:
                self._sweep_later(loop)
            try:
                outcome = await connection.ask(request, deadline_s=deadline_s)
            except asyncio.CancelledError:
                connection.abort("the caller went away")
                raise
            finally:
                self._asking.discard(connection)
            self._give_back(connection, now_s=loop.time())
            if not used or isinstance(outcome, Answer) or not outcome.untouched or loop.time() >= deadline_s:
                return outcome
            self.repeated_count += 1
            connection, used = None, False

    def _take(self, address: Address) -> Connection | None:
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            if connection.usable:
                return connection
        return None

    def _give_back(self, connection: Connection, *, now_s: float) -> None:
        idle = self._idle.get(connection.address)
        if idle is None:
            idle = self._idle[connection.address] = []
        if connection.usable and not self._closed and len(idle) < IDLE_PER_ADDRESS_MAX:
            connection.deadline_s = now_s + IDLE_S
            idle.append(connection)
        else:
            connection.abort("not needed any more")

    async def _connect(self, loop: asyncio.AbstractEventLoop, address: Address, timeout_s: float) -> Connection | Lost:
        where = f"{address.host}:{address.port}"
        if self._closed:
            return Lost("this coordinator is closed", untouched=True)
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(address, loop, self._open.discard),
                    address.host,
                    address.port,
                    ssl=self._context(address),
                )
        except TimeoutError:
            return Lost(f"no connection to {where} within {timeout_s:.1f} s", untouched=True)
        except (OSError, ssl.SSLError, UnicodeError) as cause:
            return Lost(f"no connection to {where}: {cause}", untouched=True)
        self._open.add(connection)
        self.opened_count += 1
        return connection

    def _context(self, address: Address) -> ssl.SSLContext | None:
        if not address.tls:
            return None
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    # -------------------------------------------------------------------------------------------- time

    def _sweep_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._closed:
            self._sweeping = loop.call_later(SWEEP_S, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweeping = None
        now_s = loop.time()
        for connection in tuple(self._asking):
            if connection.deadline_s <= now_s:
                connection.abort("no answer in time")
        for address, idle in tuple(self._idle.items()):
            for connection in tuple(idle):
                if connection.deadline_s <= now_s:
                    connection.abort("idle")
            self._idle[address] = [connection for connection in idle if connection.usable]
            if not self._idle[address]:
                del self._idle[address]
        if self._asking or self._idle:
            self._sweep_later(loop)

    async def close(self) -> None:
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in tuple(self._open):
            connection.abort("this coordinator is closed")
        self._idle.clear()
        for _ in range(_CLOSE_TURNS):  # each leaves when the event loop has told it: one or two turns
            if not self._open:
                return
            await asyncio.sleep(0)

    def statistics(self) -> dict[str, int]:
        return {
            "http_calls": self.calls_count,
            "http_connections": len(self._open),
            "http_connections_opened": self.opened_count,
            "http_calls_repeated": self.repeated_count,
        }
