"""A program under test: started, killed with -9, started again on the same port.

The program gets `--port` (0 the first time) and reports where it listens in one line of JSON on standard output:
{"url": "http://127.0.0.1:40001"}. Its standard error is appended to a log that survives restarts. It ends with the
process that started it, where setpriv exists. A program with a function `main` can be started by a fork server, which
is cheaper when it is started often.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from avow.errors import Offline
from avow.testing.cluster_process import Child
from avow.testing.cluster_wait import wait_until
from avow_lab.campaigns.harness.fork_server import ForkServer, spawn

START_S: Final = 30.0
STOP_S: Final = 20.0
_LOG_TAIL_LINES: Final = 8


class Program:
    """`command` follows the interpreter: a file and its flags, or `-m` and a module."""

    def __init__(
        self, name: str, command: Sequence[str], *, folder: Path, fork_server: ForkServer | None = None
    ) -> None:
        self.name, self._command, self._folder, self._fork_server = name, tuple(command), folder, fork_server
        self.log = folder / f"{name}.log"
        self.port = 0
        self.report: dict[str, Any] = {}
        self._process: Child | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *flags: str, environment: Mapping[str, str] | None = None) -> Self:
        """Returns when it listens. `flags` apply to this run only."""
        self.launch(*flags, environment=environment)
        self.wait_serving()
        return self

    def launch(self, *flags: str, environment: Mapping[str, str] | None = None) -> None:
        """Start without waiting."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self.report = {}
        self._process = self._spawn(flags, {**os.environ, **(environment or {})})

    def wait_serving(self) -> None:
        wait_until(self._has_reported, timeout_s=START_S, what=self.log_tail)
        if not self.report:
            raise Offline(f"{self.name} ended with exit code {self.exit_code}; {self.log_tail()}")
        self.port = int(str(self.report["url"]).rpartition(":")[2])

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def wait_dead(self, timeout_s: float) -> bool:
        """Whether it ends within `timeout_s`."""
        if self._process is None:
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self._process.poll() is not None

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGKILL)
            self._process.wait(STOP_S)

    def log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return f"the log of {self.name} ends with: {' | '.join(lines[-_LOG_TAIL_LINES:]) or '(nothing)'}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _spawn(self, flags: Sequence[str], environment: Mapping[str, str]) -> Child:
        command = [*self._command, "--port", str(self.port), *flags]
        if self._fork_server is not None:
            return self._fork_server.start_program(command, out=self._out, log=self.log, environment=environment)
        with self._out.open("wb") as out, self.log.open("ab") as log:
            return spawn(command, stdin=subprocess.DEVNULL, stdout=out, stderr=log, env=dict(environment))

    @property
    def _out(self) -> Path:
        return self._folder / f"{self.name}.out"

    def _has_reported(self) -> bool:
        for line in self._out.read_bytes().split(b"\n")[:-1]:
            with contextlib.suppress(msgspec.DecodeError):
                self.report = msgspec.json.decode(line, type=dict[str, Any])
                return True
        return not self.alive
