from __future__ import annotations

import json
import random

import pytest

from avow.client.peer_connection import parse_address
from avow.client.routing import BACKOFF_S, BACKOFF_S_MAX, Backoff, Step, choose, hint_of, step_after
from avow.errors import InvalidRequest, NotCoordinator, Offline
from avow.wire.http import Answer, Lost


class Peer:
    def __init__(self, number: int, *, suspect_until: float = 0.0, gone: bool = False) -> None:
        self.number, self.suspect_until, self.gone = number, suspect_until, gone


def numbers(peers: list[Peer], *, times: int) -> list[int]:
    found, last = [], None
    for _ in range(times):
        last = choose(peers, after=last, now=10.0)
        found.append(last.number)
    return found


def test_without_a_preference_peers_are_asked_in_turn() -> None:
    assert numbers([Peer(1), Peer(2), Peer(3)], times=5) == [1, 2, 3, 1, 2]


def test_the_preferred_peer_is_asked_unless_it_failed_just_now() -> None:
    peers = [Peer(1), Peer(2), Peer(3)]
    assert choose(peers, preferred=3, now=10.0).number == 3
    assert choose(peers, preferred=3, after=peers[2], now=10.0).number == 1
    peers[2].suspect_until = 11.0
    assert choose(peers, preferred=3, now=10.0).number == 1
    assert choose(peers, preferred=3, now=12.0).number == 3


def test_recently_failed_peers_are_asked_last_earliest_due_first() -> None:
    peers = [Peer(1, suspect_until=20.0), Peer(2, suspect_until=15.0), Peer(3)]
    assert numbers(peers, times=3) == [3, 3, 3] or numbers(peers, times=1) == [3]
    only_suspects = peers[:2]
    assert choose(only_suspects, now=10.0).number == 2
    assert choose(only_suspects, after=only_suspects[1], now=10.0).number == 1


def test_a_peer_that_left_is_not_asked_while_there_is_another() -> None:
    assert choose([Peer(1, gone=True), Peer(2)], now=0.0).number == 2
    assert choose([Peer(1, gone=True)], now=0.0).number == 1


def test_a_single_peer_is_asked_again() -> None:
    peer = Peer(1)
    assert choose([peer], after=peer, now=0.0) is peer


def test_pauses_double_up_to_a_bound_and_are_never_less_than_half() -> None:
    backoff = Backoff(random.Random(7))
    pauses = [backoff.next_s() for _ in range(12)]
    for number, pause in enumerate(pauses):
        ceiling = min(BACKOFF_S * 2**number, BACKOFF_S_MAX)
        assert ceiling / 2 <= pause <= ceiling
    backoff.reset()
    assert backoff.next_s() <= BACKOFF_S


def test_a_peer_that_was_named_is_asked_at_once_but_not_for_ever() -> None:
    backoff = Backoff(random.Random(7))
    pauses = [backoff.next_s(named=True) for _ in range(4)]
    assert pauses[:2] == [0.0, 0.0]
    assert min(pauses[2:]) > 0


def refusal(code: str, *, status: int, definite: bool, retriable: bool) -> Answer:
    error = {"code": code, "message": "m", "definite": definite, "retriable": retriable}
    return Answer(status, b"http/1.1", json.dumps({"error": error}).encode())


@pytest.mark.parametrize(
    ("answer", "step"),
    [
        (Answer(200, b"", b"{}"), Step.DONE),
        (Answer(201, b"", b"{}"), Step.DONE),
        (Lost(sent=False, reason="refused"), Step.ELSEWHERE),
        (Lost(sent=True, reason="reset"), Step.UNCERTAIN),
        (refusal("UNKNOWN", status=504, definite=False, retriable=True), Step.UNCERTAIN),
        (refusal("OFFLINE", status=503, definite=True, retriable=True), Step.ELSEWHERE),
        (refusal("BUSY", status=503, definite=True, retriable=True), Step.ELSEWHERE),
        (refusal("NOT_COORDINATOR", status=307, definite=True, retriable=True), Step.ELSEWHERE),
        (refusal("LANE_ENDED", status=409, definite=True, retriable=True), Step.ELSEWHERE),
        (refusal("UNKNOWN_QUEUE", status=404, definite=True, retriable=False), Step.ELSEWHERE),
        (refusal("NOT_EQUAL", status=409, definite=True, retriable=False), Step.REFUSED),
        (refusal("TOO_LARGE", status=413, definite=True, retriable=False), Step.REFUSED),
        (refusal("FORBIDDEN", status=403, definite=True, retriable=False), Step.REFUSED),
    ],
)
def test_an_answer_decides_whether_and_how_to_retry(answer: Answer | Lost, step: Step) -> None:
    assert step_after(answer)[0] is step


def test_only_an_error_that_names_a_coordinator_is_a_hint() -> None:
    assert hint_of(NotCoordinator("m", coordinator=3, api="http://h:1")) == (3, "http://h:1")
    assert hint_of(NotCoordinator("m")) == (0, "")
    assert hint_of(Offline("m")) == (0, "")


def test_addresses_are_read_with_and_without_a_scheme() -> None:
    assert parse_address("127.0.0.1:7400").url == "http://127.0.0.1:7400"
    assert parse_address(" https://[::1]:7400/ ").host == "::1"
    assert parse_address("https://h:1").tls


@pytest.mark.parametrize("url", ["", "host", "ftp://h:1", "http://:1", "http://h:port", "http://h"])
def test_an_invalid_address_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(InvalidRequest, match="http://host:port"):
        parse_address(url)
