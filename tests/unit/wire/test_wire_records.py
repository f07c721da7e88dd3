"""Records: an entry and its bytes are the same thing, in both directions."""

from __future__ import annotations

import pytest
from hypothesis import given
from tests.unit.wire.wire_material import ENTRIES

from avow.errors import InvalidRequest, TooLarge
from avow.limits import BATCH_COUNT_MAX, BATCH_SIZE_BYTES_MAX, CONTROL_SIZE_BYTES_MAX
from avow.wire.batch import (
    HEADER_SIZE_BYTES,
    Batch,
    check,
    encode_batch,
    entry_parts,
    pack_entry,
    patch_header,
    record_size,
    unpack_entry,
)
from avow.wire.messages import Entry, Kind


@given(ENTRIES)
def test_an_entry_is_unpacked_as_it_was_packed(entry: Entry) -> None:
    record = pack_entry(entry)
    assert unpack_entry(record) == entry
    assert unpack_entry(memoryview(record)) == entry
    assert unpack_entry(bytearray(record), verify=False) == entry


@given(ENTRIES)
def test_a_records_size_is_known_from_its_header_and_is_a_multiple_of_eight(entry: Entry) -> None:
    record = pack_entry(entry)
    assert record_size(record[:HEADER_SIZE_BYTES]) == len(record)
    assert len(record) % 8 == 0


@given(ENTRIES)
def test_packing_an_unpacked_entry_gives_the_same_bytes(entry: Entry) -> None:
    record = pack_entry(entry)
    assert pack_entry(unpack_entry(memoryview(record))) == record
    assert b"".join(entry_parts(entry)) == record


def test_the_layout_on_disk_does_not_change() -> None:
    entry = Entry(3, 0x10002, Kind.DATA, count=1, write_id=b"0123456789abcdef", created_ms=7, control=b"c", batch=b"v")
    assert pack_entry(entry).hex() == (
        "41564f571beb00b601010100a7d64f0509000000010000000000000001000000"
        "0200010000000000030000000000000000000000000000000700000000000000"
        "3031323334353637383961626364656663000000000000007600000000000000"
    )  # fmt: skip


def test_unpacking_a_view_copies_no_batch() -> None:
    record = bytearray(pack_entry(Entry(1, 1, Kind.STAGE, control=b"txn", batch=b"x" * 100)))
    entry = unpack_entry(memoryview(record))
    record[-10] = ord("y")
    assert isinstance(entry.batch, memoryview)
    assert bytes(entry.batch).count(b"y") == 1


def test_the_batch_is_among_the_parts_uncopied() -> None:
    batch = b"x" * 1001
    assert any(part is batch for part in entry_parts(Entry(1, 1, Kind.DATA, batch=batch)))


def test_an_all_zero_write_id_is_not_absent() -> None:
    assert unpack_entry(pack_entry(Entry(1, 1, Kind.DATA, write_id=bytes(16)))).write_id == bytes(16)
    assert unpack_entry(pack_entry(Entry(1, 1, Kind.DATA))).write_id == b""


def test_a_header_is_filled_in_without_touching_the_body() -> None:
    record = encode_batch([b"a", b"b"], write_id=b"w" * 16)
    before = bytes(record)
    patch_header(record, position=9, ballot=0x30001, first_version=41)
    batch = check(record)
    assert (batch.position, batch.ballot, batch.first_version, batch.write_id) == (9, 0x30001, 41, b"w" * 16)
    assert record[HEADER_SIZE_BYTES:] == before[HEADER_SIZE_BYTES:]
    patch_header(record, position=0, ballot=0, first_version=0)
    assert record == before


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        (Entry(1, 1, Kind.DATA, write_id=b"short"), InvalidRequest),
        (Entry(1, 1, len(Kind.NAMES)), InvalidRequest),
        (Entry(-1, 1, Kind.DATA), InvalidRequest),
        (Entry(1, 2**64, Kind.DATA), InvalidRequest),
        (Entry(1, 1, Kind.DATA, count=-1), InvalidRequest),
        (Entry(1, 1, Kind.DATA, control=bytes(CONTROL_SIZE_BYTES_MAX + 1)), TooLarge),
        (Entry(1, 1, Kind.DATA, batch=bytes(BATCH_SIZE_BYTES_MAX + 1)), TooLarge),
        (Entry(1, 1, Kind.DATA, count=BATCH_COUNT_MAX + 1), TooLarge),
    ],
)
def test_an_entry_that_fits_no_record_is_refused_before_it_is_written(entry: Entry, error: type[Exception]) -> None:
    with pytest.raises(error):
        pack_entry(entry)


def test_a_command_without_a_batch_reads_as_a_batch_of_no_messages() -> None:
    batch = check(pack_entry(Entry(5, 1, Kind.PUBLISH, control=b"txn")))
    assert (batch.kind, batch.count, batch.control, batch.values()) == (Kind.PUBLISH, 0, b"txn", [])
    assert Batch(pack_entry(Entry(1, 1, Kind.NOOP))).keys() == []
