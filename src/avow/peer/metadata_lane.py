"""The metadata lane on one peer, and how others on that peer learn what it decided.

Pub-sub lanes exist because entries here say so: who opened one, who votes on it, where it ended. Whoever runs those
lanes must hear of these facts in the order of the log, each of them at least once, however this peer came to know them:

    applied one by one        a fact for each entry that changed something
    started from a snapshot   the facts that describe the whole table, then the entries that follow
    given another's snapshot  the same again; it jumped over entries that were never applied here

So facts may be told twice, and mean nothing the second time. They wait in `facts` until they are taken.

A MEMBERS entry is the one command that acts before it is committed: the replication core counts with the new voters as
soon as its log holds them, whatever this state machine concludes later. The state's own condition (no lane from before
the last change is open) is therefore asked here first, and a change that would be refused is never appended.

A cluster begins with a snapshot at position 1 and not with an empty log: a newcomer's log is empty too, and it would
otherwise take the founders' entries without the membership they start from.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct

from avow.errors import MembershipBusy, Offline
from avow.peer.answers import Refusal
from avow.peer.lane import TwoPhaseLane
from avow.queue.commands import LaneEndCommand, LaneTrimCommand, QueueCommand, decode_or_code
from avow.queue.lane_table import Lane
from avow.queue.metadata import MetadataState
from avow.queue.outcomes import Outcome
from avow.replication.membership import Members
from avow.replication.two_phase.core import COORDINATOR
from avow.wire.messages import Entry, Kind, Snapshot

METADATA_LANE: Final = 0
FOUNDED_AT: Final = 1  # the position of the snapshot a cluster begins with
FOUNDERS: Final = 2  # its origin: a ballot of round 0, which no coordinator can have


class LaneOpened(Struct, frozen=True, gc=False):
    lane: Lane


class LaneOrphaned(Struct, frozen=True, gc=False):
    number: int


class EndDecided(Struct, frozen=True, gc=False):
    number: int
    end: int


class LaneTrimmed(Struct, frozen=True, gc=False):
    """Versions up to and including this one were removed."""

    number: int
    upto_version: int


class LaneForgotten(Struct, frozen=True, gc=False):
    """Trimmed to its end, or its queue was deleted: nobody reads it again, and nobody needs to end it."""

    number: int


class MembersChanged(Struct, frozen=True, gc=False):
    voters: tuple[int, ...]
    learners: tuple[int, ...]


class TableTold(Struct, frozen=True):
    """Every lane was told just before this. A number below `next_number` that is not among `numbers` (of lanes of
    either strategy, and of pub-sub queues) was forgotten at some time."""

    next_number: int
    numbers: frozenset[int]

    def forgets(self, number: int) -> bool:
        return number < self.next_number and number not in self.numbers


Fact: TypeAlias = LaneOpened | LaneOrphaned | EndDecided | LaneTrimmed | LaneForgotten | MembersChanged | TableTold

_ORPHANING: Final = frozenset({Kind.LANE_OPEN, Kind.MEMBERS})
_FORGETTING: Final = frozenset({Kind.TRIM, Kind.QUEUE})


def founding_snapshot(voters: tuple[int, ...], queues: tuple[QueueCommand, ...] = ()) -> Snapshot:
    """What every founder of a cluster stores before its first start; equal on all of them."""
    state = MetadataState(voters=voters)
    for queue in queues:
        state.catalog.perform(queue, state.lanes, state.voters)
    state.position = FOUNDED_AT
    return Snapshot(FOUNDED_AT, FOUNDERS, state.voters, (), state.snapshot())


class TellingState(MetadataState):
    """The metadata state, and the facts that were not taken yet."""

    facts: list[Fact]

    def apply(self, entry: Entry) -> Outcome:
        kind = entry.kind
        before = list(self.lanes.by_number) if kind in _FORGETTING else []
        outcome = super().apply(entry)
        if kind == Kind.LANE_OPEN:
            self._tell_opening(outcome.first_version)
        elif kind == Kind.LANE_END:
            self._tell_end(entry)
        elif kind == Kind.MEMBERS:
            self.facts.append(MembersChanged(self.voters, self.learners))
        elif kind == Kind.TRIM:
            self._tell_trim(entry)
        self.facts += [LaneForgotten(number) for number in before if number not in self.lanes.by_number]
        if kind in _ORPHANING:
            self.facts += [LaneOrphaned(lane.number) for lane in self.orphans()]
        return outcome

    def all_facts(self) -> list[Fact]:
        """The whole table as facts, for whoever begins to listen."""
        facts: list[Fact] = [MembersChanged(self.voters, self.learners)]
        for lane in self.lanes.by_number.values():
            facts.append(LaneOpened(lane))
            if lane.trimmed_to:
                facts.append(LaneTrimmed(lane.number, lane.trimmed_to))
            if lane.orphaned:
                facts.append(LaneOrphaned(lane.number))
            if lane.ended:
                facts.append(EndDecided(lane.number, lane.end))
        numbers = {
            first for queue in self.queues() for first in range(queue.first_lane, queue.first_lane + queue.lanes)
        }
        facts.append(TableTold(self.lanes.next_number, frozenset(numbers.union(self.lanes.by_number))))
        return facts

    def tell_all(self) -> None:
        self.facts = self.all_facts()

    def _tell_opening(self, number: int) -> None:
        lane = self.lanes.by_number.get(number)
        if lane is not None:
            self.facts.append(LaneOpened(lane))

    def _tell_end(self, entry: Entry) -> None:
        """Of the lane it names, whatever became of this proposal: the end that holds."""
        command = decode_or_code(Kind.LANE_END, entry.control, metadata=True)
        lane = self.lanes.by_number.get(command.lane) if isinstance(command, LaneEndCommand) else None
        if lane is not None and lane.ended:
            self.facts.append(EndDecided(lane.number, lane.end))

    def _tell_trim(self, entry: Entry) -> None:
        command = decode_or_code(Kind.TRIM, entry.control, metadata=True)
        lane = self.lanes.by_number.get(command.lane) if isinstance(command, LaneTrimCommand) else None
        if lane is not None and lane.trimmed_to:
            self.facts.append(LaneTrimmed(lane.number, lane.trimmed_to))


class MetadataLane(TwoPhaseLane):
    state: TellingState

    def check_current(self, now: float) -> None:
        """Raises Offline while this peer may not know yet what the metadata lane has decided."""
        core = self.core
        if not core.live_coordinator(now):
            raise Offline("this peer hears no coordinator of the metadata lane; it is not part of a quorum now")
        if core.log.origin(self.applied) != core.promised:  # a coordinator's first entry follows all it took over
            raise Offline("this peer has applied nothing yet of the metadata lane's present coordinator")
        if self.applied < max(core.cursor_seen, core.committed):
            raise Offline(
                f"this peer is catching up: {self.applied} of {core.cursor_seen} entries of the metadata lane"
            )

    def take_facts(self) -> list[Fact]:
        state = self.state
        taken, state.facts = state.facts, []
        return taken

    def change_members(self, request: int, wanted: Members) -> None:
        """Coordinator only. Refused before anything is appended while a lane of an earlier membership is open."""
        state = self.state
        changes_voters = set(wanted.voters) != set(self.core.members.voters)
        if self.core.role == COORDINATOR and changes_voters and (busy := state.busy_lanes()):
            reason = f"lanes {busy} are older than the last change of voters and must end first; nothing was changed"
            self.answers.append((request, Refusal(MembershipBusy.code, reason=reason)))
            return
        super().change_members(request, wanted)

    def _restore(self, snapshot: bytes) -> None:
        """Facts that were not taken from the former state are all contained in what the new one tells."""
        self.state = TellingState.restore(snapshot) if snapshot else TellingState()  # type: ignore[assignment]
        self.state.tell_all()
