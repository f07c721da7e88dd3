"""Packets over real WebSockets, and everything another end can do wrong."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct

import pytest
import trustme
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
    masked,
    raw_client,
    raw_server,
    run,
    standing_alone,
    until,
)
from websockets.frames import Close, Frame, Opcode

from avow.channel.transports.websocket_handshake import dial
from avow.limits import CHANNEL_PACKET_SIZE_BYTES_MAX, CHANNEL_TURN_WS_FRAMES


def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(client)
    return server, client


# ---------------------------------------------------------------------- packets


@both_loops
@both_listeners
@pytest.mark.parametrize("secure", [False, True])
def test_packets_go_both_ways_whole_and_in_order(loop: str, listener: str, secure: bool) -> None:
    served, trusting = contexts() if secure else (None, None)
    sizes = [0, 1, 125, 126, 65_535, 65_536, 300_000, CHANNEL_PACKET_SIZE_BYTES_MAX]
    sent = [bytes([n]) * size for n, size in enumerate(sizes)]

    async def play() -> None:
        server, client = Keeper(echo=True), Keeper()
        async with LISTENERS[listener](server, tls=served) as url:
            dialled = await dial(url, client, tls=trusting, timeout_s=60)
            assert client.socket is dialled
            for packet in sent:
                dialled.send([packet[:7], bytearray(packet[7:100]), memoryview(packet[100:])])
            await until(lambda: len(client.packets) == len(sent))
            assert server.packets == client.packets == sent
            dialled.close()
            await until(lambda: server.reasons and client.reasons)

    run(loop, play())


@both_loops
def test_pieces_are_one_packet_whoever_sends_them(loop: str) -> None:
    async def play() -> None:
        server, client = Keeper(), Keeper()
        async with standing_alone(server) as url:
            dialled = await dial(url, client, timeout_s=60)
            pieces: list[bytes | bytearray | memoryview]
            pieces = [b"ab", bytearray(b"cde"), memoryview(b"f"), b"", bytes(100_000)]
            dialled.send(pieces)
            server.open_socket.send(pieces)
            await until(lambda: server.packets and client.packets)
            assert server.packets == client.packets == [b"abcdef" + bytes(100_000)]
            dialled.abort()
            await until(lambda: server.reasons and client.reasons)

    run(loop, play())


@both_listeners
def test_a_packet_in_fragments_with_pings_between_them_is_one_packet(listener: str) -> None:
    async def play() -> None:
        server = Keeper()
        async with LISTENERS[listener](server) as url, raw_client(url) as client:
            client.write(REQUEST)
            await client.head()
            client.write(masked(b"one ", fin=False))
            client.write(masked(b"are you there", Opcode.PING))
            for _ in range(1000):
                client.write(masked(b"", Opcode.CONT, fin=False))
            client.write(masked(b"two", Opcode.CONT) + masked(b"next"))
            assert await client.frame() == (Opcode.PONG, b"are you there")
            await until(lambda: len(server.packets) == 2)
            assert server.packets == [b"one two", b"next"]

    run("asyncio", play())


@both_listeners
def test_frames_in_the_segment_of_the_request_are_received_after_the_answer(listener: str) -> None:
    async def play() -> None:
        server = Keeper(echo=True)
        async with LISTENERS[listener](server) as url, raw_client(url) as client:
            client.write(REQUEST + masked(b"", Opcode.PING) + masked(b"at once"))
            assert (await client.head()).startswith(b"HTTP/1.1 101")
            assert await client.frame() == (Opcode.PONG, b"")
            assert await client.frame() == (Opcode.BINARY, b"at once")
            assert server.packets == [b"at once"]

    run("uvloop", play())


@both_listeners
def test_a_handshake_may_arrive_byte_by_byte(listener: str) -> None:
    async def play() -> None:
        server = Keeper(echo=True)
        async with LISTENERS[listener](server) as url, raw_client(url) as client:
            for byte in REQUEST + masked(b"slowly"):
                client.write(bytes([byte]))
                await asyncio.sleep(0)
            await client.head()
            assert await client.frame() == (Opcode.BINARY, b"slowly")

    run("asyncio", play())


@both_loops
def test_frames_in_the_segment_of_the_answer_are_received_after_opened(loop: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answered(reader, writer, behind=Frame(Opcode.BINARY, b"at once").serialize(mask=False))
        await reader.read()

    async def play() -> None:
        client = Keeper()
        async with raw_server(serve) as url:
            dialled = await dial(url, client, timeout_s=60)
            await until(lambda: client.packets == [b"at once"])
            dialled.abort()
            await until(lambda: client.reasons)

    run(loop, play())


@both_loops
@pytest.mark.parametrize(
    "last",
    [Frame(Opcode.CLOSE, Close(1000, "refused").serialize()).serialize(mask=False), b"\xff\xff"],
    ids=["a close", "a violation of the protocol"],
)
def test_frames_before_an_end_in_the_segment_of_the_answer_are_received(loop: str, last: bytes) -> None:
    """Regression: a server that refuses at once was not heard before the dial timed out."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answered(reader, writer, behind=Frame(Opcode.BINARY, b"refused").serialize(mask=False) + last)
        await reader.readexactly(2)  # the client closes, too

    async def play() -> None:
        client = Keeper()
        async with raw_server(serve) as url:
            await dial(url, client, timeout_s=60)
            await until(lambda: client.reasons)
            assert client.packets == [b"refused"]

    run(loop, play())


# ---------------------------------------------------------------------- turns of the loop


@both_loops
@pytest.mark.parametrize(
    "flood",
    [
        masked(b"", fin=False) + masked(b"", Opcode.CONT, fin=False) * 50_000 + masked(b"", Opcode.CONT),
        masked(b"", Opcode.PING) * 50_000,
        masked(b"", Opcode.PONG) * 50_000,
        masked(b"") * 50_000,
    ],
    ids=["empty fragments", "pings", "pongs", "empty messages"],
)
def test_frames_without_content_take_many_turns_and_another_connection_is_served(loop: str, flood: bytes) -> None:
    """Regression: empty fragments kept everything else in a peer waiting for 15 s."""
    turns = 0

    async def play() -> None:
        flooded, other, client = Keeper(), Keeper(echo=True), Keeper()
        async with standing_alone(flooded) as url, standing_alone(other) as other_url, raw_client(url) as raw:
            raw.write(REQUEST)
            await raw.head()
            dialled = await dial(other_url, client, timeout_s=60)
            running = asyncio.get_running_loop()

            def tick() -> None:
                nonlocal turns
                turns += 1
                if b"last" not in flooded.packets:
                    running.call_soon(tick)

            tick()
            raw.write(flood + masked(b"last"))
            dialled.send([b"echo"])
            reading = asyncio.create_task(raw.reader.read())
            await until(lambda: client.packets)
            assert b"last" not in flooded.packets
            await until(lambda: b"last" in flooded.packets)
            dialled.abort()
            await until(lambda: client.reasons)
            raw.reset()
            with contextlib.suppress(ConnectionError):
                await reading

    run(loop, play())
    assert turns > 50_000 // (CHANNEL_TURN_WS_FRAMES + 8_192 // 6)


@both_loops
def test_a_paused_socket_delivers_nothing_until_it_is_resumed(loop: str) -> None:
    async def play() -> None:
        server, client = Keeper(), Keeper()
        async with standing_alone(server, patience=QUICK) as url:
            dialled = await dial(url, client, timeout_s=60)
            await until(lambda: server.socket)
            server.open_socket.pause_reading()
            server.open_socket.pause_reading()
            for n in range(100):
                dialled.send([bytes([n]) * 10_000])
            await asyncio.sleep(2 * QUICK.silent_s)
            assert len(server.packets) == 0
            assert not server.reasons, "silence that this end has caused"
            server.open_socket.resume_reading()
            await until(lambda: len(server.packets) == 100)
            server.open_socket.pause_reading()
            dialled.close()
            server.open_socket.close()
            await until(lambda: server.reasons and client.reasons)

    run(loop, play())


# ---------------------------------------------------------------------- the end


@both_loops
@both_listeners
def test_data_sent_before_a_close_still_leaves_and_no_event_follows_it(loop: str, listener: str) -> None:
    async def play() -> None:
        server, client = Keeper(echo=True), Keeper()
        async with LISTENERS[listener](server) as url:
            dialled = await dial(url, client, timeout_s=60)
            for n in range(100):
                dialled.send([bytes([n]) * 50_000])
            dialled.close(code=4000, reason="enough " * 40)
            dialled.close()
            dialled.send([b"too late"])
            assert dialled.full
            await until(lambda: server.reasons and client.reasons)
            assert len(server.packets) == 100
            assert client.packets == []
            assert client.reasons == ["closed by this end"]
            assert server.reasons[0].startswith("closed by the other end: 4000")
            assert "enough" in server.reasons[0]

    run(loop, play())


@both_loops
def test_a_close_by_the_server_reaches_the_client(loop: str) -> None:
    async def play() -> None:
        server, client = Keeper(), Keeper()
        async with standing_alone(server) as url:
            await dial(url, client, timeout_s=60)
            await until(lambda: server.socket)
            server.open_socket.send([b"last words"])
            server.open_socket.close(code=1001, reason="going")
            await until(lambda: server.reasons and client.reasons)
            assert client.packets == [b"last words"]
            assert client.reasons == ["closed by the other end: 1001 (going away) going"]

    run(loop, play())


@both_loops
@both_listeners
@pytest.mark.parametrize("who", ["client", "server"])
def test_a_reset_is_reported_once(loop: str, listener: str, who: str) -> None:
    async def play() -> None:
        server, client = Keeper(), Keeper()
        async with LISTENERS[listener](server) as url:
            dialled = await dial(url, client, timeout_s=60)
            await until(lambda: server.socket)
            for keeper in (server, client):
                keeper.open_socket.send([bytes(3_000_000)])
            (dialled if who == "client" else server.open_socket).abort()
            await until(lambda: server.reasons and client.reasons)
            for keeper in (server, client):
                keeper.open_socket.send([b"to nobody"])
                keeper.open_socket.close()
                keeper.open_socket.abort()
            await asyncio.sleep(0.02)
            assert (len(server.reasons), len(client.reasons)) == (1, 1)

    run(loop, play())


@both_listeners
def test_a_reset_in_the_middle_of_a_frame_is_reported_as_a_loss(listener: str) -> None:
    async def play() -> None:
        server = Keeper()
        async with LISTENERS[listener](server) as url, raw_client(url) as client:
            client.write(REQUEST)
            await client.head()
            client.write(masked(bytes(1000))[:500])
            await until(lambda: server.socket)
            client.reset()
            await until(lambda: server.reasons)
            assert server.packets == []

    run("uvloop", play())


def test_a_client_that_hangs_up_without_a_close_frame_is_lost() -> None:
    async def play() -> None:
        server = Keeper()
        async with standing_alone(server) as url, raw_client(url) as client:
            client.write(REQUEST)
            await client.head()
            client.writer.write_eof()
            await until(lambda: server.reasons)
            assert server.reasons == ["the other end closed the connection"]

    run("asyncio", play())


def test_an_unanswered_close_times_out() -> None:
    async def play() -> None:
        server = Keeper()
        async with standing_alone(server, patience=QUICK) as url, raw_client(url) as client:
            client.write(REQUEST)
            await client.head()
            server.open_socket.close()
            assert (await client.frame())[0] is Opcode.CLOSE
            await until(lambda: server.reasons)
            assert server.reasons == ["closed by this end"]

    run("asyncio", play())


def test_a_close_waits_until_the_other_end_has_read_the_data() -> None:
    size = 8_000_000

    async def play() -> None:
        server = Keeper()
        async with standing_alone(server, patience=STEADY) as url, raw_client(url, receive_buffer=8_192) as client:
            client.write(REQUEST)
            await client.head()
            hold_little(server)
            server.open_socket.send([bytes(size)])
            server.open_socket.close()
            await client.reader.readexactly(10)
            for _ in range(size // 100_000):
                await client.reader.readexactly(100_000)
                await asyncio.sleep(0.02)  # in all much longer than a close may take
            assert (await client.frame())[0] is Opcode.CLOSE

    run("asyncio", play())


# ---------------------------------------------------------------------- against the rules


@both_listeners
@pytest.mark.parametrize(
    ("received", "code"),
    [
        pytest.param([(b"text", Opcode.TEXT, True)], 1003, id="text"),
        pytest.param([(b"te", Opcode.TEXT, False), (b"xt", Opcode.CONT, True)], 1003, id="text in fragments"),
        pytest.param(struct.pack("!BBQ", 0x82, 0xFF, 1 << 40) + bytes(4), 1009, id="a terabyte"),
        pytest.param(
            struct.pack("!BBQ", 0x82, 0xFF, CHANNEL_PACKET_SIZE_BYTES_MAX + (1 << 16)) + bytes(4), 1009, id="too large"
        ),
        pytest.param(
            [(bytes(5_000_000), Opcode.BINARY, False), (bytes(5_000_000), Opcode.CONT, True)],
            1009,
            id="too large in fragments",
        ),
        pytest.param(b"\x82\x01a", 1002, id="not masked"),
        pytest.param(b"\xf2\x81" + bytes(5), 1002, id="reserved bits"),
        pytest.param(b"\x83\x81" + bytes(5), 1002, id="an opcode that does not exist"),
        pytest.param([(b"x", Opcode.CONT, True)], 1002, id="the rest of nothing"),
        pytest.param(b"\x89\xfe\x00\x7e" + bytes(130), 1002, id="a ping that is too long"),
    ],
)
def test_a_client_that_violates_the_protocol_gets_a_close_code_and_is_cut_off(
    listener: str, received: bytes | list[tuple[bytes, Opcode, bool]], code: int
) -> None:
    bad = (
        received
        if isinstance(received, bytes)
        else b"".join(masked(data, opcode, fin=fin) for data, opcode, fin in received)
    )

    async def play() -> None:
        server = Keeper()
        async with LISTENERS[listener](server) as url, raw_client(url) as client:
            client.write(REQUEST)
            await client.head()
            client.write(masked(b"good") + bad + masked(b"not heard any more"))
            opcode, data = await client.frame()
            assert (opcode, struct.unpack("!H", data[:2])[0]) == (Opcode.CLOSE, code)
            assert await client.reader.read() == b""
            client.writer.close()
            await until(lambda: server.reasons)
            assert server.packets == [b"good"]

    run("uvloop", play())


def test_a_client_leaves_a_server_that_sends_text() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answered(reader, writer, behind=Frame(Opcode.TEXT, b"hello").serialize(mask=False))
        await reader.read()
        writer.close()

    async def play() -> None:
        client = Keeper()
        async with raw_server(serve) as url:
            await dial(url, client, timeout_s=60, patience=QUICK)
            await until(lambda: client.reasons)
            assert client.reasons == ["the other end sent text; packets are binary"]

    run("uvloop", play())


def test_a_client_that_sends_pings_and_reads_no_pongs_is_cut_off() -> None:
    async def play() -> None:
        server = Keeper()
        async with standing_alone(server) as url, raw_client(url, receive_buffer=8_192) as client:
            client.write(REQUEST)
            await client.head()
            pings = masked(bytes(125), Opcode.PING) * 1_000
            with contextlib.suppress(ConnectionError):
                for _ in range(400):
                    client.write(pings)
                    await client.writer.drain()
            await until(lambda: server.reasons)
            assert server.reasons == ["the other end sends pings and does not read the pongs"]

    run("asyncio", play())
