"""The lane this run appends to: who may append, when the lane is lost, and how its owner ends it.

A run has one lane at a time. The lane is *lost* when another peer fenced it: this run must not append to it any more,
and others settle it. The owner can end its lane itself (`close`): it stops, waits until all it wrote is committed,
makes its fence durable and proposes the end. Every other copy is a prefix of that, and all of it is committed, so any
settler finds the same end.
"""

from __future__ import annotations

from avow.errors import DiskFull, LaneEnded, Offline
from avow.replication.effects import SaveFence
from avow.replication.pubsub.context import Context
from avow.replication.pubsub.state import UNDECIDED, LaneState
from avow.wire.messages import LaneEnqueue, LaneReject


class Ownership:
    """`incarnation` is durable and was never used by an earlier run."""

    def __init__(self, context: Context, incarnation: int) -> None:
        self._me, self._tuning, self._rules = context.me, context.tuning, context.rules
        self._effects, self._journal, self._notifications = context.effects, context.journal, context.notifications
        self._liveness = context.liveness
        self.run = incarnation
        self.lane: LaneState | None = None
        self.unsent: LaneState | None = None  # the lane, if it has entries that were not sent yet
        self._closing = self._lost = False  # of `lane`

    # ------------------------------------------------------------------ the own lane

    def opened(self, lane: LaneState) -> None:
        """The metadata lane opened a lane; it may be this run's."""
        mine = self._rules.owns_run(lane, me=self._me, incarnation=self.run)
        if not mine or self.lane is not None or lane.decided >= 0:
            return
        self.lane, self._closing, self._lost = lane, False, False
        lane.own()
        if lane.fenced:  # another peer fenced the lane before this run learned of it
            self.lose(lane)

    def new_run(self, incarnation: int) -> None:
        """The lanes this peer owned are orphans from here on."""
        self.run = incarnation
        self.lane = None

    def lose(self, lane: LaneState) -> None:
        """Another peer fenced the lane: if it is the own lane, this run must not append to it any more."""
        if lane is not self.lane or self._lost or lane.decided >= 0:
            return
        self._lost = True
        if not self._closing:
            self._notifications.lost(lane.number)

    def on_reject(self, _source: int, message: LaneReject, _now: float) -> None:
        lane = self.lane
        if lane is not None and lane.number == message.lane:
            self.lose(lane)

    def ended(self, lane: LaneState) -> None:
        """Other peers ended the lane of a live owner."""
        if lane is not self.lane:
            return
        self.lane = None
        if not self._lost and not self._closing:
            self._notifications.lost(lane.number)

    def drop(self, lane: LaneState) -> None:
        self.lane = None if self.lane is lane else self.lane
        self.unsent = None if self.unsent is lane else self.unsent

    def appends_to(self, lane: LaneState) -> bool:
        """Whether it is the own lane and not lost."""
        return lane is self.lane and not self._lost

    # ------------------------------------------------------------------ appending

    @property
    def is_open(self) -> bool:
        """Whether this run may append: it knows of no fence, end or close."""
        return self.lane is not None and not (self.lane.fenced or self._closing or self._lost)

    def writable(self, now: float) -> LaneState:
        """Raises Offline, LaneEnded or DiskFull."""
        lane = self.lane
        if lane is None:
            raise Offline("this peer has not opened a lane in the queue yet; nothing was stored. Retry")
        if lane.fenced or self._closing or self._lost:
            raise LaneEnded(f"lane {lane.number} has ended; nothing was stored. Retry: the peer opens another lane")
        if self._journal.full:
            raise DiskFull("this peer's disk is full; nothing was stored. Write to another peer, or free disk space")
        if not self._liveness.reaches_quorum(lane, now):
            raise Offline(f"this peer cannot reach a quorum of the voters {lane.voters}; nothing was stored. Retry")
        if lane.end - lane.cursor >= self._tuning.in_flight_entries:
            raise Offline(f"{lane.end - lane.cursor} entries already wait for a quorum; nothing was stored. Retry")
        return lane

    def appended(self, lane: LaneState) -> None:
        """Entries are sent at the drain: those of one turn of the loop leave as one message."""
        self.unsent = lane

    def send(self, lane: LaneState) -> None:
        """Send what was appended since the last drain."""
        self.unsent = None
        while (after := lane.sent_to) < lane.end:
            entries = lane.take_unsent(self._tuning.piece_entries)
            self._effects.send_all(lane.audience, LaneEnqueue(lane.number, after, entries, lane.cursor))

    def committed(self, lane: LaneState) -> None:
        """A lane this peer wrote, in this run or before it was lost, is committed up to its cursor."""
        to = min(lane.cursor, lane.end)  # an end that was decided beyond what this run wrote names no entry of it
        self._notifications.accepted(lane.number, to, lane.stored_by(to))
        if lane is self.lane and self._closing:
            self._try_close(lane)

    # ------------------------------------------------------------------ closing

    def close(self) -> None:
        """Stop appending; when all of it is committed, propose its end."""
        if self.lane is not None and self.is_open:
            self._closing = True
            self._try_close(self.lane)

    def fence_synced(self, lane: LaneState) -> None:
        if lane is self.lane and self._closing:
            self._try_close(lane)

    def tend(self, lane: LaneState, now: float) -> None:
        """At each heartbeat, for the own lane."""
        if self._closing and now >= lane.settle_at:
            lane.settle_after(now + self._tuning.owner_dead_after_s)
            self._try_close(lane)

    def _try_close(self, lane: LaneState) -> None:
        if self._lost or lane.decided >= 0 or not self._rules.may_close(lane):
            return
        if not lane.fenced:
            lane.fence()
            self._journal.save(lane, SaveFence(lane.number, UNDECIDED))
        elif lane.fence_durable:
            self._notifications.settled(lane.number, lane.end)
