"""Requests from code in a peer's process to its own node: one attempt, or attempts until the request is decided.

A node answers every request, in the worst case with a refusal or "lost", so attempts need no timeout. `ask` makes one
attempt. `decided` repeats attempts for callers that await, `NodeWriter` for callers with callbacks (channels, the
pledge store in a lane); both are shells around `avow.writer`. The server and the pledge store in a lane both use this
module to reach the node, so it stands below both in the layers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from avow.errors import AvowError, is_transient
from avow.node.answers import Answer, Done, Lost, Reached, Refusal, Stored
from avow.writer.steps import Pauses, Request, Settings, Source, Step, Verdict, W
from avow.writer.writer import Writer

if TYPE_CHECKING:
    from avow.node.node import Node

T = TypeVar("T")

_TIMER_S_MIN: Final = 0.001  # the clock may be a little behind the timer
_ONE_REQUEST: Final = Settings(window=1, pauses=Pauses(first_s=0.02, max_s=0.25), waits_for_answer=True)


class Clock(Protocol):
    def now(self) -> float: ...


class Host(Clock, Protocol):
    """What callers of the node need from the peer's process."""

    number: int

    @property
    def node(self) -> Node: ...
    def now_ms(self) -> int: ...
    def expect(self, callback: Callable[[Answer], None]) -> int: ...
    def forget(self, request: int, *, lane: int | None = None) -> None: ...
    def wake(self) -> None: ...


async def ask(host: Host, start: Callable[[int], None], *, lane: int | None = None) -> Answer:
    """One attempt. `start` gets the number of the request. When the caller is cancelled the request is forgotten, but
    its write may still happen."""
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


def step_of_answer(answer: Answer) -> Step:
    """Maps an answer of the node to the writer's next step."""
    if isinstance(answer, Refusal):
        return Step.ELSEWHERE if is_transient(answer.code) else Step.REFUSED
    return Step.DONE if isinstance(answer, Done | Reached) else Step.UNCERTAIN


def is_passing(answer: Answer) -> bool:
    """Whether to repeat the request with the same write id."""
    return isinstance(answer, Lost) or (isinstance(answer, Refusal) and is_transient(answer.code))


def _call(work: Callable[[], None]) -> None:
    work()


class NodeWriter(Generic[W]):
    """`send` makes an attempt and passes its answer to `answered`. `on_decided` gets each verdict before anything new
    is sent. `guard` is the error boundary in which a timer's callback runs."""

    __slots__ = ("_clock", "_guard", "_on_decided", "_send", "_timer", "_wake_at", "_writer")

    def __init__(
        self,
        clock: Clock,
        settings: Settings,
        *,
        send: Callable[[W, float], None],
        on_decided: Callable[[W, Verdict], None],
        source: Source[W] | None = None,
        guard: Callable[[Callable[[], None]], None] = _call,
    ) -> None:
        self._clock, self._send, self._on_decided, self._guard = clock, send, on_decided, guard
        self._writer: Writer[W] = Writer(settings, source=source)
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = inf

    def submit(self, write: W) -> None:
        now = self._clock.now()
        self._writer.submit(write, now)
        self._pump(now)

    def answered(self, write: W, step: Step, error: AvowError | None = None) -> None:
        now = self._clock.now()
        self._writer.answered(write, step, now, error)
        self._pump(now)

    def forget(self, write: W) -> None:
        self._writer.forget(write)

    def pump(self) -> None:
        """Report what was decided, and send what may be sent now."""
        self._pump(self._clock.now())

    def _pump(self, now: float) -> None:
        ready = self._writer.drain(now)
        for one in ready.decided:
            self._on_decided(one.write, one.verdict)
        for write in ready.send:
            self._send(write, now)
        if ready.wake_at < self._wake_at:
            self.stop()
            self._wake_at = ready.wake_at
            delay_s = max(ready.wake_at - now, _TIMER_S_MIN)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._guard, self._woken)

    def stop(self) -> None:
        """Make no further attempt. Requests that were sent may still take effect."""
        self._wake_at = inf
        if self._timer is not None:
            self._timer.cancel()

    def _woken(self) -> None:
        self._timer, self._wake_at = None, inf
        self._writer.tick(self._clock.now())
        self.pump()


async def decided(
    clock: Clock, attempt: Callable[[], Awaitable[T]], judge: Callable[[T], Step], *, patience_s: float = inf
) -> tuple[T, Verdict]:
    """Repeat attempts until one decides, or for `patience_s`. Returns the last answer and the verdict."""
    writer: Writer[Request] = Writer(_ONE_REQUEST)
    request = Request(deadline=clock.now() + patience_s)
    writer.submit(request, clock.now())
    writer.drain(clock.now())  # the first attempt is made at once
    while True:
        answer = await attempt()
        writer.answered(request, judge(answer), clock.now())
        while not (ready := writer.drain(clock.now())).send:
            if ready.decided:
                return answer, ready.decided[0].verdict
            await asyncio.sleep(max(ready.wake_at - clock.now(), _TIMER_S_MIN))
            writer.tick(clock.now())
