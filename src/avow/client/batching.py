"""Messages on their way: batches, from the first message put into one until its outcome is known.

A message must cost almost nothing here. So a message is not an object: it is an item in the columns of the batch that
is open for its lane, and a future. The batch becomes one record with one write id when it leaves, and whoever waits
gets a version out of the one answer. While the lane has as many batches on their way as it may, the open one grows; so
batches are as large as the cluster makes them, and an idle client sends at once.

`Pending` is what a lane has not sent: batches that are closed and the one that is open. `Room` bounds what a client
holds in memory: `send` raises Busy beyond it, `enqueue` waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from os import urandom
from time import time_ns
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from avow import limits
from avow.client.outcomes import Done
from avow.errors import AvowError, Busy, Offline, TooLarge
from avow.wire.encode import encode_batch

if TYPE_CHECKING:
    from avow.wire.record import Buffer

Headers: TypeAlias = Mapping[str, bytes] | Sequence[tuple[str, bytes]]
Pairs: TypeAlias = Sequence[tuple[str, bytes]]

#: What a message counts beside its bytes: with it, a batch within the limit of bytes is within that of messages.
OVERHEAD_BYTES: Final = limits.BATCH_SIZE_BYTES_MAX // limits.BATCH_COUNT_MAX
BATCH_ROOM_BYTES: Final = limits.BATCH_SIZE_BYTES_MAX - 4 * limits.KIB
PENDING_SIZE_BYTES_MAX: Final = 64 * limits.MIB
_NO_PAIRS: Final[Pairs] = ()


class Batch:
    """`futures` has one for each message; or `whole` is one for all of them.

    `maybe`: an attempt may have happened. `bound`: the pub-sub lane those attempts were for, which had reached
    `since` when the first of them was made.
    """

    __slots__ = (
        *("values", "keys", "headers", "times", "futures", "whole", "size", "plain"),
        *("count", "record", "write_id", "expected", "deadline", "number"),
        *("sent_at", "maybe", "bound", "since", "error", "settled", "unknown_count"),
    )

    def __init__(self, *, deadline: float, expected: int | None = None, write_id: bytes | None = None) -> None:
        self.values: list[bytes] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[Pairs] | None = None
        self.times: list[int] | None = None
        self.futures: list[asyncio.Future[Done]] = []
        self.whole: asyncio.Future[Done] | None = None
        self.size = self.count = self.number = 0
        self.plain = True  # values only: no other column has begun
        self.record: Buffer | None = None
        self.write_id = write_id or urandom(limits.WRITE_ID_SIZE_BYTES)
        self.expected, self.deadline = expected, deadline
        self.sent_at = 0.0
        self.maybe = self.settled = False
        self.bound: int | None = None
        self.since = 0
        self.error: AvowError | None = None
        self.unknown_count = 0

    @classmethod
    def of_record(cls, record: Buffer, *, count: int, write_id: bytes, deadline: float) -> Self:
        """A batch that was encoded before, with one future for all of it. Whoever has sent it says so: `sent_at`, and
        `maybe`, `bound` and `since`."""
        batch = cls(deadline=deadline, write_id=write_id)
        batch.record, batch.count, batch.size = record, count, len(record)
        batch.whole = asyncio.get_running_loop().create_future()
        return batch

    def put(self, value: bytes, key: bytes | None, headers: Pairs | None, time_ms: int | None) -> None:
        """Columns begin when the first message needs one; those before it get what absent means."""
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
        """The record. The columns are let go: the record is all that is kept until the outcome."""
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
        return int((now - self.sent_at) * 1000) if self.sent_at else 0

    def done(self, queue: str, lane: int, first_version: int) -> None:
        self.settled = True
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
        self.settled = True
        waiting = self.futures if self.whole is None else [self.whole]
        for future in waiting:
            if not future.done():
                future.set_exception(error)
        self.futures = []

    def never_sent(self, timeout_s: float) -> AvowError:
        return Offline(f"no peer took the write within {timeout_s:g} s; nothing was stored. Try again")


class Room:
    """Bytes of batches that are closed and not settled."""

    def __init__(self, size_bytes_max: int = PENDING_SIZE_BYTES_MAX) -> None:
        self._max = size_bytes_max
        self._used = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def full(self) -> bool:
        return self._used >= self._max

    def require(self) -> None:
        if self._used >= self._max:
            raise Busy(f"{self._used} bytes wait in this client already; nothing was sent. Await earlier sends first")

    def take(self, size: int) -> None:
        self._used += size

    def give_back(self, size: int) -> None:
        self._used -= size
        while self._waiting and self._used < self._max:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return  # the one that was woken takes its room first; whoever is next is woken by what it gives back

    async def wait(self) -> None:
        while self.full:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter


class Pending:
    """What a lane has not sent yet, in order. `wake` is called when there is something new to send."""

    __slots__ = ("_next_number", "_room", "_wake", "open", "timeout_s", "waiting")

    def __init__(self, *, room: Room, timeout_s: float, wake: Callable[[], None]) -> None:
        self.open: Batch | None = None
        self.waiting: deque[Batch] = deque()
        self.timeout_s = timeout_s
        self._room, self._wake = room, wake
        self._next_number = 0

    def begin(self, now: float) -> Batch:
        """A new open batch; the one that was open is closed."""
        self._room.require()
        self._close_open()
        self.open = batch = Batch(deadline=now + self.timeout_s)
        self._wake()
        return batch

    def add(self, batch: Batch) -> None:
        """A batch that is complete. It goes behind everything that was sent before."""
        self._room.require()
        self._close_open()
        self._close(batch)
        self._wake()

    def take(self) -> Batch | None:
        """The next batch to send, encoded. One that cannot be encoded fails here, and is passed over."""
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
                self.settle(batch)
                continue
            return batch

    def put_back(self, batches: Sequence[Batch]) -> None:
        """To be sent again, at their place in the order."""
        merged = sorted((*batches, *self.waiting), key=lambda batch: batch.number)
        self.waiting = deque(merged)

    def expired(self, now: float) -> list[Batch]:
        """Batches whose time is over, removed. An open one counts: it waits for a place among those on their way."""
        if self.open is not None and self.open.deadline <= now:
            self._close_open()
        late = [batch for batch in self.waiting if batch.deadline <= now]
        if late:
            self.waiting = deque(batch for batch in self.waiting if batch.deadline > now)
        return late

    def settle(self, batch: Batch) -> None:
        self._room.give_back(batch.size)

    def _close_open(self) -> None:
        batch, self.open = self.open, None
        if batch is not None:
            self._close(batch)

    def _close(self, batch: Batch) -> None:
        self._next_number += 1
        batch.number = self._next_number
        self._room.take(batch.size)
        self.waiting.append(batch)

    def __len__(self) -> int:
        return len(self.waiting) + (self.open is not None)


# -------------------------------------------------------------- what callers give


def plain_bytes(value: Buffer) -> bytes:
    """Values are kept until they are sent, so what could be written to meanwhile is copied."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"a message is bytes, not {type(value).__name__}; encode it first")


def check_size(size: int) -> None:
    if size > limits.MESSAGE_SIZE_BYTES_MAX:
        raise TooLarge(f"a message has at most {limits.MESSAGE_SIZE_BYTES_MAX} bytes, not {size}; nothing was sent")


def pairs_of(headers: Headers | None) -> Pairs | None:
    if headers is None:
        return None
    return tuple(headers.items()) if isinstance(headers, Mapping) else tuple(headers)


def pairs_size(headers: Pairs | None) -> int:
    return sum(len(name.encode("utf-8", "surrogateescape")) + len(value) + 8 for name, value in headers or ())


def now_ms() -> int:
    return time_ns() // 1_000_000
