"""One peer's lane without IO: which answers a client gets, and when."""

from __future__ import annotations

import pytest
from tests.unit.node.queue_lane_hand import NOW, confirmed, coordinating, heard, lane, perform, stored, write

from avow.errors import InvalidRequest
from avow.node.answers import LOST, Done, Refusal
from avow.node.lane.queue_lane import stage_deadline_ms
from avow.node.lane.two_phase_lane import Write
from avow.queue import commands
from avow.queue.ledger import Bounds
from avow.queue.retention import StoredFile
from avow.wire.messages import (
    Confirmed,
    Enqueue,
    Forward,
    Forwarded,
    Heartbeat,
    Kind,
    ReadIndex,
    ReadIndexAnswer,
    Ready,
)


def test_a_write_is_answered_when_a_quorum_has_it_and_not_before() -> None:
    peer = coordinating()
    peer.write(1, write(1, count=2), NOW)
    perform(peer)
    assert heard(peer) == []
    stored(peer)
    assert heard(peer) == [(1, Done(1, 2))]


def test_a_repeated_write_id_is_answered_with_the_first_outcome() -> None:
    peer = coordinating()
    peer.write(1, write(1), NOW)
    peer.write(2, write(1), NOW)  # while the first is on its way: both wait for the same entry
    stored(peer)
    assert heard(peer) == [(1, Done(1, 1)), (2, Done(1, 1))]
    peer.write(3, write(1), NOW)
    assert heard(peer) == [(3, Done(1, 1))]
    assert peer.core.log.end == 2


def test_an_expected_cursor_counts_writes_in_flight() -> None:
    peer = coordinating()
    peer.write(1, write(1), NOW)
    peer.write(2, write(2, expected=1), NOW)
    stored(peer)
    assert heard(peer) == [(1, Done(1, 1)), (2, Done(2, 2))]


def test_not_equal_is_answered_only_when_it_is_certain() -> None:
    peer = coordinating()
    peer.write(1, write(1), NOW)
    peer.write(2, write(2, expected=0), NOW)
    confirmed(peer)
    assert heard(peer) == []  # confirmed, but the entry it speaks of is not committed yet
    stored(peer)
    assert heard(peer) == [(1, Done(1, 1)), (2, Refusal("NOT_EQUAL", 1))]
    assert peer.core.log.end == 2


def test_a_deposed_coordinator_answers_unknown_to_writers_and_offline_to_refused_ones() -> None:
    peer = coordinating()
    peer.write(1, write(1), NOW)
    peer.write(2, write(2, expected=0), NOW)
    peer.read(3, NOW)
    perform(peer)
    peer.tick(NOW + 10)  # no heartbeat for ten seconds
    assert set(heard(peer)) == {(1, LOST), (2, Refusal("OFFLINE")), (3, Refusal("OFFLINE"))}


def test_without_a_coordinator_a_write_is_refused_at_once() -> None:
    peer = lane()
    peer.write(1, write(1), NOW)
    peer.read(2, NOW)
    assert heard(peer) == [(1, Refusal("OFFLINE")), (2, Refusal("OFFLINE"))]


def test_a_follower_forwards_writes_and_passes_the_outcome_on() -> None:
    follower = lane(2)
    follower.receive(1, Heartbeat(65537, True, 0), NOW)
    follower.write(7, write(1), NOW)
    ((target, message),) = [(peer, m) for peer, m in perform(follower) if isinstance(m, Forward)]
    assert target == 1
    assert isinstance(message, Forward)
    follower.receive(1, Forwarded(7, "", 4, 5), NOW)
    follower.receive(1, Forwarded(7, "", 4, 5), NOW)  # repeated by the network
    assert heard(follower) == [(7, Done(4, 5))]


def test_a_forwarded_write_that_is_never_answered_is_unknown() -> None:
    follower = lane(2)
    follower.receive(1, Heartbeat(65537, True, 0), NOW)
    follower.write(7, write(1), NOW)
    follower.tick(NOW + 60)
    assert heard(follower) == [(7, LOST)]


def test_a_coordinator_answers_forwarded_writes_to_the_peer_that_sent_them() -> None:
    peer = coordinating()
    follower = lane(2)
    follower.receive(1, Heartbeat(65537, True, 0), NOW)
    follower.write(7, write(1), NOW)
    (forward,) = [m for _, m in perform(follower) if isinstance(m, Forward)]
    peer.receive(2, forward, NOW)
    perform(peer)
    peer.receive(2, Ready(peer.core.promised, peer.core.log.end, True), NOW)
    assert (2, Forwarded(7, "", 1, 1)) in perform(peer)


def test_a_linearizable_read_at_a_follower_waits_until_it_has_applied_the_cursor() -> None:
    peer = coordinating()
    peer.write(1, write(1), NOW)
    stored(peer)
    peer.receive(3, ReadIndex(9), NOW)
    perform(peer)
    peer.receive(2, Confirmed(peer.core.promised, peer.core.leadership.reads.round), NOW)
    assert (3, ReadIndexAnswer(9, 2)) in perform(peer)
    follower = lane(3)
    ballot = peer.core.promised
    follower.receive(1, Heartbeat(ballot, True, 2), NOW)
    follower.read(9, NOW)
    follower.receive(1, ReadIndexAnswer(9, 2), NOW)
    assert heard(follower) == []
    follower.receive(1, Enqueue(ballot, 0, 0, peer.core.log.slice(0, 2), 0, 2), NOW)
    perform(follower)
    assert heard(follower) == [(9, Done(1, 1))]


def test_reading_at_least_a_version_waits_for_it() -> None:
    peer = coordinating()
    peer.read_at_least(1, 1)
    assert heard(peer) == []
    peer.write(2, write(1), NOW)
    stored(peer)
    assert (1, Done(1, 1)) in heard(peer)
    peer.read_at_least(3, 1)
    assert heard(peer) == [(3, Done(1, 1))]


def test_an_uncommitted_message_can_be_read_by_its_version_id_only() -> None:
    peer = coordinating()
    peer.write(1, write(1, count=2), NOW)
    perform(peer)
    peer.read_local(5)
    assert (5, Done(1, 0)) in heard(peer)
    found = peer.peek_version(2)
    assert found is not None
    entry, offset, committed, stored_by = found
    assert (entry.write_id, offset, committed, stored_by) == (b"%016d" % 1, 1, False, (1,))
    stored(peer)
    found = peer.peek_version(2)
    assert found is not None
    assert found[1:] == (1, True, (1, 2))
    assert peer.peek_version(3) is None


def test_a_staged_message_about_to_be_published_is_found_by_its_version_id() -> None:
    peer = coordinating()
    stage = commands.encode(commands.StageCommand(b"t", 10_000))
    peer.write(1, Write(Kind.STAGE, b"s" * 16, 2, -1, 0, stage, b"x"), NOW)
    peer.write(2, write(1), NOW)
    stored(peer)
    assert peer.peek_version(2) is None
    publish = commands.encode(commands.TransactionCommand(b"t"))
    peer.write(3, Write(Kind.PUBLISH, b"p" * 16, 0, -1, 0, publish, b""), NOW)
    found = peer.peek_version(3)
    assert found is not None
    assert (found[0].position, found[1], found[2]) == (2, 1, False)


def test_a_transaction_past_its_deadline_is_discarded_by_an_entry() -> None:
    peer = coordinating()
    stage = commands.encode(commands.StageCommand(b"t", 5_000))
    peer.write(1, Write(Kind.STAGE, b"s" * 16, 2, -1, 0, stage, b"x"), NOW)
    stored(peer)
    peer.discard_expired(4_999)
    assert peer.core.log.end == 2
    peer.discard_expired(5_000)
    peer.discard_expired(5_000)  # once is enough
    assert peer.core.log.end == 3
    stored(peer)
    heard(peer)
    publish = commands.encode(commands.TransactionCommand(b"t"))
    peer.write(2, Write(Kind.PUBLISH, b"p" * 16, 0, -1, 0, publish, b""), NOW)
    confirmed(peer)
    assert heard(peer) == [(2, Refusal("ALREADY_DECIDED"))]


def test_a_full_disk_refuses_writes_and_serves_reads() -> None:
    peer = coordinating()
    peer.disk_full(full=True)
    peer.write(1, write(1), NOW)
    peer.read_local(2)
    assert heard(peer) == [(1, Refusal("DISK_FULL")), (2, Done(1, 0))]


def test_an_abandoned_read_is_forgotten() -> None:
    peer = coordinating()
    peer.read_at_least(1, 5)
    peer.cancel(1)
    peer.write(2, write(1, count=5), NOW)
    stored(peer)
    assert heard(peer) == [(2, Done(1, 5))]
    follower = lane(2)
    follower.receive(1, Heartbeat(65537, True, 0), NOW)
    follower.read(7, NOW)
    follower.cancel(7)
    follower.receive(1, ReadIndexAnswer(7, 0), NOW)
    assert heard(follower) == []


def test_waiting_readers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("avow.node.lane.reads.WAITING_REQUESTS_MAX", 2)
    peer = coordinating()
    for request in (1, 2, 3):
        peer.read_at_least(request, 9)
    assert heard(peer) == [(3, Refusal("TOO_MANY"))]


def old(number: int, age_ms: int) -> Write:
    return Write(Kind.DATA, b"%016d" % number, 1, -1, 0, b"", b"x", age_ms=age_ms)


def test_an_old_retry_that_may_have_been_forgotten_is_unknown() -> None:
    peer = coordinating(bounds=Bounds(write_ids=2))
    for number in (1, 2, 3):
        peer.write(number, write(number), NOW)
    stored(peer)
    heard(peer)
    peer.tick(NOW)  # from here on it is known what came
    perform(peer)
    peer.write(4, old(1, 60_000), NOW)  # done once, and forgotten
    peer.write(5, old(3, 60_000), NOW)  # done once, and known
    peer.write(6, old(9, 60_000), NOW)  # who can tell?
    peer.write(7, Write(Kind.DATA, b"%016d" % 10, 1, 0, 0, b"", b"x", age_ms=60_000), NOW)  # refusing would be a claim
    assert heard(peer) == [(4, LOST), (5, Done(3, 3)), (6, LOST), (7, LOST)]
    assert peer.core.log.end == 4


def test_a_retry_younger_than_the_remembered_ids_is_decided() -> None:
    peer = coordinating(bounds=Bounds(write_ids=2))
    for number in (1, 2, 3):
        peer.write(number, write(number), NOW)
    stored(peer)
    noted, later = NOW + 2.0, NOW + 7.0
    for now in (noted, later):
        peer.receive(2, Heartbeat(peer.core.promised, False, 4), now)
        peer.tick(now)
    heard(peer)
    peer.write(4, old(9, 3_000), later)
    assert peer.core.log.end == 5
    assert heard(peer) == []


def test_a_memory_that_never_was_full_judges_any_retry() -> None:
    peer = coordinating()
    peer.write(1, old(1, 3_600_000), NOW)
    stored(peer)
    assert heard(peer) == [(1, Done(1, 1))]


def test_a_forwarded_retry_carries_its_age() -> None:
    follower = lane(2)
    follower.receive(1, Heartbeat(65537, True, 0), NOW)
    follower.write(7, old(1, 1_500), NOW)
    (forward,) = [m for _, m in perform(follower) if isinstance(m, Forward)]
    assert forward.age_ms == 1_500


def test_the_coordinator_proposes_one_trim_at_a_time() -> None:
    peer = coordinating(snapshot_every=2)
    for number in range(1, 6):
        peer.write(number, write(number), NOW)
        stored(peer)
    files = [StoredFile(last_position=3, size_bytes=100, newest_ms=1_000), StoredFile(6, 100, 2_000)]
    rules = commands.RetentionRules(size_bytes=100)
    end = peer.core.log.end
    assert peer.propose_trim(files, rules, 5_000)
    assert not peer.propose_trim(files, rules, 5_000)
    assert peer.core.log.end == end + 1
    stored(peer)
    assert peer.state.trimmed_to == 2  # version 3 lies in the second file
    assert not peer.propose_trim(files, rules, 5_000)


def test_a_peer_that_does_not_coordinate_proposes_nothing() -> None:
    assert not lane(2).propose_trim([StoredFile(3, 100, 0)], commands.RetentionRules(age_s=1), 5_000)


def test_a_deadline_is_checked_at_the_entry() -> None:
    assert stage_deadline_ms(1.5, now_ms=1_000) == 2_500
    for wrong in (0.0, -1.0, 24 * 3600.0 + 1, float("nan"), float("inf")):
        with pytest.raises(InvalidRequest):
            stage_deadline_ms(wrong, now_ms=0)


def test_requests_that_wait_on_a_deleted_queue_are_answered() -> None:
    peer = coordinating()
    peer.write(1, write(1), NOW)
    peer.read_at_least(2, 9)
    peer.read(3, NOW)
    peer.abandon()
    assert set(heard(peer)) == {(1, LOST), (2, Refusal("UNKNOWN_QUEUE")), (3, Refusal("UNKNOWN_QUEUE"))}
