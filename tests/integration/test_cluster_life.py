"""A local cluster of real processes: started, killed, paused, stopped, grown; always ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import avow
from avow.errors import Offline
from avow.testing.cluster import LocalCluster, wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3) as running:
        yield running


def test_every_peer_is_ready_and_names_all_of_them(cluster: LocalCluster) -> None:
    for number in (1, 2, 3):
        assert cluster.ask(number, "/readyz") == {"status": "ready"}
        peers = {peer["number"]: peer for peer in cluster.ask(number, "/v1/peers")["peers"]}
        assert {peer: found["api"] for peer, found in peers.items()} == {n: cluster.api(n) for n in (1, 2, 3)}
        assert peers[number]["link"] == cluster.link(number)


def test_processes_are_measured_from_outside(cluster: LocalCluster) -> None:
    wait_until(lambda: cluster.cpu_s(1) > 0, what="the first tick of CPU time")
    assert 1 << 20 < cluster.rss_bytes(1) < 1 << 32, "about 60 MB: bytes, neither pages nor KiB"
    assert cluster.data(1).is_dir()
    assert cluster.log(1).is_file()
    assert os.getpgid(cluster.pid(1)) == cluster.pid(1), "a process group of its own"


def test_a_killed_peer_comes_back_with_its_data_and_addresses(cluster: LocalCluster) -> None:
    before, api = cluster.pid(2), cluster.api(2)
    cluster.kill(2)
    assert cluster.running == (1, 3)
    with pytest.raises(Offline, match="peer 2 did not answer"):
        cluster.ask(2, "/healthz")
    cluster.restart(2)
    assert (cluster.pid(2) != before, cluster.api(2)) == (True, api)
    assert cluster.ready(2)


def test_a_paused_peer_is_silent_until_it_resumes(cluster: LocalCluster) -> None:
    cluster.pause(3)
    try:
        with pytest.raises(Offline):
            cluster.ask(3, "/healthz", timeout_s=0.3)
        assert 3 in cluster.running
    finally:
        cluster.resume(3)
    wait_until(lambda: cluster.ready(3), what="peer 3 is ready again")


def test_a_peer_shuts_down_cleanly_on_request(cluster: LocalCluster) -> None:
    assert cluster.stop(1) == 0
    cluster.restart(1)


def test_acknowledged_messages_survive_a_kill_of_all_peers(cluster: LocalCluster) -> None:
    with avow.connect_blocking(cluster.addresses) as client:
        client.create_queue("kept")
        done = client.queue("kept").enqueue_many([b"%d" % number for number in range(100)])
        assert done[0].last_version == 100
    for number in cluster.running:
        cluster.kill(number)
    for number in cluster.founders:
        cluster.restart(number, ready=False)
    cluster.wait_ready()
    with avow.connect_blocking(cluster.addresses) as client:
        found = [value for batch in client.queue("kept").read(level="linearizable") for value in batch.values()]
    assert found == [b"%d" % number for number in range(100)]


def test_a_peer_joins_and_comes_back_under_its_number(cluster: LocalCluster) -> None:
    number = cluster.add()
    assert number == 4
    wait_until(lambda: _state(cluster, 4) == "ready", what="peer 4 is a member")
    cluster.kill(4)
    cluster.restart(4)
    assert cluster.process(4).serving is not None
    assert cluster.process(4).wait_serving().number == 4
    assert cluster.addresses.count("http://") == 4


def _state(cluster: LocalCluster, number: int) -> str:
    return str({peer["number"]: peer["state"] for peer in cluster.ask(1, "/v1/peers")["peers"]}.get(number))


def test_leaving_the_block_ends_every_process_and_removes_the_folder() -> None:
    cluster = LocalCluster(1)
    with pytest.raises(ZeroDivisionError), cluster:
        raise ZeroDivisionError
    assert not cluster.process(1).alive
    assert cluster.process(1).exit_code == -signal.SIGKILL
    assert not cluster.folder.exists()


def test_a_named_folder_is_kept_and_reused(tmp_path: Path) -> None:
    with LocalCluster(1, folder=tmp_path) as cluster, avow.connect_blocking(cluster.addresses) as client:
        client.create_queue("kept")
    with LocalCluster(1, folder=tmp_path) as cluster, avow.connect_blocking(cluster.addresses) as client:
        assert [queue.name for queue in client.queues()] == ["kept"]


def test_peers_take_settings_and_the_prefix_of_their_command() -> None:
    with LocalCluster(1, settings={"log": "debug"}, prefix=lambda number: ["env", f"PEER={number}"]) as cluster:
        environment = Path(f"/proc/{cluster.pid(1)}/environ").read_bytes().split(b"\0")
        assert b"PEER=1" in environment
        command = Path(f"/proc/{cluster.pid(1)}/cmdline").read_bytes().split(b"\0")
        assert command[command.index(b"--log") + 1] == b"debug"


def test_founders_can_have_proxied_link_addresses_and_different_hosts() -> None:
    cluster = LocalCluster(2, hosts={2: "127.0.0.2"})
    cluster.link_addresses[1] = cluster.link(1).replace("127.0.0.1", "localhost")
    with cluster:
        assert cluster.api(2).startswith("http://127.0.0.2:")
        peers = {peer["number"]: peer for peer in cluster.ask(2, "/v1/peers")["peers"]}
        assert (peers[1]["link"], peers[2]["link"]) == (cluster.link_addresses[1], cluster.link(2))
        assert peers[1]["connected"]
