"""Conversion between records and Arrow arrays.

A batch has Arrow's memory layout (see `columns`), so a RecordBatch over a record is only a few pointers: `to_arrow`
costs the same for a hundred messages as for ten thousand. The arrays keep the record's memory alive; that memory must
not be written again. Only a compressed batch is expanded into memory of its own.

    value    binary, never null
    key      binary, null where a message has no key
    headers  list<struct<key: binary, value: binary>>    only when the batch has a header column
    time     timestamp[ms, UTC]                          only when the batch has a time column

Header names are binary, not string, because they were not checked to be UTF-8 and Arrow does not check string columns.
Versions are not a column: they are `first_version + row`; `versions` makes an array of them.

pyarrow is optional. Without it this module can be imported, and every call raises NotInstalled; `batch.Batch` has the
same messages as memoryviews.
"""

from __future__ import annotations

from array import array
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from avow import limits
from avow.errors import InvalidRequest, NotInstalled, TooLarge
from avow.wire.batch import Batch, record_of
from avow.wire.columns import HEADERS, KEYS, TIMES, Columns, plain_value_span
from avow.wire.messages import Kind
from avow.wire.record import Buffer

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError:
    pa = pc = None
else:
    _BINARY: Final = pa.binary()
    _HEADER: Final = pa.struct([pa.field("key", _BINARY, nullable=False), pa.field("value", _BINARY, nullable=False)])
    _HEADER_LIST: Final = pa.list_(_HEADER)
    _TIME: Final = pa.timestamp("ms", tz="UTC")
    # A key column of nulls over memory shared by all batches: zero validity bits, zero offsets, no bytes.
    _ZEROS: Final = pa.py_buffer(bytes(4 * (limits.BATCH_COUNT_MAX + 1)))
    _FIELDS: Final = (pa.field("value", _BINARY, nullable=False), pa.field("key", _BINARY))

if TYPE_CHECKING:
    from collections.abc import Sequence

_KNOWN_COLUMNS: Final = frozenset({"value", "key", "headers", "time"})


# -------------------------------------------------------------------- reading


def to_arrow(record: Buffer) -> pa.RecordBatch:
    """A checked record as columns over its own memory."""
    _require_pyarrow()
    span = plain_value_span(record)
    if span is not None:
        values, keys = _plain_values(record, span), _null_keys(span[0])
        return pa.RecordBatch.from_arrays([values, keys], schema=_schema(0))
    return _columns_to_arrow(Batch(record).columns)


def value_array(record: Buffer) -> pa.BinaryArray:
    """The value column alone."""
    _require_pyarrow()
    span = plain_value_span(record)
    if span is not None:
        return _plain_values(record, span)
    columns = Batch(record).columns
    return _binaries(columns.messages, columns.value_offsets, columns.values)


def versions(record: Buffer) -> pa.Int64Array:
    """The version of each message, for a record whose header has its first version."""
    _require_pyarrow()
    batch = Batch(record)
    return pc.add(_row_numbers()[: batch.count], batch.first_version)


def _plain_values(record: Buffer, span: tuple[int, int, int, int]) -> pa.BinaryArray:
    count, offsets_at, values_at, value_bytes = span
    memory = pa.py_buffer(record)
    buffers = [None, memory.slice(offsets_at, 4 * (count + 1)), memory.slice(values_at, value_bytes)]
    return pa.Array.from_buffers(_BINARY, count, buffers, 0)


def _null_keys(count: int) -> pa.BinaryArray:
    return pa.Array.from_buffers(_BINARY, count, [_ZEROS, _ZEROS, _ZEROS], count)


def _binaries(count: int, offsets: Buffer, joined: Buffer, validity: Buffer | None = None) -> pa.BinaryArray:
    present = None if validity is None else pa.py_buffer(validity)
    buffers = [present, pa.py_buffer(offsets), pa.py_buffer(joined)]
    return pa.Array.from_buffers(_BINARY, count, buffers, 0 if validity is None else -1)


def _columns_to_arrow(columns: Columns) -> pa.RecordBatch:
    count, sections = columns.messages, columns.sections
    arrays = [_binaries(count, columns.value_offsets, columns.values), _null_keys(count)]
    if sections & KEYS:
        arrays[1] = _binaries(count, columns.key_offsets, columns.keys, columns.key_validity)
    if sections & HEADERS:
        arrays.append(_headers(columns))
    if sections & TIMES:
        arrays.append(pa.Array.from_buffers(_TIME, count, [None, pa.py_buffer(columns.times)], 0))
    return pa.RecordBatch.from_arrays(arrays, schema=_schema(sections & (HEADERS | TIMES)))


@cache
def _schema(sections: int) -> pa.Schema:
    fields = list(_FIELDS)
    if sections & HEADERS:
        fields.append(pa.field("headers", _HEADER_LIST, nullable=False))
    if sections & TIMES:
        fields.append(pa.field("time", _TIME, nullable=False))
    return pa.schema(fields)


def _headers(columns: Columns) -> pa.ListArray:
    total = len(columns.name_offsets) // 4 - 1
    names = _binaries(total, columns.name_offsets, columns.names)
    values = _binaries(total, columns.header_offsets, columns.header_values)
    pairs = pa.Array.from_buffers(_HEADER, total, [None], 0, children=[names, values])
    lists = [None, pa.py_buffer(columns.list_offsets)]
    return pa.Array.from_buffers(_HEADER_LIST, columns.messages, lists, 0, children=[pairs])


@cache
def _row_numbers() -> pa.Int64Array:
    return pa.array(array("q", range(limits.BATCH_COUNT_MAX)), type=pa.int64())


# ------------------------------------------------------------------- encoding


def from_arrow(
    data: pa.Array | pa.ChunkedArray | pa.RecordBatch,
    *,
    write_id: bytes = b"",
    created_ms: int = 0,
    compression: str | None = None,
    kind: int = Kind.DATA,
    control: bytes = b"",
) -> bytearray:
    """A record of an array of values, or of a RecordBatch with the columns listed above (`value` is required).

    Strings and large binaries are converted to binaries. Buffers are copied whole, without a Python loop over rows. The
    other arguments are those of `encode_batch`.
    """
    _require_pyarrow()
    found = _as_columns(data)
    if unknown := sorted(found.keys() - _KNOWN_COLUMNS):
        raise InvalidRequest(
            f"a batch has the columns value, key, headers and time, not {', '.join(unknown)}; nothing was encoded"
        )
    if "value" not in found or found["value"].null_count:
        raise InvalidRequest("a batch needs a column named value, without nulls; nothing was encoded")
    count = len(found["value"])
    if count > limits.BATCH_COUNT_MAX:
        raise TooLarge(
            f"a batch has at most {limits.BATCH_COUNT_MAX} messages, not {count}; nothing was encoded. Split it"
        )
    try:
        columns = _columns_from_arrow(found, count)
    except pa.ArrowException as cause:
        raise InvalidRequest(f"a column has the wrong type: {cause}; nothing was encoded") from cause
    return record_of(
        columns, write_id=write_id, created_ms=created_ms, compression=compression, kind=kind, control=control
    )


def _as_columns(data: pa.Array | pa.ChunkedArray | pa.RecordBatch) -> dict[str, pa.Array]:
    if isinstance(data, pa.RecordBatch):
        return dict(zip(data.schema.names, data.columns, strict=True))
    return {"value": data.combine_chunks() if isinstance(data, pa.ChunkedArray) else data}


def _columns_from_arrow(found: dict[str, pa.Array], count: int) -> Columns:
    columns = Columns(0, count, *_binary_buffers(found["value"]))
    key, headers, time = found.get("key"), found.get("headers"), found.get("time")
    if key is not None and key.null_count < len(key):
        offsets, joined = _binary_buffers(key)
        columns = columns._replace(key_validity=_validity(key), key_offsets=offsets, keys=joined)
        columns = columns._replace(sections=columns.sections | KEYS)
    if headers is not None:
        columns = _with_headers(columns, headers)
    if time is not None:
        if time.null_count:
            raise InvalidRequest("the time column must not have nulls; nothing was encoded")
        millis = time.cast(_TIME) if pa.types.is_timestamp(time.type) else time
        columns = columns._replace(sections=columns.sections | TIMES, times=_numbers(millis.cast(pa.int64()), 8))
    return columns


def _binary_buffers(column: pa.Array) -> tuple[Buffer, Buffer]:
    """Offsets from 0 and bytes of one column, which may be a slice of a larger one."""
    column = column.cast(_BINARY)
    count = len(column)
    if count == 0:
        return bytes(4), b""
    largest = pc.max(pc.binary_length(column)).as_py() or 0
    if largest > limits.MESSAGE_SIZE_BYTES_MAX:
        raise TooLarge(
            f"a message has at most {limits.MESSAGE_SIZE_BYTES_MAX} bytes, not {largest}; nothing was encoded"
        )
    _, offset_buffer, joined = column.buffers()
    offsets = pa.Array.from_buffers(pa.int32(), count + 1, [None, offset_buffer], 0, column.offset)
    first, end = offsets[0].as_py(), offsets[count].as_py()
    if first:
        offsets = pc.subtract(offsets, pa.scalar(first, pa.int32()))
    return _numbers(offsets, 4), memoryview(joined)[first:end] if joined is not None else b""


def _numbers(column: pa.Array, size: int) -> memoryview | bytes:
    """The bytes of a column of numbers of `size` bytes each, without nulls."""
    if not len(column):
        return b""
    return memoryview(column.buffers()[1])[column.offset * size : (column.offset + len(column)) * size]


def _validity(column: pa.Array) -> Buffer:
    # is_valid may return a slice that begins inside a byte. Appending to an empty array copies it to the first bit.
    bits = pa.concat_arrays([pa.array([], pa.bool_()), pc.is_valid(column)])
    return memoryview(bits.buffers()[1])[: (len(column) + 7) >> 3]


def _with_headers(columns: Columns, column: pa.Array) -> Columns:
    """A null list counts as empty. Lists are flattened, so that neither slices nor nulls leave gaps."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int32())
    ends = pc.cumulative_sum(lengths)
    pairs: Sequence[Any] = column.flatten().flatten()
    if len(pairs) != 2 or any(pair.null_count for pair in pairs):
        raise InvalidRequest("headers must be lists of (key, value) structs without nulls; nothing was encoded")
    name_offsets, names = _binary_buffers(pairs[0])
    header_offsets, header_values = _binary_buffers(pairs[1])
    return columns._replace(
        sections=columns.sections | HEADERS,
        list_offsets=bytes(4) + bytes(_numbers(ends, 4)),
        name_offsets=name_offsets,
        names=names,
        header_offsets=header_offsets,
        header_values=header_values,
    )


def _require_pyarrow() -> None:
    if pa is None:
        raise NotInstalled("Arrow", extra="arrow")
