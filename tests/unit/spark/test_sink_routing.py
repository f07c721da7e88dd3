"""Routing of rows: a row always goes to the same lane, and a lane keeps the order of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from avow import limits
from avow.errors import InvalidRequest, TooLarge
from avow.queue.key_to_lane import lane_for
from avow.spark.sink.routing import BATCH_SIZE_BYTES, Part, Routing, check_columns
from avow.wire.arrow import from_arrow
from avow.wire.batch import Batch

NAME = "stream:q:7"


def batch(**columns: Sequence[object] | pa.Array) -> pa.RecordBatch:
    arrays = [found if isinstance(found, pa.Array) else pa.array(found) for found in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def parts(*batches: pa.RecordBatch, lanes: int | dict[str, int], topic: str | None = "orders") -> list[Part]:
    def lanes_of(name: str) -> int:
        return lanes if isinstance(lanes, int) else lanes[name]

    return list(Routing(topic=topic, name=NAME, lanes_of=lanes_of).parts(iter(batches)))


def values(part: Part) -> list[bytes]:
    return [bytes(value) for value in Batch(from_arrow(part.messages)).values()]


def by_lane(found: Sequence[Part]) -> dict[tuple[str, int], list[bytes]]:
    lanes: dict[tuple[str, int], list[bytes]] = {}
    for part in found:
        lanes.setdefault((part.topic, part.lane), []).extend(values(part))
    return lanes


# ---------------------------------------------------------------------- columns


def schema(*columns: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns])


def headers(name: str = "key") -> ArrayType:
    return ArrayType(schema((name, StringType()), ("value", BinaryType())))


VALUE = ("value", BinaryType())


@pytest.mark.parametrize(
    "columns",
    [
        [VALUE],
        [("value", StringType()), ("key", StringType())],
        [("key", BinaryType()), VALUE, ("headers", headers())],
        [VALUE, ("partition", IntegerType()), ("timestamp", TimestampType()), ("topic", StringType())],
    ],
)
def test_the_columns_of_a_message_are_accepted(columns: list[tuple[str, DataType]]) -> None:
    check_columns(schema(*columns), topic="orders")


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ([("key", BinaryType())], "column value"),
        ([("value", IntegerType())], "'value' is int"),
        ([VALUE, ("key", LongType())], "'key' is bigint"),
        ([VALUE, ("offset", LongType())], "'offset'"),
        ([VALUE, ("partition", LongType())], "'partition' is bigint"),
        ([VALUE, ("timestamp", StringType())], "'timestamp' is string"),
        ([VALUE, ("timestamp", TimestampNTZType())], "'timestamp' is timestamp_ntz"),
        ([VALUE, ("headers", MapType(StringType(), BinaryType()))], "'headers'"),
        ([VALUE, ("headers", headers("name"))], "'headers'"),
        ([VALUE, ("topic", BinaryType())], "'topic' is binary"),
        ([VALUE, VALUE], "value occurs twice"),
    ],
)
def test_an_unknown_column_is_named(columns: list[tuple[str, DataType]], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named) as caught:
        check_columns(schema(*columns), topic="orders")
    assert "othing was written" in str(caught.value)


def test_the_queue_comes_from_the_row_or_an_option() -> None:
    check_columns(schema(VALUE, ("topic", StringType())), topic=None)
    with pytest.raises(InvalidRequest, match="no queue is given"):
        check_columns(schema(VALUE), topic=None)


# ------------------------------------------------------------------------ lanes


def test_rows_with_a_key_go_to_the_lane_of_that_key_and_keep_their_order() -> None:
    keys = [b"k%d" % (number % 37) for number in range(1_000)]
    rows = batch(value=[b"%d" % number for number in range(1_000)], key=keys)
    found = by_lane(parts(rows.slice(0, 400), rows.slice(400), lanes=8))
    expected: dict[tuple[str, int], list[bytes]] = {}
    for number, key in enumerate(keys):
        expected.setdefault(("orders", lane_for(key, 8)), []).append(b"%d" % number)
    assert found == expected


def test_rows_without_a_key_share_one_lane_that_follows_from_the_transactions_name() -> None:
    own = lane_for(NAME.encode(), 8)
    assert set(by_lane(parts(batch(value=[b"a", b"b"]), lanes=8))) == {("orders", own)}
    found = by_lane(parts(batch(value=[b"a", b"b"], key=[None, b"k"]), lanes=8))
    assert found == {("orders", own): [b"a"], ("orders", lane_for(b"k", 8)): [b"b"]}


def test_a_partition_overrides_a_key_unless_it_is_null() -> None:
    rows = batch(
        value=["a", "b", "c"],
        key=["k", "k", None],
        partition=pa.array([5, None, None], pa.int32()),
    )
    found = by_lane(parts(rows, lanes=8))
    assert found[("orders", 5)] == [b"a"]
    assert found[("orders", lane_for(b"k", 8))] == [b"b"]
    assert found[("orders", lane_for(NAME.encode(), 8))] == [b"c"]


@pytest.mark.parametrize("wrong", [8, -1])
def test_a_lane_that_does_not_exist_is_refused(wrong: int) -> None:
    rows = batch(value=[b"a", b"b"], partition=pa.array([0, wrong], pa.int32()))
    with pytest.raises(InvalidRequest, match=f"lanes 0 to 7, but a row's partition is {wrong}"):
        parts(rows, lanes=8)


def test_rows_may_name_their_queues_and_an_option_overrides_them() -> None:
    rows = batch(value=[b"1", b"2", b"3"], topic=["a", "b", "a"])
    assert by_lane(parts(rows, lanes=1, topic=None)) == {("a", 0): [b"1", b"3"], ("b", 0): [b"2"]}
    assert by_lane(parts(rows, lanes=1, topic="all")) == {("all", 0): [b"1", b"2", b"3"]}
    with pytest.raises(InvalidRequest, match="no topic"):
        parts(batch(value=[b"1"], topic=pa.array([None], pa.string())), lanes=1, topic=None)


def test_each_queue_is_asked_for_its_lanes_once() -> None:
    asked: list[str] = []

    def lanes_of(name: str) -> int:
        asked.append(name)
        return 2

    routing = Routing(topic=None, name=NAME, lanes_of=lanes_of)
    rows = batch(value=[b"1", b"2"], topic=["a", "b"])
    assert list(routing.parts(iter([rows, rows])))
    assert sorted(asked) == ["a", "b"]


# --------------------------------------------------------------------- messages


def test_a_row_without_a_value_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no value"):
        parts(batch(value=[b"a", None]), lanes=1)


def test_small_batches_are_joined_and_large_ones_split() -> None:
    small = [batch(value=[bytes(100)] * 10) for _ in range(500)]
    assert len(parts(*small, lanes=1)) == 1
    large = batch(value=[bytes(100_000)] * 100)
    found = parts(large, lanes=1)
    assert sum(part.messages.num_rows for part in found) == 100
    assert all(len(from_arrow(part.messages)) <= 3 * BATCH_SIZE_BYTES for part in found)
    tiny = batch(value=[b""] * (limits.BATCH_COUNT_MAX + 1))
    assert [part.messages.num_rows for part in parts(tiny, lanes=1)] == [32_768, 32_769]


def test_a_message_that_no_batch_can_hold_is_refused_by_the_encoder() -> None:
    (part,) = parts(batch(value=[bytes(limits.MESSAGE_SIZE_BYTES_MAX + 1)]), lanes=1)
    with pytest.raises(TooLarge):
        from_arrow(part.messages)


def test_an_empty_partition_sends_no_request() -> None:
    assert parts(lanes={}) == []
    assert parts(batch(value=pa.array([], pa.binary())), lanes={}) == []


def test_headers_and_times_arrive_with_their_messages() -> None:
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    pairs = pa.array([[("a", b"1"), ("b", b"2")], None, []], pa.list_(pair))
    at = datetime(2024, 5, 6, 7, 8, 9, 123456, UTC)
    times = pa.array([at, None, at], pa.timestamp("us", tz="UTC"))
    (part,) = parts(batch(value=["x", "y", "z"], headers=pairs, timestamp=times), lanes=1)
    found = Batch(from_arrow(part.messages))
    assert [dict(found.headers(number)) for number in range(3)] == [{"a": b"1", "b": b"2"}, {}, {}]
    stored = found.times()
    assert stored is not None
    assert stored[0] == stored[2] == 1_714_979_289_123 < stored[1]
