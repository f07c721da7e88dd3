"""Copies of live lanes: how an owner's entries reach every peer, and how each peer counts for itself.

    owner            every other peer                      everybody
    LaneEnqueue ───► store, sync ── Stored(lane, to) ───►  to the quorum-th largest: the lane's cursor

There is no coordinator: a peer that has heard `Stored` from a quorum of the lane's voters (its own synced copy among
them) knows that everything up to there is committed, and nobody has to tell it. Cursors travel along in LaneEnqueue
and in heartbeats only so that a peer that missed the Stored messages catches up.

Where an entry came from does not matter. Only one run ever appended to the lane, so a copy fetched from any peer is the
owner's own; a copy that is not fenced therefore takes and counts whatever continues it. What matters is when: nothing
that arrives behind the fence is counted (see `lane`).

Repair is by pull: a peer that stays shorter than what somebody reported, for a whole heartbeat interval, asks one of
those who have more. The owner pushes as well to a peer that reports no progress, because a link may be cut in one
direction only. Both are bounded to one piece per peer and interval, and one fetch per lane at a time.

Whoever is asked for entries that were removed for good answers with where to start instead: a TRIM entry at the last
removed position, whose batch is the state of the lane there, in place of everything up to it. A copy that ends before
that position makes it its new beginning; to any other it is a duplicate.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from avow.errors import InvalidRequest, StorageDamaged, Trimmed
from avow.ids import REPAIRING, ballot_of
from avow.replication.effects import LaneImage, SaveCut, SaveEntries, SaveSnapshot, SaveState
from avow.replication.pieces import one_frame
from avow.replication.pubsub.lane import UNLIMITED, Lane, Read, Start, after_end, is_start
from avow.replication.pubsub.outbox import Outbox
from avow.replication.quorum import has_quorum, quorum_th_largest
from avow.replication.tuning import Tuning
from avow.wire.messages import (
    Entry,
    Kind,
    LaneEnqueue,
    LaneFetch,
    LaneFetched,
    LaneHeartbeat,
    LaneReject,
    Snapshot,
    Stored,
)

NEVER = float("-inf")


class Copies(Outbox):
    def __init__(
        self,
        *,
        me: int,
        images: dict[int, LaneImage],
        tuning: Tuning,
        read: Read | None,
        heard: dict[int, float] | None = None,
    ) -> None:
        super().__init__(me=me)
        self._images = images
        self.tuning = tuning
        self._read = read
        self._alone = heard is None  # nobody else keeps track of who is there
        self.heard: dict[int, float] = {} if heard is None else heard
        self._beat_wanted = True  # somebody may not know what was said last
        self.full = False  # the disk takes no entries; fences, answers and heartbeats go on
        self._own: Lane | None = None
        self._committed: list[tuple[int, int, int]] = []
        self._accepted: list[tuple[int, int, tuple[int, ...]]] = []
        self._lost: list[int] = []
        self._begun: list[tuple[int, int, bytes]] = []
        self.starts: Start | None = None  # set by whoever keeps the lanes' states
        self.unreadable: Callable[[int, int], None] | None = None  # (lane, position): storage could not read it

    def _claim(self, number: int) -> Lane:
        """The lane of this number; if it is new here, from what the disk holds of it."""
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = self._restore(number, self._images.pop(number, LaneImage(entries=[])))
        return lane

    def _restore(self, number: int, image: LaneImage) -> Lane:
        lane = Lane(number, image)
        if lane.decided >= 0:
            if lane.end > lane.decided:  # the crash came between the end and the cut
                lane.cut(lane.decided)
                self._save(lane, SaveCut(number, lane.decided))
        elif lane.repairing and image.stamped != REPAIRING:
            # before anything is stored again: the next start must still know that this copy is not whole
            self._save(lane, SaveState(number, 0, REPAIRING))
        return lane

    def _known_lane(self, number: int) -> Lane:
        lane = self._lanes.get(number)
        if lane is None or not lane.voters:
            raise InvalidRequest(f"lane {number} was not opened by the metadata lane; nothing was changed")
        return lane

    # ------------------------------------------------------------------ the owner's entries

    def _send_own(self, lane: Lane) -> None:
        while lane.sent_to < lane.end:
            entries = lane.piece(lane.sent_to, self.tuning.piece_entries)
            self._to_all_now(lane, LaneEnqueue(lane.number, lane.sent_to, entries, lane.cursor))
            lane.sent_to += len(entries)

    def _on_enqueue(self, source: int, message: LaneEnqueue, _now: float) -> None:
        lane = self._lanes.get(message.lane)
        if lane is None or not lane.voters or source != lane.owner:
            return  # not opened here yet: heartbeats make this copy ask for what it missed
        if not self._accepts_from_owner(lane):
            self._send_synced(source, LaneReject(message.lane, lane.end))
            return
        after, entries = message.after, message.entries
        last = after + len(entries)
        if last > lane.known:
            lane.known = last
        if after > lane.end and not is_start(entries):
            self._ask(lane, source)
        elif last > lane.end and not self.full:
            self._continue(lane, after, entries, UNLIMITED)
        if message.cursor > lane.cursor:
            self._move_cursor(lane, message.cursor)

    def _take(self, lane: Lane, entries: Sequence[Entry]) -> None:
        """Store entries that continue this copy."""
        lane.extend(entries)
        self._save(lane, SaveEntries(lane.number, tuple(entries)))

    def _continue(self, lane: Lane, after: int, entries: Sequence[Entry], upto: int) -> bool:
        """Store what continues this copy of entries that follow `after`; False: nothing does."""
        started = False
        if is_start(entries):
            start, after, entries = entries[0], entries[0].position, entries[1:]
            if lane.end < start.position <= upto and not lane.mine:
                self._begin(lane, start)
                started = True
        fresh = after_end(lane, after, entries, upto)
        if fresh:
            self._take(lane, fresh)
        return bool(fresh) or started

    def _begin(self, lane: Lane, start: Entry) -> None:
        lane.start_at(start.position)
        snapshot = Snapshot(start.position, start.origin, lane.voters, (), start.batch)
        self._save(lane, SaveSnapshot(lane.number, snapshot, reset=True))
        if lane.voters:
            self._begun.append((lane.number, start.position, start.batch))
        else:  # fenced and refilled before this peer was told of the lane: found when it is
            lane.state = start.batch

    def _on_reject(self, _source: int, message: LaneReject, _now: float) -> None:
        lane = self._own
        if lane is not None and lane.number == message.lane:
            self._lose(lane)

    def _lose(self, lane: Lane) -> None:
        """The own lane is fenced somewhere: this run may not append to it any more."""
        if lane.lost or lane.decided >= 0:
            return
        lane.lost = True
        if not lane.closing:
            self._lost.append(lane.number)

    # ------------------------------------------------------------------ counting

    def _announce(self, lane: Lane) -> None:
        lane.announced = self._own_count(lane, lane.durable)
        self._to_all_now(lane, Stored(lane.number, lane.announced))

    def _on_stored(self, source: int, message: Stored, _now: float) -> None:
        lane = self._lanes.get(message.lane)
        if lane is not None and lane.decided < 0:
            self._hear_stored(lane, source, message.to)

    def _hear_stored(self, lane: Lane, source: int, to: int) -> None:
        if to > lane.known:
            lane.known = to
        if not self._counts_as_stored(lane, source):
            if to > lane.reported.get(source, 0):
                lane.reported[source] = to
            return
        if to > lane.stored[source]:
            lane.stored[source] = to
            if to > lane.cursor:
                cursor = self._counted_cursor(lane)
                if cursor > lane.cursor:
                    self._move_cursor(lane, cursor)

    def _became_durable(self, lane: Lane, end: int, *, fenced: bool, now: float) -> None:  # noqa: ARG002
        end = min(end, lane.end)  # a decided end may have cut it meanwhile
        if end > lane.durable:
            lane.durable = end
        if fenced:
            lane.fence_durable = True
        count = self._own_count(lane, lane.durable)
        if lane.decided < 0 and self.me in lane.stored and count > lane.stored[self.me]:
            if lane.stored[self.me] == lane.announced:
                self._announcing.append(lane)
            self._hear_stored(lane, self.me, count)
        self._show(lane)

    def _move_cursor(self, lane: Lane, cursor: int) -> None:
        """Everything up to `cursor` is committed."""
        lane.cursor = cursor
        self._show(lane)
        if lane.mine:
            self._accepted.append((lane.number, cursor, lane.stored_by(cursor)))

    def _show(self, lane: Lane) -> None:
        readable = min(lane.cursor, lane.durable)
        if readable > lane.readable:
            self._committed.append((lane.number, lane.readable, readable))
            lane.readable = readable

    def _on_heartbeat(self, source: int, message: LaneHeartbeat, _now: float) -> None:
        lanes = self._lanes
        for number, to, cursor in message.lanes:
            lane = lanes.get(number)
            if lane is None or lane.decided >= 0 or not lane.voters:
                continue
            lane.heard = True
            self._hear_stored(lane, source, to)
            if cursor > lane.cursor:
                self._move_cursor(lane, cursor)
            elif cursor < lane.cursor:
                self._beat_wanted = True  # it missed something, perhaps what was said when it was away

    # ------------------------------------------------------------------ repair

    def _ask(self, lane: Lane, peer: int) -> None:
        if lane.asked_after != lane.end:
            lane.asked_after = lane.end
            self._send_now(peer, LaneFetch(lane.number, lane.end))

    def _on_fetch(self, source: int, message: LaneFetch, _now: float) -> None:
        lane = self._lanes.get(message.lane)
        if lane is None or message.after >= lane.end:
            return  # nothing to give: the asker tries another peer at its next heartbeat
        entries = self._held(lane, message.after, lane.end)
        if entries:
            self._send_now(source, LaneFetched(lane.number, entries[0].position - 1, entries))

    def _held(self, lane: Lane, after: int, upto: int) -> tuple[Entry, ...]:
        """One frame's worth of the entries after `after`, from memory or else from storage; or where to start instead.

        Empty when storage cannot read them: whoever asks will ask another peer.
        """
        limit = self.tuning.piece_entries
        if after >= lane.base:
            return lane.piece(after, limit, upto)
        if self._read is None:
            return ()
        try:
            return one_frame(tuple(self._read(lane.number, after, min(limit, lane.base - after))))
        except Trimmed:
            return self._start_of(lane)
        except StorageDamaged:
            if self.unreadable is not None:
                self.unreadable(lane.number, after + 1)
            return ()

    def _start_of(self, lane: Lane) -> tuple[Entry, ...]:
        found = self.starts(lane.number) if self.starts is not None else None
        if found is None:
            return ()
        position, state = found
        return (Entry(position, ballot_of(lane.incarnation, lane.owner), Kind.TRIM, batch=state),)

    def _on_fetched(self, source: int, message: LaneFetched, _now: float) -> None:
        lane = self._lanes.get(message.lane)
        if lane is None or not lane.voters or self.full:
            return
        if not self._continue(lane, message.after, message.entries, self._takes_to(lane)):
            return  # a duplicate, or behind the fence
        if lane.end < self._wanted(lane):
            self._ask(lane, source)

    def _wanted(self, lane: Lane) -> int:
        """The longest this copy should be, from all it knows."""
        longest = max(lane.known, lane.cursor, lane.target, lane.decided)
        return min(longest, self._takes_to(lane))

    def _repair(self, lane: Lane, now: float) -> None:
        """At each heartbeat: ask, if this copy was too short at the last one already and has not grown since."""
        missing = lane.end < self._wanted(lane)
        lane.asked_after = -1
        if missing and lane.missed_at_beat and lane.end == lane.end_at_beat:
            donors = self._donors(lane, now)
            if donors:
                lane.asks += 1
                self._ask(lane, donors[lane.asks % len(donors)])
        lane.missed_at_beat, lane.end_at_beat = missing, lane.end

    def _donors(self, lane: Lane, now: float) -> list[int]:
        """Peers that reported more than this copy holds; if nobody did, everybody."""
        end = lane.end
        more = [peer for peer, to in lane.stored.items() if to > end and peer != self.me]
        more += [peer for peer, to in lane.reported.items() if to > end]
        return [peer for peer in more if self._fresh(peer, now)] or list(lane.audience)

    def _push(self, lane: Lane, now: float) -> None:
        """Owner, at each heartbeat: send again to peers that are behind and report no progress, ever more rarely."""
        for peer in lane.audience:
            holds = lane.stored.get(peer, lane.reported.get(peer, 0))
            before, beats = lane.pushed.get(peer, (-1, 0))
            beats = beats + 1 if holds == before else 0
            lane.pushed[peer] = holds, beats
            is_power_of_two = beats > 0 and beats & (beats - 1) == 0
            if holds < lane.end and is_power_of_two and self._fresh(peer, now):
                entries = self._held(lane, holds, lane.end)
                if entries:
                    self._send_now(peer, LaneEnqueue(lane.number, entries[0].position - 1, entries, lane.cursor))

    def _fresh(self, peer: int, now: float) -> bool:
        return now - self.heard.get(peer, NEVER) <= self.tuning.heartbeat_fresh_s

    # ------------------------------------------------------------------ the rules, one by one

    def _counts_as_stored(self, lane: Lane, source: int) -> bool:
        """Only the lane's own voters, fixed when it was opened."""
        return source in lane.stored

    def _own_count(self, lane: Lane, end: int) -> int:
        """What this peer may be counted for when it is durable up to `end`: nothing from behind the fence."""
        return lane.counted(end)

    def _counted_cursor(self, lane: Lane) -> int:
        return quorum_th_largest(lane.stored.values(), len(lane.voters))

    def _is_quorum(self, lane: Lane, answered: Container[int]) -> bool:
        return has_quorum(answered, lane.voters)

    def _accepts_from_owner(self, lane: Lane) -> bool:
        """A fence holds for ever, also across restarts."""
        return not lane.fenced

    def _takes_to(self, lane: Lane) -> int:
        """How far this copy may be extended by a fetch."""
        if lane.decided >= 0:
            return lane.decided
        if lane.fenced:
            return lane.target  # only while this peer settles the lane, and only to the end it found
        return UNLIMITED
