"""The answers of several peers about a queue are merged: the highest values count."""

from __future__ import annotations

from avow.client.cluster_view import together
from avow.client.descriptions import LaneInfo, QueueInfo


def info(*lanes: LaneInfo) -> QueueInfo:
    return QueueInfo("q", lanes=lanes)


def test_the_highest_end_and_trim_of_each_lane_are_used() -> None:
    ahead, behind = LaneInfo(0, number=7, end=9, trimmed_to=2), LaneInfo(0, number=7, end=5, trimmed_to=3)
    assert together([info(ahead), info(behind)]).lanes == (LaneInfo(0, number=7, end=9, trimmed_to=3),)


def test_lanes_that_only_some_peers_know_are_included_in_order() -> None:
    found = together([info(LaneInfo(9, number=9, end=1)), info(LaneInfo(4, number=4, end=2, ended=True))])
    assert [(lane.lane, lane.end, lane.ended) for lane in found.lanes] == [(4, 2, True), (9, 1, False)]


def test_a_peer_that_does_not_hold_a_lane_changes_nothing() -> None:
    held, not_held = LaneInfo(0, number=7, end=9, voters=(1, 2)), LaneInfo(0, number=7)
    assert together([info(not_held), info(held)]).lanes[0].end == 9
    assert together([info(not_held), info(held)]).lanes[0].voters == (1, 2)


def test_for_a_recreated_queue_the_newer_one_counts() -> None:
    old, young = LaneInfo(0, number=7, end=900), LaneInfo(0, number=8, end=3)
    assert together([info(old), info(young)]).lanes == (young,)
    assert together([info(young), info(old)]).lanes == (young,)
