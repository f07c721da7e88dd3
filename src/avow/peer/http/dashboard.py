"""The dashboard's files, handed out by every peer to anybody: they hold nothing that is secret.

    /                        -> dashboard/
    /dashboard               -> dashboard/
    /dashboard/              the page
    /dashboard/files/{name}  what it is made of

They are no part of the API and not in its table: what the table does not know is looked for here. The page shows what
strangers wrote into queues, so its browser is told to run nothing but these files, to be framed by nobody, and to
connect to the peers of this cluster only: those that this peer knows when it hands out the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Final

from avow import dashboard
from avow.peer.http.files import File, send_file, tagged

if TYPE_CHECKING:
    from avow.peer.http.api import Api
    from avow.peer.http.exchange import Exchange

_PAGE: Final = "/dashboard/"
_FILES: Final = "/dashboard/files/"
_MOVED: Final = {"/": b"dashboard/", "/dashboard": b"dashboard/"}
_ORIGIN: Final = re.compile(r"http(s?)://([A-Za-z0-9.:\[\]-]+)/?")
_ALWAYS: Final = b"cache-control: no-cache\r\nx-content-type-options: nosniff\r\nreferrer-policy: no-referrer\r\n"
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; connect-src 'self'"
)


@cache
def _files() -> Mapping[str, File]:
    return tagged(dashboard.files())


def serve(api: Api, exchange: Exchange) -> bool:
    """False: it is not of the dashboard."""
    if exchange.method not in (b"GET", b"HEAD"):
        return False
    path = exchange.target.partition("?")[0]
    if path in _MOVED:
        exchange.answer(302, b"", b"location: %b\r\n%b" % (_MOVED[path], _ALWAYS), b"text/plain")
        return True
    name = "index.html" if path == _PAGE else path.removeprefix(_FILES) if path.startswith(_FILES) else ""
    file = _files().get(name)
    if file is None:
        return False
    send_file(exchange, file, _ALWAYS + (_policy(api) if path == _PAGE else b""))
    return True


def _policy(api: Api) -> bytes:
    peers = " ".join(
        origin for info in api.node.metadata.state.peers.by_number.values() for origin in _origins(info.api)
    )
    return f"content-security-policy: {_POLICY} {peers}\r\n".encode("ascii")


def _origins(address: str) -> Iterator[str]:
    """A peer's API as HTTP and as WebSocket. What another peer announced goes into a header: nothing odd may."""
    match = _ORIGIN.fullmatch(address)
    if match is not None:
        yield f"http{match[1]}://{match[2]}"
        yield f"ws{match[1]}://{match[2]}"
