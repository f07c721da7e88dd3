"""After `stop`, acceptor and dialer over TLS have no open connection, whatever the state of the handshake.

Whether a connection is closed is asked of its other end, with a blocking socket: no turn of the event loop helps.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trustme
import uvloop

from avow.channel.acceptor import TlsAcceptor, open_acceptor
from avow.channel.listener import listen
from avow.limits import MIB
from avow.server.byte_budget import ByteBudget
from avow.server.http.listener import Listener
from avow.server.links import Links
from avow.wire.frames import Hello
from avow.wire.messages import Message

AUTHORITY = trustme.CA()
HALF_A_CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100)

Address = tuple[str, int]
Stop = Callable[[], Awaitable[None]]
Listening = Callable[[ssl.SSLContext | None], Awaitable[tuple[Address, Stop]]]


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("127.0.0.1").configure_cert(context)
    return context


def client_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    return context


class Receiver:
    """The part of a peer that its links use, without a peer."""

    def hello(self) -> Hello:
        return Hello(bytes(16), bytes(16), 1, 1)

    def greeted(self, hello: Hello) -> int:
        return hello.newest

    def received(self, source: int, route: int, message: Message) -> None: ...

    def dismissed(self) -> None: ...

    def not_understood(self, source: int, route: int, reason: str) -> None: ...


async def links(tls: ssl.SSLContext | None) -> tuple[Address, Stop]:
    made = Links(Receiver(), me=1, addresses=dict, accepting=tls)
    return await made.listen("127.0.0.1", 0), made.stop


async def http(tls: ssl.SSLContext | None) -> tuple[Address, Stop]:
    made = Listener(
        lambda exchange: None,
        connections_max=8,
        in_flight_max=8,
        request_bytes_max=1024,
        budget=ByteBudget(64 * MIB),
        tls=tls,
    )
    return await made.start("127.0.0.1", 0), made.stop


async def channels(tls: ssl.SSLContext | None) -> tuple[Address, Stop]:
    made = await listen(lambda channel: None, tls=tls)
    return made.address, made.close


Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    def run(scenario: Callable[[], Awaitable[None]]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(scenario(), 60))

    return run


@contextlib.asynccontextmanager
async def speaking(address: Address) -> AsyncIterator[None]:
    """A TLS connection to it. Connections are accepted in order, so those made before were accepted."""
    _, writer = await asyncio.open_connection(*address, ssl=client_context())
    yield
    writer.transport.abort()
    await asyncio.sleep(0)


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(60)
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("sent", [b"", HALF_A_CLIENT_HELLO], ids=["nothing", "half"])
@pytest.mark.parametrize("listening", [links, http, channels])
def test_a_connection_in_its_handshake_is_closed_when_stop_returns(run: Run, listening: Listening, sent: bytes) -> None:
    async def scenario() -> None:
        address, stop = await listening(server_context())
        with socket.create_connection(address) as silent, socket.create_connection(address) as late:
            silent.sendall(sent)
            async with speaking(address):
                late.sendall(sent)
                await stop()
                assert is_closed(silent)
                assert is_closed(late)

    run(scenario)


@pytest.mark.parametrize("turns", range(5))
@pytest.mark.parametrize("listening", [links, http, channels])
def test_a_connection_is_closed_when_stop_returns_in_any_turn_after_it_was_made(
    run: Run, listening: Listening, turns: int
) -> None:
    async def scenario() -> None:
        address, stop = await listening(server_context())
        with socket.create_connection(address) as silent:
            for _ in range(turns):
                await asyncio.sleep(0)
            await stop()
            assert is_closed(silent)

    run(scenario)


@pytest.mark.parametrize("turns", range(5))
@pytest.mark.parametrize("listening", [links, http, channels])
def test_without_tls_a_connection_is_closed_when_stop_returns(listening: Listening, turns: int) -> None:
    """With uvloop alone: asyncio forgets a connection that it accepted in the turn before its server was closed."""

    async def scenario() -> None:
        address, stop = await listening(None)
        with socket.create_connection(address) as silent:
            for _ in range(turns):
                await asyncio.sleep(0)
            await stop()
            assert is_closed(silent)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 60))


def test_a_dial_in_its_handshake_is_closed_when_links_have_stopped(run: Run) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            mute.setblocking(False)
            known = {1: f"127.0.0.1:{mute.getsockname()[1]}"}
            dialling = Links(Receiver(), me=2, addresses=lambda: known, dialling=client_context())
            dialling.dial_all()
            connection, _ = await asyncio.get_running_loop().sock_accept(mute)
            with connection:
                assert await asyncio.get_running_loop().sock_recv(connection, 1)  # of its ClientHello
                await dialling.stop()
                assert is_closed(connection)

    run(scenario)


async def acceptor(*, handshakes_max: int = 8, handshake_s: float = 30.0) -> TlsAcceptor:
    made = await open_acceptor(
        asyncio.Protocol,
        "127.0.0.1",
        0,
        tls=server_context(),
        backlog=8,
        handshake_s=handshake_s,
        handshakes_max=handshakes_max,
    )
    assert isinstance(made, TlsAcceptor)
    return made


def test_handshakes_at_the_same_time_are_bounded(run: Run) -> None:
    async def scenario() -> None:
        accepting = await acceptor(handshakes_max=2)
        opened = [await asyncio.open_connection(*accepting.address) for _ in range(3)]
        assert await opened[2][0].read() == b""
        assert not opened[0][0].at_eof()
        assert not opened[1][0].at_eof()
        await accepting.close()
        for reader, writer in opened:
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()

    run(scenario)


def test_a_handshake_that_takes_too_long_is_closed(run: Run) -> None:
    async def scenario() -> None:
        accepting = await acceptor(handshake_s=0.05)
        reader, writer = await asyncio.open_connection(*accepting.address)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        await accepting.close()

    run(scenario)


class Closing(asyncio.Protocol):
    """Closes each connection after its handshake."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class Exhausted(socket.socket):
    """A listening socket of a process without a free file descriptor, once."""

    failed = False

    def accept(self) -> tuple[socket.socket, object]:
        if not self.failed:
            self.failed = True
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_connections_are_accepted_again_after_the_process_had_no_file_descriptor_left(run: Run) -> None:
    async def scenario() -> None:
        listening = Exhausted(fileno=socket.create_server(("127.0.0.1", 0)).detach())
        listening.setblocking(False)
        accepting = TlsAcceptor(Closing, [listening], server_context(), handshake_s=30.0, handshakes_max=8)
        reader, writer = await asyncio.open_connection(*accepting.address, ssl=client_context())
        assert await reader.read() == b""
        assert listening.failed
        writer.close()
        await accepting.close()

    run(scenario)


def test_an_address_in_use_is_an_error_and_leaves_nothing_open(run: Run) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
            await open_acceptor(
                asyncio.Protocol,
                *taken.getsockname(),
                tls=server_context(),
                backlog=8,
                handshake_s=1.0,
                handshakes_max=8,
            )

    run(scenario)
