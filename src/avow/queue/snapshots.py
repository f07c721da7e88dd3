"""A snapshot's envelope: magic, layout version and checksum.

A snapshot may be read long after it was written, by another peer and a later version of this program. A wrongly
restored state would give wrong answers without any sign of it, so everything is checked:

    byte  size  field
       0     4  magic: which state machine
       4     4  layout version
       8     4  crc32c of the body
      12        body: msgpack

Columns of numbers inside the body are raw little-endian int64, eight bytes each, so that a lane's index of a million
rows is copied and not converted.
"""

from __future__ import annotations

import sys
from array import array
from struct import Struct
from typing import Final, TypeVar

from crc32c import crc32c
from msgspec.msgpack import Decoder

from avow.errors import BadChecksum, BadMagic, Malformed, TooShort, UnknownVersion

_HEAD: Final = Struct("<4sII")
_SWAPPED: Final = sys.byteorder == "big"

T = TypeVar("T")


def seal(body: bytes, *, magic: bytes, version: int) -> bytes:
    return _HEAD.pack(magic, version, crc32c(body)) + body


def unseal(data: bytes, decoder: Decoder[T], *, magic: bytes, version: int) -> T:
    """The body as a value. Raises BadMagic, UnknownVersion, BadChecksum, TooShort or Malformed."""
    if len(data) < _HEAD.size:
        raise TooShort("snapshot", expected=f"at least {_HEAD.size} bytes", found=len(data))
    found_magic, found_version, crc = _HEAD.unpack_from(data)
    if found_magic != magic:
        raise BadMagic("snapshot", expected=magic, found=found_magic, at=0)
    if found_version != version:
        raise UnknownVersion("snapshot", expected=version, found=found_version, at=4)
    body = memoryview(data)[_HEAD.size :]
    if (found := crc32c(body)) != crc:
        raise BadChecksum("snapshot", expected=f"{crc:08x}", found=f"{found:08x}", at=8)
    try:
        return decoder.decode(body)
    except ValueError as cause:  # msgspec's errors, and UnicodeDecodeError from inside a name
        raise Malformed("snapshot", expected="its fields as msgpack", found=str(cause)) from cause


def column_bytes(column: array[int]) -> bytes:
    if not _SWAPPED:
        return column.tobytes()
    swapped = column[:]
    swapped.byteswap()
    return swapped.tobytes()


def column_from(data: bytes) -> array[int]:
    if len(data) % 8:
        raise Malformed("snapshot column", expected="a multiple of 8 bytes", found=len(data))
    column = array("q", data)
    if _SWAPPED:
        column.byteswap()
    return column
