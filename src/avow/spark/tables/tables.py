"""One interface for every kind of table, selected by the URL.

    delta:PATH, parquet:PATH, postgresql://user@host:port/db?table=schema.name

A stream or a batch is appended exactly once: a write under a name and version that the table already has is skipped
(see `store`). A stream's name is its query's id, which the checkpoint stores: without the checkpoint it is another
stream, which writes everything it reads. The writer chooses the name of a batch.

The first writer creates the table with its columns; later writers must have the same columns.

Spark opens a store again for each commit, so only the libraries of its kind are imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Union, cast

import msgspec

from avow.errors import InvalidRequest
from avow.spark.tables import schemas, version_ranges
from avow.spark.tables.address import Address, Kind, parse
from avow.spark.tables.store import FORMAT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from avow.spark.tables.delta import DeltaStore
    from avow.spark.tables.parquet import ParquetStore
    from avow.spark.tables.postgres import PostgresStore


FolderStore: TypeAlias = Union["DeltaStore", "ParquetStore"]
AnyStore: TypeAlias = Union["DeltaStore", "ParquetStore", "PostgresStore"]


def open_store(url: str, options: Mapping[str, str] | None = None) -> AnyStore:
    """Opens nothing yet: a missing table or server is reported at the first use."""
    return store_of(parse(url, options))


def store_of(address: Address) -> AnyStore:
    if address.kind is Kind.DELTA:
        from avow.spark.tables.delta import DeltaStore

        return DeltaStore(address)
    if address.kind is Kind.PARQUET:
        from avow.spark.tables.parquet import ParquetStore

        return ParquetStore(address)
    from avow.spark.tables.postgres import PostgresStore

    return PostgresStore(address)


DAY_S: Final = 86_400.0


def open_table(url: str, *, options: Mapping[str, str] | None = None) -> Table:
    """Options of Delta and Parquet: `compression` of new files (zstd, snappy, none). Options of Delta: `compact`, the
    number of commits after which small files are merged (see `Table.compact`); 0 is never. Nothing is opened or created
    yet."""
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

        Partition an archive in a folder by ("topic", "partition"); see `archived_ends`.
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
        """Appends `df`. Returns False and writes nothing if `app_id` already wrote `version` or a later one."""
        target = self._prepare(df, partition_by)
        last = self._store.committed(app_id)
        if last is not None and last >= version:
            return False
        named = {"appId": app_id, "version": str(version)}
        df.write.format(FORMAT).mode("append").options(**target, **named).save()
        return True

    def rows(self, spark: SparkSession) -> DataFrame:
        """The rows that are committed now. Call it again to see later commits."""
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
        """The last version written under `app_id`; None if there is none. That of a stream is its query's id."""
        return self._store.committed(app_id)

    def count(self) -> int:
        return self._store.count()

    def archived_ends(self) -> dict[tuple[str, int], int]:
        """For an archive, by (queue, lane): the version up to which no row is missing, according to the metadata."""
        return version_ranges.archived_ends(self._store.ranges())

    def clean(self, *, older_than_s: float = DAY_S) -> int:
        """Removes leftovers of failed attempts. `older_than_s` must be longer than the write of any batch takes."""
        return self._store.clean(older_than_s=older_than_s)

    def compact(self) -> int:
        """Merges small files of a Delta table; returns by how many files it has fewer. Readers and writers can continue
        meanwhile. A table created by Avow is compacted after every 200th commit, any other one only with the option
        `compact`."""
        if self.address.kind is not Kind.DELTA:
            raise InvalidRequest(f"{self.address.kind} tables cannot be compacted; nothing was changed")
        return cast("DeltaStore", self._store).compact()

    def _prepare(self, df: DataFrame, partition_by: Sequence[str] | None) -> dict[str, str]:
        """Creates the table if it does not exist, and returns Spark's options for writing to it."""
        columns = self._store.prepare(schemas.from_spark(df.schema), partition_by=partition_by)
        _register(df.sparkSession)
        return {**self._sparks_options(), "partitionedBy": msgspec.json.encode(columns).decode()}

    def _sparks_options(self) -> dict[str, str]:
        """Options for workers, with an absolute path, since their working folders differ."""
        url = self.url if self.address.table else f"{self.address.kind}:{self.address.place}"
        return {"url": url, **self._options}


def _register(spark: SparkSession) -> None:
    from avow.spark.tables.table_source import TableSource

    spark.dataSource.register(TableSource)
