"""Writes that a client waits for, and how the answers of lanes become the answer of a request.

A write to one lane is the frequent case: `Single` turns what the lane says into bytes without any object in between. A
write to several lanes, or a decision about a transaction in several, is `Spread`: it waits for all of them and joins
what they said (`joined`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from avow.peer.answers import LOST, Answer, Done, Refusal, Stored
from avow.peer.http.errors import Reply, reply_of_answer
from avow.peer.http.exchange import Exchange

if TYPE_CHECKING:
    from avow.peer.http.api import Api, Target
    from avow.peer.lane import Write

_DONE: Final = b'{"write_id":"%b","written":[{"lane":%d,"first_version":%d,"last_version":%d}]}'
_COORDINATORS_MAX: Final = 64
_coordinator_headers: Final[dict[int, bytes]] = {}


def coordinator_header(api: Api, number: int) -> bytes:
    """Which peer to send the lane's next write to; nothing when none is heard."""
    lane = api.node.lanes.get(number)
    coordinator = lane.core.live_coordinator(api.peer.now()) if lane is not None else 0
    if not coordinator:
        return b""
    header = _coordinator_headers.get(coordinator)
    if header is None:
        if len(_coordinator_headers) >= _COORDINATORS_MAX:
            _coordinator_headers.clear()
        header = _coordinator_headers[coordinator] = b"avow-coordinator: %d\r\n" % coordinator
    return header


class Single:
    """`number` is 0 for pub-sub, where the lane is named by Stored before the outcome comes."""

    __slots__ = ("_api", "_exchange", "_expected", "_lane", "_number", "_write_id", "request")

    def __init__(
        self, api: Api, exchange: Exchange, write_id: bytes, lane: int, number: int, expected: int | None
    ) -> None:
        self._api, self._exchange, self._write_id = api, exchange, write_id
        self._lane, self._number, self._expected = lane, number, expected
        self.request = 0

    def hear(self, answer: Answer) -> None:
        kind = type(answer)
        if kind is Done:
            body = _DONE % (
                self._write_id.hex().encode(),
                self._lane,
                answer.first_version,  # type: ignore[union-attr]
                answer.last_version,  # type: ignore[union-attr]
            )
            self._exchange.answer(200, body, coordinator_header(self._api, self._number) if self._number else b"")
        elif kind is Stored:
            self._lane = answer.lane  # type: ignore[union-attr]
        else:
            self._exchange.reply(self._refusal(answer))

    def gone(self) -> None:
        """The write goes on."""

    def expired(self) -> None:
        self._api.peer.forget(self.request)
        self._exchange.reply(self._refusal(LOST))

    def _refusal(self, answer: Answer) -> Reply:
        details: dict[str, Any] = {"write_id": self._write_id.hex(), "lane": self._lane}
        if self._expected is not None:
            details["expected"] = self._expected
        return reply_of_answer(answer, details=details)


class Spread:
    """Sends all writes at once. `shape` makes the body of a success from (lane, Done) pairs."""

    __slots__ = ("_answers", "_api", "_details", "_exchange", "_lanes", "_left", "_requests", "_shape")

    def __init__(
        self,
        api: Api,
        exchange: Exchange,
        writes: Sequence[tuple[Target, Write]],
        *,
        details: dict[str, Any],
        shape: Callable[[list[tuple[int, Done]]], msgspec.Struct],
    ) -> None:
        self._api, self._exchange, self._details, self._shape = api, exchange, details, shape
        self._lanes = [target.lane for target, _ in writes]
        self._answers: list[Answer] = [LOST] * len(writes)
        self._left = len(writes)
        self._requests: list[int] = []
        exchange.watcher = self
        now = api.peer.now()
        for index, (target, write) in enumerate(writes):
            request = api.peer.expect(self._listener(index))
            self._requests.append(request)
            api.node.write(request, target.number, write, now)

    def _listener(self, index: int) -> Callable[[Answer], None]:
        def hear(answer: Answer) -> None:
            self._answers[index] = answer
            self._left -= 1
            if not self._left:
                self._finish()

        return hear

    def _finish(self) -> None:
        lanes = list(zip(self._lanes, self._answers, strict=True))
        answer, done = joined(lanes)
        if answer is None:
            self._api.answer(self._exchange, self._shape(done))
            return
        written = [{"lane": lane, "first_version": d.first_version, "last_version": d.last_version} for lane, d in done]
        details = {**self._details, "written": written} if written else self._details
        self._exchange.reply(reply_of_answer(answer, details=details))

    def gone(self) -> None:
        """What was sent goes on."""

    def expired(self) -> None:
        for request in self._requests:
            self._api.peer.forget(request)
        self._finish()


def joined(answers: Sequence[tuple[int, Answer]]) -> tuple[Answer | None, list[tuple[int, Done]]]:
    """What to say of several lanes: None when all are done, else the answer that stands for the whole.

    A lane that does not know whether it happened makes the whole unknown. So does a refusal beside something done,
    since "it did not happen" would be false, unless the refusal is final: then it is what the client must hear.
    """
    done = [(lane, answer) for lane, answer in answers if isinstance(answer, Done)]
    refusals = [answer for _, answer in answers if isinstance(answer, Refusal)]
    if len(done) == len(answers):
        return None, done
    if len(done) + len(refusals) < len(answers):
        return LOST, done
    final = [refusal for refusal in refusals if refusal.code not in _PASSING]
    if final or not done:
        return (final or refusals)[0], done
    return LOST, done


_PASSING: Final = frozenset({"OFFLINE", "BUSY", "TOO_MANY", "DISK_FULL", "MEMBERSHIP_BUSY"})
