"""Operations are written to storage in parts that fit into a segment of its log."""

from __future__ import annotations

from avow.limits import STORE_WRITE_SIZE_BYTES, WAL_SEGMENT_SIZE_BYTES
from avow.replication.effects import Persist, SaveCut, SaveEntries, SaveState
from avow.replication.pieces import store_writes
from avow.wire.messages import Entry, Kind


def entries(lane: int, *sizes: int) -> SaveEntries:
    return SaveEntries(lane, tuple(Entry(n, 1, Kind.DATA, 1, bytes(16), 0, b"", bytes(s)) for n, s in enumerate(sizes)))


def test_a_small_write_is_one_part() -> None:
    operations: list[Persist] = [SaveState(1, 5, 5), entries(1, 100), SaveCut(2, 7)]
    assert list(store_writes(operations)) == [operations]


def test_what_many_lanes_append_in_one_turn_is_split_and_stays_in_order() -> None:
    large = STORE_WRITE_SIZE_BYTES * 3 // 4
    operations: list[Persist] = [SaveState(1, 5, 5)]
    operations += [entries(lane, large) for lane in range(2 * WAL_SEGMENT_SIZE_BYTES // large)]
    operations += [SaveCut(1, 7)]
    parts = list(store_writes(operations))
    assert [operation for part in parts for operation in part] == operations
    assert [len(part) for part in parts] == [2, *[1] * (len(parts) - 2), 2]


def test_one_operation_is_never_split() -> None:
    alone = entries(1, STORE_WRITE_SIZE_BYTES, STORE_WRITE_SIZE_BYTES)
    assert [list(part) for part in store_writes([SaveCut(1, 1), alone])] == [[SaveCut(1, 1)], [alone]]
