"""`format("avow")` as a sink, in a real Spark: which rows arrive, which are refused, and that none arrives twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from avow.client.blocking import BlockingClient, connect_blocking
from avow.queue.key_to_lane import lane_for
from avow.testing.cluster import LocalCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(1) as made:
        yield made


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[BlockingClient]:
    with connect_blocking(cluster.addresses) as made:
        yield made


@pytest.fixture
def queue(client: BlockingClient, request: pytest.FixtureRequest) -> str:
    """A queue of this test's own, with two lanes."""
    name: str = request.node.originalname
    client.create_queue(name, lanes=2)
    return name


def write(rows: DataFrame, cluster: LocalCluster, *, mode: str = "append", **options: str) -> None:
    writer = rows.write.format("avow").mode(mode).option("servers", cluster.addresses)
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.save()


def numbers(spark: SparkSession, count: int) -> DataFrame:
    """In two tasks; the key is the value."""
    return spark.range(0, count, 1, 2).selectExpr("CAST(id AS STRING) AS value", "CAST(id AS STRING) AS key")


def visible(client: BlockingClient, queue: str) -> list[str]:
    return sorted(
        bytes(value).decode() for batch in client.queue(queue).read(level="linearizable") for value in batch.values()
    )


def texts(count: int) -> list[str]:
    return sorted(str(number) for number in range(count))


# ----------------------------------------------------------------- rows that arrive


def test_a_message_has_the_columns_of_its_row(
    spark: SparkSession, cluster: LocalCluster, client: BlockingClient, queue: str
) -> None:
    rows = spark.sql("""
        SELECT 'v' AS value, CAST('k' AS BINARY) AS key, 1 AS partition, timestamp_millis(1714979289123) AS timestamp,
               array(named_struct('key', 'a', 'value', CAST('1' AS BINARY))) AS headers
    """)
    write(rows, cluster, topic=queue)
    (message,) = (message for batch in client.queue(queue).read(lane=1) for message in batch.messages())
    assert (message.value, message.key, message.time_ms) == (b"v", b"k", 1714979289123)
    assert dict(message.headers) == {"a": b"1"}


def test_rows_go_to_the_lanes_of_their_keys_and_to_the_queues_they_name(
    spark: SparkSession, cluster: LocalCluster, client: BlockingClient, queue: str
) -> None:
    client.create_queue(queue + "-odd")
    named = f"CASE WHEN value % 2 = 0 THEN '{queue}' ELSE '{queue}-odd' END AS topic"
    write(numbers(spark, 100).selectExpr("*", named), cluster)
    assert visible(client, queue) == sorted(str(number) for number in range(0, 100, 2))
    assert visible(client, queue + "-odd") == sorted(str(number) for number in range(1, 100, 2))
    for lane in range(2):
        for batch in client.queue(queue).read(lane=lane):
            assert {lane_for(bytes(value), 2) for value in batch.values()} == {lane}


def test_a_named_job_writes_once_and_another_run_of_it_writes_again(
    spark: SparkSession, cluster: LocalCluster, client: BlockingClient, queue: str
) -> None:
    rows = numbers(spark, 50)
    for _ in range(2):
        write(rows, cluster, topic=queue, txnAppId="nightly", txnVersion="1")
    assert visible(client, queue) == texts(50)
    write(rows, cluster, topic=queue, txnAppId="nightly", txnVersion="2")
    assert visible(client, queue) == sorted(texts(50) * 2)


# --------------------------------------------------------------------- attempts


def test_rows_of_a_failed_attempt_are_invisible(
    spark: SparkSession, cluster: LocalCluster, client: BlockingClient, queue: str
) -> None:
    def twice_in_vain(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows, enough of them to be staged at once, and then a failure."""
        yield from batches
        attempt = TaskContext.get()
        if attempt is not None and attempt.attemptNumber() < 2:
            raise RuntimeError("this attempt fails at its end")

    large = spark.range(0, 4_000, 1, 2).selectExpr("concat(id, '-', repeat('x', 1000)) AS value", "'k' AS key")
    write(large.mapInArrow(twice_in_vain, large.schema), cluster, topic=queue)
    assert [value.partition("-")[0] for value in visible(client, queue)] == texts(4_000)


def test_a_job_that_fails_leaves_nothing(
    spark: SparkSession, cluster: LocalCluster, client: BlockingClient, queue: str
) -> None:
    def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        if context is not None and context.partitionId() == 1:
            raise RuntimeError("one task of two")

    rows = numbers(spark, 100)
    with pytest.raises(PySparkException, match="one task of two"):
        write(rows.mapInArrow(fails, rows.schema), cluster, topic=queue, txnAppId="failing", txnVersion="1")
    assert visible(client, queue) == []
    write(rows, cluster, topic=queue, txnAppId="failing", txnVersion="1")
    assert visible(client, queue) == texts(100)


# --------------------------------------------------------------------- streams


def test_a_batch_that_spark_repeats_is_not_written_again(
    spark: SparkSession, cluster: LocalCluster, client: BlockingClient, queue: str, tmp_path: Path
) -> None:
    """Without its last line in the checkpoint's commits, a query does its last batch again when it starts."""
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    for number in range(2):
        _append(folder, number)
        _stream(spark, folder, checkpoint, cluster, queue)
    assert visible(client, queue) == texts(20)
    for path in (checkpoint / "commits").glob("*1*"):
        path.unlink()
    _append(folder, 2)
    _stream(spark, folder, checkpoint, cluster, queue)
    assert {path.name for path in (checkpoint / "commits").glob("[0-9]*")} == {"0", "1", "2"}  # it did repeat batch 1
    assert visible(client, queue) == texts(30)


def _append(folder: Path, number: int) -> None:
    folder.mkdir(exist_ok=True)
    lines = [str(line) for line in range(number * 10, number * 10 + 10)]
    (folder / f"{number}.txt").write_text("\n".join(lines) + "\n")


def _stream(spark: SparkSession, folder: Path, checkpoint: Path, cluster: LocalCluster, queue: str) -> None:
    rows = spark.readStream.format("text").load(str(folder)).selectExpr("value", "value AS key")
    options = {"servers": cluster.addresses, "topic": queue, "checkpointLocation": str(checkpoint)}
    query = rows.writeStream.format("avow").options(**options).trigger(availableNow=True).start()
    assert query.awaitTermination(300)


# -------------------------------------------------------------- rows that are refused


@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    [
        (["value", "value AS extra"], {}, "'extra'"),
        (["CAST(value AS INT) AS value"], {}, "'value' is int"),
        (["key"], {}, "needs a column value"),
        (["value"], {"txnAppld": "x"}, "txnappld"),
        (["value"], {"mode": "overwrite"}, "cannot be overwritten"),
        (["value"], {"topic": "nowhere"}, "nowhere"),
        (["value"], {"topic": "news"}, "two-phase queue"),
        (["value", "7 AS partition"], {}, "partition is 7"),
        (["CASE WHEN value < 90 THEN value END AS value"], {}, r"no value \(null\).*in partition 1"),
    ],
)
def test_invalid_rows_are_refused_and_nothing_arrives(
    spark: SparkSession,
    cluster: LocalCluster,
    client: BlockingClient,
    columns: list[str],
    options: dict[str, Any],
    expected: str,
) -> None:
    client.create_queue("refusing", lanes=2)
    client.create_queue("news", strategy="pub-sub")
    with pytest.raises(PySparkException, match=f"(?s){expected}"):
        write(numbers(spark, 100).selectExpr(*columns), cluster, **{"topic": "refusing", **options})
    assert visible(client, "refusing") == []
