"""What Spark pays for reading a queue: beside its own Parquet reader, and beside the same source with tuples.

The same messages of 100 B, all columns of every row, into Spark's sink that takes rows and does nothing (`noop`):

    queue      spark.read.format("avow"): peers, tasks that yield Arrow record batches, the JVM
    values     the same with .schema("value binary"): a schema of one's own as a projection
    parquet    spark.read.parquet of the same rows, written by Spark before, in as many files as lanes
    tuples     the source as most are written: a Python tuple for each row. Only here, to be measured

The ways are taken in turn, after one round that does not count; each is as good as its best round. The claims are
ratios within the run: queue to parquet at least 0.8, queue to tuples at least 10. Needs Java.

`python -m benchmarks spark --messages 1000000 --rounds 3 --lanes 2 --peers 3`
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from avow.client.blocking import connect_blocking
from avow.spark.options import batch_options
from avow.spark.reading import BatchReader
from avow.spark.session import session
from avow.spark.source import AvowSource, arrow_schema
from avow.testing.cluster import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES: Final = 5_000_000
MESSAGE_BYTES: Final = 100
BATCH_COUNT: Final = 10_000
ROUNDS: Final = 3
TUPLE_MESSAGES_MAX: Final = 1_000_000  # at a tenth of the speed; the figure is a rate
PARQUET_RATIO_MIN: Final = 0.8
TUPLES_RATIO_MIN: Final = 10.0


class TupleReader(BatchReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        for batch in super().read(partition):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class TupleSource(AvowSource):
    @classmethod
    def name(cls) -> str:
        return "avow-tuples"

    def reader(self, schema: StructType) -> BatchReader:
        return TupleReader(batch_options(self.options), arrow_schema(schema))


def fill(servers: str, *, messages: int, lanes: int) -> None:
    """Batches of 10,000, one lane after another."""
    values = [(b"%010d" % number) * (MESSAGE_BYTES // 10) for number in range(BATCH_COUNT)]
    with connect_blocking(servers) as client:
        client.create_queue("bench", lanes=lanes)
        queue = client.queue("bench")
        for number in range(-(-messages // BATCH_COUNT)):
            left = messages - number * BATCH_COUNT
            queue.enqueue_many(values[:left], lane=number % lanes)


def rate(rows: int, work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return rows / (time.perf_counter() - began)


def into_nothing(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def measure(spark: SparkSession, servers: str, *, messages: int, rounds: int, lanes: int) -> dict[str, float]:
    spark.dataSource.register(TupleSource)
    options = {"servers": servers, "subscribe": "bench"}
    queue = spark.read.format("avow").options(**options).load()
    values = spark.read.format("avow").options(**options).schema("value binary").load()
    few = min(messages, TUPLE_MESSAGES_MAX) // lanes
    ends = '{"bench":{' + ",".join(f'"{lane}":{few + 1}' for lane in range(lanes)) + "}}"
    tuples = spark.read.format("avow-tuples").options(**options, endingOffsets=ends).load()
    folder = Path(tempfile.mkdtemp(prefix="avow-bench-spark-"))
    try:
        queue.write.parquet(str(folder / "rows"))
        ways = {"queue": queue, "values": values, "parquet": spark.read.parquet(str(folder / "rows")), "tuples": tuples}
        best = dict.fromkeys(ways, 0.0)
        for number in range(rounds + 1):
            for name, frame in ways.items():
                count = few * lanes if name == "tuples" else messages
                found = rate(count, lambda frame=frame: into_nothing(frame))  # type: ignore[misc]
                print(f"round {number or 'before'}: {name:<8}{found:>12,.0f} rows/s", flush=True)
                best[name] = max(best[name], found if number else 0.0)
        return best
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(arguments: Sequence[str] = ()) -> dict[str, object]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks spark")
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--peers", type=int, default=3)
    asked = parser.parse_args(list(arguments))
    # Tasks import the tuple source from here, wherever they are started.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH", "")]))
    with LocalCluster(asked.peers) as cluster:
        fill(cluster.addresses, messages=asked.messages, lanes=asked.lanes)
        spark = session("benchmark", master=f"local[{asked.lanes}]", config={"spark.driver.memory": "2g"})
        spark.sparkContext.setLogLevel("ERROR")
        try:
            best = measure(spark, cluster.addresses, messages=asked.messages, rounds=asked.rounds, lanes=asked.lanes)
        finally:
            spark.stop()
    return told(best)


def told(best: dict[str, float]) -> dict[str, object]:
    to_parquet, to_tuples = best["queue"] / best["parquet"], best["queue"] / best["tuples"]
    for name, found in best.items():
        print(f"{name:<10}{found:>12,.0f} rows/s")
    print(f"queue to parquet x {to_parquet:.2f} (at least {PARQUET_RATIO_MIN})")
    print(f"queue to tuples  x {to_tuples:.1f} (at least {TUPLES_RATIO_MIN:g})")
    return {
        "rows_per_s": best,
        "queue_to_parquet": to_parquet,
        "queue_to_tuples": to_tuples,
        "held": to_parquet >= PARQUET_RATIO_MIN and to_tuples >= TUPLES_RATIO_MIN,
    }


if __name__ == "__main__":
    import sys

    raise SystemExit(0 if main(sys.argv[1:])["held"] else 1)
