"""Sockets in memory and a clock that jumps: two ends of a channel in one event loop, without a network or a pause.

A packet arrives a turn of the loop after it was sent, as one that came over a network would. A test may hold a socket
up (`full`), silence it (what is sent vanishes, as behind a dead router) or lose it, at either end.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from avow.channel.connector import open_channel
from avow.channel.endpoint import Channel
from avow.channel.registry import Registry
from avow.channel.transports.socket import Piece, Socket, SocketUser
from avow.errors import Offline


class MemorySocket:
    def __init__(self, user: SocketUser) -> None:
        self.user = user
        self.other: MemorySocket
        self.sent: list[list[Piece]] = []
        self.full = self.silenced = False
        self.open = True
        self.closed_by_user = False
        self._told = False
        self._reading = True
        self._unread: list[bytes] = []

    @property
    def unfinished_bytes(self) -> int:
        return 0

    def send(self, packet: Sequence[Piece]) -> None:
        if not self.open:
            return
        self.sent.append(list(packet))
        if not self.silenced:
            asyncio.get_running_loop().call_soon(self.other.deliver, b"".join(packet))

    def deliver(self, data: bytes) -> None:
        if not self._reading:
            self._unread.append(data)
        elif self.open and not self.closed_by_user:
            self.user.packet(self, data)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        while self._unread and self._reading:
            self.deliver(self._unread.pop(0))

    def hold_up(self) -> None:
        self.full = True

    def let_go(self) -> None:
        self.full = False
        self.user.writable(self)

    def close(self, *, code: int = 1000, reason: str = "") -> None:
        self.closed_by_user = True
        self.lose("closed", soon=True)

    def abort(self) -> None:
        self.lose("aborted")

    def lose(self, reason: str = "lost", *, soon: bool = False) -> None:
        """Close both ends. `soon`: packets sent before still arrive."""
        loop = asyncio.get_running_loop()
        if soon:
            loop.call_soon(self.tell, reason)
        else:
            self.tell(reason)
        loop.call_soon(self.other.tell, reason)

    def tell(self, reason: str) -> None:
        self.open = False
        if not self._told:
            self._told = True
            self.user.lost(self, reason)


class Network:
    """Connects to a registry. `sockets` are the initiator's ends, in order."""

    def __init__(self, registry: Registry, begin: Callable[[Channel], None], *, purpose: str = "test") -> None:
        self.registry, self.begin, self.purpose = registry, begin, purpose
        self.sockets: list[MemorySocket] = []
        self.errors: list[Exception] = []  # raised by the next connection attempts
        self.dialled_at: list[float] = []
        self.deaf = False  # no Hello is answered

    async def dial(self, user: SocketUser) -> Socket:
        self.dialled_at.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0)
        if self.errors:
            raise self.errors.pop(0)
        return self.connect(user)

    def connect(self, user: SocketUser) -> MemorySocket:
        near = MemorySocket(user)
        far = MemorySocket(self.registry.accept(self.purpose, self.begin))
        near.other, far.other = far, near
        near.silenced = self.deaf
        self.sockets.append(near)
        far.user.opened(far)
        user.opened(near)
        return near

    async def unreachable(self, user: SocketUser) -> Socket:
        self.dialled_at.append(asyncio.get_running_loop().time())
        raise Offline("nobody listens; nothing was sent")


class Pair:
    """An initiator's channel and the acceptor's."""

    def __init__(self, near: Channel, far: Channel, network: Network) -> None:
        self.near, self.far, self.network = near, far, network

    @property
    def socket(self) -> MemorySocket:
        return self.network.sockets[-1]


async def open_pair(
    *,
    begin: Callable[[Channel], None] | None = None,
    registry: Registry | None = None,
    keep: dict[str, Any] | None = None,
    **settings: Any,
) -> Pair:
    far: list[Channel] = []

    def begun(channel: Channel) -> None:
        far.append(channel)
        if begin is not None:
            begin(channel)

    registry = registry or Registry(**({"window_s": 30.0, "channels_max": 10} | (keep or {})))
    network = Network(registry, begun)
    near = await open_channel(network.dial, **settings)
    return Pair(near, far[0], network)


class _Jumping(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0

    def select(self, timeout: float | None = None) -> Any:
        self.now += timeout or 0.0
        return super().select(0)


def run(scenario: Callable[[], Coroutine[Any, Any, None]], *, reported: list[dict[str, Any]] | None = None) -> None:
    """On a loop whose clock jumps to the next timer. Errors of its exception handler fail the test or are collected."""
    heard: list[dict[str, Any]] = [] if reported is None else reported

    def new_loop() -> asyncio.AbstractEventLoop:
        selector = _Jumping()
        loop = asyncio.SelectorEventLoop(selector)
        loop.time = lambda: selector.now  # type: ignore[method-assign]
        loop.set_exception_handler(lambda _, context: heard.append(context))
        return loop

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_bounded(scenario()))
    if reported is None:
        assert heard == []


async def _bounded(scenario: Awaitable[None]) -> None:
    async with asyncio.timeout(100_000):
        await scenario


async def turns(count: int = 10) -> None:
    """Let in-flight packets arrive."""
    for _ in range(count):
        await asyncio.sleep(0)
