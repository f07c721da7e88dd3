"""The same client for code without an event loop: `avow.connect_blocking`.

One thread with an event loop (uvloop, where it is installed) runs the very client `avow.connect` gives; the methods
here hand it their work and wait. There is no second implementation of anything. Several threads may use one client:
what they send at the same moment leaves in the same batch.

A hand-over between threads costs about as much as a hundred messages of a batch. So `send` hands over in bulk (whatever
was sent since the loop last looked), and iterators fetch an answer at a time, not a batch.
"""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from avow import limits
from avow.client.batching import Headers
from avow.client.blocking_channels import BlockingBatch, BlockingProducer, BlockingSubscription
from avow.client.blocking_pledge import BlockingPledge
from avow.client.client import TIMEOUT_S, Client, connect
from avow.client.cluster import PeerInfo
from avow.client.loop_thread import LoopThread
from avow.client.metadata import Level, QueueInfo, Retention, Strategy, SubscriberInfo
from avow.client.outcomes import Done
from avow.client.pledge_draft import PledgeOptions
from avow.client.pledge_outcomes import PledgePage
from avow.client.queue import After, Queue
from avow.client.reading import READ_COUNT_MAX, READ_SIZE_BYTES, ReadBatch, StoredMessage
from avow.client.transaction import DEADLINE_S, Transaction
from avow.errors import AvowError, InvalidRequest

if TYPE_CHECKING:
    from avow.client.producer import Producer
    from avow.client.saved import Store
    from avow.client.subscriber import From
    from avow.wire.record import Buffer


def connect_blocking(
    addresses: str | Sequence[str], *, token: str | None = None, ca: str | None = None, timeout_s: float = TIMEOUT_S
) -> BlockingClient:
    """As `avow.connect`, for code without an event loop."""
    thread = LoopThread()
    try:
        client = thread.run(connect(addresses, token=token, ca=ca, timeout_s=timeout_s))
    except BaseException:
        thread.stop()
        raise
    return BlockingClient(thread, client)


_TURNS_MAX: Final = 1_000  # of the loop, until a cancelled step has ended


class BlockingClient(AbstractContextManager["BlockingClient"]):
    """Usable from several threads. Closed by `close`, by its `with` block, or when the interpreter ends."""

    def __init__(self, thread: LoopThread, client: Client) -> None:
        self._thread, self._client = thread, client
        self._queues: dict[str, BlockingQueue] = {}
        atexit.register(self.close)

    def queue(self, name: str) -> BlockingQueue:
        queue = self._queues.get(name)
        if queue is None:
            made = BlockingQueue(self._thread, self._thread.run(self._make(name)))
            queue = self._queues.setdefault(name, made)
        return queue

    async def _make(self, name: str) -> Queue:
        return self._client.queue(name)

    def create_queue(
        self,
        name: str,
        *,
        strategy: Strategy = "two-phase",
        lanes: int = 1,
        peers: Sequence[int] = (),
        retention: Retention | Mapping[str, object] | None = None,
    ) -> QueueInfo:
        work = self._client.create_queue(name, strategy=strategy, lanes=lanes, peers=peers, retention=retention)
        return self._thread.run(work)

    def change_queue(self, name: str, *, retention: Retention | Mapping[str, object]) -> QueueInfo:
        return self._thread.run(self._client.change_queue(name, retention=retention))

    def queues(self) -> tuple[QueueInfo, ...]:
        return self._thread.run(self._client.queues())

    def delete_queue(self, name: str) -> None:
        self._thread.run(self._client.delete_queue(name))
        self._queues.pop(name, None)

    def producer(
        self,
        queue: str,
        *,
        store: Store | None = None,
        pending_count: int = limits.CHANNEL_PENDING_COUNT,
        pending_bytes: int = limits.CHANNEL_PENDING_SIZE_BYTES,
    ) -> BlockingProducer:
        """As `Client.producer`: `with client.producer("orders") as producer`."""
        made = self._make_producer(queue, store=store, pending_count=pending_count, pending_bytes=pending_bytes)
        return BlockingProducer(self._thread, self._thread.run(made))

    async def _make_producer(self, queue: str, **options: Any) -> Producer:
        return self._client.producer(queue, **options)

    def subscribe(
        self, queue: str, subscriber: str, *, member: str | None = None, from_: From = "start"
    ) -> BlockingSubscription:
        """As `Client.subscribe`: `for batch in client.subscribe("orders", "billing")`, and `batch.commit()`."""
        return BlockingSubscription(self._thread, self._client.subscribe(queue, subscriber, member=member, from_=from_))

    def pledge(self, gid: str | None = None, **options: Unpack[PledgeOptions]) -> BlockingPledge:
        """As `Client.pledge`: `with client.pledge().call(...).transaction(engine, checkback=...) as connection`."""
        return BlockingPledge(self._thread, self._client.pledge(gid, **options))

    def pledges(self, *, position: str = "", limit: int = limits.PLEDGE_PAGE_COUNT_MAX) -> PledgePage:
        return self._thread.run(self._client.pledges(position=position, limit=limit))

    def status(self) -> dict[str, Any]:
        return self._thread.run(self._client.status())

    def peers(self) -> tuple[PeerInfo, ...]:
        return self._thread.run(self._client.peers())

    def remove_peer(self, number: int) -> None:
        self._thread.run(self._client.remove_peer(number))

    def close(self) -> None:
        atexit.unregister(self.close)
        if self._thread.running:
            self._thread.run(self._client.close())
            for pages in tuple(self._thread.generators):
                with suppress(RuntimeError):  # another thread waits in it, and is told by now that the client is closed
                    self._thread.run(pages.aclose())
            self._thread.stop()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BlockingTransaction(AbstractContextManager["BlockingTransaction"]):
    def __init__(self, thread: LoopThread, transaction: Transaction) -> None:
        self._thread, self._transaction = thread, transaction
        self.name = transaction.name

    @property
    def published(self) -> list[Done]:
        return self._transaction.published

    def enqueue(
        self,
        value: Buffer,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        time_ms: int | None = None,
        lane: int | None = None,
    ) -> None:
        self._thread.run(self._transaction.enqueue(value, key=key, headers=headers, time_ms=time_ms, lane=lane))

    def enqueue_many(
        self,
        values: Sequence[Buffer],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        times: Sequence[int] | None = None,
        lane: int | None = None,
    ) -> None:
        work = self._transaction.enqueue_many(values, keys=keys, headers=headers, times=times, lane=lane)
        self._thread.run(work)

    @property
    def staged(self) -> dict[int, int]:
        """Lane -> messages staged there."""
        return self._transaction.staged

    def publish(self) -> list[Done]:
        return self._thread.run(self._transaction.publish())

    def publish_parts(self, parts: Mapping[int, Mapping[int, int]]) -> list[Done]:
        return self._thread.run(self._transaction.publish_parts(parts))

    def discard_parts(self, parts: Mapping[int, Collection[int]]) -> None:
        self._thread.run(self._transaction.discard_parts(parts))

    def discard(self) -> None:
        self._thread.run(self._transaction.discard())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._transaction.__aexit__(kind, error, trace))


class BlockingQueue:
    def __init__(self, thread: LoopThread, queue: Queue) -> None:
        self._thread, self._queue = thread, queue
        self.name = queue.name

    # ------------------------------------------------------------------- writing

    def send(
        self,
        value: Buffer,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        time_ms: int | None = None,
        expected: int | None = None,
        lane: int | None = None,
    ) -> Future[Done]:
        """A future to wait for, from `concurrent.futures`. What is sent close together leaves as one batch."""
        if not self._thread.running:
            raise InvalidRequest("this client is closed; nothing was sent. Connect again")
        waiting: Future[Done] = Future()
        options = {"key": key, "headers": headers, "time_ms": time_ms, "expected": expected, "lane": lane}
        self._thread.post((self._send_now, value, options, waiting))
        return waiting

    def _send_now(self, value: Buffer, options: dict[str, Any], waiting: Future[Done]) -> None:
        def settle(sent: asyncio.Future[Done]) -> None:
            error = sent.exception() if not sent.cancelled() else None
            if waiting.cancelled():
                return
            if error is not None:
                waiting.set_exception(error)
            elif sent.cancelled():
                waiting.cancel()
            else:
                waiting.set_result(sent.result())

        try:
            self._queue.send(value, **options).add_done_callback(settle)
        except (AvowError, TypeError) as error:
            waiting.set_exception(error)

    def enqueue(
        self,
        value: Buffer,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        time_ms: int | None = None,
        expected: int | None = None,
        lane: int | None = None,
        write_id: bytes | None = None,
    ) -> Done:
        return self._thread.run(
            self._queue.enqueue(
                value, key=key, headers=headers, time_ms=time_ms, expected=expected, lane=lane, write_id=write_id
            )
        )

    def enqueue_many(
        self,
        values: Sequence[Buffer],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        times: Sequence[int] | None = None,
        expected: int | None = None,
        lane: int | None = None,
        write_id: bytes | None = None,
    ) -> list[Done]:
        return self._thread.run(
            self._queue.enqueue_many(
                values, keys=keys, headers=headers, times=times, expected=expected, lane=lane, write_id=write_id
            )
        )

    def outcome(self, write_id: bytes, *, lane: int | None = None) -> list[Done]:
        return self._thread.run(self._queue.outcome(write_id, lane=lane))

    def transaction(
        self, name: str | None = None, *, deadline_s: float = DEADLINE_S, part: int = 0
    ) -> BlockingTransaction:
        return BlockingTransaction(self._thread, self._queue.transaction(name, deadline_s=deadline_s, part=part))

    # ------------------------------------------------------------------- reading

    def info(self) -> QueueInfo:
        return self._thread.run(self._queue.info())

    def survey(self, *, confirmed: bool = False) -> QueueInfo:
        return self._thread.run(self._queue.survey(confirmed=confirmed))

    def read(
        self,
        *,
        after: After = 0,
        lane: int | None = None,
        level: Level = "local",
        at_least: int = 0,
        until: int | None = None,
        max_bytes: int = READ_SIZE_BYTES,
    ) -> Iterator[BlockingBatch]:
        return self._iterate(
            self._queue.pages(after=after, lane=lane, level=level, at_least=at_least, until=until, max_bytes=max_bytes)
        )

    def follow(
        self, *, after: After | None = None, lane: int | None = None, subscriber: str | None = None
    ) -> Iterator[BlockingBatch]:
        """Without end; leaving the loop over it ends it."""
        return self._iterate(self._queue.follow_pages(after=after, lane=lane, subscriber=subscriber))

    def pages(
        self,
        *,
        after: int = 0,
        lane: int,
        level: Level = "local",
        at_least: int = 0,
        until: int | None = None,
        max_bytes: int = READ_SIZE_BYTES,
        max_count: int = READ_COUNT_MAX,
        preferred: int = 0,
        local: bool = False,
    ) -> Iterator[list[ReadBatch]]:
        """As `read` of one lane, but all batches of one answer at a time; the next answer is on its way meanwhile."""
        return self._iterate_pages(
            self._queue.pages(
                after=after,
                lane=lane,
                level=level,
                at_least=at_least,
                until=until,
                max_bytes=max_bytes,
                max_count=max_count,
                preferred=preferred,
                local=local,
            )
        )

    def _iterate(self, pages: AsyncGenerator[list[ReadBatch], None]) -> Iterator[BlockingBatch]:
        for batches in self._iterate_pages(pages):
            for batch in batches:
                yield BlockingBatch(self._thread, batch)

    def _iterate_pages(self, pages: AsyncGenerator[list[ReadBatch], None]) -> Iterator[list[ReadBatch]]:
        self._thread.generators.add(pages)
        try:
            while (batches := self._thread.run(_next_page(pages))) is not None:
                yield batches
        finally:
            self._thread.generators.discard(pages)
            self._thread.finish(_end(pages))

    def read_one(self, lane: int, version: int) -> StoredMessage:
        return self._thread.run(self._queue.read_one(lane, version))

    # --------------------------------------------------------------- subscribers

    def subscribers(self) -> tuple[SubscriberInfo, ...]:
        return self._thread.run(self._queue.subscribers())

    def cursor(self, subscriber: str) -> dict[int, int]:
        return self._thread.run(self._queue.cursor(subscriber))

    def move_cursor(self, subscriber: str, versions: Mapping[int, int], *, hold: bool | None = None) -> SubscriberInfo:
        return self._thread.run(self._queue.move_cursor(subscriber, versions, hold=hold))

    def reset_cursor(self, subscriber: str, versions: Mapping[int, int], *, hold: bool | None = None) -> SubscriberInfo:
        return self._thread.run(self._queue.reset_cursor(subscriber, versions, hold=hold))

    def remove_subscriber(self, subscriber: str) -> None:
        self._thread.run(self._queue.remove_subscriber(subscriber))

    def trim(self, lane: int, upto: int) -> int:
        return self._thread.run(self._queue.trim(lane, upto))


async def _end(pages: AsyncGenerator[list[ReadBatch], None]) -> None:
    """After an interrupt the step that was cancelled may still be ending: a generator can be closed only at rest."""
    for _ in range(_TURNS_MAX):
        if not getattr(pages, "ag_running", False):  # of every generator that Python makes; the protocol has it not
            break
        await asyncio.sleep(0)
    await pages.aclose()


async def _next_page(pages: AsyncGenerator[list[ReadBatch], None]) -> list[ReadBatch] | None:
    return await anext(pages, None)
