"""One client connection: parses requests, and sends the answers in their order.

The parser is httptools (llhttp). This class adds the bounds, the order of answers and the time limits. Every client
error ends with an answer and a closed connection, or only a closed connection; no exception leaves the protocol.

    idle ──first byte──► head ──headers──► body ──complete──► idle     each phase has a time limit, checked by `sweep`
                           └──────── bad, too large, too slow ────────► lingering ──► closed

*Order*: `_dispatched` holds the requests that were dispatched and whose answers were not sent. Only the answer of the
first one may be sent; a stream stays there until it is closed.
*Bounds*: one chunk from the socket may hold thousands of small requests. At most PIPELINED_MAX are dispatched and not
answered, at most PIPELINED_MAX in one turn of the loop, and none while more than OUTPUT_SIZE_BYTES_MAX of answers wait
here or in the socket. The rest stays in `_backlog`, which is bounded by the chunk, and reading is paused meanwhile.
*Memory*: large bodies and answers take room in the peer's budget (`held_bytes`). A body that gets none is not read
until there is room, and refused with BUSY if that takes too long. A client that reads nothing while others wait for
the room that its answers hold is disconnected.
*Lingering*: closing a socket with unread bytes resets it, and the client may lose the answer that gives the reason. So
after such an answer only the sending side is closed, and for a moment received bytes are discarded.
*Upgrades*: after a request for an upgrade nothing is parsed before the request is answered. The bytes that follow then
belong to the new protocol, or are the next request.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, cast

import httptools

from avow.errors import AvowError, Busy, InvalidRequest, TooLarge
from avow.limits import KIB, MIB
from avow.server.byte_budget import FREE_SIZE_BYTES
from avow.server.http.error_reply import Reply, reply_of
from avow.server.http.held_bytes import HeldBytes
from avow.server.http.request import CONTINUE, HttpRequest, Piece
from avow.server.http.streams import Stream
from avow.server.http.upgrades import Upgraded, Upgrading

if TYPE_CHECKING:
    from avow.server.access import Token
    from avow.server.http.listener import Listener

_LOG: Final = logging.getLogger("avow.http")

HEAD_SIZE_BYTES_MAX: Final = 32 * KIB
OUTPUT_SIZE_BYTES_MAX: Final = 4 * MIB
PIPELINED_MAX: Final = 256
DISCARDED_SIZE_BYTES_MAX: Final = 16 * MIB
_JOINED_SIZE_BYTES_MAX: Final = 64 * KIB  # below this size a copy costs less than a gathering write

_IDLE, _HEAD, _BODY = range(3)


class Connection(asyncio.Protocol):
    """Keep it below 30 attributes: from 30 on, Python 3.11 looks up each more slowly, which costs 8 % of a request."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.authorized: tuple[bytes | None, Token] | None = None  # the last Authorization header, and its token
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._dispatched: deque[HttpRequest] = deque()
        self._backlog: deque[HttpRequest] = deque()
        self._out: list[Piece] = []
        self._out_size = 0  # of `_out`, in bytes
        self._waiting_size = 0  # of all answers that were not sent, in bytes
        self._discarded = 0
        self._feeding = self._flush_due = self._full = self._reading_paused = False
        self._phase, self._since, self._full_since = _IDLE, 0.0, 0.0
        self._begun = 0  # requests that began in the current chunk
        self._turn_left = PIPELINED_MAX  # requests that may be dispatched before other connections have a turn
        self._ending = False  # the client has closed its sending side
        self._refusal: Reply | None = None  # the last answer of this connection
        self._stream: Stream | None = None  # the stream that is being sent
        self._upgrading: Upgrading | None = None  # the last request, if it asks for an upgrade
        self._secure = False
        self.lingering = False
        self.held = HeldBytes(listener.budget)
        self._begin()

    def _begin(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: bytes | bytearray = b""
        self._head_size = 0

    # ------------------------------------------------------------------ called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's class does not inherit it
        self._transport = transport
        self._secure = transport.get_extra_info("sslcontext") is not None
        self._since = self.listener.now()
        joined = self.listener.joined(self)
        transport.set_write_buffer_limits(high=OUTPUT_SIZE_BYTES_MAX, low=OUTPUT_SIZE_BYTES_MAX // 4)
        if not joined or self.listener.crowded:
            self._refuse(reply_of(Busy("this peer has reached `connections_max`; nothing was done. Try another peer")))
        if not joined:
            transport.close()  # without lingering: a client that has sent something already may be reset

    @property
    def same_machine(self) -> bool:
        """Both ends have the same address; a client on another machine has a different one."""
        ends = [self._transport.get_extra_info(name) for name in ("peername", "sockname")] if self._transport else []
        return len(ends) == 2 and all(ends) and ends[0][0] == ends[1][0]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._out.clear()
        self._backlog.clear()
        self._abandon()
        self.held.close()
        if self._upgrading is not None:
            self._upgrading.request.abandon()
        self.listener.left(self)

    def _abandon(self) -> None:
        while self._dispatched:
            request = self._dispatched.popleft()
            self._uncount(request)
            request.abandon()

    def data_received(self, data: bytes) -> None:
        if self._upgrading is not None or self.lingering or self._refusal is not None:
            self._set_aside(data)
            return
        if self._phase == _BODY:
            self._since = self.listener.now()
        if self.held.answers.held:
            self._count_unread()
        self._begun = 0
        self._feeding = True
        self._feed(data)
        self._feeding = False
        if self._phase == _HEAD and self._refusal is None and self._begun <= 1:
            self._head_grew(len(data))  # the chunk is part of one head; one with several requests is itself a bound
        if self._out or self._stream is not None:
            self._flush()
        if self._upgrading is not None:
            self._settle_upgrade()

    def eof_received(self) -> bool:
        """The client has closed its sending side, or the connection. Requests in flight are answered if that is soon.

        A stream has no end, so its client is assumed to have closed the connection.
        """
        if self._secure or self._phase != _IDLE or not self._dispatched or self._stream is not None:
            return False
        self._last().close = self._ending = True
        self._since = self.listener.now()
        return True

    def pause_writing(self) -> None:
        self._full, self._full_since = True, self.listener.now()
        self._pause_reading()

    def resume_writing(self) -> None:
        self._full = False
        self._count_unread()
        self._proceed()
        if self._stream is not None:
            self._stream.drained()

    # ------------------------------------------------------------------ called by the parser

    def on_message_begin(self) -> None:
        self._begin()
        self._begun += 1
        self._phase, self._since = _HEAD, self.listener.now()

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._head_grew(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase == _HEAD:  # later ones are trailers, which are ignored
            self._headers[name.lower()] = value
        self._head_size += len(name) + len(value)
        if self._head_size > HEAD_SIZE_BYTES_MAX:
            self._head_grew(0)

    def on_headers_complete(self) -> None:
        self._phase = _BODY
        headers = self._headers
        if b"host" not in headers and self._parser.get_http_version() != "1.0":
            self._refuse(reply_of(InvalidRequest("the request has no Host header; nothing was done")))
        size = int(headers.get(b"content-length", 0))
        if size > self.listener.request_bytes_max:
            self._refuse_size()
        elif size > FREE_SIZE_BYTES:
            self._take_room(size)
        if b"expect" in headers:
            self._expect(headers[b"expect"])

    def on_body(self, body: bytes) -> None:
        if self._refusal is not None:
            return
        if not self._body:
            self._body = body  # most bodies come in one piece and are not copied
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += body
        size = len(self._body)
        if size > self.listener.request_bytes_max:
            self._refuse_size()
        elif size > FREE_SIZE_BYTES and not self.held.body and self.held.waiting is None:
            self._take_room(self.listener.request_bytes_max)  # it has no length

    def on_message_complete(self) -> None:
        self._phase, self._since = _IDLE, self.listener.now()
        if self._refusal is not None:
            return
        parser, headers = self._parser, self._headers
        request = HttpRequest(self, parser.get_method(), self._url, headers, self._body)
        if self.held.body or self.held.waiting is not None:
            request.held = self.held.body_complete(len(self._body))
        self._body = b""
        if not parser.should_keep_alive():
            request.close, request.old = True, parser.get_http_version() == "1.0"
        elif b"connection" in headers:
            request.old = parser.get_http_version() == "1.0"
        if b"upgrade" in headers and parser.should_upgrade() and self._ask_upgrade(request):
            return
        if self._backlog or not self._may_dispatch():
            self._backlog.append(request)
            self._pause_reading()
        else:
            self._dispatch(request)

    # ------------------------------------------------------------------ requests

    def _feed(self, data: bytes | memoryview) -> None:
        while data:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = self._after_upgrade(memoryview(data)[upgrade.args[0] :])
            except httptools.HttpParserError as error:
                self._refuse_malformed(error)
                return

    def _refuse_malformed(self, error: Exception) -> None:
        if self._refusal is None:
            cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
            self.listener.malformed += 1
            self._refuse(reply_of(InvalidRequest(f"not a valid HTTP/1.1 request ({cause}); nothing was done")))

    def _head_grew(self, size: int) -> None:
        self._head_size += size
        if self._head_size > HEAD_SIZE_BYTES_MAX and self._refusal is None:
            self._refuse(
                reply_of(
                    InvalidRequest(f"the request's head is larger than {HEAD_SIZE_BYTES_MAX} bytes; nothing was done"),
                    status=431,
                )
            )

    def _refuse_size(self) -> None:
        if self._refusal is None:
            bound = self.listener.request_bytes_max
            self._refuse(reply_of(TooLarge(f"the request is larger than {bound} bytes; nothing was stored. Split it")))

    def _expect(self, what: bytes) -> None:
        if self._refusal is not None:
            return
        if what.lower() != b"100-continue":
            self._refuse(reply_of(InvalidRequest("`expect` must be 100-continue; nothing was done"), status=417))
            return
        if self.held.waiting is not None:
            return  # the client is told to go on when there is room
        go_on = HttpRequest(self, b"", b"", {}, b"")
        go_on.out, go_on.size = (CONTINUE,), len(CONTINUE)
        self._waiting_size += len(CONTINUE)
        self._dispatched.append(go_on)
        self._collect()
        self._send()

    def _take_room(self, size: int) -> None:
        """For the body that arrives. Without room the socket is not read until there is some."""
        held = self.held
        if self._refusal is not None or held.take_body(size):
            return
        if held.wait_for_body(size, self._room_taken, until=self.listener.now() + self.listener.patience.busy_s):
            self._pause_reading()
        else:
            self._refuse_busy()

    def _room_taken(self) -> None:
        self._since = self.listener.now()
        if b"expect" in self._headers and self._phase == _BODY:
            self._expect(self._headers[b"expect"])
        self._proceed()

    def _refuse_busy(self) -> None:
        share = self.held.requests.share
        self._refuse(
            reply_of(
                Busy(
                    f"requests hold {share.held} of the {share.size_bytes_max} bytes that this peer has for them "
                    "(setting memory_bytes_max); nothing was done. Try again, or try another peer"
                )
            )
        )

    def _refuse(self, reply: Reply) -> None:
        """Sends the last answer of this connection, after the answers to all requests before it."""
        self._refusal = reply
        self._body = b""
        self.held.stop_waiting()
        while self._backlog and self._may_dispatch():
            self._dispatch(self._backlog.popleft())
        self._backlog.clear()
        last = HttpRequest(self, b"", b"", {}, b"")
        last.close = True
        self._dispatched.append(last)
        last.reply(reply)

    def _may_dispatch(self) -> bool:
        room = self._waiting_size < OUTPUT_SIZE_BYTES_MAX and not self._full and self.held.takes_requests
        return room and self._turn_left > 0 and len(self._dispatched) < PIPELINED_MAX

    def _dispatch(self, request: HttpRequest) -> None:
        listener = self.listener
        listener.requests += 1
        listener.in_flight += 1
        request.in_flight = True
        self._turn_left -= 1
        if not self._turn_left:
            listener.soon(self._next_turn)
        self._dispatched.append(request)
        try:
            listener.handle(request)
        except AvowError as error:
            request.fail(error)
        except Exception:
            listener.crashed(request)

    def _uncount(self, request: HttpRequest) -> None:
        """The request is answered, or nobody waits for an answer. Those of the connection itself were not counted."""
        if request.in_flight:
            request.in_flight = False
            self.listener.in_flight -= 1
        if request.held:
            self.held.release_body(request.held)
            request.held, request.body = 0, b""

    def _proceed(self) -> None:
        """Answers were sent: dispatch the requests that had to wait, then resume reading."""
        while self._backlog and self._may_dispatch() and not self._feeding:
            self._feeding = True  # immediate answers are only collected, and do not call this again
            while self._backlog and self._may_dispatch():
                self._dispatch(self._backlog.popleft())
            self._feeding = False
            self._send()
        if self._upgrading is not None:
            self._settle_upgrade()
        elif self._reading_paused and not self._backlog and self._may_dispatch() and self._transport is not None:
            if self.held.waiting is not None:
                return
            self._reading_paused = False
            self._since = self.listener.now()
            self._transport.resume_reading()

    def _next_turn(self) -> None:
        self._turn_left = PIPELINED_MAX
        self._proceed()

    def _pause_reading(self) -> None:
        if not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    # ------------------------------------------------------------------ upgrades

    def asks_upgrade(self, request: HttpRequest) -> bool:
        return self._upgrading is not None and self._upgrading.request is request

    def _ask_upgrade(self, request: HttpRequest) -> bool:
        """True: the request will be parsed again, with its body."""
        self._upgrading = asked = Upgrading(request)
        if request.old and not asked.with_body:
            self._upgrading = None
        return asked.with_body

    def _after_upgrade(self, rest: memoryview) -> bytes | memoryview:
        """The bytes to parse next. The parser has stopped after a request for an upgrade."""
        self._parser = httptools.HttpRequestParser(self)
        asked = self._upgrading
        if asked is None:
            return rest
        if asked.with_body:
            self._upgrading = None
            return asked.head_without() + rest
        if asked.undecided or asked.granted:
            asked.rest += rest
            return b""
        self._upgrading = None
        return rest

    def _settle_upgrade(self) -> None:
        """The answer decides what the bytes after the request are; they are not parsed before it was sent."""
        asked, transport = self._upgrading, self._transport
        if asked is None or transport is None:
            return
        if asked.undecided or (asked.granted and (self._out or not self.lingering)):
            self._pause_reading()
            return
        self._upgrading = None
        if asked.request.successor is not None:
            self._hand_over(transport, asked.request.successor(), bytes(asked.rest))
            return
        if asked.rest:
            self.data_received(bytes(asked.rest))
        self._proceed()

    def _hand_over(self, transport: asyncio.Transport, protocol: asyncio.Protocol, rest: bytes) -> None:
        self._transport = None
        self.held.close()
        upgraded = Upgraded(self.listener, transport, protocol)
        self.listener.handed_over(self, upgraded)
        upgraded.begin(rest, full=self._full, reading_paused=self._reading_paused)

    # ------------------------------------------------------------------ answers

    def answered(self, request: HttpRequest, size: int) -> None:
        """`size` bytes of an answer are ready: all of it, or a piece of a stream. Everything that is ready in one turn
        of the loop is sent together."""
        self._uncount(request)
        if self._transport is None:
            return
        self._waiting_size += size
        if self._dispatched[0] is not request:
            return
        self._collect()
        if self._feeding:
            if self._out_size >= OUTPUT_SIZE_BYTES_MAX:
                self._send()
        elif self._out_size >= OUTPUT_SIZE_BYTES_MAX or not self._dispatched:
            self._flush()
        elif not self._flush_due:
            self._flush_due = True
            self.listener.soon(self._flush)

    def takes(self, request: HttpRequest) -> bool:
        """Whether a stream may write. The stream being sent is limited by its client only; the others share a bound."""
        if self._dispatched[0] is request:
            return not self._full
        return self._waiting_size < OUTPUT_SIZE_BYTES_MAX

    def size_waiting(self, request: HttpRequest) -> int:
        if self._dispatched[0] is request:
            return self._out_size + self._unsent()
        return request.size

    def _collect(self) -> None:
        dispatched = self._dispatched
        while dispatched and dispatched[0].out is not None and not self.lingering:
            request = dispatched[0]
            self._out.extend(request.out or ())
            self._out_size += request.size
            if request.streamed is not None and self._more_of(request.streamed):
                return
            dispatched.popleft()
            self.lingering = request.close

    def _more_of(self, stream: Stream) -> bool:
        more = stream.moved_on()
        self._stream = stream if more else None
        return more

    def _flush(self) -> None:
        self._flush_due = False
        self._send()
        if self._backlog or self._reading_paused:
            self._proceed()
        if self._stream is not None:
            self._stream.drained()

    def _send(self) -> None:
        transport, out = self._transport, self._out
        if not out or transport is None:
            return
        size, self._out, self._out_size = self._out_size, [], 0
        self._waiting_size -= size
        self._since = self.listener.now() if self._phase == _IDLE else self._since
        if len(out) == 1:
            transport.write(out[0])
        elif size <= _JOINED_SIZE_BYTES_MAX:
            transport.write(b"".join(out))
        else:
            transport.writelines(out)
        if size > FREE_SIZE_BYTES or self.held.answers.held:
            self._count_unread()
        if self.lingering:
            self._end_sending(transport)

    def _end_sending(self, transport: asyncio.Transport) -> None:
        if self._upgrading is not None and self._upgrading.granted:
            return  # the connection continues with another protocol
        self._since = self.listener.now()
        self._backlog.clear()
        self._abandon()
        if self._refusal is None or not transport.can_write_eof():
            transport.close()
            return
        transport.write_eof()
        if self._reading_paused:
            self._reading_paused = False
            transport.resume_reading()

    def _set_aside(self, data: bytes) -> None:
        if self._upgrading is not None:
            self._upgrading.rest += data
        self._discarded += len(data)
        if self._discarded > DISCARDED_SIZE_BYTES_MAX:
            self.abort()

    # ------------------------------------------------------------------ called by the listener

    def _count_unread(self) -> None:
        self.held.unread(self._waiting_size + self._unsent())

    def _sweep_held(self, now: float) -> bool:
        """True: the connection was ended."""
        held, unsent, patience = self.held, self._unsent(), self.listener.patience
        if unsent or held.answers.held:
            self._count_unread()
            if self._backlog or self._reading_paused:
                self._proceed()
            limit_s = patience.crowded_s if held.answers.held and held.answers.share.crowded else patience.stalled_s
            if held.stalled_s(now, unsent) > limit_s:
                self._end_stalled(unsent, limit_s)
                return True
        if held.waiting is not None and now >= held.wait_until:
            held.requests.share.refused += 1
            self._refuse_busy()
            self._flush()
        return False

    def _end_stalled(self, unsent: int, limit_s: float) -> None:
        """The client would not read an answer that says why."""
        self.listener.stalled += 1
        client = self._transport.get_extra_info("peername") if self._transport is not None else None
        _LOG.warning("client %s has read nothing of %d bytes for %g s; it was disconnected", client, unsent, limit_s)
        self.abort()

    def sweep(self, now: float) -> None:
        if self._sweep_held(now):
            return
        for request in [request for request in self._dispatched if request.in_flight and 0 < request.deadline < now]:
            if request.watcher is not None:
                request.watcher.expired()
        patience, waited = self.listener.patience, now - self._since
        if self._stream is not None and not self._ending:
            if self._stream.stalled_s(now, self._out_size + self._unsent()) > patience.stalled_s:
                self.abort()
        elif self._full:
            if now - self._full_since > patience.stalled_s:
                self.abort()
        elif self.lingering or self._ending:
            if waited > (patience.stalled_s if self._unsent() else patience.linger_s):
                self.abort()
        elif self._reading_paused or self._refusal is not None:
            return
        elif self._phase == _HEAD and waited > patience.head_s:
            self._too_slow(f"the request's head did not arrive within {patience.head_s:g} s")
        elif self._phase == _BODY and waited > patience.body_s:
            self._too_slow(f"no data of the request's body arrived for {patience.body_s:g} s")
        elif self._phase == _IDLE and not self._dispatched and waited > patience.idle_s and self._transport is not None:
            self._transport.close()

    def _too_slow(self, why: str) -> None:
        self._refuse(reply_of(InvalidRequest(f"{why}; nothing was done"), status=408))
        self._flush()

    def finish(self) -> None:
        """Take no more requests: close at once if idle, else after the last answer. Streams are ended."""
        if self._out:
            self._flush()
        if self._dispatched:
            self._last().close = True
            for stream in [request.streamed for request in self._dispatched if request.streamed is not None]:
                stream.finish()
        elif self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _unsent(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def _last(self) -> HttpRequest:
        return self._backlog[-1] if self._backlog else self._dispatched[-1]
