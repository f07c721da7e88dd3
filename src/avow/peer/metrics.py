"""Figures for Prometheus, read when somebody asks.

Nothing on the path of a message counts for the sake of metrics: every stateful part keeps its own plain integers and
tells them in `statistics()`. At a scrape they are turned into samples, in a registry of this peer alone. What there is
stands in one table, `FIGURES`; docs/reference/metrics.md is held against it by a test.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from msgspec import Struct
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from avow.peer.views import LaneView, heard_ms, lane_views

if TYPE_CHECKING:
    from avow.peer.process import Peer

Type: TypeAlias = Literal["gauge", "counter"]
Samples: TypeAlias = list[tuple[tuple[str, ...], float]]

_OF_LANE: Final = ("queue", "lane")
_OF_PEER: Final = ("peer",)


class Figure(Struct, frozen=True):
    """A counter's samples end in `_total`; its name here does not."""

    name: str
    type: Type
    help: str
    labels: tuple[str, ...] = ()


FIGURES: Final = (
    Figure("avow_peer_info", "gauge", "always 1; who this peer is", ("cluster", "identity", "number")),
    Figure("avow_incarnation", "gauge", "number of this run of the peer"),
    Figure("avow_up_seconds", "gauge", "since this process began to serve"),
    Figure("avow_metadata_online", "gauge", "1 while this peer hears a quorum of the metadata lane"),
    Figure("avow_metadata_applied", "gauge", "entries of the metadata lane applied here"),
    Figure("avow_peer_heard_seconds", "gauge", "since another peer was heard in the metadata lane", _OF_PEER),
    Figure("avow_link_connected", "gauge", "1 while there is a link to the peer", _OF_PEER),
    Figure("avow_link_frames_sent", "counter", "frames given to links"),
    Figure("avow_link_dropped", "counter", "frames that no link could take"),
    Figure("avow_link_refused", "counter", "links that were refused: strangers, wrong cluster, wrong identity"),
    Figure("avow_queues", "gauge", "queues in the catalog"),
    Figure("avow_lane_end", "gauge", "last visible version of a lane on this peer", _OF_LANE),
    Figure("avow_lane_trimmed_to", "gauge", "versions up to this one were removed", _OF_LANE),
    Figure("avow_lane_lag_entries", "gauge", "committed entries not yet applied on this peer", _OF_LANE),
    Figure("avow_lane_coordinating", "gauge", "1 if this peer coordinates or owns the lane", _OF_LANE),
    Figure("avow_lane_repairing", "gauge", "1 while this peer fetches entries it lost", _OF_LANE),
    Figure("avow_lane_open_transactions", "gauge", "staged transactions without a decision", _OF_LANE),
    Figure("avow_waiting_requests", "gauge", "answers that clients of this peer wait for"),
    Figure("avow_waiting_syncs", "gauge", "drained effects whose sync is not back yet"),
    Figure("avow_unwritten_effects", "gauge", "drained effects the disk has no room for"),
    Figure("avow_storage_writes", "counter", "groups of operations given to storage"),
    Figure("avow_storage_operations", "counter", "operations given to storage"),
    Figure("avow_storage_syncs", "counter", "syncs of the write-ahead log"),
    Figure("avow_storage_pending_writes", "gauge", "groups that wait for a sync"),
    Figure("avow_storage_size_bytes", "gauge", "bytes on disk"),
    Figure("avow_storage_full", "gauge", "1 while the disk takes no writes"),
    Figure("avow_storage_damage_found", "counter", "damaged places found"),
    Figure("avow_http_requests", "counter", "requests that were parsed"),
    Figure("avow_http_requests_in_flight", "gauge", "requests being answered"),
    Figure("avow_http_requests_malformed", "counter", "requests that were no HTTP"),
    Figure("avow_http_requests_failed", "counter", "requests at which a handler failed"),
    Figure("avow_http_connections", "gauge", "open connections of clients"),
    Figure("avow_http_connections_turned_away", "counter", "connections answered BUSY or just closed"),
    Figure("avow_channels", "gauge", "open channels, with or without a connection", ("role",)),
    Figure("avow_channels_detached", "gauge", "channels without a connection, waiting for their client"),
    Figure("avow_channels_suspended", "gauge", "channels on which this peer waits for the client's acks"),
    Figure("avow_channels_opened", "counter", "channels that began"),
    Figure("avow_channels_resumed", "counter", "times that a channel went on over a new connection"),
    Figure("avow_channels_expired", "counter", "channels whose client did not come back in time"),
    Figure("avow_channels_refused", "counter", "channels that did not begin"),
    Figure("avow_channel_messages_received", "counter", "messages of channels that came from clients"),
    Figure("avow_channel_messages_pushed", "counter", "messages of channels that went to clients"),
    Figure("avow_pledge_requests", "counter", "requests about pledges", ("request",)),
    Figure("avow_pledge_calls", "counter", "branches and checkbacks that were called", ("outcome",)),
    Figure("avow_pledge_calls_in_flight", "gauge", "calls under way"),
    Figure("avow_pledge_calls_waiting", "gauge", "calls that wait for a free place at their endpoint"),
    Figure("avow_pledge_endpoints_closed", "gauge", "endpoints that are not reached and only probed"),
    Figure("avow_pledges_in_hand", "gauge", "pledges this peer works on"),
    Figure("avow_pledges_parked", "gauge", "pledges that wait for a closed or crowded endpoint"),
    Figure("avow_pledges_ended", "counter", "pledges that ended here", ("status",)),
    Figure("avow_pledges_stored", "gauge", "pledges in the lanes of this peer; 0 with another store"),
    Figure("avow_pledge_alerts", "counter", "alerts for the webhook", ("outcome",)),
    Figure("avow_pledge_store_errors", "counter", "operations that the store of pledges refused or left unknown"),
)


class Metrics(Collector):
    def __init__(
        self,
        peer: Peer,
        http: Callable[[], Mapping[str, int]],
        channels: Callable[[], Mapping[str, Any]],
        pledges: Callable[[], Mapping[str, int]],
    ) -> None:
        self._peer = peer
        self._http, self._channels, self._pledges = http, channels, pledges
        self._began = time.monotonic()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> Iterator[Metric]:
        """Samples are read at a scrape, not when this is registered: a peer may have no node yet."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        samples = self._samples()
        for figure in FIGURES:
            family = GaugeMetricFamily if figure.type == "gauge" else CounterMetricFamily
            metric = family(figure.name, figure.help, labels=figure.labels)
            for labels, value in samples[figure.name]:
                metric.add_metric(labels, value)
            yield metric

    def _samples(self) -> dict[str, Samples]:
        told = self._peer.statistics()
        views = lane_views(self._peer.node, self._peer.now())
        found = {**self._of_peer(told), **self._of_links(told["links"]), **_of_storage(told["storage"])}
        found |= {f"avow_lane_{name}": _by_lane(views, value) for name, value in _LANE_VALUES.items()}
        found |= {f"avow_http_{name}": [((), value)] for name, value in self._http().items()}
        return found | _of_channels(self._channels()) | _of_pledges(self._pledges())

    def _of_peer(self, told: dict[str, Any]) -> dict[str, Samples]:
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
            "avow_waiting_requests": [((), told["waiting_requests"])],
            "avow_unwritten_effects": [((), told["unwritten"])],
            "avow_waiting_syncs": [((), told["node"]["waiting_syncs"])],
        }

    def _of_links(self, told: dict[str, Any]) -> dict[str, Samples]:
        node = self._peer.node
        others = [number for number in node.metadata.state.peers.by_number if number != node.me]
        heard = {number: heard_ms(node, number, self._peer.now()) for number in others}
        linked = told.get("connected", ())
        return {
            "avow_peer_heard_seconds": [((str(n),), ms / 1000) for n, ms in heard.items() if ms is not None],
            "avow_link_connected": [((str(n),), n in linked) for n in others],
            "avow_link_frames_sent": [((), told.get("frames_sent", 0))],
            "avow_link_dropped": [((), told.get("dropped", 0))],
            "avow_link_refused": [((), told.get("refused", 0))],
        }


def _of_storage(told: dict[str, Any]) -> dict[str, Samples]:
    names = ("writes", "operations", "syncs", "pending_writes", "size_bytes", "full", "damage_found")
    return {f"avow_storage_{name}": [((), told[name])] for name in names}


def _of_channels(told: Mapping[str, Any]) -> dict[str, Samples]:
    names = ("detached", "suspended", "opened", "resumed", "expired", "refused")
    return {
        "avow_channels": [((role,), count) for role, count in told["open"].items()],
        **{f"avow_channels_{name}": [((), told[name])] for name in names},
        "avow_channel_messages_received": [((), told["messages_received"])],
        "avow_channel_messages_pushed": [((), told["messages_pushed"])],
    }


def _of_pledges(told: Mapping[str, int]) -> dict[str, Samples]:
    """Nothing is told of them before the first."""

    def one(name: str) -> Samples:
        return [((), told.get(name, 0))]

    def each(prefix: str, *names: str) -> Samples:
        return [((name,), told.get(prefix + name, 0)) for name in names]

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
