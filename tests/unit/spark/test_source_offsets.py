"""Offsets in a checkpoint: equal progress has equal text."""

from __future__ import annotations

import json
from random import Random
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avow.errors import InvalidRequest
from avow.spark.source.offsets import Progress, from_json

LANES = st.dictionaries(st.integers(0, 1_000), st.integers(1, 1 << 62), max_size=5)
Queues: TypeAlias = dict[str, dict[int, int]]
QUEUES = st.dictionaries(st.text(min_size=1, max_size=5), LANES, max_size=4)


def test_lanes_are_written_with_the_next_version_in_the_order_of_their_numbers() -> None:
    text = json.dumps(Progress({"orders": {10: 7, 9: 1}, "carts": {0: 3}}).to_json())
    assert text == '{"v": 1, "queues": {"carts": {"0": 3}, "orders": {"9": 1, "10": 7}}}'


@given(QUEUES, st.randoms())
def test_the_same_state_is_the_same_text_in_whatever_order_it_was_learned(queues: Queues, random: Random) -> None:
    shuffled = list(queues.items())
    random.shuffle(shuffled)
    assert json.dumps(Progress(dict(shuffled)).to_json()) == json.dumps(Progress(queues).to_json())


@given(QUEUES, st.dictionaries(st.text(min_size=1, max_size=5), st.frozensets(st.integers(0, 9), min_size=1)))
def test_offsets_are_read_back_unchanged(queues: Queues, whole: dict[str, frozenset[int]]) -> None:
    progress = Progress(queues, whole, {"events": 3})
    assert from_json(json.loads(json.dumps(progress.to_json()))) == progress


def test_an_unknown_lane_starts_at_version_1_unless_it_is_forgotten() -> None:
    progress = Progress({"events": {2: 9}}, forgotten={"events": 4})
    assert progress.next("events", 5) == 1
    assert [progress.over("events", lane) for lane in (2, 3, 4, 5)] == [False, True, True, False]
    assert not progress.over("orders", 0)


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"v": 2, "queues": {}},
        {"orders": {"0": 5}},
        {"v": 1},
        {"v": 1, "queues": {"a": {"x": 1}}},
        {"v": 1, "queues": 5},
    ],
)
def test_a_checkpoint_that_this_version_did_not_write_is_refused(found: Any) -> None:
    with pytest.raises(InvalidRequest, match="nothing was read"):
        from_json(found)
