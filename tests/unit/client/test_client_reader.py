from __future__ import annotations

import asyncio

import pytest

from avow.client.reader import ReadBatch, _up_to, read_page, read_stored
from avow.errors import BadChecksum, InvalidRequest
from avow.wire.encode import encode_batch
from avow.wire.http import Answer
from avow.wire.ranges import range_parts
from avow.wire.record import unpack_entry

VALUES = [b"value %d" % number for number in range(10)]


def range_of(record: bytes | bytearray, *, first_version: int, offset: int, count: int) -> bytes:
    entry = unpack_entry(bytes(record))
    return b"".join(range_parts(entry, lane=3, first_version=first_version, offset=offset, count=count))


def page_of(body: bytes, head: bytes = b"\r\navow-next: 50\r\navow-end: 90") -> list[ReadBatch]:
    page = read_page(Answer(200, b"http/1.1 200 ok" + head, bytearray(body)), after=0)
    assert (page.next_after, page.end) == (50, 90)
    return page.batches


def test_a_whole_batch_gives_its_values_and_versions() -> None:
    (batch,) = page_of(range_of(encode_batch(VALUES), first_version=41, offset=0, count=10))
    assert (batch.lane, batch.first_version, batch.last_version, len(batch)) == (3, 41, 50, 10)
    assert batch.values() == VALUES
    assert batch.to_arrow().column("value").to_pylist() == VALUES


def test_a_part_of_a_batch_gives_only_its_own_messages() -> None:
    (batch,) = page_of(range_of(encode_batch(VALUES), first_version=44, offset=3, count=4))
    assert batch.values() == VALUES[3:7]
    assert batch.to_arrow().column("value").to_pylist() == VALUES[3:7]
    assert [message.version for message in batch.messages()] == [44, 45, 46, 47]


def test_keys_headers_and_times_are_read_with_their_messages() -> None:
    record = encode_batch(
        VALUES[:3],
        keys=[b"k", None, b""],
        headers=[[("a", b"1")], [], [("b", b"2"), ("b", b"3")]],
        times=[7, 8, 9],
    )
    (batch,) = page_of(range_of(record, first_version=1, offset=1, count=2))
    second, third = batch.messages()
    assert (second.value, second.key, second.headers, second.time_ms) == (VALUES[1], None, (), 8)
    assert (third.key, third.headers, third.time_ms) == (b"", (("b", b"2"), ("b", b"3")), 9)
    assert batch.values() == VALUES[1:3]


def test_a_compressed_batch_reads_like_any_other() -> None:
    record = encode_batch(VALUES, compression="zstd")
    (batch,) = page_of(range_of(record, first_version=1, offset=2, count=3))
    assert batch.values() == VALUES[2:5]
    assert batch.to_arrow().column("value").to_pylist() == VALUES[2:5]


def test_messages_without_a_time_of_their_own_have_the_time_of_their_batch() -> None:
    (batch,) = page_of(range_of(encode_batch(VALUES, created_ms=123), first_version=1, offset=0, count=10))
    assert {message.time_ms for message in batch.messages()} == {123}


def test_a_changed_byte_is_detected_before_the_batch_is_read() -> None:
    body = bytearray(range_of(encode_batch(VALUES), first_version=1, offset=0, count=10))
    body[-20] ^= 1
    with pytest.raises(BadChecksum):
        page_of(bytes(body))


def test_a_read_that_ends_inside_a_batch_cuts_it_there() -> None:
    record = encode_batch(VALUES)
    body = range_of(record, first_version=1, offset=0, count=10) + range_of(
        record, first_version=11, offset=0, count=10
    )
    batches = page_of(body)
    assert [batch.values() for batch in _up_to(batches, 14)] == [VALUES, VALUES[:4]]
    assert [batch.values() for batch in _up_to(batches, 10)] == [VALUES]
    assert _up_to(batches, 20) == batches


def test_an_empty_answer_does_not_advance() -> None:
    page = read_page(Answer(200, b"http/1.1 200 ok", b""), after=12)
    assert (page.batches, page.next_after, page.end) == ([], 12, 12)


def test_only_a_subscribers_batch_can_be_committed() -> None:
    (batch,) = page_of(range_of(encode_batch(VALUES), first_version=1, offset=0, count=10))
    with pytest.raises(InvalidRequest, match="subscriber"):
        asyncio.run(batch.commit())


def test_a_message_read_by_its_version_id_is_bytes_for_text_and_binary_values() -> None:
    text = read_stored(b'{"lane":0,"version":7,"committed":false,"stored_by":[1,2],"value":"\xc3\xa9","key":"k"}')
    assert (text.value, text.key, text.committed, text.stored_by) == ("é".encode(), b"k", False, (1, 2))
    other = read_stored(b'{"lane":0,"version":8,"value_base64":"/w==","headers":{"a":"b"},"time_ms":5}')
    assert (other.value, other.key, other.headers, other.time_ms) == (b"\xff", None, (("a", b"b"),), 5)
