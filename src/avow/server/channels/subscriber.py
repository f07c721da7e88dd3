"""A subscriber's channel: messages of its lanes are pushed, and the client's acknowledgements move their cursors.

    join ──► lanes are this channel's ──► {"lanes":{"0":17},"epoch":5,"moves":true}, then groups, each with a commit
                                          ◄── ack of a commit: the cursors move past all groups before it
                                          ◄── {"versions":{"0":21}}: the cursor moves to a version without a commit
                                          ◄── commit: acknowledged when all those moves are durable
    lanes reassigned, taken over ──► MOVED

The ack of a group means that the client has processed it. It is not answered. To learn when its cursor was moved, the
client commits.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta, Struct

from avow.channel.protocol.frames import EndCode
from avow.errors import InvalidRequest
from avow.server.channels.cursors import Cursors, FencedCursors, VectorCursors
from avow.server.channels.membership import Membership, Replaced
from avow.server.channels.push import LanePusher, PushedLane
from avow.server.http.schemas import LaneNumber, Version

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.errors import ChannelFailed
    from avow.queue.records import Queue
    from avow.server.channels.metrics import ChannelCounters
    from avow.server.process import Peer


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

    # ------------------------------------------------------------------ assigned lanes

    def look(self) -> None:
        """Called when subscriptions or lanes have changed. The cursor of an ended lane is kept for its last acks."""
        self._pusher.drop_ended()
        if self._membership.settled:
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
        if starts is None or self._closing or self._channel.ended or not self._cursors.settled:
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
