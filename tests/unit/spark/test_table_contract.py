"""The contract of tables in folders. The tests of PostgreSQL need a server and are in tests/spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.spark.table_rows import SCHEMA, append, archive, rows, stage, versions

from avow.errors import InvalidRequest, Refused
from avow.spark.tables.tables import AnyStore, open_store
from avow.spark.tables.version_ranges import LANES, archived_ends


@pytest.fixture(params=["delta", "parquet"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(kind: str, tmp_path: Path) -> AnyStore:
    return archive(kind, tmp_path / "t")


def test_a_batch_appears_with_its_commit_and_not_before(store: AnyStore) -> None:
    staged = stage(store, rows(1, 10), version=0)
    assert (store.count(), versions(store), store.committed("query")) == (0, [], None)
    assert store.commit(staged, app_id="query", version=0)
    assert (store.count(), versions(store), store.committed("query")) == (10, list(range(1, 11)), 0)


def test_a_replayed_batch_and_an_earlier_one_change_nothing(store: AnyStore) -> None:
    assert append(store, rows(1, 10), version=0)
    assert append(store, rows(11, 20), rows(21, 30), version=1)
    assert not append(store, rows(11, 20), rows(21, 30), version=1)
    assert not append(store, rows(1, 10), version=0)
    assert versions(store) == list(range(1, 31))
    assert store.committed("query") == 1


def test_the_same_messages_committed_twice_are_stored_once(store: AnyStore) -> None:
    staged = stage(store, rows(1, 10), version=0)
    assert store.commit(staged, app_id="query", version=0)
    assert not store.commit(staged, app_id="query", version=0)
    assert versions(store) == list(range(1, 11))


def test_batches_under_different_names_are_independent(store: AnyStore) -> None:
    for name in ("one", "two", "a/b ü", "..", "x" * 200):
        assert append(store, rows(1, 1), version=7, app_id=name)
        assert store.committed(name) == 7
    assert store.count() == 5


def test_a_batch_without_rows_is_remembered(store: AnyStore) -> None:
    assert append(store, version=3)
    assert not append(store, rows(1, 1), version=3)
    assert (store.count(), store.committed("query")) == (0, 3)


def test_leftovers_of_attempts_are_invisible_and_are_cleaned(store: AnyStore, tmp_path: Path) -> None:
    stage(store, rows(1, 10), version=0)
    append(store, rows(1, 10), version=0)
    assert store.clean(older_than_s=3600) == 0
    before = set(tmp_path.rglob("part-*.parquet"))
    assert store.clean(older_than_s=0) == 1
    assert len(before - set(tmp_path.rglob("part-*.parquet"))) == 1
    assert versions(store) == list(range(1, 11))


def test_a_table_reports_how_far_lanes_are_archived(store: AnyStore) -> None:
    assert archived_ends(store.ranges()) == {}
    append(store, rows(1, 10), rows(5, 9, lane=1), version=0)
    append(store, rows(11, 30), rows(11, 12, lane=1), rows(1, 3, queue="other"), version=1)
    assert archived_ends(store.ranges()) == {("orders", 0): 30, ("orders", 1): 9, ("other", 0): 3}


def test_mismatched_rows_are_refused_by_column(store: AnyStore) -> None:
    other = pa.schema([("topic", pa.string()), ("partition", pa.int64()), ("offset", pa.int64()), ("more", pa.int8())])
    with pytest.raises(InvalidRequest) as raised:
        store.prepare(other, partition_by=None)
    for expected in ("value is missing", "more is not in the table", "partition is int64, but int32 in the table"):
        assert expected in str(raised.value)
    with pytest.raises(InvalidRequest, match="partitioned by"):
        store.prepare(SCHEMA, partition_by=("topic",))


def test_a_writer_may_use_another_column_order_time_zone_and_string_type(store: AnyStore) -> None:
    columns = {name: rows(1, 3).column(name) for name in reversed(SCHEMA.names)}
    columns["timestamp"] = columns["timestamp"].cast(pa.timestamp("us", tz="Europe/Vienna"))
    columns["value"] = columns["value"].cast(pa.large_binary())
    batch = pa.record_batch(columns)
    store.prepare(batch.schema, partition_by=None)
    append(store, batch, version=0)
    assert store.schema().equals(SCHEMA)
    assert versions(store) == [1, 2, 3]


def test_a_folder_with_other_files_becomes_no_table(kind: str, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(InvalidRequest, match="holds files"):
        archive(kind, tmp_path)
    with pytest.raises(InvalidRequest, match="only strings, integers"):
        open_store(f"{kind}:{tmp_path}/t").prepare(SCHEMA, partition_by=("timestamp",))


def test_a_missing_table_is_reported(kind: str, tmp_path: Path) -> None:
    store = open_store(f"{kind}:{tmp_path}/t")
    assert store.committed("query") is None
    with pytest.raises(Refused, match=r"is not a (Delta|Parquet) table|does not exist"):
        store.count()


def test_creating_a_table_twice_has_no_further_effect(kind: str, tmp_path: Path) -> None:
    append(archive(kind, tmp_path / "t"), rows(1, 1), version=0)
    assert archive(kind, tmp_path / "t").count() == 1
    assert open_store(str(tmp_path / "t")).count() == 1


def test_a_table_without_lanes_has_no_archived_ends(kind: str, tmp_path: Path) -> None:
    store = open_store(f"{kind}:{tmp_path}/t")
    store.prepare(pa.schema([("n", pa.int64())]), partition_by=())
    append_batch = pa.record_batch({"n": [1, 2]})
    store.commit(store.stage([append_batch], append_batch.schema, app_id="a", version=1), app_id="a", version=1)
    assert store.count() == 2
    if kind == "delta":
        with pytest.raises(InvalidRequest, match=str(LANES[0])):
            list(store.ranges())
    else:
        assert list(store.ranges()) == []
