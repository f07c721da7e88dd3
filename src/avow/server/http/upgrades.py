"""Upgrades: a connection continues with another protocol.

`Upgrading` is a request that asks for another protocol and is not answered yet. Only the answer decides what the bytes
after it are, data of the new protocol or the next request, so they are kept unparsed in `rest`.

`Upgraded` is a connection after the upgrade. The listener still counts it, and closes it when the peer stops. The new
protocol gets the transport's calls as if it had been there from the beginning: `connection_made`, then the bytes that
the client sent after its request, then all others. Time limits are the new protocol's task.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from avow.server.http.listener import Listener
    from avow.server.http.request import HttpRequest


class Upgrading:
    __slots__ = ("request", "rest", "with_body")

    def __init__(self, request: HttpRequest) -> None:
        headers = request.headers
        self.request = request
        self.rest = bytearray()
        self.with_body = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers

    @property
    def undecided(self) -> bool:
        return self.request.out is None

    @property
    def granted(self) -> bool:
        return self.request.successor is not None

    def head_without(self) -> bytes:
        """The head of the same request without the upgrade: the parser skipped the body, and must parse it again."""
        request = self.request
        lines = [b"%b %b HTTP/1.%d" % (request.method, request.url, not request.old)]
        lines += [b"%b: %b" % header for header in request.headers.items() if header[0] not in (b"upgrade", b"expect")]
        return b"\r\n".join(lines) + b"\r\n\r\n"


class Upgraded(asyncio.Protocol):
    def __init__(self, listener: Listener, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        self._listener = listener
        self._transport = transport
        self._protocol = protocol

    def begin(self, rest: bytes, *, full: bool, reading_paused: bool) -> None:
        """`full`: the transport's write buffer is above its limit."""
        self._transport.set_protocol(self)
        if reading_paused:
            self._transport.resume_reading()
        self._protocol.connection_made(self._transport)
        if full:
            self._protocol.pause_writing()
        if rest:
            self._protocol.data_received(rest)

    # ------------------------------------------------------------------ called by the transport

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

    # ------------------------------------------------------------------ called by the listener

    def sweep(self, now: float) -> None:
        """The new protocol has its own time limits."""

    def finish(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()
