"""The rules of a pub-sub queue: what a peer may conclude about a write, and from where another copy may start.

A test replaces this object to check that a broken rule is detected (`avow_lab.mutations`).
"""

from __future__ import annotations

from avow.node.pubsub.lane_index import LaneIndex
from avow.replication.pubsub.core import PubSubCore


class QueueRules:
    __slots__ = ()

    def holds_write(self, index: LaneIndex, write_id: bytes) -> bool:
        """A repeated write gets the first answer again: every lane of this process is searched for its id."""
        return index.window.find(write_id) is not None

    def absence_is_final(self, core: PubSubCore, lane: int) -> bool:
        """A write missing in this copy is missing in the lane only if the lane has ended and this copy is complete."""
        return core.ended_here(lane)

    def may_refuse_absent(self, index: LaneIndex, *, since: int) -> bool:
        """ "Not found" means "never written" only if no id of a write after `since` was forgotten."""
        return index.remembers(since=since)

    def may_take_as_new(self, index: LaneIndex, *, since: int) -> bool:
        """A retry may be treated as a new write only if its id would still be known had it been written."""
        return index.remembers(since=since)

    def start_of(self, index: LaneIndex) -> tuple[int, bytes] | None:
        """A copy that lacks removed entries may start only right after the last removed one."""
        return index.start_state() if index.visible.trimmed_to else None
