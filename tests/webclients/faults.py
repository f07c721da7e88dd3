"""A proxy between a WebChannel client and its server that breaks what it carries, as networks and servers do.

It looks at each request for a session and decides, from a seed, whether and how that one fails. In each direction every
kind comes before one comes again:

    lost        the connection is reset before the request goes on
    unanswered  the request is carried out, the connection reset instead of an answer
    cut         the answer is reset in its middle; a hanging one, in the middle of a chunk
    withheld    the request is carried out, and nothing is heard until the client gives up
    twice       the request is carried out two times, the second answer counts
    500, 503    an error instead of the request; an error although it was carried out

The libraries give a session up after 3 failed POSTs or 4 failed GETs in a row, and after any status that is not 200. So
ordinary faults come at most twice in a row, and what a library does not survive comes as often as `dooms` says: then
the application must open a new session.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
from collections import Counter
from collections.abc import Callable
from random import Random

RUN_MAX = 2
WITHHELD_S = 5.0
WITHHELD_MAX = 16
HELD_UP_S = 0.01
UP = ("lost", "unanswered", "cut", "withheld", "twice", "twice")
DOWN = ("lost", "cut", "withheld", "pass", "pass", "pass")
RESET = struct.pack("ii", 1, 0)


class FaultProxy:
    """`due`: how many faults there should have been by now, up and down each. `doom`: what kills a session, if anything
    shall. `wide`: clients have several POSTs in flight, and those are delayed at random."""

    def __init__(
        self,
        upstream: tuple[str, int],
        *,
        seed: int,
        due: Callable[[], int],
        doom: Callable[[], str],
        wide: bool = False,
    ) -> None:
        self._upstream, self._due, self._doom, self._wide = upstream, due, doom, wide
        self._random = Random(seed)
        self._server: asyncio.Server
        self._doomed: dict[str, str] = {}  # session -> its fault
        self._runs: Counter[tuple[str, str]] = Counter()  # failures in a row, by session and direction
        self._serving: set[asyncio.Task[None]] = set()
        self._directions: Counter[str] = Counter()
        self._decks: dict[str, list[str]] = {"up": [], "down": []}  # the kinds still to come
        self._posts = self._post_passed = 0
        self.faults: Counter[str] = Counter()
        self.overtaken = 0  # POSTs that went on after a later one

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"http://{host}:{port}"

    async def stop(self) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    # ------------------------------------------------------------------ connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):  # by `stop`
                await self._request(reader, writer, await _read_request(reader))
        finally:
            self._serving.discard(task)
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
        line = request.partition(b"\r\n")[0].decode("latin-1")
        sid = (re.search(r"[?&]SID=(\w+)", line) or [""] * 2)[1]
        if not sid or sid == "null" or "TYPE=terminate" in line:
            await self._pass(writer, request, header=b"x-client-wire-protocol: h2\r\n" if self._wide else b"")
        elif line.startswith("POST"):
            await self._up(reader, writer, request, sid)
        else:
            await self._down(reader, writer, request, sid)

    # ------------------------------------------------------------------ faults of a request

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, sid: str) -> None:
        fault = self._choose(sid, "up", UP)
        await self._hold_up()
        if fault == "lost":
            _reset(writer)
        elif fault == "unanswered":
            await self._pass(None, request)
            _reset(writer)
        elif fault == "cut":
            await self._pass(writer, request, cut_at=self._random.randrange(1, 300))
        elif fault == "withheld":
            await self._pass(None, request)
            await _given_up(reader)
        elif fault == "500":
            writer.write(_error(500))
        elif fault == "503":
            await self._pass(None, request)
            writer.write(_error(503))
        else:
            if fault == "twice":
                await self._pass(None, request)
            self._runs[sid, "up"] = 0
            await self._pass(writer, request)

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, sid: str) -> None:
        fault = self._choose(sid, "down", DOWN)
        if fault == "lost":
            _reset(writer)
        elif fault == "cut":
            await self._pass(writer, request, cut_at=self._random.randrange(1, 600))
        elif fault == "withheld":
            passing = asyncio.create_task(self._pass(None, request))
            await _given_up(reader)
            passing.cancel()
            await asyncio.gather(passing, return_exceptions=True)
        else:
            await self._pass(writer, request, hanging=sid)

    async def _hold_up(self) -> None:
        self._posts += 1
        number = self._posts
        if self._wide:
            await asyncio.sleep(self._random.random() * HELD_UP_S)
        self.overtaken += number < self._post_passed
        self._post_passed = max(self._post_passed, number)

    def _choose(self, sid: str, direction: str, kinds: tuple[str, ...]) -> str:
        if sid not in self._doomed and (doom := self._doom()):
            self._doomed[sid] = doom
        doom = self._doomed.get(sid, "")
        if doom == direction:
            return self._count("lost", direction)
        if doom in ("500", "503") and direction == "up":
            return self._count(doom, direction)
        if self._runs[sid, direction] >= RUN_MAX or self._directions[direction] >= self._due():
            return "pass"
        deck = self._decks[direction]
        if not deck:
            deck += self._random.sample(kinds, len(kinds))
        fault = deck.pop()
        if fault == "withheld" and self.faults["withheld"] >= WITHHELD_MAX:
            fault = "lost"
        if fault not in ("pass", "twice"):
            self._runs[sid, direction] += 1
        return fault if fault == "pass" else self._count(fault, direction)

    def _count(self, fault: str, direction: str) -> str:
        self.faults[fault] += 1
        self._directions[direction] += 1
        return fault

    # ------------------------------------------------------------------ carrying

    async def _pass(
        self,
        writer: asyncio.StreamWriter | None,
        request: bytes,
        *,
        cut_at: int = -1,
        hanging: str = "",
        header: bytes = b"",
    ) -> None:
        """`cut_at`: after so many bytes of the answer. `hanging`: the session whose back channel this is. `header` is
        added to the answer."""
        above, below = await asyncio.open_connection(*self._upstream)
        try:
            below.write(request)
            while piece := await above.read(65536):
                if header:
                    piece, header = piece.replace(b"\r\n", b"\r\n" + header, 1), b""
                if hanging and self._cut_now(hanging):
                    cut_at = self._random.randrange(len(piece))
                if writer is None:
                    continue
                if writer.is_closing():  # the client has hung up; the server learns it only now, as it often does
                    return
                if 0 <= cut_at < len(piece):
                    writer.write(piece[:cut_at])
                    await writer.drain()
                    _reset(writer)
                    return
                cut_at -= len(piece)
                writer.write(piece)
                await writer.drain()
                if hanging:
                    self._runs[hanging, "down"] = 0
        finally:
            below.close()

    def _cut_now(self, sid: str) -> bool:
        if self._doomed.get(sid) == "down":
            return bool(self._count("cut", "down"))
        if self._directions["down"] >= self._due() or self._random.random() < 0.5:
            return False
        self._runs[sid, "down"] += 1
        return bool(self._count("cut", "down"))


async def _read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    size = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    body = await reader.readexactly(int(size[1])) if size else b""
    head = re.sub(rb"\r\nconnection:[^\r]*", b"", head, flags=re.IGNORECASE)
    return head[:-2] + b"connection: close\r\n\r\n" + body


async def _given_up(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(TimeoutError, ConnectionError):
        await asyncio.wait_for(reader.read(1), WITHHELD_S)


def _error(status: int) -> bytes:
    return b"HTTP/1.1 %d Broken\r\ncontent-length: 6\r\nconnection: close\r\n\r\nbroken" % status


def _reset(writer: asyncio.StreamWriter) -> None:
    """Closing with this option set resets the connection instead of ending it."""
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
