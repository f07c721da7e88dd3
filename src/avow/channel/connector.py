"""The connecting end of a channel: opens the first socket, and a new one whenever the current one is lost.

A lost socket is not a failure and is not reported to the application; until the next socket is open, messages wait.
The first attempt after a loss is made at once. After failed attempts there is a random pause below a bound that
doubles, so that a thousand clients of a restarted peer do not reconnect at the same moment.

Reconnecting stops when the other end reports that the channel has ended, or after `patience_s` without a socket: then
this end ends the channel with EXPIRED and hands back the pending messages.
"""

from __future__ import annotations

import asyncio
import math
import random
import ssl
from collections.abc import Awaitable, Callable, Sequence
from os import urandom
from typing import TYPE_CHECKING, Final

from avow import limits
from avow.channel.endpoint import Attachment, Channel
from avow.channel.protocol.core import Core
from avow.channel.protocol.events import Bounds, Ended
from avow.channel.protocol.frames import EndCode
from avow.channel.transports import websocket_handshake
from avow.channel.transports.websocket_handshake import PATIENCE, Patience
from avow.errors import AvowError, Offline

if TYPE_CHECKING:
    from avow.channel.stores import PendingStore
    from avow.channel.transports.socket import Socket, SocketUser

ATTEMPT_S: Final = 10.0  # to open a socket and receive a Hello on it
PAUSE_S: Final = 0.05
_NOTHING_S: Final = 0.001
PAUSE_S_MAX: Final = 2.0


async def open_channel(
    dial: Callable[[SocketUser], Awaitable[Socket]],
    *,
    bounds: Bounds | None = None,
    window_s: float = 0,
    store: PendingStore | None = None,
    patience_s: float = 30.0,
    last_commit: int = 0,
    rng: Callable[[], float] = random.random,
    begin: Callable[[Channel], None] | None = None,
) -> Channel:
    """Open a channel and return it after the other end's Hello. `begin` sets its hooks before anything can arrive.

    Raises what `dial` raises at the first attempt, ChannelFailed when the other end refuses, Offline when it does not
    answer for `patience_s`. `window_s` is how long the other end is asked to keep the channel without a socket; 0: its
    default.
    """
    core = Core(
        channel=urandom(limits.CHANNEL_ID_SIZE_BYTES),
        token=urandom(limits.CHANNEL_ID_SIZE_BYTES),
        initiator=True,
        bounds=bounds,
        window_s=math.ceil(window_s),
        last_commit=last_commit,
    )
    connector = Connector(dial, patience_s=patience_s, rng=rng)
    channel = Channel(core, connector, store=store)
    if begin is not None:
        begin(channel)
    try:
        await connector.first(channel)
    except BaseException:
        channel.abort("the first connection failed")
        raise
    return channel


async def connect_channel(
    url: str,
    *,
    headers: Sequence[tuple[str, str]] = (),
    tls: ssl.SSLContext | None = None,
    patience: Patience = PATIENCE,
    bounds: Bounds | None = None,
    window_s: float = 0,
    store: PendingStore | None = None,
    patience_s: float = 30.0,
    begin: Callable[[Channel], None] | None = None,
) -> Channel:
    """`open_channel` over WebSockets to one address: `ws://host:port/path`, or `wss`. Raises what `open_channel` and
    `websocket_handshake.dial` raise."""

    async def dial_again(user: SocketUser) -> Socket:
        return await websocket_handshake.dial(
            url, user, headers=headers, tls=tls, timeout_s=ATTEMPT_S, patience=patience
        )

    return await open_channel(
        dial_again, bounds=bounds, window_s=window_s, store=store, patience_s=patience_s, begin=begin
    )


class Connector:
    """Connects an initiator's channel. Its one task exists while the channel has no socket."""

    def __init__(
        self, dial: Callable[[SocketUser], Awaitable[Socket]], *, patience_s: float, rng: Callable[[], float]
    ) -> None:
        self._dial, self._patience_s, self._rng = dial, patience_s, rng
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._opening = True
        self._attempt_ended = asyncio.Event()  # by a Hello, a lost socket or the end of the channel
        self._tries = 0  # since the last progress
        self._connected_at = 0.0  # 0: never
        self._down_since = self._loop.time()
        self._progress = (0, 0, 0, 0)

    async def first(self, channel: Channel) -> None:
        while not (channel.connected or channel.ended):
            if self._left_s() <= 0:
                raise Offline(
                    f"the other end did not answer within {self._patience_s:g} s; nothing was sent. Try again"
                )
            await self._attempt(channel)
        self._opening, self._tries = False, 0
        if not self._connected_at and (failed := await channel.wait_ended()) is not None:
            raise failed

    # ------------------------------------------------------------------ the channel calls

    def connected(self, channel: Channel) -> None:  # noqa: ARG002
        self._connected_at = self._loop.time()
        self._attempt_ended.set()

    def detached(self, channel: Channel, reason: str) -> None:  # noqa: ARG002
        if self._attempt_ended.is_set():  # it was connected until now
            self._down_since = self._loop.time()
            self._reset_tries(channel)
        self._attempt_ended.set()
        if self._task is None and not self._opening:
            self._task = self._loop.create_task(self._reconnect(channel))

    def channel_ended(self, channel: Channel, ended: Ended) -> None:  # noqa: ARG002
        self._attempt_ended.set()
        if self._task is not None:
            self._task.cancel()

    def _reset_tries(self, channel: Channel) -> None:
        """Count attempts from 0 after a socket that carried something or lasted at least PAUSE_S_MAX."""
        core = channel.core
        progress = core.out.received_to, core.out.acked, core.incoming.received_to, core.incoming.commits_received_to
        if progress != self._progress or self._down_since - self._connected_at >= PAUSE_S_MAX:
            self._progress, self._tries = progress, 0

    # ------------------------------------------------------------------ connecting

    async def _reconnect(self, channel: Channel) -> None:
        while not (channel.connected or channel.ended):
            if self._left_s() <= 0:
                channel.end(EndCode.EXPIRED, text=f"no connection for {self._patience_s:g} s")
                break
            try:
                await self._attempt(channel)
            except AvowError as error:
                if error.definite and not error.retriable:
                    channel.fail(error)
            except OSError:
                continue
            except Exception as error:
                channel.application_raised(error)
        self._task = None

    async def _attempt(self, channel: Channel) -> None:
        """One attempt, after a pause if the attempts before it failed."""
        if self._tries:
            bound_s = min(PAUSE_S_MAX, PAUSE_S * 2.0 ** min(self._tries - 1, 16))
            await asyncio.sleep(max(0.0, min(self._left_s(), self._rng() * bound_s)))
        self._tries += 1
        self._attempt_ended.clear()
        socket: Socket | None = None
        try:
            async with asyncio.timeout(max(0.0, min(self._left_s(), ATTEMPT_S))):
                socket = await self._dial(Attachment(channel))
                await self._attempt_ended.wait()
        except TimeoutError:
            if socket is not None:
                socket.abort()

    def _left_s(self) -> float:
        """Time left of the patience. Less than a millisecond counts as 0: sleeping for it may not advance the clock."""
        left_s = self._down_since + self._patience_s - self._loop.time()
        return left_s if left_s > _NOTHING_S else 0.0
