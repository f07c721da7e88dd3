"""Makes the JVM's archive of the classes that Spark loads, once for a clone: `class_archive.py FILE`.

A JVM that starts Spark reads and checks some fifteen thousand classes out of three hundred files before it does
anything, and the tests start dozens of JVMs, because most of what they show is that one was killed. With the archive a
session that starts, runs two small jobs and ends takes 8 seconds of a processor; without it 14, and 24 with the
settings of a long life. An archive that does not fit (another Java, another Spark) is passed over by the JVM.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from avow.spark import session

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

SHORT_LIFE = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # the second compiler pays off after minutes
SILENT = "-Xlog:disable -Xlog:all=error:stderr"  # about an archive that does not fit


def options(archive: Path) -> str:
    """For `SPARK_SUBMIT_OPTS`."""
    return f"{SHORT_LIFE} {SILENT} -Xshare:auto -XX:SharedArchiveFile={archive}" if archive.exists() else SHORT_LIFE


def make(archive: Path) -> None:
    """The JVM writes it when it ends."""
    from pyspark import SparkContext

    unfinished = archive.with_suffix(f".{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{SHORT_LIFE} {SILENT} -XX:ArchiveClassesAtExit={unfinished}"
    spark = session("classes", master="local[2]", config={"spark.sql.shuffle.partitions": "2"})
    spark.sparkContext.setLogLevel("OFF")
    with TemporaryDirectory() as folder:
        use(spark, Path(folder))
    spark.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    unfinished.rename(archive)


def use(spark: SparkSession, folder: Path) -> None:
    """A little of everything that tests do."""
    rows = spark.range(100).selectExpr("id", "string(id) AS name", "binary(string(id)) AS value")
    rows.groupBy("name").count().orderBy("name").collect()
    rows.mapInPandas(_same, rows.schema).count()
    (folder / "lines.txt").write_text("one\ntwo\n")
    lines = spark.readStream.text(str(folder / "*.txt")).writeStream.option("checkpointLocation", str(folder / "c"))
    lines.foreachBatch(_count).trigger(availableNow=True).start().awaitTermination()


def _same(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    return frames


def _count(rows: DataFrame, _: int) -> None:
    rows.count()


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute())
