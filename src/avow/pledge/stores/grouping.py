"""Group commit: one thread that performs together what many tasks are waiting for.

A commit takes as long as a disk needs to sync, whether it holds one operation or a thousand. While the thread sits in
one commit, operations gather on the loop; all of them are its next group. Under load the cost of a sync is shared by
everything that came in the meantime, and the two sides meet twice for a group, not for an operation.

    loop         a task asks: its operation is gathered, and it waits for its own outcome
                 the thread is free -> all that is gathered becomes a group
    thread       perform(operations) -> outcomes back to the loop, in one call

Tasks that were just answered often ask again at once, and would miss the next commit by microseconds. So the loop turns
before the next group leaves, unless nearly as many wait as were just answered: then the disk need not stand still.

Operations of a group know nothing of each other, so none may suffer for another: `perform` gives each its own outcome,
a value or an error. When a database refuses the whole transaction, which was rolled back, each is performed again
alone: the one to blame fails, its neighbours do not. What concerns all of them (no connection, an answer that never
came) is told to all of them.

A task that is cancelled while it waits does not take its operation back: it may still be performed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeAlias, TypeVar

from avow import limits
from avow.errors import AvowError, Busy, Offline

log = logging.getLogger("avow.pledge")

Op = TypeVar("Op")

_ENOUGH: Final = 0.5  # of what was just answered: so many need not wait for more
_Asked: TypeAlias = tuple[Any, int, asyncio.Future[Any]]  # operation, size in bytes, who waits for its outcome


class GroupThread(Generic[Op]):
    """`perform` gets at least one operation, and answers with as many outcomes. It runs in the thread only."""

    def __init__(self, perform: Callable[[Sequence[Op]], Sequence[Any]], *, name: str) -> None:
        self._perform, self._name = perform, name
        self._gathered: deque[_Asked] = deque()
        self._groups: SimpleQueue[list[_Asked] | None] = SimpleQueue()  # one at a time; None: it ends
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
        """Its outcome. Raises Busy when too many wait, Offline when the thread is not running, and what came of it."""
        return await self.send(operation, size)

    def send(self, operation: Op, size: int) -> asyncio.Future[Any]:
        """The same for who awaits it at once: a future costs less than a coroutine around it."""
        loop = self._loop
        if loop is None or self._closing:
            raise Offline("the store is not open; nothing was changed. Start it first")
        if len(self._gathered) >= limits.PLEDGE_WAITING_COUNT:
            raise Busy(f"{limits.PLEDGE_WAITING_COUNT} operations wait for the store; nothing was changed. Try later")
        future = loop.create_future()
        self._gathered.append((operation, size, future))
        if not self._performing and not self._leaving:
            self._leaving = True
            loop.call_soon(self._leave)  # with what else comes in this turn
        return future

    async def close(self) -> None:
        """Returns when everything asked before has its outcome."""
        if self._ended is None:
            return
        if not self._closing:
            self._closing = True
            if not self._performing:
                self._leave()
        await asyncio.shield(self._ended)

    def statistics(self) -> dict[str, int]:
        return {
            "operations": self._operations_count,
            "groups": self._groups_count,
            "largest_group": self._largest,
            "failures": self._failures,
            "waiting": len(self._gathered),
        }

    # -------------------------------------------------------------- on the loop

    def _leave(self) -> None:
        """The next group to the thread, which is free; or its end."""
        self._leaving = False
        if self._performing:
            return
        if self._gathered:
            self._performing = True
            self._groups.put(self._next_group())
        elif self._closing:
            self._performing = True
            self._groups.put(None)

    def _next_group(self) -> list[_Asked]:
        gathered, group, size = self._gathered, list[_Asked](), 0
        while gathered and len(group) < limits.PLEDGE_GROUP_COUNT and size < limits.PLEDGE_GROUP_SIZE_BYTES:
            asked = gathered.popleft()
            group.append(asked)
            size += asked[1]
        return group

    def _hand_out(self, group: Sequence[_Asked], outcomes: Sequence[Any]) -> None:
        self._performing = False
        self._groups_count += 1
        self._operations_count += len(group)
        self._largest = max(self._largest, len(group))
        if self._closing or len(self._gathered) >= _ENOUGH * len(group):
            self._leave()
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
            self._loop.call_soon(self._loop.call_soon, self._leave)  # tasks wake in the next turn, and ask in it

    # -------------------------------------------------------------- in the thread

    def _run(self, loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
        try:
            while (group := self._groups.get()) is not None:
                outcomes = self._outcomes([operation for operation, _, _ in group])
                loop.call_soon_threadsafe(self._hand_out, group, outcomes)
            loop.call_soon_threadsafe(_settle, ended)
        except RuntimeError as error:  # the loop was closed: nobody is there to be told
            log.warning("a store's thread ends with its loop: %s", error)

    def _outcomes(self, operations: Sequence[Op]) -> Sequence[Any]:
        try:
            return self._perform(operations)
        except AvowError as error:
            if len(operations) > 1 and error.definite and not error.retriable:
                return [self._outcomes([operation])[0] for operation in operations]
            return [_again(error) for _ in operations]
        except Exception as error:  # the thread outlives a defect; those who asked hear of it
            log.exception("a store failed unexpectedly")
            return [error] * len(operations)


def _settle(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def _again(error: AvowError) -> AvowError:
    """One for each who waits: a raised exception collects the traces of all that raise it."""
    copied = type(error)(str(error))
    copied.__cause__ = error.__cause__
    return copied
