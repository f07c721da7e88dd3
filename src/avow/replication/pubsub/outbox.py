"""What a core wants done, collected until it is drained, and what a sync then makes true.

Three lists fill up between two drains: sends that depend on nothing, things to persist, and sends that may leave only
once those are synced. The order contract is that of `replication.effects`. Two things are decided here only:

- A send that depends on durable state waits for every sync that is still outstanding, also when the drain that carries
  it persists nothing itself: it then gets a ticket of its own, because what it depends on may be in an earlier record.
- A sync makes a copy durable up to the end it had when the record was drained, not up to the end it has when the news
  arrives. The ends of all lanes touched by a record are noted with its ticket.

What a peer stored is announced when the sync is reported, once per lane, with the highest position: a peer that took
fifty batches between two syncs, in fifty drains, says so in one message.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from avow.replication.effects import Effects, Persist
from avow.replication.pubsub.lane import Lane
from avow.wire.messages import Message


class Outbox(ABC):
    def __init__(self, *, me: int) -> None:
        self.me = me
        self._lanes: dict[int, Lane] = {}
        self._sends: list[tuple[int, Message]] = []
        self._persist: list[Persist] = []
        self._synced: list[tuple[int, Message]] = []
        self._dirty: list[Lane] = []
        self._announcing: list[Lane] = []  # more of them became durable since the last drain
        self._unsent: Lane | None = None  # own lane with entries that have not been sent yet
        self._ticket = self._persisted_ticket = 0
        self._marks: deque[tuple[int, list[tuple[Lane, int, bool]]]] = deque()  # (ticket, [(lane, end, fenced)])

    def drain(self) -> Effects | None:
        """Everything to do since the last call, or None."""
        if self._unsent is not None:
            self._send_own(self._unsent)
            self._unsent = None
        if self._announcing:
            for lane in self._announcing:
                self._announce(lane)
            self._announcing = []
        if self._persist or (self._synced and self._persisted_ticket < self._ticket):
            return self._ticketed()
        if self._synced:  # all they depend on is durable already
            self._sends += self._synced
            self._synced = []
        if not self._sends:
            return None
        effects = Effects(0, self._sends, [], [])
        self._sends = []
        return effects

    def persisted(self, ticket: int, now: float) -> None:
        """The effects with this ticket, and all before them, are synced."""
        self._persisted_ticket = max(self._persisted_ticket, ticket)
        marks = self._marks
        while marks and marks[0][0] <= ticket:
            for lane, end, fenced in marks.popleft()[1]:
                if self._lanes.get(lane.number) is lane:  # else it was dropped meanwhile
                    self._became_durable(lane, end, fenced=fenced, now=now)

    def _ticketed(self) -> Effects:
        self._ticket += 1
        marks = []
        for lane in self._dirty:
            marks.append((lane, lane.end, lane.fenced))
            lane.dirty = False
        self._marks.append((self._ticket, marks))
        effects = Effects(self._ticket, self._sends, self._persist, self._synced)
        self._sends, self._persist, self._synced, self._dirty = [], [], [], []
        return effects

    def _save(self, lane: Lane, effect: Persist) -> None:
        self._persist.append(effect)
        if not lane.dirty:
            lane.dirty = True
            self._dirty.append(lane)

    # ------------------------------------------------------------------ when a message may leave

    def _send_now(self, peer: int, message: Message) -> None:
        self._sends.append((peer, message))

    def _send_synced(self, peer: int, message: Message) -> None:
        self._synced.append((peer, message))

    def _to_all_now(self, lane: Lane, message: Message) -> None:
        sends = self._sends
        for peer in lane.audience:
            sends.append((peer, message))

    # ------------------------------------------------------------------ filled in by the layers above

    @abstractmethod
    def _send_own(self, lane: Lane) -> None:
        """Send the own lane's entries that were appended since the last drain."""

    @abstractmethod
    def _announce(self, lane: Lane) -> None:
        """Tell everybody how much of the lane is stored here."""

    @abstractmethod
    def _became_durable(self, lane: Lane, end: int, *, fenced: bool, now: float) -> None:
        """A sync covered the lane up to `end`, and its fence if it was `fenced` then."""
