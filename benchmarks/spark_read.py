"""What Spark pays for reading a queue: beside its own Parquet reader, and beside the same source with tuples.

The same messages of 100 B, all columns of every row, into Spark's sink that takes rows and does nothing (`noop`):

    queue      spark.read.format("avow"): peers, tasks that yield Arrow record batches, the JVM
    values     the same with .schema("value binary"): a schema of one's own as a projection
    parquet    spark.read.parquet of the same rows, written by Spark before, in as many files as lanes
    tuples     the source as most are written: a Python tuple for each row. Only here, to be measured

Queue and parquet are taken in turn, then values and tuples, after rounds that do not count (the JVM compiles
meanwhile); each is as good as its median round, since one lucky round among few decides a best. The claims are ratios
within the run: queue to parquet at least 0.8, queue to tuples at least 10. Needs Java.

Tasks hand rows to the JVM through Unix sockets (a setting of Spark's, said in docs/spark.md), and take batches from the
peers' files, which are on the same machine as those of Parquet.

`python -m benchmarks spark --messages 1000000 --rounds 5 --lanes 2 --peers 3`
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from avow.client.blocking import connect_blocking
from avow.spark.session import session
from avow.spark.source.data_source import AvowSource, arrow_schema
from avow.spark.source.options import batch_options
from avow.spark.source.partition_reader import BatchReader
from avow.testing.cluster import LocalCluster
from benchmarks import spark_results

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES: Final = 5_000_000
MESSAGE_BYTES: Final = 100
BATCH_COUNT: Final = 10_000
ROUNDS: Final = 7
ROUNDS_BEFORE: Final = 6
TUPLE_MESSAGES_MAX: Final = 1_000_000  # at a tenth of the speed; the figure is a rate
CONFIG: Final = {"spark.driver.memory": "2g", "spark.python.unix.domain.socket.enabled": "true"}
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
    """Batches of 10,000, one lane after another. Messages differ, as real ones do: a Parquet file of a few thousand
    values that repeat is a file of their numbers."""
    chance = random.Random(7)
    with connect_blocking(servers) as client:
        client.create_queue("bench", lanes=lanes)
        queue = client.queue("bench")
        for number in range(-(-messages // BATCH_COUNT)):
            first = number * BATCH_COUNT
            orders = range(first, min(messages, first + BATCH_COUNT))
            queue.enqueue_many([_order(order, chance) for order in orders], lane=number % lanes)


def _order(number: int, chance: random.Random) -> bytes:
    item, price = chance.randbytes(16).hex().encode(), chance.getrandbits(16)
    text = b'{"order":%d,"customer":%d,"item":"%s","price":%d}' % (number, chance.getrandbits(32), item, price)
    return text.ljust(MESSAGE_BYTES)


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
        parquet = spark.read.parquet(str(folder / "rows"))
        medians = _in_turn({"queue": (queue, messages), "parquet": (parquet, messages)}, rounds=rounds)
        return medians | _in_turn({"values": (values, messages), "tuples": (tuples, few * lanes)}, rounds=rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _in_turn(ways: dict[str, tuple[DataFrame, int]], *, rounds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(1 - ROUNDS_BEFORE, rounds + 1):
        for name, (frame, rows) in ways.items():
            speed = rate(rows, lambda frame=frame: into_nothing(frame))  # type: ignore[misc]
            print(f"round {number if number > 0 else 'before'}: {name:<8}{speed:>12,.0f} rows/s", flush=True)
            if number > 0:
                found[name].append(speed)
    return {name: statistics.median(speeds) for name, speeds in found.items()}


def main(arguments: Sequence[str] = ()) -> dict[str, object]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks spark")
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--peers", type=int, default=3)
    spark_results.add_flag(parser)
    asked = parser.parse_args(list(arguments))
    # Tasks import the tuple source from here, wherever they are started.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH", "")]))
    with LocalCluster(asked.peers) as cluster:
        fill(cluster.addresses, messages=asked.messages, lanes=asked.lanes)
        spark = session("benchmark", master=f"local[{asked.lanes}]", config=CONFIG)
        spark.sparkContext.setLogLevel("ERROR")
        try:
            medians = measure(spark, cluster.addresses, messages=asked.messages, rounds=asked.rounds, lanes=asked.lanes)
        finally:
            spark.stop()
    figures = told(medians)
    spark_results.add(asked.json, "spark", figures)
    return figures


def told(medians: dict[str, float]) -> dict[str, object]:
    to_parquet, to_tuples = medians["queue"] / medians["parquet"], medians["queue"] / medians["tuples"]
    for name, found in medians.items():
        print(f"{name:<10}{found:>12,.0f} rows/s")
    print(f"queue to parquet x {to_parquet:.2f} (at least {PARQUET_RATIO_MIN})")
    print(f"queue to tuples  x {to_tuples:.1f} (at least {TUPLES_RATIO_MIN:g})")
    return {
        "rows_per_s": medians,
        "queue_to_parquet": to_parquet,
        "queue_to_tuples": to_tuples,
        "held": to_parquet >= PARQUET_RATIO_MIN and to_tuples >= TUPLES_RATIO_MIN,
    }


if __name__ == "__main__":
    import sys

    raise SystemExit(0 if main(sys.argv[1:])["held"] else 1)
