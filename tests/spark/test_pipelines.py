"""Pipelines in a real Spark, against a real peer: every row once, whatever is repeated."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from benchmarks.spark_archive import run as run_archive
from pyspark.sql import SparkSession

from avow.client.blocking import BlockingClient, connect_blocking
from avow.client.reader import Message
from avow.errors import InvalidRequest
from avow.spark.pipelines import (
    ArchiveSpec,
    Cluster,
    PipelineFailed,
    ReplaySpec,
    Sink,
    Source,
    TransformSpec,
    archive,
    read_spec,
    replay,
    transform,
)
from avow.spark.pipelines.pipeline import JobPipeline, Pipeline
from avow.spark.tables import open_table
from avow.testing.cluster import LocalCluster, wait_until

AWAIT_S = 300
STARTS_MAX = 5
NOT_CONNECTED = "Python worker failed to connect back"
HERE = str(Path(__file__).parent)
EXAMPLES = Path(__file__).parents[2] / "examples" / "pipelines"


@pytest.fixture(scope="module")
def peer() -> Iterator[LocalCluster]:
    with LocalCluster(1) as made:
        yield made


@pytest.fixture(scope="module")
def client(peer: LocalCluster) -> Iterator[BlockingClient]:
    with connect_blocking(peer.addresses) as made:
        yield made


@pytest.fixture
def cluster(peer: LocalCluster) -> Cluster:
    return Cluster(servers=peer.addresses)


def ended(start: Callable[[], Pipeline]) -> Pipeline:
    """Spark waits ten seconds for the Python process of a stream's source, however busy the machine is. A pipeline that
    failed so has read nothing, and is started again."""
    for _ in range(STARTS_MAX):
        pipeline = start()
        try:
            assert pipeline.wait(AWAIT_S), "it did not end"
        except PipelineFailed as failed:
            if NOT_CONNECTED not in str(failed):
                raise
        else:
            return pipeline
    raise AssertionError(f"{NOT_CONNECTED}, {STARTS_MAX} times")


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had been killed after the sink's commit: Spark runs that batch again."""
    commits = checkpoint / "query" / "commits"
    last = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)


def messages(client: BlockingClient, queue: str) -> list[Message]:
    return [message for batch in client.queue(queue).read(level="linearizable") for message in batch.messages()]


def values(client: BlockingClient, queue: str) -> list[bytes]:
    return sorted(bytes(message.value) for message in messages(client, queue))


# ------------------------------------------------------------------ archive


def fill(client: BlockingClient, queue: str, start: int, end: int) -> None:
    for lane in (0, 1):
        texts = [b"%d-%d" % (lane, number) for number in range(start, end)]
        client.queue(queue).enqueue_many(texts, lane=lane, headers=[{"n": b"1"}] * len(texts))


def test_100000_messages_are_archived_trimmed_and_read_back_once_and_in_order(
    spark: SparkSession, peer: LocalCluster, tmp_path: Path
) -> None:
    done = run_archive(spark, peer.addresses, tmp_path, messages=100_000, lanes=2, batch_rows=40_000)
    assert done.clean, done.totals


def test_an_archive_is_complete_though_batches_and_its_checkpoint_are_lost(
    spark: SparkSession, client: BlockingClient, cluster: Cluster, tmp_path: Path
) -> None:
    client.create_queue("sold", lanes=2)
    fill(client, "sold", 1, 101)
    checkpoint = tmp_path / "checkpoint"
    spec = ArchiveSpec(
        name="sold",
        checkpoint=str(checkpoint),
        cluster=cluster,
        source=Source(queues=("sold",), batch_rows=120),
        table=f"delta:{tmp_path}/sold",
        trim=True,
        keep=10,
    )
    first = ended(lambda: archive(spark, spec, once=True)).counts()
    assert (first.rows, first.trimmed, first.lag) == (200, 180, 0)
    assert first.batches == 2
    assert {lane.trimmed_to for lane in client.queue("sold").survey().lanes} == {90}
    forget_last_commit(checkpoint)  # its versions are only in the archive by now
    fill(client, "sold", 101, 151)
    ended(lambda: archive(spark, spec, once=True))
    shutil.rmtree(checkpoint)
    fill(client, "sold", 151, 161)
    ended(lambda: archive(spark, spec, once=True))
    assert open_table(spec.table).archived_ends() == {("sold", 0): 160, ("sold", 1): 160}
    assert open_table(spec.table).count() == 320
    fill(client, "sold", 161, 171)
    options = {"servers": cluster.servers, "subscribe": "sold", "archive": spec.table, "includeHeaders": "true"}
    rows = spark.read.format("avow").options(**options).load().orderBy("partition", "offset").collect()
    assert [(row.partition, row.offset, bytes(row.value)) for row in rows] == [
        (lane, version, b"%d-%d" % (lane, version)) for lane in (0, 1) for version in range(1, 171)
    ]
    assert {bytes(row.headers[0].value) for row in rows} == {b"1"}


def test_a_stream_archives_messages_until_it_is_stopped(
    spark: SparkSession, client: BlockingClient, cluster: Cluster, tmp_path: Path
) -> None:
    client.create_queue("events", lanes=2)
    source = Source(queues=("events",))
    spec = ArchiveSpec(
        name="events",
        checkpoint=str(tmp_path / "checkpoint"),
        cluster=cluster,
        source=source,
        table=f"parquet:{tmp_path}/events",
        every="0 seconds",
    )
    pipeline = archive(spark, spec)
    fill(client, "events", 1, 11)
    wait_until(lambda: pipeline.counts().rows == 20, timeout_s=AWAIT_S, what="the rows")
    pipeline.stop()
    assert pipeline.wait(0)
    assert open_table(spec.table).count() == 20


# ------------------------------------------------------------------ transform


def test_sql_sends_good_rows_and_dead_letters_once_though_a_batch_is_repeated(
    spark: SparkSession, client: BlockingClient, cluster: Cluster, tmp_path: Path
) -> None:
    for name in ("prices", "prices-good", "prices-dead"):
        client.create_queue(name, lanes=2)
    given = [b"1", b"2", b"x", b"4"]
    client.queue("prices").enqueue_many(given, keys=given, headers=[{"trace": value} for value in given])
    spec = TransformSpec(
        name="prices",
        checkpoint=str(tmp_path / "checkpoint"),
        cluster=cluster,
        source=Source(queues=("prices",)),
        sink=Sink(queue="prices-good"),
        sql="""SELECT key, headers, timestamp, string(try_cast(string(value) AS INT) * 10) AS value,
                      CASE WHEN try_cast(string(value) AS INT) IS NULL THEN 'no number' END AS _error,
                      value AS _value, concat_ws('/', topic, partition, offset) AS _source
               FROM source""",
        dead_letters="prices-dead",
    )
    ended(lambda: transform(spark, spec, once=True))
    forget_last_commit(tmp_path / "checkpoint")
    ended(lambda: transform(spark, spec, once=True))
    assert values(client, "prices-good") == [b"10", b"20", b"40"]
    (dead,) = messages(client, "prices-dead")
    assert (dead.key, dead.value) == (b"x", b"x")
    headers = dict(dead.headers)
    assert (headers["trace"], headers["error"]) == (b"x", b"no number")
    assert bytes(headers["source"]).startswith(b"prices/")


def test_a_function_of_messages_fills_a_table_and_its_failures_are_dead_letters(
    spark: SparkSession, client: BlockingClient, cluster: Cluster, tmp_path: Path
) -> None:
    client.create_queue("carts")
    client.create_queue("carts-dead")
    orders = [{"id": "a", "price": 3}, {"id": "b", "price": 0}, {"id": "c", "price": "many"}, {"id": "d", "price": 4}]
    client.queue("carts").enqueue_many([*(json.dumps(order).encode() for order in orders), b"{"])
    spec = TransformSpec(
        name="carts",
        checkpoint=str(tmp_path / "checkpoint"),
        folder=HERE,
        cluster=cluster,
        source=Source(queues=("carts",)),
        sink=Sink(table=f"delta:{tmp_path}/carts"),
        row="pipeline_functions:priced",
        columns="id string, price long, version long",
        dead_letters="carts-dead",
    )
    ended(lambda: transform(spark, spec, once=True))
    forget_last_commit(tmp_path / "checkpoint")
    ended(lambda: transform(spark, spec, once=True))
    rows = open_table(spec.sink.table).rows(spark).orderBy("id").collect()
    assert [tuple(row) for row in rows] == [("a", 3, 1), ("d", 4, 4)]
    assert values(client, "carts-dead") == [b"{", json.dumps(orders[2]).encode()]
    errors = sorted(bytes(dict(one.headers)["error"]).decode() for one in messages(client, "carts-dead"))
    assert errors[1].startswith("JSONDecodeError")
    into = TransformSpec(
        name="back",
        checkpoint=str(tmp_path / "back"),
        cluster=cluster,
        source=Source(table=spec.sink.table),
        sink=Sink(queue="carts-dead"),
        sql="SELECT id AS key, to_json(struct(id, price)) AS value FROM source",
    )
    for _ in range(2):
        ended(lambda: transform(spark, into))
    assert len(values(client, "carts-dead")) == 4


def test_without_dead_letters_a_failing_function_ends_the_stream_and_is_named(
    spark: SparkSession, client: BlockingClient, cluster: Cluster, tmp_path: Path
) -> None:
    client.create_queue("words")
    client.create_queue("words-twice")
    client.queue("words").enqueue_many([b"a", b"bad", b"c"])
    spec = TransformSpec(
        name="words",
        checkpoint=str(tmp_path / "checkpoint"),
        folder=HERE,
        cluster=cluster,
        source=Source(queues=("words",)),
        sink=Sink(queue="words-twice"),
        row="pipeline_functions:doubled",
    )
    with pytest.raises(PipelineFailed, match="ValueError: this one is bad"):
        ended(lambda: transform(spark, spec, once=True))
    assert values(client, "words-twice") == []
    for statement, expected in (
        ("SELECT nothing FROM source", "nothing"),
        ("SELECT key FROM source", "no column value"),
    ):
        wrong = TransformSpec(
            name="wrong", checkpoint="x", cluster=cluster, source=spec.source, sink=spec.sink, sql=statement
        )
        with pytest.raises(InvalidRequest, match=expected):
            transform(spark, wrong)


# ------------------------------------------------------------------ replay


def test_a_replay_runs_once_in_order_and_again_only_on_request(
    spark: SparkSession, client: BlockingClient, cluster: Cluster, tmp_path: Path
) -> None:
    client.create_queue("log", lanes=2)
    client.create_queue("log-again", lanes=2)
    for lane in (0, 1):
        texts = [b"%d-%03d" % (lane, number) for number in range(1, 201)]
        client.queue("log").enqueue_many(texts, lane=lane, times=[1_000 * number for number in range(1, 201)])
    spec = ReplaySpec(
        name="log",
        checkpoint=str(tmp_path / "checkpoint"),
        cluster=cluster,
        source=Source(queues=("log",), start=101, end={0: 150}),
        where="offset % 2 = 0",
        sink=Sink(queue="log-again"),
        keep_lanes=True,
    )
    wanted = {0: [b"0-%03d" % n for n in range(102, 151, 2)], 1: [b"1-%03d" % n for n in range(102, 201, 2)]}
    assert ended(lambda: replay(spark, spec)).counts().rows == 75
    client.queue("log").enqueue_many([b"later"] * 2, lane=1)
    repeated = ended(lambda: replay(spark, spec))
    assert isinstance(repeated, JobPipeline)
    assert repeated.was_done_before
    shutil.rmtree(tmp_path / "checkpoint")  # the queue itself remembers what it was given under this name
    ended(lambda: replay(spark, spec))
    for lane, texts in wanted.items():
        found = [bytes(one.value) for batch in client.queue("log-again").read(lane=lane) for one in batch.messages()]
        assert found == texts
    assert ended(lambda: replay(spark, spec, again=True)).counts().rows == 76
    assert len(values(client, "log-again")) == 151


def test_a_time_span_is_replayed_from_an_archive_alone(
    spark: SparkSession, client: BlockingClient, cluster: Cluster, tmp_path: Path
) -> None:
    client.create_queue("old")
    client.create_queue("old-again")
    client.queue("old").enqueue_many([b"%d" % n for n in range(1, 10)], times=[1_000 * n for n in range(1, 10)])
    kept = ArchiveSpec(
        name="old",
        checkpoint=str(tmp_path / "archive"),
        cluster=cluster,
        source=Source(queues=("old",)),
        table=f"parquet:{tmp_path}/old",
        trim=True,
    )
    ended(lambda: archive(spark, kept, once=True))
    spec = ReplaySpec(
        name="old-again",
        checkpoint=str(tmp_path / "replay"),
        cluster=cluster,
        source=Source(table=kept.table, start="@3000", end="@6000"),
        sink=Sink(queue="old-again"),
    )
    assert ended(lambda: replay(spark, spec)).counts().rows == 3
    assert [(one.value, one.time_ms) for one in messages(client, "old-again")] == [
        (b"3", 3_000),
        (b"4", 4_000),
        (b"5", 5_000),
    ]


# ------------------------------------------------------------------ examples


def test_the_examples_work_as_described(
    spark: SparkSession, client: BlockingClient, cluster: Cluster, tmp_path: Path
) -> None:
    for name in ("orders", "billing", "orders-dead", "orders-large"):
        client.create_queue(name, lanes=2)
    texts = [b'{"id": "%d", "amount": "%d.50"}' % (number, number) for number in range(1, 201)]
    client.queue("orders").enqueue_many([*texts, b"this is no order"], keys=[*texts, None])
    for file in EXAMPLES.glob("*.toml"):
        shutil.copy(file, tmp_path)
    specs = {
        name: read_spec(tmp_path / f"{name}.toml", {"AVOW_API": cluster.servers})
        for name in ("archive", "transform", "replay")
    }
    kept, made, again = specs["archive"], specs["transform"], specs["replay"]
    assert isinstance(kept, ArchiveSpec)
    assert isinstance(made, TransformSpec)
    assert isinstance(again, ReplaySpec)
    ended(lambda: archive(spark, kept, once=True))
    ended(lambda: transform(spark, made, once=True))
    assert ended(lambda: replay(spark, again)).counts().rows == 101
    assert len(values(client, "billing")) == 200
    assert b'{"order":"7","cents":750}' in values(client, "billing")
    errors = [bytes(dict(one.headers)["error"]) for one in messages(client, "orders-dead")]
    assert errors == [b"an order has an id"]
