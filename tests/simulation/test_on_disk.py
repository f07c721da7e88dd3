"""The simulated cluster with its disks doubled: every store is also kept in files, and both must find the same.

The simulator runs on the in-memory store. What it proves holds for a peer only if the store in files does the same
under the same operations, in the order and mixture real cores produce, through the same power cuts. Here each machine
has both; at every start of a process what they load is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from msgspec.structs import replace

from avow.node.node import Node
from avow.replication.durable import StoreImage, Synced
from avow.replication.effects import LaneImage, Persist
from avow.storage.file_store import FileStore
from avow.storage.memory import MemoryStore
from avow.storage.store import Sizes, Then
from avow_lab.simulator.plan import draw_plan
from avow_lab.simulator.power_cut import Event, RecordedFiles
from avow_lab.simulator.simulation import Simulation
from avow_lab.simulator.world import World

SMALL = Sizes(
    wal_segment_bytes=64 * 1024,
    wal_segments=3,
    lane_segment_bytes=8 * 1024,
    index_interval_bytes=512,
    reserved_bytes=4096,
)
NOT_TWINNED = frozenset({"damage", "disk full"})  # these are asked of the memory store alone
SEEDS = range(100, 110)


class TwinStore(MemoryStore):
    """A memory store that keeps the same operations in files, and compares at every start."""

    compared = 0

    def __init__(self, files: RecordedFiles | None = None) -> None:
        super().__init__()
        self._files = files or RecordedFiles()
        self._disk = FileStore(self._files, sizes=SMALL, background=False, nonce=lambda: 7)
        self._disk_loaded = False
        self._not_on_disk: list[Sequence[Persist]] = []
        if files is None:
            self.load()

    def load(self) -> StoreImage:
        image = super().load()
        if not self._disk_loaded:
            self._disk_loaded = True
            found = self._disk.load()
            assert found.damage == [], "a power cut is not damage"
            assert found.incarnation == image.incarnation
            assert {number: _plain(lane) for number, lane in found.lanes.items()} == {
                number: _plain(lane) for number, lane in image.lanes.items()
            }
            type(self).compared += bool(image.lanes)
        return image

    def write(self, ops: Sequence[Persist], then: Then) -> None:
        super().write(ops, then)
        self._not_on_disk.append(list(ops))

    def sync(self, upto: int | None = None) -> None:
        self._to_disk(len(self._not_on_disk) if upto is None else upto)
        super().sync(upto)

    def _to_disk(self, count: int) -> None:
        taken, self._not_on_disk = self._not_on_disk[:count], self._not_on_disk[count:]
        for ops in taken:
            if ops:
                self._disk.write(ops, _nothing)
        self._disk.sync()

    def crash(self, *, keep: int = 0, torn: int = 0) -> MemoryStore:
        self._to_disk(keep)
        if self._not_on_disk:
            self._not_on_disk = [self._not_on_disk[0][:torn]]
            self._to_disk(1)
        rng = Random(keep * 31 + torn)

        def survives(event: Event) -> int:
            return int(rng.random() * (event.size + 1))

        remembered = super().crash(keep=keep, torn=torn)
        survivor = TwinStore(self._files.cut(survives))
        remembered._hand_over(survivor)
        return survivor


def _plain(image: LaneImage) -> tuple[object, ...]:
    entries = [replace(entry, batch=bytes(entry.batch), control=bytes(entry.control)) for entry in image.entries]
    damaged = image.damaged_from
    return (image.promised, image.stamped, image.snapshot, entries, damaged, image.fenced, image.decided_end)


def _nothing(_receipt: Synced) -> None:
    """The memory store's callback is the one that counts."""


class TwinWorld(World[Node]):
    store_class = TwinStore


def run(strategy: str, seed: int) -> str:
    plan = draw_plan(seed, strategy=strategy)
    plan = replace(plan, faults=tuple(kind for kind in plan.faults if kind not in NOT_TWINNED))
    return Simulation(plan, world=TwinWorld).run().violation


@pytest.mark.parametrize("strategy", ["two-phase", "pub-sub", "mixed"])
@pytest.mark.parametrize("seed", SEEDS)
def test_file_and_memory_stores_recover_the_same_state_at_every_start(strategy: str, seed: int) -> None:
    assert not run(strategy, seed)


def test_many_starts_were_compared() -> None:
    before = TwinStore.compared
    for seed in range(200, 210):
        assert not run("mixed", seed)
    assert TwinStore.compared - before >= 10
