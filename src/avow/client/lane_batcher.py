"""Collects the messages of one turn of the event loop into one batch per lane.

A message with a key goes to the key's lane. Messages without a key go to one lane per turn of the event loop, round
robin, so messages sent together stay together. A record for a pub-sub queue is bound to a lane when it is sent, so all
its messages go into one batch without a lane.

Each message is validated before it is added, so every batch can be encoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from avow import limits
from avow.client.batches import Batch
from avow.client.message_columns import OVERHEAD_BYTES, Headers, Pairs, check_size, pairs_of, pairs_size, plain_bytes
from avow.client.window import UNBOUND
from avow.errors import InvalidRequest
from avow.queue.key_to_lane import lane_for

if TYPE_CHECKING:
    from avow.wire.record import Buffer

RECORD_SIZE_BYTES: Final = 512 * limits.KIB  # a record is closed at this size, so that several are in flight
_TIME_MS_END: Final = 1 << 63


class LaneBatcher:
    """`lanes_count` is 0 for pub-sub. `put` returns the lane if its batch is now full."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self.lanes_count = 0
        self.open: dict[int, Batch] = {}
        self._number = 0
        self._lane = UNBOUND  # the lane for messages without a key or a lane

    @property
    def messages_count(self) -> int:
        return sum(len(batch.values) for batch in self.open.values())

    def know(self, lanes_count: int) -> None:
        self.lanes_count = lanes_count
        self.pass_on()

    def pass_on(self) -> None:
        self._number += 1
        self._lane = self._number % self.lanes_count if self.lanes_count else UNBOUND

    # ------------------------------------------------------------------ messages

    def put_plain(self, value: bytes) -> int | None:
        """The hot path: one value and nothing else."""
        size, batch = len(value), self.open.get(self._lane)
        if size > limits.MESSAGE_SIZE_BYTES_MAX:
            check_size(size)
        if batch is None:
            batch = self.open[self._lane] = Batch(deadline=0.0)
        if batch.plain:
            batch.values.append(value)
            batch.size += size + OVERHEAD_BYTES
        else:
            batch.put(value, None, None, None)
        return self._lane if _full(batch) else None

    def put(
        self, value: Buffer, *, key: bytes | None, headers: Headers | None, time_ms: int | None, lane: int | None
    ) -> int | None:
        found, pairs = self.check(value, key=key, headers=headers, time_ms=time_ms, lane=lane)
        number = self.lane_of(key, lane)
        batch = self.open.get(number)
        if batch is None:
            batch = self.open[number] = Batch(deadline=0.0)
        batch.put(found, key, pairs, time_ms)
        return number if _full(batch) else None

    def check(
        self, value: Buffer, *, key: bytes | None, headers: Headers | None, time_ms: int | None, lane: int | None
    ) -> tuple[bytes, Pairs | None]:
        """Validate a message; raises if it is invalid. May be called on any thread."""
        found, pairs = plain_bytes(value), pairs_of(headers)
        check_size(len(found))
        for part in (*(() if key is None else (key,)), *(item for _, item in pairs or ())):
            if not isinstance(part, bytes):
                raise TypeError(f"keys and header values must be bytes, not {type(part).__name__}; nothing was sent")
        check_size(len(key or b"") + pairs_size(pairs))
        if time_ms is not None and not -_TIME_MS_END <= time_ms < _TIME_MS_END:
            raise InvalidRequest(f"time_ms {time_ms} is out of range; nothing was sent. Pass milliseconds since 1970")
        if lane is not None:
            self.lane_of(None, lane)
        return found, pairs

    # --------------------------------------------------------------------- lanes

    def lane_of(self, key: bytes | None, lane: int | None) -> int:
        count = self.lanes_count
        if lane is None:
            return self._lane if key is None or not count else lane_for(key, count)
        if not count:
            raise InvalidRequest(
                "each lane of a pub-sub queue belongs to a peer; nothing was sent. Write without naming a lane"
            )
        if not 0 <= lane < count:
            raise InvalidRequest(f"queue {self._queue!r} has lanes 0 to {count - 1}, no lane {lane}; nothing was sent")
        return lane

    def groups(
        self, count: int, *, keys: Sequence[bytes | None] | None, lane: int | None
    ) -> list[tuple[int, Sequence[int]]]:
        """The indexes of the messages that go to each lane, for `count` messages with these keys."""
        if keys is None or lane is not None or self.lanes_count <= 1:
            return [(self.lane_of(None, lane), range(count))] if count else []
        by_lane: dict[int, list[int]] = {}
        for number, key in enumerate(keys):
            by_lane.setdefault(self.lane_of(key, None), []).append(number)
        return sorted(by_lane.items())


def _full(batch: Batch) -> bool:
    return batch.size >= RECORD_SIZE_BYTES
