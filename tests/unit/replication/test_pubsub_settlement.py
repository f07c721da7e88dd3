"""Ending lanes: fence, refill, decide, adopt; and all events that can occur in between."""

from __future__ import annotations

import pytest
from tests.unit.replication.pubsub_cluster import BEAT_S, Cluster

from avow.errors import InvalidRequest, LaneEnded
from avow.ids import REPAIRING
from avow.replication.tuning import Tuning
from avow.wire.messages import Fence, Fenced, LaneEnqueue, LaneReject, Message, Refill, Refilled, Stored

DEAD_S = Tuning().owner_dead_after_s + 2 * Tuning().claim_jitter_s + 4 * BEAT_S


def ready(size: int = 3, **options: object) -> Cluster:
    cluster = Cluster(size, **options)  # type: ignore[arg-type]
    cluster.run(BEAT_S)
    return cluster


def stored_on(cluster: Cluster, owner: int, value: str, *others: int) -> int:
    """`owner` writes, only `others` receive it, and their Stored is lost. Returns the lane."""
    cluster.enqueue(owner, value)
    cluster.deliver_all(lambda _s, target, message: isinstance(message, LaneEnqueue) and target in others)
    cluster.network.clear()
    return cluster.own_lane(owner)


def settle(cluster: Cluster, settler: int, lane: int) -> None:
    cluster.at(settler).settle(lane, cluster.now)
    cluster.collect(settler)


def test_the_lane_of_a_dead_owner_is_fenced_refilled_and_ended_with_the_longest_copy() -> None:
    cluster = ready()
    lane = stored_on(cluster, 1, "a", 3)
    cluster.crash(1)
    cluster.run(DEAD_S)
    assert cluster.ends == {lane: 1}
    assert [cluster.values(n, lane) for n in (2, 3)] == [["a"], ["a"]]
    assert cluster.peers[2].disk.lanes[lane].decided_end == 1


def test_a_settler_without_the_longest_copy_fetches_it_in_pieces_before_it_proposes_an_end() -> None:
    cluster = ready(tuning=Tuning(piece_entries=1))
    for value in "abc":
        lane = stored_on(cluster, 1, value, 3)
    cluster.crash(1)
    settle(cluster, 2, lane)
    cluster.deliver_all()
    assert cluster.ends == {lane: 3}
    assert cluster.stored(2, lane) == list("abc")


def test_a_settler_with_the_longest_copy_refills_the_others_in_pieces_before_it_proposes_an_end() -> None:
    cluster = ready(tuning=Tuning(piece_entries=1))
    for value in "abc":
        lane = stored_on(cluster, 1, value, 3)
    cluster.crash(1)
    settle(cluster, 3, lane)
    cluster.deliver_all(lambda _s, _t, message: not isinstance(message, Refilled))
    assert cluster.ends == {}
    cluster.deliver_all()
    assert cluster.ends == {lane: 3}
    assert len(cluster.messages(Refill, source=3, target=2)) == 3


def test_refilled_entries_are_never_announced_as_stored() -> None:
    cluster = ready()
    lane = stored_on(cluster, 1, "a", 3)
    cluster.crash(1)
    settle(cluster, 3, lane)
    cluster.deliver_all(lambda _s, _t, message: isinstance(message, Fence | Fenced | Refill))
    assert cluster.stored(2, lane) == ["a"]
    cluster.now += BEAT_S
    cluster.tick(2)
    assert not cluster.messages(Stored, source=2)
    assert cluster.at(3).lookup(lane, 1) == (True, False, (3,))
    cluster.restart(2)
    cluster.tick(2)
    assert not cluster.messages(Stored, source=2)


def test_an_uncommitted_tail_is_cut_and_its_writer_learns_that_it_never_happened() -> None:
    cluster = ready()
    lane = cluster.own_lane(1)
    cluster.enqueue(1, "kept")
    cluster.deliver_all()
    cluster.cut(1)
    cluster.enqueue(1, "lonely")
    cluster.run(DEAD_S)
    assert cluster.ends[lane] == 1
    assert cluster.peers[1].refused == [(lane, 1, 2)]
    assert cluster.peers[1].lost == [lane]
    assert cluster.stored(1, lane) == ["kept"]
    assert cluster.at(1).end_of(lane) == 1
    cluster.heal()
    cluster.run(DEAD_S)
    assert [cluster.values(n, lane) for n in (1, 2, 3)] == [["kept"]] * 3


def test_a_live_owner_that_was_fenced_continues_in_a_new_lane() -> None:
    cluster = ready()
    lane = cluster.own_lane(1)
    cluster.enqueue(1, "a")
    cluster.deliver_all()
    settle(cluster, 2, lane)
    cluster.deliver_all()
    assert cluster.peers[1].lost == [lane]
    assert cluster.peers[1].accepted[-1][:2] == (lane, 1)
    next_lane = cluster.next_run(1)
    cluster.enqueue(1, "b")
    cluster.run(4 * BEAT_S)
    assert [cluster.values(n, next_lane) for n in (1, 2, 3)] == [["b"]] * 3


def test_entries_in_doubt_at_a_fenced_owner_are_accepted_if_the_end_covers_them() -> None:
    cluster = ready()
    lane = stored_on(cluster, 1, "a", 2)
    settle(cluster, 3, lane)
    cluster.deliver_all()
    assert cluster.ends[lane] == 1
    assert cluster.peers[1].accepted[-1][:2] == (lane, 1)
    assert cluster.peers[1].refused == []


def test_two_settlers_at_once_both_finish_and_agree() -> None:
    cluster = ready()
    cluster.auto_facts = False
    lane = stored_on(cluster, 1, "a", 3)
    settle(cluster, 2, lane)
    settle(cluster, 3, lane)
    cluster.crash(1)
    cluster.deliver_all()
    assert cluster.ends == {lane: 1}
    cluster.auto_facts = True
    cluster.spread_facts()
    assert [cluster.values(n, lane) for n in (2, 3)] == [["a"], ["a"]]


def test_the_shorter_of_two_ends_may_win_because_the_rest_was_never_visible() -> None:
    """Five voters: one settler meets the only copies of "b", the other does not and is first."""
    cluster = ready(5)
    cluster.auto_facts = False
    lane = cluster.own_lane(1)
    cluster.enqueue(1, "a")
    cluster.deliver_all()
    stored_on(cluster, 1, "b", 2)
    cluster.crash(1)
    settle(cluster, 2, lane)
    settle(cluster, 3, lane)

    def between(*peers: int) -> None:
        cluster.deliver_all(lambda s, t, m: s in peers and t in peers and not isinstance(m, Stored))

    cluster.network = [m for m in cluster.network if 2 not in (m[0], m[1]) or {m[0], m[1]} <= {2, 4, 5}]
    between(3, 4, 5)
    assert cluster.ends == {lane: 1}
    cluster.run(DEAD_S)
    assert any(isinstance(m, Refill) for m in cluster.messages(Refill, source=2)), "the loser had refilled its end"
    cluster.auto_facts = True
    cluster.spread_facts()
    cluster.run(2 * BEAT_S)
    assert [cluster.values(n, lane) for n in (2, 3, 4, 5)] == [["a"]] * 4
    assert [cluster.stored(n, lane) for n in (2, 3, 4, 5)] == [["a"]] * 4


def test_a_fenced_peer_accepts_nothing_from_the_owner_even_after_a_restart() -> None:
    cluster = ready()
    lane = cluster.own_lane(1)
    settle(cluster, 2, lane)
    cluster.network.clear()
    cluster.enqueue(1, "late")
    late: list[tuple[int, int, Message]] = [m for m in cluster.network if m[1] == 2]
    assert late
    cluster.network = list(late)
    cluster.deliver_all()
    assert cluster.stored(2, lane) == []
    cluster.restart(2)
    cluster.network = list(late)
    cluster.deliver_all(lambda _s, target, _m: target == 2)
    assert cluster.stored(2, lane) == []
    assert len(cluster.messages(LaneReject, source=2, target=1)) == 2


def test_a_fence_is_answered_only_when_it_is_durable() -> None:
    cluster = ready(auto_sync=False)
    lane = cluster.own_lane(1)
    settle(cluster, 2, lane)
    cluster.deliver_all()
    assert not cluster.messages(Fenced)
    assert cluster.ends == {}
    cluster.sync(3)
    cluster.deliver_all()
    assert cluster.ends == {}, "the settler's own fence is not durable"
    cluster.sync(2)
    assert cluster.ends == {lane: 0}


def test_entries_accepted_just_before_the_fence_are_part_of_its_answer() -> None:
    cluster = ready(auto_sync=False)
    lane = cluster.own_lane(1)
    cluster.enqueue(1, "a")
    cluster.deliver_all()
    settle(cluster, 2, lane)
    cluster.deliver_all()
    cluster.sync(3)
    (answer,) = cluster.messages(Fenced, source=3)
    assert isinstance(answer, Fenced)
    assert answer.end == 1
    assert cluster.messages(Stored, source=3, target=2) == [Stored(lane, 1)]


def test_a_damaged_copy_answers_the_fence_but_is_not_counted_even_after_it_was_fed_again_and_restarted() -> None:
    cluster = ready()
    lane = cluster.own_lane(1)
    cluster.cut(3)
    for value in "ab":
        cluster.enqueue(1, value)
    cluster.deliver_all()
    assert cluster.values(1, lane) == list("ab")
    cluster.crash(2)
    cluster.peers[2].disk.damage(lane, 1)
    cluster.start(2)
    cluster.peers[2].disk.lanes[lane].damaged_from = 0
    assert cluster.peers[2].disk.lanes[lane].stamped == REPAIRING
    cluster.restart(2)
    cluster.crash(1)
    cluster.heal()
    cluster.run(2 * DEAD_S)
    assert lane not in cluster.ends, "peers 2 and 3 together cannot know that a and b were committed"
    assert cluster.at(2).statistics()["repairing"] == [lane]
    cluster.start(1)
    cluster.run(2 * DEAD_S)
    assert cluster.ends[lane] == 2
    assert [cluster.values(n, lane) for n in (1, 2, 3)] == [list("ab")] * 3


def test_a_damaged_copy_of_a_live_lane_is_fed_again_and_readable_but_not_counted() -> None:
    cluster = ready()
    lane = cluster.own_lane(1)
    cluster.enqueue(1, "a")
    cluster.deliver_all()
    cluster.crash(3)
    cluster.peers[3].disk.damage(lane, 1)
    cluster.start(3)
    cluster.run(6 * BEAT_S)
    assert cluster.values(3, lane) == ["a"]
    cluster.cut(2)
    cluster.enqueue(1, "b")
    cluster.deliver_all()
    assert cluster.stored(3, lane) == ["a", "b"]
    assert cluster.values(1, lane) == ["a"], "the own copy and a repairing one are no quorum"


def test_a_clean_close_waits_for_the_last_entry_and_ends_the_lane_without_a_fence() -> None:
    cluster = ready()
    lane = cluster.own_lane(1)
    cluster.enqueue(1, "a")
    cluster.at(1).close_own_lane()
    cluster.collect(1)
    with pytest.raises(LaneEnded):
        cluster.enqueue(1, "b")
    assert cluster.ends == {}
    cluster.deliver_all()
    assert cluster.ends == {lane: 1}
    assert not cluster.messages(Fence)
    assert cluster.peers[1].lost == []
    assert [cluster.values(n, lane) for n in (1, 2, 3)] == [["a"]] * 3


def test_a_clean_close_of_an_empty_lane_ends_it_at_zero_once_the_stop_is_durable() -> None:
    cluster = ready(auto_sync=False)
    lane = cluster.own_lane(1)
    cluster.at(1).close_own_lane()
    cluster.collect(1)
    assert cluster.ends == {}
    cluster.sync(1)
    assert cluster.ends == {lane: 0}


def test_a_closing_owner_that_is_fenced_meanwhile_is_settled_like_any_other() -> None:
    cluster = ready()
    lane = stored_on(cluster, 1, "a", 2)
    cluster.at(1).close_own_lane()
    settle(cluster, 3, lane)
    cluster.deliver_all()
    assert cluster.ends == {lane: 1}
    assert cluster.peers[1].lost == []


def test_lanes_of_earlier_runs_are_orphans_and_are_settled_also_by_their_own_peer() -> None:
    cluster = ready()
    lane = stored_on(cluster, 1, "a")
    cluster.restart(1)
    assert cluster.own_lane(1) != lane
    cluster.run(DEAD_S)
    assert cluster.ends[lane] in (0, 1)
    assert len({tuple(cluster.values(n, lane)) for n in (1, 2, 3)}) == 1


def test_another_peer_continues_when_a_settler_dies_halfway() -> None:
    cluster = ready()
    lane = stored_on(cluster, 1, "a", 3)
    cluster.crash(1)
    settle(cluster, 3, lane)
    cluster.deliver_all(lambda _s, _t, message: isinstance(message, Fence | Fenced))
    cluster.restart(3)
    cluster.run(2 * DEAD_S)
    assert cluster.ends[lane] == 1
    assert cluster.values(2, lane) == ["a"]


def test_answers_to_an_earlier_attempt_are_not_counted_in_a_later_one() -> None:
    cluster = ready()
    lane = cluster.own_lane(1)
    cluster.cut_links |= {(2, 1), (1, 2)}
    settle(cluster, 2, lane)
    cluster.deliver_all(lambda _s, _t, message: isinstance(message, Fence))
    stale = [m for m in cluster.network if isinstance(m[2], Fenced)]
    assert stale
    cluster.restart(2)
    settle(cluster, 2, lane)
    cluster.network = stale
    cluster.deliver_all()
    assert cluster.ends == {}


def test_an_attempt_whose_donor_is_gone_is_restarted_with_the_live_peers() -> None:
    cluster = ready(5)
    lane = stored_on(cluster, 1, "a", 4)
    cluster.crash(1)
    settle(cluster, 2, lane)
    cluster.deliver_all(lambda s, t, m: isinstance(m, Fence | Fenced) and {s, t} <= {2, 3, 4})
    assert cluster.at(2).settlement.attempts[lane].chosen == 1
    cluster.crash(4)
    cluster.run(3 * DEAD_S)
    assert cluster.ends[lane] == 0
    assert [cluster.values(n, lane) for n in (2, 3, 5)] == [[]] * 3


def test_lost_fences_refills_and_answers_are_repeated() -> None:
    cluster = ready()
    lane = stored_on(cluster, 1, "a", 3)
    cluster.crash(1)
    settle(cluster, 3, lane)
    for kind in (Fence, Fenced, Refill, Refilled):
        cluster.deliver_all(lambda _s, _t, m, kind=kind: not isinstance(m, kind))  # type: ignore[misc]
        assert any(isinstance(m[2], kind) for m in cluster.network)
        cluster.network.clear()
        cluster.now += 2 * BEAT_S
        cluster.tick()
    cluster.deliver_all()
    assert cluster.ends == {lane: 1}


def test_a_peer_without_a_quorum_fences_no_lane() -> None:
    cluster = ready()
    cluster.cut(1)
    cluster.run(2 * DEAD_S)
    assert not cluster.messages(Fence, source=1)
    assert not cluster.peers[1].disk.lanes.get(cluster.own_lane(2))


def test_a_lane_end_is_adopted_by_a_peer_that_was_never_fenced_and_fetched_to_the_end() -> None:
    cluster = ready()
    lane = cluster.own_lane(1)
    cluster.cut(3)
    for value in "abc":
        cluster.enqueue(1, value)
    cluster.deliver_all()
    cluster.at(1).close_own_lane()
    cluster.collect(1)
    assert cluster.ends == {lane: 3}
    cluster.heal()
    cluster.run(6 * BEAT_S)
    assert cluster.values(3, lane) == list("abc")


def test_only_the_first_decided_end_counts() -> None:
    cluster = ready()
    lane = cluster.own_lane(1)
    cluster.enqueue(1, "a")
    cluster.deliver_all()
    core = cluster.at(2)
    core.lane_end_decided(lane, 1, cluster.now)
    core.lane_end_decided(lane, 0, cluster.now)
    cluster.collect(2)
    assert cluster.values(2, lane) == ["a"]


def test_a_crash_between_the_decided_end_and_the_cut_is_repaired_at_the_start() -> None:
    cluster = ready()
    lane = stored_on(cluster, 1, "a")
    cluster.crash(1)
    image = cluster.peers[1].disk.lanes[lane]
    image.fenced, image.decided_end = True, 0
    cluster.start(1)
    assert cluster.stored(1, lane) == []


def test_an_end_for_a_lane_that_was_never_opened_is_refused() -> None:
    cluster = ready()
    with pytest.raises(InvalidRequest, match="lane 77"):
        cluster.at(1).lane_end_decided(77, 0, cluster.now)
