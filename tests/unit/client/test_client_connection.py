"""The connection, driven as an event loop drives it: buffers filled piece by piece, no socket."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avow.client.http import HEAD_SIZE_BYTES_MAX, Answer, Connection, Lost


class MemoryTransport(asyncio.Transport):
    """Collects what is written; an aborted one tells its protocol at once."""

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
def test_answers_come_in_order_however_the_bytes_are_cut(bodies: list[bytes], piece: int) -> None:
    peer = Peer(len(bodies))
    peer.feed(b"".join(map(answer, bodies)), piece)
    assert [found.body for found in peer.answers if isinstance(found, Answer)] == bodies
    assert peer.connection.usable


@pytest.mark.parametrize("size", [65_536 - 40, 65_536, 200_000, 3_000_000])
@pytest.mark.parametrize("piece", [1_000, 65_536, 1 << 30])
def test_a_large_body_is_received_into_memory_of_its_own_and_the_next_answer_follows(size: int, piece: int) -> None:
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


def test_an_interim_answer_is_passed_over() -> None:
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
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"x" * (HEAD_SIZE_BYTES_MAX + 1),
    ],
)
def test_bytes_that_are_no_answer_end_the_connection_and_every_request_on_it(garbage: bytes) -> None:
    peer = Peer(2)
    peer.feed(garbage)
    assert peer.transport.aborted
    assert [type(found) for found in peer.answers] == [Lost, Lost]
    assert all(isinstance(found, Lost) and found.sent for found in peer.answers)
    assert peer.closed == [peer.connection]


def test_an_answer_nobody_asked_for_ends_the_connection() -> None:
    peer = Peer(0)
    peer.feed(answer(b""))
    assert peer.transport.aborted


def test_a_lost_connection_tells_each_request_once_and_takes_no_more() -> None:
    peer = Peer(2)
    peer.feed(answer(b"one"))
    peer.connection.connection_lost(ConnectionResetError("reset"))
    late: list[Answer | Lost] = []
    peer.connection.send((b"late",), late.append)
    assert [type(found) for found in peer.answers] == [Answer, Lost]
    assert isinstance(late[0], Lost)
    assert not late[0].sent


def test_a_peer_that_closes_after_an_answer_leaves_the_rest_lost() -> None:
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


def test_a_request_that_is_still_leaving_is_not_silence() -> None:
    peer = Peer(1)
    start = peer.connection.moved_at
    for step, unsent in enumerate((900, 600, 300)):
        peer.transport.unsent_bytes = unsent
        peer.connection.check_silence(start + 1.9 * (step + 1), silent_s=2.0)
        assert peer.connection.usable
    peer.connection.check_silence(start + 1.9 * 3 + 2.1, silent_s=2.0)
    assert not peer.connection.usable
