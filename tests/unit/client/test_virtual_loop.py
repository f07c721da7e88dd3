"""The virtual event loop of the client's tests: its clock, order and network."""

from __future__ import annotations

import asyncio
import sys
import time
from types import ModuleType
from typing import cast

import pytest
from tests.virtual_loop import BEGIN_S, VirtualLoop, run_virtual


class Collector(asyncio.Protocol):
    """Records the callbacks of one end of a connection."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.seen.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.seen.append(type(exc) if exc is not None else None)


async def connected() -> tuple[Collector, Collector, asyncio.AbstractServer]:
    loop, there = asyncio.get_running_loop(), Collector()
    server = await loop.create_server(lambda: there, "127.0.0.1", 0)
    _, here = await loop.create_connection(Collector, "127.0.0.1", server.sockets[0].getsockname()[1])
    return here, there, server


def test_hours_pass_in_no_time_and_timers_run_exactly_when_they_are_due() -> None:
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, *pauses: float) -> None:
        for pause in pauses:
            await asyncio.sleep(pause)
            seen.append((name, asyncio.get_running_loop().time() - BEGIN_S))

    async def main() -> None:
        await asyncio.gather(sleeper("a", 0.1, 0.1, 0.1), sleeper("b", 0.25, 3600.0))

    began = time.perf_counter()
    run_virtual(main())
    assert time.perf_counter() - began < 3600
    assert [name for name, _ in seen] == ["a", "a", "b", "a", "b"]
    assert [at for _, at in seen] == pytest.approx([0.1, 0.2, 0.25, 0.3, 3600.25], abs=1e-9)


def test_a_program_that_can_only_wait_for_ever_is_an_error_that_names_the_waiters() -> None:
    async def nothing_sets_it() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(AssertionError, match="nothing_sets_it"):
        run_virtual(nothing_sets_it())


def test_both_ends_receive_in_order_and_a_close_arrives_after_all_data() -> None:
    async def main() -> None:
        here, there, _ = await connected()
        here.transport.write(b"a")
        here.transport.writelines([b"b", b"c"])
        there.transport.write(b"d")
        here.transport.close()
        here.transport.write(b"too late")
        await asyncio.sleep(0)
        assert there.seen == [b"a", b"bc", None]
        assert here.seen == [None]

    run_virtual(main())


def test_an_abort_resets_the_other_end() -> None:
    async def main() -> None:
        here, there, _ = await connected()
        there.transport.abort()
        await asyncio.sleep(0)
        assert (here.seen, there.seen) == ([ConnectionResetError], [None])

    run_virtual(main())


def test_a_closed_port_refuses_and_an_unreachable_one_stays_silent() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        _, _, server = await connected()
        port = cast(asyncio.Server, server).sockets[0].getsockname()[1]
        loop.unreachable.add(port)
        began = loop.time()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7):
                await loop.create_connection(Collector, "127.0.0.1", port)
        assert loop.time() - began == 7
        loop.unreachable.clear()
        server.close()
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Collector, "127.0.0.1", port)

    run_virtual(main())


def test_modules_read_the_same_clock_while_the_loop_runs_and_their_own_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("avow.example")
    module.__dict__["monotonic"] = time.monotonic
    monkeypatch.setitem(sys.modules, "avow.example", module)

    async def main() -> float:
        await asyncio.sleep(1_000_000)
        return float(module.__dict__["monotonic"]())

    assert run_virtual(main()) == BEGIN_S + 1_000_000
    assert module.__dict__["monotonic"] is time.monotonic
