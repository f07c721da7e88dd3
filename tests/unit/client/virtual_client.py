"""The client and scripted peers on one virtual clock, with helpers for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain, pairwise, repeat

from tests.scripted_cluster import Request, ScriptedCluster
from tests.virtual_loop import run_virtual

import avow
from avow.client.client import Client
from avow.errors import AvowError
from avow.wire.batch import Batch

SWEEP_S = 0.05  # interval at which a client checks its deadlines
Scripted = AvowError | str | float | None
Work = Callable[[ScriptedCluster, Client], Awaitable[None]]


def play(work: Work, *, lanes: int = 1, pubsub: bool = False, timeout_s: float = 5.0, seed: int = 0) -> ScriptedCluster:
    """Three peers with a queue `q`, and a client whose pauses follow from the seed.

    Nothing of the client may be left when the work is done.
    """
    cluster = ScriptedCluster(3)

    async def main() -> None:
        cluster.create("q", lanes=lanes, strategy="pub-sub" if pubsub else "two-phase")
        async with cluster:
            async with await avow.connect(cluster.addresses, timeout_s=timeout_s) as client:
                client._cluster.random.seed(seed)
                await work(cluster, client)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"tasks that nobody owns any more: {left}"
            assert not any(peer.connections for peer in cluster.peers), "connections that nobody closed"

    run_virtual(main())
    return cluster


def now() -> float:
    return asyncio.get_running_loop().time()


def script_writes(*answers: Scripted, then: Scripted = None) -> Callable[[Request], Scripted]:
    """A script that gives these answers to consecutive writes."""
    script: Iterator[Scripted] = chain(answers, repeat(then))
    return lambda request: next(script) if request.is_write else None


def writes(cluster: ScriptedCluster) -> list[Request]:
    """The calls at all peers, ordered by time."""
    found = [request for peer in cluster.peers for request in peer.requests if request.is_write]
    return sorted(found, key=lambda request: request.at)


def write_ids(cluster: ScriptedCluster) -> list[bytes]:
    return [Batch(request.body).write_id for request in writes(cluster)]


def gaps(requests: list[Request]) -> list[float]:
    return [later.at - earlier.at for earlier, later in pairwise(requests)]


def everything(cluster: ScriptedCluster) -> list[bytes]:
    """The values of all lanes of the queue, lane by lane."""
    return [value for lane in cluster.lanes("q") for value in cluster.shelf.values("q", lane)]
