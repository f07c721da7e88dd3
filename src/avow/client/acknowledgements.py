"""Tracks which batches a subscriber has received, processed and committed durably. Pure: no channel, no event loop.

A peer pushes groups of one lane's messages, each followed by a commit, starting at the subscriber's cursors. The ack of
a commit moves the cursors past all groups before it. When the channel fails, the next one starts at the cursors again:
messages that were delivered and not committed arrive again, in other groups and under other commits, and must not be
delivered twice. So this class works with lanes and versions, and looks up commits only when it acknowledges them:

    per lane     cursor ── durable ── processed ── delivered ── versions
    per channel  groups in order of arrival: (commit, lane, last version), until acknowledged

A commit may be acknowledged when every group up to it is processed. Committing a batch means that everything delivered
up to it is processed; the call is done when that is durable, on any channel. Messages that arrive again come in other
groups, which may not end where the delivered batches ended. Versions that do not coincide with a commit are sent to the
peer explicitly (`unreported`).

A lane may go to another member and come back. Batches delivered before no longer belong to this reader then: each time
a lane is taken it gets a new `tenure`, and a batch remembers the tenure it belongs to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

_LOST_MAX: Final = 1_024


class Lane:
    """Versions: delivered up to `delivered_to`, reported as processed on this channel up to `reported_to`, on any
    channel up to `ever_reported_to`."""

    __slots__ = ("delivered_to", "durable_to", "ever_reported_to", "processed_to", "reported_to", "tenure")

    def __init__(self, after: int, tenure: int) -> None:
        self.delivered_to = self.processed_to = self.durable_to = after
        self.reported_to = self.ever_reported_to = after
        self.tenure = tenure

    def report(self, version: int) -> None:
        self.reported_to = max(self.reported_to, version)
        self.ever_reported_to = max(self.ever_reported_to, version)


class Delivery(Struct, frozen=True, gc=False):
    """A delivered batch: its number in order of delivery, its lane and last version, and the tenure of the lane."""

    number: int
    lane: int
    version: int
    tenure: int


class Group(Struct, frozen=True, gc=False):
    commit_id: int
    lane: int
    version: int


class Acknowledgements:
    def __init__(self) -> None:
        self.lanes: dict[int, Lane] = {}
        self._tenures = self._numbers = 0
        self._groups: deque[Group] = deque()  # of this channel, not acknowledged
        self._received: dict[int, int] = {}  # since the last commit: lane -> version
        self._deliveries: deque[Delivery] = deque()  # delivered and not committed, in order
        self._lost: dict[int, Lane] = {}  # by tenure: the state of lanes when they were lost

    # ------------------------------------------------------------------- a channel

    def begin(self, lanes: Mapping[int, int]) -> list[int]:
        """A new channel with these lanes, each starting after its cursor. Returns the lanes that are lost."""
        self._groups.clear()
        self._received.clear()
        lost = [lane for lane in self.lanes if lane not in lanes]
        lost += [lane for lane, after in lanes.items() if self._moved_by_others(lane, after)]
        for lane in lost:
            held = self.lanes.pop(lane)
            self._lost[held.tenure] = held
        while len(self._lost) > _LOST_MAX:
            del self._lost[next(iter(self._lost))]
        for lane, after in lanes.items():
            self.take(lane, after)
        return lost

    def _moved_by_others(self, lane: int, after: int) -> bool:
        """Whether the cursor is ahead of all this reader has reported: another reader had the lane in between."""
        held = self.lanes.get(lane)
        return held is not None and after > held.ever_reported_to

    def take(self, lane: int, after: int) -> None:
        """This channel has the lane. If this reader had it before, it continues where it was."""
        held = self.lanes.get(lane)
        if held is None:
            self._tenures += 1
            self.lanes[lane] = Lane(after, self._tenures)
        else:
            held.durable_to = max(held.durable_to, after)
            held.reported_to = after

    def received(self, lane: int, first: int, last: int) -> int:
        """Messages arrived. Returns the first version to deliver; above `last` if all were delivered before."""
        if lane not in self.lanes:
            self.take(lane, first - 1)
        held = self.lanes[lane]
        start = max(first, held.delivered_to + 1)
        held.delivered_to = max(held.delivered_to, last)
        self._received[lane] = max(last, self._received.get(lane, 0))
        return start

    def commit_received(self, commit_id: int) -> None:
        """A commit arrived and covers what was received before it. Without new messages it replaces the last one."""
        found, self._received = self._received, {}
        if not found and self._groups:
            last = self._groups.pop()
            self._groups.append(Group(commit_id, last.lane, last.version))
        for lane, version in found.items():
            self._groups.append(Group(commit_id, lane, version))

    # ---------------------------------------------------------------- a subscriber

    def deliver(self, lane: int, version: int) -> Delivery:
        """A batch is delivered to the subscriber. Called in order of delivery."""
        self._numbers += 1
        delivery = Delivery(self._numbers, lane, version, self.lanes[lane].tenure)
        self._deliveries.append(delivery)
        return delivery

    def holds(self, delivery: Delivery) -> bool:
        """Whether this reader has held the lane without interruption since the batch was received."""
        held = self.lanes.get(delivery.lane)
        return held is not None and held.tenure == delivery.tenure

    def is_done(self, delivery: Delivery) -> bool:
        """Whether the cursor is known to have passed the batch while this reader had its lane."""
        held = self._held_then(delivery)
        return held is not None and held.durable_to >= delivery.version

    def was_reported(self, delivery: Delivery) -> bool:
        """Whether a peer was told that the batch is processed: then the cursor may have passed it."""
        held = self._held_then(delivery)
        return held is not None and held.ever_reported_to >= delivery.version

    def _held_then(self, delivery: Delivery) -> Lane | None:
        return self.lanes[delivery.lane] if self.holds(delivery) else self._lost.get(delivery.tenure)

    def process(self, delivery: Delivery) -> None:
        """The subscriber has processed everything up to this batch."""
        while self._deliveries and self._deliveries[0].number <= delivery.number:
            done = self._deliveries.popleft()
            if self.holds(done):
                held = self.lanes[done.lane]
                held.processed_to = max(held.processed_to, done.version)

    def ackable(self) -> int:
        """The highest commit that may be acknowledged now; 0: none. It counts as acknowledged from here on."""
        commit_id = 0
        while self._groups and self._is_processed(self._groups[0]):
            group = self._groups.popleft()
            commit_id = group.commit_id
            held = self.lanes.get(group.lane)
            if held is not None:
                held.report(group.version)
        return commit_id

    def _is_processed(self, group: Group) -> bool:
        held = self.lanes.get(group.lane)
        return held is None or held.processed_to >= group.version

    def unreported(self) -> dict[int, int]:
        """Lane -> version that is processed but not covered by a commit of this channel. Counts as reported.

        Called after `ackable`: what remains ends in the middle of a group, comes after another lane's group, or was
        delivered from an earlier channel and has not arrived again.
        """
        found = {}
        for lane, held in self.lanes.items():
            if held.processed_to > held.reported_to:
                found[lane] = held.processed_to
                held.report(held.processed_to)
        return found

    # -------------------------------------------------------------------- durable

    def reported(self) -> dict[int, tuple[int, int]]:
        """Lane -> (tenure, version) as reported on this channel: durable when its next commit is acknowledged."""
        return {lane: (held.tenure, held.reported_to) for lane, held in self.lanes.items()}

    def processed(self) -> dict[int, tuple[int, int]]:
        return {lane: (held.tenure, held.processed_to) for lane, held in self.lanes.items()}

    def durable(self, versions: Mapping[int, tuple[int, int]]) -> None:
        for lane, (tenure, version) in versions.items():
            held = self.lanes.get(lane)
            if held is not None and held.tenure == tenure:
                held.durable_to = max(held.durable_to, version)

    def is_durable(self, versions: Mapping[int, tuple[int, int]]) -> bool:
        """Whether these versions are durable. Lanes that this reader has lost are ignored."""
        for lane, (tenure, version) in versions.items():
            held = self.lanes.get(lane)
            if held is not None and held.tenure == tenure and held.durable_to < version:
                return False
        return True

    def statistics(self) -> dict[str, int]:
        return {
            "lanes": len(self.lanes),
            "groups": len(self._groups),
            "uncommitted_batches": len(self._deliveries),
        }
