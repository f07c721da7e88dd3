"""The calls that open channels, over a WebSocket and over WebChannel, and the JavaScript files that browsers use.

An invalid request is answered over HTTP, before a channel is opened; a script over its WebSocket (see `pages`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Final

import msgspec

from avow.channel import browser
from avow.channel.transports.websocket_handshake import accept
from avow.errors import InvalidRequest
from avow.server.channels.opening import opening_of
from avow.server.channels.pages import check_origin
from avow.server.http import schemas
from avow.server.http.error_reply import reply_of
from avow.server.http.static_files import File, send_file, tagged

if TYPE_CHECKING:
    from avow.channel.transports.socket import SocketUser
    from avow.server.http.api import Api
    from avow.server.http.request import HttpRequest

_UPGRADE: Final = b"upgrade: websocket\r\n"
_ANY_ORIGIN: Final = b"access-control-allow-origin: *\r\ncache-control: no-cache\r\nx-content-type-options: nosniff\r\n"


def open_channel(api: Api, request: HttpRequest, asked: schemas.ChannelParameters, content: None) -> None:  # noqa: ARG001
    check_origin(api, request)
    opening = opening_of(api, api.token(request), asked)
    if request.headers.get(b"upgrade", b"").lower() != b"websocket":
        error = InvalidRequest("a channel needs a WebSocket: send Upgrade: websocket; nothing was done")
        request.reply(reply_of(error, status=426, headers=_UPGRADE))
        return
    user = api.channels.accept(opening)
    request.upgrade(*accept(request.method, request.url, request.headers, user))


def webchannel(api: Api, request: HttpRequest, asked: schemas.NoParameters, content: None) -> None:  # noqa: ARG001
    """WebChannel parses the query itself and passes the parameters that are not its own to `open_user`."""
    check_origin(api, request)
    api.webchannels.handle(request)


def open_user(api: Api, request: HttpRequest, given: Mapping[str, str]) -> SocketUser:
    """For a new session of WebChannel."""
    known = schemas.ChannelParameters.__struct_encode_fields__
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise InvalidRequest(f"query parameter {unknown[:100]!r} is unknown; known: {', '.join(known)}")
    try:
        asked = msgspec.convert({k: v for k, v in given.items() if v}, schemas.ChannelParameters, strict=False)
    except msgspec.ValidationError as cause:
        raise InvalidRequest(f"invalid query parameter: {cause}; nothing was done") from cause
    return api.channels.accept(opening_of(api, api.token(request), asked))


# ---------------------------------------------------------------------- files for browsers


@cache
def _files() -> Mapping[str, File]:
    return tagged(browser.files())


def channel_module(api: Api, request: HttpRequest, asked: schemas.NoParameters, content: None) -> None:  # noqa: ARG001
    _send(request, "avow-channel.js")


def channel_types(api: Api, request: HttpRequest, asked: schemas.NoParameters, content: None) -> None:  # noqa: ARG001
    _send(request, "avow-channel.d.ts")


def webchannel_module(api: Api, request: HttpRequest, asked: schemas.NoParameters, content: None) -> None:  # noqa: ARG001
    _send(request, "webchannel-socket.js")


def _send(request: HttpRequest, name: str) -> None:
    send_file(request, _files()[name], _ANY_ORIGIN)
