"""Buffers one client's writes to one queue, and assigns each message to a lane.

Messages of one turn of the event loop are sent together: the first one schedules a call at the end of the turn, in
which every lane sends. The lane of a message depends on the queue (strategy, number of lanes), which is fetched once;
messages sent before that answer wait in order.

A message with a key goes to the key's lane. Messages without a key go to one lane per turn of the event loop, round
robin, so messages sent together stay together. A pub-sub queue has a single sender.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from avow import limits
from avow.client.batches import (
    BATCH_CONTENT_SIZE_BYTES_MAX,
    OVERHEAD_BYTES,
    Batch,
    ByteBudget,
    Headers,
    PendingBatches,
    check_size,
    pairs_of,
    plain_bytes,
)
from avow.client.descriptions import QueueInfo, queue_path, read_queue
from avow.client.lane_sender import LaneSender
from avow.client.message_columns import columns_of, split
from avow.client.outcomes import Done, final
from avow.client.pubsub_sender import PubSubSender
from avow.errors import AvowError, InvalidRequest
from avow.queue.key_to_lane import lane_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from avow.client.cluster import Cluster
    from avow.wire.record import Buffer

Sender: TypeAlias = LaneSender | PubSubSender
Waiting: TypeAlias = asyncio.Future[Done]


class WriteBuffer:
    def __init__(self, cluster: Cluster, queue: str) -> None:
        self._cluster, self.queue = cluster, queue
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        self._create_future: Callable[[], Waiting] = self._loop.create_future
        self.budget = ByteBudget()
        self.seen: dict[int, int] = {}  # by lane: the last version that this client knows to be done
        self.info: QueueInfo | None = None
        self._learning: asyncio.Task[None] | None = None
        self._early: list[tuple[Callable[[], None], Sequence[Waiting]]] = []
        self._senders: list[Sender] = []
        self._dirty: list[Sender] = []
        self._turn: PendingBatches | None = None  # the lane for messages without a key or a lane
        self._turn_number = 0

    # ------------------------------------------------------------------ messages

    def send_plain(self, value: bytes) -> Waiting:
        """The hot path: one value and nothing else. `value` is bytes."""
        pending = self._turn
        if pending is None:
            return self.send(value, key=None, headers=None, time_ms=None, expected=None, lane=None)
        size = len(value)
        batch = pending.open
        if batch is None or batch.size + size > BATCH_CONTENT_SIZE_BYTES_MAX:
            check_size(size)
            batch = pending.begin(self._now())
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
                batch = Batch(deadline=self._now() + pending.timeout_s, expected=expected, write_id=write_id)
            elif batch is None or batch.size + len(value) + len(key or b"") > BATCH_CONTENT_SIZE_BYTES_MAX:
                batch = pending.begin(self._now())
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
        """Returns one future per batch. The queue must be known."""
        columns = columns_of(values, keys=keys, headers=headers, times=times)
        batches = []
        for pending, numbers in self._groups(len(values), keys, lane):
            for span in split(columns.sizes(numbers)):
                batch = Batch(deadline=self._now() + pending.timeout_s, expected=expected, write_id=write_id)
                columns.fill(batch, numbers[span.start : span.stop])
                batch.whole = self._create_future()
                batches.append((pending, batch))
        if len(batches) > 1 and (expected is not None or write_id is not None):
            raise InvalidRequest(
                f"`expected` and `write_id` need a single batch, but these messages make {len(batches)}; "
                "nothing was sent. Send fewer messages, or to one lane"
            )
        self.budget.require()
        for pending, batch in batches:
            pending.add(batch)
        return [batch.whole for _, batch in batches if batch.whole is not None]

    def _groups(
        self, count: int, keys: Sequence[bytes | None] | None, lane: int | None
    ) -> list[tuple[PendingBatches, Sequence[int]]]:
        if keys is None or lane is not None or len(self._senders) == 1:
            return [(self._pending_for(None, lane), range(count))] if count else []
        by_lane: dict[int, list[int]] = {}
        turn = self._turn_number % len(self._senders)
        for number, key in enumerate(keys):
            by_lane.setdefault(turn if key is None else lane_for(key, len(self._senders)), []).append(number)
        return [(self._senders[found].pending, numbers) for found, numbers in sorted(by_lane.items())]

    def lane_of(self, key: bytes | None, lane: int | None) -> int:
        """The two-phase lane for a key, or the current lane for a message without one."""
        count = len(self._senders)
        if lane is None:
            return self._turn_number % count if key is None else lane_for(key, count)
        if not 0 <= lane < count:
            raise InvalidRequest(f"queue {self.queue!r} has lanes 0 to {count - 1}, no lane {lane}; nothing was sent")
        return lane

    @property
    def coordinator(self) -> int:
        """The last known coordinator of the first two-phase lane; 0 if unknown."""
        return self.coordinator_of(0)

    def coordinator_of(self, lane: int) -> int:
        """The last known coordinator of a two-phase lane; 0 if unknown."""
        sender = self._senders[lane] if lane < len(self._senders) else None
        return sender.coordinator if isinstance(sender, LaneSender) else 0

    def _pending_for(self, key: bytes | None, lane: int | None) -> PendingBatches:
        if self.info is not None and self.info.pubsub:
            if lane is not None:
                raise InvalidRequest(
                    "each lane of a pub-sub queue belongs to a peer; nothing was sent. Write without naming a lane"
                )
            return self._senders[0].pending
        return self._senders[self.lane_of(key, lane)].pending

    # ------------------------------------------------------------------ the queue

    async def known(self) -> QueueInfo:
        """The queue's description, fetched once. Raises UnknownQueue if no peer knows the queue."""
        return await self.asked() if self.info is None else self.info

    async def asked(self) -> QueueInfo:
        """Fetch the queue's current description: lanes, ends, coordinators."""
        found = read_queue((await self._cluster.call(b"GET", queue_path(self.queue))).body)
        self.know(found)
        return found

    def know(self, info: QueueInfo) -> None:
        if self.info is not None:
            return
        self.info = info
        if info.pubsub:
            self._senders = [
                PubSubSender(self._cluster, queue=self.queue, budget=self.budget, seen=self.seen, wake=self._wake)
            ]
        else:
            self._senders = [
                LaneSender(
                    self._cluster,
                    queue=self.queue,
                    lane=lane.lane,
                    coordinator=lane.coordinator or 0,
                    budget=self.budget,
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
        """End of a turn: every lane with new messages sends."""
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
