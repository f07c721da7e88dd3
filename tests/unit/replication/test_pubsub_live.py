"""Live lanes: how entries spread, when they count, how a peer that missed some catches up."""

from __future__ import annotations

import pytest
from tests.unit.replication.pubsub_cluster import BEAT_S, Cluster

from avow.errors import InvalidRequest, LaneEnded, Offline
from avow.replication.tuning import Tuning
from avow.wire.messages import LaneEnqueue, LaneFetch, LaneFetched, LaneHeartbeat, LaneReject, Stored


def ready(size: int = 3, **options: object) -> Cluster:
    """A cluster whose peers have exchanged heartbeats."""
    cluster = Cluster(size, **options)  # type: ignore[arg-type]
    cluster.run(BEAT_S)
    return cluster


def test_an_entry_is_readable_everywhere_once_a_quorum_stored_it() -> None:
    cluster = ready()
    lane = cluster.own_lane(1)
    assert cluster.enqueue(1, "a") == 1
    cluster.deliver_all()
    assert [cluster.values(n, lane) for n in (1, 2, 3)] == [["a"]] * 3
    assert cluster.peers[1].accepted[-1][:2] == (lane, 1)


def test_every_peer_writes_at_the_same_time_to_its_own_lane() -> None:
    cluster = ready()
    for number in (1, 2, 3):
        cluster.enqueue(number, f"from {number}")
    cluster.deliver_all()
    for reader in (1, 2, 3):
        assert [cluster.values(reader, cluster.own_lane(n)) for n in (1, 2, 3)] == [["from 1"], ["from 2"], ["from 3"]]


def test_a_cluster_of_one_commits_with_its_own_sync() -> None:
    cluster = Cluster(1, auto_sync=False)
    cluster.enqueue(1, "a")
    assert cluster.values(1, 1) == []
    cluster.sync(1)
    assert cluster.values(1, 1) == ["a"]


def test_the_owners_send_leaves_before_its_own_sync_and_its_copy_counts_only_after_it() -> None:
    cluster = ready(auto_sync=False)
    lane = cluster.own_lane(1)
    cluster.enqueue(1, "a")
    assert len(cluster.messages(LaneEnqueue, source=1)) == 2
    cluster.cut(3)
    cluster.deliver_all()
    cluster.sync(2)
    cluster.deliver_all()
    assert cluster.at(1).lookup(lane, 1) == (False, False, (2,))
    cluster.sync(1)
    assert cluster.at(1).lookup(lane, 1) == (True, True, (1, 2))


def test_a_quorum_without_the_owners_disk_commits_but_nothing_is_readable_where_it_is_not_stored() -> None:
    cluster = ready(auto_sync=False)
    lane = cluster.own_lane(1)
    cluster.enqueue(1, "a")
    cluster.deliver_all()
    for number in (2, 3):
        cluster.sync(number)
    cluster.deliver_all()
    assert cluster.peers[1].accepted == [(lane, 1, (2, 3))]
    assert cluster.values(1, lane) == []
    assert cluster.values(2, lane) == ["a"]


def test_stored_is_sent_only_after_the_sync_and_once_for_all_it_covers() -> None:
    cluster = ready(auto_sync=False)
    lane = cluster.own_lane(1)
    for value in "abc":
        cluster.enqueue(1, value)
    cluster.deliver_all()
    assert cluster.messages(Stored) == []
    cluster.sync(2)
    assert cluster.messages(Stored, source=2, target=3) == [Stored(lane, 3)]


def test_writes_of_one_turn_leave_as_one_message() -> None:
    cluster = ready()
    core, lane = cluster.at(1), cluster.own_lane(1)
    for value in (b"a", b"b"):
        core.enqueue(1, count=1, write_id=b"", now=cluster.now, batch=value)
    cluster.collect(1)
    (sent,) = cluster.messages(LaneEnqueue, source=1, target=2)
    assert isinstance(sent, LaneEnqueue)
    assert (sent.lane, sent.after, len(sent.entries)) == (lane, 0, 2)


def test_a_long_write_is_split_into_pieces_of_the_agreed_size() -> None:
    cluster = ready(tuning=Tuning(piece_entries=2))
    core = cluster.at(1)
    for _ in range(5):
        core.enqueue(1, count=1, write_id=b"", now=cluster.now)
    cluster.collect(1)
    sent = cluster.messages(LaneEnqueue, source=1, target=2)
    assert [len(m.entries) for m in sent if isinstance(m, LaneEnqueue)] == [2, 2, 1]


def test_without_a_quorum_of_fresh_heartbeats_a_write_is_refused_at_once() -> None:
    cluster = Cluster(3)
    with pytest.raises(Offline, match="cannot reach a quorum"):
        cluster.enqueue(1, "a")
    cluster.run(BEAT_S)
    cluster.enqueue(1, "a")
    cluster.cut(1)
    cluster.now += cluster.tuning.heartbeat_fresh_s + 0.01
    with pytest.raises(Offline, match="cannot reach a quorum"):
        cluster.enqueue(1, "b")
    assert not cluster.at(1).online(cluster.now)


def test_a_peer_without_a_lane_in_its_run_refuses_writes() -> None:
    cluster = ready()
    cluster.at(1).new_run(99)
    with pytest.raises(Offline, match="has not opened a lane"):
        cluster.enqueue(1, "a")


def test_more_entries_in_flight_than_the_bound_are_refused() -> None:
    cluster = ready(tuning=Tuning(in_flight_entries=2))
    cluster.enqueue(1, "a")
    cluster.enqueue(1, "b")
    with pytest.raises(Offline, match="wait for a quorum"):
        cluster.enqueue(1, "c")
    cluster.deliver_all()
    assert cluster.enqueue(1, "c") == 3


def test_a_value_stored_on_the_wrong_side_of_a_partition_stays_uncommitted_and_is_settled_after_it() -> None:
    cluster = ready()
    lane = cluster.own_lane(1)
    cluster.cut(1)
    cluster.enqueue(1, "v2*")
    cluster.enqueue(2, "elsewhere")
    cluster.deliver_all()
    assert cluster.values(1, lane) == []
    assert cluster.at(1).lookup(lane, 1) == (True, False, (1,))
    entry = cluster.at(1).retention.entry(lane, 1)
    assert entry is not None
    assert entry.batch == b"v2*"
    cluster.heal()
    cluster.run(4 * BEAT_S)
    assert [cluster.values(n, lane) for n in (1, 2, 3)] == [["v2*"]] * 3
    assert cluster.values(1, cluster.own_lane(2)) == ["elsewhere"]


def test_a_peer_that_missed_a_message_fetches_it_when_the_next_one_arrives() -> None:
    cluster = ready()
    lane = cluster.own_lane(1)
    cluster.enqueue(1, "a")
    cluster.network = [m for m in cluster.network if m[1] != 3]
    cluster.enqueue(1, "b")
    cluster.deliver_all()
    assert cluster.messages(LaneFetch, source=3, target=1) == [LaneFetch(lane, 0)]
    assert cluster.values(3, lane) == ["a", "b"]


def test_a_lagging_peer_learns_the_cursor_from_heartbeats_and_repairs_from_any_peer() -> None:
    cluster = ready(tuning=Tuning(piece_entries=2))
    lane = cluster.own_lane(1)
    cluster.cut(3)
    for value in "abcde":
        cluster.enqueue(1, value)
    cluster.deliver_all()
    cluster.crash(1)
    cluster.heal()
    cluster.run(6 * BEAT_S)
    assert cluster.values(3, lane) == list("abcde")
    assert not cluster.messages(LaneFetched, source=1, target=3)


def test_an_owner_resends_to_a_peer_that_reports_no_progress() -> None:
    cluster = ready()
    lane = cluster.own_lane(1)
    cluster.enqueue(1, "a")
    cluster.network.clear()
    cluster.cut_links.add((3, 2))
    for _ in range(4):
        cluster.now += BEAT_S
        cluster.tick()
        cluster.deliver_all(lambda source, _target, message: not isinstance(message, LaneFetch) or source == 1)
    assert cluster.values(3, lane) == ["a"]


def test_duplicates_and_old_messages_change_nothing() -> None:
    cluster = ready()
    lane = cluster.own_lane(1)
    for value in "abc":
        cluster.enqueue(1, value)
    while cluster.network:
        cluster.deliver(0, keep=True)
        cluster.deliver(0)
    again = [t for t in cluster.trace if not isinstance(t[2], LaneHeartbeat)]
    cluster.network = list(again)
    cluster.deliver_all()
    assert [cluster.values(n, lane) for n in (1, 2, 3)] == [list("abc")] * 3
    assert all(cluster.stored(n, lane) == list("abc") for n in (1, 2, 3))


def test_entries_of_an_unknown_lane_are_fetched_when_it_becomes_known() -> None:
    cluster = ready()
    cluster.auto_facts = False
    lane = cluster.next_run(1)
    cluster.read_facts(1)
    cluster.enqueue(1, "early")
    cluster.deliver_all()
    with pytest.raises(InvalidRequest):
        cluster.values(2, lane)
    cluster.auto_facts = True
    cluster.spread_facts()
    cluster.run(4 * BEAT_S)
    assert cluster.values(2, lane) == ["early"]


def test_a_learner_receives_and_reads_but_is_never_counted() -> None:
    cluster = ready(learners=(4,))
    lane = cluster.own_lane(1)
    cluster.cut(2, 3)
    cluster.enqueue(1, "a")
    cluster.run(2 * BEAT_S)
    assert cluster.stored(4, lane) == ["a"]
    assert cluster.values(1, lane) == cluster.values(4, lane) == []
    cluster.heal()
    cluster.run(4 * BEAT_S)
    assert cluster.values(4, lane) == ["a"]


def test_stored_from_a_peer_that_does_not_vote_on_the_lane_is_not_counted() -> None:
    cluster = ready(auto_sync=False)
    lane = cluster.own_lane(1)
    cluster.enqueue(1, "a")
    cluster.sync(1)
    for outsider in (4, 5, 6):
        cluster.at(1).receive(outsider, Stored(lane, 1), cluster.now)
    assert cluster.at(1).lookup(lane, 1) == (True, False, (1,))


@pytest.mark.parametrize("reads_disks", [True, False])
def test_forgotten_entries_are_served_from_storage_if_there_is_one(reads_disks: bool) -> None:
    cluster = ready(reads_disks=reads_disks)
    lane = cluster.own_lane(1)
    for value in "abcd":
        cluster.enqueue(1, value)
    cluster.deliver_all()
    cluster.at(1).retention.forget(lane, 3)
    assert cluster.values(1, lane) == (list("abcd") if reads_disks else [])


def test_a_copy_restored_after_a_restart_counts_again() -> None:
    cluster = ready()
    lane = cluster.own_lane(1)
    cluster.cut(3)
    cluster.enqueue(1, "a")
    cluster.deliver_all()
    cluster.restart(2)
    assert cluster.values(2, lane) == []
    cluster.run(2 * BEAT_S)
    assert cluster.values(2, lane) == ["a"]


def test_an_owner_that_learns_of_a_fence_appends_no_more() -> None:
    cluster = ready()
    lane = cluster.own_lane(1)
    cluster.at(2).settle(lane, cluster.now)
    cluster.collect(2)
    cluster.network.clear()
    cluster.enqueue(1, "late")
    cluster.deliver_all(lambda source, target, _message: {source, target} == {1, 2})
    assert cluster.messages(LaneReject, source=2, target=1)
    assert cluster.peers[1].lost == [lane]
    with pytest.raises(LaneEnded):
        cluster.enqueue(1, "later")


def test_statistics_show_what_is_open_and_how_much_waits() -> None:
    cluster = ready()
    cluster.enqueue(1, "a")
    before = cluster.at(1).statistics()
    cluster.deliver_all()
    after = cluster.at(1).statistics()
    assert (before["own_lane"], before["in_flight"], after["in_flight"]) == (1, 1, 0)
    assert before["undecided"] == [1, 2, 3]
