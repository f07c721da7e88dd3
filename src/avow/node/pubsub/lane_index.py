"""The index of one pub-sub lane on one peer: the positions of versions, and the write ids.

Entries go to disk and leave memory; three things stay in memory:

    visible   for readable entries, version -> position: 8 bytes each (`queue.visible_index`)
    tail      for later entries, the last version of each. All copies of a lane are prefixes of one sequence, so this
              is correct whether or not the entries are committed; entries beyond the lane's end are cut off
    window    the last write ids and their versions. It is bounded, and a copy may begin after a trim, so ids are
              forgotten. `forgotten_to` is the last version whose id is gone: for a write that is not found and may be
              at or before that version, this peer cannot tell whether it was written

A snapshot contains `visible`, the window and their position, so that a restart reads only the entries after it. A copy
that begins after a trim needs only the position and the fact that everything before it is forgotten (`start`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from typing import Final

from msgspec.msgpack import Decoder, Encoder

from avow import limits
from avow.errors import Malformed
from avow.node.records import PubSubBounds, PubSubLaneSnapshot
from avow.queue.snapshots import column_bytes, column_from, seal, unseal
from avow.queue.visible_index import VisibleIndex
from avow.replication.pubsub.state import size_of
from avow.wire.merge import merged_writes
from avow.wire.messages import Entry

MAGIC: Final = b"AVPL"
LAYOUT_VERSION: Final = 1
_COUNT_BITS: Final = limits.BATCH_COUNT_MAX.bit_length()
_COUNT_MASK: Final = (1 << _COUNT_BITS) - 1


_encoder: Final = Encoder()
_decoder: Final = Decoder(PubSubLaneSnapshot)


class WriteWindow:
    """The last write ids of a lane, each with its versions, packed: first version above, count below."""

    __slots__ = ("_order", "_places", "forgotten_to", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._places: dict[bytes, int] = {}
        self._order: deque[bytes] = deque()
        self.forgotten_to = 0

    def __len__(self) -> int:
        return len(self._order)

    def add(self, write_id: bytes, first: int, count: int) -> None:
        """Add a write. If the id is known, its first place stays."""
        if write_id in self._places:
            return
        self._places[write_id] = first << _COUNT_BITS | count
        self._order.append(write_id)
        if len(self._order) > self.size:
            place = self._places.pop(self._order.popleft())
            self.forgotten_to = (place >> _COUNT_BITS) + (place & _COUNT_MASK) - 1

    def find(self, write_id: bytes) -> tuple[int, int] | None:
        """First and last version of a write."""
        place = self._places.get(write_id)
        if place is None:
            return None
        first = place >> _COUNT_BITS
        return first, first + (place & _COUNT_MASK) - 1

    def cut(self, version: int) -> None:
        """Remove the writes after this version, which were never committed."""
        while self._order and self._places[self._order[-1]] >> _COUNT_BITS > version:
            del self._places[self._order.pop()]

    def columns(self, upto: int) -> tuple[list[bytes], bytes]:
        """Ids and places, oldest first, up to a version."""
        ids, places = list(self._places), array("q", self._places.values())  # a dict keeps the order, too
        kept = bisect_left(places, (upto + 1) << _COUNT_BITS)
        return ids[:kept], column_bytes(places[:kept])

    def fill(self, ids: list[bytes], places: array[int]) -> None:
        if len(ids) != len(places):
            raise Malformed("snapshot write ids", expected=f"{len(ids)} places", found=len(places))
        for write_id, place in zip(ids, places, strict=True):
            self.add(write_id, place >> _COUNT_BITS, place & _COUNT_MASK)


class LaneIndex:
    __slots__ = (
        "bounds",
        "removed_to",
        "saved_to",
        "shown",
        "since_bytes",
        "tail",
        "trimmed_to",
        "visible",
        "window",
        "written_bytes",
    )

    def __init__(self, bounds: PubSubBounds) -> None:
        self.bounds = bounds
        self.visible = VisibleIndex()
        self.shown = 0  # `visible` covers the positions up to here
        self.tail = array("q")  # the last version of each position after `shown`
        self.window = WriteWindow(bounds.write_ids)
        self.trimmed_to = 0  # the version in the metadata lane; `visible` is trimmed as far as it reaches
        self.saved_to = 0  # position of the last snapshot
        self.removed_to = 0  # entries up to here were released on disk
        self.since_bytes = self.written_bytes = 0

    # ------------------------------------------------------------------ changes

    @property
    def known_to(self) -> int:
        """The position up to which versions are known."""
        return self.shown + len(self.tail)

    def extend(self, entries: Iterable[Entry]) -> None:
        """Entries that follow `known_to`, committed or not."""
        last = self.tail[-1] if self.tail else self.visible.end
        for entry in entries:
            first = last + 1
            for write_id, count in writes_of(entry):
                if write_id:
                    self.window.add(write_id, first, count)
                first += count
            last += entry.count
            self.tail.append(last)

    def show(self, entries: list[Entry]) -> None:
        """These entries, which follow `shown`, are readable from now on. Their versions are known already."""
        for entry in entries:
            self.shown += 1
            if entry.count:
                self.visible.append(self.shown, 0, entry.count)
        del self.tail[: len(entries)]
        self.since_bytes += size_of(entries)
        self._follow_trim()

    def cut(self, position: int) -> None:
        """The lane ends at this position."""
        if position < self.known_to:
            self.window.cut(self.version_at(position))
            del self.tail[max(position - self.shown, 0) :]

    def trim(self, upto_version: int) -> None:
        """The metadata lane removed the versions up to this one."""
        self.trimmed_to = max(self.trimmed_to, upto_version)
        self._follow_trim()

    def release(self, position: int) -> None:
        """Entries up to this position are removed from disk."""
        self.removed_to = position

    def _follow_trim(self) -> None:
        upto = min(self.trimmed_to, self.visible.end)
        if upto > self.visible.trimmed_to:
            self.visible.trim(upto)

    # ------------------------------------------------------------------ questions

    def version_at(self, position: int) -> int:
        """The last version at or before this position; for a position up to `shown`, the end of what is readable."""
        return self.visible.end if position <= self.shown else self.tail[position - self.shown - 1]

    def locate(self, version: int) -> tuple[int, int] | None:
        """(position, offset in that entry) of a version, committed or not. Raises Trimmed."""
        if 1 <= version <= self.visible.end:
            return self.visible.locate(version)
        at = bisect_left(self.tail, version)
        if version < 1 or at == len(self.tail):
            return None
        before = self.tail[at - 1] if at else self.visible.end
        return self.shown + at + 1, version - before - 1

    def remembers(self, *, since: int) -> bool:
        """Whether the ids of all writes after this version are still known here."""
        return self.window.forgotten_to <= since

    def start(self) -> tuple[int, int]:
        """The last position that is no longer needed, and its last version."""
        if self.visible.rows:
            return self.visible.positions[0] - 1, self.visible.rows[0] - 1
        return self.shown, self.visible.end

    # ------------------------------------------------------------------ snapshots

    @property
    def due(self) -> bool:
        """Whether a restart would have to read too much: it is time for a snapshot."""
        bounds, written = self.bounds, self.written_bytes
        if self.since_bytes >= max(bounds.snapshot_bytes, written):
            return True
        entries = max(bounds.snapshot_entries, written // bounds.snapshot_bytes_per_entry)
        return self.shown - self.saved_to >= entries

    def snapshot(self) -> bytes:
        """The snapshot at `shown`."""
        visible = self.visible
        columns = (visible.rows, visible.starts, visible.positions, visible.offsets)
        rows, starts, positions, offsets = map(column_bytes, columns)
        ids, places = self.window.columns(visible.end)
        forgotten_to = min(self.window.forgotten_to, visible.end)
        body = PubSubLaneSnapshot(
            position=self.shown,
            end=visible.end,
            trimmed_to=visible.trimmed_to,
            dropped=visible.dropped,
            visible=(rows, starts, positions, offsets),
            write_ids=ids,
            places=places,
            forgotten_to=forgotten_to,
        )
        state = _sealed(body)
        self.saved_to, self.since_bytes, self.written_bytes = self.shown, 0, len(state)
        return state

    def start_state(self) -> tuple[int, bytes]:
        """(position, state) from which a copy starts that lacks the removed entries."""
        position, version = self.start()
        body = PubSubLaneSnapshot(position, version, version, 0, (b"", b"", b"", b""), [], b"", version)
        return position, _sealed(body)

    @classmethod
    def restore(cls, state: bytes, bounds: PubSubBounds) -> LaneIndex:
        """Raises Malformed (or a class below it)."""
        body = unseal(state, _decoder, magic=MAGIC, version=LAYOUT_VERSION)
        index = cls(bounds)
        visible = index.visible = VisibleIndex(end=body.end, trimmed_to=body.trimmed_to, dropped=body.dropped)
        visible.rows, visible.starts, visible.positions, visible.offsets = map(column_from, body.visible)
        if not len(visible.starts) == len(visible.positions) == len(visible.offsets):
            raise Malformed("snapshot index", expected="runs of equal length", found=len(visible.starts))
        visible.continue_after_restore()
        index.shown = index.saved_to = body.position
        index.window.forgotten_to = body.forgotten_to
        index.window.fill(body.write_ids, column_from(body.places))
        index.trimmed_to = body.trimmed_to
        index.removed_to = index.start()[0]
        index.written_bytes = len(state)
        return index


def position_of(state: bytes) -> int:
    """The position of the state that `LaneIndex.restore` would give. Raises Malformed."""
    return unseal(state, _decoder, magic=MAGIC, version=LAYOUT_VERSION).position


def _sealed(body: PubSubLaneSnapshot) -> bytes:
    return seal(_encoder.encode(body), magic=MAGIC, version=LAYOUT_VERSION)


def writes_of(entry: Entry) -> Iterable[tuple[bytes, int]]:
    """The writes in an entry, in the order of their messages: (write id, count)."""
    if entry.write_id:
        return ((entry.write_id, entry.count),)
    return [(write_id, count) for write_id, _, count in merged_writes(entry)]
