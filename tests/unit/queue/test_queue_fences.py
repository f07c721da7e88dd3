"""A two-phase lane's cursor is moved by the reader that took the lane over last, and by commands without an epoch."""

from __future__ import annotations

import struct

import msgspec
from crc32c import crc32c
from tests.unit.queue.queue_entries import Step, apply_all, cursor, data

from avow.queue.entry_outcome import Outcome
from avow.queue.projection import EarlyRefusal, Projection
from avow.queue.state import QueueState
from avow.queue.subscribers import Subscriber
from avow.wire.messages import Kind

FENCED = Outcome("FENCED")


def lane(*steps: Step) -> QueueState:
    """Ten messages, then these."""
    state = QueueState()
    apply_all(state, data(10), *steps)
    return state


def fence(epoch: int, name: str = "x") -> Step:
    return cursor(name, 0, epoch=epoch)


def test_a_fence_returns_the_cursor_and_fences_the_previous_reader() -> None:
    state = lane(fence(5), cursor("x", 4, epoch=5))
    assert apply_all(state, fence(7), cursor("x", 6, epoch=5), cursor("x", 6, epoch=7)) == [
        Outcome("", 0, 4),
        FENCED,
        Outcome("", 0, 6),
    ]
    assert state.subscribers.by_name == {"x": Subscriber(6, hold=False, epoch=7)}


def test_a_fence_creates_a_subscriber_and_a_repeated_fence_only_reads() -> None:
    state = lane()
    assert apply_all(state, fence(5), cursor("x", 3, epoch=5), fence(5)) == [
        Outcome("", 0, 0),
        Outcome("", 0, 3),
        Outcome("", 0, 3),
    ]


def test_an_older_fence_is_refused_as_fenced() -> None:
    state = lane(fence(7))
    assert apply_all(state, fence(5)) == [FENCED]
    assert state.subscribers.by_name["x"].epoch == 7


def test_a_move_does_not_take_a_lane_over() -> None:
    """A reader that skips the fence does not know what the ones before it have passed."""
    state = lane(fence(5))
    assert apply_all(state, cursor("x", 3, epoch=6), cursor("x", 2, epoch=5)) == [FENCED, Outcome("", 0, 2)]
    assert apply_all(state, cursor("x", 0, epoch=6, reset=True), cursor("x", 0, epoch=6, remove=True)) == [FENCED] * 2


def test_a_reader_that_lost_a_lane_and_got_it_back_cannot_repeat_the_moves_of_another() -> None:
    """a reads under 5; b gets the lane in 6, a again in 7, and a's peer does not know of 6 or 7 when b arrives."""
    state = lane(fence(5), cursor("x", 2, epoch=5))
    assert apply_all(state, fence(6), cursor("x", 5, epoch=6)) == [Outcome("", 0, 2), Outcome("", 0, 5)]
    assert apply_all(state, cursor("x", 4, epoch=5), cursor("x", 4, epoch=7)) == [FENCED, FENCED]
    assert apply_all(state, fence(7), cursor("x", 6, epoch=6), cursor("x", 8, epoch=7)) == [
        Outcome("", 0, 5),
        FENCED,
        Outcome("", 0, 8),
    ]


def test_a_command_without_an_epoch_is_never_fenced_and_fences_no_reader() -> None:
    state = lane(fence(5))
    assert apply_all(state, cursor("x", 3), cursor("x", 1, reset=True), cursor("x", 2, epoch=5)) == [
        Outcome("", 0, 3),
        Outcome("", 0, 1),
        Outcome("", 0, 2),
    ]
    assert state.subscribers.by_name["x"].epoch == 5


def test_each_subscriber_has_its_own_fence() -> None:
    state = lane(fence(7), fence(5, "y"))
    assert apply_all(state, cursor("y", 3, epoch=5), cursor("x", 3, epoch=5)) == [Outcome("", 0, 3), FENCED]


def test_readers_of_a_removed_subscriber_take_over_their_lane_again() -> None:
    state = lane(fence(5), cursor("x", 4, epoch=5), cursor("x", 0, remove=True))
    assert apply_all(state, cursor("x", 6, epoch=5), fence(5), cursor("x", 1, epoch=5)) == [
        FENCED,
        Outcome("", 0, 0),
        Outcome("", 0, 1),
    ]


def test_a_move_beyond_the_end_is_refused_with_or_without_an_epoch() -> None:
    state = lane(fence(5))
    assert apply_all(state, cursor("x", 11, epoch=5)) == [Outcome("INVALID_REQUEST")]


# Ahead of the committed state


def test_a_fence_refuses_nobody_before_it_is_committed() -> None:
    state = lane(fence(5))
    projection = Projection(state)
    projection.appended(fence(6).at(3))
    old, new = cursor("x", 2, epoch=5), cursor("x", 2, epoch=6)
    assert projection.check(Kind.CURSOR, control=old.control) is None
    assert projection.check(Kind.CURSOR, control=new.control) is None
    apply_all(state, fence(6))
    assert projection.check(Kind.CURSOR, control=old.control) == EarlyRefusal("FENCED")
    assert projection.check(Kind.CURSOR, control=new.control) is None


# Snapshots


def test_a_snapshot_carries_the_fence() -> None:
    state = lane(fence(7), cursor("x", 3, epoch=7))
    restored = QueueState.restore(state.snapshot())
    assert restored.snapshot() == state.snapshot()
    assert apply_all(restored, cursor("x", 4, epoch=6)) == [FENCED]


def test_a_snapshot_from_before_epochs_existed_has_no_fence() -> None:
    state = lane(cursor("x", 3, hold=True))
    snapshot = state.snapshot()
    fields = msgspec.msgpack.decode(snapshot[12:])
    fields[10] = {name: subscriber[:2] for name, subscriber in fields[10].items()}
    body = msgspec.msgpack.encode(fields)
    restored = QueueState.restore(snapshot[:8] + struct.pack("<I", crc32c(body)) + body)
    assert restored.snapshot() == snapshot
    assert restored.subscribers.by_name == {"x": Subscriber(3, hold=True)}
