"""Channels between applications, without a peer or a queue: one listens, others dial.

    listener = await listen(begin)                    # begin(channel) sets the hooks of each new channel
    channel = await connect_channel(listener.url)     # in another process, from `avow.channel.dialing`

A listener accepts WebSockets on a port of its own. It asks nobody who they are: let it listen on loopback, or give it a
TLS context that asks for certificates. A channel is resumed on the path it was opened with.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from avow.channel.endpoint import Channel
from avow.channel.frames import EndCode
from avow.channel.keeping import Keeper
from avow.channel.protocol import Bounds
from avow.channel.websocket import PATIENCE, Patience, accept_raw

CHANNELS_MAX: Final = 1_024
CLOSE_S: Final = 2.0  # for the other ends to take their leave
_PAUSE_S: Final = 0.01


class ChannelListener:
    """Made by `listen`."""

    def __init__(self, keeper: Keeper, server: asyncio.Server, *, secure: bool) -> None:
        self._keeper, self._server = keeper, server
        bound = server.sockets[0].getsockname()
        self.address: tuple[str, int] = (bound[0], bound[1])
        host = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        self.url = f"{'wss' if secure else 'ws'}://{host}:{bound[1]}/"

    async def close(self, code: EndCode = EndCode.GOING) -> None:
        """Take nothing new, end all channels, and let what was said last leave."""
        loop = asyncio.get_running_loop()
        self._server.close()
        self._keeper.close(code)
        deadline = loop.time() + CLOSE_S
        while self._keeper.statistics()["sockets"] and loop.time() < deadline:
            await asyncio.sleep(_PAUSE_S)
        self._keeper.cut()

    def statistics(self) -> dict[str, int]:
        return self._keeper.statistics()


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
    """Port 0 takes a free one. Raises OSError when the address cannot be had."""
    keeper = Keeper(window_s=window_s, channels_max=channels_max, bounds=bounds)
    factory = accept_raw(lambda request: keeper.accept(request.path, begin), patience=patience)
    server = await asyncio.get_running_loop().create_server(factory, host, port, ssl=tls, backlog=CHANNELS_MAX)
    return ChannelListener(keeper, server, secure=tls is not None)
