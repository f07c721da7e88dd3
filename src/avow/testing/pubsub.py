"""Simulation of a pub-sub queue: a cluster in which every peer writes, its clients, its weather, and the verdict.

The world, the weather and the plan are those of the two-phase simulation. What differs is what has to be shown: there
is no coordinator whose log could be compared, so the checkers look at the disks themselves for the quorum behind every
entry that becomes readable, and at the end every lane whose owner is gone must have been ended by somebody.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import ClassVar, Final

from msgspec.structs import replace

from avow.ids import REPAIRING
from avow.peer.metadata_lane import METADATA_LANE, founding_snapshot
from avow.peer.pubsub_book import PubSubBounds
from avow.peer.pubsub_run import PubSubPeer
from avow.queue.commands import QueueCommand
from avow.queue.outcomes import Outcome
from avow.replication.effects import LaneImage, SaveSnapshot
from avow.replication.membership import Members
from avow.replication.two_phase.core import COORDINATOR
from avow.testing.ledger import Violation
from avow.testing.plan import Plan, draw_plan
from avow.testing.pubsub_clients import PubSubClient, PubSubDriver
from avow.testing.pubsub_ledger import PubSubLedger
from avow.testing.simulation import Simulation, Verdict
from avow.testing.world import Machine, World
from avow.wire.messages import Entry, Kind

QUEUE: Final = "orders"
_AT_FENCES: Final = (
    *("damage",) * 3,
    *("slow disk", "crash mid effects") * 2,
    *("one-way",) * 5,  # an owner that some believe dead and others hear
    *("blink",) * 3,
)


class PubSubSimulation(Simulation[PubSubPeer]):
    """One seed. `peer_class` and `world_class` are replaced by mutations (see `pubsub_mutations`)."""

    strategy: ClassVar[str] = "pub-sub"
    peer_class: type[PubSubPeer] = PubSubPeer
    driver: PubSubDriver

    def __init__(self, plan: Plan, *, tracing: bool = False) -> None:
        voters = tuple(range(1, plan.peers + 1))
        self.bounds, self.trims = draw_bounds(plan.seed)
        self.ledger = PubSubLedger(self._holders, voters=voters, write_ids=self.bounds.write_ids)
        founding = founding_snapshot(voters, (QueueCommand("create", QUEUE, "pub-sub"),))
        super().__init__(
            plan, ledger=self.ledger, founding=SaveSnapshot(METADATA_LANE, founding, reset=True), tracing=tracing
        )

    def _clients(self) -> PubSubDriver:
        clients = [
            PubSubClient(
                number=number,
                operations=self.plan.ops_per_client,
                rng=self.world.rng,
                ledger=self.ledger,
                trims=self.trims,
            )
            for number in range(1, self.plan.clients + 1)
        ]
        driver = PubSubDriver(self.world, clients, addresses=self._addresses)
        driver.ledger = self.ledger
        return driver

    @staticmethod
    def draw(seed: int) -> Plan:
        return draw_pubsub_plan(seed)

    def _boot(self, world: World[PubSubPeer], machine: Machine[PubSubPeer]) -> PubSubPeer:
        peer = self.peer_class(
            me=machine.number,
            queue=QUEUE,
            image=machine.store.load(),
            rng=world.rng.random,
            tuning=self.plan.tuning,
            now=machine.clock(world.now),
            snapshot_every=self.plan.snapshot_every,
            read=partial(_read, machine),
            bounds=self.bounds,
        )
        peer.queue.on_started = partial(self.ledger.started, machine.number)
        peer.metadata.on_applied = partial(self._applied, machine, peer)
        peer.queue.on_readable = partial(self.ledger.readable, machine.number)
        peer.queue.on_accepted = self.ledger.accepted
        return peer

    def _applied(self, machine: Machine[PubSubPeer], peer: PubSubPeer, entry: Entry, outcome: Outcome) -> None:
        self.ledger.metadata(machine.number, entry, outcome, counted_among=peer.metadata.core.members.voters)
        if entry.kind == Kind.CURSOR:
            for name in ("s0", "s1"):
                self.ledger.cursor(machine.number, name, peer.cursor(name))

    # ------------------------------------------------------------------ what the ledger and the weather ask

    def _holders(self, lane: int, position: int, entry: Entry | None) -> set[int]:
        """Looked up on the disks, not asked of the peers. A copy that was damaged later was stored all the same."""
        return {
            number
            for number, machine in self.world.machines.items()
            if _has(machine.store.durable(lane, position), entry) or machine.store.lost_upto(lane) >= position
        }

    def _damage(self, machine: Machine[PubSubPeer]) -> bool:
        """One lane of one peer, and only while the copies of all others are whole: a minority is damaged."""
        if any(_is_damaged(other) for other in self.world.machines.values() if other is not machine):
            return False
        lanes = {number: image for number, image in machine.store.load().lanes.items() if image.entries}
        if not lanes:
            return False
        open_lanes = [number for number, image in lanes.items() if image.decided_end < 0 and number != METADATA_LANE]
        among = open_lanes if open_lanes and self.world.rng.random() < 0.7 else list(lanes)
        number = among[int(self.world.rng.random() * len(among))]
        entries = lanes[number].entries
        machine.store.damage(number, entries[int(self.world.rng.random() * len(entries))].position)
        machine.store.load()
        return True

    def _coordinator(self) -> PubSubPeer | None:
        peers = [machine.replica for machine in self.world.machines.values() if machine.replica is not None]
        leading = [peer for peer in peers if peer.metadata.core.role == COORDINATOR]
        return max(leading, key=lambda peer: peer.metadata.core.promised, default=None)

    def _leading_machine(self) -> Machine[PubSubPeer] | None:
        peer = self._coordinator()
        return self.world.machines[peer.me] if peer is not None else None

    def _addresses(self) -> list[int]:
        peer = self._coordinator()
        return list(peer.metadata.core.members.voters) if peer is not None else list(range(1, self.plan.peers + 1))

    def _change_members(self) -> None:
        peer = self._coordinator()
        if peer is None or not peer.running:
            return
        members, rng = peer.metadata.core.members, self.world.rng
        outside = [number for number in self.world.machines if number not in members.everyone]
        if members.learners:
            wanted = Members((*members.voters, members.learners[0]), members.learners[1:])
        elif outside and (len(members.voters) <= 3 or rng.random() < 0.5):
            wanted = Members(members.voters, (outside[int(rng.random() * len(outside))],))
        elif len(members.voters) > 2:
            gone = members.voters[int(rng.random() * len(members.voters))]
            wanted = Members(tuple(voter for voter in members.voters if voter != gone), members.learners)
        else:
            return
        self.world.note(f"** membership {members} -> {wanted}")
        peer.change_members(-1, wanted)
        self.world.count("membership changes")
        self.world.perform(self.world.machines[peer.me])

    # ------------------------------------------------------------------ the end

    def _settled(self) -> bool:
        return self.driver.finished and not self._unsettled()

    def _unsettled(self) -> str:
        """Why the cluster is not at rest yet; empty when it is."""
        leading = self._coordinator()
        if leading is None:
            return "no coordinator of the metadata lane"
        end = leading.metadata.core.log.end
        peers = [self.world.machines[number].replica for number in leading.metadata.core.members.voters]
        shown = {number: len(lane.entries) for number, lane in self.ledger.lanes.items() if not lane.forgotten}
        for peer in peers:
            if peer is None or not peer.open_lane:
                return "a peer has no open lane"
            if peer.metadata.applied != end or peer.metadata.core.log.end != end:
                return f"peer {peer.me} lags in the metadata lane"
            if {number: peer.core.readable_to(number) for number in shown} != shown:
                return f"peer {peer.me} does not show everything"
            if peer.core.statistics()["in_flight"]:
                return f"peer {peer.me} has entries that are not committed"
        owned = {peer.open_lane for peer in peers if peer is not None}
        undecided = [lane.number for lane in self.ledger.lanes.values() if lane.end < 0 and not lane.forgotten]
        orphans = [number for number in undecided if number not in owned]
        return f"lanes {orphans} have no owner and no end" if orphans else ""

    def _compare_states(self) -> None:
        self.ledger.finish()
        leading = self._coordinator()
        assert leading is not None
        mine = leading.metadata.state.snapshot()
        for number in leading.metadata.core.members.voters:
            peer = self.world.machines[number].replica
            if peer is not None and peer.metadata.state.snapshot() != mine:
                raise Violation("agreement", f"the metadata of peers {leading.me} and {number} differs at the end")
            if peer is not None and peer.readable != leading.readable:
                raise Violation("agreement", f"peers {leading.me} and {number} show different versions at the end")
            if peer is not None:
                self._compare_ends(peer)

    def _compare_ends(self, peer: PubSubPeer) -> None:
        for lane in self.ledger.lanes.values():
            if lane.end >= 0 and not lane.forgotten and (held := peer.core.end_of(lane.number)) != lane.end:
                raise Violation(
                    "agreement", f"peer {peer.me} holds {held} of lane {lane.number}, which ended at {lane.end}"
                )

    def _why_not(self) -> str:
        waiting = [client.number for client in self.driver.clients if not client.finished]
        peers = [self._fingerprint(machine) for machine in self.world.machines.values()]
        return f"{self.plan.heal_s:g} s after healing clients {waiting} wait; {self._unsettled()}; peers {peers}"

    @staticmethod
    def _fingerprint(machine: Machine[PubSubPeer]) -> tuple[object, ...]:
        peer = machine.replica
        if peer is None:
            return (machine.number, "down")
        core = peer.metadata.core
        return (machine.number, core.role, core.promised, core.log.end, core.committed, peer.statistics())


def _has(held: Entry | None, entry: Entry | None) -> bool:
    return held is not None and (entry is None or held is entry or held == entry)


def _is_damaged(machine: Machine[PubSubPeer]) -> bool:
    """A lane whose end is decided is whole when it is all there; an open one must never have lost anything."""
    return any(_is_not_whole(number, image) for number, image in machine.store.load().lanes.items())


def _is_not_whole(number: int, image: LaneImage) -> bool:
    if number != METADATA_LANE and image.decided_end >= 0:
        base = image.snapshot.position if image.snapshot is not None else 0
        return base + len(image.entries) < image.decided_end
    return image.damaged_from > 0 or image.stamped == REPAIRING


def _read(machine: Machine[PubSubPeer], lane: int, after: int, max_entries: int) -> list[Entry]:
    return machine.store.read(lane, after=after, max_entries=max_entries, max_bytes=1 << 20)


def draw_bounds(seed: int) -> tuple[PubSubBounds, bool]:
    """What a peer keeps of a lane in this seed, and whether its clients trim. Tiny more often than not."""
    rng = Random(seed * 3 + 2)
    if rng.random() < 0.25:
        return PubSubBounds(), rng.random() < 0.3
    bounds = PubSubBounds(
        memory_entries=rng.choice((1, 4, 12)),
        memory_bytes=rng.choice((64, 4096)),
        write_ids=rng.choice((2, 5, 1000)),
        snapshot_entries=rng.choice((2, 5, 20)),
        snapshot_bytes=rng.choice((64, 4096)),
        snapshot_bytes_per_entry=1000,
    )
    return bounds, rng.random() < 0.6


def draw_pubsub_plan(seed: int, *, peers: int = 0) -> Plan:
    """The plan of a seed, with part of its weather aimed at what is particular here.

    A fence rests on disks and on who remembers it, so half of the storms damage, delay and cut one way. Voters change
    only after every older lane has ended, which takes several attempts: some of the other seeds make many.
    """
    plan = draw_plan(seed, peers=peers)
    aimed = Random(seed).random() < 0.5
    if aimed and plan.fault_every_s < 0.15:
        return replace(plan, faults=(*plan.faults, *_AT_FENCES))
    if aimed and plan.fault_every_s < 1.0:
        return replace(plan, faults=(*plan.faults, *("members",) * 6), spare_peers=2 if plan.peers == 3 else 0)
    return plan


def simulate_pubsub(seed: int, *, peers: int = 0, tracing: bool = False) -> Verdict:
    return PubSubSimulation(draw_pubsub_plan(seed, peers=peers), tracing=tracing).run()
