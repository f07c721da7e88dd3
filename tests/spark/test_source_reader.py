"""The source's readers against real peers, without a JVM: offsets, restarts, new and ended lanes, lost versions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.spark.source_readers import ALL, Row, Stream, batches_of, read_batch, source

from avow.client.blocking import BlockingClient, connect_blocking
from avow.errors import InvalidRequest, Trimmed, UnknownQueue
from avow.spark.source.archive import ArchivePart
from avow.spark.source.partition_reader import LanePart
from avow.spark.source.rows import COLUMNS, TYPES
from avow.spark.tables.address import parse
from avow.spark.tables.parquet import ParquetStore
from avow.testing.cluster import LocalCluster, wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3) as made:
        yield made


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[BlockingClient]:
    with connect_blocking(cluster.addresses) as made:
        made.servers = cluster.addresses  # type: ignore[attr-defined]
        yield made


def fill(client: BlockingClient, queue: str, *, lane: int, first: int, last: int, **columns: object) -> list[Row]:
    """Values that say where they are."""
    values = [b"%d-%d" % (lane, version) for version in range(first, last + 1)]
    client.queue(queue).enqueue_many(values, lane=lane, **columns)  # type: ignore[arg-type]
    return [(queue, lane, first + number, value) for number, value in enumerate(values)]


# ------------------------------------------------------------------ where a read starts and ends


def rows_of(part: Any) -> int:
    """Of a partition, how many rows it reads."""
    return int(part.versions.rows)


def test_a_batch_reads_both_lanes_from_the_first_version_to_the_last(client: BlockingClient) -> None:
    client.create_queue("both", lanes=2)
    rows = fill(client, "both", lane=0, first=1, last=300) + fill(client, "both", lane=1, first=1, last=5)
    assert read_batch(client, subscribe="both") == rows
    made = source(client, subscribe="both").reader(source(client).schema())
    assert [rows_of(part) for part in made.partitions()] == [300, 5]


def test_a_start_offset_is_inclusive_and_an_end_offset_exclusive(client: BlockingClient) -> None:
    client.create_queue("named", lanes=2)
    rows = fill(client, "named", lane=0, first=1, last=10) + fill(client, "named", lane=1, first=1, last=10)
    start, end = '{"named":{"0":4,"1":-2}}', '{"named":{"0":6,"1":-1}}'
    found = read_batch(client, subscribe="named", startingOffsets=start, endingOffsets=end)
    assert found == [row for row in rows if row[1] == 1 or row[2] in (4, 5)]
    assert read_batch(client, assign='{"named":[1]}', startingOffsets='{"named":{"1":0}}') == rows[10:]
    with pytest.raises(InvalidRequest, match="lane 7 of queue 'named'"):
        read_batch(client, subscribe="named", startingOffsets='{"named":{"7":4}}')
    with pytest.raises(InvalidRequest, match="last version is 10"):
        read_batch(client, subscribe="named", endingOffsets='{"named":{"0":12}}')
    with pytest.raises(InvalidRequest, match=r"assign names lanes \[2\]"):
        read_batch(client, assign='{"named":[1,2]}')


def test_a_time_selects_the_first_version_not_before_it(client: BlockingClient) -> None:
    client.create_queue("timed")
    rows: list[Row] = []
    for first in (1, 4, 7):
        times = [version * 1_000 for version in range(first, first + 3)]
        rows += fill(client, "timed", lane=0, first=first, last=first + 2, times=times)
    assert read_batch(client, subscribe="timed", startingTimestamp="4500") == rows[4:]
    assert read_batch(client, subscribe="timed", startingTimestamp="2000", endingTimestamp="8000") == rows[1:7]
    by_lane = '{"timed":{"0":9000}}'
    assert read_batch(client, subscribe="timed", startingOffsetsByTimestamp=by_lane) == rows[8:]
    assert read_batch(client, subscribe="timed", endingOffsetsByTimestamp=by_lane) == rows[:8]
    assert read_batch(client, subscribe="timed", endingTimestamp="99999") == rows
    with pytest.raises(InvalidRequest, match="startingOffsetsByTimestampStrategy"):
        read_batch(client, subscribe="timed", startingTimestamp="9001")
    latest = {"startingTimestamp": "9001", "startingOffsetsByTimestampStrategy": "latest"}
    assert read_batch(client, subscribe="timed", **latest) == []


def test_a_pattern_must_match_the_whole_name_of_a_queue(client: BlockingClient) -> None:
    for name in ("pat-a", "pat-b", "other-pat-c"):
        client.create_queue(name)
        fill(client, name, lane=0, first=1, last=2)
    assert {row[0] for row in read_batch(client, subscribePattern="pat-.")} == {"pat-a", "pat-b"}
    assert read_batch(client, subscribePattern="nothing.*") == []


def test_an_unknown_queue_is_reported_with_the_servers(client: BlockingClient, cluster: LocalCluster) -> None:
    with pytest.raises(UnknownQueue, match="'nowhere'") as caught:
        read_batch(client, subscribe="nowhere")
    assert cluster.addresses in str(caught.value)


def test_partitions_follow_the_options_and_are_read_from_different_peers(client: BlockingClient) -> None:
    client.create_queue("cut")
    rows = fill(client, "cut", lane=0, first=1, last=100)
    made = source(client, subscribe="cut", minPartitions="3").reader(source(client).schema())
    parts: list[Any] = list(made.partitions())
    assert [rows_of(part) for part in parts] == [33, 33, 34]
    assert {part.preferred for part in parts} == {1, 2, 3}
    assert read_batch(client, subscribe="cut", maxRecordsPerPartition="7") == rows


def test_headers_and_keys_are_read_too(client: BlockingClient) -> None:
    client.create_queue("headers")
    queue = client.queue("headers")
    queue.enqueue(b"a", key=b"k", headers={"trace": b"1"}, time_ms=1_500)
    queue.enqueue(b"b")
    found = [
        row for batch in batches_of(client, subscribe="headers", includeHeaders="true") for row in batch.to_pylist()
    ]
    assert [row["headers"] for row in found] == [[{"key": "trace", "value": b"1"}], None]
    assert [row["key"] for row in found] == [b"k", None]


# ------------------------------------------------------------------ streams


def test_a_stream_reads_every_version_once_across_restarts(client: BlockingClient) -> None:
    client.create_queue("once", lanes=2)
    rows = fill(client, "once", lane=0, first=1, last=10)
    stream = Stream(client, subscribe="once", startingOffsets="earliest")
    stream.drain()
    rows += fill(client, "once", lane=1, first=1, last=7)
    assert stream.plan()
    stream.restart()  # planned and not done: the same batch again
    stream.run()
    rows += fill(client, "once", lane=0, first=11, last=20)
    stream.restart()
    stream.drain()
    assert sorted(stream.rows) == sorted(rows)
    assert stream.offsets[-1] == '{"v": 1, "queues": {"once": {"0": 21, "1": 8}}}'
    stream.reader.stop()


def test_a_stream_from_the_end_starts_where_its_first_batch_was_logged(client: BlockingClient) -> None:
    client.create_queue("late")
    fill(client, "late", lane=0, first=1, last=10)
    stream = Stream(client, subscribe="late")
    first = stream.reader.initialOffset()
    rows = fill(client, "late", lane=0, first=11, last=15)
    assert stream.reader.initialOffset() == first
    assert stream.plan()
    rows += fill(client, "late", lane=0, first=16, last=20)
    stream.restart()  # batch 0 was logged and not done; its start is a later end now
    assert stream.run() == []
    stream.drain()
    assert stream.rows == rows
    stream.reader.stop()


def test_a_limit_bounds_every_batch_and_loses_nothing(client: BlockingClient) -> None:
    client.create_queue("limit", lanes=2)
    rows = fill(client, "limit", lane=0, first=1, last=90) + fill(client, "limit", lane=1, first=1, last=10)
    stream = Stream(client, subscribe="limit", startingOffsets="earliest", maxOffsetsPerTrigger="30")
    batches = stream.drain()
    assert [len(batch) for batch in batches] == [30, 30, 30, 10]
    assert all({row[1] for row in batch} == {0, 1} for batch in batches[:-1])
    assert sorted(stream.rows) == rows
    stream.reader.stop()
    whole = Stream(client, subscribe="limit", startingOffsets="earliest", maxOffsetsPerTrigger="30")
    assert [len(batch) for batch in whole.drain(ALL)] == [100]
    whole.reader.stop()


def test_a_batch_waits_for_the_minimum_number_of_rows_but_not_for_ever(client: BlockingClient) -> None:
    client.create_queue("least")
    fill(client, "least", lane=0, first=1, last=3)
    options = {"subscribe": "least", "startingOffsets": "earliest", "minOffsetsPerTrigger": "5"}
    stream = Stream(client, maxOffsetsPerTrigger="6", **options)
    assert [len(batch) for batch in stream.drain()] == [3]  # the first one does not wait
    fill(client, "least", lane=0, first=4, last=7)
    assert not stream.plan()
    fill(client, "least", lane=0, first=8, last=10)
    assert [len(batch) for batch in stream.drain()] == [6]
    stream.reader.stop()
    hasty = Stream(client, maxTriggerDelay="0ms", **options)
    assert [len(batch) for batch in hasty.drain()] == [10]
    fill(client, "least", lane=0, first=11, last=11)
    assert [len(batch) for batch in hasty.drain()] == [1]
    hasty.reader.stop()


def test_available_now_ends_at_the_end_that_it_found_at_its_start(client: BlockingClient) -> None:
    client.create_queue("now")
    rows = fill(client, "now", lane=0, first=1, last=10)
    stream = Stream(client, subscribe="now", startingOffsets="earliest", maxOffsetsPerTrigger="4")
    stream.reader.prepareForTriggerAvailableNow()
    fill(client, "now", lane=0, first=11, last=15)
    assert [len(batch) for batch in stream.drain()] == [4, 4, 2]
    assert stream.rows == rows
    assert stream.reader.reportLatestOffset() == {"v": 1, "queues": {"now": {"0": 11}}}
    stream.reader.stop()


def test_a_subscribers_cursor_follows_finished_batches(client: BlockingClient) -> None:
    client.create_queue("cursor")
    fill(client, "cursor", lane=0, first=1, last=10)
    stream = Stream(client, subscribe="cursor", startingOffsets="earliest", subscriber="spark")
    assert stream.plan()
    wait_until(lambda: client.queue("cursor").cursor("spark") == {0: 0}, what="a cursor at the start")
    stream.run()
    stream.reader.commit(json.loads(stream.offsets[-1]))
    wait_until(lambda: client.queue("cursor").cursor("spark") == {0: 10}, what="a cursor at the end")
    fill(client, "cursor", lane=0, first=11, last=12)
    stream.drain()  # its last look moves the cursor too, as no commit comes after the last batch
    wait_until(lambda: client.queue("cursor").cursor("spark") == {0: 12}, what="a cursor at the end")
    client.delete_queue("cursor")
    assert stream.reader._cursor is not None
    stream.reader._move_cursor(type(stream.reader._cursor)({"cursor": {0: 99}}))  # logged, not raised
    stream.reader.stop()


# ------------------------------------------------------------------ lost versions


def test_trimmed_versions_fail_a_read_that_asks_for_them_or_are_skipped(
    client: BlockingClient, caplog: pytest.LogCaptureFixture
) -> None:
    client.create_queue("trim")
    rows = fill(client, "trim", lane=0, first=1, last=10)
    stream = Stream(client, subscribe="trim", startingOffsets="earliest")
    stream.plan()
    client.queue("trim").trim(0, 4)
    wait_until(lambda: client.queue("trim").survey().lanes[0].trimmed_to == 4, what="a trim")
    start = '{"trim":{"0":2}}'
    with pytest.raises(Trimmed, match=r"queue 'trim', lane 0, versions 2 to 4 .*failOnDataLoss"):
        read_batch(client, subscribe="trim", startingOffsets=start)
    with caplog.at_level("WARNING", "avow.spark"):
        assert read_batch(client, subscribe="trim", startingOffsets=start, failOnDataLoss="false") == rows[4:]
    assert "versions 2 to 4" in caplog.text
    assert read_batch(client, subscribe="trim") == rows[4:]
    with pytest.raises(Trimmed, match="versions 1 to 4"):
        stream.run()
    stream.options["failOnDataLoss"] = "false"
    stream.restart()
    assert stream.run() == rows[4:]
    stream.reader.stop()


def test_the_task_detects_versions_trimmed_after_planning(client: BlockingClient, cluster: LocalCluster) -> None:
    client.create_queue("during")
    rows = fill(client, "during", lane=0, first=1, last=10)
    strict = source(client, subscribe="during").reader(source(client).schema())
    lenient = source(client, subscribe="during", failOnDataLoss="false").reader(source(client).schema())
    parts = strict.partitions()
    client.queue("during").trim(0, 6)
    for number in cluster.founders:
        asked = partial(cluster.ask, number, "/v1/queues/during")
        wait_until(lambda asked=asked: asked()["lanes"][0]["trimmed_to"] == 6, what="a trim at every peer")  # type: ignore[misc]
    with pytest.raises(Trimmed, match="versions 1 to 6"):
        list(strict.read(parts[0]))
    found = [row["value"] for batch in lenient.read(parts[0]) for row in batch.to_pylist()]
    assert found == [row[3] for row in rows[6:]]


def test_a_recreated_queue_is_not_mistaken_for_the_old_one(client: BlockingClient) -> None:
    client.create_queue("anew")
    fill(client, "anew", lane=0, first=1, last=10)
    stream = Stream(client, subscribe="anew", startingOffsets="earliest")
    stream.drain()
    client.delete_queue("anew")
    client.create_queue("anew")
    fill(client, "anew", lane=0, first=1, last=3)
    stream.restart()
    with pytest.raises(Trimmed, match="deleted and recreated"):
        stream.plan()
    stream.reader.stop()


# ------------------------------------------------------------------ pub-sub, and peers that die


def test_new_lanes_of_a_pub_sub_queue_are_read(client: BlockingClient, cluster: LocalCluster) -> None:
    client.create_queue("events", strategy="pub-sub")
    queue = client.queue("events")
    written = [b"%d" % number for number in range(50)]
    queue.enqueue_many(written)
    stream = Stream(client, subscribe="events", startingOffsets="earliest", maxOffsetsPerTrigger="20")
    stream.drain()
    before = {lane.lane for lane in queue.survey().lanes}
    for number in cluster.founders:
        cluster.kill(number)
        cluster.restart(number)
    wait_until(lambda: {lane.lane for lane in queue.survey().lanes} - before, what="a lane of a new run")
    more = [b"more-%d" % number for number in range(50)]
    for value in more:
        queue.enqueue(value)
    stream.restart()
    wait_until(lambda: stream.drain() is not None and len(stream.rows) >= 100, what="all rows")
    assert sorted(row[3] for row in stream.rows) == sorted(written + more)
    assert len({row[1] for row in stream.rows}) > 1
    assert sorted(row[3] for row in read_batch(client, subscribe="events")) == sorted(written + more)
    stream.reader.stop()


def test_a_read_continues_when_the_coordinator_is_killed(client: BlockingClient, cluster: LocalCluster) -> None:
    client.create_queue("killed", lanes=2)
    rows = fill(client, "killed", lane=0, first=1, last=50)
    stream = Stream(client, subscribe="killed", startingOffsets="earliest")
    stream.drain()
    coordinator = client.queue("killed").info().lanes[0].coordinator
    assert coordinator is not None
    rows += fill(client, "killed", lane=1, first=1, last=50)
    assert stream.plan()
    cluster.kill(coordinator)
    stream.run()
    rows += fill(client, "killed", lane=0, first=51, last=60)
    stream.drain()
    assert sorted(stream.rows) == sorted(rows)
    assert read_batch(client, subscribe="killed") == sorted(rows)
    cluster.restart(coordinator)
    stream.reader.stop()


# ------------------------------------------------------------------ archives


def archive(folder: Path, batches: list[pa.RecordBatch], *, version: int) -> str:
    url = f"parquet:{folder}"
    store = ParquetStore(parse(url))
    schema = pa.schema([pa.field(name, TYPES[name]) for name in COLUMNS])
    store.prepare(schema, partition_by=["topic", "partition"])
    store.commit(store.stage(batches, schema, app_id="archive", version=version), app_id="archive", version=version)
    return url


def test_trimmed_messages_are_read_from_the_archive(client: BlockingClient, tmp_path: Path) -> None:
    client.create_queue("old", lanes=2)
    rows = fill(client, "old", lane=0, first=1, last=30) + fill(client, "old", lane=1, first=1, last=20)
    url = archive(tmp_path / "table", batches_of(client, subscribe="old"), version=0)
    client.queue("old").trim(0, 25)
    client.queue("old").trim(1, 20)
    wait_until(lambda: [lane.trimmed_to for lane in client.queue("old").survey().lanes] == [25, 20], what="trims")
    rows += fill(client, "old", lane=1, first=21, last=25)
    assert read_batch(client, subscribe="old", archive=url) == sorted(rows)
    made = source(client, subscribe="old", archive=url).reader(source(client).schema())
    assert [type(part) for part in made.partitions()] == [ArchivePart, ArchivePart, LanePart, LanePart]
    stream = Stream(client, subscribe="old", startingOffsets="earliest", archive=url, maxOffsetsPerTrigger="11")
    batches = stream.drain()
    assert [len(batch) for batch in batches] == [11, 11, 11, 11, 11]
    assert sorted(stream.rows) == sorted(rows)
    stream.reader.stop()


def test_a_gap_between_archive_and_queue_is_a_loss(client: BlockingClient, tmp_path: Path) -> None:
    client.create_queue("hole")
    rows = fill(client, "hole", lane=0, first=1, last=30)
    ending = '{"hole":{"0":11}}'
    url = archive(tmp_path / "table", batches_of(client, subscribe="hole", endingOffsets=ending), version=0)
    client.queue("hole").trim(0, 15)
    wait_until(lambda: client.queue("hole").survey().lanes[0].trimmed_to == 15, what="a trim")
    with pytest.raises(Trimmed, match="versions 11 to 15"):
        read_batch(client, subscribe="hole", archive=url)
    found = read_batch(client, subscribe="hole", archive=url, failOnDataLoss="false")
    assert found == rows[:10] + rows[15:]
