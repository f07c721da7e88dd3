"""The trace of a message as peers report it: who stored it, whether it is committed and visible, who has read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.integration.http_peer import PeerProcess, cluster, wait_until

KEYS = ["queue", "lane", "version", "peer", "created_ms", "coordinator", "owner", "committed", "visible", "stored"]


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[PeerProcess]]:
    with cluster(tmp_path_factory.mktemp("peers"), 3) as made:
        assert made[0].ask("POST", "/v1/queues", {"name": "orders"}).status == 201
        assert made[0].ask("POST", "/v1/queues", {"name": "news", "strategy": "pub-sub"}).status == 201
        for peer in made:
            wait_until(lambda peer=peer: bool(peer.ask("GET", "/v1/queues/news").json["open_lane"]))  # type: ignore[misc]
        yield made


def enqueue(peer: PeerProcess, queue: str, value: str) -> tuple[int, int]:
    """Its lane and version."""
    answer = peer.ask("POST", f"/v1/queues/{queue}/messages", {"messages": [{"value": value, "key": "k"}]})
    assert answer.status == 200, answer.body
    (written,) = answer.json["written"]
    return written["lane"], written["last_version"]


def life(peer: PeerProcess, queue: str, lane: int, version: int) -> dict[str, Any]:
    answer = peer.ask("GET", f"/v1/queues/{queue}/messages/{lane}/{version}/life")
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


def stored(found: dict[str, Any]) -> dict[int, bool | None]:
    return {one["peer"]: one["stored"] for one in found["stored"]}


def holds(peer: PeerProcess, queue: str, lane: int, version: int, holder: int) -> bool:
    """Whether this peer knows that `holder` stored it. Other peers' copies may have made the quorum, so a slow peer may
    not know the message yet."""
    answer = peer.ask("GET", f"/v1/queues/{queue}/messages/{lane}/{version}/life")
    return answer.status == 200 and stored(answer.json)[holder] is True


def coordinator_of(peers: list[PeerProcess]) -> int:
    number: list[int] = []

    def known() -> bool:
        number[:] = [peers[0].ask("GET", "/v1/queues/orders").json["lanes"][0]["coordinator"] or 0]
        return number[0] > 0

    wait_until(known)
    return number[0]


def test_the_coordinator_of_a_two_phase_lane_knows_who_has_stored_a_message(peers: list[PeerProcess]) -> None:
    lane, version = enqueue(peers[0], "orders", "first")
    number = coordinator_of(peers)
    peer = peers[number - 1]
    wait_until(lambda: stored(life(peer, "orders", lane, version)) == {1: True, 2: True, 3: True})
    found = life(peer, "orders", lane, version)
    assert list(found) == [*KEYS, "subscribers", "message"]
    assert (found["queue"], found["lane"], found["version"]) == ("orders", lane, version)
    assert (found["peer"], found["coordinator"], found["owner"]) == (number, number, None)
    assert (found["committed"], found["visible"]) == (True, True)
    assert found["created_ms"] > 0
    assert found["message"]["value"] == "first"
    assert found["message"]["stored_by"] == [1, 2, 3]


def test_another_peer_reports_what_it_knows_or_redirects(peers: list[PeerProcess]) -> None:
    lane, version = enqueue(peers[0], "orders", "second")
    number = coordinator_of(peers)
    other = peers[number % 3]
    path = f"/v1/queues/orders/messages/{lane}/{version}/life"
    wait_until(lambda: other.ask("GET", path).status == 200)
    wait_until(lambda: life(other, "orders", lane, version)["committed"])
    found = life(other, "orders", lane, version)
    assert found["coordinator"] == number
    assert stored(found)[found["peer"]] is True
    assert stored(found)[number] is None  # it may have counted two others
    sent = other.ask("GET", f"{path}?redirect=true")
    assert sent.status == 307
    assert sent.headers["location"].startswith(peers[number - 1].url)


def test_subscribers_have_read_it_when_their_cursor_reached_it(peers: list[PeerProcess]) -> None:
    lane, version = enqueue(peers[0], "orders", "third")
    for name, cursor in (("ahead", version), ("behind", version - 1)):
        body = {"versions": {str(lane): cursor}}
        assert peers[0].ask("PUT", f"/v1/queues/orders/subscribers/{name}", body).status == 200
    expected = [
        {"name": "ahead", "cursor": version, "read": True},
        {"name": "behind", "cursor": version - 1, "read": False},
    ]
    wait_until(lambda: life(peers[0], "orders", lane, version)["subscribers"] == expected)


def test_every_peer_knows_who_has_stored_a_message_of_a_pub_sub_queue(peers: list[PeerProcess]) -> None:
    lane, version = enqueue(peers[1], "news", "hello")
    for peer in peers:
        path = f"/v1/queues/news/messages/{lane}/{version}/life"
        wait_until(lambda peer=peer, path=path: peer.ask("GET", path).status == 200)  # type: ignore[misc]
        wait_until(lambda peer=peer: stored(life(peer, "news", lane, version)) == {1: True, 2: True, 3: True})  # type: ignore[misc]
        wait_until(lambda peer=peer: life(peer, "news", lane, version)["visible"])  # type: ignore[misc]
        found = life(peer, "news", lane, version)
        assert (found["coordinator"], found["owner"], found["committed"]) == (None, 2, True)


@pytest.mark.parametrize("queue", ["orders", "news"])
def test_a_missing_message_is_unknown(peers: list[PeerProcess], queue: str) -> None:
    lane, version = enqueue(peers[0], queue, "x")
    answer = peers[0].ask("GET", f"/v1/queues/{queue}/messages/{lane}/{version + 1_000}/life")
    assert (answer.status, answer.code) == (404, "UNKNOWN_MESSAGE")
    assert peers[0].ask("GET", f"/v1/queues/nothing/messages/{lane}/{version}/life").status == 404


def test_staged_messages_have_no_trace_before_they_are_published(peers: list[PeerProcess]) -> None:
    _, version = enqueue(peers[0], "orders", "before")
    body = {"messages": [{"value": "staged"}]}
    assert peers[0].ask("POST", "/v1/queues/orders/transactions/t/messages", body).status == 200
    path = f"/v1/queues/orders/messages/0/{version + 1}/life"
    assert peers[0].ask("GET", path).status == 404
    assert peers[0].ask("POST", "/v1/queues/orders/transactions/t/publish").status == 200
    wait_until(lambda: peers[0].ask("GET", path).status == 200)
    wait_until(lambda: life(peers[0], "orders", 0, version + 1)["visible"])
    assert life(peers[0], "orders", 0, version + 1)["message"]["value"] == "staged"


def test_the_trace_of_a_trimmed_message_fails_like_reading_it(peers: list[PeerProcess]) -> None:
    lane, version = enqueue(peers[0], "orders", "old")
    assert peers[0].ask("DELETE", "/v1/queues/orders/subscribers/ahead").status in (200, 404)
    assert peers[0].ask("POST", "/v1/queues/orders/trim", {"upto_version": version}).status == 200
    path = f"/v1/queues/orders/messages/{lane}/1"
    wait_until(lambda: peers[0].ask("GET", path).status in (404, 410))
    one, other = peers[0].ask("GET", path), peers[0].ask("GET", f"{path}/life")
    assert (one.status, one.code) == (other.status, other.code)


def test_a_dead_peer_counts_only_with_what_it_reported_before(peers: list[PeerProcess]) -> None:
    number = coordinator_of(peers)
    dead = number % 3 + 1
    before = {queue: enqueue(peers[number - 1], queue, "before") for queue in ("orders", "news")}
    for queue, (lane, version) in before.items():
        wait_until(lambda q=queue, at=lane, v=version: holds(peers[number - 1], q, at, v, dead))  # type: ignore[misc]
    peers[dead - 1].process.kill()
    peers[dead - 1].process.wait(60)
    for queue, (lane, version) in before.items():
        late = enqueue(peers[number - 1], queue, "late")
        wait_until(lambda q=queue, at=late: stored(life(peers[number - 1], q, *at))[dead] is None)  # type: ignore[misc]
        found = life(peers[number - 1], queue, *late)
        assert (found["committed"], stored(found)[number]) == (True, True)
        assert stored(life(peers[number - 1], queue, lane, version))[dead] is True
