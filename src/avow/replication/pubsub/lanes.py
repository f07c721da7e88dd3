"""The lanes of one queue that this peer knows, and the peers that get messages about them.

A peer learns of a lane from the metadata lane or, sooner, from a settler's fence. In both cases its copy begins with
what is on disk.
"""

from __future__ import annotations

from collections.abc import Iterable

from avow.errors import InvalidRequest
from avow.ids import REPAIRING
from avow.replication.durable import LaneImages
from avow.replication.effects import LaneImage, SaveCut, SaveFence, SaveState
from avow.replication.pubsub.journal import Journal
from avow.replication.pubsub.rules import Rules
from avow.replication.pubsub.state import LaneState


class Lanes:
    """`images` is what storage found, of this queue's lanes and of others; a lane that is opened is taken out of it."""

    __slots__ = ("_images", "_journal", "_me", "_rules", "_runs", "active", "by_number", "everyone")

    def __init__(self, me: int, images: LaneImages, rules: Rules, journal: Journal) -> None:
        self._me, self._images, self._rules, self._journal = me, images, rules, journal
        self.by_number: dict[int, LaneState] = {}
        self.active: list[LaneState] = []  # undecided, or not complete here
        self.everyone: tuple[int, ...] = ()
        self._runs: dict[int, int] = {}  # peer -> its newest incarnation that opened a lane

    def known(self, number: int) -> LaneState:
        lane = self.by_number.get(number)
        if lane is None or not lane.voters:
            raise InvalidRequest(
                f"lane {number} is not open on this peer; nothing was changed. Read the queue's list of lanes"
            )
        return lane

    def claim(self, number: int, *, new: bool = False) -> LaneState:
        """The lane of this number, restored from what is on disk. `new`: this run created it, so nothing of it can be
        lost."""
        lane = self.by_number.get(number)
        if lane is None:
            image = None if new else self._images.take(number)
            lane = self.by_number[number] = self._restore(number, image or LaneImage(entries=[]))
        return lane

    def _restore(self, number: int, image: LaneImage) -> LaneState:
        lane = LaneState(number, image, repairing=self._rules.has_lost_entries(image))
        if lane.decided >= 0:
            if lane.end > lane.decided:  # the peer crashed after it stored the end and before the cut
                lane.cut(lane.decided)
                self._journal.save(lane, SaveCut(number, lane.decided))
        elif lane.repairing and image.stamped != REPAIRING:
            # before anything is stored again: the next start must still know that this copy lost entries
            self._journal.save(lane, SaveState(number, 0, REPAIRING))
            if lane.fenced:  # of a lane that was lost as a whole, this is not on disk either
                self._journal.save(lane, SaveFence(number, -1))
        return lane

    def opened(self, lane: LaneState, *, owner: int, incarnation: int, voters: tuple[int, ...], now: float) -> None:
        lane.open_for(owner=owner, incarnation=incarnation, voters=voters, now=now)
        lane.speak_to(self._audience(lane))
        self.active.append(lane)
        self._runs[owner] = max(incarnation, self._runs.get(owner, 0))

    def members(self, voters: Iterable[int], learners: Iterable[int]) -> None:
        """The peers that get messages from now on. Does not change the voters of open lanes."""
        self.everyone = tuple(dict.fromkeys((*voters, *learners)))
        for lane in self.active:
            lane.speak_to(self._audience(lane))

    def _audience(self, lane: LaneState) -> tuple[int, ...]:
        return tuple(peer for peer in dict.fromkeys((*self.everyone, *lane.voters)) if peer != self._me)

    def is_of_older_run(self, lane: LaneState) -> bool:
        """A later run of its owner has opened a lane."""
        return lane.incarnation < self._runs[lane.owner]

    def undecided(self) -> list[LaneState]:
        return [lane for lane in self.active if lane.decided < 0]

    def retire(self) -> None:
        """Drop ended lanes that are complete here from the active ones."""
        self.active = [lane for lane in self.active if not lane.complete]

    def drop(self, lane: LaneState) -> None:
        del self.by_number[lane.number]
        self.active = [other for other in self.active if other is not lane]
