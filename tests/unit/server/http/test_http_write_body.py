"""Request bodies become batches: the fast check of raw ones against the full one, JSON over the lanes."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from avow.errors import AvowError, BadChecksum, InvalidRequest, Malformed, TooLarge
from avow.queue.key_to_lane import lane_for
from avow.server.http.schemas import NewMessage
from avow.server.http.write_body import _take_checked, take_batch, take_messages
from avow.wire.batch import Batch, check, encode_batch, merge, patch_header
from avow.wire.messages import Entry, Kind
from avow.wire.record import pack_entry

WRITE_ID = bytes(range(16))


def record_of(values: list[bytes], **columns: object) -> bytes:
    return bytes(encode_batch(values, write_id=WRITE_ID, created_ms=77, **columns))  # type: ignore[arg-type]


def entry_of(section: bytes, count: int) -> Batch:
    return Batch(pack_entry(Entry(0, 0, Kind.DATA, count, b"", 0, b"", section)))


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=20))
def test_a_plain_batch_is_accepted_unchanged(values: list[bytes]) -> None:
    taken = take_batch(record_of(values))
    assert (taken.write_id, taken.count, taken.created_ms, taken.mergeable) == (WRITE_ID, len(values), 77, True)
    assert [bytes(value) for value in entry_of(taken.section, taken.count).values()] == values


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=4), st.integers(0, 300), st.integers(0, 255), st.booleans())
def test_the_fast_check_agrees_with_the_full_one(values: list[bytes], at: int, byte: int, sealed: bool) -> None:
    """Also if the checksums were recomputed after the bytes were changed."""
    record = bytearray(record_of(values))
    record[at % len(record)] = byte
    if sealed:
        record[12:16] = crc32c(bytes(record[80:])).to_bytes(4, "little")
        record[4:8] = crc32c(bytes(record[8:80])).to_bytes(4, "little")
    try:
        expected: object = _take_checked(check(bytes(record)), bytes(record))
    except AvowError as error:
        expected = type(error)
    try:
        found: object = take_batch(bytes(record))
    except AvowError as error:
        found = type(error)
    assert found == expected


@pytest.mark.parametrize("columns", [{"keys": [b"k"]}, {"headers": [[("a", b"b")]]}, {"times": [5]}])
def test_batches_with_other_columns_are_accepted_too(columns: dict[str, object]) -> None:
    taken = take_batch(record_of([b"v"], **columns))
    assert taken.mergeable
    assert taken.count == 1


def test_a_large_batch_is_not_copied_and_not_merged() -> None:
    taken = take_batch(record_of([b"x" * 40_000]))
    assert isinstance(taken.section, memoryview)
    assert not taken.mergeable


def test_a_compressed_batch_is_accepted_and_not_merged() -> None:
    assert not take_batch(record_of([b"x" * 500], compression="zstd")).mergeable


def test_bytes_that_are_not_a_batch_are_malformed() -> None:
    for garbage in (b"", b"AVOW", b"x" * 500):
        with pytest.raises(Malformed):
            take_batch(garbage)
    cut = record_of([b"v" * 100])[:-8]
    with pytest.raises(Malformed):
        take_batch(cut)
    flipped = bytearray(record_of([b"v" * 100]))
    flipped[-20] ^= 1
    with pytest.raises(BadChecksum):
        take_batch(flipped)


def test_records_that_are_not_a_client_write_are_refused() -> None:
    numbered = bytearray(record_of([b"v"]))
    patch_header(numbered, position=5, ballot=1, first_version=9)
    merged = merge([record_of([b"a"]), record_of([b"b"])])
    staged = encode_batch([b"v"], kind=Kind.STAGE, control=b"\x90", write_id=WRITE_ID)
    for record in (numbered, merged, staged, encode_batch([], write_id=WRITE_ID)):
        with pytest.raises(InvalidRequest):
            take_batch(bytes(record))


# ---------------------------------------------------------------------- JSON


def spread(messages: list[NewMessage], *, lane: int | None = None, lanes: int = 4) -> dict[int, list[bytes]]:
    taken = take_messages(messages, write_id=WRITE_ID, lane=lane, lanes=lanes, now_ms=5)
    return {at: [bytes(v) for v in entry_of(t.section, t.count).values()] for at, t in taken.items()}


def test_a_key_decides_the_lane_and_the_rest_stays_together() -> None:
    messages = [NewMessage(value=str(n), key=None if n % 2 else f"key{n}") for n in range(10)]
    found = spread(messages)
    keyless = crc32c(WRITE_ID) % 4
    for number in range(10):
        lane = keyless if number % 2 else lane_for(f"key{number}".encode(), 4)
        assert str(number).encode() in found[lane]
    assert sum(map(len, found.values())) == 10


def test_an_explicit_lane_takes_all_messages() -> None:
    assert spread([NewMessage(value="a", key="k"), NewMessage(value_base64=b"\xff")], lane=2) == {2: [b"a", b"\xff"]}


def test_keys_headers_and_times_are_stored() -> None:
    message = NewMessage(value="v", key_base64=b"\x00", headers={"h": "é"}, time_ms=9)
    taken = take_messages([message, NewMessage(value="w")], write_id=WRITE_ID, lane=0, lanes=1, now_ms=5)[0]
    batch = entry_of(taken.section, 2)
    assert (batch.key(0), batch.key(1)) == (b"\x00", None)
    assert batch.headers(0) == [("h", "é".encode())]
    assert list(batch.times() or ()) == [9, 5]


@pytest.mark.parametrize(
    "message",
    [NewMessage(), NewMessage(value="a", value_base64=b"b"), NewMessage(value="a", key="a", key_base64=b"b")],
)
def test_a_message_has_exactly_one_value(message: NewMessage) -> None:
    with pytest.raises(InvalidRequest):
        spread([message])


def test_a_message_beyond_its_bound_is_too_large() -> None:
    with pytest.raises(TooLarge):
        spread([NewMessage(value="x" * (1 << 20) + "x")])
