"""Opens channels to peers, and interprets how they end.

A channel is bound to the peer it was opened at. If its socket is lost, reconnecting to that peer resumes it without
loss. A client tries this only briefly: a dead peer refuses connections, and the cluster continues without it. It
reconnects for about a second, or until two connections are refused; then the channel ends, and its owner opens a new
one at another peer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlencode

from avow.channel.connector import open_channel
from avow.channel.protocol.frames import EndCode
from avow.channel.transports.websocket_handshake import Patience
from avow.client.routing import Backoff
from avow.errors import AvowError, ChannelFailed, Offline, UnknownQueue
from avow.wire.error_body import errors_from

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from avow.channel.endpoint import Channel
    from avow.channel.protocol.events import Bounds
    from avow.channel.transports.socket import Socket, SocketUser
    from avow.client.cluster import Cluster
    from avow.client.peer_connection import PeerConnection

T = TypeVar("T")

OPEN_S: Final = 5.0
RESUME_S: Final = 1.0
_REFUSED_MAX: Final = 2
_PATIENCE: Final = Patience(ping_s=2.0, silent_s=6.0, close_s=1.0, handshake_s=OPEN_S)


async def open_at(
    cluster: Cluster,
    peer: PeerConnection,
    parameters: Mapping[str, str],
    *,
    bounds: Bounds | None = None,
    begin: Callable[[Channel], None] | None = None,
) -> Channel:
    """Open a channel to this peer. `begin` sets its hooks before anything can arrive.

    Raises the peer's refusal, or Offline if it cannot be reached.
    """
    dial = Dialer(cluster, peer, f"/v1/channel?{urlencode(parameters)}")

    def ready(channel: Channel) -> None:
        dial.channel = channel
        cluster.channels.add(channel)
        if begin is not None:
            begin(channel)

    try:
        channel = await open_channel(dial, bounds=bounds, patience_s=OPEN_S, begin=ready)
    except ChannelFailed as failed:
        raise refusal_in(failed) or Offline(f"{peer.address.url}: {failed}") from failed
    peer.answered()
    return channel


async def open_somewhere(
    cluster: Cluster,
    open_to: Callable[[PeerConnection], Awaitable[T]],
    *,
    deadline: float,
    preferred: int = 0,
    after: PeerConnection | None = None,
) -> T:
    """Try `open_to` with one peer after another and return the first result; `preferred` is tried first, `after` last.

    Raises a refusal that is the same at every peer, or at the deadline the last peer's error.
    """
    backoff, unknown_count = Backoff(cluster.random), 0
    while True:
        cluster.require_open()
        peer = cluster.choose(preferred=preferred, after=after)
        try:
            return await open_to(peer)
        except AvowError as error:
            # A peer that lags may not know a new queue yet: UnknownQueue counts when every peer answers it.
            unknown = isinstance(error, UnknownQueue)
            unknown_count += unknown
            if is_final(error) and (not unknown or unknown_count >= len(cluster.peers)):
                raise
            if cluster.now() >= deadline:
                raise
            preferred = cluster.follow_hint(error)
        after = peer
        await asyncio.sleep(backoff.next_s(named=preferred > 0))


class Dialer:
    """Opens the sockets of one channel to one peer: the first, and new ones for a short time after each loss."""

    def __init__(self, cluster: Cluster, peer: PeerConnection, target: str) -> None:
        self._cluster, self._peer, self._target = cluster, peer, target
        self.channel: Channel | None = None
        self._opened = False
        self._since = 0.0  # time of the loss; 0: none
        self._refused_count = 0

    async def __call__(self, user: SocketUser) -> Socket:
        left_s = OPEN_S
        if self._opened:
            self._since = self._since or self._cluster.now()
            left_s = RESUME_S - (self._cluster.now() - self._since)
            if left_s <= 0:
                self._give_up(f"reconnecting did not succeed within {RESUME_S:g} s")
        try:
            socket = await self._peer.dial(
                self._target, TrackedSocketUser(user, self._cluster.sockets), timeout_s=left_s, patience=_PATIENCE
            )
        except AvowError as error:
            self._failed(error)
            raise
        self._opened, self._since, self._refused_count = True, 0.0, 0
        return socket

    def _failed(self, error: AvowError) -> None:
        """After a peer has opened the channel once, another peer may accept what it refuses now, say after a
        restart."""
        if isinstance(error, Offline):
            self._peer.failed()
            self._cluster.refresh_soon()
            self._refused_count += isinstance(error.__cause__, ConnectionRefusedError)
        if self._opened and (is_final(error) or self._refused_count >= _REFUSED_MAX):
            self._give_up(str(error))

    def _give_up(self, why: str) -> None:
        text = f"the socket to {self._peer.address.url} was lost: {why}"
        if self.channel is not None:
            self.channel.end(EndCode.EXPIRED, text=text)
        raise Offline(f"{text}; nothing more was sent. Open a channel at another peer")


class TrackedSocketUser:
    """Wraps a socket's user so that the client can close all sockets when it is closed."""

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
    """The error with which the peer ended the channel; None if the peer did not refuse it."""
    if failed.reason not in ("REFUSED", "MOVED") or not failed.name:
        return None
    text = str(failed).partition(f"{failed.reason}: ")[2].rpartition("); ")[0]  # the peer's part of the message
    return errors_from(failed.name, text or str(failed), {})


def is_final(error: AvowError | None) -> bool:
    """Whether the error is definite and the same at every peer."""
    return error is not None and error.definite and not error.retriable
