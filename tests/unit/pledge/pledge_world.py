"""A coordinator with a store in memory, services with scripted answers, and a clock that jumps to the next timer.

Days of back-off pass in milliseconds; nothing sleeps. A service is named by its URL and answers with what stands in
`answers` for it, the last one for ever; without an entry it answers SUCCESS.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from avow.pledge.branches.calls import Call
from avow.pledge.branches.schemes import Branches
from avow.pledge.coordinator import Coordinator
from avow.pledge.record import Content, Options, Pledge, Status
from avow.pledge.settings import PledgeSettings
from avow.pledge.store import PledgeStore
from avow.pledge.stores.memory import MemoryStore
from avow.pledge.verdicts import SUCCESS, Result, Verdict, unreached

CHECKBACK = "http://bank/checkback"
BRANCH = "http://shop/in"
DEAD = unreached("connection refused")


class Services(Branches):
    """`slow`: how long a URL takes; `calls`: the calls made, with the time."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.answers: dict[str, list[Verdict]] = {}
        self.slow: dict[str, float] = {}
        self.calls: list[tuple[float, Call]] = []
        self.in_flight: dict[str, int] = {}
        self.most_in_flight: dict[str, int] = {}
        self.alerts: list[dict[str, Any]] = []
        self.webhook_problem = ""

    def answer(self, url: str, *results: Result | Verdict) -> None:
        self.answers[url] = [
            result if isinstance(result, Verdict) else Verdict(result, "" if result == "SUCCESS" else "because")
            for result in results
        ]

    async def __call__(self, call: Call) -> Verdict:
        url = call.url
        self.calls.append((asyncio.get_running_loop().time(), call))
        self.in_flight[url] = self.in_flight.get(url, 0) + 1
        self.most_in_flight[url] = max(self.most_in_flight.get(url, 0), self.in_flight[url])
        try:
            await asyncio.sleep(min(self.slow.get(url, 0.001), call.timeout_s))
        finally:
            self.in_flight[url] -= 1
        if self.slow.get(url, 0.0) >= call.timeout_s:
            return unreached("no answer in time")
        left = self.answers.get(url, [SUCCESS])
        return left.pop(0) if len(left) > 1 else left[0]

    async def post_alert(self, url: str, body: bytes, *, timeout_s: float) -> str:
        if not self.webhook_problem:
            self.alerts.append(msgspec.json.decode(body))
        return self.webhook_problem

    def times(self, url: str) -> list[float]:
        return [at for at, call in self.calls if call.url == url]

    def count(self, url: str) -> int:
        return len(self.times(url))


class World:
    def __init__(self, store: PledgeStore, services: Services, coordinator: Coordinator) -> None:
        self.store, self.services, self.coordinator = store, services, coordinator

    async def status(self, gid: str) -> Status:
        return (await self.coordinator.load(gid)).status

    async def pledge(self, gid: str) -> Pledge:
        return await self.coordinator.load(gid)

    async def until(self, gid: str, status: Status, *, within_s: float = 1e6) -> Pledge:
        await until(lambda: self._is(gid, status), within_s=within_s, what=f"{gid} {status}")
        return await self.pledge(gid)

    async def _is(self, gid: str, status: Status) -> bool:
        return await self.status(gid) == status


def request(gid: str = "g", *steps: str | tuple[str, bytes], checkback: str = CHECKBACK, **options: Any) -> Content:
    made = tuple(step if isinstance(step, tuple) else (step, b'{"amount":30}') for step in steps or (BRANCH,))
    return Content(gid, steps=made, checkback=checkback, options=Options(**options))


@asynccontextmanager
async def world(
    *, store: PledgeStore | None = None, services: Services | None = None, owner: str = "", **settings: Any
) -> AsyncIterator[World]:
    store = store or MemoryStore()
    services = services or Services()
    coordinator = Coordinator(
        store,
        services,
        settings=PledgeSettings(**settings),
        owner=owner,
        now_ms=now_ms,
        jitter=random.Random(7).random,
    )
    await coordinator.start()
    try:
        yield World(store, services, coordinator)
    finally:
        await coordinator.close()


async def until(met: Callable[[], Awaitable[bool]], *, within_s: float = 1e6, what: str = "") -> None:
    """Virtual seconds, looked at ever less often."""
    loop = asyncio.get_running_loop()
    end_s, pause_s = loop.time() + within_s, 0.001
    while not await met():
        assert loop.time() < end_s, f"waited {within_s:g} s in vain: {what}"
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.5)


def now_ms() -> int:
    return round(1000 * asyncio.get_running_loop().time())


class _Jumping(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0

    def select(self, timeout: float | None = None) -> Any:
        self.now += timeout or 0.0
        return super().select(0)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """An error that reaches the loop's exception handler fails the test."""
    reported: list[dict[str, Any]] = []

    def new_loop() -> asyncio.AbstractEventLoop:
        selector = _Jumping()
        loop = asyncio.SelectorEventLoop(selector)
        loop.time = lambda: selector.now  # type: ignore[method-assign]
        loop.set_exception_handler(lambda _, context: reported.append(context))
        return loop

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())
    assert reported == []
