"""Leases and fences: one coordinator works on a pledge, and a paused one cannot undo the work of another."""

from __future__ import annotations

import asyncio
from collections import Counter

from msgspec.structs import replace
from tests.contract.pledges.pledge_places import LEASE_MS, NOW_MS, Place, gids, pledge, progress, run

from avow.pledge.record import NEVER_MS, Pledge
from avow.pledge.store import PledgeStore


async def _claim(store: PledgeStore, owner: str, *, now_ms: int = NOW_MS, limit: int = 10) -> list[Pledge]:
    return await store.claim(owner=owner, now_ms=now_ms, lease_ms=LEASE_MS, limit=limit)


async def _claim_one(store: PledgeStore, gid: str, owner: str, *, now_ms: int = NOW_MS) -> Pledge | None:
    return await store.claim_one(gid, owner=owner, now_ms=now_ms, lease_ms=LEASE_MS)


def test_due_pledges_are_claimed_longest_due_first_with_a_new_fence(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            for name, at_ms in [("c", -1), ("a", -3), ("later", 1), ("b", -2), ("now", 0)]:
                await store.insert(pledge(name, at_ms=NOW_MS + at_ms))
            await store.insert(pledge("done", status="succeeded"))
            await store.insert(pledge("dead", status="dead"))
            first = await _claim(store, "me", limit=2)
            assert gids(first) == ["a", "b"]
            assert first[0] == replace(
                pledge("a", at_ms=NOW_MS - 3), fence=1, owner="me", lease_until_ms=NOW_MS + LEASE_MS
            )
            assert await store.load("a") == first[0]
            assert gids(await _claim(store, "me")) == ["c", "now"]
            assert await _claim(store, "me") == []

    run(main())


def test_nobody_else_claims_a_leased_pledge_until_the_lease_ends(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as one, place.opened() as two:
            await one.insert(pledge("a"))
            (mine,) = await _claim(one, "one")
            end_ms = NOW_MS + LEASE_MS
            assert await _claim(two, "two", now_ms=end_ms - 1) == []
            assert await _claim_one(two, "a", "two", now_ms=end_ms - 1) is None
            (theirs,) = await _claim(two, "two", now_ms=end_ms)
            assert (theirs.owner, theirs.fence) == ("two", mine.fence + 1)

    run(main())


def test_a_coordinator_paused_past_its_lease_is_refused_after_another_claim(place: Place) -> None:
    """It has the latest revision: only the fence shows that another coordinator has claimed the pledge since."""

    async def main() -> None:
        async with place.opened() as one, place.opened() as two:
            await one.insert(pledge("a"))
            (mine,) = await _claim(one, "one")
            (theirs,) = await _claim(two, "two", now_ms=NOW_MS + LEASE_MS)
            assert theirs.revision == mine.revision
            assert await one.swap(mine, progress("succeeded", finished_ms=NOW_MS)) is None
            assert await one.swap(mine, progress("succeeded", finished_ms=NOW_MS), release=True) is None
            assert await one.load("a") == theirs
            done = await two.swap(theirs, progress("succeeded", finished_ms=NOW_MS), release=True)
            assert done is not None
            assert await one.swap(mine, progress("failed")) is None
            assert await one.load("a") == done

    run(main())


def test_a_coordinator_whose_lease_ended_may_finish_if_nobody_else_claimed(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            await store.insert(pledge("a"))
            (mine,) = await _claim(store, "one")
            assert await store.swap(mine, progress("succeeded", finished_ms=NOW_MS + 2 * LEASE_MS)) is not None

    run(main())


def test_a_released_pledge_is_claimed_again_when_it_is_due(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            await store.insert(pledge("a"))
            (mine,) = await _claim(store, "one")
            retry_ms = NOW_MS + 5_000
            assert await store.swap(mine, progress(at_ms=retry_ms), release=True) is not None
            assert await _claim(store, "two", now_ms=retry_ms - 1) == []
            (theirs,) = await _claim(store, "two", now_ms=retry_ms)
            assert (theirs.owner, theirs.fence, theirs.revision) == ("two", 2, 2)

    run(main())


def test_a_swap_that_keeps_the_lease_keeps_the_pledge_from_being_claimed(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            await store.insert(pledge("a"))
            (mine,) = await _claim(store, "one")
            assert await store.swap(mine, progress(at_ms=NOW_MS + 1)) is not None
            assert await _claim(store, "two", now_ms=NOW_MS + 2) == []
            assert gids(await _claim(store, "two", now_ms=NOW_MS + LEASE_MS)) == ["a"]

    run(main())


def test_one_pledge_is_claimed_due_or_not_unless_it_is_leased_to_another_or_finished(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            await store.insert(pledge("later", at_ms=NOW_MS + 60_000))
            await store.insert(pledge("done", status="succeeded"))
            mine = await _claim_one(store, "later", "one")
            assert mine is not None
            assert (mine.owner, mine.fence, mine.lease_until_ms) == ("one", 1, NOW_MS + LEASE_MS)
            assert await store.load("later") == mine
            assert await _claim_one(store, "later", "two") is None
            again = await _claim_one(store, "later", "one", now_ms=NOW_MS + 5)
            assert again is not None
            assert (again.fence, again.lease_until_ms) == (2, NOW_MS + 5 + LEASE_MS)
            assert await store.swap(mine, progress()) is None
            assert await _claim_one(store, "done", "one") is None
            assert await _claim_one(store, "nowhere", "one") is None

    run(main())


def test_a_pledge_claimed_early_is_due_at_its_own_time_or_when_the_lease_ends_if_later(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            await store.insert(pledge("far", at_ms=NOW_MS + 10 * LEASE_MS))
            await store.insert(pledge("near", at_ms=NOW_MS + 1))
            await _claim_one(store, "far", "one")
            await _claim_one(store, "near", "one")
            assert await _claim(store, "two", now_ms=NOW_MS + LEASE_MS - 1) == []
            assert gids(await _claim(store, "two", now_ms=NOW_MS + LEASE_MS)) == ["near"]
            assert gids(await _claim(store, "two", now_ms=NOW_MS + 10 * LEASE_MS)) == ["near", "far"]

    run(main())


def test_a_pledge_inserted_with_a_lease_belongs_to_its_owner(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            leased = replace(pledge("a"), owner="one", lease_until_ms=NOW_MS + LEASE_MS, fence=1)
            await store.insert(leased)
            assert await _claim(store, "two") == []
            assert await _claim_one(store, "a", "two") is None
            done = await store.swap(leased, progress("succeeded", finished_ms=NOW_MS), release=True)
            assert done is not None
            assert await _claim(store, "two", now_ms=NOW_MS + 2 * LEASE_MS) == []

    run(main())


def test_a_claim_finds_something_at_the_next_due_time(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            assert await store.next_due_ms() == NEVER_MS
            await store.insert(pledge("done", status="succeeded"))
            assert await store.next_due_ms() == NEVER_MS
            await store.insert(pledge("b", at_ms=NOW_MS + 900_000))
            await store.insert(pledge("a", at_ms=NOW_MS - 7))
            assert await store.next_due_ms() == NOW_MS - 7
            (mine,) = await _claim(store, "one")
            assert await store.next_due_ms() == NOW_MS + LEASE_MS
            await store.swap(mine, progress("dead"), release=True)
            assert await store.next_due_ms() == NOW_MS + 900_000
            await store.swap(pledge("b", at_ms=NOW_MS + 900_000), progress("failed", finished_ms=NOW_MS))
            assert await store.next_due_ms() == NEVER_MS

    run(main())


def test_many_coordinators_claim_everything_and_finish_nothing_twice(place: Place) -> None:
    """A claim that is lost with a lane's coordinator is made again; of two workers with it, one finishes the pledge."""

    async def work(store: PledgeStore, owner: str, seen: Counter[str], finished: Counter[str]) -> None:
        while claimed := await _claim(store, owner, limit=7):
            for mine in claimed:
                seen[mine.gid] += 1
                assert mine.owner == owner
                done = await store.swap(mine, progress("succeeded", finished_ms=NOW_MS), release=True)
                finished[mine.gid] += done is not None
                assert place.loses_claims or (done is not None and mine.fence == 1)

    async def main() -> None:
        async with place.opened() as one, place.opened() as two, place.opened() as three:
            stores = (one, two, three)
            await asyncio.gather(*(one.insert(pledge(f"p{n}", at_ms=NOW_MS - n)) for n in range(300)))
            seen, finished = Counter[str](), Counter[str]()
            await asyncio.gather(*(work(stores[n % 3], f"worker-{n}", seen, finished) for n in range(12)))
            assert finished == Counter({f"p{n}": 1 for n in range(300)})
            assert place.loses_claims or seen == finished

    run(main())


def test_one_of_64_concurrent_claims_of_a_pledge_wins(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as one, place.opened() as two:
            await one.insert(pledge("a"))
            results = await asyncio.gather(*(_claim_one((one, two)[n % 2], "a", f"owner-{n}") for n in range(64)))
            winners = [result for result in results if result is not None]
            assert len(winners) == 1
            assert winners == [await one.load("a")]

    run(main())


def test_an_owner_that_claims_again_and_again_at_once_gets_a_fence_each_time(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            await store.insert(pledge("a"))
            claimed = await asyncio.gather(*(_claim_one(store, "a", "me") for _ in range(20)))
            assert sorted(mine.fence for mine in claimed if mine is not None) == list(range(1, 21))

    run(main())


def test_coordinators_that_meet_on_the_same_pledges_do_not_deadlock(place: Place) -> None:
    """Swaps, claims and inserts of a few gids from three stores, in every order. Databases may repeat a transaction; no
    caller may hear of it."""
    names = [f"p{n}" for n in range(6)]

    async def hammer(store: PledgeStore, number: int) -> int:
        done = 0
        for turn in range(25):
            name = names[(number * 7 + turn * 5) % len(names)]
            if (number + turn) % 3 == 0:
                done += await _claim_one(store, name, f"owner-{number % 3}") is not None
            elif (number + turn) % 3 == 1:
                known = await store.insert(pledge(name))
                assert known is not None
                done += (
                    await store.swap(known, replace(known.progress, failures=known.progress.failures + 1)) is not None
                )
            else:
                claimed = await _claim(store, f"owner-{number % 3}", now_ms=NOW_MS + turn, limit=2)
                done += len(claimed)
                for mine in claimed:
                    await store.swap(mine, mine.progress, release=True)
        return done

    async def main() -> None:
        async with place.opened() as one, place.opened() as two, place.opened() as three:
            for name in names:
                await one.insert(pledge(name))
            stores = (one, two, three)
            done = await asyncio.gather(*(hammer(stores[n % 3], n) for n in range(48)))
            changes = [await one.load(name) for name in names]
            assert sum(found.revision - 1 for found in changes if found is not None) <= sum(done) + 48 * 25
            for name in names:  # none is held any more, whoever came last
                claimed = await _claim_one(one, name, "later", now_ms=NOW_MS + 10 * LEASE_MS)
                assert claimed is not None
                assert await two.swap(claimed, claimed.progress, release=True) is not None

    run(main())
