"""A pipeline's status files in its checkpoint folder, which `avow pipeline list` and `show` read.

    _avow_pipeline.json     Status, replaced atomically about once per second
    _avow_pipeline.lock     locked while a run is alive: shows whether one is, and prevents a second one
    _avow_failure.txt       the full stack trace of the last failure
    query/                  Spark's checkpoint

A restart does not need these files: the progress is in Spark's checkpoint, the queues and the tables.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from avow.errors import Refused
from avow.spark.pipelines.progress import Counts

STATUS: Final = "_avow_pipeline.json"
LOCK: Final = "_avow_pipeline.lock"
FAILURE: Final = "_avow_failure.txt"
QUERY: Final = "query"


class Status(Struct, frozen=True, kw_only=True):
    """`state`: never, starting, running, done, stopped, failed, or crashed (the last run ended without reporting
    a status).

    `counts` are those of the last run, `rows_before` the rows of earlier runs. Times are seconds since 1970.
    """

    name: str
    kind: str
    state: str = "never"
    pid: int = 0
    started_s: float = 0.0
    updated_s: float = 0.0
    last_batch_s: float = 0.0
    rows_before: int = 0
    counts: Counts = Counts()
    error: str = ""
    trace: str = ""

    @property
    def rows(self) -> int:
        return self.rows_before + self.counts.rows


def query_folder(checkpoint: str) -> str:
    return str(Path(checkpoint) / QUERY)


def read_status(checkpoint: str, *, name: str, kind: str) -> Status:
    """The present status. A run that is "running" in the file but holds no lock has the state "crashed"."""
    try:
        found = msgspec.json.decode((Path(checkpoint) / STATUS).read_bytes(), type=Status)
    except (OSError, msgspec.DecodeError):
        return Status(name=name, kind=kind)
    if found.state in ("starting", "running") and not is_locked(checkpoint):
        return msgspec.structs.replace(found, state="crashed")
    return found


def write_status(checkpoint: str, status: Status) -> None:
    path = Path(checkpoint) / STATUS
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{STATUS}.{os.getpid()}")
    fresh.write_bytes(msgspec.json.encode(msgspec.structs.replace(status, updated_s=time.time())))
    fresh.replace(path)


def write_failure(checkpoint: str, text: str) -> str:
    path = Path(checkpoint) / FAILURE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


@contextmanager
def locked(checkpoint: str) -> Iterator[None]:
    """Raises Refused if another run of this pipeline is alive."""
    folder = Path(checkpoint)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                f"this pipeline is already running: another process has locked {folder / LOCK}; nothing was started. "
                "Stop the other run, or use another checkpoint"
            ) from None
        yield


def is_locked(checkpoint: str) -> bool:
    try:
        with (Path(checkpoint) / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
