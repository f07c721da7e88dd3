"""WebChannel sessions over HTTP: requests are passed to a `Session`, and a session is the socket of a channel.

All requests use one path. The query says what a request is:

    POST, no SID            handshake              answered with the new session's id
    GET, SID=null, $req     fast handshake         the id is in a header; the answer continues as the back channel
    POST, SID               maps from the client   answered at once
    GET, SID, RID=rpc       back channel           long poll; arrays to the client
    TYPE=terminate          the client ends the session

A session's id is enough to use the session, so it has 128 random bits. `open_user` decides who may open one; it gets
the request and the parameters that are not WebChannel's own. Clients that cannot set headers put `Authorization` into
the handshake instead; it is treated like the header.

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

from avow.channel.transports.socket import Piece, SocketUser
from avow.channel.transports.webchannel import VERSION, Form, Session, State, Timing, framed, read_form, unknown_session
from avow.errors import AvowError, Busy, InvalidRequest, NotCoordinator
from avow.server.http.cors import Origins
from avow.server.http.error_reply import reply_of
from avow.server.http.request import HttpRequest
from avow.server.http.streams import Stream

OpenUser: TypeAlias = Callable[[HttpRequest, Mapping[str, str]], SocketUser]

SESSIONS_MAX: Final = 1_024
TICK_S: Final = 0.5
_QUERY_FIELDS_MAX: Final = 64
_NUMBER: Final = re.compile("[0-9]{1,16}")
_TEXT: Final = b"text/plain; charset=utf-8"
_HEADERS: Final = (
    b"cache-control: no-store\r\n"
    b"x-content-type-options: nosniff\r\n"  # or browsers buffer a stream until they can guess its type
    b"x-accel-buffering: no\r\n"  # the same for proxies
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
            raise InvalidRequest(f"{name} must be a number, not {(text or '')[:40]!r}; nothing was done")
        return int(text)


def _read_query(url: bytes) -> _Query:
    text = url.decode("latin-1").partition("?")[2].partition("#")[0]
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_QUERY_FIELDS_MAX)
    except ValueError as cause:
        raise InvalidRequest(f"the query of the URL cannot be parsed: {cause}; nothing was done") from cause
    given = dict(pairs)
    if len(given) != len(pairs):
        raise InvalidRequest("a query parameter is given twice; nothing was done")
    query = _Query({n: v for n, v in given.items() if n in _OWN}, {n: v for n, v in given.items() if n not in _OWN})
    if query.own.get("VER") != str(VERSION):
        raise InvalidRequest(f"this peer supports WebChannel version {VERSION}: send VER={VERSION}; nothing was done")
    return query


class WebChannelSocket:
    """One session as a socket. `on_over` is called when it ends, before its user's `lost`."""

    def __init__(self, session: Session, on_over: Callable[[WebChannelSocket], None]) -> None:
        self._session = session
        self._user: SocketUser
        self._on_over = on_over
        self._loop = asyncio.get_running_loop()
        self._stream: Stream | None = None
        self._flush_due = self._closing = self._lost = False
        self._held = self._delivering = False
        self._waiting = False  # its user saw `full` and waits for `writable`

    @property
    def sid(self) -> str:
        return self._session.sid

    # ------------------------------------------------------------------ called by its user

    def send(self, packet: Sequence[Piece]) -> None:
        self._session.send(packet)
        self._soon()

    @property
    def full(self) -> bool:
        self._waiting = self._closing or self._session.full or self._session.state is State.OVER
        return self._waiting

    @property
    def unfinished_bytes(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self._held = True

    def resume_reading(self) -> None:
        self._held = False
        self._deliver()

    def close(self, *, code: int = 1000, reason: str = "") -> None:  # noqa: ARG002
        """What was sent before still goes to the client. WebChannel cannot transfer `code` and `reason`."""
        self._closing = True
        self._session.close()
        self._soon()

    def abort(self) -> None:
        if self._session.state is not State.OVER:
            farewell = self._session.abort()
            if self._stream is not None:
                self._stream.write(farewell)
            self._loop.call_soon(self._update)

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
        self._update()
        return answer

    def back(self, request: HttpRequest, query: _Query, headers: bytes) -> None:
        """Answers the request with the back channel. If it raises, nothing was done."""
        wait_ms = query.number("TO", default=0)
        back = self._session.back(
            aid=query.number("AID", default=0),
            streaming=query.own.get("CI", "0") == "0",
            now=self._loop.time(),
            wait_s=wait_ms / 1000 if wait_ms else None,
        )
        self._drop_stream()
        stream = self._stream = request.stream(200, headers, content_type=_TEXT)
        stream.on_writable = self._flush
        stream.on_gone = partial(self._gone, back)
        if stream.gone:
            self._gone(back)
        self._update()
        self._flush()

    def terminate(self) -> None:
        """The client has said everything: what it said before is not lost, even if its user reads slowly."""
        with self._guarded():
            while not self._closing and (packet := self._session.take_packet()) is not None:
                self._user.packet(self, packet)
        self._session.terminate()
        self._update()

    def tick(self) -> None:
        self._session.tick(self._loop.time())
        self._flush()
        self._update()

    # ------------------------------------------------------------------ internals

    def _deliver(self) -> None:
        if self._delivering:  # the user resumes from within `packet`
            return
        with self._guarded():
            self._delivering = True
            while not (self._held or self._closing or self._session.state is State.OVER):
                packet = self._session.take_packet()
                if packet is None:
                    break
                self._user.packet(self, packet)
            self._delivering = False

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Ends the session if its user fails: otherwise later packets would arrive without an earlier one."""
        done = False
        try:
            yield
            done = True
        finally:
            if not done:
                self.abort()

    def _soon(self) -> None:
        """Everything sent in one turn of the loop is written together."""
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

    def _update(self) -> None:
        """Call it after anything that may have made room, or ended the session."""
        if self._session.state is State.OVER:
            if not self._lost:
                self._lost = True
                self._drop_stream()
                self._on_over(self)
                self._user.lost(self, self._session.reason)
        elif self._waiting and not self._session.full and not self._closing:
            self._waiting = False
            self._user.writable(self)


class WebChannels:
    """All WebChannel sessions of a peer. `handle` answers every request to their path."""

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

    def handle(self, request: HttpRequest) -> None:
        headers = _HEADERS
        try:
            headers += self._origins.check(request)
            if request.method == b"OPTIONS":
                request.answer(204, b"", headers + self._origins.preflight(request))
            else:
                self._handle(request, _read_query(request.url), headers)
        except AvowError as error:
            status = 409 if isinstance(error, NotCoordinator) else 0  # a session cannot follow a redirect
            request.reply(reply_of(error, status=status, headers=headers))

    def stop(self) -> None:
        """Ends every session."""
        for socket in list(self._sockets.values()):
            socket.abort()

    def statistics(self) -> dict[str, int]:
        return {"webchannel_sessions": len(self._sockets), "webchannel_sessions_opened": self.opened}

    # ------------------------------------------------------------------ requests

    def _handle(self, request: HttpRequest, query: _Query, headers: bytes) -> None:
        post = request.method == b"POST"
        if not post and request.method != b"GET":
            raise InvalidRequest(
                f"WebChannel uses GET and POST, not {request.method.decode('latin-1')}; nothing was done"
            )
        if not query.sid:
            self._open(request, query, headers)
            return
        socket = self._sockets.get(query.sid)
        if socket is None:
            raise unknown_session(query.sid)
        if query.own.get("TYPE") == "terminate":
            socket.terminate()
            request.answer(200, b"", headers, _TEXT)
        elif post:
            answer = socket.forward(read_form(bytes(request.body)), aid=query.number("AID"))
            request.answer(200, answer, headers, _TEXT)
        else:
            socket.back(request, query, headers)

    def _open(self, request: HttpRequest, query: _Query, headers: bytes) -> None:
        fast = request.method == b"GET"
        if fast and "$req" not in query.own:
            raise InvalidRequest("a handshake must be a POST, or a GET with SID=null and $req; nothing was done")
        if len(self._sockets) >= self._sessions_max:
            raise Busy(
                f"this peer already has {self._sessions_max} WebChannel sessions; nothing was done. Try another peer"
            )
        form = read_form(query.own["$req"].encode() if fast else bytes(request.body))
        _authorize(request, query.own.get("$httpHeaders", "").encode() or form.headers)
        user = self._open_user(request, query.others)
        session = Session(secrets.token_hex(16), now=asyncio.get_running_loop().time(), timing=self._timing)
        socket = self._sockets[session.sid] = WebChannelSocket(session, self._forget)
        self.opened += 1
        self._arm()
        greeting = socket.open(user, form)
        if fast:
            socket.back(request, query, headers + b"x-http-initial-response: %b\r\n" % greeting)
        else:
            request.answer(200, framed(greeting), headers, _TEXT)

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


def _authorize(request: HttpRequest, lines: bytes) -> None:
    """Takes `Authorization` from a handshake that has its headers as text. The other headers are ignored."""
    for line in lines.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"authorization":
            request.headers.setdefault(b"authorization", value.strip())
