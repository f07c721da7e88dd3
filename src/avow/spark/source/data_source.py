"""`format("avow")` in Spark: queues as a source and as a sink of rows.

    spark.read.format("avow").option("servers", "http://127.0.0.1:7401").option("subscribe", "orders").load()
    spark.readStream.format("avow")...                     columns and options are those of Spark's Kafka source

The columns are described in `rows`, the options and offsets in `options`: an offset is a version, versions begin at 1,
and -2 is the first version that still exists. `.schema("value binary")` selects columns, which is the fastest way to
read.

Spark creates this class again in every process, from the options; it opens nothing. Options are checked when a reader
or a writer is created, since only then it is known for which of them they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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

from avow.spark.sink.writers import BatchWriter, StreamWriter, batch_writer, stream_writer
from avow.spark.source.options import batch_options, include_headers, stream_options
from avow.spark.source.partition_reader import BatchReader
from avow.spark.source.rows import check_schema
from avow.spark.source.stream_reader import StreamReader

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = "avow"


def kafka_schema(*, headers: bool = False) -> StructType:
    """The columns of Spark's Kafka source. All but key and headers are declared not nullable, which saves Spark a null
    check per column and row."""
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
    """Spark's translation of a schema, against which it checks every record batch. Raises InvalidRequest for columns
    that the source does not have."""
    from pyspark.sql.pandas.types import to_arrow_schema

    found = to_arrow_schema(schema, timezone="UTC")
    check_schema(found)
    return found
