"""How fast Spark writes to a queue, beside Spark's own Parquet writer with the same rows.

A sink that is exactly once is used where a file sink would be, so that is what it is held against: the same rows of
100 bytes, read from the same Parquet files, by the same two tasks; the one writes files, the other stages on a peer
that syncs, and publishes. Both are timed from the call to its return. Rounds alternate, and the ratio is that of the
medians. The peer runs on the same cores as Spark: what it costs is in the figure.

Beside it, without a target: rows with keys over four lanes, and a cluster of three peers, where every row is stored
three times.

Run it with `python -m benchmarks spark-write [--rows 1000000] [--rounds 5] [--peers 1]`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from typing import TYPE_CHECKING, Final

from avow.client.blocking import connect_blocking
from avow.spark.session import session
from avow.testing.cluster import LocalCluster
from benchmarks import spark_results

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = 1_000_000
ROUNDS: Final = 5
TASKS: Final = 2
RATIO_MIN: Final = 0.7
_VALUE: Final = "concat(unhex(sha2(CAST(id AS STRING), 512)), CAST(lpad(id, 36, '.') AS BINARY)) AS value"  # 100 bytes
_KEY: Final = "CAST(concat('customer-', id % 100003) AS BINARY) AS key"
PARQUET: Final = "parquet"
VALUES: Final = "avow"
KEYED_PARQUET: Final = "parquet, keys"
KEYED: Final = "avow, keys, 4 lanes"


def main(arguments: list[str] | None = None) -> dict[str, object]:
    options = _options(arguments or [])
    folder = tempfile.mkdtemp(prefix="avow-bench-")
    spark = session("spark-write", master=f"local[{TASKS}]", config={"spark.driver.memory": "1g"})
    spark.sparkContext.setLogLevel("ERROR")
    try:
        with LocalCluster(options.peers) as cluster:
            rates = _measure(spark, folder, cluster, rows=options.rows, rounds=options.rounds)
    finally:
        spark.stop()
        shutil.rmtree(folder)
    figures = _told(rates, peers=options.peers)
    spark_results.add(options.json, "spark-write", figures)
    return figures


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks spark-write")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--peers", type=int, default=1)
    spark_results.add_flag(parser)
    return parser.parse_args(arguments)


def _measure(
    spark: SparkSession, folder: str, cluster: LocalCluster, *, rows: int, rounds: int
) -> dict[str, list[float]]:
    """Rows a second, of each round."""
    spark.range(0, rows, 1, TASKS).selectExpr(_VALUE, _KEY).write.parquet(os.path.join(folder, "rows"))
    keyed = spark.read.parquet(os.path.join(folder, "rows"))
    values = keyed.select("value")
    with connect_blocking(cluster.addresses) as client:
        client.create_queue("values")
        client.create_queue("keyed", lanes=4)

        def to_files(found: DataFrame) -> None:
            found.write.mode("overwrite").parquet(os.path.join(folder, "written"))

        def to_queue(found: DataFrame, queue: str) -> None:
            options = {"servers": cluster.addresses, "topic": queue}
            found.write.format("avow").mode("append").options(**options).save()

        ways: dict[str, Callable[[], None]] = {
            PARQUET: lambda: to_files(values),
            VALUES: lambda: to_queue(values, "values"),
            KEYED_PARQUET: lambda: to_files(keyed),
            KEYED: lambda: to_queue(keyed, "keyed"),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):  # the first warms the JVM
            for name, way in ways.items():
                begun = time.perf_counter()
                way()
                if number:
                    rates[name].append(rows / (time.perf_counter() - begun))
        written = sum(lane.end for name in ("values", "keyed") for lane in client.queue(name).info().lanes)
    if written != 2 * rows * (rounds + 1):
        raise AssertionError(f"{written} messages of {2 * rows * (rounds + 1)} are there")
    return rates


def _told(rates: dict[str, list[float]], *, peers: int) -> dict[str, object]:
    medians = {name: statistics.median(found) for name, found in rates.items()}
    for name, median in medians.items():
        worst, best = (found(rates[name]) / 1e6 for found in (min, max))
        print(f"{name:<22}{median / 1e6:>8.2f} M rows/s   from {worst:.2f} to {best:.2f}")
    ratio, keyed = medians[VALUES] / medians[PARQUET], medians[KEYED] / medians[KEYED_PARQUET]
    print(f"avow against parquet, {peers} peer(s): x {ratio:.2f} (at least {RATIO_MIN}); with keys x {keyed:.2f}")
    return {
        "rows_per_s": medians,
        "ratio": ratio,
        "ratio_keyed": keyed,
        "peers": peers,
        "held": ratio >= RATIO_MIN or peers > 1,
    }


if __name__ == "__main__":
    raise SystemExit(0 if main()["held"] else 1)
