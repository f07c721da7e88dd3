"""The clusters that must give the same answers: scripted peers, one real peer, three real peers."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from tests.scripted_cluster import ScriptedCluster

from avow.client.loop_thread import LoopThread
from avow.testing.cluster import LocalCluster, wait_until
from avow.wire.batch import Batch
from avow.wire.encode import encode_batch
from avow.wire.ranges import parse_ranges

BATCH = {"Content-Type": "application/vnd.avow.batch"}
RANGES = {"Accept": "application/vnd.avow.batches"}
NEVER = bytes(16)  # a write id that nothing has


class Members(Protocol):
    """What the suite needs from a cluster besides its API."""

    numbers: tuple[int, ...]

    def url(self, number: int) -> str: ...

    def run_again(self, number: int) -> None:
        """End a peer without warning and start it again."""


class Scripted:
    def __init__(self, thread: LoopThread, cluster: ScriptedCluster) -> None:
        self._thread, self._cluster = thread, cluster
        self.numbers = tuple(peer.number for peer in cluster.peers)

    def url(self, number: int) -> str:
        return self._cluster.peer(number).url

    def run_again(self, number: int) -> None:
        self._thread.run(self._cluster.peer(number).run_again())


class Real:
    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.numbers = cluster.founders

    def url(self, number: int) -> str:
        return self._cluster.api(number)

    def run_again(self, number: int) -> None:
        self._cluster.kill(number)
        self._cluster.restart(number)


@contextmanager
def scripted(count: int) -> Iterator[Scripted]:
    thread, cluster = LoopThread(), ScriptedCluster(count)
    try:
        thread.run(cluster.__aenter__())
        yield Scripted(thread, cluster)
        thread.run(cluster.__aexit__())
    finally:
        thread.stop()


@contextmanager
def real(count: int) -> Iterator[Real]:
    with LocalCluster(count) as cluster:
        yield Real(cluster)


CLUSTERS: Mapping[str, Callable[[], Any]] = {
    "scripted": lambda: scripted(3),
    "one real peer": lambda: real(1),
    "three real peers": lambda: real(3),
}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The one shape of errors, without the text for people."""
        found = dict(self.json["error"])
        assert set(found) >= {"code", "message", "definite", "retriable"}
        assert found.pop("message")
        return found

    @property
    def spans(self) -> list[tuple[int, int, int]]:
        return [(one["lane"], one["first_version"], one["last_version"]) for one in self.json["written"]]

    @property
    def values(self) -> list[tuple[int, bytes]]:
        """(version, value) of each message read."""
        assert self.headers["content-type"] == RANGES["Accept"]
        found = []
        for one in parse_ranges(memoryview(self.body)):
            rows = Batch(one.record).values()[one.offset : one.offset + one.count]
            found += [(one.first_version + row, bytes(value)) for row, value in enumerate(rows)]
        return found


class Contract:
    """One cluster, asked over its API, and one queue in it that is the test's own."""

    def __init__(self, members: Members) -> None:
        self.members = members
        self.queue = "q" + os.urandom(6).hex()

    @property
    def first(self) -> int:
        return self.members.numbers[0]

    @property
    def last(self) -> int:
        return self.members.numbers[-1]

    def ask(
        self,
        method: str,
        path: str,
        *,
        at: int = 0,
        body: bytes | dict[str, Any] = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """`path` is within the test's queue unless it begins with a slash. `at`: the number of a peer."""
        target = path if path.startswith("/") else f"/v1/queues/{self.queue}{'/' if path[:1].isalpha() else ''}{path}"
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {**({} if isinstance(body, bytes) else {"Content-Type": "application/json"}), **(headers or {})}
        address = urlsplit(self.members.url(at or self.first))
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
        try:
            connection.request(method, target, body=sent or None, headers=given)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def create(self, **options: Any) -> Answer:
        """Also waits until every peer knows the queue and each pub-sub lane."""
        answer = self.ask("POST", "/v1/queues", body={"name": self.queue, **options})
        wait_until(lambda: all(self._is_known(number) for number in self.members.numbers), what="the queue")
        return answer

    def _is_known(self, number: int) -> bool:
        found = self.ask("GET", "", at=number)
        if found.status != 200 or found.json["strategy"] == "two-phase":
            return found.status == 200
        return found.json["open_lane"] is not None and len(found.json["lanes"]) >= len(self.members.numbers)

    def write(
        self, *values: bytes, at: int = 0, write_id: bytes = b"", age_ms: int | None = None, **query: int
    ) -> Answer:
        """`query` names the lane, and what is expected of it. `age_ms`: when it was first sent, if it is a repeat."""
        headers = BATCH if age_ms is None else {**BATCH, "avow-age-ms": str(age_ms)}
        asked = "&".join(f"{name}={value}" for name, value in query.items())
        record = bytes(encode_batch(list(values), write_id=write_id or os.urandom(16), created_ms=1))
        return self.ask("POST", f"messages?{asked}" if asked else "messages", at=at, body=record, headers=headers)

    def read(self, *, at: int = 0, **query: object) -> Answer:
        asked = "&".join(f"{name}={value}" for name, value in query.items())
        return self.ask("GET", f"messages?{asked}", at=at, headers=RANGES)

    def open_lane(self, number: int) -> int:
        return int(self.ask("GET", "", at=number).json["open_lane"])
