"""Pub-sub replication of one queue on one peer: every peer writes at once, to a lane of its own.

    input                          from                      leads to
    enqueue                        a client of this peer     LaneEnqueue to all, at once; own copy persisted
    receive                        a link                    see `copies` (live lanes) and `settle` (ending lanes)
    tick, persisted                the shell                 heartbeats, repair, settling; the own copy counts
    members, lane_opened,          the metadata lane,        who is spoken to; which lanes exist, who owns and votes on
    lane_end_decided               committed, in its order   them; where they end

A lane belongs to one run (peer, incarnation). A peer that restarts, or whose lane was fenced while it lived, opens a
new lane and never appends to the old one again: that is what makes all copies of a lane prefixes of one sequence, and
the reason why no ballot, no origin check and no conflict appears anywhere below. Lanes without a living run are
orphans; any peer in touch with a quorum settles them after a random delay, so that usually one does.

Besides `drain()` the composition takes six short lists after each input. Ranges are (lane, after, to), meaning the
entries after+1 .. to: `take_committed` newly readable here; `take_accepted` (lane, to, peers) own lane committed up to
`to`; `take_refused` own entries that can never be committed; `take_lost` own lanes this run may not append to any more
(make the next incarnation durable, `new_run`, open a lane); `take_settled` (lane, end) to propose as LANE_END. First of
all `take_begun`: copies that start anew behind what was removed for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from avow.errors import DiskFull, LaneEnded, Offline
from avow.ids import ballot_of
from avow.limits import LANES_PER_QUEUE_MAX
from avow.replication.effects import LaneImage
from avow.replication.pubsub.copies import NEVER
from avow.replication.pubsub.keeping import Keeping
from avow.replication.pubsub.lane import Lane, Read
from avow.replication.tuning import Tuning
from avow.wire.messages import (
    Entry,
    Fence,
    Fenced,
    LaneEnqueue,
    LaneFetch,
    LaneFetched,
    LaneHeartbeat,
    LaneReject,
    Message,
    Refill,
    Refilled,
    Stored,
)

IDLE_BEATS: Final = 20  # a queue in which nothing happens says so every so many heartbeats


class PubSubCore(Keeping):
    def __init__(
        self,
        *,
        me: int,
        incarnation: int,
        images: dict[int, LaneImage],
        rng: Callable[[], float],
        tuning: Tuning,
        now: float,
        read: Read | None = None,
        heard: dict[int, float] | None = None,
    ) -> None:
        """`incarnation` is durable and was never used by an earlier run. `images` are what storage found, synced: those
        of this queue's lanes are taken out when the core learns of them, those of other queues' lanes stay there.
        `heard`, when each peer was last heard of, may be shared by all that runs on this peer: then a queue in which
        nothing happens says so only now and then."""
        super().__init__(me=me, incarnation=incarnation, images=images, tuning=tuning, read=read, heard=heard)
        self._rng = rng
        self._beat_at = now
        self._everyone: tuple[int, ...] = ()
        self._runs: dict[int, int] = {}  # peer -> its newest incarnation that opened a lane
        self._first_beat_lane = 0
        self._last_beat: LaneHeartbeat | None = None
        self._beats_idle = 0  # since there was something new to say
        self._on: dict[type, Callable[..., None]] = {
            LaneEnqueue: self._on_enqueue,
            Stored: self._on_stored,
            LaneHeartbeat: self._on_heartbeat,
            LaneReject: self._on_reject,
            LaneFetch: self._on_fetch,
            LaneFetched: self._on_fetched,
            Fence: self._on_fence,
            Fenced: self._on_fenced,
            Refill: self._on_refill,
            Refilled: self._on_refilled,
        }

    # ------------------------------------------------------------------ inputs

    def receive(self, source: int, message: Message, now: float) -> None:
        self.heard[source] = now
        self._on[type(message)](source, message, now)

    def enqueue(
        self,
        kind: int,
        *,
        count: int,
        write_id: bytes,
        now: float,
        created_ms: int = 0,
        control: bytes = b"",
        batch: bytes = b"",
    ) -> int:
        """Append to the own lane; returns the position. Raises Offline, LaneEnded or DiskFull, all definite."""
        lane = self._writable(now)
        entry = Entry(
            lane.end + 1,
            ballot_of(lane.incarnation, self.me),
            kind,
            count=count,
            write_id=write_id,
            created_ms=created_ms,
            control=control,
            batch=batch,
        )
        entries = (entry,)
        self._take(lane, entries)
        self._unsent = lane  # sent at the drain: what is written in one turn of the loop leaves as one message
        return entry.position

    def _writable(self, now: float) -> Lane:
        lane = self._own
        if lane is None:
            raise Offline("this run of the peer has no lane in the queue yet; nothing was stored. Retry")
        if not lane.open:
            raise LaneEnded(f"lane {lane.number} takes no more entries; nothing was stored. Retry for the next lane")
        if self.full:
            raise DiskFull("this peer's disk is full; nothing was stored. Another peer may have room; retry")
        if not self.online(now):
            raise Offline(f"no quorum of the voters {lane.voters} was heard lately; nothing was stored. Retry")
        if lane.end - lane.cursor >= self.tuning.in_flight_entries:
            raise Offline(f"{lane.end - lane.cursor} entries wait for a quorum already; nothing was stored. Retry")
        return lane

    def check_writable(self, now: float) -> None:
        """Raises as `enqueue` would."""
        self._writable(now)

    def tick(self, now: float) -> None:
        """Call at `wake_at()` or later; calling early does nothing."""
        if now < self._beat_at:
            return
        self._beat_at = now + self.tuning.heartbeat_interval_s
        for lane in self._active:
            self._tend(lane, now)
        self._active = [lane for lane in self._active if not lane.complete]
        self._beat()

    def wake_at(self) -> float:
        return self._beat_at

    # ------------------------------------------------------------------ facts of the metadata lane

    def members(self, voters: Iterable[int], learners: Iterable[int]) -> None:
        """Who is spoken to from now on. Does not change who votes on lanes that are open."""
        self._everyone = tuple(dict.fromkeys((*voters, *learners)))
        self._beat_wanted = True
        for lane in self._active:
            lane.audience = self._audience(lane)

    def lane_opened(self, number: int, peer: int, incarnation: int, voters: tuple[int, ...], now: float) -> None:
        """A run owns a lane, with these voters for its whole life. Told twice, it changes nothing."""
        lane = self._claim(number)
        if lane.voters:
            return
        lane.owner, lane.incarnation, lane.voters = peer, incarnation, voters
        lane.stored = dict.fromkeys(voters, 0)
        lane.audience = self._audience(lane)
        self._active.append(lane)
        self._runs[peer] = max(incarnation, self._runs.get(peer, 0))
        lane.opened_at = now  # the owner has its whole time to be heard, from here on
        if self._owns_run(peer, incarnation) and self._own is None and lane.decided < 0:
            self._own, lane.mine = lane, True
            lane.sent_to = lane.end
            if lane.fenced:  # somebody gave this run up before it learned of its own lane
                self._lose(lane)
        if lane.decided > lane.cursor:
            self._move_cursor(lane, lane.decided)
        self._became_durable(lane, lane.durable, fenced=lane.fence_durable, now=now)

    def new_run(self, incarnation: int) -> None:
        """The composition made this incarnation durable: what this peer owned is an orphan from here on."""
        self.incarnation = incarnation
        if self._own is not None:
            self._own.lost = True
        self._own = None

    def lane_orphaned(self, number: int) -> None:
        """By the metadata lane nobody may append to it any more, even if its owner is still to be heard."""
        self._known_lane(number).orphaned = True

    def _audience(self, lane: Lane) -> tuple[int, ...]:
        return tuple(peer for peer in dict.fromkeys((*self._everyone, *lane.voters)) if peer != self.me)

    # ------------------------------------------------------------------ time

    def _beat(self) -> None:
        undecided = [lane for lane in self._active if lane.decided < 0]
        if len(undecided) > LANES_PER_QUEUE_MAX:  # more than one heartbeat carries: in turns
            start = self._first_beat_lane % len(undecided)
            undecided = (undecided[start:] + undecided[:start])[:LANES_PER_QUEUE_MAX]
            self._first_beat_lane = start + LANES_PER_QUEUE_MAX
        beat = LaneHeartbeat(
            tuple((lane.number, self._own_count(lane, lane.durable), lane.cursor) for lane in undecided)
        )
        self._beats_idle = 0 if self._alone or self._beat_wanted or beat != self._last_beat else self._beats_idle + 1
        if self._beats_idle % IDLE_BEATS:
            return
        self._last_beat, self._beat_wanted = beat, False
        for peer in self._everyone:
            if peer != self.me:
                self._send_now(peer, beat)

    def _tend(self, lane: Lane, now: float) -> None:
        self._repair(lane, now)
        if lane.decided >= 0:
            return
        settlement = self._settlements.get(lane.number)
        if settlement is not None:
            self._press(settlement, now)
            return
        if lane is self._own and not lane.lost:
            self._push(lane, now)
            if lane.closing and now >= lane.settle_at:
                lane.settle_at = now + self.tuning.owner_dead_after_s
                self._try_close(lane)
        elif not self._abandoned(lane, now):
            lane.settle_at = 0.0
        elif lane.settle_at == 0.0:
            lane.settle_at = now + self._settle_delay(lane)
        elif now >= lane.settle_at and self._reaches_quorum(lane, now):
            self.settle(lane.number, now)

    def _abandoned(self, lane: Lane, now: float) -> bool:
        """Nobody will append: fenced, its run is over, or its owner has been silent for too long."""
        if lane.fenced or lane.orphaned or lane.owner == self.me or lane.incarnation < self._runs[lane.owner]:
            return True
        heard_at = max(self.heard.get(lane.owner, NEVER), lane.opened_at)
        return now - heard_at >= self.tuning.owner_dead_after_s

    def _settle_delay(self, lane: Lane) -> float:
        """A fenced lane has a settler: it gets time to finish before another one begins."""
        patience = self.tuning.owner_dead_after_s if lane.fenced else 0.0
        return patience + self._rng() * self.tuning.claim_jitter_s

    def _reaches_quorum(self, lane: Lane, now: float) -> bool:
        """A peer that was cut off must not fence the lanes of those it cannot hear."""
        oldest, heard = now - self.tuning.heartbeat_fresh_s, self.heard
        fresh = {peer for peer in lane.voters if peer == self.me or heard.get(peer, NEVER) >= oldest}
        return self._is_quorum(lane, fresh)

    # ------------------------------------------------------------------ what others may ask

    @property
    def own_lane(self) -> int | None:
        return self._own.number if self._own is not None else None

    @property
    def own_unsynced(self) -> bool:
        """An entry of the own lane is not durable here yet, nor known to be committed."""
        own = self._own
        return own is not None and own.end > max(own.durable, own.cursor)

    def online(self, now: float) -> bool:
        """The own lane's voters, this peer included, were heard in quorum within the freshness time."""
        return self._own is not None and self._reaches_quorum(self._own, now)

    def readable_to(self, number: int) -> int:
        return self._known_lane(number).readable

    def lookup(self, number: int, position: int) -> tuple[bool, bool, tuple[int, ...]]:
        """(stored here, committed, voters known to have stored it), also for entries that are not committed yet."""
        lane = self._known_lane(number)
        return 0 < position <= lane.durable, 0 < position <= lane.cursor, lane.stored_by(position)

    def open_voters(self) -> tuple[int, ...]:
        """Of the own lane while it takes entries; nobody when it does not."""
        return self._own.voters if self._own is not None and self._own.open else ()

    def ended_here(self, number: int) -> bool:
        """The lane's end is decided and this copy holds everything up to it."""
        lane = self._lanes.get(number)
        return lane is not None and bool(lane.voters) and lane.complete

    def caught_up(self, number: int, *, within: int) -> bool:
        """This copy is as long as any that was heard of, but for a few entries; somebody was heard."""
        lane = self._known_lane(number)
        if lane.decided >= 0:
            return lane.complete
        return (lane.heard or lane.mine) and lane.durable >= self._wanted(lane) - within

    def statistics(self) -> dict[str, object]:
        own = self._own
        return {
            "own_lane": self.own_lane,
            "in_flight": own.end - own.cursor if own is not None else 0,
            "lanes": len(self._lanes),
            "undecided": [lane.number for lane in self._active if lane.decided < 0],
            "settling": list(self._settlements),
            "repairing": [lane.number for lane in self._active if lane.repairing and lane.decided < 0],
            "behind": {
                lane.number: lane.cursor - lane.readable for lane in self._active if lane.cursor > lane.readable
            },
        }

    # ------------------------------------------------------------------ what the composition takes

    @property
    def has_news(self) -> bool:
        """At least one of the six lists is not empty: asked after every input, hence in one expression."""
        return bool(self._committed or self._accepted or self._refused or self._lost or self._settled or self._begun)

    def take_begun(self) -> list[tuple[int, int, bytes]]:
        """Before the others: lanes of which this copy begins behind what was removed, (lane, position, state there)."""
        taken, self._begun = self._begun, []
        return taken

    def take_committed(self) -> list[tuple[int, int, int]]:
        taken, self._committed = self._committed, []
        return taken

    def take_accepted(self) -> list[tuple[int, int, tuple[int, ...]]]:
        taken, self._accepted = self._accepted, []
        return taken

    def take_refused(self) -> list[tuple[int, int, int]]:
        taken, self._refused = self._refused, []
        return taken

    def take_lost(self) -> list[int]:
        taken, self._lost = self._lost, []
        return taken

    def take_settled(self) -> list[tuple[int, int]]:
        taken, self._settled = self._settled, []
        return taken

    # ------------------------------------------------------------------ the rules, one by one

    def _owns_run(self, peer: int, incarnation: int) -> bool:
        """Only the run that opened a lane appends to it; a restarted peer does not go on where it stopped."""
        return peer == self.me and incarnation == self.incarnation
