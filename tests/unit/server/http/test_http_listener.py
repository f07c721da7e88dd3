"""All connections together: how many, how many requests, how long."""

from __future__ import annotations

import weakref

import pytest
from tests.unit.server.http.http_memory import Bench, answers, error_of, request, statuses

from avow.errors import Busy
from avow.server.http.listener import TURNED_AWAY_MAX
from avow.server.http.request import HttpRequest


def test_one_connection_too_many_is_answered_busy() -> None:
    bench = Bench(connections_max=2)
    kept = [bench.connect(), bench.connect()]
    extra = bench.connect()
    ((status, headers, body),) = answers(extra.sent)
    assert (status, headers["retry-after"], error_of(body)["code"]) == (503, "1", "BUSY")
    assert extra.ended
    assert not any(client.sent for client in kept)
    bench.wait(3)
    assert extra.aborted
    kept[0].close()
    assert not bench.connect().sent


def test_far_too_many_connections_are_told_so_and_closed_at_once() -> None:
    """Regression: idle clients were reset, and did not learn that another peer would take them."""
    bench = Bench(connections_max=1)
    clients = [bench.connect() for _ in range(TURNED_AWAY_MAX + 5)]
    for client in clients[1:]:
        ((status, _, body),) = answers(client.sent)
        assert (status, error_of(body)["code"]) == (503, "BUSY")
    assert not clients[1].closed
    assert clients[-1].closed
    assert not clients[-1].aborted
    assert bench.listener.statistics()["connections"] == TURNED_AWAY_MAX + 1


def test_too_many_requests_in_flight_are_busy() -> None:
    bench = Bench(in_flight_max=2)
    client = bench.connect()
    client.protocol.data_received(request() * 2)
    bench.listener.check_room()
    client.protocol.data_received(request())
    with pytest.raises(Busy):
        bench.listener.check_room()


def test_a_head_must_arrive_in_time() -> None:
    bench = Bench()
    client = bench.connect()
    client.protocol.data_received(b"GET / HTTP/1.1\r\n")
    for _ in range(9):
        bench.wait(1)
        client.protocol.data_received(b"x: y\r\n")  # progress does not help: the whole head has 10 s
    assert not client.sent
    bench.wait(1.5)
    assert statuses(client.sent) == [408]
    assert client.ended


def test_a_body_must_make_progress() -> None:
    bench = Bench()
    client = bench.connect()
    client.protocol.data_received(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n")
    for _ in range(5):
        bench.wait(29)
        client.protocol.data_received(b"x")
    assert not client.sent
    bench.wait(31)
    assert statuses(client.sent) == [408]


def test_an_idle_connection_is_closed_silently() -> None:
    bench = Bench(lambda exchange: exchange.answer(200, b"ok"))
    silent, used = bench.connect(), bench.connect()
    bench.wait(119)
    used.protocol.data_received(request())
    bench.wait(2)
    assert silent.closed
    assert not silent.sent
    assert not used.closed
    bench.wait(120)
    assert used.closed


def test_empty_lines_do_not_keep_a_connection_open() -> None:
    bench = Bench()
    client = bench.connect()
    for _ in range(13):
        client.protocol.data_received(b"\r\n")
        bench.wait(10)
    assert client.closed


def test_a_request_that_waits_for_its_answer_is_not_idle() -> None:
    bench = Bench()
    client = bench.connect()
    client.protocol.data_received(request())
    bench.wait(500)
    assert not client.closed


def test_a_missed_deadline_is_reported_to_the_watcher() -> None:
    class Watcher:
        def __init__(self, exchange: HttpRequest) -> None:
            self.exchange = exchange

        def gone(self) -> None: ...

        def expired(self) -> None:
            self.exchange.answer(504, b"late")

    bench = Bench()
    client = bench.connect()
    client.protocol.data_received(request())
    bench.asked[0].watcher = Watcher(bench.asked[0])
    bench.asked[0].deadline = bench.time + 10
    bench.wait(9)
    assert not client.sent
    bench.wait(2)
    assert statuses(client.sent) == [504]


def test_an_answered_request_is_freed_without_the_garbage_collector() -> None:
    class Watcher:
        def __init__(self, exchange: HttpRequest) -> None:
            self.exchange = exchange

        def gone(self) -> None: ...

        def expired(self) -> None: ...

    bench = Bench()
    client = bench.connect()
    client.protocol.data_received(request())
    exchange = bench.asked.pop()
    watcher = exchange.watcher = Watcher(exchange)
    left = weakref.ref(watcher)
    del watcher
    assert left() is not None
    exchange.answer(200, b"done")
    assert left() is None
    assert statuses(client.sent) == [200]
