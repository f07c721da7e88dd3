"""The run of one seed: start a cluster of nodes, inject faults, heal everything, and judge.

A simulated machine runs `avow.node.node.Node`, with the metadata lane, housekeeping and the queues of the plan, of
either strategy or of both. Its memories are made small, and the checkers observe it where it applies entries and shows
messages; nothing else is replaced. A mutation replaces one of its roles (`mutations`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final

from msgspec import Struct

from avow.errors import AvowError
from avow.ids import REPAIRING
from avow.limits import WRITE_ID_WINDOW_COUNT
from avow.node.backfill import HISTORY
from avow.node.lane.queue_lane import QueueLane
from avow.node.metadata_lane import FOUNDED_AT, METADATA_LANE, MetadataLane, founding_snapshot
from avow.node.node import Node
from avow.node.pubsub.queue import PubSubQueue
from avow.node.roles import NodeRoles
from avow.queue.commands import LaneCursorsCommand, decode
from avow.queue.entry_outcome import Outcome
from avow.queue.records import Bounds
from avow.queue.state import QueueState
from avow.replication.durable import LOST_UNBOUNDED
from avow.replication.effects import LaneImage, SaveSnapshot
from avow.replication.quorum import quorum
from avow.wire.messages import Entry, Kind, Snapshot
from avow_lab.checkers.convergence import Convergence
from avow_lab.checkers.metadata import MetadataLedger
from avow_lab.checkers.two_phase import Violation
from avow_lab.simulator.driver import Driver
from avow_lab.simulator.fault_schedule import FaultSchedule
from avow_lab.simulator.operator import Operator, identity_of
from avow_lab.simulator.plan import MIXED, PUB_SUB, Plan, draw_plan
from avow_lab.simulator.pubsub_clients import PubSubClient
from avow_lab.simulator.two_phase_clients import Client
from avow_lab.simulator.world import Machine, World

BROKEN: Final = (AssertionError, LookupError, ValueError, TypeError, AttributeError, AvowError)  # a node that crashed
COVERAGE_SAMPLE_S: Final = 0.02
COVERAGE_SLACK_S: Final = 0.02  # no request takes longer where it matters, see `plan.forgetful`
OFF_AFTER_GONE_S: Final = 0.5


class Verdict(Struct):
    """The result of one seed. `violation` empty: every promise held."""

    seed: int
    strategy: str
    peers: int
    events: int
    acknowledged: int
    hash: str
    counts: dict[str, int]
    violation: str = ""
    trace: list[str] = []


_SHIPPED: Final = NodeRoles()


class Simulation:
    """`roles` and `world` are replaced by mutations."""

    def __init__(
        self, plan: Plan, *, roles: NodeRoles = _SHIPPED, world: type[World[Node]] = World, tracing: bool = False
    ) -> None:
        self.plan, self._roles = plan, roles
        self.founders = tuple(range(1, plan.peers + 1))
        self.ledger = MetadataLedger(
            voters=self.founders,
            base=FOUNDED_AT,
            holders=self._holders,
            stored=self._stored_by_quorum,
            is_held=self._is_held,
            write_ids=plan.bounds.write_ids,
        )
        self.ledger.on_gone = self._switch_off
        self.world = world(plan, boot=self._boot, tracing=tracing)
        self.world.on_restart = self.ledger.restarted
        self.world.on_met = self._check_trust
        self.world.founding_records = [SaveSnapshot(METADATA_LANE, self._founding_snapshot(), reset=True)]
        self._rotten: dict[int, Machine[Node]] = {}  # lane -> the machine whose old entries are damaged
        self._identities = {number: identity_of(number) for number in self.founders}
        for number in self.founders:
            self.world.write_founding_records(self.world.add_machine(number))
        self.rest = Convergence(self.world, self.ledger)
        for machine in self.world.machines.values():
            self.world.start(machine)
        self.operator = Operator(rng=self.world.rng, metadata=self.ledger, started=self._join)
        self.clients = [self._client(number) for number in range(1, plan.clients + 1)]
        self.driver: Driver[Node] = Driver(self.world, [self.operator, *self.clients], addresses=self._addresses)
        self.faults = FaultSchedule(
            self.world,
            damage=self._damage,
            change_members=self._change_members,
            change_queues=self._change_queues,
            leader=self._leading_machine,
        )

    def _founding_snapshot(self) -> Snapshot:
        """The queues exist from the start, so that even the shortest run uses them."""
        commands = tuple(slot.create(self.founders) for slot in self.plan.slots)
        for command in commands:
            self.ledger.add_initial_queue(command)
        return founding_snapshot(self.founders, commands, level=self.plan.level)

    def _client(self, number: int) -> Client | PubSubClient:
        plan = self.plan
        slot = plan.slots[number % len(plan.slots)]
        if slot.strategy == PUB_SUB:
            return PubSubClient(
                number=number,
                operations=plan.ops_per_client,
                rng=self.world.rng,
                metadata=self.ledger,
                queue=slot.name,
                trims=plan.trims,
            )
        return Client(
            number=number,
            operations=plan.ops_per_client,
            rng=self.world.rng,
            metadata=self.ledger,
            queue=slot.name,
            index=number // len(plan.slots),
            gives_up=plan.write_ids < WRITE_ID_WINDOW_COUNT,
            reuses=plan.reuses,
            wide=plan.wide,
        )

    # ------------------------------------------------------------------ the run

    def run(self) -> Verdict:
        world, plan = self.world, self.plan
        violation = ""
        try:
            world.run(plan.duration_s)
            self.faults.heal()
            world.run(world.now + plan.heal_s, stop=self._is_quiet)
            if not self._is_quiet():
                raise Violation("no progress", self._what_is_missing())
            self.rest.check()
        except Violation as broken:
            violation = str(broken)
        except BROKEN as broken:
            violation = f"{type(broken).__name__}: {broken}"
        return Verdict(
            seed=plan.seed,
            strategy=plan.strategy,
            peers=plan.peers,
            events=world.events,
            acknowledged=self.ledger.acknowledged,
            hash=world.trace_hash([_fingerprint(machine) for machine in world.machines.values()], violation),
            counts={**world.counts, **self.ledger.counts},
            violation=violation,
            trace=world.trace or [],
        )

    def _is_quiet(self) -> bool:
        if not self.operator.idle or not all(client.finished for client in self.clients):
            return False
        return not self._undecided() and not self.rest.not_idle()

    def _undecided(self) -> list[bytes]:
        return [txn for queue in self.ledger.current.values() for txn in queue.undecided]

    def _what_is_missing(self) -> str:
        waiting = [client.number for client in self.clients if not client.finished]
        waiting += [] if self.operator.idle else [0]
        peers = [_fingerprint(machine) for machine in self.world.machines.values()]
        healed = f"{self.plan.heal_s:g} s after everything was healed"
        clients = f"clients {waiting} wait; transactions {self._undecided()} are open"
        return f"{healed}, {clients}; {self.rest.not_idle()}; peers {peers}"

    # ------------------------------------------------------------------ a process starts

    def _boot(self, world: World[Node], machine: Machine[Node]) -> Node:
        image = machine.store.load()
        node = Node(
            me=machine.number,
            incarnation=world.number_run(machine, image.incarnation),
            image=image,
            founders=self.founders if machine.number in self.founders else (),
            level=self.plan.level,
            disk=machine.store,
            rng=world.rng.random,
            tuning=self.plan.tuning,
            now=machine.clock(world.now),
            pace=self.plan.pace,
            roles=replace(
                self._roles,
                metadata_lane=partial(self._metadata_lane, machine),
                queue_lane=partial(self._queue_lane, machine),
                pubsub_queue=partial(self._pubsub_queue, machine),
                founding_lane=self._founding_lane,
            ),
        )
        housekeeping = node.housekeeping
        housekeeping.identity, housekeeping.link = self._identities[machine.number], f"h:{machine.number}"
        return node

    def _metadata_lane(self, machine: Machine[Node], **given: Any) -> MetadataLane:
        lane = self._roles.metadata_lane(**{**given, "snapshot_every": self.plan.snapshot_every})
        lane.on_applied = partial(self._applied_metadata, machine, lane)
        return lane

    def _queue_lane(self, machine: Machine[Node], **given: Any) -> QueueLane:
        plan = self.plan
        small = {
            "snapshot_every": plan.snapshot_every,
            "memory_entries": plan.memory_entries,
            "bounds": Bounds(write_ids=plan.write_ids),
            "coverage_sample_s": COVERAGE_SAMPLE_S if plan.write_ids < WRITE_ID_WINDOW_COUNT else 1.0,
            "coverage_slack_s": COVERAGE_SLACK_S,
        }
        lane = self._roles.queue_lane(**{**given, **small})
        lane.on_applied = partial(self._applied, machine, lane, self.ledger.lane(given["lane"]))
        return lane

    def _pubsub_queue(self, machine: Machine[Node], **given: Any) -> PubSubQueue:
        held = self._roles.pubsub_queue(**{**given, "bounds": self.plan.bounds})
        ledger = self.ledger.by_lane[held.route].pubsub
        assert ledger is not None
        held.on_started = partial(ledger.started, machine.number)
        held.on_readable = partial(ledger.readable, machine.number)
        held.on_accepted = ledger.accepted
        return held

    def _founding_lane(self, founders: tuple[int, ...]) -> Snapshot:
        state = QueueState(bounds=Bounds(write_ids=self.plan.write_ids))
        state.position = 1
        return Snapshot(1, 2, founders, (), state.snapshot())

    # ------------------------------------------------------------------ what is observed

    def _applied_metadata(self, machine: Machine[Node], lane: MetadataLane, entry: Entry, outcome: Outcome) -> None:
        self.ledger.applied(machine.number, entry, outcome, counted_among=lane.core.members.voters)
        if entry.kind != Kind.CURSOR or outcome.code:
            return
        command = decode(entry.kind, entry.control, metadata=True)
        assert isinstance(command, LaneCursorsCommand)
        queue = lane.state.queue(command.queue)
        ledger = self.ledger.by_lane[queue.first_lane].pubsub if queue is not None else None
        if queue is not None and ledger is not None and command.subscriber in queue.subscribers:
            ledger.cursor(machine.number, command.subscriber, dict(queue.subscribers[command.subscriber].versions))

    def _applied(self, machine: Machine[Node], lane: QueueLane, ledger: Any, entry: Entry, outcome: Outcome) -> None:
        ledger.committed(machine.number, entry, outcome)
        if entry.kind == Kind.DATA and not entry.write_id:
            self.world.count("merged records applied")
        elif entry.kind == Kind.CURSOR:
            for name, subscriber in lane.state.subscribers.by_name.items():
                ledger.cursor(machine.number, name, subscriber.version)

    def _stored_by_quorum(self, peer: int, number: int, entry: Entry) -> bool:
        """By the disks and not by the peers' word. A copy that was damaged later was stored nevertheless."""
        node = self.world.machines[peer].replica
        assert node is not None
        voters = node.lanes[number].core.members.voters
        return len(self._holders(number, entry.position, entry).intersection(voters)) >= quorum(len(voters))

    def _check_trust(self, peer: int, other: int) -> None:
        """`peer` has just met a new run of the other: what the last run coordinated has no coordinator."""
        node = self.world.machines[peer].replica
        assert node is not None
        believed = [number for number, lane in node.lanes.items() if lane.core.state.coordinator == other]
        if believed:
            raise Violation(
                "trust", f"peer {peer} believes that a run of peer {other} that ended coordinates {believed}"
            )

    def _holders(self, lane: int, position: int, entry: Entry | None) -> set[int]:
        return {
            number
            for number, machine in self.world.machines.items()
            if _has(machine.store.durable(lane, position), entry) or machine.store.lost_upto(lane) >= position
        }

    def _is_held(self, peer: int, lane: int) -> bool:
        machine = self.world.machines.get(peer)
        return machine is not None and machine.store.holds(lane)

    # ------------------------------------------------------------------ called by the fault schedule

    def _damage(self, machine: Machine[Node]) -> bool:
        """Damage one lane of one peer, while the copies of all others are whole, so that only a minority is damaged."""
        if len(self.ledger.voters) < 3:
            return False
        images = machine.store.load().lanes
        histories = [number for number, image in images.items() if number & HISTORY and image.entries]
        rng = self.world.rng
        if histories and rng.random() < 0.5:  # a history is not counted in any quorum
            number = histories[int(rng.random() * len(histories))]
            entries = images[number].entries
            machine.store.damage(number, entries[int(rng.random() * len(entries))].position)
            self.world.count("damaged histories")
            return False
        others = [other for other in self.world.machines.values() if other is not machine and not other.gone]
        if any(self._is_damaged(other) for other in others):
            return False
        if rng.random() < 0.3:
            machine.store.lose_log(rng.random)
            self.world.count("lost logs")
            return True
        return self._damage_one(machine, images, rng)

    def _damage_one(self, machine: Machine[Node], images: dict[int, LaneImage], rng: Random) -> bool:
        if "members" not in self.plan.faults and rng.random() < 0.4 and self._damage_old(machine, images, rng):
            return True
        lanes = [
            number
            for number, image in images.items()
            if image.entries and not number & HISTORY and self._rotten.get(number, machine) is machine
        ]
        of_queues = [number for number in lanes if number != METADATA_LANE and images[number].decided_end < 0]
        among = of_queues if of_queues and rng.random() < 0.8 else lanes
        if not among:
            return False
        number = among[int(rng.random() * len(among))]
        entries = images[number].entries
        at = (
            rng.random() * rng.random()
            if number in self.ledger.by_lane and self._is_two_phase(number)
            else rng.random()
        )
        position = entries[-1 - int(at * len(entries))].position  # mostly a late one, which was counted in a quorum
        machine.store.damage(number, position)
        machine.store.load()
        return True

    def _damage_old(self, machine: Machine[Node], images: dict[int, LaneImage], rng: Random) -> bool:
        """Damage an entry that a snapshot covers: no quorum needs it, but readers and late peers do. For each lane on
        one machine only, and only an entry that all others hold, so that it can be copied from them."""
        others = [other for other in self.world.machines.values() if other is not machine]
        snapshots = {number: image.snapshot for number, image in images.items() if number and not number & HISTORY}
        for number, snapshot in snapshots.items():
            if snapshot is None or self._is_dead(number) or self._rotten.get(number, machine) is not machine:
                continue
            position = 1 + int(rng.random() * snapshot.position)
            if all(held.store.durable(number, position) is not None for held in (machine, *others)):
                self._rotten[number] = machine
                machine.store.damage(number, position)
                self.world.count("damaged old entries")
                return True
        return False

    def _is_two_phase(self, number: int) -> bool:
        return number == METADATA_LANE or self.ledger.by_lane[number].pubsub is None

    def _is_damaged(self, machine: Machine[Node]) -> bool:
        """A pub-sub lane with a decided end is whole when it holds everything up to it. Any other must never have lost
        an entry."""
        found = machine.store.load()
        if found.lost_below == LOST_UNBOUNDED:
            return True
        for number, image in found.lanes.items():
            if number & HISTORY or (number != METADATA_LANE and self._is_dead(number)):
                continue
            if not self._is_two_phase(number) and image.decided_end >= 0:
                base = image.snapshot.position if image.snapshot is not None else 0
                if base + len(image.entries) < image.decided_end:
                    return True
            elif image.damaged_from > 0 or image.stamped == REPAIRING:
                return True
        return False

    def _is_dead(self, number: int) -> bool:
        queue = self.ledger.by_lane.get(number)
        if queue is None or queue.deleted:
            return True
        return queue.pubsub is not None and (number not in queue.pubsub.lanes or queue.pubsub.lanes[number].forgotten)

    def _leading_machine(self) -> Machine[Node] | None:
        """The coordinator of a random lane."""
        numbers = [METADATA_LANE, *(n for queue in self.ledger.current.values() for n in queue.lanes)]
        number = numbers[int(self.world.rng.random() * len(numbers))]
        node = self.rest.lane_coordinator(number) if number else self.rest.coordinator()
        return self.world.machines[node.me] if node is not None else None

    def _addresses(self) -> list[int]:
        return [number for number in self.ledger.voters if number in self.world.machines]

    def _change_queues(self) -> None:
        slots = self.plan.slots
        self.operator.change_queue(slots[int(self.world.rng.random() * len(slots))])
        self.world.count("queue changes")

    def _change_members(self) -> None:
        """Let a peer join or leave, unless another is just doing so. Rarely a peer that is joining must leave."""
        ledger, rng = self.ledger, self.world.rng
        states = ledger.peers
        if self.operator.changes_peers or any(state == "leaving" for state in states.values()):
            return
        joining = [number for number, state in states.items() if state == "joining"]
        founders = [number for number in ledger.voters if states.get(number, "") == "ready"]
        least = 3 if "damage" in self.plan.faults else 2
        if joining:
            if rng.random() > 0.1:
                return
            self.operator.let_leave(joining[0])
        elif len(founders) <= least or (len(self.world.machines) < self.plan.peers + self.plan.spare_peers):
            if len(self.world.machines) >= self.plan.peers + self.plan.spare_peers:
                return
            self.operator.let_join()
        else:
            self.operator.let_leave(founders[int(rng.random() * len(founders))])
        self.world.count("membership changes")

    def _join(self, number: int, identity: bytes) -> None:
        """A peer was admitted, and starts with an empty disk."""
        if number not in self.world.machines:
            self._identities[number] = identity
            self.world.start(self.world.add_machine(number))

    def _switch_off(self, number: int) -> None:
        """The process of a removed peer is stopped some time after it is gone."""
        machine = self.world.machines.get(number)
        if machine is not None:
            self.world.call(OFF_AFTER_GONE_S * self.world.rng.random(), partial(self._stop, machine))

    def _stop(self, machine: Machine[Node]) -> None:
        machine.gone = True
        if machine.replica is not None:
            self.world.crash(machine)


def _has(held: Entry | None, entry: Entry | None) -> bool:
    return held is not None and (entry is None or held is entry or held == entry)


def _fingerprint(machine: Machine[Node]) -> tuple[object, ...]:
    node = machine.replica
    if node is None:
        return (machine.number, "down")
    core = node.metadata.core
    lanes = [
        (n, lane.core.role, lane.core.promised, lane.core.log.end, lane.state.end) for n, lane in node.lanes.items()
    ]
    queues = [(name, held.open_lane, dict(held.readable)) for name, held in node.pubsub.items()]
    return (machine.number, core.role, core.promised, core.log.end, core.committed, lanes, queues)


def simulate(seed: int, *, strategy: str = MIXED, peers: int = 0, tracing: bool = False) -> Verdict:
    return Simulation(draw_plan(seed, strategy=strategy, peers=peers), tracing=tracing).run()
