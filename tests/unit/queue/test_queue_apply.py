"""Committed entries of a queue's lane: versions, write ids, merged batches, and entries nobody understands."""

from __future__ import annotations

import pytest
from hypothesis import given
from tests.unit.queue.queue_entries import (
    PROPERTY,
    TINY,
    Step,
    apply_all,
    command,
    cursor,
    data,
    long_step_lists,
    merged,
    publish,
    stage,
    trim,
    write_id,
)

from avow.errors import InvalidRequest, NotEqual, Trimmed
from avow.queue.commands import MembersCommand, StageCommand, TransactionCommand, decode
from avow.queue.entry_outcome import Outcome
from avow.queue.records import VisibleRange
from avow.queue.state import QueueState
from avow.wire.messages import Entry, Kind


def places(state: QueueState) -> list[tuple[int, int]]:
    return [state.locate(version) for version in range(state.trimmed_to + 1, state.end + 1)]


def test_versions_count_messages_from_one_without_gaps() -> None:
    state = QueueState()
    outcomes = apply_all(state, data(2), Step(Kind.NOOP), data(3))
    assert outcomes == [Outcome("", 1, 2), Outcome(), Outcome("", 3, 5)]
    assert places(state) == [(1, 0), (1, 1), (3, 0), (3, 1), (3, 2)]


def test_an_entry_out_of_order_is_a_programming_error() -> None:
    state = QueueState()
    with pytest.raises(AssertionError):
        state.apply(Entry(2, 1, Kind.DATA, 1))


def test_a_batch_without_messages_is_done_and_shows_nothing() -> None:
    state = QueueState()
    assert apply_all(state, data(1), data(0), data(1)) == [Outcome("", 1, 1), Outcome("", 2, 1), Outcome("", 2, 2)]
    assert places(state) == [(1, 0), (3, 0)]


def test_an_oversized_batch_is_refused_whole() -> None:
    state = QueueState()
    assert apply_all(state, data(65_537)) == [Outcome("COUNT_OVERFLOW")]
    assert state.end == 0


def test_a_repeated_write_id_gets_the_first_outcome_and_has_no_effect() -> None:
    state = QueueState()
    first, second = apply_all(state, data(2, write=7), data(2, write=7))
    assert first == second == Outcome("", 1, 2)
    assert state.end == 2
    assert state.outcome_of(write_id(7)) == first
    assert state.outcome_of(write_id(8)) is None


def test_stages_and_publishes_with_a_known_write_id_have_no_second_effect() -> None:
    state = QueueState()
    apply_all(state, stage(b"t", 2, write=1), stage(b"t", 2, write=1), publish(b"t", write=2), publish(b"t", write=2))
    assert state.end == 2


def test_the_window_forgets_the_oldest_write_id_and_no_other() -> None:
    state = QueueState(bounds=TINY)
    apply_all(state, *(data(1, write=number) for number in (1, 2, 3, 4)))
    known = [number for number in (1, 2, 3, 4) if state.outcome_of(write_id(number))]
    assert known == [2, 3, 4]
    assert apply_all(state, data(1, write=1)) == [Outcome("", 5, 5)]


def test_a_refused_write_is_remembered_as_refused() -> None:
    state = QueueState()
    first, _, again = apply_all(state, publish(b"t", write=1), stage(b"t", 1), publish(b"t", write=1))
    assert first == again == Outcome("UNKNOWN_TRANSACTION")
    assert state.end == 0


def test_each_write_of_a_merged_batch_has_its_own_range() -> None:
    state = QueueState()
    assert apply_all(state, data(1), merged((1, 2), (0, 1), (2, 3))) == [Outcome("", 1, 1), Outcome("", 2, 7)]
    assert state.outcome_of(write_id(1)) == Outcome("", 2, 3)
    assert state.outcome_of(write_id(2)) == Outcome("", 5, 7)
    assert len(state.visible.rows) == 2


@pytest.mark.parametrize(
    ("writes", "shown"),
    [
        (((9, 2), (1, 2), (2, 1)), [2, 3, 4]),
        (((1, 2), (9, 2), (2, 1)), [0, 1, 4]),
        (((1, 2), (2, 1), (9, 2)), [0, 1, 2]),
        (((9, 2), (9, 2), (9, 2)), []),
        (((1, 1), (1, 1), (2, 1)), [0, 2]),
    ],
)
def test_messages_of_a_known_write_in_a_merged_batch_stay_hidden(
    writes: tuple[tuple[int, int], ...], shown: list[int]
) -> None:
    state = QueueState()
    first, second, third = apply_all(state, data(1, write=9), merged(*writes), data(1))
    assert second == Outcome("", 2, 1 + len(shown))
    assert places(state) == [(1, 0), *((2, offset) for offset in shown), (3, 0)]
    assert state.outcome_of(write_id(9)) == first
    for number, count in dict(reversed(writes)).items():
        if number != 9:
            own = state.outcome_of(write_id(number))
            assert own is not None
            assert own.last_version - own.first_version + 1 == count
            start = sum(length for _, length in writes[: [n for n, _ in writes].index(number)])
            assert state.locate(own.first_version) == (2, start)
    assert third.first_version == len(shown) + 2


@pytest.mark.parametrize(
    "writes",
    [
        ((b"a", 1, 2),),
        ((b"a", 0, 1),),
        ((b"a", 0, 3),),
        ((b"a", 0, 1), (b"b", 0, 1)),
        ((b"a", 0, 3), (b"b", 3, -1)),
    ],
)
def test_writes_that_do_not_cover_their_batch_are_refused_whole(writes: tuple[tuple[bytes, int, int], ...]) -> None:
    state = QueueState()
    assert apply_all(state, Step(Kind.DATA, 2, writes=writes)) == [Outcome("MALFORMED")]
    assert (state.end, state.outcome_of(b"a")) == (0, None)


def test_unknown_entries_change_nothing_and_are_counted() -> None:
    state = QueueState()
    before = state.statistics()
    outcomes = apply_all(
        state,
        Step(Kind.PUBLISH, control=b"\xc1"),
        Step(Kind.CURSOR, control=b"\x90", write_id=write_id(1)),
        Step(Kind.QUEUE, control=b""),
        Step(77),
        Step(Kind.STAGE, 1, writes=((b"a", 0, 1),)),
    )
    codes = [outcome.code for outcome in outcomes]
    assert codes == ["MALFORMED", "INVALID_REQUEST", "INVALID_REQUEST", "INVALID_REQUEST", "MALFORMED"]
    assert state.outcome_of(write_id(1)) == Outcome("INVALID_REQUEST")
    after = state.statistics()
    assert (after.end, after.subscribers, after.refused_entries) == (before.end, before.subscribers, 5)


def test_a_change_of_members_changes_nothing_a_reader_sees() -> None:
    state = QueueState()
    outcomes = apply_all(state, command(Kind.MEMBERS, MembersCommand((1, 2))), Step(Kind.MEMBERS, control=b"\xc1"))
    assert outcomes == [Outcome(), Outcome("MALFORMED")]
    assert state.end == 0


def test_the_expected_cursor_is_the_end_or_the_write_is_refused() -> None:
    state = QueueState()
    apply_all(state, data(3))
    state.check_expected(3)
    state.check_expected(-1)
    with pytest.raises(NotEqual) as refused:
        state.check_expected(2)
    assert refused.value.details() == {"expected": 2, "cursor": 3}


def test_ranges_begin_after_the_cursor_and_stop_at_the_count() -> None:
    state = QueueState()
    apply_all(state, stage(b"t", 2), data(3), publish(b"t"), data(2))
    assert list(state.ranges(0, 100)) == [
        VisibleRange(2, 0, 1, 3),
        VisibleRange(1, 0, 4, 2),
        VisibleRange(4, 0, 6, 2),
    ]
    assert list(state.ranges(1, 3)) == [VisibleRange(2, 1, 2, 2), VisibleRange(1, 0, 4, 1)]
    assert list(state.ranges(4, 1)) == [VisibleRange(1, 1, 5, 1)]
    assert list(state.ranges(7, 10)) == []


def test_a_read_of_trimmed_or_missing_versions_is_refused_by_name() -> None:
    state = QueueState()
    apply_all(state, data(3), data(3), trim(4))
    for version in (1, 4):
        with pytest.raises(Trimmed):
            state.locate(version)
    with pytest.raises(Trimmed):
        state.ranges(3, 1)
    assert state.locate(5) == (2, 1)
    assert list(state.ranges(4, 9)) == [VisibleRange(2, 1, 5, 2)]
    for version in (0, 7):
        with pytest.raises(InvalidRequest):
            state.locate(version)
    with pytest.raises(InvalidRequest):
        state.ranges(7, 1)


def test_a_trim_into_a_stretch_that_began_after_a_hole_keeps_the_rest_in_place() -> None:
    state = QueueState()
    apply_all(state, data(1, write=9), merged((9, 1), (1, 2)), data(2), data(1))
    assert places(state) == [(1, 0), (2, 1), (2, 2), (3, 0), (3, 1), (4, 0)]
    apply_all(state, trim(3))
    assert places(state) == [(3, 0), (3, 1), (4, 0)]


def test_a_batch_published_after_everything_was_trimmed_is_found() -> None:
    state = QueueState()
    apply_all(state, stage(b"t", 1), stage(b"u", 1), publish(b"t"), trim(1), publish(b"u"))
    assert places(state) == [(2, 0)]


def test_the_index_needs_eight_bytes_for_a_batch_while_positions_follow_one_another() -> None:
    state = QueueState()
    apply_all(state, *(data(1 + number % 3) for number in range(1000)))
    assert state.statistics().index_size_bytes == 8 * 1000 + 24


def test_statistics_count_the_contents_of_the_lane() -> None:
    state = QueueState()
    apply_all(state, data(3, write=1), stage(b"t", 2), cursor("x", 1), trim(2), publish(b"u"))
    found = state.statistics()
    assert (found.position, found.end, found.trimmed_to, found.visible_batches) == (5, 3, 2, 1)
    assert (found.write_ids, found.open_transactions, found.staged_messages) == (1, 1, 2)
    assert (found.subscribers, found.refused_entries, found.decided_transactions) == (1, 1, 0)


def txn_of(entry: Entry) -> bytes:
    command = decode(entry.kind, entry.control)
    assert isinstance(command, StageCommand | TransactionCommand)
    return command.txn


class Naive:
    """The same lane with one list item for each message and memories without a bound."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, int]] = []
        self.seen: set[bytes] = set()
        self.staged: dict[bytes, list[tuple[int, int]]] = {}

    def apply(self, entry: Entry, step: Step, outcome: Outcome) -> None:
        """Codes are taken from the state; what a done entry must show is computed here."""
        if step.writes:
            if outcome.code in ("", "CONTENT_DIFFERS"):  # of one of its writes; the others are done
                for write, offset, count in step.writes:
                    self._show_once(write, entry.position, range(offset, offset + count))
            return
        if step.write_id in self.seen:
            return
        self.seen.update([step.write_id] if step.write_id else [])
        if not outcome.code:
            self._perform(entry)

    def _show_once(self, write: bytes, position: int, offsets: range) -> None:
        if write not in self.seen:
            self.messages += [(position, offset) for offset in offsets]
        self.seen.update([write] if write else [])

    def _perform(self, entry: Entry) -> None:
        batch = [(entry.position, offset) for offset in range(entry.count)]
        if entry.kind == Kind.DATA:
            self.messages += batch
        elif entry.kind == Kind.STAGE:
            self.staged.setdefault(txn_of(entry), []).extend(batch)
        elif entry.kind == Kind.PUBLISH:
            self.messages += self.staged.pop(txn_of(entry), [])
        elif entry.kind == Kind.DISCARD:
            self.staged.pop(txn_of(entry), None)


@PROPERTY
@given(long_step_lists)
def test_every_version_is_where_a_list_of_all_messages_has_it(steps: list[Step]) -> None:
    state, naive = QueueState(), Naive()
    for step in steps:
        entry = step.at(state.position + 1)
        naive.apply(entry, step, state.apply(entry, step.writes))
        assert state.end == len(naive.messages)
    assert places(state) == naive.messages[state.trimmed_to :]
    read = [(r.position, r.offset + i) for r in state.ranges(state.trimmed_to, 1000) for i in range(r.count)]
    assert read == naive.messages[state.trimmed_to :]
