"""Batches as Arrow record batches with Kafka's columns, over the bytes that were received.

    key            binary, null without one                 topic          string: the queue
    value          binary                                   partition      int: the lane
    offset         bigint: the version                      timestamp      the message's time, or its batch's
    timestampType  int: 0, the time was set by who wrote    headers        array<struct<key: string, value: binary>>,
                                                                           null where a message has none

Values and keys are pointed at, not copied. What is the same in every row (queue, lane, timestampType) is made once, as
long as the longest record batch, and sliced. Spark pays for each record batch it is given, so small batches are joined
until they have `JOIN_ROWS`; that copies them, which is cheaper. A batch that is large enough goes out as it is.

The schema is Spark's own translation of what the reader asked for, which may be some of the columns in any order: a
column that is not asked for is not made. Spark checks types, order and nullability against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from avow.errors import InvalidRequest

if TYPE_CHECKING:
    from avow.client.reading import ReadBatch

COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS: Final = "headers"
JOIN_ROWS: Final = 16_384
JOIN_SIZE_BYTES: Final = 32 * 1024 * 1024

_TIME: Final = pa.timestamp("us", tz="UTC")
_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
TYPES: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": _TIME,
    "timestampType": pa.int32(),
    HEADERS: pa.list_(pa.field("element", _HEADER)),
}


def check_schema(schema: pa.Schema) -> None:
    """What a reader may ask for: columns of this source, each once, of its type. Raises InvalidRequest."""
    for field in schema:
        wanted = TYPES.get(field.name)
        if wanted is None:
            raise InvalidRequest(
                f"the source avow has no column {field.name!r}; nothing was read. It has {', '.join(TYPES)}"
            )
        if not field.type.equals(wanted) and not _same_headers(field.type, wanted):
            raise InvalidRequest(
                f"column {field.name!r} of the source avow is {wanted}, not {field.type}; nothing was read. Cast it "
                "after reading"
            )
        if field.name in ("key", HEADERS) and not field.nullable:
            raise InvalidRequest(f"column {field.name!r} of the source avow has nulls; nothing was read")
    if len(set(schema.names)) < len(schema.names) or not schema.names:
        raise InvalidRequest(f"a schema names each column once, and at least one, not {schema.names}; nothing was read")


def _same_headers(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Lists whose items have the same names and types; whether items may be null is the reader's choice."""
    if not (pa.types.is_list(found) and pa.types.is_list(wanted) and pa.types.is_struct(found.value_type)):
        return False
    return [(f.name, f.type) for f in found.value_type] == [(f.name, f.type) for f in wanted.value_type]


class LaneRows:
    """Makes record batches of one lane."""

    def __init__(self, schema: pa.Schema, *, queue: str, lane: int) -> None:
        self._schema, self._queue, self._lane = schema, queue, lane
        columns: dict[str, Callable[[Sequence[ReadBatch], Sequence[pa.RecordBatch], int], pa.Array]] = {
            "key": lambda _, found, __: _joined([one.column("key") for one in found]),
            "value": lambda _, found, __: _joined([one.column("value") for one in found]),
            "topic": lambda _, __, rows: self._topics[:rows],
            "partition": lambda _, __, rows: self._lanes[:rows],
            "offset": lambda batches, _, rows: _versions(batches, rows),
            "timestamp": _times,
            "timestampType": lambda _, __, rows: self._zeros[:rows],
            HEADERS: self._headers,
        }
        self._makers = [columns[name] for name in schema.names]
        self._longest = 0

    def record_batches(self, page: Sequence[ReadBatch]) -> Iterator[pa.RecordBatch]:
        """All of a page, small batches joined. Batches of a page follow one another."""
        for batches in joined(page):
            yield self.record_batch(batches)

    def record_batch(self, batches: Sequence[ReadBatch]) -> pa.RecordBatch:
        rows = sum(batch.count for batch in batches)
        self._reserve(rows)
        found = [batch.to_arrow() for batch in batches]
        return pa.RecordBatch.from_arrays([make(batches, found, rows) for make in self._makers], schema=self._schema)

    def _reserve(self, rows: int) -> None:
        if rows > self._longest:
            self._longest = max(rows, JOIN_ROWS)
            for name in ("_topics", "_lanes", "_zeros"):
                self.__dict__.pop(name, None)

    @cached_property
    def _topics(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._queue, pa.string()), self._longest)

    @cached_property
    def _lanes(self) -> pa.Array:
        return pa.array(np.full(self._longest, self._lane, np.int32))

    @cached_property
    def _zeros(self) -> pa.Array:
        return pa.array(np.zeros(self._longest, np.int32))

    def _headers(self, _: Sequence[ReadBatch], found: Sequence[pa.RecordBatch], __: int) -> pa.Array:
        wanted = self._schema.field(HEADERS).type
        return _joined([_header_lists(one, wanted) for one in found])


def joined(page: Sequence[ReadBatch]) -> Iterator[list[ReadBatch]]:
    """Batches in groups of about `JOIN_ROWS`. A large one goes alone: to join it would be to copy it."""
    group: list[ReadBatch] = []
    rows = size = 0
    for batch in page:
        large = batch.count >= JOIN_ROWS // 2
        if group and (large or rows + batch.count > JOIN_ROWS or size + batch.size_bytes > JOIN_SIZE_BYTES):
            yield group
            group, rows, size = [], 0, 0
        group.append(batch)
        rows, size = rows + batch.count, size + batch.size_bytes
    if group:
        yield group


# ------------------------------------------------------------------ columns


def _joined(arrays: Sequence[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _versions(batches: Sequence[ReadBatch], rows: int) -> pa.Array:
    first = batches[0].first_version
    return pa.array(np.arange(first, first + rows, dtype=np.int64))


def _times(batches: Sequence[ReadBatch], found: Sequence[pa.RecordBatch], rows: int) -> pa.Array:
    micros = np.empty(rows, np.int64)
    at = 0
    for batch, one in zip(batches, found, strict=True):
        own = one.schema.get_field_index("time")
        if own < 0:
            micros[at : at + batch.count] = batch.created_ms * 1_000
        else:
            millis = one.column(own).cast(pa.int64()).to_numpy(zero_copy_only=False)
            np.multiply(millis, 1_000, out=micros[at : at + batch.count])
        at += batch.count
    return pa.Array.from_buffers(_TIME, rows, [None, pa.py_buffer(micros)], 0)


def _header_lists(one: pa.RecordBatch, wanted: pa.DataType) -> pa.Array:
    """Null instead of an empty list, as Kafka's source has it."""
    place = one.schema.get_field_index(HEADERS)
    if place < 0:
        return pa.nulls(one.num_rows, wanted)
    lists = one.column(place)
    offsets = np.array(lists.offsets)  # a copy: Arrow takes no null bits beside a slice
    first, end = int(offsets[0]), int(offsets[-1])
    names, values = lists.values.slice(first, end - first).flatten()
    pairs = pa.StructArray.from_arrays([_text(names), values], fields=list(wanted.value_type))
    empty = pa.array(offsets[1:] == offsets[:-1])
    return pa.ListArray.from_arrays(pa.array(offsets - first), pairs, type=wanted, mask=empty)


def _text(names: pa.Array) -> pa.Array:
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:  # nobody promised UTF-8; what is not is shown as such
        return pa.array([bytes(name).decode("utf-8", "replace") for name in names.to_pylist()], pa.string())


def cut_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows that already have these columns (an archive's), to a schema."""
    arrays = [_cast(batch.column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    return column if column.type.equals(wanted) else pc.cast(column, wanted)
