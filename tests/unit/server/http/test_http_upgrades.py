"""A connection that changes hands: no byte is lost, and none is read by the wrong protocol."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.server.http.http_memory import Bench, MemoryTransport, answers, error_of, request, statuses

from avow.server.http.connection import OUTPUT_SIZE_BYTES_MAX, PIPELINED_MAX
from avow.server.http.request import HttpRequest

SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n"
ASKING = request(method="GET", headers="connection: Upgrade\r\nupgrade: websocket\r\n")


class Other(asyncio.Protocol):
    """Records the received data, in order."""

    def __init__(self) -> None:
        self.heard = b""
        self.calls: list[str] = []
        self.transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.calls.append("made")

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        self.heard += data

    def pause_writing(self) -> None:
        self.calls.append("paused")

    def resume_writing(self) -> None:
        self.calls.append("resumed")

    def eof_received(self) -> bool:
        self.calls.append("eof")
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("lost")


class Watcher:
    def __init__(self) -> None:
        self.notified = 0

    def gone(self) -> None:
        self.notified += 1

    def expired(self) -> None: ...


def granting(other: Other) -> Bench:
    def handle(exchange: HttpRequest) -> None:
        if b"upgrade" in exchange.headers:
            exchange.upgrade(SWITCHING, lambda: other)
        else:
            exchange.answer(200, bytes(exchange.body) or b"-")

    return Bench(handle)


def test_a_granted_upgrade_gives_the_connection_to_the_new_protocol() -> None:
    other = Other()
    bench = granting(other)
    client = bench.connect()
    client.protocol.data_received(ASKING)
    assert bytes(client.sent) == SWITCHING
    assert client.reading
    client.protocol.data_received(b"\x81\x00")
    assert (other.heard, other.transport, other.calls) == (b"\x81\x00", client, ["made"])
    assert bench.listener.statistics()["upgraded"] == bench.listener.statistics()["connections"] == 1
    assert bench.listener.statistics()["requests_in_flight"] == 0


def test_the_new_protocol_gets_all_calls_of_the_transport() -> None:
    other = Other()
    bench = granting(other)
    client = bench.connect()
    client.protocol.data_received(ASKING)
    client.protocol.pause_writing()
    client.protocol.resume_writing()
    assert client.protocol.eof_received() is True
    client.close()
    assert other.calls == ["made", "paused", "resumed", "eof", "lost"]
    assert bench.listener.statistics()["upgraded"] == bench.listener.statistics()["connections"] == 0


@given(st.lists(st.integers(1, 60), max_size=12), st.booleans())
def test_bytes_after_the_request_go_to_the_new_protocol_wherever_the_stream_is_cut(
    cuts: list[int], later: bool
) -> None:
    behind = b"GET /not-a-request HTTP/1.1\r\n\r\n" + bytes(range(256))
    stream = request(b"first") + request(b"second") + ASKING + behind
    other = Other()
    bench = Bench()
    client = bench.connect()
    at = 0
    for size in [*cuts, len(stream)]:
        client.protocol.data_received(stream[at : at + size])
        at += size
        if not later:
            grant_all(bench, other)
    grant_all(bench, other)
    bench.turn()
    assert other.heard == behind
    assert bytes(client.sent[-len(SWITCHING) :]) == SWITCHING
    assert [body for _, _, body in answers(client.sent[: -len(SWITCHING)])] == [b"first", b"second"]
    assert client.reading


def grant_all(bench: Bench, other: Other) -> None:
    asked = bench.asked[::-1]  # the upgrade first: its turn comes last all the same
    bench.asked.clear()
    for exchange in asked:
        if b"upgrade" in exchange.headers:
            exchange.upgrade(SWITCHING, lambda: other)
        else:
            exchange.answer(200, bytes(exchange.body))


def test_nothing_is_read_between_the_request_and_its_answer() -> None:
    bench = Bench()
    client = bench.connect()
    client.protocol.data_received(ASKING + b"some")
    assert not client.reading
    client.protocol.data_received(b" more")  # what was on its way already
    other = Other()
    bench.asked[0].upgrade(SWITCHING, lambda: other)
    bench.turn()
    assert other.heard == b"some more"
    assert client.reading


def test_a_refused_upgrade_leaves_an_http_connection() -> None:
    bench = Bench()
    client = bench.connect()
    client.protocol.data_received(ASKING + request(b"next") + ASKING + request(b"last"))
    assert len(bench.asked) == 1
    bench.asked.pop().answer(404, b"no")
    assert [exchange.body for exchange in bench.asked] == [b"next", b""]
    for exchange in bench.asked[::-1]:
        exchange.answer(200, b"yes")
    bench.turn()
    bench.asked[-1].answer(200, b"yes")
    bench.turn()
    assert statuses(client.sent) == [404, 200, 200, 200]
    assert client.reading
    assert bench.listener.statistics()["upgraded"] == 0


def test_thousands_of_refused_upgrades_do_not_recurse_and_take_many_turns() -> None:
    bench = Bench(lambda exchange: exchange.answer(200, b"-"))
    client = bench.connect()
    client.protocol.data_received(ASKING * 5_000)
    assert statuses(client.sent) == [200] * PIPELINED_MAX
    for _ in range(2 + 5_000 // PIPELINED_MAX):
        bench.turn()
    assert statuses(client.sent) == [200] * 5_000
    assert client.reading


def test_an_upgrade_waits_for_earlier_requests() -> None:
    other = Other()
    bench = Bench()
    client = bench.connect()
    client.protocol.data_received(request(b"a") * (PIPELINED_MAX + 3) + ASKING + b"behind")
    assert len(bench.asked) == PIPELINED_MAX
    for _ in range(3):
        grant_all(bench, other)
        bench.turn()
    assert other.heard == b"behind"
    assert bytes(client.sent[-len(SWITCHING) :]) == SWITCHING


def test_a_new_protocol_is_paused_when_the_transport_is_full() -> None:
    other = Other()
    bench = Bench()
    client = bench.connect()
    client.stuck = True
    client.protocol.data_received(request(b"a") + ASKING)
    bench.asked[0].answer(200, bytes(OUTPUT_SIZE_BYTES_MAX + 1))
    bench.asked[1].upgrade(SWITCHING, lambda: other)
    bench.turn()
    assert other.calls == ["made", "paused"]
    client.unstick()
    assert other.calls == ["made", "paused", "resumed"]


@pytest.mark.parametrize(
    "asking",
    [
        request(method="GET"),
        request(method="GET", headers="upgrade: websocket\r\n"),
        request(method="GET", headers="connection: upgrade\r\nupgrade: websocket\r\n", version="1.0"),
        request(b"body", headers="connection: upgrade\r\nupgrade: websocket\r\n"),
    ],
)
def test_no_upgrade_is_granted_without_a_request_for_it(asking: bytes) -> None:
    bench = Bench(lambda exchange: exchange.upgrade(SWITCHING, Other))
    client = bench.connect()
    client.protocol.data_received(asking)
    ((status, _, body),) = answers(client.sent)
    assert (status, error_of(body)["code"]) == (400, "INVALID_REQUEST")
    assert bench.listener.statistics()["upgraded"] == 0


@pytest.mark.parametrize("chunked", [False, True])
def test_a_request_with_a_body_that_offers_http_2_is_answered_after_its_body(chunked: bool) -> None:
    asks = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
    if chunked:
        whole = request(headers=asks + "transfer-encoding: chunked\r\n") + b"4\r\nbody\r\n0\r\n\r\n"
    else:
        whole = request(b"body", headers=asks + "expect: 100-continue\r\n")
    bench = Bench(lambda exchange: exchange.answer(200, bytes(exchange.body)))
    client = bench.connect()
    for at in range(0, len(whole), 7):
        client.protocol.data_received(whole[at : at + 7])
    client.protocol.data_received(request(b"next"))
    assert [body for _, _, body in answers(client.sent) if body] == [b"body", b"next"]
    assert bytes(client.sent).count(b"100 Continue") == (0 if chunked else 1)


def test_a_hang_up_before_the_upgrade_is_reported_to_the_watcher() -> None:
    made: list[Other] = []

    def make() -> Other:
        made.append(Other())
        return made[-1]

    for granted in (False, True):
        bench = Bench()
        client = bench.connect()
        client.protocol.data_received(request(b"first") + ASKING)
        watcher = bench.asked[1].watcher = Watcher()
        if granted:
            bench.asked[1].upgrade(SWITCHING, make)
        client.close()
        bench.asked[1].upgrade(SWITCHING, make)
        bench.turn()
        assert (watcher.notified, made) == (1, [])


def test_an_upgraded_connection_has_no_idle_timeout_and_ends_when_the_peer_stops() -> None:
    other = Other()
    bench = granting(other)
    client = bench.connect()
    client.protocol.data_received(ASKING)
    bench.wait(100_000)
    assert not client.closed
    stop(bench)
    assert client.closed
    assert other.calls[-1] == "lost"


def test_a_peer_that_stops_grants_no_upgrade() -> None:
    bench = Bench()
    client = bench.connect()
    client.protocol.data_received(ASKING)
    bench.listener.stopping = True
    bench.asked[0].upgrade(SWITCHING, Other)
    ((status, headers, _),) = answers(client.sent)
    assert (status, headers["connection"]) == (503, "close")
    assert client.closed


def test_an_upgraded_connection_counts_towards_the_connection_limit() -> None:
    other = Other()
    bench = granting(other)
    clients: list[MemoryTransport] = [bench.connect() for _ in range(10)]
    clients[0].protocol.data_received(ASKING)
    assert statuses(bench.connect().sent) == [503]


def stop(bench: Bench) -> None:
    """The first action of `Listener.stop`."""
    bench.listener.stopping = True
    for connection in list(bench.listener._connections):
        connection.finish()
