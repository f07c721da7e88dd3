"""Arrow over a record: the same messages, the same memory."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.wire.wire_material import BATCHES

from avow.errors import InvalidRequest, TooLarge, TooShort
from avow.limits import BATCH_COUNT_MAX, MESSAGE_SIZE_BYTES_MAX
from avow.wire.arrow import from_arrow, to_arrow, value_array, versions
from avow.wire.batch import check, encode_batch, merge, patch_header

Messages = dict[str, Any]


def addresses(column: pa.Array) -> list[tuple[int, int]]:
    return [(buffer.address, buffer.size) for buffer in column.buffers() if buffer is not None and buffer.size]


@pytest.mark.parametrize("container", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("columns", [(), ("keys",), ("keys", "headers", "times")])
def test_no_byte_of_a_record_is_copied(container: Any, columns: tuple[str, ...]) -> None:
    every: dict[str, Any] = {"keys": [b"k", None] * 50, "headers": [[("n", b"v")]] * 100, "times": list(range(100))}
    record = container(encode_batch([b"value"] * 100, **{name: every[name] for name in columns}))
    memory = pa.py_buffer(record)
    arrow = to_arrow(record)
    looked_at = 0
    for name in ("value", *(("key",) if "keys" in columns else ()), *arrow.schema.names[2:]):
        for address, size in addresses(arrow.column(name)):
            assert memory.address <= address
            assert address + size <= memory.address + memory.size
            assert address % 8 == 0
            looked_at += 1
    assert looked_at == {0: 2, 1: 5, 3: 11}[len(columns)]
    assert addresses(value_array(record)) == addresses(arrow.column("value"))


@given(BATCHES, st.sampled_from([None, "zstd", "lz4"]))
def test_arrow_shows_what_the_client_encoded(messages: Messages, compression: str | None) -> None:
    record = encode_batch(**messages, compression=compression)
    arrow = to_arrow(record)
    arrow.validate(full=True)
    count = len(messages["values"])
    assert arrow.column("value").to_pylist() == value_array(record).to_pylist() == messages["values"]
    assert arrow.column("key").to_pylist() == (messages["keys"] or [None] * count)
    assert ("headers" in arrow.schema.names) == (messages["headers"] is not None)
    if messages["headers"] is not None:
        shown = [[(pair["key"].decode(), pair["value"]) for pair in pairs] for pairs in arrow["headers"].to_pylist()]
        assert shown == messages["headers"]
    if messages["times"] is not None:
        assert arrow["time"].cast(pa.int64()).to_pylist() == messages["times"]


@given(BATCHES, st.integers(0, 20), st.integers(0, 20))
def test_a_slice_of_an_arrow_batch_encodes_as_its_rows_would(messages: Messages, first: int, count: int) -> None:
    if messages["keys"] and not any(key is not None for key in messages["keys"][first : first + count]):
        messages["keys"] = None  # a column of nulls is not written
    part: dict[str, Any] = {name: column and column[first : first + count] for name, column in messages.items()}
    arrow = to_arrow(encode_batch(**messages)).slice(first, count)
    record = from_arrow(arrow, write_id=b"w" * 16, created_ms=5)
    batch = check(record)
    assert to_arrow(record).equals(to_arrow(encode_batch(**part)))
    assert (batch.write_id, batch.created_ms, batch.count) == (b"w" * 16, 5, len(part["values"]))


def test_a_merged_batch_is_read_like_any_other() -> None:
    record = merge([encode_batch([b"a"]), encode_batch([b"b", b"c"], write_id=b"w" * 16)])
    assert to_arrow(record)["value"].to_pylist() == [b"a", b"b", b"c"]


def test_a_truncated_record_gives_no_arrow_view() -> None:
    record = encode_batch([b"value"] * 100)
    for size in (0, 79, 80, 100, 200, len(record) - 8):
        for look in (to_arrow, value_array):
            with pytest.raises(TooShort):
                look(record[:size])


def test_versions_follow_the_first() -> None:
    record = encode_batch([b"a", b"b", b"c"])
    patch_header(record, position=1, ballot=1, first_version=40)
    assert versions(record).to_pylist() == [40, 41, 42]
    assert versions(record).type == pa.int64()


@pytest.mark.parametrize(
    "data",
    [
        pa.array([b"a", b"bc"]),
        pa.array(["a", "bc"]),
        pa.array(["a", "bc"], pa.large_string()),
        pa.chunked_array([[b"a"], [b"bc"]]),
        pa.array([b"x", b"a", b"bc"], pa.large_binary())[1:],
        pa.RecordBatch.from_pydict({"value": ["a", "bc"], "key": pa.array([None, None], pa.string())}),
    ],
)
def test_values_of_any_binary_type_can_be_encoded(data: Any) -> None:
    assert from_arrow(data) == encode_batch([b"a", b"bc"])


def test_null_lists_of_headers_are_empty_ones() -> None:
    lists = pa.array([[("n", b"1")], None, []], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    record = from_arrow(pa.RecordBatch.from_arrays([pa.array([b"a", b"b", b"c"]), lists], names=["value", "headers"]))
    assert record == encode_batch([b"a", b"b", b"c"], headers=[[("n", b"1")], [], []])


def test_an_arrow_batch_is_encoded_as_a_client_encodes_it() -> None:
    record = encode_batch([b"a", b"b"], keys=[b"k", None], headers=[[("n", b"1")], []], times=[1, -2])
    assert from_arrow(to_arrow(record)) == record
    assert check(from_arrow(to_arrow(record), compression="lz4")).compression == "lz4"


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (pa.array([b"a", None]), InvalidRequest),
        (pa.array([[1]]), InvalidRequest),
        (pa.RecordBatch.from_pydict({"key": [b"a"]}), InvalidRequest),
        (pa.RecordBatch.from_pydict({"value": [b"a"], "other": [1]}), InvalidRequest),
        (pa.RecordBatch.from_pydict({"value": [b"a"], "headers": [1]}), InvalidRequest),
        (pa.RecordBatch.from_pydict({"value": [b"a"], "time": pa.array([None], pa.int64())}), InvalidRequest),
        (pa.RecordBatch.from_pydict({"value": [b"a"], "time": ["noon"]}), InvalidRequest),
        (pa.array([b""] * (BATCH_COUNT_MAX + 1)), TooLarge),
        (pa.array([bytes(MESSAGE_SIZE_BYTES_MAX + 1)]), TooLarge),
        (pa.array([bytes(MESSAGE_SIZE_BYTES_MAX)] * 9), TooLarge),
    ],
)
def test_an_invalid_batch_is_refused(data: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        from_arrow(data)
