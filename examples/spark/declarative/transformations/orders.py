"""A queue as a streaming table, and one as a sink. The pipeline keeps a checkpoint of each: every row is there once."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
SERVERS = spark.conf.get("spark.avow.servers")


@dp.table
def orders() -> DataFrame:
    """All messages of the queue `orders`, with where they stood in it."""
    source = spark.readStream.format("avow").option("servers", SERVERS).option("subscribe", "orders")
    rows = source.option("startingOffsets", "earliest").load()
    return rows.selectExpr("CAST(value AS STRING) AS line", "partition AS lane", "offset AS version")


dp.create_sink("shouted", "avow", {"servers": SERVERS, "topic": "shouted"})


@dp.append_flow(target="shouted")
def shout() -> DataFrame:
    """What the table gets, to another queue."""
    return spark.readStream.table("orders").selectExpr("upper(line) AS value", "line AS key")
