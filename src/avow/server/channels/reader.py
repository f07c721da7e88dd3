"""A reader's channel pushes lanes from the versions that the client gives. Nothing is stored for it.

A reader of a pub-sub queue also follows lanes that are opened later, and drops those that have ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from msgspec.json import Encoder

from avow.server.channels.lane_writer import check_there
from avow.server.channels.push import LanePusher, PushedLane
from avow.server.channels.subscriber import refuse_messages

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.errors import ChannelFailed
    from avow.queue.records import Queue
    from avow.server.channels.channel_memory import ChannelHeld
    from avow.server.channels.channels import ChannelCounters
    from avow.server.process import Peer

_encode: Final = Encoder().encode


class Reader:
    """`lane` None: all lanes. `after`: lane -> version to begin after; all other lanes begin as `from_end` says."""

    def __init__(
        self,
        peer: Peer,
        channel: Channel,
        queue: Queue,
        counters: ChannelCounters,
        *,
        lane: int | None,
        after: Mapping[int, int],
        from_end: bool,
        json: bool,
    ) -> None:
        self._peer, self._channel, self._queue = peer, channel, queue
        self._lane, self._after = lane, after
        self._known: set[int] = set()  # including lanes that were read to their end
        self._pusher = LanePusher(peer, channel, counters, json=json, commit=self._pushed)
        channel.on_messages, channel.on_resume, channel.on_end = refuse_messages, self._pusher.resume, self._ended
        starts = {one: self._start(one, from_end=from_end) for one in self._lanes()}
        channel.send(_encode({"lanes": {str(one): start for one, start in starts.items()}}))
        counters.pushed += 1
        for one, start in starts.items():
            self._add(one, start)

    def bound(self, held: ChannelHeld) -> None:
        """Push only what the peer's budget has room for."""
        self._pusher.held, held.on_room = held, self._pusher.resume

    def look(self) -> None:
        check_there(self._peer, self._queue)
        self._pusher.drop_ended()
        for lane in self._lanes():
            if lane not in self._known:
                self._add(lane, self._start(lane, from_end=False))

    def _lanes(self) -> list[int]:
        if self._lane is not None:
            return [self._lane]
        if self._queue.strategy == "two-phase":
            return list(range(self._queue.lanes))
        held = self._peer.node.pubsub.get(self._queue.name)
        return list(held.numbers) if held is not None else []

    def _number(self, lane: int) -> int:
        return lane if self._queue.strategy == "pub-sub" else self._queue.first_lane + lane

    def _start(self, lane: int, *, from_end: bool) -> int:
        if lane in self._after:
            return self._after[lane]
        view = self._peer.node.lane_view(self._number(lane))
        if view is None:
            return 0
        return view.end if from_end else view.trimmed_to

    def _add(self, lane: int, after: int) -> None:
        self._known.add(lane)
        self._pusher.add(lane=lane, number=self._number(lane), after=after)

    def _pushed(self, pushed: PushedLane) -> None:  # noqa: ARG002
        self._channel.commit()

    def _ended(self, failure: ChannelFailed | None) -> None:  # noqa: ARG002
        self._pusher.stop()
