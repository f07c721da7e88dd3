"""Pledges in a cluster of three nodes: the store, its claims, its lanes' length, and the state after a crash."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from tests.unit.pledge.lane.pledge_bench import Bench, over, pledge_of, run

from avow.errors import InvalidRequest, Offline, TooLarge, TooMany, Unknown
from avow.limits import MIB
from avow.pledge.record import NEVER_MS, Progress
from avow.pledge.store import Filter, PledgeStore
from avow.pledge.stores.lane.store import QUEUE


def test_the_queue_is_created_by_the_first_peer_that_needs_it_and_found_by_the_others() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            assert QUEUE not in bench.cluster.nodes[1].metadata.state.catalog.by_name
            await asyncio.gather(*[bench.store(at) for at in (1, 2, 3)])
            queue = bench.cluster.nodes[2].metadata.state.catalog.by_name[QUEUE]
            assert (queue.strategy, queue.lanes, queue.peers) == ("two-phase", 8, ())
        async with Bench(1) as alone:
            await alone.store()
            assert alone.cluster.nodes[1].metadata.state.catalog.by_name[QUEUE].lanes == 2

    run(scenario)


def test_a_pledge_stored_by_one_peer_is_loaded_by_all() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            stores = [await bench.store(at) for at in (1, 2, 3)]
            for number, store in enumerate(stores):
                assert await store.insert(pledge_of(f"gid-{number}")) is None
            for store in stores:
                for number in range(3):
                    found = await store.load(f"gid-{number}")
                    assert found == pledge_of(f"gid-{number}")
            assert await stores[0].load("other") is None

    run(scenario)


def test_the_second_of_two_inserts_gets_the_first_from_any_peer() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            stores = [await bench.store(at) for at in (1, 2, 3)]
            pledges = [pledge_of("same", payload=b"%d" % number) for number in range(3)]
            answers = await asyncio.gather(
                *[store.insert(pledge) for store, pledge in zip(stores, pledges, strict=True)]
            )
            assert answers.count(None) == 1
            winner = pledges[answers.index(None)]
            assert [answer for answer in answers if answer is not None] == [winner, winner]
            assert await stores[0].insert(pledge_of("same")) == winner

    run(scenario)


def test_exactly_one_of_several_swaps_at_a_revision_takes_effect() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            stores = [await bench.store(at) for at in (1, 2, 3)]
            before = pledge_of("a")
            await stores[0].insert(before)
            swapped = await asyncio.gather(*[store.swap(before, over(before)) for store in stores * 5])
            assert sum(found is not None for found in swapped) == 1
            assert {found.revision for found in swapped if found is not None} == {2}

    run(scenario)


def test_operations_of_one_turn_of_the_loop_are_one_write_for_each_lane() -> None:
    async def scenario() -> None:
        async with Bench(1) as bench:
            store = await bench.store(lanes=8)
            node = bench.cluster.nodes[1]
            await bench.until(lambda: store.statistics()["lanes_coordinated"] == 8)
            before = {number: lane.core.log.end for number, lane in node.lanes.items()}
            await asyncio.gather(*[store.insert(pledge_of(f"g{number}")) for number in range(1_000)])
            assert [lane.core.log.end - before[number] for number, lane in node.lanes.items()] == [1] * 8
            assert store.statistics()["pledges"] == 1_000
            assert store.statistics()["in_flight"] == 0

    run(scenario)


def test_each_peer_claims_from_lanes_it_coordinates_and_each_pledge_is_claimed_once() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            stores = {at: await bench.store(at) for at in (1, 2, 3)}
            gids = {f"g{number}" for number in range(60)}
            await asyncio.gather(*[stores[1].insert(pledge_of(gid)) for gid in gids])
            claimed = []
            for at, store in stores.items():
                await bench.until(lambda store=store: store.statistics()["pledges"] == 60)  # type: ignore[misc]
                found = await store.claim(owner=f"o{at}", now_ms=100, lease_ms=500, limit=100)
                assert all(bench.coordinator(pledge.gid) == at for pledge in found)
                assert all((p.owner, p.lease_until_ms, p.fence) == (f"o{at}", 600, 1) for p in found)
                assert await store.claim(owner="x", now_ms=599, lease_ms=500, limit=100) == []
                claimed += [pledge.gid for pledge in found]
                assert found
            assert sorted(claimed) == sorted(gids)

    run(scenario)


def test_a_claim_costs_no_write() -> None:
    async def scenario() -> None:
        async with Bench(1) as bench:
            store = await bench.store()
            await asyncio.gather(*[store.insert(pledge_of(f"g{number}")) for number in range(20)])
            before = [lane.core.log.end for lane in bench.cluster.nodes[1].lanes.values()]
            assert len(await store.claim(owner="o", now_ms=100, lease_ms=500, limit=15)) == 15
            assert len(await store.claim(owner="o", now_ms=100, lease_ms=500, limit=15)) == 5
            assert [lane.core.log.end for lane in bench.cluster.nodes[1].lanes.values()] == before

    run(scenario)


def test_the_longest_due_pledge_is_claimed_first_over_all_lanes() -> None:
    async def scenario() -> None:
        async with Bench(1) as bench:
            store = await bench.store()
            await asyncio.gather(*[store.insert(pledge_of(f"g{n}", next_at_ms=1_000 - n)) for n in range(40)])
            assert await store.next_due_ms() == 961
            found = await store.claim(owner="o", now_ms=970, lease_ms=500, limit=5)
            assert [pledge.progress.next_at_ms for pledge in found] == [961, 962, 963, 964, 965]
            assert await store.next_due_ms() == 966

    run(scenario)


def test_a_swap_with_an_older_fence_is_refused_and_a_release_makes_it_due_again() -> None:
    async def scenario() -> None:
        async with Bench(1) as bench:
            store = await bench.store()
            await store.insert(pledge_of("a"))
            (first,) = await store.claim(owner="one", now_ms=100, lease_ms=100, limit=9)
            (second,) = await store.claim(owner="two", now_ms=200, lease_ms=100, limit=9)
            assert second.fence == 2
            assert await store.swap(first, over(first)) is None
            later = replace(second.progress, next_at_ms=250)
            after = await store.swap(second, later, release=True)
            assert after is not None
            assert (after.revision, after.owner, after.lease_until_ms) == (2, "", 0)
            assert await store.next_due_ms() == 250

    run(scenario)


def test_one_pledge_is_claimed_by_gid_unless_another_coordinator_holds_it() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            store = await bench.store()
            gid, elsewhere = bench.gid_at(1), bench.gid_at(2)
            for name in (gid, elsewhere):
                await store.insert(pledge_of(name, next_at_ms=10_000))
            found = await store.claim_one(gid, owner="me", now_ms=5, lease_ms=100)
            assert found is not None
            assert found.fence == 1
            assert await store.claim_one(gid, owner="you", now_ms=50, lease_ms=100) is None
            there = await store.claim_one(elsewhere, owner="me", now_ms=5, lease_ms=100)
            assert there == pledge_of(elsewhere, next_at_ms=10_000)
            holding = replace(there.progress, held=True)
            assert await store.swap(there, holding) is not None
            assert await store.claim_one(elsewhere, owner="me", now_ms=5, lease_ms=100) is None
            assert await store.claim_one("nobody", owner="me", now_ms=5, lease_ms=100) is None

    run(scenario)


def test_a_peer_that_takes_over_a_lane_claims_pledges_of_the_dead_one() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            stores = {at: await bench.store(at) for at in (1, 2, 3)}
            dead = bench.coordinator("g0")
            gid = bench.gid_at(dead)
            held = pledge_of(gid, next_at_ms=10_000_000)
            await stores[dead].insert(replace(held, progress=replace(held.progress, held=True)))
            notified: list[int] = []
            others = {at: store for at, store in stores.items() if at != dead}
            for at, store in others.items():
                store.on_due = lambda at=at: notified.append(at)  # type: ignore[misc]
            bench.kill(dead)
            heir = await bench.until(lambda: (at := bench.coordinator(gid)) != dead and at)
            await bench.until(lambda: heir in notified)
            (found,) = await others[heir].claim(owner="heir", now_ms=100, lease_ms=500, limit=9)
            assert found.gid == gid
            assert await others[heir].swap(found, over(found), release=True) is not None

    run(scenario)


def test_a_deposed_coordinators_swap_loses_by_its_revision() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            stores = {at: await bench.store(at) for at in (1, 2, 3)}
            old = bench.coordinator("g0")
            await stores[old].insert(pledge_of("g0"))
            (before,) = await stores[old].claim(owner="old", now_ms=100, lease_ms=50_000, limit=9)
            bench.cluster.cut |= {(old, other) for other in (1, 2, 3)} | {(other, old) for other in (1, 2, 3)}
            others = [at for at in (1, 2, 3) if at != old]
            heir = await bench.until(lambda: next((at for at in others if stores[at]._replica("g0").coordinates()), 0))
            (taken,) = await stores[heir].claim(owner="new", now_ms=100, lease_ms=500, limit=9)
            assert await stores[heir].swap(taken, over(taken, status="failed"), release=True) is not None
            with pytest.raises((Offline, Unknown)):
                await stores[old].swap(before, over(before))
            bench.cluster.cut.clear()
            await bench.until(
                lambda: bench.cluster.nodes[old].lanes[bench.number_of("g0")].core.online(bench.cluster.now)
            )
            assert await stores[old].swap(before, over(before)) is None
            found = await stores[old].load("g0")
            assert found is not None
            assert found.status == "failed"

    run(scenario)


def test_without_a_quorum_an_operation_is_refused_or_unknown_and_reading_is_refused() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            store = await bench.store()
            await store.insert(pledge_of("a"))
            bench.kill(2)
            bench.kill(3)
            with pytest.raises((Offline, Unknown)):
                await store.insert(pledge_of("b"))
            with pytest.raises(Offline):
                await store.load("a")
            assert await store.claim(owner="o", now_ms=1_000, lease_ms=1, limit=1) == []

    run(scenario)


def test_after_a_restart_the_table_is_read_from_the_lane_again() -> None:
    async def scenario() -> None:
        async with Bench(1) as bench:
            store = await bench.store()
            await asyncio.gather(*[store.insert(pledge_of(f"g{number}")) for number in range(50)])
            first = await store.load("g7")
            assert first is not None
            await store.swap(first, over(first))
            bench.kill(1)
            bench.restart(1)
            await bench.until(lambda: bench.cluster.nodes[1].metadata.state.catalog.by_name.get(QUEUE))
            store = await bench.store()
            found = await store.load("g7")
            assert found is not None
            assert (found.status, found.revision) == ("succeeded", 2)
            assert len((await store.find(Filter(), limit=100)).pledges) == 50

    run(scenario)


def test_finished_pledges_are_forgotten_by_the_coordinators_of_their_lanes() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            stores = {at: await bench.store(at) for at in (1, 2, 3)}
            for number in range(30):
                pledge = pledge_of(f"g{number}")
                await stores[1].insert(pledge)
                if number % 3:
                    assert await stores[1].swap(pledge, over(pledge, finished_ms=number)) is not None
            await bench.until(lambda: all(store.statistics()["pledges"] == 30 for store in stores.values()))
            forgotten = [await store.forget(finished_before_ms=15, limit=100) for store in stores.values()]
            assert sum(forgotten) == 10
            assert await stores[2].forget(finished_before_ms=15, limit=100) == 0
            await bench.until(lambda: all(store.statistics()["pledges"] == 20 for store in stores.values()))
            assert await stores[3].load("g1") is None

    run(scenario)


def test_forgetting_stops_at_its_limit() -> None:
    async def scenario() -> None:
        async with Bench(1) as bench:
            store = await bench.store()
            for number in range(20):
                pledge = pledge_of(f"g{number}")
                await store.insert(pledge)
                await store.swap(pledge, over(pledge))
            assert await store.forget(finished_before_ms=100, limit=12) == 12
            assert await store.forget(finished_before_ms=100, limit=12) == 8

    run(scenario)


def test_beyond_a_bound_old_finished_pledges_are_forgotten_and_then_new_ones_refused() -> None:
    async def scenario() -> None:
        async with Bench(1) as bench:
            store = await bench.store(lanes=1, pledges_max=40)
            for number in range(60):
                pledge = pledge_of(f"g{number}")
                await store.insert(pledge)
                await store.swap(pledge, over(pledge, finished_ms=number))
            await bench.until(lambda: store.statistics()["pledges"] <= 40)
            assert await store.load("g0") is None
            assert await store.load("g59") is not None
            for number in range(50):
                await store.insert(pledge_of(f"unfinished-{number}"))
                await bench.until(lambda: not store._maintenance)
            with pytest.raises(TooMany):
                await store.insert(pledge_of("one-more"))
            assert await store.load("g59") is None
            assert await store.load("unfinished-0") is not None

    run(scenario)


def test_a_long_lane_is_compacted_and_trimmed_without_loss() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            stores = {at: await bench.store(at, messages_min=40) for at in (1, 2, 3)}
            gids = [f"g{number}" for number in range(24)]
            await asyncio.gather(*[stores[1].insert(pledge_of(gid, payload=gid.encode())) for gid in gids])
            await stores[1].swap_topic(None, [("http://a", "")], name="topic", now_ms=5)
            for step in range(30):
                at = 1 + step % 3
                await asyncio.gather(*[_touch(stores[at], gid, step) for gid in gids])
            node = bench.cluster.nodes[1]
            long = [lane for lane in node.lanes.values() if lane.state.end > 60]
            await bench.until(lambda: all(lane.state.trimmed_to > 0 for lane in long))
            assert sum(store.compactions_count for store in stores.values()) >= len(long) >= 4
            expected = {gid: await stores[1].load(gid) for gid in gids}
            assert all(found is not None and found.revision == 31 for found in expected.values())
            bench.kill(2)
            bench.restart(2)
            await bench.until(lambda: len(bench.cluster.nodes[2].lanes) == 8)
            again = await bench.store(2)
            assert {gid: await again.load(gid) for gid in gids} == expected
            topic = await again.load_topic("topic")
            assert topic is not None
            assert topic.subscribers == (("http://a", ""),)

    run(scenario)


async def _touch(store: PledgeStore, gid: str, step: int) -> None:
    for _ in range(10):
        known = await store.load(gid)
        assert known is not None
        if await store.swap(known, Progress("prepared", 1, step, 100 + step)) is not None:
            return
    raise AssertionError("never swapped")


def test_a_peer_that_missed_a_trim_rebuilds_its_table() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            stores = {at: await bench.store(at, messages_min=20) for at in (1, 2, 3)}
            gid = bench.gid_at(1)
            await stores[1].insert(pledge_of(gid))
            replica = stores[3]._replica(gid)
            replica._looking = True  # it sees nothing of what follows
            for step in range(60):
                await _touch(stores[1], gid, step)
            number = bench.number_of(gid)
            await bench.until(lambda: bench.cluster.nodes[3].lanes[number].state.trimmed_to > 20)
            assert replica.table.applied <= 1
            replica._looking = False
            found = await stores[3].load(gid)
            assert found is not None
            assert found.revision == 61

    run(scenario)


def test_pledges_are_listed_newest_first_in_pages_and_by_status_and_time() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            store = await bench.store()
            for number in range(25):
                pledge = pledge_of(f"g{number:02}", created_ms=number // 2)
                await store.insert(pledge)
                if number % 5 == 0:
                    await store.swap(pledge, over(pledge))
            seen: list[str] = []
            position = ""
            while True:
                page = await store.find(Filter(), position=position, limit=7)
                seen += [pledge.gid for pledge in page.pledges]
                position = page.next_position
                if not position:
                    break
            assert seen == [f"g{number:02}" for number in reversed(range(25))]
            done = await store.find(Filter(statuses=("succeeded",)), limit=3)
            assert [pledge.gid for pledge in done.pledges] == ["g20", "g15", "g10"]
            assert done.next_position
            some = await store.find(Filter(created_from_ms=3, created_to_ms=4))
            assert [pledge.gid for pledge in some.pledges] == ["g09", "g08", "g07", "g06"]
            assert [p.gid for p in (await store.find(Filter(gid="g03"))).pledges] == ["g03"]
            assert (await store.find(Filter(gid="g03", statuses=("dead",)))).pledges == ()
            with pytest.raises(InvalidRequest):
                await store.find(Filter(), position="nonsense")

    run(scenario)


def test_topics_are_changed_by_compare_and_set_and_visible_everywhere() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            one, two = await bench.store(1), await bench.store(2)
            assert await one.swap_topic(None, [("http://a", "x")], name="t", now_ms=5)
            assert not await two.swap_topic(None, [("http://b", "")], name="t", now_ms=6)
            known = await two.load_topic("t")
            assert known is not None
            assert await two.swap_topic(known, [("http://a", "x"), ("http://b", "")], name="t", now_ms=7)
            assert not await one.swap_topic(known, [], name="t", now_ms=8)
            changed = await one.load_topic("t")
            assert changed is not None
            assert (changed.version, changed.created_ms, changed.updated_ms) == (2, 5, 7)
            assert await one.swap_topic(changed, [], name="t", now_ms=9)
            assert await two.load_topic("t") is None
            assert await two.swap_topic(None, [("http://c", "")], name="t", now_ms=10)
            for name in ("b", "a", "c"):
                await one.swap_topic(None, [("http://a", "")], name=name, now_ms=1)
            names, position = await one.list_topics(limit=3)
            assert ([topic.name for topic in names], position) == (["a", "b", "c"], "c")
            names, position = await one.list_topics(position="c", limit=3)
            assert ([topic.name for topic in names], position) == (["t"], "")

    run(scenario)


def test_large_pledges_fit_and_larger_ones_are_refused() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            store, other = await bench.store(1), await bench.store(2)
            await store.insert(pledge_of("large", payload=b"x" * (4 * MIB)))
            found = await other.load("large")
            assert found is not None
            assert len(found.content.branches[0].payload) == 4 * MIB
            with pytest.raises(TooLarge):
                await store.insert(pledge_of("huge", payload=b"x" * (8 * MIB)))

    run(scenario)


def test_a_closed_store_refuses_operations() -> None:
    async def scenario() -> None:
        async with Bench(1) as bench:
            store = await bench.store()
            await store.insert(pledge_of("a"))
            await store.close()
            with pytest.raises(Offline):
                await store.insert(pledge_of("b"))
            assert await store.claim(owner="o", now_ms=500, lease_ms=5, limit=5) == []
            assert await store.next_due_ms() == NEVER_MS

    run(scenario)
