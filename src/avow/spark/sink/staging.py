"""Stages the rows of one attempt of a task: one part of a transaction, in any number of queues.

Several batches are in flight at a time, but at most one per lane: a lane keeps a transaction's batches in the order in
which they were stored, and a retried batch would otherwise be overtaken by the next one. The next batch is encoded
while one is in flight, so a task waits for a lane only if the lane is slower than Spark.

A lane that has already published this transaction answers ALREADY_DECIDED: the job is repeated after a crash of the
driver. Its rows are then dropped here, the lane is recorded, and the other lanes are staged as usual.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from os import urandom
from time import time_ns
from typing import TYPE_CHECKING, Final

from avow import limits
from avow.client.client import Client, connect
from avow.client.loop_thread import LoopThread
from avow.errors import AlreadyDecided, AvowError, InvalidRequest
from avow.wire.arrow import from_arrow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from avow.client.transaction import Transaction
    from avow.spark.sink.options import SinkOptions
    from avow.spark.sink.routing import Part
    from avow.wire.record import Buffer

TIMEOUT_S: Final = 60.0  # a call is retried this long, since coordinators change and peers restart
DISCARD_TIMEOUT_S: Final = 5.0
IN_FLIGHT_MAX: Final = 8  # batches of one attempt


class Staging:
    """A blocking object with an event loop of its own. The caller must close it."""

    def __init__(self, options: SinkOptions, *, name: str, part: int) -> None:
        self._options, self._name, self._part = options, name, part
        self._thread = LoopThread()
        self._client: Client | None = None
        self._transactions: dict[str, Transaction] = {}
        self._last: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        self.decided: dict[str, set[int]] = {}  # lanes that have published this transaction before

    def lanes_of(self, topic: str) -> int:
        """Raises InvalidRequest if the queue does not support staged writes, UnknownQueue if it does not exist."""
        return self._thread.run(self._begin(topic))

    async def _begin(self, topic: str) -> int:
        if self._client is None:
            options = self._options
            self._client = await connect(options.servers, token=options.token, ca=options.ca, timeout_s=TIMEOUT_S)
        queue = self._client.queue(topic)
        info = await queue.info()
        if info.pubsub:
            raise InvalidRequest(refusal_of_pubsub(topic))
        deadline_s = self._options.stage_deadline_s
        self._transactions[topic] = queue.transaction(self._name, deadline_s=deadline_s, part=self._part)
        return len(info.lanes)

    def put(self, part: Part) -> None:
        """Returns when the part is in flight. Raises the error of an earlier one."""
        if part.lane in self.decided.get(part.topic, ()):
            return
        write_id = urandom(limits.WRITE_ID_SIZE_BYTES)
        record = from_arrow(part.messages, write_id=write_id, created_ms=time_ns() // 1_000_000)
        self._thread.run(self._send(part.topic, part.lane, record, write_id, part.messages.num_rows))

    async def _send(self, topic: str, lane: int, record: Buffer, write_id: bytes, count: int) -> None:
        await self._slots.acquire()
        before = self._last.get((topic, lane))
        if before is not None and before.done():
            before.result()
        work = self._stage(before, topic, lane, record, write_id, count)
        self._last[topic, lane] = asyncio.get_running_loop().create_task(work)

    async def _stage(
        self,
        before: asyncio.Task[None] | None,
        topic: str,
        lane: int,
        record: Buffer,
        write_id: bytes,
        count: int,
    ) -> None:
        try:
            if before is not None:
                await before
            if lane in self.decided.get(topic, ()):
                return
            await self._transactions[topic].stage_record(lane, record, write_id=write_id, count=count)
        except AlreadyDecided as error:
            if not getattr(error, "cursor", 0):  # only a published transaction has versions
                raise
            self.decided.setdefault(topic, set()).add(lane)
        finally:
            self._slots.release()

    def finish(self) -> Mapping[str, Mapping[int, int]]:
        """Waits until all batches are stored; the staged messages per queue and lane. Raises the error of a batch."""
        self._thread.run(self._finish())
        return {topic: dict(found.staged) for topic, found in self._transactions.items() if found.staged}

    async def _finish(self) -> None:
        await asyncio.gather(*self._last.values())

    def discard(self, error: BaseException) -> None:
        """Drop what the attempt staged, since it failed with `error`. If no peer can be reached, it expires."""
        if self._client is None:
            return
        try:
            self._thread.run(self._discard())
        except (AvowError, TimeoutError) as refusal:
            error.add_note(f"the rows staged by this attempt could not be discarded; they will expire: {refusal}")

    async def _discard(self) -> None:
        await self._stop()
        async with asyncio.timeout(DISCARD_TIMEOUT_S):
            for transaction in self._transactions.values():
                with suppress(AlreadyDecided):
                    lanes = {lane for topic, lane in self._last if self._transactions[topic] is transaction}
                    await transaction.discard_parts(dict.fromkeys(lanes, (self._part,)))

    async def _stop(self) -> None:
        tasks = tuple(self._last.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        if self._client is not None and self._thread.running:
            self._thread.run(self._stop())
            self._thread.run(self._client.close())
        self._thread.stop()


def refusal_of_pubsub(topic: str) -> str:
    return (
        f"queue {topic!r} is a pub-sub queue, but Spark's rows are staged, which needs the single order of a two-phase "
        "queue; nothing was written. Write to a two-phase queue, or send with foreachPartition and a producer, which "
        "is at least once"
    )
