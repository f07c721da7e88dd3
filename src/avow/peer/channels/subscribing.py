"""A subscriber's channel: what its lanes show is pushed, and what the client acknowledges moves their cursors.

    join ──► lanes are this channel's ──► {"lanes":{"0":17},"epoch":5,"moves":true}, then groups, each with a commit
                                          ◄── ack of a commit: the cursors move past all groups before it
                                          ◄── {"versions":{"0":21}}: the cursor moves there, for what no commit says
                                          ◄── commit: acknowledged when all those moves are durable
    shared out anew, taken over ──► MOVED

The ack of a group is the client's word that it has dealt with it, and needs no answer. Whoever wants one commits: this
is how a client learns that its cursor has moved, without a message of its own for it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta, Struct

from avow.channel.frames import EndCode
from avow.errors import InvalidRequest
from avow.peer.channels.cursors import Cursors
from avow.peer.channels.fenced_cursors import FencedCursors
from avow.peer.channels.groups import Membership, Replaced
from avow.peer.channels.reading import PushedLane, Pushing
from avow.peer.channels.vector_cursors import VectorCursors
from avow.peer.http.shapes import LaneNumber, Version

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.errors import ChannelFailed
    from avow.peer.channels.figures import Figures
    from avow.peer.process import Peer
    from avow.queue.catalog import Queue


class Moved(Struct, frozen=True, forbid_unknown_fields=True):
    versions: Annotated[dict[LaneNumber, Version], Meta(max_length=4096)]


_encode: Final = msgspec.json.Encoder().encode
_read_moved: Final = msgspec.json.Decoder(Moved).decode


def nothing_is_taken(values: list[memoryview]) -> None:
    """For roles whose clients only acknowledge."""
    raise InvalidRequest(f"{len(values)} messages came over a channel that only reads; nothing was done with them")


class Subscriber:
    def __init__(
        self,
        peer: Peer,
        channel: Channel,
        queue: Queue,
        figures: Figures,
        *,
        subscriber: str,
        member: str,
        from_end: bool,
        json: bool,
    ) -> None:
        self._channel, self._figures = channel, figures
        self.subscriber, self.member, self.from_end = subscriber, member, from_end
        self._groups: deque[tuple[int, int, int]] = deque()  # (commit, lane, version), not acknowledged
        self._starts: dict[int, tuple[int, int]] | None = {}  # lane -> (number, after), until they are announced
        self._epoch = 0
        self._following = self._closing = False
        self._flush: tuple[int, dict[int, int]] | None = None  # a commit of the client, and what it waits for
        self._next_flush: tuple[int, dict[int, int]] | None = None  # the newest one behind it
        channel.on_messages, channel.on_commit, channel.on_acked = self._told, self._committed, self._acked
        channel.on_end = self._ended
        self._pushing = Pushing(peer, channel, figures, json=json, commit=self._pushed)
        channel.on_resume = self._pushing.resume
        pubsub = queue.strategy == "pub-sub"
        self._cursors: Cursors = (VectorCursors if pubsub else FencedCursors)(peer, channel, queue, self)
        self._membership = Membership(peer, channel, queue, subscriber=subscriber, member=member, joined=self._follow)

    # ------------------------------------------------------------------ who reads what

    def look(self) -> None:
        """Subscriptions or lanes have changed. A lane that has ended stays known: its last acks are still to come."""
        self._pushing.tidy()
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
            self._pushing.add(lane=lane, number=number, after=after)
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
        """Once, when all lanes that it begins with are known."""
        starts = self._starts
        if starts is None or self._closing or self._channel.ended or not self._cursors.settled:
            return
        self._starts = None
        lanes = {str(lane): after for lane, (_, after) in sorted(starts.items())}
        self._channel.send(_encode({"lanes": lanes, "epoch": self._epoch, "moves": True}))
        self._figures.pushed += 1
        for lane, (number, after) in sorted(starts.items()):
            self._pushing.add(lane=lane, number=number, after=after)

    def closing(self) -> None:
        self._closing = True
        self._pushing.stop()

    # ------------------------------------------------------------------ what the client has dealt with

    def _pushed(self, pushed: PushedLane) -> None:
        self._groups.append((self._channel.commit().id, pushed.lane, pushed.after))

    def _told(self, values: list[memoryview]) -> None:
        """Versions it has dealt with on an earlier channel, or in the middle of a group: no commit stands for them."""
        self._figures.received += len(values)
        for value in values:
            try:
                self._cursors.acked(_read_moved(value).versions)
            except msgspec.DecodeError as cause:
                raise InvalidRequest(f"a subscriber says {{'versions':{{..}}}} or nothing: {cause}") from cause

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
        self._pushing.stop()
        self._cursors.stop()
        if not will_be_back(failure):
            self._membership.leave()


def will_be_back(failure: ChannelFailed | None) -> bool:
    """Lanes were shared out anew, and its client opens another channel. If it left, they would be again, for all."""
    return failure is not None and failure.reason == EndCode.MOVED.name and not failure.name
