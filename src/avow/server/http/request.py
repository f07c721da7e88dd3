"""One HTTP request, and its answer.

A connection may have many requests before the first is answered. The peer answers each when its write is durable, in
any order, but HTTP requires the order of the requests. So each request refers to its connection. Its handler answers
once, now or later, from any callback on the loop, and the connection sends the answers in order. A second answer, or
one after the connection was closed, is ignored.

Instead of a complete answer (`answer`), a handler may start an answer that is written over time (`stream`), or hand
over the connection to another protocol if the client asked for it (`upgrade`).

`watcher` is called when the client disconnects (`gone`), or when `deadline` has passed (`expired`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from avow.errors import AvowError, InvalidRequest, NotCoordinator, Offline
from avow.server.http.error_reply import JSON, Reply, elsewhere, reply_of
from avow.server.http.streams import Stream

if TYPE_CHECKING:
    from avow.server.http.connection import Connection

Piece: TypeAlias = bytes | bytearray | memoryview
MakeProtocol: TypeAlias = Callable[[], asyncio.Protocol]

STATUS_LINES: Final = {int(s): f"HTTP/1.1 {int(s)} {s.phrase}\r\n".encode() for s in HTTPStatus}
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_CHUNKED: Final = b"transfer-encoding: chunked\r\n"


class Watcher(Protocol):
    def gone(self) -> None: ...
    def expired(self) -> None: ...


class HttpRequest:
    __slots__ = (
        "body",
        "close",
        "connection",
        "deadline",
        "extra",
        "headers",
        "held",
        "in_flight",
        "method",
        "old",
        "out",
        "size",
        "streamed",
        "successor",
        "url",
        "watcher",
    )

    def __init__(
        self, connection: Connection, method: bytes, url: bytes, headers: dict[bytes, bytes], body: bytes | bytearray
    ) -> None:
        self.connection = connection
        self.method = method
        self.url = url
        self.headers = headers
        self.body = body
        self.in_flight = False  # its handler was called, and has not answered yet
        self.held = 0  # bytes of the budget that its body holds until it is answered
        self.close = False  # the connection is closed after this answer
        self.old = False  # HTTP/1.0: needs `connection: keep-alive`, and has no chunks
        self.out: Sequence[Piece] | None = None  # the answer; of a stream, the pieces that were not sent
        self.size = 0  # of `out` in bytes
        self.streamed: Stream | None = None
        self.successor: MakeProtocol | None = None  # makes the protocol that takes over the connection after the answer
        self.extra = b""  # headers that are added to the answer
        self.deadline = 0.0  # in the loop's time; 0: none
        self.watcher: Watcher | None = None

    @property
    def waiting(self) -> bool:
        """It was not answered yet."""
        return self.out is None

    @property
    def target(self) -> str:
        return self.url.decode("latin-1")

    def answer(
        self, status: int, body: bytes | Sequence[Piece], headers: bytes = b"", content_type: bytes = JSON
    ) -> None:
        if self.out is not None:
            return
        size = len(body) if isinstance(body, bytes) else sum(map(len, body))
        head = b"%b%bcontent-type: %b\r\ncontent-length: %d\r\n%b%b%b\r\n" % (
            STATUS_LINES[status],
            self.connection.listener.date,
            content_type,
            size,
            headers,
            self.extra,
            self._connection_header() if self.close or self.old or self.connection.listener.stopping else b"",
        )
        if self.method == b"HEAD" or not size:
            self.out, self.size = (head,), len(head)
        else:
            self.out = (head, body) if isinstance(body, bytes) else (head, *body)
            self.size = len(head) + size
        self.watcher = None  # breaks a reference cycle, which would keep the request in memory until a collection
        self.connection.answered(self, self.size)

    def reply(self, reply: Reply) -> None:
        self.answer(reply.status, reply.body, reply.headers, reply.content_type)

    def stream(self, status: int, headers: bytes = b"", content_type: bytes = JSON) -> Stream:
        """Start an answer that is written over time. It is `gone` if the client is, or if there was an answer."""
        pieces: list[Piece] = []
        stream = Stream(self, pieces, chunked=not self.old, bodiless=self.method == b"HEAD")
        if self.out is not None:
            stream.gone = True
            return stream
        self.close = self.close or self.old
        pieces.append(
            b"%b%bcontent-type: %b\r\n%b%b%b%b\r\n"
            % (
                STATUS_LINES[status],
                self.connection.listener.date,
                content_type,
                b"" if self.old else _CHUNKED,
                headers,
                self.extra,
                self._connection_header(),
            )
        )
        self.out, self.size, self.streamed = pieces, len(pieces[0]), stream
        self.connection.answered(self, self.size)
        return stream

    def upgrade(self, response: bytes, make_protocol: MakeProtocol) -> None:
        """Send `response`, then hand over the connection, and all bytes after the request, to a new protocol.

        `make_protocol` is called when the response and all answers before it were written. If the client disconnects
        before, the watcher's `gone` is called instead. The protocol's first call is `connection_made`.
        """
        if self.out is not None:
            return
        if not self.connection.asks_upgrade(self):
            self.fail(InvalidRequest("an upgrade needs HTTP/1.1, connection: upgrade and no body; nothing was done"))
        elif self.connection.listener.stopping:
            self.fail(Offline("this peer is stopping; nothing was done. Use another peer"))
        else:
            self.successor, self.close = make_protocol, True
            self.out, self.size = (response,), len(response)
            self.connection.answered(self, self.size)

    def fail(self, error: AvowError) -> None:
        """Answer with an error. A stream that has started is aborted instead."""
        if self.streamed is not None:
            if not self.streamed.closed:
                self.streamed.abort()
            return
        self.reply(elsewhere(error, self.target) if isinstance(error, NotCoordinator) else reply_of(error))

    def abandon(self) -> None:
        """The connection was closed."""
        stream = self.streamed
        complete = stream is None or stream.closed or stream.gone
        if self.out is not None and self.successor is None and complete:
            return
        self.out, self.successor = (), None
        if stream is not None:
            stream.hang_up()
        if self.watcher is not None:
            self.watcher.gone()

    def _connection_header(self) -> bytes:
        if self.close or self.connection.listener.stopping:
            self.close = True
            return b"connection: close\r\n"
        return b"connection: keep-alive\r\n" if self.old else b""
