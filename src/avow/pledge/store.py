"""Where pledges live: one small contract, kept by every store and tried by one suite (tests/contract/pledges).

A store knows nothing of what a pledge means. It keeps content and progress by gid, replaces progress if nobody else has
(compare-and-set on revision and fence), and hands out what is due. Everything it has said yes to survives kill -9.

Several coordinators may share a store. Each claims what it works on: a claim gives a lease until a time and raises the
fence, so that a coordinator that was paused and comes back cannot overwrite what another did meanwhile. A store that is
one coordinator's own (a replicated lane) claims without cost.

Calls come from many tasks at once; a store gathers those that wait and performs them together (group commit).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from avow.pledge.record import Pledge, Progress, Status


class Filter(Struct, frozen=True):
    """What to list. Empty and None: any. Both ends of a time are included."""

    gid: str = ""
    statuses: tuple[Status, ...] = ()
    created_from_ms: int | None = None
    created_to_ms: int | None = None


class Page(Struct, frozen=True):
    """`next_position` is opaque, and empty at the end."""

    pledges: tuple[Pledge, ...]
    next_position: str = ""


class Topic(Struct, frozen=True):
    """Subscribers are (url, remark), in the order they came. `version` counts changes from 1."""

    name: str
    subscribers: tuple[tuple[str, str], ...]
    version: int
    created_ms: int = 0
    updated_ms: int = 0


class PledgeStore(Protocol):
    async def insert(self, pledge: Pledge) -> Pledge | None:
        """None: it is stored. Else the pledge of that gid that was there already; nothing was changed."""

    async def load(self, gid: str) -> Pledge | None: ...

    async def swap(self, before: Pledge, progress: Progress, *, release: bool = False) -> Pledge | None:
        """Replace the progress if revision and fence are still those of `before`. The new pledge, or None.

        `release` ends the lease with it.
        """

    async def claim(self, *, owner: str, now_ms: int, lease_ms: int, limit: int) -> list[Pledge]:
        """Pledges with next_at_ms <= now and no lease, longest due first, claimed for `owner` with a new fence."""

    async def claim_one(self, gid: str, *, owner: str, now_ms: int, lease_ms: int) -> Pledge | None:
        """That one, due or not, if nobody else has a lease on it."""

    async def next_due_ms(self) -> int:
        """When a claim finds something: the earliest next_at_ms, or the end of its lease if later. NEVER_MS if none."""

    async def find(self, wanted: Filter, *, position: str = "", limit: int = 100) -> Page:
        """Newest first, and of one time by gid, the greatest bytes first."""

    async def forget(self, *, finished_before_ms: int, limit: int) -> int:
        """Remove succeeded and failed pledges that finished before; how many."""

    async def load_topic(self, name: str) -> Topic | None: ...

    async def swap_topic(
        self, before: Topic | None, subscribers: Sequence[tuple[str, str]], *, name: str, now_ms: int
    ) -> bool:
        """Create it (before None), or replace it if its version is still that of `before`. No subscribers: remove."""

    async def list_topics(self, *, position: str = "", limit: int = 100) -> tuple[list[Topic], str]: ...

    async def start(self) -> None:
        """Open it and make its tables if they are missing."""

    async def close(self) -> None: ...

    def statistics(self) -> dict[str, int]: ...
