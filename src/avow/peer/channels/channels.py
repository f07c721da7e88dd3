"""The channels of one peer: they are kept here, get their roles here, and are told here what has changed.

A role hears from its client through the channel's hooks, and from the node through answers. What neither of them says
is noticed by looking, after each turn of the loop in which the peer did something, and only while there are channels:

    lanes or subscriptions changed   subscribers and readers look at what is theirs now
    anything                         observers look at the lanes
    no quorum for a while            whoever reads is sent elsewhere: nothing new will be seen here

A peer that goes down tells its channels so, and waits a moment until their memberships have ended too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from avow.channel.frames import EndCode
from avow.channel.keeping import Keeper
from avow.errors import Offline
from avow.peer.channels.figures import Figures
from avow.peer.channels.following import Reader
from avow.peer.channels.guards import guarded
from avow.peer.channels.observing import Observer
from avow.peer.channels.subscribing import Subscriber, will_be_back

if TYPE_CHECKING:
    from collections.abc import Callable

    from avow.channel.endpoint import Channel
    from avow.channel.sockets import SocketUser
    from avow.errors import ChannelFailed
    from avow.peer.channels.opening import Opening, Role
    from avow.peer.process import Peer

ROLES: Final = ("producer", "subscriber", "reader", "observer")
OFFLINE_S: Final = 2.0
CLOSE_S: Final = 1.0
LINGER_S: Final = 5.0  # for a client whose lanes were shared out anew to come back
_PAUSE_S: Final = 0.01


class Channels:
    """Made on the loop that the peer runs on, before it listens."""

    def __init__(self, peer: Peer, *, channels_max: int, window_s: float) -> None:
        self._peer = peer
        self.figures = Figures()
        self._keeper = Keeper(window_s=window_s, channels_max=channels_max)
        self._open: dict[bytes, tuple[str, Channel]] = {}
        self._followers: dict[bytes, tuple[Channel, Subscriber | Reader]] = {}
        self._observers: dict[bytes, tuple[Channel, Observer]] = {}
        self._seen: tuple[int, int, int] = (0, 0, 0)
        self._offline_since = 0.0  # 0: it is not
        self._lingering: dict[bytes, float] = {}  # channels that have ended and keep their place, until then
        peer.node.housekeeping.channels = self  # see __contains__

    def accept(self, opening: Opening) -> SocketUser:
        """What a new socket talks to."""
        return self._keeper.accept(opening.purpose, partial(self._begin, opening))

    def __contains__(self, key: object) -> bool:
        """For housekeeping: the place of any other channel among the readers of a subscriber is given up."""
        return key in self._open or self._lingering.get(key, 0.0) > self._peer.now()  # type: ignore[call-overload]

    def _begin(self, opening: Opening, channel: Channel) -> None:
        key = channel.core.channel
        self._open[key] = opening.role, channel  # before it joins anything: see housekeeping
        try:
            role = opening.make(self._peer, channel, self.figures)
        except BaseException:
            del self._open[key]
            raise
        self.figures.opened += 1
        channel.on_end = partial(self._ended, key, channel.on_end)
        self._watch(key, channel, role)

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
        del self._open[key]
        now = self._peer.now()
        self._lingering = {known: until for known, until in self._lingering.items() if until > now}
        if will_be_back(failure):
            self._lingering[key] = now + LINGER_S
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
            self._mind_quorum()

    def _mind_quorum(self) -> None:
        now = self._peer.now()
        if self._peer.node.metadata.core.online(now):
            self._offline_since = 0.0
            return
        self._offline_since = self._offline_since or now
        if now - self._offline_since > OFFLINE_S:
            self._offline_since = 0.0
            error = Offline("this peer is cut off from a quorum and shows nothing new; ask another peer")
            for channel, _ in list(self._followers.values()):
                channel.fail(error)

    # ------------------------------------------------------------------ the whole

    async def close(self) -> None:
        """Every client hears that this peer is going. Memberships that do not end in time are ended by others."""
        reading = any(role == "subscriber" for role, _ in self._open.values())
        self._keeper.close(EndCode.GOING)
        deadline = self._peer.now() + CLOSE_S
        while reading and self._is_member() and self._peer.now() < deadline:
            await asyncio.sleep(_PAUSE_S)

    def _is_member(self) -> bool:
        node = self._peer.node
        return any(member.peer == node.me for _, _, member in node.metadata.state.catalog.readers())

    def statistics(self) -> dict[str, Any]:
        kept, figures = self._keeper.statistics(), self.figures
        roles = Counter(role for role, _ in self._open.values())
        return {
            "open": {role: roles[role] for role in ROLES},
            "detached": kept["detached"],
            "suspended": sum(channel.suspended for _, channel in self._open.values()),
            "opened": figures.opened,
            "resumed": kept["resumed"],
            "expired": kept["expired"],
            "refused": kept["refused"],
            "messages_received": figures.received,
            "messages_pushed": figures.pushed,
        }
