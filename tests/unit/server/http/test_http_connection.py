"""One connection: order, keep-alive, bodies in pieces, bounds, and what bad clients get."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.server.http.http_memory import Bench, MemoryTransport, answers, error_of, request, statuses

from avow.errors import NotCoordinator, UnknownQueue
from avow.server.http.connection import HEAD_SIZE_BYTES_MAX, OUTPUT_SIZE_BYTES_MAX, PIPELINED_MAX
from avow.server.http.request import HttpRequest


def echo(exchange: HttpRequest) -> None:
    exchange.answer(200, bytes(exchange.body) or b"-")


def bodies(transport: MemoryTransport) -> list[bytes]:
    return [body for _, _, body in answers(transport.sent)]


def test_answers_leave_in_the_order_of_their_requests() -> None:
    bench = Bench()
    client = bench.connect()
    client.protocol.data_received(request(b"a") + request(b"b") + request(b"c"))
    first, second, third = bench.asked
    third.answer(200, b"3")
    second.answer(200, b"2")
    assert not client.sent
    first.answer(200, b"1")
    bench.turn()
    assert bodies(client) == [b"1", b"2", b"3"]
    assert bench.listener.statistics()["requests_in_flight"] == 0


def test_answers_of_one_turn_leave_in_one_write() -> None:
    bench = Bench()
    client = bench.connect()
    client.protocol.data_received(request(b"a") * 10)
    for exchange in bench.asked[:9]:
        exchange.answer(200, b"ok")
    assert client.writes == 0
    bench.turn()
    assert client.writes == 1


def test_requests_answered_while_they_are_read_leave_in_one_write() -> None:
    bench = Bench(echo)
    client = bench.connect()
    client.protocol.data_received(request(b"a") * 50)
    assert client.writes == 1
    assert bodies(client) == [b"a"] * 50


@given(st.lists(st.integers(1, 400), max_size=12))
def test_a_stream_cut_anywhere_reads_the_same(cuts: list[int]) -> None:
    chunked = b"POST /y HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    stream = request(b"first body") + chunked + request(method="GET") + request(b"x" * 300)
    bench = Bench(echo)
    client = bench.connect()
    at = 0
    for size in [*cuts, len(stream)]:
        client.protocol.data_received(stream[at : at + size])
        at += size
    assert bodies(client) == [b"first body", b"abcde", b"-", b"x" * 300]


def test_a_second_answer_is_dropped() -> None:
    bench = Bench()
    client = bench.connect()
    client.protocol.data_received(request())
    bench.asked[0].answer(200, b"once")
    bench.asked[0].answer(500, b"twice")
    assert bodies(client) == [b"once"]


def test_head_is_answered_like_get_without_the_body() -> None:
    bench = Bench(lambda exchange: exchange.answer(200, b"twelve bytes"))
    client = bench.connect()
    client.protocol.data_received(request(method="HEAD"))
    assert b"content-length: 12\r\n" in client.sent
    assert client.sent.endswith(b"\r\n\r\n")


def test_a_request_that_closes_is_answered_and_closed() -> None:
    bench = Bench(echo)
    client = bench.connect()
    client.protocol.data_received(request(b"bye", headers="connection: close\r\n"))
    ((_, headers, body),) = answers(client.sent)
    assert (headers["connection"], body, client.closed) == ("close", b"bye", True)
    assert bench.listener.statistics()["connections"] == 0


def test_http_1_0_closes_unless_it_asks_not_to() -> None:
    bench = Bench(echo)
    plain, kept = bench.connect(), bench.connect()
    plain.protocol.data_received(request(b"a", version="1.0"))
    kept.protocol.data_received(request(b"a", version="1.0", headers="connection: keep-alive\r\n"))
    assert plain.closed
    assert not kept.closed
    assert answers(kept.sent)[0][1]["connection"] == "keep-alive"


def test_a_client_that_expects_100_continue_gets_it() -> None:
    bench = Bench(echo)
    client = bench.connect()
    whole = request(b"body", headers="expect: 100-continue\r\n")
    client.protocol.data_received(whole[:-4])
    assert bytes(client.sent) == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.protocol.data_received(whole[-4:])
    assert answers(client.sent)[1][2] == b"body"


def test_a_body_announced_as_too_large_is_refused_before_it_is_read() -> None:
    bench = Bench(echo)
    client = bench.connect()
    head = b"POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 10001\r\n\r\n"
    client.protocol.data_received(head)
    ((status, headers, body),) = answers(client.sent)
    assert (status, headers["connection"], error_of(body)["code"]) == (413, "close", "TOO_LARGE")
    assert client.ended
    assert not client.closed  # what still comes is thrown away, so that the answer is not lost
    client.protocol.data_received(b"x" * 10001)
    bench.wait(3)
    assert client.aborted


def test_a_chunked_body_is_refused_as_soon_as_it_is_too_large() -> None:
    bench = Bench(echo)
    client = bench.connect()
    client.protocol.data_received(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(11):
        client.protocol.data_received(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
    assert statuses(client.sent) == [413]


def test_an_endless_head_is_refused() -> None:
    bench = Bench(echo)
    in_one, in_pieces = bench.connect(), bench.connect()
    in_one.protocol.data_received(request(headers="x: " + "y" * HEAD_SIZE_BYTES_MAX + "\r\n"))
    in_pieces.protocol.data_received(b"GET / HTTP/1.1\r\nx: ")
    for _ in range(HEAD_SIZE_BYTES_MAX // 1000 + 1):
        in_pieces.protocol.data_received(b"y" * 1000)
    assert statuses(in_one.sent) == statuses(in_pieces.sent) == [431]


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the start of TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x00" * 100,
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # no host
    ],
)
def test_garbage_is_answered_400_and_the_connection_ends(garbage: bytes) -> None:
    bench = Bench(echo)
    client = bench.connect()
    client.protocol.data_received(garbage)
    ((status, _, body),) = answers(client.sent)
    assert (status, error_of(body)["code"]) == (400, "INVALID_REQUEST")
    assert client.ended


@given(st.binary(max_size=300), st.integers(1, 50))
def test_no_input_bytes_raise_an_exception(garbage: bytes, size: int) -> None:
    bench = Bench(echo)
    client = bench.connect()
    for at in range(0, len(garbage), size):
        client.protocol.data_received(garbage[at : at + size])
    bench.wait(1000)
    bench.wait(1000)
    assert client.closed
    assert bench.listener.statistics()["connections"] == 0


def test_requests_before_the_garbage_are_answered_first() -> None:
    bench = Bench()
    client = bench.connect()
    client.protocol.data_received(request(b"good") + b"\x00garbage\r\n\r\n")
    assert not client.sent
    bench.asked[0].answer(200, b"fine")
    bench.turn()
    assert statuses(client.sent) == [200, 400]


def test_an_upgrade_is_not_granted_and_the_request_is_answered() -> None:
    bench = Bench(echo)
    client = bench.connect()
    upgrade = request(method="GET", headers="connection: upgrade, http2-settings\r\nupgrade: h2c\r\n")
    client.protocol.data_received(upgrade + request(b"next"))
    assert bodies(client) == [b"-", b"next"]


def test_concurrent_requests_of_a_connection_are_bounded() -> None:
    bench = Bench()
    client = bench.connect()
    client.protocol.data_received(request(b"a") * (PIPELINED_MAX + 10))
    assert len(bench.asked) == PIPELINED_MAX
    assert not client.reading
    for exchange in bench.asked[:20]:
        exchange.answer(200, b"ok")
    bench.turn()
    assert len(bench.asked) == PIPELINED_MAX + 10
    assert client.reading


def test_thousands_of_requests_after_a_slow_one_are_answered_in_order() -> None:
    waiting: list[HttpRequest] = []

    def handle(exchange: HttpRequest) -> None:
        if exchange.body == b"wait":
            waiting.append(exchange)
        else:
            echo(exchange)

    bench = Bench(handle)
    client = bench.connect()
    client.protocol.data_received(request(b"wait") + b"".join(request(b"%d" % n) for n in range(5000)))
    assert not client.sent
    waiting[0].answer(200, b"first")
    for _ in range(3 + 5000 // PIPELINED_MAX):
        bench.turn()
    assert bodies(client) == [b"first", *(b"%d" % n for n in range(5000))]
    assert client.reading


def test_reading_pauses_for_a_client_that_does_not_read_its_answers() -> None:
    bench = Bench()
    client = bench.connect()
    client.stuck = True
    client.protocol.data_received(request(b"a") * 4)
    bench.asked[0].answer(200, bytes(OUTPUT_SIZE_BYTES_MAX + 1))
    bench.turn()
    assert not client.reading
    client.unstick()
    assert client.reading
    client.stuck = True
    bench.asked[1].answer(200, bytes(OUTPUT_SIZE_BYTES_MAX + 1))
    bench.turn()
    bench.wait(61)
    assert client.aborted


def test_large_answers_do_not_accumulate_for_pipelined_requests() -> None:
    bench = Bench(lambda exchange: exchange.answer(200, bytes(1 << 20)))
    client = bench.connect()
    client.stuck = True
    client.protocol.data_received(request(b"a") * 200)
    assert len(client.sent) < 2 * OUTPUT_SIZE_BYTES_MAX + (2 << 20)


def test_a_chunk_of_many_requests_takes_many_turns_also_if_each_is_answered_at_once() -> None:
    bench = Bench(echo)
    client = bench.connect()
    client.protocol.data_received(request(b"a") * (2 * PIPELINED_MAX + 10))
    answered = []
    for _ in range(4):
        answered.append(len(bodies(client)))
        bench.turn()
    assert answered == [PIPELINED_MAX, 2 * PIPELINED_MAX, 2 * PIPELINED_MAX + 10, 2 * PIPELINED_MAX + 10]
    assert client.reading
    client.protocol.data_received(request(b"a"))
    assert len(bodies(client)) == 2 * PIPELINED_MAX + 11


def test_waiting_ends_when_the_client_hangs_up() -> None:
    gone = []

    class Watcher:
        def gone(self) -> None:
            gone.append(True)

        def expired(self) -> None: ...

    bench = Bench()
    client = bench.connect()
    client.protocol.data_received(request())
    bench.asked[0].watcher = Watcher()
    client.close()
    assert gone
    bench.asked[0].answer(200, b"nobody is there")
    assert bench.listener.statistics() == {
        "connections": 0,
        "requests_in_flight": 0,
        "requests": 1,
        "requests_malformed": 0,
        "requests_failed": 0,
        "connections_turned_away": 0,
        "connections_stalled": 0,
        "upgraded": 0,
    }


def test_a_half_closed_client_still_gets_its_answers() -> None:
    bench = Bench()
    client = bench.connect()
    client.protocol.data_received(request() * 2)
    assert client.protocol.eof_received() is True
    for exchange in bench.asked:
        exchange.answer(200, b"ok")
    bench.turn()
    assert statuses(client.sent) == [200, 200]
    assert client.closed


def test_errors_of_a_handler_become_answers() -> None:
    def fail(exchange: HttpRequest) -> None:
        if exchange.body == b"gone":
            raise UnknownQueue("there is no such queue")
        if exchange.body == b"elsewhere":
            raise NotCoordinator("not here", coordinator=2, api="http://two:1")
        raise ZeroDivisionError

    bench = Bench(fail)
    client = bench.connect()
    client.protocol.data_received(request(b"gone") + request(b"elsewhere", path="/p?q=1") + request(b"crash"))
    unknown, moved, crashed = answers(client.sent)
    assert (unknown[0], error_of(unknown[2])["code"]) == (404, "UNKNOWN_QUEUE")
    assert (moved[0], moved[1]["location"], error_of(moved[2])["coordinator"]) == (307, "http://two:1/p?q=1", 2)
    assert (crashed[0], error_of(crashed[2])["definite"]) == (500, False)
