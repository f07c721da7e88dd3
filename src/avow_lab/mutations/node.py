"""Deliberate mistakes in the parts of a peer around its lanes: the node, its effect multiplexer, its housekeeping.

Each replaces one role by an object that does one thing wrong and delegates the rest to the shipped one. What the core
of a lane checks itself is not here (two voters at once, a step before the last one is committed, a voter that has not
caught up): the core refuses such a step from any proposer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from avow.node.admission import Admission
from avow.node.housekeeping import Retention
from avow.node.lane.queue_lane import QueueLane
from avow.node.lane.roles import LaneRoles
from avow.node.lane_set import LaneSet
from avow.node.membership_steps import MembershipSteps
from avow.node.node import Collect, Component, EffectMux, Node
from avow.node.pubsub.queue import PubSubQueue
from avow.node.records import NodeEffects
from avow.node.roles import SHIPPED, NodeRoles
from avow.queue.commands import QueueCommand, RetentionRules, decode
from avow.queue.records import Queue
from avow.replication.durable import LaneImages, Synced
from avow.replication.effects import LaneImage, Persist, SaveLossBound, SaveRun
from avow.replication.peers import Peers
from avow.replication.two_phase.roles import TwoPhaseRoles
from avow.replication.two_phase.rules import Rules
from avow.storage.memory import MemoryStore
from avow.wire.messages import Kind, Message
from avow_lab.mutations.delegate import Delegate
from avow_lab.mutations.hunt import Mutation, as_drawn, often
from avow_lab.simulator.plan import MIXED, TWO_PHASE, Plan
from avow_lab.simulator.world import Machine, StrayFramesWorld, World

SEEDS_MAX: Final = 2_000

# ------------------------------------------------------------------ admission


class AdmitsEverything(Delegate):
    """Whatever a link delivers reaches the core of the lane that it names."""

    def objection(self, _source: int, _route: int, _component: Component, _message: Message) -> str:
        return ""


# ------------------------------------------------------------------ the effect multiplexer


class OthersProof(Delegate):
    """The proof of the oldest record goes to the components of the one after it."""

    def persisted(self, proof: Synced) -> int:
        waiting = self.shipped.outstanding
        if len(waiting) > 1:
            (first, run), (second, next_run) = waiting[0], waiting[1]
            waiting[0], waiting[1] = (second, run), (first, next_run)
        return self.shipped.persisted(proof)  # type: ignore[no-any-return]


class ProofForAll(Delegate):
    """The proof of a record goes to every component that waits for one, whatever its own record is."""

    def persisted(self, proof: Synced) -> int:
        waiting = self.shipped.outstanding
        inner = waiting[0][0]
        for later, _ in list(waiting)[1:]:
            for item in [item for item in later if all(item[1] is not held for _, held in inner)]:
                later.remove(item)
                inner.append(item)
        return self.shipped.persisted(proof)  # type: ignore[no-any-return]


class LateRecord(Delegate):
    """What the last component of a drain persists is written with the next drain; the proof comes with this one."""

    def __init__(self, shipped: EffectMux) -> None:
        super().__init__(shipped)
        self._late: list[Persist] = []

    def drain(self) -> NodeEffects | None:
        effects = self.shipped.drain()
        if effects is None or not effects.persist:
            return effects  # type: ignore[no-any-return]
        effects.persist, self._late = self._late + effects.persist, []
        last = _lane_of(effects.persist[-1])
        if last and any(_lane_of(operation) != last for operation in effects.persist):
            self._late = [operation for operation in effects.persist if _lane_of(operation) == last]
            effects.persist = [operation for operation in effects.persist if _lane_of(operation) != last]
        return effects  # type: ignore[no-any-return]


class RecordForgotten(Delegate):
    """Removing a component removes its records too, so the next record gets the proof of their syncs."""

    def remove(self, route: int) -> None:
        self.shipped.remove(route)
        waiting = self.shipped.outstanding
        kept = [record for record in waiting if record[0] or record[1]]
        waiting.clear()
        waiting.extend(kept)


class NearestRoute(Delegate):
    """A message with an unknown route goes to the lane with the next higher number."""

    def find(self, route: int) -> Component | None:
        components = self.shipped.components
        if route in components:
            return components[route]  # type: ignore[no-any-return]
        above = [number for number in sorted(components) if number > route]
        return components[above[0]] if above else None


class OwnRecordsLost(Delegate):
    """Records of the node itself, and not of its components, are left out."""

    def drain(self) -> NodeEffects | None:
        self.shipped.saves = [operation for operation in self.shipped.saves if isinstance(operation, SaveRun)]
        return self.shipped.drain()  # type: ignore[no-any-return]


class DroppedEarly(Delegate):
    """A lane is dropped when its deletion is in the log, before that is committed."""

    def __init__(self, shipped: EffectMux, node: Node) -> None:
        super().__init__(shipped)
        self._node = node

    def tick(self, now: float) -> None:
        self.shipped.tick(now)
        metadata, lanes = self._node.metadata, self._node.lanes
        log, catalog = metadata.core.log, metadata.state.catalog
        for position in range(max(metadata.applied, log.base) + 1, log.end + 1):
            entry = log.entry(position)
            command = decode(entry.kind, entry.control, metadata=True) if entry.kind == Kind.QUEUE else None
            if isinstance(command, QueueCommand) and command.action == "delete" and command.name in catalog.by_name:
                queue = catalog.by_name[command.name]
                for number in range(queue.first_lane, queue.first_lane + queue.lanes):
                    if number in lanes:
                        self._node.lane_set.drop_lane(number)


def _lane_of(operation: Persist) -> int:
    return 0 if isinstance(operation, SaveRun | SaveLossBound) else operation.lane


# ------------------------------------------------------------------ quiet lanes


class CursorHidden(Delegate):
    """A lane is quiet once its peers know the coordinator, whether they know the cursor or not."""

    def is_told(self, *, confirmed: int, cursor: int) -> bool:  # noqa: ARG002
        return confirmed >= 0


class AlwaysLossy(World[Node]):
    """Messages are lost after everything else is healed, too: what is said only once may never arrive."""

    def send(self, source: Machine[Node], target: int, route: int, message: Message) -> None:
        if self.rng.random() >= 0.2:
            super().send(source, target, route, message)


class EndedRunBelieved(Delegate):
    """A quiet lane's coordinator is believed to coordinate in its next run, too."""

    def met(self, peer: int, *, run: int, version: int) -> bool:
        self.shipped.met(peer, run=run, version=version)
        return False


# ------------------------------------------------------------------ disks that lose files of the log


class ForgetfulStore(MemoryStore):
    def _successor(self) -> MemoryStore:
        return type(self)()

    def _distrust(self) -> None:
        """No mark shows it that anything is missing."""


class LossIsAbsence(World[Node]):
    store_class = ForgetfulStore


class LostLanesAreNew(Delegate):
    def __init__(self, shipped: LaneSet) -> None:
        super().__init__(shipped)
        shipped.images.lost_below = 0


# ------------------------------------------------------------------ lanes that come and go


class OldImage(Delegate):
    """A queue that is created again under a name begins with the entries of the deleted one."""

    def __init__(self, shipped: LaneSet) -> None:
        super().__init__(shipped)
        self._names: dict[int, str] = {}
        self._kept: dict[str, QueueLane] = {}

    def open_lane(self, number: int, queue: Queue) -> None:
        self._names[number] = queue.name
        old = self._kept.pop(queue.name, None)
        if old is not None and number not in self.shipped.images:
            state = old.core.state
            entries = list(state.log.slice(state.log.base, state.log.end - state.log.base))
            self.shipped.images[number] = LaneImage(state.promised, state.stamped, state.snapshot, entries)
        self.shipped.open_lane(number, queue)

    def drop_lane(self, number: int) -> None:
        self._kept[self._names[number]] = self.shipped.lanes[number]
        self.shipped.drop_lane(number)


class LeftOnDisk(Delegate):
    """A lane that is dropped leaves memory and stays on disk."""

    def drop_lane(self, number: int) -> None:
        saves = self.shipped._node.mux.saves
        before = len(saves)
        self.shipped.drop_lane(number)
        del saves[before:]


class QueueLeftOnDisk(Delegate):
    """The same for the lanes of a pub-sub queue."""

    def drop_queue(self, name: str) -> None:
        saves = self.shipped._node.mux.saves
        before = len(saves)
        self.shipped.drop_queue(name)
        del saves[before:]


class AwayKept(Delegate):
    """Lanes that were created and deleted while this peer was down stay on its disk."""

    def forget_gone(self) -> None:
        """Nothing."""


# ------------------------------------------------------------------ housekeeping


class GoneAtOnce(Delegate):
    """A leaving peer counts as gone while it is a member of lanes."""

    def is_member(self, peer: int) -> bool:  # noqa: ARG002
        return False


class GoneInFlight(Delegate):
    """A removal counts as soon as it is in the log, committed or not."""

    def is_member(self, peer: int) -> bool:
        node = self.shipped._node
        if peer in node.metadata.core.members.voters:
            return True
        return any(peer in lane.core.members.everyone for lane in node.lanes.values())


class ReadyAtOnce(Delegate):
    """A joining peer says at once that it holds everything."""

    def holds_everything(self) -> bool:
        return True


class FirstToPass(Delegate):
    """Retention uses the subscriber that is furthest ahead, and not the slowest."""

    def trim_queue(self, held: PubSubQueue, queue: Queue) -> None:
        node = self.shipped._node
        cursors = sorted(queue.subscribers.values(), key=lambda cursor: sum(cursor.versions.values()))[-1:]
        held.propose_trims(queue.retention, node.now_ms, node.disk.stored_files, subscribers=cursors)


class AnyRuleWillDo(Delegate):
    """A queue that has a rule is trimmed by size, whatever its rule says."""

    def trim_lane(self, lane: QueueLane, number: int, rules: RetentionRules) -> None:
        kept = RetentionRules(rules.age_s, rules.size_bytes or 0, rules.passed)
        self.shipped.trim_lane(lane, number, kept)


# ------------------------------------------------------------------ the list


def _mux(delegate: type[Delegate]) -> NodeRoles:
    def make(collect: Collect) -> Any:
        return delegate(EffectMux(collect))

    return NodeRoles(effect_mux=make)


def _lane_set(delegate: type[Delegate]) -> NodeRoles:
    def make(node: Node, images: LaneImages) -> Any:
        return delegate(LaneSet(node, images))

    return NodeRoles(lane_set=make)


def _peers(delegate: type[Delegate]) -> NodeRoles:
    def make() -> Any:
        return delegate(Peers())

    return NodeRoles(peers=make)


def _core(roles: TwoPhaseRoles) -> NodeRoles:
    return NodeRoles(lane=LaneRoles(core=roles))


def _membership(delegate: type[Delegate]) -> NodeRoles:
    def make(node: Node) -> Any:
        return delegate(MembershipSteps(node))

    return NodeRoles(membership=make)


def _retention(delegate: type[Delegate]) -> NodeRoles:
    def make(node: Node) -> Any:
        return delegate(Retention(node))

    return NodeRoles(retention=make)


def _early(collect: Collect) -> Any:
    node = collect.__self__  # type: ignore[attr-defined]
    return DroppedEarly(EffectMux(collect), node)


def _mutation(
    name: str,
    what: str,
    roles: NodeRoles = SHIPPED,
    *,
    world: type[World[Node]] = World,
    strategy: str = MIXED,
    plan: Callable[[Plan], Plan] = as_drawn,
) -> Mutation:
    return Mutation(name, what, roles=roles, world=world, strategy=strategy, plan=plan, seeds_max=SEEDS_MAX)


def _admits_everything(node: Node) -> Any:
    return AdmitsEverything(Admission(node))


NODE_MUTATIONS: Final[tuple[Mutation, ...]] = (
    Mutation(
        "frames reach a core unchecked",
        "a frame of the wrong kind, or with impossible fields, is not refused",
        roles=NodeRoles(admission=_admits_everything),
        world=StrayFramesWorld,
        seeds_max=SEEDS_MAX,
    ),
    _mutation("proof of another record", "a lane gets the proof of another lane's sync", _mux(OthersProof)),
    _mutation("proof for everybody", "one sync is the proof of others' records", _mux(ProofForAll)),
    _mutation("written after the sync", "one lane's record misses the sync it waits for", _mux(LateRecord)),
    _mutation("the node's own records lost", "the begin and end of a lane are not written", _mux(OwnRecordsLost)),
    _mutation("record forgotten", "a dropped lane's sync proves the next record", _mux(RecordForgotten)),
    _mutation(
        "the wrong lane",
        "a message for a removed lane reaches another",
        _mux(NearestRoute),
        strategy=TWO_PHASE,
    ),
    _mutation(
        "dropped before committed",
        "a deletion in flight is carried out",
        NodeRoles(effect_mux=_early),
        plan=often("queues", "slow disk"),
    ),
    _mutation("opened from an old image", "a new queue begins with the deleted one's lanes", _lane_set(OldImage)),
    _mutation("left on disk", "a deleted queue's lanes stay where they are", _lane_set(LeftOnDisk)),
    _mutation("queue left on disk", "a deleted pub-sub queue's lanes stay", _lane_set(QueueLeftOnDisk)),
    _mutation("kept while away", "lanes that were created and deleted meanwhile stay on disk", _lane_set(AwayKept)),
    _mutation(
        "a loss is an absence",
        "a peer that lost files of its log goes on with what is left",
        world=LossIsAbsence,
        plan=often("damage"),
    ),
    _mutation(
        "a lost lane is a new one",
        "a lane of which nothing is left begins as its founders did",
        _lane_set(LostLanesAreNew),
        plan=often("damage"),
    ),
    _mutation(
        "a quiet lane hides its cursor",
        "a coordinator falls silent before the others know the cursor",
        _core(TwoPhaseRoles(rules=lambda: CursorHidden(Rules()))),
        strategy=TWO_PHASE,
        world=AlwaysLossy,
    ),
    _mutation("an ended run is believed", "a quiet lane's coordinator outlives its process", _peers(EndedRunBelieved)),
    _mutation("gone at once", "a peer is gone while it is a member", _membership(GoneAtOnce)),
    _mutation("gone in flight", "a removal counts before it is committed", _membership(GoneInFlight)),
    _mutation("ready at once", "a peer votes before it holds everything", _membership(ReadyAtOnce)),
    _mutation("the first to pass", "retention forgets the slowest subscriber", _retention(FirstToPass)),
    _mutation("any rule will do", "retention trims what the rules keep", _retention(AnyRuleWillDo)),
)
