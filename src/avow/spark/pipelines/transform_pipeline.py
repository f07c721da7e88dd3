"""`transform`: a user's statement between queues and tables, exactly once from end to end.

    pipeline = transform(spark, TransformSpec(..., sql="SELECT key, upper(string(value)) AS value FROM source",
                                              sink=Sink(queue="loud")))

Queues are read as a stream. Spark names a batch (query id, batch id), and a repeated batch has the same name:

    sink: a queue                      one write; good rows and dead letters are one transaction, lane by lane
    sink: a table                      one write
    sink: a table, with dead letters   two writes per batch under the same name: each takes effect once, and a batch
                                       that crashed between them is repeated as a whole

A table is read in its present state, as one job. The job's name is derived from the table's state and the statement, so
a repeated run does nothing until the table has changed. Then it transforms the whole table again.

The statement must be deterministic: no rand(), no current_timestamp(). A repeated batch skips lanes that published it
before.
"""

from __future__ import annotations

import threading
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from avow.errors import InvalidRequest
from avow.spark.pipelines.archive_pipeline import trigger_of
from avow.spark.pipelines.failures import cause_of
from avow.spark.pipelines.inputs import cluster_options, stream_options, stream_rows
from avow.spark.pipelines.pipeline import JobPipeline, StreamPipeline
from avow.spark.pipelines.result_rows import check_result, dead_messages, messages, table_rows
from avow.spark.pipelines.row_function import MESSAGE_COLUMNS, OF_DEAD_LETTERS, RowFunction, load_function
from avow.spark.pipelines.status import query_folder
from avow.spark.tables import open_table
from avow.spark.tables.tables import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from avow.spark.pipelines.spec import TransformSpec

VIEW: Final = "source"
STAGE_DEADLINE_S: Final = 24 * 3600
_view_lock: Final = threading.Lock()  # all pipelines of a session use the same view name


def transform(spark: SparkSession, spec: TransformSpec, *, once: bool = False) -> StreamPipeline | JobPipeline:
    """Raises InvalidRequest if Spark rejects the statement or its result has the wrong columns."""
    if spec.source.table:
        result = result_of(open_table(spec.source.table).rows(spark), spec)
        return JobPipeline(spark, _Job(result, spec), name=spec.name)
    rows = stream_rows(spark, stream_options(spec.source, spec.cluster))
    return _stream(result_of(rows, spec), spec, trigger=trigger_of(spec.every, once=once))


# ------------------------------------------------------------------ the statement


def result_of(rows: DataFrame, spec: TransformSpec) -> DataFrame:
    """The statement's result. Its columns are checked, but nothing has run yet."""
    from pyspark.errors import PySparkException

    try:
        made = _applied(rows, spec)
    except PySparkException as error:
        raise InvalidRequest(f"Spark rejects the statement: {cause_of(error)}; nothing was started") from error
    check_result(made.columns, dead_letters=spec.dead_letters)
    _check_messages(made, spec)
    return made


def _applied(rows: DataFrame, spec: TransformSpec) -> DataFrame:
    if spec.row:
        return _by_row(rows, spec)
    if spec.sql:
        with _view_lock:
            rows.createOrReplaceTempView(VIEW)
            try:
                return rows.sparkSession.sql(spec.sql)
            finally:
                rows.sparkSession.catalog.dropTempView(VIEW)
    from pyspark.sql import DataFrame

    made = load_function(spec.python, spec.folder)(rows)
    if not isinstance(made, DataFrame):
        raise InvalidRequest(f"{spec.python} returned {type(made).__name__}, not a DataFrame; nothing was started")
    return made


def _by_row(rows: DataFrame, spec: TransformSpec) -> DataFrame:
    from pyspark.sql.types import StructType

    load_function(spec.row, spec.folder)  # so that an error is raised here and not in a task
    columns = spec.columns if spec.sink.table else MESSAGE_COLUMNS
    schema = StructType.fromDDL(f"{columns}, {OF_DEAD_LETTERS}" if spec.dead_letters else columns)
    if not isinstance(schema, StructType):
        raise InvalidRequest(
            f"columns must be a list such as 'id long, amount double', not {columns!r}; nothing was started"
        )
    function = RowFunction(
        spec.row, spec.folder, schema, for_table=bool(spec.sink.table), catches=bool(spec.dead_letters)
    )
    return rows.mapInArrow(function, schema)


def _check_messages(result: DataFrame, spec: TransformSpec) -> None:
    from avow.spark.sink.routing import check_columns

    if spec.sink.queue:
        check_columns(messages(result, queue=spec.sink.queue, dead_letters=spec.dead_letters).schema, topic=None)
    elif spec.dead_letters:
        check_columns(dead_messages(result, dead_letters=spec.dead_letters).schema, topic=None)


# ------------------------------------------------------------------ as a stream


def _stream(result: DataFrame, spec: TransformSpec, *, trigger: dict[str, Any]) -> StreamPipeline:
    checkpoint = query_folder(spec.checkpoint)
    if spec.sink.table and not spec.dead_letters:
        query = open_table(spec.sink.table).write_stream(
            table_rows(result),
            checkpoint=checkpoint,
            query_name=spec.name,
            trigger=trigger,
            partition_by=spec.sink.partition_by or None,
        )
        return StreamPipeline(query, name=spec.name)
    if spec.sink.table:
        both = _Both(spec)
        writer = result.writeStream.foreachBatch(both)
    else:
        both = None
        sent = messages(result, queue=spec.sink.queue, dead_letters=spec.dead_letters)
        writer = sent.writeStream.format("avow").options(**cluster_options(spec.cluster)).outputMode("append")
    query = writer.queryName(spec.name).option("checkpointLocation", checkpoint).trigger(**trigger).start()
    if both is not None:
        both.named(query.id)
    return StreamPipeline(query, name=spec.name)


class _Both:
    """Writes a batch to the table and its dead letters to their queue. `named` sets the id of the started query."""

    def __init__(self, spec: TransformSpec) -> None:
        self._spec, self._app_id, self._known = spec, "", threading.Event()

    def named(self, app_id: str) -> None:
        self._app_id = app_id
        self._known.set()

    def __call__(self, rows: DataFrame, number: int) -> None:
        self._known.wait()
        rows.persist()
        try:
            write_both(rows, self._spec, app_id=self._app_id, version=number)
        finally:
            rows.unpersist()


def write_both(rows: DataFrame, spec: TransformSpec, *, app_id: str, version: int) -> None:
    """Each of the two writes takes effect once per (app_id, version)."""
    good = table_rows(rows)
    open_table(spec.sink.table).write_batch(
        good, app_id=app_id, version=version, partition_by=spec.sink.partition_by or None
    )
    if spec.dead_letters:
        send(dead_messages(rows, dead_letters=spec.dead_letters), spec.cluster, app_id=app_id, version=version)


def send(rows: DataFrame, cluster: Any, *, app_id: str, version: int) -> None:
    """Writes rows with topics to queues, once per (app_id, version)."""
    options = cluster_options(cluster) | {
        "txnAppId": app_id,
        "txnVersion": str(version),
        "stageDeadline": str(STAGE_DEADLINE_S),
    }
    rows.write.format("avow").mode("append").options(**options).save()


# ------------------------------------------------------------------ as a job


class _Job:
    """Transforms a whole table."""

    def __init__(self, result: DataFrame, spec: TransformSpec) -> None:
        self._result, self._spec = result, spec
        self._app_id = f"{spec.name}:{state_of(spec)}"

    def __call__(self) -> int | None:
        spec = self._spec
        if spec.sink.table:
            if open_table(spec.sink.table).committed(self._app_id) is not None and not spec.dead_letters:
                return None
            held = self._result.persist() if spec.dead_letters else None
            rows, found = observed(self._result)
            write_both(rows, spec, app_id=self._app_id, version=0)
            if held is not None:
                held.unpersist()
        else:
            rows, found = observed(messages(self._result, queue=spec.sink.queue, dead_letters=spec.dead_letters))
            send(rows, spec.cluster, app_id=self._app_id, version=0)
        return int(found.get["rows"])


def observed(rows: DataFrame) -> tuple[DataFrame, Any]:
    """(the same rows, an observation that counts them when they are next used)."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    found = Observation()
    return rows.observe(found, F.count(F.lit(1)).alias("rows")), found


def state_of(spec: TransformSpec) -> str:
    """Equal for the same files and the same statement. For a database the setting `run` identifies the state."""
    parts = [spec.sql, spec.python, spec.row, spec.sink.queue, spec.sink.table, spec.source.run]
    if not spec.source.table.startswith("postgres"):
        parts += sorted(open_store(spec.source.table).files())  # type: ignore[union-attr]
    return blake2b("\n".join(parts).encode(), digest_size=12).hexdigest()
