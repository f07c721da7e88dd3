"""CORS: which web pages of other origins may use this peer and read its answers.

The dashboard served by one peer also calls the others, which for a browser are other origins. So pages from the API
address of any peer of the cluster are allowed, and pages of the origins listed in `cors_origins`. All others are not: a
web page that a user visits must not reach a peer that trusts its machine. What an allowed page may do depends on its
token, as for every client; cookies are never used.

Browsers send a preflight request (OPTIONS, without a token) before most requests. It is answered for any path.

`Origins` is stricter, for WebChannel. A page of any origin can make a browser send plain GETs and POSTs, and open
WebSockets, without a preflight request. It cannot read the answers, but it can do harm without them: on a machine where
a peer listens without tokens, every page that its user visits could write. So a request that a browser marks as coming
from a page of another origin is refused first of all, unless that origin is listed. Clients that are not browsers do
not set these headers.

    Origin            sent with every POST, every WebSocket and every request whose answer a page reads across origins
    Sec-Fetch-Site    sent with every request, also for images and links, to https and to localhost
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final
from urllib.parse import urlsplit

from avow.errors import Forbidden, InvalidRequest
from avow.server.access import is_loopback
from avow.server.http.request import HttpRequest

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_THIS_MACHINE: Final = ("localhost", "127.0.0.1", "[::1]")
_SHOWN: Final = b"avow-next, avow-end, avow-trimmed, avow-coordinator, retry-after"
_PREFLIGHT: Final = (
    b"access-control-allow-methods: GET, HEAD, POST, PUT, PATCH, DELETE\r\n"
    b"access-control-allow-headers: authorization, content-type, avow-age-ms\r\n"
    b"access-control-max-age: 600\r\n"
)


class Cors:
    """`apis` returns the current API addresses of the cluster's peers."""

    def __init__(self, listed: Collection[str], apis: Callable[[], Iterable[str]]) -> None:
        self._listed = frozenset(origin.encode("ascii") for origin in listed)
        self._apis = apis
        self._known: tuple[str, ...] = ()
        self._peers: frozenset[bytes] = frozenset()

    def allows(self, origin: bytes) -> bool:
        if origin in self._listed:
            return True
        known = tuple(self._apis())
        if known != self._known:
            self._known = known
            self._peers = frozenset(found.encode("ascii") for api in known for found in origins_of(api))
        return origin in self._peers

    def headers(self, origin: bytes) -> bytes:
        """Headers for every answer to a page; empty if the page may not read it."""
        if not self.allows(origin):
            return b""
        return b"access-control-allow-origin: %b\r\naccess-control-expose-headers: %b\r\nvary: origin\r\n" % (
            origin,
            _SHOWN,
        )

    @staticmethod
    def preflight(request: HttpRequest) -> bool:
        """Answers a preflight request. False: this is none, or its origin is not allowed."""
        asks = request.method == b"OPTIONS" and b"access-control-request-method" in request.headers
        if asks and request.extra:
            request.answer(200, b"", _PREFLIGHT)
            return True
        return False


def origins_of(api: str) -> Iterator[str]:
    """The origins of an API address, as browsers write them. A loopback address has three names."""
    try:
        parts = urlsplit(api)
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        return
    if parts.scheme not in _DEFAULT_PORTS or not host or not api.isascii():
        return
    behind = "" if port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{port}"
    shown = f"[{host}]" if ":" in host else host
    for name in {shown, *(_THIS_MACHINE if is_loopback(host) else ())}:
        yield f"{parts.scheme}://{name}{behind}"


def read_origins(text: str) -> list[str]:
    """Parses the setting `cors_origins`, comma-separated origins. Raises InvalidRequest."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    for origin in found:
        scheme, _, rest = origin.partition("://")
        plain = origin.isascii() and origin.isprintable() and not any(sign in rest for sign in "/?#@* ")
        if scheme not in _DEFAULT_PORTS or not rest or not plain or origin != origin.lower():
            raise InvalidRequest(
                f"{origin!r} in cors_origins is not an origin as browsers write it, such as https://shop.example:8443"
            )
    return found


# ---------------------------------------------------------------------- requests of channels

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
