"""Merging small batches of several writes into one batch section, with an index of the writes.

A record costs about the same with one message as with a thousand: a header, a checksum, an entry of the log, a part of
a frame to every follower. Under load, when many writes of one message wait for the same sync, that is most of their
cost. So their columns are concatenated, and an index in front has the id and message count of each write. Readers see
one batch; each write id can still be found.

Most sections have only values, often of one message; for these there is a fast path without an object per column. All
others go through `Columns`. Both paths take sections that were checked when they entered a peer; `mergeable_shape`
reads the preamble and excludes sections that do not match it.
"""

from __future__ import annotations

from array import array
from itertools import accumulate
from struct import Struct, iter_unpack
from typing import TYPE_CHECKING, Final

from avow.errors import Malformed
from avow.wire.columns import KEYS, WRITES, Columns, Write, join_section, read_columns, read_preamble
from avow.wire.messages import Entry, Kind
from avow.wire.record import HAS_WRITE_ID, NO_WRITE_ID, Buffer, padded, padding, plain_view

if TYPE_CHECKING:
    from collections.abc import Sequence

_PREAMBLE: Final = Struct("<HBBIIIIIII")  # see `columns`
_COLUMNS_AT: Final = _PREAMBLE.size  # offset of the columns in a section without an index
_VALUE_BYTES_AT: Final = 12
_u32_at: Final = Struct("<I").unpack_from
_ONE_VALUE_AT: Final = _COLUMNS_AT + 8  # after the two offsets of a single value
_NOT: Final = -1


def mergeable_shape(section: Buffer, *, count: int) -> int:
    """Its columns as bits, if it can be merged with others of that shape; -1: it cannot be merged.

    It cannot if it is compressed, was merged before, has no message, or is not a section of `count` messages.
    """
    if len(section) < _ONE_VALUE_AT or not count:
        return _NOT
    shape, codec, reserved, messages, writes, values, keys, headers, names, texts = _PREAMBLE.unpack_from(section)
    if shape >= WRITES or codec or reserved or writes or messages != count:
        return _NOT
    if shape:
        return shape if _reads(section, count) else _NOT
    size = _COLUMNS_AT + padded(4 * count + 4) + padded(values)
    return 0 if size == len(section) and not (keys or headers or names or texts) else _NOT


def _reads(section: Buffer, count: int) -> bool:
    try:
        read_preamble(plain_view(section), count=count)
    except Malformed:
        return False
    return True


def merge_sections(parts: Sequence[tuple[bytes, int, Buffer]]) -> bytes:
    """One section made of several (write id, count of messages, section), in this order.

    All have the same `mergeable_shape`. A write without an id is in the index too.
    """
    if parts[0][2][0]:
        return _merge_columns(parts)
    offsets, values, end = [0], [], 0
    for _, count, section in parts:
        if count == 1:
            size = _u32_at(section, _VALUE_BYTES_AT)[0]
            values.append(section[_ONE_VALUE_AT : _ONE_VALUE_AT + size])
            end += size
            offsets.append(end)
        else:
            values_at = _COLUMNS_AT + padded(4 * count + 4)
            own = memoryview(section)[_COLUMNS_AT : _COLUMNS_AT + 4 * count + 4].cast("i").tolist()
            values.append(section[values_at : values_at + own[-1]])
            offsets += [end + offset for offset in own[1:]]
            end += own[-1]
    column = array("i", offsets).tobytes()
    preamble = _PREAMBLE.pack(WRITES, 0, 0, len(offsets) - 1, len(parts), end, 0, 0, 0, 0)
    return b"".join((preamble, *_index(parts), column, padding(len(column)), *values, padding(end)))


def _index(parts: Sequence[tuple[bytes, int, Buffer]]) -> tuple[bytes, bytes, bytes]:
    ids = b"".join([write_id or NO_WRITE_ID for write_id, _, _ in parts])
    words = array("I", [count << 1 | (HAS_WRITE_ID if write_id else 0) for write_id, count, _ in parts])
    return ids, words.tobytes(), padding(4 * len(parts))


def _merge_columns(parts: Sequence[tuple[bytes, int, Buffer]]) -> bytes:
    columns, writes, first = [], [], 0
    for write_id, count, section in parts:
        view = plain_view(section)
        columns.append(read_columns(view, read_preamble(view, count=count)))
        writes.append(Write(write_id, first, count))
        first += count
    return b"".join(join_section(concatenated(columns, first), writes=writes))


def merged_writes(entry: Entry) -> list[tuple[bytes, int, int]]:
    """(write id, number of its first message, count) of each write of a merged batch; empty for any other entry.

    If the index cannot be read, every peer treats the entry as a batch of one write.
    """
    if entry.kind != Kind.DATA or entry.write_id or len(entry.batch) < _ONE_VALUE_AT:
        return []
    section = entry.batch
    writes = _u32_at(section, 8)[0]
    ids_end = _COLUMNS_AT + 16 * writes
    if section[0] & WRITES == 0 or not writes or ids_end + 4 * writes > len(section):
        return []
    words = memoryview(section)[ids_end : ids_end + 4 * writes].cast("I").tolist()
    counts = [word >> 1 for word in words]
    ids = [write_id for (write_id,) in iter_unpack("16s", section[_COLUMNS_AT:ids_end])]
    if not all(word & HAS_WRITE_ID for word in words):
        ids = [write_id if word & HAS_WRITE_ID else b"" for write_id, word in zip(ids, words, strict=True)]
    return list(zip(ids, accumulate(counts, initial=0), counts, strict=False))


def concatenated(parts: Sequence[Columns], count: int) -> Columns:
    """The concatenation of columns; all parts have the same ones."""
    validity, bit = 0, 0
    for part in parts:
        validity |= int.from_bytes(part.key_validity, "little") << bit
        bit += part.messages
    sections = parts[0].sections & ~WRITES
    return Columns(
        sections=sections,
        messages=count,
        value_offsets=_chained([part.value_offsets for part in parts]),
        values=b"".join([part.values for part in parts]),
        key_validity=validity.to_bytes((count + 7) >> 3, "little") if sections & KEYS else b"",
        key_offsets=_chained([part.key_offsets for part in parts]),
        keys=b"".join([part.keys for part in parts]),
        list_offsets=_chained([part.list_offsets for part in parts]),
        name_offsets=_chained([part.name_offsets for part in parts]),
        names=b"".join([part.names for part in parts]),
        header_offsets=_chained([part.header_offsets for part in parts]),
        header_values=b"".join([part.header_values for part in parts]),
        times=b"".join([part.times for part in parts]),
    )


def _chained(columns: Sequence[Buffer]) -> bytes:
    """The offsets of concatenated columns. The last offset of each is the length of the bytes it points into."""
    if not columns[0]:
        return b""
    offsets = array("i", [0])
    for column in columns:
        base = offsets[-1]
        offsets.extend([base + offset for offset in memoryview(column).cast("i")[1:]])
    return offsets.tobytes()
