"""Peers made of a socket and a script, for tests of the client: they speak the API's bytes and fail when told to.

All peers of a `ScriptedCluster` share one `Shelf` of queues, so a write through any of them is seen by all, and a write
id is answered with its first outcome, as a cluster does. What a real one would decide (who coordinates, what is
refused, when a connection breaks) is decided by the test: `peer.script` is asked before each request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import httptools
from client_channels import ChannelServer

from avow.errors import AvowError
from avow.wire.batch import Batch
from avow.wire.ranges import range_parts
from avow.wire.record import unpack_entry

Reply = tuple[int, dict[str, str], bytes]
Script = Callable[["Request"], "AvowError | str | None"]


class Request:
    def __init__(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        parts = urlsplit(target)
        self.method, self.headers, self.body, self.target = method, headers, body, target
        self.names = [unquote(name) for name in parts.path.strip("/").split("/")]
        self.query = dict(parse_qsl(parts.query))

    @property
    def is_write(self) -> bool:
        return self.method == "POST" and self.names[-1] == "messages"


class Shelf:
    """The queues of a cluster: name -> lane -> records in order, and the outcome of every write id."""

    def __init__(self) -> None:
        self.queues: dict[str, dict[str, Any]] = {}
        self.records: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
        self.outcomes: dict[tuple[str, int, bytes], tuple[int, int]] = {}
        self.cursors: dict[str, dict[str, int]] = {}
        self.readers: dict[str, dict[str, Any]] = {}  # of a subscriber: member -> channel
        self.watchers: list[Callable[[], None]] = []  # told of each write

    def end(self, queue: str, lane: int) -> int:
        records = self.records.get((queue, lane), [])
        return records[-1][0] + Batch(records[-1][1]).count - 1 if records else 0

    def write(self, queue: str, lane: int, record: bytes) -> tuple[int, int]:
        batch = Batch(record)
        known = self.outcomes.get((queue, lane, batch.write_id))
        if known is None:
            first = self.end(queue, lane) + 1
            self.records.setdefault((queue, lane), []).append((first, record))
            known = self.outcomes[queue, lane, batch.write_id] = (first, first + batch.count - 1)
            for told in self.watchers:
                told()
        return known

    def values(self, queue: str, lane: int) -> list[bytes]:
        return [bytes(v) for _, record in self.records.get((queue, lane), []) for v in Batch(record).values()]


class ScriptedPeer(asyncio.Protocol):
    """One connection. `owner` has the state."""

    def __init__(self, owner: PeerServer) -> None:
        self.owner = owner

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.owner.connections.add(self)
        self.parser = httptools.HttpRequestParser(self)
        self._reset()

    def _reset(self) -> None:
        self.target, self.fields, self.chunks = "", {}, []

    def on_url(self, url: bytes) -> None:
        self.target += url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self.chunks.append(body)

    def on_message_complete(self) -> None:
        method = self.parser.get_method().decode()
        request = Request(method, self.target, self.fields, b"".join(self.chunks))
        self._reset()
        self.owner.answer(self, request)

    def data_received(self, data: bytes) -> None:
        with suppress(httptools.HttpParserUpgrade):  # who answered it has taken the connection over
            self.parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.owner.connections.discard(self)

    def say(self, reply: Reply) -> None:
        status, headers, body = reply
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.transport.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)


class PeerServer:
    def __init__(self, number: int, cluster: ScriptedCluster) -> None:
        self.number, self.cluster = number, cluster
        self.connections: set[ScriptedPeer] = set()
        self.requests: list[Request] = []
        self.script: Script = lambda request: None
        self.open_lane: int | None = None
        self.server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.channels = ChannelServer(self)
        self.server = await loop.create_server(lambda: ScriptedPeer(self), "127.0.0.1", self.port, ssl=self.cluster.tls)
        self.port = self.server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        return f"{'https' if self.cluster.tls else 'http'}://127.0.0.1:{self.port}"

    async def kill(self) -> None:
        """As kill -9 looks from outside: connections reset, the port closed."""
        for connection in tuple(self.connections):
            connection.transport.abort()
        if self.server is not None:
            self.server.close()
            await self.server.wait_closed()
            self.server = None

    def answer(self, connection: ScriptedPeer, request: Request) -> None:
        self.requests.append(request)
        told = self.script(request)
        if told == "drop":
            connection.transport.abort()
        elif told == "act and drop":
            self._act(request)
            connection.transport.abort()
        elif told == "silent":
            return
        elif told == "garbage":
            connection.say((200, {}, b"<html>welcome</html>"))
        elif isinstance(told, AvowError):
            connection.say(refusal(told))
        elif request.names == ["v1", "channel"] and request.query["queue"] in self.cluster.shelf.queues:
            self.channels.upgrade(connection, request)
        elif request.names == ["v1", "channel"]:
            connection.say(refusal_of("UNKNOWN_QUEUE", 404))
        else:
            connection.say(self._act(request))

    def _act(self, request: Request) -> Reply:
        names = request.names[1:]
        if names == ["peers"]:
            return 200, {}, json.dumps({"peers": [peer.listed() for peer in self.cluster.peers]}).encode()
        if names == ["queues"] and request.method == "POST":
            return self._create(json.loads(request.body))
        queue = names[1]
        if queue not in self.cluster.shelf.queues:
            return refusal_of("UNKNOWN_QUEUE", 404)
        if len(names) == 2:
            return 200, {}, json.dumps(self.described(queue)).encode()
        if names[2] == "messages" and request.method == "POST":
            return self._write(queue, request)
        if names[2] == "messages":
            return self._read(queue, request)
        if names[2] == "writes":
            return self._lookup(queue, bytes.fromhex(names[3]), int(request.query["lane"]))
        if names[2] == "subscribers":
            return self._subscriber(names[3], request)
        return refusal_of("INVALID_REQUEST", 400)

    def listed(self) -> dict[str, Any]:
        return {"number": self.number, "identity": "", "link": "", "api": self.url, "state": "ready", "voter": True}

    def described(self, queue: str) -> dict[str, Any]:
        shelf, about = self.cluster.shelf, self.cluster.shelf.queues[queue]
        lanes = sorted({lane for name, lane in shelf.records if name == queue} | set(range(about["lanes"])))
        rows = [{"lane": n, "end": shelf.end(queue, n), "coordinator": self.cluster.coordinator} for n in lanes]
        return {**about, "open_lane": self.open_lane, "lanes": rows, "retention": {}}

    def _create(self, body: dict[str, Any]) -> Reply:
        self.cluster.shelf.queues[body["name"]] = {key: body[key] for key in ("name", "strategy", "lanes")}
        return 201, {}, json.dumps(self.described(body["name"])).encode()

    def _write(self, queue: str, request: Request) -> Reply:
        lane, shelf = int(request.query["lane"]), self.cluster.shelf
        expected = request.query.get("expected")
        known = (queue, lane, Batch(request.body).write_id) in shelf.outcomes
        if expected is not None and not known and int(expected) != shelf.end(queue, lane):
            details = {"expected": int(expected), "cursor": shelf.end(queue, lane)}
            return refusal_of("NOT_EQUAL", 409, **details)
        if lane in self.cluster.ended and not known:
            return refusal_of("LANE_ENDED", 409, retriable=True)
        first, last = shelf.write(queue, lane, request.body)
        return 200, self._coordinator(), written(lane, first, last)

    def _coordinator(self) -> dict[str, str]:
        return {"avow-coordinator": str(self.cluster.coordinator)} if self.cluster.coordinator else {}

    def _lookup(self, queue: str, write_id: bytes, lane: int) -> Reply:
        known = self.cluster.shelf.outcomes.get((queue, lane, write_id))
        if known is not None:
            return 200, {}, written(lane, *known)
        return refusal_of("LANE_ENDED" if lane in self.cluster.ended else "OFFLINE", 409, retriable=True)

    def _read(self, queue: str, request: Request) -> Reply:
        lane, after = int(request.query["lane"]), int(request.query["after"])
        body, size = b"", 0
        for first, record in self.cluster.shelf.records.get((queue, lane), []):
            last = first + Batch(record).count - 1
            if last > after and (not body or size + len(record) <= int(request.query["max_bytes"])):
                skip = max(after + 1 - first, 0)
                parts = range_parts(
                    unpack_entry(record),
                    lane=lane,
                    first_version=first + skip,
                    offset=skip,
                    count=last - first + 1 - skip,
                )
                body, size, after = body + b"".join(parts), size + len(record), last
        return 200, {"avow-next": str(after), "avow-end": str(self.cluster.shelf.end(queue, lane))}, body

    def _subscriber(self, name: str, request: Request) -> Reply:
        cursors = self.cluster.shelf.cursors
        if request.method == "PUT":
            moved, wanted = cursors.setdefault(name, {}), json.loads(request.body)["versions"]
            moved.update({lane: max(version, moved.get(lane, 0)) for lane, version in wanted.items()})
        if name not in cursors:
            return refusal_of("UNKNOWN_SUBSCRIBER", 404)
        return 200, {}, json.dumps({"name": name, "versions": cursors[name], "hold": False}).encode()


class ScriptedCluster:
    def __init__(self, count: int, tls: Any = None) -> None:
        self.shelf, self.coordinator, self.tls = Shelf(), 1, tls
        self.ended: set[int] = set()
        self.peers = [PeerServer(number, self) for number in range(1, count + 1)]

    def peer(self, number: int) -> PeerServer:
        return self.peers[number - 1]

    @property
    def addresses(self) -> str:
        return ",".join(peer.url for peer in self.peers)

    async def __aenter__(self) -> ScriptedCluster:
        for peer in self.peers:
            await peer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for peer in self.peers:
            await peer.kill()

    def create(self, name: str, *, lanes: int = 1, strategy: str = "two-phase") -> None:
        self.shelf.queues[name] = {"name": name, "strategy": strategy, "lanes": lanes}


def written(lane: int, first: int, last: int) -> bytes:
    spans = [{"lane": lane, "first_version": first, "last_version": last}]
    return json.dumps({"write_id": "", "written": spans}).encode()


def refusal(error: AvowError) -> Reply:
    return refusal_of(
        error.code, error.http_status, definite=error.definite, retriable=error.retriable, **error.details()
    )


def refusal_of(code: str, status: int, **details: Any) -> Reply:
    error = {"code": code, "message": f"scripted {code}", "definite": True, "retriable": False, **details}
    return status, {}, json.dumps({"error": error}).encode()
