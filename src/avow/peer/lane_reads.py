"""Those who wait at a two-phase lane for something to be reached: readers, and writers about to be refused.

    linearizable read   the coordinator's cursor, confirmed by a quorum; answered when it is applied here
    at least a version  answered when it is visible here
    a refusal           NOT_EQUAL and the like speak of the lane's end, so they are confirmed and waited for like a read

A peer that does not coordinate asks the one that does (ReadIndex), and passes writes on to it; `_passed_on` remembers
whom it asked and when. Every list is bounded, and whoever gives up waiting says so (`cancel`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, TypeAlias

from avow.errors import Offline, TooMany, UnknownQueue
from avow.limits import WAITING_REQUESTS_MAX
from avow.peer.answers import LOST, Answer, Done, Refusal
from avow.queue.projection import Refusal as Foreseen
from avow.replication.two_phase.core import COORDINATOR, TwoPhaseCore
from avow.wire.messages import Forwarded, ReadIndex, ReadIndexAnswer

Asker: TypeAlias = tuple[int, int]  # (0, request) of a client here, (peer, request) of one that a peer forwarded

LOST_CODE: Final = "UNKNOWN"  # in a Forwarded: the coordinator cannot know any more


class LaneReads(ABC):
    def __init__(self, core: TwoPhaseCore) -> None:
        self.core = core
        self.answers: list[tuple[int, Answer]] = []
        self.applied = core.log.base
        self._refusals: dict[int, tuple[Asker, Foreseen, int]] = {}  # read number -> (asker, refusal, position)
        self._readers: list[tuple[int, int]] = []  # (request, position to reach)
        self._at_least: list[tuple[int, int]] = []  # (request, version to reach)
        self._indexes: dict[int, Asker] = {}  # read number -> who asked for the cursor
        self._passed_on: dict[int, tuple[int, float]] = {}  # request -> (coordinator asked, when)
        self._confirmed: list[int] = []  # refusals confirmed, waiting for what they speak of to be applied
        self._number = 0

    def read(self, request: int, now: float) -> None:
        """Linearizable: answered once this peer has applied everything that was acknowledged before the call."""
        core = self.core
        coordinator = core.live_coordinator(now)
        if coordinator == core.me:
            self._index((0, request))
        elif coordinator and core.online(now) and len(self._passed_on) < WAITING_REQUESTS_MAX:
            self._passed_on[request] = (coordinator, now)
            core.say(coordinator, ReadIndex(request))
        else:
            self.answers.append((request, Refusal(Offline.code)))
        self._follow_core()

    def cancel(self, request: int) -> None:
        """Nobody waits for this answer any more; it may come all the same. What was to be written is written."""
        self._passed_on.pop(request, None)
        self._readers = [item for item in self._readers if item[0] != request]
        self._at_least = [item for item in self._at_least if item[0] != request]

    def _refuse(self, asker: Asker, refusal: Foreseen) -> None:
        """It speaks of entries that may not be committed, by a coordinator that may be replaced: both are confirmed."""
        self._number += 1
        self._refusals[self._number] = (asker, refusal, self.core.log.end)
        self.core.read_index(self._number)
        self._follow_core()

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

    def _on_index(self, _source: int, message: ReadIndexAnswer, _now: float) -> None:
        if self._passed_on.pop(message.request, None) is None:
            return
        if message.cursor < 0:
            self.answers.append((message.request, Refusal(Offline.code)))
        else:
            self._serve(message.request, message.cursor)

    def _serve(self, request: int, position: int) -> None:
        if self.applied >= position:
            self.answers.append((request, Done(1, self.visible_end)))
        elif len(self._readers) >= WAITING_REQUESTS_MAX:
            self.answers.append((request, Refusal(TooMany.code)))
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

    def _reached(self) -> None:
        """More was applied: some may have waited for it."""
        applied = self.applied
        ready = [request for request, position in self._readers if position <= applied]
        if ready:
            self._readers = [item for item in self._readers if item[1] > applied]
            self.answers += [(request, Done(1, self.visible_end)) for request in ready]
        waiting, self._confirmed = self._confirmed, []
        for number in waiting:
            if number in self._refusals:
                self._refusal_confirmed(number, confirmed=True)

    def _drop_refusals(self) -> None:
        """Another coordinator, or none: what they spoke of may not come to be."""
        refusals, self._refusals, self._confirmed = self._refusals, {}, []
        for asker, _, _ in refusals.values():
            self._answer(asker, Refusal(Offline.code))

    def _abandon_reads(self) -> None:
        """The queue is gone, and nothing will be reached any more."""
        gone = Refusal(UnknownQueue.code)
        refused = [asker for asker, _, _ in self._refusals.values()]
        for asker in [asker for asker in (*refused, *self._indexes.values()) if not asker[0]]:
            self._answer(asker, gone)
        self.answers += [(request, gone) for request, _ in self._readers + self._at_least]
        self.answers += [(request, LOST) for request in self._passed_on]
        self._refusals, self._indexes, self._passed_on = {}, {}, {}
        self._readers, self._at_least, self._confirmed = [], [], []

    @property
    def visible_end(self) -> int:
        """What a read reports as reached."""
        return self.applied

    @abstractmethod
    def _follow_core(self) -> None:
        """Apply what was committed, answer what was confirmed, notice who coordinates."""
