"""Copies of live lanes: how an owner's entries reach every peer, and how each peer counts quorums by itself.

    owner            every other peer                      everybody
    LaneEnqueue ───► store, sync ── Stored(lane, to) ───►  to the quorum-th largest: the lane's cursor

There is no coordinator: a peer that has received `Stored` from a quorum of the lane's voters (its own synced copy
included) knows that everything up to there is committed. Cursors in LaneEnqueue and heartbeats only help a peer that
missed Stored messages to catch up.

A peer announces what it stored when the sync is reported, once per lane, with the highest position: fifty batches
stored between two syncs, in fifty drains, need one message.

The source of an entry does not matter. Only one run ever appended to the lane, so entries fetched from any peer are the
owner's; a copy that is not fenced stores and counts everything that continues it. The time matters: nothing that
arrives after the fence is counted (see `state`).

A copy that ends before the removed entries continues at the start position it is sent (`retention`); for any other copy
that message is a duplicate.
"""

from __future__ import annotations

from collections.abc import Sequence

from avow.replication.effects import SaveEntries, SaveSnapshot
from avow.replication.pubsub.context import Context
from avow.replication.pubsub.ownership import Ownership
from avow.replication.pubsub.repair import Repair
from avow.replication.pubsub.state import UNLIMITED, LaneState, after_end, is_start
from avow.wire.messages import Entry, LaneEnqueue, LaneFetched, LaneHeartbeat, LaneReject, Snapshot, Stored


class Copies:
    def __init__(self, context: Context, ownership: Ownership, repair: Repair) -> None:
        self._me, self._rules = context.me, context.rules
        self._effects, self._journal, self._notifications = context.effects, context.journal, context.notifications
        self._liveness = context.liveness
        self._lanes = context.lanes.by_number
        self._ownership, self._repair = ownership, repair
        self.unannounced: list[LaneState] = []  # lanes of which more became durable since the last drain

    # ------------------------------------------------------------------ storing entries

    def on_enqueue(self, source: int, message: LaneEnqueue, _now: float) -> None:
        lane = self._lanes.get(message.lane)
        if lane is None or not lane.voters or source != lane.owner:
            return  # not opened here yet: after heartbeats this copy asks for what it missed
        if not self._rules.accepts_from_owner(lane):
            self._effects.send_synced(source, LaneReject(message.lane, lane.end))
            return
        after, entries = message.after, message.entries
        last = after + len(entries)
        lane.hear_length(last)
        if after > lane.end and not is_start(entries):
            self._repair.ask(lane, source)
        elif last > lane.end and not self._journal.full:
            self.continue_with(lane, after, entries, UNLIMITED)
        if message.cursor > lane.cursor:
            self.move_cursor(lane, message.cursor)

    def on_fetched(self, source: int, message: LaneFetched, _now: float) -> None:
        lane = self._lanes.get(message.lane)
        if lane is None or not lane.voters or self._journal.full:
            return
        if not self.continue_with(lane, message.after, message.entries, self._rules.takes_to(lane)):
            return  # a duplicate, or after the fence
        if lane.end < self._repair.wanted(lane):
            self._repair.ask(lane, source)

    def take(self, lane: LaneState, entries: Sequence[Entry]) -> None:
        """Store entries that continue this copy."""
        lane.extend(entries)
        self._journal.save(lane, SaveEntries(lane.number, tuple(entries)))

    def continue_with(self, lane: LaneState, after: int, entries: Sequence[Entry], upto: int) -> bool:
        """Store those of `entries` (which follow `after`) that continue this copy; False: none do."""
        started = False
        if is_start(entries):
            start, after, entries = entries[0], entries[0].position, entries[1:]
            if lane.end < start.position <= upto and not lane.mine:
                self._begin(lane, start)
                started = True
        fresh = after_end(lane, after, entries, upto)
        if fresh:
            self.take(lane, fresh)
        return bool(fresh) or started

    def _begin(self, lane: LaneState, start: Entry) -> None:
        lane.start_at(start.position)
        state = bytes(start.batch)
        snapshot = Snapshot(start.position, start.origin, lane.voters, (), state)
        self._journal.save(lane, SaveSnapshot(lane.number, snapshot, reset=True))
        if lane.voters:
            self._notifications.begun(lane.number, start.position, state)
        else:  # fenced and refilled before the lane was opened here: the opening takes the snapshot
            lane.keep_snapshot(state)

    # ------------------------------------------------------------------ counting

    def became_durable(self, lane: LaneState, end: int, *, fenced: bool) -> None:
        """A sync covered the copy up to `end`, and its fence if it was `fenced` then."""
        lane.sync(end, fenced=fenced)
        me = self._me
        if lane.decided < 0 and me in lane.stored:
            count, counted = self._rules.own_count(lane, lane.durable), lane.stored[me]
            if count > counted:
                if counted == lane.announced:
                    self.unannounced.append(lane)
                self.hear_stored(lane, me, count)
        self._show(lane)

    def announce(self) -> None:
        """Announce to all peers how much is stored here."""
        lanes, self.unannounced = self.unannounced, []
        for lane in lanes:
            lane.announce(self._rules.own_count(lane, lane.durable))
            self._effects.send_all(lane.audience, Stored(lane.number, lane.announced))

    def on_stored(self, source: int, message: Stored, _now: float) -> None:
        lane = self._lanes.get(message.lane)
        if lane is not None and lane.decided < 0:
            self.hear_stored(lane, source, message.to)

    def on_heartbeat(self, source: int, message: LaneHeartbeat, _now: float) -> None:
        lanes = self._lanes
        for number, to, cursor in message.lanes:
            lane = lanes.get(number)
            if lane is None or lane.decided >= 0 or not lane.voters:
                continue
            lane.hear()
            self.hear_stored(lane, source, to)
            if cursor > lane.cursor:
                self.move_cursor(lane, cursor)
            elif cursor < lane.cursor:
                self._liveness.say_again()

    def hear_stored(self, lane: LaneState, source: int, to: int) -> None:
        if not self._rules.counts_as_stored(lane, source):
            lane.hear_reported(source, to)
        elif lane.hear_stored(source, to) and to > lane.cursor:
            cursor = self._rules.counted_cursor(lane)
            if cursor > lane.cursor:
                self.move_cursor(lane, cursor)

    def move_cursor(self, lane: LaneState, cursor: int) -> None:
        """Everything up to `cursor` is committed."""
        lane.commit(cursor)
        self._show(lane)
        if lane.mine:
            self._ownership.committed(lane)

    def _show(self, lane: LaneState) -> None:
        readable = self._rules.readable_to(lane)
        if readable > lane.readable:
            self._notifications.committed(lane.number, after=lane.readable, to=readable)
            lane.show(readable)

    def drop(self, lane: LaneState) -> None:
        self.unannounced = [other for other in self.unannounced if other is not lane]
