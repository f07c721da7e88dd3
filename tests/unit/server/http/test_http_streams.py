"""Answers that are written over time: order, push-back, and when they are over."""

from __future__ import annotations

import pytest
from tests.unit.server.http.http_memory import Bench, MemoryTransport, answers, request

from avow.errors import Offline
from avow.server.http.connection import OUTPUT_SIZE_BYTES_MAX
from avow.server.http.request import HttpRequest
from avow.server.http.streams import WAITING_SIZE_BYTES_MAX, Stream

TEXT = b"text/plain"


def opened(
    sent: bytes = b"", *, version: str = "1.1", headers: str = "", method: str = "GET"
) -> tuple[Bench, MemoryTransport, Stream]:
    """A stream at the head of its line."""
    bench = Bench()
    client = bench.connect()
    client.protocol.data_received(request(method=method, version=version, headers=headers) + sent)
    return bench, client, bench.asked[0].stream(200, b"x-a: b\r\n", TEXT)


def unchunked(sent: bytes | bytearray) -> tuple[bytes, bytes, bytes]:
    """(head, body, remaining bytes) of a chunked answer, which must be complete."""
    head, _, rest = bytes(sent).partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    body = b""
    while True:
        line, _, rest = rest.partition(b"\r\n")
        size = int(line, 16)
        assert rest[size : size + 2] == b"\r\n"
        body, rest = body + rest[:size], rest[size + 2 :]
        if not size:
            return head, body, rest


def test_pieces_leave_as_they_are_written_and_the_connection_goes_on() -> None:
    bench, client, stream = opened()
    bench.turn()
    assert client.sent.startswith(b"HTTP/1.1 200 OK\r\n")
    stream.write(b"one ")
    bench.turn()
    assert client.sent.endswith(b"4\r\none \r\n")
    stream.write(b"")  # would be the end if it were written
    stream.write(bytearray(b"two"))
    stream.close()
    stream.write(b"too late")
    bench.turn()
    head, body, rest = unchunked(client.sent)
    assert (body, rest) == (b"one two", b"")
    assert b"content-type: text/plain\r\nx-a: b" in head + b"\r\n" or b"x-a: b" in head
    client.protocol.data_received(request(b"next"))
    bench.asked[1].answer(200, b"answered")
    assert client.sent.endswith(b"answered")
    assert not client.closed


def test_pieces_of_one_turn_leave_in_one_write() -> None:
    bench, client, stream = opened()
    for _ in range(20):
        stream.write(b"piece")
    assert client.writes == 0
    bench.turn()
    assert client.writes == 1


def test_http_1_0_gets_an_unchunked_body_that_ends_with_the_connection() -> None:
    for headers in ("", "connection: keep-alive\r\n"):
        bench, client, stream = opened(version="1.0", headers=headers)
        stream.write(b"one ")
        stream.write(b"two")
        stream.close()
        bench.turn()
        head, _, body = bytes(client.sent).partition(b"\r\n\r\n")
        assert (b"chunked" in head, b"connection: close" in head, body) == (False, True, b"one two")
        assert client.closed


def test_head_gets_no_body() -> None:
    bench, client, stream = opened(method="HEAD")
    stream.write(b"unseen")
    stream.close()
    bench.turn()
    assert client.sent.endswith(b"\r\n\r\n")
    assert b"unseen" not in client.sent
    client.protocol.data_received(request())
    bench.asked[1].answer(200, b"next")
    assert client.sent.endswith(b"next")


def test_requests_after_a_stream_are_answered_when_it_is_closed() -> None:
    bench, client, stream = opened(request(b"a") + request(b"b"))
    for exchange in bench.asked[2:0:-1]:
        exchange.answer(200, bytes(exchange.body))
    stream.write(b"first")
    bench.turn()
    assert b"content-length" not in client.sent
    stream.close()
    bench.turn()
    _, body, rest = unchunked(client.sent)
    assert body == b"first"
    assert [body for _, _, body in answers(rest)] == [b"a", b"b"]


def test_a_stream_after_others_waits_for_its_turn_and_is_bounded() -> None:
    bench = Bench()
    client = bench.connect()
    client.protocol.data_received(request(b"slow") + request() + request(b"last"))
    slow, streaming, last = bench.asked
    stream = streaming.stream(200, content_type=TEXT)
    calls: list[int] = []
    stream.on_writable = lambda: calls.append(stream.size_waiting)
    pieces = 0
    while stream.writable:
        stream.write(bytes(100_000))
        pieces += 1
    assert OUTPUT_SIZE_BYTES_MAX <= stream.size_waiting < OUTPUT_SIZE_BYTES_MAX + 200_000
    assert not client.sent
    last.answer(200, b"last")
    slow.answer(200, b"slow")
    bench.turn()
    assert calls == [0]
    stream.close()
    bench.turn()
    ((_, _, body),) = answers(client.sent[: client.sent.index(b"slow") + 4])
    assert body == b"slow"
    _, streamed, rest = unchunked(client.sent[client.sent.index(b"slow") + 4 :])
    assert len(streamed) == pieces * 100_000
    assert rest.endswith(b"last")


def test_waiting_streams_do_not_stop_the_active_one() -> None:
    bench = Bench()
    client = bench.connect()
    client.protocol.data_received(request() * 2)
    first, second = (exchange.stream(200) for exchange in bench.asked)
    while second.writable:
        second.write(bytes(100_000))
    assert first.writable
    first.write(b"goes on")
    bench.turn()
    assert b"goes on" in client.sent


def test_a_client_that_does_not_read_pauses_the_writer() -> None:
    bench, client, stream = opened()
    called: list[bool] = []
    stream.on_writable = lambda: called.append(stream.writable)
    client.stuck = True
    for _ in range(50):
        if not stream.writable:
            break
        stream.write(bytes(1 << 20))
        bench.turn()
    assert not stream.writable
    assert OUTPUT_SIZE_BYTES_MAX < stream.size_waiting <= OUTPUT_SIZE_BYTES_MAX + (2 << 20)
    assert called == []
    client.unstick()
    assert called == [True]
    assert stream.size_waiting == 0


def test_a_writer_that_was_not_paused_is_not_resumed() -> None:
    bench, _, stream = opened()
    called: list[bool] = []
    stream.on_writable = lambda: called.append(True)
    for _ in range(5):
        stream.write(b"piece")
        bench.turn()
    assert called == []


def test_a_writer_that_ignores_backpressure_loses_its_connection() -> None:
    bench, client, stream = opened()
    client.stuck = True
    for _ in range(100):
        stream.write(bytes(1 << 20))
        bench.turn()
    assert client.aborted
    assert stream.gone
    assert len(client.sent) < WAITING_SIZE_BYTES_MAX + (6 << 20)


def test_a_handler_is_notified_when_the_client_hangs_up() -> None:
    for behind in (False, True):
        bench = Bench()
        client = bench.connect()
        client.protocol.data_received(request() * 2)
        stream = bench.asked[1 if behind else 0].stream(200)
        notified: list[bool] = []
        stream.on_gone = lambda notified=notified: notified.append(True)
        client.close()
        stream.write(b"to nobody")
        stream.close()
        bench.turn()
        assert notified == [True]
        assert (stream.gone, stream.writable, stream.size_waiting) == (True, False, 0)


def test_a_half_closed_client_ends_its_stream() -> None:
    _, client, _ = opened()
    assert client.protocol.eof_received() is False


def test_a_stream_for_a_disconnected_client_is_closed_from_the_start() -> None:
    bench = Bench()
    client = bench.connect()
    client.protocol.data_received(request())
    client.close()
    stream = bench.asked[0].stream(200)
    stream.write(b"to nobody")
    assert stream.gone
    assert not client.sent


def test_an_idle_stream_stays_open() -> None:
    bench, client, stream = opened()
    bench.turn()
    for _ in range(100):
        bench.wait(100)
    assert not client.closed
    stream.write(b"still here")
    bench.turn()
    assert client.sent.endswith(b"still here\r\n")


def test_a_client_that_reads_nothing_is_cut_off_and_a_slow_one_is_not() -> None:
    bench, client, stream = opened()
    bench.turn()
    client.stuck = True
    for _ in range(10):
        stream.write(bytes(1000))
        bench.turn()
        bench.wait(59)
        client._buffered -= 10  # it takes a little each time
    assert not client.aborted
    bench.wait(1)
    bench.wait(61)
    assert client.aborted


def test_an_error_in_the_middle_of_a_stream_truncates_the_answer() -> None:
    bench, client, stream = opened()
    stream.write(b"so far")
    bench.turn()
    bench.asked[0].fail(Offline("the quorum is gone"))
    assert client.aborted
    assert client.sent.endswith(b"so far\r\n")


def test_a_handler_that_crashes_after_opening_a_stream_truncates_the_answer() -> None:
    def crash(exchange: HttpRequest) -> None:
        exchange.stream(200).write(b"half")
        raise ZeroDivisionError

    bench = Bench(crash)
    client = bench.connect()
    client.protocol.data_received(request())
    assert client.aborted
    assert bench.listener.statistics()["requests_failed"] == 1


def test_a_stream_does_not_count_as_a_request_in_flight() -> None:
    bench, _, _ = opened()
    assert bench.listener.statistics()["requests_in_flight"] == 0


def test_a_peer_that_stops_ends_its_streams() -> None:
    bench, client, stream = opened(request(b"behind"))
    notified: list[bool] = []
    stream.on_gone = lambda: notified.append(True)
    stream.write(b"all of it")
    bench.listener.stopping = True
    client.protocol.finish()
    bench.turn()
    assert notified == [True]
    _, body, rest = unchunked(client.sent)
    assert (body, rest, client.closed) == (b"all of it", b"", False)
    bench.asked[1].answer(200, b"done")
    assert client.sent.endswith(b"done")
    assert client.closed


@pytest.mark.parametrize("waiting", [0, 1])
def test_answers_too_large_to_buffer_do_not_stall_the_connection(waiting: int) -> None:
    """The socket takes them at once, so no later event would send the rest of the backlog."""
    bench = Bench()
    client = bench.connect()
    client.protocol.data_received(request(b"a") * (2 + waiting))
    for exchange in bench.asked[:0:-1]:
        exchange.answer(200, bytes(OUTPUT_SIZE_BYTES_MAX + 1))
    client.protocol.data_received(request(b"c"))
    assert not client.reading
    bench.asked[0].answer(200, b"a")
    bench.turn()
    assert client.reading
    assert bench.asked[-1].body == b"c"
