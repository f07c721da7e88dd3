"""The driver under test: two streams from one queue, into another queue and into a Delta table.

The first attempt of the second task of a batch is slow. So there is a time in which one task has staged and the other
has not. On a cluster Spark starts the slow task again elsewhere, and one of the two attempts is wasted. A query that
fails, because a process that Spark runs Python in was killed, is started again from its checkpoint.

With `--batches` it ends by itself after that many of each query. The class archive is made from such a run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from avow.spark.session import session
from avow.spark.tables import open_table
from avow_lab.campaigns.harness.spark_driver import SETTINGS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DRIVER: Final = "avow_lab.campaigns.spark.driver"
SOURCE, SINK, TABLE = "lines", "copies", "table"
BATCH_ROWS: Final = 60
POLL_S: Final = 0.2


def main() -> None:
    parser = argparse.ArgumentParser()
    for flag in ("--servers", "--folder"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--source", default=SOURCE)
    parser.add_argument("--sink", default=SINK)
    parser.add_argument("--master", default="local[2,8]")
    parser.add_argument("--settings", default="{}", help="further settings of Spark, as JSON")
    parser.add_argument("--slow-s", type=float, default=0.3)
    parser.add_argument("--batches", type=int, default=0, help="of each query, then end; 0: never")
    parser.add_argument("--port", type=int, default=0, help="ignored; every program gets it")
    run(parser.parse_args())


def run(given: argparse.Namespace) -> None:
    config = {**SETTINGS, **msgspec.json.decode(given.settings, type=dict[str, str])}
    spark = session("killed", master=given.master, config=config)
    spark.sparkContext.setLogLevel("ERROR")
    queries = {name: _start(spark, given, name) for name in (SINK, TABLE)}
    while not given.batches or min(map(_done, queries.values())) < given.batches:
        time.sleep(POLL_S)
        for name, query in queries.items():
            if not query.isActive:
                sys.stderr.write(f"the query {name} failed and is started again: {str(query.exception())[:2_000]}\n")
                sys.stderr.flush()
                queries[name] = _start(spark, given, name)
    spark.stop()


def _done(query: StreamingQuery) -> int:
    """Batches since the query was started."""
    return len(query.recentProgress)


def _start(spark: SparkSession, given: argparse.Namespace, name: str) -> StreamingQuery:
    rows, folder = _rows(spark, given), Path(given.folder)
    if name == TABLE:
        return open_table(f"delta:{folder / TABLE}").write_stream(rows, checkpoint=str(folder / "to-table"))
    writer = rows.writeStream.format("avow").option("servers", given.servers).option("topic", given.sink)
    return writer.option("checkpointLocation", str(folder / "to-queue")).start()


def _rows(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    source = spark.readStream.format("avow").option("servers", given.servers).option("subscribe", given.source)
    source = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", str(BATCH_ROWS))
    rows = source.load().selectExpr("CAST(value AS STRING) AS value", "CAST(value AS STRING) AS key")
    slow_s = float(given.slow_s)

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task = TaskContext.get()
        if task is not None and task.partitionId() == 1 and task.attemptNumber() == 0:
            time.sleep(slow_s)
        yield from batches

    return rows.mapInArrow(slow, rows.schema)


if __name__ == "__main__":
    main()
