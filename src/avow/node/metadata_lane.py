"""The metadata lane on one peer: the voters, the queues, the pub-sub lanes and where they end.

A cluster begins with a snapshot at position 1 and not with an empty log: otherwise a new peer, whose log is empty too,
would accept the founders' entries without the membership they start from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from avow.errors import Offline
from avow.node.facts import (
    EndDecided,
    Fact,
    LaneForgotten,
    LaneOpened,
    LaneOrphaned,
    LanesListed,
    LaneTrimmed,
    MembersChanged,
)
from avow.node.lane.metadata_machine import MetadataMachine, restored_metadata
from avow.node.lane.roles import LANE_SHIPPED, LaneRoles
from avow.node.lane.two_phase_lane import TwoPhaseLane
from avow.queue.commands import QueueCommand
from avow.queue.entry_outcome import Outcome
from avow.queue.metadata_state import MetadataState
from avow.replication.effects import LaneImage
from avow.replication.peers import Peers
from avow.replication.tuning import Tuning
from avow.replication.two_phase.core import TwoPhaseCore
from avow.replication.two_phase.state import Read
from avow.wire.messages import Entry, Snapshot
from avow.wire.versions import NEWEST

__all__ = [
    "FOUNDED_AT",
    "METADATA_LANE",
    "EndDecided",
    "Fact",
    "LaneForgotten",
    "LaneOpened",
    "LaneOrphaned",
    "LaneTrimmed",
    "LanesListed",
    "MembersChanged",
    "MetadataLane",
    "founding_snapshot",
]

METADATA_LANE: Final = 0
FOUNDED_AT: Final = 1  # the position of the snapshot a cluster begins with
FOUNDERS: Final = 2  # its origin: a ballot of round 0, which no coordinator can have


def founding_snapshot(
    voters: tuple[int, ...], queues: tuple[QueueCommand, ...] = (), *, level: int = NEWEST
) -> Snapshot:
    """The initial snapshot, which every founder of a cluster stores before its first start; the same on all of them."""
    state = MetadataState(voters=voters)
    state.level = level
    for queue in queues:
        state.catalog.perform(queue, state.lanes, state.voters)
    state.position = FOUNDED_AT
    return Snapshot(FOUNDED_AT, FOUNDERS, state.voters, (), state.snapshot())


class MetadataLane:
    def __init__(
        self,
        *,
        me: int,
        lane: int,
        image: LaneImage,
        rng: Callable[[], float],
        tuning: Tuning,
        now: float,
        snapshot_every: int = 0,
        read: Read | None = None,
        peers: Peers | None = None,
        roles: LaneRoles = LANE_SHIPPED,
    ) -> None:
        """It is never quiet: its heartbeats say which peers are alive, for all lanes."""
        self.core = core = TwoPhaseCore(
            me=me,
            lane=lane,
            image=image,
            rng=rng,
            tuning=tuning,
            now=now,
            read=read,
            peers=peers,
            may_be_quiet=False,
            roles=roles.core,
        )
        found = restored_metadata(image.snapshot.state if image.snapshot else b"")
        self.machine: MetadataMachine = roles.metadata(found, applied=core.log.base)
        self._lane = inner = TwoPhaseLane(core=core, machine=self.machine, snapshot_every=snapshot_every, roles=roles)
        # passed on unchanged
        self.receive, self.tick, self.persisted, self.drain = inner.receive, inner.tick, inner.persisted, inner.drain
        self.wake_at = inner.wake_at
        self.write, self.read, self.cancel, self.propose = inner.write, inner.read, inner.cancel, inner.propose
        self.disk_full, self.change_members = inner.disk_full, inner.change_members
        self.take_answers, self.takes = inner.replies.take_answers, inner.takes

    @property
    def state(self) -> MetadataState:
        return self.machine.state

    @property
    def applied(self) -> int:
        """The position up to which entries were applied."""
        return self.machine.applied

    @property
    def on_applied(self) -> Callable[[Entry, Outcome], None] | None:
        return self._lane.on_applied

    @on_applied.setter
    def on_applied(self, call: Callable[[Entry, Outcome], None] | None) -> None:
        self._lane.listen(call)

    @property
    def facts(self) -> list[Fact]:
        """Not taken yet."""
        return self.machine.facts

    def take_facts(self) -> list[Fact]:
        return self.machine.take_facts()

    def report_all(self) -> None:
        """Report the whole table as facts, for a new listener."""
        self.machine.report_all()

    def check_current(self, now: float) -> None:
        """Raises Offline while this peer may lag behind the metadata lane."""
        core = self.core
        if not core.live_coordinator(now):
            raise Offline(
                "this peer cannot reach the coordinator of the metadata lane; nothing was changed. Retry, or use "
                "another peer"
            )
        if core.log.origin(self.applied) != core.promised:  # a coordinator's first entry follows all it took over
            raise Offline(
                "the metadata lane has a new coordinator and this peer has not applied its first entry yet; nothing "
                "was changed. Retry"
            )
        if self.applied < max(core.cursor_seen, core.committed):
            raise Offline(
                f"this peer has applied {self.applied} of {core.cursor_seen} entries of the metadata lane; nothing "
                "was changed. Retry, or use another peer"
            )
