"""A byte that was synced has changed. It is always noticed, costs a lane at most its end, and never costs a promise."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.contract.storage.storage_workload import TINY, MemoryBench, RecordedBench, entry, ignore, snapshot

from avow.errors import StorageDamaged, UnfitToVote
from avow.ids import REPAIRING
from avow.replication.durable import LOST_UNBOUNDED, StoreImage
from avow.replication.effects import LaneImage, SaveCut, SaveEntries, SaveFence, SaveRun, SaveSnapshot, SaveState
from avow.storage.file_store import FileStore
from avow.storage.replay import SegmentScan, opening_of
from avow.storage.wal_records import BLOCK_BYTES, HEADER_BYTES, SEGMENT_START, WalKind
from avow_lab.simulator.power_cut import RecordedFiles

SMALL = replace(
    TINY, wal_segments=1, lane_segment_bytes=400, reserved_bytes=512
)  # less to copy for each of many thousand starts


def opened(files: RecordedFiles) -> FileStore:
    return FileStore(files, sizes=SMALL, background=False, nonce=lambda: 7)


def appended(lane: int, first: int, last: int, *, origin: int = 1) -> SaveEntries:
    return SaveEntries(lane, tuple(entry(position, origin=origin) for position in range(first, last + 1)))


def small_store() -> RecordedFiles:
    """Older entries only in lane files (a full, indexed one among them), newer ones also in the log; then killed."""
    files = RecordedFiles()
    store = opened(files)
    store.load()
    store.write([SaveRun(1), SaveState(1, 65_537, 65_537), appended(1, 1, 4), SaveFence(3, -1)], ignore)
    store.sync()
    store.rest()
    store.write([appended(1, 5, 6), appended(2, 1, 3), SaveSnapshot(2, snapshot(2), reset=False)], ignore)
    store.close()
    store = opened(files)
    store.load()
    store.write([SaveRun(2), SaveState(1, 131_073, 65_537), appended(1, 7, 8)], ignore)
    store.sync()
    store.write([appended(2, 4, 4), SaveFence(3, 5)], ignore)
    store.sync()
    store.rest()
    return files.copy()


def log_of(files: RecordedFiles) -> tuple[str, SegmentScan]:
    """The segment in use and what it holds."""
    scans = []
    for path in files.paths():
        if path.startswith("wal/"):
            data = bytes(files.content(path))
            opening, _ = opening_of(data[:SEGMENT_START], file=path)
            if opening is not None:
                scans.append((opening.sequence, path, SegmentScan(data, file=path, opening=opening)))
    _, path, scan = max(scans)
    return path, scan


def sealed_bits(files: RecordedFiles) -> Iterator[tuple[str, int, int]]:
    """(path, byte, bit): four of every byte; of log and second checkpoint two, in long runs of zeros fewer."""
    log, scan = log_of(files)
    for path in files.paths():
        if path in (log, "checkpoint-b"):
            data = files.content(path)
            for at in range(scan.sealed_to if path == log else len(data)):
                if any(data[max(0, at - 8) : at + 9]) or at % 16 == 0:
                    yield from ((path, at, bit) for bit in (at % 8, (at + 3) % 8))
        elif not path.startswith(("wal/", "mark-")) and path != "reserve":  # those hold nothing; marks: below
            yield from ((path, at, bit) for at in range(len(files.content(path))) for bit in range(at % 2, 8, 2))


def promises(image: StoreImage) -> object:
    lanes = {n: (lane.promised, lane.stamped, lane.fenced, lane.decided_end) for n, lane in image.lanes.items()}
    return image.incarnation, lanes


def check_lane(found: LaneImage, sound: LaneImage) -> None:
    if found == sound:
        return
    if found.snapshot == sound.snapshot:
        assert found.entries == sound.entries[: len(found.entries)]
        applied = 0 if found.snapshot is None else found.snapshot.position
        assert found.damaged_from == applied + len(found.entries) + 1
    else:  # the snapshot was lost; nothing of this lane was trimmed, so it is read from its beginning
        assert found.snapshot is None
        assert [each.position for each in found.entries] == [1, 2, 3, 4]


def test_every_flipped_bit_of_the_sealed_log_is_detected() -> None:
    files = small_store()
    log, sound = log_of(files)
    data = files.content(log)
    opening, _ = opening_of(bytes(data[:SEGMENT_START]), file=log)
    assert opening is not None
    for bit in range(8 * SEGMENT_START, 8 * sound.sealed_to):
        data[bit // 8] ^= 1 << bit % 8
        found = SegmentScan(bytes(data), file=log, opening=opening)
        data[bit // 8] ^= 1 << bit % 8
        assert any(flaw.position < found.sealed_to for flaw in found.flaws), bit
        assert [each.header for each in found.found] == [each.header for each in sound.found]


def test_a_flipped_bit_in_any_byte_is_reported_and_costs_at_most_the_end_of_one_lane() -> None:
    files = small_store()
    sound = opened(files.copy()).load()
    assert sound.damage == []
    flipped = quiet = unseen = 0
    for path, at, bit in sealed_bits(files):
        damaged = files.copy()
        damaged.content(path)[at] ^= 1 << bit
        store = opened(damaged)
        found = store.load()
        assert promises(found) == promises(sound), (path, at, bit)
        for number, lane in found.lanes.items():
            check_lane(lane, sound.lanes[number])
        if path.startswith("wal/"):
            assert found.lanes == sound.lanes, "the log's damage is made good by lane files"
        if not found.damage:
            quiet += 1
            read_everything(store)
        if damaged.content(path)[at] == files.content(path)[at] and not store.damage:
            unseen += 1  # made good from the log: the end of a lane's file that reads as zeros was never written
        else:
            assert any(flaw.file == path for flaw in store.damage), (path, at, bit)
        assert all(type(flaw) is StorageDamaged for flaw in store.damage)
        flipped += 1
    assert flipped > 5_000
    assert unseen <= 2  # one for each lane whose last byte is a single bit
    assert quiet > 25, "indexes and entries behind a snapshot are looked at when they are used"


def read_everything(store: FileStore) -> None:
    """Every position by itself, so that indexes are used."""
    for lane, end in ((1, 8), (2, 4)):
        for position in range(end):
            with contextlib.suppress(StorageDamaged):
                store.read(lane, after=position, max_entries=1, max_bytes=1)


def test_a_damaged_log_record_is_restored_from_the_lane_file_and_vice_versa() -> None:
    files = small_store()
    sound = opened(files.copy()).load()
    log, scan = log_of(files)
    newest = next(each for each in scan.found if each.header.kind == WalKind.ENTRIES and each.header.lane == 1)
    lane_file = max(path for path in files.paths() if path.startswith("lanes/1/") and path.endswith(".log"))
    for path, start, size in ((log, newest.offset + HEADER_BYTES, 200), (lane_file, -200, 150)):
        damaged = files.copy()
        content = damaged.content(path)
        start = start % len(content)
        content[start : start + size] = b"\xee" * size
        found = opened(damaged).load()
        assert found.lanes == sound.lanes
        assert {flaw.file for flaw in found.damage} == {path}
        assert opened(damaged).load() == sound  # repaired: the next start finds nothing to report


def test_both_copies_of_entries_damaged_end_the_lane_there_and_no_other() -> None:
    files = small_store()
    sound = opened(files.copy()).load()
    log, scan = log_of(files)
    for each in scan.found:
        if each.header.kind == WalKind.ENTRIES and each.header.lane == 1:
            files.content(log)[each.offset + HEADER_BYTES + 100] ^= 1
    lane_file = max(path for path in files.paths() if path.startswith("lanes/1/") and path.endswith(".log"))
    files.content(lane_file)[-150] ^= 1
    found = opened(files).load()
    assert found.lanes[1].damaged_from == 7
    assert found.lanes[1].entries == sound.lanes[1].entries[:6]
    assert (found.lanes[2], found.lanes[3]) == (sound.lanes[2], sound.lanes[3])


def assert_nothing_is_vouched_for(files: RecordedFiles, sound: StoreImage) -> None:
    """Each lane is damaged, and promises at least what it had promised. So a second start finds it, too."""
    for _ in range(2):
        found = opened(files).load()
        assert found.lost_below == LOST_UNBOUNDED
        assert found.incarnation >= sound.incarnation
        for number, lane in sound.lanes.items():
            held = found.lanes.get(number)
            if held is None:
                assert found.lost_promised >= lane.promised
                continue
            assert held.damaged_from == held_end(held) + 1
            assert held.promised >= lane.promised
            assert (held.stamped, held.fenced) == (REPAIRING, True)


def held_end(image: LaneImage) -> int:
    return (0 if image.snapshot is None else image.snapshot.position) + len(image.entries)


def test_with_both_records_of_a_promise_damaged_no_lane_is_vouched_for() -> None:
    files = small_store()
    sound = opened(files.copy()).load()
    log, scan = log_of(files)
    copies = [each for each in scan.found if each.header.kind == WalKind.STATE]
    assert len({each.offset // BLOCK_BYTES for each in copies}) == len(copies) == 2
    for each in copies:
        files.content(log)[each.offset + HEADER_BYTES] ^= 1
    assert_nothing_is_vouched_for(files, sound)


def test_with_a_record_destroyed_beyond_recognition_no_lane_is_vouched_for() -> None:
    files = small_store()
    sound = opened(files.copy()).load()
    log, scan = log_of(files)
    victim = next(each for each in scan.found if each.header.kind == WalKind.ENTRIES)
    files.content(log)[victim.offset : victim.offset + victim.header.size] = bytes(victim.header.size)
    assert_nothing_is_vouched_for(files, sound)


def test_both_checkpoints_damaged_refuse_to_load_and_change_nothing() -> None:
    files = small_store()
    for path in ("checkpoint-a", "checkpoint-b"):
        files.content(path)[20] ^= 1
    before = {path: bytes(files.content(path)) for path in files.paths()}
    with pytest.raises(UnfitToVote):
        opened(files).load()
    assert {path: bytes(files.content(path)) for path in files.paths()} == before


def test_a_store_without_its_checkpoints_is_not_mistaken_for_a_new_one() -> None:
    files = small_store()
    for path in ("checkpoint-a", "checkpoint-b"):
        files.remove(path)
    with pytest.raises(UnfitToVote):
        opened(files).load()


def test_a_flaw_in_the_last_group_is_a_torn_tail_and_in_any_group_before_it_is_damage() -> None:
    files = RecordedFiles()
    store = opened(files)
    store.load()
    for position in (1, 2, 3):
        store.write([appended(1, position, position)], ignore)
        store.sync()
    log, scan = log_of(files)
    for number, expected in ((2, []), (1, [log])):
        cut = files.cut(lambda event: 0)
        cut.content(log)[scan.found[number].offset + HEADER_BYTES] ^= 1
        image = opened(cut).load()
        assert [each.position for each in image.lanes[1].entries] == list(range(1, number + 1))
        assert [flaw.file for flaw in image.damage][:1] == expected
        assert image.lanes[1].damaged_from == (2 if expected else 0)


def test_a_lane_that_lost_its_snapshot_after_a_trim_reports_all_of_it_lost() -> None:
    bench = RecordedBench()
    bench.store.load()
    bench.store.write([SaveSnapshot(1, snapshot(50), reset=True), appended(1, 51, 53), SaveState(1, 9, 9)], ignore)
    bench.store.close()
    path = next(path for path in bench.files.paths() if path.endswith(".snap"))
    bench.files.content(path)[-1] ^= 1
    bench.files = bench.files.copy()
    image = bench.power_cut()
    lane = image.lanes[1]
    assert (lane.snapshot, lane.entries, lane.damaged_from, lane.promised) == (None, [], 1, 9)
    assert [flaw.file for flaw in image.damage] == [path]
    bench.store.write([SaveSnapshot(1, snapshot(52), reset=True)], ignore)
    assert bench.restart().lanes[1].damaged_from == 53, "it once reached 53 and does not yet again"


@pytest.mark.parametrize("made", [MemoryBench, RecordedBench])
def test_a_damaged_lane_is_reported_at_every_start_until_it_is_stored_again(
    made: type[MemoryBench] | type[RecordedBench],
) -> None:
    bench = made()
    bench.store.load()
    bench.store.write([appended(1, 1, 10)], ignore)
    bench.store.close()
    damage_entry(bench, 5)
    for refilled_to in (4, 6, 9):
        if refilled_to > 4:
            bench.store.write([appended(1, 5, refilled_to, origin=2)], ignore)
        image = bench.restart()
        assert [each.position for each in image.lanes[1].entries] == list(range(1, refilled_to + 1))
        assert image.lanes[1].damaged_from == refilled_to + 1
        with pytest.raises(StorageDamaged):
            bench.store.read(1, after=refilled_to, max_entries=1, max_bytes=1)
    bench.store.write([appended(1, 10, 10, origin=2)], ignore)
    assert bench.restart().lanes[1].damaged_from == 0


@pytest.mark.parametrize("made", [MemoryBench, RecordedBench])
def test_a_cut_clears_the_damage_of_the_entries_it_removes(made: type[MemoryBench] | type[RecordedBench]) -> None:
    bench = made()
    bench.store.load()
    bench.store.write([appended(1, 1, 10)], ignore)
    bench.store.close()
    damage_entry(bench, 5)
    assert bench.restart().lanes[1].damaged_from == 5
    bench.store.write([SaveCut(1, 4)], ignore)
    image = bench.restart()
    assert image.lanes[1].damaged_from == 0
    assert [each.position for each in image.lanes[1].entries] == [1, 2, 3, 4]


@pytest.mark.parametrize("made", [MemoryBench, RecordedBench])
def test_a_read_stops_before_a_damaged_entry_and_the_next_one_names_it(
    made: type[MemoryBench] | type[RecordedBench],
) -> None:
    bench = made()
    bench.store.load()
    bench.store.write([appended(1, 1, 10), SaveSnapshot(1, snapshot(8), reset=False)], ignore)
    bench.store.close()
    damage_entry(bench, 5)
    bench.restart()
    assert [each.position for each in bench.store.read(1, after=2, max_entries=9, max_bytes=999)] == [3, 4]
    with pytest.raises(StorageDamaged):
        bench.store.read(1, after=4, max_entries=9, max_bytes=999)


def test_damage_found_by_a_read_is_counted_once_with_its_place() -> None:
    bench = RecordedBench()
    bench.store.load()
    bench.store.write([appended(1, 1, 10), SaveSnapshot(1, snapshot(8), reset=False)], ignore)
    bench.store.close()
    damage_entry(bench, 5)
    assert bench.store.damage == [], "entries below a snapshot are read when somebody asks for them"
    for _ in range(3):
        assert bench.store.read(1, after=2, max_entries=9, max_bytes=999), "up to the damage"
        with pytest.raises(StorageDamaged):
            bench.store.read(1, after=4, max_entries=9, max_bytes=999)
    (flaw,) = bench.store.damage
    assert flaw.file.startswith("lanes/1/")
    assert bench.store.statistics().damage_found == 1


def damage_entry(bench: MemoryBench | RecordedBench, position: int) -> None:
    """Change the body of an entry of lane 1 that is nowhere but in its lane's file."""
    if isinstance(bench, MemoryBench):
        bench.store.damage(1, position)
        return
    wanted = bytes([position]) * 24
    for path in bench.files.paths():
        at = bench.files.content(path).find(wanted) if path.startswith("lanes/1/") else -1
        if at >= 0:
            bench.files.content(path)[at] ^= 1
    bench.files = bench.files.copy()
    bench.store = FileStore(bench.files, sizes=TINY, background=False)
    bench.store.load()


def test_damage_names_file_byte_expected_and_found(tmp_path: Path) -> None:
    files = small_store()
    path = next(path for path in files.paths() if path.endswith(".log"))
    files.content(path)[100] ^= 4
    (flaw,) = opened(files).load().damage
    assert (flaw.file, flaw.position) == (path, 80)
    assert flaw.expected != flaw.found
    assert path in str(flaw)
