"""Source to sink on a standalone cluster: an executor is killed with -9, and each row is there once.

Speculation is on and the first attempt of one task is slow, so most runs have a speculative attempt as well. Whether
Spark starts one is its scheduler's choice, which no test may assert: `avow prove --spark` reports how many there were,
and `test_sink_parts` drives two attempts of one task by hand.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.java import end_java

from avow.client.blocking import connect_blocking
from avow.spark.session import session
from avow.testing.cluster import LocalCluster, wait_until
from avow.testing.spark_cluster import SparkCluster
from avow_lab.campaigns.spark.campaign import count_rows

ROWS, BATCHES = 300, 3
ENDS_S = 300.0  # on a machine with nothing else to do: half a minute
SLOW_S = 1.5


@pytest.fixture
def machines() -> Iterator[SparkCluster]:
    with SparkCluster(2) as made:
        yield made


@pytest.fixture
def spark(machines: SparkCluster) -> Iterator[SparkSession]:
    end_java()  # which may have the session of other files
    settings = {**machines.settings(), "spark.driver.memory": "1g"}
    made = session("cluster", master=machines.url, config=settings)
    made.sparkContext.setLogLevel("OFF")
    yield made
    end_java()  # and its settings


def slowed(rows: DataFrame) -> DataFrame:
    """The first attempt of the second task is slow, so Spark may start another one on the other worker."""

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task = TaskContext.get()
        if task is not None and task.partitionId() == 1 and task.attemptNumber() == 0:
            time.sleep(SLOW_S)
        yield from batches

    return rows.mapInArrow(slow, rows.schema)


def test_each_row_is_written_once_though_an_executor_is_killed_under_speculation(
    machines: SparkCluster, spark: SparkSession, tmp_path: Path
) -> None:
    with LocalCluster(1) as cluster, connect_blocking(cluster.addresses) as client:
        client.create_queue("lines", lanes=2)
        client.create_queue("copies", lanes=2)
        for lane in range(2):
            values = [str(number).encode() for number in range(lane, ROWS, 2)]
            client.queue("lines").enqueue_many(values, lane=lane)

        source = spark.readStream.format("avow").options(servers=cluster.addresses, subscribe="lines")
        rows = source.options(startingOffsets="earliest", maxOffsetsPerTrigger=ROWS // BATCHES).load()
        sink = slowed(rows.select("value", "key")).writeStream.format("avow").option("servers", cluster.addresses)
        places = {"topic": "copies", "checkpointLocation": str(tmp_path / "checkpoint")}
        query = sink.options(**places).trigger(availableNow=True).start()

        wait_until((tmp_path / "checkpoint" / "commits" / "0").exists, timeout_s=ENDS_S, what=machines.log_tail)
        assert machines.kill_executor()
        assert query.awaitTermination(int(ENDS_S))

        found = (bytes(value).decode() for batch in client.queue("copies").read() for value in batch.values())
        counts = count_rows({str(number) for number in range(ROWS)}, found)
        assert counts.clean, counts
        assert counts.rows == ROWS
