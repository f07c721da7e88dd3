"""One run of a peer in a pub-sub queue: from the number it boots under to the lane it owns, and on to the next run.

    boot ── SaveRun synced ──► LANE_OPEN committed ──► own lane open ──► ... fenced by others, or voters changed
                                        ▲                                             │
                                        └──── next run synced, or clean end decided ◄─┘

Two cores share this peer's links and its one log. What they want done is joined into one record with one ticket, so one
sync serves both; `_marks` remembers which inner tickets it stands for. Until the number of this run is on disk nothing
else leaves the peer: an opening or a fence under a number that a crash could give out again would be worse than none.

What needs agreement (a lane for this run, the end of a lane this peer settled) is proposed to the metadata lane and
repeated until its entry has been applied here. Answers to proposals only say when to try again.

Positions count entries, versions count messages. All copies of a lane are prefixes of one sequence, so a table of
versions by position is never wrong, whether or not the entries are committed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from avow.errors import Offline
from avow.peer.answers import Answer, Refusal
from avow.peer.lane import Write
from avow.peer.metadata_lane import (
    METADATA_LANE,
    EndDecided,
    Fact,
    LaneOpened,
    LaneOrphaned,
    MembersChanged,
    MetadataLane,
)
from avow.queue.commands import LaneEndCommand, LaneOpenCommand, encode
from avow.queue.lane_table import Lane
from avow.replication.effects import Effects, LaneImage, Persist, SaveRun
from avow.replication.pubsub.core import PubSubCore
from avow.replication.pubsub.lane import Read
from avow.replication.tuning import Tuning
from avow.storage.store import StoreImage
from avow.wire.messages import (
    Entry,
    Fence,
    Fenced,
    Kind,
    LaneEnqueue,
    LaneFetch,
    LaneFetched,
    LaneHeartbeat,
    LaneReject,
    Message,
    Refill,
    Refilled,
    Stored,
)

OF_LANES: Final = frozenset(
    (
        LaneEnqueue,
        Stored,
        LaneHeartbeat,
        LaneReject,
        LaneFetch,
        LaneFetched,
        Fence,
        Fenced,
        Refill,
        Refilled,
    )
)


class Proposal:
    """Something the metadata lane must decide; repeated until it has. Repeating changes nothing there."""

    __slots__ = ("due_at", "end", "kind", "number")

    def __init__(self, kind: int, *, number: int, end: int = 0) -> None:
        self.kind, self.number, self.end = kind, number, end
        self.due_at = 0.0


class PubSubRun(ABC):
    """Driven like a core: inputs are calls, `drain` and `answers` are the output. Negative requests are its own."""

    metadata_class: type[MetadataLane] = MetadataLane
    core_class: type[PubSubCore] = PubSubCore

    def __init__(
        self,
        *,
        me: int,
        queue: str,
        image: StoreImage,
        rng: Callable[[], float],
        tuning: Tuning,
        now: float,
        snapshot_every: int = 0,
        read: Read | None = None,
    ) -> None:
        self.me, self.queue = me, queue
        self._retry_s = 2.0 * tuning.heartbeat_interval_s  # after a proposal that nobody could take
        self._repeat_s = tuning.owner_dead_after_s  # after one that got no answer, or whose entry was not seen yet
        self.incarnation = self._next_run(image.incarnation)
        lanes = dict(image.lanes)
        self.metadata = self.metadata_class(
            me=me,
            lane=METADATA_LANE,
            image=lanes.pop(METADATA_LANE, LaneImage(entries=[])),
            rng=rng,
            tuning=tuning,
            now=now,
            snapshot_every=snapshot_every,
            read=partial(read, METADATA_LANE) if read is not None else None,
        )
        self.core = self.core_class(
            me=me, incarnation=self.incarnation, images=lanes, rng=rng, tuning=tuning, now=now, read=read
        )
        self.answers: list[tuple[int, Answer]] = []
        self.on_readable: Callable[[int, int, list[Entry]], None] | None = None  # lane, after, entries
        self.on_accepted: Callable[[int, int], None] | None = None  # own lane, position
        self.readable: dict[int, int] = {}  # lane -> version: what a reader here sees
        self.running = False
        self._now = now
        self._starting = self.incarnation  # a run whose number is not durable yet; 0: none
        self._saves: list[Persist] = [SaveRun(self.incarnation)]
        self._ticket = 0
        self._marks: deque[tuple[int, int, int, int]] = deque()  # ticket, metadata's, core's, run
        self._versions: dict[int, array[int]] = {}  # lane -> the last version of each position; [0] is 0
        self._mine: list[int] = []  # lanes this process opened, oldest first
        self._proposals: dict[tuple[int, int], Proposal] = {}
        self._asked: dict[int, Proposal] = {}  # own request -> what it proposed
        self._request = 0

    # ------------------------------------------------------------------ inputs

    def receive(self, source: int, message: Message, now: float) -> None:
        if not self.running:
            return
        self._now = now
        if type(message) in OF_LANES:
            self.core.receive(source, message, now)
            if self.core.has_news:
                self._take_news()
        else:
            self.metadata.receive(source, message, now)
            self._follow_metadata()

    def tick(self, now: float) -> None:
        if not self.running:
            return
        self._now = now
        self.metadata.tick(now)
        self.core.tick(now)
        self._follow_metadata()
        self._mind_own_lane()
        if self.core.has_news:
            self._take_news()
        for proposal in list(self._proposals.values()):
            if now >= proposal.due_at:
                self._propose(proposal)

    def persisted(self, ticket: int) -> None:
        marks = self._marks
        while marks and marks[0][0] <= ticket:
            _, of_metadata, of_core, run = marks.popleft()
            if of_metadata:
                self.metadata.persisted(of_metadata)
            if of_core:
                self.core.persisted(of_core, self._now)
            if run:
                self._run_is_durable(run)
        if self.running:
            self._follow_metadata()
            if self.core.has_news:
                self._take_news()

    def disk_full(self, *, full: bool) -> None:
        self.metadata.disk_full(full=full)
        self.core.full = full

    def drain(self) -> Effects | None:
        if not self.running:
            return self._joined(None, None) if self._saves else None
        metadata, core = self.metadata.drain(), self.core.drain()
        if not self._saves:
            if metadata is None and (core is None or not core.ticket):
                return core
            if core is None and metadata is not None and not metadata.ticket:
                return metadata
        return self._joined(metadata, core)

    def _joined(self, metadata: Effects | None, core: Effects | None) -> Effects:
        """One record for both cores and this class. What one of them waits for is synced no later than it asks."""
        effects = Effects(0, [], self._saves, [])
        self._saves = []
        run = self._starting if effects.persist else 0
        for part in (metadata, core):
            if part is not None:
                effects.sends_now += part.sends_now
                effects.persist += part.persist
                effects.sends_synced += part.sends_synced
        inner = (metadata.ticket if metadata else 0, core.ticket if core else 0)
        if run or any(inner):
            self._ticket += 1
            effects.ticket = self._ticket
            self._marks.append((self._ticket, *inner, run))
        return effects

    # ------------------------------------------------------------------ what the metadata lane says

    def _follow_metadata(self) -> None:
        metadata = self.metadata
        if metadata.state.facts:
            self._learn(metadata.take_facts())
            self._mind_own_lane()
            if self.core.has_news:
                self._take_news()
        if metadata.answers:
            answers, metadata.answers = metadata.answers, []
            for request, answer in answers:
                if request < 0:
                    self._hear_proposal(request, answer)
                else:
                    self.answers.append((request, answer))

    def _learn(self, facts: list[Fact]) -> None:
        core, known = self.core, self._versions
        for fact in facts:
            if isinstance(fact, LaneOpened):
                self._lane_opened(fact.lane)
            elif isinstance(fact, MembersChanged):
                core.members(fact.voters, fact.learners)
            elif fact.number not in known:
                continue  # of another queue
            elif isinstance(fact, LaneOrphaned):
                core.lane_orphaned(fact.number)
            elif isinstance(fact, EndDecided):
                core.lane_end_decided(fact.number, fact.end, self._now)
                self._proposals.pop((Kind.LANE_END, fact.number), None)

    def _lane_opened(self, lane: Lane) -> None:
        number = lane.number
        if number in self._versions or lane.queue != self.queue:
            return
        self._versions[number] = array("q", (0,))
        self.core.lane_opened(number, lane.peer, lane.incarnation, lane.voters, self._now)
        if self.core.own_lane == number:
            self._mine.append(number)
            self._own_opened(number)
        if lane.peer == self.me:
            self._proposals.pop((Kind.LANE_OPEN, lane.incarnation), None)

    def _mind_own_lane(self) -> None:
        """A lane votes with the members it was opened under: after a change of voters it is closed, the next opened."""
        core, voters = self.core, self.metadata.state.voters
        counted_among = core.open_voters()
        if counted_among:
            if counted_among != voters:
                core.close_own_lane()
        elif core.own_lane is None and not self._starting and self.me in voters:
            self._want(Proposal(Kind.LANE_OPEN, number=self.incarnation))
        else:
            self._proposals.pop((Kind.LANE_OPEN, self.incarnation), None)  # not wanted any more: a voter no longer

    def _want(self, proposal: Proposal) -> None:
        known = self._proposals.setdefault((proposal.kind, proposal.number), proposal)
        known.end = proposal.end
        if known is proposal:
            self._propose(proposal)

    def _propose(self, proposal: Proposal) -> None:
        control = self._control(proposal)
        if control is None:
            return
        proposal.due_at = self._now + self._repeat_s
        self._request -= 1
        self._asked[self._request] = proposal
        self.metadata.write(self._request, Write(proposal.kind, b"", control=control), self._now)

    def _control(self, proposal: Proposal) -> bytes | None:
        """None: this copy must first hold the end it proposes, to tell which version that is."""
        if proposal.kind == Kind.LANE_OPEN:
            return encode(LaneOpenCommand(self.me, proposal.number, self.queue))
        if not self._extend(proposal.number, proposal.end):
            return None
        last = self._versions[proposal.number][proposal.end]
        return encode(LaneEndCommand(proposal.number, proposal.end, self.me, last))

    def _hear_proposal(self, request: int, answer: Answer) -> None:
        """Done is not the end of it: only the entry, applied here, is. What no log has taken is tried again soon."""
        proposal = self._asked.pop(request, None)
        if proposal is not None and isinstance(answer, Refusal) and answer.code == Offline.code:
            proposal.due_at = self._now + self._retry_s

    # ------------------------------------------------------------------ what the lanes say

    def _take_news(self) -> None:
        core = self.core
        for lane, after, to in core.take_committed():
            self._show(lane, after, to)
        for lane, to, _peers in core.take_accepted():
            self._accepted(lane, to)
        for lane, after, _to in core.take_refused():
            self._refused_beyond(lane, after)
        if core.take_lost() and not self._starting:
            self._starting = self._next_run(self.incarnation)
            self._saves.append(SaveRun(self._starting))
        for lane, end in core.take_settled():
            self._want(Proposal(Kind.LANE_END, number=lane, end=end))

    def _show(self, lane: int, after: int, to: int) -> None:
        entries = self.core.held(lane, after=after, to=to)
        assert entries is not None, "what is readable is held"
        self._extend(lane, to)
        self.readable[lane] = self._versions[lane][to]
        if self.on_readable is not None:
            self.on_readable(lane, after, entries)
        self._shown()

    def _run_is_durable(self, run: int) -> None:
        self._starting = 0
        self._proposals.pop((Kind.LANE_OPEN, self.incarnation), None)
        self.incarnation = run
        if self.running:
            self.core.new_run(run)
        self.running = True

    def _extend(self, lane: int, to: int) -> bool:
        """Know the versions up to this position; False while this copy does not reach so far."""
        ends = self._versions[lane]
        entries = self.core.held(lane, after=len(ends) - 1, to=to) if to >= len(ends) else ()
        if entries is None:
            return False
        for entry in entries:
            ends.append(ends[-1] + entry.count)
        return True

    def _versions_at(self, lane: int, position: int) -> tuple[int, int]:
        self._extend(lane, position)
        ends = self._versions[lane]
        return ends[position - 1] + 1, ends[position]

    # ------------------------------------------------------------------ filled in by the class that knows the clients

    @abstractmethod
    def _own_opened(self, lane: int) -> None:
        """This run may write to the lane from now on."""

    @abstractmethod
    def _accepted(self, lane: int, to: int) -> None:
        """Everything this run wrote to its lane, up to this position, is committed."""

    @abstractmethod
    def _refused_beyond(self, lane: int, end: int) -> None:
        """What this run wrote to its lane after this position never will be."""

    @abstractmethod
    def _shown(self) -> None:
        """More is readable here."""

    # ------------------------------------------------------------------ the rules, one by one

    def _next_run(self, last: int) -> int:
        """A run never takes the number of an earlier one."""
        return last + 1
