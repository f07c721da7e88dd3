"""Ten thousand pledges behind a dead endpoint: what others notice of it, and how soon they are out when it returns.

    normal    a steady load to an endpoint that is well, once before and once after everything else
    stuck     the same load while ten thousand pledges of another endpoint are retried: p99 below 2 x of normal
    return    that endpoint answers again. All of them are delivered within one back-off, the shortest that one of them
              can have: `pledge_retry_s`

Dead is one of two things. *refusing*: nobody listens on the port. *silent*: connections are accepted, requests are read
and never answered; when it returns it answers what is still asked, as a process does that stood still.

One peer in a process of its own, with its settings as they are. Latency is from the moment the service has committed
(before its submit) to the delivery. Callers keep an even pace whatever happens, so a pause is seen by all it meets. The
p99 that is compared is the median of those of windows of some seconds: what else the machine does hits a few of them,
what the peer does hits all. That of the whole phase is shown beside it.
`python -m benchmarks pledges stuck`; `... stuck --store sqlite --dead silent --seconds 10`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import urlopen

import uvloop
from msgspec import Struct

from avow.testing.cluster import LocalCluster
from avow.testing.services import PostgresServer
from benchmarks.pledges_load import Branch, Caller

STUCK_COUNT: Final = 10_000
SECONDS: Final = 20.0
PER_S: Final = 200
CALLERS: Final = 32
FLOODERS: Final = 16
P99_RATIO_MAX: Final = 2.0
BACKOFF_S: Final = 10.0  # pledge_retry_s as it is by default
WAIT_S: Final = 300.0
WARM_S: Final = 2.0
WINDOW_S: Final = 2.0
DEAD: Final = ("refusing", "silent")
STORES: Final = ("lane", "sqlite", "postgres")


class Waits(Struct, frozen=True):
    """Milliseconds from commit to delivery, window by window."""

    windows: list[list[float]]

    def __add__(self, other: Waits) -> Waits:
        return Waits(self.windows + other.windows)

    @property
    def all_ms(self) -> list[float]:
        return [wait for window in self.windows for wait in window]

    @property
    def p99_ms(self) -> float:
        return round(statistics.median(quantile(window, 0.99) for window in self.windows), 2)

    def figures(self) -> tuple[int, float, float, float, float]:
        """Pledges; p50, p99, p99 of the whole, longest."""
        waits = self.all_ms
        return len(waits), quantile(waits, 0.5), self.p99_ms, quantile(waits, 0.99), quantile(waits, 1.0)


def quantile(waits_ms: list[float], share: float) -> float:
    ordered = sorted(waits_ms)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)


class Found(Struct, frozen=True):
    """`first_s`, `returned_s`: from the return to the first and to the last delivery."""

    normal: Waits
    stuck: Waits
    returning: Waits
    first_s: float
    returned_s: float


# ------------------------------------------------------------------------------------------ the endpoints


class Held(Branch):
    """Reads and keeps what is asked until its endpoint returns."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint.arrived)
        self._endpoint, self._kept = endpoint, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._endpoint.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (the protocol's)
        self._endpoint.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        if self._endpoint.alive:
            super().data_received(data)
        else:
            self._kept += data

    def hang_up(self) -> None:
        self._transport.abort()

    def answer_kept(self) -> None:
        kept, self._kept = self._kept, b""
        super().data_received(kept)


class Endpoint:
    """Bound from the start, so that its port is nobody else's while it is dead."""

    def __init__(self, *, alive: bool = False) -> None:
        self.arrived: dict[str, float] = {}
        self.connections: set[Held] = set()
        self.alive = alive
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/in"
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Held(self), sock=self._socket, backlog=1024)

    async def revive(self) -> None:
        self.alive = True
        if self._server is None:
            await self.listen()
        for connection in tuple(self.connections):
            connection.answer_kept()

    async def close(self) -> None:
        if self._server is None:
            self._socket.close()
            return
        self._server.close()
        for connection in tuple(self.connections):
            connection.hang_up()
        await self._server.wait_closed()


# ------------------------------------------------------------------------------------------------ the load


class Pledger:
    """Prepares and submits at an even pace."""

    def __init__(self, port: int, endpoint: Endpoint) -> None:
        self._port, self._endpoint = port, endpoint

    async def steady(self, name: str, *, seconds: float = 0.0, until: Callable[[], bool] | None = None) -> Waits:
        """For so long, or until something has happened."""
        committed: dict[str, float] = {}
        body, start = _body(self._endpoint.url), time.perf_counter()
        end = start + (seconds or WAIT_S)

        async def calling(number: int) -> None:
            caller = await _caller(self._port)
            at, count = start + number / PER_S, 0
            while at < end and not (until is not None and until()):
                await asyncio.sleep(max(0.0, at - time.perf_counter()))
                gid = f"{name}-{number}-{count}"
                await caller.ask(f"/v1/pledges/{gid}/prepare", body)
                committed[gid] = time.perf_counter()
                await caller.ask(f"/v1/pledges/{gid}/submit", body)
                at, count = at + CALLERS / PER_S, count + 1
            caller.close()

        await asyncio.gather(*(calling(number) for number in range(CALLERS)))
        await arrived(self._endpoint, committed)
        windows: dict[int, list[float]] = {}
        for gid, at in committed.items():
            wait_ms = 1000 * max(0.0, self._endpoint.arrived[gid] - at)
            windows.setdefault(int((at - start) / WINDOW_S), []).append(wait_ms)
        whole = [window for window in windows.values() if len(window) >= WINDOW_S * PER_S / 2]
        return Waits(whole or list(windows.values()))


async def flood(port: int, endpoint: Endpoint, *, count: int) -> set[str]:
    """The gids that are submitted then. As fast as they are taken."""
    body = _body(endpoint.url)

    async def calling(number: int) -> None:
        caller = await _caller(port)
        for place in range(number, count, FLOODERS):
            await caller.ask(f"/v1/pledges/stuck-{place}/submit", body)
        caller.close()

    await asyncio.gather(*(calling(number) for number in range(FLOODERS)))
    return {f"stuck-{place}" for place in range(count)}


async def arrived(endpoint: Endpoint, gids: Any) -> None:
    await happened(lambda: all(gid in endpoint.arrived for gid in gids), what=f"the delivery of {len(gids):,} pledges")


async def happened(true: Callable[[], bool], *, what: str) -> None:
    deadline = time.perf_counter() + WAIT_S
    while not true():
        if time.perf_counter() > deadline:
            raise RuntimeError(f"{what} did not come about in {WAIT_S:g} s")
        await asyncio.sleep(0.02)


async def _caller(port: int) -> Caller:
    _, caller = await asyncio.get_running_loop().create_connection(Caller, "127.0.0.1", port)
    return caller


def _body(url: str) -> bytes:
    branch = {"url": url, "payload": '{"amount": 30}'}
    return json.dumps({"branches": [branch], "checkback": url.replace("/in", "/checkback")}).encode()


# --------------------------------------------------------------------------------------------- measuring


async def measure(cluster: LocalCluster, *, dead: str, seconds: float, count: int) -> Found:
    port = urlsplit(cluster.api(1)).port or 0
    well, broken = Endpoint(alive=True), Endpoint()
    await well.listen()
    if dead == "silent":
        await broken.listen()
    try:
        return await _measured(cluster, Pledger(port, well), broken, port=port, seconds=seconds, count=count)
    finally:
        await well.close()
        await broken.close()


async def _measured(
    cluster: LocalCluster, pledger: Pledger, broken: Endpoint, *, port: int, seconds: float, count: int
) -> Found:
    await pledger.steady("warm", seconds=WARM_S)
    gc.collect()
    gc.disable()  # of what this process keeps; its pauses would be taken for the peer's
    try:
        normal = await pledger.steady("before", seconds=seconds)
        gids = await flood(port, broken, count=count)
        await happened(lambda: _parked(cluster) >= count - FLOODERS, what="an endpoint that is given up")
        stuck = await pledger.steady("stuck", seconds=seconds)
        at = time.perf_counter()
        await broken.revive()
        returning = await pledger.steady("returning", until=lambda: len(broken.arrived) >= count)
        await arrived(broken, gids)
        normal += await pledger.steady("after", seconds=seconds)
    finally:
        gc.enable()
    times = [broken.arrived[gid] - at for gid in gids]
    return Found(normal, stuck, returning, min(times), max(times))


def _parked(cluster: LocalCluster) -> int:
    with urlopen(f"{cluster.api(1)}/metrics", timeout=WAIT_S) as answer:
        lines = answer.read().decode().splitlines()
    return round(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("avow_pledges_parked")))


def judged(found: Found, *, dead: str, count: int) -> dict[str, object]:
    rows = {"normal": found.normal, f"{count:,} stuck": found.stuck, "as it returns": found.returning}
    print(f"\n{dead:<15} {'pledges':>8} {'p50 ms':>8} {'p99 ms':>8} {'of all':>8} {'max ms':>8}")
    for name, waits in rows.items():
        number, *times_ms = waits.figures()
        print(f"{name:<15} {number:>8,} " + " ".join(f"{time_ms:>8g}" for time_ms in times_ms))
    ratio = round(found.stuck.p99_ms / found.normal.p99_ms, 2)
    print(f"all {count:,} delivered {found.returned_s:.1f} s after the return, the first after {found.first_s:.1f} s")
    targets = {
        f"p99 of others {ratio:g} x normal, below {P99_RATIO_MAX:g} x": ratio < P99_RATIO_MAX,
        f"the stuck ones within one back-off of {BACKOFF_S:g} s": found.returned_s <= BACKOFF_S,
    }
    for target, reached in targets.items():
        print(f"{target}: {'reached' if reached else 'MISSED'}")
    figures = {name: waits.figures() for name, waits in rows.items()}
    return {"waits_ms": figures, "ratio": ratio, "returned_s": found.returned_s, "held": all(targets.values())}


def stuck(*, store: str = "lane", dead: str = "refusing", seconds: float = SECONDS, count: int = STUCK_COUNT) -> bool:
    """Whether the targets were reached."""
    folder = Path(tempfile.mkdtemp(prefix="avow-bench-stuck-"))
    folder.chmod(0o755)
    try:
        with ExitStack() as stack:
            settings = {"pledge_store": _store_url(store, folder, stack)}
            cluster = stack.enter_context(LocalCluster(1, folder=folder / "peer", settings=settings))
            found = uvloop.run(measure(cluster, dead=dead, seconds=seconds, count=count))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return bool(judged(found, dead=dead, count=count)["held"])


def _store_url(store: str, folder: Path, stack: ExitStack) -> str:
    if store == "sqlite":
        return f"sqlite:{folder / 'pledges.db'}"
    return stack.enter_context(PostgresServer()).dsn if store == "postgres" else "lane"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks pledges stuck")
    parser.add_argument("--store", choices=STORES, default="lane")
    parser.add_argument("--dead", choices=DEAD, action="append", help="one or both; both by default")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--count", type=int, default=STUCK_COUNT)
    given = parser.parse_args(arguments)
    held = [
        stuck(store=given.store, dead=dead, seconds=given.seconds, count=given.count) for dead in given.dead or DEAD
    ]
    return 0 if all(held) else 1
