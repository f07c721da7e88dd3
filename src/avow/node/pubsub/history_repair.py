"""Repairs the damaged older part of a pub-sub copy by fetching it again from other peers.

Entries before a lane's snapshot are committed and no longer part of the protocol; only readers need them. When a read
finds a record that fails its checksum, everything readable up to the copy's base is fetched again into a separate
storage lane (see `backfill`) and read from there once it is complete. Until then reads are refused with OFFLINE.
"""

from __future__ import annotations

from collections.abc import Sequence

from avow.errors import Offline, StorageDamaged
from avow.node.backfill import HISTORY, Backfill
from avow.node.pubsub.lanes import QueueLanes
from avow.replication.effects import LaneImage, Persist
from avow.replication.pubsub.core import PubSubCore
from avow.replication.pubsub.retention import emptied
from avow.replication.pubsub.state import Read
from avow.wire.messages import Entry, LaneFetched


class HistoryRepair:
    """One for each queue. Lanes that were never damaged have no entry here."""

    def __init__(self, core: PubSubCore, lanes: QueueLanes, read: Read | None) -> None:
        self._core, self._lanes, self._read = core, lanes, read
        self._by_lane: dict[int, Backfill] = {}

    def opened(self, number: int, image: LaneImage | None) -> None:
        """A lane was opened here; `image`: what an earlier run copied of it."""
        if self._read is not None and image is not None and image.snapshot is not None:
            backfill = self._begin(number, image)
            backfill.lost(backfill.end)  # a read that finds entries missing continues the copying
            self._keep(number, backfill)

    def dropped(self, number: int) -> list[Persist]:
        backfill = self._by_lane.pop(number, None)
        return emptied(number | HISTORY, backfill.end) if backfill is not None else []

    def trimmed(self, number: int) -> None:
        backfill = self._by_lane.get(number)
        if backfill is not None:
            backfill.trim(self._needed_from(number))
            self._keep(number, backfill)

    def damaged(self, number: int, position: int) -> None:
        """The lane's own storage cannot read this entry, which lies before its base."""
        if self._read is None or number not in self._lanes.by_number:
            return
        backfill = self._by_lane.get(number)
        if backfill is None:
            backfill = self._begin(number, None)
            backfill.history_damaged(self._needed_from(number))  # discard what an earlier repair may have left
            self._keep(number, backfill)
        backfill.lost(max(self._core.base_of(number), position))

    def entries(self, number: int, after: int, max_entries: int) -> Sequence[Entry]:
        """Raises Offline while the entries are being copied, Trimmed, StorageDamaged when damage is found."""
        backfill = self._by_lane.get(number)
        if backfill is None or after >= backfill.main_base:
            try:
                return self._core.retention.entries(number, after=after, limit=max_entries)
            except StorageDamaged:
                self.damaged(number, after + 1)
                raise
        backfill.synced(backfill.mark)
        if self._read is None or not backfill.holds(after + 1):
            raise Offline(f"this peer is copying entry {after + 1} of lane {number} again; read from another peer")
        try:
            return self._read(number | HISTORY, after, min(max_entries, backfill.durable_end - after))
        except StorageDamaged:
            backfill.history_damaged(self._needed_from(number))
            self._keep(number, backfill)
            raise

    def tick(self, now: float) -> None:
        for number, backfill in self._by_lane.items():
            if backfill.busy:
                self._ask(number, backfill, now)

    def take(self, message: LaneFetched, now: float) -> bool:
        """Store fetched entries; False: they were not for a lane being copied."""
        number = message.lane
        backfill = self._by_lane.get(number)
        if backfill is None or not backfill.busy or self._core.journal.full:
            return False
        if not backfill.take(message.after, message.entries, self._needed_from(number)):
            return False
        self._keep(number, backfill)
        self._ask(number, backfill, now)
        return True

    def _begin(self, number: int, image: LaneImage | None) -> Backfill:
        read = self._read
        assert read is not None, "without storage nothing is read back"
        backfill = self._by_lane[number] = Backfill(
            lane=number,
            image=image,
            read=lambda after, max_entries: read(number | HISTORY, after, max_entries),
            main=None,
            snapshot_at=0,
            needed_from=self._needed_from(number),
        )
        return backfill

    def _ask(self, number: int, backfill: Backfill, now: float) -> None:
        needed_from = self._needed_from(number)
        backfill.synced(backfill.mark)
        backfill.busy = not backfill.is_whole(needed_from)
        if not backfill.busy or self._core.journal.full:
            return
        question = backfill.ask(
            needed_from=needed_from,
            peers=self._core.donors_of(number, now),
            now=now,
            wait_s=self._core.tuning.heartbeat_fresh_s,
        )
        if question is not None:
            self._core.effects.send(*question)

    def _keep(self, number: int, backfill: Backfill) -> None:
        """Storage can read entries before they are synced, and a restart finds where copying stopped: no need to
        wait."""
        for effect in backfill.take_saves():
            self._core.retention.save(number, effect)

    def _needed_from(self, number: int) -> int:
        index = self._lanes.by_number.get(number)
        lowest = index.visible.lowest_position() if index is not None else None
        return self._core.base_of(number) + 1 if lowest is None else lowest
