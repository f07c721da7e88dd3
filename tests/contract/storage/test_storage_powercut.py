"""A power cut at every byte. Afterwards acknowledged entries exist, and nothing exists that was never written.

A sync is the moment with the most to lose, so the power is cut just before each one takes effect: the log's write is
cut at each of its bytes, and everything else that is not synced (lane files, names) is kept, lost or kept in part.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from tests.contract.storage.storage_workload import TINY, Workload, entry, ignore, images_after, snapshot

from avow.replication.durable import StoreImage
from avow.replication.effects import Persist, SaveCut, SaveEntries, SaveSnapshot, SaveState, SaveTrim
from avow.storage.file_store import FileStore
from avow_lab.simulator.power_cut import Event, RecordedFiles


class History:
    """A store that is driven by a workload and knows which operations were acknowledged."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.files = RecordedFiles()
        self.store = self.open(self.files)
        self.store.load()
        self._work = Workload(self.random)
        self.written: list[Persist] = []
        self.acknowledged = 0

    def open(self, files: RecordedFiles) -> FileStore:
        return FileStore(files, sizes=TINY, background=False, nonce=lambda: 7)

    def write(self) -> None:
        ops = self._work.write()
        self.written += ops
        upto = len(self.written)

        def acknowledge(receipt: object) -> None:
            self.acknowledged = upto

        self.store.write(ops, acknowledge)

    def check(self, survives: Callable[[Event], int]) -> None:
        found = self.found_after(survives)
        assert found.damage == []
        assert found in images_after(self.written, least=self.acknowledged)

    def found_after(self, survives: Callable[[Event], int]) -> StoreImage:
        return self.open(self.files.cut(survives)).load()


def log_write(files: RecordedFiles) -> Event | None:
    """The write of the log that is not synced, if this is such a moment."""
    return next(
        (event for event in files.events() if event.what == "write" and event.path.startswith("wal/slot")), None
    )


def distinct_lengths(files: RecordedFiles, event: Event) -> list[int]:
    """How many bytes of the write may survive, leaving out lengths that leave the same file as the one before."""
    assert event.content is not None
    held = event.content.durable
    return [0] + [
        length for length in range(1, event.size + 1) if held[event.offset + length - 1] != event.data[length - 1]
    ]


@pytest.mark.parametrize("seed", range(2))
def test_a_cut_at_any_byte_of_the_log_keeps_acknowledged_entries_and_a_prefix_of_the_rest(seed: int) -> None:
    history = History(seed)
    checked = 0
    for _ in range(25):
        history.write()
        history.store.sync()  # the log has been around its segments: what lies behind its end is left over, not zeros

    def cut_here() -> None:
        nonlocal checked
        event = log_write(history.files)
        if event is None:
            return
        for length in distinct_lengths(history.files, event):
            lanes_survive = history.random.random() < 0.5

            def survives(other: Event, length: int = length, lanes_survive: bool = lanes_survive) -> int:
                return length if other is event else other.size * lanes_survive

            history.check(survives)
            checked += 1

    for _ in range(2):
        for _ in range(history.random.randrange(2, 5)):
            history.write()
        history.files.before_sync = cut_here
        history.store.sync()
        history.files.before_sync = None
    assert checked > 1000


@pytest.mark.parametrize("seed", range(20, 23))
def test_a_power_cut_before_any_sync_is_survived_whatever_part_was_written(seed: int) -> None:
    history = History(seed)

    def cut_here() -> None:
        history.check(lambda event: 0)
        history.check(lambda event: event.size)
        history.check(prefix_of(history.files, history.random))

    history.files.before_sync = cut_here
    for _ in range(30):
        for _ in range(history.random.randrange(1, 6)):
            history.write()
        history.store.sync()
    history.store.close()
    history.files.before_sync = None
    history.check(lambda event: 0)


def prefix_of(files: RecordedFiles, random: Random) -> Callable[[Event], int]:
    """Each file keeps a prefix of its own events, cut inside the last; names are kept in their order."""
    left: dict[object, int] = {}

    def survives(event: Event) -> int:
        key = "names" if event.what == "name" else event.content
        allowed = left.setdefault(key, random.randrange(400))
        left[key] = max(0, allowed - event.size)
        return min(event.size, allowed)

    return survives


def test_a_second_cut_during_recovery_changes_nothing() -> None:
    history = History(91)
    for _ in range(60):
        history.write()
        if history.random.random() < 0.4:
            history.store.sync()
    history.store.sync()
    first = history.files.cut(prefix_of(history.files, history.random))
    expected = images_after(history.written, least=history.acknowledged)[0]
    cuts = 0

    def cut_again() -> None:
        nonlocal cuts
        cuts += 1
        for survives in (lambda event: 0, lambda event: event.size, prefix_of(first, history.random)):
            assert history.open(first.cut(survives)).load() == expected

    first.before_sync = cut_again
    assert history.open(first).load() == expected
    assert cuts > 5


def test_losing_an_operation_that_was_never_durable_keeps_synced_entries() -> None:
    files = RecordedFiles()
    store = FileStore(files, sizes=TINY, background=False)
    store.load()
    store.write([SaveEntries(1, tuple(entry(position) for position in range(1, 9)))], ignore)
    store.sync()
    found: list[StoreImage] = []
    files.before_sync = lambda: found.append(
        FileStore(
            files.cut(lambda event: 0 if event.path.startswith("wal/") else event.size), sizes=TINY, background=False
        ).load()
    )
    store.write([SaveEntries(1, (entry(3, origin=9),)), SaveCut(1, 1)], ignore)
    store.sync()
    assert [each.origin for each in found[0].lanes[1].entries] == [1] * 8


def test_a_reused_segment_never_brings_back_its_old_records() -> None:
    files = RecordedFiles()
    store = FileStore(files, sizes=TINY, background=False)
    store.load()
    for position in range(1, 60):  # each write is a group of its own: three segments hold twelve
        store.write([SaveEntries(1, (entry(position, origin=position),)), SaveState(2, position, position)], ignore)
        store.sync()
        image = FileStore(files.cut(lambda event: 0), sizes=TINY, background=False).load()
        assert [each.position for each in image.lanes[1].entries] == list(range(1, position + 1))
        assert image.lanes[2].promised == position
        assert image.damage == []


def test_recovery_after_snapshot_and_trim_reads_neither_history_nor_deleted_files() -> None:
    files = RecordedFiles()
    store = FileStore(files, sizes=TINY, background=False)
    store.load()
    for position in range(1, 101):
        store.write([SaveEntries(1, (entry(position),))], ignore)
        store.sync()
    before = len([path for path in files.paths() if path.endswith(".log")])
    store.write([SaveSnapshot(1, snapshot(95), reset=False), SaveTrim(1, 95)], ignore)
    store.sync()
    assert len([path for path in files.paths() if path.endswith(".log")]) < before / 3
    for survivor in (files.cut(lambda event: 0), files.cut(lambda event: event.size)):
        image = FileStore(survivor, sizes=TINY, background=False).load()
        assert image.lanes[1].snapshot == snapshot(95)
        assert [each.position for each in image.lanes[1].entries] == [96, 97, 98, 99, 100]
        assert image.damage == []
