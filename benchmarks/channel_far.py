"""The other end of a channel's figures: a process of `benchmarks.channel_ends`, asked line by line."""

from __future__ import annotations

import json
import subprocess
import sys
from types import TracebackType
from typing import Any, Final, Self

END_S: Final = 10.0


class Far:
    """A process of `benchmarks.channel_ends`."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "benchmarks.channel_ends", *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ready = self._read()

    def ask(self, line: str = "") -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the other end is gone, with exit code {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
