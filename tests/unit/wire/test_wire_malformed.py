"""Every way a record can be wrong has one name, and no way is without one."""

from __future__ import annotations

from struct import pack_into

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.wire.wire_material import forged, sign

from avow.errors import (
    BadChecksum,
    BadMagic,
    BadOffsets,
    CountOverflow,
    Malformed,
    TooLong,
    TooShort,
    UnknownKind,
    UnknownVersion,
)
from avow.limits import BATCH_COUNT_MAX, BATCH_SIZE_BYTES_MAX, CONTROL_SIZE_BYTES_MAX, MESSAGE_SIZE_BYTES_MAX
from avow.wire.batch import HEADER_SIZE_BYTES, Batch, check, encode_batch, merge, pack_entry, record_size, unpack_entry
from avow.wire.messages import Entry, Kind

# Header at 0; preamble at 80: sections 80, codec 82, reserved 83, count 84, writes 88, lengths from 92; columns at 112.
PLAIN = encode_batch([b"aaa", b"bb", b"c"], write_id=b"w" * 16)
FULL = encode_batch([b"aaa", b"bb"], keys=[b"k", None], headers=[[("n", b"1")], [("m", b"22")]], times=[1, 2])
MERGED = merge([encode_batch([b"a"], write_id=b"w" * 16), encode_batch([b"b", b"c"], write_id=b"x" * 16)])
COMMAND = pack_entry(Entry(1, 1, Kind.PUBLISH, control=b"txn"))
# FULL's columns: value offsets 112, values 128, validity 136, key offsets 144, keys 160, lists 168, name offsets 184,
# names 200, header offsets 208, header values 224, times 232.


def with_body(record: bytes | bytearray, body: bytes | bytearray) -> bytearray:
    """The record's header over another body, with a true length and checksums."""
    copy = bytearray(record[:HEADER_SIZE_BYTES]) + body + bytes(-len(body) % 8)
    pack_into("<I", copy, 16, len(body))
    return sign(copy)


def unsigned(record: bytes | bytearray, layout: str, at: int, *numbers: int) -> bytearray:
    """The header is signed, the body's checksum is not corrected."""
    copy = bytearray(record)
    pack_into("<" + layout, copy, at, *numbers)
    pack_into("<I", copy, 4, crc32c(memoryview(copy)[8:HEADER_SIZE_BYTES]))
    return copy


def big_value() -> bytearray:
    half = MESSAGE_SIZE_BYTES_MAX // 2 + 8
    return forged(encode_batch([bytes(half)] * 2), "iii", 112, 0, 0, 2 * half)


def compressed(codec: str, columns: bytes) -> bytearray:
    """PLAIN, whose columns are 24 bytes, with something else in a compressed form."""
    packed = pa.Codec(codec).compress(columns, asbytes=True)
    number = {"zstd": 1, "lz4": 2}[codec]
    return with_body(PLAIN, PLAIN[80:82] + bytes([number, 0]) + PLAIN[84:112] + packed)


RECORDS = [
    ("nothing at all", b"", TooShort),
    ("half a header", PLAIN[:40], TooShort),
    ("the last byte is missing", PLAIN[:-1], TooShort),
    ("eight bytes too many", PLAIN + bytes(8), TooLong),
    ("zeros of an unused segment", bytes(200), BadMagic),
    ("another magic", forged(PLAIN, "4s", 0, b"WOVA"), BadMagic),
    ("a format of the future", forged(PLAIN, "B", 8, 2), UnknownVersion),
    ("a header that was changed", bytes(PLAIN[:40]) + b"\1" + PLAIN[41:], BadChecksum),
    ("a body that was changed", PLAIN[:-1] + b"\1", BadChecksum),
    ("a body checksum that is not its own", unsigned(PLAIN, "I", 12, 0), BadChecksum),
    ("a kind nobody knows", forged(PLAIN, "B", 9, len(Kind.NAMES)), UnknownKind),
    ("a flag nobody knows", forged(PLAIN, "H", 10, 3), UnknownVersion),
    ("reserved bytes in use", forged(PLAIN, "I", 24, 1), UnknownVersion),
    ("a command longer than the body", forged(PLAIN, "I", 20, 1000), BadOffsets),
    ("a command above its limit", forged(PLAIN, "I", 20, CONTROL_SIZE_BYTES_MAX + 1), CountOverflow),
    ("a body above its limit", forged(PLAIN, "I", 16, BATCH_SIZE_BYTES_MAX + 1), CountOverflow),
    ("a body of four gigabytes", forged(PLAIN, "I", 16, 2**32 - 1), CountOverflow),
    ("a count above its limit", forged(PLAIN, "I", 28, BATCH_COUNT_MAX + 1), CountOverflow),
]

BATCHES = [
    ("less than a preamble", with_body(PLAIN, PLAIN[80:100]), TooShort),
    ("a count with no batch", forged(COMMAND, "I", 28, 1), CountOverflow),
    ("a section nobody knows", forged(PLAIN, "H", 80, 16), UnknownVersion),
    ("a codec nobody knows", forged(PLAIN, "B", 82, 3), UnknownVersion),
    ("reserved preamble bytes in use", forged(PLAIN, "B", 83, 1), UnknownVersion),
    ("two counts that differ", forged(PLAIN, "I", 84, 2), CountOverflow),
    ("a smaller count in both places", forged(forged(PLAIN, "I", 84, 1), "I", 28, 1), TooLong),
    ("a larger count in both places", forged(forged(PLAIN, "I", 84, 9), "I", 28, 9), TooShort),
    ("writes without their bit", forged(PLAIN, "I", 88, 1), CountOverflow),
    ("the bit without writes", forged(PLAIN, "H", 80, 8), CountOverflow),
    ("more writes than messages", forged(MERGED, "I", 88, 4), CountOverflow),
    ("writes beyond the section", with_body(MERGED, MERGED[80:120]), TooShort),
    ("writes that cover too little", forged(MERGED, "I", 80 + 32 + 32 + 4, 3), CountOverflow),
    ("writes that cover too much", forged(MERGED, "I", 80 + 32 + 32 + 4, 7), CountOverflow),
    ("a write without messages", forged(MERGED, "II", 80 + 32 + 32, 1, 7), CountOverflow),
    ("more value bytes than there are", forged(PLAIN, "I", 92, 100), TooShort),
    ("fewer value bytes than there are", forged(encode_batch([b"x" * 16]), "I", 92, 4), TooLong),
    ("value bytes of four gigabytes", forged(PLAIN, "I", 92, 2**32 - 1), CountOverflow),
    ("key bytes without keys", forged(PLAIN, "I", 96, 1), BadOffsets),
    ("headers without headers", forged(PLAIN, "I", 100, 1), BadOffsets),
    ("header names without headers", forged(PLAIN, "I", 104, 1), BadOffsets),
    ("header values without headers", forged(PLAIN, "I", 108, 1), BadOffsets),
    ("headers that cannot all be there", forged(FULL, "I", 100, 2**32 - 1), CountOverflow),
    ("value offsets that begin late", forged(PLAIN, "i", 112, 1), BadOffsets),
    ("value offsets below zero", forged(PLAIN, "i", 116, -1), BadOffsets),
    ("value offsets that descend", forged(PLAIN, "ii", 116, 5, 3), BadOffsets),
    ("value offsets that end early", forged(PLAIN, "i", 124, 5), BadOffsets),
    ("value offsets that end late", forged(PLAIN, "i", 124, 7), BadOffsets),
    ("key offsets that descend", forged(FULL, "i", 148, 2), BadOffsets),
    ("header lists that end late", forged(FULL, "i", 176, 3), BadOffsets),
    ("header lists that descend", forged(FULL, "i", 172, 3), BadOffsets),
    ("header names that begin late", forged(FULL, "i", 184, 1), BadOffsets),
    ("header values that descend", forged(FULL, "i", 212, 4), BadOffsets),
    ("a message above its limit", big_value(), CountOverflow),
    ("no compressed columns at all", with_body(PLAIN, PLAIN[80:82] + b"\1\0" + PLAIN[84:112]), TooShort),
    ("a zstd frame of nonsense", with_body(PLAIN, PLAIN[80:82] + b"\1\0" + PLAIN[84:112] + b"nonsense"), BadChecksum),
    ("an lz4 frame of nonsense", with_body(PLAIN, PLAIN[80:82] + b"\2\0" + PLAIN[84:112] + b"nonsense"), BadChecksum),
    ("zstd that expands to less", compressed("zstd", bytes(16)), TooShort),
    ("lz4 that expands to less", compressed("lz4", bytes(16)), TooShort),
    ("a zstd bomb", compressed("zstd", bytes(64 * 2**20)), TooLong),
    ("an lz4 bomb", compressed("lz4", bytes(64 * 2**20)), TooLong),
    ("compressed offsets that are wrong", compressed("zstd", bytes(24)), BadOffsets),
]


@pytest.mark.parametrize(("record", "error"), [case[1:] for case in RECORDS], ids=[case[0] for case in RECORDS])
def test_an_invalid_record_has_one_named_error(record: bytes, error: type[Malformed]) -> None:
    for look in (check, unpack_entry):
        with pytest.raises(Malformed) as raised:
            look(record)
        assert type(raised.value) is error


@pytest.mark.parametrize(("record", "error"), [case[1:] for case in BATCHES], ids=[case[0] for case in BATCHES])
def test_an_invalid_batch_in_a_valid_record_has_one_named_error(record: bytes, error: type[Malformed]) -> None:
    unpack_entry(record)  # the record is sound, and a peer that only stores it does not look inside
    with pytest.raises(Malformed) as raised:
        check(record)
    assert type(raised.value) is error


@pytest.mark.parametrize("record", [PLAIN, FULL, MERGED, COMMAND, encode_batch([b"a"] * 9, compression="zstd")])
def test_every_flipped_bit_is_detected(record: bytearray) -> None:
    for bit in range(8 * len(record)):
        damaged = bytearray(record)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        for look in (check, unpack_entry):
            with pytest.raises(Malformed):
                look(damaged)


@pytest.mark.parametrize("record", [PLAIN, FULL, MERGED, COMMAND])
def test_every_truncation_is_too_short(record: bytearray) -> None:
    for size in range(len(record)):
        with pytest.raises(TooShort):
            check(record[:size])


def test_the_size_of_a_record_is_not_trusted_without_its_checksum() -> None:
    header = bytearray(PLAIN[:HEADER_SIZE_BYTES])
    pack_into("<I", header, 16, 1 << 20)
    with pytest.raises(BadChecksum):
        record_size(header)


@given(st.binary(max_size=300))
@example(bytes(80))
def test_garbage_is_malformed_and_nothing_else(garbage: bytes) -> None:
    for record in (garbage, bytes(PLAIN[:HEADER_SIZE_BYTES]) + garbage):
        for look in (check, unpack_entry, record_size, Batch):
            try:
                look(record)
            except Malformed:
                continue
            assert look in (record_size, Batch)  # only the header was looked at, and it may be a true one


@given(st.binary(max_size=120), st.integers(0, 9), st.sampled_from([PLAIN, FULL, MERGED]), st.integers(80, 200))
def test_signed_garbage_in_a_batch_is_malformed_and_nothing_else(
    garbage: bytes, count: int, record: bytearray, at: int
) -> None:
    """With correct checksums every later check is reached."""
    for body in (garbage, bytes(record[80:at]) + garbage, bytes(record[80:at]) + garbage + bytes(record[at:])):
        damaged = with_body(record, body)
        pack_into("<I", damaged, 28, count)
        try:
            batch = check(sign(damaged))
        except Malformed:
            continue
        assert len(batch.values()) == len(batch.keys()) == batch.count
        assert sum(write.messages for write in batch.writes()) == batch.count
        assert all(batch.headers(number) is not None for number in range(batch.count))
