"""Converts Arrow columns to PostgreSQL's binary COPY format, and types back; without a loop over rows for plain types.

file      "PGCOPY\\n\\377\\r\\n\\0"  flags int32 = 0  extension int32 = 0  rows...  int16 = -1
row       count of fields int16, then each field
field     length int32 (-1: null), then its bytes; all numbers big-endian

Arrow                    PostgreSQL                 bytes
bool                     boolean                    1
int8, int16              smallint                   int16
int32, int64             integer, bigint            int32, int64
float, double            real, double precision     IEEE
string, binary           text, bytea                as they are
date32                   date                       int32, days since 2000-01-01
timestamp                timestamp, timestamptz     int64, microseconds since 2000-01-01
decimal                  numeric(p,s)               the driver's form
list, struct, map        jsonb                      1, then JSON; bytes in it are base64
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from avow.errors import InvalidRequest
from avow.spark.tables import schemas

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError:
    pa = pc = None

HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER: Final = b"\xff\xff"
_NULL: Final = b"\xff\xff\xff\xff"
_EPOCH_DAYS: Final = 10_957
_EPOCH_US: Final = _EPOCH_DAYS * 86_400_000_000
_DECIMAL_DIGITS_MAX: Final = 38


def sql_type(name: str, kind: pa.DataType) -> str:
    """The column type for an Arrow type."""
    types = pa.types
    plain: list[tuple[Callable[[Any], bool], str]] = [
        (types.is_boolean, "boolean"),
        (types.is_int8, "smallint"),
        (types.is_int16, "smallint"),
        (types.is_int32, "integer"),
        (types.is_int64, "bigint"),
        (types.is_float32, "real"),
        (types.is_float64, "double precision"),
        (types.is_string, "text"),
        (types.is_binary, "bytea"),
        (types.is_date32, "date"),
        (types.is_nested, "jsonb"),
    ]
    for fits, found in plain:
        if fits(kind):
            return found
    if types.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamptz"
    if types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    raise InvalidRequest(f"column {name} is {kind}, which cannot be stored in PostgreSQL; nothing was written")


def arrow_type(declared: str) -> tuple[pa.DataType, bool]:
    """The Arrow type of a column whose type is the result of format_type(), and whether to read it as text."""
    plain = {
        "boolean": pa.bool_(),
        "smallint": pa.int16(),
        "integer": pa.int32(),
        "bigint": pa.int64(),
        "real": pa.float32(),
        "double precision": pa.float64(),
        "text": pa.string(),
        "bytea": pa.binary(),
        "date": pa.date32(),
        "timestamp without time zone": pa.timestamp("us"),
        "timestamp with time zone": pa.timestamp("us", tz="UTC"),
    }
    if declared in plain:
        return plain[declared], False
    if declared.startswith("numeric("):
        precision, scale = (int(part) for part in declared[8:-1].split(","))
        if precision <= _DECIMAL_DIGITS_MAX and 0 <= scale <= precision:
            return pa.decimal128(precision, scale), False
    return pa.string(), True


def copy_rows(rows: pa.RecordBatch) -> memoryview:
    """The rows of a batch with a normalized schema, without header and trailer."""
    if not rows.num_rows:
        return memoryview(b"")
    fields = [_fields(column) for column in rows.columns]
    count = pa.scalar(rows.num_columns.to_bytes(2, "big"), pa.large_binary())
    joined = pc.binary_join_element_wise(count, *fields, pa.scalar(b"", pa.large_binary()))
    _, offsets, data = joined.buffers()
    ends = memoryview(offsets).cast("q")
    return memoryview(data)[ends[joined.offset] : ends[joined.offset + len(joined)]]


def _fields(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _variable(column.cast(pa.large_binary()))
    if pa.types.is_nested(kind):
        return _variable(_texts(column, _json))
    if pa.types.is_decimal(kind):
        return _variable(_texts(column, _decimal))
    return _fixed(column)


def _fixed(column: pa.Array) -> pa.Array:
    import numpy as np

    numbers, layout = _numbers(column)
    rows = np.empty(len(column), dtype=[("length", ">i4"), ("value", layout)])
    rows["length"] = np.dtype(layout).itemsize
    rows["value"] = numbers
    fields = _binary(rows.tobytes(), rows.itemsize)
    if not column.null_count:
        return fields
    return pc.if_else(column.is_valid(), fields, pa.scalar(_NULL, pa.large_binary()))


def _numbers(column: pa.Array) -> tuple[Any, str]:
    kind = column.type
    if pa.types.is_boolean(kind):
        return _plain(column.cast(pa.uint8())), "u1"
    if pa.types.is_date32(kind):
        return _plain(column.cast(pa.int32())) - _EPOCH_DAYS, ">i4"
    if pa.types.is_timestamp(kind):
        return _plain(column.cast(pa.int64())) - _EPOCH_US, ">i8"
    if pa.types.is_floating(kind):
        return _plain(column), f">f{kind.bit_width // 8}"
    return _plain(column), f">i{max(2, kind.bit_width // 8)}"


def _plain(column: pa.Array) -> Any:
    return column.fill_null(0).to_numpy(zero_copy_only=False)


def _variable(values: pa.Array) -> pa.Array:
    lengths = pc.binary_length(values).fill_null(-1).to_numpy(zero_copy_only=False).astype(">i4")
    empty = pa.scalar(b"", pa.large_binary())
    return pc.binary_join_element_wise(_binary(lengths.tobytes(), 4), values.fill_null(empty), empty)


def _binary(content: bytes, width: int) -> pa.Array:
    buffers = [None, pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.binary(width), len(content) // width, buffers).cast(pa.large_binary())


def _texts(column: pa.Array, encode: Callable[[Any], bytes]) -> pa.Array:
    if pa.types.is_map(column.type):
        values: list[Any] = [None if each is None else dict(each) for each in column.to_pylist()]
    else:
        values = column.to_pylist()
    return pa.array([None if each is None else encode(each) for each in values], pa.large_binary())


def _json(value: Any) -> bytes:
    return b"\x01" + msgspec.json.encode(value)


def _decimal(value: Any) -> bytes:
    from decimal import Decimal

    from psycopg.types.numeric import DecimalBinaryDumper

    return bytes(DecimalBinaryDumper(Decimal).dump(value) or b"")


def normal_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    wanted = schemas.normal(batch.schema)
    return batch if batch.schema.equals(wanted) else batch.cast(wanted)
