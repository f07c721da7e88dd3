"""Files and parts of files are gone, or are others than before. A peer never takes that for "never written".

After each loss the store either refuses to load, or says of each lane that it is damaged, or has everything. It never
returns less than it had, or a lower promise, without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace
from tests.contract.storage.storage_workload import TINY, entry, ignore, snapshot

from avow.errors import AvowError, Irreparable, StorageDamaged, UnfitToVote
from avow.ids import REPAIRING
from avow.replication.durable import LOST_UNBOUNDED, StoreImage
from avow.replication.effects import (
    LaneImage,
    SaveCut,
    SaveEntries,
    SaveFence,
    SaveRun,
    SaveSnapshot,
    SaveState,
    SaveTrim,
)
from avow.storage.checkpoint import read_checkpoint, write_checkpoint
from avow.storage.file_store import FileStore
from avow.storage.replay import SegmentScan, opening_of
from avow.storage.sync_mark import MARKS
from avow.storage.wal_records import SEGMENT_START, WalKind
from avow_lab.simulator.power_cut import RecordedFiles

SMALL = replace(TINY, wal_segments=2, lane_segment_bytes=400, reserved_bytes=512)
ENDS = {1: 24, 2: 4}
HARMLESS = ("reserve",)


def opened(files: RecordedFiles, *, alone: bool = False) -> FileStore:
    return FileStore(files, sizes=SMALL, background=False, nonce=lambda: 7, alone=alone)


def appended(lane: int, first: int, last: int, *, origin: int = 1) -> SaveEntries:
    return SaveEntries(lane, tuple(entry(position, origin=origin) for position in range(first, last + 1)))


def history() -> Iterator[RecordedFiles]:
    """The files at several moments; the last ones are those of a killed peer. Lane 1 has full files, older ones below
    its snapshot, a replaced end and entries that are only in the log; lane 2 few; lane 3 nothing but a fence."""
    files = RecordedFiles()
    store = opened(files)
    store.load()
    store.write([SaveRun(1), SaveState(1, 65_537, 65_537), appended(1, 1, 12), SaveFence(3, -1)], ignore)
    store.sync()
    store.rest()
    yield files.copy()
    store.write([appended(2, 1, 3), SaveSnapshot(2, snapshot(2), reset=False), SaveState(2, 70_000, 70_000)], ignore)
    store.write([SaveSnapshot(1, snapshot(7), reset=False), appended(1, 13, 16)], ignore)
    store.close()
    yield files.copy()
    store = opened(files)
    store.load()
    store.write([SaveRun(2), SaveState(1, 131_073, 65_537), SaveCut(1, 14), appended(1, 15, 18, origin=2)], ignore)
    store.sync()
    store.close()
    yield files.copy()
    store = opened(files)
    store.load()
    store.write([SaveRun(3), appended(1, 19, 22, origin=2)], ignore)
    store.sync()
    yield files.copy()
    store.write([appended(2, 4, 4), appended(1, 23, 24, origin=2), SaveFence(3, 5)], ignore)
    store.sync()
    yield files.copy()


HISTORY = tuple(history())
LAST = HISTORY[-1]
SOUND = opened(LAST.copy()).load()


def losses(path: str) -> Iterator[tuple[str, Callable[[RecordedFiles], None]]]:
    """The faults of one file. Each changes it, or is left out."""
    content = bytes(LAST.content(path))

    def put(data: bytes) -> Callable[[RecordedFiles], None]:
        def change(files: RecordedFiles) -> None:
            files.content(path)[:] = data

        return change

    yield "deleted", lambda files: files.remove(path)
    for size in sorted({0, len(content) // 2, len(content) - 1, *range(0, len(content), 4096)}):
        if 0 <= size < len(content):
            yield f"shortened to {size}", put(content[:size])
    if any(content):
        yield "zeroed", put(bytes(len(content)))
    for number, earlier in enumerate(HISTORY[:-1]):
        if path in earlier.paths() and bytes(earlier.content(path)) != content:
            yield f"as it was at moment {number}", put(bytes(earlier.content(path)))
    for other in LAST.paths():
        if other > path and kind_of(other) == kind_of(path) and bytes(LAST.content(other)) != content:

            def swap(files: RecordedFiles, other: str = other) -> None:
                mine, theirs = bytes(files.content(path)), bytes(files.content(other))
                files.content(path)[:], files.content(other)[:] = theirs, mine

            yield f"swapped with {other}", swap


def kind_of(path: str) -> str:
    return path.rpartition(".")[2] if "." in path else path.partition("-")[0]


def is_noted(image: LaneImage) -> bool:
    return image.damaged_from > 0 or image.stamped == REPAIRING or image.unreadable_upto > 0


def check(found: StoreImage, store: FileStore) -> bool:
    """Every lane is as it was, or says that it is damaged. Returns whether any does."""
    assert found.incarnation >= SOUND.incarnation
    noted = found.lost_below == LOST_UNBOUNDED
    for number, sound in SOUND.lanes.items():
        lane = found.lanes.get(number)
        if lane is None:
            assert found.lost_below > number
            assert found.lost_promised >= sound.promised
            continue
        assert lane.promised >= sound.promised
        assert lane.fenced >= sound.fenced
        if is_noted(lane):
            noted = True
            continue
        if (
            lane.snapshot is None and sound.snapshot is not None
        ):  # it was lost, and the lane still has its first entry: it is read from there
            assert [each.position for each in lane.entries] == list(range(1, ENDS[number] + 1))
        else:
            assert lane == sound
        for position in range(1, ENDS.get(number, 0) + 1):
            (held,) = store.read(number, after=position - 1, max_entries=1, max_bytes=1)
            assert held.origin == (2 if number == 1 and position >= 15 else 1), position
    return noted


@pytest.mark.parametrize("path", [path for path in LAST.paths() if path not in HARMLESS])
def test_a_lost_or_exchanged_file_is_noticed_at_the_start_or_costs_nothing(path: str) -> None:
    for what, change in losses(path):
        files = LAST.copy()
        change(files)
        store = opened(files)
        try:
            found = store.load()
        except UnfitToVote:
            continue
        try:
            noted = check(found, store)
        except (AssertionError, AvowError) as error:
            raise AssertionError(f"{path} {what}: {error}") from error
        if noted:
            assert found.damage, f"{path} {what}: nothing was reported"
            store.close()
            again = opened(files)
            check(again.load(), again)  # not forgotten by a second start either


@pytest.mark.parametrize("path", [path for path in LAST.paths() if path not in HARMLESS])
def test_a_peer_that_is_alone_refuses_every_loss_that_it_cannot_make_good(path: str) -> None:
    refused = 0
    for what, change in losses(path):
        files = LAST.copy()
        change(files)
        before = {each: bytes(files.content(each)) for each in files.paths()}
        store = opened(files, alone=True)
        try:
            found = store.load()
        except (Irreparable, UnfitToVote):
            assert {each: bytes(files.content(each)) for each in files.paths()} == before, f"{path} {what}"
            refused += 1
            continue
        assert not check(found, store), f"{path} {what}"
    assert refused or path.endswith(".idx") or path.startswith(("mark-", "checkpoint-", "wal/")), path


def test_the_deleted_active_segment_is_a_loss_and_not_an_empty_log() -> None:
    """What lost acknowledged writes on all peers: the log had nothing after its last checkpoint, and said so."""
    for path in LAST.paths():
        if not path.startswith("wal/"):
            continue
        files = LAST.copy()
        files.remove(path)
        found = opened(files).load()
        if found.damage:
            assert all(lane.stamped == REPAIRING for lane in found.lanes.values())
            break
    else:
        raise AssertionError("no segment was missed")


def test_a_torn_tail_after_the_mark_is_no_loss() -> None:
    files = LAST.copy()
    store = opened(files)
    store.load()
    store.write([appended(2, 5, 5)], ignore)
    torn: list[RecordedFiles] = []
    files.before_sync = lambda: torn.append(files.cut(lambda event: event.size // 2))
    store.sync()
    found = opened(torn[0]).load()
    assert found.damage == []
    assert (found.lost_below, found.lanes[2].entries) == (0, SOUND.lanes[2].entries)


def test_a_folder_of_the_release_before_gets_its_mark_when_it_is_opened() -> None:
    files = LAST.copy()
    checkpoint = read_checkpoint(files, [])
    assert checkpoint is not None
    lanes = {number: replace(meta, files=[], snapshot_crc=0) for number, meta in checkpoint.lanes.items()}
    write_checkpoint(files, replace(checkpoint, marked=False, lanes=lanes))
    for path in MARKS:
        files.remove(path)
    assert opened(files).load().lanes == SOUND.lanes
    assert all(files.content(path) for path in MARKS)
    for path in MARKS:
        files.remove(path)
    with pytest.raises(UnfitToVote):
        opened(files).load()


def test_a_mark_that_an_earlier_release_outdated_is_written_anew() -> None:
    files = LAST.copy()
    old = {path: bytes(files.content(path)) for path in MARKS}
    store = opened(files)
    store.load()
    store.write([SaveState(1, 900_000, 900_000)], ignore)
    store.close()
    checkpoint = read_checkpoint(files, [])
    assert checkpoint is not None
    write_checkpoint(files, replace(checkpoint, marked=False))
    for path, content in old.items():
        files.content(path)[:] = content
    store = opened(files)
    assert store.load().lanes[1].promised == 900_000
    store.write([appended(1, 25, 25, origin=2)], ignore)
    store.sync()
    for path in [path for path in files.paths() if path.startswith("wal/")]:
        files.remove(path)
    found = opened(files).load()
    assert found.lanes[1].promised >= 900_000
    assert found.lost_below == LOST_UNBOUNDED


def test_missing_entries_below_the_snapshot_are_remembered_until_they_are_trimmed() -> None:
    files = RecordedFiles()
    store = opened(files)
    store.load()
    for position in range(1, 21):
        store.write([appended(1, position, position)], ignore)
        store.sync()
        store.rest()
    store.write([SaveSnapshot(1, snapshot(18), reset=False)], ignore)
    store.close()
    gone = sorted(path for path in files.paths() if path.startswith("lanes/1/") and path.endswith(".log"))[1]
    files.remove(gone)
    for _ in range(2):
        store = opened(files)
        lane = store.load().lanes[1]
        assert (lane.damaged_from, [each.position for each in lane.entries]) == (0, [19, 20])
        assert 1 < lane.unreadable_upto < 18
        with pytest.raises(StorageDamaged):
            store.read(1, after=lane.unreadable_upto - 1, max_entries=1, max_bytes=1)
        assert store.read(1, after=lane.unreadable_upto, max_entries=1, max_bytes=1)
        store.close()
    store = opened(files)
    store.load()
    store.write([SaveTrim(1, lane.unreadable_upto)], ignore)
    store.close()
    assert opened(files).load().lanes[1].unreadable_upto == 0


def test_entries_after_a_missing_part_of_the_log_do_not_follow_older_ones() -> None:
    """A replacement of the lane's end is gone, and what was appended after it is not."""
    files = RecordedFiles()
    store = opened(files)
    store.load()
    store.write([appended(1, 1, 3), SaveSnapshot(1, snapshot(2), reset=False), appended(1, 4, 10)], ignore)
    store.close()
    store = opened(files)
    store.load()
    store.write([SaveCut(1, 5), appended(1, 6, 8, origin=2)], ignore)
    store.sync()
    store.write([appended(1, 9, 12, origin=2), SaveState(1, 77, 9)], ignore)
    store.sync()
    path = max((path for path in files.paths() if path.startswith("wal/")), key=lambda each: sequence_of(files, each))
    data = files.content(path)
    opening, _ = opening_of(bytes(data[:SEGMENT_START]), file=path)
    assert opening is not None
    lost = SegmentScan(bytes(data), file=path, opening=opening).found[:2]
    assert [each.header.kind for each in lost] == [WalKind.CUT, WalKind.ENTRIES]
    for each in lost:
        data[each.offset : each.offset + each.header.size] = bytes(each.header.size)
    found = opened(files).load()
    lane = found.lanes[1]
    assert found.lost_below == LOST_UNBOUNDED
    assert (lane.snapshot, lane.entries, lane.damaged_from) == (snapshot(2), [], 3)
    assert lane.promised >= 77
    assert files.content("lanes/1/00000000000000000001.log"), "what cannot be trusted is not deleted"


def sequence_of(files: RecordedFiles, path: str) -> int:
    opening, _ = opening_of(bytes(files.content(path))[:SEGMENT_START], file=path)
    return 0 if opening is None else opening.sequence
