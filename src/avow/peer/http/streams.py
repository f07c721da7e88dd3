"""An answer that is written over time.

Most answers are known whole and leave at once. Some are not: a tail of a queue, the back channel of a WebChannel. Such
an answer begins with `Exchange.stream`, goes on with any number of `write`s and ends with `close`. It keeps its place
in the line of answers: what was asked before it on the same connection leaves before it, what was asked after it waits
until it is closed.

    opened ──────► at the head of the line ──► closed      pieces leave as they are written
       └─ behind others: pieces wait here ─┘               bounded by what the connection lets wait
       └──────── the client hung up ─────────► gone        `on_gone`; what is written now is dropped

*Push-back*: `writable` says whether to go on writing, `on_writable` when it is so again. A piece written regardless is
kept, because it may be the one that made it full; a writer that never asks is cut off with its client at
WAITING_SIZE_BYTES_MAX. `on_gone` and `on_writable` are called on the loop and may write, close and abort.

Clients of HTTP/1.0 know no chunks: their answer ends with the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from avow.limits import MIB

if TYPE_CHECKING:
    from avow.peer.http.exchange import Exchange, Piece

WAITING_SIZE_BYTES_MAX: Final = 32 * MIB
_END: Final = b"0\r\n\r\n"


class Stream:
    """`bodiless`: the answer to HEAD, of which only the head leaves."""

    __slots__ = (
        "_blocked",
        "_bodiless",
        "_chunked",
        "_exchange",
        "_left_size",
        "_pieces",
        "_since",
        "_taken",
        "closed",
        "gone",
        "on_gone",
        "on_writable",
    )

    def __init__(self, exchange: Exchange, pieces: list[Piece], *, chunked: bool, bodiless: bool) -> None:
        self._exchange = exchange
        self._pieces = pieces  # that wait for their turn; the exchange's answer so far
        self._chunked, self._bodiless = chunked, bodiless
        self._blocked = False  # somebody was told to wait for `on_writable`
        self._left_size, self._taken, self._since = 0, -1, 0.0
        self.closed = False
        self.gone = False
        self.on_gone: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None

    # ------------------------------------------------------------------ the handler calls

    def write(self, data: Piece) -> None:
        """Pieces of one turn of the loop leave together. They are not copied: leave their memory alone."""
        if data and not self.closed and not self.gone and not self._bodiless:
            self._add((b"%x\r\n" % len(data), data, b"\r\n") if self._chunked else (data,))
            if not self.writable and self.size_waiting > WAITING_SIZE_BYTES_MAX:
                self.abort()

    def close(self) -> None:
        """The end of the answer. What was written before still leaves."""
        if self.closed or self.gone:
            return
        self.closed = True
        self._add((_END,) if self._chunked and not self._bodiless else ())

    def abort(self) -> None:
        """Cut the client off: it sees that the answer is not whole."""
        if not self.gone:
            self._exchange.connection.abort()

    @property
    def writable(self) -> bool:
        if self.closed or self.gone:
            return False
        self._blocked = not self._exchange.connection.takes(self._exchange)
        return not self._blocked

    @property
    def size_waiting(self) -> int:
        """What was written and the socket has not taken, in bytes."""
        return 0 if self.gone else self._exchange.connection.size_waiting(self._exchange)

    def _add(self, pieces: tuple[Piece, ...]) -> None:
        size = sum(map(len, pieces))
        self._pieces += pieces
        self._exchange.size += size
        self._exchange.connection.answered(self._exchange, size)

    # ------------------------------------------------------------------ the connection calls

    def moved_on(self) -> bool:
        """What waited here is on its way now. True: there is more to come."""
        self._left_size += self._exchange.size
        self._pieces.clear()
        self._exchange.size = 0
        return not self.closed

    def drained(self) -> None:
        if self._blocked and self.writable and self.on_writable is not None:
            self.on_writable()

    def stalled_s(self, now: float, unsent_size: int) -> float:
        """For how long the client has taken nothing of what there is for it."""
        taken = self._left_size - unsent_size
        if not unsent_size or taken != self._taken:
            self._taken, self._since = taken, now
        return now - self._since

    def hang_up(self) -> None:
        """The client is gone, or has to go: nobody reads what would still be written."""
        if not self.closed and not self.gone:
            self.gone = True
            if self.on_gone is not None:
                self.on_gone()

    def finish(self) -> None:
        """The peer stops: end the answer as it is, and tell the handler that it is over."""
        if not self.closed and not self.gone:
            self.close()
            self.gone = True
            if self.on_gone is not None:
                self.on_gone()
