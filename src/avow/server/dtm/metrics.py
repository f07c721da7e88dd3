"""Metrics under dtm's names, for dashboards made for dtm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from avow.server.pledges.metrics import PledgeCounters

_MODEL: Final = "msg"


def metrics_text(counters: PledgeCounters) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(counters))
    return generate_latest(registry)


class _Collector(Collector):
    def __init__(self, counters: PledgeCounters) -> None:
        self._counters = counters

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield self._info()
        yield from self._requests()
        yield from self._transactions()

    def _info(self) -> Metric:
        info = GaugeMetricFamily(
            "dtm_server_info", "The information of this dtm server.", labels=("gin_version", "grpc_version")
        )
        info.add_metric(("", ""), 1)
        return info

    def _requests(self) -> Iterator[Metric]:
        total = CounterMetricFamily(
            "dtm_server_process", "All request received by dtm", labels=("type", "api", "status")
        )
        for labels, count in self._counters.requests.items():
            total.add_metric(labels, count)
        yield total
        took = HistogramMetricFamily(
            "dtm_server_response_duration", "The request durations of a dtm server api", labels=("type", "api")
        )
        for pair, answered in self._counters.answered.items():
            took.add_metric(pair, answered.buckets(), answered.sum_s)
        yield took

    def _transactions(self) -> Iterator[Metric]:
        ended = self._counters.ended
        total = CounterMetricFamily(
            "dtm_transaction_process", "All transactions processed by dtm", labels=("model", "status")
        )
        total.add_metric((_MODEL, "ok"), ended["succeeded"])
        total.add_metric((_MODEL, "fail"), ended["failed"] + ended["dead"])
        yield total
        took = HistogramMetricFamily(
            "dtm_transaction_handled_duration",
            "Histogram of handling latency of the transaction that handled by the server.",
            labels=("model",),
        )
        took.add_metric((_MODEL,), self._counters.took.buckets(), self._counters.took.sum_s)
        yield took
        branches = CounterMetricFamily(
            "dtm_branch_process",
            "All branches processed by dtm",
            labels=("model", "branchid", "branchtype", "status"),
        )
        for (branch_id, op, status), count in self._counters.branches.items():
            branches.add_metric((_MODEL, branch_id, op, status), count)
        yield branches
