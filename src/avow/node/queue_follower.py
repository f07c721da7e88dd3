"""Follows the queues of the metadata lane: new ones are opened on this peer, and those of deleted ones are dropped.

Only what changed is looked at, so one more queue costs the same however many there are. The lanes of a new two-phase
queue are opened a part at a time, because other peers wait for this one's heartbeats meanwhile.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from avow.node.metadata_lane import MetadataLane
    from avow.node.node import Node
    from avow.queue.metadata_state import MetadataState
    from avow.queue.records import Queue


class QueueFollower:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._state: MetadataState | None = None  # the one that was compared; a snapshot replaces it
        self._by_name: dict[str, Queue] = {}  # queues that this peer should hold
        self.by_lane: dict[int, Queue] = {}  # of the two-phase lanes that this peer should hold
        self.unopened: dict[int, Queue] = {}  # those of them that are not open yet

    def follow(self, metadata: MetadataLane) -> None:
        state, changed = metadata.state, metadata.machine.take_changed_queues()
        if state is not self._state:
            self._state = state
            changed = [*self._by_name, *state.catalog.by_name]
        if changed:
            for name in dict.fromkeys(changed):
                self._compare(name, state.queue(name))
            self.open_some()
        self._node.lane_set.forget_gone()

    def _compare(self, name: str, queue: Queue | None) -> None:
        known = self._by_name.get(name)
        if known is not None and (queue is None or queue.first_lane != known.first_lane):
            self._drop(self._by_name.pop(name))
            known = None
        if queue is not None and known is None and (not queue.peers or self._node.me in queue.peers):
            self._by_name[name] = queue
            self._begin(queue)

    def _begin(self, queue: Queue) -> None:
        if queue.strategy == "pub-sub":
            self._node.lane_set.open_queue(queue)
        else:
            lanes = dict.fromkeys(range(queue.first_lane, queue.first_lane + queue.lanes), queue)
            self.by_lane.update(lanes)
            self.unopened.update(lanes)

    def _drop(self, queue: Queue) -> None:
        held = self._node.lane_set
        if queue.strategy == "pub-sub":
            held.drop_queue(queue.name)
            return
        for number in range(queue.first_lane, queue.first_lane + queue.lanes):
            del self.by_lane[number]
            self.unopened.pop(number, None)
            if number in self._node.lanes:
                held.drop_lane(number)

    def open_some(self) -> None:
        self._open(self._node.pace.opened_max)

    def open_all(self) -> None:
        """At the start, when no other peer waits for this one."""
        self._open(len(self.unopened))

    def _open(self, count: int) -> None:
        for number in list(islice(self.unopened, count)):
            self._node.lane_set.open_lane(number, self.unopened.pop(number))
