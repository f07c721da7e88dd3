"""The rules of pub-sub replication, one method each: the conditions under which copies cannot contradict each other.

The roles call them (`self.rules.counts_as_stored(lane, source)`) and have no rules of their own. A mutation replaces
this object with one that breaks a rule, to check that the violation is detected (`avow_lab.mutations`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from avow.ids import REPAIRING
from avow.replication.effects import LaneImage
from avow.replication.pubsub.state import UNLIMITED, LaneState
from avow.replication.quorum import has_quorum, quorum_th_largest


class Rules:
    __slots__ = ()

    # ------------------------------------------------------------------ counting

    def counts_as_stored(self, lane: LaneState, source: int) -> bool:
        """Only the lane's own voters count, fixed when it was opened."""
        return source in lane.stored

    def own_count(self, lane: LaneState, end: int) -> int:
        """For what this peer counts when it is durable up to `end`: nothing after the fence."""
        return lane.counted(end)

    def counted_cursor(self, lane: LaneState) -> int:
        """The position up to which everything is on the disks of a quorum."""
        return quorum_th_largest(lane.stored.values(), len(lane.voters))

    def is_quorum(self, lane: LaneState, answered: Container[int]) -> bool:
        """A quorum of the lane's voters, however many of them can be reached."""
        return has_quorum(answered, lane.voters)

    def has_lost_entries(self, image: LaneImage) -> bool:
        """This copy may have been counted for lost entries, so it does not count until the lane's end is decided."""
        return image.damaged_from > 0 or image.stamped == REPAIRING

    def readable_to(self, lane: LaneState) -> int:
        """Only entries that are committed and on this disk: others could be taken back, or be missing after a crash."""
        return min(lane.cursor, lane.durable)

    # ------------------------------------------------------------------ appending

    def owns_run(self, lane: LaneState, *, me: int, incarnation: int) -> bool:
        """Only the run that opened a lane appends to it; a restarted peer does not continue it."""
        return lane.owner == me and lane.incarnation == incarnation

    def accepts_from_owner(self, lane: LaneState) -> bool:
        """A fence is permanent, also across restarts."""
        return not lane.fenced

    def takes_to(self, lane: LaneState) -> int:
        """How far this copy may be extended by a fetch."""
        if lane.decided >= 0:
            return lane.decided
        if lane.fenced:
            return lane.target  # only while this peer settles the lane, and only up to the end it chose
        return UNLIMITED

    # ------------------------------------------------------------------ ending a lane

    def counts_answer(self, *, damaged: bool) -> bool:
        """A copy that lost entries may report less than it was counted for: its answer proves nothing."""
        return not damaged

    def choose_end(self, held: Mapping[int, int]) -> int:
        """The longest copy of a quorum: it covers everything that was committed."""
        return max(held.values())

    def end_is_held(self, lane: LaneState, held: Mapping[int, int], end: int) -> bool:
        """A quorum of the voters holds the end durably, so it survives the proposer."""
        return self.is_quorum(lane, {peer for peer, to in held.items() if to >= end})

    def may_close(self, lane: LaneState) -> bool:
        """An owner may end its lane where it stopped only if all of it is committed: any settler finds the same end."""
        return lane.cursor >= lane.end

    def is_cut_at(self, lane: LaneState, end: int) -> bool:
        """Entries beyond the decided end are cut: they were never committed and must not be found later."""
        return lane.end > end
