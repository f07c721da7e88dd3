"""Pages in browsers: which may open channels, and how a script learns why it may not.

A page may send requests to a peer that did not serve the page. With tokens, the page lacks one. Without tokens, only
pages of this machine are allowed.

A script cannot read the answer to a WebSocket handshake that is refused over HTTP: its socket only fails, and it would
try again until its patience ends. So its handshake is accepted, and the socket is closed with the reason in an End. A
refusal that may pass is still given over HTTP, because then trying again is right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from avow.channel.registry import RefusedSocket
from avow.channel.transports.websocket_handshake import accept
from avow.errors import AvowError, Forbidden, InvalidRequest, is_transient
from avow.server.access import is_loopback

if TYPE_CHECKING:
    from avow.server.http.api import Api
    from avow.server.http.request import HttpRequest


def tell_script(api: Api, request: HttpRequest, error: AvowError) -> bool:
    """Refuse a script's request for a channel in a way that it can read. False: answer over HTTP."""
    headers = request.headers
    script = b"origin" in headers or b"sec-fetch-mode" in headers  # Node sends only the second
    if not script or request.url.partition(b"?")[0] != b"/v1/channel" or is_transient(error.code):
        return False
    try:
        check_origin(api, request)
        request.upgrade(*accept(request.method, request.url, headers, RefusedSocket(error)))
    except (Forbidden, InvalidRequest):
        return False
    return True


def check_origin(api: Api, request: HttpRequest) -> None:
    origin = request.headers.get(b"origin")
    if origin is None or api.tokens.needed or api.cors.allows(origin):
        return
    try:
        host = urlsplit(origin.decode("latin-1")).hostname or ""
    except ValueError:
        host = ""
    if not is_loopback(host):
        raise Forbidden(
            f"pages of {origin[:100].decode('latin-1')!r} may not use this peer, because it has no tokens; "
            "nothing was done. Set `tokens` or `cors_origins`, or serve the page from this machine"
        )
