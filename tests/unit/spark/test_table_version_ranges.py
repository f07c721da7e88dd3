from __future__ import annotations

import random

from avow.spark.tables.version_ranges import Range, archived_ends, merged


def stretch(first: int, last: int, *, rows: int | None = None, lane: int = 0) -> Range:
    return Range("q", lane, first, last, last - first + 1 if rows is None else rows)


def test_adjacent_complete_ranges_become_one() -> None:
    assert merged([stretch(11, 20), stretch(1, 10), stretch(21, 21)]) == [stretch(1, 21)]


def test_a_gap_ends_the_archived_range() -> None:
    assert archived_ends([stretch(1, 10), stretch(12, 20)]) == {("q", 0): 10}


def test_interleaved_ranges_of_a_shuffle_are_counted_together() -> None:
    assert archived_ends([stretch(1, 9, rows=5), stretch(2, 10, rows=5), stretch(11, 12)]) == {("q", 0): 12}


def test_a_gap_within_a_range_ends_the_archived_range_before_it() -> None:
    assert archived_ends([stretch(1, 5), stretch(6, 10, rows=4), stretch(11, 12)]) == {("q", 0): 5}


def test_a_lane_that_starts_with_a_gap_has_no_archived_end() -> None:
    assert archived_ends([stretch(1, 10, rows=9)]) == {}


def test_an_archive_may_begin_after_the_first_version() -> None:
    assert archived_ends([stretch(500, 600)]) == {("q", 0): 600}


def test_lanes_and_queues_do_not_touch_each_other() -> None:
    ranges = [stretch(1, 10), stretch(11, 20, lane=1), Range("other", 0, 11, 12, 2)]
    assert archived_ends(ranges) == {("q", 0): 10, ("q", 1): 20, ("other", 0): 12}


def test_ranges_agree_with_a_set_of_versions_in_any_order() -> None:
    for seed in range(300):
        chance = random.Random(seed)
        versions = [each for each in range(1, 40) if chance.random() < 0.97]
        pieces = [versions[start : start + 5] for start in range(0, len(versions), 5)]
        ranges = [stretch(piece[0], piece[-1], rows=len(piece)) for piece in pieces]
        chance.shuffle(ranges)
        end = archived_ends(ranges).get(("q", 0), 0)
        missing = sorted(set(range(versions[0], end + 1)) - set(versions))
        assert not missing, (seed, missing)
        assert archived_ends(merged(ranges)).get(("q", 0), 0) == end, seed
