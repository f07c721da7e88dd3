"""A lane of a two-phase queue: versions, compare-and-append, staged writes with deadlines, three read levels.

It is a `TwoPhaseLane` with a `QueueMachine`. It adds what only queues have: entries by position and by version, reads
by version, and the trims and discards that the coordinator proposes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from avow.errors import InvalidRequest
from avow.limits import LOG_MEMORY_ENTRIES_MAX, LOG_MEMORY_SIZE_BYTES_MAX, STAGE_DEADLINE_S_MAX
from avow.node.answers import Done
from avow.node.backfill import HISTORY
from avow.node.lane.entries import LaneHistory
from avow.node.lane.queue_machine import QueueMachine
from avow.node.lane.roles import LANE_SHIPPED, LaneRoles
from avow.node.lane.two_phase_lane import TwoPhaseLane
from avow.queue.commands import RetentionRules
from avow.queue.entry_outcome import Outcome
from avow.queue.records import Bounds, StoredFile
from avow.queue.state import QueueState
from avow.queue.write_ids import Coverage
from avow.replication.effects import LaneImage
from avow.replication.peers import Peers
from avow.replication.tuning import Tuning
from avow.replication.two_phase.core import TwoPhaseCore
from avow.replication.two_phase.state import Read
from avow.wire.messages import Entry, Kind

__all__ = ["HISTORY", "QueueLane", "stage_deadline_ms"]

COVERAGE_SAMPLE_S: Final = 0.25  # resolution of the time since which no write id was forgotten
COVERAGE_SLACK_S: Final = 0.5  # a retry may have been in flight this long


class QueueLane:
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
        snapshot_bytes: int = 0,
        memory_entries: int = LOG_MEMORY_ENTRIES_MAX,
        memory_bytes: int = LOG_MEMORY_SIZE_BYTES_MAX,
        read: Read | None = None,
        history: LaneImage | None = None,
        read_history: Read | None = None,
        bounds: Bounds | None = None,
        coverage_sample_s: float = COVERAGE_SAMPLE_S,
        coverage_slack_s: float = COVERAGE_SLACK_S,
        peers: Peers | None = None,
        on_damage: Callable[[], None] | None = None,
        roles: LaneRoles = LANE_SHIPPED,
    ) -> None:
        """`bounds` applies to a new lane; a snapshot contains its own."""
        self.core = core = TwoPhaseCore(
            me=me,
            lane=lane,
            image=image,
            rng=rng,
            tuning=tuning,
            now=now,
            read=read,
            peers=peers,
            roles=roles.core,
        )
        self.machine: QueueMachine = roles.queue(
            core,
            snapshot=image.snapshot.state if image.snapshot else b"",
            bounds=bounds,
            coverage=Coverage(every_s=coverage_sample_s),
            coverage_slack_s=coverage_slack_s,
            history=partial(
                roles.history,
                core,
                image=history,
                read=read_history,
                main=read,
                missing_upto=image.unreadable_upto,
                on_damage=on_damage,
            ),
        )
        self.history: LaneHistory = self.machine.history
        self._lane = inner = TwoPhaseLane(
            core=core,
            machine=self.machine,
            snapshot_every=snapshot_every,
            snapshot_bytes=snapshot_bytes,
            memory_entries=memory_entries,
            memory_bytes=memory_bytes,
            roles=roles,
        )
        # passed on unchanged
        self.receive, self.tick, self.persisted, self.drain = inner.receive, inner.tick, inner.persisted, inner.drain
        self.wake_at = inner.wake_at
        self.write, self.read, self.cancel, self.abandon = inner.write, inner.read, inner.cancel, inner.abandon
        self.disk_full, self.change_members, self.propose = inner.disk_full, inner.change_members, inner.propose
        self.take_answers, self.takes = inner.replies.take_answers, inner.takes
        self.entries, self.read_entry, self.peek = self.history.entries, self.history.read_entry, self.history.peek

    @property
    def state(self) -> QueueState:
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

    # ------------------------------------------------------------------ reads by version

    def read_local(self, request: int) -> None:
        """Answers with what this peer has applied; may lag."""
        self._lane.replies.tell(request, Done(1, self.machine.visible_end))

    def read_at_least(self, request: int, version: int) -> None:
        """Answers once `version` is visible here: a reader sees its own writes, and never less than before."""
        self._lane.reads.read_at_least(request, version)

    @property
    def whole(self) -> bool:
        """Whether every message that may be read can be read here."""
        return self.history.whole

    def peek_version(self, version: int) -> tuple[Entry, int, bool, tuple[int, ...]] | None:
        """A message by its version id, committed or not: (entry, offset in it, committed, peers that stored it)."""
        found = self.machine.place_of(version)
        if found is None:
            return None
        peeked = self.peek(found[0])
        return None if peeked is None else (peeked[0], found[1], version <= self.state.end, peeked[2])

    # ------------------------------------------------------------------ proposed by the coordinator

    def propose_trim(self, files: Sequence[StoredFile], rules: RetentionRules, now_ms: int) -> bool:
        """Coordinator: append a TRIM if the rules ask for one; one at a time. `files` as storage lists them."""
        control = self.machine.trim_due(files, rules, now_ms)
        if control is None or not self.propose(Kind.TRIM, control, created_ms=now_ms):
            return False
        self.machine.trim_proposed(self.core.log.end)
        return True

    def discard_expired(self, now_ms: int) -> None:
        """Coordinator: append a DISCARD for each transaction that was not decided by its deadline."""
        for control in self.machine.discards_due(now_ms):
            self.propose(Kind.DISCARD, control, created_ms=now_ms)


def stage_deadline_ms(deadline_s: float, *, now_ms: int) -> int:
    """The time at which an undecided staged write is discarded. Raises InvalidRequest; call it where requests enter."""
    if not 0 < deadline_s <= STAGE_DEADLINE_S_MAX:
        raise InvalidRequest(
            f"a deadline must be more than 0 and at most {STAGE_DEADLINE_S_MAX:g} seconds, not {deadline_s:g}; "
            "nothing was staged"
        )
    return now_ms + int(deadline_s * 1000)
