"""The other end of app.mjs: a listener for channels, a proxy that breaks connections, and the files that pages load."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

from tests.integration.reset_proxy import ResetProxy

from avow.channel import browser
from avow.channel.endpoint import Channel
from avow.channel.listener import ChannelListener, listen
from avow.channel.registry import Registry
from avow.channel.transports.socket import SocketUser
from avow.channel.transports.webchannel import Timing
from avow.errors import ChannelFailed, InvalidRequest
from avow.limits import MIB
from avow.server.byte_budget import ByteBudget
from avow.server.channels.webchannel_http import WebChannels
from avow.server.http.listener import Listener
from avow.server.http.request import HttpRequest

FOLDER = Path(__file__).parent
FIREBASE = (
    FOLDER.parent
    / "webclients/node_modules/@firebase/webchannel-wrapper/dist/webchannel-blob/esm/webchannel_blob_es2018.js"
)
WITHHELD_MAX = 1 << 60
RUN_S = 300.0


async def wait_until(true: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    for _ in range(int(timeout_s / 0.01)):
        if true():
            return
        await asyncio.sleep(0.01)
    assert true(), "it did not come true in time"


class Far:
    """Runs the commands it receives, acks commits up to `ack_to`; the first channel gets `count` numbers."""

    def __init__(self, *, count: int = 0, every: int = 50, ack_to: int = WITHHELD_MAX) -> None:
        self.count, self.every, self.ack_to = count, every, ack_to
        self.words: list[str] = []
        self.ends: list[ChannelFailed | None] = []
        self.channels: list[Channel] = []
        self.acked = 0
        self.withheld: list[tuple[Channel, int]] = []
        self.orders: dict[str, Callable[[], None]] = {}
        self.commits_at: list[tuple[int, int]] = []  # (id, words before it)
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, channel: Channel) -> None:
        self.channels.append(channel)
        channel.on_messages = lambda values: self._take(channel, [bytes(value).decode() for value in values])
        channel.on_commit = lambda commit_id: self._commit(channel, commit_id)
        channel.on_end = self.ends.append
        if self.count and len(self.channels) == 1:
            task = asyncio.get_running_loop().create_task(self._send(channel))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(self, channel: Channel) -> None:
        for number in range(1, self.count + 1):
            await channel.writable()
            channel.send(b"%d" % number)
            if number % self.every == 0:
                channel.commit(self._count_ack)
        await channel.commit()

    def _count_ack(self) -> None:
        self.acked += 1

    def _take(self, channel: Channel, words: list[str]) -> None:
        for word in words:
            self.words.append(word)
            if word == "say a, b, commit":
                channel.send(b"a")
                channel.send(b"b")
                channel.commit(self._count_ack)
            elif word in self.orders:
                self.orders[word]()

    def _commit(self, channel: Channel, commit_id: int) -> None:
        self.commits_at.append((commit_id, len(self.words)))
        if commit_id <= self.ack_to:
            channel.ack_commit(commit_id)
        else:
            self.withheld.append((channel, commit_id))

    def release(self) -> None:
        self.ack_to = WITHHELD_MAX
        for channel, commit_id in self.withheld:
            channel.ack_commit(commit_id)


@contextlib.asynccontextmanager
async def listening(far: Far, *, window_s: float = 30.0) -> AsyncIterator[ChannelListener]:
    listener = await listen(far.begin, window_s=window_s)
    try:
        yield listener
    finally:
        await listener.close()


@contextlib.asynccontextmanager
async def proxied(
    listener: ChannelListener | WebChannelServer, *, seed: int | None = None
) -> AsyncIterator[ResetProxy]:
    """With a seed every connection is reset after some thousand bytes."""
    rng = Random(seed)
    proxy = ResetProxy(listener.address, budget=lambda: None if seed is None else rng.randrange(500, 4_000))
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()


def page_of(site: str, application: str, **wanted: object) -> str:
    return f"{site}page.html#{quote(json.dumps({'application': application, **wanted}))}"


class Files:
    """Serves a page: the module as the package ships it, and the files of this folder."""

    def __init__(self) -> None:
        self._listener = Listener(
            self.handle, connections_max=50, in_flight_max=50, request_bytes_max=MIB, budget=ByteBudget(64 * MIB)
        )

    async def __aenter__(self) -> Files:
        self.address = await self._listener.start("127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listener.stop()

    def page(self, application: str, **wanted: object) -> str:
        host, port = self.address[:2]
        return page_of(f"http://{host}:{port}/", application, **wanted)

    def handle(self, exchange: HttpRequest) -> None:
        name = exchange.target.partition("?")[0].lstrip("/")
        shipped, file = browser.files(), FIREBASE if name == FIREBASE.name else FOLDER / name
        if name in shipped:
            content_type, body = shipped[name]
            exchange.answer(200, body, content_type=content_type.encode())
        elif "/" not in name and file.is_file():
            kind = "text/html" if file.suffix == ".html" else "text/javascript"
            exchange.answer(200, file.read_bytes(), content_type=kind.encode())
        else:
            exchange.fail(InvalidRequest(f"there is no {name}"))


class WebChannelServer:
    """Channels over WebChannel sessions, and files. `asked`: the parameters of each session, and its token."""

    def __init__(self, far: Far) -> None:
        self._far, self._registry, self._files = far, Registry(window_s=30.0, channels_max=10), Files()
        timing = Timing(keep_alive_s=0.4, expiry_s=5.0, back_age_s_max=5.0)
        self._sessions = WebChannels(self._open, timing=timing, tick_s=0.05)
        self._listener = Listener(
            self._handle, connections_max=50, in_flight_max=50, request_bytes_max=9 * MIB, budget=ByteBudget(64 * MIB)
        )
        self.asked: list[tuple[str, bytes | None]] = []

    def _handle(self, exchange: HttpRequest) -> None:
        if exchange.target.startswith("/v1/webchannel"):
            self._sessions.handle(exchange)
        else:
            self._files.handle(exchange)

    def _open(self, exchange: HttpRequest, parameters: Mapping[str, str]) -> SocketUser:
        asked = " ".join(f"{name}={value}" for name, value in parameters.items())
        self.asked.append((asked, exchange.headers.get(b"authorization")))
        return self._registry.accept(asked, self._far.begin)

    async def start(self) -> None:
        host, port = (await self._listener.start("127.0.0.1", 0))[:2]
        self.address = (host, port)

    async def stop(self) -> None:
        self._sessions.stop()
        await self._listener.stop()


@contextlib.asynccontextmanager
async def webchannels(far: Far) -> AsyncIterator[WebChannelServer]:
    server = WebChannelServer(far)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def run_in_node(
    application: str,
    *,
    script: str = "node.mjs",
    arguments: Sequence[str] = (),
    over: Callable[[], bool],
    **wanted: object,
) -> Any:
    """What the application returned; the process is ended when `over` is true. Node has its WebSocket behind a flag."""
    process = await asyncio.create_subprocess_exec(
        "node",
        "--experimental-websocket",  # no longer needed from version 22 on
        str(FOLDER / script),
        *arguments,
        json.dumps({"application": application, **wanted}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), RUN_S)
        assert line, (await process.stderr.read()).decode()
        await wait_until(over)
        return json.loads(line)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
