"""Static files for browsers: the channel modules and the dashboard.

They change only with the peer's version. Browsers revalidate them on each use, with an ETag.

Every peer serves the dashboard's files to every client, because they contain no secrets.

    /                        -> dashboard/
    /dashboard               -> dashboard/
    /dashboard/              the page
    /dashboard/files/{name}  its files

They are not part of the API and not in its table: a path without a route is looked up here. The page shows messages
that anyone may have written, so its content security policy allows only these scripts, no framing, and connections only
to the peers of this cluster that this peer knows when it serves the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from avow import dashboard

if TYPE_CHECKING:
    from avow.server.http.api import Api
    from avow.server.http.request import HttpRequest


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


def serve(api: Api, request: HttpRequest) -> bool:
    """False: there is no such file."""
    if request.method not in (b"GET", b"HEAD"):
        return False
    path = request.target.partition("?")[0]
    if path in _MOVED:
        request.answer(302, b"", b"location: %b\r\n%b" % (_MOVED[path], _ALWAYS), b"text/plain")
        return True
    name = "index.html" if path == _PAGE else path.removeprefix(_FILES) if path.startswith(_FILES) else ""
    file = _files().get(name)
    if file is None:
        return False
    send_file(request, file, _ALWAYS + (_policy(api) if path == _PAGE else b""))
    return True


def _policy(api: Api) -> bytes:
    peers = " ".join(
        origin for info in api.node.metadata.state.peers.by_number.values() for origin in _origins(info.api)
    )
    return f"content-security-policy: {_POLICY} {peers}\r\n".encode("ascii")


def _origins(address: str) -> Iterator[str]:
    """A peer's API as HTTP and as WebSocket origin. Other peers announce these addresses, so they are checked first."""
    match = _ORIGIN.fullmatch(address)
    if match is not None:
        yield f"http{match[1]}://{match[2]}"
        yield f"ws{match[1]}://{match[2]}"


class File(Struct, frozen=True):
    body: bytes
    content_type: bytes
    etag: bytes


def tagged(files: Mapping[str, tuple[str, bytes]]) -> dict[str, File]:
    """Takes name -> (content type, body)."""
    return {
        name: File(body, content_type.encode(), b'"%b"' % sha256(body).hexdigest()[:32].encode())
        for name, (content_type, body) in files.items()
    }


def send_file(request: HttpRequest, file: File, headers: bytes) -> None:
    headers = b"etag: %b\r\n%b" % (file.etag, headers)
    if request.headers.get(b"if-none-match") == file.etag:
        request.answer(304, b"", headers, file.content_type)
    else:
        request.answer(200, file.body, headers, file.content_type)
