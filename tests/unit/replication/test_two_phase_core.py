"""The two-phase core: single peers and single messages. Longer sequences are in tests/scenarios."""

from __future__ import annotations

import pytest
from tests.unit.replication.two_phase_hand import (
    B1,
    B2,
    B3,
    PROOF,
    VOTERS,
    coordinator,
    core,
    data,
    image_of,
    sent_by,
    sync,
)

from avow.errors import DiskFull
from avow.ids import REPAIRING
from avow.limits import BATCH_SIZE_BYTES_MAX
from avow.replication.effects import Effects, SaveCut, SaveEntries, SaveState
from avow.replication.two_phase.core import FOLLOWER
from avow.wire.messages import (
    Claim,
    Confirm,
    Confirmed,
    Enqueue,
    Entry,
    Fetch,
    Fetched,
    Heartbeat,
    Install,
    Kind,
    Message,
    Nack,
    Probe,
    ProbeAnswer,
    Promise,
    Ready,
    Reject,
    Snapshot,
)


def test_nothing_that_depends_on_the_disk_leaves_before_the_sync() -> None:
    follower = core(2)
    follower.receive(1, Enqueue(B1, 0, 0, (data(1, B1),), 0, 0), 0.0)
    effects = follower.drain()
    assert effects is not None
    assert effects.sends == []
    assert [type(op) for op in effects.persist] == [SaveState, SaveEntries, SaveState]
    follower.persisted(PROOF)
    assert follower.drain() == Effects([(1, Ready(B1, 1, True))], [])


def test_the_answer_to_a_repeated_message_waits_for_the_first_sync() -> None:
    follower = core(2)
    enqueue = Enqueue(B1, 0, 0, (data(1, B1),), 0, 0)
    follower.receive(1, enqueue, 0.0)
    follower.drain()
    follower.receive(1, enqueue, 0.0)
    assert follower.drain() is None
    follower.persisted(PROOF)
    assert follower.drain() == Effects([(1, Ready(B1, 1, True)), (1, Ready(B1, 1, True))], [])


def test_a_lower_ballot_is_refused() -> None:
    follower = core(3)
    follower.receive(2, Claim(B2), 0.0)
    sync(follower)
    follower.receive(1, Enqueue(B1, 0, 0, (data(1, B1),), 0, 0), 0.0)
    assert sent_by(follower, Nack) == [Nack(B1, B2)]
    assert follower.log.end == 0


def test_a_gap_is_rejected_with_the_last_position_known_to_agree() -> None:
    follower = core(2)
    follower.receive(1, Enqueue(B1, 4, B1, (data(5, B1),), 0, 0), 0.0)
    assert sent_by(follower, Reject) == [Reject(B1, 0, 0)]


def test_a_different_entry_is_cut_and_replaced() -> None:
    follower = core(3, image=image_of([data(1, B1), data(2, B1)], stamped=B1, promised=B1))
    follower.receive(2, Enqueue(B2, 1, B1, (data(2, B2),), 2, 0), 0.0)
    effects, messages = sync(follower)
    assert effects is not None
    assert SaveCut(1, 1) in effects.persist
    assert follower.log.origin(2) == B2
    assert messages[-1] == (2, Ready(B2, 2, True))


def test_the_stamp_is_set_with_the_last_piece_of_the_take_over_log() -> None:
    follower = core(3, image=image_of([data(1, B1)], stamped=B1, promised=B1))
    follower.receive(2, Enqueue(B2, 1, B1, (data(2, B1),), 3, 0), 0.0)
    assert sent_by(follower, Ready) == [Ready(B2, 2, False)]
    assert follower.state.stamped == B1
    follower.receive(2, Enqueue(B2, 2, B1, (data(3, B2),), 3, 0), 0.0)
    assert sent_by(follower, Ready) == [Ready(B2, 3, True)]
    assert follower.state.stamped == B2


def test_the_stamp_cuts_entries_beyond_the_match() -> None:
    follower = core(3, image=image_of([data(1, B1), data(2, B1), data(3, B1)], stamped=B1, promised=B1))
    follower.receive(2, Enqueue(B2, 1, B1, (), 1, 0), 0.0)
    sync(follower)
    assert follower.log.end == 1


def test_a_late_message_does_not_cut_entries_committed_by_repair() -> None:
    follower = core(3)
    follower.receive(1, Heartbeat(0, False, 2), 0.0)
    follower.receive(1, Fetched(0, 0, 0, (data(1, B1), data(2, B1)), 2, 2), 0.0)
    sync(follower)
    assert follower.committed == 2
    follower.receive(1, Enqueue(B1, 0, 0, (data(1, B1),), 0, 0), 0.0)
    sync(follower)
    assert follower.log.end == 2
    assert follower.committed == 2


def test_entries_that_contradict_committed_ones_are_ignored() -> None:
    follower = core(3)
    follower.receive(2, Fetched(0, 0, 0, (data(1, B2), data(2, B2)), 2, 2), 0.0)
    sync(follower)
    follower.receive(1, Enqueue(B1, 1, B2, (data(2, B1),), 0, 0), 0.0)
    assert sent_by(follower, Ready) == []
    assert follower.log.origin(2) == B2


def test_the_cursor_moves_only_over_entries_that_match_this_coordinator() -> None:
    follower = core(3, image=image_of([data(1, B1), data(2, B1)], stamped=B1, promised=B1))
    follower.receive(2, Enqueue(B2, 1, B1, (), 5, 5), 0.0)
    sync(follower)
    assert follower.committed == 1
    follower.receive(1, Heartbeat(B1, False, 5), 0.0)  # another peer's cursor says nothing about entry 2 here
    assert follower.committed == 1


def test_a_restarted_follower_with_the_stamp_follows_the_cursor_at_once() -> None:
    follower = core(3, image=image_of([data(1, B1), data(2, B1)], stamped=B1, promised=B1))
    follower.receive(1, Heartbeat(B1, True, 2), 0.0)
    assert follower.committed == 2


def test_the_coordinators_own_copy_counts_only_when_it_is_synced() -> None:
    peer = coordinator()
    peer.leadership.append(Kind.DATA, count=1, write_id=b"w" * 16)
    effects = peer.drain()
    assert effects is not None
    peer.receive(2, Ready(peer.promised, 2, True), 1.0)
    assert peer.committed == 0 or peer.committed < 2
    peer.persisted(PROOF)
    assert peer.committed == 2


def test_a_peer_without_the_stamp_is_fed_but_not_counted() -> None:
    peer = coordinator(log=(data(1, 0), data(2, 0)))
    peer.receive(2, Ready(peer.promised, 3, False), 1.0)
    assert peer.committed == 0
    assert peer.leadership.progress[2].next == 3


def test_a_peer_with_a_full_disk_stores_no_entries_but_still_promises() -> None:
    follower = core(3)
    follower.state.disk_full(full=True)
    follower.receive(1, Enqueue(B1, 0, 0, (data(1, B1),), 0, 0), 0.0)
    assert sent_by(follower, Ready) == []
    follower.receive(2, Claim(B2), 0.0)
    assert sent_by(follower, Promise) == [Promise(B2, 0, 0, 0)]


def test_a_coordinator_with_a_full_disk_refuses_writes_and_steps_down() -> None:
    peer = coordinator()
    peer.state.disk_full(full=True)
    with pytest.raises(DiskFull):
        peer.leadership.append(Kind.DATA, count=1, write_id=b"w" * 16)
    peer.receive(2, Heartbeat(0, False, 0), 1.1)
    peer.tick(1.2)
    assert peer.role == FOLLOWER


def test_feeding_a_peer_that_stores_nothing_does_not_multiply_messages() -> None:
    peer = coordinator()
    for _ in range(20):
        peer.leadership.append(Kind.DATA, count=1, write_id=b"w" * 16)
    sync(peer)
    sent = 0
    for _ in range(50):
        peer.receive(3, Reject(peer.promised, 0, 0), 1.0)
        sent += len(sent_by(peer, Enqueue))
    assert sent <= 2


def test_a_coordinator_without_fresh_heartbeats_steps_down_and_answers_its_reads() -> None:
    peer = coordinator()
    peer.leadership.read_index(7)
    peer.tick(5.0)
    assert peer.role == FOLLOWER
    assert peer.leadership.reads.done == [(7, -1)]


def test_a_read_needs_a_quorum_of_confirmations() -> None:
    peer = coordinator()
    peer.leadership.read_index(7)
    assert sent_by(peer, Confirm)
    assert peer.leadership.reads.done == []
    peer.receive(2, Confirmed(peer.promised, 1), 1.0)
    assert peer.leadership.reads.done == [(7, 0)]


def test_reads_during_a_round_share_the_next_one() -> None:
    peer = coordinator()
    peer.leadership.read_index(1)
    peer.leadership.read_index(2)
    peer.leadership.read_index(3)
    sync(peer)
    peer.receive(2, Confirmed(peer.promised, 1), 1.0)
    assert peer.leadership.reads.done == [(1, 0)]
    peer.receive(3, Confirmed(peer.promised, 2), 1.0)
    assert peer.leadership.reads.done == [(1, 0), (2, 0), (3, 0)]


def test_a_damaged_peer_reports_it_in_its_promise_and_does_not_claim() -> None:
    damaged = core(3, image=image_of([data(1, B1)], stamped=B1, promised=B1, damaged_from=2))
    effects, _ = sync(damaged)
    assert effects is not None
    assert effects.persist == [SaveState(1, B1, REPAIRING)]
    damaged.receive(2, Claim(B2), 0.0)
    assert sent_by(damaged, Promise) == [Promise(B2, REPAIRING, 1, 2)]
    damaged.tick(100.0)
    assert damaged.role == FOLLOWER


def test_a_damaged_peer_reports_to_a_coordinator_that_believes_it_whole() -> None:
    damaged = core(3, image=image_of([data(1, B1)], stamped=B1, promised=B1, damaged_from=2))
    sync(damaged)
    damaged.receive(1, Heartbeat(B1, True, 0), 0.0)
    assert sent_by(damaged, Reject) == [Reject(B1, 0, 2)]


def test_a_damaged_peer_must_store_again_all_entries_it_was_counted_for() -> None:
    peer = coordinator()
    for _ in range(3):
        peer.leadership.append(Kind.DATA, count=1, write_id=b"w" * 16)
    sync(peer)
    peer.receive(2, Ready(peer.promised, 4, True), 1.0)
    peer.receive(2, Reject(peer.promised, 0, 1), 1.0)
    (enqueue,) = sent_by(peer, Enqueue)
    assert isinstance(enqueue, Enqueue)
    assert (enqueue.after, enqueue.takeover_end) == (0, 4)


def test_a_stamp_after_repair_makes_storage_keep_repaired_entries() -> None:
    """Found by a simulated seed: the disk was cut at the match, the memory at the committed cursor."""
    damaged = core(3, image=image_of([data(1, B1)], stamped=B1, promised=B1, damaged_from=2))
    sync(damaged)
    damaged.receive(2, Fetched(0, 0, 0, (data(1, B1), data(2, B1)), 2, 2), 0.0)
    sync(damaged)
    damaged.receive(1, Enqueue(B1, 0, 0, (data(1, B1),), 1, 0), 0.0)
    effects, _ = sync(damaged)
    assert effects is not None
    assert damaged.log.end == 2
    assert [op for op in effects.persist if isinstance(op, SaveCut)] == [SaveCut(1, 2)]


def test_bytes_on_the_way_to_a_slow_peer_are_bounded_and_not_sent_twice() -> None:
    peer = coordinator()
    peer.receive(2, Ready(peer.promised, 1, True), 1.0)
    sync(peer)
    large = bytes(BATCH_SIZE_BYTES_MAX)
    for number in range(6):
        peer.leadership.append(Kind.DATA, count=1, write_id=b"%016d" % number, batch=large)
    first = [entry.position for message in sent_by(peer, Enqueue) for entry in _entries(message)]
    assert first == [2, 3]  # PIPELINE_SIZE_BYTES_MAX; heartbeats wait behind these two only
    for now in (1.1, 1.2, 1.3, 1.4):
        peer.receive(2, Heartbeat(peer.promised, False, 1), now)
        peer.tick(now)
    asked = [(to, message) for to, message in sync(peer)[1] if isinstance(message, Enqueue) and to == 2]
    assert asked == [(2, Enqueue(peer.promised, 1, peer.promised, (), 1, 1))]
    peer.receive(2, Ready(peer.promised, 3, True), 1.5)  # it was slow, and lost nothing
    peer.receive(2, Ready(peer.promised, 1, True), 1.5)
    then = [entry.position for message in sent_by(peer, Enqueue) for entry in _entries(message)]
    assert then == [4, 5]


def test_a_peer_that_lost_what_it_was_sent_gets_it_again() -> None:
    peer = coordinator()
    peer.receive(2, Ready(peer.promised, 1, True), 1.0)
    peer.leadership.append(Kind.DATA, count=1, write_id=b"%016d" % 1, batch=b"lost")
    sync(peer)
    for now in (1.1, 1.2, 1.3, 1.4):
        peer.receive(2, Heartbeat(peer.promised, False, 1), now)
        peer.tick(now)
    assert not [one for message in sent_by(peer, Enqueue) for one in _entries(message)]
    peer.receive(2, Ready(peer.promised, 1, True), 1.5)
    assert [one.position for message in sent_by(peer, Enqueue) for one in _entries(message)] == [2]


def _entries(message: Message) -> tuple[Entry, ...]:
    assert isinstance(message, Enqueue)
    return message.entries


def test_a_peer_behind_the_log_gets_the_snapshot() -> None:
    peer = coordinator()
    peer.receive(2, Ready(peer.promised, 1, True), 1.0)
    sync(peer)
    peer.state.compact(Snapshot(1, peer.promised, VOTERS, (), b"state"))
    sync(peer)
    sent: list[Message] = []
    for now in (1.1, 1.2, 1.3):
        peer.receive(2, Heartbeat(0, False, 0), now)
        peer.tick(now)
        sent += sent_by(peer, Enqueue)
    assert sent[-1] == Enqueue(peer.promised, 0, 0, (), 0, 1)  # what does it have?
    peer.receive(3, Ready(peer.promised, 0, False), 1.4)
    (install,) = sent_by(peer, Install)
    assert isinstance(install, Install)
    assert install.snapshot.state == b"state"


def test_a_repair_snapshot_is_accepted_from_any_peer() -> None:
    follower = core(3)
    follower.receive(2, Claim(B2), 0.0)
    sync(follower)
    follower.receive(1, Install(0, Snapshot(5, B1, VOTERS, (), b"state"), 0, 5), 0.0)
    assert follower.committed == 5
    assert sent_by(follower, Nack) == []


def test_a_donor_that_promised_another_claimant_does_not_serve_a_take_over() -> None:
    donor = core(2, image=image_of([data(1, B1)], stamped=B1, promised=B3))
    donor.receive(1, Fetch(B2, 0, 0), 0.0)
    assert sent_by(donor, Nack) == [Nack(B2, B3)]


def test_repair_never_serves_uncommitted_entries() -> None:
    donor = core(2, image=image_of([data(1, B1), data(2, B1)], stamped=B1, promised=B1))
    donor.receive(1, Heartbeat(B1, True, 1), 0.0)
    donor.receive(3, Fetch(0, 0, 0), 0.0)
    (fetched,) = sent_by(donor, Fetched)
    assert isinstance(fetched, Fetched)
    assert [entry.position for entry in fetched.entries] == [1]


def test_a_probe_by_a_removed_peer_is_answered_as_removed() -> None:
    peer = core(1, voters=(1, 2))
    peer.receive(3, Probe(B3), 0.0)
    assert sent_by(peer, ProbeAnswer) == [ProbeAnswer(B3, True, 0)]
