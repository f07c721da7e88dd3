"""The connection, driven like by an event loop: buffers filled piece by piece, no socket."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avow.transport.connection import Connection
from avow.wire.http import PEER_BOUNDS, Answer, Lost


class MemoryTransport(asyncio.Transport):
    """Collects written bytes; `abort` calls connection_lost at once."""

    def __init__(self, protocol: Connection) -> None:
        super().__init__()
        self.protocol, self.written, self.unsent_bytes, self.aborted = protocol, b"", 0, False

    def writelines(self, list_of_data: Any) -> None:
        self.written += b"".join(list_of_data)

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def abort(self) -> None:
        self.aborted = True
        self.protocol.connection_lost(None)


class Peer:
    def __init__(self, requests: int) -> None:
        self.closed: list[Connection] = []
        self.answers: list[Answer | Lost] = []
        self.connection = Connection(self.closed.append)
        self.transport = MemoryTransport(self.connection)
        self.connection.connection_made(self.transport)
        for number in range(requests):
            self.connection.send((b"request %d" % number,), self.answers.append)

    def feed(self, data: bytes, piece: int = 1 << 30) -> None:
        while data and self.connection.usable:
            buffer = self.connection.get_buffer(-1)
            taken = min(len(buffer), len(data), piece)
            assert taken > 0
            buffer[:taken] = data[:taken]
            data = data[taken:]
            self.connection.buffer_updated(taken)


def answer(body: bytes, *, status: int = 200, extra: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n%b\r\n" % (status, len(body), extra) + body


@given(bodies=st.lists(st.binary(max_size=300), min_size=1, max_size=8), piece=st.integers(1, 400))
def test_answers_are_parsed_in_order_however_the_bytes_are_cut(bodies: list[bytes], piece: int) -> None:
    peer = Peer(len(bodies))
    peer.feed(b"".join(map(answer, bodies)), piece)
    assert [found.body for found in peer.answers if isinstance(found, Answer)] == bodies
    assert peer.connection.usable


@pytest.mark.parametrize("size", [65_536 - 40, 65_536, 200_000, 3_000_000])
@pytest.mark.parametrize("piece", [1_000, 65_536, 1 << 30])
def test_a_large_body_is_received_into_separate_memory_and_the_next_answer_follows(size: int, piece: int) -> None:
    peer = Peer(2)
    body = bytes(range(256)) * (size // 256 + 1)
    peer.feed(answer(body[:size]) + answer(b"next"), piece)
    first, second = peer.answers
    assert isinstance(first, Answer)
    assert first.body == body[:size]
    assert isinstance(second, Answer)
    assert second.body == b"next"


def test_headers_are_found_whatever_their_case() -> None:
    peer = Peer(1)
    peer.feed(answer(b"", status=503, extra=b"AVOW-Next:  42 \r\nretry-after:1\r\nX-Avow-Next: 7\r\n"))
    (found,) = peer.answers
    assert isinstance(found, Answer)
    assert (found.number(b"avow-next"), found.number(b"retry-after"), found.number(b"absent")) == (42, 1, None)
    assert not found.ok


def test_an_interim_response_is_skipped() -> None:
    peer = Peer(1)
    peer.feed(b"HTTP/1.1 100 Continue\r\n\r\n" + answer(b"real"))
    assert [found.body for found in peer.answers if isinstance(found, Answer)] == [b"real"]


def test_an_answer_without_a_body_needs_no_length() -> None:
    peer = Peer(1)
    peer.feed(b"HTTP/1.1 204 No Content\r\n\r\n")
    (found,) = peer.answers
    assert isinstance(found, Answer)
    assert found.status == 204


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"x" * (PEER_BOUNDS.head_size_bytes_max + 1),
    ],
)
def test_invalid_response_bytes_end_the_connection_and_all_its_requests(garbage: bytes) -> None:
    peer = Peer(2)
    peer.feed(garbage)
    assert peer.transport.aborted
    assert [type(found) for found in peer.answers] == [Lost, Lost]
    assert all(isinstance(found, Lost) and found.sent for found in peer.answers)
    assert peer.closed == [peer.connection]


@pytest.mark.parametrize("requests", [0, 1])
@pytest.mark.parametrize("extra", [answer(b""), b"HTTP/1.1 408 Req", b"\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_unsolicited_bytes_end_the_connection(requests: int, extra: bytes) -> None:
    """Otherwise they would be read as the beginning of the answer to the next request."""
    peer = Peer(requests)
    peer.feed(answer(b"asked for") * requests + extra)
    assert peer.transport.aborted
    assert [type(found) for found in peer.answers] == [Answer] * requests


@pytest.mark.parametrize("piece", [1, 7, 1 << 30])
def test_responses_of_other_forms_may_be_pipelined(piece: int) -> None:
    peer = Peer(4)
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ntwo \r\n1;x=y\r\n2\r\n0\r\nT: z\r\n\r\n"
    peer.feed(answer(b"one") + chunked + answer(b"three") + b"HTTP/1.1 200 OK\r\n\r\nup to the end", piece)
    assert [found.body for found in peer.answers if isinstance(found, Answer)] == [b"one", b"two 2", b"three"]
    peer.connection.connection_lost(None)
    assert isinstance(peer.answers[3], Answer)
    assert peer.answers[3].body == b"up to the end"


def test_a_body_that_ends_with_the_connection_is_lost_by_a_reset() -> None:
    for reset in (True, False):
        peer = Peer(1)
        peer.feed(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        if reset:
            peer.connection.connection_lost(ConnectionResetError("reset"))
        else:
            peer.connection.abort("no answer in time")
        (found,) = peer.answers
        assert isinstance(found, Lost)
        assert found.sent
        assert found.begun


def test_only_the_request_whose_answer_has_begun_is_affected() -> None:
    for begun in (b"H", b"HTTP/1.1 100 Continue\r\n\r\n", answer(b"whole")[:-1]):
        peer = Peer(3)
        peer.feed(answer(b"one") + begun)
        peer.connection.connection_lost(None)
        assert [found.untouched for found in peer.answers if isinstance(found, Lost)] == [False, True]
    untouched = Peer(1)
    untouched.connection.connection_lost(None)
    assert [found.untouched for found in untouched.answers if isinstance(found, Lost)] == [True]


def test_a_refused_answer_has_begun_even_when_nothing_of_it_is_left_to_read() -> None:
    peer = Peer(1)
    peer.feed(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: x\r\n\r\n")
    (found,) = peer.answers
    assert isinstance(found, Lost)
    assert not found.untouched


def test_the_head_of_a_response_that_is_too_long_is_reported() -> None:
    long = PEER_BOUNDS.body_size_bytes_max + 1
    for framing in (b"Content-Length: %d\r\n", b"Content-Length: %d\r\nConnection: close\r\n"):
        peer = Peer(2)
        peer.feed(b"HTTP/1.1 500 No\r\n%b\r\n" % (framing % long))
        first, second = peer.answers
        assert isinstance(first, Lost)
        assert isinstance(second, Lost)
        assert (first.headed and first.headed.status, second.headed) == (500, None)


def test_an_answer_to_head_has_no_body_whatever_its_head_says() -> None:
    peer = Peer(0)
    for number, to_head in enumerate((False, True, False, True)):
        peer.connection.send((b"request %d" % number,), peer.answers.append, to_head=to_head)
    head = answer(b"four")[:-4]
    peer.feed(answer(b"one") + head + answer(b"three") + head)
    assert [found.body for found in peer.answers if isinstance(found, Answer)] == [b"one", b"", b"three", b""]
    assert peer.connection.usable


def test_a_lost_connection_fails_each_request_once_and_accepts_no_more() -> None:
    peer = Peer(2)
    peer.feed(answer(b"one"))
    peer.connection.connection_lost(ConnectionResetError("reset"))
    late: list[Answer | Lost] = []
    peer.connection.send((b"late",), late.append)
    assert [type(found) for found in peer.answers] == [Answer, Lost]
    assert isinstance(late[0], Lost)
    assert not late[0].sent


def test_a_close_after_an_answer_loses_the_remaining_requests() -> None:
    peer = Peer(2)
    peer.feed(answer(b"one", extra=b"Connection: close\r\n") + answer(b"two"))
    assert [type(found) for found in peer.answers] == [Answer, Lost]


def test_silence_ends_a_connection_only_while_something_waits_and_nothing_moves() -> None:
    idle = Peer(0)
    idle.connection.check_silence(idle.connection.moved_at + 100, silent_s=2.0)
    assert idle.connection.usable
    peer = Peer(1)
    start = peer.connection.moved_at
    peer.connection.check_silence(start + 1.9, silent_s=2.0)
    assert peer.connection.usable
    peer.connection.check_silence(start + 2.1, silent_s=2.0)
    assert [type(found) for found in peer.answers] == [Lost]


def test_a_request_that_is_still_being_sent_is_not_silence() -> None:
    peer = Peer(1)
    start = peer.connection.moved_at
    for step, unsent in enumerate((900, 600, 300)):
        peer.transport.unsent_bytes = unsent
        peer.connection.check_silence(start + 1.9 * (step + 1), silent_s=2.0)
        assert peer.connection.usable
    peer.connection.check_silence(start + 1.9 * 3 + 2.1, silent_s=2.0)
    assert not peer.connection.usable
