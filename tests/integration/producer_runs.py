"""Producers against scripted peers: a run of one, and the contents of the queue afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import uvloop
from tests.scripted_cluster import ScriptedCluster
from tests.virtual_loop import run_virtual

import avow
from avow.client.client import Client
from avow.client.producer import Producer

Work = Callable[[ScriptedCluster, Client], Awaitable[None]]


def run(
    work: Work,
    *,
    lanes: int = 1,
    pubsub: bool = False,
    timeout_s: float = 60.0,
    cluster: ScriptedCluster | None = None,
    virtual: bool = False,
) -> ScriptedCluster:
    """`virtual`: on a virtual clock and a network in memory, for what happens at a deadline."""
    peers = cluster or ScriptedCluster(3)

    async def go() -> None:
        if cluster is None:
            peers.create("q", lanes=0 if pubsub else lanes, strategy="pub-sub" if pubsub else "two-phase")
        for peer in peers.peers if pubsub else ():
            peer.open_lane = 10 + peer.number
        async with peers, await avow.connect(peers.addresses, timeout_s=timeout_s) as client:
            await work(peers, client)

    (run_virtual if virtual else uvloop.run)(go())
    return peers


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(60_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not come about")


def written_over_http(cluster: ScriptedCluster) -> int:
    return sum(request.is_write for peer in cluster.peers for request in peer.requests)


def everything(cluster: ScriptedCluster) -> list[bytes]:
    lanes = sorted(lane for _, lane in cluster.shelf.records)
    return [value for lane in lanes for value in cluster.shelf.values("q", lane)]


async def send(producer: Producer, first: int, last: int, *, turns: bool = True) -> None:
    for number in range(first, last):
        await producer.send(b"%04d" % number)
        if turns:
            await asyncio.sleep(0)


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%04d" % number for number in range(first, last)]
