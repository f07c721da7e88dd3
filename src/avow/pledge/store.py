"""The interface of pledge stores. One test suite (tests/contract/pledges) runs against every store.

A store does not interpret pledges. It stores content and progress by gid, replaces progress by compare-and-set (on
revision and fence), and returns pledges that are due. Everything it has confirmed survives kill -9.

Several coordinators may share a store. Each claims the pledges it works on: a claim gives a lease until a time and
increments the fence, so that a coordinator that was paused cannot overwrite later changes of another. In a store with
one coordinator (a replicated lane) a claim costs nothing.

Many tasks call a store concurrently; it collects waiting operations and performs them together (group commit).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from avow.pledge.record import Pledge, Progress, Status


class Filter(Struct, frozen=True):
    """Which pledges to list. Empty and None: any. Both ends of a time range are included."""

    gid: str = ""
    statuses: tuple[Status, ...] = ()
    created_from_ms: int | None = None
    created_to_ms: int | None = None


class Page(Struct, frozen=True):
    """`next_position` is opaque, and empty at the end."""

    pledges: tuple[Pledge, ...]
    next_position: str = ""


class Topic(Struct, frozen=True):
    """Subscribers are (url, remark), in the order of subscription. `version` counts changes from 1."""

    name: str
    subscribers: tuple[tuple[str, str], ...]
    version: int
    created_ms: int = 0
    updated_ms: int = 0


class PledgeStore(Protocol):
    async def insert(self, pledge: Pledge) -> Pledge | None:
        """None: it is stored. Else the existing pledge with that gid; nothing was changed."""

    async def load(self, gid: str) -> Pledge | None: ...

    async def swap(self, before: Pledge, progress: Progress, *, release: bool = False) -> Pledge | None:
        """Replace the progress if revision and fence are still those of `before`. Returns the new pledge, or None.

        `release` also ends the lease.
        """

    async def claim(self, *, owner: str, now_ms: int, lease_ms: int, limit: int) -> list[Pledge]:
        """Pledges with next_at_ms <= now and no lease, longest due first, claimed for `owner` with a new fence."""

    async def claim_one(self, gid: str, *, owner: str, now_ms: int, lease_ms: int) -> Pledge | None:
        """Claims that pledge, due or not, if no other owner has a lease on it."""

    async def next_due_ms(self) -> int:
        """When a claim will succeed: the earliest next_at_ms, or the end of its lease if later. NEVER_MS if none."""

    async def find(self, wanted: Filter, *, position: str = "", limit: int = 100) -> Page:
        """Newest first; those with the same time by gid, in descending order of bytes."""

    async def forget(self, *, finished_before_ms: int, limit: int) -> int:
        """Remove succeeded and failed pledges that finished before; returns their number."""

    async def load_topic(self, name: str) -> Topic | None: ...

    async def swap_topic(
        self, before: Topic | None, subscribers: Sequence[tuple[str, str]], *, name: str, now_ms: int
    ) -> bool:
        """Create it (`before` None), or replace it if its version is that of `before`. No subscribers: remove it."""

    async def list_topics(self, *, position: str = "", limit: int = 100) -> tuple[list[Topic], str]: ...

    async def start(self) -> None:
        """Open it, and create its tables if they are missing."""

    async def close(self) -> None: ...

    def statistics(self) -> dict[str, int]: ...
