"""A snapshot is the whole state, bit for bit, and anything else is refused by name."""

from __future__ import annotations

import struct

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.queue.queue_entries import (
    PROPERTY,
    Step,
    apply_all,
    bounds,
    cursor,
    data,
    long_step_lists,
    merged,
    publish,
    stage,
    step_lists,
    trim,
)

from avow.errors import BadChecksum, BadMagic, Malformed, TooShort, UnknownVersion
from avow.queue.records import Bounds
from avow.queue.state import QueueState
from avow.queue.write_ids import Recent


def full_state() -> QueueState:
    state = QueueState()
    apply_all(state, data(3, write=1), stage(b"t", 2), merged((1, 1), (2, 2)), publish(b"t"), stage(b"u", 1), trim(2))
    apply_all(state, cursor("x", 4, hold=True), publish(b"v"), data(2))
    return state


def resealed(change: dict[int, object]) -> bytes:
    """A snapshot whose checksum holds and whose fields do not."""
    snapshot = full_state().snapshot()
    fields = msgspec.msgpack.decode(snapshot[12:])
    for field, value in change.items():
        fields[field] = value
    body = msgspec.msgpack.encode(fields)
    return snapshot[:8] + struct.pack("<I", crc32c(body)) + body


@PROPERTY
@given(long_step_lists, step_lists, bounds)
def test_a_restored_state_is_the_same_and_stays_the_same(before: list[Step], after: list[Step], sizes: Bounds) -> None:
    state = QueueState(bounds=sizes)
    apply_all(state, *before)
    snapshot = state.snapshot()
    restored = QueueState.restore(snapshot)
    assert restored.snapshot() == snapshot
    assert restored.statistics() == state.statistics()
    assert apply_all(restored, *after) == apply_all(state, *after)
    assert restored.snapshot() == state.snapshot()
    assert list(restored.ranges(restored.trimmed_to, 99)) == list(state.ranges(state.trimmed_to, 99))
    assert restored.log_needed_from() == state.log_needed_from()
    assert restored.expired(5) == state.expired(5)


@PROPERTY
@given(step_lists, bounds)
def test_the_same_entries_give_the_same_snapshot_on_every_peer(steps: list[Step], sizes: Bounds) -> None:
    one, other = QueueState(bounds=sizes), QueueState(bounds=sizes)
    for step in steps:
        assert apply_all(one, step) == apply_all(other, step)
    assert one.snapshot() == other.snapshot()


def test_a_restored_index_continues_in_the_stretch_where_it_stopped() -> None:
    state = full_state()
    restored = QueueState.restore(state.snapshot())
    apply_all(state, data(1))
    apply_all(restored, data(1))
    assert restored.snapshot() == state.snapshot()


def test_bytes_that_are_not_a_snapshot_are_refused_by_name() -> None:
    snapshot = full_state().snapshot()
    for error, damaged in [
        (TooShort, snapshot[:11]),
        (BadMagic, b"XXXX" + snapshot[4:]),
        (UnknownVersion, snapshot[:4] + b"\x02\x00" + snapshot[6:]),
        (BadChecksum, snapshot[:-1]),
        (Malformed, snapshot[:8] + struct.pack("<I", crc32c(b"\xc1")) + b"\xc1"),
    ]:
        with pytest.raises(error):
            QueueState.restore(damaged)


@PROPERTY
@given(st.data())
def test_a_snapshot_with_a_flipped_bit_is_never_restored(draw: st.DataObject) -> None:
    snapshot = bytearray(full_state().snapshot())
    bit = draw.draw(st.integers(0, 8 * len(snapshot) - 1))
    snapshot[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Malformed):
        QueueState.restore(bytes(snapshot))


ONE = (1).to_bytes(8, "little")


@pytest.mark.parametrize(
    "change",
    [
        {2: [0, 1, 1, 1, 1]},
        {3: 1},
        {4: 99},
        {5: 7},
        {6: [b"", b"", b"", b""]},
        {6: [ONE + ONE, ONE, ONE, ONE]},
        {6: [b"123", ONE, ONE, ONE]},
        {6: [ONE, ONE, ONE, ONE + ONE]},
        {7: [[b"a"], []]},
        {7: [[b"a", b"a"], [["", 1, 1], ["", 2, 2]]]},
        {8: [[b"t", 1, ONE, b""]]},
        {9: [[b"t"], [["lost", 0, 0]]]},
        {10: {"x": [1]}},
        {10: "x"},
    ],
)
def test_a_snapshot_that_contradicts_itself_is_malformed(change: dict[int, object]) -> None:
    QueueState.restore(resealed({}))
    with pytest.raises(Malformed):
        QueueState.restore(resealed(change))


@PROPERTY
@given(st.lists(st.integers(0, 20), max_size=60), st.integers(1, 6))
def test_a_bounded_memory_holds_the_last_keys_in_their_order(numbers: list[int], size: int) -> None:
    recent: Recent[int] = Recent(size)
    order: list[int] = []
    for number in numbers:
        if recent.get(b"%d" % number) is None:
            recent.remember(b"%d" % number, number)
            order = [*order, number][-size:]
    assert recent.columns() == ([b"%d" % number for number in order], order)
    assert Recent.from_columns(size, *recent.columns()).columns() == recent.columns()
    assert recent.copy().columns() == recent.columns()
    assert len(recent) == len(order)
