"""Links between peers over loopback: Hello, order, runs, strangers, garbage."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
import trustme
import uvloop
from tests.unit.wire.wire_frames import frame_of, resigned
from tests.unit.wire.wire_material import forged

from avow.errors import FolderUnusable
from avow.server.access import link_contexts
from avow.server.links import Links
from avow.server.settings import Settings
from avow.wire.frames import Hello, encode
from avow.wire.messages import Enqueue, Entry, Heartbeat, Kind, Message
from avow.wire.record import HEADER_SIZE_BYTES

CLUSTER = UUID(int=7).bytes


class Listener:
    """The part of a peer that its links use, without a peer."""

    def __init__(
        self,
        number: int,
        *,
        run: int = 1,
        cluster: bytes = CLUSTER,
        tls: tuple[ssl.SSLContext | None, ssl.SSLContext | None] = (None, None),
    ) -> None:
        self.number, self.run, self.cluster = number, run, cluster
        self.heard: list[tuple[int, int, Any]] = []
        self.skipped: list[tuple[int, int, str]] = []
        self.dismissals = 0
        self.known: dict[int, str] = {}
        self.configured_addresses: dict[int, str] = {}
        accepting, dialling = tls
        self.links = Links(
            self,
            me=number,
            addresses=lambda: self.known,
            configured=self.configured_addresses,
            accepting=accepting,
            dialling=dialling,
        )

    async def listen(self) -> str:
        host, port = await self.links.listen("127.0.0.1", 0)
        return f"{host}:{port}"

    def dial(self, number: int, where: str) -> None:
        self.known[number] = where
        self.links.dial_all()

    def hello(self) -> Hello:
        return Hello(self.cluster, bytes([self.number]) * 16, self.number, self.run)

    def greeted(self, hello: Hello) -> int:
        if hello.cluster != CLUSTER:
            raise FolderUnusable("another cluster")
        return hello.newest

    def received(self, source: int, route: int, message: Message) -> None:
        self.heard.append((source, route, message))

    def dismissed(self) -> None:
        self.dismissals += 1

    def not_understood(self, source: int, route: int, reason: str) -> None:
        self.skipped.append((source, route, reason))

    def say(self, peer: int, message: Message, *, route: int = 1) -> None:
        self.links.send(peer, route, message)
        self.links.flush()


async def until(predicate: Callable[[], bool]) -> None:
    for _ in range(6_000):
        if predicate():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to pass")


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 60))


def port_of(listener: Listener) -> int:
    acceptor = listener.links._acceptor
    assert acceptor is not None
    return acceptor.address[1]


def refusals(listener: Listener) -> int:
    return cast(int, listener.links.statistics()["refused"])


async def pair() -> tuple[Listener, Listener]:
    low, high = Listener(1), Listener(2)
    high.dial(1, await low.listen())
    await until(lambda: low.links.connected == [2] and high.links.connected == [1])
    return low, high


async def stop(*listeners: Listener) -> None:
    for listener in listeners:
        await listener.links.stop()


def test_messages_arrive_in_order_in_both_directions_however_large() -> None:
    async def scenario() -> None:
        low, high = await pair()
        large = Enqueue(5, 0, 0, (Entry(1, 5, Kind.DATA, 1, batch=os.urandom(4 << 20)),), 0, 0)
        for number in range(100):
            high.say(1, Heartbeat(number, coordinating=False, cursor=number))
        high.say(1, large, route=9)
        low.say(2, Heartbeat(7, coordinating=True, cursor=7))
        await until(lambda: len(low.heard) == 101 and len(high.heard) == 1)
        assert [message.cursor for _, _, message in low.heard[:100]] == list(range(100))
        assert low.heard[100][:2] == (2, 9)
        assert bytes(low.heard[100][2].entries[0].batch) == large.entries[0].batch
        await stop(low, high)

    run(scenario)


def test_a_later_run_replaces_the_link_and_an_earlier_one_is_refused() -> None:
    async def scenario() -> None:
        low, high = await pair()
        address = f"127.0.0.1:{port_of(low)}"
        heir = Listener(2, run=2)
        heir.dial(1, address)
        await until(lambda: low.links._runs == {2: 2})
        await stop(heir, high)
        await until(lambda: low.links.connected == [])
        ghost = Listener(2, run=1)
        ghost.dial(1, address)
        await until(lambda: refusals(low) >= 2 or ghost.links.connected == [])
        assert low.links.connected == []
        await stop(low, ghost)

    run(scenario)


def test_a_peer_that_moved_is_found_at_the_address_the_operator_gives() -> None:
    async def scenario() -> None:
        first, second, other = Listener(1), Listener(2), Listener(1, cluster=b"another cluster.")
        second.configured_addresses[1] = await first.listen()
        second.dial(1, await other.listen())
        await until(lambda: 1 in second.links.connected)
        second.say(1, Heartbeat(1, coordinating=False, cursor=1))
        await until(lambda: bool(first.heard))
        assert not other.heard
        await stop(first, second, other)

    run(scenario)


def test_a_peer_of_another_cluster_is_not_linked() -> None:
    async def scenario() -> None:
        low = Listener(1)
        stranger = Listener(2, cluster=bytes(16))
        stranger.dial(1, await low.listen())
        await until(lambda: refusals(low) >= 2)
        assert low.links.connected == []
        await stop(low, stranger)

    run(scenario)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


HELLO = b"".join(bytes(piece) for piece in encode(0, Hello(CLUSTER, bytes(16), 3, 1)))
GARBAGE = [
    os.urandom(4096),
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    HELLO[:20] + b"\xff" * 40,
    HELLO + b"\0" * 64,
    HELLO + struct.pack("<I2sBBI", 0, b"Av", 1, 12, 0xFFFFFFF8),
    HELLO + HELLO,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),  # a TLS client where none is expected
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_closes_its_own_connection_and_nothing_else(garbage: bytes) -> None:
    async def scenario() -> None:
        low, high = await pair()
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(low))
        writer.write(garbage)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1 << 20)
        await closed(writer)
        await until(lambda: not low.links.strangers)
        high.say(1, Heartbeat(1, coordinating=False, cursor=1))
        await until(lambda: len(low.heard) == 1)
        assert low.links.connected == [2]
        await stop(low, high)

    run(scenario)


def test_a_frame_of_a_newer_release_is_skipped_and_the_link_goes_on() -> None:
    """A kind, a flag and a kind of record that this release does not know, each in a frame that is otherwise intact."""
    frame = bytes(frame_of(0, Enqueue(5, 0, 0, (Entry(1, 5, Kind.DATA, 1),), 0, 0)))
    record_at = len(frame) - HEADER_SIZE_BYTES
    newer_record = frame[:record_at] + bytes(forged(frame[record_at:], "B", 9, 77))
    newer: list[bytes | bytearray] = [resigned(frame, "B", 7, 77), resigned(frame, "H", 22, 1), newer_record]

    async def scenario() -> None:
        low, high = await pair()
        link = high.links._by_peer[1]
        for route, made in enumerate(newer, 3):
            link.send([resigned(made, "I", 12, route)])
            high.say(1, Heartbeat(route, coordinating=False, cursor=0), route=route)
        await until(lambda: len(low.heard) == 3)
        assert [(source, route) for source, route, _ in low.skipped] == [(2, 3), (2, 4), (2, 5)]
        assert "a kind of protocol version" in low.skipped[0][2]
        assert low.links.statistics()["skipped"] == 3
        assert low.links.connected == [2]
        await stop(low, high)

    run(scenario)


def test_a_connection_that_never_sends_hello_is_closed() -> None:
    async def scenario() -> None:
        low = Listener(1)
        port = int((await low.listen()).rpartition(":")[2])
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
        for reader, writer in opened:
            await reader.read()
            await closed(writer)
        await until(lambda: not low.links.strangers)
        await stop(low)

    run(scenario)


def test_the_number_of_connections_without_hello_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("avow.server.links.HELLO_WAIT_S", 60.0)

    async def scenario() -> None:
        low = Listener(1)
        port = int((await low.listen()).rpartition(":")[2])
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(80)]
        for reader, writer in opened[64:]:
            with contextlib.suppress(ConnectionError):
                await reader.read()
            await closed(writer)
        await until(lambda: len(low.links.strangers) == 64)
        for _, writer in opened[:64]:
            await closed(writer)
        await stop(low)

    run(scenario)


def test_a_dial_cancelled_while_it_connects_leaves_no_link() -> None:
    """uvloop then closes the connection, and does not call `connection_lost`."""

    class Stopping(Listener):
        def hello(self) -> Hello:
            self.stopped = asyncio.create_task(self.links.stop())
            return super().hello()

    async def scenario() -> None:
        low, high = Listener(1), Stopping(2)
        high.dial(1, await low.listen())
        await until(lambda: hasattr(high, "stopped"))
        await high.stopped
        assert not high.links.strangers
        assert high.links.connected == []
        await stop(low)

    run(scenario)


def test_a_loop_that_stalls_for_longer_than_a_dial_may_take_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection that was made meanwhile is used, and nothing that is sent raises."""
    monkeypatch.setattr("avow.server.links.HELLO_WAIT_S", 0.02)

    class Stalling(Listener):
        stalled = 0

        def hello(self) -> Hello:
            self.stalled += 1
            until_s = time.monotonic() + 0.2
            while time.monotonic() < until_s:
                pass
            return super().hello()

    async def scenario() -> None:
        raised: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: raised.append(context))
        low, high = Listener(1), Stalling(2)
        high.dial(1, await low.listen())

        def said() -> bool:
            high.say(1, Heartbeat(1, coordinating=False, cursor=1))
            return high.links.connected == [1] and bool(low.heard)

        await until(said)
        assert (high.stalled, raised) == (1, [])
        await stop(low, high)

    run(scenario)


def test_half_a_frame_and_then_silence_costs_only_its_connection() -> None:
    async def scenario() -> None:
        low, high = await pair()
        _, writer = await asyncio.open_connection("127.0.0.1", port_of(low))
        writer.write(HELLO[:30])
        await until(lambda: len(low.links.strangers) == 1)
        await until(lambda: not low.links.strangers)
        assert low.links.connected == [2]
        await closed(writer)
        await stop(low, high)

    run(scenario)


def mutual(folder: Path, authority: trustme.CA) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    folder.mkdir()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    files = {name: str(folder / file) for name, file in FILES.items()}
    return link_contexts(Settings(**files))  # type: ignore[arg-type]


FILES = {"tls_cert": "cert.pem", "tls_key": "key.pem", "tls_ca": "ca.pem"}


def test_with_an_authority_only_peers_with_its_certificates_are_linked(tmp_path: Path) -> None:
    ours, theirs = trustme.CA(), trustme.CA()

    async def scenario() -> None:
        low = Listener(1, tls=mutual(tmp_path / "1", ours))
        where = await low.listen()
        friend = Listener(2, tls=mutual(tmp_path / "2", ours))
        stranger = Listener(3, tls=mutual(tmp_path / "3", theirs))
        plain = Listener(4)
        for peer in (friend, stranger, plain):
            peer.dial(1, where)
        await until(lambda: low.links.connected == [2] and friend.links.connected == [1])
        friend.say(1, Heartbeat(1, coordinating=False, cursor=1))
        await until(lambda: len(low.heard) == 1)
        for garbage in GARBAGE:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(where.rpartition(":")[2]))
            writer.write(garbage)
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                await reader.read()
            await closed(writer)
        friend.say(1, Heartbeat(2, coordinating=False, cursor=2))
        await until(lambda: len(low.heard) == 2)
        assert low.links.connected == [2]
        await stop(low, friend, stranger, plain)

    run(scenario)
