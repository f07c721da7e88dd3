"""A write id names one write for ever: another use of it is refused, and the refusal says what the id was used for."""

from __future__ import annotations

import pytest
from tests.unit.queue.queue_entries import Step, apply_all, cursor, data, merged, stage, write_id

from avow.node.answers import Refusal, sentence_of
from avow.queue.entry_outcome import Known, Outcome
from avow.queue.ledger import Projection
from avow.queue.state import QueueState
from avow.wire.messages import Kind

REUSED = Outcome("CONTENT_DIFFERS", 0, 0)
REUSED_WRITE = Outcome("CONTENT_DIFFERS", 1, 2)


@pytest.mark.parametrize(
    ("first", "second", "answer"),
    [
        (stage(b"t", 2, write=1), data(2, write=1), REUSED),
        (stage(b"t", 2, write=1), merged((2, 1), (1, 2)), REUSED),
        (data(2, write=1), stage(b"t", 2, write=1), REUSED_WRITE),
        (merged((1, 2), (2, 1)), stage(b"t", 2, write=1), REUSED_WRITE),
        (cursor("s", 0)._replace(write_id=write_id(1)), data(2, write=1), REUSED),
    ],
)
def test_another_use_of_a_write_id_is_refused_and_changes_nothing(first: Step, second: Step, answer: Outcome) -> None:
    state = QueueState()
    apply_all(state, first)
    before = state.outcome_of(write_id(1))
    refused = state.refused
    assert apply_all(state, second) == [answer]
    assert state.outcome_of(write_id(1)) == before
    assert state.refused == refused  # part of snapshots: peers of an earlier build count the same
    assert state.visible.end == first.count * (first.kind == Kind.DATA) + (1 if second.writes else 0)


@pytest.mark.parametrize("step", [stage(b"t", 2, write=1), data(2, write=1), merged((1, 2), (2, 1))])
def test_the_same_use_is_answered_with_the_first_outcome(step: Step) -> None:
    state = QueueState()
    (first,) = apply_all(state, step)
    assert not first.code
    state.outcome_of(write_id(1))
    assert apply_all(state, step)[0].code == ""


def test_a_write_with_the_id_of_a_refused_stage_is_not_told_about_a_transaction() -> None:
    state = QueueState()
    apply_all(state, stage(b"t", 1, write=2), stage(b"u", 1), stage(b"t", 1, write=1))
    state.write_ids.remember(write_id(3), Outcome("ALREADY_DECIDED"))
    assert apply_all(state, data(1, write=3)) == [REUSED]


@pytest.mark.parametrize("committed", [False, True])
def test_a_coordinator_refuses_another_use_of_an_id_in_flight_or_known(committed: bool) -> None:
    state = QueueState()
    ahead = Projection(state)
    for position, step in enumerate((stage(b"t", 2, write=1), data(3, write=2)), 1):
        ahead.appended(step.at(position))
        if committed:
            state.apply(step.at(position))
    assert ahead.check(Kind.DATA, write_id=write_id(1)) == Known(outcome=REUSED)
    asked = stage(b"u", 1).control
    assert ahead.check(Kind.STAGE, write_id=write_id(2), control=asked) == Known(
        outcome=Outcome("CONTENT_DIFFERS", 1, 3)
    )
    again = Known(outcome=Outcome("", 1, 3)) if committed else Known(position=2)
    assert ahead.check(Kind.DATA, write_id=write_id(2)) == again


def test_the_refusal_names_what_the_id_was_used_for() -> None:
    assert "staged in a transaction" in sentence_of(Refusal("CONTENT_DIFFERS"))
    assert "visible up to version 7" in sentence_of(Refusal("CONTENT_DIFFERS", 7))
