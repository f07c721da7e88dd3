"""What storage knows of a lane besides its entries, and how each operation changes it.

The same few rules are needed three times: for the lane as written (operations may still wait for a sync), for the lane
as its files hold it, and for the lane as recovery rebuilds it. They are here once.

    base          entries up to and including this position are gone (trimmed, or replaced by another peer's snapshot)
    end           the last entry's position; entries base+1 .. end are held
    snapshot      the position of the newest snapshot (0: of the empty lane), -1: none
    lost_upto     the lane once reached this position and could not be read from end+1 on. It stays until the lane is
                  stored again to there, or cut: a peer that forgot would vote as if it had never held those entries
"""

from __future__ import annotations

from msgspec import Struct


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
                f"the lane holds {self.base + 1} to {self.end}; entries from {first} on do not continue it"
            )
        if first <= self.snapshot:
            raise ValueError(f"entries from {first} on lie below the snapshot at {self.snapshot}")
        self.end = first + count - 1

    def cut(self, end: int) -> None:
        if end < max(self.base, self.snapshot):
            raise ValueError(f"a cut at {end} lies below the snapshot at {self.snapshot} or the base at {self.base}")
        self.lost_upto = min(self.lost_upto, end)
        self.end = min(self.end, end)

    def take_snapshot(self, position: int, *, reset: bool) -> None:
        if reset:
            self.snapshot = self.base = self.end = position
        elif position > self.end:
            raise ValueError(f"a snapshot at {position} of a lane that ends at {self.end}")
        else:
            self.snapshot = max(self.snapshot, position)

    def trim(self, upto: int) -> None:
        """Never beyond the newest snapshot: without it the entries are the only copy of the state."""
        self.base = max(self.base, min(upto, self.snapshot))

    def promise(self, *, promised: int, stamped: int) -> None:
        self.promised, self.stamped = promised, stamped

    def fence(self, end: int) -> None:
        self.fenced, self.decided_end = True, max(self.decided_end, end)

    def lose_from(self, position: int) -> None:
        """Entries from `position` on cannot be read."""
        self.lost_upto = max(self.lost_upto, self.end)
        self.end = position - 1

    def lose_all(self) -> None:
        """Neither the entries nor the snapshot they follow can be read: the lane is to be stored again from nothing."""
        self.lost_upto = max(self.lost_upto, self.end, 1)
        self.base = self.end = 0
        self.snapshot = -1
