from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.spark.table_rows import SCHEMA, rows

from avow.errors import InvalidRequest
from avow.spark.tables import data_files
from avow.spark.tables.data_files import write_files
from avow.spark.tables.store import Staged
from avow.spark.tables.version_ranges import LANES, Range


def written(batches: list[pa.RecordBatch], folder: Path, *, partition_by: tuple[str, ...] = LANES) -> list[Staged]:
    schema = batches[0].schema
    return write_files(batches, str(folder), schema, partition_by=partition_by, compression="zstd")


def test_each_lane_gets_a_file_that_knows_its_versions(tmp_path: Path) -> None:
    mixed = pa.Table.from_batches([rows(1, 5), rows(7, 9, lane=1), rows(6, 6)]).combine_chunks().to_batches()
    found = {each.values["partition"]: each for each in written(mixed, tmp_path)}
    assert found["0"].ranges == (Range("orders", 0, 1, 6, 6),)
    assert found["1"].ranges == (Range("orders", 1, 7, 9, 3),)
    assert found["1"].stats == {
        "minValues": {"offset": 7, "timestamp": "1970-01-01T00:00:07.000000Z"},
        "maxValues": {"offset": 9, "timestamp": "1970-01-01T00:00:09.000000Z"},
        "nullCount": {"offset": 0, "timestamp": 0},
    }
    assert found["0"].place.startswith("topic=orders/partition=0/part-")
    assert pq.read_schema(tmp_path / found["0"].place).names == ["offset", "value", "timestamp"]
    assert (tmp_path / found["0"].place).stat().st_size == found["0"].size_bytes


def test_names_with_path_characters_are_escaped(tmp_path: Path) -> None:
    (found,) = written([rows(1, 1, queue="a/b=c %ü")], tmp_path)
    assert found.place.startswith("topic=a%2Fb%3Dc%20%25ü/partition=0/")
    assert found.values["topic"] == "a/b=c %ü"


def test_null_has_its_own_folder_and_an_empty_name_is_refused(tmp_path: Path) -> None:
    (found,) = written([rows(1, 1, lane=None)], tmp_path)
    assert found.place.startswith("topic=orders/partition=__HIVE_DEFAULT_PARTITION__/")
    assert found.values["partition"] is None
    assert found.ranges == ()
    with pytest.raises(InvalidRequest, match="empty topic"):
        written([rows(1, 1, queue="")], tmp_path)


def test_rows_without_partitions_or_versions_are_files_too(tmp_path: Path) -> None:
    days = pa.record_batch({"day": [dt.date(2026, 1, 1), dt.date(2026, 1, 2)], "n": [1, 2]})
    assert [each.rows for each in written([days], tmp_path, partition_by=())] == [2]
    assert {each.values["day"] for each in written([days], tmp_path, partition_by=("day",))} == {
        "2026-01-01",
        "2026-01-02",
    }


def test_more_lanes_and_bytes_than_the_buffers_hold_are_all_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_files, "OPEN_FILES_MAX", 3)
    monkeypatch.setattr(data_files, "BUFFERED_BYTES_MAX", 500)
    batches = [rows(first, first + 9, lane=lane) for first in (1, 11, 21) for lane in range(8)]
    found = written(batches, tmp_path)
    assert sum(each.rows for each in found) == 240
    assert sum(pq.ParquetFile(tmp_path / each.place).metadata.num_rows for each in found) == 240


def test_an_empty_batch_writes_no_file(tmp_path: Path) -> None:
    assert (
        written([SCHEMA.empty_table().to_batches()[0] if SCHEMA.empty_table().to_batches() else rows(1, 0)], tmp_path)
        == []
    )
    assert list(tmp_path.iterdir()) == []
