"""The end of a batch and its partitions: never above the limit, nothing skipped, no lane starved."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from avow.spark.source.offsets import Progress
from avow.spark.source.planning import (
    LaneRange,
    LaneState,
    VanishedLane,
    advanced,
    cut,
    limited,
    lost_part,
    ranges_between,
    share,
    waiting_rows,
)

Waiting: TypeAlias = dict[tuple[str, int], int]
WAITING = st.dictionaries(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 9)), st.integers(1, 10**9), max_size=12)


def state(lane: int, *, first: int = 1, next: int, ended: bool = False) -> LaneState:
    return LaneState("q", lane, first, next, ended)


# ------------------------------------------------------------------ sharing a limit


@given(WAITING, st.integers(1, 10**9), st.integers(0, 100))
def test_shares_use_the_limit_and_exceed_neither_it_nor_the_backlog(waiting: Waiting, rows: int, turn: int) -> None:
    shares = share(waiting, rows, turn=turn)
    assert sum(shares.values()) == min(rows, sum(waiting.values()))
    assert all(0 < shares[key] <= waiting[key] for key in shares)


@given(WAITING, st.integers(1, 10**9))
def test_every_lane_with_a_backlog_gets_a_share_if_the_limit_allows_it(waiting: Waiting, rows: int) -> None:
    if rows >= len(waiting):
        assert share(waiting, rows).keys() == waiting.keys()


@given(WAITING, st.integers(12, 10**9))
def test_shares_are_proportional_to_the_backlog(waiting: Waiting, rows: int) -> None:
    shares, total = share(waiting, rows), sum(waiting.values())
    if total > rows:
        for key, waits in waiting.items():
            assert abs(shares[key] - rows * waits / total) <= len(waiting) + 1


@given(st.integers(2, 12), st.integers(1, 11))
def test_lanes_take_turns_when_the_limit_is_too_small_for_all(lanes: int, rows: int) -> None:
    progress = Progress({"q": dict.fromkeys(range(lanes), 1)})
    states = [state(lane, next=1_000) for lane in range(lanes)]
    for _ in range(lanes):
        progress, _ = limited(progress, states, rows)
    assert all(progress.next("q", lane) > 1 for lane in range(lanes))


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 100)), min_size=1, max_size=6), st.integers(1, 40))
def test_batches_under_a_limit_read_every_version_once(lanes: list[tuple[int, int]], rows: int) -> None:
    states = [state(number, first=first, next=first + more) for number, (first, more) in enumerate(lanes)]
    at = Progress({"q": {one.lane: one.first for one in states}})
    seen: list[LaneRange] = []
    for _ in range(2_000):
        end, gone = limited(at, states, rows)
        ranges = ranges_between(at, end)
        assert not gone
        assert sum(one.rows for one in ranges) <= rows
        if end == at:
            break
        seen, at = seen + ranges, end
    for one in states:
        edges = [(found.start, found.end) for found in seen if found.lane == one.lane]
        expected = one.first
        for start, end_version in edges:
            assert start == expected
            expected = end_version
        assert expected == one.next
    assert waiting_rows(at, states) == 0


# ------------------------------------------------------------------ lanes that come and go


def test_a_new_lane_is_read_from_its_first_version() -> None:
    end, gone = advanced(Progress({"q": {0: 5}}), [state(0, next=6), state(1, next=3)])
    assert not gone
    assert ranges_between(Progress({"q": {0: 5}}), end) == [LaneRange("q", 0, 5, 6), LaneRange("q", 1, 1, 3)]


def test_progress_never_decreases_when_a_peer_lags() -> None:
    start = Progress({"q": {0: 9}})
    assert advanced(start, [state(0, next=4)])[0] == start
    assert limited(start, [state(0, next=4)], 10)[0] == start


def test_a_batch_whose_start_is_after_its_end_is_empty() -> None:
    assert ranges_between(Progress({"q": {0: 9}}), Progress({"q": {0: 4}})) == []


def test_an_ended_lane_that_was_read_completely_may_vanish_and_is_not_read_again() -> None:
    begun = Progress({"q": {3: 1, 4: 1}})
    read, _ = advanced(begun, [state(3, next=8, ended=True), state(4, next=2)])
    assert read.whole == {"q": frozenset({3})}
    after, gone = advanced(read, [state(4, next=2)])
    assert not gone
    assert after == Progress({"q": {4: 2}}, forgotten={"q": 3})
    again, _ = advanced(after, [state(3, next=8, ended=True), state(4, next=2), state(5, next=4)])
    assert ranges_between(after, again) == [LaneRange("q", 5, 1, 4)]


def test_a_lane_that_vanishes_before_it_was_read_completely_is_reported() -> None:
    _, gone = advanced(Progress({"q": {3: 5}}), [])
    assert gone == [VanishedLane("q", 3, 5)]
    assert "versions after 4 (the lane no longer exists)" in str(gone[0])


def test_a_lane_read_in_part_is_not_whole_when_it_ends() -> None:
    end, _ = limited(Progress({"q": {3: 1}}), [state(3, next=8, ended=True)], 2)
    assert end == Progress({"q": {3: 3}})


def test_trimmed_versions_do_not_count_for_a_limit_but_stay_in_the_range() -> None:
    start = Progress({"q": {0: 1}})
    end, _ = limited(start, [state(0, first=11, next=31)], 5)
    assert ranges_between(start, end) == [LaneRange("q", 0, 1, 16)]
    assert waiting_rows(start, [state(0, first=11, next=31)]) == 20


# ------------------------------------------------------------------ partitions

RANGES = st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**5)), max_size=6).map(
    lambda found: [LaneRange("q", lane, start, start + rows) for lane, (start, rows) in enumerate(found)]
)


@given(RANGES, st.none() | st.integers(1, 50), st.none() | st.integers(1_000, 10**6))
def test_partitions_cover_the_ranges_exactly_and_keep_to_the_options(
    ranges: list[LaneRange], least: int | None, most: int | None
) -> None:
    pieces = cut(ranges, min_partitions=least, rows_max=most)
    for one in ranges:
        own = [piece for piece in pieces if piece.lane == one.lane]
        assert own[0].start == one.start
        assert own[-1].end == one.end
        assert all(left.end == right.start for left, right in pairwise(own))
        assert all(piece.rows >= 1 for piece in own)
        assert most is None or all(piece.rows <= most for piece in own)
    if least is not None and ranges:
        assert len(pieces) >= min(least, sum(one.rows for one in ranges))


def test_without_options_a_lane_is_a_partition() -> None:
    ranges = [LaneRange("q", 0, 1, 1_000), LaneRange("q", 1, 5, 6)]
    assert cut(ranges) == ranges
    assert cut(ranges, min_partitions=2) == ranges


def test_a_range_is_split_from_the_present_start_of_its_lane() -> None:
    one = LaneRange("q", 0, 5, 9)
    assert lost_part(one, 1) == (None, one)
    assert lost_part(one, 7) == (LaneRange("q", 0, 5, 7), LaneRange("q", 0, 7, 9))
    assert lost_part(one, 20) == (one, None)
    assert str(one) == "queue 'q', lane 0, versions 5 to 8"
