"""Sections laid end to end: whichever path does it, the result reads like the writes it was made of."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avow.wire.batch import (
    Batch,
    encode_batch,
    entry_writes,
    merge,
    merge_sections,
    mergeable_shape,
    merged_writes,
    pack_entry,
    unpack_entry,
)
from avow.wire.columns import HEADERS, KEYS, TIMES
from avow.wire.messages import Entry, Kind

PROPERTY = settings(max_examples=120, deadline=None)
VALUES = st.lists(st.binary(max_size=40), min_size=1, max_size=4)


def write_id(number: int) -> bytes:
    return b"%016d" % number


def section(values: list[bytes], **columns: object) -> bytes:
    return bytes(unpack_entry(bytes(encode_batch(values, **columns))).batch)  # type: ignore[arg-type]


def entry(batch: bytes, count: int) -> Entry:
    return Entry(7, 65537, Kind.DATA, count, b"", 0, b"", batch)


@PROPERTY
@given(st.lists(VALUES, min_size=1, max_size=8))
def test_merging_values_gives_the_same_batch_as_merging_records(writes: list[list[bytes]]) -> None:
    parts = [(write_id(number), len(values), section(values)) for number, values in enumerate(writes)]
    merged = merge_sections(parts)
    records = [encode_batch(values, write_id=write_id(number)) for number, values in enumerate(writes)]
    assert merged == bytes(unpack_entry(bytes(merge(records))).batch)


@PROPERTY
@given(st.lists(VALUES, min_size=2, max_size=5), st.sampled_from(["keys", "headers", "times", "all"]))
def test_other_columns_merge_too(writes: list[list[bytes]], wanted: str) -> None:
    parts = []
    for number, values in enumerate(writes):
        columns: dict[str, object] = {}
        if wanted in ("keys", "all"):
            columns["keys"] = [value if index % 2 else None for index, value in enumerate(values)]
        if wanted in ("headers", "all"):
            columns["headers"] = [[("h", value)] * index for index, value in enumerate(values)]
        if wanted in ("times", "all"):
            columns["times"] = [number * 100 + index for index in range(len(values))]
        parts.append((write_id(number), len(values), section(values, **columns)))
    flat = [value for values in writes for value in values]
    held = entry(merge_sections(parts), len(flat))
    batch = Batch(pack_entry(held))
    batch.check_contents()
    assert [bytes(value) for value in batch.values()] == flat
    assert merged_writes(held) == entry_writes(held) == batch.writes()


def test_each_write_is_found_in_the_index_with_its_messages() -> None:
    parts = [(write_id(1), 1, section([b"a"])), (b"", 2, section([b"b", b"c"])), (write_id(3), 1, section([b""]))]
    held = entry(merge_sections(parts), 4)
    assert merged_writes(held) == [(write_id(1), 0, 1), (b"", 1, 2), (write_id(3), 3, 1)]
    assert [bytes(value) for value in Batch(pack_entry(held)).values()] == [b"a", b"b", b"c", b""]


def test_sections_may_be_views_of_received_memory() -> None:
    plain = [(write_id(n), n, section([b"x" * n] * n)) for n in (1, 2, 3)]
    views = [(name, count, memoryview(part)) for name, count, part in plain]
    assert merge_sections(views) == merge_sections(plain)
    held = entry(merge_sections(plain), 6)
    seen = Entry(7, 65537, Kind.DATA, 6, b"", 0, b"", memoryview(held.batch))  # type: ignore[arg-type]
    assert merged_writes(seen) == merged_writes(held)


def test_the_shape_decides_which_sections_can_be_merged() -> None:
    assert mergeable_shape(section([b"a"]), count=1) == 0
    assert mergeable_shape(section([b"a"], keys=[b"k"]), count=1) == KEYS
    assert mergeable_shape(section([b"a"], headers=[[("n", b"v")]]), count=1) == HEADERS
    assert mergeable_shape(section([b"a"], times=[1]), count=1) == TIMES


@pytest.mark.parametrize(
    ("what", "batch", "count"),
    [
        ("nothing", b"", 0),
        ("no message", section([]), 0),
        ("half a preamble", section([b"a"])[:20], 1),
        ("cut short", section([b"abcdefghi"])[:-8], 1),
        ("something behind it", section([b"a"]) + bytes(8), 1),
        ("another count", section([b"a"]), 2),
        ("compressed", section([b"a" * 100], compression="zstd"), 1),
        ("merged before", merge_sections([(write_id(1), 1, section([b"a"]))] * 2), 2),
        ("keys that are not there", bytes([KEYS]) + section([b"a"])[1:], 1),
        ("key bytes without a key column", section([b"a"])[:16] + b"\1" + section([b"a"])[17:], 1),
    ],
)
def test_batches_that_cannot_be_merged_are_reported(what: str, batch: bytes, count: int) -> None:
    assert mergeable_shape(batch, count=count) == -1, what


def test_an_invalid_index_means_a_batch_of_one_write() -> None:
    merged = merge_sections([(write_id(1), 1, section([b"a"])), (write_id(2), 1, section([b"b"]))])
    too_many = merged[:8] + (1 << 20).to_bytes(4, "little") + merged[12:]
    assert merged_writes(entry(too_many, 2)) == []
    assert merged_writes(entry(section([b"a"]), 1)) == []
    assert merged_writes(entry(b"toy", 1)) == []
    assert merged_writes(Entry(7, 1, Kind.STAGE, 2, b"", 0, b"", merged)) == []
    assert merged_writes(Entry(7, 1, Kind.DATA, 2, write_id(9), 0, b"", merged)) == []
