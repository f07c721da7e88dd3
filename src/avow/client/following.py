"""Following a queue: every lane's messages as they become visible, in one stream.

Each lane is read by a long poll of its own; what they get meets in one short queue, so a slow consumer holds up the
polls and nothing piles up. Order holds within a lane. The lanes of a pub-sub queue come and go with its peers: the
queue is asked for new ones every second, and a lane that has ended and was read to its end is let go.

A subscriber's cursor is where it starts, and moves when a batch is committed: what was read and not committed is read
again next time. That is at-least-once; exactly-once is a matter of storing the version with the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Final

from avow.client.metadata import QueueInfo, queue_path, read_queue
from avow.client.reading import LaneReader, ReadBatch
from avow.errors import AvowError, InvalidRequest, Trimmed, UnknownQueue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from avow.client.cluster import Cluster

POLL_S: Final = 10.0
_LANES_S: Final = 1.0
_PAGES_AHEAD: Final = 2
_QUICK_S: Final = 0.1


class Follower:
    def __init__(
        self,
        cluster: Cluster,
        *,
        queue: str,
        after: Mapping[int, int],
        only: int | None,
        max_bytes: int,
        commit: Callable[[int, int], Awaitable[None]] | None,
    ) -> None:
        self._cluster, self._queue, self._after, self._only = cluster, queue, after, only
        self._max_bytes, self._commit = max_bytes, commit
        self._arrived: asyncio.Queue[list[ReadBatch] | AvowError] = asyncio.Queue(_PAGES_AHEAD)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._ended: set[int] = set()
        self._pubsub = False

    async def pages(self, info: QueueInfo) -> AsyncGenerator[list[ReadBatch], None]:
        self._pubsub = info.pubsub
        self._begin(info)
        watcher = asyncio.get_running_loop().create_task(self._watch_lanes()) if info.pubsub else None
        try:
            while True:
                found = await self._arrived.get()
                if isinstance(found, AvowError):
                    raise found
                yield found
        finally:
            tasks = [*self._tasks.values(), *([watcher] if watcher else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, info: QueueInfo) -> None:
        self._ended |= {lane.lane for lane in info.lanes if lane.ended}
        for lane in info.lanes:
            known = lane.lane in self._tasks
            passed = lane.ended and self._after.get(lane.lane, 0) >= lane.end
            if not known and not passed and self._only in (None, lane.lane):
                after = max(self._after.get(lane.lane, 0), lane.trimmed_to)
                self._tasks[lane.lane] = asyncio.get_running_loop().create_task(self._follow(lane.lane, after))

    async def _follow(self, lane: int, after: int) -> None:
        reader = LaneReader(
            self._cluster, queue=self._queue, lane=lane, after=after, max_bytes=self._max_bytes, commit=self._commit
        )
        while True:
            asked_at = monotonic()
            try:
                page = await reader.fetch(after=after, wait_s=POLL_S)
            except AvowError as error:
                if await self._is_over(lane, error):
                    return
                await asyncio.sleep(_QUICK_S)
                continue
            if page.batches:
                after = page.next_after
                await self._arrived.put(page.batches)
            elif lane in self._ended:
                return
            elif monotonic() - asked_at < POLL_S / 2:  # a peer that does not wait, such as one that is stopping
                await asyncio.sleep(_QUICK_S)

    async def _is_over(self, lane: int, error: AvowError) -> bool:
        """Whether a lane's poll ends with this error. A lane of a pub-sub queue may be gone by now, which is its end,
        or not be known to the peer that was asked yet."""
        if self._pubsub and isinstance(error, InvalidRequest | Trimmed):
            info = read_queue((await self._cluster.call(b"GET", queue_path(self._queue))).body)
            listed = lane in [found.lane for found in info.lanes]
            if not listed or isinstance(error, InvalidRequest):
                return not listed
        await self._arrived.put(error)
        return True

    async def _watch_lanes(self) -> None:
        """A new lane is followed from its first message: nobody can have read it before it was there."""
        while True:
            await asyncio.sleep(_LANES_S)
            try:
                answer = await self._cluster.call(b"GET", queue_path(self._queue))
            except UnknownQueue as error:
                await self._arrived.put(error)
                return
            except AvowError:
                continue  # nobody answers: the polls say so when their time is over
            self._begin(read_queue(answer.body))
