"""Small files are merged; rows, their order, and the versions of batches stay."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, TableFeatures
from tests.unit.spark.table_rows import SCHEMA, append, archive, rows

from avow.errors import InvalidRequest, Refused
from avow.spark.source.archive import ArchivePart, open_archive, read_archive
from avow.spark.source.planning import LaneRange
from avow.spark.tables import open_table
from avow.spark.tables.compaction import SmallFile, runs
from avow.spark.tables.delta import COMPACT_KEY, DeltaStore
from avow.spark.tables.tables import open_store
from avow.spark.tables.version_ranges import LANES, archived_ends


def filled(folder: Path, batches: int, *, lanes: tuple[int, ...] = (0, 1)) -> DeltaStore:
    store = archive("delta", folder)
    assert isinstance(store, DeltaStore)
    for number in range(batches):
        append(store, *(rows(10 * number + 1, 10 * number + 10, lane=lane) for lane in lanes), version=number)
    return store


def seen(folder: Path) -> list[dict[str, Any]]:
    """The rows as deltalake reads them."""
    return sorted(pa.table(DeltaTable(folder).scan().read_all()).to_pylist(), key=lambda row: int(row["offset"]))


def small(place: int, size_bytes: int = 10, *, lane: str = "0") -> SmallFile:
    return SmallFile(("orders", lane), (place, f"{place}"), f"{place}", size_bytes)


def test_adjacent_files_of_a_partition_are_merged_up_to_a_size() -> None:
    files = [small(n) for n in (3, 1, 2)] + [small(4, 500)] + [small(n) for n in (5, 6)] + [small(9, lane="1")]
    found = [[one.place[0] for one in run] for run in runs(files, large_bytes=100, few=2)]
    assert found == [[1, 2, 3], [5, 6]]
    assert list(runs(files, large_bytes=100, few=4)) == []


def test_a_compacted_archive_is_read_in_order_and_knows_its_batches(tmp_path: Path) -> None:
    store = filled(tmp_path, 20)
    assert len(store.files()) == 40
    assert open_table(f"delta:{tmp_path}").compact() == 38
    assert len(store.files()) == 2
    assert store.count() == 400
    assert archived_ends(store.ranges()) == {("orders", 0): 200, ("orders", 1): 200}
    assert store.committed("query") == 19
    assert not append(store, rows(191, 200), version=19)
    assert append(store, rows(201, 210), version=20)
    found = open_archive(f"delta:{tmp_path}")
    assert found is not None
    parts, missing = found.parts(LaneRange("orders", 0, 1, 211))
    assert not missing
    read: list[int] = []
    for part in parts:
        assert isinstance(part, ArchivePart)
        read += [version for batch in read_archive(part, SCHEMA) for version in batch["offset"].to_pylist()]
    assert read == list(range(1, 211))


def test_other_delta_readers_see_the_same_rows_despite_escaped_folder_names(tmp_path: Path) -> None:
    store = archive("delta", tmp_path)
    assert isinstance(store, DeltaStore)
    for number in range(9):
        append(store, rows(number + 1, number + 1, queue="a/b=c %ü", lane=2), version=number)
    before = seen(tmp_path)
    assert store.compact() == 8
    assert seen(tmp_path) == before
    assert len(DeltaTable(tmp_path).file_uris()) == 1
    assert DeltaTable(tmp_path).history(1)[0]["operation"] == "OPTIMIZE"


def test_rows_without_versions_keep_their_order_of_arrival(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64()), ("price", pa.decimal128(9, 2))])
    store = open_store(f"delta:{tmp_path}")
    store.prepare(schema, partition_by=())
    for number in range(8):
        batch = pa.record_batch({"n": [number], "price": pa.array([Decimal(number)], schema.field("price").type)})
        store.commit(store.stage([batch], schema, app_id="q", version=number), app_id="q", version=number)
    assert isinstance(store, DeltaStore)
    assert store.compact() == 7
    [path] = store.files()
    assert pq.ParquetFile(path).read()["n"].to_pylist() == list(range(8))
    assert pa.table(DeltaTable(tmp_path).get_add_actions(flatten=True)).to_pylist()[0]["max.price"] == Decimal(7)


def test_a_reader_that_started_earlier_still_finds_its_files(tmp_path: Path) -> None:
    store = filled(tmp_path, 10)
    before = store.files()
    assert store.compact() == 18
    assert store.clean(older_than_s=3600) == 0
    assert all(Path(path).exists() for path in before)


def test_writers_that_commit_during_a_compaction_lose_nothing(tmp_path: Path) -> None:
    store, over = filled(tmp_path, 12, lanes=(0,)), Event()

    def compacting() -> int:
        gone = 0
        while not over.is_set():
            gone += store.compact()
        return gone

    with ThreadPoolExecutor(3) as pool:
        both = [pool.submit(compacting), pool.submit(compacting)]
        try:
            for number in range(12, 50):
                append(store, rows(10 * number + 1, 10 * number + 10), version=number)
        finally:
            over.set()
        assert sum(each.result() for each in both) > 0
    assert store.count() == 500
    assert archived_ends(store.ranges()) == {("orders", 0): 500}
    assert [row["offset"] for row in seen(tmp_path)] == list(range(1, 501))


def test_our_tables_are_compacted_automatically_and_foreign_ones_on_request(tmp_path: Path) -> None:
    ours = open_store(f"delta:{tmp_path}/ours", {"compact": "9"})
    ours.prepare(SCHEMA, partition_by=LANES)
    DeltaTable.create(
        str(tmp_path / "theirs"), schema=DeltaTable(f"{tmp_path}/ours").schema(), partition_by=list(LANES)
    )
    theirs, asked = (open_store(f"delta:{tmp_path}/theirs", options) for options in ({}, {"compact": "9"}))
    assert DeltaTable(f"{tmp_path}/ours").metadata().configuration[COMPACT_KEY] == "9"
    ours = open_store(f"delta:{tmp_path}/ours")
    for store in (ours, theirs):
        for number in range(9):
            append(store, rows(number + 1, number + 1), version=number)
    assert isinstance(ours, DeltaStore)
    assert isinstance(theirs, DeltaStore)
    assert (len(ours.files()), len(theirs.files())) == (1, 9)
    append(asked, rows(10, 10), version=17)
    assert len(theirs.files()) == 1
    assert (ours.count(), theirs.count()) == (9, 10)


def test_a_table_with_newer_features_is_not_compacted_and_its_batch_is_committed(tmp_path: Path) -> None:
    store = open_store(f"delta:{tmp_path}", {"compact": "1"})
    store.prepare(SCHEMA, partition_by=LANES)
    DeltaTable(tmp_path).alter.add_feature(TableFeatures.ChangeDataFeed, allow_protocol_versions_increase=True)
    assert isinstance(store, DeltaStore)
    with pytest.raises(Refused, match="nothing was compacted"):
        store.compact()
    assert append(store, rows(1, 5), version=0)
    assert store.count() == 5


def test_a_table_that_cannot_be_compacted_is_reported() -> None:
    with pytest.raises(InvalidRequest, match="cannot be compacted"):
        open_table("parquet:/nowhere").compact()
    with pytest.raises(InvalidRequest, match="number of commits"):
        open_table("delta:/nowhere", options={"compact": "often"})
