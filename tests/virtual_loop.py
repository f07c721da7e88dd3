"""An event loop on a virtual clock, with a network in memory: programs that wait for minutes run in milliseconds.

    async def program() -> None:
        server = await loop.create_server(...)      # any port; there are no sockets
        await asyncio.sleep(3600)                   # takes no time

    run_virtual(program())

Time stands still while anything can run. When nothing can, it jumps to the next timer, exactly. A program that waits
for something that no timer and no callback can bring about would wait for ever: that is an error here, and names the
tasks that wait. So is one that goes on for more than a month, or takes 200,000 turns without an end. The same
program takes the same steps at the same times on every run.

A connection delivers in order and without delay, one write at a time, at the next turn of the loop. An abort of one end
resets the other. `loop.unreachable` are ports where nobody answers an attempt to connect, as behind a firewall that
drops packets; a port without a server refuses it at once. While `loop.cut`, no packet arrives anywhere, and data is
repeated as by TCP: what was not acknowledged after 0.2 s, 0.4 s and so on, an attempt to connect after 1 s, 2 s and so
on. Afterwards each connection works again at its next repetition, not before.

Modules that read `time.monotonic` by name are given the loop's clock while the loop runs: on a real loop both are one.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

T = TypeVar("T")
BEGIN_S: Final = 1_000.0
_FIRST_PORT: Final = 40_000
_LONGEST_S: Final = 30 * 24 * 3600.0
_TURNS_MAX: Final = 200_000
_REPEAT_S: Final = 0.2  # the first repetition of TCP
_REPEAT_CONNECT_S: Final = 1.0


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """What `main` returns. Tasks that are left when it ends are cancelled, as by `asyncio.run`."""
    with asyncio.Runner(loop_factory=VirtualLoop, debug=False) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        with loop.clock_in_modules():
            return runner.run(main)


class _NoSelector:
    """Stands where a loop waits for sockets: instead of waiting, it moves the clock."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._turns_count = 0

    def select(self, timeout: float | None) -> list[Any]:
        self._turns_count += 1
        if timeout is None:
            self._complain("every task waits for something that cannot come")
        elif self._turns_count > _TURNS_MAX or self._loop.time() > BEGIN_S + _LONGEST_S:
            self._complain(f"no end after {self._turns_count} turns and {self._loop.time() - BEGIN_S:g} s")
        elif timeout > 0:
            self._loop.advance()
        return []

    def _complain(self, what: str) -> None:
        waiting = "\n".join(f"  {task!r}" for task in asyncio.all_tasks(self._loop))
        self._turns_count = -_TURNS_MAX  # what is cancelled now takes a few turns more
        raise AssertionError(f"{what}:\n{waiting}")

    def close(self) -> None:
        pass


class VirtualLoop(asyncio.BaseEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._clock_s = BEGIN_S
        self._selector = _NoSelector(self)
        self._next_port = _FIRST_PORT
        self._servers: dict[int, VirtualServer] = {}
        self.unreachable: set[int] = set()
        self.cut = False

    def time(self) -> float:
        return self._clock_s

    def advance(self) -> None:
        """To the next timer, not by a difference: a sum of differences would miss it by a rounding error."""
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        self._clock_s = max(self._clock_s, scheduled[0].when())

    @contextmanager
    def clock_in_modules(self) -> Iterator[None]:
        users = [module for name, module in sys.modules.items() if name.startswith("avow.")]
        users = [module for module in users if vars(module).get("monotonic") is time.monotonic]
        for module in users:
            vars(module)["monotonic"] = self.time
        try:
            yield
        finally:
            for module in users:
                vars(module)["monotonic"] = time.monotonic

    def _process_events(self, event_list: Sequence[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        """Nobody waits in a selector that would have to be woken."""

    # ------------------------------------------------------------------- network

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int = 0, **options: Any
    ) -> VirtualServer:
        options.pop("backlog", None)
        assert not any(options.values()), f"not on a virtual network: {options}"
        if not port:
            port = self._next_port = self._next_port + 1
        if port in self._servers:
            raise OSError(f"port {port} is in use")
        server = self._servers[port] = VirtualServer(self._servers, protocol_factory, host, port)
        return server

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **options: Any
    ) -> tuple[VirtualTransport, asyncio.BaseProtocol]:
        assert not any(options.values()), f"not on a virtual network: {options}"
        await asyncio.sleep(0)  # as a real one, it is never there in the same turn
        if port in self.unreachable:
            await self.create_future()
        pause_s = _REPEAT_CONNECT_S
        while self.cut:
            await asyncio.sleep(pause_s)
            pause_s *= 2
        server = self._servers.get(port)
        if server is None:
            raise ConnectionRefusedError(f"connection to {host}:{port} refused")
        here, there = VirtualTransport(self), VirtualTransport(self)
        here.connect(there, protocol_factory())
        there.connect(here, server.protocol_factory())
        return here, here.get_protocol()


class VirtualServer:
    """Listens on a port. `sockets` has one that can only say its address."""

    def __init__(
        self,
        servers: dict[int, VirtualServer],
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
    ) -> None:
        self._servers, self.protocol_factory = servers, protocol_factory
        self._address = (host, port)

    @property
    def sockets(self) -> tuple[VirtualServer, ...]:
        return (self,)

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def close(self) -> None:
        self._servers.pop(self._address[1], None)

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)


class VirtualTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self._other: VirtualTransport | None = None
        self._protocol: asyncio.BaseProtocol | None = None
        self._lost = self._closing = False
        self._unacknowledged: list[bytes] = []  # written while the network was cut

    def connect(self, other: VirtualTransport, protocol: asyncio.BaseProtocol) -> None:
        self._other, self._protocol = other, protocol
        protocol.connection_made(self)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 0) if name in ("peername", "sockname") else default

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        raise NotImplementedError("nothing on a virtual network needs it yet")

    def write(self, data: Any) -> None:
        other = self._other
        assert other is not None
        if self._closing:
            return
        if self._unacknowledged or self._loop.cut:
            if not self._unacknowledged:
                self._loop.call_later(_REPEAT_S, self._repeat, _REPEAT_S)
            self._unacknowledged.append(bytes(data))
            return
        self._loop.call_soon(other._receive, bytes(data))

    def _repeat(self, after_s: float) -> None:
        if self._closing:
            return
        if self._loop.cut:
            self._loop.call_later(2 * after_s, self._repeat, 2 * after_s)
            return
        waiting, self._unacknowledged = self._unacknowledged, []
        self.write(b"".join(waiting))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def _receive(self, data: bytes) -> None:
        if self._closing or not data:
            return
        protocol = self.get_protocol()
        if not isinstance(protocol, asyncio.BufferedProtocol):
            assert isinstance(protocol, asyncio.Protocol)
            protocol.data_received(data)
            return
        left = memoryview(data)
        while left and not self._closing:
            room = memoryview(protocol.get_buffer(len(left)))
            taken = min(len(room), len(left))
            room[:taken] = left[:taken]
            protocol.buffer_updated(taken)
            left = left[taken:]

    def close(self) -> None:
        self._end(here=None, there=None)

    def abort(self) -> None:
        self._end(here=None, there=ConnectionResetError("connection reset by the other end"))

    def _end(self, *, here: Exception | None, there: Exception | None) -> None:
        """Data written before still arrives: both go through the loop's queue in order."""
        if self._closing:
            return
        self._closing = True
        other = self._other
        assert other is not None
        self._loop.call_soon(self._lose, here)
        if not self._loop.cut:  # the other end does not learn of it
            self._loop.call_soon(other._lose, there)

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = self._closing = True
            self.get_protocol().connection_lost(error)
