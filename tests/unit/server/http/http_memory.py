"""A listener and its connections without sockets: tests pass in the bytes and advance the time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from avow.limits import MIB
from avow.server.byte_budget import ByteBudget
from avow.server.http.connection import Connection
from avow.server.http.listener import Listener, Patience
from avow.server.http.request import HttpRequest


class MemoryTransport(asyncio.Transport):
    """Records written bytes. `stuck` makes it a socket whose other end does not read."""

    def __init__(self, protocol: Connection) -> None:
        super().__init__()
        self.protocol: Any = protocol
        self.sent = bytearray()
        self.writes = 0
        self.reading = True
        self.ended = self.closed = self.aborted = False
        self.stuck = False
        self._high, self._buffered = 0, 0

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or 0

    def get_write_buffer_size(self) -> int:
        return self._buffered

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.ended, "nothing is written after the end"
        self.writes += 1
        self.sent += data
        if self.stuck:
            self._buffered += len(data)
            if self._buffered > self._high:
                self.protocol.pause_writing()

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def unstick(self) -> None:
        self.stuck, self._buffered = False, 0
        self.protocol.resume_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.protocol.connection_lost(None)

    def abort(self) -> None:
        self.aborted = True
        self.close()


class Bench:
    """`handle` answers; without one, requests are kept in `asked` and answered by the test."""

    def __init__(
        self,
        handle: Callable[[HttpRequest], None] | None = None,
        *,
        connections_max: int = 10,
        in_flight_max: int = 1000,
        request_bytes_max: int = 10_000,
        memory_bytes_max: int = 256 * MIB,
    ) -> None:
        self.asked: list[HttpRequest] = []
        self.time = 100.0
        self.later: list[Callable[[], None]] = []
        self.budget = ByteBudget(memory_bytes_max)
        self.listener = Listener(
            handle or self.asked.append,
            connections_max=connections_max,
            in_flight_max=in_flight_max,
            request_bytes_max=request_bytes_max,
            budget=self.budget,
            patience=Patience(),
        )
        self.listener.now = lambda: self.time
        self.listener.soon = self.later.append

    def connect(self) -> MemoryTransport:
        connection = Connection(self.listener)
        transport = MemoryTransport(connection)
        connection.connection_made(transport)
        return transport

    def turn(self) -> None:
        """The next turn of the loop."""
        due, self.later = self.later, []
        self.listener.soon = self.later.append
        for call in due:
            call()

    def wait(self, seconds: float) -> None:
        self.time += seconds
        self.listener.sweep()


def request(
    body: bytes = b"", *, method: str = "POST", path: str = "/x", version: str = "1.1", headers: str = ""
) -> bytes:
    length = f"content-length: {len(body)}\r\n" if body else ""
    return f"{method} {path} HTTP/{version}\r\nhost: here\r\n{length}{headers}\r\n".encode() + body


def answers(sent: bytes | bytearray) -> list[tuple[int, dict[str, str], bytes]]:
    """(status, headers, body) of each answer, which must be whole."""
    found, rest = [], bytes(sent)
    while rest:
        head, separator, rest = rest.partition(b"\r\n\r\n")
        assert separator, f"half an answer: {head!r}"
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        size = int(headers.get("content-length", 0))
        assert len(rest) >= size
        found.append((int(first.split()[1]), headers, rest[:size]))
        rest = rest[size:]
    return found


def statuses(sent: bytes | bytearray) -> list[int]:
    return [status for status, _, _ in answers(sent)]


def error_of(body: bytes) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(body)["error"]
    return error
