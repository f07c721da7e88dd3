"""The contract of every store: the same tests run on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.contract.storage.storage_workload import (
    BENCHES,
    Bench,
    MemoryBench,
    Workload,
    entry,
    ignore,
    images_after,
    snapshot,
)

from avow.errors import Trimmed
from avow.replication.durable import Synced
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


@pytest.fixture(params=BENCHES)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made = BENCHES[request.param](tmp_path)
    assert made.store.load().lanes == {}
    yield made
    made.store.close()


def positions(
    bench: Bench, lane: int, *, after: int = 0, max_entries: int = 100, max_bytes: int = 1 << 20
) -> list[int]:
    found = bench.store.read(lane, after=after, max_entries=max_entries, max_bytes=max_bytes)
    return [each.position for each in found]


def save(bench: Bench, *ops: Persist) -> None:
    bench.store.write(ops, ignore)


def appended(lane: int, first: int, last: int, *, origin: int = 1, size: int = 24) -> SaveEntries:
    return SaveEntries(lane, tuple(entry(position, origin=origin, size=size) for position in range(first, last + 1)))


def test_a_receipt_cannot_be_made_outside_storage() -> None:
    with pytest.raises(TypeError):
        Synced(1)


def test_the_callback_is_called_once_and_only_after_a_sync(bench: Bench) -> None:
    receipts: list[Synced] = []
    bench.store.write([appended(1, 1, 2)], receipts.append)
    bench.sync()
    assert len(receipts) == 1
    bench.sync()
    assert len(receipts) == 1
    assert receipts[0].group >= 1


def test_callbacks_are_called_in_the_order_of_the_writes(bench: Bench) -> None:
    order: list[int] = []
    for number in range(20):
        bench.store.write([appended(1, number + 1, number + 1)], lambda receipt, number=number: order.append(number))  # type: ignore[misc]
    bench.sync()
    assert order == list(range(20))


def test_synced_entries_survive_a_power_cut(bench: Bench) -> None:
    save(bench, SaveRun(3), SaveState(1, 70_000, 65_537), appended(1, 1, 5), SaveFence(2, -1), SaveFence(3, 9))
    bench.sync()
    image = bench.power_cut()
    assert image.incarnation == 3
    assert (image.lanes[1].promised, image.lanes[1].stamped) == (70_000, 65_537)
    assert image.lanes[1].entries == [entry(position) for position in range(1, 6)]
    assert (image.lanes[2].fenced, image.lanes[2].decided_end) == (True, -1)
    assert (image.lanes[3].fenced, image.lanes[3].decided_end) == (True, 9)
    assert image.damage == []


def test_entries_at_a_held_position_replace_the_rest(bench: Bench) -> None:
    save(bench, appended(1, 1, 6))
    bench.sync()
    save(bench, appended(1, 4, 4, origin=2))
    assert positions(bench, 1) == [1, 2, 3, 4]
    bench.sync()
    assert [each.origin for each in bench.power_cut().lanes[1].entries] == [1, 1, 1, 2]


def test_a_cut_drops_everything_after_it(bench: Bench) -> None:
    save(bench, appended(1, 1, 6), SaveCut(1, 2))
    bench.sync()
    assert positions(bench, 1) == [1, 2]
    assert [each.position for each in bench.power_cut().lanes[1].entries] == [1, 2]


def test_an_image_starts_after_its_snapshot_and_older_entries_stay_readable(bench: Bench) -> None:
    save(bench, appended(1, 1, 6), SaveSnapshot(1, snapshot(4), reset=False))
    bench.sync()
    image = bench.power_cut()
    assert image.lanes[1].snapshot == snapshot(4)
    assert [each.position for each in image.lanes[1].entries] == [5, 6]
    assert positions(bench, 1) == [1, 2, 3, 4, 5, 6]


def test_a_snapshot_from_another_peer_replaces_the_log(bench: Bench) -> None:
    save(bench, appended(1, 1, 6), SaveSnapshot(1, snapshot(40), reset=True), appended(1, 41, 42))
    bench.sync()
    assert positions(bench, 1, after=40) == [41, 42]
    image = bench.power_cut()
    assert image.lanes[1].snapshot == snapshot(40)
    assert [each.position for each in image.lanes[1].entries] == [41, 42]


def test_a_trim_never_passes_the_newest_snapshot(bench: Bench) -> None:
    save(bench, appended(1, 1, 9), SaveTrim(1, 3), SaveSnapshot(1, snapshot(6), reset=False), SaveTrim(1, 8))
    bench.sync()
    with pytest.raises(Trimmed):
        positions(bench, 1, after=5)
    assert positions(bench, 1, after=6) == [7, 8, 9]
    assert [each.position for each in bench.power_cut().lanes[1].entries] == [7, 8, 9]
    with pytest.raises(Trimmed):
        positions(bench, 1, after=0)


def test_reads_see_entries_that_are_not_synced_yet(bench: Bench) -> None:
    save(bench, appended(1, 1, 3))
    bench.sync()
    save(bench, appended(1, 4, 5))
    assert positions(bench, 1, after=1) == [2, 3, 4, 5]
    assert positions(bench, 1, after=5) == []
    assert positions(bench, 77) == []


def test_a_read_respects_its_bounds_and_returns_at_least_one_entry(bench: Bench) -> None:
    save(bench, appended(1, 1, 50, size=40))
    bench.sync()
    assert positions(bench, 1, after=10, max_entries=3) == [11, 12, 13]
    assert positions(bench, 1, after=10, max_bytes=100) == [11, 12]
    assert positions(bench, 1, after=10, max_bytes=1) == [11]


def test_invalid_operations_are_refused_by_the_sync_at_the_latest(bench: Bench) -> None:
    if not isinstance(bench, MemoryBench):
        save(bench, appended(1, 1, 3))
        with pytest.raises(ValueError, match="do not continue"):
            save(bench, SaveState(1, 5, 5), appended(1, 5, 5))
        save(bench, appended(1, 4, 4))
        assert positions(bench, 1) == [1, 2, 3, 4]
        return
    save(bench, appended(1, 2, 2))
    with pytest.raises(ValueError, match="leaves a gap"):
        bench.sync()


def test_statistics_count_writes_operations_and_syncs(bench: Bench) -> None:
    save(bench, appended(1, 1, 3), SaveState(2, 1, 1))
    bench.sync()
    found = bench.store.statistics()
    assert (found.operations, found.lanes, found.entries_held, found.full) == (2, 2, 3, False)
    assert found.writes >= 1
    assert found.syncs >= 1


@pytest.mark.parametrize("seed", range(6))
def test_a_long_random_history_survives_restarts_and_reads_the_same(bench: Bench, seed: int) -> None:
    random = Random(seed)
    work, done = Workload(random), list[Persist]()
    for _ in range(12):
        for _ in range(random.randrange(1, 12)):
            ops = work.write()
            done += ops
            save(bench, *ops)
            if random.random() < 0.3:
                bench.sync()
        bench.sync()
        image = bench.restart() if random.random() < 0.5 else bench.power_cut()
        assert image == images_after(done, least=len(done))[0], f"seed {seed}"


def test_reads_agree_with_the_memory_store_at_every_position() -> None:
    for seed in range(8):
        _compare_reads(Random(seed))


def _compare_reads(random: Random) -> None:
    twin, other, work = BENCHES["memory"](Path()), BENCHES["recorded"](Path()), Workload(random)
    other.store.load()
    for _ in range(60):
        ops = work.write()
        save(twin, *ops)
        save(other, *ops)
        if random.random() < 0.4:
            twin.sync()
            other.sync()
        after, lane = random.randrange(30), random.randrange(3)
        assert _read_or_trimmed(twin, lane, after) == _read_or_trimmed(other, lane, after)


def _read_or_trimmed(bench: Bench, lane: int, after: int) -> object:
    try:
        return bench.store.read(lane, after=after, max_entries=9, max_bytes=300)
    except Trimmed:
        return "trimmed"
