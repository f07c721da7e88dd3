"""Files of pipelines: their values, and that every mistake is reported with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from avow.errors import InvalidRequest
from avow.spark.pipelines.inputs import stream_options
from avow.spark.pipelines.result_rows import check_result
from avow.spark.pipelines.row_function import load_function
from avow.spark.pipelines.spec import LOCAL_SERVERS, ArchiveSpec, ReplaySpec, TransformSpec, parse_spec, read_spec

ARCHIVE = """
kind = "archive"
table = "delta:tables/orders"
trim = true
keep = 100
[source]
queue = "orders"
batch_rows = 5000
subscriber = "archive"
"""
TRANSFORM = """
kind = "transform"
name = "prices"
servers = "http://peer:7401"
checkpoint = "/var/lib/prices"
sql = "SELECT * FROM source"
[spark]
master = "local[2]"
config = { "spark.sql.shuffle.partitions" = 2, "spark.ui.enabled" = true }
[source]
queues = ["a", "b"]
start = 2026-01-31T08:00:00Z
[sink]
table = "parquet:/data/prices"
partition_by = ["day"]
"""
REPLAY = """
kind = "replay"
where = "key IS NOT NULL"
keep_lanes = true
[source]
queue = "orders"
start = { 0 = 17, 1 = 20 }
end = 400
archive = "delta:/data/orders"
[sink]
queue = "again"
"""


def read(folder: Path, text: str, **environment: str) -> ArchiveSpec | TransformSpec | ReplaySpec:
    path = folder / "some.toml"
    path.write_text(text)
    return read_spec(path, environment)


def mistakes(folder: Path, text: str) -> str:
    with pytest.raises(InvalidRequest) as refusal:
        read(folder, text)
    return str(refusal.value)


def test_an_archive_is_named_by_its_file_and_paths_begin_there(tmp_path: Path) -> None:
    spec = read(tmp_path, ARCHIVE, AVOW_TOKEN="secret")
    assert isinstance(spec, ArchiveSpec)
    assert (spec.name, spec.trim, spec.keep, spec.every) == ("some", True, 100, "10 seconds")
    assert spec.checkpoint == str(tmp_path / "some.checkpoint")
    assert spec.table == f"delta:{tmp_path}/tables/orders"
    assert (spec.cluster.servers, spec.cluster.token) == (LOCAL_SERVERS, "secret")
    assert stream_options(spec.source, spec.cluster) == {
        "servers": LOCAL_SERVERS,
        "token": "secret",
        "subscribe": "orders",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "5000",
        "subscriber": "archive",
        "includeHeaders": "true",
        "failOnDataLoss": "true",
    }


def test_a_transform_has_the_settings_of_its_file(tmp_path: Path) -> None:
    spec = read(tmp_path, TRANSFORM, AVOW_API="http://elsewhere:1")
    assert isinstance(spec, TransformSpec)
    assert (spec.name, spec.cluster.servers, spec.checkpoint) == ("prices", "http://peer:7401", "/var/lib/prices")
    assert spec.spark.config == {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "true"}
    options = stream_options(spec.source, spec.cluster)
    assert options["subscribe"] == "a,b"
    assert options["startingTimestamp"] == "1769846400000"
    assert (spec.sink.table, spec.sink.partition_by) == ("parquet:/data/prices", ("day",))


def test_a_replay_has_a_range_and_a_filter(tmp_path: Path) -> None:
    spec = read(tmp_path, REPLAY)
    assert isinstance(spec, ReplaySpec)
    assert (spec.source.start, spec.source.end, spec.where) == ({0: 17, 1: 20}, 400, "key IS NOT NULL")
    assert spec.keep_lanes
    assert spec.ordered


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('kind = "archive"', "", ["kind: is missing"]),
        ('kind = "archive"', 'kind = "achive"', ["kind: must be one of archive, transform, replay"]),
        ("trim = true\n", "", ["keep: has no effect without trim = true"]),
        ("trim = true", "trimm = true", ["trimm: is unknown; did you mean trim?"]),
        ("trim = true", 'trim = "yes"', ["trim: must be true or false, not 'yes'"]),
        ("keep = 100", "keep = -1", ["keep: must be a whole number from 0, not -1"]),
        ('queue = "orders"', "", ["[source] queue or queues or pattern: is missing"]),
        ('queue = "orders"', 'queue = "a"\nqueues = ["b"]', ["[source] queue and queues: exclude each other"]),
        ("batch_rows = 5000", 'start = "yesterday"', ["[source] start: must be earliest, or latest, or a time"]),
        ("batch_rows = 5000", "start = 7", ["[source] start: must be earliest"]),
        (
            '"delta:tables/orders"',
            '"postgresql://u@h/d?table=t"',
            ["table: of an archive must be delta:PATH or parquet:"],
        ),
        ('"delta:tables/orders"', '"csv:here"', ["table: ", "unknown kind 'csv'"]),
        ("[source]", "[sauce]", ["[source]: is missing", "sauce: is unknown; did you mean source?"]),
        ("keep = 100", "keep = true\nevery = 5", ["keep: must be a whole", "every: must be a text, not 5"]),
    ],
)
def test_errors_are_named_with_their_places(tmp_path: Path, old: str, new: str, expected: list[str]) -> None:
    assert old in ARCHIVE
    message = mistakes(tmp_path, ARCHIVE.replace(old, new))
    assert all(each in message for each in expected), message
    assert message.endswith("Nothing was started")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("sql =", "python =", "python: must be module:function, not 'SELECT * FROM source'"),
        ('sql = "SELECT * FROM source"', "", "sql or python or row: is missing"),
        ('sql = "SELECT * FROM source"', 'row = "m:f"', "columns: is missing"),
        ("sql =", 'columns = "id long"\nsql =', "columns: is only for row"),
        ('table = "parquet:/data/prices"', 'queue = "a"', "[sink] queue: is 'a', which is also the source"),
        ('table = "parquet:/data/prices"', 'queue = "c"', "[sink] partition_by: is only for a table"),
        ('sql = "', 'dead_letters = "b"\nsql = "', "dead_letters: must be a separate queue"),
        ("/var/lib/prices", "s3://bucket/x", "checkpoint: must be a local folder"),
        ("queues =", 'table = "postgresql://u@h/d?table=t"\nnames =', "[source] run: is missing"),
        ('master = "local[2]"', 'log = "LOUD"', "[spark] log: must be one of OFF"),
        ("start = 2026-01-31T08:00:00Z", "start = { 0 = 1 }", "[source] start: must be earliest"),
    ],
)
def test_contradictory_settings_of_a_transform_are_named(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in TRANSFORM
    assert expected in mistakes(tmp_path, TRANSFORM.replace(old, new))


def test_a_missing_or_invalid_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_spec(tmp_path / "nowhere.toml")
    assert "is not valid TOML" in mistakes(tmp_path, "kind = ")


def test_columns_of_the_pipeline_go_with_dead_letters(tmp_path: Path) -> None:
    check_result(["value", "_error", "_value"], dead_letters="dead")
    for columns, dead, expected in (
        (["value"], "dead", "no column _error"),
        (["value", "_error"], "", "Set dead_letters"),
        (["value", "_eror"], "dead", "_eror"),
    ):
        with pytest.raises(InvalidRequest, match=expected):
            check_result(columns, dead_letters=dead)


def test_a_function_is_loaded_from_the_folder_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "prices_of_test.py").write_text("def twice(message):\n    return message * 2\nnumber = 7\n")
    assert load_function("prices_of_test:twice", str(tmp_path))(4) == 8
    for name, expected in (
        ("prices_of_test:number", "not a function"),
        ("prices_of_test:x", "x"),
        ("no_such:x", "no_such"),
    ):
        with pytest.raises(InvalidRequest, match=expected):
            load_function(name, str(tmp_path))


def test_a_pipeline_reports_to_a_known_cluster_unless_reports_are_off(tmp_path: Path) -> None:
    of_queue: dict[str, Any] = {"kind": "archive", "table": "delta:t", "source": {"queue": "orders"}}
    of_tables: dict[str, Any] = {
        "kind": "transform",
        "sql": "select * from source",
        "source": {"table": "delta:a"},
        "sink": {"table": "delta:b"},
    }

    def where(found: dict[str, Any], **more: Any) -> str | None:
        spec = parse_spec({**found, **more}, file=tmp_path / "x.toml", environment={})
        return spec.report if spec.report_cluster is not None else None

    assert where(of_queue) == where(of_tables, servers="http://a:1") == "avow.pipelines"
    assert where(of_queue, report="elsewhere") == "elsewhere"
    assert where(of_tables) is None
    assert where(of_queue, report="") is None
    with pytest.raises(InvalidRequest, match="report: must be a text"):
        where(of_queue, report=3)
