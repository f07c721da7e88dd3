"""The lanes of one pub-sub queue on one peer: what the metadata lane says of them, and what this peer asks of it.

    next run durable ──► LANE_OPEN committed ──► own lane open ──► ... fenced by others, or voters changed
           ▲                                                                       │
           └─────────────── `wants_run`, or the clean end decided ◄────────────────┘

The number of a run is the peer's and not the queue's: a lane opened under a later one orphans every older lane of the
peer, in all its queues. So a queue only says that it wants the next run; the composition makes the number durable and
then tells all queues (`new_run`).

What needs agreement (a lane for this run, the end of a lane this peer settled) is proposed to the metadata lane
(`pubsub_proposals`).

Memory has bounds: of each lane a `LaneBook` stays, and the newest entries. The book is written down now and then, so
that a restart reads only what follows. Entries are given up on disk up to the last one that lies wholly below what the
metadata lane trimmed, after a snapshot that covers them. A lane it has forgotten is dropped, from memory and disk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from avow.peer.answers import Answer
from avow.peer.backfill import HISTORY
from avow.peer.metadata_lane import (
    EndDecided,
    Fact,
    LaneForgotten,
    LaneOpened,
    LaneOrphaned,
    LaneTrimmed,
    MembersChanged,
    TableTold,
)
from avow.peer.pubsub_book import LaneBook, PubSubBounds
from avow.peer.pubsub_mending import Mending
from avow.peer.pubsub_proposals import Proposal, Proposals
from avow.queue.commands import LaneEndCommand, LaneOpenCommand, encode
from avow.queue.lane_table import Lane
from avow.replication.effects import Effects, LaneImage, Persist
from avow.replication.pubsub.core import PubSubCore
from avow.replication.pubsub.keeping import emptied
from avow.replication.pubsub.lane import Read
from avow.replication.tuning import Tuning
from avow.wire.messages import Entry, Fence, Kind, LaneFetched, Message


class PubSubLanes(ABC):
    """Driven like a core: inputs are calls, `drain`, `take_proposals` and `answers` are the output.

    `incarnation` is durable. `images` is everything the disk holds of lanes nobody has claimed yet, of any queue: which
    are this queue's is known when the metadata lane tells, perhaps long after the start, and those are taken out then.
    `route` is the number that frames about the queue carry. `heard`: when each peer was last heard of, kept up to date
    by the composition for all that runs on this peer; without it, the queue counts only what it hears itself.
    """

    core_class: type[PubSubCore] = PubSubCore

    def __init__(
        self,
        *,
        me: int,
        queue: str,
        incarnation: int,
        images: dict[int, LaneImage],
        rng: Callable[[], float],
        tuning: Tuning,
        now: float,
        read: Read | None = None,
        bounds: PubSubBounds | None = None,
        route: int = 0,
        heard: dict[int, float] | None = None,
    ) -> None:
        self.me, self.queue, self.incarnation, self.route = me, queue, incarnation, route
        self.bounds = bounds or PubSubBounds()
        self._images, self._forgets = images, read is not None
        self.core = self.core_class(
            me=me, incarnation=incarnation, images=images, rng=rng, tuning=tuning, now=now, read=read, heard=heard
        )
        self.core.starts = self._start_of
        self.answers: list[tuple[int, Answer]] = []
        self.on_started: Callable[[int, int, int], None] | None = None  # lane, position, version: begins there
        self.on_readable: Callable[[int, int, list[Entry]], None] | None = None  # lane, after, entries
        self.on_accepted: Callable[[int, int], None] | None = None  # own lane, position
        self.readable: dict[int, int] = {}  # lane -> version: what a reader here sees
        self.wants_run = False  # a lane of this run was lost: the composition is to begin the next one
        self._now = now
        self._voters: tuple[int, ...] = ()
        self._books: dict[int, LaneBook] = {}
        self._told_to = 0  # the highest number of a lane the metadata lane told of, of any queue
        self._proposals = Proposals(tuning, control=self._control)
        self._mending = Mending(self.core, read, self._books.get)
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None:
        """What the classes above this one keep; called once, at the end of the constructor."""

    # ------------------------------------------------------------------ inputs

    def receive(self, source: int, message: Message, now: float) -> None:
        self._now = now
        if type(message) is Fence and self._is_forgotten(message.lane):
            return  # its sender lags; there is nothing left to end
        if type(message) is LaneFetched and self._mending.take(message, now):
            return
        self.core.receive(source, message, now)
        if self.core.has_news:
            self._take_news()

    def tick(self, now: float) -> None:
        self._now = now
        self.core.tick(now)
        self._mind_own_lane()
        if self.core.has_news:
            self._take_news()
        self._proposals.tick(now)
        self._mending.tick(now)

    def wake_at(self) -> float:
        beat_at = self.core.wake_at()
        return min(beat_at, self._proposals.wake_at(beat_at))

    def persisted(self, ticket: int) -> None:
        self.core.persisted(ticket, self._now)
        if self.core.has_news:
            self._take_news()

    def disk_full(self, *, full: bool) -> None:
        self.core.full = full

    def drain(self) -> Effects | None:
        return self.core.drain()

    def new_run(self, incarnation: int) -> None:
        """The next run of the peer is durable: what the last one owned is an orphan, in every queue."""
        self._proposals.settled(Kind.LANE_OPEN, self.incarnation)
        self.incarnation = incarnation
        self.wants_run = False
        self.core.new_run(incarnation)

    # ------------------------------------------------------------------ what the metadata lane says

    def learn(self, facts: Sequence[Fact], voters: tuple[int, ...], now: float) -> None:
        """Facts in the order of the log, and the voters after them. Those of other queues mean nothing here."""
        self._now, self._voters = now, voters
        for fact in facts:
            if isinstance(fact, LaneOpened):
                self._lane_opened(fact.lane)
            elif isinstance(fact, MembersChanged):
                self.core.members(fact.voters, fact.learners)
            elif isinstance(fact, TableTold):
                for number in [number for number in self._books if fact.forgets(number)]:
                    self._drop(number)
            elif fact.number in self._books:
                self._learn_of_lane(fact)
            elif isinstance(fact, LaneForgotten) and fact.number in self._images:
                self.core.drop(fact.number)  # it was open and shut while this peer was away
        self._mind_own_lane()
        if self.core.has_news:
            self._take_news()
        for number in [fact.number for fact in facts if isinstance(fact, EndDecided) and fact.number in self._books]:
            self._keep(number, self._books[number])

    def _learn_of_lane(self, fact: LaneOrphaned | EndDecided | LaneTrimmed | LaneForgotten) -> None:
        core, number = self.core, fact.number
        if isinstance(fact, LaneOrphaned):
            core.lane_orphaned(number)
        elif isinstance(fact, EndDecided):
            core.lane_end_decided(number, fact.end, self._now)
            self._books[number].cut(fact.end)
            self._proposals.settled(Kind.LANE_END, number)
        elif isinstance(fact, LaneTrimmed):
            book = self._books[number]
            book.trimmed_to = max(book.trimmed_to, fact.upto_version)
            book.follow_trim()
            self._give_up(number)
        else:
            self._drop(number)

    def _lane_opened(self, lane: Lane) -> None:
        number = lane.number
        self._told_to = max(self._told_to, number)
        if number in self._books or lane.queue != self.queue:
            return
        self.core.lane_opened(number, lane.peer, lane.incarnation, lane.voters, self._now)
        position, state = self.core.take_state(number)
        if position and not state:  # dropped in an earlier run: the metadata lane will tell so again
            self.core.drop(number)
            return
        self._begin(number, position, state)
        self._mending.opened(number, self._images.pop(number | HISTORY, None))
        if self.core.own_lane == number:
            self._own_opened(number)
        if lane.peer == self.me:
            self._proposals.settled(Kind.LANE_OPEN, lane.incarnation)

    def _begin(self, number: int, position: int, state: bytes) -> None:
        """This copy's book, as of a snapshot or from the beginning. Its versions are committed: all are readable."""
        told = self._books[number].trimmed_to if number in self._books else 0
        book = LaneBook.restore(state, self.bounds) if state else LaneBook(self.bounds)
        assert book.shown == position, "a book belongs to the entries that follow it"
        book.trimmed_to = max(book.trimmed_to, told)
        self._books[number] = book
        if position:
            self.readable[number] = book.index.end
            if self.on_started is not None:
                self.on_started(number, position, book.index.end)

    def _drop(self, number: int) -> None:
        """Nobody will read the lane again."""
        if self.core.has_news:
            self._take_news()
        for effect in self._mending.dropped(number):
            self.core.keep(number, effect)
        self.core.drop(number)
        del self._books[number]
        self.readable.pop(number, None)
        self._proposals.settled(Kind.LANE_END, number)
        self._dropped(number)

    def abandon(self) -> list[Persist]:
        """The queue was deleted: whoever waits hears it, and what is returned leaves nothing of it on disk."""
        held = {number: self.core.end_of(number) for number in self._books}
        for number in list(self._books):
            self._drop(number)
        return [effect for number, end in held.items() for effect in emptied(number, end)]

    def _mind_own_lane(self) -> None:
        """A lane votes with the members it was opened under: after a change of voters it is closed, the next opened."""
        core, voters = self.core, self._voters
        counted_among = core.open_voters()
        if counted_among:
            if counted_among != voters:
                core.close_own_lane()
        elif core.own_lane is None and not self.wants_run and self.me in voters:
            self._proposals.want(Proposal(Kind.LANE_OPEN, number=self.incarnation), self._now)
        else:
            self._proposals.settled(Kind.LANE_OPEN, self.incarnation)  # not wanted any more: a voter no longer

    # ------------------------------------------------------------------ what it is asked

    def take_proposals(self) -> list[tuple[int, int, bytes]]:
        """(request, kind, control) to be written to the metadata lane; tell the answer to `hear`."""
        return self._proposals.take()

    def hear(self, request: int, answer: Answer, now: float) -> None:
        self._now = now
        self._proposals.hear(request, answer, now)

    def _control(self, proposal: Proposal) -> bytes | None:
        """None: this copy must first hold the end it proposes, to tell which version that is."""
        if proposal.kind == Kind.LANE_OPEN:
            return encode(LaneOpenCommand(self.me, proposal.number, self.queue))
        if not self._extend(proposal.number, proposal.end):
            return None
        last = self._books[proposal.number].version_at(proposal.end)
        return encode(LaneEndCommand(proposal.number, proposal.end, self.me, last))

    # ------------------------------------------------------------------ what the lanes say

    def _take_news(self) -> None:
        core = self.core
        for lane, position, state in core.take_begun():
            self._begin(lane, position, state)
            self._shown()
        for lane, after, to in core.take_committed():
            self._show(lane, after, to)
        for lane, to, _peers in core.take_accepted():
            self._accepted(lane, to)
        for lane, after, _to in core.take_refused():
            self._refused_beyond(lane, after)
        if core.take_lost():
            self.wants_run = True
        for lane, end in core.take_settled():
            self._proposals.want(Proposal(Kind.LANE_END, number=lane, end=end), self._now)

    def _show(self, lane: int, after: int, to: int) -> None:
        book = self._books[lane]
        entries = self.core.held(lane, after=after, to=to)
        assert entries is not None, "what is readable is held"
        assert after == book.shown, "it follows what was shown"
        self._extend(lane, to)
        book.show(entries)
        self.readable[lane] = book.index.end
        if self.on_readable is not None:
            self.on_readable(lane, after, entries)
        self._keep(lane, book)
        self._shown()

    def _extend(self, lane: int, to: int) -> bool:
        """Know the versions up to this position; False while this copy does not reach so far."""
        book = self._books[lane]
        if to > book.known_to:
            entries = self.core.held(lane, after=book.known_to, to=to)
            if entries is None:
                return False
            book.extend(entries)
        return True

    # ------------------------------------------------------------------ memory and disk

    def _keep(self, lane: int, book: LaneBook) -> None:
        """Bounds on what stays in memory and on what a restart reads. A lane that is all here needs neither."""
        core, ended = self.core, self.core.ended_here(lane)
        if book.due or (ended and book.shown > book.saved_to):
            core.save_snapshot(lane, book.shown, book.snapshot())
        self._give_up(lane)
        if self._forgets:
            entries, size = (0, 0) if ended else (self.bounds.memory_entries, self.bounds.memory_bytes)
            core.relieve(lane, book.shown, entries_max=entries, bytes_max=size)

    def _give_up(self, lane: int) -> None:
        """On disk: entries that lie wholly below what was trimmed, once a snapshot covers them."""
        book = self._books[lane]
        position, _ = book.start()
        if not book.index.trimmed_to or position <= book.removed_to:
            return
        if book.saved_to < position:
            self.core.save_snapshot(lane, book.shown, book.snapshot())
        book.removed_to = position
        self.core.save_trim(lane, position)
        self._mending.trimmed(lane)

    def _start_of(self, lane: int) -> tuple[int, bytes] | None:
        book = self._books.get(lane)
        return book.start_state() if book is not None and book.index.trimmed_to else None

    def _is_forgotten(self, lane: int) -> bool:
        """Told of once, or never more: numbers are given out in the order of the log."""
        return lane not in self._books and lane <= self._told_to

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

    @abstractmethod
    def _dropped(self, lane: int) -> None:
        """The lane is gone, and with it whatever waited there."""


def forgotten_images(images: dict[int, LaneImage], told: TableTold) -> list[Persist]:
    """For images of lanes that were forgotten while this peer was away: taken out, and what empties them on disk."""
    saves: list[Persist] = []
    for number in [number for number in images if told.forgets(number & ~HISTORY)]:
        image = images.pop(number)
        base = image.snapshot.position if image.snapshot else 0
        if image.entries or image.snapshot is None or image.snapshot.state:
            saves += emptied(number, base + len(image.entries))
    return saves
