"""Streaming into a queue: many messages on their way, one word for all of them.

    async with client.producer("orders") as producer:
        await producer.send(b"value", key=b"customer 7")
        await producer.commit()         # everything sent before is in the queue: a quorum has it, each message once

Messages of one turn of the event loop become one record per lane, and records travel over a channel to a peer, whose
acknowledgement of a commit means that a quorum has stored them. Nobody waits for single messages: `send` waits only
while too much is unacknowledged, and the producer commits by itself often enough that acknowledgements keep coming.

        turn of the loop          Window                     Channel                    peer
    send ─► open batches ─► waiting ── given ──────────► records, commits ─────────► quorum
                               ▲         │ acknowledged: gone
                               └─────────┘ the channel failed: `settling`, then another one

A channel that fails is the producer's business, not its caller's. What may have happened is found out with the write
ids of the records, in their order; then a channel to another peer goes on. A caller hears of it only if that takes
longer than the client's timeout, or something is refused for good: ChannelFailed, with every message that is not known
to be in the queue.
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
from avow.client.batching import Batch, Headers
from avow.client.carrying import Carrier
from avow.client.columns import columns_of, split
from avow.client.metadata import queue_path
from avow.client.outcomes import Span, read_written
from avow.client.saved import Saved, Store
from avow.client.turn import RECORD_SIZE_BYTES, Turn
from avow.client.window import UNBOUND, Sent, Window, message_of
from avow.errors import AvowError, ChannelFailed, InvalidRequest

if TYPE_CHECKING:
    from avow.client.cluster import Cluster
    from avow.client.outbox import Outbox
    from avow.wire.record import Buffer


class Written(Struct, frozen=True, gc=False):
    """Messages of one producer in one lane, from the first to the last."""

    lane: int
    first_version: int
    last_version: int
    messages: int


class Producer:
    """Made by `Client.producer`. Belongs to the client's event loop; used as a context, which commits at its end."""

    def __init__(
        self,
        cluster: Cluster,
        outbox: Outbox,
        *,
        store: Store | None = None,
        pending_count: int = limits.CHANNEL_PENDING_COUNT,
        pending_bytes: int = limits.CHANNEL_PENDING_SIZE_BYTES,
    ) -> None:
        self._cluster, self._outbox, self._store = cluster, outbox, store
        self._window = Window(count_max=pending_count, size_bytes_max=pending_bytes)
        self._saved: Saved | None = None
        self._carrier = Carrier(cluster, outbox, self._window, on_progress=self._progressed, on_fail=self._fail)
        self._loop = asyncio.get_running_loop()
        self._turn = Turn(outbox.queue)
        self._sent_count = 0
        self._suspended = self._scheduled = False
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()  # commits, by the record they wait for
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
        """One message. Returns at once unless too much is unacknowledged; it is in the queue when a commit says so."""
        if self._suspended or self._stage != "open":
            await self.writable()
        full = self._put(value, key, headers, time_ms, lane)
        if full is not None:
            self._close(full)
            await asyncio.sleep(0)  # let it leave

    async def send_many(
        self,
        values: Sequence[Buffer],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        times: Sequence[int] | None = None,
        lane: int | None = None,
    ) -> None:
        """Many messages, in records of a good size. Cancelled halfway, those before have been sent."""
        await self.writable()
        columns = columns_of(values, keys=keys, headers=headers, times=times)
        for number, rows in self._turn.groups(len(values), keys=keys, lane=lane):
            for span in split(columns.sizes(rows), room_bytes=RECORD_SIZE_BYTES):
                await self.writable()
                self._close(number)
                batch = Batch(deadline=0.0)
                columns.fill(batch, rows[span.start : span.stop])
                self._turn.open[number] = batch
                self._close(number)
                self._sent_count += len(span)
                self._schedule()
                await asyncio.sleep(0)  # let it leave

    def check(
        self,
        value: Buffer,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        time_ms: int | None = None,
        lane: int | None = None,
    ) -> None:
        """Raises what is wrong with a message. May be called on any thread."""
        self._turn.check(value, key=key, headers=headers, time_ms=time_ms, lane=lane)

    def put(
        self,
        value: Buffer,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        time_ms: int | None = None,
        lane: int | None = None,
    ) -> None:
        """As `send`, without waiting, for who has looked at `suspended`: it may go beyond the limit by this one."""
        self._require_open()
        full = self._put(value, key, headers, time_ms, lane)
        if full is not None:
            self._close(full)

    def _put(
        self, value: Buffer, key: bytes | None, headers: Headers | None, time_ms: int | None, lane: int | None
    ) -> int | None:
        """The lane, if what waits for it is a whole record now."""
        if not self._scheduled:
            self._schedule()
        if type(value) is bytes and key is None and headers is None and time_ms is None and lane is None:
            full = self._turn.put_plain(value)
        else:
            full = self._turn.put(value, key=key, headers=headers, time_ms=time_ms, lane=lane)
        self._sent_count += 1
        return full

    @property
    def suspended(self) -> bool:
        return self._suspended

    async def writable(self) -> None:
        """Returns when a message may be sent. Raises ChannelFailed when the producer has failed, or does meanwhile."""
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
        """The end of a turn: what was sent in it becomes records, is saved, and leaves."""
        self._scheduled = False
        self._close_all()
        self._turn.pass_on()
        if self._failure is None:
            self._carrier.pump()

    def _close_all(self) -> None:
        for lane in tuple(self._turn.open):
            self._close(lane)

    def _close(self, lane: int) -> None:
        batch = self._turn.open.pop(lane, None)
        if batch is None:
            return
        record = batch.encode()
        if lane == UNBOUND and self._carrier.lane is not None:
            lane = self._carrier.lane
        sent = Sent(message_of(record, lane=lane), lane=lane, count=batch.count, write_id=batch.write_id)
        self._window.add(sent)
        self._suspended = self._suspended or self._window.full
        if self._saved is not None and self._stage == "open":
            try:
                self._saved.save([sent])
            except (AvowError, OSError) as error:
                self._fail(error)

    # ------------------------------------------------------------------- commits

    async def commit(self) -> None:
        """Returns when everything sent before is in the queue. Giving up the wait changes nothing.

        Raises ChannelFailed when the producer has failed, or does meanwhile: `pending` are the messages that are not
        known to be in the queue.
        """
        self._require_open()
        self._close_all()
        self._require_open()
        number = self._window.last_number
        if self._window.passed(number):
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((number, waiter))
        self._carrier.commit(number)
        await waiter

    @property
    def non_acked_message_count(self) -> int:
        """Messages that were sent and are not known to be in the queue."""
        return self._window.messages_count + self._turn.messages_count

    async def written(self, *, timeout_s: float | None = None) -> list[Written]:
        """Where what is known to be in the queue stands, by lane. The peers are asked: commit first for all of it.

        Messages of others may stand in between. Raises UnknownMessage for what is so long ago that no peer remembers.
        """
        found = []
        for lane, reached in sorted(self._window.reached.items()):
            first = await self._span(reached.first, lane, timeout_s)
            last = first if reached.last == reached.first else await self._span(reached.last, lane, timeout_s)
            found.append(Written(lane, first.first_version, last.last_version, reached.messages))
        return found

    async def _span(self, write_id: bytes, lane: int, timeout_s: float | None) -> Span:
        target = queue_path(self._outbox.queue, "writes", write_id.hex()) + b"?lane=%d" % lane
        answer = await self._cluster.call(b"GET", target, timeout_s=timeout_s)
        return next(span for span in read_written(answer.body).written if span.lane == lane)

    def _progressed(self) -> None:
        """Something of the window has reached the queue."""
        window = self._window
        if self._saved is not None:
            with suppress(AvowError, OSError):  # what stays in a store is found done by the next run
                self._saved.release(window)
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
        """Reach a peer, after settling what a store holds of the run before: ChannelFailed when that fails."""
        if self._stage != "new":
            raise InvalidRequest(f"this producer is {self._stage}; make another")
        info = await self._outbox.known()
        self._turn.know(0 if info.pubsub else len(info.lanes))
        self._stage = "open"
        try:
            self._load()
            await self._carrier.begin(info, self._saved)
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
        self._saved = Saved(self._store)
        for sent in self._saved.load():
            self._window.add(sent)

    async def close(self) -> None:
        """Commit, wait, and let go of the channel. Raises as `commit` does, and has let go all the same."""
        try:
            await self.commit()
            self._stage = "closed"
        finally:
            self.abort()

    def abort(self) -> None:
        """Let go without waiting. What is not known to be in the queue stays in the store, if there is one."""
        if self._stage == "open":
            self._fail(InvalidRequest("it was aborted"))
        self._carrier.halt()
        if self._saved is not None:
            self._saved.close()
            self._saved = None

    def _fail(self, error: Exception) -> None:
        """The end of it all: whoever waits is told, and everything that is not known to be in the queue is kept."""
        if self._stage != "open":
            return
        self._stage = "failed"
        self._close_all()
        pending = self._window.messages()
        self._failure = ChannelFailed(
            f"the producer of {self._outbox.queue!r} is over: {error}; {len(pending)} messages are not known to be in "
            "the queue and are handed back. Send them with another",
            reason="FAILED",
            name=error.code if isinstance(error, AvowError) else type(error).__name__,
            pending=pending,
        )
        self._failure.__cause__ = error
        self._carrier.halt()
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
            raise InvalidRequest(f"this producer is {self._stage}; nothing was sent. Use it inside its `async with`")

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
        """What was sent before the block raised was sent: it is committed all the same, if that is possible."""
        try:
            await self.close()
        except ChannelFailed as failed:
            error.add_note(f"and {len(failed.pending)} messages are not known to be in the queue: {failed}")
            error.__dict__["pending"] = failed.pending

    def statistics(self) -> dict[str, Any]:
        return {
            "queue": self._outbox.queue,
            "stage": self._stage,
            "sent": self._sent_count,
            "acked": sum(reached.messages for reached in self._window.reached.values()),
            "non_acked": self.non_acked_message_count,
            "records": len(self._window),
            "record_bytes": self._window.size_bytes,
            "suspended": self._suspended,
            "saved": self._saved is not None,
            **self._carrier.statistics(),
        }
