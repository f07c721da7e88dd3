"""The next single step from the members a lane has to those it should have.

Replication allows one voter to come or go at a time, and a newcomer must have caught up before it votes. The order of
steps keeps the lane as safe as it can be on the way: whoever is missing begins to listen, whoever has caught up begins
to vote, and only then does somebody leave; the coordinator itself leaves last, because after that another must do the
rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from avow.replication.membership import Members


def next_members(
    current: Members,
    *,
    voters: Collection[int],
    learners: Collection[int],
    me: int,
    caught_up: Callable[[int], bool],
) -> Members | None:
    """None: nothing to do, or nothing yet."""
    listening = {*current.voters, *current.learners}
    missing = sorted(({*voters} | {*learners}) - listening)
    if missing:
        return Members(current.voters, (*current.learners, *missing))
    for peer in current.learners:
        if peer in voters and caught_up(peer):
            others = tuple(other for other in current.learners if other != peer)
            return Members((*current.voters, peer), others)
    if any(peer in voters for peer in current.learners):
        return None  # wait: removing somebody first would leave fewer copies than there could be
    for peer in sorted(current.voters, key=lambda peer: peer == me):
        if peer not in voters and len(current.voters) > 1:
            listening_on = (*current.learners, peer) if peer in learners else current.learners
            return Members(tuple(other for other in current.voters if other != peer), listening_on)
    stay = tuple(peer for peer in current.learners if peer in learners)
    return Members(current.voters, stay) if stay != current.learners else None
