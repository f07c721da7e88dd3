"""Server processes of other systems: started, watched, measured, ended. Three for each system, all on loopback.

A server may start others (RabbitMQ has small ones for names and ports), so each gets a session of its own: the
processes of that session are what processor time is summed over and what is ended. When the benchmark itself is killed
the kernel ends the servers.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from avow.errors import AvowError
from avow.testing.cluster_wait import wait_until

STOP_S: Final = 10.0


class NodeProcess:
    """Constructing starts it. Output goes to `log`."""

    def __init__(self, command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None) -> None:
        bind = shutil.which("setpriv")
        bound = [bind, "--pdeathsig", "KILL", "--"] if bind else []
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*bound, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def pids(self) -> list[int]:
        """Of every process in its session."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _session(pid) == self._process.pid]

    def log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return f"{self.log.name} ends with: " + " | ".join(lines[-5:])

    def end(self) -> None:
        """Orderly if it can, by force if it must; all processes of the session."""
        pids = self.pids()
        _signal(pids, signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
            wait_until(lambda: not any(map(_runs, pids)), timeout_s=STOP_S, what="servers that end")
        except (subprocess.TimeoutExpired, AvowError):
            _signal([pid for pid in pids if _session(pid) == self._process.pid], signal.SIGKILL)
            self._process.wait(STOP_S)


def _session(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[3])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
