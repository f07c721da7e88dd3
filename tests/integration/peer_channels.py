"""Channels to real peers: dialled over WebSockets, as any client would, without the client library above them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import urllib.request
from collections.abc import Callable, Coroutine, Sequence
from time import monotonic
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlencode

from avow.channel.connector import open_channel
from avow.channel.endpoint import Channel
from avow.channel.transports.websocket_handshake import SUBPROTOCOL, Socket, SocketUser, dial
from avow.errors import ChannelFailed, Offline
from avow.testing.cluster import LocalCluster
from avow.testing.cluster_wait import wait_until
from avow.wire.batch import Batch, encode_batch
from avow.wire.ranges import parse_ranges

T = TypeVar("T")
PAUSE_S = 0.02
CHANNELS: list[Channel] = []


async def until(predicate: Callable[[], Any], *, timeout_s: float = 60.0) -> Any:
    """The first true value of it."""
    deadline = monotonic() + timeout_s
    while not (found := predicate()):
        assert monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(PAUSE_S)
    return found


class Watched:
    """A socket's user, seen to by the test, which leaves none open."""

    sockets: ClassVar[set[Socket]] = set()

    def __init__(self, user: SocketUser) -> None:
        self._user = user

    def opened(self, socket: Socket) -> None:
        self.sockets.add(socket)
        self._user.opened(socket)

    def packet(self, socket: Socket, data: bytes | memoryview) -> None:
        self._user.packet(socket, data)

    def writable(self, socket: Socket) -> None:
        self._user.writable(socket)

    def lost(self, socket: Socket, reason: str) -> None:
        self.sockets.discard(socket)
        self._user.lost(socket, reason)


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """Closes at its end all that is open, even after a failure."""

    async def whole() -> T:
        try:
            return await scenario
        finally:
            for channel in CHANNELS:
                channel.abort("the test is over")
            CHANNELS.clear()
            await until(lambda: not Watched.sockets)

    return asyncio.run(whole())


async def open_to(
    url: str,
    *,
    begin: Callable[[Channel], None] | None = None,
    headers: Sequence[tuple[str, str]] = (),
    subprotocols: Sequence[str] = (SUBPROTOCOL,),
    options: dict[str, Any] | None = None,
    **parameters: Any,
) -> Channel:
    target = f"{url.rstrip('/')}/v1/channel?{urlencode(parameters)}"

    async def dialled(user: SocketUser) -> Socket:
        return await dial(target, Watched(user), headers=headers, subprotocols=subprotocols, timeout_s=60)

    channel = await open_channel(dialled, begin=begin, **(options or {}))
    CHANNELS.append(channel)
    return channel


class Reading:
    """A client that reads; it records all events in order."""

    def __init__(self, *, acks: bool = True) -> None:
        self.acks = acks
        self.lanes: dict[str, int] | None = None
        self.got: list[tuple[int, bytes]] = []
        self.events: list[dict[str, Any]] = []
        self.commits: list[int] = []
        self.ended: list[ChannelFailed | None] = []
        self.received = self.size = 0  # channel messages, and their bytes
        self.channel: Channel

    def begin(self, channel: Channel) -> None:
        self.channel = channel
        channel.on_messages, channel.on_commit, channel.on_end = self._messages, self._commit, self.ended.append

    def _messages(self, values: list[memoryview]) -> None:
        for value in values:
            self.received += 1
            self.size += len(value)
            if bytes(value[:8]) == b'{"lanes"':
                self.lanes = json.loads(bytes(value))["lanes"]
            elif bytes(value[:1]) == b"{":
                self.events.append(json.loads(bytes(value)))
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


async def read(url: str, *, acks: bool = True, **parameters: Any) -> Reading:
    reading = Reading(acks=acks)
    await open_to(url, begin=reading.begin, **parameters)
    return reading


def record(*values: bytes, lane: int = 0, age_ms: int = 0) -> bytes:
    head = lane.to_bytes(4, "little") + age_ms.to_bytes(4, "little")
    return head + bytes(encode_batch(values, write_id=os.urandom(16)))


def aged(value: bytes | bytearray | memoryview, age_ms: int) -> bytes:
    return bytes(value[:4]) + age_ms.to_bytes(4, "little") + bytes(value[8:])


# ---------------------------------------------------------------------- over plain HTTP


def create(cluster: LocalCluster, name: str, *, at: int = 1, **more: Any) -> None:
    body = json.dumps({"name": name, **more}).encode()
    request = urllib.request.Request(f"{cluster.api(at)}/v1/queues", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status in (200, 201)


def values(cluster: LocalCluster, queue: str, lane: int, *, at: int) -> list[bytes]:
    """All of a lane, read anew."""
    found: list[bytes] = []
    while True:
        path = f"/v1/queues/{queue}/messages?lane={lane}&after={len(found)}&max=10000&max_bytes=8000000"
        with urllib.request.urlopen(cluster.api(at) + path, timeout=60) as answer:
            lines = answer.read().splitlines()
        if not lines:
            return found
        found += [json.loads(line)["value"].encode() for line in lines]


def subscriber(cluster: LocalCluster, queue: str, name: str, *, at: int) -> dict[str, Any]:
    """As of now; while a coordinator is being found nobody can say."""

    def shown() -> dict[str, Any]:
        with contextlib.suppress(Offline):
            return dict(cluster.ask(at, f"/v1/queues/{queue}/subscribers/{name}"))
        return {}

    return wait_until(shown)


def coordinator(cluster: LocalCluster, queue: str, *, lane: int = 0, at: int = 1) -> int:
    found: int = cluster.ask(at, f"/v1/queues/{queue}")["lanes"][lane]["coordinator"] or 0
    return found


def metric(cluster: LocalCluster, at: int, name: str) -> float:
    with urllib.request.urlopen(f"{cluster.api(at)}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))
