"""One two-phase lane on one peer: the replication core, the state machine of its entries, and the waiting requests.

    request ──► writes, reads ──► append ──► core: committed ──► machine: apply ──► answer
                 └ not the coordinator: forwarded to the coordinator this peer knows, or OFFLINE

Pure like its core: time and requests come in, effects and answers go out. The caller chooses the number of a request;
its answer appears once, in `replies`. Call `drain` after every input, including `persisted`: it appends held writes.

The lane follows the core: it applies committed entries, takes snapshots, limits the log's memory, and detects a change
of coordinator. The machine decides what entries mean (`machine`, `queue_machine`, `metadata_machine`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import inf
from sys import maxsize
from typing import Final

from avow.errors import Offline
from avow.limits import LOG_MEMORY_ENTRIES_MAX, LOG_MEMORY_SIZE_BYTES_MAX, WAITING_REQUESTS_MAX
from avow.node.answers import LOST, Answer, Done, Refusal
from avow.node.lane.machine import Machine
from avow.node.lane.reads import LaneReads
from avow.node.lane.requests import Asker, Write
from avow.node.lane.roles import LANE_SHIPPED, LaneRoles
from avow.node.lane.writes import LaneWrites
from avow.queue.entry_outcome import Outcome
from avow.replication.durable import Synced
from avow.replication.effect_buffer import EffectBuffer
from avow.replication.effects import Effects
from avow.replication.membership import Members
from avow.replication.two_phase.core import COORDINATOR, TwoPhaseCore
from avow.replication.two_phase.state import Mark
from avow.wire.messages import Entry, Forward, Forwarded, Message, ReadIndex, ReadIndexAnswer, Snapshot

__all__ = ["TwoPhaseLane", "Write"]

FORWARD_WAIT_S: Final = 2.0  # without an answer for this long the request is LOST; the client repeats its write id
LOST_CODE: Final = "UNKNOWN"  # in a Forwarded: the coordinator cannot determine the outcome


class Replies:
    """Each request to a lane gets one answer: directly, or through the peer that forwarded it.

    A peer that does not coordinate forwards a request to the coordinator and remembers which peer it asked and when. If
    the answer does not come in time, or the coordinator changes, the answer is LOST. A client that stops waiting calls
    `cancel`.
    """

    __slots__ = ("_effects", "_passed_on", "answers")

    def __init__(self, effects: EffectBuffer[Mark]) -> None:
        self._effects = effects
        self.answers: list[tuple[int, Answer]] = []  # to local clients, until they are taken
        self._passed_on: dict[int, tuple[int, float]] = {}  # request -> (coordinator asked, when)

    def take_answers(self) -> list[tuple[int, Answer]]:
        answers = self.answers
        if answers:
            self.answers = []
        return answers

    def tell(self, request: int, answer: Answer) -> None:
        self.answers.append((request, answer))

    def answer(self, asker: Asker, answer: Answer) -> None:
        peer, request = asker
        if not peer:
            self.answers.append((request, answer))
        elif isinstance(answer, Done):
            self._effects.send(peer, Forwarded(request, "", answer.first_version, answer.last_version))
        elif isinstance(answer, Refusal):
            self._effects.send(peer, Forwarded(request, answer.code, 0, answer.cursor))
        else:
            self._effects.send(peer, Forwarded(request, LOST_CODE, 0, 0))

    # ------------------------------------------------------------------ forwarded

    @property
    def may_pass_on(self) -> bool:
        return len(self._passed_on) < WAITING_REQUESTS_MAX

    def pass_on(self, request: int, message: Forward | ReadIndex, *, coordinator: int, now: float) -> None:
        self._passed_on[request] = (coordinator, now)
        self._effects.send(coordinator, message)

    def is_awaited(self, request: int) -> bool:
        """Whether the request still waits for the other peer's answer, which has just arrived. Call it once."""
        return self._passed_on.pop(request, None) is not None

    def on_forwarded(self, _source: int, message: Forwarded, _now: float) -> None:
        if not self.is_awaited(message.request):
            return
        if message.code == LOST_CODE:
            self.tell(message.request, LOST)
        elif message.code:
            self.tell(message.request, Refusal(message.code, message.last_version))
        else:
            self.tell(message.request, Done(message.first_version, message.last_version))

    @property
    def passed_on(self) -> bool:
        return bool(self._passed_on)

    def expire(self, live_coordinator: int, now: float) -> None:
        for request, (coordinator, since) in list(self._passed_on.items()):
            if coordinator != live_coordinator or now - since > FORWARD_WAIT_S:
                del self._passed_on[request]
                self.tell(request, LOST)

    def cancel(self, request: int) -> None:
        self._passed_on.pop(request, None)

    def abandon(self) -> None:
        """The queue was deleted."""
        self.answers += [(request, LOST) for request in self._passed_on]
        self._passed_on = {}


class TwoPhaseLane:
    def __init__(
        self,
        *,
        core: TwoPhaseCore,
        machine: Machine,
        snapshot_every: int = 0,
        snapshot_bytes: int = 0,
        memory_entries: int = LOG_MEMORY_ENTRIES_MAX,
        memory_bytes: int = LOG_MEMORY_SIZE_BYTES_MAX,
        roles: LaneRoles = LANE_SHIPPED,
    ) -> None:
        """A snapshot is taken after this many entries or bytes (0: never). Memory is bounded if storage can be read."""
        self.core, self.machine = core, machine
        self.replies = Replies(core.effects)
        self.reads: LaneReads = roles.reads(core, self.replies, machine)
        self.writes: LaneWrites = roles.writes(core, self.replies, machine, self.reads)
        self.on_applied: Callable[[Entry, Outcome], None] | None = None
        self._snapshot_every, self._snapshot_bytes = snapshot_every or maxsize, snapshot_bytes or maxsize
        self._memory_entries, self._memory_bytes = memory_entries, memory_bytes
        self._snapshot_at = machine.applied  # position of the newest snapshot
        self._applied_bytes = 0  # since that snapshot
        self._ballot = 0  # under which this peer coordinates and requests wait here; 0: not coordinating
        self._beside = self._handlers()
        self.takes: Collection[type] = {*self._beside, *core.takes}

    def _handlers(self) -> dict[type, Callable[..., None]]:
        """Handlers of the messages that are not for the core: (source, message, now)."""
        return {
            Forward: self._on_forward,
            Forwarded: self.replies.on_forwarded,
            ReadIndex: self._on_read_index,
            ReadIndexAnswer: self.reads.on_index,
            **self.machine.handlers(),
        }

    # ------------------------------------------------------------------ inputs

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
        if self.replies.passed_on:
            self.replies.expire(self.core.live_coordinator(now), now)
        self.machine.tick(now)

    def wake_at(self) -> float:
        return -inf if self.replies.passed_on else min(self.core.wake_at(), self.machine.wake_at())

    def persisted(self, proof: Synced) -> None:
        self.core.persisted(proof)
        self._follow_core()

    def drain(self) -> Effects | None:
        if self.writes.held.writes:
            self.writes.flush()
        return self.core.drain()

    def disk_full(self, *, full: bool) -> None:
        """The disk is full, or has space again. While full, writes are refused; reads, promises and heartbeats go
        on."""
        self.core.state.disk_full(full=full)

    def listen(self, on_applied: Callable[[Entry, Outcome], None] | None) -> None:
        """Set the function that is called with each entry after it is applied."""
        self.on_applied = on_applied

    # ------------------------------------------------------------------ requests

    def write(self, request: int, write: Write, now: float) -> None:
        """Append a batch or a command; the answer has its versions, or the reason of the refusal."""
        core = self.core
        coordinator = core.live_coordinator(now)
        if coordinator == core.me:
            self._write((0, request), write, now)
        elif coordinator and core.online(now) and self.replies.may_pass_on:
            entry = Entry(0, 0, write.kind, write.count, write.write_id, write.created_ms, write.control, write.batch)
            forward = Forward(request, write.expected, entry, write.age_ms, write.mergeable)
            self.replies.pass_on(request, forward, coordinator=coordinator, now=now)
        else:
            self.replies.tell(request, Refusal(Offline.code))

    def _write(self, asker: Asker, write: Write, now: float) -> None:
        self._follow_core()
        self.writes.write(asker, write, now)
        if self.core.leadership.reads.done:  # a refusal was confirmed at once: this peer alone is a quorum
            self._follow_core()

    def read(self, request: int, now: float) -> None:
        """Linearizable: answers once this peer has applied everything that was acknowledged before the call."""
        self.reads.read(request, now)
        self._follow_core()

    def change_members(self, request: int, wanted: Members) -> None:
        """Coordinator only."""
        core = self.core
        refused = self.machine.refuse_members(core.members, wanted) if core.role == COORDINATOR else None
        if refused is not None:
            self.replies.tell(request, refused)
        else:
            self.writes.change_members(request, wanted)

    def propose(self, kind: int, control: bytes, *, write_id: bytes = b"", created_ms: int = 0) -> bool:
        """Coordinator only: append an entry that no client waits for (deadlines, lane ends). False: not possible
        now."""
        if self.core.role != COORDINATOR:
            return False
        return self.writes.propose(kind, control, write_id=write_id, created_ms=created_ms)

    def cancel(self, request: int) -> None:
        """The client does not wait any more. The answer may still come, and a write still happens."""
        self.replies.cancel(request)
        self.reads.cancel(request)

    def abandon(self) -> None:
        """The queue was deleted: answer all waiting requests. The lane must not be used afterwards."""
        self.core.abandon()
        self.writes.abandon()
        self.reads.abandon()
        self.replies.abandon()

    def _on_forward(self, source: int, message: Forward, now: float) -> None:
        if self.core.role != COORDINATOR:
            self.core.effects.send(source, Forwarded(message.request, Offline.code, 0, 0))
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

    def _on_read_index(self, source: int, message: ReadIndex, _now: float) -> None:
        self.reads.on_read_index(source, message)
        self._follow_core()

    # ------------------------------------------------------------------ following the core

    def _follow_core(self) -> None:
        core = self.core
        state = core.state
        if state.committed > self.machine.applied:
            self._apply()
        if state.snapshot_wanted and self.machine.applied > self._snapshot_at:
            self._take_snapshot()
        if core.leadership.reads.done:
            self.reads.confirmed(core.leadership.reads.take_done())
        ballot = core.leadership.ballot
        if ballot != self._ballot:
            self._role_changed(ballot)

    def _apply(self) -> None:
        state, machine, writes = self.core.state, self.machine, self.writes
        log, waiting = state.log, writes.waiting
        if machine.applied < log.base:  # a snapshot from another peer jumped over what was applied here
            assert state.snapshot is not None
            machine.restore(state.snapshot.state, state.snapshot.position)
            self._snapshot_at, self._applied_bytes = state.snapshot.position, 0
        for position in range(machine.applied + 1, state.committed + 1):
            entry = log.entry(position)
            outcome = machine.apply(entry)
            self._applied_bytes += len(entry.batch)
            if self.on_applied is not None:
                self.on_applied(entry, outcome)
            if position in waiting:
                for asker, answer in writes.applied(position, outcome, merged=not entry.write_id):
                    self.replies.answer(asker, answer)
        if self.reads.waiting:
            self.reads.reached()
        self._bound_log()

    def _bound_log(self) -> None:
        """Bound the log on disk with snapshots, and in memory by dropping applied entries."""
        applied, log = self.machine.applied, self.core.log
        if applied - self._snapshot_at >= self._snapshot_every or self._applied_bytes >= self._snapshot_bytes:
            self._take_snapshot()
        if log.readable and (log.end - log.base > self._memory_entries or log.size_bytes > self._memory_bytes):
            surplus = log.surplus(max_entries=self._memory_entries, max_bytes=self._memory_bytes)
            self.core.state.forget(min(surplus, applied))

    def _take_snapshot(self) -> None:
        log, applied = self.core.log, self.machine.applied
        members = log.members_as_of(applied)
        snapshot = Snapshot(applied, log.origin(applied), members.voters, members.learners, self.machine.snapshot())
        self.core.state.compact(snapshot)
        self._snapshot_at, self._applied_bytes = applied, 0
        self.machine.snapshot_taken()

    def _role_changed(self, ballot: int) -> None:
        """This peer became coordinator (ballot is not 0) or stopped."""
        self._ballot = ballot
        self.writes.lose()
        self.reads.drop_refusals()
        log, applied = self.core.log, self.machine.applied
        self.machine.lead(log.slice(applied, log.end - applied) if ballot else None)
