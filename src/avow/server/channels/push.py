"""Pushes lanes to a client: all visible messages from a version on, as fast as the client takes them.

    ready ── read, send, commit ──► ready, at the end of the queue of lanes
      │ nothing left to read
      └──► waiting: the node answers when the next version is visible, or that there will never be one

Lanes take turns, with a group of messages each. Nothing is read while the channel is suspended, so a slow client costs
only the buffer of its channel; all buffers together are bounded by the peer's budget (`channel_memory`). The bytes
pushed in one turn of the loop are bounded, because other clients wait.

As `ranges`, a group is one channel message with up to 256 KiB of ranges of one lane; as `json`, it is one channel
message per message. A commit follows each group.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from avow.errors import Trimmed
from avow.limits import KIB, MIB
from avow.node.answers import Answer, Done, Refusal, error_of_answer
from avow.node_client import is_passing
from avow.server.channels.node_requests import guarded
from avow.server.http.ndjson import lines_of
from avow.wire.ranges import range_parts

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.node.records import Served
    from avow.server.channels.channel_memory import ChannelHeld
    from avow.server.channels.channels import ChannelCounters
    from avow.server.process import Peer
    from avow.wire.record import Buffer

GROUP_SIZE_BYTES: Final = 256 * KIB
GROUP_LINES_MAX: Final = 512
TURN_SIZE_BYTES: Final = 1 * MIB
PATIENCE_S: Final = 2.0
_COUNT_MAX: Final = 1 << 30
_AGAIN_S: Final = 0.1


class PushedLane:
    """`lane` is the client's number of the lane, `number` the peers'. Everything up to `after` was sent."""

    __slots__ = ("after", "failing_since", "lane", "number", "request", "timer")

    def __init__(self, *, lane: int, number: int, after: int) -> None:
        self.lane, self.number, self.after = lane, number, after
        self.request = 0  # number of the request to the node while the lane waits; 0: none
        self.timer: asyncio.TimerHandle | None = None
        self.failing_since = 0.0


class LanePusher:
    """`commit` is called after each group, with its lane."""

    def __init__(
        self,
        peer: Peer,
        channel: Channel,
        counters: ChannelCounters,
        *,
        json: bool,
        commit: Callable[[PushedLane], None],
    ) -> None:
        self._peer, self._channel, self._counters = peer, channel, counters
        self._json, self._commit = json, commit
        self.held: ChannelHeld | None = None
        self.lanes: dict[int, PushedLane] = {}
        self._ready: deque[PushedLane] = deque()
        self._scheduled = False
        self._loop = asyncio.get_running_loop()

    def add(self, *, lane: int, number: int, after: int) -> None:
        pushed = self.lanes[lane] = PushedLane(lane=lane, number=number, after=after)
        self._ready.append(pushed)
        self.resume()

    def resume(self) -> None:
        """Call it when there may be something to push, and room for it."""
        if not self._scheduled and self._ready and (self.held is None or self.held.may_push):
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def drop_ended(self) -> None:
        """Drop the pub-sub lanes that have ended and were sent completely."""
        table = self._peer.node.metadata.state.lanes.by_number
        for pushed in list(self.lanes.values()):
            known = table.get(pushed.number)
            if known is not None and known.ended and pushed.after >= known.last_version:
                self._finish(pushed)

    def stop(self) -> None:
        for pushed in self.lanes.values():
            self._forget(pushed)
        self.lanes.clear()
        self._ready.clear()

    def _finish(self, pushed: PushedLane) -> None:
        self._forget(pushed)
        del self.lanes[pushed.lane]

    def _forget(self, pushed: PushedLane) -> None:
        if pushed.request:
            self._peer.forget(pushed.request, lane=pushed.number)
            pushed.request = 0
        if pushed.timer is not None:
            pushed.timer.cancel()

    # ------------------------------------------------------------------ pushing

    def _turn(self) -> None:
        self._scheduled = False
        guarded(self._channel, self._push)

    def _push(self) -> None:
        left = TURN_SIZE_BYTES
        while self._ready and left > 0 and not self._channel.suspended:
            pushed = self._ready.popleft()
            if self.lanes.get(pushed.lane) is not pushed:
                continue
            size = self._push_group(pushed)
            if size < 0:
                self._ready.appendleft(pushed)
                return
            if size:
                left -= size
                self._ready.append(pushed)
            else:
                self._wait(pushed)
        if not self._channel.suspended:
            self.resume()

    def _push_group(self, pushed: PushedLane) -> int:
        """Size of what was sent. 0: there is nothing to send. -1: there is no room for it in the peer's budget."""
        count = GROUP_LINES_MAX if self._json else _COUNT_MAX
        served = self._read(pushed, count)
        if not served:
            return 0
        if self.held is not None and not self.held.take(sum(len(one.entry.batch) for one in served)):
            return -1
        pushed.failing_since = 0.0
        size = self._send_lines(pushed, served) if self._json else self._send_ranges(pushed, served)
        self._commit(pushed)
        return size

    def _read(self, pushed: PushedLane, count: int) -> list[Served]:
        node = self._peer.node
        if pushed.number not in node.lanes and pushed.number not in node.metadata.state.lanes.by_number:
            raise Trimmed(f"lane {pushed.lane} was removed before it was read completely; nothing was changed")
        return node.read(pushed.number, after=pushed.after, max_count=count, max_bytes=GROUP_SIZE_BYTES)

    def _send_ranges(self, pushed: PushedLane, served: list[Served]) -> int:
        parts: list[Buffer] = []
        for one in served:
            parts += range_parts(
                one.entry, lane=pushed.lane, first_version=one.first_version, offset=one.offset, count=one.count
            )
        value = b"".join(parts)
        self._channel.send(value)
        self._counters.pushed += 1
        pushed.after = served[-1].first_version + served[-1].count - 1
        return len(value)

    def _send_lines(self, pushed: PushedLane, served: list[Served]) -> int:
        """Sends as many lines as the channel takes."""
        size, channel = 0, self._channel
        for line in lines_of(served, lane=pushed.lane).split(b"\n")[:-1]:
            if channel.suspended:
                break
            channel.send(line)
            size += len(line)
            pushed.after += 1
            self._counters.pushed += 1
        return size

    # ------------------------------------------------------------------ waiting

    def _wait(self, pushed: PushedLane) -> None:
        peer = self._peer
        pushed.timer = None
        pushed.request = peer.expect(partial(guarded, self._channel, self._reached, pushed))
        peer.node.reach(pushed.request, pushed.number, level="at_least", version=pushed.after + 1, now=peer.now())
        peer.wake()

    def _reached(self, pushed: PushedLane, answer: Answer) -> None:
        pushed.request = 0
        if self.lanes.get(pushed.lane) is not pushed:
            return
        if self._has_ended(pushed, answer):
            self._finish(pushed)
        elif isinstance(answer, Done):
            self._ready.append(pushed)
            if not self._channel.suspended:
                self.resume()
        else:
            self._wait_again(pushed, answer)

    def _has_ended(self, pushed: PushedLane, answer: Answer) -> bool:
        """Whether this is a pub-sub lane that has ended and was read, or was removed."""
        node = self._peer.node
        if pushed.number in node.lanes:
            return False
        ended = isinstance(answer, Refusal) and answer.code == "INVALID_REQUEST"
        return ended or (isinstance(answer, Done) and pushed.number not in node.metadata.state.lanes.by_number)

    def _wait_again(self, pushed: PushedLane, answer: Answer) -> None:
        now = self._peer.now()
        pushed.failing_since = pushed.failing_since or now
        if not is_passing(answer) or now - pushed.failing_since > PATIENCE_S:
            raise error_of_answer(answer)
        pushed.timer = self._loop.call_later(_AGAIN_S, guarded, self._channel, self._wait, pushed)
