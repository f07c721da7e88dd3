"""An answer that is written over time.

Most answers are complete and sent at once. Some are not: the tail of a queue, the back channel of a WebChannel. Such an
answer begins with `HttpRequest.stream`, continues with any number of `write`s and ends with `close`. The order of
answers holds: answers to earlier requests of the connection are sent before it, later ones when it is closed.

    opened ──────► first of its connection ──► closed      pieces are sent as they are written
       └─ behind others: pieces wait here ─┘               bounded by the connection
       └──────── client disconnected ────────► gone        `on_gone`; further writes are ignored

*Backpressure*: `writable` says whether to continue writing; `on_writable` is called when that is possible again. A
piece that is written anyway is kept, because it may be the one that filled the buffer. A writer that ignores `writable`
loses its client at WAITING_SIZE_BYTES_MAX. `on_gone` and `on_writable` are called on the loop and may write, close and
abort.

HTTP/1.0 has no chunks: there the answer ends when the connection is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from avow.limits import MIB

if TYPE_CHECKING:
    from avow.server.http.request import HttpRequest, Piece

WAITING_SIZE_BYTES_MAX: Final = 32 * MIB
_END: Final = b"0\r\n\r\n"


class Stream:
    """`bodiless`: the answer to HEAD, of which only the head is sent."""

    __slots__ = (
        "_blocked",
        "_bodiless",
        "_chunked",
        "_left_size",
        "_pieces",
        "_request",
        "_since",
        "_taken",
        "closed",
        "gone",
        "on_gone",
        "on_writable",
    )

    def __init__(self, request: HttpRequest, pieces: list[Piece], *, chunked: bool, bodiless: bool) -> None:
        self._request = request
        self._pieces = pieces  # those not sent yet; the same list as the request's `out`
        self._chunked, self._bodiless = chunked, bodiless
        self._blocked = False  # the writer saw that it is not writable, and waits for `on_writable`
        self._left_size, self._taken, self._since = 0, -1, 0.0
        self.closed = False
        self.gone = False
        self.on_gone: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None

    # ------------------------------------------------------------------ called by the handler

    def write(self, data: Piece) -> None:
        """The pieces of one turn of the loop are sent together. They are not copied, so do not change them."""
        if data and not self.closed and not self.gone and not self._bodiless:
            self._add((b"%x\r\n" % len(data), data, b"\r\n") if self._chunked else (data,))
            if not self.writable and self.size_waiting > WAITING_SIZE_BYTES_MAX:
                self.abort()

    def close(self) -> None:
        """End the answer. Pieces written before are still sent."""
        if self.closed or self.gone:
            return
        self.closed = True
        self._add((_END,) if self._chunked and not self._bodiless else ())

    def abort(self) -> None:
        """Close the connection, so that the client sees that the answer is incomplete."""
        if not self.gone:
            self._request.connection.abort()

    @property
    def writable(self) -> bool:
        if self.closed or self.gone:
            return False
        self._blocked = not self._request.connection.takes(self._request)
        return not self._blocked

    @property
    def size_waiting(self) -> int:
        """Bytes that were written and that the socket has not taken."""
        return 0 if self.gone else self._request.connection.size_waiting(self._request)

    def _add(self, pieces: tuple[Piece, ...]) -> None:
        size = sum(map(len, pieces))
        self._pieces += pieces
        self._request.size += size
        self._request.connection.answered(self._request, size)

    # ------------------------------------------------------------------ called by the connection

    def moved_on(self) -> bool:
        """The connection has taken the pieces. True: more may follow."""
        self._left_size += self._request.size
        self._pieces.clear()
        self._request.size = 0
        return not self.closed

    def drained(self) -> None:
        if self._blocked and self.writable and self.on_writable is not None:
            self.on_writable()

    def stalled_s(self, now: float, unsent_size: int) -> float:
        """How long the client has read nothing although there are unsent bytes."""
        taken = self._left_size - unsent_size
        if not unsent_size or taken != self._taken:
            self._taken, self._since = taken, now
        return now - self._since

    def hang_up(self) -> None:
        """The connection is closed, or is about to be."""
        if not self.closed and not self.gone:
            self.gone = True
            if self.on_gone is not None:
                self.on_gone()

    def finish(self) -> None:
        """The peer is stopping: end the answer, and call `on_gone`."""
        if not self.closed and not self.gone:
            self.close()
            self.gone = True
            if self.on_gone is not None:
                self.on_gone()
