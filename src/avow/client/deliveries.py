"""What a subscriber was given, what it has dealt with, and what its queue knows of that. Pure: no channel, no loop.

A peer pushes groups of one lane's messages, each with a commit behind it, from the subscriber's cursors on. The ack of
a commit moves the cursors past all groups before it. When the channel fails, the next one begins at the cursors again:
what was handed out before and not committed comes once more, in other groups and under other commits, and must not be
handed out once more. So everything here is said in lanes and versions, and commits are looked up at the last moment:

    per lane     cursor ── durable ── processed ── handed out ── versions
    per channel  groups in the order they came: (commit, lane, last version), until acknowledged

A commit may be acknowledged when every group up to it is processed. Committing a batch means: everything that was
handed out up to it is processed. It is done when that is durable, on whichever channel. What comes once more comes in
other groups, which may end elsewhere than the batches that were handed out. Versions that no commit stands for are
named to the peer (`unsaid`).

A lane may go to another member, and may come back. What was handed out of it in between is not this reader's any more:
each time a lane is taken, it gets a new `tenure`, and a batch remembers the one it is of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

_LOST_MAX: Final = 1_024


class Lane:
    """Versions: `handed_to` is in the subscriber's hands or on the way there, `said_to` was said on this channel to be
    processed, `ever_said_to` on any."""

    __slots__ = ("durable_to", "ever_said_to", "handed_to", "processed_to", "said_to", "tenure")

    def __init__(self, after: int, tenure: int) -> None:
        self.handed_to = self.processed_to = self.durable_to = after
        self.said_to = self.ever_said_to = after
        self.tenure = tenure

    def say(self, version: int) -> None:
        self.said_to = max(self.said_to, version)
        self.ever_said_to = max(self.ever_said_to, version)


class Place(Struct, frozen=True, gc=False):
    """Where a batch stands: the `number`th that was handed out, the last version of it, in this tenure of its lane."""

    number: int
    lane: int
    version: int
    tenure: int


class Group(Struct, frozen=True, gc=False):
    commit_id: int
    lane: int
    version: int


class Deliveries:
    def __init__(self) -> None:
        self.lanes: dict[int, Lane] = {}
        self._tenures = self._numbers = 0
        self._groups: deque[Group] = deque()  # of this channel, not acknowledged
        self._received: dict[int, int] = {}  # behind the last commit: lane -> version
        self._places: deque[Place] = deque()  # handed out and not committed, in order
        self._lost: dict[int, Lane] = {}  # by tenure: lanes as they were when they were lost

    # ------------------------------------------------------------------- a channel

    def begin(self, lanes: Mapping[int, int]) -> list[int]:
        """A new channel, for these lanes, each after its cursor. The lanes that are lost are returned."""
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
        """Its cursor is further than this reader has ever said: somebody else had the lane in between."""
        held = self.lanes.get(lane)
        return held is not None and after > held.ever_said_to

    def take(self, lane: int, after: int) -> None:
        """A lane is this channel's. One that was its reader's before goes on where it was."""
        held = self.lanes.get(lane)
        if held is None:
            self._tenures += 1
            self.lanes[lane] = Lane(after, self._tenures)
        else:
            held.durable_to = max(held.durable_to, after)
            held.said_to = after

    def received(self, lane: int, first: int, last: int) -> int:
        """Messages came. The first version to hand out, above `last` when all were handed out before."""
        if lane not in self.lanes:
            self.take(lane, first - 1)
        held = self.lanes[lane]
        start = max(first, held.handed_to + 1)
        held.handed_to = max(held.handed_to, last)
        self._received[lane] = max(last, self._received.get(lane, 0))
        return start

    def commit_came(self, commit_id: int) -> None:
        """Behind what was received. One without anything before it is the last one's again."""
        found, self._received = self._received, {}
        if not found and self._groups:
            last = self._groups.pop()
            self._groups.append(Group(commit_id, last.lane, last.version))
        for lane, version in found.items():
            self._groups.append(Group(commit_id, lane, version))

    # ---------------------------------------------------------------- a subscriber

    def place(self, lane: int, version: int) -> Place:
        """A batch is on its way to the subscriber. Called in the order in which batches get there."""
        self._numbers += 1
        place = Place(self._numbers, lane, version, self.lanes[lane].tenure)
        self._places.append(place)
        return place

    def holds(self, place: Place) -> bool:
        """Whether its lane is still this reader's, as it was when the batch was received."""
        held = self.lanes.get(place.lane)
        return held is not None and held.tenure == place.tenure

    def is_done(self, place: Place) -> bool:
        """Whether the cursor is known to have passed it while its lane was this reader's."""
        held = self._held_then(place)
        return held is not None and held.durable_to >= place.version

    def was_said(self, place: Place) -> bool:
        """Whether a peer was told that it is processed: then the cursor may have passed it."""
        held = self._held_then(place)
        return held is not None and held.ever_said_to >= place.version

    def _held_then(self, place: Place) -> Lane | None:
        return self.lanes[place.lane] if self.holds(place) else self._lost.get(place.tenure)

    def process(self, place: Place) -> None:
        """The subscriber has dealt with everything up to this batch."""
        while self._places and self._places[0].number <= place.number:
            done = self._places.popleft()
            if self.holds(done):
                held = self.lanes[done.lane]
                held.processed_to = max(held.processed_to, done.version)

    def ackable(self) -> int:
        """The highest commit that may be acknowledged now and was not; 0: none. It counts as acknowledged."""
        commit_id = 0
        while self._groups and self._is_processed(self._groups[0]):
            group = self._groups.popleft()
            commit_id = group.commit_id
            held = self.lanes.get(group.lane)
            if held is not None:
                held.say(group.version)
        return commit_id

    def _is_processed(self, group: Group) -> bool:
        held = self.lanes.get(group.lane)
        return held is None or held.processed_to >= group.version

    def unsaid(self) -> dict[int, int]:
        """Lane -> version that is processed, and that no commit of this channel says. Counts as said.

        Asked after `ackable`: what is left ends in the middle of a group, lies behind another lane's, or was handed out
        from an earlier channel and has not come again.
        """
        found = {}
        for lane, held in self.lanes.items():
            if held.processed_to > held.said_to:
                found[lane] = held.processed_to
                held.say(held.processed_to)
        return found

    # -------------------------------------------------------------------- durable

    def said(self) -> dict[int, tuple[int, int]]:
        """Lane -> (tenure, version) as said on this channel: durable when its next barrier is answered."""
        return {lane: (held.tenure, held.said_to) for lane, held in self.lanes.items()}

    def processed(self) -> dict[int, tuple[int, int]]:
        return {lane: (held.tenure, held.processed_to) for lane, held in self.lanes.items()}

    def durable(self, versions: Mapping[int, tuple[int, int]]) -> None:
        for lane, (tenure, version) in versions.items():
            held = self.lanes.get(lane)
            if held is not None and held.tenure == tenure:
                held.durable_to = max(held.durable_to, version)

    def is_durable(self, versions: Mapping[int, tuple[int, int]]) -> bool:
        """Of the lanes that are still this reader's; others are not its to wait for."""
        for lane, (tenure, version) in versions.items():
            held = self.lanes.get(lane)
            if held is not None and held.tenure == tenure and held.durable_to < version:
                return False
        return True

    def statistics(self) -> dict[str, int]:
        return {
            "lanes": len(self.lanes),
            "groups": len(self._groups),
            "uncommitted_batches": len(self._places),
        }
