"""One queue, as an application uses it: write, read, follow, keep a cursor.

Every method says in its outcome what is known: it returns (done), raises a refusal (it did not and will not happen), or
raises `Unknown` (it may have happened; the error has the write id, and `outcome` asks what became of it).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from avow.client.batching import Headers
from avow.client.following import Follower
from avow.client.metadata import (
    Level,
    QueueInfo,
    SubscriberInfo,
    queue_path,
    read_subscriber,
    read_subscribers,
)
from avow.client.outbox import Outbox
from avow.client.outcomes import Done, read_written
from avow.client.reading import READ_COUNT_MAX, READ_SIZE_BYTES, LaneReader, ReadBatch, StoredMessage, read_stored
from avow.client.survey import survey
from avow.client.transaction import DEADLINE_S, Transaction
from avow.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from avow.client.cluster import Cluster
    from avow.wire.record import Buffer

After = int | Mapping[int, int]
_PLAIN: Final = (None,) * 6


class Queue:
    """Made by `Client.queue`, which gives the same one for the same name: its batches are shared."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self._cluster = cluster
        self._outbox = Outbox(cluster, name)
        self._send_plain = self._outbox.send_plain

    # ------------------------------------------------------------------- writing

    def send(
        self,
        value: Buffer,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        time_ms: int | None = None,
        expected: int | None = None,
        lane: int | None = None,
        write_id: bytes | None = None,
    ) -> asyncio.Future[Done]:
        """The future of one message. All that is sent to a lane in one turn of the event loop leaves as one batch.

        Raises Busy when too much waits in this client already; `enqueue` waits instead. Cancelling the future does not
        call the message back.
        """
        if (key, headers, time_ms, expected, lane, write_id) == _PLAIN and type(value) is bytes:
            return self._send_plain(value)
        return self._outbox.send(
            value, key=key, headers=headers, time_ms=time_ms, expected=expected, lane=lane, write_id=write_id
        )

    async def enqueue(
        self,
        value: Buffer,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        time_ms: int | None = None,
        expected: int | None = None,
        lane: int | None = None,
        write_id: bytes | None = None,
    ) -> Done:
        """One message, done. `expected`: only if the lane ends at this version now, else NotEqual."""
        if self._outbox.room.full:
            await self._outbox.room.wait()
        if (key, headers, time_ms, expected, lane, write_id) == _PLAIN and type(value) is bytes:
            return await self._send_plain(value)
        return await self.send(
            value, key=key, headers=headers, time_ms=time_ms, expected=expected, lane=lane, write_id=write_id
        )

    async def enqueue_many(
        self,
        values: Sequence[Buffer],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        times: Sequence[int] | None = None,
        expected: int | None = None,
        lane: int | None = None,
        write_id: bytes | None = None,
    ) -> list[Done]:
        """Many messages: one batch for each lane, more where one would be too large. Each is done or not as a whole.

        When one is not, its error is raised after all have been settled, and `error.done` lists those that are done.
        """
        await self._outbox.known()
        await self._outbox.room.wait()
        futures = self._outbox.send_many(
            values, keys=keys, headers=headers, times=times, expected=expected, lane=lane, write_id=write_id
        )
        if len(futures) == 1:
            return [await futures[0]]
        settled = await asyncio.gather(*futures, return_exceptions=True)
        done = [found for found in settled if isinstance(found, Done)]
        for found in settled:
            if isinstance(found, BaseException):
                found.__dict__["done"] = done
                raise found
        return done

    async def outcome(self, write_id: bytes, *, lane: int | None = None) -> list[Done]:
        """What became of a write. Two-phase: UnknownMessage when no peer remembers it. Pub-sub: name the lane."""
        target = queue_path(self.name, "writes", write_id.hex())
        answer = await self._cluster.call(b"GET", target if lane is None else target + b"?lane=%d" % lane)
        spans = read_written(answer.body).written
        return [Done(self.name, span.lane, span.first_version, span.last_version, write_id) for span in spans]

    def transaction(self, name: str | None = None, *, deadline_s: float = DEADLINE_S, part: int = 0) -> Transaction:
        """Staged writes: visible together when the block ends, discarded if it raises.

        With a `part`, one of several writers of it: somebody calls `publish_parts`, see `avow.client.transaction`.
        """
        return Transaction(self._cluster, self._outbox, name=name, deadline_s=deadline_s, part=part)

    # ------------------------------------------------------------------- reading

    async def info(self) -> QueueInfo:
        """The queue as it is now: lanes, ends, coordinators."""
        return await self._outbox.asked()

    async def survey(self, *, confirmed: bool = False) -> QueueInfo:
        """As `info`, put together from what all peers say: the furthest end of each lane.

        `confirmed`: of a two-phase queue, no end is before a write that was done when this was called.
        """
        return await survey(self._cluster, self.name, confirmed=confirmed)

    async def read(
        self,
        *,
        after: After = 0,
        lane: int | None = None,
        level: Level = "local",
        at_least: int = 0,
        until: int | None = None,
        max_bytes: int = READ_SIZE_BYTES,
    ) -> AsyncGenerator[ReadBatch, None]:
        """Batches after a version, up to `until` or to the end that the first answer names. No lane: one by one.

        `level`: "local" is what the peer has, and at least what this client was told is done; "at_least" waits until
        the peer has version `at_least`; "linearizable" sees every write that was done before.
        """
        found = self.pages(after=after, lane=lane, level=level, at_least=at_least, until=until, max_bytes=max_bytes)
        async with aclosing(found) as pages:
            async for batches in pages:
                for batch in batches:
                    yield batch

    async def pages(
        self,
        *,
        after: After = 0,
        lane: int | None = None,
        level: Level = "local",
        at_least: int = 0,
        until: int | None = None,
        max_bytes: int = READ_SIZE_BYTES,
        max_count: int = READ_COUNT_MAX,
        preferred: int = 0,
        local: bool = False,
    ) -> AsyncGenerator[list[ReadBatch], None]:
        """As `read`, but all batches of one answer at a time. `preferred`: the number of the peer to ask first;
        `local`: where that peer is on this machine and its files can be read, the batches are taken from there."""
        info = await (self.info() if lane is None else self._outbox.known())
        lanes = [found.lane for found in info.lanes] if lane is None else [lane]
        if len(lanes) > 1 and not isinstance(after, Mapping) and (after or until is not None):
            raise InvalidRequest(f"queue {self.name!r} has {len(lanes)} lanes: name one, or give after as a mapping")
        trimmed = {found.lane: found.trimmed_to for found in info.lanes} if lane is None else {}
        for number in lanes:
            start = after.get(number, 0) if isinstance(after, Mapping) else after
            reader = LaneReader(
                self._cluster,
                queue=self.name,
                lane=number,
                after=start or trimmed.get(number, 0),
                max_bytes=max_bytes,
                max_count=max_count,
                preferred=preferred,
                local=local,
            )
            floor = self._outbox.seen.get(number, 0)
            own = level == "local" and floor > reader.after
            found = reader.pages(until=until, level="at_least" if own else level, at_least=floor if own else at_least)
            async with aclosing(found) as pages:
                async for batches in pages:
                    yield batches

    async def read_one(self, lane: int, version: int) -> StoredMessage:
        """One message by its version id, committed or not. Raises UnknownMessage."""
        answer = await self._cluster.call(b"GET", queue_path(self.name, "messages", lane, version))
        return read_stored(answer.body)

    async def follow(
        self, *, after: After | None = None, lane: int | None = None, subscriber: str | None = None
    ) -> AsyncGenerator[ReadBatch, None]:
        """All after a version, and all that comes, without end. With a subscriber: from its cursor, with `commit`.

        Any number may follow for one subscriber, and none keeps the others from moving its cursor. `Client.subscribe`
        is for one reader at a time, or for members that share the lanes.
        """
        async with aclosing(self.follow_pages(after=after, lane=lane, subscriber=subscriber)) as pages:
            async for batches in pages:
                for batch in batches:
                    yield batch

    async def follow_pages(
        self, *, after: After | None = None, lane: int | None = None, subscriber: str | None = None
    ) -> AsyncGenerator[list[ReadBatch], None]:
        """As `follow`, but all batches of one push at a time."""
        info = await self.info()
        starts = {found.lane: after for found in info.lanes} if isinstance(after, int) else dict(after or {})
        commit = None
        if subscriber is not None:
            starts = {**starts, **(await self._registered(subscriber, info))}
            commit = partial(self._commit, subscriber)
        for found in info.lanes:
            if found.lane in starts:
                starts[found.lane] = max(starts[found.lane], found.trimmed_to)
        follower = Follower(self._cluster, queue=self.name, after=starts, only=lane, commit=commit)
        async with aclosing(follower.pages()) as pages:
            async for batches in pages:
                yield batches

    # --------------------------------------------------------------- subscribers

    async def subscribers(self) -> tuple[SubscriberInfo, ...]:
        target = queue_path(self.name, "subscribers")
        answer = await self._cluster.call(b"GET", target, preferred=self._outbox.coordinator)
        return read_subscribers(answer.body).subscribers

    async def cursor(self, subscriber: str) -> dict[int, int]:
        """{lane: version}, as a peer has it, which may lag a moment behind a move. Raises UnknownSubscriber."""
        target = queue_path(self.name, "subscribers", subscriber)
        answer = await self._cluster.call(b"GET", target, preferred=self._outbox.coordinator)
        return read_subscriber(answer.body).versions

    async def _registered(self, subscriber: str, info: QueueInfo) -> dict[int, int]:
        """The cursor as the lanes decide it now, not as some peer has it: a move to 0 moves nothing, or makes it."""
        zeros = {} if info.pubsub else {lane.lane: 0 for lane in info.lanes}
        return (await self.move_cursor(subscriber, zeros)).versions

    async def _commit(self, subscriber: str, lane: int, version: int) -> None:
        await self.move_cursor(subscriber, {lane: version})

    async def move_cursor(
        self, subscriber: str, versions: Mapping[int, int], *, hold: bool | None = None
    ) -> SubscriberInfo:
        """Forward only: a lane that is further already stays. `hold`: nothing after the cursor is trimmed."""
        return await self._put_cursor(subscriber, versions, hold=hold, reset=False)

    async def reset_cursor(
        self, subscriber: str, versions: Mapping[int, int], *, hold: bool | None = None
    ) -> SubscriberInfo:
        """To exactly these versions, also backwards."""
        return await self._put_cursor(subscriber, versions, hold=hold, reset=True)

    async def _put_cursor(
        self, subscriber: str, versions: Mapping[int, int], *, hold: bool | None, reset: bool
    ) -> SubscriberInfo:
        body: dict[str, object] = {"versions": {str(lane): version for lane, version in versions.items()}}
        if hold is not None:
            body["hold"] = hold
        if reset:
            body["reset"] = True
        target = queue_path(self.name, "subscribers", subscriber)
        return read_subscriber((await self._cluster.send_json(b"PUT", target, body)).body)

    async def remove_subscriber(self, subscriber: str) -> None:
        await self._cluster.call(b"DELETE", queue_path(self.name, "subscribers", subscriber))

    async def trim(self, lane: int, upto: int) -> int:
        """Remove messages up to a version, as far as holds allow. Returns how far."""
        answer = await self._cluster.send_json(
            b"POST", queue_path(self.name, "trim"), {"lane": lane, "upto_version": upto}
        )
        return int(msgspec.json.decode(answer.body)["trimmed_to"])

    @property
    def outbox(self) -> Outbox:
        """What is known of the queue, for what else writes to it."""
        return self._outbox

    def close(self) -> None:
        self._outbox.close()

    def statistics(self) -> list[dict[str, int]]:
        return self._outbox.statistics()
