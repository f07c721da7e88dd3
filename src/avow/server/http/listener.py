"""All connections of one peer's API: accepts them, bounds them, and ends requests and connections that time out.

There is one timer: every `sweep_s` it checks each connection and each request without an answer. A timer per request
would cost as much as the request. So timeouts have a resolution of a quarter of a second.

The numbers of connections and of requests in flight are bounded. Beyond either bound clients are answered BUSY at once,
so that they can try another peer, instead of waiting in a growing queue.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Coroutine
from email.utils import formatdate
from typing import Any, Final

from msgspec import Struct

from avow.channel.acceptor import Acceptor, open_acceptor
from avow.errors import AvowError, Busy, Offline, Unknown
from avow.server.byte_budget import ByteBudget
from avow.server.http.connection import Connection
from avow.server.http.request import HttpRequest
from avow.server.http.upgrades import Upgraded

TURNED_AWAY_MAX: Final = 64  # connections that linger after the answer BUSY; further ones are closed right after it
STOP_S: Final = 2.0
_CLOSE_TURNS: Final = 100
_LOG: Final = logging.getLogger("avow.http")


class Patience(Struct, frozen=True):
    """Time limits of a connection, in seconds."""

    head_s: float = 10.0
    body_s: float = 30.0
    idle_s: float = 120.0
    stalled_s: float = 60.0  # the client does not read an answer
    crowded_s: float = 10.0  # the same, while others wait for the room that its answers hold
    busy_s: float = 10.0  # a body waits for room
    linger_s: float = 2.0
    handshake_s: float = 10.0
    sweep_s: float = 0.25


class Listener:
    """`handle` answers a request, now or later. It may raise AvowError only."""

    def __init__(
        self,
        handle: Callable[[HttpRequest], None],
        *,
        connections_max: int,
        in_flight_max: int,
        request_bytes_max: int,
        budget: ByteBudget,
        tls: ssl.SSLContext | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.handle = handle  # called by connections, which answer its errors
        self._connections_max = connections_max
        self._in_flight_max = in_flight_max
        self.request_bytes_max = request_bytes_max
        self.budget = budget
        self._tls = tls
        self.patience = patience or Patience()
        self.date = b""
        self.now: Callable[[], float]  # this and the next are the loop's, set by `start`
        self.soon: Callable[[Callable[[], None]], object]
        self.stopping = False
        self.requests = self.in_flight = self.malformed = 0  # counted by connections
        self.turned_away = self.failed = self.stalled = 0
        self._connections: dict[Connection | Upgraded, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._acceptor: Acceptor | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Returns the address it listens on; with port 0 the system chooses. Raises OSError if it cannot be bound."""
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self.soon = self._loop.call_soon
        self._acceptor = await open_acceptor(
            lambda: Connection(self),
            host,
            port,
            tls=self._tls,
            backlog=1024,
            handshake_s=self.patience.handshake_s,
            handshakes_max=self._connections_max + TURNED_AWAY_MAX,
        )
        self._tick()
        return self._acceptor.address

    async def stop(self) -> None:
        """Accept nothing new, wait up to STOP_S for requests in flight, then close all connections."""
        self.stopping = True
        if self._acceptor is None:  # `start` was not reached because of an earlier error
            return
        await self._acceptor.close()
        for connection in list(self._connections):
            connection.finish()
        deadline = self.now() + STOP_S
        while (self.in_flight or self._connections) and self.now() < deadline:
            await asyncio.sleep(0.01)
        for task in list(self._tasks):
            task.cancel()
        for connection in list(self._connections):
            connection.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for _ in range(_CLOSE_TURNS):  # `connection_lost` comes within one or two turns of the loop
            if not self._connections:
                break
            await asyncio.sleep(0)
        if self._timer is not None:
            self._timer.cancel()

    # ------------------------------------------------------------------ called by connections

    @property
    def crowded(self) -> bool:
        return self.stopping or len(self._connections) > self._connections_max

    def joined(self, connection: Connection) -> bool:
        """False: it is not counted, and is closed right after the answer."""
        if len(self._connections) >= self._connections_max:
            self.turned_away += 1
        if len(self._connections) >= self._connections_max + TURNED_AWAY_MAX:
            return False
        self._connections[connection] = None
        return True

    def left(self, connection: Connection | Upgraded) -> None:
        self._connections.pop(connection, None)

    def handed_over(self, connection: Connection, upgraded: Upgraded) -> None:
        """The connection continues with another protocol, and still counts."""
        del self._connections[connection]
        self._connections[upgraded] = None

    def crashed(self, request: HttpRequest) -> None:
        """Its handler raised something else than AvowError."""
        self.failed += 1
        _LOG.exception("internal error in a request: %s %.200r", request.method.decode("latin-1"), request.target)
        request.fail(AvowError("internal error of this peer; the request may or may not have taken effect"))

    # ------------------------------------------------------------------ called by handlers

    def check_room(self) -> None:
        """Raises Busy when too many requests are in flight."""
        if self.in_flight > self._in_flight_max:
            raise Busy("this peer has reached `in_flight_max`; nothing was done. Try again")

    def run(self, request: HttpRequest, work: Coroutine[Any, Any, None], *, timeout_s: float) -> None:
        """Answer a request from a task, which is cancelled when the client disconnects."""
        task = self._loop.create_task(self._watched(request, work, timeout_s))
        self._tasks.add(task)
        request.watcher = _TaskWatcher(task)

        def finished(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            work.close()  # a task that was cancelled before its first step never awaited it

        task.add_done_callback(finished)

    async def _watched(self, request: HttpRequest, work: Coroutine[Any, Any, None], timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await work
        except AvowError as error:
            request.fail(error)
        except TimeoutError:
            request.fail(_too_late(request.method, timeout_s))
        except Exception:
            self.crashed(request)

    # ------------------------------------------------------------------ time

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self.patience.sweep_s, self._tick)
        self.date = f"date: {formatdate(time.time(), usegmt=True)}\r\n".encode()
        self.sweep()

    def sweep(self) -> None:
        """End the requests and connections whose time limits have passed."""
        now = self.now()
        for connection in list(self._connections):
            connection.sweep(now)

    def statistics(self) -> dict[str, int]:
        return {
            "connections": len(self._connections),
            "requests_in_flight": self.in_flight,
            "requests": self.requests,
            "requests_malformed": self.malformed,
            "requests_failed": self.failed,
            "connections_turned_away": self.turned_away,
            "connections_stalled": self.stalled,
            "upgraded": sum(type(connection) is Upgraded for connection in self._connections),
        }


def _too_late(method: bytes, timeout_s: float) -> AvowError:
    if method in (b"GET", b"HEAD"):
        return Offline(f"no answer within {timeout_s:g} s; nothing was changed. Try again, or use another peer")
    return Unknown(f"no answer within {timeout_s:g} s; the request may or may not have taken effect. Try again")


class _TaskWatcher:
    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def gone(self) -> None:
        self._task.cancel()

    def expired(self) -> None:
        """Tasks have their own timeout."""
