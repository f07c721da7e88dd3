"""Batches: what a client encodes is what a reader sees, through compression and merging."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.wire.wire_material import BATCHES, WRITE_ID, messages_of

from avow.errors import InvalidRequest, TooLarge
from avow.limits import BATCH_COUNT_MAX, MESSAGE_SIZE_BYTES_MAX
from avow.wire.batch import Batch, Write, check, encode_batch, entry_writes, merge, unpack_entry
from avow.wire.messages import Kind

Messages = dict[str, Any]


def read(batch: Batch) -> Messages:
    """The contents of a batch as arguments of `encode_batch`; absent columns as their empty value."""
    times = batch.times()
    return {
        "values": [bytes(value) for value in batch.values()],
        "keys": [None if key is None else bytes(key) for key in batch.keys()],  # noqa: SIM118
        "headers": [[(name, bytes(value)) for name, value in batch.headers(i)] for i in range(batch.count)],
        "times": None if times is None else times.tolist(),
    }


def expected(messages: Messages) -> Messages:
    count = len(messages["values"])
    return messages | {
        "keys": messages["keys"] or [None] * count,
        "headers": messages["headers"] or [[] for _ in range(count)],
    }


@given(BATCHES, WRITE_ID, st.integers(0, 2**63), st.sampled_from([None, "zstd", "lz4"]))
def test_a_reader_sees_what_the_client_encoded(
    messages: Messages, write_id: bytes, created_ms: int, compression: str | None
) -> None:
    record = encode_batch(**messages, write_id=write_id, created_ms=created_ms, compression=compression)
    batch = check(record)
    assert read(batch) == expected(messages)
    assert [bytes(batch.value(i)) for i in range(batch.count)] == messages["values"]
    assert (batch.write_id, batch.created_ms, batch.compression) == (write_id, created_ms, compression)
    assert batch.writes() == [(write_id, 0, len(messages["values"]))]


@given(BATCHES)
def test_a_batch_passes_through_an_entry_unchanged(messages: Messages) -> None:
    record = encode_batch(**messages, kind=Kind.STAGE, control=b"txn")
    entry = unpack_entry(memoryview(record))
    assert (entry.kind, entry.control, entry.count) == (Kind.STAGE, b"txn", len(messages["values"]))
    assert entry_writes(entry) == [(b"", 0, entry.count)]


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=6).flatmap(
        lambda sizes: st.tuples(
            st.tuples(*(st.fixed_dictionaries(messages_of(size)) for size in sizes)),
            st.sets(st.sampled_from(["keys", "headers", "times"])),
            st.lists(WRITE_ID, min_size=len(sizes), max_size=len(sizes)),
        )
    )
)
def test_a_merged_batch_holds_all_messages_in_order_and_each_write_keeps_its_range(
    case: tuple[tuple[Messages, ...], set[str], list[bytes]],
) -> None:
    parts, columns, write_ids = case
    empty: dict[str, Any] = {"keys": None, "headers": [], "times": 0}
    parts = tuple(
        {"values": part["values"]}
        | {name: part[name] or [empty[name]] * len(part["values"]) if name in columns else None for name in empty}
        for part in parts
    )
    records = [encode_batch(**part, write_id=id_) for part, id_ in zip(parts, write_ids, strict=True)]
    merged = check(merge(records))
    whole = {
        name: None if parts[0][name] is None else [item for part in parts for item in part[name]] for name in parts[0]
    }
    assert read(merged) == expected(whole)
    counts = [len(part["values"]) for part in parts]
    firsts = [sum(counts[:number]) for number in range(len(counts))]
    assert merged.writes() == list(zip(write_ids, firsts, counts, strict=True))


def test_merging_merged_batches_keeps_every_write() -> None:
    ones = [encode_batch([b"v%d" % i], write_id=b"%016d" % i, created_ms=i) for i in range(4)]
    merged = check(merge([merge(ones[:2]), merge(ones[2:])]))
    assert merged.writes() == [Write(b"%016d" % i, i, 1) for i in range(4)]
    assert merged.created_ms == 3
    assert (merged.write_id, entry_writes(unpack_entry(merge(ones)))) == (b"", merged.writes())


@pytest.mark.parametrize(
    "records",
    [
        [],
        [encode_batch([b"a"]), encode_batch([b"b"], keys=[b"k"])],
        [encode_batch([b"a"], compression="zstd")],
        [encode_batch([b"a"], kind=Kind.STAGE, control=b"t")],
        [encode_batch([], write_id=b"w" * 16)],
    ],
    ids=["nothing", "two shapes", "compressed", "staged", "no message to carry the write id"],
)
def test_incompatible_batches_are_not_merged(records: list[bytearray]) -> None:
    with pytest.raises(InvalidRequest):
        merge(records)


def test_more_messages_than_a_batch_may_have_are_not_merged() -> None:
    half = encode_batch([b""] * (BATCH_COUNT_MAX // 2 + 1))
    with pytest.raises(TooLarge):
        merge([half, half])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"values": [b"a"], "keys": []}, InvalidRequest),
        ({"values": [b"a"], "headers": [[], []]}, InvalidRequest),
        ({"values": [b"a"], "times": [1, 2]}, InvalidRequest),
        ({"values": [b"a"], "compression": "gzip"}, InvalidRequest),
        ({"values": [b"a"], "write_id": b"w"}, InvalidRequest),
        ({"values": [memoryview(bytes(8)).cast("q")]}, InvalidRequest),
        ({"values": [b""] * (BATCH_COUNT_MAX + 1)}, TooLarge),
        ({"values": [bytes(MESSAGE_SIZE_BYTES_MAX + 1)]}, TooLarge),
        ({"values": [bytes(MESSAGE_SIZE_BYTES_MAX)] * 8}, TooLarge),
    ],
)
def test_messages_that_no_batch_can_hold_are_refused_by_the_encoder(
    arguments: Messages, error: type[Exception]
) -> None:
    with pytest.raises(error):
        encode_batch(**arguments)


def test_values_are_slices_of_the_records_own_memory() -> None:
    record = encode_batch([b"aaa", b"bbb"], keys=[b"kkk", None])
    batch = Batch(record)
    value, key = batch.value(1), batch.key(0)
    record[record.index(b"bbb")] = ord("B")
    record[record.index(b"kkk")] = ord("K")
    assert key is not None
    assert (bytes(value), bytes(key)) == (b"Bbb", b"Kkk")


def test_a_message_outside_the_batch_is_an_index_error() -> None:
    batch = Batch(encode_batch([b"a"]))
    for number in (-1, 1):
        for read_one in (batch.value, batch.key, batch.headers):
            with pytest.raises(IndexError):
                read_one(number)


def test_header_names_that_are_not_utf8_are_preserved() -> None:
    name = b"\xff\x80name".decode("utf-8", "surrogateescape")
    assert Batch(encode_batch([b"v"], headers=[[(name, b"1")]])).headers(0)[0][0] == name


WITHOUT_PYARROW = """
import sys
sys.modules["pyarrow"] = None
from avow.errors import NotInstalled
from avow.wire import arrow
from avow.wire.batch import check, encode_batch, merge
record = encode_batch([b"a", b"bc"], keys=[None, b"k"], headers=[[("h", b"1")], []], times=[5, 6])
batch = check(merge([record, record]))
assert [bytes(v) for v in batch.values()] == [b"a", b"bc"] * 2
assert [k and bytes(k) for k in batch.keys()] == [None, b"k"] * 2
compressed = bytes.fromhex(sys.argv[1])
calls = [lambda: encode_batch([b"a"], compression="zstd"), lambda: check(compressed), lambda: arrow.to_arrow(record),
         lambda: arrow.value_array(record), lambda: arrow.versions(record), lambda: arrow.from_arrow(None)]
for call in calls:
    try:
        call()
    except NotInstalled as error:
        assert "avow[arrow]" in str(error)
    else:
        raise SystemExit("no error")
print("passed")
"""


def test_without_pyarrow_only_compression_and_arrow_fail_and_say_what_to_install() -> None:
    compressed = encode_batch([b"a"] * 50, compression="zstd").hex()
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_PYARROW, compressed], capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.stdout, run.returncode) == ("passed\n", 0), run.stderr
