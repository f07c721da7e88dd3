"""Status of a peer and its lanes, as plain values for the API, the command line, metrics and the dashboard.

No other peer is asked: the values are what this peer knows. `heard_ms` is the time since the last message of a peer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from avow.ids import ballot_text
from avow.node.records import LaneView
from avow.replication.two_phase.core import ROLES

if TYPE_CHECKING:
    from avow.node.metadata_lane import MetadataLane
    from avow.node.node import Node


def lane_view(node: Node, number: int, now: float) -> LaneView | None:
    """None when this peer does not hold the lane."""
    lane = node.lanes.get(number)
    if lane is None:
        return _pubsub_view(node, number)
    queue = node.queues.by_lane.get(number)
    if queue is None:
        return None
    core = lane.core
    return LaneView(
        queue=queue.name,
        lane=number - queue.first_lane,
        number=number,
        strategy="two-phase",
        end=lane.state.end,
        trimmed_to=lane.state.trimmed_to,
        voters=core.members.voters,
        learners=core.members.learners,
        coordinator=core.live_coordinator(now),
        role=ROLES[core.role],
        ballot=ballot_text(core.promised),
        committed=core.committed,
        applied=lane.applied,
        known_committed=max(core.cursor_seen, core.committed),
        log_end=core.log.end,
        repairing=core.repairing,
        whole=lane.whole,
        open_transactions=len(lane.state.transactions.opened),
    )


def _pubsub_view(node: Node, number: int) -> LaneView | None:
    lane = node.metadata.state.lanes.by_number.get(number)
    held = node.pubsub.get(lane.queue) if lane is not None else None
    if lane is None or held is None:
        return None
    return LaneView(
        queue=lane.queue,
        lane=number,
        number=number,
        strategy="pub-sub",
        end=held.readable.get(number, 0),
        trimmed_to=lane.trimmed_to,
        voters=lane.voters,
        owner=lane.peer,
        ended=lane.ended,
        role="owner" if held.open_lane == number else "copy",
    )


def lane_views(node: Node, now: float) -> list[LaneView]:
    """Every lane held here, two-phase first, by number."""
    numbers = [*sorted(node.lanes), *sorted(node.metadata.state.lanes.by_number)]
    views = [lane_view(node, number, now) for number in numbers]
    return [view for view in views if view is not None]


def metadata_view(lane: MetadataLane, now: float) -> dict[str, Any]:
    core = lane.core
    return {
        "coordinator": core.live_coordinator(now),
        "role": ROLES[core.role],
        "ballot": ballot_text(core.promised),
        "voters": list(core.members.voters),
        "learners": list(core.members.learners),
        "committed": core.committed,
        "applied": lane.applied,
        "known_committed": max(core.cursor_seen, core.committed),
        "online": core.online(now),
        "repairing": core.repairing,
    }


def heard_ms(node: Node, peer: int, now: float) -> int | None:
    """Time since the peer's last message in the metadata lane; None: no message in this run."""
    heard = node.metadata.core.heard.get(peer)
    return None if heard is None else max(0, round((now - heard) * 1000))
