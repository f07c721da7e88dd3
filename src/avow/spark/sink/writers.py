"""`df.write.format("avow")` and `df.writeStream.format("avow")`: every row is written once, or none is.

A Spark job consists of many tasks, each may run several times, and the driver may crash at any moment and repeat the
last batch. The rows become visible exactly once for three reasons:

 1. The job is one transaction. A repeated job has the same name: (query id, batch id) for a stream, (txnAppId,
    txnVersion) for a batch write. A batch write without those is never repeated and gets a random name.
 2. Every attempt of a task stages under its own number (its part) and reports to the driver how many messages each lane
    got. `commit` publishes the parts of the attempts that Spark chose, with these numbers. The same publish drops what
    other attempts staged.
 3. A lane remembers the transactions it published. A repeated job stages nothing there, and its publish has no effect.

All lanes of a queue are published by one decision, so a driver may crash at any time. If it was decided, the peers
complete it, and the repetition stages nothing; if not, the repetition stages everything again. A job that writes to
several queues has one decision in each: the repetition skips the queues that are published. (So does a cluster whose
level is 1, lane by lane. That is correct only if each row goes to the same lane again: see `routing`.)

Spark calls `abort` even after a commit that failed half-way or took effect. So `abort` discards only the parts that it
is given, which decides nothing; what was published stays.

The mode is append. Spark itself refuses a plain `.save()` (its default mode is errorifexists, and a queue cannot tell
whether it is new), and overwriting a queue is refused here.

A task stages several batches at a time, but at most one per lane: a lane keeps a transaction's batches in the order in
which they were stored, and a retried batch would otherwise be overtaken by the next one. The next batch is encoded
while one is in flight, so a task waits for a lane only if the lane is slower than Spark. A lane that has already
published this transaction answers ALREADY_DECIDED: the job is repeated after a crash of the driver. Its rows are then
dropped here, the lane is recorded, and the other lanes are staged as usual.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from os import urandom
from secrets import randbelow, token_hex
from time import time_ns
from typing import TYPE_CHECKING, Final, TypeAlias

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from avow import limits
from avow.client.blocking import BlockingClient, connect_blocking
from avow.client.client import Client, connect
from avow.client.loop_thread import LoopThread
from avow.errors import AlreadyDecided, AvowError, InvalidRequest, TooMany
from avow.spark.sink.options import SinkOptions, read_options
from avow.spark.sink.routing import Routing, check_columns
from avow.wire.arrow import from_arrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from avow.client.transaction import Transaction
    from avow.spark.sink.routing import Part
    from avow.wire.record import Buffer


Parts: TypeAlias = dict[str, dict[int, dict[int, int]]]  # queue -> lane -> part -> messages

TIMEOUT_S: Final = 60.0  # a call is retried this long, since coordinators change and peers restart
DISCARD_TIMEOUT_S: Final = 5.0
IN_FLIGHT_MAX: Final = 8  # batches of one attempt
CHECK_TIMEOUT_S: Final = 15.0  # before a job, shorter than TIMEOUT_S so that a wrong address is reported soon

# Spark does not document these properties; tests/spark/test_sink.py fails if they disappear.
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one attempt reports to the driver. `decided`: lanes that had already published the transaction."""

    name: str
    part: int
    messages: Mapping[str, Mapping[int, int]] = field(default_factory=dict)  # queue -> lane -> count
    decided: Mapping[str, Sequence[int]] = field(default_factory=dict)


Messages: TypeAlias = Sequence[WriterCommitMessage | None]


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001
    """Raises InvalidRequest before a task is started."""
    found = _checked(options, schema, overwrite=overwrite, streaming=False)
    if found.topic is not None:
        _check_queue(found, found.topic)
    return BatchWriter(found, name=f"batch:{found.job}" if found.job else f"job:{token_hex(16)}")


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001
    """Spark creates a new writer for each batch, and another one to commit it. Raises InvalidRequest."""
    return StreamWriter(_checked(options, schema, overwrite=overwrite, streaming=True))


def _checked(options: Mapping[str, str], schema: StructType, *, overwrite: bool, streaming: bool) -> SinkOptions:
    found = read_options(options, streaming=streaming)
    if overwrite:
        mode = 'outputMode("append") or outputMode("update")' if streaming else 'mode("append")'
        raise InvalidRequest(f"a queue cannot be overwritten, only appended to; nothing was written. Use {mode}")
    check_columns(schema, topic=found.topic)
    return found


def _check_queue(options: SinkOptions, topic: str) -> None:
    with _connect(options, timeout_s=CHECK_TIMEOUT_S) as client:
        if client.queue(topic).info().pubsub:
            raise InvalidRequest(refusal_of_pubsub(topic))


# ---------------------------------------------------------------------- writers


class BatchWriter(DataSourceArrowWriter):
    """Spark pickles the writer to every task, so the transaction's name is the same in all of them."""

    def __init__(self, options: SinkOptions, *, name: str) -> None:
        self._options, self._name = options, name

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return stage(iterator, options=self._options, name=self._name)

    def commit(self, messages: Messages) -> None:
        publish(messages, options=self._options)

    def abort(self, messages: Messages) -> None:
        discard(messages, options=self._options)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return stage(iterator, options=self._options, name=_stream_name())

    def commit(self, messages: Messages, batchId: int) -> None:
        for message in _staged(messages):
            if not message.name.endswith(f":{batchId}"):
                raise InvalidRequest(
                    f"a task staged {message.name}, but batch {batchId} is committed; nothing was published"
                )
        publish(messages, options=self._options)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: ARG002
        discard(messages, options=self._options)


def _stream_name() -> str:
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_ID) if context is not None else None
    batch = context.getLocalProperty(BATCH_ID) if context is not None else None
    if not query or not batch:
        raise InvalidRequest(
            f"this Spark does not pass {QUERY_ID} and {BATCH_ID}, which name a batch, to tasks; nothing was written. "
            "Use foreachBatch with txnAppId and txnVersion"
        )
    return f"stream:{query}:{batch}"


# ------------------------------------------------------------------- in a task


def stage(rows: Iterator[pa.RecordBatch], *, options: SinkOptions, name: str) -> Staged:
    """One attempt of a task. If it fails, its rows are discarded and cannot be published."""
    part = 1 + randbelow(1 << 62)
    staging = Staging(options, name=name, part=part)
    try:
        routing = Routing(topic=options.topic, name=name, lanes_of=staging.lanes_of)
        for found in routing.parts(rows):
            staging.put(found)
        counts = staging.finish()
    except BaseException as error:
        _add_task_note(error)
        staging.discard(error)
        raise
    finally:
        staging.close()
    return Staged(name, part, counts, {topic: sorted(lanes) for topic, lanes in staging.decided.items()})


def _add_task_note(error: BaseException) -> None:
    context = TaskContext.get()
    if context is not None and isinstance(error, AvowError):
        error.add_note(f"in partition {context.partitionId()}, attempt {context.attemptNumber()}")


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
            fate = getattr(error, "fate", "published" if getattr(error, "cursor", 0) else "")
            if fate != "published":  # without a fate: only a published transaction has versions
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
        """First wait for the writes in flight: one that a peer took after the discard would stay until it expires."""
        async with asyncio.timeout(DISCARD_TIMEOUT_S):
            await asyncio.gather(*self._last.values(), return_exceptions=True)
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


# --------------------------------------------------------------- on the driver


def publish(messages: Messages, *, options: SinkOptions) -> None:
    """Make the rows visible, queue by queue. May be repeated, also by another driver."""
    parts = parts_of(messages)
    if not parts:
        return
    _check_bound(parts)
    name = _staged(messages)[0].name
    done: list[str] = []
    with _connect(options) as client:
        for topic, lanes in sorted(parts.items()):
            try:
                client.queue(topic).transaction(name).publish_parts(lanes)
            except AvowError as error:
                error.add_note(_progress_note(name, topic, done))
                raise
            done.append(topic)


def _progress_note(name: str, failed: str, done: Sequence[str]) -> str:
    before = f"published before: {', '.join(done)}" if done else "no queue was published before"
    return f"transaction {name} failed at {failed}; {before}. Repeat the job under the same name to complete it"


def discard(messages: Messages, *, options: SinkOptions) -> None:
    """Drop the parts of a failed job. What is published stays. Spark logs exceptions raised here."""
    parts = parts_of(messages)
    if not parts:
        return
    name = _staged(messages)[0].name
    with _connect(options) as client:
        for topic, lanes in sorted(parts.items()):
            for lane, counts in sorted(lanes.items()):
                with suppress(AlreadyDecided):
                    client.queue(topic).transaction(name).discard_parts({lane: counts})


def _staged(messages: Messages) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


def parts_of(messages: Messages) -> Parts:
    """What the chosen attempts staged, without lanes in which they staged nothing or that were published before."""
    found: Parts = {}
    for message in _staged(messages):
        for topic, lanes in message.messages.items():
            for lane, count in lanes.items():
                found.setdefault(topic, {}).setdefault(lane, {})[message.part] = count
    return found


def _check_bound(parts: Parts) -> None:
    most = max(len(counts) for lanes in parts.values() for counts in lanes.values())
    if most > limits.TRANSACTION_PARTS_COUNT_MAX:
        raise TooMany(
            f"{most} tasks wrote to one lane, but one publish takes at most {limits.TRANSACTION_PARTS_COUNT_MAX}; "
            "nothing was published. Coalesce the rows to fewer partitions"
        )


def _connect(options: SinkOptions, *, timeout_s: float = TIMEOUT_S) -> BlockingClient:
    return connect_blocking(options.servers, token=options.token, ca=options.ca, timeout_s=timeout_s)
