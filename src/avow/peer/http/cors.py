"""Which web pages of other origins may read this peer's answers.

The dashboard that one peer serves asks the others as well, which to a browser is another origin. So pages that come
from the API address of any peer of the cluster may ask, and those whose origins the operator lists (`cors_origins`).
Nobody else: a page that somebody visits must not reach a peer that trusts its machine. Whether a page may do something
is decided by its token, as for everybody; cookies and the like are never asked for.

A browser asks before it sends most requests (OPTIONS, without a token): that is answered for any path.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final
from urllib.parse import urlsplit

from avow.errors import InvalidRequest
from avow.peer.access import is_loopback
from avow.peer.http.exchange import Exchange

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_THIS_MACHINE: Final = ("localhost", "127.0.0.1", "[::1]")
_SHOWN: Final = b"avow-next, avow-end, avow-trimmed, avow-coordinator, retry-after"
_PREFLIGHT: Final = (
    b"access-control-allow-methods: GET, HEAD, POST, PUT, PATCH, DELETE\r\n"
    b"access-control-allow-headers: authorization, content-type, avow-age-ms\r\n"
    b"access-control-max-age: 600\r\n"
)


class Cors:
    """`apis` tells the API addresses of the cluster's peers, as they are now."""

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
        """For every answer to a page; empty for one that may not read it."""
        if not self.allows(origin):
            return b""
        return b"access-control-allow-origin: %b\r\naccess-control-expose-headers: %b\r\nvary: origin\r\n" % (
            origin,
            _SHOWN,
        )

    @staticmethod
    def preflight(exchange: Exchange) -> bool:
        """Answers a browser that asks before it sends; False: it does not ask that, or may not."""
        asks = exchange.method == b"OPTIONS" and b"access-control-request-method" in exchange.headers
        if asks and exchange.extra:
            exchange.answer(200, b"", _PREFLIGHT)
            return True
        return False


def origins_of(api: str) -> Iterator[str]:
    """As browsers write them. An address of this machine has three names. Pure."""
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
    """The setting `cors_origins`: origins, with commas between them. Raises InvalidRequest."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    for origin in found:
        scheme, _, rest = origin.partition("://")
        plain = origin.isascii() and origin.isprintable() and not any(sign in rest for sign in "/?#@* ")
        if scheme not in _DEFAULT_PORTS or not rest or not plain or origin != origin.lower():
            raise InvalidRequest(
                f"cors_origins lists origins as browsers write them, such as https://shop.example:8443, not {origin!r}"
            )
    return found
