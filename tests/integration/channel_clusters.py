"""Clients of channels over real peers: a run of one client, its messages, and the contents of the queue afterwards."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

import avow
from avow.client.client import Client
from avow.client.producer import Producer
from avow.client.reader import ReadBatch
from avow.client.subscriber import Subscription
from avow.testing.cluster import LocalCluster

Work = Callable[[LocalCluster, Client], Awaitable[None]]
PROGRAM = Path(__file__).with_name("client_programs.py")
STRATEGIES = ("two-phase", "pub-sub")


def revived(peers: LocalCluster) -> LocalCluster:
    """With all its peers, whatever the test before has done to them."""
    for number in peers.founders:
        if number not in peers.running:
            peers.restart(number)
    return peers


def run(cluster: LocalCluster, work: Work, *, timeout_s: float = 60.0) -> None:
    async def go() -> None:
        async with await avow.connect(cluster.addresses, timeout_s=timeout_s) as client:
            await asyncio.wait_for(work(cluster, client), 300)

    uvloop.run(go())


async def create(client: Client, name: str, strategy: str = "two-phase", *, lanes: int = 2) -> str:
    await client.create_queue(name, strategy=strategy, lanes=lanes if strategy == "two-phase" else 1)  # type: ignore[arg-type]
    return name


async def contents(client: Client, queue: str, count: int) -> dict[int, list[int]]:
    """By lane, once so many messages are visible."""
    for _ in range(1_200):
        pubsub = (await client.queue(queue).info()).pubsub
        found: dict[int, list[int]] = defaultdict(list)
        async for batch in client.queue(queue).read(level="local" if pubsub else "linearizable"):
            found[batch.lane] += [int(value) for value in batch.values()]
        if sum(map(len, found.values())) >= count:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(f"{sum(map(len, found.values()))} messages are visible, not {count}")


def check_once_and_in_order(found: dict[int, list[int]], count: int) -> None:
    assert sorted(number for lane in found.values() for number in lane) == list(range(count))
    for lane in found.values():
        assert lane == sorted(lane)


def peer_of(cluster: LocalCluster, producer: Producer) -> int:
    url = producer.statistics()["peer"]
    return next((number for number in cluster.founders if cluster.api(number) == url), 0)


async def connected(cluster: LocalCluster, producer: Producer) -> int:
    for _ in range(6_000):
        if number := peer_of(cluster, producer):
            return number
        await asyncio.sleep(0.01)
    raise AssertionError("the producer found no peer")


async def send(producer: Producer, first: int, last: int) -> None:
    for number in range(first, last):
        await producer.send(b"%d" % number)
        if number % 20 == 0:
            await asyncio.sleep(0.002)


async def read_and_commit(batches: Subscription, count: int) -> dict[int, list[int]]:
    """Until so many messages were handed out and all are committed."""
    found: dict[int, list[int]] = defaultdict(list)
    held: list[ReadBatch] = []
    while count > 0:
        batch = await anext(batches)
        found[batch.lane] += [int(value) for value in batch.values()]
        count -= len(batch)
        held.append(batch)
        if len(held) == 3 or count <= 0:  # some are always in hand when something happens
            await held[-1].commit()
            held.clear()
    return found
