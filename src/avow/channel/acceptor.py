"""Accepts connections for a protocol, and leaves none open when it is closed.

The TLS server of an event loop exposes a connection only after its TLS handshake. Until then nothing owns a connection
whose other end is slow or silent: it outlives its server, and its handshake may succeed after everything else has
stopped. So a `TlsAcceptor` accepts sockets itself and tracks each of them until its handshake has ended.

After `close`, each accepted connection is either closed or owned by its protocol: `connection_made` was called.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final, TypeAlias

ProtocolFactory: TypeAlias = Callable[[], asyncio.BaseProtocol]
Acceptor: TypeAlias = "PlainAcceptor | TlsAcceptor"

ACCEPT_AGAIN_S: Final = 0.1  # when the process has no file descriptor left for another connection
_KNOWN_TURNS: Final = 2  # from accept to `connection_made`: one in uvloop, two in asyncio
_LOG: Final = logging.getLogger("avow.acceptor")


async def open_acceptor(
    factory: ProtocolFactory,
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None,
    backlog: int,
    handshake_s: float,
    handshakes_max: int,
) -> Acceptor:
    """Listen; port 0 picks a free port. Raises OSError if the address cannot be bound."""
    loop = asyncio.get_running_loop()
    if tls is None:
        return PlainAcceptor(await loop.create_server(factory, host, port, backlog=backlog))
    listening = await _listening(loop, host, port, backlog)
    return TlsAcceptor(factory, listening, tls, handshake_s=handshake_s, handshakes_max=handshakes_max)


class PlainAcceptor:
    """Without TLS the protocol gets a connection one or two turns of the event loop after it was accepted."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        bound = server.sockets[0].getsockname()
        self.address: tuple[str, int] = (bound[0], bound[1])

    async def close(self) -> None:
        self._server.close()
        for _ in range(_KNOWN_TURNS):
            await asyncio.sleep(0)


class TlsAcceptor:
    """Made by `open_acceptor`. Beyond `handshakes_max` handshakes at the same time, connections are closed at once."""

    def __init__(
        self,
        factory: ProtocolFactory,
        listening: list[socket.socket],
        tls: ssl.SSLContext,
        *,
        handshake_s: float,
        handshakes_max: int,
    ) -> None:
        self._factory, self._listening, self._tls = factory, listening, tls
        self._handshake_s, self._handshakes_max = handshake_s, handshakes_max
        self._loop = asyncio.get_running_loop()
        self._handshakes: dict[socket.socket, asyncio.Task[None]] = {}
        self._closed = False
        bound = listening[0].getsockname()
        self.address: tuple[str, int] = (bound[0], bound[1])
        for each in listening:
            self._loop.add_reader(each, self._accept, each)

    async def close(self) -> None:
        """Stop listening, and cut every connection whose handshake has not ended."""
        self._closed = True
        for listening in self._listening:
            self._loop.remove_reader(listening)
            listening.close()
        for accepted in self._handshakes:
            # The transport owns the descriptor, so it is not closed here. After a shutdown the transport reads an end
            # of file in any state. Cancelling the task does not work: uvloop ignores that before the handshake begins.
            with contextlib.suppress(OSError):
                accepted.shutdown(socket.SHUT_RDWR)
        await asyncio.gather(*self._handshakes.values())

    def _accept(self, listening: socket.socket) -> None:
        try:
            accepted, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            _LOG.warning("cannot accept a connection (%s); trying again in %g s", error, ACCEPT_AGAIN_S)
            self._loop.remove_reader(listening)
            self._loop.call_later(ACCEPT_AGAIN_S, self._accept_again, listening)
            return
        if len(self._handshakes) >= self._handshakes_max:
            accepted.close()
            return
        accepted.setblocking(False)
        self._handshakes[accepted] = self._loop.create_task(self._handshake(accepted))

    def _accept_again(self, listening: socket.socket) -> None:
        if not self._closed:
            self._loop.add_reader(listening, self._accept, listening)

    async def _handshake(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._factory, accepted, ssl=self._tls, ssl_handshake_timeout=self._handshake_s
            )
        except OSError as error:  # among them ssl.SSLError; the transport has closed the socket
            _LOG.debug("TLS handshake failed: %s", error)
        finally:
            del self._handshakes[accepted]


async def _listening(loop: asyncio.AbstractEventLoop, host: str, port: int, backlog: int) -> list[socket.socket]:
    """One socket for each address of the host, as the event loop's own server does."""
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with contextlib.ExitStack() as opened:
        sockets = []
        for family, address in dict.fromkeys((each[0], each[4]) for each in found):
            one = opened.enter_context(socket.create_server(address, family=family, backlog=backlog))
            one.setblocking(False)
            sockets.append(one)
        opened.pop_all()
    return sockets
