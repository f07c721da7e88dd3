"""Cursors of a pub-sub queue: one vector in the metadata lane, moved with the present epoch of the subscription.

Readers change in the same log in which cursors move, so a lane is this channel's as soon as the epoch says so, and it
begins after the cursor that this peer knows. A move that names an older epoch is FENCED; it is sent again with the
present one, if the lanes are still this channel's: had in between somebody else read them, and moved a cursor, that
would be seen in the vector.

A subscriber that is not known begins each lane at version 0, or, if its client says so, at the end of those that are
there now; that is made durable first. Lanes that are opened later begin at 0.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from avow.peer.answers import Answer, Done
from avow.peer.channels.cursors import Cursors, LaneCursor, Reads, is_fenced
from avow.peer.channels.errands import Errand
from avow.peer.http.errors import error_of_answer
from avow.queue.commands import LaneCursorsCommand, encode
from avow.queue.subscriptions import Subscription, kept, lanes_of, reader_of
from avow.wire.messages import Kind

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.peer.process import Peer
    from avow.queue.catalog import Queue, VectorCursor


class VectorCursors(Cursors):
    def __init__(self, peer: Peer, channel: Channel, queue: Queue, reads: Reads) -> None:
        super().__init__(peer, channel, queue, reads)
        self._subscription: Subscription | None = None
        self._moving: dict[int, int] = {}  # lane -> version of the command under way
        self._errand: Errand | None = None
        self._refused_in = 0  # the epoch in which the last move was FENCED; 0: it was not

    def stop(self) -> None:
        super().stop()
        if self._errand is not None:
            self._errand.stop()

    @property
    def busy(self) -> bool:
        return self._errand is not None and not self._errand.over

    def follow(self, subscription: Subscription) -> None:
        if self._ending is not None:
            return
        earlier, self._subscription = self._subscription, subscription
        queue = self._peer.node.metadata.state.catalog.by_name[self._queue.name]
        found = queue.subscribers.get(self._reads.subscriber)
        if earlier is not None and earlier.epoch != subscription.epoch:
            lost = [lane for lane in self._lanes if self._is_lost(lane, earlier, subscription, found)]
            if not self._give_up(lost, subscription):
                return
        self._take(subscription, found, first=earlier is None)
        self._move()

    def _is_lost(self, lane: int, earlier: Subscription, later: Subscription, found: VectorCursor | None) -> bool:
        """Another's now, or another's in between if that one moved the cursor. Else it makes no difference."""
        heir = reader_of(later, lane)
        if heir is None or heir.name != self._reads.member:
            return True
        cursor = self._lanes[lane]
        stands_at = found.versions.get(lane, 0) if found is not None else 0
        return not kept(earlier, later, lane) and stands_at > cursor.durable

    def _take(self, subscription: Subscription, found: VectorCursor | None, *, first: bool) -> None:
        held = self._peer.node.pubsub.get(self._queue.name)
        if held is None:
            return
        to_end = first and found is None and self._reads.from_end
        for lane in lanes_of(subscription, self._reads.member, held.numbers):
            if lane in self._lanes:
                continue
            cursor = self._lanes[lane] = LaneCursor(lane)
            stands_at = found.versions.get(lane, 0) if found is not None else 0
            cursor.acked = held.readable.get(lane, 0) if to_end else stands_at
            cursor.durable = stands_at
            if not cursor.behind:
                self._begin(cursor)

    def _begin(self, cursor: LaneCursor) -> None:
        cursor.begun = True
        known = self._peer.node.metadata.state.lanes.by_number.get(cursor.lane)
        trimmed_to = known.trimmed_to if known is not None else 0
        self._reads.begin(cursor.lane, number=cursor.lane, after=cursor.durable or trimmed_to)

    def _move(self) -> None:
        subscription, versions = self._subscription, self.behind()
        if subscription is None or not versions or subscription.epoch == self._refused_in:
            return
        if self.busy:
            return
        peer = self._peer
        control = encode(
            LaneCursorsCommand(
                self._queue.name,
                self._reads.subscriber,
                tuple(sorted(versions.items())),
                epoch=subscription.epoch,
                member=self._reads.member,
            )
        )

        def ask(request: int) -> None:
            peer.node.command(request, Kind.CURSOR, control, write_id=b"", now=peer.now())

        self._moving = versions
        self._errand = Errand(peer, self._channel, ask, partial(self._answered, subscription.epoch))

    def _answered(self, epoch: int, answer: Answer) -> None:
        if is_fenced(answer):
            self._refused(epoch)
            return
        if not isinstance(answer, Done):
            raise error_of_answer(answer)
        for lane, version in self._moving.items():
            cursor = self._lanes.get(lane)
            if cursor is None:
                continue
            cursor.durable, cursor.fenced_at = max(cursor.durable, version), 0
            if not cursor.begun:
                self._begin(cursor)
        self._reads.moved()
        self._move()
        self._end_when_settled()

    def _refused(self, epoch: int) -> None:
        """Try again in the next epoch, if this peer has applied it; else when it has."""
        self._refused_in = epoch
        if self._ending is not None:
            self._end_when_settled()
            return
        if self._subscription is not None and self._subscription.epoch != epoch:
            self._move()
            return
        for lane in self._moving:
            if lane in self._lanes:
                self._await_news(self._lanes[lane], epoch)
