"""Rights, with TLS and without; and settings with which a peer refuses to start."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.integration.http_peer import PeerProcess, cluster, finish, serving, start, wait_until

from avow.server.http.routes import ROUTES

TOKENS = {
    "reader": 'rights = { "orders*" = ["read"], "avow.pledges" = ["read"] }',
    "writer": 'rights = { "orders*" = ["read", "write"], "avow.pledges" = ["read", "write"] }',
    "sender": 'rights = { "orders*" = ["write"], "avow.pledges" = ["write"] }',
    "manager": 'rights = { "*" = ["read", "manage"] }',
    "root": "admin = true",
}
PATHS = {
    "open_channel": "/v1/channel?role=reader&queue=orders",
    "unsubscribe_topic": "/v1/topics/{topic}/subscribers?url=http://nobody",
}
MAY = {"open_channel": set(TOKENS) - {"sender"}}  # a role has rights of its own
BODIES = {
    "join_peer": {"identity": "0" * 32, "link": "nowhere"},
    "create_queue": {"name": "orders.made"},
    "change_queue": {"retention": {}},
    "trim_queue": {"upto_version": 0},
    "enqueue": {"messages": [{"value": "x"}]},
    "stage": {"messages": [{"value": "x"}]},
    "move_cursor": {},
    "prepare_pledge": {},
    "submit_pledge": {"branches": [{"url": "queue://orders"}]},
    "stop_pledge": {},
    "subscribe_topic": {"url": "queue://orders"},
}


def tokens_file(folder: Path) -> Path:
    path = folder / "tokens.toml"
    path.write_text(
        "".join(
            f'[[token]]\nname = "{name}"\nsha256 = "{sha256(f"secret-{name}".encode()).hexdigest()}"\n{rights}\n'
            for name, rights in TOKENS.items()
        )
    )
    return path


class Pki:
    def __init__(self, folder: Path) -> None:
        self.ca, self.stranger = trustme.CA(), trustme.CA()
        self.folder = folder
        self.ca.cert_pem.write_to_path(str(folder / "ca.pem"))
        issued = self.ca.issue_cert("127.0.0.1", "localhost")
        issued.private_key_pem.write_to_path(str(folder / "key.pem"))
        issued.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))

    def settings(self, *, mutual: bool) -> dict[str, Any]:
        files: dict[str, Any] = {"tls_cert": self.folder / "cert.pem", "tls_key": self.folder / "key.pem"}
        return {**files, "tls_ca": self.folder / "ca.pem"} if mutual else files

    def client(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.folder / "ca.pem"))


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[PeerProcess]:
    """HTTPS with tokens."""
    folder = tmp_path_factory.mktemp("peer")
    with serving(folder, tokens=tokens_file(folder), **pki.settings(mutual=False)) as peer:
        peer.tls = pki.client()
        wait_until(lambda: peer.ask("GET", "/readyz").status == 200)
        peer.ask("POST", "/v1/queues", {"name": "orders"}, token="secret-root")
        peer.ask("POST", "/v1/queues", {"name": "invoices"}, token="secret-root")
        yield peer


def test_health_and_readiness_need_no_token(peer: PeerProcess) -> None:
    assert peer.url.startswith("https://")
    assert peer.ask("GET", "/healthz").status == peer.ask("GET", "/readyz").status == 200


@pytest.mark.parametrize("route", [route for route in ROUTES if route.right is not None], ids=lambda r: r.operation)
def test_every_other_call_needs_a_token_with_the_right(peer: PeerProcess, route: object) -> None:
    assert isinstance(route, type(ROUTES[0]))
    path = PATHS.get(route.operation, route.path).format(
        queue="orders", number=77, txn="t", lane=0, version=1, name="n", write_id="0" * 32, gid="g", topic="t"
    )
    body = BODIES.get(route.operation)
    for token in (None, "wrong"):
        answer = peer.ask(route.method, path, body, token=token)
        assert (answer.status, answer.code) == (401, "NOT_AUTHENTICATED")
        assert answer.headers["www-authenticate"].startswith("Bearer")
    may = {
        "": set(TOKENS),
        "use": set(TOKENS),
        "read": set(TOKENS) - {"sender"},
        "write": {"writer", "sender", "root"},
        "manage": {"manager", "root"},
        "admin": {"root"},
    }[route.right or ""] & MAY.get(route.operation, set(TOKENS))
    destructive = route.operation == "delete_queue"
    for token in sorted(set(TOKENS) - may) if destructive else TOKENS:
        answer = peer.ask(route.method, path, body, token=f"secret-{token}")
        assert (answer.status == 403) == (token not in may), (token, answer.body)
        assert answer.status != 401


def test_rights_are_for_the_queues_they_name(peer: PeerProcess) -> None:
    body = {"messages": [{"value": "x"}]}
    assert peer.ask("POST", "/v1/queues/orders/messages", body, token="secret-writer").status == 200
    assert peer.ask("POST", "/v1/queues/invoices/messages", body, token="secret-writer").status == 403
    listed = peer.ask("GET", "/v1/queues", token="secret-reader").json["queues"]
    assert {queue["name"] for queue in listed} <= {"orders", "orders.made"}
    lanes = peer.ask("GET", "/v1/cluster", token="secret-reader").json["lanes"]
    assert "invoices" not in {lane["queue"] for lane in lanes}


def test_a_branch_that_writes_to_a_queue_needs_the_right_to_write_to_it(peer: PeerProcess) -> None:
    body = {"branches": [{"url": "queue://invoices"}]}
    for path in ("/v1/pledges/mine/submit", "/v1/pledges/mine/prepare"):
        answer = peer.ask("POST", path, {**body, "checkback": "http://nobody"}, token="secret-writer")
        assert (answer.status, answer.code) == (403, "FORBIDDEN")
    answer = peer.ask("POST", "/v1/topics/t2/subscribers", {"url": "queue://invoices"}, token="secret-writer")
    assert answer.status == 403
    assert peer.ask("GET", "/v1/pledges/mine", token="secret-root").status == 404
    dtm = {"gid": "mine", "trans_type": "msg", "steps": [{"action": "queue://invoices"}], "payloads": ["{}"]}
    answer = peer.ask("POST", "/api/dtmsvr/submit", dtm, token="secret-writer")
    assert (answer.status, answer.json["dtm_result"]) == (409, "FAILURE")
    assert peer.ask("POST", "/api/dtmsvr/submit", dtm, token="secret-reader").status == 403
    assert peer.ask("POST", "/api/dtmsvr/submit", dtm).status == 401
    assert peer.ask("GET", "/api/dtmsvr/version").status == 401
    assert peer.ask("GET", "/api/ping").status == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/queues", {"name": "avow.mine"}),
        ("POST", "/v1/queues/avow.pledges/messages", {"messages": [{"value": "x"}]}),
        ("POST", "/v1/queues/avow.pledges/trim", {"upto_version": 1}),
        ("PATCH", "/v1/queues/avow.pledges", {"retention": {}}),
        ("DELETE", "/v1/queues/avow.pledges", None),
        ("POST", "/v1/queues/avow.pledges/transactions/t/messages", {"messages": [{"value": "x"}]}),
        ("PUT", "/v1/queues/avow.pledges/subscribers/s", {"hold": True}),
        ("GET", "/v1/channel?role=producer&queue=avow.pledges", None),
        ("GET", "/v1/channel?role=subscriber&subscriber=s&queue=avow.pledges", None),
    ],
)
def test_the_clusters_own_queues_cannot_be_changed(peer: PeerProcess, method: str, path: str, body: object) -> None:
    peer.ask("POST", "/v1/pledges/own/submit", {"branches": [{"url": ""}]}, token="secret-root")
    answer = peer.ask(method, path, body, token="secret-root")
    assert (answer.status, answer.code) == (403, "FORBIDDEN")


def test_the_clusters_own_queues_are_listed_when_asked_for(peer: PeerProcess) -> None:
    assert peer.ask("POST", "/v1/pledges/own/submit", {"branches": [{"url": ""}]}, token="secret-root").status == 200
    listed = [
        {queue["name"] for queue in peer.ask("GET", f"/v1/queues{asked}", token="secret-root").json["queues"]}
        for asked in ("", "?internal=true")
    ]
    assert listed[1] - listed[0] == {"avow.pledges"}


def test_a_queue_is_created_only_under_a_name_the_token_may_manage(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    digest = sha256(b"s").hexdigest()
    path.write_text(f'[[token]]\nname = "a"\nsha256 = "{digest}"\nrights = {{ "a.*" = ["manage"] }}\n')
    with serving(tmp_path, tokens=path) as peer:
        peer.token = "s"
        wait_until(lambda: peer.ask("GET", "/readyz").status == 200)
        assert peer.ask("POST", "/v1/queues", {"name": "a.x"}).status == 201
        assert peer.ask("POST", "/v1/queues", {"name": "b.x"}).status == 403


def test_two_tokens_on_one_connection_are_distinguished(peer: PeerProcess) -> None:
    def head(token: str) -> bytes:
        return f"DELETE /v1/peers/77 HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {token}\r\n\r\n".encode()

    assert peer.tls is not None
    with socket.create_connection(peer.address, timeout=60) as raw:
        connection = peer.tls.wrap_socket(raw, server_hostname="127.0.0.1")
        for token, status in (
            ("secret-root", b"404"),
            ("secret-reader", b"403"),
            ("x", b"401"),
            ("secret-root", b"404"),
        ):
            connection.sendall(head(token))
            assert connection.recv(65536).split()[1] == status
        connection.close()


# ---------------------------------------------------------------------- TLS


def test_plain_http_on_the_tls_port_is_closed(peer: PeerProcess) -> None:
    assert b"HTTP/1.1 200" not in peer.talk(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")
    assert peer.ask("GET", "/healthz").status == 200


def test_a_client_that_trusts_another_authority_does_not_connect(peer: PeerProcess, pki: Pki) -> None:
    context = ssl.create_default_context()
    pki.stranger.configure_trust(context)
    with socket.create_connection(peer.address, timeout=60) as raw, pytest.raises(ssl.SSLCertVerificationError):
        context.wrap_socket(raw, server_hostname="127.0.0.1")
    assert peer.ask("GET", "/healthz").status == 200


def test_half_a_handshake_blocks_nothing(peer: PeerProcess) -> None:
    for _ in range(5):
        with socket.create_connection(peer.address, timeout=60) as raw:
            raw.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    assert peer.ask("GET", "/healthz").status == 200


def test_peers_link_with_certificates_of_their_authority_and_with_no_other(tmp_path: Path, pki: Pki) -> None:
    with cluster(tmp_path, 2, tls=pki.client(), **pki.settings(mutual=True)) as peers:
        assert peers[0].ask("POST", "/v1/queues", {"name": "secure"}).status == 201
        host, _, port = peers[0].announced["link"].rpartition(":")
        stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        stranger.check_hostname = False
        pki.ca.configure_trust(stranger)
        pki.stranger.issue_cert("localhost").configure_cert(stranger)
        assert not hears_anything((host, int(port)), stranger)
        assert peers[1].ask("GET", "/readyz").status == 200


def hears_anything(address: tuple[str, int], context: ssl.SSLContext) -> bool:
    """TLS 1.3 refuses a client's certificate after the client considers it finished: only a read shows it."""
    with contextlib.suppress(OSError), socket.create_connection(address, timeout=60) as raw:
        connection = context.wrap_socket(raw)
        with contextlib.closing(connection):
            connection.sendall(b"x" * 100)
            return bool(connection.recv(100))
    return False


# ---------------------------------------------------------------------- what a peer is not started with


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"listen": "0.0.0.0:0"}, "tokens"),
        ({"peer-listen": "0.0.0.0:0"}, "tls_ca"),
        ({"tokens": "missing.toml"}, "missing.toml"),
        ({"tls_cert": "missing.pem"}, "missing.pem"),
    ],
)
def test_an_exposed_or_incompletely_configured_peer_refuses_to_start(
    tmp_path: Path, settings: dict[str, str], words: str
) -> None:
    process = start(tmp_path, **settings)
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        assert process.returncode not in (None, 0)
    finally:
        finish(process)
    stderr = (tmp_path / "stderr").read_text()
    assert words in stderr
    assert "Traceback" not in stderr
