"""Prometheus metrics of a pipeline, served on a separate port: `avow pipeline run FILE --metrics-port 9100`.

Each scrape reads the present status of the runner; nothing is counted here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from avow.errors import InvalidRequest, NotInstalled
from avow.spark.pipelines.status import Status

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def values(status: Status) -> dict[str, float]:
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
        found = values(status)
        for family, named in ((CounterMetricFamily, COUNTERS), (GaugeMetricFamily, GAUGES)):
            for name, about in named.items():
                if name in found:
                    made: Any = family(name, about, labels=["pipeline", "kind"])
                    made.add_metric([status.name, status.kind], found[name])
                    yield made


@contextmanager
def served(port: int | None, status: Callable[[], Status]) -> Iterator[int]:
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
