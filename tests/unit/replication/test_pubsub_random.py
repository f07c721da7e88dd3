"""Seeded schedules with loss, duplication, reordering, crashes and late metadata, checked at every step.

What must hold at every step, at every peer:
- agreement: an entry that was readable once is the same wherever and whenever it is readable;
- nothing readable or accepted lies beyond the decided end of its lane, and no refused entry is ever readable;
- an end that is proposed is on the disks of a quorum;
and when everything works again: every lane without a living owner is ended, and all peers read the same.

The same schedules must catch cores with one rule broken: a test that cannot fail proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from tests.unit.replication.pubsub_cluster import BEAT_S, Cluster

from avow.errors import Refused
from avow.replication.pubsub.context import Context
from avow.replication.pubsub.copies import Copies
from avow.replication.pubsub.core import SHIPPED
from avow.replication.pubsub.ownership import Ownership
from avow.replication.pubsub.repair import Repair
from avow.replication.pubsub.roles import PubSubRoles
from avow.replication.pubsub.rules import Rules
from avow.replication.pubsub.state import LaneState
from avow.replication.tuning import Tuning
from avow.wire.messages import Entry, LaneHeartbeat, Stored
from avow_lab.mutations.delegate import Delegate

STEPS = 400
TUNING = Tuning(piece_entries=2, owner_dead_after_s=0.3, claim_jitter_s=0.2)


class Violation(AssertionError):
    pass


class Checker:
    """Remembers what any peer ever showed."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.shown: dict[tuple[int, int], bytes] = {}
        self.longest: dict[int, int] = {}  # lane -> the highest position shown or accepted
        self.refused: dict[int, int] = {}  # lane -> entries after this one were refused
        self.proposed: set[tuple[int, int]] = set()

    def check(self) -> None:
        for number in self.cluster.up():
            self._check_shown(number)
            self._check_answers(number)
        for lane, end in self.cluster.proposals:
            self._check_proposal(lane, end)
        for lane, end in self.cluster.ends.items():
            self._require(self.longest.get(lane, 0) <= end, f"lane {lane} ended at {end}, shown further")
        for lane, after in self.refused.items():
            self._require(self.longest.get(lane, 0) <= after, f"refused after {after} in lane {lane}, yet shown")

    def _check_proposal(self, lane: int, end: int) -> None:
        """At the moment it is proposed, a quorum of disks holds the end (later, an earlier end may have cut them).

        A disk that held it and was damaged since counts: its answer was true when it was given.
        """
        if lane in self.cluster.ends or (lane, end) in self.proposed:
            return
        self.proposed.add((lane, end))
        disks = [self.cluster.peers[number].disk for number in self.cluster.voters]
        lengths = [len(disk.lanes[lane].entries) if lane in disk.lanes else 0 for disk in disks]
        holders = sum(
            max(length, disk.before_damage.get(lane, 0)) >= end for length, disk in zip(lengths, disks, strict=True)
        )
        self._require(holders > len(self.cluster.voters) // 2, f"end {end} of lane {lane} is on {holders} disks")

    def _check_shown(self, number: int) -> None:
        peer, core = self.cluster.peers[number], self.cluster.at(number)
        for lane, after, to in peer.committed:
            for position in range(after + 1, to + 1):
                entry = core.retention.entry(lane, position)
                self._require(entry is not None, f"peer {number} shows {lane}:{position} and does not have it")
                assert entry is not None
                value = self.shown.setdefault((lane, position), entry.write_id)
                self._require(value == entry.write_id, f"{lane}:{position} is {value!r} and {entry.write_id!r}")
            self.longest[lane] = max(to, self.longest.get(lane, 0))
        peer.committed.clear()

    def _check_answers(self, number: int) -> None:
        peer = self.cluster.peers[number]
        for lane, to, _peers in peer.accepted:
            self.longest[lane] = max(to, self.longest.get(lane, 0))
        for lane, after, _to in peer.refused:
            self.refused[lane] = after
        peer.accepted.clear()
        peer.refused.clear()

    def _require(self, holds: bool, text: str) -> None:
        if not holds:
            raise Violation(text)


class Schedule:
    def __init__(self, seed: int, roles: PubSubRoles = SHIPPED) -> None:
        self.cluster = Cluster(5 if seed % 2 else 3, roles=roles, tuning=TUNING, seed=seed, auto_sync=False)
        self.cluster.auto_facts = self.cluster.auto_propose = False
        self.random = self.cluster.random
        self.checker = Checker(self.cluster)
        self.writes = 0

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
            self.checker.check()
        self.recover()

    def step(self) -> None:
        roll = self.random.random()
        if roll < 0.62:
            self.network()
        elif roll < 0.74:
            self.disk_or_facts()
        elif roll < 0.86:
            self.write()
        elif roll < 0.95:
            self.cluster.now += BEAT_S * self.random.choice((0.5, 1, 1, 2))
            self.cluster.tick(*self.random.sample(self.cluster.up(), 1))
        else:
            self.fault()

    def network(self) -> None:
        cluster, roll = self.cluster, self.random.random()
        if not cluster.network:
            return
        index = self.random.randrange(min(len(cluster.network), 30))
        if roll < 0.1:
            cluster.network.pop(index)
        else:
            cluster.deliver(index, keep=roll < 0.2)

    def disk_or_facts(self) -> None:
        number = self.random.choice(self.cluster.up())
        roll = self.random.random()
        if roll < 0.6:
            self.cluster.sync(number)
        elif roll < 0.7:
            self.random.shuffle(self.cluster.proposals)
            self.cluster.commit_proposals()
        else:
            seen = self.cluster.peers[number].facts_seen
            self.cluster.read_facts(number, seen + self.random.randrange(3))

    def write(self) -> None:
        self.writes += 1
        try:
            self.cluster.enqueue(self.random.choice(self.cluster.up()), f"w{self.writes}")
        except Refused:
            self.writes -= 1

    def fault(self) -> None:
        cluster, number = self.cluster, self.random.choice(list(self.cluster.peers))
        roll = self.random.random()
        if cluster.peers[number].core is None:
            cluster.start(number)
        elif roll < 0.35:
            cluster.at(number).settle(self.random.randrange(1, cluster.lanes + 1), cluster.now)
            cluster.collect(number)
        elif roll < 0.45 and len(cluster.up()) > len(cluster.peers) // 2 + 1:
            cluster.crash(number)
        elif roll < 0.53:
            cluster.restart(number)
        elif roll < 0.58 and cluster.peers[1].core is not None:
            self.damage(1)  # always the same peer: two damaged copies of a lane would leave no quorum to settle it
        elif roll < 0.7:
            cluster.cut(number)
        elif roll < 0.85:
            cluster.heal()
        elif roll < 0.9:
            cluster.at(number).close_own_lane()
            cluster.collect(number)
        elif cluster.peers[number].lost:
            cluster.peers[number].lost.clear()
            cluster.next_run(number)

    def damage(self, number: int) -> None:
        disk = self.cluster.peers[number].disk
        self.cluster.crash(number)
        lanes = [lane for lane, image in disk.lanes.items() if image.entries]
        if lanes:
            lane = self.random.choice(lanes)
            disk.damage(lane, self.random.randrange(len(disk.lanes[lane].entries)) + 1)
        self.cluster.start(number)

    def recover(self) -> None:
        """All faults end: within bounded time orphaned lanes are ended and all peers show the same."""
        cluster = self.cluster
        cluster.heal()
        cluster.auto_sync = cluster.auto_facts = cluster.auto_propose = True
        for number, peer in cluster.peers.items():
            if peer.core is None:
                cluster.start(number)
            cluster.sync(number)
        cluster.spread_facts()
        for _ in range(12):
            cluster.run(0.4)
            self.checker.check()
        self.check_recovered()

    def check_recovered(self) -> None:
        cluster = self.cluster
        living = {cluster.at(number).own_lane for number in cluster.peers}
        for lane in range(1, cluster.lanes + 1):
            if lane not in living and lane not in cluster.ends:
                raise Violation(f"lane {lane} has no owner and no end")
            read = {tuple(cluster.values(number, lane)) for number in cluster.peers}
            if len(read) != 1:
                raise Violation(f"lane {lane} reads differently after recovery: {read}")
            if len(read.pop()) < self.checker.longest.get(lane, 0):
                raise Violation(f"lane {lane} lost what was shown")


def found_in(roles: PubSubRoles, seeds: Sequence[int]) -> str | None:
    for seed in seeds:
        try:
            Schedule(seed, roles).run()
        except Violation as violation:
            return f"seed {seed}: {violation}"
    return None


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_schedules_keep_agreement_and_lose_nothing_readable(first: int) -> None:
    assert found_in(SHIPPED, range(first, first + 20)) is None


class CountsRefills(Delegate):
    def own_count(self, lane: LaneState, end: int) -> int:
        return 0 if lane.repairing else end


class EndsAtTheShortestAnswer(Delegate):
    def choose_end(self, held: Mapping[int, int]) -> int:
        return min(held.values())


class ReopensItsLane(Delegate):
    def owns_run(self, lane: LaneState, *, me: int, incarnation: int) -> bool:
        return lane.owner == me


class TakesEntriesBehindTheFence(Delegate):
    def accepts_from_owner(self, lane: LaneState) -> bool:
        return True

    def own_count(self, lane: LaneState, end: int) -> int:
        return end


class ProposesWithoutRefill(Delegate):
    def end_is_held(self, lane: LaneState, held: Mapping[int, int], end: int) -> bool:
        return True


class CountsHalf(Delegate):
    def counted_cursor(self, lane: LaneState) -> int:
        return sorted(lane.stored.values())[-max(len(lane.voters) // 2, 1)]


class BelievesDamagedAnswers(Delegate):
    def counts_answer(self, *, damaged: bool) -> bool:
        return True


class SaysStoredBeforeTheSync(Delegate):
    def __init__(self, shared: Context, ownership: Ownership, repair: Repair) -> None:
        super().__init__(Copies(shared, ownership, repair))
        self.effects = shared.effects

    def take(self, lane: LaneState, entries: Sequence[Entry]) -> None:
        self.shipped.take(lane, entries)
        self.effects.send_all(lane.audience, Stored(lane.number, lane.end))


BROKEN_RULES = (
    BelievesDamagedAnswers,
    CountsRefills,
    EndsAtTheShortestAnswer,
    ReopensItsLane,
    TakesEntriesBehindTheFence,
    ProposesWithoutRefill,
    CountsHalf,
)


@pytest.mark.parametrize("broken", BROKEN_RULES, ids=lambda broken: broken.__name__)
def test_the_same_schedules_catch_a_core_with_one_rule_broken(broken: type[Delegate]) -> None:
    assert found_in(PubSubRoles(rules=lambda: broken(Rules())), range(400)) is not None


def test_the_same_schedules_catch_a_core_that_sends_stored_before_the_sync() -> None:
    assert found_in(PubSubRoles(copies=SaysStoredBeforeTheSync), range(400)) is not None


def test_the_same_seed_gives_the_same_messages_in_the_same_order() -> None:
    first, second = Schedule(7), Schedule(7)
    first.run()
    second.run()
    assert len(first.cluster.trace) > 500
    assert first.cluster.trace == second.cluster.trace


def test_heartbeats_name_only_lanes_whose_end_is_open() -> None:
    cluster = Cluster(3)
    cluster.run(BEAT_S)
    cluster.restart(1)
    cluster.run(3.0)
    last = cluster.messages(LaneHeartbeat, source=2)[-1]
    assert isinstance(last, LaneHeartbeat)
    assert [lane for lane, _to, _cursor in last.lanes] == [2, 3, 4]
