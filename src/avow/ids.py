"""Ballots and peer numbers, and their text form.

A ballot names a coordinator: the round in the high bits, the peer in the low 16 bits. Two ballots are compared as
integers, and no two peers ever claim with the same ballot. 0 means "no ballot yet".
"""

from __future__ import annotations

from typing import Final, NewType

Ballot = NewType("Ballot", int)
Peer = int

_PEER_BITS: Final = 16
_PEER_MASK: Final = (1 << _PEER_BITS) - 1


def ballot_of(round_: int, peer: Peer) -> Ballot:
    return Ballot(round_ << _PEER_BITS | peer)


def round_of(ballot: int) -> int:
    return ballot >> _PEER_BITS


def peer_of(ballot: int) -> Peer:
    return ballot & _PEER_MASK


def ballot_text(ballot: int) -> str:
    """`3.2` is round 3 of peer 2, `-` no ballot, `repairing` the stamp of a log that lost entries."""
    if ballot == REPAIRING:
        return "repairing"
    return f"{round_of(ballot)}.{peer_of(ballot)}" if ballot else "-"


#: A stamp that no coordinator can have (round 0): the log lost entries for which it may have been counted. The peer
#: reports itself as damaged and keeps this stamp until a coordinator has sent it everything again.
REPAIRING: Final = Ballot(1)
