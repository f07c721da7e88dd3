"""One copy of one lane: what this peer holds of it, and what it knows of the other copies.

A lane is written by a single run of a single peer, so two copies never differ where both have an entry; they only
differ in length. All bookkeeping is therefore about lengths:

    base       memory starts after it; older entries are committed and storage has them
    end        last entry taken into memory
    durable    last entry covered by a sync                          durable <= end
    fence_at   the end at the moment of the fence; without a fence, no limit
    counted    min(durable, fence_at): the only part that may be counted towards a quorum of Stored
    cursor     last entry known to be committed (a quorum counted it, or the lane's decided end)
    readable   min(cursor, durable)

What comes in behind the fence (refills, and fetches up to a decided end) lengthens `end` and `durable` and never
`counted`: a quorum that includes a refilled copy would be a second, contradicting decision about where the lane ends.
After a restart a fenced copy no longer knows which part came before its fence, so it counts for nothing.

Of what is readable only the newest entries stay in memory; a copy that starts from a snapshot has none of those before
it. What was removed for good (a committed trim) no copy needs: one that lacks it, and can get it nowhere, starts behind
it (`start_at`). That lengthens `end`, and `counted` never beyond the fence, as entries would.

A copy that lost entries it may have been counted for is `repairing` (durably, in the lane's stamp). It is fed again and
can be read, but is counted neither as Stored nor in a quorum of fence answers until the end is decided.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from avow.ids import REPAIRING
from avow.replication.effects import LaneImage
from avow.replication.pieces import one_frame
from avow.wire.messages import Entry, Kind

UNLIMITED: Final = sys.maxsize
UNDECIDED: Final = -1
NOBODY: Final = 0

#: (lane, after, max_entries) -> entries storage still has. Raises Trimmed when it has not, StorageDamaged.
Read: TypeAlias = Callable[[int, int, int], Sequence[Entry]]
#: lane -> the last position that was removed for good, and what a copy that starts behind it must know; None: nothing
Start: TypeAlias = Callable[[int], tuple[int, bytes] | None]


class Lane:
    __slots__ = (
        "announced",
        "asked_after",
        "asks",
        "audience",
        "base",
        "closing",
        "cursor",
        "decided",
        "dirty",
        "durable",
        "end",
        "end_at_beat",
        "entries",
        "fence_at",
        "fence_durable",
        "fenced",
        "heard",
        "incarnation",
        "known",
        "lost",
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
        "state",
        "stored",
        "target",
        "voters",
    )

    def __init__(self, number: int, image: LaneImage | None = None) -> None:
        image = image or LaneImage()
        self.number = number
        self.owner, self.incarnation, self.opened_at = NOBODY, 0, 0.0
        self.voters: tuple[int, ...] = ()  # empty: the metadata lane has not told of this lane yet
        self.audience: tuple[int, ...] = ()  # everybody but this peer: members, learners, the lane's voters
        self.base = image.snapshot.position if image.snapshot else 0
        self.entries: list[Entry] = list(image.entries)
        self.size = size_of(self.entries)  # bytes in memory
        self.state = image.snapshot.state if image.snapshot else b""  # what the snapshot said, until it is taken
        self.end = self.durable = self.base + len(self.entries)
        self.cursor = self.readable = self.base
        self.stored: dict[int, int] = {}  # voter -> what it may be counted for
        self.reported: dict[int, int] = {}  # everybody else -> what it said it holds
        self.known = 0  # the longest copy anybody reported
        self.decided = image.decided_end
        self.fenced = self.fence_durable = image.fenced or image.decided_end >= 0
        self.fence_at = 0 if self.fenced else UNLIMITED
        self.repairing = image.damaged_from > 0 or image.stamped == REPAIRING
        self.target = UNDECIDED  # while this peer settles the lane: the end it needs to hold
        self.mine = self.closing = self.lost = self.orphaned = False
        self.sent_to = self.end  # own lane: sent to the others up to here
        self.dirty = False  # something was persisted since the last drain
        self.announced = 0  # Stored was said up to here
        self.asked_after = -1  # a fetch after this position is under way
        self.asks = 0
        self.end_at_beat = self.end
        self.missed_at_beat = False
        self.pushed: dict[int, tuple[int, int]] = {}  # own lane: what a peer held, and for how many heartbeats already
        self.settle_at = 0.0  # 0: not due
        self.heard = False  # somebody said how long its copy is

    @property
    def open(self) -> bool:
        """Its owner may append: this copy knows of no fence, end or stop."""
        return not (self.fenced or self.closing or self.lost)

    @property
    def complete(self) -> bool:
        return self.decided >= 0 and self.durable >= self.decided

    def counted(self, end: int) -> int:
        """How much of a copy that is durable up to `end` may be counted."""
        return 0 if self.repairing else min(end, self.fence_at)

    def extend(self, entries: Sequence[Entry]) -> None:
        self.entries.extend(entries)
        self.end += len(entries)
        self.size += size_of(entries)

    def cut(self, end: int) -> None:
        """Drop what lies after `end`, which is the lane's decided end."""
        kept = max(end - self.base, 0)
        self.size -= size_of(self.entries[kept:])
        del self.entries[kept:]
        self.end = min(self.end, end)
        self.durable = min(self.durable, end)

    def forget(self, upto: int) -> None:
        """Keep entries up to `upto` on disk only."""
        upto = min(upto, self.readable)
        if upto > self.base:
            self.size -= size_of(self.entries[: upto - self.base])
            del self.entries[: upto - self.base]
            self.base = upto

    def relieve(self, upto: int, *, entries_max: int, bytes_max: int) -> None:
        """Beyond either bound of what is in memory, forget half of it, but nothing behind `upto`: many at a time."""
        if upto - self.base <= entries_max and self.size <= bytes_max:
            return
        base, size = self.base, self.size
        for entry in self.entries[: upto - self.base]:
            if upto - base <= entries_max // 2 and size <= bytes_max // 2:
                break
            base, size = base + 1, size - size_of((entry,))
        self.forget(base)

    def start_at(self, position: int) -> None:
        """Everything up to `position` was committed, and removed everywhere: this copy continues behind it.

        Nothing of it can be read, so it is readable here at once; durable it is when its snapshot is.
        """
        self.entries, self.size = [], 0
        self.base = self.end = self.readable = position
        self.cursor = max(self.cursor, position)

    def slice(self, after: int, limit: int) -> tuple[Entry, ...]:
        """At most `limit` entries that follow `after`, which must not lie before the base."""
        start = after - self.base
        return tuple(self.entries[start : start + limit])

    def piece(self, after: int, limit: int, upto: int = UNLIMITED) -> tuple[Entry, ...]:
        """What one frame may carry of the entries after `after` and up to `upto`."""
        return one_frame(self.slice(after, min(limit, upto - after)))

    def stored_by(self, position: int) -> tuple[int, ...]:
        """The voters known to hold the entry at `position`, in the order of the lane's membership."""
        return tuple(peer for peer, to in self.stored.items() if to >= position)


def size_of(entries: Iterable[Entry]) -> int:
    return sum(len(entry.batch) + len(entry.control) for entry in entries)


def is_start(entries: Sequence[Entry]) -> bool:
    """They begin with the place where a copy may start whose missing entries were removed for good."""
    return bool(entries) and entries[0].kind == Kind.TRIM


def after_end(lane: Lane, after: int, entries: Sequence[Entry], upto: int) -> Sequence[Entry]:
    """The part of `entries` (which follow `after`) that continues this copy without going beyond `upto`.

    Empty for a duplicate, for a gap, and for a copy that may take no more.
    """
    end = lane.end
    if after > end:
        return ()
    last = after + len(entries)
    if last > upto:
        entries = entries[: max(upto - after, 0)]
    return entries[end - after :] if after < end else entries
