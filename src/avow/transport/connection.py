"""One outgoing HTTP/1.1 connection on an event loop: many requests in flight, answers in order, bodies read in place.

A general HTTP client spends more time on a request than a peer spends on the write in it, and copies a body two or
three times before its caller sees it. Here a request is bytes, the event loop receives directly into the buffer of the
parser (`avow.wire.http`), and an answer is passed on with the memory it was received into.

Requests are answered through a callback and not a future, because the caller of a write has futures of its own for its
messages. Each callback is called exactly once, with an `Answer` or with `Lost`, which says whether the other side may
have received the request: a request that was never sent did not happen.

A connection does not retry, choose an address or know about queues. That is left to its owner: a client's peer
connection, or the connection pool of a pledge's branches.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, cast

from avow.wire.http import PEER_BOUNDS, AnswerParser, Bounds, Lost, NotHttp, Reply, lost_after

if TYPE_CHECKING:
    from avow.wire.record import Buffer


class Connection(asyncio.BufferedProtocol):
    """Calls the `reply` of each `send` once. `on_closed` is called once, when the connection is closed."""

    def __init__(self, on_closed: Callable[[Connection], None], bounds: Bounds = PEER_BOUNDS) -> None:
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._parser = AnswerParser(bounds)
        self._replies: deque[Reply] = deque()
        self._closing = ""
        self._unsent_bytes = 0
        self.moved_at = monotonic()  # when bytes last moved, in either direction
        self.received_bytes = 0

    # ------------------------------------------------------------------ requests

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._closing

    @property
    def waiting_count(self) -> int:
        return len(self._replies)

    @property
    def answers_count(self) -> int:
        return self._parser.answers_count

    def send(self, parts: Sequence[Buffer], reply: Reply, *, to_head: bool = False) -> None:
        """`to_head`: the method is HEAD, whose answer has no body whatever its headers say."""
        if self._transport is None or self._closing:
            reply(Lost(sent=False, reason=self._closing or "not connected"))
            return
        if not self._replies:
            self.moved_at = monotonic()
        if to_head:
            self._parser.bodiless.add(self._parser.answers_count + len(self._replies))
        self._replies.append(reply)
        self._transport.writelines(parts)

    def check_silence(self, now: float, *, silent_s: float) -> bool:
        """Abort the connection if requests wait and no bytes have moved in either direction for `silent_s`."""
        if not self._replies or self._transport is None:
            return False
        unsent, before = self._transport.get_write_buffer_size(), self._unsent_bytes
        self._unsent_bytes = unsent
        if unsent < before:
            self.moved_at = now
        elif now - self.moved_at >= silent_s:
            self.abort(f"no answer for {silent_s:g} s")
            return True
        return False

    def abort(self, reason: str) -> None:
        """Close at once. Requests that wait for an answer get `Lost`."""
        self._abort(reason)

    def _abort(self, reason: str, broken: NotHttp | None = None) -> None:
        transport = self._transport
        if transport is not None and not self._closing:
            self._closing = reason
            self._end_all(broken)
            transport.abort()

    # ------------------------------------------------------- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closing:
            last = self._parser.ended() if exc is None else None
            if last is not None and self._replies:
                self._replies.popleft()(last)
            self._closing = f"connection lost: {exc or 'closed by the other side'}"
        self._end_all()
        self._transport = None
        self._on_closed(self)

    def eof_received(self) -> bool:
        return False

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  (asyncio's signature)
        return self._parser.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.moved_at = monotonic()
        self.received_bytes += nbytes
        parser, replies = self._parser, self._replies
        try:
            answer = parser.received(nbytes)
            while answer is not None:
                if not replies:
                    self.abort("an answer arrived without a request")
                    return
                replies.popleft()(answer)
                if self._closing:
                    return
                answer = parser.next_answer()
        except NotHttp as cause:
            self._abort(str(cause), cause)
            return
        if parser.closes or (not replies and parser.begun):
            self.abort("closed by the other side" if parser.closes else "an answer arrived without a request")

    def _end_all(self, broken: NotHttp | None = None) -> None:
        """Answer all waiting requests with `Lost`. Only the first of them can have received part of its answer."""
        if not self._replies:
            return
        first = lost_after(self._closing, self._parser, broken)
        self._replies.popleft()(first)
        lost = Lost(sent=True, reason=self._closing)
        while self._replies:
            self._replies.popleft()(lost)
