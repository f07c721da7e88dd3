"""One small interface for every kind of table, chosen by URL.

    delta:PATH, parquet:PATH, postgresql://user@host:port/db?table=schema.name

A stream or a batch is appended exactly once: what is written under a name and a number that the table knows already
is not written again (see `store`). A stream is named by its query's id, which lives in the checkpoint: whoever
deletes the checkpoint starts another stream, and writes what that reads. A batch is named by its writer.

A table is made by its first writer with that one's columns; later writers must have the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from avow.errors import InvalidRequest
from avow.spark.tables import ranges, schemas
from avow.spark.tables.address import Address, Kind, parse
from avow.spark.tables.opening import AnyStore, FolderStore, store_of
from avow.spark.tables.store import FORMAT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from avow.spark.tables.delta import DeltaStore

DAY_S = 86_400.0


def open_table(url: str, *, options: Mapping[str, str] | None = None) -> Table:
    """Options of Delta and Parquet: `compression` of new files (zstd, snappy, none). Of Delta: `compact`, after how
    many commits small files are put together (see `Table.compact`); 0 is never. Nothing is opened or made yet."""
    return Table(url, parse(url, options), options=options)


class Table:
    def __init__(self, url: str, address: Address, *, options: Mapping[str, str] | None) -> None:
        self.url, self.address = url, address
        self._options = dict(options or {})
        self._store: AnyStore = store_of(address)

    def write_stream(
        self,
        df: DataFrame,
        *,
        checkpoint: str,
        query_name: str | None = None,
        trigger: Mapping[str, Any] | None = None,
        partition_by: Sequence[str] | None = None,
    ) -> StreamingQuery:
        """Starts a query that appends. `trigger` is Spark's: {"availableNow": True}, {"processingTime": "1 second"}.

        Archives are partitioned by ("topic", "partition") where the table is a folder; see `archived_ends`.
        """
        target = self._prepare(df, partition_by)
        writer = df.writeStream.format(FORMAT).outputMode("append").options(**target)
        writer = writer.option("checkpointLocation", checkpoint)
        if query_name is not None:
            writer = writer.queryName(query_name)
        if trigger is not None:
            writer = writer.trigger(**trigger)
        return writer.start()

    def write_batch(
        self, df: DataFrame, *, app_id: str, version: int, partition_by: Sequence[str] | None = None
    ) -> bool:
        """Appends all of `df`, or nothing if `app_id` has written `version` or a later one: then it answers False."""
        target = self._prepare(df, partition_by)
        last = self._store.committed(app_id)
        if last is not None and last >= version:
            return False
        named = {"appId": app_id, "version": str(version)}
        df.write.format(FORMAT).mode("append").options(**target, **named).save()
        return True

    def rows(self, spark: SparkSession) -> DataFrame:
        """What is committed now. Later commits are seen by calling it again."""
        if self.address.kind is Kind.POSTGRESQL:
            _register(spark)
            return spark.read.format(FORMAT).options(**self._sparks_options()).load()
        store = cast("FolderStore", self._store)
        schema, files = schemas.to_spark(store.schema()), store.files()
        if not files:
            return spark.createDataFrame([], schema)
        read = spark.read.schema(schema).option("basePath", self.address.place).parquet(*files)
        return read.select(*schema.fieldNames())

    def committed(self, app_id: str) -> int | None:
        """The last version written under that name; None if there is none. A stream's name is its query's id."""
        return self._store.committed(app_id)

    def count(self) -> int:
        return self._store.count()

    def archived_ends(self) -> dict[tuple[str, int], int]:
        """Of an archive, by (queue, lane): the version up to which nothing is missing. From notes, not from rows."""
        return ranges.archived_ends(self._store.ranges())

    def clean(self, *, older_than_s: float = DAY_S) -> int:
        """Removes leftovers of failed attempts. `older_than_s` must be longer than any batch takes to be written."""
        return self._store.clean(older_than_s=older_than_s)

    def compact(self) -> int:
        """Puts small files of a Delta table together; answers how many files fewer there are. Readers and writers go on
        meanwhile. A table made here does this by itself after every 200th commit, any other one if it is asked to by
        the option `compact`."""
        if self.address.kind is not Kind.DELTA:
            raise InvalidRequest(f"{self.address.kind} tables are not compacted; nothing was changed")
        return cast("DeltaStore", self._store).compact()

    def _prepare(self, df: DataFrame, partition_by: Sequence[str] | None) -> dict[str, str]:
        """Makes the table if need be, and answers Spark's options for writing to it."""
        columns = self._store.prepare(schemas.from_spark(df.schema), partition_by=partition_by)
        _register(df.sparkSession)
        return {**self._sparks_options(), "partitionedBy": msgspec.json.encode(columns).decode()}

    def _sparks_options(self) -> dict[str, str]:
        """Workers have other working folders, so a path goes to them whole."""
        url = self.url if self.address.table else f"{self.address.kind}:{self.address.place}"
        return {"url": url, **self._options}


def _register(spark: SparkSession) -> None:
    from avow.spark.tables.source import TableSource

    spark.dataSource.register(TableSource)
