"""A pledge store over three threads, each with its own connection, and group commit.

    writing    all changes, in groups
    reading    reads of deliveries: one pledge, the next due time, a topic. They do not wait for a sync
    listing    queries of operators: pages of many pledges, which may take seconds without delaying the others

A read sees everything that was answered before it, because a change is answered after its commit. `Performer` is the
part that each database implements.

**Group commit**: one thread performs the waiting operations of many tasks together.

A commit takes as long as a disk sync, whether it has one operation or a thousand. While the thread is in a commit,
operations are collected on the loop; they are its next group. Under load many operations share a sync, and the loop and
the thread communicate twice per group, not per operation.

    loop         a task submits an operation and waits for its outcome
                 the thread is free -> all waiting operations become a group
    thread       perform(operations) -> all outcomes back to the loop, in one call

Tasks that were just answered often submit again at once, and would miss the next commit by microseconds. So the next
group is formed one turn of the loop later, unless at least half as many operations wait as were just answered: then the
disk need not be idle.

The operations of a group are independent, so none may fail because of another: `perform` returns an outcome for each, a
value or an error. If a database refuses the whole transaction, which was rolled back, each operation is performed again
by itself, and only the one that causes the error fails. An error that concerns all of them (no connection, no answer)
is
returned to all.

If a task is cancelled while it waits, its operation may still be performed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, cast

from avow import limits
from avow.errors import AvowError, Busy, InvalidRequest, Offline
from avow.pledge.record import Pledge, Progress
from avow.pledge.store import Filter, Page, Topic
from avow.pledge.stores import operations as ops

log: Final = logging.getLogger("avow.pledge")

Op = TypeVar("Op")

_ENOUGH: Final = 0.5  # fraction of the last group: if so many wait, the next group starts at once
_Asked: TypeAlias = tuple[Any, int, asyncio.Future[Any]]  # operation, its size in bytes, the future of its outcome


class GroupThread(Generic[Op]):
    """`perform` gets at least one operation and returns as many outcomes. It runs only in the thread."""

    def __init__(self, perform: Callable[[Sequence[Op]], Sequence[Any]], *, name: str) -> None:
        self._perform, self._name = perform, name
        self._waiting: deque[_Asked] = deque()
        self._groups: SimpleQueue[list[_Asked] | None] = SimpleQueue()  # at most one; None ends the thread
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ended: asyncio.Future[None] | None = None
        self._performing = self._leaving = self._closing = False
        self._operations_count = self._groups_count = self._largest = self._failures = 0

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(self._loop, self._ended), name=self._name, daemon=True)
        self._thread.start()

    async def ask(self, operation: Op, *, size: int = 0) -> Any:
        """Returns the outcome. Raises Busy if too many wait, Offline if the thread is not running, and its error."""
        return await self.send(operation, size)

    def send(self, operation: Op, size: int) -> asyncio.Future[Any]:
        """The same, for callers that await it at once: a future costs less than a coroutine."""
        loop = self._loop
        if loop is None or self._closing:
            raise Offline("the store is not open; nothing was changed. Start it first")
        if len(self._waiting) >= limits.PLEDGE_WAITING_COUNT:
            raise Busy(
                f"{limits.PLEDGE_WAITING_COUNT} operations are waiting for the store; nothing was changed. Try later"
            )
        future = loop.create_future()
        self._waiting.append((operation, size, future))
        if not self._performing and not self._leaving:
            self._leaving = True
            loop.call_soon(self._start_group)  # together with other operations of this turn
        return future

    async def close(self) -> None:
        """Returns when all operations submitted before have their outcomes."""
        if self._ended is None:
            return
        if not self._closing:
            self._closing = True
            if not self._performing:
                self._start_group()
        await asyncio.shield(self._ended)

    def statistics(self) -> dict[str, int]:
        return {
            "operations": self._operations_count,
            "groups": self._groups_count,
            "largest_group": self._largest,
            "failures": self._failures,
            "waiting": len(self._waiting),
        }

    # -------------------------------------------------------------- on the loop

    def _start_group(self) -> None:
        """If the thread is free, give it the next group, or end it."""
        self._leaving = False
        if self._performing:
            return
        if self._waiting:
            self._performing = True
            self._groups.put(self._next_group())
        elif self._closing:
            self._performing = True
            self._groups.put(None)

    def _next_group(self) -> list[_Asked]:
        waiting, group, size = self._waiting, list[_Asked](), 0
        while waiting and len(group) < limits.PLEDGE_GROUP_COUNT and size < limits.PLEDGE_GROUP_SIZE_BYTES:
            asked = waiting.popleft()
            group.append(asked)
            size += asked[1]
        return group

    def _deliver_outcomes(self, group: Sequence[_Asked], outcomes: Sequence[Any]) -> None:
        self._performing = False
        self._groups_count += 1
        self._operations_count += len(group)
        self._largest = max(self._largest, len(group))
        if self._closing or len(self._waiting) >= _ENOUGH * len(group):
            self._start_group()
        for (_, _, future), outcome in zip(group, outcomes, strict=True):
            failed = isinstance(outcome, Exception)
            self._failures += failed
            if future.done():
                continue  # its task was cancelled
            if failed:
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        if not self._performing and not self._leaving and self._loop is not None:
            self._leaving = True
            self._loop.call_soon(self._loop.call_soon, self._start_group)  # tasks resume, and submit, in the next turn

    # -------------------------------------------------------------- in the thread

    def _run(self, loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
        try:
            while (group := self._groups.get()) is not None:
                outcomes = self._outcomes([operation for operation, _, _ in group])
                loop.call_soon_threadsafe(self._deliver_outcomes, group, outcomes)
            loop.call_soon_threadsafe(_set_done, ended)
        except RuntimeError as error:  # the loop was closed
            log.warning("a thread of the pledge store stopped because its event loop was closed: %s", error)

    def _outcomes(self, operations: Sequence[Op]) -> Sequence[Any]:
        try:
            return self._perform(operations)
        except AvowError as error:
            if len(operations) > 1 and error.definite and not error.retriable:
                return [self._outcomes([operation])[0] for operation in operations]
            return [_again(error) for _ in operations]
        except Exception as error:  # the thread must survive a defect; the callers get the error
            log.exception("internal error in the pledge store; the operations of this group failed")
            return [error] * len(operations)


def _set_done(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def _again(error: AvowError) -> AvowError:
    """A copy for each caller: an exception object accumulates the tracebacks of all that raise it."""
    copied = type(error)(str(error))
    copied.__cause__ = error.__cause__
    return copied


_CLAIM_COUNT_MAX: Final = 1_024


class Performer(Protocol):
    """One connection, used by one thread at a time. It connects when needed, and reconnects after a loss."""

    def prepare(self) -> None:
        """Connect; the writing one also creates missing tables. Raises Offline, Refused."""

    def perform(self, operations: Sequence[Any]) -> Sequence[Any]:
        """An outcome for each operation: a value, or an AvowError. Raises errors that concern all of them: a definite
        and not retriable one if one operation may be the cause; else Offline, Busy or Unknown."""

    def close(self) -> None: ...

    def statistics(self) -> dict[str, int]: ...


class GroupedStore:
    def __init__(self, writing: Performer, reading: Performer, listing: Performer, *, name: str) -> None:
        self._performers = (writing, reading, listing)
        self._write = GroupThread[ops.Writing](writing.perform, name=f"avow-{name}-write")
        self._read = GroupThread[ops.Reading](reading.perform, name=f"avow-{name}-read")
        self._list = GroupThread[ops.Reading](listing.perform, name=f"avow-{name}-list")

    async def start(self) -> None:
        """Connect, and create missing tables. Raises Offline or Refused; it may be called again then."""
        try:
            for performer in self._performers:
                await asyncio.to_thread(performer.prepare)
        except BaseException:
            await self._disconnect()
            raise
        for thread in (self._write, self._read, self._list):
            thread.start()

    async def close(self) -> None:
        """Performs all operations submitted before. Idempotent."""
        for thread in (self._write, self._read, self._list):
            await thread.close()
        await self._disconnect()

    async def _disconnect(self) -> None:
        for performer in reversed(self._performers):
            await asyncio.to_thread(performer.close)

    def statistics(self) -> dict[str, int]:
        return {
            **self._write.statistics(),
            **{f"read_{name}": value for name, value in self._read.statistics().items()},
            **{f"list_{name}": value for name, value in self._list.statistics().items()},
            **self._performers[0].statistics(),
        }

    # -------------------------------------------------------------- pledges

    async def insert(self, pledge: Pledge) -> Pledge | None:
        operation = ops.inserting(pledge)
        row = operation.row
        known: Pledge | None = await self._write.send(operation, len(row.content) + len(row.progress))
        return known

    async def load(self, gid: str) -> Pledge | None:
        return cast("Pledge | None", await self._read.ask(ops.Load(ops.id_bytes(gid))))

    async def swap(self, before: Pledge, progress: Progress, *, release: bool = False) -> Pledge | None:
        operation = ops.swapping(before, progress, release=release)
        after: Pledge | None = await self._write.send(operation, len(operation.row.progress))
        return after

    async def claim(self, *, owner: str, now_ms: int, lease_ms: int, limit: int) -> list[Pledge]:
        if limit < 1:
            return []
        ops.check_times(now_ms, lease_ms, now_ms + lease_ms)
        operation = ops.Claim(ops.owner_bytes(owner), now_ms, now_ms + lease_ms, min(limit, _CLAIM_COUNT_MAX))
        return cast("list[Pledge]", await self._write.ask(operation))

    async def claim_one(self, gid: str, *, owner: str, now_ms: int, lease_ms: int) -> Pledge | None:
        ops.check_times(now_ms, lease_ms, now_ms + lease_ms)
        operation = ops.ClaimOne(ops.id_bytes(gid), ops.owner_bytes(owner), now_ms, now_ms + lease_ms)
        return cast("Pledge | None", await self._write.ask(operation))

    async def next_due_ms(self) -> int:
        return cast("int", await self._read.ask(ops.NextDue()))

    async def find(self, wanted: Filter, *, position: str = "", limit: int = 100) -> Page:
        limit = _page_size(limit)
        gid = ops.id_bytes(wanted.gid) if wanted.gid else b""
        operation = ops.Find(wanted, gid, ops.position_of(position), limit)
        return cast("Page", await self._list.ask(operation))

    async def forget(self, *, finished_before_ms: int, limit: int) -> int:
        ops.check_times(finished_before_ms)
        if limit < 1:
            return 0
        operation = ops.Forget(finished_before_ms, min(limit, limits.PLEDGE_PAGE_COUNT_MAX))
        return cast("int", await self._write.ask(operation))

    # -------------------------------------------------------------- topics

    async def load_topic(self, name: str) -> Topic | None:
        return cast("Topic | None", await self._read.ask(ops.LoadTopic(ops.name_bytes(name))))

    async def swap_topic(
        self, before: Topic | None, subscribers: Sequence[tuple[str, str]], *, name: str, now_ms: int
    ) -> bool:
        if before is None and not subscribers:
            return await self.load_topic(name) is None
        operation = ops.swapping_topic(before, subscribers, name=name, now_ms=now_ms)
        return cast("bool", await self._write.ask(operation, size=len(operation.subscribers)))

    async def list_topics(self, *, position: str = "", limit: int = 100) -> tuple[list[Topic], str]:
        after = ops.name_bytes(position) if position else b""
        page: ops.Topics = await self._list.ask(ops.ListTopics(after, _page_size(limit)))
        return page.topics, page.topics[-1].name if page.more else ""


def _page_size(limit: int) -> int:
    if limit < 1:
        raise InvalidRequest(f"`limit` must be at least 1, not {limit}; nothing was changed")
    return min(limit, limits.PLEDGE_PAGE_COUNT_MAX)
