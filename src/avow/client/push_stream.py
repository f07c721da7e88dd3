"""The stream that peers push over consecutive channels: the lanes, then groups of messages, each followed by a commit.

A group is acknowledged when the consumer asks for the next, so a slow consumer slows down the peer and memory stays
bounded. When a channel ends, the next one is opened at another peer, with the parameters that are current then.

A group of messages is copied out of its packet. The copy aligns columns to 8 bytes, as Arrow requires, and lets the
memory be freed with the batch instead of with the whole packet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from avow.channel.waiters import Waiters
from avow.client.channels import is_final, open_at, open_somewhere, refusal_in
from avow.errors import ChannelFailed, Malformed
from avow.wire.ranges import Range, parse_ranges
from avow.wire.record import read_record

if TYPE_CHECKING:
    from avow.channel.endpoint import Channel
    from avow.client.cluster import Cluster
    from avow.client.peer_connection import PeerConnection

T = TypeVar("T")
Commit: TypeAlias = Callable[[int, int], Awaitable[None]]
STEADY_S: Final = 3.0  # the end of a channel that lasted this long counts as a new failure
_LANES: Final = b'{"lanes"'  # never the start of a range: as a range it would have a record of half a gigabyte


class ChannelMessages(Generic[T]):
    """Messages of one channel, decoded by `read`. A commit is acknowledged when all messages before it were taken."""

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
        """The next message; None when the channel has ended and everything received was taken."""
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
    """An endless stream of messages. Raises a refusal that is the same at every peer, and the last peer's error if no
    peer could be reached for the client's timeout."""
    last: PeerConnection | None = None
    troubled_at = 0.0

    async def open_to(peer: PeerConnection) -> ChannelMessages[T]:
        nonlocal last
        last, made = peer, []
        await open_at(cluster, peer, parameters(), begin=lambda channel: made.append(ChannelMessages(channel, read)))
        return made[0]

    while True:
        troubled_at = troubled_at or cluster.now()
        incoming = await open_somewhere(cluster, open_to, deadline=troubled_at + cluster.timeout_s, after=last)
        opened_at = cluster.now()
        try:
            while (found := await incoming.next()) is not None:
                yield found
                troubled_at = 0.0
        finally:
            incoming.channel.close()
        error = None if incoming.failed is None else refusal_in(incoming.failed)
        if error is not None and is_final(error):
            raise error
        if cluster.now() - opened_at > STEADY_S:
            troubled_at = 0.0


class LaneAssignment(Struct, frozen=True):
    """The lanes of a channel, and the version after which each starts."""

    lanes: dict[int, int]
    epoch: int = 0


_read_assignment: Final = msgspec.json.Decoder(LaneAssignment).decode


def read_pushed(value: memoryview) -> LaneAssignment | list[Range]:
    """One message of a subscriber's or a reader's channel. Raises Malformed."""
    if bytes(value[: len(_LANES)]) == _LANES:
        try:
            return _read_assignment(value)
        except msgspec.MsgspecError as cause:
            raise Malformed("the lanes of a channel", expected="numbers", found=f"{bytes(value[:80])!r}") from cause
    ranges = list(parse_ranges(bytes(value)))
    for found in ranges:
        read_record(found.record)  # the checksum of the body
    return ranges


def from_version(found: Range, first: int) -> Range:
    """The part of a range from this version on."""
    skipped = first - found.first_version
    if skipped <= 0:
        return found
    return Range(found.lane, first, found.offset + skipped, found.count - skipped, found.record)


def moved(versions: Mapping[int, int]) -> bytes:
    """A subscriber's message that reports processed versions which no commit covers."""
    return msgspec.json.encode({"versions": {str(lane): version for lane, version in sorted(versions.items())}})


def positions(versions: Mapping[int, int]) -> str:
    """The value of the channel parameter `after`."""
    return ",".join(f"{lane}:{version}" for lane, version in sorted(versions.items()))
