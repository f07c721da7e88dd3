"""Pending stores: one suite for both, then cases that only a file has."""

from __future__ import annotations

import itertools
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from avow.channel import stores
from avow.channel.stores import FileStore, MemoryStore, PendingStore
from avow.errors import BadChecksum, BadMagic, DiskFull, FolderUnusable, InvalidRequest, UnknownVersion


@pytest.fixture(params=["memory", "file", "synced file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PendingStore]:
    made: PendingStore = (
        MemoryStore() if request.param == "memory" else FileStore(tmp_path / "pending", sync="synced" in request.param)
    )
    yield made
    made.close()


def values(*numbers: int) -> list[bytes]:
    return [b"value %d" % number for number in numbers]


# ---------------------------------------------------------------------- every store


def test_a_store_returns_unreleased_messages_in_order(store: PendingStore) -> None:
    store.append(1, values(1, 2, 3))
    store.append(4, values(4))
    store.release(2)
    store.release(1)
    assert store.load() == values(3, 4)
    store.append(5, values(5))
    store.release(99)
    assert store.load() == []


def test_values_of_every_buffer_type_and_empty_values_are_stored(store: PendingStore) -> None:
    store.append(1, [b"", bytearray(b"array"), memoryview(b"a view")[2:], b""])
    assert store.load() == [b"", b"array", b"view", b""]


def test_a_number_that_does_not_follow_is_refused(store: PendingStore) -> None:
    store.append(1, values(1))
    with pytest.raises(InvalidRequest):
        store.append(3, values(3))
    assert store.load() == values(1)


def test_messages_resent_on_the_next_channel_are_stored_once(store: PendingStore) -> None:
    store.append(1, values(1, 2, 3))
    store.release(1)
    store.append(1, values(2, 3))
    assert store.load() == values(2, 3)
    store.append(3, values(4))
    store.release(1)
    assert store.load() == values(3, 4)
    store.release(3)
    assert store.load() == []


def test_messages_that_are_not_resent_stay_stored(store: PendingStore) -> None:
    store.append(1, values(1, 2))
    store.append(1, values(9))
    store.release(1)
    assert store.load() == values(1, 2)


def test_resent_messages_are_recognized_among_others_and_in_another_order(store: PendingStore) -> None:
    store.append(1, values(1, 2, 3))
    store.append(1, values(9, 3))
    store.append(3, values(1, 8, 2))
    assert sorted(store.load()) == sorted(values(1, 2, 3, 8, 9))
    store.release(2)
    assert store.load() == values(1, 2, 8)
    store.release(5)
    assert store.load() == []


def test_equal_values_are_counted(store: PendingStore) -> None:
    store.append(1, values(7, 7, 7))
    store.append(1, values(7))
    store.append(2, values(7))
    store.release(2)
    assert store.load() == values(7)


def test_a_store_agrees_with_a_list(store: PendingStore) -> None:
    """A sequence of channels; each sends what the previous one left, then more."""
    chance = random.Random(5)
    names = itertools.count()
    left: list[bytes] = []
    for _ in range(60):
        assert store.load() == left
        sent = list(left)
        if sent:
            store.append(1, sent)
        released = 0
        for _ in range(chance.randrange(12)):
            more = [b"%d" % next(names) * chance.randrange(1, 40) for _ in range(chance.randrange(1, 5))]
            store.append(len(sent) + 1, more)
            sent += more
            released = chance.randint(released, len(sent))
            store.release(released)
        left = sent[released:]
    assert store.load() == left


# ---------------------------------------------------------------------- a file


def write_some(path: Path) -> tuple[list[bytes], int]:
    """Values, and where the last record begins."""
    store = FileStore(path)
    store.append(1, values(1, 2))
    store.append(3, values(3))
    store.release(1)
    before = path.stat().st_size
    store.append(4, values(4, 5))
    store.close()
    return values(2, 3, 4, 5), before


def reopened(path: Path) -> list[bytes]:
    store = FileStore(path)
    try:
        return store.load()
    finally:
        store.close()


def test_a_file_truncated_at_any_byte_returns_all_whole_records(tmp_path: Path) -> None:
    path = tmp_path / "pending"
    store = FileStore(path)
    ends = {path.stat().st_size: list[bytes]()}
    kept: list[bytes] = []
    for number in range(1, 6):
        store.append(number, values(number))
        kept.append(b"value %d" % number)
        ends[path.stat().st_size] = list(kept)
    store.release(2)
    ends[path.stat().st_size] = kept[2:]
    store.close()
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        expected = next((ends[end] for end in sorted(ends, reverse=True) if end <= cut), [])
        store = FileStore(path)
        assert store.load() == expected, cut
        store.append(1, [*expected, b"and on"])
        store.close()
        assert reopened(path) == [*expected, b"and on"], cut


def test_a_wrong_byte_in_the_last_record_is_a_torn_tail_and_in_an_earlier_one_damage(tmp_path: Path) -> None:
    path = tmp_path / "pending"
    expected, last = write_some(path)
    whole = path.read_bytes()
    for at in range(16, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        if at >= last:
            assert reopened(path) == expected[:2], at
            continue
        with pytest.raises(BadChecksum) as caught:
            FileStore(path)
        assert str(path) in str(caught.value)
        assert path.read_bytes()[at] == whole[at] ^ 0x41  # nothing was changed
    path.write_bytes(whole)
    assert reopened(path) == expected


def test_a_tail_of_zeros_is_torn_and_not_damage(tmp_path: Path) -> None:
    path = tmp_path / "pending"
    expected, _ = write_some(path)
    with path.open("ab") as file:
        file.write(bytes(5_000))
    assert reopened(path) == expected


def test_records_inside_a_message_are_not_mistaken_for_records(tmp_path: Path) -> None:
    write_some(tmp_path / "other")
    inner = (tmp_path / "other").read_bytes()[16:]
    path = tmp_path / "pending"
    store = FileStore(path)
    store.append(1, values(1))
    store.append(2, [inner])
    store.close()
    assert reopened(path) == [*values(1), inner]
    os.truncate(path, path.stat().st_size - 1)
    assert reopened(path) == values(1)


@pytest.mark.parametrize(
    ("head", "error"), [(b"SQLite format 3\0 and more of it", BadMagic), (b"AvowPend\7\0\0\0salt", UnknownVersion)]
)
def test_a_file_of_another_kind_is_left_alone(tmp_path: Path, head: bytes, error: type[Exception]) -> None:
    path = tmp_path / "pending"
    path.write_bytes(head)
    with pytest.raises(error):
        FileStore(path)
    assert path.read_bytes() == head


def test_a_file_is_used_by_one_store_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "pending"
    store = FileStore(path)
    with pytest.raises(FolderUnusable):
        FileStore(path)
    store.append(1, values(1))
    store.close()
    assert reopened(path) == values(1)


def test_an_emptied_file_takes_no_space(tmp_path: Path) -> None:
    path = tmp_path / "pending"
    store = FileStore(path)
    for number in range(1, 40):
        store.append(number, [bytes(10_000)])
        store.release(number)
        assert path.stat().st_size < stores.EMPTIED_FROM_BYTES + 20_000
    store.close()
    assert reopened(path) == []


def test_a_file_is_rewritten_without_released_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "REWRITTEN_FROM_BYTES", 20_000)
    path = tmp_path / "pending"
    store = FileStore(path, sync=True)
    most = 0
    for number in range(1, 500):
        store.append(number, [b"%06d" % number * 50])
        store.release(number - 10)
        most = max(most, path.stat().st_size)
    assert most < 25_000
    expected = [b"%06d" % number * 50 for number in range(490, 500)]
    assert store.load() == expected
    with pytest.raises(FolderUnusable):  # the new file is locked like the old one
        FileStore(path)
    store.append(500, values(500))
    store.release(495)
    store.close()
    assert reopened(path) == [*expected[6:], *values(500)]
    assert [name.name for name in tmp_path.iterdir()] == ["pending"]


def test_messages_stored_out_of_order_survive_a_rewrite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pending"
    store = FileStore(path)
    store.append(1, values(1, 2, 3, 4))
    store.append(1, values(2, 4))
    monkeypatch.setattr(stores, "REWRITTEN_FROM_BYTES", 0)
    store._file._rewrite_at = 0
    store.release(1)
    assert store.load() == values(1, 3, 4)
    store.release(2)
    store.close()
    assert reopened(path) == values(1, 3)


def test_a_full_disk_keeps_the_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "pending"
    store = FileStore(path)
    store.append(1, values(1))
    size = path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, hard))
        with pytest.raises(DiskFull):
            store.append(2, [bytes(10_000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert path.stat().st_size == size  # no partial record is left
    assert store.load() == values(1)
    store.append(1, values(1, 2))
    store.close()
    assert reopened(path) == values(1, 2)


WRITER = """
import sys
from avow.channel import stores
from avow.channel.stores import FileStore
stores.REWRITTEN_FROM_BYTES = 40_000
store = FileStore(sys.argv[1])
number = 0
while True:
    values = [b"%08d" % one * 20 for one in range(number + 1, number + 8)]
    store.append(number + 1, values)
    number += 7
    store.release(number - 50)
    sys.stdout.write(f"{number - 50} {number}\\n")
    sys.stdout.flush()
"""


@pytest.mark.parametrize("lines", [3, 40, 200, 700])
def test_messages_stored_by_a_killed_process_are_found(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "pending"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    line = [writer.stdout.readline() for _ in range(lines)][-1]
    writer.send_signal(signal.SIGKILL)
    rest = writer.stdout.read().splitlines()
    writer.wait()
    writer.stdout.close()
    if rest and len(rest[-1].split()) == 2:
        line = rest[-1]
    released, appended = map(int, line.split())
    found = [int(value[:8]) for value in reopened(path)]
    assert found == list(range(found[0], found[-1] + 1))
    assert max(released, 0) <= found[0] - 1 <= max(released, 0) + 7  # at most one step more was done than was reported
    assert appended <= found[-1] <= appended + 7
