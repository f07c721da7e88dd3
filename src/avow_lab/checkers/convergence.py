"""The checks after everything is healed and idle: all peers agree, and each holds what it should.

    members        the voters of every lane are the remaining peers; no peer is joining or leaving
    lanes held     every member holds exactly the lanes and queues that the catalogue names, whole and readable
    deleted        nothing of a lane that is not in the catalogue is left on a disk
    removed peer   a peer that is gone is a member of no lane, and owns none
    states         equal, bit for bit: the metadata, every lane, the readable part of every pub-sub queue

`not_idle` says what is missing and is called repeatedly; `check` is called once, when nothing is missing.
"""

from __future__ import annotations

from collections.abc import Iterator

from avow.errors import Offline, StorageDamaged, Trimmed
from avow.node.backfill import HISTORY
from avow.node.lane.queue_lane import QueueLane
from avow.node.node import Node
from avow.node.pubsub.queue import PubSubQueue
from avow.replication.effects import LaneImage
from avow.replication.two_phase.core import COORDINATOR
from avow_lab.checkers.metadata import Incarnation, MetadataLedger
from avow_lab.checkers.pubsub import PubSubLedger
from avow_lab.checkers.two_phase import Ledger, Violation
from avow_lab.simulator.world import World


class Convergence:
    def __init__(self, world: World[Node], ledger: MetadataLedger) -> None:
        self._world, self._ledger = world, ledger

    def coordinator(self) -> Node | None:
        """Of the metadata lane, by the highest ballot."""
        nodes = [machine.replica for machine in self._world.machines.values() if machine.replica is not None]
        leading = [node for node in nodes if node.metadata.core.role == COORDINATOR]
        return max(leading, key=lambda node: node.metadata.core.promised, default=None)

    def lane_coordinator(self, number: int) -> Node | None:
        nodes = [machine.replica for machine in self._world.machines.values() if machine.replica is not None]
        leading = [node for node in nodes if number in node.lanes and node.lanes[number].core.role == COORDINATOR]
        return max(leading, key=lambda node: node.lanes[number].core.promised, default=None)

    def _members(self) -> list[Node]:
        machines = self._world.machines
        nodes = [machines[number].replica for number in self._ledger.voters if number in machines]
        return [node for node in nodes if node is not None]

    # ------------------------------------------------------------------ not yet

    def not_idle(self) -> str:
        """Why the cluster is not idle yet; empty when it is."""
        return next(self._reasons(), "")

    def _reasons(self) -> Iterator[str]:
        ledger = self._ledger
        moving = [number for number, state in ledger.peers.items() if state in ("joining", "leaving")]
        if moving:
            yield f"peers {moving} are neither ready nor gone"
        ready = {number for number, state in ledger.peers.items() if state == "ready"}
        if not ready <= {*ledger.voters} or ledger.learners:
            yield f"the voters are {ledger.voters}, the learners {ledger.learners}"
        nodes = self._members()
        if len(nodes) != len(ledger.voters):
            yield "a voter does not run"
        if self.coordinator() is None:
            yield "no coordinator of the metadata lane"
        for node in nodes:
            core = node.metadata.core
            if node.metadata.applied != ledger.end or core.log.end != ledger.end:
                yield f"peer {node.me} lags in the metadata lane"
            if self._world.machines[node.me].store.pending:
                yield f"the disk of peer {node.me} is busy"
        for queue in ledger.current.values():
            if queue.pubsub is not None:
                yield from self._pubsub_reasons(queue, queue.pubsub, nodes)
            for lane in queue.lanes.values():
                yield from self._lane_reasons(queue, lane, nodes)

    def _lane_reasons(self, queue: Incarnation, ledger: Ledger, nodes: list[Node]) -> Iterator[str]:
        number = ledger.number
        voters = {peer for peer in self._ledger.voters if not queue.peers or peer in queue.peers}
        if ledger.members.voters != voters or ledger.members.learners:
            yield f"the members of lane {number} are {ledger.members.everyone}"
        leading = self.lane_coordinator(number)
        if leading is None:
            yield f"no coordinator of lane {number}"
        for node in nodes:
            if node.me not in voters:
                continue
            lane = node.lanes.get(number)
            if lane is None or lane.applied != ledger.end or lane.core.log.end != ledger.end:
                yield f"peer {node.me} lags in lane {number}"
            elif leading is not None and lane.core.live_coordinator(self._clock(node)) != leading.me:
                yield f"peer {node.me} does not know that peer {leading.me} coordinates lane {number}"
            elif not self._readable(lane, ledger):
                yield f"peer {node.me} cannot read all of lane {number}"

    def _clock(self, node: Node) -> float:
        return self._world.machines[node.me].clock(self._world.now)

    def _readable(self, lane: QueueLane, ledger: Ledger) -> bool:
        """Whether everything visible can be read from this peer. What it shows must be what was committed."""
        if not lane.whole:
            return False
        try:
            for part in lane.state.ranges(lane.state.trimmed_to, lane.state.end):
                held = lane.read_entry(part.position)
                if held != ledger.entry(part.position):
                    raise Violation("agreement", f"peer {lane.core.me} shows {held} at {part.position}")
        except StorageDamaged:
            return False  # the peer has detected it now, and fetches a copy
        return True

    def _pubsub_reasons(self, queue: Incarnation, ledger: PubSubLedger, nodes: list[Node]) -> Iterator[str]:
        shown = {number: len(lane.entries) for number, lane in ledger.lanes.items() if not lane.forgotten}
        owned: set[int] = set()
        for node in nodes:
            held = node.pubsub.get(queue.name)
            if held is None or not held.open_lane:
                yield f"peer {node.me} has no open lane of {queue.name}"
                continue
            owned.add(held.open_lane)
            if not shown.keys() <= {*held.numbers} or any(
                held.core.readable_to(number) != to for number, to in shown.items()
            ):
                yield f"peer {node.me} does not show all of {queue.name}"
            if held.core.statistics()["in_flight"]:
                yield f"peer {node.me} has entries that are not committed"
        undecided = [lane.number for lane in ledger.lanes.values() if lane.end < 0 and not lane.forgotten]
        orphans = [number for number in undecided if number not in owned]
        if orphans:
            yield f"lanes {orphans} have no owner and no end"
        for node in nodes:
            if not all(self._served(node.pubsub[queue.name], number, ledger) for number in shown):
                yield f"peer {node.me} cannot read all of {queue.name}"

    def _served(self, held: PubSubQueue, number: int, ledger: PubSubLedger) -> bool:
        """Whether everything visible of a pub-sub lane can be read from this peer. It must be what was shown before."""
        read = held.reader(number)
        try:
            for part in held.ranges(number, ledger.lanes[number].trimmed_to, 1 << 30):
                (entry,) = read(part.position - 1, 1, 1)
                ledger.served(number, entry, offset=part.offset, first_version=part.first_version, count=part.count)
        except (StorageDamaged, Offline):
            return False  # the peer has detected it now, and fetches a copy
        except Trimmed as error:
            raise Violation("lost", f"peer {held.me}: {error}") from error
        return True

    # ------------------------------------------------------------------ idle

    def check(self) -> None:
        nodes = self._members()
        first = nodes[0]
        for queue in self._ledger.current.values():
            if queue.pubsub is not None:
                queue.pubsub.finish()
        for node in nodes:
            self._check_held(node)
            if node.metadata.state.snapshot() != first.metadata.state.snapshot():
                raise Violation("agreement", f"the metadata of peers {first.me} and {node.me} differs at the end")
            for name, held in node.pubsub.items():
                self._check_queue(node, held, first.pubsub[name])
        for queue in self._ledger.current.values():
            for number in queue.lanes:
                states = {node.me: node.lanes[number].state.snapshot() for node in nodes if number in node.lanes}
                if len(set(states.values())) > 1:
                    raise Violation("agreement", f"the states of lane {number} differ at the end")
        self._check_gone(nodes)

    def _check_held(self, node: Node) -> None:
        """In memory: exactly the lanes of the catalogue. On disk: the same, and the numbers of earlier lanes."""
        queues = self._ledger.current.values()
        lanes = {number for queue in queues for number in queue.lanes if not queue.peers or node.me in queue.peers}
        names = {queue.name: queue.first_lane for queue in queues if queue.pubsub is not None}
        held = {name: queue.route for name, queue in node.pubsub.items()}
        if node.lanes.keys() != lanes or held != names:
            raise Violation("deleted", f"peer {node.me} holds {sorted(node.lanes)} and {held}, not {lanes} and {names}")
        if {*node.mux.components} != {0, *lanes, *names.values()}:
            raise Violation("deleted", f"peer {node.me} drives {sorted(node.mux.components)}")
        known = (
            {0}
            | lanes
            | {
                number
                for queue in queues
                if queue.pubsub is not None
                for number, lane in queue.pubsub.lanes.items()
                if not lane.forgotten
            }
        )
        for number, image in self._world.machines[node.me].store.load().lanes.items():
            if number & ~HISTORY not in known and not _is_empty(image):
                raise Violation("deleted", f"the disk of peer {node.me} still has lane {number & ~HISTORY}")

    def _check_queue(self, node: Node, held: PubSubQueue, other: PubSubQueue) -> None:
        if held.readable != other.readable:
            raise Violation("agreement", f"peers {node.me} and {other.me} show different versions at the end")
        ledger = self._ledger.by_lane[held.route].pubsub
        assert ledger is not None
        for lane in ledger.lanes.values():
            if lane.end >= 0 and not lane.forgotten and (end := held.core.end_of(lane.number)) != lane.end:
                raise Violation("agreement", f"peer {node.me} holds {end} of lane {lane.number}, not {lane.end}")

    def _check_gone(self, nodes: list[Node]) -> None:
        gone = {number for number, state in self._ledger.peers.items() if state == "gone"}
        for node in nodes:
            members = [*node.metadata.core.members.everyone]
            members += [peer for lane in node.lanes.values() for peer in lane.core.members.everyone]
            owners = [lane.peer for lane in node.metadata.state.open_lanes()]
            if left := gone.intersection((*members, *owners)):
                raise Violation(
                    "membership", f"peers {left} are gone, and peer {node.me} still has them as members or owners"
                )


def _is_empty(image: LaneImage) -> bool:
    """Only what `emptied` leaves, or the promises of a lane that never held an entry."""
    return not image.entries and (image.snapshot is None or not image.snapshot.state)
