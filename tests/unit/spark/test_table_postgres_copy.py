"""The binary COPY is decoded again by a simple reader."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from avow.errors import InvalidRequest
from avow.spark.tables.postgres_copy import arrow_type, copy_rows, sql_type


def fields(content: memoryview) -> list[list[bytes | None]]:
    found, at = [], 0
    while at < len(content):
        (count,) = struct.unpack_from(">h", content, at)
        at += 2
        row: list[bytes | None] = []
        for _ in range(count):
            (length,) = struct.unpack_from(">i", content, at)
            at += 4
            row.append(None if length < 0 else bytes(content[at : at + length]))
            at += max(0, length)
        found.append(row)
    return found


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.bool_(), True, b"\x01"),
        (pa.int8(), -2, struct.pack(">h", -2)),
        (pa.int16(), 300, struct.pack(">h", 300)),
        (pa.int32(), -7, struct.pack(">i", -7)),
        (pa.int64(), 1 << 40, struct.pack(">q", 1 << 40)),
        (pa.float32(), 1.5, struct.pack(">f", 1.5)),
        (pa.float64(), -0.25, struct.pack(">d", -0.25)),
        (pa.string(), "grün", "grün".encode()),
        (pa.binary(), b"\x00\xff", b"\x00\xff"),
        (pa.date32(), dt.date(2000, 1, 2), struct.pack(">i", 1)),
        (pa.timestamp("us"), dt.datetime(2000, 1, 1, 0, 0, 1), struct.pack(">q", 1_000_000)),  # noqa: DTZ001
        (pa.list_(pa.int32()), [1, 2], b"\x01[1,2]"),
        (pa.map_(pa.string(), pa.int32()), [("a", 1)], b'\x01{"a":1}'),
        (pa.struct([("key", pa.binary())]), {"key": b"ab"}, b'\x01{"key":"YWI="}'),
    ],
)
def test_each_type_has_a_value_and_a_null(kind: pa.DataType, value: Any, expected: bytes) -> None:
    batch = pa.record_batch({"before": pa.array([1, 2, 3]), "it": pa.array([value, None, value], kind)})
    assert [row[1] for row in fields(copy_rows(batch))] == [expected, None, expected]
    assert [row[0] for row in fields(copy_rows(batch))] == [struct.pack(">q", number) for number in (1, 2, 3)]


def test_a_decimal_has_the_form_of_the_driver() -> None:
    batch = pa.record_batch({"it": pa.array([Decimal("12.50"), None], pa.decimal128(10, 2))})
    (first,), (second,) = fields(copy_rows(batch))
    assert first == struct.pack(">hhhhhh", 2, 0, 0, 2, 12, 5000)
    assert second is None


def test_only_the_slice_of_a_batch_is_copied() -> None:
    batch = pa.record_batch({"n": pa.array(range(10)), "t": pa.array([str(n) for n in range(10)])})
    assert [row[1] for row in fields(copy_rows(batch.slice(3, 2)))] == [b"3", b"4"]
    assert fields(copy_rows(batch.slice(3, 0))) == []


def test_types_are_mapped_both_ways_and_unsupported_ones_are_named() -> None:
    for declared in ("boolean", "bigint", "double precision", "bytea", "date", "numeric(12,3)"):
        assert sql_type("c", arrow_type(declared)[0]) == declared
    assert arrow_type("uuid") == (pa.string(), True)
    assert arrow_type("numeric(60,3)") == (pa.string(), True)
    with pytest.raises(InvalidRequest, match="column c is duration"):
        sql_type("c", pa.duration("us"))
