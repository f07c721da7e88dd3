"""The place of one channel among the readers of a subscriber.

Who reads is agreed upon in the metadata lane (`avow.queue.subscriptions`). A channel joins there when it begins and
leaves when it ends; in between it looks at what this peer has applied, and finds itself where it was, or not any more:

    joining ── Done(epoch), and this peer has applied that ──► member ──► replaced, or the queue is gone: the end
       └── refused: the end

A leave that is lost is repeated by the peer's housekeeping, which knows the channels that are open.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from avow.errors import Fenced
from avow.limits import WRITE_ID_SIZE_BYTES
from avow.peer.answers import Answer, Done
from avow.peer.channels.errands import Errand
from avow.peer.channels.flights import check_there
from avow.peer.http.errors import error_of_answer
from avow.queue.commands import SubscriptionAction, SubscriptionCommand, encode
from avow.queue.subscriptions import Subscription
from avow.wire.messages import Kind

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.peer.process import Peer
    from avow.queue.catalog import Queue


class Replaced(Struct, frozen=True):
    """`name` FENCED: somebody took this very place. Without that name it may be taken again."""

    name: str
    text: str


class Membership:
    """`joined` is called once, when it is a member by what this peer has applied."""

    def __init__(
        self, peer: Peer, channel: Channel, queue: Queue, *, subscriber: str, member: str, joined: Callable[[], None]
    ) -> None:
        self._peer, self._channel, self._queue = peer, channel, queue
        self.subscriber, self.member = subscriber, member
        self._joined: Callable[[], None] | None = joined
        self._epoch = 0  # it joined with; 0: not known yet
        self._write_id = os.urandom(WRITE_ID_SIZE_BYTES)  # of all tries, or one would take over from who came between
        self._errand = Errand(peer, channel, self._ask_to_join, self._answered)

    def _ask_to_join(self, request: int) -> None:
        node = self._peer.node
        node.command(request, Kind.SUBSCRIPTION, self._command("join"), write_id=self._write_id, now=self._peer.now())

    def _command(self, action: SubscriptionAction) -> bytes:
        peer, channel = self._peer, self._channel
        return encode(
            SubscriptionCommand(
                self._queue.name, self.subscriber, self.member, peer.number, channel.core.channel, action
            )
        )

    def _answered(self, answer: Answer) -> None:
        if not isinstance(answer, Done):
            raise error_of_answer(answer)
        self._epoch = answer.last_version
        self.look()

    def look(self) -> None:
        """The metadata lane was applied further. Becoming a member is noticed here."""
        joined = self._joined
        if joined is not None and self._epoch and self._peer.node.metadata.state.position >= self._epoch:
            self._joined = None
            joined()

    @property
    def settled(self) -> bool:
        return self._joined is None

    def subscription(self) -> Subscription | Replaced:
        """As this peer has applied it, if this channel is still a member. Raises UnknownQueue."""
        check_there(self._peer, self._queue)
        catalog = self._peer.node.metadata.state.catalog
        found = catalog.by_name[self._queue.name].subscriptions.get(self.subscriber)
        channel = self._channel.core.channel
        if found is not None and any(one.name == self.member and one.channel == channel for one in found.members):
            return found
        return self._replaced(found)

    def _replaced(self, found: Subscription | None) -> Replaced:
        who = f"subscriber {self.subscriber!r}"
        members = found.members if found is not None else ()
        heir = next((one for one in members if not self.member or one.name in ("", self.member)), None)
        if heir is None:
            return Replaced("", f"this peer was not heard for a while, and {who} is not read by this channel any more")
        place = f"member {heir.name!r} of {who}" if heir.name else who
        text = f"{place} reads over another channel, at peer {heir.peer}, since epoch {heir.epoch}"
        return Replaced(Fenced.code, text)

    def leave(self) -> None:
        """Nobody waits for the answer: see housekeeping."""
        self._errand.stop()
        self._peer.node.propose(Kind.SUBSCRIPTION, self._command("leave"), self._peer.now())
        self._peer.wake()
