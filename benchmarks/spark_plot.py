"""What Spark's benchmarks found, as one picture.

`python -m benchmarks spark-plot results.json docs/images/spark-figures.png`. Three panels: reading beside Parquet and
beside tuples, writing beside Spark's Parquet writer, and the age of a message when its row is readable. A benchmark
that is not in the file leaves its panel empty. Nothing is drawn that is not in the file.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import spark_results

OURS: Final = "#1b6ca8"
OTHERS: Final = "#9aa5b1"
NOT_MEASURED: Final = "not measured"
READING: Final = {"queue": "full row", "values": "values only", "parquet": "Parquet", "tuples": "tuples"}


def main(arguments: Sequence[str] = ()) -> dict[str, object]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks spark-plot")
    parser.add_argument("results", type=Path)
    parser.add_argument("picture", type=Path)
    asked = parser.parse_args(list(arguments))
    draw(spark_results.read(asked.results), asked.picture)
    print(f"drawn: {asked.picture}")
    return {"held": True}


def draw(results: Mapping[str, Any], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    picture, (reading, writing, latency) = plt.subplots(1, 3, figsize=(13, 4.2), constrained_layout=True)
    _draw_rates(reading, reading_rates(results), title="reading 100 B messages")
    _draw_rates(writing, dict(results.get("spark-write", {}).get("rows_per_s", {})), title="writing 100 B messages")
    _draw_latency(latency, results.get("spark-latency", {}))
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=110)
    plt.close(picture)


def reading_rates(results: Mapping[str, Any]) -> dict[str, float]:
    """Named as people say it, in one order."""
    found = results.get("spark", {}).get("rows_per_s", {})
    return {title: found[name] for name, title in READING.items() if name in found}


def _draw_rates(axis: Any, rates: Mapping[str, float], *, title: str) -> None:
    axis.set_title(title)
    if not rates:
        _draw_nothing(axis)
        return
    names = [name.replace(", ", ",\n") for name in rates]
    colors = [OTHERS if "arquet" in name or name == "tuples" else OURS for name in rates]
    bars = axis.bar(names, [rate / 1e6 for rate in rates.values()], color=colors)
    axis.bar_label(bars, fmt="%.2f", fontsize=8)
    axis.set_ylabel("million rows/s (higher is better)")
    axis.tick_params(axis="x", labelsize=8)
    axis.grid(axis="y", alpha=0.3)


def _draw_latency(axis: Any, found: Mapping[str, Any]) -> None:
    axis.set_title("from sending to a readable row")
    cuts = found.get("percentiles_s", [])
    if not cuts:
        _draw_nothing(axis)
        return
    axis.plot([1000 * cut for cut in cuts], range(1, len(cuts) + 1), color=OURS)
    for name in ("p50", "p99"):
        at = 1000 * found["seconds"][name]
        axis.axvline(at, color=OTHERS, linewidth=0.8)
        axis.annotate(f"{name} {at:,.0f} ms", (at, 4), rotation=90, fontsize=8, ha="right")
    axis.set_xlabel(f"ms at {found['rate']:,} messages/s (less is better)")
    axis.set_ylabel("% of messages")
    axis.set_xlim(left=0)
    axis.grid(alpha=0.3)


def _draw_nothing(axis: Any) -> None:
    axis.text(0.5, 0.5, NOT_MEASURED, ha="center", va="center", transform=axis.transAxes)
    axis.set_axis_off()


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
