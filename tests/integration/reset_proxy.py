"""A TCP proxy with faults: resets after so many bytes, or a connection that stays open and carries nothing.

A reset comes in the middle of whatever is being sent, also of a handshake: the bytes before it are delivered, and both
sides get RST and no word more (SO_LINGER 0). A connection that is stalled stays open on both sides and carries nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from struct import pack
from typing import cast

_LINGER_0 = pack("ii", 1, 0)
_FLUSH_TURNS_MAX = 1_000


class ResetProxy:
    """`budget` is asked for each connection: after how many bytes, in both directions together, it is reset."""

    def __init__(self, target: tuple[str, int], *, budget: Callable[[], int | None] = lambda: None) -> None:
        self.target, self._budget = target, budget
        self.connections = self.resets = self.forwarded_bytes = 0
        self.refusing = False
        self._through: set[Through] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.url = ""

    async def start(self) -> str:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accepted, "127.0.0.1", 0)
        self.url = f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"
        return self.url

    def _accepted(self) -> Side:
        self.connections += 1
        through = Through(self, self._budget())
        self._through.add(through)
        return through.near

    def connect(self, through: Through) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(through))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, through: Through) -> None:
        try:
            if self.refusing:
                raise ConnectionRefusedError
            await asyncio.get_running_loop().create_connection(lambda: through.far, *self.target)
        except OSError:
            through.reset()

    def stall(self) -> None:
        """Present connections stay open and carry nothing more. New connections are not affected."""
        for through in self._through:
            through.stalled = True

    def reset_all(self) -> None:
        for through in list(self._through):
            through.reset()

    def gone(self, through: Through) -> None:
        self._through.discard(through)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.refusing = True
        self.reset_all()
        await asyncio.gather(*self._tasks)


class Through:
    """One connection through the proxy: two sides."""

    def __init__(self, proxy: ResetProxy, budget: int | None) -> None:
        self._proxy, self._budget = proxy, budget
        self.near, self.far = Side(self), Side(self)
        self.near.other, self.far.other = self.far, self.near
        self.stalled = self._cutting = self._over = False
        self._early: list[bytes] = []  # what came before the other side was reached

    def opened(self, side: Side) -> None:
        if self._over:
            side.reset()
        elif side is self.near:
            self._proxy.connect(self)
        else:
            early, self._early = self._early, []
            for data in early:
                self.pass_on(self.near, data)

    def pass_on(self, side: Side, data: bytes) -> None:
        if self.stalled or self._cutting:
            return
        if not side.other.reached:
            self._early.append(data)
            return
        if self._budget is not None and len(data) >= self._budget:
            data, self._cutting = data[: self._budget], True
        if self._budget is not None:
            self._budget -= len(data)
        self._proxy.forwarded_bytes += len(data)
        side.other.transport.write(data)
        if self._cutting:
            self._reset_when_sent(_FLUSH_TURNS_MAX)

    def _reset_when_sent(self, turns: int) -> None:
        unsent = self.near.transport.get_write_buffer_size() or self.far.transport.get_write_buffer_size()
        if unsent and turns and not self._over:
            asyncio.get_running_loop().call_later(0.001, self._reset_when_sent, turns - 1)
        else:
            self.reset()

    def reset(self) -> None:
        if not self._over:
            self._over = True
            self._proxy.resets += self._cutting
            self._proxy.gone(self)
            self.near.reset()
            self.far.reset()


class Side(asyncio.Protocol):
    def __init__(self, through: Through) -> None:
        self._through = through
        self.other: Side
        self._transport: asyncio.Transport | None = None

    @property
    def reached(self) -> bool:
        return self._transport is not None

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._through.opened(self)

    def data_received(self, data: bytes) -> None:
        self._through.pass_on(self, data)

    def pause_writing(self) -> None:
        self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """A proxy that is stalled does not pass on that one side has gone."""
        if not self._through.stalled:
            self._through.reset()

    def reset(self) -> None:
        if self._transport is None:
            return
        found = self._transport.get_extra_info("socket")
        if not self._transport.is_closing() and found is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0)
        self._transport.abort()
