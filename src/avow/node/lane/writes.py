"""Writes on the coordinator of a two-phase lane: requests that wait for an outcome, and writes held before appending.

    write ──► check against the machine ──► append ──► committed, applied: answered with its outcome
               │ known write id: answered with its outcome, or waits for its entry in flight
               │ a retry so old that its write id may have been forgotten: unknown
               │ refused (NOT_EQUAL, ...): a refusal is a read of the lane, so it is confirmed like one
               └ small, while an entry waits for its sync: held, and appended with others (`merging`)

A request is answered once, through `replies`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from avow.errors import AvowError, ContentDiffers, Offline, Refused, UnknownQueue
from avow.limits import WAITING_REQUESTS_MAX
from avow.node.answers import LOST, Answer, Done, Refusal
from avow.node.lane.machine import Machine
from avow.node.lane.reads import LaneReads
from avow.node.lane.requests import Asker, Waiting, Write
from avow.node.merging import UNMERGEABLE, Held, shape_of
from avow.queue.entry_outcome import EarlyRefusal, Outcome, repeated
from avow.replication.membership import Members
from avow.replication.two_phase.core import TwoPhaseCore
from avow.wire.messages import Kind

if TYPE_CHECKING:
    from avow.node.lane.two_phase_lane import Replies


class LaneWrites:
    def __init__(self, core: TwoPhaseCore, replies: Replies, machine: Machine, reads: LaneReads) -> None:
        self.replies = replies
        self._core, self._machine, self._reads = core, machine, reads
        self.waiting: dict[int, list[Waiting]] = {}  # position -> requests that wait for its outcome
        self._count = 0  # waiting requests, including those of held writes
        self.held: Held[Asker] = Held()

    # ------------------------------------------------------------------ requests

    def write(self, asker: Asker, write: Write, now: float) -> None:
        if not self._core.online(now) or self._count >= WAITING_REQUESTS_MAX:
            self.replies.answer(asker, Refusal(Offline.code))
            return
        shape = shape_of(write)
        if shape == UNMERGEABLE:
            self.append_held()
        elif self.held.join(write.write_id, asker):
            self._count += 1
            return
        known = self._machine.check_write(write)
        unseen = known is None or isinstance(known, EarlyRefusal)
        if unseen and write.age_ms and write.write_id and not self._machine.would_know(write, now):
            self.replies.answer(asker, LOST)  # the retry cannot be taken as new or refused: it may have happened
        elif known is None:
            if shape == UNMERGEABLE:
                self._append(asker, write)
            else:
                self._hold(asker, write, shape)
        elif isinstance(known, EarlyRefusal):
            self._reads.refuse(asker, known)
        elif known.outcome is None:
            self._wait(known.position, asker, write.write_id)
        elif known.outcome.code:
            self._reads.refuse(asker, EarlyRefusal(known.outcome.code, 0, known.outcome.last_version))
        else:
            self.replies.answer(asker, Done(known.outcome.first_version, known.outcome.last_version))

    def change_members(self, request: int, wanted: Members) -> None:
        self.append_held()
        try:
            position = self._core.leadership.change_members(wanted)
        except AvowError as error:
            self.replies.tell(request, Refusal(error.code))
            return
        self._machine.track(self._core.log.entry(position))
        self._wait(position, (0, request), b"")

    def propose(self, kind: int, control: bytes, *, write_id: bytes = b"", created_ms: int = 0) -> bool:
        """Append an entry that no client waits for; False: not possible now."""
        self.append_held()
        try:
            position = self._core.leadership.append(
                kind, count=0, write_id=write_id, created_ms=created_ms, control=control
            )
        except Refused:
            return False
        self._machine.track(self._core.log.entry(position))
        return True

    def _append(self, asker: Asker, write: Write) -> None:
        try:
            position = self._core.leadership.append(
                write.kind,
                count=write.count,
                write_id=write.write_id,
                created_ms=write.created_ms,
                control=write.control,
                batch=write.batch,
            )
        except Refused as error:
            self.replies.answer(asker, Refusal(error.code))
            return
        self._machine.track(self._core.log.entry(position))
        self._wait(position, asker, write.write_id)

    def _wait(self, position: int, asker: Asker, write_id: bytes) -> None:
        self.waiting.setdefault(position, []).append((asker, write_id))
        self._count += 1

    # ------------------------------------------------------------------ held

    def _hold(self, asker: Asker, write: Write, shape: int) -> None:
        """Refuse the write now if the lane cannot append; writes that follow it in the same turn are refused too."""
        try:
            self._core.leadership.check_room()
        except Refused as error:
            self.replies.answer(asker, Refusal(error.code))
            return
        if not self.held.has_room(write, shape):
            self.append_held()
        self.held.add(write, shape, asker)
        self._count += 1

    def flush(self) -> None:
        """At every drain while something is held: append it, unless an entry waits for its sync here."""
        state = self._core.state
        if state.log.end <= max(state.persisted_end, state.committed):
            self.append_held()

    def append_held(self) -> None:
        if not self.held.writes:
            return
        merged, waiting = self.held.take()
        try:
            position = self._core.leadership.append(
                Kind.DATA,
                count=merged.count,
                write_id=merged.write_id,
                created_ms=merged.created_ms,
                batch=merged.batch,
            )
        except Refused as error:
            self._count -= len(waiting)
            for asker, _ in waiting:
                self.replies.answer(asker, Refusal(error.code))
            return
        self._machine.track(self._core.log.entry(position), merged.writes)
        self.waiting[position] = waiting

    # ------------------------------------------------------------------ outcomes

    def applied(self, position: int, outcome: Outcome, *, merged: bool) -> list[tuple[Asker, Answer]]:
        """An entry with waiting requests was applied: their answers. `merged`: each of its writes has its own
        outcome."""
        waiting = self.waiting.pop(position)
        self._count -= len(waiting)
        if not merged:
            answer = _answer_of(outcome)
            return [(asker, answer) for asker, _ in waiting]
        return [(asker, self._answer_in_merged(write_id, outcome)) for asker, write_id in waiting]

    def _answer_in_merged(self, write_id: bytes, outcome: Outcome) -> Answer:
        """Without `write_id`: another peer merged the writes. If one of them is refused the answer is LOST, and the
        peer asks for each of them."""
        if not write_id:
            return LOST if outcome.code == ContentDiffers.code else _answer_of(outcome)
        found = self._machine.outcome_of(write_id)
        return _answer_of(None if found is None else repeated(Kind.DATA, found))

    def lose(self) -> None:
        """The coordinator changed: the entries in flight may or may not be committed."""
        for asker in self.take_waiting():
            self.replies.answer(asker, LOST)
        for asker in self.held.drop():  # these were never appended
            self.replies.answer(asker, Refusal(Offline.code))

    def abandon(self) -> None:
        """The queue was deleted."""
        for asker in self.take_waiting():
            self.replies.answer(asker, LOST)
        for asker in self.held.drop():
            self.replies.answer(asker, Refusal(UnknownQueue.code))

    def take_waiting(self) -> list[Asker]:
        waiting, self.waiting, self._count = self.waiting, {}, 0
        return [asker for writers in waiting.values() for asker, _ in writers]


def _answer_of(outcome: Outcome | None) -> Answer:
    """None: the lane has forgotten the write."""
    if outcome is None:
        return LOST
    if outcome.code:
        return Refusal(outcome.code, outcome.last_version)
    return Done(outcome.first_version, outcome.last_version)
