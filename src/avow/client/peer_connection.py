"""A client's connections to one peer: one for writes, and a pool for everything else.

Writes of a lane must arrive in the order they were sent, so all writes to a peer are pipelined on one connection. A
long poll would block everything behind it, so reads and administrative calls (create, status) take a connection from a
small pool and return it after the answer.

A `PeerConnection` connects on demand and never retries: its caller gets `Lost` and decides. It only counts consecutive
failures, because `routing` asks failing peers last.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final

from avow.channel.transports.websocket_handshake import dial
from avow.errors import InvalidRequest, PeerRemoved
from avow.transport.connection import Connection
from avow.wire.http import Address, Answer, Lost, Reply

if TYPE_CHECKING:
    from avow.channel.transports.socket import Socket, SocketUser
    from avow.channel.transports.websocket_handshake import Patience
    from avow.wire.record import Buffer

CONNECT_TIMEOUT_S: Final = 2.0
SILENT_S: Final = 1.0  # a write connection without progress for this long is closed; doubled each time in a row
SILENT_S_MAX: Final = 8.0
_WATCH_S: Final = 0.05  # how often it is checked
POOL_IDLE_MAX: Final = 8
POOL_OPEN_MAX: Final = 128
_CLOSE_TURNS: Final = 100
_SUSPECT_S: Final = 0.5
_SUSPECT_S_MAX: Final = 4.0

JSON: Final = b"Content-Type: application/json\r\n"
BATCH: Final = b"Content-Type: application/vnd.avow.batch\r\n"
FIRST_BATCH: Final = BATCH + b"avow-age-ms: 0\r\n"  # its first attempt


def parse_address(url: str) -> Address:
    """`http://host:port`, `https://host:port`, or `host:port`; IPv6 hosts in brackets."""
    scheme, found, rest = url.strip().rpartition("://")
    scheme = scheme if found else "http"
    host, colon, port = rest.rstrip("/").rpartition(":")
    if scheme not in ("http", "https") or not colon or not host or not port.isdigit():
        raise InvalidRequest(
            f"{url!r} is not a valid peer address; nothing was opened. Write http://host:port or https://host:port"
        )
    return Address(host.strip("[]"), int(port), scheme == "https")


class PeerConnection:
    """One peer of the cluster. `number` is 0 until the peer's number is known."""

    def __init__(self, address: Address, *, token: str | None, tls: ssl.SSLContext | None) -> None:
        self.address = address
        self.number = 0
        self.gone = False  # it has left the cluster
        self.failures_count = 0
        self.suspect_until = 0.0
        self._tls = tls if address.tls else None
        self._token = token
        rights = f"Authorization: Bearer {token}\r\n" if token else ""
        self._common = f" HTTP/1.1\r\nHost: {address.authority}\r\n{rights}".encode("ascii")
        self._writer: Connection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._unsent: deque[tuple[Sequence[Buffer], Reply]] = deque()
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._watcher: asyncio.TimerHandle | None = None
        self._silences_count = 0  # consecutive write connections that were closed without any answer
        self._closed = False

    # -------------------------------------------------------------------- writes

    def write(self, target: bytes, headers: bytes, body: Buffer, reply: Reply) -> None:
        """Pipelined: writes arrive in the order of these calls. `reply` is called once."""
        parts = self.request(b"POST", target, headers, body)
        writer = self._writer
        if writer is not None and writer.usable:
            writer.send(parts, reply)
            if self._watcher is None:
                self._watch()
            return
        if self._closed:
            reply(Lost(sent=False, reason="this client is closed"))
            return
        self._unsent.append((parts, reply))
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open_writer())

    def request(self, method: bytes, target: bytes, headers: bytes, body: Buffer) -> tuple[Buffer, ...]:
        if not body and method == b"GET":
            return (b"%b %b%b%b\r\n" % (method, target, self._common, headers),)
        head = b"%b %b%b%bContent-Length: %d\r\n\r\n" % (method, target, self._common, headers, len(body))
        return (head, body) if body else (head,)

    async def _open_writer(self) -> None:
        try:
            opened = await self._connect()
        finally:
            self._opening = None
        unsent, self._unsent = self._unsent, deque()
        if isinstance(opened, Lost):
            for _, reply in unsent:
                reply(opened)
            return
        self._writer = opened
        for parts, reply in unsent:
            opened.send(parts, reply)
        if self._watcher is None:
            self._watch()

    def _watch(self) -> None:
        """One timer for all writes in flight: it is set again as long as there are some."""
        self._watcher = asyncio.get_running_loop().call_later(_WATCH_S, self._watched)

    def _watched(self) -> None:
        self._watcher = None
        self.check_silence(asyncio.get_running_loop().time())
        if self._writer is not None and self._writer.waiting_count and not self._closed:
            self._watch()

    def check_silence(self, now: float) -> None:
        """Close a silent write connection. The timeout doubles, because reconnecting adds load to a slow peer."""
        if self._writer is None:
            return
        if self._writer.answers_count:
            self._silences_count = 0
        silent_s = min(SILENT_S * (1 << min(self._silences_count, 8)), SILENT_S_MAX)
        if self._writer.check_silence(now, silent_s=silent_s):
            self._silences_count += 1

    # --------------------------------------------------------------------- calls

    async def call(
        self, method: bytes, target: bytes, *, headers: bytes = b"", body: Buffer = b"", timeout_s: float
    ) -> Answer | Lost:
        """One request on a pooled connection. A timeout or cancellation closes that connection."""
        connection = await self._take()
        if isinstance(connection, Lost):
            return connection
        answered: asyncio.Future[Answer | Lost] = asyncio.get_running_loop().create_future()

        def reply(answer: Answer | Lost) -> None:
            if not answered.done():
                answered.set_result(answer)

        connection.send(self.request(method, target, headers, body), reply)
        try:
            async with asyncio.timeout(timeout_s):
                answer = await answered
        except TimeoutError:
            self.failed()
            connection.abort(f"no answer for {timeout_s:g} s")
            return Lost(sent=True, reason=f"no answer for {timeout_s:g} s")
        except asyncio.CancelledError:
            connection.abort("the call was cancelled")
            raise
        self._give_back(connection)
        return answer

    async def _take(self) -> Connection | Lost:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        if len(self._open) >= POOL_OPEN_MAX:
            return Lost(sent=False, reason=f"{POOL_OPEN_MAX} calls to this peer are already in progress")
        return await self._connect()

    def _give_back(self, connection: Connection) -> None:
        if not connection.usable:
            return
        self.failures_count = 0
        if len(self._idle) < POOL_IDLE_MAX:
            self._idle.append(connection)
        else:
            connection.abort("the pool is full")

    # ------------------------------------------------------------------ channels

    async def dial(self, target: str, user: SocketUser, *, timeout_s: float, patience: Patience) -> Socket:
        """Open a WebSocket. Raises Offline, or the peer's refusal."""
        rights = (("Authorization", f"Bearer {self._token}"),) if self._token else ()
        return await dial(
            self.address.url + target, user, headers=rights, tls=self._tls, timeout_s=timeout_s, patience=patience
        )

    # --------------------------------------------------------------- connections

    async def _connect(self) -> Connection | Lost:
        loop = asyncio.get_running_loop()
        host = self.address.host
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: Connection(self._on_closed), host, self.address.port, ssl=self._tls
                )
        except (OSError, TimeoutError) as cause:
            self.failed()
            return Lost(sent=False, reason=f"{self.address.url}: {cause or 'no connection in time'}")
        if self._closed:
            connection.abort("this client is closed")
            return Lost(sent=False, reason="this client is closed")
        self._open.add(connection)
        return connection

    def _on_closed(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection is self._writer:
            self._writer = None
        with suppress(ValueError):
            self._idle.remove(connection)

    def failed(self) -> None:
        """Mark the peer as suspect for a while, longer for consecutive failures: suspect peers are asked last."""
        self.failures_count += 1
        pause = min(_SUSPECT_S * 2 ** min(self.failures_count - 1, 8), _SUSPECT_S_MAX)
        self.suspect_until = monotonic() + pause

    def answered(self, status: int = 0) -> None:
        """`status`: of an HTTP answer. A peer that was removed says so, and is not asked again."""
        self.gone = self.gone or status == PeerRemoved.http_status
        self.failures_count = 0
        self.suspect_until = 0.0

    async def close(self) -> None:
        self._closed = True
        if self._watcher is not None:
            self._watcher.cancel()
        if self._opening is not None:
            self._opening.cancel()
            with suppress(asyncio.CancelledError):
                await self._opening
        for _, reply in self._unsent:
            reply(Lost(sent=False, reason="this client is closed"))
        self._unsent.clear()
        for connection in tuple(self._open):
            connection.abort("this client is closed")
        for _ in range(_CLOSE_TURNS):  # the event loop calls connection_lost after one or two turns
            if not self._open:
                return
            await asyncio.sleep(0)

    def statistics(self) -> dict[str, object]:
        return {
            "url": self.address.url,
            "number": self.number,
            "connections": len(self._open),
            "failures": self.failures_count,
            "writes_waiting": 0 if self._writer is None else self._writer.waiting_count,
        }
