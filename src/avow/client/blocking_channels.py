"""Producers and subscriptions for code without an event loop: the same ones, on the client's thread.

    with client.producer("orders") as producer:             with client.subscribe("orders", "billing") as batches:
        producer.send(b"value")                                  for batch in batches:
        producer.commit()                                            batch.commit()

A hand-over between threads costs as much as a hundred messages. So `send` does not wait for the client's thread: it
leaves its message there, and waits only now and then, so that what lies there has a bound. When the producer has failed
meanwhile, a later call says so, and what was left there is among `pending` too.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from avow import limits
from avow.client.batching import Headers, Pairs, pairs_of
from avow.client.window import PendingMessage
from avow.errors import AvowError, ChannelFailed, InvalidRequest

if TYPE_CHECKING:
    import pyarrow as pa

    from avow.client.loop_thread import LoopThread
    from avow.client.producer import Producer, Written
    from avow.client.reading import Message, ReadBatch
    from avow.client.subscriber import Subscription
    from avow.wire.record import Buffer

_LEFT_COUNT_MAX: Final = 1_024  # messages that lie with the client's thread before `send` waits for it
_LEFT_SIZE_BYTES_MAX: Final = 1 * limits.MIB


class BlockingBatch:
    """A `ReadBatch` whose `commit` waits."""

    __slots__ = ("_batch", "_thread", "count", "first_version", "lane", "last_version")

    def __init__(self, thread: LoopThread, batch: ReadBatch) -> None:
        self._thread, self._batch = thread, batch
        self.lane, self.count = batch.lane, batch.count
        self.first_version, self.last_version = batch.first_version, batch.last_version

    def __len__(self) -> int:
        return self.count

    def values(self) -> list[bytes]:
        return self._batch.values()

    def messages(self) -> list[Message]:
        return self._batch.messages()

    def to_arrow(self) -> pa.RecordBatch:
        return self._batch.to_arrow()

    def commit(self) -> None:
        self._thread.run(self._batch.commit())


class BlockingProducer(AbstractContextManager["BlockingProducer"]):
    """Used by one thread at a time."""

    def __init__(self, thread: LoopThread, producer: Producer) -> None:
        self._thread, self._producer = thread, producer
        self._left_count = self._left_bytes = 0
        self._refused: list[PendingMessage] = []

    def send(
        self,
        value: Buffer,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        time_ms: int | None = None,
        lane: int | None = None,
    ) -> None:
        """One message. Waits while too much is unacknowledged; it is in the queue when a commit says so."""
        self._producer.check(value, key=key, headers=headers, time_ms=time_ms, lane=lane)
        self._left_count += 1
        self._left_bytes += len(value)
        if self._producer.suspended or self._left_count > _LEFT_COUNT_MAX or self._left_bytes > _LEFT_SIZE_BYTES_MAX:
            self._left_count = self._left_bytes = 0
            self._run(self._producer.writable())
        if not self._thread.running:
            raise InvalidRequest("this client is closed; nothing was sent. Connect again")
        self._thread.post((self._put, bytes(value), key, pairs_of(headers), time_ms, lane))

    def _put(self, value: bytes, key: bytes | None, pairs: Pairs | None, time_ms: int | None, lane: int | None) -> None:
        """On the client's thread, where nobody waits: what comes too late is kept for the next call."""
        try:
            self._producer.put(value, key=key, headers=pairs, time_ms=time_ms, lane=lane)
        except AvowError:
            left = PendingMessage(value, key, tuple(pairs or ()), time_ms or 0, "unsent", lane, b"")
            self._refused.append(left)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """What was sent before is put first: both come to the client's thread in order."""
        try:
            self._thread.run(work)
        except ChannelFailed as failed:
            failed.pending = [*failed.pending, *self._refused]
            raise

    def send_many(
        self,
        values: Sequence[Buffer],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        times: Sequence[int] | None = None,
        lane: int | None = None,
    ) -> None:
        self._run(self._producer.send_many(values, keys=keys, headers=headers, times=times, lane=lane))

    def commit(self) -> None:
        """Returns when everything sent before is in the queue."""
        self._run(self._producer.commit())

    def written(self, *, timeout_s: float | None = None) -> list[Written]:
        return self._thread.run(self._producer.written(timeout_s=timeout_s))

    @property
    def non_acked_message_count(self) -> int:
        return self._thread.run(self._count())

    async def _count(self) -> int:
        return self._producer.non_acked_message_count

    def statistics(self) -> dict[str, Any]:
        return self._thread.run(self._statistics())

    async def _statistics(self) -> dict[str, Any]:
        return self._producer.statistics()

    def __enter__(self) -> Self:
        self._thread.run(self._producer.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._producer.__aexit__(kind, error, trace))


class BlockingSubscription(AbstractContextManager["BlockingSubscription"]):
    """Iterated by one thread; any thread may commit its batches."""

    def __init__(self, thread: LoopThread, subscription: Subscription) -> None:
        self._thread, self._subscription = thread, subscription
        self._entered = False

    def __iter__(self) -> Iterator[BlockingBatch]:
        if self._entered:
            yield from self._batches()
            return
        with self:
            yield from self._batches()

    def _batches(self) -> Iterator[BlockingBatch]:
        while (batch := self._thread.run(self._next())) is not None:
            yield BlockingBatch(self._thread, batch)

    async def _next(self) -> ReadBatch | None:
        return await anext(self._subscription, None)

    def statistics(self) -> dict[str, Any]:
        return self._thread.run(self._statistics())

    async def _statistics(self) -> dict[str, Any]:
        return self._subscription.statistics()

    def __enter__(self) -> Self:
        self._thread.run(self._subscription.open())
        self._entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.finish(self._subscription.close())
