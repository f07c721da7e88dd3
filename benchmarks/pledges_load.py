"""Callers of a coordinator, and the branch that it calls: bytes on sockets, so that what is measured is the other side.

A caller has one connection and one request on its way: prepare, perhaps a local transaction, submit, and from the start
again. The branch counts what arrives and when. Both live in this process and share its clock, so the time from a commit
to its delivery is a difference of two numbers.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Final, cast

from msgspec import Struct

CALLERS: Final = 64
DRAIN_S: Final = 60.0
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_GID: Final = re.compile(rb"[?&]gid=([^& ]*)")
_OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

Work = Callable[[str], Awaitable[None]]


class Load(Struct, frozen=True):
    """Of one way: pledges delivered a second, until the last one arrived; milliseconds from commit to delivery.

    `cpu_us`: processor time of the coordinator for one.
    """

    per_s: float
    count: int
    p50_ms: float
    p99_ms: float
    cpu_us: float = 0.0


class Branch(asyncio.Protocol):
    """Takes whatever is delivered. `arrived`: gid -> when."""

    arrived: dict[str, float]

    def __init__(self, arrived: dict[str, float]) -> None:
        self.arrived = arrived
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        while (end := buffer.find(b"\r\n\r\n")) >= 0:
            whole = end + 4 + _length(buffer, end)
            if len(buffer) < whole:
                break
            found = _GID.search(buffer, 0, end)
            self.arrived.setdefault(found[1].decode() if found else "", time.perf_counter())
            buffer = buffer[whole:]
            self._transport.write(_OK)
        self._buffer = buffer


class Caller(asyncio.Protocol):
    """One connection; `ask` sends a request and waits for its answer."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._buffer = b""
        self._answered: asyncio.Future[int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(exc or ConnectionError("closed"))

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer = self._buffer + data if self._buffer else data
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        whole = end + 4 + _length(buffer, end)
        if len(buffer) >= whole and self._answered is not None:
            self._buffer = buffer[whole:]
            self._answered.set_result(int(buffer[9:12]))

    async def ask(self, path: str, body: bytes) -> None:
        await self.send(b"POST %b%b" % (path.encode(), behind_path(body)))

    async def send(self, request: bytes) -> None:
        """Returns when it was answered with 200."""
        self._answered = self._loop.create_future()
        self._transport.write(request)
        status = await self._answered
        if status != 200:
            raise RuntimeError(f"{request[:80]!r} was answered with {status}")

    def close(self) -> None:
        self._transport.close()


def behind_path(body: bytes) -> bytes:
    head = f" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _length(buffer: bytes, end: int) -> int:
    """Of the body behind a head that ends there."""
    found = _LENGTH.search(buffer, 0, end)
    return int(found[1]) if found else 0


class Bench:
    """The branch, and runs against whatever coordinator has the paths of /v1/pledges."""

    def __init__(self) -> None:
        self.arrived: dict[str, float] = {}
        self._run = 0

    async def __aenter__(self) -> Bench:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Branch(self.arrived), "127.0.0.1", 0, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def pledges(self, port: int, *, seconds: float, work: Work | None = None, pause_s: float = 0.0) -> Load:
        """`work` is the local transaction of a gid; `pause_s` between two pledges of a caller, for latency alone."""
        body = json.dumps(
            {
                "branches": [{"url": f"http://127.0.0.1:{self.port}/in", "payload": '{"amount": 30}'}],
                "checkback": f"http://127.0.0.1:{self.port}/checkback",
            }
        ).encode()
        rest = behind_path(body)  # the same in every request

        async def one(caller: Caller, gid: str) -> float:
            await caller.send(b"POST /v1/pledges/%b/prepare%b" % (gid.encode(), rest))
            if work is not None:
                await work(gid)
            committed = time.perf_counter()
            await caller.send(b"POST /v1/pledges/%b/submit%b" % (gid.encode(), rest))
            return committed

        return await self._measure(port, one, seconds=seconds, pause_s=pause_s)

    async def outbox(self, work: Work, *, seconds: float, pause_s: float = 0.0) -> Load:
        """`work` is the transaction that also writes to the outbox; somebody else polls it."""

        async def one(_: Caller, gid: str) -> float:
            await work(gid)
            return time.perf_counter()

        return await self._measure(self.port, one, seconds=seconds, pause_s=pause_s)

    async def _measure(
        self, port: int, one: Callable[[Caller, str], Awaitable[float]], *, seconds: float, pause_s: float
    ) -> Load:
        self._run += 1
        committed: dict[str, float] = {}
        start = time.perf_counter()

        async def calling(number: int) -> None:
            _, caller = await asyncio.get_running_loop().create_connection(Caller, "127.0.0.1", port)
            count = 0
            while time.perf_counter() < start + seconds:
                gid = f"b{self._run}-{number}-{count}"
                committed[gid] = await one(caller, gid)
                count += 1
                if pause_s:
                    await asyncio.sleep(pause_s)
            caller.close()

        await asyncio.gather(*(calling(number) for number in range(CALLERS)))
        await self._drained(committed)
        ended = max(self.arrived[gid] for gid in committed)
        waits = sorted(1000 * max(0.0, self.arrived[gid] - at) for gid, at in committed.items())
        return Load(
            per_s=round(len(committed) / (ended - start)),
            count=len(committed),
            p50_ms=round(statistics.median(waits), 2),
            p99_ms=round(waits[int(len(waits) * 0.99)], 2),
        )

    async def _drained(self, committed: dict[str, float]) -> None:
        deadline = time.perf_counter() + DRAIN_S
        while len(committed.keys() - self.arrived.keys()):
            if time.perf_counter() > deadline:
                raise RuntimeError(f"{len(committed.keys() - self.arrived.keys())} were not delivered in {DRAIN_S:g} s")
            await asyncio.sleep(0.01)
