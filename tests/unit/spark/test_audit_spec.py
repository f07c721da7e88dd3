"""The settings of an audit in a file, and its report. No JVM."""

from __future__ import annotations

import sqlite3
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from avow.errors import InvalidRequest
from avow.spark.pipelines.audit import ended_status, report_cluster
from avow.spark.pipelines.audit_inputs import PAGE_ROWS, barrier_query, query_rows
from avow.spark.pipelines.audit_report import Finding, Report, StageCount
from avow.spark.pipelines.audit_spec import AuditSpec, BarrierInput, id_expression
from avow.spark.pipelines.spec import Cluster
from avow.spark.pipelines.status import Status

FILE = """
kind = "audit"
servers = "http://127.0.0.1:7401"
token = "secret"

[business]
database = "sqlite:shop.db"
query = "select id from orders"

[queue]
name = "orders"
id = "$.order_id"
archive = "delta:archive"

[table]
url = "delta:/data/orders"
id = "order_id"
"""


def given() -> dict[str, Any]:
    return tomllib.loads(FILE)


def test_a_file_lists_the_stages() -> None:
    spec = AuditSpec.from_table(given())
    assert spec.stages == {
        "business": "select id from orders",
        "queue": "orders and its archive, by $.order_id",
        "table": "delta, by order_id",
    }
    assert spec.queue is not None
    assert spec.access(spec.queue) == {"servers": "http://127.0.0.1:7401", "token": "secret"}


def test_relative_paths_begin_at_the_files_folder() -> None:
    spec = AuditSpec.from_table(given(), folder="/etc/audits")
    assert spec.business is not None
    assert spec.queue is not None
    assert spec.table is not None
    assert spec.business.database == "sqlite:/etc/audits/shop.db"
    assert spec.queue.archive == "delta:/etc/audits/archive"
    assert spec.table.url == "delta:/data/orders"


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"queue": {"nme": "orders"}}, "queue"),
        ({"queue": {"name": 7}}, r"queue\.name"),
        ({"tables": {}}, "tables"),
        ({"table": {"url": "delta:/data"}}, "id"),
        ({"servers": ""}, "servers"),
        ({"kind": "archive"}, "kind"),
    ],
)
def test_an_error_in_a_file_is_refused_with_its_place(change: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidRequest, match=place):
        AuditSpec.from_table({**given(), **change})


def test_one_stage_alone_is_refused() -> None:
    alone = {key: value for key, value in given().items() if key not in ("business", "table")}
    with pytest.raises(InvalidRequest, match="at least two of business, barrier, pledges, queue, table"):
        AuditSpec.from_table(alone)


def test_an_id_is_a_path_a_column_or_an_expression() -> None:
    assert id_expression("$.order_id") == "get_json_object(cast(value as string), '$.order_id')"
    assert id_expression("$['it''s']").count("\\'") == 4
    assert id_expression("key") == "cast(key as string)"
    assert id_expression("substring(gid, 7)") == "cast(substring(gid, 7) as string)"


def test_the_barrier_stage_uses_the_table_of_its_database() -> None:
    asked = barrier_query(BarrierInput(database="postgresql+psycopg://shop@db/shop"))
    assert asked == "select gid from dtm_barrier.barrier where branch_id = '00' and op = 'msg' and reason = 'msg'"
    assert "from barrier where" in barrier_query(BarrierInput(database="sqlite:shop.db"))
    assert "from mine where" in barrier_query(BarrierInput(database="sqlite:shop.db", table="mine"))


@pytest.mark.parametrize("form", ["sqlite:{}", "sqlite:///{}"])
def test_a_database_is_read_in_pages(tmp_path: Path, form: str) -> None:
    path = tmp_path / "a shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table orders (id integer)")
        connection.executemany("insert into orders values (?)", [(number,) for number in range(PAGE_ROWS + 5)])
        connection.commit()
    pages = list(query_rows(form.format(path), "select id from orders order by id"))
    assert [len(page) for page in pages] == [PAGE_ROWS, 5]
    assert pages[1][4] == (PAGE_ROWS + 4,)


def test_an_unknown_database_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="oracle"):
        next(query_rows("oracle://db", "select 1"))


def report(*findings: Finding) -> Report:
    stages = (StageCount("queue", "orders, by key", 1_200, 1_199), StageCount("table", "delta, by id", 1_198, 1_198))
    return Report("orders", stages, {"succeeded": 1_199, "prepared": 1}, findings)


def test_a_clean_report_says_that_all_stages_agree() -> None:
    assert (report().clean, report().exit_code) == (True, 0)
    assert report().text() == (
        "audit orders\n"
        "  stage     what                    rows           ids\n"
        "  queue     orders, by key         1,200         1,199\n"
        "  table     delta, by id           1,198         1,198\n"
        "  pledges: prepared 1, succeeded 1,199\n"
        "The audit is clean: nothing is lost, doubled, orphaned or undecided."
    )


def test_a_report_lists_the_first_ids_of_each_finding() -> None:
    made = report(
        Finding("lost", "table", "in the queue, not in the table", 12, ("o-1", "o-2")),
        Finding("undecided", "pledges", "its pledge is not delivered yet", 1, ("o-9",)),
    )
    assert made.exit_code == 1
    assert made.text().splitlines()[5:] == [
        "lost: 12 in the queue, not in the table",
        "    o-1",
        "    o-2",
        "    and 10 more",
        "undecided (repeat the audit when these are finished): 1 its pledge is not delivered yet",
        "    o-9",
        "The audit is not clean: 12 lost, 1 undecided.",
    ]
    assert msgspec.json.decode(msgspec.json.encode(made), type=Report) == made


def test_an_audit_reports_to_the_cluster_it_asks_and_is_failed_when_it_is_not_clean() -> None:
    tables = {"business": {"database": "sqlite:a", "query": "q"}, "table": {"url": "delta:t", "id": "i"}}
    assert report_cluster(AuditSpec.from_table(tables)) is None
    assert report_cluster(AuditSpec.from_table({**tables, "servers": "http://a:1"})) == Cluster(servers="http://a:1")
    queue = {**tables, "queue": {"name": "orders", "servers": "http://b:1", "token": "t"}}
    assert report_cluster(AuditSpec.from_table(queue)) == Cluster(servers="http://b:1", token="t")

    stages = (StageCount("queue", "orders", 3, 3), StageCount("table", "delta", 2, 2))
    begun = Status(name="shop", kind="audit", state="running")
    ended = ended_status(begun, Report("shop", stages, {}, (), duration_s=0.5))
    assert (ended.state, ended.error, ended.counts.rows, ended.counts.rows_per_s) == ("done", "", 5, 10.0)
    lost = Finding("lost", "table", "rows", 1, ("7",))
    ended = ended_status(begun, Report("shop", stages, {}, (lost,)))
    assert (ended.state, ended.error) == ("failed", "The audit is not clean: 1 lost.")
