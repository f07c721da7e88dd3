"""One client's connection: bytes in, requests out, answers back in order.

The parser is httptools (llhttp); this class is what surrounds it: bounds, order, patience. Everything that a client can
do wrong ends as an answer and a closed connection, or a closed connection; no exception leaves the protocol.

    idle ──first byte──► head ──headers──► body ──whole──► idle        each phase has a time limit, kept by `sweep`
                           └──────── bad, too large, too slow ────────► lingering ──► closed

*Order*: `_exchanges` holds what was dispatched and not yet sent. The head of it decides what may leave.
*Bounds*: a chunk of a socket may hold thousands of small requests. No more than PIPELINED_MAX are dispatched, and none
while more than OUTPUT_SIZE_BYTES_MAX of answers wait here or in the socket; the rest stays in `_backlog`, which one
chunk bounds, and reading stops meanwhile.
*Lingering*: closing a socket with unread bytes resets it, and the client may lose the answer that says why. So after
such an answer the sending side ends, and what still comes is thrown away for a moment.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, cast

import httptools

from avow.errors import Busy, InvalidRequest, TooLarge
from avow.limits import KIB, MIB
from avow.peer.http.errors import Reply, reply_of
from avow.peer.http.exchange import CONTINUE, Exchange, Piece

if TYPE_CHECKING:
    from avow.peer.access import Token
    from avow.peer.http.listener import Listener

HEAD_SIZE_BYTES_MAX: Final = 32 * KIB
OUTPUT_SIZE_BYTES_MAX: Final = 4 * MIB
PIPELINED_MAX: Final = 256
DISCARDED_SIZE_BYTES_MAX: Final = 16 * MIB
_JOINED_SIZE_BYTES_MAX: Final = 64 * KIB  # below this one copy costs less than a gathering write

_IDLE, _HEAD, _BODY = range(3)


class Connection(asyncio.Protocol):
    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.authorized: tuple[bytes | None, Token] | None = None  # the last Authorization header here, and whose it is
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._exchanges: deque[Exchange] = deque()
        self._backlog: deque[Exchange] = deque()
        self._out: list[Piece] = []
        self._out_size = 0  # of what may leave
        self._waiting_size = 0  # of all answers that have not left
        self._discarded = 0
        self._feeding = self._flush_due = self._full = self._reading_paused = False
        self._phase, self._since, self._full_since = _IDLE, 0.0, 0.0
        self._begun = 0  # requests that began in the chunk that is being parsed
        self._ending = False  # the client sends no more
        self._refusal: Reply | None = None  # the last answer of this connection, once it is known
        self._secure = False
        self.lingering = False
        self._begin()

    def _begin(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: bytes | bytearray = b""
        self._head_size = 0

    # ------------------------------------------------------------------ the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self._transport = transport
        self._secure = transport.get_extra_info("sslcontext") is not None
        self._since = self.listener.now()
        if not self.listener.joined(self):
            transport.abort()
            return
        transport.set_write_buffer_limits(high=OUTPUT_SIZE_BYTES_MAX, low=OUTPUT_SIZE_BYTES_MAX // 4)
        if self.listener.crowded:
            self._refuse(reply_of(Busy("this peer has all the connections it takes; nothing was done. Try another")))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._out.clear()
        self._backlog.clear()
        self._abandon()
        self.listener.left(self)

    def _abandon(self) -> None:
        while self._exchanges:
            exchange = self._exchanges.popleft()
            self.listener.closed(exchange)
            exchange.abandon()

    def data_received(self, data: bytes) -> None:
        if self.lingering or self._refusal is not None:
            self._discard(len(data))
            return
        if self._phase == _BODY:
            self._since = self.listener.now()
        self._begun = 0
        self._feeding = True
        self._feed(data)
        self._feeding = False
        if self._phase == _HEAD and self._refusal is None and self._begun <= 1:
            self._head_grew(len(data))  # all of it is of one head; with more requests in it, it is bounded by itself
        if self._out:
            self._flush()

    def eof_received(self) -> bool:
        """The client sends no more, or has gone; nobody can tell. What it asked for is answered if that is soon."""
        if self._secure or self._phase != _IDLE or not self._exchanges:
            return False
        self._last().close = self._ending = True
        self._since = self.listener.now()
        return True

    def pause_writing(self) -> None:
        self._full, self._full_since = True, self.listener.now()
        self._pause_reading()

    def resume_writing(self) -> None:
        self._full = False
        self._proceed()

    # ------------------------------------------------------------------ the parser calls

    def on_message_begin(self) -> None:
        self._begin()
        self._begun += 1
        self._phase, self._since = _HEAD, self.listener.now()

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._head_grew(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase == _HEAD:  # later ones are trailers, which nobody reads
            self._headers[name.lower()] = value
        self._head_size += len(name) + len(value)
        if self._head_size > HEAD_SIZE_BYTES_MAX:
            self._head_grew(0)

    def on_headers_complete(self) -> None:
        self._phase = _BODY
        headers = self._headers
        if b"host" not in headers and self._parser.get_http_version() != "1.0":
            self._refuse(reply_of(InvalidRequest("a request names the host it is for; nothing was done")))
        if int(headers.get(b"content-length", 0)) > self.listener.request_bytes_max:
            self._refuse_size()
        if b"expect" in headers:
            self._expect(headers[b"expect"])

    def on_body(self, body: bytes) -> None:
        if self._refusal is not None:
            return
        if not self._body:
            self._body = body  # most come in one piece and are not copied
            return
        if isinstance(self._body, bytes):
            self._body = bytearray(self._body)
        self._body += body
        if len(self._body) > self.listener.request_bytes_max:
            self._refuse_size()

    def on_message_complete(self) -> None:
        self._phase, self._since = _IDLE, self.listener.now()
        if self._refusal is not None:
            return
        parser, headers = self._parser, self._headers
        exchange = Exchange(self, parser.get_method(), self._url, headers, self._body)
        self._body = b""
        if not parser.should_keep_alive():
            exchange.close = True
        elif b"connection" in headers:
            exchange.keep_alive_said = parser.get_http_version() == "1.0"
        if self._backlog or not self._may_dispatch():
            self._backlog.append(exchange)
            self._pause_reading()
        else:
            self._dispatch(exchange)

    # ------------------------------------------------------------------ requests

    def _feed(self, data: bytes | memoryview) -> None:
        """An upgrade that is asked for is not granted: the request is answered as if it had not asked."""
        for _ in range(PIPELINED_MAX):
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = memoryview(data)[upgrade.args[0] :]
                self._parser = httptools.HttpRequestParser(self)
                if not data:
                    return
            except httptools.HttpParserError as error:
                self._garbage(error)
                return
        self._garbage(InvalidRequest("too many upgrades"))

    def _garbage(self, error: Exception) -> None:
        if self._refusal is None:
            cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
            self.listener.malformed += 1
            self._refuse(reply_of(InvalidRequest(f"this is no HTTP/1.1 request ({cause}); nothing was done")))

    def _head_grew(self, size: int) -> None:
        self._head_size += size
        if self._head_size > HEAD_SIZE_BYTES_MAX and self._refusal is None:
            self._refuse(
                reply_of(InvalidRequest(f"a request's head has at most {HEAD_SIZE_BYTES_MAX} bytes"), status=431)
            )

    def _refuse_size(self) -> None:
        if self._refusal is None:
            bound = self.listener.request_bytes_max
            self._refuse(reply_of(TooLarge(f"a request has at most {bound} bytes; nothing was stored. Split it")))

    def _expect(self, what: bytes) -> None:
        if self._refusal is not None:
            return
        if what.lower() != b"100-continue":
            self._refuse(reply_of(InvalidRequest("only 100-continue can be expected here"), status=417))
            return
        go_on = Exchange(self, b"", b"", {}, b"")
        go_on.out, go_on.size = (CONTINUE,), len(CONTINUE)
        self._waiting_size += len(CONTINUE)
        self._exchanges.append(go_on)
        self._collect()
        self._send()

    def _refuse(self, reply: Reply) -> None:
        """The last answer of this connection; what was asked before is answered before it."""
        self._refusal = reply
        while self._backlog and self._may_dispatch():
            self._dispatch(self._backlog.popleft())
        self._backlog.clear()
        last = Exchange(self, b"", b"", {}, b"")
        last.close = True
        self._exchanges.append(last)
        last.reply(reply)

    def _may_dispatch(self) -> bool:
        room = self._waiting_size < OUTPUT_SIZE_BYTES_MAX and not self._full
        return room and len(self._exchanges) < PIPELINED_MAX

    def _dispatch(self, exchange: Exchange) -> None:
        self._exchanges.append(exchange)
        self.listener.opened(exchange)

    def _proceed(self) -> None:
        """Answers have left: take up what had to wait, then read on."""
        while self._backlog and self._may_dispatch() and not self._feeding:
            self._feeding = True  # answers given at once are collected, and do not come back here
            while self._backlog and self._may_dispatch():
                self._dispatch(self._backlog.popleft())
            self._feeding = False
            self._send()
        if self._reading_paused and not self._backlog and self._may_dispatch() and self._transport is not None:
            self._reading_paused = False
            self._since = self.listener.now()
            self._transport.resume_reading()

    def _pause_reading(self) -> None:
        if not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    # ------------------------------------------------------------------ answers

    def answered(self, exchange: Exchange) -> None:
        """Called by an exchange, once. Answers of one turn of the loop leave together."""
        self.listener.closed(exchange)
        if self._transport is None:
            return
        self._waiting_size += exchange.size
        if self._exchanges[0] is not exchange:
            return
        self._collect()
        if self._out_size >= OUTPUT_SIZE_BYTES_MAX:
            self._send()
        elif self._feeding or self._flush_due:
            return
        elif not self._exchanges:
            self._flush()
        else:
            self._flush_due = True
            self.listener.soon(self._flush)

    def _collect(self) -> None:
        exchanges = self._exchanges
        while exchanges and exchanges[0].out is not None and not self.lingering:
            exchange = exchanges.popleft()
            self._out.extend(exchange.out or ())
            self._out_size += exchange.size
            self.lingering = exchange.close

    def _flush(self) -> None:
        self._flush_due = False
        self._send()
        if self._backlog or self._reading_paused:
            self._proceed()

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
        if self.lingering:
            self._end_sending(transport)

    def _end_sending(self, transport: asyncio.Transport) -> None:
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

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > DISCARDED_SIZE_BYTES_MAX:
            self.abort()

    # ------------------------------------------------------------------ the listener calls

    def sweep(self, now: float) -> None:
        patience, waited = self.listener.patience, now - self._since
        if self._full:
            if now - self._full_since > patience.stalled_s:
                self.abort()
        elif self.lingering or self._ending:
            if waited > (patience.stalled_s if self._unsent() else patience.linger_s):
                self.abort()
        elif self._reading_paused or self._refusal is not None:
            return
        elif self._phase == _HEAD and waited > patience.head_s:
            self._too_slow(f"a request's head must come within {patience.head_s:g} s")
        elif self._phase == _BODY and waited > patience.body_s:
            self._too_slow(f"nothing of the request's body came for {patience.body_s:g} s")
        elif self._phase == _IDLE and not self._exchanges and waited > patience.idle_s and self._transport is not None:
            self._transport.close()

    def _too_slow(self, why: str) -> None:
        self._refuse(reply_of(InvalidRequest(f"{why}; nothing was done"), status=408))
        self._flush()

    def finish(self) -> None:
        """No more requests: close at once when idle, else with the answer to the last one."""
        if self._exchanges:
            self._last().close = True
        elif self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _unsent(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def _last(self) -> Exchange:
        return self._backlog[-1] if self._backlog else self._exchanges[-1]
