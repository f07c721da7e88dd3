"""Channels between applications, without a peer or a queue: one process listens, others connect.

    listener = await listen(begin)                    # begin(channel) sets the hooks of each new channel
    channel = await connect_channel(listener.url)     # in another process, from `avow.channel.connector`

A listener accepts WebSockets on a port of its own. It does not authenticate: listen on loopback, or pass a TLS context
that requires client certificates. A channel must be resumed on the path it was opened with.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from avow.channel.acceptor import Acceptor, open_acceptor
from avow.channel.endpoint import Channel
from avow.channel.protocol.events import Bounds
from avow.channel.protocol.frames import EndCode
from avow.channel.registry import Registry
from avow.channel.transports.websocket_handshake import PATIENCE, Patience, accept_raw

CHANNELS_MAX: Final = 1_024
CLOSE_S: Final = 2.0  # for the other ends to close their sockets
_PAUSE_S: Final = 0.01
_CLOSE_TURNS: Final = 100


class ChannelListener:
    """Made by `listen`."""

    def __init__(
        self, registry: Registry, acceptor: Acceptor, unopened: set[asyncio.Transport], *, secure: bool
    ) -> None:
        self._registry, self._acceptor, self._unopened = registry, acceptor, unopened
        self.address = name, port = acceptor.address
        host = f"[{name}]" if ":" in name else name
        self.url = f"{'wss' if secure else 'ws'}://{host}:{port}/"

    async def close(self, code: EndCode = EndCode.GOING) -> None:
        """Stop accepting, end all channels, and wait until their last packets were sent."""
        loop = asyncio.get_running_loop()
        await self._acceptor.close()
        for transport in tuple(self._unopened):
            transport.abort()
        self._registry.close(code)
        deadline = loop.time() + CLOSE_S
        while self._registry.statistics()["sockets"] and loop.time() < deadline:
            await asyncio.sleep(_PAUSE_S)
        self._registry.cut()
        for _ in range(_CLOSE_TURNS):  # the event loop calls connection_lost after one or two turns
            if not self._unopened and not self._registry.statistics()["sockets"]:
                return
            await asyncio.sleep(0)

    def statistics(self) -> dict[str, int]:
        return self._registry.statistics()


async def listen(
    begin: Callable[[Channel], None],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: ssl.SSLContext | None = None,
    window_s: float = 30.0,
    bounds: Bounds | None = None,
    channels_max: int = CHANNELS_MAX,
    patience: Patience = PATIENCE,
) -> ChannelListener:
    """Port 0 picks a free port. Raises OSError if the address cannot be bound."""
    registry = Registry(window_s=window_s, channels_max=channels_max, bounds=bounds)
    unopened: set[asyncio.Transport] = set()
    factory = accept_raw(lambda request: registry.accept(request.path, begin), patience=patience, unopened=unopened)
    acceptor = await open_acceptor(
        factory,
        host,
        port,
        tls=tls,
        backlog=CHANNELS_MAX,
        handshake_s=patience.handshake_s,
        handshakes_max=CHANNELS_MAX,
    )
    return ChannelListener(registry, acceptor, unopened, secure=tls is not None)
