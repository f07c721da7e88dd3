"""WebSocket handshakes: as a client, as a server behind an HTTP listener, or as a server with a listener of its own.

    dial         TCP, TLS, request ──► 101 ──► WebSocket           any other answer is raised as the error it stands for
    accept       a request parsed by an HTTP server ──► the response, and the protocol that takes the connection over
    accept_raw   a connection ──► request ──► user, 101 ──► WebSocket

A refusal is an HTTP response with the same JSON body as any other error, so the client raises the same error that the
server raised. The subprotocol defines the meaning of packets; both ends require it. Extensions are not negotiated:
compression is left to the payload.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Final, TypeAlias, cast

from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.exceptions import InvalidHandshake, InvalidMessage, InvalidStatus, InvalidURI
from websockets.http11 import Request, Response
from websockets.protocol import Protocol, Side, State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI, parse_uri

from avow.channel.transports.socket import Socket, SocketUser
from avow.channel.transports.websocket import MESSAGE_SIZE_BYTES_MAX, QUIET, Patience, WebSocket
from avow.errors import AvowError, InvalidRequest, Offline
from avow.limits import KIB
from avow.wire.error_body import decode_failure, encode_failure

__all__ = ["SUBPROTOCOL", "Patience", "Socket", "SocketUser", "WebSocket", "accept", "accept_raw", "dial"]

SUBPROTOCOL: Final = "avow.channel.v1"
PATIENCE: Final = Patience()
HEAD_SIZE_BYTES_MAX: Final = 32 * KIB
_HEAD_END: Final = b"\r\n\r\n"
_SCHEMES: Final = {"http": "ws", "https": "wss"}
_ASKED: Final = (  # the headers a handshake consists of
    b"connection",
    b"upgrade",
    b"sec-websocket-key",
    b"sec-websocket-version",
    b"sec-websocket-protocol",
)

UserFor: TypeAlias = Callable[[Request], SocketUser]


# ---------------------------------------------------------------------- client


async def dial(
    url: str,
    user: SocketUser,
    *,
    headers: Sequence[tuple[str, str]] = (),
    subprotocols: Sequence[str] = (SUBPROTOCOL,),
    tls: ssl.SSLContext | None = None,
    timeout_s: float,
    patience: Patience = PATIENCE,
) -> WebSocket:
    """Connect to a WebSocket URL. `http` and `https` stand for `ws` and `wss`. The server must select the first
    subprotocol. `user.opened`, and perhaps `user.packet`, are called before this returns.

    Raises Offline when the server cannot be reached or does not answer in time, the server's own error when it refuses,
    InvalidRequest when it is not an Avow peer. If this raises or is cancelled after `opened`, `lost` follows.
    """
    uri = _parsed(url)
    handshake = _ClientHandshake(uri, url, user, headers, subprotocols, patience)
    secure = (tls or ssl.create_default_context()) if uri.secure else None
    socket: WebSocket | None = None
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.get_running_loop().create_connection(lambda: handshake, uri.host, uri.port, ssl=secure)
            socket = await handshake.opened
            return socket
    except TimeoutError as cause:
        raise _offline(url, f"no answer within {timeout_s:g} s") from cause
    except OSError as cause:
        raise _offline(url, str(cause)) from cause
    finally:
        if socket is None:
            handshake.give_up()


def _parsed(url: str) -> WebSocketURI:
    scheme, separator, rest = url.partition("://")
    try:
        return parse_uri(f"{_SCHEMES.get(scheme, scheme)}{separator}{rest}")
    except (InvalidURI, ValueError) as cause:
        raise InvalidRequest(
            f"{url!r} is not a WebSocket URL ({cause}); nothing was sent. Write ws://host:port/path or wss://"
        ) from cause


def _offline(url: str, why: str) -> Offline:
    return Offline(f"cannot open a WebSocket to {url} ({why}); nothing was sent. Try again, or use another address")


class _ClientHandshake(asyncio.Protocol):
    """Owns the connection until the server's answer. Then a WebSocket takes it over."""

    def __init__(
        self,
        uri: WebSocketURI,
        url: str,
        user: SocketUser,
        headers: Sequence[tuple[str, str]],
        subprotocols: Sequence[str],
        patience: Patience,
    ) -> None:
        self._url, self._user, self._headers, self._patience = url, user, headers, patience
        self._subprotocols = [Subprotocol(name) for name in subprotocols]
        self._protocol = ClientProtocol(
            uri, subprotocols=self._subprotocols, max_size=MESSAGE_SIZE_BYTES_MAX, logger=QUIET
        )
        self._transport: asyncio.Transport | None = None
        self.opened: asyncio.Future[WebSocket] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        request = self._protocol.connect()
        request.headers.update(self._headers)
        self._protocol.send_request(request)
        self._transport.writelines(self._protocol.data_to_send())

    def data_received(self, data: bytes) -> None:
        if self.opened.done():
            return
        self._protocol.receive_data(data)
        if self._protocol.handshake_exc is not None:
            self.opened.set_exception(self._refusal(self._protocol.handshake_exc))
        elif self._protocol.state is not State.CONNECTING:  # a close may have come with the answer
            self._open()

    def eof_received(self) -> None:
        if not self.opened.done():
            self._protocol.receive_eof()
            cause = self._protocol.handshake_exc
            self.opened.set_exception(self._refusal(cause) if cause is not None else self._hung_up())

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(self._hung_up(exc))

    def give_up(self) -> None:
        if not self.opened.cancel() and not self.opened.cancelled() and self.opened.exception() is None:
            self.opened.result().abort()
        elif self._transport is not None:
            self._transport.abort()

    def _open(self) -> None:
        transport = self._transport
        assert transport is not None, "data comes on a connection"
        if self._protocol.subprotocol != self._subprotocols[0]:
            self.opened.set_exception(self._no_peer(f"it does not support the subprotocol {self._subprotocols[0]}"))
            return
        socket = WebSocket(self._protocol, self._user, patience=self._patience)
        self.opened.set_result(socket)
        transport.set_protocol(socket)
        socket.connection_made(transport)
        socket.receive(self._protocol.events_received())  # frames may have come with the answer

    def _refusal(self, cause: Exception) -> AvowError:
        if isinstance(cause, InvalidStatus):
            return self._answer(cause.response)
        if isinstance(cause, InvalidMessage) and isinstance(cause.__cause__, EOFError):
            return self._hung_up()
        return self._no_peer(str(cause))

    def _answer(self, response: Response) -> AvowError:
        error = decode_failure(response.body)
        if error is not None:
            return error
        summary = f"HTTP {response.status_code}: {bytes(response.body[:200]).decode('utf-8', 'replace')!r}"
        if response.status_code >= 500 or response.status_code == 429:
            return _offline(self._url, summary)
        return self._no_peer(summary)

    def _no_peer(self, why: str) -> InvalidRequest:
        return InvalidRequest(
            f"the server at {self._url} is not an Avow peer ({why}); nothing was sent. Check the address"
        )

    def _hung_up(self, exc: Exception | None = None) -> Offline:
        return _offline(self._url, f"the connection was closed before an answer{f': {exc}' if exc is not None else ''}")


# ---------------------------------------------------------------------- behind an HTTP listener


def accept(
    method: bytes,
    target: bytes,
    headers: Mapping[bytes, bytes],
    user: SocketUser,
    *,
    subprotocols: Sequence[str] = (SUBPROTOCOL,),
    patience: Patience = PATIENCE,
) -> tuple[bytes, Callable[[], WebSocket]]:
    """The response, and a function that makes the protocol that takes the connection over, for `HttpRequest.upgrade`.

    Header names are in lower case. Raises InvalidRequest for an invalid handshake; `user` is not called then.
    """
    handshake = _server(subprotocols)
    request = Request(target.decode("latin-1"), Headers(), method.decode("latin-1"))
    try:
        for name in _ASKED:
            if name in headers:
                request.headers[name.decode()] = headers[name].decode("latin-1")
        response = handshake.accept(request)
    except InvalidHandshake as cause:
        raise _improper(cause) from cause
    if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
        raise _improper(handshake.handshake_exc)

    def make() -> WebSocket:
        return WebSocket(Protocol(Side.SERVER, max_size=MESSAGE_SIZE_BYTES_MAX, logger=QUIET), user, patience=patience)

    return response.serialize(), make


def _server(subprotocols: Sequence[str]) -> ServerProtocol:
    known = [Subprotocol(name) for name in subprotocols]
    return ServerProtocol(subprotocols=known, max_size=MESSAGE_SIZE_BYTES_MAX, logger=QUIET)


def _improper(cause: Exception | None) -> InvalidRequest:
    return InvalidRequest(
        f"this is not a valid WebSocket handshake ({cause}); nothing was done. Send GET with Upgrade: websocket, "
        f"Connection: Upgrade, version 13, a key, and the subprotocol {SUBPROTOCOL}"
    )


# ---------------------------------------------------------------------- on a listener of its own


def accept_raw(
    user_for: UserFor,
    *,
    subprotocols: Sequence[str] = (SUBPROTOCOL,),
    patience: Patience = PATIENCE,
    unopened: set[asyncio.Transport] | None = None,
) -> Callable[[], asyncio.Protocol]:
    """A protocol factory for `create_server`. `user_for` gets the request and may raise AvowError, which is answered.

    `unopened` contains each connection that is not a WebSocket yet, so that the caller can abort it.
    """
    return partial(_ServerHandshake, user_for, subprotocols, patience, set() if unopened is None else unopened)


class _ServerHandshake(asyncio.Protocol):
    """Owns the connection until the handshake is complete. Then a WebSocket takes it over."""

    def __init__(
        self, user_for: UserFor, subprotocols: Sequence[str], patience: Patience, unopened: set[asyncio.Transport]
    ) -> None:
        self._user_for, self._patience, self._unopened = user_for, patience, unopened
        self._protocol = _server(subprotocols)
        self._head = bytearray()
        self._refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._patience.handshake_s, self._transport.abort)
        self._unopened.add(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._timer.cancel()
        self._unopened.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        """The library gets only the head: it would answer a ping that arrives with the request before the request."""
        if self._refused:
            return
        self._head += data
        end = self._head.find(_HEAD_END) + len(_HEAD_END)
        if end < len(_HEAD_END):
            if len(self._head) > HEAD_SIZE_BYTES_MAX:
                self._transport.abort()
            return
        self._protocol.receive_data(bytes(self._head[:end]))
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._answer(event, bytes(self._head[end:]))
                return
        self._end()

    def _answer(self, request: Request, rest: bytes) -> None:
        try:
            response = self._protocol.accept(request)
            if self._protocol.handshake_exc is not None:
                raise _improper(self._protocol.handshake_exc)
            user = self._user_for(request)
        except AvowError as error:
            self._protocol.send_response(_refusal(error))
            self._end()
            return
        self._protocol.send_response(response)
        self._write()
        self._timer.cancel()
        self._unopened.discard(self._transport)
        socket = WebSocket(self._protocol, user, patience=self._patience)
        self._transport.set_protocol(socket)
        socket.connection_made(self._transport)
        if rest:
            socket.data_received(rest)

    def _end(self) -> None:
        """The client closes after reading the refusal; the timer aborts connections of clients that do not."""
        self._refused = True
        self._write()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def _write(self) -> None:
        self._transport.write(b"".join(self._protocol.data_to_send()))


def _refusal(error: AvowError) -> Response:
    body = encode_failure(error)
    status = HTTPStatus(error.http_status)
    headers = Headers(
        [("Connection", "close"), ("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    )
    return Response(status.value, status.phrase, headers, body)
