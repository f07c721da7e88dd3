"""How Spark's benchmarks evaluate their measurements; the measurements need a JVM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import spark_plot, spark_results
from benchmarks.spark_archive import Stretch, totals_of
from benchmarks.spark_latency import phases_of, told


def test_a_benchmark_replaces_its_own_results_and_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    spark_results.add(path, "spark", {"held": True})
    spark_results.add(path, "spark-write", {"ratio": 0.7})
    spark_results.add(path, "spark", {"held": False})
    assert json.loads(path.read_text()) == {"spark": {"held": False}, "spark-write": {"ratio": 0.7}}
    spark_results.add(None, "spark", {"held": True})


def test_a_chart_is_drawn_from_the_available_results(tmp_path: Path) -> None:
    results = {
        "spark": {"rows_per_s": {"tuples": 1e5, "parquet": 2e6, "queue": 1.9e6, "values": 3e6}},
        "spark-latency": {
            "seconds": {"p50": 0.4, "p99": 0.8},
            "percentiles_s": [n / 100 for n in range(99)],
            "rate": 500,
        },
    }
    assert list(spark_plot.reading_rates(results)) == ["full row", "values only", "Parquet", "tuples"]
    spark_plot.draw(results, tmp_path / "made" / "picture.png")
    assert (tmp_path / "made" / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_a_lane_that_was_read_completely_passes_the_audit() -> None:
    parts = [Stretch(1, 1, 5, 5, 5), Stretch(0, 4, 9, 6, 6), Stretch(0, 1, 3, 3, 3)]
    totals = totals_of(parts, ends={0: 9, 1: 5}, trimmed=4)
    assert totals.clean
    assert (totals.rows, totals.stretches) == (14, 3)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([Stretch(0, 1, 3, 3, 3), Stretch(0, 5, 9, 5, 5)], "lane 0: a hole after 3"),
        ([Stretch(0, 1, 3, 3, 3), Stretch(0, 3, 9, 7, 7)], "lane 0: twice, or not in order after 3"),
        ([Stretch(0, 1, 9, 9, 8)], "lane 0: 1 values of other versions after 0"),
        ([Stretch(0, 1, 8, 8, 8)], "lane 0: read up to 8, and it ends at 9"),
        ([], "lane 0: read up to 0, and it ends at 9"),
        ([Stretch(0, 1, 9, 9, 9), Stretch(7, 1, 1, 1, 1)], "lane 7: read up to 1, and it ends at 0"),
    ],
)
def test_missing_duplicate_and_wrong_messages_are_named(parts: list[Stretch], expected: str) -> None:
    assert expected in totals_of(parts, ends={0: 9}, trimmed=0).faults


def test_a_latency_is_judged_by_its_median(capsys: pytest.CaptureFixture[str]) -> None:
    phases = phases_of([{"numInputRows": 5, "durationMs": {"addBatch": 200}}, {"numInputRows": 0, "durationMs": {}}])
    assert phases["addBatch"] == 200
    assert told([0.1, 0.2, 0.3, 5.0], phases, rate=10)["held"] is True
    assert told([1.1, 1.2, 1.3], phases, rate=10)["held"] is False
    assert "p50 1.20 s" in capsys.readouterr().out
