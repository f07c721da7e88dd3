"""Rows of an archive, and helpers to write and read tables in folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from avow.spark.tables.store import Staged
from avow.spark.tables.tables import AnyStore, open_store
from avow.spark.tables.version_ranges import LANES

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)


def rows(first: int, last: int, *, queue: str | None = "orders", lane: int | None = 0) -> pa.RecordBatch:
    """Versions first to last, both included."""
    versions = list(range(first, last + 1))
    count = len(versions)
    columns: list[Any] = [
        pa.array([queue] * count, pa.string()),
        pa.array([lane] * count, pa.int32()),
        pa.array(versions, pa.int64()),
        pa.array([b"value %d" % version for version in versions], pa.binary()),
        pa.array([1_000_000 * version for version in versions], SCHEMA.field("timestamp").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def archive(kind: str, folder: Path) -> AnyStore:
    store = open_store(f"{kind}:{folder}")
    store.prepare(SCHEMA, partition_by=LANES)
    return store


def stage(store: AnyStore, *batches: pa.RecordBatch, version: int, app_id: str = "query") -> list[Staged]:
    """One task."""
    return store.stage(batches, batches[0].schema, app_id=app_id, version=version, partition_by=LANES)


def append(store: AnyStore, *batches: pa.RecordBatch, version: int, app_id: str = "query") -> bool:
    """One task per batch, then the commit, as in Spark."""
    staged = [each for batch in batches for each in stage(store, batch, version=version, app_id=app_id)]
    return store.commit(staged, app_id=app_id, version=version)


def versions(store: AnyStore) -> list[int]:
    """Reads the files themselves, so that duplicate rows would show."""
    import pyarrow.parquet as pq

    found: list[int] = []
    for path in store.files():  # type: ignore[union-attr]
        found += pq.ParquetFile(path).read(["offset"]).column("offset").to_pylist()
    return sorted(found)
