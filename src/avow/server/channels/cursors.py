"""The lanes that a subscriber's channel reads, and how their cursors are moved.

Cursors follow the subscription as this peer has applied it, and get the versions that the client has processed. Where
they are stored, and how a lane becomes this channel's, differs (`avow.queue.subscriptions` says why):

    two-phase   in each lane: `FencedCursors`
    pub-sub     in the metadata lane, as one vector: `VectorCursors`

At most one move per lane (pub-sub: one for all lanes) is in flight, always to the newest version. FENCED means that
another channel has read the lane since. This peer will soon apply the change that says which, and then ends the channel
for that reason; if it does not apply one in time, it ends the channel anyway. Before that it waits for the moves in
flight: the client's last commit may depend on them, and the end of a channel says which commits were acknowledged.

**Two-phase**: one cursor in each lane, moved by the reader that has fenced it.

A reader takes over a lane with a fence: a cursor command with version 0 and the epoch of the subscription. Its answer
is the version to begin after. From then on earlier readers cannot move the cursor. This reader moves it with the epoch
of its fence as long as the lane is its own, whatever epochs follow.

A subscriber that is new in a lane begins at version 0 or, if its client asks for it, at the lane's end. The latter is
made durable before anything is read, so that the next reader of the lane begins there too.

**Pub-sub**: one vector in the metadata lane, moved with the current epoch of the subscription.

Readers change in the same log in which cursors move, so a lane is this channel's as soon as the epoch says so, and it
begins after the cursor that this peer knows. A move with an older epoch is FENCED. It is sent again with the current
epoch if the lanes are still this channel's: if another channel had read them since and moved a cursor, the vector would
show it.

A new subscriber begins each lane at version 0 or, if its client asks for it, at the end of each lane that exists now;
that is made durable first. Lanes that are opened later begin at 0.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from avow.channel.protocol.frames import EndCode
from avow.errors import Fenced, InvalidRequest
from avow.node.answers import Answer, Done, Refusal, error_of_answer
from avow.node.lane.two_phase_lane import Write
from avow.queue.commands import CursorCommand, LaneCursorsCommand, encode
from avow.queue.records import Subscription
from avow.queue.subscriptions import kept, lanes_of, reader_of
from avow.server.channels.node_requests import RetriedRequest, RetriedRequests, guarded
from avow.wire.messages import Kind

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.queue.records import Queue, VectorCursor
    from avow.server.process import Peer


FENCED_S: Final = 2.0  # enough for this peer to apply the epoch of the new reader, and for moves in flight to finish


class CursorUser(Protocol):
    """The subscriber's channel, as cursors need it."""

    subscriber: str
    member: str
    from_end: bool  # where a new subscriber begins

    def begin(self, lane: int, *, number: int, after: int) -> None:
        """The lane is this channel's: read it from `after` on."""
        ...

    def drop(self, lane: int) -> bool:
        """The lane is another channel's. False: the client already has it."""
        ...

    def moved(self) -> None:
        """A cursor was moved durably."""
        ...

    def closing(self) -> None:
        """The channel will end: stop reading."""
        ...


class LaneCursor:
    """What the client has processed (`acked`), and the version at which the cursor is stored (`durable`)."""

    __slots__ = ("acked", "begun", "durable", "epoch", "fenced_at", "is_new", "lane", "moving_to", "request")

    def __init__(self, lane: int) -> None:
        self.lane = lane
        self.epoch = 0  # of its fence; two-phase only
        self.acked = self.durable = self.moving_to = 0
        self.begun = self.is_new = False
        self.fenced_at = 0  # the epoch that was FENCED; 0: none
        self.request: RetriedRequest | None = None

    @property
    def behind(self) -> bool:
        return self.acked > self.durable


class Cursors(ABC):
    """The common part: acknowledgements in, durable versions out."""

    def __init__(self, peer: Peer, channel: Channel, queue: Queue, user: CursorUser) -> None:
        self._peer, self._channel, self._queue, self._user = peer, channel, queue, user
        self._requests = RetriedRequests(peer, channel)
        self._lanes: dict[int, LaneCursor] = {}
        self._timers: list[asyncio.TimerHandle] = []
        self._ending: tuple[str, str] | None = (
            None  # name and text of the channel's end, which waits for moves in flight
        )

    @property
    def all_begun(self) -> bool:
        """Every lane assigned to this channel has begun."""
        return all(cursor.begun for cursor in self._lanes.values())

    def acked(self, versions: Mapping[int, int]) -> None:
        """The client has processed everything up to these versions. Raises InvalidRequest for a foreign lane."""
        for lane, version in versions.items():
            cursor = self._lanes.get(lane)
            if cursor is None or not cursor.begun:
                raise InvalidRequest(f"lane {lane} is not assigned to this channel; its cursor was not moved")
            cursor.acked = max(cursor.acked, version)
        self._move()

    def behind(self) -> dict[int, int]:
        """Versions that the client has acknowledged and that are not durable yet."""
        return {lane: cursor.acked for lane, cursor in self._lanes.items() if cursor.behind}

    def cover(self, versions: Mapping[int, int]) -> bool:
        known = self._lanes
        return all(lane not in known or known[lane].durable >= version for lane, version in versions.items())

    def stop(self) -> None:
        for timer in self._timers:
            timer.cancel()
        for cursor in self._lanes.values():
            if cursor.request is not None:
                self._requests.stop(cursor.request)

    def finish(self, *, name: str = "", text: str) -> None:
        """End the channel: its lanes were taken. `name` FENCED: by another channel of the same member."""
        if self._ending is None:
            self._user.closing()
            loop = asyncio.get_running_loop()
            self._timers.append(loop.call_later(FENCED_S, guarded, self._channel, self._end))
        if self._ending is None or name:
            self._ending = name, text
        self._end_when_settled()

    def _end_when_settled(self) -> None:
        if self._ending is not None and not self.busy:
            self._end()

    def _end(self) -> None:
        name, text = self._ending or ("", "")
        self._channel.end(EndCode.MOVED, name=name, text=text)

    @property
    @abstractmethod
    def busy(self) -> bool:
        """A move is in flight."""

    @abstractmethod
    def follow(self, subscription: Subscription) -> None:
        """Called with the current subscription; this channel is one of its members."""

    @abstractmethod
    def _move(self) -> None:
        """Send a move for the cursors that are behind, unless one is in flight."""

    def _give_up(self, lost: Sequence[int], subscription: Subscription) -> bool:
        """False: the client already has one of these lanes, so its channel ends."""
        for lane in lost:
            cursor = self._lanes[lane]
            if cursor.begun and not self._user.drop(lane):
                self._reassigned(lane, subscription)
                return False
            if cursor.request is not None:
                self._requests.stop(cursor.request)
            del self._lanes[lane]
        return True

    def _reassigned(self, lane: int, subscription: Subscription) -> None:
        reader = reader_of(subscription, lane)
        where = f"read by member {reader.name!r}" if reader is not None else "not read"
        self.finish(text=f"lanes were reassigned in epoch {subscription.epoch}: lane {lane} is {where} now")

    def _await_epoch(self, cursor: LaneCursor, epoch: int) -> None:
        """A command was FENCED: the channel ends unless this peer applies a new epoch in time."""
        if self._ending is not None:
            self._end_when_settled()
            return
        cursor.fenced_at = epoch
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(FENCED_S, guarded, self._channel, self._end_if_fenced, cursor, epoch))

    def _end_if_fenced(self, cursor: LaneCursor, epoch: int) -> None:
        if cursor.fenced_at == epoch:
            self.finish(text=f"lane {cursor.lane} was read by another channel after epoch {epoch}")


def is_fenced(answer: Answer) -> bool:
    return isinstance(answer, Refusal) and answer.code == Fenced.code


class FencedCursors(Cursors):
    @property
    def busy(self) -> bool:
        return any(one.begun and one.request is not None and not one.request.finished for one in self._lanes.values())

    def follow(self, subscription: Subscription) -> None:
        if self._ending is not None:
            return
        mine = lanes_of(subscription, self._user.member, range(self._queue.lanes))
        if not self._give_up([lane for lane in self._lanes if lane not in mine], subscription):
            return
        for lane in mine:
            cursor = self._lanes.get(lane)
            if cursor is None:
                cursor = self._lanes[lane] = LaneCursor(lane)
            elif cursor.begun or not 0 < cursor.fenced_at < subscription.epoch:
                continue
            self._fence(cursor, subscription.epoch)

    def _fence(self, cursor: LaneCursor, epoch: int) -> None:
        cursor.epoch, cursor.fenced_at = epoch, 0
        if not self._user.from_end:
            self._command(cursor, 0, self._fence_answered)
            return
        peer, number = self._peer, self._queue.first_lane + cursor.lane

        def ask(request: int) -> None:
            peer.node.reach(request, number, level="linearizable", version=0, now=peer.now())

        cursor.request = self._requests.begin(ask, partial(self._caught_up, cursor))

    def _caught_up(self, cursor: LaneCursor, answer: Answer) -> None:
        """Checks now whether the subscriber is new in this lane: the fence makes it known."""
        lane = self._peer.node.lanes.get(self._queue.first_lane + cursor.lane)
        if not isinstance(answer, Done) or lane is None:
            raise error_of_answer(answer)
        cursor.is_new = self._user.subscriber not in lane.state.subscribers.by_name
        self._command(cursor, 0, self._fence_answered)

    def _command(self, cursor: LaneCursor, version: int, decided: Callable[[LaneCursor, Answer], None]) -> None:
        peer, number = self._peer, self._queue.first_lane + cursor.lane
        control = encode(CursorCommand(self._user.subscriber, version, epoch=cursor.epoch))

        def ask(request: int) -> None:
            peer.node.write(request, number, Write(Kind.CURSOR, b"", control=control), peer.now())

        cursor.moving_to = version
        cursor.request = self._requests.begin(ask, partial(decided, cursor))

    def _fence_answered(self, cursor: LaneCursor, answer: Answer) -> None:
        if is_fenced(answer):
            self._await_epoch(cursor, cursor.epoch)
            return
        if not isinstance(answer, Done):
            raise error_of_answer(answer)
        lane = self._peer.node.lanes.get(self._queue.first_lane + cursor.lane)
        end = lane.state.end if lane is not None else 0
        if cursor.is_new and end and not answer.last_version:
            self._command(cursor, end, self._first_move_answered)
        else:
            self._begin(cursor, answer.last_version)

    def _first_move_answered(self, cursor: LaneCursor, answer: Answer) -> None:
        """Reading begins only now, when it is certain that no later reader begins earlier."""
        if is_fenced(answer):
            self._await_epoch(cursor, cursor.epoch)
        elif isinstance(answer, Done):
            self._begin(cursor, answer.last_version)
        else:
            raise error_of_answer(answer)

    def _begin(self, cursor: LaneCursor, version: int) -> None:
        """A cursor at 0 begins with the oldest version there is; one at a trimmed version is an error when it reads."""
        number = self._queue.first_lane + cursor.lane
        lane = self._peer.node.lanes.get(number)
        trimmed_to = lane.state.trimmed_to if lane is not None else 0
        cursor.begun, cursor.request = True, None
        cursor.acked = cursor.durable = cursor.moving_to = version
        self._user.begin(cursor.lane, number=number, after=version or trimmed_to)

    def _move(self) -> None:
        for cursor in self._lanes.values():
            if cursor.behind and cursor.request is None:
                self._command(cursor, cursor.acked, self._move_answered)

    def _move_answered(self, cursor: LaneCursor, answer: Answer) -> None:
        if is_fenced(answer):
            self._await_epoch(cursor, cursor.epoch)
            return
        if not isinstance(answer, Done):
            raise error_of_answer(answer)
        cursor.request, cursor.durable = None, max(cursor.durable, cursor.moving_to)
        self._user.moved()
        self._move()
        self._end_when_settled()


class VectorCursors(Cursors):
    def __init__(self, peer: Peer, channel: Channel, queue: Queue, user: CursorUser) -> None:
        super().__init__(peer, channel, queue, user)
        self._subscription: Subscription | None = None
        self._moving: dict[int, int] = {}  # lane -> version of the command in flight
        self._request: RetriedRequest | None = None
        self._refused_in = 0  # the epoch in which the last move was FENCED; 0: none

    def stop(self) -> None:
        super().stop()
        if self._request is not None:
            self._requests.stop(self._request)

    @property
    def busy(self) -> bool:
        return self._request is not None and not self._request.finished

    def follow(self, subscription: Subscription) -> None:
        if self._ending is not None:
            return
        earlier, self._subscription = self._subscription, subscription
        queue = self._peer.node.metadata.state.catalog.by_name[self._queue.name]
        found = queue.subscribers.get(self._user.subscriber)
        if earlier is not None and earlier.epoch != subscription.epoch:
            lost = [lane for lane in self._lanes if self._is_lost(lane, earlier, subscription, found)]
            if not self._give_up(lost, subscription):
                return
        self._take(subscription, found, first=earlier is None)
        self._move()

    def _is_lost(self, lane: int, earlier: Subscription, later: Subscription, found: VectorCursor | None) -> bool:
        """True if another member reads the lane now, or did in between and moved the cursor."""
        reader = reader_of(later, lane)
        if reader is None or reader.name != self._user.member:
            return True
        cursor = self._lanes[lane]
        stored = found.versions.get(lane, 0) if found is not None else 0
        return not kept(earlier, later, lane) and stored > cursor.durable

    def _take(self, subscription: Subscription, found: VectorCursor | None, *, first: bool) -> None:
        held = self._peer.node.pubsub.get(self._queue.name)
        if held is None:
            return
        to_end = first and found is None and self._user.from_end
        for lane in lanes_of(subscription, self._user.member, held.numbers):
            if lane in self._lanes:
                continue
            cursor = self._lanes[lane] = LaneCursor(lane)
            stored = found.versions.get(lane, 0) if found is not None else 0
            cursor.acked = held.readable.get(lane, 0) if to_end else stored
            cursor.durable = stored
            if not cursor.behind:
                self._begin(cursor)

    def _begin(self, cursor: LaneCursor) -> None:
        cursor.begun = True
        known = self._peer.node.metadata.state.lanes.by_number.get(cursor.lane)
        trimmed_to = known.trimmed_to if known is not None else 0
        self._user.begin(cursor.lane, number=cursor.lane, after=cursor.durable or trimmed_to)

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
                self._user.subscriber,
                tuple(sorted(versions.items())),
                epoch=subscription.epoch,
                member=self._user.member,
            )
        )

        def ask(request: int) -> None:
            peer.node.command(request, Kind.CURSOR, control, write_id=b"", now=peer.now())

        self._moving = versions
        self._request = self._requests.begin(ask, partial(self._answered, subscription.epoch))

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
        self._user.moved()
        self._move()
        self._end_when_settled()

    def _refused(self, epoch: int) -> None:
        """Try again in the next epoch, as soon as this peer has applied it."""
        self._refused_in = epoch
        if self._ending is not None:
            self._end_when_settled()
            return
        if self._subscription is not None and self._subscription.epoch != epoch:
            self._move()
            return
        for lane in self._moving:
            if lane in self._lanes:
                self._await_epoch(self._lanes[lane], epoch)
