"""The contract of every pledge store: insert, compare and swap, list, forget."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace
from tests.contract.pledges.pledge_places import NOW_MS, Place, gids, pledge, progress, run

from avow import limits
from avow.errors import AvowError, InvalidRequest
from avow.pledge.record import Branch, Content, Options, Pledge, Status
from avow.pledge.store import Filter, PledgeStore


def test_a_pledge_is_loaded_as_it_was_inserted(place: Place) -> None:
    content = Content(
        "Überweisung-1",
        (Branch("01", "http://bank-b/in", bytes(range(256)), b"key"), Branch("02", "queue://transfers")),
        checkback="http://bank-a/checkback",
        options=Options(concurrent=True, retry_interval_s=2.5, branch_headers={"a": "b'\\"}, not_before_ms=NOW_MS),
        custom_data="'; DROP TABLE avow_pledges; --",
        steps=(("http://bank-b/in", b"\x00'\\\n"),),
    )
    given = Pledge(content, progress("prepared", text="'\\ %s %% \x00"), 1, 0, "me'\\", NOW_MS + 5)

    async def main() -> None:
        async with place.opened() as store:
            assert await store.load(given.gid) is None
            assert await store.insert(given) is None
            assert await store.load(given.gid) == given

    run(main())


def test_stored_pledges_are_found_by_a_store_opened_later(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            await store.insert(pledge("a"))
            await store.swap_topic(None, [("http://x", "remark")], name="news", now_ms=NOW_MS)
        async with place.opened() as again:
            assert await again.load("a") == pledge("a")
            topic = await again.load_topic("news")
            assert topic is not None
            assert topic.subscribers == (("http://x", "remark"),)

    run(main())


def test_a_second_insert_of_a_gid_returns_the_first_and_changes_nothing(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            await store.insert(pledge("a"))
            swapped = await store.swap(pledge("a"), progress(text="tried once"))
            assert await store.insert(pledge("a", payload=b"other")) == swapped
            assert await store.load("a") == swapped

    run(main())


def test_one_of_many_concurrent_inserts_is_stored_and_the_others_get_it(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as one, place.opened() as two:
            tries = [pledge("a", payload=b"%d" % n) for n in range(64)]
            results = await asyncio.gather(*map(one.insert, tries[::2]), *map(two.insert, tries[1::2]))
            assert results.count(None) == 1
            stored = await one.load("a")
            assert all(result in (None, stored) for result in results)

    run(main())


def test_ids_that_differ_in_case_or_in_a_space_are_different(place: Place) -> None:
    names = ["Order-A", "order-a", "Order-A ", "Order-Ä", "Order-A\x00", "ORDER-A", " Order-A", "Order-Ａ"]

    async def main() -> None:
        async with place.opened() as store:
            for n, name in enumerate(names):
                assert await store.insert(pledge(name, payload=b"%d" % n)) is None, name
            for n, name in enumerate(names):
                found = await store.load(name)
                assert found is not None
                assert (found.gid, found.content.branches[0].payload) == (name, b"%d" % n)

    run(main())


@pytest.mark.parametrize("gid", ["x" * 128, "ä" * 64, "\U0001f642" * 32], ids=["latin", "umlauts", "smiles"])
def test_an_id_of_128_bytes_is_stored_whole(place: Place, gid: str) -> None:
    async def main() -> None:
        async with place.opened() as store:
            assert await store.insert(pledge(gid)) is None
            found = await store.load(gid)
            assert found is not None
            assert found.gid == gid

    run(main())


@pytest.mark.parametrize("gid", ["x" * 129, "ä" * 65, "", "\ud800"], ids=["long", "many bytes", "empty", "no text"])
def test_an_id_that_is_too_long_or_not_text_is_refused_and_its_neighbours_are_stored(place: Place, gid: str) -> None:
    async def main() -> None:
        async with place.opened() as store:
            others = [pledge(f"n{n}") for n in range(6)]
            results = await asyncio.gather(
                *map(store.insert, others[:3]), store.insert(pledge(gid)), *map(store.insert, others[3:]),
                return_exceptions=True,
            )  # fmt: skip
            assert isinstance(results[3], InvalidRequest)
            assert results[:3] + results[4:] == [None] * 6
            page = await store.find(Filter())
            assert sorted(gids(page.pledges)) == [f"n{n}" for n in range(6)]

    run(main())


def test_a_pledge_that_is_too_large_is_refused_and_its_neighbours_are_stored(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            large = pledge("large", payload=bytes(limits.PLEDGE_STORED_SIZE_BYTES_MAX + 1))
            results = await asyncio.gather(
                store.insert(pledge("a")), store.insert(large), store.insert(pledge("b")), return_exceptions=True
            )
            assert (results[0], results[2]) == (None, None)
            assert isinstance(results[1], AvowError)
            assert results[1].definite

    run(main())


def test_a_pledge_of_four_mebibytes_is_stored(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            large = [pledge(f"large-{n}", payload=b"'\\\x00\xff" * (1024 * 1024)) for n in range(3)]
            assert await asyncio.gather(*map(store.insert, large)) == [None] * 3
            assert await store.load("large-1") == large[1]

    run(main())


# ------------------------------------------------------------------ compare and swap


def test_a_swap_counts_revisions_and_is_refused_after_a_concurrent_swap(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            first = pledge("a")
            await store.insert(first)
            second = await store.swap(first, progress(text="one"))
            assert second == replace(first, progress=progress(text="one"), revision=2)
            assert await store.swap(first, progress(text="late")) is None
            assert await store.load("a") == second
            third = await store.swap(second, progress("succeeded", finished_ms=NOW_MS))
            assert third is not None
            assert (third.revision, await store.load("a")) == (3, third)

    run(main())


def test_a_swap_of_a_missing_pledge_is_refused(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            assert await store.swap(pledge("a"), progress()) is None
            assert await store.load("a") is None

    run(main())


def test_a_swap_keeps_the_lease_unless_it_releases_it(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            leased = replace(pledge("a"), owner="me", lease_until_ms=NOW_MS + 1000, fence=3)
            await store.insert(leased)
            kept = await store.swap(leased, progress(text="one"))
            assert kept is not None
            assert (kept.owner, kept.lease_until_ms, kept.fence) == ("me", NOW_MS + 1000, 3)
            released = await store.swap(kept, progress(text="two"), release=True)
            assert released is not None
            assert (released.owner, released.lease_until_ms, released.fence) == ("", 0, 3)
            assert await store.load("a") == released

    run(main())


def test_64_tasks_that_count_on_one_pledge_lose_no_update(place: Place) -> None:
    """Each adds one with compare and swap, repeated until it succeeds. Two coordinators share the store."""

    async def add_one(store: PledgeStore) -> None:
        while True:
            before = await store.load("counter")
            assert before is not None
            failures = before.progress.failures + 1
            after = await store.swap(before, replace(before.progress, failures=failures))
            if after is not None:
                assert (after.progress.failures, after.revision) == (failures, before.revision + 1)
                return

    async def main() -> None:
        async with place.opened() as one, place.opened() as two:
            await one.insert(pledge("counter"))
            await asyncio.gather(*(add_one(store) for _ in range(32) for store in (one, two)))
            found = await one.load("counter")
            assert found is not None
            assert (found.progress.failures, found.revision) == (64, 65)

    run(main())


def test_one_of_64_concurrent_swaps_of_a_revision_wins(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as one, place.opened() as two:
            before = pledge("a")
            await one.insert(before)
            tries = [progress(text=f"try {n}") for n in range(64)]
            results = await asyncio.gather(
                *(one.swap(before, wanted) for wanted in tries[::2]),
                *(two.swap(before, wanted) for wanted in tries[1::2]),
            )
            winners = [result for result in results if result is not None]
            assert [await two.load("a")] == winners

    run(main())


def test_an_old_swap_does_not_change_a_new_pledge_under_a_reused_gid(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            old = pledge("a", status="failed", finished_ms=NOW_MS)
            await store.insert(old)
            assert await store.forget(finished_before_ms=NOW_MS + 1, limit=10) == 1
            new = pledge("a", created_ms=NOW_MS + 60_000)
            await store.insert(new)
            assert await store.swap(old, progress("dead")) is None
            assert await store.load("a") == new

    run(main())


def test_concurrent_operations_of_every_kind_each_get_their_own_outcome(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            for n in range(8):
                await store.insert(pledge(f"old-{n}", at_ms=NOW_MS + 10_000))
            before = pledge("old-1", at_ms=NOW_MS + 10_000)
            results = await asyncio.gather(
                store.insert(pledge("new")),
                store.insert(pledge("old-0", payload=b"other")),
                store.swap(before, progress(text="one", at_ms=NOW_MS + 10_000)),
                store.swap(replace(before, revision=7), progress(text="two")),
                store.swap(pledge("nowhere"), progress()),
                store.claim_one("old-2", owner="me", now_ms=NOW_MS, lease_ms=1000),
                store.claim_one("nowhere", owner="me", now_ms=NOW_MS, lease_ms=1000),
                store.load("old-3"),
                store.forget(finished_before_ms=NOW_MS, limit=5),
                store.swap_topic(None, [("http://x", "")], name="news", now_ms=NOW_MS),
            )
            inserted, there, swapped, stale, absent, claimed, unclaimed, loaded, forgotten, made = results
            assert (inserted, stale, absent, unclaimed, forgotten, made) == (None, None, None, None, 0, True)
            assert there == pledge("old-0", at_ms=NOW_MS + 10_000)
            assert isinstance(swapped, Pledge)
            assert swapped.progress.last_error == "one"
            assert isinstance(claimed, Pledge)
            assert (claimed.gid, claimed.owner, claimed.fence) == ("old-2", "me", 1)
            assert loaded == pledge("old-3", at_ms=NOW_MS + 10_000)

    run(main())


# ------------------------------------------------------------------ listing


async def _pages(
    store: PledgeStore, wanted: Filter, *, limit: int, between: Callable[[], Awaitable[object]] | None = None
) -> list[str]:
    found: list[str] = []
    position = ""
    for _ in range(1000):
        page = await store.find(wanted, position=position, limit=limit)
        assert len(page.pledges) <= limit
        found += gids(page.pledges)
        position = page.next_position
        await asyncio.sleep(0)  # a store in memory never makes others wait
        if not position:
            return found
        if between is not None:
            await between()
    raise AssertionError("the pages have no end")


def test_pledges_are_listed_newest_first_and_then_by_id(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            for name, created_ms in [("b", 5), ("a", 5), ("C", 5), ("z", 1), ("y", 9), ("ä", 5)]:
                await store.insert(pledge(name, created_ms=NOW_MS + created_ms))
            assert gids((await store.find(Filter())).pledges) == ["y", "ä", "b", "a", "C", "z"]
            for limit in (1, 2, 3, 5, 6, 7):
                assert await _pages(store, Filter(), limit=limit) == ["y", "ä", "b", "a", "C", "z"]

    run(main())


def test_filters_are_combined(place: Place) -> None:
    statuses: tuple[Status, ...] = ("prepared", "submitted", "succeeded", "failed", "dead")

    async def main() -> None:
        async with place.opened() as store:
            for n in range(50):
                await store.insert(pledge(f"p{n:02}", status=statuses[n % 5], created_ms=NOW_MS + n))
            every = [(f"p{n:02}", statuses[n % 5], NOW_MS + n) for n in reversed(range(50))]
            wanted_statuses: list[tuple[Status, ...]] = [
                (),
                ("dead",),
                ("failed", "dead"),
                ("prepared", "submitted"),
                ("succeeded", "dead"),
            ]
            edges = [None, NOW_MS + 10, NOW_MS + 31]
            for chosen, first, last in itertools.product(wanted_statuses, edges, edges):
                expected = [
                    gid
                    for gid, status, created_ms in every
                    if (not chosen or status in chosen)
                    and (first is None or created_ms >= first)
                    and (last is None or created_ms <= last)
                ]
                wanted = Filter(statuses=chosen, created_from_ms=first, created_to_ms=last)
                assert await _pages(store, wanted, limit=7) == expected
            assert await _pages(store, Filter(gid="p04"), limit=3) == ["p04"]
            assert await _pages(store, Filter(gid="p04", statuses=("failed",)), limit=3) == []
            assert await _pages(store, Filter(gid="p0"), limit=3) == []

    run(main())


def test_a_swap_moves_a_pledge_from_one_status_to_the_other(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            now = pledge("a", status="prepared")
            await store.insert(now)
            for status in ("submitted", "dead", "submitted", "failed", "submitted", "succeeded"):
                after = await store.swap(now, progress(status))
                assert after is not None
                now = after
                for asked in ("prepared", "submitted", "succeeded", "failed", "dead"):
                    page = await store.find(Filter(statuses=(asked,)))
                    assert gids(page.pledges) == (["a"] if asked == status else [])

    run(main())


def test_pages_stay_consistent_while_pledges_are_inserted(place: Place) -> None:
    """Pledges that existed at the first page are listed exactly once, whatever is inserted during pages and between."""

    async def keep_inserting(store: PledgeStore, stop: asyncio.Event) -> None:
        for n in range(5_000):
            if stop.is_set():
                return
            await store.insert(pledge(f"new-{n}", created_ms=NOW_MS + n % 40))
            await asyncio.sleep(0)

    async def main() -> None:
        async with place.opened() as store:
            there = [f"old-{n}" for n in range(120)]
            for name in there:
                await store.insert(pledge(name, created_ms=NOW_MS + int(name[4:]) % 30))
            stop = asyncio.Event()
            numbers = itertools.count()

            async def insert_between() -> None:
                n = next(numbers)
                await store.insert(pledge(f"between-{n}", created_ms=NOW_MS + 7 * n % 40))

            inserting = asyncio.create_task(keep_inserting(store, stop))
            found = await _pages(store, Filter(created_to_ms=NOW_MS + 100), limit=9, between=insert_between)
            stop.set()
            await inserting
            assert next(numbers) >= len(there) // 9
            assert len(found) == len(set(found))
            assert sorted(name for name in found if name.startswith("old")) == sorted(there)

    run(main())


@pytest.mark.parametrize("position", ["x", "12", "-a", "1-", "99999999999999999999-a"])
def test_an_invalid_page_position_is_refused(place: Place, position: str) -> None:
    async def main() -> None:
        async with place.opened() as store:
            with pytest.raises(InvalidRequest):
                await store.find(Filter(), position=position)

    run(main())


# ------------------------------------------------------------------ forgetting


def test_only_old_finished_pledges_are_forgotten_up_to_the_limit(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            early = NOW_MS - 1000
            for n in range(5):
                await store.insert(pledge(f"s{n}", status="succeeded", created_ms=early, finished_ms=NOW_MS + n))
            await store.insert(pledge("f", status="failed", created_ms=early, finished_ms=NOW_MS))
            await store.insert(pledge("d", status="dead", created_ms=early, finished_ms=NOW_MS))
            await store.insert(pledge("u", created_ms=early))
            await store.insert(pledge("p", status="prepared", created_ms=early))
            assert await store.forget(finished_before_ms=NOW_MS, limit=10) == 0
            assert await store.forget(finished_before_ms=NOW_MS + 3, limit=3) == 3
            assert await store.forget(finished_before_ms=NOW_MS + 3, limit=3) == 1
            assert await store.forget(finished_before_ms=NOW_MS + 3, limit=3) == 0
            assert sorted(gids((await store.find(Filter())).pledges)) == ["d", "p", "s3", "s4", "u"]
            assert await store.load("f") is None

    run(main())


def test_a_pledge_that_was_redriven_is_not_forgotten(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            failed = pledge("a", status="failed", created_ms=NOW_MS - 5, finished_ms=NOW_MS)
            await store.insert(failed)
            await store.swap(failed, progress(created_ms=NOW_MS - 5))
            assert await store.forget(finished_before_ms=NOW_MS + 1, limit=10) == 0
            assert await store.load("a") is not None

    run(main())
