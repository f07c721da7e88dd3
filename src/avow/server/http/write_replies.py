"""Answers to writes: turns the answers of lanes into the answer of a request.

A write to one lane is the frequent case: `SingleLaneReply` turns the lane's answer into bytes without an object in
between. For a write to several lanes `MultiLaneReply` waits for all answers and combines them (`joined`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from avow.errors import is_transient
from avow.node.answers import LOST, Answer, Done, Refusal, Stored
from avow.server.http.error_reply import Reply, reply_of_answer
from avow.server.http.request import HttpRequest

if TYPE_CHECKING:
    from avow.node.lane.two_phase_lane import Write
    from avow.server.http.api import Api, Target

_DONE: Final = b'{"write_id":"%b","written":[{"lane":%d,"first_version":%d,"last_version":%d}]}'
_COORDINATORS_MAX: Final = 64
_coordinator_headers: Final[dict[int, bytes]] = {}


def coordinator_header(api: Api, number: int) -> bytes:
    """A header with the lane's coordinator, to which the next write should be sent; empty if none is known."""
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


class SingleLaneReply:
    """`number` is 0 for pub-sub, where a Stored answer gives the lane before the outcome comes."""

    __slots__ = ("_api", "_expected", "_lane", "_number", "_request", "_write_id", "node_request")

    def __init__(
        self, api: Api, request: HttpRequest, write_id: bytes, lane: int, number: int, expected: int | None
    ) -> None:
        self._api, self._request, self._write_id = api, request, write_id
        self._lane, self._number, self._expected = lane, number, expected
        self.node_request = 0

    def answered(self, answer: Answer) -> None:
        kind = type(answer)
        if kind is Done:
            body = _DONE % (
                self._write_id.hex().encode(),
                self._lane,
                answer.first_version,  # type: ignore[union-attr]
                answer.last_version,  # type: ignore[union-attr]
            )
            self._request.answer(200, body, coordinator_header(self._api, self._number) if self._number else b"")
        elif kind is Stored:
            self._lane = answer.lane  # type: ignore[union-attr]
        else:
            self._request.reply(self._refusal(answer))

    def gone(self) -> None:
        """The write continues."""

    def expired(self) -> None:
        self._api.peer.forget(self.node_request)
        self._request.reply(self._refusal(LOST))

    def _refusal(self, answer: Answer) -> Reply:
        details: dict[str, Any] = {"write_id": self._write_id.hex(), "lane": self._lane}
        if self._expected is not None:
            details["expected"] = self._expected
        return reply_of_answer(answer, details=details)


class MultiLaneReply:
    """Sends all writes at once. `shape` makes the body of a successful answer from (lane, Done) pairs."""

    __slots__ = ("_answers", "_api", "_details", "_lanes", "_left", "_node_requests", "_request", "_shape")

    def __init__(
        self,
        api: Api,
        request: HttpRequest,
        writes: Sequence[tuple[Target, Write]],
        *,
        details: dict[str, Any],
        shape: Callable[[list[tuple[int, Done]]], msgspec.Struct],
    ) -> None:
        self._api, self._request, self._details, self._shape = api, request, details, shape
        self._lanes = [target.lane for target, _ in writes]
        self._answers: list[Answer] = [LOST] * len(writes)
        self._left = len(writes)
        self._node_requests: list[int] = []
        request.watcher = self
        now = api.peer.now()
        for index, (target, write) in enumerate(writes):
            node_request = api.peer.expect(self._callback(index))
            self._node_requests.append(node_request)
            api.node.write(node_request, target.number, write, now)

    def _callback(self, index: int) -> Callable[[Answer], None]:
        def answered(answer: Answer) -> None:
            self._answers[index] = answer
            self._left -= 1
            if not self._left:
                self._finish()

        return answered

    def _finish(self) -> None:
        lanes = list(zip(self._lanes, self._answers, strict=True))
        answer, done = joined(lanes)
        if answer is None:
            self._api.answer(self._request, self._shape(done))
            return
        written = [{"lane": lane, "first_version": d.first_version, "last_version": d.last_version} for lane, d in done]
        details = {**self._details, "written": written} if written else self._details
        self._request.reply(reply_of_answer(answer, details=details, partly=bool(done)))

    def gone(self) -> None:
        """The writes continue."""

    def expired(self) -> None:
        for node_request in self._node_requests:
            self._api.peer.forget(node_request)
        self._finish()


def joined(answers: Sequence[tuple[int, Answer]]) -> tuple[Answer | None, list[tuple[int, Done]]]:
    """Combines the answers of several lanes: None when all are done, else the answer for the whole request.

    If the outcome of one lane is unknown, so is the whole. A refusal next to a write that is done makes it unknown too,
    because "nothing was stored" would be false, unless the refusal is final: then the client must get the refusal.
    """
    done = [(lane, answer) for lane, answer in answers if isinstance(answer, Done)]
    refusals = [answer for _, answer in answers if isinstance(answer, Refusal)]
    if len(done) == len(answers):
        return None, done
    if len(done) + len(refusals) < len(answers):
        return LOST, done
    final = [refusal for refusal in refusals if not is_transient(refusal.code)]
    if final or not done:
        return (final or refusals)[0], done
    return LOST, done
