"""The parts of the blocking client that run on the caller's thread; `loop_thread` is the other side.

Most methods of the blocking client submit a coroutine to the loop and wait. They are generated from the async client
(`python -m tools.blocking_client`). The classes here contain the rest, and the generated classes extend them:

    iteration        an iterator fetches one answer at a time from an async generator, not one batch at a time
    bulk sends       `send` posts its message to the loop's thread and does not wait
    closing          the client is closed when the interpreter exits
    pledges          the caller's transaction runs on the caller's thread, between two calls to the coordinator

Switching threads costs about as much as a hundred messages of a batch. So `send` posts in bulk: one switch for all
messages since the loop last ran. A producer's `send` waits only when too many messages are posted. If the producer has
failed by then, a later call raises ChannelFailed, and its `pending` includes those messages.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from avow import errors, limits
from avow.barrier.key import Verdict
from avow.client.message_columns import Headers, Pairs, pairs_of
from avow.client.pledge import Ask, PledgeCalls, too_early
from avow.client.pledge_barriers import blocking_barrier, must_have_transactions
from avow.client.pledge_outcomes import Outcome, OutcomeUnknown, committed_outcome
from avow.client.window import PendingMessage
from avow.errors import AvowError, ChannelFailed, InvalidRequest

if TYPE_CHECKING:
    from avow.client.client import Client
    from avow.client.loop_thread import LoopThread
    from avow.client.outcomes import Done
    from avow.client.producer import Producer
    from avow.client.queue import Queue
    from avow.client.reader import ReadBatch
    from avow.client.subscriber import Subscription
    from avow.wire.record import Buffer

_LEFT_COUNT_MAX: Final = 1_024  # messages posted to the loop's thread before a producer's `send` waits for it
_LEFT_SIZE_BYTES_MAX: Final = 1 * limits.MIB
_TURNS_MAX: Final = 1_000  # of the loop, until a cancelled step has ended

T = TypeVar("T")
B = TypeVar("B")


# -------------------------------------------------------------------------------------------------- iteration


def iterate(thread: LoopThread, found: AsyncGenerator[T, None]) -> Iterator[T]:
    """Iterate over an async generator; leaving the loop closes it."""
    thread.generators.add(found)
    try:
        while (next_one := thread.run(_next(found))) is not None:
            yield next_one
    finally:
        thread.generators.discard(found)
        thread.finish(_end(found))


def iterate_pages(
    thread: LoopThread, pages: AsyncGenerator[list[ReadBatch], None], face: Callable[[LoopThread, ReadBatch], B]
) -> Iterator[list[B]]:
    for batches in iterate(thread, pages):
        yield [face(thread, batch) for batch in batches]


def iterate_batches(
    thread: LoopThread, pages: AsyncGenerator[list[ReadBatch], None], face: Callable[[LoopThread, ReadBatch], B]
) -> Iterator[B]:
    for batches in iterate(thread, pages):
        for batch in batches:
            yield face(thread, batch)


async def _next(found: AsyncGenerator[T, None]) -> T | None:
    return await anext(found, None)


async def _end(found: AsyncGenerator[T, None]) -> None:
    """Close the generator. After an interrupt its cancelled step may still run, and a running one cannot be closed."""
    for _ in range(_TURNS_MAX):
        if not getattr(found, "ag_running", False):  # Python's generators have it; the typing protocol does not
            break
        await asyncio.sleep(0)
    await found.aclose()


# --------------------------------------------------------------------------------------------- client and queue


class CallerClient:
    def __init__(self, thread: LoopThread, client: Client) -> None:
        self._thread, self._client = thread, client
        self._queues: dict[str, Any] = {}  # name -> its blocking queue
        atexit.register(self.close)

    def delete_queue(self, name: str) -> None:
        """Delete a queue with all its messages. Raises UnknownQueue."""
        self._thread.run(self._client.delete_queue(name))
        self._queues.pop(name, None)

    def forget(self, name: str) -> None:
        """Drop what this client has cached about a queue, because a queue of the same name may be a new one."""
        self._thread.call(self._client.forget, name)
        self._queues.pop(name, None)

    def close(self) -> None:
        """Close the client. Writes in flight end as refused or unknown."""
        atexit.unregister(self.close)
        if self._thread.running:
            self._thread.run(self._client.close())
            for found in tuple(self._thread.generators):
                with suppress(RuntimeError):  # another thread waits in it and gets an error: the client is closed
                    self._thread.run(found.aclose())
            self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class CallerQueue:
    def __init__(self, thread: LoopThread, queue: Queue) -> None:
        self._thread, self._queue = thread, queue

    def send(
        self,
        value: Buffer,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        time_ms: int | None = None,
        expected: int | None = None,
        lane: int | None = None,
        write_id: bytes | None = None,
        created_ms: int | None = None,
    ) -> Future[Done]:
        """Send one message. Returns a `concurrent.futures.Future`. Messages sent close together form one batch."""
        if not self._thread.running:
            raise InvalidRequest("this client is closed; nothing was sent. Open a new client")
        waiting: Future[Done] = Future()
        options = {"key": key, "headers": headers, "time_ms": time_ms, "expected": expected, "lane": lane}
        if write_id is not None:
            options |= {"write_id": write_id, "created_ms": created_ms}
        self._thread.post((self._send_now, value, options, waiting))
        return waiting

    def _send_now(self, value: Buffer, options: dict[str, Any], waiting: Future[Done]) -> None:
        def complete(sent: asyncio.Future[Done]) -> None:
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
            self._queue.send(value, **options).add_done_callback(complete)
        except (AvowError, TypeError) as error:
            waiting.set_exception(error)


# ------------------------------------------------------------------------------------------------------ channels


class CallerProducer:
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
        """Send one message. Waits while too much is unacknowledged; the message is in the queue after a commit."""
        self._producer.check(value, key=key, headers=headers, time_ms=time_ms, lane=lane)
        self._left_count += 1
        self._left_bytes += len(value)
        if self._producer.suspended or self._left_count > _LEFT_COUNT_MAX or self._left_bytes > _LEFT_SIZE_BYTES_MAX:
            self._left_count = self._left_bytes = 0
            self._run(self._producer.writable())
        if not self._thread.running:
            raise InvalidRequest("this client is closed; nothing was sent. Open a new client")
        self._thread.post((self._put, bytes(value), key, pairs_of(headers), time_ms, lane))

    def _put(self, value: bytes, key: bytes | None, pairs: Pairs | None, time_ms: int | None, lane: int | None) -> None:
        """Runs on the loop's thread, without a caller to raise to: a refused message is kept for the next call."""
        try:
            self._producer.put(value, key=key, headers=pairs, time_ms=time_ms, lane=lane)
        except AvowError:
            left = PendingMessage(value, key, tuple(pairs or ()), time_ms or 0, "unsent", lane, b"")
            self._refused.append(left)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Messages posted before are put first: the loop's thread runs calls in order."""
        try:
            return self._thread.run(work)
        except ChannelFailed as failed:
            failed.pending = [*failed.pending, *self._refused]
            raise


class CallerSubscription:
    def __init__(self, thread: LoopThread, subscription: Subscription) -> None:
        self._thread, self._subscription = thread, subscription
        self._entered = False

    def _iterate(self, face: Callable[[LoopThread, ReadBatch], B]) -> Iterator[B]:
        if self._entered:
            yield from self._batches(face)
            return
        with self:
            yield from self._batches(face)

    def _batches(self, face: Callable[[LoopThread, ReadBatch], B]) -> Iterator[B]:
        while (batch := self._thread.run(self._next())) is not None:
            yield face(self._thread, batch)

    async def _next(self) -> ReadBatch | None:
        return await anext(self._subscription, None)

    def open(self) -> None:
        """Open a channel to a peer. Raises the peer's refusal."""
        self._thread.run(self._subscription.open())
        self._entered = True

    def close(self) -> None:
        """Release the lanes. Batches that were not committed are delivered to the next reader."""
        self._thread.finish(self._subscription.close())

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# ------------------------------------------------------------------------------------------------------- pledges


class CallerPledge:
    def __init__(self, thread: LoopThread, calls: PledgeCalls) -> None:
        self._thread, self._calls = thread, calls
        self._barrier: Any = None
        self._joined: Any = None

    @contextmanager
    def transaction(self, source: Any, *, checkback: str, ask: Ask | None = None) -> Iterator[Any]:
        """Like `Pledge.transaction`: yields the Connection, the Session, or a cursor of the DB-API connection."""
        must_have_transactions(barrier := blocking_barrier(source, self._calls.gid), source)
        self._thread.run(self._calls.prepare(checkback))
        worked = False
        try:
            with barrier.transaction(source) as place:
                yield place
                worked = True
        except Exception as error:
            outcome = self._decided(error, self._ask(partial(barrier.check_back, source), ask))
            self._calls.report_failure(error, outcome, worked=worked)
        except BaseException:
            self._interrupted()
            raise
        else:
            self._thread.run(self._calls.committed())

    def do_and_submit_db(
        self, source: Any, work: Callable[[Any], Any], *, checkback: str, ask: Ask | None = None
    ) -> Outcome:
        """`work` receives what `transaction` yields. If it raises, the transaction rolls back and the outcome has the
        exception."""
        must_have_transactions(blocking_barrier(source, self._calls.gid), source)

        def within(barrier: Any) -> Any:
            with barrier.transaction(source) as place:
                return work(place)

        return self.do_and_submit(source, within, checkback=checkback, ask=ask)

    def do_and_submit(
        self, source: Any, work: Callable[[Any], Any], *, checkback: str, ask: Ask | None = None
    ) -> Outcome:
        """`work` receives the barrier of `source` and includes it in its own transaction, or in a Redis script.

        If `work` returns, it has committed. If it raises, the barrier is asked whether it has committed.
        """
        barrier = blocking_barrier(source, self._calls.gid)
        self._thread.run(self._calls.prepare(checkback))
        try:
            result = work(barrier)
        except Exception as error:
            return self._decided(error, self._ask(partial(barrier.check_back, source), ask))
        except BaseException:
            self._interrupted()
            raise
        return self._thread.run(self._calls.committed(result=result))

    def join(self, place: Any, *, checkback: str) -> None:
        """Prepare, and insert the barrier row into the open transaction of `place`. Commit that, then call `submit`.

        If this raises AlreadyDecided or AlreadyExists, roll back.
        """
        barrier = blocking_barrier(place, self._calls.gid)
        self._thread.run(self._calls.prepare(checkback))
        try:
            barrier.insert(place)
        except BaseException:
            self._abandon()
            raise
        self._barrier, self._joined = barrier, place

    def submit(self, *, ask: Ask | None = None) -> Outcome:
        """Submit the pledge: without a prepare as a plain message, or after the commit of the transaction it joined.

        After `join` the barrier is asked first: if the transaction is still open this raises InvalidRequest, and if it
        rolled back this returns RolledBack and nothing is delivered. May be repeated.
        """
        if self._joined is None:
            return self._thread.run(self._submit())
        verdict = self._ask(partial(self._barrier.check_back, self._joined), ask)
        if isinstance(verdict, errors.InvalidRequest) or verdict is Verdict.ONGOING:
            raise too_early(self._calls.gid, verdict)
        return self._decided(
            errors.AlreadyDecided(f"the transaction of pledge {self._calls.gid} was not committed"), verdict
        )

    async def _submit(self) -> Outcome:
        self._calls.outcome = committed_outcome(await self._calls.send_submit())
        return self._calls.outcome

    def _decided(self, error: Exception, verdict: Verdict | Exception) -> Outcome:
        return self._thread.run(self._calls.decided(error, verdict))

    def _interrupted(self) -> None:
        """Does not wait for the coordinator, so that Ctrl-C returns at once."""
        self._calls.outcome = OutcomeUnknown(self._calls.gid, reason="interrupted")
        self._abandon()

    def _abandon(self) -> None:
        if self._thread.running:
            self._thread.post((self._calls.abandon,))

    def _ask(self, own: Callable[[], Verdict], ask: Ask | None) -> Verdict | Exception:
        try:
            verdict = own() if ask is None else ask(self._calls.question())
        except Exception as trouble:  # from a database driver: any error means that there is no verdict
            return trouble
        if inspect.isawaitable(verdict):
            return errors.InvalidRequest("`ask` is a coroutine function; the blocking client needs a plain function")
        return verdict
