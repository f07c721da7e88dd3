"""Real streams and batches of Spark into each kind of table: replayed, failed half-way, read back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.unit.spark.table_rows import SCHEMA, rows

from avow.errors import InvalidRequest
from avow.spark.tables import Table, open_table
from avow.spark.tables.schemas import to_spark
from avow.spark.tables.version_ranges import LANES

STREAM_S = 300


@pytest.fixture(params=["delta", "parquet", "postgresql"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    if request.param == "postgresql":
        dsn = request.getfixturevalue("postgres_server").dsn
        return open_table(f"{dsn}?table=t{tmp_path.name.replace('-', '_').replace('[', '_').replace(']', '')}")
    return open_table(f"{request.param}:{tmp_path}/table")


def lanes_of(table: Table) -> tuple[str, ...] | None:
    return None if table.address.table else LANES


class Input:
    """A folder that a stream reads, one batch for each file."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder = spark, folder / "input"
        self._folder.mkdir()
        self._number = 0

    def add(self, *batches: pa.RecordBatch) -> None:
        pq.write_table(pa.Table.from_batches(batches), self._folder / f"{self._number:05d}.parquet")
        self._number += 1

    def stream(self) -> DataFrame:
        read = self._spark.readStream.schema(to_spark(SCHEMA)).option("maxFilesPerTrigger", "1")
        return read.parquet(str(self._folder))


def run(table: Table, df: DataFrame, checkpoint: Path) -> StreamingQuery:
    query = table.write_stream(
        df, checkpoint=str(checkpoint), trigger={"availableNow": True}, partition_by=lanes_of(table)
    )
    assert query.awaitTermination(STREAM_S), "the stream did not end"
    return query


def forget_last_commit(checkpoint: Path) -> int:
    """As if the driver had been killed after the table's commit: Spark runs that batch again."""
    last = max((path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name))
    last.unlink()
    (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    return int(last.name)


def offsets(df: DataFrame) -> list[int]:
    return sorted(row["offset"] for row in df.select("offset").collect())


def test_a_stream_is_appended_once_though_its_last_batch_is_replayed(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    source, checkpoint = Input(spark, tmp_path), tmp_path / "checkpoint"
    for first in (1, 11, 21):
        source.add(rows(first, first + 9), rows(first, first + 4, lane=1))
    query = run(table, source.stream(), checkpoint)
    assert (table.count(), table.committed(str(query.id))) == (45, 2)
    assert forget_last_commit(checkpoint) == 2
    run(table, source.stream(), checkpoint)
    assert (table.count(), table.committed(str(query.id))) == (45, 2)
    assert forget_last_commit(checkpoint) == 2
    source.add(rows(31, 40))
    run(table, source.stream(), checkpoint)
    found = table.rows(spark)
    assert found.schema.names == SCHEMA.names
    assert offsets(found.where("partition = 0")) == list(range(1, 41))
    assert offsets(found.where("partition = 1")) == [*range(1, 6), *range(11, 16), *range(21, 26)]
    assert table.archived_ends() == {("orders", 0): 40, ("orders", 1): 5}
    (row,) = found.where("partition = 0 and offset = 7").collect()
    assert (row["topic"], bytes(row["value"]), row["timestamp"].timestamp()) == ("orders", b"value 7", 7.0)


def failing_once(marker: str) -> Any:
    def through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        try:
            Path(marker).touch(exist_ok=False)
        except FileExistsError:
            return
        raise RuntimeError("the first attempt fails after its last row")

    return through


def test_attempts_that_fail_after_their_rows_leave_no_row(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    source = Input(spark, tmp_path)
    source.add(rows(1, 10))
    stream = source.stream().mapInArrow(failing_once(str(tmp_path / "failed")), to_spark(SCHEMA))
    run(table, stream, tmp_path / "checkpoint")
    assert (tmp_path / "failed").exists()
    assert offsets(table.rows(spark)) == list(range(1, 11))


def test_a_batch_is_appended_once_under_its_name(spark: SparkSession, table: Table) -> None:
    df = spark.range(100).selectExpr("id", "cast(id % 3 as string) as third", "id / 2 as half")
    assert table.write_batch(df, app_id="load", version=1)
    assert not table.write_batch(df, app_id="load", version=1)
    assert table.write_batch(df.repartition(3), app_id="load", version=2)
    assert table.count() == table.rows(spark).count() == 200
    assert table.rows(spark).where("third = '1' and half > 40").count() == 2 * 6
    with pytest.raises(InvalidRequest, match="half"):
        table.write_batch(df.selectExpr("id", "third", "'x' as half"), app_id="load", version=3)
    assert table.committed("load") == 2


def test_a_plain_reader_of_parquet_sees_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    table, source = open_table(f"parquet:{tmp_path}/table"), Input(spark, tmp_path)
    source.add(rows(1, 10, queue="a/b=c %ü"), rows(1, 3, lane=1))
    run(table, source.stream(), tmp_path / "checkpoint")
    plain = spark.read.parquet(f"{tmp_path}/table")
    wanted = sorted(table.rows(spark).select("topic", "partition", "offset").collect())
    assert sorted(plain.select("topic", "partition", "offset").collect()) == wanted
    assert {row["topic"] for row in wanted} == {"a/b=c %ü", "orders"}


def test_partition_values_with_path_characters_are_read_back(spark: SparkSession, tmp_path: Path) -> None:
    table, source = open_table(f"delta:{tmp_path}/table"), Input(spark, tmp_path)
    source.add(rows(1, 2, queue="a/b=c %ü"), rows(1, 3, lane=None))
    run(table, source.stream(), tmp_path / "checkpoint")
    found = {
        (row["topic"], row["partition"]): row["count"] for row in table.rows(spark).groupBy(*LANES).count().collect()
    }
    assert found == {("a/b=c %ü", 0): 2, ("orders", None): 3}


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_a_table_without_rows_has_its_columns(spark: SparkSession, kind: str, tmp_path: Path) -> None:
    table = open_table(f"{kind}:{tmp_path}/table")
    table.write_batch(spark.range(0), app_id="load", version=1)
    assert table.rows(spark).schema.names == ["id"]
    assert table.rows(spark).count() == 0
