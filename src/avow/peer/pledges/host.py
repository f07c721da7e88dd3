"""What pledges need of the peer they live in, and how they ask its node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from avow.peer.answers import Answer, Lost, Refusal, Stored

if TYPE_CHECKING:
    from avow.peer.node import Node

PATIENCE_S: Final = 3.0  # with a lane that takes nothing
PAUSE_S: Final = 0.02  # before the same is asked again, doubled each time
PAUSE_S_MAX: Final = 0.25

#: What passes by itself: a coordinator is being found, a disk is being freed, others have to be answered first.
_PASSING: Final = frozenset({"OFFLINE", "NOT_COORDINATOR", "BUSY", "TOO_MANY", "DISK_FULL", "MEMBERSHIP_BUSY"})


class Host(Protocol):
    """A peer's process."""

    number: int

    @property
    def node(self) -> Node: ...
    def now(self) -> float: ...
    def now_ms(self) -> int: ...
    def expect(self, callback: Callable[[Answer], None]) -> int: ...
    def forget(self, request: int, *, lane: int | None = None) -> None: ...
    def wake(self) -> None: ...


async def ask(host: Host, start: Callable[[int], None], *, lane: int | None = None) -> Answer:
    """`start` is given the number of the request. What is no more waited for is cancelled, writes excepted."""
    future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def hear(answer: Answer) -> None:
        if not future.done() and type(answer) is not Stored:
            future.set_result(answer)

    request = host.expect(hear)
    start(request)
    host.wake()
    try:
        return await future
    finally:
        if not future.done() or future.cancelled():
            host.forget(request, lane=lane)


def is_passing(answer: Answer) -> bool:
    """Worth asking again, with the same write id."""
    return isinstance(answer, Lost) or (isinstance(answer, Refusal) and answer.code in _PASSING)
