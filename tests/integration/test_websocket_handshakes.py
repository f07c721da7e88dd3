"""WebSocket handshakes that succeed, and the errors of those that fail."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

import pytest
import trustme
from tests.integration.websocket_ends import (
    HASTY,
    KEY,
    LISTENERS,
    REQUEST,
    Keeper,
    behind_http,
    both_listeners,
    both_loops,
    ended,
    port_of,
    raw_client,
    raw_server,
    run,
    standing_alone,
    until,
)
from websockets.http11 import Request

from avow.channel.transports.websocket_handshake import SocketUser, accept, accept_raw, dial
from avow.errors import AvowError, Busy, InvalidRequest, NotCoordinator, Offline, UnknownQueue
from avow.limits import MIB
from avow.server.byte_budget import ByteBudget
from avow.server.http.listener import TURNED_AWAY_MAX, Listener
from avow.testing.cluster_ports import Ports


async def refused(url: str, *, timeout_s: float = 60.0, tls: ssl.SSLContext | None = None) -> AvowError:
    """The error that dialling raises; its user gets no event."""
    user = Keeper()
    with pytest.raises(AvowError) as caught:
        await dial(url, user, tls=tls, timeout_s=timeout_s)
    assert (user.socket, user.reasons) == (None, [])
    return caught.value


# ---------------------------------------------------------------------- dialling


@both_loops
def test_a_port_where_nobody_listens_is_offline(loop: str) -> None:
    ports = Ports()
    for url in (f"ws://127.0.0.1:{ports.take()}/", f"https://127.0.0.1:{ports.take()}/"):
        assert type(run(loop, refused(url))) is Offline
    ports.release()


@both_loops
def test_a_server_that_does_not_answer_in_time_is_offline(loop: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def play() -> None:
        async with raw_server(serve) as url:
            error = await refused(url, timeout_s=0.1)
            assert type(error) is Offline
            assert "no answer within 0.1 s" in str(error)

    run(loop, play())


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"", Offline),
        (b"HTTP/1.1 101 Swi", Offline),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 8\r\n\r\n<html>..", Offline),
        (b"HTTP/1.1 429 Slow Down\r\nContent-Length: 0\r\n\r\n", Offline),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope", InvalidRequest),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", InvalidRequest),
        (b"SSH-2.0-OpenSSH_9.6\r\n", InvalidRequest),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", InvalidRequest),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", InvalidRequest),
    ],
)
def test_answers_that_are_not_from_a_peer_claim_no_more_than_is_known(answer: bytes, kind: type[AvowError]) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.write_eof()
        await reader.read()

    async def play() -> None:
        async with raw_server(serve) as url:
            assert type(await refused(url)) is kind

    run("uvloop", play())


def test_a_server_that_accepts_no_subprotocol_is_not_a_peer() -> None:
    async def play() -> None:
        make = accept_raw(lambda request: Keeper(), subprotocols=())
        server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
        error = await refused(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert type(error) is InvalidRequest
        assert "does not support the subprotocol avow.channel.v1" in str(error)
        server.close()

    run("asyncio", play())


@both_listeners
def test_an_unsupported_subprotocol_is_refused_by_the_server(listener: str) -> None:
    async def play() -> None:
        server = Keeper()
        async with LISTENERS[listener](server) as url:
            with pytest.raises(InvalidRequest, match=r"avow\.channel\.v1"):
                await dial(url, Keeper(), subprotocols=("avow.channel.v9",), timeout_s=60)
        assert server.socket is None

    run("uvloop", play())


def test_several_subprotocols_may_be_offered_and_the_first_is_chosen() -> None:
    async def play() -> None:
        server, client = Keeper(), Keeper()
        async with standing_alone(server) as url:
            offered = ("avow.channel.v1", "avow.bearer.c2VjcmV0")
            dialled = await dial(url, client, subprotocols=offered, timeout_s=60)
            dialled.abort()
            await until(lambda: client.reasons)

    run("asyncio", play())


@both_loops
@pytest.mark.parametrize(
    "error",
    [
        UnknownQueue("there is no queue 'x'"),
        NotCoordinator("ask peer 2", coordinator=2, api="http://127.0.0.1:1"),
        Busy("too many channels"),
    ],
)
def test_an_error_of_the_server_is_raised_unchanged(loop: str, error: AvowError) -> None:
    def user_for(request: Request) -> SocketUser:
        assert request.path == "/v1/channel?role=x"
        assert request.headers["Authorization"] == "Bearer me"
        raise error

    async def play() -> None:
        server = await asyncio.get_running_loop().create_server(accept_raw(user_for), "127.0.0.1", 0)
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/channel?role=x"
        with pytest.raises(AvowError) as caught:
            await dial(url, Keeper(), headers=[("Authorization", "Bearer me")], timeout_s=60)
        assert type(caught.value) is type(error)
        assert (str(caught.value), caught.value.details()) == (str(error), error.details())
        server.close()

    run(loop, play())


@both_loops
def test_an_untrusted_certificate_is_offline(loop: str) -> None:
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(served)

    async def play() -> None:
        async with behind_http(Keeper(), tls=served) as url:
            error = await refused(url, tls=ssl.create_default_context())
            assert type(error) is Offline
            assert "certificate" in str(error).lower()

    run(loop, play())


@pytest.mark.parametrize("url", ["", "somewhere", "ftp://a/", "ws://", "ws://a:99999/", "ws://a/#b", "ws://user@a/"])
def test_an_invalid_url_is_refused_without_connecting(url: str) -> None:
    assert type(run("asyncio", refused(url))) is InvalidRequest


@both_loops
def test_a_cancelled_dial_leaves_nothing(loop: str) -> None:
    accepted, closed = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        with contextlib.suppress(ConnectionError):
            while await reader.read(1000):
                pass
        closed.set()

    async def play() -> None:
        user = Keeper()
        async with raw_server(serve) as url:
            dialling = asyncio.create_task(dial(url, user, timeout_s=60))
            await accepted.wait()
            dialling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await dialling
            await closed.wait()
        assert (user.socket, user.reasons) == (None, [])

    run(loop, play())


def test_a_dial_cancelled_after_it_opened_drops_the_socket() -> None:
    dialling: asyncio.Task[object]

    class Canceller(Keeper):
        def opened(self, socket: object) -> None:
            super().opened(socket)  # type: ignore[arg-type]
            dialling.cancel()

    async def play() -> None:
        nonlocal dialling
        client = Canceller()
        async with standing_alone(Keeper()) as url:
            dialling = asyncio.create_task(dial(url, client, timeout_s=60))
            with pytest.raises(asyncio.CancelledError):
                await dialling
            await until(lambda: client.reasons)
            assert client.reasons == ["aborted by this end"]

    run("asyncio", play())


# ---------------------------------------------------------------------- accepting


def headers(**changed: str | None) -> dict[bytes, bytes]:
    usual: dict[str, str | None] = {
        "host": "here",
        "connection": "keep-alive, Upgrade",
        "upgrade": "websocket",
        "sec-websocket-key": KEY,
        "sec-websocket-version": "13",
        "sec-websocket-protocol": "avow.bearer.c2VjcmV0, avow.channel.v1",
        "sec-websocket-extensions": "permessage-deflate; client_max_window_bits",
    }
    named = usual | {name.replace("_", "-"): value for name, value in changed.items()}
    return {name.encode(): value.encode() for name, value in named.items() if value is not None}


def test_a_proper_handshake_is_accepted_without_extensions() -> None:
    response, make = accept(b"GET", b"/v1/channel?role=x", headers(), Keeper())
    lines = response.lower().split(b"\r\n")
    assert lines[0] == b"http/1.1 101 switching protocols"
    assert b"sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=" in lines
    assert b"sec-websocket-protocol: avow.channel.v1" in lines
    assert b"sec-websocket-extensions" not in response.lower()
    assert response.endswith(b"\r\n\r\n")
    assert make() is not make()


@pytest.mark.parametrize(
    "changed",
    [
        {"connection": None},
        {"connection": "close"},
        {"upgrade": None},
        {"upgrade": "h2c"},
        {"sec_websocket_key": None},
        {"sec_websocket_key": "short"},
        {"sec_websocket_key": "\x80\x80"},
        {"sec_websocket_version": None},
        {"sec_websocket_version": "8"},
        {"sec_websocket_protocol": None},
        {"sec_websocket_protocol": "chat"},
        {"sec_websocket_protocol": ",,"},
        {"connection": "\x00\x01"},
    ],
)
def test_an_improper_handshake_is_refused(changed: dict[str, str | None]) -> None:
    with pytest.raises(InvalidRequest, match="not a valid WebSocket handshake"):
        accept(b"GET", b"/", headers(**changed), Keeper())


def test_only_get_is_a_handshake() -> None:
    with pytest.raises(InvalidRequest, match="not a valid WebSocket handshake"):
        accept(b"POST", b"/", headers(), Keeper())


@both_listeners
def test_an_improper_handshake_is_answered_with_an_api_error(listener: str) -> None:
    async def play() -> None:
        server = Keeper()
        async with LISTENERS[listener](server) as url, raw_client(url) as client:
            client.write(REQUEST.replace(b"Version: 13", b"Version: 8"))
            head = await client.head()
            assert head.startswith(b"HTTP/1.1 400")
            assert b"INVALID_REQUEST" in await client.reader.readuntil(b"}}")
        assert server.socket is None

    run("uvloop", play())


@both_loops
@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HTTP/1.1\r\nho", b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET / HTTP/1.1\r\nx: " + b"y" * 40_000],
)
def test_a_standalone_listener_waits_only_so_long_for_a_handshake(loop: str, sent: bytes) -> None:
    async def play() -> None:
        server = Keeper()
        async with standing_alone(server, patience=HASTY) as url, raw_client(url) as client:
            with contextlib.suppress(ConnectionError):
                client.write(sent)
                assert await client.reader.read() == b""
        assert server.socket is None

    run(loop, play())


def test_a_refused_client_that_stays_connected_is_cut_off() -> None:
    gone: list[bool] = []

    async def play() -> None:
        def refuse(request: Request) -> SocketUser:
            raise Busy("not now")

        server = await asyncio.get_running_loop().create_server(accept_raw(refuse, patience=HASTY), "127.0.0.1", 0)
        async with raw_client(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/") as client:
            client.write(REQUEST)
            assert (await client.head()).startswith(b"HTTP/1.1 503")
            await client.reader.readuntil(b"}}")
            with contextlib.suppress(ConnectionError):
                for _ in range(1000):
                    client.write(b"more")
                    await client.writer.drain()
                    await asyncio.sleep(0.01)
            gone.append(client.writer.transport.is_closing())
        server.close()

    run("uvloop", play())
    assert gone == [True]


# ---------------------------------------------------------------------- at the HTTP edge of a peer


@both_loops
@pytest.mark.parametrize("secure", [False, True])
def test_requests_before_the_upgrade_are_answered_before_it(loop: str, secure: bool) -> None:
    served, trusting = certified() if secure else (None, None)

    async def play() -> None:
        server = Keeper(echo=True)
        async with behind_http(server, tls=served) as url:
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url), ssl=trusting)
            writer.write(b"GET /other HTTP/1.1\r\nHost: a\r\n\r\n" * 3 + REQUEST + b"\x82\x85\x00\x00\x00\x00hello")
            for _ in range(3):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
                assert await reader.readexactly(2) == b"{}"
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
            assert await reader.readexactly(7) == b"\x82\x05hello"
            writer.transport.abort()
            await until(lambda: server.reasons)
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    run(loop, play())


@both_loops
def test_a_peer_that_stops_closes_its_websockets(loop: str) -> None:
    async def play() -> None:
        server, client = Keeper(), Keeper()
        async with behind_http(server) as url:
            await dial(url, client, timeout_s=60)
        await until(lambda: server.reasons and client.reasons)

    run(loop, play())


@both_loops
@pytest.mark.parametrize("secure", [False, True])
def test_every_idle_connection_beyond_the_bound_is_told_busy(loop: str, secure: bool) -> None:
    served, trusting = certified() if secure else (None, None)

    async def play() -> None:
        listener = Listener(
            lambda request: None,
            connections_max=2,
            in_flight_max=9,
            request_bytes_max=99,
            budget=ByteBudget(MIB),
            tls=served,
        )
        address = await listener.start("127.0.0.1", 0)
        kept = [await asyncio.open_connection(*address, ssl=trusting) for _ in range(2)]
        await until(lambda: listener.statistics()["connections"] == 2)
        extra = [await asyncio.open_connection(*address, ssl=trusting) for _ in range(TURNED_AWAY_MAX + 20)]
        for reader, writer in extra:
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 503")
            assert b'"BUSY"' in await reader.read(1_000)
            writer.close()
        for _, writer in kept + extra:
            await ended(writer)
        await listener.stop()

    run(loop, play())


def certified() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(client)
    return server, client
