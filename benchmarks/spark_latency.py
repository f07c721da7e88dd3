"""How old a message is when its row can be read in a Delta table: a stream at a steady rate, from a queue to a table.

Messages carry the client's clock at the moment of sending. A stream of the source appends them to a Delta table, as any
program would: `open_table(...).write_stream(...)`, one batch after the other. A row is readable when the entry of
Delta's log that names its file exists, so that is when it has arrived: the time at which the entry got its name, which
the file system keeps. So nothing watches, and nothing is polled while it runs. Everything shares the machine.

Sending goes on for some seconds before it counts. Afterwards every row must be there once. Beside the latencies it
tells what Spark says that a batch's time was spent on. Claim: a median below one second.

`python -m benchmarks spark-latency --rate 500 --seconds 60 --lanes 2 --peers 3`; `--archive` runs the archive pipeline
instead, whose table is divided by lane and whose source reads the table, too.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from avow.client.blocking import connect_blocking
from avow.spark.pipelines import ArchiveSpec, Cluster, Source, archive
from avow.spark.session import session
from avow.spark.tables import open_table
from avow.spark.tables.address import DELTA_LOG
from avow.testing.cluster import LocalCluster
from avow.testing.cluster_wait import wait_until
from benchmarks import spark_results

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NAME: Final = "spark-latency"
QUEUE: Final = "bench"
VALUE_BYTES: Final = 100
TICK_S: Final = 0.01
WARM_S: Final = 15.0
DRAIN_S: Final = 120.0
P50_MAX_S: Final = 1.0
STAMP: Final = struct.Struct("<dQ")  # when it was sent, and its number
PHASES: Final = (
    "latestOffset",
    "queryPlanning",
    "getBatch",
    "walCommit",
    "addBatch",
    "commitOffsets",
    "triggerExecution",
)


class Sender(threading.Thread):
    """Every 10 ms what is due by then, as one batch."""

    def __init__(self, servers: str, *, rate: int, seconds: float) -> None:
        super().__init__(name="sender")
        self._servers, self._rate, self._seconds = servers, rate, seconds
        self.sent = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with connect_blocking(self._servers) as client:
                self._send(client.queue(QUEUE))
        except BaseException as error:
            self.error = error
            raise

    def _send(self, queue: Any) -> None:
        begun = time.monotonic()
        while (passed := time.monotonic() - begun) < self._seconds:
            due = int(passed * self._rate) - self.sent
            if due > 0:
                now = time.time()
                numbers = range(self.sent, self.sent + due)
                queue.enqueue_many([STAMP.pack(now, number).ljust(VALUE_BYTES, b".") for number in numbers])
                self.sent += due
            time.sleep(TICK_S)


def main(arguments: Sequence[str] = ()) -> dict[str, object]:
    asked = _parsed(arguments)
    folder = Path(tempfile.mkdtemp(prefix="avow-bench-latency-"))
    try:
        with LocalCluster(asked.peers, folder=folder / "peers") as cluster:
            with connect_blocking(cluster.addresses) as client:
                client.create_queue(QUEUE, lanes=asked.lanes)
            spark = session(NAME, master="local[2]", config={"spark.driver.memory": "1g"})
            spark.sparkContext.setLogLevel("ERROR")
            try:
                measured = _measure(spark, cluster.addresses, folder, asked)
            finally:
                spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    spark_results.add(asked.json, NAME, measured)
    return measured


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {NAME}")
    parser.add_argument("--rate", type=int, default=500, help="messages a second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm", type=float, default=WARM_S, help="seconds before it counts")
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--peers", type=int, default=3)
    parser.add_argument("--every", default="0 seconds", help="Spark's trigger interval")
    parser.add_argument("--archive", action="store_true", help="the archive pipeline")
    spark_results.add_flag(parser)
    return parser.parse_args(list(arguments))


def _measure(spark: SparkSession, servers: str, folder: Path, asked: argparse.Namespace) -> dict[str, object]:
    table = folder / "table"
    query = _started(spark, servers, folder, asked)
    sender = Sender(servers, rate=asked.rate, seconds=asked.warm + asked.seconds)
    wait_until(lambda: bool(query.recentProgress) or query.exception(), timeout_s=DRAIN_S, what="the first batch")
    sender.start()
    sender.join()
    if sender.error is not None:
        raise sender.error
    wait_until(lambda: _rows(table) >= sender.sent, timeout_s=DRAIN_S, what=lambda: f"{sender.sent} rows")
    progress = [msgspec.json.decode(each.json, type=dict[str, Any]) for each in query.recentProgress]
    query.stop()
    arrived = list(arrivals(table))
    if sorted(number for _, _, number in arrived) != list(range(sender.sent)):
        raise AssertionError(
            f"{sender.sent} messages were sent, and the table has {len(arrived)} rows that are not they"
        )
    counts_from = min(sent for sent, _, _ in arrived) + asked.warm
    ages = sorted(at - sent for sent, at, _ in arrived if sent >= counts_from)
    return told(ages, phases_of(progress), rate=asked.rate)


def _started(spark: SparkSession, servers: str, folder: Path, asked: argparse.Namespace) -> StreamingQuery:
    place, checkpoint = f"delta:{folder / 'table'}", str(folder / "checkpoint")
    if asked.archive:
        source, cluster = Source(queues=(QUEUE,)), Cluster(servers=servers)
        spec = ArchiveSpec(
            name=NAME, checkpoint=checkpoint, source=source, table=place, cluster=cluster, every=asked.every
        )
        return archive(spark, spec).query
    options = {"servers": servers, "subscribe": QUEUE, "startingOffsets": "earliest"}
    rows = spark.readStream.format("avow").options(**options).load()
    return open_table(place).write_stream(rows, checkpoint=checkpoint, trigger={"processingTime": asked.every})


def _rows(folder: Path) -> int:
    return open_table(f"delta:{folder}").count()


def arrivals(folder: Path) -> Iterator[tuple[float, float, int]]:
    """(when a message was sent, when its row was readable, its number), of all rows."""
    for entry in sorted((folder / DELTA_LOG).glob("*.json")):
        at = os.stat(entry).st_ctime  # a file has its contents before its name
        for line in entry.read_bytes().splitlines():
            action = msgspec.json.decode(line, type=dict[str, Any])
            if "add" in action and action["add"]["dataChange"]:  # not the same rows again, put together
                for value in _values(folder, action["add"]["path"]):
                    sent, number = STAMP.unpack_from(value)
                    yield sent, at, number


def _values(folder: Path, name: str) -> list[bytes]:
    import pyarrow.parquet as pq

    rows: pa.Table = pq.ParquetFile(folder / name).read(columns=["value"])
    values: list[bytes] = rows.column("value").to_pylist()
    return values


def phases_of(progress: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Median milliseconds of a batch with rows, by what Spark says it spent them on."""
    busy = [each["durationMs"] for each in progress if each.get("numInputRows")]
    return {name: statistics.median(each.get(name, 0) for each in busy) for name in PHASES} if busy else {}


def told(ages: Sequence[float], phases: Mapping[str, float], *, rate: int) -> dict[str, object]:
    cuts = statistics.quantiles(ages, n=1000, method="inclusive")
    found = {"p50": cuts[499], "p90": cuts[899], "p99": cuts[989], "max": ages[-1]}
    print(f"{len(ages):,} messages at {rate:,}/s, from sending to a readable row:")
    print("   ".join(f"{name} {1000 * value:,.0f} ms" for name, value in found.items()))
    print("a batch in ms, median: " + ", ".join(f"{name} {value:.0f}" for name, value in phases.items()))
    print(f"p50 {found['p50']:.2f} s (below {P50_MAX_S:g})")
    shape = [cuts[number] for number in range(9, 999, 10)]
    return {
        "seconds": found,
        "percentiles_s": shape,
        "phases_ms": dict(phases),
        "rate": rate,
        "held": found["p50"] < P50_MAX_S,
    }


if __name__ == "__main__":
    import sys

    raise SystemExit(0 if main(sys.argv[1:])["held"] else 1)
