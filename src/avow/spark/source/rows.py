"""Arrow record batches with the columns of Spark's Kafka source, which refer to the received bytes.

    key            binary, null if there is none            topic          string: the queue
    value          binary                                   partition      int: the lane
    offset         bigint: the version                      timestamp      the message's time, or its batch's
    timestampType  int: 0, the time was set by the writer   headers        array<struct<key: string, value: binary>>,
                                                                           null if a message has none

Values and keys are not copied. Columns with the same value in every row (queue, lane, timestampType) are created once,
as long as the longest record batch, and sliced. Spark has a fixed cost per record batch, so small batches are joined
until they have `JOIN_ROWS` rows; copying them is cheaper. A large batch is passed on as it is.

The schema is Spark's translation of the columns that the reader requested, in any order. Other columns are not created.
Spark checks types, order and nullability against the schema.
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
    from avow.client.reader import ReadBatch

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
    """Check that a schema has only columns of this source, each once and of its type. Raises InvalidRequest."""
    for field in schema:
        wanted = TYPES.get(field.name)
        if wanted is None:
            raise InvalidRequest(
                f"the source avow has no column {field.name!r}; nothing was read. Its columns are {', '.join(TYPES)}"
            )
        if not field.type.equals(wanted) and not _same_headers(field.type, wanted):
            raise InvalidRequest(
                f"column {field.name!r} of the source avow is {wanted}, not {field.type}; nothing was read. Cast it "
                "after reading"
            )
        if field.name in ("key", HEADERS) and not field.nullable:
            raise InvalidRequest(
                f"column {field.name!r} of the source avow may be null; nothing was read. Declare it as nullable"
            )
    if len(set(schema.names)) < len(schema.names) or not schema.names:
        raise InvalidRequest(
            f"a schema must have at least one column, and none twice, not {schema.names}; nothing was read"
        )


def _same_headers(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether both are lists whose items have the same names and types. Nullability of the items may differ."""
    if not (pa.types.is_list(found) and pa.types.is_list(wanted) and pa.types.is_struct(found.value_type)):
        return False
    return [(f.name, f.type) for f in found.value_type] == [(f.name, f.type) for f in wanted.value_type]


class LaneRows:
    """Creates the record batches of one lane."""

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
    """Groups batches up to about `JOIN_ROWS` rows. A large batch stays alone, since joining would copy it."""
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
    """Null instead of an empty list, as in Kafka's source."""
    place = one.schema.get_field_index(HEADERS)
    if place < 0:
        return pa.nulls(one.num_rows, wanted)
    lists = one.column(place)
    offsets = np.array(lists.offsets)  # a copy, since Arrow does not accept a null mask with a slice
    first, end = int(offsets[0]), int(offsets[-1])
    names, values = lists.values.slice(first, end - first).flatten()
    pairs = pa.StructArray.from_arrays([_text(names), values], fields=list(wanted.value_type))
    empty = pa.array(offsets[1:] == offsets[:-1])
    return pa.ListArray.from_arrays(pa.array(offsets - first), pairs, type=wanted, mask=empty)


def _text(names: pa.Array) -> pa.Array:
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:  # header names need not be UTF-8; invalid bytes are replaced
        return pa.array([bytes(name).decode("utf-8", "replace") for name in names.to_pylist()], pa.string())


def cut_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Select and cast the columns of a schema from rows that already have them (those of an archive)."""
    arrays = [_cast(batch.column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    return column if column.type.equals(wanted) else pc.cast(column, wanted)
