"""A full disk refuses entries and nothing else: reads and promises work, and accepted entries are finished."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.contract.storage.storage_workload import TINY, entry, ignore, snapshot

from avow.errors import DiskFull, TooLarge
from avow.replication.effects import SaveEntries, SaveFence, SaveRun, SaveSnapshot, SaveState, SaveTrim
from avow.storage.file_store import FileStore
from avow.storage.memory import MemoryStore
from avow_lab.simulator.power_cut import RecordedFiles


def opened(files: RecordedFiles) -> FileStore:
    return FileStore(files, sizes=TINY, background=False)


def appended(lane: int, first: int, count: int = 1, *, size: int = 24) -> SaveEntries:
    return SaveEntries(lane, tuple(entry(position, size=size) for position in range(first, first + count)))


def filled() -> tuple[FileStore, RecordedFiles, int]:
    """A store that took entries until it refused, and how many it took."""
    files = RecordedFiles(capacity_bytes=3 * TINY.wal_segment_bytes + 3 * TINY.reserved_bytes)
    store = opened(files)
    store.load()
    for position in range(1, 1000):
        try:
            store.write([appended(1, position)], ignore)
        except DiskFull:
            return store, files, position - 1
        store.sync()
    raise AssertionError("the disk never became full")


def test_entries_are_refused_before_any_part_of_the_write_is_accepted() -> None:
    store, files, end = filled()
    assert end > 20
    with pytest.raises(DiskFull):
        store.write([SaveState(1, 9, 9), appended(1, end + 1)], ignore)
    assert store.pending == 0
    assert store.statistics().full
    assert opened(files.cut(lambda event: 0)).load().lanes[1].promised == 0


def test_reads_and_promises_work_long_after_the_disk_is_full() -> None:
    store, files, end = filled()
    for number in range(1, 200):  # many times around the log's segments
        store.write([SaveState(1, number, number), SaveFence(2, number), SaveRun(number)], ignore)
        store.sync()
    assert len(store.read(1, after=0, max_entries=end, max_bytes=1 << 20)) == end
    image = opened(files.cut(lambda event: 0)).load()
    assert (image.lanes[1].promised, image.lanes[2].decided_end, image.incarnation) == (199, 199, 199)
    assert len(image.lanes[1].entries) == end
    assert image.damage == []


def test_entries_are_accepted_again_after_a_trim_made_room() -> None:
    store, files, end = filled()
    store.write([SaveState(1, 1, 1)], ignore)
    store.write([SaveSnapshot(1, snapshot(end - 1), reset=False), SaveTrim(1, end)], ignore)
    store.sync()
    store.rest()
    store.write([appended(1, end + 1)], ignore)
    store.sync()
    assert not store.statistics().full
    assert opened(files.cut(lambda event: 0)).load().lanes[1].entries == [entry(end), entry(end + 1)]


def test_accepted_entries_are_stored_even_if_another_process_fills_the_disk() -> None:
    files = RecordedFiles()
    store = opened(files)
    store.load()
    store.write([appended(1, 1)], ignore)
    store.sync()
    store.rest()
    store.write([appended(1, 2, 40, size=300)], ignore)
    files.remove("reserve")
    files.capacity_bytes = 0
    store.sync()
    store.rest()
    assert store.statistics().full
    assert len(store.read(1, after=0, max_entries=99, max_bytes=1 << 20)) == 41
    with pytest.raises(DiskFull):
        store.write([appended(1, 42)], ignore)
    store.write([SaveState(1, 5, 5)], ignore)
    store.sync()
    image = opened(_with_room(files.cut(lambda event: 0))).load()
    assert (len(image.lanes[1].entries), image.lanes[1].promised) == (41, 5)
    _with_room(files)
    store.rest()
    store.write([appended(1, 42)], ignore)
    store.close()
    assert len(opened(files.cut(lambda event: 0)).load().lanes[1].entries) == 42


def _with_room(files: RecordedFiles) -> RecordedFiles:
    files.capacity_bytes = 1 << 30
    return files


def test_the_reserved_file_is_recreated_when_there_is_room() -> None:
    files = RecordedFiles()
    store = opened(files)
    store.load()
    assert len(files.content("reserve")) == TINY.reserved_bytes
    files.remove("reserve")
    store.write([appended(1, 1)], ignore)
    store.close()
    assert len(files.content("reserve")) == TINY.reserved_bytes


def test_a_store_without_room_for_a_log_reports_it() -> None:
    with pytest.raises(DiskFull):
        opened(RecordedFiles(capacity_bytes=8 * 1024)).load()


def test_a_log_with_room_for_only_one_segment_still_works() -> None:
    files = RecordedFiles(capacity_bytes=TINY.wal_segment_bytes + 24 * 1024)
    store = FileStore(files, sizes=replace(TINY, reserved_bytes=1024), background=False)
    store.load()
    assert len([path for path in files.paths() if path.startswith("wal/")]) == 1
    for position in range(1, 30):
        store.write([appended(1, position)], ignore)
        store.sync()
    assert len(opened(files.cut(lambda event: 0)).load().lanes[1].entries) == 29


def test_a_write_larger_than_a_segment_is_refused_as_too_large() -> None:
    store = opened(RecordedFiles())
    store.load()
    with pytest.raises(TooLarge):
        store.write([appended(1, 1, size=TINY.wal_segment_bytes)], ignore)
    store.write([appended(1, 1)], ignore)
    store.sync()


def test_the_memory_store_refuses_entries_in_the_same_way() -> None:
    store = MemoryStore()
    store.full = True
    with pytest.raises(DiskFull):
        store.write([SaveState(1, 9, 9), appended(1, 1)], ignore)
    store.write([SaveState(1, 9, 9)], ignore)
    store.sync()
    assert store.statistics().full
    assert store.load().lanes[1].promised == 9
