"""The source's readers, called the way Spark calls them, in this process and without a JVM."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable

from avow.client.blocking import BlockingClient
from avow.spark.source.data_source import AvowSource, arrow_schema, kafka_schema
from avow.spark.source.stream_reader import StreamReader

ALL = ReadAllAvailable()
Row = tuple[str, int, int, bytes]  # queue, lane, version, value


def source(client: BlockingClient, **options: str) -> AvowSource:
    given = {"servers": client.servers, **options}  # type: ignore[attr-defined]
    return AvowSource({name.lower(): value for name, value in given.items()})


def rows_of(batches: list[pa.RecordBatch]) -> list[Row]:
    found = [row for batch in batches for row in batch.to_pylist()]
    return sorted((row["topic"], row["partition"], row["offset"], row["value"]) for row in found)


def read_batch(client: BlockingClient, **options: str) -> list[Row]:
    return rows_of(batches_of(client, **options))


def batches_of(client: BlockingClient, **options: str) -> list[pa.RecordBatch]:
    made = source(client, **options)
    reader = made.reader(made.schema())
    return [batch for part in reader.partitions() for batch in reader.read(part)]


class Stream:
    """A stream and its checkpoint: `offsets` are the ends that were logged. A `restart` keeps nothing else."""

    def __init__(self, client: BlockingClient, **options: str) -> None:
        self.client, self.options = client, options
        self.offsets: list[str] = []
        self.rows: list[Row] = []
        self.reader = self._open()

    def _open(self) -> StreamReader:
        return source(self.client, **self.options).streamReader(kafka_schema())

    def restart(self) -> None:
        self.reader.stop()
        self.reader = self._open()

    def start(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.offsets[-1]) if self.offsets else self.reader.initialOffset()
        return found

    def plan(self, limit: Any = None) -> bool:
        """Logs the end of the next batch. False: nothing is new."""
        start = self.start()
        end = self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit())
        if self.offsets and json.dumps(end) == json.dumps(start):
            return False
        self.offsets.append(json.dumps(end))
        return True

    def run(self) -> list[Row]:
        """The rows of the batch that was planned last."""
        start = json.loads(self.offsets[-2]) if len(self.offsets) > 1 else self.reader.initialOffset()
        parts = self.reader.partitions(start, json.loads(self.offsets[-1]))
        found = rows_of([batch for part in parts for batch in self.reader.read(part)])
        self.rows += found
        return found

    def drain(self, limit: Any = None) -> list[list[Row]]:
        """Batches until nothing is new."""
        batches: list[Any] = []
        for _ in range(1_000):
            if not self.plan(limit):
                return batches
            batches.append(self.run())
        raise AssertionError("a stream without an end")


__all__ = ["ALL", "Row", "Stream", "arrow_schema", "batches_of", "read_batch", "rows_of", "source"]
