"""Deliberate mistakes, one at a time: the proof that the checkers see what matters.

Each mutation breaks a single rule, by overriding the method that states it, and must be caught within a bounded number
of seeds. A mutation that survives means that the simulator is blind there, or that the rule is not needed. Nothing
here is reachable from a peer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from avow.peer.answers import Refusal
from avow.peer.lane import Waiting, Write
from avow.peer.lane_reads import Asker
from avow.peer.merging import UNMERGEABLE, shape_of
from avow.peer.queue_lane import QueueLane
from avow.queue.commands import CursorCommand
from avow.queue.ledger import Writes
from avow.queue.outcomes import Outcome
from avow.queue.projection import Refusal as Foreseen
from avow.queue.state import QueueState
from avow.queue.subscribers import Subscribers
from avow.queue.write_ids import Recent
from avow.replication.effects import Effects, SaveSnapshot, SaveState
from avow.replication.membership import Members
from avow.replication.two_phase.claim import DONE, WAIT, Claiming
from avow.replication.two_phase.core import FOLLOWER, TwoPhaseCore
from avow.replication.two_phase.progress import Progress
from avow.storage.memory import MemoryStore
from avow.testing.hunt import Mutation
from avow.testing.naive import NaiveSimulation
from avow.testing.plan import Plan, draw_two_phase_plan
from avow.testing.two_phase import TwoPhaseSimulation
from avow.testing.world import AckBeforeSyncWorld, Machine, World
from avow.wire.messages import Entry, Install, Snapshot

# ------------------------------------------------------------------ worlds


class WipedPeerWorld(World[QueueLane]):
    """A peer whose folder was emptied comes back under its old name."""

    def crash(self, machine: Machine[QueueLane]) -> None:
        super().crash(machine)
        if self.rng.random() < 0.3:
            kept = machine.store.load().lanes[1].snapshot if machine.store.load().lanes else None
            machine.store = MemoryStore()
            if kept is not None:
                first = Snapshot(0, 0, kept.voters, kept.learners, b"")
                machine.store.write([SaveSnapshot(1, first, reset=True)], lambda _proof: None)
                machine.store.sync()


# ------------------------------------------------------------------ cores


class HalfQuorum(TwoPhaseCore):
    def _quorum(self, n: int) -> int:
        return max(1, n // 2)


class RandomPromise(Claiming):
    """One answer of the quorum, whichever, instead of the freshest."""

    def decide(self, voters: tuple[int, ...]) -> int:
        if self.me not in self.answers or not self._is_quorum(voters):
            return WAIT
        chosen = sorted(self.answers)[self.ballot // 65536 % len(self.answers)]
        return DONE if chosen == self.me or self.answers[chosen] == self.freshness else chosen


class AdoptRandomPromise(TwoPhaseCore):
    claim_class = RandomPromise


class NoCutAtStamp(TwoPhaseCore):
    def _stamp(self, ballot: int, matched: int) -> None:  # noqa: ARG002
        self._save_state(promised=self.promised, stamped=ballot)


class NoPreviousEntryCheck(TwoPhaseCore):
    def _continues(self, after: int, origin: int) -> bool:  # noqa: ARG002
        return after <= self.log.end


class StampOnFirstPiece(TwoPhaseCore):
    def _may_stamp(self, matched: int, takeover_end: int) -> bool:  # noqa: ARG002
        return True


class CountUnstamped(TwoPhaseCore):
    def _counts_unstamped(self) -> bool:
        return True


class ForgetPromises(TwoPhaseCore):
    def drain(self) -> Effects | None:
        self._persist = [
            SaveState(op.lane, op.stamped, op.stamped) if isinstance(op, SaveState) else op for op in self._persist
        ]
        return super().drain()


class DamageIsAbsence(TwoPhaseCore):
    """A log that lost entries is taken for a short one."""

    @property
    def repairing(self) -> bool:
        return False


class RepairedTooEarly(TwoPhaseCore):
    """A damaged peer counts as whole again before it holds what it was counted for."""

    def _required(self, progress: Progress) -> int:  # noqa: ARG002
        return self.takeover_end


class AnswersOutliveQuestions(TwoPhaseCore):
    """A donor's snapshot is taken for a coordinator's when the claim that asked for it was given up."""

    def _on_snapshot_fetched(self, source: int, message: Install) -> None:
        if not message.ballot or self.role != FOLLOWER or self.full:
            super()._on_snapshot_fetched(source, message)
            return
        if message.snapshot.position > self.committed:
            self._take_snapshot(message.snapshot)
        self._stamp(self.promised, self.committed)


class UnconfirmedReads(TwoPhaseCore):
    def read_index(self, request: int) -> None:
        self.reads_done.append((request, self.committed))


class CommitUnmatched(TwoPhaseCore):
    """A follower believes the cursor for whatever its log holds there."""

    def _learn(self, cursor: int) -> None:
        upto = min(cursor, self.persisted_end)
        if upto > self.committed:
            self.committed = upto


class ManyMembersAtOnce(TwoPhaseCore):
    def _check_may_change(self, wanted: Members) -> None:
        """Anything goes, at any time."""

    def change_members(self, wanted: Members) -> int:
        if len(wanted.voters) > len(self.members.voters):  # everyone at once, caught up or not
            wanted = Members((*wanted.voters, *(p for p in wanted.learners)), ())
        elif not wanted.learners and len(wanted.voters) > 1:
            wanted = Members(wanted.voters[:1], ())
        return super().change_members(wanted)


# ------------------------------------------------------------------ compositions and states


class UnconfirmedRefusal(QueueLane):
    def _refuse(self, asker: Asker, refusal: Foreseen) -> None:
        self._answer(asker, Refusal(refusal.code, refusal.last_version))


class RefuseWhatIsUnknown(QueueLane):
    """A coordinator that loses its place tells its clients "no" instead of "unknown"."""

    def _role_changed(self, ballot: int) -> None:
        writers, self._writers = self._writers, {}
        for waiting in writers.values():
            for asker, _ in waiting:
                self._answer(asker, Refusal("ALREADY_DECIDED"))
        super()._role_changed(ballot)


class AnswerWhenStored(QueueLane):
    """The coordinator answers when its own disk has the entry."""

    def persisted(self, ticket: int) -> None:
        super().persisted(ticket)
        for position in [p for p in self._writers if p <= self.core.persisted_end]:
            entry = self.core.log.entry(position)
            outcome = Outcome("", self.state.end + 1, self.state.end + entry.count)
            self._tell(self._writers.pop(position), outcome, merged=False)


class CommittedEndOnly(QueueLane):
    """`expected` is compared with the committed end, not with what is in flight."""

    def _foresee(self, write):  # type: ignore[no-untyped-def]
        found = super()._foresee(write)
        stale = isinstance(found, Foreseen) and found.code == "NOT_EQUAL" and write.expected == self.state.end
        return None if stale else found


class _NoMemory(Recent[Outcome]):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.get = lambda _key, _default=None: None  # type: ignore[assignment]

    def remember(self, key: bytes, value: Outcome) -> None:
        """Forgets at once."""

    def remember_all(self, keys: Sequence[bytes], new: Iterable[Outcome]) -> None:
        """Likewise."""


class ForgetWriteIds(QueueLane):
    """A repeated write id is a new write."""

    def _restore(self, snapshot: bytes) -> None:
        super()._restore(snapshot)
        self.state.write_ids = _NoMemory(1)

    def _foresee(self, write):  # type: ignore[no-untyped-def]
        found = super()._foresee(write)
        return found if isinstance(found, Foreseen) else None


class OldRetriesAreNew(QueueLane):
    """A write id that may have been forgotten is taken for one that was never seen."""

    def _would_know(self, write: Write, now: float) -> bool:  # noqa: ARG002
        return True


class OneOutcomeForAll(QueueLane):
    """Writers of a merged record hear of the whole record."""

    def _tell(self, waiting: list[Waiting], outcome: Outcome, *, merged: bool) -> None:  # noqa: ARG002
        super()._tell(waiting, outcome, merged=False)


class UncheckedMerge(QueueLane):
    """Whether a write id is known is not asked before it is merged. Harmless by itself: applying asks again."""

    def _foresee(self, write):  # type: ignore[no-untyped-def]
        return None if shape_of(write) != UNMERGEABLE else super()._foresee(write)


class _ShowsAll(QueueState):
    def _show_unknown(self, entry: Entry, writes: Writes) -> None:  # noqa: ARG002
        self._show(entry.position, 0, entry.count)


class MergedTwice(UncheckedMerge):
    """A merged record is shown whole, known write ids and all."""

    def _restore(self, snapshot: bytes) -> None:
        super()._restore(snapshot)
        self.state = _ShowsAll.restore(snapshot) if snapshot else _ShowsAll(bounds=self._bounds)


class WholeAtOnce(QueueLane):
    """A peer that was given a snapshot passes for one that has everything."""

    def _jumped(self) -> None:
        super()._jumped()
        self._backfill.busy = False


class _LastCursorWins(Subscribers):
    def perform(self, command: CursorCommand) -> Outcome:
        return super().perform(CursorCommand(command.subscriber, max(0, command.version - 2), reset=True))


class CursorsGoBack(QueueLane):
    def _restore(self, snapshot: bytes) -> None:
        super()._restore(snapshot)
        backwards = _LastCursorWins(self.state.subscribers.count_max)
        backwards.by_name = self.state.subscribers.by_name
        self.state.subscribers = backwards


class SnapshotWithoutTransactions(QueueLane):
    """What is staged is left out of snapshots."""

    def _take_snapshot(self) -> None:
        opened, self.state.transactions.opened = self.state.transactions.opened, {}
        super()._take_snapshot()
        self.state.transactions.opened = opened


class DamageWeather(TwoPhaseSimulation):
    """Three peers, one damaged disk after the other: for a rule that matters only then."""

    @staticmethod
    def draw(seed: int) -> Plan:
        plan = draw_two_phase_plan(seed)
        return replace(plan, faults=(*plan.faults, *("damage",) * 6), peers=3, spare_peers=0)


def _with_core(
    core: type[TwoPhaseCore], simulation: type[TwoPhaseSimulation] = TwoPhaseSimulation
) -> type[TwoPhaseSimulation]:
    lane = type(f"{core.__name__}Lane", (QueueLane,), {"core_class": core})
    return type(f"{core.__name__}Simulation", (simulation,), {"lane_class": lane})


def _with_lane(lane: type[QueueLane]) -> type[TwoPhaseSimulation]:
    return type(f"{lane.__name__}Simulation", (TwoPhaseSimulation,), {"lane_class": lane})


def _with_world(world: type[World[QueueLane]]) -> type[TwoPhaseSimulation]:
    return type(f"{world.__name__}Simulation", (TwoPhaseSimulation,), {"world_class": world})


TWO_PHASE_MUTATIONS: tuple[Mutation, ...] = (
    Mutation("naive", "the first text: no ballots, uncommitted values are overwritten", NaiveSimulation, True, 100),
    Mutation("ack before sync", "messages leave before the sync they depend on", _with_world(AckBeforeSyncWorld), True),
    Mutation("quorum n/2", "half of the voters are enough", _with_core(HalfQuorum), True),
    Mutation("adopt one random promise", "not the freshest log of a quorum", _with_core(AdoptRandomPromise), True),
    Mutation("no cut at the stamp", "leftovers stay behind the match", _with_core(NoCutAtStamp), True),
    Mutation("no previous-entry check", "entries are stored wherever they fit", _with_core(NoPreviousEntryCheck), True),
    Mutation("stamp on the first piece", "before the whole take-over log is here", _with_core(StampOnFirstPiece), True),
    Mutation("count an unstamped peer", "a quorum of copies that nobody need find", _with_core(CountUnstamped), True),
    Mutation("forget promises", "a promise is not written down", _with_core(ForgetPromises)),
    Mutation("damage is absence", "a log that lost entries votes like a short one", _with_core(DamageIsAbsence)),
    Mutation(
        "repaired too early",
        "a damaged log counts before it is whole again",
        _with_core(RepairedTooEarly, DamageWeather),
    ),
    Mutation("answers outlive questions", "a stamp from a claim given up", _with_core(AnswersOutliveQuestions)),
    Mutation("unconfirmed reads", "a coordinator trusts that it still is one", _with_core(UnconfirmedReads)),
    Mutation("commit what was not matched", "the cursor is believed for any entry", _with_core(CommitUnmatched)),
    Mutation("many members at once", "changes that share no voter", _with_core(ManyMembersAtOnce)),
    Mutation("wiped peer votes", "an emptied folder under its old name", _with_world(WipedPeerWorld)),
    Mutation("answer when stored here", "one disk is enough", _with_lane(AnswerWhenStored)),
    Mutation("unknown told as refused", "a lost coordinator says no", _with_lane(RefuseWhatIsUnknown)),
    Mutation("refusal not confirmed", "NOT_EQUAL by a coordinator that was replaced", _with_lane(UnconfirmedRefusal)),
    Mutation("expected against the committed end", "entries in flight do not count", _with_lane(CommittedEndOnly)),
    Mutation("write ids forgotten", "a retry is a new write", _with_lane(ForgetWriteIds)),
    Mutation("an old retry is a new write", "its write id may be forgotten", _with_lane(OldRetriesAreNew)),
    Mutation("merged writes share one outcome", "each hears of the whole record", _with_lane(OneOutcomeForAll)),
    Mutation("merged and shown twice", "a known write id in a merged record counts again", _with_lane(MergedTwice)),
    Mutation("whole at once", "a snapshot is taken for the messages before it", _with_lane(WholeAtOnce)),
    Mutation(
        "cursors go back", "a subscriber's cursor takes the last value, not the highest", _with_lane(CursorsGoBack)
    ),
    Mutation("snapshot without staged writes", "a restart forgets them", _with_lane(SnapshotWithoutTransactions)),
)
