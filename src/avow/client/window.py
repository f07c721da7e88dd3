"""What a producer has sent and nobody has acknowledged, in the order it was sent.

Messages of one turn of the event loop become one record per lane, and a record one message of a channel:

    byte  size  field
       0     4  lane: 0 to n - 1; pub-sub: the number of the lane it is bound to, all ones while it is bound to none
       4     4  how long ago it was first sent, in ms, when an earlier channel may have carried it
       8        the record; its header has the write id, the number of messages, and when it was made

Records first wait, then are given to a channel, and leave when a commit that covers them is acknowledged. When the
channel fails they all wait again, now marked with what may have happened to them. So this is what a commit is about
(`passed`), what a limit is about (`full`, `low`), and what is handed back at the end (`messages`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from struct import Struct as Layout
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from avow import limits
from avow.errors import TooShort
from avow.wire.batch import Batch
from avow.wire.record import HEADER_SIZE_BYTES, Buffer, plain_view

UNBOUND: Final = 0xFFFF_FFFF
_HEAD: Final = Layout("<II")
_AGE_MS_MAX: Final = 0xFFFF_FFFF

Fate: TypeAlias = Literal["unknown", "unsent"]


class PendingMessage(Struct, frozen=True):
    """A message that a failed producer hands back. "unsent": it is not in the queue, and never will be. "unknown": it
    may be; the queue knows it by `write_id`, in `lane`."""

    value: bytes
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    time_ms: int
    fate: Fate
    lane: int | None
    write_id: bytes


class Reached(Struct):
    """What of one lane has reached the queue: the write ids of the first and the last record, and how many messages."""

    first: bytes
    last: bytes
    messages: int = 0


class Sent:
    """`maybe`: an attempt may have happened, in `lane`, which had reached `since` before. `sent_at`: the first one."""

    __slots__ = ("count", "lane", "maybe", "number", "sent_at", "since", "stored", "value", "write_id")

    def __init__(self, value: bytes, *, lane: int, count: int, write_id: bytes, number: int = 0) -> None:
        self.value, self.lane, self.count, self.write_id, self.number = value, lane, count, write_id, number
        self.sent_at = 0.0
        self.maybe = False
        self.since = 0
        self.stored = 0  # its number in the pending store

    @property
    def record(self) -> memoryview:
        return memoryview(self.value)[_HEAD.size :]

    @property
    def size_bytes(self) -> int:
        return len(self.value)

    def bind(self, lane: int) -> None:
        """To another lane. Nothing may have happened in the one before."""
        assert not self.maybe
        if lane != self.lane:
            self.lane, self.value = lane, message_of(self.record, lane=lane)


def message_of(record: Buffer, *, lane: int, age_ms: int = 0) -> bytes:
    """One message of a channel."""
    return b"".join((_HEAD.pack(lane, min(age_ms, _AGE_MS_MAX)), record))


def read_message(value: Buffer) -> Sent:
    """The record in a stored message. Raises Malformed: its checksums were looked at by the store."""
    view = plain_view(value)
    if len(view) < _HEAD.size + HEADER_SIZE_BYTES:
        raise TooShort("a stored message", expected="a lane and a record", found=len(view))
    lane, _ = _HEAD.unpack_from(view)
    batch = Batch(view[_HEAD.size :])
    return Sent(bytes(view), lane=lane, count=batch.count, write_id=batch.write_id)


class Window:
    """`waiting` records have not been given to the current channel, `given` ones have."""

    def __init__(
        self,
        *,
        count_max: int = limits.CHANNEL_PENDING_COUNT,
        size_bytes_max: int = limits.CHANNEL_PENDING_SIZE_BYTES,
    ) -> None:
        self.count_max, self.size_bytes_max = count_max, size_bytes_max
        self.given: deque[Sent] = deque()
        self.waiting: deque[Sent] = deque()
        self.messages_count = self.size_bytes = 0
        self.last_number = 0
        self.reached: dict[int, Reached] = {}

    def __len__(self) -> int:
        return len(self.given) + len(self.waiting)

    def __iter__(self) -> Iterator[Sent]:
        return chain(self.given, self.waiting)

    @property
    def full(self) -> bool:
        return len(self) >= self.count_max or self.size_bytes >= self.size_bytes_max

    @property
    def low(self) -> bool:
        return len(self) <= self.count_max // 2 and self.size_bytes <= self.size_bytes_max // 2

    def passed(self, number: int) -> bool:
        """Whether everything up to this one is acknowledged."""
        first = self.given or self.waiting
        return not first or first[0].number > number

    def add(self, sent: Sent) -> None:
        self.last_number += 1
        sent.number = self.last_number
        self.waiting.append(sent)
        self.messages_count += sent.count
        self.size_bytes += sent.size_bytes

    def give(self) -> Sent:
        """The next one, which the current channel has from now on."""
        sent = self.waiting.popleft()
        sent.maybe = True
        self.given.append(sent)
        return sent

    def release(self, count: int) -> None:
        """The first so many were acknowledged."""
        for _ in range(count):
            self._left(self.given.popleft())

    def take_back(self, fates: Iterable[str]) -> None:
        """The channel is over: all of it waits again. `fates` are those of what was given, in order."""
        for sent, fate in zip(self.given, fates, strict=True):
            sent.maybe = fate != "unsent"
            sent.sent_at = sent.sent_at if sent.maybe else 0.0
        self.waiting = deque(self)
        self.given.clear()

    def settled(self, sent: Sent) -> None:
        """It is in the queue. Nothing is with a channel now."""
        self.waiting.remove(sent)
        self._left(sent)

    def _left(self, sent: Sent) -> None:
        self.messages_count -= sent.count
        self.size_bytes -= sent.size_bytes
        reached = self.reached.get(sent.lane)
        if reached is None:
            reached = self.reached[sent.lane] = Reached(sent.write_id, sent.write_id)
        reached.last = sent.write_id
        reached.messages += sent.count

    def messages(self) -> list[PendingMessage]:
        return [message for sent in self for message in messages_of(sent)]


def messages_of(sent: Sent) -> Iterator[PendingMessage]:
    """The messages of one record, each with what is known of it."""
    batch = Batch(sent.record)
    times, created_ms = batch.times(), batch.created_ms
    fate: Fate = "unknown" if sent.maybe else "unsent"
    lane = None if sent.lane == UNBOUND else sent.lane
    for number, value in enumerate(batch.values()):
        key = batch.key(number)
        yield PendingMessage(
            bytes(value),
            None if key is None else bytes(key),
            tuple((name, bytes(item)) for name, item in batch.headers(number)),
            created_ms if times is None else times[number],
            fate,
            lane,
            sent.write_id,
        )
