"""Requests that wait at a two-phase lane until a position or version is reached: reads, and refusals of writes.

    linearizable read   waits for the coordinator's cursor, confirmed by a quorum, to be applied here
    at least a version  waits for the version to be visible here
    a refusal           NOT_EQUAL and similar answers depend on the lane's end, so they are confirmed like a read

A peer that does not coordinate asks the coordinator (ReadIndex). Every list is bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from avow.errors import Offline, TooMany, UnknownQueue
from avow.limits import WAITING_REQUESTS_MAX
from avow.node.answers import Done, Refusal
from avow.node.lane.machine import Machine
from avow.node.lane.requests import Asker
from avow.queue.entry_outcome import EarlyRefusal
from avow.replication.two_phase.core import COORDINATOR, TwoPhaseCore
from avow.wire.messages import ReadIndex, ReadIndexAnswer

if TYPE_CHECKING:
    from avow.node.lane.two_phase_lane import Replies


class LaneReads:
    """After `read`, `refuse` and `on_read_index`, pass what the core has confirmed to `confirmed`."""

    def __init__(self, core: TwoPhaseCore, replies: Replies, machine: Machine) -> None:
        self.replies = replies
        self._core, self._machine = core, machine
        self._refusals: dict[int, tuple[Asker, EarlyRefusal, int]] = {}  # read number -> (asker, refusal, position)
        self._indexes: dict[int, Asker] = {}  # read number -> asker
        self._readers: list[tuple[int, int]] = []  # (request, position to reach)
        self._at_least: list[tuple[int, int]] = []  # (request, version to reach)
        self._confirmed: list[int] = []  # confirmed refusals whose position is not applied yet
        self._number = 0

    # ------------------------------------------------------------------ requests

    def read(self, request: int, now: float) -> None:
        """Linearizable: answers once this peer has applied everything that was acknowledged before the call."""
        core = self._core
        coordinator = core.live_coordinator(now)
        if coordinator == core.me:
            self._index((0, request))
        elif coordinator and core.online(now) and self.replies.may_pass_on:
            self.replies.pass_on(request, ReadIndex(request), coordinator=coordinator, now=now)
        else:
            self.replies.tell(request, Refusal(Offline.code))

    def read_at_least(self, request: int, version: int) -> None:
        """Answers once `version` is visible here: a reader sees its own writes, and never less than before."""
        end = self._machine.visible_end
        if end >= version:
            self.replies.tell(request, Done(1, end))
        elif len(self._at_least) >= WAITING_REQUESTS_MAX:
            self.replies.tell(request, Refusal(TooMany.code))
        else:
            self._at_least.append((request, version))

    def refuse(self, asker: Asker, refusal: EarlyRefusal) -> None:
        """The refusal may depend on uncommitted entries, and this coordinator may be deposed: confirm both first."""
        self._number += 1
        self._refusals[self._number] = (asker, refusal, self._core.log.end)
        self._core.leadership.read_index(self._number)

    def _index(self, asker: Asker) -> None:
        self._number += 1
        self._indexes[self._number] = asker
        self._core.leadership.read_index(self._number)

    def on_read_index(self, source: int, message: ReadIndex) -> None:
        if self._core.role == COORDINATOR:
            self._index((source, message.request))
        else:
            self._core.effects.send(source, ReadIndexAnswer(message.request, -1))

    def on_index(self, _source: int, message: ReadIndexAnswer, _now: float) -> None:
        if not self.replies.is_awaited(message.request):
            return
        if message.cursor < 0:
            self.replies.tell(message.request, Refusal(Offline.code))
        else:
            self._serve(message.request, message.cursor)

    def cancel(self, request: int) -> None:
        self._readers = [item for item in self._readers if item[0] != request]
        self._at_least = [item for item in self._at_least if item[0] != request]

    # ------------------------------------------------------------------ confirmed by a quorum

    def confirmed(self, done: list[tuple[int, int]]) -> None:
        """(read number, cursor); -1: this peer no longer coordinates."""
        for number, cursor in done:
            if number in self._refusals:
                self._refusal_confirmed(number, confirmed=cursor >= 0)
                continue
            peer, request = self._indexes.pop(number)
            if peer:
                self._core.effects.send(peer, ReadIndexAnswer(request, cursor))
            elif cursor < 0:
                self.replies.tell(request, Refusal(Offline.code))
            else:
                self._serve(request, cursor)

    def _serve(self, request: int, position: int) -> None:
        if self._machine.applied >= position:
            self.replies.tell(request, Done(1, self._machine.visible_end))
        elif len(self._readers) >= WAITING_REQUESTS_MAX:
            self.replies.tell(request, Refusal(TooMany.code))
        else:
            self._readers.append((request, position))

    def _refusal_confirmed(self, number: int, *, confirmed: bool) -> None:
        asker, refusal, position = self._refusals[number]
        if not confirmed:  # nothing was stored, but the reason for the refusal may no longer hold
            del self._refusals[number]
            self.replies.answer(asker, Refusal(Offline.code))
        elif self._machine.applied >= position:
            del self._refusals[number]
            self.replies.answer(asker, Refusal(refusal.code, refusal.last_version))
        else:
            self._confirmed.append(number)

    # ------------------------------------------------------------------ reached

    @property
    def waiting(self) -> bool:
        """Whether any request waits for more entries to be applied."""
        return bool(self._at_least or self._readers or self._confirmed)

    def reached(self) -> None:
        """Answer the requests whose position or version is reached."""
        applied, end = self._machine.applied, self._machine.visible_end
        for request, version in self._at_least:
            if version <= end:
                self.replies.tell(request, Done(1, end))
        self._at_least = [item for item in self._at_least if item[1] > end]
        for request, position in self._readers:
            if position <= applied:
                self.replies.tell(request, Done(1, end))
        self._readers = [item for item in self._readers if item[1] > applied]
        waiting, self._confirmed = self._confirmed, []
        for number in waiting:
            if number in self._refusals:
                self._refusal_confirmed(number, confirmed=True)

    # ------------------------------------------------------------------ cancelled

    def drop_refusals(self) -> None:
        """The coordinator changed: the entries that the refusals depend on may never be committed."""
        refusals, self._refusals, self._confirmed = self._refusals, {}, []
        for asker, _, _ in refusals.values():
            self.replies.answer(asker, Refusal(Offline.code))

    def abandon(self) -> None:
        """The queue was deleted: refuse all waiting requests."""
        gone = Refusal(UnknownQueue.code)
        refused = [asker for asker, _, _ in self._refusals.values()]
        for peer, request in (*refused, *self._indexes.values()):
            if not peer:
                self.replies.tell(request, gone)
        for request, _ in self._readers + self._at_least:
            self.replies.tell(request, gone)
        self._refusals, self._indexes = {}, {}
        self._readers, self._at_least, self._confirmed = [], [], []
