"""Staged writes: many batches that become visible together, or not at all.

    async with queue.transaction() as txn:
        await txn.enqueue_many([...])
    txn.published

Staged messages are stored like any other, but are invisible until the transaction is published, which happens when the
block ends without an exception. If it raises, they are discarded. If this process dies, the peers discard them after
`deadline_s`. All messages of one lane become visible at once, with consecutive versions. A transaction over several
lanes of a queue has one outcome in all of them: one of the lanes decides, and the others follow. A reader may see one
lane's messages a moment before another's.

Staging, publishing and discarding are retried until a peer confirms them, which is safe: a staged batch has a write id,
and a transaction is decided once.

Several programs may write to one transaction: they use the same name, each stages under its own `part`, and one of them
calls `publish_parts` with the parts to publish (each writer's `staged`, sent to the publisher). Other parts, of failed
attempts, are dropped. A published transaction is remembered, so if the whole work is repeated, nothing is staged
(`enqueue_many` raises AlreadyDecided) or published again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from os import urandom
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from msgspec import json

from avow import limits
from avow.client.batches import Batch
from avow.client.descriptions import queue_path
from avow.client.message_columns import Headers, columns_of, split
from avow.client.outcomes import Done, read_written
from avow.client.peer_connection import BATCH, JSON
from avow.errors import AvowError, InvalidRequest
from avow.queue.key_to_lane import lane_for

if TYPE_CHECKING:
    from avow.client.batches import WriteBuffer
    from avow.client.cluster import Cluster
    from avow.wire.record import Buffer

DEADLINE_S: Final = 60.0


class Transaction:
    def __init__(
        self, cluster: Cluster, buffer: WriteBuffer, *, name: str | None, deadline_s: float, part: int = 0
    ) -> None:
        if not 0 < deadline_s <= limits.STAGE_DEADLINE_S_MAX:
            raise InvalidRequest(
                f"deadline_s must be above 0 and at most {limits.STAGE_DEADLINE_S_MAX:g}, not {deadline_s:g}; "
                "nothing was staged"
            )
        if not 0 <= part <= 1 << 62:
            raise InvalidRequest(
                f"part must be a number from 1 to {1 << 62}, or 0 for none, not {part}; nothing was staged"
            )
        self._cluster, self._buffer, self._deadline_s, self.part = cluster, buffer, deadline_s, part
        self.staged: dict[int, int] = {}  # lane -> messages staged there
        self.name: str = name or urandom(16).hex()
        self.published: list[Done] = []
        self._lanes: dict[int, bytes] = {}  # lanes with staged messages -> the last write id there
        self._decided = ""

    async def enqueue(
        self,
        value: Buffer,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        time_ms: int | None = None,
        lane: int | None = None,
    ) -> None:
        await self.enqueue_many(
            [value],
            keys=None if key is None else [key],
            headers=None if headers is None else [headers],
            times=None if time_ms is None else [time_ms],
            lane=lane,
        )

    async def enqueue_many(
        self,
        values: Sequence[Buffer],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        times: Sequence[int] | None = None,
        lane: int | None = None,
    ) -> None:
        """Stage messages. They keep the order of these calls within a lane."""
        self._require_open()
        columns = columns_of(values, keys=keys, headers=headers, times=times)
        await self._buffer.known()
        by_lane: dict[int, list[int]] = {}
        for number in range(len(values)):
            key = None if keys is None else keys[number]
            by_lane.setdefault(self._lane_for(key, lane), []).append(number)
        for found, numbers in by_lane.items():
            for span in split(columns.sizes(numbers)):
                batch = Batch(deadline=0.0)
                columns.fill(batch, numbers[span.start : span.stop])
                self._lanes[found] = batch.write_id
                await self.stage_record(found, batch.encode(), write_id=batch.write_id, count=len(span))

    def _lane_for(self, key: bytes | None, lane: int | None) -> int:
        """Messages without a key go to one lane, whose messages become visible at once. It is the lane that decides,
        because one lane alone needs no steps."""
        if key is not None or lane is not None:
            return self._buffer.lane_of(key, lane)
        return lane_for(self.name.encode(), self._buffer.lanes_count)

    async def stage_record(self, lane: int, record: Buffer, *, write_id: bytes, count: int) -> None:
        """Stage an encoded batch (`avow.wire`) of `count` messages with this write id."""
        self._lanes[lane] = write_id
        target = self._path("messages") + b"?lane=%d&deadline_s=%g" % (lane, self._deadline_s)
        if self.part:
            target += b"&part=%d" % self.part
        preferred = self._buffer.coordinator_of(lane)
        await self._cluster.call(b"POST", target, headers=BATCH, body=record, write_id=write_id, preferred=preferred)
        self.staged[lane] = self.staged.get(lane, 0) + count

    # ----------------------------------------------------------------- decisions

    async def publish(self) -> list[Done]:
        """Make all staged messages visible, in all lanes or in none. Without staged messages this does nothing. May be
        repeated."""
        self._decide("published")
        self.published = await self._publish(self._only_lane(self._lanes), b"") if self._lanes else []
        return self.published

    async def publish_parts(self, parts: Mapping[int, Mapping[int, int]]) -> list[Done]:
        """Publish these parts: lane -> {part: its number of messages}. Raises Incomplete if a number does not match.

        All of them become visible, or none. Other parts of the transaction are dropped. May be repeated, also by
        another program.
        """
        self._decide("published")
        self.published = await self._publish_lanes(parts) if parts else []
        return self.published

    async def _publish_lanes(self, parts: Mapping[int, Mapping[int, int]]) -> list[Done]:
        """A peer of the first release refuses a body with `lanes`. It decides lane by lane, so it is asked that way; a
        peer that decides for all lanes refuses to do so for one of several."""
        lanes = [{"lane": lane, "parts": _listed(counts)} for lane, counts in sorted(parts.items())]
        try:
            return await self._publish(None, json.encode({"lanes": lanes}))
        except InvalidRequest:
            return [
                done for lane, counts in sorted(parts.items()) for done in await self._publish(lane, _parts(counts))
            ]

    async def _publish(self, lane: int | None, body: bytes) -> list[Done]:
        target = self._path("publish") + (b"" if lane is None else b"?lane=%d" % lane)
        write_id = b"" if lane is None else self._lanes.get(lane, b"")
        answer = await self._cluster.call(b"POST", target, headers=JSON, body=body, write_id=write_id)
        found = []
        for span in read_written(answer.body).published:
            staged = self._lanes.get(span.lane, b"")
            found.append(Done(self._buffer.queue, span.lane, span.first_version, span.last_version, staged))
            self._buffer.seen[span.lane] = max(span.last_version, self._buffer.seen.get(span.lane, 0))
        return found

    @staticmethod
    def _only_lane(lanes: Collection[int]) -> int | None:
        """A request about one lane names it: peers of the first release then ask no other."""
        return next(iter(lanes)) if len(lanes) == 1 else None

    async def discard_parts(self, parts: Mapping[int, Collection[int]]) -> None:
        """Drop these parts of each lane, without deciding the transaction. May be repeated."""
        for lane, dropped in sorted(parts.items()):
            body = _parts(dict.fromkeys(dropped, 0))
            await self._cluster.call(b"POST", self._path("discard") + b"?lane=%d" % lane, headers=JSON, body=body)

    async def discard(self) -> None:
        """Drop all staged messages. May be repeated."""
        self._decide("discarded")
        if self._lanes:
            lane = self._only_lane(self._lanes)
            target = self._path("discard") + (b"" if lane is None else b"?lane=%d" % lane)
            await self._cluster.call(b"POST", target, headers=JSON)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._decided or (error is None and self.part):
            return
        if error is None:
            await self.publish()
            return
        try:
            await (self.discard_parts(dict.fromkeys(self._lanes, (self.part,))) if self.part else self.discard())
        except AvowError as refusal:
            error.add_note(f"the staged messages were not discarded ({refusal}); the peers drop them at the deadline")

    def _path(self, what: str) -> bytes:
        return queue_path(self._buffer.queue, "transactions", self.name, what)

    def _decide(self, decision: str) -> None:
        if self._decided != decision:
            self._require_open()
        self._decided = decision

    def _require_open(self) -> None:
        if self._decided:
            raise InvalidRequest(
                f"transaction {self.name} is already {self._decided}; nothing was changed. Begin another one"
            )


def _parts(parts: Mapping[int, int]) -> bytes:
    return json.encode({"parts": _listed(parts)})


def _listed(parts: Mapping[int, int]) -> list[dict[str, int]]:
    return [{"part": part, "messages": count} for part, count in parts.items()]
