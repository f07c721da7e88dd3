"""A few pub-sub cores without IO: a network that is a list, disks that are dictionaries, one clock.

The metadata lane is one list of committed facts; every peer reads it in order and at its own pace. Nothing happens by
itself: tests deliver messages, sync disks and move the clock. `settle_down` does all of it until nothing is left to do.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence

from avow.replication.durable import LaneImages, synced_receipt
from avow.replication.effects import (
    Effects,
    LaneImage,
    Persist,
    SaveCut,
    SaveEntries,
    SaveFence,
    SaveState,
)
from avow.replication.pubsub.core import PubSubCore
from avow.replication.pubsub.roles import PubSubRoles
from avow.replication.tuning import Tuning
from avow.wire.messages import Entry, Kind, Message

BEAT_S = Tuning().heartbeat_interval_s

PROOF = synced_receipt(1)


class Disk:
    """The state that survives a crash: effects are applied to it at the sync, all or nothing."""

    def __init__(self) -> None:
        self.lanes: dict[int, LaneImage] = {}
        self.before_damage: dict[int, int] = {}
        self.incarnation = 0

    def apply(self, effect: Persist) -> None:
        assert isinstance(effect, SaveEntries | SaveCut | SaveFence | SaveState)
        lane = self.lanes.setdefault(effect.lane, LaneImage(entries=[]))
        if isinstance(effect, SaveEntries):
            first = effect.entries[0].position
            assert first <= len(lane.entries) + 1, "storage never gets a gap"
            lane.entries[first - 1 :] = effect.entries
            lane.damaged_from = 0  # the gap check above: what is written anew starts where the damage did
        elif isinstance(effect, SaveCut):
            del lane.entries[effect.end :]
        elif isinstance(effect, SaveFence):
            lane.fenced, lane.decided_end = True, effect.end
        else:
            lane.stamped = effect.stamped

    def images(self) -> dict[int, LaneImage]:
        """As a start finds them. Damage is found again at every start until the bytes are rewritten."""
        return {
            number: LaneImage(
                stamped=lane.stamped,
                entries=list(lane.entries),
                damaged_from=lane.damaged_from,
                fenced=lane.fenced,
                decided_end=lane.decided_end,
            )
            for number, lane in self.lanes.items()
        }

    def read(self, lane: int, after: int, limit: int) -> Sequence[Entry]:
        return self.lanes[lane].entries[after : after + limit]

    def damage(self, lane: int, position: int) -> None:
        """Entries from `position` on cannot be read any more."""
        image = self.lanes[lane]
        self.before_damage[lane] = max(len(image.entries), self.before_damage.get(lane, 0))
        del image.entries[position - 1 :]
        image.damaged_from = position


class Peer:
    def __init__(self, number: int) -> None:
        self.number = number
        self.disk = Disk()
        self.core: PubSubCore | None = None
        self.unsynced: deque[Effects] = deque()
        self.facts_seen = 0
        self.committed: list[tuple[int, int, int]] = []
        self.accepted: list[tuple[int, int, tuple[int, ...]]] = []
        self.refused: list[tuple[int, int, int]] = []
        self.lost: list[int] = []


class Cluster:
    def __init__(
        self,
        size: int = 3,
        *,
        roles: PubSubRoles | None = None,
        tuning: Tuning | None = None,
        seed: int = 0,
        auto_sync: bool = True,
        learners: tuple[int, ...] = (),
        reads_disks: bool = False,
    ) -> None:
        self.now = 1.0
        self.roles, self.tuning = roles or PubSubRoles(), tuning or Tuning()
        self.random = random.Random(seed)
        self.auto_sync, self.reads_disks = auto_sync, reads_disks
        self.auto_facts = self.auto_propose = True
        self.voters, self.learners = tuple(range(1, size + 1)), learners
        self.network: list[tuple[int, int, Message]] = []
        self.cut_links: set[tuple[int, int]] = set()
        self.facts: list[tuple[int, ...]] = []  # (lane, peer, incarnation): opened;  (lane, end): ended
        self.lanes = 0
        self.ends: dict[int, int] = {}
        self.proposals: list[tuple[int, int]] = []
        self.trace: list[tuple[int, int, Message]] = []
        self.peers = {number: Peer(number) for number in (*self.voters, *learners)}
        for number in self.peers:
            self.start(number)

    # ------------------------------------------------------------------ peers

    def start(self, number: int) -> None:
        """A new run: next incarnation, the disk's contents, the facts so far, and a new lane."""
        peer = self.peers[number]
        peer.disk.incarnation += 1
        peer.core = PubSubCore(
            me=number,
            incarnation=peer.disk.incarnation,
            images=LaneImages(peer.disk.images()),
            rng=self.random.random,
            tuning=self.tuning,
            now=self.now,
            read=peer.disk.read if self.reads_disks else None,
            roles=self.roles,
        )
        peer.facts_seen = 0
        peer.core.members(self.voters, self.learners)
        self.open_lane(number)

    def open_lane(self, number: int) -> int:
        self.lanes += 1
        self.facts.append((self.lanes, number, self.peers[number].disk.incarnation))
        self.spread_facts()
        return self.lanes

    def crash(self, number: int) -> None:
        peer = self.peers[number]
        peer.core = None
        peer.unsynced.clear()

    def restart(self, number: int) -> None:
        self.crash(number)
        self.start(number)

    def next_run(self, number: int) -> int:
        """Does what a node does for a peer that lost its lane."""
        peer = self.peers[number]
        peer.disk.incarnation += 1
        self.at(number).new_run(peer.disk.incarnation)
        return self.open_lane(number)

    def at(self, number: int) -> PubSubCore:
        core = self.peers[number].core
        assert core is not None, f"peer {number} is down"
        return core

    def up(self) -> list[int]:
        return [number for number, peer in self.peers.items() if peer.core is not None]

    # ------------------------------------------------------------------ the metadata lane

    def spread_facts(self) -> None:
        if self.auto_facts:
            for number in self.up():
                self.read_facts(number)

    def read_facts(self, number: int, upto: int | None = None) -> None:
        peer, core = self.peers[number], self.at(number)
        for fact in self.facts[peer.facts_seen : upto]:
            peer.facts_seen += 1
            if len(fact) == 3:
                lane, owner, incarnation = fact
                core.lane_opened(lane, owner, incarnation, self.voters, self.now)
            else:
                core.lane_end_decided(fact[0], fact[1], self.now)
        self.collect(number)

    def commit_proposals(self) -> None:
        """In their order; the first end of a lane is its end."""
        proposals, self.proposals = self.proposals, []
        for lane, end in proposals:
            if lane not in self.ends:
                self.ends[lane] = end
                self.facts.append((lane, end))
        self.spread_facts()

    # ------------------------------------------------------------------ effects

    def collect(self, number: int) -> None:
        """Drain a core and carry out what it wants, in the order of the contract."""
        peer, core = self.peers[number], self.at(number)
        while (effects := core.drain()) is not None:
            self.send(number, effects.sends)
            if not effects.persist:
                continue
            peer.unsynced.append(effects)
            if self.auto_sync:
                self.sync(number)
        peer.committed += core.notifications.take_committed()
        peer.accepted += core.notifications.take_accepted()
        peer.refused += core.notifications.take_refused()
        peer.lost += core.notifications.take_lost()
        self.proposals += core.notifications.take_settled()
        if self.proposals and self.auto_propose:
            self.commit_proposals()

    def send(self, source: int, sends: Sequence[tuple[int, Message]]) -> None:
        for target, message in sends:
            assert target != source
            self.trace.append((source, target, message))
            if (source, target) not in self.cut_links:
                self.network.append((source, target, message))

    def sync(self, number: int) -> None:
        """One sync covers everything that waits."""
        peer = self.peers[number]
        covered, peer.unsynced = list(peer.unsynced), deque()
        for effects in covered:
            for effect in effects.persist:
                peer.disk.apply(effect)
        for _ in covered:
            self.at(number).persisted(PROOF, self.now)
        if covered:
            self.collect(number)

    # ------------------------------------------------------------------ what tests do

    def cut(self, *numbers: int) -> None:
        """Partitions `numbers` from the others. Messages in flight are lost as well."""
        inside = set(numbers)
        for a in self.peers:
            for b in self.peers:
                if (a in inside) != (b in inside):
                    self.cut_links.add((a, b))
        self.network = [m for m in self.network if (m[0], m[1]) not in self.cut_links]

    def heal(self) -> None:
        self.cut_links.clear()

    def deliver(self, index: int = 0, *, keep: bool = False) -> None:
        source, target, message = self.network[index] if keep else self.network.pop(index)
        if self.peers[target].core is not None:
            self.at(target).receive(source, message, self.now)
            self.collect(target)

    def deliver_all(self, where: Callable[[int, int, Message], bool] = lambda *_: True) -> None:
        """Until nothing that `where` accepts is in flight. The rest stays."""
        while True:
            index = next((i for i, m in enumerate(self.network) if where(*m)), None)
            if index is None:
                return
            self.deliver(index)

    def tick(self, *numbers: int) -> None:
        for number in numbers or self.up():
            if self.peers[number].core is not None:
                self.at(number).tick(self.now)
                self.collect(number)

    def run(self, seconds: float) -> None:
        """Let time pass with everything that is not cut off working."""
        until = self.now + seconds
        self.deliver_all()
        while self.now < until:
            self.now += BEAT_S
            self.tick()
            self.deliver_all()

    def enqueue(self, number: int, value: str) -> int:
        position = self.at(number).enqueue(
            Kind.DATA, count=1, write_id=value.encode().ljust(16, b"."), now=self.now, batch=value.encode()
        )
        self.collect(number)
        return position

    def own_lane(self, number: int) -> int:
        lane = self.at(number).own_lane
        assert lane is not None
        return lane

    def values(self, number: int, lane: int) -> list[str]:
        """The messages of the lane that are readable at peer `number`."""
        core, values = self.at(number), list[str]()
        while entries := core.retention.entries(lane, after=len(values), limit=100):
            values += [bytes(entry.batch).decode() for entry in entries]
        return values

    def stored(self, number: int, lane: int) -> list[str]:
        image = self.peers[number].disk.lanes.get(lane)
        return [bytes(entry.batch).decode() for entry in image.entries] if image else []

    def messages(self, kind: type, *, source: int | None = None, target: int | None = None) -> list[Message]:
        return [m for s, t, m in self.trace if isinstance(m, kind) and source in (None, s) and target in (None, t)]
