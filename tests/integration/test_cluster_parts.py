"""The parts of a local cluster, without a cluster: ports, waiting, and processes that do not start."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from avow.errors import InvalidRequest, Offline, UnknownPeer
from avow.testing.cluster import LocalCluster, PeerProcess, wait_until
from avow.testing.cluster_ports import Ports, is_free


def test_no_two_clusters_get_the_same_port() -> None:
    one, other = Ports(), Ports()
    try:
        taken = [ports.take() for ports in (one, other) for _ in range(50)]
        assert len(set(taken)) == 100
        assert all(is_free(port) for port in taken)
    finally:
        one.release()
        other.release()


def test_a_port_in_use_is_not_free() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert not is_free(taken.getsockname()[1])


def test_waiting_returns_the_value_or_names_what_is_missing() -> None:
    looks: list[int] = []
    assert wait_until(lambda: looks.append(1) or len(looks) >= 3)  # type: ignore[func-returns-value]
    with pytest.raises(Offline, match=r"timed out after .*: the moon"):
        wait_until(lambda: False, timeout_s=0.05, what="the moon")


def test_a_process_that_ends_instead_of_listening_is_reported_with_its_log(tmp_path: Path) -> None:
    process = PeerProcess(folder=tmp_path / "peer-1", flags={"listen": "nowhere"})
    process.start()
    with pytest.raises(Offline, match=r"ended with 1: .*listen must be host:port"):
        process.wait_serving()
    assert process.exit_code == 1


def test_a_folder_or_an_address_that_cannot_be_used_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        in_use = f"127.0.0.1:{taken.getsockname()[1]}"
        wrong = [
            (tmp_path / "file", {}, "the data folder .*file cannot be used: File exists"),
            (tmp_path / "file" / "below", {}, "the data folder .*below cannot be used: Not a directory"),
            (tmp_path / "one", {"listen": in_use}, f"the address listen {in_use} cannot be used: .*in use"),
            (tmp_path / "two", {"peer_listen": in_use}, f"the address peer_listen {in_use} cannot be used: .*in use"),
        ]
        for number, (data, flags, words) in enumerate(wrong):
            free = {"listen": "127.0.0.1:0", "peer_listen": "127.0.0.1:0"}
            process = PeerProcess(folder=tmp_path / f"log-{number}", flags={**free, **flags, "data": str(data)})
            process.start()
            with pytest.raises(Offline, match=words) as ended:
                process.wait_serving()
            assert "Traceback" not in str(ended.value)
            assert process.exit_code == 1


def test_a_cluster_that_fails_to_start_leaves_nothing() -> None:
    cluster = LocalCluster(2, settings={"log": "loud"})
    with pytest.raises(Offline, match="setting log"), cluster:
        pytest.fail("it started")
    assert cluster.running == ()
    assert not cluster.folder.exists()


def test_a_cluster_has_at_least_one_peer_and_knows_its_own() -> None:
    with pytest.raises(InvalidRequest):
        LocalCluster(0)
    cluster = LocalCluster(1)
    with pytest.raises(UnknownPeer):
        cluster.pid(7)
    cluster.close()
