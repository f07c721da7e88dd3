"""`avow up` without a terminal: one line of JSON per event."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from avow.testing.cluster import wait_until
from avow.testing.cluster_ports import Ports

ROOT = Path(__file__).parents[2]
AVOW = str(Path(sys.executable).with_name("avow"))
BOUND = ["setpriv", "--pdeathsig", "TERM", "--"] if shutil.which("setpriv") else []  # no cluster outlives the tests


class Up:
    """A running `avow up`."""

    def __init__(self, folder: Path, *arguments: str, peers: int = 3) -> None:
        self.ports = Ports()
        self.folder = folder
        self.base = self._base(peers)
        self.addresses = ",".join(f"http://127.0.0.1:{self.base + number}" for number in range(1, peers + 1))
        self._out = folder.with_name(folder.name + ".events")
        command = [*BOUND, AVOW, "up", "--json", "--port", str(self.base), "--data", str(folder), *arguments]
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)

    def events(self) -> list[dict[str, Any]]:
        lines = self._out.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith("{")]

    def wait_for(self, event: str, *, peer: int | None = None) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            assert self.process.poll() is None, self._out.read_text()
            return next((e for e in self.events() if e["event"] == event and peer in (None, e["peer"])), None)

        seen = wait_until(found, timeout_s=60, what=lambda: f"{event}: {self._out.read_text()}")
        assert seen is not None
        return seen

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        try:
            return self.process.wait(60)
        finally:
            self.ports.release()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.ports.release()

    def _base(self, peers: int) -> int:
        """A port such that those after it, and those a hundred further, are free and stay so."""

        def found() -> int:
            base = self.ports.take()
            if self.ports.claim(*(base + far + number for far in (0, 100) for number in range(1, peers + 1))):
                return base
            self.ports.release()
            return 0

        return wait_until(found, what="free ports")


@contextmanager
def ready(folder: Path) -> Iterator[Up]:
    """A running cluster, which must exit with 0 when it is stopped."""
    running = Up(folder)
    try:
        running.wait_for("ready")
        yield running
        assert running.end() == 0
    finally:
        running.kill()


def avow(*arguments: str, api: str = "", stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    known = {**os.environ, "COLUMNS": "200", **({"AVOW_API": api} if api else {}), **environment}
    return subprocess.run(
        [AVOW, *arguments], input=stdin, capture_output=True, text=True, timeout=120, check=False, env=known
    )


def as_json(*arguments: str, api: str, stdin: str = "") -> Any:
    run = avow(*arguments, "--json", api=api, stdin=stdin)
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads(run.stdout)
