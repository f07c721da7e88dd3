"""Staged writes: invisible, then all at once or not at all, and decided once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.queue.queue_entries import TINY, Step, apply_all, command, data, discard, publish, stage

from avow.queue.commands import StageCommand, TransactionCommand
from avow.queue.entry_outcome import Outcome
from avow.queue.records import Decision
from avow.queue.state import QueueState
from avow.wire.messages import Kind


def test_staged_batches_become_visible_when_published_in_stage_order() -> None:
    state = QueueState()
    apply_all(state, stage(b"t", 1), data(2), stage(b"u", 1), stage(b"t", 2))
    assert state.end == 2
    assert apply_all(state, publish(b"t"), publish(b"u")) == [Outcome("", 3, 5), Outcome("", 6, 6)]
    assert [state.locate(version) for version in range(1, 7)] == [(2, 0), (2, 1), (1, 0), (4, 0), (4, 1), (3, 0)]


def test_a_discarded_transaction_is_never_seen() -> None:
    state = QueueState()
    assert apply_all(state, stage(b"t", 3), discard(b"t"), data(1))[1:] == [Outcome(), Outcome("", 1, 1)]


@pytest.mark.parametrize("decide", [publish, discard])
def test_a_repeated_decision_is_answered_like_the_first_one(decide: Callable[[bytes], Step]) -> None:
    state = QueueState()
    _, first, _, again = apply_all(state, stage(b"t", 2), decide(b"t"), data(1), decide(b"t"))
    assert first == again
    assert not first.code


def test_the_opposite_decision_gets_the_earlier_one() -> None:
    state = QueueState()
    outcomes = apply_all(
        state, data(1), stage(b"p", 2), stage(b"d", 2), publish(b"p"), discard(b"d"), discard(b"p"), publish(b"d")
    )
    assert outcomes[-2:] == [Outcome("ALREADY_DECIDED", 2, 3), Outcome("ALREADY_DECIDED", 0, 0)]
    assert state.end == 3


def test_a_stage_after_the_decision_is_refused_with_the_decision() -> None:
    state = QueueState()
    apply_all(state, stage(b"p", 2), stage(b"d", 2), publish(b"p"), discard(b"d"))
    late = apply_all(state, stage(b"p", 1), stage(b"d", 1))
    assert late == [Outcome("ALREADY_DECIDED", 1, 2), Outcome("ALREADY_DECIDED", 0, 0)]


def test_publishing_an_unknown_transaction_is_refused_and_leaves_the_name_free() -> None:
    state = QueueState()
    outcomes = apply_all(state, publish(b"t"), stage(b"t", 1), publish(b"t"))
    assert outcomes == [Outcome("UNKNOWN_TRANSACTION"), Outcome(), Outcome("", 1, 1)]


def test_discarding_an_unknown_transaction_refuses_a_late_stage() -> None:
    state = QueueState()
    assert apply_all(state, discard(b"t"), stage(b"t", 1)) == [Outcome(), Outcome("ALREADY_DECIDED")]


def test_a_transaction_without_messages_is_published_at_an_empty_range() -> None:
    state = QueueState()
    _, _, first, again, other = apply_all(state, data(2), stage(b"t", 0), publish(b"t"), publish(b"t"), discard(b"t"))
    assert first == again == Outcome("", 3, 2)
    assert other == Outcome("ALREADY_DECIDED", 3, 2)


def test_deadlines_list_transactions_in_opening_order_and_the_latest_one_counts() -> None:
    state = QueueState()
    apply_all(
        state,
        stage(b"b", 1, deadline_ms=50),
        stage(b"a", 1, deadline_ms=40),
        stage(b"c", 1, deadline_ms=60),
        stage(b"a", 1, deadline_ms=90),
        stage(b"c", 1, deadline_ms=10),
    )
    assert state.expired(49) == []
    assert state.expired(50) == [b"b"]
    assert state.expired(60) == [b"b", b"c"]
    assert state.expired(90) == [b"b", b"a", b"c"]


def test_a_deadline_discards_by_a_log_entry_that_says_so() -> None:
    state = QueueState()
    expire = command(Kind.DISCARD, TransactionCommand(b"t", "deadline"))
    outcomes = apply_all(state, stage(b"t", 1), expire, expire, publish(b"t"))
    assert outcomes[1:] == [Outcome(), Outcome(), Outcome("ALREADY_DECIDED")]
    assert state.transactions.decided.get(b"t") == Decision("expired")
    assert state.expired(10_000) == []


def test_a_deadline_that_lost_against_a_publish_changes_nothing() -> None:
    state = QueueState()
    expire = command(Kind.DISCARD, TransactionCommand(b"t", "deadline"))
    outcomes = apply_all(state, stage(b"t", 2), publish(b"t"), expire)
    assert outcomes[2] == Outcome("ALREADY_DECIDED", 1, 2)
    assert state.end == 2


def test_open_transactions_and_their_batches_are_bounded() -> None:
    state = QueueState(bounds=TINY)
    outcomes = apply_all(state, stage(b"a", 1), stage(b"b", 1), stage(b"c", 1), stage(b"a", 1), stage(b"a", 1))
    assert [outcome.code for outcome in outcomes] == ["", "", "TOO_MANY", "", "TOO_MANY"]
    assert apply_all(state, publish(b"a"), stage(b"c", 1)) == [Outcome("", 1, 2), Outcome()]


def test_decisions_are_forgotten_oldest_first() -> None:
    state = QueueState(bounds=TINY)
    apply_all(state, discard(b"a"), discard(b"b"), discard(b"c"))
    outcomes = apply_all(state, publish(b"a"), publish(b"b"), publish(b"c"))
    assert [outcome.code for outcome in outcomes] == ["UNKNOWN_TRANSACTION", "ALREADY_DECIDED", "ALREADY_DECIDED"]


def test_a_stage_without_messages_protects_nothing_of_the_log() -> None:
    state = QueueState()
    apply_all(state, stage(b"t", 0), data(1))
    assert state.log_needed_from() == 2


def test_open_staged_batches_protect_their_part_of_the_log() -> None:
    state = QueueState()
    apply_all(state, data(1), stage(b"t", 1), data(1), discard(b"x"))
    assert state.log_needed_from() == 1
    state.visible.trim(2)
    assert state.log_needed_from() == 2
    apply_all(state, publish(b"t"))
    assert state.log_needed_from() == 2
    state.visible.trim(3)
    assert state.log_needed_from() == state.position + 1


# ---------------------------------------------------------------------- parts


def staged_part(part: int, count: int, *, deadline_ms: int = 1_000) -> Step:
    return command(Kind.STAGE, StageCommand(b"t", deadline_ms, part), count=count)


def publish_parts(*parts: tuple[int, int]) -> Step:
    return command(Kind.PUBLISH, TransactionCommand(b"t", parts=parts))


def discard_parts(*parts: int) -> Step:
    return command(Kind.DISCARD, TransactionCommand(b"t", parts=tuple((part, 0) for part in parts)))


EXPIRE = command(Kind.DISCARD, TransactionCommand(b"t", "deadline"))


def test_a_publish_shows_the_parts_it_names_in_stage_order_and_drops_the_others() -> None:
    state = QueueState()
    apply_all(state, staged_part(8, 1), staged_part(9, 5), staged_part(7, 2), staged_part(8, 1))
    assert apply_all(state, publish_parts((7, 2), (8, 2))) == [Outcome("", 1, 4)]
    assert [state.locate(version) for version in range(1, 5)] == [(1, 0), (3, 0), (3, 1), (4, 0)]
    assert state.log_needed_from() == 1
    assert not state.transactions.opened


def test_a_repeated_publish_of_other_parts_is_answered_like_the_first_and_shows_nothing() -> None:
    state = QueueState()
    apply_all(state, staged_part(1, 2), publish_parts((1, 2)))
    assert apply_all(state, staged_part(5, 2), publish_parts((5, 2))) == [
        Outcome("ALREADY_DECIDED", 1, 2),
        Outcome("", 1, 2),
    ]
    assert state.end == 2


@pytest.mark.parametrize("parts", [((1, 2),), ((1, 3), (2, 1)), ((1, 3), (1, 3)), ((1, 3), (4, 1))])
def test_a_publish_with_inconsistent_parts_changes_nothing(parts: tuple[tuple[int, int], ...]) -> None:
    state = QueueState()
    apply_all(state, staged_part(1, 1), staged_part(1, 2))
    assert apply_all(state, publish_parts(*parts)) == [Outcome("INCOMPLETE")]
    assert state.end == 0
    assert apply_all(state, publish_parts((1, 3))) == [Outcome("", 1, 3)]


def test_an_expired_transaction_of_parts_can_be_staged_again_and_is_never_half_published() -> None:
    state = QueueState()
    apply_all(state, staged_part(1, 2), EXPIRE, EXPIRE)
    assert apply_all(state, publish_parts((1, 2))) == [Outcome("UNKNOWN_TRANSACTION")]
    assert apply_all(state, staged_part(1, 1), publish_parts((1, 3))) == [Outcome(), Outcome("INCOMPLETE")]
    assert apply_all(state, staged_part(2, 3), publish_parts((2, 3))) == [Outcome(), Outcome("", 1, 3)]


def test_discarded_parts_are_dropped_and_the_name_stays_free() -> None:
    state = QueueState()
    apply_all(state, staged_part(1, 2), staged_part(2, 1), discard_parts(1))
    assert apply_all(state, publish_parts((1, 2))) == [Outcome("INCOMPLETE")]
    assert state.log_needed_from() == 2
    assert apply_all(state, discard_parts(2), discard_parts(2), staged_part(3, 1)) == [Outcome()] * 3
    assert apply_all(state, publish_parts((3, 1)), discard_parts(3)) == [
        Outcome("", 1, 1),
        Outcome("ALREADY_DECIDED", 1, 1),
    ]


def test_a_mixed_transaction_that_expires_stays_decided() -> None:
    state = QueueState()
    assert apply_all(state, staged_part(1, 1), stage(b"t", 1), EXPIRE, staged_part(1, 1))[-1].code == "ALREADY_DECIDED"


def test_parts_survive_a_snapshot() -> None:
    state = QueueState()
    apply_all(state, staged_part(1, 2), staged_part(2, 3), stage(b"u", 1))
    restored = QueueState.restore(state.snapshot())
    assert restored.snapshot() == state.snapshot()
    assert apply_all(restored, publish_parts((2, 3)), publish(b"u")) == [Outcome("", 1, 3), Outcome("", 4, 4)]
