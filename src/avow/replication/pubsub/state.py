"""The state of one copy of one lane on this peer, and what the peer knows of the other copies.

A lane is written by a single run of a single peer, so two copies never differ where both have an entry; they differ
only in length. So the state consists of lengths:

    base       memory starts after it; older entries are committed and in storage
    end        last entry stored in memory
    durable    last entry covered by a sync                          durable <= end
    fence_at   the end at the moment of the fence; without a fence, no limit
    counted    min(durable, fence_at): the only part that may be counted towards a quorum of Stored
    cursor     last entry known to be committed (a quorum counted it, or the lane's decided end)
    readable   min(cursor, durable)

Entries that arrive after the fence (refills, and fetches up to a decided end) extend `end` and `durable` and never
`counted`: a quorum that includes a refilled copy would be a second, contradicting decision about where the lane ends.
After a restart a fenced copy no longer knows which part came before its fence, so it counts for nothing.

Only the newest readable entries stay in memory; a copy that starts from a snapshot has none of those before it. Entries
removed by a committed trim are not needed: a copy that lacks them, and cannot get them anywhere, starts after them
(`start_at`). Like entries, that extends `end`, and never `counted` beyond the fence.

A copy that lost entries for which it may have been counted is `repairing` (durably, in the lane's stamp). It receives
entries and can be read, but counts neither as Stored nor in a quorum of fence answers until the end is decided.

The roles in the other modules (`copies`, `repair`, `settlement`, ...) read these attributes and change them only
through the methods here, each of which is named after the event.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from avow.replication.effects import LaneImage
from avow.replication.pieces import one_frame
from avow.wire.messages import Entry, Kind

UNLIMITED: Final = sys.maxsize
UNDECIDED: Final = -1
NOBODY: Final = 0

#: (lane, after, max_entries) -> entries in storage. Raises Trimmed if they were removed, StorageDamaged.
Read: TypeAlias = Callable[[int, int, int], Sequence[Entry]]
#: lane -> (last removed position, the state with which a copy starts after it); None: nothing was removed
Start: TypeAlias = Callable[[int], tuple[int, bytes] | None]


class LaneState:
    __slots__ = (
        "announced",
        "asked_after",
        "asks",
        "audience",
        "base",
        "cursor",
        "decided",
        "durable",
        "end",
        "end_at_beat",
        "entries",
        "fence_at",
        "fence_durable",
        "fenced",
        "heard_of",
        "incarnation",
        "known",
        "mine",
        "missed_at_beat",
        "number",
        "opened_at",
        "orphaned",
        "owner",
        "pushed",
        "readable",
        "repairing",
        "reported",
        "sent_to",
        "settle_at",
        "size",
        "snapshot",
        "stored",
        "target",
        "voters",
    )

    def __init__(self, number: int, image: LaneImage, *, repairing: bool) -> None:
        self.number = number
        self.owner, self.incarnation, self.opened_at = NOBODY, 0, 0.0
        self.voters: tuple[int, ...] = ()  # empty: the metadata lane has not opened this lane yet
        self.audience: tuple[int, ...] = ()  # all peers except this one: members, learners, the lane's voters
        self.mine = self.orphaned = False
        # this copy
        self.base = image.snapshot.position if image.snapshot else 0
        self.entries: list[Entry] = list(image.entries)
        self.size = size_of(self.entries)  # bytes in memory
        self.snapshot = image.snapshot.state if image.snapshot else b""  # its state, until it is taken
        self.end = self.durable = self.base + len(self.entries)
        self.cursor = self.readable = self.base
        self.repairing = repairing
        # the other copies
        self.stored: dict[int, int] = {}  # voter -> length that may be counted
        self.reported: dict[int, int] = {}  # other peer -> reported length
        self.known = 0  # the longest reported copy
        self.heard_of = False  # a peer has reported its length
        self.announced = 0  # announced as Stored up to here
        self.sent_to = self.end  # own lane: sent to the others up to here
        self.pushed: dict[int, tuple[int, int]] = {}  # own lane: peer -> (its length, heartbeats at that length)
        # repair
        self.asked_after = -1  # a fetch after this position is in flight
        self.asks = 0
        self.end_at_beat = self.end
        self.missed_at_beat = False
        # its end
        self.decided = image.decided_end
        self.fenced = self.fence_durable = image.fenced or image.decided_end >= 0
        self.fence_at = 0 if self.fenced else UNLIMITED
        self.target = UNDECIDED  # while this peer settles the lane: the end it must hold
        self.settle_at = 0.0  # 0: not due

    # ------------------------------------------------------------------ facts of the metadata lane

    def open_for(self, *, owner: int, incarnation: int, voters: tuple[int, ...], now: float) -> None:
        """A run owns it, with these voters for its whole life. The owner counts as alive from now on."""
        self.owner, self.incarnation, self.voters = owner, incarnation, voters
        self.stored = dict.fromkeys(voters, 0)
        self.opened_at = now

    def speak_to(self, audience: tuple[int, ...]) -> None:
        self.audience = audience

    def own(self) -> None:
        """This run appends to it. The other peers know what it holds now."""
        self.mine = True
        self.sent_to = self.end

    def orphan(self) -> None:
        """Nothing may be appended to it any more."""
        self.orphaned = True

    def decide(self, end: int) -> None:
        self.decided = end

    # ------------------------------------------------------------------ entries

    def extend(self, entries: Sequence[Entry]) -> None:
        self.entries.extend(entries)
        self.end += len(entries)
        self.size += size_of(entries)

    def cut(self, end: int) -> None:
        """Drop the entries after `end`, the lane's decided end."""
        kept = max(end - self.base, 0)
        self.size -= size_of(self.entries[kept:])
        del self.entries[kept:]
        self.end = min(self.end, end)
        self.durable = min(self.durable, end)

    def forget(self, upto: int) -> None:
        """Drop entries up to `upto` from memory."""
        upto = min(upto, self.readable)
        if upto > self.base:
            self.size -= size_of(self.entries[: upto - self.base])
            del self.entries[: upto - self.base]
            self.base = upto

    def relieve(self, upto: int, *, entries_max: int, bytes_max: int) -> None:
        """If either limit is exceeded, drop about half of memory at once, but nothing after `upto`."""
        if upto - self.base <= entries_max and self.size <= bytes_max:
            return
        base, size = self.base, self.size
        for entry in self.entries[: upto - self.base]:
            if upto - base <= entries_max // 2 and size <= bytes_max // 2:
                break
            base, size = base + 1, size - size_of((entry,))
        self.forget(base)

    def start_at(self, position: int) -> None:
        """Everything up to `position` was committed and removed everywhere: this copy continues after it.

        The removed part counts as readable at once, because there is nothing to read. It is durable with its snapshot.
        """
        self.entries, self.size = [], 0
        self.base = self.end = self.readable = position
        self.cursor = max(self.cursor, position)

    def keep_snapshot(self, state: bytes) -> None:
        """Keep the state of a snapshot until it is taken."""
        self.snapshot = state

    def take_snapshot(self) -> bytes:
        state, self.snapshot = self.snapshot, b""
        return state

    def slice(self, after: int, limit: int) -> tuple[Entry, ...]:
        """At most `limit` entries that follow `after`, which must not be before the base."""
        start = after - self.base
        return tuple(self.entries[start : start + limit])

    def piece(self, after: int, limit: int, upto: int = UNLIMITED) -> tuple[Entry, ...]:
        """The entries after `after` and up to `upto` that fit into one frame."""
        return one_frame(self.slice(after, min(limit, upto - after)))

    def take_unsent(self, limit: int) -> tuple[Entry, ...]:
        """Own lane: the next unsent piece; it counts as sent from now on."""
        entries = self.piece(self.sent_to, limit)
        self.sent_to += len(entries)
        return entries

    # ------------------------------------------------------------------ lengths

    def sync(self, end: int, *, fenced: bool) -> None:
        """A sync covered the copy up to `end`, and its fence if it was `fenced` then."""
        end = min(end, self.end)  # a decided end may have cut it meanwhile
        if end > self.durable:
            self.durable = end
        if fenced:
            self.fence_durable = True

    def commit(self, cursor: int) -> None:
        self.cursor = cursor

    def show(self, readable: int) -> None:
        self.readable = readable

    def announce(self, count: int) -> None:
        self.announced = count

    def hear(self) -> None:
        """A peer reported the length of its copy."""
        self.heard_of = True

    def hear_length(self, to: int) -> None:
        """A peer holds entries up to here."""
        if to > self.known:
            self.known = to

    def hear_stored(self, voter: int, to: int) -> bool:
        """A voter stored entries up to here; False: that was known."""
        if to > self.known:
            self.known = to
        if to <= self.stored[voter]:
            return False
        self.stored[voter] = to
        return True

    def hear_reported(self, peer: int, to: int) -> None:
        """A peer that is not counted holds entries up to here."""
        if to > self.known:
            self.known = to
        if to > self.reported.get(peer, 0):
            self.reported[peer] = to

    def counted(self, end: int) -> int:
        """The part of a copy durable up to `end` that may be counted."""
        return 0 if self.repairing else min(end, self.fence_at)

    def stored_by(self, position: int) -> tuple[int, ...]:
        """The voters known to hold the entry at `position`, in the order of the lane's membership."""
        return tuple(peer for peer, to in self.stored.items() if to >= position)

    # ------------------------------------------------------------------ repair

    def ask(self) -> bool:
        """Note a fetch of the entries after the end; False: one is in flight already."""
        if self.asked_after == self.end:
            return False
        self.asked_after = self.end
        return True

    def ask_again(self) -> None:
        """The fetch in flight may be lost: allow another one."""
        self.asked_after = -1

    def turn_to_next(self) -> None:
        """The next fetch goes to another peer."""
        self.asks += 1

    def is_stuck(self, *, missing: bool) -> bool:
        """At each heartbeat: whether it was too short (`missing`) at the last one too, and has not grown since."""
        stuck = missing and self.missed_at_beat and self.end == self.end_at_beat
        self.missed_at_beat, self.end_at_beat = missing, self.end
        return stuck

    def beats_at(self, peer: int, holds: int) -> int:
        """At each heartbeat: for how many of them the peer has had this length."""
        before, beats = self.pushed.get(peer, (-1, 0))
        beats = beats + 1 if holds == before else 0
        self.pushed[peer] = holds, beats
        return beats

    # ------------------------------------------------------------------ its end

    @property
    def complete(self) -> bool:
        return self.decided >= 0 and self.durable >= self.decided

    def fence(self) -> None:
        """From here on it accepts nothing from its owner."""
        self.fenced, self.fence_at = True, self.end

    def aim_at(self, end: int) -> None:
        """This peer settles it and must hold entries up to `end`; UNDECIDED: not yet, or no longer."""
        self.target = end

    def settle_after(self, time: float) -> None:
        """0: another peer is settling the lane, or no settlement is needed."""
        self.settle_at = time


def size_of(entries: Iterable[Entry]) -> int:
    return sum(len(entry.batch) + len(entry.control) for entry in entries)


def is_start(entries: Sequence[Entry]) -> bool:
    """Whether they begin with a start position, for a copy whose missing entries were removed everywhere."""
    return bool(entries) and entries[0].kind == Kind.TRIM


def after_end(lane: LaneState, after: int, entries: Sequence[Entry], upto: int) -> Sequence[Entry]:
    """The part of `entries` (which follow `after`) that continues this copy without going beyond `upto`.

    Empty for a duplicate, after a gap, and for a copy that may not grow.
    """
    end = lane.end
    if after > end:
        return ()
    last = after + len(entries)
    if last > upto:
        entries = entries[: max(upto - after, 0)]
    return entries[end - after :] if after < end else entries
