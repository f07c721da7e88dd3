"""Follows the queues of the metadata lane: new ones are opened on this peer, and those of deleted ones are dropped.

Only what changed is looked at, so one more queue costs the same however many there are. The lanes of a new two-phase
queue are opened a part at a time, because other peers wait for this one's heartbeats meanwhile.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from avow.node.node import Node
    from avow.queue.metadata_state import MetadataState
    from avow.queue.records import Queue


class QueueFollower:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._seen: tuple[MetadataState | None, int] = (None, -1)  # the state, and when its queues last changed
        self._queues: dict[int, Queue] = {}  # first lane -> queue, of those that this peer should hold
        self.by_lane: dict[int, Queue] = {}  # of the two-phase lanes that this peer should hold
        self.unopened: dict[int, Queue] = {}  # those of them that are not open yet

    def follow(self, state: MetadataState) -> None:
        if self._seen != (state, state.subscribed_at):
            self._seen = (state, state.subscribed_at)
            self._compare(state)
        self._node.lane_set.forget_gone()

    def _compare(self, state: MetadataState) -> None:
        wanted, me = {queue.first_lane: queue for queue in state.queues()}, self._node.me
        for first in [first for first in self._queues if first not in wanted]:
            self._drop(self._queues.pop(first))
        for first, queue in wanted.items():
            if first not in self._queues and (not queue.peers or me in queue.peers):
                self._queues[first] = queue
                self._begin(queue)
        self.open_some()

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
