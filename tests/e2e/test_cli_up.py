"""`avow up` when a peer crashes, when it is stopped, and when it cannot start."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.cli_cluster import AVOW, Up, as_json, avow

from avow.testing.cluster import wait_until


@contextmanager
def started(folder: Path, *arguments: str, peers: int = 3) -> Iterator[Up]:
    up = Up(folder, *arguments, peers=peers)
    try:
        up.wait_for("ready")
        yield up
    finally:
        up.kill()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def pids(up: Up) -> list[int]:
    return [peer["pid"] for peer in as_json("status", api=up.addresses)["peers"]]


def test_a_killed_peer_is_reported_dead_and_comes_back_with_its_data(tmp_path: Path) -> None:
    with started(tmp_path / "data") as up:
        avow("queue", "create", "orders", api=up.addresses)
        avow("enqueue", "orders", "before", api=up.addresses)
        os.kill(pids(up)[1], signal.SIGKILL)
        died = up.wait_for("died", peer=2)
        assert died["text"] == "peer 2 was killed by signal 9; it will be restarted in 5 s"
        assert avow("enqueue", "orders", "meanwhile", api=up.addresses).returncode == 0
        up.wait_for("restarted", peer=2)
        wait_until(
            lambda: all(peer["ready"] for peer in as_json("status", api=up.addresses)["peers"]), what="all ready"
        )
        second = up.addresses.split(",")[1]
        wait_until(
            lambda: avow("read", "orders", "--values-only", api=second).stdout == "before\nmeanwhile\n",
            what="peer 2 has fetched what it missed",
        )


def test_ctrl_c_stops_every_peer_and_the_next_start_finds_the_data(tmp_path: Path) -> None:
    with started(tmp_path / "data") as up:
        avow("queue", "create", "orders", api=up.addresses)
        avow("enqueue", "orders", "kept", api=up.addresses)
        running = pids(up)
        assert up.end(signal.SIGINT) == 0
        assert not any(alive(pid) for pid in running)
    with started(tmp_path / "data") as up:
        assert avow("read", "orders", "--values-only", api=up.addresses).stdout == "kept\n"
        assert up.end(signal.SIGTERM) == 0


def test_peers_end_when_avow_up_is_killed(tmp_path: Path) -> None:
    with started(tmp_path / "data") as up:
        running = pids(up)
        up.kill()
        wait_until(lambda: not any(alive(pid) for pid in running), what="all peers have ended")


def test_a_folder_of_three_is_not_started_as_five(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"peer-{number}").mkdir()
    run = avow("up", "--peers", "5", "--data", str(tmp_path))
    assert run.returncode == 1
    assert "holds a cluster of 3; nothing was started" in run.stderr


def test_ports_in_use_are_named_with_their_process(tmp_path: Path) -> None:
    with started(tmp_path / "data", "--peers", "1", peers=1) as up:
        run = avow("up", "--port", str(up.base), "--data", str(tmp_path / "other"))
        assert run.returncode == 1
        assert f"port {up.base + 1} is in use by process" in run.stderr
        assert not (tmp_path / "other").exists()


class Screen:
    """A terminal that records everything written to it."""

    def __init__(self) -> None:
        self._own, self.terminal = pty.openpty()
        self.seen = b""
        self._reader = threading.Thread(target=self._read)

    def look(self) -> None:
        os.close(self.terminal)
        self._reader.start()

    def close(self) -> None:
        self._reader.join()
        os.close(self._own)

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the other side is gone
            while piece := os.read(self._own, 65_536):
                self.seen += piece


def test_a_terminal_gets_a_live_view(tmp_path: Path) -> None:
    with started(tmp_path / "probe", "--peers", "1", peers=1) as probe:
        base = probe.base
        assert probe.end() == 0
    screen = Screen()
    command = [AVOW, "up", "--peers", "1", "--port", str(base), "--temporary"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "150"}
    with subprocess.Popen(command, stdout=screen.terminal, stderr=screen.terminal, env=environment) as up:
        screen.look()
        try:
            wait_until(lambda: b"no queues yet" in screen.seen, timeout_s=60, what=lambda: repr(screen.seen[-500:]))
        finally:
            up.send_signal(signal.SIGINT)
        assert up.wait(60) == 0
    screen.close()
    for part in (
        b"1 peer, temporary data",
        b"try in another terminal:",
        b"export AVOW_API=",
        b"all peers have stopped",
    ):
        assert part in screen.seen
