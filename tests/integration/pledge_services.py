"""Services that pledges call, for tests: they give scripted answers and record their requests.

with Service() as service:
    service.says("/in", 500, times=2)         # then as usual: 200 {"dtm_result":"SUCCESS"}
    peer.ask("POST", "/v1/pledges/g/submit", {"branches": [{"url": service.url("/in"), "json": {"amount": 30}}]})
    service.wait_for("/in", 3)
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict, deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

ONGOING = (425, {"dtm_result": "ONGOING"})
FAILURE = (409, {"dtm_result": "FAILURE"})
SUCCESS = (200, {"dtm_result": "SUCCESS"})


class Heard:
    """One request."""

    def __init__(self, method: str, path: str, query: dict[str, str], headers: dict[str, str], body: bytes) -> None:
        self.method, self.path, self.query, self.headers, self.body = method, path, query, headers, body
        self.at = time.monotonic()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Service:
    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self._scripts: dict[str, deque[tuple[int, Any]]] = defaultdict(deque)
        self._always: dict[str, tuple[int, Any]] = {}
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Service:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    @property
    def address(self) -> str:
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def url(self, path: str) -> str:
        return f"http://{self.address}{path}"

    def says(self, path: str, status: int, body: Any = None, *, times: int = 1) -> None:
        self._scripts[path].extend([(status, {} if body is None else body)] * times)

    def always(self, path: str, status: int, body: Any = None) -> None:
        """From now on, after the answers given to `says` are used up."""
        self._always[path] = (status, {} if body is None else body)

    def calls(self, path: str) -> list[Heard]:
        return [heard for heard in self.heard if heard.path == path]

    def wait_for(self, path: str, count: int, *, timeout_s: float = 60.0) -> list[Heard]:
        with self._changed:
            there = self._changed.wait_for(lambda: len(self.calls(path)) >= count, timeout_s)
        assert there, f"{path} was called {len(self.calls(path))} times, not {count}"
        return self.calls(path)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                parts = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                heard = Heard(self.command, parts.path, dict(parse_qsl(parts.query)), headers, body)
                status, reply = service._answer(heard)
                data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST

            def log_message(self, format: str, *args: object) -> None: ...

        return Handler

    def _answer(self, heard: Heard) -> tuple[int, Any]:
        with self._changed:
            self.heard.append(heard)
            script = self._scripts[heard.path]
            answer = script.popleft() if script else self._always.get(heard.path, SUCCESS)
            self._changed.notify_all()
        status, body = answer
        return status, body(heard) if callable(body) else body
