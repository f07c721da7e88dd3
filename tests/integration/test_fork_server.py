"""Children of a fork server are separate processes: killed alone, started again clean, ended with the server."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from avow.errors import Offline
from avow.testing.cluster_wait import wait_until
from avow_lab.campaigns.harness.fork_server import ForkServer
from avow_lab.campaigns.harness.forked_peers import PEER, ForkedCluster
from avow_lab.campaigns.harness.programs import Program

PROGRAM = str(Path(__file__).with_name("fork_server_programs.py"))
THREADS = str(Path(__file__).with_name("fork_server_threads.py"))


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    with ForkServer(PROGRAM) as fork_server:
        yield fork_server


def test_a_child_is_a_separate_process_that_inherits_no_descriptor(fork_server: ForkServer, tmp_path: Path) -> None:
    with Program("one", [PROGRAM], folder=tmp_path, fork_server=fork_server) as one:
        one.start(environment={"COLOUR": "red"})
        assert one.report["pid"] == one.report["session"] == one.pid != os.getpid()
        assert one.report["imported_by"] not in {one.pid, os.getpid()}
        assert one.report["threads"] == 1
        assert one.report["descriptors"] == [0, 1, 2]
        assert one.report["colour"] == "red"


def test_killing_one_child_leaves_its_sibling_alive(fork_server: ForkServer, tmp_path: Path) -> None:
    with (
        Program("one", [PROGRAM], folder=tmp_path, fork_server=fork_server) as one,
        Program("two", [PROGRAM], folder=tmp_path, fork_server=fork_server) as two,
    ):
        first = one.start().pid
        two.start()
        os.kill(first, signal.SIGKILL)  # by its process id
        wait_until(lambda: not one.alive)
        assert one.exit_code == -signal.SIGKILL
        assert two.alive
        assert one.start().pid != first
        assert one.report["pid"] == one.pid
        assert one.log.read_text() == f"{first} began\n{one.pid} began\n"


def test_a_child_ends_with_its_own_exit_code(fork_server: ForkServer, tmp_path: Path) -> None:
    with Program("one", [PROGRAM], folder=tmp_path, fork_server=fork_server) as one:
        one.launch("--code", "3")
        assert one.wait_dead(20.0)
        assert one.exit_code == 3
        one.launch("--colour")
        assert one.wait_dead(20.0)
        assert one.exit_code == 2
        assert "--colour" in one.log_tail()


def test_children_end_with_their_fork_server(tmp_path: Path) -> None:
    fork_server = ForkServer(PROGRAM)
    with fork_server:
        one = Program("one", [PROGRAM], folder=tmp_path, fork_server=fork_server).start()
        pid = one.pid
    wait_until(lambda: not _is_running(pid))
    with pytest.raises(Offline):
        one.launch()


def _is_running(pid: int) -> bool:
    """An orphan that ended is a zombie until it is reaped."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_nothing_is_forked_from_a_process_with_threads(tmp_path: Path) -> None:
    with ForkServer(THREADS) as fork_server, pytest.raises(Offline, match="thread"):
        Program("one", [THREADS], folder=tmp_path, fork_server=fork_server).start()


def test_an_import_error_is_reported(tmp_path: Path) -> None:
    fork_server = ForkServer("avow.nowhere", log=tmp_path / "fork_server.log")
    with pytest.raises(Offline, match=r"avow\.nowhere"):
        fork_server.start()
    fork_server.close()


def test_forked_peers_are_killed_and_come_back_with_their_data(tmp_path: Path) -> None:
    with (
        ForkServer(PEER) as fork_server,
        ForkedCluster(1, fork_server=fork_server, folder=tmp_path / "cluster") as cluster,
    ):
        first = cluster.pid(1)
        identity = cluster.ask(1, "/v1/peers")["peers"][0]["identity"]
        cluster.kill(1)
        assert cluster.process(1).exit_code == -signal.SIGKILL
        cluster.restart(1)
        assert cluster.pid(1) != first
        assert cluster.ask(1, "/v1/peers")["peers"][0]["identity"] == identity
        assert cluster.stop(1) == 0
