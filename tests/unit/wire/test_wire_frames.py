"""Frames: every message between peers survives the trip, and no frame that is wrong is taken for one."""

from __future__ import annotations

from struct import pack_into

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.wire.wire_frames import CLASSES, MESSAGES, frame_of, message_of, resigned
from tests.unit.wire.wire_material import forged

from avow.errors import (
    BadChecksum,
    BadMagic,
    BadOffsets,
    CountOverflow,
    FolderUnusable,
    InvalidRequest,
    Malformed,
    TooLarge,
    TooLong,
    TooShort,
    UnknownKind,
    UnknownVersion,
)
from avow.limits import BATCH_SIZE_BYTES_MAX, ENQUEUE_ENTRIES_MAX, FRAME_SIZE_BYTES_MAX
from avow.wire import messages as m
from avow.wire.batch import encode_batch, pack_entry, unpack_entry
from avow.wire.frames import Hello, decode, decode_hello, encode, raw_records
from avow.wire.versions import NEWEST, common

ROUTES = st.integers(0, 2**32 - 1)
ENTRY = unpack_entry(bytes(encode_batch([b"value"] * 3, write_id=b"w" * 16)))
ENQUEUE = m.Enqueue(0x10001, 4, 0x10001, (ENTRY, m.Entry(2, 1, m.Kind.PUBLISH, control=b"txn")), 3, 4)
SNAPSHOT = m.Snapshot(7, 0x10001, (1, 2, 3), (4,), b"state")
HELLO = Hello(b"c" * 16, b"p" * 16, 3, 17)


@pytest.mark.parametrize("message", CLASSES, ids=lambda message: message.__name__)
@given(data=st.data(), route=ROUTES)
def test_every_message_is_decoded_as_it_was_encoded(message: type, data: st.DataObject, route: int) -> None:
    sent = data.draw(message_of(message))
    frame = frame_of(route, sent)
    assert decode(frame) == (route, sent)
    assert type(decode(memoryview(frame))[1]) is message
    assert len(frame) % 8 == 0


def test_every_message_has_one_layout() -> None:
    assert len(CLASSES) == len(set(CLASSES))


def test_a_hello_is_the_first_frame_and_only_the_first() -> None:
    frame = b"".join(encode(0, HELLO))
    assert decode_hello(frame) == HELLO
    with pytest.raises(Malformed, match="a second Hello"):
        decode(frame)
    with pytest.raises(Malformed, match="expected Hello, found Claim"):
        decode_hello(frame_of(0, m.Claim(1)))


def test_the_hello_of_the_first_release_and_ours_are_read_by_both() -> None:
    """It had one number of 16 bits, the newest version, and accepts any that is at least 1."""
    ours = bytearray(b"".join(encode(0, HELLO)))
    at = len(ours) - 4  # two bytes of padding follow
    assert int.from_bytes(ours[at : at + 2], "little") >= 1
    theirs = resigned(bytes(ours), "H", at, 1)
    assert decode_hello(theirs) == Hello(b"c" * 16, b"p" * 16, 3, 17, newest=1, oldest=0)


@pytest.mark.parametrize(
    ("oldest", "newest", "level", "version"),
    [
        (1, 1, 1, 1),
        (1, NEWEST, 1, NEWEST),
        (1, NEWEST, NEWEST, NEWEST),
        (1, 200, NEWEST, NEWEST),
        (NEWEST, 200, 1, 2),
    ],
)
def test_a_link_uses_the_newest_version_that_both_ends_read(oldest: int, newest: int, level: int, version: int) -> None:
    assert common(oldest, newest, level=level) == version


@pytest.mark.parametrize(("oldest", "newest", "level"), [(1, 1, 2), (200, 201, 1), (0, 0, 1)])
def test_a_peer_without_a_common_version_is_refused(oldest: int, newest: int, level: int) -> None:
    with pytest.raises(FolderUnusable, match="of the protocol"):
        common(oldest, newest, level=level)


def test_records_are_embedded_unchanged_in_a_frame_and_can_be_passed_on() -> None:
    records = [pack_entry(entry) for entry in ENQUEUE.entries]
    frame = frame_of(5, ENQUEUE)
    assert raw_records(frame) == records
    assert b"".join(encode(5, ENQUEUE, records=raw_records(frame))) == frame
    assert raw_records(frame_of(5, m.Claim(1))) == []


def test_large_batches_are_not_copied_on_the_way_out_or_in() -> None:
    entry = unpack_entry(memoryview(encode_batch([bytes(100)] * 1000)))
    pieces = encode(1, m.Enqueue(1, 0, 0, (entry,), 0, 0))
    assert any(piece is entry.batch for piece in pieces)
    frame = bytearray().join(pieces)
    _, message = decode(frame)
    assert isinstance(message, m.Enqueue)
    frame[-8] ^= 1
    assert message.entries[0].batch != entry.batch


def test_a_message_too_large_for_a_frame_is_not_sent() -> None:
    many = (m.Entry(1, 1, m.Kind.NOOP),) * (ENQUEUE_ENTRIES_MAX + 1)
    large = (m.Entry(1, 1, m.Kind.DATA, batch=bytes(BATCH_SIZE_BYTES_MAX)),) * (
        FRAME_SIZE_BYTES_MAX // BATCH_SIZE_BYTES_MAX
    )
    for message in (
        m.Enqueue(1, 0, 0, many, 0, 0),
        m.Enqueue(1, 0, 0, large, 0, 0),
        m.Install(1, m.Snapshot(1, 1, (), (), bytes(FRAME_SIZE_BYTES_MAX)), 0, 0),
    ):
        with pytest.raises(TooLarge):
            encode(1, message)


def test_numbers_that_do_not_fit_their_field_are_not_sent() -> None:
    for route, message in ((1, m.Claim(-1)), (1, m.Stored(1, 2**63)), (-1, m.Claim(1)), (2**32, m.Claim(1))):
        with pytest.raises(InvalidRequest):
            encode(route, message)
    with pytest.raises(InvalidRequest):
        encode(1, m.LaneHeartbeat(((1, 2, 2**63),)))
    with pytest.raises(InvalidRequest):
        encode(1, ENQUEUE, records=[])


# --------------------------------------------------------- frames that are wrong


CLAIM = frame_of(9, m.Claim(0x10001))  # 24 + 8 bytes
FRAME = frame_of(9, ENQUEUE)  # 24 + 40 bytes of head; records at 64
FORWARD = frame_of(9, m.Forward(1, -1, ENTRY))
LANES = frame_of(9, m.LaneHeartbeat(((1, 2, 3), (4, 5, 6))))
INSTALL = frame_of(9, m.Install(1, SNAPSHOT, 0, 0))  # 24 + 24; snapshot at 48, its counts at 64

WRONG = [
    ("nothing at all", b"", TooShort),
    ("half a header", CLAIM[:20], TooShort),
    ("the end is missing", FRAME[:-8], TooShort),
    ("something follows", CLAIM + bytes(8), TooLong),
    ("a browser", b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", BadMagic),
    ("a protocol of the future", resigned(CLAIM, "B", 6, 2), UnknownVersion),
    ("a length above the limit", resigned(CLAIM, "I", 8, FRAME_SIZE_BYTES_MAX + 8), CountOverflow),
    ("a length below a header", resigned(CLAIM, "I", 8, 16), TooShort),
    ("a length that is no multiple of 8", resigned(CLAIM, "I", 8, 33) + b"\0", BadOffsets),
    ("a head longer than its frame", resigned(CLAIM, "I", 16, 40), BadOffsets),
    ("a head shorter than a header", resigned(CLAIM, "I", 16, 16), BadOffsets),
    ("a head that was changed", CLAIM[:24] + b"\1" * 8, BadChecksum),
    ("a kind nobody knows", resigned(CLAIM, "B", 7, 99), UnknownKind),
    ("a flag nobody knows", resigned(CLAIM, "H", 22, 1), UnknownVersion),
    ("records where none belong", resigned(CLAIM, "H", 20, 1), CountOverflow),
    ("more records than allowed", resigned(FRAME, "H", 20, ENQUEUE_ENTRIES_MAX + 1), CountOverflow),
    ("a forward of nothing", resigned(FORWARD, "H", 20, 0), CountOverflow),
    ("more records than there are", resigned(FRAME, "H", 20, 3), TooShort),
    ("fewer records than there are", resigned(FRAME, "H", 20, 1), TooLong),
    ("a record that was changed", FRAME[:-1] + b"\1", BadChecksum),
    ("a record of another format", FRAME[:64] + forged(pack_entry(ENTRY), "B", 8, 2) + FRAME[-88:], UnknownVersion),
    ("too few fixed fields", resigned(CLAIM, "I", 16, 28), TooShort),
    ("too many fixed fields", resigned(frame_of(9, m.Nack(1, 2)), "B", 7, 3), TooLong),
    ("part of a lane", resigned(LANES, "I", 16, 24 + 40), BadOffsets),
    ("half a snapshot", resigned(INSTALL, "I", 16, 24 + 24 + 8), TooShort),
    ("more peers than may be", resigned(INSTALL, "I", 64, 2**32 - 1), CountOverflow),
    ("more peers than there are", resigned(INSTALL, "I", 64, 20), TooShort),
]


@pytest.mark.parametrize(("frame", "error"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_an_invalid_frame_has_one_named_error(frame: bytes, error: type[Malformed]) -> None:
    with pytest.raises(Malformed) as raised:
        decode(frame)
    assert type(raised.value) is error


@pytest.mark.parametrize("frame", [CLAIM, FRAME, FORWARD, LANES, INSTALL])
def test_every_flipped_bit_of_a_frame_is_detected(frame: bytes) -> None:
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(Malformed):
            decode(damaged)


@given(st.binary(max_size=200), MESSAGES, st.integers(0, 80), st.integers(0, 255))
def test_signed_garbage_in_a_frame_is_malformed_and_nothing_else(
    garbage: bytes, message: m.Message, at: int, kind: int
) -> None:
    frame = frame_of(1, message)
    body = (frame[24:][:at] + garbage)[: len(garbage) & ~7]
    damaged = bytearray(frame[:24]) + body
    pack_into("<BI", damaged, 7, kind, 24 + len(body))
    for head_length in (24 + len(body), max(24, len(body))):
        try:
            decode(resigned(damaged, "I", 16, head_length))
        except Malformed:
            continue


@given(st.binary(max_size=200))
def test_garbage_is_not_a_frame(garbage: bytes) -> None:
    for look in (decode, decode_hello, raw_records):
        with pytest.raises(Malformed):
            look(garbage)
