"""A pub-sub copy whose older part cannot be read any more: it is copied again from the others.

What lies before a lane's snapshot is committed and no longer part of the protocol; nobody counts it, only readers ask
for it. When one of them meets a record that fails its checksum, everything readable up to the copy's base is fetched
anew, into a storage lane beside the lane's own (see `backfill`), and read from there once it is all here. Until then a
reader is told to ask another peer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from avow.errors import Offline, StorageDamaged
from avow.peer.backfill import HISTORY, Backfill
from avow.peer.pubsub_book import LaneBook
from avow.replication.effects import LaneImage, Persist
from avow.replication.pubsub.core import PubSubCore
from avow.replication.pubsub.keeping import emptied
from avow.replication.pubsub.lane import Read
from avow.wire.messages import Entry, LaneFetched

_ALL: Final = 1 << 62  # tickets: see `_keep`


class Mending:
    """One for each queue. Lanes that were never damaged have no entry here."""

    def __init__(self, core: PubSubCore, read: Read | None, book_of: Callable[[int], LaneBook | None]) -> None:
        self._core, self._read, self._book_of = core, read, book_of
        self._by_lane: dict[int, Backfill] = {}
        core.unreadable = self.damaged

    def opened(self, number: int, image: LaneImage | None) -> None:
        """A lane is held here; `image`: what an earlier run copied of it."""
        if self._read is not None and image is not None and image.snapshot is not None:
            backfill = self._begin(number, image)
            backfill.lost(backfill.end)  # what is not there yet is found missing when somebody reads it
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
        if self._read is None or self._book_of(number) is None:
            return
        backfill = self._by_lane.get(number)
        if backfill is None:
            backfill = self._begin(number, None)
            backfill.history_damaged(self._needed_from(number))  # whatever may be there is of no use
            self._keep(number, backfill)
        backfill.lost(max(self._core.base_of(number), position))

    def entries(self, number: int, after: int, max_entries: int) -> Sequence[Entry]:
        """Raises Offline while they are being copied, Trimmed, StorageDamaged the first time."""
        backfill = self._by_lane.get(number)
        if backfill is None or after >= backfill.main_base:
            try:
                return self._core.entries(number, after=after, limit=max_entries)
            except StorageDamaged:
                self.damaged(number, after + 1)
                raise
        backfill.persisted(_ALL)
        if self._read is None or not backfill.holds(after + 1):
            raise Offline(f"entry {after + 1} of lane {number} is being copied here again; ask another peer")
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
        """True: it was for a lane being copied."""
        number = message.lane
        backfill = self._by_lane.get(number)
        if backfill is None or not backfill.busy or self._core.full:
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
        backfill.persisted(_ALL)
        backfill.busy = not backfill.is_whole(needed_from)
        if not backfill.busy or self._core.full:
            return
        question = backfill.ask(
            needed_from=needed_from,
            peers=self._core.donors_of(number, now),
            now=now,
            wait_s=self._core.tuning.heartbeat_fresh_s,
        )
        if question is not None:
            self._core.say(*question)

    def _keep(self, number: int, backfill: Backfill) -> None:
        """Storage shows what was written before it is synced; a restart sees how far it came. No ticket is needed."""
        for effect in backfill.take_saves(0):
            self._core.keep(number, effect)

    def _needed_from(self, number: int) -> int:
        book = self._book_of(number)
        lowest = book.index.lowest_position() if book is not None else None
        return self._core.base_of(number) + 1 if lowest is None else lowest
