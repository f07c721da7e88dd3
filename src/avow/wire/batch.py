"""Batches: encoded once by a client, checked once where they enter a peer, and read in place afterwards.

    encode_batch(values, ...)   a client encodes its messages as a record with a write id
    check(record)               the peer that receives it verifies everything, once. After that the record is trusted
                                and only its checksums are verified again
    Batch(record)               a view of a checked record: header fields, and messages as slices of its memory
    merge(records)              a peer under load makes one record of small batches that wait for the same sync

A record costs about the same with one message as with a thousand, so merging makes small batches cheap. Each write
keeps its id and its range of messages in the merged record's index.

The layout of the header is in `record`, that of the columns in `columns`; the encoder is in `encode`. Nothing here
copies a value out of a record: a `Batch` and its slices keep the record's memory alive, and that memory must not be
written again (except by `patch_header`, which changes no message).
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from avow import limits
from avow.errors import InvalidRequest, TooLarge
from avow.wire.columns import (
    CODECS,
    EMPTY_SECTION,
    HEADERS,
    KEYS,
    TIMES,
    WRITES,
    Columns,
    Write,
    check_columns,
    check_writes,
    read_columns,
    read_preamble,
    read_writes,
)
from avow.wire.encode import encode_batch, record_of
from avow.wire.merge import concatenated, merge_sections, mergeable_shape, merged_writes
from avow.wire.messages import Entry, Kind
from avow.wire.record import (
    HAS_WRITE_ID,
    HEADER_SIZE_BYTES,
    Buffer,
    entry_parts,
    pack_entry,
    padded,
    patch_header,
    plain_view,
    read_record,
    record_size,
    unpack_entry,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "HEADER_SIZE_BYTES",
    "Batch",
    "Write",
    "check",
    "check_mergeable",
    "encode_batch",
    "entry_parts",
    "entry_writes",
    "merge",
    "merge_sections",
    "mergeable_shape",
    "merged_writes",
    "pack_entry",
    "patch_header",
    "record_of",
    "record_size",
    "unpack_entry",
]

# -------------------------------------------------------------------- reading


class Batch:
    """A view of one checked record. Creating it reads only the header and the preamble.

    Messages are numbered from 0 to count - 1; the version of message i is `first_version + i`.
    """

    __slots__ = ("_columns", "_fields", "_preamble", "_record", "_section")

    def __init__(self, record: Buffer) -> None:
        view = plain_view(record)
        fields = read_record(view, verify=False)
        section = view[HEADER_SIZE_BYTES + padded(fields[7]) : HEADER_SIZE_BYTES + fields[6]]
        self._record, self._fields = view, fields
        self._section = section if len(section) else EMPTY_SECTION
        self._preamble = read_preamble(self._section, count=fields[9])
        self._columns: Columns | None = None

    @property
    def columns(self) -> Columns:
        """Made on first use: a compressed batch is expanded once, or not at all if only its header is read."""
        if self._columns is None:
            self._columns = read_columns(self._section, self._preamble)
        return self._columns

    @property
    def kind(self) -> int:
        return self._fields[3]

    @property
    def count(self) -> int:
        return self._fields[9]

    @property
    def ballot(self) -> int:
        return self._fields[10]

    @property
    def position(self) -> int:
        return self._fields[11]

    @property
    def first_version(self) -> int:
        return self._fields[12]

    @property
    def created_ms(self) -> int:
        return self._fields[13]

    @property
    def write_id(self) -> bytes:
        return self._fields[14] if self._fields[4] & HAS_WRITE_ID else b""

    @property
    def control(self) -> bytes:
        return bytes(self._record[HEADER_SIZE_BYTES : HEADER_SIZE_BYTES + self._fields[7]])

    @property
    def compression(self) -> str | None:
        return CODECS[self._preamble.codec] or None

    @property
    def shape(self) -> int:
        """Which columns it has, as bits."""
        return self._preamble.sections & ~WRITES

    @property
    def mergeable(self) -> bool:
        """Whether it can be merged with others of the same shape."""
        return self.kind == Kind.DATA and self.count > 0 and not self._fields[7] and not self._preamble.codec

    def check_contents(self) -> None:
        """The part of `check` that comes after the checksums."""
        check_writes(read_writes(self._section, self._preamble), count=self.count)
        check_columns(self.columns)

    def writes(self) -> list[Write]:
        """The writes of the batch and their messages: one write, unless the batch was merged."""
        return list(read_writes(self._section, self._preamble)) or [Write(self.write_id, 0, self.count)]

    def value(self, number: int) -> memoryview:
        return _item(self.columns.value_offsets, self.columns.values, self._inside(number))

    def values(self) -> list[memoryview]:
        return _items(self.columns.value_offsets, self.columns.values)

    def key(self, number: int) -> memoryview | None:
        """The key; None if this message, or the whole batch, has none."""
        columns, number = self.columns, self._inside(number)
        if not columns.sections & KEYS or not columns.key_validity[number >> 3] >> (number & 7) & 1:
            return None
        return _item(columns.key_offsets, columns.keys, number)

    def keys(self) -> list[memoryview | None]:
        return [self.key(number) for number in range(self.count)]

    def headers(self, number: int) -> list[tuple[str, memoryview]]:
        columns, number = self.columns, self._inside(number)
        if not columns.sections & HEADERS:
            return []
        first, end = memoryview(columns.list_offsets).cast("i")[number : number + 2]
        names = (_item(columns.name_offsets, columns.names, header) for header in range(first, end))
        values = (_item(columns.header_offsets, columns.header_values, header) for header in range(first, end))
        return [(str(name, "utf-8", "surrogateescape"), value) for name, value in zip(names, values, strict=True)]

    def times(self) -> memoryview | None:
        """Milliseconds since 1970 as int64; None if the batch has only `created_ms`."""
        return memoryview(self.columns.times).cast("q") if self.columns.sections & TIMES else None

    def _inside(self, number: int) -> int:
        if not 0 <= number < self.count:
            raise IndexError(f"message {number} is outside this batch of {self.count} messages")
        return number


def _item(offsets: Buffer, joined: Buffer, number: int) -> memoryview:
    start, end = memoryview(offsets).cast("i")[number : number + 2]
    return memoryview(joined)[start:end]


def _items(offsets: Buffer, joined: Buffer) -> list[memoryview]:
    view = memoryview(joined)
    return [view[start:end] for start, end in pairwise(memoryview(offsets).cast("i").tolist())]


def check(record: Buffer) -> Batch:
    """Verify a whole record: both checksums, lengths, limits, offsets, write index. Raises Malformed.

    Called once, where a record enters a peer. Afterwards it is stored, sent, merged and read without further checks.
    """
    view = plain_view(record)
    read_record(view)
    batch = Batch(view)
    batch.check_contents()
    return batch


def check_mergeable(entry: Entry) -> None:
    """Verify what merging relies on, in an entry of another peer. Raises Malformed."""
    section = plain_view(entry.batch) if entry.batch else EMPTY_SECTION
    preamble = read_preamble(section, count=entry.count)
    if not preamble.codec:  # a compressed batch is never merged
        check_writes(read_writes(section, preamble), count=entry.count)
        check_columns(read_columns(section, preamble))


def entry_writes(entry: Entry) -> list[Write]:
    """The writes in an entry, merged or not. The entry's batch must be an encoded section."""
    if not entry.batch or entry.write_id:
        return [Write(entry.write_id, 0, entry.count)]
    section = plain_view(entry.batch)
    writes = read_writes(section, read_preamble(section, count=entry.count))
    return list(writes) or [Write(b"", 0, entry.count)]


# -------------------------------------------------------------------- merging


def merge(records: Sequence[Buffer]) -> bytearray:
    """One DATA record of several checked ones, with their messages in the given order.

    All must be `Batch.mergeable` and have the same `Batch.shape`. The result has no write id of its own. Its creation
    time is the latest of theirs, so that retention by age deletes nothing too early.
    """
    batches = [Batch(record) for record in records]
    if not batches or not all(batch.mergeable for batch in batches):
        raise InvalidRequest("only uncompressed data batches with messages can be merged; nothing was merged")
    if len({batch.shape for batch in batches}) > 1:
        raise InvalidRequest("only batches with the same columns can be merged; nothing was merged")
    count = sum(batch.count for batch in batches)
    if count > limits.BATCH_COUNT_MAX:
        raise TooLarge(
            f"a batch has at most {limits.BATCH_COUNT_MAX} messages, not {count}; nothing was merged. Merge fewer"
        )
    writes = [write for batch in batches for write in batch.writes()]
    columns = concatenated([batch.columns for batch in batches], count)
    return record_of(columns, writes=writes, created_ms=max(batch.created_ms for batch in batches))
