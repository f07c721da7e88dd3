"""How channel code meets the node: an error boundary around answers, and requests that are retried until decided.

Answers of the node and timers call channel code in the middle of the peer's own work; an error there must not end the
peer. An AvowError ends the channel and is sent to its client. An unexpected error also ends the channel, and is logged.

Idempotent requests, such as joining, fencing a lane or moving a cursor, are retried after a transient refusal, or when
no answer came. If that lasts too long the channel ends, so that its client tries another peer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from avow.errors import AvowError
from avow.node.answers import LOST, Answer, error_of_answer
from avow.node_client import NodeWriter, step_of_answer
from avow.writer.steps import Pauses, Request, Settings, Step, Verdict

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.server.process import Peer


PATIENCE_S: Final = 5.0
_SETTINGS: Final = Settings(window=1 << 16, pauses=Pauses(first_s=0.05, max_s=0.5), waits_for_answer=True)
log: Final = logging.getLogger("avow.channels")


def guarded(channel: Channel, work: Callable[..., None], *arguments: Any) -> None:
    if channel.ended:
        return
    try:
        work(*arguments)
    except AvowError as error:
        channel.fail(error)
    except Exception:
        log.exception("internal error in a channel, which is closed now: %s", work)
        channel.fail(AvowError("internal error of this peer; what was not acknowledged may have taken effect"))


class RetriedRequest(Request):
    """`ask` gets the number of each attempt; `decided` gets the answer, Done or a refusal that is not transient."""

    __slots__ = ("answer", "ask", "decided")

    def __init__(self, ask: Callable[[int], None], decided: Callable[[Answer], None], *, deadline: float) -> None:
        super().__init__(deadline=deadline)
        self.ask, self.decided = ask, decided
        self.answer: Answer = LOST


class RetriedRequests:
    """The requests of one channel. Any number may be in flight; they do not wait for each other."""

    def __init__(self, peer: Peer, channel: Channel) -> None:
        self._peer, self._channel = peer, channel
        self._writer: NodeWriter[RetriedRequest] = NodeWriter(
            peer, _SETTINGS, send=self._send, on_decided=self._decided, guard=partial(guarded, channel)
        )

    def begin(self, ask: Callable[[int], None], decided: Callable[[Answer], None]) -> RetriedRequest:
        request = RetriedRequest(ask, decided, deadline=self._peer.now() + PATIENCE_S)
        self._writer.submit(request)
        return request

    def stop(self, request: RetriedRequest) -> None:
        """The request may still take effect."""
        self._writer.forget(request)

    def _send(self, request: RetriedRequest, now: float) -> None:  # noqa: ARG002
        request.ask(self._peer.expect(partial(guarded, self._channel, self._answered, request)))
        self._peer.wake()

    def _answered(self, request: RetriedRequest, answer: Answer) -> None:
        request.answer = answer
        self._writer.answered(request, step_of_answer(answer))

    def _decided(self, request: RetriedRequest, verdict: Verdict) -> None:
        if step_of_answer(request.answer) in (Step.DONE, Step.REFUSED):
            request.decided(request.answer)
        else:
            raise error_of_answer(LOST if verdict is Verdict.UNKNOWN else request.answer)
