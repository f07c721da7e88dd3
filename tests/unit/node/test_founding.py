from __future__ import annotations

from avow.node.founding import Founding
from avow.node.metadata_lane import METADATA_LANE, founding_snapshot
from avow.replication.durable import StoreImage
from avow.replication.effects import LaneImage
from avow.wire.messages import Probe, Welcome

EMPTY = StoreImage(0, {}, [])
FOUNDED = StoreImage(1, {METADATA_LANE: LaneImage(snapshot=founding_snapshot((1, 2, 3)))}, [])
LOST = StoreImage(1, {}, [], lost_below=9)


def waiting(image: StoreImage, founders: tuple[int, ...] = (1, 2, 3)) -> Founding:
    return Founding(me=1, founders=founders, image=image)


def test_a_new_cluster_begins_when_every_founder_was_there() -> None:
    founding = waiting(EMPTY)
    founding.heard(2, Welcome())
    founding.heard(2, Welcome())
    assert founding.waiting_for == [3]
    founding.heard(3, Welcome())
    assert founding.waiting_for == []


def test_one_founder_whose_node_runs_is_enough_because_it_accepted_this_folder() -> None:
    founding = waiting(EMPTY)
    founding.heard(2, Probe(1))
    assert founding.waiting_for == []


def test_a_joiner_a_single_founder_and_a_peer_with_data_wait_for_nobody() -> None:
    assert waiting(EMPTY, ()).waiting_for == []
    assert waiting(EMPTY, (1,)).waiting_for == []
    assert waiting(FOUNDED).waiting_for == []


def test_a_peer_that_lost_its_metadata_lane_is_no_new_founder() -> None:
    assert waiting(LOST).waiting_for == []
