"""WebChannel sessions with raw HTTP requests: invalid clients, forbidden pages, opening and closing."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import pytest

from avow.channel.transports import webchannel
from avow.channel.transports.socket import Socket
from avow.channel.transports.webchannel import Timing
from avow.errors import AvowError, Forbidden, UnknownQueue
from avow.limits import KIB, MIB
from avow.server.byte_budget import ByteBudget
from avow.server.channels.webchannel_http import WebChannels
from avow.server.http.cors import Origins
from avow.server.http.listener import Listener
from avow.server.http.request import HttpRequest

PATH = "/v1/webchannel"
TIMING = Timing(keep_alive_s=0.3, expiry_s=60, close_s=3, back_age_s_max=60)
SHORT = Timing(keep_alive_s=0.3, expiry_s=0.6, close_s=0.4, back_age_s_max=60)  # for a session that is to be lost


class User:
    """Records all events. `on_packet` may do what an application would."""

    def __init__(self) -> None:
        self.socket: Socket
        self.events: list[Any] = []
        self.on_packet: Callable[[bytes], None] = lambda data: None
        self.on_writable: Callable[[], None] = lambda: None

    def opened(self, socket: Socket) -> None:
        self.socket = socket
        self.events.append("opened")

    def packet(self, socket: Socket, data: bytes | memoryview) -> None:
        self.events.append(bytes(data))
        self.on_packet(bytes(data))

    def writable(self, socket: Socket) -> None:
        self.events.append("writable")
        self.on_writable()

    def lost(self, socket: Socket, reason: str) -> None:
        self.events.append(("lost", reason))


class Answer:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def chunks(self) -> list[Any]:
        found, text = [], self.body.decode()
        while text:
            digits, _, text = text.partition("\n")
            found.append(json.loads(text[: int(digits)]))
            text = text[int(digits) :]
        return found

    @property
    def code(self) -> str:
        code: str = json.loads(self.body)["error"]["code"]
        return code


class Peer:
    def __init__(self, address: tuple[str, int], channels: WebChannels, users: list[User]) -> None:
        self.address, self.channels, self.users = address, channels, users
        self.asked: list[tuple[bytes | None, Mapping[str, str]]] = []
        self.refusal: AvowError | None = None

    async def ask(self, method: str, query: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        """The whole answer; of a back channel, all of it until it ends."""
        async with self.hanging(method, query, body, headers) as reader:
            return _parsed(await asyncio.wait_for(reader.read(), 60))

    @asynccontextmanager
    async def hanging(
        self, method: str, query: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[asyncio.StreamReader]:
        reader, writer = await asyncio.open_connection(*self.address)
        lines = {"host": "{}:{}".format(*self.address), "connection": "close", "content-length": len(body)}
        head = "".join(f"{name}: {value}\r\n" for name, value in {**lines, **(headers or {})}.items())
        writer.write(f"{method} {PATH}?VER=8&{query} HTTP/1.1\r\n{head}\r\n".encode() + body)
        try:
            yield reader
        finally:
            writer.transport.abort()

    async def open(self, body: bytes = b"count=0", query: str = "RID=1&CVER=22", **headers: str) -> str:
        answer = await self.ask("POST", query, body, headers)
        assert answer.status == 200, answer.body
        sid: str = answer.chunks[0][0][1][1]
        return sid

    async def lost(self, user: User) -> str:
        await wait_until(lambda: bool(user.events) and user.events[-1][0] == "lost")
        assert [events for events in user.events if events[0] == "lost"] == user.events[-1:], "it is lost once"
        reason: str = user.events[-1][1]
        return reason


def _parsed(data: bytes) -> Answer:
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        pieces = b""
        while body:
            digits, _, body = body.partition(b"\r\n")
            pieces += body[: int(digits, 16)]
            body = body[int(digits, 16) + 2 :]
        body = pieces
    return Answer(int(first.split(" ")[1]), headers, body)


def maps(first: int, *packets: bytes) -> bytes:
    fields = [f"req{at}_f={quote(b64encode(packet))}" for at, packet in enumerate(packets)]
    return "&".join([f"count={len(packets)}", f"ofs={first}", *fields]).encode()


def packets(answer: Answer) -> list[bytes]:
    arrays = [payload for group in answer.chunks for _, payload in group]
    return [b64decode(payload[0]["f"]) for payload in arrays if payload != ["noop"]]


async def wait_until(true: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    for _ in range(int(timeout_s / 0.01)):
        if true():
            return
        await asyncio.sleep(0.01)
    assert true(), "it did not come true in time"


def with_peer(test: Callable[[Peer], Coroutine[Any, Any, None]], *, timing: Timing = TIMING, **settings: Any) -> None:
    async def go() -> None:
        users: list[User] = []

        def open_user(exchange: HttpRequest, parameters: Mapping[str, str]) -> User:
            peer.asked.append((exchange.headers.get(b"authorization"), parameters))
            if peer.refusal is not None:
                raise peer.refusal
            users.append(User())
            return users[-1]

        channels = WebChannels(open_user, timing=timing, tick_s=0.02, **settings)
        listener = Listener(
            channels.handle,
            connections_max=50,
            in_flight_max=50,
            request_bytes_max=9 * MIB,
            budget=ByteBudget(64 * MIB),
        )
        peer = Peer(await listener.start("127.0.0.1", 0), channels, users)
        try:
            await test(peer)
        finally:
            channels.stop()
            await listener.stop()

    asyncio.run(go())


# ---------------------------------------------------------------------- requests


def test_an_unknown_session_is_answered_with_the_text_that_clients_expect() -> None:
    async def test(peer: Peer) -> None:
        for method, query in (("POST", "SID=abc&RID=2&AID=0"), ("GET", "SID=abc&RID=rpc&AID=0&CI=0&TYPE=xmlhttp")):
            answer = await peer.ask(method, query, b"count=0")
            assert answer.status == 400
            assert answer.body.index(b"Unknown SID") > 0

    with_peer(test)


@pytest.mark.parametrize(
    ("method", "query", "body"),
    [
        ("POST", "VER=8", b"count=0"),
        ("POST", "RID=1&CVER=22", b"count=1&ofs=0&req0_f=%"),
        ("GET", "RID=1", b""),
        ("PUT", "RID=1", b"count=0"),
        ("POST", "RID=%ff", b"count=0"),
        ("GET", "SID=null&RID=1&$req=nonsense", b""),
    ],
)
def test_an_invalid_handshake_opens_nothing(method: str, query: str, body: bytes) -> None:
    async def test(peer: Peer) -> None:
        answer = await peer.ask(method, query, body)
        assert answer.status == 400
        assert answer.code in ("INVALID_REQUEST", "MALFORMED")
        assert peer.users == []

    with_peer(test)


@pytest.mark.parametrize(
    "query", ["", "AID=-1", "AID=x", "AID=1", "AID=" + "9" * 20, "AID=" + "0" * 5000, "AID=0&AID=0"]
)
def test_an_invalid_request_leaves_the_session_unchanged(query: str) -> None:
    async def test(peer: Peer) -> None:
        sid = await peer.open()
        for body in (maps(0, b"a"), b"count=2&ofs=0&req0_f=YQ=="):
            answer = await peer.ask("POST", f"SID={sid}&RID=2&{query}", body)
            assert answer.status == 400
        assert (await peer.ask("POST", f"SID={sid}&RID=2&AID=0", maps(0, b"a"))).status == 200
        assert peer.users[0].events == ["opened", b"a"]

    with_peer(test)


def test_a_handshake_carries_its_parameters_and_first_packets() -> None:
    async def test(peer: Peer) -> None:
        await peer.open(maps(0, b"a", b"b"), "RID=1&CVER=22&role=producer&queue=two+words&zx=1&t=1")
        assert peer.asked == [(None, {"role": "producer", "queue": "two words"})]
        assert peer.users[0].events == ["opened", b"a", b"b"]

    with_peer(test)


def test_a_token_is_sent_as_a_header_or_in_the_handshake() -> None:
    async def test(peer: Peer) -> None:
        encoded = quote("X-Other:1\r\nAuthorization:Bearer abc\r\n")
        await peer.open(authorization="Bearer abc")
        await peer.open(f"headers={encoded}&count=0".encode())
        await peer.open(query=f"RID=1&$httpHeaders={encoded}")
        await peer.open(f"headers={encoded}&count=0".encode(), authorization="Bearer real")
        assert [token for token, _ in peer.asked] == [b"Bearer abc"] * 3 + [b"Bearer real"]

    with_peer(test)


@pytest.mark.parametrize("error", [UnknownQueue("there is no queue"), Forbidden("no")])
def test_a_refused_session_gets_the_reason(error: AvowError) -> None:
    async def test(peer: Peer) -> None:
        peer.refusal = error
        answer = await peer.ask("POST", "RID=1", b"count=0")
        assert (answer.status, answer.code) == (error.http_status, error.code)
        assert peer.channels.statistics()["webchannel_sessions"] == 0

    with_peer(test)


def test_beyond_the_session_limit_a_client_gets_busy_until_one_ends() -> None:
    async def test(peer: Peer) -> None:
        sid = await peer.open()
        await peer.open()
        assert (await peer.ask("POST", "RID=1", b"count=0")).code == "BUSY"
        assert (await peer.ask("POST", f"SID={sid}&RID=2&TYPE=terminate")).status == 200
        assert await peer.lost(peer.users[0]) == "the client closed it"
        await peer.open()

    with_peer(test, sessions_max=2, timing=Timing())


# ---------------------------------------------------------------------- pages of other origins


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://127.0.0.1:1"},
    ],
)
def test_a_page_of_another_origin_cannot_open_a_session_nor_read_why(headers: dict[str, str]) -> None:
    async def test(peer: Peer) -> None:
        query = "SID=null&RID=1&$req=" + quote(maps(0, b"harm"))
        for answer in (
            await peer.ask("POST", "RID=1", maps(0, b"harm"), headers),
            await peer.ask("GET", query, b"", headers),
            await peer.ask("OPTIONS", "RID=1", b"", headers),
        ):
            assert (answer.status, answer.code) == (403, "FORBIDDEN")
            assert not any(name.startswith("access-control") for name in answer.headers)
        assert peer.users == []

    with_peer(test)


def test_a_page_of_the_same_origin_needs_no_permission() -> None:
    async def test(peer: Peer) -> None:
        origin = "http://{}:{}".format(*peer.address)
        await peer.open(b"count=0", "RID=1", **{"origin": origin, "sec-fetch-site": "same-origin"})

    with_peer(test)


def test_a_page_of_a_listed_origin_may_use_sessions_and_read_errors() -> None:
    async def test(peer: Peer) -> None:
        headers = {"origin": "https://shop.example", "sec-fetch-site": "cross-site"}
        await peer.open(b"count=0", "RID=1", **headers)
        wrong = await peer.ask("POST", "SID=abc&RID=2&AID=0", b"count=0", headers)
        before = await peer.ask("OPTIONS", "RID=1", b"", {**headers, "access-control-request-headers": "authorization"})
        assert (wrong.status, before.status) == (400, 204)
        for answer in (wrong, before):
            assert answer.headers["access-control-allow-origin"] == "https://shop.example"
        assert before.headers["access-control-allow-headers"] == "authorization"

    with_peer(test, origins=Origins(["https://shop.example"]))


# ---------------------------------------------------------------------- a socket's life


def test_packets_sent_in_one_turn_leave_in_one_chunk() -> None:
    async def test(peer: Peer) -> None:
        sid = await peer.open()
        socket = peer.users[0].socket
        async with peer.hanging("GET", f"SID={sid}&RID=rpc&AID=0&CI=0&TYPE=xmlhttp") as reader:
            await asyncio.wait_for(reader.readuntil(b'[[1,["noop"]]]\r\n'), 60)
            for name in (b"a", b"b", b"c"):
                socket.send([name])
            data = await asyncio.wait_for(reader.readuntil(b"]]\r\n"), 60)
            assert data.count(b'"f"') == 3

    with_peer(test, timing=Timing())


def test_a_back_channel_disables_caching_sniffing_and_buffering() -> None:
    async def test(peer: Peer) -> None:
        sid = await peer.open()
        answer = await peer.ask("GET", f"SID={sid}&RID=rpc&AID=0&CI=1&TYPE=xmlhttp")
        assert answer.chunks == [[[1, ["noop"]]]]
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"

    with_peer(test)


def test_a_new_back_channel_ends_the_one_before() -> None:
    async def test(peer: Peer) -> None:
        sid = await peer.open()
        query = f"SID={sid}&RID=rpc&AID=0&CI=0&TYPE=xmlhttp"
        async with peer.hanging("GET", query) as first:
            await asyncio.wait_for(first.readuntil(b"noop"), 60)
            async with peer.hanging("GET", query) as second:
                await asyncio.wait_for(first.read(), 60)
                peer.users[0].socket.send([b"x"])
                await asyncio.wait_for(second.readuntil(b'"f"'), 60)

    with_peer(test, timing=Timing())


def test_arrays_of_a_lost_back_channel_are_resent_on_the_next() -> None:
    async def test(peer: Peer) -> None:
        sid = await peer.open()
        peer.users[0].socket.send([b"x"])
        query = f"SID={sid}&RID=rpc&AID=0&TYPE=xmlhttp"
        async with peer.hanging("GET", f"{query}&CI=0") as reader:
            await asyncio.wait_for(reader.readuntil(b'"f"'), 60)
        assert packets(await peer.ask("GET", f"{query}&CI=1")) == [b"x"]

    with_peer(test)


def test_a_sender_that_respects_full_is_bounded_and_delivers_everything() -> None:
    """4 MiB are buffered for an absent client; when it connects, 32 MiB pass without a larger buffer."""

    async def test(peer: Peer) -> None:
        sid = await peer.open()
        user, sent, most, size = peer.users[0], 0, 0, 64 * KIB
        session: Any = user.socket._session  # type: ignore[attr-defined]

        def go_on() -> None:
            nonlocal sent, most
            while sent < 512 and not user.socket.full:
                user.socket.send([sent.to_bytes(4, "big"), bytes(size - 4)])
                sent += 1
            most = max(most, session.statistics()["unacked_bytes"])

        user.on_writable = go_on
        go_on()
        assert webchannel.ARRAYS_FULL_SIZE_BYTES // (2 * size) < sent < 100
        seen, got = 0, list[int]()
        for _ in range(200):
            answer = await peer.ask("GET", f"SID={sid}&RID=rpc&AID={seen}&CI=0&TYPE=xmlhttp")
            got += [int.from_bytes(packet[:4], "big") for packet in packets(answer)]
            seen = answer.chunks[-1][-1][0]
            if len(got) == 512:
                break
        assert got == list(range(512))
        assert most < webchannel.ARRAYS_FULL_SIZE_BYTES + 2 * size

    with_peer(test, timing=Timing(keep_alive_s=0.1, back_age_s_max=0.05))


def test_writes_to_a_client_that_reads_nothing_are_bounded() -> None:
    async def test(peer: Peer) -> None:
        sid = await peer.open()
        socket: Any = peer.users[0].socket
        async with peer.hanging("GET", f"SID={sid}&RID=rpc&AID=0&CI=0&TYPE=xmlhttp"):
            await wait_until(lambda: socket._session.hanging)
            sent = 0
            while not socket.full:
                socket.send([bytes(64 * KIB)])
                sent += 1
                await asyncio.sleep(0)
            assert sent < 100
            assert socket._session.statistics()["unacked_bytes"] < 5 * MIB

    with_peer(test, timing=Timing())


def test_an_abandoned_session_is_lost() -> None:
    async def test(peer: Peer) -> None:
        sid = await peer.open()
        assert "no request from the client" in await peer.lost(peer.users[0])
        assert (await peer.ask("POST", f"SID={sid}&RID=2&AID=0", b"count=0")).status == 400
        assert peer.channels.statistics()["webchannel_sessions"] == 0

    with_peer(test, timing=SHORT)


def test_close_reaches_the_client_after_all_data() -> None:
    async def test(peer: Peer) -> None:
        sid = await peer.open()
        user = peer.users[0]
        user.socket.send([b"last words"])
        user.socket.close(code=1001, reason="going")
        assert user.socket.full
        assert (await peer.ask("POST", f"SID={sid}&RID=2&AID=0", maps(0, b"too late"))).status == 200
        answer = await peer.ask("GET", f"SID={sid}&RID=rpc&AID=0&CI=1&TYPE=xmlhttp")
        assert [payload for _, payload in answer.chunks[0]][1:] == [["close"]]
        assert await peer.lost(user) == "this end closed it"
        assert user.events == ["opened", ("lost", "this end closed it")]

    with_peer(test)


def test_abort_stops_the_client_and_is_reported_once() -> None:
    async def test(peer: Peer) -> None:
        sid = await peer.open()
        user = peer.users[0]
        async with peer.hanging("GET", f"SID={sid}&RID=rpc&AID=0&CI=0&TYPE=xmlhttp") as reader:
            await asyncio.wait_for(reader.readuntil(b"noop"), 60)
            user.socket.abort()
            user.socket.abort()
            assert user.events == ["opened"]
            assert b'["stop"]' in await asyncio.wait_for(reader.read(), 60)
        await peer.lost(user)
        assert (await peer.ask("POST", f"SID={sid}&RID=2&AID=0", b"count=0")).status == 400

    with_peer(test)


def test_a_handler_that_fails_on_a_packet_loses_the_session() -> None:
    async def test(peer: Peer) -> None:
        sid = await peer.open()
        user = peer.users[0]

        def fail(data: bytes) -> None:
            raise UnknownQueue("it was deleted meanwhile")

        user.on_packet = fail
        assert (await peer.ask("POST", f"SID={sid}&RID=2&AID=0", maps(0, b"a", b"b"))).code == "UNKNOWN_QUEUE"
        await peer.lost(user)
        assert user.events[:2] == ["opened", b"a"]
        assert b"b" not in user.events

    with_peer(test)


def test_a_user_that_has_paused_gets_the_packets_when_it_resumes() -> None:
    async def test(peer: Peer) -> None:
        sid = await peer.open()
        user = peer.users[0]
        user.on_packet = lambda data: user.socket.pause_reading()
        assert (await peer.ask("POST", f"SID={sid}&RID=2&AID=0", maps(0, b"a", b"b", b"c"))).status == 200
        assert user.events == ["opened", b"a"]
        user.socket.resume_reading()
        assert user.events == ["opened", b"a", b"b"]
        await peer.ask("GET", f"SID={sid}&RID=3&AID=0&TYPE=terminate")
        await peer.lost(user)
        assert user.events[:4] == ["opened", b"a", b"b", b"c"]

    with_peer(test)


def test_the_id_of_a_session_cannot_be_guessed() -> None:
    async def test(peer: Peer) -> None:
        ids = {await peer.open() for _ in range(20)}
        assert len(ids) == 20
        assert all(re.fullmatch("[0-9a-f]{32}", one) for one in ids)

    with_peer(test)
