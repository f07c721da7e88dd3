"""A coordinator's answers from entries in flight equal the outcomes when they are applied."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.queue.queue_entries import (
    PROPERTY,
    TINY,
    Step,
    apply_all,
    bounds,
    cursor,
    data,
    discard,
    merged,
    publish,
    stage,
    step_lists,
    steps,
    write_id,
)

from avow.queue.commands import StageCommand, TransactionCommand, encode
from avow.queue.entry_outcome import EarlyRefusal, Known, Outcome, repeated
from avow.queue.ledger import Projection
from avow.queue.records import Bounds
from avow.queue.state import QueueState
from avow.wire.messages import Entry, Kind

T = encode(TransactionCommand(b"t"))


class Coordinator:
    """A log, its committed part, and a projection that is updated with each append."""

    def __init__(self, sizes: Bounds | None = None) -> None:
        self.state = QueueState(bounds=sizes)
        self.projection = Projection(self.state)
        self.log: list[Step] = []

    def append(self, *steps: Step) -> None:
        for step in steps:
            self.log.append(step)
            self.projection.appended(step.at(len(self.log)), step.writes)

    def commit(self, count: int) -> list[Outcome]:
        done = self.state.position
        return apply_all(self.state, *self.log[done : done + count])

    def take_over(self) -> None:
        entries = [step.at(number) for number, step in enumerate(self.log, 1) if number > self.state.position]
        self.projection.rebuild(entries, self.writes_of)

    def writes_of(self, entry: Entry) -> tuple[tuple[bytes, int, int], ...]:
        return self.log[entry.position - 1].writes


def test_the_end_counts_writes_in_flight() -> None:
    lane = Coordinator()
    lane.append(data(2), stage(b"t", 3), publish(b"t"))
    assert (lane.state.end, lane.projection.end) == (0, 5)
    lane.commit(3)
    assert (lane.state.end, lane.projection.end) == (5, 5)


def test_the_second_of_two_writes_expecting_one_end_is_refused_before_it_is_stored() -> None:
    lane = Coordinator()
    assert lane.projection.check(Kind.DATA, expected=0) is None
    lane.append(data(2))
    assert lane.projection.check(Kind.DATA, expected=0) == EarlyRefusal("NOT_EQUAL", 0, 2)
    assert lane.projection.check(Kind.DATA, expected=2) is None
    assert lane.projection.check(Kind.DATA) is None


def test_a_write_id_is_known_by_its_position_while_in_flight_and_by_its_outcome_afterwards() -> None:
    lane = Coordinator()
    lane.append(data(1), data(2, write=7), merged((8, 1), (9, 2)))
    assert lane.projection.outcome_of(write_id(7)) == 2
    assert lane.projection.check(Kind.DATA, write_id=write_id(9), expected=77) == Known(position=3)
    lane.commit(3)
    assert lane.projection.check(Kind.DATA, write_id=write_id(7), expected=77) == Known(Outcome("", 2, 3))
    assert lane.projection.outcome_of(write_id(9)) == Outcome("", 5, 6)
    assert lane.projection.outcome_of(write_id(5)) is None


def test_a_publish_is_refused_unless_its_transaction_is_staged_or_a_stage_is_in_flight() -> None:
    lane = Coordinator()
    assert lane.projection.check(Kind.PUBLISH, control=T) == EarlyRefusal("UNKNOWN_TRANSACTION")
    lane.append(stage(b"t", 1))
    assert lane.projection.check(Kind.PUBLISH, control=T) is None
    lane.commit(1)
    assert lane.projection.check(Kind.PUBLISH, control=T) is None


def test_a_decision_in_flight_refuses_nothing_and_a_committed_one_does() -> None:
    lane = Coordinator()
    lane.append(stage(b"t", 1), discard(b"t"))
    lane.commit(1)
    assert lane.projection.check(Kind.PUBLISH, control=T) is None
    assert lane.projection.check(Kind.STAGE, control=encode(StageCommand(b"t", 5))) is None
    lane.commit(1)
    assert lane.projection.check(Kind.PUBLISH, control=T) == EarlyRefusal("ALREADY_DECIDED")
    assert lane.projection.check(Kind.STAGE, control=encode(StageCommand(b"t", 5))) == EarlyRefusal("ALREADY_DECIDED")
    assert lane.projection.check(Kind.DISCARD, control=T) == Known(Outcome())


def test_a_committed_publish_answers_its_repetition_without_an_entry() -> None:
    lane = Coordinator()
    lane.append(data(1), stage(b"t", 2), publish(b"t"), data(1))
    lane.commit(4)
    assert lane.projection.check(Kind.PUBLISH, control=T) == Known(Outcome("", 2, 3))
    assert lane.projection.check(Kind.DISCARD, control=T) == EarlyRefusal("ALREADY_DECIDED", 2, 3)


def test_commands_that_no_lane_could_apply_are_refused() -> None:
    lane = Coordinator()
    assert lane.projection.check(Kind.PUBLISH, control=b"\xc1") == EarlyRefusal("MALFORMED")
    assert lane.projection.check(Kind.CURSOR, control=cursor("x", 4).control) == EarlyRefusal("INVALID_REQUEST")
    assert lane.projection.check(Kind.QUEUE) == EarlyRefusal("INVALID_REQUEST")
    assert lane.projection.check(Kind.NOOP) is None


def test_a_take_over_forgets_entries_that_were_lost() -> None:
    lane = Coordinator()
    lane.append(data(1, write=1), data(2, write=2))
    lane.commit(1)
    lane.log[1:] = [data(5, write=3)]
    lane.take_over()
    assert lane.projection.end == 6
    assert [lane.projection.outcome_of(write_id(n)) for n in (1, 2, 3)] == [Outcome("", 1, 1), None, 2]


def test_a_take_over_knows_transactions_that_were_open_and_does_not_touch_them() -> None:
    lane = Coordinator()
    lane.append(stage(b"t", 2))
    lane.commit(1)
    lane.take_over()
    lane.append(stage(b"t", 3), publish(b"t"))
    assert (lane.projection.end, lane.state.statistics().staged_messages) == (5, 2)
    assert lane.commit(2) == [Outcome(), Outcome("", 1, 5)]


def test_a_write_id_forgotten_in_flight_is_projected_as_a_new_write() -> None:
    lane = Coordinator(TINY)
    lane.append(data(1, write=1))
    lane.commit(1)
    lane.append(*(data(1, write=number) for number in (2, 3, 4, 1)))
    assert lane.projection.end == 5
    lane.commit(4)
    assert lane.state.end == 5


moves = st.one_of(st.lists(steps, min_size=1, max_size=6), st.integers(1, 5), st.just("take over"))


@PROPERTY
@given(st.lists(moves, min_size=4, max_size=25), bounds)
def test_projecting_and_then_applying_is_the_same_as_applying_alone(script: list[object], sizes: Bounds) -> None:
    lane, alone = Coordinator(sizes), QueueState(bounds=sizes)
    outcomes: list[Outcome] = []
    for move in script:
        if isinstance(move, list):
            lane.append(*move)
        elif isinstance(move, int):
            outcomes += lane.commit(move)
        else:
            lane.take_over()
        expected = apply_all(alone, *lane.log[alone.position :])
        assert (lane.projection.end, lane.projection.position) == (alone.end, alone.position)
        assert len(expected) == (len(move) if isinstance(move, list) else 0)
    outcomes += lane.commit(len(lane.log))
    twin = QueueState(bounds=sizes)
    assert outcomes == apply_all(twin, *lane.log)
    assert lane.state.snapshot() == alone.snapshot() == twin.snapshot()


@PROPERTY
@given(step_lists, step_lists, st.integers(0, 40), st.integers(-1, 12), bounds)
def test_a_check_passes_only_valid_writes_and_its_answers_are_correct(
    log: list[Step], asked: list[Step], committed: int, expected: int, sizes: Bounds
) -> None:
    lane = Coordinator(sizes)
    lane.append(*log)
    lane.commit(committed)
    for step in asked:
        foreseen = lane.projection.check(step.kind, write_id=step.write_id, expected=expected, control=step.control)
        later = QueueState(bounds=sizes)
        before = apply_all(later, *lane.log)
        if isinstance(foreseen, Known):
            known = lane.projection.outcome_ahead(step.write_id) if step.write_id else None
            assert foreseen.outcome is None or known is None or foreseen.outcome == repeated(step.kind, known)
            assert foreseen.outcome is not None or lane.state.position < foreseen.position <= len(before)
            continue
        if foreseen is None:
            assert expected in (-1, later.end)
            lane.append(step)
            continue
        if foreseen.code == "NOT_EQUAL":
            assert (expected != later.end, foreseen.last_version) == (True, later.end)
            continue
        refused = Outcome(foreseen.code, foreseen.first_version, foreseen.last_version)
        plain = step._replace(write_id=b"", writes=(), count=min(step.count, 1))
        assert apply_all(later, plain) == [refused]
