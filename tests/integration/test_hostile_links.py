"""The other end of a link sends frames that are well-formed and wrong: a peer goes on, and says what it refused."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.wire.wire_frames import frame_of

import avow
from avow.ids import ballot_of
from avow.testing.cluster import LocalCluster, wait_until
from avow.wire.frames import Hello
from avow.wire.messages import Enqueue, Entry, Kind, LaneHeartbeat, Ready, Stored


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3) as running:
        yield running


def hello_of(cluster: LocalCluster, number: int) -> Hello:
    """What that peer says, which is not running now."""
    status: Any = cluster.ask(1, "/v1/cluster")
    peer = next(peer for peer in status["peers"] if peer["number"] == number)
    return Hello(bytes.fromhex(status["cluster"]), bytes.fromhex(peer["identity"]), number, 1)


def test_frames_of_the_wrong_kind_or_with_impossible_fields_are_refused(cluster: LocalCluster) -> None:
    with avow.connect_blocking(cluster.addresses) as client:
        client.create_queue("orders")
        client.create_queue("events", strategy="pub-sub")
        client.queue("orders").enqueue(b"before")
    hello, before = hello_of(cluster, 3), cluster.pid(1)
    cluster.kill(3)
    lanes = {lane["queue"]: lane["lane"] for lane in cluster.ask(1, "/v1/cluster")["lanes"]}
    ballot = ballot_of(9, 3)
    wrong = [
        frame_of(0, LaneHeartbeat(())),
        frame_of(0, Stored(1, 1)),
        frame_of(0, Ready(ballot_of(9, 1), -1, stamped=True)),
        frame_of(lanes["orders"], Stored(1, 1)),
        frame_of(lanes["orders"], Enqueue(ballot, 1, 2, (Entry(9, ballot, Kind.DATA, 1, batch=b"x"),), 0, 0)),
        frame_of(lanes["orders"], Enqueue(ballot, 1, 2, (Entry(2, ballot, Kind.MEMBERS, control=b"\xc1"),), 0, 0)),
        *(frame_of(route, Ready(ballot, 1, stamped=True)) for route in range(1, 6)),
        frame_of(4_000_000_000, Ready(ballot, 1, stamped=True)),
    ]
    host, port = cluster.link(1).rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as link:
        link.sendall(frame_of(0, hello))
        for frame in wrong:
            link.sendall(frame)
        wait_until(lambda: refused(cluster, 1) >= 6, what="refusals of peer 1")
        link.sendall(frame_of(0, LaneHeartbeat(())))  # the link is still open
    log = cluster.log(1).read_text()
    assert log.count("lane 0: a frame of peer 3 was refused and changed nothing") == 1
    assert cluster.pid(1) == before
    assert 1 in cluster.running
    cluster.restart(3)
    with avow.connect_blocking(cluster.addresses) as client:
        client.queue("orders").enqueue(b"after")


def refused(cluster: LocalCluster, number: int) -> int:
    host, port = cluster.api(number).removeprefix("http://").rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as http:
        http.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        text = b""
        while piece := http.recv(1 << 16):
            text += piece
    line = next(line for line in text.splitlines() if line.startswith(b"avow_frames_refused_total"))
    return int(float(line.split()[-1]))
