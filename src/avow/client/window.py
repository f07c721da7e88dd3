"""A producer's records that were sent and are not acknowledged, in order.

Messages of one turn of the event loop become one record per lane, and a record one message of a channel:

    byte  size  field
       0     4  lane: 0 to n - 1; pub-sub: the number of the lane it is bound to, all ones while it is bound to none
       4     4  how long ago it was first sent, in ms, when an earlier channel may have carried it
       8        the record; its header has the write id, the number of messages, and when it was made

Records first wait, then are given to a channel, and are removed when a commit that covers them is acknowledged. When
the channel fails they all wait again, marked with whether they may have been stored. The window answers whether a
commit is complete (`passed`) and whether the limit is reached (`full`, `low`), and returns the messages of a failed
producer (`messages`).
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
    """A message of a failed producer. "unsent": it is not in the queue and never will be. "unknown": it may be; query
    its outcome with `write_id` and `lane`."""

    value: bytes
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    time_ms: int
    fate: Fate
    lane: int | None
    write_id: bytes


class LaneProgress(Struct):
    """A producer's progress in one lane: write ids of the first and last stored record, and how many messages."""

    first: bytes
    last: bytes
    messages: int = 0


class ProducerRecord:
    """A record of a producer. `maybe`: it may be stored in `lane`, which had reached `since` before that. `sent_at`:
    time of the first attempt."""

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
        """Bind the record to another lane. It must not be `maybe` in the previous one."""
        assert not self.maybe
        if lane != self.lane:
            self.lane, self.value = lane, message_of(self.record, lane=lane)


def message_of(record: Buffer, *, lane: int, age_ms: int = 0) -> bytes:
    """The channel message of a record."""
    return b"".join((_HEAD.pack(lane, min(age_ms, _AGE_MS_MAX)), record))


def read_message(value: Buffer) -> ProducerRecord:
    """The record in a stored message. Raises Malformed. The store has verified its checksums."""
    view = plain_view(value)
    if len(view) < _HEAD.size + HEADER_SIZE_BYTES:
        raise TooShort("a stored message", expected="a lane and a record", found=len(view))
    lane, _ = _HEAD.unpack_from(view)
    batch = Batch(view[_HEAD.size :])
    return ProducerRecord(bytes(view), lane=lane, count=batch.count, write_id=batch.write_id)


class Window:
    """`waiting` records have not been given to the current channel, `given` ones have."""

    def __init__(
        self,
        *,
        count_max: int = limits.CHANNEL_PENDING_COUNT,
        size_bytes_max: int = limits.CHANNEL_PENDING_SIZE_BYTES,
    ) -> None:
        self.count_max, self.size_bytes_max = count_max, size_bytes_max
        self.given: deque[ProducerRecord] = deque()
        self.waiting: deque[ProducerRecord] = deque()
        self.messages_count = self.size_bytes = 0
        self.last_number = 0
        self.reached: dict[int, LaneProgress] = {}

    def __len__(self) -> int:
        return len(self.given) + len(self.waiting)

    def __iter__(self) -> Iterator[ProducerRecord]:
        return chain(self.given, self.waiting)

    @property
    def full(self) -> bool:
        return len(self) >= self.count_max or self.size_bytes >= self.size_bytes_max

    @property
    def low(self) -> bool:
        return len(self) <= self.count_max // 2 and self.size_bytes <= self.size_bytes_max // 2

    def passed(self, number: int) -> bool:
        """Whether everything up to this record is acknowledged."""
        first = self.given or self.waiting
        return not first or first[0].number > number

    def add(self, sent: ProducerRecord) -> None:
        self.last_number += 1
        sent.number = self.last_number
        self.waiting.append(sent)
        self.messages_count += sent.count
        self.size_bytes += sent.size_bytes

    def give(self) -> ProducerRecord:
        """The next waiting record, which is given to the current channel."""
        sent = self.waiting.popleft()
        sent.maybe = True
        self.given.append(sent)
        return sent

    def release(self, count: int) -> None:
        """The first `count` given records were acknowledged."""
        for _ in range(count):
            self._left(self.given.popleft())

    def take_back(self, fates: Iterable[str]) -> None:
        """The channel has ended: all records wait again. `fates` are those of the given records, in order."""
        for sent, fate in zip(self.given, fates, strict=True):
            sent.maybe = fate != "unsent"
            sent.sent_at = sent.sent_at if sent.maybe else 0.0
        self.waiting = deque(self)
        self.given.clear()

    def resolved(self, sent: ProducerRecord) -> None:
        """This waiting record is in the queue. Called while no channel is open."""
        self.waiting.remove(sent)
        self._left(sent)

    def _left(self, sent: ProducerRecord) -> None:
        self.messages_count -= sent.count
        self.size_bytes -= sent.size_bytes
        reached = self.reached.get(sent.lane)
        if reached is None:
            reached = self.reached[sent.lane] = LaneProgress(sent.write_id, sent.write_id)
        reached.last = sent.write_id
        reached.messages += sent.count

    def messages(self) -> list[PendingMessage]:
        return [message for sent in self for message in messages_of(sent)]


def messages_of(sent: ProducerRecord) -> Iterator[PendingMessage]:
    """The messages of one record, each with what is known about its outcome."""
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
