"""The batch section of a record: messages as columns that can be read in place.

A thousand small messages as a thousand small objects would cost a thousand allocations on every peer and reader. So a
batch has the memory layout of Arrow arrays: all values end to end, and the int32 offsets where each begins. Keys and
header values have the same layout; an absent key is a cleared bit, not an empty string. Nothing is parsed per message.

The section describes itself with a preamble of 32 bytes, because a peer passes it on without the record header. The
length of every column follows from the preamble, so the expanded size of a compressed batch is known before it is
expanded.

`Columns` is the section as values, one buffer for each column. `read_columns` makes it from bytes and `join_section`
makes bytes of it; merging, Arrow and the client's encoder use it.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from avow import limits
from avow.errors import (
    BadChecksum,
    BadOffsets,
    CountOverflow,
    InvalidRequest,
    NotInstalled,
    TooLong,
    TooShort,
    UnknownVersion,
)
from avow.wire.record import HAS_WRITE_ID, HEADER_SIZE_BYTES, NO_WRITE_ID, Buffer, padded, padding

if TYPE_CHECKING:
    from collections.abc import Sequence

# Every part starts on a multiple of 8 bytes, counted from the start of the record.
#
# byte  size  field
#    0     2  sections: bit 0 keys, bit 1 headers, bit 2 times, bit 3 writes
#    2     1  codec of the columns: 0 none, 1 zstd, 2 lz4
#    3     1  reserved, 0
#    4     4  count of messages, as in the record header
#    8     4  writes: how many batches were merged into this one
#   12     4  bytes of all values
#   16     4  bytes of all keys
#   20     4  count of all headers
#   24     4  bytes of all header names
#   28     4  bytes of all header values
#   32        writes  : write ids 16 x writes; then u32 x writes: messages << 1 | has a write id. Never compressed:
#                       peers read it
#             columns : values   int32 offsets x (count + 1), bytes
#                       keys     validity bits (lowest first, 1 = present), int32 offsets x (count + 1), bytes
#                       headers  int32 list offsets x (count + 1); names: int32 offsets x (headers + 1), bytes;
#                                values: int32 offsets x (headers + 1), bytes
#                       times    int64 x count, milliseconds since 1970
#
# Checked in this order: a whole preamble (TooShort), bits and codecs of this version (UnknownVersion), the count equals
# the record's and limits hold (CountOverflow), lengths of absent columns are 0 (BadOffsets), the section is as long as
# its columns (TooShort, TooLong; BadChecksum when a compressed one does not expand), and then, by `check_columns`, the
# contents: writes add up (CountOverflow), offsets begin at 0, never descend and end at their column's length
# (BadOffsets), no message is above its limit (CountOverflow).

KEYS: Final = 1
HEADERS: Final = 2
TIMES: Final = 4
WRITES: Final = 8
_ALL_SECTIONS: Final = 15

CODECS: Final = ("", "zstd", "lz4")

_PREAMBLE: Final = Struct("<HBBIIIIIII")
_HEADER_LENGTHS: Final = Struct("<II4xI")  # of the record header: body length, control length, count
_HEADER_LENGTHS_AT: Final = 16
_NOTHING: Final = memoryview(b"")

if sys.byteorder != "little":
    raise ImportError("avow needs a little-endian machine, because it reads columns in place")


class Columns(NamedTuple):
    """The columns of a batch. Buffers have the lengths given in the preamble; offsets are int32, times int64."""

    sections: int
    messages: int
    value_offsets: Buffer
    values: Buffer
    key_validity: Buffer = _NOTHING
    key_offsets: Buffer = _NOTHING
    keys: Buffer = _NOTHING
    list_offsets: Buffer = _NOTHING
    name_offsets: Buffer = _NOTHING
    names: Buffer = _NOTHING
    header_offsets: Buffer = _NOTHING
    header_values: Buffer = _NOTHING
    times: Buffer = _NOTHING


_NO_COLUMNS: Final = (_NOTHING,) * (len(Columns._fields) - 2)
# For each combination of sections: the fields of Columns that the section has, in this order.
_PLACES: Final = tuple(
    (
        2,
        3,
        *((4, 5, 6) if bits & KEYS else ()),
        *((7, 8, 9, 10, 11) if bits & HEADERS else ()),
        *(12,) * (bits // TIMES),
    )
    for bits in range(WRITES)
)


class Write(NamedTuple):
    """The messages of a batch that one client call wrote: `count` from `first` on (0 is the batch's first)."""

    write_id: bytes
    first: int
    messages: int


class Preamble(NamedTuple):
    """The checked preamble of a section. `column_sizes` are in bytes, in the order of the columns."""

    sections: int
    codec: int
    messages: int
    writes: int
    column_sizes: list[int]
    columns_at: int
    raw_size: int  # of all columns, padded, when they are not compressed


# An entry without a batch reads as a batch of no messages: one preamble, one offset of 0.
EMPTY_SECTION: Final = memoryview(bytes(_PREAMBLE.size + 8))


def read_preamble(section: memoryview, *, count: int) -> Preamble:
    """Read and check the preamble, before any column is read or expanded."""
    if len(section) < _PREAMBLE.size:
        raise TooShort("batch preamble", expected=f"{_PREAMBLE.size} bytes", found=len(section))
    sections, codec, reserved, messages, writes, *lengths = _PREAMBLE.unpack_from(section)
    if sections > _ALL_SECTIONS or codec >= len(CODECS) or reserved:
        found = f"sections {sections:#x}, codec {codec}, reserved {reserved}"
        raise UnknownVersion("batch preamble", expected="bits and codecs of version 1", found=found, at=0)
    if messages != count:
        raise CountOverflow("message count", expected=f"{count}, as in the record header", found=messages, at=4)
    if writes > count or (writes > 0) != (sections & WRITES > 0):
        raise CountOverflow("count of writes", expected=f"<= {count}, and 0 without their bit", found=writes, at=8)
    sizes = _column_sizes(sections, count, lengths)
    raw_size = sum([(size + 7) & ~7 for size in sizes])
    columns_at = _PREAMBLE.size + 16 * writes + padded(4 * writes)
    if raw_size + columns_at > limits.BATCH_SIZE_BYTES_MAX:
        raise CountOverflow("batch", expected=f"<= {limits.BATCH_SIZE_BYTES_MAX} bytes", found=raw_size + columns_at)
    if len(section) < columns_at:
        raise TooShort("write index", expected=f"{columns_at} bytes", found=len(section))
    if not codec:
        _require_size("columns", len(section) - columns_at, raw_size)
    return Preamble(sections, codec, messages, writes, sizes, columns_at, raw_size)


def _column_sizes(sections: int, count: int, lengths: Sequence[int]) -> list[int]:
    """Sizes in bytes of the columns that are present, in their order."""
    value_bytes, key_bytes, header_count, name_bytes, header_bytes = lengths
    offsets = 4 * (count + 1)
    sizes = [offsets, value_bytes]
    if sections & KEYS:
        sizes += ((count + 7) >> 3, offsets, key_bytes)
    elif key_bytes:
        raise BadOffsets("key bytes", expected="0 without a key column", found=key_bytes, at=16)
    if sections & HEADERS:
        header_offsets = 4 * (header_count + 1)
        sizes += (offsets, header_offsets, name_bytes, header_offsets, header_bytes)
    elif header_count or name_bytes or header_bytes:
        raise BadOffsets("header bytes", expected="0 without a header column", found=lengths[2:], at=20)
    if sections & TIMES:
        sizes.append(8 * count)
    return sizes


def _require_size(what: str, found: int, size: int) -> None:
    if found < size:
        raise TooShort(what, expected=f"{size} bytes", found=found)
    if found > size:
        raise TooLong(what, expected=f"{size} bytes", found=found)


def read_columns(section: memoryview, preamble: Preamble) -> Columns:
    """The columns as views; only a compressed batch is copied, by expanding it. Their contents are not checked."""
    sections, codec, messages, _, sizes, columns_at, raw_size = preamble
    columns = section[columns_at:]
    if codec:
        columns = _expand(columns, codec=codec, raw_size=raw_size)
        _require_size("expanded columns", len(columns), raw_size)
    found: list[object] = [sections, messages, *_NO_COLUMNS]
    at = 0
    for place, size in zip(_PLACES[sections & ~WRITES], sizes, strict=True):
        found[place] = columns[at : at + size]
        at += (size + 7) & ~7
    return Columns._make(found)


def plain_value_span(record: Buffer) -> tuple[int, int, int, int] | None:
    """(count, start of the value offsets, start of the values, their bytes) in a checked record.

    The fast path for an uncompressed batch with values only. For any other batch this returns None; use `read_preamble`
    and `read_columns`.
    """
    if len(record) < HEADER_SIZE_BYTES:
        return None
    body, control, count = _HEADER_LENGTHS.unpack_from(record, _HEADER_LENGTHS_AT)
    section_at = HEADER_SIZE_BYTES + ((control + 7) & ~7)
    if section_at + _PREAMBLE.size > len(record):
        return None
    sections, codec, _, messages, writes, value_bytes, *_ = _PREAMBLE.unpack_from(record, section_at)
    offsets_at = section_at + _PREAMBLE.size + 16 * writes + ((4 * writes + 7) & ~7)
    values_at = offsets_at + ((4 * count + 11) & ~7)
    end = values_at + ((value_bytes + 7) & ~7)
    if sections & ~WRITES or codec or messages != count or end != HEADER_SIZE_BYTES + body or end != len(record):
        return None
    return count, offsets_at, values_at, value_bytes


def read_writes(section: memoryview, preamble: Preamble) -> tuple[Write, ...]:
    """The index of a merged batch; empty for a batch of one write."""
    writes = preamble.writes
    index = section[_PREAMBLE.size : preamble.columns_at]
    found, first = [], 0
    for number, word in enumerate(index[16 * writes : 20 * writes].cast("I")):
        write_id = bytes(index[16 * number : 16 * number + 16]) if word & HAS_WRITE_ID else b""
        found.append(Write(write_id, first, word >> 1))
        first += word >> 1
    return tuple(found)


def join_section(columns: Columns, *, writes: Sequence[Write] = (), compression: str | None = None) -> list[Buffer]:
    """The bytes of a section, in pieces.

    `writes` is the index of a merged batch, in the order of its messages. Their `first` is ignored: it follows from the
    counts of the writes before.
    """
    codec = _codec_number(compression)
    sections = columns.sections & ~WRITES | (WRITES if writes else 0)
    lengths = (columns.values, columns.keys, columns.names, columns.header_values)
    value_bytes, key_bytes, name_bytes, header_bytes = map(len, lengths)
    header_count = len(columns.name_offsets) // 4 - 1 if sections & HEADERS else 0
    numbers = (columns.messages, len(writes), value_bytes, key_bytes, header_count, name_bytes, header_bytes)
    parts = [part for piece in columns[2:] if piece for part in (piece, padding(len(piece)))]
    if compression:
        parts = [_compress(b"".join(parts), compression)]
    return [_PREAMBLE.pack(sections, codec, 0, *numbers), _write_index(writes), *parts]


def _write_index(writes: Sequence[Write]) -> bytes:
    ids = b"".join(write.write_id or NO_WRITE_ID for write in writes)
    words = [write.messages << 1 | (HAS_WRITE_ID if write.write_id else 0) for write in writes]
    return ids + Struct(f"<{len(words)}I").pack(*words) + padding(4 * len(words))


def check_writes(writes: Sequence[Write], *, count: int) -> None:
    covered = sum(write.messages for write in writes)
    if writes and (covered != count or not all(write.messages for write in writes)):
        raise CountOverflow("messages of all writes", expected=f"{count}, none without any", found=covered, at=32)


def check_columns(columns: Columns) -> None:
    """Check the contents once; later readers rely on it."""
    sections = columns.sections
    _check_offsets("value offsets", columns.value_offsets, len(columns.values))
    if sections & KEYS:
        _check_offsets("key offsets", columns.key_offsets, len(columns.keys))
    if sections & HEADERS:
        _check_offsets("header lists", columns.list_offsets, len(columns.name_offsets) // 4 - 1)
        _check_offsets("header names", columns.name_offsets, len(columns.names))
        _check_offsets("header values", columns.header_offsets, len(columns.header_values))


def _check_offsets(what: str, offsets: Buffer, end: int) -> None:
    numbers = memoryview(offsets).cast("i").tolist()
    if numbers[0] != 0 or numbers[-1] != end:
        raise BadOffsets(what, expected=f"from 0 to {end}", found=f"from {numbers[0]} to {numbers[-1]}")
    # Sorting a sorted list is one pass in C and shares the elements: the fastest test without a native library.
    if numbers != sorted(numbers):
        number = next(i for i, (low, high) in enumerate(pairwise(numbers)) if low > high)
        raise BadOffsets(what, expected="never descending", found=f"{numbers[number : number + 2]} at {number}")
    if end > limits.MESSAGE_SIZE_BYTES_MAX:
        largest = max(high - low for low, high in pairwise(numbers))
        if largest > limits.MESSAGE_SIZE_BYTES_MAX:
            raise CountOverflow(what, expected=f"<= {limits.MESSAGE_SIZE_BYTES_MAX} bytes each", found=largest)


# ---------------------------------------------------------------- compression


def _codec_number(compression: str | None) -> int:
    if compression is None:
        return 0
    if compression not in CODECS[1:]:
        raise InvalidRequest(
            f"compression is one of {', '.join(CODECS[1:])} or None, not {compression!r}; nothing was encoded"
        )
    return CODECS.index(compression)


def _compress(columns: bytes, compression: str) -> bytes:
    try:
        import pyarrow as pa
    except ImportError as cause:
        raise NotInstalled(f"{compression} compression", extra="arrow") from cause
    compressed: bytes = pa.Codec(compression).compress(columns, asbytes=True)
    return compressed


def _expand(columns: memoryview, *, codec: int, raw_size: int) -> memoryview:
    """Expands at most one byte beyond the declared size, which the caller has compared with the limit.

    It uses a stream, because the one-shot call returns uninitialised memory if an lz4 frame is shorter than declared.
    """
    try:
        import pyarrow as pa
    except ImportError as cause:
        raise NotInstalled(f"reading a {CODECS[codec]} batch", extra="arrow") from cause
    try:
        with pa.CompressedInputStream(pa.BufferReader(columns), CODECS[codec]) as stream:
            return memoryview(stream.read(raw_size + 1))
    except OSError as cause:
        raise BadChecksum("compressed columns", expected=f"a whole {CODECS[codec]} frame", found=cause) from cause
