"""One two-phase lane on one peer: the replication core, the state its entries build, and the clients who wait.

    request ──► check against the projection ──► append ──► committed ──► apply ──► answer
                 │ known write id: its outcome, or wait for the entry that is on its way
                 │ too old a retry to tell whether its write id was seen: unknown
                 │ refused (NOT_EQUAL, ...): a refusal is a read of the lane, so it is confirmed like one
                 │ small, while an entry waits for its sync: held, and appended with others (`merging`)
                 └ not the coordinator: forwarded to the one this peer hears, or OFFLINE

Pure like the cores it joins: time and requests come in, effects and answers come out. The peer process and the
simulator drive this same class. A request is a number the caller chose; its answer comes once, in `answers`. Call
`drain` after every input, `persisted` included: that is when held writes are appended.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import maxsize
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

from avow.errors import AvowError, Offline, Refused, UnknownQueue
from avow.limits import LOG_MEMORY_ENTRIES_MAX, LOG_MEMORY_SIZE_BYTES_MAX, WAITING_REQUESTS_MAX
from avow.peer.answers import LOST, Answer, Done, Refusal
from avow.peer.lane_reads import LOST_CODE, Asker, LaneReads
from avow.peer.merging import UNMERGEABLE, Held, shape_of
from avow.queue.ledger import Writes
from avow.queue.outcomes import Outcome
from avow.queue.projection import Known
from avow.queue.projection import Refusal as Foreseen
from avow.replication.effects import Effects, LaneImage
from avow.replication.membership import Members
from avow.replication.tuning import Tuning
from avow.replication.two_phase.core import COORDINATOR, TwoPhaseCore
from avow.replication.two_phase.log import Read
from avow.wire.messages import Entry, Forward, Forwarded, Kind, Message, ReadIndex, ReadIndexAnswer, Snapshot

Waiting: TypeAlias = tuple[Asker, bytes]  # and the write id it waits for, which may be one of many in an entry

FORWARD_WAIT_S: Final = 2.0  # after that the other peer's answer is not coming; the client repeats its write id


class Write(Struct, frozen=True, gc=False):
    """A client's write. `expected` -1: append wherever the lane ends.

    `mergeable`: a checked batch that may become part of a larger record. `age_ms`: how long ago the client first sent
    this write id; 0 for a first attempt.
    """

    kind: int
    write_id: bytes
    count: int = 0
    expected: int = -1
    created_ms: int = 0
    control: bytes = b""
    batch: bytes = b""
    mergeable: bool = False
    age_ms: int = 0


class Machine(Protocol):
    """What committed entries build: `QueueState` for a queue's lane, `MetadataState` for the metadata lane."""

    def apply(self, entry: Entry) -> Outcome: ...
    def snapshot(self) -> bytes: ...


class TwoPhaseLane(LaneReads):
    core_class: type[TwoPhaseCore] = TwoPhaseCore

    def __init__(
        self,
        *,
        me: int,
        lane: int,
        image: LaneImage,
        rng: Callable[[], float],
        tuning: Tuning,
        now: float,
        snapshot_every: int = 0,
        snapshot_bytes: int = 0,
        memory_entries: int = LOG_MEMORY_ENTRIES_MAX,
        memory_bytes: int = LOG_MEMORY_SIZE_BYTES_MAX,
        read: Read | None = None,
    ) -> None:
        """A snapshot is taken after so many entries or bytes (0: never); memory is bounded if `read` is there."""
        super().__init__(self.core_class(me=me, lane=lane, image=image, rng=rng, tuning=tuning, now=now, read=read))
        self._snapshot_every, self._snapshot_bytes = snapshot_every or maxsize, snapshot_bytes or maxsize
        self._memory_entries, self._memory_bytes = memory_entries, memory_bytes
        self._snapshot_at = self.core.log.base  # position of the newest snapshot,
        self._applied_bytes = 0  # and what was applied since
        self.on_applied: Callable[[Entry, Outcome], None] | None = None
        self._ballot = 0  # of the coordinator the waiting lists below belong to; 0: not coordinating
        self._writers: dict[int, list[Waiting]] = {}  # position -> who waits for it
        self._writers_count = 0  # all of them, those of held writes included
        self._held: Held[Asker] = Held()
        self._beside = self._handlers()
        self._restore(image.snapshot.state if image.snapshot else b"")

    # ------------------------------------------------------------------ inputs

    def _handlers(self) -> dict[type, Callable[..., None]]:
        """What is not for the core, and which method takes it: (source, message, now)."""
        return {
            Forward: self._on_forward,
            Forwarded: self._on_forwarded,
            ReadIndex: self._on_read_index,
            ReadIndexAnswer: self._on_index,
        }

    def receive(self, source: int, message: Message, now: float) -> None:
        handler = self._beside.get(type(message))
        if handler is not None:
            handler(source, message, now)
            return
        self.core.receive(source, message, now)
        self._follow_core()

    def tick(self, now: float) -> None:
        self.core.tick(now)
        self._follow_core()
        live = self.core.live_coordinator(now) if self._passed_on else 0
        for request, (coordinator, since) in list(self._passed_on.items()):
            if coordinator != live or now - since > FORWARD_WAIT_S:
                del self._passed_on[request]
                self.answers.append((request, LOST))

    def persisted(self, ticket: int) -> None:
        self.core.persisted(ticket)
        self._follow_core()

    def write(self, request: int, write: Write, now: float) -> None:
        """Store a batch or a command; the answer names the versions it got, or why not."""
        core = self.core
        coordinator = core.live_coordinator(now)
        if coordinator == core.me:
            self._write((0, request), write, now)
        elif coordinator and core.online(now) and len(self._passed_on) < WAITING_REQUESTS_MAX:
            self._passed_on[request] = (coordinator, now)
            entry = Entry(0, 0, write.kind, write.count, write.write_id, write.created_ms, write.control, write.batch)
            core.say(coordinator, Forward(request, write.expected, entry, write.age_ms, write.mergeable))
        else:
            self.answers.append((request, Refusal(Offline.code)))

    def change_members(self, request: int, wanted: Members) -> None:
        self._append_held()
        try:
            position = self.core.change_members(wanted)
        except AvowError as error:
            self.answers.append((request, Refusal(error.code)))
            return
        self._track(self.core.log.entry(position))
        self._wait(position, (0, request), b"")

    def propose(self, kind: int, control: bytes, *, write_id: bytes = b"", created_ms: int = 0) -> bool:
        """Coordinator only, for entries no client waits for (deadlines, lane ends); False when it cannot now."""
        if self.core.role != COORDINATOR:
            return False
        self._append_held()
        try:
            position = self.core.append(kind, count=0, write_id=write_id, created_ms=created_ms, control=control)
        except Refused:
            return False
        self._track(self.core.log.entry(position))
        return True

    def abandon(self) -> None:
        """The queue was deleted: whoever waits is told so. Nothing may be asked of the lane afterwards."""
        waiting, self._writers, self._writers_count = self._writers, {}, 0
        for asker in [asker for writers in waiting.values() for asker, _ in writers]:
            self._answer(asker, LOST)
        for asker in self._held.drop():
            self._answer(asker, Refusal(UnknownQueue.code))
        self._abandon_reads()

    def disk_full(self, *, full: bool) -> None:
        """Storage takes no entries (or does again): writes are refused, reads, promises and heartbeats go on."""
        self.core.full = full

    def drain(self) -> Effects | None:
        core = self.core
        if self._held.writes and core.log.end <= max(core.persisted_end, core.committed):
            self._append_held()
        return core.drain()

    # ------------------------------------------------------------------ writes

    def _write(self, asker: Asker, write: Write, now: float) -> None:
        core = self.core
        self._follow_core()
        if not core.online(now) or self._writers_count >= WAITING_REQUESTS_MAX:
            self._answer(asker, Refusal(Offline.code))
            return
        shape = shape_of(write)
        if shape == UNMERGEABLE:
            self._append_held()
        elif self._held.join(write.write_id, asker):
            self._writers_count += 1
            return
        known = self._foresee(write)
        unseen = known is None or isinstance(known, Foreseen)
        if unseen and write.age_ms and write.write_id and not self._would_know(write, now):
            self._answer(asker, LOST)  # neither a new write nor a refused one: it may have happened
        elif known is None:
            if shape == UNMERGEABLE:
                self._append(asker, write)
            else:
                self._hold(asker, write, shape)
        elif isinstance(known, Foreseen):
            self._refuse(asker, known)
        elif known.outcome is None:
            self._wait(known.position, asker, write.write_id)
        elif known.outcome.code:
            self._refuse(asker, Foreseen(known.outcome.code, 0, known.outcome.last_version))
        else:
            self._answer(asker, Done(known.outcome.first_version, known.outcome.last_version))

    def _append(self, asker: Asker, write: Write) -> None:
        try:
            position = self.core.append(
                write.kind,
                count=write.count,
                write_id=write.write_id,
                created_ms=write.created_ms,
                control=write.control,
                batch=write.batch,
            )
        except Refused as error:
            self._answer(asker, Refusal(error.code))
            return
        self._track(self.core.log.entry(position))
        self._wait(position, asker, write.write_id)

    def _wait(self, position: int, asker: Asker, write_id: bytes) -> None:
        self._writers.setdefault(position, []).append((asker, write_id))
        self._writers_count += 1

    def _hold(self, asker: Asker, write: Write, shape: int) -> None:
        """Refused now rather than later, if the lane takes nothing: so is then what follows it in this turn."""
        try:
            self.core.check_room()
        except Refused as error:
            self._answer(asker, Refusal(error.code))
            return
        if not self._held.has_room(write, shape):
            self._append_held()
        self._held.add(write, shape, asker)
        self._writers_count += 1

    def _append_held(self) -> None:
        if not self._held.writes:
            return
        merged, waiting = self._held.take()
        try:
            position = self.core.append(
                Kind.DATA,
                count=merged.count,
                write_id=merged.write_id,
                created_ms=merged.created_ms,
                batch=merged.batch,
            )
        except Refused as error:
            self._writers_count -= len(waiting)
            for asker, _ in waiting:
                self._answer(asker, Refusal(error.code))
            return
        self._track(self.core.log.entry(position), merged.writes)
        self._writers[position] = waiting

    def _on_forward(self, source: int, message: Forward, now: float) -> None:
        if self.core.role != COORDINATOR:
            self.core.say(source, Forwarded(message.request, Offline.code, 0, 0))
            return
        entry = message.entry
        write = Write(
            entry.kind,
            entry.write_id,
            entry.count,
            message.expected,
            entry.created_ms,
            entry.control,
            entry.batch,
            message.mergeable,
            message.age_ms,
        )
        self._write((source, message.request), write, now)

    def _on_forwarded(self, _source: int, message: Forwarded, _now: float) -> None:
        if self._passed_on.pop(message.request, None) is None:
            return
        if message.code == LOST_CODE:
            answer: Answer = LOST
        elif message.code:
            answer = Refusal(message.code, message.last_version)
        else:
            answer = Done(message.first_version, message.last_version)
        self.answers.append((message.request, answer))

    # ------------------------------------------------------------------ following the core

    def _follow_core(self) -> None:
        core = self.core
        if core.committed > self.applied:
            self._apply()
        if core.snapshot_wanted and self.applied > self._snapshot_at:
            self._take_snapshot()
        if core.reads_done:
            self._reads_confirmed()
        ballot = core.promised if core.role == COORDINATOR else 0
        if ballot != self._ballot:
            self._role_changed(ballot)

    def _apply(self) -> None:
        core = self.core
        if self.applied < core.log.base:  # a snapshot from another peer jumped over what was applied here
            assert core.snapshot is not None
            self._restore(core.snapshot.state)
            self.applied = self._snapshot_at = core.snapshot.position
            self._applied_bytes = 0
            self._jumped()
        for position in range(self.applied + 1, core.committed + 1):
            entry = core.log.entry(position)
            outcome = self._apply_entry(entry)
            self.applied = position
            self._applied_bytes += len(entry.batch)
            if self.on_applied is not None:
                self.on_applied(entry, outcome)
            waiting = self._writers.pop(position, None)
            if waiting is not None:
                self._writers_count -= len(waiting)
                self._tell(waiting, outcome, merged=not entry.write_id)
        self._after_apply()

    def _tell(self, waiting: list[Waiting], outcome: Outcome, *, merged: bool) -> None:
        for asker, write_id in waiting:
            own = self._outcome_of(write_id) if merged and write_id else outcome
            if own is None:
                self._answer(asker, LOST)
            elif own.code:
                self._answer(asker, Refusal(own.code, own.last_version))
            else:
                self._answer(asker, Done(own.first_version, own.last_version))

    def _after_apply(self) -> None:
        applied = self.applied
        if self._readers or self._confirmed:
            self._reached()
        if applied - self._snapshot_at >= self._snapshot_every or self._applied_bytes >= self._snapshot_bytes:
            self._take_snapshot()
        log = self.core.log
        if log.readable and (log.end - log.base > self._memory_entries or log.size_bytes > self._memory_bytes):
            surplus = log.surplus(max_entries=self._memory_entries, max_bytes=self._memory_bytes)
            self.core.forget(min(surplus, applied))

    def _take_snapshot(self) -> None:
        log, applied = self.core.log, self.applied
        members = log.members_as_of(applied)
        state = self.state.snapshot()
        self.core.compact(Snapshot(applied, log.origin(applied), members.voters, members.learners, state))
        self._snapshot_at, self._applied_bytes = applied, 0

    def _role_changed(self, ballot: int) -> None:
        """Another coordinator, or none: what waited here may or may not come to be."""
        self._ballot = ballot
        writers, self._writers, self._writers_count = self._writers, {}, 0
        for waiting in writers.values():
            for asker, _ in waiting:
                self._answer(asker, LOST)
        for asker in self._held.drop():  # never appended
            self._answer(asker, Refusal(Offline.code))
        self._drop_refusals()
        self._coordinating(self.core.log.slice(self.applied, self.core.log.end - self.applied) if ballot else None)

    # ------------------------------------------------------------------ what kind of lane it is

    state: Machine

    def _restore(self, snapshot: bytes) -> None:
        """Make `state` from a snapshot, or anew when it is empty."""
        raise TypeError(f"a lane with {len(snapshot)} bytes of state is a QueueLane or a MetadataLane")

    def _foresee(self, write: Write) -> Known | Foreseen | None:  # noqa: ARG002
        """The answer to a write before anything is appended; None: append it, its outcome will be the answer."""
        return None

    def _would_know(self, write: Write, now: float) -> bool:  # noqa: ARG002
        """Whether this write id would be known here, had it been stored since the client first sent it."""
        return True

    def _track(self, entry: Entry, writes: Writes = ()) -> None:
        """An entry was appended here, merged from these."""

    def _apply_entry(self, entry: Entry) -> Outcome:
        return self.state.apply(entry)

    def _jumped(self) -> None:
        """The state is another peer's now: entries were committed that were never applied here."""

    def _outcome_of(self, write_id: bytes) -> Outcome | None:  # noqa: ARG002
        """Of one write in an entry of several."""
        return None

    def _coordinating(self, uncommitted: tuple[Entry, ...] | None) -> None:
        """This peer coordinates from now on, with these entries in flight; None: it does not."""
