"""The face of storage: what a peer may ask of its disk, and how it learns that something is durable.

A peer that acknowledges a write before the disk holds it will, sooner or later, lose an acknowledged write. Storage
therefore has exactly one way of saying "durable": the `Synced` receipt handed to the callback of `write`. Code outside
this package cannot build one, so a function that takes a `Synced` cannot be called too early by mistake.

    store.load()            once, before anything is written: what the last run left behind
    store.write(ops, then)  keep these operations, in order; `then(receipt)` runs after the sync that covers them
    store.read(lane, ...)   entries of a lane, synced or not: what is committed is not for storage to decide

Order is the whole contract: operations become durable in the order of the `write` calls and, inside one call, in the
order given. A power cut keeps everything that was acknowledged and at most a prefix, in operations, of the rest.

Damage is not absence. Storage remembers how far a damaged lane once reached: until the lane is stored again to there
(or cut by `SaveCut`), every load says `damaged_from` = its end + 1, however often the process restarts meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec import Struct

from avow.errors import StorageDamaged
from avow.replication.effects import LaneImage, Persist
from avow.wire.messages import Entry

_SEAL: Final = object()


class Synced:
    """Proof of one sync. `group` counts the syncs of this run, from 1. Only storage can make one."""

    __slots__ = ("group",)

    def __init__(self, group: int, *, seal: object = None) -> None:
        if seal is not _SEAL:
            raise TypeError("a Synced receipt comes out of a sync; it cannot be made anywhere else")
        self.group = group

    def __repr__(self) -> str:
        return f"Synced(group={self.group})"


def _receipt(group: int) -> Synced:
    """For the stores of this package, to be called after their sync returned, and nowhere else."""
    return Synced(group, seal=_SEAL)


Then = Callable[[Synced], None]


class StoreImage(Struct, gc=False):
    """What a store found at start. `damage` lists every flaw met, also those a second copy made good."""

    incarnation: int
    lanes: dict[int, LaneImage]
    damage: list[StorageDamaged]


class StoreStatistics(Struct, frozen=True, gc=False):
    """Counts since the store was opened; sizes are of now."""

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
    """What `MemoryStore` and `FileStore` both are; the contract tests hold both to it."""

    def load(self) -> StoreImage:
        """Call once, before the first write. The images are the caller's to change."""
        ...

    def write(self, ops: Sequence[Persist], then: Then) -> None:
        """Take these operations, in order. `then` is called exactly once, after the sync that covers all of them.

        Raises DiskFull before anything is taken when there is no room; promises (state, fence, run) still are taken.
        Raises ValueError when operations do not fit the lane (a gap, a cut below the snapshot), here or at the sync.
        """
        ...

    def read(self, lane: int, *, after: int, max_entries: int, max_bytes: int) -> list[Entry]:
        """Entries after `after`, at least one if there is one, then as many as both bounds allow.

        Raises Trimmed when they are no longer held, StorageDamaged when the first one cannot be read.
        """
        ...

    def statistics(self) -> StoreStatistics: ...

    def close(self) -> None:
        """Sync what was written, run its callbacks, let go of everything. Nothing may be written afterwards."""
        ...


def entry_size_bytes(entry: Entry) -> int:
    """The variable part of an entry: what `max_bytes` of a read is counted in."""
    return len(entry.control) + len(entry.batch)
