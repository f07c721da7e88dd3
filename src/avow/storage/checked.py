"""The envelope of small files with a checksum: checkpoints, snapshots, indexes, the folder's identity.

A changed bit anywhere, a truncated file and extra bytes at the end are all detected, and the error says where, what was
expected and what was found. Files are written under a new or temporary name and synced before anything refers to them,
so a reader never finds a torn one: a failed check always means damage.

    byte  size  field
       0     4  magic: the type of file
       4     4  crc32c of every byte after this one
       8     8  body length
      16        body
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from crc32c import crc32c

from avow.errors import StorageDamaged

_ENVELOPE: Final = Struct("<4sIQ")

CHECKPOINT: Final = b"AVcp"
SNAPSHOT: Final = b"AVsn"
INDEX: Final = b"AVix"
IDENTITY: Final = b"AVid"


def seal(magic: bytes, body: bytes) -> bytes:
    length = len(body).to_bytes(8, "little")
    return _ENVELOPE.pack(magic, crc32c(body, crc32c(length)), len(body)) + body


def checksum(data: bytes) -> int:
    """The checksum that a sealed file claims to have, to tell it from another one; 0: it has none."""
    return int.from_bytes(data[4:8], "little")


def unseal(magic: bytes, data: bytes, *, file: str) -> bytes:
    """The body. Raises StorageDamaged."""
    if len(data) < _ENVELOPE.size:
        raise StorageDamaged(file=file, position=len(data), expected=f"{_ENVELOPE.size} bytes", found=len(data))
    found_magic, crc, length = _ENVELOPE.unpack_from(data)
    if found_magic != magic:
        raise StorageDamaged(file=file, position=0, expected=magic, found=found_magic)
    if (found := crc32c(memoryview(data)[8:])) != crc:
        raise StorageDamaged(file=file, position=4, expected=f"crc {crc:08x}", found=f"crc {found:08x}")
    if length != len(data) - _ENVELOPE.size:
        raise StorageDamaged(file=file, position=8, expected=f"{length} bytes", found=len(data) - _ENVELOPE.size)
    return data[_ENVELOPE.size :]
