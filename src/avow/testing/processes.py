"""The processes of a Spark driver, from /proc (Linux): Python starts a JVM, which starts further processes."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Final

WORKING: Final = (b"CoarseGrainedExecutorBackend", b"pyspark.worker", b"python_streaming")
"""Executors, tasks, and the processes that plan and commit a stream's batches. Others are idle after the start."""


def descendants(pid: int) -> list[int]:
    """All descendants, parents before their children."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found, waiting = list[int](), [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def workers(driver: int) -> list[int]:
    """Executors, and the Python processes of a stream."""
    return [pid for pid in descendants(driver) if _is_worker(pid)]


def _is_worker(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return any(name in words for name in WORKING)


def kill(*pids: int) -> int:
    """kill -9; returns how many of them existed."""
    done = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            done += 1
    return done
