"""Ranges: what a peer puts around records for readers, and what a reader refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avow.errors import BadMagic, BadOffsets, CountOverflow, InvalidRequest, Malformed, TooShort
from avow.wire.batch import Batch, check, encode_batch, unpack_entry
from avow.wire.ranges import RANGE_HEAD_SIZE_BYTES, parse_ranges, range_parts


def body_of(*batches: tuple[int, int, int, list[bytes]], lane: int = 3) -> bytes:
    """(first version, offset, count, values) of each range."""
    parts = []
    for first_version, offset, count, values in batches:
        entry = unpack_entry(bytes(encode_batch(values)))
        parts += range_parts(entry, lane=lane, first_version=first_version, offset=offset, count=count)
    return b"".join(parts)


def test_ranges_are_decoded_in_order_with_their_messages() -> None:
    body = body_of((5, 0, 2, [b"a", b"bb"]), (7, 1, 1, [b"hidden", b"ccc", b"d"]))
    first, second = parse_ranges(body)
    assert (first.lane, first.first_version, first.last_version) == (3, 5, 6)
    assert [bytes(value) for value in check(first.record).values()] == [b"a", b"bb"]
    assert bytes(Batch(second.record).value(second.offset)) == b"ccc"


def test_an_empty_answer_has_no_ranges() -> None:
    assert list(parse_ranges(b"")) == []


def test_every_part_is_a_multiple_of_eight_bytes() -> None:
    assert len(body_of((1, 0, 1, [b"odd"]), (2, 0, 1, [b""]))) % 8 == 0


@given(st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=5), max_size=5))
def test_any_answer_is_decoded_as_it_was_encoded(batches: list[list[bytes]]) -> None:
    body = body_of(*[(1, 0, len(values), values) for values in batches])
    assert [[bytes(v) for v in Batch(found.record).values()] for found in parse_ranges(body)] == batches


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_changed_byte_is_malformed_or_harmless(at: int, byte: int) -> None:
    body = bytearray(body_of((1, 0, 2, [b"abc", b"defg"]), (3, 0, 1, [b"h"])))
    body[at % len(body)] = byte
    try:
        for found in parse_ranges(body):
            assert found.offset + found.count <= Batch(found.record).count
    except Malformed:
        pass


def test_a_truncated_answer_gives_its_whole_ranges_and_then_an_error() -> None:
    body = body_of((1, 0, 1, [b"a"]), (2, 0, 1, [b"b"]))
    for cut in (len(body) // 2 + 10, len(body) - 8):
        found = parse_ranges(body[:cut])
        assert next(found).first_version == 1
        with pytest.raises(TooShort):
            next(found)


def test_an_impossible_record_length_is_refused_before_it_is_used() -> None:
    body = bytearray(body_of((1, 0, 1, [b"a"])))
    body[4:8] = (0xFFFFFFF8).to_bytes(4, "little")
    with pytest.raises(CountOverflow):
        next(parse_ranges(body))


@pytest.mark.parametrize(("offset", "count"), [(0, 0), (0, 3), (2, 1)])
def test_messages_that_are_not_in_the_record_are_refused(offset: int, count: int) -> None:
    with pytest.raises(BadOffsets):
        next(parse_ranges(body_of((1, offset, count, [b"a", b"b"]))))


def test_anything_but_a_record_is_refused() -> None:
    body = bytearray(body_of((1, 0, 1, [b"a"])))
    body[RANGE_HEAD_SIZE_BYTES] ^= 0xFF
    with pytest.raises(BadMagic):
        next(parse_ranges(body))


def test_a_number_that_does_not_fit_is_refused() -> None:
    entry = unpack_entry(bytes(encode_batch([b"a"])))
    with pytest.raises(InvalidRequest):
        range_parts(entry, lane=-1, first_version=1, offset=0, count=1)
