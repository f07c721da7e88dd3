"""Turns rows of a DataFrame into batches for lanes, without an object per row.

The columns that a row may have:

    value       binary or string          required, never null
    key         binary or string          null: the message has no key
    headers     array<struct<key: string, value: binary>>
    topic       string                    the queue, unless option `topic` names one for all
    partition   int                       the lane; null: by key
    timestamp   timestamp                 the message's time; null: now

A row must go to the same lane whenever the job is repeated: a repetition skips lanes that were published before, so a
row that moved to another lane would be lost or doubled. So the lane is the row's `partition`, else that of its key (by
the hash that all clients use). Rows with neither all go to one lane, which the transaction's name determines.

Rows are collected in rounds of about 1 MiB per lane, sorted by lane once (stable, so that each lane keeps the order of
the rows), and split into batches. No state is kept between rounds.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from time import time_ns
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c
from msgspec import Struct
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType, TimestampType

from avow import limits
from avow.errors import InvalidRequest
from avow.queue.key_to_lane import lane_for

if TYPE_CHECKING:
    from collections.abc import Sequence

BATCH_SIZE_BYTES: Final = limits.MIB  # a batch that reaches this size is closed
ROUND_SIZE_BYTES_MAX: Final = 32 * limits.MIB
_TIME: Final = pa.timestamp("ms", tz="UTC")
_BYTES: Final = (BinaryType, StringType)


class Part(Struct, frozen=True):
    """Messages for one lane, as `avow.wire.arrow` encodes them; small enough for one batch."""

    topic: str
    lane: int
    messages: pa.RecordBatch


# ---------------------------------------------------------------------- columns


def check_columns(schema: StructType, *, topic: str | None) -> None:
    """Raises InvalidRequest, which names the column."""
    for field in schema.fields:
        wanted = _wanted(field.name, field.dataType)
        if wanted:
            raise InvalidRequest(f"column {field.name!r} is {field.dataType.simpleString()}: {wanted}")
    names = schema.fieldNames()
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidRequest(f"column {', '.join(doubled)} occurs twice; nothing was written")
    if "value" not in names:
        raise InvalidRequest("a message needs a column value, binary or string; nothing was written")
    if topic is None and "topic" not in names:
        raise InvalidRequest('no queue is given; nothing was written. Set option("topic", ...) or add a column topic')


def _wanted(name: str, kind: DataType) -> str:
    """The error in a column; empty if it is valid."""
    match name:
        case "value" | "key":
            valid, expected = isinstance(kind, _BYTES), "binary or string"
        case "topic":
            valid, expected = isinstance(kind, StringType), "a string"
        case "partition":
            valid, expected = isinstance(kind, IntegerType), "an int (the lane)"
        case "timestamp":
            valid, expected = isinstance(kind, TimestampType), "a timestamp"
        case "headers":
            valid, expected = _are_headers(kind), "array<struct<key:string,value:binary>>"
        case _:
            return (
                "a message has only value, key, headers, topic, partition and timestamp; nothing was written. "
                "Select those columns, or put the others into value"
            )
    return "" if valid else f"{name} must be {expected}; nothing was written. Cast it"


def _are_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    pair = kind.elementType
    if pair.fieldNames() != ["key", "value"]:
        return False
    return isinstance(pair["key"].dataType, StringType) and isinstance(pair["value"].dataType, _BYTES)


# ------------------------------------------------------------------------ lanes


class Routing:
    """`lanes_of` is called once per queue. `name`, the transaction's, determines the lane of rows without a key."""

    def __init__(self, *, topic: str | None, name: str, lanes_of: Callable[[str], int]) -> None:
        self._topic, self._name, self._lanes_of = topic, name.encode(), lanes_of
        self._lanes: dict[str, int] = {}

    def parts(self, rows: Iterator[pa.RecordBatch]) -> Iterator[Part]:
        """Raises InvalidRequest for a row that cannot be written."""
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in rows:
            if not batch.num_rows:
                continue
            held.append(batch)
            size += batch.nbytes
            if size >= self._round_bytes(batch.schema):
                yield from self._round(held)
                held, size = [], 0
        if held:
            yield from self._round(held)

    def _round_bytes(self, schema: pa.Schema) -> int:
        if self._topic is not None and self._topic not in self._lanes:
            self.lanes(self._topic)
        spread = "key" in schema.names or "partition" in schema.names
        targets = sum(self._lanes.values()) if spread else len(self._lanes)
        return min(max(targets, 1) * BATCH_SIZE_BYTES, ROUND_SIZE_BYTES_MAX)

    def lanes(self, topic: str) -> int:
        found = self._lanes.get(topic)
        if found is None:
            found = self._lanes[topic] = self._lanes_of(topic)
        return found

    def _round(self, held: Sequence[pa.RecordBatch]) -> Iterator[Part]:
        rows = held[0] if len(held) == 1 else pa.concat_batches(held)
        if rows.column("value").null_count:
            raise InvalidRequest("a row has no value (null), but a message needs one; nothing of this job is published")
        for topic, own in self._by_topic(rows):
            lanes = self._lane_column(topic, own)
            for lane, messages in _by_lane(_messages(own), lanes):
                for piece in _pieces(messages):
                    yield Part(topic, lane, piece)

    def _by_topic(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._topic is not None:
            yield self._topic, rows
            return
        column = rows.column("topic")
        if column.null_count:
            raise InvalidRequest(
                "a row has no topic (null), and the option topic is not set; nothing of this job is published"
            )
        names = pc.unique(column)
        for name in names:
            yield name.as_py(), rows if len(names) == 1 else rows.filter(pc.equal(column, name))

    def _lane_column(self, topic: str, rows: pa.RecordBatch) -> pa.Array | int:
        """The lane of each row, or one number for all rows."""
        lanes = self.lanes(topic)
        default = lane_for(self._name, lanes)
        found: pa.Array | int = default
        if "key" in rows.schema.names and lanes > 1:
            found = _lanes_of_keys(rows.column("key"), lanes=lanes, default=default)
        if "partition" not in rows.schema.names:
            return found
        wanted = rows.column("partition")
        ends = pc.min_max(wanted).as_py()
        if ends["min"] is not None and not 0 <= ends["min"] <= ends["max"] < lanes:
            wrong = ends["min"] if ends["min"] < 0 else ends["max"]
            raise InvalidRequest(
                f"queue {topic!r} has the lanes 0 to {lanes - 1}, but a row's partition is {wrong}; "
                "nothing of this job is published"
            )
        return pc.coalesce(wanted, found if isinstance(found, pa.Array) else pa.scalar(found, pa.int32()))


def _lanes_of_keys(keys: pa.Array, *, lanes: int, default: int) -> pa.Array:
    """`lane_for` of each key, inline: 0.2 µs per row, which is cheaper than finding equal keys first."""
    found = [default if key is None else crc32c(key) % lanes for key in keys.cast(pa.binary()).to_pylist()]
    return pa.array(array("i", found), pa.int32())


def _by_lane(messages: pa.RecordBatch, lanes: pa.Array | int) -> Iterator[tuple[int, pa.RecordBatch]]:
    if isinstance(lanes, int):
        yield lanes, messages
        return
    order = pc.array_sort_indices(lanes)  # stable
    runs = pc.run_end_encode(lanes.take(order))
    if len(runs.values) > 1:
        messages = messages.take(order)
    first = 0
    for lane, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield lane, messages.slice(first, end - first)
        first = end


# --------------------------------------------------------------------- messages


def _messages(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that a batch stores, under the names it uses."""
    columns = {name: rows.column(name) for name in ("value", "key", "headers") if name in rows.schema.names}
    if "timestamp" in rows.schema.names:
        times = rows.column("timestamp").cast(_TIME, safe=False)
        columns["time"] = pc.fill_null(times, pa.scalar(time_ns() // 1_000_000, _TIME)) if times.null_count else times
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _pieces(messages: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Halves the messages until each piece fits a batch. The encoder rejects a single message that is too large."""
    count = messages.num_rows
    if count == 1 or (count <= limits.BATCH_COUNT_MAX and messages.nbytes <= 2 * BATCH_SIZE_BYTES):
        yield messages
        return
    yield from _pieces(messages.slice(0, count // 2))
    yield from _pieces(messages.slice(count // 2))
