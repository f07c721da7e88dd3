"""All of one peer that is not IO: the metadata lane, the two-phase lanes and the pub-sub queues, as one machine.

    frames ──► receive(source, route, ...) ──┐                        ┌──► drain(): send, persist, send after the sync
    clients ─► write, command, reach, ... ───┼──► metadata, lanes, ───┤
    time ────► tick(now) ────────────────────┤    pub-sub queues      └──► answers
    disk ────► persisted(ticket) ────────────┘

A route is a lane's number (two-phase), or the number of a pub-sub queue; 0 is the metadata lane. What the metadata lane
says is carried out here: a queue that was created gets its lanes, one that was deleted loses them, members come and go
in every lane this peer coordinates, one step at a time.

The number of this run (`incarnation`) was made durable by whoever made the node, before anything else is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from msgspec import to_builtins

from avow.errors import InvalidRequest, Offline, StorageDamaged, UnknownQueue
from avow.peer.answers import Answer, Done, Reached, Refusal
from avow.peer.backfill import HISTORY
from avow.peer.housekeeping import OWN_REQUESTS, Housekeeping
from avow.peer.lane import Write
from avow.peer.metadata_lane import METADATA_LANE, MetadataLane, TableTold, founding_snapshot
from avow.peer.parts import Part, Parts
from avow.peer.pubsub_lanes import forgotten_images
from avow.peer.pubsub_queue import PubSubQueue
from avow.peer.queue_lane import QueueLane
from avow.peer.reading import Served, place_ranges, read_ranges
from avow.peer.views import LaneView, heard_ms, lane_view, lane_views, metadata_view
from avow.queue.catalog import Queue
from avow.queue.retention import StoredFile
from avow.queue.state import QueueState
from avow.queue.visible import VisibleRange
from avow.replication.effects import LaneImage, SaveRun, SaveSnapshot
from avow.replication.pubsub.keeping import emptied
from avow.replication.tuning import Tuning
from avow.storage.segments import Place
from avow.storage.store import StoreImage
from avow.wire.messages import Entry, Message, Snapshot

METADATA_SNAPSHOT_EVERY: Final = 512
SNAPSHOT_EVERY: Final = 65_536
SNAPSHOT_BYTES: Final = 128 * 1024 * 1024
_READ_SIZE_BYTES: Final = 8 * 1024 * 1024  # of older entries for a peer that is behind


class Disk(Protocol):
    """What a node asks of storage while it runs; writing goes through effects."""

    def read(self, lane: int, *, after: int, max_entries: int, max_bytes: int) -> list[Entry]: ...

    def places(self, lane: int, *, after: int, upto: int) -> list[Place]: ...

    def stored_files(self, lane: int) -> list[StoredFile]: ...


class Node(Parts):
    def __init__(
        self,
        *,
        me: int,
        incarnation: int,
        image: StoreImage,
        founders: tuple[int, ...],
        disk: Disk,
        rng: Callable[[], float],
        tuning: Tuning,
        now: float,
    ) -> None:
        """`founders`: the voters the cluster began with; empty on a peer that joined later."""
        super().__init__()
        self.me, self.incarnation = me, incarnation
        self.now_ms = 0  # wall clock, as of the last tick: deadlines and retention are told in it
        self._disk, self._rng, self._tuning, self._now = disk, rng, tuning, now
        self._images = dict(image.lanes)
        self.answers: list[tuple[int, Answer]] = []
        self.lanes: dict[int, QueueLane] = {}
        self.pubsub: dict[str, PubSubQueue] = {}
        self._next_run = 0  # being made durable; 0: none
        self._proposals: dict[int, tuple[str, int]] = {}  # metadata request -> (pub-sub queue, its own request)
        self._request = OWN_REQUESTS  # of proposals and the like, counted up from there
        self._heard: dict[int, float] = {}  # peer -> when anything was heard of it
        self._reaching: dict[int, int] = {}  # request -> the pub-sub lane it asked about
        found = self._images.pop(METADATA_LANE, None)
        if found is None or (found.snapshot is None and not found.entries and founders):
            found = found or LaneImage()
            if founders:
                snapshot = founding_snapshot(founders)
                found = LaneImage(found.promised, found.stamped, snapshot, [])
                self._saves.append(SaveSnapshot(METADATA_LANE, snapshot, reset=True))
        self.metadata = MetadataLane(
            me=me,
            lane=METADATA_LANE,
            image=found,
            rng=rng,
            tuning=tuning,
            now=now,
            snapshot_every=METADATA_SNAPSHOT_EVERY,
            read=self._reader(METADATA_LANE),
        )
        self._parts[METADATA_LANE] = self.metadata
        self.housekeeping = Housekeeping(self)
        self._follow_metadata()

    # ------------------------------------------------------------------ inputs

    def receive(self, source: int, route: int, message: Message, now: float) -> None:
        self._now = self._heard[source] = now
        part = self._parts.get(route)
        if part is None:
            return  # of a queue this peer does not hold, or does not know of yet; its sender will say it again
        part.receive(source, message, now)
        self._touched[route] = part
        if route == METADATA_LANE:
            self._follow_metadata()

    def tick(self, now: float, now_ms: int) -> None:
        self._now, self.now_ms = now, now_ms
        for route, part in list(self._parts.items()):
            part.tick(now)
            self._touched[route] = part
        self._follow_metadata()
        self.housekeeping.tick(now)

    # ------------------------------------------------------------------ clients

    def write(self, request: int, number: int, write: Write, now: float) -> None:
        """To a two-phase lane. Answers Done, Refusal or Lost."""
        self._now = now
        lane = self.lanes.get(number)
        if lane is None:
            self._refuse(request, Offline.code, f"lane {number} is not held by this peer yet; nothing was stored")
            return
        lane.write(request, write, now)
        self._touched[number] = lane

    def write_pubsub(self, request: int, queue: str, write: Write, now: float, *, lane: int = 0) -> None:
        """Answers Stored first (where to ask later), then Done, Refusal or Lost."""
        self._now = now
        held = self.pubsub.get(queue)
        if held is None:
            self._refuse(request, UnknownQueue.code, f"there is no pub-sub queue {queue!r} here")
            return
        held.write(request, write, now, lane=lane)
        self._touch(queue)

    def lookup(self, request: int, queue: str, lane: int, write_id: bytes, *, since: int = 0) -> None:
        """What became of a pub-sub write; `since` is a version its lane had reached before it was first sent."""
        held = self.pubsub.get(queue)
        if held is None:
            self._refuse(request, UnknownQueue.code, f"there is no pub-sub queue {queue!r} here")
            return
        held.lookup(request, lane, write_id, since=since)
        self._touch(queue)

    def command(self, request: int, kind: int, control: bytes, *, write_id: bytes, now: float) -> None:
        """An entry of the metadata lane, forwarded to whoever coordinates it."""
        self._now = now
        self.metadata.write(request, Write(kind, write_id, control=control), now)
        self._touched[METADATA_LANE] = self.metadata
        self._follow_metadata()

    def reach(self, request: int, number: int, *, level: str, version: int, now: float) -> None:
        """Answered once this peer may serve the lane at that level: Done(1, its end here)."""
        self._now = now
        lane = self.lanes.get(number)
        if lane is None:
            self._reach_pubsub(request, number, level=level, version=version)
            return
        if self._full and level != "local":
            self._refuse(request, Offline.code, "this peer's disk is full, so it falls behind; ask another peer")
        elif level == "linearizable":
            lane.read(request, now)
        elif level == "at_least" and lane.state.end < version and not lane.core.online(now):
            self._refuse(request, Offline.code, "this peer is cut off from a quorum and falls behind; ask another peer")
        elif level == "at_least":
            lane.read_at_least(request, version)
        else:
            lane.read_local(request)
        self._touched[number] = lane

    def _reach_pubsub(self, request: int, number: int, *, level: str, version: int) -> None:
        held = self.queue_of(number)
        if held is None:
            self._refuse(request, Offline.code, f"lane {number} is not held by this peer")
        elif level == "linearizable":
            reason = "lanes of a pub-sub queue have no common order; read `local`, or `at_least` a version"
            self._refuse(request, InvalidRequest.code, reason)
        else:
            self._reaching[request] = number
            held.read_at_least(request, {number: version if level == "at_least" else 0})
            self._touch(held.queue)

    def cancel(self, request: int, *, lane: int | None = None) -> None:
        """Nobody waits for this answer any more. What was written stays written. `lane`: where it was asked."""
        self._reaching.pop(request, None)
        asked = self.lanes.get(lane) or self.queue_of(lane) if lane is not None else None
        for part in (asked,) if asked is not None else self._parts.values():
            part.cancel(request)

    # ------------------------------------------------------------------ what clients read

    def read(self, number: int, *, after: int, max_count: int, max_bytes: int) -> list[Served]:
        """Visible messages after a version. Raises Trimmed, InvalidRequest, Offline, StorageDamaged.

        What cannot be read here is copied again from the others, once somebody wanted it.
        """
        lane, held = self.lanes.get(number), self.queue_of(number)
        try:
            if lane is not None:
                after = min(after, lane.state.end)
                return read_ranges(lane.state.ranges(after, max_count), lane.entries, max_bytes=max_bytes)
            if held is not None:
                return read_ranges(held.ranges(number, after, max_count), held.reader(number), max_bytes=max_bytes)
        except StorageDamaged as damage:
            if len(self.metadata.state.voters) == 1:
                raise
            raise Offline(f"{damage}. It is being copied again; ask another peer") from damage
        raise Offline(f"lane {number} is not held by this peer; ask another")

    def places(self, number: int, *, after: int, max_count: int) -> list[tuple[VisibleRange, Place]]:
        """As `read`, but where the messages lie; none: they are better read. Of two-phase queues, whose lanes' files
        hold what the lane shows. Raises Trimmed."""
        lane = self.lanes.get(number)
        if lane is None:
            return []
        find = partial(self._disk.places, number)
        return place_ranges(lane.state.ranges(min(after, lane.state.end), max_count), find)

    def peek(self, number: int, version: int) -> tuple[Entry, int, bool, tuple[int, ...]] | None:
        """By its version id, also a message that is not committed: (entry, offset in it, committed, who stored it)."""
        lane = self.lanes.get(number)
        if lane is not None:
            return lane.peek_version(version)
        held = self.queue_of(number)
        return held.peek(number, version) if held is not None else None

    def queue_of(self, number: int) -> PubSubQueue | None:
        """The pub-sub queue that a lane belongs to."""
        lane = self.metadata.state.lanes.by_number.get(number)
        return self.pubsub.get(lane.queue) if lane is not None else None

    # ------------------------------------------------------------------ answers

    def _collect(self, part: Part) -> None:
        answers, part.answers = part.answers, []
        for request, answer in answers:
            if request < OWN_REQUESTS:
                if isinstance(answer, Reached):
                    answer = Done(1, answer.versions.get(self._reaching.pop(request, 0), 0))
                self.answers.append((request, answer))
            elif request in self._proposals:
                name, proposal = self._proposals.pop(request)
                if name in self.pubsub:
                    self.pubsub[name].hear(proposal, answer, self._now)
            else:
                self.housekeeping.hear(request, answer)

    # ------------------------------------------------------------------ what the metadata lane says

    def _follow_metadata(self) -> None:
        """Facts first tell of lanes, and lanes belong to queues: those must be there before."""
        metadata = self.metadata
        if metadata.applied != self.housekeeping.seen_position:
            self.housekeeping.seen_position = metadata.applied
            self._follow_catalog()
        if metadata.state.facts:
            facts = metadata.take_facts()
            for told in facts:
                if isinstance(told, TableTold):
                    self._saves += forgotten_images(self._images, told)
            for held in self.pubsub.values():
                held.learn(facts, metadata.state.voters, self._now)
                self._touched[held.route] = held
        for held in self.pubsub.values():
            self._mind(held)

    def _follow_catalog(self) -> None:
        queues = self.metadata.state.catalog.by_name
        by_lane = self.metadata.state.catalog.by_lane()
        wanted = {n: queue for n, queue in by_lane.items() if not queue.peers or self.me in queue.peers}
        for number in [number for number in self.lanes if number not in wanted]:
            self._drop_lane(number)
        for number, queue in wanted.items():
            if number not in self.lanes:
                self._open_lane(number, queue)
        routes = {queue.first_lane: queue for queue in queues.values() if queue.strategy == "pub-sub"}
        for name in [name for name, held in self.pubsub.items() if held.route not in routes]:
            self._drop_pubsub(name)
        for queue in routes.values():
            if queue.name not in self.pubsub:
                self._open_pubsub(queue)

    def _open_lane(self, number: int, queue: Queue) -> None:
        image = self._images.pop(number, None) or LaneImage()
        begins = image.snapshot is None and not image.entries and not image.damaged_from and self.me in queue.founders
        if begins:
            snapshot = founding_lane_snapshot(queue.founders)
            image = LaneImage(image.promised, image.stamped, snapshot, [])
            self._saves.append(SaveSnapshot(number, snapshot, reset=True))
        lane = QueueLane(
            me=self.me,
            lane=number,
            image=image,
            rng=self._rng,
            tuning=self._tuning,
            now=self._now,
            snapshot_every=SNAPSHOT_EVERY,
            snapshot_bytes=SNAPSHOT_BYTES,
            read=self._reader(number),
            history=self._images.pop(number | HISTORY, None),
            read_history=self._reader(number | HISTORY),
        )
        lane.disk_full(full=self._full)
        if begins and queue.founders[number % len(queue.founders)] == self.me:
            lane.core.claim_soon(self._now)  # lanes begin with their coordinators spread over the founders
        self.lanes[number] = self._parts[number] = self._touched[number] = lane

    def _drop_lane(self, number: int) -> None:
        """The queue was deleted: whoever waits hears that it is gone, and storage lets go of the entries."""
        lane = self.lanes.pop(number)
        self._remove(number)
        lane.abandon()
        self._collect(lane)
        for stored in (number, number | HISTORY):
            self._saves += emptied(stored, lane.core.log.end)

    def _open_pubsub(self, queue: Queue) -> None:
        held = PubSubQueue(
            me=self.me,
            queue=queue.name,
            route=queue.first_lane,
            incarnation=self.incarnation,
            images=self._images,
            rng=self._rng,
            tuning=self._tuning,
            now=self._now,
            read=self._read_pubsub,
            heard=self._heard,
        )
        held.disk_full(full=self._full)
        self.pubsub[queue.name] = self._parts[queue.first_lane] = self._touched[queue.first_lane] = held
        self.metadata.state.tell_all()  # what was told before it was there; the others hear it again, which is nothing

    def _drop_pubsub(self, name: str) -> None:
        held = self.pubsub.pop(name)
        self._remove(held.route)
        self._saves += held.abandon()
        self._collect(held)

    def _mind(self, held: PubSubQueue) -> None:
        """Carry its proposals to the metadata lane, and give it the next run when it lost the present one."""
        for proposal, kind, control in held.take_proposals():
            self._request += 1
            self._proposals[self._request] = (held.queue, proposal)
            self.metadata.write(self._request, Write(kind, b"", control=control), self._now)
            self._touched[METADATA_LANE] = self.metadata
        if held.wants_run and not self._next_run:
            self._next_run = self.incarnation + 1
            self._saves.append(SaveRun(self._next_run))

    def _run_is_durable(self, run: int) -> None:
        self.incarnation, self._next_run = run, 0
        for held in self.pubsub.values():
            held.new_run(run)
            self._touched[held.route] = held

    # ------------------------------------------------------------------ for housekeeping

    def propose(self, kind: int, control: bytes, now: float) -> int:
        """A command of this peer's own to the metadata lane; returns the request its answer will carry."""
        self._request += 1
        self.command(self._request, kind, control, write_id=b"", now=now)
        return self._request

    def confirm(self, now: float) -> int:
        """A linearizable read of the metadata lane; returns its request."""
        self._request += 1
        self.metadata.read(self._request, now)
        self._touched[METADATA_LANE] = self.metadata
        return self._request

    def touch(self, number: int) -> None:
        self._touched[number] = self._parts[number]

    # ------------------------------------------------------------------ small things

    def _touch(self, queue: str) -> None:
        held = self.pubsub[queue]
        self._touched[held.route] = held
        self._mind(held)

    def _refuse(self, request: int, code: str, reason: str) -> None:
        self.answers.append((request, Refusal(code, reason=reason)))

    def _reader(self, number: int) -> Callable[[int, int], list[Entry]]:
        def read(after: int, max_entries: int) -> list[Entry]:
            return self._disk.read(number, after=after, max_entries=max_entries, max_bytes=_READ_SIZE_BYTES)

        return read

    def _read_pubsub(self, lane: int, after: int, max_entries: int) -> list[Entry]:
        return self._disk.read(lane, after=after, max_entries=max_entries, max_bytes=_READ_SIZE_BYTES)

    def stored_files(self, lane: int) -> list[StoredFile]:
        return self._disk.stored_files(lane)

    def lane_view(self, number: int) -> LaneView | None:
        return lane_view(self, number, self._now)

    def status(self) -> dict[str, Any]:
        """This peer's view of the cluster, for people and programs."""
        now, state = self._now, self.metadata.state
        return {
            "peer": self.me,
            "incarnation": self.incarnation,
            "metadata": metadata_view(self.metadata, now),
            "peers": [
                {
                    "number": info.number,
                    "identity": info.identity.hex(),
                    "link": info.link,
                    "api": info.api,
                    "state": info.state,
                    "voter": info.number in state.voters,
                    "heard_ms": 0 if info.number == self.me else heard_ms(self, info.number, now),
                }
                for info in state.peers.by_number.values()
            ],
            "lanes": [to_builtins(view) for view in lane_views(self, now)],
            "disk_full": self._full,
        }

    def statistics(self) -> dict[str, Any]:
        return {
            "incarnation": self.incarnation,
            "lanes": len(self.lanes),
            "pubsub_queues": len(self.pubsub),
            "waiting_syncs": len(self._marks),
            "disk_full": self._full,
        }


def founding_lane_snapshot(founders: tuple[int, ...]) -> Snapshot:
    """What every founder of a queue's lane begins with; as for the metadata lane, not at position 0."""
    state = QueueState()
    state.position = 1
    return Snapshot(1, 2, founders, (), state.snapshot())
