"""A coordinator behind a socket with scripted failures, and a service with a checkback, for tests of the client.

The coordinator is the real one, over a store in memory; what is scripted is the way to it: a request that is lost, an
answer that is lost after the request was acted on, a refusal. Both run in threads of their own, so that blocking and
asyncio clients can be tried alike, and so that the checkback answers while a caller waits.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from avow.barrier.web import answer as checkback_answer
from avow.errors import AvowError
from avow.pledge import state
from avow.pledge.branches.schemes import Branches
from avow.pledge.coordinator import Coordinator
from avow.pledge.record import Pledge, Submission
from avow.pledge.settings import PledgeSettings
from avow.pledge.stores.memory import MemoryStore
from avow.server.pledges.handlers import content_of
from avow.server.pledges.schemas import NewPledge
from avow.wire.error_body import encode_failure

Fault = str | AvowError


class ScriptedCoordinator:
    """`faults`: operation -> what to do with its next requests: drop, act and drop, or an error to answer with."""

    def __init__(self, **settings: Any) -> None:
        self.settings = PledgeSettings(**{"timeout_to_fail_s": 600.0, "retry_interval_s": 0.2, **settings})
        self.faults: dict[str, list[Fault]] = {}
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),), daemon=True)

    def __enter__(self) -> ScriptedCoordinator:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def operations(self, name: str) -> list[dict[str, Any]]:
        return [body for operation, body in self.requests if operation == name]

    def pledge(self, gid: str) -> Pledge | None:
        return asyncio.run_coroutine_threadsafe(self.coordinator.query(gid), self._loop).result(10)

    def do(self, call: Callable[[Coordinator], Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(call(self.coordinator), self._loop).result(10)

    async def _run(self) -> None:
        store = MemoryStore()
        self.coordinator = Coordinator(store, Branches(enqueue=self._enqueue), settings=self.settings)
        self.enqueued: list[tuple[str, bytes, bytes]] = []
        await self.coordinator.start()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        await self.coordinator.close(grace_s=0.1)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        for _ in range(3):  # transports that were closed are closed in the turns that follow
            await asyncio.sleep(0)

    async def _enqueue(self, *, queue: str, value: bytes, key: bytes, **_: Any) -> None:
        self.enqueued.append((queue, value, key))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                    lines = head.split("\r\n")
                    length = next((int(x.split(":")[1]) for x in lines if x.lower().startswith("content-length")), 0)
                    body = await reader.readexactly(length)
                    method, target, _ = lines[0].split(" ")
                    reply = await self._answer(method, target, body)
                    if reply is None:
                        writer.transport.abort()
                        return
                    status, answer = reply
                    writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(answer), answer))
        finally:
            writer.close()

    async def _answer(self, method: str, target: str, body: bytes) -> tuple[int, bytes] | None:
        names = [unquote(name) for name in urlsplit(target).path.strip("/").split("/")][1:]
        if names == ["peers"]:
            return 200, b'{"peers": []}'
        given = json.loads(body) if body else {}
        operation = "show" if method == "GET" else names[2]
        self.requests.append((operation, given))
        fault = next(iter(self.faults.get(operation, ())), None)
        if fault is not None:
            self.faults[operation].pop(0)
        if fault == "drop":
            return None
        try:
            if isinstance(fault, AvowError):
                raise fault
            made = await self._act(operation, names[1], body)
        except AvowError as error:
            return error.http_status, encode_failure(error)
        return None if fault == "act and drop" else (200, json.dumps(made).encode())

    async def _act(self, operation: str, gid: str, body: bytes) -> dict[str, Any]:
        coordinator = self.coordinator
        if operation == "prepare":
            return self._shown(await coordinator.prepare(content_of(gid, msgspec.json.decode(body, type=NewPledge))))
        if operation == "submit":
            return self._shown(await coordinator.submit(content_of(gid, msgspec.json.decode(body, type=NewPledge))))
        return self._shown(await (coordinator.abort(gid) if operation == "abort" else coordinator.load(gid)))

    def _shown(self, found: Pledge | Submission) -> dict[str, Any]:
        pledge = found.pledge if isinstance(found, Submission) else found
        now_ms = pledge.progress.updated_ms
        delivery = found.delivery if isinstance(found, Submission) else state.delivery(pledge.progress, now_ms=now_ms)
        return {
            "gid": pledge.gid,
            "status": pledge.status,
            "delivery": delivery.state,
            "error": delivery.error,
            "next_at_ms": delivery.next_at_ms,
            "reason": pledge.progress.reason,
        }


class Service:
    """Answers /checkback by the barrier, and /in with the next of `answers` (200 when empty). `calls`: to /in."""

    port: int

    def __init__(self, checkback: Any) -> None:
        self.checkback, self.answers = checkback, list[int]()
        self.calls: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.asked = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def respond(self, path: str, query: dict[str, str], body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        if path == "/checkback":
            self.asked += 1
            reply = checkback_answer(query, self.checkback)
            return reply.status, reply.body
        self.calls.append(query)
        self.bodies.append(body)
        self.headers.append(headers)
        return (self.answers.pop(0) if self.answers else 200), b""


@contextmanager
def served(service: Service) -> Iterator[Service]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _respond(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, reply = service.respond(parts.path, dict(parse_qsl(parts.query)), body, headers)
            self.send_response(status)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        do_GET = do_POST = _respond

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    service.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
