"""A WebChannel session without HTTP: its answers and packets; nothing is lost or duplicated."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avow.channel.transports import webchannel
from avow.channel.transports.webchannel import Form, Session, State, Timing, framed, read_form
from avow.errors import Busy, InvalidRequest, Malformed, TooLarge

TIMING = Timing(keep_alive_s=10, expiry_s=60, back_age_s_max=100)


def session(*, now: float = 0.0) -> Session:
    return Session("abc", now=now, timing=TIMING)


def unframed(data: bytes) -> list[Any]:
    """How a client parses a response: it counts UTF-16 code units, two bytes each in this encoding."""
    text, chunks = data.decode("utf-8").encode("utf-16-le"), []
    while text:
        digits, _, rest = text.partition("\n".encode("utf-16-le"))
        size = 2 * int(digits.decode("utf-16-le"))
        assert len(rest) >= size, "an incomplete chunk"
        chunks.append(json.loads(rest[:size].decode("utf-16-le")))
        text = rest[size:]
    return chunks


def written(one: Session, *, now: float = 0.0) -> list[Any]:
    """The arrays that the back channel receives now."""
    arrays: list[Any] = []
    while (chunk := one.chunk(now)) is not None:
        for group in unframed(chunk.data):
            arrays += group
    return arrays


def taken(one: Session) -> list[bytes]:
    """The packets from the client that were not taken yet."""
    return list(iter(one.take_packet, None))


def packet(array: Any) -> bytes:
    return b64decode(array[1][0]["f"])


def form(first: int, *packets: bytes, raw: bool = False) -> Form:
    return read_form(body(dict(enumerate(packets, first)), raw=raw))


def body(maps: dict[int, bytes], *, raw: bool = False) -> bytes:
    """In the format of both libraries."""
    first = min(maps, default=0)
    fields = [f"count={len(maps)}"] + ([f"ofs={first}"] if maps else [])
    for number, one in maps.items():
        text = b64encode(one).decode()
        if raw:
            fields.append(f"req{number - first}___data__=" + quote(json.dumps({"f": text}), safe="!'()*-._~"))
        else:
            fields.append(f"req{number - first}_f=" + quote(text, safe="!'()*-._~"))
    return "&".join(fields).encode()


# ---------------------------------------------------------------------- the handshake


def test_the_handshake_names_the_session_and_its_keep_alive() -> None:
    assert json.loads(session().open(Form({}))) == [[0, ["c", "abc", "", 8, webchannel.SERVER_VERSION, 10_000]]]


def test_maps_in_the_handshake_are_received() -> None:
    one = session()
    one.open(form(0, b"hello", b"again"))
    assert taken(one) == [b"hello", b"again"]
    assert taken(one) == []


# ---------------------------------------------------------------------- up


@pytest.mark.parametrize("raw", [False, True])
def test_both_notations_of_a_map_are_read(raw: bool) -> None:
    one = session()
    one.forward(form(0, bytes(range(256)), b"", raw=raw), aid=0, now=0)
    assert taken(one) == [bytes(range(256)), b""]


def test_a_retried_post_with_more_maps_adds_only_the_new_ones() -> None:
    one = session()
    one.forward(form(0, b"a", b"b"), aid=0, now=0)
    one.forward(form(0, b"a", b"b", b"c"), aid=0, now=0)
    assert taken(one) == [b"a", b"b", b"c"]


def test_posts_that_overtake_each_other_are_put_in_order() -> None:
    one = session()
    one.forward(form(3, b"d"), aid=0, now=0)
    one.forward(form(1, b"b", b"c"), aid=0, now=0)
    assert taken(one) == []
    assert one.statistics()["held"] == 3
    one.forward(form(0, b"a"), aid=0, now=0)
    assert taken(one) == [b"a", b"b", b"c", b"d"]
    assert one.statistics()["held"] == 0


def test_a_post_with_gaps_between_its_maps_is_read() -> None:
    one = session()
    one.forward(read_form(b"count=2&ofs=0&req101_f=Yg==&req0_f=YQ=="), aid=0, now=0)
    assert taken(one) == [b"a"]
    assert one.statistics()["held"] == 1


def test_early_maps_are_held_up_to_a_bound() -> None:
    one = session()
    for group in range(10):
        early = Form({1 + 1_000 * group + n: b"x" for n in range(1_000)})
        one.forward(early, aid=0, now=0)
    with pytest.raises(TooLarge):
        one.forward(form(50_000, b"x"), aid=0, now=0)
    one.forward(form(0, b"first"), aid=0, now=0)
    assert len(taken(one)) == 10_001


def test_posts_are_refused_while_too_many_packets_wait_to_be_taken() -> None:
    one = session()
    size = webchannel.MAPS_HELD_SIZE_BYTES_MAX // 2
    one.forward(Form({0: bytes(size)}), aid=0, now=0)
    one.forward(Form({1: bytes(size)}), aid=0, now=0)
    with pytest.raises(Busy):
        one.forward(Form({2: b"x"}), aid=0, now=0)
    assert one.take_packet() == bytes(size)
    one.forward(Form({2: b"x"}), aid=0, now=0)
    assert [len(packet) for packet in taken(one)] == [size, 1]


def test_a_post_is_answered_with_the_back_channel_state_and_what_is_outstanding() -> None:
    one = session()
    assert one.forward(Form({}), aid=0, now=0) == b"7\n[0,0,0]"
    one.back(aid=0, streaming=True, now=0)
    one.send([b"x"])
    (array,) = written(one)
    size = len(json.dumps(array, separators=(",", ":")))
    assert unframed(one.forward(Form({}), aid=0, now=0)) == [[1, 1, size]]
    assert unframed(one.forward(Form({}), aid=1, now=0)) == [[1, 1, 0]]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"count=",
        b"count=x",
        b"count=-1",
        b"count=1",
        b"count=1&ofs=0",
        b"count=2&ofs=0&req0_f=YQ==",
        b"count=1&ofs=0&req0_f=YQ==&req0_f=YQ==",
        b"count=1&ofs=99999999999999999&req0_f=YQ==",
        b"count=1&ofs=9007199254740991&req1_f=YQ==",
        b"count=1&ofs=0&req0_f=Y",
        b"count=1&ofs=0&req0_f=Y Q=",
        b"count=1&ofs=0&req0_f=%FF%FE",
        b"count=1&ofs=0&req0_type=_badmap",
        b"count=1&ofs=0&req0_g=YQ==",
        b"count=1&ofs=0&reqx_f=YQ==",
        b"count=1&ofs=0&req0___data__=%7B%22f%22%3A1%7D",
        b"count=1&ofs=0&req0___data__=%7B%22g%22%3A%22%22%7D",
        b"count=1&ofs=0&req0___data__=%FF",
        b"count=1&ofs=0&surprise=1",
    ],
)
def test_an_invalid_form_is_malformed(text: bytes) -> None:
    with pytest.raises(Malformed):
        read_form(text)


def test_a_form_with_more_maps_than_a_client_sends_is_too_large() -> None:
    with pytest.raises(TooLarge):
        read_form(body(dict.fromkeys(range(1_002), b"")))


@given(st.binary(max_size=80))
def test_any_bytes_are_a_form_or_an_error_with_a_name(text: bytes) -> None:
    for prefix in (b"", b"count=1&ofs=0&req0_f=", b"count=1&ofs=0&req0___data__="):
        with suppress(Malformed, TooLarge):
            assert len(read_form(prefix + text).maps) <= 1


def test_an_error_leaves_the_session_as_it_was() -> None:
    one = session()
    one.send([b"x"])
    one.back(aid=0, streaming=True, now=0)
    assert [packet(a) for a in written(one)] == [b"x"]
    for aid in (-1, 2, 1 << 60):
        with pytest.raises(InvalidRequest):
            one.forward(form(0, b"lost?"), aid=aid, now=0)
        with pytest.raises(InvalidRequest):
            one.back(aid=aid, streaming=True, now=0)
    assert taken(one) == []
    assert one.state is State.STREAMING
    one.forward(form(0, b"not lost"), aid=1, now=0)
    assert taken(one) == [b"not lost"]


# ---------------------------------------------------------------------- down


def test_arrays_are_numbered_from_one_and_written_once() -> None:
    one = session()
    one.send([b"a"])
    one.send([b"b", memoryview(b"c")])
    one.back(aid=0, streaming=True, now=0)
    arrays = written(one)
    assert [(a[0], packet(a)) for a in arrays] == [(1, b"a"), (2, b"bc")]
    assert written(one) == []


def test_unacknowledged_arrays_are_rewritten_on_the_next_back_channel() -> None:
    one = session()
    first = one.back(aid=0, streaming=True, now=0)
    for name in (b"a", b"b", b"c"):
        one.send([name])
    assert len(written(one)) == 3
    one.gone(first, now=1)
    one.back(aid=1, streaming=True, now=2)
    assert [(a[0], packet(a)) for a in written(one)] == [(2, b"b"), (3, b"c")]


def test_an_old_back_channel_is_refused_and_the_current_one_stays() -> None:
    one = session()
    one.back(aid=0, streaming=True, now=0)
    one.send([b"a"])
    assert len(written(one)) == 1
    one.forward(Form({}), aid=1, now=0)
    with pytest.raises(InvalidRequest):
        one.back(aid=0, streaming=True, now=0)
    assert one.state is State.STREAMING


def test_the_late_loss_of_a_replaced_back_channel_is_ignored() -> None:
    one = session()
    first = one.back(aid=0, streaming=True, now=0)
    one.back(aid=0, streaming=True, now=0)
    one.gone(first, now=0)
    assert one.state is State.STREAMING


def test_a_stream_sends_a_chunk_at_once_and_then_keep_alives() -> None:
    one = session()
    one.back(aid=0, streaming=True, now=5)
    assert written(one, now=5) == [[1, ["noop"]]]
    assert written(one, now=14) == []
    assert written(one, now=15) == [[2, ["noop"]]]


def test_a_long_poll_ends_with_its_first_batch() -> None:
    one = session()
    one.back(aid=0, streaming=False, now=0)
    assert one.chunk(0) is None
    one.send([b"a"])
    one.send([b"b"])
    chunk = one.chunk(1)
    assert chunk is not None
    assert chunk.last
    assert one.state is State.WAITING
    assert len(unframed(chunk.data)[0]) == 2


def test_a_long_poll_waits_no_longer_than_requested() -> None:
    one = session()
    one.back(aid=0, streaming=False, now=0, wait_s=3)
    assert one.chunk(2.9) is None
    chunk = one.chunk(3)
    assert chunk is not None
    assert unframed(chunk.data) == [[[1, ["noop"]]]]
    assert chunk.last


def test_many_arrays_go_in_chunks_of_a_bounded_size() -> None:
    one = session()
    one.back(aid=0, streaming=True, now=0)
    for _ in range(40):
        one.send([bytes(6_000)])
    chunk = one.chunk(0)
    assert chunk is not None
    assert webchannel.CHUNK_SIZE_BYTES <= len(chunk.data) < webchannel.CHUNK_SIZE_BYTES + 9_000
    assert len(written(one)) + len(unframed(chunk.data)[0]) == 40


@pytest.mark.parametrize(("count", "size"), [(5_000, 1), (200, 100_000)])
def test_a_back_channel_ends_by_itself_so_that_a_silent_client_acknowledges(count: int, size: int) -> None:
    """Otherwise a sender that waits for room and a receiver without output would deadlock."""
    one, seen, sent, backs = session(), 0, 0, 0
    for _ in range(10 * count):
        while sent < count and not one.full:
            one.send([bytes(size)])
            sent += 1
        if not one.hanging:
            one.back(aid=seen, streaming=True, now=0)
            backs += 1
        chunk = one.chunk(0)
        if chunk is None:
            break
        seen = unframed(chunk.data)[0][-1][0]
    assert sent == count
    assert seen >= count
    assert backs > 1


def test_a_long_lived_back_channel_ends_with_its_next_chunk() -> None:
    one = session()
    one.back(aid=0, streaming=True, now=0)
    assert written(one, now=0)
    chunk = one.chunk(101)
    assert chunk is not None
    assert chunk.last


def test_a_session_is_full_until_the_client_acknowledges() -> None:
    one = session()
    one.back(aid=0, streaming=True, now=0)
    for number in range(webchannel.ARRAYS_FULL_COUNT):
        assert not one.full, number
        one.send([b""])
    assert one.full
    while one.chunk(0) is not None:
        pass
    assert one.full
    one.back(aid=1, streaming=True, now=0)
    assert not one.full
    assert one.statistics()["unacked"] == webchannel.ARRAYS_FULL_COUNT - 1


def test_the_length_of_a_chunk_is_right_for_any_content() -> None:
    one = session()
    one.send(["äöü€😀".encode()])
    one.back(aid=0, streaming=True, now=0)
    chunk = one.chunk(0)
    assert chunk is not None
    assert chunk.data.isascii()
    assert packet(unframed(chunk.data)[0][0]).decode() == "äöü€😀"
    assert framed(b"[]") == b"2\n[]"


# ---------------------------------------------------------------------- the end


def test_a_session_without_requests_expires() -> None:
    one = session(now=100)
    one.tick(160)
    assert one.state is State.WAITING
    one.forward(Form({}), aid=0, now=160)
    one.tick(220)
    assert one.state is State.WAITING
    one.tick(221)
    assert one.state is State.OVER
    assert "60 s" in one.reason


def test_a_session_with_a_back_channel_does_not_expire_and_without_it_does() -> None:
    one = session()
    back = one.back(aid=0, streaming=True, now=0)
    one.tick(10_000)
    assert one.state is State.STREAMING
    one.gone(back, now=10_000)
    one.tick(10_061)
    assert one.state is State.OVER


def test_after_terminate_the_session_is_unknown() -> None:
    one = session()
    one.terminate()
    for request in (lambda: one.forward(Form({}), aid=0, now=0), lambda: one.back(aid=0, streaming=True, now=0)):
        with pytest.raises(InvalidRequest, match="Unknown SID"):
            request()
    one.send([b"into the void"])
    assert one.chunk(0) is None


def test_close_is_read_after_everything_before_it_and_ends_the_session_when_acknowledged() -> None:
    one = session()
    one.back(aid=0, streaming=True, now=0)
    one.send([b"a"])
    one.close()
    one.send([b"too late"])
    one.close()
    arrays = written(one)
    assert [packet(arrays[0]), arrays[1]] == [b"a", [2, ["close"]]]
    one.forward(Form({}), aid=1, now=0)
    assert one.state is State.STREAMING
    one.forward(Form({}), aid=2, now=0)
    assert one.state is State.OVER


def test_a_closed_session_does_not_wait_for_a_client_that_reads_nothing() -> None:
    one = session()
    one.back(aid=0, streaming=True, now=0)
    one.send([b"a"])
    one.close()
    one.tick(1)
    assert len(written(one, now=5)) == 2
    one.tick(5)
    one.tick(9)
    assert one.state is State.STREAMING
    one.tick(10.1)
    assert one.state is State.OVER
    assert one.reason == "this end closed it"


def test_abort_reaches_a_listening_client() -> None:
    one = session()
    assert one.abort() == b""
    other = session()
    other.back(aid=0, streaming=True, now=0)
    assert unframed(other.abort()) == [[[1, ["stop"]]]]
    assert other.state is State.OVER
    assert other.abort() == b""
