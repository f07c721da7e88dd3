"""The Spark data source "avow-table" behind `Table`. Applications use `Table` instead.

Tasks stage and the driver commits (see `store`). Spark creates the writer again for each of them, in other processes,
so only the tasks' messages reach the commit. Spark names a stream's batch (query id, batch id), and the name is the
same when the batch is replayed after a restart. Tasks read it from their local properties, which are not documented;
a test checks that they exist. The caller names a batch write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
    WriterCommitMessage,
)

from avow.errors import InvalidRequest, Refused
from avow.spark.tables import schemas
from avow.spark.tables.store import FORMAT, Staged
from avow.spark.tables.tables import open_store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
_SPARK_OPTIONS: Final = ("url", "appid", "version", "path", "checkpointlocation", "queryname", "partitionedby")


Messages: TypeAlias = list[WriterCommitMessage | None]


class TaskMessage(WriterCommitMessage):
    def __init__(self, app_id: str, staged: list[Staged]) -> None:
        self.app_id, self.staged = app_id, staged


class TableSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return schemas.to_spark(self._store().schema())

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        return TableReader(self._url(), self._settings())

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's signature
        _append_only(overwrite=overwrite)
        name, version = self.options.get("appid"), self.options.get("version")
        if name is None or version is None:
            raise InvalidRequest("a batch write needs the options appId and version; nothing was written")
        return BatchWriter(self._target(schema), app_id=name, version=int(version))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001 - Spark's signature
        _append_only(overwrite=overwrite)
        return StreamWriter(self._target(schema))

    def _target(self, schema: StructType) -> Target:
        columns = msgspec.json.decode(self.options.get("partitionedby", "[]"), type=list[str])
        return Target(self._url(), self._settings(), schema, columns)

    def _url(self) -> str:
        return str(self.options["url"])

    def _settings(self) -> dict[str, str]:
        return {key.lower(): value for key, value in self.options.items() if key.lower() not in _SPARK_OPTIONS}

    def _store(self) -> Any:
        return open_store(self._url(), self._settings())


@dataclass(frozen=True, slots=True)
class Target:
    """The description of the table that tasks and commits need; Spark pickles it to other processes."""

    url: str
    options: dict[str, str]
    schema: StructType
    partition_by: list[str]

    def stage(self, batches: Iterator[pa.RecordBatch], *, app_id: str, version: int) -> TaskMessage:
        store, schema = open_store(self.url, self.options), schemas.from_spark(self.schema)
        staged = store.stage(batches, schema, app_id=app_id, version=version, partition_by=self.partition_by)
        return TaskMessage(app_id, staged)

    def commit(self, messages: Messages, *, app_id: str, version: int) -> None:
        staged = [each for message in _ours(messages) for each in message.staged]
        open_store(self.url, self.options).commit(staged, app_id=app_id, version=version)


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, target: Target, *, app_id: str, version: int) -> None:
        self._target, self._app_id, self._version = target, app_id, version

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        return self._target.stage(iterator, app_id=self._app_id, version=self._version)

    def commit(self, messages: Messages) -> None:
        self._target.commit(messages, app_id=self._app_id, version=self._version)

    def abort(self, messages: Messages) -> None:
        """Spark also calls this after a commit that took effect, so nothing is undone."""


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        app_id, version = _batch_name()
        return self._target.stage(iterator, app_id=app_id, version=version)

    def commit(self, messages: Messages, batchId: int) -> None:
        names = {message.app_id for message in _ours(messages)}
        if not names:
            return  # a batch without a task has no rows
        if len(names) > 1:
            raise Refused(f"tasks of one batch have several query ids: {sorted(names)}; nothing was committed")
        self._target.commit(messages, app_id=names.pop(), version=batchId)

    def abort(self, messages: Messages, batchId: int) -> None:
        """Spark also calls this after a commit that took effect, so nothing is undone."""


class TableReader(DataSourceReader):
    """One partition, which reads one snapshot of the table."""

    def __init__(self, url: str, settings: Mapping[str, str]) -> None:
        self._url, self._options = url, dict(settings)

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        del partition
        store: Any = open_store(self._url, self._options)
        yield from store.read()


def _batch_name() -> tuple[str, int]:
    task = TaskContext.get()
    query, batch = (task.getLocalProperty(name) if task is not None else None for name in (QUERY_ID, BATCH_ID))
    if query is None or batch is None:
        raise Refused(
            f"this Spark does not pass {QUERY_ID} and {BATCH_ID} to tasks, which exactly-once needs; nothing was "
            "written. Use a supported version of Spark"
        )
    return query, int(batch)


def _ours(messages: Messages) -> list[TaskMessage]:
    return [each for each in messages if isinstance(each, TaskMessage)]


def _append_only(*, overwrite: bool) -> None:
    if overwrite:
        raise InvalidRequest('a table can only be appended to; nothing was written. Use mode("append")')
