"""A pool of HTTP/1.1 keep-alive connections to services, with one request at a time on each.

The connection class is shared with the client (`avow.transport.connection`). Services may answer in any form: chunked,
until the connection closes, with interim answers first.

*Bounds*: a head of HEAD_SIZE_BYTES_MAX, a body of PLEDGE_ANSWER_SIZE_BYTES_MAX. A longer body is discarded and its
connection closed. One sweep checks the time limits of all connections, instead of a timer per call.
*Retry*: a service may close an idle connection at the moment a request is sent on it. If the connection was used before
and no byte of an answer arrived, the request is sent once more on a new connection. Services must expect repeated calls
anyway; these are rare.
*Redirects* are not followed: they are answers other than 2xx.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from avow.limits import KIB, PLEDGE_ANSWER_SIZE_BYTES_MAX
from avow.transport.connection import Connection
from avow.wire.http import Address, Answer, Bounds, Lost

HEAD_SIZE_BYTES_MAX: Final = 64 * KIB
IDLE_S: Final = 30.0
IDLE_PER_ADDRESS_MAX: Final = 64
SWEEP_S: Final = 0.05
_CLOSE_TURNS: Final = 100
_BOUNDS: Final = Bounds(
    head_size_bytes_max=HEAD_SIZE_BYTES_MAX,
    body_size_bytes_max=PLEDGE_ANSWER_SIZE_BYTES_MAX,
    chunk_size_bytes=4 * KIB,  # answers are short, and there may be thousands of connections
)


class Connections:
    """One pool per address. Constructed anywhere, used on one event loop."""

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._loop: asyncio.AbstractEventLoop | None = None  # set by the first request
        self._idle: dict[Address, dict[Connection, float]] = {}  # expiry times; the most recently used is the last
        self._open: set[Connection] = set()
        self._asking: dict[Connection, float] = {}  # connections in use and their deadlines
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False
        self.calls_count = self.opened_count = self.repeated_count = 0

    async def request(self, address: Address, request: bytes, *, timeout_s: float) -> Answer | Lost:
        """If the caller is cancelled its connection is closed."""
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
            outcome = await self._ask(loop, connection, request, deadline_s=deadline_s)
            self._give_back(address, connection, now_s=loop.time())
            if isinstance(outcome, Answer):
                return outcome
            if not used or not outcome.untouched or loop.time() >= deadline_s:
                return outcome.headed or outcome
            self.repeated_count += 1
            connection, used = None, False

    async def _ask(
        self, loop: asyncio.AbstractEventLoop, connection: Connection, request: bytes, *, deadline_s: float
    ) -> Answer | Lost:
        """Always returns: at the latest when a sweep finds that the deadline has passed."""
        answered: asyncio.Future[Answer | Lost] = loop.create_future()

        def reply(outcome: Answer | Lost) -> None:
            if not answered.done():
                answered.set_result(outcome)

        self._asking[connection] = deadline_s
        if self._sweeping is None:
            self._sweep_later(loop)
        connection.send((request,), reply)
        try:
            return await answered
        except asyncio.CancelledError:
            connection.abort("the call was cancelled")
            raise
        finally:
            self._asking.pop(connection, None)

    def _take(self, address: Address) -> Connection | None:
        idle = self._idle.get(address)
        while idle:
            connection, _ = idle.popitem()
            if connection.usable:
                return connection
        return None

    def _give_back(self, address: Address, connection: Connection, *, now_s: float) -> None:
        idle = self._idle.get(address)
        if idle is None:
            idle = self._idle[address] = {}
        if connection.usable and not self._closed and len(idle) < IDLE_PER_ADDRESS_MAX:
            idle[connection] = now_s + IDLE_S
        else:
            connection.abort("not needed")

    async def _connect(self, loop: asyncio.AbstractEventLoop, address: Address, timeout_s: float) -> Connection | Lost:
        where = f"{address.host}:{address.port}"
        if self._closed:
            return Lost(sent=False, reason="the coordinator is closed")
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(self._open.discard, _BOUNDS),
                    address.host,
                    address.port,
                    ssl=self._context(address),
                )
        except TimeoutError:
            return Lost(sent=False, reason=f"no connection to {where} within {timeout_s:.1f} s")
        except (OSError, ssl.SSLError, UnicodeError) as cause:
            return Lost(sent=False, reason=f"no connection to {where}: {cause}")
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
        for connection, deadline_s in tuple(self._asking.items()):
            if deadline_s <= now_s:
                connection.abort("no answer in time")
        for address, idle in tuple(self._idle.items()):
            for connection, deadline_s in tuple(idle.items()):
                if deadline_s <= now_s:
                    connection.abort("idle")
                if not connection.usable:
                    del idle[connection]
            if not idle:
                del self._idle[address]
        if self._asking or self._idle:
            self._sweep_later(loop)

    async def close(self) -> None:
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in tuple(self._open):
            connection.abort("the coordinator is closed")
        self._idle.clear()
        for _ in range(_CLOSE_TURNS):  # `connection_lost` comes within one or two turns of the loop
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
