"""Membership changes in single steps, from a lane's current members to the wanted ones; when a peer is ready or gone.

Replication adds or removes one voter at a time, and a new peer must have caught up before it votes. The order of steps
keeps as many copies as possible: first every missing peer becomes a learner, then learners that have caught up become
voters, then voters are removed. The coordinator removes itself last, because another coordinator must do what remains.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from avow.replication.membership import Members
from avow.replication.two_phase.core import COORDINATOR

if TYPE_CHECKING:
    from avow.node.lane.queue_lane import QueueLane
    from avow.node.metadata_lane import MetadataLane
    from avow.node.node import Node


class MembershipSteps:
    """Answers housekeeping's questions before it proposes a step."""

    def __init__(self, node: Node) -> None:
        self._node, self._behind_entries_max = node, node.pace.behind_entries_max

    def next_step(
        self, lane: MetadataLane | QueueLane, *, voters: Collection[int], learners: Collection[int]
    ) -> Members | None:
        """The membership to propose in a lane now; None: this peer cannot propose one, or there is nothing to do."""
        core = lane.core
        if core.role != COORDINATOR or not core.established or core.log.members_at > core.committed:
            return None

        def caught_up(peer: int) -> bool:
            progress = core.leadership.progress.get(peer)
            behind_max = self._behind_entries_max
            return progress is not None and progress.stamped and core.log.end - progress.match <= behind_max

        return next_members(core.members, voters=voters, learners=learners, me=core.me, caught_up=caught_up)

    def holds_everything(self) -> bool:
        """This peer is a member of every lane and has caught up, including the entries before its first snapshot."""
        node = self._node
        if node.queues.unopened:
            return False
        lanes: list[MetadataLane | QueueLane] = [node.metadata, *node.lanes.values()]
        for lane in lanes:
            core = lane.core
            if node.me not in core.members.everyone or core.repairing:
                return False
            if lane.applied < core.cursor_seen - self._behind_entries_max or not core.cursor_seen:
                return False
        return all(lane.whole for lane in node.lanes.values()) and all(held.caught_up for held in node.pubsub.values())

    def is_member(self, peer: int) -> bool:
        """Whether the peer is a member of any lane, as far as this peer knows. A removal counts once it is committed:
        until then another coordinator may undo it."""
        node = self._node
        log, committed = node.metadata.core.log, node.metadata.core.committed
        if peer in (*log.members.voters, *log.members_as_of(committed).voters):
            return True  # a learner of the metadata lane does not count: it stays one until it is gone
        cores = [lane.core for lane in node.lanes.values()]
        if any(core.committed < core.cursor_seen for core in cores):
            return True  # the membership in a copy that lags may be outdated
        logs = [(core.log, core.committed) for core in cores]
        return any(peer in (*log.members.everyone, *log.members_as_of(at).everyone) for log, at in logs)


def next_members(
    current: Members,
    *,
    voters: Collection[int],
    learners: Collection[int],
    me: int,
    caught_up: Callable[[int], bool],
) -> Members | None:
    """The next step; None: there is nothing to do, or a learner must catch up first."""
    listening = {*current.voters, *current.learners}
    missing = sorted(({*voters} | {*learners}) - listening)
    if missing:
        return Members(current.voters, (*current.learners, *missing))
    for peer in current.learners:
        if peer in voters and caught_up(peer):
            others = tuple(other for other in current.learners if other != peer)
            return Members((*current.voters, peer), others)
    if any(peer in voters for peer in current.learners):
        return None  # removing a voter before a learner has caught up would reduce the number of copies
    for peer in sorted(current.voters, key=lambda peer: peer == me):
        if peer not in voters and len(current.voters) > 1:
            listening_on = (*current.learners, peer) if peer in learners else current.learners
            return Members(tuple(other for other in current.voters if other != peer), listening_on)
    stay = tuple(peer for peer in current.learners if peer in learners)
    return Members(current.voters, stay) if stay != current.learners else None
