"""Findings on addresses that do not answer, and on services, with small servers on loopback."""

from __future__ import annotations

import socket
import sqlite3
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from avow.barrier.sql import create_table
from avow.barrier.web import answer
from avow.cli.doctor.finding import Finding
from avow.cli.doctor.network import check_address
from avow.cli.doctor.service import check_checkback, check_database
from avow.errors import InvalidRequest

Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A server that answers every GET with one status and body; its host and port."""
    running: list[tuple[ThreadingHTTPServer, threading.Thread]] = []

    def start(status: int, body: bytes, *, tls: ssl.SSLContext | None = None) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = Quiet(("127.0.0.1", 0), Handler)
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        running.append((server, thread))
        return f"127.0.0.1:{server.server_address[1]}"

    yield start
    for server, thread in running:
        server.shutdown()
        thread.join(10)
        server.server_close()


class Quiet(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """The test is a caller that disconnects in the middle."""


ALIVE = b'{"status":"alive"}'


def certified(*names: str) -> tuple[ssl.SSLContext, trustme.CA]:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context, authority


def text_of(finding: Finding | None) -> str:
    assert finding is not None
    assert (finding.verdict, bool(finding.advice)) == ("fail", True)
    return f"{finding.found} -> {finding.advice}"


def test_an_address_where_a_peer_answers_is_fine(serve: Serve) -> None:
    assert check_address(f"http://{serve(200, ALIVE)}", ca="") is None


def test_a_port_where_nobody_listens_is_reported() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        where = text_of(check_address(f"http://127.0.0.1:{unused.getsockname()[1]}", ca=""))
    assert "connection refused" in where
    assert "correct the port" in where


def test_an_unknown_host_name_is_reported() -> None:
    assert "the host name no-such-host.invalid cannot be resolved" in text_of(
        check_address("http://no-such-host.invalid:7400", ca="")
    )


def test_a_port_of_another_service_is_reported(serve: Serve) -> None:
    assert "the server is not an Avow peer (status 404)" in text_of(check_address(f"http://{serve(404, b'')}", ca=""))


def test_http_to_an_https_port_is_reported(serve: Serve) -> None:
    at = serve(200, ALIVE, tls=certified("127.0.0.1")[0])
    assert f"the server speaks HTTPS, not HTTP -> use https://{at}" in text_of(check_address(f"http://{at}", ca=""))


def test_https_to_an_http_port_is_reported(serve: Serve) -> None:
    at = serve(200, ALIVE)
    assert f"the server speaks HTTP, not HTTPS -> use http://{at}" in text_of(check_address(f"https://{at}", ca=""))


def test_a_missing_or_wrong_authority_is_reported(serve: Serve, tmp_path: Path) -> None:
    context, authority = certified("127.0.0.1")
    at = f"https://{serve(200, ALIVE, tls=context)}"
    right, wrong = tmp_path / "right.pem", tmp_path / "wrong.pem"
    authority.cert_pem.write_to_path(str(right))
    trustme.CA().cert_pem.write_to_path(str(wrong))
    assert "give the CA's PEM file with --ca or AVOW_CA" in text_of(check_address(at, ca=""))
    assert "is not the CA that signed it" in text_of(check_address(at, ca=str(wrong)))
    assert check_address(at, ca=str(right)) is None


def test_a_certificate_for_another_name_is_reported(serve: Serve, tmp_path: Path) -> None:
    context, authority = certified("peer-1.example")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    at = f"https://{serve(200, ALIVE, tls=context)}"
    assert "its certificate is not valid for 127.0.0.1" in text_of(check_address(at, ca=str(tmp_path / "ca.pem")))


# ---------------------------------------------------------------------- a service


def test_a_barrier_s_table_is_found_or_reported_missing(tmp_path: Path) -> None:
    path = tmp_path / "bank.db"
    with closing(sqlite3.connect(path)) as connection:
        missing = check_database(f"sqlite:///{path}")
        create_table(connection)
    assert (missing.verdict, "avow pledge migration --dialect sqlite" in missing.advice) == ("fail", True)
    found = check_database(f"sqlite:///{path}")
    assert (found.verdict, found.found.endswith("has the table barrier")) == ("ok", True)


def test_a_missing_database_is_not_created(tmp_path: Path) -> None:
    finding = check_database(f"sqlite:///{tmp_path / 'nothing.db'}")
    assert (finding.verdict, "cannot connect to" in finding.found) == ("fail", True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg", "mysql", "mariadb+pymysql"])
def test_an_unreachable_server_is_reported_without_the_password(scheme: str) -> None:
    finding = check_database(f"{scheme}://me:hidden@127.0.0.1:1/bank")
    assert (finding.verdict, "cannot connect to" in finding.found) == ("fail", True)
    assert "hidden" not in str(finding)


def test_a_url_that_is_not_a_database_with_a_barrier_is_reported() -> None:
    assert "Redis and MongoDB need no table" in check_database("redis://127.0.0.1:6379").advice


def nothing_asked() -> bytes:
    """The answer of the route to a request without a gid, which must not reach the database."""

    def never(question: object) -> object:
        raise InvalidRequest(f"{question} was asked")

    return answer({}, never).body  # type: ignore[arg-type]


def test_a_checkback_that_is_mounted_is_fine(serve: Serve) -> None:
    assert check_checkback(f"http://{serve(500, nothing_asked())}/avow/checkback").verdict == "ok"


@pytest.mark.parametrize(
    ("status", "verdict", "advice"),
    [(404, "fail", "mount the route"), (401, "fail", "without a login"), (200, "warn", "handler of your own")],
)
def test_a_checkback_that_would_not_answer_peers_is_reported(
    serve: Serve, status: int, verdict: str, advice: str
) -> None:
    finding = check_checkback(f"http://{serve(status, b'hello')}/avow/checkback")
    assert (finding.verdict, advice in finding.advice) == (verdict, True)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/checkback", "bank/checkback"])
def test_an_unreachable_checkback_fails(url: str) -> None:
    finding = check_checkback(url)
    assert (finding.verdict, bool(finding.advice)) == ("fail", True)
