"""Which web pages may use this peer's channels.

A page of any origin can make a browser send plain GETs and POSTs, and open WebSockets, without being asked first. It
may not read the answers, but it would not need them to do harm: on a machine where a peer listens without tokens, every
page its user visits could write. So what a browser marks as coming from a page of another origin is refused before
anything else is looked at, unless that origin is listed. Clients that are no browsers mark nothing.

    Origin            sent with every POST, every WebSocket and whatever a page wants to read across origins
    Sec-Fetch-Site    sent with everything, images and links included, to https and to the own machine
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from avow.errors import Forbidden
from avow.peer.http.exchange import Exchange

_OWN_SITE: Final = (b"same-origin", b"none")  # none: the user typed it
_PREFLIGHT_S: Final = 600


class Origins:
    """`listed`: as browsers write them, "https://shop.example:8443". `allows` says which others may, as of now."""

    def __init__(self, listed: Collection[str] = (), *, allows: Callable[[bytes], bool] | None = None) -> None:
        self._listed = frozenset(origin.encode("latin-1") for origin in listed)
        self._allows = allows or self._listed.__contains__

    def check(self, exchange: Exchange) -> bytes:
        """Headers for every answer to a page of a listed origin, so that it can read them. Raises Forbidden."""
        headers = exchange.headers
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if origin is not None and (origin in self._listed or self._allows(origin)):
            return (
                b"access-control-allow-origin: %b\r\naccess-control-allow-credentials: true\r\n"
                b"access-control-expose-headers: x-http-initial-response\r\nvary: origin\r\n" % origin
            )
        same = origin is None or origin.partition(b"://")[2].lower() == headers.get(b"host", b"").lower()
        if not same or (site is not None and site not in _OWN_SITE):
            shown = (origin or b"another origin").decode("latin-1")[:100]
            raise Forbidden(f"pages of {shown} may not use this peer; nothing was done. Its operator can list them")
        return b""

    @staticmethod
    def preflight(exchange: Exchange) -> bytes:
        """The rest of the answer to a browser that asks before it sends, from an origin that was checked."""
        wanted = exchange.headers.get(b"access-control-request-headers", b"content-type")
        return (
            b"access-control-allow-methods: GET, POST\r\naccess-control-allow-headers: %b\r\n"
            b"access-control-max-age: %d\r\n" % (wanted, _PREFLIGHT_S)
        )
