"""One queue, as an application uses it: write, read, follow, manage cursors.

A write returns (done), raises a refusal (it did not and will not happen), or raises `Unknown` (it may have happened;
the error has the write id, and `outcome` queries the outcome).

Following a queue yields every lane's messages as they become visible, in one stream that a peer pushes.
Order holds within a lane. The lanes of a pub-sub queue come and go with its peers; the channel follows them. When a
channel ends, the next one, to another peer, starts after the last message of each lane: nothing is repeated or missing.

A subscriber starts at its cursor, which moves when a batch is committed: messages that were read and not committed are
read again. That is at-least-once; for exactly-once, store the version together with the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from avow.client.batches import WriteBuffer
from avow.client.cluster_view import survey
from avow.client.descriptions import (
    Level,
    QueueInfo,
    SubscriberInfo,
    queue_path,
    read_subscriber,
    read_subscribers,
)
from avow.client.lane_sender import open_senders
from avow.client.message_columns import Headers
from avow.client.outcomes import Done, read_written
from avow.client.push_stream import Commit, LaneAssignment, positions, pushed, read_pushed
from avow.client.reader import READ_COUNT_MAX, READ_SIZE_BYTES, LaneReader, ReadBatch, StoredMessage, read_stored
from avow.client.transaction import DEADLINE_S, Transaction
from avow.errors import InvalidRequest, Unknown, UnknownSubscriber

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from avow.client.cluster import Cluster
    from avow.wire.record import Buffer


class Tail:
    """Batches of all lanes, or `only` of one. `after`: the version to start after, for lanes not read from the
    start."""

    def __init__(
        self, cluster: Cluster, *, queue: str, after: Mapping[int, int], only: int | None, commit: Commit | None
    ) -> None:
        self._cluster, self._queue, self._only, self._commit = cluster, queue, only, commit
        self._after = {lane: version for lane, version in after.items() if only in (None, lane)}

    async def pages(self) -> AsyncGenerator[list[ReadBatch], None]:
        async with aclosing(pushed(self._cluster, self._parameters, self._read)) as groups:
            async for batches in groups:
                if batches:
                    yield batches
                    self._after.update({batch.lane: batch.last_version for batch in batches})

    def _read(self, value: memoryview) -> list[ReadBatch]:
        found = read_pushed(value)
        return [] if isinstance(found, LaneAssignment) else [ReadBatch(one, self._commit) for one in found]

    def _parameters(self) -> dict[str, str]:
        found = {"role": "reader", "queue": self._queue, "format": "ranges", "from": "start"}
        if self._only is not None:
            found["lane"] = str(self._only)
        if self._after:
            found["after"] = positions(self._after)
        return found


After: TypeAlias = int | Mapping[int, int]
_PLAIN: Final = (None,) * 7


class Queue:
    """Made by `Client.queue`, which returns the same object for the same name, so that callers share its batches."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self._cluster = cluster
        self._buffer = WriteBuffer(cluster, name, partial(open_senders, cluster))
        self._send_plain = self._buffer.send_plain

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
        created_ms: int | None = None,
    ) -> asyncio.Future[Done]:
        """Send one message; returns a future. Messages sent to a lane in one turn of the event loop form one batch.

        Raises Busy if too many bytes wait in this client; `enqueue` waits instead. Cancelling the future does not
        cancel the message.

        With a `write_id` that an earlier run may have used, `created_ms` says when it was first used. A lane that does
        not remember the ids of that time (without `created_ms`: that has forgotten any) answers Unknown, and stores
        nothing a second time.
        """
        if (key, headers, time_ms, expected, lane, write_id, created_ms) == _PLAIN and type(value) is bytes:
            return self._send_plain(value)
        return self._buffer.send(
            value,
            key=key,
            headers=headers,
            time_ms=time_ms,
            expected=expected,
            lane=lane,
            write_id=write_id,
            created_ms=created_ms,
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
        created_ms: int | None = None,
    ) -> Done:
        """Send one message and wait until it is done. `expected`: raises NotEqual unless the lane ends at this
        version."""
        if self._buffer.budget.full:
            await self._buffer.budget.wait()
        if (key, headers, time_ms, expected, lane, write_id, created_ms) == _PLAIN and type(value) is bytes:
            return await self._send_plain(value)
        return await self.send(
            value,
            key=key,
            headers=headers,
            time_ms=time_ms,
            expected=expected,
            lane=lane,
            write_id=write_id,
            created_ms=created_ms,
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
        created_ms: int | None = None,
    ) -> list[Done]:
        """Send many messages: one batch per lane, or more if one would be too large. A batch succeeds or fails as a
        whole.

        If one fails, its error is raised after all outcomes are known, and `error.done` lists the batches that are
        done."""
        await self._buffer.known()
        await self._buffer.budget.wait()
        futures = self._buffer.send_many(
            values,
            keys=keys,
            headers=headers,
            times=times,
            expected=expected,
            lane=lane,
            write_id=write_id,
            created_ms=created_ms,
        )
        if len(futures) == 1:
            return [await futures[0]]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        done = [found for found in outcomes if isinstance(found, Done)]
        for found in outcomes:
            if isinstance(found, BaseException):
                found.__dict__["done"] = done
                raise found
        return done

    async def outcome(self, write_id: bytes, *, lane: int | None = None) -> list[Done]:
        """The outcome of a write. Two-phase: raises UnknownMessage if no peer remembers it. Pub-sub: pass the lane."""
        target = queue_path(self.name, "writes", write_id.hex())
        answer = await self._cluster.call(b"GET", target if lane is None else target + b"?lane=%d" % lane)
        spans = read_written(answer.body).written
        return [Done(self.name, span.lane, span.first_version, span.last_version, write_id) for span in spans]

    def transaction(self, name: str | None = None, *, deadline_s: float = DEADLINE_S, part: int = 0) -> Transaction:
        """Staged writes: they become visible together when the block ends, and are discarded if it raises.

        With a `part` this is one of several writers of the transaction, and one of them calls `publish_parts`; see
        `avow.client.transaction`.
        """
        return Transaction(self._cluster, self._buffer, name=name, deadline_s=deadline_s, part=part)

    # ------------------------------------------------------------------- reading

    async def info(self) -> QueueInfo:
        """The current state of the queue: lanes, ends, coordinators."""
        return await self._buffer.asked()

    async def survey(self, *, confirmed: bool = False) -> QueueInfo:
        """Like `info`, merged from the answers of all peers: the highest end of each lane.

        `confirmed`: for a two-phase queue, the ends include every write that was done before this call.
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
        """Batches after a version, up to `until` or the end in the first answer. Without a lane: one lane after
        another.

        `level`: "local" reads what the peer has, including all writes of this client that are done; "at_least" waits
        until the peer has version `at_least`; "linearizable" includes every write that was done before the call.
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
        """Like `read`, but yields all batches of one answer at a time. `preferred`: the number of the peer to ask
        first. `local`: read the batches from that peer's files, if they are on this machine and readable."""
        info = await (self.info() if lane is None else self._buffer.known())
        lanes = [found.lane for found in info.lanes] if lane is None else [lane]
        if len(lanes) > 1 and not isinstance(after, Mapping) and (after or until is not None):
            raise InvalidRequest(
                f"queue {self.name!r} has {len(lanes)} lanes; nothing was read. Pass `lane`, or `after` as a mapping"
            )
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
            floor = self._buffer.seen.get(number, 0)
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
        """An endless stream of all batches after a version. With a subscriber: from its cursor, with `commit`.

        Any number of readers may follow for one subscriber, and each can move its cursor. `Client.subscribe` is for one
        reader at a time, or for members that share the lanes.
        """
        async with aclosing(self.follow_pages(after=after, lane=lane, subscriber=subscriber)) as pages:
            async for batches in pages:
                for batch in batches:
                    yield batch

    async def follow_pages(
        self, *, after: After | None = None, lane: int | None = None, subscriber: str | None = None
    ) -> AsyncGenerator[list[ReadBatch], None]:
        """Like `follow`, but yields all batches of one push at a time."""
        info = await self.info()
        starts = {found.lane: after for found in info.lanes} if isinstance(after, int) else dict(after or {})
        commit = None
        if subscriber is not None:
            starts = {**starts, **(await self._registered(subscriber, info))}
            commit = partial(self._commit, subscriber)
        for found in info.lanes:
            if found.lane in starts:
                starts[found.lane] = max(starts[found.lane], found.trimmed_to)
        tail = Tail(self._cluster, queue=self.name, after=starts, only=lane, commit=commit)
        async with aclosing(tail.pages()) as pages:
            async for batches in pages:
                yield batches

    # --------------------------------------------------------------- subscribers

    async def subscribers(self) -> tuple[SubscriberInfo, ...]:
        target = queue_path(self.name, "subscribers")
        answer = await self._cluster.call(b"GET", target, preferred=self._buffer.coordinator)
        return read_subscribers(answer.body).subscribers

    async def cursor(self, subscriber: str) -> dict[int, int]:
        """{lane: version}, as one peer has applied it, which may lag behind a move. Raises UnknownSubscriber."""
        target = queue_path(self.name, "subscribers", subscriber)
        answer = await self._cluster.call(b"GET", target, preferred=self._buffer.coordinator)
        return read_subscriber(answer.body).versions

    async def _registered(self, subscriber: str, info: QueueInfo) -> dict[int, int]:
        """The cursor as committed by the lanes now, not as one peer has it: a move to 0 changes nothing or creates
        it."""
        zeros = {} if info.pubsub else {lane.lane: 0 for lane in info.lanes}
        return (await self.move_cursor(subscriber, zeros)).versions

    async def _commit(self, subscriber: str, lane: int, version: int) -> None:
        await self.move_cursor(subscriber, {lane: version})

    async def move_cursor(
        self, subscriber: str, versions: Mapping[int, int], *, hold: bool | None = None
    ) -> SubscriberInfo:
        """Move a cursor, forward only: a lane whose cursor is higher keeps it. `hold`: do not trim after the cursor."""
        return await self._put_cursor(subscriber, versions, hold=hold, reset=False)

    async def reset_cursor(
        self, subscriber: str, versions: Mapping[int, int], *, hold: bool | None = None
    ) -> SubscriberInfo:
        """Set a cursor to exactly these versions, also backwards."""
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
        """Delete a subscriber's cursor and hold. Raises UnknownSubscriber."""
        try:
            await self._cluster.call(b"DELETE", queue_path(self.name, "subscribers", subscriber))
        except Unknown as error:
            if not isinstance(error.__cause__, UnknownSubscriber):  # an earlier attempt, whose answer was lost, did it
                raise

    async def trim(self, lane: int, upto: int) -> int:
        """Remove messages up to a version, as far as holds allow. Returns the version trimmed to."""
        answer = await self._cluster.send_json(
            b"POST", queue_path(self.name, "trim"), {"lane": lane, "upto_version": upto}
        )
        return int(msgspec.json.decode(answer.body)["trimmed_to"])

    @property
    def write_buffer(self) -> WriteBuffer:
        """The write buffer, for other writers to this queue."""
        return self._buffer

    def close(self) -> None:
        self._buffer.close()

    def statistics(self) -> list[dict[str, int]]:
        return self._buffer.statistics()
