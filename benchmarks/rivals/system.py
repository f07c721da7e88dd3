"""What the benchmark asks of a system, and how the C load generator is run against one."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec

from benchmarks.rivals.work import MESSAGE_BYTES, Missing, Sample, Work

LOOPBACK: Final = "127.0.0.1"
PATIENCE_S: Final = 40.0  # beyond the time measured
VERSION_S: Final = 30.0


class System(Protocol):
    """Three nodes. `start` may raise Missing; `stop` may be called at any time, more than once."""

    name: str
    version: str  # known once started
    durability: str
    client: str

    @property
    def notes(self) -> str:
        """How it was asked, where that is not obvious."""
        ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def run(self, work: Work, *, seconds: float, warmup_s: float) -> Sample:
        """One round, on a queue of its own that is removed afterwards."""
        ...


def run_load(
    program: Path,
    work: Work,
    *,
    port: int,
    target: str,
    pids: Iterable[int],
    seconds: float,
    warmup_s: float,
    extra: str = "",
) -> Sample:
    words = {
        "host": LOOPBACK,
        "port": port,
        "target": target,
        "connections": work.connections,
        "window": work.window,
        "batch": work.batch,
        "size": MESSAGE_BYTES,
        "seconds": seconds,
        "warmup_s": warmup_s,
        "pids": ",".join(map(str, pids)),
        "extra": extra,
    }
    command = [str(program), *(f"{name}={value}" for name, value in words.items())]
    return parse_sample(command, timeout_s=seconds + warmup_s + PATIENCE_S)


def parse_sample(command: list[str], *, timeout_s: float, environment: Mapping[str, str] | None = None) -> Sample:
    """Run a load generator and read the one line it prints. What it refuses to measure is Missing."""
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"the load generator did not end within {timeout_s:.0f} s") from None
    if done.returncode:
        raise Missing((done.stderr.strip().splitlines() or ["the load generator said nothing"])[-1][:300])
    return msgspec.json.decode(done.stdout, type=Sample)


def read_version(*command: str, environment: Mapping[str, str] | None = None) -> str:
    """The first thing a program says that looks like a version."""
    done = subprocess.run(
        command,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=VERSION_S,
        check=False,
    )
    found = re.search(r"\d+\.\d+(\.\d+)?", done.stdout)
    return found.group() if found else "unknown"
