"""Metrics for Prometheus, collected at each scrape.

Nothing on the path of a message counts for the sake of metrics: every stateful object keeps plain integers of its own
and returns them from `statistics()`. A scrape turns them into samples, in a registry of this peer alone. The table
`METRICS` lists all of them; a test compares docs/reference/metrics.md with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from msgspec import Struct
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from avow.node.records import LaneView
from avow.node.views import heard_ms, lane_views

if TYPE_CHECKING:
    from avow.server.process import Peer

Type: TypeAlias = Literal["gauge", "counter"]
Samples: TypeAlias = list[tuple[tuple[str, ...], float]]

_OF_LANE: Final = ("queue", "lane")
_OF_PEER: Final = ("peer",)
_OF_KIND: Final = ("kind",)


class MetricInfo(Struct, frozen=True):
    """The samples of a counter have names that end in `_total`; the name here does not."""

    name: str
    type: Type
    help: str
    labels: tuple[str, ...] = ()


METRICS: Final = (
    MetricInfo("avow_peer_info", "gauge", "always 1; the labels identify this peer", ("cluster", "identity", "number")),
    MetricInfo("avow_incarnation", "gauge", "number of this run of the peer"),
    MetricInfo("avow_up_seconds", "gauge", "seconds since this process began to serve"),
    MetricInfo("avow_metadata_online", "gauge", "1 while this peer is in contact with a quorum of the metadata lane"),
    MetricInfo("avow_metadata_applied", "gauge", "entries of the metadata lane applied here"),
    MetricInfo(
        "avow_peer_heard_seconds",
        "gauge",
        "seconds since the last message from the peer in the metadata lane",
        _OF_PEER,
    ),
    MetricInfo("avow_link_connected", "gauge", "1 while there is a link to the peer", _OF_PEER),
    MetricInfo("avow_link_frames_sent", "counter", "frames passed to links"),
    MetricInfo("avow_link_dropped", "counter", "frames dropped because the peer read too slowly"),
    MetricInfo(
        "avow_frames_refused", "counter", "frames of other peers that were refused because they cannot be right"
    ),
    MetricInfo("avow_link_refused", "counter", "links that were refused: no Hello, wrong cluster, wrong identity"),
    MetricInfo("avow_queues", "gauge", "queues in the catalog"),
    MetricInfo("avow_lane_end", "gauge", "last visible version of a lane on this peer", _OF_LANE),
    MetricInfo("avow_lane_trimmed_to", "gauge", "last version removed by trimming", _OF_LANE),
    MetricInfo("avow_lane_lag_entries", "gauge", "committed entries not yet applied on this peer", _OF_LANE),
    MetricInfo("avow_lane_coordinating", "gauge", "1 if this peer coordinates or owns the lane", _OF_LANE),
    MetricInfo("avow_lane_repairing", "gauge", "1 while this peer fetches entries it lost", _OF_LANE),
    MetricInfo("avow_lane_open_transactions", "gauge", "staged transactions without a decision", _OF_LANE),
    MetricInfo("avow_waiting_requests", "gauge", "requests to the node that are not answered yet"),
    MetricInfo("avow_waiting_syncs", "gauge", "drained effects that are not synced yet"),
    MetricInfo("avow_unwritten_effects", "gauge", "drained effects that wait for disk space"),
    MetricInfo("avow_storage_writes", "counter", "groups of operations passed to storage"),
    MetricInfo("avow_storage_operations", "counter", "operations passed to storage"),
    MetricInfo("avow_storage_syncs", "counter", "syncs of the write-ahead log"),
    MetricInfo("avow_storage_pending_writes", "gauge", "groups waiting for a sync"),
    MetricInfo("avow_storage_size_bytes", "gauge", "bytes on disk"),
    MetricInfo("avow_storage_full", "gauge", "1 while writes are refused because the disk is full"),
    MetricInfo("avow_storage_damage_found", "counter", "damaged places found on disk"),
    MetricInfo("avow_http_requests", "counter", "requests parsed"),
    MetricInfo("avow_http_requests_in_flight", "gauge", "requests being answered"),
    MetricInfo("avow_http_requests_malformed", "counter", "requests that were not valid HTTP"),
    MetricInfo("avow_http_requests_failed", "counter", "requests whose handler failed"),
    MetricInfo("avow_http_connections", "gauge", "open client connections"),
    MetricInfo("avow_http_connections_turned_away", "counter", "connections answered BUSY or closed at once"),
    MetricInfo(
        "avow_http_connections_stalled", "counter", "connections closed because their client did not read answers"
    ),
    MetricInfo("avow_held_bytes", "gauge", "bytes held for clients", _OF_KIND),
    MetricInfo("avow_held_bytes_max", "gauge", "maximum of avow_held_bytes, from setting memory_bytes_max", _OF_KIND),
    MetricInfo("avow_held_waiting", "gauge", "connections and channels that wait until there is room", _OF_KIND),
    MetricInfo("avow_held_refused", "counter", "requests and channels refused because there was no room", _OF_KIND),
    MetricInfo("avow_channels", "gauge", "open channels, with or without a connection", ("role",)),
    MetricInfo("avow_channels_detached", "gauge", "channels without a connection, waiting for their client"),
    MetricInfo("avow_channels_paused", "gauge", "channels that are not read until others have committed"),
    MetricInfo("avow_channels_suspended", "gauge", "channels that wait for acknowledgements from the client"),
    MetricInfo("avow_channels_opened", "counter", "channels opened"),
    MetricInfo("avow_channels_resumed", "counter", "channels resumed over a new connection"),
    MetricInfo("avow_channels_expired", "counter", "channels whose client did not come back in time"),
    MetricInfo("avow_channels_refused", "counter", "channels refused when they were opened"),
    MetricInfo("avow_channel_messages_received", "counter", "channel messages received from clients"),
    MetricInfo("avow_channel_messages_pushed", "counter", "channel messages sent to clients"),
    MetricInfo("avow_pledge_requests", "counter", "requests about pledges", ("request",)),
    MetricInfo("avow_pledge_calls", "counter", "calls of branches and checkbacks", ("outcome",)),
    MetricInfo("avow_pledge_calls_in_flight", "gauge", "calls in flight"),
    MetricInfo("avow_pledge_calls_waiting", "gauge", "calls waiting because their endpoint is at its limit"),
    MetricInfo("avow_pledge_endpoints_closed", "gauge", "unreachable endpoints that are only probed"),
    MetricInfo("avow_pledges_in_hand", "gauge", "pledges this peer is working on"),
    MetricInfo("avow_pledges_parked", "gauge", "pledges that wait for an endpoint that is closed or at its limit"),
    MetricInfo("avow_pledges_ended", "counter", "pledges that ended on this peer", ("status",)),
    MetricInfo("avow_pledges_stored", "gauge", "pledges in the lanes of this peer; 0 with another store"),
    MetricInfo("avow_pledge_alerts", "counter", "alerts to the webhook", ("outcome",)),
    MetricInfo(
        "avow_pledge_store_errors",
        "counter",
        "operations of the pledge store that were refused or have an unknown outcome",
    ),
)


class Metrics(Collector):
    def __init__(
        self,
        peer: Peer,
        http: Callable[[], Mapping[str, int]],
        budget: Callable[[], Mapping[str, Mapping[str, int]]],
        channels: Callable[[], Mapping[str, Any]],
        pledges: Callable[[], Mapping[str, int]],
    ) -> None:
        self._peer = peer
        self._http, self._budget, self._channels, self._pledges = http, budget, channels, pledges
        self._began = time.monotonic()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> Iterator[Metric]:
        """Empty: samples are collected at a scrape, because the peer may have no node yet at registration."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        samples = self._samples()
        for info in METRICS:
            family = GaugeMetricFamily if info.type == "gauge" else CounterMetricFamily
            metric = family(info.name, info.help, labels=info.labels)
            for labels, value in samples[info.name]:
                metric.add_metric(labels, value)
            yield metric

    def _samples(self) -> dict[str, Samples]:
        statistics = self._peer.statistics()
        views = lane_views(self._peer.node, self._peer.now())
        samples = self._of_peer(statistics) | self._of_links(statistics["links"]) | _of_storage(statistics["storage"])
        samples |= {f"avow_lane_{name}": _by_lane(views, value) for name, value in _LANE_VALUES.items()}
        samples |= {f"avow_http_{name}": [((), value)] for name, value in self._http().items()}
        return samples | _of_budget(self._budget()) | _of_channels(self._channels()) | _of_pledges(self._pledges())

    def _of_peer(self, statistics: dict[str, Any]) -> dict[str, Samples]:
        peer, node = self._peer, self._peer.node
        now, metadata = peer.now(), node.metadata
        info = (peer.cluster.hex, peer.identity.hex, str(node.me))
        return {
            "avow_peer_info": [(info, 1)],
            "avow_incarnation": [((), node.incarnation)],
            "avow_up_seconds": [((), time.monotonic() - self._began)],
            "avow_metadata_online": [((), metadata.core.online(now))],
            "avow_metadata_applied": [((), metadata.applied)],
            "avow_queues": [((), len(metadata.state.catalog.by_name))],
            "avow_waiting_requests": [((), statistics["waiting_requests"])],
            "avow_unwritten_effects": [((), statistics["unwritten"])],
            "avow_waiting_syncs": [((), statistics["node"]["waiting_syncs"])],
            "avow_frames_refused": [((), statistics["frames_refused"])],
        }

    def _of_links(self, statistics: dict[str, Any]) -> dict[str, Samples]:
        node = self._peer.node
        others = [number for number in node.metadata.state.peers.by_number if number != node.me]
        heard = {number: heard_ms(node, number, self._peer.now()) for number in others}
        linked = statistics.get("connected", ())
        return {
            "avow_peer_heard_seconds": [((str(n),), ms / 1000) for n, ms in heard.items() if ms is not None],
            "avow_link_connected": [((str(n),), n in linked) for n in others],
            "avow_link_frames_sent": [((), statistics.get("frames_sent", 0))],
            "avow_link_dropped": [((), statistics.get("dropped", 0))],
            "avow_link_refused": [((), statistics.get("refused", 0))],
        }


def _of_storage(statistics: dict[str, Any]) -> dict[str, Samples]:
    names = ("writes", "operations", "syncs", "pending_writes", "size_bytes", "full", "damage_found")
    return {f"avow_storage_{name}": [((), statistics[name])] for name in names}


def _of_budget(statistics: Mapping[str, Mapping[str, int]]) -> dict[str, Samples]:
    names = {
        "avow_held_bytes": "held_bytes",
        "avow_held_bytes_max": "size_bytes_max",
        "avow_held_waiting": "waiting",
        "avow_held_refused": "refused",
    }
    return {metric: [((kind,), one[name]) for kind, one in statistics.items()] for metric, name in names.items()}


def _of_channels(statistics: Mapping[str, Any]) -> dict[str, Samples]:
    names = ("detached", "paused", "suspended", "opened", "resumed", "expired", "refused")
    return {
        "avow_channels": [((role,), count) for role, count in statistics["open"].items()],
        **{f"avow_channels_{name}": [((), statistics[name])] for name in names},
        "avow_channel_messages_received": [((), statistics["messages_received"])],
        "avow_channel_messages_pushed": [((), statistics["messages_pushed"])],
    }


def _of_pledges(statistics: Mapping[str, int]) -> dict[str, Samples]:
    """All are 0 before the first request about a pledge, when `statistics` is empty."""

    def one(name: str) -> Samples:
        return [((), statistics.get(name, 0))]

    def each(prefix: str, *names: str) -> Samples:
        return [((name,), statistics.get(prefix + name, 0)) for name in names]

    return {
        "avow_pledge_requests": each("requests_", "prepare", "submit", "abort", "stop", "retry", "redrive"),
        "avow_pledge_calls": each("", "delivered", "not_delivered", "checkbacks"),
        "avow_pledge_calls_in_flight": one("calls_in_flight"),
        "avow_pledge_calls_waiting": one("calls_waiting"),
        "avow_pledge_endpoints_closed": one("endpoints_closed"),
        "avow_pledges_in_hand": one("in_hand"),
        "avow_pledges_parked": one("pledges_parked"),
        "avow_pledges_ended": each("ended_", "succeeded", "failed", "dead"),
        "avow_pledges_stored": one("store_pledges"),
        "avow_pledge_alerts": each("alerts_", "told", "dropped"),
        "avow_pledge_store_errors": one("store_errors"),
    }


def _by_lane(views: list[LaneView], value: Callable[[LaneView], float]) -> Samples:
    return [((view.queue, str(view.lane)), value(view)) for view in views]


_LANE_VALUES: Final[Mapping[str, Callable[[LaneView], float]]] = {
    "end": lambda view: view.end,
    "trimmed_to": lambda view: view.trimmed_to,
    "lag_entries": lambda view: max(0, view.known_committed - view.applied),
    "coordinating": lambda view: view.role in ("coordinator", "owner"),
    "repairing": lambda view: view.repairing,
    "open_transactions": lambda view: view.open_transactions,
}
