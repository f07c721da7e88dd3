"""One request and the place of its answer.

A connection may carry many requests before the first is answered, and a peer answers them when their writes are
durable, in any order; HTTP wants the answers in the order of the requests. So each request is an Exchange that knows
its connection. Whoever handles it answers once, now or later, from any callback on the loop, and the connection sends
it when its turn has come. An answer that comes after the connection is gone, or a second one, is dropped.

`watcher` is told when waiting has no more use: the client hung up (`gone`), or `deadline` has passed (`expired`).
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from avow.errors import AvowError, NotCoordinator
from avow.peer.http.errors import JSON, Reply, elsewhere, reply_of

if TYPE_CHECKING:
    from avow.peer.http.connection import Connection

Piece: TypeAlias = bytes | bytearray | memoryview

STATUS_LINES: Final = {int(s): f"HTTP/1.1 {int(s)} {s.phrase}\r\n".encode() for s in HTTPStatus}
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Watcher(Protocol):
    def gone(self) -> None: ...
    def expired(self) -> None: ...


class Exchange:
    __slots__ = (
        "body",
        "close",
        "connection",
        "deadline",
        "headers",
        "keep_alive_said",
        "method",
        "out",
        "size",
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
        self.keep_alive_said = False  # HTTP/1.0: must be said
        self.out: Sequence[Piece] | None = None  # the answer, once there is one
        self.size = 0  # of the answer in bytes
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
        head = b"%b%bcontent-type: %b\r\ncontent-length: %d\r\n%b%b\r\n" % (
            STATUS_LINES[status],
            self.connection.listener.date,
            content_type,
            size,
            headers,
            self._connection_header(),
        )
        if self.method == b"HEAD" or not size:
            self.out, self.size = (head,), len(head)
        else:
            self.out = (head, body) if isinstance(body, bytes) else (head, *body)
            self.size = len(head) + size
        self.connection.answered(self)

    def reply(self, reply: Reply) -> None:
        self.answer(reply.status, reply.body, reply.headers, reply.content_type)

    def fail(self, error: AvowError) -> None:
        self.reply(elsewhere(error, self.target) if isinstance(error, NotCoordinator) else reply_of(error))

    def abandon(self) -> None:
        """The connection is gone."""
        if self.out is None:
            self.out = ()
            if self.watcher is not None:
                self.watcher.gone()

    def _connection_header(self) -> bytes:
        if self.close or self.connection.listener.stopping:
            self.close = True
            return b"connection: close\r\n"
        return b"connection: keep-alive\r\n" if self.keep_alive_said else b""
