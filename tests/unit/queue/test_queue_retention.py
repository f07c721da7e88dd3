"""Cursors, holds, trims, and what the rules of retention may propose."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.queue.queue_entries import (
    PROPERTY,
    TINY,
    Step,
    apply_all,
    cursor,
    data,
    discard,
    publish,
    stage,
    step_lists,
    trim,
)

from avow.queue.commands import RetentionRules, TrimCommand
from avow.queue.entry_outcome import Outcome
from avow.queue.records import StoredFile
from avow.queue.retention import log_deletable_to, trim_proposal
from avow.queue.state import QueueState

EVERYTHING = 1 << 40  # a snapshot position beyond any entry here


def six_batches_of_ten() -> tuple[QueueState, list[StoredFile]]:
    """Three files of two batches each: 100 bytes and 1, 2, 3 seconds after 1970."""
    state = QueueState()
    apply_all(state, *(data(10) for _ in range(6)))
    return state, [StoredFile(2, 100, 1000), StoredFile(4, 100, 2000), StoredFile(6, 100, 3000)]


def propose(
    state: QueueState, files: list[StoredFile], rules: RetentionRules, *, now_ms: int = 0, snapshot: int = EVERYTHING
) -> TrimCommand | None:
    return trim_proposal(state, files, now_ms=now_ms, rules=rules, snapshot_position=snapshot)


def test_a_cursor_moves_forward_and_only_a_reset_moves_it_back() -> None:
    state = QueueState()
    outcomes = apply_all(state, data(9), cursor("x", 5), cursor("x", 3), cursor("x", 2, reset=True), cursor("x", 4))
    assert [outcome.last_version for outcome in outcomes[1:]] == [5, 5, 2, 4]


def test_a_cursor_beyond_the_end_is_refused() -> None:
    state = QueueState()
    assert apply_all(state, data(2), cursor("x", 3), cursor("x", 3, reset=True))[1:] == [Outcome("INVALID_REQUEST")] * 2
    assert state.statistics().subscribers == 0


def test_a_hold_stays_until_it_is_changed_by_name() -> None:
    state = QueueState()
    apply_all(state, data(9), cursor("x", 2, hold=True), cursor("x", 4))
    assert state.subscribers.held_at() == 4
    apply_all(state, cursor("x", 4, hold=False))
    assert state.subscribers.held_at() is None


def test_a_removed_subscriber_holds_nothing_and_may_be_removed_again() -> None:
    state = QueueState()
    outcomes = apply_all(state, data(9), cursor("x", 2, hold=True), cursor("x", 0, remove=True), trim(9))
    assert outcomes[3] == Outcome("", 1, 9)
    assert apply_all(state, cursor("x", 0, remove=True)) == [Outcome()]


def test_subscribers_are_bounded_and_known_ones_still_move() -> None:
    state = QueueState(bounds=TINY)
    outcomes = apply_all(state, data(5), cursor("x", 1), cursor("y", 1), cursor("z", 1), cursor("x", 2))
    assert [outcome.code for outcome in outcomes] == ["", "", "", "TOO_MANY", ""]


def test_a_trim_stops_at_a_hold_or_the_end_and_never_goes_back() -> None:
    state = QueueState()
    outcomes = apply_all(
        state,
        data(9),
        cursor("x", 4, hold=True),
        trim(8),
        trim(2),
        cursor("x", 9),
        trim(99),
        cursor("x", 1, reset=True),
    )
    assert outcomes[2] == Outcome("", 1, 4)
    assert outcomes[3] == Outcome("", 5, 4)
    assert outcomes[5] == Outcome("", 5, 9)
    assert apply_all(state, cursor("x", 1, reset=True), trim(9))[1] == Outcome("", 10, 9)
    assert state.trimmed_to == 9


def test_without_a_rule_nothing_is_ever_proposed() -> None:
    state, files = six_batches_of_ten()
    apply_all(state, cursor("x", 60))
    assert propose(state, files, RetentionRules(), now_ms=10**12) is None


def test_age_removes_files_whose_newest_message_is_too_old() -> None:
    state, files = six_batches_of_ten()
    rules = RetentionRules(age_s=1)
    assert propose(state, files, rules, now_ms=2000) is None
    assert propose(state, files, rules, now_ms=2001) == TrimCommand(20, "age")
    assert propose(state, files, rules, now_ms=9000) == TrimCommand(60, "age")


def test_size_never_removes_more_than_its_limit_requires() -> None:
    state, files = six_batches_of_ten()
    found = [propose(state, files, RetentionRules(size_bytes=size)) for size in (301, 300, 201, 200, 150, 100, 0)]
    versions = [0 if command is None else command.upto_version for command in found]
    assert versions == [0, 0, 0, 20, 20, 40, 60]


def test_messages_that_all_subscribers_passed_may_go_and_none_without_subscribers() -> None:
    state, files = six_batches_of_ten()
    rules = RetentionRules(passed=True)
    assert propose(state, files, rules) is None
    apply_all(state, cursor("x", 33), cursor("y", 15))
    assert propose(state, files, rules) == TrimCommand(15, "passed")


def test_the_rule_that_removes_most_counts() -> None:
    state, files = six_batches_of_ten()
    apply_all(state, cursor("x", 33))
    rules = RetentionRules(age_s=1, size_bytes=200, passed=True)
    assert propose(state, files, rules, now_ms=0) == TrimCommand(33, "passed")
    assert propose(state, files, rules, now_ms=3500) == TrimCommand(40, "age")


def test_a_hold_and_a_snapshot_protect_messages_from_the_rules() -> None:
    state, files = six_batches_of_ten()
    rules = RetentionRules(age_s=0)
    assert propose(state, files, rules, now_ms=9999, snapshot=3) == TrimCommand(30, "age")
    assert propose(state, files, rules, now_ms=9999, snapshot=0) is None
    apply_all(state, cursor("slow", 12, hold=True))
    assert propose(state, files, rules, now_ms=9999) == TrimCommand(12, "age")


def test_a_subscriber_without_a_hold_does_not_stop_removal_by_age() -> None:
    state, files = six_batches_of_ten()
    apply_all(state, cursor("slow", 12))
    assert propose(state, files, RetentionRules(age_s=0), now_ms=9999) == TrimCommand(60, "age")


def test_a_batch_published_late_stays_in_an_old_file_and_versions_keep_their_order() -> None:
    state = QueueState()
    apply_all(state, stage(b"t", 1), data(2), data(2), publish(b"t"), data(2))
    files = [StoredFile(2, 100, 1000), StoredFile(5, 100, 5000)]
    rules = RetentionRules(age_s=1)
    assert propose(state, files, rules, now_ms=3000) == TrimCommand(2, "age")
    apply_all(state, trim(2))
    assert state.log_needed_from() == 1
    apply_all(state, trim(5))
    assert state.log_needed_from() == 5


def test_files_go_only_when_neither_readers_nor_transactions_nor_the_snapshot_need_them() -> None:
    state = QueueState()
    apply_all(state, data(2), stage(b"t", 1), data(2), trim(4))
    assert log_deletable_to(state, snapshot_position=4) == 1
    apply_all(state, discard(b"t"))
    assert log_deletable_to(state, snapshot_position=4) == 4
    assert log_deletable_to(state, snapshot_position=9) == 5


@PROPERTY
@given(step_lists, st.integers(0, 60), st.integers(1, 5), st.integers(0, 500), st.booleans())
def test_a_proposal_is_applied_as_proposed_and_keeps_protected_messages(
    steps: list[Step], snapshot: int, per_file: int, size_bytes: int, passed: bool
) -> None:
    state = QueueState()
    apply_all(state, *steps)
    ends = range(per_file, state.position + per_file, per_file)
    files = [StoredFile(min(end, state.position), 100, end) for end in ends]
    rules = RetentionRules(age_s=0, size_bytes=size_bytes, passed=passed)
    found = propose(state, files, rules, now_ms=state.position // 2, snapshot=snapshot)
    if found is None:
        return
    held, before = state.subscribers.held_at(), state.trimmed_to
    kept = {version: state.locate(version) for version in range(found.upto_version + 1, state.end + 1)}
    gone = [state.locate(version)[0] for version in range(before + 1, found.upto_version + 1)]
    assert max(gone) <= snapshot
    assert held is None or found.upto_version <= held
    assert apply_all(state, trim(found.upto_version)) == [Outcome("", before + 1, found.upto_version)]
    assert {version: state.locate(version) for version in kept} == kept
    needed = [place[0] for place in kept.values()]
    assert state.log_needed_from() <= min(needed, default=state.position + 1)
