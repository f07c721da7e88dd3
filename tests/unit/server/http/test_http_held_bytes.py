"""What a connection holds of the peer's budget: bodies wait for room, answers are counted until they were read."""

from __future__ import annotations

from tests.unit.server.http.http_memory import Bench, MemoryTransport, answers, error_of, request, statuses

from avow.limits import KIB, MIB
from avow.server.byte_budget import FREE_SIZE_BYTES
from avow.server.http.read_turns import TURN_SIZE_BYTES, RangeAnswer, ReadTurns
from avow.server.http.request import HttpRequest

MEMORY = 16 * MIB  # 2 MiB for requests, 6 MiB for answers
LARGE = 1536 * KIB


def bench() -> Bench:
    return Bench(request_bytes_max=2 * MIB, memory_bytes_max=MEMORY, connections_max=1000)


def test_a_body_without_room_is_not_read_until_another_request_is_answered() -> None:
    run = bench()
    first, second, small = run.connect(), run.connect(), run.connect()
    first.protocol.data_received(request(bytes(LARGE)))
    second.protocol.data_received(request(bytes(LARGE))[: 100 * KIB])
    assert (first.reading, second.reading) == (True, False)
    small.protocol.data_received(request(bytes(FREE_SIZE_BYTES)))
    assert len(run.asked) == 2  # the small one gets through
    run.asked[0].answer(200, b"done")
    assert second.reading
    second.protocol.data_received(request(bytes(LARGE))[100 * KIB :])
    assert len(run.asked) == 3
    assert len(run.asked[2].body) == LARGE
    run.asked[2].answer(200, b"done")
    run.asked[1].answer(200, b"done")
    assert run.budget.requests.held == 0


def test_a_body_that_waits_too_long_is_refused_with_words_and_the_others_go_on() -> None:
    run = bench()
    first, second = run.connect(), run.connect()
    first.protocol.data_received(request(bytes(LARGE)))
    second.protocol.data_received(request(bytes(LARGE))[: 100 * KIB])
    run.wait(run.listener.patience.busy_s)
    run.turn()
    ((status, headers, body),) = answers(second.sent)
    assert (status, headers["retry-after"], error_of(body)["code"]) == (503, "1", "BUSY")
    assert f"requests hold {LARGE} of the {2 * MIB} bytes" in error_of(body)["message"]
    assert error_of(body)["definite"]
    assert second.reading  # the rest is discarded, so that the client can read the answer
    assert (run.budget.requests.waiting, run.budget.requests.refused) == (0, 1)
    run.asked[0].answer(200, b"done")
    run.turn()
    assert statuses(first.sent) == [200]


def test_a_client_is_told_to_continue_only_when_there_is_room_for_the_body() -> None:
    run = bench()
    first, second = run.connect(), run.connect()
    first.protocol.data_received(request(bytes(LARGE)))
    whole = request(bytes(LARGE), headers="expect: 100-continue\r\n")
    head = whole[: whole.index(b"\r\n\r\n") + 4]
    second.protocol.data_received(head)
    assert not second.sent
    run.asked[0].answer(200, b"done")
    run.turn()
    assert second.sent.startswith(b"HTTP/1.1 100")


def test_a_body_without_a_length_takes_room_for_the_largest_one() -> None:
    run = bench()
    client = run.connect()
    chunk = b"%x\r\n%b\r\n" % (FREE_SIZE_BYTES, bytes(FREE_SIZE_BYTES))
    client.protocol.data_received(b"POST /y HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n" + chunk)
    assert run.budget.requests.held == 0
    client.protocol.data_received(chunk)
    assert run.budget.requests.held == 2 * MIB
    client.protocol.data_received(b"0\r\n\r\n")
    assert run.budget.requests.held == 2 * FREE_SIZE_BYTES  # what it turned out to be
    client.close()
    assert run.budget.requests.held == 0


def test_a_client_that_disconnects_while_it_waits_makes_way() -> None:
    run = bench()
    clients = [run.connect() for _ in range(3)]
    for client in clients:
        client.protocol.data_received(request(bytes(LARGE))[: 100 * KIB])
    clients[1].close()
    assert run.budget.requests.waiting == 1
    clients[0].close()
    assert (run.budget.requests.waiting, run.budget.requests.held) == (0, LARGE)
    assert clients[2].reading


# ---------------------------------------------------------------------- answers


class Lane:
    """Answers every request with up to `size` bytes, in turns."""

    def __init__(self, size: int) -> None:
        self.bench = Bench(self.handle, memory_bytes_max=MEMORY, connections_max=1000)
        self.turns = ReadTurns(self.bench.listener)
        self.size, self.made = size, 0

    def handle(self, asked: HttpRequest) -> None:
        self.turns.serve(asked, self.make, wanted=8 * MIB, timeout_s=10.0)

    def make(self, max_bytes: int) -> RangeAnswer:
        self.made += 1
        return RangeAnswer(bytes(min(self.size, max(max_bytes, LARGE))), b"", b"x/y")  # one message has LARGE bytes

    def reader(self, *, stuck: bool) -> MemoryTransport:
        client = self.bench.connect()
        client.stuck = stuck
        client.protocol.data_received(request(method="GET"))
        for _ in range(10):
            self.bench.turn()
        return client

    @property
    def held(self) -> int:
        return self.bench.budget.answers.held


def test_slow_readers_hold_a_bounded_number_of_bytes_and_small_answers_go_on() -> None:
    lane = Lane(8 * MIB)
    slow = [lane.reader(stuck=True) for _ in range(100)]
    assert lane.held <= lane.bench.budget.answers.size_bytes_max
    assert sum(len(client.sent) for client in slow) <= lane.bench.budget.answers.size_bytes_max
    assert lane.bench.budget.answers.waiting == 97
    lane.size = 1000
    assert statuses(lane.reader(stuck=False).sent) == [200]


def test_a_reader_that_gets_no_room_is_told_so() -> None:
    lane = Lane(8 * MIB)
    slow = [lane.reader(stuck=True) for _ in range(5)]
    waiting = slow[-1]
    assert not waiting.sent
    lane.bench.wait(lane.bench.listener.patience.busy_s + 0.1)
    lane.bench.turn()
    ((status, headers, body),) = answers(waiting.sent)
    assert (status, headers["retry-after"], error_of(body)["code"]) == (503, "1", "BUSY")
    assert "nothing was read" in error_of(body)["message"]


def test_a_reader_that_reads_makes_room_for_the_next_in_line() -> None:
    lane = Lane(8 * MIB)
    slow = [lane.reader(stuck=True) for _ in range(4)]
    assert lane.bench.budget.answers.waiting == 1
    last = slow[-1]
    last.stuck = False
    assert not last.sent
    slow[0].unstick()
    for _ in range(3):
        lane.bench.turn()
    assert statuses(last.sent) == [200]


def test_a_reader_that_takes_nothing_is_ended_sooner_while_others_wait_for_its_room() -> None:
    lane = Lane(LARGE)
    patience = lane.bench.listener.patience
    slow = lane.reader(stuck=True)
    lane.bench.wait(0.25)
    lane.bench.wait(patience.crowded_s + 1)
    assert not slow.aborted  # nobody waits
    others = [lane.reader(stuck=True) for _ in range(3)]
    assert lane.bench.budget.answers.waiting == 1
    lane.bench.wait(0.25)
    assert slow.aborted
    assert lane.bench.listener.stalled == 1
    lane.bench.turn()
    assert all(client.sent for client in others)  # its room went to the next in line
    lane.bench.wait(0.25)
    lane.bench.wait(patience.stalled_s + 1)
    assert all(client.aborted for client in others)
    assert lane.held == 0


def test_a_client_with_many_requests_waits_for_one_answer_at_a_time() -> None:
    lane = Lane(LARGE)
    slow = [lane.reader(stuck=True) for _ in range(3)]
    client = lane.bench.connect()
    client.protocol.data_received(request(method="GET") * 50)
    assert (lane.bench.budget.answers.waiting, lane.made) == (1, 4)
    slow[0].unstick()
    for _ in range(200):
        lane.bench.turn()
    assert statuses(client.sent) == [200] * 50


def test_one_turn_of_the_loop_reads_a_bounded_number_of_bytes() -> None:
    lane = Lane(8 * MIB)
    clients = [lane.bench.connect() for _ in range(50)]
    for client in clients:
        client.protocol.data_received(request(method="GET"))
    assert lane.made <= TURN_SIZE_BYTES // LARGE + 1
    for _ in range(50):
        lane.bench.turn()
    assert all(statuses(client.sent) == [200] for client in clients)
