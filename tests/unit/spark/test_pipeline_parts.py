"""The parts of pipelines without Spark: how far to trim, what to replay, counts, output."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from avow.cli.pipeline import Lines, as_object, line
from avow.errors import Refused, UnknownQueue
from avow.spark.pipelines.archive_pipeline import LaneEnds, next_versions, safe_ends
from avow.spark.pipelines.failures import cause_of
from avow.spark.pipelines.metrics import served
from avow.spark.pipelines.progress import Counts, counted
from avow.spark.pipelines.replay_pipeline import condition, name_of
from avow.spark.pipelines.spec import ReplaySpec, Sink, Source
from avow.spark.pipelines.status import Status, is_locked, locked, read_status, write_status
from avow.spark.tables.version_ranges import Range


def held(first: int, last: int, rows: int | None = None, lane: int = 0) -> Range:
    return Range("q", lane, first, last, last - first + 1 if rows is None else rows)


@pytest.mark.parametrize(
    ("ranges", "ends", "keep", "upto"),
    [
        ([held(1, 50), held(51, 90)], LaneEnds(0, 100), 0, 90),
        ([held(1, 90)], LaneEnds(0, 100), 20, 80),
        ([held(1, 90)], LaneEnds(85, 100), 20, None),
        ([held(1, 40), held(42, 90)], LaneEnds(0, 100), 0, 40),
        ([held(1, 40), held(42, 90)], LaneEnds(41, 100), 0, 90),
        ([held(2, 90)], LaneEnds(0, 100), 0, None),
        ([held(1, 90, rows=89)], LaneEnds(0, 100), 0, None),
        ([held(1, 90, rows=91)], LaneEnds(0, 100), 0, None),
        ([], LaneEnds(0, 100), 0, None),
        ([held(1, 100)], LaneEnds(100, 100), 0, None),
    ],
)
def test_a_lane_is_trimmed_up_to_the_first_version_that_the_table_lacks(
    ranges: list[Range], ends: LaneEnds, keep: int, upto: int | None
) -> None:
    assert safe_ends(ranges, {("q", 0): ends}, keep=keep) == ({} if upto is None else {("q", 0): upto})


def test_lanes_are_trimmed_separately_and_foreign_ones_never() -> None:
    ranges = [held(1, 10), held(1, 5, lane=1), held(1, 7, lane=9)]
    ends = {("q", 0): LaneEnds(0, 10), ("q", 1): LaneEnds(0, 10), ("q", 2): LaneEnds(0, 10)}
    assert safe_ends(ranges, ends, keep=0) == {("q", 0): 10, ("q", 1): 5}
    assert next_versions(ranges) == {("q", 0): 11, ("q", 1): 6, ("q", 9): 8}


# ------------------------------------------------------------------ progress


def progress(
    number: int, rows: int, *, read: int, there: int, took_ms: int = 500, batch: bool = True
) -> dict[str, Any]:
    ends = [json.dumps({"v": 1, "queues": {"q": {"0": at}}}) for at in (read, there)]
    steps = {"triggerExecution": took_ms} | ({"addBatch": 1} if batch else {})
    return {
        "batchId": number,
        "numInputRows": rows,
        "durationMs": steps,
        "sources": [{"endOffset": ends[0], "latestOffset": ends[1]}],
    }


def test_batches_seen_several_times_are_counted_once() -> None:
    first, second = progress(0, 100, read=101, there=201), progress(1, 50, read=151, there=201)
    counts = counted(Counts(), [first])
    assert (counts.batches, counts.rows, counts.lag, counts.rows_per_s) == (1, 100, 100, 200)
    counts = counted(counts, [first, second])
    assert (counts.batches, counts.rows, counts.lag, counts.batch_rows) == (2, 150, 50, 50)
    idle = progress(1, 0, read=151, there=161, batch=False)
    counts = counted(counts, [first, second, idle])
    assert (counts.batches, counts.rows, counts.lag, counts.batch_rows) == (2, 150, 10, 50)


def test_the_lag_of_another_source_is_not_known() -> None:
    one = progress(0, 5, read=1, there=1) | {"sources": [{"endOffset": '{"kafka": 3}', "latestOffset": None}]}
    assert counted(Counts(), [one]).lag is None


# ------------------------------------------------------------------ replay


def test_the_name_of_a_replay_is_derived_from_its_settings() -> None:
    def spec(**changes: Any) -> ReplaySpec:
        given: dict[str, Any] = {"name": "r", "checkpoint": "x", "source": Source(queues=("q",), start=1)}
        return ReplaySpec(**(given | {"sink": Sink(queue="s")} | changes))

    assert name_of(spec()) == name_of(spec(checkpoint="elsewhere"))
    changed = [spec(where="true"), spec(sink=Sink(queue="t")), spec(source=Source(queues=("q",), start=2))]
    assert len({name_of(one) for one in (spec(), *changed)}) == 4


def test_the_rows_of_a_plan_are_described_in_sql() -> None:
    assert condition({"it's": {1: (3, 9)}}) == "(topic = 'it\\'s' AND partition = 1 AND offset >= 3 AND offset < 9)"
    assert condition({}) == "false"


# ------------------------------------------------------------------ status


def test_a_status_shows_whether_its_run_is_alive(tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoint")
    assert read_status(folder, name="p", kind="archive").state == "never"
    with locked(folder):
        write_status(folder, Status(name="p", kind="archive", state="running", rows_before=3, counts=Counts(rows=4)))
        assert is_locked(folder)
        found = read_status(folder, name="p", kind="archive")
        assert (found.state, found.rows) == ("running", 7)
        with pytest.raises(Refused, match="is already running"), locked(folder):
            pass
    assert read_status(folder, name="p", kind="archive").state == "crashed"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[STREAM_FAILED] terminated\nTraceback\n  File x\navow.errors.UnknownQueue: no queue\n", "no queue"),
        ("Job aborted\n  File y\nValueError: this one is bad\nin m:f, for q/0/1\n", "ValueError: this one is bad"),
        (
            "calling o1.save.\n: org.apache.spark.ClassNotFoundException: no avow\n\tat x",
            "ClassNotFoundException: no avow",
        ),
        ("all is lost", "RuntimeError: all is lost"),
        (
            (
                "[STREAM_FAILED] Query [id = a] terminated with exception: [CAST_INVALID_INPUT] The value 'x' of"
                ' type "STRING" cannot be cast. SQLSTATE: 22018\n== SQL (line 1) ==\nSELECT x\n SQLSTATE: XXKST\n'
                "=== Streaming Query ===\nIdentifier: fail [id = a]\nCurrent State: ACTIVE"
            ),
            "[CAST_INVALID_INPUT] The value 'x' of type \"STRING\" cannot be cast",
        ),
    ],
)
def test_the_cause_of_a_failure_is_one_line(text: str, expected: str) -> None:
    assert cause_of(RuntimeError(text)) == expected
    assert cause_of(UnknownQueue("there is none.")) == "there is none"


def test_progress_lines_are_written_only_after_a_change() -> None:
    written: list[str] = []
    lines = Lines(lambda status: written.append(line(status)))
    status = Status(name="p", kind="archive", state="starting")
    lines(status)
    lines(status)
    running = Status(name="p", kind="archive", state="running", counts=Counts(batches=1, rows=20, batch_rows=20, lag=3))
    lines(running)
    assert [each.partition(",")[0] for each in written] == ["p: starting", "p: running"]
    assert "20 rows in 1 batch" in written[1]
    assert "lag 3" in written[1]
    assert as_object(running)["rows_total"] == 20


def test_prometheus_metrics_show_the_state_of_the_runner() -> None:
    status = Status(name="p", kind="archive", state="running", counts=Counts(rows=20, lag=3))
    with served(0, lambda: status) as port, urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    assert 'avow_pipeline_rows_total{kind="archive",pipeline="p"} 20.0' in text
    assert 'avow_pipeline_lag_rows{kind="archive",pipeline="p"} 3.0' in text
    with served(None, lambda: status) as port:
        assert port == 0
