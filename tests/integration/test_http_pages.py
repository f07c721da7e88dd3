"""What a web page may request from a peer of another origin, and the rights that a token reports."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from tests.integration.http_peer import Answer, PeerProcess, cluster, finish, start, wait_until

LISTED = "https://shop.example:8443"
ASKING = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
TOKENS = {
    "reader": 'rights = { "orders*" = ["read"], "avow.pipelines" = ["read", "write"] }',
    "root": "admin = true",
}


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[PeerProcess]]:
    """Two, with tokens."""
    folder = tmp_path_factory.mktemp("peers")
    tokens = folder / "tokens.toml"
    tokens.write_text(
        "".join(
            f'[[token]]\nname = "{name}"\nsha256 = "{sha256(name.encode()).hexdigest()}"\n{rights}\n'
            for name, rights in TOKENS.items()
        )
    )
    with cluster(folder, 2, token="root", tokens=tokens, cors_origins=f"{LISTED}, http://other.example") as made:
        yield made


def from_page(peer: PeerProcess, origin: str, method: str, path: str, **more: str) -> Answer:
    return peer.ask(method, path, headers={"origin": origin, **more})


def test_a_page_of_another_peer_reads_answers_without_credentials(peers: list[PeerProcess]) -> None:
    first, second = peers
    answer = from_page(first, second.url, "GET", "/v1/cluster")
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == second.url
    assert answer.headers["vary"] == "origin"
    assert "avow-next" in answer.headers["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in answer.headers


def test_a_page_reads_refusals_too(peers: list[PeerProcess]) -> None:
    first, second = peers
    for path, token, status in (("/v1/peers", "wrong", 401), ("/v1/queues/nothing", "root", 404), ("/no", "root", 404)):
        answer = first.ask("GET", path, headers={"origin": second.url}, token=token)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, second.url)


def test_a_preflight_request_needs_no_token(peers: list[PeerProcess]) -> None:
    first, second = peers
    for path in ("/v1/pledges/any/retry", "/v1/queues/orders", "/v1/cluster"):
        answer = first.ask("OPTIONS", path, headers={"origin": second.url, **ASKING}, token="wrong")
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == second.url
        assert "authorization" in answer.headers["access-control-allow-headers"]
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert answer.body == b""


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1", "http://127.0.0.1:1", "null", "\xe9"])
def test_pages_of_other_origins_can_read_nothing(peers: list[PeerProcess], origin: str) -> None:
    answer = from_page(peers[0], origin, "GET", "/v1/cluster")
    assert not [name for name in answer.headers if name.startswith("access-control")]
    asked = from_page(peers[0], origin, "OPTIONS", "/v1/cluster", **ASKING)
    assert asked.status == 405
    assert not [name for name in asked.headers if name.startswith("access-control")]


def test_listed_origins_are_allowed_and_so_are_all_names_of_the_machine(peers: list[PeerProcess]) -> None:
    first, second = peers
    for origin in (LISTED, "http://other.example", second.url.replace("127.0.0.1", "localhost")):
        answer = from_page(first, origin, "GET", "/v1/peers")
        assert answer.headers["access-control-allow-origin"] == origin


def test_without_an_origin_no_cors_headers_are_sent(peers: list[PeerProcess]) -> None:
    answer = peers[0].ask("GET", "/v1/cluster")
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert peers[0].ask("OPTIONS", "/v1/cluster").status == 405


def test_a_peer_with_invalid_origins_does_not_start(tmp_path: Path) -> None:
    process = start(tmp_path, cors_origins="*")
    try:
        assert process.wait(60) != 0
        assert "cors_origins" in (tmp_path / "stderr").read_text()
    finally:
        finish(process)


# ---------------------------------------------------------------------- who asks


def test_a_token_can_query_its_rights(peers: list[PeerProcess]) -> None:
    assert peers[0].ask("GET", "/v1/me", token="reader").json == {
        "name": "reader",
        "token": True,
        "admin": False,
        "rights": {"orders*": ["read"], "avow.pipelines": ["read", "write"]},
    }
    assert peers[0].ask("GET", "/v1/me", token="root").json["admin"] is True
    assert peers[0].ask("GET", "/v1/me", token="nobody").status == 401


def test_peers_and_their_addresses_and_versions_can_be_learned_from_any(peers: list[PeerProcess]) -> None:
    listed = peers[0].ask("GET", "/v1/peers").json["peers"]
    assert {(one["number"], one["api"]) for one in listed} == {(n, peer.url) for n, peer in enumerate(peers, 1)}
    wait_until(lambda: all(one["connected"] for one in peers[0].ask("GET", "/v1/peers").json["peers"]))
    assert peers[0].ask("GET", "/v1/cluster").json["version"] == peers[1].ask("GET", "/v1/cluster").json["version"]
