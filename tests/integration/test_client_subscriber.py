"""Subscriptions against scripted peers: handed out once, committed on whichever channel, and taken over cleanly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop
from tests.scripted_cluster import ScriptedCluster
from tests.virtual_loop import run_virtual

import avow
from avow.channel.protocol.frames import EndCode
from avow.client.client import Client
from avow.client.reader import ReadBatch
from avow.client.subscriber import Subscription
from avow.errors import Fenced, InvalidRequest, Offline, UnknownQueue

Work = Callable[[ScriptedCluster, Client], Awaitable[None]]


def run(work: Work, *, lanes: int = 1, timeout_s: float = 60.0, virtual: bool = False) -> None:
    """`virtual`: on a virtual clock and a network in memory, for what happens at a deadline."""

    async def go() -> None:
        cluster = ScriptedCluster(3)
        cluster.create("q", lanes=lanes)
        async with cluster, await avow.connect(cluster.addresses, timeout_s=timeout_s) as client:
            await work(cluster, client)

    (run_virtual if virtual else uvloop.run)(go())


async def fill(client: Client, first: int, last: int, *, lane: int = 0) -> None:
    for number in range(first, last):
        await client.queue("q").enqueue(b"%d" % number, lane=lane)


async def take(batches: Subscription, count: int) -> list[ReadBatch]:
    """Until so many messages were handed out."""
    found: list[ReadBatch] = []
    while sum(map(len, found)) < count:
        found.append(await asyncio.wait_for(anext(batches), 60))
    assert sum(map(len, found)) == count
    return found


def values(batches: list[ReadBatch]) -> list[int]:
    return [int(value) for batch in batches for value in batch.values()]


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(60_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not come about")


def test_existing_and_new_messages_are_delivered_and_a_commit_moves_the_cursor() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        await fill(client, 0, 5)
        async with client.subscribe("q", "s") as batches:
            first = await take(batches, 5)
            await fill(client, 5, 7)
            second = await take(batches, 2)
            assert values(first + second) == list(range(7))
            await first[-1].commit()
            assert cluster.shelf.cursors["q", "s"] == {"0": 5}
            await second[-1].commit()
            await second[-1].commit()
            assert cluster.shelf.cursors["q", "s"] == {"0": 7}

    run(work)


def test_uncommitted_messages_are_redelivered_to_the_next_reader() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        await fill(client, 0, 4)
        async with client.subscribe("q", "s") as batches:
            await take(batches, 4)
        async for batch in client.subscribe("q", "s"):
            assert values([batch]) == [0, 1, 2, 3]
            await batch.commit()
            break
        await fill(client, 4, 5)
        async for batch in client.subscribe("q", "s"):
            assert values([batch]) == [4]
            break

    run(work)


def test_groups_that_arrived_meanwhile_are_one_batch() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        await fill(client, 0, 100)
        async with client.subscribe("q", "s") as batches:
            await until(lambda: batches.statistics()["arrived"] == 100)
            (batch,) = await take(batches, 100)
            assert (batch.first_version, batch.last_version) == (1, 100)
            assert [message.version for message in batch.messages()] == list(range(1, 101))

    run(work)


def test_a_batch_in_use_when_the_peer_dies_is_not_redelivered_and_can_be_committed() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        await fill(client, 0, 3)
        async with client.subscribe("q", "s") as batches:
            first = await take(batches, 3)
            await fill(client, 3, 6)
            second = await take(batches, 3)
            await cluster.peer(1).kill()
            await fill(client, 6, 9)
            third = await take(batches, 3)
            assert values(first + second + third) == list(range(9))
            for batch in (*first, *second, *third):
                await asyncio.wait_for(batch.commit(), 60)
            assert cluster.shelf.cursors["q", "s"] == {"0": 9}
            assert batches.statistics()["channels"] == 2

    run(work)


def test_a_commit_that_waits_while_the_peer_dies_is_done_on_the_next_channel() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        await fill(client, 0, 3)
        async with client.subscribe("q", "s") as batches:
            (batch,) = await take(batches, 3)
            await cluster.peer(1).kill()
            await asyncio.wait_for(batch.commit(), 60)
            assert cluster.shelf.cursors["q", "s"] == {"0": 3}

    run(work)


def test_a_commit_is_exact_even_if_messages_are_redelivered_in_other_groups() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        for peer in cluster.peers[1:]:
            peer.channels.group_count = 5
        async with client.subscribe("q", "s") as batches:
            await fill(client, 0, 3)
            first = await take(batches, 3)
            await fill(client, 3, 4)
            second = await take(batches, 1)
            await cluster.peer(1).kill()
            await fill(client, 4, 8)
            third = await take(batches, 4)
            assert values(first + second + third) == list(range(8))
            await asyncio.wait_for(first[-1].commit(), 60)
            assert cluster.shelf.cursors["q", "s"] == {"0": 3}
            await asyncio.wait_for(second[-1].commit(), 60)
            assert cluster.shelf.cursors["q", "s"] == {"0": 4}
            await asyncio.wait_for(third[-1].commit(), 60)
            assert cluster.shelf.cursors["q", "s"] == {"0": 8}

    run(work)


def test_a_lost_socket_is_resumed_transparently() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        async with client.subscribe("q", "s") as batches:
            for start in range(0, 30, 3):
                await fill(client, start, start + 3)
                found = await take(batches, 3)
                cluster.peer(1).channels.cut()
                assert values(found) == list(range(start, start + 3))
                await found[-1].commit()
            assert batches.statistics()["channels"] == 1
        assert cluster.shelf.cursors["q", "s"] == {"0": 30}

    run(work)


def test_a_second_client_takes_over_and_the_first_cannot_commit_or_return() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        await fill(client, 0, 3)
        async with client.subscribe("q", "s") as first, await avow.connect(cluster.addresses) as other:
            (batch,) = await take(first, 3)
            async with other.subscribe("q", "s") as second:
                (again,) = await take(second, 3)
                with pytest.raises(Fenced):
                    await asyncio.wait_for(anext(first), 60)
                with pytest.raises(Fenced):
                    await batch.commit()
                with pytest.raises(Fenced):
                    await anext(first)
                assert cluster.shelf.cursors["q", "s"] == {}
                await again.commit()
                assert cluster.shelf.cursors["q", "s"] == {"0": 3}
                assert first.statistics()["channels"] == 1

    run(work)


def test_members_share_lanes_and_a_batch_whose_lane_moved_is_fenced() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        for lane in range(4):
            await fill(client, 10 * lane, 10 * lane + 2, lane=lane)
        async with client.subscribe("q", "s", member="a") as first:
            found = {batch.lane: batch for batch in await take(first, 8)}
            async with client.subscribe("q", "s", member="b") as second:
                theirs = await take(second, 4)
                assert {batch.lane for batch in theirs} == {1, 3}
                await until(lambda: first.statistics()["lanes"] == 2)
                await asyncio.wait_for(found[0].commit(), 60)
                for lane in (1, 3):
                    with pytest.raises(Fenced, match="another member"):
                        await found[lane].commit()
                await asyncio.wait_for(found[2].commit(), 60)
                await theirs[-1].commit()
                assert cluster.shelf.cursors["q", "s"] == {str(lane): 2 for lane in range(4)}
                await fill(client, 2, 3, lane=0)
                assert values(await take(first, 1)) == [2]

    run(work, lanes=4)


def test_a_subscriber_that_does_not_commit_gets_no_more_than_the_limit() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        for _ in range(60):
            await client.queue("q").enqueue_many([bytes(1_000)] * 200)
        async with client.subscribe("q", "s") as batches:
            taken = 0
            channel = cluster.peer(1).channels
            await until(lambda: bool(channel.open) and channel.open[0].suspended)
            while taken < 5_000:
                taken += len(await anext(batches))
            await asyncio.sleep(0.05)
            assert channel.open[0].non_acked_message_count <= 60
            assert channel.open[0].core.out.size_bytes < 9_000_000
            waiting = asyncio.create_task(_all(batches, 12_000 - taken))
            await waiting
            assert cluster.shelf.cursors["q", "s"] == {"0": 12_000}

    run(work)


async def _all(batches: Subscription, count: int) -> None:
    while count > 0:
        batch = await anext(batches)
        count -= len(batch)
        await batch.commit()


@pytest.mark.parametrize("code", [EndCode.GOING, EndCode.EXPIRED, EndCode.ABORTED, EndCode.MOVED])
def test_an_end_is_not_reported_when_another_channel_takes_over(code: EndCode) -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        await fill(client, 0, 2)
        async with client.subscribe("q", "s") as batches:
            (first,) = await take(batches, 2)
            cluster.peer(1).channels.end_all(code)
            await fill(client, 2, 4)
            (second,) = await take(batches, 2)
            await first.commit()
            await second.commit()
            assert values([first, second]) == [0, 1, 2, 3]

    run(work)


def test_unreadable_messages_are_reported() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        with pytest.raises(UnknownQueue):
            await client.subscribe("nowhere", "s").open()
        with pytest.raises(InvalidRequest, match="name"):
            client.subscribe("q", "")
        await fill(client, 0, 1)
        async with client.subscribe("q", "s") as batches:
            (batch,) = await take(batches, 1)
            for peer in cluster.peers:
                await peer.kill()
            with pytest.raises(Offline):
                await asyncio.wait_for(anext(batches), 60)
            with pytest.raises(Offline):
                await batch.commit()
        with pytest.raises(Offline):
            await batch.commit()

    run(work, timeout_s=5.0, virtual=True)


def test_a_commit_after_leaving_is_refused_as_too_late() -> None:
    async def work(cluster: ScriptedCluster, client: Client) -> None:
        await fill(client, 0, 1)
        async with client.subscribe("q", "s") as batches:
            (batch,) = await take(batches, 1)
        with pytest.raises(InvalidRequest, match="closed"):
            await batch.commit()
        with pytest.raises(InvalidRequest, match="opened before"):
            await anext(aiter(batches))

    run(work)
