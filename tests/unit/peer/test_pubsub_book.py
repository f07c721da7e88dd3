"""A lane's book: versions by position, write ids by versions, snapshots that are the same book again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avow.errors import BadMagic, Malformed, Trimmed
from avow.peer.pubsub_book import LaneBook, PubSubBounds
from avow.queue.state import QueueState
from avow.wire.messages import Entry, Kind

BOUNDS = PubSubBounds(write_ids=4, snapshot_entries=3)


def entries(*counts: int, after: int = 0) -> list[Entry]:
    return [
        Entry(position, 1, Kind.DATA, count, b"%016d" % position, batch=b"x" * 10)
        for position, count in enumerate(counts, after + 1)
    ]


def book_of(*counts: int, shown: int | None = None) -> LaneBook:
    book = LaneBook(BOUNDS)
    found = entries(*counts)
    book.extend(found)
    book.show(found[:shown])
    return book


def test_versions_follow_the_counts_of_entries_committed_or_not() -> None:
    book = book_of(2, 3, 1, shown=1)
    assert (book.shown, book.known_to, book.index.end) == (1, 3, 2)
    assert [book.version_at(position) for position in (1, 2, 3)] == [2, 5, 6]
    assert [book.locate(version) for version in range(8)] == [
        None, (1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (3, 0), None,
    ]  # fmt: skip


def test_an_end_cuts_versions_and_write_ids_behind_it() -> None:
    book = book_of(2, 3, 1, shown=1)
    book.cut(2)
    assert book.known_to == 2
    assert book.window.find(b"%016d" % 2) == (3, 5)
    assert book.window.find(b"%016d" % 3) is None
    book.extend(entries(4, after=2))
    assert book.window.find(b"%016d" % 3) == (6, 9)


def test_the_window_forgets_the_oldest_ids_and_says_up_to_where() -> None:
    book = book_of(2, 3, 1, 1, 1, 1)
    assert [book.window.find(b"%016d" % number) for number in (1, 2, 3)] == [None, None, (6, 6)]
    assert book.window.forgotten_to == 5


def test_the_first_place_of_a_write_id_holds() -> None:
    book = LaneBook(BOUNDS)
    book.extend([Entry(1, 1, Kind.DATA, 1, b"w" * 16), Entry(2, 1, Kind.DATA, 2, b"w" * 16)])
    assert book.window.find(b"w" * 16) == (1, 1)


def test_a_trim_takes_effect_as_far_as_versions_are_readable() -> None:
    book = book_of(2, 3, 1, shown=1)
    book.trimmed_to = 4
    book.follow_trim()
    assert book.index.trimmed_to == 2
    assert book.start() == (1, 2)
    book.show(entries(3, 1, after=1))
    assert book.index.trimmed_to == 4
    assert book.start() == (1, 2), "a part of the second entry is still to be read"
    with pytest.raises(Trimmed):
        book.locate(4)
    assert book.locate(5) == (2, 2)


def test_a_copy_that_starts_behind_a_trim_knows_where_it_is_and_that_it_has_forgotten() -> None:
    book = book_of(2, 3, 1)
    book.trimmed_to = 5
    book.follow_trim()
    position, state = book.start_state()
    late = LaneBook.restore(state, BOUNDS)
    assert (position, late.shown, late.index.end, late.window.forgotten_to) == (2, 2, 5, 5)
    late.extend(entries(1, after=2))
    late.show(entries(1, after=2))
    assert late.locate(6) == (3, 0)


def test_a_snapshot_is_due_after_entries_or_bytes_and_more_rarely_where_it_is_large() -> None:
    assert not book_of(1, 1).due
    book = book_of(1, 1, 1)
    assert book.due
    book.snapshot()
    assert not book.due
    assert book_of_bytes(9).due is False
    assert book_of_bytes(11).due is True
    assert LaneBook(PubSubBounds()).due is False


def book_of_bytes(size: int) -> LaneBook:
    book = LaneBook(PubSubBounds(snapshot_bytes=10))
    found = [Entry(1, 1, Kind.DATA, 1, batch=b"x" * size)]
    book.extend(found)
    book.show(found)
    return book


def test_a_snapshot_of_something_else_is_refused() -> None:
    with pytest.raises(BadMagic):
        LaneBook.restore(QueueState().snapshot(), BOUNDS)
    with pytest.raises(Malformed):
        LaneBook.restore(book_of(1).snapshot()[:-1], BOUNDS)


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=20),
    st.lists(st.integers(1, 4), max_size=10),
    st.integers(0, 20),
    st.integers(0, 60),
)
def test_a_restored_book_goes_on_like_the_one_that_was_written_down(
    before: list[int], after: list[int], shown: int, trimmed: int
) -> None:
    book = book_of(*before, shown=shown)
    book.trimmed_to = min(trimmed, book.index.end)
    book.follow_trim()
    twin = LaneBook.restore(book.snapshot(), BOUNDS)
    twin.extend(entries(*before)[book.shown :])
    for number, one in enumerate((book, twin)):
        one.extend(entries(*after, after=len(before)))
        one.show(entries(*before, *after)[one.shown :])
        assert one.shown == len(before) + len(after), number
    assert twin.snapshot() == book.snapshot()
    for version in range(book.index.trimmed_to + 1, book.index.end + 1):
        assert twin.locate(version) == book.locate(version)
