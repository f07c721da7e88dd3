"""Batches as rows with Kafka's columns: without copies, in the requested schema."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from avow.client.reader import ReadBatch
from avow.errors import InvalidRequest
from avow.spark.source.rows import COLUMNS, HEADERS, JOIN_ROWS, TYPES, LaneRows, check_schema, joined
from avow.wire.batch import encode_batch
from avow.wire.ranges import Range

FULL = pa.schema([pa.field(name, TYPES[name]) for name in (*COLUMNS, HEADERS)])


def batch(values: Any, *, first: int = 1, offset: int = 0, count: int | None = None, **columns: Any) -> ReadBatch:
    record = memoryview(encode_batch(values, created_ms=1_700_000_000_000, **columns))
    return ReadBatch(Range(7, first, offset, len(values) - offset if count is None else count, record))


def rows_of(*batches: ReadBatch, schema: pa.Schema = FULL) -> list[dict[str, Any]]:
    found = LaneRows(schema, queue="orders", lane=7).record_batch(batches)
    found.validate(full=True)
    assert found.schema.equals(schema)
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def test_a_row_has_kafkas_columns() -> None:
    (row,) = rows_of(batch([b"value"], first=5))
    assert row == {
        "key": None,
        "value": b"value",
        "topic": "orders",
        "partition": 7,
        "offset": 5,
        "timestamp": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        "timestampType": 0,
        "headers": None,
    }


def test_keys_times_and_headers_are_the_messages_own() -> None:
    first, second = rows_of(
        batch([b"a", b"b"], keys=[b"k", None], times=[1_000, 2_500], headers=[[("trace", b"\xff")], []])
    )
    assert (first["key"], second["key"]) == (b"k", None)
    assert second["timestamp"] == datetime(1970, 1, 1, 0, 0, 2, 500_000, tzinfo=UTC)
    assert first["headers"] == [{"key": "trace", "value": b"\xff"}]
    assert second["headers"] is None


def test_a_range_inside_a_record_is_only_that_range() -> None:
    rows = rows_of(
        batch(
            [b"a", b"b", b"c", b"d"],
            first=10,
            offset=1,
            count=2,
            keys=[b"1", b"2", b"3", b"4"],
            times=[1, 2, 3, 4],
            headers=[[("h", b"1")], [("h", b"2")], [("h", b"3"), ("i", b"4")], []],
        )
    )
    assert [(row["offset"], row["value"], row["key"]) for row in rows] == [(10, b"b", b"2"), (11, b"c", b"3")]
    assert [row["timestamp"].microsecond for row in rows] == [2_000, 3_000]
    assert [len(row["headers"]) for row in rows] == [1, 2]


def test_batches_of_different_shapes_are_joined() -> None:
    rows = rows_of(
        batch([b"a"], first=1),
        batch([b"b"], first=2, keys=[b"k"]),
        batch([b"c"], first=3, headers=[[("h", b"1")]], times=[5]),
    )
    assert [row["offset"] for row in rows] == [1, 2, 3]
    assert [row["key"] for row in rows] == [None, b"k", None]
    assert [row["headers"] is None for row in rows] == [True, True, False]


def test_values_of_one_batch_are_not_copied() -> None:
    record = encode_batch([b"x" * 100] * 50)
    found = LaneRows(pa.schema([FULL.field("value")]), queue="q", lane=0).record_batch(
        [ReadBatch(Range(0, 1, 0, 50, memoryview(record)))]
    )
    memory = pa.py_buffer(record)
    values = found.column(0).buffers()[2]
    assert memory.address <= values.address < memory.address + memory.size


def test_a_schema_chooses_columns_in_any_order_and_may_have_not_null() -> None:
    schema = pa.schema([FULL.field("offset"), pa.field("value", pa.binary(), nullable=False)])
    check_schema(schema)
    assert rows_of(batch([b"v"], first=9), schema=schema) == [{"offset": 9, "value": b"v"}]


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (pa.field("price", pa.int64()), "no column 'price'"),
        (pa.field("value", pa.string()), "binary, not string"),
        (pa.field("key", pa.binary(), nullable=False), "'key' of the source avow may be null"),
    ],
)
def test_a_foreign_schema_is_refused_by_name(field: pa.Field, expected: str) -> None:
    with pytest.raises(InvalidRequest, match=expected):
        check_schema(pa.schema([field]))
    with pytest.raises(InvalidRequest, match="at least one"):
        check_schema(pa.schema([]))


def test_a_header_name_that_is_not_utf_8_is_shown_as_such() -> None:
    names = pa.array([b"\xffa"], pa.binary())
    from avow.spark.source.rows import _text

    assert _text(names).to_pylist() == ["�a"]


def test_small_batches_are_joined_and_large_ones_go_alone() -> None:
    small, large = batch([b"v"] * 100), batch([b"v"] * JOIN_ROWS)
    groups = [len(group) for group in joined([small] * 200 + [large] + [small] * 2)]
    assert groups[0] == JOIN_ROWS // 100
    assert sum(groups) == 203
    assert groups[-3:] == [200 - JOIN_ROWS // 100, 1, 2] or groups[-2:] == [1, 2]
    assert list(joined([])) == []


def test_constant_columns_grow_with_the_longest_batch() -> None:
    lane = LaneRows(FULL, queue="q", lane=1)
    for count in (3, JOIN_ROWS + 5, 2):
        found = lane.record_batch([batch([b"v"] * count)])
        found.validate(full=True)
        assert found.column("topic").to_pylist() == ["q"] * count
