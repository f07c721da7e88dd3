"""`spark.readStream.format("avow")` in a real Spark: every version once, over restarts, new lanes and dead peers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from avow.client.blocking import BlockingClient, connect_blocking
from avow.testing.cluster import LocalCluster, wait_until

AWAIT_S = 300
STARTS_MAX = 5
NOT_CONNECTED = "Python worker failed to connect back"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3) as made:
        yield made


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[BlockingClient]:
    with connect_blocking(cluster.addresses) as made:
        yield made


class Job:
    """A query with its checkpoint. `batches` are the values of each batch that was done, by its number."""

    def __init__(self, spark: SparkSession, cluster: LocalCluster, folder: Path, **options: str) -> None:
        self._spark, self._checkpoint = spark, str(folder / "checkpoint")
        self.options = {"servers": cluster.addresses, **options}
        self.batches: dict[int, list[bytes]] = {}

    def start(self, **trigger: Any) -> StreamingQuery:
        reader = self._spark.readStream.format("avow").options(**self.options).load()
        writer = reader.writeStream.foreachBatch(self._take).option("checkpointLocation", self._checkpoint)
        return writer.trigger(**trigger).start()

    def _take(self, rows: DataFrame, number: int) -> None:
        self.batches[number] = [bytes(row.value) for row in rows.select("value").collect()]

    def run(self) -> None:
        """All there is, then end. Spark waits ten seconds for the Python process of a stream's source, however busy the
        machine is; a query that failed so has read nothing, and is started again."""
        for _ in range(STARTS_MAX):
            query = self.start(availableNow=True)
            try:
                assert query.awaitTermination(AWAIT_S)
            except StreamingQueryException as failed:
                if NOT_CONNECTED not in str(failed):
                    raise
            else:
                return
        raise AssertionError(f"{NOT_CONNECTED}, {STARTS_MAX} times")

    @property
    def values(self) -> list[bytes]:
        return sorted(value for batch in self.batches.values() for value in batch)


def fill(client: BlockingClient, queue: str, *names: str, lane: int | None = None) -> list[bytes]:
    values = [b"%s-%d" % (name.encode(), number) for name in names for number in range(100)]
    client.queue(queue).enqueue_many(values, lane=lane)
    return values


def test_available_now_reads_all_under_its_limit_and_resumes_after_a_restart_and_a_kill(
    spark: SparkSession, cluster: LocalCluster, client: BlockingClient, tmp_path: Path
) -> None:
    client.create_queue("orders", lanes=2)
    written = fill(client, "orders", "a", lane=0) + fill(client, "orders", "b", lane=1)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "80", "subscriber": "spark"}
    job = Job(spark, cluster, tmp_path, subscribe="orders", **options)
    job.run()
    assert job.values == sorted(written)
    assert [len(batch) for batch in job.batches.values()] == [80, 80, 40]
    wait_until(lambda: client.queue("orders").cursor("spark") == {0: 100, 1: 100}, what="the subscriber's cursor")
    coordinator = client.queue("orders").info().lanes[0].coordinator
    assert coordinator is not None
    cluster.kill(coordinator)
    written += fill(client, "orders", "c", lane=1)
    job.run()
    cluster.restart(coordinator)
    assert job.values == sorted(written)


def test_a_stream_from_the_end_sees_only_new_messages(
    spark: SparkSession, cluster: LocalCluster, client: BlockingClient, tmp_path: Path
) -> None:
    client.create_queue("late")
    fill(client, "late", "before")
    job = Job(spark, cluster, tmp_path, subscribe="late")
    query = job.start(processingTime="0 seconds")
    wait_until(lambda: 0 in job.batches, timeout_s=AWAIT_S, what="the empty first batch")
    written = fill(client, "late", "after")
    wait_until(lambda: len(job.values) >= 100, timeout_s=AWAIT_S, what="the rows that came")
    query.stop()
    written += fill(client, "late", "meanwhile")
    job.run()
    assert job.values == sorted(written)


def test_lanes_of_new_runs_of_peers_are_read_after_a_restart(
    spark: SparkSession, cluster: LocalCluster, client: BlockingClient, tmp_path: Path
) -> None:
    client.create_queue("events", strategy="pub-sub")
    queue = client.queue("events")
    written = fill(client, "events", "first")
    job = Job(spark, cluster, tmp_path, subscribe="events", startingOffsets="earliest")
    job.run()
    before = {lane.lane for lane in queue.survey().lanes}
    cluster.kill(1)
    cluster.restart(1)
    wait_until(lambda: {lane.lane for lane in queue.survey().lanes} - before, what="a lane of the new run")
    with connect_blocking(cluster.api(1)) as other:
        written += fill(other, "events", "second")
    written += fill(client, "events", "third")
    wait_until(lambda: sum(lane.end for lane in queue.survey().lanes) == len(written), what="all lanes' ends")
    job.run()
    assert job.values == sorted(written)


def test_trimmed_versions_stop_a_stream_unless_it_may_skip_them(
    spark: SparkSession, cluster: LocalCluster, client: BlockingClient, tmp_path: Path
) -> None:
    client.create_queue("trimmed")
    fill(client, "trimmed", "a")
    job = Job(spark, cluster, tmp_path, subscribe="trimmed", startingOffsets="earliest")
    job.run()
    fill(client, "trimmed", "lost")
    kept = fill(client, "trimmed", "kept")
    client.queue("trimmed").trim(0, 200)
    wait_until(lambda: client.queue("trimmed").survey().lanes[0].trimmed_to == 200, what="a trim")
    with pytest.raises(StreamingQueryException, match=r"queue 'trimmed', lane 0, versions 101 to 200"):
        job.run()
    job.options["failOnDataLoss"] = "false"
    job.batches.clear()
    job.run()
    assert job.values == sorted(kept)
