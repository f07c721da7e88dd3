"""A lane's index: versions by position, write ids by versions, snapshots that are the same index again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avow.errors import BadMagic, Malformed, Trimmed
from avow.node.pubsub.lane_index import LaneIndex, PubSubBounds
from avow.queue.state import QueueState
from avow.wire.messages import Entry, Kind

BOUNDS = PubSubBounds(write_ids=4, snapshot_entries=3)


def entries(*counts: int, after: int = 0) -> list[Entry]:
    return [
        Entry(position, 1, Kind.DATA, count, b"%016d" % position, batch=b"x" * 10)
        for position, count in enumerate(counts, after + 1)
    ]


def index_of(*counts: int, shown: int | None = None) -> LaneIndex:
    index = LaneIndex(BOUNDS)
    found = entries(*counts)
    index.extend(found)
    index.show(found[:shown])
    return index


def test_versions_follow_the_counts_of_entries_committed_or_not() -> None:
    index = index_of(2, 3, 1, shown=1)
    assert (index.shown, index.known_to, index.visible.end) == (1, 3, 2)
    assert [index.version_at(position) for position in (1, 2, 3)] == [2, 5, 6]
    assert [index.locate(version) for version in range(8)] == [
        None, (1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (3, 0), None,
    ]  # fmt: skip


def test_an_end_cuts_the_versions_and_write_ids_after_it() -> None:
    index = index_of(2, 3, 1, shown=1)
    index.cut(2)
    assert index.known_to == 2
    assert index.window.find(b"%016d" % 2) == (3, 5)
    assert index.window.find(b"%016d" % 3) is None
    index.extend(entries(4, after=2))
    assert index.window.find(b"%016d" % 3) == (6, 9)


def test_the_window_forgets_the_oldest_ids_and_reports_up_to_where() -> None:
    index = index_of(2, 3, 1, 1, 1, 1)
    assert [index.window.find(b"%016d" % number) for number in (1, 2, 3)] == [None, None, (6, 6)]
    assert index.window.forgotten_to == 5


def test_the_first_position_of_a_write_id_counts() -> None:
    index = LaneIndex(BOUNDS)
    index.extend([Entry(1, 1, Kind.DATA, 1, b"w" * 16), Entry(2, 1, Kind.DATA, 2, b"w" * 16)])
    assert index.window.find(b"w" * 16) == (1, 1)


def test_a_trim_takes_effect_up_to_the_readable_versions() -> None:
    index = index_of(2, 3, 1, shown=1)
    index.trim(4)
    assert index.visible.trimmed_to == 2
    assert index.start() == (1, 2)
    index.show(entries(3, 1, after=1))
    assert index.visible.trimmed_to == 4
    assert index.start() == (1, 2), "a part of the second entry is still to be read"
    with pytest.raises(Trimmed):
        index.locate(4)
    assert index.locate(5) == (2, 2)


def test_a_copy_that_starts_after_a_trim_knows_its_start_and_that_ids_are_forgotten() -> None:
    index = index_of(2, 3, 1)
    index.trim(5)
    position, state = index.start_state()
    late = LaneIndex.restore(state, BOUNDS)
    assert (position, late.shown, late.visible.end, late.window.forgotten_to) == (2, 2, 5, 5)
    late.extend(entries(1, after=2))
    late.show(entries(1, after=2))
    assert late.locate(6) == (3, 0)


def test_a_snapshot_is_due_after_entries_or_bytes_and_more_rarely_where_it_is_large() -> None:
    assert not index_of(1, 1).due
    index = index_of(1, 1, 1)
    assert index.due
    index.snapshot()
    assert not index.due
    assert index_of_bytes(9).due is False
    assert index_of_bytes(11).due is True
    assert LaneIndex(PubSubBounds()).due is False


def index_of_bytes(size: int) -> LaneIndex:
    index = LaneIndex(PubSubBounds(snapshot_bytes=10))
    found = [Entry(1, 1, Kind.DATA, 1, batch=b"x" * size)]
    index.extend(found)
    index.show(found)
    return index


def test_a_foreign_snapshot_is_refused() -> None:
    with pytest.raises(BadMagic):
        LaneIndex.restore(QueueState().snapshot(), BOUNDS)
    with pytest.raises(Malformed):
        LaneIndex.restore(index_of(1).snapshot()[:-1], BOUNDS)


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=20),
    st.lists(st.integers(1, 4), max_size=10),
    st.integers(0, 20),
    st.integers(0, 60),
)
def test_a_restored_index_behaves_like_the_saved_one(
    before: list[int], after: list[int], shown: int, trimmed: int
) -> None:
    index = index_of(*before, shown=shown)
    index.trim(min(trimmed, index.visible.end))
    twin = LaneIndex.restore(index.snapshot(), BOUNDS)
    twin.extend(entries(*before)[index.shown :])
    for number, one in enumerate((index, twin)):
        one.extend(entries(*after, after=len(before)))
        one.show(entries(*before, *after)[one.shown :])
        assert one.shown == len(before) + len(after), number
    assert twin.snapshot() == index.snapshot()
    for version in range(index.visible.trimmed_to + 1, index.visible.end + 1):
        assert twin.locate(version) == index.locate(version)
