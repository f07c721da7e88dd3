"""Group commit: one thread that performs together what many tasks are waiting for.

A commit takes as long as a disk needs to sync, whether it holds one operation or a thousand. While the thread sits in
one commit, operations gather; it then takes all of them into the next. Under load the cost of a sync is shared by
everything that came in the meantime.

Tasks that were just answered often ask again at once, and would miss the next commit by microseconds. The thread
therefore lets the loop turn twice before it goes on, for no longer than a tenth of the time the last commit took.

    task         asks: its operation into the queue, and waits for its own outcome
    thread       takes all that waits -> perform(operations) -> outcomes back to the loop, in one call -> lets it turn

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
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import Any, Final, Generic, NamedTuple, TypeVar

from avow import limits
from avow.errors import AvowError, Busy, Offline

log = logging.getLogger("avow.pledge")

Op = TypeVar("Op")

_PATIENCE: Final = 0.1  # of what the last group took
_PATIENCE_S_MAX: Final = 0.002


class _Asked(NamedTuple):
    operation: Any
    size: int
    future: asyncio.Future[Any]


class GroupThread(Generic[Op]):
    """`perform` gets at least one operation, and answers with as many outcomes. It runs in the thread only."""

    def __init__(self, perform: Callable[[Sequence[Op]], Sequence[Any]], *, name: str) -> None:
        self._perform, self._name = perform, name
        self._queue: SimpleQueue[_Asked | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ended: asyncio.Future[None] | None = None
        self._turned = threading.Event()
        self._operations = self._groups = self._largest = self._failures = 0

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    async def ask(self, operation: Op, *, size: int = 0) -> Any:
        """Its outcome. Raises Busy when too many wait, Offline when the thread is not running, and what came of it."""
        loop = self._loop
        if loop is None:
            raise Offline("the store is not open; nothing was changed. Start it first")
        if self._queue.qsize() >= limits.PLEDGE_WAITING_COUNT:
            raise Busy(f"{limits.PLEDGE_WAITING_COUNT} operations wait for the store; nothing was changed. Try later")
        asked = _Asked(operation, size, loop.create_future())
        self._queue.put(asked)
        return await asked.future

    async def close(self) -> None:
        """Returns when everything asked before has its outcome."""
        if self._ended is None:
            return
        if self._loop is not None:
            self._loop = None
            self._queue.put(None)
        await asyncio.shield(self._ended)

    def statistics(self) -> dict[str, int]:
        return {
            "operations": self._operations,
            "groups": self._groups,
            "largest_group": self._largest,
            "failures": self._failures,
            "waiting": self._queue.qsize(),
        }

    def _hand_out(self, loop: asyncio.AbstractEventLoop, group: Sequence[_Asked], outcomes: Sequence[Any]) -> None:
        for asked, outcome in zip(group, outcomes, strict=True):
            if asked.future.done():
                continue  # its task was cancelled
            if isinstance(outcome, Exception):
                asked.future.set_exception(outcome)
            else:
                asked.future.set_result(outcome)
        loop.call_soon(loop.call_soon, self._turned.set)  # tasks wake in the next turn, and ask in it

    # -------------------------------------------------------------- in the thread

    def _run(self) -> None:
        ended = self._ended
        assert ended is not None
        loop = ended.get_loop()
        try:
            while (first := self._queue.get()) is not None:
                group = self._gather(first)
                began = monotonic()
                outcomes = self._outcomes([asked.operation for asked in group])
                patience_s = min((monotonic() - began) * _PATIENCE, _PATIENCE_S_MAX)
                self._count(group, outcomes)
                self._turned.clear()
                loop.call_soon_threadsafe(partial(self._hand_out, loop, group, outcomes))
                self._turned.wait(patience_s)
            loop.call_soon_threadsafe(partial(_settle, ended))
        except RuntimeError as error:  # the loop was closed: nobody is there to be told
            log.warning("a store's thread ends with its loop: %s", error)

    def _gather(self, first: _Asked) -> list[_Asked]:
        group, size = [first], first.size
        while len(group) < limits.PLEDGE_GROUP_COUNT and size < limits.PLEDGE_GROUP_SIZE_BYTES and self._queue.qsize():
            asked = self._queue.get()
            if asked is None:
                self._queue.put(None)  # nothing is put behind it
                break
            group.append(asked)
            size += asked.size
        return group

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

    def _count(self, group: Sequence[_Asked], outcomes: Sequence[Any]) -> None:
        self._groups += 1
        self._operations += len(group)
        self._largest = max(self._largest, len(group))
        self._failures += sum(isinstance(outcome, Exception) for outcome in outcomes)


def _settle(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def _again(error: AvowError) -> AvowError:
    """One for each who waits: a raised exception collects the traces of all that raise it."""
    copied = type(error)(str(error))
    copied.__cause__ = error.__cause__
    return copied
