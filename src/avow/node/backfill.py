"""Backfill: after a peer installed a snapshot, it copies the older entries that readers may still ask for.

A snapshot contains a lane's state, not its messages. A peer that was too far behind installs another peer's snapshot
at position S, votes and commits from there on, and afterwards copies the readable entries before S, piece by piece,
from any peer that has them. They are committed, so every copy is the same and the protocol is not involved.

    main lane      main_base+1 ..   in the log's own storage; a snapshot from another peer sets main_base to S
    history lane   start+1 .. end   copied, in a storage lane of its own: number `lane | HISTORY`
    needed_from    the first entry that contains a visible message or a staged write; a trim moves it forward

The peer is whole when every position from `needed_from` on is in one of the two. Progress is recorded only in the two
storage lanes: a restart finds where the main lane begins and where the history ends, and continues. Entries that a trim
makes unneeded are skipped or dropped. A damaged history is dropped and copied again. An unreadable entry of the main
lane is copied like a missing one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from avow.errors import StorageDamaged, Trimmed
from avow.limits import LOG_MEMORY_ENTRIES_MAX, LOG_MEMORY_SIZE_BYTES_MAX
from avow.replication.effects import LaneImage, Persist, SaveCut, SaveEntries, SaveSnapshot, SaveTrim
from avow.replication.pieces import entry_bytes
from avow.replication.two_phase.state import Read
from avow.wire.messages import Entry, LaneFetch, Snapshot

HISTORY: Final = 1 << 31  # added to a lane's number: the storage lane of its history


class Backfill:
    """After every call that changes something, call `take_saves` and persist what it returns, in order."""

    __slots__ = (
        "_restarts", "_saves", "_snapshot_at", "_turn", "_unsnapped", "again_at", "busy", "durable_end", "end", "lane",
        "main_base", "read", "start",
    )  # fmt: skip

    def __init__(
        self,
        *,
        lane: int,
        image: LaneImage | None,
        read: Read | None,
        main: Read | None,
        snapshot_at: int,
        needed_from: int,
        missing_upto: int = 0,
    ) -> None:
        """`main` reads the lane's own storage, `read` its history. The log in memory begins at `snapshot_at`.

        `missing_upto`: of the entries up to there, the lane's own storage lacks some.
        """
        self.lane, self.read = lane, read
        self._saves: list[Persist] = []
        self._restarts = 0
        self._turn = 0
        self.again_at = float("-inf")  # of the next fetch
        self._unsnapped = 0  # bytes of the history since its own snapshot, which spares a restart from loading them
        self.main_base = snapshot_at
        if main is not None and needed_from <= snapshot_at:
            self.main_base = _first_held(main, low=max(needed_from - 1, missing_upto), high=snapshot_at)
        self._snapshot_at = self.start = self.end = self.durable_end = 0
        if image is not None and image.snapshot is not None:
            self._snapshot_at = self.start = image.snapshot.position
            self.end = self.durable_end = self.start + len(image.entries)
        damaged = image is not None and (image.damaged_from > 0 or image.unreadable_upto > 0)
        if read is not None and self.end:
            self._look(read, needed_from, damaged=damaged)
        self.busy = read is not None and not self.is_whole(needed_from)

    def _look(self, read: Read, needed_from: int, *, damaged: bool) -> None:
        """Find where the history begins. Drop a history that is damaged or begins too late."""
        low = min(needed_from - 1, self.end)
        self.start = _first_held(read, low=low, high=self.end)
        if damaged or self.start > low:
            self._restart(low)

    def is_whole(self, needed_from: int) -> bool:
        """Whether every position from `needed_from` on is held, and synced."""
        if needed_from > self.main_base:
            return True
        return self.start < needed_from and self.durable_end >= self.main_base

    def check_whole(self, needed_from: int) -> bool:
        """Like `is_whole`, and stop copying if it is, until something is lost again."""
        if self.busy:
            self.busy = not self.is_whole(needed_from)
        return not self.busy

    def holds(self, position: int) -> bool:
        return self.start < position <= self.durable_end

    # ------------------------------------------------------------------ lost entries

    def lost(self, upto: int) -> None:
        """The main lane no longer has the entries up to here, or cannot read them."""
        if upto > self.main_base:
            self.main_base = upto
            self.busy = self.read is not None

    def history_damaged(self, needed_from: int) -> None:
        self._restart(needed_from - 1)
        self.busy = True

    def _restart(self, at: int) -> None:
        """Begin an empty history after `at`."""
        lane = self.lane | HISTORY
        self._saves += [SaveSnapshot(lane, Snapshot(at, 0, (), (), b""), reset=True), SaveCut(lane, at)]
        self._snapshot_at = self.start = self.end = self.durable_end = at
        self._unsnapped = 0
        self._restarts += 1

    def trim(self, needed_from: int) -> None:
        """Drop entries that can no longer be read."""
        if needed_from > self.main_base:
            if self.end > self.start:
                self._restart(self.main_base)
            return
        start = min(needed_from - 1, self.end)
        if start > self.start:
            self.start = start
            self._snap(start)
            self._saves.append(SaveTrim(self.lane | HISTORY, start))

    def _snap(self, position: int) -> None:
        if position > self._snapshot_at:
            self._snapshot_at, self._unsnapped = position, 0
            self._saves.append(SaveSnapshot(self.lane | HISTORY, Snapshot(position, 0, (), (), b""), reset=False))

    # ------------------------------------------------------------------ copying

    def wanted(self, needed_from: int) -> int:
        """The position after which entries are missing; -1: none are missing."""
        if needed_from > self.main_base:
            return -1
        after = max(self.end, needed_from - 1) if self.start < needed_from else needed_from - 1
        return after if after < self.main_base else -1

    def ask(self, *, needed_from: int, peers: Sequence[int], now: float, wait_s: float) -> tuple[int, LaneFetch] | None:
        """The next fetch and the peer to send it to, if one is due. A peer that does not answer is skipped next
        time."""
        if now < self.again_at or not peers:
            return None
        after = self.wanted(needed_from)
        if after < 0:
            return None
        self.again_at = now + wait_s
        peer = peers[self._turn % len(peers)]
        self._turn += 1
        return peer, LaneFetch(self.lane, after)

    def take(self, after: int, entries: Sequence[Entry], needed_from: int) -> bool:
        """Store entries that another peer knows to be committed; False: they are not the next missing ones."""
        if not entries or after != self.wanted(needed_from):
            return False
        fresh = tuple(entries[: self.main_base - after])
        if any(entry.position != after + number for number, entry in enumerate(fresh, 1)):
            return False
        if after != self.end or self.start >= needed_from:
            self._restart(after)
        self._saves.append(SaveEntries(self.lane | HISTORY, fresh))
        self.end += len(fresh)
        self._unsnapped += sum(map(entry_bytes, fresh))
        if self.end - self._snapshot_at >= LOG_MEMORY_ENTRIES_MAX or self._unsnapped >= LOG_MEMORY_SIZE_BYTES_MAX:
            self._snap(self.end)
        self._turn -= 1  # this peer answers: ask it again, at once
        self.again_at = float("-inf")
        return True

    def take_saves(self) -> list[Persist]:
        """What to persist. Read `mark` now and call `synced` with it when everything is durable."""
        saves, self._saves = self._saves, []
        return saves

    @property
    def mark(self) -> tuple[int, int]:
        """(number of the history, its end). Marks of a history that was restarted since are ignored."""
        return self._restarts, self.end

    def synced(self, mark: tuple[int, int]) -> None:
        """Everything taken before `mark` was read is durable."""
        restarts, end = mark
        if restarts == self._restarts:
            self.durable_end = max(self.durable_end, end)


def _first_held(read: Read, *, low: int, high: int) -> int:
    """The smallest `after` in low..high after which storage can read; it holds one range, which ends at `high`."""
    if low >= high or _holds(read, low):
        return low
    low += 1
    while low < high:
        middle = (low + high) // 2
        if _holds(read, middle):
            high = middle
        else:
            low = middle + 1
    return low


def _holds(read: Read, after: int) -> bool:
    try:
        read(after, 1)
    except Trimmed:
        return False
    except StorageDamaged:
        return True  # it exists; the damage is handled when it is read
    return True
