"""The mutations of pub-sub queues, each with the world it is hunted in.

Deliberate mistakes in pub-sub replication, one at a time: the proof that its checkers see what matters.

Each breaks one rule by putting a role object with a mistake in the place of the shipped one (`Delegate`). A hunt runs
seeds until a checker objects. A mutation that no seed exposes says either that the simulator is blind there or that the
rule is not needed; both are worth knowing. One rule is held twice: a fenced peer that goes on taking entries from the
owner does no harm as long as it counts none of them (no seed of 700 objected), so that mutation drops both halves.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Final

from msgspec import Struct

from avow.node.answers import Refusal
from avow.node.lane.metadata_machine import MetadataMachine
from avow.node.lane.roles import LaneRoles
from avow.node.node import Node
from avow.node.pubsub.history_repair import HistoryRepair
from avow.node.pubsub.lane_index import LaneIndex
from avow.node.pubsub.lanes import QueueLanes
from avow.node.pubsub.retention import QueueRetention
from avow.node.pubsub.roles import QueueRoles
from avow.node.pubsub.rules import QueueRules
from avow.node.records import PubSubBounds
from avow.node.roles import NodeRoles
from avow.replication.durable import Synced
from avow.replication.effect_buffer import EffectBuffer
from avow.replication.effects import LaneImage, Persist, SaveFence, SaveRun, SaveSnapshot, SaveTrim
from avow.replication.membership import Members
from avow.replication.pubsub.context import Context
from avow.replication.pubsub.copies import Copies
from avow.replication.pubsub.core import PubSubCore
from avow.replication.pubsub.lanes import Lanes
from avow.replication.pubsub.ownership import Ownership
from avow.replication.pubsub.repair import Repair
from avow.replication.pubsub.roles import PubSubRoles
from avow.replication.pubsub.rules import Rules
from avow.replication.pubsub.state import LaneState
from avow.wire.messages import Entry, Snapshot
from avow_lab.mutations.delegate import Delegate
from avow_lab.mutations.hunt import Mutation, as_drawn, often
from avow_lab.simulator.plan import PUB_SUB, Plan
from avow_lab.simulator.world import AckBeforeSyncWorld, Machine, World

# ------------------------------------------------------------------ the rules of a core


class HalfQuorum(Delegate):
    def counted_cursor(self, lane: LaneState) -> int:
        return sorted(lane.stored.values(), reverse=True)[max(len(lane.voters) // 2, 1) - 1]

    def is_quorum(self, lane: LaneState, answered: Container[int]) -> bool:
        return sum(voter in answered for voter in lane.voters) >= len(lane.voters) // 2

    def end_is_held(self, lane: LaneState, held: Mapping[int, int], end: int) -> bool:
        return self.is_quorum(lane, {peer for peer, to in held.items() if to >= end})


class FenceWithoutRestore(Delegate):
    def end_is_held(self, _lane: LaneState, _held: Mapping[int, int], end: int) -> bool:
        return end >= 0


class EndFromOnePeer(Delegate):
    def __init__(self, shipped: Any) -> None:
        super().__init__(shipped)
        self.random = Random(0)

    def choose_end(self, held: Mapping[int, int]) -> int:
        return self.random.choice(list(held.values()))


class CountRefills(Delegate):
    def own_count(self, lane: LaneState, end: int) -> int:
        return 0 if lane.repairing else end


class CountDamagedAnswers(Delegate):
    def counts_answer(self, *, damaged: bool) -> bool:  # noqa: ARG002
        return True


class DamageIsAbsence(Delegate):
    def has_lost_entries(self, _image: LaneImage) -> bool:
        return False


class FenceThatHoldsNothing(CountRefills):
    def accepts_from_owner(self, lane: LaneState) -> bool:
        return lane.decided < 0


class CloseTooEarly(Delegate):
    """An owner that stops proposes the end of what it wrote, committed or not."""

    def may_close(self, _lane: LaneState) -> bool:
        return True


class EndWithoutCut(Delegate):
    def is_cut_at(self, _lane: LaneState, _end: int) -> bool:
        return False


class CountNonVoters(Delegate):
    def counts_as_stored(self, lane: LaneState, source: int) -> bool:
        return bool(lane.voters) and lane.stored.setdefault(source, 0) >= 0


class ReadableWhenStored(Delegate):
    def readable_to(self, lane: LaneState) -> int:
        return lane.durable


# ------------------------------------------------------------------ other roles of a core


class ForgetFences(Delegate):
    """A fence without a decided end becomes an operation that changes nothing."""

    def persist(self, operation: Persist) -> None:
        if isinstance(operation, SaveFence) and operation.end < 0:
            operation = SaveTrim(operation.lane, 0)
        self.shipped.persist(operation)


class VotersFollowMembers(Delegate):
    def members(self, voters: Iterable[int], learners: Iterable[int]) -> None:
        self.shipped.members(voters, learners)
        for lane in self.shipped.active:
            lane.voters = tuple(voters)
            lane.stored = {voter: lane.stored.get(voter, 0) for voter in lane.voters}


class CountOwnBeforeSync(Delegate):
    def __init__(self, context: Context, ownership: Ownership, repair: Repair) -> None:
        super().__init__(Copies(context, ownership, repair))
        self.me, self.ownership = context.me, ownership

    def take(self, lane: LaneState, entries: Sequence[Entry]) -> None:
        self.shipped.take(lane, entries)
        if lane is self.ownership.lane:
            self.shipped.hear_stored(lane, self.me, lane.end)


# ------------------------------------------------------------------ the roles of a queue


class RetryIsANewWrite(Delegate):
    def holds_write(self, _index: LaneIndex, _write_id: bytes) -> bool:
        return False


class AbsenceIsRefusal(Delegate):
    """A lookup answers "not in the lane" when the write is not in its own copy."""

    def absence_is_final(self, _core: PubSubCore, _lane: int) -> bool:
        return True


class ForgottenIsAbsent(Delegate):
    """A lookup answers "not in the lane" when it does not remember the write id."""

    def may_refuse_absent(self, _index: LaneIndex, *, since: int) -> bool:  # noqa: ARG002
        return True


class LateRetryIsNew(Delegate):
    """An owner that has forgotten ids treats every unknown id as new."""

    def may_take_as_new(self, _index: LaneIndex, *, since: int) -> bool:  # noqa: ARG002
        return True


class StartAnywhere(Delegate):
    """Asked for removed entries, a peer lets others start at its own last entry, removed or not."""

    def start_of(self, index: LaneIndex) -> tuple[int, bytes] | None:
        if not index.visible.trimmed_to:
            return None
        late = LaneIndex(index.bounds)
        late.shown, late.visible.end = index.shown, index.visible.end
        late.visible.trimmed_to = late.window.forgotten_to = index.visible.end
        return index.shown, late.snapshot()


class AnswerWhenStored(Delegate):
    """The owner acknowledges what its own disk holds."""

    def persisted(self, proof: Synced, now: float) -> None:
        self.shipped.persisted(proof, now)
        own = self.shipped.ownership.lane
        if own is not None:
            self.shipped.notifications.accepted(own.number, own.durable, (self.shipped.me,))


class SnapshotAhead(Delegate):
    """A snapshot says that everything this copy holds is committed."""

    def __init__(
        self, core: PubSubCore, lanes: QueueLanes, history: HistoryRepair, bounds: PubSubBounds, *, forgets: bool
    ) -> None:
        super().__init__(QueueRetention(core, lanes, history, bounds, forgets=forgets))
        self.core, self.lanes = core, lanes

    def keep(self, number: int) -> None:
        copy, index = self.core.lanes.known(number), self.lanes.by_number[number]
        if index.due and copy.durable > index.shown and self.lanes.extend(number, copy.durable):
            beyond = copy.entries[index.shown - copy.base : copy.durable - copy.base]
            ahead = LaneIndex.restore(index.snapshot(), index.bounds)
            ahead.extend(beyond)
            ahead.show(beyond)
            snapshot = Snapshot(ahead.shown, 0, copy.voters, (), ahead.snapshot())
            self.core.journal.save(copy, SaveSnapshot(number, snapshot, reset=False))
        self.shipped.keep(number)


# ------------------------------------------------------------------ all of them


class RoleMutation(Struct, frozen=True):
    """`listed`: listed in the design; the others were added. `seeds_max`: after so many seeds it counts as survived."""

    name: str
    what: str
    roles: QueueRoles
    listed: bool = False
    seeds_max: int = 10_000


def instead_of(shipped: Callable[..., Any], mistaken: Callable[[Any], Any]) -> Callable[..., Any]:
    """A constructor for a role: the shipped one, wrapped by the mistake."""
    return lambda *given, **named: mistaken(shipped(*given, **named))


def _core(**roles: Callable[..., Any]) -> QueueRoles:
    return QueueRoles(pubsub=PubSubRoles(**roles))


def _rules(mistaken: type[Delegate]) -> QueueRoles:
    return _core(rules=instead_of(Rules, mistaken))


def _queue_rules(mistaken: type[Delegate]) -> QueueRoles:
    return QueueRoles(rules=instead_of(QueueRules, mistaken))


ROLE_MUTATIONS: Final[tuple[RoleMutation, ...]] = (
    RoleMutation("quorum n/2", "half of the voters are enough", _rules(HalfQuorum), listed=True),
    RoleMutation(
        "fence without re-store", "an end is proposed that one copy holds", _rules(FenceWithoutRestore), listed=True
    ),
    RoleMutation("end from one random peer", "not the longest copy of a quorum", _rules(EndFromOnePeer), listed=True),
    RoleMutation("refills counted as stored", "copies made behind the fence commit entries", _rules(CountRefills)),
    RoleMutation("damaged answer counted", "a copy that lost entries is counted", _rules(CountDamagedAnswers)),
    RoleMutation("damage is absence", "a copy that lost entries counts as a short one", _rules(DamageIsAbsence)),
    RoleMutation(
        "a fence that holds nothing", "a fenced peer goes on storing and counting", _rules(FenceThatHoldsNothing)
    ),
    RoleMutation(
        "fences forgotten",
        "a fence is not written down: a restart takes it back",
        _core(effects=instead_of(EffectBuffer, ForgetFences)),
    ),
    RoleMutation("closed before committed", "an owner ends its lane at what it wrote", _rules(CloseTooEarly)),
    RoleMutation("end without a cut", "copies keep what lies beyond the decided end", _rules(EndWithoutCut)),
    RoleMutation(
        "voters follow the membership",
        "an open lane counts among new voters",
        _core(lanes=instead_of(Lanes, VotersFollowMembers)),
    ),
    RoleMutation("non-voters counted", "learners and later members make up a quorum", _rules(CountNonVoters)),
    RoleMutation("readable when stored", "entries are shown before a quorum has them", _rules(ReadableWhenStored)),
    RoleMutation("own copy counted early", "the owner counts what it has not synced", _core(copies=CountOwnBeforeSync)),
    RoleMutation(
        "answer when stored here", "one disk is enough", QueueRoles(core=instead_of(PubSubCore, AnswerWhenStored))
    ),
    RoleMutation("retry is a new write", "the owner does not look for the write id", _queue_rules(RetryIsANewWrite)),
    RoleMutation(
        "absence is refusal", "a lookup concludes from a copy that is not complete", _queue_rules(AbsenceIsRefusal)
    ),
    RoleMutation(
        "forgotten is absent", "an id that left the window counts as never written", _queue_rules(ForgottenIsAbsent)
    ),
    RoleMutation("late retry is new", "an owner that forgot ids stores a write twice", _queue_rules(LateRetryIsNew)),
    RoleMutation("start anywhere", "a late copy jumps over entries that were not removed", _queue_rules(StartAnywhere)),
    RoleMutation(
        "snapshot ahead", "a snapshot covers entries that may not be committed", QueueRoles(retention=SnapshotAhead)
    ),
)


class ReopenAfterCrash(World[Node]):
    """A run takes the number of the previous run, finds its lane open, and continues where its disk ends."""

    def number_run(self, machine: Machine[Node], last: int) -> int:
        return last or super().number_run(machine, last)


class RunNotDurable(World[Node]):
    """A run starts before its number is durable."""

    def number_run(self, machine: Machine[Node], last: int) -> int:
        run = machine.run

        def save() -> None:
            if machine.run == run and machine.replica is not None:
                machine.store.write([SaveRun(last + 1)], lambda _proof: None)

        self.call(0.2, save)
        return last + 1


class MembersUnguarded(Delegate):
    def refuse_members(self, current: Members, wanted: Members) -> Refusal | None:  # noqa: ARG002
        return None


_UNGUARDED: Final = LaneRoles(metadata=lambda *given, **named: MembersUnguarded(MetadataMachine(*given, **named)))


def _mutation(name: str, what: str, **more: Any) -> Mutation:
    return Mutation(name, what, strategy=PUB_SUB, **more)


_PLANS: Final[dict[str, Callable[[Plan], Plan]]] = {
    "damage is absence": often("damage"),
    "fences forgotten": often("blink", "one-way"),
    "voters follow the membership": often("members"),
}  # for rules that matter only with such faults


PUBSUB_MUTATIONS: Final[tuple[Mutation, ...]] = (
    _mutation(
        "ack before sync", "messages leave before the sync they depend on", world=AckBeforeSyncWorld, listed=True
    ),
    _mutation("reopen a lane after a crash", "a run takes the last one's number", world=ReopenAfterCrash, listed=True),
    _mutation("run not durable", "a lane is opened under a number that may be lost", world=RunNotDurable),
    _mutation("members unguarded", "voters change while older lanes are open", roles=NodeRoles(lane=_UNGUARDED)),
    *(
        _mutation(
            given.name,
            given.what,
            roles=NodeRoles(queue=given.roles),
            listed=given.listed,
            seeds_max=given.seeds_max,
            plan=_PLANS.get(given.name, as_drawn),
        )
        for given in ROLE_MUTATIONS
    ),
)
