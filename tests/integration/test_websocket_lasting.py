"""How long a WebSocket lasts when an end is idle, slow or gone, and how full it may get."""

from __future__ import annotations

import asyncio

from tests.integration.websocket_ends import (
    LISTENERS,
    QUICK,
    REQUEST,
    STEADY,
    Keeper,
    answered,
    both_listeners,
    both_loops,
    hold_little,
    raw_client,
    raw_server,
    reset,
    run,
    standing_alone,
    until,
)

from avow.channel.transports.websocket import OUTPUT_SIZE_BYTES
from avow.channel.transports.websocket_handshake import dial

# ---------------------------------------------------------------------- life


@both_loops
def test_idle_sockets_stay_open_while_both_ends_live(loop: str) -> None:
    async def play() -> None:
        server, client = Keeper(), Keeper()
        async with standing_alone(server, patience=STEADY) as url:
            dialled = await dial(url, client, timeout_s=60, patience=STEADY)
            await asyncio.sleep(2.5 * STEADY.silent_s)  # time passing is what this is about
            assert server.reasons == client.reasons == []
            dialled.abort()
            await until(lambda: server.reasons and client.reasons)

    run(loop, play())


@both_loops
def test_a_socket_that_is_not_read_on_purpose_is_not_taken_for_a_silent_one(loop: str) -> None:
    async def play() -> None:
        server, client = Keeper(), Keeper()
        async with standing_alone(server, patience=STEADY) as url:
            dialled = await dial(url, client, timeout_s=60, patience=STEADY)
            await until(lambda: server.socket)
            assert server.socket is not None
            server.socket.pause_reading()
            dialled.send([b"one"])
            await asyncio.sleep(2.5 * STEADY.silent_s)  # time passing is what this is about
            assert server.packets == server.reasons == []
            server.socket.resume_reading()
            await until(lambda: server.packets == [b"one"])
            dialled.abort()
            await until(lambda: server.reasons and client.reasons)

    run(loop, play())


@both_loops
def test_a_vanished_server_is_detected_by_a_ping(loop: str) -> None:
    heard = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answered(reader, writer)
        while data := await reader.read(1000):  # and never says anything
            heard.extend(data)

    async def play() -> None:
        client = Keeper()
        async with raw_server(serve) as url:
            began = asyncio.get_running_loop().time()
            await dial(url, client, timeout_s=60, patience=QUICK)
            await until(lambda: client.reasons)
            lasted = asyncio.get_running_loop().time() - began
            assert client.reasons == ["nothing was received for 0.2 s"]
            assert lasted >= QUICK.silent_s
            assert heard[:2] == b"\x89\x80"  # a ping, masked, empty

    run(loop, play())


@both_listeners
def test_a_vanished_client_is_detected_though_the_kernel_buffers_data(listener: str) -> None:
    async def play() -> None:
        server = Keeper()
        async with LISTENERS[listener](server, patience=QUICK) as url, raw_client(url) as client:
            client.write(REQUEST)
            await client.head()
            while not server.reasons:
                server.open_socket.send([b"is anybody there"])
                await asyncio.sleep(0.01)
            assert server.reasons == ["nothing was received for 0.2 s"]

    run("uvloop", play())


def test_a_client_that_reads_a_large_packet_slowly_counts_as_alive() -> None:
    size = 8_000_000

    async def play() -> None:
        server = Keeper()
        async with standing_alone(server, patience=STEADY) as url, raw_client(url, receive_buffer=8_192) as client:
            client.write(REQUEST)
            await client.head()
            hold_little(server)
            server.open_socket.send([bytes(size)])
            await client.reader.readexactly(10)
            for _ in range(40):
                await client.reader.readexactly(100_000)
                await asyncio.sleep(0.04)  # in all more than twice what a silent one would get
            assert server.reasons == []

    run("asyncio", play())


@both_loops
@both_listeners
def test_a_client_that_ended_its_stream_and_does_not_read_is_given_up(loop: str, listener: str) -> None:
    """Regression: its next ping raised, and nothing looked at the socket any more."""

    async def play() -> None:
        server = Keeper()
        raised = list[dict[str, object]]()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
        async with (
            LISTENERS[listener](server, patience=QUICK) as url,
            raw_client(url, receive_buffer=8_192) as client,
        ):
            client.write(REQUEST)
            await client.head()
            hold_little(server)
            server.open_socket.send([bytes(8_000_000)])
            client.writer.write_eof()
            await until(lambda: server.reasons)
        assert raised == []

    run(loop, play())


# ---------------------------------------------------------------------- push-back


@both_loops
@both_listeners
def test_a_socket_is_full_until_the_other_end_reads(loop: str, listener: str) -> None:
    packet = bytes(65_536)

    async def play() -> None:
        server = Keeper()
        async with LISTENERS[listener](server) as url, raw_client(url, receive_buffer=8_192) as client:
            client.write(REQUEST)
            await client.head()
            count = 0
            for _ in range(2_000):  # as much as the kernel holds, and then some
                while not server.open_socket.full:
                    server.open_socket.send([packet])
                    count += 1
                before = server.writable_count
                await asyncio.sleep(0.001)
                if server.open_socket.full and server.writable_count == before:
                    break
            assert server.open_socket.full
            unsent = server.open_socket._transport.get_write_buffer_size()  # type: ignore[attr-defined]
            assert OUTPUT_SIZE_BYTES < unsent < OUTPUT_SIZE_BYTES + 2 * len(packet)
            writable_before = server.writable_count
            for _ in range(count):
                await client.frame()
            await until(lambda: server.writable_count == writable_before + 1)
            assert not server.open_socket.full

    run(loop, play())


@both_loops
def test_a_client_is_full_until_the_server_reads(loop: str) -> None:
    reading = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answered(reader, writer)
        await reading.wait()
        while await reader.read(1 << 20):
            pass

    async def play() -> None:
        client = Keeper()
        async with raw_server(serve) as url:
            dialled = await dial(url, client, timeout_s=60)
            for _ in range(40):
                dialled.send([bytes(1 << 20)])
            await until(lambda: dialled.full)
            assert client.writable_count == 0
            reading.set()
            await until(lambda: client.writable_count == 1)
            assert not dialled.full
            dialled.abort()
            await until(lambda: client.reasons)

    run(loop, play())


def test_a_reset_while_the_socket_is_full_is_reported() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answered(reader, writer)
        await reader.read(1000)
        reset(writer)

    async def play() -> None:
        client = Keeper()
        async with raw_server(serve) as url:
            dialled = await dial(url, client, timeout_s=60)
            for _ in range(40):
                dialled.send([bytes(1 << 20)])
            assert dialled.full
            await until(lambda: client.reasons)

    run("uvloop", play())
