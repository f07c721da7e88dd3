"""Proposals of a pub-sub queue to the metadata lane: when they are repeated, and when not."""

from __future__ import annotations

from avow.errors import Offline
from avow.node.answers import LOST, Done, Refusal
from avow.node.pubsub.proposals import Proposal, Proposals
from avow.replication.tuning import Tuning
from avow.wire.messages import Kind

TUNING = Tuning()


def wanted() -> Proposals:
    proposals = Proposals(TUNING, control=lambda proposal: b"%d" % proposal.number)
    proposals.want(Proposal(Kind.LANE_END, number=7, end=3), 0.0)
    return proposals


def asked(proposals: Proposals, now: float) -> list[int]:
    """The requests that are made by then."""
    proposals.tick(now)
    return [request for request, _, _ in proposals.take()]


def test_a_proposal_that_may_be_lost_is_repeated() -> None:
    proposals = wanted()
    (first,) = asked(proposals, 0.0)
    proposals.on_answer(first, LOST, 0.0)
    assert asked(proposals, TUNING.owner_dead_after_s / 2) == []
    assert len(asked(proposals, TUNING.owner_dead_after_s)) == 1


def test_a_proposal_that_nobody_could_accept_is_repeated_soon() -> None:
    proposals = wanted()
    (first,) = asked(proposals, 0.0)
    proposals.on_answer(first, Refusal(Offline.code), 0.0)
    assert len(asked(proposals, 2 * TUNING.heartbeat_interval_s)) == 1


def test_a_proposal_in_flight_is_rarely_repeated() -> None:
    """Found by mixed seed 5201: a metadata lane filled with repetitions faster than it committed them."""
    proposals = wanted()
    (first,) = asked(proposals, 0.0)
    assert asked(proposals, 9 * TUNING.owner_dead_after_s) == []
    proposals.on_answer(first, Done(1, 1), 9 * TUNING.owner_dead_after_s)
    assert asked(proposals, 18 * TUNING.owner_dead_after_s) == []
    assert len(asked(proposals, 19 * TUNING.owner_dead_after_s)) == 1
    proposals.withdraw(Kind.LANE_END, 7)
    assert proposals.names() == []
