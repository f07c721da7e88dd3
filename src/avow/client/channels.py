"""Opening channels to peers, and what their ends mean.

A channel lives on the peer it was opened at. When its socket is lost, dialling that peer again takes it up where it
was, with nothing lost and nothing to ask. That is worth a moment and no more: a peer that is dead refuses connections,
a cluster goes on without it, and so should its clients. So a lost socket is dialled again for about a second, and less
if the connection is refused twice; then the channel is over, and whoever opened it goes to another peer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlencode

from avow.channel.dialing import open_channel
from avow.channel.frames import EndCode
from avow.channel.websocket import Patience
from avow.client.routing import Backoff
from avow.errors import AvowError, ChannelFailed, Offline, UnknownQueue
from avow.wire.failures import errors_from

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from avow.channel.endpoint import Channel
    from avow.channel.protocol import Bounds
    from avow.channel.sockets import Socket, SocketUser
    from avow.client.cluster import Cluster
    from avow.client.links import Link

T = TypeVar("T")

OPEN_S: Final = 5.0
RESUME_S: Final = 1.0
_REFUSED_MAX: Final = 2
_PATIENCE: Final = Patience(ping_s=2.0, silent_s=6.0, close_s=1.0, handshake_s=OPEN_S)


async def open_at(
    cluster: Cluster,
    link: Link,
    parameters: Mapping[str, str],
    *,
    bounds: Bounds | None = None,
    begin: Callable[[Channel], None] | None = None,
) -> Channel:
    """A channel to this peer. `begin` sets its hooks before anything can come.

    Raises what the peer refuses it with, Offline when it cannot be reached.
    """
    dial = Dial(cluster, link, f"/v1/channel?{urlencode(parameters)}")

    def ready(channel: Channel) -> None:
        dial.channel = channel
        cluster.channels.add(channel)
        if begin is not None:
            begin(channel)

    try:
        channel = await open_channel(dial, bounds=bounds, patience_s=OPEN_S, begin=ready)
    except ChannelFailed as failed:
        raise refusal_in(failed) or Offline(f"{link.address.url}: {failed}") from failed
    link.answered()
    return channel


async def open_somewhere(
    cluster: Cluster,
    open_to: Callable[[Link], Awaitable[T]],
    *,
    deadline: float,
    preferred: int = 0,
    after: Link | None = None,
) -> T:
    """What `open_to` gives for the first peer it can be had from; `preferred` is asked first, `after` last.

    Raises what no other peer would say otherwise, at the deadline what the last one said.
    """
    backoff, unknown_count = Backoff(cluster.random), 0
    while True:
        cluster.require_open()
        link = cluster.choose(preferred=preferred, after=after)
        try:
            return await open_to(link)
        except AvowError as error:
            # A peer that has not heard of a new queue yet says so too: it counts when every peer says it.
            unknown = isinstance(error, UnknownQueue)
            unknown_count += unknown
            if is_final(error) and (not unknown or unknown_count >= len(cluster.links)):
                raise
            if monotonic() >= deadline:
                raise
            preferred = cluster.follow_hint(error)
        after = link
        await asyncio.sleep(backoff.next_s(named=preferred > 0))


class Dial:
    """Sockets to one peer, for one channel: the first, and others for a short while after each loss."""

    def __init__(self, cluster: Cluster, link: Link, target: str) -> None:
        self._cluster, self._link, self._target = cluster, link, target
        self.channel: Channel | None = None
        self._opened = False
        self._since = 0.0  # of the loss; 0: none
        self._refused_count = 0

    async def __call__(self, user: SocketUser) -> Socket:
        left_s = OPEN_S
        if self._opened:
            self._since = self._since or monotonic()
            left_s = RESUME_S - (monotonic() - self._since)
            if left_s <= 0:
                self._give_up("it could not be reached again in time")
        try:
            socket = await self._link.dial(
                self._target, Watched(user, self._cluster.sockets), timeout_s=left_s, patience=_PATIENCE
            )
        except AvowError as error:
            self._failed(error)
            raise
        self._opened, self._since, self._refused_count = True, 0.0, 0
        return socket

    def _failed(self, error: AvowError) -> None:
        """What a peer refuses after it has opened the channel (it was restarted, say) another one may see otherwise."""
        if isinstance(error, Offline):
            self._link.failed()
            self._cluster.refresh_soon()
            self._refused_count += isinstance(error.__cause__, ConnectionRefusedError)
        if self._opened and (is_final(error) or self._refused_count >= _REFUSED_MAX):
            self._give_up(str(error))

    def _give_up(self, why: str) -> None:
        text = f"the socket to {self._link.address.url} was lost: {why}"
        if self.channel is not None:
            self.channel.end(EndCode.EXPIRED, text=text)
        raise Offline(f"{text}; ask another peer")


class Watched:
    """A socket's user, seen to by the client, which closes all sockets when it is closed."""

    __slots__ = ("_sockets", "_user")

    def __init__(self, user: SocketUser, sockets: set[Socket]) -> None:
        self._user, self._sockets = user, sockets

    def opened(self, socket: Socket) -> None:
        self._sockets.add(socket)
        self._user.opened(socket)

    def packet(self, socket: Socket, data: bytes | memoryview) -> None:
        self._user.packet(socket, data)

    def writable(self, socket: Socket) -> None:
        self._user.writable(socket)

    def lost(self, socket: Socket, reason: str) -> None:
        self._sockets.discard(socket)
        self._user.lost(socket, reason)


def refusal_in(failed: ChannelFailed) -> AvowError | None:
    """The error that the peer ended the channel with; None when it was none of its own."""
    if failed.reason not in ("REFUSED", "MOVED") or not failed.name:
        return None
    said = str(failed).partition(f"{failed.reason}: ")[2].rpartition("; ")[0]  # what the peer said, of all that was
    return errors_from(failed.name, said or str(failed), {})


def is_final(error: AvowError | None) -> bool:
    """Definite, and no other peer would say otherwise."""
    return error is not None and error.definite and not error.retriable
