"""What clients do to a cluster: they read slowly, create many queues at once, and repeat a write very late."""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
import ssl
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

import msgspec

from avow.client.client import Client
from avow.errors import AvowError, Offline, UnknownQueue
from avow.limits import WRITE_ID_WINDOW_COUNT
from avow.testing.cluster import wait_until
from avow_lab.campaigns.peers.history import COUNT_MAX, History, Kind, Outcome, Span, value_of

if TYPE_CHECKING:
    from avow_lab.campaigns.peers.testbed import Testbed

# ---------------------------------------------------------------------- slow readers

READERS: Final = 24
PIPELINED: Final = 6
ASKED_BYTES: Final = 1 << 20
_SIP_BYTES: Final = 2048
_SIP_S: Final = 0.05
_BUFFER_BYTES: Final = 4096


async def read_slowly(testbed: Testbed, number: int, *, queues: Sequence[str], seconds: float) -> int:
    """Ask one peer for megabytes over many connections, and read little of it, or nothing. Returns the bytes read."""
    paths = await asyncio.to_thread(_paths, testbed, number, queues)
    readers = [
        asyncio.create_task(_read(testbed, number, paths[reader % len(paths)], sips=reader % 2 == 0))
        for reader in range(READERS)
    ]
    await asyncio.wait(readers, timeout=seconds)
    for reader in readers:
        reader.cancel()
    found = await asyncio.gather(*readers, return_exceptions=True)
    return sum(one for one in found if isinstance(one, int))


def _paths(testbed: Testbed, number: int, queues: Sequence[str]) -> list[str]:
    with testbed.api(number) as api:
        lanes = [(name, lane["lane"]) for name in queues for lane in api.queue(name)["lanes"]]
    return [
        f"/v1/queues/{quote(name)}/messages?lane={lane}&after=0&max=65536&max_bytes={ASKED_BYTES}"
        for name, lane in lanes
    ]


async def _read(testbed: Testbed, number: int, path: str, *, sips: bool) -> int:
    url = urlsplit(testbed.cluster.api(number))
    loop = asyncio.get_running_loop()
    opened = socket.socket()
    opened.setblocking(False)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    got = 0
    try:
        await loop.sock_connect(opened, (url.hostname, url.port))
        trust = ssl.create_default_context(cafile=testbed.cluster.ca) if url.scheme == "https" else None
        name = url.hostname if trust is not None else None
        reader, writer = await asyncio.open_connection(
            sock=opened, ssl=trust, server_hostname=name, limit=_BUFFER_BYTES
        )
        try:
            writer.write(_request(path, url.netloc, testbed.cluster.token) * PIPELINED)
            while piece := await reader.read(_SIP_BYTES if sips else 1):
                got += len(piece)
                await asyncio.sleep(_SIP_S if sips else 3600)
        except asyncio.CancelledError:
            return got
        finally:
            writer.transport.abort()
    except OSError:
        return got
    finally:
        opened.close()
    return got


def _request(path: str, host: str, token: str) -> bytes:
    access = f"Authorization: Bearer {token}\r\n" if token else ""
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{access}\r\n".encode()


# ---------------------------------------------------------------------- many lanes

_AT_ONCE: Final = 10
_TRIES: Final = 5


async def create_and_delete(testbed: Testbed, *, count: int, rng: random.Random) -> str:
    """Create queues and delete them again, several at a time. Returns which peer still has one afterwards."""
    names = [f"brief-{rng.randrange(1 << 32):08x}-{number}" for number in range(count)]
    strategies = {name: rng.choice(["two-phase", "pub-sub"]) for name in names}
    client = await testbed.connect(timeout_s=20.0)
    async with client:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def create(name: str) -> None:
            two_phase = strategies[name] == "two-phase"
            lanes = rng.randint(1, 4) if two_phase else 1
            async with gate:
                await client.create_queue(name, strategy="two-phase" if two_phase else "pub-sub", lanes=lanes)
                await client.queue(name).enqueue(b"brief")

        async def delete(name: str) -> None:
            async with gate:
                await _delete(client, name)

        try:
            await asyncio.gather(*map(create, names))
            await asyncio.gather(*map(delete, names))
        except AvowError as error:
            return f"{error.code}: {error}"
    try:
        await asyncio.to_thread(_wait_gone, testbed, set(names))
    except Offline as error:
        return str(error)
    return ""


async def _delete(client: Client, name: str) -> None:
    """A deletion without an answer is repeated; that there is no such queue is its success then."""
    for tried in range(_TRIES):
        try:
            await client.delete_queue(name)
        except UnknownQueue:
            return
        except AvowError:
            if tried == _TRIES - 1:
                raise
        else:
            return


def _wait_gone(testbed: Testbed, names: set[str]) -> None:
    left = dict[int, list[str]]()

    def gone() -> bool:
        left.clear()
        for number in sorted(testbed.members):
            with testbed.api(number) as api:
                found = sorted(names & {queue["name"] for queue in api.get("/v1/queues")["queues"]})
            if found:
                left[number] = found[:5]
        return not left

    wait_until(gone, timeout_s=45.0, what=lambda: f"deleted queues are gone from every peer; there are {left}")


# ---------------------------------------------------------------------- a late repetition

_SESSION: Final = -1
_STREAM_COUNT: Final = COUNT_MAX - 1
_NOTE_CHARACTERS: Final = 160


async def repeat_late(testbed: Testbed, history: History, *, queue: str, lane: int) -> str:
    """Write once as JSON with a write id, let the lane forget that id, and send the same request again. Returns how it
    was answered.

    The lane forgets an id after so many others, so they are sent over a channel, one in each record. `created_ms` tells
    a lane that has forgotten ids before that the first request is young.
    """
    op = history.begin(Kind.WRITE, queue, _SESSION, count=1, lane=lane)
    body = msgspec.json.encode({"messages": [{"value": value_of(op.number, 0).decode()}]})
    chosen = f"lane={lane}&write_id={secrets.token_hex(16)}&created_ms={time.time_ns() // 1_000_000}"
    path = f"/v1/queues/{quote(queue)}/messages?{chosen}"
    try:
        spans = await asyncio.to_thread(_post, testbed, path, body)
    except Offline as error:
        history.end(op, Outcome.UNKNOWN)
        return f"the first request had no success: {error}"[:_NOTE_CHARACTERS]
    history.end(op, Outcome.DONE, spans=spans)
    try:
        await _forget(testbed, history, queue=queue, lane=lane)
        await asyncio.to_thread(_post, testbed, path, body)
    except AvowError as refusal:
        return f"not stored again: {refusal}"[:_NOTE_CHARACTERS]
    return "the repetition was acknowledged"


async def _forget(testbed: Testbed, history: History, *, queue: str, lane: int) -> None:
    client = await testbed.connect(timeout_s=60.0)
    async with client, client.producer(queue) as producer:
        left = WRITE_ID_WINDOW_COUNT + 1000
        while left > 0:
            op = history.begin(Kind.STREAM, queue, _SESSION, count=min(left, _STREAM_COUNT))
            for index in range(op.count):
                await producer.send(value_of(op.number, index), lane=lane)
                await asyncio.sleep(0)  # a record, and a write id, of its own
            await producer.commit()
            history.end(op, Outcome.DONE)
            left -= op.count


def _post(testbed: Testbed, path: str, body: bytes) -> list[Span]:
    """Raises Offline if there is no success."""
    with testbed.api(testbed.ready_member()) as api:
        answer = msgspec.json.decode(api.ask("POST", path, body=body).body)
    return [(one["lane"], one["first_version"], one["last_version"]) for one in answer["written"]]
