"""`format("avow")` in Spark: queues as a source of rows, and as a sink.

    spark.read.format("avow").option("servers", "http://127.0.0.1:7401").option("subscribe", "orders").load()
    spark.readStream.format("avow")...                     columns and options are those of Spark's Kafka source

The columns are in `rows`, the options in `options`. A schema of one's own chooses among the columns: `.schema("value
binary")` makes no other, and is the fastest way to read. Where a read starts and ends, and what an offset is, is told
in `options`: an offset is a version, versions begin at 1, and -2 is the first version that still exists.

This class is made again in every process that Spark starts, from the options alone; it opens nothing. Options are
checked when a reader or a writer is made, since only then is it known which of them are meant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from avow.spark.options import batch_options, include_headers, stream_options
from avow.spark.reading import BatchReader
from avow.spark.rows import check_schema
from avow.spark.sink import BatchWriter, StreamWriter, batch_writer, stream_writer
from avow.spark.streaming import StreamReader

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "avow"


def kafka_schema(*, headers: bool = False) -> StructType:
    """The columns of Spark's Kafka source. All but key and headers are always there, and said to be: of what cannot be
    null it is not asked, column by column and row by row, whether it is."""
    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType(), nullable=False),
        StructField("topic", StringType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
        StructField("offset", LongType(), nullable=False),
        StructField("timestamp", TimestampType(), nullable=False),
        StructField("timestampType", IntegerType(), nullable=False),
    ]
    if headers:
        pair = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
        fields.append(StructField("headers", ArrayType(pair)))
    return StructType(fields)


class AvowSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return kafka_schema(headers=include_headers(self.options))

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(batch_options(self.options), arrow_schema(schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(stream_options(self.options), arrow_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001
        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001
        return stream_writer(self.options, schema, overwrite)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Spark's own translation, against which it holds every record batch. Raises InvalidRequest for other columns."""
    from pyspark.sql.pandas.types import to_arrow_schema

    found = to_arrow_schema(schema, timezone="UTC")
    check_schema(found)
    return found
