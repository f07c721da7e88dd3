"""A small HTTP server for the services of campaigns, which are killed while they answer.

It uses the standard library only, so that a campaign tests the client and the barrier and not a web framework. It
reports where it listens as `Program` expects: one line of JSON on standard output. An exception in a handler becomes an
answer 500 and a line on standard error; the server goes on.
"""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Protocol

import msgspec

from avow.barrier.web import HEADERS

POLL_S: Final = 0.05


class Responder(Protocol):
    """`target` is path and query; the result is a status and a body of JSON. `url` is set before the first request."""

    url: str

    def respond(self, method: str, target: str, body: bytes) -> tuple[int, bytes]: ...


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections of a killed coordinator break; that is expected and not reported."""


def serve(responder: Responder, *, port: int) -> None:
    """Runs until the process is killed."""
    with Server(("127.0.0.1", port), _handler_of(responder)) as server:
        responder.url = f"http://127.0.0.1:{server.server_address[1]}"
        sys.stdout.write(msgspec.json.encode({"url": responder.url}).decode() + "\n")
        sys.stdout.flush()
        server.serve_forever(POLL_S)


def _handler_of(responder: Responder) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            try:
                status, answer = responder.respond(self.command, self.path, body)
            except Exception as error:  # the request's boundary
                status, answer = 500, f"{type(error).__name__}: {error}".encode()
                sys.stderr.write(f"{self.path}: {answer.decode()}\n")
            self.send_response(status)
            for name, value in {**HEADERS, "content-length": str(len(answer))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = respond

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
