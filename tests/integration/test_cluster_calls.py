"""How the admin commands call a cluster: which failures are retried at the next peer, and which are reported."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from avow.cli.cluster_api import Api
from avow.errors import InvalidRequest, NotEqual, Offline, Unknown

Behaviour = Callable[[socket.socket], None]


def answer(text: str, *, status: str = "200 OK") -> Behaviour:
    body = text.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return lambda connection: connection.sendall(head + body)


def hang_up(connection: socket.socket) -> None:
    """The request is read and not answered."""


@contextlib.contextmanager
def peer(behaviour: Behaviour) -> Iterator[tuple[str, list[bytes]]]:
    """Something that listens, reads a request, behaves so, and closes; the requests it was sent."""
    requests: list[bytes] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection:
                    requests.append(_whole(connection))
                    behaviour(connection)

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", requests
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def _whole(connection: socket.socket) -> bytes:
    request = connection.recv(65_536)
    while b"Content-Length: " in request and not request.endswith(b"}"):
        request += connection.recv(65_536)
    return request


NOBODY = "http://127.0.0.1:1"


def test_an_unreachable_peer_is_skipped() -> None:
    with peer(answer('{"done":true}')) as (address, requests):
        api = Api(f"{NOBODY},{address}", token="secret")
        assert api.call("POST", "/v1/queues", {"name": "q"}) == {"done": True}
        assert api.address == address
    assert b"Authorization: Bearer secret" in requests[0]
    assert requests[0].endswith(b'{"name":"q"}')


def test_an_unanswered_read_is_sent_to_the_next_peer() -> None:
    with peer(hang_up) as (silent, _), peer(answer("[1]")) as (other, _):
        assert Api(f"{silent},{other}").get("/v1/queues") == [1]


def test_an_unanswered_change_is_unknown_and_not_retried() -> None:
    with peer(hang_up) as (silent, asked), peer(answer("{}")) as (other, requests):
        with pytest.raises(Unknown, match="may or may not have been executed"):
            Api(f"{silent},{other}").call("DELETE", "/v1/queues/q")
        assert (len(asked), requests) == (1, [])


def test_an_unreachable_cluster_is_offline_with_the_reason_of_each_peer() -> None:
    with pytest.raises(Offline, match=r"127\.0\.0\.1:1: connection refused.*nothing was done"):
        Api(NOBODY).get("/v1/queues")


def test_a_refusal_is_raised_as_the_peers_error() -> None:
    refusal = '{"error":{"code":"NOT_EQUAL","message":"it ends at 7","definite":true,"retriable":false,"cursor":7}}'
    with peer(answer(refusal, status="409 Conflict")) as (address, _):
        with pytest.raises(NotEqual, match="it ends at 7") as refused:
            Api(address).get("/v1/queues")
        assert refused.value.current == 7


@pytest.mark.parametrize(
    "behaviour", [answer("<html>", status="502 Bad Gateway"), answer("[]", status="404 Not Found")]
)
def test_a_server_that_is_not_a_peer_is_reported_as_such(behaviour: Behaviour) -> None:
    with peer(behaviour) as (address, _), pytest.raises(InvalidRequest, match="--api"):
        Api(address).get("/v1/queues")
