"""Batches of messages to write, from the first message until the outcome is known.

The cost per message must be minimal. So a message is not an object but an item in the columns of its lane's open batch,
and a future. When the batch is sent it becomes one record with one write id, and each future gets its version from the
one answer. While the lane has the maximum number of batches in flight, the open batch grows: so batch sizes adapt to
the cluster's speed, and an idle client sends at once.

`PendingBatches` holds what a lane has not sent: closed batches and the open one. `ByteBudget` limits the client's
memory: beyond it `send` raises Busy and `enqueue` waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import inf
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

#: Added to the size of each message, so that a batch within the size limit is also within the message limit.
OVERHEAD_BYTES: Final = limits.BATCH_SIZE_BYTES_MAX // limits.BATCH_COUNT_MAX
BATCH_CONTENT_SIZE_BYTES_MAX: Final = limits.BATCH_SIZE_BYTES_MAX - 4 * limits.KIB
PENDING_SIZE_BYTES_MAX: Final = 64 * limits.MIB
_NO_PAIRS: Final[Pairs] = ()


class Batch:
    """`futures` has one future per message; or `whole` is one for all of them.

    `sent_at` to `finished` belong to the writer, see `avow.writer.steps.Write`. `since`: the version that a pub-sub
    lane had reached when the batch was bound to it. `first_version`: of its messages, once it is stored."""

    __slots__ = (
        *("values", "keys", "headers", "times", "futures", "whole", "size", "plain"),
        *("count", "record", "write_id", "expected", "deadline", "number"),
        *("sent_at", "tries", "due", "maybe", "bound", "since", "error", "finished", "unknown_count", "first_version"),
    )

    def __init__(self, *, deadline: float, expected: int | None = None, write_id: bytes | None = None) -> None:
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
        self.expected, self.deadline = expected, deadline
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
        return int((now - self.sent_at) * 1000) if self.sent_at else 0

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


# -------------------------------------------------------------- arguments of callers


def plain_bytes(value: Buffer) -> bytes:
    """Values are kept until they are sent, so mutable ones are copied."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"a message must be bytes, not {type(value).__name__}; nothing was sent. Encode it first")


def check_size(size: int) -> None:
    if size > limits.MESSAGE_SIZE_BYTES_MAX:
        raise TooLarge(
            f"the message has {size} bytes, the maximum is {limits.MESSAGE_SIZE_BYTES_MAX}; nothing was sent"
        )


def pairs_of(headers: Headers | None) -> Pairs | None:
    if headers is None:
        return None
    return tuple(headers.items()) if isinstance(headers, Mapping) else tuple(headers)


def pairs_size(headers: Pairs | None) -> int:
    return sum(len(name.encode("utf-8", "surrogateescape")) + len(value) + 8 for name, value in headers or ())


def now_ms() -> int:
    return time_ns() // 1_000_000
