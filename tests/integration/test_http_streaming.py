"""Answers written over time, over real sockets: as clients of HTTP read them, and as bad ones do not."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import ssl
from collections.abc import AsyncIterator, Callable

import pytest
import trustme
from tests.integration.websocket_ends import LOOPS, port_of, raw_client, run, until

from avow.limits import MIB
from avow.server.byte_budget import ByteBudget
from avow.server.http.listener import Listener, Patience
from avow.server.http.request import HttpRequest
from avow.server.http.streams import Stream

both_loops = pytest.mark.parametrize("loop", LOOPS)
ASK = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


@contextlib.asynccontextmanager
async def serving(
    handle: Callable[[HttpRequest], None], *, tls: ssl.SSLContext | None = None, patience: Patience | None = None
) -> AsyncIterator[tuple[Listener, str]]:
    listener = Listener(
        handle,
        connections_max=20,
        in_flight_max=20,
        request_bytes_max=1000,
        budget=ByteBudget(16 * MIB),
        tls=tls,
        patience=patience,
    )
    host, port = await listener.start("127.0.0.1", 0)
    try:
        yield listener, f"http://{host}:{port}/"
    finally:
        await listener.stop()


class Kept:
    """Streams that were opened, for the test to write to."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.gone = self.writable = 0

    def __call__(self, exchange: HttpRequest) -> None:
        stream = exchange.stream(200, content_type=b"text/plain")
        stream.on_gone, stream.on_writable = self.was_gone, self.was_writable
        self.streams.append(stream)

    def was_gone(self) -> None:
        self.gone += 1

    def was_writable(self) -> None:
        self.writable += 1


def fetch(port: int, tls: ssl.SSLContext | None, method: str = "GET") -> tuple[str | None, bytes]:
    """With the client of the standard library, twice on one connection."""
    if tls is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    else:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=tls)
    with contextlib.closing(connection):
        for _ in range(2):
            connection.request(method, "/")
            answer = connection.getresponse()
            body = answer.read()
        return answer.getheader("transfer-encoding"), body


@both_loops
@pytest.mark.parametrize("secure", [False, True])
def test_a_standard_client_reads_a_streamed_body(loop: str, secure: bool) -> None:
    served = trusting = None
    if secure:
        authority = trustme.CA()
        served, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
        authority.issue_cert("127.0.0.1").configure_cert(served)
        authority.configure_trust(trusting)
    pieces = [b"one", b"x" * 70_000, b"two"]

    def handle(exchange: HttpRequest) -> None:
        stream = exchange.stream(200, content_type=b"text/plain")
        left = list(pieces)

        def step() -> None:
            if not left:
                stream.close()
                return
            stream.write(left.pop(0))
            asyncio.get_running_loop().call_later(0.01, step)

        step()

    async def play() -> None:
        async with serving(handle, tls=served) as (_, url):
            assert await asyncio.to_thread(fetch, port_of(url), trusting) == ("chunked", b"".join(pieces))

    run(loop, play())


@both_loops
def test_a_hang_up_is_reported_to_the_handler(loop: str) -> None:
    async def play() -> None:
        kept = Kept()
        async with serving(kept) as (listener, url):
            for politely in (True, False):
                async with raw_client(url) as client:
                    client.write(ASK)
                    assert (await client.head()).startswith(b"HTTP/1.1 200")
                    if politely:
                        client.writer.write_eof()
                    else:
                        client.reset()
                    await until(lambda: kept.streams[-1].gone)
                kept.streams[-1].write(b"to nobody")
            assert kept.gone == 2
            await until(lambda: listener.statistics()["connections"] == 0)

    run(loop, play())


@both_loops
def test_a_slow_client_pauses_the_writer_and_gets_everything(loop: str) -> None:
    async def play() -> None:
        kept = Kept()
        async with serving(kept) as (_, url), raw_client(url, receive_buffer=8_192) as client:
            client.write(ASK)
            await client.head()
            (stream,) = kept.streams
            sent = 0
            while stream.writable:
                stream.write(bytes(1 << 20))
                sent += 1
                await asyncio.sleep(0)
            assert kept.writable == 0
            assert stream.size_waiting < 8 << 20
            for _ in range(sent):
                assert await client.reader.readexactly(8) == b"100000\r\n"
                await client.reader.readexactly((1 << 20) + 2)
            await until(lambda: kept.writable == 1)
            stream.close()
            assert await client.reader.readexactly(5) == b"0\r\n\r\n"

    run(loop, play())


def test_a_client_that_reads_nothing_is_cut_off() -> None:
    async def play() -> None:
        kept = Kept()
        patience = Patience(stalled_s=0.3, idle_s=0.1, sweep_s=0.05)
        async with serving(kept, patience=patience) as (_, url), raw_client(url, receive_buffer=8_192) as client:
            client.write(ASK)
            await client.head()
            await asyncio.sleep(0.6)  # nothing to take is no reason
            (stream,) = kept.streams
            assert not stream.gone
            while stream.writable:
                stream.write(bytes(1 << 20))
                await asyncio.sleep(0)
            await until(lambda: stream.gone)

    run("asyncio", play())


@both_loops
def test_a_peer_that_stops_ends_its_streams_at_once(loop: str) -> None:
    async def play() -> None:
        kept = Kept()
        async with serving(kept) as (listener, url), raw_client(url) as client:
            client.write(ASK)
            await client.head()
            kept.streams[0].write(b"all")
            await listener.stop()
            assert await client.reader.read() == b"3\r\nall\r\n0\r\n\r\n"
            assert kept.gone == 1

    run(loop, play())
