"""One client's connection: bytes in, requests out, answers back in order.

The parser is httptools (llhttp); this class is what surrounds it: bounds, order, patience. Everything that a client can
do wrong ends as an answer and a closed connection, or a closed connection; no exception leaves the protocol.

    idle ──first byte──► head ──headers──► body ──whole──► idle        each phase has a time limit, kept by `sweep`
                           └──────── bad, too large, too slow ────────► lingering ──► closed

*Order*: `_exchanges` holds what was dispatched and not yet sent. The head of it decides what may leave; a stream stays
there until it is closed.
*Bounds*: a chunk of a socket may hold thousands of small requests. No more than PIPELINED_MAX are dispatched, and none
while more than OUTPUT_SIZE_BYTES_MAX of answers wait here or in the socket; the rest stays in `_backlog`, which one
chunk bounds, and reading stops meanwhile.
*Lingering*: closing a socket with unread bytes resets it, and the client may lose the answer that says why. So after
such an answer the sending side ends, and what still comes is thrown away for a moment.
*Upgrades*: behind a request that asks for one nothing is read before it is answered. Then the rest is the other
protocol's, or the next request.
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
from avow.peer.http.streams import Stream
from avow.peer.http.upgrades import Upgraded, Upgrading

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
    """It has fewer than 30 attributes: from 30 on Python 3.11 finds each more slowly, which costs 8 % of a request."""

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
        self._stream: Stream | None = None  # at the head of the line
        self._upgrading: Upgrading | None = None  # the last request, if it asks for it
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

    @property
    def same_machine(self) -> bool:
        """Both ends have the same address: whoever connects from elsewhere has another."""
        ends = [self._transport.get_extra_info(name) for name in ("peername", "sockname")] if self._transport else []
        return len(ends) == 2 and all(ends) and ends[0][0] == ends[1][0]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._out.clear()
        self._backlog.clear()
        self._abandon()
        if self._upgrading is not None:
            self._upgrading.exchange.abandon()
        self.listener.left(self)

    def _abandon(self) -> None:
        while self._exchanges:
            exchange = self._exchanges.popleft()
            self.listener.closed(exchange)
            exchange.abandon()

    def data_received(self, data: bytes) -> None:
        if self._upgrading is not None or self.lingering or self._refusal is not None:
            self._set_aside(data)
            return
        if self._phase == _BODY:
            self._since = self.listener.now()
        self._begun = 0
        self._feeding = True
        self._feed(data)
        self._feeding = False
        if self._phase == _HEAD and self._refusal is None and self._begun <= 1:
            self._head_grew(len(data))  # all of it is of one head; with more requests in it, it is bounded by itself
        if self._out or self._stream is not None:
            self._flush()
        if self._upgrading is not None:
            self._settle_upgrade()

    def eof_received(self) -> bool:
        """The client sends no more, or has gone; nobody can tell. What it asked for is answered if that is soon.

        A stream has no such end, so its client is taken to be gone.
        """
        if self._secure or self._phase != _IDLE or not self._exchanges or self._stream is not None:
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
        if self._stream is not None:
            self._stream.drained()

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
            exchange.close, exchange.old = True, parser.get_http_version() == "1.0"
        elif b"connection" in headers:
            exchange.old = parser.get_http_version() == "1.0"
        if b"upgrade" in headers and parser.should_upgrade() and self._ask_upgrade(exchange):
            return
        if self._backlog or not self._may_dispatch():
            self._backlog.append(exchange)
            self._pause_reading()
        else:
            self._dispatch(exchange)

    # ------------------------------------------------------------------ requests

    def _feed(self, data: bytes | memoryview) -> None:
        for _ in range(PIPELINED_MAX):
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = self._after_upgrade(memoryview(data)[upgrade.args[0] :])
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
        if self._upgrading is not None:
            self._settle_upgrade()
        elif self._reading_paused and not self._backlog and self._may_dispatch() and self._transport is not None:
            self._reading_paused = False
            self._since = self.listener.now()
            self._transport.resume_reading()

    def _pause_reading(self) -> None:
        if not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    # ------------------------------------------------------------------ upgrades

    def asks_upgrade(self, exchange: Exchange) -> bool:
        return self._upgrading is not None and self._upgrading.exchange is exchange

    def _ask_upgrade(self, exchange: Exchange) -> bool:
        """True: the request comes again in a moment, with its body."""
        self._upgrading = asked = Upgrading(exchange)
        if exchange.old and not asked.with_body:
            self._upgrading = None
        return asked.with_body

    def _after_upgrade(self, rest: memoryview) -> bytes | memoryview:
        """What to parse next. The parser has stopped behind a request that asks for an upgrade."""
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
        """The answer decides whose the bytes behind the request are; until it has left nobody reads them."""
        asked, transport = self._upgrading, self._transport
        if asked is None or transport is None:
            return
        if asked.undecided or (asked.granted and (self._out or not self.lingering)):
            self._pause_reading()
            return
        self._upgrading = None
        if asked.exchange.successor is not None:
            self._hand_over(transport, asked.exchange.successor(), bytes(asked.rest))
            return
        if asked.rest:
            self.data_received(bytes(asked.rest))
        self._proceed()

    def _hand_over(self, transport: asyncio.Transport, protocol: asyncio.Protocol, rest: bytes) -> None:
        self._transport = None
        upgraded = Upgraded(self.listener, transport, protocol)
        self.listener.handed_over(self, upgraded)
        upgraded.begin(rest, full=self._full, reading_paused=self._reading_paused)

    # ------------------------------------------------------------------ answers

    def answered(self, exchange: Exchange, size: int) -> None:
        """So much of an answer came: all of it, or a piece of a stream. What comes in one turn of the loop leaves
        together."""
        self.listener.closed(exchange)
        if self._transport is None:
            return
        self._waiting_size += size
        if self._exchanges[0] is not exchange:
            return
        self._collect()
        if self._feeding:
            if self._out_size >= OUTPUT_SIZE_BYTES_MAX:
                self._send()
        elif self._out_size >= OUTPUT_SIZE_BYTES_MAX or not self._exchanges:
            self._flush()
        elif not self._flush_due:
            self._flush_due = True
            self.listener.soon(self._flush)

    def takes(self, exchange: Exchange) -> bool:
        """A stream may go on. The one that leaves now depends on its client only; the others share what may wait."""
        if self._exchanges[0] is exchange:
            return not self._full
        return self._waiting_size < OUTPUT_SIZE_BYTES_MAX

    def size_waiting(self, exchange: Exchange) -> int:
        if self._exchanges[0] is exchange:
            return self._out_size + self._unsent()
        return exchange.size

    def _collect(self) -> None:
        exchanges = self._exchanges
        while exchanges and exchanges[0].out is not None and not self.lingering:
            exchange = exchanges[0]
            self._out.extend(exchange.out or ())
            self._out_size += exchange.size
            if exchange.streamed is not None and self._more_of(exchange.streamed):
                return
            exchanges.popleft()
            self.lingering = exchange.close

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
        if self.lingering:
            self._end_sending(transport)

    def _end_sending(self, transport: asyncio.Transport) -> None:
        if self._upgrading is not None and self._upgrading.granted:
            return  # the connection goes on, with another protocol
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

    # ------------------------------------------------------------------ the listener calls

    def sweep(self, now: float) -> None:
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
            self._too_slow(f"a request's head must come within {patience.head_s:g} s")
        elif self._phase == _BODY and waited > patience.body_s:
            self._too_slow(f"nothing of the request's body came for {patience.body_s:g} s")
        elif self._phase == _IDLE and not self._exchanges and waited > patience.idle_s and self._transport is not None:
            self._transport.close()

    def _too_slow(self, why: str) -> None:
        self._refuse(reply_of(InvalidRequest(f"{why}; nothing was done"), status=408))
        self._flush()

    def finish(self) -> None:
        """No more requests: close at once when idle, else with the answer to the last one. Streams end as they are."""
        if self._out:
            self._flush()
        if self._exchanges:
            self._last().close = True
            for stream in [exchange.streamed for exchange in self._exchanges if exchange.streamed is not None]:
                stream.finish()
        elif self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _unsent(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def _last(self) -> Exchange:
        return self._backlog[-1] if self._backlog else self._exchanges[-1]
