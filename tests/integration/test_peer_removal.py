"""A peer is removed: by the command, while it serves, while it is down, twice; and what it then does by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import msgspec
import pytest

import avow
from avow.errors import PeerRemoved
from avow.testing.cluster import LocalCluster, wait_until

REFUSED, USAGE = 1, 2


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3) as running:
        with avow.connect_blocking(running.addresses) as client:
            client.create_queue("orders", lanes=2)
        yield running


def command(*arguments: str, api: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "AVOW_API": api}
    return subprocess.run(
        [sys.executable, "-m", "avow.cli", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def raw(api: str, path: str) -> tuple[int, Any]:
    connection = HTTPConnection(api.removeprefix("http://"), timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, msgspec.json.decode(answer.read())
    finally:
        connection.close()


def ended(cluster: LocalCluster, number: int) -> bool:
    return cluster.process(number).exit_code is not None


def test_the_peer_that_the_command_asks_first_is_removed(cluster: LocalCluster) -> None:
    api = ",".join(cluster.api(number) for number in (1, 2, 3))
    run = command("peer", "remove", "1", "--yes", api=api)
    assert (run.returncode, run.stdout) == (
        0,
        "peer 1 is gone: its process ends by itself, and you may delete its folder\n",
    ), run.stderr
    wait_until(lambda: raw(cluster.api(1), "/healthz")[0] == PeerRemoved.http_status, what="peer 1 knows it")
    status, body = raw(cluster.api(1), "/v1/queues/orders")
    assert (status, body["error"]["code"], body["error"]["definite"]) == (421, "PEER_REMOVED", True)
    assert set(body["error"]["peers"]) == {cluster.api(2), cluster.api(3)}
    assert "was removed from the cluster" in raw(cluster.api(1), "/v1/cluster")[1]["removed"]
    made = command("queue", "create", "invoices", api=cluster.api(1))
    assert made.returncode == 0, made.stderr
    with avow.connect_blocking(cluster.api(1)) as client:
        client.queue("invoices").enqueue(b"through the peer that was removed")
    wait_until(lambda: ended(cluster, 1), what="its process ended")
    assert cluster.process(1).exit_code == 0
    assert "this process ends: peer 1 was removed from the cluster" in cluster.log(1).read_text()
    again = command("peer", "remove", "1", api=api)
    assert again.returncode == 0, "what is done needs no confirmation"


def test_a_removal_is_not_begun_without_a_confirmation(cluster: LocalCluster) -> None:
    run = command("peer", "remove", "1", api=cluster.addresses)
    assert run.returncode == USAGE
    assert "nothing was done. Confirm with --yes" in " ".join(run.stderr.replace("│", " ").split())
    assert {peer["state"] for peer in cluster.ask(2, "/v1/peers")["peers"]} == {"ready"}


@pytest.mark.parametrize("number", [1, 3])
def test_a_peer_that_is_removed_while_it_is_down_ends_when_it_comes_back(cluster: LocalCluster, number: int) -> None:
    """The peer with the lowest number dials nobody, and is dialled by nobody any more."""
    cluster.kill(number)
    run = command("peer", "remove", str(number), "--yes", api=cluster.addresses)
    assert run.returncode == 0, run.stderr
    process = cluster.process(number)
    process.start()
    wait_until(lambda: ended(cluster, number), timeout_s=120, what="it ends by itself")
    assert process.exit_code == 0
    process.start()
    wait_until(lambda: ended(cluster, number), timeout_s=120, what="its folder is refused")
    assert process.exit_code == REFUSED
    assert "was removed from the cluster" in process.log_tail()


def test_a_cluster_shrinks_to_its_last_peer_and_not_further(cluster: LocalCluster) -> None:
    for number in (1, 3):
        run = command("peer", "remove", str(number), "--yes", api=cluster.addresses)
        assert run.returncode == 0, run.stderr
    with avow.connect_blocking(cluster.api(2)) as client:
        client.queue("orders").enqueue(b"alone")
    last = command("peer", "remove", "2", "--yes", api=cluster.api(2))
    assert (last.returncode, "at least one peer must remain" in last.stderr) == (REFUSED, True), last.stderr
    unknown = command("peer", "remove", "99", "--yes", api=cluster.api(2))
    assert (unknown.returncode, unknown.stderr.startswith("avow: UNKNOWN_PEER: ")) == (REFUSED, True)
