"""Before and after a connection changes hands.

`Upgrading` is a request that asks for another protocol and has no answer yet. Whose the bytes behind it are is not
known before that answer has left, so they are kept in `rest`, unread: the new protocol's, or the next request.

`Upgraded` is a connection that is no longer HTTP's: another protocol talks on it, and the listener still counts it. The
protocol that took over gets the transport's calls as if it had been there from the beginning: `connection_made`, then
what its client sent behind the request, then all the others. Its patience is its own: nothing here is swept. It is one
of the connections that a peer takes, and ends when the peer stops.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from avow.peer.http.exchange import Exchange
    from avow.peer.http.listener import Listener


class Upgrading:
    __slots__ = ("exchange", "rest", "with_body")

    def __init__(self, exchange: Exchange) -> None:
        headers = exchange.headers
        self.exchange = exchange
        self.rest = bytearray()
        self.with_body = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers

    @property
    def undecided(self) -> bool:
        return self.exchange.out is None

    @property
    def granted(self) -> bool:
        return self.exchange.successor is not None

    def head_without(self) -> bytes:
        """The same request, not asking: the parser took its body for the new protocol's bytes, and reads it again."""
        exchange = self.exchange
        lines = [b"%b %b HTTP/1.%d" % (exchange.method, exchange.url, not exchange.old)]
        lines += [b"%b: %b" % header for header in exchange.headers.items() if header[0] not in (b"upgrade", b"expect")]
        return b"\r\n".join(lines) + b"\r\n\r\n"


class Upgraded(asyncio.Protocol):
    def __init__(self, listener: Listener, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        self._listener = listener
        self._transport = transport
        self._protocol = protocol

    def begin(self, rest: bytes, *, full: bool, reading_paused: bool) -> None:
        """`full`: the transport has more to send than it wants to hold."""
        self._transport.set_protocol(self)
        if reading_paused:
            self._transport.resume_reading()
        self._protocol.connection_made(self._transport)
        if full:
            self._protocol.pause_writing()
        if rest:
            self._protocol.data_received(rest)

    # ------------------------------------------------------------------ the transport calls

    def data_received(self, data: bytes) -> None:
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.left(self)
        self._protocol.connection_lost(exc)

    # ------------------------------------------------------------------ the listener calls

    def sweep(self, now: float) -> None:
        """It has its own patience."""

    def finish(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()
