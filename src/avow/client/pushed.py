"""What peers push, through one channel after another: which lanes, then groups of messages, each with a commit behind.

A group is acknowledged when the consumer has come for the next: so a slow consumer holds up the peer, and nothing piles
up. When the channel is over, the next one is opened at another peer, with whatever parameters are right by then.

A group of messages is copied out of the packet it came in. That costs one pass over it, and gives columns that lie on
multiples of 8, as Arrow wants them, and memory that is let go with the batch and not with its neighbours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from avow.channel.waiting import Waiters
from avow.client.channels import is_final, open_at, open_somewhere, refusal_in
from avow.errors import ChannelFailed, Malformed
from avow.wire.ranges import Range, parse_ranges
from avow.wire.record import read_record

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.client.cluster import Cluster
    from avow.client.links import Link

T = TypeVar("T")
Commit: TypeAlias = Callable[[int, int], Awaitable[None]]
STEADY_S: Final = 3.0  # a channel that lasted so long was no part of the trouble that ended it
_LANES: Final = b'{"lanes"'  # no range begins so: it would have a record of half a gigabyte


class Arrivals(Generic[T]):
    """What one channel brings, each message as `read` has it. A commit is acknowledged when all before it was taken."""

    def __init__(self, channel: Channel, read: Callable[[memoryview], T]) -> None:
        self.channel, self._read = channel, read
        self._came: deque[tuple[T, None] | tuple[None, int]] = deque()  # a message, or a commit
        self._waiters = Waiters()
        self.failed: ChannelFailed | None = None
        self._over = False
        channel.on_messages, channel.on_commit, channel.on_end = self._messages, self._committed, self._ended

    def _messages(self, values: list[memoryview]) -> None:
        self._came += [(self._read(value), None) for value in values]
        self._waiters.wake()

    def _committed(self, commit_id: int) -> None:
        self._came.append((None, commit_id))
        self._waiters.wake()

    def _ended(self, failed: ChannelFailed | None) -> None:
        self._over, self.failed = True, failed
        self._waiters.wake()

    async def next(self) -> T | None:
        """None: it is over, and everything that came was taken."""
        while True:
            while self._came:
                found, commit_id = self._came.popleft()
                if commit_id is None:
                    return found
                self.channel.ack_commit(commit_id)
            if self._over:
                return None
            await self._waiters.wait()


async def pushed(
    cluster: Cluster, parameters: Callable[[], Mapping[str, str]], read: Callable[[memoryview], T]
) -> AsyncGenerator[T, None]:
    """All that comes, without end. Raises what no other peer would say otherwise, and what the last one said when
    nothing has come for the client's timeout because none could be reached."""
    last: Link | None = None
    troubled_at = 0.0

    async def open_to(link: Link) -> Arrivals[T]:
        nonlocal last
        last, made = link, []
        await open_at(cluster, link, parameters(), begin=lambda channel: made.append(Arrivals(channel, read)))
        return made[0]

    while True:
        troubled_at = troubled_at or monotonic()
        arrivals = await open_somewhere(cluster, open_to, deadline=troubled_at + cluster.timeout_s, after=last)
        opened_at = monotonic()
        try:
            while (found := await arrivals.next()) is not None:
                yield found
                troubled_at = 0.0
        finally:
            arrivals.channel.close()
        error = None if arrivals.failed is None else refusal_in(arrivals.failed)
        if error is not None and is_final(error):
            raise error
        if monotonic() - opened_at > STEADY_S:
            troubled_at = 0.0


class Lanes(Struct, frozen=True):
    """The lanes a channel is for, and the version each begins after."""

    lanes: dict[int, int]
    epoch: int = 0


_read_lanes: Final = msgspec.json.Decoder(Lanes).decode


def read_pushed(value: memoryview) -> Lanes | list[Range]:
    """One message of a subscriber's or a reader's channel. Raises Malformed."""
    if bytes(value[: len(_LANES)]) == _LANES:
        try:
            return _read_lanes(value)
        except msgspec.MsgspecError as cause:
            raise Malformed("lanes of a channel", expected="numbers", found=f"{bytes(value[:80])!r}") from cause
    ranges = list(parse_ranges(bytes(value)))
    for found in ranges:
        read_record(found.record)  # the checksum of the body
    return ranges


def from_version(found: Range, first: int) -> Range:
    """The rest of a range, from this version on."""
    skipped = first - found.first_version
    if skipped <= 0:
        return found
    return Range(found.lane, first, found.offset + skipped, found.count - skipped, found.record)


def moved(versions: Mapping[int, int]) -> bytes:
    """What a subscriber says of versions that it has dealt with, and that no commit stands for."""
    return msgspec.json.encode({"versions": {str(lane): version for lane, version in sorted(versions.items())}})


def positions(versions: Mapping[int, int]) -> str:
    """The parameter `after`."""
    return ",".join(f"{lane}:{version}" for lane, version in sorted(versions.items()))
