"""Pub-sub replication of one queue on one peer: every peer writes to a lane of its own, all at the same time.

    input                          from                      leads to
    enqueue                        a client of this peer     LaneEnqueue to all at once; own copy persisted
    receive                        a link                    see `copies` (live lanes) and `settlement` (ending lanes)
    tick, persisted                the shell                 heartbeats, repair, settling; the own copy counts
    members, lane_opened,          the metadata lane,        which peers get messages; which lanes exist, their owners
    lane_end_decided               committed, in its order   and voters; where they end

A lane belongs to one run (peer, incarnation). A peer that restarts, or whose lane was fenced while it was alive, opens
a new lane and never appends to the old one again. So all copies of a lane are prefixes of one sequence, and no ballots,
origin checks or conflicts are needed. Lanes without a live run are orphans; any peer that can reach a quorum settles
them after a random delay, so that usually only one does.

Inputs are passed to the roles, each of which is a module with a state of its own:

    copies       entries of live lanes, and who stored them        ownership    the lane this run appends to
    repair       missing entries of a copy                         settlement   ending lanes without a run
    retention    memory, disk, snapshots, trims                    rules        the conditions of safety

Besides `drain()` the queue takes six short lists after each input (`notifications`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from avow.ids import ballot_of
from avow.replication.durable import LaneImages, Synced
from avow.replication.effect_buffer import EffectBuffer
from avow.replication.effects import Effects
from avow.replication.pubsub.context import Context
from avow.replication.pubsub.copies import Copies
from avow.replication.pubsub.journal import Journal, Mark
from avow.replication.pubsub.lanes import Lanes
from avow.replication.pubsub.liveness import Liveness
from avow.replication.pubsub.notifications import Notifications
from avow.replication.pubsub.ownership import Ownership
from avow.replication.pubsub.repair import Repair
from avow.replication.pubsub.retention import Retention
from avow.replication.pubsub.roles import PubSubRoles
from avow.replication.pubsub.rules import Rules
from avow.replication.pubsub.settlement import Settlement
from avow.replication.pubsub.state import LaneState, Read
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
    Section,
    Stored,
)

SHIPPED: Final = PubSubRoles()


class PubSubCore:
    def __init__(
        self,
        *,
        me: int,
        incarnation: int,
        images: LaneImages,
        rng: Callable[[], float],
        tuning: Tuning,
        now: float,
        read: Read | None = None,
        heard: dict[int, float] | None = None,
        roles: PubSubRoles = SHIPPED,
    ) -> None:
        """`incarnation` is durable and was never used by an earlier run. `images` is what storage found, synced: lanes
        of this queue are taken out when the core learns of them, those of other queues stay. `heard`, the time of each
        peer's last message, may be shared by all lanes of this peer: then an idle queue sends heartbeats rarely."""
        self.me, self.tuning = me, tuning
        rules: Rules = roles.rules()
        self.effects: EffectBuffer[Mark] = roles.effects()
        self.journal = Journal(self.effects)
        self.notifications = Notifications()
        self.lanes: Lanes = roles.lanes(me, images, rules, self.journal)
        self._liveness = Liveness(
            me=me, tuning=tuning, rules=rules, effects=self.effects, lanes=self.lanes, now=now, heard=heard
        )
        context = Context(
            me=me,
            tuning=tuning,
            rules=rules,
            effects=self.effects,
            journal=self.journal,
            notifications=self.notifications,
            lanes=self.lanes,
            liveness=self._liveness,
        )
        self.ownership: Ownership = roles.ownership(context, incarnation)
        self.retention: Retention = roles.retention(context, read)
        self.repair: Repair = roles.repair(context, self.retention)
        self.copies: Copies = roles.copies(context, self.ownership, self.repair)
        self.settlement: Settlement = roles.settlement(
            context, self.ownership, self.retention, self.repair, self.copies, rng
        )
        self.heard = self._liveness.heard
        self._on: dict[type, Callable[..., None]] = {
            LaneEnqueue: self.copies.on_enqueue,
            Stored: self.copies.on_stored,
            LaneHeartbeat: self.copies.on_heartbeat,
            LaneFetched: self.copies.on_fetched,
            LaneFetch: self.repair.on_fetch,
            LaneReject: self.ownership.on_reject,
            Fence: self.settlement.on_fence,
            Fenced: self.settlement.on_fenced,
            Refill: self.settlement.on_refill,
            Refilled: self.settlement.on_refilled,
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
        batch: Section = b"",
    ) -> int:
        """Append to the own lane; returns the position. Raises Offline, LaneEnded or DiskFull, all definite."""
        lane = self.ownership.writable(now)
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
        self.copies.take(lane, (entry,))
        self.ownership.appended(lane)
        return entry.position

    def check_writable(self, now: float) -> None:
        """Raises as `enqueue` would."""
        self.ownership.writable(now)

    def tick(self, now: float) -> None:
        """Call at `wake_at()` or later; calling early does nothing."""
        if self._liveness.is_due(now):
            for lane in self.lanes.active:
                self._tend(lane, now)
            self.lanes.retire()
            self._liveness.beat()

    def _tend(self, lane: LaneState, now: float) -> None:
        self.repair.tend(lane, now)
        if lane.decided >= 0:
            return
        if self.ownership.appends_to(lane) and lane.number not in self.settlement.attempts:
            self.repair.push(lane, now)
            self.ownership.tend(lane, now)
        else:
            self.settlement.tend(lane, now)

    def wake_at(self) -> float:
        return self._liveness.beat_at

    def drain(self) -> Effects | None:
        """Everything to do since the last call, or None."""
        unsent = self.ownership.unsent
        if unsent is not None:
            self.ownership.send(unsent)
        if self.copies.unannounced:
            self.copies.announce()
        return self.effects.drain(self.journal.take_mark())

    def persisted(self, proof: Synced, now: float) -> None:
        """The oldest outstanding effects are synced."""
        lanes = self.lanes.by_number
        for lane, end, fenced in self.effects.persisted(proof):
            if lanes.get(lane.number) is lane:  # otherwise it was dropped meanwhile
                self._became_durable(lane, end, fenced=fenced, now=now)

    def _became_durable(self, lane: LaneState, end: int, *, fenced: bool, now: float) -> None:
        fence_is_news = fenced and not lane.fence_durable
        self.copies.became_durable(lane, end, fenced=fenced)
        if self.settlement.attempts:
            self.settlement.became_durable(lane, now)
        if fence_is_news:
            self.ownership.fence_synced(lane)

    def disk_full(self, *, full: bool) -> None:
        """The disk is full, or has space again."""
        self.journal.disk_full(full=full)

    def settle(self, number: int, now: float) -> None:
        """Begin to end the lane. Does nothing if its end is decided or this peer is settling it already."""
        self.settlement.settle(number, now)

    def close_own_lane(self) -> None:
        """Stop appending to the own lane; when all of it is committed, its end goes to `take_settled`."""
        self.ownership.close()

    def drop(self, number: int) -> None:
        """The lane will never be read again: delete it from storage, and ignore frames about it."""
        lane = self.lanes.claim(number)
        self.retention.drop(lane)
        self.lanes.drop(lane)
        self.settlement.drop(lane)
        self.ownership.drop(lane)
        self.copies.drop(lane)
        self.notifications.drop(number)

    # ------------------------------------------------------------------ facts of the metadata lane

    def members(self, voters: Iterable[int], learners: Iterable[int]) -> None:
        """The peers that get messages from now on. Does not change the voters of open lanes."""
        self.lanes.members(voters, learners)
        self._liveness.say_again()

    def lane_opened(self, number: int, peer: int, incarnation: int, voters: tuple[int, ...], now: float) -> None:
        """A run owns a lane, with these voters for its whole life. The second time this changes nothing."""
        lane = self.lanes.claim(number, new=(peer, incarnation) == (self.me, self.ownership.run))
        if lane.voters:
            return
        self.lanes.opened(lane, owner=peer, incarnation=incarnation, voters=voters, now=now)
        self.ownership.opened(lane)
        if lane.decided > lane.cursor:
            self.copies.move_cursor(lane, lane.decided)
        self._became_durable(lane, lane.durable, fenced=lane.fence_durable, now=now)

    def new_run(self, incarnation: int) -> None:
        """This incarnation is durable: the lanes that this peer owned are orphans from here on."""
        self.ownership.new_run(incarnation)

    def lane_orphaned(self, number: int) -> None:
        """The metadata lane orphaned the lane: its owner must not append to it any more, even if it is alive."""
        self.lanes.known(number).orphan()

    def lane_end_decided(self, number: int, end: int, now: float) -> None:  # noqa: ARG002 all facts have a time
        """The metadata lane committed the first end of this lane. Later ones change nothing."""
        self.settlement.decided(number, end)

    # ------------------------------------------------------------------ status

    @property
    def takes(self) -> Collection[type]:
        """The classes of messages that `receive` handles."""
        return self._on.keys()

    @property
    def own_lane(self) -> int | None:
        own = self.ownership.lane
        return own.number if own is not None else None

    @property
    def own_unsynced(self) -> bool:
        """An entry of the own lane is not durable here yet, nor known to be committed."""
        own = self.ownership.lane
        return own is not None and own.end > max(own.durable, own.cursor)

    def online(self, now: float) -> bool:
        """Whether a quorum of the own lane's voters, this peer included, was heard within the freshness time."""
        own = self.ownership.lane
        return own is not None and self._liveness.reaches_quorum(own, now)

    def open_voters(self) -> tuple[int, ...]:
        """The voters of the own lane while it is open for writes; otherwise empty."""
        own = self.ownership.lane
        return own.voters if own is not None and self.ownership.is_open else ()

    def readable_to(self, number: int) -> int:
        return self.lanes.known(number).readable

    def base_of(self, number: int) -> int:
        """Entries up to here are only on disk."""
        return self.lanes.known(number).base

    def end_of(self, number: int) -> int:
        """The last entry in memory or on disk, synced or not."""
        return self.lanes.known(number).end

    def cursor_of(self, number: int) -> int:
        return self.lanes.known(number).cursor

    def durable_of(self, number: int) -> int:
        return self.lanes.known(number).durable

    def stored_of(self, number: int) -> Mapping[int, int]:
        """Voter -> the last entry it is known to have stored."""
        return self.lanes.known(number).stored

    def lookup(self, number: int, position: int) -> tuple[bool, bool, tuple[int, ...]]:
        """(stored here, committed, voters known to have stored it) of an entry, committed or not."""
        lane = self.lanes.known(number)
        return 0 < position <= lane.durable, 0 < position <= lane.cursor, lane.stored_by(position)

    def ended_here(self, number: int) -> bool:
        """Whether the lane's end is decided and this copy holds everything up to it."""
        lane = self.lanes.by_number.get(number)
        return lane is not None and bool(lane.voters) and lane.complete

    def caught_up(self, number: int, *, within: int) -> bool:
        """Whether this copy is at most `within` entries shorter than the longest reported one; one was reported."""
        lane = self.lanes.known(number)
        if lane.decided >= 0:
            return lane.complete
        return (lane.heard_of or lane.mine) and lane.durable >= self.repair.wanted(lane) - within

    def donors_of(self, number: int, now: float) -> list[int]:
        """Peers heard recently that may hold the entries that are readable here."""
        return [peer for peer in self.lanes.known(number).audience if self._liveness.is_fresh(peer, now)]

    def statistics(self) -> dict[str, object]:
        own, active = self.ownership.lane, self.lanes.active
        return {
            "own_lane": self.own_lane,
            "in_flight": own.end - own.cursor if own is not None else 0,
            "lanes": len(self.lanes.by_number),
            "undecided": [lane.number for lane in self.lanes.undecided()],
            "settling": list(self.settlement.attempts),
            "repairing": [lane.number for lane in active if lane.repairing and lane.decided < 0],
            "behind": {lane.number: lane.cursor - lane.readable for lane in active if lane.cursor > lane.readable},
        }
