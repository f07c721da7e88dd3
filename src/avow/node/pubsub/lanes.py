"""The lanes of one pub-sub queue on this peer: the index of each, and how far each is readable."""

from __future__ import annotations

from avow.node.backfill import HISTORY
from avow.node.metadata_lane import LanesListed
from avow.node.pubsub.lane_index import LaneIndex
from avow.node.records import PubSubBounds
from avow.replication.effects import LaneImage, Persist
from avow.replication.pubsub.core import PubSubCore
from avow.replication.pubsub.retention import emptied
from avow.wire.messages import Entry


class QueueLanes:
    __slots__ = ("_bounds", "_highest_opened", "_retention", "by_number", "readable")

    def __init__(self, core: PubSubCore, bounds: PubSubBounds) -> None:
        self._retention, self._bounds = core.retention, bounds
        self.by_number: dict[int, LaneIndex] = {}
        self.readable: dict[int, int] = {}  # lane -> last readable version
        self._highest_opened = 0  # the highest lane number that the metadata lane has opened, of any queue

    def note_opened(self, number: int) -> None:
        """The metadata lane opened this lane, of any queue."""
        self._highest_opened = max(self._highest_opened, number)

    def is_forgotten(self, number: int) -> bool:
        """The lane was removed. Numbers are assigned in the order of the log, so a lower number was opened before."""
        return number not in self.by_number and number <= self._highest_opened

    def begin(self, number: int, position: int, state: bytes) -> LaneIndex:
        """Make this copy's index, from a snapshot or empty. The versions of a snapshot are committed and readable."""
        known = self.by_number.get(number)
        index = LaneIndex.restore(state, self._bounds) if state else LaneIndex(self._bounds)
        assert index.shown == position, "an index belongs to the entries that follow it"
        if known is not None:
            index.trim(known.trimmed_to)
        self.by_number[number] = index
        if position:
            self.readable[number] = index.visible.end
        return index

    def extend(self, number: int, to: int) -> bool:
        """Index the entries up to this position; False while this copy is shorter."""
        index = self.by_number[number]
        if to > index.known_to:
            entries = self._retention.held(number, after=index.known_to, to=to)
            if entries is None:
                return False
            index.extend(entries)
        return True

    def show(self, number: int, after: int, to: int) -> list[Entry]:
        """Make the entries after+1 .. to readable."""
        index = self.by_number[number]
        entries = self._retention.held(number, after=after, to=to)
        assert entries is not None, "readable entries are in memory"
        assert after == index.shown, "readable entries are shown in order"
        self.extend(number, to)
        index.show(entries)
        self.readable[number] = index.visible.end
        return entries

    def drop(self, number: int) -> None:
        del self.by_number[number]
        self.readable.pop(number, None)


def forgotten_images(images: dict[int, LaneImage], table: LanesListed) -> list[Persist]:
    """Remove the images of lanes that were removed while this peer was down. Returns what deletes them from disk."""
    saves: list[Persist] = []
    for number in [number for number in images if table.forgets(number & ~HISTORY)]:
        image = images.pop(number)
        base = image.snapshot.position if image.snapshot else 0
        if image.entries or image.snapshot is None or image.snapshot.state:
            saves += emptied(number, base + len(image.entries))
    return saves
