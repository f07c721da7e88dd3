"""Observers of a pub-sub queue get events: a record was enqueued, a peer has stored it, it is committed.

For clients that act as a peer and need what peers tell each other. An observer gets what this peer knows:

    enqueue     a record, once it is stored on this peer, committed or not
    stored      the version up to which a voter of the lane has stored it; it only grows, steps may be skipped
    committed   the version up to which a quorum has stored it

For each lane the events come in this order: no version is reported as stored or committed before its record. The first
records are those that are not committed yet. Events are computed from the lanes after each turn of the loop in which
the peer did something; nothing is recorded while there are no observers. A slow observer gets fewer `stored` and
`committed` events, but every record that was not trimmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.json import Encoder

from avow.errors import Trimmed
from avow.limits import KIB
from avow.server.channels.lane_writer import check_there
from avow.server.channels.node_requests import guarded
from avow.server.channels.subscriber import refuse_messages
from avow.wire.batch import pack_entry

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.errors import ChannelFailed
    from avow.node.pubsub.lane_index import LaneIndex
    from avow.node.pubsub.queue import PubSubQueue
    from avow.queue.records import Queue
    from avow.server.channels.channel_memory import ChannelHeld
    from avow.server.channels.channels import ChannelCounters
    from avow.server.process import Peer
    from avow.wire.messages import Entry

TURN_SIZE_BYTES: Final = 256 * KIB
_ENTRIES_MAX: Final = 64
_encode: Final = Encoder().encode


class ObservedLane:
    """What was sent: records up to the position `shown_to`, and the latest versions of the other events."""

    __slots__ = ("committed", "seen", "shown_to", "stored")

    def __init__(self, shown_to: int) -> None:
        self.shown_to = shown_to
        self.stored: dict[int, int] = {}
        self.committed = 0
        self.seen: tuple[Any, ...] = ()  # the lane's state when all its events had been sent


class Observer:
    def __init__(self, peer: Peer, channel: Channel, queue: Queue, counters: ChannelCounters) -> None:
        self._peer, self._channel, self._queue, self._counters = peer, channel, queue, counters
        self._lanes: dict[int, ObservedLane] = {}
        self._left = 0  # bytes that may still be sent in this turn
        self._stopped = False
        self._held: ChannelHeld | None = None
        channel.on_messages, channel.on_resume, channel.on_end = refuse_messages, self.look, self._ended
        self.look()

    def bound(self, held: ChannelHeld) -> None:
        """Send only while the peer's budget has room. There is no need to wake it: `look` is called all the time."""
        self._held = held

    def look(self) -> None:
        """Called after each turn of the loop."""
        held = self._peer.node.pubsub.get(self._queue.name)
        if held is None or self._stopped or self._channel.suspended:
            return
        self._left = TURN_SIZE_BYTES
        for number in held.numbers:
            self._look_at(held, number)
        if self._left < TURN_SIZE_BYTES:
            self._channel.commit()
        if self._left <= 0 and not self._channel.suspended:
            asyncio.get_running_loop().call_soon(guarded, self._channel, self.look)

    def look_around(self) -> None:
        """Called when lanes or queues have changed."""
        check_there(self._peer, self._queue)
        held = self._peer.node.pubsub.get(self._queue.name)
        known = held.numbers if held is not None else ()
        self._lanes = {number: lane for number, lane in self._lanes.items() if number in known}

    def _look_at(self, held: PubSubQueue, number: int) -> None:
        core = held.core
        durable, cursor, stored = core.durable_of(number), core.cursor_of(number), core.stored_of(number)
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = ObservedLane(min(durable, cursor))
        now = (durable, cursor, *stored.values())
        if now == lane.seen:
            return
        known_to = held.known_to(number)
        index = held.index(number)
        assert index is not None, "a lane of the queue has an index"
        sent = self._send_enqueued(held, number, lane, index, min(durable, known_to))
        sent = sent and self._send_stored(number, lane, index, stored.items())
        if sent and self._send_committed(number, lane, index, cursor) and lane.shown_to == durable:
            lane.seen = now

    # ------------------------------------------------------------------ events; False: there was no room for all

    def _send_enqueued(self, held: PubSubQueue, number: int, lane: ObservedLane, index: LaneIndex, to: int) -> bool:
        while lane.shown_to < to:
            for entry in self._entries(held, number, lane, to):
                if not self._has_room():
                    return False
                last = version_at(index, entry.position)
                self._send(
                    event="enqueue",
                    lane=number,
                    first_version=last - entry.count + 1,
                    last_version=last,
                    batch=pack_entry(entry),
                )
                lane.shown_to = entry.position
        return True

    def _entries(self, held: PubSubQueue, number: int, lane: ObservedLane, to: int) -> Sequence[Entry]:
        """The next entries, from memory or from disk. Trimmed ones are skipped."""
        core = held.core
        if lane.shown_to >= core.base_of(number):
            return core.retention.held(number, after=lane.shown_to, to=min(to, lane.shown_to + _ENTRIES_MAX)) or ()
        try:
            return held.reader(number)(lane.shown_to, _ENTRIES_MAX, TURN_SIZE_BYTES)
        except Trimmed:
            lane.shown_to = max(lane.shown_to + 1, core.base_of(number))
            return ()

    def _send_stored(self, number: int, lane: ObservedLane, index: LaneIndex, stored: Any) -> bool:
        for peer, to in stored:
            version = version_at(index, min(to, lane.shown_to))
            if version <= lane.stored.get(peer, 0):
                continue
            if not self._has_room():
                return False
            self._send(event="stored", lane=number, peer=peer, upto_version=version)
            lane.stored[peer] = version
        return True

    def _send_committed(self, number: int, lane: ObservedLane, index: LaneIndex, cursor: int) -> bool:
        version = version_at(index, min(cursor, lane.shown_to))
        if version <= lane.committed:
            return True
        if not self._has_room():
            return False
        self._send(event="committed", lane=number, upto_version=version)
        lane.committed = version
        return True

    def _has_room(self) -> bool:
        room = self._held is None or not self._held.pushed.held or not self._held.pushed.share.tight
        return self._left > 0 and not self._channel.suspended and room

    def _send(self, **event: Any) -> None:
        line = _encode(event)
        self._channel.send(line)
        self._counters.pushed += 1
        self._left -= len(line)

    def _ended(self, failure: ChannelFailed | None) -> None:  # noqa: ARG002
        self._stopped = True


def version_at(index: LaneIndex, position: int) -> int:
    """The last version at or before a position that the index covers."""
    if position > index.shown:
        return index.tail[position - index.shown - 1]
    return index.visible.last_version_within(position)
