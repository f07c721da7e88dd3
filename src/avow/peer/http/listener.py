"""All connections of one peer's API: who may come in, what is being answered, who has waited too long.

One timer for everything: every `sweep_s` it looks at each connection and at each request without an answer. A timer for
each request would cost as much as the request. So times here are kept to a quarter of a second, not better.

What counts is bounded here: connections, and requests that are being answered. Beyond either a client hears BUSY, at
once, which is an answer it can act on; a queue that grows is none.
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

from avow.errors import AvowError, Busy, Offline, Unknown
from avow.peer.http.connection import Connection
from avow.peer.http.exchange import Exchange
from avow.peer.http.upgrades import Upgraded

TURNED_AWAY_MAX: Final = 64  # connections that are told BUSY at the same time; beyond that they are just closed
STOP_S: Final = 2.0
_LOG: Final = logging.getLogger("avow.http")


class Patience(Struct, frozen=True):
    """How long a connection may take for what, in seconds."""

    head_s: float = 10.0
    body_s: float = 30.0
    idle_s: float = 120.0
    stalled_s: float = 60.0  # an answer is not taken
    linger_s: float = 2.0
    handshake_s: float = 10.0
    sweep_s: float = 0.25


class Listener:
    """`handle` answers an exchange or sees to it that somebody does. It may raise AvowError, and nothing else."""

    def __init__(
        self,
        handle: Callable[[Exchange], None],
        *,
        connections_max: int,
        in_flight_max: int,
        request_bytes_max: int,
        tls: ssl.SSLContext | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._handle = handle
        self._connections_max = connections_max
        self._in_flight_max = in_flight_max
        self.request_bytes_max = request_bytes_max
        self._tls = tls
        self.patience = patience or Patience()
        self.date = b""
        self.now: Callable[[], float]  # both are the loop's, from `start` on
        self.soon: Callable[[Callable[[], None]], object]
        self.stopping = False
        self.requests = self.malformed = self.turned_away = self.failed = 0
        self._connections: dict[Connection | Upgraded, None] = {}
        self._open: dict[Exchange, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Where it listens; port 0 takes a free one. Raises OSError when the address cannot be had."""
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self.soon = self._loop.call_soon
        self._server = await self._loop.create_server(
            lambda: Connection(self),
            host,
            port,
            ssl=self._tls,
            backlog=1024,
            ssl_handshake_timeout=self.patience.handshake_s if self._tls else None,
        )
        self._tick()
        bound = self._server.sockets[0].getsockname()
        return bound[0], bound[1]

    async def stop(self) -> None:
        """Take nothing new, finish what is in flight within STOP_S, then cut."""
        self.stopping = True
        if self._server is None:  # it never listened: something before it failed, and that is what is to be told
            return
        self._server.close()
        for connection in list(self._connections):
            connection.finish()
        deadline = self.now() + STOP_S
        while (self._open or self._connections) and self.now() < deadline:
            await asyncio.sleep(0.01)
        for task in list(self._tasks):
            task.cancel()
        for connection in list(self._connections):
            connection.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()

    # ------------------------------------------------------------------ connections call

    @property
    def crowded(self) -> bool:
        return self.stopping or len(self._connections) > self._connections_max

    def joined(self, connection: Connection) -> bool:
        """False: there is not even room to tell it so."""
        if len(self._connections) >= self._connections_max:
            self.turned_away += 1
        if len(self._connections) >= self._connections_max + TURNED_AWAY_MAX:
            return False
        self._connections[connection] = None
        return True

    def left(self, connection: Connection | Upgraded) -> None:
        self._connections.pop(connection, None)

    def handed_over(self, connection: Connection, upgraded: Upgraded) -> None:
        """It goes on with another protocol, and still counts."""
        del self._connections[connection]
        self._connections[upgraded] = None

    def opened(self, exchange: Exchange) -> None:
        self.requests += 1
        self._open[exchange] = None
        try:
            self._handle(exchange)
        except AvowError as error:
            exchange.fail(error)
        except Exception:
            self._crashed(exchange)

    def closed(self, exchange: Exchange) -> None:
        self._open.pop(exchange, None)

    # ------------------------------------------------------------------ handlers call

    def check_room(self) -> None:
        """Raises Busy when too many requests are being answered already."""
        if len(self._open) > self._in_flight_max:
            raise Busy("this peer answers as many requests as it takes at once; nothing was done. Try again")

    def run(self, exchange: Exchange, work: Coroutine[Any, Any, None], *, timeout_s: float) -> None:
        """Answer an exchange from a task, which is cancelled when the client hangs up."""
        task = self._loop.create_task(self._watched(exchange, work, timeout_s))
        self._tasks.add(task)
        exchange.watcher = _TaskWatcher(task)

        def finished(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            work.close()  # a task that is cancelled before its first step leaves it unawaited

        task.add_done_callback(finished)

    async def _watched(self, exchange: Exchange, work: Coroutine[Any, Any, None], timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await work
        except AvowError as error:
            exchange.fail(error)
        except TimeoutError:
            exchange.fail(_too_late(exchange.method, timeout_s))
        except Exception:
            self._crashed(exchange)

    def _crashed(self, exchange: Exchange) -> None:
        self.failed += 1
        _LOG.exception("a handler failed: %s %.200r", exchange.method.decode("latin-1"), exchange.target)
        exchange.fail(AvowError("this peer failed at the request; whether it took effect is not known"))

    # ------------------------------------------------------------------ time

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self.patience.sweep_s, self._tick)
        self.date = f"date: {formatdate(time.time(), usegmt=True)}\r\n".encode()
        self.sweep()

    def sweep(self) -> None:
        """Whoever has waited too long hears so, or is cut off."""
        now = self.now()
        for exchange in [e for e in self._open if e.deadline and e.deadline < now]:
            if exchange.watcher is not None:
                exchange.watcher.expired()
        for connection in list(self._connections):
            connection.sweep(now)

    def statistics(self) -> dict[str, int]:
        return {
            "connections": len(self._connections),
            "requests_in_flight": len(self._open),
            "requests": self.requests,
            "requests_malformed": self.malformed,
            "requests_failed": self.failed,
            "connections_turned_away": self.turned_away,
            "upgraded": sum(type(connection) is Upgraded for connection in self._connections),
        }


def _too_late(method: bytes, timeout_s: float) -> AvowError:
    if method in (b"GET", b"HEAD"):
        return Offline(f"no answer came within {timeout_s:g} s; nothing was changed. Ask again, or another peer")
    return Unknown(f"no answer came within {timeout_s:g} s; it may or may not have happened. Ask again")


class _TaskWatcher:
    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def gone(self) -> None:
        self._task.cancel()

    def expired(self) -> None:
        """Tasks have their own timeout."""
