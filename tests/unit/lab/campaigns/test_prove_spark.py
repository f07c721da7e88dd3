"""The campaign of Spark without Spark: steps of a batch, the plan of kills, counts of rows, the printed verdict."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from avow_lab.campaigns.spark.campaign import RowCounts, Verdict, count_rows
from avow_lab.campaigns.spark.command import print_verdict
from avow_lab.campaigns.spark.plan import STEPS_AIMED, Kill, Run, draw_kills, split
from avow_lab.campaigns.spark.watch import DeltaTarget, Step, Traces, Watch, step_of


@pytest.mark.parametrize(
    ("now", "step"),
    [
        (Traces(10, 5), "planned"),
        (Traces(11, 5), "staging"),
        (Traces(14, 5), "staged"),
        (Traces(15, 6), "published"),
    ],
)
def test_a_step_is_recognized_by_its_traces(now: Traces, step: Step) -> None:
    assert step_of(Traces(10, 5), now, whole=4) == step


def test_a_query_is_followed_from_batch_to_batch(tmp_path: Path) -> None:
    checkpoint, table = tmp_path / "checkpoint", tmp_path / "table"
    for folder in (checkpoint / "offsets", checkpoint / "commits", table / "_delta_log"):
        folder.mkdir(parents=True)
    watch = Watch(checkpoint, DeltaTarget(table))
    watch.begin()
    assert watch.look() == "idle"
    assert not watch.moved
    (checkpoint / "offsets" / "0").touch()
    assert watch.look() == "planned"
    assert watch.moved
    (table / "a.parquet").touch()
    assert watch.look() == "staging"
    (table / "b.parquet").touch()
    assert watch.look() == "staged"
    (table / "_delta_log" / f"{1:020}.json").touch()
    assert watch.look() == "published"
    (checkpoint / "commits" / "0").touch()
    (checkpoint / "commits" / ".0.crc").touch()
    assert watch.look() == "idle"


def test_traces_of_earlier_runs_are_ignored(tmp_path: Path) -> None:
    checkpoint, table = tmp_path / "checkpoint", tmp_path / "table"
    for folder in (checkpoint / "offsets", checkpoint / "commits", table):
        folder.mkdir(parents=True)
    (checkpoint / "offsets" / "0").touch()
    (table / "left.parquet").touch()
    watch = Watch(checkpoint, DeltaTarget(table))
    watch.begin()
    assert watch.look() == "planned"


def test_lost_duplicate_and_foreign_rows_are_named() -> None:
    counts = count_rows({"1", "2", "3"}, ["1", "1", "3", "9"])
    assert (counts.rows, counts.lost, counts.doubled, counts.foreign) == (4, ["2"], ["1"], ["9"])
    assert not counts.clean
    assert count_rows({"1", "2"}, ["2", "1"]).clean


def test_fifty_runs_aim_at_every_step_of_both_targets_and_at_workers() -> None:
    made = draw_kills(50, seed=1, cluster_every=10)
    assert {(kill.target, kill.step) for kill in made if kill.victim == "driver"} == {
        (target, step) for target in ("queue", "table") for step in STEPS_AIMED
    }
    assert sum(kill.victim == "worker" for kill in made) >= 10
    assert sum(kill.on_cluster for kill in made) == 5
    assert {kill.victim for kill in made if kill.on_cluster} == {"driver", "worker"}
    assert not any(kill.on_cluster for kill in draw_kills(50, seed=1, cluster_every=0))
    assert draw_kills(50, seed=1, cluster_every=10) == made


def test_every_kill_has_one_testbed_and_cluster_kills_share_one() -> None:
    plan = draw_kills(50, seed=1, cluster_every=10)
    first, second = split(plan, 2)
    assert Counter(first + second) == Counter(plan)
    assert [kill.on_cluster for kill in first] == [True] * 5 + [False] * (len(first) - 5)
    assert not any(kill.on_cluster for kill in second)
    assert split(plan[:3], 1) == [plan[:3]]


@pytest.mark.parametrize(("doubled", "expected"), [([], "All promises held."), (["17"], "doubled in the table: 17")])
def test_a_verdict_reports_what_was_hit_and_what_failed(doubled: list[str], expected: str) -> None:
    run = Run(Kill("driver", "table", "published", on_cluster=True), {"queue": "staging", "table": "published"}, 3.0)
    counts = {"queue": RowCounts(60, [], [], []), "table": RowCounts(60 + len(doubled), [], doubled, [])}
    verdict = Verdict(7, 60.0, 60, [run], counts, {"queue": 2, "table": 2}, speculated=3)
    out = io.StringIO()
    print_verdict(Console(file=out, width=120), verdict)
    assert expected in out.getvalue()
    assert verdict.clean is not bool(doubled)
