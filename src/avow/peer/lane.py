"""One two-phase lane on one peer: the replication core, the state its entries build, and the clients who wait.

    request ──► check against the projection ──► append ──► committed ──► apply ──► answer
                 │ known write id: its outcome, or wait for the entry that is on its way
                 │ refused (NOT_EQUAL, ...): a refusal is a read of the lane, so it is confirmed like one
                 └ not the coordinator: forwarded to the one this peer hears, or OFFLINE

Pure like the cores it joins: time and requests come in, effects and answers come out. The peer process and the
simulator drive this same class. A request is a number the caller chose; its answer comes once, in `answers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

from avow.errors import AvowError, Offline, Refused
from avow.limits import WAITING_REQUESTS_MAX
from avow.peer.answers import LOST, Answer, Done, Refusal
from avow.queue.outcomes import Outcome
from avow.queue.projection import Known
from avow.queue.projection import Refusal as Foreseen
from avow.replication.effects import Effects, LaneImage
from avow.replication.membership import Members
from avow.replication.tuning import Tuning
from avow.replication.two_phase.core import COORDINATOR, TwoPhaseCore
from avow.replication.two_phase.log import Read
from avow.wire.messages import Entry, Forward, Forwarded, Message, ReadIndex, ReadIndexAnswer, Snapshot

Asker: TypeAlias = tuple[int, int]  # (0, request) of a client here, (peer, request) of one that a peer forwarded

LOST_CODE: Final = "UNKNOWN"  # in a Forwarded: the coordinator cannot know any more
FORWARD_WAIT_S: Final = 2.0  # after that the other peer's answer is not coming; the client repeats its write id


class Write(Struct, frozen=True, gc=False):
    """A client's write. `expected` -1: append wherever the lane ends."""

    kind: int
    write_id: bytes
    count: int = 0
    expected: int = -1
    created_ms: int = 0
    control: bytes = b""
    batch: bytes = b""


class Machine(Protocol):
    """What committed entries build: `QueueState` for a queue's lane, `MetadataState` for the metadata lane."""

    def apply(self, entry: Entry) -> Outcome: ...
    def snapshot(self) -> bytes: ...


class TwoPhaseLane:
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
        read: Read | None = None,
    ) -> None:
        self.core = self.core_class(me=me, lane=lane, image=image, rng=rng, tuning=tuning, now=now, read=read)
        self._snapshot_every = snapshot_every
        self.answers: list[tuple[int, Answer]] = []
        self.applied = self.core.log.base
        self.on_applied: Callable[[Entry, Outcome], None] | None = None
        self._ballot = 0  # of the coordinator the waiting lists below belong to; 0: not coordinating
        self._writers: dict[int, list[Asker]] = {}  # position -> who waits for it
        self._refusals: dict[int, tuple[Asker, Foreseen, int]] = {}  # read number -> (asker, refusal, position)
        self._readers: list[tuple[int, int]] = []  # (request, position to reach)
        self._at_least: list[tuple[int, int]] = []  # (request, version to reach)
        self._indexes: dict[int, Asker] = {}  # read number -> who asked for the cursor
        self._passed_on: dict[int, tuple[int, float]] = {}  # request -> (coordinator asked, when)
        self._confirmed: list[int] = []  # refusals confirmed, waiting for what they speak of to be applied
        self._number = 0
        self._restore(image.snapshot.state if image.snapshot else b"")

    # ------------------------------------------------------------------ inputs

    def receive(self, source: int, message: Message, now: float) -> None:
        kind = type(message)
        if kind is Forward:
            self._on_forward(source, message, now)  # type: ignore[arg-type]
        elif kind is Forwarded:
            self._on_forwarded(message)  # type: ignore[arg-type]
        elif kind is ReadIndex:
            self._on_read_index(source, message, now)  # type: ignore[arg-type]
        elif kind is ReadIndexAnswer:
            self._on_index(message)  # type: ignore[arg-type]
        else:
            self.core.receive(source, message, now)
            self._follow_core()

    def tick(self, now: float) -> None:
        self.core.tick(now)
        self._follow_core()
        for request, (_, since) in list(self._passed_on.items()):
            if now - since > FORWARD_WAIT_S:
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
        elif coordinator and core.online(now):
            self._passed_on[request] = (coordinator, now)
            entry = Entry(0, 0, write.kind, write.count, write.write_id, write.created_ms, write.control, write.batch)
            core.say(coordinator, Forward(request, write.expected, entry))
        else:
            self.answers.append((request, Refusal(Offline.code)))

    def read(self, request: int, now: float) -> None:
        """Linearizable: answered once this peer has applied everything that was acknowledged before the call."""
        core = self.core
        coordinator = core.live_coordinator(now)
        if coordinator == core.me:
            self._index((0, request))
        elif coordinator and core.online(now):
            self._passed_on[request] = (coordinator, now)
            core.say(coordinator, ReadIndex(request))
        else:
            self.answers.append((request, Refusal(Offline.code)))
        self._follow_core()

    def change_members(self, request: int, wanted: Members) -> None:
        try:
            position = self.core.change_members(wanted)
        except AvowError as error:
            self.answers.append((request, Refusal(error.code)))
            return
        self._track(self.core.log.entry(position))
        self._writers.setdefault(position, []).append((0, request))

    def propose(self, kind: int, control: bytes, *, write_id: bytes = b"", created_ms: int = 0) -> bool:
        """Coordinator only, for entries no client waits for (deadlines, lane ends); False when it cannot now."""
        if self.core.role != COORDINATOR:
            return False
        try:
            position = self.core.append(kind, count=0, write_id=write_id, created_ms=created_ms, control=control)
        except Refused:
            return False
        self._track(self.core.log.entry(position))
        return True

    def disk_full(self, *, full: bool) -> None:
        """Storage takes no entries (or does again): writes are refused, reads, promises and heartbeats go on."""
        self.core.full = full

    def drain(self) -> Effects | None:
        return self.core.drain()

    # ------------------------------------------------------------------ writes

    def _write(self, asker: Asker, write: Write, now: float) -> None:
        core = self.core
        self._follow_core()
        if not core.online(now) or len(self._writers) >= WAITING_REQUESTS_MAX:
            self._answer(asker, Refusal(Offline.code))
            return
        known = self._foresee(write)
        if known is None:
            self._append(asker, write)
        elif isinstance(known, Foreseen):
            self._refuse(asker, known)
        elif known.outcome is None:
            self._writers.setdefault(known.position, []).append(asker)
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
        self._writers[position] = [asker]

    def _refuse(self, asker: Asker, refusal: Foreseen) -> None:
        """It speaks of entries that may not be committed, by a coordinator that may be replaced: both are confirmed."""
        self._number += 1
        self._refusals[self._number] = (asker, refusal, self.core.log.end)
        self.core.read_index(self._number)
        self._follow_core()

    def _on_forward(self, source: int, message: Forward, now: float) -> None:
        if self.core.role != COORDINATOR:
            self.core.say(source, Forwarded(message.request, Offline.code, 0, 0))
            return
        entry = message.entry
        write = Write(
            entry.kind, entry.write_id, entry.count, message.expected, entry.created_ms, entry.control, entry.batch
        )
        self._write((source, message.request), write, now)

    def _on_forwarded(self, message: Forwarded) -> None:
        if self._passed_on.pop(message.request, None) is None:
            return
        if message.code == LOST_CODE:
            answer: Answer = LOST
        elif message.code:
            answer = Refusal(message.code, message.last_version)
        else:
            answer = Done(message.first_version, message.last_version)
        self.answers.append((message.request, answer))

    def _answer(self, asker: Asker, answer: Answer) -> None:
        peer, request = asker
        if not peer:
            self.answers.append((request, answer))
        elif isinstance(answer, Done):
            self.core.say(peer, Forwarded(request, "", answer.first_version, answer.last_version))
        elif isinstance(answer, Refusal):
            self.core.say(peer, Forwarded(request, answer.code, 0, answer.cursor))
        else:
            self.core.say(peer, Forwarded(request, LOST_CODE, 0, 0))

    # ------------------------------------------------------------------ reads

    def _index(self, asker: Asker) -> None:
        self._number += 1
        self._indexes[self._number] = asker
        self.core.read_index(self._number)

    def _on_read_index(self, source: int, message: ReadIndex, _now: float) -> None:
        if self.core.role == COORDINATOR:
            self._index((source, message.request))
            self._follow_core()
        else:
            self.core.say(source, ReadIndexAnswer(message.request, -1))

    def _on_index(self, message: ReadIndexAnswer) -> None:
        if self._passed_on.pop(message.request, None) is None:
            return
        if message.cursor < 0:
            self.answers.append((message.request, Refusal(Offline.code)))
        else:
            self._serve(message.request, message.cursor)

    def _serve(self, request: int, position: int) -> None:
        if self.applied >= position:
            self.answers.append((request, Done(1, self.visible_end)))
        else:
            self._readers.append((request, position))

    def _reads_confirmed(self) -> None:
        done, self.core.reads_done = self.core.reads_done, []
        for number, cursor in done:
            if number in self._refusals:
                self._refusal_confirmed(number, confirmed=cursor >= 0)
                continue
            asker = self._indexes.pop(number)
            peer, request = asker
            if peer:
                self.core.say(peer, ReadIndexAnswer(request, cursor))
            elif cursor < 0:
                self.answers.append((request, Refusal(Offline.code)))
            else:
                self._serve(request, cursor)

    def _refusal_confirmed(self, number: int, *, confirmed: bool) -> None:
        asker, refusal, position = self._refusals[number]
        if not confirmed:  # nothing was stored, and why is not certain any more
            del self._refusals[number]
            self._answer(asker, Refusal(Offline.code))
        elif self.applied >= position:
            del self._refusals[number]
            self._answer(asker, Refusal(refusal.code, refusal.last_version))
        else:
            self._refusals[number] = (asker, refusal, position)
            self._confirmed.append(number)

    # ------------------------------------------------------------------ following the core

    def _follow_core(self) -> None:
        core = self.core
        if core.committed > self.applied:
            self._apply()
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
            self.applied = core.log.base
        for position in range(self.applied + 1, core.committed + 1):
            entry = core.log.entry(position)
            outcome = self.state.apply(entry)
            self.applied = position
            if self.on_applied is not None:
                self.on_applied(entry, outcome)
            waiting = self._writers.pop(position, None)
            if waiting is not None:
                self._tell(waiting, outcome)
        self._after_apply()

    def _tell(self, waiting: list[Asker], outcome: Outcome) -> None:
        answer: Answer
        if outcome.code:
            answer = Refusal(outcome.code, outcome.last_version)
        else:
            answer = Done(outcome.first_version, outcome.last_version)
        for asker in waiting:
            self._answer(asker, answer)

    def _after_apply(self) -> None:
        applied = self.applied
        if self._readers:
            ready = [request for request, position in self._readers if position <= applied]
            if ready:
                self._readers = [item for item in self._readers if item[1] > applied]
                self.answers += [(request, Done(1, self.visible_end)) for request in ready]
        if self._confirmed:
            waiting, self._confirmed = self._confirmed, []
            for number in waiting:
                if number in self._refusals:
                    self._refusal_confirmed(number, confirmed=True)
        if self._snapshot_every and applied - self.core.log.base >= self._snapshot_every:
            self._take_snapshot()

    def _take_snapshot(self) -> None:
        log, applied = self.core.log, self.applied
        members = log.members_as_of(applied)
        state = self.state.snapshot()
        self.core.compact(Snapshot(applied, log.origin(applied), members.voters, members.learners, state))

    def _role_changed(self, ballot: int) -> None:
        """Another coordinator, or none: what waited here may or may not come to be."""
        self._ballot = ballot
        writers, self._writers = self._writers, {}
        for waiting in writers.values():
            for asker in waiting:
                self._answer(asker, LOST)
        refusals, self._refusals, self._confirmed = self._refusals, {}, []
        for asker, _, _ in refusals.values():
            self._answer(asker, Refusal(Offline.code))
        self._coordinating(self.core.log.slice(self.applied, self.core.log.end - self.applied) if ballot else None)

    # ------------------------------------------------------------------ what kind of lane it is

    state: Machine

    def _restore(self, snapshot: bytes) -> None:
        """Make `state` from a snapshot, or anew when it is empty."""
        raise TypeError(f"a lane with {len(snapshot)} bytes of state is a QueueLane or a MetadataLane")

    def _foresee(self, write: Write) -> Known | Foreseen | None:  # noqa: ARG002
        """The answer to a write before anything is appended; None: append it, its outcome will be the answer."""
        return None

    def _track(self, entry: Entry) -> None:
        """An entry was appended here."""

    def _coordinating(self, uncommitted: tuple[Entry, ...] | None) -> None:
        """This peer coordinates from now on, with these entries in flight; None: it does not."""

    @property
    def visible_end(self) -> int:
        """What a read reports as reached."""
        return self.applied
