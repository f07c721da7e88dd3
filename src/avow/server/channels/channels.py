"""The channels of one peer: registers them, gives each its role, and notifies the roles of changes.

A role gets its client's messages through the channel's hooks, and the node's answers through callbacks. All other
changes are detected by polling, after each turn of the loop in which the peer did something, while there are channels:

    lanes or subscriptions changed   subscribers and readers check which lanes are theirs
    anything                         observers check the lanes
    no quorum for a while            channels that read are closed: this peer learns of nothing new

A peer that stops ends its channels, and waits a moment until their memberships have ended too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

from avow.channel.protocol.frames import EndCode
from avow.channel.registry import Registry
from avow.errors import Offline
from avow.server.channels.channel_memory import ChannelMemory
from avow.server.channels.node_requests import guarded
from avow.server.channels.observer import Observer
from avow.server.channels.reader import Reader
from avow.server.channels.subscriber import Subscriber, will_be_back

if TYPE_CHECKING:
    from collections.abc import Callable

    from avow.channel.endpoint import Channel
    from avow.channel.transports.socket import SocketUser
    from avow.errors import ChannelFailed
    from avow.server.byte_budget import ByteBudget
    from avow.server.channels.opening import Opening, Role
    from avow.server.process import Peer

ROLES: Final = ("producer", "subscriber", "reader", "observer")
OFFLINE_S: Final = 2.0
CLOSE_S: Final = 1.0
LINGER_S: Final = 5.0  # for a client to come back after its lanes were reassigned
_PAUSE_S: Final = 0.01


class ChannelCounters:
    __slots__ = ("opened", "pushed", "received")

    def __init__(self) -> None:
        self.opened = 0  # channels opened; resumed ones are not counted again
        self.received = 0  # channel messages from clients
        self.pushed = 0  # channel messages to clients


class Channels:
    """Created on the loop of the peer, before it listens."""

    def __init__(self, peer: Peer, *, budget: ByteBudget, channels_max: int, window_s: float) -> None:
        self._peer = peer
        self.counters = ChannelCounters()
        self._registry = Registry(window_s=window_s, channels_max=channels_max)
        self._memory = ChannelMemory(budget)
        self._open: dict[bytes, tuple[str, Channel]] = {}
        self._followers: dict[bytes, tuple[Channel, Subscriber | Reader]] = {}
        self._observers: dict[bytes, tuple[Channel, Observer]] = {}
        self._seen: tuple[int, int, int] = (0, 0, 0)
        self._offline_since = 0.0  # 0: online
        # Until when each channel keeps its membership of a subscriber: an open channel always, an ended one for a
        # while, because its client may come back. Housekeeping ends every other membership.
        self._places: dict[bytes, float] = {}
        peer.node.housekeeping.channels = self._places

    def accept(self, opening: Opening) -> SocketUser:
        """The user of a new socket."""
        return self._registry.accept(opening.purpose, partial(self._begin, opening))

    def _begin(self, opening: Opening, channel: Channel) -> None:
        key = channel.core.channel
        self._open[key] = opening.role, channel
        self._places[key] = inf  # before it joins: see housekeeping
        try:
            role = opening.make(self._peer, channel, self.counters)
        except BaseException:
            del self._open[key], self._places[key]
            raise
        self.counters.opened += 1
        self._bound(key, channel, role)
        channel.on_end = partial(self._ended, key, channel.on_end)
        self._watch(key, channel, role)

    def _bound(self, key: bytes, channel: Channel, role: Role) -> None:
        """The channel holds bytes of the peer's budget from here on."""
        held = self._memory.open(key, channel)
        if isinstance(role, Observer | Subscriber | Reader):
            role.bound(held)
        take = channel.on_messages

        def received(values: list[memoryview]) -> None:
            assert take is not None, "every role takes messages"
            take(values)
            self._memory.received(key)

        channel.on_messages = received

    def _watch(self, key: bytes, channel: Channel, role: Role) -> None:
        if isinstance(role, Observer):
            self._observers[key] = channel, role
        elif isinstance(role, Subscriber | Reader):
            self._followers[key] = channel, role
        if self._observers or self._followers:
            self._peer.on_turn = self._turn

    def _ended(
        self, key: bytes, then: Callable[[ChannelFailed | None], None] | None, failure: ChannelFailed | None
    ) -> None:
        del self._open[key], self._places[key]
        self._memory.close(key)
        now = self._peer.now()
        for known in [known for known, until in self._places.items() if until <= now]:
            del self._places[known]
        if will_be_back(failure):
            self._places[key] = now + LINGER_S
        self._followers.pop(key, None)
        self._observers.pop(key, None)
        if not self._observers and not self._followers:
            self._peer.on_turn = None
        if then is not None:
            then(failure)

    # ------------------------------------------------------------------ after each turn of the loop

    def _turn(self) -> None:
        state = self._peer.node.metadata.state
        now = (state.subscribed_at, state.lanes.next_number, len(state.lanes.by_number))
        if now != self._seen:
            self._seen = now
            for channel, follower in list(self._followers.values()):
                guarded(channel, follower.look)
            for channel, observer in list(self._observers.values()):
                guarded(channel, observer.look_around)
        for channel, observer in list(self._observers.values()):
            guarded(channel, observer.look)
        if self._followers:
            self._check_quorum()

    def _check_quorum(self) -> None:
        now = self._peer.now()
        if self._peer.node.metadata.core.online(now):
            self._offline_since = 0.0
            return
        self._offline_since = self._offline_since or now
        if now - self._offline_since > OFFLINE_S:
            self._offline_since = 0.0
            error = Offline("this peer has no contact with a quorum and gets no new messages; use another peer")
            for channel, _ in list(self._followers.values()):
                channel.fail(error)

    # ------------------------------------------------------------------ all channels

    async def close(self) -> None:
        """Notifies every client that this peer stops. Other peers end the memberships that do not end in time."""
        reading = any(role == "subscriber" for role, _ in self._open.values())
        self._registry.close(EndCode.GOING)
        deadline = self._peer.now() + CLOSE_S
        while reading and self._is_member() and self._peer.now() < deadline:
            await asyncio.sleep(_PAUSE_S)

    def _is_member(self) -> bool:
        node = self._peer.node
        return any(member.peer == node.me for _, _, member in node.metadata.state.catalog.readers())

    def statistics(self) -> dict[str, Any]:
        kept, counters = self._registry.statistics(), self.counters
        roles = Counter(role for role, _ in self._open.values())
        return {
            "open": {role: roles[role] for role in ROLES},
            "detached": kept["detached"],
            "paused": self._memory.paused,
            "suspended": sum(channel.suspended for _, channel in self._open.values()),
            "opened": counters.opened,
            "resumed": kept["resumed"],
            "expired": kept["expired"],
            "refused": kept["refused"],
            "messages_received": counters.received,
            "messages_pushed": counters.pushed,
        }
