"""A pub-sub queue on one peer: its lanes, the facts of the metadata lane about them, and this peer's proposals to it.

    next run durable ──► LANE_OPEN committed ──► own lane open ──► ... fenced by others, or voters changed
           ▲                                                                       │
           └─────────────── `wants_run`, or the clean end decided ◄────────────────┘

A run number belongs to the peer and not to the queue: a lane opened under a later run orphans every older lane of the
peer, in all its queues. So a queue only requests the next run (`wants_run`); the node makes the number durable and then
calls `new_run` on all queues.

Decisions that need agreement (a lane for this run, the end of a lane this peer settled) are proposed to the metadata
lane (`proposals`). A lane that the metadata lane removed is dropped from memory and disk.

Inputs are passed to the core and the roles, and the core's notifications to the roles that need them: `writes`,
`reads`, `retention` (memory and disk), `history` (damaged entries). `lanes` holds the indexes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import inf
from typing import Final

from avow.errors import InvalidRequest
from avow.node.answers import Answer
from avow.node.backfill import HISTORY
from avow.node.lane.two_phase_lane import Write
from avow.node.metadata_lane import (
    EndDecided,
    Fact,
    LaneForgotten,
    LaneOpened,
    LaneOrphaned,
    LanesListed,
    LaneTrimmed,
    MembersChanged,
)
from avow.node.pubsub.history_repair import HistoryRepair
from avow.node.pubsub.lane_index import LaneIndex
from avow.node.pubsub.lanes import QueueLanes
from avow.node.pubsub.proposals import Proposal, Proposals
from avow.node.pubsub.reads import Reads
from avow.node.pubsub.retention import QueueRetention
from avow.node.pubsub.roles import QueueRoles
from avow.node.pubsub.rules import QueueRules
from avow.node.pubsub.writes import UNKNOWN, Writes
from avow.node.records import PubSubBounds
from avow.queue.commands import LaneEndCommand, LaneOpenCommand, RetentionRules, encode
from avow.queue.records import Lane, StoredFile, VectorCursor, VisibleRange
from avow.replication.durable import LaneImages, Synced
from avow.replication.effects import Effects, Persist
from avow.replication.pubsub.core import PubSubCore
from avow.replication.pubsub.retention import emptied
from avow.replication.pubsub.state import Read
from avow.replication.tuning import Tuning
from avow.wire.messages import Entry, Fence, Kind, LaneFetched, Message

BEHIND_ENTRIES_MAX: Final = 256  # a copy this close to the longest one counts as caught up
SHIPPED: Final = QueueRoles()


class PubSubQueue:
    """Driven like a core: inputs are calls; `drain`, `take_proposals` and `take_answers` are the output.

    `incarnation` is durable. `images` is everything on disk of lanes that are not open yet, of any queue: those of this
    queue are taken out when the metadata lane opens them, perhaps long after the start. `route` is the number in frames
    about the queue. `heard`: the time of each peer's last message, kept up to date by the node for all its lanes;
    without it, the queue counts only its own messages.
    """

    def __init__(
        self,
        *,
        me: int,
        queue: str,
        incarnation: int,
        images: LaneImages,
        rng: Callable[[], float],
        tuning: Tuning,
        now: float,
        read: Read | None = None,
        bounds: PubSubBounds | None = None,
        route: int = 0,
        heard: dict[int, float] | None = None,
        roles: QueueRoles = SHIPPED,
    ) -> None:
        self.me, self.queue, self.incarnation, self.route = me, queue, incarnation, route
        self._images = images
        self.core: PubSubCore = roles.core(
            me=me,
            incarnation=incarnation,
            images=images,
            rng=rng,
            tuning=tuning,
            now=now,
            read=read,
            heard=heard,
            roles=roles.pubsub,
        )
        self._answers: list[tuple[int, Answer]] = []
        self.on_started: Callable[[int, int, int], None] | None = None  # (lane, position, version): it begins there
        self.on_readable: Callable[[int, int, list[Entry]], None] | None = None  # (lane, after, entries)
        self.on_accepted: Callable[[int, int], None] | None = None  # (own lane, position)
        self.wants_run = False  # a lane of this run was lost: the node begins the next run
        self._now = now
        self._voters: tuple[int, ...] = ()
        bounds = bounds or PubSubBounds()
        self.takes = self.core.takes
        self._rules: QueueRules = roles.rules()
        self._lanes = QueueLanes(self.core, bounds)
        self.readable = self._lanes.readable  # lane -> last readable version
        self._proposals = Proposals(tuning, control=self._control)
        self._history: HistoryRepair = roles.history(self.core, self._lanes, read)
        self._retention: QueueRetention = roles.retention(
            self.core, self._lanes, self._history, bounds, forgets=read is not None
        )
        self._writes: Writes = roles.writes(self.core, self._lanes, self._rules, self._answer)
        self._reads: Reads = roles.reads(self.core, self._lanes, self._history, self._answer)
        self.core.retention.ask_for_starts(self._start_of)
        self.core.retention.tell_unreadable(self._history.damaged)

    def _answer(self, request: int, answer: Answer) -> None:
        self._answers.append((request, answer))

    def take_answers(self) -> list[tuple[int, Answer]]:
        answers = self._answers
        if answers:
            self._answers = []
        return answers

    def _start_of(self, number: int) -> tuple[int, bytes] | None:
        index = self._lanes.by_number.get(number)
        return self._rules.start_of(index) if index is not None else None

    # ------------------------------------------------------------------ inputs

    def receive(self, source: int, message: Message, now: float) -> None:
        self._now = now
        if type(message) is Fence and self._lanes.is_forgotten(message.lane):
            return  # its sender lags; the lane was removed
        if type(message) is LaneFetched and self._history.take(message, now):
            return
        self.core.receive(source, message, now)
        if self.core.notifications.any:
            self._take_notifications()

    def tick(self, now: float) -> None:
        self._now = now
        self.core.tick(now)
        self._check_own_lane()
        if self.core.notifications.any:
            self._take_notifications()
        self._proposals.tick(now)
        self._history.tick(now)

    def wake_at(self) -> float:
        if self.wants_run or self._proposals.untaken:
            return -inf  # the node takes them at the next tick
        beat_at = self.core.wake_at()
        return min(beat_at, self._proposals.wake_at(beat_at))

    def persisted(self, proof: Synced) -> None:
        self.core.persisted(proof, self._now)
        if self.core.notifications.any:
            self._take_notifications()

    def disk_full(self, *, full: bool) -> None:
        self.core.disk_full(full=full)

    def drain(self) -> Effects | None:
        if self._writes.held.writes and not self.core.own_unsynced:
            self._writes.append_held(self._now)
            if self.core.notifications.any:
                self._take_notifications()
        return self.core.drain()

    def new_run(self, incarnation: int) -> None:
        """The next run of the peer is durable: the lanes of the previous run are orphans, in every queue."""
        self._proposals.withdraw(Kind.LANE_OPEN, self.incarnation)
        self.incarnation = incarnation
        self.wants_run = False
        self.core.new_run(incarnation)

    # ------------------------------------------------------------------ facts of the metadata lane

    def learn(self, facts: Sequence[Fact], voters: tuple[int, ...], now: float) -> None:
        """Apply facts in the order of the log; `voters` are those after them. Facts of other queues are ignored."""
        self._now, self._voters = now, voters
        held = self._lanes.by_number
        for fact in facts:
            if isinstance(fact, LaneOpened):
                self._lane_opened(fact.lane)
            elif isinstance(fact, MembersChanged):
                self.core.members(fact.voters, fact.learners)
            elif isinstance(fact, LanesListed):
                for number in [number for number in held if fact.forgets(number)]:
                    self._drop(number)
                for number in [number for number in self.core.lanes.by_number if fact.forgets(number)]:
                    self.core.drop(number)  # known only from a fence
            elif fact.number in held:
                self._learn_of_lane(fact)
            elif isinstance(fact, LaneForgotten) and self._has_copy(fact.number):
                self.core.drop(fact.number)  # opened and ended while this peer was down
        self._check_own_lane()
        if self.core.notifications.any:
            self._take_notifications()
        for number in [fact.number for fact in facts if isinstance(fact, EndDecided) and fact.number in held]:
            self._retention.keep(number)

    def _has_copy(self, number: int) -> bool:
        """In memory or on disk, also if the lane is known only from a fence."""
        return number in self._images or number in self.core.lanes.by_number

    def _learn_of_lane(self, fact: LaneOrphaned | EndDecided | LaneTrimmed | LaneForgotten) -> None:
        core, number = self.core, fact.number
        if isinstance(fact, LaneOrphaned):
            core.lane_orphaned(number)
        elif isinstance(fact, EndDecided):
            core.lane_end_decided(number, fact.end, self._now)
            self._lanes.by_number[number].cut(fact.end)
            self._proposals.withdraw(Kind.LANE_END, number)
        elif isinstance(fact, LaneTrimmed):
            self._lanes.by_number[number].trim(fact.upto_version)
            self._retention.release(number)
        else:
            self._drop(number)

    def _lane_opened(self, lane: Lane) -> None:
        number = lane.number
        self._lanes.note_opened(number)
        if number in self._lanes.by_number or lane.queue != self.queue:
            return
        self.core.lane_opened(number, lane.peer, lane.incarnation, lane.voters, self._now)
        position, state = self.core.retention.take_state(number)
        if position and not state:  # dropped in an earlier run: the removal follows later in the metadata lane
            self.core.drop(number)
            return
        self._begin(number, position, state)
        self._history.opened(number, self._images.pop(number | HISTORY, None))
        if self.core.own_lane == number:
            self._writes.own_opened(number)
        if lane.peer == self.me:
            self._proposals.withdraw(Kind.LANE_OPEN, lane.incarnation)

    def _begin(self, number: int, position: int, state: bytes) -> None:
        index = self._lanes.begin(number, position, state)
        if position and self.on_started is not None:
            self.on_started(number, position, index.visible.end)

    def _drop(self, number: int) -> None:
        """The lane will never be read again."""
        if self.core.notifications.any:
            self._take_notifications()
        for effect in self._history.dropped(number):
            self.core.retention.save(number, effect)
        self.core.drop(number)
        self._lanes.drop(number)
        self._proposals.withdraw(Kind.LANE_END, number)
        self._writes.dropped(number)
        self._reads.shown()

    def abandon(self) -> list[Persist]:
        """The queue was deleted: answer all waiting requests. Returns what deletes the queue's lanes from disk."""
        held = {number: lane.end for number, lane in self.core.lanes.by_number.items()}  # some only from a fence
        for number in list(self._lanes.by_number):
            self._drop(number)
        return [effect for number, end in held.items() for effect in emptied(number, end)]

    def _check_own_lane(self) -> None:
        """Open the own lane, or close it after a change of voters: a lane keeps the voters it was opened under."""
        core, voters = self.core, self._voters
        counted_among = core.open_voters()
        if counted_among:
            if counted_among != voters:
                core.close_own_lane()
        elif core.own_lane is None and not self.wants_run and self.me in voters:
            self._proposals.want(Proposal(Kind.LANE_OPEN, number=self.incarnation), self._now)
        else:
            self._proposals.withdraw(Kind.LANE_OPEN, self.incarnation)  # this peer is no longer a voter

    # ------------------------------------------------------------------ proposals to the metadata lane

    def take_proposals(self) -> list[tuple[int, int, bytes]]:
        """(request, kind, control) to be written to the metadata lane; pass the answer to `on_answer`."""
        return self._proposals.take()

    def on_answer(self, request: int, answer: Answer, now: float) -> None:
        self._now = now
        self._proposals.on_answer(request, answer, now)

    def _control(self, proposal: Proposal) -> bytes | None:
        """None: the proposed end is beyond this copy, so its version is not known yet."""
        if proposal.kind == Kind.LANE_OPEN:
            return encode(LaneOpenCommand(self.me, proposal.number, self.queue))
        if not self._lanes.extend(proposal.number, proposal.end):
            return None
        last = self._lanes.by_number[proposal.number].version_at(proposal.end)
        return encode(LaneEndCommand(proposal.number, proposal.end, self.me, last))

    def propose_trims(
        self,
        rules: RetentionRules,
        now_ms: int,
        files_of: Callable[[int], Sequence[StoredFile]],
        *,
        subscribers: Collection[VectorCursor] = (),
    ) -> None:
        """Propose the trims that the rules ask for. Called from time to time, on one peer only."""
        for command in self._retention.trims(rules, now_ms, files_of, subscribers=subscribers):
            self._proposals.once(Kind.TRIM, encode(command))

    # ------------------------------------------------------------------ notifications of the core

    def _take_notifications(self) -> None:
        notifications = self.core.notifications
        for lane, position, state in notifications.take_begun():
            self._begin(lane, position, state)
            self._reads.shown()
        for lane, after, to in notifications.take_committed():
            self._show(lane, after, to)
        for lane, to, _peers in notifications.take_accepted():
            if self.on_accepted is not None:
                self.on_accepted(lane, to)
            self._writes.accepted(lane, to)
        for lane, after, _to in notifications.take_refused():
            self._writes.refused_beyond(lane, after)
        if notifications.take_lost():
            self.wants_run = True
        for lane, end in notifications.take_settled():
            self._proposals.want(Proposal(Kind.LANE_END, number=lane, end=end), self._now)

    def _show(self, lane: int, after: int, to: int) -> None:
        entries = self._lanes.show(lane, after, to)
        if self.on_readable is not None:
            self.on_readable(lane, after, entries)
        self._retention.keep(lane)
        self._reads.shown()

    # ------------------------------------------------------------------ clients

    def write(self, request: int, write: Write, now: float, *, lane: int = 0, since: int = UNKNOWN) -> None:
        """Append to the own lane. `lane` other than 0 binds the write to that lane; a retry must do so.

        `since`: a version the bound lane had when the write was first sent. Drain after this, and after `persisted`:
        draining appends the held small writes.
        """
        self._now = now
        self._writes.write(request, write, now, lane=lane, since=since)
        if self.core.notifications.any:
            self._take_notifications()

    def lookup(self, request: int, lane: int, write_id: bytes, *, since: int = 0) -> None:
        """The outcome of a write whose owner may be gone: Done, LANE_ENDED, or OFFLINE while it is open."""
        self._writes.lookup(request, lane, write_id, since=since)

    def read_local(self, request: int) -> None:
        """Answers with the last readable version of each lane here; may lag."""
        self._reads.local(request)

    def read_at_least(self, request: int, versions: Mapping[int, int]) -> None:
        """Answers once these versions are readable here: a reader sees its own writes, and never less than before."""
        self._reads.at_least(request, versions)

    def cancel(self, request: int) -> None:
        """The client does not wait any more. The answer may still come, and a write still happens."""
        self._reads.cancel(request)

    def ranges(self, lane: int, after: int, max_count: int) -> Iterator[VisibleRange]:
        """The positions of the versions after a cursor, in order, up to the end. Raises Trimmed."""
        if lane not in self._lanes.by_number:
            raise InvalidRequest(
                f"lane {lane} was removed or does not belong to queue {self.queue}. Read the queue's list of lanes"
            )
        return self._reads.ranges(lane, after, max_count)

    def reader(self, lane: int) -> Callable[[int, int, int], Sequence[Entry]]:
        """Readable entries by position: (after, max_entries, max_bytes). Raises Trimmed, StorageDamaged."""
        return self._reads.reader(lane)

    def peek(self, lane: int, version: int) -> tuple[Entry, int, bool, tuple[int, ...]] | None:
        """A message by its version id, committed or not: (entry, offset in it, committed, peers that stored it)."""
        return self._reads.peek(lane, version)

    # ------------------------------------------------------------------ status

    @property
    def open_lane(self) -> int:
        """The lane that a write would be appended to now; 0: none. A client binds its write to it before sending."""
        lane = self.core.own_lane
        return lane if lane is not None and self.core.open_voters() else 0

    @property
    def caught_up(self) -> bool:
        """Whether every lane here is nearly as long as its longest known copy."""
        return all(self.core.caught_up(number, within=BEHIND_ENTRIES_MAX) for number in self._lanes.by_number)

    @property
    def numbers(self) -> list[int]:
        """The numbers of its lanes known to this peer, in the order in which they were opened."""
        return list(self._lanes.by_number)

    def index(self, lane: int) -> LaneIndex | None:
        return self._lanes.by_number.get(lane)

    def known_to(self, lane: int) -> int:
        """The last position whose versions are known: the end of this copy."""
        self._lanes.extend(lane, self.core.end_of(lane))
        return self._lanes.by_number[lane].known_to

    def trim_limit(self, lane: int, upto_version: int) -> int:
        """How far a requested trim may go: not beyond the last readable version."""
        return min(upto_version, self.readable.get(lane, 0))

    def statistics(self) -> dict[str, object]:
        return {
            "incarnation": self.incarnation,
            "waiting_writes": self._writes.waiting,
            "waiting_reads": self._reads.waiting,
            "proposals": [(Kind.NAMES[kind], number) for kind, number in self._proposals.names()],
            **self.core.statistics(),
        }
