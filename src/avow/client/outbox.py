"""What one client writes to one queue, before it is known which lane and peer each message goes to.

Everything sent in one turn of the event loop leaves together: the first message of a turn asks for one call at its end,
and that call lets every lane send. Which lane a message goes to depends on the queue (strategy, number of lanes), which
is asked for once; messages sent before the answer wait in order.

A message with a key goes to the key's lane. One without goes to the lane whose turn it is, and the turn passes on when
the loop's does, so that messages sent together stay together. A pub-sub queue has one sender for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

from avow import limits
from avow.client.batching import (
    BATCH_ROOM_BYTES,
    OVERHEAD_BYTES,
    Batch,
    Headers,
    Pending,
    Room,
    check_size,
    pairs_of,
    plain_bytes,
)
from avow.client.columns import columns_of, split
from avow.client.metadata import QueueInfo, queue_path, read_queue
from avow.client.outcomes import Done, final
from avow.client.pubsub_sending import PubSubSender
from avow.client.sending import LaneSender
from avow.errors import AvowError, InvalidRequest
from avow.queue.lanes import lane_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from avow.client.cluster import Cluster
    from avow.wire.record import Buffer

Sender: TypeAlias = LaneSender | PubSubSender
Waiting: TypeAlias = asyncio.Future[Done]


class Outbox:
    def __init__(self, cluster: Cluster, queue: str) -> None:
        self._cluster, self.queue = cluster, queue
        self._loop = asyncio.get_running_loop()
        self._create_future: Callable[[], Waiting] = self._loop.create_future
        self.room = Room()
        self.seen: dict[int, int] = {}  # by lane: the last version this client was told is done
        self.info: QueueInfo | None = None
        self._learning: asyncio.Task[None] | None = None
        self._early: list[tuple[Callable[[], None], Sequence[Waiting]]] = []
        self._senders: list[Sender] = []
        self._dirty: list[Sender] = []
        self._turn: Pending | None = None  # where messages without a key or a lane go now
        self._turn_number = 0

    # ------------------------------------------------------------------ messages

    def send_plain(self, value: bytes) -> Waiting:
        """The hot path: one value and nothing else. `value` is bytes."""
        pending = self._turn
        if pending is None:
            return self.send(value, key=None, headers=None, time_ms=None, expected=None, lane=None)
        size = len(value)
        batch = pending.open
        if batch is None or batch.size + size > BATCH_ROOM_BYTES:
            check_size(size)
            batch = pending.begin(monotonic())
        elif size > limits.MESSAGE_SIZE_BYTES_MAX:
            check_size(size)
        if batch.plain:
            batch.size += size + OVERHEAD_BYTES
            batch.values.append(value)
        else:
            batch.put(value, None, None, None)
        future = self._create_future()
        batch.futures.append(future)
        return future

    def send(
        self,
        value: Buffer,
        *,
        key: bytes | None,
        headers: Headers | None,
        time_ms: int | None,
        expected: int | None,
        lane: int | None,
        write_id: bytes | None = None,
    ) -> Waiting:
        value, pairs = plain_bytes(value), pairs_of(headers)
        check_size(len(value))
        self._cluster.require_open()
        future = self._create_future()

        def put() -> None:
            pending = self._pending_for(key, lane)
            batch = pending.open
            if expected is not None or write_id is not None:
                batch = Batch(deadline=monotonic() + pending.timeout_s, expected=expected, write_id=write_id)
            elif batch is None or batch.size + len(value) + len(key or b"") > BATCH_ROOM_BYTES:
                batch = pending.begin(monotonic())
            batch.put(value, key, pairs, time_ms)
            batch.futures.append(future)
            if batch is not pending.open:
                pending.add(batch)

        self._when_known(put, [future])
        return future

    # ------------------------------------------------------------------- batches

    def send_many(
        self,
        values: Sequence[Buffer],
        *,
        keys: Sequence[bytes | None] | None,
        headers: Sequence[Headers | None] | None,
        times: Sequence[int] | None,
        expected: int | None,
        lane: int | None,
        write_id: bytes | None,
    ) -> list[Waiting]:
        """One future for each batch that leaves. The queue must be known."""
        columns = columns_of(values, keys=keys, headers=headers, times=times)
        batches = []
        for pending, numbers in self._groups(len(values), keys, lane):
            for span in split(columns.sizes(numbers)):
                batch = Batch(deadline=monotonic() + pending.timeout_s, expected=expected, write_id=write_id)
                columns.fill(batch, numbers[span.start : span.stop])
                batch.whole = self._create_future()
                batches.append((pending, batch))
        if len(batches) > 1 and (expected is not None or write_id is not None):
            raise InvalidRequest(f"expected and write_id are for one batch, not {len(batches)}; nothing was sent")
        self.room.require()
        for pending, batch in batches:
            pending.add(batch)
        return [batch.whole for _, batch in batches if batch.whole is not None]

    def _groups(
        self, count: int, keys: Sequence[bytes | None] | None, lane: int | None
    ) -> list[tuple[Pending, Sequence[int]]]:
        if keys is None or lane is not None or len(self._senders) == 1:
            return [(self._pending_for(None, lane), range(count))] if count else []
        by_lane: dict[int, list[int]] = {}
        turn = self._turn_number % len(self._senders)
        for number, key in enumerate(keys):
            by_lane.setdefault(turn if key is None else lane_for(key, len(self._senders)), []).append(number)
        return [(self._senders[found].pending, numbers) for found, numbers in sorted(by_lane.items())]

    def lane_of(self, key: bytes | None, lane: int | None) -> int:
        """The two-phase lane for a key, or for a message without one."""
        count = len(self._senders)
        if lane is None:
            return self._turn_number % count if key is None else lane_for(key, count)
        if not 0 <= lane < count:
            raise InvalidRequest(f"queue {self.queue!r} has the lanes 0 to {count - 1}, not {lane}; nothing was sent")
        return lane

    @property
    def coordinator(self) -> int:
        """Of the first two-phase lane; 0 if unknown."""
        return self.coordinator_of(0)

    def coordinator_of(self, lane: int) -> int:
        """Of a two-phase lane, as last heard; 0 if unknown."""
        sender = self._senders[lane] if lane < len(self._senders) else None
        return sender.coordinator if isinstance(sender, LaneSender) else 0

    def _pending_for(self, key: bytes | None, lane: int | None) -> Pending:
        if self.info is not None and self.info.pubsub:
            if lane is not None:
                raise InvalidRequest("the lanes of a pub-sub queue are its peers'; write without naming one")
            return self._senders[0].pending
        return self._senders[self.lane_of(key, lane)].pending

    # ------------------------------------------------------------------ the queue

    async def known(self) -> QueueInfo:
        """The queue, asked for once. Raises UnknownQueue when every peer says so."""
        return await self.asked() if self.info is None else self.info

    async def asked(self) -> QueueInfo:
        """The queue as it is now: lanes, ends, coordinators."""
        found = read_queue((await self._cluster.call(b"GET", queue_path(self.queue))).body)
        self.know(found)
        return found

    def know(self, info: QueueInfo) -> None:
        if self.info is not None:
            return
        self.info = info
        if info.pubsub:
            self._senders = [
                PubSubSender(self._cluster, queue=self.queue, room=self.room, seen=self.seen, wake=self._wake)
            ]
        else:
            self._senders = [
                LaneSender(
                    self._cluster,
                    queue=self.queue,
                    lane=lane.lane,
                    coordinator=lane.coordinator or 0,
                    room=self.room,
                    seen=self.seen,
                    wake=self._wake,
                )
                for lane in sorted(info.lanes, key=lambda lane: lane.lane)
            ]
        self._turn = self._senders[0].pending
        early, self._early = self._early, []
        for put, futures in early:
            self._put(put, futures)

    def _when_known(self, put: Callable[[], None], futures: Sequence[Waiting]) -> None:
        if self.info is not None:
            put()
            return
        self._early.append((put, futures))
        if self._learning is None:
            self._learning = self._cluster.spawn(self._learn())

    def _put(self, put: Callable[[], None], futures: Sequence[Waiting]) -> None:
        try:
            put()
        except AvowError as error:
            _refuse(futures, error)

    async def _learn(self) -> None:
        try:
            await self.known()
        except AvowError as error:
            early, self._early = self._early, []
            for _, futures in early:
                _refuse(futures, final(error, maybe=False))
        finally:
            self._learning = None

    # --------------------------------------------------------------------- turns

    def _wake(self, sender: Sender) -> None:
        if not self._dirty:
            self._loop.call_soon(self._flush)
        self._dirty.append(sender)

    def _flush(self) -> None:
        """The end of a turn: every lane that got something sends."""
        dirty, self._dirty = self._dirty, []
        for sender in dirty:
            sender.pump()
        if len(self._senders) > 1:
            self._turn_number += 1
            self._turn = self._senders[self._turn_number % len(self._senders)].pending

    def close(self) -> None:
        self._turn = None
        for sender in self._senders:
            sender.close()

    def statistics(self) -> list[dict[str, int]]:
        return [sender.statistics() for sender in self._senders]


def _refuse(futures: Sequence[Waiting], error: AvowError) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
