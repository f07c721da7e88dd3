"""Ranges: a lane's messages as bytes for a reader, each range in the record that contains it.

A peer never takes a batch apart, even if a reader begins in the middle of one, or if a trim or a hidden write removed
its head. So a range is a whole record, preceded by the selected messages and their versions. The reader uses the
record's columns in place and copies nothing.

Ranges follow one another directly. Every part has a length that is a multiple of 8 bytes, so that columns aligned to 8
bytes in their record are aligned in the answer's body too.

    byte  size  field
       0     4  lane, as the reader named it
       4     4  length of the record that follows, in bytes
       8     4  offset: the number of the first selected message in the record, from 0
      12     4  count of selected messages, at least 1
      16     8  version of the first selected message; the others follow without gaps
      24        the record, a multiple of 8 bytes

Checked in this order: a whole head (TooShort), a length that a record can have (CountOverflow), a whole record
(TooShort), at least one message and all of them in the record, whose header has the count (BadOffsets). `batch.check`
verifies the record's checksums and columns, for readers that do not rely on the connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct as Layout
from struct import error
from typing import Final

from msgspec import Struct

from avow import limits
from avow.errors import BadOffsets, CountOverflow, InvalidRequest, TooShort
from avow.wire.messages import Entry
from avow.wire.record import HEADER_SIZE_BYTES, Buffer, entry_parts, plain_view, read_header

RANGE_HEAD_SIZE_BYTES: Final = 24
CONTENT_TYPE: Final = "application/vnd.avow.batches"

_HEAD: Final = Layout("<IIIIQ")
_RECORD_SIZE_BYTES_MAX: Final = HEADER_SIZE_BYTES + limits.CONTROL_SIZE_BYTES_MAX + limits.BATCH_SIZE_BYTES_MAX + 8
_COUNT_FIELD: Final = 9


class Range(Struct, frozen=True, gc=False):
    """`record` is a view of the bytes it was parsed from and keeps them alive."""

    lane: int
    first_version: int
    offset: int
    count: int
    record: memoryview

    @property
    def last_version(self) -> int:
        return self.first_version + self.count - 1


def range_parts(entry: Entry, *, lane: int, first_version: int, offset: int, count: int) -> list[Buffer]:
    """One range as pieces for one gathering write; the batch is not copied."""
    record = entry_parts(entry)
    try:
        head = _HEAD.pack(lane, sum(map(len, record)), offset, count, first_version)
    except error as cause:
        raise InvalidRequest(f"a number of the range is negative or too large: {cause}; nothing was encoded") from cause
    return [head, *record]


def parse_ranges(body: Buffer) -> Iterator[Range]:
    """The ranges of an answer, in order. Raises Malformed at the first invalid byte, after the ranges before it."""
    view = plain_view(body)
    at = 0
    while at < len(view):
        found = _parse(view, at)
        yield found
        at += RANGE_HEAD_SIZE_BYTES + len(found.record)


def _parse(view: memoryview, at: int) -> Range:
    if len(view) - at < RANGE_HEAD_SIZE_BYTES:
        raise TooShort("range head", expected=f"{RANGE_HEAD_SIZE_BYTES} bytes", found=len(view) - at, at=at)
    lane, size, offset, count, first_version = _HEAD.unpack_from(view, at)
    if size % 8 or not HEADER_SIZE_BYTES <= size <= _RECORD_SIZE_BYTES_MAX:
        raise CountOverflow("range's record", expected="the length of a record", found=size, at=at + 4)
    start = at + RANGE_HEAD_SIZE_BYTES
    if start + size > len(view):
        raise TooShort("range's record", expected=f"{size} bytes", found=len(view) - start, at=start)
    record = view[start : start + size]
    messages = read_header(record)[_COUNT_FIELD]
    if not count or offset + count > messages:
        raise BadOffsets("range", expected=f"1 to {messages} messages", found=f"{count} from {offset}", at=at + 8)
    return Range(lane, first_version, offset, count, record)
