"""One request and the place of its answer.

A connection may carry many requests before the first is answered, and a peer answers them when their writes are
durable, in any order; HTTP wants the answers in the order of the requests. So each request is an Exchange that knows
its connection. Whoever handles it answers once, now or later, from any callback on the loop, and the connection sends
it when its turn has come. An answer that comes after the connection is gone, or a second one, is dropped.

Instead of answering whole (`answer`), a handler may begin an answer that is written over time (`stream`), or give the
connection to another protocol if the client asked for that (`upgrade`).

`watcher` is told when waiting has no more use: the client hung up (`gone`), or `deadline` has passed (`expired`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from avow.errors import AvowError, InvalidRequest, NotCoordinator, Offline
from avow.peer.http.errors import JSON, Reply, elsewhere, reply_of
from avow.peer.http.streams import Stream

if TYPE_CHECKING:
    from avow.peer.http.connection import Connection

Piece: TypeAlias = bytes | bytearray | memoryview
MakeProtocol: TypeAlias = Callable[[], asyncio.Protocol]

STATUS_LINES: Final = {int(s): f"HTTP/1.1 {int(s)} {s.phrase}\r\n".encode() for s in HTTPStatus}
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_CHUNKED: Final = b"transfer-encoding: chunked\r\n"


class Watcher(Protocol):
    def gone(self) -> None: ...
    def expired(self) -> None: ...


class Exchange:
    __slots__ = (
        "body",
        "close",
        "connection",
        "deadline",
        "extra",
        "headers",
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
        self.close = False  # the connection ends with this answer
        self.old = False  # HTTP/1.0: keeping the connection must be said, and there are no chunks
        self.out: Sequence[Piece] | None = None  # the answer, once there is one; of a stream what has not left
        self.size = 0  # of `out` in bytes
        self.streamed: Stream | None = None
        self.successor: MakeProtocol | None = None  # of HTTP on this connection, once this answer has left
        self.extra = b""  # headers of the answer, whoever gives it
        self.deadline = 0.0  # in the loop's time; 0: none
        self.watcher: Watcher | None = None

    @property
    def waiting(self) -> bool:
        """Somebody still wants the answer."""
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
        self.watcher = None  # it knows this exchange: both would wait for the garbage collector, with the request
        self.connection.answered(self, self.size)

    def reply(self, reply: Reply) -> None:
        self.answer(reply.status, reply.body, reply.headers, reply.content_type)

    def stream(self, status: int, headers: bytes = b"", content_type: bytes = JSON) -> Stream:
        """An answer that is written over time. To a client that is gone, or was answered, it is `gone` already."""
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
        """Send `response`, then give the connection and all that the client sends behind its request to a new protocol.

        `make_protocol` is called when the response and all answers before it were written, and never if the client has
        hung up by then: that the watcher hears. The protocol's first call is `connection_made`.
        """
        if self.out is not None:
            return
        if not self.connection.asks_upgrade(self):
            self.fail(InvalidRequest("this needs HTTP/1.1, connection: upgrade, and no body; nothing was done"))
        elif self.connection.listener.stopping:
            self.fail(Offline("this peer is going down; nothing was done. Ask another peer"))
        else:
            self.successor, self.close = make_protocol, True
            self.out, self.size = (response,), len(response)
            self.connection.answered(self, self.size)

    def fail(self, error: AvowError) -> None:
        """A stream that has begun cannot say so any more: it is cut off."""
        if self.streamed is not None:
            if not self.streamed.closed:
                self.streamed.abort()
            return
        self.reply(elsewhere(error, self.target) if isinstance(error, NotCoordinator) else reply_of(error))

    def abandon(self) -> None:
        """The connection is gone."""
        stream = self.streamed
        told = stream is None or stream.closed or stream.gone
        if self.out is not None and self.successor is None and told:
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
