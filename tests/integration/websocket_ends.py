"""Both ends of a WebSocket over loopback: users that record their events, listeners, and raw sockets that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import pytest
import uvloop
from websockets.frames import Frame, Opcode
from websockets.utils import accept_key

from avow.channel.transports.websocket_handshake import Patience, Socket, accept, accept_raw
from avow.limits import MIB
from avow.server.byte_budget import ByteBudget
from avow.server.http.listener import Listener
from avow.server.http.request import HttpRequest

T = TypeVar("T")

WAIT_S = 60.0
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
REQUEST = (
    "GET /v1/channel?role=x HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    f"Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: avow.channel.v1\r\n\r\n"
).encode()
QUICK = Patience(ping_s=0.05, silent_s=0.2, close_s=0.2, handshake_s=10.0)
HASTY = Patience(ping_s=0.05, silent_s=0.2, close_s=0.2, handshake_s=0.5)  # where no handshake is meant to succeed
# for sockets that stay: both ends are in this process, and one that is held up is silent
STEADY = Patience(ping_s=0.1, silent_s=0.6, close_s=0.5, handshake_s=10.0)
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def run(loop: str, work: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(3 * WAIT_S):
            return await work

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(bounded())


async def until(true: Callable[[], object]) -> None:
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while not true():
        assert asyncio.get_running_loop().time() < deadline, "it did not come true in time"
        await asyncio.sleep(0.002)


class Keeper:
    """A user that records all events."""

    def __init__(self, *, echo: bool = False) -> None:
        self.echo = echo
        self.socket: Socket | None = None
        self.packets: list[bytes] = []
        self.writable_count = 0
        self.reasons: list[str] = []

    def opened(self, socket: Socket) -> None:
        assert self.socket is None
        self.socket = socket

    def packet(self, socket: Socket, data: bytes | memoryview) -> None:
        assert socket is self.socket
        assert not self.reasons
        self.packets.append(bytes(data))
        if self.echo:
            socket.send([data])

    def writable(self, socket: Socket) -> None:
        self.writable_count += 1

    def lost(self, socket: Socket, reason: str) -> None:
        assert socket is self.socket
        self.reasons.append(reason)

    @property
    def open_socket(self) -> Socket:
        assert self.socket is not None
        return self.socket


@contextlib.asynccontextmanager
async def standing_alone(
    user: Keeper, *, patience: Patience | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """A listener of WebSockets only; where it is reached."""
    make = accept_raw(lambda request: user, patience=patience or Patience())
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"{'wss' if tls else 'ws'}://127.0.0.1:{port}/v1/channel"
    finally:
        server.close()
        if user.socket is not None:
            user.socket.abort()
            await until(lambda: user.reasons)


@contextlib.asynccontextmanager
async def behind_http(
    user: Keeper, *, patience: Patience | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """The listener of a peer, which also answers plain requests."""

    def handle(exchange: HttpRequest) -> None:
        if not exchange.url.startswith(b"/v1/channel"):
            exchange.answer(200, b"{}")
            return
        response, make = accept(exchange.method, exchange.url, exchange.headers, user, patience=patience or Patience())
        exchange.upgrade(response, make)

    listener = Listener(
        handle, connections_max=20, in_flight_max=20, request_bytes_max=1000, budget=ByteBudget(64 * MIB), tls=tls
    )
    host, port = await listener.start("127.0.0.1", 0)
    try:
        yield f"{'wss' if tls else 'ws'}://{host}:{port}/v1/channel"
    finally:
        await listener.stop()


LISTENERS = {"alone": standing_alone, "behind http": behind_http}
both_loops = pytest.mark.parametrize("loop", LOOPS)
both_listeners = pytest.mark.parametrize("listener", LISTENERS)


def port_of(url: str) -> int:
    return int(url.split(":")[2].split("/")[0])


class RawClient:
    """A client made of bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def frame(self) -> tuple[Opcode, bytes]:
        first, length = await self.reader.readexactly(2)
        if length == 126:
            (length,) = struct.unpack("!H", await self.reader.readexactly(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", await self.reader.readexactly(8))
        return Opcode(first & 15), await self.reader.readexactly(length)

    def reset(self) -> None:
        reset(self.writer)


def reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@contextlib.asynccontextmanager
async def raw_client(url: str, *, receive_buffer: int | None = None) -> AsyncIterator[RawClient]:
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port_of(url)))
    reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 16)
    try:
        yield RawClient(reader, writer)
    finally:
        await ended(writer)


def masked(data: bytes, opcode: Opcode = Opcode.BINARY, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


@contextlib.asynccontextmanager
async def raw_server(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]],
) -> AsyncIterator[str]:
    """A server made of bytes. `serve` gets each connection after the request was read."""

    serving: set[asyncio.Task[None] | None] = set()

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        await ended(writer)
        serving.discard(asyncio.current_task())

    server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    try:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/channel"
    finally:
        server.close()
        await until(lambda: not serving)


async def ended(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        await writer.wait_closed()


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, behind: bytes = b"") -> None:
    """The server's part of a handshake."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    key = next(line.partition(": ")[2] for line in head.split("\r\n") if line.lower().startswith("sec-websocket-key"))
    writer.write(
        f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {accept_key(key)}\r\nSec-WebSocket-Protocol: avow.channel.v1\r\n\r\n".encode()
        + behind
    )


def hold_little(user: Keeper) -> None:
    """The kernel of a slow network holds no megabytes, as that of loopback does."""
    transport = user.open_socket._transport  # type: ignore[attr-defined]
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
