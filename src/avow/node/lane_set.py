"""The lanes and pub-sub queues that a peer holds: each is opened from what is on disk, and dropped permanently.

The metadata lane decides which ones a peer should hold; the node compares and calls. A lane of which this peer is a
founder begins with a snapshot, like the metadata lane. A lane that it joins begins empty and is fed by the other peers.
A dropped lane leaves only its number on disk; numbers are never reused.

Run numbers: each is durable before anything is done under it, and none is used twice. The process makes the number of
its first run durable before it creates the node. A node begins another run after it lost a pub-sub lane of the current
one: a lane belongs to one run, so the next lane needs the next number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from avow.ids import REPAIRING
from avow.node.backfill import HISTORY
from avow.node.lane.queue_lane import QueueLane
from avow.node.metadata_lane import METADATA_LANE, LanesListed, MetadataLane, founding_snapshot
from avow.node.pubsub.lanes import forgotten_images
from avow.node.pubsub.queue import PubSubQueue
from avow.queue.records import Queue
from avow.queue.state import QueueState
from avow.replication.durable import LOST_UNBOUNDED, LaneImages
from avow.replication.effects import LaneImage, SaveLossBound, SaveSnapshot
from avow.replication.pubsub.retention import emptied
from avow.wire.messages import Entry, Snapshot

if TYPE_CHECKING:
    from avow.node.node import Node


class RunNumbers:
    """`current` is durable. `starting` is being written; 0: none is."""

    __slots__ = ("current", "starting")

    def __init__(self, current: int) -> None:
        self.current, self.starting = current, 0

    def begin(self) -> int:
        """The number of the next run, to be persisted now."""
        self.starting = self.current + 1
        return self.starting

    def durable(self, run: int) -> None:
        self.current, self.starting = run, 0


METADATA_SNAPSHOT_EVERY: Final = 512
SNAPSHOT_EVERY: Final = 65_536
SNAPSHOT_BYTES: Final = 128 * 1024 * 1024
_READ_SIZE_BYTES: Final = 8 * 1024 * 1024  # of one read of older entries, for a peer that is behind


class LaneSet:
    """`images` is what storage found of lanes that are not open yet."""

    def __init__(self, node: Node, images: LaneImages) -> None:
        self._node, self.images = node, images
        self.lanes: dict[int, QueueLane] = {}
        self.pubsub: dict[str, PubSubQueue] = {}
        self.queues_by_route: dict[int, PubSubQueue] = {}

    def open_metadata(self, founders: tuple[int, ...], level: int) -> MetadataLane:
        node = self._node
        found = self.images.take(METADATA_LANE)
        found = found or LaneImage()
        if founders and is_new(found):
            snapshot = founding_snapshot(founders, level=level)
            found = LaneImage(found.promised, found.stamped, snapshot, [])
            node.mux.saves.append(SaveSnapshot(METADATA_LANE, snapshot, reset=True))
        lane = node.roles.metadata_lane(
            me=node.me,
            lane=METADATA_LANE,
            image=found,
            rng=node.rng,
            tuning=node.tuning,
            now=node.now,
            snapshot_every=METADATA_SNAPSHOT_EVERY,
            read=self._reader(METADATA_LANE),
            peers=node.peers,
            roles=node.roles.lane,
        )
        node.mux.add(METADATA_LANE, lane)
        return lane

    # ------------------------------------------------------------------ two-phase lanes

    def open_lane(self, number: int, queue: Queue) -> None:
        """Ignores a lane that an earlier run dropped: the deletion follows later in the metadata lane."""
        node = self._node
        if _was_dropped(self.images.get(number)):
            return
        image = self.images.take(number) or LaneImage()
        begins = node.me in queue.founders and is_new(image)
        if begins:
            snapshot = node.roles.founding_lane(queue.founders)
            image = LaneImage(image.promised, image.stamped, snapshot, [])
            node.mux.saves.append(SaveSnapshot(number, snapshot, reset=True))
        lane = node.roles.queue_lane(
            me=node.me,
            lane=number,
            image=image,
            rng=node.rng,
            tuning=node.tuning,
            now=node.now,
            snapshot_every=SNAPSHOT_EVERY,
            snapshot_bytes=SNAPSHOT_BYTES,
            read=self._reader(number),
            history=self.images.pop(number | HISTORY, None),
            read_history=self._reader(number | HISTORY),
            peers=node.peers,
            on_damage=partial(node.touch, number),
            roles=node.roles.lane,
        )
        if begins and queue.founders[number % len(queue.founders)] == node.me:
            lane.core.claim_new()  # spreads the coordinators of new lanes over the founders
        self.lanes[number] = lane
        node.mux.add(number, lane)

    def drop_lane(self, number: int) -> None:
        """The queue was deleted: answer all waiting requests, and delete the entries from storage."""
        node = self._node
        lane = self.lanes.pop(number)
        node.mux.remove(number)
        lane.abandon()
        node.collect(lane.take_answers())
        for stored in (number, number | HISTORY):
            node.mux.saves.extend(emptied(stored, lane.core.log.end))

    # ------------------------------------------------------------------ pub-sub queues

    def open_queue(self, queue: Queue) -> None:
        node = self._node
        held = node.roles.pubsub_queue(
            me=node.me,
            queue=queue.name,
            route=queue.first_lane,
            incarnation=node.incarnation,
            images=self.images,
            rng=node.rng,
            tuning=node.tuning,
            now=node.now,
            read=self._read,
            heard=node.heard,
            roles=node.roles.queue,
        )
        self.pubsub[queue.name] = self.queues_by_route[queue.first_lane] = held
        node.mux.add(queue.first_lane, held)
        node.metadata.report_all()  # it missed the facts so far; the other queues ignore facts they already know

    def drop_queue(self, name: str) -> None:
        node = self._node
        held = self.pubsub.pop(name)
        del self.queues_by_route[held.route]
        node.mux.remove(held.route)
        node.mux.saves.extend(held.abandon())
        node.collect(held.take_answers())

    @property
    def loss_is_unbounded(self) -> bool:
        return self.images.lost_below == LOST_UNBOUNDED

    def bound_loss(self) -> None:
        """The metadata lane was read as of now: lanes that get a number later cannot have been lost."""
        self.images.lost_below = self._node.metadata.state.lanes.next_number
        self._node.mux.saves.append(SaveLossBound(self.images.lost_below))

    def forget_gone(self) -> None:
        """Delete from disk the lanes that were created and removed while this peer was down. They are never opened
        here, so nothing else deletes them."""
        if not self.images:
            return
        state = self._node.metadata.state
        known = set(state.lanes.by_number)
        for queue in state.queues():
            known.update(range(queue.first_lane, queue.first_lane + queue.lanes))
        table = LanesListed(state.lanes.next_number, frozenset(known))
        self._node.mux.saves.extend(forgotten_images(self.images, table))

    # ------------------------------------------------------------------ storage

    def _reader(self, number: int) -> Callable[[int, int], list[Entry]]:
        def read(after: int, max_entries: int) -> list[Entry]:
            return self._read(number, after, max_entries)

        return read

    def _read(self, lane: int, after: int, max_entries: int) -> list[Entry]:
        return self._node.disk.read(lane, after=after, max_entries=max_entries, max_bytes=_READ_SIZE_BYTES)


def is_new(image: LaneImage) -> bool:
    """Nothing of the lane was ever here. A lane that was here and is lost must not begin again as its founders did."""
    lost = image.damaged_from > 0 or image.stamped == REPAIRING
    return image.snapshot is None and not image.entries and not lost


def _was_dropped(image: LaneImage | None) -> bool:
    """A snapshot without a state is what `emptied` leaves."""
    return image is not None and image.snapshot is not None and not image.snapshot.state


def founding_lane_snapshot(founders: tuple[int, ...]) -> Snapshot:
    """The initial snapshot of a queue's lane, the same on every founder; at position 1, like the metadata lane's."""
    state = QueueState()
    state.position = 1
    return Snapshot(1, 2, founders, (), state.snapshot())
