"""Batches of messages to write, from the first message until the outcome is known.

The cost per message must be minimal. So a message is not an object but an item in the columns of its lane's open batch,
and a future. When the batch is sent it becomes one record with one write id, and each future gets its version from the
one answer. While the lane has the maximum number of batches in flight, the open batch grows: so batch sizes adapt to
the cluster's speed, and an idle client sends at once.

`PendingBatches` holds what a lane has not sent: closed batches and the open one. `ByteBudget` limits the client's
memory: beyond it `send` raises Busy and `enqueue` waits. `WriteBuffer` has all lanes of a queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from os import urandom
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeAlias

from avow import limits
from avow.client.descriptions import QueueInfo, queue_path, read_queue
from avow.client.message_columns import (
    BATCH_CONTENT_SIZE_BYTES_MAX,
    OVERHEAD_BYTES,
    Headers,
    Pairs,
    check_size,
    columns_of,
    now_ms,
    pairs_of,
    pairs_size,
    plain_bytes,
    split,
)
from avow.client.outcomes import Done, final
from avow.errors import AvowError, Busy, InvalidRequest, Offline
from avow.queue.key_to_lane import lane_for
from avow.wire.encode import encode_batch

if TYPE_CHECKING:
    from avow.client.cluster import Cluster
    from avow.wire.record import Buffer

Waiting: TypeAlias = asyncio.Future[Done]

PENDING_SIZE_BYTES_MAX: Final = 64 * limits.MIB
_NO_PAIRS: Final[Pairs] = ()


class Batch:
    """`futures` has one future per message; or `whole` is one for all of them.

    `sent_at` to `finished` belong to the writer, see `avow.writer.steps.Write`. `since`: the version that a pub-sub
    lane had reached when the batch was bound to it. `first_version`: of its messages, once it is stored. `older_ms`:
    how old the write was when this client got it; 0 unless the caller chose the write id."""

    __slots__ = (
        *("values", "keys", "headers", "times", "futures", "whole", "size", "plain"),
        *("count", "record", "write_id", "expected", "deadline", "number"),
        *(
            "older_ms",
            "sent_at",
            "tries",
            "due",
            "maybe",
            "bound",
            "since",
            "error",
            "finished",
            "unknown_count",
            "first_version",
        ),
    )

    def __init__(
        self, *, deadline: float, expected: int | None = None, write_id: bytes | None = None, older_ms: int = 0
    ) -> None:
        self.values: list[bytes] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[Pairs] | None = None
        self.times: list[int] | None = None
        self.futures: list[asyncio.Future[Done]] = []
        self.whole: asyncio.Future[Done] | None = None
        self.size = self.count = self.number = 0
        self.plain = True  # values only: no other column exists yet
        self.record: Buffer | None = None
        self.write_id = write_id or urandom(limits.WRITE_ID_SIZE_BYTES)
        self.expected, self.deadline, self.older_ms = expected, deadline, older_ms
        self.sent_at = self.due = 0.0
        self.maybe = self.finished = False
        self.bound: int | None = None
        self.since = 0
        self.error: AvowError | None = None
        self.tries = self.unknown_count = self.first_version = 0

    @classmethod
    def of_record(cls, record: Buffer, *, count: int, write_id: bytes, deadline: float) -> Self:
        """A batch that is encoded already, with one future for all of it. If it was sent before, the caller sets
        `sent_at`, `maybe`, `bound` and `since`."""
        batch = cls(deadline=deadline, write_id=write_id)
        batch.record, batch.count, batch.size = record, count, len(record)
        batch.whole = asyncio.get_running_loop().create_future()
        return batch

    def put(self, value: bytes, key: bytes | None, headers: Pairs | None, time_ms: int | None) -> None:
        """Add a message. A column is created when the first message needs it, with the default for earlier messages."""
        before = len(self.values)
        self.values.append(value)
        self.size += len(value) + len(key or b"") + pairs_size(headers) + OVERHEAD_BYTES
        if key is not None and self.keys is None:
            self.keys = [None] * before
        if headers and self.headers is None:
            self.headers = [_NO_PAIRS] * before
        if time_ms is not None and self.times is None:
            self.times = [now_ms()] * before
        if self.keys is not None:
            self.keys.append(key)
        if self.headers is not None:
            self.headers.append(headers or _NO_PAIRS)
        if self.times is not None:
            self.times.append(now_ms() if time_ms is None else time_ms)
        self.plain = self.keys is None and self.headers is None and self.times is None

    def encode(self) -> Buffer:
        """The record. The columns are dropped: only the record is kept until the outcome."""
        if self.record is None:
            self.count = len(self.values)
            self.record = encode_batch(
                self.values,
                keys=self.keys,
                headers=self.headers,
                times=self.times,
                write_id=self.write_id,
                created_ms=now_ms(),
            )
            self.values, self.keys, self.headers, self.times = [], None, None, None
        return self.record

    def age_ms(self, now: float) -> int:
        """Since its first attempt. Above 0 for a repetition, so that it is never taken for a first attempt."""
        if not self.sent_at:
            return self.older_ms
        since_ms = self.older_ms + max(int((now - self.sent_at) * 1000), 1)
        return min(since_ms, limits.WRITE_AGE_UNKNOWN_MS)

    def done(self, queue: str, lane: int, first_version: int) -> None:
        self.finished = True
        write_id, version = self.write_id, first_version
        if self.whole is not None:
            if not self.whole.done():
                self.whole.set_result(Done(queue, lane, version, version + self.count - 1, write_id))
            return
        for future in self.futures:
            if not future.done():
                future.set_result(Done(queue, lane, version, version, write_id))
            version += 1
        self.futures = []

    def fail(self, error: AvowError) -> None:
        self.finished = True
        waiting = self.futures if self.whole is None else [self.whole]
        for future in waiting:
            if not future.done():
                future.set_exception(error)
        self.futures = []

    def never_sent(self, timeout_s: float) -> AvowError:
        return Offline(f"no peer accepted the write within {timeout_s:g} s; nothing was stored. Try again")


def _age_when_given(write_id: bytes | None, created_ms: int | None) -> int:
    """The age of a write whose id the caller chose: unknown, unless the caller says when it was first sent."""
    if write_id is None:
        if created_ms is not None:
            raise InvalidRequest("`created_ms` is the time of a write with a `write_id`; nothing was sent")
        return 0
    age_ms = limits.WRITE_AGE_UNKNOWN_MS if created_ms is None else now_ms() - created_ms
    return max(age_ms, 1) if age_ms >= -limits.CLOCK_AHEAD_MS_MAX else limits.WRITE_AGE_UNKNOWN_MS


class ByteBudget:
    """Limits the bytes of closed batches whose outcome is not known."""

    def __init__(self, size_bytes_max: int = PENDING_SIZE_BYTES_MAX) -> None:
        self._max = size_bytes_max
        self._used = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def full(self) -> bool:
        return self._used >= self._max

    def require(self) -> None:
        if self._used >= self._max:
            raise Busy(
                f"this client already has {self._used} unsent or unanswered bytes; nothing was sent. "
                "Await earlier sends first"
            )

    def take(self, size: int) -> None:
        self._used += size

    def give_back(self, size: int) -> None:
        self._used -= size
        while self._waiting and self._used < self._max:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return  # wake one waiter at a time: the next is woken when this one gives its bytes back

    async def wait(self) -> None:
        while self.full:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter


class PendingBatches:
    """The unsent batches of a lane, in order. `wake` is called when there is something new to send."""

    __slots__ = ("_budget", "_next_number", "_wake", "open", "timeout_s", "waiting")

    def __init__(self, *, budget: ByteBudget, timeout_s: float, wake: Callable[[], None]) -> None:
        self.open: Batch | None = None
        self.waiting: deque[Batch] = deque()
        self.timeout_s = timeout_s
        self._budget, self._wake = budget, wake
        self._next_number = 0

    def begin(self, now: float) -> Batch:
        """Open a new batch; the one that was open is closed."""
        self._budget.require()
        self._close_open()
        self.open = batch = Batch(deadline=now + self.timeout_s)
        self._wake()
        return batch

    def add(self, batch: Batch) -> None:
        """Add a complete batch after everything before it."""
        self._budget.require()
        self._close_open()
        self._close(batch)
        self._wake()

    def take(self) -> Batch | None:
        """The next batch to send, encoded. A batch that cannot be encoded fails and is skipped."""
        while True:
            if not self.waiting:
                self._close_open()
            if not self.waiting:
                return None
            batch = self.waiting.popleft()
            try:
                batch.encode()
            except AvowError as error:
                batch.fail(error)
                self.release(batch)
                continue
            return batch

    def put_back(self, batches: Sequence[Batch]) -> None:
        """Return batches that must be sent again to their place in the order."""
        merged = sorted((*batches, *self.waiting), key=lambda batch: batch.number)
        self.waiting = deque(merged)

    def expired(self, now: float) -> list[Batch]:
        """Remove and return the batches past their deadline, including the open one, which waits for the window."""
        if self.open is not None and self.open.deadline <= now:
            self._close_open()
        late = [batch for batch in self.waiting if batch.deadline <= now]
        if late:
            self.waiting = deque(batch for batch in self.waiting if batch.deadline > now)
        return late

    def first_deadline(self) -> float:
        """All batches have the same timeout from their first message on, so the first has the earliest deadline."""
        first = self.waiting[0] if self.waiting else self.open
        return inf if first is None else first.deadline

    def release(self, batch: Batch) -> None:
        self._budget.give_back(batch.size)

    def _close_open(self) -> None:
        batch, self.open = self.open, None
        if batch is not None:
            self._close(batch)

    def _close(self, batch: Batch) -> None:
        self._next_number += 1
        batch.number = self._next_number
        self._budget.take(batch.size)
        self.waiting.append(batch)

    def __len__(self) -> int:
        return len(self.waiting) + (self.open is not None)


class Sender(Protocol):
    """Sends the batches of a lane, or of a pub-sub queue."""

    pending: PendingBatches

    @property
    def coordinator(self) -> int:
        """The last known coordinator of a two-phase lane; 0 if unknown."""

    def pump(self) -> None: ...

    def close(self) -> None: ...

    def statistics(self) -> dict[str, int]: ...


class WriteBuffer:
    """One client's writes to one queue: each message gets a lane, and the lane's open batch.

    Messages of one turn of the event loop are sent together: the first one schedules a call at the end of the turn, in
    which every lane sends. The lane of a message depends on the queue (strategy, number of lanes), which is fetched
    once; messages sent before that answer wait in order. `open_senders` then makes the senders of its lanes.

    A message with a key goes to the key's lane. Messages without a key go to one lane per turn of the event loop, round
    robin, so messages sent together stay together. A pub-sub queue has a single sender.
    """

    def __init__(
        self, cluster: Cluster, queue: str, open_senders: Callable[[QueueInfo, WriteBuffer], Sequence[Sender]]
    ) -> None:
        self._cluster, self.queue = cluster, queue
        self._open_senders = open_senders
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        self._create_future: Callable[[], Waiting] = self._loop.create_future
        self.budget = ByteBudget()
        self.seen: dict[int, int] = {}  # by lane: the last version that this client knows to be done
        self.info: QueueInfo | None = None
        self._learning: asyncio.Task[None] | None = None
        self._early: list[tuple[Callable[[], None], Sequence[Waiting]]] = []
        self._senders: Sequence[Sender] = ()
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
        created_ms: int | None = None,
    ) -> Waiting:
        value, pairs = plain_bytes(value), pairs_of(headers)
        check_size(len(value))
        self._cluster.require_open()
        older_ms = _age_when_given(write_id, created_ms)
        future = self._create_future()

        def put() -> None:
            pending = self._pending_for(key, lane)
            batch = pending.open
            if expected is not None or write_id is not None:
                deadline = self._now() + pending.timeout_s
                batch = Batch(deadline=deadline, expected=expected, write_id=write_id, older_ms=older_ms)
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
        created_ms: int | None = None,
    ) -> list[Waiting]:
        """Returns one future per batch. The queue must be known."""
        older_ms = _age_when_given(write_id, created_ms)
        columns = columns_of(values, keys=keys, headers=headers, times=times)
        batches = []
        for pending, numbers in self._groups(len(values), keys, lane):
            for span in split(columns.sizes(numbers)):
                deadline = self._now() + pending.timeout_s
                batch = Batch(deadline=deadline, expected=expected, write_id=write_id, older_ms=older_ms)
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

    @property
    def lanes_count(self) -> int:
        """Of a two-phase queue that is known."""
        return len(self._senders)

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
        return 0 if sender is None else sender.coordinator

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
        self._senders = self._open_senders(info, self)
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

    def wake(self, sender: Sender) -> None:
        """Called by a sender: its lane has something new to send."""
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
