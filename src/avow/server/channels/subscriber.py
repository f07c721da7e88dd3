"""A subscriber's channel: messages of its lanes are pushed, and the client's acknowledgements move their cursors.

    join ──► lanes are this channel's ──► {"lanes":{"0":17},"epoch":5,"moves":true}, then groups, each with a commit
                                          ◄── ack of a commit: the cursors move past all groups before it
                                          ◄── {"versions":{"0":21}}: the cursor moves to a version without a commit
                                          ◄── commit: acknowledged when all those moves are durable
    lanes reassigned, taken over ──► MOVED

The ack of a group means that the client has processed it. It is not answered. To learn when its cursor was moved, the
client commits.

The metadata lane decides who reads (`avow.queue.subscriptions`). A channel becomes a member there when it begins and
leaves when it ends. In between it checks whether it is still a member in the state that this peer has applied:

    joining ── Done(epoch), and this peer has applied it ──► member ──► replaced, or the queue was deleted: end
       └── refused: end

If a leave is lost, the peer's housekeeping repeats it: it has the list of open channels.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta, Struct

from avow.channel.protocol.frames import EndCode
from avow.errors import Fenced, InvalidRequest
from avow.limits import WRITE_ID_SIZE_BYTES
from avow.node.answers import Answer, Done, error_of_answer
from avow.queue.commands import SubscriptionAction, SubscriptionCommand, encode
from avow.queue.records import Subscription
from avow.server.channels.cursors import Cursors, FencedCursors, VectorCursors
from avow.server.channels.lane_writer import check_there
from avow.server.channels.node_requests import RetriedRequests
from avow.server.channels.push import LanePusher, PushedLane
from avow.server.http.schemas import LaneNumber, Version
from avow.wire.messages import Kind

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.errors import ChannelFailed
    from avow.queue.records import Queue
    from avow.server.channels.channel_memory import ChannelHeld
    from avow.server.channels.channels import ChannelCounters
    from avow.server.process import Peer


# ---------------------------------------------------------------------- membership


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
    def applied(self) -> bool:
        """This peer has applied the join."""
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


# ---------------------------------------------------------------------- the channel


class MovedVersions(Struct, frozen=True, forbid_unknown_fields=True):
    versions: Annotated[dict[LaneNumber, Version], Meta(max_length=4096)]


_encode: Final = msgspec.json.Encoder().encode
_read_moved: Final = msgspec.json.Decoder(MovedVersions).decode


def refuse_messages(values: list[memoryview]) -> None:
    """For roles whose clients send acknowledgements only."""
    raise InvalidRequest(f"this channel only reads, but the client sent {len(values)} messages; they were ignored")


class Subscriber:
    def __init__(
        self,
        peer: Peer,
        channel: Channel,
        queue: Queue,
        counters: ChannelCounters,
        *,
        subscriber: str,
        member: str,
        from_end: bool,
        json: bool,
    ) -> None:
        self._channel, self._counters = channel, counters
        self.subscriber, self.member, self.from_end = subscriber, member, from_end
        self._groups: deque[tuple[int, int, int]] = deque()  # (commit, lane, version), not acknowledged
        self._starts: dict[int, tuple[int, int]] | None = {}  # lane -> (number, after), until they are announced
        self._epoch = 0
        self._following = self._closing = False
        self._flush: tuple[int, dict[int, int]] | None = None  # a commit of the client, and the versions it waits for
        self._next_flush: tuple[int, dict[int, int]] | None = None  # the newest commit after it
        channel.on_messages, channel.on_commit, channel.on_acked = self._versions, self._committed, self._acked
        channel.on_end = self._ended
        self._pusher = LanePusher(peer, channel, counters, json=json, commit=self._pushed)
        channel.on_resume = self._pusher.resume
        pubsub = queue.strategy == "pub-sub"
        self._cursors: Cursors = (VectorCursors if pubsub else FencedCursors)(peer, channel, queue, self)
        self._membership = Membership(peer, channel, queue, subscriber=subscriber, member=member, joined=self._follow)

    def bound(self, held: ChannelHeld) -> None:
        """Push only what the peer's budget has room for."""
        self._pusher.held, held.on_room = held, self._pusher.resume

    # ------------------------------------------------------------------ assigned lanes

    def look(self) -> None:
        """Called when subscriptions or lanes have changed. The cursor of an ended lane is kept for its last acks."""
        self._pusher.drop_ended()
        if self._membership.applied:
            self._follow()
        else:
            self._membership.look()

    def _follow(self) -> None:
        found = self._membership.subscription()
        if isinstance(found, Replaced):
            self._cursors.finish(name=found.name, text=found.text)
            return
        self._epoch, self._following = found.epoch, True
        self._cursors.follow(found)
        self._following = False
        self._announce()

    def begin(self, lane: int, *, number: int, after: int) -> None:
        if self._closing:
            return
        if self._starts is None:
            self._pusher.add(lane=lane, number=number, after=after)
        else:
            self._starts[lane] = number, after
            if not self._following:
                self._announce()

    def drop(self, lane: int) -> bool:
        if self._starts is None:
            return False
        self._starts.pop(lane, None)
        return True

    def _announce(self) -> None:
        """Sent once, when the versions at which all its first lanes begin are known."""
        starts = self._starts
        if starts is None or self._closing or self._channel.ended or not self._cursors.all_begun:
            return
        self._starts = None
        lanes = {str(lane): after for lane, (_, after) in sorted(starts.items())}
        self._channel.send(_encode({"lanes": lanes, "epoch": self._epoch, "moves": True}))
        self._counters.pushed += 1
        for lane, (number, after) in sorted(starts.items()):
            self._pusher.add(lane=lane, number=number, after=after)

    def closing(self) -> None:
        self._closing = True
        self._pusher.stop()

    # ------------------------------------------------------------------ acknowledgements

    def _pushed(self, pushed: PushedLane) -> None:
        self._groups.append((self._channel.commit().id, pushed.lane, pushed.after))

    def _versions(self, values: list[memoryview]) -> None:
        """Versions without a commit: they were processed on an earlier channel, or end within a group."""
        self._counters.received += len(values)
        for value in values:
            try:
                self._cursors.acked(_read_moved(value).versions)
            except msgspec.DecodeError as cause:
                raise InvalidRequest(f"a subscriber's message must be {{'versions':{{..}}}}: {cause}") from cause

    def _acked(self, commit_id: int) -> None:
        versions: dict[int, int] = {}
        while self._groups and self._groups[0][0] <= commit_id:
            _, lane, version = self._groups.popleft()
            versions[lane] = version
        if versions:
            self._cursors.acked(versions)

    def _committed(self, commit_id: int) -> None:
        behind = self._cursors.behind()
        if not behind:
            self._flush = self._next_flush = None
            self._channel.ack_commit(commit_id)
        elif self._flush is None:
            self._flush = commit_id, behind
        else:
            self._next_flush = commit_id, behind

    def moved(self) -> None:
        while self._flush is not None and self._cursors.cover(self._flush[1]):
            self._channel.ack_commit(self._flush[0])
            self._flush, self._next_flush = self._next_flush, None

    def _ended(self, failure: ChannelFailed | None) -> None:
        self._pusher.stop()
        self._cursors.stop()
        if not will_be_back(failure):
            self._membership.leave()


def will_be_back(failure: ChannelFailed | None) -> bool:
    """True after a reassignment: the client opens a new channel. A leave would reassign all lanes once more."""
    return failure is not None and failure.reason == EndCode.MOVED.name and not failure.name
