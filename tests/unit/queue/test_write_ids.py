"""The memory of write ids: many at once is one after the other, and how far back it surely reaches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.queue.queue_entries import ORIGIN, PROPERTY, TINY, write_id

from avow.queue.entry_outcome import Outcome
from avow.queue.ledger import Bounds, Ledger
from avow.queue.state import QueueState
from avow.queue.write_ids import SAMPLES_MAX, Coverage, Recent
from avow.wire.messages import Entry, Kind

KEYS = st.lists(st.integers(1, 9).map(write_id), max_size=6)


@PROPERTY
@given(st.lists(KEYS, max_size=8), st.integers(1, 7))
def test_remembering_many_at_once_equals_remembering_them_one_by_one(groups: list[list[bytes]], size: int) -> None:
    together: Recent[int] = Recent(size)
    apart: Recent[int] = Recent(size)
    for group in groups:
        if not together.all_new(group):
            continue
        together.remember_all(group, range(len(group)))
        for value, key in enumerate(group):
            apart.remember(key, value)
    assert together.columns() == apart.columns()
    assert together.remembered == apart.remembered
    assert {key: together.get(key) for key in together.columns()[0]} == {
        key: apart.get(key) for key in apart.columns()[0]
    }


def test_a_known_empty_or_repeated_key_is_not_new() -> None:
    memory: Recent[int] = Recent(4)
    memory.remember(write_id(1), 1)
    assert memory.all_new([write_id(2), write_id(3)])
    assert not memory.all_new([write_id(2), write_id(1)])
    assert not memory.all_new([write_id(2), write_id(2)])
    assert not memory.all_new([b""])


class OneByOne(QueueState):
    """Takes the path for known ids always."""

    def _apply_merged(self, entry: Entry, writes) -> Outcome:  # type: ignore[no-untyped-def]
        first = self.end + 1
        self._show_unknown(entry, writes)
        return Outcome("", first, self.end)


WRITES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=6)


@PROPERTY
@given(st.lists(WRITES, max_size=8))
def test_the_fast_path_and_the_slow_path_apply_a_merged_entry_alike(
    entries: list[list[tuple[int, int]]],
) -> None:
    quick, careful = QueueState(bounds=TINY), OneByOne(bounds=TINY)
    for position, parts in enumerate(entries, 1):
        writes, first = [], 0
        for number, count in parts:
            writes.append((write_id(number) if number else b"", first, count))
            first += count
        entry = Entry(position, ORIGIN, Kind.DATA, first)
        assert quick.apply(entry, writes) == careful.apply(entry, writes)
    assert quick.snapshot() == careful.snapshot()


def test_each_write_of_a_merged_entry_has_its_own_outcome() -> None:
    state = QueueState()
    state.apply(Entry(1, ORIGIN, Kind.DATA, 2, write_id(9)))
    state.apply(Entry(2, ORIGIN, Kind.DATA, 4), [(write_id(1), 0, 1), (write_id(9), 1, 2), (write_id(2), 3, 1)])
    assert state.outcome_of(write_id(1)) == Outcome("", 3, 3)
    assert state.outcome_of(write_id(9)) == Outcome("", 1, 2)  # its first answer
    assert state.outcome_of(write_id(2)) == Outcome("", 4, 4)
    assert [(r.position, r.offset, r.count) for r in state.ranges(2, 9)] == [(2, 0, 1), (2, 3, 1)]


def remember(memory: Recent[int], first: int, last: int) -> None:
    for number in range(first, last + 1):
        memory.remember(write_id(number), number)


def test_a_memory_that_was_never_full_covers_everything() -> None:
    memory: Recent[int] = Recent(10)
    coverage = Coverage(every_s=1.0)
    remember(memory, 1, 9)
    assert coverage.since(memory) == float("-inf")
    remember(memory, 10, 10)  # full: a restored one that is full may have forgotten something
    assert coverage.since(memory) == float("inf")


def test_a_memory_that_overflowed_covers_ids_since_a_recorded_time() -> None:
    memory: Recent[int] = Recent(10)
    coverage = Coverage(every_s=1.0)
    for second in range(8):
        remember(memory, 4 * second + 1, 4 * second + 4)
        coverage.watch(memory, float(second))
    assert memory.remembered == 32
    assert coverage.since(memory) == 5.0  # 24 had come by then: the 8 since are all known, the 12 since 4.0 are not


def test_restarted_coverage_claims_nothing() -> None:
    memory: Recent[int] = Recent(2)
    coverage = Coverage(every_s=1.0)
    remember(memory, 1, 5)
    coverage.watch(memory, 1.0)
    assert coverage.since(memory) == 1.0
    coverage.restart()
    assert coverage.since(memory) == float("inf")


def test_a_slow_lane_is_covered_for_hours_with_few_samples() -> None:
    memory: Recent[int] = Recent(20_000)
    coverage = Coverage(every_s=1.0)
    remember(memory, 1, 20_000)
    for second in range(10_000):
        remember(memory, 20_001 + second, 20_001 + second)
        coverage.watch(memory, float(second))
    assert len(coverage._samples) <= SAMPLES_MAX
    assert coverage.since(memory) == 0.0


def test_a_ledger_that_is_ahead_knows_merged_writes_too() -> None:
    state = QueueState(bounds=Bounds(write_ids=8))
    ahead: Ledger = state.fork()
    ahead.apply(Entry(1, ORIGIN, Kind.DATA, 2), [(write_id(1), 0, 1), (write_id(2), 1, 1)])
    assert ahead.outcome_of(write_id(2)) == Outcome("", 2, 2)
    assert state.outcome_of(write_id(2)) is None
