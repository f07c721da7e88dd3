"""The records of the write-ahead log, and the block at the start of each segment.

The log is read after a crash, when any part of it may be missing, torn or left over from an earlier use of the same
segment. A record's header therefore says to which log it belongs and where, and is repeated after the payload. If one
of the two is destroyed the record is still complete; if the payload is destroyed, the header still says which lane lost
which positions and their checksum, so that a copy found elsewhere can be verified.

    byte  size  field
       0     4  magic "AVwh"; in the repetition after the payload "AVwt"
       4     4  crc32c of bytes 8 to 48
       8     4  payload length, without padding
      12     4  payload crc32c, padding included
      16     8  lsn: +1 for each record (a group's opening record has the lsn of the next record)
      24     8  epoch: number of the store's opening << 32 | a random number of that opening
      32     8  first: position of the first entry, or the operation's number if it has one
      40     4  lane
      44     1  kind
      45     1  copy: 1 for the second record of a promise
      46     2  count of entries
      48        payload, zero-padded to 8, then bytes 0 to 48 again

Left-over bytes are never accepted as records: those of an earlier opening have another epoch, those of an earlier use
in this opening have an lsn below the segment's first. The random half of the epoch prevents a client from writing
messages that look like records. The opening block (twice, 4 KiB apart, because one bad sector must not hide a segment)
has the magic "AVws", crc32c, format 1, segment size, sequence number, epoch and first lsn.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, unpack_from
from typing import Final, NamedTuple

from crc32c import crc32c

from avow.wire.record import Buffer

HEAD: Final = b"AVwh"
TAIL: Final = b"AVwt"
SEGMENT_MAGIC: Final = b"AVws"
SEGMENT_FORMAT: Final = 1
BLOCK_BYTES: Final = 4096
SEGMENT_START: Final = 2 * BLOCK_BYTES

_MAGIC_AND_CRC: Final = Struct("<4sI")
_CRC: Final = Struct("<I")
_CHECKED: Final = Struct("<IIQQQIBBH")
HEADER_BYTES: Final = _MAGIC_AND_CRC.size + _CHECKED.size
OVERHEAD_BYTES: Final = 2 * HEADER_BYTES
_SEGMENT: Final = Struct("<IIQQQ")
SEGMENT_HEADER_BYTES: Final = 8 + _SEGMENT.size
PROMISE: Final = Struct("<QQ")  # promised, stamped
_PADDING: Final = tuple(bytes(-size % 8) for size in range(8))


class WalKind:
    """Numbers are on disk: never reuse one."""

    GROUP = 1  # opens a group: every record with a lower lsn is synced
    STATE = 2
    ENTRIES = 3
    CUT = 4
    SNAPSHOT = 5  # count: 1 when it replaces the whole log
    TRIM = 6
    FENCE = 7  # first: end + 1
    RUN = 8
    BOUND = 9  # first: lanes from this number on were created after a loss


class Header(NamedTuple):
    length: int
    crc: int
    lsn: int
    epoch: int
    first: int
    lane: int
    kind: int
    copy: int
    entries: int

    @property
    def size(self) -> int:
        """Of the whole record in bytes."""
        return OVERHEAD_BYTES + (self.length + 7 & ~7)


class SegmentHeader(NamedTuple):
    format: int
    size: int
    sequence: int
    epoch: int
    first_lsn: int


def encode(
    kind: int,
    lsn: int,
    epoch: int,
    lane: int = 0,
    first: int = 0,
    count: int = 0,
    *,
    copy: int = 0,
    payload: Sequence[Buffer] = (),
) -> tuple[list[Buffer], int]:
    """A record as buffers for one gathering write, and its size. The payload's buffers are not copied."""
    length = crc = 0
    for piece in payload:
        length += len(piece)
        crc = crc32c(piece, crc)
    padding = _PADDING[length & 7]
    if padding:
        crc = crc32c(padding, crc)
    checked = _CHECKED.pack(length, crc, lsn, epoch, first, lane, kind, copy, count)
    rest = _CRC.pack(crc32c(checked)) + checked
    return [HEAD + rest, *payload, padding + TAIL + rest], OVERHEAD_BYTES + length + len(padding)


def header_at(data: Buffer, offset: int, *, magic: bytes = HEAD) -> Header | None:
    """The header at `offset`; None unless it has this magic and a matching checksum."""
    if data[offset : offset + 4] != magic or offset + HEADER_BYTES > len(data):
        return None
    (crc,) = unpack_from("<I", data, offset + 4)
    if crc32c(memoryview(data)[offset + 8 : offset + HEADER_BYTES]) != crc:
        return None
    return Header(*_CHECKED.unpack_from(data, offset + 8))


def segment_block(header: SegmentHeader) -> bytes:
    """The first SEGMENT_START bytes of a segment."""
    checked = _SEGMENT.pack(*header)
    one = (_MAGIC_AND_CRC.pack(SEGMENT_MAGIC, crc32c(checked)) + checked).ljust(BLOCK_BYTES, b"\0")
    return one + one


def segment_header_at(data: bytes, offset: int) -> SegmentHeader | None:
    """The opening block at `offset`; None unless its checksum matches and its filling is zero."""
    block = data[offset : offset + BLOCK_BYTES]
    magic, crc = _MAGIC_AND_CRC.unpack_from(block)
    checked = block[8:SEGMENT_HEADER_BYTES]
    if magic != SEGMENT_MAGIC or crc32c(checked) != crc or block.count(0, SEGMENT_HEADER_BYTES) != _FILLING:
        return None
    return SegmentHeader(*_SEGMENT.unpack(checked))


_FILLING: Final = BLOCK_BYTES - SEGMENT_HEADER_BYTES
