from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures
from tests.unit.spark.table_rows import append, archive, rows, stage, versions

from avow.errors import InvalidRequest, Refused, Unknown
from avow.spark.tables.delta import DeltaStore
from avow.spark.tables.tables import open_store
from avow.spark.tables.version_ranges import archived_ends


def delta(folder: Path) -> DeltaStore:
    store = archive("delta", folder)
    assert isinstance(store, DeltaStore)
    return store


def test_other_readers_of_delta_see_the_rows_and_their_partitions(tmp_path: Path) -> None:
    store = delta(tmp_path)
    append(store, rows(1, 3), rows(7, 7, queue="a/b=c %ü", lane=2), version=0)
    found = sorted(pa.table(DeltaTable(tmp_path).scan().read_all()).to_pylist(), key=lambda row: row["offset"])
    assert [(row["topic"], row["partition"], row["offset"]) for row in found] == [
        ("orders", 0, 1),
        ("orders", 0, 2),
        ("orders", 0, 3),
        ("a/b=c %ü", 2, 7),
    ]
    assert found[0]["value"] == b"value 1"
    assert archived_ends(store.ranges()) == {("orders", 0): 3, ("a/b=c %ü", 2): 7}


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    store = delta(tmp_path)

    def write(lane: int) -> int:
        done = [append(store, rows(5 * n + 1, 5 * n + 5, lane=lane), version=n, app_id=f"q{lane}") for n in range(6)]
        return sum(done)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(write, range(4))) == [6] * 4
    assert store.count() == 120
    assert archived_ends(store.ranges()) == {("orders", lane): 30 for lane in range(4)}


def test_one_of_two_drivers_of_a_query_commits(tmp_path: Path) -> None:
    store = delta(tmp_path)

    def drive(_: int) -> int:
        return sum(append(store, rows(5 * n + 1, 5 * n + 5), version=n) for n in range(8))

    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(drive, range(3)))
    assert sum(done) == 8
    assert versions(store) == list(range(1, 41))


def test_a_log_that_is_compacted_still_knows_versions_and_ends(tmp_path: Path) -> None:
    store = delta(tmp_path)
    for version in range(5):
        append(store, rows(10 * version + 1, 10 * version + 10), version=version)
    table = DeltaTable(tmp_path)
    table.optimize.compact()
    table.create_checkpoint()
    assert not append(store, rows(41, 50), version=4)
    assert len(store.files()) == 1
    assert archived_ends(store.ranges()) == {("orders", 0): 50}


def test_a_table_whose_files_are_not_its_rows_is_not_read_by_files(tmp_path: Path) -> None:
    store = delta(tmp_path)
    append(store, rows(1, 3), version=0)
    DeltaTable(tmp_path).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    with pytest.raises(InvalidRequest, match="eletion"):
        store.files()


def test_an_unreadable_log_accepts_no_batch(tmp_path: Path) -> None:
    store = delta(tmp_path)
    staged = stage(store, rows(1, 3), version=0)
    entry = tmp_path / "_delta_log" / f"{1:020d}.json"
    entry.write_bytes(b"not json")
    with pytest.raises(Refused, match="cannot be read"):
        store.commit(staged, app_id="query", version=0)
    entry.unlink()
    assert store.commit(staged, app_id="query", version=0)
    assert versions(store) == [1, 2, 3]


def test_a_batch_is_replayed_when_the_log_accepts_no_entry(tmp_path: Path) -> None:
    store = delta(tmp_path)
    staged = stage(store, rows(1, 3), version=0)
    taken = tmp_path / "_delta_log" / f"{1:020d}.json"
    taken.mkdir()
    with pytest.raises(Unknown, match="under the same name"):
        store.commit(staged, app_id="query", version=0)
    taken.rmdir()
    assert store.commit(staged, app_id="query", version=0)
    assert versions(store) == [1, 2, 3]


def kind_of(values: list[Any]) -> pa.DataType:
    return pa.timestamp("us", tz="UTC") if isinstance(values[0], datetime) else pa.array(values).type


def test_other_readers_find_rows_by_any_column(tmp_path: Path) -> None:
    """The stored minimum and maximum of a column decide which files a filter reads."""
    at = datetime(2026, 11, 15, 1, 2, 3, 123_456, tzinfo=UTC)
    columns: dict[str, list[Any]] = {
        "number": [1, 2, None],
        "text": ["a", "b" * 200, None],
        "at": [at, at, None],
        "ratio": [0.1, 2.5, None],
        "flag": [True, False, None],
        "day": [date(2026, 11, 15), date(2026, 11, 16), None],
        "price": [Decimal("0.10"), Decimal("99999999999999999.99"), None],
        "raw": [b"x", b"y", None],
    }
    table = pa.table(columns, schema=pa.schema([(name, kind_of(values)) for name, values in columns.items()]))
    store = open_store(f"delta:{tmp_path}")
    store.prepare(table.schema, partition_by=())
    staged = store.stage(table.to_batches(), table.schema, app_id="q", version=0, partition_by=())
    assert store.commit(staged, app_id="q", version=0)
    for name, values in columns.items():
        for value in values[:2]:
            found = DeltaTable(tmp_path).to_pyarrow_table(filters=[(name, "=", value)])
            assert value in found[name].to_pylist(), f"{name} = {value}"
