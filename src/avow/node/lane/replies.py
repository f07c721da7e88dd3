"""Each request to a lane gets one answer: directly, or through the peer that forwarded it.

A peer that does not coordinate forwards a request to the coordinator and remembers which peer it asked and when. If
the answer does not come in time, or the coordinator changes, the answer is LOST. A client that stops waiting calls
`cancel`.
"""

from __future__ import annotations

from typing import Final

from avow.limits import WAITING_REQUESTS_MAX
from avow.node.answers import LOST, Answer, Done, Refusal
from avow.node.lane.requests import Asker
from avow.replication.effect_buffer import EffectBuffer
from avow.replication.two_phase.state import Mark
from avow.wire.messages import Forward, Forwarded, ReadIndex

FORWARD_WAIT_S: Final = 2.0  # without an answer for this long the request is LOST; the client repeats its write id
LOST_CODE: Final = "UNKNOWN"  # in a Forwarded: the coordinator cannot determine the outcome


class Replies:
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
