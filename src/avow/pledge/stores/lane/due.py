"""The index of a lane's coordinator: when each pledge is due, who has claimed it, and which can be removed.

It exists only in the memory of the peer that coordinates the lane, and is built from the lane's table when that begins.
So a claim costs no write. It holds only within this peer: if another peer delivers the same pledge too, one of the two
is refused because of the revision.

A pledge that is being delivered is due when that must be over:

    claim    made in this index, until a time
    lease    stored in the pledge
    held     its progress says that the run that stored it delivers it until `next_at_ms`. The lane tells which run that
             was, so if the run has ended (`release_gone`) the pledge is due earlier

Stale entries of both heaps, which differ from `_due` or from the pledge, are dropped when they are found.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from msgspec import Struct

from avow.pledge.record import NEVER_MS, UNFINISHED, Pledge

FORGETTABLE: Final = ("succeeded", "failed")


class Claim(Struct):
    """`fence` counts the claims. The claim has ended if `until_ms` is 0 or in the past."""

    fence: int
    owner: str = ""
    until_ms: int = 0


class DueIndex:
    def __init__(self) -> None:
        self._claims: dict[str, Claim] = {}
        self._due: dict[str, int] = {}  # gid -> when it can be claimed
        self._holders: dict[str, int] = {}  # gid -> the run that holds it
        self._held: dict[int, set[str]] = {}  # run -> the gids it holds
        self._heap: list[tuple[int, str]] = []
        self._finished: list[tuple[int, str]] = []  # finished_ms, gid

    def update(self, pledge: Pledge, *, run: int) -> None:
        """The pledge was stored or changed by `run`."""
        gid, progress = pledge.content.gid, pledge.progress
        if progress.status not in UNFINISHED or progress.next_at_ms >= NEVER_MS:
            self.drop(gid)
            if progress.status in FORGETTABLE:
                heappush(self._finished, (progress.finished_ms, gid))
            return
        if gid in self._holders:
            self._unhold(gid)
        if progress.held:
            self._holders[gid] = run
            self._held.setdefault(run, set()).add(gid)
        self._put(gid, max(progress.next_at_ms, pledge.lease_until_ms, self._claim_until_ms(gid)))

    def drop(self, gid: str) -> None:
        """The pledge needs no further action."""
        self._unhold(gid)
        self._due.pop(gid, None)
        self._claims.pop(gid, None)

    def _unhold(self, gid: str) -> None:
        run = self._holders.pop(gid, None)
        if run is not None:
            held = self._held[run]
            held.discard(gid)
            if not held:
                del self._held[run]

    def _put(self, gid: str, due_ms: int) -> None:
        if self._due.get(gid) != due_ms:
            self._due[gid] = due_ms
            heappush(self._heap, (due_ms, gid))

    def _claim_until_ms(self, gid: str) -> int:
        claim = self._claims.get(gid)
        return claim.until_ms if claim is not None else 0

    # ------------------------------------------------------------------ claiming

    def first_due_ms(self) -> int:
        heap, due = self._heap, self._due
        while heap and due.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else NEVER_MS

    def claim_first(self, find: Callable[[str], Pledge], *, owner: str, now_ms: int, lease_ms: int) -> Pledge | None:
        """Claims the pledge that is due longest; None: none is due."""
        if self.first_due_ms() > now_ms:
            return None
        return self._claim(find(self._heap[0][1]), owner=owner, until_ms=now_ms + lease_ms)

    def claim(self, pledge: Pledge, *, owner: str, now_ms: int, lease_ms: int) -> Pledge | None:
        """Claims this pledge, due or not; None if another owner has it, or if it needs no action."""
        if pledge.gid not in self._due:
            return None
        shown = self.shown(pledge)
        if shown.lease_until_ms > now_ms and shown.owner != owner:
            return None
        return self._claim(pledge, owner=owner, until_ms=now_ms + lease_ms)

    def _claim(self, pledge: Pledge, *, owner: str, until_ms: int) -> Pledge:
        claim = self._claims.get(pledge.gid)
        fence = (claim.fence if claim is not None else pledge.fence) + 1
        self._claims[pledge.gid] = Claim(fence, owner, until_ms)
        self._put(pledge.gid, max(pledge.progress.next_at_ms, until_ms))
        return self.shown(pledge)

    def release(self, gid: str) -> None:
        """Ends the claim; `fence` is kept. Call it before `update`."""
        claim = self._claims.get(gid)
        if claim is not None:
            claim.owner, claim.until_ms = "", 0

    def shown(self, pledge: Pledge) -> Pledge:
        """The pledge with its claim; the same pledge if there is none."""
        claim = self._claims.get(pledge.content.gid)
        if claim is None:
            return pledge
        owner, until_ms = (claim.owner, claim.until_ms) if claim.until_ms else (pledge.owner, pledge.lease_until_ms)
        return Pledge(pledge.content, pledge.progress, pledge.revision, claim.fence, owner, until_ms)

    def release_gone(self, is_gone: Callable[[int], bool]) -> None:
        """Pledges held by runs that have ended are due now, unless they are claimed."""
        for run in [run for run in self._held if is_gone(run)]:
            for gid in list(self._held[run]):
                self._unhold(gid)
                self._put(gid, self._claim_until_ms(gid))

    # ------------------------------------------------------------------ finished pledges

    @property
    def finished_count(self) -> int:
        """An upper bound: it includes stale entries."""
        return len(self._finished)

    def take_finished(self, find: Callable[[str], Pledge | None], *, before_ms: int, limit: int) -> list[str]:
        """Removes and returns gids of finished pledges. If they are not removed from the lane, call `update` again."""
        taken: dict[str, None] = {}
        while self._finished and self._finished[0][0] < before_ms and len(taken) < limit:
            finished_ms, gid = heappop(self._finished)
            pledge = find(gid)
            if pledge is None or pledge.status not in FORGETTABLE or pledge.progress.finished_ms != finished_ms:
                continue
            taken[gid] = None
        return list(taken)

    def statistics(self) -> dict[str, int]:
        return {"due": len(self._due), "held": len(self._holders)}
