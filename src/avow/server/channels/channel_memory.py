"""What the channels of a peer hold of its budget, and what happens when that is used up.

*received*: messages that no acknowledged commit covers. A client decides when it commits, and a channel that is not
read cannot receive its commit. So when there is no room, all channels that hold some are paused except the one that has
held some for the longest time: it may go on up to its cap. When it has committed, the next one may. If it does not
commit while others wait, it ends with BUSY, and its client gets its messages back.

*pushed*: messages that the client has not acknowledged. A group of messages takes room before it is sent and waits for
it in line; small groups always go. A client that acknowledges nothing while others wait for a long time is ended with
BUSY, and may continue after what it has acknowledged.

So each share has its size, and beyond it what one channel may hold at most, and a small part for each channel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from avow.errors import Busy
from avow.limits import CHANNEL_VALUE_SIZE_BYTES_MAX

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.server.byte_budget import ByteBudget, Share, Waiting

SWEEP_S: Final = 0.05
UNCOMMITTED_S: Final = 10.0
UNACKNOWLEDGED_S: Final = 60.0


class ChannelHeld:
    """One channel. `on_room` is called when messages may be pushed again; it is set by who pushes them."""

    def __init__(self, channel: Channel, budget: ByteBudget, now: float) -> None:
        self.channel = channel
        self.received, self.pushed = budget.received.open(), budget.pushed.open()
        self.on_room: Callable[[], None] | None = None
        self.waiting: Waiting | None = None
        self.again = False  # the line is too long: asks again at the next sweep
        self._granted = 0
        self._unused = False  # what was granted before the last sweep
        self._covered_to = self._released_to = 0
        self.covered_at = self.released_at = now  # when something was last acknowledged

    def count(self, now: float) -> None:
        core = self.channel.core
        self.received.hold(self.channel.uncommitted_bytes)
        self.pushed.hold(core.out.size_bytes + self._granted)
        if core.incoming.covered_to != self._covered_to or not self.received.held:
            self._covered_to, self.covered_at = core.incoming.covered_to, now
        if core.out.released_to != self._released_to or not self.pushed.held:
            self._released_to, self.released_at = core.out.released_to, now

    @property
    def may_push(self) -> bool:
        """False: `on_room` will be called."""
        return self.waiting is None and not self.again

    def take(self, size: int) -> bool:
        """Room for a group of this size. False: do not send it; `on_room` will be called."""
        if self._granted:
            self._granted = 0
            return True
        if self.pushed.take(size):
            return True
        self.waiting = self.pushed.wait(size, lambda: self._room(size))
        self.again = self.waiting is None
        return False

    def _room(self, size: int) -> None:
        self.waiting, self._granted, self._unused = None, size, False
        self.resume()

    def drop_unused(self) -> None:
        """Room that was granted and not used since the last sweep: its lane was dropped meanwhile."""
        if self._granted and self._unused:
            self._granted = 0
        self._unused = self._granted > 0

    def resume(self) -> None:
        self.again = False
        if self.on_room is not None:
            self.on_room()

    def close(self) -> None:
        self.on_room, self._granted = None, 0
        if self.waiting is not None:
            self.pushed.share.cancel(self.waiting)
        self.received.hold(0)
        self.pushed.hold(0)


class ChannelMemory:
    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._channels: dict[bytes, ChannelHeld] = {}
        self._holding: dict[bytes, ChannelHeld] = {}  # those with uncommitted messages, the first one first
        self._paused: dict[bytes, ChannelHeld] = {}  # in the order in which they were paused
        self._first: ChannelHeld | None = None  # of `_holding`, at the last sweep
        self._first_since = 0.0  # it has been the first, and others have waited
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def open(self, key: bytes, channel: Channel) -> ChannelHeld:
        held = self._channels[key] = ChannelHeld(channel, self._budget, self._loop.time())
        if self._timer is None:
            self._timer = self._loop.call_later(SWEEP_S, self._sweep)
        return held

    def close(self, key: bytes) -> None:
        self._channels.pop(key).close()
        self._holding.pop(key, None)
        self._paused.pop(key, None)

    def received(self, key: bytes) -> None:
        """The channel has received messages."""
        held = self._channels.get(key)
        if held is None:
            return
        self._count(key, held, self._loop.time())
        if self._over(self._budget.received):
            self._pause_others()

    def _sweep(self) -> None:
        self._timer = self._loop.call_later(SWEEP_S, self._sweep) if self._channels else None
        now = self._loop.time()
        for key, held in list(self._channels.items()):
            self._count(key, held, now)
            held.drop_unused()
            if held.again:
                held.resume()
        if self._over(self._budget.received):
            self._pause_others()
        else:
            self._resume()
        self._end_uncommitted(now)
        self._end_unacknowledged(now)

    def _count(self, key: bytes, held: ChannelHeld, now: float) -> None:
        held.count(now)
        if held.received.held:
            self._holding.setdefault(key, held)
        else:
            self._holding.pop(key, None)

    # ------------------------------------------------------------------ received

    @staticmethod
    def _over(share: Share) -> bool:
        return share.held > share.size_bytes_max

    def _pause_others(self) -> None:
        """All that hold some, except the first one."""
        first, *others = self._holding
        for key in others:
            if key not in self._paused:
                self._paused[key] = self._holding[key]
                self._paused[key].channel.pause_reading()
        if first in self._paused:
            self._paused.pop(first).channel.resume_reading()

    def _resume(self) -> None:
        """As many as have room for a message each; one at least."""
        share = self._budget.received
        room = share.size_bytes_max - share.held
        for key in list(self._paused):
            self._paused.pop(key).channel.resume_reading()
            room -= CHANNEL_VALUE_SIZE_BYTES_MAX
            if room <= 0:
                return

    def _end_uncommitted(self, now: float) -> None:
        first = next(iter(self._holding.values()), None)
        if first is not self._first:
            self._first, self._first_since = first, now
        if first is None or not self._paused:
            self._first_since = now
            return
        if now - max(first.covered_at, self._first_since) > UNCOMMITTED_S:
            self._end(
                first,
                self._budget.received,
                f"this channel has {first.received.held} bytes without a commit and received none for "
                f"{UNCOMMITTED_S:g} s, while others wait for the room; commit sooner",
            )

    # ------------------------------------------------------------------ pushed

    def _end_unacknowledged(self, now: float) -> None:
        """One at a time, so that no more are ended than the others need."""
        if not self._budget.pushed.crowded:
            return
        held = min(self._channels.values(), key=lambda held: held.released_at)
        if now - held.released_at > UNACKNOWLEDGED_S:
            self._end(
                held,
                self._budget.pushed,
                f"{held.pushed.held} bytes were sent on this channel and nothing was acknowledged for "
                f"{UNACKNOWLEDGED_S:g} s, while others wait for the room; acknowledge sooner",
            )

    @staticmethod
    def _end(held: ChannelHeld, share: Share, why: str) -> None:
        share.refused += 1
        held.channel.fail(Busy(f"{why}, or use another peer. Messages that were not acknowledged may be sent again"))

    @property
    def paused(self) -> int:
        return len(self._paused)
