"""Pub-sub lanes of a peer, in memory and on disk: bounds, restarts, trims, removed lanes."""

from __future__ import annotations

from string import ascii_lowercase

import pytest
from msgspec.structs import replace
from tests.unit.node.pubsub_peers import TINY, Cluster, data

from avow.errors import InvalidRequest, Offline, StorageDamaged, Trimmed
from avow.ids import ballot_of
from avow.node.answers import Done, Refusal
from avow.node.lane.two_phase_lane import Write
from avow.node.pubsub.lane_index import PubSubBounds
from avow.queue.commands import QueueCommand, encode
from avow.replication.membership import Members
from avow.wire.messages import Entry, Fence, Kind, LaneFetch, LaneFetched, Refill

LETTERS = ascii_lowercase[:12]


@pytest.fixture
def three() -> Cluster:
    cluster = Cluster(3, bounds=TINY)
    cluster.run(2.0)
    assert all(peer.open_lane for peer in cluster.peers.values())
    return cluster


def in_memory(cluster: Cluster, peer: int, lane: int) -> int:
    return len(cluster.peers[peer].core.lanes.by_number[lane].entries)


def on_disk(cluster: Cluster, peer: int, lane: int) -> str:
    store = cluster.stores[peer]
    found = [store.durable(lane, position) for position in range(1, 50)]
    return "".join(entry.batch.decode() for entry in found if entry is not None)


def code(answer: object) -> str:
    assert isinstance(answer, Refusal), answer
    return answer.code


# Memory


def test_only_the_newest_entries_stay_in_memory_and_all_can_be_read(three: Cluster) -> None:
    lane = three.write_all(1, LETTERS)
    assert [in_memory(three, peer, lane) <= TINY.memory_entries for peer in (1, 2, 3)] == [True] * 3
    assert [three.values(peer, lane) for peer in (1, 2, 3)] == [LETTERS] * 3
    assert three.values(2, lane, after=9) == LETTERS[9:]


def test_memory_is_bounded_in_bytes_and_in_entries() -> None:
    cluster = Cluster(1, bounds=PubSubBounds(memory_entries=100, memory_bytes=4))
    cluster.run(2.0)
    lane = cluster.write_all(1, LETTERS)
    assert in_memory(cluster, 1, lane) <= 4
    assert cluster.values(1, lane) == LETTERS


def test_a_restart_reads_only_entries_after_the_last_snapshot_and_shows_all(three: Cluster) -> None:
    lane = three.write_all(1, LETTERS)
    three.kill(2)
    image = three.stores[2].load().lanes[lane]
    assert image.snapshot is not None
    assert len(image.entries) < TINY.snapshot_entries
    three.start(2)
    three.run(0.2)
    assert three.peers[2].readable[lane] == len(LETTERS)
    assert three.values(2, lane) == LETTERS


def test_an_ended_lane_keeps_no_entry_in_memory(three: Cluster) -> None:
    lane = three.write_all(3, "ab")
    three.kill(3)
    three.run(3.0)
    assert three.peers[1].metadata.state.lane(lane).ended
    assert [in_memory(three, peer, lane) for peer in (1, 2)] == [0, 0]
    assert three.values(1, lane) == "ab"


def test_a_peer_that_was_down_is_fed_from_the_disks_of_the_others(three: Cluster) -> None:
    three.kill(3)
    lane = three.write_all(1, LETTERS)
    three.start(3)
    three.run(1.0)
    assert three.values(3, lane) == LETTERS


def test_a_donor_that_cannot_read_an_old_entry_leaves_it_to_another(three: Cluster) -> None:
    three.kill(3)
    lane = three.write_all(1, LETTERS)
    three.stores[2].damage(lane, 1)
    three.peers[2].receive(3, LaneFetch(lane, 0), three.now)
    effects = three.peers[2].drain()
    assert effects is None or not [message for _, _, message in effects.sends if isinstance(message, LaneFetched)]
    with pytest.raises(Offline, match="is copying entry"):
        three.values(2, lane)
    three.start(3)
    three.run(1.0)
    assert three.values(3, lane) == LETTERS


def test_a_copy_asks_another_peer_when_the_donor_cannot_read_an_entry(three: Cluster) -> None:
    """Of a lane that has ended nobody reports anything any more; found by pub-sub seed 41."""
    lane = three.peers[1].open_lane
    three.cut = {(1, 3), (2, 3)}
    three.write_all(1, LETTERS)
    three.cut = {(1, 3)}
    three.run(0.2)  # peer 3 hears from 2 alone how much there is
    three.kill(1)
    three.stores[2].damage(lane, 1)
    three.cut = {(2, 3), (3, 2)}
    three.start(1)
    three.cut = {(1, 3)}
    three.run(3.0)
    assert three.peers[1].metadata.state.lane(lane).ended
    three.cut = set()
    three.run(2.0)
    assert three.values(3, lane) == LETTERS


def test_an_unreadable_old_part_is_copied_again_and_survives_a_restart(three: Cluster) -> None:
    lane = three.write_all(1, LETTERS)
    three.stores[2].damage(lane, 3)
    with pytest.raises(StorageDamaged):
        three.values(2, lane)
    with pytest.raises(Offline, match="read from another peer"):
        three.values(2, lane)
    three.run(1.0)
    assert three.values(2, lane) == LETTERS
    three.kill(2)
    three.start(2)
    three.run(1.0)
    assert three.values(2, lane) == LETTERS
    assert three.write_all(1, "mnop") == lane
    three.run(0.5)
    assert three.values(2, lane) == LETTERS + "mnop"


# Write ids


def test_an_id_that_may_have_been_forgotten_is_never_called_absent(three: Cluster) -> None:
    lane = three.write_all(3, LETTERS)
    three.kill(3)
    three.run(3.0)
    assert three.lookup(1, lane, LETTERS[-1], at=1) == Done(12, 12)
    assert code(three.lookup(2, lane, LETTERS[0], at=1)) == "OFFLINE", "it is in the lane, and nobody remembers"
    assert code(three.lookup(3, lane, "z", at=1)) == "OFFLINE"


def test_a_client_that_sends_the_age_of_its_write_gets_a_definite_answer(three: Cluster) -> None:
    lane = three.write_all(3, LETTERS)
    three.kill(3)
    three.run(3.0)
    forgotten_to = len(LETTERS) - TINY.write_ids
    assert code(three.lookup(1, lane, "z", at=1, since=forgotten_to)) == "LANE_ENDED"
    assert code(three.lookup(2, lane, "z", at=1, since=forgotten_to - 1)) == "OFFLINE"


def test_remembered_and_forgotten_ids_survive_a_restart(three: Cluster) -> None:
    lane = three.write_all(3, LETTERS)
    three.kill(3)
    three.run(3.0)
    three.kill(1)
    three.start(1)
    three.run(1.0)
    assert three.lookup(1, lane, LETTERS[-1], at=1) == Done(12, 12)
    assert code(three.lookup(2, lane, "z", at=1)) == "OFFLINE"


def test_a_retry_that_comes_too_late_is_not_mistaken_for_a_new_write(three: Cluster) -> None:
    peer = three.peers[1]
    lane = three.write_all(1, LETTERS)
    peer.write(1, data(LETTERS[0]), three.now, lane=lane, since=0)
    three.settle()
    assert [code(answer) for answer in three.answers[1]] == ["OFFLINE"]
    assert three.peers[1].readable[lane] == len(LETTERS)


def test_the_age_of_a_retry_is_equivalent_to_a_version(three: Cluster) -> None:
    peer = three.peers[1]
    lane = three.write_all(1, LETTERS)
    three.run(5.0)
    three.write_all(1, "m", first_request=50)
    peer.write(1, replace(data("y"), age_ms=60_000), three.now, lane=lane)
    peer.write(2, replace(data("z"), age_ms=100), three.now, lane=lane)
    three.settle()
    assert [code(answer) for answer in three.answers[1]] == ["OFFLINE"], "it may be one of those forgotten"
    assert three.answers[2][-1] == Done(14, 14), "a moment ago nothing that is forgotten now was written"


# Trims


def test_a_trim_removes_versions_everywhere_and_entries_from_disks(three: Cluster) -> None:
    lane = three.write_all(1, LETTERS)
    assert three.trim(1, lane, 5) == [Done(1, 5)]
    assert [on_disk(three, peer, lane) for peer in (1, 2, 3)] == [LETTERS[5:]] * 3
    for peer in (1, 2, 3):
        assert three.values(peer, lane, after=5) == LETTERS[5:]
        with pytest.raises(Trimmed):
            three.values(peer, lane, after=4)


def test_a_restart_after_a_trim_continues_from_there(three: Cluster) -> None:
    lane = three.write_all(1, LETTERS)
    three.trim(1, lane, 5)
    three.kill(2)
    three.start(2)
    three.run(1.0)
    assert three.values(2, lane, after=5) == LETTERS[5:]
    with pytest.raises(Trimmed):
        three.values(2, lane)


def test_a_copy_that_lacks_removed_entries_starts_after_them(three: Cluster) -> None:
    three.kill(3)
    three.run(2.0)
    lane = three.write_all(1, LETTERS)
    assert three.trim(1, lane, 7) == [Done(1, 7)]
    three.start(3)
    three.run(2.0)
    assert three.peers[3].readable[lane] == len(LETTERS)
    assert three.values(3, lane, after=7) == LETTERS[7:]
    assert on_disk(three, 3, lane) == LETTERS[7:]
    three.kill(3)
    three.start(3)
    three.run(1.0)
    assert three.values(3, lane, after=7) == LETTERS[7:]


def test_a_new_peer_starts_after_removed_entries_and_becomes_a_voter() -> None:
    cluster = Cluster(3, bounds=TINY, spare=(4,))
    cluster.run(2.0)
    lane = cluster.write_all(1, LETTERS)
    cluster.trim(1, lane, 7)
    for request, wanted in enumerate((Members((1, 2, 3), (4,)), Members((1, 2, 3, 4), ())), 50):
        leading = next(peer for peer in cluster.peers.values() if peer.metadata.core.role == 3)
        leading.change_members(request, wanted)
        cluster.run(2.0)
        assert cluster.answers[request] == [Done(0, 0)]
    cluster.run(2.0)
    assert cluster.values(4, lane, after=7) == LETTERS[7:]
    assert cluster.peers[4].queue.caught_up
    assert cluster.peers[4].open_lane


def test_a_late_copy_does_not_deny_writes_that_it_cannot_know(three: Cluster) -> None:
    three.kill(2)
    three.run(2.0)
    lane = three.write_all(3, "abc")
    assert three.trim(1, lane, 2) == [Done(1, 2)]
    three.start(2)
    three.run(2.0)
    three.kill(3)
    three.run(3.0)
    assert three.lookup(1, lane, "c", at=2) == Done(3, 3)
    assert code(three.lookup(2, lane, "b", at=2)) == "OFFLINE"
    assert code(three.lookup(3, lane, "z", at=1)) == "LANE_ENDED", "this copy has seen every id"


def test_an_ended_lane_trimmed_to_its_end_leaves_memory_and_disk(three: Cluster) -> None:
    lane = three.write_all(3, "abc")
    three.kill(3)
    three.run(3.0)
    assert three.trim(1, lane, 3) == [Done(1, 3)]
    for peer in (1, 2):
        assert lane not in three.peers[peer].readable
        assert on_disk(three, peer, lane) == ""
        with pytest.raises(InvalidRequest):
            three.peers[peer].queue.ranges(lane, 0, 1)
    assert code(three.lookup(2, lane, "a", at=1)) == "OFFLINE"
    three.start(3)
    three.run(2.0)
    assert on_disk(three, 3, lane) == "", "it learned of it after its start"


def test_a_reader_that_waits_for_a_removed_lane_is_served(three: Cluster) -> None:
    lane = three.write_all(3, "abc")
    three.kill(3)
    three.run(3.0)
    three.trim(1, lane, 3)
    three.peers[2].queue.read_at_least(2, {lane: 3})
    three.peers[2].node.touch(three.peers[2].queue.route)
    three.settle()
    assert 2 in three.answers


def test_a_fence_for_a_removed_lane_is_not_answered(three: Cluster) -> None:
    lane = three.write_all(3, "abc")
    three.kill(3)
    three.run(3.0)
    three.trim(1, lane, 3)
    three.peers[1].drain()
    three.peers[1].receive(2, Fence(lane, 1), three.now)
    assert three.peers[1].drain() is None


# A queue that is deleted


def test_a_lane_known_from_a_fence_alone_leaves_the_disk_with_its_queue(three: Cluster) -> None:
    """This peer never got its opening; found by mixed seed 3208."""
    entry = Entry(1, ballot_of(1, 1), Kind.DATA, 1, b"w" * 16, 0, b"", b"a")
    three.peers[2].receive(1, Fence(99, 1), three.now)
    three.settle()
    three.peers[2].receive(1, Refill(99, 1, 0, (entry,)), three.now)
    three.settle()
    assert on_disk(three, 2, 99) == "a"
    delete = Write(Kind.QUEUE, b"delete".ljust(16), control=encode(QueueCommand("delete", "q")))
    three.peers[1].command(1, delete, three.now)
    three.run(0.3)
    assert on_disk(three, 2, 99) == ""


def test_the_lanes_of_a_deleted_queue_leave_memory_and_disk_and_waiters_are_answered(three: Cluster) -> None:
    lane = three.write_all(1, "abc")
    three.cut = {(1, 2), (1, 3), (2, 1), (3, 1)}
    three.peers[1].write(1, data("d"), three.now)
    three.settle()
    control = encode(QueueCommand("delete", "q"))
    three.cut = set()
    three.peers[2].command(2, Write(Kind.QUEUE, b"delete".ljust(16), control=control), three.now)
    three.run(0.3)
    assert three.answers[2] == [Done(0, 0)]
    assert [peer.metadata.state.busy_lanes() for peer in three.peers.values()] == [[]] * 3
    assert [peer.node.pubsub for peer in three.peers.values()] == [{}] * 3
    assert [on_disk(three, peer, lane) for peer in (1, 2, 3)] == [""] * 3
    assert len(three.answers[1]) == 2, "stored, and then what became of it"
