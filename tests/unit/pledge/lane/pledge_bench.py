"""Peers with their lanes of pledges, in one loop: virtual time, memory for disks, no sockets.

The nodes of `NodeCluster` get a tick every hundredth of a second of a clock that jumps; a `BenchPeer` is as much of a
peer's process as pledges ask for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.unit.channel.memory_sockets import run
from tests.unit.node.node_cluster import STEP_S, NodeCluster

from avow.node.answers import Answer
from avow.node.node import Node
from avow.pledge.record import NEVER_MS, Branch, Content, Pledge, Progress, Status
from avow.pledge.stores.lane.operations import peer_of, run_of
from avow.pledge.stores.lane.store import QUEUE, LaneStore
from avow.queue.key_to_lane import lane_for

__all__ = ["Bench", "BenchPeer", "over", "pledge_of", "run"]


class BenchPeer:
    """One run of a peer: after a kill its node is not driven any more, and its callers get no answer."""

    def __init__(self, bench: Bench, number: int) -> None:
        self.bench, self.number = bench, number
        self._node = bench.cluster.nodes[number]

    @property
    def node(self) -> Node:
        return self._node

    def now(self) -> float:
        return self.bench.cluster.now

    def now_ms(self) -> int:
        return int(self.now() * 1000)

    def expect(self, callback: Callable[[Answer], None]) -> int:
        self.bench.cluster._request += 1
        self.bench.callbacks[self.bench.cluster._request] = callback
        return self.bench.cluster._request

    def forget(self, request: int, *, lane: int | None = None) -> None:
        if self.bench.callbacks.pop(request, None) is not None:
            self.node.cancel(request, lane=lane)

    def wake(self) -> None:
        self.bench.wake()


class Bench:
    """`async with Bench() as bench`."""

    def __init__(self, peers: int = 3, *, seed: int = 1) -> None:
        self.cluster = NodeCluster(peers, seed=seed)
        self.callbacks: dict[int, Callable[[Answer], None]] = {}
        self.stores: dict[int, LaneStore] = {}
        self.gone: set[int] = set()  # peers whose runs hold nothing any more
        self.writes = 0
        self._woken = False

    async def __aenter__(self) -> Bench:
        self.cluster.run(2.0)
        self._ticker = asyncio.get_running_loop().create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        for number, store in self.stores.items():
            if number in self.cluster.nodes:
                await store.close()
        self._ticker.cancel()
        await asyncio.gather(self._ticker, return_exceptions=True)

    async def store(self, at: int = 1, **settings: Any) -> LaneStore:
        peer = BenchPeer(self, at)
        run = run_of(peer=at, incarnation=peer.node.incarnation)
        store = LaneStore(peer, run=run, is_gone=lambda run: peer_of(run)[0] in self.gone, **settings)
        await store.start()
        self.stores[at] = store
        await self.until(lambda: all(self.coordinator(f"g{number}") for number in range(64)))
        return store

    async def _tick(self) -> None:
        while True:
            self.cluster.run(STEP_S)
            self._answer()
            await asyncio.sleep(STEP_S)

    def wake(self) -> None:
        if not self._woken:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._settle)

    def _settle(self) -> None:
        self._woken = False
        self.cluster.settle()
        self._answer()

    def _answer(self) -> None:
        answers = self.cluster._answers
        for request in [request for request in answers if request in self.callbacks]:
            self.callbacks.pop(request)(answers.pop(request))

    async def until(self, predicate: Callable[[], Any], *, seconds: float = 30.0) -> Any:
        deadline = self.cluster.now + seconds
        while not (found := predicate()):
            assert self.cluster.now < deadline, "it did not come to pass"
            await asyncio.sleep(STEP_S)
        return found

    # ------------------------------------------------------------------ lanes

    def number_of(self, gid: str) -> int:
        queue = next(iter(self.cluster.nodes.values())).metadata.state.catalog.by_name[QUEUE]
        return queue.first_lane + lane_for(gid.encode(), queue.lanes)

    def coordinator(self, gid: str) -> int:
        """The coordinator of the gid's lane; 0: none is known."""
        node = next(iter(self.cluster.nodes.values()))
        lane = node.lanes.get(self.number_of(gid))
        return lane.core.live_coordinator(self.cluster.now) if lane is not None else 0

    def gid_at(self, peer: int, *, prefix: str = "g") -> str:
        """A gid whose lane this peer coordinates."""
        return next(gid for n in range(10_000) if self.coordinator(gid := f"{prefix}{n}") == peer)

    def kill(self, number: int) -> None:
        self.stores.pop(number, None)
        self.cluster.kill(number)
        self.gone.add(number)

    def restart(self, number: int) -> None:
        self.cluster.start(number)
        self.gone.discard(number)


def pledge_of(gid: str, *, created_ms: int = 1, next_at_ms: int = 100, payload: bytes = b"{}", **more: Any) -> Pledge:
    content = Content(gid, (Branch("01", "http://bank/in", payload),), "http://bank/check")
    return Pledge(content, Progress("prepared", created_ms, created_ms, next_at_ms), **more)


def over(pledge: Pledge, *, finished_ms: int = 50, status: Status = "succeeded") -> Progress:
    before = pledge.progress
    return Progress(status, before.created_ms, finished_ms, NEVER_MS, finished_ms=finished_ms)
