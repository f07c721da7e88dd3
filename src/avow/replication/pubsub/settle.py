"""Ending a lane whose owner will not write to it again.

    1. fence    a quorum of the lane's voters swear durably to take nothing more from the owner, and say what they hold
    2. choose   E = the longest of those copies
    3. refill   E is stored, again and durably, on a quorum of the voters
    4. decide   (lane, E) is proposed to the metadata lane; the first end committed there is the lane's end
    5. adopt    every peer cuts what lies beyond the end and fetches what it lacks

Why nothing committed is lost: an entry is committed when a quorum stored it before any of them was fenced. A quorum of
fence answers shares a peer with that quorum, its answer covers the entry, so every settler's E does. Why nothing is
shown and then taken back: entries behind a fence are never announced as Stored, so beyond the decided end there was
never a quorum, whatever some settler refilled there. Why E outlives the settler: a quorum had it before the proposal.

Any peer may settle, several may at once, with different answers and different ends: all of them are sound, and the
metadata lane picks one. So acceptors keep no ballots here; an attempt's number only ties answers to questions. It
carries the incarnation, because a restarted settler must not take answers to its former self for its own. An attempt
that makes no progress is begun again with a new number and fresh answers: the donor of its E may be gone for good.

A repairing copy answers, but is not counted: it may have been counted for entries that it lost. A voter that has not
heard of the lane answers too and is counted: it holds nothing of it, and its fence is as good as any. It may have been
removed before the opening reached it, and then nobody would ever tell it.

The owner itself ends its lane without a fence (`close_own_lane`): it stops, waits until all it wrote is committed,
makes its stop durable and proposes its own end. Everybody else's copy is a prefix of that, and all of it is committed,
so any settler finds the same end.
"""

from __future__ import annotations

from avow.replication.effects import LaneImage, SaveCut, SaveFence
from avow.replication.pubsub.copies import Copies
from avow.replication.pubsub.lane import UNDECIDED, UNLIMITED, Lane, Read
from avow.replication.tuning import Tuning
from avow.wire.messages import Fence, Fenced, Refill, Refilled

_COUNTER_BITS = 16  # as many as a peer number has
_COUNTER_MASK = (1 << _COUNTER_BITS) - 1


class Settlement:
    """One peer's attempt to end one lane."""

    __slots__ = ("attempt", "end", "held", "lane", "moved_at", "proposed", "sent")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.begin(attempt=0, now=0.0)

    def begin(self, *, attempt: int, now: float) -> None:
        self.attempt = attempt
        self.held: dict[int, int] = {}  # fenced, undamaged voter -> how much it holds durably
        self.sent: dict[int, int] = {}  # voter -> the position after which it was sent a refill
        self.end = UNDECIDED
        self.proposed = False
        self.moved_at = now
        self.lane.target = UNDECIDED


class Settling(Copies):
    def __init__(
        self,
        *,
        me: int,
        incarnation: int,
        images: dict[int, LaneImage],
        tuning: Tuning,
        read: Read | None,
        heard: dict[int, float] | None = None,
    ) -> None:
        super().__init__(me=me, images=images, tuning=tuning, read=read, heard=heard)
        self.incarnation = incarnation
        self._settlements: dict[int, Settlement] = {}
        self._attempts = 0
        self._settled: list[tuple[int, int]] = []
        self._refused: list[tuple[int, int, int]] = []

    # ------------------------------------------------------------------ the settler

    def settle(self, number: int, now: float) -> None:
        """Begin to end the lane. Does nothing if its end is decided or this peer is at it already."""
        lane = self._lanes.get(number)
        if lane is None or not lane.voters or lane.decided >= 0 or number in self._settlements:
            return
        settlement = self._settlements[number] = Settlement(lane)
        self._begin_attempt(settlement, now)

    def _begin_attempt(self, settlement: Settlement, now: float) -> None:
        lane = settlement.lane
        self._attempts += 1
        settlement.begin(attempt=self._attempt_number(), now=now)
        self._fence(lane)
        self._ask_for_fences(settlement)
        self._answer_myself(settlement, now)

    def _attempt_number(self) -> int:
        counter = self._attempts & _COUNTER_MASK
        return (self.incarnation << _COUNTER_BITS | counter) << _COUNTER_BITS | self.me

    def _ask_for_fences(self, settlement: Settlement) -> None:
        fence = Fence(settlement.lane.number, settlement.attempt)
        for voter in settlement.lane.voters:
            if voter != self.me and voter not in settlement.held:
                self._send_now(voter, fence)

    def _answer_myself(self, settlement: Settlement, now: float) -> None:
        """The own copy is an answer like any other: once its fence is durable, and only if it is whole."""
        lane = settlement.lane
        if lane.fence_durable and self.me in lane.stored and self._counts_answer(damaged=lane.repairing):
            self._hear_held(settlement, self.me, lane.durable, now)

    def _on_fenced(self, source: int, message: Fenced, now: float) -> None:
        settlement = self._settlements.get(message.lane)
        if settlement is None or settlement.attempt != message.attempt or source not in settlement.lane.stored:
            return  # an answer to an earlier attempt, or to somebody else's
        if self._counts_answer(damaged=message.damaged_from > 0):
            self._hear_held(settlement, source, message.end, now)

    def _on_refilled(self, source: int, message: Refilled, now: float) -> None:
        settlement = self._settlements.get(message.lane)
        if settlement is not None and settlement.attempt == message.attempt and source in settlement.held:
            self._hear_held(settlement, source, message.to, now)

    def _hear_held(self, settlement: Settlement, voter: int, end: int, now: float) -> None:
        held = settlement.held
        if end <= held.get(voter, -1):
            return
        held[voter] = end
        settlement.moved_at = now
        if settlement.end < 0 and self._is_quorum(settlement.lane, held):
            settlement.end = settlement.lane.target = self._choose_end(held)
        if settlement.end >= 0:
            self._advance(settlement)

    def _advance(self, settlement: Settlement) -> None:
        """The end is chosen: propose it if a quorum holds it, else fetch it, else refill the others."""
        if settlement.proposed:
            return
        if self._end_is_held(settlement):
            settlement.proposed = True
            self._settled.append((settlement.lane.number, settlement.end))
        elif settlement.lane.end < settlement.end:
            self._fetch_end(settlement)
        else:
            self._refill(settlement)

    def _fetch_end(self, settlement: Settlement) -> None:
        lane = settlement.lane
        donors = [peer for peer, end in settlement.held.items() if end > lane.end and peer != self.me]
        if donors:
            self._ask(lane, donors[lane.asks % len(donors)])

    def _refill(self, settlement: Settlement) -> None:
        """One piece to each fenced voter that is short, continuing where it said it stands."""
        lane, end = settlement.lane, settlement.end
        for voter, holds in settlement.held.items():
            if voter == self.me or holds >= end or settlement.sent.get(voter) == holds:
                continue
            entries = self._held(lane, holds, end)
            if entries:
                settlement.sent[voter] = holds
                self._send_now(voter, Refill(lane.number, settlement.attempt, entries[0].position - 1, entries))

    def _press(self, settlement: Settlement, now: float) -> None:
        """At each heartbeat: repeat what got no answer; begin again when nothing moved for too long."""
        idle_s = now - settlement.moved_at
        if idle_s < self.tuning.heartbeat_interval_s:
            return
        if settlement.proposed:
            if idle_s >= self.tuning.owner_dead_after_s:  # the proposal may be lost; the end is still held
                settlement.moved_at = now
                self._settled.append((settlement.lane.number, settlement.end))
            return
        if idle_s >= self.tuning.owner_dead_after_s:
            self._begin_attempt(settlement, now)
            return
        self._ask_for_fences(settlement)
        if settlement.end >= 0:
            settlement.sent.clear()
            settlement.lane.asked_after = -1
            settlement.lane.asks += 1
            self._advance(settlement)

    # ------------------------------------------------------------------ the fenced

    def _fence(self, lane: Lane) -> None:
        """From here on this copy takes nothing from the owner. Answers that rest on it wait for the sync."""
        if lane.fenced:
            return
        lane.fenced, lane.fence_at = True, lane.end
        self._save(lane, SaveFence(lane.number, UNDECIDED))
        if lane is self._own:
            self._lose(lane)

    def _on_fence(self, source: int, message: Fence, _now: float) -> None:
        lane = self._claim(message.lane)  # not told of it yet, perhaps never: it takes nothing more all the same
        self._fence(lane)
        lane.settle_at = 0.0  # somebody is at it: give it the whole time again
        damaged_from = lane.end + 1 if lane.repairing else 0
        self._send_synced(source, Fenced(lane.number, message.attempt, lane.end, damaged_from))

    def _on_refill(self, source: int, message: Refill, _now: float) -> None:
        lane = self._lanes.get(message.lane)
        if lane is None or lane.decided >= 0:
            return
        self._fence(lane)
        if not self.full:
            self._continue(lane, message.after, message.entries, UNLIMITED)
        lane.settle_at = 0.0
        self._send_synced(source, Refilled(lane.number, message.attempt, lane.end))

    # ------------------------------------------------------------------ the end

    def lane_end_decided(self, number: int, end: int, now: float) -> None:  # noqa: ARG002
        """The metadata lane committed the first end of this lane. Later ones change nothing."""
        lane = self._known_lane(number)
        if lane.decided >= 0 and lane.decided != end:
            return
        if lane.decided < 0:
            lane.decided = end
            self._end(lane)
        self._settlements.pop(number, None)
        lane.target = UNDECIDED
        if end > lane.cursor:
            self._move_cursor(lane, end)

    def _end(self, lane: Lane) -> None:
        end = lane.decided
        self._lose_ended(lane)
        if not lane.fenced:
            lane.fenced, lane.fence_at = True, lane.end
        self._save(lane, SaveFence(lane.number, end))
        if lane.end > end:
            if lane.mine:
                self._refused.append((lane.number, end, lane.end))
            self._save(lane, SaveCut(lane.number, end))
            lane.cut(end)

    def _lose_ended(self, lane: Lane) -> None:
        """A live owner hears that others ended its lane."""
        if lane is not self._own:
            return
        self._own = None
        if not lane.lost and not lane.closing:
            self._lost.append(lane.number)
        lane.lost = True

    def close_own_lane(self) -> None:
        """Stop appending for good; when all of it is committed, its end goes to `take_settled`."""
        lane = self._own
        if lane is not None and lane.open:
            lane.closing = True
            self._try_close(lane)

    def _try_close(self, lane: Lane) -> None:
        if lane.cursor < lane.end or lane.lost or lane.decided >= 0:
            return
        if not lane.fenced:
            lane.fenced, lane.fence_at = True, lane.end
            self._save(lane, SaveFence(lane.number, UNDECIDED))
        elif lane.fence_durable:
            self._settled.append((lane.number, lane.end))

    def _move_cursor(self, lane: Lane, cursor: int) -> None:
        super()._move_cursor(lane, cursor)
        if lane.closing:
            self._try_close(lane)

    def _became_durable(self, lane: Lane, end: int, *, fenced: bool, now: float) -> None:
        fence_is_news = fenced and not lane.fence_durable
        super()._became_durable(lane, end, fenced=fenced, now=now)
        settlement = self._settlements.get(lane.number)
        if settlement is not None:
            self._answer_myself(settlement, now)
            if settlement.end >= 0:
                self._advance(settlement)
        if lane.closing and fence_is_news:
            self._try_close(lane)

    # ------------------------------------------------------------------ the rules, one by one

    def _counts_answer(self, *, damaged: bool) -> bool:
        """A copy that lost entries says less than it once said: its answer proves nothing."""
        return not damaged

    def _choose_end(self, held: dict[int, int]) -> int:
        return max(held.values())

    def _end_is_held(self, settlement: Settlement) -> bool:
        """A quorum of the voters holds the end durably."""
        end = settlement.end
        return self._is_quorum(settlement.lane, {peer for peer, to in settlement.held.items() if to >= end})
