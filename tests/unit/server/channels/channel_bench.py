"""Peers, their channels and clients of both, in one loop: virtual time, memory for disks and sockets.

The nodes of `NodeCluster` get a tick every hundredth of a second of a clock that jumps. A `BenchPeer` is as much of a
peer's process as channels ask for. Clients are real channels that dial a keeper in memory.
"""

from __future__ import annotations

import asyncio
import os
import selectors
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
from tests.unit.channel.memory_sockets import Network
from tests.unit.node.node_cluster import STEP_S, NodeCluster

from avow.channel.connector import open_channel
from avow.channel.endpoint import Channel
from avow.channel.transports.socket import Socket, SocketUser
from avow.errors import ChannelFailed
from avow.limits import MIB
from avow.node.answers import Answer, Stored
from avow.node.founding import Founding
from avow.node.node import Node
from avow.node.roles import SHIPPED, NodeRoles
from avow.replication.durable import StoreImage
from avow.server.access import ANYBODY, Token, Tokens
from avow.server.byte_budget import ByteBudget
from avow.server.channels.channels import Channels
from avow.server.channels.opening import opening_of
from avow.server.http.api import Api
from avow.server.http.schemas import ChannelParameters
from avow.server.http.server import HANDLERS
from avow.wire.batch import Batch, encode_batch
from avow.wire.ranges import parse_ranges

_INSTANT_S = 1e-6


class _Clock(selectors.DefaultSelector):
    """Jumps to the next timer. It always advances, so that a wait for the rest of an interval ends."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0

    def select(self, timeout: float | None = None) -> Any:
        self.now += max(timeout or 0.0, _INSTANT_S)
        return super().select(0)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """On a loop with such a clock. An error that reaches its exception handler fails the test."""
    heard: list[dict[str, Any]] = []

    def new_loop() -> asyncio.AbstractEventLoop:
        clock = _Clock()
        loop = asyncio.SelectorEventLoop(clock)
        loop.time = lambda: clock.now  # type: ignore[method-assign]
        loop.set_exception_handler(lambda _, context: heard.append(context))
        return loop

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())
    assert heard == []


class BenchPeer:
    def __init__(self, bench: Bench, number: int) -> None:
        self.bench, self.number = bench, number
        self.on_turn: Callable[[], None] | None = None
        self.founding = Founding(me=number, founders=(), image=StoreImage(0, {}, []))

    @property
    def node(self) -> Node:
        return self.bench.cluster.nodes[self.number]

    def now(self) -> float:
        return self.bench.cluster.now

    def now_ms(self) -> int:
        return int(self.now() * 1000)

    def expect(self, callback: Callable[[Answer], None]) -> int:
        request = self.bench.next_request()
        self.bench.callbacks[request] = callback
        return request

    def forget(self, request: int, *, lane: int | None = None) -> None:
        if self.bench.callbacks.pop(request, None) is not None:
            self.node.cancel(request, lane=lane)

    def wake(self) -> None:
        self.bench.wake()


class Road(Network):
    """Sockets to one peer. `gone`: it is dead, which a dial detects after a moment."""

    gone = False

    async def dial(self, user: SocketUser) -> Socket:
        if self.gone:
            await asyncio.sleep(STEP_S)
            return await self.unreachable(user)
        return await super().dial(user)

    def cut(self) -> None:
        self.gone = True
        self.sockets[-1].lose("cut")


class Bench:
    """`async with Bench() as bench`."""

    def __init__(
        self,
        peers: int = 3,
        *,
        window_s: float = 5.0,
        channels_max: int = 100,
        seed: int = 1,
        roles: NodeRoles = SHIPPED,
        memory_bytes_max: int = 256 * MIB,
    ) -> None:
        self.cluster = NodeCluster(peers, seed=seed, roles=roles)
        self.callbacks: dict[int, Callable[[Answer], None]] = {}
        self.peers = {number: BenchPeer(self, number) for number in self.cluster.nodes}
        self.budget = ByteBudget(memory_bytes_max)
        self._settings: dict[str, Any] = {
            "window_s": window_s,
            "channels_max": channels_max,
            "budget": self.budget,
        }
        self.channels: dict[int, Channels] = {}
        self.roads: list[Road] = []
        self._woken = False

    async def __aenter__(self) -> Bench:
        self.cluster.run(2.0)
        for number in self.peers:
            self.serve(number)
        self._ticker = asyncio.get_running_loop().create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ticker.cancel()
        await asyncio.gather(self._ticker, return_exceptions=True)

    def serve(self, number: int) -> None:
        peer: Any = self.peers[number]
        peer.on_turn = None
        self.channels[number] = Channels(peer, **self._settings)

    def next_request(self) -> int:
        self.cluster._request += 1
        return self.cluster._request

    # ------------------------------------------------------------------ time

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
            answer = answers.pop(request)
            callback = self.callbacks[request] if type(answer) is Stored else self.callbacks.pop(request)
            callback(answer)
        for peer in self.peers.values():
            if peer.number in self.cluster.nodes and peer.on_turn is not None:
                peer.on_turn()

    async def run(self, seconds: float) -> None:
        """Let this much virtual time pass."""
        await asyncio.sleep(seconds)

    async def until(self, predicate: Callable[[], Any], *, seconds: float = 30.0) -> Any:
        deadline = self.cluster.now + seconds
        while not (found := predicate()):
            assert self.cluster.now < deadline, "it did not come to pass"
            await self.run(STEP_S)
        return found

    # ------------------------------------------------------------------ peers

    def kill(self, number: int) -> None:
        """Its clients lose their sockets, and its channels get nothing more from them."""
        self.cluster.kill(number)
        for _, channel in self.channels[number]._open.values():
            channel.on_end = channel.on_commit = channel.on_acked = channel.on_resume = None
        for road in self.roads:
            if road.purpose == f"at {number}" and not road.gone:
                road.cut()

    def coordinator(self, lane: int) -> int:
        node = next(iter(self.cluster.nodes.values()))
        return node.lanes[lane].core.live_coordinator(self.cluster.now)

    def ends_at(self, number: int, role: str) -> Channel:
        """The peer's end of its one channel of that role."""
        (found,) = [channel for known, channel in self.channels[number]._open.values() if known == role]
        return found

    def values(self, lane: int, *, at: int | None = None) -> list[bytes]:
        """As its coordinator shows them by default."""
        at = at or self.coordinator(lane)
        return self.cluster.values(lane, at=at) if at in self.cluster.nodes else []

    def cursor(self, lane: int, subscriber: str, *, at: int | None = None) -> int:
        node = self.cluster.nodes[at or self.coordinator(lane)]
        return node.lanes[lane].state.subscribers.by_name[subscriber].version

    def vector(self, queue: str, subscriber: str) -> dict[int, int]:
        node = next(iter(self.cluster.nodes.values()))
        found = node.metadata.state.catalog.by_name[queue].subscribers.get(subscriber)
        return dict(found.versions) if found is not None else {}

    def members(self, queue: str, subscriber: str) -> list[tuple[str, int]]:
        node = next(iter(self.cluster.nodes.values()))
        found = node.metadata.state.catalog.by_name[queue].subscriptions.get(subscriber)
        return [(member.name, member.peer) for member in found.members] if found is not None else []

    # ------------------------------------------------------------------ clients

    def api(self, at: int) -> Api:
        peer: Any = self.peers[at]
        return Api(peer, Tokens([]), HANDLERS)

    def road(self, at: int, *, token: Token = ANYBODY, **parameters: Any) -> Road:
        """Sockets to this peer, for a channel with these parameters. Raises what the request is answered with."""
        asked = msgspec.convert(parameters, ChannelParameters, strict=False)
        opening = opening_of(self.api(at), token, asked)
        channels = self.channels[at]
        road = Road(channels._registry, lambda channel: channels._begin(opening, channel), purpose=f"at {at}")
        self.roads.append(road)
        return road

    async def open(
        self, at: int = 1, *, begin: Any = None, options: dict[str, Any] | None = None, **asked: Any
    ) -> Channel:
        road = self.road(at, **asked)
        return await open_channel(road.dial, begin=begin, **(options or {}))

    async def read(self, at: int = 1, *, acks: bool = True, **asked: Any) -> Reading:
        reading = Reading(acks=acks)
        await self.open(at, begin=reading.begin, **asked)
        return reading

    async def fill(self, lane: int, values: Sequence[bytes]) -> None:
        """Write them past all channels."""
        for value in values:
            self.cluster.write_until_done(lane, value, at=next(iter(self.cluster.nodes)))
        self._answer()


class Reading:
    """A client that reads: records the messages in order, and the commits."""

    def __init__(self, *, acks: bool) -> None:
        self.acks = acks
        self.lanes: dict[str, int] | None = None
        self.epoch = 0
        self.got: list[tuple[int, bytes]] = []
        self.raw: list[bytes] = []
        self.commits: list[int] = []
        self.ended: list[ChannelFailed | None] = []
        self.channel: Channel

    def begin(self, channel: Channel) -> None:
        self.channel = channel
        channel.on_messages, channel.on_commit, channel.on_end = self._messages, self._commit, self.ended.append

    def _messages(self, values: list[memoryview]) -> None:
        for value in values:
            if self.lanes is None and bytes(value[:8]) == b'{"lanes"':
                header = msgspec.json.decode(value)
                self.lanes, self.epoch = header["lanes"], header.get("epoch", 0)
            elif bytes(value[:1]) == b"{":
                self.raw.append(bytes(value))
            else:
                for found in parse_ranges(bytes(value)):
                    batch = Batch(found.record)
                    numbers = range(found.offset, found.offset + found.count)
                    self.got += [(found.lane, bytes(batch.value(number))) for number in numbers]

    def _commit(self, commit_id: int) -> None:
        self.commits.append(commit_id)
        if self.acks:
            self.channel.ack_commit(commit_id)

    def of(self, lane: int) -> list[bytes]:
        return [value for found, value in self.got if found == lane]

    @property
    def failure(self) -> ChannelFailed:
        failure = self.ended[0]
        assert failure is not None
        return failure


def record(*values: bytes, lane: int = 0, age_ms: int = 0, write_id: bytes | None = None) -> bytes:
    """One message of a producer."""
    head = lane.to_bytes(4, "little") + age_ms.to_bytes(4, "little")
    return head + bytes(encode_batch(values, write_id=os.urandom(16) if write_id is None else write_id))
