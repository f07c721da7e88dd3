"""The whole chain in short: each process is killed once, the audit is clean, and every planted error is found."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from avow.errors import InvalidRequest, Refused
from avow.spark.pipelines.audit import audit, compare
from avow.spark.pipelines.audit_report import Report
from avow.spark.pipelines.audit_spec import AuditSpec
from avow.spark.tables import open_table
from avow_lab.campaigns.chain.campaign import ChainCampaign, Options
from avow_lab.campaigns.chain.chain import VICTIMS
from avow_lab.campaigns.chain.planted_errors import PLANTS, Planted, names_exactly, plant

FAULTS = len(VICTIMS)  # the first four kill one of each kind; the campaign has a command of its own


def ids(spark: SparkSession, *names: str | None) -> DataFrame:
    return spark.createDataFrame([(name,) for name in names], "id string")


def found(report: Report) -> dict[tuple[str, str], tuple[int, tuple[str, ...]]]:
    return {(one.kind, one.stage): (one.count, one.ids) for one in report.findings}


def test_orders_messages_and_rows_agree_under_kills_and_planted_errors_are_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    options = Options(faults=FAULTS, seed=5, database="postgres")  # the driver returns while others die
    campaign = ChainCampaign(options, tmp_path, audit=lambda spec: audit(spark, spec))
    chain = campaign.chain
    with closing(campaign):
        campaign.start()
        campaign.inject_faults()
        verdict = campaign.judge()
        assert verdict.faults == dict.fromkeys(VICTIMS, 1)
        assert verdict.clean, f"{verdict.stuck} {verdict.misreported} {verdict.report.text()}"
        assert verdict.committed == verdict.messages == verdict.rows > 0
        assert verdict.told_rolled_back > 0
        planted = list[Planted]()
        for kind in PLANTS:
            planted.append(plant(chain, kind))
            report = audit(spark, chain.spec())
            assert names_exactly(report, planted), report.text()


def test_user_defined_stages_are_compared(spark: SparkSession) -> None:
    pledges = spark.createDataFrame([("open", "submitted"), ("o-01", "succeeded")], "id string, status string")
    whole = [f"o-{number:02}" for number in range(40)]
    report = compare(
        {
            "business": ids(spark, *whole, "open", "gone"),
            "pledges": pledges,
            "queue": ids(spark, *whole, "twice", "twice"),
            "table": ids(spark, *whole[5:], "o-39", "twice", "twice"),
        },
        name="mine",
        show=3,
    )
    assert found(report) == {
        ("lost", "queue"): (1, ("gone",)),
        ("lost", "table"): (5, ("o-00", "o-01", "o-02")),
        ("doubled", "queue"): (1, ("twice",)),
        ("doubled", "table"): (1, ("o-39",)),
        ("orphaned", "queue"): (1, ("twice",)),
        ("undecided", "pledges"): (1, ("open",)),
    }
    assert [(one.stage, one.rows, one.ids) for one in report.stages] == [
        ("business", 42, 42),
        ("pledges", 2, 2),
        ("queue", 42, 41),
        ("table", 38, 36),
    ]
    assert report.statuses == {"submitted": 1, "succeeded": 1}
    assert "and 2 more" in report.text()


def test_stages_without_rows_agree(spark: SparkSession) -> None:
    report = compare({"queue": ids(spark), "table": ids(spark)})
    assert (report.clean, report.rows("queue"), report.rows("table")) == (True, 0, 0)
    with pytest.raises(InvalidRequest, match="at least two"):
        compare({"queue": ids(spark)})


def test_a_table_is_audited_against_a_database(spark: SparkSession, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("create table orders (id integer)")
        connection.executemany("insert into orders values (?)", [(number,) for number in range(100)])
        connection.commit()
    table = open_table(f"parquet:{tmp_path}/table")
    table.write_batch(spark.range(1, 101).selectExpr("id as order_id"), app_id="load", version=1)
    wanted = {
        "business": {"database": "sqlite:shop.db", "query": "select id from orders"},
        "table": {"url": "parquet:table", "id": "order_id"},
    }
    report = audit(spark, AuditSpec.from_table(wanted, folder=str(tmp_path)))
    assert found(report) == {("lost", "table"): (1, ("0",)), ("orphaned", "table"): (1, ("100",))}
    wanted["business"]["query"] = "select id from no_table"
    with pytest.raises(Refused, match="no such table: no_table"):
        audit(spark, AuditSpec.from_table(wanted, folder=str(tmp_path)))
