"""What the coordinator of a lane has to do: which of its pledges are due when, who has them, which can be forgotten.

Kept by the one peer that coordinates the lane, in memory, for as long as it does; made from the lane's table when that
begins. So a claim costs no write. It is a promise among the workers of this peer only: another peer that works on the
same pledge loses by its revision.

A pledge that somebody works on is due when that must be over:

    hand     a claim made here, until a time
    lease    stands in the pledge itself, given by whoever stored it
    held     its progress says that the one who stored it works on it until `next_at_ms`. Who that was is known from the
             lane, so when that run of a peer is gone (`release_gone`) nobody waits for that time

Both heaps are cleaned as they are used: an entry that says something else than `_due` or the pledge does is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from msgspec import Struct

from avow.pledge.record import NEVER_MS, UNFINISHED, Pledge

FORGETTABLE: Final = ("succeeded", "failed")


class Hand(Struct):
    """`fence` counts the claims. Nobody holds it when `until_ms` is 0 or in the past."""

    fence: int
    owner: str = ""
    until_ms: int = 0


class Agenda:
    def __init__(self) -> None:
        self._hands: dict[str, Hand] = {}
        self._due: dict[str, int] = {}  # gid -> when it can be claimed
        self._holders: dict[str, int] = {}  # gid -> the run that holds it,
        self._held: dict[int, set[str]] = {}  # and the other way round
        self._heap: list[tuple[int, str]] = []
        self._finished: list[tuple[int, str]] = []  # finished_ms, gid

    def note(self, pledge: Pledge, *, run: int) -> None:
        """It is there, or it changed: `run` stored it so."""
        gid, progress = pledge.content.gid, pledge.progress
        if progress.status not in UNFINISHED or progress.next_at_ms >= NEVER_MS:
            self.drop(gid)
            if progress.status in FORGETTABLE:
                heappush(self._finished, (progress.finished_ms, gid))
            return
        if gid in self._holders:
            self._let_go(gid)
        if progress.held:
            self._holders[gid] = run
            self._held.setdefault(run, set()).add(gid)
        self._put(gid, max(progress.next_at_ms, pledge.lease_until_ms, self._hand_until_ms(gid)))

    def drop(self, gid: str) -> None:
        """There is nothing to do for it."""
        self._let_go(gid)
        self._due.pop(gid, None)
        self._hands.pop(gid, None)

    def _let_go(self, gid: str) -> None:
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

    def _hand_until_ms(self, gid: str) -> int:
        hand = self._hands.get(gid)
        return hand.until_ms if hand is not None else 0

    # ------------------------------------------------------------------ claims

    def first_due_ms(self) -> int:
        heap, due = self._heap, self._due
        while heap and due.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else NEVER_MS

    def claim_first(self, find: Callable[[str], Pledge], *, owner: str, now_ms: int, lease_ms: int) -> Pledge | None:
        """What is due longest; None: nothing is."""
        if self.first_due_ms() > now_ms:
            return None
        return self._claim(find(self._heap[0][1]), owner=owner, until_ms=now_ms + lease_ms)

    def claim(self, pledge: Pledge, *, owner: str, now_ms: int, lease_ms: int) -> Pledge | None:
        """This one, due or not; None if somebody else holds it, or if nothing is to be done for it."""
        if pledge.gid not in self._due:
            return None
        shown = self.shown(pledge)
        if shown.lease_until_ms > now_ms and shown.owner != owner:
            return None
        return self._claim(pledge, owner=owner, until_ms=now_ms + lease_ms)

    def _claim(self, pledge: Pledge, *, owner: str, until_ms: int) -> Pledge:
        hand = self._hands.get(pledge.gid)
        fence = (hand.fence if hand is not None else pledge.fence) + 1
        self._hands[pledge.gid] = Hand(fence, owner, until_ms)
        self._put(pledge.gid, max(pledge.progress.next_at_ms, until_ms))
        return self.shown(pledge)

    def release(self, gid: str) -> None:
        """Before the pledge that it left behind is noted. The count goes on."""
        hand = self._hands.get(gid)
        if hand is not None:
            hand.owner, hand.until_ms = "", 0

    def shown(self, pledge: Pledge) -> Pledge:
        """The pledge with its claim; itself if there is none."""
        hand = self._hands.get(pledge.content.gid)
        if hand is None:
            return pledge
        owner, until_ms = (hand.owner, hand.until_ms) if hand.until_ms else (pledge.owner, pledge.lease_until_ms)
        return Pledge(pledge.content, pledge.progress, pledge.revision, hand.fence, owner, until_ms)

    def release_gone(self, is_gone: Callable[[int], bool]) -> None:
        """What is held by runs that are gone is due now, unless somebody has it in hand."""
        for run in [run for run in self._held if is_gone(run)]:
            for gid in list(self._held[run]):
                self._let_go(gid)
                self._put(gid, self._hand_until_ms(gid))

    # ------------------------------------------------------------------ what is over

    @property
    def finished_count(self) -> int:
        """About so many."""
        return len(self._finished)

    def take_finished(self, find: Callable[[str], Pledge | None], *, before_ms: int, limit: int) -> list[str]:
        """Gids to forget. Those that are not forgotten after all must be noted again."""
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
