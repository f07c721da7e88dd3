"""Observers of a pub-sub queue: what is enqueued, who has stored it, and from when on it is committed.

For clients that act as a peer and want to hear what peers tell each other. An observer is told what this peer knows:

    enqueue     a record, once it is stored here, committed or not
    stored      up to which version a voter of the lane has stored it. Only ever more; some steps may be left out
    committed   up to which version a quorum has

of one lane in this order: nothing is said to be stored or committed before its record was shown. It begins with what
is not committed yet. Events are made by looking at the lanes after each turn of the loop in which the peer did
something; nothing is noted while nobody observes. An observer that does not keep up is told less often, but of every
record that is still there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.json import Encoder

from avow.errors import Trimmed
from avow.limits import KIB
from avow.peer.channels.flights import check_there
from avow.peer.channels.guards import guarded
from avow.peer.channels.subscribing import nothing_is_taken
from avow.wire.batch import pack_entry

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.errors import ChannelFailed
    from avow.peer.channels.figures import Figures
    from avow.peer.process import Peer
    from avow.peer.pubsub_book import LaneBook
    from avow.peer.pubsub_queue import PubSubQueue
    from avow.queue.catalog import Queue
    from avow.wire.messages import Entry

TURN_SIZE_BYTES: Final = 256 * KIB
_ENTRIES_MAX: Final = 64
_encode: Final = Encoder().encode


class ObservedLane:
    """Records up to `shown_to`, a position, were told of; of the rest the versions that were told."""

    __slots__ = ("committed", "seen", "shown_to", "stored")

    def __init__(self, shown_to: int) -> None:
        self.shown_to = shown_to
        self.stored: dict[int, int] = {}
        self.committed = 0
        self.seen: tuple[Any, ...] = ()  # what the lane looked like when all of it had been told


class Observer:
    def __init__(self, peer: Peer, channel: Channel, queue: Queue, figures: Figures) -> None:
        self._peer, self._channel, self._queue, self._figures = peer, channel, queue, figures
        self._lanes: dict[int, ObservedLane] = {}
        self._left = 0  # bytes that this turn may still say
        self._stopped = False
        channel.on_messages, channel.on_resume, channel.on_end = nothing_is_taken, self.look, self._ended
        self.look()

    def look(self) -> None:
        """After a turn of the loop."""
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
        """Lanes or queues have changed."""
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
        book = held.book(number)
        assert book is not None, "a lane of the queue has a book"
        told = self._tell_enqueued(held, number, lane, book, min(durable, known_to))
        told = told and self._tell_stored(number, lane, book, stored.items())
        if told and self._tell_committed(number, lane, book, cursor) and lane.shown_to == durable:
            lane.seen = now

    # ------------------------------------------------------------------ the events; False: there was no room for all

    def _tell_enqueued(self, held: PubSubQueue, number: int, lane: ObservedLane, book: LaneBook, to: int) -> bool:
        while lane.shown_to < to:
            for entry in self._entries(held, number, lane, to):
                if not self._has_room():
                    return False
                last = version_at(book, entry.position)
                self._tell(
                    event="enqueue",
                    lane=number,
                    first_version=last - entry.count + 1,
                    last_version=last,
                    batch=pack_entry(entry),
                )
                lane.shown_to = entry.position
        return True

    def _entries(self, held: PubSubQueue, number: int, lane: ObservedLane, to: int) -> Sequence[Entry]:
        """What follows, from memory or from disk. What was removed meanwhile is passed over."""
        core = held.core
        if lane.shown_to >= core.base_of(number):
            return core.held(number, after=lane.shown_to, to=min(to, lane.shown_to + _ENTRIES_MAX)) or ()
        try:
            return held.reader(number)(lane.shown_to, _ENTRIES_MAX, TURN_SIZE_BYTES)
        except Trimmed:
            lane.shown_to = max(lane.shown_to + 1, core.base_of(number))
            return ()

    def _tell_stored(self, number: int, lane: ObservedLane, book: LaneBook, stored: Any) -> bool:
        for peer, to in stored:
            version = version_at(book, min(to, lane.shown_to))
            if version <= lane.stored.get(peer, 0):
                continue
            if not self._has_room():
                return False
            self._tell(event="stored", lane=number, peer=peer, upto_version=version)
            lane.stored[peer] = version
        return True

    def _tell_committed(self, number: int, lane: ObservedLane, book: LaneBook, cursor: int) -> bool:
        version = version_at(book, min(cursor, lane.shown_to))
        if version <= lane.committed:
            return True
        if not self._has_room():
            return False
        self._tell(event="committed", lane=number, upto_version=version)
        lane.committed = version
        return True

    def _has_room(self) -> bool:
        return self._left > 0 and not self._channel.suspended

    def _tell(self, **event: Any) -> None:
        line = _encode(event)
        self._channel.send(line)
        self._figures.pushed += 1
        self._left -= len(line)

    def _ended(self, failure: ChannelFailed | None) -> None:  # noqa: ARG002
        self._stopped = True


def version_at(book: LaneBook, position: int) -> int:
    """The last version at or before a position that is not beyond what the book knows."""
    if position > book.shown:
        return book.tail[position - book.shown - 1]
    return book.index.last_version_within(position)
