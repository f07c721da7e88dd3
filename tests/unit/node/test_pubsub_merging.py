"""Small writes to a pub-sub lane that wait for the same sync become one entry, and each gets its own versions."""

from __future__ import annotations

import pytest
from tests.unit.node.pubsub_peers import TINY, Cluster, data, small, write_id

from avow.node.answers import Done, Refusal, Stored
from avow.node.pubsub.lane_index import PubSubBounds, writes_of
from avow.replication.durable import synced_receipt
from avow.replication.effects import SaveEntries
from avow.wire.messages import Entry


@pytest.fixture
def three() -> Cluster:
    cluster = Cluster(3, bounds=TINY)
    cluster.run(2.0)
    return cluster


def stored_by(cluster: Cluster, peer: int) -> list[Entry]:
    """What the next drain of a peer stores, without a sync."""
    effects = cluster.peers[peer].drain()
    found = [] if effects is None else [op for op in effects.persist if isinstance(op, SaveEntries)]
    return [entry for op in found for entry in op.entries]


def test_a_single_small_write_is_stored_at_once_and_unchanged(three: Cluster) -> None:
    three.peers[1].write(1, small("a"), three.now)
    (entry,) = stored_by(three, 1)
    assert entry.write_id == write_id("a")


def test_writes_that_arrive_during_a_sync_become_one_entry(three: Cluster) -> None:
    peer = three.peers[1]
    lane = peer.open_lane
    peer.write(1, small("a"), three.now)
    effects = peer.drain()
    assert effects is not None
    peer.write(2, small("b", count=2), three.now)
    peer.write(3, small("c", count=3), three.now)
    peer.write(4, small("b", count=2), three.now)
    assert stored_by(three, 1) == []
    peer.persisted(synced_receipt(1))
    (entry,) = stored_by(three, 1)
    assert list(writes_of(entry)) == [(write_id("b"), 2), (write_id("c"), 3)]
    assert [answer for request, answer in peer.answers if request == 3] == [Stored(lane, 4)]


def test_each_write_of_a_merged_entry_is_answered_found_and_looked_up_by_itself(three: Cluster) -> None:
    peer = three.peers[1]
    lane = peer.open_lane
    for request, write in enumerate((small("a"), small("b", count=2), small("c", count=3)), 1):
        peer.write(request, write, three.now)
    three.settle()
    three.run(0.2)
    assert [three.answers[request][-1] for request in (1, 2, 3)] == [Done(1, 1), Done(2, 3), Done(4, 6)]
    peer.write(4, small("b", count=2), three.now, lane=lane)
    three.settle()
    assert three.answers[4] == [Stored(lane, 2), Done(2, 3)]
    three.kill(1)
    three.run(3.0)
    assert three.lookup(5, lane, "c", at=3) == Done(4, 6)


def test_earlier_writes_go_before_one_that_cannot_be_merged(three: Cluster) -> None:
    peer = three.peers[1]
    peer.write(1, small("a"), three.now)
    peer.write(2, data("b"), three.now)
    peer.write(3, small("c"), three.now)
    assert [entry.write_id for entry in stored_by(three, 1)] == [write_id("a"), write_id("b")]


def test_writes_held_when_the_lane_is_lost_were_never_written() -> None:
    cluster = Cluster(3, bounds=PubSubBounds())
    cluster.run(2.0)
    peer = cluster.peers[1]
    peer.write(1, small("a"), cluster.now)
    assert len(stored_by(cluster, 1)) == 1
    peer.write(2, small("b"), cluster.now)
    peer.queue.new_run(99)
    peer.drain()
    assert [answer for request, answer in peer.answers if request == 2] == [Refusal("LANE_ENDED")]


def test_a_small_write_to_a_peer_without_a_quorum_is_refused_at_once(three: Cluster) -> None:
    three.kill(2)
    three.kill(3)
    three.run(0.5)
    (answer,) = three.ask(1, small("a"), at=1)
    assert isinstance(answer, Refusal)
    assert answer.code == "OFFLINE"
