"""A store in memory, for simulators and tests: the same contract as the store on disk.

A simulated cluster spends much of its time here, so `write` only appends and `sync` folds each operation once, into
plain lists. It can fail like a disk:

    sync(upto)           makes the first writes durable, in order, and runs their callbacks
    crash(keep, torn)    a power cut: pending writes are lost, except the first ones and some operations of the next
    damage(lane, pos)    a stored entry can no longer be read
    lose_log(random)     a part of the log is gone that was synced: entries, promises, fences, whole lanes
    full = True          entries are refused with DiskFull; promises are still stored

Entries are immutable and never copied; lists of them are copied only when they are returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from avow.errors import DiskFull, StorageDamaged, Trimmed
from avow.ids import REPAIRING
from avow.queue.records import StoredFile
from avow.replication.durable import LOST_UNBOUNDED, Place, StoreImage, synced_receipt
from avow.replication.effects import (
    LaneImage,
    Persist,
    SaveCut,
    SaveEntries,
    SaveFence,
    SaveLossBound,
    SaveRun,
    SaveSnapshot,
    SaveState,
    SaveTrim,
)
from avow.storage.store import StoreStatistics, Then, entry_size_bytes
from avow.wire.messages import Entry, Snapshot

FILE_ENTRIES: Final = 4


class MemoryLane:
    """`entries[0]` is at position base + 1. `lost_upto`: the lane once reached this position and was damaged."""

    __slots__ = ("base", "damaged", "decided_end", "entries", "fenced", "lost_upto", "promised", "snapshot", "stamped")

    def __init__(self) -> None:
        self.promised = 0
        self.stamped = 0
        self.snapshot: Snapshot | None = None
        self.base = 0
        self.entries: list[Entry] = []
        self.damaged: set[int] = set()
        self.lost_upto = 0
        self.fenced = False
        self.decided_end = -1

    @property
    def end(self) -> int:
        return self.base + len(self.entries)

    def append(self, entries: Sequence[Entry]) -> None:
        """Contiguous entries, which replace the lane's entries from the first one's position on."""
        held = self.entries
        keep = entries[0].position - self.base - 1
        if keep != len(held):
            self._cut(keep)
        held += entries

    def cut(self, end: int) -> None:
        if self.snapshot is not None and end < self.snapshot.position:
            raise ValueError(f"a cut at {end} is below the snapshot at {self.snapshot.position}; nothing was cut")
        self.lost_upto = min(self.lost_upto, end)
        if end < self.end:
            self._cut(end - self.base)

    def _cut(self, keep: int) -> None:
        if not 0 <= keep <= len(self.entries):
            raise ValueError(
                f"the lane has entries {self.base + 1} to {self.end}; an entry at {self.base + keep + 1} leaves a gap"
            )
        del self.entries[keep:]
        if self.damaged:
            self.damaged = {position for position in self.damaged if position <= self.base + keep}

    def take_snapshot(self, snapshot: Snapshot, *, reset: bool) -> None:
        if reset:
            self.snapshot, self.base, self.entries, self.damaged = snapshot, snapshot.position, [], set()
        elif snapshot.position > self.end:
            raise ValueError(f"a snapshot at {snapshot.position} is beyond the lane's end at {self.end}")
        elif self.snapshot is None or snapshot.position > self.snapshot.position:
            self.snapshot = snapshot

    def trim(self, upto: int) -> None:
        """Never beyond the newest snapshot: without one the entries are the only copy of the state."""
        upto = min(upto, 0 if self.snapshot is None else self.snapshot.position)
        if upto > self.base:
            del self.entries[: upto - self.base]
            self.base = upto

    def end_before_damage(self) -> None:
        """At a restart: end the lane before its first unreadable entry, and remember how far it reached."""
        applied = 0 if self.snapshot is None else self.snapshot.position
        first = min((p for p in self.damaged if p > applied), default=0)
        if first:
            self.lost_upto = max(self.lost_upto, self.end)
            self._cut(first - 1 - self.base)

    def image(self) -> LaneImage:
        applied = 0 if self.snapshot is None else self.snapshot.position
        return LaneImage(
            promised=self.promised,
            stamped=self.stamped,
            snapshot=self.snapshot,
            entries=self.entries[applied - self.base :],
            damaged_from=self.end + 1 if self.lost_upto > self.end else 0,
            fenced=self.fenced,
            decided_end=self.decided_end,
        )

    def forget_after(self, end: int) -> None:
        """The entries after `end` are lost, and nothing here says that they were there."""
        self.lost_upto = max(self.lost_upto, self.end)
        self._cut(end - self.base)

    def copy(self) -> MemoryLane:
        twin = MemoryLane()
        twin.promised, twin.stamped, twin.snapshot = self.promised, self.stamped, self.snapshot
        twin.base, twin.entries, twin.damaged = self.base, self.entries.copy(), self.damaged.copy()
        twin.lost_upto, twin.fenced, twin.decided_end = self.lost_upto, self.fenced, self.decided_end
        return twin


class MemoryStore:
    """See the module's docstring. Not thread-safe."""

    def __init__(self) -> None:
        self.full = False
        self.incarnation = 0
        self.lost_below = self.lost_promised = 0  # as in StoreImage
        self._promised = 0  # the highest of any lane, as the log's mark has it
        self._lanes: dict[int, MemoryLane] = {}
        self._lost_lanes: dict[int, int] = {}  # lanes lost as a whole, and where they ended
        self._pending: list[tuple[Sequence[Persist], Then]] = []
        self._writes = self._operations = self._syncs = self._damage_found = 0

    @property
    def pending(self) -> int:
        """Writes that wait for a sync."""
        return len(self._pending)

    def load(self) -> StoreImage:
        damage: list[StorageDamaged] = []
        for number, lane in self._lanes.items():
            damage += [self._flaw(number, position) for position in sorted(lane.damaged)]
            lane.end_before_damage()
        self._damage_found += len(damage)
        lanes = {number: lane.image() for number, lane in self._lanes.items()}
        return StoreImage(self.incarnation, lanes, damage, self.lost_below, self.lost_promised)

    def write(self, ops: Sequence[Persist], then: Then) -> None:
        if self.full and any(type(op) is SaveEntries for op in ops):
            raise DiskFull("the disk is full; nothing was stored. Reads still work. Free disk space, then retry")
        self._pending.append((ops, then))

    def sync(self, upto: int | None = None) -> None:
        """Make the first `upto` pending writes durable (all of them by default), then run their callbacks in order."""
        if upto is None:
            synced, self._pending = self._pending, []
        else:
            synced = self._pending[:upto]
            del self._pending[:upto]
        if not synced:
            return
        for ops, _ in synced:
            self._operations += len(ops)
            for op in ops:
                self._fold(op)
        self._writes += len(synced)
        self._syncs += 1
        receipt = synced_receipt(self._syncs)
        for _, then in synced:
            then(receipt)

    def _fold(self, op: Persist) -> None:
        kind = type(op)
        if kind is SaveRun:
            self.incarnation = op.incarnation  # type: ignore[union-attr]
            return
        if kind is SaveLossBound:
            self.lost_below = op.below  # type: ignore[union-attr]
            return
        lane = self._lanes.get(op.lane)  # type: ignore[union-attr]
        if lane is None:
            lane = self._lanes[op.lane] = MemoryLane()  # type: ignore[union-attr]
        if kind is SaveEntries:
            lane.append(op.entries)  # type: ignore[union-attr]
        else:
            _fold_rare(lane, op)
            self._promised = max(self._promised, lane.promised)

    def crash(self, *, keep: int = 0, torn: int = 0) -> MemoryStore:
        """A power cut: the first `keep` pending writes survive, and of the next one its first `torn` operations.

        No callback runs. Returns the store of the next run; this one must not be used any more.
        """
        survivor = self._successor()
        self._hand_over(survivor)
        for ops, _ in self._pending[:keep]:
            for op in ops:
                survivor._fold(op)
        for ops, _ in self._pending[keep : keep + 1]:
            for op in ops[:torn]:
                survivor._fold(op)
        self._pending, self._lanes = [], {}
        return survivor

    def _successor(self) -> MemoryStore:
        return MemoryStore()

    def _hand_over(self, survivor: MemoryStore) -> None:
        survivor.full, survivor.incarnation, survivor._lanes = self.full, self.incarnation, self._lanes
        survivor.lost_below, survivor.lost_promised = self.lost_below, self.lost_promised
        survivor._promised, survivor._lost_lanes = self._promised, self._lost_lanes

    def lose_log(self, random: Callable[[], float]) -> None:
        """Files of the log are gone: each lane may lack any of its last operations, and some lack all of them."""
        for number, lane in list(self._lanes.items()):
            drawn, end = random(), lane.end
            if drawn < 0.2:
                del self._lanes[number]
                self._lost_lanes[number] = max(end, self._lost_lanes.get(number, 0))
                continue
            if drawn < 0.7:
                keep = max(0 if lane.snapshot is None else lane.snapshot.position, lane.base)
                lane.forget_after(keep + int(random() * (end - keep + 1)))
            if drawn < 0.5:
                lane.promised = lane.stamped = 0
            if drawn < 0.4 and lane.decided_end < 0:
                lane.fenced = False
        self._distrust()

    def _distrust(self) -> None:
        """What the mark says of the log does not match it: no copy here counts, no promise is contradicted."""
        for lane in self._lanes.values():
            lane.promised, lane.stamped, lane.fenced = max(lane.promised, self._promised), REPAIRING, True
            lane.lost_upto = max(lane.lost_upto, lane.end + 1)
        self.lost_below, self.lost_promised = LOST_UNBOUNDED, self._promised

    def damage(self, lane: int, position: int) -> None:
        """The synced entry at `position` can no longer be read. The next load reports it."""
        held = self._lanes[lane]
        if not held.base < position <= held.end:
            raise ValueError(f"lane {lane} has entries {held.base + 1} to {held.end}, not {position}")
        held.damaged.add(position)

    def durable(self, lane: int, position: int) -> Entry | None:
        """The synced entry at `position`, damaged or not; None: there is none."""
        held = self._lanes.get(lane)
        if held is None or not held.base < position <= held.end:
            return None
        return held.entries[position - held.base - 1]

    def holds(self, lane: int) -> bool:
        """Whether a snapshot or an entry of the lane is synced."""
        held = self._lanes.get(lane)
        return held is not None and (held.snapshot is not None or bool(held.entries))

    def lost_upto(self, lane: int) -> int:
        """How far the lane had reached when a restart found it damaged; 0: undamaged."""
        held = self._lanes.get(lane)
        return max(0 if held is None else held.lost_upto, self._lost_lanes.get(lane, 0))

    def read(self, lane: int, *, after: int, max_entries: int, max_bytes: int) -> list[Entry]:
        held = self._seen(lane)
        if after < held.base:
            raise Trimmed(
                f"entry {after + 1} of lane {lane} was trimmed; the first one left is {held.base + 1}. Read from there"
            )
        if held.end <= after < held.lost_upto:
            raise self._flaw(lane, after + 1)
        found: list[Entry] = []
        room = max_bytes
        for entry in held.entries[after - held.base : after - held.base + max_entries]:
            room -= entry_size_bytes(entry)
            if found and room < 0:
                break
            if entry.position in held.damaged:
                if found:
                    break
                raise self._flaw(lane, entry.position)
            found.append(entry)
        return found

    def places(self, lane: int, *, after: int, upto: int) -> list[Place]:  # noqa: ARG002
        """There are no files, so there are no places."""
        return []

    def stored_files(self, lane: int) -> list[StoredFile]:
        """As if each file had `FILE_ENTRIES` entries; the last one, which is being written, is not listed."""
        held = self._lanes.get(lane)
        if held is None:
            return []
        entries, files = held.entries, []
        for at in range(0, len(entries) - FILE_ENTRIES, FILE_ENTRIES):
            part = entries[at : at + FILE_ENTRIES]
            newest_ms = max(entry.created_ms for entry in part)
            files.append(StoredFile(part[-1].position, sum(map(entry_size_bytes, part)), newest_ms))
        return files

    def _seen(self, number: int) -> MemoryLane:
        """The lane with its pending writes folded in. Copied only if there are any."""
        lane = self._lanes.get(number) or MemoryLane()
        waiting = [op for ops, _ in self._pending for op in ops if getattr(op, "lane", None) == number]
        if not waiting:
            return lane
        seen = lane.copy()
        for op in waiting:
            if isinstance(op, SaveEntries):
                seen.append(op.entries)
            else:
                _fold_rare(seen, op)
        return seen

    def _flaw(self, lane: int, position: int) -> StorageDamaged:
        return StorageDamaged(file=f"memory/lane-{lane}", position=position, expected="entry", found="damage")

    def statistics(self) -> StoreStatistics:
        held = [entry for lane in self._lanes.values() for entry in lane.entries]
        return StoreStatistics(
            writes=self._writes,
            operations=self._operations,
            syncs=self._syncs,
            pending_writes=len(self._pending),
            lanes=len(self._lanes),
            entries_held=len(held),
            size_bytes=sum(map(entry_size_bytes, held)),
            full=self.full,
            damage_found=self._damage_found,
        )

    def close(self) -> None:
        self.sync()


def _fold_rare(lane: MemoryLane, op: Persist) -> None:
    """Every operation on a lane except SaveEntries, which is checked first because nearly all operations are that."""
    if isinstance(op, SaveState):
        lane.promised, lane.stamped = op.promised, op.stamped
    elif isinstance(op, SaveCut):
        lane.cut(op.end)
    elif isinstance(op, SaveSnapshot):
        lane.take_snapshot(op.snapshot, reset=op.reset)
    elif isinstance(op, SaveTrim):
        lane.trim(op.upto)
    elif isinstance(op, SaveFence):
        lane.fenced, lane.decided_end = True, max(lane.decided_end, op.end)
