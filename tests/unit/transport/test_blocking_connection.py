"""The blocking connection on real sockets, with a scripted server on loopback."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from time import monotonic

import pytest
import trustme

from avow.limits import KIB
from avow.transport.blocking import BlockingConnection, connection_to
from avow.wire.http import Address, Answer, Bounds, Lost

SOON_S = 60.0
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
SMALL = Bounds(head_size_bytes_max=4 * KIB, body_size_bytes_max=8 * KIB, chunk_size_bytes=64)

Turn = Callable[[socket.socket], None]


class Script:
    """Each connection executes the next list of turns; each turn reads a request first. Then it is closed."""

    def __init__(self, *connections: list[Turn], tls: ssl.SSLContext | None = None) -> None:
        self.heard: list[bytes] = []
        self.accepted = 0
        self._connections, self._tls = connections, tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._run)

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self._listener.getsockname()[1], self._tls is not None)

    def __enter__(self) -> Script:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._thread.join(SOON_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        for turns in self._connections:
            with contextlib.suppress(OSError):
                accepted, _ = self._listener.accept()
                self.accepted += 1
                accepted.settimeout(SOON_S)
                if self._tls is not None:
                    accepted = self._tls.wrap_socket(accepted, server_side=True)
                with accepted:
                    self._play(accepted, turns)

    def _play(self, accepted: socket.socket, turns: list[Turn]) -> None:
        for turn in turns:
            request = b""
            while b"\r\n\r\n" not in request:
                request += accepted.recv(65_536)
            head, _, body = request.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            while len(body) < length:
                body += accepted.recv(65_536)
            self.heard.append(head + b"\r\n\r\n" + body)
            turn(accepted)


def says(*pieces: bytes) -> Turn:
    def turn(accepted: socket.socket) -> None:
        for piece in pieces:
            accepted.sendall(piece)

    return turn


def until_hung_up(*pieces: bytes) -> Turn:
    """Sends bytes and waits for the other side to close."""

    def turn(accepted: socket.socket) -> None:
        says(*pieces)(accepted)
        with contextlib.suppress(ConnectionError):
            assert accepted.recv(1) == b""

    return turn


def reset(accepted: socket.socket) -> None:
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextlib.contextmanager
def asking(*connections: list[Turn]) -> Iterator[tuple[Script, BlockingConnection]]:
    with Script(*connections) as script, BlockingConnection(script.address, bounds=SMALL) as connection:
        yield script, connection


def get(connection: BlockingConnection, target: str = "/", *, timeout_s: float = SOON_S) -> Answer | Lost:
    return connection.request("GET", target, timeout_s=timeout_s)


def body(outcome: Answer | Lost) -> bytes:
    assert isinstance(outcome, Answer), outcome
    return bytes(outcome.body)


def lost(outcome: Answer | Lost) -> Lost:
    assert isinstance(outcome, Lost)
    return outcome


def test_a_request_is_sent_and_its_answer_returned() -> None:
    with asking([says(OK)]) as (script, connection):
        sent = {"Authorization": "Bearer x"}
        answer = connection.request("POST", "/v1/x", headers=sent, body=b"{}", timeout_s=SOON_S)
        assert body(answer) == b"ok"
        where = script.address.authority.encode()
        assert script.heard == [
            b"POST /v1/x HTTP/1.1\r\nHost: " + where + b"\r\nAuthorization: Bearer x\r\nContent-Length: 2\r\n\r\n{}"
        ]


def test_a_connection_is_reused_until_the_server_ends_it() -> None:
    last = OK.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")
    with asking([says(OK), says(OK), says(last)], [says(OK)]) as (script, connection):
        assert [body(get(connection)) for _ in range(4)] == [b"ok"] * 4
        assert script.accepted == 2


@pytest.mark.parametrize("size", [0, 1, 22, 23, 24, 25, 8 * KIB])
def test_bodies_of_all_sizes_arrive_whole_and_leave_the_connection_usable(size: int) -> None:
    """22 to 25: the answer is exactly or nearly as long as the buffer for heads and small bodies."""
    sized = b"HTTP/1.1 200 OK\r\nContent-Length: %04d\r\n\r\n" % size + b"x" * size
    with asking([says(sized), says(OK), says(sized[:50], sized[50:])]) as (_, connection):
        assert [len(body(get(connection))) for _ in range(3)] == [size, 2, size]


def test_a_body_may_be_chunked_or_end_with_the_connection() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    with asking([says(b"HTTP/1.1 100 Continue\r\n\r\n", chunked), says(b"HTTP/1.1 200 OK\r\n\r\n", b"o", b"k")]) as (
        _,
        connection,
    ):
        assert [body(get(connection)) for _ in range(2)] == [b"ok", b"ok"]


def test_an_answer_to_head_has_no_body() -> None:
    with asking([says(OK[:-2]), says(OK)]) as (_, connection):
        assert body(connection.request("HEAD", "/", timeout_s=SOON_S)) == b""
        assert body(get(connection)) == b"ok"


def test_nothing_was_sent_to_an_address_where_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    outcome = lost(get(BlockingConnection(Address("127.0.0.1", port))))
    assert (outcome.sent, outcome.untouched, outcome.reason) == (False, True, "connection refused")
    nowhere = lost(get(BlockingConnection(Address("no-such-host.invalid", 80))))
    assert not nowhere.sent
    strange = lost(get(BlockingConnection(Address("a" * 100, 80))))
    assert not strange.sent


@pytest.mark.parametrize(
    ("pieces", "begun"),
    [([], False), ([OK[:10]], True), ([OK[:-1]], True), ([b"HTTP/1.1 100 Continue\r\n\r\n"], True)],
    ids=["nothing", "half a head", "half a body", "an interim answer"],
)
def test_a_connection_closed_too_early_reports_what_is_known(pieces: list[bytes], begun: bool) -> None:
    with asking([says(*pieces)], [says(OK)]) as (script, connection):
        outcome = lost(get(connection))
        assert (outcome.sent, outcome.begun) == (True, begun)
        assert "closed" in outcome.reason
        assert body(get(connection)) == b"ok"
        assert script.accepted == 2


def test_a_reset_is_a_lost_answer_and_the_next_request_opens_a_new_connection() -> None:
    with asking([reset], [says(OK)]) as (_, connection):
        outcome = lost(get(connection))
        assert (outcome.sent, outcome.begun) == (True, False)
        assert body(get(connection)) == b"ok"


def test_a_body_that_ends_with_a_reset_is_lost() -> None:
    def half(accepted: socket.socket) -> None:
        accepted.sendall(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        accepted.recv(1)  # nothing arrives; the other side times out first

    with asking([half]) as (_, connection):
        assert lost(get(connection, timeout_s=0.2)).begun


@pytest.mark.parametrize("pieces", [[], [OK[:-1]]], ids=["silent", "half an answer"])
def test_a_server_that_does_not_answer_in_time_is_abandoned(pieces: list[bytes]) -> None:
    with asking([until_hung_up(*pieces)]) as (_, connection):
        began = monotonic()
        outcome = lost(get(connection, timeout_s=0.2))
        assert 0.15 < monotonic() - began < SOON_S
        assert (outcome.sent, outcome.begun, outcome.reason) == (True, bool(pieces), "no answer for 0.2 s")


def test_a_server_that_trickles_bytes_does_not_hold_the_caller() -> None:
    left = threading.Event()

    def drip(accepted: socket.socket) -> None:
        accepted.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        with contextlib.suppress(OSError):
            while not left.wait(0.05):
                accepted.sendall(b"x")

    with asking([drip]) as (_, connection):
        assert lost(get(connection, timeout_s=0.3)).reason == "no answer for 0.3 s"
        left.set()


@pytest.mark.parametrize(
    "pieces",
    [[b"SSH-2.0-OpenSSH\r\n"], [b"HTTP/1.1 200 OK\r\nX: " + b"x" * 10_000], [b"HTTP/1.1 200 OK\r\n folded\r\n\r\n"]],
)
def test_an_invalid_answer_is_lost(pieces: list[bytes]) -> None:
    with asking([until_hung_up(*pieces)], [says(OK)]) as (_, connection):
        outcome = lost(get(connection))
        assert (outcome.sent, outcome.begun) == (True, True)
        assert body(get(connection)) == b"ok"


def test_the_head_of_a_response_that_is_too_long_is_reported() -> None:
    with asking([until_hung_up(b"HTTP/1.1 500 No\r\nContent-Length: 8193\r\n\r\n")]) as (_, connection):
        outcome = lost(get(connection))
        assert outcome.headed is not None
        assert outcome.headed.status == 500


def test_bytes_after_an_answer_are_not_mistaken_for_the_next_one() -> None:
    for extra in (OK, b"HT", b"\r\n"):
        with asking([until_hung_up(OK + extra)], [says(OK.replace(b"ok", b"no"))]) as (script, connection):
            assert [body(get(connection)) for _ in range(2)] == [b"ok", b"no"]
            assert script.accepted == 2


@pytest.mark.parametrize("late", [OK.replace(b"ok", b"un"), b"HT", b""])
def test_bytes_that_arrive_on_an_idle_connection_are_not_an_answer(late: bytes) -> None:
    """A server may answer an idle connection with 408, or close it."""
    answered = threading.Event()

    def speaks_up(accepted: socket.socket) -> None:
        accepted.sendall(OK)
        assert answered.wait(SOON_S)
        accepted.sendall(late)
        if not late:
            accepted.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            assert accepted.recv(1) == b""

    with asking([speaks_up], [says(OK.replace(b"ok", b"no"))]) as (script, connection):
        assert body(get(connection)) == b"ok"
        answered.set()
        assert connection._socket is not None
        assert select.select([connection._socket], [], [], SOON_S)[0]
        assert body(get(connection)) == b"no"
        assert script.accepted == 2


def test_a_server_may_refuse_a_request_without_reading_all_of_it() -> None:
    """The answer may be read, or the connection is reset first; the call always ends."""
    with asking([says(OK)]) as (_, connection):
        outcome = connection.ask((b"GET / HTTP/1.1\r\n\r\n", b"x" * (8 << 20)), timeout_s=SOON_S)
        assert isinstance(outcome, Answer) or outcome.sent


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def serving(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


def test_tls_is_verified(authority: trustme.CA) -> None:
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    with Script([], [says(OK), says(OK)], tls=serving(authority)) as script:
        with BlockingConnection(script.address) as strict:
            outcome = lost(get(strict))
            assert not outcome.sent
            assert "verify failed" in outcome.reason.lower()
        with connection_to(script.address.url, tls=trusting) as connection:
            assert [body(get(connection)) for _ in range(2)] == [b"ok", b"ok"]


def test_an_unanswered_tls_handshake_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address("127.0.0.1", silent.getsockname()[1], tls=True)
        outcome = lost(get(BlockingConnection(address, connect_timeout_s=0.2)))
        assert (outcome.sent, outcome.reason) == (False, "no connection within 0.2 s")
