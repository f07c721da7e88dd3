"""Deliberate mistakes in pub-sub replication, one at a time: the proof that its checkers see what matters.

Each class below breaks one rule by overriding the method that states it. `hunt` runs seeds until a checker objects.
A mutation that no seed exposes says either that the simulator is blind there or that the rule is not needed; both are
worth knowing. One rule is held twice: a fenced peer that goes on taking entries from the owner does no harm as long as
it counts none of them (no seed of 700 objected), so that mutation drops both halves.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from avow.errors import LaneEnded
from avow.peer.answers import Refusal
from avow.peer.lane import TwoPhaseLane, Write
from avow.peer.metadata_lane import MetadataLane
from avow.peer.pubsub_book import LaneBook
from avow.peer.pubsub_queue import PubSubQueue
from avow.peer.pubsub_run import PubSubPeer
from avow.replication.effects import Effects, LaneImage, Persist, SaveFence, SaveSnapshot, SaveTrim
from avow.replication.membership import Members
from avow.replication.pubsub.core import PubSubCore
from avow.replication.pubsub.lane import Lane
from avow.replication.pubsub.settle import Settlement
from avow.testing.hunt import Mutation
from avow.testing.pubsub import PubSubSimulation
from avow.testing.world import AckBeforeSyncWorld, World
from avow.wire.messages import Entry, Snapshot

# ------------------------------------------------------------------ cores


class HalfQuorum(PubSubCore):
    def _counted_cursor(self, lane: Lane) -> int:
        return sorted(lane.stored.values(), reverse=True)[max(len(lane.voters) // 2, 1) - 1]

    def _is_quorum(self, lane: Lane, answered: Container[int]) -> bool:
        return sum(voter in answered for voter in lane.voters) >= len(lane.voters) // 2


class FenceWithoutRestore(PubSubCore):
    def _end_is_held(self, settlement: Settlement) -> bool:
        return settlement.end >= 0


class EndFromOnePeer(PubSubCore):
    def _choose_end(self, held: dict[int, int]) -> int:
        return list(held.values())[int(self._rng() * len(held))]


class CountRefills(PubSubCore):
    def _own_count(self, lane: Lane, end: int) -> int:
        return 0 if lane.repairing else end


class CountDamagedAnswers(PubSubCore):
    def _counts_answer(self, *, damaged: bool) -> bool:  # noqa: ARG002
        return True


class FenceThatHoldsNothing(PubSubCore):
    def _accepts_from_owner(self, lane: Lane) -> bool:
        return lane.decided < 0

    def _own_count(self, lane: Lane, end: int) -> int:
        return 0 if lane.repairing else end


def _undone(op: Persist) -> Persist:
    """A fence without a decided end becomes an operation that changes nothing."""
    return SaveTrim(op.lane, 0) if isinstance(op, SaveFence) and op.end < 0 else op


class ForgetFences(PubSubCore):
    def drain(self) -> Effects | None:
        self._persist = [_undone(op) for op in self._persist]
        return super().drain()


class CloseTooEarly(PubSubCore):
    """An owner that stops proposes the end of what it wrote, committed or not."""

    def _try_close(self, lane: Lane) -> None:
        cursor, lane.cursor = lane.cursor, lane.end
        super()._try_close(lane)
        lane.cursor = cursor


class EndWithoutCut(PubSubCore):
    def _end(self, lane: Lane) -> None:
        end, lane.end = lane.end, min(lane.end, lane.decided)
        super()._end(lane)
        lane.end = end


class VotersFollowMembers(PubSubCore):
    def members(self, voters: Iterable[int], learners: Iterable[int]) -> None:
        super().members(voters, learners)
        for lane in self._active:
            lane.voters = tuple(voters)
            lane.stored = {voter: lane.stored.get(voter, 0) for voter in lane.voters}


class CountNonVoters(PubSubCore):
    def _counts_as_stored(self, lane: Lane, source: int) -> bool:
        return bool(lane.voters) and lane.stored.setdefault(source, 0) >= 0


class ReadableWhenStored(PubSubCore):
    def _show(self, lane: Lane) -> None:
        lane.cursor = max(lane.cursor, lane.durable)
        super()._show(lane)


class CountOwnBeforeSync(PubSubCore):
    def _take(self, lane: Lane, entries: Sequence[Entry]) -> None:
        super()._take(lane, entries)
        if lane is self._own:
            self._hear_stored(lane, self.me, lane.end)


class DamageIsAbsence(PubSubCore):
    def _restore(self, number: int, image: LaneImage) -> Lane:
        image.damaged_from = image.stamped = 0
        return super()._restore(number, image)


# ------------------------------------------------------------------ compositions


class ReopenAfterCrash(PubSubPeer):
    """A run goes by the number of the one before it, finds its lane open, and goes on where its disk ends."""

    def _next_run(self, last: int) -> int:
        return max(last, 1)


class RunNotDurable(PubSubPeer):
    """A run goes to work at once; its number reaches the disk with some later record."""

    _drains_left = 200

    def drain(self) -> Effects | None:
        if self._starting:
            self._late, self._saves = self._saves, []
            self._run_is_durable(self._starting)
        effects = super().drain()
        self._drains_left -= 1
        if effects is not None and effects.ticket and self._drains_left < 0:
            effects.persist, self._late = [*self._late, *effects.persist], []
        return effects


class RetryIsANewWrite(PubSubQueue):
    def _find_mine(self, lane: int, write_id: bytes) -> int:  # noqa: ARG002
        return 0


class AbsenceIsRefusal(PubSubQueue):
    """A lookup takes "not in my copy" for "not in the lane"."""

    def lookup(self, request: int, lane: int, write_id: bytes, *, since: int = 0) -> None:
        if lane in self._books and self._books[lane].window.find(write_id) is None:
            self.answers.append((request, Refusal(LaneEnded.code)))
        else:
            super().lookup(request, lane, write_id, since=since)


class AnswerWhenStored(PubSubQueue):
    """The owner acknowledges what its own disk holds."""

    def persisted(self, ticket: int) -> None:
        super().persisted(ticket)
        lane = self.core.own_lane
        if lane is not None:
            self._accepted(lane, self.core._lanes[lane].durable)


class ForgottenIsAbsent(PubSubQueue):
    """A lookup takes "not among the ids I remember" for "not in the lane"."""

    def _refuse_absent(self, request: int, lane: int, *, since: int) -> None:  # noqa: ARG002
        self.answers.append((request, Refusal(LaneEnded.code)))


class LateRetryIsNew(PubSubQueue):
    """An owner that has forgotten ids takes every id it does not know for a new one."""

    def _is_new(self, lane: int, write: Write, since: int) -> bool:  # noqa: ARG002
        return True


class StartAnywhere(PubSubQueue):
    """Asked for what was removed, a peer lets others start at its own last entry, removed or not."""

    def _start_of(self, lane: int) -> tuple[int, bytes] | None:
        book = self._books[lane]
        if not book.index.trimmed_to:
            return None
        late = LaneBook(self.bounds)
        late.shown, late.index.end = book.shown, book.index.end
        late.index.trimmed_to = late.window.forgotten_to = book.index.end
        return book.shown, late.snapshot()


class SnapshotAhead(PubSubQueue):
    """A snapshot says that everything this copy holds is committed."""

    def _keep(self, lane: int, book: LaneBook) -> None:
        copy = self.core._lanes[lane]
        if book.due and copy.durable > book.shown and self._extend(lane, copy.durable):
            ahead = LaneBook.restore(book.snapshot(), self.bounds)
            ahead.extend(copy.entries[book.shown - copy.base : copy.durable - copy.base])
            ahead.show(copy.entries[book.shown - copy.base : copy.durable - copy.base])
            snapshot = Snapshot(ahead.shown, 0, copy.voters, (), ahead.snapshot())
            self.core._save(copy, SaveSnapshot(lane, snapshot, reset=False))
        super()._keep(lane, book)


class MembersUnguarded(MetadataLane):
    def change_members(self, request: int, wanted: Members) -> None:
        TwoPhaseLane.change_members(self, request, wanted)


class MembersUnguardedPeer(PubSubPeer):
    metadata_class = MembersUnguarded


def _with_core(core: type[PubSubCore]) -> type[PubSubSimulation]:
    return _with_queue(type(f"{core.__name__}Queue", (PubSubQueue,), {"core_class": core}))


def _with_queue(queue: type[PubSubQueue]) -> type[PubSubSimulation]:
    return _with_peer(type(f"{queue.__name__}Peer", (PubSubPeer,), {"queue_class": queue}))


def _with_peer(peer: type[PubSubPeer]) -> type[PubSubSimulation]:
    return type(f"{peer.__name__}Simulation", (PubSubSimulation,), {"peer_class": peer})


def _with_world(world: type[World[PubSubPeer]]) -> type[PubSubSimulation]:
    return type(f"{world.__name__}Simulation", (PubSubSimulation,), {"world_class": world})


PUBSUB_MUTATIONS: tuple[Mutation, ...] = (
    Mutation("ack before sync", "messages leave before the sync they depend on", _with_world(AckBeforeSyncWorld), True),
    Mutation("quorum n/2", "half of the voters are enough", _with_core(HalfQuorum), True),
    Mutation("reopen a lane after a crash", "a run takes the last one's number", _with_peer(ReopenAfterCrash), True),
    Mutation("fence without re-store", "an end is proposed that one copy holds", _with_core(FenceWithoutRestore), True),
    Mutation("end from one random peer", "not the longest copy of a quorum", _with_core(EndFromOnePeer), True),
    Mutation("refills counted as stored", "copies made behind the fence commit entries", _with_core(CountRefills)),
    Mutation("damaged answer counted", "a copy that lost entries is heard", _with_core(CountDamagedAnswers)),
    Mutation("damage is absence", "a copy that lost entries is taken for a short one", _with_core(DamageIsAbsence)),
    Mutation("a fence that holds nothing", "a fenced peer takes and counts on", _with_core(FenceThatHoldsNothing)),
    Mutation("fences forgotten", "a fence is not written down: a restart takes it back", _with_core(ForgetFences)),
    Mutation("closed before committed", "an owner ends its lane at what it wrote", _with_core(CloseTooEarly)),
    Mutation("end without a cut", "copies keep what lies beyond the decided end", _with_core(EndWithoutCut)),
    Mutation("voters follow the membership", "an open lane counts among new voters", _with_core(VotersFollowMembers)),
    Mutation("non-voters counted", "learners and later members make up a quorum", _with_core(CountNonVoters)),
    Mutation("readable when stored", "entries are shown before a quorum has them", _with_core(ReadableWhenStored)),
    Mutation("own copy counted early", "the owner counts what it has not synced", _with_core(CountOwnBeforeSync)),
    Mutation("run not durable", "a lane is opened under a number that may be lost", _with_peer(RunNotDurable)),
    Mutation("answer when stored here", "one disk is enough", _with_queue(AnswerWhenStored)),
    Mutation("retry is a new write", "the owner does not look for the write id", _with_queue(RetryIsANewWrite)),
    Mutation(
        "absence is refusal", "a lookup concludes from a copy that is not complete", _with_queue(AbsenceIsRefusal)
    ),
    Mutation(
        "forgotten is absent", "an id that left the window counts as never written", _with_queue(ForgottenIsAbsent)
    ),
    Mutation("late retry is new", "an owner that forgot ids stores a write twice", _with_queue(LateRetryIsNew)),
    Mutation("start anywhere", "a late copy jumps over entries that were not removed", _with_queue(StartAnywhere)),
    Mutation("snapshot ahead", "a snapshot covers entries that may not be committed", _with_queue(SnapshotAhead)),
    Mutation("members unguarded", "voters change while older lanes are open", _with_peer(MembersUnguardedPeer)),
)
