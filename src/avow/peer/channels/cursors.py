"""The lanes a subscriber's channel reads, and how their cursors are moved: what both kinds of queue have in common.

Cursors follow the subscription as this peer has applied it, and are told which versions the client has dealt with.
Where they live, and how a lane becomes this channel's, differs (`avow.queue.subscriptions` says why it must):

    two-phase   in each lane: see `fenced_cursors`
    pub-sub     in the metadata lane, as one vector: see `vector_cursors`

One move for each lane (pub-sub: one for all of them) is under way, always to the newest version. FENCED means that
somebody read in between. Then this peer will soon know who, and the channel ends for that reason; if it does not come
to know, the channel ends all the same. Before it does, what is under way is waited for: the client's last commit may be
about it, and the end of a channel says which commits were acknowledged.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from avow.channel.frames import EndCode
from avow.errors import Fenced, InvalidRequest
from avow.peer.answers import Answer, Refusal
from avow.peer.channels.guards import guarded
from avow.queue.subscriptions import Subscription, reader_of

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.peer.channels.errands import Errand
    from avow.peer.process import Peer
    from avow.queue.catalog import Queue

FENCED_S: Final = 2.0  # after that this peer should know who else reads, and what is under way be decided


class Reads(Protocol):
    """Who reads: the subscriber's channel."""

    subscriber: str
    member: str
    from_end: bool  # where a subscriber begins that was not there before

    def begin(self, lane: int, *, number: int, after: int) -> None:
        """The lane is this channel's."""
        ...

    def drop(self, lane: int) -> bool:
        """The lane is somebody else's. False: the client was told that it is its own."""
        ...

    def moved(self) -> None:
        """Some cursor is durable further than before."""
        ...

    def closing(self) -> None:
        """Nothing more is to be read."""
        ...


class LaneCursor:
    """What the client has dealt with (`acked`), and how far the cursor is known to stand (`durable`)."""

    __slots__ = ("acked", "begun", "durable", "epoch", "errand", "fenced_at", "is_new", "lane", "moving_to")

    def __init__(self, lane: int) -> None:
        self.lane = lane
        self.epoch = 0  # two-phase: of its fence
        self.acked = self.durable = self.moving_to = 0
        self.begun = self.is_new = False
        self.fenced_at = 0  # the epoch that was refused; 0: none
        self.errand: Errand | None = None

    @property
    def behind(self) -> bool:
        return self.acked > self.durable


class Cursors(ABC):
    """What both have in common: acks in, durable versions out."""

    def __init__(self, peer: Peer, channel: Channel, queue: Queue, reads: Reads) -> None:
        self._peer, self._channel, self._queue, self._reads = peer, channel, queue, reads
        self._lanes: dict[int, LaneCursor] = {}
        self._timers: list[asyncio.TimerHandle] = []
        self._ending: tuple[str, str] | None = None  # name and text of the end, once what is under way is decided

    @property
    def settled(self) -> bool:
        """Every lane that was given to this channel has begun."""
        return all(cursor.begun for cursor in self._lanes.values())

    def acked(self, versions: Mapping[int, int]) -> None:
        """The client has dealt with everything up to these versions. Raises InvalidRequest for lanes not its own."""
        for lane, version in versions.items():
            cursor = self._lanes.get(lane)
            if cursor is None or not cursor.begun:
                raise InvalidRequest(f"lane {lane} is not one of this channel's; its cursor was not moved")
            cursor.acked = max(cursor.acked, version)
        self._move()

    def behind(self) -> dict[int, int]:
        """Versions that were acknowledged and are not durable."""
        return {lane: cursor.acked for lane, cursor in self._lanes.items() if cursor.behind}

    def cover(self, versions: Mapping[int, int]) -> bool:
        known = self._lanes
        return all(lane not in known or known[lane].durable >= version for lane, version in versions.items())

    def stop(self) -> None:
        for timer in self._timers:
            timer.cancel()
        for cursor in self._lanes.values():
            if cursor.errand is not None:
                cursor.errand.stop()

    def finish(self, *, name: str = "", text: str) -> None:
        """The lanes are somebody else's. `name` FENCED: somebody took this very place."""
        if self._ending is None:
            self._reads.closing()
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
        """A move is under way."""

    @abstractmethod
    def follow(self, subscription: Subscription) -> None:
        """The subscription as it is now; this channel is one of its members."""

    @abstractmethod
    def _move(self) -> None:
        """Send what is behind on its way, unless something is."""

    def _give_up(self, lost: Sequence[int], subscription: Subscription) -> bool:
        """False: the client has one of these lanes, and its channel is over."""
        for lane in lost:
            cursor = self._lanes[lane]
            if cursor.begun and not self._reads.drop(lane):
                self._shared_out(lane, subscription)
                return False
            if cursor.errand is not None:
                cursor.errand.stop()
            del self._lanes[lane]
        return True

    def _shared_out(self, lane: int, subscription: Subscription) -> None:
        heir = reader_of(subscription, lane)
        whose = f"member {heir.name!r}'s" if heir is not None else "nobody's"
        self.finish(text=f"lanes were shared out anew in epoch {subscription.epoch}: lane {lane} is {whose} now")

    def _await_news(self, cursor: LaneCursor, epoch: int) -> None:
        """It was FENCED: this peer has to hear of another epoch, or the channel ends."""
        if self._ending is not None:
            self._end_when_settled()
            return
        cursor.fenced_at = epoch
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(FENCED_S, guarded, self._channel, self._without_news, cursor, epoch))

    def _without_news(self, cursor: LaneCursor, epoch: int) -> None:
        if cursor.fenced_at == epoch:
            self.finish(text=f"lane {cursor.lane} was read by somebody else since epoch {epoch}")


def is_fenced(answer: Answer) -> bool:
    return isinstance(answer, Refusal) and answer.code == Fenced.code
