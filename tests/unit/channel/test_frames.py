"""Encoding and decoding of frames, and every kind of malformed frame."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avow.channel.protocol.frames import (
    NUMBER_MAX,
    Ack,
    Commit,
    Data,
    End,
    EndCode,
    Hello,
    ack_bytes,
    commit_bytes,
    data_parts,
    end_bytes,
    hello_bytes,
    read_packet,
)
from avow.errors import BadMagic, CountOverflow, Malformed, TooShort, UnknownKind, UnknownVersion
from avow.limits import CHANNEL_VALUE_SIZE_BYTES_MAX

HELLO = Hello(b"c" * 16, b"t" * 16, 7, 11, 3, 2, 4_096, 20 << 20, 30, fresh=True)
END = End(EndCode.REFUSED, 2, 11, "UNKNOWN_QUEUE", "there is no queue “a”")
DATA = b"".join(data_parts(5, [b"one", b"", b"three"]))
FRAMES = {
    "hello": hello_bytes(HELLO),
    "data": DATA,
    "commit": commit_bytes(4, 7),
    "ack": ack_bytes(9),
    "end": end_bytes(END),
}

NUMBERS = st.integers(0, NUMBER_MAX)
BYTES_16 = st.binary(min_size=16, max_size=16)
U32 = st.integers(0, (1 << 32) - 1)


def plain(packet: bytes) -> list[Any]:
    return [
        (frame.first, [bytes(value) for value in frame.values]) if isinstance(frame, Data) else frame
        for frame in read_packet(packet)
    ]


def test_a_packet_is_its_frames_one_after_another() -> None:
    assert plain(b"".join(FRAMES.values())) == [
        HELLO,
        (5, [b"one", b"", b"three"]),
        Commit(4, 7),
        Ack(9),
        END,
    ]


def test_an_empty_packet_has_no_frames() -> None:
    assert plain(b"") == []


def test_the_bytes_of_a_hello_are_those_of_the_document() -> None:
    numbers = struct.pack("<IQQQIII", 7, 11, 3, 2, 4_096, 20 << 20, 30)
    assert hello_bytes(HELLO) == b"\x01AvCh\x01\x01" + b"c" * 16 + b"t" * 16 + numbers


def test_the_bytes_of_the_others_are_those_of_the_document() -> None:
    assert struct.pack("<BQI3I", 2, 5, 3, 3, 0, 5) + b"onethree" == DATA
    assert FRAMES["commit"] == struct.pack("<BQQ", 3, 4, 7)
    assert FRAMES["ack"] == struct.pack("<BQ", 4, 9)
    text = END.text.encode()
    assert FRAMES["end"] == struct.pack("<BBQQHH", 5, 8, 2, 11, 13, len(text)) + b"UNKNOWN_QUEUE" + text


def test_the_end_codes_are_those_of_the_document() -> None:
    names = "CLOSED ABORTED UNKNOWN_CHANNEL EXPIRED IMPOSSIBLE PROTOCOL CAP_EXCEEDED FENCED REFUSED MOVED GOING"
    assert [code.name for code in sorted(EndCode)] == names.split()
    assert list(map(int, sorted(EndCode))) == list(range(11))


def test_values_are_slices_of_the_packet_and_not_copies() -> None:
    packet = bytearray(DATA)
    (frame,) = read_packet(packet)
    assert isinstance(frame, Data)
    packet[-5:] = b"THREE"
    assert bytes(frame.values[2]) == b"THREE"


@pytest.mark.parametrize("kind", FRAMES)
def test_a_truncated_frame_is_malformed(kind: str) -> None:
    whole = FRAMES[kind]
    for size in range(1, len(whole)):
        with pytest.raises(Malformed):
            list(read_packet(whole[:size]))


@pytest.mark.parametrize("kind", FRAMES)
def test_frames_before_a_truncated_one_are_returned(kind: str) -> None:
    frames = read_packet(ack_bytes(1) + FRAMES[kind][:-1])
    assert next(frames) == Ack(1)
    with pytest.raises(Malformed):
        next(frames)


@pytest.mark.parametrize("kind", [0, 6, 255])
def test_an_unknown_kind_is_named_with_its_place(kind: int) -> None:
    with pytest.raises(UnknownKind, match="at byte 9"):
        list(read_packet(ack_bytes(1) + bytes([kind])))


def test_a_hello_of_another_protocol_has_another_magic() -> None:
    with pytest.raises(BadMagic):
        list(read_packet(hello_bytes(HELLO).replace(b"AvCh", b"AvCx")))


def test_a_hello_of_another_version_is_refused() -> None:
    changed = bytearray(hello_bytes(HELLO))
    changed[5] = 2
    with pytest.raises(UnknownVersion):
        list(read_packet(changed))


def test_unknown_flags_are_ignored() -> None:
    changed = bytearray(hello_bytes(HELLO))
    changed[6] = 0b1111_1110
    (frame,) = read_packet(changed)
    assert isinstance(frame, Hello)
    assert not frame.fresh


TOO_HIGH = NUMBER_MAX + 1


@pytest.mark.parametrize(
    "packet",
    [
        ack_bytes(TOO_HIGH),
        commit_bytes(TOO_HIGH, 1),
        commit_bytes(1, TOO_HIGH),
        b"".join(data_parts(TOO_HIGH, [b"x"])),
        end_bytes(End(1, acked=TOO_HIGH)),
        end_bytes(End(1, received_to=TOO_HIGH)),
        hello_bytes(Hello(bytes(16), bytes(16), 1, received_to=TOO_HIGH)),
        hello_bytes(Hello(bytes(16), bytes(16), 1, commits_received_to=TOO_HIGH)),
        hello_bytes(Hello(bytes(16), bytes(16), 1, acked=TOO_HIGH)),
        ack_bytes((1 << 64) - 1),
    ],
)
def test_a_number_too_large_for_javascript_is_malformed(packet: bytes) -> None:
    with pytest.raises(CountOverflow):
        list(read_packet(packet))


def test_the_highest_number_can_be_read() -> None:
    assert plain(commit_bytes(NUMBER_MAX, NUMBER_MAX)) == [Commit(NUMBER_MAX, NUMBER_MAX)]


def test_data_without_a_message_is_malformed() -> None:
    with pytest.raises(CountOverflow):
        list(read_packet(struct.pack("<BQI", 2, 1, 0)))


def test_a_count_beyond_the_packet_is_detected_before_it_is_used() -> None:
    with pytest.raises(CountOverflow):
        list(read_packet(struct.pack("<BQI", 2, 1, (1 << 32) - 1)))


def test_values_beyond_the_packet_are_malformed() -> None:
    with pytest.raises(TooShort):
        list(read_packet(struct.pack("<BQI2I", 2, 1, 2, 4, 4) + b"1234567"))


def test_a_value_size_above_the_limit_is_malformed_even_without_the_value() -> None:
    with pytest.raises(CountOverflow):
        list(read_packet(struct.pack("<BQII", 2, 1, 1, CHANNEL_VALUE_SIZE_BYTES_MAX + 1)))


def test_a_long_end_text_is_truncated_and_still_readable() -> None:
    (frame,) = read_packet(end_bytes(End(1, text="ä" * 5_000)))
    assert isinstance(frame, End)
    assert frame.text == "ä" * 2_048


def test_a_text_truncated_within_a_character_can_still_be_read() -> None:
    (frame,) = read_packet(end_bytes(End(1, text="€" * 5_000)))
    assert isinstance(frame, End)
    assert frame.text == "€" * 1_365 + "\ufffd"


def test_a_text_is_sent_up_to_the_first_character_that_is_not_unicode() -> None:
    (frame,) = read_packet(end_bytes(End(1, name="\ud800", text="a\udcffb")))
    assert isinstance(frame, End)
    assert (frame.name, frame.text) == ("?", "a?b")


def test_bytes_that_are_not_text_are_replaced() -> None:
    (frame,) = read_packet(struct.pack("<BBQQHH", 5, 1, 0, 0, 1, 1) + b"\xff\xfe")
    assert isinstance(frame, End)
    assert (frame.name, frame.text) == ("\ufffd", "\ufffd")


@given(
    st.builds(
        Hello,
        channel=BYTES_16,
        token=BYTES_16,
        generation=U32,
        received_to=NUMBERS,
        commits_received_to=NUMBERS,
        acked=NUMBERS,
        cap_count=U32,
        cap_bytes=U32,
        window_s=U32,
        fresh=st.booleans(),
    )
)
def test_every_hello_is_read_back_unchanged(hello: Hello) -> None:
    assert plain(hello_bytes(hello)) == [hello]


@given(NUMBERS, st.lists(st.binary(max_size=40), min_size=1, max_size=20))
def test_every_message_is_read_back_unchanged(first: int, values: list[bytes]) -> None:
    assert plain(b"".join(data_parts(first, values))) == [(first, values)]


@given(st.binary(max_size=300))
def test_any_bytes_are_frames_or_malformed(packet: bytes) -> None:
    try:
        plain(packet)
    except Malformed:
        return


@given(st.sampled_from(tuple(FRAMES.values())), st.integers(0, 400), st.integers(0, 255))
def test_a_changed_byte_gives_another_frame_or_is_malformed(packet: bytes, at: int, byte: int) -> None:
    changed = bytearray(packet)
    changed[at % len(changed)] = byte
    try:
        plain(bytes(changed))
    except Malformed:
        return
