"""The end of a channel that dials: it opens the first socket, and another one whenever that is lost.

A socket that is lost is no failure, so nobody is told; the channel is without one for a while, and what is sent waits.
The first try after a loss is made at once. After tries that got nowhere there is a pause, drawn at random below a bound
that doubles: a thousand clients of a peer that was restarted shall not come back in the same moment.

What ends the waiting is either the other end, which says what became of the channel, or `patience_s`: after that long
without a socket this end gives up by itself, EXPIRED, and hands back what is pending.
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
from avow.channel import websocket
from avow.channel.endpoint import Attachment, Channel
from avow.channel.frames import EndCode
from avow.channel.protocol import Bounds, Core, Ended
from avow.channel.websocket import PATIENCE, Patience
from avow.errors import AvowError, Offline

if TYPE_CHECKING:
    from avow.channel.sockets import Socket, SocketUser
    from avow.channel.stores import PendingStore

ATTEMPT_S: Final = 10.0  # to open a socket and hear a Hello on it
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
    """A channel that has heard the other end. `begin` sets its hooks before anything can come in.

    Raises what `dial` raises at the first try, ChannelFailed when the other end refuses, Offline when it says nothing
    for `patience_s`. `window_s` is how long the other end is asked to keep the channel without a socket; 0: as long as
    it usually does.
    """
    core = Core(
        channel=urandom(limits.CHANNEL_ID_SIZE_BYTES),
        token=urandom(limits.CHANNEL_ID_SIZE_BYTES),
        initiator=True,
        bounds=bounds,
        window_s=math.ceil(window_s),
        last_commit=last_commit,
    )
    dialling = Dialling(dial, patience_s=patience_s, rng=rng)
    channel = Channel(core, dialling, store=store)
    if begin is not None:
        begin(channel)
    try:
        await dialling.first(channel)
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
    """`open_channel` over WebSockets to one address: `ws://host:port/path`, or `wss`. Raises as that and `dial` do."""

    async def dial_again(user: SocketUser) -> Socket:
        return await websocket.dial(url, user, headers=headers, tls=tls, timeout_s=ATTEMPT_S, patience=patience)

    return await open_channel(
        dial_again, bounds=bounds, window_s=window_s, store=store, patience_s=patience_s, begin=begin
    )


class Dialling:
    """Owns an initiator's channel. Its one task exists while the channel has no socket."""

    def __init__(
        self, dial: Callable[[SocketUser], Awaitable[Socket]], *, patience_s: float, rng: Callable[[], float]
    ) -> None:
        self._dial, self._patience_s, self._rng = dial, patience_s, rng
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._opening = True
        self._settled = asyncio.Event()  # the try under way led to a Hello, to a lost socket or to the end
        self._tries = 0  # since something was achieved
        self._connected_at = 0.0  # 0: never
        self._since = self._loop.time()  # without a socket
        self._achieved = (0, 0, 0, 0)

    async def first(self, channel: Channel) -> None:
        while not (channel.connected or channel.ended):
            if self._left_s() <= 0:
                raise Offline(f"the other end was not heard for {self._patience_s:g} s; nothing was sent. Try again")
            await self._attempt(channel)
        self._opening, self._tries = False, 0
        if not self._connected_at and (failed := await channel.wait_ended()) is not None:
            raise failed

    # ------------------------------------------------------------------ the channel calls

    def connected(self, channel: Channel) -> None:  # noqa: ARG002
        self._connected_at = self._loop.time()
        self._settled.set()

    def detached(self, channel: Channel, reason: str) -> None:  # noqa: ARG002
        if self._settled.is_set():  # it was connected until now
            self._since = self._loop.time()
            self._count_afresh(channel)
        self._settled.set()
        if self._task is None and not self._opening:
            self._task = self._loop.create_task(self._reconnect(channel))

    def over(self, channel: Channel, ended: Ended) -> None:  # noqa: ARG002
        self._settled.set()
        if self._task is not None:
            self._task.cancel()

    def _count_afresh(self, channel: Channel) -> None:
        """Tries begin anew after a socket that was of use: it carried something, or lasted."""
        core = channel.core
        achieved = core.out.received_to, core.out.acked, core.incoming.received_to, core.incoming.commits_received_to
        if achieved != self._achieved or self._since - self._connected_at >= PAUSE_S_MAX:
            self._achieved, self._tries = achieved, 0

    # ------------------------------------------------------------------ dialling

    async def _reconnect(self, channel: Channel) -> None:
        while not (channel.connected or channel.ended):
            if self._left_s() <= 0:
                channel.end(EndCode.EXPIRED, text=f"no connection was had for {self._patience_s:g} s")
                break
            try:
                await self._attempt(channel)
            except AvowError as error:
                if error.definite and not error.retriable:
                    channel.fail(error)
            except OSError:
                continue
            except Exception as error:
                channel.broke(error)
        self._task = None

    async def _attempt(self, channel: Channel) -> None:
        """One try, after a pause if those before it came to nothing."""
        if self._tries:
            bound_s = min(PAUSE_S_MAX, PAUSE_S * 2.0 ** min(self._tries - 1, 16))
            await asyncio.sleep(max(0.0, min(self._left_s(), self._rng() * bound_s)))
        self._tries += 1
        self._settled.clear()
        socket: Socket | None = None
        try:
            async with asyncio.timeout(max(0.0, min(self._left_s(), ATTEMPT_S))):
                socket = await self._dial(Attachment(channel))
                await self._settled.wait()
        except TimeoutError:
            if socket is not None:
                socket.abort()

    def _left_s(self) -> float:
        """Below a millisecond it is over: waiting for the rest of it may not move the clock."""
        left_s = self._since + self._patience_s - self._loop.time()
        return left_s if left_s > _NOTHING_S else 0.0
