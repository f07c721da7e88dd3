"""Claims and membership of the two-phase core."""

from __future__ import annotations

import pytest
from tests.unit.replication.two_phase_hand import B1, B2, B3, VOTERS, coordinator, core, data, image_of, sent_by, sync

from avow.errors import InvalidRequest, MembershipBusy, Offline
from avow.ids import REPAIRING, ballot_of
from avow.replication.membership import Members, encode_members
from avow.replication.tuning import Tuning
from avow.replication.two_phase.core import COORDINATOR, FOLLOWER, TwoPhaseCore
from avow.replication.two_phase.rules import Rules
from avow.wire.messages import (
    Claim,
    Enqueue,
    Entry,
    Fetch,
    Fetched,
    Install,
    Kind,
    Nack,
    ProbeAnswer,
    Promise,
    Ready,
    Snapshot,
)

# ---------------------------------------------------------------------- claims


def claiming() -> TwoPhaseCore:
    """Peer 1 of three has promised itself its ballot, synced, and asked the others."""
    peer = core(1)
    peer.tick(1.0)
    peer.receive(2, ProbeAnswer(ballot_of(1, 1), False, 0), 1.0)
    sync(peer)
    return peer


def test_a_promise_of_a_damaged_log_does_not_count_for_the_quorum() -> None:
    claimer = claiming()
    claimer.receive(3, Promise(claimer.promised, REPAIRING, 9, 3), 1.0)
    assert claimer.role != COORDINATOR
    claimer.receive(2, Promise(claimer.promised, 0, 0, 0), 1.0)
    assert claimer.role == COORDINATOR


def test_a_claim_waits_for_its_own_promise_to_be_synced() -> None:
    claimer = core(1)
    claimer.tick(1.0)
    claimer.receive(2, ProbeAnswer(ballot_of(1, 1), False, 0), 1.0)
    claimer.receive(2, Promise(claimer.promised, 0, 0, 0), 1.0)
    claimer.receive(3, Promise(claimer.promised, 0, 0, 0), 1.0)
    assert claimer.role != COORDINATOR
    sync(claimer)
    assert claimer.role == COORDINATOR


def test_the_freshest_log_has_the_latest_stamp_and_then_the_greatest_length() -> None:
    rules = Rules()
    mine = (B1, 9)
    assert rules.donor({1: mine, 2: (B2, 3)}, me=1, ballot=B3, freshness=mine) == 2
    assert rules.donor({1: mine, 2: (B1, 10)}, me=1, ballot=B3, freshness=mine) == 2
    assert rules.donor({1: mine, 2: mine}, me=1, ballot=B3, freshness=mine) == 0
    assert rules.donor({1: mine, 2: (B2, 3)}, me=1, ballot=B3, freshness=(B2, 3)) == 0  # adopted already


def test_an_adopted_log_that_names_more_voters_asks_for_their_promises_too() -> None:
    """Otherwise a claimer with an old log could coordinate five peers on the word of two."""
    claimer = claiming()
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


def test_a_claim_is_abandoned_when_the_donor_holds_less_than_it_promised() -> None:
    """Found by a simulated damage between the promise and the last piece: the missing entry was committed."""
    claimer = claiming()
    claimer.receive(2, Promise(claimer.promised, B1, 2, 0), 1.0)
    sync(claimer)
    claimer.receive(2, Fetched(claimer.promised, 0, 0, (data(1, B1),), 1, 1), 1.0)
    assert claimer.role == FOLLOWER


def test_a_snapshot_for_an_abandoned_claim_gives_no_stamp() -> None:
    """Found by a simulated seed: the donor's answer came after a Nack and was mistaken for a coordinator's."""
    claimer = claiming()
    ballot = claimer.promised
    claimer.receive(2, Promise(ballot, B1, 9, 0), 1.0)
    claimer.receive(3, Nack(ballot, B3), 1.0)
    assert claimer.role == FOLLOWER
    sync(claimer)
    claimer.receive(2, Install(ballot, Snapshot(8, B1, VOTERS, (), b"state"), 0, 8), 1.0)
    assert sent_by(claimer, Ready) == []
    assert claimer.state.stamped == 0


def test_a_claimant_that_is_far_behind_continues_from_the_donors_snapshot() -> None:
    claimer = claiming()
    ballot = claimer.promised
    claimer.receive(2, Promise(ballot, B1, 9, 0), 1.0)
    sync(claimer)
    claimer.receive(2, Install(ballot, Snapshot(8, B1, VOTERS, (), b"state"), 0, 8), 1.0)
    assert sent_by(claimer, Fetch) == [Fetch(ballot, 8, B1)]
    claimer.receive(2, Fetched(ballot, 8, B1, (data(9, B1),), 9, 8), 1.0)
    assert claimer.role == COORDINATOR
    assert claimer.leadership.takeover_end == 9


def test_a_snapshot_is_acknowledged_with_exactly_its_position() -> None:
    """A replaced coordinator may not know that later entries are committed."""
    follower = core(3)
    entries = tuple(data(position, B2) for position in range(1, 6))
    follower.receive(2, Fetched(0, 0, 0, entries, 5, 5), 0.0)
    sync(follower)
    assert follower.committed == 5
    follower.receive(1, Install(B1, Snapshot(2, B2, VOTERS, (), b"state"), 2, 2), 0.0)
    assert sent_by(follower, Ready) == [Ready(B1, 2, True)]
    assert follower.log.end == 5


def test_a_damaged_donor_serves_no_take_over() -> None:
    donor = core(2, image=image_of([data(1, B1)], stamped=B1, promised=B2, damaged_from=2))
    sync(donor)
    donor.receive(1, Fetch(B2, 0, 0), 0.0)
    assert sent_by(donor, Fetched) == []


def test_a_claimant_that_finds_itself_removed_gives_up() -> None:
    claimer = claiming()
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
    alone.leadership.append(Kind.DATA, count=1, write_id=b"w" * 16)
    sync(alone)
    assert alone.committed == 2


# ---------------------------------------------------------------------- membership


def test_membership_changes_are_serial_and_follow_an_entry_of_the_own_ballot() -> None:
    peer = coordinator()
    with pytest.raises(MembershipBusy, match="coordinator is new"):
        peer.leadership.change_members(Members(VOTERS, (4,)))
    peer.receive(2, Ready(peer.promised, 1, True), 1.0)
    peer.leadership.change_members(Members(VOTERS, (4,)))
    with pytest.raises(MembershipBusy, match="not committed"):
        peer.leadership.change_members(Members(VOTERS, (4, 5)))


def test_a_learner_votes_only_after_it_has_caught_up() -> None:
    peer = coordinator()
    peer.receive(2, Ready(peer.promised, 1, True), 1.0)
    peer.leadership.change_members(Members(VOTERS, (4,)))
    sync(peer)
    peer.receive(2, Ready(peer.promised, 2, True), 1.0)
    with pytest.raises(MembershipBusy, match="caught up"):
        peer.leadership.change_members(Members((1, 2, 3, 4)))
    peer.receive(4, Ready(peer.promised, 2, True), 1.0)
    assert peer.leadership.change_members(Members((1, 2, 3, 4))) == 3


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (Members(()), "at least one voter"),
        (Members((1, 2, 3, 4)), "learner"),
        (Members((1,)), "only one at a time"),
        (Members(VOTERS, (3,)), "twice"),
        (Members(VOTERS, tuple(range(4, 60))), "at most"),
    ],
)
def test_an_invalid_membership_change_is_refused_by_name(wanted: Members, why: str) -> None:
    peer = coordinator()
    peer.receive(2, Ready(peer.promised, 1, True), 1.0)
    with pytest.raises(InvalidRequest, match=why):
        peer.leadership.change_members(wanted)
    assert peer.log.end == 1


def test_a_cut_undoes_a_membership_entry() -> None:
    five = Entry(2, B1, Kind.MEMBERS, control=encode_members(Members((1, 2, 3, 4))))
    follower = core(3, image=image_of([data(1, B1), five], stamped=B1, promised=B1))
    assert follower.members.voters == (1, 2, 3, 4)
    follower.receive(2, Enqueue(B2, 1, B1, (data(2, B2),), 2, 0), 0.0)
    assert follower.members.voters == VOTERS


def test_a_coordinator_that_removed_itself_makes_no_more_changes() -> None:
    peer = coordinator()
    peer.receive(2, Ready(peer.promised, 1, True), 1.0)
    peer.leadership.change_members(Members((2, 3)))
    sync(peer)
    peer.receive(2, Ready(peer.promised, 2, True), 1.0)
    peer.receive(3, Ready(peer.promised, 2, True), 1.0)
    assert peer.committed == 2
    with pytest.raises(MembershipBusy, match="removed"):
        peer.leadership.change_members(Members((2, 3), (1,)))


def test_only_a_coordinator_changes_members() -> None:
    with pytest.raises(Offline):
        core(1).leadership.change_members(Members(VOTERS, (4,)))


def test_too_much_in_flight_is_refused() -> None:
    peer = coordinator(tuning=Tuning(in_flight_entries=3))
    peer.leadership.append(Kind.DATA, count=1, write_id=b"1" * 16)
    peer.leadership.append(Kind.DATA, count=1, write_id=b"2" * 16)
    with pytest.raises(Offline, match="wait for a quorum"):
        peer.leadership.append(Kind.DATA, count=1, write_id=b"3" * 16)
