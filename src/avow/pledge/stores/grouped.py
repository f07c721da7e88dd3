"""The contract of a pledge store over three threads, each with a connection of its own.

    writing    everything that changes something, in groups
    reading    what work waits for: one pledge, the next due time, a topic. It does not wait for a sync
    listing    what people wait for: pages of many pledges, which may take seconds and hold up nobody

Reads see everything that was answered before they were asked, because an answer is given after the commit. What a
database must do itself is in `Performer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Protocol, cast

from avow import limits
from avow.errors import InvalidRequest
from avow.pledge.record import Pledge, Progress
from avow.pledge.store import Filter, Page, Topic
from avow.pledge.stores import operations as ops
from avow.pledge.stores.grouping import GroupThread

_CLAIM_COUNT_MAX: Final = 1_024


class Performer(Protocol):
    """One connection, used by one thread at a time. It connects when it has to, and again after a loss."""

    def prepare(self) -> None:
        """Connect; of the writing one: make what is missing of the tables. Raises Offline, Refused."""

    def perform(self, operations: Sequence[Any]) -> Sequence[Any]:
        """An outcome for each: a value, or an AvowError that is its own. Raises what is true of all of them:
        definite and not retriable, when it may be one operation's fault; else Offline, Busy or Unknown."""

    def close(self) -> None: ...

    def statistics(self) -> dict[str, int]: ...


class GroupedStore:
    def __init__(self, writing: Performer, reading: Performer, listing: Performer, *, name: str) -> None:
        self._performers = (writing, reading, listing)
        self._write = GroupThread[ops.Writing](writing.perform, name=f"avow-{name}-write")
        self._read = GroupThread[ops.Reading](reading.perform, name=f"avow-{name}-read")
        self._list = GroupThread[ops.Reading](listing.perform, name=f"avow-{name}-list")

    async def start(self) -> None:
        """Connect, and make what is missing. Raises Offline, or Refused; it may be called again then."""
        try:
            for performer in self._performers:
                await asyncio.to_thread(performer.prepare)
        except BaseException:
            await self._disconnect()
            raise
        for thread in (self._write, self._read, self._list):
            thread.start()

    async def close(self) -> None:
        """Everything asked before is performed first. Idempotent."""
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
        raise InvalidRequest(f"a page holds at least one, {limit} were asked for; nothing was changed")
    return min(limit, limits.PLEDGE_PAGE_COUNT_MAX)
