"""Checks which web pages may use this peer's channels.

A page of any origin can make a browser send plain GETs and POSTs, and open WebSockets, without a preflight request. It
cannot read the answers, but it can do harm without them: on a machine where a peer listens without tokens, every page
that its user visits could write. So a request that a browser marks as coming from a page of another origin is refused
first of all, unless that origin is listed. Clients that are not browsers do not set these headers.

    Origin            sent with every POST, every WebSocket and every request whose answer a page reads across origins
    Sec-Fetch-Site    sent with every request, also for images and links, to https and to localhost
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from avow.errors import Forbidden
from avow.server.http.request import HttpRequest

_OWN_SITE: Final = (b"same-origin", b"none")  # none: the user typed it
_PREFLIGHT_S: Final = 600


class Origins:
    """`listed`: origins as browsers write them, "https://shop.example:8443". `allows` is asked about all others."""

    def __init__(self, listed: Collection[str] = (), *, allows: Callable[[bytes], bool] | None = None) -> None:
        self._listed = frozenset(origin.encode("latin-1") for origin in listed)
        self._allows = allows or self._listed.__contains__

    def check(self, request: HttpRequest) -> bytes:
        """The headers that let a page of a listed origin read the answer. Raises Forbidden for other origins."""
        headers = request.headers
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if origin is not None and (origin in self._listed or self._allows(origin)):
            return (
                b"access-control-allow-origin: %b\r\naccess-control-allow-credentials: true\r\n"
                b"access-control-expose-headers: x-http-initial-response\r\nvary: origin\r\n" % origin
            )
        same = origin is None or origin.partition(b"://")[2].lower() == headers.get(b"host", b"").lower()
        if not same or (site is not None and site not in _OWN_SITE):
            shown = (origin or b"another origin").decode("latin-1")[:100]
            raise Forbidden(
                f"pages of {shown} may not use this peer; nothing was done. Its operator can add them to `cors_origins`"
            )
        return b""

    @staticmethod
    def preflight(request: HttpRequest) -> bytes:
        """More headers for the answer to a preflight request, whose origin was checked before."""
        wanted = request.headers.get(b"access-control-request-headers", b"content-type")
        return (
            b"access-control-allow-methods: GET, POST\r\naccess-control-allow-headers: %b\r\n"
            b"access-control-max-age: %d\r\n" % (wanted, _PREFLIGHT_S)
        )
