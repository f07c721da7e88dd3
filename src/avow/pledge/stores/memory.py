"""Pledges in memory, for tests and experiments: a complete store, but nothing survives a restart.

Due pledges are in a heap, with their revision and fence. An item whose pledge has changed since is dropped when it
comes to the top, so a change costs one push and no search.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from avow.pledge.record import NEVER_MS, UNFINISHED, Pledge, Progress
from avow.pledge.store import Filter, Page, Topic
from avow.pledge.stores.operations import inserting, position_of, swapping, swapping_topic

_FORGETTABLE: Final = ("succeeded", "failed")


class MemoryStore:
    def __init__(self) -> None:
        self._pledges: dict[str, Pledge] = {}
        self._due: list[tuple[int, str, int, int]] = []  # due_ms, gid, revision, fence
        self._topics: dict[str, Topic] = {}
        self.writes_count = self.reads_count = 0

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    # ------------------------------------------------------------------------------------------ pledges

    async def insert(self, pledge: Pledge) -> Pledge | None:
        self.writes_count += 1
        inserting(pledge)  # refuses what other stores refuse
        known = self._pledges.get(pledge.gid)
        if known is None:
            self._keep(pledge)
        return known

    async def load(self, gid: str) -> Pledge | None:
        self.reads_count += 1
        return self._pledges.get(gid)

    async def swap(self, before: Pledge, progress: Progress, *, release: bool = False) -> Pledge | None:
        self.writes_count += 1
        after = swapping(before, progress, release=release).after
        known = self._pledges.get(before.gid)
        if known is None or _version(known) != _version(before):
            return None
        self._keep(after)
        return after

    async def claim(self, *, owner: str, now_ms: int, lease_ms: int, limit: int) -> list[Pledge]:
        self.writes_count += 1
        claimed: list[Pledge] = []
        while self._due and self._due[0][0] <= now_ms and len(claimed) < limit:
            first = heapq.heappop(self._due)
            pledge = self._current(first)
            if pledge is not None:
                claimed.append(self._lease(pledge, owner=owner, until_ms=now_ms + lease_ms))
        return claimed

    async def claim_one(self, gid: str, *, owner: str, now_ms: int, lease_ms: int) -> Pledge | None:
        self.writes_count += 1
        pledge = self._pledges.get(gid)
        if pledge is None or pledge.status not in UNFINISHED:
            return None
        if pledge.owner not in ("", owner) and pledge.lease_until_ms > now_ms:
            return None
        return self._lease(pledge, owner=owner, until_ms=now_ms + lease_ms)

    async def next_due_ms(self) -> int:
        self.reads_count += 1
        while self._due and self._current(self._due[0]) is None:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else NEVER_MS

    async def find(self, wanted: Filter, *, position: str = "", limit: int = 100) -> Page:
        self.reads_count += 1
        found = sorted(
            (pledge for pledge in self._pledges.values() if _matches(pledge, wanted)), key=_newest, reverse=True
        )
        before = position_of(position)
        if before is not None:
            found = [pledge for pledge in found if _newest(pledge) < before]
        page = found[:limit]
        more = f"{page[-1].progress.created_ms}-{page[-1].gid}" if len(found) > limit else ""
        return Page(tuple(page), more)

    async def forget(self, *, finished_before_ms: int, limit: int) -> int:
        self.writes_count += 1
        over = [
            gid
            for gid, pledge in self._pledges.items()
            if pledge.status in _FORGETTABLE and pledge.progress.finished_ms < finished_before_ms
        ]
        for gid in over[:limit]:
            del self._pledges[gid]
        return len(over[:limit])

    def _keep(self, pledge: Pledge) -> None:
        self._pledges[pledge.gid] = pledge
        if pledge.status in UNFINISHED:
            due_ms = max(pledge.progress.next_at_ms, pledge.lease_until_ms)
            heapq.heappush(self._due, (due_ms, pledge.gid, pledge.revision, pledge.fence))

    def _current(self, item: tuple[int, str, int, int]) -> Pledge | None:
        _, gid, revision, fence = item
        pledge = self._pledges.get(gid)
        if pledge is None or (pledge.revision, pledge.fence) != (revision, fence):
            return None
        return pledge if pledge.status in UNFINISHED else None

    def _lease(self, pledge: Pledge, *, owner: str, until_ms: int) -> Pledge:
        leased = replace(pledge, owner=owner, lease_until_ms=until_ms, fence=pledge.fence + 1)
        self._keep(leased)
        return leased

    # ------------------------------------------------------------------------------------------- topics

    async def load_topic(self, name: str) -> Topic | None:
        self.reads_count += 1
        return self._topics.get(name)

    async def swap_topic(
        self, before: Topic | None, subscribers: Sequence[tuple[str, str]], *, name: str, now_ms: int
    ) -> bool:
        self.writes_count += 1
        swapping_topic(before, subscribers, name=name, now_ms=now_ms)
        known = self._topics.get(name)
        if known != before:
            return False
        if not subscribers:
            self._topics.pop(name, None)
            return True
        version, created_ms = (1, now_ms) if known is None else (known.version + 1, known.created_ms)
        self._topics[name] = Topic(name, tuple(subscribers), version, created_ms, now_ms)
        return True

    async def list_topics(self, *, position: str = "", limit: int = 100) -> tuple[list[Topic], str]:
        self.reads_count += 1
        names = sorted(name for name in self._topics if name > position)
        page = [self._topics[name] for name in names[:limit]]
        return page, page[-1].name if len(names) > limit else ""

    def statistics(self) -> dict[str, int]:
        return {"pledges": len(self._pledges), "writes": self.writes_count, "reads": self.reads_count}


def _matches(pledge: Pledge, wanted: Filter) -> bool:
    created_ms = pledge.progress.created_ms
    return (
        (not wanted.gid or pledge.gid == wanted.gid)
        and (not wanted.statuses or pledge.status in wanted.statuses)
        and (wanted.created_from_ms is None or created_ms >= wanted.created_from_ms)
        and (wanted.created_to_ms is None or created_ms <= wanted.created_to_ms)
    )


def _newest(pledge: Pledge) -> tuple[int, bytes]:
    return pledge.progress.created_ms, pledge.gid.encode()


def _version(pledge: Pledge) -> tuple[int, int, int]:
    """Includes the creation time, which differs if a gid was removed and used again."""
    return pledge.revision, pledge.fence, pledge.progress.created_ms
