"""Streams messages into a queue; one commit acknowledges all messages before it.

    async with client.producer("orders") as producer:
        await producer.send(b"value", key=b"customer 7")
        await producer.commit()         # everything sent before is stored on a quorum, each message once

Messages of one turn of the event loop become one record per lane. Records go over a channel to a peer, whose
acknowledgement of a commit means that a quorum has stored them. `send` waits only while too much is unacknowledged; the
producer issues commits itself often enough that acknowledgements keep arriving.

        turn of the loop          Window                     Channel                    peer
    send ─► open batches ─► waiting ── given ──────────► records, commits ─────────► quorum
                               ▲         │ acknowledged: removed
                               └─────────┘ the channel failed: find the outcomes, then open another

The producer handles failed channels itself. It finds the outcome of records that may have been stored by their write
ids, in order, and continues over a channel to another peer. Only if that takes longer than the client's timeout, or a
peer refuses definitely, the caller gets ChannelFailed with every message that is not known to be in the queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct

from avow import limits
from avow.client.batches import Batch
from avow.client.descriptions import queue_path
from avow.client.lane_batcher import RECORD_SIZE_BYTES, LaneBatcher
from avow.client.message_columns import Headers, columns_of, split
from avow.client.outcomes import Span, read_written
from avow.client.pending_store import PendingRecordStore, Store
from avow.client.producer_connection import ProducerConnection
from avow.client.window import UNBOUND, ProducerRecord, Window, message_of
from avow.errors import AvowError, ChannelFailed, InvalidRequest

if TYPE_CHECKING:
    from avow.client.batches import WriteBuffer
    from avow.client.cluster import Cluster
    from avow.wire.record import Buffer


class Written(Struct, frozen=True, gc=False):
    """The versions of a producer's first and last message in one lane, and how many messages it has there."""

    lane: int
    first_version: int
    last_version: int
    messages: int


class Producer:
    """Made by `Client.producer`, for the client's event loop. A context manager: it commits at the end of the block."""

    def __init__(
        self,
        cluster: Cluster,
        buffer: WriteBuffer,
        *,
        store: Store | None = None,
        pending_count: int = limits.CHANNEL_PENDING_COUNT,
        pending_bytes: int = limits.CHANNEL_PENDING_SIZE_BYTES,
    ) -> None:
        self._cluster, self._buffer, self._store = cluster, buffer, store
        self._window = Window(count_max=pending_count, size_bytes_max=pending_bytes)
        self._pending_store: PendingRecordStore | None = None
        self._connection = ProducerConnection(
            cluster, buffer, self._window, on_progress=self._progressed, on_fail=self._fail
        )
        self._loop = asyncio.get_running_loop()
        self._batcher = LaneBatcher(buffer.queue)
        self._sent_count = 0
        self._suspended = self._scheduled = False
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()  # commits, by the last record they cover
        self._senders: deque[asyncio.Future[None]] = deque()
        self._failure: ChannelFailed | None = None
        self._stage = "new"

    # ------------------------------------------------------------------- sending

    async def send(
        self,
        value: Buffer,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        time_ms: int | None = None,
        lane: int | None = None,
    ) -> None:
        """Send one message. Waits only while too much is unacknowledged; the message is in the queue after a commit."""
        if self._suspended or self._stage != "open":
            await self.writable()
        full = self._put(value, key, headers, time_ms, lane)
        if full is not None:
            self._close(full)
            await asyncio.sleep(0)  # let the loop send it

    async def send_many(
        self,
        values: Sequence[Buffer],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        times: Sequence[int] | None = None,
        lane: int | None = None,
    ) -> None:
        """Send many messages, in records of an efficient size. If cancelled, the messages before that were sent."""
        await self.writable()
        columns = columns_of(values, keys=keys, headers=headers, times=times)
        for number, rows in self._batcher.groups(len(values), keys=keys, lane=lane):
            for span in split(columns.sizes(rows), size_bytes_max=RECORD_SIZE_BYTES):
                await self.writable()
                self._close(number)
                batch = Batch(deadline=0.0)
                columns.fill(batch, rows[span.start : span.stop])
                self._batcher.open[number] = batch
                self._close(number)
                self._sent_count += len(span)
                self._schedule()
                await asyncio.sleep(0)  # let the loop send it

    def check(
        self,
        value: Buffer,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        time_ms: int | None = None,
        lane: int | None = None,
    ) -> None:
        """Validate a message; raises if it is invalid. May be called on any thread."""
        self._batcher.check(value, key=key, headers=headers, time_ms=time_ms, lane=lane)

    def put(
        self,
        value: Buffer,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        time_ms: int | None = None,
        lane: int | None = None,
    ) -> None:
        """Like `send`, but never waits: check `suspended` first, or this message may exceed the limit."""
        self._require_open()
        full = self._put(value, key, headers, time_ms, lane)
        if full is not None:
            self._close(full)

    def _put(
        self, value: Buffer, key: bytes | None, headers: Headers | None, time_ms: int | None, lane: int | None
    ) -> int | None:
        """Add a message to its lane's batch. Returns the lane if the batch is full."""
        if not self._scheduled:
            self._schedule()
        if type(value) is bytes and key is None and headers is None and time_ms is None and lane is None:
            full = self._batcher.put_plain(value)
        else:
            full = self._batcher.put(value, key=key, headers=headers, time_ms=time_ms, lane=lane)
        self._sent_count += 1
        return full

    @property
    def suspended(self) -> bool:
        return self._suspended

    async def writable(self) -> None:
        """Wait until a message may be sent. Raises ChannelFailed if the producer has failed or fails while waiting."""
        self._require_open()
        while self._suspended:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._senders.append(waiter)
            await waiter
            self._require_open()

    # --------------------------------------------------------------------- turns

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """End of a turn: encode its messages as records, store them, and send them."""
        self._scheduled = False
        self._close_all()
        self._batcher.pass_on()
        if self._failure is None:
            self._connection.pump()

    def _close_all(self) -> None:
        for lane in tuple(self._batcher.open):
            self._close(lane)

    def _close(self, lane: int) -> None:
        batch = self._batcher.open.pop(lane, None)
        if batch is None:
            return
        record = batch.encode()
        if lane == UNBOUND and self._connection.lane is not None:
            lane = self._connection.lane
        sent = ProducerRecord(message_of(record, lane=lane), lane=lane, count=batch.count, write_id=batch.write_id)
        self._window.add(sent)
        self._suspended = self._suspended or self._window.full
        if self._pending_store is not None and self._stage == "open":
            try:
                self._pending_store.save([sent])
            except (AvowError, OSError) as error:
                self._fail(error)

    # ------------------------------------------------------------------- commits

    async def commit(self) -> None:
        """Wait until everything sent before is in the queue. Cancelling the wait has no other effect.

        Raises ChannelFailed if the producer has failed or fails while waiting: its `pending` has the messages that are
        not known to be in the queue.
        """
        self._require_open()
        self._close_all()
        self._require_open()
        number = self._window.last_number
        if self._window.passed(number):
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((number, waiter))
        self._connection.commit(number)
        await waiter

    @property
    def non_acked_message_count(self) -> int:
        """The number of sent messages that are not known to be in the queue."""
        return self._window.messages_count + self._batcher.messages_count

    async def written(self, *, timeout_s: float | None = None) -> list[Written]:
        """The versions of the messages known to be in the queue, by lane; commit first to include all of them.

        Asks the peers. Other writers' messages may lie between these versions. Raises UnknownMessage if a write is so
        old that no peer remembers its id.
        """
        found = []
        for lane, reached in sorted(self._window.reached.items()):
            first = await self._span(reached.first, lane, timeout_s)
            last = first if reached.last == reached.first else await self._span(reached.last, lane, timeout_s)
            found.append(Written(lane, first.first_version, last.last_version, reached.messages))
        return found

    async def _span(self, write_id: bytes, lane: int, timeout_s: float | None) -> Span:
        target = queue_path(self._buffer.queue, "writes", write_id.hex()) + b"?lane=%d" % lane
        answer = await self._cluster.call(b"GET", target, timeout_s=timeout_s)
        return next(span for span in read_written(answer.body).written if span.lane == lane)

    def _progressed(self) -> None:
        """Records of the window have reached the queue."""
        window = self._window
        if self._pending_store is not None:
            with suppress(AvowError, OSError):  # if a record stays in the store, the next run finds it done
                self._pending_store.release(window)
        while self._waiting and window.passed(self._waiting[0][0]):
            waiter = self._waiting.popleft()[1]
            if not waiter.done():
                waiter.set_result(None)
        if self._suspended and window.low:
            self._suspended = False
            self._wake_senders()

    def _wake_senders(self) -> None:
        senders, self._senders = self._senders, deque()
        for waiter in senders:
            if not waiter.done():
                waiter.set_result(None)

    # -------------------------------------------------------------- begin and end

    async def open(self) -> None:
        """Finish the stored records of the previous run, then open a channel. Raises ChannelFailed if that fails."""
        if self._stage != "new":
            raise InvalidRequest(f"this producer is {self._stage} and cannot be opened again. Make another")
        info = await self._buffer.known()
        self._batcher.know(0 if info.pubsub else len(info.lanes))
        self._stage = "open"
        try:
            self._load()
            await self._connection.begin(info, self._pending_store)
        except AvowError as error:
            if not self._window:  # nothing to hand back
                self.abort()
                raise
            self._fail(error)
            self.abort()
            raise self._error() from error
        except BaseException:
            self.abort()
            raise

    def _load(self) -> None:
        if self._store is None:
            return
        self._pending_store = PendingRecordStore(self._store)
        for sent in self._pending_store.load():
            self._window.add(sent)

    async def close(self) -> None:
        """Commit and close the channel. Raises like `commit`; the channel is closed in any case."""
        try:
            await self.commit()
            self._stage = "closed"
        finally:
            self.abort()

    def abort(self) -> None:
        """Close without waiting. Messages not known to be in the queue stay in the store, if there is one."""
        if self._stage == "open":
            self._fail(InvalidRequest("it was aborted by the application"))
        self._connection.halt()
        if self._pending_store is not None:
            self._pending_store.close()
            self._pending_store = None

    def _fail(self, error: Exception) -> None:
        """Fail the producer: fail all waits, and keep the messages that are not known to be in the queue."""
        if self._stage != "open":
            return
        self._stage = "failed"
        self._close_all()
        pending = self._window.messages()
        self._failure = ChannelFailed(
            f"the producer of {self._buffer.queue!r} has failed: {error}; {len(pending)} messages are not known to be "
            "in the queue and are in `pending`. Send them with another producer",
            reason="FAILED",
            name=error.code if isinstance(error, AvowError) else type(error).__name__,
            pending=pending,
        )
        self._failure.__cause__ = error
        self._connection.halt()
        for _, waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(self._error())
        self._waiting.clear()
        self._suspended = False
        self._wake_senders()

    def _require_open(self) -> None:
        if self._failure is not None:
            raise self._error()
        if self._stage != "open":
            raise InvalidRequest(f"this producer is {self._stage}; nothing was sent. Use it inside its `with` block")

    def _error(self) -> ChannelFailed:
        failure = self._failure
        assert failure is not None
        error = ChannelFailed(str(failure), reason=failure.reason, name=failure.name, pending=failure.pending)
        error.__cause__ = failure.__cause__
        return error

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        elif isinstance(error, Exception) and self._failure is None:
            await self._close_after(error)
        else:
            self.abort()

    async def _close_after(self, error: Exception) -> None:
        """The block raised: messages sent before are committed nevertheless, if possible."""
        try:
            await self.close()
        except ChannelFailed as failed:
            error.add_note(f"and {len(failed.pending)} messages are not known to be in the queue: {failed}")
            error.__dict__["pending"] = failed.pending

    def statistics(self) -> dict[str, Any]:
        return {
            "queue": self._buffer.queue,
            "stage": self._stage,
            "sent": self._sent_count,
            "acked": sum(reached.messages for reached in self._window.reached.values()),
            "non_acked": self.non_acked_message_count,
            "records": len(self._window),
            "record_bytes": self._window.size_bytes,
            "suspended": self._suspended,
            "saved": self._pending_store is not None,
            **self._connection.statistics(),
        }
