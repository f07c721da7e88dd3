"""Liveness of other peers, and this peer's own heartbeats, which report how much of each lane it holds.

An idle queue sends heartbeats rarely if the node tracks the liveness of peers for all its queues.
"""

from __future__ import annotations

from typing import Final

from avow.limits import LANES_PER_QUEUE_MAX
from avow.replication.effect_buffer import EffectBuffer
from avow.replication.pubsub.journal import Mark
from avow.replication.pubsub.lanes import Lanes
from avow.replication.pubsub.rules import Rules
from avow.replication.pubsub.state import LaneState
from avow.replication.tuning import Tuning
from avow.wire.messages import LaneHeartbeat

NEVER: Final = float("-inf")
IDLE_BEATS: Final = 20  # an idle queue sends one heartbeat in this many intervals


class Liveness:
    """`heard` may be shared by all lanes of this peer. None: this queue tracks liveness alone."""

    def __init__(
        self,
        *,
        me: int,
        tuning: Tuning,
        rules: Rules,
        effects: EffectBuffer[Mark],
        lanes: Lanes,
        now: float,
        heard: dict[int, float] | None,
    ) -> None:
        self._me, self._tuning, self._rules, self._effects, self._lanes = me, tuning, rules, effects, lanes
        self._alone = heard is None
        self.heard: dict[int, float] = {} if heard is None else heard
        self.beat_at = now
        self._wanted = True  # a peer may have missed the last heartbeat
        self._first_lane = 0
        self._last: LaneHeartbeat | None = None
        self._beats_idle = 0  # intervals since the heartbeat last changed

    # ------------------------------------------------------------------ the others

    def is_fresh(self, peer: int, now: float) -> bool:
        return now - self.heard.get(peer, NEVER) <= self._tuning.heartbeat_fresh_s

    def is_silent(self, lane: LaneState, now: float) -> bool:
        """Whether its owner has been silent for so long that it counts as dead."""
        heard_at = max(self.heard.get(lane.owner, NEVER), lane.opened_at)
        return now - heard_at >= self._tuning.owner_dead_after_s

    def reaches_quorum(self, lane: LaneState, now: float) -> bool:
        """A peer that is cut off must not fence the lanes of peers it cannot hear."""
        oldest, heard = now - self._tuning.heartbeat_fresh_s, self.heard
        fresh = {peer for peer in lane.voters if peer == self._me or heard.get(peer, NEVER) >= oldest}
        return self._rules.is_quorum(lane, fresh)

    # ------------------------------------------------------------------ this peer

    def is_due(self, now: float) -> bool:
        """True once in each interval."""
        if now < self.beat_at:
            return False
        self.beat_at = now + self._tuning.heartbeat_interval_s
        return True

    def say_again(self) -> None:
        """A peer may have missed the last heartbeat: send the next one in any case."""
        self._wanted = True

    def beat(self) -> None:
        told = tuple((lane.number, self._rules.own_count(lane, lane.durable), lane.cursor) for lane in self._turn())
        beat = LaneHeartbeat(told)
        self._beats_idle = 0 if self._alone or self._wanted or beat != self._last else self._beats_idle + 1
        if self._beats_idle % IDLE_BEATS:
            return
        self._last, self._wanted = beat, False
        for peer in self._lanes.everyone:
            if peer != self._me:
                self._effects.send(peer, beat)

    def _turn(self) -> list[LaneState]:
        """The undecided lanes; if they do not fit into one heartbeat, a part of them, in turns."""
        undecided = self._lanes.undecided()
        if len(undecided) <= LANES_PER_QUEUE_MAX:
            return undecided
        start = self._first_lane % len(undecided)
        self._first_lane = start + LANES_PER_QUEUE_MAX
        return (undecided[start:] + undecided[:start])[:LANES_PER_QUEUE_MAX]
