"""Counters of pledges: calls by branch, pledges by final status, and how long they took.

`CountingStore` wraps a store to see which pledges end, so the stores do not count; the coordinator reports calls.
Distributions are counts between fixed bounds, turned into samples at a scrape.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from avow.pledge.branches.calls import Call
from avow.pledge.record import Pledge, Progress
from avow.pledge.store import Filter, Page, PledgeStore, Topic
from avow.pledge.verdicts import Verdict

BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BRANCH_LABELS_MAX: Final = 512  # further branches are counted under an empty name
ENDED: Final = ("succeeded", "failed", "dead")


class Distribution:
    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, took_s: float) -> None:
        self.counts[bisect_left(BOUNDS_S, took_s)] += 1
        self.sum_s += took_s

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, cumulative count), as Prometheus needs them."""
        total, found = 0, []
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self.counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found


class PledgeCounters:
    def __init__(self) -> None:
        self.ended: Counter[str] = Counter()  # by status
        self.took = Distribution()  # from creation to the end
        self.branches: Counter[tuple[str, str, str]] = Counter()  # branch id, op, ok or fail
        self.requests: Counter[tuple[str, str, str]] = Counter()  # of dtm's API: http or grpc, api, ok or fail
        self.answered: dict[tuple[str, str], Distribution] = {}

    def called(self, call: Call, verdict: Verdict) -> None:
        key = (call.branch_id, call.op, "ok" if verdict.result == "SUCCESS" else "fail")
        if key not in self.branches and len(self.branches) >= BRANCH_LABELS_MAX:
            key = ("", call.op, key[2])
        self.branches[key] += 1

    def finished(self, progress: Progress) -> None:
        self.ended[progress.status] += 1
        self.took.add(max(0, progress.finished_ms - progress.created_ms) / 1000)

    def requested(self, kind: str, api: str, *, ok: bool, took_s: float) -> None:
        self.requests[kind, api, "ok" if ok else "fail"] += 1
        found = self.answered.get((kind, api))
        if found is None:
            found = self.answered[kind, api] = Distribution()
        found.add(took_s)


class CountingStore:
    """A store that calls `on_ended` for each pledge that ends."""

    def __init__(self, store: PledgeStore, on_ended: Callable[[Progress], None]) -> None:
        self.store, self._on_ended = store, on_ended
        self.load, self.claim, self.claim_one = store.load, store.claim, store.claim_one
        self.next_due_ms, self.forget = store.next_due_ms, store.forget

    def insert(self, pledge: Pledge) -> Coroutine[Any, Any, Pledge | None]:
        return self._insert_last(pledge) if pledge.progress.status in ENDED else self.store.insert(pledge)

    async def _insert_last(self, pledge: Pledge) -> Pledge | None:
        known = await self.store.insert(pledge)
        if known is None:
            self._on_ended(pledge.progress)
        return known

    def swap(self, before: Pledge, progress: Progress, *, release: bool = False) -> Coroutine[Any, Any, Pledge | None]:
        if progress.status in ENDED and before.progress.status != progress.status:
            return self._swap_last(before, progress, release=release)
        return self.store.swap(before, progress, release=release)

    async def _swap_last(self, before: Pledge, progress: Progress, *, release: bool) -> Pledge | None:
        after = await self.store.swap(before, progress, release=release)
        if after is not None:
            self._on_ended(progress)
        return after

    async def find(self, wanted: Filter, *, position: str = "", limit: int = 100) -> Page:
        return await self.store.find(wanted, position=position, limit=limit)

    async def load_topic(self, name: str) -> Topic | None:
        return await self.store.load_topic(name)

    async def swap_topic(
        self, before: Topic | None, subscribers: Sequence[tuple[str, str]], *, name: str, now_ms: int
    ) -> bool:
        return await self.store.swap_topic(before, subscribers, name=name, now_ms=now_ms)

    async def list_topics(self, *, position: str = "", limit: int = 100) -> tuple[list[Topic], str]:
        return await self.store.list_topics(position=position, limit=limit)

    async def start(self) -> None:
        await self.store.start()

    async def close(self) -> None:
        await self.store.close()

    def statistics(self) -> dict[str, int]:
        return self.store.statistics()
