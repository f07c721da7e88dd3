"""The API of several peers: any may be asked, each sends to the right one what it cannot do itself."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from tests.integration.http_peer import PeerProcess, cluster, wait_until

from avow.wire.versions import NEWEST


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[PeerProcess]]:
    with cluster(tmp_path_factory.mktemp("cluster"), 3) as peers:
        yield peers


def make(asked: list[PeerProcess], /, **wanted: object) -> str:
    """A queue that every peer knows."""
    name = f"q-{uuid4().hex}"
    assert asked[0].ask("POST", "/v1/queues", {"name": name, **wanted}).status == 201
    for peer in asked:
        wait_until(lambda peer=peer: peer.ask("GET", f"/v1/queues/{name}").status == 200)  # type: ignore[misc]
    return name


def coordinator_of(peers: list[PeerProcess], queue: str) -> int:
    found: list[int] = []

    def known() -> bool:
        seen = {peer.ask("GET", f"/v1/queues/{queue}").json["lanes"][0]["coordinator"] for peer in peers}
        found[:] = [number for number in seen if number]
        return len(seen) == 1 and bool(found)

    wait_until(known)
    return found[0]


def body(value: str) -> dict[str, object]:
    return {"messages": [{"value": value}]}


def test_any_peer_accepts_a_write_and_names_the_coordinator(peers: list[PeerProcess]) -> None:
    queue = make(peers)
    coordinator = coordinator_of(peers, queue)
    for number, peer in enumerate(peers, 1):
        answer = peer.ask("POST", f"/v1/queues/{queue}/messages", body(f"by {number}"))
        assert answer.status == 200, answer.body
        assert answer.headers["avow-coordinator"] == str(coordinator)
    for peer in peers:
        lines = peer.ask("GET", f"/v1/queues/{queue}/messages?level=linearizable").lines
        assert [line["value"] for line in lines] == ["by 1", "by 2", "by 3"]


def test_with_redirect_a_write_is_sent_to_the_coordinator(peers: list[PeerProcess]) -> None:
    queue = make(peers)
    coordinator = coordinator_of(peers, queue)
    other = peers[coordinator % 3]
    answer = other.ask("POST", f"/v1/queues/{queue}/messages?redirect=true", body("x"))
    error = answer.json["error"]
    assert (answer.status, error["code"], error["coordinator"]) == (307, "NOT_COORDINATOR", coordinator)
    url = peers[coordinator - 1].url
    assert answer.headers["location"] == f"{url}/v1/queues/{queue}/messages?redirect=true"
    assert error["api"] == url
    assert peers[coordinator - 1].ask("POST", f"/v1/queues/{queue}/messages?redirect=true", body("x")).status == 200


def test_a_queue_on_some_peers_redirects_clients_there(peers: list[PeerProcess]) -> None:
    queue = make(peers, peers=[1])
    assert peers[0].ask("POST", f"/v1/queues/{queue}/messages", body("x")).status == 200
    for path in ("messages", "subscribers", "messages/0/1"):
        answer = peers[1].ask("GET", f"/v1/queues/{queue}/{path}")
        assert (answer.status, answer.code) == (307, "NOT_COORDINATOR")
        assert answer.headers["location"] == f"{peers[0].url}/v1/queues/{queue}/{path}"
    (lane,) = peers[1].ask("GET", f"/v1/queues/{queue}").json["lanes"]
    assert (lane["held"], lane["voters"]) == (False, [1])


def test_a_version_written_at_one_peer_can_be_awaited_at_another(peers: list[PeerProcess]) -> None:
    queue = make(peers)
    last = peers[0].ask("POST", f"/v1/queues/{queue}/messages", body("seen")).json["written"][0]["last_version"]
    answer = peers[2].ask("GET", f"/v1/queues/{queue}/messages?level=at_least&at_least={last}")
    assert [line["value"] for line in answer.lines] == ["seen"]


def test_every_peer_writes_to_its_own_lane_of_a_pubsub_queue(peers: list[PeerProcess]) -> None:
    queue = make(peers, strategy="pub-sub")
    lanes = {}
    for number, peer in enumerate(peers, 1):
        wait_until(lambda peer=peer: peer.ask("GET", f"/v1/queues/{queue}").json["open_lane"] is not None)  # type: ignore[misc]
        answer = peer.ask("POST", f"/v1/queues/{queue}/messages", body(f"by {number}"))
        assert answer.status == 200, answer.body
        lanes[number] = answer.json["written"][0]["lane"]
    assert len(set(lanes.values())) == 3
    for number, lane in lanes.items():
        for peer in peers:
            answer = peer.ask("GET", f"/v1/queues/{queue}/messages?lane={lane}&level=at_least&at_least=1")
            assert [line["value"] for line in answer.lines] == [f"by {number}"]


def test_the_level_of_a_new_cluster_is_the_newest_one_and_cannot_exceed_what_peers_read(
    peers: list[PeerProcess],
) -> None:
    found = peers[0].ask("GET", "/v1/peers").json
    assert (found["level"], {peer["newest"] for peer in found["peers"]}) == (NEWEST, {NEWEST})
    assert peers[1].ask("POST", "/v1/level", {}).json == {"level": NEWEST}
    refused = peers[1].ask("POST", "/v1/level", {"level": NEWEST + 1})
    assert (refused.status, refused.code) == (400, "INVALID_REQUEST")
    assert "nothing was changed" in refused.json["error"]["message"]


def test_a_minority_answers_offline_and_changes_nothing(peers: list[PeerProcess]) -> None:
    """Last of this file: it stops two of the three."""
    queue = make(peers)
    coordinator_of(peers, queue)
    for peer in peers[1:]:
        peer.stop()
    wait_until(lambda: peers[0].ask("GET", "/readyz").status == 503)
    answer = peers[0].ask("POST", f"/v1/queues/{queue}/messages?timeout_s=2", body("lost?"))
    assert answer.json["error"]["code"] in ("OFFLINE", "UNKNOWN")
    assert answer.json["error"]["definite"] == (answer.status == 503)
    assert peers[0].ask("GET", "/healthz").status == 200
    assert peers[0].ask("GET", f"/v1/queues/{queue}/messages").status == 200
    refused = peers[0].ask("GET", f"/v1/queues/{queue}/messages?level=linearizable&timeout_s=2")
    assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, "OFFLINE", "1")
