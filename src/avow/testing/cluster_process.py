"""One `avow serve` process: started, stopped, killed, paused and measured from outside.

The process gets its own process group, so that Ctrl-C in a terminal reaches only the program that started the cluster.
It must not outlive this program: if setpriv exists, the kernel kills it when its parent dies. For the kernel the parent
is a THREAD, so all processes are started from one thread that lives as long as the program.

Standard output goes to a file, which is read until it has the line {"event":"serving",...}; standard error is appended
to a log that is kept across restarts. No pipe must be drained, so a peer never blocks on its output.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol

import msgspec

from avow.errors import Offline
from avow.server.settings import DESCRIPTIONS, ENVIRONMENT_PREFIX
from avow.storage.data_folder import make_folder
from avow.testing.cluster_wait import wait_until

START_S: Final = 60.0
STOP_S: Final = 60.0
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
LOG_TAIL_LINES: Final = 5
SERVE: Final = ("-m", "avow.cli", "serve")

_spawner: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="avow-cluster")


class Serving(msgspec.Struct, frozen=True):
    """The line that a peer prints when it listens."""

    event: str
    number: int
    api: str
    link: str
    pid: int


class Child(Protocol):
    """The part of `subprocess.Popen` that is used; a fork server has other children."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, number: int, /) -> None: ...


class PeerProcess:
    """`flags` and `code` may change between runs, folder and log may not.

    `code` is the folder with the packages of another version to run; None runs the installed version. `program` is
    what the interpreter runs with the flags of `avow serve`.
    """

    __slots__ = ("_process", "code", "flags", "folder", "log", "out", "prefix", "program", "runs", "serving", "token")

    def __init__(
        self,
        *,
        folder: Path,
        flags: Mapping[str, str],
        prefix: Sequence[str] = (),
        token: str = "",
        code: Path | None = None,
        program: Sequence[str] = SERVE,
    ) -> None:
        self.folder = folder
        self.program = tuple(program)
        self.token = token
        self.code = code
        self.flags = dict(flags)
        self.prefix = tuple(prefix)
        self.out = folder.with_name(folder.name + ".out")
        self.log = folder.with_name(folder.name + ".log")
        self.serving: Serving | None = None
        self.runs = 0
        self._process: Child | None = None

    @property
    def pid(self) -> int:
        """That of the latest run, which may have ended."""
        return self._process.pid if self._process is not None else 0

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start without waiting. The caller must end it with `kill` or `stop`."""
        if self.alive:
            return
        make_folder(self.folder.parent)
        self.serving = None
        self.runs += 1
        self._process = _spawner.submit(self._spawn).result()

    def wait_serving(self, timeout_s: float = START_S) -> Serving:
        """Wait until it listens. Raises Offline, with the end of its log, if it ended instead."""
        wait_until(self._serving_or_ended, timeout_s=timeout_s, what=self.log_tail)
        if self.serving is None:
            raise Offline(f"the process of {self.folder} ended with {self.exit_code}: {self.log_tail()}")
        return self.serving

    def stop(self, timeout_s: float = STOP_S) -> int | None:
        """SIGTERM. A process that does not end in time is killed; then -9 is returned."""
        if self._process is None:
            return None
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int | None:
        """kill -9, and wait until it has ended."""
        if self._process is None:
            return None
        self.signal(signal.SIGKILL)
        return self._process.wait(STOP_S)

    def signal(self, number: int) -> None:
        if self.alive and self._process is not None:
            self._process.send_signal(number)

    def cpu_s(self) -> float:
        """User and system time of the running process so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def rss_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_bytes().split()[1]) * PAGE_BYTES

    def log_tail(self) -> str:
        """The last lines of its log, on one line."""
        try:
            lines = self.log.read_text(errors="replace").strip().splitlines()
        except FileNotFoundError:
            lines = []
        tail = " | ".join(line.strip() for line in lines[-LOG_TAIL_LINES:])
        return f"the peer's log {self.log} ends with: {tail or '(empty)'}"

    def _spawn(self) -> Child:
        with self.out.open("wb") as out, self.log.open("ab") as log:
            return subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                start_new_session=True,
                env=environment_of(self.token, code=self.code),
            )

    def _command(self) -> list[str]:
        bind = shutil.which("setpriv")
        bound = [bind, "--pdeathsig", "KILL", "--"] if bind and sys.platform == "linux" else []
        return [*self.prefix, *bound, sys.executable, *self.program, *self.words()]

    def words(self) -> list[str]:
        """Its flags in the form of a command line."""
        flags = {"data": str(self.folder), **self.flags}
        return [part for name, value in flags.items() for part in (f"--{name.replace('_', '-')}", value)]

    def _serving_or_ended(self) -> bool:
        lines = self.out.read_bytes().split(b"\n")
        for line in lines[:-1]:  # the last line is incomplete
            with contextlib.suppress(msgspec.DecodeError):
                self.serving = msgspec.json.decode(line, type=Serving)
                return True
        return not self.alive


def environment_of(token: str, *, code: Path | None = None) -> dict[str, str]:
    """Our environment without settings of a peer, since flags set those of this peer; with the token for joining."""
    settings = {ENVIRONMENT_PREFIX + name.upper() for name in DESCRIPTIONS}
    kept = {name: value for name, value in os.environ.items() if name not in settings}
    if token:
        kept["AVOW_TOKEN"] = token
    if code is not None:
        kept["PYTHONPATH"] = str(code)
    return kept
