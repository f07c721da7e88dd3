"""Places: for a reader on the peer's machine, the positions of records in the peer's files instead of the records.

A reader on the same machine can read the peer's files itself, without copying bytes through the peer and a socket. So
it may ask for places instead of bytes. The peer still decides which messages it may see: an answer names, in order, the
records with the selected messages, the same ones that `ranges` would have sent.

    files    paths on the peer; true: the file will not be written any more
    ranges   [version of the first selected message, its number in the record, count of selected messages,
              number of the file, byte offset in it, header of the record]

A path may be another file for the reader (a container, another machine), or the file may have been replaced. Therefore
the header is included: it has the checksum of the record's body, its position, time and write id. A reader compares it
with the bytes in the file and then verifies the body; on any difference it asks for bytes instead.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from avow.errors import Malformed
from avow.wire.record import HEADER_SIZE_BYTES, Buffer

CONTENT_TYPE: Final = "application/vnd.avow.places+json"


class PlacedRange(Struct, frozen=True, array_like=True, gc=False):
    first_version: int
    offset: int
    count: int
    file: int
    at: int
    header: bytes


class Places(Struct, frozen=True):
    lane: int
    files: list[tuple[str, bool]]
    ranges: list[PlacedRange]


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Places)


def encode_places(places: Places) -> bytes:
    return _encoder.encode(places)


def decode_places(body: Buffer) -> Places:
    """Raises Malformed."""
    try:
        found = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed("places of records", expected="a list of files and one of ranges", found=str(error)) from error
    for one in found.ranges:
        fits = 0 <= one.file < len(found.files) and one.at >= 0 and one.offset >= 0 and one.count > 0
        if not fits or len(one.header) != HEADER_SIZE_BYTES:
            raise Malformed("place of a record", expected="a file, a byte in it and a header", found=one)
    return found
