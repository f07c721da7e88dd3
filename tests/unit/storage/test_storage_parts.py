"""The small parts of storage, each by itself."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from avow.errors import StorageDamaged
from avow.storage import checked
from avow.storage.files import DiskFiles, Files, fill_with_zeros, read_whole, write_whole
from avow.storage.lane_state import LaneState
from avow.storage.segments import Index, LaneFiles
from avow.storage.space_reserve import SpaceReserve
from avow.storage.wal import fill_slot
from avow.storage.wal_records import HEADER_BYTES, TAIL, WalKind, encode, header_at
from avow.wire.messages import Entry, Kind
from avow.wire.record import pack_entry
from avow_lab.simulator.power_cut import RecordedFiles


def packed(first: int, last: int, *, size: int = 20) -> list[bytes]:
    return [pack_entry(Entry(at, 1, Kind.DATA, 1, b"", 0, b"", bytes([at]) * size)) for at in range(first, last + 1)]


def lane_files(files: RecordedFiles, *, segment_size_bytes: int = 400) -> LaneFiles:
    files.make_folder("lanes")
    flaws: list[StorageDamaged] = []
    return LaneFiles(files, 1, segment_size_bytes=segment_size_bytes, index_interval_bytes=150, report=flaws.append)


def append(lane: LaneFiles, first: int, last: int, *, size: int = 20) -> None:
    for at, record in enumerate(packed(first, last, size=size), first):
        lane.append(at, [record], size=len(record))


def positions(lane: LaneFiles, *, upto: int) -> list[int]:
    return [entry.position for entry in lane.entries(after=0, upto=upto)]


# -------------------------------------------------------------------- records


def test_a_record_can_be_read_from_either_end() -> None:
    buffers, size = encode(WalKind.ENTRIES, 9, 3, 5, 77, 2, payload=[b"abc", b"defgh", b"i"])
    data = b"".join(buffers)
    assert len(data) == size
    front, back = header_at(data, 0), header_at(data, size - HEADER_BYTES, magic=TAIL)
    assert front == back
    assert front is not None
    assert (front.lsn, front.epoch, front.lane, front.first, front.entries, front.length) == (9, 3, 5, 77, 2, 9)
    assert front.size == size


def test_a_header_with_a_flipped_bit_is_not_recognized() -> None:
    data = bytearray(b"".join(encode(WalKind.CUT, 1, 1)[0]))
    for bit in range(8 * HEADER_BYTES):
        data[bit // 8] ^= 1 << bit % 8
        assert header_at(data, 0) is None
        data[bit // 8] ^= 1 << bit % 8


def test_a_checked_file_with_any_bit_changed_or_cut_anywhere_is_damaged() -> None:
    sound = checked.seal(checked.INDEX, b"a body of some bytes")
    assert checked.unseal(checked.INDEX, sound, file="f") == b"a body of some bytes"
    for bit in range(8 * len(sound)):
        data = bytearray(sound)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StorageDamaged):
            checked.unseal(checked.INDEX, bytes(data), file="f")
    for size in range(len(sound)):
        with pytest.raises(StorageDamaged):
            checked.unseal(checked.INDEX, sound[:size], file="f")
    with pytest.raises(StorageDamaged):
        checked.unseal(checked.INDEX, sound + b"x", file="f")


# ---------------------------------------------------------------------- index


def test_an_index_returns_the_last_point_at_or_before_a_position() -> None:
    index = Index(first=10, interval_bytes=100)
    for position, offset in ((11, 50), (12, 100), (13, 150), (14, 260)):
        index.add(position, offset=offset)
    assert len(index) == 3
    assert index.before(10) == index.before(11) == (10, 0)
    assert index.before(12) == index.before(13) == (12, 100)
    assert index.before(99) == (14, 260)
    index.cut(260)
    assert index.before(99) == (12, 100)


def test_an_index_is_read_back_unchanged() -> None:
    index = Index(first=1, interval_bytes=10)
    index.add(5, offset=40)
    again = Index.from_bytes(index.to_bytes(99), interval_bytes=10, file="f")
    assert (again.before(4), again.before(5), again.size_bytes) == ((1, 0), (5, 40), 99)


# ------------------------------------------------------------------ lane files


def test_files_roll_over_and_read_as_one() -> None:
    files = RecordedFiles()
    lane = lane_files(files)
    append(lane, 1, 20)
    assert len(lane.segments) > 3
    assert positions(lane, upto=20) == list(range(1, 21))
    again = lane_files(files)
    again.open()
    assert positions(again, upto=20) == list(range(1, 21))
    assert [entry.position for entry in again.entries(after=13, upto=15)] == [14, 15]


def test_places_give_the_bytes_of_each_record_and_which_files_are_full(tmp_path: Path) -> None:
    (tmp_path / "lanes").mkdir()
    damage: list[StorageDamaged] = []
    lane = LaneFiles(DiskFiles(tmp_path), 1, segment_size_bytes=400, index_interval_bytes=150, report=damage.append)
    assert lane.reachable
    for first in range(1, 20, 2):
        append(lane, first, first + 1)
    for after in (0, 3, 18):
        found = list(lane.places(after=after, upto=20))
        assert [place.position for place in found] == list(range(after + 1, 21))
        for place, record in zip(found, packed(after + 1, 20), strict=True):
            data = Path(place.path).read_bytes()[place.offset :]
            assert place.header == record[: len(place.header)]
            assert data.startswith(record)
            assert place.full == (place.path != str(tmp_path / lane.segments[-1].path))
    assert len(lane.segments) > 2
    with pytest.raises(StorageDamaged):
        list(lane.places(after=0, upto=21))


def test_files_in_memory_have_no_places() -> None:
    assert not lane_files(RecordedFiles()).reachable


@pytest.mark.parametrize("end", range(21))
def test_a_cut_at_any_position_lets_other_entries_follow(end: int) -> None:
    lane = lane_files(RecordedFiles())
    append(lane, 1, 20)
    lane.cut(end)
    append(lane, end + 1, end + 3, size=33)
    assert positions(lane, upto=end + 3) == list(range(1, end + 4))
    assert [len(entry.batch) for entry in lane.entries(after=end, upto=end + 3)] == [33, 33, 33]


def test_a_cut_after_an_unreadable_record_continues_in_a_new_file() -> None:
    files = RecordedFiles()
    lane = lane_files(files, segment_size_bytes=10_000)
    append(lane, 1, 3)
    lane.append(4, packed(4, 9), size=sum(map(len, packed(4, 9))))
    files.content(lane.segments[0].path)[sum(map(len, packed(1, 4))) + 9] ^= 1  # the header of entry 5
    lane.cut(7)
    append(lane, 8, 9, size=33)
    assert [entry.position for entry in lane.entries(after=7, upto=9)] == [8, 9]
    with pytest.raises(StorageDamaged):
        positions(lane, upto=9)


def test_a_trim_removes_whole_files_and_never_the_last() -> None:
    files = RecordedFiles()
    lane = lane_files(files)
    append(lane, 1, 20)
    firsts = [segment.first for segment in lane.segments]
    lane.trim(firsts[2] - 1)
    assert [segment.first for segment in lane.segments] == firsts[2:]
    lane.trim(1000)
    assert [segment.first for segment in lane.segments] == firsts[-1:]


def test_a_stored_index_is_used_and_a_damaged_one_is_reported_and_rebuilt() -> None:
    files = RecordedFiles()
    lane = lane_files(files)
    append(lane, 1, 20)
    lane.keep_indexes()
    path = next(path for path in files.paths() if path.endswith(".idx"))
    files.content(path)[20] ^= 1
    flaws: list[StorageDamaged] = []
    again = LaneFiles(files, 1, segment_size_bytes=400, index_interval_bytes=150, report=flaws.append)
    again.open()
    assert positions(again, upto=20) == list(range(1, 21))
    assert [flaw.file for flaw in flaws] == [path]


# ------------------------------------------------------------------ lane state


def test_a_lane_remembers_what_it_lost_until_it_has_it_again() -> None:
    state = LaneState()
    state.append(1, 10)
    state.lose_from(4)
    assert (state.end, state.damaged_from) == (3, 4)
    state.append(4, 3)
    assert state.damaged_from == 7
    state.take_snapshot(8, reset=True)
    assert state.damaged_from == 9
    state.append(9, 2)
    assert state.damaged_from == 0


# ------------------------------------------------------------------- file seam


@pytest.fixture(params=["disk", "recorded"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return DiskFiles(tmp_path) if request.param == "disk" else RecordedFiles()


def test_both_file_systems_write_read_rename_remove_and_list(files: Files) -> None:
    files.make_folder("a/b")
    handle = files.open("a/b/x", create=True)
    files.write(handle, [b"hello ", b"world"], offset=3)
    files.sync(handle)
    assert files.size(handle) == 14
    assert files.read(handle, size=99, offset=0) == b"\0\0\0hello world"
    assert files.read(handle, size=5, offset=9) == b"world"
    files.truncate(handle, 8)
    files.close(handle)
    files.rename(old="a/b/x", new="a/b/y")
    files.sync_folder("a/b")
    assert (files.names("a/b"), files.names("a"), files.names("none")) == (["y"], ["b"], [])
    assert read_whole(files, "a/b/y") == b"\0\0\0hello"
    files.remove("a/b/y")
    files.remove("a/b/y")
    assert read_whole(files, "a/b/y") is None
    with pytest.raises(FileNotFoundError):
        files.open("a/b/y")


def test_both_file_systems_fill_with_zeros_and_write_many_buffers(files: Files) -> None:
    files.make_folder("wal")
    path = fill_slot(files, 0, size=3 << 20)
    assert read_whole(files, path) == bytes(3 << 20)
    write_whole(files, "many", [b"0123456789" * 20] * 3000)
    assert read_whole(files, "many") == b"0123456789" * 60_000
    assert files.free_bytes() > 0


def test_a_cut_keeps_what_was_synced_and_the_part_that_survives() -> None:
    files = RecordedFiles()
    write_whole(files, "x", [b"old bytes"])
    files.sync_folder(".")
    handle = files.open("x")
    files.write(handle, [b"new"], offset=0)
    assert read_whole(files.cut(lambda event: 0), "x") == b"old bytes"
    assert read_whole(files.cut(lambda event: 2), "x") == b"ned bytes"
    assert read_whole(files.cut(lambda event: 3), "x") == b"new bytes"
    files.sync(handle)
    assert read_whole(files.cut(lambda event: 0), "x") == b"new bytes"


def test_a_name_is_not_durable_before_its_folder_is_synced() -> None:
    files = RecordedFiles()
    write_whole(files, "x.new", [b"1"])
    files.rename(old="x.new", new="x")
    assert files.cut(lambda event: 0).paths() == []
    assert files.cut(lambda event: 1).paths() == ["x"]
    files.sync_folder(".")
    files.remove("x")
    assert files.cut(lambda event: 0).paths() == ["x"]


def test_a_full_recorded_disk_writes_what_fits_and_then_fails() -> None:
    files = RecordedFiles(capacity_bytes=4)
    handle = files.open("x", create=True)
    with pytest.raises(OSError, match="no space") as caught:
        files.write(handle, [b"123456"], offset=0)
    assert caught.value.errno == errno.ENOSPC
    assert files.read(handle, size=9, offset=0) == b"1234"


def test_reserved_room_counts_accepted_but_unwritten_bytes() -> None:
    files = RecordedFiles(capacity_bytes=100)
    reserve = SpaceReserve(files, reserved_bytes=20)
    assert reserve.claim(50)
    assert not reserve.claim(40)
    assert reserve.full
    assert reserve.claim_margin(40)
    fill_with_zeros(files, "x", size=30)
    reserve.applied(30)
    assert not reserve.claim(1)
    files.remove("x")
    assert reserve.claim(15)
    assert not reserve.full
