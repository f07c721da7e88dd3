"""Ten million messages out of a queue into a table, the queue trimmed behind them; then all read back as one sequence.

    fill      messages of 100 B in batches of 1,000, a writer for each lane
    archive   the archive pipeline into a Delta table, with `trim`: what is in the table leaves the queue
    live      some more, which only the queue has
    read      format("avow") with `archive`: old versions from the table, new ones from the peers

Then every lane is checked: each version once, and in order within what one task read. Tasks do it where the rows are,
column by column: a stretch is first, last and count of versions that follow one another; stretches of a lane must lie
end to end from 1 to its last version. A value says which lane and version it was written for, and is compared, too.

`python -m benchmarks spark-archive --messages 10000000 --lanes 4 --peers 1`. Ten million take some 3 GB of disk for
each peer and for the table; the folder is removed afterwards.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from avow.client.blocking import BlockingClient, connect_blocking
from avow.spark.pipelines import ArchiveSpec, Cluster, Source, archive
from avow.spark.session import session
from avow.testing.cluster import LocalCluster
from benchmarks import spark_results

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

NAME: Final = "spark-archive"
QUEUE: Final = "bench"
MESSAGES: Final = 10_000_000
LIVE: Final = 0.01  # of them are written after the trim
BATCH_COUNT: Final = 1_000
BATCH_ROWS: Final = 1_000_000
FILLING: Final = b"." * (100 - 20)
STRETCH: Final = "lane int, first long, last long, rows long, right long"


class Stretch(Struct, frozen=True, order=True):
    """Versions that follow one another as they were read; `right`: rows whose value is that of their version."""

    lane: int
    first: int
    last: int
    rows: int
    right: int


class Totals(Struct, frozen=True):
    rows: int
    stretches: int
    trimmed: int
    faults: list[str]

    @property
    def clean(self) -> bool:
        return not self.faults


class Run(Struct, frozen=True, kw_only=True):
    totals: Totals
    archived_rows: int
    live_rows: int
    seconds: dict[str, float]

    @property
    def clean(self) -> bool:
        whole = self.archived_rows + self.live_rows
        return self.totals.clean and self.totals.rows == whole and self.totals.trimmed == self.archived_rows


def fill(servers: str, *, lanes: int, start: int, end: int) -> None:
    """Versions `start` to `end` - 1 of every lane, a writer for each."""

    def write(lane: int) -> None:
        with connect_blocking(servers) as client:
            queue = client.queue(QUEUE)
            for first in range(start, end, BATCH_COUNT):
                versions = range(first, min(first + BATCH_COUNT, end))
                queue.enqueue_many([b"%04d:%015d" % (lane, version) + FILLING for version in versions], lane=lane)

    with ThreadPoolExecutor(lanes) as pool:
        list(pool.map(write, range(lanes)))


def archived(spark: SparkSession, servers: str, folder: Path, *, batch_rows: int = BATCH_ROWS) -> str:
    """All that the queue has, once, and trimmed. Answers the table's URL."""
    table = f"delta:{folder / 'table'}"
    source = Source(queues=(QUEUE,), batch_rows=batch_rows, headers=False)
    spec = ArchiveSpec(
        name=NAME,
        checkpoint=str(folder / "checkpoint"),
        source=source,
        table=table,
        cluster=Cluster(servers=servers),
        trim=True,
        report="",
    )
    archive(spark, spec, once=True).wait()
    return table


def read_back(spark: SparkSession, servers: str, table: str) -> list[Stretch]:
    options = {"servers": servers, "subscribe": QUEUE, "archive": table}
    rows = spark.read.format("avow").options(**options).schema("value binary, partition int, offset long").load()
    return [Stretch(*row) for row in stretches(rows).collect()]


def stretches(rows: DataFrame) -> DataFrame:
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        found: list[list[int]] = []
        for batch in batches:
            lane, version = (batch.column(name).to_numpy() for name in ("partition", "offset"))
            text = pc.cast(batch.column("value"), pa.string())
            told_lane = pc.cast(pc.utf8_slice_codeunits(text, 0, 4), pa.int32()).to_numpy()
            told = pc.cast(pc.utf8_slice_codeunits(text, 5, 20), pa.int64()).to_numpy()
            right = (told == version) & (told_lane == lane)
            cuts = np.flatnonzero((np.diff(version) != 1) | (np.diff(lane) != 0)) + 1
            for at, to in zip([0, *cuts], [*cuts, len(version)], strict=True):
                one = [int(lane[at]), int(version[at]), int(version[to - 1]), int(to - at), int(right[at:to].sum())]
                if found and found[-1][0] == one[0] and found[-1][2] + 1 == one[1]:
                    found[-1] = [*found[-1][:2], one[2], found[-1][3] + one[3], found[-1][4] + one[4]]
                else:
                    found.append(one)
        names = ("lane", "first", "last", "rows", "right")
        kinds = (pa.int32(), *[pa.int64()] * 4)
        columns = [pa.array([one[number] for one in found], kinds[number]) for number in range(5)]
        yield pa.RecordBatch.from_arrays(columns, names=list(names))

    return rows.mapInArrow(look, STRETCH)


def totals_of(found: Iterable[Stretch], *, ends: dict[int, int], trimmed: int) -> Totals:
    """Pure. `ends`: the last version of each lane."""
    faults: list[str] = []
    of_lane: dict[int, list[Stretch]] = {lane: [] for lane in ends}
    for one in sorted(found):
        of_lane.setdefault(one.lane, []).append(one)
    for lane, parts in of_lane.items():
        at = 0
        for one in parts:
            if one.first != at + 1:
                faults.append(f"lane {lane}: {'a hole' if one.first > at + 1 else 'twice, or not in order'} after {at}")
            if one.right != one.rows:
                faults.append(f"lane {lane}: {one.rows - one.right} values of other versions after {one.first - 1}")
            at = max(at, one.last)
        if at != ends.get(lane, 0):
            faults.append(f"lane {lane}: read up to {at}, and it ends at {ends.get(lane, 0)}")
    rows = sum(one.rows for parts in of_lane.values() for one in parts)
    return Totals(rows=rows, stretches=sum(map(len, of_lane.values())), trimmed=trimmed, faults=faults)


def checked(client: BlockingClient, found: Iterable[Stretch]) -> Totals:
    lanes = client.queue(QUEUE).survey(confirmed=True).lanes
    trimmed = sum(lane.trimmed_to for lane in lanes)
    return totals_of(found, ends={lane.lane: lane.end for lane in lanes}, trimmed=trimmed)


def run(spark: SparkSession, servers: str, folder: Path, *, messages: int, lanes: int, batch_rows: int) -> Run:
    each, live = messages // lanes, max(1, int(messages * LIVE) // lanes)
    seconds: dict[str, float] = {}
    with connect_blocking(servers) as client:
        client.create_queue(QUEUE, lanes=lanes)
        _timed(seconds, "fill", lambda: fill(servers, lanes=lanes, start=1, end=each + 1))
        _timed(seconds, "archive", lambda: archived(spark, servers, folder, batch_rows=batch_rows))
        _timed(seconds, "live", lambda: fill(servers, lanes=lanes, start=each + 1, end=each + live + 1))
        found: list[Stretch] = []
        _timed(seconds, "read", lambda: found.extend(read_back(spark, servers, f"delta:{folder / 'table'}")))
        return Run(totals=checked(client, found), archived_rows=each * lanes, live_rows=live * lanes, seconds=seconds)


def _timed(seconds: dict[str, float], name: str, work: Callable[[], object]) -> None:
    print(f"{name} ...", flush=True)
    begun = time.monotonic()
    work()
    seconds[name] = time.monotonic() - begun


def main(arguments: Sequence[str] = ()) -> dict[str, object]:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {NAME}")
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--peers", type=int, default=1)
    parser.add_argument("--batch-rows", type=int, default=BATCH_ROWS, help="of the archive's micro-batches")
    spark_results.add_flag(parser)
    asked = parser.parse_args(list(arguments))
    folder = Path(tempfile.mkdtemp(prefix="avow-bench-archive-"))
    spark = session(NAME, master="local[2]", config={"spark.driver.memory": "2g"})
    spark.sparkContext.setLogLevel("ERROR")
    try:
        with LocalCluster(asked.peers, folder=folder / "peers") as cluster:
            sizes = {"messages": asked.messages, "lanes": asked.lanes, "batch_rows": asked.batch_rows}
            figures = told(run(spark, cluster.addresses, folder, **sizes))
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    spark_results.add(asked.json, NAME, figures)
    return figures


def told(done: Run) -> dict[str, object]:
    rows = {
        "fill": done.archived_rows,
        "archive": done.archived_rows,
        "live": done.live_rows,
        "read": done.archived_rows + done.live_rows,
    }
    rates = {name: rows[name] / took for name, took in done.seconds.items()}
    for name, took in done.seconds.items():
        print(f"{name:<10}{rows[name]:>12,} rows in {took:>8.1f} s {rates[name]:>12,.0f} rows/s")
    totals = done.totals
    print(f"{totals.trimmed:,} versions trimmed; {totals.rows:,} rows read in {totals.stretches} stretches")
    for fault in totals.faults[:10]:
        print(f"wrong: {fault}")
    print("every version once, in order" if done.clean else "BROKEN: see above")
    return {"seconds": done.seconds, "rows_per_s": rates, "rows": totals.rows, "held": done.clean}


if __name__ == "__main__":
    import sys

    raise SystemExit(0 if main(sys.argv[1:])["held"] else 1)
