"""Producers over real peers that are killed, paused, restarted and cut off."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop
from tests.integration.channel_clusters import (
    PROGRAM,
    STRATEGIES,
    check_once_and_in_order,
    connected,
    contents,
    create,
    peer_of,
    read_and_commit,
    revived,
    run,
    send,
)
from tests.integration.reset_proxy import ResetProxy

import avow
from avow.client.client import Client
from avow.errors import ChannelFailed, Fenced, InvalidRequest, UnknownMessage
from avow.testing.cluster import LocalCluster


@pytest.fixture(scope="module")
def peers() -> Iterator[LocalCluster]:
    with LocalCluster(3) as cluster:
        yield cluster


@pytest.fixture
def cluster(peers: LocalCluster) -> LocalCluster:
    return revived(peers)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_messages_are_queued_once_and_in_order_though_the_producers_peer_is_killed(
    cluster: LocalCluster, strategy: str
) -> None:
    async def work(cluster: LocalCluster, client: Client) -> None:
        queue = await create(client, f"killed-{strategy}", strategy)
        async with client.producer(queue) as producer:
            for start in (0, 2_000, 4_000):
                await send(producer, start, start + 1_000)
                number = await connected(cluster, producer)
                sending = asyncio.create_task(send(producer, start + 1_000, start + 2_000))
                await asyncio.sleep(0.02)
                await asyncio.to_thread(cluster.kill, number)
                await sending
                await producer.commit()
                assert producer.non_acked_message_count == 0
                await asyncio.to_thread(cluster.restart, number)
            assert producer.statistics()["channels"] >= 3
        check_once_and_in_order(await contents(client, queue, 6_000), 6_000)

    run(cluster, work)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_paused_peer_is_abandoned_and_duplicates_nothing_when_it_resumes(
    cluster: LocalCluster, strategy: str
) -> None:
    async def work(cluster: LocalCluster, client: Client) -> None:
        queue = await create(client, f"paused-{strategy}", strategy)
        async with client.producer(queue) as producer:
            await send(producer, 0, 500)
            number = await connected(cluster, producer)
            cluster.pause(number)
            try:
                await send(producer, 500, 1_500)
                await producer.commit()
                assert peer_of(cluster, producer) != number
            finally:
                cluster.resume(number)
            await send(producer, 1_500, 2_000)
        await asyncio.to_thread(cluster.wait_ready)
        check_once_and_in_order(await contents(client, queue, 2_000), 2_000)

    run(cluster, work)


def test_resets_at_random_bytes_lose_and_duplicate_nothing(cluster: LocalCluster) -> None:
    rng = random.Random(8)

    async def go() -> None:
        host, port = cluster.api(1).removeprefix("http://").split(":")
        proxy = ResetProxy((host, int(port)), budget=lambda: rng.randrange(2_000, 60_000))
        await proxy.start()
        url = proxy.url.replace("ws://", "http://").rstrip("/")
        async with await avow.connect(cluster.addresses) as client:
            queue = await create(client, "reset")
        async with await avow.connect(url) as client:
            cut_off(client, url)
            async with client.producer(queue) as producer, client.subscribe(queue, "s") as batches:
                reading = asyncio.create_task(read_and_commit(batches, 5_000))
                for number in range(5_000):
                    await producer.send(b"%d" % number, headers={"pad": bytes(100)})
                    if number % 10 == 0:
                        await asyncio.sleep(0.001)
                await producer.commit()
                check_once_and_in_order(await reading, 5_000)
            assert proxy.resets >= 10
        async with await avow.connect(cluster.addresses) as client:
            check_once_and_in_order(await contents(client, queue, 5_000), 5_000)
        await proxy.close()

    uvloop.run(asyncio.wait_for(go(), 300))


def cut_off(client: Client, url: str) -> None:
    """The client knows no other way than this."""
    client._cluster.peers = [peer for peer in client._cluster.peers if peer.address.url == url]
    client._cluster.at = lambda _: None  # type: ignore[method-assign,assignment,misc]


def test_without_a_cluster_uncommitted_messages_are_returned_and_none_is_missing(
    cluster: LocalCluster,
) -> None:
    async def produce(cluster: LocalCluster, client: Client) -> tuple[int, ChannelFailed]:
        committed = sent = 0
        try:
            async with client.producer("q") as producer:
                while True:
                    await producer.send(b"%d" % sent)
                    sent += 1
                    if sent % 100 == 0 and sent < 1_000:
                        await producer.commit()
                        committed = sent
                    if sent == 1_200:
                        for number in cluster.founders:
                            cluster.kill(number)
                    if sent == 1_300:
                        await producer.commit()
        except ChannelFailed as failed:
            assert sent == 1_300
            return committed, failed
        raise AssertionError("it did not fail")

    async def work(cluster: LocalCluster, client: Client) -> None:
        await create(client, "q")
        committed, failed = await produce(cluster, client)
        pending = [int(one.value) for one in failed.pending]
        assert sorted(pending) == list(range(1_300 - len(pending), 1_300))
        assert 1_300 - len(pending) >= committed
        for number in cluster.founders:
            await asyncio.to_thread(cluster.restart, number, ready=False)
        await asyncio.to_thread(cluster.wait_ready)
        found = await contents(client, "q", committed)
        there = sorted(number for lane in found.values() for number in lane)
        assert len(there) == len(set(there))
        assert set(there) | set(pending) == set(range(1_300))
        for one in failed.pending:
            known = await outcome(client, one.write_id)
            assert known is (int(one.value) in there)
            assert one.fate == "unknown" or not known

    run(cluster, work, timeout_s=3.0)


async def outcome(client: Client, write_id: bytes) -> bool:
    try:
        return bool(await client.queue("q").outcome(write_id))
    except UnknownMessage:
        return False


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_killed_program_resumes_from_its_store_and_each_message_is_queued_once(
    cluster: LocalCluster, strategy: str, tmp_path: Path
) -> None:
    async def work(cluster: LocalCluster, client: Client) -> None:
        queue, first = await create(client, f"program-{strategy}", strategy), 0
        for life in range(3):
            sent = await asyncio.to_thread(live_and_die, cluster, queue, tmp_path / "pending", first, 130 + 90 * life)
            await asyncio.to_thread(settle, cluster, queue, tmp_path / "pending")
            found = await contents(client, queue, sent + 1)
            count = sum(map(len, found.values()))
            check_once_and_in_order(found, count)
            assert count in (sent + 1, sent + 2), "what was sent is there, and perhaps what it was just sending"
            first = count

    run(cluster, work)


def program(cluster: LocalCluster, queue: str, store: Path, first: int, last: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), cluster.addresses, queue, str(store), str(first), str(last)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def live_and_die(cluster: LocalCluster, queue: str, store: Path, first: int, count: int) -> int:
    """The last number that the program reported as sent before it was killed."""
    sent = -1
    with program(cluster, queue, store, first, first + 100_000) as process:
        assert process.stdout is not None
        for line in process.stdout:
            word, _, number = line.strip().partition(" ")
            sent = int(number) if word == "sent" else sent
            if sent == first + count:
                process.kill()
    return sent


def settle(cluster: LocalCluster, queue: str, store: Path) -> None:
    with program(cluster, queue, store, 0, 0) as process:
        assert process.stdout is not None
        assert process.stdout.read() == "resolved\n"
    assert process.returncode == 0


def test_blocking_producers_and_subscribers_do_the_same_as_async_ones(cluster: LocalCluster) -> None:
    with avow.connect_blocking(cluster.addresses) as client:
        client.create_queue("blocking", lanes=2)
        with client.producer("blocking") as producer:
            for number in range(3_000):
                producer.send(b"%d" % number)
            producer.send_many([b"3000", b"3001"], keys=[b"k", b"k"])
            producer.commit()
            assert producer.non_acked_message_count == 0
            assert sum(one.messages for one in producer.written()) == 3_002
            with pytest.raises(TypeError):
                producer.send("text")  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest, match="lanes 0 to 1"):
                producer.send(b"x", lane=2)
        found: list[int] = []
        with client.subscribe("blocking", "s") as batches:
            for batch in batches:
                found += map(int, batch.values())
                batch.commit()
                if len(found) == 3_002:
                    break
        assert sorted(found) == list(range(3_002))
        client.queue("blocking").enqueue(b"3002")
        for batch in client.subscribe("blocking", "s"):
            assert batch.values() == [b"3002"]
            break
        with client.subscribe("blocking", "s") as first, client.subscribe("blocking", "s") as second:
            next(iter(second)).commit()
            with pytest.raises(Fenced):
                list(first)


def test_a_failing_blocking_producer_also_returns_messages_sent_meanwhile() -> None:
    with LocalCluster(1) as cluster, avow.connect_blocking(cluster.addresses, timeout_s=3.0) as client:
        client.create_queue("q")

        def produce() -> None:
            with client.producer("q") as producer:
                for number in range(1_000_000):
                    producer.send(b"%d" % number)
                    sent.append(number)
                    if number == 20_000:
                        producer.commit()
                        cluster.kill(1)

        sent: list[int] = []
        with pytest.raises(ChannelFailed) as caught:
            produce()
        pending = [int(one.value) for one in caught.value.pending]
        assert pending == list(range(20_001, len(sent)))
