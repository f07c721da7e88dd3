"""Writes of one turn: those that a lane accepts come before those it refuses.

Producers rely on it. They send many writes in one turn and repeat what was refused; a lane that took a later one of
them would have the order wrong for good.
"""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from tests.unit.node.queue_lane_hand import NOW, confirmed, coordinating, heard, perform, section, small, stored, write

from avow.node.answers import LOST, Done, Refusal
from avow.node.lane.two_phase_lane import Write
from avow.queue import commands
from avow.wire.merge import merge_sections
from avow.wire.messages import Kind, Ready


@pytest.mark.parametrize("seed", range(30))
def test_the_oldest_writes_of_a_turn_are_taken_first(seed: int) -> None:
    """Earlier entries are in flight; they are stored, which makes room, before the turn is drained."""
    rng = Random(seed)
    lane = coordinating()
    under_way = rng.randrange(1, 5)
    lane.core.state.tuning = msgspec.structs.replace(
        lane.core.state.tuning, in_flight_entries=under_way + rng.randrange(4)
    )
    for number in range(under_way):
        lane.write(100 + number, write(100 + number), NOW)
    perform(lane)
    before = lane.core.log.end
    for number in range(20):
        key = rng.choice((None, None, b"k"))  # columns that differ are not held together
        lane.write(number, small(number + 1, key=key) if rng.random() < 0.8 else write(number + 1), NOW)
    lane.receive(2, Ready(lane.core.promised, before, True), NOW)
    for _ in range(10):
        stored(lane)
    answers = {number: answer for number, answer in heard(lane) if number < 100}
    assert len(answers) == 20
    taken = [number for number, answer in sorted(answers.items()) if isinstance(answer, Done)]
    assert taken == list(range(len(taken)))
    assert {answer.code for answer in answers.values() if isinstance(answer, Refusal)} <= {"OFFLINE"}


def test_writes_that_another_peer_has_merged_are_known_one_by_one_before_they_are_committed() -> None:
    lane = coordinating()
    heard(lane)
    parts = [(b"%016d" % number, 1, section(b"v%d" % number)) for number in (1, 2, 3)]
    lane.write(1, Write(Kind.DATA, b"", 3, batch=merge_sections(parts)), NOW)
    lane.write(2, small(2), NOW)
    lane.write(3, Write(Kind.DATA, b"", 3, batch=merge_sections(parts)), NOW)
    lane.write(4, write(9, expected=3), NOW)
    stored(lane)
    stored(lane)
    answers = dict(heard(lane))
    assert answers[1] == Done(1, 3)
    assert answers[2] == Done(2, 2)
    assert isinstance(answers[3], Done)
    assert answers[4] == Done(4, 4)
    assert lane.state.end == 4


def test_a_write_id_of_a_staged_batch_among_writes_that_another_peer_merged_leaves_the_answer_open() -> None:
    """The peer then asks for each of them: the others are stored, and that one is refused."""
    lane = coordinating()
    stage = commands.encode(commands.StageCommand(b"t", 10_000))
    lane.write(0, Write(Kind.STAGE, b"%016d" % 2, 1, -1, 0, stage, b"x"), NOW)
    stored(lane)
    parts = [(b"%016d" % number, 1, section(b"v%d" % number)) for number in (1, 2, 3)]
    lane.write(1, Write(Kind.DATA, b"", 3, batch=merge_sections(parts)), NOW)
    stored(lane)
    for number in (1, 2, 3):
        lane.write(10 + number, small(number), NOW)
    confirmed(lane)
    refused = Refusal("CONTENT_DIFFERS")
    assert dict(heard(lane)) == {0: Done(0, 0), 1: LOST, 11: Done(1, 1), 12: refused, 13: Done(2, 2)}


def test_a_write_with_the_id_of_a_stage_in_flight_is_refused_once_that_is_stored() -> None:
    lane = coordinating()
    stage = commands.encode(commands.StageCommand(b"t", 10_000))
    lane.write(0, Write(Kind.STAGE, b"%016d" % 2, 1, -1, 0, stage, b"x"), NOW)
    lane.write(1, small(2), NOW)
    confirmed(lane)
    assert heard(lane) == []
    stored(lane)
    assert dict(heard(lane)) == {0: Done(0, 0), 1: Refusal("CONTENT_DIFFERS")}
