"""The mutations of two-phase lanes: deliberate mistakes, each with the world and the plans it is hunted with.

Each breaks a single rule, by a role object with one wrong method that delegates the rest to the shipped one. A checker
must catch it within a bounded number of seeds. A mutation that survives means that the checkers miss it, or that the
rule is not needed. `TWO_PHASE_ROLES` lists them as data; a peer never imports them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from avow.limits import WRITE_ID_WINDOW_COUNT
from avow.node.answers import Answer, Refusal
from avow.node.lane.entries import LaneHistory
from avow.node.lane.queue_machine import QueueMachine
from avow.node.lane.reads import LaneReads
from avow.node.lane.requests import Asker, Write
from avow.node.lane.roles import LaneRoles
from avow.node.lane.writes import LaneWrites
from avow.node.merging import UNMERGEABLE, shape_of
from avow.node.node import Node
from avow.node.roles import NodeRoles
from avow.queue.commands import CursorCommand, TransactionCommand, encode
from avow.queue.entry_outcome import EarlyRefusal, Known, Outcome
from avow.queue.write_ids import Recent
from avow.replication.effect_buffer import EffectBuffer
from avow.replication.effects import Persist, SaveState
from avow.replication.membership import Members
from avow.replication.two_phase.core import TwoPhaseCore
from avow.replication.two_phase.follower import Follower
from avow.replication.two_phase.leadership import Leadership
from avow.replication.two_phase.roles import TwoPhaseRoles
from avow.replication.two_phase.rules import Rules
from avow.replication.two_phase.state import LaneLog, LaneState
from avow.storage.memory import MemoryStore
from avow.wire.merge import merged_writes
from avow.wire.messages import Entry, Install
from avow_lab.mutations.delegate import Delegate
from avow_lab.mutations.hunt import Mutation, as_drawn, often
from avow_lab.simulator.naive import simulate_naive
from avow_lab.simulator.plan import TWO_PHASE, Plan, Slot
from avow_lab.simulator.world import AckBeforeSyncWorld, Machine, World

# ------------------------------------------------------------------ rules of the core


class HalfQuorum(Delegate):
    def quorum(self, n: int) -> int:
        return max(1, n // 2)


class RandomPromise(Delegate):
    """A random promise of the quorum instead of the freshest."""

    def donor(self, promises: dict[int, tuple[int, int]], *, me: int, ballot: int, freshness: tuple[int, int]) -> int:
        chosen = sorted(promises)[ballot // 65536 % len(promises)]
        return 0 if chosen == me or promises[chosen] == freshness else chosen


class NoCutAtStamp(Delegate):
    def end_at_stamp(self, *, matched: int, committed: int, end: int) -> int:  # noqa: ARG002
        return end


class NoPreviousEntryCheck(Delegate):
    def continues(self, log: LaneLog, after: int, origin: int) -> bool:  # noqa: ARG002
        return after <= log.end


class StampOnFirstPiece(Delegate):
    def may_stamp(self, *, matched: int, required: int) -> bool:  # noqa: ARG002
        return True


class CountUnstamped(Delegate):
    def counts(self, *, stamped: bool) -> bool:  # noqa: ARG002
        return True


class DamageIsAbsence(Delegate):
    """A log that lost entries counts as a short one."""

    def is_damaged(self, stamped: int) -> bool:  # noqa: ARG002
        return False


class RepairedTooEarly(Delegate):
    """A damaged peer counts as whole before it holds the entries it was counted for."""

    def required(self, *, takeover_end: int, match: int) -> int:  # noqa: ARG002
        return takeover_end


class CommitUnmatched(Delegate):
    """A follower applies the cursor to any entry that its log holds there."""

    def known_committed(self, *, cursor: int, matched: int, persisted: int) -> int:  # noqa: ARG002
        return min(cursor, persisted)


# ------------------------------------------------------------------ roles of the core


class ForgetPromises(Delegate):
    def persist(self, operation: Persist) -> None:
        if isinstance(operation, SaveState):
            operation = SaveState(operation.lane, operation.stamped, operation.stamped)
        self.shipped.persist(operation)


class OverLaneState(Delegate):
    """A role of the core, with the state it works on."""

    def __init__(self, shipped: Any, state: LaneState) -> None:
        super().__init__(shipped)
        self.state = state


class AnswersOutliveQuestions(OverLaneState):
    """A donor's snapshot is treated as a coordinator's when the claim that requested it was given up."""

    def on_snapshot(self, message: Install) -> None:
        state = self.state
        if not message.ballot or state.full:
            self.shipped.on_snapshot(message)
            return
        if message.snapshot.position > state.committed:
            state.take_snapshot(message.snapshot)
        state.stamp(state.committed)


class UnconfirmedReads(OverLaneState):
    def read_index(self, request: int) -> None:
        reads = self.shipped.reads
        reads.add(request, self.state.committed)
        reads.next_round(self.state.me)
        reads.finish()


class ManyMembersAtOnce(OverLaneState):
    """Accepts any change at any time."""

    def change_members(self, wanted: Members) -> int:
        if len(wanted.voters) > len(self.state.log.members.voters):  # everyone at once, caught up or not
            wanted = Members((*wanted.voters, *wanted.learners), ())
        elif not wanted.learners and len(wanted.voters) > 1:
            wanted = Members(wanted.voters[:1], ())
        position: int = self.shipped.append_members(wanted)
        return position


# ------------------------------------------------------------------ roles of a lane


class UnconfirmedRefusal(Delegate):
    def refuse(self, asker: Asker, refusal: EarlyRefusal) -> None:
        self.shipped.replies.answer(asker, Refusal(refusal.code, refusal.last_version))


class RefuseWhatIsUnknown(Delegate):
    """A deposed coordinator answers its clients "refused" instead of "unknown"."""

    def lose(self) -> None:
        for asker in self.shipped.take_waiting():
            self.shipped.replies.answer(asker, Refusal("ALREADY_DECIDED"))
        self.shipped.lose()


class AnswerWhenStored(Delegate):
    """The coordinator answers when its own disk has the entry."""

    def __init__(self, shipped: LaneWrites, core: TwoPhaseCore, machine: QueueMachine) -> None:
        super().__init__(shipped)
        self.core, self.machine = core, machine

    def flush(self) -> None:
        for position in [p for p in self.shipped.waiting if p <= self.core.state.persisted_end]:
            end = self.machine.state.end
            outcome = Outcome("", end + 1, end + self.core.log.entry(position).count)
            for asker, answer in self.shipped.applied(position, outcome, merged=False):
                self.shipped.replies.answer(asker, answer)
        self.shipped.flush()


class OneOutcomeForAll(Delegate):
    """Each writer of a merged record gets the outcome of the whole record."""

    def applied(self, position: int, outcome: Outcome, *, merged: bool) -> list[tuple[Asker, Answer]]:  # noqa: ARG002
        answers: list[tuple[Asker, Answer]] = self.shipped.applied(position, outcome, merged=False)
        return answers


class WholeAtOnce(Delegate):
    """A peer that installed a snapshot counts as one that holds everything."""

    def replaced(self) -> None:
        """Records no missing history."""


# ------------------------------------------------------------------ the machine of a queue's lane


class MachineDelegate(Delegate):
    """The attributes that a lane reads and the shipped machine changes; `broken` sees each new state."""

    def __init__(self, shipped: QueueMachine) -> None:
        super().__init__(shipped)
        self.broken()

    def broken(self) -> None:
        """Break the state that was just made."""

    def restore(self, snapshot: bytes, position: int) -> None:
        self.shipped.restore(snapshot, position)
        self.broken()


class CommittedEndOnly(MachineDelegate):
    """`expected` is compared with the committed end, not with what is in flight."""

    def check_write(self, write: Write) -> Known | EarlyRefusal | None:
        found: Known | EarlyRefusal | None = self.shipped.check_write(write)
        end = self.shipped.state.end
        stale = isinstance(found, EarlyRefusal) and found.code == "NOT_EQUAL" and write.expected == end
        return None if stale else found


class NoMemory(Delegate):
    """A memory of write ids that remembers none."""

    def get(self, _key: bytes, _default: Outcome | None = None) -> Outcome | None:
        return None

    def remember(self, key: bytes, value: Outcome) -> None:
        """Not remembered."""

    def remember_all(self, keys: Sequence[bytes], new: Iterable[Outcome]) -> None:
        """Not remembered."""

    def __len__(self) -> int:
        return 0


class ForgetWriteIds(MachineDelegate):
    """A repeated write id is a new write."""

    def broken(self) -> None:
        state = self.shipped.state
        state.write_ids = NoMemory(Recent(1))

    def check_write(self, write: Write) -> Known | EarlyRefusal | None:
        found = self.shipped.check_write(write)
        return found if isinstance(found, EarlyRefusal) else None


class OldRetriesAreNew(MachineDelegate):
    """A write id that may have been forgotten counts as never seen."""

    def would_know(self, write: Write, now: float) -> bool:  # noqa: ARG002
        return True


class AnyUseIsARepeat(MachineDelegate):
    """A write whose id was used for something else gets the outcome of that."""

    def check_write(self, write: Write) -> Known | EarlyRefusal | None:
        found: Known | EarlyRefusal | None = self.shipped.check_write(write)
        if not isinstance(found, Known) or found.outcome is None or found.outcome.code != "CONTENT_DIFFERS":
            return found
        return Known(outcome=replace(found.outcome, code=""))


class MergedTwice(MachineDelegate):
    """A merged record is shown whole, including writes with known ids.

    Whether a write id is known is not asked before it is merged either. That alone does no harm: applying asks again.
    """

    def check_write(self, write: Write) -> Known | EarlyRefusal | None:
        if shape_of(write) != UNMERGEABLE:
            return None
        found: Known | EarlyRefusal | None = self.shipped.check_write(write)
        return found

    def apply(self, entry: Entry) -> Outcome:
        state, machine = self.shipped.state, self.shipped
        writes = () if entry.write_id else merged_writes(entry)
        if not any(state.outcome_of(write_id) is not None for write_id, _, _ in writes):
            outcome: Outcome = machine.apply(entry)
            return outcome
        ids = [write_id if state.outcome_of(write_id) is None else b"" for write_id, _, _ in writes]
        unknown = [(write_id, offset, count) for write_id, (_, offset, count) in zip(ids, writes, strict=True)]
        shown: Outcome = state.apply(entry, unknown)
        machine.applied = entry.position
        return shown


class ExpiresAlone(MachineDelegate):
    """A lane discards what is past its deadline, also a transaction that another lane decides."""

    def discards_due(self, now_ms: int) -> list[bytes]:
        due: list[bytes] = self.shipped.discards_due(now_ms)
        transactions = self.shipped.state.transactions
        late = transactions.followers(self.shipped.lane).items() if due or transactions.opened else ()
        return due + [encode(TransactionCommand(txn, "deadline")) for txn, found in late if found.deadline_ms <= now_ms]


class LastCursorWins(Delegate):
    def perform(self, command: CursorCommand) -> Outcome:
        back = CursorCommand(command.subscriber, max(0, command.version - 2), reset=True)
        outcome: Outcome = self.shipped.perform(back)
        return outcome


class CursorsGoBack(MachineDelegate):
    def broken(self) -> None:
        state = self.shipped.state
        state.subscribers = LastCursorWins(state.subscribers)


class SnapshotWithoutTransactions(MachineDelegate):
    """What is staged is left out of snapshots."""

    def snapshot(self) -> bytes:
        transactions = self.shipped.state.transactions
        opened, transactions.opened = transactions.opened, {}
        taken: bytes = self.shipped.snapshot()
        transactions.opened = opened
        return taken


# ------------------------------------------------------------------ the list

NAIVE: Final = "naive"  # another protocol altogether
ACK_BEFORE_SYNC: Final = "ack before sync"  # the world reports a sync that has not happened
WIPED_PEER: Final = "wiped peer"  # a crash may empty a peer's folder


class RoleMutation(Struct, frozen=True):
    """`roles` make the mistake, or `variant` names a change of the simulator, or both.

    `listed`: named by the design; the others were added. `seeds_max`: where a hunt gives up.
    """

    name: str
    what: str
    roles: LaneRoles = LaneRoles()
    variant: str = ""
    listed: bool = False
    seeds_max: int = 10_000


def _rules(broken: type[Delegate]) -> LaneRoles:
    return LaneRoles(core=TwoPhaseRoles(rules=lambda: broken(Rules())))


def _follower(broken: type[OverLaneState]) -> LaneRoles:
    return LaneRoles(core=TwoPhaseRoles(follower=lambda state: broken(Follower(state), state)))


def _leadership(broken: type[OverLaneState]) -> LaneRoles:
    return LaneRoles(core=TwoPhaseRoles(leadership=lambda state: broken(Leadership(state), state)))


def _effects(broken: type[Delegate]) -> LaneRoles:
    return LaneRoles(core=TwoPhaseRoles(effects=lambda: broken(EffectBuffer())))


def _reads(broken: type[Delegate]) -> LaneRoles:
    return LaneRoles(reads=lambda *given: broken(LaneReads(*given)))


def _writes(broken: type[Delegate]) -> LaneRoles:
    return LaneRoles(writes=lambda *given: broken(LaneWrites(*given)))


def _queue(broken: type[MachineDelegate]) -> LaneRoles:
    return LaneRoles(queue=lambda *given, **named: broken(QueueMachine(*given, **named)))


def _answer_when_stored() -> LaneRoles:
    return LaneRoles(
        writes=lambda core, replies, machine, reads: AnswerWhenStored(
            LaneWrites(core, replies, machine, reads), core, machine
        )
    )


def _whole_at_once() -> LaneRoles:
    return LaneRoles(history=lambda *given, **named: WholeAtOnce(LaneHistory(*given, **named)))


TWO_PHASE_ROLES: Final[tuple[RoleMutation, ...]] = (
    RoleMutation(
        "naive",
        "the first description: no ballots, uncommitted values are overwritten",
        variant=NAIVE,
        listed=True,
        seeds_max=100,
    ),
    RoleMutation(
        "ack before sync", "messages leave before the sync they depend on", variant=ACK_BEFORE_SYNC, listed=True
    ),
    RoleMutation("quorum n/2", "half of the voters are enough", _rules(HalfQuorum), listed=True),
    RoleMutation("adopt one random promise", "not the freshest log of a quorum", _rules(RandomPromise), listed=True),
    RoleMutation("no cut at the stamp", "leftovers stay behind the match", _rules(NoCutAtStamp), listed=True),
    RoleMutation(
        "no previous-entry check",
        "entries are stored wherever they fit",
        _rules(NoPreviousEntryCheck),
        listed=True,
    ),
    RoleMutation(
        "stamp on the first piece",
        "before the whole take-over log is here",
        _rules(StampOnFirstPiece),
        listed=True,
    ),
    RoleMutation(
        "count an unstamped peer",
        "a quorum of copies that a take-over need not find",
        _rules(CountUnstamped),
        listed=True,
    ),
    RoleMutation("forget promises", "a promise is not written down", _effects(ForgetPromises)),
    RoleMutation("damage is absence", "a log that lost entries votes like a short one", _rules(DamageIsAbsence)),
    RoleMutation(
        "repaired too early",
        "a damaged log counts before it is whole again",
        _rules(RepairedTooEarly),
    ),
    RoleMutation("answers outlive questions", "a stamp from a claim given up", _follower(AnswersOutliveQuestions)),
    RoleMutation("unconfirmed reads", "a coordinator assumes that it still is one", _leadership(UnconfirmedReads)),
    RoleMutation("commit what was not matched", "the cursor is applied to any entry", _rules(CommitUnmatched)),
    RoleMutation("many members at once", "changes that share no voter", _leadership(ManyMembersAtOnce)),
    RoleMutation("wiped peer votes", "an emptied folder under its old name", variant=WIPED_PEER),
    RoleMutation("answer when stored here", "one disk is enough", _answer_when_stored()),
    RoleMutation("unknown told as refused", "a deposed coordinator refuses", _writes(RefuseWhatIsUnknown)),
    RoleMutation("refusal not confirmed", "NOT_EQUAL by a coordinator that was replaced", _reads(UnconfirmedRefusal)),
    RoleMutation("expected against the committed end", "entries in flight do not count", _queue(CommittedEndOnly)),
    RoleMutation("write ids forgotten", "a retry is a new write", _queue(ForgetWriteIds)),
    RoleMutation("an old retry is a new write", "its write id may be forgotten", _queue(OldRetriesAreNew)),
    RoleMutation("any use is a repeat", "a write id of a staged batch is done as a write", _queue(AnyUseIsARepeat)),
    RoleMutation(
        "merged writes share one outcome", "each gets the outcome of the whole record", _writes(OneOutcomeForAll)
    ),
    RoleMutation("merged and shown twice", "a known write id in a merged record counts again", _queue(MergedTwice)),
    RoleMutation("whole at once", "a snapshot counts as the messages before it", _whole_at_once()),
    RoleMutation("a lane expires by itself", "not when the home lane has expired", _queue(ExpiresAlone)),
    RoleMutation(
        "cursors go back", "a subscriber's cursor takes the last value, not the highest", _queue(CursorsGoBack)
    ),
    RoleMutation("snapshot without staged writes", "a restart forgets them", _queue(SnapshotWithoutTransactions)),
)


_ONE_LANE: Final = (Slot("orders0", "two-phase"),)


class WipedPeerWorld(World[Node]):
    """A peer whose folder was emptied comes back under its old name."""

    def crash(self, machine: Machine[Node]) -> None:
        super().crash(machine)
        if self.rng.random() < 0.3 and machine.number <= self.plan.peers:
            machine.store = MemoryStore()
            self.write_founding_records(machine)


def often_damaged(plan: Plan) -> Plan:
    """Three peers and one lane, one damaged disk after the other."""
    faults = tuple(kind for kind in plan.faults if kind not in ("members", "queues"))
    return replace(plan, slots=_ONE_LANE, faults=(*faults, *("damage",) * 6), peers=3, spare_peers=0)


def with_wide_transactions(plan: Plan) -> Plan:
    slots = tuple(replace(slot, lanes=2) for slot in plan.slots)
    return replace(plan, slots=slots, wide=True, think_s=max(plan.think_s, 0.02))


def with_reused_ids(plan: Plan) -> Plan:
    return replace(plan, reuses=plan.write_ids == WRITE_ID_WINDOW_COUNT)


def many_take_overs(plan: Plan) -> Plan:
    """One lane, small snapshots, and many take-overs, so that claims are given up in the middle."""
    plan = replace(plan, slots=_ONE_LANE, snapshot_every=2, snapshot_delays=20)
    return often("blink", "split", "isolate", every_s=0.04)(plan)


_WORLDS: Final[dict[str, type[World[Node]]]] = {ACK_BEFORE_SYNC: AckBeforeSyncWorld, WIPED_PEER: WipedPeerWorld}
_PLANS: Final[dict[str, Callable[[Plan], Plan]]] = {
    "repaired too early": often_damaged,
    "any use is a repeat": with_reused_ids,
    "a lane expires by itself": with_wide_transactions,
    "no cut at the stamp": often("blink", "split"),
    "count an unstamped peer": often("blink", "split"),
    "forget promises": often("blink"),
    "answers outlive questions": many_take_overs,
    "unconfirmed reads": often("isolate", "one-way"),
}  # for rules that matter only with such faults


def _mutation(given: RoleMutation) -> Mutation:
    return Mutation(
        given.name,
        given.what,
        roles=NodeRoles(lane=given.roles),
        world=_WORLDS.get(given.variant, World),
        strategy=TWO_PHASE,
        plan=_PLANS.get(given.name, as_drawn),
        listed=given.listed,
        seeds_max=given.seeds_max,
        simulate=simulate_naive if given.variant == NAIVE else None,
    )


TWO_PHASE_MUTATIONS: Final[tuple[Mutation, ...]] = tuple(map(_mutation, TWO_PHASE_ROLES))
