"""Waits on a channel: for a commit's acknowledgement, for room to send, for a message, for the end.

Messages have no futures. A commit has a future only if it is awaited, and a cancelled wait is removed: an application
may await one commit a thousand times, each time with a timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TypeAlias

from avow.errors import ChannelFailed

Callback: TypeAlias = Callable[[], None]
_Wait: TypeAlias = tuple[int, int, "asyncio.Future[None] | Callback"]


class Waiters:
    """Futures that are all completed by the same event."""

    def __init__(self) -> None:
        self._futures: dict[asyncio.Future[None], None] = {}

    async def wait(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures[future] = None
        try:
            await future
        finally:
            self._futures.pop(future, None)

    def wake(self) -> None:
        futures, self._futures = self._futures, {}
        for future in futures:
            if not future.done():
                future.set_result(None)


class CommitWaits:
    """Callbacks and futures by commit id. An ack completes all that wait for its commit or an older one."""

    def __init__(self, call: Callable[[Callback], None]) -> None:
        self._call = call
        self._waits: list[_Wait] = []  # a heap; equal commit ids are ordered by registration
        self._order = count()
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._waits)

    def add_callback(self, commit_id: int, callback: Callback) -> None:
        heappush(self._waits, (commit_id, next(self._order), callback))

    async def wait(self, commit_id: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._waits, (commit_id, next(self._order), future))
        try:
            await future
        except asyncio.CancelledError:
            self._forget_cancelled()
            raise

    def _forget_cancelled(self) -> None:
        self._cancelled += 1
        if self._cancelled * 2 > len(self._waits):
            self._waits = [wait for wait in self._waits if not _cancelled(wait)]
            heapify(self._waits)
            self._cancelled = 0

    def acked(self, commit_id: int) -> None:
        while self._waits and self._waits[0][0] <= commit_id:
            wait = heappop(self._waits)[2]
            if not isinstance(wait, asyncio.Future):
                self._call(wait)
            elif wait.cancelled():
                self._cancelled -= 1
            else:
                wait.set_result(None)

    def fail(self, error: Callable[[], ChannelFailed]) -> None:
        """Fail all futures. Callbacks are dropped: they are called on success only."""
        waits, self._waits, self._cancelled = self._waits, [], 0
        for _, _, wait in sorted(waits, key=lambda one: one[:2]):
            if isinstance(wait, asyncio.Future) and not wait.done():
                wait.set_exception(error())


def _cancelled(wait: _Wait) -> bool:
    return isinstance(wait[2], asyncio.Future) and wait[2].cancelled()
