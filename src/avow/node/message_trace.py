"""The trace of one message as this peer knows it: which peers stored it, and whether it is committed and readable.

No other peer is asked; what is not known is None. That another peer has stored an entry is known

    two-phase   to the coordinator, from that peer's acknowledgements under its ballot; to every peer, from the cursor
                that the other peer announces, which moves only over entries it has synced. A coordinator's cursor says
                less: it moves when a quorum has the entry, and that quorum need not include the coordinator
    pub-sub     to every peer, from the peer's announcements for the lane

and stays true however long that peer is silent. That a peer has not stored the entry is known only if a recent message
of it says so. A silent peer may have stored an entry that it could no longer acknowledge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from avow.node.records import MessageTrace
from avow.replication.two_phase.core import COORDINATOR

if TYPE_CHECKING:
    from avow.node.lane.queue_lane import QueueLane
    from avow.node.node import Node
    from avow.node.pubsub.queue import PubSubQueue
    from avow.replication.two_phase.core import TwoPhaseCore

_NEVER: Final = -1e9


def trace_of(node: Node, number: int, version: int, now: float) -> MessageTrace | None:
    """None: this peer knows no such message. Raises Trimmed, StorageDamaged."""
    lane = node.lanes.get(number)
    if lane is not None:
        return _two_phase(lane, version, now)
    held = node.queue_of(number)
    return _pubsub(node, held, number, version, now) if held is not None else None


def _two_phase(lane: QueueLane, version: int, now: float) -> MessageTrace | None:
    found = lane.peek_version(version)
    if found is None:
        return None
    entry, offset, visible, _ = found
    core, position = lane.core, entry.position
    return MessageTrace(
        entry=entry,
        offset=offset,
        committed=position <= core.committed,
        visible=visible,
        stored={peer: _has_stored(core, peer, position, now) for peer in core.members.everyone},
        coordinator=core.live_coordinator(now),
    )


def _has_stored(core: TwoPhaseCore, peer: int, position: int, now: float) -> bool | None:
    if peer == core.me:
        return core.state.persisted_end >= position
    if core.role == COORDINATOR:
        progress = core.leadership.progress.get(peer)
        if progress is None:
            return None
        if progress.match >= position or core.accepted.get(peer, 0) >= position:
            return True
        heard = core.heard.get(peer, _NEVER) >= now - core.tuning.heartbeat_fresh_s
        return False if heard and progress.stamped else None
    announced = peer != core.state.coordinator and core.accepted.get(peer, 0) >= position
    return True if announced else None


def _pubsub(node: Node, held: PubSubQueue, number: int, version: int, now: float) -> MessageTrace | None:
    found = held.peek(number, version)
    if found is None:
        return None
    entry, offset, committed, _ = found
    core, known = held.core, node.metadata.state.lanes.by_number[number]
    stored: dict[int, bool | None] = {}
    for peer, to in core.stored_of(number).items():
        if peer == core.me:
            stored[peer] = core.durable_of(number) >= entry.position
        elif to >= entry.position:
            stored[peer] = True
        else:
            heard = core.heard.get(peer, _NEVER) >= now - core.tuning.heartbeat_fresh_s
            stored[peer] = False if heard and to and not known.ended else None
    visible = version <= held.readable.get(number, 0)
    return MessageTrace(entry, offset, committed, visible, stored, owner=known.peer)
