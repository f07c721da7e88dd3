"""Repair: how a copy that is too short gets the missing entries.

Repair is by pull: a peer whose copy stays shorter than a reported one for a whole heartbeat interval asks one of the
peers that have more. The owner also pushes to a peer that reports no progress, because a link may be cut in one
direction only. Both are limited to one piece per peer and interval, and one fetch per lane at a time.
"""

from __future__ import annotations

from typing import Final

from avow.replication.pubsub.context import Context
from avow.replication.pubsub.retention import Retention
from avow.replication.pubsub.state import LaneState
from avow.wire.messages import LaneEnqueue, LaneFetch, LaneFetched

ASK_EVERYBODY_EVERY: Final = 4  # one in this many fetches goes to a peer chosen from all, whatever it reported


class Repair:
    def __init__(self, context: Context, retention: Retention) -> None:
        self._me, self._rules, self._effects = context.me, context.rules, context.effects
        self._liveness, self._lanes = context.liveness, context.lanes.by_number
        self._retention = retention

    # ------------------------------------------------------------------ pull

    def ask(self, lane: LaneState, peer: int) -> None:
        if lane.ask():
            self._effects.send(peer, LaneFetch(lane.number, lane.end))

    def on_fetch(self, source: int, message: LaneFetch, _now: float) -> None:
        lane = self._lanes.get(message.lane)
        if lane is None or message.after >= lane.end:
            return  # nothing to give: the asker tries another peer at its next heartbeat
        entries = self._retention.piece(lane, message.after, lane.end)
        if entries:
            self._effects.send(source, LaneFetched(lane.number, entries[0].position - 1, entries))

    def wanted(self, lane: LaneState) -> int:
        """The length this copy should have, as far as this peer knows."""
        longest = max(lane.known, lane.cursor, lane.target, lane.decided)
        return min(longest, self._rules.takes_to(lane))

    def tend(self, lane: LaneState, now: float) -> None:
        """At each heartbeat: fetch if this copy was too short at the last one and has not grown since."""
        lane.ask_again()
        if lane.is_stuck(missing=lane.end < self.wanted(lane)):
            donors = self._donors(lane, now)
            if donors:
                lane.turn_to_next()
                rounds, turn = divmod(lane.asks, ASK_EVERYBODY_EVERY)
                if turn == 0:  # peers that reported more may be unable to read it; others may hold it unreported
                    self.ask(lane, lane.audience[rounds % len(lane.audience)])
                else:
                    self.ask(lane, donors[lane.asks % len(donors)])

    def _donors(self, lane: LaneState, now: float) -> list[int]:
        """Peers that reported more than this copy holds; without any, all peers."""
        end = lane.end
        more = [peer for peer, to in lane.stored.items() if to > end and peer != self._me]
        more += [peer for peer, to in lane.reported.items() if to > end]
        return [peer for peer in more if self._liveness.is_fresh(peer, now)] or list(lane.audience)

    # ------------------------------------------------------------------ push

    def push(self, lane: LaneState, now: float) -> None:
        """Owner, at each heartbeat: send again to peers that are behind and report no progress, with growing pauses."""
        for peer in lane.audience:
            holds = lane.stored.get(peer, lane.reported.get(peer, 0))
            beats = lane.beats_at(peer, holds)
            is_power_of_two = beats > 0 and beats & (beats - 1) == 0
            if holds < lane.end and is_power_of_two and self._liveness.is_fresh(peer, now):
                entries = self._retention.piece(lane, holds, lane.end)
                if entries:
                    again = LaneEnqueue(lane.number, entries[0].position - 1, entries, lane.cursor)
                    self._effects.send(peer, again)
