"""PostgreSQL's part of tables, without Spark: what a real server does when drivers and the server itself are killed."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from tests.unit.spark.table_rows import SCHEMA, append, rows

from avow.errors import InvalidRequest, Offline, Refused, Unknown
from avow.spark.tables.postgres import PostgresStore
from avow.spark.tables.tables import open_store
from avow.spark.tables.version_ranges import archived_ends
from avow.testing.services import PostgresServer


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as running:
        yield running


@pytest.fixture
def store(server: PostgresServer) -> PostgresStore:
    made = at(server, f"t{uuid.uuid4().hex}")
    made.prepare(SCHEMA, partition_by=None)
    return made


def at(server: PostgresServer, name: str) -> PostgresStore:
    made = open_store(f"{server.dsn}?table={name}")
    assert isinstance(made, PostgresStore)
    return made


def asked(server: PostgresServer, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(server.dsn) as connection:
        found = connection.execute(statement)  # type: ignore[call-overload]
        return list(found.fetchall()) if found.description else []


def stages(server: PostgresServer) -> list[tuple[Any, ...]]:
    return asked(server, "select relname from pg_class where relname like 'avow_stage_%' and relkind = 'r'")


def versions(store: PostgresStore) -> list[int]:
    return sorted(version for batch in store.read() for version in batch.column("offset").to_pylist())


def test_a_batch_is_stored_once_whatever_is_repeated(store: PostgresStore, server: PostgresServer) -> None:
    staged = store.stage([rows(1, 10)], SCHEMA, app_id="query", version=0)
    assert (store.count(), store.committed("query")) == (0, None)
    assert store.commit(staged, app_id="query", version=0)
    assert not store.commit(staged, app_id="query", version=0)
    assert append(store, rows(11, 15), rows(16, 20), version=1)
    assert not append(store, rows(11, 15), rows(16, 20), version=1)
    assert not append(store, rows(1, 10), version=0)
    assert append(store, rows(1, 2, queue="other"), version=0, app_id="second")
    assert versions(store) == [1, 1, 2, 2, *range(3, 21)]
    assert archived_ends(store.ranges()) == {("orders", 0): 20, ("other", 0): 2}
    assert append(store, version=2)
    assert stages(server) == [], "leftovers of the replays go with the next commit"


def test_leftovers_are_cleaned_by_age(store: PostgresStore, server: PostgresServer) -> None:
    store.stage([rows(1, 10)], SCHEMA, app_id="query", version=5)
    assert store.clean(older_than_s=3600) == 0
    assert store.clean(older_than_s=0) == 1
    assert stages(server) == []
    assert store.count() == 0


def test_an_attempt_without_rows_or_with_a_failure_leaves_nothing(store: PostgresStore, server: PostgresServer) -> None:
    assert store.stage([], SCHEMA, app_id="query", version=0) == []

    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(1, 10)
        raise KeyError("the task was killed")

    with pytest.raises(KeyError):
        store.stage(failing(), SCHEMA, app_id="query", version=0)
    assert stages(server) == []


def test_a_server_crash_between_stage_and_commit_costs_a_replay_but_no_row(server: PostgresServer) -> None:
    store = at(server, "crashed")
    store.prepare(SCHEMA, partition_by=None)
    append(store, rows(1, 10), version=0)
    staged = store.stage([rows(11, 20)], SCHEMA, app_id="query", version=1)
    asked(server, "checkpoint")  # the task's table survives the crash, its rows do not
    server.kill()
    with pytest.raises(Unknown, match="may or may not"):
        store.commit(staged, app_id="query", version=1)
    with pytest.raises(Offline, match="no row became visible"):
        store.stage([rows(11, 20)], SCHEMA, app_id="query", version=1)
    server.start()
    with pytest.raises(Unknown, match="of which 0 are left"):
        store.commit(staged, app_id="query", version=1)
    assert store.committed("query") == 0
    assert append(store, rows(11, 20), version=1)
    assert versions(store) == list(range(1, 21))
    assert archived_ends(store.ranges()) == {("orders", 0): 20}


def test_a_driver_whose_connection_is_cut_in_the_commit_recovers_by_a_replay(server: PostgresServer) -> None:
    store = at(server, "cut")
    store.prepare(SCHEMA, partition_by=None)
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(
            "create function cut() returns trigger language plpgsql as "
            "$$ begin perform pg_terminate_backend(pg_backend_pid()); return new; end $$"
        )
        connection.execute("create trigger cut after insert on cut for each statement execute function cut()")
        with pytest.raises(Unknown):
            append(store, rows(1, 10), version=0)
        connection.execute("drop trigger cut on cut")
    assert append(store, rows(1, 10), version=0)
    assert versions(store) == list(range(1, 11))


def test_every_type_is_read_back_unchanged(server: PostgresServer) -> None:
    store = at(server, "types")
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)
    columns = {
        "b": pa.array([True, None]),
        "s": pa.array([-3, None], pa.int16()),
        "i": pa.array([1 << 30, None], pa.int32()),
        "l": pa.array([1 << 60, None], pa.int64()),
        "f": pa.array([0.5, None], pa.float32()),
        "d": pa.array([1e300, None], pa.float64()),
        "t": pa.array(["grün 'x'\n", None]),
        "y": pa.array([b"\x00\xff", None], pa.binary()),
        "day": pa.array([dt.date(1969, 12, 31), None]),
        "at": pa.array([moment, None], pa.timestamp("us", tz="UTC")),
        "naive": pa.array([moment.replace(tzinfo=None), None], pa.timestamp("us")),
        "n": pa.array([Decimal("-12345.67"), None], pa.decimal128(12, 2)),
    }
    batch = pa.record_batch(columns)
    store.prepare(batch.schema, partition_by=None)
    assert store.commit(store.stage([batch], batch.schema, app_id="a", version=1), app_id="a", version=1)
    (found,) = store.read()
    assert found.to_pylist() == batch.to_pylist()
    assert found.schema.equals(batch.schema)


def test_nested_columns_are_json_and_foreign_types_are_read_as_text(server: PostgresServer) -> None:
    store = at(server, "nested")
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = pa.record_batch({"headers": pa.array([[{"key": "a", "value": b"b"}], None], kind)})
    store.prepare(batch.schema, partition_by=None)
    store.commit(store.stage([batch], batch.schema, app_id="a", version=1), app_id="a", version=1)
    asked(server, "alter table nested add column id uuid default '00000000-0000-0000-0000-000000000001'")
    (found,) = store.read()
    assert found.column("headers").to_pylist() == ['[{"key": "a", "value": "Yg=="}]', None]
    assert found.column("id").to_pylist() == ["00000000-0000-0000-0000-000000000001"] * 2


def test_an_existing_table_accepts_matching_rows_and_refuses_others(server: PostgresServer) -> None:
    asked(server, "create table business (id bigint, name varchar(20), made timestamptz default now())")
    store = at(server, "business")
    batch = pa.record_batch({"name": pa.array(["a"]), "id": pa.array([1], pa.int32())})
    store.prepare(batch.schema, partition_by=None)
    assert store.commit(store.stage([batch], batch.schema, app_id="a", version=1), app_id="a", version=1)
    assert asked(server, "select id, name, made is not null from business") == [(1, "a", True)]
    with pytest.raises(InvalidRequest, match="do not fit"):
        store.prepare(pa.schema([("id", pa.binary())]), partition_by=None)
    with pytest.raises(InvalidRequest, match="no column other"):
        store.prepare(pa.schema([("other", pa.int64())]), partition_by=None)
    with pytest.raises(InvalidRequest, match="cannot partition"):
        store.prepare(batch.schema, partition_by=("name",))


def test_a_missing_table_is_reported(server: PostgresServer) -> None:
    store = at(server, "nowhere")
    assert list(store.ranges()) == []
    with pytest.raises(Refused, match="does not exist"):
        store.schema()
