"""The life of one message as this peer knows it: who has stored it, whether it is committed, whether it can be read.

Nobody is asked; what is not known is None. That another peer has stored an entry is known

    two-phase   to the coordinator, from what that peer acknowledged under its ballot; to everybody, from the cursor
                that it announces, which moves only over what it has synced. The coordinator's own says less: it moves
                when a quorum has the entry, which need not include itself
    pub-sub     to everybody, from what the peer announced of the lane

and it stays true however long that peer is silent. That one has not stored it is known of a peer that was heard just
now and has said less; of one that is silent, nothing is: it may have stored what it could not acknowledge any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from avow.replication.two_phase.core import COORDINATOR
from avow.wire.messages import Entry

if TYPE_CHECKING:
    from avow.peer.node import Node
    from avow.peer.pubsub_queue import PubSubQueue
    from avow.peer.queue_lane import QueueLane
    from avow.replication.two_phase.core import TwoPhaseCore

_NEVER = -1e9


class Life(Struct, frozen=True):
    """`offset`: where in the entry's batch the message lies. `stored`: peer -> whether it has; None: not known here."""

    entry: Entry
    offset: int
    committed: bool
    visible: bool
    stored: dict[int, bool | None]
    coordinator: int = 0
    owner: int = 0


def life_of(node: Node, number: int, version: int, now: float) -> Life | None:
    """None: this peer knows no such message. Raises Trimmed, StorageDamaged."""
    lane = node.lanes.get(number)
    if lane is not None:
        return _two_phase(lane, version, now)
    held = node.queue_of(number)
    return _pubsub(node, held, number, version, now) if held is not None else None


def _two_phase(lane: QueueLane, version: int, now: float) -> Life | None:
    found = lane.peek_version(version)
    if found is None:
        return None
    entry, offset, visible, _ = found
    core, position = lane.core, entry.position
    return Life(
        entry=entry,
        offset=offset,
        committed=position <= core.committed,
        visible=visible,
        stored={peer: _has_stored(core, peer, position, now) for peer in core.members.everyone},
        coordinator=core.live_coordinator(now),
    )


def _has_stored(core: TwoPhaseCore, peer: int, position: int, now: float) -> bool | None:
    if peer == core.me:
        return core.persisted_end >= position
    if core.role == COORDINATOR:
        progress = core.progress.get(peer)
        if progress is None:
            return None
        if progress.match >= position or core.accepted.get(peer, 0) >= position:
            return True
        heard = core.heard.get(peer, _NEVER) >= now - core.tuning.heartbeat_fresh_s
        return False if heard and progress.stamped else None
    announced = peer != core.coordinator and core.accepted.get(peer, 0) >= position
    return True if announced else None


def _pubsub(node: Node, held: PubSubQueue, number: int, version: int, now: float) -> Life | None:
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
    return Life(entry, offset, committed, visible, stored, owner=known.peer)
