"""Bad clients against a live peer: each gets a clear answer or a closed connection, and the peer is not affected."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
from collections.abc import Iterator

import pytest
from tests.integration.http_peer import PeerProcess, serving, wait_until

HEAD = b"POST /v1/queues HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerProcess]:
    with serving(tmp_path_factory.mktemp("peer"), connections_max=40, in_flight_max=8) as peer:
        wait_until(lambda: peer.ask("GET", "/readyz").status == 200)
        yield peer


@pytest.fixture(autouse=True)
def _unharmed(peer: PeerProcess) -> Iterator[None]:
    """Afterwards it still serves, and holds no connection of the bad client."""
    yield
    assert peer.alive
    wait_until(lambda: peer.ask("GET", "/healthz").status == 200)
    wait_until(lambda: figure(peer, "avow_http_connections") == 1)  # the one that asks
    assert figure(peer, "avow_http_requests_failed_total") == 0


def figure(peer: PeerProcess, name: str) -> float:
    lines = peer.ask("GET", "/metrics").body.decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


def test_random_bytes_are_answered_400(peer: PeerProcess) -> None:
    rng = random.Random(7)
    for size in (1, 10, 100, 10_000, 300_000):
        answer = peer.talk(rng.randbytes(size) + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 "), answer[:100]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (HEAD + b"content-length: 99999999999999999999\r\n\r\n", b"400"),
        (HEAD + b"content-length: 10737418240\r\n\r\n", b"413"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\nffffffffffffffff1\r\n", b"400"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"100000\r\n" + b"x" * (1 << 20) + b"\r\n", b""),
        (b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * 70_000, b"431"),
        (b"GET /" + b"z" * 70_000 + b" HTTP/1.1\r\nhost: a\r\n\r\n", b"431"),
        (b"\x16\x03\x01\x00\xf1\x01\x00\x00\xed\x03\x03" + bytes(200), b"400"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400"),
    ],
)
def test_requests_beyond_every_bound_are_refused(peer: PeerProcess, sent: bytes, status: bytes) -> None:
    with socket.create_connection(peer.address, timeout=60) as connection:
        connection.sendall(sent)
        if status:
            assert connection.recv(65536).split()[1] == status


def test_a_body_that_never_ends_is_cut_off(peer: PeerProcess) -> None:
    with socket.create_connection(peer.address, timeout=60) as connection:
        connection.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        sent = 0
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                connection.sendall(b"100000\r\n" + b"x" * (1 << 20) + b"\r\n")
                sent += 1
        assert 9 <= sent < 64
        with contextlib.suppress(ConnectionError):
            assert connection.recv(65536).split()[1] == b"413"


def test_incomplete_requests_are_dropped_when_their_client_disconnects(peer: PeerProcess) -> None:
    for sent in (b"", b"G", b"GET / HTTP/1.1\r\nho", HEAD + b"content-length: 5\r\n\r\nab"):
        for _ in range(5):
            with socket.create_connection(peer.address, timeout=60) as connection:
                connection.sendall(sent)


def test_a_connection_that_is_reset_in_the_middle_leaves_nothing(peer: PeerProcess) -> None:
    for _ in range(10):
        connection = socket.create_connection(peer.address, timeout=60)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        connection.sendall(b"GET /v1/cluster HTTP/1.1\r\nhost: a\r\n\r\n" * 50)
        connection.close()


def test_a_slow_client_is_cut_off_while_others_are_served(peer: PeerProcess) -> None:
    """Slow-loris: heads that never end hold connections for ten seconds, and not longer."""
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(peer.address, timeout=30)) for _ in range(30)]
        for connection in slow:
            connection.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n")
        assert peer.ask("GET", "/v1/cluster").status == 200
        for connection in slow:
            assert connection.recv(65536).split()[1] == b"408"
            assert connection.recv(65536) == b""


def test_one_connection_too_many_is_busy(peer: PeerProcess) -> None:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_connection(peer.address, timeout=60)) for _ in range(40)]
        for connection in held:  # so that all are accepted before the next
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        extra = stack.enter_context(socket.create_connection(peer.address, timeout=60))
        answer = extra.recv(65536)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b'"BUSY"' in answer


def test_too_many_requests_at_once_are_busy_and_health_is_not(peer: PeerProcess) -> None:
    assert peer.ask("POST", "/v1/queues", {"name": "busy"}).status == 201
    with socket.create_connection(peer.address, timeout=60) as waiting:
        poll = b"GET /v1/queues/busy/messages?wait_s=30 HTTP/1.1\r\nhost: a\r\n\r\n"
        waiting.sendall(poll * 9)
        wait_until(lambda: figure(peer, "avow_http_requests_in_flight") >= 9)
        refused = peer.ask("GET", "/v1/queues")
        assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, "BUSY", "1")
        assert peer.ask("GET", "/healthz").status == 200
    wait_until(lambda: peer.ask("GET", "/v1/queues").status == 200)


def test_tls_on_the_plain_port_fails_on_both_sides(peer: PeerProcess) -> None:
    context = ssl.create_default_context()
    with socket.create_connection(peer.address, timeout=10) as connection, pytest.raises(ssl.SSLError):
        context.wrap_socket(connection, server_hostname="localhost")


def test_pipelined_requests_are_answered_in_order(peer: PeerProcess) -> None:
    paths = ["/healthz", "/v1/queues", "/nope", "/healthz"] * 200
    data = b"".join(f"GET {path} HTTP/1.1\r\nhost: a\r\n\r\n".encode() for path in paths)
    received = peer.talk(data[:-2] + b"connection: close\r\n\r\n")
    found = [part.split()[0] for part in received.split(b"HTTP/1.1 ")[1:]]
    assert found == [b"404" if path == "/nope" else b"200" for path in paths]
