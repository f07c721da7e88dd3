"""CORS: which web pages of other origins may read this peer's answers.

The dashboard served by one peer also calls the others, which for a browser are other origins. So pages from the API
address of any peer of the cluster are allowed, and pages of the origins listed in `cors_origins`. All others are not: a
web page that a user visits must not reach a peer that trusts its machine. What an allowed page may do depends on its
token, as for every client; cookies are never used.

Browsers send a preflight request (OPTIONS, without a token) before most requests. It is answered for any path.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final
from urllib.parse import urlsplit

from avow.errors import InvalidRequest
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
