"""The proxy between peers: the dialling peer is known from its Hello; bytes are held, cut and slowed, never changed."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest

from avow.testing.cluster import wait_until
from avow.testing.cluster_ports import Ports
from avow.wire.frames import Hello, encode
from avow_lab.campaigns.peers.network import CLIENTS, ProxyNetwork

CLUSTER = uuid4().bytes


def hello(peer: int) -> bytes:
    return b"".join(bytes(part) for part in encode(0, Hello(CLUSTER, uuid4().bytes, peer, 1)))


class Pair:
    """A dialler (peer 2) and a listener (peer 1) with a proxy between them."""

    def __init__(self, network: ProxyNetwork, port: int) -> None:
        self.network, self.port = network, port
        self.listener = socket.create_server(("127.0.0.1", port))
        self.listener.settimeout(60)
        network.proxy_link(f"127.0.0.1:{port}", peer=1)
        self.dialled: list[socket.socket] = []

    def dial(self) -> tuple[socket.socket, socket.socket]:
        greeting = hello(2)
        near = socket.create_connection((self.network.host, self.port), timeout=60)
        self.dialled.append(near)
        near.sendall(greeting)
        far, _ = self.listener.accept()
        self.dialled.append(far)
        far.settimeout(60)
        assert read(far, len(greeting)) == greeting
        return near, far

    def close(self) -> None:
        for end in [*self.dialled, self.listener]:
            end.close()


def read(end: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        piece = end.recv(size - len(got))
        if not piece:
            break
        got += piece
    return got


def is_silent(end: socket.socket, for_s: float = 0.15) -> bool:
    end.settimeout(for_s)
    try:
        return end.recv(1, socket.MSG_PEEK) == b"-"
    except TimeoutError:
        return True
    finally:
        end.settimeout(60)


def is_closed(end: socket.socket) -> bool:
    try:
        return end.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.fixture
def pair() -> Iterator[Pair]:
    ports, network = Ports(), ProxyNetwork()
    made = Pair(network, ports.take())
    yield made
    made.close()
    network.close()
    ports.release()


def test_bytes_go_both_ways_unchanged(pair: Pair) -> None:
    near, far = pair.dial()
    data = bytes(range(256)) * 2000
    near.sendall(data)
    assert read(far, len(data)) == data
    far.sendall(b"answer")
    assert read(near, 6) == b"answer"


def test_held_bytes_arrive_in_order_after_the_heal(pair: Pair) -> None:
    near, far = pair.dial()
    pair.network.hold([(2, 1)], cut=False)
    near.sendall(b"one ")
    near.sendall(b"two")
    assert is_silent(far)
    far.sendall(b"the other way")
    assert read(near, 13) == b"the other way"
    pair.network.heal()
    assert read(far, 7) == b"one two"


def test_a_cut_closes_the_link_and_a_new_one_waits_for_the_heal(pair: Pair) -> None:
    near, _ = pair.dial()
    pair.network.hold([(2, 1), (1, 2)], cut=True)
    assert is_closed(near)
    late = socket.create_connection((pair.network.host, pair.port), timeout=60)
    pair.dialled.append(late)
    greeting = hello(2)
    late.sendall(greeting)
    far, _ = pair.listener.accept()
    pair.dialled.append(far)
    assert is_silent(far)
    pair.network.heal()
    far.settimeout(60)
    assert read(far, len(greeting)) == greeting


def test_other_pairs_are_not_affected(pair: Pair) -> None:
    near, far = pair.dial()
    pair.network.hold([(3, 1), (1, 3)], cut=True)
    near.sendall(b"still here")
    assert read(far, 10) == b"still here"


def test_a_slow_link_delivers_later(pair: Pair) -> None:
    near, far = pair.dial()
    pair.network.slow([(2, 1)], 0.3)
    before = time.monotonic()
    near.sendall(b"late")
    assert read(far, 4) == b"late"
    assert time.monotonic() - before > 0.25
    pair.network.heal()


def test_a_connection_with_another_protocol_is_closed(pair: Pair) -> None:
    with socket.create_connection((pair.network.host, pair.port), timeout=60) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 4)
        assert is_closed(stranger)


def test_answers_to_clients_are_held_and_their_connections_cut_without_any_other_link(pair: Pair) -> None:
    near, far = pair.dial()
    ports = Ports()
    port = ports.take()
    with socket.create_server(("127.0.0.1", port)) as server:
        server.settimeout(60)
        proxy = pair.network.proxy_api(f"http://127.0.0.1:{port}", peer=1)
        with socket.create_connection((pair.network.host, port), timeout=60) as client:
            answering, _ = server.accept()
            with answering:
                answering.settimeout(60)
                pair.network.hold([(1, CLIENTS)], cut=False)
                client.sendall(b"GET")
                assert read(answering, 3) == b"GET"
                answering.sendall(b"OK")
                assert is_silent(client)
                pair.network.hold([(1, CLIENTS)], cut=True)
                assert is_closed(client)
        near.sendall(b"still here")
        assert read(far, 10) == b"still here"
        wait_until(lambda: not proxy.pipes, what="the proxy forgets connections that ended")
    ports.release()


def test_an_api_is_reachable_whatever_faults_its_links_have(pair: Pair) -> None:
    ports = Ports()
    port = ports.take()
    pair.network.hold([(2, 1), (1, 2)], cut=True)
    with socket.create_server(("127.0.0.1", port)) as server:
        server.settimeout(60)
        proxy = pair.network.proxy_api(f"http://127.0.0.1:{port}", peer=1)
        with socket.create_connection((pair.network.host, port), timeout=60) as client:
            far, _ = server.accept()
            with far:
                pair.network.heal()
                client.sendall(b"GET")
                assert read(far, 3) == b"GET"
                far.sendall(b"OK")
                assert read(client, 2) == b"OK"
        wait_until(lambda: not proxy.pipes, what="the proxy forgets connections that ended")
    ports.release()
