"""`df.write.format("avow")` and `df.writeStream.format("avow")`: every row is written once, or none is.

A Spark job consists of many tasks, each may run several times, and the driver may crash at any moment and repeat the
last batch. The rows become visible exactly once for three reasons:

 1. The job is one transaction. A repeated job has the same name: (query id, batch id) for a stream, (txnAppId,
    txnVersion) for a batch write. A batch write without those is never repeated and gets a random name.
 2. Every attempt of a task stages under its own number (its part) and reports to the driver how many messages each lane
    got. `commit` publishes the parts of the attempts that Spark chose, with these numbers. The same publish drops what
    other attempts staged.
 3. A lane remembers the transactions it published. A repeated job stages nothing there, and its publish has no effect.

A publish is per lane, so a driver may crash after publishing some of the lanes. The repetition skips those and
publishes the others. That is correct only if each row goes to the same lane again: see `routing`.

Spark calls `abort` even after a commit that failed half-way or took effect. So `abort` discards only the parts that it
is given, which decides nothing; what was published stays.

The mode is append. Spark itself refuses a plain `.save()` (its default mode is errorifexists, and a queue cannot tell
whether it is new), and overwriting a queue is refused here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import randbelow, token_hex
from typing import TYPE_CHECKING, Final, TypeAlias

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from avow import limits
from avow.client.blocking import BlockingClient, connect_blocking
from avow.errors import AlreadyDecided, AvowError, InvalidRequest, TooMany
from avow.spark.sink.options import SinkOptions, read_options
from avow.spark.sink.routing import Routing, check_columns
from avow.spark.sink.staging import TIMEOUT_S, Staging, refusal_of_pubsub

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Parts: TypeAlias = dict[str, dict[int, dict[int, int]]]  # queue -> lane -> part -> messages

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


# --------------------------------------------------------------- on the driver


def publish(messages: Messages, *, options: SinkOptions) -> None:
    """Make the rows visible, lane by lane. May be repeated, also by another driver."""
    parts = parts_of(messages)
    if not parts:
        return
    _check_bound(parts)
    name = _staged(messages)[0].name
    done: list[str] = []
    with _connect(options) as client:
        for topic, lanes in sorted(parts.items()):
            for lane, counts in sorted(lanes.items()):
                try:
                    client.queue(topic).transaction(name).publish_parts({lane: counts})
                except AvowError as error:
                    error.add_note(_progress_note(name, f"{topic} lane {lane}", done))
                    raise
                done.append(f"{topic} lane {lane}")


def _progress_note(name: str, failed: str, done: Sequence[str]) -> str:
    before = f"published before: {', '.join(done)}" if done else "no lane was published before"
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
