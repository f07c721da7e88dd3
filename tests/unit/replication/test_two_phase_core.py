"""The two-phase core by hand: single peers and single messages. Whole courses of events are in tests/scenarios."""

from __future__ import annotations

import pytest

from avow.errors import DiskFull, InvalidRequest, MembershipBusy, Offline
from avow.ids import REPAIRING, ballot_of
from avow.replication.effects import Effects, LaneImage, SaveCut, SaveEntries, SaveState
from avow.replication.membership import Members, encode_members
from avow.replication.tuning import Tuning
from avow.replication.two_phase.claim import DONE, WAIT, Claiming
from avow.replication.two_phase.core import COORDINATOR, FOLLOWER, TwoPhaseCore
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

VOTERS = (1, 2, 3)
B1, B2, B3 = ballot_of(1, 1), ballot_of(2, 2), ballot_of(3, 3)


def core(me: int = 1, *, voters: tuple[int, ...] = VOTERS, image: LaneImage | None = None) -> TwoPhaseCore:
    image = image or LaneImage(snapshot=Snapshot(0, 0, voters, (), b""), entries=[])
    return TwoPhaseCore(me=me, lane=1, image=image, rng=lambda: 0.5, tuning=Tuning(), now=0.0)


def data(position: int, origin: int) -> Entry:
    return Entry(position, origin, Kind.DATA, 1, b"%016d" % position)


def sync(peer: TwoPhaseCore) -> tuple[Effects | None, list[tuple[int, Message]]]:
    """Perform everything at once; returns the effects and all messages that left."""
    effects = peer.drain()
    if effects is None:
        return None, []
    if effects.ticket:
        peer.persisted(effects.ticket)
    return effects, effects.sends_now + effects.sends_synced


def said(peer: TwoPhaseCore, kind: type) -> list[Message]:
    return [message for _, message in sync(peer)[1] if isinstance(message, kind)]


def coordinator(*, log: tuple[Entry, ...] = ()) -> TwoPhaseCore:
    """Peer 1 of three, coordinating with a take-over log of its own, all synced."""
    peer = core(image=LaneImage(stamped=0, snapshot=Snapshot(0, 0, VOTERS, (), b""), entries=list(log)))
    peer.tick(1.0)
    peer.receive(2, ProbeAnswer(ballot_of(1, 1), False, 0), 1.0)
    sync(peer)
    peer.receive(2, Promise(peer.promised, 0, 0, 0), 1.0)
    assert peer.role == COORDINATOR
    sync(peer)
    return peer


def test_nothing_that_depends_on_the_disk_leaves_before_the_sync() -> None:
    follower = core(2)
    follower.receive(1, Enqueue(B1, 0, 0, (data(1, B1),), 0, 0), 0.0)
    effects = follower.drain()
    assert effects is not None
    assert effects.sends_now == []
    assert effects.sends_synced == [(1, Ready(B1, 1, True))]
    assert [type(op) for op in effects.persist] == [SaveState, SaveEntries, SaveState]


def test_an_answer_to_a_repeated_message_waits_for_the_sync_of_the_first() -> None:
    follower = core(2)
    enqueue = Enqueue(B1, 0, 0, (data(1, B1),), 0, 0)
    follower.receive(1, enqueue, 0.0)
    follower.drain()
    follower.receive(1, enqueue, 0.0)
    again = follower.drain()
    assert again is not None
    assert again.persist == []
    assert again.ticket == 2
    assert again.sends_now == []


def test_a_lower_ballot_is_refused() -> None:
    follower = core(3)
    follower.receive(2, Claim(B2), 0.0)
    sync(follower)
    follower.receive(1, Enqueue(B1, 0, 0, (data(1, B1),), 0, 0), 0.0)
    assert said(follower, Nack) == [Nack(B1, B2)]
    assert follower.log.end == 0


def test_a_gap_is_rejected_with_where_the_logs_surely_agree() -> None:
    follower = core(2)
    follower.receive(1, Enqueue(B1, 4, B1, (data(5, B1),), 0, 0), 0.0)
    assert said(follower, Reject) == [Reject(B1, 0, 0)]


def test_a_different_entry_is_cut_and_replaced() -> None:
    follower = core(3, image=_image([data(1, B1), data(2, B1)], stamped=B1, promised=B1))
    follower.receive(2, Enqueue(B2, 1, B1, (data(2, B2),), 2, 0), 0.0)
    effects, messages = sync(follower)
    assert effects is not None
    assert SaveCut(1, 1) in effects.persist
    assert follower.log.origin(2) == B2
    assert messages[-1] == (2, Ready(B2, 2, True))


def test_the_stamp_comes_with_the_last_piece_of_the_take_over_log() -> None:
    follower = core(3, image=_image([data(1, B1)], stamped=B1, promised=B1))
    follower.receive(2, Enqueue(B2, 1, B1, (data(2, B1),), 3, 0), 0.0)
    assert said(follower, Ready) == [Ready(B2, 2, False)]
    assert follower.stamped == B1
    follower.receive(2, Enqueue(B2, 2, B1, (data(3, B2),), 3, 0), 0.0)
    assert said(follower, Ready) == [Ready(B2, 3, True)]
    assert follower.stamped == B2


def test_the_stamp_cuts_what_lies_beyond_the_match() -> None:
    follower = core(3, image=_image([data(1, B1), data(2, B1), data(3, B1)], stamped=B1, promised=B1))
    follower.receive(2, Enqueue(B2, 1, B1, (), 1, 0), 0.0)
    sync(follower)
    assert follower.log.end == 1


def test_a_late_message_does_not_cut_what_repair_has_committed_since() -> None:
    follower = core(3)
    follower.receive(1, Heartbeat(0, False, 2), 0.0)
    follower.receive(1, Fetched(0, 0, 0, (data(1, B1), data(2, B1)), 2, 2), 0.0)
    sync(follower)
    assert follower.committed == 2
    follower.receive(1, Enqueue(B1, 0, 0, (data(1, B1),), 0, 0), 0.0)
    sync(follower)
    assert follower.log.end == 2
    assert follower.committed == 2


def test_entries_that_contradict_what_is_committed_are_ignored() -> None:
    follower = core(3)
    follower.receive(2, Fetched(0, 0, 0, (data(1, B2), data(2, B2)), 2, 2), 0.0)
    sync(follower)
    follower.receive(1, Enqueue(B1, 1, B2, (data(2, B1),), 0, 0), 0.0)
    assert said(follower, Ready) == []
    assert follower.log.origin(2) == B2


def test_the_cursor_moves_only_over_what_matched_this_coordinator() -> None:
    follower = core(3, image=_image([data(1, B1), data(2, B1)], stamped=B1, promised=B1))
    follower.receive(2, Enqueue(B2, 1, B1, (), 5, 5), 0.0)
    sync(follower)
    assert follower.committed == 1
    follower.receive(1, Heartbeat(B1, False, 5), 0.0)  # another peer's cursor says nothing about entry 2 here
    assert follower.committed == 1


def test_a_restarted_follower_with_the_stamp_follows_the_cursor_at_once() -> None:
    follower = core(3, image=_image([data(1, B1), data(2, B1)], stamped=B1, promised=B1))
    follower.receive(1, Heartbeat(B1, True, 2), 0.0)
    assert follower.committed == 2


def test_the_own_copy_counts_only_when_it_is_synced() -> None:
    peer = coordinator()
    peer.append(Kind.DATA, count=1, write_id=b"w" * 16)
    effects = peer.drain()
    assert effects is not None
    peer.receive(2, Ready(peer.promised, 2, True), 1.0)
    assert peer.committed == 0 or peer.committed < 2
    peer.persisted(effects.ticket)
    assert peer.committed == 2


def test_a_peer_without_the_stamp_is_fed_but_not_counted() -> None:
    peer = coordinator(log=(data(1, 0), data(2, 0)))
    peer.receive(2, Ready(peer.promised, 3, False), 1.0)
    assert peer.committed == 0
    assert peer.progress[2].next == 3


def test_a_full_disk_takes_no_entries_and_still_promises() -> None:
    follower = core(3)
    follower.full = True
    follower.receive(1, Enqueue(B1, 0, 0, (data(1, B1),), 0, 0), 0.0)
    assert said(follower, Ready) == []
    follower.receive(2, Claim(B2), 0.0)
    assert said(follower, Promise) == [Promise(B2, 0, 0, 0)]


def test_a_coordinator_with_a_full_disk_refuses_and_gives_up_its_place() -> None:
    peer = coordinator()
    peer.full = True
    with pytest.raises(DiskFull):
        peer.append(Kind.DATA, count=1, write_id=b"w" * 16)
    peer.receive(2, Heartbeat(0, False, 0), 1.1)
    peer.tick(1.2)
    assert peer.role == FOLLOWER


def test_feeding_a_peer_that_stores_nothing_does_not_multiply_messages() -> None:
    peer = coordinator()
    for _ in range(20):
        peer.append(Kind.DATA, count=1, write_id=b"w" * 16)
    sync(peer)
    sent = 0
    for _ in range(50):
        peer.receive(3, Reject(peer.promised, 0, 0), 1.0)
        sent += len(said(peer, Enqueue))
    assert sent <= 2


def test_a_coordinator_without_fresh_heartbeats_steps_down_and_answers_its_reads() -> None:
    peer = coordinator()
    peer.read_index(7)
    peer.tick(5.0)
    assert peer.role == FOLLOWER
    assert peer.reads_done == [(7, -1)]


def test_a_read_needs_a_quorum_of_confirmations() -> None:
    peer = coordinator()
    peer.read_index(7)
    assert said(peer, Confirm)
    assert peer.reads_done == []
    peer.receive(2, Confirmed(peer.promised, 1), 1.0)
    assert peer.reads_done == [(7, 0)]


def test_reads_during_a_round_share_the_next_one() -> None:
    peer = coordinator()
    peer.read_index(1)
    peer.read_index(2)
    peer.read_index(3)
    sync(peer)
    peer.receive(2, Confirmed(peer.promised, 1), 1.0)
    assert peer.reads_done == [(1, 0)]
    peer.receive(3, Confirmed(peer.promised, 2), 1.0)
    assert peer.reads_done == [(1, 0), (2, 0), (3, 0)]


def test_a_damaged_peer_says_so_in_its_promise_and_does_not_claim() -> None:
    damaged = core(3, image=_image([data(1, B1)], stamped=B1, promised=B1, damaged_from=2))
    effects, _ = sync(damaged)
    assert effects is not None
    assert effects.persist == [SaveState(1, B1, REPAIRING)]
    damaged.receive(2, Claim(B2), 0.0)
    assert said(damaged, Promise) == [Promise(B2, REPAIRING, 1, 2)]
    damaged.tick(100.0)
    assert damaged.role == FOLLOWER


def test_a_damaged_peer_tells_the_coordinator_that_believes_it_whole() -> None:
    damaged = core(3, image=_image([data(1, B1)], stamped=B1, promised=B1, damaged_from=2))
    sync(damaged)
    damaged.receive(1, Heartbeat(B1, True, 0), 0.0)
    assert said(damaged, Reject) == [Reject(B1, 0, 2)]


def test_a_damaged_peer_must_hold_again_what_it_was_counted_for() -> None:
    peer = coordinator()
    for _ in range(3):
        peer.append(Kind.DATA, count=1, write_id=b"w" * 16)
    sync(peer)
    peer.receive(2, Ready(peer.promised, 4, True), 1.0)
    peer.receive(2, Reject(peer.promised, 0, 1), 1.0)
    (enqueue,) = said(peer, Enqueue)
    assert isinstance(enqueue, Enqueue)
    assert (enqueue.after, enqueue.takeover_end) == (0, 4)


def test_a_stamp_after_repair_tells_storage_to_keep_what_the_repair_brought() -> None:
    """Found by a simulated seed: the disk was cut at the match, the memory at the committed cursor."""
    damaged = core(3, image=_image([data(1, B1)], stamped=B1, promised=B1, damaged_from=2))
    sync(damaged)
    damaged.receive(2, Fetched(0, 0, 0, (data(1, B1), data(2, B1)), 2, 2), 0.0)
    sync(damaged)
    damaged.receive(1, Enqueue(B1, 0, 0, (data(1, B1),), 1, 0), 0.0)
    effects, _ = sync(damaged)
    assert effects is not None
    assert damaged.log.end == 2
    assert [op for op in effects.persist if isinstance(op, SaveCut)] == [SaveCut(1, 2)]


def test_a_peer_behind_the_log_gets_the_snapshot() -> None:
    peer = coordinator()
    peer.receive(2, Ready(peer.promised, 1, True), 1.0)
    sync(peer)
    peer.compact(Snapshot(1, peer.promised, VOTERS, (), b"state"))
    sync(peer)
    sent: list[Message] = []
    for now in (1.1, 1.2, 1.3):
        peer.receive(2, Heartbeat(0, False, 0), now)
        peer.tick(now)
        sent += said(peer, Install)
    (install,) = sent
    assert isinstance(install, Install)
    assert install.snapshot.state == b"state"


def test_a_repair_snapshot_is_taken_whoever_coordinates() -> None:
    follower = core(3)
    follower.receive(2, Claim(B2), 0.0)
    sync(follower)
    follower.receive(1, Install(0, Snapshot(5, B1, VOTERS, (), b"state"), 0, 5), 0.0)
    assert follower.committed == 5
    assert said(follower, Nack) == []


def test_a_donor_that_promised_somebody_else_does_not_serve_a_take_over() -> None:
    donor = core(2, image=_image([data(1, B1)], stamped=B1, promised=B3))
    donor.receive(1, Fetch(B2, 0, 0), 0.0)
    assert said(donor, Nack) == [Nack(B2, B3)]


def test_repair_never_serves_what_is_not_committed() -> None:
    donor = core(2, image=_image([data(1, B1), data(2, B1)], stamped=B1, promised=B1))
    donor.receive(1, Heartbeat(B1, True, 1), 0.0)
    donor.receive(3, Fetch(0, 0, 0), 0.0)
    (fetched,) = said(donor, Fetched)
    assert isinstance(fetched, Fetched)
    assert [entry.position for entry in fetched.entries] == [1]


def test_a_probe_by_a_peer_that_was_removed_is_told_to_be_quiet() -> None:
    peer = core(1, voters=(1, 2))
    peer.receive(3, Probe(B3), 0.0)
    assert said(peer, ProbeAnswer) == [ProbeAnswer(B3, True, 0)]


# ---------------------------------------------------------------------- claims


def test_a_claim_needs_a_quorum_of_undamaged_promises_and_its_own() -> None:
    claim = Claiming(me=1, ballot=B1, freshness=(0, 0))
    claim.promised(2, stamped=0, end=0, damaged_from=0)
    assert claim.decide(VOTERS) == WAIT
    claim.promised(3, stamped=REPAIRING, end=9, damaged_from=3)
    claim.promised(1, stamped=0, end=0, damaged_from=0)
    assert claim.decide(VOTERS) == DONE
    assert claim.decide((1, 3)) == WAIT


def test_the_freshest_log_is_the_last_stamped_then_the_longest() -> None:
    claim = Claiming(me=1, ballot=B3, freshness=(B1, 9))
    claim.promised(1, stamped=B1, end=9, damaged_from=0)
    claim.promised(2, stamped=B2, end=3, damaged_from=0)
    assert claim.decide(VOTERS) == 2


def test_an_adopted_log_that_names_more_voters_asks_for_their_promises_too() -> None:
    """Otherwise a claimer with an old log could coordinate five peers on the word of two."""
    claimer = core(1)
    claimer.tick(1.0)
    claimer.receive(2, ProbeAnswer(ballot_of(1, 1), False, 0), 1.0)
    sync(claimer)
    ballot = claimer.promised
    five = Entry(1, B1, Kind.MEMBERS, control=encode_members(Members((1, 2, 3, 4, 5))))
    claimer.receive(2, Promise(ballot, B1, 1, 0), 1.0)
    sync(claimer)
    claimer.receive(2, Fetched(ballot, 0, 0, (five,), 1, 0), 1.0)
    targets = [peer for peer, message in sync(claimer)[1] if isinstance(message, Claim)]
    assert targets == [3, 4, 5]
    assert claimer.role != COORDINATOR
    claimer.receive(4, Promise(ballot, 0, 0, 0), 1.0)
    assert claimer.role == COORDINATOR


def test_a_claim_is_given_up_when_the_donor_holds_less_than_it_promised() -> None:
    """Found by a simulated damage between the promise and the last piece: the missing entry was committed."""
    claimer = core(1)
    claimer.tick(1.0)
    claimer.receive(2, ProbeAnswer(ballot_of(1, 1), False, 0), 1.0)
    sync(claimer)
    claimer.receive(2, Promise(claimer.promised, B1, 2, 0), 1.0)
    sync(claimer)
    claimer.receive(2, Fetched(claimer.promised, 0, 0, (data(1, B1),), 1, 1), 1.0)
    assert claimer.role == FOLLOWER


def test_a_damaged_donor_serves_no_take_over() -> None:
    donor = core(2, image=_image([data(1, B1)], stamped=B1, promised=B2, damaged_from=2))
    sync(donor)
    donor.receive(1, Fetch(B2, 0, 0), 0.0)
    assert said(donor, Fetched) == []


def test_a_claimer_that_finds_itself_removed_gives_up() -> None:
    claimer = core(1)
    claimer.tick(1.0)
    claimer.receive(2, ProbeAnswer(ballot_of(1, 1), False, 0), 1.0)
    sync(claimer)
    without = Entry(1, B1, Kind.MEMBERS, control=encode_members(Members((2, 3))))
    claimer.receive(2, Promise(claimer.promised, B1, 1, 0), 1.0)
    sync(claimer)
    claimer.receive(2, Fetched(claimer.promised, 0, 0, (without,), 1, 0), 1.0)
    assert claimer.role == FOLLOWER


def test_a_single_peer_coordinates_itself() -> None:
    alone = core(1, voters=(1,))
    alone.tick(1.0)
    sync(alone)
    assert alone.role == COORDINATOR
    alone.append(Kind.DATA, count=1, write_id=b"w" * 16)
    sync(alone)
    assert alone.committed == 2


# ---------------------------------------------------------------------- membership


def test_membership_changes_come_one_at_a_time_and_after_an_entry_of_the_own_ballot() -> None:
    peer = coordinator()
    with pytest.raises(MembershipBusy, match="taken over"):
        peer.change_members(Members(VOTERS, (4,)))
    peer.receive(2, Ready(peer.promised, 1, True), 1.0)
    peer.change_members(Members(VOTERS, (4,)))
    with pytest.raises(MembershipBusy, match="not committed"):
        peer.change_members(Members(VOTERS, (4, 5)))


def test_a_learner_votes_only_after_it_has_caught_up() -> None:
    peer = coordinator()
    peer.receive(2, Ready(peer.promised, 1, True), 1.0)
    peer.change_members(Members(VOTERS, (4,)))
    sync(peer)
    peer.receive(2, Ready(peer.promised, 2, True), 1.0)
    with pytest.raises(MembershipBusy, match="caught up"):
        peer.change_members(Members((1, 2, 3, 4)))
    peer.receive(4, Ready(peer.promised, 2, True), 1.0)
    assert peer.change_members(Members((1, 2, 3, 4))) == 3


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (Members(()), "at least one voter"),
        (Members((1, 2, 3, 4)), "learner"),
        (Members((1,)), "one voter at a time"),
        (Members(VOTERS, (3,)), "twice"),
        (Members(VOTERS, tuple(range(4, 60))), "at most"),
    ],
)
def test_a_membership_that_does_not_follow_is_refused_by_name(wanted: Members, why: str) -> None:
    peer = coordinator()
    peer.receive(2, Ready(peer.promised, 1, True), 1.0)
    with pytest.raises(InvalidRequest, match=why):
        peer.change_members(wanted)
    assert peer.log.end == 1


def test_a_cut_takes_the_membership_entry_with_it() -> None:
    five = Entry(2, B1, Kind.MEMBERS, control=encode_members(Members((1, 2, 3, 4))))
    follower = core(3, image=_image([data(1, B1), five], stamped=B1, promised=B1))
    assert follower.members.voters == (1, 2, 3, 4)
    follower.receive(2, Enqueue(B2, 1, B1, (data(2, B2),), 2, 0), 0.0)
    assert follower.members.voters == VOTERS


def test_a_coordinator_that_removed_itself_changes_nothing_more() -> None:
    peer = coordinator()
    peer.receive(2, Ready(peer.promised, 1, True), 1.0)
    peer.change_members(Members((2, 3)))
    sync(peer)
    peer.receive(2, Ready(peer.promised, 2, True), 1.0)
    peer.receive(3, Ready(peer.promised, 2, True), 1.0)
    assert peer.committed == 2
    with pytest.raises(MembershipBusy, match="removed"):
        peer.change_members(Members((2, 3), (1,)))


def test_only_a_coordinator_changes_members() -> None:
    with pytest.raises(Offline):
        core(1).change_members(Members(VOTERS, (4,)))


def test_too_much_in_flight_is_refused() -> None:
    peer = coordinator()
    peer.tuning = Tuning(in_flight_entries=3)
    peer.append(Kind.DATA, count=1, write_id=b"1" * 16)
    peer.append(Kind.DATA, count=1, write_id=b"2" * 16)
    with pytest.raises(Offline, match="wait for a quorum"):
        peer.append(Kind.DATA, count=1, write_id=b"3" * 16)


def _image(entries: list[Entry], *, stamped: int, promised: int, damaged_from: int = 0) -> LaneImage:
    return LaneImage(
        promised=promised,
        stamped=stamped,
        snapshot=Snapshot(0, 0, VOTERS, (), b""),
        entries=entries,
        damaged_from=damaged_from,
    )
