"""A program of this machine under test: started, killed with -9, started again on the same port.

It is told `--port` (0 the first time) and says where it listens with one line of JSON on its standard output:
{"url": "http://127.0.0.1:40001"}. What it says on standard error goes to a log that survives restarts. It dies with
the process that started it, where setpriv exists. One that has a function `main` can come from a nursery, which is
cheaper when it is started often.
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
from typing import Any, Final

import msgspec

from avow.errors import Offline
from avow.testing.cluster_process import Child
from avow.testing.cluster_wait import wait_until
from avow.testing.nursery import Nursery

START_S: Final = 30.0
STOP_S: Final = 20.0
_LOG_TAIL_LINES: Final = 8
_spawner: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="avow-programs")


class Program:
    """`command` follows the interpreter: a file and its flags, or `-m` and a module."""

    def __init__(self, name: str, command: Sequence[str], *, folder: Path, nursery: Nursery | None = None) -> None:
        self.name, self._command, self._folder, self._nursery = name, tuple(command), folder, nursery
        self.log = folder / f"{name}.log"
        self.port = 0
        self.said: dict[str, Any] = {}
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

    def start(self, *flags: str, environment: Mapping[str, str] | None = None) -> Program:
        """Returns when it listens. `flags` are for this run only."""
        self.launch(*flags, environment=environment)
        self.wait_serving()
        return self

    def launch(self, *flags: str, environment: Mapping[str, str] | None = None) -> None:
        """Start without waiting."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self.said = {}
        wanted = {**os.environ, **(environment or {})}
        self._process = _spawner.submit(self._spawn, flags, wanted).result()

    def wait_serving(self) -> None:
        wait_until(self._heard, timeout_s=START_S, what=self.last_words)
        if not self.said:
            raise Offline(f"{self.name} ended with {self.exit_code}: {self.last_words()}")
        self.port = int(str(self.said["url"]).rpartition(":")[2])

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def wait_dead(self, timeout_s: float) -> bool:
        """Whether it ended by itself in time."""
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

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return f"the log of {self.name} ends with: {' | '.join(lines[-_LOG_TAIL_LINES:]) or '(nothing)'}"

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _spawn(self, flags: Sequence[str], environment: Mapping[str, str]) -> Child:
        command = [*self._command, "--port", str(self.port), *flags]
        if self._nursery is not None:
            return self._nursery.begin(command, out=self._out, log=self.log, environment=environment)
        bind = shutil.which("setpriv")
        bound = [bind, "--pdeathsig", "KILL", "--"] if bind and sys.platform == "linux" else []
        with self._out.open("wb") as out, self.log.open("ab") as log:
            return subprocess.Popen(
                [*bound, sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                start_new_session=True,
                env=dict(environment),
            )

    @property
    def _out(self) -> Path:
        return self._folder / f"{self.name}.out"

    def _heard(self) -> bool:
        for line in self._out.read_bytes().split(b"\n")[:-1]:
            with contextlib.suppress(msgspec.DecodeError):
                self.said = msgspec.json.decode(line, type=dict[str, Any])
                return True
        return not self.alive
