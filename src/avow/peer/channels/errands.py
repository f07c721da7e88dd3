"""A request to the node that is repeated until it is decided.

For what may happen twice without harm: joining, fencing a lane, moving a cursor. A refusal that passes by itself and an
answer that did not come are followed by another try; when they go on for too long the channel ends, so that its client
finds a peer that can do better.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from avow.peer.channels.guards import guarded, is_passing
from avow.peer.http.errors import error_of_answer

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.peer.answers import Answer
    from avow.peer.process import Peer

PATIENCE_S: Final = 5.0
_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 0.5


class Errand:
    """`ask` is given the number of the request; `decided` the answer, which is Done or a refusal that does not pass."""

    __slots__ = ("_ask", "_channel", "_decided", "_pause_s", "_peer", "_since", "_timer", "over")

    def __init__(
        self, peer: Peer, channel: Channel, ask: Callable[[int], None], decided: Callable[[Answer], None]
    ) -> None:
        self._peer, self._channel, self._ask, self._decided = peer, channel, ask, decided
        self._since, self._pause_s = peer.now(), _PAUSE_S
        self._timer: asyncio.TimerHandle | None = None
        self.over = False
        self._try()

    def stop(self) -> None:
        """What was asked may still happen."""
        self.over = True
        if self._timer is not None:
            self._timer.cancel()

    def _try(self) -> None:
        self._timer = None
        self._ask(self._peer.expect(partial(guarded, self._channel, self._hear)))
        self._peer.wake()

    def _hear(self, answer: Answer) -> None:
        if self.over:
            return
        if not is_passing(answer):
            self.over = True
            self._decided(answer)
        elif self._peer.now() - self._since > PATIENCE_S:
            raise error_of_answer(answer)
        else:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._pause_s, guarded, self._channel, self._try)
            self._pause_s = min(2 * self._pause_s, _PAUSE_S_MAX)
