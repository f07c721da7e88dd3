"""The calls that open channels: over a WebSocket, over WebChannel, and the files with which browsers do it.

What is wrong with a request is answered over HTTP, before anything is opened. A page in a browser may send any of these
requests to a peer it was not served by. Where tokens are asked for it lacks one. Where they are not, only pages from
this machine are listened to.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from avow.channel import browser
from avow.channel.websocket import accept
from avow.errors import Forbidden, InvalidRequest
from avow.peer.access import is_loopback
from avow.peer.channels.opening import opening_of
from avow.peer.http import shapes
from avow.peer.http.errors import reply_of
from avow.peer.http.files import File, send_file, tagged

if TYPE_CHECKING:
    from avow.channel.sockets import SocketUser
    from avow.peer.http.api import Api
    from avow.peer.http.exchange import Exchange

_UPGRADE: Final = b"upgrade: websocket\r\n"
_ANY_ORIGIN: Final = b"access-control-allow-origin: *\r\ncache-control: no-cache\r\nx-content-type-options: nosniff\r\n"


def open_channel(api: Api, exchange: Exchange, asked: shapes.ChannelParameters, content: None) -> None:  # noqa: ARG001
    check_origin(api, exchange)
    opening = opening_of(api, api.token(exchange), asked)
    if exchange.headers.get(b"upgrade", b"").lower() != b"websocket":
        error = InvalidRequest("a channel is opened over a WebSocket: send Upgrade: websocket; nothing was done")
        exchange.reply(reply_of(error, status=426, headers=_UPGRADE))
        return
    user = api.channels.accept(opening)
    exchange.upgrade(*accept(exchange.method, exchange.url, exchange.headers, user))


def webchannel(api: Api, exchange: Exchange, asked: shapes.NoParameters, content: None) -> None:  # noqa: ARG001
    """Its query is read by WebChannel itself, and what is not its own comes back to `open_user`."""
    check_origin(api, exchange)
    api.webchannels.handle(exchange)


def open_user(api: Api, exchange: Exchange, given: Mapping[str, str]) -> SocketUser:
    """For a new session of WebChannel."""
    known = shapes.ChannelParameters.__struct_encode_fields__
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise InvalidRequest(f"query parameter {unknown[:100]!r} is unknown; known: {', '.join(known)}")
    try:
        asked = msgspec.convert({k: v for k, v in given.items() if v}, shapes.ChannelParameters, strict=False)
    except msgspec.ValidationError as cause:
        raise InvalidRequest(f"a parameter is not what it should be: {cause}; nothing was done") from cause
    return api.channels.accept(opening_of(api, api.token(exchange), asked))


# ---------------------------------------------------------------------- who asks


def check_origin(api: Api, exchange: Exchange) -> None:
    origin = exchange.headers.get(b"origin")
    if origin is None or api.tokens.needed or api.cors.allows(origin):
        return
    try:
        host = urlsplit(origin.decode("latin-1")).hostname or ""
    except ValueError:
        host = ""
    if not is_loopback(host):
        raise Forbidden(
            f"pages of {origin[:100].decode('latin-1')!r} may not use this peer, which asks nobody for a token; "
            "nothing was done. Give the peer tokens, or serve the page from this machine"
        )


# ---------------------------------------------------------------------- files for browsers


@cache
def _files() -> Mapping[str, File]:
    return tagged(browser.files())


def channel_module(api: Api, exchange: Exchange, asked: shapes.NoParameters, content: None) -> None:  # noqa: ARG001
    _send(exchange, "avow-channel.js")


def channel_types(api: Api, exchange: Exchange, asked: shapes.NoParameters, content: None) -> None:  # noqa: ARG001
    _send(exchange, "avow-channel.d.ts")


def webchannel_module(api: Api, exchange: Exchange, asked: shapes.NoParameters, content: None) -> None:  # noqa: ARG001
    _send(exchange, "webchannel-socket.js")


def _send(exchange: Exchange, name: str) -> None:
    send_file(exchange, _files()[name], _ANY_ORIGIN)
