"""A pipeline's status: files in its checkpoint folder, which `avow pipeline list` and `show` read, and metrics.

    _avow_pipeline.json     Status, replaced atomically about once per second
    _avow_pipeline.lock     locked while a run is alive: shows whether one is, and prevents a second one
    _avow_failure.txt       the full stack trace of the last failure
    query/                  Spark's checkpoint

A restart does not need these files: the progress is in Spark's checkpoint, the queues and the tables.

Metrics for Prometheus are served on a separate port: `avow pipeline run FILE --metrics-port 9100`. Each scrape reads
the present status of the runner; nothing is counted for them.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from avow.errors import InvalidRequest, NotInstalled, Refused
from avow.spark.pipelines.progress import Counts

if TYPE_CHECKING:
    from collections.abc import Iterable


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


# ---------------------------------------------------------------------- Prometheus metrics

COUNTERS: Final = {
    "avow_pipeline_rows": "Rows that the source returned in this run.",
    "avow_pipeline_batches": "Batches completed in this run.",
    "avow_pipeline_trimmed_versions": "Versions removed from queues after they were archived.",
}
GAUGES: Final = {
    "avow_pipeline_lag_rows": "Versions in the queues that the pipeline has not read.",
    "avow_pipeline_batch_seconds": "Duration of the last batch with rows.",
    "avow_pipeline_batch_rows": "Rows of the last batch with rows.",
    "avow_pipeline_rows_per_second": "Throughput of the last batch with rows.",
    "avow_pipeline_last_batch_timestamp_seconds": "Time at which the last batch was completed.",
    "avow_pipeline_up": "1 while the pipeline runs.",
}


def metric_values(status: Status) -> dict[str, float]:
    """Values by metric name, without unknown ones. Pure."""
    counts = status.counts
    found: dict[str, float] = {
        "avow_pipeline_rows": counts.rows,
        "avow_pipeline_batches": counts.batches,
        "avow_pipeline_trimmed_versions": counts.trimmed,
        "avow_pipeline_batch_seconds": counts.batch_s,
        "avow_pipeline_batch_rows": counts.batch_rows,
        "avow_pipeline_rows_per_second": counts.rows_per_s,
        "avow_pipeline_up": float(status.state == "running"),
    }
    if counts.lag is not None:
        found["avow_pipeline_lag_rows"] = counts.lag
    if status.last_batch_s:
        found["avow_pipeline_last_batch_timestamp_seconds"] = status.last_batch_s
    return found


class _Collector:
    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status

    def collect(self) -> Iterable[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        status = self._status()
        found = metric_values(status)
        for family, named in ((CounterMetricFamily, COUNTERS), (GaugeMetricFamily, GAUGES)):
            for name, about in named.items():
                if name in found:
                    made: Any = family(name, about, labels=["pipeline", "kind"])
                    made.add_metric([status.name, status.kind], found[name])
                    yield made


@contextmanager
def serve_metrics(port: int | None, status: Callable[[], Status]) -> Iterator[int]:
    """Serves /metrics; yields the port, or 0 if `port` is None."""
    if port is None:
        yield 0
        return
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise NotInstalled("--metrics-port", extra="server") from None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(status))
    try:
        server, thread = start_http_server(port, registry=registry)
    except OSError as cause:
        raise InvalidRequest(f"cannot listen on port {port} ({cause.strerror}); nothing was started") from cause
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
