"""Reading for a subscriber: batches as they become visible, and a cursor that moves when they are committed.

    async with client.subscribe("orders", "billing") as batches:
        async for batch in batches:
            ...
            await batch.commit()        # a quorum has the new cursor; covers everything that was delivered before

A peer pushes batches over a channel. Uncommitted batches limit what is pushed: if a subscriber stops committing, the
peer stops pushing at the channel's limit. A restarted subscriber continues after its last commit: each batch is
delivered at least once, and by one Subscription exactly once.

When a channel ends it is replaced by one to another peer, which the reader does not notice: delivered batches are not
delivered again and can still be committed. The reader does notice when it loses lanes to another reader:

    another client with the same name and no member   takes over all lanes. The iteration and every commit raise Fenced,
                                                       and this client does not reconnect
    members (`member=`) come and go                    the lanes are reassigned. `commit` of a batch whose lane went to
                                                       another member raises Fenced: the batch is delivered there
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial
from itertools import groupby
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

from msgspec import Struct

from avow import limits
from avow.channel.waiters import Waiters
from avow.client.acknowledgements import Acknowledgements, Delivery
from avow.client.channels import is_final, open_at, open_somewhere, refusal_in
from avow.client.push_stream import STEADY_S, LaneAssignment, from_version, moved, read_pushed
from avow.client.reader import JoinedBatch, ReadBatch
from avow.errors import AvowError, ChannelFailed, Fenced, InvalidRequest, Unknown
from avow.wire.ranges import Range

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.client.cluster import Cluster
    from avow.client.peer_connection import PeerConnection

From: TypeAlias = Literal["start", "end"]
BATCH_SIZE_BYTES: Final = 1 * limits.MIB  # received groups are joined up to this size


class ReceivedGroup(Struct, frozen=True):
    """A received group: batches of one lane."""

    parts: list[ReadBatch]
    delivery: Delivery
    size_bytes: int


class SubscribedBatch(JoinedBatch):
    """Consecutive groups of one lane, joined when the subscriber asks for the next batch."""

    __slots__ = ("_delivery", "_subscription")

    def __init__(self, parts: Sequence[ReadBatch], delivery: Delivery, subscription: Subscription) -> None:
        super().__init__(parts)
        self._delivery, self._subscription = delivery, subscription

    async def commit(self) -> None:
        """Move the cursor past this batch and everything delivered before it; returns when a quorum has stored that.

        Raises Fenced if the lane belongs to another reader now: the cursor was not moved, and the batch is delivered
        there. Raises Unknown if the lane was lost before the answer arrived: the cursor may have moved.
        """
        await self._subscription.commit(self._delivery)


class Subscription:
    """Made by `Client.subscribe`. Iterate inside its `with` block, or directly: then leaving the loop closes it."""

    def __init__(self, cluster: Cluster, *, queue: str, subscriber: str, member: str | None, from_: From) -> None:
        if not subscriber:
            raise InvalidRequest("the subscriber's name is empty; nothing was opened. Pass a name")
        self._cluster, self._queue, self.subscriber = cluster, queue, subscriber
        self.member: str = member or ""
        self._from = from_
        self._acknowledgements = Acknowledgements()
        self._arrived: deque[ReceivedGroup] = deque()
        self._channel: Channel | None = None  # the one that has sent its lanes
        self._newest: Channel | None = None
        self._last: PeerConnection | None = None
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
        """The first received group, joined with the groups of the same lane that follow it directly."""
        arrived = self._arrived
        last = arrived.popleft()
        parts, size = list(last.parts), last.size_bytes
        while arrived and arrived[0].delivery.lane == last.delivery.lane and size < BATCH_SIZE_BYTES:
            last = arrived.popleft()
            parts += last.parts
            size += last.size_bytes
        return SubscribedBatch(parts, last.delivery, self)

    async def pages(self) -> AsyncGenerator[list[ReadBatch], None]:
        """Like iterating, but yields everything that has arrived at a time."""
        async with self:
            async for batch in self:
                found: list[ReadBatch] = [batch]
                while self._arrived:
                    found.append(self._joined())
                yield found

    # ------------------------------------------------------------------ committing

    async def commit(self, delivery: Delivery) -> None:
        acknowledgements = self._acknowledgements
        if acknowledgements.is_done(delivery):
            return
        self._require(delivery)
        acknowledgements.process(delivery)
        wanted = acknowledgements.processed()
        self._acknowledge()
        while not acknowledgements.is_durable(wanted) or not acknowledgements.is_done(delivery):
            self._require(delivery)
            await self._committers.wait()

    def _require(self, delivery: Delivery) -> None:
        """Raises if this batch cannot be committed: Unknown if a peer was already asked to move the cursor."""
        error: AvowError
        if self._over is not None:
            error = _again(self._over)
        elif self._closed:
            error = InvalidRequest("this subscription is closed; the cursor was not moved. Commit before closing it")
        elif self._acknowledgements.holds(delivery):
            return
        else:
            error = Fenced(
                f"lane {delivery.lane} of {self._queue!r} was reassigned to another member of subscriber "
                f"{self.subscriber!r}; the cursor was not moved, and the batch is delivered to that member"
            )
        if self._acknowledgements.was_reported(delivery):
            text = f"no answer to the request to move the cursor to {delivery.lane}:{delivery.version} ({error})"
            raise Unknown(
                f"{text}; it may have moved. Messages after it are delivered to the current reader"
            ) from error
        raise error

    def _acknowledge(self) -> None:
        """Report what is processed, and request a notification when that is durable."""
        channel = self._channel
        if channel is None or channel.ended:
            return
        commit_id, unreported = self._acknowledgements.ackable(), self._acknowledgements.unreported()
        if commit_id:
            channel.ack_commit(commit_id)
        if unreported:
            channel.send(moved(unreported))
        if commit_id or unreported:
            channel.commit(partial(self._durable, self._acknowledgements.reported()))

    def _durable(self, versions: dict[int, tuple[int, int]]) -> None:
        self._acknowledgements.durable(versions)
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
            if not isinstance(found, LaneAssignment):
                self._take(found)
            elif self._channel is not channel:
                self._channel = channel
                self._lost(self._acknowledgements.begin(found.lanes))
            else:
                for lane, after in found.lanes.items():
                    self._acknowledgements.take(lane, after)
        self._readers.wake()

    def _take(self, ranges: list[Range]) -> None:
        """Deliver what was not delivered before."""
        acknowledgements = self._acknowledgements
        for lane, group in groupby(ranges, key=lambda found: found.lane):
            found = list(group)
            first = acknowledgements.received(lane, found[0].first_version, found[-1].last_version)
            parts = [ReadBatch(from_version(one, first)) for one in found if one.last_version >= first]
            if parts:
                delivery = acknowledgements.deliver(lane, parts[-1].last_version)
                self._arrived.append(ReceivedGroup(parts, delivery, sum(len(one.record) for one in found)))

    def _lost(self, lanes: list[int]) -> None:
        if lanes:
            self._arrived = deque(one for one in self._arrived if self._acknowledgements.holds(one.delivery))
        self._committers.wake()

    def _committed(self, channel: Channel, commit_id: int) -> None:
        if channel is self._channel:
            self._acknowledgements.commit_received(commit_id)
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
        if not self._troubled_at or self._cluster.now() - self._opened_at > STEADY_S:
            self._troubled_at = self._cluster.now()
        self._watchers.wake()

    def _finish(self, error: AvowError) -> None:
        self._over = error
        self._readers.wake()
        self._committers.wake()

    # ------------------------------------------------------------------ from one to the next

    async def _read(self, channel: Channel) -> None:
        """Watch the channel, and open another when it ends."""
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
            self._finish(InvalidRequest("the client was closed; the cursor was not moved"))
            raise

    async def _open(self) -> Channel:
        self._troubled_at = self._troubled_at or self._cluster.now()
        last, self._last = self._last, None
        return await open_somewhere(
            self._cluster,
            self._open_at,
            deadline=self._troubled_at + self._cluster.timeout_s,
            preferred=last.number if self._stay and last is not None else 0,
            after=None if self._stay else last,
        )

    async def _open_at(self, peer: PeerConnection) -> Channel:
        self._last = peer
        parameters = {"role": "subscriber", "queue": self._queue, "subscriber": self.subscriber}
        parameters |= {"format": "ranges", "from": self._from}
        if self.member:
            parameters["member"] = self.member
        channel = await open_at(self._cluster, peer, parameters, begin=self._begin)
        self._opened_at = self._cluster.now()
        self._channels_count += 1
        return channel

    # ------------------------------------------------------------------ begin and end

    async def open(self) -> None:
        """Open a channel to a peer. Raises the peer's refusal."""
        if self._task is not None or self._closed:
            raise InvalidRequest("this subscription was opened before; nothing was opened. Make another")
        self._task = self._cluster.spawn(self._read(await self._open()))

    async def close(self) -> None:
        """Release the lanes. Batches that were not committed are delivered to the next reader."""
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
            **self._acknowledgements.statistics(),
        }


def _again(error: AvowError) -> AvowError:
    """A copy for each raise: an exception raised in several places would collect the tracebacks of all of them."""
    copy = error.__class__.__new__(error.__class__, *error.args)
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error.__cause__
    return copy
