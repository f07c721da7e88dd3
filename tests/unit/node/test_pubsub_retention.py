"""What retention rules remove from a pub-sub lane."""

from __future__ import annotations

import pytest

from avow.node.pubsub.lane_index import LaneIndex, PubSubBounds
from avow.node.pubsub.retention import lane_trim
from avow.queue.catalog import VectorCursor
from avow.queue.commands import LaneTrimCommand, RetentionRules
from avow.queue.retention import StoredFile
from avow.wire.messages import Entry, Kind

NOW_MS = 1_000_000
FILES = [
    StoredFile(last_position=2, size_bytes=100, newest_ms=NOW_MS - 90_000),
    StoredFile(last_position=4, size_bytes=100, newest_ms=NOW_MS - 50_000),
    StoredFile(last_position=5, size_bytes=100, newest_ms=NOW_MS),
]


def five_batches_of_ten() -> LaneIndex:
    index = LaneIndex(PubSubBounds())
    entries = [Entry(position, 1, Kind.DATA, 10, batch=b"x") for position in range(1, 6)]
    index.extend(entries)
    index.show(entries)
    return index


def trim(
    rules: RetentionRules, *cursors: VectorCursor, index: LaneIndex | None = None, keeps_lane: bool = True
) -> LaneTrimCommand | None:
    return lane_trim(
        7, index or five_batches_of_ten(), FILES, now_ms=NOW_MS, rules=rules, subscribers=cursors, keeps_lane=keeps_lane
    )


@pytest.mark.parametrize(
    ("rules", "upto", "why"),
    [
        (RetentionRules(age_s=60), 20, "age"),
        (RetentionRules(age_s=40), 40, "age"),
        (RetentionRules(size_bytes=150), 20, "size"),
        (RetentionRules(size_bytes=100), 40, "size"),
        (RetentionRules(age_s=60, size_bytes=100), 40, "size"),
    ],
)
def test_whole_files_are_removed_by_age_and_by_size(rules: RetentionRules, upto: int, why: str) -> None:
    assert trim(rules) == LaneTrimCommand(7, upto, why)  # type: ignore[arg-type]


def test_nothing_is_proposed_without_a_rule_or_anything_new_to_remove() -> None:
    assert trim(RetentionRules()) is None
    assert trim(RetentionRules(age_s=3600, size_bytes=1000)) is None
    index = five_batches_of_ten()
    index.trim(20)
    assert trim(RetentionRules(age_s=60), index=index) is None


def test_messages_that_all_subscribers_passed_are_removed_if_the_rule_says_so() -> None:
    passed = RetentionRules(passed=True)
    assert trim(passed) is None, "without a subscriber nobody has passed anything"
    assert trim(passed, VectorCursor({7: 33}), VectorCursor({7: 12, 8: 50})) == LaneTrimCommand(7, 12, "passed")
    assert trim(passed, VectorCursor({7: 33}), VectorCursor({8: 50})) is None


def test_a_hold_beats_every_rule() -> None:
    held = VectorCursor({7: 15}, hold=True)
    assert trim(RetentionRules(age_s=40), held) == LaneTrimCommand(7, 15, "age")
    assert trim(RetentionRules(age_s=40), VectorCursor({}, hold=True)) is None


def test_a_lane_whose_writers_may_still_retry_keeps_its_last_message() -> None:
    everything = VectorCursor({7: 50})
    assert trim(RetentionRules(passed=True), everything) == LaneTrimCommand(7, 49, "passed")
    assert trim(RetentionRules(passed=True), everything, keeps_lane=False) == LaneTrimCommand(7, 50, "passed")


def test_an_empty_ended_lane_is_removed_whatever_the_rules_say() -> None:
    assert trim(RetentionRules(), index=LaneIndex(PubSubBounds()), keeps_lane=False) == LaneTrimCommand(7, 0, "age")
    assert trim(RetentionRules(), index=LaneIndex(PubSubBounds())) is None
