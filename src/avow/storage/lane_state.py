"""The state of a lane in storage, besides its entries, and how each operation changes it.

The same rules apply to the lane as written (operations may still wait for a sync), as in its files, and as rebuilt by
recovery.

    base          entries up to and including this position are gone (trimmed, or replaced by another peer's snapshot)
    end           the last entry's position; the lane has the entries base+1 .. end
    snapshot      the position of the newest snapshot (0: of the empty lane); -1: none
    lost_upto     the lane once reached this position and could not be read from end+1 on. It is kept until the lane is
                  stored again up to there, or cut: without it a peer would vote as if it had never held those entries
"""

from __future__ import annotations

from msgspec import Struct

from avow.ids import REPAIRING


class LaneState(Struct):
    """Changed in place by one method for each operation. ValueError: the operation does not fit the lane."""

    promised: int = 0
    stamped: int = 0
    fenced: bool = False
    decided_end: int = -1
    base: int = 0
    end: int = 0
    snapshot: int = -1
    lost_upto: int = 0

    @property
    def damaged_from(self) -> int:
        return self.end + 1 if self.lost_upto > self.end else 0

    def append(self, first: int, count: int) -> None:
        if not self.base < first <= self.end + 1:
            raise ValueError(
                f"the lane has entries {self.base + 1} to {self.end}; entries from {first} on do not continue it, "
                "nothing was written"
            )
        if first <= self.snapshot:
            raise ValueError(f"entries from {first} on are below the snapshot at {self.snapshot}; nothing was written")
        self.end = first + count - 1

    def cut(self, end: int) -> None:
        if end < max(self.base, self.snapshot):
            raise ValueError(
                f"a cut at {end} is below the snapshot at {self.snapshot} or the base at {self.base}; nothing was cut"
            )
        self.lost_upto = min(self.lost_upto, end)
        self.end = min(self.end, end)

    def take_snapshot(self, position: int, *, reset: bool) -> None:
        if reset:
            self.snapshot = self.base = self.end = position
        elif position > self.end:
            raise ValueError(f"a snapshot at {position} is beyond the lane's end at {self.end}; nothing was written")
        else:
            self.snapshot = max(self.snapshot, position)

    def trim(self, upto: int) -> None:
        """Never beyond the newest snapshot: without one the entries are the only copy of the state."""
        self.base = max(self.base, min(upto, self.snapshot))

    def promise(self, *, promised: int, stamped: int) -> None:
        self.promised, self.stamped = promised, stamped

    def fence(self, end: int) -> None:
        self.fenced, self.decided_end = True, max(self.decided_end, end)

    def lose_from(self, position: int) -> None:
        """Entries from `position` on cannot be read."""
        self.lost_upto = max(self.lost_upto, self.end)
        self.end = position - 1

    def lose_part_of_log(self, promised: int) -> None:
        """Operations on this lane may be lost, and it never promised more than `promised`. So it promises that, ends
        where it does, and is damaged: its copy counts for nothing until it is stored again. A pub-sub lane may have
        been fenced."""
        self.promised, self.stamped, self.fenced = max(self.promised, promised), REPAIRING, True
        self.lost_upto = max(self.lost_upto, self.end + 1)

    def lose_all(self) -> None:
        """Neither the entries nor the snapshot can be read: the whole lane must be stored again."""
        self.lost_upto = max(self.lost_upto, self.end, 1)
        self.base = self.end = 0
        self.snapshot = -1
