"""What a reader of a lane gets on the machine where its records are: not the records, but where they lie.

A reader beside the peer can read the peer's files as well as the peer can, and then nothing is copied: not into the
peer, not through a socket, not out of it. So it may ask for places instead of bytes. Which messages it may see stays
the peer's to say: an answer names, in order, the records that hold the messages meant, which `ranges` would have sent.

    files    paths as the peer sees them; true: nothing will be written to that file any more
    ranges   [version of the first message meant, its number inside the record, count of messages meant,
              number of the file, byte in it, header of the record]

A path may mean another file where the reader is (a container, another machine's disk), or no longer the same one. The
header tells: it is the record's own, with the checksum of its body, its position, its time and its write id. A reader
compares it with what the file has there and then verifies the body by it; on any difference it asks for bytes instead.
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
