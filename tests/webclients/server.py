"""The other end of app.mjs: a listener with WebChannel sessions, and the files that pages load.

It answers message n with message n, counts on every session to continue where the one before stood, and notes whatever
is not the next message. A session that was replaced says nothing any more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from avow.channel.transports.webchannel import Timing
from avow.errors import InvalidRequest
from avow.limits import MIB
from avow.server.byte_budget import ByteBudget
from avow.server.channels.webchannel_http import WebChannels
from avow.server.http.listener import Listener
from avow.server.http.request import HttpRequest

FOLDER = Path(__file__).parent
INSTALLED = FOLDER / "node_modules"
PATH = "/v1/webchannel"
TYPES = {".html": b"text/html", ".js": b"text/javascript", ".mjs": b"text/javascript"}


class EchoServer:
    def __init__(self, *, timing: Timing) -> None:
        self.received = 0
        self.wrong: list[str] = []
        self.lost: list[str] = []
        self.asked: list[Mapping[str, str]] = []
        self.current: Echo | None = None
        self.sessions = WebChannels(self._open, timing=timing, tick_s=0.05)
        self.listener = Listener(
            self._handle, connections_max=200, in_flight_max=200, request_bytes_max=9 * MIB, budget=ByteBudget(64 * MIB)
        )

    async def start(self) -> None:
        self.address = await self.listener.start("127.0.0.1", 0)

    async def stop(self) -> None:
        self.sessions.stop()
        await self.listener.stop()

    @property
    def open_sessions(self) -> int:
        return self.sessions.statistics()["webchannel_sessions"]

    def _open(self, exchange: HttpRequest, parameters: Mapping[str, str]) -> Echo:
        self.asked.append(parameters)
        return Echo(self)

    def _handle(self, exchange: HttpRequest) -> None:
        path = exchange.target.partition("?")[0]
        if path == PATH:
            self.sessions.handle(exchange)
            return
        file = (FOLDER / path.lstrip("/")).resolve()
        if not file.is_relative_to(FOLDER) or not file.is_file():
            exchange.fail(InvalidRequest(f"there is no {path}"))
            return
        exchange.answer(200, file.read_bytes(), content_type=TYPES.get(file.suffix, b"application/octet-stream"))


class Echo:
    def __init__(self, server: EchoServer) -> None:
        self._server = server

    def opened(self, socket: Any) -> None:
        self._server.current = self

    def packet(self, socket: Any, data: bytes | memoryview) -> None:
        server = self._server
        if server.current is not self:
            return
        message = json.loads(bytes(data))
        if "hello" in message:
            socket.send([json.dumps({"hello": server.received}).encode()])
            for number in range(message["hello"] + 1, server.received + 1):
                self._say(socket, number)
            return
        if message["number"] != server.received + 1:
            server.wrong.append(f"{message['number']} came after {server.received}")
        server.received = message["number"]
        self._say(socket, server.received)

    def writable(self, socket: Any) -> None: ...

    def lost(self, socket: Any, reason: str) -> None:
        self._server.lost.append(reason)

    @staticmethod
    def _say(socket: Any, number: int) -> None:
        socket.send([b'{"number":', b"%d}" % number])
