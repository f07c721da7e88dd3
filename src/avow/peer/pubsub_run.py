"""A peer with one pub-sub queue: the metadata lane, the number of its run, and the queue, joined.

This is the composition the simulator drives; a peer process joins more queues in the same way. Two cores share this
peer's links and its one log. What they want done is joined into one record with one ticket, so one sync serves both;
`_marks` remembers which inner tickets it stands for. Until the number of this run is on disk nothing else leaves the
peer: an opening or a fence under a number that a crash could give out again would be worse than none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from avow.errors import Offline
from avow.peer.answers import Answer, Refusal
from avow.peer.lane import Write
from avow.peer.metadata_lane import METADATA_LANE, MetadataLane, TableTold
from avow.peer.pubsub_book import PubSubBounds
from avow.peer.pubsub_lanes import forgotten_images
from avow.peer.pubsub_queue import PubSubQueue
from avow.peer.pubsub_writes import UNKNOWN
from avow.queue.commands import LaneCursorsCommand, LaneTrimCommand, encode
from avow.replication.effects import Effects, LaneImage, Persist, SaveRun
from avow.replication.membership import Members
from avow.replication.pubsub.lane import Read
from avow.replication.tuning import Tuning
from avow.storage.store import StoreImage
from avow.wire.messages import (
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


class PubSubPeer:
    """Driven like a core: inputs are calls, `drain` and `answers` are the output. Negative requests are its own."""

    metadata_class: type[MetadataLane] = MetadataLane
    queue_class: type[PubSubQueue] = PubSubQueue

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
        bounds: PubSubBounds | None = None,
    ) -> None:
        self.me = me
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
        self._images = lanes
        self._heard: dict[int, float] = {}  # shared by all parts
        self.queue = self.queue_class(
            me=me,
            queue=queue,
            incarnation=self.incarnation,
            images=lanes,
            rng=rng,
            tuning=tuning,
            now=now,
            read=read,
            bounds=bounds,
            heard=self._heard,
        )
        self.core = self.queue.core
        self.answers: list[tuple[int, Answer]] = []
        self.running = False
        self._now = now
        self._starting = self.incarnation  # a run whose number is not durable yet; 0: none
        self._saves: list[Persist] = [SaveRun(self.incarnation)]
        self._ticket = 0
        self._marks: deque[tuple[int, int, int, int]] = deque()  # ticket, metadata's, queue's, run

    # ------------------------------------------------------------------ inputs

    def receive(self, source: int, message: Message, now: float) -> None:
        if not self.running:
            return
        self._now = self._heard[source] = now
        if type(message) in OF_LANES:
            self.queue.receive(source, message, now)
        else:
            self.metadata.receive(source, message, now)
        self._follow()

    def tick(self, now: float) -> None:
        if not self.running:
            return
        self._now = now
        self.metadata.tick(now)
        self.queue.tick(now)
        self._follow()

    def persisted(self, ticket: int) -> None:
        marks = self._marks
        while marks and marks[0][0] <= ticket:
            _, of_metadata, of_queue, run = marks.popleft()
            if of_metadata:
                self.metadata.persisted(of_metadata)
            if of_queue:
                self.queue.persisted(of_queue)
            if run:
                self._run_is_durable(run)
        if self.running:
            self._follow()

    def disk_full(self, *, full: bool) -> None:
        self.metadata.disk_full(full=full)
        self.queue.disk_full(full=full)

    def drain(self) -> Effects | None:
        if not self.running:
            return self._joined(None, None) if self._saves else None
        metadata, queue = self.metadata.drain(), self.queue.drain()
        self.answers += self.queue.answers  # small writes are appended by the drain
        self.queue.answers = []
        if not self._saves:
            if metadata is None and (queue is None or not queue.ticket):
                return queue
            if queue is None and metadata is not None and not metadata.ticket:
                return metadata
        return self._joined(metadata, queue)

    def _joined(self, metadata: Effects | None, queue: Effects | None) -> Effects:
        """One record for both cores and this class. What one of them waits for is synced no later than it asks."""
        effects = Effects(0, [], self._saves, [])
        self._saves = []
        run = self._starting if any(isinstance(save, SaveRun) for save in effects.persist) else 0
        ticketed = bool(effects.persist)
        for part in (metadata, queue):
            if part is not None:
                effects.sends_now += part.sends_now
                effects.persist += part.persist
                effects.sends_synced += part.sends_synced
        inner = (metadata.ticket if metadata else 0, queue.ticket if queue else 0)
        if ticketed or any(inner):
            self._ticket += 1
            effects.ticket = self._ticket
            self._marks.append((self._ticket, *inner, run))
        return effects

    # ------------------------------------------------------------------ what the parts say to each other

    def _follow(self) -> None:
        """Facts to the queue, its proposals to the metadata lane, answers to whoever asked, a run for a lost lane."""
        metadata, queue = self.metadata, self.queue
        if metadata.state.facts:
            facts = metadata.take_facts()
            for told in facts:
                if isinstance(told, TableTold):
                    self._saves += forgotten_images(self._images, told)
            queue.learn(facts, metadata.state.voters, self._now)
        for request, kind, control in queue.take_proposals():
            metadata.write(request, Write(kind, b"", control=control), self._now)
        if metadata.answers:
            self._hear_metadata()
        if queue.wants_run and not self._starting:
            self._starting = self._next_run(self.incarnation)
            self._saves.append(SaveRun(self._starting))
        if queue.answers:
            self.answers += queue.answers
            queue.answers = []

    def _hear_metadata(self) -> None:
        answers, self.metadata.answers = self.metadata.answers, []
        for request, answer in answers:
            if request < 0:
                self.queue.hear(request, answer, self._now)
            else:
                self.answers.append((request, answer))

    def _run_is_durable(self, run: int) -> None:
        self._starting = 0
        self.incarnation = run
        if self.running:
            self.queue.new_run(run)
        self.running = True

    # ------------------------------------------------------------------ clients

    def write(self, request: int, write: Write, now: float, *, lane: int = 0, since: int = UNKNOWN) -> None:
        self._now = now
        if self.running:
            self.queue.write(request, write, now, lane=lane, since=since)
            self._follow()
        else:
            self.answers.append((request, Refusal(Offline.code)))

    def lookup(self, request: int, lane: int, write_id: bytes, *, since: int = 0) -> None:
        self.queue.lookup(request, lane, write_id, since=since)
        self._follow()

    def read_local(self, request: int) -> None:
        self.queue.read_local(request)
        self._follow()

    def read_at_least(self, request: int, versions: Mapping[int, int]) -> None:
        self.queue.read_at_least(request, versions)
        self._follow()

    def read_linearizable(self, request: int) -> None:
        self.queue.read_linearizable(request)
        self._follow()

    def move_cursor(
        self, request: int, subscriber: str, versions: Mapping[int, int], *, write_id: bytes, now: float
    ) -> None:
        """A subscriber has dealt with everything up to these versions: an entry of the metadata lane."""
        command = LaneCursorsCommand(self.queue.queue, subscriber, tuple(sorted(versions.items())))
        self.command(request, Write(Kind.CURSOR, write_id, control=encode(command)), now)

    def trim(self, request: int, lane: int, upto_version: int, *, write_id: bytes, now: float) -> None:
        """Remove versions up to this one, as far as holds allow."""
        command = LaneTrimCommand(lane, upto_version)
        self.command(request, Write(Kind.TRIM, write_id, control=encode(command)), now)

    def cursor(self, subscriber: str) -> dict[int, int]:
        queue = self.metadata.state.queue(self.queue.queue)
        found = queue.subscribers.get(subscriber) if queue is not None else None
        return dict(found.versions) if found is not None else {}

    def change_members(self, request: int, wanted: Members) -> None:
        self.metadata.change_members(request, wanted)
        self._follow()

    def command(self, request: int, write: Write, now: float) -> None:
        """An entry of the metadata lane."""
        self._now = now
        if not self.running:
            self.answers.append((request, Refusal(Offline.code)))
            return
        self.metadata.write(request, write, now)
        self._follow()

    # ------------------------------------------------------------------ what others may ask

    @property
    def open_lane(self) -> int:
        return self.queue.open_lane

    @property
    def readable(self) -> dict[int, int]:
        return self.queue.readable

    def statistics(self) -> dict[str, object]:
        return {"running": self.running, **self.queue.statistics()}

    # ------------------------------------------------------------------ the rules, one by one

    def _next_run(self, last: int) -> int:
        """A run never takes the number of an earlier one."""
        return last + 1
