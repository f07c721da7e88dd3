"""WebChannel clients as they are published, unmodified, against this peer's sessions, through faults of every kind.

Both npm packages, in Node and in Chromium: 400 messages up and 400 down, at least 40 faults (at full length, with
AVOW_WEBCHANNEL_MESSAGES=1000, 100), and on both ends each session hands over the next message and nothing else.
`make webclients` installs the packages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal
from urllib.parse import quote

import pytest
import uvloop
from tests.chromium import Chromium
from tests.webclients.faults import FaultProxy
from tests.webclients.server import FOLDER, INSTALLED, PATH, EchoServer

from avow.channel.transports.webchannel import Timing

COUNT = int(os.environ.get("AVOW_WEBCHANNEL_MESSAGES", "400"))
FAULTS = COUNT // 10
WINDOW = 4  # messages that wait for their answer: small, so that there are many requests to break
TIMEOUT_S = 300.0
SESSIONS_MAX = 60
TIMING = Timing(keep_alive_s=0.4, expiry_s=5.0, back_age_s_max=5.0)
DOOMS = {  # at which message
    COUNT * share // 100: what
    for share, what in ((10, "500"), (25, "503"), (40, "up"), (55, "down"), (70, "500"), (85, "forgotten"))
}

Package = Literal["firebase", "closure"]
packages = pytest.mark.parametrize("package", ["firebase", "closure"])


async def wait_until(true: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    for _ in range(int(timeout_s / 0.02)):
        if true():
            return
        await asyncio.sleep(0.02)
    assert true(), "it did not come true in time"


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[EchoServer]:
    assert INSTALLED.is_dir(), "the packages are not installed: make webclients"
    server = EchoServer(timing=TIMING)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def failing(server: EchoServer, *, seed: int, wide: bool = False) -> AsyncIterator[tuple[FaultProxy, str]]:
    """Faults keep pace with the messages, as many up as down; each doom strikes one session."""
    dooms = dict(DOOMS)

    def doom() -> str:
        at = next((at for at in sorted(dooms) if at <= server.received), None)
        what = dooms.pop(at) if at is not None else ""
        if what == "forgotten":
            server.sessions.stop()
        return what

    def due() -> int:
        return round(0.6 * FAULTS * server.received / COUNT)

    proxy = FaultProxy(server.address, seed=seed, due=due, doom=doom, wide=wide)
    url = await proxy.start()
    try:
        yield proxy, url
    finally:
        await proxy.stop()


@contextlib.asynccontextmanager
async def in_node(package: Package, wanted: dict[str, Any]) -> AsyncIterator[Any]:
    """The report of the application. Its process is there until the block ends."""
    node = shutil.which("node")
    assert node is not None, "no node is installed"
    process = await asyncio.create_subprocess_exec(
        node, str(FOLDER / "node.mjs"), package, json.dumps(wanted), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), TIMEOUT_S)
        assert line, "the application ended without a word"
        yield json.loads(line)
    finally:
        process.kill()
        await process.communicate()


@contextlib.asynccontextmanager
async def in_chromium(package: Package, url: str, wanted: dict[str, Any]) -> AsyncIterator[Any]:
    async with Chromium() as browser:
        page = await browser.open(f"{url}/{package}.html#{quote(json.dumps(wanted))}")
        yield await page.result(timeout_s=TIMEOUT_S)


def wanted(url: str, *, count: int = COUNT, window: int = WINDOW, **options: Any) -> dict[str, Any]:
    return {
        "url": url + PATH,
        "count": count,
        "window": window,
        "sessionsMax": SESSIONS_MAX,
        "options": {"messageUrlParams": {"queue": "orders"}, **options},
    }


async def check(server: EchoServer, report: Any, *, count: int = COUNT) -> None:
    """In order, each once, on both ends; and the client's farewell ends the last session."""
    assert report["wrong"] == []
    assert server.wrong == []
    assert (report["received"], server.received) == (count, count)
    await wait_until(lambda: server.open_sessions == 0)
    assert "the client closed it" in server.lost
    assert len(server.lost) == server.sessions.opened
    assert all(parameters == {"queue": "orders"} for parameters in server.asked)


@packages
@pytest.mark.parametrize("place", ["node", "chromium"])
def test_messages_in_both_directions_survive_faults_of_every_kind(package: Package, place: str) -> None:
    async def go() -> None:
        async with serving() as server, failing(server, seed=1) as (proxy, url):
            asked = wanted(url)
            running = in_node(package, asked) if place == "node" else in_chromium(package, url, asked)
            async with running as report:
                await check(server, report)
            assert proxy.faults.total() >= FAULTS, proxy.faults
            assert {"lost", "unanswered", "cut", "withheld", "twice", "500", "503"} <= set(proxy.faults)
            assert report["sessions"] > len(DOOMS)

    uvloop.run(go())


@packages
def test_posts_that_overtake_each_other_arrive_in_order(package: Package) -> None:
    """As behind a server of HTTP/2: then a client sends up to ten POSTs at a time."""

    async def go() -> None:
        async with serving() as server, failing(server, seed=2, wide=True) as (proxy, url):
            async with in_node(package, {**wanted(url, window=100), "spread": True}) as report:
                await check(server, report)
            assert proxy.overtaken > 0
            assert proxy.faults.total() >= FAULTS, proxy.faults

    uvloop.run(go())


OPTIONS: dict[str, dict[str, Any]] = {
    "as maps": {},
    "as raw JSON": {"sendRawJson": True},
    "with a fast handshake": {"fastHandshake": True},
    "with a fast handshake and raw JSON": {"fastHandshake": True, "sendRawJson": True},
    "by long polling": {"forceLongPolling": True},
    "by long polling with a time": {"forceLongPolling": True, "longPollingTimeout": 200},
    "looking for proxies that buffer": {"detectBufferingProxy": True},
    "with headers in the body": {"encodeInitMessageHeaders": True, "initMessageHeaders": {"Authorization": "Bearer x"}},
}


@packages
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_every_way_of_connecting_works(package: Package, options: dict[str, Any]) -> None:
    async def go() -> None:
        async with serving() as server:
            url = "http://{}:{}".format(*server.address)
            async with in_node(package, wanted(url, count=50, **options)) as report:
                await check(server, report, count=50)
            assert report["sessions"] == 1

    uvloop.run(go())


@packages
def test_every_way_of_connecting_works_in_a_browser(package: Package) -> None:
    async def go() -> None:
        async with Chromium() as browser:
            for name, options in {**OPTIONS, "by streams of fetch": {"useFetchStreams": True}}.items():
                async with serving() as server:
                    url = "http://{}:{}".format(*server.address)
                    asked = json.dumps(wanted(url, count=50, **options))
                    page = await browser.open(f"{url}/{package}.html#{quote(asked)}")
                    report = await page.result(timeout_s=60)
                    await check(server, report, count=50)
                    assert report["sessions"] == 1, name
                    await page.close()

    uvloop.run(go())
