"""`spark.read.format("avow")` in a real Spark: columns, projections, SQL, errors as a user sees them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from avow.client.blocking import BlockingClient, connect_blocking
from avow.spark import register
from avow.testing.cluster import LocalCluster


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with LocalCluster(3) as cluster:
        yield cluster.addresses


@pytest.fixture(scope="module")
def client(servers: str) -> Iterator[BlockingClient]:
    with connect_blocking(servers) as made:
        made.create_queue("orders", lanes=2)
        for lane in (0, 1):
            values = [b"%d-%d" % (lane, number) for number in range(1, 1_001)]
            keys = [b"k%d" % number if number % 2 else None for number in range(1, 1_001)]
            made.queue("orders").enqueue_many(values, keys=keys, lane=lane, times=[1_500 + n for n in range(1_000)])
        yield made


def load(spark: SparkSession, servers: str, *, schema: str | None = None, **options: str) -> DataFrame:
    reader = spark.read.format("avow").option("servers", servers)
    for name, value in options.items():
        reader = reader.option(name, value)
    return (reader if schema is None else reader.schema(schema)).load()


def test_rows_have_the_columns_of_kafkas_source(spark: SparkSession, client: BlockingClient, servers: str) -> None:
    found = load(spark, servers, subscribe="orders")
    assert found.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    assert found.rdd.getNumPartitions() == 2
    rows = found.orderBy("partition", "offset").collect()
    assert [(row.partition, row.offset, bytes(row.value)) for row in rows] == [
        (lane, version, b"%d-%d" % (lane, version)) for lane in (0, 1) for version in range(1, 1_001)
    ]
    assert [row.key and bytes(row.key) for row in rows[:2]] == [b"k1", None]
    assert {(row.topic, row.timestampType) for row in rows} == {("orders", 0)}
    first = found.where("offset = 1").selectExpr("unix_millis(timestamp) AS ms").first()
    assert first is not None
    assert first.ms == 1_500
    assert rows[0].timestamp.astimezone(UTC) == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)


def test_a_schema_chooses_columns(spark: SparkSession, client: BlockingClient, servers: str) -> None:
    values = load(spark, servers, schema="value binary", subscribe="orders", minPartitions="4")
    assert values.dtypes == [("value", "binary")]
    assert values.rdd.getNumPartitions() == 4
    assert values.distinct().count() == 2_000
    turned = load(spark, servers, schema="offset long, partition int", subscribe="orders")
    assert turned.groupBy("partition").count().orderBy("partition").collect() == [(0, 1_000), (1, 1_000)]


def test_headers_of_a_pub_sub_queue(spark: SparkSession, client: BlockingClient, servers: str) -> None:
    client.create_queue("events", strategy="pub-sub")
    client.queue("events").enqueue(b"a", headers={"trace": b"1", "span": b"2"})
    client.queue("events").enqueue(b"b")
    found = load(spark, servers, subscribe="events", includeHeaders="true").orderBy("value")
    assert found.dtypes[-1] == ("headers", "array<struct<key:string,value:binary>>")
    first, second = found.select("headers").collect()
    assert [(pair.key, bytes(pair.value)) for pair in first.headers] == [("trace", b"1"), ("span", b"2")]
    assert second.headers is None


def test_sql_reads_a_queue_through_a_temporary_view(spark: SparkSession, client: BlockingClient, servers: str) -> None:
    start = '{"orders":{"1":901}}'
    options = f"OPTIONS (servers '{servers}', subscribe 'orders', startingOffsets '{start}')"
    spark.sql(f"CREATE TEMPORARY VIEW late USING avow {options}")
    assert spark.sql("SELECT count(*) FROM late WHERE partition = 1").collect() == [(100,)]
    spark.sql(f"CREATE TEMPORARY VIEW texts (value binary) USING avow {options}")
    assert spark.sql("SELECT max(CAST(value AS STRING)) FROM texts").collect() == [("1-999",)]


def test_sql_reads_a_table_whose_query_brings_the_options(
    spark: SparkSession, client: BlockingClient, servers: str
) -> None:
    """Spark does not hand the options of CREATE TABLE to a Python source; those of a query it does."""
    spark.sql(f"CREATE TABLE orders_table USING avow OPTIONS (servers '{servers}', subscribe 'orders')")
    found = spark.sql(f"SELECT max(offset) FROM orders_table WITH (servers = '{servers}', subscribe = 'orders')")
    assert found.collect() == [(1_000,)]


def test_registration_by_hand_is_possible(spark: SparkSession, client: BlockingClient, servers: str) -> None:
    register(spark)
    assert load(spark, servers, subscribe="orders").count() == 2_000


def test_an_empty_range_gives_an_empty_frame(spark: SparkSession, client: BlockingClient, servers: str) -> None:
    client.create_queue("empty")
    assert load(spark, servers, subscribe="empty").collect() == []


@pytest.mark.parametrize(
    ("options", "schema", "expected"),
    [
        ({"subscribe": "nowhere"}, None, "has no queue 'nowhere'"),
        ({"subscribe": "orders", "kafka.group.id": "x"}, None, "no option kafka.group.id"),
        ({"subscribe": "orders", "startingOffsets": "latest"}, None, "startingOffsets"),
        ({"subscribe": "orders"}, "value string", "binary, not string"),
        ({"subscribe": "orders"}, "price int", "no column 'price'"),
    ],
)
def test_errors_name_what_is_wrong(
    spark: SparkSession,
    client: BlockingClient,
    servers: str,
    options: dict[str, str],
    schema: str | None,
    expected: str,
) -> None:
    with pytest.raises((AnalysisException, PySparkException), match=expected):
        load(spark, servers, schema=schema, **options).collect()
