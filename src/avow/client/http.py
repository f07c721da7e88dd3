"""One HTTP/1.1 connection to a peer: many requests on their way, answers in order, bodies read in place.

A general HTTP client spends more time on a request than a peer spends on the write in it, and copies a body two or
three times before its caller sees it. A peer's answers are simple: a short head and a Content-Length. So the head is
found here with one `find`, and a body that has not arrived yet gets memory of exactly its size, into which the event
loop then receives directly: a megabyte of batches is copied once, by the kernel.

Requests are answered through a callback and not a future, because the caller of a write has futures of its own for its
messages. Each callback is called exactly once, with an `Answer` or with `Lost`, which says whether the peer may have
seen the request: a request that never left this process did not happen.

Nothing here retries, chooses a peer or knows what a queue is. `links` owns connections; `routing` decides.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from msgspec import Struct

from avow import limits

if TYPE_CHECKING:
    from avow.wire.record import Buffer

HEAD_SIZE_BYTES_MAX: Final = 32 * limits.KIB
BODY_SIZE_BYTES_MAX: Final = 64 * limits.MIB
_CHUNK_SIZE_BYTES: Final = 64 * limits.KIB
_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\ncontent-length:"
_NO_BODY: Final = frozenset({204, 304})


class Answer(Struct, frozen=True, gc=False):
    """`head` is in lower case, values too: the values this client asks for are numbers and words."""

    status: int
    head: bytes
    body: bytes | bytearray

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def header(self, name: bytes) -> bytes:
        """The value of a header, empty when it is absent. `name` is in lower case."""
        found = self.head.find(b"\r\n" + name + b":")
        if found < 0:
            return b""
        start = found + len(name) + 3
        end = self.head.find(b"\r\n", start)
        return self.head[start : end if end >= 0 else None].strip()

    def number(self, name: bytes) -> int | None:
        value = self.header(name)
        return int(value) if value.isdigit() else None


class Lost(Struct, frozen=True, gc=False):
    """No answer will come. `sent`: the peer may have received the request, and may have acted on it."""

    sent: bool
    reason: str


Reply: TypeAlias = Callable[[Answer | Lost], None]


class Connection(asyncio.BufferedProtocol):
    """Feed it requests with `send`; it calls each reply once. `on_closed` is called once, when it is of no more use."""

    def __init__(self, on_closed: Callable[[Connection], None]) -> None:
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._replies: deque[Reply] = deque()
        self._chunk = bytearray(_CHUNK_SIZE_BYTES)
        self._chunk_view = memoryview(self._chunk)
        self._start = self._end = 0  # what is received and not yet parsed, in the chunk
        self._body: bytearray | None = None  # the body being received, when it did not come whole with its head
        self._body_view = self._chunk_view
        self._filled = 0
        self._status, self._head = 0, b""
        self._closing = ""
        self._unsent_bytes = 0
        self.moved_at = monotonic()  # when bytes last moved, in either direction
        self.answers_count = self.received_bytes = 0

    # ------------------------------------------------------------------ requests

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._closing

    @property
    def waiting_count(self) -> int:
        return len(self._replies)

    def send(self, parts: Sequence[Buffer], reply: Reply) -> None:
        if self._transport is None or self._closing:
            reply(Lost(sent=False, reason=self._closing or "not connected"))
            return
        if not self._replies:
            self.moved_at = monotonic()
        self._replies.append(reply)
        self._transport.writelines(parts)

    def check_silence(self, now: float, *, silent_s: float) -> bool:
        """Give up a connection on which requests wait and nothing has moved for so long, in either direction."""
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
        """Close without waiting. What waits for an answer is told that none will come."""
        if self._transport is not None and not self._closing:
            self._closing = reason
            self._transport.abort()
            self._end_all()

    # ------------------------------------------------------- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = self._closing or f"connection lost: {exc or 'closed by the peer'}"
        self._end_all()
        self._transport = None
        self._on_closed(self)

    def eof_received(self) -> bool:
        return False

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  (asyncio's signature)
        if self._body is not None:
            return self._body_view[self._filled :]
        return self._chunk_view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self.moved_at = monotonic()
        self.received_bytes += nbytes
        if self._body is None:
            self._end += nbytes
            self._parse()
            return
        self._filled += nbytes
        if self._filled == len(self._body):
            body, self._body, self._body_view = self._body, None, self._chunk_view
            self._deliver(self._status, self._head, body)

    # ------------------------------------------------------------------- answers

    def _parse(self) -> None:
        """Deliver every answer that is whole; begin the body of one that is not."""
        while self._start < self._end and self._body is None:
            head_end = self._chunk.find(_HEAD_END, self._start, self._end)
            if head_end < 0:
                break
            head = bytes(self._chunk_view[self._start : head_end]).lower()
            if not self._read_head(head, head_end + len(_HEAD_END)):
                return
        self._compact()

    def _read_head(self, head: bytes, body_at: int) -> bool:
        status, length = _status_of(head), _length_of(head)
        if status is None or length is None or length > BODY_SIZE_BYTES_MAX:
            self.abort(f"not an answer of a peer: {head[:80]!r}")
            return False
        if status < 200:  # 100 Continue and the like: the answer is still to come
            self._start = body_at
            return True
        whole = body_at + length
        if whole <= self._end:
            self._start = whole
            self._deliver(status, head, bytes(self._chunk_view[body_at:whole]))
            return not self._closing
        self._begin_body(status, head, body_at=body_at, length=length)
        return True

    def _begin_body(self, status: int, head: bytes, *, body_at: int, length: int) -> None:
        here = self._end - body_at
        self._status, self._head = status, head
        self._body = bytearray(length)
        self._body_view = memoryview(self._body)
        self._body_view[:here] = self._chunk_view[body_at : self._end]
        self._filled, self._start = here, self._end

    def _compact(self) -> None:
        left = self._end - self._start
        if left > HEAD_SIZE_BYTES_MAX:
            self.abort("the head of an answer is too long")
            return
        if self._start:
            self._chunk_view[:left] = bytes(self._chunk_view[self._start : self._end])
            self._start, self._end = 0, left

    def _deliver(self, status: int, head: bytes, body: bytes | bytearray) -> None:
        if not self._replies:
            self.abort("an answer to no request")
            return
        reply = self._replies.popleft()
        self.answers_count += 1
        reply(Answer(status, head, body))
        if b"\r\nconnection: close" in head and not self._closing:
            self.abort("closed by the peer")

    def _end_all(self) -> None:
        lost = Lost(sent=True, reason=self._closing)
        while self._replies:
            self._replies.popleft()(lost)


def _status_of(head: bytes) -> int | None:
    if not head.startswith(b"http/1.") or not head[9:12].isdigit():
        return None
    return int(head[9:12])


def _length_of(head: bytes) -> int | None:
    """None when the length cannot be known, which includes chunked bodies: peers do not send those."""
    found = head.find(_LENGTH)
    if found < 0:
        return 0 if _status_of(head) in _NO_BODY or head[9:10] == b"1" else None
    start = found + len(_LENGTH)
    end = head.find(b"\r\n", start)
    value = head[start : end if end >= 0 else None].strip()
    return int(value) if value.isdigit() else None
