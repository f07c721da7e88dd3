"""The module in a browser: a page that sends, commits, is cut off, resumes, and gets its pending messages back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tests.browser.far import Far, Files, listening, page_of, proxied, wait_until, webchannels
from tests.chromium import Chromium

COUNT = 2_000
TIMEOUT_S = 300.0

Run = Callable[..., Awaitable[Any]]


@contextlib.asynccontextmanager
async def pages() -> AsyncIterator[Run]:
    """Runs an application of app.mjs in a new page."""
    async with Files() as files, Chromium() as browser:

        async def run(application: str, **wanted: object) -> Any:
            return await browser.run(files.page(application, **wanted), timeout_s=TIMEOUT_S)

        yield run


def test_2000_messages_each_way_arrive_once_and_in_order_despite_cuts() -> None:
    async def go() -> None:
        far = Far(count=COUNT)
        async with pages() as run, listening(far) as listener, proxied(listener, seed=1) as proxy:
            found = await run("exchange", url=proxy.url, count=COUNT, every=50, bounds={"pending_count": 100})
        assert far.words == [str(number) for number in range(1, COUNT + 1)]
        assert (found["received"], found["wrong"]) == (COUNT, [])
        assert (found["callbacks"], far.acked) == (COUNT / 50, COUNT / 50)
        assert found["pending"] == 0
        assert found["resumes"] > 0
        assert found["end"] is None
        assert proxy.resets >= 20
        assert found["generation"] >= 20

    asyncio.run(go())


def test_a_page_is_suspended_while_acks_are_withheld_and_resumes() -> None:
    async def go() -> None:
        far = Far(ack_to=0)
        far.orders["release"] = far.release
        async with pages() as run, listening(far) as listener:
            found = await run("suspension", url=listener.url, limit=10)
        assert (found["suspended"], found["pending"], found["codes"]) == (True, 10, ["BUSY"])
        assert (found["suspended_after"], found["pending_after"], found["resumed"]) == (False, 0, True)
        assert far.words == [*map(str, range(1, 11)), "release", "again"]

    asyncio.run(go())


def test_a_page_whose_channel_is_forgotten_learns_the_outcome_of_every_pending_message() -> None:
    async def go() -> None:
        first, second = Far(ack_to=1), Far()
        async with pages() as run, listening(first) as old, listening(second) as new, proxied(old) as proxy:
            ways: list[asyncio.Task[None]] = []

            async def open_the_way() -> None:
                seen = proxy.connections
                await wait_until(lambda: proxy.connections >= seen + 4)
                proxy.refusing = False

            def forget() -> None:
                proxy.target, proxy.refusing = new.address, True
                proxy.reset_all()
                ways.append(asyncio.get_running_loop().create_task(open_the_way()))

            first.orders = {"cut": proxy.reset_all, "forget": forget}
            found = await run("forgotten", url=proxy.url)
            await asyncio.gather(*ways)
        assert found["end"]["reason"] == "UNKNOWN_CHANNEL"
        assert [tuple(one.values()) for one in found["end"]["pending"]] == [
            (4, "4", "delivered", 2),
            (5, "5", "delivered", 2),
            (6, "cut", "delivered", 2),
            (7, "6", "unknown", 0),
            (8, "7", "unknown", 0),
            (9, "forget", "unknown", 0),
            (10, "8", "unsent", 0),
        ]
        assert found["rejected"] == ["UNKNOWN_CHANNEL", "UNKNOWN_CHANNEL", "ENDED"]
        assert first.words == ["1", "2", "3", "4", "5", "cut", "6", "7", "forget"]
        assert second.words == ["4", "5", "6", "7", "8"]
        assert second.commits_at == [(2, 2), (3, 5)]  # what a commit covered, it covers again

    asyncio.run(go())


def test_a_page_without_a_connection_gives_up_and_gets_its_messages_back() -> None:
    async def go() -> None:
        far = Far()
        async with pages() as run, listening(far) as listener, proxied(listener) as proxy:
            proxy.refusing = True
            found = await run("impatient", url=proxy.url, patience_s=0.5)
        assert found["end"]["reason"] == found["waited"] == "EXPIRED"
        assert found["end"]["pending"] == [{"number": 1, "value": "kept", "fate": "unsent", "commit": 1}]
        assert proxy.connections > 1

    asyncio.run(go())


def test_a_page_reconnects_at_once_when_it_is_online_or_visible_again() -> None:
    async def go() -> None:
        far = Far()
        async with pages() as run, listening(far) as listener, proxied(listener) as proxy:
            proxy.refusing = True
            found = await run("signs", url=listener.url, dead=proxy.url)
        assert found == {"online_while_up": 2, "visible_while_up": 2, "after_the_end": 2, "visible_while_down": 1}

    asyncio.run(go())


def test_a_page_may_use_webchannel_with_a_relative_address() -> None:
    async def go() -> None:
        far = Far(count=100)
        async with webchannels(far) as server, Chromium() as browser:
            wanted = {"url": "/v1/webchannel?role=reader", "count": 100, "every": 10, "webchannel": True}
            host, port = server.address
            found = await browser.run(page_of(f"http://{host}:{port}/", "exchange", **wanted), timeout_s=TIMEOUT_S)
            await wait_until(lambda: bool(far.ends))
        assert far.words == [str(number) for number in range(1, 101)]
        assert (found["received"], found["wrong"], found["callbacks"]) == (100, [], 10)
        assert (found["end"], far.ends) == (None, [None])
        assert server.asked == [("role=reader", None)]

    asyncio.run(go())
