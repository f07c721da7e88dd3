"""A peer with one pub-sub queue at close range: runs, writes, lookups, reads, cursors, membership."""

from __future__ import annotations

import pytest
from tests.unit.node.pubsub_peers import Cluster

from avow.node.answers import Answer, Done, Refusal, Stored
from avow.node.lane.metadata_machine import MetadataMachine, restored_metadata
from avow.node.lane.two_phase_lane import Write
from avow.node.metadata_lane import METADATA_LANE, EndDecided, LaneOpened, MembersChanged
from avow.replication.durable import synced_receipt
from avow.replication.effects import SaveRun
from avow.replication.membership import Members
from avow.wire.messages import Fence, Fenced, Kind


@pytest.fixture
def three() -> Cluster:
    cluster = Cluster(3)
    cluster.run(2.0)
    assert all(peer.open_lane for peer in cluster.peers.values())
    return cluster


def test_the_next_run_opens_no_lane_before_its_number_is_on_disk(three: Cluster) -> None:
    peer, lane = three.peers[1], three.peers[1].open_lane
    peer.queue.wants_run = True  # as when others have fenced its lane
    peer.node.touch(peer.queue.route)
    peer.node.tick(three.now, 0)
    effects = peer.drain()
    assert effects is not None
    assert effects.persist[0] == SaveRun(2)
    assert (peer.node.incarnation, peer.open_lane) == (1, lane)
    peer.persisted(synced_receipt(1))
    assert (peer.node.incarnation, peer.open_lane) == (2, 0)


def test_a_write_gets_its_version_id_at_once_and_is_done_with_a_quorum(three: Cluster) -> None:
    lane = three.peers[2].open_lane
    assert three.write(1, 2, b"a", count=3) == [Stored(lane, 1), Done(1, 3)]
    assert three.write(2, 2, b"b") == [Stored(lane, 4), Done(4, 4)]
    three.run(0.2)
    assert [peer.readable[lane] for peer in three.peers.values()] == [4, 4, 4]


def test_a_repeated_write_id_gets_the_first_outcome(three: Cluster) -> None:
    lane = three.peers[1].open_lane
    three.write(1, 1, b"a", count=2)
    assert three.write(2, 1, b"a", count=2) == [Stored(lane, 1), Done(1, 2)]
    assert three.write(3, 1, b"a", count=2, lane=lane) == [Stored(lane, 1), Done(1, 2)]
    assert three.peers[1].readable[lane] == 2


def test_operations_that_need_one_order_are_refused_with_a_reason(three: Cluster) -> None:
    peer = three.peers[1]
    peer.write(1, Write(Kind.DATA, b"a", 1, expected=0), three.now)
    peer.read_linearizable(2, peer.open_lane, three.now)
    three.settle()
    for request in (1, 2):
        (answer,) = three.answers[request]
        assert isinstance(answer, Refusal)
        assert answer.code == "INVALID_REQUEST"
        assert "pub-sub" in answer.reason


def test_a_write_without_a_quorum_of_heartbeats_is_refused_and_not_stored(three: Cluster) -> None:
    three.kill(2)
    three.kill(3)
    three.run(0.5)
    (answer,) = three.write(1, 1, b"a")
    assert isinstance(answer, Refusal)
    assert answer.code == "OFFLINE"
    assert three.peers[1].core.end_of(three.peers[1].open_lane) == 0


def test_after_the_owner_died_a_lookup_is_first_undecided_and_later_definite(three: Cluster) -> None:
    lane = three.peers[3].open_lane
    three.write(1, 3, b"a", count=2)
    three.kill(3)
    three.peers[1].lookup(2, lane, b"never written")
    three.settle()
    assert [answer.code for answer in three.answers[2] if isinstance(answer, Refusal)] == ["OFFLINE"]
    three.run(3.0)
    three.peers[1].lookup(3, lane, b"never written")
    three.peers[2].lookup(4, lane, b"a")
    three.settle()
    assert three.answers[3] == [Refusal("LANE_ENDED")]
    assert three.answers[4] == [Done(1, 2)]


def test_a_restarted_peer_opens_a_new_lane_and_answers_for_the_old_one(three: Cluster) -> None:
    old = three.peers[3].open_lane
    three.write(1, 3, b"a")
    three.kill(3)
    three.start(3)
    three.run(3.0)
    assert three.peers[3].open_lane not in (0, old)
    assert three.write(2, 3, b"a", lane=old) == [Done(1, 1)]
    assert three.write(3, 3, b"b", lane=old) == [Refusal("LANE_ENDED")]


def test_a_read_that_names_a_write_waits_for_it(three: Cluster) -> None:
    lane = three.peers[1].open_lane
    three.peers[2].read_at_least(1, lane, 1, three.now)
    three.settle()
    assert 1 not in three.answers
    three.write(2, 1, b"a")
    three.run(0.2)
    assert three.answers[1] == [Done(1, 1)]


def test_subscriber_cursors_are_vectors_that_all_peers_know(three: Cluster) -> None:
    lane = three.peers[1].open_lane
    three.write(1, 1, b"a", count=5)
    three.peers[3].move_cursor(2, "billing", {lane: 4}, write_id=b"c1", now=three.now)
    three.peers[2].move_cursor(3, "billing", {lane: 3}, write_id=b"c2", now=three.now)
    three.run(0.2)
    assert three.answers[2] == three.answers[3] == [Done(0, 0)]
    assert [peer.cursor("billing") for peer in three.peers.values()] == [{lane: 4}] * 3


def test_a_cursor_within_a_batch_is_accepted_after_the_lane_ended(three: Cluster) -> None:
    lane = three.peers[3].open_lane
    three.write(1, 3, b"a", count=5)
    three.kill(3)
    three.run(3.0)
    assert three.peers[1].metadata.state.lane(lane).end == 1
    three.peers[1].move_cursor(2, "billing", {lane: 4}, write_id=b"c1", now=three.now)
    three.run(0.2)
    assert three.answers[2] == [Done(0, 0)]


def _change(cluster: Cluster, request: int, wanted: Members) -> list[Answer]:
    leading = next(peer for peer in cluster.peers.values() if peer.metadata.core.role == 3)
    leading.change_members(request, wanted)
    cluster.settle()
    return cluster.answers.get(request, [])


def test_after_a_change_of_voters_every_owner_ends_its_lane_and_opens_the_next(three: Cluster) -> None:
    before = {number: peer.open_lane for number, peer in three.peers.items()}
    three.write(1, 1, b"a")
    assert _change(three, 2, Members((1, 2), ())) == [Done(0, 0)]
    three.run(3.0)
    state = three.peers[1].metadata.state
    assert all(state.lane(lane).ended for lane in before.values())
    assert [state.lane(three.peers[number].open_lane).voters for number in (1, 2)] == [(1, 2), (1, 2)]


def test_a_second_change_is_refused_before_it_is_stored_while_an_older_lane_is_open(three: Cluster) -> None:
    three.kill(3)  # its lane stays open for a while
    assert _change(three, 1, Members((1, 2), ())) == [Done(0, 0)]
    leading = next(peer for peer in three.peers.values() if peer.metadata.core.role == 3)
    end = leading.metadata.core.log.end
    (answer,) = _change(three, 2, Members((leading.me,), ()))
    assert isinstance(answer, Refusal)
    assert answer.code == "MEMBERSHIP_BUSY"
    assert not any(entry.kind == Kind.MEMBERS for entry in leading.metadata.core.log.slice(end, 99))


def test_a_start_from_a_snapshot_reports_the_whole_table(three: Cluster) -> None:
    ended = three.peers[3].open_lane
    three.kill(3)
    three.run(3.0)
    three.kill(1)
    snapshot = three.stores[1].load().lanes[METADATA_LANE].snapshot
    assert snapshot is not None
    assert snapshot.position > 1, "one was taken"
    facts = MetadataMachine(restored_metadata(snapshot.state), applied=snapshot.position).facts
    three.start(1)
    assert facts[0] == MembersChanged((1, 2, 3), ())
    assert [fact.lane.number for fact in facts if isinstance(fact, LaneOpened)][:3] == [2, 3, 4]
    three.run(1.0)
    restarted = three.peers[1].metadata
    assert restarted.state.lane(ended).ended
    restarted.report_all()
    assert EndDecided(ended, restarted.state.lane(ended).end) in restarted.facts


def test_a_voter_without_the_lane_answers_its_fence(three: Cluster) -> None:
    """Found by a seed: a voter was removed before the opening reached it, and the lane could not be ended."""
    peer = three.peers[2]
    peer.receive(1, Fence(99, 1), three.now)
    effects = peer.drain()
    assert effects is not None
    assert (1, peer.queue.route, Fenced(99, 1, 0, 0)) not in effects.sends
    peer.persisted(synced_receipt(1))
    later = peer.drain()
    assert later is not None
    assert (1, peer.queue.route, Fenced(99, 1, 0, 0)) in later.sends
