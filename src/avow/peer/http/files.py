"""Files that a peer hands to browsers: the channel's module, the dashboard.

They change with the peer's version only. A browser asks each time, with what it has, and is told when that is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from avow.peer.http.exchange import Exchange


class File(Struct, frozen=True):
    body: bytes
    content_type: bytes
    etag: bytes


def tagged(files: Mapping[str, tuple[str, bytes]]) -> dict[str, File]:
    """From name -> (content type, body)."""
    return {
        name: File(body, content_type.encode(), b'"%b"' % sha256(body).hexdigest()[:32].encode())
        for name, (content_type, body) in files.items()
    }


def send_file(exchange: Exchange, file: File, headers: bytes) -> None:
    headers = b"etag: %b\r\n%b" % (file.etag, headers)
    if exchange.headers.get(b"if-none-match") == file.etag:
        exchange.answer(304, b"", headers, file.content_type)
    else:
        exchange.answer(200, file.body, headers, file.content_type)
