"""Topics: created, changed and removed by comparing and swapping."""

from __future__ import annotations

import asyncio

import pytest
from tests.contract.pledges.pledge_places import NOW_MS, Place, run

from avow.errors import InvalidRequest
from avow.pledge.store import PledgeStore, Topic


async def _subscribe(store: PledgeStore, name: str, url: str) -> int:
    """How many tries it took."""
    for attempt in range(1, 200):
        before = await store.load_topic(name)
        subscribers = () if before is None else before.subscribers
        if await store.swap_topic(before, [*subscribers, (url, "remark")], name=name, now_ms=NOW_MS + attempt):
            return attempt
    raise AssertionError("it never came through")


async def _names(store: PledgeStore, *, limit: int) -> list[str]:
    names: list[str] = []
    position = ""
    for _ in range(100):
        topics, position = await store.list_topics(position=position, limit=limit)
        assert len(topics) <= limit
        names += [topic.name for topic in topics]
        if not position:
            return names
    raise AssertionError("the pages have no end")


def test_a_topic_is_created_changed_and_removed(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            assert await store.load_topic("news") is None
            assert await store.swap_topic(None, [("http://a", "'\\")], name="news", now_ms=NOW_MS)
            made = await store.load_topic("news")
            assert made == Topic("news", (("http://a", "'\\"),), 1, NOW_MS, NOW_MS)
            both = [("http://b", ""), ("http://a", "")]
            assert await store.swap_topic(made, both, name="news", now_ms=NOW_MS + 5)
            changed = await store.load_topic("news")
            assert changed == Topic("news", tuple(both), 2, NOW_MS, NOW_MS + 5)
            assert await store.swap_topic(changed, [], name="news", now_ms=NOW_MS + 9)
            assert await store.load_topic("news") is None
            assert await _names(store, limit=10) == []

    run(main())


def test_a_change_based_on_an_old_version_is_refused(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            await store.swap_topic(None, [("http://a", "")], name="news", now_ms=NOW_MS)
            first = await store.load_topic("news")
            assert first is not None
            assert not await store.swap_topic(None, [("http://b", "")], name="news", now_ms=NOW_MS)
            assert await store.swap_topic(first, [("http://c", "")], name="news", now_ms=NOW_MS)
            assert not await store.swap_topic(first, [("http://d", "")], name="news", now_ms=NOW_MS)
            assert not await store.swap_topic(first, [], name="news", now_ms=NOW_MS)
            assert not await store.swap_topic(first, [("http://d", "")], name="other", now_ms=NOW_MS)
            found = await store.load_topic("news")
            assert found is not None
            assert found.subscribers == (("http://c", ""),)

    run(main())


def test_a_recreated_topic_is_not_mistaken_for_the_removed_one(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            await store.swap_topic(None, [("http://a", "")], name="news", now_ms=NOW_MS)
            first = await store.load_topic("news")
            await store.swap_topic(first, [], name="news", now_ms=NOW_MS)
            await store.swap_topic(None, [("http://b", "")], name="news", now_ms=NOW_MS)
            assert not await store.swap_topic(first, [("http://c", "")], name="news", now_ms=NOW_MS)

    run(main())


def test_20_concurrent_subscribes_all_succeed(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as one, place.opened() as two:
            urls = [f"http://s{n}" for n in range(20)]
            await asyncio.gather(*(_subscribe((one, two)[n % 2], "news", url) for n, url in enumerate(urls)))
            found = await one.load_topic("news")
            assert found is not None
            assert sorted(url for url, _ in found.subscribers) == sorted(urls)
            assert found.version == 20

    run(main())


def test_one_of_20_concurrent_topic_creations_succeeds(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as one, place.opened() as two:
            made = await asyncio.gather(
                *((one, two)[n % 2].swap_topic(None, [(f"http://{n}", "")], name="news", now_ms=1) for n in range(20))
            )
            assert made.count(True) == 1
            found = await one.load_topic("news")
            assert found is not None
            assert found.subscribers == ((f"http://{made.index(True)}", ""),)

    run(main())


def test_topics_are_listed_by_name_in_pages(place: Place) -> None:
    names = ["a", "A", "a ", "b" * 128, "ä", "topic-1", "topic-10", "topic-2"]

    async def main() -> None:
        async with place.opened() as store:
            for name in names:
                assert await store.swap_topic(None, [("http://x", "")], name=name, now_ms=NOW_MS)
            for limit in (1, 3, 8, 9):
                assert await _names(store, limit=limit) == sorted(names)

    run(main())


@pytest.mark.parametrize("name", ["", "x" * 129, "\ud800"], ids=["empty", "long", "no text"])
def test_a_name_that_cannot_be_stored_is_refused(place: Place, name: str) -> None:
    async def main() -> None:
        async with place.opened() as store:
            with pytest.raises(InvalidRequest):
                await store.swap_topic(None, [("http://x", "")], name=name, now_ms=NOW_MS)

    run(main())
