"""Reading for a subscriber: batches as they become visible, and a cursor that moves when they are dealt with.

    async with client.subscribe("orders", "billing") as batches:
        async for batch in batches:
            ...
            await batch.commit()        # a quorum has the new cursor; covers everything that was handed out before

Batches are pushed by a peer over a channel. What is handed out and not committed bounds what is pushed: a subscriber
that stops committing stops the peer, and holds no more than the channel's limit. A subscriber that stops for another
reason goes on where it committed last: each batch is handed out at least once, and by one Subscription exactly once.

A channel that is over is followed by one to another peer, and whoever reads notices nothing: batches that were handed
out are not handed out again, and can still be committed. What can be noticed is that lanes go to somebody else:

    another client with the same name and no member   takes over everything. The iteration raises Fenced, and so does
                                                       every commit; nothing is reconnected
    members (`member=`) come and go                    lanes are shared out anew. `commit` of a batch whose lane went to
                                                       another member raises Fenced: it is delivered there
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial
from itertools import groupby
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

from msgspec import Struct

from avow import limits
from avow.channel.waiting import Waiters
from avow.client.channels import is_final, open_at, open_somewhere, refusal_in
from avow.client.deliveries import Deliveries, Place
from avow.client.pushed import STEADY_S, Lanes, from_version, moved, read_pushed
from avow.client.reading import JoinedBatch, ReadBatch
from avow.errors import AvowError, ChannelFailed, Fenced, InvalidRequest, Unknown
from avow.wire.ranges import Range

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.client.cluster import Cluster
    from avow.client.links import Link

From: TypeAlias = Literal["start", "end"]
BATCH_SIZE_BYTES: Final = 1 * limits.MIB  # what has arrived is joined up to here


class Arrived(Struct, frozen=True):
    """A group as it came: batches of one lane."""

    parts: list[ReadBatch]
    place: Place
    size_bytes: int


class SubscribedBatch(JoinedBatch):
    """What had arrived of one lane when the subscriber came for it, with its place in what was handed out."""

    __slots__ = ("_place", "_subscription")

    def __init__(self, parts: Sequence[ReadBatch], place: Place, subscription: Subscription) -> None:
        super().__init__(parts)
        self._place, self._subscription = place, subscription

    async def commit(self) -> None:
        """Move the cursor past this batch and everything handed out before it; returns when a quorum has that.

        Raises Fenced when the batch is another reader's by now: its cursor was not moved, and it is delivered there.
        Raises Unknown when its lane was lost with the answer: the cursor may have moved.
        """
        await self._subscription.commit(self._place)


class Subscription:
    """Made by `Client.subscribe`. Iterate over it, once it is entered or at once; leaving the loop then ends it."""

    def __init__(self, cluster: Cluster, *, queue: str, subscriber: str, member: str | None, from_: From) -> None:
        if not subscriber:
            raise InvalidRequest("a subscriber has a name; nothing was opened")
        self._cluster, self._queue, self.subscriber, self.member = cluster, queue, subscriber, member or ""
        self._from = from_
        self._deliveries = Deliveries()
        self._arrived: deque[Arrived] = deque()
        self._channel: Channel | None = None  # that has said which lanes are its own
        self._newest: Channel | None = None
        self._last: Link | None = None
        self._stay = False  # the next channel may be to the same peer
        self._task: asyncio.Task[None] | None = None
        self._readers, self._committers, self._watchers = Waiters(), Waiters(), Waiters()
        self._over: AvowError | None = None
        self._closed = False
        self._opened_at = self._troubled_at = 0.0
        self._channels_count = 0

    # ------------------------------------------------------------------ reading

    def __aiter__(self) -> AsyncIterator[ReadBatch]:
        return self if self._task is not None else self._from_here()

    async def _from_here(self) -> AsyncGenerator[ReadBatch, None]:
        async with self:
            async for batch in self:
                yield batch

    async def __anext__(self) -> SubscribedBatch:
        while not self._arrived:
            if self._over is not None:
                raise _again(self._over)
            if self._closed:
                raise StopAsyncIteration
            await self._readers.wait()
        return self._joined()

    def _joined(self) -> SubscribedBatch:
        """What has arrived of the first group's lane, as far as nothing of another lane came in between."""
        arrived = self._arrived
        last = arrived.popleft()
        parts, size = list(last.parts), last.size_bytes
        while arrived and arrived[0].place.lane == last.place.lane and size < BATCH_SIZE_BYTES:
            last = arrived.popleft()
            parts += last.parts
            size += last.size_bytes
        return SubscribedBatch(parts, last.place, self)

    async def pages(self) -> AsyncGenerator[list[ReadBatch], None]:
        """As iterating, but everything that has arrived at a time."""
        async with self:
            async for batch in self:
                found: list[ReadBatch] = [batch]
                while self._arrived:
                    found.append(self._joined())
                yield found

    # ------------------------------------------------------------------ committing

    async def commit(self, place: Place) -> None:
        deliveries = self._deliveries
        if deliveries.is_done(place):
            return
        self._require(place)
        deliveries.process(place)
        wanted = deliveries.processed()
        self._acknowledge()
        while not deliveries.is_durable(wanted) or not deliveries.is_done(place):
            self._require(place)
            await self._committers.wait()

    def _require(self, place: Place) -> None:
        """Raises what keeps this batch from being committed. If a peer was told to, it may have been."""
        error: AvowError
        if self._over is not None:
            error = _again(self._over)
        elif self._closed:
            error = InvalidRequest("this subscription is closed; the cursor was not moved. Commit before leaving it")
        elif self._deliveries.holds(place):
            return
        else:
            error = Fenced(
                f"lane {place.lane} of {self._queue!r} went to another member of subscriber {self.subscriber!r}; the "
                "cursor was not moved, and the batch is delivered there"
            )
        if self._deliveries.was_said(place):
            text = f"a peer was asked to move the cursor to {place.lane}:{place.version}, and no answer came: {error}"
            raise Unknown(f"{text}. It may have moved; what it did not pass is delivered to who reads now") from error
        raise error

    def _acknowledge(self) -> None:
        """Say what is processed, and ask to be told when that is durable."""
        channel = self._channel
        if channel is None or channel.ended:
            return
        commit_id, unsaid = self._deliveries.ackable(), self._deliveries.unsaid()
        if commit_id:
            channel.ack_commit(commit_id)
        if unsaid:
            channel.send(moved(unsaid))
        if commit_id or unsaid:
            channel.commit(partial(self._durable, self._deliveries.said()))

    def _durable(self, versions: dict[int, tuple[int, int]]) -> None:
        self._deliveries.durable(versions)
        self._troubled_at = 0.0
        self._committers.wake()

    # ------------------------------------------------------------------ a channel

    def _begin(self, channel: Channel) -> None:
        self._newest = channel
        channel.on_messages = partial(self._messages, channel)
        channel.on_commit = partial(self._committed, channel)
        channel.on_end = partial(self._ended, channel)

    def _messages(self, channel: Channel, values: list[memoryview]) -> None:
        for value in values:
            found = read_pushed(value)
            if not isinstance(found, Lanes):
                self._take(found)
            elif self._channel is not channel:
                self._channel = channel
                self._lost(self._deliveries.begin(found.lanes))
            else:
                for lane, after in found.lanes.items():
                    self._deliveries.take(lane, after)
        self._readers.wake()

    def _take(self, ranges: list[Range]) -> None:
        """Hand out what was not handed out before."""
        deliveries = self._deliveries
        for lane, group in groupby(ranges, key=lambda found: found.lane):
            found = list(group)
            first = deliveries.received(lane, found[0].first_version, found[-1].last_version)
            parts = [ReadBatch(from_version(one, first)) for one in found if one.last_version >= first]
            if parts:
                place = deliveries.place(lane, parts[-1].last_version)
                self._arrived.append(Arrived(parts, place, sum(len(one.record) for one in found)))

    def _lost(self, lanes: list[int]) -> None:
        if lanes:
            self._arrived = deque(one for one in self._arrived if self._deliveries.holds(one.place))
        self._committers.wake()

    def _committed(self, channel: Channel, commit_id: int) -> None:
        if channel is self._channel:
            self._deliveries.commit_came(commit_id)
            self._acknowledge()

    def _ended(self, channel: Channel, failed: ChannelFailed | None) -> None:
        if self._channel is channel:
            self._channel = None
        if self._closed:
            return
        error = None if failed is None else refusal_in(failed)
        if error is not None and is_final(error):
            self._finish(error)
        self._stay = failed is not None and failed.reason == "MOVED"
        if not self._troubled_at or monotonic() - self._opened_at > STEADY_S:
            self._troubled_at = monotonic()
        self._watchers.wake()

    def _finish(self, error: AvowError) -> None:
        self._over = error
        self._readers.wake()
        self._committers.wake()

    # ------------------------------------------------------------------ from one to the next

    async def _read(self, channel: Channel) -> None:
        """Watch the channel, and open another when it is over."""
        try:
            while self._over is None:
                while not channel.ended:
                    await self._watchers.wait()
                await channel.wait_ended()
                if self._over is None:
                    channel = await self._open()
        except AvowError as error:
            self._finish(error)
        except asyncio.CancelledError:
            self._finish(InvalidRequest("the client was closed; the cursor stays where it was"))
            raise

    async def _open(self) -> Channel:
        self._troubled_at = self._troubled_at or monotonic()
        last, self._last = self._last, None
        return await open_somewhere(
            self._cluster,
            self._open_at,
            deadline=self._troubled_at + self._cluster.timeout_s,
            preferred=last.number if self._stay and last is not None else 0,
            after=None if self._stay else last,
        )

    async def _open_at(self, link: Link) -> Channel:
        self._last = link
        parameters = {"role": "subscriber", "queue": self._queue, "subscriber": self.subscriber}
        parameters |= {"format": "ranges", "from": self._from}
        if self.member:
            parameters["member"] = self.member
        channel = await open_at(self._cluster, link, parameters, begin=self._begin)
        self._opened_at = monotonic()
        self._channels_count += 1
        return channel

    # ------------------------------------------------------------------ begin and end

    async def open(self) -> None:
        """Reach a peer. Raises what it refuses."""
        if self._task is not None or self._closed:
            raise InvalidRequest("this subscription was used already; make another")
        self._task = self._cluster.spawn(self._read(await self._open()))

    async def close(self) -> None:
        """Let go of the lanes. What was not committed is delivered to whoever reads next."""
        self._closed = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        channel, self._channel, self._newest = self._newest, None, None
        if channel is not None:
            channel.close()
            await channel.wait_ended()
        self._arrived.clear()
        self._readers.wake()
        self._committers.wake()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def statistics(self) -> dict[str, Any]:
        return {
            "queue": self._queue,
            "subscriber": self.subscriber,
            "member": self.member,
            "channels": self._channels_count,
            "connected": self._channel is not None,
            "arrived": len(self._arrived),
            **self._deliveries.statistics(),
        }


def _again(error: AvowError) -> AvowError:
    """A new one each time: an exception that is raised in several places grows a traceback of all of them."""
    copy = error.__class__.__new__(error.__class__, *error.args)
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error.__cause__
    return copy
