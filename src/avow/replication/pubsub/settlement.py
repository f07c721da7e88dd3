"""Settlement: ending a lane to which its owner will not write again.

    1. fence    a quorum of the lane's voters durably stop accepting entries from the owner and report their length
    2. choose   E = the longest of those copies
    3. refill   everything up to E is stored durably on a quorum of the voters
    4. decide   (lane, E) is proposed to the metadata lane; the first end committed there is the lane's end
    5. adopt    every peer cuts its entries beyond the end and fetches missing ones

Nothing committed is lost: an entry is committed when a quorum stored it before any of them was fenced. A quorum of
fence answers shares a peer with that quorum, and its answer covers the entry, so every settler's E does. Nothing
readable is taken back: entries that arrive after a fence are never announced as Stored, so there was never a quorum
beyond the decided end, whatever some settler refilled there. E survives the settler: a quorum had it before the
proposal.

Any peer may settle, also several at once, with different answers and different ends: all of these ends are correct, and
the metadata lane picks one. So voters keep no ballots here; an attempt's key only matches answers to questions. It
contains the incarnation, because a restarted settler must not accept answers to its earlier run. An attempt without
progress is repeated with a new key and new answers, because the donor of its E may never come back.

A repairing copy answers but is not counted: it may have been counted for entries that it lost. A voter that does not
know the lane answers and is counted: it holds nothing of it, and its fence is valid. It may have been removed from the
cluster before it got the opening, and then it would never learn of the lane.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from avow.replication.effects import SaveCut, SaveFence
from avow.replication.pubsub.context import Context
from avow.replication.pubsub.copies import Copies
from avow.replication.pubsub.ownership import Ownership
from avow.replication.pubsub.repair import Repair
from avow.replication.pubsub.retention import Retention
from avow.replication.pubsub.state import UNDECIDED, UNLIMITED, LaneState
from avow.wire.messages import Fence, Fenced, Refill, Refilled

_COUNTER_BITS: Final = 16  # as many as a peer number has
_COUNTER_MASK: Final = (1 << _COUNTER_BITS) - 1


class Attempt:
    """One peer's attempt to end one lane."""

    __slots__ = ("chosen", "held", "key", "lane", "moved_at", "proposed", "sent")

    def __init__(self, lane: LaneState, *, key: int, now: float) -> None:
        self.lane, self.key, self.moved_at = lane, key, now
        self.held: dict[int, int] = {}  # fenced, undamaged voter -> how much it holds durably
        self.sent: dict[int, int] = {}  # voter -> the position after which it was sent a refill
        self.chosen = UNDECIDED  # the end
        self.proposed = False


class Settlement:
    def __init__(
        self,
        context: Context,
        ownership: Ownership,
        retention: Retention,
        repair: Repair,
        copies: Copies,
        rng: Callable[[], float],
    ) -> None:
        self._me, self._tuning, self._rules, self._rng = context.me, context.tuning, context.rules, rng
        self._effects, self._journal, self._notifications = context.effects, context.journal, context.notifications
        self._lanes, self._liveness = context.lanes, context.liveness
        self._ownership, self._retention, self._repair, self._copies = ownership, retention, repair, copies
        self.attempts: dict[int, Attempt] = {}  # by lane
        self._begun = 0

    # ------------------------------------------------------------------ the settler

    def settle(self, number: int, now: float) -> None:
        """Begin to end the lane. Does nothing if its end is decided or this peer is settling it already."""
        lane = self._lanes.by_number.get(number)
        if lane is not None and lane.voters and lane.decided < 0 and number not in self.attempts:
            self._begin(lane, now)

    def _begin(self, lane: LaneState, now: float) -> None:
        self._begun += 1
        attempt = self.attempts[lane.number] = Attempt(lane, key=self._next_key(), now=now)
        lane.aim_at(UNDECIDED)
        self._fence(lane)
        self._ask_for_fences(attempt)
        self._answer_myself(attempt, now)

    def _next_key(self) -> int:
        counter = self._begun & _COUNTER_MASK
        return (self._ownership.run << _COUNTER_BITS | counter) << _COUNTER_BITS | self._me

    def _ask_for_fences(self, attempt: Attempt) -> None:
        fence = Fence(attempt.lane.number, attempt.key)
        for voter in attempt.lane.voters:
            if voter != self._me and voter not in attempt.held:
                self._effects.send(voter, fence)

    def _answer_myself(self, attempt: Attempt, now: float) -> None:
        """The own copy counts like any other answer: once its fence is durable, and only if it lost no entries."""
        lane = attempt.lane
        if lane.fence_durable and self._me in lane.stored and self._rules.counts_answer(damaged=lane.repairing):
            self._hear_held(attempt, self._me, lane.durable, now)

    def on_fenced(self, source: int, message: Fenced, now: float) -> None:
        attempt = self.attempts.get(message.lane)
        if attempt is None or attempt.key != message.attempt or source not in attempt.lane.stored:
            return  # an answer to another attempt
        if self._rules.counts_answer(damaged=message.damaged_from > 0):
            self._hear_held(attempt, source, message.end, now)

    def on_refilled(self, source: int, message: Refilled, now: float) -> None:
        attempt = self.attempts.get(message.lane)
        if attempt is not None and attempt.key == message.attempt and source in attempt.held:
            self._hear_held(attempt, source, message.to, now)

    def _hear_held(self, attempt: Attempt, voter: int, end: int, now: float) -> None:
        held = attempt.held
        if end <= held.get(voter, -1):
            return
        held[voter] = end
        attempt.moved_at = now
        if attempt.chosen < 0 and self._rules.is_quorum(attempt.lane, held):
            attempt.chosen = self._rules.choose_end(held)
            attempt.lane.aim_at(attempt.chosen)
        if attempt.chosen >= 0:
            self._advance(attempt)

    def _advance(self, attempt: Attempt) -> None:
        """The end is chosen: propose it if a quorum holds it, else fetch it, else refill the others."""
        if attempt.proposed:
            return
        if self._rules.end_is_held(attempt.lane, attempt.held, attempt.chosen):
            attempt.proposed = True
            self._notifications.settled(attempt.lane.number, attempt.chosen)
        elif attempt.lane.end < attempt.chosen:
            self._fetch_end(attempt)
        else:
            self._refill(attempt)

    def _fetch_end(self, attempt: Attempt) -> None:
        lane = attempt.lane
        donors = [peer for peer, end in attempt.held.items() if end > lane.end and peer != self._me]
        if donors:
            self._repair.ask(lane, donors[lane.asks % len(donors)])

    def _refill(self, attempt: Attempt) -> None:
        """Send one piece to each fenced voter that is too short, from its reported end on."""
        lane, end = attempt.lane, attempt.chosen
        for voter, holds in attempt.held.items():
            if voter == self._me or holds >= end or attempt.sent.get(voter) == holds:
                continue
            entries = self._retention.piece(lane, holds, end)
            if entries:
                attempt.sent[voter] = holds
                self._effects.send(voter, Refill(lane.number, attempt.key, entries[0].position - 1, entries))

    def became_durable(self, lane: LaneState, now: float) -> None:
        """More of the own copy, or its fence, became durable: it may count now."""
        attempt = self.attempts.get(lane.number)
        if attempt is not None:
            self._answer_myself(attempt, now)
            if attempt.chosen >= 0:
                self._advance(attempt)

    # ------------------------------------------------------------------ at each heartbeat

    def tend(self, lane: LaneState, now: float) -> None:
        """For an undecided lane that this run does not append to: settle it when that is due."""
        attempt = self.attempts.get(lane.number)
        if attempt is not None:
            self._press(attempt, now)
        elif not self._is_abandoned(lane, now):
            lane.settle_after(0.0)
        elif lane.settle_at == 0.0:
            lane.settle_after(now + self._delay(lane))
        elif now >= lane.settle_at and self._liveness.reaches_quorum(lane, now):
            self.settle(lane.number, now)

    def _press(self, attempt: Attempt, now: float) -> None:
        """Repeat requests without an answer; begin again after too long without progress."""
        idle_s = now - attempt.moved_at
        if idle_s < self._tuning.heartbeat_interval_s:
            return
        if attempt.proposed:
            if idle_s >= self._tuning.owner_dead_after_s:  # the proposal may be lost; the end is still held
                attempt.moved_at = now
                self._notifications.settled(attempt.lane.number, attempt.chosen)
            return
        if idle_s >= self._tuning.owner_dead_after_s:
            self._begin(attempt.lane, now)
            return
        self._ask_for_fences(attempt)
        if attempt.chosen >= 0:
            attempt.sent.clear()
            attempt.lane.ask_again()
            attempt.lane.turn_to_next()
            self._advance(attempt)

    def _is_abandoned(self, lane: LaneState, now: float) -> bool:
        """Nothing more will be appended: it is fenced, its run is over, or its owner has been silent for too long."""
        if lane.fenced or lane.orphaned or lane.owner == self._me or self._lanes.is_of_older_run(lane):
            return True
        return self._liveness.is_silent(lane, now)

    def _delay(self, lane: LaneState) -> float:
        """A fenced lane has a settler, which gets time to finish before another one begins."""
        patience = self._tuning.owner_dead_after_s if lane.fenced else 0.0
        return patience + self._rng() * self._tuning.claim_jitter_s

    # ------------------------------------------------------------------ the voters

    def _fence(self, lane: LaneState) -> None:
        """From here on this copy accepts nothing from the owner. Answers that depend on the fence wait for its sync."""
        if not lane.fenced:
            lane.fence()
            self._journal.save(lane, SaveFence(lane.number, UNDECIDED))
            self._ownership.lose(lane)

    def on_fence(self, source: int, message: Fence, _now: float) -> None:
        lane = self._lanes.claim(message.lane)  # also a lane that this peer does not know yet, and may never learn of
        self._fence(lane)
        lane.settle_after(0.0)  # another peer is settling it: give it the full time again
        damaged_from = lane.end + 1 if lane.repairing else 0
        self._effects.send_synced(source, Fenced(lane.number, message.attempt, lane.end, damaged_from))

    def on_refill(self, source: int, message: Refill, _now: float) -> None:
        lane = self._lanes.by_number.get(message.lane)
        if lane is None or lane.decided >= 0:
            return
        self._fence(lane)
        if not self._journal.full:
            self._copies.continue_with(lane, message.after, message.entries, UNLIMITED)
        lane.settle_after(0.0)
        self._effects.send_synced(source, Refilled(lane.number, message.attempt, lane.end))

    # ------------------------------------------------------------------ the decided end

    def decided(self, number: int, end: int) -> None:
        """The metadata lane committed the first end of this lane. Later ones change nothing."""
        lane = self._lanes.known(number)
        if lane.decided >= 0 and lane.decided != end:
            return
        if lane.decided < 0:
            lane.decide(end)
            self._ownership.ended(lane)
            self._adopt(lane, end)
        self.drop(lane)
        if end > lane.cursor:
            self._copies.move_cursor(lane, end)

    def _adopt(self, lane: LaneState, end: int) -> None:
        if not lane.fenced:
            lane.fence()
        self._journal.save(lane, SaveFence(lane.number, end))
        if self._rules.is_cut_at(lane, end):
            if lane.mine:
                self._notifications.refused(lane.number, after=end, to=lane.end)
            self._journal.save(lane, SaveCut(lane.number, end))
            lane.cut(end)

    def drop(self, lane: LaneState) -> None:
        """Stop settling the lane."""
        self.attempts.pop(lane.number, None)
        lane.aim_at(UNDECIDED)
