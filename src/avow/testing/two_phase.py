"""Simulation of a two-phase queue's lane: a cluster, its clients, its weather, and the verdict."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Final

from msgspec.structs import replace

from avow.errors import StorageDamaged
from avow.ids import REPAIRING
from avow.limits import ENQUEUE_SIZE_BYTES_MAX, WRITE_ID_WINDOW_COUNT
from avow.peer.queue_lane import HISTORY, QueueLane
from avow.queue.ledger import Bounds
from avow.queue.outcomes import Outcome
from avow.replication.effects import LaneImage, SaveSnapshot
from avow.replication.membership import Members
from avow.replication.quorum import quorum
from avow.replication.two_phase.core import COORDINATOR
from avow.testing.clients import AT_LEAST, LINEARIZABLE, Client, Operation
from avow.testing.driver import Driver
from avow.testing.ledger import Ledger, Violation
from avow.testing.plan import Plan, draw_two_phase_plan
from avow.testing.simulation import Simulation, Verdict
from avow.testing.world import Machine, World
from avow.wire.messages import Entry, Kind, Snapshot

LANE: Final = 1
COVERAGE_SAMPLE_S: Final = 0.02
COVERAGE_SLACK_S: Final = 0.02  # no request is under way for longer where it matters, see `plan.forgetful`


class QueueDriver(Driver[QueueLane, Client]):
    """Submits what clients of a two-phase queue want."""

    def _parcel(self, client: Client) -> Callable[[QueueLane, int, Machine[QueueLane]], None]:
        operation = client.operation
        assert operation is not None
        age_ms = int(self._world.now * 1000) - operation.began_ms
        return partial(self._submit, operation, age_ms)

    def _submit(
        self, operation: Operation, age_ms: int, lane: QueueLane, request: int, target: Machine[QueueLane]
    ) -> None:
        now = target.clock(self._world.now)
        lane.discard_expired(int(now * 1000))
        if operation.write is not None:
            lane.write(request, replace(operation.write, age_ms=age_ms) if age_ms else operation.write, now)
        elif operation.level == LINEARIZABLE:
            lane.read(request, now)
        elif operation.level == AT_LEAST:
            lane.read_at_least(request, operation.version)
        else:
            lane.read_local(request)


class TwoPhaseSimulation(Simulation[QueueLane]):
    """One seed. `lane_class` and `world_class` are replaced by mutations (see `mutations`)."""

    strategy: ClassVar[str] = "two-phase"
    lane_class: type[QueueLane] = QueueLane
    driver: QueueDriver

    def __init__(self, plan: Plan, *, tracing: bool = False) -> None:
        self.ledger = Ledger(self._stored_by_quorum)
        voters = tuple(range(1, plan.peers + 1))
        founding = SaveSnapshot(LANE, Snapshot(0, 0, voters, (), b""), reset=True)
        super().__init__(plan, ledger=self.ledger, founding=founding, tracing=tracing)

    def _clients(self) -> QueueDriver:
        clients = [
            Client(
                number=number,
                operations=self.plan.ops_per_client,
                rng=self.world.rng,
                ledger=self.ledger,
                gives_up=self.plan.write_ids < WRITE_ID_WINDOW_COUNT,
            )
            for number in range(1, self.plan.clients + 1)
        ]
        return QueueDriver(self.world, clients, addresses=self._addresses)

    @staticmethod
    def draw(seed: int) -> Plan:
        return draw_two_phase_plan(seed)

    def _boot(self, world: World[QueueLane], machine: Machine[QueueLane]) -> QueueLane:
        found = machine.store.load().lanes
        image = found.get(LANE) or LaneImage(entries=[])
        reads = self.plan.memory_entries > 0
        lane = self.lane_class(
            me=machine.number,
            lane=LANE,
            image=image,
            rng=world.rng.random,
            tuning=self.plan.tuning,
            now=machine.clock(world.now),
            snapshot_every=self.plan.snapshot_every,
            memory_entries=self.plan.memory_entries,
            read=partial(self._read, machine, LANE) if reads else None,
            history=found.get(LANE | HISTORY),
            read_history=partial(self._read, machine, LANE | HISTORY) if reads else None,
            bounds=Bounds(write_ids=self.plan.write_ids),
            coverage_sample_s=COVERAGE_SAMPLE_S if self.plan.write_ids < WRITE_ID_WINDOW_COUNT else 1.0,
            coverage_slack_s=COVERAGE_SLACK_S,
        )
        lane.on_applied = partial(self._applied, machine)
        return lane

    @staticmethod
    def _read(machine: Machine[QueueLane], lane: int, after: int, max_entries: int) -> list[Entry]:
        return machine.store.read(lane, after=after, max_entries=max_entries, max_bytes=ENQUEUE_SIZE_BYTES_MAX)

    def _applied(self, machine: Machine[QueueLane], entry: Entry, outcome: Outcome) -> None:
        self.ledger.committed(machine.number, entry, outcome)
        if entry.kind == Kind.DATA and not entry.write_id:
            self.world.count("merged records applied")
        if entry.kind == Kind.CURSOR and machine.replica is not None:
            for name, subscriber in machine.replica.state.subscribers.by_name.items():
                self.ledger.cursor(machine.number, name, subscriber.version)

    # ------------------------------------------------------------------ what the ledger and the weather ask

    def _stored_by_quorum(self, peer: int, entry: Entry) -> bool:
        """Looked up on the disks, not asked of the peers. A copy that was damaged later was stored all the same."""
        lane = self.world.machines[peer].replica
        assert lane is not None
        voters = lane.core.members.voters
        return sum(self._stored(self.world.machines[voter], entry) for voter in voters) >= quorum(len(voters))

    @staticmethod
    def _stored(machine: Machine[QueueLane], entry: Entry) -> bool:
        held = machine.store.durable(LANE, entry.position)
        return held is entry or held == entry or machine.store.lost_upto(LANE) >= entry.position

    def _damage(self, machine: Machine[QueueLane]) -> bool:
        """At most one peer has a damaged log at a time, and only while everyone else is well: a minority."""
        if self.plan.peers < 3 or self._damage_history(machine):
            return False
        for other in self.world.machines.values():
            found = other.store.load().lanes.get(LANE)
            if found is not None and (found.damaged_from or found.stamped == REPAIRING):
                return False
        image = machine.store.load().lanes.get(LANE)
        if image is None or not image.entries:
            return False
        rng = self.world.rng
        at = int(rng.random() * rng.random() * len(image.entries))  # mostly among the last: those it was counted for
        machine.store.damage(LANE, image.entries[-1 - at].position)
        machine.store.load()
        return True

    def _damage_history(self, machine: Machine[QueueLane]) -> bool:
        """Nobody counts on a history: it may be damaged whatever else is."""
        history = machine.store.load().lanes.get(LANE | HISTORY)
        if history is None or not history.entries:
            return False
        at = int(self.world.rng.random() * len(history.entries))
        machine.store.damage(LANE | HISTORY, history.entries[at].position)
        self.world.count("damaged histories")
        return True

    def _coordinator(self) -> QueueLane | None:
        lanes = [machine.replica for machine in self.world.up() if machine.replica is not None]
        leading = [lane for lane in lanes if lane.core.role == COORDINATOR]
        return max(leading, key=lambda lane: lane.core.promised, default=None)

    def _leading_machine(self) -> Machine[QueueLane] | None:
        lane = self._coordinator()
        return self.world.machines[lane.core.me] if lane is not None else None

    def _addresses(self) -> list[int]:
        lane = self._coordinator()
        return list(lane.core.members.voters) if lane is not None else list(range(1, self.plan.peers + 1))

    def _change_members(self) -> None:
        lane = self._coordinator()
        if lane is None:
            return
        members, rng = lane.core.members, self.world.rng
        outside = [number for number in self.world.machines if number not in members.everyone]
        if members.learners:
            wanted = Members((*members.voters, members.learners[0]), members.learners[1:])
        elif outside and (len(members.voters) <= 3 or rng.random() < 0.5):
            wanted = Members(members.voters, (outside[int(rng.random() * len(outside))],))
        elif len(members.voters) > 3:  # of three, one may be damaged; of two, none
            gone = members.voters[int(rng.random() * len(members.voters))]
            wanted = Members(tuple(peer for peer in members.voters if peer != gone), members.learners)
        else:
            return
        self.world.note(f"** membership {members} -> {wanted}")
        lane.change_members(-1, wanted)
        self.world.count("membership changes")
        self.world.perform(self.world.machines[lane.core.me])

    # ------------------------------------------------------------------ the end

    def _settled(self) -> bool:
        if not self.driver.finished:
            return False
        lane = self._coordinator()
        if lane is None:
            return False
        end = lane.core.log.end
        for number in lane.core.members.voters:
            replica = self.world.machines[number].replica
            if replica is None or replica.applied != end or replica.core.log.end != end:
                return False
        return not self.plan.memory_entries or all(
            self._readable(self.world.machines[number].replica) for number in lane.core.members.voters
        )

    def _readable(self, lane: QueueLane | None) -> bool:
        """Whether everything visible can be read from this peer; what it gives must be what was committed."""
        if lane is None or not lane.whole:
            return False
        try:
            for part in lane.state.ranges(lane.state.trimmed_to, lane.state.end):
                held = lane.read_entry(part.position)
                if held != self.ledger.entries[part.position - 1]:
                    raise Violation("agreement", f"peer {lane.core.me} shows {held} at {part.position}")
        except StorageDamaged:
            return False  # it has noticed now, and copies
        return True

    def _compare_states(self) -> None:
        lane = self._coordinator()
        assert lane is not None
        mine = lane.state.snapshot()
        for machine in self.world.machines.values():
            if LANE | HISTORY in machine.store.load().lanes:
                self.world.count("histories copied")
        for number in lane.core.members.voters:
            replica = self.world.machines[number].replica
            if replica is not None and replica.state.snapshot() != mine:
                raise Violation("agreement", f"the states of peers {lane.core.me} and {number} differ at the end")

    def _why_not(self) -> str:
        waiting = [client.number for client in self.driver.clients if not client.finished]
        peers = [self._fingerprint(machine) for machine in self.world.machines.values()]
        return f"clients {waiting} still wait {self.plan.heal_s:g} s after everything was healed; peers {peers}"

    @staticmethod
    def _fingerprint(machine: Machine[QueueLane]) -> tuple[object, ...]:
        lane = machine.replica
        if lane is None:
            return (machine.number, "down")
        core = lane.core
        return (machine.number, core.role, core.promised, core.stamped, core.log.end, core.committed, lane.state.end)


def simulate_two_phase(seed: int, *, peers: int = 0, tracing: bool = False) -> Verdict:
    return TwoPhaseSimulation(draw_two_phase_plan(seed, peers=peers), tracing=tracing).run()
