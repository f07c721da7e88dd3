"""The membership of one channel in a subscriber's subscription.

The metadata lane decides who reads (`avow.queue.subscriptions`). A channel joins there when it begins and leaves when
it ends. In between it checks whether it is still a member in the state that this peer has applied:

    joining ── Done(epoch), and this peer has applied it ──► member ──► replaced, or the queue was deleted: end
       └── refused: end

If a leave is lost, the peer's housekeeping repeats it: it has the list of open channels.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from avow.errors import Fenced
from avow.limits import WRITE_ID_SIZE_BYTES
from avow.node.answers import Answer, Done, error_of_answer
from avow.queue.commands import SubscriptionAction, SubscriptionCommand, encode
from avow.queue.records import Subscription
from avow.server.channels.lane_writer import check_there
from avow.server.channels.retried_requests import RetriedRequests
from avow.wire.messages import Kind

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.queue.records import Queue
    from avow.server.process import Peer


class Replaced(Struct, frozen=True):
    """`name` FENCED: another channel of the same member replaced this one. Empty: the client may open a new channel."""

    name: str
    text: str


class Membership:
    """`joined` is called once, when the channel is a member in the state that this peer has applied."""

    def __init__(
        self, peer: Peer, channel: Channel, queue: Queue, *, subscriber: str, member: str, joined: Callable[[], None]
    ) -> None:
        self._peer, self._channel, self._queue = peer, channel, queue
        self.subscriber, self.member = subscriber, member
        self._joined: Callable[[], None] | None = joined
        self._epoch = 0  # of its join; 0: not known yet
        self._write_id = os.urandom(WRITE_ID_SIZE_BYTES)  # the same for all attempts, or a retry could undo a takeover
        self._requests = RetriedRequests(peer, channel)
        self._joining = self._requests.begin(self._ask_to_join, self._answered)

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
        """Call it when this peer has applied more of the metadata lane."""
        joined = self._joined
        if joined is not None and self._epoch and self._peer.node.metadata.state.position >= self._epoch:
            self._joined = None
            joined()

    @property
    def settled(self) -> bool:
        return self._joined is None

    def subscription(self) -> Subscription | Replaced:
        """The subscription that this peer has applied, if this channel is still a member. Raises UnknownQueue."""
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
        other = next((one for one in members if not self.member or one.name in ("", self.member)), None)
        if other is None:
            return Replaced("", f"this peer lost contact for a while, and this channel no longer reads for {who}")
        place = f"member {other.name!r} of {who}" if other.name else who
        text = f"{place} reads over another channel, at peer {other.peer}, since epoch {other.epoch}"
        return Replaced(Fenced.code, text)

    def leave(self) -> None:
        """Its answer is not awaited: see housekeeping."""
        self._requests.stop(self._joining)
        self._peer.node.propose(Kind.SUBSCRIPTION, self._command("leave"), self._peer.now())
        self._peer.wake()
