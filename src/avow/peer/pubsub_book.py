"""What a peer knows of one pub-sub lane besides its entries: which versions lie where, and which writes are in it.

Entries go to disk and leave memory; three things must outlive them there:

    index     for readable entries, version -> position: 8 bytes each (`queue.visible`)
    tail      for entries behind those, the last version of each. All copies of a lane are prefixes of one sequence, so
              this is right whether or not they are committed; what lies beyond the lane's end is cut off
    window    the last write ids and their versions. It has a bound, and a copy may begin behind a trim, so ids are
              forgotten. `forgotten_to` is the last version whose id is gone: of a write that is not found and may lie
              at or before it nobody can know any more whether it is there, and nobody may say "never"

A snapshot is the index, the window and the position they belong to, so that a restart reads only what follows. What
follows a trim needs less: the place, and that everything before it is forgotten (`start`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from typing import Final

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from avow import limits
from avow.errors import Malformed
from avow.queue.snapshots import column_bytes, column_from, seal, unseal
from avow.queue.visible import VisibleIndex
from avow.replication.pubsub.lane import size_of
from avow.wire.merge import merged_writes
from avow.wire.messages import Entry

MAGIC: Final = b"AVPL"
LAYOUT_VERSION: Final = 1
_COUNT_BITS: Final = limits.BATCH_COUNT_MAX.bit_length()
_COUNT_MASK: Final = (1 << _COUNT_BITS) - 1


class PubSubBounds(Struct, frozen=True, gc=False):
    """For each lane. Snapshots are written more rarely where they are large: at most `snapshot_bytes_per_entry`."""

    memory_entries: int = limits.PUBSUB_MEMORY_ENTRIES_MAX
    memory_bytes: int = limits.PUBSUB_MEMORY_BYTES_MAX
    write_ids: int = limits.WRITE_ID_WINDOW_COUNT
    snapshot_entries: int = limits.PUBSUB_SNAPSHOT_ENTRIES
    snapshot_bytes: int = limits.PUBSUB_SNAPSHOT_BYTES
    snapshot_bytes_per_entry: int = limits.PUBSUB_SNAPSHOT_BYTES_PER_ENTRY


class _Body(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    position: int
    end: int
    trimmed_to: int
    dropped: int
    index: tuple[bytes, bytes, bytes, bytes]  # rows, starts, positions, offsets
    write_ids: list[bytes]
    places: bytes
    forgotten_to: int


_encoder: Final = Encoder()
_decoder: Final = Decoder(_Body)


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
        """The first place of an id holds."""
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
        """Writes after this version never came to be."""
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


class LaneBook:
    __slots__ = (
        "bounds",
        "index",
        "removed_to",
        "saved_to",
        "shown",
        "since_bytes",
        "tail",
        "trimmed_to",
        "window",
        "written_bytes",
    )

    def __init__(self, bounds: PubSubBounds) -> None:
        self.bounds = bounds
        self.index = VisibleIndex()
        self.shown = 0  # the position the index reaches to
        self.tail = array("q")  # the last version of each position after it
        self.window = WriteWindow(bounds.write_ids)
        self.trimmed_to = 0  # the version the metadata lane says; the index follows as far as it reaches
        self.saved_to = 0  # position of the last snapshot
        self.removed_to = 0  # entries up to here were given up on disk
        self.since_bytes = self.written_bytes = 0

    # ------------------------------------------------------------------ growing

    @property
    def known_to(self) -> int:
        """The position up to which versions are known."""
        return self.shown + len(self.tail)

    def extend(self, entries: Iterable[Entry]) -> None:
        """Entries that follow `known_to`, committed or not."""
        last = self.tail[-1] if self.tail else self.index.end
        for entry in entries:
            first = last + 1
            for write_id, count in writes_of(entry):
                if write_id:
                    self.window.add(write_id, first, count)
                first += count
            last += entry.count
            self.tail.append(last)

    def show(self, entries: list[Entry]) -> None:
        """These, which follow what was shown, are readable from now on. Their versions are known already."""
        for entry in entries:
            self.shown += 1
            if entry.count:
                self.index.append(self.shown, 0, entry.count)
        del self.tail[: len(entries)]
        self.since_bytes += size_of(entries)
        self.follow_trim()

    def cut(self, position: int) -> None:
        """The lane ends there."""
        if position < self.known_to:
            self.window.cut(self.version_at(position))
            del self.tail[max(position - self.shown, 0) :]

    def follow_trim(self) -> None:
        upto = min(self.trimmed_to, self.index.end)
        if upto > self.index.trimmed_to:
            self.index.trim(upto)

    # ------------------------------------------------------------------ questions

    def version_at(self, position: int) -> int:
        """The last version at or before this position; what was shown counts as one."""
        return self.index.end if position <= self.shown else self.tail[position - self.shown - 1]

    def locate(self, version: int) -> tuple[int, int] | None:
        """(position, offset in that entry), also of what is not committed. Raises Trimmed."""
        if 1 <= version <= self.index.end:
            return self.index.locate(version)
        at = bisect_left(self.tail, version)
        if version < 1 or at == len(self.tail):
            return None
        before = self.tail[at - 1] if at else self.index.end
        return self.shown + at + 1, version - before - 1

    def start(self) -> tuple[int, int]:
        """The last position nobody needs any more, and the version it ends with."""
        if self.index.rows:
            return self.index.positions[0] - 1, self.index.rows[0] - 1
        return self.shown, self.index.end

    # ------------------------------------------------------------------ snapshots

    @property
    def due(self) -> bool:
        """A restart would have more to read than is worth it."""
        bounds, written = self.bounds, self.written_bytes
        if self.since_bytes >= max(bounds.snapshot_bytes, written):
            return True
        entries = max(bounds.snapshot_entries, written // bounds.snapshot_bytes_per_entry)
        return self.shown - self.saved_to >= entries

    def snapshot(self) -> bytes:
        """At `shown`."""
        index = self.index
        columns = (index.rows, index.starts, index.positions, index.offsets)
        rows, starts, positions, offsets = map(column_bytes, columns)
        ids, places = self.window.columns(index.end)
        forgotten_to = min(self.window.forgotten_to, index.end)
        body = _Body(
            position=self.shown,
            end=index.end,
            trimmed_to=index.trimmed_to,
            dropped=index.dropped,
            index=(rows, starts, positions, offsets),
            write_ids=ids,
            places=places,
            forgotten_to=forgotten_to,
        )
        state = _sealed(body)
        self.saved_to, self.since_bytes, self.written_bytes = self.shown, 0, len(state)
        return state

    def start_state(self) -> tuple[int, bytes]:
        """Where a copy starts that lacks what was removed, and what it must know then."""
        position, version = self.start()
        body = _Body(position, version, version, 0, (b"", b"", b"", b""), [], b"", version)
        return position, _sealed(body)

    @classmethod
    def restore(cls, state: bytes, bounds: PubSubBounds) -> LaneBook:
        """Raises Malformed (or a class below it)."""
        body = unseal(state, _decoder, magic=MAGIC, version=LAYOUT_VERSION)
        book = cls(bounds)
        index = book.index = VisibleIndex(end=body.end, trimmed_to=body.trimmed_to, dropped=body.dropped)
        index.rows, index.starts, index.positions, index.offsets = map(column_from, body.index)
        if not len(index.starts) == len(index.positions) == len(index.offsets):
            raise Malformed("snapshot index", expected="stretches of equal length", found=len(index.starts))
        index.continue_after_restore()
        book.shown = book.saved_to = body.position
        book.window.forgotten_to = body.forgotten_to
        book.window.fill(body.write_ids, column_from(body.places))
        book.trimmed_to = body.trimmed_to
        book.removed_to = book.start()[0]
        book.written_bytes = len(state)
        return book


def _sealed(body: _Body) -> bytes:
    return seal(_encoder.encode(body), magic=MAGIC, version=LAYOUT_VERSION)


def writes_of(entry: Entry) -> Iterable[tuple[bytes, int]]:
    """The writes in an entry, in the order of their messages: (write id, count)."""
    if entry.write_id:
        return ((entry.write_id, entry.count),)
    return [(write_id, count) for write_id, _, count in merged_writes(entry)]
