"""Subscribers, followers and observers over real peers that are killed and restarted; channels with tokens."""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
import uvloop
from tests.integration.channel_clusters import (
    STRATEGIES,
    check_once_and_in_order,
    create,
    read_and_commit,
    revived,
    run,
    send,
)
from tests.integration.peer_channels import metric, until

import avow
from avow.client.client import Client
from avow.client.observer import Committed, Enqueued, Stored
from avow.client.reader import ReadBatch
from avow.errors import Fenced, Forbidden, InvalidRequest, Unknown
from avow.testing.cluster import LocalCluster


@pytest.fixture(scope="module")
def peers() -> Iterator[LocalCluster]:
    with LocalCluster(3) as cluster:
        yield cluster


@pytest.fixture
def cluster(peers: LocalCluster) -> LocalCluster:
    return revived(peers)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_subscriber_gets_everything_once_though_peers_are_killed(cluster: LocalCluster, strategy: str) -> None:
    async def work(cluster: LocalCluster, client: Client) -> None:
        queue = await create(client, f"subscribed-{strategy}", strategy)
        async with client.producer(queue) as producer, client.subscribe(queue, "s") as batches:
            reading = asyncio.create_task(read_and_commit(batches, 4_000))
            for start, number in ((0, 1), (1_000, 2), (2_000, 3), (3_000, 1)):
                sending = asyncio.create_task(send(producer, start, start + 1_000))
                await asyncio.sleep(0.05)
                await asyncio.to_thread(cluster.kill, number)
                await sending
                await producer.commit()
                await asyncio.to_thread(cluster.restart, number)
            found = await asyncio.wait_for(reading, 60)
            assert batches.statistics()["channels"] >= 2
        check_once_and_in_order(found, 4_000)
        moved = await client.queue(queue).move_cursor("s", {})
        assert {lane: len(numbers) for lane, numbers in found.items()} == moved.versions

    run(cluster, work)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_takeover_is_clean(cluster: LocalCluster, strategy: str) -> None:
    async def work(cluster: LocalCluster, client: Client) -> None:
        queue = await create(client, f"taken-{strategy}", strategy, lanes=1)
        await client.queue(queue).enqueue_many([b"%d" % number for number in range(10)])
        async with await avow.connect(cluster.addresses) as other, client.subscribe(queue, "s") as first:
            committed = await anext(first)
            await committed.commit()
            await client.queue(queue).enqueue_many([b"%d" % number for number in range(10, 20)])
            held = await anext(first)
            async with other.subscribe(queue, "s") as second:
                again = await asyncio.wait_for(anext(second), 60)
                assert again.values()[0] == held.values()[0]
                with pytest.raises(Fenced):
                    await asyncio.wait_for(held.commit(), 60)
                with pytest.raises(Fenced):
                    await asyncio.wait_for(anext(first), 60)
                await again.commit()
                assert first.statistics()["channels"] == 1

    run(cluster, work)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_share_the_lanes_and_none_is_read_twice_as_they_come_and_go(
    cluster: LocalCluster, strategy: str
) -> None:
    async def work(cluster: LocalCluster, client: Client) -> None:
        queue = await create(client, f"members-{strategy}", strategy, lanes=4)
        committed: list[int] = []
        unsure: list[int] = []
        async with client.producer(queue) as producer, asyncio.TaskGroup() as readers:
            stop = asyncio.Event()
            for number, name in enumerate(("a", "b", "c")):
                readers.create_task(read_as_member(client, queue, name, committed, unsure, stop))
                await send(producer, number * 1_000, number * 1_000 + 1_000)
            await producer.commit()
            for _ in range(6_000):
                if len({*committed, *unsure}) >= 3_000:
                    break
                await asyncio.sleep(0.01)
            stop.set()
        assert len(committed) == len(set(committed))
        assert sorted({*committed, *unsure}) == list(range(3_000))

    run(cluster, work)


async def read_as_member(
    client: Client, queue: str, name: str, committed: list[int], unsure: list[int], stop: asyncio.Event
) -> None:
    """The messages it committed: a fenced batch belongs to another member, an unanswered one may."""
    async with client.subscribe(queue, "s", member=name) as batches:
        stopping = asyncio.create_task(stop.wait())
        while not stop.is_set():
            coming = asyncio.ensure_future(anext(batches))
            await asyncio.wait((coming, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
                break
            batch = coming.result()
            numbers = [int(value) for value in batch.values()]
            try:
                await batch.commit()
                committed += numbers
            except Fenced:
                continue
            except Unknown:
                unsure += numbers
        stopping.cancel()


def test_a_subscriber_that_does_not_commit_holds_no_more_than_the_limit(cluster: LocalCluster) -> None:
    async def work(cluster: LocalCluster, client: Client) -> None:
        queue = await create(client, "slow", lanes=1)
        for _ in range(20):
            await client.queue(queue).enqueue_many([bytes(10_000)] * 200)
        async with client.subscribe(queue, "s") as batches:
            held: list[ReadBatch] = []
            coming = asyncio.ensure_future(anext(batches))

            async def take(*, within_s: float) -> bool:
                nonlocal coming
                if not (await asyncio.wait((coming,), timeout=within_s))[0]:
                    return False
                held.append(coming.result())
                coming = asyncio.ensure_future(anext(batches))
                return True

            while sum(map(len, held)) <= 400:
                assert await take(within_s=60.0)
            await until(lambda: sum(metric(cluster, at, "avow_channels_suspended") for at in cluster.founders) == 1)
            while await take(within_s=1.0):
                pass
            taken = sum(map(len, held))
            assert taken < 1_800, "8 MiB of 40 are out, and a little more"
            while taken < 4_000:
                await held[-1].commit()
                held.clear()
                assert await take(within_s=60.0)
                taken += len(held[0])
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)

    run(cluster, work)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_following_returns_everything_once_though_peers_are_killed(cluster: LocalCluster, strategy: str) -> None:
    async def follow(client: Client, queue: str, count: int) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        async for batch in client.queue(queue).follow():
            found[batch.lane] += [int(value) for value in batch.values()]
            if sum(map(len, found.values())) >= count:
                break
        return found

    async def work(cluster: LocalCluster, client: Client) -> None:
        queue = await create(client, f"followed-{strategy}", strategy)
        following = asyncio.create_task(follow(client, queue, 3_000))
        async with client.producer(queue) as producer:
            for start, number in ((0, 1), (1_000, 2), (2_000, 3)):
                sending = asyncio.create_task(send(producer, start, start + 1_000))
                await asyncio.sleep(0.05)
                await asyncio.to_thread(cluster.kill, number)
                await sending
                await asyncio.to_thread(cluster.restart, number)
        check_once_and_in_order(await asyncio.wait_for(following, 60), 3_000)

    run(cluster, work)


def test_an_observer_sees_a_record_then_who_stored_it_then_its_commit(cluster: LocalCluster) -> None:
    async def work(cluster: LocalCluster, client: Client) -> None:
        queue = await create(client, "observed", "pub-sub")
        events = client.observe(queue)
        heard = asyncio.create_task(anext(events))
        observers = 'avow_channels{role="observer"}'
        await until(lambda: any(metric(cluster, number, observers) for number in cluster.running))
        done = await client.queue(queue).enqueue_many([b"a", b"b", b"c"])
        found = [await asyncio.wait_for(heard, 60)]
        while not isinstance(found[-1], Committed):
            found.append(await asyncio.wait_for(anext(events), 60))
        await events.aclose()
        first = found[0]
        assert isinstance(first, Enqueued)
        assert (first.lane, first.first_version, first.last_version) == (done[0].lane, 1, 3)
        assert first.batch.values() == [b"a", b"b", b"c"]
        stored = {event.peer for event in found if isinstance(event, Stored)}
        assert len(stored) >= 2
        assert found[-1] == Committed(done[0].lane, 3)
        with pytest.raises(InvalidRequest, match="pub-sub"):
            await anext(client.observe(await create(client, "not-observed")))

    run(cluster, work)


def test_a_raw_channel_carries_the_documented_wire_format(cluster: LocalCluster) -> None:
    async def work(cluster: LocalCluster, client: Client) -> None:
        queue = await create(client, "plain", lanes=1)
        await client.queue(queue).enqueue(b"hello")
        channel = await client.channel("reader", queue=queue, format="json", from_="start")
        assert (await anext(channel)).startswith(b'{"lanes"')
        assert b'"hello"' in await anext(channel)
        channel.close()
        await channel.wait_ended()

    run(cluster, work)


def test_channels_are_opened_over_tls_with_the_clients_token_and_its_rights(tmp_path: Path) -> None:
    settings = secrets(tmp_path)

    async def work() -> None:
        async with await avow.connect(secured.addresses, token="admin", ca=settings["tls_ca"]) as client:
            queue = await create(client, "q")
            async with client.producer(queue) as producer:
                await send(producer, 0, 500)
            async with client.subscribe(queue, "s") as batches:
                check_once_and_in_order(await read_and_commit(batches, 500), 500)
        async with await avow.connect(secured.addresses, token="reader", ca=settings["tls_ca"]) as client:
            async for batch in client.queue(queue).follow():
                assert len(batch)
                break
            for refused in (client.producer(queue), client.subscribe(queue, "s")):
                with pytest.raises(Forbidden):
                    await refused.open()

    with LocalCluster(1, settings=settings, token="admin", ca=settings["tls_ca"]) as secured:
        uvloop.run(asyncio.wait_for(work(), 60))


def secrets(folder: Path) -> dict[str, str]:
    """Settings for TLS and tokens."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    admin, reader = (hashlib.sha256(secret).hexdigest() for secret in (b"admin", b"reader"))
    (folder / "tokens.toml").write_text(
        f'[[token]]\nname = "admin"\nsha256 = "{admin}"\nadmin = true\n'
        f'[[token]]\nname = "reader"\nsha256 = "{reader}"\nrights = {{ "*" = ["read"] }}\n'
    )
    names = {"tokens": "tokens.toml", "tls_cert": "cert.pem", "tls_key": "key.pem", "tls_ca": "ca.pem"}
    return {name: str(folder / file) for name, file in names.items()}
