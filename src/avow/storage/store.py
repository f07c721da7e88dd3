"""The interface of storage.

Storage reports durability in exactly one way: the `Synced` passed to the callback of `write` (`replication.durable`).

    store.load()            once, before anything is written: what the last run left on disk
    store.write(ops, then)  store these operations, in order; `then(receipt)` runs after the sync that covers them
    store.read(lane, ...)   entries of a lane, synced or not: storage does not know what is committed

The contract is order: operations become durable in the order of the `write` calls and, within one call, in the order
given. A power cut keeps everything that was acknowledged and at most a prefix, in operations, of the rest.

Damaged is not the same as absent. Storage remembers how far a damaged lane once reached: until the lane is stored again
up to there (or cut by `SaveCut`), every load reports `damaged_from` = its end + 1, also after further restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct

from avow import limits
from avow.replication.durable import StoreImage, Synced
from avow.replication.effects import Persist
from avow.wire.messages import Entry

Then: TypeAlias = Callable[[Synced], None]


class Sizes(Struct, frozen=True):
    """Sizes of one store's files. Tests use tiny ones, so that every file is full after a few writes."""

    wal_segment_bytes: int = limits.WAL_SEGMENT_SIZE_BYTES
    wal_segments: int = limits.WAL_SEGMENTS_MIN
    lane_segment_bytes: int = limits.LANE_SEGMENT_SIZE_BYTES
    index_interval_bytes: int = limits.INDEX_INTERVAL_BYTES
    reserved_bytes: int = limits.RESERVED_SIZE_BYTES


class StoreStatistics(Struct, frozen=True, gc=False):
    """Counts since the store was opened; sizes are current."""

    writes: int
    operations: int
    syncs: int
    pending_writes: int
    lanes: int
    entries_held: int
    size_bytes: int
    full: bool
    damage_found: int


class Store(Protocol):
    """The interface of `MemoryStore` and `FileStore`; the contract tests check both."""

    def load(self) -> StoreImage:
        """Call once, before the first write. The caller may change the images."""
        ...

    def write(self, ops: Sequence[Persist], then: Then) -> None:
        """Accept these operations, in order. `then` is called exactly once, after the sync that covers all of them.

        Raises DiskFull before anything is accepted if there is no space; promises (state, fence, run) are still
        accepted. Raises ValueError, here or at the sync, if operations do not fit the lane (a gap, a cut below the
        snapshot).
        """
        ...

    def read(self, lane: int, *, after: int, max_entries: int, max_bytes: int) -> list[Entry]:
        """Entries after `after`: at least one if there is one, then as many as both limits allow.

        Raises Trimmed if they were deleted, StorageDamaged if the first one cannot be read.
        """
        ...

    def statistics(self) -> StoreStatistics: ...

    def close(self) -> None:
        """Sync what was written, run its callbacks, close everything. Nothing may be written afterwards."""
        ...


def entry_size_bytes(entry: Entry) -> int:
    """The size of an entry's variable part, which `max_bytes` of a read limits."""
    return len(entry.control) + len(entry.batch)
