"""WebChannel sessions over HTTP: from requests to `avow.channel.webchannel.Session`, from a session to a socket.

One path takes everything. What a request is follows from its query:

    POST, no SID            handshake              answered with the new session's id
    GET, SID=null, $req     fast handshake         the same in a header; the answer goes on as the back channel
    POST, SID               maps, going up         answered at once
    GET, SID, RID=rpc       back channel           hangs; arrays go down
    TYPE=terminate          the client is leaving

Whoever knows a session's id may use the session, so it is 128 random bits; who may open one is for `open_user` to say,
which gets the request and those of its parameters that are not WebChannel's own. Clients that cannot set headers put
`Authorization` into the handshake instead, where it counts as if it had been sent.

Pages of other origins are refused, unless listed (`origins`).
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeAlias
from urllib.parse import parse_qsl

from msgspec import Struct

from avow.channel.sockets import Piece, SocketUser
from avow.channel.webchannel import VERSION, Session, State, Timing, framed, unknown_session
from avow.channel.webchannel_forms import Form, read_form
from avow.errors import AvowError, Busy, InvalidRequest, NotCoordinator
from avow.peer.channels.origins import Origins
from avow.peer.http.errors import reply_of
from avow.peer.http.exchange import Exchange
from avow.peer.http.streams import Stream

OpenUser: TypeAlias = Callable[[Exchange, Mapping[str, str]], SocketUser]

SESSIONS_MAX: Final = 1_024
TICK_S: Final = 0.5
_QUERY_FIELDS_MAX: Final = 64
_NUMBER: Final = re.compile("[0-9]{1,16}")
_TEXT: Final = b"text/plain; charset=utf-8"
_HEADERS: Final = (
    b"cache-control: no-store\r\n"
    b"x-content-type-options: nosniff\r\n"  # or browsers wait for enough of a stream to guess its type
    b"x-accel-buffering: no\r\n"  # the same of proxies
)
_OWN: Final = frozenset(
    {"VER", "CVER", "RID", "SID", "AID", "CI", "TYPE", "TO", "MODE", "OSID", "OAID", "zx", "t"}
    | {"$req", "$httpHeaders", "X-HTTP-Session-Id"}
)


class _Query(Struct, frozen=True):
    own: Mapping[str, str]
    others: Mapping[str, str]

    @property
    def sid(self) -> str:
        """Empty: a handshake."""
        sid = self.own.get("SID", "")
        return "" if sid == "null" else sid

    def number(self, name: str, *, default: int | None = None) -> int:
        text = self.own.get(name)
        if text is None and default is not None:
            return default
        if text is None or not _NUMBER.fullmatch(text):
            raise InvalidRequest(f"{name} is a number, not {(text or '')[:40]!r}; nothing was done")
        return int(text)


def _read_query(url: bytes) -> _Query:
    text = url.decode("latin-1").partition("?")[2].partition("#")[0]
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_QUERY_FIELDS_MAX)
    except ValueError as cause:
        raise InvalidRequest(f"the URL cannot be read: {cause}; nothing was done") from cause
    given = dict(pairs)
    if len(given) != len(pairs):
        raise InvalidRequest("a query parameter is given twice; nothing was done")
    query = _Query({n: v for n, v in given.items() if n in _OWN}, {n: v for n, v in given.items() if n not in _OWN})
    if query.own.get("VER") != str(VERSION):
        raise InvalidRequest(f"WebChannel of version {VERSION} is spoken here: send VER={VERSION}; nothing was done")
    return query


class WebChannelSocket:
    """One session as a socket. `over` is told when it ends, before its user is."""

    def __init__(self, session: Session, over: Callable[[WebChannelSocket], None]) -> None:
        self._session = session
        self._user: SocketUser
        self._over = over
        self._loop = asyncio.get_running_loop()
        self._stream: Stream | None = None
        self._flush_due = self._closing = self._lost = False
        self._waiting = False  # its user was told that it is full

    @property
    def sid(self) -> str:
        return self._session.sid

    # ------------------------------------------------------------------ its user calls

    def send(self, packet: Sequence[Piece]) -> None:
        self._session.send(packet)
        self._soon()

    @property
    def full(self) -> bool:
        self._waiting = self._closing or self._session.full or self._session.state is State.OVER
        return self._waiting

    def close(self, *, code: int = 1000, reason: str = "") -> None:  # noqa: ARG002
        """What was sent before still goes to the client. WebChannel has no words for `code` and `reason`."""
        self._closing = True
        self._session.close()
        self._soon()

    def abort(self) -> None:
        if self._session.state is not State.OVER:
            farewell = self._session.abort()
            if self._stream is not None:
                self._stream.write(farewell)
            self._loop.call_soon(self._settle)

    # ------------------------------------------------------------------ requests

    def open(self, user: SocketUser, form: Form) -> bytes:
        self._user = user
        greeting = self._session.open(form)
        with self._guarded():
            user.opened(self)
        self._deliver()
        return greeting

    def forward(self, form: Form, *, aid: int) -> bytes:
        answer = self._session.forward(form, aid=aid, now=self._loop.time())
        self._deliver()
        self._settle()
        return answer

    def back(self, exchange: Exchange, query: _Query, headers: bytes) -> None:
        """Raises before anything was done; else the exchange is answered with the back channel."""
        wait_ms = query.number("TO", default=0)
        back = self._session.back(
            aid=query.number("AID", default=0),
            streaming=query.own.get("CI", "0") == "0",
            now=self._loop.time(),
            wait_s=wait_ms / 1000 if wait_ms else None,
        )
        self._drop_stream()
        stream = self._stream = exchange.stream(200, headers, content_type=_TEXT)
        stream.on_writable = self._flush
        stream.on_gone = partial(self._gone, back)
        if stream.gone:
            self._gone(back)
        self._settle()
        self._flush()

    def terminate(self) -> None:
        self._session.terminate()
        self._settle()

    def tick(self) -> None:
        self._session.tick(self._loop.time())
        self._flush()
        self._settle()

    # ------------------------------------------------------------------ inside

    def _deliver(self) -> None:
        with self._guarded():
            for packet in self._session.packets():
                if self._closing or self._session.state is State.OVER:
                    return
                self._user.packet(self, packet)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """A user that fails loses the session: what follows would come without what went before it."""
        done = False
        try:
            yield
            done = True
        finally:
            if not done:
                self.abort()

    def _soon(self) -> None:
        """What is sent in one turn of the loop leaves together."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        while self._stream is not None and self._stream.writable:
            chunk = self._session.chunk(self._loop.time())
            if chunk is None:
                return
            self._stream.write(chunk.data)
            if chunk.last:
                self._drop_stream()

    def _gone(self, back: int) -> None:
        self._session.gone(back, now=self._loop.time())
        if not self._session.hanging:
            self._stream = None

    def _drop_stream(self) -> None:
        if self._stream is not None:
            stream, self._stream = self._stream, None
            stream.on_gone = stream.on_writable = None
            stream.close()

    def _settle(self) -> None:
        """After anything that may have made room, or ended the session."""
        if self._session.state is State.OVER:
            if not self._lost:
                self._lost = True
                self._drop_stream()
                self._over(self)
                self._user.lost(self, self._session.reason)
        elif self._waiting and not self._session.full and not self._closing:
            self._waiting = False
            self._user.writable(self)


class WebChannels:
    """All sessions of a peer. `handle` answers every request to their path."""

    def __init__(
        self,
        open_user: OpenUser,
        *,
        origins: Origins | None = None,
        sessions_max: int = SESSIONS_MAX,
        timing: Timing | None = None,
        tick_s: float = TICK_S,
    ) -> None:
        self._open_user = open_user
        self._origins = origins or Origins()
        self._sessions_max = sessions_max
        self._timing, self._tick_s = timing or Timing(), tick_s
        self._sockets: dict[str, WebChannelSocket] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.opened = 0

    def handle(self, exchange: Exchange) -> None:
        headers = _HEADERS
        try:
            headers += self._origins.check(exchange)
            if exchange.method == b"OPTIONS":
                exchange.answer(204, b"", headers + self._origins.preflight(exchange))
            else:
                self._handle(exchange, _read_query(exchange.url), headers)
        except AvowError as error:
            status = 409 if isinstance(error, NotCoordinator) else 0  # a session cannot follow a redirection
            exchange.reply(reply_of(error, status=status, headers=headers))

    def stop(self) -> None:
        """Every session is over."""
        for socket in list(self._sockets.values()):
            socket.abort()

    def statistics(self) -> dict[str, int]:
        return {"webchannel_sessions": len(self._sockets), "webchannel_sessions_opened": self.opened}

    # ------------------------------------------------------------------ requests

    def _handle(self, exchange: Exchange, query: _Query, headers: bytes) -> None:
        post = exchange.method == b"POST"
        if not post and exchange.method != b"GET":
            raise InvalidRequest(f"WebChannel uses GET and POST, not {exchange.method.decode('latin-1')}")
        if not query.sid:
            self._open(exchange, query, headers)
            return
        socket = self._sockets.get(query.sid)
        if socket is None:
            raise unknown_session(query.sid)
        if query.own.get("TYPE") == "terminate":
            socket.terminate()
            exchange.answer(200, b"", headers, _TEXT)
        elif post:
            answer = socket.forward(read_form(bytes(exchange.body)), aid=query.number("AID"))
            exchange.answer(200, answer, headers, _TEXT)
        else:
            socket.back(exchange, query, headers)

    def _open(self, exchange: Exchange, query: _Query, headers: bytes) -> None:
        fast = exchange.method == b"GET"
        if fast and "$req" not in query.own:
            raise InvalidRequest("a handshake is a POST, or a GET with SID=null and $req; nothing was done")
        if len(self._sockets) >= self._sessions_max:
            raise Busy(f"this peer has {self._sessions_max} WebChannel sessions; nothing was done. Try another")
        form = read_form(query.own["$req"].encode() if fast else bytes(exchange.body))
        _authorize(exchange, query.own.get("$httpHeaders", "").encode() or form.headers)
        user = self._open_user(exchange, query.others)
        session = Session(secrets.token_hex(16), now=asyncio.get_running_loop().time(), timing=self._timing)
        socket = self._sockets[session.sid] = WebChannelSocket(session, self._forget)
        self.opened += 1
        self._arm()
        greeting = socket.open(user, form)
        if fast:
            socket.back(exchange, query, headers + b"x-http-initial-response: %b\r\n" % greeting)
        else:
            exchange.answer(200, framed(greeting), headers, _TEXT)

    def _forget(self, socket: WebChannelSocket) -> None:
        self._sockets.pop(socket.sid, None)

    # ------------------------------------------------------------------ time

    def _arm(self) -> None:
        if self._timer is None and self._sockets:
            self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._arm()
        for socket in list(self._sockets.values()):
            socket.tick()


def _authorize(exchange: Exchange, lines: bytes) -> None:
    """`Authorization` from a handshake that carries its headers as text. Nothing else of them counts."""
    for line in lines.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"authorization":
            exchange.headers.setdefault(b"authorization", value.strip())
