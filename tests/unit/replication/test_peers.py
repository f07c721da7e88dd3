"""What a peer knows of the others, for all its lanes."""

from __future__ import annotations

from avow.limits import CLAIMS_MAX
from avow.replication.peers import Peers
from avow.wire.versions import FIRST, NEWEST

FRESH_S = 0.25


def listening(*, until: float) -> Peers:
    """Peer 2 was heard at 10.0; this process ticked until then without a pause."""
    peers = Peers()
    peers.heard[2] = 10.0
    now = 10.0
    while now <= until:
        peers.refresh(now, fresh_s=FRESH_S)
        now += 0.02
    return peers


def test_a_peer_that_falls_silent_or_is_heard_again_is_reported_once() -> None:
    peers = listening(until=10.2)
    assert peers.fresh == {2}
    assert peers.refresh(10.26, fresh_s=FRESH_S)
    assert not peers.refresh(10.3, fresh_s=FRESH_S)
    peers.heard[2] = 10.31
    assert peers.refresh(10.32, fresh_s=FRESH_S)
    assert peers.fresh == {2}


def test_the_time_in_which_this_process_did_not_run_is_not_the_silence_of_others() -> None:
    peers = listening(until=10.1)
    assert not peers.refresh(13.1, fresh_s=FRESH_S)
    assert peers.fresh == {2}
    for tick in range(13):
        peers.refresh(13.12 + tick * 0.02, fresh_s=FRESH_S)
    assert peers.fresh == frozenset()


def test_a_new_run_is_reported_and_a_late_hello_of_an_older_one_changes_nothing() -> None:
    peers = Peers()
    assert not peers.met(2, run=3, version=NEWEST)
    assert not peers.met(2, run=3, version=NEWEST)
    assert peers.met(2, run=4, version=NEWEST)
    assert not peers.met(2, run=3, version=FIRST)
    assert (peers.runs[2], peers.versions[2]) == (4, NEWEST)


def test_lanes_are_quiet_if_every_peer_is_known_to_read_it() -> None:
    peers = Peers(level=FIRST)
    peers.met(2, run=1, version=NEWEST)
    assert not peers.read_quiet_lanes((2, 3))
    peers.raise_to(NEWEST)
    assert peers.read_quiet_lanes((2, 3))
    peers.met(3, run=1, version=FIRST)
    assert not peers.read_quiet_lanes((2, 3))


def test_the_number_of_lanes_that_claim_at_a_time_is_bounded() -> None:
    peers = Peers()
    peers.claiming.update(range(1, CLAIMS_MAX + 1))
    assert not peers.may_claim(1_000)
    assert peers.may_claim(7)
    peers.claiming.discard(7)
    assert peers.may_claim(1_000)
