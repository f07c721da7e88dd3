"""Peers made of a socket and a script, for tests of the client: they speak the API's bytes and fail as scripted.

All peers of a `ScriptedCluster` share one `Shelf` of queues, so a write through any of them is seen by all, and a write
id is answered with its first outcome, as a cluster does. What a real one would decide (who coordinates, what is
refused, when a connection breaks) is decided by the test: `peer.script` is asked before each request. It gives an
error to answer with, a number of seconds to wait with the answer, or one of the words in `answer`. The suite in
tests/contract/cluster requires the same answers of these peers and of real ones.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import httptools
from crc32c import crc32c
from tests.scripted_channels import ChannelServer

from avow.errors import (
    AlreadyExists,
    AvowError,
    InvalidRequest,
    LaneEnded,
    NotEqual,
    Offline,
    UnknownMessage,
    UnknownQueue,
    UnknownSubscriber,
)
from avow.wire.batch import Batch
from avow.wire.ranges import CONTENT_TYPE as RANGES
from avow.wire.ranges import range_parts
from avow.wire.record import read_record, unpack_entry
from avow.wire.versions import NEWEST

Reply = tuple[int, dict[str, str], bytes]
Script = Callable[["Request"], "AvowError | str | float | None"]


class Request:
    def __init__(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        parts = urlsplit(target)
        self.method, self.headers, self.body, self.target = method, headers, body, target
        self.names = [unquote(name) for name in parts.path.strip("/").split("/")]
        self.query = dict(parse_qsl(parts.query))
        self.at = 0.0  # on the loop's clock

    @property
    def is_write(self) -> bool:
        return self.method == "POST" and self.names[-1] == "messages"


class Shelf:
    """The queues of a cluster: name -> lane -> records in order, and the outcome of every write id."""

    def __init__(self) -> None:
        self.queues: dict[str, dict[str, Any]] = {}
        self.records: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
        self.outcomes: dict[tuple[str, int, bytes], tuple[int, int]] = {}
        self.cursors: dict[tuple[str, str], dict[str, int]] = {}  # (queue, subscriber) -> lane -> version
        self.holds: set[tuple[str, str]] = set()
        self.readers: dict[tuple[str, str], dict[str, Any]] = {}  # of a subscriber: member -> channel
        self.watchers: list[Callable[[], None]] = []  # called after each write

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
            for watcher in tuple(self.watchers):
                watcher()
        return known

    def values(self, queue: str, lane: int) -> list[bytes]:
        return [bytes(v) for _, record in self.records.get((queue, lane), []) for v in Batch(record).values()]

    def ranges(self, queue: str, lane: int, *, after: int, count: int, size_bytes: int) -> tuple[bytes, int]:
        """The messages after a version, up to these bounds but at least a batch; and the version to continue after."""
        body, size = b"", 0
        for first, record in self.records.get((queue, lane), []):
            last = first + Batch(record).count - 1
            if last <= after:
                continue
            if count <= 0 or (body and size + len(record) > size_bytes):
                break
            skip = max(after + 1 - first, 0)
            meant = min(last - first + 1 - skip, count)
            entry = unpack_entry(record)
            parts = range_parts(entry, lane=lane, first_version=first + skip, offset=skip, count=meant)
            body, size = body + b"".join(parts), size + len(record)
            count, after = count - meant, first + skip + meant - 1
        return body, after

    def delete(self, queue: str) -> None:
        del self.queues[queue]
        shelves: tuple[dict[Any, Any], ...] = (self.records, self.outcomes, self.cursors)
        for kept in shelves:
            for key in [key for key in kept if key[0] == queue]:
                del kept[key]


class ScriptedPeer(asyncio.Protocol):
    """One connection. `owner` has the state."""

    def __init__(self, owner: PeerServer) -> None:
        self.owner = owner
        self.silent = False
        self.held: list[Reply] = []  # behind an answer that takes its time

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.owner.connections.add(self)
        self.parser = httptools.HttpRequestParser(self)
        self._reset()

    def _reset(self) -> None:
        self.target = ""
        self.fields: dict[str, str] = {}
        self.chunks: list[bytes] = []

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

    def say_later(self, reply: Reply, pause_s: float) -> None:
        self.held.append(reply)
        asyncio.get_running_loop().call_later(pause_s, self._say_held)

    def _say_held(self) -> None:
        held, self.held = self.held, []
        for reply in held if not self.transport.is_closing() else ():
            self.say(reply)

    def say(self, reply: Reply) -> None:
        if self.held:
            self.held.append(reply)
            return
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
        self._open_lane: int | None = None
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

    @property
    def open_lane(self) -> int | None:
        """The lane of pub-sub queues that this peer writes to."""
        return self._open_lane

    @open_lane.setter
    def open_lane(self, lane: int | None) -> None:
        self._open_lane = lane
        if lane is not None:
            self.cluster.owners[lane] = self.number

    async def kill(self) -> None:
        """As kill -9 looks from outside: connections reset, the port closed."""
        for connection in tuple(self.connections):
            connection.transport.abort()
        if self.server is not None:
            self.server.close()
            await self.server.wait_closed()
            self.server = None

    async def run_again(self) -> None:
        """Another run of the peer: the pub-sub lane of the last one has ended, and there is a new one."""
        await self.kill()
        if self.open_lane is not None:
            self.cluster.ended.add(self.open_lane)
            self.open_lane += 10
        await self.start()

    def answer(self, connection: ScriptedPeer, request: Request) -> None:
        request.at = asyncio.get_running_loop().time()
        self.requests.append(request)
        if connection.silent:
            return  # answers come in the order of requests: none can come after one that does not
        scripted = self.script(request)
        if scripted == "drop":
            connection.transport.abort()
        elif scripted == "act and drop":
            self._act(request)
            connection.transport.abort()
        elif scripted == "silent":
            connection.silent = True
        elif isinstance(scripted, float):
            connection.say_later(self._act(request), scripted)
        elif scripted == "garbage":
            connection.say((200, {}, b"<html>welcome</html>"))
        elif isinstance(scripted, AvowError):
            connection.say(refusal(scripted))
        elif request.names == ["v1", "channel"] and request.query["queue"] in self.cluster.shelf.queues:
            self.channels.upgrade(connection, request)
        elif request.names == ["v1", "channel"]:
            connection.say(refusal(UnknownQueue()))
        elif self._lags(request):
            self._hold(connection, request)
        else:
            connection.say(self._act(request))

    def _act(self, request: Request) -> Reply:
        try:
            return self._answered(request)
        except AvowError as error:
            return refusal(error)

    def _answered(self, request: Request) -> Reply:
        names, method, shelf = request.names[1:], request.method, self.cluster.shelf
        if names == ["peers"]:
            return json_reply({"peers": [peer.listed() for peer in self.cluster.peers]})
        if names == ["queues"] and method == "POST":
            return self._create(json.loads(request.body))
        if names == ["queues"]:
            return json_reply({"queues": [self.described(name) for name in shelf.queues]})
        queue = names[1]
        if queue not in shelf.queues:
            raise UnknownQueue
        if len(names) == 2 and method == "DELETE":
            shelf.delete(queue)
            return json_reply({"name": queue, "deleted": True})
        if len(names) == 2 and method == "GET":
            return json_reply(self.described(queue))
        if names[2:] == ["messages"]:
            return self._write(queue, request) if method == "POST" else self._read(queue, request)
        if names[2] == "writes":
            return self._lookup(queue, bytes.fromhex(names[3]), request.query.get("lane"))
        if names[2:] == ["subscribers"]:
            return json_reply(
                {"subscribers": [self._cursor(queue, name) for own, name in shelf.cursors if own == queue]}
            )
        if names[2] == "subscribers":
            return self._subscriber(queue, names[3], request)
        return 404, *refusal(InvalidRequest("scripted peers have no such call"))[1:]

    # ------------------------------------------------------------------- queues

    def listed(self) -> dict[str, Any]:
        identity, link = f"{self.number:032x}", f"127.0.0.1:{self.number}"
        return {
            "number": self.number,
            "identity": identity,
            "link": link,
            "api": self.url,
            "state": "ready",
            "voter": True,
            "connected": self.server is not None,
            "newest": NEWEST,
        }

    def described(self, queue: str) -> dict[str, Any]:
        about, cluster = self.cluster.shelf.queues[queue], self.cluster
        rows = [self._row(queue, lane, about["strategy"] == "pub-sub") for lane in cluster.lanes(queue)]
        open_lane = self.open_lane if about["strategy"] == "pub-sub" else None
        retention = {"age_s": None, "size_bytes": None, "passed": False}
        return {**about, "peers": [], "retention": retention, "open_lane": open_lane, "lanes": rows}

    def _row(self, queue: str, lane: int, pubsub: bool) -> dict[str, Any]:
        cluster = self.cluster
        return {
            "lane": lane,
            "number": lane if pubsub else lane + 1,
            "end": cluster.shelf.end(queue, lane),
            "trimmed_to": 0,
            "coordinator": None if pubsub else cluster.coordinator or None,
            "voters": [peer.number for peer in cluster.peers],
            "owner": cluster.owners[lane] if pubsub else None,
            "ended": pubsub and lane in cluster.ended,
            "held": True,
        }

    def _create(self, body: dict[str, Any]) -> Reply:
        strategy, queues = body.get("strategy", "two-phase"), self.cluster.shelf.queues
        wanted = {"name": body["name"], "strategy": strategy, "lanes": body.get("lanes", 1)}
        known = queues.get(body["name"])
        if known is not None and known != wanted:
            raise AlreadyExists
        self.cluster.create(wanted["name"], lanes=wanted["lanes"], strategy=strategy)
        return json_reply(self.described(body["name"]), status=201 if known is None else 200)

    # ------------------------------------------------------------------- writing

    def _write(self, queue: str, request: Request) -> Reply:
        shelf, pubsub = self.cluster.shelf, self.cluster.is_pubsub(queue)
        read_record(memoryview(request.body))
        write_id, expected = Batch(request.body).write_id, request.query.get("expected")
        lane = self._lane_of(queue, request.query.get("lane"), write_id)
        if pubsub and expected is not None:
            raise InvalidRequest
        error = None if (queue, lane, write_id) in shelf.outcomes else self._obstacle(queue, lane, expected)
        if error is not None:
            return refusal(error, write_id=write_id.hex(), lane=lane)
        first, last = shelf.write(queue, lane, request.body)
        return json_reply(written(write_id, lane, first, last), **({} if pubsub else self._coordinator()))

    def _lane_of(self, queue: str, asked: str | None, write_id: bytes) -> int:
        lanes = self.cluster.shelf.queues[queue]["lanes"]
        if self.cluster.is_pubsub(queue):
            return (self.open_lane or 0) if asked is None else int(asked)
        lane = crc32c(write_id) % lanes if asked is None else int(asked)
        if not 0 <= lane < lanes:
            raise InvalidRequest
        return lane

    def _obstacle(self, queue: str, lane: int, expected: str | None) -> AvowError | None:
        """Why a new write to a lane is refused. Only its owner writes to a pub-sub lane, and only while it is open."""
        if self.cluster.is_pubsub(queue):
            if lane in self.cluster.ended:
                return LaneEnded()
            return Offline() if lane != self.open_lane else None
        end = self.cluster.shelf.end(queue, lane)
        return NotEqual(expected=int(expected), current=end) if expected is not None and int(expected) != end else None

    def _coordinator(self) -> dict[str, Any]:
        return {"avow_coordinator": str(self.cluster.coordinator)} if self.cluster.coordinator else {}

    def _lookup(self, queue: str, write_id: bytes, asked: str | None) -> Reply:
        pubsub, outcomes = self.cluster.is_pubsub(queue), self.cluster.shelf.outcomes
        if pubsub and asked is None:
            raise InvalidRequest
        for lane in self.cluster.lanes(queue) if asked is None else [int(asked)]:
            if (queue, lane, write_id) in outcomes:
                return json_reply(written(write_id, lane, *outcomes[queue, lane, write_id]))
        ended = pubsub and int(asked or 0) in self.cluster.ended
        error: AvowError = LaneEnded() if ended else Offline() if pubsub else UnknownMessage()
        return refusal(error, write_id=write_id.hex())

    # ------------------------------------------------------------------- reading

    def _read(self, queue: str, request: Request) -> Reply:
        asked, shelf = request.query, self.cluster.shelf
        lane = int(asked.get("lane", 0))
        if lane not in self.cluster.lanes(queue):
            raise InvalidRequest
        body, after = shelf.ranges(
            queue,
            lane,
            after=int(asked.get("after", 0)),
            count=int(asked.get("max", 1000)),
            size_bytes=int(asked.get("max_bytes", 1 << 20)),
        )
        headers = {"avow-next": str(after), "avow-end": str(shelf.end(queue, lane)), "avow-trimmed": "0"}
        return 200, {"Content-Type": RANGES, **headers}, body

    def _lags(self, request: Request) -> bool:
        """Whether it is a read that waits for a version that is not there yet."""
        asked, names = request.query, request.names[1:]
        if asked.get("level") != "at_least" or len(names) != 3 or names[1] not in self.cluster.shelf.queues:
            return False
        return self.cluster.shelf.end(names[1], int(asked["lane"])) < int(asked["at_least"])

    def _hold(self, connection: ScriptedPeer, request: Request) -> None:
        watchers = self.cluster.shelf.watchers

        def look() -> None:
            if not self._lags(request):
                end(self._act(request))

        def end(reply: Reply) -> None:
            watchers.remove(look)
            timer.cancel()
            connection.say(reply)

        waits_s = float(request.query.get("timeout_s", 10))
        timer = asyncio.get_running_loop().call_later(waits_s, lambda: end(refusal(Offline())))
        watchers.append(look)

    # --------------------------------------------------------------- subscribers

    def _cursor(self, queue: str, name: str) -> dict[str, Any]:
        versions, hold = self.cluster.shelf.cursors[queue, name], (queue, name) in self.cluster.shelf.holds
        return {"name": name, "versions": versions, "hold": hold, "epoch": 0, "members": []}

    def _subscriber(self, queue: str, name: str, request: Request) -> Reply:
        shelf = self.cluster.shelf
        if request.method == "PUT":
            self._move_cursor(queue, name, json.loads(request.body))
        if (queue, name) not in shelf.cursors:
            raise UnknownSubscriber
        if request.method == "DELETE":
            del shelf.cursors[queue, name]
            return json_reply({"name": name, "removed": True})
        return json_reply(self._cursor(queue, name))

    def _move_cursor(self, queue: str, name: str, body: dict[str, Any]) -> None:
        shelf, wanted, lanes = self.cluster.shelf, body["versions"], self.cluster.lanes(queue)
        if any(int(lane) not in lanes or version > shelf.end(queue, int(lane)) for lane, version in wanted.items()):
            raise InvalidRequest
        moved = shelf.cursors.setdefault((queue, name), {})
        if (not wanted or "hold" in body) and not self.cluster.is_pubsub(queue):
            moved.update({str(lane): 0 for lane in lanes if str(lane) not in moved})
        for lane, version in wanted.items():
            moved[lane] = version if body.get("reset") else max(version, moved.get(lane, 0))
        if "hold" in body:
            (shelf.holds.add if body["hold"] else shelf.holds.discard)((queue, name))


class ScriptedCluster:
    def __init__(self, count: int, tls: Any = None) -> None:
        self.shelf, self.coordinator, self.tls = Shelf(), 1, tls
        self.ended: set[int] = set()  # pub-sub lanes
        self.owners: dict[int, int] = {}  # pub-sub lane -> the peer that writes to it
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
        for peer in self.peers if strategy == "pub-sub" and not self.owners else ():
            peer.open_lane = 10 + peer.number

    def is_pubsub(self, queue: str) -> bool:
        return bool(self.shelf.queues[queue]["strategy"] == "pub-sub")

    def lanes(self, queue: str) -> list[int]:
        return sorted(self.owners) if self.is_pubsub(queue) else list(range(self.shelf.queues[queue]["lanes"]))


def written(write_id: bytes, lane: int, first: int, last: int) -> dict[str, Any]:
    return {"write_id": write_id.hex(), "written": [{"lane": lane, "first_version": first, "last_version": last}]}


def json_reply(body: dict[str, Any], *, status: int = 200, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, {"Content-Type": "application/json", **named}, json.dumps(body).encode()


def refusal(error: AvowError, **details: Any) -> Reply:
    shape: dict[str, Any] = {"code": error.code, "message": f"scripted {error.code}"}
    shape |= {"definite": error.definite, "retriable": error.retriable}
    later = {"Retry-After": "1"} if error.http_status == 503 else {}
    body = {"error": {**details, **error.details(), **shape}}
    return json_reply(body, status=error.http_status, **later)
