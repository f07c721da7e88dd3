"""The decoder: its frames must not depend on how the stream was cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.wire.wire_frames import MESSAGES, frame_of

from avow.errors import BadMagic, CountOverflow, Malformed
from avow.limits import FRAME_SIZE_BYTES_MAX
from avow.wire import messages as m
from avow.wire.frames import decode
from avow.wire.stream import Decoder

STREAMS = st.lists(MESSAGES, max_size=6)


def fed(decoder: Decoder, pieces: list[bytes]) -> list[bytes]:
    return [bytes(frame) for piece in pieces for frame in decoder.receive(piece)]


@given(STREAMS, st.sampled_from([12, 40, 100, 256 * 1024]))
@settings(max_examples=50)
def test_fed_byte_by_byte_equals_fed_whole(messages: list[m.Message], chunk_size_bytes: int) -> None:
    frames = [frame_of(number, message) for number, message in enumerate(messages)]
    stream = b"".join(frames)
    one_by_one = [stream[at : at + 1] for at in range(len(stream))]
    assert fed(Decoder(chunk_size_bytes=chunk_size_bytes), one_by_one) == frames
    assert fed(Decoder(chunk_size_bytes=chunk_size_bytes), [stream]) == frames
    assert [decode(frame) for frame in frames] == list(enumerate(messages))


@given(STREAMS, st.data())
@settings(max_examples=50)
def test_the_buffer_interface_gives_the_same_frames(messages: list[m.Message], data: st.DataObject) -> None:
    frames = [frame_of(7, message) for message in messages]
    stream, decoder, found = b"".join(frames), Decoder(chunk_size_bytes=300), []
    while stream:
        room = decoder.get_buffer(-1)
        size = data.draw(st.integers(1, min(len(room), len(stream))))
        room[:size] = stream[:size]
        found += [bytes(frame) for frame in decoder.buffer_updated(size)]
        stream = stream[size:]
    assert found == frames
    assert decoder.statistics()["frames"] == len(frames)
    assert decoder.statistics()["unfinished_bytes"] == 0


def test_frames_are_unchanged_while_more_bytes_are_received() -> None:
    decoder = Decoder(chunk_size_bytes=4096)
    sent = [frame_of(route, m.Stored(route, route)) for route in range(2_000)]
    kept = [frame for frame_bytes in sent for frame in decoder.receive(frame_bytes)]
    assert [bytes(frame) for frame in kept] == sent
    assert all(frame.readonly for frame in kept)
    assert decoder.statistics()["chunks"] > 10


def test_a_frame_larger_than_a_chunk_is_received_into_separate_memory() -> None:
    entry = m.Entry(1, 1, m.Kind.DATA, batch=bytes(100_000))
    large, small = frame_of(1, m.Forward(1, -1, entry)), frame_of(1, m.Claim(1))
    decoder = Decoder(chunk_size_bytes=1024)
    stream = small + large + small
    pieces = [stream[at : at + 777] for at in range(0, len(stream), 777)]
    assert fed(decoder, pieces) == [small, large, small]
    assert decoder.statistics()["chunks"] <= 4


def test_whole_frames_before_an_error_are_returned_and_then_the_error_persists() -> None:
    good = frame_of(1, m.Claim(1))
    decoder = Decoder()
    assert decoder.receive(good + b"not a frame at all") == [good]
    for call in (lambda: decoder.receive(good), lambda: decoder.buffer_updated(0), decoder.get_buffer):
        with pytest.raises(BadMagic):
            call()


def test_a_frame_that_would_exceed_the_limit_is_refused_at_its_first_bytes() -> None:
    start = bytearray(frame_of(1, m.Claim(1))[:12])
    start[8:12] = (FRAME_SIZE_BYTES_MAX + 8).to_bytes(4, "little")
    decoder = Decoder()
    with pytest.raises(CountOverflow):
        decoder.receive(start)
    assert decoder.statistics()["chunks"] == 1


@given(st.binary(max_size=200).filter(lambda garbage: garbage[4:6] != b"Av"), st.integers(1, 50))
def test_garbage_in_a_stream_is_malformed_at_its_first_length_field(garbage: bytes, size: int) -> None:
    pieces = [garbage[at : at + size] for at in range(0, len(garbage), size)]
    decoder = Decoder(chunk_size_bytes=64)
    if len(garbage) < 12:
        assert fed(decoder, pieces) == []
        return
    with pytest.raises(BadMagic):
        fed(decoder, pieces)


@given(st.binary(max_size=300), st.integers(1, 50))
def test_a_stream_that_breaks_later_is_malformed_and_nothing_else(garbage: bytes, size: int) -> None:
    stream = frame_of(1, m.Claim(1)) + garbage
    decoder = Decoder(chunk_size_bytes=64)
    frames = []
    try:
        for at in range(0, len(stream), size):
            frames += decoder.receive(stream[at : at + size])
    except Malformed:
        assert len(garbage) >= 12
    assert decode(frames[0]) == (1, m.Claim(1))
