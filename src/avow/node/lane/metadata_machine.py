"""The state machine of the metadata lane, and the facts that follow from its entries.

Entries of the metadata lane decide which pub-sub lanes exist: who opened one, who votes on it, where it ended. The
pub-sub queues need these facts in the order of the log and each at least once, in every one of these cases:

    entries applied one by one      a fact for each entry that changed something
    started from a snapshot         facts that describe the whole table, then one for each later entry
    installed another's snapshot    the same; it skips entries that were never applied here

So facts may be reported twice; the second time they change nothing. They wait in `facts` until they are taken.

MEMBERS is the only command that takes effect before it is committed: the replication core counts with the new voters as
soon as its log contains them, even if this state machine refuses the entry later. Therefore the state's condition (no
lane from before the last change is open) is checked first, and a change that would be refused is never appended.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from avow.errors import MembershipBusy
from avow.node.answers import Refusal
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
from avow.node.lane.requests import Write
from avow.queue.commands import LaneEndCommand, LaneTrimCommand, QueueCommand, decode_or_code
from avow.queue.entry_outcome import EarlyRefusal, Known, Outcome
from avow.queue.ledger import Writes
from avow.queue.metadata_state import MetadataState
from avow.replication.membership import Members
from avow.wire.messages import Entry, Kind

_ORPHANING: Final = frozenset({Kind.LANE_OPEN, Kind.MEMBERS})
_FORGETTING: Final = frozenset({Kind.TRIM, Kind.QUEUE})


class MetadataMachine:
    def __init__(self, state: MetadataState, *, applied: int) -> None:
        self.state, self.applied = state, applied
        self.facts: list[Fact] = self.all_facts()  # not taken yet
        self._changed_queues: list[str] = []  # names in entries that were applied, not taken yet

    @property
    def visible_end(self) -> int:
        return self.applied

    # ------------------------------------------------------------------ the state

    def apply(self, entry: Entry) -> Outcome:
        state, kind = self.state, entry.kind
        before = list(state.lanes.by_number) if kind in _FORGETTING else []
        outcome = state.apply(entry)
        self.applied = entry.position
        if kind == Kind.LANE_OPEN:
            self._tell_opening(outcome.first_version)
        elif kind == Kind.LANE_END:
            self._tell_end(entry)
        elif kind == Kind.MEMBERS:
            self.facts.append(MembersChanged(state.voters, state.learners))
        elif kind == Kind.TRIM:
            self._tell_trim(entry)
        elif kind == Kind.QUEUE:
            command = decode_or_code(kind, entry.control, metadata=True)
            self._changed_queues += [command.name] if isinstance(command, QueueCommand) else []
        self.facts += [LaneForgotten(number) for number in before if number not in state.lanes.by_number]
        if kind in _ORPHANING:
            self.facts += [LaneOrphaned(lane.number) for lane in state.orphans()]
        return outcome

    def snapshot(self) -> bytes:
        return self.state.snapshot()

    def restore(self, snapshot: bytes, position: int) -> None:
        """Replaces the pending facts too: the facts of the new state include them."""
        self.state, self.applied = restored_metadata(snapshot), position
        self.report_all()

    def position_of(self, snapshot: bytes) -> int:
        return MetadataState.restore(snapshot).position

    # ------------------------------------------------------------------ facts

    def take_facts(self) -> list[Fact]:
        taken, self.facts = self.facts, []
        return taken

    def take_changed_queues(self) -> list[str]:
        """The names of queues that entries have created, changed or deleted since the last call. A snapshot replaces
        the state itself."""
        taken, self._changed_queues = self._changed_queues, []
        return taken

    def report_all(self) -> None:
        self.facts = self.all_facts()

    def all_facts(self) -> list[Fact]:
        """The whole table as facts, for a new listener."""
        facts: list[Fact] = [MembersChanged(self.state.voters, self.state.learners)]
        for lane in self.state.lanes.by_number.values():
            facts.append(LaneOpened(lane))
            if lane.trimmed_to:
                facts.append(LaneTrimmed(lane.number, lane.trimmed_to))
            if lane.orphaned:
                facts.append(LaneOrphaned(lane.number))
            if lane.ended:
                facts.append(EndDecided(lane.number, lane.end))
        numbers = {
            first for queue in self.state.queues() for first in range(queue.first_lane, queue.first_lane + queue.lanes)
        }
        facts.append(LanesListed(self.state.lanes.next_number, frozenset(numbers.union(self.state.lanes.by_number))))
        return facts

    def _tell_opening(self, number: int) -> None:
        lane = self.state.lanes.by_number.get(number)
        if lane is not None:
            self.facts.append(LaneOpened(lane))

    def _tell_end(self, entry: Entry) -> None:
        """Report the end in force of the lane that the entry names, even if this proposal was refused."""
        command = decode_or_code(Kind.LANE_END, entry.control, metadata=True)
        lane = self.state.lanes.by_number.get(command.lane) if isinstance(command, LaneEndCommand) else None
        if lane is not None and lane.ended:
            self.facts.append(EndDecided(lane.number, lane.end))

    def _tell_trim(self, entry: Entry) -> None:
        command = decode_or_code(Kind.TRIM, entry.control, metadata=True)
        lane = self.state.lanes.by_number.get(command.lane) if isinstance(command, LaneTrimCommand) else None
        if lane is not None and lane.trimmed_to:
            self.facts.append(LaneTrimmed(lane.number, lane.trimmed_to))

    # ------------------------------------------------------------------ while this peer coordinates

    def refuse_members(self, current: Members, wanted: Members) -> Refusal | None:
        """Voters cannot change while a lane of an earlier membership is open."""
        if set(wanted.voters) == set(current.voters) or not (busy := self.state.busy_lanes()):
            return None
        reason = f"lanes {busy} are older than the last change of voters and must end first; nothing was changed. Retry"
        return Refusal(MembershipBusy.code, reason=reason)

    def check_write(self, write: Write) -> Known | EarlyRefusal | None:  # noqa: ARG002
        """Every command is appended; the answer is its outcome."""
        return None

    def would_know(self, write: Write, now: float) -> bool:  # noqa: ARG002
        return True

    # ------------------------------------------------------------------ what only a queue's lane has

    def handlers(self) -> dict[type, Callable[..., None]]:
        return {}

    def tick(self, now: float) -> None:
        """The metadata lane's state does not depend on time."""

    def wake_at(self) -> float:
        return inf

    def snapshot_taken(self) -> None:
        """Clients never read these entries, so storage decides which ones to keep."""

    def outcome_of(self, write_id: bytes) -> Outcome | None:  # noqa: ARG002
        """Entries of the metadata lane are never merged."""
        return None

    def lead(self, uncommitted: tuple[Entry, ...] | None) -> None:
        """Entries in flight are not tracked."""

    def track(self, entry: Entry, writes: Writes = ()) -> None:
        """Entries in flight are not tracked."""


def restored_metadata(snapshot: bytes) -> MetadataState:
    """An empty snapshot gives a new state."""
    return MetadataState.restore(snapshot) if snapshot else MetadataState()
