"""Random operations that fit their lanes, and the stores the contract is checked on.

Everything comes from one seeded generator, so a failing run is repeated by its seed. The reference for what a store
should hold after n operations is the in-memory store, folded one operation at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Protocol

from avow.replication.durable import StoreImage, Synced
from avow.replication.effects import (
    Persist,
    SaveCut,
    SaveEntries,
    SaveFence,
    SaveRun,
    SaveSnapshot,
    SaveState,
    SaveTrim,
)
from avow.storage.file_store import FileStore
from avow.storage.files import DiskFiles
from avow.storage.lane import fold
from avow.storage.lane_state import LaneState
from avow.storage.memory import MemoryStore
from avow.storage.recovery import Sizes
from avow.storage.store import Store
from avow.wire.messages import Entry, Kind, Snapshot
from avow_lab.simulator.power_cut import RecordedFiles

TINY = Sizes(
    wal_segment_bytes=24 * 1024,
    wal_segments=3,
    lane_segment_bytes=1200,
    index_interval_bytes=250,
    reserved_bytes=8 * 1024,
)


def entry(position: int, *, origin: int = 1, size: int = 24) -> Entry:
    return Entry(position, origin, Kind.DATA, 1, bytes([origin % 251]) * 16, 7, b"", bytes([position % 251]) * size)


def snapshot(position: int, *, origin: int = 1) -> Snapshot:
    return Snapshot(position, origin, (1, 2, 3), (), b"state at %d" % position)


class Workload:
    """Draws operations for a few lanes. Lane 0 is only ever appended to; the others see everything."""

    def __init__(self, random: Random, *, lanes: int = 3) -> None:
        self._random, self._lanes = random, lanes
        self._states = [LaneState() for _ in range(lanes)]
        self._clock = 0

    def write(self) -> list[Persist]:
        return [self._draw() for _ in range(self._random.choice((1, 1, 1, 2, 3)))]

    def _draw(self) -> Persist:
        self._clock += 1
        lane = self._random.randrange(self._lanes)
        state = self._states[lane]
        if lane == 0:
            op: Persist = self._entries(lane, state.end + 1)
        else:
            op = self._random.choice(
                (self._append, self._append, self._append, self._replace, self._cut, self._snap, self._trim, self._rest)
            )(lane, state)
        if not isinstance(op, SaveRun):
            fold(state, op)
        return op

    def _entries(self, lane: int, first: int) -> SaveEntries:
        count = self._random.choice((1, 1, 2, 3))
        made = (entry(first + n, origin=self._clock, size=self._random.randrange(0, 90)) for n in range(count))
        return SaveEntries(lane, tuple(made))

    def _append(self, lane: int, state: LaneState) -> Persist:
        return self._entries(lane, state.end + 1)

    def _replace(self, lane: int, state: LaneState) -> Persist:
        return self._entries(lane, self._random.randint(max(state.base, state.snapshot) + 1, state.end + 1))

    def _cut(self, lane: int, state: LaneState) -> Persist:
        return SaveCut(lane, self._random.randint(max(state.base, state.snapshot), state.end))

    def _snap(self, lane: int, state: LaneState) -> Persist:
        if self._random.random() < 0.3:
            return SaveSnapshot(lane, snapshot(state.end + self._random.randrange(4), origin=self._clock), reset=True)
        return SaveSnapshot(
            lane, snapshot(self._random.randint(max(0, state.snapshot), state.end), origin=self._clock), False
        )

    def _trim(self, lane: int, state: LaneState) -> Persist:
        return SaveTrim(lane, self._random.randint(0, state.end + 1))

    def _rest(self, lane: int, state: LaneState) -> Persist:
        drawn = (
            SaveState(lane, self._clock, state.promised),
            SaveFence(lane, self._clock % 5 - 1),
            SaveRun(self._clock),
        )
        return self._random.choice(drawn)


def images_after(ops: list[Persist], *, least: int) -> list[StoreImage]:
    """All states that a store may have if the first `least` operations are certain and some of the rest."""
    twin = MemoryStore()
    twin.write(ops[:least], ignore)
    twin.sync()
    images = [twin.load()]
    for op in ops[least:]:
        twin.write([op], ignore)
        twin.sync()
        images.append(twin.load())
    return images


def ignore(receipt: Synced) -> None:
    pass


class Bench(Protocol):
    """A store, with the means to make it sync and to take its power away."""

    @property
    def store(self) -> Store: ...

    def sync(self) -> None: ...

    def power_cut(self) -> StoreImage: ...

    def restart(self) -> StoreImage: ...


class MemoryBench:
    def __init__(self) -> None:
        self.store = MemoryStore()

    def sync(self) -> None:
        self.store.sync()

    def power_cut(self) -> StoreImage:
        self.store = self.store.crash()
        return self.store.load()

    def restart(self) -> StoreImage:
        self.store.close()
        return self.power_cut()


class RecordedBench:
    def __init__(self) -> None:
        self.files = RecordedFiles()
        self.store = FileStore(self.files, sizes=TINY, background=False)

    def sync(self) -> None:
        self.store.sync()

    def power_cut(self) -> StoreImage:
        self.files = self.files.cut(lambda event: 0)
        self.store = FileStore(self.files, sizes=TINY, background=False)
        return self.store.load()

    def restart(self) -> StoreImage:
        self.store.close()
        return self.power_cut()


class DiskBench:
    """The shipped store with its threads. A power cut is not possible here; a restart replaces it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.store = self._open()

    def _open(self) -> FileStore:
        return FileStore(DiskFiles(self._root), sizes=TINY)

    def sync(self) -> None:
        synced = threading.Event()
        self.store.write([], lambda receipt: synced.set())
        assert synced.wait(20)

    def power_cut(self) -> StoreImage:
        return self.restart()

    def restart(self) -> StoreImage:
        self.store.close()
        self.store = self._open()
        return self.store.load()


class InPlaceBench(DiskBench):
    """As on a peer with a fast disk: the writer also syncs."""

    def _open(self) -> FileStore:
        return FileStore(DiskFiles(self._root), sizes=TINY, in_place_below_s=60.0)


BENCHES: dict[str, Callable[[Path], Bench]] = {
    "memory": lambda root: MemoryBench(),
    "recorded": lambda root: RecordedBench(),
    "disk": DiskBench,
    "in place": InPlaceBench,
}
